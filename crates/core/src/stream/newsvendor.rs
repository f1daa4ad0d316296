//! Whether the dear link goes on: a newsvendor's question.
//!
//! In: what is left of the video, what the others will bring until its end is due and how sure that is, what a byte of
//! the dear link costs more than one of theirs, and what a wake-up costs. Out: go on, or rest.
//!
//! 1. Of what is left, the dear link must bring what the others will not: a need D of which only the distribution is
//!    known. To bring `x` more bytes and rest then costs
//!
//!    `x × price + E[(D − x)⁺] × price + P(D > x) × wake-up`:
//!
//!    too many bytes are paid for, too few wake the radio again, which costs a promotion and a whole tail. The link
//!    goes on if some `x` costs less than none.
//! 2. The next bytes have today's price, all others the usual one: a fast moment is used longer, a slow one shorter.
//! 3. A wake-up weighs [`AGAIN`] times what it costs, since one that was needed is seldom the last.
//!
//! Asking whether the cheap link suffices by its predicted rate (GreenBag §IV-B) was not used: a point estimate is right
//! half of the time, and each time that it is wrong costs a tail of 15 J. Over links that fluctuate by 30 to 40 %, that
//! chooser takes 1.22 to 1.58 times the clairvoyant's energy.

use core::time::Duration;

use crate::predict::{ExpectedBytes, Forecast};
use crate::units::{Bitrate, DataSize, Energy};

/// What is known when the dear link could rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newsvendor {
    /// What nobody has brought yet.
    pub(super) remaining: DataSize,
    /// What the others bring before the last of it is due.
    pub(super) others_expected: ExpectedBytes,
    /// What a megabyte costs more than on the others, at the dear link's rate of now.
    pub(super) current_price: Energy,
    /// And at its usual rate.
    pub(super) usual_price: Energy,
    /// The dear link's rate of now.
    pub(super) rate: Bitrate,
    /// A promotion and a tail.
    pub(super) activation_cost: Energy,
}

impl Newsvendor {
    /// See the [module](self).
    pub(super) fn keep_using(&self) -> bool {
        let spread = self.others_expected.std_dev.max(MIN_STD_DEV).bytes() as f64;
        let need = self.remaining.bytes() as f64 - self.others_expected.mean.bytes() as f64;
        let (current, usual) = (joules_per_byte(self.current_price), joules_per_byte(self.usual_price));
        let activation = self.activation_cost.as_joules_f64() * ACTIVATION_WEIGHT;
        let near_bytes = (self.rate * Forecast::DECAY_TIME).bytes() as f64;
        let cost = |bytes: f64| {
            let z = (bytes - need) / spread;
            let expected_shortfall = spread * (normal_density(z) - z * upper_tail(z));
            let later_bytes = (bytes - near_bytes).max(0.0);
            (bytes - later_bytes) * current
                + (later_bytes + expected_shortfall) * usual
                + upper_tail(z) * activation
        };
        let (standby_cost, max_bytes) =
            (cost(0.0), (need + 3.0 * spread).max(spread).min(self.remaining.bytes() as f64));
        !self.remaining.is_zero()
            && (1..=STEPS)
                .map(|n| max_bytes * f64::from(n) / f64::from(STEPS))
                .any(|bytes| cost(bytes) < standby_cost)
    }
}

/// How long the last byte should be there before it is needed.
pub(super) const DEADLINE_MARGIN: Duration = Duration::from_millis(300);

fn joules_per_byte(megabyte: Energy) -> f64 {
    megabyte.as_joules_f64() / 1e6
}

/// The standard normal distribution.
fn normal_density(z: f64) -> f64 {
    const ROOT_2_PI: f64 = 2.506_628_274_631;
    libm::exp(-z * z / 2.0) / ROOT_2_PI
}

/// The probability that it lies above `z`.
fn upper_tail(z: f64) -> f64 {
    0.5 * libm::erfc(z * core::f64::consts::FRAC_1_SQRT_2)
}

/// chosen: with 1 radios are woken more often (`marline-lab reproduce greenbag --sim --case X-fluct`).
const ACTIVATION_WEIGHT: f64 = 2.5;
/// Nobody is surer than that: about a request.
const MIN_STD_DEV: DataSize = DataSize::from_kib(32);
/// How many amounts are tried.
const STEPS: u32 = 80;

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// GreenBag's radios at 3 Mbit/s each: 4.37 J for a megabyte more over LTE, 15.12 J for a tail.
    fn newsvendor(rest: u64, mean: u64, spread: u64) -> Newsvendor {
        Newsvendor {
            remaining: DataSize::from_bytes(rest),
            others_expected: ExpectedBytes {
                mean: DataSize::from_bytes(mean),
                std_dev: DataSize::from_bytes(spread),
            },
            current_price: Energy::from_millijoules(4370),
            usual_price: Energy::from_millijoules(4370),
            rate: Bitrate::from_mbps(3),
            activation_cost: Energy::from_millijoules(15_120),
        }
    }

    #[test]
    fn what_is_needed_for_sure_is_fetched_and_what_is_not_is_not() {
        assert!(newsvendor(45 * MB, 40 * MB, MB / 10).keep_using());
        assert!(!newsvendor(39 * MB, 40 * MB, MB / 10).keep_using());
        assert!(!newsvendor(0, MB, MB).keep_using());
    }

    #[test]
    fn doubt_is_worth_a_few_bytes_but_not_many() {
        // As likely as not that nothing is needed: bytes that would save a wake-up are cheap if the doubt is small.
        assert!(newsvendor(40 * MB, 40 * MB, MB).keep_using());
        assert!(newsvendor(39 * MB, 40 * MB, MB).keep_using());
        assert!(!newsvendor(36 * MB, 40 * MB, MB).keep_using());
        // With great doubt the bytes are certain and the wake-up is not.
        assert!(!newsvendor(36 * MB, 40 * MB, 20 * MB).keep_using());
    }

    #[test]
    fn a_fast_moment_is_used_longer_than_a_slow_one() {
        let standby_threshold = |millijoules| {
            let with_need = |need: u64| Newsvendor {
                current_price: Energy::from_millijoules(millijoules),
                ..newsvendor(50 * MB, 50 * MB - need, 4 * MB)
            };
            (0..200).map(|n| n * MB / 10).find(|need| with_need(*need).keep_using())
        };
        let (fast, usual, slow) = (standby_threshold(2000), standby_threshold(4370), standby_threshold(6000));
        assert!(fast <= usual && usual <= slow, "{fast:?} {usual:?} {slow:?}");
    }

    #[test]
    fn a_radio_without_a_tail_stops_when_the_bytes_are_more_likely_needed_later() {
        let free = Newsvendor { activation_cost: Energy::ZERO, ..newsvendor(41 * MB, 40 * MB, 4 * MB) };
        assert!(!free.keep_using());
    }
}
