//! Route of this host's own DNS queries while the link of its default route has an outage.
//!
//! Clients of a LAN often use this host as DNS server (dnsmasq). Its own queries follow the main table, so an outage
//! of the default link would break all name resolution of the LAN. During the outage, queries leave over another
//! link:
//!
//! ```text
//!  32764  iif lo, ports 53 and 853: main, without its default routes   servers on a LAN or a link, or behind the
//!                                                                      route of an office or a VPN
//!  32765  iif lo, ports 53 and 853: table 28004                        one default route for each affected family
//!  32766  everything: main                                             families without a route in the table
//! ```
//!
//! 1. Rules and routes exist only during an outage of a default link. Otherwise queries leave as without marline.
//! 2. The priorities follow the rules of all other programs: queries that a VPN or a policy of the host routes
//!    elsewhere are not diverted.
//! 3. A server with a more specific route in the main table is reached by that route, even over the failed link. A
//!    socket that is bound to a device stays with that device.
//! 4. With `rp_filter` the kernel checks a reply by the reverse path to its source. Older kernels do not swap the
//!    ports for that, so rules must match the ports of the reply as well. Queries have no such source port.
//!
//! Rules with marline's protocol number and these priorities, and routes in this table, are marline's.

use std::io;

use marline_core::wire::netlink::{Port, PortRule, Request, Route, SourceRule, family, messages};
use marline_net::links::{Interface, RTPROT_MARLINE};
use marline_sys::netlink::RouteSocket;

use super::route_requests::{
    EXISTS, NO_DEVICE, NO_ENTRY, NO_ROUTE, default_route, is_same_route, request_ignoring,
};
use crate::transparent::nft_rules::IpFamilies;

/// Links for DNS queries of each family; none: the host's default route.
#[derive(Clone, Copy, Debug, Default)]
pub struct DnsLinks<'a> {
    /// Link for queries over IPv4.
    pub v4: Option<&'a Interface>,
    /// Link for queries over IPv6.
    pub v6: Option<&'a Interface>,
}

impl DnsLinks<'_> {
    fn routes(&self, families: IpFamilies) -> Vec<Route> {
        let v4 = self.v4.filter(|_| families.ipv4).and_then(|link| default_route(family::V4, link, ROUTE_TABLE));
        let v6 = self.v6.filter(|_| families.ipv6).and_then(|link| default_route(family::V6, link, ROUTE_TABLE));
        v4.into_iter().chain(v6).collect()
    }
}

/// Sets rules and routes in the kernel. An error does not stop the other steps.
///
/// # Errors
/// The kernel refuses a rule or a route.
pub(super) fn set_links(socket: &RouteSocket, links: DnsLinks<'_>, families: IpFamilies) -> io::Result<()> {
    let InstalledRouting { rules, routes } = InstalledRouting::read(socket)?;
    let required_routes = links.routes(families);
    let required_rules: Vec<PortRule> =
        required_routes.iter().flat_map(|route| rules_for_family(route.family)).collect();
    let mut outcome = Ok(());
    for route in
        required_routes.iter().filter(|route| !routes.iter().any(|installed| is_same_route(installed, route)))
    {
        outcome = outcome.and(request_ignoring(socket, route.install(), &[]));
    }
    for rule in required_rules.iter().filter(|rule| !rules.contains(rule)) {
        outcome = outcome.and(request_ignoring(socket, rule.add(), &[EXISTS]));
    }
    let rules = rules.iter().filter(|rule| !required_rules.contains(rule));
    let routes =
        routes.iter().filter(|installed| !required_routes.iter().any(|route| is_same_route(installed, route)));
    outcome.and(remove_all(socket, rules, routes))
}

/// Number of installed rules and routes.
///
/// # Errors
/// The kernel's rules and routes cannot be read.
pub(super) fn count_installed(socket: &RouteSocket) -> io::Result<usize> {
    InstalledRouting::read(socket).map(|installed| installed.rules.len() + installed.routes.len())
}

/// Removes rules and routes of any run. Returns their number.
///
/// # Errors
/// They cannot be read or removed.
pub(super) fn clear(socket: &RouteSocket) -> io::Result<usize> {
    let installed = InstalledRouting::read(socket)?;
    remove_all(socket, installed.rules.iter(), installed.routes.iter())?;
    Ok(installed.rules.len() + installed.routes.len())
}

/// Removes rules before the routes to which they refer.
fn remove_all<'a>(
    socket: &RouteSocket,
    rules: impl Iterator<Item = &'a PortRule>,
    routes: impl Iterator<Item = &'a Route>,
) -> io::Result<()> {
    let rules = rules.map(|rule| request_ignoring(socket, rule.remove(), &[NO_ENTRY]));
    let routes = routes.map(|route| request_ignoring(socket, route.remove(), &[NO_ENTRY, NO_ROUTE, NO_DEVICE]));
    rules.chain(routes).fold(Ok(()), io::Result::and)
}

struct InstalledRouting {
    rules: Vec<PortRule>,
    routes: Vec<Route>,
}

impl InstalledRouting {
    fn read(socket: &RouteSocket) -> io::Result<Self> {
        let rules = socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
        let routes = socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(2))?;
        let rules = messages(&rules).filter_map(|message| PortRule::parse(&message));
        let routes = messages(&routes).filter_map(|message| Route::parse(&message));
        let is_own_rule = |rule: &PortRule| {
            let slot = (rule.priority, rule.table);
            rule.protocol == RTPROT_MARLINE
                && (slot == (RULE_PRIORITY, Route::MAIN) || slot == (RULE_PRIORITY + 1, ROUTE_TABLE))
        };
        Ok(Self {
            rules: rules.filter(is_own_rule).collect(),
            routes: routes.filter(|route| (route.protocol, route.table) == (RTPROT_MARLINE, ROUTE_TABLE)).collect(),
        })
    }
}

/// The rules for a family with a route.
fn rules_for_family(family: u8) -> Vec<PortRule> {
    // Shorter prefixes are default routes or parts of one, as in `non_tcp_route`.
    let (suppressed_prefix_len, has_rp_filter) = if family == family::V4 { (1, true) } else { (3, false) };
    let queries = DNS_PORTS.map(|(transport, port)| (transport, Port::To(port)));
    // Point 4: IPv6 has no `rp_filter`.
    let replies = DNS_PORTS.map(|(transport, port)| (transport, Port::From(port)));
    let ports = queries.into_iter().chain(replies.into_iter().filter(|_| has_rp_filter));
    let rules_for = |(transport, port)| {
        let rule = |table, priority, suppress| PortRule {
            family,
            transport,
            port,
            table,
            priority,
            suppress,
            protocol: RTPROT_MARLINE,
        };
        [rule(Route::MAIN, RULE_PRIORITY, Some(suppressed_prefix_len)), rule(ROUTE_TABLE, RULE_PRIORITY + 1, None)]
    };
    ports.flat_map(rules_for).collect()
}

/// Our choice: see point 2; `main` is 32766.
const RULE_PRIORITY: u32 = 32_764;
/// Our choice: next to the table of the LAN's packets.
const ROUTE_TABLE: u32 = 28_004;
/// DNS over UDP and TCP (RFC 1035) and over TLS (RFC 7858): transport and port.
const DNS_PORTS: [(u8, u16); 3] = [(IPPROTO_UDP, 53), (IPPROTO_TCP, 53), (IPPROTO_TCP, 853)];
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr, UdpSocket};

    use marline_net::links::list_interfaces;
    use marline_net::testing::{cable, in_a_network, ip};

    use super::*;
    use crate::gateway::non_tcp_route::tests::{add_test_host, exit_interface, lead as lead_rest, open_test_route};

    const DNS_QUERY: &str = "ipproto udp dport 53";
    const DNS_SERVER_V4: &str = "9.9.9.9";
    const DNS_SERVER_V6: &str = "2620:fe::fe";

    fn set_test_links(link: &str, families: (bool, bool)) -> io::Result<()> {
        let survey = list_interfaces().unwrap();
        let link = survey.by_name(link);
        let links = DnsLinks { v4: link.filter(|_| families.0), v6: link.filter(|_| families.1) };
        set_links(&RouteSocket::open()?, links, IpFamilies { ipv4: true, ipv6: true })
    }

    fn installed_count() -> usize {
        count_installed(&RouteSocket::open().unwrap()).unwrap()
    }

    #[test]
    fn only_queries_over_the_default_route_use_the_chosen_link() {
        in_a_network(|| {
            let non_tcp_route = open_test_route(&add_test_host());
            lead_rest(&non_tcp_route, "eth1");
            assert_eq!(
                (installed_count(), exit_interface(DNS_SERVER_V4, DNS_QUERY)),
                (0, "eth0".into()),
                "the LAN's link does not affect DNS queries"
            );
            // A static route to an office, a VPN's policy before the main table, and a server with its own route over
            // a link.
            cable("off0", "10.50.0.1/24");
            ip("route add 172.20.0.0/16 via 10.50.0.2");
            ip("route add 203.0.113.53/32 via 10.1.0.9 dev eth0");
            cable("vpn0", "10.8.0.2/24");
            ip("route add 10.9.0.0/16 dev vpn0 table 77");
            ip("rule add to 10.9.0.0/16 lookup 77 priority 32000");
            set_test_links("eth1", (true, true)).unwrap();
            for query in [DNS_QUERY, "ipproto tcp dport 53", "ipproto tcp dport 853"] {
                assert_eq!(
                    (exit_interface(DNS_SERVER_V4, query), exit_interface(DNS_SERVER_V6, query)),
                    ("eth1".into(), "eth1".into()),
                    "{query}"
                );
            }
            for other in ["", "ipproto udp dport 123", "ipproto udp dport 853", "ipproto udp dport 53 oif eth0"] {
                assert_eq!(exit_interface(DNS_SERVER_V4, other), "eth0", "{other}");
            }
            for (destination, interface) in [
                ("10.1.0.1", "eth0"),
                ("192.168.77.9", "lan0"),
                ("172.20.0.53", "off0"),
                ("203.0.113.53", "eth0"),
                ("10.9.0.53", "vpn0"),
                ("127.0.0.53", "lo"),
                ("10.2.0.1", "eth1"),
            ] {
                assert_eq!(exit_interface(destination, DNS_QUERY), interface, "{destination}");
            }
            assert_eq!(exit_interface("fd01::1", DNS_QUERY), "eth0");
            // The LAN's own queries follow its own rules.
            assert_eq!(exit_interface(DNS_SERVER_V4, "from 192.168.77.2 iif lan0 ipproto udp dport 53"), "eth1");
            set_test_links("nothing", (true, true)).unwrap();
            assert_eq!(
                (
                    installed_count(),
                    exit_interface(DNS_SERVER_V4, DNS_QUERY),
                    exit_interface(DNS_SERVER_V6, DNS_QUERY)
                ),
                (0, "eth0".into(), "eth0".into())
            );
        });
    }

    #[test]
    fn each_family_follows_its_own_default_route() {
        in_a_network(|| {
            let _non_tcp_route = open_test_route(&add_test_host());
            set_test_links("eth1", (false, true)).unwrap();
            assert_eq!(
                (exit_interface(DNS_SERVER_V4, DNS_QUERY), exit_interface(DNS_SERVER_V6, DNS_QUERY)),
                ("eth0".into(), "eth1".into())
            );
            set_test_links("eth1", (true, false)).unwrap();
            assert_eq!(
                (exit_interface(DNS_SERVER_V4, DNS_QUERY), exit_interface(DNS_SERVER_V6, DNS_QUERY)),
                ("eth1".into(), "eth0".into())
            );
            // Without a router, and without IPv6.
            set_test_links("ppp0", (true, true)).unwrap();
            assert_eq!(
                (exit_interface(DNS_SERVER_V4, DNS_QUERY), exit_interface(DNS_SERVER_V6, DNS_QUERY)),
                ("ppp0".into(), "eth0".into())
            );
        });
    }

    #[test]
    fn a_reply_passes_strict_rp_filter() {
        in_a_network(|| {
            let _non_tcp_route = open_test_route(&add_test_host());
            set_test_links("eth1", (true, false)).unwrap();
            let reply_exit = |options: &str| {
                exit_interface(DNS_SERVER_V4, &format!("{options} ipproto udp sport 53 dport 40000"))
            };
            assert_eq!(reply_exit(""), "eth1");
            set_test_links("nothing", (true, false)).unwrap();
            assert_eq!(reply_exit(""), "eth0");
        });
    }

    #[test]
    fn removed_rules_are_restored_and_leftovers_cleared() {
        in_a_network(|| {
            let lan = add_test_host();
            let leaked = open_test_route(&lan);
            set_test_links("eth1", (true, true)).unwrap();
            let all = installed_count();
            assert_eq!(all, 2 * (6 + 3) + 2);
            ip("rule del priority 32765");
            set_test_links("eth1", (true, true)).unwrap();
            assert_eq!((installed_count(), exit_interface(DNS_SERVER_V4, DNS_QUERY)), (all, "eth1".into()));
            std::mem::forget(leaked);
            // Another program's rule in the same place.
            ip("rule add iif lo ipproto udp dport 53 lookup 28004 priority 32765");
            let next = open_test_route(&lan);
            assert_eq!((installed_count(), exit_interface(DNS_SERVER_V4, DNS_QUERY)), (0, "eth0".into()));
            set_test_links("eth1", (true, true)).unwrap();
            drop(next);
            assert_eq!((installed_count(), exit_interface(DNS_SERVER_V4, DNS_QUERY)), (0, "eth0".into()));
            set_test_links("eth1", (true, true)).unwrap();
            assert_eq!(clear(&RouteSocket::open().unwrap()).unwrap(), all);
        });
    }

    #[test]
    fn an_unbound_socket_uses_the_address_of_the_link() {
        in_a_network(|| {
            let _non_tcp_route = open_test_route(&add_test_host());
            let source = || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect(SocketAddr::new(DNS_SERVER_V4.parse::<IpAddr>().unwrap(), 53)).unwrap();
                socket.local_addr().unwrap().ip().to_string()
            };
            assert_eq!(source(), "10.1.0.2");
            set_test_links("eth1", (true, false)).unwrap();
            assert_eq!(source(), "10.2.0.2");
        });
    }
}
