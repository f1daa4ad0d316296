//! Links as interfaces of this host: index, addresses, state and traffic.
//!
//! Surveys of the interfaces and their byte counters are the inputs. The results are transitions of links (up, down,
//! new address), the local address for a join, and the link of an address.
//!
//! 1. A link is up when its interface is on and has carrier and an address. A default route is not required: source
//!    routing provides it, and the user has named the link. A link that now lies below a VPN is down, so that no
//!    traffic bypasses the VPN, unless the user permits that.
//! 2. A link that has lost all its former addresses while up counts as down and up again, because its subflows are
//!    lost. If it keeps addresses of the other family it stays up, and a new address of the family is reported
//!    ([`LinkTransition::NewAddress`]). The return of a default route for which joins waited is reported in the same
//!    way.
//! 3. Traffic of an interface counts from the moment when the driver first sees it, and continues when another
//!    interface of the same name replaces it.

use std::net::IpAddr;

use marline_core::link::{LinkId, LinkKind};
use marline_core::paths::{IpFamily, LinkConfig};
use marline_core::units::{Bitrate, DataSize, Duration};
use marline_net::links::{DefaultRoute, Interface, InterfaceList, UnusedReason, Usability};

use super::super::Budgets;
use super::super::snapshot::LinkState;

/// All links of the run.
#[derive(Debug)]
pub(super) struct LinkInterfaces {
    pub(super) all: Vec<LinkInterface>,
    /// Addresses of this host that belong to no link.
    other_addresses: Vec<IpAddr>,
    /// Whether links may be used beside a VPN.
    pub(super) bypass_vpn: bool,
}

/// One link and the interface that carries it.
#[derive(Debug)]
pub(super) struct LinkInterface {
    pub(super) link: LinkId,
    name: String,
    kind: LinkKind,
    /// Interface index of the kernel; 0: the interface does not exist now.
    pub(super) index: u32,
    pub(super) is_up: bool,
    /// All addresses, including transient ones. A connection from one of them uses this link.
    pub(super) addresses: Vec<IpAddr>,
    /// Addresses that joins and endpoints may use.
    pub(super) stable_addresses: Vec<IpAddr>,
    /// Whether it ever had default routes of IPv4 and IPv6.
    had_routes: (bool, bool),
    /// Metrics of its default routes of IPv4 and IPv6, by which the kernel chooses for unbound sockets.
    route_metrics: (Option<u32>, Option<u32>),
    /// MTU and use of IPv4 as last reported to the policy.
    last_reported: Option<(u16, bool)>,
    /// Whether a data budget is configured for it.
    has_budget: bool,
    /// The interface's last byte counters: received, sent.
    last_counters: Option<(u64, u64)>,
    /// Traffic since the driver first saw the interface, and the rate received between the last two readings.
    received: DataSize,
    sent: DataSize,
    rate: Bitrate,
}

/// A change of a link's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkTransition {
    Up(LinkId),
    Down(LinkId),
    /// It was up, and now has an address of a new family, or the default route for which joins waited.
    NewAddress(LinkId),
}

impl LinkInterfaces {
    pub(super) fn new(config: &[LinkConfig], bypass_vpn: bool) -> Self {
        Self { all: config.iter().map(LinkInterface::new).collect(), other_addresses: Vec::new(), bypass_vpn }
    }

    /// Adds a link with an id of [`Self::next_id`]. The next survey sets its state.
    pub(super) fn add(&mut self, config: &LinkConfig) {
        self.all.push(LinkInterface::new(config));
    }

    /// Id for the next link.
    pub(super) fn next_id(&self) -> LinkId {
        LinkId(self.all.iter().map(|link_interface| link_interface.link.0.saturating_add(1)).max().unwrap_or(0))
    }

    /// Whether one of the links has this interface name.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.all.iter().any(|link_interface| link_interface.name == name)
    }

    /// Applies a survey and returns the resulting transitions, in order.
    pub(super) fn apply_survey(&mut self, survey: &InterfaceList) -> Vec<LinkTransition> {
        let mut transitions = Vec::new();
        for link_interface in &mut self.all {
            link_interface.apply_interface(survey.by_name(&link_interface.name), self.bypass_vpn, &mut transitions);
        }
        let other_interfaces = survey.interfaces.iter().filter(|interface| !self.has_name(&interface.name));
        self.other_addresses = other_interfaces.flat_map(all_addresses).collect();
        transitions
    }

    /// Interfaces whose MTU or use of IPv4 has changed since the last call: link, MTU, use of IPv4.
    pub(super) fn changed_interfaces(&mut self, survey: &InterfaceList) -> Vec<(LinkId, u16, bool)> {
        let changed = |link_interface: &mut LinkInterface| {
            let interface = survey.by_name(&link_interface.name)?;
            let mtu = u16::try_from(interface.mtu).unwrap_or(u16::MAX);
            let report = (mtu, interface.addresses.iter().any(IpAddr::is_ipv4));
            (link_interface.last_reported.replace(report) != Some(report)).then_some((
                link_interface.link,
                report.0,
                report.1,
            ))
        };
        self.all.iter_mut().filter_map(changed).collect()
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&LinkInterface> {
        self.all.iter().find(|link_interface| link_interface.link == link)
    }

    /// The link of a subflow: that of its bound interface, or that of its address. If several links have the address,
    /// packets of an unbound socket leave by the default route with the lowest metric.
    pub(super) fn for_address(&self, address: IpAddr, interface_index: u32) -> Option<&LinkInterface> {
        let bound =
            self.all.iter().find(|link_interface| interface_index != 0 && link_interface.index == interface_index);
        let has_address = |link_interface: &&LinkInterface| link_interface.addresses.contains(&address);
        bound.or_else(|| {
            self.all
                .iter()
                .filter(has_address)
                .min_by_key(|link_interface| (!link_interface.is_up, link_interface.route_metric(address)))
        })
    }

    /// Whether the last survey did not know this address.
    pub(super) fn is_unknown_address(&self, address: IpAddr) -> bool {
        !address.is_loopback() && self.for_address(address, 0).is_none() && !self.other_addresses.contains(&address)
    }

    /// Records the traffic of links with a budget.
    pub(super) fn record_budgets(&self, budgets: &mut Budgets) {
        for link_interface in self.all.iter().filter(|link_interface| link_interface.has_budget) {
            budgets.record(&link_interface.name, link_interface.received + link_interface.sent);
        }
    }

    pub(super) fn update_counters(&mut self, link: LinkId, received: u64, sent: u64, time: Duration) {
        if let Some(link_interface) = self.all.iter_mut().find(|link_interface| link_interface.link == link) {
            link_interface.update_counters(received, sent, time);
        }
    }
}

impl LinkInterface {
    /// A new link is down until the next survey.
    fn new(config: &LinkConfig) -> Self {
        Self {
            link: config.id,
            name: config.name.clone(),
            kind: config.kind,
            index: 0,
            is_up: false,
            addresses: Vec::new(),
            stable_addresses: Vec::new(),
            had_routes: (false, false),
            route_metrics: (None, None),
            last_reported: None,
            has_budget: config.budget.is_some(),
            last_counters: None,
            received: DataSize::ZERO,
            sent: DataSize::ZERO,
            rate: Bitrate::ZERO,
        }
    }

    fn apply_interface(
        &mut self,
        interface: Option<&Interface>,
        bypass_vpn: bool,
        transitions: &mut Vec<LinkTransition>,
    ) {
        let is_up = interface.is_some_and(|interface| can_carry(interface, bypass_vpn));
        let index = interface.map_or(0, |interface| interface.index);
        if index != self.index && self.last_counters.is_some() {
            // The counters of another interface start at zero, whatever its name.
            self.last_counters = Some((0, 0));
        }
        let addresses: Vec<IpAddr> = interface.into_iter().flat_map(all_addresses).collect();
        // If no earlier address remains, all subflows of the link are lost.
        let has_lost_addresses =
            is_up && self.is_up && !self.addresses.iter().any(|address| addresses.contains(address));
        if self.is_up && (!is_up || has_lost_addresses || index != self.index) {
            transitions.push(LinkTransition::Down(self.link));
            self.is_up = false;
        }
        self.index = index;
        if is_up {
            // While the link is down its addresses are kept: sockets that are bound to them remain, and the addresses
            // may return.
            self.addresses = addresses;
            let stable_addresses = interface.map(|interface| interface.addresses.clone()).unwrap_or_default();
            // Joins that failed for lack of a family or a route are retried on the transition below, so both are
            // compared with the state before this survey.
            let is_of_new_family =
                |address: &IpAddr| self.stable_addresses.iter().all(|known| known.is_ipv4() != address.is_ipv4());
            let awaiting_route: Vec<IpAddr> =
                stable_addresses.iter().copied().filter(|address| self.is_awaiting_route(*address)).collect();
            let is_new = stable_addresses.iter().any(is_of_new_family);
            self.stable_addresses = stable_addresses;
            let metric = |route: Option<DefaultRoute>| route.map(|route| route.metric);
            self.route_metrics = interface
                .map_or((None, None), |interface| (metric(interface.route_v4), metric(interface.route_v6)));
            self.had_routes = (
                self.had_routes.0 | self.route_metrics.0.is_some(),
                self.had_routes.1 | self.route_metrics.1.is_some(),
            );
            if !self.is_up {
                transitions.push(LinkTransition::Up(self.link));
            } else if is_new || awaiting_route.into_iter().any(|address| !self.is_awaiting_route(address)) {
                transitions.push(LinkTransition::NewAddress(self.link));
            }
        }
        self.is_up = is_up;
    }

    /// The address for a subflow to this server: of its family, and preferably of its scope.
    pub(super) fn address_for(&self, server: IpAddr) -> Option<IpAddr> {
        let has_family = |address: &&IpAddr| address.is_ipv4() == server.is_ipv4();
        let has_scope = |address: &&IpAddr| is_unique_local(**address) == is_unique_local(server);
        let mut candidates = self.stable_addresses.iter().filter(has_family);
        candidates.clone().find(has_scope).or_else(|| candidates.next()).copied()
    }

    /// The family of its addresses; none: it has both, or no stable address.
    pub(super) fn only_family(&self) -> Option<IpFamily> {
        let family = IpFamily::of(*self.stable_addresses.first()?);
        self.stable_addresses.iter().all(|address| IpFamily::of(*address) == family).then_some(family)
    }

    /// Whether the default route for the address's family is missing and existed before. The route usually follows
    /// the address after some time. Until then the kernel treats each IPv4 destination as a neighbor, and a SYN waits
    /// three seconds for an ARP reply.
    pub(super) fn is_awaiting_route(&self, address: IpAddr) -> bool {
        let ((v4, v6), (had_v4, had_v6)) = (self.route_metrics, self.had_routes);
        if address.is_ipv4() { v4.is_none() && had_v4 } else { v6.is_none() && had_v6 }
    }

    fn update_counters(&mut self, received: u64, sent: u64, time: Duration) {
        let previous = self.last_counters.replace((received, sent)).unwrap_or((received, sent));
        // Decreasing counters were reset to zero.
        let previous = if received < previous.0 || sent < previous.1 { (0, 0) } else { previous };
        let received_bytes = DataSize::from_bytes(received - previous.0);
        self.rate = received_bytes / time;
        self.received += received_bytes;
        self.sent += DataSize::from_bytes(sent - previous.1);
    }

    /// Metric of its default route for the address's family; without such a route, the maximum.
    fn route_metric(&self, address: IpAddr) -> u32 {
        let (v4, v6) = self.route_metrics;
        if address.is_ipv4() { v4 } else { v6 }.unwrap_or(u32::MAX)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Received and sent bytes of this run.
    pub(super) fn totals(&self) -> (DataSize, DataSize) {
        (self.received, self.sent)
    }

    /// Used part of its budget, in this run and earlier ones; none: no budget.
    pub(super) fn budget_used(&self, budgets: &Budgets) -> Option<DataSize> {
        self.has_budget.then(|| budgets.used(&self.name))
    }

    pub(super) fn snapshot(&self, subflows: u32, budgets: &Budgets) -> LinkState {
        LinkState {
            id: self.link,
            name: self.name.clone(),
            kind: self.kind,
            up: self.is_up,
            received: self.received,
            sent: self.sent,
            rate: self.rate,
            budget_used: self.budget_used(budgets),
            subflows,
        }
    }
}

fn can_carry(interface: &Interface, bypass_vpn: bool) -> bool {
    match &interface.usability {
        Usability::Usable => true,
        Usability::Unused(UnusedReason::BelowVpn(_)) if !bypass_vpn => false,
        Usability::Unused(reason) => reason.can_be_overridden() && !interface.addresses.is_empty(),
    }
}

fn all_addresses(interface: &Interface) -> impl Iterator<Item = IpAddr> {
    interface.addresses.iter().chain(&interface.transient_addresses).copied()
}

/// Unique local address of a site: `fc00::/7` (RFC 4193). Private IPv4 addresses reach every server through NAT.
fn is_unique_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.segments()[0] & 0xfe00 == 0xfc00)
}

#[cfg(test)]
mod tests {
    use marline_net::links::Subnet;
    use marline_net::testing::{default_route, test_interface};

    use super::*;

    fn interface(index: u32, addresses: &[&str], verdict: Usability) -> Interface {
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let networks = addresses.iter().map(|address| Subnet { address: *address, prefix_len: 24 }).collect();
        Interface {
            kind: LinkKind::Wifi,
            addresses,
            subnets: networks,
            usability: verdict,
            ..test_interface("wlan0", index)
        }
    }

    fn wifi_links() -> LinkInterfaces {
        wifi_links_with(false)
    }

    fn wifi_links_with(bypass_vpn: bool) -> LinkInterfaces {
        let config =
            LinkConfig { id: LinkId(0), name: "wlan0".into(), kind: LinkKind::Wifi, metered: false, budget: None };
        LinkInterfaces::new(&[config], bypass_vpn)
    }

    fn survey(interface: Interface) -> InterfaceList {
        InterfaceList { interfaces: vec![interface], vpn: None }
    }

    #[test]
    fn joins_wait_only_for_a_default_route_that_existed_before() {
        let mut links = wifi_links();
        let address = IpAddr::from([10, 0, 0, 2]);
        let without = || interface(3, &["10.0.0.2"], Usability::Unused(UnusedReason::NoDefaultRoute));
        let route = Some(default_route(100));
        let is_awaiting = |links: &LinkInterfaces| links.get(LinkId(0)).unwrap().is_awaiting_route(address);
        links.apply_survey(&survey(without()));
        assert!(!is_awaiting(&links));
        links
            .apply_survey(&survey(Interface { route_v4: route, ..interface(3, &["10.0.0.2"], Usability::Usable) }));
        assert!(!is_awaiting(&links));
        // Down and up again: the address returns before the route.
        links.apply_survey(&survey(interface(3, &["10.0.0.2"], Usability::Unused(UnusedReason::Down))));
        links.apply_survey(&survey(without()));
        assert!(
            is_awaiting(&links) && !links.get(LinkId(0)).unwrap().is_awaiting_route("fd00::2".parse().unwrap())
        );
        let returned = survey(Interface { route_v4: route, ..interface(3, &["10.0.0.2"], Usability::Usable) });
        assert_eq!(links.apply_survey(&returned), [LinkTransition::NewAddress(LinkId(0))]);
        assert_eq!(links.apply_survey(&returned), []);
    }

    #[test]
    fn a_link_is_up_while_its_interface_is_usable() {
        let mut links = wifi_links();
        let no_route = || Usability::Unused(UnusedReason::NoDefaultRoute);
        assert_eq!(
            links.apply_survey(&survey(interface(3, &["10.0.0.2"], no_route()))),
            [LinkTransition::Up(LinkId(0))]
        );
        assert_eq!(links.apply_survey(&survey(interface(3, &["10.0.0.2", "10.0.0.3"], Usability::Usable))), []);
        let down = survey(interface(3, &["10.0.0.2"], Usability::Unused(UnusedReason::NoCarrier)));
        assert_eq!(links.apply_survey(&down), [LinkTransition::Down(LinkId(0))]);
        assert_eq!(links.apply_survey(&InterfaceList { interfaces: vec![], vpn: None }), []);
    }

    #[test]
    fn a_new_lease_is_reported_although_the_other_family_keeps_its_address() {
        let mut links = wifi_links();
        let mut follow =
            |addresses: &[&str]| links.apply_survey(&survey(interface(3, addresses, Usability::Usable)));
        assert_eq!(follow(&["10.0.0.2", "2001:db8::2"]), [LinkTransition::Up(LinkId(0))]);
        assert_eq!(follow(&["2001:db8::2"]), []);
        assert_eq!(follow(&["2001:db8::2", "10.0.0.9"]), [LinkTransition::NewAddress(LinkId(0))]);
        assert_eq!(follow(&["2001:db8::7", "2001:db8::2", "10.0.0.9"]), []);
        assert_eq!(follow(&["10.0.0.9"]), []);
        assert_eq!(follow(&["10.0.0.9", "2001:db8:1::2"]), [LinkTransition::NewAddress(LinkId(0))]);
    }

    #[test]
    fn a_link_below_a_vpn_is_down_unless_bypass_is_permitted() {
        let below_vpn = || Usability::Unused(UnusedReason::BelowVpn("tun0".into()));
        let transitions = |mut links: LinkInterfaces| {
            let mut transitions = links.apply_survey(&survey(interface(3, &["10.0.0.2"], Usability::Usable)));
            transitions.extend(links.apply_survey(&survey(interface(3, &["10.0.0.2"], below_vpn()))));
            transitions.extend(links.apply_survey(&survey(interface(3, &["10.0.0.2"], Usability::Usable))));
            transitions
        };
        let link = LinkId(0);
        assert_eq!(
            transitions(wifi_links()),
            [LinkTransition::Up(link), LinkTransition::Down(link), LinkTransition::Up(link)]
        );
        assert_eq!(transitions(wifi_links_with(true)), [LinkTransition::Up(link)]);
    }

    #[test]
    fn replacing_the_only_address_is_down_and_up() {
        let mut links = wifi_links();
        links.apply_survey(&survey(interface(3, &["10.0.0.2"], Usability::Usable)));
        let transitions = links.apply_survey(&survey(interface(3, &["10.0.0.77"], Usability::Usable)));
        assert_eq!(transitions, [LinkTransition::Down(LinkId(0)), LinkTransition::Up(LinkId(0))]);
        assert_eq!(
            links.for_address("10.0.0.77".parse().unwrap(), 0).map(|link_interface| link_interface.link),
            Some(LinkId(0))
        );
        assert!(links.is_unknown_address("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn a_join_uses_an_address_of_the_servers_family_and_scope() {
        let mut links = wifi_links();
        let all = ["10.0.0.2", "fd00::2", "2001:db8::2"];
        links.apply_survey(&survey(interface(3, &all, Usability::Usable)));
        let link_interface = links.get(LinkId(0)).unwrap();
        let source_address =
            |server: &str| link_interface.address_for(server.parse().unwrap()).unwrap().to_string();
        assert_eq!(source_address("192.0.2.1"), "10.0.0.2");
        assert_eq!(source_address("2001:db8:9::1"), "2001:db8::2");
        assert_eq!(source_address("fd00:9::1"), "fd00::2");
    }

    #[test]
    fn a_transient_address_belongs_to_the_link_but_is_not_used_for_joins() {
        let mut links = wifi_links();
        let interface_with = |stable_addresses: &[&str], transient: &[&str]| Interface {
            transient_addresses: transient.iter().map(|address| address.parse().unwrap()).collect(),
            ..interface(3, stable_addresses, Usability::Usable)
        };
        links.apply_survey(&survey(interface_with(&["2001:db8::2"], &["2001:db8::77"])));
        let link = |links: &LinkInterfaces, address: &str| {
            links.for_address(address.parse().unwrap(), 0).map(|link_interface| link_interface.link)
        };
        let source_address = |links: &LinkInterfaces| {
            links.get(LinkId(0)).unwrap().address_for("2001:db8:9::1".parse().unwrap()).map(|a| a.to_string())
        };
        assert_eq!(link(&links, "2001:db8::77"), Some(LinkId(0)));
        assert_eq!(source_address(&links).as_deref(), Some("2001:db8::2"));
        // The network was renumbered: sockets with the old address continue, and joins use the new one.
        assert_eq!(links.apply_survey(&survey(interface_with(&["2001:db8:5::2"], &["2001:db8::2"]))), []);
        assert_eq!(link(&links, "2001:db8::2"), Some(LinkId(0)));
        assert_eq!(source_address(&links).as_deref(), Some("2001:db8:5::2"));
    }

    #[test]
    fn traffic_counts_from_the_first_sample_and_continues_over_a_new_interface() {
        let mut links = wifi_links();
        links.apply_survey(&survey(interface(3, &["10.0.0.2"], Usability::Usable)));
        let second = Duration::from_secs(1);
        let update_and_read = |links: &mut LinkInterfaces, received, sent| {
            links.update_counters(LinkId(0), received, sent, second);
            let link_interface = links.get(LinkId(0)).unwrap();
            (link_interface.totals().0.bytes(), link_interface.totals().1.bytes(), link_interface.rate)
        };
        assert_eq!(update_and_read(&mut links, 5000, 100), (0, 0, Bitrate::ZERO));
        assert_eq!(update_and_read(&mut links, 130_000, 300), (125_000, 200, Bitrate::from_mbps(1)));
        // The counters were reset: the modem restarted, or another interface has its name and has a larger count
        // already.
        assert_eq!(update_and_read(&mut links, 10, 20), (125_010, 220, Bitrate::from_bits_per_sec(80)));
        links.apply_survey(&survey(interface(4, &["10.0.0.2"], Usability::Usable)));
        assert_eq!(update_and_read(&mut links, 50, 50), (125_060, 270, Bitrate::from_bits_per_sec(400)));
    }

    #[test]
    fn only_traffic_of_links_with_a_budget_is_recorded() {
        for budget in [None, Some(DataSize::from_mib(1))] {
            let config =
                LinkConfig { id: LinkId(0), name: "wwan0".into(), kind: LinkKind::Lte, metered: true, budget };
            let (mut links, mut budgets) = (LinkInterfaces::new(&[config], false), Budgets::default());
            links.update_counters(LinkId(0), 1000, 1000, Duration::from_secs(1));
            links.update_counters(LinkId(0), 4000, 1500, Duration::from_secs(1));
            links.record_budgets(&mut budgets);
            let expected = budget.map(|_| DataSize::from_bytes(3500));
            assert_eq!(links.get(LinkId(0)).unwrap().budget_used(&budgets), expected);
            assert_eq!(budgets.used("wwan0"), expected.unwrap_or_default());
        }
    }
}
