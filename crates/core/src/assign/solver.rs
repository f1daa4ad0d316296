//! Solver: returns a matching and an upper bound, which improve with every step.
//!
//! 1. Work is counted in candidates evaluated. The caller sets the work of a step and checks its own clock between
//!    steps. A step ends with the first part that exhausts its work, so it is a few hundred microseconds late; with
//!    a million edges 20 ms were measured, and several times that for the part that sorts them.
//! 2. The division of work into steps does not matter: after the same total work the result is the same.
//! 3. The gain never decreases and the bound never increases. In a repeated matching, the gain may decrease by at
//!    most the switching bonus when an edge returns to its present relay.
//! 4. The stages are: a first matching by the available prices, so that there is a result at once (in a repeated
//!    matching, edges keep their relays where possible, and the others take what is left); better prices
//!    ([`super::prices`]); a new matching by them ([`super::regret_greedy`]); local search
//!    ([`super::local_search`]); large neighborhood search ([`super::lns`]); and an exact proof if there are at
//!    most `MAX_EXACT_EDGES` edges ([`super::branch_and_bound`]).
//! 5. It ends when gain and bound meet, or when the last stage is exhausted.
//!
//! A single general method was rejected: a proof for 8 relays takes milliseconds and one for 50 takes days, while
//! prices are nearly exact for 500.

use alloc::vec;
use alloc::vec::Vec;

use super::assignment::Assignment;
use super::branch_and_bound::BranchAndBound;
use super::instance::{Instance, NONE};
use super::lns::NeighborhoodSearch;
use super::local_search::LocalSearch;
use super::matching::Matching;
use super::prices::{DualAscent, Prices, bound_as_rate};
use super::reduced_values::{ReducedInstance, SwitchingCost};
use super::regret_greedy::RegretGreedy;
use crate::units::Bitrate;

/// State from an earlier matching, for a repeated one.
#[derive(Clone, Copy, Debug)]
pub struct WarmStart<'a> {
    /// The earlier prices.
    pub prices: &'a Prices,
    /// Present relay of each edge; `None` for new edges and those without relay. May be shorter than the list of
    /// edges.
    pub relays: &'a [Option<usize>],
    /// Bonus for edges that keep their relay.
    pub switching_cost: SwitchingCost,
}

/// Progress of a solver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Gain of the best matching so far.
    pub gain: Bitrate,
    /// Upper bound on the gain of every matching.
    pub bound: Bitrate,
    /// Whether further steps change nothing.
    pub is_done: bool,
}

impl Progress {
    /// Distance between gain and bound, relative to the bound: the optimal matching is better by at most this
    /// share.
    pub fn relative_gap(&self) -> f64 {
        let (gain, bound) = (self.gain.bits_per_sec() as f64, self.bound.bits_per_sec() as f64);
        if bound > 0.0 { 1.0 - gain / bound } else { 0.0 }
    }
}

/// Search for the optimal matching of an instance.
#[derive(Clone, Debug)]
pub struct Solver<'a> {
    instance: &'a Instance,
    /// Present candidate of each edge; empty for a first matching.
    current: Vec<u32>,
    switching_cost: SwitchingCost,
    dual_ascent: DualAscent,
    /// The matching being improved, and that of the earlier stage while it is better.
    assignment: Assignment,
    previous: Option<Assignment>,
    bound: Bitrate,
    stage: SolverStage,
    /// Total work requested, and total work done.
    work_budget: u64,
    work_done: u64,
}

#[derive(Clone, Debug)]
enum SolverStage {
    InitialGreedy(RegretGreedy),
    DualAscent,
    PricedGreedy(RegretGreedy),
    LocalSearch(LocalSearch),
    NeighborhoodSearch(NeighborhoodSearch),
    BranchAndBound(BranchAndBound),
    Done,
}

impl<'a> Solver<'a> {
    /// A solver that has done no work yet.
    pub fn new(instance: &'a Instance, warm_start: Option<WarmStart<'_>>) -> Self {
        let zero = Prices::zero(instance.relay_count());
        let (prices, switching_cost) = warm_start
            .map_or((&zero, SwitchingCost::default()), |warm_start| (warm_start.prices, warm_start.switching_cost));
        let current = warm_start.map_or(vec![], |warm_start| current_candidates(instance, warm_start.relays));
        let problem = ReducedInstance::new(instance, &current, switching_cost);
        let mut assignment = Assignment::new(problem);
        for (edge, candidate) in current.iter().enumerate().filter(|(_, candidate)| **candidate != NONE) {
            if assignment.has_capacity(problem, *candidate) {
                assignment.assign(problem, edge, *candidate);
            }
        }
        let search = DualAscent::new(ReducedInstance::without_current(instance), prices, !current.is_empty());
        let stage = SolverStage::InitialGreedy(RegretGreedy::new(&search.best, assignment.clone()));
        let bound = Instance::MAX_CAPACITY * 2;
        Self {
            instance,
            current,
            switching_cost,
            dual_ascent: search,
            assignment,
            previous: None,
            bound,
            stage,
            work_budget: 0,
            work_done: 0,
        }
    }

    /// Does this much more work and returns the progress.
    pub fn step(&mut self, work: u64) -> Progress {
        self.work_budget = self.work_budget.saturating_add(work);
        while self.work_done < self.work_budget && !matches!(self.stage, SolverStage::Done) {
            self.work_done = self.work_done.saturating_add(self.run_part().max(1));
            if self.progress().gain >= self.bound {
                self.stage = SolverStage::Done;
            }
        }
        self.progress()
    }

    /// The present progress.
    pub fn progress(&self) -> Progress {
        let gain = Bitrate::from_bits_per_sec(self.best().rate_gain.max(0) as u64);
        Progress { gain, bound: self.bound.max(gain), is_done: matches!(self.stage, SolverStage::Done) }
    }

    /// The best matching so far.
    pub fn matching(&self) -> Matching {
        Matching::new(self.instance, &self.best().choice)
    }

    /// The best prices so far.
    pub fn prices(&self) -> Prices {
        Prices::new(self.dual_ascent.best.iter().copied())
    }

    fn best(&self) -> &Assignment {
        match &self.previous {
            Some(previous) if previous.gain > self.assignment.gain => previous,
            _ => &self.assignment,
        }
    }

    /// Does one indivisible part of the work and returns its amount.
    fn run_part(&mut self) -> u64 {
        let problem = ReducedInstance::new(self.instance, &self.current, self.switching_cost);
        let prices = &self.dual_ascent.best;
        match &mut self.stage {
            SolverStage::InitialGreedy(greedy) => {
                let work = greedy.advance(problem);
                if greedy.is_done() {
                    self.assignment = core::mem::replace(greedy, RegretGreedy::new(&[], Assignment::new(problem)))
                        .into_assignment();
                    self.stage = SolverStage::DualAscent;
                }
                work
            }
            SolverStage::DualAscent => {
                // The bound is that of the plain instance: switching costs are a preference and must not raise it.
                let work = self.dual_ascent.advance(ReducedInstance::without_current(self.instance));
                self.bound = self.bound.min(bound_as_rate(self.dual_ascent.bound));
                if self.dual_ascent.is_done() {
                    self.stage = SolverStage::PricedGreedy(RegretGreedy::new(
                        &self.dual_ascent.best,
                        Assignment::new(problem),
                    ));
                }
                work
            }
            SolverStage::PricedGreedy(greedy) => {
                let work = greedy.advance(problem);
                if greedy.is_done() {
                    let assignment = core::mem::replace(greedy, RegretGreedy::new(&[], Assignment::new(problem)))
                        .into_assignment();
                    self.previous = Some(core::mem::replace(&mut self.assignment, assignment));
                    self.stage = SolverStage::LocalSearch(LocalSearch::default());
                }
                work
            }
            SolverStage::LocalSearch(search) => {
                let work = search.advance(problem, prices, &mut self.assignment);
                if search.is_done() {
                    self.finish_local_search();
                }
                work
            }
            SolverStage::NeighborhoodSearch(search) => {
                let work = search.advance(problem, prices, &mut self.assignment);
                if search.is_done() {
                    self.finish_windows();
                }
                work
            }
            SolverStage::BranchAndBound(search) => {
                let work = search.advance(problem);
                if search.gain > self.assignment.gain {
                    let moves = (0_u32..).zip(search.best.iter().copied());
                    self.assignment.assign_all(problem, &moves.collect::<Vec<_>>());
                }
                self.bound = self.bound.min(bound_as_rate(search.bound()));
                if search.is_done() {
                    self.stage = SolverStage::Done;
                }
                work
            }
            SolverStage::Done => 1,
        }
    }

    /// Continues with the better one of the two matchings.
    fn finish_local_search(&mut self) {
        let problem = ReducedInstance::new(self.instance, &self.current, self.switching_cost);
        if let Some(previous) = self.previous.take().filter(|previous| previous.gain > self.assignment.gain) {
            self.assignment = previous;
        }
        self.stage = SolverStage::NeighborhoodSearch(NeighborhoodSearch::new(
            problem,
            self.instance.edge_count() > MAX_EXACT_EDGES,
        ));
    }

    /// Starts an exact proof if there are few edges.
    fn finish_windows(&mut self) {
        let problem = ReducedInstance::new(self.instance, &self.current, self.switching_cost);
        self.stage = if self.instance.edge_count() <= MAX_EXACT_EDGES {
            SolverStage::BranchAndBound(
                BranchAndBound::new(problem, &self.dual_ascent.best, &self.assignment.choice).0,
            )
        } else {
            SolverStage::Done
        };
    }
}

/// Present relays as candidates of this instance; empty if no edge has one.
fn current_candidates(instance: &Instance, relays: &[Option<usize>]) -> Vec<u32> {
    let current = |(edge, relay): (usize, &Option<usize>)| {
        let relay = (*relay)?;
        instance
            .candidate_range(edge)
            .find(|candidate| instance.relay_of(*candidate) == relay)
            .map(|candidate| candidate as u32)
    };
    let candidates =
        relays.iter().take(instance.edge_count()).enumerate().map(|pair| current(pair).unwrap_or(NONE));
    let candidates: Vec<u32> = candidates.collect();
    if candidates.iter().all(|candidate| *candidate == NONE) { vec![] } else { candidates }
}

/// Most edges for which a proof is tried. Measured: 60 edges of 8 relays take 0.1 to 0.3 s on average.
const MAX_EXACT_EDGES: usize = 100;
