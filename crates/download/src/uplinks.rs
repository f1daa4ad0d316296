//! The links of one transfer (a download, or a stream of the proxy): which interface each link ID refers to, and the
//! changes while it runs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::task::{Context, Poll};

use marline_core::link::{LinkId, LinkKind, LinkProfile};
use marline_net::links::{
    Interface, InterfaceList, LinkSelection, LinksError, MeteredHints, MeteredQuery, RetryingMonitor, choose_links,
    choose_loopback, list_interfaces,
};
use url::Url;

use crate::name::{SuggestedName, suggest_name};

/// The links of a transfer, by ID. An ID belongs to the name of an interface, even if the interface disappears and
/// returns.
pub(super) struct Uplinks {
    links: Vec<Uplink>,
    selection: LinkSelection,
    metered_hints: MeteredHints,
    /// Queries again whether links are metered, after they have changed.
    metered_query: MeteredQuery,
    /// None: the only link is this host itself.
    monitor: Option<RetryingMonitor>,
    /// Whether the interfaces may have changed since they were last enumerated.
    is_stale: bool,
    /// Whether the file is named by the server (Content-Disposition).
    pub(super) use_server_name: bool,
}

#[derive(Clone)]
struct Uplink {
    /// None: this host itself; sockets are not bound.
    interface: Option<Interface>,
    profile: LinkProfile,
    is_up: bool,
}

#[derive(Debug, Default)]
pub(super) struct LinkChanges {
    pub(super) removed: Vec<LinkId>,
    /// Links that are available now, and available links with a changed profile.
    pub(super) added: Vec<LinkId>,
}

impl Uplinks {
    /// Finds the links. Also returns the messages for the user.
    pub(super) fn find(selection: LinkSelection) -> Result<(Self, Vec<String>), LinksError> {
        Self::find_with(selection, MeteredQuery::new())
    }

    fn find_with(selection: LinkSelection, query: MeteredQuery) -> Result<(Self, Vec<String>), LinksError> {
        // The monitor is opened before the interfaces are enumerated, so that no change in between is missed.
        let monitor = Some(RetryingMonitor::new());
        let interfaces = list_interfaces()?;
        let hints = query.query_blocking(&interfaces);
        let chosen = choose_links(&interfaces, &selection, &hints)?;
        let lines = chosen.warnings.into_iter().chain(chosen.vpn_note).collect();
        let links =
            chosen.links.into_iter().map(|(i, profile)| Uplink { interface: Some(i), profile, is_up: true });
        Ok((
            Self {
                monitor,
                metered_hints: hints,
                metered_query: query,
                ..Self::without_monitor(links.collect(), selection)
            },
            lines,
        ))
    }

    /// Starts without any link. Links that appear are added.
    pub(super) fn without_links(selection: LinkSelection) -> Self {
        Self { monitor: Some(RetryingMonitor::new()), ..Self::without_monitor(Vec::new(), selection) }
    }

    /// This host itself as the only link. Also returns the messages for the user.
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

    /// The same links with the same IDs, for another transfer. Costs no enumeration.
    pub(super) fn duplicate(&self) -> Self {
        let links = self.links.clone();
        let monitor = self.monitor.as_ref().map(|_| RetryingMonitor::new());
        // Changes before the new monitor was opened are found by an enumeration at the next poll.
        let stale = monitor.is_some();
        Self {
            monitor,
            is_stale: stale,
            metered_hints: self.metered_hints.clone(),
            ..Self::without_monitor(links, self.selection.clone())
        }
    }

    /// Whether a link is available now.
    pub(super) fn is_up(&self, id: LinkId) -> bool {
        self.links.get(usize::from(id.0)).is_some_and(|link| link.is_up)
    }

    /// Links without a monitor: changes are not noticed.
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

    /// An error if all links are metered: then the machine would never use any.
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

    /// The file name that the server suggests, if such names are used and the response has one.
    pub(super) fn server_name(&self, disposition: Option<&str>, url: Option<&Url>) -> Option<SuggestedName> {
        (self.use_server_name && disposition.is_some()).then(|| url.map(|url| suggest_name(disposition, url)))?
    }

    /// Polls for changed links. Pending: there are none. If a source of metering information exists, it is queried
    /// first, for at most 200 ms.
    pub(super) fn poll_changes(&mut self, cx: &mut Context<'_>) -> Poll<LinkChanges> {
        self.poll_monitor(cx);
        if self.metered_query.is_pending() {
            if self.metered_query.poll(&mut self.metered_hints, cx).is_pending() {
                return Poll::Pending;
            }
            // Changes that arrived during the query are applied at the next poll.
            return Poll::Ready(
                list_interfaces().map(|interfaces| self.apply_interfaces(&interfaces)).unwrap_or_default(),
            );
        }
        if !std::mem::take(&mut self.is_stale) {
            return Poll::Pending;
        }
        let Ok(interfaces) = list_interfaces() else { return Poll::Ready(LinkChanges::default()) };
        if self.metered_query.start_query(&interfaces)
            && self.metered_query.poll(&mut self.metered_hints, cx).is_pending()
        {
            return Poll::Pending;
        }
        Poll::Ready(self.apply_interfaces(&interfaces))
    }

    /// Reads the notifications of the kernel.
    fn poll_monitor(&mut self, cx: &mut Context<'_>) {
        let Some(monitor) = &mut self.monitor else { return };
        // Polled until it is pending: only then does the next change wake the task.
        while monitor.poll_changed(cx).is_ready() {
            self.is_stale = true;
        }
    }

    /// Compares the enumerated interfaces with the known links, and updates these.
    fn apply_interfaces(&mut self, interfaces: &InterfaceList) -> LinkChanges {
        let found = choose_links(interfaces, &self.selection, &self.metered_hints)
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
                    // Losing an address or a new interface index breaks all connections: the link is removed and
                    // added again.
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
        // New interfaces get the next IDs. A transfer on this host itself has no interface and adds none.
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
    use marline_net::links::LinkArg;
    use marline_net::testing::{DbusDaemon, cable, default_route, in_a_network, ip, test_interface};

    use super::*;

    fn wifi() -> Interface {
        Interface {
            kind: LinkKind::Wifi,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            route_v4: Some(default_route(600)),
            ..test_interface("wlan0", 3)
        }
    }

    #[test]
    fn a_changed_profile_of_an_available_link_is_reported() {
        let interfaces = InterfaceList { interfaces: vec![wifi()], vpn: None };
        let profile = LinkProfile::new("wlan0", LinkKind::Wifi);
        let named = LinkArg { kind: Some(LinkKind::Wifi), metered: Some(true), ..LinkArg::new("wlan0") };
        let mut uplinks = Uplinks::without_monitor(
            vec![Uplink { interface: Some(wifi()), profile, is_up: true }],
            LinkSelection::Named(vec![named]),
        );
        let changes = uplinks.apply_interfaces(&interfaces);
        assert_eq!((changes.removed, changes.added), (vec![], vec![LinkId(0)]));
        assert!(uplinks.profile(LinkId(0)).unwrap().metered);
        let changes = uplinks.apply_interfaces(&interfaces);
        assert_eq!((changes.removed, changes.added), (vec![], vec![]));
        let changes = uplinks.apply_interfaces(&InterfaceList { interfaces: Vec::new(), vpn: None });
        assert_eq!((changes.removed, changes.added), (vec![LinkId(0)], vec![]));
    }

    #[test]
    fn a_modem_that_appears_during_the_run_is_known_to_be_metered() {
        let Some(bus) = DbusDaemon::start() else { return };
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
                let link_added = async {
                    while uplinks.links.len() < 2 {
                        std::future::poll_fn(|cx| uplinks.poll_changes(cx)).await;
                    }
                };
                tokio::time::timeout(std::time::Duration::from_secs(20), link_added).await.unwrap();
                let metered = |n| uplinks.profile(LinkId(n)).unwrap().metered;
                assert_eq!((metered(0), metered(1)), (false, true));
                assert_eq!(uplinks.profile(LinkId(1)).unwrap().name, "wwan0");
            });
        });
    }
}
