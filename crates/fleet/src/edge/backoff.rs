//! Backoff for attempts over a failed link: intervals grow, and attempts stop while the host sends nothing.
//!
//! Short first intervals detect a quick recovery soon. On an idle host attempts stop, so that its radios can sleep: once the interval has
//! reached its maximum, an attempt needs packets that have left since the last one.

use std::time::Duration;

use marline_core::units::Instant;

/// Our choice: more packets than the keep-alives of spare connections send within the longest interval, and fewer than real traffic.
pub(super) const MAX_IDLE_PACKETS: u64 = 20;

/// Pauses between two attempts over a failed link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackoffLimits {
    pub(super) min: Duration,
    /// The pause doubles up to this value.
    pub(super) max: Duration,
}

/// Schedule of the attempts over one failed link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backoff {
    next: Instant,
    pause: Duration,
    max_pause: Duration,
    /// Packets sent ([`Backoff::new`]) when the last attempt ended.
    sent_at_last_attempt: u64,
}

impl Backoff {
    /// `sent`: packets that have left so far over all links that carry LAN packets or DNS queries, of all programs.
    pub(super) fn new(now: Instant, pauses: BackoffLimits, sent: u64) -> Self {
        let BackoffLimits { min: first, max: longest } = pauses;
        Self { next: now + first, pause: first, max_pause: longest, sent_at_last_attempt: sent }
    }

    pub(super) fn is_due(&self, now: Instant, sent: u64) -> bool {
        // An interface that was removed and added starts its counters at zero.
        now >= self.next
            && (self.pause < self.max_pause || sent.abs_diff(self.sent_at_last_attempt) > MAX_IDLE_PACKETS)
    }

    /// An attempt has ended without success: the pause doubles.
    pub(super) fn record_failure(&mut self, now: Instant, sent: u64) {
        self.pause = (2 * self.pause).min(self.max_pause);
        (self.next, self.sent_at_last_attempt) = (now + self.pause, sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    /// The seconds at which attempts are due if `each` packets are sent per second.
    fn attempts(each: u64, until: u64) -> Vec<u64> {
        let pauses = BackoffLimits { min: Duration::from_secs(1), max: Duration::from_secs(30) };
        let (mut again, mut due) = (Backoff::new(at(0), pauses, 0), Vec::new());
        for second in 1..=until {
            if again.is_due(at(second), second * each) {
                due.push(second);
                again.record_failure(at(second), second * each);
            }
        }
        due
    }

    #[test]
    fn a_failed_link_is_tried_at_growing_intervals_while_packets_are_sent() {
        assert_eq!(attempts(1, 130), [1, 3, 7, 15, 31, 61, 91, 121]);
    }

    #[test]
    fn attempts_stop_when_nothing_is_sent_and_resume_with_traffic() {
        assert_eq!(attempts(0, 3600), [1, 3, 7, 15, 31]);
        let pauses = BackoffLimits { min: Duration::from_secs(30), max: Duration::from_secs(30) };
        let again = Backoff::new(at(0), pauses, 100);
        assert!(!again.is_due(at(3600), 100 + MAX_IDLE_PACKETS));
        assert!(again.is_due(at(3600), 101 + MAX_IDLE_PACKETS));
        assert!(!again.is_due(at(29), 1000));
        assert!(again.is_due(at(30), 10), "the interface was created again");
    }
}
