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
pub(super) struct Round {
    idle: BTreeSet<(Instant, ConnId)>,
    next: Instant,
    hurried: Instant,
}

/// Looks a second at each. chosen: the first half second of a transfer that wakes up goes unseen, and at 20 Mbit/s that is
/// κ.
const EACH: u64 = 2;
/// Looks a second at all. chosen: at 15 µs a subflow and two subflows each, 0.6 % of a core.
const MOST: u64 = 200;
/// The same in a hurry: 4.5 % of a core, for so long.
const HURRIED: u64 = 1500;
const HURRY: Duration = Duration::from_secs(2);
/// Bytes in a second that nobody explains and that are worth a hurry. chosen: above what acknowledgements, name servers
/// and a chat add up to.
const WORTH: DataSize = DataSize::from_kib(128);
/// Looks of one turn are this far apart.
const TURN: Duration = Duration::from_millis(50);

impl Round {
    pub(super) fn add(&mut self, now: Instant, conn: ConnId) -> Instant {
        if self.idle.is_empty() {
            self.next = now + self.apart();
        }
        self.idle.insert((now, conn));
        now
    }

    pub(super) fn remove(&mut self, at: Instant, conn: ConnId) {
        self.idle.remove(&(at, conn));
    }

    /// Bytes on a link that no connection explains.
    pub(super) fn on_unexplained(&mut self, now: Instant, size: DataSize) {
        if size >= WORTH && self.idle.len() > usize::try_from(MOST).unwrap_or(usize::MAX) / 4 {
            self.hurried = now + HURRY;
            self.next = self.next.min(now + TURN);
        }
    }

    /// When the next turn is; none: nobody is idle.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.idle.is_empty()).then_some(self.next)
    }

    /// How many are due, and the time of the next turn.
    pub(super) fn turn(&mut self, now: Instant) -> usize {
        if self.idle.is_empty() || now < self.next {
            return 0;
        }
        let apart = self.apart();
        let due = self.rate(now).saturating_mul(apart.as_millis() as u64).div_ceil(1000);
        self.next = now + apart;
        usize::try_from(due).unwrap_or(usize::MAX).min(self.idle.len())
    }

    /// The one that was looked at longest ago, which takes its place at the end.
    pub(super) fn oldest(&mut self, now: Instant) -> Option<(Instant, ConnId)> {
        let (at, conn) = self.idle.pop_first()?;
        self.idle.insert((now, conn));
        Some((at, conn))
    }

    fn rate(&self, now: Instant) -> u64 {
        let all = EACH.saturating_mul(self.idle.len() as u64).max(1);
        if now < self.hurried { HURRIED } else { all.min(MOST) }
    }

    fn apart(&self) -> Duration {
        let one = Duration::from_millis(1000 / EACH.saturating_mul(self.idle.len() as u64).clamp(1, 1000));
        one.max(TURN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks within so many seconds.
    fn looks(round: &mut Round, seconds: u64) -> usize {
        let mut all = 0;
        let end = Instant::ZERO + Duration::from_secs(seconds);
        while let Some(at) = round.deadline().filter(|at| *at < end) {
            let due = round.turn(at);
            assert!(due > 0 && round.deadline().unwrap() > at);
            for _ in 0..due {
                round.oldest(at);
            }
            all += due;
        }
        all
    }

    #[test]
    fn few_are_looked_at_twice_a_second_and_many_in_turn() {
        for (conns, seconds, least, most) in [(1, 10, 18, 21), (6, 10, 100, 130), (10_000, 10, 1750, 2100)] {
            let mut round = Round::default();
            (0..conns).for_each(|n| _ = round.add(Instant::ZERO, ConnId(n)));
            let looks = looks(&mut round, seconds);
            assert!((least..=most).contains(&looks), "{conns}: {looks}");
        }
    }

    #[test]
    fn unexplained_bytes_hurry_the_round() {
        let mut round = Round::default();
        (0..10_000).for_each(|n| _ = round.add(Instant::ZERO, ConnId(n)));
        round.on_unexplained(Instant::ZERO, DataSize::from_mib(1));
        assert!(looks(&mut round, 2) > 2500);
    }
}
