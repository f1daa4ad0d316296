//! One TCP flow: observes its ACKs and rewrites them.
//!
//! - `observe`: the pass that turns an ACK into an [`AckObservation`].
//! - `outage`: what the flow does when the primary link fails and recovers, and as time passes.
//! - `status`: what is shown of it.
//!
//! 1. The last ACK of the receiver is kept: every packet that is made here repeats it, with another number or window.
//! 2. For an upload the two ends change places: the peer's ACKs are rewritten on their way into the local stack, which
//!    is the sender (Super-aggregation §3.5). Its own timestamps come back in them, so the loss classifier judges by
//!    the round-trip time; and restart ACKs wait until the link has recovered, since an early one would be used up.
//! 3. Without timestamps no reduction is undone. If the SYN was not observed, windows count as scaled by the largest
//!    factor: fewer ACKs replace each other in a queue then, and nothing breaks.

mod observe;
mod outage;
pub(super) mod status;

use alloc::vec::Vec;

use super::{Mechanism, Mechanisms};
use crate::accel::Options;
use crate::accel::ack_offload::ack_path::{AckPathSelector, OffloadCandidate};
use crate::accel::ack_pipeline::{AckChange, AckRewriter};
use crate::accel::early_ack::flow_state::EarlyAckFlow;
use crate::accel::early_ack::stage::{EarlyAckConditions, EarlyAckStage};
use crate::accel::eifel_undo::{EifelUndo, UndoContext};
use crate::accel::observation::congestion_response::CongestionResponse;
use crate::accel::observation::flow_meter::FlowMeter;
use crate::accel::observation::goodput::GoodputEstimator;
use crate::accel::observation::loss_classifier::LossClassifier;
use crate::accel::observation::path_test::{PathTest, PathVerdict};
use crate::accel::observation::rtt::RttEstimator;
use crate::accel::observation::sack_holes::SackHoles;
use crate::accel::observation::tcp_model::plain_tcp_rate;
use crate::accel::observation::tsval_check::TsvalCheck;
use crate::accel::observation::upload::UploadObserver;
use crate::accel::outage::recovery::OutageRecovery;
use crate::accel::secondary::ack_sender::QueueResult;
use crate::accel::status::MechanismReport;
use crate::accel::withheld_ack::WithheldAck;
use crate::accel::zero_window::UnfreezeRetry;
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::{Ack, Flags, FourTuple as Key, IpParams, Segment, TcpOption, TcpTimestamp};

/// Which end of a flow is the local stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// The local stack is the receiver, and acknowledges.
    Download,
    /// The local stack is the sender, and the peer acknowledges.
    Upload,
}

/// The state of one flow.
#[derive(Clone, Debug)]
pub(super) struct FlowState {
    options: &'static Options,
    /// From the receiver to the sender.
    key: Key,
    direction: Direction,
    last_packet: Instant,
    /// The receiver's window scale; none: the SYN was not observed.
    scale: Option<u8>,
    /// Both ends offer SACK, or their SYNs were not observed.
    is_sack_permitted: bool,
    /// Both ends speak MPTCP, as far as is known.
    is_multipath: bool,
    /// The receiver's last ACK, after early ACK has changed it.
    last_ack: Option<(Ack, IpParams)>,
    /// Holes as the receiver reports them.
    local_holes: SackHoles,
    /// Holes as the sender learns of them: without those that were acknowledged early.
    reported_holes: SackHoles,
    /// Checks timestamps of captured packets.
    tsval_check: TsvalCheck,
    meter: FlowMeter,
    loss_classifier: LossClassifier,
    eifel_undo: EifelUndo,
    /// The older timestamp that the last ACK echoed.
    rewritten_echo: Option<TcpTimestamp>,
    congestion_response: CongestionResponse,
    withheld_ack: WithheldAck,
    recovery: OutageRecovery,
    early_ack: EarlyAckStage,
    /// An upper bound of what was in flight when the outage began.
    in_flight_at_outage: DataSize,
    /// The sender may have had something to retransmit then.
    may_retransmit: bool,
    /// The receiver has sent a FIN, and no data has arrived since.
    has_closed: bool,
    upload: UploadObserver,
    ack_path: AckPathSelector,
    /// The sender's window is closed by a zero-window freeze.
    is_frozen: bool,
    /// It is closed, and what was in flight was acknowledged.
    is_flight_frozen: bool,
    unfreeze: UnfreezeRetry,
    path_verdict: PathVerdict,
    /// Whether the reduction for that loss may be undone.
    may_undo: bool,
    /// A packet with a CE mark has arrived since the last ACK.
    has_mark: bool,
    counts: AckCounts,
}

/// What became of a flow's ACKs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckCounts {
    pub(super) acks: u64,
    pub(super) offloaded: u64,
    pub(super) replaced: u64,
}

impl AckCounts {
    /// A secondary link has taken an ACK.
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
    /// Data has arrived since the previous one.
    pub(super) has_data: bool,
    /// Holes show for the first time, or an early-acked hole is open.
    pub(super) has_holes: bool,
    /// It reports nothing new, and is to be dropped.
    pub(super) is_suppressed: bool,
    /// The peer turns out to speak plain TCP: MPTCP has no pure ACKs.
    pub(super) is_plain_tcp: bool,
}

/// What is allowed for a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowContext<'a> {
    pub(super) mechanisms: &'a Mechanisms,
    /// Whether packets that arrive are captured.
    pub(super) is_captured: bool,
    /// How many more bytes may be acknowledged early.
    pub(super) early_ack_budget: u64,
}

impl FlowState {
    /// A flow of which nothing was observed yet.
    pub(super) fn new(options: &'static Options, now: Instant, key: Key, direction: Direction) -> Self {
        let observation = &options.observation;
        Self {
            options,
            key,
            direction,
            last_packet: now,
            scale: None,
            is_sack_permitted: true,
            is_multipath: false,
            last_ack: None,
            local_holes: SackHoles::default(),
            reported_holes: SackHoles::default(),
            tsval_check: TsvalCheck::default(),
            meter: FlowMeter {
                opened: now,
                is_syn_observed: false,
                segment_size: DEFAULT_SEGMENT,
                goodput: GoodputEstimator::default(),
                rtt: RttEstimator::new(observation),
                last_loss: None,
            },
            loss_classifier: LossClassifier::new(observation),
            eifel_undo: EifelUndo::new(&options.eifel_undo),
            rewritten_echo: None,
            congestion_response: CongestionResponse::new(observation),
            withheld_ack: WithheldAck::new(&options.withheld_ack),
            recovery: OutageRecovery::new(&options.outage),
            early_ack: EarlyAckStage::new(&options.early_ack),
            in_flight_at_outage: DataSize::ZERO,
            may_retransmit: false,
            has_closed: false,
            upload: UploadObserver::default(),
            ack_path: AckPathSelector::new(&options.ack_offload),
            is_frozen: false,
            is_flight_frozen: false,
            unfreeze: UnfreezeRetry::new(&options.zero_window),
            path_verdict: PathVerdict::default(),
            may_undo: false,
            has_mark: false,
            counts: AckCounts::default(),
        }
    }

    /// The receiver's SYN.
    pub(super) fn on_syn(&mut self, now: Instant, syn: &Segment<'_>) {
        self.last_packet = now;
        if self.direction == Direction::Download {
            self.meter.rtt.on_syn(now);
        }
        self.meter.is_syn_observed = true;
        // Without the option windows are not scaled (RFC 7323 §2.2).
        self.scale = Some(0);
        self.is_sack_permitted = false;
        for option in syn.options() {
            match option {
                TcpOption::WindowScale(shift) => self.scale = Some(shift),
                TcpOption::SackPermitted => self.is_sack_permitted = true,
                TcpOption::Mss(most) => {
                    self.meter.segment_size = u32::from(most).saturating_sub(TIMESTAMP_OPTION).max(1)
                }
                TcpOption::Other { kind: TcpOption::MPTCP, .. } => self.is_multipath = true,
                _ => {}
            }
        }
    }

    /// The peer's SYN-ACK: options that either end does not offer are not used.
    pub(super) fn on_syn_ack(&mut self, syn_ack: &Segment<'_>) {
        if self.has_begun() {
            return;
        }
        let has_option = |is_option: fn(&TcpOption<'_>) -> bool| syn_ack.options().any(|option| is_option(&option));
        self.is_sack_permitted &= has_option(|option| matches!(option, TcpOption::SackPermitted));
        if !has_option(|option| matches!(option, TcpOption::WindowScale(_))) {
            self.scale = Some(0);
        }
    }

    /// Whether an ACK was observed, so that the handshake is over.
    pub(super) const fn has_begun(&self) -> bool {
        self.last_ack.is_some()
    }

    /// Whether it is a subflow of an MPTCP connection, as far as is known. Its data has sequence numbers of the
    /// connection, which are unknown here.
    pub(super) const fn is_multipath(&self) -> bool {
        self.is_multipath
    }

    /// The receiver sends data or a FIN. `packet` becomes what leaves.
    pub(super) fn on_data_out(&mut self, now: Instant, packet: &mut [u8], context: &FlowContext<'_>) {
        self.last_packet = now;
        self.meter.rtt.on_handshake_end(now);
        let Ok(segment) = Segment::parse(packet) else { return };
        self.has_closed |= self.direction == Direction::Download && segment.flags().contains(Flags::FIN);
        if let Some(early_ack) = &mut self.early_ack.flow {
            early_ack.on_local_segment(&segment, u32::try_from(segment.payload().len()).unwrap_or(u32::MAX));
        }
        let Some(ack) = ack_of(&segment) else { return };
        self.on_local_echo(now, &ack);
        let (ack, _) = self.apply_early_ack(now, packet, ack, true, context);
        self.withheld_ack.on_acked(ack.ack);
    }

    /// A packet of the receiver was captured that was not held.
    pub(super) fn on_request_bytes(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        self.last_packet = now;
        if let Some(early_ack) = &mut self.early_ack.flow {
            early_ack.on_local_segment(segment, length);
        }
    }

    /// A pure ACK of the receiver passes the pipeline (see [`ack_pipeline`](crate::accel::ack_pipeline)). `packet` becomes
    /// what leaves.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        (ack, ip_params): (Ack, IpParams),
        context: &FlowContext<'_>,
        path: &mut PathTest,
    ) -> AckOutcome {
        let report = self.observe_local(now, &ack);
        let (ack, is_suppressed) = self.apply_early_ack(now, packet, ack, false, context);
        let (seen, has_data) = self.observe(now, report, (ack, ip_params), is_suppressed, context, path);
        let change =
            self.rewriters().into_iter().fold(AckChange::default(), |change, one| one.rewrite(&seen, change));
        change.write(packet, &ack);
        self.rewritten_echo = change.echo;
        if has_data {
            self.recovery.on_data(now);
        }
        let has_holes = seen.new_holes > 0 || self.early_ack.has_open_holes();
        // MPTCP puts an option on every ACK, so a pure ACK shows that the peer did not agree to it.
        let is_plain_tcp = core::mem::take(&mut self.is_multipath);
        AckOutcome { has_data, has_holes, is_suppressed, is_plain_tcp }
    }

    /// The first stage of the pipeline.
    fn apply_early_ack(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        ack: Ack,
        carries_data: bool,
        context: &FlowContext<'_>,
    ) -> (Ack, bool) {
        let conditions = EarlyAckConditions {
            meter: &self.meter,
            scale: self.scale,
            allows_new: context.mechanisms.has_any(&[Mechanism::EarlyAck, Mechanism::FastFetch])
                && !self.congestion_response.is_unresponsive()
                && self.is_random(now),
            budget: context.early_ack_budget,
        };
        self.early_ack.rewrite(now, packet, ack, carries_data, &conditions)
    }

    /// The mechanisms that change ACKs, in their order.
    fn rewriters(&mut self) -> [&mut dyn AckRewriter; 2] {
        [&mut self.eifel_undo, &mut self.withheld_ack]
    }

    /// What each mechanism reports of the flow.
    fn report<'a>(&self, now: Instant, mechanisms: &'a Mechanisms) -> MechanismReport<'a> {
        let mut report = MechanismReport::new(mechanisms);
        self.early_ack.report(now, &self.meter, self.window_scale(), &mut report);
        self.eifel_undo.report(
            UndoContext {
                has_timestamps: self.last_ack.map(|(last, _)| last.timestamps.is_some()),
                is_unresponsive: self.congestion_response.is_unresponsive(),
                path: self.path_verdict,
                has_holes: self.local_holes.count() > 0,
            },
            &mut report,
        );
        self.withheld_ack.report(&mut report);
        self.recovery.report(&mut report);
        self.ack_path.report(self.counts.offloaded > 0, &mut report);
        self.unfreeze.report(self.is_frozen, &mut report);
        if self.is_multipath() {
            let all: Vec<Mechanism> = mechanisms.iter().collect();
            report.inactive(&all, "a part of an MPTCP connection is left as it is");
        }
        report
    }

    /// What the selection of the link of its ACKs depends on, and the selection itself.
    pub(super) fn ack_path(&mut self) -> (&mut AckPathSelector, OffloadCandidate<'_>) {
        let candidate = OffloadCandidate {
            meter: &self.meter,
            classifier: &self.loss_classifier,
            holes: &self.local_holes,
            last_ack: self.last_ack.map(|(last, _)| last),
            is_exact: self.eifel_undo.needs_exact_acks(),
            scale: self.scale.unwrap_or(MAX_SCALE),
        };
        (&mut self.ack_path, candidate)
    }

    /// The local stack has sent a segment, `length` bytes of payload: for an upload it is the sender.
    pub(super) fn on_local_segment(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        if self.direction == Direction::Upload {
            self.upload.on_local_segment(now, segment, length, self.loss_classifier.peer_clock().tick());
        }
    }

    /// The shortest round trip, if its ACKs may wait to be handled together with others: where random losses are
    /// frequent and are undone or acknowledged early. Elsewhere a sender that receives several ACKs at once would only
    /// send in bursts.
    pub(super) fn max_ack_delay(&self, now: Instant) -> Option<Duration> {
        let may_wait = self.loss_classifier.has_random_loss(now) && !self.congestion_response.is_unresponsive();
        self.meter.rtt.measured_min().filter(|_| may_wait)
    }

    /// The rate that plain TCP would have, with as many losses as the receiver has seen (or the sender has learned of).
    fn plain_tcp(&self, holes: u64) -> Option<Bitrate> {
        let segments = self.meter.goodput.total().bytes() / u64::from(self.meter.segment_size);
        let segment = DataSize::from_bytes(u64::from(self.meter.segment_size));
        plain_tcp_rate(segment, self.meter.rtt.smoothed()?, segments, holes)
    }

    /// Its early ACK, if it is followed.
    pub(super) const fn early_ack_flow(&self) -> Option<&EarlyAckFlow> {
        self.early_ack.flow.as_ref()
    }

    pub(super) const fn early_ack_mut(&mut self) -> &mut EarlyAckStage {
        &mut self.early_ack
    }

    /// Counters of what became of its ACKs.
    pub(super) const fn counts_mut(&mut self) -> &mut AckCounts {
        &mut self.counts
    }

    /// The receiver's window scale; the largest possible one while it is unknown.
    pub(super) fn window_scale(&self) -> u8 {
        self.scale.unwrap_or(MAX_SCALE)
    }

    /// Which end is the local stack.
    pub(super) const fn direction(&self) -> Direction {
        self.direction
    }

    /// From the receiver to the sender.
    pub(super) const fn key(&self) -> Key {
        self.key
    }

    /// When its last packet was observed.
    pub(super) const fn last_packet(&self) -> Instant {
        self.last_packet
    }

    /// Until when its packets are to be captured.
    pub(super) fn capture_until(&self) -> Option<Instant> {
        self.reported_holes.last_open().map(|last| last + CAPTURE_TIME)
    }
}

/// The acknowledgement that a segment carries, whatever else it carries.
fn ack_of(segment: &Segment<'_>) -> Option<Ack> {
    let (seq, flags, window) = (segment.seq(), segment.flags(), segment.window());
    let (timestamps, sacks) = (segment.timestamps(), segment.sack_blocks());
    segment.ack().map(|ack| Ack { seq, ack, window, flags, timestamps, sack_blocks: sacks })
}

/// The largest window scale (RFC 7323 section 2.3), while it is unknown.
const MAX_SCALE: u8 = 14;
/// That of Ethernet with timestamps.
const DEFAULT_SEGMENT: u32 = 1448;
/// Bytes that the timestamp option takes of each segment (RFC 7323 appendix A).
const TIMESTAMP_OPTION: u32 = 12;
/// How long packets are captured after a hole: losses come in groups, and a few seconds of capture cost little.
const CAPTURE_TIME: Duration = Duration::from_secs(10);
