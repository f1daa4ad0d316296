//! What the path manager tells: connections, subflows, addresses.
//!
//! In: a message of the group of events. Out: [`Event`].
//!
//! 1. CREATED and ESTABLISHED come together for a client, once the other end has acknowledged data.
//! 2. SUB_ESTABLISHED is not final: a server that has enough subflows resets it some milliseconds later.
//! 3. What an event must have and has not makes it no event.

use core::net::{IpAddr, SocketAddr};

use super::super::generic::{attributes, command};
use super::super::{Attribute, Message};

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection exists, which cannot be joined yet.
    Created(SubflowEvent),
    /// A connection can be joined.
    Established(SubflowEvent),
    /// A connection is closed on this side.
    Closed {
        /// Its token.
        token: u32,
    },
    /// The other end has told another address of its own.
    AddressAnnounced {
        /// The connection.
        token: u32,
        /// The address's id.
        id: u8,
        /// The address.
        address: IpAddr,
        /// The port; none: the connection's.
        port: Option<u16>,
    },
    /// The other end has taken an address back.
    AddressRemoved {
        /// The connection.
        token: u32,
        /// The address's id.
        id: u8,
    },
    /// A subflow has joined.
    SubflowEstablished(SubflowEvent),
    /// A subflow is gone.
    SubflowClosed(SubflowEvent),
    /// The other end wants a subflow as a backup, or no longer; see [`Path::peer_backup`].
    SubflowPriority(SubflowEvent),
    /// A program listens, which is nothing to a client.
    Listener,
}

/// A subflow in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubflowEvent {
    /// The connection.
    pub token: u32,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The id of this end's address.
    pub local_id: u8,
    /// The id of the other end's.
    pub remote_id: u8,
    /// The interface that it is bound to; 0: none, or not told.
    pub interface: u32,
    /// The other end asked for it to be a backup.
    pub peer_backup: bool,
    /// Why it is closed, by the number in `errno.h`; 0: in order, or not told.
    pub error: i32,
    /// The other end reset it: it refused the join, or gave the subflow up.
    pub reset: bool,
    /// This host is the server.
    pub server_side: bool,
    /// The other end lets nobody join the address of its first subflow.
    pub deny_join_id0: bool,
}

impl Event {
    /// Reads an event of the family with this number; `None` for anything else.
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

/// The attributes as they came.
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
            // A socket of IPv6 that reaches an IPv4 server tells its addresses mapped; they mean the same.
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

/// An error or a reason is told in one byte or in four, as the kernel's version goes.
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
