//! How late packets left the emulator: a histogram of fixed size with an error of at most 1 %.
//!
//! Keeping every sample was rejected: a run of minutes at full speed has tens of millions.

use std::time::Duration;

use hdrhistogram::Histogram as Counts;

/// Lateness of all packets of a run: the time between the due time and the write to the TUN device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Number of packets measured.
    pub packets: u64,
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// Maximum.
    pub max: Duration,
}

/// Histogram of lateness samples.
#[derive(Clone, Debug)]
pub(super) struct LatenessHistogram {
    /// Counts per lateness in microseconds.
    counts: Counts<u64>,
    max: Duration,
}

impl LatenessHistogram {
    pub(super) fn new() -> Self {
        let counts = Counts::new_with_bounds(1, LONGEST, DIGITS).expect("bounds that hdrhistogram allows");
        Self { counts, max: Duration::ZERO }
    }

    pub(super) fn record(&mut self, lateness: Duration) {
        self.counts.saturating_record(u64::try_from(lateness.as_micros()).unwrap_or(u64::MAX));
        self.max = self.max.max(lateness);
    }

    pub(super) fn lateness(&self) -> Lateness {
        let quantile = |part| Duration::from_micros(self.counts.value_at_quantile(part)).min(self.max);
        Lateness { packets: self.counts.len(), p50: quantile(0.5), p99: quantile(0.99), max: self.max }
    }
}

/// Significant decimal digits of a sample, which bound the error to 1 %.
const DIGITS: u8 = 2;

/// Largest value in microseconds (twelve days); larger samples count as this one.
const LONGEST: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_1_percent() {
        for micros in (0..5000).step_by(7).chain((1..40).map(|n| 1 << n)).chain([123_456_789]) {
            let mut histogram = LatenessHistogram::new();
            (0..99).for_each(|_| histogram.record(Duration::from_micros(micros)));
            histogram.record(Duration::MAX);
            let p50 = histogram.lateness().p50.as_micros() as u64;
            assert!(p50 >= micros && p50 - micros <= micros / 100, "{micros}: {p50}");
            assert_eq!(histogram.lateness().max, Duration::MAX);
        }
    }

    #[test]
    fn quantiles_match_the_samples() {
        let mut histogram = LatenessHistogram::new();
        assert_eq!(histogram.lateness(), Lateness::default());
        for micros in 1..=100 {
            histogram.record(Duration::from_micros(micros));
        }
        let lateness = histogram.lateness();
        assert_eq!(lateness.p50, Duration::from_micros(50));
        assert_eq!(lateness.max, Duration::from_micros(100));
        assert!(lateness.p99 >= Duration::from_micros(99));
    }
}
