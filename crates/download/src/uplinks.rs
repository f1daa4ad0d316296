//! The links of a run: which interface each number means, and what changes while it goes on.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::task::{Context, Poll};

use marline_core::link::{LinkId, LinkKind, LinkProfile};
use marline_net::links::{
    Interface, InterfaceList, LinkSelection, LinksError, MeteredHints, MeteredQuery, Monitor, choose_links,
    choose_loopback, list_interfaces,
};
use url::Url;

use crate::name::{SuggestedName, suggest_name};

/// The links by number. A number stays with its interface's name, whatever becomes of it.
pub(super) struct Uplinks {
    links: Vec<Uplink>,
    selection: LinkSelection,
    metered_hints: MeteredHints,
    /// Asks about costs again when links have changed.
    metered_query: MeteredQuery,
    monitor: Option<Monitor>,
    /// Something has changed since the last look.
    is_stale: bool,
    /// Whether the name of the file is the server's to suggest.
    pub(super) use_server_name: bool,
}

#[derive(Clone)]
struct Uplink {
    /// None: this machine itself, where nothing is bound.
    interface: Option<Interface>,
    profile: LinkProfile,
    is_up: bool,
}

/// What has changed.
#[derive(Debug, Default)]
pub(super) struct LinkChanges {
    pub(super) removed: Vec<LinkId>,
    /// Links that can be used from now on, and those that go on under other terms.
    pub(super) added: Vec<LinkId>,
}

impl Uplinks {
    /// Finds the links, and the lines that the user should read.
    pub(super) fn find(selection: LinkSelection) -> Result<(Self, Vec<String>), LinksError> {
        Self::find_with(selection, MeteredQuery::new())
    }

    fn find_with(selection: LinkSelection, watch: MeteredQuery) -> Result<(Self, Vec<String>), LinksError> {
        // Heard from before the survey, so that nothing is missed in between.
        let monitor = Monitor::new().ok();
        let survey = list_interfaces()?;
        let hints = watch.query_blocking(&survey);
        let chosen = choose_links(&survey, &selection, &hints)?;
        let lines = chosen.warnings.into_iter().chain(chosen.vpn_note).collect();
        let links =
            chosen.links.into_iter().map(|(i, profile)| Uplink { interface: Some(i), profile, is_up: true });
        Ok((
            Self {
                monitor,
                metered_hints: hints,
                metered_query: watch,
                ..Self::without_monitor(links.collect(), selection)
            },
            lines,
        ))
    }

    /// None yet; whatever appears is heard of.
    pub(super) fn without_links(selection: LinkSelection) -> Self {
        Self { monitor: Monitor::new().ok(), ..Self::without_monitor(Vec::new(), selection) }
    }

    /// This machine itself, and the lines that the user should read.
    pub(super) fn local(selection: LinkSelection) -> Result<(Self, Vec<String>), LinksError> {
        let is_unspecified = match &selection {
            LinkSelection::Auto { configured: known, .. } => known.is_empty(),
            LinkSelection::Named(link_args) => link_args.is_empty(),
        };
        let (profile, lines) = if is_unspecified {
            (LinkProfile::new("lo", LinkKind::Other), Vec::new())
        } else {
            choose_loopback(&list_interfaces()?, &selection)
        };
        Ok((Self::without_monitor(vec![Uplink { interface: None, profile, is_up: true }], selection), lines))
    }

    /// The same links for another run, with the same numbers; nobody is asked again for now.
    pub(super) fn duplicate(&self) -> Self {
        let links = self.links.clone();
        let monitor = self.monitor.as_ref().and_then(|_| Monitor::new().ok());
        // What has changed before this one listens is found by a look.
        let stale = monitor.is_some();
        Self {
            monitor,
            is_stale: stale,
            metered_hints: self.metered_hints.clone(),
            ..Self::without_monitor(links, self.selection.clone())
        }
    }

    /// Whether a link can be used now.
    pub(super) fn is_up(&self, id: LinkId) -> bool {
        self.links.get(usize::from(id.0)).is_some_and(|link| link.is_up)
    }

    /// Links that nothing is heard of.
    fn without_monitor(links: Vec<Uplink>, selection: LinkSelection) -> Self {
        Self {
            links,
            selection,
            metered_hints: MeteredHints::unknown(),
            metered_query: MeteredQuery::new(),
            monitor: None,
            is_stale: false,
            use_server_name: false,
        }
    }

    /// An error if there are only links that cost money: nothing would ever happen.
    pub(super) fn require_unmetered(&self) -> Result<(), LinksError> {
        if self.links.iter().any(|link| !link.profile.metered) {
            return Ok(());
        }
        let describe =
            |link: &Uplink| format!("{}: it is metered, and --metered never forbids it", link.profile.name);
        Err(LinksError::NoLink { why: self.links.iter().map(describe).collect() })
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.links.len() as u16).map(LinkId)
    }

    pub(super) fn profile(&self, id: LinkId) -> Option<&LinkProfile> {
        self.links.get(usize::from(id.0)).map(|link| &link.profile)
    }

    pub(super) fn interface(&self, id: LinkId) -> Option<&Interface> {
        self.links.get(usize::from(id.0)).and_then(|link| link.interface.as_ref())
    }

    /// The file's name as the server suggests it, if that is wanted and it does.
    pub(super) fn server_name(&self, disposition: Option<&str>, url: Option<&Url>) -> Option<SuggestedName> {
        (self.use_server_name && disposition.is_some()).then(|| url.map(|url| suggest_name(disposition, url)))?
    }

    /// Hears of changes. Pending: none. Where somebody knows what links cost, he is asked first: at most 200 ms.
    pub(super) fn poll_changes(&mut self, cx: &mut Context<'_>) -> Poll<LinkChanges> {
        self.poll_monitor(cx);
        if self.metered_query.is_pending() {
            if self.metered_query.poll(&mut self.metered_hints, cx).is_pending() {
                return Poll::Pending;
            }
            // What has changed meanwhile is looked at in the next turn.
            return Poll::Ready(list_interfaces().map(|survey| self.apply_interfaces(&survey)).unwrap_or_default());
        }
        if !std::mem::take(&mut self.is_stale) {
            return Poll::Pending;
        }
        let Ok(survey) = list_interfaces() else { return Poll::Ready(LinkChanges::default()) };
        if self.metered_query.start_query(&survey)
            && self.metered_query.poll(&mut self.metered_hints, cx).is_pending()
        {
            return Poll::Pending;
        }
        Poll::Ready(self.apply_interfaces(&survey))
    }

    /// Hears what the kernel tells.
    fn poll_monitor(&mut self, cx: &mut Context<'_>) {
        while let Some(monitor) = &mut self.monitor {
            match monitor.poll_changed(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => self.is_stale = true,
                Poll::Ready(Err(_)) => self.monitor = None,
            }
        }
    }

    fn apply_interfaces(&mut self, survey: &InterfaceList) -> LinkChanges {
        let found = choose_links(survey, &self.selection, &self.metered_hints)
            .map(|chosen| chosen.links)
            .unwrap_or_default();
        let mut changes = LinkChanges::default();
        for (n, link) in self.links.iter_mut().enumerate() {
            let Some(previous) = &link.interface else { continue };
            let id = LinkId(n as u16);
            match found.iter().find(|(now, _)| now.name == previous.name) {
                None if link.is_up => {
                    link.is_up = false;
                    changes.removed.push(id);
                }
                None => {}
                Some((now, profile)) => {
                    // A connection dies with its address.
                    let lost = now.index != previous.index || !addresses(previous).is_subset(&addresses(now));
                    if link.is_up && lost {
                        changes.removed.push(id);
                    }
                    if !link.is_up || lost || link.profile != *profile {
                        changes.added.push(id);
                    }
                    link.is_up = true;
                    link.profile = profile.clone();
                    link.interface = Some(now.clone());
                }
            }
        }
        for (interface, profile) in found {
            let known = self.links.iter().any(|link| link.profile.name == profile.name);
            if !known && self.links.iter().all(|link| link.interface.is_some()) {
                changes.added.push(LinkId(self.links.len() as u16));
                self.links.push(Uplink { interface: Some(interface), profile, is_up: true });
            }
        }
        changes
    }
}

fn addresses(interface: &Interface) -> BTreeSet<IpAddr> {
    interface.addresses.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use marline_net::links::{DefaultRoute, LinkArg, Usability};
    use marline_net::testing::Daemon;
    use marline_net::testing::{cable, in_a_network, ip};

    use super::*;

    fn wifi() -> Interface {
        Interface {
            name: "wlan0".into(),
            index: 3,
            kind: LinkKind::Wifi,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            transient_addresses: Vec::new(),
            subnets: Vec::new(),
            route_v4: Some(DefaultRoute { metric: 600, table: 254, gateway: None }),
            route_v6: None,
            metered: None,
            mtu: 1500,
            emulated: false,
            usability: Usability::Usable,
        }
    }

    #[test]
    fn other_terms_are_told_while_a_link_is_up() {
        let survey = InterfaceList { interfaces: vec![wifi()], vpn: None };
        let profile = LinkProfile::new("wlan0", LinkKind::Wifi);
        let named = LinkArg { kind: Some(LinkKind::Wifi), metered: Some(true), ..LinkArg::new("wlan0") };
        let mut uplinks = Uplinks::without_monitor(
            vec![Uplink { interface: Some(wifi()), profile, is_up: true }],
            LinkSelection::Named(vec![named]),
        );
        let changes = uplinks.apply_interfaces(&survey);
        assert_eq!((changes.removed, changes.added), (vec![], vec![LinkId(0)]));
        assert!(uplinks.profile(LinkId(0)).unwrap().metered);
        let changes = uplinks.apply_interfaces(&survey);
        assert_eq!((changes.removed, changes.added), (vec![], vec![]));
        let changes = uplinks.apply_interfaces(&InterfaceList { interfaces: Vec::new(), vpn: None });
        assert_eq!((changes.removed, changes.added), (vec![LinkId(0)], vec![]));
    }

    #[test]
    fn a_modem_that_appears_half_way_is_known_to_cost_money() {
        let Some(bus) = Daemon::start() else { return };
        let _manager = bus.network_manager();
        in_a_network(|| {
            cable("eth0", "10.1.0.2/24");
            ip("route add default via 10.1.0.1 dev eth0 metric 100");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let choice = LinkSelection::Auto { bypass_vpn: false, configured: Vec::new() };
                let (mut uplinks, _) = Uplinks::find_with(choice, MeteredQuery::with_root(bus.root())).unwrap();
                assert_eq!(uplinks.links.len(), 1);
                cable("wwan0", "10.2.0.2/24");
                ip("route add default via 10.2.0.1 dev wwan0 metric 700");
                let came = async {
                    while uplinks.links.len() < 2 {
                        std::future::poll_fn(|cx| uplinks.poll_changes(cx)).await;
                    }
                };
                tokio::time::timeout(std::time::Duration::from_secs(20), came).await.unwrap();
                let metered = |n| uplinks.profile(LinkId(n)).unwrap().metered;
                assert_eq!((metered(0), metered(1)), (false, true));
                assert_eq!(uplinks.profile(LinkId(1)).unwrap().name, "wwan0");
            });
        });
    }
}
