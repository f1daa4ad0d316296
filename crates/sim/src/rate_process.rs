//! Random rate processes: links with varying rates and rate drops, as lists of one rate per second.
//!
//! All clients of an experiment get the same rates, and a
//! clairvoyant knows them in advance ([`crate::clairvoyant::CapacityCurve::from_steps`]).
//!
//! 1. *Variation* ([`log_ar1`]): the logarithm of the rate is a first-order autoregressive process with steps of
//!    one second and a coefficient of 0.8. It has the given mean and coefficient of variation. Therefore rates stay
//!    above zero, and a bad second is usually followed by another one.
//! 2. *Rate drops* ([`rate_drops`]): periods in which a link is almost gone, disjoint and distributed over the
//!    experiment; [`apply_drops`] applies them to a list of rates.
//! 3. The varying rates of a link depend on the seed, its name, the mean and the variation, not on the other links. Rate drops depend on
//!    the seed and their own parameters, not on a link.

use marline_core::units::Bitrate;

use crate::rng::{Purpose, RandomStream};

/// One rate per second. `variation` is the coefficient of variation; zero gives the mean in every second.
pub fn log_ar1(seed: u64, link: &str, mean: Bitrate, variation: f64, seconds: usize) -> Vec<Bitrate> {
    let mut rng = NormalSampler(RandomStream::new(seed, link, 0, Purpose::Other));
    let log_variance = (1.0 + variation * variation).ln();
    let sigma = log_variance.sqrt();
    let mut state = rng.draw() * sigma;
    let mut rates = Vec::with_capacity(seconds);
    for _ in 0..seconds {
        let rate = mean.bits_per_sec() as f64 * (state - log_variance / 2.0).exp();
        rates.push(Bitrate::from_bits_per_sec(rate as u64));
        state = AUTOCORRELATION * state + (1.0 - AUTOCORRELATION * AUTOCORRELATION).sqrt() * sigma * rng.draw();
    }
    rates
}

/// Autocorrelation of the logarithm from one second to the next. Chosen for the scenarios of the survey of optima.
const AUTOCORRELATION: f64 = 0.8;

/// One rate drop in each of `count` equal parts of `within`. Its length is between `min_seconds` and `max_seconds`,
/// but at most what fits between its neighbors.
pub fn rate_drops(
    seed: u64,
    count: usize,
    within: std::ops::Range<usize>,
    min_seconds: usize,
    max_seconds: usize,
) -> Vec<RateDrop> {
    let mut rng = RandomStream::new(seed, "holes", 0, Purpose::Other);
    let mut below = |n: usize| usize::try_from(rng.below(n as u64)).unwrap_or(0);
    let part_length = within.len() / count.max(1);
    let mut drops = Vec::with_capacity(count);
    for index in 0..count {
        let max_length = max_seconds.min(part_length.saturating_sub(MIN_SECONDS_APART));
        let length = min_seconds.min(max_length) + below(max_length.saturating_sub(min_seconds) + 1);
        let start =
            within.start + index * part_length + below(part_length.saturating_sub(MIN_SECONDS_APART + length) + 1);
        drops.push(RateDrop { start, length });
    }
    drops
}

/// Minimum seconds between two rate drops.
const MIN_SECONDS_APART: usize = 3;

/// A period in which a link is almost gone, in whole seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateDrop {
    /// First second of the drop.
    pub start: usize,
    /// Duration of the drop in seconds.
    pub length: usize,
}

/// Replaces the rates within the drops by `rate`.
pub fn apply_drops(rates: &mut [Bitrate], drops: &[RateDrop], rate: Bitrate) {
    for drop_ in drops {
        let end = (drop_.start + drop_.length).min(rates.len());
        if let Some(part) = rates.get_mut(drop_.start.min(end)..end) {
            part.fill(rate);
        }
    }
}

/// Mean 0, standard deviation 1: a sum of twelve uniform numbers is close enough to normal and needs no logarithm.
struct NormalSampler(RandomStream);

impl NormalSampler {
    fn draw(&mut self) -> f64 {
        (0..12).map(|_| (self.0.draw() >> 11) as f64 / (1_u64 << 53) as f64).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_rate_has_the_requested_mean_variation_and_autocorrelation() {
        let mean = Bitrate::from_mbps(4);
        let rates: Vec<f64> = (0..200)
            .flat_map(|seed| log_ar1(seed, "wifi", mean, 0.4, 200))
            .map(|rate| rate.bits_per_sec() as f64 / 4e6)
            .collect();
        let n = rates.len() as f64;
        let average = rates.iter().sum::<f64>() / n;
        let deviation = (rates.iter().map(|rate| (rate - average).powi(2)).sum::<f64>() / n).sqrt();
        assert!((average - 1.0).abs() < 0.02, "{average}");
        assert!((deviation - 0.4).abs() < 0.02, "{deviation}");
        let steps = rates.chunks(200).flat_map(|rates| rates.windows(2));
        let related = steps.map(|pair| (pair[0] - 1.0) * (pair[1] - 1.0)).sum::<f64>() / (n - 200.0);
        assert!((related / deviation.powi(2) - 0.8).abs() < 0.05, "{related}");
    }

    #[test]
    fn random_rates_depend_only_on_seed_and_name() {
        let rates = |seed, name| log_ar1(seed, name, Bitrate::from_mbps(3), 0.3, 50);
        assert_eq!(rates(1, "lte"), rates(1, "lte"));
        assert_ne!(rates(1, "lte"), rates(2, "lte"));
        assert_ne!(rates(1, "lte"), rates(1, "wifi"));
        assert_eq!(log_ar1(1, "lte", Bitrate::from_mbps(3), 0.0, 9), vec![Bitrate::from_mbps(3); 9]);
    }

    #[test]
    fn rate_drops_are_disjoint_and_within_the_period() {
        for seed in 0..50 {
            for count in 0..=4 {
                let drops = rate_drops(seed, count, 10..110, 6, 25);
                assert_eq!(drops.len(), count);
                assert!(drops.iter().all(|hole| (6..=25).contains(&hole.length)), "{drops:?}");
                let ends = drops.iter().map(|hole| hole.start + hole.length);
                let starts = drops.iter().map(|hole| hole.start).skip(1).chain([110]);
                assert!(ends.zip(starts).all(|(end, next)| end <= next), "{drops:?}");
                assert!(drops.first().is_none_or(|hole| hole.start >= 10));
            }
        }
    }

    #[test]
    fn a_rate_drop_beyond_the_end_is_truncated() {
        let mut rates = vec![Bitrate::from_mbps(3); 5];
        apply_drops(
            &mut rates,
            &[RateDrop { start: 3, length: 9 }, RateDrop { start: 50, length: 2 }],
            Bitrate::ZERO,
        );
        assert_eq!(rates.iter().filter(|rate| rate.is_zero()).count(), 2);
    }
}
