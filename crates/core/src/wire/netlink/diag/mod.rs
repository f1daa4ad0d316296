//! sock_diag: state of any program's sockets, readable without privileges (`linux/inet_diag.h`).
//!
//! Requests for one socket ([`query_tcp`], [`query_mptcp`]) or for all in some states ([`dump_tcp`], [`dump_mptcp`])
//! are answered with messages that parse into a [`Socket`]: its TCP counters, its membership as a subflow of an MPTCP
//! connection, or the MPTCP connection itself.
//!
//! 1. A request for one socket takes ten microseconds, a dump of twenty thousand a tenth of a second. Frequent polling
//!    should therefore query single sockets.
//! 2. The counters are always requested, because the kernel leaves out the MPTCP part without them.
//! 3. Structures are read by offset, as far as the kernel wrote them. A shorter structure comes from an older kernel.

mod info;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use info::{DssMapping, MptcpInfo, SubflowInfo, TcpInfo};

use super::{Attributes, Message, Request, aligned, family, u8_at, u16_at, u32_at};

/// Request for one TCP socket by its addresses and ports. `link` is the index of the interface to which it is or may be
/// bound. The reply is one message with its counters, or `ENOENT`.
pub fn query_tcp(local: SocketAddr, remote: SocketAddr, link: u32) -> Request {
    socket_request(BY_FAMILY, Request::QUERY, local, remote, link)
}

/// Request to abort one TCP socket (`SOCK_DESTROY`): its peer gets a RST, and unacknowledged data is dropped. The reply
/// is an acknowledgement: `ENOENT` if there is no such socket, `EOPNOTSUPP` if the kernel was built without the
/// feature.
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
    // Matches any cookie.
    body[48..56].fill(0xff);
    Request::new(kind, flags, &body)
}

/// Request for one MPTCP socket by its local token, whatever its addresses are. The reply is one message for
/// [`Socket::parse_mptcp`], or `ENOENT`.
pub fn query_mptcp(token: u32) -> Request {
    let mut body = request_body(family::V4, 0);
    // The token is in the field that holds the cookie for other protocols.
    body[48..52].copy_from_slice(&token.to_ne_bytes());
    let mut request = Request::new(BY_FAMILY, Request::QUERY, &body);
    request.u32(REQ_PROTOCOL, MPTCP);
    request
}

/// Request for all TCP sockets of an address family in these states (`1 << state`), with their counters.
pub fn dump_tcp(family: u8, states: u32) -> Request {
    Request::new(BY_FAMILY, Request::DUMP, &request_body(family, states))
}

/// Request for all MPTCP sockets of an address family in these states, including those that fell back to TCP. The reply
/// consists of messages for [`Socket::parse_mptcp`].
pub fn dump_mptcp(family: u8, states: u32) -> Request {
    let mut request = Request::new(BY_FAMILY, Request::DUMP, &request_body(family, states));
    request.u32(REQ_PROTOCOL, MPTCP);
    request
}

/// TCP states, which MPTCP uses as well.
pub mod state {
    /// Both directions are open.
    pub const ESTABLISHED: u8 = 1;
    /// The SYN has been sent.
    pub const SYN_SENT: u8 = 2;
    /// This host has closed its direction.
    pub const FIN_WAIT1: u8 = 4;
    /// This host has closed its direction and the peer has acknowledged that.
    pub const FIN_WAIT2: u8 = 5;
    /// The peer has closed its direction.
    pub const CLOSE_WAIT: u8 = 8;
    /// Mask of the states in which this host may send.
    pub const CAN_SEND: u32 = 1 << ESTABLISHED | 1 << CLOSE_WAIT;
    /// Mask of the states in which data can still be sent or received.
    pub const CAN_TRANSFER: u32 = 1 << ESTABLISHED | 1 << FIN_WAIT1 | 1 << FIN_WAIT2 | 1 << CLOSE_WAIT;
}

/// A TCP or MPTCP socket of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// TCP state; see [`state`].
    pub state: u8,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Index of the interface to which it is bound; 0 if unbound.
    pub interface: u32,
    /// Received bytes that the program has not read yet.
    pub unread: u32,
    /// Written bytes that the peer has not acknowledged yet.
    pub unacknowledged: u32,
    /// Inode number; 0 once no program holds the socket.
    pub inode: u32,
    /// TCP counters; `None` for sockets without them, such as those in TIME-WAIT.
    pub tcp_info: Option<TcpInfo>,
    /// Membership in an MPTCP connection; `None` for a socket that is no subflow.
    pub subflow: Option<SubflowInfo>,
    /// State of the MPTCP connection, for a socket parsed by [`Self::parse_mptcp`].
    pub mptcp_info: Option<MptcpInfo>,
}

impl Socket {
    /// Parses a TCP socket; `None` for any other message.
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

    /// Parses an MPTCP socket from a reply to [`dump_mptcp`] or [`query_mptcp`].
    pub fn parse_mptcp(message: &Message<'_>) -> Option<Self> {
        let mut socket = Self::parse_header(message)?;
        let info = Attributes::after(message.body, FIXED_LEN).find(|a| a.kind == INFO);
        socket.mptcp_info = info.and_then(|a| MptcpInfo::read(a.value));
        Some(socket)
    }

    /// Whether data can still be sent or received.
    pub fn is_open(&self) -> bool {
        1_u32.checked_shl(self.state.into()).is_some_and(|bit| bit & state::CAN_TRANSFER != 0)
    }

    /// Whether this host may send.
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

/// The first fields of `struct inet_diag_req_v2`.
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

/// An address of the fixed part. IPv4-mapped addresses are converted to IPv4.
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
/// `INET_DIAG_REQ_PROTOCOL`, for protocol numbers above 255, which do not fit the byte in the fixed part.
const REQ_PROTOCOL: u16 = 3;
