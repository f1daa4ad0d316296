//! What a flow does when the primary link fails and recovers, and as time passes.
//!
//! 1. An outage ends all chains of the Eifel undo, and the withheld byte is kept for its end.
//! 2. A packet that repeats the receiver's last ACK echoes a timestamp of the present, not of before the outage: the
//!    sender would measure the outage as a round-trip time.
//! 3. What restarts the sender must be news to it: a withheld byte, or without one the ICMP messages of the outage
//!    revert, which report that its retransmissions had no route. Holes from before the outage are not reported again
//!    then (see [`crate::accel::withheld_ack`]). The cumulative ACK is repeated, as it may be lost, and the ICMP
//!    message is only about the first segment beyond it.
//! 4. For an upload the same packets are delivered to the local stack instead of sent.

use alloc::collections::VecDeque;

use super::{Direction, FlowState, TIMESTAMP_OPTION};
use crate::accel::early_ack::flow_state::EarlyAckFlow;
use crate::accel::event::{Output, PacketBytes};
use crate::accel::outage::recovery::RestartAck;
use crate::accel::zero_window::{FreezeParams, Resend};
use crate::accel::{Mechanism, Mechanisms};
use crate::link::LinkId;
use crate::units::Instant;
use crate::wire::packet::{Ack, IcmpUnreachable, SackBlocks, Timestamps};

impl FlowState {
    /// The primary link is down.
    ///
    /// `in_flight_at_outage` decides whether the sender waits for anything: a flow at rest needs no restart. If
    /// freezing is enabled, the form that acknowledges what is in flight is tried first, and the zero-window freeze
    /// only if that is not possible.
    pub(crate) fn on_outage_start(
        &mut self,
        now: Instant,
        freeze: Option<FreezeParams>,
        outputs: &mut VecDeque<Output>,
    ) {
        self.early_ack.flow.iter_mut().for_each(EarlyAckFlow::on_outage_start);
        self.eifel_undo.clear();
        self.meter.rtt.on_outage_start();
        self.unfreeze.end();
        self.in_flight_at_outage =
            self.meter.goodput.rate(now) * (self.meter.rtt.smoothed_or_default() + self.options.outage.queue_time);
        if self.in_flight_at_outage.is_zero() && !self.recovery.is_sender_waiting(now) {
            return;
        }
        self.may_retransmit = self.reported_holes.is_open()
            || self.recovery.is_sender_waiting(now)
            || self.in_flight_at_outage.bytes()
                >= u64::from(self.meter.segment_size) * self.options.outage.min_in_flight;
        self.withheld_ack.withhold_until_recovery();
        self.recovery.on_outage_start(now, self.direction == Direction::Download);
        let Some(freeze) = freeze else { return };
        if !self.early_ack.latency.is_paused(now) && self.freeze_sender(now, &freeze, outputs) {
            return;
        }
        if let (true, link, Some((last, ip_params))) = (freeze.is_first_form, freeze.link, self.last_ack) {
            self.is_frozen = true;
            let packet = PacketBytes(
                Ack { window: 0, sack_blocks: SackBlocks::default(), ..last }.emit(&self.key, ip_params),
            );
            outputs.push_back(self.towards_sender(link, packet));
        }
    }

    /// The primary link has recovered.
    pub(crate) fn on_outage_end(&mut self, now: Instant, primary: LinkId, outputs: &mut VecDeque<Output>) {
        self.recovery.on_outage_end(now);
        self.early_ack.on_outage_end(now);
        let was_frozen = core::mem::take(&mut self.is_flight_frozen);
        let has_sweep = self.early_ack.has_open_sweep();
        if was_frozen || has_sweep {
            self.send_unfreeze_sweep(now, primary, self.in_flight_at_outage.bytes(), outputs);
            // The unfreezing ACKs or the response may be lost. A sender that has accepted all of them has nothing more
            // to send.
            self.unfreeze.on_outage_end(now, was_frozen);
        }
        if core::mem::take(&mut self.is_frozen) {
            self.send_last_ack(now, primary, outputs);
        }
    }

    pub(crate) fn tick(
        &mut self,
        now: Instant,
        primary: LinkId,
        mechanisms: &Mechanisms,
        outputs: &mut VecDeque<Output>,
    ) {
        self.send_delayed(now, primary, false, outputs);
        if self.ack_path.has_failed(now) {
            self.send_last_ack(now, primary, outputs);
        }
        if self.withheld_ack.due().is_some_and(|due| now >= due) && self.withheld_ack.release() {
            self.send_last_ack(now, primary, outputs);
        }
        if let Some(restart) = self.recovery.tick(now) {
            let timeouts = if mechanisms.has(Mechanism::OutageRevert) { self.timeouts_to_revert(now) } else { 0 };
            self.send_restart_ack(now, primary, restart, timeouts, outputs);
        }
        if self.unfreeze.deadline().is_some() && !self.early_ack.has_open_sweep() {
            self.unfreeze.end();
        }
        match self.unfreeze.tick(now) {
            // What was sent since was not in flight then, so the sweep covers no additional bytes.
            Some(Resend::Sweep) => self.send_unfreeze_sweep(now, primary, 0, outputs),
            Some(Resend::Probe) => self.send_position_probe(primary, outputs),
            None => {}
        }
        self.early_ack.tick(now, outputs);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let early_ack = self.early_ack.flow.as_ref().and_then(EarlyAckFlow::deadline);
        [
            self.withheld_ack.due(),
            self.recovery.deadline(),
            self.unfreeze.deadline(),
            self.ack_path.deadline(),
            early_ack,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Sends the ACKs of the delay queue that are due; all of them if an outage has begun.
    pub(crate) fn send_delayed(
        &mut self,
        now: Instant,
        link: LinkId,
        is_outage: bool,
        outputs: &mut VecDeque<Output>,
    ) {
        let due = self.ack_path.take_due(now, is_outage).into_iter().map(PacketBytes);
        outputs.extend(due.map(|packet| Output::Send { link, packet }));
    }

    /// Repeats the ACKs that froze the sender, with the window open and over `flight` bytes more, if missing bytes can
    /// be fetched.
    fn send_unfreeze_sweep(&mut self, now: Instant, link: LinkId, flight: u64, outputs: &mut VecDeque<Output>) {
        let scale = self.window_scale();
        let (Some(last), Some(early_ack)) = (self.last_ack, self.early_ack.flow.as_mut()) else { return };
        let packets = early_ack.unfreeze_sweep(now, last, flight, self.meter.segment_size, scale);
        outputs.extend(packets.into_iter().map(|packet| Output::Send { link, packet: PacketBytes(packet) }));
    }

    /// Asks the sender how many of these ACKs it has accepted: it answers a segment that is out of its window with its
    /// position.
    fn send_position_probe(&self, link: LinkId, outputs: &mut VecDeque<Output>) {
        let (Some(last), Some(early_ack)) = (self.last_ack, &self.early_ack.flow) else { return };
        let packets = early_ack.probe_position(last, self.window_scale());
        outputs.extend(packets.into_iter().map(|packet| Output::Send { link, packet: PacketBytes(packet) }));
    }

    /// Acknowledges what is in flight and closes the window, over a secondary link. Returns whether that was possible.
    ///
    /// The number of bytes in flight is only estimated, and a sender ignores an ACK beyond what it has sent. So the
    /// ACKs go up in steps of one segment: it accepts each that is not beyond, and the last of these closes the window
    /// at its own position.
    fn freeze_sender(&mut self, now: Instant, freeze: &FreezeParams, outputs: &mut VecDeque<Output>) -> bool {
        let queued_rtt = self.meter.rtt.min() + self.loss_classifier.queueing_delay(now).unwrap_or_default();
        let rtt = self.meter.rtt.smoothed_or_default().max(queued_rtt);
        let rate_and_rtt = (self.meter.goodput.rate(now), rtt);
        let (Some((last, ip_params)), Some(early_ack)) = (self.last_ack, self.early_ack.flow.as_mut()) else {
            return false;
        };
        let default_step = self.meter.segment_size + if last.timestamps.is_some() { 0 } else { TIMESTAMP_OPTION };
        let step = early_ack.sender_segment_size().unwrap_or(default_step);
        let Some(steps) = freeze.ack_steps(rate_and_rtt, self.in_flight_at_outage, step) else { return false };
        let packets = early_ack.freeze(now, (&last, ip_params), &steps, step);
        self.is_flight_frozen = !packets.is_empty();
        let send = |packet| Output::Send { link: freeze.link, packet: PacketBytes(packet) };
        outputs.extend(packets.into_iter().map(send));
        if self.is_flight_frozen {
            self.unfreeze.on_outage_start(now);
        }
        self.is_flight_frozen
    }

    /// How many retransmission timeouts the sender may have had during the outage; 0 if it had nothing to retransmit,
    /// or learned that everything has arrived.
    fn timeouts_to_revert(&self, now: Instant) -> u32 {
        let has_sweep = self.early_ack.has_open_sweep();
        let is_known = self.direction == Direction::Download || self.upload.has_clock();
        if !self.may_retransmit || self.has_closed || has_sweep || !is_known {
            return 0;
        }
        self.recovery.timeouts(now, self.meter.rtt.smoothed_or_default())
    }

    /// Restarts the sender over this link, after up to `timeouts` retransmission timeouts of it.
    ///
    /// Each ICMP message reverts one timeout (RFC 6069): the sender takes back one doubling of its timer. One more than
    /// the timeouts is sent with the first restart ACK, for the retransmission that is in flight; later restart ACKs
    /// repeat only some.
    fn send_restart_ack(
        &mut self,
        now: Instant,
        link: LinkId,
        restart: RestartAck,
        timeouts: u32,
        outputs: &mut VecDeque<Output>,
    ) {
        let has_news = self.withheld_ack.can_restart_sender();
        let messages = match restart {
            RestartAck::Ended { is_first: true } if timeouts > 0 => timeouts + 1,
            RestartAck::Ended { is_first: false } if timeouts > 0 => self.options.outage.repeated_unreachables,
            _ => 0,
        };
        let Some((last, ip_params)) = self.last_ack.filter(|_| has_news || messages > 0) else { return };
        self.recovery.on_restart();
        // Without SACK each ACK that reports nothing new counts as a segment that has arrived (RFC 5681 §3.2).
        if has_news || self.is_sack_permitted || restart == (RestartAck::Ended { is_first: true }) {
            let ack = if has_news { last } else { Ack { sack_blocks: SackBlocks::default(), ..last } };
            self.send_ack(now, link, &ack, outputs);
        }
        let seq = self.withheld_ack.acked().map_or(last.ack, |acked| acked.later(last.ack));
        let message = IcmpUnreachable { four_tuple: self.key.reversed(), seq };
        outputs.extend((0..messages).map(|_| self.towards_sender(link, PacketBytes(message.emit(ip_params)))));
    }

    /// Repeats the receiver's last ACK over this link.
    fn send_last_ack(&mut self, now: Instant, link: LinkId, outputs: &mut VecDeque<Output>) {
        if let Some((last, _)) = self.last_ack {
            self.send_ack(now, link, &last, outputs);
        }
    }

    fn send_ack(&self, now: Instant, link: LinkId, last: &Ack, outputs: &mut VecDeque<Output>) {
        let Some((_, ip_params)) = self.last_ack else { return };
        // Not the timestamp of before the outage, from which the sender would measure a round-trip time as long as the
        // outage (and the local stack, of an upload, would take retransmissions for needless). Instead, the timestamp
        // that the other clock would show in a packet that arrives now; but that of the chain while the Eifel undo
        // needs it.
        let older = self.rewritten_echo.filter(|_| self.eifel_undo.needs_exact_acks());
        let current = older.or_else(|| self.loss_classifier.peer_clock().current_tsval(now));
        let fresh =
            |timestamps: Timestamps| Timestamps { ts_ecr: current.unwrap_or(timestamps.ts_ecr), ..timestamps };
        // A duplicate is reported once (RFC 2883).
        let sacks = if last.dsack_range().is_some() { SackBlocks::default() } else { last.sack_blocks };
        let ack = Ack { timestamps: last.timestamps.map(fresh), sack_blocks: sacks, ..*last };
        outputs.push_back(self.towards_sender(link, PacketBytes(ack.emit(&self.key, ip_params))));
    }

    fn towards_sender(&self, link: LinkId, packet: PacketBytes) -> Output {
        match self.direction {
            Direction::Download => Output::Send { link, packet },
            Direction::Upload => Output::Deliver(packet),
        }
    }
}
