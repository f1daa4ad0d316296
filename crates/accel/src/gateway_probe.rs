//! Probes a link's gateway with echo requests of ICMP or ICMPv6.
//!
//! 1. The socket is bound to the link's device and connected to the gateway.
//! 2. Only replies to probes of this run count: they have to return an identifier and data that were chosen at random.
//!
//! A ping socket that needs no privilege (`ping_group_range`) was not used: most systems do not permit it, and raw
//! packets need the privilege anyway.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use marline_core::wire::packet::{IcmpEcho, Packet};
use marline_sys::device::bind_to_device;
use marline_sys::recvmmsg::Batch;
use socket2::{Domain, Protocol, Socket, Type};

use super::AccelError;

#[derive(Debug)]
pub(super) struct GatewayProber {
    socket: Socket,
    gateway: IpAddr,
    id: u16,
    data: [u8; 8],
    batch: Batch,
}

impl GatewayProber {
    /// For the gateway of the device with this name and index.
    pub(super) fn open(device: &str, index: u32, gateway: IpAddr) -> Result<Self, AccelError> {
        let (domain, protocol) = match gateway {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let open = || -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
            bind_to_device(&socket, device)?;
            let to = match gateway {
                IpAddr::V4(v4) => SocketAddr::from((v4, 0)),
                // An IPv6 gateway mostly has a link-local address.
                IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, index).into(),
            };
            socket.connect(&to.into())?;
            Ok(socket)
        };
        let socket =
            open().map_err(AccelError::kernel(format!("{device}: a socket to probe its gateway {gateway}")))?;
        let random = RandomState::new().hash_one(device).to_be_bytes();
        let id = u16::from_be_bytes([random[0], random[1]]);
        Ok(Self { socket, gateway, id, data: random, batch: Batch::new(8, 256) })
    }

    /// Sends a probe.
    ///
    /// # Errors
    /// It cannot be sent now (no carrier, no neighbour): then there is no reply either.
    pub(super) fn probe(&self, sequence: u16) -> io::Result<()> {
        let echo = IcmpEcho { is_reply: false, id: self.id, sequence, data: &self.data };
        self.socket.send(&echo.emit_message(self.gateway.is_ipv6())).map(drop)
    }

    /// The sequence numbers of the replies since the last call.
    pub(super) fn take_replies(&mut self) -> Vec<u16> {
        let mut answers = Vec::new();
        // An error that the network reports (unreachable) is no reply, and is cleared by reading it.
        while self.batch.receive(&self.socket).is_ok() {
            answers.extend(self.batch.packets().filter_map(|bytes| self.reply_sequence(bytes)));
        }
        answers
    }

    fn reply_sequence(&self, bytes: &[u8]) -> Option<u16> {
        let echo = match self.gateway {
            IpAddr::V4(_) => IcmpEcho::of(Packet::parse(bytes).ok()?).ok()?,
            IpAddr::V6(_) => IcmpEcho::parse_message(bytes, true).ok()?,
        };
        let request = IcmpEcho { is_reply: false, id: self.id, sequence: echo.sequence, data: &self.data };
        echo.is_reply_to(&request).then_some(echo.sequence)
    }
}

impl AsFd for GatewayProber {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
