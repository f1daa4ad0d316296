//! The clock of the proxy: the time since its start, as the decisions in core take it.

use std::time;

use marline_core::units::Instant;

/// Counts from the start of the proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(time::Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(time::Instant::now())
    }

    /// Time since the start.
    pub(crate) fn now(self) -> Instant {
        Instant::ZERO + self.0.elapsed()
    }
}
