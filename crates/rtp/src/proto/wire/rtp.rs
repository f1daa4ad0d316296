//! A packet of RTP, read where it lies (RFC 3550 §5.1).
//!
//! In: the payload of one datagram. Out: a view, or nothing; or the same packet under another number, time and source.

/// One packet of RTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtpPacket<'a> {
    /// The last packet of a frame of video, by most profiles.
    pub marker: bool,
    /// What kind of payload (7 bits).
    pub payload_type: u8,
    /// Goes up by one with each packet, and goes round.
    pub seq: u16,
    /// When its content is due, in the clock of the payload's kind; goes round.
    pub timestamp: u32,
    /// Who sends (SSRC).
    pub ssrc: u32,
    /// The media, without the header's extensions and the padding.
    pub payload: &'a [u8],
}

impl<'a> RtpPacket<'a> {
    /// None: it is no packet of RTP.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let fixed = bytes.first_chunk::<HEADER>()?;
        let [first, second, n0, n1, t0, t1, t2, t3, s0, s1, s2, s3] = *fixed;
        // Types of RTCP lie where a packet with a marker has kinds 64 to 95 (RFC 5761 §4).
        if first >> 6 != 2 || (192..=223).contains(&second) {
            return None;
        }
        let mut rest = bytes.get(HEADER + usize::from(first & 0xf) * 4..)?;
        if first & 0x10 != 0 {
            let [_, _, l0, l1] = *rest.first_chunk::<4>()?;
            rest = rest.get(4 + usize::from(u16::from_be_bytes([l0, l1])) * 4..)?;
        }
        if first & 0x20 != 0 {
            let padding = usize::from(*rest.last()?);
            let length = rest.len().checked_sub(padding).filter(|_| padding > 0)?;
            rest = rest.get(..length)?;
        }
        Some(Self {
            marker: second & 0x80 != 0,
            payload_type: second & 0x7f,
            seq: u16::from_be_bytes([n0, n1]),
            timestamp: u32::from_be_bytes([t0, t1, t2, t3]),
            ssrc: u32::from_be_bytes([s0, s1, s2, s3]),
            payload: rest,
        })
    }

    /// Writes another kind, number, time and source into a packet; false: it is none, and stays as it was.
    pub fn rewrite_header(bytes: &mut [u8], payload_type: u8, seq: u16, timestamp: u32, ssrc: u32) -> bool {
        if RtpPacket::parse(bytes).is_none() {
            return false;
        }
        let Some(fixed) = bytes.first_chunk_mut::<HEADER>() else { return false };
        fixed[1] = fixed[1] & 0x80 | payload_type & 0x7f;
        fixed[2..4].copy_from_slice(&seq.to_be_bytes());
        fixed[4..8].copy_from_slice(&timestamp.to_be_bytes());
        fixed[8..12].copy_from_slice(&ssrc.to_be_bytes());
        true
    }
}

/// What each packet has.
const HEADER: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: [u8; 14] = [0x80, 0xe0, 0, 7, 0, 0, 1, 0, 0xaa, 0xbb, 0xcc, 0xdd, 1, 2];

    #[test]
    fn a_header_has_its_fields() {
        let rtp = RtpPacket::parse(&PLAIN).unwrap();
        assert_eq!((rtp.marker, rtp.payload_type, rtp.seq, rtp.timestamp), (true, 96, 7, 256));
        assert_eq!((rtp.ssrc, rtp.payload), (0xaabb_ccdd, &[1, 2][..]));
    }

    #[test]
    fn sources_an_extension_and_padding_are_left_out() {
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
    fn a_report_is_no_media() {
        let mut bytes = PLAIN;
        for packet_type in [200, 201, 205, 206] {
            bytes[1] = packet_type;
            assert_eq!(RtpPacket::parse(&bytes), None);
        }
    }

    #[test]
    fn another_label_leaves_the_rest() {
        let mut bytes: Vec<u8> = PLAIN.to_vec();
        assert!(RtpPacket::rewrite_header(&mut bytes, 97, 8, 9, 10));
        let rtp = RtpPacket::parse(&bytes).unwrap();
        assert_eq!((rtp.marker, rtp.payload_type, rtp.seq, rtp.timestamp, rtp.ssrc), (true, 97, 8, 9, 10));
        assert_eq!(rtp.payload, [1, 2]);
        assert!(!RtpPacket::rewrite_header(&mut [0; 20], 1, 2, 3, 4));
    }
}
