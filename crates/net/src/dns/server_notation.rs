//! DNS servers in the notations of configuration files and services, and the links over which they can be reached.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::system_paths::SystemPaths;
use crate::links::Interface;

/// The words that follow `nameserver`.
pub(super) fn nameservers(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next().map(str::to_owned)).flatten()
    })
}

/// Parses a server in the notation of the services: `192.0.2.1`, `192.0.2.1:5353`, `[2001:db8::1]:53`,
/// `fe80::1%wlan0`, optionally followed by `#name` for TLS.
pub(super) fn parse_server(paths: &SystemPaths, link: &Interface, server_text: &str) -> Option<SocketAddr> {
    let server_text = server_text.split('#').next()?;
    let (server_text, zone) = server_text.split_once('%').unwrap_or((server_text, link.name.as_str()));
    if zone != link.name && zone.parse() != Ok(link.index) {
        return None;
    }
    if let Ok(address) = server_text.parse::<IpAddr>() {
        return Some(server_socket_addr(paths, link, address));
    }
    server_text.parse().ok()
}

/// Converts the bytes of a server's address.
pub(super) fn server_from_bytes(paths: &SystemPaths, link: &Interface, bytes: &[u8]) -> Option<SocketAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
        .map(|address| server_socket_addr(paths, link, address))
}

/// The server's socket address; a link-local one gets the index of this link as its scope.
fn server_socket_addr(paths: &SystemPaths, link: &Interface, address: IpAddr) -> SocketAddr {
    let scope = |a: Ipv6Addr| if a.is_unicast_link_local() { link.index } else { 0 };
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, paths.dns_port),
        IpAddr::V6(a) => SocketAddrV6::new(a, paths.dns_port, 0, scope(a)).into(),
    }
}

/// Whether the server is in the link's subnet, or the kernel's route to it uses the link.
pub(super) fn is_reached_over(paths: &SystemPaths, link: &Interface, server: IpAddr) -> bool {
    link.is_on_subnet(server) || (paths.route_lookup)(server) == Some(link.index)
}

/// Like [`is_reached_over`], for a server in the notation of the services.
pub(super) fn is_routed_over(paths: &SystemPaths, link: &Interface, server_text: &str) -> bool {
    parse_server(paths, link, server_text).is_some_and(|server| is_reached_over(paths, link, server.ip()))
}
