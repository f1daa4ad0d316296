//! MPTCP sockets for drivers that own their sockets: opens them, and reports whether a connection negotiated MPTCP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use marline_sys::mptcp::MptcpStatus;
use socket2::{Domain, Protocol, Socket, Type};

/// Opens a non-blocking, unconnected MPTCP socket. Also returns the address to pass to `connect` in order to reach
/// `peer`.
///
/// The kernel adds IPv6 subflows to a connection only if its socket is an IPv6 socket, whatever addresses the server
/// advertises. So every socket is IPv6 where IPv6 is available, and reaches an IPv4 peer by its mapped address (RFC
/// 4291 section 2.5.5.2). Packets, routes and device binding are the same as those of an IPv4 socket.
///
/// # Errors
/// The kernel supports neither MPTCP nor the address family.
pub fn mptcp_socket_to(peer: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let open = |domain| Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::MPTCP));
    // The host's default may be IPv6 only (net.ipv6.bindv6only).
    let dual_stack = open(Domain::IPV6).and_then(|socket| match socket.set_only_v6(false) {
        Err(error) if peer.is_ipv4() => Err(error),
        _ => Ok(socket),
    });
    match (dual_stack, peer.ip()) {
        (Ok(socket), IpAddr::V4(ip)) => Ok((socket, SocketAddr::new(ip.to_ipv6_mapped().into(), peer.port()))),
        (Ok(socket), IpAddr::V6(_)) => Ok((socket, peer)),
        (Err(_), IpAddr::V4(_)) => Ok((open(Domain::IPV4)?, peer)),
        (Err(error), IpAddr::V6(_)) => Err(error),
    }
}

/// Converts an address of such a socket from its mapped form to plain IPv4; other addresses are returned unchanged.
pub fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // Not rebuilt from the IP address: the scope of an IPv6 address is kept.
        IpAddr::V6(_) => address,
    }
}

/// Whether a connection that requested MPTCP uses it (`true`) or fell back to plain TCP (`false`). `None`: the
/// connection did not request MPTCP, is not established, or the kernel does not report it.
pub fn is_negotiated(socket: impl AsFd) -> Option<bool> {
    match MptcpStatus::query(socket).ok()? {
        MptcpStatus::Negotiated => Some(true),
        MptcpStatus::FellBack => Some(false),
        MptcpStatus::PlainTcp | MptcpStatus::Requested => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_dual_stack_socket_reaches_an_ipv4_listener_with_an_ipv4_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listener_addr = listener.local_addr().unwrap();
        let (socket, connect_addr) = match mptcp_socket_to(listener_addr) {
            Ok(opened) => opened,
            Err(error) => {
                eprintln!("skipped: this kernel has no MPTCP ({error})");
                return;
            }
        };
        socket.set_nonblocking(false).unwrap();
        socket.connect(&connect_addr.into()).unwrap();
        let (_, peer) = listener.accept().unwrap();
        let address = |address: io::Result<socket2::SockAddr>| unmapped(address.unwrap().as_socket().unwrap());
        assert_eq!((address(socket.local_addr()), address(socket.peer_addr())), (peer, listener_addr));
        assert!(peer.is_ipv4());
    }

    #[test]
    fn only_mapped_addresses_are_converted() {
        let all = ["[::ffff:192.0.2.1]:7", "192.0.2.1:7", "[2001:db8::1]:7", "[fe80::1%3]:7"];
        let converted = all.map(|text| unmapped(text.parse().unwrap()).to_string());
        assert_eq!(converted, ["192.0.2.1:7", "192.0.2.1:7", "[2001:db8::1]:7", "[fe80::1%3]:7"]);
    }
}
