//! Evaluation of the dual at given prices: the dual bound, the load of each relay, and the edges that are near a
//! tie.
//!
//! The bound is U(λ) = Σ_s λ_s R(s) + Σ_i max(0, max_e (g_e − λ_s w_e)) for edges i and their candidates e with
//! rate w_e. No matching exceeds it, whatever the prices are. A smoothed function close to U and its derivatives
//! serve the Newton step ([`super::newton_step`]).
//!
//! 1. U is a sum of maxima: it has kinks where edges change their choices, and its slope there says little. Where
//!    the values of an edge's two best choices are within h of each other, the smoothed function replaces their
//!    maximum by a parabola that joins both sides (at most h/4 higher). Its slope in a relay's price is the relay's
//!    capacity minus its load, where such an edge counts partly for both choices.
//! 2. h is the band times the value of the best choice, so that heavy and light edges are treated alike. The slope
//!    ignores that h itself depends on the prices; the error is at most a quarter of the band.
//! 3. A tie stores what the second derivative needs. If there are very many edges, every n-th tie is stored with
//!    n-fold weight.
//! 4. Rounding must not make the bound too low. Each of n summands may be wrong by a few units in the last place of
//!    itself and of the sum so far; all of that is added to the bound.
//! 5. An evaluation is done in parts of a few thousand edges.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::NONE;
use super::reduced_values::ReducedInstance;

/// An evaluation, complete or in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct DualEval {
    band: f64,
    /// Number of edges evaluated so far.
    evaluated: usize,
    /// `value`: Σ λR plus the values of the best choices. `direct`: sum of the direct rates.
    value: f64,
    direct: f64,
    /// Difference between the smoothed function and U (rule 1).
    smoothing: f64,
    /// Load of each relay in bits per second; the last element stands for "no relay".
    pub(super) load: Vec<f64>,
    pub(super) ties: Vec<NearTie>,
}

/// An edge near a tie: its two best relays (or none), its loads there, and 1/(2h), the second derivative of the
/// parabola.
#[derive(Clone, Copy, Debug)]
pub(super) struct NearTie {
    pub(super) relays: [u32; 2],
    pub(super) loads: [f64; 2],
    pub(super) curvature: f64,
}

impl DualEval {
    /// Starts an evaluation at these prices.
    pub(super) fn new(problem: ReducedInstance<'_>, prices: &[f64], band: f64) -> Self {
        let relays = problem.instance.relay_count();
        let capacity_cost = (0..relays).map(|relay| prices[relay] * problem.instance.capacity_bits(relay));
        Self { band, value: capacity_cost.sum(), load: vec![0.0; relays + 1], ..Self::default() }
    }

    /// Evaluates some more edges, and returns the work.
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

    /// Whether all edges were evaluated.
    pub(super) fn is_done(&self, problem: ReducedInstance<'_>) -> bool {
        self.evaluated == problem.instance.edge_count()
    }

    /// The dual bound, with the allowance for rounding (rule 4).
    pub(super) fn bound(&self) -> f64 {
        let summands = (self.evaluated + self.load.len() + 8) as f64;
        self.value - self.direct + summands * f64::EPSILON * (self.value + self.direct)
    }

    /// Value of the smoothed function.
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
        // Not near a tie: the edge counts only for its best choice.
        if difference >= band_width {
            self.load[relay] += load;
            return;
        }
        let (other, other_load) = side(top_two.second);
        // The parabola's slope divides the edge between both choices, half and half at an exact tie.
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

/// Edges evaluated at a time. Our choice: about 50 µs.
const BATCH: usize = 4096;
/// Approximate limit of stored ties. Measured on 1,000 relays and 1,000,000 edges: the same prices as with all
/// ties.
const MAX_TIES: usize = 200_000;
