//! The slow round: idle connections, looked at in turn on a small allowance.
//!
//! In: which connections are idle, and hints that one of them moves. Out: which to look at now.
//!
//! 1. The one that was looked at longest ago is next.
//! 2. Each is looked at [`EACH`] times a second as long as all together cost no more than [`MOST`]; ten thousand of them
//!    take fifty seconds for a round, and 0.5 % of a core.
//! 3. When a link's own counters show bytes that no connection explains, the round hastens for a while
//!    ([`Round::hurry`]): one of the idle ones has woken.

use alloc::collections::BTreeSet;

use super::event::ConnId;
use crate::units::{DataSize, Duration, Instant};

/// Idle connections by the time of their last look.
#[derive(Debug, Default)]
pub(super) struct IdlePoller {
    idle: BTreeSet<(Instant, ConnId)>,
    next_batch: Instant,
    fast_until: Instant,
}

/// Looks a second at each. chosen: the first half second of a transfer that wakes up goes unseen, and at 20 Mbit/s that is
/// κ.
const POLLS_PER_CONN: u64 = 2;
/// Looks a second at all. chosen: at 15 µs a subflow and two subflows each, 0.6 % of a core.
const MAX_POLLS: u64 = 200;
/// The same in a hurry: 4.5 % of a core, for so long.
const FAST_POLLS: u64 = 1500;
const FAST_TIME: Duration = Duration::from_secs(2);
/// Bytes in a second that nobody explains and that are worth a hurry. chosen: above what acknowledgements, name servers
/// and a chat add up to.
const FAST_THRESHOLD: DataSize = DataSize::from_kib(128);
/// Looks of one turn are this far apart.
const MIN_BATCH_INTERVAL: Duration = Duration::from_millis(50);

impl IdlePoller {
    pub(super) fn add(&mut self, now: Instant, conn: ConnId) -> Instant {
        if self.idle.is_empty() {
            self.next_batch = now + self.batch_interval();
        }
        self.idle.insert((now, conn));
        now
    }

    pub(super) fn remove(&mut self, at: Instant, conn: ConnId) {
        self.idle.remove(&(at, conn));
    }

    /// Bytes on a link that no connection explains.
    pub(super) fn on_unattributed_bytes(&mut self, now: Instant, size: DataSize) {
        if size >= FAST_THRESHOLD && self.idle.len() > usize::try_from(MAX_POLLS).unwrap_or(usize::MAX) / 4 {
            self.fast_until = now + FAST_TIME;
            self.next_batch = self.next_batch.min(now + MIN_BATCH_INTERVAL);
        }
    }

    /// When the next turn is; none: nobody is idle.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.idle.is_empty()).then_some(self.next_batch)
    }

    /// How many are due, and the time of the next turn.
    pub(super) fn start_batch(&mut self, now: Instant) -> usize {
        if self.idle.is_empty() || now < self.next_batch {
            return 0;
        }
        let interval = self.batch_interval();
        let due = self.rate(now).saturating_mul(interval.as_millis() as u64).div_ceil(1000);
        self.next_batch = now + interval;
        usize::try_from(due).unwrap_or(usize::MAX).min(self.idle.len())
    }

    /// The one that was looked at longest ago, which takes its place at the end.
    pub(super) fn rotate_oldest(&mut self, now: Instant) -> Option<(Instant, ConnId)> {
        let (at, conn) = self.idle.pop_first()?;
        self.idle.insert((now, conn));
        Some((at, conn))
    }

    fn rate(&self, now: Instant) -> u64 {
        let wanted = POLLS_PER_CONN.saturating_mul(self.idle.len() as u64).max(1);
        if now < self.fast_until { FAST_POLLS } else { wanted.min(MAX_POLLS) }
    }

    fn batch_interval(&self) -> Duration {
        let per_conn =
            Duration::from_millis(1000 / POLLS_PER_CONN.saturating_mul(self.idle.len() as u64).clamp(1, 1000));
        per_conn.max(MIN_BATCH_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks within so many seconds.
    fn polls_within(round: &mut IdlePoller, seconds: u64) -> usize {
        let mut all = 0;
        let end = Instant::ZERO + Duration::from_secs(seconds);
        while let Some(at) = round.deadline().filter(|at| *at < end) {
            let due = round.start_batch(at);
            assert!(due > 0 && round.deadline().unwrap() > at);
            for _ in 0..due {
                round.rotate_oldest(at);
            }
            all += due;
        }
        all
    }

    #[test]
    fn few_are_looked_at_twice_a_second_and_many_in_turn() {
        for (conns, seconds, least, most) in [(1, 10, 18, 21), (6, 10, 100, 130), (10_000, 10, 1750, 2100)] {
            let mut round = IdlePoller::default();
            (0..conns).for_each(|n| _ = round.add(Instant::ZERO, ConnId(n)));
            let polls = polls_within(&mut round, seconds);
            assert!((least..=most).contains(&polls), "{conns}: {polls}");
        }
    }

    #[test]
    fn unexplained_bytes_hurry_the_round() {
        let mut round = IdlePoller::default();
        (0..10_000).for_each(|n| _ = round.add(Instant::ZERO, ConnId(n)));
        round.on_unattributed_bytes(Instant::ZERO, DataSize::from_mib(1));
        assert!(polls_within(&mut round, 2) > 2500);
    }
}
