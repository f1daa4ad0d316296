//! One look at all boxes under prices: the dual bound, what each relay would carry, and who is nearly undecided.
//!
//! In: a view, prices, a band. Out: U(λ) = Σ_s λ_s R(s) + Σ_i max(0, max_e (g_e − λ_s w_e)), which no plan exceeds whatever the
//! prices are; a smooth function near it; loads; ties.
//!
//! 1. U is a sum of maxima: it has edges where boxes change their minds, and its slope there says little. Where a box's two best
//!    choices are within h, the smooth function takes for their maximum a parabola that meets both (at most h/4 higher). Its slope
//!    in a relay's price is the relay's room less the load, in which such a box counts for both choices in part.
//! 2. h is the band's share of what the best choice is worth, so that heavy and light boxes are undecided alike. That it moves with
//!    prices, too, is left out of the slope: a quarter of the band at most.
//! 3. A tie keeps what the second derivative needs. Of very many each n-th box is kept, n-fold.
//! 4. Rounding must not make the bound too low: each of n summands may be wrong by a few units in the last place of itself and
//!    of the sum so far; all of that is added to it.
//! 5. A look is taken in parts, a few thousand boxes at a time.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::NONE;
use super::reduced_values::ReducedInstance;

/// A look, done or under way.
#[derive(Clone, Debug, Default)]
pub(super) struct DualEval {
    band: f64,
    /// Boxes that were looked at.
    evaluated: usize,
    /// Σ λR and the worths of best choices, then the worths of staying alone.
    value: f64,
    direct: f64,
    /// What rule 1 adds.
    smoothing: f64,
    /// Of each relay in bits per second; the last one is nowhere.
    pub(super) load: Vec<f64>,
    pub(super) ties: Vec<NearTie>,
}

/// A box that is nearly undecided: two relays (or nowhere), what it takes up there, and half of 1/h.
#[derive(Clone, Copy, Debug)]
pub(super) struct NearTie {
    pub(super) relays: [u32; 2],
    pub(super) loads: [f64; 2],
    pub(super) curvature: f64,
}

impl DualEval {
    /// A look that begins.
    pub(super) fn new(problem: ReducedInstance<'_>, prices: &[f64], band: f64) -> Self {
        let relays = problem.instance.relay_count();
        let capacity_cost = (0..relays).map(|relay| prices[relay] * problem.instance.capacity_bits(relay));
        Self { band, value: capacity_cost.sum(), load: vec![0.0; relays + 1], ..Self::default() }
    }

    /// Looks at some more boxes, and gives the work that this was.
    pub(super) fn advance(&mut self, problem: ReducedInstance<'_>, prices: &[f64]) -> u64 {
        let end = (self.evaluated + BATCH).min(problem.instance.edge_count());
        let stride = 1 + problem.instance.edge_count() / MAX_TIES;
        let (from, mut work) = (self.evaluated, 0);
        for edge in from..end {
            let candidates = problem.instance.candidate_range(edge).len();
            work += candidates as u64 + 1;
            if candidates > 0 {
                self.add_edge(problem, prices, edge, stride);
            }
        }
        self.evaluated = end;
        work
    }

    /// Whether all boxes were looked at.
    pub(super) fn is_done(&self, problem: ReducedInstance<'_>) -> bool {
        self.evaluated == problem.instance.edge_count()
    }

    /// The dual bound (rule 4).
    pub(super) fn bound(&self) -> f64 {
        let summands = (self.evaluated + self.load.len() + 8) as f64;
        self.value - self.direct + summands * f64::EPSILON * (self.value + self.direct)
    }

    /// The smooth function.
    pub(super) fn smooth_value(&self) -> f64 {
        self.value - self.direct + self.smoothing
    }

    fn add_edge(&mut self, problem: ReducedInstance<'_>, prices: &[f64], edge: usize, stride: usize) {
        let top_two = problem.top_two(prices, edge);
        self.value += top_two.best_value;
        self.direct += problem.instance.direct_bits(edge);
        let (band_width, difference) = (self.band * top_two.best_value, top_two.best_value - top_two.second_value);
        let side = |choice: u32| match choice {
            NONE => (problem.instance.relay_count(), 0.0),
            candidate => {
                (problem.instance.relay_of(candidate as usize), problem.instance.bits_of(candidate as usize))
            }
        };
        let (relay, load) = side(top_two.best);
        if difference >= band_width {
            self.load[relay] += load;
            return;
        }
        let (other, other_load) = side(top_two.second);
        let part = 0.5 + 0.5 * difference / band_width;
        self.load[relay] += part * load;
        self.load[other] += (1.0 - part) * other_load;
        self.smoothing += (difference + band_width) * (difference + band_width) / (4.0 * band_width) - difference;
        if edge.is_multiple_of(stride) {
            let curvature = 0.5 / band_width * stride as f64;
            self.ties.push(NearTie { relays: [relay as u32, other as u32], loads: [load, other_load], curvature });
        }
    }
}

/// Boxes looked at at a time. chosen: some 50 µs.
const BATCH: usize = 4096;
/// About so many boxes may become ties. measured on 1,000 relays and 1,000,000 boxes: the same prices as with all of them.
const MAX_TIES: usize = 200_000;
