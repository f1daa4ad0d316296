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
//! Which private networks TCP reaches in the same way is decided by two more rules in these places ([`private`]). This host's own name
//! queries, which a LAN depends on, have rules of their own while the host's default route leads nowhere ([`names`]).
//!
//! Marks by nftables were not used: rules that ask for an interface need no table in force, and the kernel's check of a
//! packet's way back (`rp_filter`) takes them into account.

use std::io;
use std::net::IpAddr;

use marline_core::wire::netlink::{IifRule, Request, Route, SourceRule, TproxyRoute, family, messages};
use marline_net::links::{INTERNET_PROBE_V4, INTERNET_PROBE_V6, Interface, RTPROT_MARLINE};
use marline_sys::netlink::RouteSocket;

use super::names::{self, NameLinks};
use super::private;
use super::rules::Lan;
use crate::forward::rules::Families;

/// The way of the rest, which is there while this lives.
#[derive(Debug)]
pub struct Beyond {
    socket: RouteSocket,
    lan: Lan,
    families: Families,
}

impl Beyond {
    /// As the host's own routes have it, in place of what an earlier run has left.
    ///
    /// # Errors
    /// Not permitted; a kernel without rules of routing.
    pub(super) fn new(lan: &Lan, families: Families) -> io::Result<Self> {
        let beyond = Self { socket: RouteSocket::open()?, lan: lan.clone(), families };
        beyond.lead(None)?;
        names::clear(&beyond.socket)?;
        Ok(beyond)
    }

    /// Leads it over this link; none: as the host's own routes have it. Blocks for as long as the kernel takes.
    ///
    /// # Errors
    /// The kernel refuses a rule or a route: the link has gone meanwhile, or its router is none of its neighbours.
    pub fn lead(&self, link: Option<&Interface>) -> io::Result<()> {
        let Ours { rules, marked, routes } = Ours::read(&self.socket)?;
        let wanted_marked = private::wanted(self.families);
        let (wanted_rules, wanted_routes) = (self.rules(), link.map(|link| self.routes(link)).unwrap_or_default());
        let mut outcome = Ok(());
        for route in wanted_routes.iter().filter(|route| !routes.iter().any(|there| is_same(there, route))) {
            outcome = outcome.and(ask(&self.socket, route.install(), &[]));
        }
        for rule in wanted_rules.iter().filter(|rule| !rules.contains(rule)) {
            outcome = outcome.and(ask(&self.socket, rule.add(), &[EXISTS]));
        }
        for rule in wanted_marked.iter().filter(|rule| !marked.contains(rule)) {
            outcome = outcome.and(ask(&self.socket, rule.add_rule(), &[EXISTS]));
        }
        // What a route has replaced is gone already; IPv6 keeps one over another link.
        let surplus_rules = rules.iter().filter(|rule| !wanted_rules.contains(rule));
        let surplus = routes.iter().filter(|there| !wanted_routes.iter().any(|route| is_same(there, route)));
        let surplus_marked = marked.iter().filter(|rule| !wanted_marked.contains(rule));
        outcome.and(remove(&self.socket, surplus_rules, surplus_marked, surplus))
    }

    /// Leads this host's own name queries over these links in place of its default routes. Blocks for as long as the kernel takes.
    ///
    /// # Errors
    /// As [`Beyond::lead`].
    pub fn lead_names(&self, links: NameLinks<'_>) -> io::Result<()> {
        names::lead(&self.socket, links, self.families)
    }

    /// The links over which this host's own packets to the world leave, by the kernel's numbers: of IPv4 and of IPv6.
    pub fn own(&self) -> [Option<u32>; 2] {
        let leaves = |far: IpAddr| {
            let answer = self.socket.request(&Route::lookup(None, far).finish(4)).ok()?;
            messages(&answer).find_map(|message| Route::parse(&message))?.interface
        };
        [leaves(INTERNET_PROBE_V4.into()), leaves(INTERNET_PROBE_V6.into())]
    }

    fn rules(&self) -> Vec<IifRule> {
        let of = |family, suppress, interface: &String| {
            let rule = |table, priority, suppress| IifRule {
                family,
                interface: interface.clone(),
                table,
                priority,
                suppress_prefixlength: suppress,
                protocol: RTPROT_MARLINE,
            };
            // Prefixes so short are default routes or parts of one, as `marline_net::links` takes them.
            [rule(Route::MAIN, PLACE, Some(suppress)), rule(TABLE, PLACE + 1, None)]
        };
        let Families { ipv4, ipv6 } = self.families;
        let families =
            [(ipv4, family::V4, 1), (ipv6, family::V6, 3)].into_iter().filter(|(is_meant, ..)| *is_meant);
        families
            .flat_map(|(_, family, suppress)| self.lan.0.iter().flat_map(move |name| of(family, suppress, name)))
            .collect()
    }

    fn routes(&self, link: &Interface) -> Vec<Route> {
        let Families { ipv4, ipv6 } = self.families;
        let v4 = default_route(family::V4, link, TABLE).filter(|_| ipv4);
        v4.into_iter().chain(default_route(family::V6, link, TABLE).filter(|_| ipv6)).collect()
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        if let Err(error) = clear(&self.socket).and(names::clear(&self.socket)) {
            tracing::warn!(%error, "rules and routes of the LAN's gateway stay; `marline paths restore` removes them");
        }
    }
}

/// Rules and routes of this sort that are there.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn there(socket: &RouteSocket) -> io::Result<usize> {
    Ours::read(socket).map(|ours| ours.count())
}

/// Removes them, whoever has left them. Returns how many there were.
///
/// # Errors
/// The kernel does not tell which there are, or lets one not be removed.
pub(super) fn clear(socket: &RouteSocket) -> io::Result<usize> {
    let ours = Ours::read(socket)?;
    remove(socket, ours.rules.iter(), ours.marked.iter(), ours.routes.iter())?;
    Ok(ours.count())
}

/// Rules before the routes that they lead to. One that stays does not keep the others.
fn remove<'a>(
    socket: &RouteSocket,
    rules: impl Iterator<Item = &'a IifRule>,
    marked: impl Iterator<Item = &'a TproxyRoute>,
    routes: impl Iterator<Item = &'a Route>,
) -> io::Result<()> {
    let rules = rules.map(|rule| ask(socket, rule.remove(), &[NO_ENTRY]));
    // It went with its link, or another one has taken its place.
    let routes = routes.map(|route| ask(socket, route.remove(), &[NO_ENTRY, NO_ROUTE, NO_DEVICE]));
    let marked = marked.map(|rule| ask(socket, rule.remove_rule(), &[NO_ENTRY]));
    rules.chain(marked).chain(routes).fold(Ok(()), io::Result::and)
}

/// Rule 3.
struct Ours {
    rules: Vec<IifRule>,
    /// Rules for the mark of the `fib` lookups: [`private`].
    marked: Vec<TproxyRoute>,
    routes: Vec<Route>,
}

impl Ours {
    fn read(socket: &RouteSocket) -> io::Result<Self> {
        let rules = socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
        let routes = socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(2))?;
        let rules = messages(&rules).filter_map(|message| IifRule::parse(&message));
        let routes = messages(&routes).filter_map(|message| Route::parse(&message));
        Ok(Self {
            rules: rules.filter(is_rule_of_ours).collect(),
            marked: private::there(socket)?,
            routes: routes.filter(|route| (route.protocol, route.table) == (RTPROT_MARLINE, TABLE)).collect(),
        })
    }

    fn count(&self) -> usize {
        self.rules.len() + self.marked.len() + self.routes.len()
    }
}

fn is_rule_of_ours(rule: &IifRule) -> bool {
    let place = (rule.priority, rule.table);
    rule.protocol == RTPROT_MARLINE && (place == (PLACE, Route::MAIN) || place == (PLACE + 1, TABLE))
}

/// The default route of this family over the link, in a table of ours; none: the link has none.
pub(super) fn default_route(family: u8, link: &Interface, table: u32) -> Option<Route> {
    let gateway = if family == family::V4 { link.route_v4 } else { link.route_v6 }?.gateway;
    Some(Route { gateway, table, protocol: RTPROT_MARLINE, ..Route::default_via_interface(family, link.index) })
}

/// Whether both lead the same way.
pub(super) fn is_same(a: &Route, b: &Route) -> bool {
    (a.family, a.interface, a.gateway) == (b.family, b.interface, b.gateway)
}

pub(super) fn ask(socket: &RouteSocket, request: Request, passable: &[i32]) -> io::Result<()> {
    match socket.request(&request.finish(3)) {
        Err(error) if !error.raw_os_error().is_some_and(|number| passable.contains(&number)) => Err(error),
        _ => Ok(()),
    }
}

/// chosen: right behind the rules of what has a link's address, for the reasons that are said there (`ground::routing`).
pub(super) const PLACE: u32 = 20_002;
/// chosen: next to the tables of the detours.
const TABLE: u32 = 28_003;
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
    pub(in crate::gateway) fn host() -> Lan {
        for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/{name}"), "1").unwrap();
        }
        for (name, address, second) in [
            ("lan0", "192.168.77.1/24", "fd77::1/64"),
            ("lan1", "192.168.78.1/24", "fd78::1/64"),
            ("eth0", "10.1.0.2/24", "fd01::2/64"),
            ("eth1", "10.2.0.2/24", "fd02::2/64"),
        ] {
            cable(name, address);
            ip(&format!("address add {second} dev {name} nodad"));
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
    pub(in crate::gateway) fn way(to: &str, of: &str) -> String {
        let output = Command::new("ip").args(["route", "get", to]).args(of.split_whitespace()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let mut words = said.split_whitespace().skip_while(|word| *word != "dev");
        words
            .nth(1)
            .unwrap_or_else(|| panic!("{to}: {said} {}", String::from_utf8_lossy(&output.stderr)))
            .to_owned()
    }

    pub(in crate::gateway) fn lead(beyond: &Beyond, link: &str) {
        beyond.lead(list_interfaces().unwrap().by_name(link)).unwrap();
    }

    pub(in crate::gateway) fn open(lan: &Lan) -> Beyond {
        Beyond::new(lan, Families { ipv4: true, ipv6: true }).unwrap()
    }

    #[test]
    fn what_comes_in_over_the_lan_leaves_by_the_link_that_is_named_and_nothing_else_does() {
        in_a_network(|| {
            let beyond = open(&host());
            let (far, far_v6) = ("203.0.113.5", "2001:db8::5");
            assert_eq!((way(far, LAN), way(far_v6, LAN_V6)), ("eth0".into(), "eth0".into()));
            lead(&beyond, "eth1");
            assert_eq!((way(far, LAN), way(far_v6, LAN_V6)), ("eth1".into(), "eth1".into()));
            assert_eq!((way(far, ""), way(far_v6, "")), ("eth0".into(), "eth0".into()), "this host's own");
            let index = |name: &str| list_interfaces().unwrap().by_name(name).map(|interface| interface.index);
            assert_eq!(beyond.own(), [index("eth0"); 2]);
            for (to, over) in [("192.168.78.9", "lan1"), ("10.1.0.9", "eth0"), ("10.1.0.2", "lo")] {
                assert_eq!(way(to, LAN), over, "{to}");
            }
            assert_eq!(way("fd78::9", LAN_V6), "lan1");
            lead(&beyond, "ppp0");
            assert_eq!(way(far, LAN), "ppp0", "without a router");
            assert_eq!(way(far_v6, LAN_V6), "eth0", "it has no IPv6");
            beyond.lead(None).unwrap();
            assert_eq!(way(far, LAN), "eth0");
            lead(&beyond, "eth1");
            drop(beyond);
            assert_eq!((there(&RouteSocket::open().unwrap()).unwrap(), way(far, LAN)), (0, "eth0".into()));
        });
    }

    #[test]
    fn another_router_and_what_others_remove_are_followed() {
        in_a_network(|| {
            let beyond = open(&host());
            lead(&beyond, "eth1");
            let rules_and_routes = there(&beyond.socket).unwrap();
            assert_eq!(rules_and_routes, 2 * 2 * 2 + 2 * 2 + 2);
            ip("route del default via 10.2.0.1");
            ip("route add default via 10.2.0.9 metric 200");
            ip("-6 route del default via fd02::1");
            ip("-6 route add default via fd02::9 metric 200");
            ip("rule del priority 20003");
            lead(&beyond, "eth1");
            assert_eq!(there(&beyond.socket).unwrap(), rules_and_routes);
            let output = Command::new("ip").args(["route", "show", "table", "28003"]).output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains("via 10.2.0.9"), "{output:?}");
            ip("link set eth1 down");
            assert_eq!(way("203.0.113.5", LAN), "eth0", "the kernel has removed the route");
        });
    }

    #[test]
    fn a_router_that_is_no_neighbour_is_an_error_and_leaves_the_hosts_own_route() {
        in_a_network(|| {
            let beyond = open(&host());
            lead(&beyond, "eth1");
            let mut link = list_interfaces().unwrap().by_name("eth1").unwrap().clone();
            link.route_v4.as_mut().unwrap().gateway = Some("198.51.100.1".parse().unwrap());
            assert!(beyond.lead(Some(&link)).is_err());
            assert_eq!(way("203.0.113.5", LAN), "eth0");
        });
    }

    #[test]
    fn what_a_killed_run_has_left_is_taken_over_and_removed() {
        in_a_network(|| {
            let lan = host();
            let killed = open(&lan);
            lead(&killed, "eth1");
            std::mem::forget(killed);
            let other = "rule add iif lan0 lookup 28003 priority 20003";
            ip(other);
            let next = open(&lan);
            assert_eq!((there(&next.socket).unwrap(), way("203.0.113.5", LAN)), (12, "eth0".into()));
            drop(next);
            let socket = RouteSocket::open().unwrap();
            assert_eq!((there(&socket).unwrap(), clear(&socket).unwrap()), (0, 0));
            ip(&other.replace("add", "del"));
        });
    }
}
