//! IP headers: parses a packet up to the beginning of its transport protocol.
//!
//! The result is a [`Packet`], or a [`ParseError`] for a packet that must be left unchanged.
//!
//! 1. IPv4 by RFC 791 §3.1, with options skipped; IPv6 by RFC 8200 §3, with extension headers skipped (§4).
//! 2. The length in the header counts, not that of the buffer, because short Ethernet frames are padded. A length of
//!    zero (jumbograms, and the kernel's BIG TCP) is not supported.
//! 3. Fragments are rejected, including the first one. A fragment header that does not fragment (RFC 6946) is skipped.
//! 4. A packet with another destination than the one in its header is rejected, because the pseudo header of its
//!    checksum contains the final destination (RFC 8200 §8.1). These are routing headers with segments left, and IPv4
//!    source routes.
//! 5. AH and ESP end the parsing: their contents are neither read nor changed.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::{AddrPair, IpParams, MAX_EXTENSIONS, ParseError};

/// Offsets of the parts of a packet. They are plain numbers, so that they outlive a borrow of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderOffsets {
    /// Protocol of the body.
    pub(super) protocol: u8,
    /// Offset of the body.
    pub(super) body: usize,
    /// Offset of the end of the packet, which may lie beyond the available bytes.
    pub(super) end: usize,
}

/// An IP packet, or the beginning of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    pub(super) offsets: HeaderOffsets,
    addrs: AddrPair,
    ip_params: IpParams,
}

impl<'a> Packet<'a> {
    /// Parses the packet at the beginning of `bytes`.
    ///
    /// # Errors
    /// If it is not a complete packet without fragmentation and source routing.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let packet = Self::parse_head(bytes)?;
        if packet.is_truncated() { Err(ParseError::Truncated) } else { Ok(packet) }
    }

    /// Parses a packet of which only the beginning may be available, as a packet socket with a snap length delivers it.
    /// The headers must be complete.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn parse_head(bytes: &'a [u8]) -> Result<Self, ParseError> {
        match bytes.first().ok_or(ParseError::Truncated)? >> 4 {
            4 => Self::v4(bytes),
            6 => Self::v6(bytes),
            other => Err(ParseError::Version(other)),
        }
    }

    /// Whether the end of the packet is missing.
    pub const fn is_truncated(&self) -> bool {
        self.bytes.len() < self.offsets.end
    }

    /// The available bytes of the packet, without trailing bytes of the frame.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Source and destination address.
    pub const fn addrs(&self) -> AddrPair {
        self.addrs
    }

    /// Traffic class, hop limit and flow label, to be used for packets that should be treated like this one.
    pub const fn ip_params(&self) -> IpParams {
        self.ip_params
    }

    /// Protocol of the body: one of [`protocol`](super::protocol), or another number of IANA's list.
    pub const fn protocol(&self) -> u8 {
        self.offsets.protocol
    }

    /// The bytes that follow the IP headers.
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(self.offsets.body..).unwrap_or(&[])
    }

    /// The body, if it is of this protocol.
    pub(super) fn body_of(&self, wanted: u8) -> Result<&'a [u8], ParseError> {
        if self.offsets.protocol == wanted {
            Ok(self.body())
        } else {
            Err(ParseError::WrongProtocol(self.offsets.protocol))
        }
    }

    fn v4(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let fixed = bytes.first_chunk::<20>().ok_or(ParseError::Truncated)?;
        let body = usize::from(fixed[0] & 0xf) * 4;
        let end = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if body < fixed.len() || end < body {
            return Err(ParseError::Malformed);
        }
        let bytes = bytes.get(..end).unwrap_or(bytes);
        if u16::from_be_bytes([fixed[6], fixed[7]]) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
            return Err(ParseError::Fragment);
        }
        if is_source_routed(bytes.get(fixed.len()..body).unwrap_or(&[])) {
            return Err(ParseError::SourceRouted);
        }
        let from = Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]);
        let to = Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]);
        Ok(Self {
            bytes,
            offsets: HeaderOffsets { protocol: fixed[9], body, end },
            addrs: AddrPair::V4(from, to),
            ip_params: IpParams { traffic_class: fixed[1], hop_limit: fixed[8], flow_label: 0 },
        })
    }

    fn v6(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let fixed = bytes.first_chunk::<40>().ok_or(ParseError::Truncated)?;
        let end = fixed.len() + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let bytes = bytes.get(..end).unwrap_or(bytes);
        let (protocol, body) = walk_extensions(bytes, fixed[6], fixed.len())?;
        let class = fixed[0] << 4 | fixed[1] >> 4;
        let label = u32::from_be_bytes([0, fixed[1], fixed[2], fixed[3]]) & IpParams::FLOW_LABEL_MAX;
        let (mut from, mut to) = ([0; 16], [0; 16]);
        from.copy_from_slice(&fixed[8..24]);
        to.copy_from_slice(&fixed[24..40]);
        Ok(Self {
            bytes,
            offsets: HeaderOffsets { protocol, body, end },
            addrs: AddrPair::V6(Ipv6Addr::from(from), Ipv6Addr::from(to)),
            ip_params: IpParams { traffic_class: class, hop_limit: fixed[7], flow_label: label },
        })
    }
}

/// `MF` and the fragment offset (RFC 791 §3.1).
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Whether IPv4 options contain a loose or strict source route (RFC 791 §3.1). A malformed option ends the search.
fn is_source_routed(options: &[u8]) -> bool {
    let mut remaining = options;
    loop {
        match remaining {
            [] | [0, ..] => return false,
            [1, after @ ..] => remaining = after,
            [131 | 137, ..] => return true,
            [_, length, ..] if *length >= 2 => remaining = remaining.get(usize::from(*length)..).unwrap_or(&[]),
            _ => return false,
        }
    }
}

/// Skips the IPv6 extension headers; returns protocol and offset of the body.
fn walk_extensions(bytes: &[u8], first: u8, fixed: usize) -> Result<(u8, usize), ParseError> {
    let (mut next, mut at) = (first, fixed);
    // One iteration more than the limit of headers: the last one finds the transport protocol.
    for _ in 0..=MAX_EXTENSIONS {
        if !is_extension(next) {
            return Ok((next, at));
        }
        let remaining = bytes.get(at..).unwrap_or(&[]);
        let header = remaining.first_chunk::<8>().ok_or(ParseError::Truncated)?;
        let length = match next {
            FRAGMENT if u16::from_be_bytes([header[2], header[3]]) & 0xfff9 != 0 => {
                return Err(ParseError::Fragment);
            }
            FRAGMENT => 8,
            ROUTING if header[3] != 0 => return Err(ParseError::SourceRouted),
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if length > remaining.len() {
            return Err(ParseError::Truncated);
        }
        (next, at) = (header[0], at + length);
    }
    Err(ParseError::TooManyExtensions)
}

const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;

/// IANA's extension headers in the format of RFC 8200 §4 and RFC 6564: hop-by-hop options, routing, fragment,
/// destination options, mobility, HIP, shim6.
const fn is_extension(protocol: u8) -> bool {
    matches!(protocol, 0 | ROUTING | FRAGMENT | 60 | 135 | 139 | 140)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::protocol;
    use alloc::vec::Vec;

    /// An IPv6 packet with these extension headers and eight bytes of a transport protocol.
    fn v6(first: u8, headers: &[&[u8]]) -> Vec<u8> {
        let body = headers.concat();
        let mut bytes = alloc::vec![0x60, 0, 0, 0, 0, u8::try_from(body.len() + 8).unwrap(), first, 64];
        bytes.resize(40, 0xfd);
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&[0xee; 8]);
        bytes
    }

    fn v4(options: &[u8], fragment: [u8; 2]) -> Vec<u8> {
        let header_words = u8::try_from(5 + options.len() / 4).unwrap();
        let mut bytes = alloc::vec![
            0x40 | header_words,
            0,
            0,
            header_words * 4 + 8,
            0,
            0,
            fragment[0],
            fragment[1],
            64,
            6,
            0,
            0
        ];
        bytes.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend_from_slice(options);
        bytes.extend_from_slice(&[0xee; 8]);
        bytes
    }

    #[test]
    fn extension_headers_are_skipped() {
        let bytes = v6(
            0,
            &[
                &[60, 0, 1, 4, 0, 0, 0, 0],
                &[43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &[6, 0, 4, 0, 0, 0, 0, 0],
            ],
        );
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.protocol(), packet.body()), (protocol::TCP, &[0xee; 8][..]));
        let ends = v6(50, &[]);
        assert_eq!(Packet::parse(&ends).unwrap().protocol(), 50, "ESP ends the parsing");
    }

    #[test]
    fn a_header_beyond_the_end_of_the_packet_is_truncated() {
        assert_eq!(Packet::parse(&v6(60, &[&[6, 2, 1, 4, 0, 0, 0, 0]])), Err(ParseError::Truncated));
        assert_eq!(
            Packet::parse(&v6(60, &[&[0; 0]])),
            Err(ParseError::Truncated),
            "the body is no extension header"
        );
    }

    #[test]
    fn the_number_of_extension_headers_is_limited() {
        let header: &[u8] = &[60, 0, 1, 4, 0, 0, 0, 0];
        let last: &[u8] = &[6, 0, 1, 4, 0, 0, 0, 0];
        let mut headers = alloc::vec![header; MAX_EXTENSIONS - 1];
        headers.push(last);
        assert!(Packet::parse(&v6(60, &headers)).is_ok());
        headers.insert(0, header);
        assert_eq!(Packet::parse(&v6(60, &headers)), Err(ParseError::TooManyExtensions));
    }

    #[test]
    fn fragments_are_rejected() {
        for (fragment, is_unfragmented) in
            [([0x40, 0], true), ([0x20, 0], false), ([0, 1], false), ([0x80, 0], true)]
        {
            let bytes = v4(&[], fragment);
            assert_eq!(
                Packet::parse(&bytes).err(),
                (!is_unfragmented).then_some(ParseError::Fragment),
                "{fragment:?}"
            );
        }
        for (fragment, is_unfragmented) in [([0, 0], true), ([0, 1], false), ([0, 8], false), ([0, 6], true)] {
            let bytes = v6(44, &[&[6, 0, fragment[0], fragment[1], 0, 0, 0, 1]]);
            assert_eq!(
                Packet::parse(&bytes).err(),
                (!is_unfragmented).then_some(ParseError::Fragment),
                "{fragment:?}"
            );
        }
    }

    #[test]
    fn source_routed_packets_are_rejected() {
        assert_eq!(Packet::parse(&v6(43, &[&[6, 0, 4, 1, 0, 0, 0, 0]])), Err(ParseError::SourceRouted));
        assert_eq!(Packet::parse(&v4(&[131, 7, 4, 10, 0, 0, 9, 0], [0, 0])), Err(ParseError::SourceRouted));
        assert_eq!(Packet::parse(&v4(&[1, 137, 3, 4], [0, 0])), Err(ParseError::SourceRouted));
        // Router alert; a malformed option; data of another option that looks like a source route.
        for options in [[148, 4, 0, 0], [7, 1, 131, 3], [7, 4, 131, 3], [0, 131, 3, 4]] {
            let bytes = v4(&options, [0, 0]);
            assert_eq!(Packet::parse(&bytes).map(|packet| packet.body().len()), Ok(8), "{options:?}");
        }
    }

    #[test]
    fn the_length_in_the_header_counts() {
        for full_packet in [v4(&[], [0, 0]), v6(6, &[])] {
            let mut padded = full_packet.clone();
            padded.extend_from_slice(&[0; 6]);
            assert_eq!(Packet::parse(&padded), Packet::parse(&full_packet));
            for end in 0..full_packet.len() {
                assert_eq!(Packet::parse(&full_packet[..end]), Err(ParseError::Truncated));
            }
        }
        let mut contradicts = v4(&[], [0, 0]);
        contradicts[3] = 19;
        assert_eq!(Packet::parse(&contradicts), Err(ParseError::Malformed));
        contradicts[0] = 0x44;
        assert_eq!(Packet::parse(&contradicts), Err(ParseError::Malformed));
        assert_eq!(Packet::parse(&[0x70; 60]), Err(ParseError::Version(7)));
    }

    #[test]
    fn a_truncated_packet_can_be_parsed_by_its_head() {
        for full_packet in [v4(&[], [0, 0]), v6(6, &[])] {
            let (all, cut) = (Packet::parse(&full_packet).unwrap(), full_packet.len() - 3);
            let head = Packet::parse_head(&full_packet[..cut]).unwrap();
            assert!(head.is_truncated() && !all.is_truncated());
            assert_eq!((head.addrs(), head.offsets, head.body().len()), (all.addrs(), all.offsets, 5));
        }
        assert_eq!(Packet::parse_head(&v4(&[], [0, 0])[..19]), Err(ParseError::Truncated));
    }

    #[test]
    fn traffic_class_and_flow_label_are_separated() {
        let mut bytes = v6(6, &[]);
        bytes[..4].copy_from_slice(&0x6b8a_bcde_u32.to_be_bytes());
        assert_eq!(
            Packet::parse(&bytes).unwrap().ip_params(),
            IpParams { traffic_class: 0xb8, hop_limit: 64, flow_label: 0xabcde }
        );
    }
}
