//! The first stage of a flow's ACK pipeline: early ACK, if the flow is followed for it and it is worth it.
//!
//! Early ACK keeps a window from shrinking. Where only one segment is in flight at a time there is no window, and losses
//! are those of a queue that is too short for two packets.

use alloc::collections::VecDeque;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::engine::AckAction;
use super::fetch::{FetchRequest, FetchedRange};
use super::flow_state::{EarlyAckFlow, EarlyAckLimits};
use super::http_head::NotFetchable;
use super::latency_guard::FetchLatencyGuard;
use super::options::EarlyAckOptions;
use crate::accel::event::{Output, PacketBytes};
use crate::accel::mechanism::Mechanism;
use crate::accel::observation::flow_meter::FlowMeter;
use crate::accel::status::MechanismReport;
use crate::units::Instant;
use crate::wire::packet::{Ack, FourTuple as Key};

/// See the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct EarlyAckStage {
    options: &'static EarlyAckOptions,
    /// None: the flow is not followed.
    pub(crate) flow: Option<EarlyAckFlow>,
    pub(crate) latency: FetchLatencyGuard,
}

/// What an early ACK depends on, beside the flow's HTTP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyAckConditions<'a> {
    pub(crate) meter: &'a FlowMeter,
    /// The receiver's window scale; none: its right edge is unknown, and must not be exceeded.
    pub(crate) scale: Option<u8>,
    /// The mechanism is on, and a loss that shows now is random, of a sender that responds to congestion.
    pub(crate) allows_new: bool,
    /// How many more bytes may be missing.
    pub(crate) budget: u64,
}

impl EarlyAckStage {
    /// Of a flow that is not followed yet.
    pub(crate) fn new(options: &'static EarlyAckOptions) -> Self {
        Self { options, flow: None, latency: FetchLatencyGuard::new(options) }
    }

    /// Follows the flow; the fetcher refers to it by this number.
    pub(crate) fn follow(&mut self, now: Instant, number: u64, key: Key) -> &mut EarlyAckFlow {
        self.flow.insert(EarlyAckFlow::new(self.options, now, number, key))
    }

    /// The link has recovered.
    pub(crate) fn on_outage_end(&mut self, now: Instant) {
        self.latency.on_outage_end(now);
        self.flow.iter_mut().for_each(|flow| flow.on_outage_end(now));
    }

    /// What is to be fetched for it.
    pub(crate) fn take_fetch_requests(
        &mut self,
        now: Instant,
        outputs: &mut VecDeque<Output>,
    ) -> Vec<FetchRequest> {
        let mut packets = Vec::new();
        let requests =
            self.flow.as_mut().map(|flow| flow.take_fetch_requests(now, &mut packets)).unwrap_or_default();
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(PacketBytes(packet))));
        requests
    }

    /// A range was fetched for it.
    pub(crate) fn on_fetched(&mut self, now: Instant, fetched: FetchedRange, outputs: &mut VecDeque<Output>) {
        let Some(flow) = self.flow.as_mut() else { return };
        if let Some(latency) = fetched.latency {
            self.latency.on_fetched(now, latency, fetched.is_overdue && flow.is_check(fetched.start));
        }
        let packets = flow.on_fetched(now, fetched.start, fetched.bytes);
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(PacketBytes(packet))));
    }

    pub(crate) fn tick(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        let packets = self.flow.as_mut().map(|flow| flow.tick(now)).unwrap_or_default();
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(PacketBytes(packet))));
    }

    /// Whether something was acknowledged that has not arrived.
    pub(crate) fn has_open_holes(&self) -> bool {
        self.flow.as_ref().is_some_and(EarlyAckFlow::has_open_holes)
    }

    /// Whether a sweep of the zero-window freeze is not finished.
    pub(crate) fn has_open_sweep(&self) -> bool {
        self.flow.as_ref().is_some_and(EarlyAckFlow::has_open_sweep)
    }

    /// What early ACK, the freeze in flight and the mirrored connections, which all need fetchable bytes, do for the flow.
    pub(crate) fn report(&self, now: Instant, meter: &FlowMeter, scale: u8, report: &mut MechanismReport<'_>) {
        use Mechanism::{EarlyAck, FastFetch, FreezeInFlight};
        let (is_paused, has_window) = (self.latency.is_paused(now), self.has_window_for_holes(now, meter, scale));
        let is_mirrored = self.flow.as_ref().is_some_and(EarlyAckFlow::is_fetchable) && !is_paused;
        report.active(EarlyAck, is_mirrored && has_window);
        report.active(FreezeInFlight, is_mirrored);
        let refusal = self.flow.as_ref().and_then(EarlyAckFlow::not_fetchable);
        if let Some(refusal) = refusal.filter(|refusal| *refusal != NotFetchable::Finished) {
            report.inactive(&[EarlyAck, FastFetch], &refusal.to_string());
        }
        if self.flow.is_none() || refusal.is_some() {
            report.inactive(&[FreezeInFlight], "it is not frozen, as its bytes cannot be had elsewhere");
        } else if is_paused {
            report.inactive(&[EarlyAck, FastFetch, FreezeInFlight], "missing bytes come too late");
        } else if !has_window {
            report.inactive(&[EarlyAck, FastFetch], "its window is used up before missing bytes come");
        }
    }

    /// Changes the ACK of a segment that leaves, so that it covers early-acked holes. Returns the changed ACK, and
    /// whether the segment is to be dropped, as it then reports nothing new.
    ///
    /// New holes are acknowledged early only if the conditions allow it, fetching pays for the flow, and fetches arrive
    /// in time. Holes that already are early-acked stay so in any case: an acknowledgement cannot be taken back.
    pub(crate) fn rewrite(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        ack: Ack,
        carries_data: bool,
        conditions: &EarlyAckConditions<'_>,
    ) -> (Ack, bool) {
        let &EarlyAckConditions { meter, budget, scale, .. } = conditions;
        let since = self.flow.as_ref().and_then(EarlyAckFlow::oldest_hole);
        let is_in_time = self.latency.is_in_time(now, since);
        let allows_new =
            is_in_time && conditions.allows_new && self.is_worth_it(now, meter, scale.unwrap_or(MAX_WINDOW_SCALE));
        let (Some(flow), Some(scale)) = (self.flow.as_mut(), scale) else { return (ack, false) };
        match flow.on_ack_out(now, &ack, carries_data, &EarlyAckLimits { allows_new, budget, scale }) {
            AckAction::Forward => (ack, false),
            AckAction::Suppress(rewrite) => (rewrite.applied_to(&ack), true),
            AckAction::Rewrite(rewrite) => {
                rewrite.write(packet);
                (rewrite.applied_to(&ack), false)
            }
        }
    }

    /// Whether a hole is worth an early ACK. It is for a young flow, and for one whose round-trip time is too short to
    /// be measured.
    fn is_worth_it(&self, now: Instant, meter: &FlowMeter, scale: u8) -> bool {
        let (segment, rtt) = (u64::from(meter.segment_size), meter.rtt.min());
        let is_known = meter.goodput.total().bytes() >= segment * self.options.young_segments && !rtt.is_zero();
        let has_segments =
            !is_known || (meter.goodput.rate(now) * rtt).bytes() >= segment * self.options.min_segments;
        has_segments && self.has_window_for_holes(now, meter, scale)
    }

    /// Whether the largest window that its scale allows lasts until a hole is filled.
    pub(crate) fn has_window_for_holes(&self, now: Instant, meter: &FlowMeter, scale: u8) -> bool {
        (meter.goodput.rate(now) * self.latency.last_latency(now)).bytes()
            <= MAX_WINDOW << scale.min(MAX_WINDOW_SCALE)
    }
}

/// Bytes before scaling (RFC 9293 section 3.1).
const MAX_WINDOW: u64 = 65535;
/// RFC 7323 section 2.3.
const MAX_WINDOW_SCALE: u8 = 14;
