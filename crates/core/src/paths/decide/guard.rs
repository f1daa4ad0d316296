//! Both must beat the best single path.
//!
//! In: what a connection's paths bring together and what one of them brought alone. Out: one path alone, for a while.
//!
//! The stock scheduler binds a burst to the slow path, and everything behind it waits: 1 + 20 Mbit/s were measured at 5 to
//! 6 together where the fast one alone brought 18.8 (cubic), 2 + 20 at 13; 4 + 20 at 22.5. So:
//!
//! 1. Less than [`WORSE`] of the best single path's last rate for [`FOR`]: that path alone.
//! 2. What the fast path would bring alone is not known while the slow one holds it up. Where the slow ones bring less
//!    than a share that makes this likely, the fast one is tried alone ([`TRIAL`]); it stays alone when it brings
//!    [`GAIN`] of what both did, or all of it in the throughput profile.
//! 3. What was found is believed for a while ([`ALONE`]), then both are tried again: the only way to see that the slow one
//!    has become fast. A trial that failed is tried again ever more seldom.

use super::super::conn::Conn;
use super::super::host::Host;
use super::super::links::Links;
use super::super::reason::Reason;
use super::Choice;
use crate::units::{Bitrate, Duration, Ratio};

/// What the guard is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Aim {
    /// The other links may stay joined.
    Energy,
    /// What held the others up goes.
    Throughput,
}

/// See rule 1.
const WORSE: Ratio = Ratio::from_ppm(900_000);
const FOR: Duration = Duration::from_secs(2);
/// See rule 2: below a quarter of the fast one's rate. Measured: 4 of 20 gains, 2 of 13 loses; a fast path that is held up
/// seems slower than it is, so that a quarter seen is less in truth.
const SMALL: u64 = 4;
/// Slow start, then long enough for a median. chosen: ten round trips of 150 ms.
const TRIAL: Duration = Duration::from_millis(1500);
const GAIN: Ratio = Ratio::from_ppm(1_100_000);
/// See rule 3.
const ALONE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(15);

impl Conn {
    /// A choice that the guard takes from the others; none: it has nothing to say.
    pub(super) fn guarded(&mut self, host: &Host, usable: Links, now: Links, aim: Aim) -> Option<Choice> {
        let time = host.now;
        if self.trial.open.is_some() {
            return self.end_trial(host, usable, aim);
        }
        if let Some((link, until)) = self.trial.alone {
            if time < until && usable.has(link) {
                return Some(Choice::new(Links::one(link), self.reason));
            }
            // All again, to see whether anything has changed.
            self.trial.alone = None;
            let before = self.trial.before.with(link).and(usable);
            return (!before.is_empty()).then(|| Choice::new(before, Reason::Again { links: before, link }));
        }
        let carrying = self.carrying().and(now);
        if carrying.len() < 2 || carrying != now || time.since(self.since) < FOR {
            return None;
        }
        if carrying.iter().any(|at| self.paths.get(at).is_none_or(|path| path.pace.seen() < FOR / 2)) {
            return None;
        }
        let fast = carrying.iter().max_by_key(|at| self.lately(*at))?;
        let all: Bitrate = carrying.iter().map(|at| self.lately(at)).sum();
        let slow = all - self.lately(fast);
        let small = slow * SMALL <= self.lately(fast);
        if !small {
            self.trial.found = 0;
        }
        let best = carrying.iter().filter_map(|at| Some((self.paths.get(at)?.alone?, at))).max();
        if let Some((alone, link)) = best.filter(|(alone, _)| all < alone.share(WORSE) && small) {
            return Some(self.alone(host, now, link, all, alone));
        }
        if slow.is_zero() || !small || time < self.trial.next {
            return None;
        }
        (self.trial.open, self.trial.before) = (Some((time, fast, all)), now);
        Some(Choice::new(Links::one(fast), Reason::Trial { link: fast, both: all }))
    }

    /// One link, until it is time to see what the others do.
    pub(super) fn alone(
        &mut self,
        host: &Host,
        before: Links,
        link: usize,
        both: Bitrate,
        alone: Bitrate,
    ) -> Choice {
        let time = ALONE.saturating_mul(1 << u32::from(self.trial.found).min(2));
        self.trial.found = self.trial.found.saturating_add(1);
        (self.trial.alone, self.trial.before) = (Some((link, host.now + time)), before);
        Choice::new(Links::one(link), Reason::Collapse { link, alone, both })
    }

    fn end_trial(&mut self, host: &Host, usable: Links, aim: Aim) -> Option<Choice> {
        let (since, link, both) = self.trial.open?;
        let (time, before) = (host.now, self.trial.before);
        if !usable.has(link) {
            self.trial.open = None;
            return None;
        }
        if time.since(since) < TRIAL {
            return Some(Choice::new(Links::one(link), Reason::Trial { link, both }));
        }
        // The last third: the drain and the opening window are over.
        let alone = self.paths.get(link).and_then(|path| path.pace.mean(TRIAL / 3)).unwrap_or_default();
        let enough = if aim == Aim::Energy { both.share(GAIN) } else { both };
        self.trial.open = None;
        if alone >= enough {
            self.trial.failed = 0;
            return Some(self.alone(host, before, link, both, alone));
        }
        self.trial.next = time + AGAIN.saturating_mul(1 << u32::from(self.trial.failed).min(5));
        self.trial.failed = self.trial.failed.saturating_add(1);
        let before = before.and(usable);
        Some(Choice::new(before, Reason::Fastest { links: before, rate: both }))
    }

    /// A path's rate over the last second.
    pub(super) fn lately(&self, link: usize) -> Bitrate {
        let path = self.paths.get(link);
        path.and_then(|path| path.pace.mean(Duration::from_secs(1))).unwrap_or_default()
    }
}
