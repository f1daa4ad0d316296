//! Sends packets of our own making: over a given link, or into the local stack.
//!
//! 1. They have the mark that the packet rules skip, so that nothing is intercepted twice.
//! 2. Over a link: the socket is bound to the device, so that routes do not matter; the source address of the packet
//!    stays.
//! 3. Into the local stack: a packet for a local address has a route of type `local`, goes over the loopback, and is
//!    received there with that very route. So reverse-path filters do not apply, whatever its source, and it counts as
//!    received by the device that has the address: sockets that are bound to a device receive it, too.
//! 4. For IPv6 the kernel makes the header then, for a source that is not ours (`IPV6_FREEBIND`). A header of our own
//!    would have the kernel create a route for this one packet, which the receiving socket keeps, and which prevents an
//!    unplugged device from going as long (seen on Linux 6.18).

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use marline_core::wire::packet::{AddrPair, Packet, protocol};
use marline_sys::device::bind_to_device;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use super::AccelError;

/// Marks our own packets. Our choice: `macc`, which no registry of marks knows.
pub(super) const MARK: u32 = 0x6d61_6363;

/// Sends whole packets.
#[derive(Debug)]
pub(super) struct RawSocket {
    v4: Socket,
    /// None: this kernel has no IPv6.
    v6: Option<Socket>,
}

impl RawSocket {
    /// Over the device of this name; without one, where routes lead.
    pub(super) fn open(device: Option<&str>) -> Result<Self, AccelError> {
        let open = |domain| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(Protocol::from(IPPROTO_RAW)))?;
            socket.set_mark(MARK)?;
            if let Some(device) = device {
                bind_to_device(&socket, device)?;
            }
            // It receives nothing, and must not block.
            socket.set_send_buffer_size(SEND_BUFFER)?;
            Ok(socket)
        };
        let failed = || AccelError::kernel(format!("a raw socket on {}", device.unwrap_or("this machine")));
        let v4 = open(Domain::IPV4).map_err(failed())?;
        let v6 = match open(Domain::IPV6) {
            Ok(socket) => Some(socket),
            Err(error) if error.raw_os_error() == Some(NO_FAMILY) => None,
            Err(error) => return Err(failed()(error)),
        };
        Ok(Self { v4, v6 })
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// Not a whole packet; no buffer or no route now: it is lost, like any packet.
    pub(super) fn send(&self, packet: &[u8]) -> io::Result<()> {
        let parsed = parse_packet(packet)?;
        let (socket, to) = match parsed.addrs() {
            AddrPair::V4(_, to) => (&self.v4, SocketAddr::from((to, 0))),
            AddrPair::V6(_, to) => (self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?, SocketAddr::from((to, 0))),
        };
        socket.send_to(parsed.bytes(), &SockAddr::from(to)).map(drop)
    }
}

/// Injects packets into the local stack, as if they had been received.
#[derive(Debug)]
pub(super) struct LocalInjector {
    v4: RawSocket,
    /// None: this kernel has no IPv6.
    v6: Option<RawV6>,
}

/// One socket for each protocol, whose header the kernel makes.
#[derive(Debug)]
struct RawV6 {
    tcp: Socket,
    icmp: Socket,
}

impl LocalInjector {
    pub(super) fn open() -> Result<Self, AccelError> {
        let v4 = RawSocket::open(None)?;
        let open = |protocol| -> io::Result<Socket> {
            let socket = Socket::new(Domain::IPV6, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
            // It would receive all packets of its protocol.
            socket.attach_filter(&[SockFilter::new(DROP, 0, 0, 0)])?;
            socket.set_freebind_v6(true)?;
            socket.bind(&SockAddr::from(DISCARD_ADDRESS))?;
            socket.set_mark(MARK)?;
            Ok(socket)
        };
        let open = || Ok(RawV6 { tcp: open(Protocol::TCP)?, icmp: open(Protocol::ICMPV6)? });
        let v6 = v4.v6.is_some().then(open).transpose();
        Ok(Self { v6: v6.map_err(AccelError::kernel("a raw socket of IPv6"))?, v4 })
    }

    /// Injects one packet of TCP or ICMP.
    ///
    /// # Errors
    /// As [`RawSocket::send`].
    pub(super) fn inject(&self, packet: &[u8]) -> io::Result<()> {
        let parsed = parse_packet(packet)?;
        let AddrPair::V6(from, to) = parsed.addrs() else { return self.v4.send(packet) };
        let sockets = self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let socket = if parsed.protocol() == protocol::ICMP_V6 { &sockets.icmp } else { &sockets.tcp };
        socket.bind(&SockAddr::from(SocketAddr::from((from, 0))))?;
        socket.send_to(parsed.body(), &SockAddr::from(SocketAddr::from((to, 0)))).map(drop)
    }
}

fn parse_packet(packet: &[u8]) -> io::Result<Packet<'_>> {
    Packet::parse(packet).map_err(|refusal| io::Error::new(io::ErrorKind::InvalidInput, refusal))
}

/// The discard prefix (RFC 6666): a socket that is bound to it receives nothing.
const DISCARD_ADDRESS: SocketAddrV6 = SocketAddrV6::new(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1), 0, 0, 0);
/// A filter instruction that passes no bytes (`BPF_RET`).
const DROP: u16 = 0x06;
/// `IPPROTO_RAW`: packets come with their header, in both families.
const IPPROTO_RAW: i32 = 255;
const NO_FAMILY: i32 = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
/// Our choice: a second of a thin link's packets; more is lost, as on any full link.
const SEND_BUFFER: usize = 1 << 20;
