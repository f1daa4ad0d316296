//! RACK loss detection (RFC 8985): decides by send times which segments are lost.
//!
//! 1. A segment is lost if one that was sent later has arrived, and an RTT plus the reordering window has passed
//!    since it was sent (RFC 8985 §6.2).
//! 2. The reordering window is a quarter of the minimum RTT, at most an eighth of the smoothed RTT. While no
//!    reordering was seen, it is zero during recovery and once three segments are selectively acknowledged: the
//!    classic three duplicate ACKs (Linux; RFC 8985 §6.2 step 4). A segment that was marked as lost is not examined
//!    again before it is retransmitted. If the reduction is undone before that, only the timer repairs it (Linux).
//! 3. If a retransmitted segment is acknowledged in less than the minimum RTT, the ACK belongs to the original and
//!    is ignored.

use core::time::Duration;

use marline_core::units::Instant;

use super::rtt::RttEstimator;
use super::scoreboard::{Scoreboard, SentSegment};

/// State of the loss detection: the most recently sent segment among those delivered.
#[derive(Clone, Debug, Default)]
pub(super) struct Rack {
    newest_delivered: Option<(Instant, u64)>,
    rtt: Duration,
    has_seen_reordering: bool,
}

impl Rack {
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

    /// A segment sent once was delivered after one with a higher sequence number.
    pub(super) fn on_reordered(&mut self) {
        self.has_seen_reordering = true;
    }

    /// Marks the segments that are lost by now. Returns their number, and when to check again those whose
    /// reordering window has not passed yet.
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

    /// Whether a retransmission timeout at `now` means that this segment is lost as well, not just late.
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

/// Duplicate ACK threshold of RFC 5681 §3.2.
const DUP_THRESH: u32 = 3;

#[cfg(test)]
mod tests {
    use super::super::segment::SeqRange;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn three_in_flight() -> (Scoreboard, RttEstimator) {
        let mut board = Scoreboard::default();
        for n in 0..3 {
            board.push(SeqRange::new(n * 10, n * 10 + 10), false, Instant::from_millis(n));
        }
        let mut rtt = RttEstimator::default();
        rtt.on_sample(40 * MS);
        (board, rtt)
    }

    #[test]
    fn one_later_delivery_waits_for_the_reordering_window() {
        let (mut board, rtt) = three_in_flight();
        let mut rack = Rack::default();
        let now = Instant::from_millis(42);
        board.sack(SeqRange::new(20, 30), |sent| rack.on_delivered(now, sent, rtt.min()));
        let (lost, again) = rack.detect_losses(now, &mut board, &rtt, false);
        assert_eq!((lost, again), (0, Some(Instant::from_millis(46))), "1 ms + 40 ms + min(40/4, 40/8) ms");
        assert_eq!(rack.detect_losses(Instant::from_millis(46), &mut board, &rtt, false), (2, None));
    }

    #[test]
    fn in_recovery_a_later_delivery_proves_the_loss() {
        let (mut board, rtt) = three_in_flight();
        let mut rack = Rack::default();
        let now = Instant::from_millis(42);
        board.sack(SeqRange::new(20, 30), |sent| rack.on_delivered(now, sent, rtt.min()));
        assert_eq!(rack.detect_losses(now, &mut board, &rtt, true), (2, None));
    }
}
