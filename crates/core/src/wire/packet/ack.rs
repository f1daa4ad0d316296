//! Acknowledgements: segments that carry nothing else, as values that can be kept and compared.
//!
//! In: a [`Segment`]. Out: [`Ack`], if it is one; what it says beside an older one; and a packet that says it.
//!
//! 1. Pure is what has ACK, no payload, and none of SYN, FIN, RST and URG. PSH does not matter, and ECN's bits do not
//!    make it more than an acknowledgement, but they are kept: they are feedback.
//! 2. Nothing here decides: whether an ACK may be left out or sent elsewhere is `accel`'s to say. What it needs for it
//!    are the accessors.

use alloc::vec::Vec;

use super::{Envelope, Flags, Flow, NewSegment, OptionList, Sacks, Segment, Seq, Span, TcpOption, Timestamps};

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
    pub sacks: Sacks,
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
            sacks: self.sacks(),
        })
    }
}

impl Ack {
    /// The end of what may be sent: acknowledgement and window, the latter shifted by the scale of its sender's SYN
    /// (above 14 it counts as 14, RFC 7323 §2.3).
    pub const fn right_edge(&self, scale: u8) -> Seq {
        let shift = if scale < SCALE_MOST { scale } else { SCALE_MOST };
        self.ack.plus((self.window as u32) << shift)
    }

    /// Whether it says that something has come twice (RFC 2883 §4): the first SACK block lies before the
    /// acknowledgement, or within the second.
    pub fn duplicate_span(&self) -> Option<Span> {
        let (first, second) = match self.sacks.blocks() {
            [] => return None,
            [first] => (first, None),
            [first, second, ..] => (first, Some(second)),
        };
        let is_known = !first.end.is_after(self.ack) || second.is_some_and(|second| second.encloses(first));
        (is_known && !first.is_empty()).then_some(*first)
    }

    /// Whether who gets only this one misses nothing of a former one: it acknowledges more, its window does not end
    /// earlier, the former has no SACK blocks, and both tell the same of ECN.
    pub fn says_all_of(&self, former: &Self, scale: u8) -> bool {
        self.ack.is_after(former.ack)
            && !self.right_edge(scale).is_before(former.right_edge(scale))
            && former.sacks.is_empty()
            && self.flags.only(Flags::ECN) == former.flags.only(Flags::ECN)
    }

    /// A packet that says it to the flow's destination. Of four SACK blocks beside timestamps the last is left out.
    pub fn emit(&self, flow: &Flow, envelope: Envelope) -> Vec<u8> {
        self.segment(flow, envelope).write()
    }

    fn segment(&self, flow: &Flow, envelope: Envelope) -> NewSegment<'static> {
        NewSegment {
            flow: *flow,
            envelope,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            options: OptionList::usual(self.timestamps, &self.sacks),
            payload: &[],
        }
    }
}

/// RFC 7323 §2.3.
const SCALE_MOST: u8 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(ack: u32, window: u16, blocks: &[(u32, u32)]) -> Ack {
        let blocks: Vec<Span> = blocks.iter().map(|(a, b)| Span::new(Seq::new(*a), Seq::new(*b))).collect();
        let sacks = Sacks::of(&blocks);
        Ack { seq: Seq::new(1), ack: Seq::new(ack), window, flags: Flags::ACK, timestamps: None, sacks }
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
        assert_eq!(ack(4000, 9, &[(3000, 3500)]).duplicate_span(), Some(Span::at(Seq::new(3000), 500)));
        let beyond = ack(4000, 9, &[(5000, 5500), (4500, 6000)]);
        assert_eq!(beyond.duplicate_span(), Some(Span::at(Seq::new(5000), 500)));
        // §4: plain blocks beyond holes, and nothing at all.
        assert_eq!(ack(4000, 9, &[(5000, 5500), (6000, 6500)]).duplicate_span(), None);
        assert_eq!(ack(4000, 9, &[(5000, 5500)]).duplicate_span(), None);
        assert_eq!(ack(4000, 9, &[]).duplicate_span(), None);
    }

    #[test]
    fn what_is_left_out_must_be_said_by_the_newer_one() {
        let former = ack(1000, 100, &[]);
        assert!(ack(2000, 100, &[]).says_all_of(&former, 0));
        assert!(ack(2000, 100, &[(3000, 4000)]).says_all_of(&former, 0), "what is new does not matter");
        assert!(!ack(1000, 100, &[]).says_all_of(&former, 0), "a duplicate counts");
        assert!(!ack(1000, 200, &[]).says_all_of(&former, 0), "the former may have been a duplicate of its own");
        assert!(!ack(900, 900, &[]).says_all_of(&former, 0));
        assert!(!ack(1050, 40, &[]).says_all_of(&former, 0), "the window has ended later before");
        assert!(!ack(2000, 100, &[]).says_all_of(&ack(1000, 100, &[(3000, 4000)]), 0), "a block would be lost");
        let marked = Ack { flags: Flags::ACK | Flags::ECE, ..ack(2000, 100, &[]) };
        assert!(!marked.says_all_of(&former, 0) && !ack(3000, 100, &[]).says_all_of(&marked, 0));
    }
}
