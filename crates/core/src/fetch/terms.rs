//! The terms on which a link may be used: what its bytes cost, and how many it may carry.
//!
//! 1. A metered link stands by while any unmetered one works, unless the user says otherwise.
//! 2. A budget counts what came and what is on its way, so it is never exceeded. A file that can only come as a whole
//!    and is larger is not begun.

use core::time::Duration;

use super::links::{LinkState, Standing};
use super::{Failure, Fetch, MeteredUse, Notice};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    pub(super) fn tell_metered(&mut self, id: LinkId) {
        let avoided = self.config.metered == MeteredUse::Avoid;
        let Some(link) = self.links.get_mut(&id) else { return };
        if avoided && link.profile.metered && !link.conns.is_empty() && !link.told_metered {
            link.told_metered = true;
            self.notice(Notice::MeteredInUse { link: id });
        }
    }

    /// Whether money and budget let this link be used now.
    pub(super) fn allowed(&self, id: LinkId) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        !link.spent && !self.rests(id) && self.may_cost(link)
    }

    /// Whether what a link costs lets it be used now.
    pub(super) fn may_cost(&self, link: &LinkState) -> bool {
        if !link.profile.metered {
            return true;
        }
        match self.config.metered {
            MeteredUse::Use => true,
            MeteredUse::Never => false,
            MeteredUse::Avoid => !self.links.values().any(|other| !other.profile.metered && self.works(other)),
        }
    }

    /// Whether an unmetered link is good enough to keep metered ones out.
    fn works(&self, link: &LinkState) -> bool {
        match link.standing {
            _ if link.spent => false,
            Standing::Up => link.failures < METERED_AFTER_FAILURES,
            Standing::Silent { since } => self.now < since + METERED_AFTER,
            _ => false,
        }
    }

    /// Ends the use of a link whose budget is spent.
    pub(super) fn spend(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(budget) = link.profile.budget else { return };
        if link.known.bytes >= budget && !link.spent {
            link.spent = true;
            for conn in link.conns.clone() {
                self.drop_conn(conn, true);
            }
            self.notice(Notice::BudgetSpent { link: id, budget });
            // Of a budget of nothing one hears before the other links are known.
            if !self.ledger.complete() && !budget.is_zero() {
                self.fail_if_hopeless(Failure::Budget);
            }
        }
    }

    /// Whether the whole file is more than what is left of its link's budget: not a byte of it is asked for.
    pub(super) fn exceeds_budget(&self, id: LinkId, length: Option<DataSize>) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        let left = link.profile.budget.map(|budget| budget - link.known.bytes);
        left.zip(length).is_some_and(|(left, length)| length > left)
    }

    /// What a link may still ask for: its budget less what came and what is on its way.
    pub(super) fn budget_left(&self, id: LinkId) -> DataSize {
        let Some(link) = self.links.get(&id) else { return DataSize::ZERO };
        let Some(budget) = link.profile.budget else { return DataSize::MAX };
        let ahead: DataSize = self.conns_of(link).map(|conn| self.ahead(conn)).sum();
        budget - link.known.bytes - ahead
    }
}

/// A metered link steps in when the others have been silent this long, or failed this often.
const METERED_AFTER: Duration = Duration::from_secs(3);
const METERED_AFTER_FAILURES: u32 = 2;
