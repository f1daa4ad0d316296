//! Detects whether the congestion window or the application limits the sender.
//!
//! Only in the former case may an ACK let the window grow, because a window that was never filled proves nothing about the path (RFC 7661
//! §1). As in Linux, in slow start it counts as filled when more than half of it was used, later only when all of it was. The result holds
//! for one window of data.

use super::congestion::Congestion;

/// Result for the current window of data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CwndLimited {
    is_limited: bool,
    max_outstanding: u32,
    round_end: u64,
}

impl CwndLimited {
    /// The sender has stopped with `outstanding` segments; `limited` if the congestion window was the reason.
    pub(super) fn on_pause(&mut self, limited: bool, outstanding: u32, una: u64, nxt: u64) {
        if una >= self.round_end || limited || (!self.is_limited && outstanding > self.max_outstanding) {
            *self = Self { is_limited: limited, max_outstanding: outstanding, round_end: nxt };
        }
    }

    /// Whether the congestion window is the limit.
    pub(super) fn is_limited(&self, congestion: &Congestion) -> bool {
        let half_filled = congestion.in_slow_start() && congestion.cwnd < self.max_outstanding.saturating_mul(2);
        self.is_limited || half_filled
    }
}

#[cfg(test)]
mod tests {
    use super::super::congestion::Algorithm;
    use super::*;

    #[test]
    fn half_a_window_is_enough_in_slow_start_only() {
        let mut congestion = Congestion::new(Algorithm::Reno);
        let mut full = CwndLimited::default();
        full.on_pause(false, 6, 0, 6);
        assert!(full.is_limited(&congestion));
        congestion.ssthresh = 5;
        assert!(!full.is_limited(&congestion));
        full.on_pause(true, 10, 0, 10);
        full.on_pause(false, 3, 5, 10);
        assert!(full.is_limited(&congestion), "still the same window of data");
        full.on_pause(false, 3, 10, 13);
        assert!(!full.is_limited(&congestion));
    }
}
