//! Limits how often rules and routes that another program removes are restored.
//!
//! 1. One removal is an accident (a DHCP client that flushes, a manual command), and is repaired at once.
//! 2. Repeated removals are intended. There is no contest: at most [`MAX_REPAIRS`] repairs per [`REPAIR_WINDOW`], for
//!    as long as the removals continue, and a notice.
//! 3. New rules and routes, for a new address or router, are not limited.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Identifies a rule or a route of marline.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum RoutingKey {
    /// A rule for this source address and priority, for all packets or those of one device.
    Rule(IpAddr, u32, Option<String>),
    /// The default route of a family in a table.
    Route(u8, u32),
}

/// Installed keys and the times of repairs.
#[derive(Debug, Default)]
pub(super) struct RouteRepairLimiter {
    installed: BTreeSet<RoutingKey>,
    repairs: VecDeque<Instant>,
}

impl RouteRepairLimiter {
    /// Given keys that are missing and about to be installed, returns those that must not be: another program removes
    /// them repeatedly.
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

    /// Sets the keys that are installed from now on.
    pub(super) fn set_installed(&mut self, keys: BTreeSet<RoutingKey>) {
        self.installed = keys;
    }
}

/// Our choice: tools that configure a network flush it two or three times.
const MAX_REPAIRS: usize = 6;
/// Our choice: at this rate neither side suffers measurable cost.
const REPAIR_WINDOW: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(priority: u32) -> RoutingKey {
        RoutingKey::Rule("10.2.0.2".parse().unwrap(), priority, None)
    }

    #[test]
    fn repeatedly_removed_rules_are_restored_a_few_times_a_minute() {
        let (mut limiter, start) = (RouteRepairLimiter::default(), Instant::now());
        let keys: BTreeSet<RoutingKey> = [rule(1), rule(2)].into();
        assert_eq!(limiter.blocked(start, &keys), BTreeSet::new(), "the first installation is not limited");
        limiter.set_installed(keys.clone());
        let second = Duration::from_secs(1);
        let count_repairs = |limiter: &mut RouteRepairLimiter, first: Instant| {
            (0..59).filter(|n| limiter.blocked(first + *n * second, &keys).is_empty()).count()
        };
        assert_eq!(count_repairs(&mut limiter, start), MAX_REPAIRS);
        assert_eq!(count_repairs(&mut limiter, start + REPAIR_WINDOW), MAX_REPAIRS);
        // Other keys are not blocked meanwhile.
        let with_new: BTreeSet<RoutingKey> = [rule(1), rule(3)].into();
        assert_eq!(limiter.blocked(start + REPAIR_WINDOW + 59 * second, &with_new), [rule(1)].into());
    }
}
