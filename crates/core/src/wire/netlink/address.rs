//! Addresses of network interfaces.

use core::net::IpAddr;

use super::{Attributes, Message, Request, family, kind, u8_at, u32_at};

/// Length of the fixed part: family, prefix length, flags, scope, interface index.
const FIXED_LEN: usize = 8;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub interface: u32,
    /// The local address on that interface.
    pub address: IpAddr,
    /// Prefix length of the local subnet.
    pub prefix: u8,
    /// Scope: 0 global, 200 site, 253 link, 254 host.
    pub scope: u8,
    /// `IFA_F_…` flags; see the methods.
    pub flags: u32,
}

impl Address {
    /// Parses a message of kind `NEW_ADDRESS` or `DEL_ADDRESS`; `None` for any other.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, kind::NEW_ADDRESS | kind::DEL_ADDRESS) {
            return None;
        }
        let body = message.body;
        let (mut local, mut peer) = (None, None);
        let mut flags = u32::from(u8_at(body, 2)?);
        for attribute in Attributes::after(body, FIXED_LEN) {
            match attribute.kind {
                ADDRESS => peer = attribute.address(),
                LOCAL => local = attribute.address(),
                FLAGS => flags = attribute.u32().unwrap_or(flags),
                _ => {}
            }
        }
        // On a point-to-point link ADDRESS is the peer's address; LOCAL, if present, is always the local one.
        Some(Self {
            interface: u32_at(body, 4)?,
            address: local.or(peer)?,
            prefix: u8_at(body, 1)?,
            scope: u8_at(body, 3)?,
            flags,
        })
    }

    /// Whether new connections may use it: it is valid and not deprecated.
    pub const fn is_usable(&self) -> bool {
        self.is_valid() && self.flags & DEPRECATED == 0
    }

    /// Whether duplicate address detection has completed without a conflict. Existing connections continue to use such
    /// an address even after it is deprecated (RFC 4862 §5.5.4).
    pub const fn is_valid(&self) -> bool {
        self.flags & (TENTATIVE | DAD_FAILED) == 0
    }

    /// Whether it is a temporary address of the IPv6 privacy extensions, which outgoing connections should prefer.
    pub const fn is_temporary(&self) -> bool {
        self.flags & TEMPORARY != 0
    }

    /// The request that assigns `address` with this prefix to an interface, without duplicate address detection and
    /// without the subnet route. The caller installs that route with its own attributes.
    pub fn assign(link: u32, address: IpAddr, prefix: u8) -> Request {
        let flags = Request::CHANGE | Request::CREATE_OR_REPLACE;
        let mut request = Request::new(kind::NEW_ADDRESS, flags, &header(link, address, prefix));
        request.address(LOCAL, address);
        request.address(ADDRESS, address);
        request.u32(FLAGS, if address.is_ipv6() { NO_DAD | NO_PREFIX_ROUTE } else { NO_PREFIX_ROUTE });
        request
    }

    /// The request that removes the address from an interface.
    pub fn remove(link: u32, address: IpAddr, prefix: u8) -> Request {
        let mut request = Request::new(kind::DEL_ADDRESS, Request::CHANGE, &header(link, address, prefix));
        request.address(LOCAL, address);
        request
    }
}

fn header(link: u32, address: IpAddr, prefix: u8) -> [u8; FIXED_LEN] {
    let mut body = [0; FIXED_LEN];
    body[0] = if address.is_ipv4() { family::V4 } else { family::V6 };
    body[1] = prefix;
    body[4..8].copy_from_slice(&link.to_ne_bytes());
    body
}

const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const FLAGS: u16 = 8;

const TEMPORARY: u32 = 0x01;
const NO_DAD: u32 = 0x02;
const DAD_FAILED: u32 = 0x08;
const DEPRECATED: u32 = 0x20;
const TENTATIVE: u32 = 0x40;
const NO_PREFIX_ROUTE: u32 = 0x200;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::messages;

    #[test]
    fn an_assignment_reads_back_as_the_address() {
        for (text, prefix) in [("10.1.0.2", 24), ("fd00::2", 64)] {
            let address: IpAddr = text.parse().unwrap();
            let bytes = Address::assign(3, address, prefix).finish(1);
            let read = Address::parse(&messages(&bytes).next().unwrap()).unwrap();
            assert_eq!((read.interface, read.address, read.prefix), (3, address, prefix));
            assert!(read.is_usable() && !read.is_temporary());
            let bytes = Address::remove(3, address, prefix).finish(1);
            let message = messages(&bytes).next().unwrap();
            let read = Address::parse(&message).unwrap();
            assert_eq!((message.kind, read.interface, read.address), (kind::DEL_ADDRESS, 3, address));
        }
    }

    #[test]
    fn a_deprecated_address_is_valid_but_not_usable_for_new_connections() {
        let make_address =
            |flags| Address { interface: 3, address: "fd00::2".parse().unwrap(), prefix: 64, scope: 0, flags };
        let judged = |flags| (make_address(flags).is_valid(), make_address(flags).is_usable());
        assert_eq!(judged(TEMPORARY), (true, true));
        assert_eq!(judged(DEPRECATED), (true, false));
        assert_eq!(judged(TENTATIVE), (false, false));
        assert_eq!(judged(DAD_FAILED | DEPRECATED), (false, false));
    }

    #[test]
    fn an_address_message_without_an_address_is_rejected() {
        let body = [2, 24, 0, 0, 1, 0, 0, 0];
        assert_eq!(Address::parse(&Message { kind: kind::NEW_ADDRESS, flags: 0, sequence: 0, body: &body }), None);
    }
}
