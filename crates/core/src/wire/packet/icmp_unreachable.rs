//! ICMP and ICMPv6 destination unreachable messages about a TCP segment, which report to its sender that there is no
//! route.
//!
//! An [`IcmpUnreachable`] is parsed from a packet, or built from the flow and the sequence number of the segment.
//!
//! 1. Host unreachable (RFC 792) for IPv4, no route to destination (RFC 4443 §3.1) for IPv6. On these messages RFC 6069
//!    reverts one step of the RTO back-off (Linux: `tcp_ld_RTO_revert`). Both are soft errors, which do not abort a
//!    connection (RFC 1122 §4.2.3.9).
//! 2. The message quotes the segment's IP header and the next eight bytes, with ports and sequence number, as RFC 792
//!    requires. RFC 4443 §2.4 requires as much of the packet as possible; marline knows no more of it.

use alloc::vec::Vec;

use super::ip::Packet;
use super::ip_builder::{IpParams, build_packet};
use super::{AddrPair, FourTuple, ParseError, Seq, protocol};

/// Report that a segment could not be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IcmpUnreachable {
    /// Flow of the segment; the message is sent to its source.
    pub four_tuple: FourTuple,
    /// Sequence number of the segment.
    pub seq: Seq,
}

impl IcmpUnreachable {
    /// Parses a packet. Does not verify the checksum; see [`Packet::checksum`].
    ///
    /// # Errors
    /// If it is not such a message, or does not quote a TCP segment.
    pub fn of(packet: Packet<'_>) -> Result<Self, ParseError> {
        let v6 = matches!(packet.addrs(), AddrPair::V6(..));
        let body = packet.body_of(if v6 { protocol::ICMP_V6 } else { protocol::ICMP })?;
        let (&[kind, code, ..], quoted) = body.split_first_chunk::<HEADER_LEN>().ok_or(ParseError::Truncated)?;
        if [kind, code] != type_and_code(v6) {
            return Err(ParseError::WrongIcmpType(kind));
        }
        let quoted = Packet::parse_head(quoted)?;
        let beginning = quoted.body_of(protocol::TCP)?.first_chunk::<QUOTED_LEN>().ok_or(ParseError::Truncated)?;
        let [a, b, c, d, seq @ ..] = *beginning;
        let four_tuple = FourTuple {
            addrs: quoted.addrs(),
            source_port: u16::from_be_bytes([a, b]),
            destination_port: u16::from_be_bytes([c, d]),
        };
        Ok(Self { four_tuple, seq: Seq::new(u32::from_be_bytes(seq)) })
    }

    /// Builds the packet, sent from the segment's destination.
    pub fn emit(&self, ip_params: IpParams) -> Vec<u8> {
        let addrs = self.four_tuple.addrs;
        let v6 = matches!(addrs, AddrPair::V6(..));
        // The quotation is truncated after eight bytes, but its length field has the full length, as usual.
        let quoted = build_packet(&addrs, IpParams::default(), protocol::TCP, SEGMENT_LEN, |bytes| {
            bytes.extend_from_slice(&self.four_tuple.source_port.to_be_bytes());
            bytes.extend_from_slice(&self.four_tuple.destination_port.to_be_bytes());
            bytes.extend_from_slice(&self.seq.number().to_be_bytes());
        });
        let protocol_number = if v6 { protocol::ICMP_V6 } else { protocol::ICMP };
        build_packet(&addrs.reversed(), ip_params, protocol_number, HEADER_LEN + quoted.len(), |bytes| {
            bytes.extend_from_slice(&type_and_code(v6));
            bytes.extend_from_slice(&[0; HEADER_LEN - 2]);
            bytes.extend_from_slice(&quoted);
        })
    }
}

/// Type, code, checksum, and four unused bytes.
const HEADER_LEN: usize = 8;
/// Both ports and the sequence number.
const QUOTED_LEN: usize = 8;

/// Length of a segment without options and payload.
const SEGMENT_LEN: usize = 20;

/// ICMP type and code of the message.
const fn type_and_code(v6: bool) -> [u8; 2] {
    if v6 { [1, 0] } else { [3, 1] }
}

#[cfg(test)]
mod tests {
    use super::super::Checksum;
    use super::*;

    fn unreachable_for(source: &str, destination: &str) -> IcmpUnreachable {
        let flow = FourTuple::new(source.parse().unwrap(), destination.parse().unwrap()).unwrap();
        IcmpUnreachable { four_tuple: flow, seq: Seq::new(0xdead_beef) }
    }

    #[test]
    fn an_unreachable_message_goes_to_the_source_and_reads_back() {
        for (source, destination) in [("10.99.0.2:443", "10.1.0.2:50816"), ("[fd00::1]:443", "[fd00::2]:50816")] {
            let unreachable = unreachable_for(source, destination);
            let bytes = unreachable.emit(IpParams::default());
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!(packet.addrs(), unreachable.four_tuple.addrs.reversed());
            assert_eq!((packet.checksum(), packet.has_valid_header_checksum()), (Checksum::Valid, true));
            assert_eq!(IcmpUnreachable::of(packet), Ok(unreachable));
        }
    }

    #[test]
    fn an_ipv4_message_is_host_unreachable() {
        let bytes = unreachable_for("10.99.0.2:443", "10.1.0.2:50816").emit(IpParams::default());
        assert_eq!(bytes.len(), 20 + 8 + 20 + 8);
        assert_eq!(bytes[20..22], [3, 1], "host unreachable");
        assert_eq!(bytes[28 + 12..28 + 20], [10, 99, 0, 2, 10, 1, 0, 2], "the segment's addresses");
        assert_eq!(bytes[48..], [0x01, 0xbb, 0xc6, 0x80, 0xde, 0xad, 0xbe, 0xef]);
    }

    #[test]
    fn an_ipv6_message_is_no_route_to_destination() {
        let bytes = unreachable_for("[fd00::1]:443", "[fd00::2]:50816").emit(IpParams::default());
        assert_eq!((bytes.len(), &bytes[40..42]), (40 + 8 + 40 + 8, &[1, 0][..]));
        assert_eq!(bytes[48 + 40..], [0x01, 0xbb, 0xc6, 0x80, 0xde, 0xad, 0xbe, 0xef]);
    }

    #[test]
    fn other_messages_and_quotations_are_rejected() {
        let bytes = unreachable_for("10.99.0.2:443", "10.1.0.2:50816").emit(IpParams::default());
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            IcmpUnreachable::of(Packet::parse(&bytes).unwrap())
        };
        assert_eq!(with(20, 8), Err(ParseError::WrongIcmpType(8)));
        assert_eq!(with(21, 4), Err(ParseError::WrongIcmpType(3)), "fragmentation needed: another code");
        assert_eq!(with(28 + 9, protocol::UDP), Err(ParseError::WrongProtocol(protocol::UDP)));
        assert_eq!(with(28, 0x75), Err(ParseError::Version(7)));
    }
}
