//! Metering and data budgets: whether a link may be used, and how many bytes it may still carry.
//!
//! 1. A metered link is on standby while an unmetered one works, unless the user decides otherwise.
//! 2. A budget counts received bytes and bytes in flight, so it is never exceeded. A file that is available only as a
//!    whole and exceeds the budget is not begun.

use core::time::Duration;

use super::links::{Link, LinkState};
use super::{Failure, Fetch, MeteredUse, Notice};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Notifies the user, once per link, that a metered link is used although metered links are avoided.
    pub(super) fn notify_metered(&mut self, id: LinkId) {
        let avoided = self.config.metered == MeteredUse::Avoid;
        let Some(link) = self.links.get_mut(&id) else { return };
        if avoided && link.profile.metered && !link.conns.is_empty() && !link.metered_notified {
            link.metered_notified = true;
            self.notice(Notice::MeteredInUse { link: id });
        }
    }

    /// Whether budget, standby and cost allow the use of this link now.
    pub(super) fn is_link_allowed(&self, id: LinkId) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        !link.budget_exhausted && !self.is_standby(id) && self.is_cost_allowed(link)
    }

    /// Whether the cost of a link allows its use now.
    pub(super) fn is_cost_allowed(&self, link: &Link) -> bool {
        if !link.profile.metered {
            return true;
        }
        match self.config.metered {
            MeteredUse::Use => true,
            MeteredUse::Never => false,
            MeteredUse::Avoid => {
                !self.links.values().any(|other| !other.profile.metered && self.replaces_metered(other))
            }
        }
    }

    /// Whether an unmetered link works well enough that metered ones stay unused.
    fn replaces_metered(&self, link: &Link) -> bool {
        match link.state {
            _ if link.budget_exhausted => false,
            LinkState::Up => link.failures < METERED_AFTER_FAILURES,
            LinkState::Stalled { since } => self.now < since + METERED_AFTER_STALL,
            _ => false,
        }
    }

    /// Takes a link out of use when its budget is exhausted.
    pub(super) fn check_budget(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(budget) = link.profile.budget else { return };
        if link.stats.bytes >= budget && !link.budget_exhausted {
            link.budget_exhausted = true;
            for conn in link.conns.clone() {
                self.remove_conn(conn, true);
            }
            self.notice(Notice::BudgetSpent { link: id, budget });
            // With a budget of zero this runs at the link's start, when other links may not be known yet.
            if !self.coverage.is_complete() && !budget.is_zero() {
                self.fail_if_no_link_left(Failure::BudgetExhausted);
            }
        }
    }

    /// Whether a whole file of this length exceeds the remaining budget of the link. Then none of it is requested.
    pub(super) fn exceeds_budget(&self, id: LinkId, length: Option<DataSize>) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        let left = link.profile.budget.map(|budget| budget - link.stats.bytes);
        left.zip(length).is_some_and(|(left, length)| length > left)
    }

    /// Bytes that may still be requested on a link: budget minus received bytes and bytes in flight.
    pub(super) fn budget_left(&self, id: LinkId) -> DataSize {
        let Some(link) = self.links.get(&id) else { return DataSize::ZERO };
        let Some(budget) = link.profile.budget else { return DataSize::MAX };
        let in_flight: DataSize = self.conns_of(link).map(|conn| self.in_flight(conn)).sum();
        budget - link.stats.bytes - in_flight
    }
}

/// Metered links are used when the unmetered ones have been stalled this long, or have failed this often in a row.
const METERED_AFTER_STALL: Duration = Duration::from_secs(3);
const METERED_AFTER_FAILURES: u32 = 2;
