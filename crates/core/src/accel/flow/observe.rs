//! The observation pass of a flow: one ACK updates every estimator, and the result is one [`AckObservation`].
//!
//! The order inside the pass matters:
//!
//! 1. Holes that the receiver reports are counted before early ACK hides any of them, because the loss classifier and
//!    the path test judge the path, not what the sender learns.
//! 2. The round trip and the peer's clock come before the classifier's decision, which compares queueing delays.
//! 3. The path test decides about reductions before the ACK is rewritten, so that the first loss of a path that has
//!    just failed its test is not undone any more.

use super::{Direction, FlowContext, FlowState};
use crate::accel::ack_pipeline::AckObservation;
use crate::accel::observation::congestion_response::AckSample;
use crate::accel::observation::path_test::{PathTest, PathVerdict};
use crate::units::Instant;
use crate::wire::packet::{Ack, Flags, IpParams, Segment, Timestamps};

/// What the receiver reports, before early ACK changes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalReport {
    /// Holes show for the first time.
    has_new_holes: bool,
    /// Bytes that have arrived since the previous ACK, in order or beyond a hole.
    new_bytes: u32,
}

impl FlowState {
    /// First half of the pass: what the receiver itself reports.
    pub(super) fn observe_local(&mut self, now: Instant, ack: &Ack) -> LocalReport {
        self.on_local_echo(now, ack);
        let high = self.local_holes.high();
        let has_new_holes = self.local_holes.on_ack(now, ack, self.meter.segment_size) > 0;
        let new_bytes = high.zip(self.local_holes.high()).map_or(0, |(old, new)| new.offset_from(old));
        // Of an upload the ACK itself shows first how long packets wait (below).
        if has_new_holes && self.direction == Direction::Download {
            self.on_loss(now);
        }
        LocalReport { has_new_holes, new_bytes: u32::try_from(new_bytes).unwrap_or(0) }
    }

    /// Second half: `ack` is what the sender is to learn. Also returns whether SACK blocks or the number have changed.
    pub(super) fn observe<'a>(
        &mut self,
        now: Instant,
        report: LocalReport,
        (ack, ip_params): (Ack, IpParams),
        is_suppressed: bool,
        context: &FlowContext<'a>,
        path: &mut PathTest,
    ) -> (AckObservation<'a>, bool) {
        let before = self.last_ack.replace((ack, ip_params)).map(|(ack, _)| ack);
        let advance = before.map_or(0, |before| u32::try_from(ack.ack.offset_from(before.ack)).unwrap_or(0));
        self.last_packet = now;
        self.counts.acks += 1;
        self.meter.goodput.on_bytes(now, advance);
        // A FIN takes one sequence number; more than that is data of a server that has not closed.
        self.has_closed &= advance <= 1;
        self.observe_clocks(now, &ack, before.as_ref(), context.is_captured);
        self.loss_classifier.on_bytes(now, report.new_bytes);
        let new_holes = self.reported_holes.on_ack(now, &ack, self.meter.segment_size);
        let highest = self.reported_holes.high().unwrap_or(ack.ack);
        if self.direction == Direction::Upload {
            // The local stack is the sender: when it sent the newest segment that arrived is known exactly.
            let (bytes, sent) = self.upload.on_highest_received(highest);
            sent.into_iter()
                .for_each(|timestamp| self.loss_classifier.on_tsval(now, timestamp, self.meter.rtt.min()));
            self.congestion_response.on_arrival(bytes as usize, self.loss_classifier.queueing_delay(now));
            if report.has_new_holes {
                self.on_loss(now);
            }
        }
        let may_undo = self.update_path_test(now, report, &ack, path);
        let is_random =
            new_holes > 0 && may_undo && self.eifel_undo.is_worth_undoing(now, &self.meter) && self.is_random(now);
        let sample = AckSample {
            is_congestion: new_holes > 0 && !is_random,
            rtt: self.meter.rtt.min(),
            plain_tcp: if new_holes > 0 { self.plain_tcp(self.reported_holes.count()) } else { None },
        };
        let is_responsive = self.congestion_response.is_responsive(now, &sample);
        let has_data =
            advance > 0 || new_holes > 0 || before.is_some_and(|before| before.sack_blocks != ack.sack_blocks);
        let seen = AckObservation {
            now,
            ack,
            is_suppressed,
            mechanisms: context.mechanisms,
            is_upload: self.direction == Direction::Upload,
            advance,
            new_holes,
            highest,
            is_hole_open: self.reported_holes.is_open(),
            has_long_hole: self.reported_holes.has_long_hole(),
            is_random: is_random && is_responsive,
            rtt: self.meter.rtt.smoothed_or_default(),
            is_sack_permitted: self.is_sack_permitted,
            is_frozen: self.is_frozen,
            can_withhold: self.withheld_ack.is_worth_it(
                now,
                &self.meter,
                self.loss_classifier.queueing_delay(now).unwrap_or_default(),
            ),
        };
        (seen, has_data)
    }

    /// Timestamps of an ACK: the round-trip time, and how the peer's clock runs.
    fn observe_clocks(&mut self, now: Instant, ack: &Ack, before: Option<&Ack>, is_captured: bool) {
        let Some(timestamps) = ack.timestamps else { return };
        match self.direction {
            Direction::Download => self.meter.rtt.on_ack_sent(now, timestamps.ts_val, is_captured),
            Direction::Upload => {
                let tick = self.loss_classifier.peer_clock().tick();
                let rtt = self.upload.on_echo(now, timestamps.ts_ecr, tick);
                rtt.into_iter().for_each(|rtt| self.meter.rtt.on_sample(rtt));
            }
        }
        // Without captured packets the echo shows the sender's clock, but only when it changes: an echo that is repeated
        // is older than its ACK.
        let is_fresh =
            before.and_then(|before| before.timestamps).is_none_or(|old| old.ts_ecr.is_before(timestamps.ts_ecr));
        if is_fresh && !is_captured {
            self.loss_classifier.on_tsval(now, timestamps.ts_ecr, self.meter.rtt.min());
        }
    }

    /// A packet of the peer has arrived, `length` bytes of payload.
    pub(crate) fn on_arrival(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        let finest = self.loss_classifier.peer_clock().min_tick();
        let may_be = |timestamps: Timestamps| self.tsval_check.is_plausible(now, timestamps.ts_val, finest);
        // A timestamp that the peer's clock cannot show yet is forged or damaged: nothing is learned from that packet.
        if self.direction == Direction::Upload || !segment.timestamps().is_none_or(may_be) {
            return;
        }
        if let Some(early_ack) = &mut self.early_ack.flow {
            early_ack.on_arrival(now, segment, length);
        }
        if let Some(timestamps) = segment.timestamps() {
            self.loss_classifier.on_tsval(now, timestamps.ts_val, self.meter.rtt.min());
            self.meter.rtt.on_echo(now, timestamps.ts_ecr);
            self.ack_path.on_echo(now, timestamps.ts_ecr, self.loss_classifier.queueing_delay(now));
        }
        self.has_mark |= segment.packet().ip_params().traffic_class & ECN_CE == ECN_CE;
        if length > 0 {
            self.unfreeze.on_data();
        }
        self.congestion_response.on_arrival(segment.payload_length(), self.loss_classifier.queueing_delay(now));
    }

    /// The local stack has echoed this timestamp, so a packet with it has arrived and was accepted.
    pub(super) fn on_local_echo(&mut self, now: Instant, ack: &Ack) {
        if let Some(timestamps) = ack.timestamps.filter(|_| self.direction == Direction::Download) {
            self.tsval_check.on_echo(now, timestamps.ts_ecr);
        }
    }

    /// Holes show for the first time.
    fn on_loss(&mut self, now: Instant) {
        self.loss_classifier.on_loss(now);
        if self.local_holes.is_burst(self.meter.segment_size) {
            self.loss_classifier.on_burst(now);
        }
    }

    /// Reports an ACK to the test of its path. Returns whether reductions may be undone now.
    ///
    /// Bytes and losses count only while no packet waits in a queue: what is lost from a full queue depends on the rate
    /// by definition. Losses within one round trip count once, as the sender reduces its window once for them.
    fn update_path_test(&mut self, now: Instant, report: LocalReport, ack: &Ack, path: &mut PathTest) -> bool {
        // ECE with CWR or AE is a part of the counter of accurate ECN (RFC 9768), not an echo.
        let is_echoed = ack.flags.contains(Flags::ECE) && !ack.flags.has_any(Flags::CWR | Flags::AE);
        if core::mem::take(&mut self.has_mark) || is_echoed {
            path.on_mark(now);
        }
        let is_queue_empty = self.loss_classifier.is_queue_empty(now);
        let delay = self.loss_classifier.queueing_delay(now);
        delay.into_iter().for_each(|delay| path.on_queueing_delay(now, delay, self.meter.rtt.min()));
        if is_queue_empty {
            path.on_bytes(now, report.new_bytes);
        }
        if report.has_new_holes && self.local_holes.is_burst(self.meter.segment_size) {
            path.on_burst(now);
        }
        if report.has_new_holes && self.meter.last_loss.is_none_or(|last| now.since(last) >= self.meter.rtt.min()) {
            self.meter.last_loss = Some(now);
            self.may_undo =
                if is_queue_empty { path.on_loss(now, self.meter.rtt.min()) } else { path.is_trusted(now) };
        }
        self.path_verdict = path.verdict(now);
        self.may_undo && self.path_verdict == PathVerdict::Trusted
    }

    /// Whether a loss that shows now is random: it was no burst, and no queue had built up before it.
    pub(super) fn is_random(&self, now: Instant) -> bool {
        self.loss_classifier.is_random(now, self.meter.rtt.min())
            && !self.local_holes.is_burst(self.meter.segment_size)
    }
}

/// The CE codepoint (RFC 3168 section 5).
const ECN_CE: u8 = 0b11;
