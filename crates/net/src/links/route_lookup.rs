//! Route lookups in the kernel: whether an address is this machine's own, and over which kind of route it is reached.
//! No packet is sent.
//!
//! A list of this machine's addresses was not used. The list for choosing links lacks link-local addresses, and a
//! local route (`ip route add local 198.51.100.0/24 dev lo`, as relays of an anycast network have it) makes a whole
//! network this machine's own.

use std::io;
use std::net::IpAddr;

use super::interface::Subnet;
use super::routes::{default_routes, parse_internet_route};
use marline_core::wire::netlink::{Address, Request, Route, family, messages};
use marline_sys::netlink::RouteSocket;

/// Whether packets to an address are delivered to this machine. An unreachable address is not local.
///
/// # Errors
/// The kernel cannot be queried.
pub fn is_local_address(address: IpAddr) -> io::Result<bool> {
    let lookup = Route::lookup(None, address.to_canonical());
    match RouteSocket::open()?.request(&lookup.finish(1)) {
        Ok(response) => {
            let route = messages(&response).find_map(|message| Route::parse(&message));
            Ok(route.is_some_and(|route| route.route_type == RTN_LOCAL))
        }
        Err(error) if UNREACHABLE_ERRORS.contains(&error.kind()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether packets to an address use a route other than a default route: to a subnet of an interface, or a static
/// route.
pub fn has_non_default_route(address: IpAddr) -> bool {
    let address = address.to_canonical();
    matching_route(address).is_ok_and(|entry| {
        entry.is_some_and(|entry| entry.route_type == RTN_UNICAST && is_non_default(&entry, address))
    })
}

/// The index of the interface over which an address is reached by a route other than a default route.
pub fn non_default_route_interface(address: IpAddr) -> Option<u32> {
    has_non_default_route(address).then(|| route_interface(address)).flatten()
}

/// Whether the routing table rejects an address: its route is of type `unreachable`, `prohibit` or `blackhole`.
///
/// For IPv4 the kernel reports these types as errors of the lookup, and the lack of any route as another error.
pub fn is_rejected_by_route(address: IpAddr) -> bool {
    let address = address.to_canonical();
    match matching_route(address) {
        Ok(entry) => {
            entry.is_some_and(|entry| REJECT_TYPES.contains(&entry.route_type) && is_non_default(&entry, address))
        }
        Err(error) => REJECT_ERRORS.contains(&error.kind()),
    }
}

/// The entry of the routing table (FIB) that matches an address.
fn matching_route(address: IpAddr) -> io::Result<Option<Route>> {
    let response = RouteSocket::open()?.request(&Route::lookup_fib_entry(address).finish(1))?;
    Ok(messages(&response).find_map(|message| Route::parse(&message)))
}

/// Whether the entry for an address is more specific than a default route.
fn is_non_default(entry: &Route, address: IpAddr) -> bool {
    // Such short prefixes are default routes, or the halves of one that VPNs use.
    let shortest = if address.is_ipv4() { 1 } else { 3 };
    entry.destination.is_some_and(|(_, prefix)| prefix > shortest)
}

/// The index of the interface over which packets to an address leave; `None`: there is no route, or the kernel cannot
/// be queried.
pub(crate) fn route_interface(address: IpAddr) -> Option<u32> {
    let lookup = Route::lookup(None, address.to_canonical());
    let response = RouteSocket::open().ok()?.request(&lookup.finish(1)).ok()?;
    parse_internet_route(&response).map(|(index, _)| index)
}

/// Whether an address is in a subnet of an interface without a default route, such as a LAN behind this machine or a
/// tunnel. No link reaches such an address. `false` if the kernel cannot be queried.
///
/// A route to other networks is not enough: some VPNs have `0.0.0.0/1` instead of a default route, and requests over
/// a link must not leave through them.
pub fn is_outside_links(address: IpAddr) -> bool {
    let is_outside = || {
        let socket = RouteSocket::open()?;
        let response = socket.request(&Route::lookup(None, address.to_canonical()).finish(1))?;
        let kind = messages(&response).find_map(|message| Route::parse(&message)).map(|route| route.route_type);
        // Only a directly connected destination can be in a subnet of an interface.
        let Some((interface_index, _)) = parse_internet_route(&response)
            .filter(|(_, route)| route.gateway.is_none() && kind == Some(RTN_UNICAST))
        else {
            return Ok::<_, io::Error>(false);
        };
        // An interface with a default route is a link, whatever its subnets are.
        let routes = socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(2))?;
        let is_link = messages(&routes)
            .flat_map(|message| default_routes(&message))
            .any(|(link, ..)| link == interface_index);
        Ok(!is_link && has_subnet_with(&socket, interface_index, address.to_canonical())?)
    };
    is_outside().unwrap_or(false)
}

/// Like [`is_outside_links`], and `interface` has no subnet with the address either.
pub(crate) fn is_outside_links_and_not_on(address: IpAddr, interface: &str) -> bool {
    let is_on = || {
        let socket = RouteSocket::open()?;
        has_subnet_with(&socket, rustix::net::netdevice::name_to_index(&socket, interface)?, address.to_canonical())
    };
    is_outside_links(address) && !is_on().unwrap_or(false)
}

/// Whether a subnet of an interface contains the address.
fn has_subnet_with(socket: &RouteSocket, index: u32, address: IpAddr) -> io::Result<bool> {
    let addresses = socket.request(&Request::dump_addresses().finish(1))?;
    let networks = messages(&addresses).filter_map(|message| Address::parse(&message));
    let mut of_interface = networks.filter(|subnet| subnet.interface == index);
    Ok(of_interface.any(|subnet| Subnet { address: subnet.address, prefix_len: subnet.prefix }.contains(address)))
}

/// `RTN_UNICAST` and `RTN_LOCAL` of linux/rtnetlink.h.
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
/// `RTN_BLACKHOLE`, `RTN_UNREACHABLE` and `RTN_PROHIBIT` of linux/rtnetlink.h.
const REJECT_TYPES: [u8; 3] = [6, 7, 8];
/// The errors that the kernel reports for these types (ip-route(8)): EINVAL, EHOSTUNREACH and EACCES.
const REJECT_ERRORS: [io::ErrorKind; 3] =
    [io::ErrorKind::InvalidInput, io::ErrorKind::HostUnreachable, io::ErrorKind::PermissionDenied];
/// There is no route, or the kernel lacks IPv6.
const UNREACHABLE_ERRORS: [io::ErrorKind; 3] =
    [io::ErrorKind::NetworkUnreachable, io::ErrorKind::HostUnreachable, io::ErrorKind::Unsupported];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cable, in_a_network, ip};

    fn is_local(address: &str) -> bool {
        is_local_address(address.parse().unwrap()).unwrap()
    }

    #[test]
    fn addresses_that_the_kernel_delivers_locally_are_local() {
        assert!(is_local("127.0.0.1") && is_local("127.9.9.9") && is_local("::ffff:127.0.0.1"));
        in_a_network(|| {
            assert!(!is_local("192.0.2.1") && !is_local("2001:db8::1"));
            cable("d0", "192.0.2.1/24");
            ip("address add 192.0.2.7/24 dev d0");
            ip("address add 192.0.2.9/32 dev d0 scope link");
            ip("address add 2001:db8::1/64 dev d0 nodad");
            ip("route add local 198.51.100.0/24 dev lo");
            for address in ["192.0.2.1", "192.0.2.7", "192.0.2.9", "2001:db8::1", "::1", "198.51.100.200"] {
                // The kernel adds the local route of an IPv6 address from a work queue, after `ip` has returned.
                let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
                while !is_local(address) {
                    assert!(std::time::Instant::now() < deadline, "{address}");
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
            }
            for other in ["192.0.2.2", "2001:db8::2", "203.0.113.1"] {
                assert!(!is_local(other), "{other}");
            }
        });
    }

    #[test]
    fn subnets_and_static_routes_are_distinguished_from_default_routes() {
        in_a_network(|| {
            cable("d0", "10.0.1.2/24");
            cable("d1", "192.168.7.1/24");
            ip("address add fd01::2/64 dev d0 nodad");
            ip("route add default via 10.0.1.1 dev d0");
            ip("route add 128.0.0.0/1 via 192.168.7.9");
            ip("route add 10.60.0.0/16 via 192.168.7.9");
            ip("route add unreachable 10.61.0.0/16");
            let has_route = |address: &str| has_non_default_route(address.parse().unwrap());
            for address in ["10.0.1.1", "192.168.7.9", "10.60.7.7", "::ffff:10.60.7.7", "fd01::9"] {
                assert!(has_route(address), "{address}");
            }
            for other in ["10.9.0.1", "172.16.0.1", "10.61.0.1", "10.0.1.2", "127.0.0.1", "fd09::1"] {
                assert!(!has_route(other), "{other}");
            }
            ip("route add prohibit 10.62.0.0/16");
            ip("route add blackhole 10.63.0.0/16");
            ip("route add unreachable fd07::/32");
            ip("route add blackhole fd08::/32");
            let is_rejected = |address: &str| is_rejected_by_route(address.parse().unwrap());
            for address in ["10.61.0.1", "10.62.0.1", "10.63.0.1", "::ffff:10.61.0.1", "fd07::1", "fd08::1"] {
                assert!(is_rejected(address), "{address}");
            }
            for other in ["10.0.1.1", "10.60.7.7", "10.9.0.1", "172.16.0.1", "127.0.0.1", "fd01::9", "fd09::1"] {
                assert!(!is_rejected(other), "{other}");
            }
        });
    }

    #[test]
    fn a_lan_without_a_default_route_is_outside_the_links() {
        in_a_network(|| {
            cable("d0", "192.0.2.1/24");
            cable("d1", "192.168.7.1/24");
            ip("route add default via 192.0.2.2 dev d0");
            ip("route add 10.9.0.0/16 via 192.168.7.2 dev d1");
            let is_outside = |address: &str| is_outside_links(address.parse().unwrap());
            assert!(is_outside("192.168.7.9") && is_outside("::ffff:192.168.7.9"));
            assert!(
                is_outside_links_and_not_on("192.168.7.9".parse().unwrap(), "d0")
                    && !is_outside_links_and_not_on("192.168.7.9".parse().unwrap(), "d1")
            );
            for other in ["192.0.2.9", "203.0.113.1", "127.0.0.1", "192.168.7.1", "10.9.0.1", "2001:db8::1"] {
                assert!(!is_outside(other), "{other}");
            }
            ip("route add 0.0.0.0/1 dev d1");
            assert!(
                !is_outside("50.0.0.1") && is_outside("192.168.7.9"),
                "the half of the Internet that a VPN routes is not a LAN"
            );
            ip("route add default via 192.168.7.2 dev d1 metric 9");
            assert!(!is_outside("192.168.7.9"), "with a default route it is a link");
        });
    }
}
