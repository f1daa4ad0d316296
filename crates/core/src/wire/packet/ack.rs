//! Acknowledgements: segments that carry nothing else, as values that can be kept and compared.
//!
//! In: a [`Segment`]. Out: [`Ack`], if it is one; what it says beside an older one; and a packet that says it.
//!
//! 1. Pure is what has ACK, no payload, and none of SYN, FIN, RST and URG. PSH does not matter, and ECN's bits do not
//!    make it more than an acknowledgement, but they are kept: they are feedback.
//! 2. Nothing here decides: whether an ACK may be left out or sent elsewhere is `accel`'s to say. What it needs for it
//!    are the accessors.

use alloc::vec::Vec;

use super::{
    Flags, FourTuple, IpParams, NewSegment, OptionList, SackBlocks, Segment, Seq, SeqRange, TcpOption, Timestamps,
};

/// What a pure acknowledgement says. Its own sequence number is the next one that its sender will use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ack {
    /// Its sequence number.
    pub seq: Seq,
    /// The next number that its sender waits for.
    pub ack: Seq,
    /// The window as it stands in the header: not shifted yet.
    pub window: u16,
    /// All control bits; [`Flags::ACK`] is one of them.
    pub flags: Flags,
    /// Timestamps, if the connection uses them.
    pub timestamps: Option<Timestamps>,
    /// What has come beyond a hole, or twice.
    pub sack_blocks: SackBlocks,
}

impl Segment<'_> {
    /// Whether it acknowledges and does nothing else.
    pub const fn is_pure_ack(&self) -> bool {
        let flags = self.flags();
        flags.contains(Flags::ACK) && !flags.has_any(Flags::CONTROL) && self.payload_length() == 0
    }

    /// What it says, if it is a pure acknowledgement.
    ///
    /// None as well where an option says more than that: MPTCP's speak of another connection, and one that is signed
    /// (RFC 2385, RFC 5925) cannot be said otherwise.
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
    /// The end of what may be sent: acknowledgement and window, the latter shifted by the scale of its sender's SYN
    /// (above 14 it counts as 14, RFC 7323 §2.3).
    pub const fn right_edge(&self, scale: u8) -> Seq {
        let shift = if scale < MAX_SCALE { scale } else { MAX_SCALE };
        self.ack.plus((self.window as u32) << shift)
    }

    /// Whether it says that something has come twice (RFC 2883 §4): the first SACK block lies before the
    /// acknowledgement, or within the second.
    pub fn dsack_range(&self) -> Option<SeqRange> {
        let (first, second) = match self.sack_blocks.blocks() {
            [] => return None,
            [first] => (first, None),
            [first, second, ..] => (first, Some(second)),
        };
        let is_known = !first.end.is_after(self.ack) || second.is_some_and(|second| second.contains_range(first));
        (is_known && !first.is_empty()).then_some(*first)
    }

    /// Whether who gets only this one misses nothing of a former one: it acknowledges more, its window does not end
    /// earlier, the former has no SACK blocks, and both tell the same of ECN.
    pub fn supersedes(&self, older: &Self, scale: u8) -> bool {
        self.ack.is_after(older.ack)
            && !self.right_edge(scale).is_before(older.right_edge(scale))
            && older.sack_blocks.is_empty()
            && self.flags.only(Flags::ECN) == older.flags.only(Flags::ECN)
    }

    /// A packet that says it to the flow's destination. Of four SACK blocks beside timestamps the last is left out.
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

/// RFC 7323 §2.3.
const MAX_SCALE: u8 = 14;

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
    fn a_duplicate_is_told_as_rfc_2883_has_it() {
        // §4.1: full segments duplicated, before the acknowledgement; then beyond it, within the second block.
        assert_eq!(ack(4000, 9, &[(3000, 3500)]).dsack_range(), Some(SeqRange::with_len(Seq::new(3000), 500)));
        let beyond = ack(4000, 9, &[(5000, 5500), (4500, 6000)]);
        assert_eq!(beyond.dsack_range(), Some(SeqRange::with_len(Seq::new(5000), 500)));
        // §4: plain blocks beyond holes, and nothing at all.
        assert_eq!(ack(4000, 9, &[(5000, 5500), (6000, 6500)]).dsack_range(), None);
        assert_eq!(ack(4000, 9, &[(5000, 5500)]).dsack_range(), None);
        assert_eq!(ack(4000, 9, &[]).dsack_range(), None);
    }

    #[test]
    fn what_is_left_out_must_be_said_by_the_newer_one() {
        let former = ack(1000, 100, &[]);
        assert!(ack(2000, 100, &[]).supersedes(&former, 0));
        assert!(ack(2000, 100, &[(3000, 4000)]).supersedes(&former, 0), "what is new does not matter");
        assert!(!ack(1000, 100, &[]).supersedes(&former, 0), "a duplicate counts");
        assert!(!ack(1000, 200, &[]).supersedes(&former, 0), "the former may have been a duplicate of its own");
        assert!(!ack(900, 900, &[]).supersedes(&former, 0));
        assert!(!ack(1050, 40, &[]).supersedes(&former, 0), "the window has ended later before");
        assert!(!ack(2000, 100, &[]).supersedes(&ack(1000, 100, &[(3000, 4000)]), 0), "a block would be lost");
        let marked = Ack { flags: Flags::ACK | Flags::ECE, ..ack(2000, 100, &[]) };
        assert!(!marked.supersedes(&former, 0) && !ack(3000, 100, &[]).supersedes(&marked, 0));
    }
}
