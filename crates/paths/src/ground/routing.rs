//! Source routing: what has a link's address leaves by that link.
//!
//! In: a survey, the links that may be used, and rules and routes of ours that are there already. Out: the steps that
//! make them fit; carried out over rtnetlink.
//!
//! 1. A subflow starts from an address of its link, but the kernel routes by destination: without a rule its packets
//!    would leave by the best default route, with the wrong address. So each such address gets two rules: what the main
//!    table knows better than by a default route goes its way (neighbours, containers, other offices), and all the rest
//!    by a table of the link's own, which holds one default route over its gateway.
//! 2. Only where it is needed: an address whose packets the kernel would send over its link anyway gets nothing.
//! 3. Everything carries [`PROTOCOL`] as its origin, and rules and tables have numbers of a range of their own. What bears
//!    both and is not wanted is removed, whoever left it there: a crashed run needs no other record. An origin alone is
//!    nobody's property, and what others do with it is left alone.
//! 4. Rules and routes that are there and still wanted are not touched, so that connections notice nothing of a restart.
//!    A link with a smaller path MTU than its interface's gets its way in any case: the route of its table bears the MTU.
//! 5. An address that several interfaces have (modems of one brand: all 192.168.8.100 behind 192.168.8.1) does not identify the link.
//!    Its rules hold for sockets that are bound to the device, as subflows are. Other sockets follow the main table.
//! 6. Trouble with one link is told and costs that link.
//! 7. What somebody else removes is put back, within bounds ([`Contest`]).

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use marline_core::wire::netlink::{Message, Request, Route, SourceRule, family, messages};
use marline_net::links::{
    INTERNET_PROBE_V4, INTERNET_PROBE_V6, Interface, InterfaceList, RTPROT_MARLINE, UnusedReason, Usability,
};
use marline_sys::netlink::RouteSocket;

use super::contest::{Contest, Place};
use crate::forward::detour;

/// What an address needs: a way of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Road {
    address: IpAddr,
    link: u32,
    gateway: Option<IpAddr>,
    /// The name of the interface, where the address alone does not identify it.
    device: Option<String>,
    /// Where larger packets are lost on the way.
    mtu: Option<u16>,
}

/// A step towards what is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A route into a link's table, in place of one that is there.
    Install(Route),
    /// A rule.
    Add(SourceRule),
    /// A rule of ours that nobody needs any more.
    RemoveRule(SourceRule),
    /// A route of ours that nobody needs any more.
    RemoveRoute(Route),
}

/// Which interfaces may be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roads {
    /// Their names.
    pub links: Vec<String>,
    /// The user has named them, so that they may go beside a VPN.
    pub named: bool,
}

impl Roads {
    /// The addresses that may need a way of their own.
    fn of(&self, survey: &InterfaceList) -> Vec<Road> {
        let mut roads = Vec::new();
        for interface in survey.interfaces.iter().filter(|interface| self.may(interface)) {
            for address in interface.addresses.iter().chain(&interface.transient_addresses) {
                let route = if address.is_ipv4() { interface.route_v4 } else { interface.route_v6 };
                roads.extend(route.map(|route| Road {
                    address: *address,
                    link: interface.index,
                    gateway: route.gateway,
                    device: is_shared(survey, *address).then(|| interface.name.clone()),
                    mtu: None,
                }));
            }
        }
        roads
    }

    fn may(&self, interface: &Interface) -> bool {
        let leads = match &interface.usability {
            Usability::Usable => true,
            Usability::Unused(UnusedReason::Loopback) => false,
            Usability::Unused(reason) => self.named && reason.can_be_overridden(),
        };
        leads && self.links.contains(&interface.name)
    }
}

/// Whether several interfaces have this address.
fn is_shared(survey: &InterfaceList, address: IpAddr) -> bool {
    let has = |interface: &&Interface| {
        interface.addresses.iter().chain(&interface.transient_addresses).any(|a| *a == address)
    };
    survey.interfaces.iter().filter(has).count() > 1
}

/// The steps from what there is to what is wanted: routes before the rules that lead to them, and rules away before
/// their routes.
fn plan(roads: &[Road], rules: &[SourceRule], routes: &[Route]) -> Vec<Step> {
    let mut wanted_rules: Vec<SourceRule> = roads.iter().flat_map(Road::rules).collect();
    let mut wanted_routes: Vec<Route> = Vec::new();
    for route in roads.iter().map(Road::route) {
        if !wanted_routes.iter().any(|other| same_place(other, &route)) {
            wanted_routes.push(route);
        }
    }
    wanted_rules.dedup();
    let mut steps: Vec<Step> = Vec::new();
    for route in &wanted_routes {
        let is_there = |other: &Route| {
            same_place(other, route)
                && (other.interface, other.gateway, other.mtu) == (route.interface, route.gateway, route.mtu)
        };
        if !routes.iter().any(is_there) {
            steps.push(Step::Install(route.clone()));
        }
    }
    let missing = |rule: &&SourceRule| !rules.contains(rule);
    steps.extend(wanted_rules.iter().filter(missing).map(|rule| Step::Add(rule.clone())));
    let surplus = |rule: &&SourceRule| !wanted_rules.contains(rule);
    steps.extend(rules.iter().filter(surplus).map(|rule| Step::RemoveRule(rule.clone())));
    for route in routes {
        // A route in the place of a wanted one was replaced, except where it was over another link: IPv6 then keeps
        // both.
        let is_wanted = |other: &Route| same_place(other, route) && other.interface == route.interface;
        if !wanted_routes.iter().any(is_wanted) {
            steps.push(Step::RemoveRoute(route.clone()));
        }
    }
    steps
}

/// Whether a run has made it: its origin, its place, and where it leads to.
fn is_rule_of_ours(rule: &SourceRule) -> bool {
    let leads_out = rule.priority == PRIORITY + 1 && rule.table > TABLES;
    let leads_to_main = rule.priority == PRIORITY && rule.table == Route::MAIN;
    rule.protocol == RTPROT_MARLINE && (leads_out || leads_to_main)
}

/// The same of a route: it is in the table of its link.
fn is_route_of_ours(route: &Route) -> bool {
    let table = route.interface.map(|link| TABLES.saturating_add(link));
    route.protocol == RTPROT_MARLINE && table == Some(route.table)
}

impl Step {
    /// Where it puts something; none: it removes.
    fn place(&self) -> Option<Place> {
        match self {
            Self::Install(route) => Some(Place::Route(route.family, route.table)),
            Self::Add(rule) => Some(Place::Rule(rule.source.0, rule.priority, rule.oif.clone())),
            Self::RemoveRule(_) | Self::RemoveRoute(_) => None,
        }
    }
}

/// Whether one takes the other's place.
fn same_place(a: &Route, b: &Route) -> bool {
    (a.family, a.table) == (b.family, b.table)
}

impl Road {
    fn table(&self) -> u32 {
        TABLES.saturating_add(self.link)
    }

    fn rules(&self) -> [SourceRule; 2] {
        let (bits, defaults) = if self.address.is_ipv4() { (32, 1) } else { (128, 3) };
        let rule = |table, priority| SourceRule {
            protocol: RTPROT_MARLINE,
            oif: self.device.clone(),
            ..SourceRule::new((self.address, bits), table, priority)
        };
        [
            SourceRule { suppress_prefixlength: Some(defaults), ..rule(Route::MAIN, PRIORITY) },
            rule(self.table(), PRIORITY + 1),
        ]
    }

    fn route(&self) -> Route {
        let family = if self.address.is_ipv4() { family::V4 } else { family::V6 };
        let route = Route::default_via_interface(family, self.link);
        // Every link of IPv6 carries packets of 1280 bytes (RFC 8200, section 5).
        let least = if self.address.is_ipv4() { 0 } else { 1280 };
        let mtu = self.mtu.map(|mtu| u32::from(mtu).max(least));
        Route { gateway: self.gateway, mtu, table: self.table(), protocol: RTPROT_MARLINE, ..route }
    }
}

/// chosen: behind the rules of tailscale (5210 to 5270), whose exit node is to win, and before those of wg-quick and of
/// the main table (32764 to 32766).
const PRIORITY: u32 = 20_000;
/// The table of a link is this and its number. chosen: far from those that people and programs count up from 1, and from
/// WireGuard's 51820.
const TABLES: u32 = 7_310_000;
// In the first rule: prefixes of up to 1 bit (IPv4) and 3 bits (IPv6) are default routes or parts of one (`0.0.0.0/1`,
// `2000::/3`), as `marline_net::links` takes them.

/// The rules and routes that are there.
#[derive(Debug)]
pub(super) struct Kernel {
    socket: RouteSocket,
}

impl Kernel {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { socket: RouteSocket::open()? })
    }

    /// Makes rules and routes fit the survey. Returns a line for each step that was refused.
    ///
    /// # Errors
    /// What is there cannot be read.
    pub(super) fn follow(
        &self,
        roads: &Roads,
        survey: &InterfaceList,
        mtus: &BTreeMap<String, u16>,
        contest: &mut Contest,
    ) -> io::Result<Vec<String>> {
        let (rules, routes) = self.ours()?;
        let roads = self.needed(roads, survey, mtus, &rules);
        let name =
            |index: u32| survey.interfaces.iter().find(|i| i.index == index).map_or("?", |i| i.name.as_str());
        let mut steps = plan(&roads, &rules, &routes);
        // A route that takes the place of another one was not removed by anybody.
        let is_gap = |place: &Place| !routes.iter().any(|route| *place == Place::Route(route.family, route.table));
        let missing = steps.iter().filter_map(Step::place).filter(is_gap).collect();
        let refused = contest.refuses(Instant::now(), &missing);
        steps.retain(|step| step.place().is_none_or(|place| !refused.contains(&place)));
        contest.holds(plan(&roads, &[], &[]).iter().filter_map(Step::place).collect());
        let mut troubles = self.carry_out(steps, name);
        if !refused.is_empty() {
            troubles.push(CONTESTED.to_owned());
        }
        Ok(troubles)
    }

    /// The steps that would make rules and routes fit the survey.
    ///
    /// # Errors
    /// What is there cannot be read.
    pub(super) fn planned(&self, roads: &Roads, survey: &InterfaceList) -> io::Result<Vec<Step>> {
        let (rules, routes) = self.ours()?;
        Ok(plan(&self.needed(roads, survey, &BTreeMap::new(), &rules), &rules, &routes))
    }

    fn needed(
        &self,
        roads: &Roads,
        survey: &InterfaceList,
        mtus: &BTreeMap<String, u16>,
        rules: &[SourceRule],
    ) -> Vec<Road> {
        let mtu = |road: &Road| {
            let interface = survey.interfaces.iter().find(|interface| interface.index == road.link)?;
            mtus.get(&interface.name).copied()
        };
        let has_rules = |road: &Road| rules.iter().any(|rule| rule.source.0 == road.address && rule.oif.is_none());
        // An address that has its rules keeps them: with them in place the question would have no other answer.
        let leaves = |road: &Road| self.exit(road.address) == Some(road.link);
        let needs = |road: &Road| road.mtu.is_some() || road.device.is_some() || has_rules(road) || !leaves(road);
        let roads = roads.of(survey).into_iter().map(|road| Road { mtu: mtu(&road), ..road });
        roads.filter(needs).collect()
    }

    /// Takes away all that is ours. Returns how many rules and routes that were, and a line for each that stays.
    ///
    /// # Errors
    /// What is there cannot be read.
    pub(super) fn clear(&self) -> io::Result<(usize, Vec<String>)> {
        let (rules, routes) = self.ours()?;
        let mut troubles = self.carry_out(plan(&[], &rules, &routes), |_| "?");
        let detours = self.clear_detour().unwrap_or_else(|error| {
            troubles.push(format!("the detour of --transparent cannot be removed: {error}"));
            0
        });
        Ok(((rules.len() + routes.len() + detours).saturating_sub(troubles.len()), troubles))
    }

    /// Takes away the way to a forwarder that is no more. Returns how many rules and routes that were.
    ///
    /// # Errors
    /// What is there cannot be read, or not removed.
    pub(super) fn clear_detour(&self) -> io::Result<usize> {
        detour::clear(&self.socket, &detour::HOST)
    }

    /// How many rules and routes bear our number.
    ///
    /// # Errors
    /// What is there cannot be read.
    pub(super) fn count(&self) -> io::Result<usize> {
        let (rules, routes) = self.ours()?;
        Ok(rules.len() + routes.len() + detour::there(&self.socket, &detour::HOST)?)
    }

    /// What bears our number, in our places; the detour of a forwarder is the forwarder's.
    fn ours(&self) -> io::Result<(Vec<SourceRule>, Vec<Route>)> {
        let rules = self.socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
        let routes = self.socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(2))?;
        let rules = messages(&rules).filter_map(|message: Message<'_>| SourceRule::parse(&message));
        let routes = messages(&routes).filter_map(|message: Message<'_>| Route::parse(&message));
        Ok((rules.filter(is_rule_of_ours).collect(), routes.filter(is_route_of_ours).collect()))
    }

    /// The link by which packets from this address to the world would leave.
    fn exit(&self, from: IpAddr) -> Option<u32> {
        exit_of(&self.socket, from, None)
    }

    fn carry_out<'a>(&self, steps: Vec<Step>, name: impl Fn(u32) -> &'a str) -> Vec<String> {
        let mut troubles = Vec::new();
        for step in steps {
            tracing::debug!(?step, "routing");
            let (request, passable) = match &step {
                Step::Install(route) => (route.install(), &[][..]),
                Step::Add(rule) => (rule.add(), &[EXISTS][..]),
                // It went with its link or its address.
                Step::RemoveRule(rule) => (rule.remove(), &[NO_ENTRY][..]),
                Step::RemoveRoute(route) => (route.remove(), &[NO_ENTRY, NO_ROUTE, NO_DEVICE][..]),
            };
            if let Err(error) = super::step().and_then(|()| self.socket.request(&request.finish(3)))
                && !error.raw_os_error().is_some_and(|number| passable.contains(&number))
            {
                troubles.push(match step {
                    Step::Install(Route { interface: link, gateway, .. }) => format!(
                        "{}: no default route{} can be set for what starts there: {error}",
                        link.map_or("?", &name),
                        gateway.map(|gateway| format!(" by {gateway}")).unwrap_or_default(),
                    ),
                    Step::Add(rule) => format!(
                        "no rule for what comes from {}{}: {error}",
                        rule.source.0,
                        rule.oif.map(|device| format!(" over {device}")).unwrap_or_default()
                    ),
                    Step::RemoveRule(rule) => {
                        format!("the rule for {} cannot be removed: {error}", rule.source.0)
                    }
                    Step::RemoveRoute(route) => {
                        format!("the routes of table {} cannot be removed: {error}", route.table)
                    }
                });
            }
        }
        troubles
    }
}

/// What is said of a fight.
const CONTESTED: &str = "another program removes rules or routes of marline again and again: they are put back a few \
     times a minute, and connections over the other links suffer meanwhile; `ip monitor rule route` shows when, \
     `ip rule` rules 20000 and 20001 are the ones to leave alone";

/// The link by which packets from this address to the world would leave; none: they would not. `bound`: the interface that their
/// socket is bound to.
pub(crate) fn exit_of(socket: &RouteSocket, from: IpAddr, bound: Option<u32>) -> Option<u32> {
    let far = if from.is_ipv4() { IpAddr::V4(INTERNET_PROBE_V4) } else { IpAddr::V6(INTERNET_PROBE_V6) };
    let answer = socket.request(&Route::lookup_via_interface(Some(from), far, bound).finish(4)).ok()?;
    messages(&answer).find_map(|message| Route::parse(&message))?.interface
}

const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();
const NO_ROUTE: i32 = rustix::io::Errno::SRCH.raw_os_error();
const NO_DEVICE: i32 = rustix::io::Errno::NODEV.raw_os_error();
const EXISTS: i32 = rustix::io::Errno::EXIST.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    fn road(address: &str, link: u32, gateway: &str) -> Road {
        Road { address: address.parse().unwrap(), link, gateway: gateway.parse().ok(), device: None, mtu: None }
    }

    /// What is there after these steps.
    fn after(
        steps: Vec<Step>,
        mut rules: Vec<SourceRule>,
        mut routes: Vec<Route>,
    ) -> (Vec<SourceRule>, Vec<Route>) {
        for step in steps {
            match step {
                Step::Install(route) => {
                    routes.retain(|other| !(same_place(other, &route) && other.interface == route.interface));
                    routes.push(route);
                }
                Step::Add(rule) => rules.push(rule),
                Step::RemoveRule(rule) => rules.retain(|other| *other != rule),
                Step::RemoveRoute(route) => routes.retain(|other| *other != route),
            }
        }
        (rules, routes)
    }

    #[test]
    fn an_address_gets_two_rules_and_its_link_one_route_before_them() {
        let roads = [road("10.2.0.2", 4, "10.2.0.1"), road("10.2.0.3", 4, "10.2.0.1")];
        let steps = plan(&roads, &[], &[]);
        assert!(
            matches!(&steps[0], Step::Install(route) if route.table == TABLES + 4 && route.protocol == RTPROT_MARLINE)
        );
        assert_eq!(steps.len(), 1 + 2 * 2, "{steps:?}");
        let (rules, routes) = after(steps, Vec::new(), Vec::new());
        assert_eq!(
            (rules[0].suppress_prefixlength, rules[0].table, rules[1].table),
            (Some(1), Route::MAIN, TABLES + 4)
        );
        assert_eq!(plan(&roads, &rules, &routes), [], "what is there is not touched");
    }

    #[test]
    fn a_new_address_and_a_new_gateway_take_the_place_of_the_old_ones() {
        let (rules, routes) = after(plan(&[road("10.2.0.2", 4, "10.2.0.1")], &[], &[]), vec![], vec![]);
        let next = [road("10.7.0.9", 4, "10.7.0.1")];
        let steps = plan(&next, &rules, &routes);
        assert_eq!(steps.len(), 1 + 2 + 2, "{steps:?}");
        let (rules, routes) = after(steps, rules, routes);
        assert!(rules.iter().all(|rule| rule.source.0 == next[0].address));
        assert_eq!(routes.iter().map(|route| route.gateway).collect::<Vec<_>>(), [next[0].gateway]);
        let (rules, routes) = after(plan(&[], &rules, &routes), rules, routes);
        assert_eq!((rules, routes), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_smaller_mtu_replaces_the_route_and_is_undone() {
        let plain = [road("10.2.0.2", 4, "10.2.0.1"), road("2001:db8::2", 4, "fe80::1")];
        let small = plain.clone().map(|road| Road { mtu: Some(1024), ..road });
        let (rules, routes) = after(plan(&plain, &[], &[]), vec![], vec![]);
        let steps = plan(&small, &rules, &routes);
        assert_eq!(steps.len(), 2, "{steps:?}");
        let (rules, routes) = after(steps, rules, routes);
        assert_eq!(routes.iter().map(|route| route.mtu).collect::<Vec<_>>(), [Some(1024), Some(1280)]);
        assert_eq!(plan(&small, &rules, &routes), []);
        let (_, routes) = after(plan(&plain, &rules, &routes), rules, routes);
        assert!(routes.len() == 2 && routes.iter().all(|route| route.mtu.is_none()));
    }

    #[test]
    fn what_a_crashed_run_left_goes_unless_it_is_wanted() {
        let both = [road("10.2.0.2", 4, "10.2.0.1"), road("2001:db8::2", 9, "fe80::1")];
        let (rules, routes) = after(plan(&both, &[], &[]), vec![], vec![]);
        let steps = plan(&both[..1], &rules, &routes);
        assert_eq!(steps.len(), 3, "{steps:?}");
        assert!(matches!(steps[0], Step::RemoveRule(_)) && matches!(steps[2], Step::RemoveRoute(_)), "{steps:?}");
    }

    #[test]
    fn what_a_run_makes_is_its_own_and_an_origin_alone_is_nobodys() {
        let (rules, routes) = after(plan(&[road("10.2.0.2", 4, "10.2.0.1")], &[], &[]), vec![], vec![]);
        assert!(rules.iter().all(is_rule_of_ours) && routes.iter().all(is_route_of_ours));
        for rule in &rules {
            assert!(!is_rule_of_ours(&SourceRule { protocol: 4, ..rule.clone() }));
            assert!(!is_rule_of_ours(&SourceRule { priority: 500, ..rule.clone() }));
            assert!(!is_rule_of_ours(&SourceRule { table: 55, ..rule.clone() }));
        }
        for table in [55, Route::MAIN, TABLES, TABLES + 5] {
            assert!(!is_route_of_ours(&Route { table, ..routes[0].clone() }), "{table}");
        }
        assert!(!is_route_of_ours(&Route { protocol: 4, ..routes[0].clone() }));
    }

    #[test]
    fn links_of_one_address_have_rules_of_their_own_devices_and_no_rule_of_the_address() {
        let twin =
            |link, name: &str| Road { device: Some(name.into()), ..road("192.168.8.100", link, "192.168.8.1") };
        let twins = [twin(4, "wwan0"), twin(5, "wwan1"), twin(6, "wwan2")];
        let (rules, routes) = after(plan(&twins, &[], &[]), vec![], vec![]);
        assert_eq!((rules.len(), routes.len()), (6, 3));
        for (name, table) in [("wwan0", TABLES + 4), ("wwan1", TABLES + 5), ("wwan2", TABLES + 6)] {
            let of_device = rules.iter().filter(|rule| rule.oif.as_deref() == Some(name));
            assert_eq!(of_device.map(|rule| rule.table).collect::<Vec<_>>(), [Route::MAIN, table]);
        }
        let steps = plan(&[road("192.168.8.100", 4, "192.168.8.1")], &rules, &routes);
        let removed = steps.iter().filter(|step| matches!(step, Step::RemoveRule(_))).count();
        assert_eq!((removed, steps.len()), (6, 6 + 2 + 2), "{steps:?}");
    }

    #[test]
    fn two_links_of_one_subnet_have_a_table_each() {
        let roads = [road("192.168.8.100", 4, "192.168.8.1"), road("192.168.8.101", 5, "192.168.8.1")];
        let (rules, routes) = after(plan(&roads, &[], &[]), vec![], vec![]);
        assert_eq!((rules.len(), routes.len()), (4, 2));
        assert_ne!(routes[0].table, routes[1].table);
    }
}
