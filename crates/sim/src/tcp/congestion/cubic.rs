//! CUBIC (RFC 9438) as Linux computes it.
//!
//! In: ACKs and losses. Out: after how many acknowledged segments the window grows by one, and what a loss leaves.
//!
//! 1. After a loss the window is a cube of the time since then: back at its old size after K, steeper on both sides.
//! 2. It never grows slower than a Reno flow with the same multiplicative decrease would (RFC 9438 §4.3).
//! 3. Fast convergence: who loses before it has reached its old size gives way a little more (§4.7).
//! 4. Time without anything to send does not count (§4.2, as in Linux: the epoch moves by the pause).
//!
//! Floating point with `libm`'s cube root stands for the kernel's integer tables: the same on every machine, and
//! nearer to the formula.

use core::time::Duration;

use marline_core::units::Instant;

use super::hystart::{AckSample, HyStart};

/// One connection's cube.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    hystart: HyStart,
    min_rtt: Option<Duration>,
    /// The window at the last loss, segments.
    w_max: u32,
    epoch: Option<Epoch>,
}

/// Growth since the last loss.
#[derive(Clone, Debug)]
struct Epoch {
    start: Instant,
    /// Time from the start to the plateau, seconds.
    k: f64,
    /// The plateau, segments.
    origin: f64,
    /// The window that Reno would have.
    reno: u32,
    /// Segments acknowledged since `reno` last grew.
    reno_credit: u32,
    /// When the step was last computed, for which window, and what came out.
    cached_step: Option<(Instant, u32, u32)>,
}

impl Cubic {
    /// A round-trip time; `slow_start` is the window while in it. True when slow start is to end.
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

    /// The threshold after a loss at this window.
    pub(super) fn on_loss(&mut self, window: u32) -> u32 {
        self.epoch = None;
        self.w_max = if window < self.w_max { scaled(window, (1.0 + BETA) / 2.0) } else { window };
        scaled(window, BETA)
    }

    /// Sending goes on after a pause.
    pub(super) fn on_restart(&mut self, now: Instant, pause: Duration) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start = (epoch.start + pause).min(now);
        }
    }

    /// After how many acknowledged segments the window grows by one; `acked` have just been.
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
        let t = at.since(self.start).as_secs_f64() - self.k;
        let target_increase = self.origin + C * t * t * t - f64::from(window);
        let window_f64 = f64::from(window);
        let mut step = if target_increase > 0.0 { window_f64 / target_increase } else { 100.0 * window_f64 };
        if last_max == 0 {
            step = step.min(MAX_STEP_WITHOUT_W_MAX);
        }
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
/// Acknowledged segments, in windows, for each segment of the Reno flow: (1 + β) / (3 (1 − β)), Linux's 15 / 8.
const RENO_ACKS_PER_SEGMENT: f64 = 15.0 / 8.0;
/// Without a known plateau the window grows by at least 5 % a round (Linux).
const MAX_STEP_WITHOUT_W_MAX: f64 = 20.0;
/// Linux recomputes at most 32 times a second for one window.
const RECOMPUTE_INTERVAL: Duration = Duration::from_micros(31_250);
/// Linux takes no delay for a base value within a second after a loss.
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
    fn a_loss_leaves_seven_tenths() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.on_loss(1000), 700);
        assert_eq!(cubic.w_max, 1000);
        assert_eq!(cubic.on_loss(700), 490, "and a second one at once");
        assert_eq!(cubic.w_max, 595, "gives way by fast convergence");
    }

    #[test]
    fn the_old_window_is_reached_again_after_k() {
        // K = cbrt(300 / 0.4) = 9.1 s.
        let mut cubic = Cubic::default();
        let start = cubic.on_loss(1000);
        let window = grow(&mut cubic, start, Instant::from_millis(1), 9, Duration::from_millis(100));
        assert!((980..=1010).contains(&window), "{window}");
    }

    #[test]
    fn a_short_path_grows_like_reno() {
        // 10 ms, 50 segments: the cube would take 3.2 s to come back, Reno's line is far above it by then.
        let mut cubic = Cubic::default();
        let start = cubic.on_loss(50);
        let window = grow(&mut cubic, start, Instant::from_millis(1), 2, Duration::from_millis(10));
        assert!(window > 90, "{window}");
    }
}
