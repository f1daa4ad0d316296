//! Requests for the rules and routes of a gateway that several of its parts share.

use std::io;

use marline_core::wire::netlink::{Request, Route, family};
use marline_net::links::{Interface, RTPROT_MARLINE};
use marline_sys::netlink::RouteSocket;

/// Priority of the rules for packets of the LAN.
/// Our choice: directly after the rules for source addresses of links, for the reasons given in
/// `host_config::source_routing`.
pub(super) const LAN_RULE_PRIORITY: u32 = 20_002;

// Errors of the kernel for rules and routes that exist already, or no longer.
pub(super) const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();
pub(super) const NO_ROUTE: i32 = rustix::io::Errno::SRCH.raw_os_error();
pub(super) const NO_DEVICE: i32 = rustix::io::Errno::NODEV.raw_os_error();
pub(super) const EXISTS: i32 = rustix::io::Errno::EXIST.raw_os_error();

/// The default route of this family over the link, for one of marline's tables; none: the link has none.
pub(super) fn default_route(family: u8, link: &Interface, table: u32) -> Option<Route> {
    let gateway = if family == family::V4 { link.route_v4 } else { link.route_v6 }?.gateway;
    Some(Route { gateway, table, protocol: RTPROT_MARLINE, ..Route::default_via_interface(family, link.index) })
}

/// Whether both routes use the same interface and gateway.
pub(super) fn is_same_route(a: &Route, b: &Route) -> bool {
    (a.family, a.interface, a.gateway) == (b.family, b.interface, b.gateway)
}

/// Sends a request. Errors with these numbers count as success.
///
/// # Errors
/// Any other refusal of the kernel.
pub(super) fn request_ignoring(socket: &RouteSocket, request: Request, ignored_errors: &[i32]) -> io::Result<()> {
    match socket.request(&request.finish(3)) {
        Err(error) if !error.raw_os_error().is_some_and(|number| ignored_errors.contains(&number)) => Err(error),
        _ => Ok(()),
    }
}
