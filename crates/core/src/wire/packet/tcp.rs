//! TCP segments, parsed without copying (RFC 9293 §3.1).
//!
//! 1. The length of the header is checked once, when the segment is parsed.
//! 2. SYN and FIN take one sequence number each, before and after the payload (RFC 9293 §3.4). [`Segment::seq_range`]
//!    includes them, [`Segment::payload_range`] does not.
//! 3. Invalid combinations of flags are accepted here; the receiving host responds to them.

use core::fmt;
use core::ops::BitOr;

use super::{FourTuple, Options, Packet, ParseError, SackBlocks, Seq, SeqRange, TcpOption, Timestamps, protocol};

/// Length of a header without options.
pub(super) const FIXED_LEN: usize = 20;

/// The control bits of a header, including the three reserved ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u16);

impl Flags {
    /// FIN: the sender has no more data.
    pub const FIN: Self = Self(0x01);
    /// SYN: synchronizes sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// RST: the connection is aborted.
    pub const RST: Self = Self(0x04);
    /// PSH: deliver the data to the application now.
    pub const PSH: Self = Self(0x08);
    /// ACK: the acknowledgement number is valid. Set in all segments after the first.
    pub const ACK: Self = Self(0x10);
    /// URG: the urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168), or a bit of the ACE counter (RFC 9768).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168), or a bit of the ACE counter (RFC 9768).
    pub const CWR: Self = Self(0x80);
    /// Accurate ECN (RFC 9768).
    pub const AE: Self = Self(0x100);
    /// All bits used for ECN feedback.
    pub const ECN: Self = Self(0x1c0);
    /// The flags that distinguish a segment from plain data or a pure acknowledgement: FIN, SYN, RST, URG.
    pub const CONTROL: Self = Self(0x27);

    /// Takes the lower twelve bits of the word that begins with the header length.
    pub(super) const fn new(bits: u16) -> Self {
        Self(bits & 0xfff)
    }

    pub(super) const fn bits(self) -> u16 {
        self.0
    }

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether at least one of `flags` is set.
    pub const fn has_any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// The flags that are set in both.
    #[must_use]
    pub const fn only(self, flags: Self) -> Self {
        Self(self.0 & flags.0)
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR", "AE", "R4", "R2", "R1"];
        let mut list = f.debug_list();
        for (_, name) in names.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1) {
            list.entry(&format_args!("{name}"));
        }
        list.finish()
    }
}

/// A TCP segment in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    packet: Packet<'a>,
    fixed: &'a [u8; FIXED_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Parses the packet at the beginning of `bytes`.
    ///
    /// # Errors
    /// If it is not a complete TCP segment.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        Self::of(Packet::parse(bytes)?)
    }

    /// Parses a packet of which only the beginning may be available. The payload is then truncated, but
    /// [`Self::seq_range`] still gives its real end.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn parse_head(bytes: &'a [u8]) -> Result<Self, ParseError> {
        Self::of(Packet::parse_head(bytes)?)
    }

    /// Parses the body of a packet.
    ///
    /// # Errors
    /// If it is not TCP, or the header is incomplete.
    pub fn of(packet: Packet<'a>) -> Result<Self, ParseError> {
        let body = packet.body_of(protocol::TCP)?;
        let fixed = body.first_chunk::<FIXED_LEN>().ok_or(ParseError::Truncated)?;
        let header = usize::from(fixed[12] >> 4) * 4;
        if header < FIXED_LEN {
            return Err(ParseError::Malformed);
        }
        let (header, payload) = body.split_at_checked(header).ok_or(ParseError::Truncated)?;
        Ok(Self { packet, fixed, options: header.get(FIXED_LEN..).unwrap_or(&[]), payload })
    }

    /// The packet that contains the segment.
    pub const fn packet(&self) -> Packet<'a> {
        self.packet
    }

    /// Addresses and ports.
    pub const fn four_tuple(&self) -> FourTuple {
        let [a, b, c, d, ..] = *self.fixed;
        FourTuple {
            addrs: self.packet.addrs(),
            source_port: u16::from_be_bytes([a, b]),
            destination_port: u16::from_be_bytes([c, d]),
        }
    }

    /// Sequence number of the first byte, or of the SYN.
    pub const fn seq(&self) -> Seq {
        let [_, _, _, _, a, b, c, d, ..] = *self.fixed;
        Seq::new(u32::from_be_bytes([a, b, c, d]))
    }

    /// The acknowledgement number; `None` without the ACK flag, when the field has no meaning.
    pub fn ack(&self) -> Option<Seq> {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *self.fixed;
        self.flags().contains(Flags::ACK).then_some(Seq::new(u32::from_be_bytes([a, b, c, d])))
    }

    /// The control bits.
    pub const fn flags(&self) -> Flags {
        Flags::new(u16::from_be_bytes([self.fixed[12], self.fixed[13]]))
    }

    /// The window field, unscaled: it must be shifted by the window scale of the sender's SYN, except in a SYN itself
    /// (RFC 7323 §2.2).
    pub const fn window(&self) -> u16 {
        u16::from_be_bytes([self.fixed[14], self.fixed[15]])
    }

    /// Iterator over the options.
    pub const fn options(&self) -> Options<'a> {
        Options::of(self.options)
    }

    /// The bytes of the options, including padding.
    pub(super) const fn option_bytes(&self) -> &'a [u8] {
        self.options
    }

    /// The timestamps. Of several such options the last one counts, as in the kernel.
    pub fn timestamps(&self) -> Option<Timestamps> {
        let each = self.options().filter_map(|option| match option {
            TcpOption::Timestamps(timestamps) => Some(timestamps),
            _ => None,
        });
        each.last()
    }

    /// The SACK blocks. Of several such options the last one counts, as in the kernel.
    pub fn sack_blocks(&self) -> SackBlocks {
        let each = self.options().filter_map(|option| match option {
            TcpOption::Sack(sacks) => Some(sacks),
            _ => None,
        });
        each.last().unwrap_or_default()
    }

    /// The available bytes of the payload.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Sequence numbers of the payload.
    pub fn payload_range(&self) -> SeqRange {
        let syn = u32::from(self.flags().contains(Flags::SYN));
        SeqRange::with_len(self.seq().plus(syn), u32::try_from(self.payload_length()).unwrap_or(u32::MAX))
    }

    /// Length of the payload, even if it is not available completely.
    pub const fn payload_length(&self) -> usize {
        let layout = self.packet.offsets;
        layout.end.saturating_sub(layout.body + FIXED_LEN + self.options.len())
    }

    /// Sequence numbers that the segment takes: its payload, SYN and FIN.
    pub fn seq_range(&self) -> SeqRange {
        let fin = u32::from(self.flags().contains(Flags::FIN));
        SeqRange::new(self.seq(), self.payload_range().end.plus(fin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.0.0.1:1 to 10.0.0.2:2, sequence 2³² − 2, with these flags, header length and payload.
    fn segment(flags: u8, data_offset: u8, payload: &[u8]) -> alloc::vec::Vec<u8> {
        let mut bytes = alloc::vec![0x45, 0, 0, 40 + u8::try_from(payload.len()).unwrap(), 0, 0, 0, 0, 64, 6, 0, 0];
        bytes.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend_from_slice(&[
            0,
            1,
            0,
            2,
            0xff,
            0xff,
            0xff,
            0xfe,
            0,
            0,
            0,
            9,
            data_offset << 4,
            flags,
            0x12,
            0x34,
            0,
            0,
            0,
            0,
        ]);
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn syn_and_fin_take_one_sequence_number_each() {
        let start = Seq::new(u32::MAX - 1);
        for (flags, before, seq_len) in [(0x10, 0, 3), (0x11, 0, 4), (0x02, 1, 4), (0x03, 1, 5)] {
            let bytes = segment(flags, 5, b"abc");
            let segment = Segment::parse(&bytes).unwrap();
            assert_eq!(segment.seq_range(), SeqRange::with_len(start, seq_len), "{:?}", segment.flags());
            assert_eq!(segment.payload_range(), SeqRange::with_len(start.plus(before), 3));
            assert_eq!(segment.payload(), b"abc");
        }
    }

    #[test]
    fn the_acknowledgement_number_requires_the_ack_flag() {
        assert_eq!(Segment::parse(&segment(0x02, 5, &[])).unwrap().ack(), None);
        assert_eq!(Segment::parse(&segment(0x10, 5, &[])).unwrap().ack(), Some(Seq::new(9)));
    }

    #[test]
    fn the_headers_length_is_checked() {
        for (data_offset, refusal) in [
            (0, ParseError::Malformed),
            (4, ParseError::Malformed),
            (7, ParseError::Truncated),
            (15, ParseError::Truncated),
        ] {
            assert_eq!(Segment::parse(&segment(0x10, data_offset, &[0; 4])), Err(refusal), "{data_offset} words");
        }
        let bytes = segment(0x10, 6, &[0; 4]);
        assert_eq!(Segment::parse(&bytes).unwrap().payload(), b"");
        let mut udp = bytes;
        udp[9] = protocol::UDP;
        assert_eq!(Segment::parse(&udp), Err(ParseError::WrongProtocol(17)));
    }

    #[test]
    fn flags_are_shown_by_name() {
        assert_eq!(alloc::format!("{:?}", Flags::ACK | Flags::PSH | Flags::AE), "[PSH, ACK, AE]");
    }
}
