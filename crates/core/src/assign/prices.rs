//! Prices of relays, and the dual ascent that finds the prices with the lowest dual bound.
//!
//! 1. A price is the value of one bit per second of a relay's capacity, from 0 to 1: no edge gains more than one
//!    bit from one bit of capacity.
//! 2. The search follows Newton's direction on the smoothed dual ([`newton_step`]) as far as the smoothed value
//!    falls. It tries the whole step, then two fifths of it, then a sixth.
//! 3. When a step brings little or no progress, the smoothing band (how close the values of an edge's two best
//!    choices must be to count as undecided, see [`super::dual_bound`]) becomes narrower. It begins wide, so that
//!    distant relays are affected by a shortage in one step, and ends where few near ties are left. From known
//!    prices it begins narrow.
//! 4. Every evaluation gives a valid bound, whatever its purpose is; the lowest one counts.

use alloc::vec;
use alloc::vec::Vec;

use super::dual_bound::DualEval;
use super::instance::Instance;
use super::newton_step;
use super::reduced_values::ReducedInstance;
use crate::units::Bitrate;

/// Value of one bit per second of each relay's capacity.
#[derive(Clone, PartialEq, Debug)]
pub struct Prices(Vec<f64>);

impl Prices {
    /// All prices are zero.
    pub fn zero(relays: usize) -> Self {
        Self(vec![0.0; relays])
    }

    /// The prices of a list, in the order of relays. Values below 0 and NaN become 0, values above 1 become 1.
    pub fn new(prices: impl IntoIterator<Item = f64>) -> Self {
        Self(prices.into_iter().map(|price| if price > 0.0 { price.min(1.0) } else { 0.0 }).collect())
    }

    /// Price of a relay; 0 for an unknown relay.
    pub fn of(&self, relay: usize) -> f64 {
        self.0.get(relay).copied().unwrap_or(0.0)
    }

    /// The dual bound: no matching of this instance gains more, whatever the prices are.
    pub fn bound(&self, instance: &Instance) -> Bitrate {
        let prices = self.to_vec(instance);
        let problem = ReducedInstance::without_current(instance);
        let mut eval = DualEval::new(problem, &prices, 0.0);
        while !eval.is_done(problem) {
            eval.advance(problem, &prices);
        }
        bound_as_rate(eval.bound())
    }

    /// One price for each relay of the instance.
    pub(super) fn to_vec(&self, instance: &Instance) -> Vec<f64> {
        (0..instance.relay_count()).map(|relay| self.of(relay)).collect()
    }
}

/// Converts a bound to a rate, rounded up. Limited to twice the highest total capacity, which is above every real
/// bound.
pub(super) fn bound_as_rate(bound: f64) -> Bitrate {
    Bitrate::from_bits_per_sec(libm::ceil(bound).max(0.0) as u64).min(Instance::MAX_CAPACITY * 2)
}

/// Search for the prices with the lowest dual bound.
#[derive(Clone, Debug)]
pub(super) struct DualAscent {
    band: f64,
    /// Narrowest band; the search ends below it.
    min_band: f64,
    /// The lowest bound so far, and its prices.
    pub(super) bound: f64,
    pub(super) best: Vec<f64>,
    /// Current prices of the search, and their evaluation.
    prices: Vec<f64>,
    base_eval: DualEval,
    /// Newton's direction from the current prices, and the share of it that is being tried. Share 0: the current
    /// prices are evaluated again.
    direction: Vec<f64>,
    step_share: f64,
    trial: Vec<f64>,
    trial_eval: DualEval,
}

impl DualAscent {
    /// Starts at these prices. `is_warm`: they are close to the best ones.
    pub(super) fn new(problem: ReducedInstance<'_>, prices: &Prices, is_warm: bool) -> Self {
        let prices = prices.to_vec(problem.instance);
        let (band, last) = if is_warm { WARM_BANDS } else { COLD_BANDS };
        let trial_eval = DualEval::new(problem, &prices, band);
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
            trial_eval,
        }
    }

    /// Whether the band has become narrower than the narrowest one.
    pub(super) fn is_done(&self) -> bool {
        self.band < self.min_band
    }

    /// Does one part of the search and returns its work.
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
        // The current prices were evaluated with a new band: only a direction is needed.
        if self.step_share == 0.0 {
            self.base_eval = core::mem::take(&mut self.trial_eval);
            return work + self.new_direction(problem);
        }
        // Compare the trial with the current prices. An improvement becomes the current point.
        let relative_gain = (self.base_eval.smooth_value() - smooth) / smooth.max(1.0);
        if relative_gain > 0.0 {
            self.base_eval = core::mem::take(&mut self.trial_eval);
            self.prices.clone_from(&self.trial);
        }
        if relative_gain > 0.0 && relative_gain >= self.band * MIN_PROGRESS {
            // Good progress: continue with a new direction and the same band.
            return work + self.new_direction(problem);
        }
        // No improvement: try a shorter step in the same direction.
        if relative_gain <= 0.0 && self.step_share > MIN_STEP {
            self.try_step(problem, self.step_share * STEP_FACTOR);
            return work;
        }
        // Little progress, or even the shortest step failed: narrow the band and evaluate the current prices again,
        // because the smoothed function has changed.
        self.band *= BAND_FACTOR;
        self.step_share = 0.0;
        self.trial.clone_from(&self.prices);
        self.trial_eval = DualEval::new(problem, &self.trial, self.band);
        work
    }

    /// Computes a new direction at the current prices and tries the whole step.
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

/// First and narrowest band, for unknown prices and for prices of a moment ago. Measured: the former end within
/// 0.004 % of the linear program on 50 relays and 1,000 edges, and within 0.002 % on 500 relays and 100,000 edges.
/// The latter leave more to the local search; with a churn of 1 % per second nothing is lost by that.
const COLD_BANDS: (f64, f64) = (0.3, 3e-4);
const WARM_BANDS: (f64, f64) = (0.004, 2e-3);
const BAND_FACTOR: f64 = 0.4;
/// Largest change of a price in one step, in bands. Beyond it other edges are near ties, and the direction is no
/// longer valid.
const MAX_STEP_BANDS: f64 = 2.0;
/// Factor of the shorter steps, and the share of the whole step that is not shortened any more (rule 2). Progress
/// below which the band is narrowed (rule 3), in bands.
const STEP_FACTOR: f64 = 0.4;
const MIN_STEP: f64 = 0.2;
const MIN_PROGRESS: f64 = 0.005;
