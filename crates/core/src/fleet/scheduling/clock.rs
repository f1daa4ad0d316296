//! Time of the scheduler, and the grace period in which no member and no lease expires (rules 7 and 8 of the scheduler).

use core::time::Duration;

use crate::units::Instant;

/// A clock that does not go back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    now: Instant,
    grace_until: Instant,
    /// Length of the grace period: two heartbeats, in which every member that runs reports.
    grace: Duration,
}

impl Clock {
    /// A clock whose first grace period begins at once.
    pub(super) fn new(now: Instant, heartbeat: Duration) -> Self {
        let grace = heartbeat * 2;
        Self { now, grace_until: now + grace, grace }
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Sets the time. After a jump, a grace period begins: no member could report meanwhile.
    pub(super) fn advance(&mut self, now: Instant) {
        if now.since(self.now) > self.grace {
            self.grace_until = now + self.grace;
        }
        self.now = self.now.max(now);
    }

    pub(super) fn start_grace(&mut self) {
        self.grace_until = self.now + self.grace;
    }

    pub(super) fn is_in_grace(&self) -> bool {
        self.now < self.grace_until
    }
}
