//! Packets of IP: read where they lie, changed where they lie, and made anew.
//!
//! In: the bytes of one packet from its first byte on, as a TUN device, a packet queue or a packet socket gives them.
//! Out: [`Packet`] (IPv4 by RFC 791, IPv6 by RFC 8200), and in it a [`Segment`] (TCP, RFC 9293), a [`Datagram`] (UDP,
//! RFC 768), an [`Echo`] or an [`Unreachable`] (ICMP, RFC 792 and RFC 4443). In the other direction [`Rewrite`] changes fields
//! of a segment in place; [`Ack`], [`NewSegment`], [`Echo`] and [`Unreachable`] make packets.
//!
//! 1. A view borrows and copies no payload. No bytes make anything panic; what cannot be understood is a [`Refusal`],
//!    and its packet is to go on as it came.
//! 2. Only whole packets are read: fragments are refused, and so is what is shorter than it says. What a frame has
//!    behind its packet is left out.
//! 3. Extension headers of IPv6 are walked, [`EXTENSIONS_MAX`] at most. What AH and ESP protect is left alone, and so is
//!    what has a source route.
//! 4. Options of TCP that are not known are kept; see [`TcpOption`] for where reading ends.
//! 5. Sequence numbers and timestamps go round ([`Seq`], [`Stamp`]); a stretch of numbers is a [`Span`], in which SYN
//!    and FIN take one each.
//! 6. A change mends checksums by what has changed (RFC 1624): right stays right, wrong stays wrong. A new packet has
//!    whole ones. Checksums that the kernel has not filled in yet (`CHECKSUM_PARTIAL`) are a case of their own:
//!    [`Checksum::Unfilled`].
//! 7. A change keeps the packet's length: SACK blocks that go leave no-operations behind.
//! 8. Nothing here decides, and nothing keeps anything: which ACK goes where is `accel`'s.
//!
//! No crate of packets was used, because none has the half that matters here: etherparse ends its walk of options at
//! the first unknown one and changes nothing in place, smoltcp keeps three of four SACK blocks and makes checksums anew
//! over all bytes, and neither mends a checksum by what has changed under it.

mod ack;
mod checksum;
mod error;
#[cfg(test)]
mod fixtures;
mod four_tuple;
mod icmp_echo;
mod icmp_unreachable;
mod inet_checksum;
mod ip;
mod ip_builder;
mod rewrite;
mod seq;
mod tcp;
mod tcp_builder;
mod tcp_option;
mod udp;

pub use ack::Ack;
pub use checksum::Checksum;
pub use error::ParseError;
pub use four_tuple::{AddrPair, FourTuple};
pub use icmp_echo::IcmpEcho;
pub use icmp_unreachable::IcmpUnreachable;
pub use ip::Packet;
pub use ip_builder::IpParams;
pub use rewrite::Rewrite;
pub use seq::{Seq, SeqRange, TcpTimestamp};
pub use tcp::{Flags, Segment};
pub use tcp_builder::NewSegment;
pub use tcp_option::{OptionList, Options, SackBlocks, TcpOption, Timestamps};
pub use udp::Datagram;

/// Extension headers of IPv6 that are walked. Chosen: one more than the order of RFC 8200 §4.1 has.
pub const EXTENSIONS_MAX: usize = 8;

/// What the body of a packet can be (IANA's protocol numbers).
pub mod protocol {
    /// ICMP, in IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6, in IPv6.
    pub const ICMP_V6: u8 = 58;
}
