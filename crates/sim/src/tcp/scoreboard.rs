//! What is on its way, and what is known of each piece?
//!
//! In: segments sent, acknowledged, selectively acknowledged, lost. Out: how many count as in flight, and which is to
//! be sent again.
//!
//! 1. A segment is in flight unless it was selectively acknowledged or counts as lost; a copy sent again counts once
//!    more (RFC 6675's pipe, by segments).
//! 2. Segments are never cut or joined: what was sent once is sent again as it was.

use std::collections::VecDeque;

use marline_core::units::Instant;

use super::segment::SeqRange;

/// One segment that was sent and not yet cumulatively acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentSegment {
    /// Its payload.
    pub(super) data: SeqRange,
    /// It carries the FIN.
    pub(super) has_fin: bool,
    /// When its newest copy went out.
    pub(super) sent_at: Instant,
    /// It was sent more than once.
    pub(super) is_retransmitted: bool,
    /// It was selectively acknowledged.
    pub(super) is_sacked: bool,
    /// It counts as lost.
    pub(super) is_lost: bool,
    /// A newer copy is on its way. It counts as lost, too, unless a reduction was taken back since.
    pub(super) has_retransmit_in_flight: bool,
    /// RACK looks at it.
    pub(super) is_rack_candidate: bool,
}

impl SentSegment {
    /// The number behind it.
    pub(super) const fn end(&self) -> u64 {
        self.data.end + self.has_fin as u64
    }

    /// Another copy of it goes out.
    fn retransmit(&mut self, now: Instant) -> Self {
        (self.has_retransmit_in_flight, self.is_retransmitted, self.is_rack_candidate, self.sent_at) =
            (true, true, true, now);
        *self
    }
}

/// All segments on their way, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    unacked: VecDeque<SentSegment>,
    sacked: u32,
    lost: u32,
    retransmits_in_flight: u32,
    /// Duplicate ACKs that stand for segments, where there are no SACK blocks.
    dup_acks: u32,
    /// One past the highest number that was selectively acknowledged.
    highest_sacked: u64,
}

impl Scoreboard {
    /// A segment goes out for the first time.
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

    /// Takes the first segment that lies before `ack` off the board.
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

    /// Marks everything in `block` as arrived and tells of each segment for which this is news.
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
            // The copy of what does not count as lost is counted until the edge passes it (`tcp_sacktag_one`).
            if sent.is_lost {
                self.lost -= 1;
                self.retransmits_in_flight -= u32::from(sent.has_retransmit_in_flight);
                (sent.is_lost, sent.has_retransmit_in_flight) = (false, false);
            }
        }
        self.highest_sacked = self.highest_sacked.max(block.end);
    }

    /// Marks as lost what `is_lost` says of the segments that are in flight, copies included.
    pub(super) fn mark_lost(&mut self, is_lost: impl FnMut(&SentSegment) -> bool) -> u32 {
        self.mark(is_lost, false)
    }

    /// The same for those at which RACK looks. Until they are sent again it does so no more, even if they do not count as
    /// lost any longer (Linux takes them off the list that it goes through).
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
            // A copy is lost only where the segment counted as lost already; else the copy is taken to be on its way still, and
            // the timer alone sends another (`tcp_mark_skb_lost`).
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

    /// Sends the first lost segment that has no copy on its way.
    pub(super) fn retransmit_lost(&mut self, now: Instant) -> Option<SentSegment> {
        // Copies of what does not count as lost any more are in the way of others (`tcp_xmit_retransmit_queue`).
        if self.retransmits_in_flight >= self.lost {
            return None;
        }
        let sent = self.unacked.iter_mut().find(|sent| sent.is_lost && !sent.has_retransmit_in_flight)?;
        self.retransmits_in_flight += 1;
        Some(sent.retransmit(now))
    }

    /// No copy of the first segment is on its way: its timer has run out.
    pub(super) fn clear_first_retransmit(&mut self) {
        if let Some(sent) = self.unacked.front_mut() {
            self.retransmits_in_flight -= u32::from(std::mem::take(&mut sent.has_retransmit_in_flight));
        }
    }

    /// Sends the first segment once more, whatever is thought of the others.
    pub(super) fn retransmit_first(&mut self, now: Instant) -> Option<SentSegment> {
        let sent = self.unacked.front_mut()?;
        self.retransmits_in_flight += u32::from(!sent.has_retransmit_in_flight);
        Some(sent.retransmit(now))
    }

    /// Sends the last segment once more, as a probe.
    pub(super) fn retransmit_last(&mut self, now: Instant) -> Option<SentSegment> {
        let sent = self.unacked.back_mut()?;
        sent.is_retransmitted = true;
        sent.is_rack_candidate = true;
        sent.sent_at = now;
        Some(*sent)
    }

    /// The first segment.
    pub(super) fn first(&self) -> Option<&SentSegment> {
        self.unacked.front()
    }

    /// Segments that the network is thought to hold.
    pub(super) fn in_flight(&self) -> u32 {
        (self.outstanding() + self.retransmits_in_flight - self.sacked - self.lost).saturating_sub(self.dup_acks)
    }

    /// Copies that are on their way, of what counts as lost, or did once.
    pub(super) const fn retransmits_in_flight(&self) -> u32 {
        self.retransmits_in_flight
    }

    /// Nothing counts as lost any more; copies stay on their way (`tcp_undo_cwnd_reduction`).
    pub(super) fn clear_lost(&mut self) {
        self.unacked.iter_mut().for_each(|sent| sent.is_lost = false);
        self.lost = 0;
    }

    /// A duplicate ACK: something behind the first segment has arrived. False if there is nothing that it can stand for.
    pub(super) fn count_dup_ack(&mut self) -> bool {
        let is_countable = self.dup_acks + self.lost + 1 < self.outstanding().max(1);
        self.dup_acks += u32::from(is_countable);
        is_countable
    }

    /// So many of them, or all, stand for segments that are acknowledged now.
    pub(super) fn reset_dup_acks(&mut self, acked: u32, all: bool) {
        self.dup_acks = if all { 0 } else { self.dup_acks.saturating_sub(acked) };
    }

    /// Duplicate ACKs that count.
    pub(super) const fn dup_acks(&self) -> u32 {
        self.dup_acks
    }

    /// Segments that are not cumulatively acknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        u32::try_from(self.unacked.len()).unwrap_or(u32::MAX)
    }

    /// Segments selectively acknowledged.
    pub(super) const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Segments that count as lost.
    pub(super) const fn lost(&self) -> u32 {
        self.lost
    }

    /// One past the highest selectively acknowledged number.
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
    fn every_segment_is_in_flight_once() {
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
    fn a_lost_copy_is_lost_again() {
        let mut board = filled_scoreboard(2);
        board.mark_lost(|_| true);
        board.retransmit_lost(Instant::from_millis(5));
        assert_eq!(board.in_flight(), 1);
        assert_eq!(board.mark_lost(|sent| sent.sent_at == Instant::from_millis(5)), 1);
        assert_eq!((board.in_flight(), board.lost()), (0, 2));
    }

    #[test]
    fn what_was_late_is_looked_at_again_when_it_is_sent_again() {
        let mut board = filled_scoreboard(3);
        assert_eq!(board.mark_lost_by_rack(|_| true), 3);
        board.retransmit_lost(Instant::from_millis(5));
        board.clear_lost();
        assert_eq!(board.mark_lost_by_rack(|_| true), 1, "the first alone");
        assert_eq!(
            board.retransmit_lost(Instant::from_millis(6)).map(|sent| sent.data.start),
            None,
            "its copy is on its way"
        );
        assert_eq!(board.mark_lost(|sent| sent.data.start > 0), 2, "the timer finds the others");
        board.clear_first_retransmit();
        assert_eq!((board.lost(), board.retransmits_in_flight(), board.in_flight()), (3, 0, 0));
        assert_eq!(board.retransmit_first(Instant::from_millis(7)).map(|sent| sent.data.start), Some(0));
        assert_eq!((board.lost(), board.retransmits_in_flight(), board.in_flight()), (3, 1, 1));
    }

    #[test]
    fn copies_of_what_is_not_lost_any_more_are_in_the_way() {
        let mut board = filled_scoreboard(3);
        board.mark_lost_by_rack(|sent| sent.data.start < 20);
        (0..2).for_each(|_| assert!(board.retransmit_lost(Instant::from_millis(5)).is_some()));
        board.clear_lost();
        assert_eq!(board.mark_lost_by_rack(|sent| sent.data.start == 20), 1);
        assert_eq!(board.retransmit_lost(Instant::from_millis(6)).map(|sent| sent.data.start), None);
        assert_eq!((board.lost(), board.retransmits_in_flight(), board.in_flight()), (1, 2, 4));
        board.sack(SeqRange::new(10, 20), |_| {});
        assert_eq!((board.retransmits_in_flight(), board.in_flight()), (2, 3), "its copy still counts");
        while board.pop_acked(20).is_some() {}
        assert_eq!(board.retransmit_lost(Instant::from_millis(7)).map(|sent| sent.data.start), Some(20));
    }

    #[test]
    fn only_whole_segments_are_selectively_acknowledged_and_once() {
        let mut board = filled_scoreboard(4);
        let mut news = 0;
        board.sack(SeqRange::new(15, 40), |_| news += 1);
        board.sack(SeqRange::new(20, 40), |_| news += 1);
        assert_eq!(news, 2);
    }
}
