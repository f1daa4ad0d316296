//! A flow's part in early ACK: the first stage of its ACK pipeline, and what was fetched for it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{FlowContext, FlowState};
use crate::accel::Mechanism;
use crate::accel::early_ack::engine::AckAction;
use crate::accel::early_ack::fetch::{FetchRequest, FetchedRange};
use crate::accel::early_ack::flow_state::{EarlyAckFlow, EarlyAckLimits};
use crate::accel::event::{Output, PacketBytes};
use crate::units::Instant;
use crate::wire::packet::Ack;

impl FlowState {
    /// Follows the flow for early ACK; the fetcher refers to it by this number.
    pub(in crate::accel) fn start_early_ack(&mut self, now: Instant, number: u64) -> &mut EarlyAckFlow {
        self.early_ack.insert(EarlyAckFlow::new(now, number, self.key))
    }

    /// Its state of early ACK, if it is followed.
    pub(in crate::accel) const fn early_ack(&self) -> Option<&EarlyAckFlow> {
        self.early_ack.as_ref()
    }

    /// The same, mutable.
    pub(in crate::accel) const fn early_ack_mut(&mut self) -> Option<&mut EarlyAckFlow> {
        self.early_ack.as_mut()
    }

    /// What is to be fetched for it.
    pub(in crate::accel) fn take_fetch_requests(
        &mut self,
        now: Instant,
        outputs: &mut VecDeque<Output>,
    ) -> Vec<FetchRequest> {
        let mut packets = Vec::new();
        let requests = self
            .early_ack
            .as_mut()
            .map(|early_ack| early_ack.take_fetch_requests(now, &mut packets))
            .unwrap_or_default();
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(PacketBytes(packet))));
        requests
    }

    /// A range was fetched for it.
    pub(in crate::accel) fn on_fetched(
        &mut self,
        now: Instant,
        fetched: FetchedRange,
        outputs: &mut VecDeque<Output>,
    ) {
        let Some(early_ack) = self.early_ack.as_mut() else { return };
        if let Some(latency) = fetched.latency {
            self.fetch_latency.on_fetched(now, latency, fetched.is_late && early_ack.is_check(fetched.start));
        }
        let packets = early_ack.on_fetched(now, fetched.start, fetched.bytes);
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(PacketBytes(packet))));
    }

    /// Changes the ACK of a segment that leaves, so that it covers early-acked holes. Returns the changed ACK, and
    /// whether the segment is to be dropped, as it then reports nothing new.
    ///
    /// New holes are acknowledged early only if they are random losses, of a sender that responds to congestion, on a
    /// flow for which fetching pays ([`super::eligibility`]), and while fetches arrive in time. Holes that already are
    /// early-acked stay so in any case: an acknowledgement cannot be taken back.
    pub(super) fn apply_early_ack(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        ack: Ack,
        carries_data: bool,
        context: &FlowContext<'_>,
    ) -> (Ack, bool) {
        let since = self.early_ack.as_ref().and_then(EarlyAckFlow::oldest_hole);
        let is_of_use = self.fetch_latency.is_in_time(now, since) && self.is_worth_early_ack(now);
        let is_enabled = context.mechanisms.has_any(&[Mechanism::EarlyAck, Mechanism::FastFetch]);
        let new = is_enabled && is_of_use && !self.congestion_response.is_unresponsive() && self.is_random(now);
        let allowed =
            EarlyAckLimits { allows_new: new, budget: context.early_ack_budget, scale: self.window_scale() };
        // Without the window scale the receiver's right edge is unknown, and must not be exceeded.
        let Some(early_ack) = self.early_ack.as_mut().filter(|_| self.scale.is_some()) else { return (ack, false) };
        match early_ack.on_ack_out(now, &ack, carries_data, &allowed) {
            AckAction::Forward => (ack, false),
            AckAction::Suppress(rewrite) => (rewrite.applied_to(&ack), true),
            AckAction::Rewrite(rewrite) => {
                rewrite.write(packet);
                (rewrite.applied_to(&ack), false)
            }
        }
    }
}
