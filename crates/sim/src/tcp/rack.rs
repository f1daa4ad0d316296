//! Which segments are lost?
//!
//! In: what was delivered, and when it had been sent. Out: a time before which everything sent earlier, and not
//! delivered, is lost.
//!
//! 1. A segment is lost when one that was sent later has arrived and a round trip plus a reordering window has passed
//!    since it was sent (RFC 8985 §6.2).
//! 2. The window is a quarter of the smallest round trip, at most an eighth of the smoothed one. While no reordering
//!    has been seen it is zero during recovery and from three selectively acknowledged segments on: the classic
//!    three duplicates (Linux; RFC 8985 §6.2 step 4).
//!    What was once called lost is not looked at again until it is sent again: where a reduction is taken back before that, it
//!    waits for the timer (Linux).
//! 3. The arrival of a repeated segment after less than the smallest round trip belongs to its first copy and tells
//!    nothing.

use core::time::Duration;

use marline_core::units::Instant;

use super::rtt::RttEstimator;
use super::scoreboard::{Scoreboard, SentSegment};

/// What RACK remembers of the newest delivered segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Rack {
    newest_delivered: Option<(Instant, u64)>,
    rtt: Duration,
    has_seen_reordering: bool,
}

impl Rack {
    /// A segment has arrived.
    pub(super) fn on_delivered(&mut self, now: Instant, sent: &SentSegment, min_rtt: Duration) {
        let rtt = now.since(sent.sent_at);
        if sent.is_retransmitted && rtt < min_rtt {
            return;
        }
        self.rtt = rtt;
        let candidate = (sent.sent_at, sent.end());
        if self.newest_delivered.is_none_or(|newest| newest < candidate) {
            self.newest_delivered = Some(candidate);
        }
    }

    /// A segment that was sent once arrived after one with a higher number.
    pub(super) fn on_reordered(&mut self) {
        self.has_seen_reordering = true;
    }

    /// Marks what is lost by now. Returns how many, and when to look again for those whose window still runs.
    pub(super) fn detect_losses(
        &self,
        now: Instant,
        scoreboard: &mut Scoreboard,
        rtt: &RttEstimator,
        recovering: bool,
    ) -> (u32, Option<Instant>) {
        let Some(newest) = self.newest_delivered else { return (0, None) };
        let timeout = self.rtt + self.reordering_window(scoreboard.sacked(), rtt, recovering);
        let mut recheck_at = None;
        let lost = scoreboard.mark_lost_by_rack(|sent| {
            if newest <= (sent.sent_at, sent.end()) {
                return false;
            }
            let due = sent.sent_at + timeout;
            if due > now {
                recheck_at = recheck_at.max(Some(due));
            }
            due <= now
        });
        (lost, recheck_at)
    }

    /// Whether a timeout now means that this segment is lost too, and not only late.
    pub(super) fn is_lost_on_timeout(&self, now: Instant, sent: &SentSegment, rtt: &RttEstimator) -> bool {
        sent.sent_at + self.rtt.max(rtt.smoothed()) <= now
    }

    fn reordering_window(&self, sacked: u32, rtt: &RttEstimator, recovering: bool) -> Duration {
        if !self.has_seen_reordering && (recovering || sacked >= DUP_THRESH) {
            return Duration::ZERO;
        }
        (rtt.min() / 4).min(rtt.smoothed() / 8)
    }
}

/// RFC 5681 §3.2's threshold.
const DUP_THRESH: u32 = 3;

#[cfg(test)]
mod tests {
    use super::super::segment::SeqRange;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn three_on_their_way() -> (Scoreboard, RttEstimator) {
        let mut board = Scoreboard::default();
        for n in 0..3 {
            board.push(SeqRange::new(n * 10, n * 10 + 10), false, Instant::from_millis(n));
        }
        let mut rtt = RttEstimator::default();
        rtt.on_sample(40 * MS);
        (board, rtt)
    }

    #[test]
    fn one_later_arrival_waits_for_the_reordering_window() {
        let (mut board, rtt) = three_on_their_way();
        let mut rack = Rack::default();
        let now = Instant::from_millis(42);
        board.sack(SeqRange::new(20, 30), |sent| rack.on_delivered(now, sent, rtt.min()));
        let (lost, again) = rack.detect_losses(now, &mut board, &rtt, false);
        assert_eq!((lost, again), (0, Some(Instant::from_millis(46))), "1 ms + 40 ms + min(40/4, 40/8) ms");
        assert_eq!(rack.detect_losses(Instant::from_millis(46), &mut board, &rtt, false), (2, None));
    }

    #[test]
    fn in_recovery_a_later_arrival_is_proof() {
        let (mut board, rtt) = three_on_their_way();
        let mut rack = Rack::default();
        let now = Instant::from_millis(42);
        board.sack(SeqRange::new(20, 30), |sent| rack.on_delivered(now, sent, rtt.min()));
        assert_eq!(rack.detect_losses(now, &mut board, &rtt, true), (2, None));
    }
}
