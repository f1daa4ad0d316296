//! Rates of one run, drawn around the mean that the scenario gives.
//!
//! [`Case::with_sampled_rates`] returns the case with the rates of the given run.
//!
//! 1. Rates are normally distributed around the mean, limited to two standard deviations and to at least a quarter
//!    of the mean, so that no link disappears by chance.
//! 2. Run 0 has the means. Later runs follow a Halton sequence (bases 2, 3, 5, 7, 11 and 13 for the first six links). So
//!    few runs cover the distribution evenly, and no two links change together.
//! 3. All clients of a run get the same rates: comparisons are paired. The paper, which measured real links, had
//!    different rates in every download.
//! 4. Steps and `rate=` events keep their ratio to the first rate. Uplink rates of their own, traces and 802.11 channels are not changed.
//!
//! Seeded random numbers do not serve here: three draws from a normal distribution are often all on one side.

use marline_core::units::Bitrate;

use super::Case;
use crate::spec::{Downlink, LinkEventKind};

impl Case {
    /// The case with the rates of this run.
    #[must_use]
    pub fn with_sampled_rates(&self, run: u32) -> Self {
        let mut case = self.clone();
        if run == 0 {
            return case;
        }
        for (name, sigma) in &self.sigma {
            let Some(link_index) = self.links.iter().position(|link| link.name == *name) else { continue };
            let Downlink::Rate { initial: first, steps } = &mut case.links[link_index].downlink else { continue };
            let mean = first.bits_per_sec() as f64;
            let deviation = normal_quantile(distribution_position(link_index, run)).clamp(-2.0, 2.0)
                * sigma.bits_per_sec() as f64;
            let factor = ((mean + deviation) / mean).max(0.25);
            let scale = |rate: &mut Bitrate| {
                *rate = Bitrate::from_bits_per_sec((rate.bits_per_sec() as f64 * factor).round() as u64);
            };
            scale(first);
            steps.iter_mut().for_each(|(_, rate)| scale(rate));
            for event in case.events.iter_mut().filter(|event| event.link == *name) {
                if let LinkEventKind::Rate(rate) = &mut event.change {
                    scale(rate);
                }
            }
        }
        case
    }
}

/// Position of the link's rate within its distribution in this run, between 0 and 1.
fn distribution_position(link_index: usize, run: u32) -> f64 {
    let base = [2, 3, 5, 7, 11, 13][link_index.min(5)];
    match base {
        // The first number of base 2 is the middle, which run 0 already has.
        2 => halton(2, run + 1),
        _ if run == 0 => 0.5,
        base => halton(base, run),
    }
}

/// Radical inverse: the digits of `n` in this base, mirrored at the point.
fn halton(base: u32, n: u32) -> f64 {
    let (mut n, mut weight, mut sum) = (n, 1.0, 0.0);
    while n > 0 {
        weight /= f64::from(base);
        sum += weight * f64::from(n % base);
        n /= base;
    }
    sum
}

/// Quantile of the normal distribution: Abramowitz and Stegun 26.2.23, with an error below 0.00045.
fn normal_quantile(fraction: f64) -> f64 {
    let tail_share = fraction.min(1.0 - fraction);
    let t = libm::sqrt(-2.0 * libm::log(tail_share));
    let numerator = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let denominator = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let z = t - numerator / denominator;
    if fraction < 0.5 { -z } else { z }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_equal_the_tabulated_values() {
        for (fraction, z) in [(0.5, 0.0), (0.975, 1.960), (0.025, -1.960), (0.8413, 1.0), (0.25, -0.6745)] {
            assert!((normal_quantile(fraction) - z).abs() < 0.001, "{fraction}: {}", normal_quantile(fraction));
        }
    }

    #[test]
    fn positions_spread_over_the_whole_distribution() {
        assert_eq!((0..4).map(|run| distribution_position(0, run)).collect::<Vec<_>>(), [0.5, 0.25, 0.75, 0.125]);
        for link in 0..3 {
            let mean: f64 =
                (0..10).map(|run| normal_quantile(distribution_position(link, run))).sum::<f64>() / 10.0;
            assert!(mean.abs() < 0.25, "link {link}: {mean}");
        }
    }
}
