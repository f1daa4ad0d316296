//! Interfaces that come while it runs.
//!
//! In: a survey, and how the links of the run were chosen. Out: one more link, everywhere: for the policy, for the
//! source routing, for the kernel's limits, for whoever asks.
//!
//! 1. What a start would use now is used now. What is used already goes on, whatever a start would say.
//! 2. While a VPN is the host's way to the Internet and nothing may go beside it, nothing is taken up: a VPN that comes
//!    later is none of the links, as `interfaces` says.
//! 3. A link is its name. One that went and came back is the same, under whatever number of the kernel.
//! 4. On cost NetworkManager is asked once, when an interface is taken up; it has 200 ms.

use marline_core::paths::{Input, LinkConfig};
use marline_net::links::{ChosenLinks, InterfaceList, LinksError, MeteredHints, choose_links};

use super::{Driver, Policy};

impl<M: Policy> Driver<M> {
    /// Takes up what has come.
    pub(super) fn add_links(&mut self, survey: &InterfaceList) {
        if survey.vpn.is_some() && !self.links.bypass_vpn {
            return;
        }
        // Nobody is asked about cost until there is somebody to ask about.
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
            tracing::info!(link = config.name, kind = %config.kind, "a further link");
            self.links.add(&config);
            self.host_config.add_link(&config);
            self.feed_machine(Input::LinkAdded { config });
        }
        if let Err(error) = self.raise_limits() {
            tracing::warn!(%error, "a further link may have no room for its subflows");
        }
    }

    fn choose_links(&self, survey: &InterfaceList, hints: &MeteredHints) -> Result<ChosenLinks, LinksError> {
        choose_links(survey, &self.selection, hints)
    }
}
