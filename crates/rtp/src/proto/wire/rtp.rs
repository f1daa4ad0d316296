//! RTP packets (RFC 3550 section 5.1): the header fields that merging needs, read and rewritten in place.
//!
//! [`rtp_types`] parses and checks the header, its extension and the padding. This module adds the two things that the library
//! leaves out: it rejects RTCP packets that arrive on the same port, and it returns the payload with the lifetime of the
//! datagram.

use rtp_types::RtpPacketMut;

/// Header fields and payload of one RTP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtpPacket<'a> {
    /// Set on the last packet of a video frame by most profiles.
    pub marker: bool,
    /// Payload type, 7 bits; the session description maps it to a codec.
    pub payload_type: u8,
    /// Sequence number. It grows by one with each packet and wraps.
    pub seq: u16,
    /// Presentation time in units of the codec's clock rate. It wraps.
    pub timestamp: u32,
    /// Synchronization source: identifies the sender within a session.
    pub ssrc: u32,
    /// The media, without header extension and padding.
    pub payload: &'a [u8],
}

impl<'a> RtpPacket<'a> {
    /// Parses one datagram. Returns `None` if it is not an RTP packet.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        // RTCP packet types occupy the values of an RTP packet with marker and payload type 64 to 95 (RFC 5761 section 4).
        if bytes.get(1).is_none_or(|second| RTCP_TYPES.contains(second)) {
            return None;
        }
        let packet = rtp_types::RtpPacket::parse(bytes).ok()?;
        Some(Self {
            marker: packet.marker_bit(),
            payload_type: packet.payload_type(),
            seq: packet.sequence_number(),
            timestamp: packet.timestamp(),
            ssrc: packet.ssrc(),
            payload: bytes.get(packet.payload_offset()..)?.get(..packet.payload_len())?,
        })
    }

    /// Writes payload type, sequence number, timestamp and SSRC into a packet. Returns `false`, and changes nothing, if the bytes
    /// are not an RTP packet.
    pub fn rewrite_header(bytes: &mut [u8], payload_type: u8, seq: u16, timestamp: u32, ssrc: u32) -> bool {
        if RtpPacket::parse(bytes).is_none() {
            return false;
        }
        let Ok(mut packet) = RtpPacketMut::parse(bytes) else { return false };
        if packet.set_payload_type(payload_type).is_err() {
            return false;
        }
        packet.set_sequence_number(seq);
        packet.set_timestamp(timestamp);
        packet.set_ssrc(ssrc);
        true
    }
}

/// Values of the second byte that RFC 5761 reserves for RTCP.
const RTCP_TYPES: std::ops::RangeInclusive<u8> = 192..=223;

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: [u8; 14] = [0x80, 0xe0, 0, 7, 0, 0, 1, 0, 0xaa, 0xbb, 0xcc, 0xdd, 1, 2];

    #[test]
    fn header_fields_are_read() {
        let rtp = RtpPacket::parse(&PLAIN).unwrap();
        assert_eq!((rtp.marker, rtp.payload_type, rtp.seq, rtp.timestamp), (true, 96, 7, 256));
        assert_eq!((rtp.ssrc, rtp.payload), (0xaabb_ccdd, &[1, 2][..]));
    }

    #[test]
    fn the_payload_excludes_contributing_sources_extension_and_padding() {
        let mut bytes = PLAIN.to_vec();
        bytes[0] = 0xb1;
        bytes.truncate(12);
        bytes.extend([9, 9, 9, 9, 0xbe, 0xde, 0, 1, 8, 8, 8, 8, 5, 6, 0, 2]);
        assert_eq!(RtpPacket::parse(&bytes).unwrap().payload, [5, 6]);
        for end in 0..bytes.len() - 2 {
            assert!(RtpPacket::parse(&bytes[..end]).is_none_or(|rtp| rtp.payload.len() < 4), "cut at {end}");
        }
        for padding in [0, 5, 255] {
            *bytes.last_mut().unwrap() = padding;
            assert_eq!(RtpPacket::parse(&bytes), None, "padding of {padding}");
        }
    }

    #[test]
    fn rtcp_packets_are_rejected() {
        let mut bytes = PLAIN;
        for packet_type in [200, 201, 205, 206] {
            bytes[1] = packet_type;
            assert_eq!(RtpPacket::parse(&bytes), None);
        }
    }

    #[test]
    fn rewriting_the_header_keeps_marker_and_payload() {
        let mut bytes: Vec<u8> = PLAIN.to_vec();
        assert!(RtpPacket::rewrite_header(&mut bytes, 97, 8, 9, 10));
        let rtp = RtpPacket::parse(&bytes).unwrap();
        assert_eq!((rtp.marker, rtp.payload_type, rtp.seq, rtp.timestamp, rtp.ssrc), (true, 97, 8, 9, 10));
        assert_eq!(rtp.payload, [1, 2]);
        assert!(!RtpPacket::rewrite_header(&mut [0; 20], 1, 2, 3, 4));
    }
}
