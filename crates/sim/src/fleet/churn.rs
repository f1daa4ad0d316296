//! A fleet in which boxes come and go, matched anew each second.
//!
//! In: a plan, which share of boxes is replaced, what staying is worth, how much work a matching may do. Out: of each second what
//! all gain, what no plan exceeds, and how many boxes had to move.
//!
//! 1. A box that goes makes place for one that comes: there are always as many, and what relays have stays.
//! 2. The matching knows the last prices and where everybody is; who came is nowhere.
//! 3. A box has moved if it had a relay and has another one or none.

use marline_core::assign::{Prices, Solver, SwitchingCost, WarmStart};
use marline_core::units::{Bitrate, Ratio};

use super::topology::{EdgeSpec, Fleet, FleetSpec, instance};
use crate::rng::{Purpose, RandomStream};

/// A fleet at one moment.
#[derive(Clone, Debug)]
pub struct Churn {
    fleet: Fleet,
    edges: Vec<EdgeSpec>,
    capacities: Vec<Bitrate>,
    assignment: Vec<Option<usize>>,
    prices: Prices,
    rng: RandomStream,
}

/// What a matching came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RematchResult {
    /// What all boxes have more than alone.
    pub gain: Bitrate,
    /// What no plan exceeds.
    pub upper_bound: Bitrate,
    /// Boxes that had to move.
    pub moved_edges: usize,
}

impl RematchResult {
    /// The most that is missing to the best plan, as a part of it.
    pub fn gap(&self) -> f64 {
        1.0 - self.gain.bits_per_sec() as f64 / self.upper_bound.bits_per_sec().max(1) as f64
    }
}

impl Churn {
    /// The fleet of a plan; nobody has a relay yet.
    pub fn new(plan: &FleetSpec) -> Self {
        let mut fleet = Fleet::new(plan);
        let members = fleet.edges();
        let rooms = fleet.capacities(&members);
        let relays = vec![None; members.len()];
        let rng = RandomStream::new(plan.seed, "churn", 0, Purpose::Other);
        Self {
            fleet,
            edges: members,
            prices: Prices::zero(rooms.len()),
            capacities: rooms,
            assignment: relays,
            rng,
        }
    }

    /// Replaces this share of boxes.
    pub fn replace_edges(&mut self, fraction: Ratio) {
        let count = self.edges.len() as u64;
        for _ in 0..count * u64::from(fraction.ppm()) / 1_000_000 {
            let index = self.rng.below(count) as usize;
            self.edges[index] = self.fleet.next_edge();
            self.assignment[index] = None;
        }
    }

    /// Matches all anew, with so much work.
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
