//! Policies: decide which links carry a connection, from its state and that of the host's links and radios.
//!
//! The result is a [`Decision`] with its reason; [`super::reconcile`] executes it. Common to all policies: a link
//! is usable if it is up, its budget is not spent, its path is not dead, and it has a subflow or may be joined. If
//! there is none, links with a subflow and a dead path count as usable, and if there is none of them either,
//! everything stays as it is.
//!
//! - `emptcp`: the published eMPTCP, in three readings
//! - `energy`: marline's policy for the goals of energy and, among the unmetered links, of cost
//! - `speed`: marline's policies for the goals of throughput and latency
//! - `hol_guard`: trials that show whether a slow link helps or holds the others up
//! - `input`: what policies see, and the form of their decision

mod emptcp;
mod energy;
mod hol_guard;
mod input;
mod speed;

pub(super) use energy::expected_bytes;
pub(super) use hol_guard::TrialState;
pub(super) use input::{Decision, PolicyInput};

use super::config::{Goal, Policy};
use super::host_state::HostState;
use super::links::LinkSet;
use super::reason::{JoinObstacle, Reason};

/// Decides again with the configured policy.
pub(super) fn decide(input: &mut PolicyInput<'_>, trials: &mut TrialState) -> Decision {
    let host = input.host;
    let usable = usable_links(input);
    // If the initial link is not usable, the first usable link takes its role.
    let spent = budget_spent_links(host);
    let Some(initial_link) = input.initial_link.filter(|home| usable.contains(*home)).or_else(|| usable.first())
    else {
        let carrying = input.subflows.carrying_links();
        let links = if carrying.is_empty() { input.subflows.joined_links() } else { carrying };
        return Decision::new(
            links,
            match spent.intersection(input.subflows.joined_links()).first() {
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
        Policy::Marline => decide_marline(input, trials, usable, initial_link),
        _ => emptcp::decide(input, usable, initial_link),
    };
    let unusable_links = input.subflows.joined_links().without(usable);
    // The most important circumstance replaces the policy's own reason.
    if let Some(link) =
        spent.intersection(input.subflows.joined_links().union(LinkSet::single(initial_link))).first()
    {
        decision.reason = Reason::BudgetSpent { links: decision.active, link };
    } else if host.config.policy == Policy::Marline
        && !unusable_links.intersection(decision.active.union(input.active_links)).is_empty()
    {
        decision.reason = Reason::Failover { links: decision.active, lost: unusable_links };
    } else if let Some((link, obstacle)) = refused_link(input, usable) {
        decision.reason = Reason::JoinRefused { links: decision.active, link, obstacle };
    }
    decision.destroy = decision.destroy.union(spent);
    decision.standby = decision.standby.without(spent);
    decision
}

fn decide_marline(
    input: &mut PolicyInput<'_>,
    trials: &mut TrialState,
    usable: LinkSet,
    initial_link: usize,
) -> Decision {
    let host = input.host;
    if input.is_idle
        && !input.subflows.carrying_links().intersection(usable).is_empty()
        && !input.active_links.intersection(usable).is_empty()
    {
        if host.config.goal == Goal::Energy {
            return energy::decide_idle(input, usable, initial_link);
        }
        let links = input.active_links.intersection(usable);
        return Decision::new(links, Reason::Idle { links });
    }
    match host.config.goal {
        Goal::Energy => energy::decide(input, trials, usable, initial_link),
        Goal::Speed => speed::decide_speed(input, trials, usable),
        Goal::Latency => speed::decide_latency(input, usable, initial_link),
        Goal::Cost => {
            let unmetered =
                usable.iter().filter(|index| host.link(*index).is_some_and(|link| !link.config.metered));
            let unmetered_links = unmetered.fold(LinkSet::EMPTY, LinkSet::with);
            if unmetered_links.is_empty() {
                let reason = match usable.len() {
                    1 => Reason::Only { link: initial_link },
                    _ => Reason::AllMetered { link: initial_link },
                };
                return Decision::new(LinkSet::single(initial_link), reason);
            }
            let initial_link = if unmetered_links.contains(initial_link) {
                initial_link
            } else {
                unmetered_links.first().unwrap_or(initial_link)
            };
            let decision = energy::decide(input, trials, unmetered_links, initial_link);
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
fn usable_links(input: &PolicyInput<'_>) -> LinkSet {
    let host = input.host;
    let joined = input.subflows.joined_links();
    let can_carry = |index: &usize| {
        let alive = input.subflows.paths.get(*index).is_some_and(|path| path.dead.is_none());
        let has_budget = host.link(*index).is_some_and(|link| !link.is_budget_spent());
        alive && has_budget && (joined.contains(*index) || input.subflows.is_joinable(host, *index))
    };
    let usable = host.up_links().iter().filter(can_carry).fold(LinkSet::EMPTY, LinkSet::with);
    match usable.is_empty() {
        // A path that seems dead is better than none.
        true => input.subflows.joined_links().intersection(host.up_links()).without(budget_spent_links(host)),
        false => usable,
    }
}

/// A link that is up and could not be joined, with the obstacle.
fn refused_link(input: &PolicyInput<'_>, usable: LinkSet) -> Option<(usize, JoinObstacle)> {
    let refused = |index: usize| Some((index, input.subflows.paths.get(index)?.join_obstacle?));
    input.host.up_links().without(usable).iter().find_map(refused)
}

fn budget_spent_links(host: &HostState) -> LinkSet {
    let spent = host.links.iter().enumerate().filter(|(_, link)| link.is_budget_spent());
    spent.fold(LinkSet::EMPTY, |links, (at, _)| links.with(at))
}
