//! Destination unreachable of ICMP and ICMPv6, about a segment of TCP: what tells its sender that there was no way to go.
//!
//! In: a packet, or the flow and the number of the segment. Out: [`Unreachable`]; and the other way round.
//!
//! 1. Host unreachable of RFC 792 for IPv4, no route to destination of RFC 4443 §3.1 for IPv6: those by which RFC 6069 takes
//!    a step of a timer's back-off back (Linux: `tcp_ld_RTO_revert`). Both are soft errors, which end no connection
//!    (RFC 1122 §4.2.3.9).
//! 2. What is quoted is the segment's header of IP and the eight bytes behind it, ports and number: as much as RFC 792 wants. RFC
//!    4443 §2.4 wants as much as there is; who says it here has no more.

use alloc::vec::Vec;

use super::emit::{Envelope, packet};
use super::ip::Packet;
use super::{Flow, Pair, Refusal, Seq, protocol};

/// A segment had nowhere to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unreachable {
    /// The segment's flow; the message goes to its source.
    pub flow: Flow,
    /// The segment's number.
    pub seq: Seq,
}

impl Unreachable {
    /// Reads a packet. Its checksum is [`Packet::checksum`]'s to say.
    ///
    /// # Errors
    /// If it is not such a message, or quotes something else than TCP.
    pub fn of(packet: Packet<'_>) -> Result<Self, Refusal> {
        let v6 = matches!(packet.pair(), Pair::V6(..));
        let body = packet.body_of(if v6 { protocol::ICMP_V6 } else { protocol::ICMP })?;
        let (&[kind, code, ..], quoted) = body.split_first_chunk::<HEADER>().ok_or(Refusal::Short)?;
        if [kind, code] != said(v6) {
            return Err(Refusal::Kind(kind));
        }
        let quoted = Packet::parse_head(quoted)?;
        let beginning = quoted.body_of(protocol::TCP)?.first_chunk::<BEGINNING>().ok_or(Refusal::Short)?;
        let [a, b, c, d, seq @ ..] = *beginning;
        let flow = Flow {
            pair: quoted.pair(),
            source_port: u16::from_be_bytes([a, b]),
            destination_port: u16::from_be_bytes([c, d]),
        };
        Ok(Self { flow, seq: Seq::new(u32::from_be_bytes(seq)) })
    }

    /// A packet that says it, from the segment's destination.
    pub fn emit(&self, envelope: Envelope) -> Vec<u8> {
        let pair = self.flow.pair;
        let v6 = matches!(pair, Pair::V6(..));
        // Cut behind them, and long as it says, as a quotation is.
        let quoted = packet(&pair, Envelope::default(), protocol::TCP, SEGMENT, |bytes| {
            bytes.extend_from_slice(&self.flow.source_port.to_be_bytes());
            bytes.extend_from_slice(&self.flow.destination_port.to_be_bytes());
            bytes.extend_from_slice(&self.seq.number().to_be_bytes());
        });
        let of = if v6 { protocol::ICMP_V6 } else { protocol::ICMP };
        packet(&pair.reversed(), envelope, of, HEADER + quoted.len(), |bytes| {
            bytes.extend_from_slice(&said(v6));
            bytes.extend_from_slice(&[0; HEADER - 2]);
            bytes.extend_from_slice(&quoted);
        })
    }
}

/// Type, code, checksum, and four bytes without use.
const HEADER: usize = 8;
/// Both ports and the number.
const BEGINNING: usize = 8;

/// A segment without options and payload.
const SEGMENT: usize = 20;

/// Type and code.
const fn said(v6: bool) -> [u8; 2] {
    if v6 { [1, 0] } else { [3, 1] }
}

#[cfg(test)]
mod tests {
    use super::super::Checksum;
    use super::*;

    fn about(source: &str, destination: &str) -> Unreachable {
        let flow = Flow::new(source.parse().unwrap(), destination.parse().unwrap()).unwrap();
        Unreachable { flow, seq: Seq::new(0xdead_beef) }
    }

    #[test]
    fn it_goes_back_to_the_source_and_reads_back() {
        for (source, destination) in [("10.99.0.2:443", "10.1.0.2:50816"), ("[fd00::1]:443", "[fd00::2]:50816")] {
            let unreachable = about(source, destination);
            let bytes = unreachable.emit(Envelope::default());
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!(packet.pair(), unreachable.flow.pair.reversed());
            assert_eq!((packet.checksum(), packet.is_header_right()), (Checksum::Right, true));
            assert_eq!(Unreachable::of(packet), Ok(unreachable));
        }
    }

    #[test]
    fn the_bytes_are_those_of_rfc_792() {
        let bytes = about("10.99.0.2:443", "10.1.0.2:50816").emit(Envelope::default());
        assert_eq!(bytes.len(), 20 + 8 + 20 + 8);
        assert_eq!(bytes[20..22], [3, 1], "host unreachable");
        assert_eq!(bytes[28 + 12..28 + 20], [10, 99, 0, 2, 10, 1, 0, 2], "the segment's addresses");
        assert_eq!(bytes[48..], [0x01, 0xbb, 0xc6, 0x80, 0xde, 0xad, 0xbe, 0xef]);
    }

    #[test]
    fn over_ipv6_there_is_no_route() {
        let bytes = about("[fd00::1]:443", "[fd00::2]:50816").emit(Envelope::default());
        assert_eq!((bytes.len(), &bytes[40..42]), (40 + 8 + 40 + 8, &[1, 0][..]));
        assert_eq!(bytes[48 + 40..], [0x01, 0xbb, 0xc6, 0x80, 0xde, 0xad, 0xbe, 0xef]);
    }

    #[test]
    fn other_messages_and_other_quotations_are_refused() {
        let bytes = about("10.99.0.2:443", "10.1.0.2:50816").emit(Envelope::default());
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Unreachable::of(Packet::parse(&bytes).unwrap())
        };
        assert_eq!(with(20, 8), Err(Refusal::Kind(8)));
        assert_eq!(with(21, 4), Err(Refusal::Kind(3)), "to be fragmented: another code");
        assert_eq!(with(28 + 9, protocol::UDP), Err(Refusal::Protocol(protocol::UDP)));
        assert_eq!(with(28, 0x75), Err(Refusal::Version(7)));
    }
}
