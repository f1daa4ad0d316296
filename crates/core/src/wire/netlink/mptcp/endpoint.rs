//! Endpoints and limits of the kernel's own path manager, which apply to all connections of the network namespace.

use core::net::IpAddr;

use super::super::attribute::NESTED;
use super::super::generic::{attributes, command};
use super::super::{Attributes, Message, Request};
use super::{
    A_ADDR4, A_ADDR6, A_FLAGS, A_ID, A_IF_IDX, A_PORT, ADD_ADDR, ADDR, BACKUP, DEL_ADDR, FULLMESH, GET_ADDR,
    GET_LIMITS, RCV_ADD_ADDRS, SET_FLAGS, SET_LIMITS, SIGNAL, SUBFLOW, SUBFLOWS, bare_command,
};

/// An address that the kernel's path manager uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Id of the endpoint; 0 lets the kernel assign one.
    pub id: u8,
    /// The address.
    pub address: IpAddr,
    /// Port announced with the address; 0 for none.
    pub port: u16,
    /// Index of the interface to which its subflows are bound; 0 for none.
    pub interface: u32,
    /// Whether the address is announced to the peer (`signal`).
    pub signal: bool,
    /// Whether this host opens subflows from it (`subflow`).
    pub subflow: bool,
    /// Whether its subflows are backups.
    pub backup: bool,
    /// Whether it opens subflows to all addresses of the peer.
    pub fullmesh: bool,
}

impl Endpoint {
    /// An endpoint from which this host opens subflows over one interface.
    pub const fn for_subflows(address: IpAddr, link: u32, backup: bool) -> Self {
        Self { id: 0, address, port: 0, interface: link, signal: false, subflow: true, backup, fullmesh: false }
    }

    /// The command that adds it. Every connection below its subflow limit opens a subflow from it at once.
    pub fn add(&self, family: u16) -> Request {
        self.command(family, ADD_ADDR)
    }

    /// The command that removes the endpoint with this id. Its subflows are closed.
    pub fn delete(&self, family: u16) -> Request {
        self.command(family, DEL_ADDR)
    }

    /// The command that gives the endpoint with this address, and its subflows, the backup flag of `self`.
    pub fn set_backup(&self, family: u16) -> Request {
        self.command(family, SET_FLAGS)
    }

    /// Request for all endpoints.
    pub fn dump(family: u16) -> Request {
        Request::new(family, Request::DUMP, &[GET_ADDR, super::VERSION, 0, 0])
    }

    /// Parses a reply to [`dump`](Self::dump); `None` for any other message.
    pub fn parse(message: &Message<'_>, family: u16) -> Option<Self> {
        if message.kind != family || command(message)? != GET_ADDR {
            return None;
        }
        attributes(message).find(|a| a.kind == ADDR).and_then(|a| Self::read(a.nested()))
    }

    fn read(attributes: Attributes<'_>) -> Option<Self> {
        let (mut address, mut flags) = (None, 0);
        let (mut id, mut port, mut link) = (0, 0, 0);
        for attribute in attributes {
            match attribute.kind {
                A_ADDR4 | A_ADDR6 => address = attribute.address(),
                A_ID => id = attribute.u8()?,
                A_PORT => port = attribute.u16()?,
                A_FLAGS => flags = attribute.u32()?,
                A_IF_IDX => link = attribute.u32()?,
                _ => {}
            }
        }
        let has_flag = |flag| flags & flag != 0;
        Some(Self {
            id,
            address: address?,
            port,
            interface: link,
            signal: has_flag(SIGNAL),
            subflow: has_flag(SUBFLOW),
            backup: has_flag(BACKUP),
            fullmesh: has_flag(FULLMESH),
        })
    }

    fn command(&self, family: u16, command: u8) -> Request {
        let mut request = bare_command(family, command);
        let flags =
            [(self.signal, SIGNAL), (self.subflow, SUBFLOW), (self.backup, BACKUP), (self.fullmesh, FULLMESH)];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
        request.nest(ADDR | NESTED, |r| {
            r.mptcp_address(self.address, (self.port != 0).then_some(self.port));
            if self.id != 0 {
                r.attribute(A_ID, &[self.id]);
            }
            // A change may contain only the backup flag: the other flags cannot be changed, and the kernel rejects
            // them.
            r.u32(A_FLAGS, if command == SET_FLAGS { flags & BACKUP } else { flags });
            if self.interface != 0 && command == ADD_ADDR {
                r.u32(A_IF_IDX, self.interface);
            }
        });
        request
    }
}

/// Limits of the kernel's path manager for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// Highest number of subflows in addition to the first.
    pub subflows: u32,
    /// Highest number of announced peer addresses to which subflows are opened.
    pub accepted_addresses: u32,
}

impl Limits {
    /// Request for the limits.
    pub fn query(family: u16) -> Request {
        Request::new(family, Request::QUERY, &[GET_LIMITS, super::VERSION, 0, 0])
    }

    /// The command that sets the limits.
    pub fn set(&self, family: u16) -> Request {
        let mut request = bare_command(family, SET_LIMITS);
        request.u32(RCV_ADD_ADDRS, self.accepted_addresses);
        request.u32(SUBFLOWS, self.subflows);
        request
    }

    /// Parses the reply to [`query`](Self::query); `None` for any other message.
    pub fn parse(message: &Message<'_>, family: u16) -> Option<Self> {
        if message.kind != family || command(message)? != GET_LIMITS {
            return None;
        }
        let mut limits = Self::default();
        for attribute in attributes(message) {
            match attribute.kind {
                RCV_ADD_ADDRS => limits.accepted_addresses = attribute.u32()?,
                SUBFLOWS => limits.subflows = attribute.u32()?,
                _ => {}
            }
        }
        Some(limits)
    }
}
