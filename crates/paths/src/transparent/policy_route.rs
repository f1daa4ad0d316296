//! Policy route of redirected connections: delivers their packets to this host, whatever their destination.
//!
//! A [`PolicyRouteGuard`] installs a rule and a route per address family for one kind of [`DivertedTraffic`].
//!
//! 1. The rule matches the mark that only the [rules](super::nft_rules) of nftables set. Without them it matches no
//!    packet, so a leftover of a killed run has no effect.
//! 2. Leftovers are removed first, and also by the next run without a forwarder and by `marline paths restore`: rule
//!    and route carry marline's protocol number, like those of links.

use std::io;

use marline_core::wire::netlink::{Request, Route, SourceRule, TproxyRoute, family, messages};
use marline_net::links::RTPROT_MARLINE;
use marline_sys::netlink::RouteSocket;

use super::nft_rules::{DIVERTED_MARK, IpFamilies};

/// A kind of redirected traffic: its mark, which is its table number as well, and the priority of its rule.
#[derive(Debug)]
pub(crate) struct DivertedTraffic {
    pub(crate) mark: u32,
    pub(crate) priority: u32,
}

/// Connections of this host. Our choice: after `local` (0) and before rules by address.
pub(crate) const HOST_TRAFFIC: DivertedTraffic = DivertedTraffic { mark: DIVERTED_MARK, priority: 108 };
/// Connections of a LAN that an edge serves.
pub(crate) const LAN_TRAFFIC: DivertedTraffic = DivertedTraffic { mark: DIVERTED_MARK + 1, priority: 107 };

/// Installed rules and routes, removed on drop.
#[derive(Debug)]
pub(crate) struct PolicyRouteGuard {
    socket: RouteSocket,
    routes: Vec<TproxyRoute>,
}

impl PolicyRouteGuard {
    /// Installs rules and routes, after removing leftovers.
    ///
    /// # Errors
    /// Not permitted, or a kernel without policy routing.
    pub(crate) fn new(traffic: &DivertedTraffic, families: IpFamilies) -> io::Result<Self> {
        let socket = RouteSocket::open()?;
        clear(&socket, traffic)?;
        let mut guard = Self { socket, routes: Vec::new() };
        for (is_enabled, family) in [(families.ipv4, family::V4), (families.ipv6, family::V6)] {
            if is_enabled {
                let route = tproxy_route(traffic, family);
                guard.routes.push(route);
                request(&guard.socket, route.install_route(LOOPBACK_IFINDEX))?;
                request(&guard.socket, route.add_rule())?;
            }
        }
        Ok(guard)
    }
}

impl Drop for PolicyRouteGuard {
    fn drop(&mut self) {
        for route in &self.routes {
            // A leftover has no effect without the nftables rules.
            let _ = request(&self.socket, route.remove_rule());
            let _ = request(&self.socket, route.remove_route(LOOPBACK_IFINDEX));
        }
    }
}

/// Number of installed rules and routes.
///
/// # Errors
/// The kernel's rules and routes cannot be read.
pub(crate) fn count_installed(socket: &RouteSocket, traffic: &DivertedTraffic) -> io::Result<usize> {
    let (rules, routes) = find_installed(socket, traffic)?;
    Ok(rules.len() + routes.len())
}

/// Removes rules and routes of any run. Returns their number.
///
/// # Errors
/// They cannot be read or removed.
pub(crate) fn clear(socket: &RouteSocket, traffic: &DivertedTraffic) -> io::Result<usize> {
    let (rules, routes) = find_installed(socket, traffic)?;
    for rule in &rules {
        request(socket, rule.remove_rule())?;
    }
    for family in &routes {
        request(socket, tproxy_route(traffic, *family).remove_route(LOOPBACK_IFINDEX))?;
    }
    Ok(rules.len() + routes.len())
}

/// The installed rules, and the families that have a route.
fn find_installed(socket: &RouteSocket, traffic: &DivertedTraffic) -> io::Result<(Vec<TproxyRoute>, Vec<u8>)> {
    let rules = socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
    let routes = socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(2))?;
    let rules = messages(&rules).filter_map(|message| TproxyRoute::parse(&message));
    let routes = messages(&routes).filter_map(|message| Route::parse(&message));
    Ok((
        rules
            .filter(|rule| (rule.protocol, rule.mark, rule.table) == (RTPROT_MARLINE, traffic.mark, traffic.mark))
            .collect(),
        routes
            .filter(|route| (route.protocol, route.table) == (RTPROT_MARLINE, traffic.mark))
            .map(|r| r.family)
            .collect(),
    ))
}

const fn tproxy_route(traffic: &DivertedTraffic, family: u8) -> TproxyRoute {
    let DivertedTraffic { mark, priority } = *traffic;
    TproxyRoute { family, mark, table: mark, priority, suppress_prefixlength: None, protocol: RTPROT_MARLINE }
}

fn request(socket: &RouteSocket, request: Request) -> io::Result<()> {
    socket.request(&request.finish(3)).map(drop)
}

/// Interface index of `lo` in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK_IFINDEX: u32 = 1;
