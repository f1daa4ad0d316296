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

use marline_core::paths::{Input, LinkConfig};
use marline_net::links::{ChosenLinks, InterfaceList, LinksError, MeteredHints, choose_links};

use super::{Driver, Policy};

impl<M: Policy> Driver<M> {
    /// Adds links for new interfaces of this survey.
    pub(super) fn add_links(&mut self, survey: &InterfaceList) {
        if survey.vpn.is_some() && !self.links.bypass_vpn {
            return;
        }
        // Avoids the query to NetworkManager unless there is a new link.
        match self.choose_links(survey, &MeteredHints::unknown()) {
            Ok(chosen) if chosen.links.iter().any(|(interface, _)| !self.links.has_name(&interface.name)) => {}
            _ => return,
        }
        let Ok(chosen) = self.choose_links(survey, &MeteredHints::query(survey)) else { return };
        for (interface, profile) in chosen.links {
            if self.links.has_name(&interface.name) {
                continue;
            }
            let budget = profile.budget.map(|budget| self.budgets.remaining(&profile.name, budget));
            let (kind, metered) = (profile.kind, profile.metered);
            let config = LinkConfig { id: self.links.next_id(), name: profile.name, kind, metered, budget };
            tracing::info!(link = config.name, kind = %config.kind, "adding a link");
            self.links.add(&config);
            self.host_config.add_link(&config);
            self.feed_machine(Input::LinkAdded { config });
        }
        if let Err(error) = self.raise_limits() {
            tracing::warn!(%error, "cannot raise the kernel's subflow limit; the new link may get no subflows");
        }
    }

    fn choose_links(&self, survey: &InterfaceList, hints: &MeteredHints) -> Result<ChosenLinks, LinksError> {
        choose_links(survey, &self.selection, hints)
    }
}
