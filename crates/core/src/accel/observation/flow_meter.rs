//! Size and speed of one flow: what each mechanism compares with the size from which on it is worth its cost.

use super::goodput::GoodputEstimator;
use super::rtt::RttEstimator;
use crate::units::Instant;

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub(crate) struct FlowMeter {
    /// When the flow was observed first.
    pub(crate) opened: Instant,
    /// Whether its handshake was, so that it began then.
    pub(crate) is_syn_observed: bool,
    /// Payload bytes of a full segment.
    pub(crate) segment_size: u32,
    pub(crate) goodput: GoodputEstimator,
    pub(crate) rtt: RttEstimator,
    /// When holes last showed for the first time, at most once per round trip.
    pub(crate) last_loss: Option<Instant>,
}

impl FlowMeter {
    /// Segments in flight, by its goodput and its round-trip time.
    pub(crate) fn segments_in_flight(&self, now: Instant) -> u64 {
        let bytes = self.goodput.rate(now) * self.rtt.smoothed_or_default();
        bytes.bytes() / u64::from(self.segment_size)
    }
}
