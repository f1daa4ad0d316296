//! Are hidden holes filled in time?
//!
//! In: how long the origin takes, since when a flow waits for hidden bytes. Out: whether more may be hidden.
//!
//! 1. What is hidden stops the application until it is fetched. Room is measured so that this takes two seconds at most
//!    (`fetcher`); where it takes longer the helping link is not what it was taken for, or the origin is slow, and the flow
//!    is told of its losses again: first for half a minute, then for twice as long each time.
//! 2. What waits since a blackout says nothing: it is a whole flight.
//! 3. If the first answer of an origin is late, by which its resource is checked, nothing is hidden for ten times as long
//!    as it took, ten seconds at least: who answers one question late may answer the next as late, and the sender's own
//!    repair takes less. It is not for longer, for a moment of a busy machine looks the same. What was asked before the end of
//!    a blackout says nothing.

use crate::units::{Duration, Instant};

/// One flow's record.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct FetchLatencyGuard {
    paused_until: Option<Instant>,
    /// How long the last answer took, and when it came.
    last_fetch: Option<(Instant, Duration)>,
    /// How often it took too long.
    slow_count: u32,
    /// What waits since before this is not judged.
    ignore_before: Instant,
}

impl FetchLatencyGuard {
    /// A blackout has ended.
    pub(in crate::accel) fn on_outage_end(&mut self, now: Instant) {
        self.ignore_before = now + OUTAGE_SETTLE;
    }

    /// The origin has answered after so long; `is_late`: its first question, and too late.
    pub(in crate::accel) fn on_fetched(&mut self, now: Instant, latency: Duration, is_late: bool) {
        if now.since(self.ignore_before) < latency {
            return;
        }
        self.last_fetch = Some((now, latency));
        if is_late && !self.is_paused(now) {
            self.paused_until = Some(now + (latency * PAUSE_FACTOR).max(MIN_PAUSE));
        }
    }

    /// How long an answer takes, as the last one did if that is not long ago.
    pub(in crate::accel) fn last_latency(&self, now: Instant) -> Duration {
        self.last_fetch
            .filter(|(at, _)| now.since(*at) < FIRST_PAUSE)
            .map_or(Duration::ZERO, |(_, latency)| latency)
    }

    /// Whether nothing new is to be hidden for now.
    pub(in crate::accel) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Whether more may be hidden; `since`: when the oldest hole was hidden that is still open.
    pub(in crate::accel) fn is_in_time(&mut self, now: Instant, since: Option<Instant>) -> bool {
        let is_paused = self.is_paused(now);
        let is_slow = since.is_some_and(|since| since >= self.ignore_before && now.since(since) >= MAX_LATENCY);
        if is_slow && !is_paused {
            self.paused_until = Some(now + FIRST_PAUSE * (1 << self.slow_count.min(5)));
            self.slow_count += 1;
        }
        !is_slow && !is_paused
    }
}

/// chosen: more than the two seconds' worth that may be missing takes, with a range that is asked for twice; less than the five
/// that a flow may be late at all.
const MAX_LATENCY: Duration = Duration::from_secs(3);
/// chosen: beside it a wait of some seconds is a tenth.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// chosen: as long as many downloads take; a longer one is helped after it.
const MIN_PAUSE: Duration = Duration::from_secs(10);
/// chosen: what is late once in so long costs a tenth.
const PAUSE_FACTOR: u32 = 10;
/// chosen: what a blackout has swallowed shows by then.
const OUTAGE_SETTLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_fill_ends_hiding_for_longer_each_time() {
        let (mut guard, at) = (FetchLatencyGuard::default(), |secs: u64| Instant::from_millis(secs * 1000));
        assert!(guard.is_in_time(at(10), None) && guard.is_in_time(at(12), Some(at(10))));
        assert!(!guard.is_in_time(at(13), Some(at(10))));
        assert!(!guard.is_in_time(at(42), None) && guard.is_in_time(at(43), None));
        assert!(!guard.is_in_time(at(60), Some(at(57))));
        assert!(!guard.is_in_time(at(119), None) && guard.is_in_time(at(120), None));
    }

    #[test]
    fn a_late_answer_ends_hiding_before_it_begins() {
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
        assert!(guard.is_in_time(at(51), None) && guard.last_latency(at(51)).is_zero(), "asked in the dark");
    }

    #[test]
    fn what_waits_since_a_blackout_is_excused() {
        let (mut guard, at) = (FetchLatencyGuard::default(), |secs: u64| Instant::from_millis(secs * 1000));
        guard.on_outage_end(at(20));
        assert!(guard.is_in_time(at(30), Some(at(20))));
        assert!(!guard.is_in_time(at(30), Some(at(21))));
    }
}
