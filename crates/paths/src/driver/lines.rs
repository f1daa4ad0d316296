//! The links as interfaces of this host: numbers, addresses, what passes them.
//!
//! In: surveys, and the kernel's counters of an interface. Out: which links came up or went down, the address for a join,
//! the link of an address.
//!
//! 1. A link is up when its interface is on, has carrier and an address. A default route is not asked for: the
//!    source routing is the ground's, and the user has named the link. One that has come to lie below a VPN is down, so
//!    that nothing goes beside that, unless the user wants just this.
//! 2. One whose last address of before is gone while it is up has gone down and come up: what it carried is lost. Where it keeps
//!    addresses of the other family it stays up, and a new address of the family is reported ([`Turn::Address`]). So is a default
//!    route that joins waited for.
//! 3. What passed an interface counts from the moment at which the driver saw it first, and goes on counting when another
//!    interface of its name takes its place.

use std::net::IpAddr;

use marline_core::link::{LinkId, LinkKind};
use marline_core::paths::{IpFamily, LinkConfig};
use marline_core::units::{Bitrate, DataSize, Duration};
use marline_net::links::{DefaultRoute, Interface, InterfaceList, UnusedReason, Usability};

use super::super::Budgets;
use super::super::snapshot::LinkState;

/// All links.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) all: Vec<Line>,
    /// Addresses of this host that belong to no link: known, and not ours.
    others: Vec<IpAddr>,
    /// Links may be used beside a VPN.
    pub(super) beside_vpn: bool,
}

/// One link.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) link: LinkId,
    name: String,
    kind: LinkKind,
    /// The kernel's number; 0: there is no such interface now.
    pub(super) index: u32,
    pub(super) up: bool,
    /// All addresses, those that pass too: a connection that has one is this link's.
    pub(super) addresses: Vec<IpAddr>,
    /// Those that joins and endpoints start from.
    pub(super) lasting: Vec<IpAddr>,
    /// Whether it has had default routes of IPv4 and IPv6.
    had_routes: (bool, bool),
    /// The metrics of its default routes of IPv4 and IPv6, by which the kernel chooses for sockets that are not bound.
    metrics: (Option<u32>, Option<u32>),
    /// The MTU and the use of IPv4 that were reported last.
    reported: Option<(u16, bool)>,
    /// Whether it has a budget.
    budget: bool,
    /// The interface's counters when it was seen last: what came, what went.
    counted: Option<(u64, u64)>,
    received: DataSize,
    sent: DataSize,
    rate: Bitrate,
}

/// What became of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Up(LinkId),
    Down(LinkId),
    /// It was up, and has an address of a family that it had none of, or the default route that joins waited for.
    Address(LinkId),
}

impl Lines {
    pub(super) fn new(terms: &[LinkConfig], beside_vpn: bool) -> Self {
        Self { all: terms.iter().map(Line::new).collect(), others: Vec::new(), beside_vpn }
    }

    /// One more, under a number that [`Self::next`] has given. The next survey says whether it is up.
    pub(super) fn add(&mut self, terms: &LinkConfig) {
        self.all.push(Line::new(terms));
    }

    /// The number of the next one.
    pub(super) fn next(&self) -> LinkId {
        LinkId(self.all.iter().map(|line| line.link.0.saturating_add(1)).max().unwrap_or(0))
    }

    /// Whether the interface of this name is one of them.
    pub(super) fn has(&self, name: &str) -> bool {
        self.all.iter().any(|line| line.name == name)
    }

    /// Takes a survey, and tells what it changes, in order.
    pub(super) fn follow(&mut self, survey: &InterfaceList) -> Vec<Turn> {
        let mut turns = Vec::new();
        for line in &mut self.all {
            line.follow(survey.by_name(&line.name), self.beside_vpn, &mut turns);
        }
        let others = survey.interfaces.iter().filter(|interface| !self.has(&interface.name));
        self.others = others.flat_map(all_of).collect();
        turns
    }

    /// The interfaces whose MTU or whose use of IPv4 is another one than in the survey before: link, MTU, IPv4.
    pub(super) fn changed(&mut self, survey: &InterfaceList) -> Vec<(LinkId, u16, bool)> {
        let changed = |line: &mut Line| {
            let interface = survey.by_name(&line.name)?;
            let mtu = u16::try_from(interface.mtu).unwrap_or(u16::MAX);
            let now = (mtu, interface.addresses.iter().any(IpAddr::is_ipv4));
            (line.reported.replace(now) != Some(now)).then_some((line.link, now.0, now.1))
        };
        self.all.iter_mut().filter_map(changed).collect()
    }

    pub(super) fn line(&self, link: LinkId) -> Option<&Line> {
        self.all.iter().find(|line| line.link == link)
    }

    /// The link of a subflow: that of the interface that it is bound to, or that of its address. Where several links have the address,
    /// packets of a socket that is not bound leave by the default route of the lowest metric.
    pub(super) fn of(&self, address: IpAddr, index: u32) -> Option<&Line> {
        let bound = self.all.iter().find(|line| index != 0 && line.index == index);
        let has = |line: &&Line| line.addresses.contains(&address);
        bound.or_else(|| self.all.iter().filter(has).min_by_key(|line| (!line.up, line.metric(address))))
    }

    /// Whether the address is new to this host, as far as the last survey knows.
    pub(super) fn is_unknown(&self, address: IpAddr) -> bool {
        !address.is_loopback() && self.of(address, 0).is_none() && !self.others.contains(&address)
    }

    /// Writes down what passed those with a budget.
    pub(super) fn note(&self, budgets: &mut Budgets) {
        for line in self.all.iter().filter(|line| line.budget) {
            budgets.count(&line.name, line.received + line.sent);
        }
    }

    pub(super) fn count(&mut self, link: LinkId, received: u64, sent: u64, time: Duration) {
        if let Some(line) = self.all.iter_mut().find(|line| line.link == link) {
            line.count(received, sent, time);
        }
    }
}

impl Line {
    /// Down, until a survey says otherwise.
    fn new(terms: &LinkConfig) -> Self {
        Self {
            link: terms.id,
            name: terms.name.clone(),
            kind: terms.kind,
            index: 0,
            up: false,
            addresses: Vec::new(),
            lasting: Vec::new(),
            had_routes: (false, false),
            metrics: (None, None),
            reported: None,
            budget: terms.budget.is_some(),
            counted: None,
            received: DataSize::ZERO,
            sent: DataSize::ZERO,
            rate: Bitrate::ZERO,
        }
    }

    fn follow(&mut self, interface: Option<&Interface>, beside_vpn: bool, turns: &mut Vec<Turn>) {
        let up = interface.is_some_and(|interface| carries(interface, beside_vpn));
        let index = interface.map_or(0, |interface| interface.index);
        if index != self.index && self.counted.is_some() {
            // Another interface counts from zero, whatever its name.
            self.counted = Some((0, 0));
        }
        let addresses: Vec<IpAddr> = interface.into_iter().flat_map(all_of).collect();
        let lost = up && self.up && !self.addresses.iter().any(|address| addresses.contains(address));
        if self.up && (!up || lost || index != self.index) {
            turns.push(Turn::Down(self.link));
            self.up = false;
        }
        self.index = index;
        if up {
            // While it is down its addresses are remembered: what was bound to them lives on, and they may come back.
            self.addresses = addresses;
            let lasting = interface.map(|interface| interface.addresses.clone()).unwrap_or_default();
            let is_of_new_family =
                |address: &IpAddr| self.lasting.iter().all(|old| old.is_ipv4() != address.is_ipv4());
            let awaited: Vec<IpAddr> =
                lasting.iter().copied().filter(|address| self.awaits_route(*address)).collect();
            let is_new = lasting.iter().any(is_of_new_family);
            self.lasting = lasting;
            let metric = |route: Option<DefaultRoute>| route.map(|route| route.metric);
            self.metrics = interface
                .map_or((None, None), |interface| (metric(interface.route_v4), metric(interface.route_v6)));
            self.had_routes =
                (self.had_routes.0 | self.metrics.0.is_some(), self.had_routes.1 | self.metrics.1.is_some());
            if !self.up {
                turns.push(Turn::Up(self.link));
            } else if is_new || awaited.into_iter().any(|address| !self.awaits_route(address)) {
                turns.push(Turn::Address(self.link));
            }
        }
        self.up = up;
    }

    /// The address for a subflow of this family, and of the same reach as the server, as far as there is one.
    pub(super) fn address_for(&self, server: IpAddr) -> Option<IpAddr> {
        let same = |address: &&IpAddr| address.is_ipv4() == server.is_ipv4();
        let reach = |address: &&IpAddr| is_local(**address) == is_local(server);
        let mut fit = self.lasting.iter().filter(same);
        fit.clone().find(reach).or_else(|| fit.next()).copied()
    }

    /// The family of its addresses; none: it has both, or none that lasts.
    pub(super) fn family(&self) -> Option<IpFamily> {
        let family = IpFamily::of(*self.lasting.first()?);
        self.lasting.iter().all(|address| IpFamily::of(*address) == family).then_some(family)
    }

    /// Whether its default route of the address's family is missing and was there before: it comes some time after the address. Until then
    /// the kernel takes each IPv4 destination for a neighbour, and a SYN waits three seconds for an answer to ARP.
    pub(super) fn awaits_route(&self, address: IpAddr) -> bool {
        let ((v4, v6), (had_v4, had_v6)) = (self.metrics, self.had_routes);
        if address.is_ipv4() { v4.is_none() && had_v4 } else { v6.is_none() && had_v6 }
    }

    fn count(&mut self, received: u64, sent: u64, time: Duration) {
        let last = self.counted.replace((received, sent)).unwrap_or((received, sent));
        // Counters that fall have begun anew, from zero.
        let last = if received < last.0 || sent < last.1 { (0, 0) } else { last };
        let came = DataSize::from_bytes(received - last.0);
        self.rate = came / time;
        self.received += came;
        self.sent += DataSize::from_bytes(sent - last.1);
    }

    /// The metric of its default route of the address's family; one without such a route comes last.
    fn metric(&self, address: IpAddr) -> u32 {
        let (v4, v6) = self.metrics;
        if address.is_ipv4() { v4 } else { v6 }.unwrap_or(u32::MAX)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What passed it: came, and went.
    pub(super) fn passed(&self) -> (DataSize, DataSize) {
        (self.received, self.sent)
    }

    /// What of its budget was used, if it has one: by this run, and by those before.
    pub(super) fn used(&self, budgets: &Budgets) -> Option<DataSize> {
        self.budget.then(|| budgets.used(&self.name))
    }

    pub(super) fn snapshot(&self, subflows: u32, budgets: &Budgets) -> LinkState {
        LinkState {
            link: self.link,
            name: self.name.clone(),
            kind: self.kind,
            up: self.up,
            received: self.received,
            sent: self.sent,
            rate: self.rate,
            budget_used: self.used(budgets),
            subflows,
        }
    }
}

fn carries(interface: &Interface, beside_vpn: bool) -> bool {
    match &interface.usability {
        Usability::Usable => true,
        Usability::Unused(UnusedReason::BelowVpn(_)) if !beside_vpn => false,
        Usability::Unused(reason) => reason.can_be_overridden() && !interface.addresses.is_empty(),
    }
}

fn all_of(interface: &Interface) -> impl Iterator<Item = IpAddr> {
    interface.addresses.iter().chain(&interface.transient_addresses).copied()
}

/// An address that only a site knows: `fc00::/7` (RFC 4193). IPv4's private ones reach everything through NAT.
fn is_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.segments()[0] & 0xfe00 == 0xfc00)
}

#[cfg(test)]
mod tests {
    use marline_net::links::Subnet;

    use super::*;

    fn interface(index: u32, addresses: &[&str], verdict: Usability) -> Interface {
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let networks = addresses.iter().map(|address| Subnet { address: *address, prefix_len: 24 }).collect();
        Interface {
            name: "wlan0".into(),
            index,
            kind: LinkKind::Wifi,
            addresses,
            transient_addresses: Vec::new(),
            subnets: networks,
            route_v4: None,
            route_v6: None,
            metered: None,
            mtu: 1500,
            emulated: false,
            usability: verdict,
        }
    }

    fn lines() -> Lines {
        lines_that(false)
    }

    fn lines_that(beside_vpn: bool) -> Lines {
        let terms =
            LinkConfig { id: LinkId(0), name: "wlan0".into(), kind: LinkKind::Wifi, metered: false, budget: None };
        Lines::new(&[terms], beside_vpn)
    }

    fn survey(interface: Interface) -> InterfaceList {
        InterfaceList { interfaces: vec![interface], vpn: None }
    }

    #[test]
    fn a_default_route_that_was_there_is_awaited_and_one_that_never_was_is_not() {
        let mut lines = lines();
        let address = IpAddr::from([10, 0, 0, 2]);
        let without = || interface(3, &["10.0.0.2"], Usability::Unused(UnusedReason::NoDefaultRoute));
        let route = Some(DefaultRoute { metric: 100, table: 254, gateway: None });
        let awaits = |lines: &Lines| lines.line(LinkId(0)).unwrap().awaits_route(address);
        lines.follow(&survey(without()));
        assert!(!awaits(&lines));
        lines.follow(&survey(Interface { route_v4: route, ..interface(3, &["10.0.0.2"], Usability::Usable) }));
        assert!(!awaits(&lines));
        // Down and up again: the address is there before the route is.
        lines.follow(&survey(interface(3, &["10.0.0.2"], Usability::Unused(UnusedReason::Down))));
        lines.follow(&survey(without()));
        assert!(awaits(&lines) && !lines.line(LinkId(0)).unwrap().awaits_route("fd00::2".parse().unwrap()));
        let back = survey(Interface { route_v4: route, ..interface(3, &["10.0.0.2"], Usability::Usable) });
        assert_eq!(lines.follow(&back), [Turn::Address(LinkId(0))]);
        assert_eq!(lines.follow(&back), []);
    }

    #[test]
    fn a_link_is_up_while_its_interface_can_carry_anything() {
        let mut lines = lines();
        let no_route = || Usability::Unused(UnusedReason::NoDefaultRoute);
        assert_eq!(lines.follow(&survey(interface(3, &["10.0.0.2"], no_route()))), [Turn::Up(LinkId(0))]);
        assert_eq!(lines.follow(&survey(interface(3, &["10.0.0.2", "10.0.0.3"], Usability::Usable))), []);
        let down = survey(interface(3, &["10.0.0.2"], Usability::Unused(UnusedReason::NoCarrier)));
        assert_eq!(lines.follow(&down), [Turn::Down(LinkId(0))]);
        assert_eq!(lines.follow(&InterfaceList { interfaces: vec![], vpn: None }), []);
    }

    #[test]
    fn a_lease_that_changes_beside_an_address_of_the_other_family_is_told() {
        let mut lines = lines();
        let mut follow = |addresses: &[&str]| lines.follow(&survey(interface(3, addresses, Usability::Usable)));
        assert_eq!(follow(&["10.0.0.2", "2001:db8::2"]), [Turn::Up(LinkId(0))]);
        assert_eq!(follow(&["2001:db8::2"]), []);
        assert_eq!(follow(&["2001:db8::2", "10.0.0.9"]), [Turn::Address(LinkId(0))]);
        assert_eq!(follow(&["2001:db8::7", "2001:db8::2", "10.0.0.9"]), []);
        assert_eq!(follow(&["10.0.0.9"]), []);
        assert_eq!(follow(&["10.0.0.9", "2001:db8:1::2"]), [Turn::Address(LinkId(0))]);
    }

    #[test]
    fn below_a_vpn_a_link_is_down_unless_it_may_go_beside_it() {
        let below = || Usability::Unused(UnusedReason::BelowVpn("tun0".into()));
        let turns = |mut lines: Lines| {
            let mut turns = lines.follow(&survey(interface(3, &["10.0.0.2"], Usability::Usable)));
            turns.extend(lines.follow(&survey(interface(3, &["10.0.0.2"], below()))));
            turns.extend(lines.follow(&survey(interface(3, &["10.0.0.2"], Usability::Usable))));
            turns
        };
        let link = LinkId(0);
        assert_eq!(turns(lines()), [Turn::Up(link), Turn::Down(link), Turn::Up(link)]);
        assert_eq!(turns(lines_that(true)), [Turn::Up(link)]);
    }

    #[test]
    fn another_address_alone_is_down_and_up_again() {
        let mut lines = lines();
        lines.follow(&survey(interface(3, &["10.0.0.2"], Usability::Usable)));
        let turns = lines.follow(&survey(interface(3, &["10.0.0.77"], Usability::Usable)));
        assert_eq!(turns, [Turn::Down(LinkId(0)), Turn::Up(LinkId(0))]);
        assert_eq!(lines.of("10.0.0.77".parse().unwrap(), 0).map(|line| line.link), Some(LinkId(0)));
        assert!(lines.is_unknown("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn a_join_leaves_from_an_address_of_the_servers_family_and_reach() {
        let mut lines = lines();
        let all = ["10.0.0.2", "fd00::2", "2001:db8::2"];
        lines.follow(&survey(interface(3, &all, Usability::Usable)));
        let line = lines.line(LinkId(0)).unwrap();
        let from = |server: &str| line.address_for(server.parse().unwrap()).unwrap().to_string();
        assert_eq!(from("192.0.2.1"), "10.0.0.2");
        assert_eq!(from("2001:db8:9::1"), "2001:db8::2");
        assert_eq!(from("fd00:9::1"), "fd00::2");
    }

    #[test]
    fn a_passing_address_is_the_links_and_no_join_starts_from_it() {
        let mut lines = lines();
        let with = |lasting: &[&str], passing: &[&str]| Interface {
            transient_addresses: passing.iter().map(|address| address.parse().unwrap()).collect(),
            ..interface(3, lasting, Usability::Usable)
        };
        lines.follow(&survey(with(&["2001:db8::2"], &["2001:db8::77"])));
        let link = |lines: &Lines, address: &str| lines.of(address.parse().unwrap(), 0).map(|line| line.link);
        let from = |lines: &Lines| {
            lines.line(LinkId(0)).unwrap().address_for("2001:db8:9::1".parse().unwrap()).map(|a| a.to_string())
        };
        assert_eq!(link(&lines, "2001:db8::77"), Some(LinkId(0)));
        assert_eq!(from(&lines).as_deref(), Some("2001:db8::2"));
        // The network is numbered anew: what has the old address goes on, and joins start from the new one.
        assert_eq!(lines.follow(&survey(with(&["2001:db8:5::2"], &["2001:db8::2"]))), []);
        assert_eq!(link(&lines, "2001:db8::2"), Some(LinkId(0)));
        assert_eq!(from(&lines).as_deref(), Some("2001:db8:5::2"));
    }

    #[test]
    fn traffic_counts_from_the_first_look_and_goes_on_over_another_interface() {
        let mut lines = lines();
        lines.follow(&survey(interface(3, &["10.0.0.2"], Usability::Usable)));
        let second = Duration::from_secs(1);
        let count = |lines: &mut Lines, received, sent| {
            lines.count(LinkId(0), received, sent, second);
            let line = lines.line(LinkId(0)).unwrap();
            (line.passed().0.bytes(), line.passed().1.bytes(), line.rate)
        };
        assert_eq!(count(&mut lines, 5000, 100), (0, 0, Bitrate::ZERO));
        assert_eq!(count(&mut lines, 130_000, 300), (125_000, 200, Bitrate::from_mbps(1)));
        // Its counters begin anew: the modem was reset, or another interface has its name and has counted further already.
        assert_eq!(count(&mut lines, 10, 20), (125_010, 220, Bitrate::from_bits_per_sec(80)));
        lines.follow(&survey(interface(4, &["10.0.0.2"], Usability::Usable)));
        assert_eq!(count(&mut lines, 50, 50), (125_060, 270, Bitrate::from_bits_per_sec(400)));
    }

    #[test]
    fn only_what_passes_a_link_with_a_budget_is_kept() {
        for budget in [None, Some(DataSize::from_mib(1))] {
            let terms =
                LinkConfig { id: LinkId(0), name: "wwan0".into(), kind: LinkKind::Lte, metered: true, budget };
            let (mut lines, mut budgets) = (Lines::new(&[terms], false), Budgets::default());
            lines.count(LinkId(0), 1000, 1000, Duration::from_secs(1));
            lines.count(LinkId(0), 4000, 1500, Duration::from_secs(1));
            lines.note(&mut budgets);
            let used = budget.map(|_| DataSize::from_bytes(3500));
            assert_eq!(lines.line(LinkId(0)).unwrap().used(&budgets), used);
            assert_eq!(budgets.used("wwan0"), used.unwrap_or_default());
        }
    }
}
