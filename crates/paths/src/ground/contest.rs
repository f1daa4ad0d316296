//! Rules and routes that somebody else removes: how often they are put back.
//!
//! In: what was in place when it was looked last, and what is missing now. Out: whether it may be put back.
//!
//! 1. Once is an accident (a DHCP client that flushes, a hand on the keyboard), and is mended at once.
//! 2. Again and again is somebody's will. No fight: in a minute it is mended [`MOST`] times at most, for as long as it
//!    goes on, and that is told.
//! 3. What is new, for a new address or a new router, is no matter of this.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Where a rule or a route of ours is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    /// A rule for this address, of this priority, for all packets or for those of one device.
    Rule(IpAddr, u32, Option<String>),
    /// The default route of this family in this table.
    Route(u8, u32),
}

/// What was in place, and how often it was put back.
#[derive(Debug, Default)]
pub(super) struct Contest {
    held: BTreeSet<Place>,
    mended: VecDeque<Instant>,
}

impl Contest {
    /// These are about to be put where nothing is. Returns those of them that may not: somebody removes them again and
    /// again.
    pub(super) fn refuses(&mut self, now: Instant, missing: &BTreeSet<Place>) -> BTreeSet<Place> {
        let contested: BTreeSet<Place> = missing.intersection(&self.held).cloned().collect();
        if contested.is_empty() {
            return contested;
        }
        while self.mended.front().is_some_and(|at| now.duration_since(*at) >= LONG_AGO) {
            self.mended.pop_front();
        }
        if self.mended.len() >= MOST {
            return contested;
        }
        self.mended.push_back(now);
        BTreeSet::new()
    }

    /// These are wanted from now on.
    pub(super) fn holds(&mut self, wanted: BTreeSet<Place>) {
        self.held = wanted;
    }
}

/// chosen: a network that is set up anew by its tools flushes two or three times.
const MOST: usize = 6;
/// chosen: at this pace a fight costs neither side anything that could be measured.
const LONG_AGO: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(priority: u32) -> Place {
        Place::Rule("10.2.0.2".parse().unwrap(), priority, None)
    }

    #[test]
    fn what_somebody_removes_again_and_again_is_put_back_a_few_times_a_minute() {
        let (mut contest, begun) = (Contest::default(), Instant::now());
        let both: BTreeSet<Place> = [rule(1), rule(2)].into();
        assert_eq!(contest.refuses(begun, &both), BTreeSet::new(), "the first time it is no matter of this");
        contest.holds(both.clone());
        let second = Duration::from_secs(1);
        let mended = |contest: &mut Contest, from: Instant| {
            (0..59).filter(|n| contest.refuses(from + *n * second, &both).is_empty()).count()
        };
        assert_eq!(mended(&mut contest, begun), MOST);
        assert_eq!(mended(&mut contest, begun + LONG_AGO), MOST);
        // Others are not held back meanwhile.
        let with_new: BTreeSet<Place> = [rule(1), rule(3)].into();
        assert_eq!(contest.refuses(begun + LONG_AGO + 59 * second, &with_new), [rule(1)].into());
    }
}
