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

use super::segment::Seqs;

/// One segment that was sent and not yet cumulatively acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Its payload.
    pub(super) data: Seqs,
    /// It carries the FIN.
    pub(super) fin: bool,
    /// When its newest copy went out.
    pub(super) at: Instant,
    /// It was sent more than once.
    pub(super) repeated: bool,
    /// It was selectively acknowledged.
    pub(super) sacked: bool,
    /// It counts as lost.
    pub(super) lost: bool,
    /// A newer copy is on its way. It counts as lost, too, unless a reduction was taken back since.
    pub(super) resent: bool,
    /// RACK looks at it.
    pub(super) watched: bool,
}

impl Sent {
    /// The number behind it.
    pub(super) const fn end(&self) -> u64 {
        self.data.end + self.fin as u64
    }

    /// Another copy of it goes out.
    fn send_again(&mut self, now: Instant) -> Self {
        (self.resent, self.repeated, self.watched, self.at) = (true, true, true, now);
        *self
    }
}

/// All segments on their way, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    flight: VecDeque<Sent>,
    sacked: u32,
    lost: u32,
    resent: u32,
    /// Duplicate ACKs that stand for segments, where there are no SACK blocks.
    duplicates: u32,
    /// One past the highest number that was selectively acknowledged.
    highest: u64,
}

impl Scoreboard {
    /// A segment goes out for the first time.
    pub(super) fn push(&mut self, data: Seqs, fin: bool, at: Instant) {
        let (repeated, sacked, lost, resent) = (false, false, false, false);
        self.flight.push_back(Sent { data, fin, at, repeated, sacked, lost, resent, watched: true });
    }

    /// Takes the first segment that lies before `ack` off the board.
    pub(super) fn pop_acked(&mut self, ack: u64) -> Option<Sent> {
        if self.flight.front()?.end() > ack {
            return None;
        }
        let sent = self.flight.pop_front()?;
        self.sacked -= u32::from(sent.sacked);
        self.lost -= u32::from(sent.lost);
        self.resent -= u32::from(sent.resent);
        Some(sent)
    }

    /// Marks everything in `block` as arrived and tells of each segment for which this is news.
    pub(super) fn sack(&mut self, block: Seqs, mut news: impl FnMut(&Sent)) {
        let from = self.flight.partition_point(|sent| sent.data.start < block.start);
        for sent in self.flight.range_mut(from..) {
            if sent.end() > block.end + u64::from(sent.fin) {
                break;
            }
            if sent.sacked {
                continue;
            }
            news(sent);
            sent.sacked = true;
            self.sacked += 1;
            // The copy of what does not count as lost is counted until the edge passes it (`tcp_sacktag_one`).
            if sent.lost {
                self.lost -= 1;
                self.resent -= u32::from(sent.resent);
                (sent.lost, sent.resent) = (false, false);
            }
        }
        self.highest = self.highest.max(block.end);
    }

    /// Marks as lost what `is_lost` says of the segments that are in flight, copies included.
    pub(super) fn mark_lost(&mut self, is_lost: impl FnMut(&Sent) -> bool) -> u32 {
        self.mark(is_lost, false)
    }

    /// The same for those at which RACK looks. Until they are sent again it does so no more, even if they do not count as
    /// lost any longer (Linux takes them off the list that it goes through).
    pub(super) fn mark_late(&mut self, mut is_lost: impl FnMut(&Sent) -> bool) -> u32 {
        self.mark(|sent| sent.watched && is_lost(sent), true)
    }

    fn mark(&mut self, mut is_lost: impl FnMut(&Sent) -> bool, is_last_look: bool) -> u32 {
        let mut marked = 0;
        for sent in &mut self.flight {
            if sent.sacked || (sent.lost && !sent.resent) || !is_lost(sent) {
                continue;
            }
            marked += 1;
            // A copy is lost only where the segment counted as lost already; else the copy is taken to be on its way still, and
            // the timer alone sends another (`tcp_mark_skb_lost`).
            if sent.lost {
                self.resent -= 1;
                sent.resent = false;
            } else {
                self.lost += 1;
                sent.lost = true;
            }
            sent.watched &= !is_last_look;
        }
        marked
    }

    /// Sends the first lost segment that has no copy on its way.
    pub(super) fn resend_lost(&mut self, now: Instant) -> Option<Sent> {
        // Copies of what does not count as lost any more are in the way of others (`tcp_xmit_retransmit_queue`).
        if self.resent >= self.lost {
            return None;
        }
        let sent = self.flight.iter_mut().find(|sent| sent.lost && !sent.resent)?;
        self.resent += 1;
        Some(sent.send_again(now))
    }

    /// No copy of the first segment is on its way: its timer has run out.
    pub(super) fn lose_first_copy(&mut self) {
        if let Some(sent) = self.flight.front_mut() {
            self.resent -= u32::from(std::mem::take(&mut sent.resent));
        }
    }

    /// Sends the first segment once more, whatever is thought of the others.
    pub(super) fn resend_first(&mut self, now: Instant) -> Option<Sent> {
        let sent = self.flight.front_mut()?;
        self.resent += u32::from(!sent.resent);
        Some(sent.send_again(now))
    }

    /// Sends the last segment once more, as a probe.
    pub(super) fn resend_last(&mut self, now: Instant) -> Option<Sent> {
        let sent = self.flight.back_mut()?;
        sent.repeated = true;
        sent.watched = true;
        sent.at = now;
        Some(*sent)
    }

    /// The first segment.
    pub(super) fn first(&self) -> Option<&Sent> {
        self.flight.front()
    }

    /// Segments that the network is thought to hold.
    pub(super) fn in_flight(&self) -> u32 {
        (self.outstanding() + self.resent - self.sacked - self.lost).saturating_sub(self.duplicates)
    }

    /// Copies that are on their way, of what counts as lost, or did once.
    pub(super) const fn resent(&self) -> u32 {
        self.resent
    }

    /// Nothing counts as lost any more; copies stay on their way (`tcp_undo_cwnd_reduction`).
    pub(super) fn unmark_lost(&mut self) {
        self.flight.iter_mut().for_each(|sent| sent.lost = false);
        self.lost = 0;
    }

    /// A duplicate ACK: something behind the first segment has arrived. False if there is nothing that it can stand for.
    pub(super) fn count_duplicate(&mut self) -> bool {
        let can = self.duplicates + self.lost + 1 < self.outstanding().max(1);
        self.duplicates += u32::from(can);
        can
    }

    /// So many of them, or all, stand for segments that are acknowledged now.
    pub(super) fn forget_duplicates(&mut self, acked: u32, all: bool) {
        self.duplicates = if all { 0 } else { self.duplicates.saturating_sub(acked) };
    }

    /// Duplicate ACKs that count.
    pub(super) const fn duplicates(&self) -> u32 {
        self.duplicates
    }

    /// Segments that are not cumulatively acknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        u32::try_from(self.flight.len()).unwrap_or(u32::MAX)
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
    pub(super) const fn highest(&self) -> u64 {
        self.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(segments: u64) -> Scoreboard {
        let mut board = Scoreboard::default();
        for n in 0..segments {
            board.push(Seqs::new(n * 10, n * 10 + 10), false, Instant::from_millis(n));
        }
        board
    }

    #[test]
    fn every_segment_is_in_flight_once() {
        let mut board = board(6);
        board.sack(Seqs::new(20, 40), |_| {});
        assert_eq!(board.in_flight(), 4);
        assert_eq!(board.mark_lost(|sent| sent.data.start < 20), 2);
        assert_eq!((board.in_flight(), board.lost()), (2, 2));
        let copy = board.resend_lost(Instant::from_millis(9)).map(|sent| sent.data.start);
        assert_eq!((copy, board.in_flight()), (Some(0), 3));
        while board.pop_acked(40).is_some() {}
        assert_eq!((board.in_flight(), board.lost(), board.sacked()), (2, 0, 0));
    }

    #[test]
    fn a_lost_copy_is_lost_again() {
        let mut board = board(2);
        board.mark_lost(|_| true);
        board.resend_lost(Instant::from_millis(5));
        assert_eq!(board.in_flight(), 1);
        assert_eq!(board.mark_lost(|sent| sent.at == Instant::from_millis(5)), 1);
        assert_eq!((board.in_flight(), board.lost()), (0, 2));
    }

    #[test]
    fn what_was_late_is_looked_at_again_when_it_is_sent_again() {
        let mut board = board(3);
        assert_eq!(board.mark_late(|_| true), 3);
        board.resend_lost(Instant::from_millis(5));
        board.unmark_lost();
        assert_eq!(board.mark_late(|_| true), 1, "the first alone");
        assert_eq!(
            board.resend_lost(Instant::from_millis(6)).map(|sent| sent.data.start),
            None,
            "its copy is on its way"
        );
        assert_eq!(board.mark_lost(|sent| sent.data.start > 0), 2, "the timer finds the others");
        board.lose_first_copy();
        assert_eq!((board.lost(), board.resent(), board.in_flight()), (3, 0, 0));
        assert_eq!(board.resend_first(Instant::from_millis(7)).map(|sent| sent.data.start), Some(0));
        assert_eq!((board.lost(), board.resent(), board.in_flight()), (3, 1, 1));
    }

    #[test]
    fn copies_of_what_is_not_lost_any_more_are_in_the_way() {
        let mut board = board(3);
        board.mark_late(|sent| sent.data.start < 20);
        (0..2).for_each(|_| assert!(board.resend_lost(Instant::from_millis(5)).is_some()));
        board.unmark_lost();
        assert_eq!(board.mark_late(|sent| sent.data.start == 20), 1);
        assert_eq!(board.resend_lost(Instant::from_millis(6)).map(|sent| sent.data.start), None);
        assert_eq!((board.lost(), board.resent(), board.in_flight()), (1, 2, 4));
        board.sack(Seqs::new(10, 20), |_| {});
        assert_eq!((board.resent(), board.in_flight()), (2, 3), "its copy still counts");
        while board.pop_acked(20).is_some() {}
        assert_eq!(board.resend_lost(Instant::from_millis(7)).map(|sent| sent.data.start), Some(20));
    }

    #[test]
    fn only_whole_segments_are_selectively_acknowledged_and_once() {
        let mut board = board(4);
        let mut news = 0;
        board.sack(Seqs::new(15, 40), |_| news += 1);
        board.sack(Seqs::new(20, 40), |_| news += 1);
        assert_eq!(news, 2);
    }
}
