//! Congestion control: congestion window and slow-start threshold, from ACKs, losses and RTT samples.
//!
//! 1. Windows are counted in segments, as in Linux.
//! 2. Slow start grows by the number of acknowledged segments, so that delayed ACKs cost nothing (RFC 3465 with L =
//!    ∞).
//! 3. The algorithm defines how the window grows and how much a loss reduces it; the recovery code decides when to
//!    reduce.
//!
//! BBR is not implemented: both ends of a run in the laboratory use the algorithm that the run sets, and the
//! thresholds are defined for CUBIC.

use core::time::Duration;

use marline_core::units::Instant;

mod cubic;
mod hystart;

use cubic::Cubic;

/// Congestion control algorithm, named as in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// CUBIC (RFC 9438) with HyStart, Linux's default.
    #[default]
    Cubic,
    /// Reno congestion avoidance (RFC 5681).
    Reno,
}

/// Congestion state of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    /// Congestion window: limit of the segments in flight.
    pub(crate) cwnd: u32,
    /// Slow-start threshold in segments; `u32::MAX` until the first loss or until HyStart ends slow start.
    pub(crate) ssthresh: u32,
    state: CongestionState,
    /// Segments acknowledged since the window last grew by one.
    acked_since_growth: u32,
}

#[derive(Clone, Debug)]
enum CongestionState {
    Cubic(Cubic),
    Reno,
}

/// Initial window (RFC 6928).
pub(crate) const INITIAL_WINDOW: u32 = 10;
/// Window after a retransmission timeout.
const LOSS_WINDOW: u32 = 1;
/// Lower limit of the slow-start threshold after a loss (RFC 5681 §3.1).
const MIN_SSTHRESH: u32 = 2;

impl Congestion {
    /// State of a new connection.
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        let state = match algorithm {
            Algorithm::Cubic => CongestionState::Cubic(Cubic::default()),
            Algorithm::Reno => CongestionState::Reno,
        };
        Self { cwnd: INITIAL_WINDOW, ssthresh: u32::MAX, state, acked_since_growth: 0 }
    }

    /// Whether the connection is in slow start.
    pub(crate) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Processes an RTT sample; `una..nxt` is the range of unacknowledged sequence numbers.
    pub(crate) fn on_rtt(&mut self, now: Instant, rtt: Duration, una: u64, nxt: u64) {
        let slow_start = self.in_slow_start();
        if let CongestionState::Cubic(cubic) = &mut self.state
            && cubic.on_rtt(now, rtt, una, nxt, slow_start.then_some(self.cwnd))
        {
            self.ssthresh = self.cwnd;
        }
    }

    /// `acked` segments were acknowledged while the window was full.
    pub(crate) fn on_ack(&mut self, now: Instant, acked: u32) {
        let slow_start_acked = if self.in_slow_start() { acked.min(self.ssthresh - self.cwnd) } else { 0 };
        self.cwnd += slow_start_acked;
        if acked > slow_start_acked {
            self.on_ack_in_avoidance(now, acked - slow_start_acked);
        }
    }

    /// A loss was detected: sets the new threshold, to which recovery will reduce the window.
    pub(crate) fn on_loss(&mut self) {
        self.ssthresh = match &mut self.state {
            CongestionState::Cubic(cubic) => cubic.on_loss(self.cwnd),
            CongestionState::Reno => self.cwnd / 2,
        }
        .max(MIN_SSTHRESH);
    }

    /// The retransmission timeout has expired; [`Self::on_loss`] must be called before.
    pub(crate) fn on_timeout(&mut self) {
        self.cwnd = LOSS_WINDOW;
        self.acked_since_growth = 0;
        if let CongestionState::Cubic(cubic) = &mut self.state {
            *cubic = Cubic::default();
        }
    }

    /// Sending restarts after a pause with nothing in flight. `idle_timeouts` is the length of the pause in RTOs;
    /// the window is halved for each of them, at most to the initial window (RFC 2861).
    pub(crate) fn on_restart(&mut self, now: Instant, idle_time: Duration, idle_timeouts: u32) {
        if idle_timeouts > 0 {
            self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
            let min_window = INITIAL_WINDOW.min(self.cwnd);
            self.cwnd = self.cwnd.checked_shr(idle_timeouts).unwrap_or(0).max(min_window);
            self.acked_since_growth = 0;
        }
        if let CongestionState::Cubic(cubic) = &mut self.state {
            cubic.on_restart(now, idle_time);
        }
    }

    fn on_ack_in_avoidance(&mut self, now: Instant, acked: u32) {
        let per_segment = match &mut self.state {
            CongestionState::Cubic(cubic) => cubic.acks_per_segment(now, self.cwnd, acked),
            CongestionState::Reno => self.cwnd,
        }
        .max(1);
        // Leftover ACK credit yields at most one segment (Linux); otherwise a suddenly smaller step would cause a
        // burst.
        if self.acked_since_growth >= per_segment {
            self.acked_since_growth = 0;
            self.cwnd += 1;
        }
        self.acked_since_growth += acked;
        self.cwnd += self.acked_since_growth / per_segment;
        self.acked_since_growth %= per_segment;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reno_grows_by_one_segment_a_round_after_slow_start() {
        let mut reno = Congestion::new(Algorithm::Reno);
        reno.ssthresh = 20;
        reno.on_ack(Instant::ZERO, 10);
        assert_eq!(reno.cwnd, 20);
        reno.on_ack(Instant::ZERO, 20);
        assert_eq!(reno.cwnd, 21);
        reno.on_loss();
        assert_eq!(reno.ssthresh, 10);
    }

    #[test]
    fn a_pause_halves_the_window_per_rto_but_not_below_the_initial_window() {
        let mut reno = Congestion::new(Algorithm::Reno);
        reno.cwnd = 80;
        reno.on_restart(Instant::ZERO, Duration::ZERO, 1);
        assert_eq!((reno.cwnd, reno.ssthresh), (40, u32::MAX));
        reno.on_restart(Instant::ZERO, Duration::ZERO, 60);
        assert_eq!(reno.cwnd, INITIAL_WINDOW);
    }
}
