//! The terms on which a link may be used: what its bytes cost, and how many it may carry.
//!
//! 1. A metered link stands by while any unmetered one works, unless the user says otherwise.
//! 2. A budget counts what came and what is on its way, so it is never exceeded. A file that can only come as a whole
//!    and is larger is not begun.

use core::time::Duration;

use super::links::{Link, LinkState};
use super::{Failure, Fetch, MeteredUse, Notice};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    pub(super) fn notify_metered(&mut self, id: LinkId) {
        let avoided = self.config.metered == MeteredUse::Avoid;
        let Some(link) = self.links.get_mut(&id) else { return };
        if avoided && link.profile.metered && !link.conns.is_empty() && !link.metered_notified {
            link.metered_notified = true;
            self.notice(Notice::MeteredInUse { link: id });
        }
    }

    /// Whether money and budget let this link be used now.
    pub(super) fn is_link_allowed(&self, id: LinkId) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        !link.budget_exhausted && !self.is_standby(id) && self.is_cost_allowed(link)
    }

    /// Whether what a link costs lets it be used now.
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

    /// Whether an unmetered link is good enough to keep metered ones out.
    fn replaces_metered(&self, link: &Link) -> bool {
        match link.state {
            _ if link.budget_exhausted => false,
            LinkState::Up => link.failures < METERED_AFTER_FAILURES,
            LinkState::Stalled { since } => self.now < since + METERED_AFTER_STALL,
            _ => false,
        }
    }

    /// Ends the use of a link whose budget is spent.
    pub(super) fn check_budget(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(budget) = link.profile.budget else { return };
        if link.stats.bytes >= budget && !link.budget_exhausted {
            link.budget_exhausted = true;
            for conn in link.conns.clone() {
                self.remove_conn(conn, true);
            }
            self.notice(Notice::BudgetSpent { link: id, budget });
            // Of a budget of nothing one hears before the other links are known.
            if !self.coverage.is_complete() && !budget.is_zero() {
                self.fail_if_no_link_left(Failure::BudgetExhausted);
            }
        }
    }

    /// Whether the whole file is more than what is left of its link's budget: not a byte of it is asked for.
    pub(super) fn exceeds_budget(&self, id: LinkId, length: Option<DataSize>) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        let left = link.profile.budget.map(|budget| budget - link.stats.bytes);
        left.zip(length).is_some_and(|(left, length)| length > left)
    }

    /// What a link may still ask for: its budget less what came and what is on its way.
    pub(super) fn budget_left(&self, id: LinkId) -> DataSize {
        let Some(link) = self.links.get(&id) else { return DataSize::ZERO };
        let Some(budget) = link.profile.budget else { return DataSize::MAX };
        let in_flight: DataSize = self.conns_of(link).map(|conn| self.in_flight(conn)).sum();
        budget - link.stats.bytes - in_flight
    }
}

/// A metered link steps in when the others have been silent this long, or failed this often.
const METERED_AFTER_STALL: Duration = Duration::from_secs(3);
const METERED_AFTER_FAILURES: u32 = 2;
