//! Checks that holes which were acknowledged early are filled in time.
//!
//! 1. An early-acked hole stops the application until it is fetched. The budget is such that this takes two seconds at
//!    most ([`super::fetch`]); where it takes longer, the link is slower than assumed, or the server is slow. Then
//!    losses are reported to the sender again: first for half a minute, then for twice as long each time.
//! 2. Holes that have been open since an outage do not count, because they are a whole flight.
//! 3. If the first response of a server, with which the resource is verified, is late, nothing is acknowledged early
//!    for ten times as long as it took, at least ten seconds: the next response may be as late, and the sender's own
//!    repair is faster. Not for longer, because a busy moment of this host looks the same. Requests from before the end
//!    of an outage do not count.

use crate::accel::early_ack::options::EarlyAckOptions;
use crate::units::{Duration, Instant};

/// Record of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FetchLatencyGuard {
    options: &'static EarlyAckOptions,
    paused_until: Option<Instant>,
    /// When the last response came, and its latency.
    last_fetch: Option<(Instant, Duration)>,
    /// How often a hole was filled too late.
    slow_count: u32,
    /// Holes from before this time are not judged.
    ignore_before: Instant,
}

impl FetchLatencyGuard {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static EarlyAckOptions) -> Self {
        Self { options, ..Self::default() }
    }

    pub(crate) fn on_outage_end(&mut self, now: Instant) {
        self.ignore_before = now + self.options.outage_settle;
    }

    /// The server has responded after this latency; `is_late`: to its first request, and too late.
    pub(crate) fn on_fetched(&mut self, now: Instant, latency: Duration, is_overdue: bool) {
        if now.since(self.ignore_before) < latency {
            return;
        }
        self.last_fetch = Some((now, latency));
        if is_overdue && !self.is_paused(now) {
            self.paused_until = Some(now + (latency * self.options.pause_factor).max(self.options.min_pause));
        }
    }

    /// The latency of the last response, if that is recent; else zero.
    pub(crate) fn last_latency(&self, now: Instant) -> Duration {
        self.last_fetch
            .filter(|(at, _)| now.since(*at) < self.options.first_pause)
            .map_or(Duration::ZERO, |(_, latency)| latency)
    }

    /// Whether nothing new is acknowledged early for now.
    pub(crate) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Whether more may be acknowledged early; `since`: the time of the oldest open hole.
    pub(crate) fn is_in_time(&mut self, now: Instant, since: Option<Instant>) -> bool {
        let is_paused = self.is_paused(now);
        let is_slow =
            since.is_some_and(|since| since >= self.ignore_before && now.since(since) >= self.options.max_latency);
        if is_slow && !is_paused {
            self.paused_until = Some(now + self.options.first_pause * (1 << self.slow_count.min(5)));
            self.slow_count += 1;
        }
        !is_slow && !is_paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_fetch_pauses_early_ack_for_longer_each_time() {
        let (mut guard, at) = (FetchLatencyGuard::default(), |secs: u64| Instant::from_millis(secs * 1000));
        assert!(guard.is_in_time(at(10), None) && guard.is_in_time(at(12), Some(at(10))));
        assert!(!guard.is_in_time(at(13), Some(at(10))));
        assert!(!guard.is_in_time(at(42), None) && guard.is_in_time(at(43), None));
        assert!(!guard.is_in_time(at(60), Some(at(57))));
        assert!(!guard.is_in_time(at(119), None) && guard.is_in_time(at(120), None));
    }

    #[test]
    fn a_late_first_response_pauses_early_ack() {
        let (mut guard, at) = (FetchLatencyGuard::default(), |secs: u64| Instant::from_millis(secs * 1000));
        let latency = Duration::from_millis(900);
        guard.on_fetched(at(10), latency, false);
        assert!(
            guard.is_in_time(at(10), None)
                && guard.last_latency(at(39)) == latency
                && guard.last_latency(at(40)).is_zero()
        );
        guard.on_fetched(at(12), latency, true);
        assert!(!guard.is_in_time(at(21), None) && guard.is_in_time(at(22), None));
        let mut slow = FetchLatencyGuard::default();
        slow.on_fetched(at(12), Duration::from_secs(2), true);
        assert!(!slow.is_in_time(at(31), None) && slow.is_in_time(at(32), None));
        guard.on_outage_end(at(50));
        guard.on_fetched(at(51), latency, true);
        assert!(
            guard.is_in_time(at(51), None) && guard.last_latency(at(51)).is_zero(),
            "requested during the outage"
        );
    }

    #[test]
    fn holes_of_an_outage_are_not_judged() {
        let (mut guard, at) = (FetchLatencyGuard::default(), |secs: u64| Instant::from_millis(secs * 1000));
        guard.on_outage_end(at(20));
        assert!(guard.is_in_time(at(30), Some(at(20))));
        assert!(!guard.is_in_time(at(30), Some(at(21))));
    }
}
