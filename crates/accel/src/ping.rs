//! Asks a link's gateway whether it is there: echo of ICMP and ICMPv6.
//!
//! In: numbers of questions. Out: numbers of answers.
//!
//! 1. The socket is bound to the link's device and hears the gateway alone.
//! 2. Only the answer to a question of this very run counts: it has to bring back an identifier and data that were drawn
//!    for it.
//!
//! A socket of the kind that needs no privilege (`ping_group_range`) was not used: most systems do not grant it, and what
//! is needed for raw packets is needed anyway.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use marline_core::wire::packet::{IcmpEcho, Packet};
use marline_sys::device::bind_to_device;
use marline_sys::recvmmsg::Batch;
use socket2::{Domain, Protocol, Socket, Type};

use super::AccelError;

/// Asks one gateway.
#[derive(Debug)]
pub(super) struct Pinger {
    socket: Socket,
    gateway: IpAddr,
    id: u16,
    data: [u8; 8],
    batch: Batch,
}

impl Pinger {
    /// Of the gateway of the device with this name and number.
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
                // A gateway of IPv6 has an address of the link's own, mostly.
                IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, index).into(),
            };
            socket.connect(&to.into())?;
            Ok(socket)
        };
        let socket =
            open().map_err(AccelError::kernel(format!("{device}: a socket that asks its gateway {gateway}")))?;
        let drawn = RandomState::new().hash_one(device).to_be_bytes();
        let id = u16::from_be_bytes([drawn[0], drawn[1]]);
        Ok(Self { socket, gateway, id, data: drawn, batch: Batch::new(8, 256) })
    }

    /// Asks.
    ///
    /// # Errors
    /// It cannot be sent now (no carrier, no neighbour): then there is no answer either.
    pub(super) fn ask(&self, sequence: u16) -> io::Result<()> {
        let echo = IcmpEcho { is_reply: false, id: self.id, sequence, data: &self.data };
        self.socket.send(&echo.emit_message(self.gateway.is_ipv6())).map(drop)
    }

    /// The numbers of what was answered since.
    pub(super) fn answers(&mut self) -> Vec<u16> {
        let mut answers = Vec::new();
        // An error that the network reports (unreachable) is no answer, and is gone once it is read.
        while self.batch.receive(&self.socket).is_ok() {
            answers.extend(self.batch.packets().filter_map(|bytes| self.answer(bytes)));
        }
        answers
    }

    fn answer(&self, bytes: &[u8]) -> Option<u16> {
        let echo = match self.gateway {
            IpAddr::V4(_) => IcmpEcho::of(Packet::parse(bytes).ok()?).ok()?,
            IpAddr::V6(_) => IcmpEcho::parse_message(bytes, true).ok()?,
        };
        let question = IcmpEcho { is_reply: false, id: self.id, sequence: echo.sequence, data: &self.data };
        echo.is_reply_to(&question).then_some(echo.sequence)
    }
}

impl AsFd for Pinger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
