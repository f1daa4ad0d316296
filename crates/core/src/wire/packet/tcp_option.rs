//! Options of TCP: what stands between the fixed header and the payload.
//!
//! In: those bytes. Out: one [`TcpOption`] after the other; and, in the other direction, an [`OptionList`].
//!
//! 1. Kinds are those of RFC 9293 §3.2 (end, no-operation, MSS), RFC 7323 §2 and §3 (window scale, timestamps) and
//!    RFC 2018 §2 and §3 (SACK). Any other is kept as it is, and makes an acknowledgement more than one.
//! 2. A known kind of a wrong length is an unknown one, as for the kernel, which passes over it.
//! 3. A length that is less than two, or reaches beyond the header, ends the walk: there is no next option to be found.
//! 4. A list that is written is padded with zeros, which end it.

use super::{Seq, SeqRange, TcpTimestamp};

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// One byte that means nothing; aligns the next option, or stands where one was.
    Nop,
    /// The largest segment that the sender of this takes. In a SYN only.
    Mss(u16),
    /// By how many bits the sender's windows are shifted. In a SYN only; above 14 it means 14 (RFC 7323 §2.3).
    WindowScale(u8),
    /// SACK blocks are understood. In a SYN only.
    SackPermitted,
    /// What has come beyond the acknowledgement.
    Sack(SackBlocks),
    /// When this was sent, and when what it answers was.
    Timestamps(Timestamps),
    /// Any other, and a known one whose length is wrong.
    Other {
        /// Its kind.
        kind: u8,
        /// What follows its length.
        value: &'a [u8],
    },
}

/// The two numbers of RFC 7323 §3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Timestamps {
    /// `TSval`: the clock of who sends this.
    pub ts_val: TcpTimestamp,
    /// `TSecr`: the clock of the other end, as it stood in what this answers.
    pub ts_ecr: TcpTimestamp,
}

/// Up to four blocks; the one with the newest segment first (RFC 2018 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SackBlocks {
    blocks: [SeqRange; Self::MAX_BLOCKS],
    count: u8,
}

impl SackBlocks {
    /// So many fit into a header without timestamps (RFC 2018 §3); beside timestamps it is one fewer.
    pub const MAX_BLOCKS: usize = 4;

    /// The first four of these.
    pub fn of(blocks: &[SeqRange]) -> Self {
        let mut sacks = Self::default();
        for block in blocks.iter().take(Self::MAX_BLOCKS) {
            sacks.push(*block);
        }
        sacks
    }

    /// Adds one at the end; `false` if there is no room for it.
    pub fn push(&mut self, block: SeqRange) -> bool {
        let Some(free) = self.blocks.get_mut(usize::from(self.count)) else { return false };
        *free = block;
        self.count += 1;
        true
    }

    /// The blocks, in the option's order.
    pub fn blocks(&self) -> &[SeqRange] {
        self.blocks.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// From an option's value: one to four times eight bytes.
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
    /// The kind of MPTCP's options (RFC 8684).
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

/// The options of a header, one after the other; see the module's rules for where they end.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Options<'a> {
    /// Those in `bytes`, which begin behind the fixed header.
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// The next one, and where it begins and how long it is.
    pub(super) fn next_with_offset(&mut self) -> Option<(usize, usize, TcpOption<'a>)> {
        let start = self.offset;
        let rest = self.bytes.get(start..)?;
        match *rest.first()? {
            END => None,
            NOP => {
                self.offset = start + 1;
                Some((start, 1, TcpOption::Nop))
            }
            kind => {
                let length = usize::from(*rest.get(1)?);
                let value = rest.get(2..length)?;
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

/// Options in the making, at most as many as a header can hold.
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
    /// Bytes of options in the largest header (RFC 9293 §3.1: 15 words in all).
    pub const MAX_LEN: usize = 40;

    /// What a segment of an established connection has, in the kernel's order and alignment: timestamps if the
    /// connection uses them, then as many SACK blocks as there is room for: four, or three beside timestamps.
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

    /// Adds one at the end; `false`, and nothing is added, if there is no room for it, or it says nothing: SACK without
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

    /// As they stand in a header: padded to whole words.
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
            let Some((to, rest)) = free.split_at_mut_checked(part.len()) else { return false };
            to.copy_from_slice(part);
            free = rest;
        }
        self.length += length;
        true
    }
}

/// Blocks as they stand in an option, into `room`; gives back the part that was written.
pub(super) fn write_blocks<'a>(buffer: &'a mut [u8; SackBlocks::MAX_BLOCKS * 8], sacks: &SackBlocks) -> &'a [u8] {
    for (to, block) in buffer.as_chunks_mut::<8>().0.iter_mut().zip(sacks.blocks()) {
        let whole = u64::from(block.start.number()) << 32 | u64::from(block.end.number());
        *to = whole.to_be_bytes();
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
    fn what_follows_the_end_is_not_read() {
        assert_eq!(all(&[1, 0, 2, 4, 5, 180]), [TcpOption::Nop]);
    }

    #[test]
    fn an_impossible_length_ends_the_walk() {
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
    fn beside_timestamps_three_blocks_fit() {
        let blocks: Vec<SeqRange> = (0_u32..4).map(|i| SeqRange::with_len(Seq::new(i * 10), 5)).collect();
        let (sacks, stamps) = (SackBlocks::of(&blocks), Some(Timestamps::default()));
        let kept = |list: &OptionList| {
            let sacks =
                all(list.bytes()).into_iter().find_map(|o| if let TcpOption::Sack(s) = o { Some(s) } else { None });
            sacks.map_or(0, |sacks| sacks.blocks().len())
        };
        let (with, without) = (OptionList::established(stamps, &sacks), OptionList::established(None, &sacks));
        assert_eq!((kept(&with), with.bytes().len()), (3, 40));
        assert_eq!((kept(&without), without.bytes().len()), (4, 36));
        assert!(OptionList::established(None, &SackBlocks::default()).bytes().is_empty());
        let mut full = with;
        assert!(!full.push(&TcpOption::Nop), "no room");
    }

    const VALUE: &[u8] = &[1, 2, 3, 4, 5, 6];

    /// Options that can be written as what they are.
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
        fn no_bytes_make_the_walk_panic_or_go_on(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
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
