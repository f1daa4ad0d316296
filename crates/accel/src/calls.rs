//! Ports of this machine for connections that the machine of the accelerator leads itself (`fast-fetch`).
//!
//! In: a link and a server. Out: an address and a port from which nobody else reaches that server, and what comes there from it.
//!
//! 1. A port is held by a socket that the kernel takes for a connection ([`repair`]) and that a filter gives nothing: so
//!    the kernel neither answers what comes with a reset nor says anything itself, and no other connection from here to that
//!    server gets the port. No rule is set, nothing listens, and however the process ends, nothing is left.
//! 2. What comes is read beside it, by a packet socket on the link's device whose filter passes those two ports; whose they are
//!    is looked at by the machine.
//! 3. A late packet for a port that is given back is answered with a reset, as any other.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use marline_core::accel::{Bytes, CallId};
use marline_sys::af_packet::{self, Instruction};
use marline_sys::device::bind_to_device;
use marline_sys::recvmmsg::Batch;
use marline_sys::tcp_repair::enable_tcp_repair;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use super::road::Road;
use super::sight::close_apart;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Calls {
    lines: Vec<Line>,
    /// Room for what comes; none while there was no call.
    batch: Option<Batch>,
    is_new: bool,
}

#[derive(Debug)]
struct Line {
    call: CallId,
    ear: OwnedFd,
    /// Keeps the port.
    _held: Socket,
}

impl Calls {
    /// Holds a port on this link towards that server: the address and the port.
    ///
    /// # Errors
    /// No way there, no address, or a kernel that does not do it.
    pub(super) fn open(&mut self, call: CallId, road: &Road, server: SocketAddr) -> io::Result<SocketAddr> {
        let held =
            Socket::new(Domain::for_address(server), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        held.attach_filter(&[SockFilter::new(GIVE, 0, 0, 0)])?;
        bind_to_device(&held, &road.name)?;
        enable_tcp_repair(&held)?;
        held.connect(&SockAddr::from(server))?;
        let local = held.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let ear = af_packet::open_socket(road.index, &filter(server.port(), local.port(), local.is_ipv4()))?;
        self.batch.get_or_insert_with(|| Batch::new(AT_ONCE, LONGEST));
        self.lines.push(Line { call, ear, _held: held });
        self.is_new = true;
        Ok(local)
    }

    /// Gives a port back.
    pub(super) fn close(&mut self, call: CallId) {
        let closed: Vec<Line> = self.lines.extract_if(.., |line| line.call == call).collect();
        if !closed.is_empty() {
            close_apart(closed);
        }
        if self.lines.is_empty() {
            self.batch = None;
        }
    }

    /// What wakes the thread, if something was added since the last time this was asked.
    pub(super) fn added(&mut self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let is_new = std::mem::take(&mut self.is_new);
        self.lines.iter().filter(move |_| is_new).map(|line| line.ear.as_fd())
    }

    /// What has come, at most [`AT_ONCE`] packets of each; the rest wakes the thread again.
    pub(super) fn hear(&mut self) -> Vec<(CallId, Bytes)> {
        let Some(batch) = &mut self.batch else { return Vec::new() };
        let mut heard = Vec::new();
        for line in &self.lines {
            // A device that is gone brings nothing.
            if batch.receive(&line.ear).is_ok() {
                heard.extend(batch.packets().map(|packet| (line.call, Bytes(packet.to_vec()))));
            }
        }
        heard
    }
}

/// A number for a connection to begin with, that nobody else can guess (RFC 6528).
pub(super) fn number() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    // Keyed by the kernel's random numbers, another key each time.
    RandomState::new().hash_one(0_u8) as u32
}

/// TCP from this port to that one that came for this machine.
fn filter(from: u16, to: u16, is_v4: bool) -> Vec<Instruction> {
    // Codes of `linux/bpf_common.h`; numbers that the kernel adds stand at SKF_AD_OFF.
    const BYTE: u16 = 0x30;
    const WORD: u16 = 0x20;
    const WORD_BEHIND: u16 = 0x40;
    const HEADER: u16 = 0xb1;
    const EQUAL: u16 = 0x15;
    const SHIFT: u16 = 0x74;
    const KIND: u32 = 0xffff_f004;
    let ports = u32::from(from) << 16 | u32::from(to);
    let (version, protocol) = if is_v4 { (4, 9) } else { (6, 6) };
    // What follows is passed over where a comparison fails: to the last instruction.
    let mut program = vec![
        (BYTE, 0, 0, 0),
        (SHIFT, 0, 0, 4),
        (EQUAL, 0, 0, version),
        (BYTE, 0, 0, protocol),
        (EQUAL, 0, 0, 6),
        (BYTE, 0, 0, KIND),
        (EQUAL, 0, 0, 0),
    ];
    program.extend(if is_v4 { vec![(HEADER, 0, 0, 0), (WORD_BEHIND, 0, 0, 0)] } else { vec![(WORD, 0, 0, 40)] });
    program.push((EQUAL, 0, 0, ports));
    program.push((GIVE, 0, 0, u32::MAX));
    program.push((GIVE, 0, 0, 0));
    let last = program.len() - 1;
    for (at, instruction) in program.iter_mut().enumerate() {
        if instruction.0 == EQUAL {
            instruction.2 = u8::try_from(last - at - 1).unwrap_or(u8::MAX);
        }
    }
    program
}

/// `BPF_RET`: passes so many bytes.
const GIVE: u16 = 0x06;
/// chosen: what a thin link brings while the thread does something else.
const AT_ONCE: usize = 16;
/// chosen: the longest packet of IP.
const LONGEST: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use marline_core::accel::Families;
    use marline_core::link::LinkId;

    use super::*;

    #[test]
    fn a_port_is_held_without_a_word_to_the_server() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let road = Road {
            link: LinkId(1),
            name: "lo".into(),
            index: 1,
            gateway: std::net::Ipv4Addr::LOCALHOST.into(),
            is_named: false,
            families: Families::Both,
            router: None,
        };
        let mut calls = Calls::default();
        let local = match calls.open(CallId(1), &road, address) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: needs CAP_NET_ADMIN and CAP_NET_RAW");
                return;
            }
            opened => opened.unwrap(),
        };
        assert!(local.ip().is_loopback() && local.port() > 0);
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "it said nothing");
        assert_eq!(calls.added().count(), 1);
        assert_eq!(calls.added().count(), 0);
        // The server's own stack says something to that port: another connection's bytes are not shown.
        let mut other = TcpStream::connect(address).unwrap();
        other.write_all(b"other").unwrap();
        assert!(calls.hear().is_empty());
        calls.close(CallId(1));
        assert!(calls.hear().is_empty());
    }

    #[test]
    fn a_way_that_is_not_there_is_an_error() {
        let road = Road {
            link: LinkId(1),
            name: "nosuch0".into(),
            index: 77,
            gateway: std::net::Ipv4Addr::LOCALHOST.into(),
            is_named: false,
            families: Families::Both,
            router: None,
        };
        Calls::default().open(CallId(1), &road, ([192, 0, 2, 1], 80).into()).unwrap_err();
    }

    #[test]
    fn no_number_is_like_the_one_before() {
        assert!((0..8).map(|_| number()).collect::<std::collections::BTreeSet<_>>().len() > 6);
    }
}
