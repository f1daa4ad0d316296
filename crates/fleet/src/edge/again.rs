//! When a link that has failed is tried again: at growing intervals, and while nothing is sent not at all any more.
//!
//! A link that recovers soon is found soon. An idle box becomes quiet, so that its radios can sleep: at the longest interval an
//! attempt needs packets that have left since the last one.

use std::time::Duration;

use marline_core::units::Instant;

/// chosen: more than keep-alives of ready connections within the longest interval, and less than anybody's traffic.
pub(super) const FEW: u64 = 20;

/// How long to wait between two attempts over a link that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pauses {
    pub(super) first: Duration,
    /// The pause doubles until then.
    pub(super) longest: Duration,
}

/// When a link that has failed is tried again, and after how long a pause the attempt after that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Again {
    next: Instant,
    pause: Duration,
    longest: Duration,
    /// Packets that had been sent when the last attempt ended.
    sent: u64,
}

impl Again {
    /// `sent`: packets that the interface has sent until now, of all programs.
    pub(super) fn new(now: Instant, pauses: Pauses, sent: u64) -> Self {
        let Pauses { first, longest } = pauses;
        Self { next: now + first, pause: first, longest, sent }
    }

    pub(super) fn is_due(&self, now: Instant, sent: u64) -> bool {
        // An interface that was removed and added starts its counters at zero.
        now >= self.next && (self.pause < self.longest || sent.abs_diff(self.sent) > FEW)
    }

    /// An attempt has ended, and the link has still failed.
    pub(super) fn has_failed(&mut self, now: Instant, sent: u64) {
        self.pause = (2 * self.pause).min(self.longest);
        (self.next, self.sent) = (now + self.pause, sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    /// The seconds at which attempts are due, if so many packets are sent each second.
    fn attempts(each: u64, until: u64) -> Vec<u64> {
        let pauses = Pauses { first: Duration::from_secs(1), longest: Duration::from_secs(30) };
        let (mut again, mut due) = (Again::new(at(0), pauses, 0), Vec::new());
        for second in 1..=until {
            if again.is_due(at(second), second * each) {
                due.push(second);
                again.has_failed(at(second), second * each);
            }
        }
        due
    }

    #[test]
    fn a_link_that_fails_is_tried_at_growing_intervals_while_packets_are_sent() {
        assert_eq!(attempts(1, 130), [1, 3, 7, 15, 31, 61, 91, 121]);
    }

    #[test]
    fn attempts_end_when_nothing_is_sent_and_begin_again_with_traffic() {
        assert_eq!(attempts(0, 3600), [1, 3, 7, 15, 31]);
        let pauses = Pauses { first: Duration::from_secs(30), longest: Duration::from_secs(30) };
        let again = Again::new(at(0), pauses, 100);
        assert!(!again.is_due(at(3600), 100 + FEW));
        assert!(again.is_due(at(3600), 101 + FEW));
        assert!(!again.is_due(at(29), 1000));
        assert!(again.is_due(at(30), 10), "an interface was made anew");
    }
}
