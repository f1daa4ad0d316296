//! TCP options: parses and builds the bytes between the fixed header and the payload.
//!
//! 1. Kinds are those of RFC 9293 §3.2 (end, no-operation, MSS), RFC 7323 §2 and §3 (window scale, timestamps) and RFC
//!    2018 §2 and §3 (SACK). Any other option is kept unparsed; with it a segment is not treated as a pure
//!    acknowledgement.
//! 2. A known kind with a wrong length counts as unknown, as in the kernel, which skips it.
//! 3. A length less than two, or beyond the end of the header, ends the parsing, because the next option cannot be
//!    found.
//! 4. A list that is built is padded with zeros, which mean end of options.

use super::{Seq, SeqRange, TcpTimestamp};

/// One TCP option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// No-operation: one byte of padding, for alignment or in place of a removed option.
    Nop,
    /// Largest segment that its sender accepts. In a SYN only.
    Mss(u16),
    /// Shift count of the sender's window field. In a SYN only; above 14 it counts as 14 (RFC 7323 §2.3).
    WindowScale(u8),
    /// The sender supports SACK. In a SYN only.
    SackPermitted,
    /// SACK blocks: data received beyond the acknowledgement number.
    Sack(SackBlocks),
    /// Time of sending, and the echoed time of the peer.
    Timestamps(Timestamps),
    /// Any other option, and a known one with a wrong length.
    Other {
        /// Kind of the option.
        kind: u8,
        /// The bytes that follow the length.
        value: &'a [u8],
    },
}

/// The two values of the timestamps option (RFC 7323 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Timestamps {
    /// `TSval`: clock of the sender of this segment.
    pub ts_val: TcpTimestamp,
    /// `TSecr`: the latest `TSval` received from the peer.
    pub ts_ecr: TcpTimestamp,
}

/// Up to four SACK blocks; the one with the newest segment comes first (RFC 2018 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SackBlocks {
    blocks: [SeqRange; Self::MAX_BLOCKS],
    count: u8,
}

impl SackBlocks {
    /// Number of blocks that fit into a header without timestamps (RFC 2018 §3); with timestamps one fewer.
    pub const MAX_BLOCKS: usize = 4;

    /// The first four of these blocks.
    pub fn of(blocks: &[SeqRange]) -> Self {
        let mut sacks = Self::default();
        for block in blocks.iter().take(Self::MAX_BLOCKS) {
            sacks.push(*block);
        }
        sacks
    }

    /// Appends a block; `false` if there are four already.
    pub fn push(&mut self, block: SeqRange) -> bool {
        let Some(free) = self.blocks.get_mut(usize::from(self.count)) else { return false };
        *free = block;
        self.count += 1;
        true
    }

    /// The blocks in the order of the option.
    pub fn blocks(&self) -> &[SeqRange] {
        self.blocks.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Whether there are no blocks.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Parses the value of an option: one to four times eight bytes.
    fn read(value: &[u8]) -> Option<Self> {
        let (blocks, []) = value.as_chunks::<8>() else { return None };
        let mut sacks = Self::default();
        let fit = blocks.iter().all(|[a, b, c, d, e, f, g, h]| {
            let (start, end) = (u32::from_be_bytes([*a, *b, *c, *d]), u32::from_be_bytes([*e, *f, *g, *h]));
            sacks.push(SeqRange::new(Seq::new(start), Seq::new(end)))
        });
        (fit && !sacks.is_empty()).then_some(sacks)
    }
}

impl<'a> TcpOption<'a> {
    /// Kind of MPTCP options (RFC 8684).
    pub const MPTCP: u8 = 30;

    fn read(kind: u8, value: &'a [u8]) -> Self {
        let known = match (kind, value) {
            (MSS, &[a, b]) => Some(Self::Mss(u16::from_be_bytes([a, b]))),
            (WINDOW_SCALE, &[shift]) => Some(Self::WindowScale(shift)),
            (SACK_PERMITTED, []) => Some(Self::SackPermitted),
            (SACK, blocks) => SackBlocks::read(blocks).map(Self::Sack),
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let (value, echo) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                Some(Self::Timestamps(Timestamps {
                    ts_val: TcpTimestamp::new(value),
                    ts_ecr: TcpTimestamp::new(echo),
                }))
            }
            _ => None,
        };
        known.unwrap_or(Self::Other { kind, value })
    }
}

/// Iterator over the options of a header.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Options<'a> {
    /// Iterates over the options in `bytes`, which follow the fixed header.
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// The next option, with its offset and length.
    pub(super) fn next_with_offset(&mut self) -> Option<(usize, usize, TcpOption<'a>)> {
        let start = self.offset;
        let remaining = self.bytes.get(start..)?;
        match *remaining.first()? {
            END => None,
            NOP => {
                self.offset = start + 1;
                Some((start, 1, TcpOption::Nop))
            }
            kind => {
                let length = usize::from(*remaining.get(1)?);
                let value = remaining.get(2..length)?;
                self.offset = start + length;
                Some((start, length, TcpOption::read(kind, value)))
            }
        }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = TcpOption<'a>;

    fn next(&mut self) -> Option<TcpOption<'a>> {
        self.next_with_offset().map(|(_, _, option)| option)
    }
}

/// Builder for options, limited to what a header can hold.
#[derive(Clone, Copy, Debug)]
pub struct OptionList {
    bytes: [u8; Self::MAX_LEN],
    length: usize,
}

impl Default for OptionList {
    fn default() -> Self {
        Self { bytes: [END; Self::MAX_LEN], length: 0 }
    }
}

impl OptionList {
    /// Largest length of options in a header (RFC 9293 §3.1: 15 words in all).
    pub const MAX_LEN: usize = 40;

    /// Options of a segment of an established connection, in the kernel's order and alignment: timestamps if the
    /// connection uses them, then as many SACK blocks as fit: four, or three with timestamps.
    pub fn established(timestamps: Option<Timestamps>, sacks: &SackBlocks) -> Self {
        let mut list = Self::default();
        if let Some(timestamps) = timestamps {
            list.push(&TcpOption::Nop);
            list.push(&TcpOption::Nop);
            list.push(&TcpOption::Timestamps(timestamps));
        }
        if !sacks.is_empty() {
            list.push(&TcpOption::Nop);
            list.push(&TcpOption::Nop);
            let fit = (Self::MAX_LEN - list.length - 2) / 8;
            list.push(&TcpOption::Sack(SackBlocks::of(sacks.blocks().get(..fit).unwrap_or(sacks.blocks()))));
        }
        list
    }

    /// Appends an option. Returns `false` and appends nothing if it does not fit, or if it is a SACK option without
    /// blocks.
    pub fn push(&mut self, option: &TcpOption<'_>) -> bool {
        match option {
            TcpOption::Nop => self.write(&[&[NOP]]),
            TcpOption::Mss(bytes) => self.write(&[&[MSS, 4], &bytes.to_be_bytes()]),
            TcpOption::WindowScale(shift) => self.write(&[&[WINDOW_SCALE, 3, *shift]]),
            TcpOption::SackPermitted => self.write(&[&[SACK_PERMITTED, 2]]),
            TcpOption::Timestamps(Timestamps { ts_val: value, ts_ecr: echo }) => {
                self.write(&[&[TIMESTAMPS, 10], &value.ticks().to_be_bytes(), &echo.ticks().to_be_bytes()])
            }
            TcpOption::Sack(sacks) if sacks.is_empty() => false,
            TcpOption::Sack(sacks) => {
                let mut buffer = [0; SackBlocks::MAX_BLOCKS * 8];
                self.write_option(SACK, write_blocks(&mut buffer, sacks))
            }
            TcpOption::Other { kind: NOP | END, .. } => false,
            TcpOption::Other { kind, value } => self.write_option(*kind, value),
        }
    }

    /// The bytes for a header, padded to whole words.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length.next_multiple_of(4)).unwrap_or(&self.bytes)
    }

    fn write_option(&mut self, kind: u8, value: &[u8]) -> bool {
        u8::try_from(value.len() + 2).is_ok_and(|length| self.write(&[&[kind, length], value]))
    }

    fn write(&mut self, parts: &[&[u8]]) -> bool {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let Some(mut free) = self.bytes.get_mut(self.length..self.length + length) else { return false };
        for part in parts {
            let Some((to, remaining)) = free.split_at_mut_checked(part.len()) else { return false };
            to.copy_from_slice(part);
            free = remaining;
        }
        self.length += length;
        true
    }
}

/// Writes the value of a SACK option into `buffer`; returns the part that was written.
pub(super) fn write_blocks<'a>(buffer: &'a mut [u8; SackBlocks::MAX_BLOCKS * 8], sacks: &SackBlocks) -> &'a [u8] {
    for (to, block) in buffer.as_chunks_mut::<8>().0.iter_mut().zip(sacks.blocks()) {
        let encoded = u64::from(block.start.number()) << 32 | u64::from(block.end.number());
        *to = encoded.to_be_bytes();
    }
    buffer.get(..sacks.blocks().len() * 8).unwrap_or(&[])
}

const END: u8 = 0;
pub(super) const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
pub(super) const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> Vec<TcpOption<'_>> {
        Options::of(bytes).collect()
    }

    #[test]
    fn bytes_after_the_end_option_are_ignored() {
        assert_eq!(all(&[1, 0, 2, 4, 5, 180]), [TcpOption::Nop]);
    }

    #[test]
    fn an_impossible_length_ends_the_parsing() {
        for bad in [&[8, 0, 1, 1][..], &[8, 1, 1, 1], &[8, 10, 0, 0], &[8], &[30, 255, 0, 0]] {
            let bytes = [&[4, 2][..], bad].concat();
            assert_eq!(all(&bytes), [TcpOption::SackPermitted], "{bad:?}");
        }
    }

    #[test]
    fn a_known_kind_of_a_wrong_length_is_unknown_and_the_next_is_read() {
        let wrong: [&[u8]; 6] =
            [&[2, 3, 5], &[3, 2], &[4, 3, 0], &[8, 3, 1], &[5, 2], &[5, 9, 0, 0, 0, 0, 0, 0, 0]];
        for bytes in wrong {
            let bytes = [bytes, &[1]].concat();
            let (kind, value) = (bytes[0], &bytes[2..bytes.len() - 1]);
            assert_eq!(all(&bytes), [TcpOption::Other { kind, value }, TcpOption::Nop]);
        }
    }

    #[test]
    fn three_sack_blocks_fit_beside_timestamps() {
        let blocks: Vec<SeqRange> = (0_u32..4).map(|i| SeqRange::with_len(Seq::new(i * 10), 5)).collect();
        let (sacks, timestamps) = (SackBlocks::of(&blocks), Some(Timestamps::default()));
        let sack_count = |list: &OptionList| {
            let sacks =
                all(list.bytes()).into_iter().find_map(|o| if let TcpOption::Sack(s) = o { Some(s) } else { None });
            sacks.map_or(0, |sacks| sacks.blocks().len())
        };
        let (with, without) = (OptionList::established(timestamps, &sacks), OptionList::established(None, &sacks));
        assert_eq!((sack_count(&with), with.bytes().len()), (3, 40));
        assert_eq!((sack_count(&without), without.bytes().len()), (4, 36));
        assert!(OptionList::established(None, &SackBlocks::default()).bytes().is_empty());
        let mut full = with;
        assert!(!full.push(&TcpOption::Nop), "the list is full");
    }

    const VALUE: &[u8] = &[1, 2, 3, 4, 5, 6];

    /// Options that read back as the same variant after they are written.
    fn any_option() -> impl Strategy<Value = TcpOption<'static>> {
        let span = (any::<u32>(), any::<u32>()).prop_map(|(a, b)| SeqRange::new(Seq::new(a), Seq::new(b)));
        prop_oneof![
            Just(TcpOption::Nop),
            any::<u16>().prop_map(TcpOption::Mss),
            any::<u8>().prop_map(TcpOption::WindowScale),
            Just(TcpOption::SackPermitted),
            proptest::collection::vec(span, 1..5).prop_map(|blocks| TcpOption::Sack(SackBlocks::of(&blocks))),
            (any::<u32>(), any::<u32>()).prop_map(|(a, b)| {
                TcpOption::Timestamps(Timestamps { ts_val: TcpTimestamp::new(a), ts_ecr: TcpTimestamp::new(b) })
            }),
            (9_u8..=255, 0_usize..6).prop_map(|(kind, n)| TcpOption::Other { kind, value: &VALUE[..n] }),
        ]
    }

    proptest! {
        #[test]
        fn options_read_back_as_they_were_written(wanted in proptest::collection::vec(any_option(), 0..9)) {
            let mut list = OptionList::default();
            let written: Vec<_> = wanted.into_iter().filter(|option| list.push(option)).collect();
            prop_assert_eq!(all(list.bytes()), written);
            prop_assert!(list.bytes().len().is_multiple_of(4) && list.bytes().len() <= OptionList::MAX_LEN);
        }

        #[test]
        fn random_options_never_cause_a_panic_or_an_endless_loop(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
            let mut options = Options::of(&bytes);
            let mut end = 0;
            while let Some((start, length, _)) = options.next_with_offset() {
                prop_assert_eq!(start, end);
                end = start + length;
            }
            prop_assert!(end <= bytes.len());
            prop_assert!(options.next_with_offset().is_none());
        }
    }
}
