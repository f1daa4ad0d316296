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

use crate::predict::{Course, Supply};
use crate::units::{Bitrate, DataSize, Energy};

/// What is known when the dear link could rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// What nobody has brought yet.
    pub(super) rest: DataSize,
    /// What the others bring before the last of it is due.
    pub(super) others: Supply,
    /// What a megabyte costs more than on the others, at the dear link's rate of now.
    pub(super) price_now: Energy,
    /// And at its usual rate.
    pub(super) price: Energy,
    /// The dear link's rate of now.
    pub(super) rate: Bitrate,
    /// A promotion and a tail.
    pub(super) wake: Energy,
}

impl Question {
    /// See the [module](self).
    pub(super) fn goes_on(&self) -> bool {
        let spread = self.others.spread.max(LEAST_SPREAD).bytes() as f64;
        let need = self.rest.bytes() as f64 - self.others.mean.bytes() as f64;
        let (now, usual) = (per_byte(self.price_now), per_byte(self.price));
        let wake = self.wake.as_joules_f64() * AGAIN;
        let soon = (self.rate * Course::MEMORY).bytes() as f64;
        let cost = |bytes: f64| {
            let z = (bytes - need) / spread;
            let short = spread * (density(z) - z * above(z));
            let late = (bytes - soon).max(0.0);
            (bytes - late) * now + (late + short) * usual + above(z) * wake
        };
        let (rest, most) = (cost(0.0), (need + 3.0 * spread).max(spread).min(self.rest.bytes() as f64));
        !self.rest.is_zero()
            && (1..=STEPS).map(|n| most * f64::from(n) / f64::from(STEPS)).any(|bytes| cost(bytes) < rest)
    }
}

/// How long the last byte should be there before it is needed.
pub(super) const MARGIN: Duration = Duration::from_millis(300);

fn per_byte(megabyte: Energy) -> f64 {
    megabyte.as_joules_f64() / 1e6
}

/// The standard normal distribution.
fn density(z: f64) -> f64 {
    const ROOT_2_PI: f64 = 2.506_628_274_631;
    libm::exp(-z * z / 2.0) / ROOT_2_PI
}

/// The probability that it lies above `z`.
fn above(z: f64) -> f64 {
    0.5 * libm::erfc(z * core::f64::consts::FRAC_1_SQRT_2)
}

/// chosen: with 1 radios are woken more often (`marline-lab reproduce greenbag --sim --case X-fluct`).
const AGAIN: f64 = 2.5;
/// Nobody is surer than that: about a request.
const LEAST_SPREAD: DataSize = DataSize::from_kib(32);
/// How many amounts are tried.
const STEPS: u32 = 80;

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// GreenBag's radios at 3 Mbit/s each: 4.37 J for a megabyte more over LTE, 15.12 J for a tail.
    fn question(rest: u64, mean: u64, spread: u64) -> Question {
        Question {
            rest: DataSize::from_bytes(rest),
            others: Supply { mean: DataSize::from_bytes(mean), spread: DataSize::from_bytes(spread) },
            price_now: Energy::from_millijoules(4370),
            price: Energy::from_millijoules(4370),
            rate: Bitrate::from_mbps(3),
            wake: Energy::from_millijoules(15_120),
        }
    }

    #[test]
    fn what_is_needed_for_sure_is_fetched_and_what_is_not_is_not() {
        assert!(question(45 * MB, 40 * MB, MB / 10).goes_on());
        assert!(!question(39 * MB, 40 * MB, MB / 10).goes_on());
        assert!(!question(0, MB, MB).goes_on());
    }

    #[test]
    fn doubt_is_worth_a_few_bytes_but_not_many() {
        // As likely as not that nothing is needed: bytes that would save a wake-up are cheap if the doubt is small.
        assert!(question(40 * MB, 40 * MB, MB).goes_on());
        assert!(question(39 * MB, 40 * MB, MB).goes_on());
        assert!(!question(36 * MB, 40 * MB, MB).goes_on());
        // With great doubt the bytes are certain and the wake-up is not.
        assert!(!question(36 * MB, 40 * MB, 20 * MB).goes_on());
    }

    #[test]
    fn a_fast_moment_is_used_longer_than_a_slow_one() {
        let rests_at = |millijoules| {
            let asks = |need: u64| Question {
                price_now: Energy::from_millijoules(millijoules),
                ..question(50 * MB, 50 * MB - need, 4 * MB)
            };
            (0..200).map(|n| n * MB / 10).find(|need| asks(*need).goes_on())
        };
        let (fast, usual, slow) = (rests_at(2000), rests_at(4370), rests_at(6000));
        assert!(fast <= usual && usual <= slow, "{fast:?} {usual:?} {slow:?}");
    }

    #[test]
    fn a_radio_without_a_tail_stops_when_the_bytes_are_more_likely_needed_later() {
        let free = Question { wake: Energy::ZERO, ..question(41 * MB, 40 * MB, 4 * MB) };
        assert!(!free.goes_on());
    }
}
