//! Sockets of MPTCP, for drivers that own them: how they are opened, and whether a connection speaks it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use marline_sys::mptcp::Spoken;
use socket2::{Domain, Protocol, Socket, Type};

/// A socket that asks for MPTCP, does not block and is not connected yet, and the address by which it reaches this one.
///
/// The kernel joins a connection over IPv6 only if its socket is one of IPv6, whatever the server announces. So each is, where IPv6 can be
/// had, and reaches an IPv4 address in its mapped form (RFC 4291 section 2.5.5.2). Packets, routes and the device that it is bound to are
/// the same as for a socket of IPv4.
///
/// # Errors
/// The kernel has no MPTCP, or not the family of the address.
pub fn mptcp_socket_to(peer: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let open = |domain| Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::MPTCP));
    // The host's default may be the other (net.ipv6.bindv6only).
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

/// An address of such a socket, without the mapped form.
pub fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // What else belongs to an IPv6 address (its scope) stays.
        IpAddr::V6(_) => address,
    }
}

/// Whether a connection that was begun with MPTCP speaks it, or fell back to plain TCP; none: it was begun without it, or the kernel does
/// not say.
pub fn is_negotiated(socket: impl AsFd) -> Option<bool> {
    match Spoken::of(socket).ok()? {
        Spoken::Yes => Some(true),
        Spoken::FellBack => Some(false),
        Spoken::Never | Spoken::Asked => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_socket_of_both_families_reaches_an_ipv4_listener_which_sees_its_ipv4_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (socket, to) = match mptcp_socket_to(at) {
            Ok(opened) => opened,
            Err(error) => {
                eprintln!("skipped: this kernel has no MPTCP ({error})");
                return;
            }
        };
        socket.set_nonblocking(false).unwrap();
        socket.connect(&to.into()).unwrap();
        let (_, peer) = listener.accept().unwrap();
        let address = |address: io::Result<socket2::SockAddr>| unmapped(address.unwrap().as_socket().unwrap());
        assert_eq!((address(socket.local_addr()), address(socket.peer_addr())), (peer, at));
        assert!(peer.is_ipv4());
    }

    #[test]
    fn only_the_mapped_form_is_taken_away() {
        let all = ["[::ffff:192.0.2.1]:7", "192.0.2.1:7", "[2001:db8::1]:7", "[fe80::1%3]:7"];
        let told = all.map(|text| unmapped(text.parse().unwrap()).to_string());
        assert_eq!(told, ["192.0.2.1:7", "192.0.2.1:7", "[2001:db8::1]:7", "[fe80::1%3]:7"]);
    }
}
