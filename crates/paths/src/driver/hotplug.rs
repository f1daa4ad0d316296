//! Adds links for interfaces that appear during the run.
//!
//! A new interface that matches the selection becomes a link of the policy, of source routing, of the kernel's limits
//! and of the status.
//!
//! 1. An interface that a restart would select is selected now. A link that is used already is kept, even if a
//!    restart would not select it.
//! 2. While a VPN has the default route and bypassing it is not permitted, no link is added. A VPN that starts later
//!    makes the links below it go down (`interfaces`).
//! 3. A link is identified by its name. An interface that disappeared and came back is the same link, even with
//!    another interface index.
//! 4. NetworkManager is queried about the cost (metered or not) once, when an interface is added; it has 200 ms to
//!    reply.

use marline_core::link::{LinkId, LinkProfile};
use marline_core::paths::LinkConfig;
use marline_net::links::{Interface, InterfaceList, LinkSelection, MeteredHints, choose_links};

use super::super::Budgets;
use super::interfaces::LinkInterfaces;

/// The links for new interfaces of this survey, with the ids that they get in this order.
pub(super) fn find_new_links(
    survey: &InterfaceList,
    links: &LinkInterfaces,
    selection: &LinkSelection,
    budgets: &Budgets,
) -> Vec<LinkConfig> {
    if survey.vpn.is_some() && !links.bypass_vpn {
        return Vec::new();
    }
    // Avoids the query to NetworkManager unless there is a new link.
    match choose_links(survey, selection, &MeteredHints::unknown()) {
        Ok(chosen) if chosen.links.iter().any(|(interface, _)| !links.has_name(&interface.name)) => {}
        _ => return Vec::new(),
    }
    let Ok(chosen) = choose_links(survey, selection, &MeteredHints::query(survey)) else { return Vec::new() };
    let new = chosen.links.into_iter().filter(|(interface, _)| !links.has_name(&interface.name));
    let config = |(n, (_, profile)): (u16, (Interface, LinkProfile))| {
        let budget = profile.budget.map(|budget| budgets.remaining(&profile.name, budget));
        let id = LinkId(links.next_id().0.saturating_add(n));
        LinkConfig { id, name: profile.name, kind: profile.kind, metered: profile.metered, budget }
    };
    (0..).zip(new).map(config).collect()
}
