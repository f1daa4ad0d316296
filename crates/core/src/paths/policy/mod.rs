//! Policies: decide which links carry a connection, from its state and that of the host's links and radios.
//!
//! The result is a [`Decision`] with its reason; [`super::reconcile`] executes it. Common to all policies: a link
//! is usable if it is up, its budget is not spent, its path is not dead, and it has a subflow or may be joined. If
//! no link is usable, everything stays as it is.

mod emptcp;
mod energy;
mod hol_guard;
mod speed;
mod trial_cache;

pub use emptcp::min_tau;
pub(super) use trial_cache::{TrialCache, TrialResult};

use super::config::{Goal, Policy};
use super::conn::{Activity, Conn};
use super::host_state::HostState;
use super::links::LinkSet;
use super::reason::{JoinObstacle, Reason};

/// Desired state of a connection's links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Decision {
    /// Links that carry data.
    pub(super) active: LinkSet,
    /// Links with a subflow as a backup.
    pub(super) standby: LinkSet,
    /// Links that do not carry data and whose subflows are closed instead of kept as backups.
    pub(super) destroy: LinkSet,
    pub(super) reason: Reason,
}

impl Decision {
    pub(super) const fn new(active: LinkSet, reason: Reason) -> Self {
        Self { active, standby: LinkSet::EMPTY, destroy: LinkSet::EMPTY, reason }
    }
}

impl Conn {
    /// Decides anew with the configured policy.
    pub(super) fn decide(&mut self, host: &HostState) -> Decision {
        let usable = self.usable_links(host);
        // If the initial link is not usable, the first usable link takes its role.
        let spent = budget_spent_links(host);
        let Some(initial_link) = self.initial_link.filter(|home| usable.contains(*home)).or_else(|| usable.first())
        else {
            let carrying = self.carrying_links();
            let links = if carrying.is_empty() { self.joined_links() } else { carrying };
            return Decision::new(
                links,
                match spent.intersection(self.joined_links()).first() {
                    Some(link) => Reason::BudgetSpent { links, link },
                    None => Reason::Failover { links, lost: links },
                },
            );
        };
        let mut decision = match host.config.policy {
            Policy::Mptcp => Decision::new(usable, Reason::Fixed("all links join at once", usable)),
            Policy::WifiFirst => {
                let reason = Reason::Fixed("the first link alone while it works", LinkSet::single(initial_link));
                Decision { standby: usable, ..Decision::new(LinkSet::single(initial_link), reason) }
            }
            Policy::Marline => self.decide_marline(host, usable, initial_link),
            _ => self.decide_emptcp(host, usable, initial_link),
        };
        let unusable_links = self.joined_links().without(usable);
        // The most important circumstance replaces the policy's own reason.
        if let Some(link) = spent.intersection(self.joined_links().union(LinkSet::single(initial_link))).first() {
            decision.reason = Reason::BudgetSpent { links: decision.active, link };
        } else if host.config.policy == Policy::Marline
            && !unusable_links.intersection(decision.active.union(self.active_links)).is_empty()
        {
            decision.reason = Reason::Failover { links: decision.active, lost: unusable_links };
        } else if let Some((link, obstacle)) = self.refused_link(host, usable) {
            decision.reason = Reason::JoinRefused { links: decision.active, link, obstacle };
        }
        decision.destroy = decision.destroy.union(spent);
        decision.standby = decision.standby.without(spent);
        decision
    }

    fn decide_marline(&mut self, host: &HostState, usable: LinkSet, initial_link: usize) -> Decision {
        if self.activity == Activity::Idle
            && !self.carrying_links().intersection(usable).is_empty()
            && !self.active_links.intersection(usable).is_empty()
        {
            if host.config.goal == Goal::Energy {
                return self.decide_idle(host, usable, initial_link);
            }
            let links = self.active_links.intersection(usable);
            return Decision::new(links, Reason::Idle { links });
        }
        match host.config.goal {
            Goal::Energy => self.decide_energy(host, usable, initial_link),
            Goal::Speed => self.decide_speed(host, usable),
            Goal::Latency => self.decide_latency(host, usable, initial_link),
            Goal::Cost => {
                let unmetered =
                    usable.iter().filter(|index| host.link(*index).is_some_and(|link| !link.config.metered));
                let unmetered_links = unmetered.fold(LinkSet::EMPTY, LinkSet::with);
                if unmetered_links.is_empty() {
                    return Decision::new(LinkSet::single(initial_link), Reason::Only { link: initial_link });
                }
                let initial_link = if unmetered_links.contains(initial_link) {
                    initial_link
                } else {
                    unmetered_links.first().unwrap_or(initial_link)
                };
                let decision = self.decide_energy(host, unmetered_links, initial_link);
                let reason = if decision.active.len() == 1 {
                    Reason::Unmetered { links: decision.active }
                } else {
                    decision.reason
                };
                Decision { reason, ..decision }
            }
        }
    }

    /// Links that can carry the connection.
    fn usable_links(&self, host: &HostState) -> LinkSet {
        let joined = self.joined_links();
        let can_carry = |index: &usize| {
            let alive = self.paths.get(*index).is_some_and(|path| path.dead.is_none());
            let has_budget = host.link(*index).is_some_and(|link| !link.is_budget_spent());
            alive && has_budget && (joined.contains(*index) || self.is_joinable(host, *index))
        };
        let usable = host.up_links().iter().filter(can_carry).fold(LinkSet::EMPTY, LinkSet::with);
        match usable.is_empty() {
            // A path that seems dead is better than none.
            true => self.joined_links().intersection(host.up_links()).without(budget_spent_links(host)),
            false => usable,
        }
    }

    /// A link that is up and could not be joined, with the obstacle.
    fn refused_link(&self, host: &HostState, usable: LinkSet) -> Option<(usize, JoinObstacle)> {
        let refused = |index: usize| Some((index, self.paths.get(index)?.join_obstacle?));
        host.up_links().without(usable).iter().find_map(refused)
    }
}

fn budget_spent_links(host: &HostState) -> LinkSet {
    let spent = host.links.iter().enumerate().filter(|(_, link)| link.is_budget_spent());
    spent.fold(LinkSet::EMPTY, |links, (at, _)| links.with(at))
}
