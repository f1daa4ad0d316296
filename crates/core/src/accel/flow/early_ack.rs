//! A flow's part in hiding: it may have a mirror, which changes what its ACKs say.
//!
//! In: its ACKs, what was fetched for it. Out: what they say once its holes are hidden, and what is to be fetched.

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
    /// It may be mirrored; the fetcher is to know it under this number.
    pub(in crate::accel) fn start_early_ack(&mut self, now: Instant, number: u64) -> &mut EarlyAckFlow {
        self.early_ack.insert(EarlyAckFlow::new(now, number, self.key))
    }

    /// The mirror, if it may have one.
    pub(in crate::accel) const fn early_ack(&self) -> Option<&EarlyAckFlow> {
        self.early_ack.as_ref()
    }

    /// The same, to be changed.
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
        let requests =
            self.early_ack.as_mut().map(|hiding| hiding.take_fetch_requests(now, &mut packets)).unwrap_or_default();
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(PacketBytes(packet))));
        requests
    }

    /// Bytes were fetched for it.
    pub(in crate::accel) fn on_fetched(
        &mut self,
        now: Instant,
        fetched: FetchedRange,
        outputs: &mut VecDeque<Output>,
    ) {
        let Some(hiding) = self.early_ack.as_mut() else { return };
        if let Some(latency) = fetched.latency {
            self.fetch_latency.on_fetched(now, latency, fetched.is_late && hiding.is_check(fetched.start));
        }
        let packets = hiding.on_fetched(now, fetched.start, fetched.bytes);
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(PacketBytes(packet))));
    }

    /// What a segment that leaves says once its holes are hidden; and whether it need not leave at all.
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
        // A window whose scale is not known has no right edge that could be kept to.
        let Some(hiding) = self.early_ack.as_mut().filter(|_| self.scale.is_some()) else { return (ack, false) };
        match hiding.on_ack_out(now, &ack, carries_data, &allowed) {
            AckAction::Forward => (ack, false),
            AckAction::Suppress(rewrite) => (rewrite.applied_to(&ack), true),
            AckAction::Rewrite(rewrite) => {
                rewrite.write(packet);
                (rewrite.applied_to(&ack), false)
            }
        }
    }
}
