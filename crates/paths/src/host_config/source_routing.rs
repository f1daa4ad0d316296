//! Source routing: packets with the address of a link leave by that link.
//!
//! A plan compares the needed rules and routes with marline's existing ones and yields the steps between them, which
//! are executed over rtnetlink.
//!
//! 1. A subflow starts from an address of its link, but the kernel routes by destination. Without a rule its packets
//!    would leave by the best default route, with the wrong address. Each such address therefore gets two rules. The
//!    first one uses the main table except for its default routes (neighbors, containers, other offices). The second
//!    one uses the link's own table, which has one default route over the link's gateway.
//! 2. An address whose packets the kernel would send over its link anyway gets no rules.
//! 3. Rules and routes carry [`RTPROT_MARLINE`] as their origin, and their priorities and tables are in a range of
//!    their own. An object with both that is not needed is removed, even if another run made it, so a crash needs no
//!    other record. Objects with the origin alone belong to others and are kept.
//! 4. Existing rules and routes that are still needed are not touched, so that connections notice nothing of a
//!    restart. A link whose path MTU is smaller than that of its interface always gets its own route, which carries
//!    the MTU.
//! 5. An address that several interfaces have (modems of one brand: all 192.168.8.100 behind 192.168.8.1) does not
//!    identify the link. Its rules apply to sockets that are bound to the device, as subflows are. Other sockets use
//!    the main table.
//! 6. An error with one link is reported and affects only that link.
//! 7. Rules and routes that another program removes are restored, with a limit ([`RouteRepairLimiter`]).

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use marline_core::wire::netlink::{Message, Request, Route, SourceRule, family, messages};
use marline_net::links::{
    INTERNET_PROBE_V4, INTERNET_PROBE_V6, Interface, InterfaceList, RTPROT_MARLINE, UnusedReason, Usability,
};
use marline_sys::netlink::RouteSocket;

use super::route_repair::{RouteRepairLimiter, RoutingKey};
use crate::transparent::policy_route;

/// A route that packets from one address need.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LinkRoute {
    address: IpAddr,
    interface: u32,
    gateway: Option<IpAddr>,
    /// Name of the interface, if the address alone does not identify it.
    device: Option<String>,
    /// Path MTU, if larger packets are lost on the path.
    mtu: Option<u16>,
}

/// A change of the kernel's routing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RoutingStep {
    /// Sets the route in a link's table, replacing an existing one.
    SetRoute(Route),
    AddRule(SourceRule),
    /// Removes a rule of marline that is not needed any more.
    RemoveRule(SourceRule),
    /// Removes a route of marline that is not needed any more.
    RemoveRoute(Route),
}

/// Interfaces that get source routing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoutedLinks {
    /// Names of the interfaces.
    pub links: Vec<String>,
    /// Whether the user has named them, which permits use beside a VPN.
    pub is_explicit: bool,
}

impl RoutedLinks {
    /// All addresses of these links with the routes that they may need.
    fn link_routes(&self, survey: &InterfaceList) -> Vec<LinkRoute> {
        let mut link_routes = Vec::new();
        for interface in survey.interfaces.iter().filter(|interface| self.can_use(interface)) {
            for address in interface.addresses.iter().chain(&interface.transient_addresses) {
                let route = if address.is_ipv4() { interface.route_v4 } else { interface.route_v6 };
                link_routes.extend(route.map(|route| LinkRoute {
                    address: *address,
                    interface: interface.index,
                    gateway: route.gateway,
                    device: is_shared_address(survey, *address).then(|| interface.name.clone()),
                    mtu: None,
                }));
            }
        }
        link_routes
    }

    fn can_use(&self, interface: &Interface) -> bool {
        let is_candidate = match &interface.usability {
            Usability::Usable => true,
            Usability::Unused(UnusedReason::Loopback) => false,
            Usability::Unused(reason) => self.is_explicit && reason.can_be_overridden(),
        };
        is_candidate && self.links.contains(&interface.name)
    }
}

/// Whether several interfaces have this address.
fn is_shared_address(survey: &InterfaceList, address: IpAddr) -> bool {
    let has_route = |interface: &&Interface| {
        interface.addresses.iter().chain(&interface.transient_addresses).any(|a| *a == address)
    };
    survey.interfaces.iter().filter(has_route).count() > 1
}

/// Steps from the existing to the needed state. Routes are set before the rules that refer to them, and rules are
/// removed before their routes, so that no packet meets a rule without a route.
fn plan_steps(link_routes: &[LinkRoute], rules: &[SourceRule], routes: &[Route]) -> Vec<RoutingStep> {
    let mut required_rules: Vec<SourceRule> = link_routes.iter().flat_map(LinkRoute::rules).collect();
    let mut required_routes: Vec<Route> = Vec::new();
    for route in link_routes.iter().map(LinkRoute::route) {
        if !required_routes.iter().any(|other| has_same_key(other, &route)) {
            required_routes.push(route);
        }
    }
    required_rules.dedup();
    let mut steps: Vec<RoutingStep> = Vec::new();
    for route in &required_routes {
        let is_installed = |other: &Route| {
            has_same_key(other, route)
                && (other.interface, other.gateway, other.mtu) == (route.interface, route.gateway, route.mtu)
        };
        if !routes.iter().any(is_installed) {
            steps.push(RoutingStep::SetRoute(route.clone()));
        }
    }
    let is_missing = |rule: &&SourceRule| !rules.contains(rule);
    steps.extend(required_rules.iter().filter(is_missing).map(|rule| RoutingStep::AddRule(rule.clone())));
    // Rules are removed after the new ones were added, so that an address always has its rules.
    let is_surplus = |rule: &&SourceRule| !required_rules.contains(rule);
    steps.extend(rules.iter().filter(is_surplus).map(|rule| RoutingStep::RemoveRule(rule.clone())));
    for route in routes {
        // A needed route replaces the existing one in its table, except over another link: IPv6 then keeps both.
        let is_required = |other: &Route| has_same_key(other, route) && other.interface == route.interface;
        if !required_routes.iter().any(is_required) {
            steps.push(RoutingStep::RemoveRoute(route.clone()));
        }
    }
    steps
}

/// Whether marline made this rule: its origin, its priority and its table.
fn is_own_rule(rule: &SourceRule) -> bool {
    let is_link_table_rule = rule.priority == RULE_PRIORITY + 1 && rule.table > TABLE_BASE;
    let is_main_table_rule = rule.priority == RULE_PRIORITY && rule.table == Route::MAIN;
    rule.protocol == RTPROT_MARLINE && (is_link_table_rule || is_main_table_rule)
}

/// Whether marline made this route: its origin, and the table of its link.
fn is_own_route(route: &Route) -> bool {
    let table = route.interface.map(|interface| TABLE_BASE.saturating_add(interface));
    route.protocol == RTPROT_MARLINE && table == Some(route.table)
}

impl RoutingStep {
    /// Key of what it installs; none: it removes.
    fn key(&self) -> Option<RoutingKey> {
        match self {
            Self::SetRoute(route) => Some(RoutingKey::Route(route.family, route.table)),
            Self::AddRule(rule) => Some(RoutingKey::Rule(rule.source.0, rule.priority, rule.oif.clone())),
            Self::RemoveRule(_) | Self::RemoveRoute(_) => None,
        }
    }
}

/// Whether one route replaces the other.
fn has_same_key(a: &Route, b: &Route) -> bool {
    (a.family, a.table) == (b.family, b.table)
}

impl LinkRoute {
    fn table(&self) -> u32 {
        TABLE_BASE.saturating_add(self.interface)
    }

    fn rules(&self) -> [SourceRule; 2] {
        let (bits, suppressed_prefix_len) = if self.address.is_ipv4() { (32, 1) } else { (128, 3) };
        let rule = |table, priority| SourceRule {
            protocol: RTPROT_MARLINE,
            oif: self.device.clone(),
            ..SourceRule::new((self.address, bits), table, priority)
        };
        [
            SourceRule { suppress_prefixlength: Some(suppressed_prefix_len), ..rule(Route::MAIN, RULE_PRIORITY) },
            rule(self.table(), RULE_PRIORITY + 1),
        ]
    }

    fn route(&self) -> Route {
        let family = if self.address.is_ipv4() { family::V4 } else { family::V6 };
        let route = Route::default_via_interface(family, self.interface);
        // IPv6 requires a link MTU of at least 1280 bytes (RFC 8200, section 5).
        let min_mtu = if self.address.is_ipv4() { 0 } else { 1280 };
        let mtu = self.mtu.map(|mtu| u32::from(mtu).max(min_mtu));
        Route { gateway: self.gateway, mtu, table: self.table(), protocol: RTPROT_MARLINE, ..route }
    }
}

/// Priority of the first rule. Our choice: after the rules of tailscale (5210 to 5270), whose exit node should win, and
/// before those of wg-quick and of the main table (32764 to 32766).
const RULE_PRIORITY: u32 = 20_000;
/// Table number of a link, minus its interface index. Our choice: far from numbers that people and programs count up
/// from 1, and from WireGuard's 51820.
const TABLE_BASE: u32 = 7_310_000;
// The first rule suppresses prefixes of up to 1 bit (IPv4) and 3 bits (IPv6), which are default routes or parts of
// one (`0.0.0.0/1`, `2000::/3`), as `marline_net::links` treats them.

/// Access to marline's rules and routes in the kernel.
#[derive(Debug)]
pub(super) struct KernelRouting {
    socket: RouteSocket,
}

impl KernelRouting {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { socket: RouteSocket::open()? })
    }

    /// Adapts rules and routes to the survey. Returns a line for each failed step.
    ///
    /// # Errors
    /// The existing rules and routes cannot be read.
    pub(super) fn apply(
        &self,
        routed_links: &RoutedLinks,
        survey: &InterfaceList,
        mtus: &BTreeMap<String, u16>,
        limiter: &mut RouteRepairLimiter,
    ) -> io::Result<Vec<String>> {
        let (rules, routes) = self.own_rules_and_routes()?;
        let link_routes = self.needed_routes(routed_links, survey, mtus, &rules);
        let interface_name =
            |index: u32| survey.interfaces.iter().find(|i| i.index == index).map_or("?", |i| i.name.as_str());
        let mut steps = plan_steps(&link_routes, &rules, &routes);
        // A route that replaces another one was not removed by another program.
        let is_unoccupied =
            |key: &RoutingKey| !routes.iter().any(|route| *key == RoutingKey::Route(route.family, route.table));
        let missing = steps.iter().filter_map(RoutingStep::key).filter(is_unoccupied).collect();
        let blocked = limiter.blocked(Instant::now(), &missing);
        steps.retain(|step| step.key().is_none_or(|key| !blocked.contains(&key)));
        // The limiter learns all needed keys, so that a later absence of one of them counts as a removal.
        limiter.set_installed(plan_steps(&link_routes, &[], &[]).iter().filter_map(RoutingStep::key).collect());
        let mut errors = self.execute(steps, interface_name);
        if !blocked.is_empty() {
            errors.push(CONTESTED_NOTICE.to_owned());
        }
        Ok(errors)
    }

    /// The steps that would adapt rules and routes to the survey.
    ///
    /// # Errors
    /// The existing rules and routes cannot be read.
    pub(super) fn plan(&self, routed_links: &RoutedLinks, survey: &InterfaceList) -> io::Result<Vec<RoutingStep>> {
        let (rules, routes) = self.own_rules_and_routes()?;
        Ok(plan_steps(&self.needed_routes(routed_links, survey, &BTreeMap::new(), &rules), &rules, &routes))
    }

    fn needed_routes(
        &self,
        routed_links: &RoutedLinks,
        survey: &InterfaceList,
        mtus: &BTreeMap<String, u16>,
        rules: &[SourceRule],
    ) -> Vec<LinkRoute> {
        let mtu = |route: &LinkRoute| {
            let interface = survey.interfaces.iter().find(|interface| interface.index == route.interface)?;
            mtus.get(&interface.name).copied()
        };
        let has_rules =
            |route: &LinkRoute| rules.iter().any(|rule| rule.source.0 == route.address && rule.oif.is_none());
        // An address that has rules keeps them: while they exist, the route lookup always yields the link.
        let uses_link = |route: &LinkRoute| self.exit_interface(route.address) == Some(route.interface);
        let needs_route = |route: &LinkRoute| {
            route.mtu.is_some() || route.device.is_some() || has_rules(route) || !uses_link(route)
        };
        let link_routes =
            routed_links.link_routes(survey).into_iter().map(|route| LinkRoute { mtu: mtu(&route), ..route });
        link_routes.filter(needs_route).collect()
    }

    /// Removes all rules and routes of marline. Returns their number, and a line for each that remains.
    ///
    /// # Errors
    /// The existing rules and routes cannot be read.
    pub(super) fn clear(&self) -> io::Result<(usize, Vec<String>)> {
        let (rules, routes) = self.own_rules_and_routes()?;
        let mut errors = self.execute(plan_steps(&[], &rules, &routes), |_| "?");
        let policy_routes = self.clear_policy_route().unwrap_or_else(|error| {
            errors.push(format!("cannot remove the policy route of --transparent: {error}"));
            0
        });
        Ok(((rules.len() + routes.len() + policy_routes).saturating_sub(errors.len()), errors))
    }

    /// Removes the policy route to a forwarder that does not run any more. Returns the number of removed rules and
    /// routes.
    ///
    /// # Errors
    /// They cannot be read or removed.
    pub(super) fn clear_policy_route(&self) -> io::Result<usize> {
        policy_route::clear(&self.socket, &policy_route::HOST_TRAFFIC)
    }

    /// Number of rules and routes of marline.
    ///
    /// # Errors
    /// The existing rules and routes cannot be read.
    pub(super) fn count(&self) -> io::Result<usize> {
        let (rules, routes) = self.own_rules_and_routes()?;
        Ok(rules.len() + routes.len() + policy_route::count_installed(&self.socket, &policy_route::HOST_TRAFFIC)?)
    }

    /// Rules and routes of marline, without the policy route of a forwarder, which the forwarder manages.
    fn own_rules_and_routes(&self) -> io::Result<(Vec<SourceRule>, Vec<Route>)> {
        let rules = self.socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
        let routes = self.socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(2))?;
        let rules = messages(&rules).filter_map(|message: Message<'_>| SourceRule::parse(&message));
        let routes = messages(&routes).filter_map(|message: Message<'_>| Route::parse(&message));
        Ok((rules.filter(is_own_rule).collect(), routes.filter(is_own_route).collect()))
    }

    /// The interface by which packets from this address to the Internet would leave.
    fn exit_interface(&self, source: IpAddr) -> Option<u32> {
        exit_interface(&self.socket, source, None)
    }

    fn execute<'a>(&self, steps: Vec<RoutingStep>, interface_name: impl Fn(u32) -> &'a str) -> Vec<String> {
        let mut errors = Vec::new();
        for step in steps {
            tracing::debug!(?step, "routing");
            let (request, ignored_errors) = match &step {
                RoutingStep::SetRoute(route) => (route.install(), &[][..]),
                RoutingStep::AddRule(rule) => (rule.add(), &[EXISTS][..]),
                // The kernel removed it together with its link or address.
                RoutingStep::RemoveRule(rule) => (rule.remove(), &[NO_ENTRY][..]),
                RoutingStep::RemoveRoute(route) => (route.remove(), &[NO_ENTRY, NO_ROUTE, NO_DEVICE][..]),
            };
            if let Err(error) = super::crash_point().and_then(|()| self.socket.request(&request.finish(3)))
                && !error.raw_os_error().is_some_and(|number| ignored_errors.contains(&number))
            {
                errors.push(match step {
                    RoutingStep::SetRoute(Route { interface, gateway, .. }) => format!(
                        "{}: cannot set the default route{} for its source addresses: {error}",
                        interface.map_or("?", &interface_name),
                        gateway.map(|gateway| format!(" by {gateway}")).unwrap_or_default(),
                    ),
                    RoutingStep::AddRule(rule) => format!(
                        "cannot add the rule for packets from {}{}: {error}",
                        rule.source.0,
                        rule.oif.map(|device_name| format!(" over {device_name}")).unwrap_or_default()
                    ),
                    RoutingStep::RemoveRule(rule) => {
                        format!("cannot remove the rule for {}: {error}", rule.source.0)
                    }
                    RoutingStep::RemoveRoute(route) => {
                        format!("cannot remove the routes of table {}: {error}", route.table)
                    }
                });
            }
        }
        errors
    }
}

/// Notice when another program removes rules repeatedly.
const CONTESTED_NOTICE: &str = "another program repeatedly removes rules or routes of marline: they are restored a few \
     times a minute, and connections over the other links suffer meanwhile; `ip monitor rule route` shows when, \
     `ip rule` rules 20000 and 20001 are the ones to leave alone";

/// The interface by which packets from this address to the Internet would leave; none: there is no route.
/// `bound_interface`: the interface to which their socket is bound.
pub(crate) fn exit_interface(socket: &RouteSocket, source: IpAddr, bound_interface: Option<u32>) -> Option<u32> {
    let destination = if source.is_ipv4() { IpAddr::V4(INTERNET_PROBE_V4) } else { IpAddr::V6(INTERNET_PROBE_V6) };
    let reply =
        socket.request(&Route::lookup_via_interface(Some(source), destination, bound_interface).finish(4)).ok()?;
    messages(&reply).find_map(|message| Route::parse(&message))?.interface
}

const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();
const NO_ROUTE: i32 = rustix::io::Errno::SRCH.raw_os_error();
const NO_DEVICE: i32 = rustix::io::Errno::NODEV.raw_os_error();
const EXISTS: i32 = rustix::io::Errno::EXIST.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    fn link_route(address: &str, interface: u32, gateway: &str) -> LinkRoute {
        LinkRoute {
            address: address.parse().unwrap(),
            interface,
            gateway: gateway.parse().ok(),
            device: None,
            mtu: None,
        }
    }

    /// Rules and routes after these steps.
    fn apply_steps(
        steps: Vec<RoutingStep>,
        mut rules: Vec<SourceRule>,
        mut routes: Vec<Route>,
    ) -> (Vec<SourceRule>, Vec<Route>) {
        for step in steps {
            match step {
                RoutingStep::SetRoute(route) => {
                    routes.retain(|other| !(has_same_key(other, &route) && other.interface == route.interface));
                    routes.push(route);
                }
                RoutingStep::AddRule(rule) => rules.push(rule),
                RoutingStep::RemoveRule(rule) => rules.retain(|other| *other != rule),
                RoutingStep::RemoveRoute(route) => routes.retain(|other| *other != route),
            }
        }
        (rules, routes)
    }

    #[test]
    fn an_address_gets_two_rules_and_its_link_one_route_before_them() {
        let link_routes = [link_route("10.2.0.2", 4, "10.2.0.1"), link_route("10.2.0.3", 4, "10.2.0.1")];
        let steps = plan_steps(&link_routes, &[], &[]);
        assert!(
            matches!(&steps[0], RoutingStep::SetRoute(route) if route.table == TABLE_BASE + 4 && route.protocol == RTPROT_MARLINE)
        );
        assert_eq!(steps.len(), 1 + 2 * 2, "{steps:?}");
        let (rules, routes) = apply_steps(steps, Vec::new(), Vec::new());
        assert_eq!(
            (rules[0].suppress_prefixlength, rules[0].table, rules[1].table),
            (Some(1), Route::MAIN, TABLE_BASE + 4)
        );
        assert_eq!(plan_steps(&link_routes, &rules, &routes), [], "existing rules and routes are not touched");
    }

    #[test]
    fn a_new_address_and_gateway_replace_the_old_ones() {
        let (rules, routes) =
            apply_steps(plan_steps(&[link_route("10.2.0.2", 4, "10.2.0.1")], &[], &[]), vec![], vec![]);
        let next = [link_route("10.7.0.9", 4, "10.7.0.1")];
        let steps = plan_steps(&next, &rules, &routes);
        assert_eq!(steps.len(), 1 + 2 + 2, "{steps:?}");
        let (rules, routes) = apply_steps(steps, rules, routes);
        assert!(rules.iter().all(|rule| rule.source.0 == next[0].address));
        assert_eq!(routes.iter().map(|route| route.gateway).collect::<Vec<_>>(), [next[0].gateway]);
        let (rules, routes) = apply_steps(plan_steps(&[], &rules, &routes), rules, routes);
        assert_eq!((rules, routes), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_smaller_mtu_replaces_the_route_and_is_undone() {
        let without_mtu = [link_route("10.2.0.2", 4, "10.2.0.1"), link_route("2001:db8::2", 4, "fe80::1")];
        let with_mtu = without_mtu.clone().map(|route| LinkRoute { mtu: Some(1024), ..route });
        let (rules, routes) = apply_steps(plan_steps(&without_mtu, &[], &[]), vec![], vec![]);
        let steps = plan_steps(&with_mtu, &rules, &routes);
        assert_eq!(steps.len(), 2, "{steps:?}");
        let (rules, routes) = apply_steps(steps, rules, routes);
        assert_eq!(routes.iter().map(|route| route.mtu).collect::<Vec<_>>(), [Some(1024), Some(1280)]);
        assert_eq!(plan_steps(&with_mtu, &rules, &routes), []);
        let (_, routes) = apply_steps(plan_steps(&without_mtu, &rules, &routes), rules, routes);
        assert!(routes.len() == 2 && routes.iter().all(|route| route.mtu.is_none()));
    }

    #[test]
    fn leftovers_of_a_crashed_run_are_removed_unless_needed() {
        let both_routes = [link_route("10.2.0.2", 4, "10.2.0.1"), link_route("2001:db8::2", 9, "fe80::1")];
        let (rules, routes) = apply_steps(plan_steps(&both_routes, &[], &[]), vec![], vec![]);
        let steps = plan_steps(&both_routes[..1], &rules, &routes);
        assert_eq!(steps.len(), 3, "{steps:?}");
        assert!(
            matches!(steps[0], RoutingStep::RemoveRule(_)) && matches!(steps[2], RoutingStep::RemoveRoute(_)),
            "{steps:?}"
        );
    }

    #[test]
    fn own_rules_are_identified_by_origin_and_range() {
        let (rules, routes) =
            apply_steps(plan_steps(&[link_route("10.2.0.2", 4, "10.2.0.1")], &[], &[]), vec![], vec![]);
        assert!(rules.iter().all(is_own_rule) && routes.iter().all(is_own_route));
        for rule in &rules {
            assert!(!is_own_rule(&SourceRule { protocol: 4, ..rule.clone() }));
            assert!(!is_own_rule(&SourceRule { priority: 500, ..rule.clone() }));
            assert!(!is_own_rule(&SourceRule { table: 55, ..rule.clone() }));
        }
        for table in [55, Route::MAIN, TABLE_BASE, TABLE_BASE + 5] {
            assert!(!is_own_route(&Route { table, ..routes[0].clone() }), "{table}");
        }
        assert!(!is_own_route(&Route { protocol: 4, ..routes[0].clone() }));
    }

    #[test]
    fn links_with_the_same_address_get_rules_for_their_devices() {
        let sharing_route = |interface, name: &str| LinkRoute {
            device: Some(name.into()),
            ..link_route("192.168.8.100", interface, "192.168.8.1")
        };
        let sharing_routes = [sharing_route(4, "wwan0"), sharing_route(5, "wwan1"), sharing_route(6, "wwan2")];
        let (rules, routes) = apply_steps(plan_steps(&sharing_routes, &[], &[]), vec![], vec![]);
        assert_eq!((rules.len(), routes.len()), (6, 3));
        for (name, table) in [("wwan0", TABLE_BASE + 4), ("wwan1", TABLE_BASE + 5), ("wwan2", TABLE_BASE + 6)] {
            let of_device = rules.iter().filter(|rule| rule.oif.as_deref() == Some(name));
            assert_eq!(of_device.map(|rule| rule.table).collect::<Vec<_>>(), [Route::MAIN, table]);
        }
        let steps = plan_steps(&[link_route("192.168.8.100", 4, "192.168.8.1")], &rules, &routes);
        let removed = steps.iter().filter(|step| matches!(step, RoutingStep::RemoveRule(_))).count();
        assert_eq!((removed, steps.len()), (6, 6 + 2 + 2), "{steps:?}");
    }

    #[test]
    fn two_links_in_one_subnet_have_separate_tables() {
        let link_routes =
            [link_route("192.168.8.100", 4, "192.168.8.1"), link_route("192.168.8.101", 5, "192.168.8.1")];
        let (rules, routes) = apply_steps(plan_steps(&link_routes, &[], &[]), vec![], vec![]);
        assert_eq!((rules.len(), routes.len()), (4, 2));
        assert_ne!(routes[0].table, routes[1].table);
    }
}
