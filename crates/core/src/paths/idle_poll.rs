//! Idle polling: polls idle connections in rotation at a limited rate.
//!
//! 1. The connection whose last poll is oldest is next.
//! 2. Each one is polled [`POLLS_PER_CONN`] times per second as long as all together stay below [`MAX_POLLS`] per
//!    second. For ten thousand connections a rotation takes fifty seconds and 0.6 % of a core.
//! 3. When a link's interface counters show bytes that no polled connection explains, one of the idle ones has
//!    probably become active. The rotation is then faster for a while.

use alloc::collections::BTreeSet;

use super::event::ConnId;
use crate::units::{DataSize, Duration, Instant};

/// Idle connections, ordered by the time of their last poll.
#[derive(Debug, Default)]
pub(super) struct IdlePoller {
    idle: BTreeSet<(Instant, ConnId)>,
    next_batch: Instant,
    fast_until: Instant,
}

/// Polls per second of each connection. Our choice: the first half second of a transfer that starts goes unnoticed;
/// at 20 Mbit/s that is κ.
const POLLS_PER_CONN: u64 = 2;
/// Polls per second in total. Our choice: at 15 µs per subflow and two subflows each, 0.6 % of a core.
const MAX_POLLS: u64 = 200;
/// Polls per second while the rotation is faster (4.5 % of a core), and the duration of that.
const FAST_POLLS: u64 = 1500;
const FAST_TIME: Duration = Duration::from_secs(2);
/// Unattributed bytes between two readings of a link's counters, about a second apart, that make the rotation faster.
/// Our choice: more than ACKs, DNS and a chat add up to.
const FAST_THRESHOLD: DataSize = DataSize::from_kib(128);
/// Shortest time between two batches of polls.
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

    /// Reports bytes on a link that no polled connection explains.
    pub(super) fn on_unattributed_bytes(&mut self, now: Instant, size: DataSize) {
        // With few connections the normal rotation is fast enough.
        if size >= FAST_THRESHOLD && self.idle.len() > usize::try_from(MAX_POLLS).unwrap_or(usize::MAX) / 4 {
            self.fast_until = now + FAST_TIME;
            self.next_batch = self.next_batch.min(now + MIN_BATCH_INTERVAL);
        }
    }

    /// Time of the next batch; `None`: no connection is idle.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.idle.is_empty()).then_some(self.next_batch)
    }

    /// Returns the number of connections to poll now, and schedules the next batch.
    pub(super) fn start_batch(&mut self, now: Instant) -> usize {
        if self.idle.is_empty() || now < self.next_batch {
            return 0;
        }
        let interval = self.batch_interval();
        let due = self.rate(now).saturating_mul(interval.as_millis() as u64).div_ceil(1000);
        self.next_batch = now + interval;
        usize::try_from(due).unwrap_or(usize::MAX).min(self.idle.len())
    }

    /// Returns the connection whose last poll is oldest, and moves it to the end of the rotation.
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

    /// Number of polls within this time.
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
    fn few_connections_are_polled_twice_a_second_and_many_in_rotation() {
        for (conns, seconds, least, most) in [(1, 10, 18, 21), (6, 10, 100, 130), (10_000, 10, 1750, 2100)] {
            let mut round = IdlePoller::default();
            (0..conns).for_each(|n| _ = round.add(Instant::ZERO, ConnId(n)));
            let polls = polls_within(&mut round, seconds);
            assert!((least..=most).contains(&polls), "{conns}: {polls}");
        }
    }

    #[test]
    fn unattributed_bytes_speed_up_the_rotation() {
        let mut round = IdlePoller::default();
        (0..10_000).for_each(|n| _ = round.add(Instant::ZERO, ConnId(n)));
        round.on_unattributed_bytes(Instant::ZERO, DataSize::from_mib(1));
        assert!(polls_within(&mut round, 2) > 2500);
    }
}
