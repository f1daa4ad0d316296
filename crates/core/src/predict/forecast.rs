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
pub struct Forecast {
    steps: u32,
    /// Mbit/s.
    mean_mbps: f64,
    /// Medians of three steps in a row, and the sum of squared distances from their mean (Welford).
    median_count: u32,
    median_mean: f64,
    squared_deviations: f64,
    /// The last steps, the newest first.
    recent: [f64; 4],
}

/// Bytes to come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ExpectedBytes {
    /// How many are to be expected.
    pub mean: DataSize,
    /// Their standard deviation.
    pub std_dev: DataSize,
}

impl ExpectedBytes {
    /// That of another link as well; the two know nothing of each other.
    #[must_use]
    pub fn combined(self, other: Self) -> Self {
        let (first, second) = (self.std_dev.bytes() as f64, other.std_dev.bytes() as f64);
        Self { mean: self.mean + other.mean, std_dev: DataSize::from_bytes(libm::hypot(first, second) as u64) }
    }
}

impl Forecast {
    /// How long one step is.
    pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
    /// How long a link's present rate is felt. chosen: a rate that repeats four fifths of its distance from the mean
    /// each second forgets it by 1/e in 4.5 s; recorded Wi-Fi and LTE links lie about there.
    pub const DECAY_TIME: Duration = Duration::from_millis(4500);

    /// The link's rate over one more step.
    pub fn add(&mut self, rate: Bitrate) {
        let rate = rate.as_mbps_f64();
        self.steps = self.steps.saturating_add(1);
        self.mean_mbps += (rate - self.mean_mbps) / f64::from(self.steps);
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
        self.median_count = self.median_count.saturating_add(1);
        let distance = median - self.median_mean;
        self.median_mean += distance / f64::from(self.median_count);
        self.squared_deviations += distance * (median - self.median_mean);
    }

    /// How many steps have been seen.
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// The mean over everything.
    pub fn mean_rate(&self) -> Bitrate {
        from_mbps(self.mean_mbps)
    }

    /// The mean over the last second.
    pub fn current_rate(&self) -> Bitrate {
        from_mbps(self.current_mbps())
    }

    /// The mean over the last two seconds.
    pub fn recent_rate(&self) -> Bitrate {
        from_mbps(self.recent.iter().sum::<f64>() / self.recent.len() as f64)
    }

    /// What comes within `time`.
    pub fn expected_bytes(&self, time: Duration) -> ExpectedBytes {
        let (time, memory) = (time.as_secs_f64(), Self::DECAY_TIME.as_secs_f64());
        let decay_weight = memory * (1.0 - libm::exp(-time / memory));
        let mean = self.mean_mbps * time + (self.current_mbps() - self.mean_mbps) * decay_weight;
        let std_dev = libm::hypot(libm::sqrt(self.variance() * SUM_VARIANCE_TIME * time), mean * MIN_SPREAD);
        ExpectedBytes { mean: from_megabits(mean), std_dev: from_megabits(std_dev) }
    }

    /// How far the mean itself may be wrong, in bytes of `time`: the standard deviation of a mean of values that repeat
    /// four fifths of their distance from it each second, by what was seen alone.
    pub fn std_error(&self, time: Duration) -> DataSize {
        let observed = self.observed_secs().max(Self::SAMPLE_INTERVAL.as_secs_f64());
        from_megabits(libm::sqrt(self.sample_variance() * AUTOCORRELATION_TIME / observed) * time.as_secs_f64())
    }

    fn current_mbps(&self) -> f64 {
        f64::midpoint(self.recent[0], self.recent[1])
    }

    /// Seconds.
    fn observed_secs(&self) -> f64 {
        f64::from(self.steps) * Self::SAMPLE_INTERVAL.as_secs_f64()
    }

    fn sample_variance(&self) -> f64 {
        self.squared_deviations / f64::from(self.median_count.max(1))
    }

    fn variance(&self) -> f64 {
        let (observed, prior) = (self.observed_secs(), self.mean_mbps * PRIOR_SPREAD);
        (self.sample_variance() * observed + prior * prior * PRIOR_WEIGHT) / (observed + PRIOR_WEIGHT)
    }
}

fn from_mbps(rate: f64) -> Bitrate {
    Bitrate::from_bits_per_sec((rate.max(0.0) * 1e6) as u64)
}

fn from_megabits(size: f64) -> DataSize {
    DataSize::from_bytes((size.max(0.0) * 125_000.0) as u64)
}

/// The spread that is assumed at first, as a part of the mean.
const PRIOR_SPREAD: f64 = 0.1;
/// No link is surer than that, as a part of what it is to bring.
const MIN_SPREAD: f64 = 0.002;
/// How much the assumption weighs, in seconds.
const PRIOR_WEIGHT: f64 = 2.0;
/// (1 + ρ) ÷ (1 − ρ) of steps that repeat ρ = 0.8 of themselves each second, in seconds.
const AUTOCORRELATION_TIME: f64 = 9.0;
/// The variance of a sum over a second, in variances of a step's rate. Steps that repeat each other would make it 9 s;
/// chosen: 3 s, since a plan is looked at again before most of the time has passed.
const SUM_VARIANCE_TIME: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast(rates: impl IntoIterator<Item = u64>) -> Forecast {
        let mut forecast = Forecast::default();
        rates.into_iter().for_each(|rate| forecast.add(Bitrate::from_mbps(rate)));
        forecast
    }

    #[test]
    fn a_steady_link_is_expected_to_go_on_and_gets_ever_surer() {
        let spread =
            |steps: usize| forecast(core::iter::repeat_n(8, steps)).expected_bytes(Duration::from_secs(10)).std_dev;
        assert_eq!(forecast([8; 4]).expected_bytes(Duration::from_secs(10)).mean, DataSize::from_bytes(10_000_000));
        assert!(spread(4) > spread(40) && spread(40) > spread(400) && spread(400) > DataSize::ZERO);
    }

    #[test]
    fn the_present_is_felt_soon_and_not_late() {
        let fallen = forecast([8, 8, 8, 8, 8, 8, 2, 2]);
        assert_eq!(fallen.current_rate(), Bitrate::from_mbps(2));
        assert_eq!(fallen.mean_rate(), Bitrate::from_bits_per_sec(6_500_000));
        // 6.5 Mbit/s for 1 s, less 4.5 Mbit/s for about 0.9 s of it.
        let soon = fallen.expected_bytes(Duration::from_secs(1)).mean.bytes();
        assert!((300_000..310_000).contains(&soon), "{soon}");
        // 650 Mbit less 4.5 Mbit/s for 4.5 s.
        let late = fallen.expected_bytes(Duration::from_secs(100)).mean.bytes();
        assert_eq!(late / 10_000, 7871);
    }

    #[test]
    fn a_link_that_swings_is_less_sure() {
        let time = Duration::from_secs(100);
        let steady = forecast([5; 100]).expected_bytes(time);
        let swings = forecast((0..100).map(|n| if n % 2 == 0 { 2 } else { 8 })).expected_bytes(time);
        assert_eq!(swings.mean, steady.mean);
        assert!(swings.std_dev > steady.std_dev * 5);
        // √((50 s × 3² + 2 s × 0.5²) ÷ 52 s × 3 s × 100 s) = 51.0 Mbit.
        assert_eq!(swings.std_dev.bytes() / 100_000, 63);
    }
}
