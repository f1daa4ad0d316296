//! One TCP flow: what its ACKs show, and what leaves in their place.
//!
//! In: its packets as they leave and as they pass. Out: each ACK as it is to leave. The link's turns and the time are in
//! `dark`, hiding in `mirrored`, what is told in `view`.
//!
//! 1. What the own stack has said last is kept: every packet made here says that, with another number or window.
//! 2. Order of the marks on an ACK: holes are counted, then the timestamp (`undo`), then the number (`reserve`), which
//!    is exact while a hole is open or its closing is still to be believed.
//! 3. Upward (§3.5) all is the same with the ends changed: the far end's ACKs are marked on their way into the own
//!    stack, which is the sender. Its own timestamps come back in them, so that the gate judges by the round trip
//!    (`upward`); and a kick waits until the link is back, for it would be spent in the dark.
//! 4. Without timestamps there is no undo; without the SYN seen, windows count as shifted by the most there is, which
//!    replaces fewer ACKs and breaks nothing.

mod early_ack;
mod eligibility;
mod outage;
mod status;

use super::{Mechanism, Mechanisms};
use crate::accel::ack_offload::ack_path::AckPathSelector;
use crate::accel::ack_offload::ack_sender::QueueResult;
use crate::accel::early_ack::flow_state::EarlyAckFlow;
use crate::accel::early_ack::latency_guard::FetchLatencyGuard;
use crate::accel::eifel_undo::{EifelUndo, HoleReport};
use crate::accel::observation::congestion_response::{AckSample, CongestionResponse};
use crate::accel::observation::goodput::GoodputEstimator;
use crate::accel::observation::loss_classifier::LossClassifier;
use crate::accel::observation::path_test::PathTest;
use crate::accel::observation::rtt::RttEstimator;
use crate::accel::observation::sack_holes::SackHoles;
use crate::accel::observation::tsval_check::TsvalCheck;
use crate::accel::observation::upload::UploadObserver;
use crate::accel::outage::recovery::OutageRecovery;
use crate::accel::withheld_ack::{self, WithheldAck};
use crate::accel::zero_window::UnfreezeRetry;
use crate::units::{DataSize, Instant};
use crate::wire::packet::{
    Ack, Flags, FourTuple as Key, IpParams, Rewrite, Segment, TcpOption, TcpTimestamp, Timestamps,
};

/// Where a flow's data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// To here: the own stack acknowledges.
    Download,
    /// From here: the far end acknowledges.
    Upload,
}

/// What losses on a flow's path are, as far as is known ([`Trust`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PathVerdict {
    Unknown,
    /// They do not depend on the rate.
    Trusted,
    /// The losses of the path follow the sending rate.
    Refused,
    /// The path marks packets (ECN CE) instead of dropping them.
    Marked,
}

/// A flow that is known.
#[derive(Clone, Debug)]
pub(super) struct FlowState {
    key: Key,
    direction: Direction,
    opened: Instant,
    last_packet: Instant,
    scale: Option<u8>,
    /// Its SYN offers SACK and is not answered otherwise, or was not seen.
    is_sack_permitted: bool,
    /// Its ends speak MPTCP, as far as is known.
    is_multipath: bool,
    segment_size: u32,
    last_ack: Option<(Ack, IpParams)>,
    /// What is missing, as the own stack says it.
    local_holes: SackHoles,
    /// The same, less what is hidden from the other end.
    reported_holes: SackHoles,
    /// Of timestamps that pass.
    tsval_check: TsvalCheck,
    loss_classifier: LossClassifier,
    eifel_undo: EifelUndo,
    /// The older timestamp that the last ACK echoed.
    rewritten_echo: Option<TcpTimestamp>,
    congestion_response: CongestionResponse,
    withheld_ack: WithheldAck,
    recovery: OutageRecovery,
    early_ack: Option<EarlyAckFlow>,
    fetch_latency: FetchLatencyGuard,
    /// What was on its way when the link went dark, at the most.
    in_flight_at_outage: DataSize,
    /// Its sender may have had something to repeat then.
    may_retransmit: bool,
    /// The own end has closed, and no data has come since.
    has_closed: bool,
    goodput: GoodputEstimator,
    rtt: RttEstimator,
    upload: UploadObserver,
    ack_path: AckPathSelector,
    is_frozen: bool,
    /// The same, and its flight was acknowledged.
    is_flight_frozen: bool,
    unfreeze: UnfreezeRetry,
    path_verdict: PathVerdict,
    /// When the last loss showed that counts, and whether its reduction may be undone.
    last_loss: Option<Instant>,
    may_undo: bool,
    /// A packet with a CE mark has come.
    has_mark: bool,
    counts: AckCounts,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckCounts {
    pub(super) acks: u64,
    pub(super) offloaded: u64,
    pub(super) replaced: u64,
}

impl AckCounts {
    /// A helping link has taken an ACK.
    pub(super) const fn on_queued(&mut self, result: QueueResult) {
        match result {
            QueueResult::Queued => self.offloaded += 1,
            QueueResult::Replaced => self.replaced += 1,
        }
    }
}

/// What an ACK has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckOutcome {
    /// Data has come since the one before.
    pub(super) has_data: bool,
    /// Holes showed for the first time.
    pub(super) has_holes: bool,
    /// It says nothing new, and is not to leave.
    pub(super) is_suppressed: bool,
    /// The other end speaks plain TCP after all: of MPTCP there are no pure ACKs.
    pub(super) is_plain_tcp: bool,
}

/// What may be done for a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowContext<'a> {
    pub(super) mechanisms: &'a Mechanisms,
    /// Whether what passes is shown.
    pub(super) is_captured: bool,
    /// How many bytes more may be hidden.
    pub(super) early_ack_budget: u64,
}

impl FlowState {
    /// Known from now on.
    pub(super) fn new(now: Instant, key: Key, direction: Direction) -> Self {
        Self {
            key,
            direction: direction,
            opened: now,
            last_packet: now,
            scale: None,
            is_sack_permitted: true,
            is_multipath: false,
            segment_size: DEFAULT_SEGMENT,
            last_ack: None,
            local_holes: SackHoles::default(),
            reported_holes: SackHoles::default(),
            tsval_check: TsvalCheck::default(),
            loss_classifier: LossClassifier::default(),
            eifel_undo: EifelUndo::default(),
            rewritten_echo: None,
            congestion_response: CongestionResponse::default(),
            withheld_ack: WithheldAck::default(),
            recovery: OutageRecovery::default(),
            early_ack: None,
            fetch_latency: FetchLatencyGuard::default(),
            in_flight_at_outage: DataSize::ZERO,
            may_retransmit: false,
            has_closed: false,
            goodput: GoodputEstimator::default(),
            rtt: RttEstimator::default(),
            upload: UploadObserver::default(),
            ack_path: AckPathSelector::default(),
            is_frozen: false,
            is_flight_frozen: false,
            unfreeze: UnfreezeRetry::default(),
            path_verdict: PathVerdict::Unknown,
            last_loss: None,
            may_undo: false,
            has_mark: false,
            counts: AckCounts::default(),
        }
    }

    /// Its own SYN leaves.
    pub(super) fn on_syn(&mut self, now: Instant, syn: &Segment<'_>) {
        self.last_packet = now;
        if self.direction == Direction::Download {
            self.rtt.on_syn(now);
        }
        // Without the option windows are not shifted (RFC 7323 §2.2).
        self.scale = Some(0);
        self.is_sack_permitted = false;
        for option in syn.options() {
            match option {
                TcpOption::WindowScale(shift) => self.scale = Some(shift),
                TcpOption::SackPermitted => self.is_sack_permitted = true,
                TcpOption::Mss(most) => self.segment_size = u32::from(most).saturating_sub(TIMESTAMP_OPTION).max(1),
                TcpOption::Other { kind: TcpOption::MPTCP, .. } => self.is_multipath = true,
                _ => {}
            }
        }
    }

    /// The other end answers its SYN: what one end does not offer is not used.
    pub(super) fn on_syn_ack(&mut self, syn_ack: &Segment<'_>) {
        if self.has_begun() {
            return;
        }
        let has = |is_option: fn(&TcpOption<'_>) -> bool| syn_ack.options().any(|option| is_option(&option));
        self.is_sack_permitted &= has(|option| matches!(option, TcpOption::SackPermitted));
        if !has(|option| matches!(option, TcpOption::WindowScale(_))) {
            self.scale = Some(0);
        }
    }

    /// Whether an acknowledgement was seen: its handshake is over.
    pub(super) const fn has_begun(&self) -> bool {
        self.last_ack.is_some()
    }

    /// Whether it is, as far as is known, a part of an MPTCP connection: what that carries has numbers of its own, which nobody
    /// here knows.
    pub(super) const fn is_multipath(&self) -> bool {
        self.is_multipath
    }

    /// Its own data, or the end of it, leaves. `packet` becomes what is to leave.
    pub(super) fn on_data_out(&mut self, now: Instant, packet: &mut [u8], context: &FlowContext<'_>) {
        self.last_packet = now;
        self.rtt.on_handshake_end(now);
        let Ok(segment) = Segment::parse(packet) else { return };
        self.has_closed |= self.direction == Direction::Download && segment.flags().contains(Flags::FIN);
        if let Some(hiding) = &mut self.early_ack {
            hiding.on_local_segment(&segment, u32::try_from(segment.payload().len()).unwrap_or(u32::MAX));
        }
        let Some(ack) = ack_of(&segment) else { return };
        self.on_local_echo(now, &ack);
        let (ack, _) = self.apply_early_ack(now, packet, ack, true, context);
        self.withheld_ack.on_acked(ack.ack);
    }

    /// A packet of its own passes that was not held.
    pub(super) fn on_request_bytes(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        self.last_packet = now;
        if let Some(hiding) = &mut self.early_ack {
            hiding.on_local_segment(segment, length);
        }
    }

    /// A pure ACK of the own stack. `packet` becomes what is to leave.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        (ack, ip_params): (Ack, IpParams),
        context: &FlowContext<'_>,
        trust: &mut PathTest,
    ) -> AckOutcome {
        let mechanisms = context.mechanisms;
        self.on_local_echo(now, &ack);
        let high = self.local_holes.high();
        let is_lost = self.local_holes.on_ack(now, &ack, self.segment_size) > 0;
        // Upward the ACK itself tells how long packets wait.
        if is_lost && self.direction == Direction::Download {
            self.on_loss(now);
        }
        let (ack, is_held) = self.apply_early_ack(now, packet, ack, false, context);
        let before = self.last_ack.replace((ack, ip_params)).map(|(ack, _)| ack);
        let advance = before.map_or(0, |before| u32::try_from(ack.ack.offset_from(before.ack)).unwrap_or(0));
        self.last_packet = now;
        self.counts.acks += 1;
        self.goodput.on_bytes(now, advance);
        // A FIN takes one number.
        self.has_closed &= advance <= 1;
        if let Some(timestamps) = ack.timestamps {
            match self.direction {
                Direction::Download => self.rtt.on_ack_sent(now, timestamps.ts_val, context.is_captured),
                Direction::Upload => {
                    let rtt = self.upload.on_echo(now, timestamps.ts_ecr, self.loss_classifier.peer_clock().tick());
                    rtt.into_iter().for_each(|rtt| self.rtt.on_sample(rtt));
                }
            }
            let fresh = before
                .and_then(|before| before.timestamps)
                .is_none_or(|old| old.ts_ecr.is_before(timestamps.ts_ecr));
            if fresh && !context.is_captured {
                self.loss_classifier.on_tsval(now, timestamps.ts_ecr, self.rtt.min());
            }
        }
        let new_bytes = high.zip(self.local_holes.high()).map_or(0, |(old, new)| new.offset_from(old));
        self.loss_classifier.on_bytes(now, u32::try_from(new_bytes).unwrap_or(0));
        let new = self.reported_holes.on_ack(now, &ack, self.segment_size);
        if self.direction == Direction::Upload {
            let (bytes, stamp) = self.upload.on_highest_received(self.reported_holes.high().unwrap_or(ack.ack));
            stamp.into_iter().for_each(|stamp| self.loss_classifier.on_tsval(now, stamp, self.rtt.min()));
            self.congestion_response.on_arrival(bytes as usize, self.loss_classifier.queueing_delay(now));
            if is_lost {
                self.on_loss(now);
            }
        }
        let may_undo = self.update_path_test(now, is_lost, u32::try_from(new_bytes).unwrap_or(0), &ack, trust);
        let is_random = new > 0 && may_undo && self.is_worth_undoing(now) && self.is_random(now);
        let sample = AckSample {
            is_congestion: new > 0 && !is_random,
            rtt: self.rtt.min(),
            plain_tcp: if new > 0 { self.plain_tcp(self.reported_holes.count()) } else { None },
        };
        let is_helped = self.congestion_response.is_responsive(now, &sample);
        let echo = ack.timestamps.filter(|_| mechanisms.has(Mechanism::EifelUndo)).and_then(|timestamps| {
            let report = HoleReport {
                new_holes: new,
                ack: ack.ack,
                high: self.reported_holes.high().unwrap_or(ack.ack),
                is_open: self.reported_holes.is_open(),
                is_long: self.reported_holes.has_long_hole(),
                echo: timestamps.ts_ecr,
                is_random: is_random && is_helped,
                rtt: self.rtt.smoothed_or_default(),
            };
            self.eifel_undo.on_ack(now, &report)
        });
        self.rewritten_echo = echo;
        // Without SACK a repair that one byte less acknowledges is taken for a loss of what has come (RFC 6582 §3.2), and a
        // duplicate is all that tells of a hole.
        let is_plain = self.is_sack_permitted
            && advance > 0
            && ack.sack_blocks.is_empty()
            && !self.eifel_undo.needs_exact_acks()
            && !self.is_frozen;
        let keep = mechanisms.has(Mechanism::WithheldAck) && is_plain && self.can_withhold_byte(now);
        let hold_time = if self.direction == Direction::Download {
            withheld_ack::HOLD_TIME
        } else {
            withheld_ack::UPLOAD_HOLD_TIME
        };
        // What does not leave says nothing.
        let number =
            if is_held { ack.ack } else { self.withheld_ack.on_ack(now, ack.ack, keep.then_some(hold_time)) };
        if let Ok(mut rewrite) = Rewrite::of(packet) {
            if number != ack.ack {
                rewrite.set_ack(number);
            }
            if let (Some(echo), Some(timestamps)) = (echo, ack.timestamps)
                && echo != timestamps.ts_ecr
            {
                rewrite.set_ts_ecr(echo);
            }
        }
        let has_data = advance > 0 || new > 0 || before.is_some_and(|before| before.sack_blocks != ack.sack_blocks);
        if has_data {
            self.recovery.on_data(now);
        }
        let has_holes = new > 0 || self.early_ack.as_ref().is_some_and(EarlyAckFlow::has_open_holes);
        let is_plain_now = core::mem::take(&mut self.is_multipath);
        AckOutcome { has_data, has_holes, is_suppressed: is_held, is_plain_tcp: is_plain_now }
    }

    /// A packet of the own stack leaves, or has left: of an upload it is the sender's.
    pub(super) fn on_local_segment(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        if self.direction == Direction::Upload {
            self.upload.on_local_segment(now, segment, length, self.loss_classifier.peer_clock().tick());
        }
    }

    /// A packet of the other end came.
    pub(super) fn on_arrival(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        let finest = self.loss_classifier.peer_clock().min_tick();
        let may_be = |timestamps: Timestamps| self.tsval_check.is_plausible(now, timestamps.ts_val, finest);
        if self.direction == Direction::Upload || !segment.timestamps().is_none_or(may_be) {
            return;
        }
        if let Some(hiding) = &mut self.early_ack {
            hiding.on_arrival(now, segment, length);
        }
        if let Some(timestamps) = segment.timestamps() {
            self.loss_classifier.on_tsval(now, timestamps.ts_val, self.rtt.min());
            self.rtt.on_echo(now, timestamps.ts_ecr);
            self.ack_path.on_echo(now, timestamps.ts_ecr, self.loss_classifier.queueing_delay(now));
        }
        self.has_mark |= segment.packet().ip_params().traffic_class & ECN_CE == ECN_CE;
        if length > 0 {
            self.unfreeze.on_data();
        }
        self.congestion_response.on_arrival(segment.payload_length(), self.loss_classifier.queueing_delay(now));
    }

    /// The own stack has said this.
    fn on_local_echo(&mut self, now: Instant, ack: &Ack) {
        if let Some(timestamps) = ack.timestamps.filter(|_| self.direction == Direction::Download) {
            self.tsval_check.on_echo(now, timestamps.ts_ecr);
        }
    }

    /// Holes show for the first time.
    fn on_loss(&mut self, now: Instant) {
        self.loss_classifier.on_loss(now);
        if self.local_holes.is_burst(self.segment_size) {
            self.loss_classifier.on_burst(now);
        }
    }

    /// What an acknowledgement shows of its path: `came` bytes more, perhaps behind a loss. Whether reductions may be undone.
    fn update_path_test(
        &mut self,
        now: Instant,
        is_lost: bool,
        new_bytes: u32,
        ack: &Ack,
        trust: &mut PathTest,
    ) -> bool {
        // With CWR or AE it is a counter (RFC 9768).
        let is_echoed = ack.flags.contains(Flags::ECE) && !ack.flags.has_any(Flags::CWR | Flags::AE);
        if core::mem::take(&mut self.has_mark) || is_echoed {
            trust.on_mark(now);
        }
        let is_empty = self.loss_classifier.is_queue_empty(now);
        self.loss_classifier
            .queueing_delay(now)
            .into_iter()
            .for_each(|waited| trust.on_queueing_delay(now, waited, self.rtt.min()));
        if is_empty {
            trust.on_bytes(now, new_bytes);
        }
        if is_lost && self.local_holes.is_burst(self.segment_size) {
            trust.on_burst(now);
        }
        if is_lost && self.last_loss.is_none_or(|last| now.since(last) >= self.rtt.min()) {
            self.last_loss = Some(now);
            self.may_undo = if is_empty { trust.on_loss(now, self.rtt.min()) } else { trust.is_trusted(now) };
        }
        self.path_verdict = match () {
            () if trust.is_marked(now) => PathVerdict::Marked,
            () if trust.is_refused() => PathVerdict::Refused,
            () if trust.may_undo(now) => PathVerdict::Trusted,
            () => PathVerdict::Unknown,
        };
        self.may_undo && self.path_verdict == PathVerdict::Trusted
    }

    /// Whether what is lost now is lost at random.
    fn is_random(&self, now: Instant) -> bool {
        self.loss_classifier.is_random(now, self.rtt.min()) && !self.local_holes.is_burst(self.segment_size)
    }
}

/// What a segment acknowledges, whatever it carries.
fn ack_of(segment: &Segment<'_>) -> Option<Ack> {
    let (seq, flags, window) = (segment.seq(), segment.flags(), segment.window());
    let (timestamps, sacks) = (segment.timestamps(), segment.sack_blocks());
    segment.ack().map(|ack| Ack { seq, ack, window, flags, timestamps, sack_blocks: sacks })
}

/// The CE codepoint (RFC 3168 section 5).
const ECN_CE: u8 = 0b11;
/// An Ethernet's with timestamps.
const DEFAULT_SEGMENT: u32 = 1448;
/// What the option takes of each segment (RFC 7323 appendix A).
const TIMESTAMP_OPTION: u32 = 12;
