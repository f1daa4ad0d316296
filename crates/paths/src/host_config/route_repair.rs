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
pub(super) enum RoutingKey {
    /// A rule for this address, of this priority, for all packets or for those of one device.
    Rule(IpAddr, u32, Option<String>),
    /// The default route of this family in this table.
    Route(u8, u32),
}

/// What was in place, and how often it was put back.
#[derive(Debug, Default)]
pub(super) struct RouteRepairLimiter {
    installed: BTreeSet<RoutingKey>,
    repairs: VecDeque<Instant>,
}

impl RouteRepairLimiter {
    /// These are about to be put where nothing is. Returns those of them that may not: somebody removes them again and
    /// again.
    pub(super) fn blocked(&mut self, now: Instant, missing: &BTreeSet<RoutingKey>) -> BTreeSet<RoutingKey> {
        let contested: BTreeSet<RoutingKey> = missing.intersection(&self.installed).cloned().collect();
        if contested.is_empty() {
            return contested;
        }
        while self.repairs.front().is_some_and(|at| now.duration_since(*at) >= REPAIR_WINDOW) {
            self.repairs.pop_front();
        }
        if self.repairs.len() >= MAX_REPAIRS {
            return contested;
        }
        self.repairs.push_back(now);
        BTreeSet::new()
    }

    /// These are wanted from now on.
    pub(super) fn set_installed(&mut self, keys: BTreeSet<RoutingKey>) {
        self.installed = keys;
    }
}

/// chosen: a network that is set up anew by its tools flushes two or three times.
const MAX_REPAIRS: usize = 6;
/// chosen: at this pace a fight costs neither side anything that could be measured.
const REPAIR_WINDOW: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(priority: u32) -> RoutingKey {
        RoutingKey::Rule("10.2.0.2".parse().unwrap(), priority, None)
    }

    #[test]
    fn what_somebody_removes_again_and_again_is_put_back_a_few_times_a_minute() {
        let (mut limiter, start) = (RouteRepairLimiter::default(), Instant::now());
        let keys: BTreeSet<RoutingKey> = [rule(1), rule(2)].into();
        assert_eq!(limiter.blocked(start, &keys), BTreeSet::new(), "the first time it is no matter of this");
        limiter.set_installed(keys.clone());
        let second = Duration::from_secs(1);
        let count_repairs = |limiter: &mut RouteRepairLimiter, first: Instant| {
            (0..59).filter(|n| limiter.blocked(first + *n * second, &keys).is_empty()).count()
        };
        assert_eq!(count_repairs(&mut limiter, start), MAX_REPAIRS);
        assert_eq!(count_repairs(&mut limiter, start + REPAIR_WINDOW), MAX_REPAIRS);
        // Others are not held back meanwhile.
        let with_new: BTreeSet<RoutingKey> = [rule(1), rule(3)].into();
        assert_eq!(limiter.blocked(start + REPAIR_WINDOW + 59 * second, &with_new), [rule(1)].into());
    }
}
