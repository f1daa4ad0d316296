//! Links whose rate wanders, drops or fades, as lists of rates: one for each second.
//!
//! In: a mean, how much it wanders, a seed. Out: payload rates, the same for every client of an experiment, and known
//! in advance to a clairvoyant ([`crate::clairvoyant::Supply::stepped`]).
//!
//! 1. *Wandering* ([`log_ar1`]): the logarithm of the rate is an autoregressive process of first order with steps of a
//!    second and a memory of 0.8; the mean and the coefficient of variation are those that are asked for. So rates stay
//!    above zero, and a bad second is mostly followed by a bad one.
//! 2. *Holes* ([`holes`]): times in which a link is nearly gone, apart from each other and spread over the experiment;
//!    [`dig`] lays them over a course.
//! 3. A link's course depends on the seed and on its name, not on the other links.

use marline_core::units::Bitrate;

use crate::rng::{Purpose, RandomStream};

/// A rate for each of so many seconds. `variation` is the coefficient of variation; zero: always the mean.
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

/// What remains of one second's logarithm in the next. chosen: the scenarios of the survey of optima.
const AUTOCORRELATION: f64 = 0.8;

/// Holes in whole seconds, `(start, length)`: one in each of `count` equal parts of `within`, its length from
/// `shortest` to `longest` but never more than fits between its neighbours.
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
    let mut holes = Vec::with_capacity(count);
    for index in 0..count {
        let max_length = max_seconds.min(part_length.saturating_sub(MIN_SECONDS_APART));
        let length = min_seconds.min(max_length) + below(max_length.saturating_sub(min_seconds) + 1);
        let start =
            within.start + index * part_length + below(part_length.saturating_sub(MIN_SECONDS_APART + length) + 1);
        holes.push(RateDrop { start, length });
    }
    holes
}

/// Seconds at least between two holes.
const MIN_SECONDS_APART: usize = 3;

/// A time in which a link is nearly gone, in whole seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateDrop {
    /// Its first second.
    pub start: usize,
    /// How many.
    pub length: usize,
}

/// Lays holes of this rate over a course.
pub fn apply_drops(rates: &mut [Bitrate], holes: &[RateDrop], rate: Bitrate) {
    for drop_ in holes {
        let end = (drop_.start + drop_.length).min(rates.len());
        if let Some(part) = rates.get_mut(drop_.start.min(end)..end) {
            part.fill(rate);
        }
    }
}

/// Numbers of mean 0 and deviation 1: sums of twelve uniform ones, which are normal enough and need no logarithm.
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
    fn a_wandering_link_has_the_mean_and_the_variation_that_were_asked_for() {
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
        let steps = rates.chunks(200).flat_map(|course| course.windows(2));
        let related = steps.map(|pair| (pair[0] - 1.0) * (pair[1] - 1.0)).sum::<f64>() / (n - 200.0);
        assert!((related / deviation.powi(2) - 0.8).abs() < 0.05, "{related}");
    }

    #[test]
    fn a_course_depends_on_its_seed_and_name_only() {
        let course = |seed, name| log_ar1(seed, name, Bitrate::from_mbps(3), 0.3, 50);
        assert_eq!(course(1, "lte"), course(1, "lte"));
        assert_ne!(course(1, "lte"), course(2, "lte"));
        assert_ne!(course(1, "lte"), course(1, "wifi"));
        assert_eq!(log_ar1(1, "lte", Bitrate::from_mbps(3), 0.0, 9), vec![Bitrate::from_mbps(3); 9]);
    }

    #[test]
    fn holes_lie_apart_and_within() {
        for seed in 0..50 {
            for count in 0..=4 {
                let holes = rate_drops(seed, count, 10..110, 6, 25);
                assert_eq!(holes.len(), count);
                assert!(holes.iter().all(|hole| (6..=25).contains(&hole.length)), "{holes:?}");
                let ends = holes.iter().map(|hole| hole.start + hole.length);
                let starts = holes.iter().map(|hole| hole.start).skip(1).chain([110]);
                assert!(ends.zip(starts).all(|(end, next)| end <= next), "{holes:?}");
                assert!(holes.first().is_none_or(|hole| hole.start >= 10));
            }
        }
    }

    #[test]
    fn a_hole_beyond_the_end_is_cut() {
        let mut rates = vec![Bitrate::from_mbps(3); 5];
        apply_drops(
            &mut rates,
            &[RateDrop { start: 3, length: 9 }, RateDrop { start: 50, length: 2 }],
            Bitrate::ZERO,
        );
        assert_eq!(rates.iter().filter(|rate| rate.is_zero()).count(), 2);
    }
}
