//! Endpoints and limits: what the kernel's own path manager goes by, for all connections of the network namespace.

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
    /// Its id; 0: the kernel gives one out.
    pub id: u8,
    /// The address.
    pub address: IpAddr,
    /// The port that it announces; 0: none.
    pub port: u16,
    /// The interface that its subflows are bound to; 0: none.
    pub interface: u32,
    /// It is announced to the other end (`signal`).
    pub signal: bool,
    /// This end makes subflows from it (`subflow`).
    pub subflow: bool,
    /// Its subflows are backups.
    pub backup: bool,
    /// Its subflows go to all addresses of the other end.
    pub fullmesh: bool,
}

impl Endpoint {
    /// One that this end makes subflows from, over one interface.
    pub const fn for_subflows(address: IpAddr, link: u32, backup: bool) -> Self {
        Self { id: 0, address, port: 0, interface: link, signal: false, subflow: true, backup, fullmesh: false }
    }

    /// The command that adds it. Every connection with room for another subflow joins at once.
    pub fn add(&self, family: u16) -> Request {
        self.command(family, ADD_ADDR)
    }

    /// The command that removes it, by its id. Its subflows end.
    pub fn delete(&self, family: u16) -> Request {
        self.command(family, DEL_ADDR)
    }

    /// The command that makes its subflows backups, or no backups any more, by its address.
    pub fn set_backup(&self, family: u16) -> Request {
        self.command(family, SET_FLAGS)
    }

    /// Asks for all of them.
    pub fn dump(family: u16) -> Request {
        Request::new(family, Request::DUMP, &[GET_ADDR, super::VERSION, 0, 0])
    }

    /// Reads an answer to [`dump`](Self::dump); `None` for anything else.
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
        let has = |flag| flags & flag != 0;
        Some(Self {
            id,
            address: address?,
            port,
            interface: link,
            signal: has(SIGNAL),
            subflow: has(SUBFLOW),
            backup: has(BACKUP),
            fullmesh: has(FULLMESH),
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
            // A change must say nothing but whether it is a backup: the others cannot be changed, and the kernel
            // takes only those that can.
            r.u32(A_FLAGS, if command == SET_FLAGS { flags & BACKUP } else { flags });
            if self.interface != 0 && command == ADD_ADDR {
                r.u32(A_IF_IDX, self.interface);
            }
        });
        request
    }
}

/// How much the kernel's path manager may do in one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// Subflows beside the first one.
    pub subflows: u32,
    /// Addresses of the other end that are taken up.
    pub accepted_addresses: u32,
}

impl Limits {
    /// Asks for them.
    pub fn query(family: u16) -> Request {
        Request::new(family, Request::QUERY, &[GET_LIMITS, super::VERSION, 0, 0])
    }

    /// The command that sets them.
    pub fn set(&self, family: u16) -> Request {
        let mut request = bare_command(family, SET_LIMITS);
        request.u32(RCV_ADD_ADDRS, self.accepted_addresses);
        request.u32(SUBFLOWS, self.subflows);
        request
    }

    /// Reads the answer to [`ask`](Self::ask); `None` for anything else.
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
