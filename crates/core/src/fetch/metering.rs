//! Metering and data budgets: whether the cost of a link allows its use, and how many bytes it may still carry.
//!
//! 1. A metered link is not used while an unmetered one works, unless the user decides otherwise.
//! 2. A budget counts received bytes and bytes in flight, so it is never exceeded. A file that is available only as a
//!    whole and exceeds the budget is not begun.

use core::time::Duration;

use super::MeteredUse;
use super::link::{Link, LinkState};
use super::links::Links;
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

impl Links {
    /// Whether the cost of a link allows its use now.
    pub(super) fn is_cost_allowed(&self, link: &Link, now: Instant) -> bool {
        if !link.profile.metered {
            return true;
        }
        match self.metered {
            MeteredUse::Use => true,
            MeteredUse::Never => false,
            MeteredUse::Avoid => !self.values().any(|other| !other.profile.metered && other.replaces_metered(now)),
        }
    }

    /// Whether the user is to be notified, once per link, that a metered link is used although metered links are
    /// avoided.
    pub(super) fn notify_metered(&mut self, id: LinkId) -> bool {
        let avoided = self.metered == MeteredUse::Avoid;
        let Some(link) = self.get_mut(&id) else { return false };
        let due = avoided && link.profile.metered && !link.conns.is_empty() && !link.metered_notified;
        link.metered_notified |= due;
        due
    }
}

impl Link {
    /// Whether this unmetered link works well enough that metered ones stay unused.
    fn replaces_metered(&self, now: Instant) -> bool {
        match self.state {
            _ if self.budget_exhausted => false,
            LinkState::Up => self.failures < METERED_AFTER_FAILURES,
            LinkState::Stalled { since } => now < since + METERED_AFTER_STALL,
            _ => false,
        }
    }

    /// Whether a whole file of this length exceeds the remaining budget of the link. Then none of it is requested.
    pub(super) fn exceeds_budget(&self, length: Option<DataSize>) -> bool {
        let left = self.profile.budget.map(|budget| budget - self.stats.bytes);
        left.zip(length).is_some_and(|(left, length)| length > left)
    }

    /// Bytes that may still be requested: the budget minus received bytes and bytes in flight.
    pub(super) fn budget_left(&self, in_flight: DataSize) -> DataSize {
        self.profile.budget.map_or(DataSize::MAX, |budget| budget - self.stats.bytes - in_flight)
    }

    /// Takes the link out of use if its budget is exhausted. Returns the budget when that happens.
    pub(super) fn exhaust_budget(&mut self) -> Option<DataSize> {
        let budget = self.profile.budget.filter(|budget| self.stats.bytes >= *budget && !self.budget_exhausted)?;
        self.budget_exhausted = true;
        Some(budget)
    }
}

/// Metered links are used when the unmetered ones have been stalled this long, or have failed this often in a row.
const METERED_AFTER_STALL: Duration = Duration::from_secs(3);
const METERED_AFTER_FAILURES: u32 = 2;
