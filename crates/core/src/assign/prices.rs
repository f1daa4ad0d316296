//! Prices of relays, and the search for those whose dual bound is lowest.
//!
//! In: a view, prices to begin with. Out: the best prices so far and their bound, after each step.
//!
//! 1. A price is what a bit per second of a relay is worth to those who would have it, from 0 to 1: nobody gains more than a
//!    bit by a bit.
//! 2. Prices follow Newton's direction on the smooth dual (`newton`) as far as that falls: all the way, else two fifths of it, else
//!    a sixth.
//! 3. When a step no longer brings much, or none does, the band is made narrower. It begins wide, so that relays far away feel
//!    a shortage in one step, and ends where hardly a tie is left; from prices that are known it begins narrow.
//! 4. Every look is a bound, whatever it was taken for; the lowest counts.

use alloc::vec;
use alloc::vec::Vec;

use super::dual_bound::DualEval;
use super::instance::Instance;
use super::newton_step;
use super::reduced_values::ReducedInstance;
use crate::units::Bitrate;

/// What a bit per second of each relay is worth.
#[derive(Clone, PartialEq, Debug)]
pub struct Prices(Vec<f64>);

impl Prices {
    /// Nothing costs anything.
    pub fn zero(relays: usize) -> Self {
        Self(vec![0.0; relays])
    }

    /// Those of a list, in the order of relays. What is below 0 or no number is 0, what is above 1 is 1.
    pub fn new(prices: impl IntoIterator<Item = f64>) -> Self {
        Self(prices.into_iter().map(|price| if price > 0.0 { price.min(1.0) } else { 0.0 }).collect())
    }

    /// The price of a relay; that of one which is not there is 0.
    pub fn of(&self, relay: usize) -> f64 {
        self.0.get(relay).copied().unwrap_or(0.0)
    }

    /// The dual bound: no plan of this instance gains more, whatever the prices are.
    pub fn bound(&self, instance: &Instance) -> Bitrate {
        let prices = self.to_vec(instance);
        let problem = ReducedInstance::without_current(instance);
        let mut eval = DualEval::new(problem, &prices, 0.0);
        while !eval.is_done(problem) {
            eval.advance(problem, &prices);
        }
        bound_as_rate(eval.bound())
    }

    /// One for each relay.
    pub(super) fn to_vec(&self, instance: &Instance) -> Vec<f64> {
        (0..instance.relay_count()).map(|relay| self.of(relay)).collect()
    }
}

/// A bound as a rate, rounded up, and never above what all relays together may have.
pub(super) fn bound_as_rate(bound: f64) -> Bitrate {
    Bitrate::from_bits_per_sec(libm::ceil(bound).max(0.0) as u64).min(Instance::MAX_CAPACITY * 2)
}

/// The search.
#[derive(Clone, Debug)]
pub(super) struct DualAscent {
    band: f64,
    /// The narrowest one.
    min_band: f64,
    /// The lowest bound, and its prices.
    pub(super) bound: f64,
    pub(super) best: Vec<f64>,
    /// Where the search stands, and what was seen there.
    prices: Vec<f64>,
    base_eval: DualEval,
    /// Where it would go all the way, and how much of that is tried; nothing: it looks anew at where it stands.
    direction: Vec<f64>,
    step_share: f64,
    trial: Vec<f64>,
    trial_eval: DualEval,
}

impl DualAscent {
    /// Begins at these prices; `known`: they are near the best ones.
    pub(super) fn new(problem: ReducedInstance<'_>, prices: &Prices, is_warm: bool) -> Self {
        let prices = prices.to_vec(problem.instance);
        let (band, last) = if is_warm { WARM_BANDS } else { COLD_BANDS };
        let look = DualEval::new(problem, &prices, band);
        Self {
            band,
            min_band: last,
            bound: f64::INFINITY,
            best: prices.clone(),
            base_eval: DualEval::default(),
            direction: Vec::new(),
            step_share: 0.0,
            trial: prices.clone(),
            prices,
            trial_eval: look,
        }
    }

    /// Whether the bands are used up.
    pub(super) fn is_done(&self) -> bool {
        self.band < self.min_band
    }

    /// Some more of it; gives the work that this was.
    pub(super) fn advance(&mut self, problem: ReducedInstance<'_>) -> u64 {
        let work = self.trial_eval.advance(problem, &self.trial);
        if !self.trial_eval.is_done(problem) {
            return work;
        }
        if self.trial_eval.bound() < self.bound {
            self.bound = self.trial_eval.bound();
            self.best.clone_from(&self.trial);
        }
        let smooth = self.trial_eval.smooth_value();
        if self.step_share == 0.0 {
            self.base_eval = core::mem::take(&mut self.trial_eval);
            return work + self.new_direction(problem);
        }
        let relative_gain = (self.base_eval.smooth_value() - smooth) / smooth.max(1.0);
        if relative_gain > 0.0 {
            self.base_eval = core::mem::take(&mut self.trial_eval);
            self.prices.clone_from(&self.trial);
        }
        if relative_gain > 0.0 && relative_gain >= self.band * MIN_PROGRESS {
            return work + self.new_direction(problem);
        }
        if relative_gain <= 0.0 && self.step_share > MIN_STEP {
            self.try_step(problem, self.step_share * STEP_FACTOR);
            return work;
        }
        self.band *= BAND_FACTOR;
        self.step_share = 0.0;
        self.trial.clone_from(&self.prices);
        self.trial_eval = DualEval::new(problem, &self.trial, self.band);
        work
    }

    /// A new direction from where the search stands.
    fn new_direction(&mut self, problem: ReducedInstance<'_>) -> u64 {
        let (change, work) =
            newton_step::direction(problem.instance, &self.prices, &self.base_eval, self.band * MAX_STEP_BANDS);
        self.direction = change;
        self.try_step(problem, 1.0);
        work
    }

    fn try_step(&mut self, problem: ReducedInstance<'_>, share: f64) {
        self.step_share = share;
        let steps = self.prices.iter().zip(&self.direction);
        self.trial = steps.map(|(price, change)| (price + share * change).clamp(0.0, 1.0)).collect();
        self.trial_eval = DualEval::new(problem, &self.trial, self.band);
    }
}

/// The first band and the narrowest one, from prices that are not known and from those of a moment ago. measured: the former end
/// within 0.004 % of the linear program on 50 relays and 1,000 boxes, and within 0.002 % on 500 and 100,000. The latter leave most
/// for the local search: of a churn of 1 % a second nothing is lost by them.
const COLD_BANDS: (f64, f64) = (0.3, 3e-4);
const WARM_BANDS: (f64, f64) = (0.004, 2e-3);
const BAND_FACTOR: f64 = 0.4;
/// How far a price may go in one step, in bands: beyond that the ties are others.
const MAX_STEP_BANDS: f64 = 2.0;
/// Rule 2: what is tried, and rule 3: what is not much, in bands.
const STEP_FACTOR: f64 = 0.4;
const MIN_STEP: f64 = 0.2;
const MIN_PROGRESS: f64 = 0.005;
