//! What the checksum of a packet's body covers: its position in the body, and the pseudo header (RFC 9293 §3.1, RFC 768,
//! RFC 8200 §8.1, RFC 4443 §2.3).
//!
//! Parsing and building of packets share it.

use super::inet_checksum::InetSum;
use super::{AddrPair, protocol};

/// Offset of the checksum within the body of this protocol.
pub(super) const fn checksum_offset(protocol_number: u8) -> Option<usize> {
    match protocol_number {
        protocol::TCP => Some(16),
        protocol::UDP => Some(6),
        protocol::ICMP | protocol::ICMP_V6 => Some(2),
        _ => None,
    }
}

/// Sum of the pseudo header; zero for ICMP, which has none.
pub(super) fn pseudo_header_sum(addrs: &AddrPair, protocol_number: u8, body: usize) -> InetSum {
    if protocol_number == protocol::ICMP {
        return InetSum::default();
    }
    addrs.inet_sum().add_word(protocol_number.into()).add_word(u32::try_from(body).unwrap_or(u32::MAX))
}
