//! Decides whether the costly link stays in use or goes on standby, as a newsvendor problem.
//!
//! The decision depends on the missing bytes of the video, the forecast of what the other links deliver before its end
//! is due, the extra price of a byte on the costly link, and the cost of an activation.
//!
//! 1. The costly link must deliver the bytes that the others will not: a demand D of which only the distribution is
//!    known. Fetching `x` more bytes before going on standby costs
//!
//! `x × price + E[(D − x)⁺] × price + P(D > x) × activation`:
//!
//! surplus bytes are paid for; a shortfall activates the radio again, which costs a promotion and a whole tail. The
//! link stays in use if some `x > 0` costs less than `x = 0`.
//! 2. The next bytes (4.5 s at the present rate) have the present price, all later ones the usual price. A link that is
//!    fast at present is therefore used longer, a slow one shorter.
//! 3. An activation counts [`ACTIVATION_WEIGHT`] times its cost, because one that was needed is seldom the last.
//!
//! GreenBag §IV-B only checks whether the cheap link suffices at its predicted rate. A point estimate is wrong half of
//! the time, and each error costs a tail of 15 J. Over links that fluctuate by 30 to 40 %, that chooser uses 1.22 to
//! 1.58 times the energy of the clairvoyant optimum.

use core::time::Duration;

use crate::predict::{ExpectedBytes, Forecast};
use crate::units::{Bitrate, DataSize, Energy};

/// What is known when the costly link could go on standby.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newsvendor {
    /// Missing bytes of the video that no request of the costly link covers.
    pub(super) remaining: DataSize,
    /// Bytes that the other links will deliver before the end of the video is due.
    pub(super) others_expected: ExpectedBytes,
    /// Extra cost of a megabyte compared with the other links, at the costly link's present rate.
    pub(super) current_price: Energy,
    /// The same at the costly link's mean rate.
    pub(super) usual_price: Energy,
    /// Present rate of the costly link.
    pub(super) rate: Bitrate,
    /// Cost of an activation: a promotion and a tail.
    pub(super) activation_cost: Energy,
}

impl Newsvendor {
    /// Whether the costly link should stay in use; see the [module documentation](self).
    pub(super) fn should_keep_link(&self) -> bool {
        let spread = self.others_expected.std_dev.max(MIN_STD_DEV).bytes() as f64;
        let need = self.remaining.bytes() as f64 - self.others_expected.mean.bytes() as f64;
        let (current, usual) = (joules_per_byte(self.current_price), joules_per_byte(self.usual_price));
        let activation = self.activation_cost.as_joules_f64() * ACTIVATION_WEIGHT;
        let near_bytes = (self.rate * Forecast::DECAY_TIME).bytes() as f64;
        // Expected cost of fetching `bytes` more before going on standby, with a normally distributed demand.
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

/// How long before its deadline the last byte should arrive.
pub(super) const DEADLINE_MARGIN: Duration = Duration::from_millis(300);

fn joules_per_byte(megabyte: Energy) -> f64 {
    megabyte.as_joules_f64() / 1e6
}

/// Density of the standard normal distribution.
fn normal_density(z: f64) -> f64 {
    const ROOT_2_PI: f64 = 2.506_628_274_631;
    libm::exp(-z * z / 2.0) / ROOT_2_PI
}

/// Probability that a standard normal variable exceeds `z`.
fn upper_tail(z: f64) -> f64 {
    0.5 * libm::erfc(z * core::f64::consts::FRAC_1_SQRT_2)
}

/// Weight of an activation's cost. Our choice: with 1 radios are activated more often (`marline-lab reproduce greenbag
/// --sim --case X-fluct`).
const ACTIVATION_WEIGHT: f64 = 2.5;
/// Lower bound of the forecast's standard deviation: about one request.
const MIN_STD_DEV: DataSize = DataSize::from_kib(32);
/// Number of amounts that are evaluated.
const STEPS: u32 = 80;

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// GreenBag's radios at 3 Mbit/s each: an extra megabyte over LTE costs 4.37 J, a tail 15.12 J.
    /// `remaining` bytes are missing; the other links are expected to bring `mean` of them, with a standard deviation of `spread`.
    fn newsvendor(remaining: u64, mean: u64, spread: u64) -> Newsvendor {
        Newsvendor {
            remaining: DataSize::from_bytes(remaining),
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
    fn certain_demand_is_fetched_and_certain_surplus_is_not() {
        assert!(newsvendor(45 * MB, 40 * MB, MB / 10).should_keep_link());
        assert!(!newsvendor(39 * MB, 40 * MB, MB / 10).should_keep_link());
        assert!(!newsvendor(0, MB, MB).should_keep_link());
    }

    #[test]
    fn uncertainty_justifies_a_few_bytes_but_not_many() {
        // An even chance that nothing is needed: bytes that avoid an activation are cheap if the uncertainty is small.
        assert!(newsvendor(40 * MB, 40 * MB, MB).should_keep_link());
        assert!(newsvendor(39 * MB, 40 * MB, MB).should_keep_link());
        assert!(!newsvendor(36 * MB, 40 * MB, MB).should_keep_link());
        // With a large uncertainty the cost of the bytes is certain and the activation is not.
        assert!(!newsvendor(36 * MB, 40 * MB, 20 * MB).should_keep_link());
    }

    #[test]
    fn a_link_is_used_longer_while_it_is_fast() {
        let standby_threshold = |millijoules| {
            let with_need = |need: u64| Newsvendor {
                current_price: Energy::from_millijoules(millijoules),
                ..newsvendor(50 * MB, 50 * MB - need, 4 * MB)
            };
            (0..200).map(|n| n * MB / 10).find(|need| with_need(*need).should_keep_link())
        };
        let (fast, usual, slow) = (standby_threshold(2000), standby_threshold(4370), standby_threshold(6000));
        assert!(fast <= usual && usual <= slow, "{fast:?} {usual:?} {slow:?}");
    }

    #[test]
    fn the_costly_link_goes_on_standby_if_activation_is_free() {
        let free = Newsvendor { activation_cost: Energy::ZERO, ..newsvendor(41 * MB, 40 * MB, 4 * MB) };
        assert!(!free.should_keep_link());
    }
}
