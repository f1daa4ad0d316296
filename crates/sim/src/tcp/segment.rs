//! A TCP segment as a plain value, with the length of the corresponding IP packet.
//!
//! 1. Sequence numbers are offsets in the stream of bytes, 64 bits wide: they start at zero and never wrap.
//! 2. A SYN occupies no sequence number. A FIN occupies the one behind the last byte, so that its acknowledgement
//!    can be distinguished.
//! 3. Lengths are those of IPv4: 20 bytes of IP, 20 bytes of TCP, 12 bytes of timestamps except on SYNs, and the
//!    SACK option if there are blocks (RFC 2018 §3, RFC 7323 §3). A SYN has 20 bytes of options.
//!
//! Headers are not serialized here; [`crate::accel`] builds packets from segments.

use marline_core::units::{DataSize, Instant};

use crate::link::Packet;

/// A range of sequence numbers, `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SeqRange {
    /// The first sequence number.
    pub start: u64,
    /// One past the last sequence number.
    pub end: u64,
}

impl SeqRange {
    /// The sequence numbers `start..end`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// Number of sequence numbers.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the range is empty.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether all of `other` is inside this range.
    pub const fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// The control bits in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// Opens a connection.
    pub syn: bool,
    /// The field `ack` is valid.
    pub ack: bool,
    /// No data follows after this segment's.
    pub fin: bool,
    /// Refuses or aborts the connection, or says that it does not exist.
    pub rst: bool,
}

/// Up to three SACK blocks, as many as fit beside timestamps. The first one may report a duplicate (RFC 2883).
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

    /// All blocks in order.
    pub fn iter(&self) -> impl Iterator<Item = SeqRange> + '_ {
        self.blocks.iter().take(usize::from(self.count)).copied()
    }

    /// Whether there are no blocks.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// A TCP segment, without addresses and ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Identifies the connection, instead of addresses and ports.
    pub flow: u32,
    /// The control bits of this segment.
    pub flags: Flags,
    /// Sequence numbers of the payload; without payload, an empty range at the next number to be sent (in a window probe, before the first
    /// unacknowledged one).
    pub seqs: SeqRange,
    /// Cumulative acknowledgement: everything before this number has arrived.
    pub ack: u64,
    /// Receive window, counted from `ack`.
    pub window: DataSize,
    /// Ranges that have arrived beyond `ack`.
    pub sacks: SackBlocks,
    /// TSval: the sender's clock, in nanoseconds instead of the usual ticks.
    pub ts_val: Instant,
    /// TSecr: the echoed clock of the peer (RFC 7323 §4); `None` on the first SYN and without timestamps.
    pub ts_ecr: Option<Instant>,
}

impl Segment {
    /// End of the sequence numbers that this segment occupies, including the FIN.
    pub const fn end(&self) -> u64 {
        self.seqs.end + self.flags.fin as u64
    }
}

/// Bytes of the IP and TCP headers with timestamps.
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
    fn a_full_segment_has_the_size_of_the_mtu() {
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
