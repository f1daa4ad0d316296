//! The way that connections which are led away take: to this host itself, wherever they were going.
//!
//! In: which connections ([`Lane`]), and the families that are listened for. Out: a rule and a route for each, while a
//! [`Held`] lives.
//!
//! 1. The rule asks for the mark that only the [rules](super::nft_rules) of nftables give. Without them it means nobody: left
//!    behind by a run that was killed, it does nothing.
//! 2. What an earlier run left behind is removed first, and so it is by the next run without a forwarder and by
//!    `marline paths restore`: rule and route bear marline's number as their origin, as those of links do.

use std::io;

use marline_core::wire::netlink::{Request, Route, SourceRule, TproxyRoute, family, messages};
use marline_net::links::RTPROT_MARLINE;
use marline_sys::netlink::RouteSocket;

use super::nft_rules::{DIVERTED_MARK, IpFamilies};

/// Whose connections are led away: their mark, which is the number of their table as well, and their rule's place.
#[derive(Debug)]
pub(crate) struct DivertedTraffic {
    pub(crate) mark: u32,
    pub(crate) priority: u32,
}

/// This host's own. chosen: after `local` (0) and before whatever routes by address.
pub(crate) const HOST_TRAFFIC: DivertedTraffic = DivertedTraffic { mark: DIVERTED_MARK, priority: 108 };
/// Those of a LAN that an edge serves.
pub(crate) const LAN_TRAFFIC: DivertedTraffic = DivertedTraffic { mark: DIVERTED_MARK + 1, priority: 107 };

/// The rules and routes are there while this lives.
#[derive(Debug)]
pub(crate) struct PolicyRouteGuard {
    socket: RouteSocket,
    routes: Vec<TproxyRoute>,
}

impl PolicyRouteGuard {
    /// Makes them.
    ///
    /// # Errors
    /// Not permitted; a kernel without rules of routing.
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
            // What cannot be removed does nothing without the rules of nftables.
            let _ = request(&self.socket, route.remove_rule());
            let _ = request(&self.socket, route.remove_route(LOOPBACK_IFINDEX));
        }
    }
}

/// Rules and routes of detours that are there.
///
/// # Errors
/// The kernel does not tell.
pub(crate) fn count_installed(socket: &RouteSocket, traffic: &DivertedTraffic) -> io::Result<usize> {
    let (rules, routes) = find_installed(socket, traffic)?;
    Ok(rules.len() + routes.len())
}

/// Removes them, whoever has left them. Returns how many there were.
///
/// # Errors
/// The kernel does not tell which there are, or lets one not be removed.
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

/// The rules, and the families that have a route.
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

/// The number of `lo` in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK_IFINDEX: u32 = 1;
