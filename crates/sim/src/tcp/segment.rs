//! What TCP puts on the wire, as values.
//!
//! In: what an end wants to say. Out: a small value with the length it would have as an IP packet.
//!
//! 1. Sequence numbers are places in the stream of bytes, 64 bits wide: they start at zero and never wrap.
//! 2. SYN takes no number. FIN takes the one behind the last byte, so that its acknowledgement is told apart.
//! 3. Lengths are those of IPv4: 20 bytes IP, 20 bytes TCP, 12 bytes timestamps on all but the SYNs, and the SACK
//!    option where there are blocks (RFC 2018 §3, RFC 7323 §3). A SYN has 20 bytes of options.
//!
//! Real headers in bytes were not used: nothing between the two ends reads them.

use marline_core::units::{DataSize, Instant};

use crate::link::Packet;

/// Sequence numbers `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SeqRange {
    /// The first number.
    pub start: u64,
    /// One past the last number.
    pub end: u64,
}

impl SeqRange {
    /// Numbers `start..end`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// How many numbers.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether all of `other` lies within.
    pub const fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// The control bits that are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// Opens.
    pub syn: bool,
    /// The field `ack` counts.
    pub ack: bool,
    /// Nothing comes behind this segment's data.
    pub fin: bool,
    /// The connection does not exist (any more).
    pub rst: bool,
}

/// Up to three SACK blocks: as many as fit beside timestamps. The first may be a duplicate (RFC 2883).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlocks {
    blocks: [SeqRange; 3],
    count: u8,
}

impl SackBlocks {
    /// Adds a block; a fourth one is dropped.
    pub fn push(&mut self, block: SeqRange) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.count)) {
            *slot = block;
            self.count += 1;
        }
    }

    /// The blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = SeqRange> + '_ {
        self.blocks.iter().take(usize::from(self.count)).copied()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// One segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// The connection, in place of addresses and ports.
    pub flow: u32,
    /// Control bits.
    pub flags: Flags,
    /// The payload's numbers; empty at the next number to be sent if there is none.
    pub seqs: SeqRange,
    /// Everything before this number has arrived.
    pub ack: u64,
    /// Room for numbers behind `ack`.
    pub window: DataSize,
    /// What has arrived beyond `ack`.
    pub sacks: SackBlocks,
    /// The sender's clock, finer than any real one's.
    pub ts_val: Instant,
    /// The other side's clock as it was last heard (RFC 7323 §4); none on the first SYN.
    pub ts_ecr: Option<Instant>,
}

impl Segment {
    /// The number behind everything that this segment carries, FIN included.
    pub const fn end(&self) -> u64 {
        self.seqs.end + self.flags.fin as u64
    }
}

/// Bytes of IP and TCP header with timestamps: what an MTU loses to them.
pub(super) const HEADERS_WITH_TIMESTAMPS: u64 = 52;

impl Packet for Segment {
    fn size(&self) -> DataSize {
        let sacks = match self.sacks.count {
            0 => 0,
            n => 4 + 8 * u64::from(n),
        };
        let options = if self.flags.syn { 20 } else { 12 + sacks };
        DataSize::from_bytes(40 + options + self.seqs.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_segment_is_an_mtu() {
        let full = Segment { seqs: SeqRange::new(0, 1448), ..Segment::default() };
        assert_eq!(full.size(), DataSize::from_bytes(1500));
    }

    #[test]
    fn three_blocks_cost_28_bytes_and_a_fourth_is_dropped() {
        let mut ack = Segment::default();
        let bare = ack.size();
        for at in [10, 20, 30, 40] {
            ack.sacks.push(SeqRange::new(at, at + 1));
        }
        assert_eq!(ack.sacks.iter().count(), 3);
        assert_eq!(ack.size() - bare, DataSize::from_bytes(28));
    }
}
