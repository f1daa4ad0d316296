//! Kinds of RTCP datagrams (RFC 3550 section 6.1, RFC 4585 section 6.1, RFC 5506): reports, or feedback as well.
//!
//! [`rtcp_types`] parses each packet of the compound, so that nothing else is mistaken for RTCP: every packet has version 2, and
//! the lengths add up to the datagram. Datagrams that it rejects are not classified; callers forward them unchanged.
//!
//! The library accepts any packet type as unknown, which includes RTP payload types. Therefore this module also checks the range of
//! types.

use rtcp_types::prelude::RtcpPacketParserExt;
use rtcp_types::{Compound, Packet};

/// What one RTCP datagram contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtcpKind {
    /// Only reports, which are sent periodically: sender and receiver reports, source descriptions, extended reports (RFC 3611).
    Report,
    /// At least one packet that is sent once: BYE, APP, or feedback such as NACK, PLI, FIR and TMMBR.
    Feedback,
}

impl RtcpKind {
    /// Classifies one datagram. Returns `None` if it is not valid RTCP.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut kind = Self::Report;
        for packet in Compound::parse(bytes).ok()? {
            let packet = packet.ok()?;
            if !ASSIGNED_TYPES.contains(&packet.type_()) {
                return None;
            }
            if !matches!(packet, Packet::Sr(_) | Packet::Rr(_) | Packet::Sdes(_) | Packet::Xr(_)) {
                kind = Self::Feedback;
            }
        }
        Some(kind)
    }
}

/// RTCP packet types that IANA has assigned. RFC 5761 section 4 reserves more, which are not in use.
const ASSIGNED_TYPES: std::ops::RangeInclusive<u8> = 200..=213;

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVER_REPORT: [u8; 8] = [0x80, 201, 0, 1, 1, 2, 3, 4];
    const SOURCE_DESCRIPTION: [u8; 12] = [0x81, 202, 0, 2, 1, 2, 3, 4, 1, 1, b'a', 0];
    const PICTURE_LOSS: [u8; 12] = [0x81, 206, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8];
    const BYE: [u8; 8] = [0x81, 203, 0, 1, 1, 2, 3, 4];

    #[test]
    fn a_compound_with_feedback_is_not_a_mere_report() {
        let report = [&RECEIVER_REPORT[..], &SOURCE_DESCRIPTION].concat();
        assert_eq!(RtcpKind::parse(&report), Some(RtcpKind::Report));
        let feedback = [&RECEIVER_REPORT[..], &PICTURE_LOSS].concat();
        assert_eq!(RtcpKind::parse(&feedback), Some(RtcpKind::Feedback));
        assert_eq!(RtcpKind::parse(&BYE), Some(RtcpKind::Feedback));
    }

    #[test]
    fn extended_reports_are_reports() {
        let receiver_reference_time = [0x80, 207, 0, 4, 1, 2, 3, 4, 4, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(RtcpKind::parse(&receiver_reference_time), Some(RtcpKind::Report));
    }

    #[test]
    fn the_lengths_of_all_packets_add_up_to_the_datagram() {
        let compound = [&RECEIVER_REPORT[..], &PICTURE_LOSS].concat();
        for end in (0..compound.len()).filter(|end| *end != RECEIVER_REPORT.len()) {
            assert_eq!(RtcpKind::parse(&compound[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn other_versions_and_unassigned_types_are_rejected() {
        for second in [0, RECEIVER_REPORT.len()] {
            for first_byte in [0x40, 0x00, 0xc0] {
                let mut bytes = [RECEIVER_REPORT, RECEIVER_REPORT].concat();
                bytes[second] = first_byte;
                assert_eq!(RtcpKind::parse(&bytes), None);
            }
        }
        let rtp_like = [0x80, 96, 0, 1, 1, 2, 3, 4];
        assert_eq!(RtcpKind::parse(&rtp_like), None);
    }
}
