//! Rewrites a TCP segment in place, including its checksum.
//!
//! 1. The checksum is updated from the changed words alone (RFC 1624, equation 3), so the cost does not depend on the
//!    payload. A valid checksum stays valid. An invalid one stays invalid, so that the receiver still detects the
//!    damage.
//! 2. A checksum that the kernel has not completed ([`Checksum::Partial`](super::Checksum::Partial)) must not be
//!    updated this way. It does not occur in a packet queue that has not requested large segments.
//! 3. Removed SACK blocks are overwritten with no-operations, and the header keeps its length. A shorter header would
//!    move the payload and change the lengths in IP and pseudo header, to save bytes on the fast link only. An ACK that
//!    must be short for a slow link is [rebuilt](super::Ack::emit).
//! 4. Missing fields are not added: no acknowledgement number without the flag, no timestamp without the option. The
//!    return value states whether anything was changed.

use super::inet_checksum::{InetSum, incremental_update};
use super::ip::HeaderOffsets;
use super::ip_builder::overwrite;
use super::tcp::FIXED_LEN;
use super::tcp_option::{NOP, SACK, write_blocks};
use super::{Flags, OptionList, Options, ParseError, SackBlocks, Segment, Seq, SeqRange, TcpOption, TcpTimestamp};

/// A TCP segment that can be changed in place.
#[derive(Debug)]
pub struct Rewrite<'a> {
    /// Exactly the bytes of the packet.
    bytes: &'a mut [u8],
    offsets: HeaderOffsets,
    flags: Flags,
    /// Offset of the payload, where the options end.
    payload: usize,
}

impl<'a> Rewrite<'a> {
    /// Opens a packet whose checksum, valid or not, covers the whole packet (not a partial one).
    ///
    /// # Errors
    /// If it is not a complete TCP segment.
    pub fn of(bytes: &'a mut [u8]) -> Result<Self, ParseError> {
        let segment = Segment::parse(bytes)?;
        let (packet, flags) = (segment.packet(), segment.flags());
        let offsets = packet.offsets;
        let payload = offsets.body + FIXED_LEN + segment.option_bytes().len();
        let (bytes, _) = bytes.split_at_mut_checked(offsets.end).ok_or(ParseError::Truncated)?;
        Ok(Self { bytes, offsets, flags, payload })
    }

    /// Replaces the acknowledgement number; `false` if the segment has no ACK flag.
    pub fn set_ack(&mut self, ack: Seq) -> bool {
        let acknowledges = self.flags.contains(Flags::ACK);
        if acknowledges {
            self.overwrite(self.offsets.body + 8, &ack.number().to_be_bytes());
        }
        acknowledges
    }

    /// Replaces the window field of the header (unscaled).
    pub fn set_window(&mut self, window: u16) {
        self.overwrite(self.offsets.body + 14, &window.to_be_bytes());
    }

    /// Replaces the echoed timestamp (`TSecr`); `false` if there is none.
    pub fn set_ts_ecr(&mut self, ts_ecr: TcpTimestamp) -> bool {
        let mut from = 0;
        while let Some((at, length, _)) =
            self.next_option(from, |option| matches!(option, TcpOption::Timestamps(_)))
        {
            // Skip kind, length and `TSval`.
            self.overwrite(self.options_offset() + at + 6, &ts_ecr.ticks().to_be_bytes());
            from = at + length;
        }
        from > 0
    }

    /// Replaces each SACK block by the result of `map_block`, or removes it on `None`. Returns the number of remaining
    /// blocks.
    ///
    /// The remaining blocks move together in their order; no-operations fill the rest.
    pub fn map_sack_blocks(&mut self, mut map_block: impl FnMut(SeqRange) -> Option<SeqRange>) -> usize {
        let (mut from, mut kept_count) = (0, 0);
        let is_sack = |option: &TcpOption<'_>| matches!(option, TcpOption::Sack(_));
        while let Some((at, length, TcpOption::Sack(sacks))) = self.next_option(from, is_sack) {
            let mut retained = SackBlocks::default();
            for block in sacks.blocks().iter().filter_map(|block| map_block(*block)) {
                retained.push(block);
            }
            kept_count += retained.blocks().len();
            let mut new = [NOP; OptionList::MAX_LEN];
            if !retained.is_empty() {
                let mut buffer = [0; SackBlocks::MAX_BLOCKS * 8];
                let blocks = write_blocks(&mut buffer, &retained);
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

    /// The first matching option at or after `from`: its offset, length and value.
    fn next_option(
        &self,
        from: usize,
        matches: impl Fn(&TcpOption<'_>) -> bool,
    ) -> Option<(usize, usize, TcpOption<'_>)> {
        let mut options = Options::of(self.bytes.get(self.options_offset()..self.payload).unwrap_or(&[]));
        core::iter::from_fn(|| options.next_with_offset()).find(|(at, _, option)| *at >= from && matches(option))
    }

    /// Overwrites bytes of the TCP header and updates the checksum.
    fn overwrite(&mut self, at: usize, new: &[u8]) {
        // Headers begin at even offsets, so the aligned words around the change are words of the checksum.
        let (from, to) = (at & !1, (at + new.len()).next_multiple_of(2));
        let sum = |bytes: &[u8]| InetSum::default().add(bytes.get(from..to).unwrap_or(&[])).fold();
        let old_sum = sum(self.bytes);
        overwrite(self.bytes, at, new);
        let new = sum(self.bytes);
        let checksum = self.bytes.get_mut(self.offsets.body + CHECKSUM_OFFSET..);
        if let Some(field) = checksum.and_then(|remaining| remaining.first_chunk_mut::<2>()) {
            *field = incremental_update(u16::from_be_bytes(*field), old_sum, new).to_be_bytes();
        }
    }
}

/// Offset of the checksum in the TCP header.
const CHECKSUM_OFFSET: usize = 16;
