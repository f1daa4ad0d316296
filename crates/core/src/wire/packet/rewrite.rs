//! Changing a segment where it lies, with its checksums.
//!
//! In: the bytes of a packet with TCP. Out: the same bytes, of the same length, saying something else.
//!
//! 1. A checksum is changed by what has changed under it (RFC 1624, equation 3), whatever lies behind: the cost does
//!    not depend on the payload. One that was right stays right; one that was wrong stays wrong, so that damage on the
//!    way is still found at the end.
//! 2. One that the kernel has not filled in yet ([`Checksum::Unfilled`](super::Checksum::Unfilled)) is none to be
//!    mended: a packet queue that has not asked for large segments gets whole ones.
//! 3. SACK blocks that go are overwritten with no-operations, and the header keeps its length. Shortening it would move
//!    the payload and change the lengths of IP and pseudo header, for bytes that are spared on the fast link only; an
//!    ACK that is to be short on the thin one is [made anew](super::Ack::emit).
//! 4. What is not there is not added: no acknowledgement without its flag, no timestamp without its option. The answer
//!    says whether something was done.

use super::inet_checksum::{InetSum, incremental_update};
use super::ip::HeaderOffsets;
use super::ip_builder::overwrite;
use super::tcp::FIXED_LEN;
use super::tcp_option::{NOP, SACK, write_blocks};
use super::{Flags, OptionList, Options, ParseError, SackBlocks, Segment, Seq, SeqRange, TcpOption, TcpTimestamp};

/// A segment that can be changed.
#[derive(Debug)]
pub struct Rewrite<'a> {
    /// Exactly the packet.
    bytes: &'a mut [u8],
    offsets: HeaderOffsets,
    flags: Flags,
    /// Where the options end.
    payload: usize,
}

impl<'a> Rewrite<'a> {
    /// Opens a packet whose checksum is over all of it, be it right or wrong.
    ///
    /// # Errors
    /// If it is not a whole segment.
    pub fn of(bytes: &'a mut [u8]) -> Result<Self, ParseError> {
        let segment = Segment::parse(bytes)?;
        let (packet, flags) = (segment.packet(), segment.flags());
        let offsets = packet.offsets;
        let payload = offsets.body + FIXED_LEN + segment.option_bytes().len();
        let (bytes, _) = bytes.split_at_mut_checked(offsets.end).ok_or(ParseError::Truncated)?;
        Ok(Self { bytes, offsets, flags, payload })
    }

    /// Another acknowledgement number; `false` if the segment acknowledges nothing.
    pub fn set_ack(&mut self, ack: Seq) -> bool {
        let acknowledges = self.flags.contains(Flags::ACK);
        if acknowledges {
            self.overwrite(self.offsets.body + 8, &ack.number().to_be_bytes());
        }
        acknowledges
    }

    /// Another window, as it stands in the header.
    pub fn set_window(&mut self, window: u16) {
        self.overwrite(self.offsets.body + 14, &window.to_be_bytes());
    }

    /// Another echoed timestamp (`TSecr`); `false` if there is none.
    pub fn set_ts_ecr(&mut self, ts_ecr: TcpTimestamp) -> bool {
        let mut from = 0;
        while let Some((at, length, _)) =
            self.next_option(from, |option| matches!(option, TcpOption::Timestamps(_)))
        {
            // Behind kind, length and the sender's own clock.
            self.overwrite(self.options_offset() + at + 6, &ts_ecr.ticks().to_be_bytes());
            from = at + length;
        }
        from > 0
    }

    /// Each SACK block becomes what `keep` makes of it, or goes. Says how many are left.
    ///
    /// Those that stay move together, in their order; no-operations take the place of the rest.
    pub fn map_sack_blocks(&mut self, mut keep: impl FnMut(SeqRange) -> Option<SeqRange>) -> usize {
        let (mut from, mut kept_count) = (0, 0);
        let is_sack = |option: &TcpOption<'_>| matches!(option, TcpOption::Sack(_));
        while let Some((at, length, TcpOption::Sack(sacks))) = self.next_option(from, is_sack) {
            let mut kept = SackBlocks::default();
            for block in sacks.blocks().iter().filter_map(|block| keep(*block)) {
                kept.push(block);
            }
            kept_count += kept.blocks().len();
            let mut new = [NOP; OptionList::MAX_LEN];
            if !kept.is_empty() {
                let mut buffer = [0; SackBlocks::MAX_BLOCKS * 8];
                let blocks = write_blocks(&mut buffer, &kept);
                overwrite(&mut new, 0, &[SACK, u8::try_from(2 + blocks.len()).unwrap_or(0)]);
                overwrite(&mut new, 2, blocks);
            }
            self.overwrite(self.options_offset() + at, new.get(..length).unwrap_or(&new));
            from = at + length;
        }
        kept_count
    }

    const fn options_offset(&self) -> usize {
        self.offsets.body + FIXED_LEN
    }

    /// The first of these options at or behind `from`: where it is, how long, and what it says.
    fn next_option(
        &self,
        from: usize,
        matches: impl Fn(&TcpOption<'_>) -> bool,
    ) -> Option<(usize, usize, TcpOption<'_>)> {
        let mut options = Options::of(self.bytes.get(self.options_offset()..self.payload).unwrap_or(&[]));
        core::iter::from_fn(|| options.next_with_offset()).find(|(at, _, option)| *at >= from && matches(option))
    }

    /// Writes into TCP's header, and mends the checksum.
    fn overwrite(&mut self, at: usize, new: &[u8]) {
        // Headers begin at even places, so whole words around the change are words of the sum.
        let (from, to) = (at & !1, (at + new.len()).next_multiple_of(2));
        let sum = |bytes: &[u8]| InetSum::default().add(bytes.get(from..to).unwrap_or(&[])).fold();
        let old = sum(self.bytes);
        overwrite(self.bytes, at, new);
        let new = sum(self.bytes);
        let checksum = self.bytes.get_mut(self.offsets.body + CHECKSUM_OFFSET..);
        if let Some(field) = checksum.and_then(|rest| rest.first_chunk_mut::<2>()) {
            *field = incremental_update(u16::from_be_bytes(*field), old, new).to_be_bytes();
        }
    }
}

/// In TCP's header.
const CHECKSUM_OFFSET: usize = 16;
