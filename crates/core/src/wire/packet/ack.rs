//! Pure acknowledgements as values that can be stored and compared.
//!
//! An [`Ack`] is read from a [`Segment`], compared with an older one, and written as a packet.
//!
//! 1. A segment is a pure ACK if it has ACK, no payload, and none of SYN, FIN, RST and URG. PSH does not matter. ECN
//!    bits do not matter either, but they are kept, because they are feedback.
//! 2. Nothing here decides whether an ACK may be dropped or sent over another link; `accel` does. It uses the
//!    accessors.

use alloc::vec::Vec;

use super::{
    Flags, FourTuple, IpParams, NewSegment, OptionList, SackBlocks, Segment, Seq, SeqRange, TcpOption, Timestamps,
};

/// Contents of a pure acknowledgement. Its sequence number is the next one that its sender will use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ack {
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgement number: the next byte that the sender of the ACK expects.
    pub ack: Seq,
    /// The window field of the header, unscaled.
    pub window: u16,
    /// All control bits, including [`Flags::ACK`].
    pub flags: Flags,
    /// Timestamps, if the connection uses them.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks: data beyond a hole, or duplicates.
    pub sack_blocks: SackBlocks,
}

impl Segment<'_> {
    /// Whether the segment is a pure acknowledgement.
    pub const fn is_pure_ack(&self) -> bool {
        let flags = self.flags();
        flags.contains(Flags::ACK) && !flags.has_any(Flags::CONTROL) && self.payload_length() == 0
    }

    /// The contents of the segment if it is a pure acknowledgement that [`Ack`] can represent.
    ///
    /// Returns `None` as well if there is an option that an [`Ack`] cannot represent: MPTCP options refer to another
    /// connection, and signed segments (RFC 2385, RFC 5925) cannot be changed.
    pub fn pure_ack(&self) -> Option<Ack> {
        let ack = self.ack().filter(|_| self.is_pure_ack())?;
        if self.options().any(|option| matches!(option, TcpOption::Other { .. })) {
            return None;
        }
        Some(Ack {
            seq: self.seq(),
            ack,
            window: self.window(),
            flags: self.flags(),
            timestamps: self.timestamps(),
            sack_blocks: self.sack_blocks(),
        })
    }
}

impl Ack {
    /// Right edge of the send window: acknowledgement number plus window, scaled by the shift count of the sender's SYN
    /// (values above 14 count as 14, RFC 7323 §2.3).
    pub const fn right_edge(&self, scale: u8) -> Seq {
        let shift = if scale < MAX_WINDOW_SCALE { scale } else { MAX_WINDOW_SCALE };
        self.ack.plus((self.window as u32) << shift)
    }

    /// The range that the ACK reports as received twice (D-SACK, RFC 2883 §4): the first SACK block lies before the
    /// acknowledgement number, or within the second block.
    pub fn dsack_range(&self) -> Option<SeqRange> {
        let (first, second) = match self.sack_blocks.blocks() {
            [] => return None,
            [first] => (first, None),
            [first, second, ..] => (first, Some(second)),
        };
        let is_known = !first.end.is_after(self.ack) || second.is_some_and(|second| second.contains_range(first));
        (is_known && !first.is_empty()).then_some(*first)
    }

    /// Whether a receiver of this ACK needs no `older` one: this one acknowledges more, its window does not end
    /// earlier, the older one has no SACK blocks, and both have the same ECN bits.
    pub fn supersedes(&self, older: &Self, scale: u8) -> bool {
        self.ack.is_after(older.ack)
            && !self.right_edge(scale).is_before(older.right_edge(scale))
            && older.sack_blocks.is_empty()
            && self.flags.only(Flags::ECN) == older.flags.only(Flags::ECN)
    }

    /// A packet with this ACK for the flow. If there are four SACK blocks and timestamps, the last block is dropped.
    pub fn emit(&self, four_tuple: &FourTuple, ip_params: IpParams) -> Vec<u8> {
        self.segment(four_tuple, ip_params).write()
    }

    fn segment(&self, four_tuple: &FourTuple, ip_params: IpParams) -> NewSegment<'static> {
        NewSegment {
            four_tuple: *four_tuple,
            ip_params,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            options: OptionList::established(self.timestamps, &self.sack_blocks),
            payload: &[],
        }
    }
}

/// Largest shift count (RFC 7323 §2.3).
const MAX_WINDOW_SCALE: u8 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(ack: u32, window: u16, blocks: &[(u32, u32)]) -> Ack {
        let blocks: Vec<SeqRange> = blocks.iter().map(|(a, b)| SeqRange::new(Seq::new(*a), Seq::new(*b))).collect();
        let sacks = SackBlocks::of(&blocks);
        Ack {
            seq: Seq::new(1),
            ack: Seq::new(ack),
            window,
            flags: Flags::ACK,
            timestamps: None,
            sack_blocks: sacks,
        }
    }

    #[test]
    fn the_right_edge_is_shifted_by_fourteen_bits_at_most() {
        let one = ack(u32::MAX, 2, &[]);
        assert_eq!(one.right_edge(0), Seq::new(1));
        assert_eq!(one.right_edge(7), Seq::new(255));
        assert_eq!(one.right_edge(15), one.right_edge(14));
        assert_eq!(one.right_edge(255), Seq::new((2 << 14) - 1));
    }

    #[test]
    fn a_duplicate_is_recognized_as_rfc_2883_defines() {
        // §4.1: full segments duplicated, before the acknowledgement number; then beyond it, within the second block.
        assert_eq!(ack(4000, 9, &[(3000, 3500)]).dsack_range(), Some(SeqRange::with_len(Seq::new(3000), 500)));
        let beyond = ack(4000, 9, &[(5000, 5500), (4500, 6000)]);
        assert_eq!(beyond.dsack_range(), Some(SeqRange::with_len(Seq::new(5000), 500)));
        // §4: plain blocks beyond holes, and no blocks at all.
        assert_eq!(ack(4000, 9, &[(5000, 5500), (6000, 6500)]).dsack_range(), None);
        assert_eq!(ack(4000, 9, &[(5000, 5500)]).dsack_range(), None);
        assert_eq!(ack(4000, 9, &[]).dsack_range(), None);
    }

    #[test]
    fn an_ack_supersedes_an_older_one_only_if_nothing_is_lost() {
        let former = ack(1000, 100, &[]);
        assert!(ack(2000, 100, &[]).supersedes(&former, 0));
        assert!(ack(2000, 100, &[(3000, 4000)]).supersedes(&former, 0), "new SACK blocks do not matter");
        assert!(!ack(1000, 100, &[]).supersedes(&former, 0), "a duplicate ACK counts");
        assert!(!ack(1000, 200, &[]).supersedes(&former, 0), "it may be a duplicate ACK");
        assert!(!ack(900, 900, &[]).supersedes(&former, 0));
        assert!(!ack(1050, 40, &[]).supersedes(&former, 0), "the window ended later before");
        assert!(!ack(2000, 100, &[]).supersedes(&ack(1000, 100, &[(3000, 4000)]), 0), "a SACK block would be lost");
        let marked = Ack { flags: Flags::ACK | Flags::ECE, ..ack(2000, 100, &[]) };
        assert!(!marked.supersedes(&former, 0) && !ack(3000, 100, &[]).supersedes(&marked, 0));
    }
}
