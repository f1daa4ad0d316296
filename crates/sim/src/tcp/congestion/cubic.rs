//! CUBIC congestion control (RFC 9438), as Linux implements it.
//!
//! From ACKs and losses it computes after how many acknowledged segments the window grows by one, and the window
//! after a loss.
//!
//! 1. After a loss, the window is a cubic function of time. It reaches its old size after K seconds and grows
//!    faster before and after that.
//! 2. It never grows more slowly than a Reno flow with the same multiplicative decrease (RFC 9438 §4.3).
//! 3. Fast convergence: after a loss below the old window, the plateau is lower than the window at the loss, to leave capacity to others
//!    (§4.7).
//! 4. Pauses do not count (§4.2; as in Linux, the start of the epoch is moved by the pause).
//!
//! Floating point with `libm`'s cube root replaces the kernel's integer tables. It gives equal results on every
//! machine and is closer to the formula.

use core::time::Duration;

use marline_core::units::Instant;

use super::hystart::{AckSample, HyStart};

/// CUBIC state of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    hystart: HyStart,
    min_rtt: Option<Duration>,
    /// Window at the last loss, in segments; less than that with fast convergence.
    w_max: u32,
    epoch: Option<Epoch>,
}

/// Growth since the last loss.
#[derive(Clone, Debug)]
struct Epoch {
    start: Instant,
    /// K: time from the start to the plateau, in seconds.
    k: f64,
    /// Window at the plateau, in segments.
    origin: f64,
    /// Window that a Reno flow would have.
    reno: u32,
    /// Segments acknowledged since `reno` last grew.
    reno_credit: u32,
    /// Result of the last computation: its time, its window, and the step.
    cached_step: Option<(Instant, u32, u32)>,
}

impl Cubic {
    /// Processes an RTT sample; `slow_start` is the window during slow start. Returns true if slow start must end.
    pub(super) fn on_rtt(
        &mut self,
        now: Instant,
        rtt: Duration,
        una: u64,
        nxt: u64,
        slow_start: Option<u32>,
    ) -> bool {
        if self.epoch.as_ref().is_some_and(|epoch| now.since(epoch.start) < RTT_IGNORED_AFTER_LOSS) {
            return false;
        }
        let min_rtt = self.min_rtt.map_or(rtt, |min| min.min(rtt));
        self.min_rtt = Some(min_rtt);
        slow_start.is_some_and(|window| self.hystart.on_ack(now, AckSample { rtt, min_rtt, una, nxt, window }))
    }

    /// Slow-start threshold after a loss at this window.
    pub(super) fn on_loss(&mut self, window: u32) -> u32 {
        self.epoch = None;
        self.w_max = if window < self.w_max { scaled(window, (1.0 + BETA) / 2.0) } else { window };
        scaled(window, BETA)
    }

    /// Sending continues after a pause.
    pub(super) fn on_restart(&mut self, now: Instant, pause: Duration) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start = (epoch.start + pause).min(now);
        }
    }

    /// Number of acknowledged segments after which the window grows by one; `acked` segments were just
    /// acknowledged.
    pub(super) fn acks_per_segment(&mut self, now: Instant, window: u32, acked: u32) -> u32 {
        let min_rtt = self.min_rtt.unwrap_or_default();
        let last_max = self.w_max;
        let epoch = self.epoch.get_or_insert_with(|| Epoch::new(now, window, last_max));
        epoch.reno_credit += acked;
        match epoch.cached_step {
            Some((at, for_window, step)) if for_window == window && now.since(at) <= RECOMPUTE_INTERVAL => step,
            _ => {
                let step = epoch.step(now + min_rtt, window, last_max);
                epoch.cached_step = Some((now, window, step));
                step
            }
        }
    }
}

impl Epoch {
    fn new(now: Instant, window: u32, last_max: u32) -> Self {
        let deficit = f64::from(last_max.saturating_sub(window));
        Self {
            start: now,
            k: libm::cbrt(deficit / C),
            origin: f64::from(window.max(last_max)),
            reno: window,
            reno_credit: 0,
            cached_step: None,
        }
    }

    fn step(&mut self, at: Instant, window: u32, last_max: u32) -> u32 {
        // RFC 9438 eq. 1: the target is C (t − K)³ + origin; the step is the number of ACKed segments per segment
        // of growth.
        let t = at.since(self.start).as_secs_f64() - self.k;
        let target_increase = self.origin + C * t * t * t - f64::from(window);
        let window_f64 = f64::from(window);
        // At or above the target, the window grows by one segment in a hundred rounds (Linux).
        let mut step = if target_increase > 0.0 { window_f64 / target_increase } else { 100.0 * window_f64 };
        if last_max == 0 {
            step = step.min(MAX_STEP_WITHOUT_W_MAX);
        }
        // If the estimated Reno window is ahead, grow as fast as Reno (RFC 9438 §4.3).
        let per_reno = scaled(window, RENO_ACKS_PER_SEGMENT).max(1);
        self.reno += self.reno_credit / per_reno;
        self.reno_credit %= per_reno;
        if self.reno > window {
            step = step.min(window_f64 / f64::from(self.reno - window));
        }
        step.max(2.0) as u32
    }
}

/// `window × factor`, rounded down.
fn scaled(window: u32, factor: f64) -> u32 {
    (f64::from(window) * factor) as u32
}

/// RFC 9438 §4.6, in Linux's 1024ths.
const BETA: f64 = 717.0 / 1024.0;
/// RFC 9438 §5.1: 0.4, in Linux's 1024ths.
const C: f64 = 410.0 / 1024.0;
/// ACKed segments per segment of the Reno flow, in windows: (1 + β) / (3 (1 − β)), in Linux 15 / 8.
const RENO_ACKS_PER_SEGMENT: f64 = 15.0 / 8.0;
/// Without a known plateau the window grows by at least 5 % per round (Linux).
const MAX_STEP_WITHOUT_W_MAX: f64 = 20.0;
/// Linux recomputes at most 32 times per second for the same window.
const RECOMPUTE_INTERVAL: Duration = Duration::from_micros(31_250);
/// Linux ignores RTT samples in the first second of an epoch, which begins with the first growth after a loss.
const RTT_IGNORED_AFTER_LOSS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(cubic: &mut Cubic, mut window: u32, from: Instant, seconds: u64, rtt: Duration) -> u32 {
        let mut now = from;
        let mut credit = 0;
        while now.since(from) < Duration::from_secs(seconds) {
            let round = window;
            for _ in 0..round {
                let step = cubic.acks_per_segment(now, window, 1);
                credit += 1;
                if credit >= step {
                    credit = 0;
                    window += 1;
                }
            }
            now += rtt;
        }
        window
    }

    #[test]
    fn a_loss_reduces_the_window_to_seven_tenths() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.on_loss(1000), 700);
        assert_eq!(cubic.w_max, 1000);
        assert_eq!(cubic.on_loss(700), 490, "a second loss immediately after it");
        assert_eq!(cubic.w_max, 595, "fast convergence lowers the plateau");
    }

    #[test]
    fn the_old_window_is_reached_after_k() {
        // K = cbrt(300 / 0.4) = 9.1 s.
        let mut cubic = Cubic::default();
        let start = cubic.on_loss(1000);
        let window = grow(&mut cubic, start, Instant::from_millis(1), 9, Duration::from_millis(100));
        assert!((980..=1010).contains(&window), "{window}");
    }

    #[test]
    fn a_short_path_grows_like_reno() {
        // 10 ms, 50 segments: the cubic function needs 3.2 s to recover, and by then Reno's line is far above it.
        let mut cubic = Cubic::default();
        let start = cubic.on_loss(50);
        let window = grow(&mut cubic, start, Instant::from_millis(1), 2, Duration::from_millis(10));
        assert!(window > 90, "{window}");
    }
}
