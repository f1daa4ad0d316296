//! Holt-Winters forecast of a path's throughput from a series of samples: level and trend.
//!
//! Each call adds one sample per interval; the forecast is for the next one. The method is double exponential
//! smoothing (Holt), the non-seasonal Holt-Winters forecast of He, Dovrolis and Ammar, "On the predictability of
//! large transfer TCP throughput", SIGCOMM 2005, §5, which eMPTCP uses (§3.2):
//!
//! ```text
//! level(n) = α · sample(n) + (1 − α) · (level(n−1) + trend(n−1))
//! trend(n) = β · (level(n) − level(n−1)) + (1 − β) · trend(n−1)
//! forecast = level + trend, at least zero
//! ```
//!
//! 1. The first sample is the level, and the trend starts at zero. A trend from the first two samples, of a path in
//!    slow start or delayed by another path, would affect the next twenty samples.
//! 2. A path without traffic keeps its state, and the next sample continues the series (eMPTCP §3.2: "old observed
//!    samples together with new sampled throughputs"). The length of the pause does not matter.
//!
//! A formula of loss rate and RTT was rejected: He et al. found it wrong by a factor of two or more on the same
//! paths.

use crate::units::Bitrate;

/// Forecast of one path.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct HoltWinters {
    samples: u32,
    /// Level in bits per second; the trend is its change per sample.
    level: f64,
    trend: f64,
}

impl HoltWinters {
    /// Smoothing factor α of the level. He et al., §5.1: results hardly depend on it between 0.2 and 0.8 once
    /// outliers are separated; eMPTCP does not state its value. Our choice: 0.2. With 0.5, half a second in which
    /// another path's queue delays this path is taken for its rate, and the published controller suspends LTE for
    /// good beside slow Wi-Fi, which the paper's figure 6 does not show.
    pub const ALPHA: f64 = 0.2;
    /// Smoothing factor β of the trend. He et al. use 0.2 throughout.
    pub const BETA: f64 = 0.2;

    /// Adds one sample.
    pub fn on_sample(&mut self, rate: Bitrate) {
        let rate = rate.bits_per_sec() as f64;
        let before = self.level;
        match self.samples {
            0 => self.level = rate,
            _ => {
                self.level = Self::ALPHA * rate + (1.0 - Self::ALPHA) * (before + self.trend);
                self.trend = Self::BETA * (self.level - before) + (1.0 - Self::BETA) * self.trend;
            }
        }
        // A steep fall can give a level below zero, which would keep the next forecasts too low.
        self.level = self.level.max(0.0);
        self.samples = self.samples.saturating_add(1);
    }

    /// Expected value of the next sample; `None` before the first sample.
    pub fn forecast(&self) -> Option<Bitrate> {
        let rate = (self.level + self.trend).max(0.0);
        (self.samples > 0).then(|| Bitrate::from_bits_per_sec(rate as u64))
    }

    /// Number of samples so far.
    pub const fn samples(&self) -> u32 {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn forecaster(rates: impl IntoIterator<Item = u64>) -> HoltWinters {
        let mut holt = HoltWinters::default();
        rates.into_iter().for_each(|mbps| holt.on_sample(Bitrate::from_mbps(mbps)));
        holt
    }

    #[test]
    fn there_is_no_forecast_without_samples() {
        assert_eq!(forecaster([]).forecast(), None);
        assert_eq!(forecaster([7]).forecast(), Some(Bitrate::from_mbps(7)));
    }

    #[test]
    fn a_constant_rate_and_a_constant_trend_continue() {
        assert_eq!(forecaster([6; 30]).forecast(), Some(Bitrate::from_mbps(6)));
        let climb = forecaster(1..=60).forecast().unwrap();
        assert!(climb > Bitrate::from_mbps(60) && climb < Bitrate::from_mbps(62), "{climb}");
    }

    #[test]
    fn a_worked_example() {
        // 10: level 10, trend 0. 12: level 0.2 × 12 + 0.8 × 10 = 10.4, trend 0.2 × 0.4 = 0.08. 6: level 0.2 × 6 + 0.8 ×
        // 10.48 = 9.584, trend 0.2 × −0.816 + 0.8 × 0.08 = −0.0992.
        let forecast = forecaster([10, 12, 6]).forecast().unwrap().bits_per_sec();
        assert!(forecast.abs_diff(9_484_800) <= 1, "{forecast}");
    }

    #[test]
    fn the_forecast_follows_an_outage_and_the_recovery() {
        let mut holt = forecaster([20; 3].into_iter().chain([0; 12]));
        assert!(holt.forecast().unwrap() < Bitrate::from_mbps(1));
        (0..20).for_each(|_| holt.on_sample(Bitrate::from_mbps(20)));
        assert!(holt.forecast().unwrap() > Bitrate::from_mbps(19));
    }

    proptest! {
        #[test]
        fn a_forecast_is_at_most_three_times_the_highest_sample(rates in prop::collection::vec(0_u64..1_000, 1..60)) {
            let most = rates.iter().copied().max().unwrap_or(0);
            let forecast = forecaster(rates).forecast().unwrap();
            // Level plus trend is at most three times the highest sample.
            prop_assert!(forecast <= Bitrate::from_mbps(3 * most));
        }
    }
}
