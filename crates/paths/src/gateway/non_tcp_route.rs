//! Route of the LAN traffic that does not go to the edge: UDP, ICMP and other non-TCP traffic leave over one link.
//!
//! Rules and routes are in the kernel while a [`NonTcpRoute`] lives.
//!
//! ```text
//!  20002  iif LAN: main, without its default routes    routes that are more specific than a default route
//!  20003  iif LAN: table 28003                         one default route for each family that the link has
//!  32766  everything: main                             families without a route in the table
//! ```
//!
//! 1. While no link is set the table is empty, and the host's own default route applies. The same holds for a family
//!    of which the link has no default route.
//! 2. The priorities follow those of marline's other rules by mark (107, 108) and by source (20000, 20001), and those
//!    of VPN programs (tailscale, 5210 to 5270).
//! 3. Rules and routes with marline's protocol number and with these priorities or this table are marline's, whatever
//!    run made them. A crash therefore needs no other record.
//! 4. Each call compares with the present state and changes only differences, so that the next call restores what
//!    another program removed.
//! 5. Running streams get the address of the new link by themselves: the kernel drops a masquerade whose packets
//!    leave by another interface, with one packet, and the next packet creates a new one.
//!
//! Two more rules with these priorities decide which private networks TCP reaches in the same way
//! ([`private_networks`]). DNS queries of this host, on which a LAN depends, have their own rules while the host's
//! default route does not work ([`dns_routes`]).
//!
//! nftables marks would not do: rules by input interface need no table, and the kernel's reverse path filter
//! (`rp_filter`) takes them into account.

use std::io;
use std::net::IpAddr;

use marline_core::wire::netlink::{IifRule, Request, Route, SourceRule, TproxyRoute, family, messages};
use marline_net::links::{INTERNET_PROBE_V4, INTERNET_PROBE_V6, Interface, RTPROT_MARLINE};
use marline_sys::netlink::RouteSocket;

use super::dns_routes::{self, DnsLinks};
use super::nft_rules::Lan;
use super::private_networks;
use super::route_requests::{
    EXISTS, LAN_RULE_PRIORITY, NO_DEVICE, NO_ENTRY, NO_ROUTE, default_route, is_same_route, request_ignoring,
};
use crate::transparent::nft_rules::IpFamilies;

/// The route of non-TCP traffic, installed while this value lives.
#[derive(Debug)]
pub struct NonTcpRoute {
    socket: RouteSocket,
    lan: Lan,
    families: IpFamilies,
}

impl NonTcpRoute {
    /// Starts with the host's own default route, after removing what an earlier run has left.
    ///
    /// # Errors
    /// Not permitted, or a kernel without policy routing.
    pub(super) fn new(lan: &Lan, families: IpFamilies) -> io::Result<Self> {
        let non_tcp_route = Self { socket: RouteSocket::open()?, lan: lan.clone(), families };
        non_tcp_route.set_link(None)?;
        dns_routes::clear(&non_tcp_route.socket)?;
        Ok(non_tcp_route)
    }

    /// Routes over this link; none: over the host's own default route. Blocks for netlink requests.
    ///
    /// # Errors
    /// The kernel refuses a rule or a route, because the link has disappeared or its gateway is no neighbor.
    pub fn set_link(&self, link: Option<&Interface>) -> io::Result<()> {
        let InstalledRouting { rules, marked_rules, routes } = InstalledRouting::read(&self.socket)?;
        let required_marked = private_networks::required_rules(self.families);
        let (required_rules, required_routes) =
            (self.rules(), link.map(|link| self.routes(link)).unwrap_or_default());
        // Routes first, then rules, then removals: existing traffic always has a route. An error does not stop the
        // other steps.
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
        // A replaced route is gone already, except that IPv6 keeps one over another link.
        let surplus_rules = rules.iter().filter(|rule| !required_rules.contains(rule));
        let surplus =
            routes.iter().filter(|installed| !required_routes.iter().any(|route| is_same_route(installed, route)));
        let surplus_marked = marked_rules.iter().filter(|rule| !required_marked.contains(rule));
        outcome.and(remove_all(&self.socket, surplus_rules, surplus_marked, surplus))
    }

    /// Routes DNS queries of this host over these links instead of its default routes. Blocks for netlink requests.
    ///
    /// # Errors
    /// As [`set_link`](Self::set_link).
    pub fn set_dns_links(&self, links: DnsLinks<'_>) -> io::Result<()> {
        dns_routes::set_links(&self.socket, links, self.families)
    }

    /// The interfaces by which packets of this host leave to the Internet, by index: IPv4 and IPv6.
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
            // Shorter prefixes are default routes or parts of one, as in `marline_net::links`.
            [
                rule(Route::MAIN, LAN_RULE_PRIORITY, Some(suppressed_prefix_len)),
                rule(ROUTE_TABLE, LAN_RULE_PRIORITY + 1, None),
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
            tracing::warn!(%error, "cannot remove rules and routes of the LAN's gateway; run `marline paths restore`");
        }
    }
}

/// Number of installed rules and routes.
///
/// # Errors
/// The kernel's rules and routes cannot be read.
pub(super) fn count_installed(socket: &RouteSocket) -> io::Result<usize> {
    InstalledRouting::read(socket).map(|installed| installed.count())
}

/// Removes rules and routes of any run. Returns their number.
///
/// # Errors
/// They cannot be read or removed.
pub(super) fn clear(socket: &RouteSocket) -> io::Result<usize> {
    let installed = InstalledRouting::read(socket)?;
    remove_all(socket, installed.rules.iter(), installed.marked_rules.iter(), installed.routes.iter())?;
    Ok(installed.count())
}

/// Removes rules before the routes to which they refer. An error does not stop the other removals.
fn remove_all<'a>(
    socket: &RouteSocket,
    rules: impl Iterator<Item = &'a IifRule>,
    marked_rules: impl Iterator<Item = &'a TproxyRoute>,
    routes: impl Iterator<Item = &'a Route>,
) -> io::Result<()> {
    let rules = rules.map(|rule| request_ignoring(socket, rule.remove(), &[NO_ENTRY]));
    // It disappeared with its link, or another one has replaced it.
    let routes = routes.map(|route| request_ignoring(socket, route.remove(), &[NO_ENTRY, NO_ROUTE, NO_DEVICE]));
    let marked_rules = marked_rules.map(|rule| request_ignoring(socket, rule.remove_rule(), &[NO_ENTRY]));
    rules.chain(marked_rules).chain(routes).fold(Ok(()), io::Result::and)
}

/// Installed rules and routes of marline (point 3 of the module documentation).
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
        && (slot == (LAN_RULE_PRIORITY, Route::MAIN) || slot == (LAN_RULE_PRIORITY + 1, ROUTE_TABLE))
}

/// Our choice: next to the tables for TPROXY.
const ROUTE_TABLE: u32 = 28_003;
#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use marline_net::links::list_interfaces;
    use marline_net::testing::{cable, in_a_network, ip};

    use super::*;

    const LAN: &str = "from 192.168.77.2 iif lan0";
    const LAN_V6: &str = "from fd77::2 iif lan0";

    /// Two LANs, two links with routers, and a point-to-point link, in the order of their metrics.
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

    /// The interface by which a packet to a destination leaves.
    pub(in crate::gateway) fn exit_interface(destination: &str, options: &str) -> String {
        let output = Command::new("ip")
            .args(["route", "get", destination])
            .args(options.split_whitespace())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut fields = text.split_whitespace().skip_while(|field| *field != "dev");
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
    fn only_lan_traffic_leaves_by_the_chosen_link() {
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
    fn new_gateways_are_followed_and_removed_rules_restored() {
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
    fn an_unreachable_gateway_is_an_error_and_keeps_the_hosts_route() {
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
    fn leftovers_of_a_killed_run_are_adopted_and_removed() {
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
