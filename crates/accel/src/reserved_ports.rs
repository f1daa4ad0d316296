//! Reserves TCP ports for connections that the machine itself conducts (`fast-fetch`).
//!
//! 1. A port is reserved by a socket that the kernel takes for an established connection ([`repair`]) and whose filter
//!    passes nothing: so the kernel neither answers what comes with a reset nor sends anything itself, and no other
//!    local connection to that server gets the port. No packet rule is set, nothing listens, and however the process
//!    ends, nothing is left.
//! 2. What comes is read beside it, by a packet socket on the link's device whose filter passes those two ports; the
//!    machine checks the addresses.
//! 3. A late packet for a port that was released is answered with a reset, like any other.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use marline_core::accel::{ConnId, PacketBytes};
use marline_sys::af_packet::{self, Instruction};
use marline_sys::device::bind_to_device;
use marline_sys::recvmmsg::Batch;
use marline_sys::tcp_repair::enable_tcp_repair;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use crate::capture::close_in_background;
use crate::links::AccelLink;

#[derive(Debug, Default)]
pub(super) struct ReservedPorts {
    ports: Vec<ReservedPort>,
    /// Memory for what comes; none before the first reservation.
    batch: Option<Batch>,
    is_new: bool,
}

#[derive(Debug)]
struct ReservedPort {
    conn_id: ConnId,
    capture: OwnedFd,
    /// Keeps the port.
    _socket: Socket,
}

impl ReservedPorts {
    /// Reserves a port on this link towards that server. Returns the local address and port.
    ///
    /// # Errors
    /// No route, no address, or a kernel that does not support it.
    pub(super) fn open(&mut self, conn: ConnId, link: &AccelLink, server: SocketAddr) -> io::Result<SocketAddr> {
        let socket =
            Socket::new(Domain::for_address(server), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
        bind_to_device(&socket, &link.name)?;
        enable_tcp_repair(&socket)?;
        socket.connect(&SockAddr::from(server))?;
        let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let capture = af_packet::open_socket(link.index, &filter(server.port(), local.port(), local.is_ipv4()))?;
        self.batch.get_or_insert_with(|| Batch::new(MAX_BATCH, MAX_PACKET));
        self.ports.push(ReservedPort { conn_id: conn, capture, _socket: socket });
        self.is_new = true;
        Ok(local)
    }

    /// Releases a port.
    pub(super) fn close(&mut self, conn: ConnId) {
        let closed: Vec<ReservedPort> = self.ports.extract_if(.., |port| port.conn_id == conn).collect();
        if !closed.is_empty() {
            close_in_background(closed);
        }
        if self.ports.is_empty() {
            self.batch = None;
        }
    }

    /// The sockets that were added since the last call; they are to wake the thread.
    pub(super) fn added(&mut self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let is_new = std::mem::take(&mut self.is_new);
        self.ports.iter().filter(move |_| is_new).map(|port| port.capture.as_fd())
    }

    /// What has come, at most [`MAX_BATCH`] packets of each; the rest wakes the thread again.
    pub(super) fn receive(&mut self) -> Vec<(ConnId, PacketBytes)> {
        let Some(batch) = &mut self.batch else { return Vec::new() };
        let mut packets = Vec::new();
        for port in &self.ports {
            // A device that is gone delivers nothing.
            if batch.receive(&port.capture).is_ok() {
                packets.extend(batch.packets().map(|packet| (port.conn_id, PacketBytes(packet.to_vec()))));
            }
        }
        packets
    }
}

/// An initial sequence number that cannot be guessed (RFC 6528).
pub(super) fn random_isn() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    // Keyed by the kernel's random numbers, another key each time.
    RandomState::new().hash_one(0_u8) as u32
}

/// Passes TCP from this port to that one that came for this host.
fn filter(from: u16, to: u16, is_v4: bool) -> Vec<Instruction> {
    // Codes of `linux/bpf_common.h`; ancillary data is at SKF_AD_OFF.
    const BYTE: u16 = 0x30;
    const WORD: u16 = 0x20;
    const WORD_INDIRECT: u16 = 0x40;
    const HEADER: u16 = 0xb1;
    const EQUAL: u16 = 0x15;
    const SHIFT: u16 = 0x74;
    const KIND: u32 = 0xffff_f004;
    let ports = u32::from(from) << 16 | u32::from(to);
    let (version, protocol) = if is_v4 { (4, 9) } else { (6, 6) };
    // A failed comparison jumps to the last instruction.
    let mut program = vec![
        (BYTE, 0, 0, 0),
        (SHIFT, 0, 0, 4),
        (EQUAL, 0, 0, version),
        (BYTE, 0, 0, protocol),
        (EQUAL, 0, 0, 6),
        (BYTE, 0, 0, KIND),
        (EQUAL, 0, 0, 0),
    ];
    program.extend(if is_v4 { vec![(HEADER, 0, 0, 0), (WORD_INDIRECT, 0, 0, 0)] } else { vec![(WORD, 0, 0, 40)] });
    program.push((EQUAL, 0, 0, ports));
    program.push((RETURN, 0, 0, u32::MAX));
    program.push((RETURN, 0, 0, 0));
    let last = program.len() - 1;
    for (at, instruction) in program.iter_mut().enumerate() {
        if instruction.0 == EQUAL {
            instruction.2 = u8::try_from(last - at - 1).unwrap_or(u8::MAX);
        }
    }
    program
}

/// `BPF_RET`: passes so many bytes.
const RETURN: u16 = 0x06;
/// Our choice: what a thin link delivers while the thread does something else.
const MAX_BATCH: usize = 16;
/// The longest IP packet.
const MAX_PACKET: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use marline_core::accel::AddressFamilies;
    use marline_core::link::LinkId;

    use super::*;

    #[test]
    fn a_port_is_reserved_without_a_packet_to_the_server() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let link = AccelLink {
            link: LinkId(1),
            name: "lo".into(),
            index: 1,
            gateway: std::net::Ipv4Addr::LOCALHOST.into(),
            has_named_gateway: false,
            families: AddressFamilies::Both,
            router: None,
        };
        let mut ports = ReservedPorts::default();
        let local = match ports.open(ConnId(1), &link, address) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: needs CAP_NET_ADMIN and CAP_NET_RAW");
                return;
            }
            opened => opened.unwrap(),
        };
        assert!(local.ip().is_loopback() && local.port() > 0);
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nothing was sent");
        assert_eq!(ports.added().count(), 1);
        assert_eq!(ports.added().count(), 0);
        // The server's own stack sends to that port from another connection: its bytes are not passed.
        let mut other = TcpStream::connect(address).unwrap();
        other.write_all(b"other").unwrap();
        assert!(ports.receive().is_empty());
        ports.close(ConnId(1));
        assert!(ports.receive().is_empty());
    }

    #[test]
    fn a_missing_device_is_an_error() {
        let link = AccelLink {
            link: LinkId(1),
            name: "nosuch0".into(),
            index: 77,
            gateway: std::net::Ipv4Addr::LOCALHOST.into(),
            has_named_gateway: false,
            families: AddressFamilies::Both,
            router: None,
        };
        ReservedPorts::default().open(ConnId(1), &link, ([192, 0, 2, 1], 80).into()).unwrap_err();
    }

    #[test]
    fn initial_sequence_numbers_differ() {
        assert!((0..8).map(|_| random_isn()).collect::<std::collections::BTreeSet<_>>().len() > 6);
    }
}
