//! How much a link will bring within a minute or two, and how sure that is.
//!
//! In: its rate over each step of time in which it was in use. Out: the bytes to be expected over any time to come, with
//! their standard deviation.
//!
//! 1. Everything ever seen of the link counts alike: over long horizons the mean of all is what comes back.
//! 2. Now is still felt for a while: the last second's distance from the mean fades with [`Course::MEMORY`].
//! 3. The spread of a sum grows with the root of its time, by the variance that was seen. Before much was seen, a
//!    part of the mean is assumed ([`ASSUMED`]), which counts as much as [`WEIGHT`] seconds of looking.
//! 4. For the variance a step counts as the median of itself and the two before it: behind a lost packet nothing can be
//!    delivered and then all of it at once, a step of too little and a step of too much, in which the link was as
//!    ever. A change that lasts for a second remains one.
//!
//! An EWMA was not used: with the usual weights it remembers a few seconds, and a plan for a hundred seconds that
//! follows it is changed with every gust (measured for GreenBag's chooser: 4 to 12 changes in two minutes, each of
//! which costs a radio's tail). The doubt about the mean itself is left out: it shrinks while one waits, and waiting
//! is what a plan that is looked at again can do.

use core::time::Duration;

use crate::units::{Bitrate, DataSize};

/// The rates of a link, step by step, and what they promise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Course {
    steps: u32,
    /// Mbit/s.
    mean: f64,
    /// Medians of three steps in a row, and the sum of squared distances from their mean (Welford).
    medians: u32,
    middle: f64,
    squares: f64,
    /// The last steps, the newest first.
    recent: [f64; 4],
}

/// Bytes to come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Supply {
    /// How many are to be expected.
    pub mean: DataSize,
    /// Their standard deviation.
    pub spread: DataSize,
}

impl Supply {
    /// That of another link as well; the two know nothing of each other.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (own, its) = (self.spread.bytes() as f64, other.spread.bytes() as f64);
        Self { mean: self.mean + other.mean, spread: DataSize::from_bytes(libm::hypot(own, its) as u64) }
    }
}

impl Course {
    /// How long one step is.
    pub const STEP: Duration = Duration::from_millis(500);
    /// How long a link's present rate is felt. chosen: a rate that repeats four fifths of its distance from the mean
    /// each second forgets it by 1/e in 4.5 s; recorded Wi-Fi and LTE links lie about there.
    pub const MEMORY: Duration = Duration::from_millis(4500);

    /// The link's rate over one more step.
    pub fn add(&mut self, rate: Bitrate) {
        let rate = rate.as_mbps_f64();
        self.steps = self.steps.saturating_add(1);
        self.mean += (rate - self.mean) / f64::from(self.steps);
        if self.steps == 1 {
            self.recent = [rate; 4];
        }
        self.recent.rotate_right(1);
        self.recent[0] = rate;
        if self.steps < 3 {
            return;
        }
        let [a, b, c, _] = self.recent;
        let median = a.max(b).min(a.min(b).max(c));
        self.medians = self.medians.saturating_add(1);
        let distance = median - self.middle;
        self.middle += distance / f64::from(self.medians);
        self.squares += distance * (median - self.middle);
    }

    /// How many steps have been seen.
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// The mean over everything.
    pub fn mean(&self) -> Bitrate {
        mbps(self.mean)
    }

    /// The mean over the last second.
    pub fn present(&self) -> Bitrate {
        mbps(self.now())
    }

    /// The mean over the last two seconds.
    pub fn lately(&self) -> Bitrate {
        mbps(self.recent.iter().sum::<f64>() / self.recent.len() as f64)
    }

    /// What comes within `time`.
    pub fn supply(&self, time: Duration) -> Supply {
        let (time, memory) = (time.as_secs_f64(), Self::MEMORY.as_secs_f64());
        let felt = memory * (1.0 - libm::exp(-time / memory));
        let mean = self.mean * time + (self.now() - self.mean) * felt;
        let spread = libm::hypot(libm::sqrt(self.variance() * SUMMED * time), mean * LEAST);
        Supply { mean: megabits(mean), spread: megabits(spread) }
    }

    /// How far the mean itself may be wrong, in bytes of `time`: the standard deviation of a mean of values that repeat
    /// four fifths of their distance from it each second, by what was seen alone.
    pub fn doubt(&self, time: Duration) -> DataSize {
        let seen = self.seen().max(Self::STEP.as_secs_f64());
        megabits(libm::sqrt(self.variance_seen() * REPEATED / seen) * time.as_secs_f64())
    }

    fn now(&self) -> f64 {
        f64::midpoint(self.recent[0], self.recent[1])
    }

    /// Seconds.
    fn seen(&self) -> f64 {
        f64::from(self.steps) * Self::STEP.as_secs_f64()
    }

    fn variance_seen(&self) -> f64 {
        self.squares / f64::from(self.medians.max(1))
    }

    fn variance(&self) -> f64 {
        let (seen, assumed) = (self.seen(), self.mean * ASSUMED);
        (self.variance_seen() * seen + assumed * assumed * WEIGHT) / (seen + WEIGHT)
    }
}

fn mbps(rate: f64) -> Bitrate {
    Bitrate::from_bits_per_sec((rate.max(0.0) * 1e6) as u64)
}

fn megabits(size: f64) -> DataSize {
    DataSize::from_bytes((size.max(0.0) * 125_000.0) as u64)
}

/// The spread that is assumed at first, as a part of the mean.
const ASSUMED: f64 = 0.1;
/// No link is surer than that, as a part of what it is to bring.
const LEAST: f64 = 0.002;
/// How much the assumption weighs, in seconds.
const WEIGHT: f64 = 2.0;
/// (1 + ρ) ÷ (1 − ρ) of steps that repeat ρ = 0.8 of themselves each second, in seconds.
const REPEATED: f64 = 9.0;
/// The variance of a sum over a second, in variances of a step's rate. Steps that repeat each other would make it 9 s;
/// chosen: 3 s, since a plan is looked at again before most of the time has passed.
const SUMMED: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn course(rates: impl IntoIterator<Item = u64>) -> Course {
        let mut course = Course::default();
        rates.into_iter().for_each(|rate| course.add(Bitrate::from_mbps(rate)));
        course
    }

    #[test]
    fn a_steady_link_is_expected_to_go_on_and_gets_ever_surer() {
        let spread = |steps: usize| course(core::iter::repeat_n(8, steps)).supply(Duration::from_secs(10)).spread;
        assert_eq!(course([8; 4]).supply(Duration::from_secs(10)).mean, DataSize::from_bytes(10_000_000));
        assert!(spread(4) > spread(40) && spread(40) > spread(400) && spread(400) > DataSize::ZERO);
    }

    #[test]
    fn the_present_is_felt_soon_and_not_late() {
        let fallen = course([8, 8, 8, 8, 8, 8, 2, 2]);
        assert_eq!(fallen.present(), Bitrate::from_mbps(2));
        assert_eq!(fallen.mean(), Bitrate::from_bits_per_sec(6_500_000));
        // 6.5 Mbit/s for 1 s, less 4.5 Mbit/s for about 0.9 s of it.
        let soon = fallen.supply(Duration::from_secs(1)).mean.bytes();
        assert!((300_000..310_000).contains(&soon), "{soon}");
        // 650 Mbit less 4.5 Mbit/s for 4.5 s.
        let late = fallen.supply(Duration::from_secs(100)).mean.bytes();
        assert_eq!(late / 10_000, 7871);
    }

    #[test]
    fn a_link_that_swings_is_less_sure() {
        let time = Duration::from_secs(100);
        let steady = course([5; 100]).supply(time);
        let swings = course((0..100).map(|n| if n % 2 == 0 { 2 } else { 8 })).supply(time);
        assert_eq!(swings.mean, steady.mean);
        assert!(swings.spread > steady.spread * 5);
        // √((50 s × 3² + 2 s × 0.5²) ÷ 52 s × 3 s × 100 s) = 51.0 Mbit.
        assert_eq!(swings.spread.bytes() / 100_000, 63);
    }
}
