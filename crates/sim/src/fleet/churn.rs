//! Churn of a simulated fleet: edges are replaced, and all are matched to relays again.
//!
//! Each call of [`Churn::rematch`] returns the gain of the matching, an upper bound for any matching, and the
//! number of edges that changed their relay. The caller chooses the share of edges to replace, the switching cost
//! and the work budget of the solver.
//!
//! 1. Each edge that leaves is replaced by a new one. The number of edges and the capacities of the relays stay
//!    constant.
//! 2. The solver starts warm, from the previous prices and assignment; a new edge has no assignment.
//! 3. An edge counts as moved if it had a relay and now has a different one or none.

use marline_core::assign::{Prices, Solver, SwitchingCost, WarmStart};
use marline_core::units::{Bitrate, Ratio};

use super::topology::{EdgeSpec, Fleet, FleetSpec, instance};
use crate::rng::{Purpose, RandomStream};

/// A fleet with its current matching.
#[derive(Clone, Debug)]
pub struct Churn {
    fleet: Fleet,
    edges: Vec<EdgeSpec>,
    capacities: Vec<Bitrate>,
    assignment: Vec<Option<usize>>,
    prices: Prices,
    rng: RandomStream,
}

/// Quality of one matching, with an upper bound for comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RematchResult {
    /// Sum of the edges' rates through their relays, less their direct rates.
    pub gain: Bitrate,
    /// Upper bound of the gain of any matching.
    pub upper_bound: Bitrate,
    /// Edges that had a relay and got a different one or none.
    pub moved_edges: usize,
}

impl RematchResult {
    /// Upper limit of the relative distance to the best matching.
    pub fn gap(&self) -> f64 {
        1.0 - self.gain.bits_per_sec() as f64 / self.upper_bound.bits_per_sec().max(1) as f64
    }
}

impl Churn {
    /// Draws a fleet; no edge has a relay yet.
    pub fn new(spec: &FleetSpec) -> Self {
        let mut fleet = Fleet::new(spec);
        let edges = fleet.edges();
        let capacities = fleet.capacities(&edges);
        let assignment = vec![None; edges.len()];
        let rng = RandomStream::new(spec.seed, "churn", 0, Purpose::Other);
        Self { fleet, edges, prices: Prices::zero(capacities.len()), capacities, assignment, rng }
    }

    /// Replaces this fraction of the edges, drawn at random with repetition.
    pub fn replace_edges(&mut self, fraction: Ratio) {
        let count = self.edges.len() as u64;
        for _ in 0..count * u64::from(fraction.ppm()) / 1_000_000 {
            let index = self.rng.below(count) as usize;
            self.edges[index] = self.fleet.next_edge();
            self.assignment[index] = None;
        }
    }

    /// Matches all edges again, within the work budget.
    pub fn rematch(&mut self, switching_cost: SwitchingCost, work_budget: u64) -> RematchResult {
        let instance = instance(&self.capacities, &self.edges);
        let warm_start = WarmStart { prices: &self.prices, relays: &self.assignment, switching_cost };
        let mut solver = Solver::new(&instance, Some(warm_start));
        solver.step(work_budget);
        let matching = solver.matching();
        let moved =
            matching.relays().zip(&self.assignment).filter(|(now, before)| before.is_some() && now != *before);
        let moved = moved.count();
        self.prices = solver.prices();
        self.assignment = matching.relays().collect();
        RematchResult { gain: matching.gain(), upper_bound: self.prices.bound(&instance), moved_edges: moved }
    }
}
