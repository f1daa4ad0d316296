//! The way that connections which are led away take: to this host itself, wherever they were going.
//!
//! In: which connections ([`Lane`]), and the families that are listened for. Out: a rule and a route for each, while a
//! [`Held`] lives.
//!
//! 1. The rule asks for the mark that only the [rules](super::rules) of nftables give. Without them it means nobody: left
//!    behind by a run that was killed, it does nothing.
//! 2. What an earlier run left behind is removed first, and so it is by the next run without a forwarder and by
//!    `marline paths restore`: rule and route bear marline's number as their origin, as those of links do.

use std::io;

use marline_core::wire::netlink::{Request, Route, SourceRule, TproxyRoute, family, messages};
use marline_net::links::RTPROT_MARLINE;
use marline_sys::netlink::RouteSocket;

use super::rules::{Families, LED};

/// Whose connections are led away: their mark, which is the number of their table as well, and their rule's place.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) mark: u32,
    pub(crate) place: u32,
}

/// This host's own. chosen: after `local` (0) and before whatever routes by address.
pub(crate) const HOST: Lane = Lane { mark: LED, place: 108 };
/// Those of a LAN that an edge serves.
pub(crate) const LAN: Lane = Lane { mark: LED + 1, place: 107 };

/// The rules and routes are there while this lives.
#[derive(Debug)]
pub(crate) struct Held {
    socket: RouteSocket,
    detours: Vec<TproxyRoute>,
}

impl Held {
    /// Makes them.
    ///
    /// # Errors
    /// Not permitted; a kernel without rules of routing.
    pub(crate) fn new(lane: &Lane, families: Families) -> io::Result<Self> {
        let socket = RouteSocket::open()?;
        clear(&socket, lane)?;
        let mut held = Self { socket, detours: Vec::new() };
        for (is_meant, family) in [(families.ipv4, family::V4), (families.ipv6, family::V6)] {
            if is_meant {
                let detour = of(lane, family);
                held.detours.push(detour);
                ask(&held.socket, detour.install_route(LOOPBACK))?;
                ask(&held.socket, detour.add_rule())?;
            }
        }
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for detour in &self.detours {
            // What cannot be removed does nothing without the rules of nftables.
            let _ = ask(&self.socket, detour.remove_rule());
            let _ = ask(&self.socket, detour.remove_route(LOOPBACK));
        }
    }
}

/// Rules and routes of detours that are there.
///
/// # Errors
/// The kernel does not tell.
pub(crate) fn there(socket: &RouteSocket, lane: &Lane) -> io::Result<usize> {
    let (rules, routes) = found(socket, lane)?;
    Ok(rules.len() + routes.len())
}

/// Removes them, whoever has left them. Returns how many there were.
///
/// # Errors
/// The kernel does not tell which there are, or lets one not be removed.
pub(crate) fn clear(socket: &RouteSocket, lane: &Lane) -> io::Result<usize> {
    let (rules, routes) = found(socket, lane)?;
    for rule in &rules {
        ask(socket, rule.remove_rule())?;
    }
    for family in &routes {
        ask(socket, of(lane, *family).remove_route(LOOPBACK))?;
    }
    Ok(rules.len() + routes.len())
}

/// The rules, and the families that have a route.
fn found(socket: &RouteSocket, lane: &Lane) -> io::Result<(Vec<TproxyRoute>, Vec<u8>)> {
    let rules = socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
    let routes = socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(2))?;
    let rules = messages(&rules).filter_map(|message| TproxyRoute::parse(&message));
    let routes = messages(&routes).filter_map(|message| Route::parse(&message));
    Ok((
        rules
            .filter(|rule| (rule.protocol, rule.mark, rule.table) == (RTPROT_MARLINE, lane.mark, lane.mark))
            .collect(),
        routes
            .filter(|route| (route.protocol, route.table) == (RTPROT_MARLINE, lane.mark))
            .map(|r| r.family)
            .collect(),
    ))
}

const fn of(lane: &Lane, family: u8) -> TproxyRoute {
    let Lane { mark, place } = *lane;
    TproxyRoute {
        family,
        mark,
        table: mark,
        priority: place,
        suppress_prefixlength: None,
        protocol: RTPROT_MARLINE,
    }
}

fn ask(socket: &RouteSocket, request: Request) -> io::Result<()> {
    socket.request(&request.finish(3)).map(drop)
}

/// The number of `lo` in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
