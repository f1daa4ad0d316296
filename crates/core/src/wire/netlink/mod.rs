//! Netlink messages: parses the kernel's replies and events, and builds requests.
//!
//! The bytes of a netlink socket parse into values: from the routing table [`Link`], [`Address`], [`Route`] and rules;
//! from generic netlink [`GenlFamily`] and MPTCP's path manager ([`mptcp`]); from sock_diag the state of other
//! programs' sockets ([`diag`]); from netfilter queued packets ([`nfqueue`]). In the other direction a [`Request`]
//! contains the bytes that query or change them; [`nftables`] builds requests for rulesets.
//!
//! 1. Integers are in host byte order, as in the kernel, with exceptions noted at each format. Addresses are in network
//!    order.
//! 2. Every length is checked. A truncated item ends the iteration, and no input causes a panic.
//! 3. Unknown attributes and message kinds are skipped, because newer kernels add some.
//! 4. Nothing here opens a socket: `marline-sys` transfers the bytes.
//!
//! The existing netlink crates were not used: they bring a runtime and some hundred types, while marline needs a dozen
//! attributes.

mod ack;
mod address;
mod attribute;
pub mod diag;
#[cfg(test)]
mod fixtures;
mod generic;
mod link;
pub mod mptcp;
pub mod nfqueue;
pub mod nftables;
mod port_rule;
mod route;
mod rule;
mod tproxy_route;

use alloc::vec::Vec;

pub use ack::Ack;
pub use address::Address;
pub use attribute::{Attribute, Attributes};
pub use generic::GenlFamily;
pub use link::{Link, LinkChange};
pub use port_rule::{Port, PortRule};
pub use route::Route;
pub use rule::{IifRule, SourceRule};
pub use tproxy_route::TproxyRoute;

/// Length of a message header: length, type, flags, sequence number, port.
const HEADER_LEN: usize = 16;

/// One message of a reply or event, with its body unparsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Message type. In the routing table's protocol one of the constants of [`kind`]; the other protocols have
    /// numbers of their own (generic netlink: the id of the family), except for `ERROR` and `DONE`.
    pub kind: u16,
    /// Header flags (`NLM_F_…`).
    pub flags: u16,
    /// Sequence number of the request that it replies to; usually 0 for an event.
    pub sequence: u32,
    /// The bytes that follow the header.
    pub body: &'a [u8],
}

/// Iterates over the messages in `bytes`; ends at the first truncated one.
pub fn messages(bytes: &[u8]) -> Messages<'_> {
    Messages { remaining: bytes }
}

/// Iterator returned by [`messages`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    remaining: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = usize::try_from(u32_at(self.remaining, 0)?).ok()?;
        let message = Message {
            kind: u16_at(self.remaining, 4)?,
            flags: u16_at(self.remaining, 6)?,
            sequence: u32_at(self.remaining, 8)?,
            body: self.remaining.get(HEADER_LEN..length)?,
        };
        self.remaining = self.remaining.get(aligned(length)..).unwrap_or(&[]);
        Some(message)
    }
}

/// Message types that marline uses: `ERROR` and `DONE` of every protocol (`linux/netlink.h`), the others of the routing
/// table (`linux/rtnetlink.h`).
pub mod kind {
    /// The response to a request: an error number, 0 for success.
    pub const ERROR: u16 = 2;
    /// The end of a dump.
    pub const DONE: u16 = 3;
    /// A link exists, or has changed.
    pub const NEW_LINK: u16 = 16;
    /// A link was removed.
    pub const DEL_LINK: u16 = 17;
    /// Request for links.
    pub const GET_LINK: u16 = 18;
    /// An address exists, or has changed.
    pub const NEW_ADDRESS: u16 = 20;
    /// An address was removed.
    pub const DEL_ADDRESS: u16 = 21;
    /// Request for addresses.
    pub const GET_ADDRESS: u16 = 22;
    /// A route exists, or has changed.
    pub const NEW_ROUTE: u16 = 24;
    /// A route was removed.
    pub const DEL_ROUTE: u16 = 25;
    /// Request for routes.
    pub const GET_ROUTE: u16 = 26;
    /// A routing rule exists.
    pub const NEW_RULE: u16 = 32;
    /// A routing rule was removed.
    pub const DEL_RULE: u16 = 33;
    /// Request for routing rules.
    pub const GET_RULE: u16 = 34;
}

/// Multicast groups of events, as bits of the mask in a socket's address.
pub mod group {
    /// Links that are added, removed or changed.
    pub const LINK: u32 = 1;
    /// IPv4 addresses.
    pub const ADDRESS_V4: u32 = 0x10;
    /// IPv4 routes.
    pub const ROUTE_V4: u32 = 0x40;
    /// IPv4 rules.
    pub const RULE_V4: u32 = 0x80;
    /// IPv6 addresses.
    pub const ADDRESS_V6: u32 = 0x100;
    /// IPv6 routes.
    pub const ROUTE_V6: u32 = 0x400;
    /// IPv6 rules.
    pub const RULE_V6: u32 = 0x40000;
}

/// Address families, as in the first byte of most messages.
pub mod family {
    /// Any family.
    pub const UNSPECIFIED: u8 = 0;
    /// IPv4.
    pub const V4: u8 = 2;
    /// IPv6.
    pub const V6: u8 = 10;
}

/// A request under construction; [`Request::finish`] gives the bytes to send.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// `NLM_F_REQUEST | NLM_F_ACK`.
    const CHANGE: u16 = 0x1 | 0x4;
    /// `NLM_F_REQUEST`: the reply is one message or an error.
    const QUERY: u16 = 0x1;
    /// `NLM_F_CREATE | NLM_F_REPLACE`.
    const CREATE_OR_REPLACE: u16 = 0x400 | 0x100;
    /// `NLM_F_CREATE | NLM_F_EXCL`.
    const CREATE: u16 = 0x400 | 0x200;
    /// `NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH`.
    const DUMP: u16 = 0x1 | 0x300;

    fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(body);
        Self { bytes }
    }

    /// Request for all links. The reply consists of messages for [`Link::parse`].
    pub fn dump_links() -> Self {
        Self::new(kind::GET_LINK, Self::DUMP, &[0; 16])
    }

    /// Request for one link by its index. The reply is one message for [`Link::parse`].
    pub fn link_by_index(index: u32) -> Self {
        let mut body = [0; 16];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        Self::new(kind::GET_LINK, Self::QUERY, &body)
    }

    /// Request for all addresses of both families. The reply consists of messages for [`Address::parse`].
    pub fn dump_addresses() -> Self {
        Self::new(kind::GET_ADDRESS, Self::DUMP, &[0; 8])
    }

    /// Request for the routes of `family` (0: both) in all tables. The reply consists of messages for [`Route::parse`].
    pub fn dump_routes(family: u8) -> Self {
        let mut body = [0; 12];
        body[0] = family;
        Self::new(kind::GET_ROUTE, Self::DUMP, &body)
    }

    /// The bytes to send, with the length filled in. The caller chooses the sequence number.
    pub fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// Rounds a length up to four bytes, the alignment of messages and attributes.
const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_message() {
        let bytes = Request::dump_links().finish(7);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].kind, all[0].sequence, all[0].body.len()), (kind::GET_LINK, 7, 16));
    }

    #[test]
    fn a_truncated_message_ends_the_iteration() {
        let mut bytes = Request::dump_links().finish(1);
        bytes.extend_from_slice(&Request::dump_routes(0).finish(2));
        for cut in 0..bytes.len() {
            let expected = usize::from(cut >= 32);
            assert_eq!(messages(&bytes[..cut]).count(), expected, "cut at {cut}");
        }
    }

    #[test]
    fn a_length_shorter_than_the_header_ends_the_iteration() {
        for length in 0_u32..16 {
            let mut bytes = Request::dump_links().finish(1);
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0);
        }
    }
}
