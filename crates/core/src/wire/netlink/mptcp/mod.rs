//! MPTCP's path manager over generic netlink (`linux/mptcp_pm.h`, `Documentation/netlink/specs/mptcp_pm.yaml`).
//!
//! Builds commands about one connection (by its token) and about the host's endpoints and limits as [`Request`]s.
//! Parses [`Event`], [`Endpoint`] and [`Limits`].
//!
//! 1. Ports are in host byte order in commands and in network order in events.
//! 2. A subflow is identified by its addresses and ports; its ids alone are not unique.
//! 3. All numbers are those of kernel 6.18. Additions of newer kernels are skipped.

mod endpoint;
mod event;

use core::net::{IpAddr, SocketAddr};

use super::attribute::NESTED;
use super::{Request, family};

pub use endpoint::{Endpoint, Limits};
pub use event::{Event, SubflowEvent};

/// Name of the generic netlink family.
pub const FAMILY: &str = "mptcp_pm";
/// Name of its multicast group for events; joining it needs CAP_NET_ADMIN.
pub const EVENTS: &str = "mptcp_pm_events";

/// A subflow to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSubflow {
    /// Token of the connection.
    pub token: u32,
    /// Local address.
    pub local: IpAddr,
    /// Id of the local address, constant within the connection; 0 belongs to the first subflow's address alone.
    pub id: u8,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Index of the interface to bind it to; `None`: the routing table decides.
    pub interface: Option<u32>,
    /// Whether it starts as a backup.
    pub backup: bool,
}

impl NewSubflow {
    /// The command that creates it, for the family with this id.
    pub fn create(&self, family: u16) -> Request {
        let mut request = connection_command(family, SUBFLOW_CREATE, self.token);
        request.nest(ADDR | NESTED, |r| {
            r.mptcp_address(self.local, None);
            r.attribute(A_ID, &[self.id]);
            r.u32(A_FLAGS, if self.backup { BACKUP } else { 0 });
            if let Some(link) = self.interface {
                r.u32(A_IF_IDX, link);
            }
        });
        request.nest(ADDR_REMOTE | NESTED, |r| r.mptcp_address(self.remote.ip(), Some(self.remote.port())));
        request
    }
}

/// Identifies an existing subflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubflowTuple {
    /// Token of the connection.
    pub token: u32,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
}

impl SubflowTuple {
    /// The command that closes the subflow.
    pub fn destroy(&self, family: u16) -> Request {
        self.command(family, SUBFLOW_DESTROY, None)
    }

    /// The same for a subflow over IPv4 on an IPv6 socket, which the kernel finds only by the mapped form of the
    /// addresses (RFC 4291 section 2.5.5.2); `None` for a subflow over IPv6. The first subflow of a connection has its
    /// socket's family.
    pub fn destroy_mapped(&self, family: u16) -> Option<Request> {
        let (IpAddr::V4(local), IpAddr::V4(remote)) = (self.local.ip(), self.remote.ip()) else { return None };
        let mut request = connection_command(family, SUBFLOW_DESTROY, self.token);
        let ends = [(ADDR, local, self.local.port()), (ADDR_REMOTE, remote, self.remote.port())];
        for (kind, address, port) in ends {
            request.nest(kind | NESTED, |r| {
                r.u16(A_FAMILY, family::V6.into());
                r.attribute(A_ADDR6, &address.to_ipv6_mapped().octets());
                r.u16(A_PORT, port);
            });
        }
        Some(request)
    }

    /// The command that requests the peer to use the subflow normally, or as a backup only. It sends an MP_PRIO option,
    /// which the peer does not acknowledge.
    pub fn set_backup(&self, family: u16, backup: bool) -> Request {
        self.command(family, SET_FLAGS, Some(if backup { BACKUP } else { 0 }))
    }

    fn command(&self, family: u16, command: u8, flags: Option<u32>) -> Request {
        let mut request = connection_command(family, command, self.token);
        request.nest(ADDR | NESTED, |r| {
            r.mptcp_address(self.local.ip(), Some(self.local.port()));
            if let Some(flags) = flags {
                r.u32(A_FLAGS, flags);
            }
        });
        request.nest(ADDR_REMOTE | NESTED, |r| r.mptcp_address(self.remote.ip(), Some(self.remote.port())));
        request
    }
}

/// A command about the connection with this token.
fn connection_command(family: u16, command: u8, token: u32) -> Request {
    let mut request = bare_command(family, command);
    request.u32(TOKEN, token);
    request
}

/// A command without attributes.
fn bare_command(family: u16, command: u8) -> Request {
    Request::new(family, Request::CHANGE, &[command, VERSION, 0, 0])
}

impl Request {
    /// Appends family, address and optional port in the form that the kernel's `mptcp_pm_parse_addr` reads.
    fn mptcp_address(&mut self, address: IpAddr, port: Option<u16>) {
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                self.u16(A_FAMILY, family::V4.into());
                self.attribute(A_ADDR4, &v4.octets());
            }
            IpAddr::V6(v6) => {
                self.u16(A_FAMILY, family::V6.into());
                self.attribute(A_ADDR6, &v6.octets());
            }
        }
        if let Some(port) = port {
            self.u16(A_PORT, port);
        }
    }
}

const VERSION: u8 = 1;

// Commands.
const ADD_ADDR: u8 = 1;
const DEL_ADDR: u8 = 2;
const GET_ADDR: u8 = 3;
const SET_LIMITS: u8 = 5;
const GET_LIMITS: u8 = 6;
const SET_FLAGS: u8 = 7;
const SUBFLOW_CREATE: u8 = 10;
const SUBFLOW_DESTROY: u8 = 11;

// Attributes of commands.
const ADDR: u16 = 1;
const RCV_ADD_ADDRS: u16 = 2;
const SUBFLOWS: u16 = 3;
const TOKEN: u16 = 4;
const ADDR_REMOTE: u16 = 6;

// Attributes of an address.
const A_FAMILY: u16 = 1;
const A_ID: u16 = 2;
const A_ADDR4: u16 = 3;
const A_ADDR6: u16 = 4;
const A_PORT: u16 = 5;
const A_FLAGS: u16 = 6;
const A_IF_IDX: u16 = 7;

// Flags of an address.
const SIGNAL: u32 = 1;
const SUBFLOW: u32 = 2;
const BACKUP: u32 = 4;
const FULLMESH: u32 = 8;
