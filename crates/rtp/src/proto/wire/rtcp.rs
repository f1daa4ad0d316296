//! A compound packet of RTCP, read where it lies (RFC 3550 §6.1, RFC 4585 §6.1, RFC 5506).
//!
//! In: the payload of one datagram. Out: whether it only reports, or also asks for something.
//!
//! 1. Each packet in it has version 2 and a type of RTCP, and their lengths make up the whole: so nothing else is taken
//!    for it.
//! 2. What reports: senders' and receivers' reports, descriptions of sources, extended reports (RFC 3611).
//! 3. Everything else asks, or tells something that is told once: BYE, APP, feedback (NACK, PLI, FIR, TMMBR).

/// One datagram of RTCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtcpCompound<'a>(&'a [u8]);

/// Types of packets that report (IANA's list of RTCP control packet types): senders, receivers, descriptions, extended.
const REPORTING: [u8; 4] = [200, 201, 202, 207];

/// The lowest and the highest type that are known (RFC 5761 §4 keeps more free; nobody sends them).
const TYPES: std::ops::RangeInclusive<u8> = 200..=213;

impl<'a> RtcpCompound<'a> {
    /// None: it is no RTCP.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let [first, packet_type, l0, l1] = *rest.first_chunk::<4>()?;
            if first >> 6 != 2 || !TYPES.contains(&packet_type) {
                return None;
            }
            rest = rest.get((usize::from(u16::from_be_bytes([l0, l1])) + 1) * 4..)?;
        }
        (!bytes.is_empty()).then_some(Self(bytes))
    }

    /// The types of its packets, in their order.
    pub fn packet_types(self) -> impl Iterator<Item = u8> + 'a {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let [_, packet_type, l0, l1] = *rest.first_chunk::<4>()?;
            rest = rest.get((usize::from(u16::from_be_bytes([l0, l1])) + 1) * 4..).unwrap_or(&[]);
            Some(packet_type)
        })
    }

    /// Whether nothing but reports is in it.
    pub fn is_report(self) -> bool {
        self.packet_types().all(|packet_type| REPORTING.contains(&packet_type))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RR: [u8; 8] = [0x80, 201, 0, 1, 1, 2, 3, 4];
    const PLI: [u8; 12] = [0x81, 206, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8];

    #[test]
    fn reports_and_what_asks_are_told_apart() {
        let report: Vec<u8> = [&RR[..], &[0x81, 202, 0, 2, 1, 2, 3, 4, 1, 1, b'a', 0]].concat();
        assert!(RtcpCompound::parse(&report).unwrap().is_report());
        let asks = [&RR[..], &PLI].concat();
        let asks = RtcpCompound::parse(&asks).unwrap();
        assert!(!asks.is_report());
        assert_eq!(asks.packet_types().collect::<Vec<_>>(), [201, 206]);
        assert!(!RtcpCompound::parse(&[0x81, 203, 0, 1, 1, 2, 3, 4]).unwrap().is_report());
    }

    #[test]
    fn lengths_make_up_the_whole() {
        let whole = [&RR[..], &PLI].concat();
        for end in (0..whole.len()).filter(|end| *end != RR.len()) {
            assert_eq!(RtcpCompound::parse(&whole[..end]), None, "cut at {end}");
        }
        let mut other = RR;
        for first in [0x40, 0x00, 0xc0] {
            other[0] = first;
            assert_eq!(RtcpCompound::parse(&other), None);
        }
    }
}
