//! Packets of our own making: over a link that is named, or into the own stack.
//!
//! In: whole packets of IP. Out: they leave as they are (IPv4's header gets its checksum from the kernel).
//!
//! 1. What leaves has the mark that the queue's rules pass over: nothing is intercepted twice.
//! 2. Over a link: the socket is bound to the device, so that no route says otherwise; the packet's own source stays.
//! 3. Into the own stack: a packet for an address of this machine has a route of the kind `local`, goes over the loopback,
//!    and is taken there with that very route. So reverse-path filters are not asked, whosever source it has, and it counts
//!    as come over the device that has the address: sockets that are bound to one take it, too.
//! 4. Of IPv6 the kernel makes the header then, for a source that is not ours (`IPV6_FREEBIND`). A header of our own would have
//!    the kernel make a route for this one packet, which the socket that takes it keeps, and which keeps a device that is
//!    unplugged from going as long (seen on Linux 6.18).

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use marline_core::wire::packet::{AddrPair, Packet, protocol};
use marline_sys::device::bind_to_device;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use super::AccelError;

/// What marks our own packets. chosen: `macc`, which no list of marks knows.
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
            // It hears nothing, and is to hold nothing up.
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

    /// Sends one.
    ///
    /// # Errors
    /// No whole packet; no room or no way now: it is lost, as packets are.
    pub(super) fn send(&self, packet: &[u8]) -> io::Result<()> {
        let parsed = parse_whole(packet)?;
        let (socket, to) = match parsed.addrs() {
            AddrPair::V4(_, to) => (&self.v4, SocketAddr::from((to, 0))),
            AddrPair::V6(_, to) => (self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?, SocketAddr::from((to, 0))),
        };
        socket.send_to(parsed.bytes(), &SockAddr::from(to)).map(drop)
    }
}

/// Gives packets to the own stack, as if they had come.
#[derive(Debug)]
pub(super) struct LocalInjector {
    v4: RawSocket,
    /// None: this kernel has no IPv6.
    v6: Option<RawV6>,
}

/// Of each protocol its socket, whose header the kernel makes.
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
            // It would hear all of its protocol that comes to this machine.
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

    /// Gives one, of TCP or ICMP.
    ///
    /// # Errors
    /// As [`Raw::send`].
    pub(super) fn inject(&self, packet: &[u8]) -> io::Result<()> {
        let parsed = parse_whole(packet)?;
        let AddrPair::V6(from, to) = parsed.addrs() else { return self.v4.send(packet) };
        let sockets = self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let socket = if parsed.protocol() == protocol::ICMP_V6 { &sockets.icmp } else { &sockets.tcp };
        socket.bind(&SockAddr::from(SocketAddr::from((from, 0))))?;
        socket.send_to(parsed.body(), &SockAddr::from(SocketAddr::from((to, 0)))).map(drop)
    }
}

fn parse_whole(packet: &[u8]) -> io::Result<Packet<'_>> {
    Packet::parse(packet).map_err(|refusal| io::Error::new(io::ErrorKind::InvalidInput, refusal))
}

/// An address that nobody has (RFC 6666): what is bound to it hears nothing.
const DISCARD_ADDRESS: SocketAddrV6 = SocketAddrV6::new(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1), 0, 0, 0);
/// A filter's instruction that passes no bytes (`BPF_RET`).
const DROP: u16 = 0x06;
/// `IPPROTO_RAW`: packets come with their header, in both families.
const IPPROTO_RAW: i32 = 255;
const NO_FAMILY: i32 = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
/// chosen: a second of a thin link's packets; what does not fit is lost, as on any full link.
const SEND_BUFFER: usize = 1 << 20;
