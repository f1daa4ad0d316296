//! Scoreboard of the sender: the state of every segment that is not cumulatively acknowledged.
//!
//! It counts the segments in flight and selects the segment to be retransmitted.
//!
//! 1. A segment is in flight unless it was selectively acknowledged or is marked as lost; a retransmission counts
//!    once more (the pipe of RFC 6675, in segments).
//! 2. Segments are never split or merged: a retransmission is equal to the original.

use std::collections::VecDeque;

use marline_core::units::Instant;

use super::segment::SeqRange;

/// A segment that was sent and is not cumulatively acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentSegment {
    /// Sequence numbers of its payload.
    pub(super) data: SeqRange,
    /// Whether it carries the FIN.
    pub(super) has_fin: bool,
    /// When it was last sent.
    pub(super) sent_at: Instant,
    /// Whether it was sent more than once.
    pub(super) is_retransmitted: bool,
    /// Whether it was selectively acknowledged.
    pub(super) is_sacked: bool,
    /// Whether it is marked as lost.
    pub(super) is_lost: bool,
    /// Whether a retransmission is in flight. Such a segment is also marked as lost, unless the reduction was
    /// undone since.
    pub(super) has_retransmit_in_flight: bool,
    /// Whether RACK examines it.
    pub(super) is_rack_candidate: bool,
}

impl SentSegment {
    /// End of its sequence numbers, including the FIN.
    pub(super) const fn end(&self) -> u64 {
        self.data.end + self.has_fin as u64
    }

    /// Marks it as sent again at `now` and returns the result.
    fn retransmit(&mut self, now: Instant) -> Self {
        (self.has_retransmit_in_flight, self.is_retransmitted, self.is_rack_candidate, self.sent_at) =
            (true, true, true, now);
        *self
    }
}

/// All segments that are not cumulatively acknowledged, in order of their sequence numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    unacked: VecDeque<SentSegment>,
    sacked: u32,
    lost: u32,
    retransmits_in_flight: u32,
    /// Number of duplicate ACKs that stand for delivered segments, on connections without SACK.
    dup_acks: u32,
    /// End of the highest selectively acknowledged range.
    highest_sacked: u64,
}

impl Scoreboard {
    /// A segment is sent for the first time.
    pub(super) fn push(&mut self, data: SeqRange, fin: bool, at: Instant) {
        let (repeated, sacked, lost, resent) = (false, false, false, false);
        self.unacked.push_back(SentSegment {
            data,
            has_fin: fin,
            sent_at: at,
            is_retransmitted: repeated,
            is_sacked: sacked,
            is_lost: lost,
            has_retransmit_in_flight: resent,
            is_rack_candidate: true,
        });
    }

    /// Removes the first segment if all of it is acknowledged by `ack`.
    pub(super) fn pop_acked(&mut self, ack: u64) -> Option<SentSegment> {
        if self.unacked.front()?.end() > ack {
            return None;
        }
        let sent = self.unacked.pop_front()?;
        self.sacked -= u32::from(sent.is_sacked);
        self.lost -= u32::from(sent.is_lost);
        self.retransmits_in_flight -= u32::from(sent.has_retransmit_in_flight);
        Some(sent)
    }

    /// Marks all segments within `block` as delivered, and calls `on_newly_sacked` for those not marked before.
    pub(super) fn sack(&mut self, block: SeqRange, mut on_newly_sacked: impl FnMut(&SentSegment)) {
        let from = self.unacked.partition_point(|sent| sent.data.start < block.start);
        for sent in self.unacked.range_mut(from..) {
            if sent.end() > block.end + u64::from(sent.has_fin) {
                break;
            }
            if sent.is_sacked {
                continue;
            }
            on_newly_sacked(sent);
            sent.is_sacked = true;
            self.sacked += 1;
            // A retransmission of a segment that is no longer marked as lost counts until the cumulative ACK passes
            // it (`tcp_sacktag_one`).
            if sent.is_lost {
                self.lost -= 1;
                self.retransmits_in_flight -= u32::from(sent.has_retransmit_in_flight);
                (sent.is_lost, sent.has_retransmit_in_flight) = (false, false);
            }
        }
        self.highest_sacked = self.highest_sacked.max(block.end);
    }

    /// Marks those segments in flight as lost for which `is_lost` is true, retransmissions included. Returns their
    /// number.
    pub(super) fn mark_lost(&mut self, is_lost: impl FnMut(&SentSegment) -> bool) -> u32 {
        self.mark(is_lost, false)
    }

    /// Like [`Self::mark_lost`], for the segments that RACK examines. They are not examined again before they are
    /// retransmitted, even if they are no longer marked as lost (Linux removes them from the list that RACK walks).
    pub(super) fn mark_lost_by_rack(&mut self, mut is_lost: impl FnMut(&SentSegment) -> bool) -> u32 {
        self.mark(|sent| sent.is_rack_candidate && is_lost(sent), true)
    }

    fn mark(&mut self, mut is_lost: impl FnMut(&SentSegment) -> bool, disables_rack: bool) -> u32 {
        let mut marked = 0;
        for sent in &mut self.unacked {
            if sent.is_sacked || (sent.is_lost && !sent.has_retransmit_in_flight) || !is_lost(sent) {
                continue;
            }
            marked += 1;
            // A retransmission is lost only if its segment is still marked as lost. Otherwise it counts as still in
            // flight, and only the timer sends another one (`tcp_mark_skb_lost`).
            if sent.is_lost {
                self.retransmits_in_flight -= 1;
                sent.has_retransmit_in_flight = false;
            } else {
                self.lost += 1;
                sent.is_lost = true;
            }
            sent.is_rack_candidate &= !disables_rack;
        }
        marked
    }

    /// Retransmits the first lost segment without a retransmission in flight.
    pub(super) fn retransmit_lost(&mut self, now: Instant) -> Option<SentSegment> {
        // Retransmissions of segments that are no longer lost block others (`tcp_xmit_retransmit_queue`).
        if self.retransmits_in_flight >= self.lost {
            return None;
        }
        let sent = self.unacked.iter_mut().find(|sent| sent.is_lost && !sent.has_retransmit_in_flight)?;
        self.retransmits_in_flight += 1;
        Some(sent.retransmit(now))
    }

    /// The timer has expired, so no retransmission of the first segment counts as in flight.
    pub(super) fn clear_first_retransmit(&mut self) {
        if let Some(sent) = self.unacked.front_mut() {
            self.retransmits_in_flight -= u32::from(std::mem::take(&mut sent.has_retransmit_in_flight));
        }
    }

    /// Retransmits the first segment, regardless of the state of the others.
    pub(super) fn retransmit_first(&mut self, now: Instant) -> Option<SentSegment> {
        let sent = self.unacked.front_mut()?;
        self.retransmits_in_flight += u32::from(!sent.has_retransmit_in_flight);
        Some(sent.retransmit(now))
    }

    /// Retransmits the last segment as a probe.
    pub(super) fn retransmit_last(&mut self, now: Instant) -> Option<SentSegment> {
        let sent = self.unacked.back_mut()?;
        sent.is_retransmitted = true;
        sent.is_rack_candidate = true;
        sent.sent_at = now;
        Some(*sent)
    }

    /// The first segment that is not cumulatively acknowledged.
    pub(super) fn first(&self) -> Option<&SentSegment> {
        self.unacked.front()
    }

    /// Estimated number of segments in flight.
    pub(super) fn in_flight(&self) -> u32 {
        (self.outstanding() + self.retransmits_in_flight - self.sacked - self.lost).saturating_sub(self.dup_acks)
    }

    /// Retransmissions in flight, of segments that are or were marked as lost.
    pub(super) const fn retransmits_in_flight(&self) -> u32 {
        self.retransmits_in_flight
    }

    /// Clears all loss marks; retransmissions stay in flight (`tcp_undo_cwnd_reduction`).
    pub(super) fn clear_lost(&mut self) {
        self.unacked.iter_mut().for_each(|sent| sent.is_lost = false);
        self.lost = 0;
    }

    /// Counts a duplicate ACK, which stands for a delivered segment. Returns false if there is none that it could
    /// stand for.
    pub(super) fn count_dup_ack(&mut self) -> bool {
        let is_countable = self.dup_acks + self.lost + 1 < self.outstanding().max(1);
        self.dup_acks += u32::from(is_countable);
        is_countable
    }

    /// Reduces the count of duplicate ACKs by the segments that are now cumulatively acknowledged, or to zero if
    /// `all`.
    pub(super) fn reset_dup_acks(&mut self, acked: u32, all: bool) {
        self.dup_acks = if all { 0 } else { self.dup_acks.saturating_sub(acked) };
    }

    /// Number of duplicate ACKs that count.
    pub(super) const fn dup_acks(&self) -> u32 {
        self.dup_acks
    }

    /// Number of segments that are not cumulatively acknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        u32::try_from(self.unacked.len()).unwrap_or(u32::MAX)
    }

    /// Number of selectively acknowledged segments.
    pub(super) const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Number of segments marked as lost.
    pub(super) const fn lost(&self) -> u32 {
        self.lost
    }

    /// End of the highest selectively acknowledged range.
    pub(super) const fn highest_sacked(&self) -> u64 {
        self.highest_sacked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled_scoreboard(segments: u64) -> Scoreboard {
        let mut board = Scoreboard::default();
        for n in 0..segments {
            board.push(SeqRange::new(n * 10, n * 10 + 10), false, Instant::from_millis(n));
        }
        board
    }

    #[test]
    fn every_segment_is_counted_once() {
        let mut board = filled_scoreboard(6);
        board.sack(SeqRange::new(20, 40), |_| {});
        assert_eq!(board.in_flight(), 4);
        assert_eq!(board.mark_lost(|sent| sent.data.start < 20), 2);
        assert_eq!((board.in_flight(), board.lost()), (2, 2));
        let copy = board.retransmit_lost(Instant::from_millis(9)).map(|sent| sent.data.start);
        assert_eq!((copy, board.in_flight()), (Some(0), 3));
        while board.pop_acked(40).is_some() {}
        assert_eq!((board.in_flight(), board.lost(), board.sacked()), (2, 0, 0));
    }

    #[test]
    fn a_lost_retransmission_is_marked_as_lost_again() {
        let mut board = filled_scoreboard(2);
        board.mark_lost(|_| true);
        board.retransmit_lost(Instant::from_millis(5));
        assert_eq!(board.in_flight(), 1);
        assert_eq!(board.mark_lost(|sent| sent.sent_at == Instant::from_millis(5)), 1);
        assert_eq!((board.in_flight(), board.lost()), (0, 2));
    }

    #[test]
    fn rack_examines_a_marked_segment_only_after_its_retransmission() {
        let mut board = filled_scoreboard(3);
        assert_eq!(board.mark_lost_by_rack(|_| true), 3);
        board.retransmit_lost(Instant::from_millis(5));
        board.clear_lost();
        assert_eq!(board.mark_lost_by_rack(|_| true), 1, "the first alone");
        assert_eq!(
            board.retransmit_lost(Instant::from_millis(6)).map(|sent| sent.data.start),
            None,
            "its retransmission is in flight"
        );
        assert_eq!(board.mark_lost(|sent| sent.data.start > 0), 2, "the timer marks the others");
        board.clear_first_retransmit();
        assert_eq!((board.lost(), board.retransmits_in_flight(), board.in_flight()), (3, 0, 0));
        assert_eq!(board.retransmit_first(Instant::from_millis(7)).map(|sent| sent.data.start), Some(0));
        assert_eq!((board.lost(), board.retransmits_in_flight(), board.in_flight()), (3, 1, 1));
    }

    #[test]
    fn retransmissions_of_segments_no_longer_lost_block_others() {
        let mut board = filled_scoreboard(3);
        board.mark_lost_by_rack(|sent| sent.data.start < 20);
        (0..2).for_each(|_| assert!(board.retransmit_lost(Instant::from_millis(5)).is_some()));
        board.clear_lost();
        assert_eq!(board.mark_lost_by_rack(|sent| sent.data.start == 20), 1);
        assert_eq!(board.retransmit_lost(Instant::from_millis(6)).map(|sent| sent.data.start), None);
        assert_eq!((board.lost(), board.retransmits_in_flight(), board.in_flight()), (1, 2, 4));
        board.sack(SeqRange::new(10, 20), |_| {});
        assert_eq!((board.retransmits_in_flight(), board.in_flight()), (2, 3), "its retransmission still counts");
        while board.pop_acked(20).is_some() {}
        assert_eq!(board.retransmit_lost(Instant::from_millis(7)).map(|sent| sent.data.start), Some(20));
    }

    #[test]
    fn only_whole_segments_are_sacked_and_only_once() {
        let mut board = filled_scoreboard(4);
        let mut newly_sacked = 0;
        board.sack(SeqRange::new(15, 40), |_| newly_sacked += 1);
        board.sack(SeqRange::new(20, 40), |_| newly_sacked += 1);
        assert_eq!(newly_sacked, 2);
    }
}
