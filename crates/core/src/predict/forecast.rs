//! Forecast of the bytes that a link will deliver within up to about two minutes, with their standard deviation.
//!
//! The input is the mean rate of the link over each step of 0.5 s in which it was in use.
//!
//! 1. All samples have equal weight in the mean: over long horizons a link returns to the mean of everything
//!    observed.
//! 2. The current rate matters for a while: the deviation of the last second from the mean decays with the time
//!    constant [`Forecast::DECAY_TIME`].
//! 3. The standard deviation of a sum grows with the square root of its time, by the observed variance. At the
//!    beginning a fixed part of the mean (`PRIOR_SPREAD`) is assumed, which has the weight of `PRIOR_WEIGHT`
//!    seconds of observation.
//! 4. For the variance, each sample is replaced by the median of itself and the two before it. After a packet loss,
//!    TCP delivers nothing and then everything at once: one sample too low and one too high, although the link has
//!    not changed. A change that lasts for a second remains visible.
//!
//! An EWMA was rejected: with the usual weights it remembers a few seconds, and a plan for a hundred seconds that
//! follows it changes with every fluctuation (measured for GreenBag's link selection: 4 to 12 changes in two
//! minutes, each of which costs a radio's energy tail). The uncertainty of the mean itself is left out here: it
//! shrinks with time, and a plan that is revised regularly can wait.

use core::time::Duration;

use crate::units::{Bitrate, DataSize};

/// Statistics of a link's rate, and the forecast from them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forecast {
    steps: u32,
    /// In Mbit/s.
    mean_mbps: f64,
    /// Number and mean of the medians of three consecutive samples, and the sum of their squared deviations
    /// (Welford).
    median_count: u32,
    median_mean: f64,
    squared_deviations: f64,
    /// The last four samples in Mbit/s, the newest first.
    recent: [f64; 4],
}

/// Expected number of bytes and its uncertainty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ExpectedBytes {
    /// Expected value.
    pub mean: DataSize,
    /// Standard deviation.
    pub std_dev: DataSize,
}

impl ExpectedBytes {
    /// The sum of this and another link's bytes; the links are assumed to be independent.
    #[must_use]
    pub fn combined(self, other: Self) -> Self {
        let (first, second) = (self.std_dev.bytes() as f64, other.std_dev.bytes() as f64);
        Self { mean: self.mean + other.mean, std_dev: DataSize::from_bytes(libm::hypot(first, second) as u64) }
    }
}

impl Forecast {
    /// Duration of one sample.
    pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
    /// Time constant with which the present rate's deviation from the mean decays. Our choice: a rate that keeps
    /// four fifths of its deviation each second decays by 1/e in 4.5 s; recorded Wi-Fi and LTE links have about
    /// this value.
    pub const DECAY_TIME: Duration = Duration::from_millis(4500);

    /// Adds the link's mean rate over one more step.
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
        // Median of the three newest samples.
        let [a, b, c, _] = self.recent;
        let median = a.max(b).min(a.min(b).max(c));
        self.median_count = self.median_count.saturating_add(1);
        let distance = median - self.median_mean;
        self.median_mean += distance / f64::from(self.median_count);
        self.squared_deviations += distance * (median - self.median_mean);
    }

    /// Number of samples so far.
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// Mean of all samples.
    pub fn mean_rate(&self) -> Bitrate {
        from_mbps(self.mean_mbps)
    }

    /// Mean of the last second.
    pub fn current_rate(&self) -> Bitrate {
        from_mbps(self.current_mbps())
    }

    /// Mean of the last two seconds.
    pub fn recent_rate(&self) -> Bitrate {
        from_mbps(self.recent.iter().sum::<f64>() / self.recent.len() as f64)
    }

    /// Bytes that the link is expected to deliver within `time`.
    pub fn expected_bytes(&self, time: Duration) -> ExpectedBytes {
        let (time, memory) = (time.as_secs_f64(), Self::DECAY_TIME.as_secs_f64());
        // Integral of exp(−t / memory) over `time`: the number of seconds for which the present deviation counts in
        // full.
        let decay_weight = memory * (1.0 - libm::exp(-time / memory));
        let mean = self.mean_mbps * time + (self.current_mbps() - self.mean_mbps) * decay_weight;
        let std_dev = libm::hypot(libm::sqrt(self.variance() * SUM_VARIANCE_TIME * time), mean * MIN_SPREAD);
        ExpectedBytes { mean: from_megabits(mean), std_dev: from_megabits(std_dev) }
    }

    /// Standard error of the mean, as bytes over `time`. It uses only the observed variance, and assumes samples
    /// that keep four fifths of their deviation each second.
    pub fn std_error(&self, time: Duration) -> DataSize {
        let observed = self.observed_secs().max(Self::SAMPLE_INTERVAL.as_secs_f64());
        from_megabits(libm::sqrt(self.sample_variance() * AUTOCORRELATION_TIME / observed) * time.as_secs_f64())
    }

    fn current_mbps(&self) -> f64 {
        f64::midpoint(self.recent[0], self.recent[1])
    }

    /// Duration of all samples in seconds.
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

/// Standard deviation assumed at the beginning, as a part of the mean.
const PRIOR_SPREAD: f64 = 0.1;
/// Lower bound of the standard deviation, as a part of the expected bytes.
const MIN_SPREAD: f64 = 0.002;
/// Weight of `PRIOR_SPREAD`, in seconds of observation.
const PRIOR_WEIGHT: f64 = 2.0;
/// (1 + ρ) ÷ (1 − ρ) for samples with a correlation ρ of 0.8 per second, in seconds.
const AUTOCORRELATION_TIME: f64 = 9.0;
/// Variance of a sum over one second, in units of the samples' variance. The correlation of the samples would give
/// 9 s. Our choice: 3 s, because a plan is revised before most of the time has passed.
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
    fn the_uncertainty_of_a_constant_link_shrinks() {
        let spread =
            |steps: usize| forecast(core::iter::repeat_n(8, steps)).expected_bytes(Duration::from_secs(10)).std_dev;
        assert_eq!(forecast([8; 4]).expected_bytes(Duration::from_secs(10)).mean, DataSize::from_bytes(10_000_000));
        assert!(spread(4) > spread(40) && spread(40) > spread(400) && spread(400) > DataSize::ZERO);
    }

    #[test]
    fn the_present_rate_matters_over_short_horizons_only() {
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
    fn a_fluctuating_link_has_a_larger_standard_deviation() {
        let time = Duration::from_secs(100);
        let steady = forecast([5; 100]).expected_bytes(time);
        let swings = forecast((0..100).map(|n| if n % 2 == 0 { 2 } else { 8 })).expected_bytes(time);
        assert_eq!(swings.mean, steady.mean);
        assert!(swings.std_dev > steady.std_dev * 5);
        // √((50 s × 3² + 2 s × 0.5²) ÷ 52 s × 3 s × 100 s) = 51.0 Mbit.
        assert_eq!(swings.std_dev.bytes() / 100_000, 63);
    }
}
