//! IP packets: parsed without copying, rewritten in place, and built.
//!
//! The input is one packet from its first byte on, as a TUN device, a packet queue or a packet socket delivers it. It
//! parses into a [`Packet`] (IPv4 by RFC 791, IPv6 by RFC 8200) and further into a [`Segment`] (TCP, RFC 9293), a
//! [`Datagram`] (UDP, RFC 768), an [`IcmpEcho`] or an [`IcmpUnreachable`] (RFC 792 and RFC 4443). [`Rewrite`] changes
//! fields of a segment in place. [`Ack`], [`NewSegment`], [`IcmpEcho`] and [`IcmpUnreachable`] build packets.
//!
//! 1. Parsed values borrow and copy no payload. No input causes a panic. Packets that cannot be parsed give a
//!    [`ParseError`] and should be forwarded unchanged.
//! 2. Only complete packets are parsed. Fragments and packets shorter than their length field are rejected. Trailing
//!    bytes of the frame are ignored.
//! 3. IPv6 extension headers are skipped, at most [`MAX_EXTENSIONS`]. Contents protected by AH or ESP and source-routed
//!    packets are left unchanged.
//! 4. Unknown TCP options are kept; [`TcpOption`] describes where parsing ends.
//! 5. Sequence numbers and timestamps wrap around ([`Seq`], [`TcpTimestamp`]). A range of numbers is a [`SeqRange`], in
//!    which SYN and FIN take one number each.
//! 6. Rewriting updates checksums incrementally (RFC 1624): valid ones stay valid, invalid ones stay invalid. New
//!    packets have complete checksums. Checksums that the kernel has not completed yet are a separate case:
//!    [`Checksum::Partial`].
//! 7. Rewriting keeps the length of the packet: removed SACK blocks are replaced by no-operations.
//! 8. Nothing here decides or keeps state; `accel` decides where an ACK is sent.
//!
//! The existing crates lack what is needed here: etherparse ends parsing at the first unknown option and rewrites
//! nothing in place, smoltcp keeps three of four SACK blocks and recomputes checksums over all bytes, and neither
//! updates checksums incrementally.

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
mod pseudo_header;
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

/// Highest number of IPv6 extension headers. Our choice: one more than the order of RFC 8200 §4.1 has.
pub const MAX_EXTENSIONS: usize = 8;

/// Protocols of a packet's body (IANA's protocol numbers).
pub mod protocol {
    /// ICMP, used with IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6, used with IPv6.
    pub const ICMP_V6: u8 = 58;
}
