//! Events of MPTCP's path manager: connections, subflows, addresses.
//!
//! 1. On a client, CREATED and ESTABLISHED come together, once the peer has acknowledged data.
//! 2. SUB_ESTABLISHED is not final: a server with enough subflows resets the new one some milliseconds later.
//! 3. A message that lacks a required attribute is not parsed as an event.

use core::net::{IpAddr, SocketAddr};

use super::super::generic::{attributes, command};
use super::super::{Attribute, Message};

/// An event of the path manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection has been created, but cannot be joined yet.
    Created(SubflowEvent),
    /// A connection is established and can be joined.
    Established(SubflowEvent),
    /// This host has closed a connection.
    Closed {
        /// Token of the connection.
        token: u32,
    },
    /// The peer has announced another address (ADD_ADDR).
    AddressAnnounced {
        /// Token of the connection.
        token: u32,
        /// Id of the address.
        id: u8,
        /// The announced address.
        address: IpAddr,
        /// The announced port; `None`: the connection's port.
        port: Option<u16>,
    },
    /// The peer has withdrawn an address (REMOVE_ADDR).
    AddressRemoved {
        /// Token of the connection.
        token: u32,
        /// Id of the address.
        id: u8,
    },
    /// A subflow has joined.
    SubflowEstablished(SubflowEvent),
    /// A subflow has been closed.
    SubflowClosed(SubflowEvent),
    /// The peer has set or cleared the backup flag of a subflow; see [`SubflowEvent::peer_backup`].
    SubflowPriority(SubflowEvent),
    /// A listener was created or closed, which does not concern a client.
    Listener,
}

/// The subflow that an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubflowEvent {
    /// Token of the connection.
    pub token: u32,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Id of the local address.
    pub local_id: u8,
    /// Id of the peer's address.
    pub remote_id: u8,
    /// Index of the interface to which it is bound; 0 if unbound or not reported.
    pub interface: u32,
    /// Whether the peer set it to backup.
    pub peer_backup: bool,
    /// Error number (`errno.h`) with which it was closed; 0 if closed in order or not reported.
    pub error: i32,
    /// Whether the peer reset it, because it refused the join or gave up the subflow.
    pub reset: bool,
    /// Whether this host is the server.
    pub server_side: bool,
    /// Whether the peer forbids joins to the address of its first subflow (RFC 8684, flag C of MP_CAPABLE).
    pub deny_join_id0: bool,
}

impl Event {
    /// Parses an event of the family with this id; `None` for any other message.
    pub fn parse(message: &Message<'_>, family: u16) -> Option<Self> {
        if message.kind != family {
            return None;
        }
        let fields = EventAttributes::read(attributes(message));
        Some(match command(message)? {
            CREATED => Self::Created(fields.subflow()?),
            ESTABLISHED => Self::Established(fields.subflow()?),
            CLOSED => Self::Closed { token: fields.token? },
            ANNOUNCED => Self::AddressAnnounced {
                token: fields.token?,
                id: fields.remote_id?,
                address: fields.remote?.to_canonical(),
                port: fields.remote_port.filter(|port| *port != 0),
            },
            REMOVED => Self::AddressRemoved { token: fields.token?, id: fields.remote_id? },
            SUB_ESTABLISHED => Self::SubflowEstablished(fields.subflow()?),
            SUB_CLOSED => Self::SubflowClosed(fields.subflow()?),
            SUB_PRIORITY => Self::SubflowPriority(fields.subflow()?),
            LISTENER_CREATED | LISTENER_CLOSED => Self::Listener,
            _ => return None,
        })
    }
}

/// The attributes of an event; `None` for those that are missing.
#[derive(Clone, Copy, Debug, Default)]
struct EventAttributes {
    token: Option<u32>,
    local: Option<IpAddr>,
    remote: Option<IpAddr>,
    local_port: Option<u16>,
    remote_port: Option<u16>,
    local_id: Option<u8>,
    remote_id: Option<u8>,
    interface: Option<u32>,
    backup: Option<u8>,
    error: Option<u32>,
    flags: Option<u16>,
    reset: Option<u32>,
    server: Option<u8>,
}

impl EventAttributes {
    fn read<'a>(attributes: impl Iterator<Item = Attribute<'a>>) -> Self {
        let mut fields = Self::default();
        for attribute in attributes {
            match attribute.kind {
                TOKEN => fields.token = attribute.u32(),
                LOC_ID => fields.local_id = attribute.u8(),
                REM_ID => fields.remote_id = attribute.u8(),
                SADDR4 | SADDR6 => fields.local = attribute.address(),
                DADDR4 | DADDR6 => fields.remote = attribute.address(),
                SPORT => fields.local_port = attribute.port(),
                DPORT => fields.remote_port = attribute.port(),
                BACKUP => fields.backup = attribute.u8(),
                ERROR => fields.error = u32_or_u8(&attribute),
                FLAGS => fields.flags = attribute.u16(),
                IF_IDX => fields.interface = attribute.u32(),
                RESET_REASON => fields.reset = u32_or_u8(&attribute),
                SERVER_SIDE => fields.server = attribute.u8(),
                _ => {}
            }
        }
        fields
    }

    fn subflow(&self) -> Option<SubflowEvent> {
        let flags = self.flags.unwrap_or(0);
        Some(SubflowEvent {
            token: self.token?,
            // An IPv6 socket connected to an IPv4 server reports mapped addresses; they are converted to IPv4.
            local: SocketAddr::new(self.local?.to_canonical(), self.local_port?),
            remote: SocketAddr::new(self.remote?.to_canonical(), self.remote_port?),
            local_id: self.local_id.unwrap_or(0),
            remote_id: self.remote_id.unwrap_or(0),
            interface: self.interface.unwrap_or(0),
            peer_backup: self.backup.is_some_and(|backup| backup != 0),
            error: self.error.unwrap_or(0).cast_signed().saturating_abs(),
            reset: self.reset.is_some(),
            server_side: flags & SERVER != 0 || self.server.is_some_and(|server| server != 0),
            deny_join_id0: flags & DENY_JOIN_ID0 != 0,
        })
    }
}

/// An error or a reset reason has one or four bytes, depending on the kernel version.
fn u32_or_u8(attribute: &Attribute<'_>) -> Option<u32> {
    attribute.u32().or_else(|| attribute.u8().map(u32::from))
}

// Events.
const CREATED: u8 = 1;
const ESTABLISHED: u8 = 2;
const CLOSED: u8 = 3;
const ANNOUNCED: u8 = 6;
const REMOVED: u8 = 7;
const SUB_ESTABLISHED: u8 = 10;
const SUB_CLOSED: u8 = 11;
const SUB_PRIORITY: u8 = 13;
const LISTENER_CREATED: u8 = 15;
const LISTENER_CLOSED: u8 = 16;

// Attributes of events.
const TOKEN: u16 = 1;
const LOC_ID: u16 = 3;
const REM_ID: u16 = 4;
const SADDR4: u16 = 5;
const SADDR6: u16 = 6;
const DADDR4: u16 = 7;
const DADDR6: u16 = 8;
const SPORT: u16 = 9;
const DPORT: u16 = 10;
const BACKUP: u16 = 11;
const ERROR: u16 = 12;
const FLAGS: u16 = 13;
const IF_IDX: u16 = 15;
const RESET_REASON: u16 = 16;
const SERVER_SIDE: u16 = 18;

// Flags of a connection.
const DENY_JOIN_ID0: u16 = 1;
const SERVER: u16 = 2;
