//! The way of what a LAN sends and no rule leads to the edge: UDP, ICMP and the rest leave over one link.
//!
//! In: the LAN's interfaces, and which link is to carry. Out: rules and routes in the kernel while a [`Beyond`] lives.
//!
//! ```text
//!  20002  what comes in over the LAN: main, without its default routes    what this host knows better than by a default route
//!  20003  what comes in over the LAN: table 28003                         one default route for each family that the link has
//!  32766  everything: main                                                what the table has no route for
//! ```
//!
//! 1. While no link is named the table is empty, and the host's own default route counts. So it does for a family that the link
//!    has no default route of.
//! 2. The places are behind whatever else of marline's leads by mark (107, 108) or by source (20000, 20001), and behind the rules of
//!    programs that keep traffic to themselves (tailscale, 5210 to 5270).
//! 3. What bears marline's number, in these places or in this table, is ours, whoever left it: a crashed run needs no other record.
//! 4. Each call looks at what is there, and changes what differs: what another program has removed is put back with the next.
//! 5. Streams that run get the new link's address by themselves: the kernel ends a masquerade whose packets leave by another
//!    interface, with one packet, and the next one begins a new masquerade.
//!
//! Which private networks TCP reaches in the same way is decided by two more rules in these places ([`private_networks`]). This host's own name
//! queries, which a LAN depends on, have rules of their own while the host's default route leads nowhere ([`dns_routes`]).
//!
//! Marks by nftables were not used: rules that ask for an interface need no table in force, and the kernel's check of a
//! packet's way back (`rp_filter`) takes them into account.

use std::io;
use std::net::IpAddr;

use marline_core::wire::netlink::{IifRule, Request, Route, SourceRule, TproxyRoute, family, messages};
use marline_net::links::{INTERNET_PROBE_V4, INTERNET_PROBE_V6, Interface, RTPROT_MARLINE};
use marline_sys::netlink::RouteSocket;

use super::dns_routes::{self, DnsLinks};
use super::nft_rules::Lan;
use super::private_networks;
use crate::transparent::nft_rules::IpFamilies;

/// The way of the rest, which is there while this lives.
#[derive(Debug)]
pub struct NonTcpRoute {
    socket: RouteSocket,
    lan: Lan,
    families: IpFamilies,
}

impl NonTcpRoute {
    /// As the host's own routes have it, in place of what an earlier run has left.
    ///
    /// # Errors
    /// Not permitted; a kernel without rules of routing.
    pub(super) fn new(lan: &Lan, families: IpFamilies) -> io::Result<Self> {
        let non_tcp_route = Self { socket: RouteSocket::open()?, lan: lan.clone(), families };
        non_tcp_route.set_link(None)?;
        dns_routes::clear(&non_tcp_route.socket)?;
        Ok(non_tcp_route)
    }

    /// Leads it over this link; none: as the host's own routes have it. Blocks for as long as the kernel takes.
    ///
    /// # Errors
    /// The kernel refuses a rule or a route: the link has gone meanwhile, or its router is none of its neighbours.
    pub fn set_link(&self, link: Option<&Interface>) -> io::Result<()> {
        let InstalledRouting { rules, marked_rules, routes } = InstalledRouting::read(&self.socket)?;
        let required_marked = private_networks::required_rules(self.families);
        let (required_rules, required_routes) =
            (self.rules(), link.map(|link| self.routes(link)).unwrap_or_default());
        let mut outcome = Ok(());
        for route in
            required_routes.iter().filter(|route| !routes.iter().any(|installed| is_same_route(installed, route)))
        {
            outcome = outcome.and(request_ignoring(&self.socket, route.install(), &[]));
        }
        for rule in required_rules.iter().filter(|rule| !rules.contains(rule)) {
            outcome = outcome.and(request_ignoring(&self.socket, rule.add(), &[EXISTS]));
        }
        for rule in required_marked.iter().filter(|rule| !marked_rules.contains(rule)) {
            outcome = outcome.and(request_ignoring(&self.socket, rule.add_rule(), &[EXISTS]));
        }
        // What a route has replaced is gone already; IPv6 keeps one over another link.
        let surplus_rules = rules.iter().filter(|rule| !required_rules.contains(rule));
        let surplus =
            routes.iter().filter(|installed| !required_routes.iter().any(|route| is_same_route(installed, route)));
        let surplus_marked = marked_rules.iter().filter(|rule| !required_marked.contains(rule));
        outcome.and(remove_all(&self.socket, surplus_rules, surplus_marked, surplus))
    }

    /// Leads this host's own name queries over these links in place of its default routes. Blocks for as long as the kernel takes.
    ///
    /// # Errors
    /// As [`Beyond::lead`].
    pub fn set_dns_links(&self, links: DnsLinks<'_>) -> io::Result<()> {
        dns_routes::set_links(&self.socket, links, self.families)
    }

    /// The links over which this host's own packets to the world leave, by the kernel's numbers: of IPv4 and of IPv6.
    pub fn host_exit_interfaces(&self) -> [Option<u32>; 2] {
        let exit_interface = |destination: IpAddr| {
            let reply = self.socket.request(&Route::lookup(None, destination).finish(4)).ok()?;
            messages(&reply).find_map(|message| Route::parse(&message))?.interface
        };
        [exit_interface(INTERNET_PROBE_V4.into()), exit_interface(INTERNET_PROBE_V6.into())]
    }

    fn rules(&self) -> Vec<IifRule> {
        let rules_for = |family, suppressed_prefix_len, interface: &String| {
            let rule = |table, priority, suppress_prefixlength| IifRule {
                family,
                interface: interface.clone(),
                table,
                priority,
                suppress_prefixlength,
                protocol: RTPROT_MARLINE,
            };
            // Prefixes so short are default routes or parts of one, as `marline_net::links` takes them.
            [
                rule(Route::MAIN, RULE_PRIORITY, Some(suppressed_prefix_len)),
                rule(ROUTE_TABLE, RULE_PRIORITY + 1, None),
            ]
        };
        let IpFamilies { ipv4, ipv6 } = self.families;
        let families =
            [(ipv4, family::V4, 1), (ipv6, family::V6, 3)].into_iter().filter(|(is_enabled, ..)| *is_enabled);
        families
            .flat_map(|(_, family, suppressed_prefix_len)| {
                self.lan.0.iter().flat_map(move |name| rules_for(family, suppressed_prefix_len, name))
            })
            .collect()
    }

    fn routes(&self, link: &Interface) -> Vec<Route> {
        let IpFamilies { ipv4, ipv6 } = self.families;
        let v4 = default_route(family::V4, link, ROUTE_TABLE).filter(|_| ipv4);
        v4.into_iter().chain(default_route(family::V6, link, ROUTE_TABLE).filter(|_| ipv6)).collect()
    }
}

impl Drop for NonTcpRoute {
    fn drop(&mut self) {
        if let Err(error) = clear(&self.socket).and(dns_routes::clear(&self.socket)) {
            tracing::warn!(%error, "rules and routes of the LAN's gateway stay; `marline paths restore` removes them");
        }
    }
}

/// Rules and routes of this sort that are there.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn count_installed(socket: &RouteSocket) -> io::Result<usize> {
    InstalledRouting::read(socket).map(|installed| installed.count())
}

/// Removes them, whoever has left them. Returns how many there were.
///
/// # Errors
/// The kernel does not tell which there are, or lets one not be removed.
pub(super) fn clear(socket: &RouteSocket) -> io::Result<usize> {
    let installed = InstalledRouting::read(socket)?;
    remove_all(socket, installed.rules.iter(), installed.marked_rules.iter(), installed.routes.iter())?;
    Ok(installed.count())
}

/// Rules before the routes that they lead to. One that stays does not keep the others.
fn remove_all<'a>(
    socket: &RouteSocket,
    rules: impl Iterator<Item = &'a IifRule>,
    marked_rules: impl Iterator<Item = &'a TproxyRoute>,
    routes: impl Iterator<Item = &'a Route>,
) -> io::Result<()> {
    let rules = rules.map(|rule| request_ignoring(socket, rule.remove(), &[NO_ENTRY]));
    // It went with its link, or another one has taken its place.
    let routes = routes.map(|route| request_ignoring(socket, route.remove(), &[NO_ENTRY, NO_ROUTE, NO_DEVICE]));
    let marked_rules = marked_rules.map(|rule| request_ignoring(socket, rule.remove_rule(), &[NO_ENTRY]));
    rules.chain(marked_rules).chain(routes).fold(Ok(()), io::Result::and)
}

/// Rule 3.
struct InstalledRouting {
    rules: Vec<IifRule>,
    /// Rules for the mark of the `fib` lookups: [`private_networks`].
    marked_rules: Vec<TproxyRoute>,
    routes: Vec<Route>,
}

impl InstalledRouting {
    fn read(socket: &RouteSocket) -> io::Result<Self> {
        let rules = socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
        let routes = socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(2))?;
        let rules = messages(&rules).filter_map(|message| IifRule::parse(&message));
        let routes = messages(&routes).filter_map(|message| Route::parse(&message));
        Ok(Self {
            rules: rules.filter(is_own_rule).collect(),
            marked_rules: private_networks::installed_rules(socket)?,
            routes: routes.filter(|route| (route.protocol, route.table) == (RTPROT_MARLINE, ROUTE_TABLE)).collect(),
        })
    }

    fn count(&self) -> usize {
        self.rules.len() + self.marked_rules.len() + self.routes.len()
    }
}

fn is_own_rule(rule: &IifRule) -> bool {
    let slot = (rule.priority, rule.table);
    rule.protocol == RTPROT_MARLINE
        && (slot == (RULE_PRIORITY, Route::MAIN) || slot == (RULE_PRIORITY + 1, ROUTE_TABLE))
}

/// The default route of this family over the link, in a table of ours; none: the link has none.
pub(super) fn default_route(family: u8, link: &Interface, table: u32) -> Option<Route> {
    let gateway = if family == family::V4 { link.route_v4 } else { link.route_v6 }?.gateway;
    Some(Route { gateway, table, protocol: RTPROT_MARLINE, ..Route::default_via_interface(family, link.index) })
}

/// Whether both lead the same way.
pub(super) fn is_same_route(a: &Route, b: &Route) -> bool {
    (a.family, a.interface, a.gateway) == (b.family, b.interface, b.gateway)
}

pub(super) fn request_ignoring(socket: &RouteSocket, request: Request, ignored_errors: &[i32]) -> io::Result<()> {
    match socket.request(&request.finish(3)) {
        Err(error) if !error.raw_os_error().is_some_and(|number| ignored_errors.contains(&number)) => Err(error),
        _ => Ok(()),
    }
}

/// chosen: right behind the rules of what has a link's address, for the reasons that are said there (`ground::routing`).
pub(super) const RULE_PRIORITY: u32 = 20_002;
/// chosen: next to the tables of the detours.
const ROUTE_TABLE: u32 = 28_003;
pub(super) const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();
pub(super) const NO_ROUTE: i32 = rustix::io::Errno::SRCH.raw_os_error();
pub(super) const NO_DEVICE: i32 = rustix::io::Errno::NODEV.raw_os_error();
pub(super) const EXISTS: i32 = rustix::io::Errno::EXIST.raw_os_error();

#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use marline_net::links::list_interfaces;
    use marline_net::testing::{cable, in_a_network, ip};

    use super::*;

    const LAN: &str = "from 192.168.77.2 iif lan0";
    const LAN_V6: &str = "from fd77::2 iif lan0";

    /// Two LANs, two links with routers, and one with two ends only, by order of their metrics.
    pub(in crate::gateway) fn add_test_host() -> Lan {
        for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/{name}"), "1").unwrap();
        }
        for (name, address, address_v6) in [
            ("lan0", "192.168.77.1/24", "fd77::1/64"),
            ("lan1", "192.168.78.1/24", "fd78::1/64"),
            ("eth0", "10.1.0.2/24", "fd01::2/64"),
            ("eth1", "10.2.0.2/24", "fd02::2/64"),
        ] {
            cable(name, address);
            ip(&format!("address add {address_v6} dev {name} nodad"));
        }
        for n in [1, 2] {
            ip(&format!("route add default via 10.{n}.0.1 metric {n}00"));
            ip(&format!("-6 route add default via fd0{n}::1 metric {n}00"));
        }
        cable("ppp0", "10.3.0.2/32");
        ip("route add default dev ppp0 metric 300");
        Lan::new(vec!["lan0".into(), "lan1".into()]).unwrap()
    }

    /// By which interface a packet to there leaves.
    pub(in crate::gateway) fn exit_interface(destination: &str, options: &str) -> String {
        let output = Command::new("ip")
            .args(["route", "get", destination])
            .args(options.split_whitespace())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut fields = text.split_whitespace().skip_while(|word| *word != "dev");
        fields
            .nth(1)
            .unwrap_or_else(|| panic!("{destination}: {text} {}", String::from_utf8_lossy(&output.stderr)))
            .to_owned()
    }

    pub(in crate::gateway) fn lead(non_tcp_route: &NonTcpRoute, link: &str) {
        non_tcp_route.set_link(list_interfaces().unwrap().by_name(link)).unwrap();
    }

    pub(in crate::gateway) fn open_test_route(lan: &Lan) -> NonTcpRoute {
        NonTcpRoute::new(lan, IpFamilies { ipv4: true, ipv6: true }).unwrap()
    }

    #[test]
    fn what_comes_in_over_the_lan_leaves_by_the_link_that_is_named_and_nothing_else_does() {
        in_a_network(|| {
            let non_tcp_route = open_test_route(&add_test_host());
            let (server_v4, server_v6) = ("203.0.113.5", "2001:db8::5");
            assert_eq!(
                (exit_interface(server_v4, LAN), exit_interface(server_v6, LAN_V6)),
                ("eth0".into(), "eth0".into())
            );
            lead(&non_tcp_route, "eth1");
            assert_eq!(
                (exit_interface(server_v4, LAN), exit_interface(server_v6, LAN_V6)),
                ("eth1".into(), "eth1".into())
            );
            assert_eq!(
                (exit_interface(server_v4, ""), exit_interface(server_v6, "")),
                ("eth0".into(), "eth0".into()),
                "this host's own"
            );
            let index = |name: &str| list_interfaces().unwrap().by_name(name).map(|interface| interface.index);
            assert_eq!(non_tcp_route.host_exit_interfaces(), [index("eth0"); 2]);
            for (destination, interface) in [("192.168.78.9", "lan1"), ("10.1.0.9", "eth0"), ("10.1.0.2", "lo")] {
                assert_eq!(exit_interface(destination, LAN), interface, "{destination}");
            }
            assert_eq!(exit_interface("fd78::9", LAN_V6), "lan1");
            lead(&non_tcp_route, "ppp0");
            assert_eq!(exit_interface(server_v4, LAN), "ppp0", "without a router");
            assert_eq!(exit_interface(server_v6, LAN_V6), "eth0", "it has no IPv6");
            non_tcp_route.set_link(None).unwrap();
            assert_eq!(exit_interface(server_v4, LAN), "eth0");
            lead(&non_tcp_route, "eth1");
            drop(non_tcp_route);
            assert_eq!(
                (count_installed(&RouteSocket::open().unwrap()).unwrap(), exit_interface(server_v4, LAN)),
                (0, "eth0".into())
            );
        });
    }

    #[test]
    fn another_router_and_what_others_remove_are_followed() {
        in_a_network(|| {
            let non_tcp_route = open_test_route(&add_test_host());
            lead(&non_tcp_route, "eth1");
            let rules_and_routes = count_installed(&non_tcp_route.socket).unwrap();
            assert_eq!(rules_and_routes, 2 * 2 * 2 + 2 * 2 + 2);
            ip("route del default via 10.2.0.1");
            ip("route add default via 10.2.0.9 metric 200");
            ip("-6 route del default via fd02::1");
            ip("-6 route add default via fd02::9 metric 200");
            ip("rule del priority 20003");
            lead(&non_tcp_route, "eth1");
            assert_eq!(count_installed(&non_tcp_route.socket).unwrap(), rules_and_routes);
            let output = Command::new("ip").args(["route", "show", "table", "28003"]).output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains("via 10.2.0.9"), "{output:?}");
            ip("link set eth1 down");
            assert_eq!(exit_interface("203.0.113.5", LAN), "eth0", "the kernel has removed the route");
        });
    }

    #[test]
    fn a_router_that_is_no_neighbour_is_an_error_and_leaves_the_hosts_own_route() {
        in_a_network(|| {
            let non_tcp_route = open_test_route(&add_test_host());
            lead(&non_tcp_route, "eth1");
            let mut link = list_interfaces().unwrap().by_name("eth1").unwrap().clone();
            link.route_v4.as_mut().unwrap().gateway = Some("198.51.100.1".parse().unwrap());
            assert!(non_tcp_route.set_link(Some(&link)).is_err());
            assert_eq!(exit_interface("203.0.113.5", LAN), "eth0");
        });
    }

    #[test]
    fn what_a_killed_run_has_left_is_taken_over_and_removed() {
        in_a_network(|| {
            let lan = add_test_host();
            let leaked = open_test_route(&lan);
            lead(&leaked, "eth1");
            std::mem::forget(leaked);
            let other = "rule add iif lan0 lookup 28003 priority 20003";
            ip(other);
            let next = open_test_route(&lan);
            assert_eq!(
                (count_installed(&next.socket).unwrap(), exit_interface("203.0.113.5", LAN)),
                (12, "eth0".into())
            );
            drop(next);
            let socket = RouteSocket::open().unwrap();
            assert_eq!((count_installed(&socket).unwrap(), clear(&socket).unwrap()), (0, 0));
            ip(&other.replace("add", "del"));
        });
    }
}
