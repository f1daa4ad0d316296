//! sock_diag: what the kernel knows of any program's sockets, without any privilege (`linux/inet_diag.h`).
//!
//! In: the answer to a question about one socket ([`one`], [`one_mptcp`]) or about all in some states ([`all`], [`all_mptcp`]). Out:
//! [`Socket`], with the counters of TCP, the place of a subflow in its MPTCP connection, or the connection itself.
//!
//! 1. A question about one costs ten microseconds, a dump of twenty thousand a tenth of a second: who asks often asks
//!    for those that he wants.
//! 2. The counters are always asked for: without them the kernel leaves out the MPTCP part as well.
//! 3. Structures are read by offset, as far as the kernel wrote them; a shorter one is an older kernel's.

mod info;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use info::{DssMapping, MptcpInfo, SubflowInfo, TcpInfo};

use super::{Attributes, Message, Request, aligned, family, u8_at, u16_at, u32_at};

/// Asks for one TCP socket by its addresses and ports; `link` is the number of the interface that it is bound to, or
/// may be. The reply is one message with its counters, or `ENOENT`.
pub fn query_tcp(local: SocketAddr, remote: SocketAddr, link: u32) -> Request {
    socket_request(BY_FAMILY, Request::QUERY, local, remote, link)
}

/// Aborts one TCP socket (`SOCK_DESTROY`): its peer gets a RST, and data that was not acknowledged is dropped. The answer is an
/// acknowledgement: `ENOENT` if there is no such socket, `EOPNOTSUPP` where the kernel was built without it.
pub fn abort(local: SocketAddr, remote: SocketAddr, link: u32) -> Request {
    socket_request(DESTROY, Request::CHANGE, local, remote, link)
}

fn socket_request(kind: u16, flags: u16, local: SocketAddr, remote: SocketAddr, link: u32) -> Request {
    let mut body = request_body(family_of(local.ip()), 0);
    body[8..10].copy_from_slice(&local.port().to_be_bytes());
    body[10..12].copy_from_slice(&remote.port().to_be_bytes());
    put_address(&mut body, 12, local.ip());
    put_address(&mut body, 28, remote.ip());
    body[44..48].copy_from_slice(&link.to_ne_bytes());
    // Any cookie.
    body[48..56].fill(0xff);
    Request::new(kind, flags, &body)
}

/// Asks for one MPTCP socket by its token on this side, whatever its addresses are. The reply is one message for
/// [`Socket::parse_mptcp`], or `ENOENT`.
pub fn query_mptcp(token: u32) -> Request {
    let mut body = request_body(family::V4, 0);
    // The token stands where other protocols have a cookie.
    body[48..52].copy_from_slice(&token.to_ne_bytes());
    let mut request = Request::new(BY_FAMILY, Request::QUERY, &body);
    request.u32(REQ_PROTOCOL, MPTCP);
    request
}

/// Asks for all TCP sockets of an address family in these states (`1 << state`), with their counters.
pub fn dump_tcp(family: u8, states: u32) -> Request {
    Request::new(BY_FAMILY, Request::DUMP, &request_body(family, states))
}

/// Asks for all MPTCP sockets of an address family in these states, those that fell back to TCP included. Answered by
/// messages for [`Socket::parse_mptcp`].
pub fn dump_mptcp(family: u8, states: u32) -> Request {
    let mut request = Request::new(BY_FAMILY, Request::DUMP, &request_body(family, states));
    request.u32(REQ_PROTOCOL, MPTCP);
    request
}

/// States of TCP, which MPTCP shares.
pub mod state {
    /// Both directions are open.
    pub const ESTABLISHED: u8 = 1;
    /// The first packet is on its way.
    pub const SYN_SENT: u8 = 2;
    /// This end has closed its direction.
    pub const FIN_WAIT1: u8 = 4;
    /// And the other has acknowledged that.
    pub const FIN_WAIT2: u8 = 5;
    /// The other end has closed its direction.
    pub const CLOSE_WAIT: u8 = 8;
    /// Those in which this end may send, as a mask.
    pub const CAN_SEND: u32 = 1 << ESTABLISHED | 1 << CLOSE_WAIT;
    /// Those in which data can still come or go, as a mask.
    pub const CAN_TRANSFER: u32 = 1 << ESTABLISHED | 1 << FIN_WAIT1 | 1 << FIN_WAIT2 | 1 << CLOSE_WAIT;
}

/// A socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// See [`state`].
    pub state: u8,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The interface that it is bound to; 0: none.
    pub interface: u32,
    /// Bytes that came and were not read.
    pub unread: u32,
    /// Bytes that were written and not acknowledged.
    pub unacknowledged: u32,
    /// Its inode; 0: no program holds it any more.
    pub inode: u32,
    /// Its counters; none: a socket that has none yet or any more.
    pub tcp_info: Option<TcpInfo>,
    /// Its place in an MPTCP connection; none: it is no subflow.
    pub subflow: Option<SubflowInfo>,
    /// The MPTCP connection that it is.
    pub mptcp_info: Option<MptcpInfo>,
}

impl Socket {
    /// Reads a TCP socket; `None` for anything else.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let mut socket = Self::parse_header(message)?;
        for attribute in Attributes::after(message.body, FIXED_LEN) {
            match attribute.kind {
                INFO => socket.tcp_info = TcpInfo::read(attribute.value),
                ULP_INFO => {
                    let inner = attribute.nested().find(|a| a.kind == ULP_MPTCP);
                    socket.subflow = inner.and_then(|a| SubflowInfo::read(a.nested()));
                }
                _ => {}
            }
        }
        Some(socket)
    }

    /// Reads an MPTCP socket, of an answer to [`all_mptcp`] or [`one_mptcp`].
    pub fn parse_mptcp(message: &Message<'_>) -> Option<Self> {
        let mut socket = Self::parse_header(message)?;
        let info = Attributes::after(message.body, FIXED_LEN).find(|a| a.kind == INFO);
        socket.mptcp_info = info.and_then(|a| MptcpInfo::read(a.value));
        Some(socket)
    }

    /// Whether data can still come or go.
    pub fn is_open(&self) -> bool {
        1_u32.checked_shl(self.state.into()).is_some_and(|bit| bit & state::CAN_TRANSFER != 0)
    }

    /// Whether this end may send.
    pub fn can_send(&self) -> bool {
        1_u32.checked_shl(self.state.into()).is_some_and(|bit| bit & state::CAN_SEND != 0)
    }

    fn parse_header(message: &Message<'_>) -> Option<Self> {
        let body = message.body;
        if message.kind != BY_FAMILY || body.len() < FIXED_LEN {
            return None;
        }
        let family = u8_at(body, 0)?;
        let port = |at| u16_at(body, at).map(u16::from_be);
        Some(Self {
            state: u8_at(body, 1)?,
            local: SocketAddr::new(read_address(body, 8, family)?, port(4)?),
            remote: SocketAddr::new(read_address(body, 24, family)?, port(6)?),
            interface: u32_at(body, 40)?,
            unread: u32_at(body, 56)?,
            unacknowledged: u32_at(body, 60)?,
            inode: u32_at(body, 68)?,
            tcp_info: None,
            subflow: None,
            mptcp_info: None,
        })
    }
}

/// `struct inet_diag_req_v2`, with its first fields.
fn request_body(family: u8, states: u32) -> [u8; 56] {
    let mut body = [0; 56];
    body[..3].copy_from_slice(&[family, TCP, EXT_INFO]);
    body[4..8].copy_from_slice(&states.to_ne_bytes());
    body
}

fn family_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { family::V4 } else { family::V6 }
}

fn put_address(body: &mut [u8; 56], at: usize, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => body[at..at + 4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => body[at..at + 16].copy_from_slice(&v6.octets()),
    }
}

/// An address of the fixed part; a mapped one is the IPv4 address that it stands for.
fn read_address(body: &[u8], at: usize, family: u8) -> Option<IpAddr> {
    let bytes: [u8; 16] = body.get(at..at.checked_add(16)?)?.try_into().ok()?;
    match family {
        family::V4 => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
        family::V6 => Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()),
        _ => None,
    }
}

/// `struct inet_diag_msg`.
const FIXED_LEN: usize = aligned(72);
/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const TCP: u8 = 6;
const MPTCP: u32 = 262;
/// `1 << (INET_DIAG_INFO - 1)`.
const EXT_INFO: u8 = 2;
/// `INET_DIAG_INFO`.
const INFO: u16 = 2;
/// `INET_DIAG_ULP_INFO`.
const ULP_INFO: u16 = 19;
/// `INET_ULP_INFO_MPTCP`.
const ULP_MPTCP: u16 = 3;
/// `INET_DIAG_REQ_PROTOCOL`: protocols above 255 do not fit the request's byte.
const REQ_PROTOCOL: u16 = 3;
