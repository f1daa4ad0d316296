//! How much may be on its way?
//!
//! In: acknowledged segments, losses, round-trip times. Out: the congestion window and the slow-start threshold.
//!
//! 1. Windows are counted in segments, as Linux counts them.
//! 2. Slow start grows by what was acknowledged, in segments, so that delayed ACKs cost nothing (RFC 3465 with L = ∞).
//! 3. The algorithm says how the window grows and what a loss leaves of it; when to reduce is the recovery's matter.
//!
//! BBR is not here: both ends of every lab run use what the run says, and the floors say CUBIC.

use core::time::Duration;

use marline_core::units::Instant;

mod cubic;
mod hystart;

use cubic::Cubic;

/// The algorithm, by the name that Linux gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// RFC 9438 with HyStart.
    #[default]
    Cubic,
    /// RFC 5681.
    Reno,
}

/// One connection's window.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    /// Segments that may be on their way.
    pub(crate) window: u32,
    /// Below it, slow start.
    pub(crate) threshold: u32,
    state: State,
    /// Segments acknowledged since the window last grew by one.
    credit: u32,
}

#[derive(Clone, Debug)]
enum State {
    Cubic(Cubic),
    Reno,
}

/// RFC 6928.
pub(crate) const INITIAL_WINDOW: u32 = 10;
/// What a timeout leaves.
const LOSS_WINDOW: u32 = 1;
/// No loss makes the threshold smaller (RFC 5681 §3.1).
const LEAST_THRESHOLD: u32 = 2;

impl Congestion {
    /// The window of a new connection.
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        let state = match algorithm {
            Algorithm::Cubic => State::Cubic(Cubic::default()),
            Algorithm::Reno => State::Reno,
        };
        Self { window: INITIAL_WINDOW, threshold: u32::MAX, state, credit: 0 }
    }

    /// Whether the window still doubles each round.
    pub(crate) const fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// A round-trip time was measured; `una` and `nxt` bound what is on its way.
    pub(crate) fn on_rtt(&mut self, now: Instant, rtt: Duration, una: u64, nxt: u64) {
        let slow_start = self.in_slow_start();
        if let State::Cubic(cubic) = &mut self.state
            && cubic.on_rtt(now, rtt, una, nxt, slow_start.then_some(self.window))
        {
            self.threshold = self.window;
        }
    }

    /// `acked` segments have arrived while the window was full.
    pub(crate) fn on_ack(&mut self, now: Instant, acked: u32) {
        let slow = if self.in_slow_start() { acked.min(self.threshold - self.window) } else { 0 };
        self.window += slow;
        if acked > slow {
            self.avoid(now, acked - slow);
        }
    }

    /// A loss was found: the new threshold, which recovery brings the window down to.
    pub(crate) fn on_loss(&mut self) {
        self.threshold = match &mut self.state {
            State::Cubic(cubic) => cubic.on_loss(self.window),
            State::Reno => self.window / 2,
        }
        .max(LEAST_THRESHOLD);
    }

    /// Nothing came back in time: [`Self::on_loss`] was called, and the window starts again.
    pub(crate) fn on_timeout(&mut self) {
        self.window = LOSS_WINDOW;
        self.credit = 0;
        if let State::Cubic(cubic) = &mut self.state {
            *cubic = Cubic::default();
        }
    }

    /// The first segment after a pause without anything on its way. `idle` is measured in timeouts (RFC 5681 §4.1:
    /// the window halves for each).
    pub(crate) fn on_restart(&mut self, now: Instant, pause: Duration, idle: u32) {
        if idle > 0 {
            self.threshold = self.threshold.max(self.window / 4 * 3);
            let floor = INITIAL_WINDOW.min(self.window);
            self.window = self.window.checked_shr(idle).unwrap_or(0).max(floor);
            self.credit = 0;
        }
        if let State::Cubic(cubic) = &mut self.state {
            cubic.on_restart(now, pause);
        }
    }

    fn avoid(&mut self, now: Instant, acked: u32) {
        let per_segment = match &mut self.state {
            State::Cubic(cubic) => cubic.acks_per_segment(now, self.window, acked),
            State::Reno => self.window,
        }
        .max(1);
        // Credit from slower times buys one segment at most (Linux): else a step that shrinks would burst.
        if self.credit >= per_segment {
            self.credit = 0;
            self.window += 1;
        }
        self.credit += acked;
        self.window += self.credit / per_segment;
        self.credit %= per_segment;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reno_grows_by_one_segment_a_round_after_slow_start() {
        let mut reno = Congestion::new(Algorithm::Reno);
        reno.threshold = 20;
        reno.on_ack(Instant::ZERO, 10);
        assert_eq!(reno.window, 20);
        reno.on_ack(Instant::ZERO, 20);
        assert_eq!(reno.window, 21);
        reno.on_loss();
        assert_eq!(reno.threshold, 10);
    }

    #[test]
    fn a_pause_halves_the_window_for_each_timeout_but_not_below_the_initial_one() {
        let mut reno = Congestion::new(Algorithm::Reno);
        reno.window = 80;
        reno.on_restart(Instant::ZERO, Duration::ZERO, 1);
        assert_eq!((reno.window, reno.threshold), (40, u32::MAX));
        reno.on_restart(Instant::ZERO, Duration::ZERO, 60);
        assert_eq!(reno.window, INITIAL_WINDOW);
    }
}
