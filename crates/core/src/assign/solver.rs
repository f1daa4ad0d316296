//! The solver: a plan and a bound that get better with every step.
//!
//! In: an instance; of a re-matching also its prices and where boxes are. Out: after each step the best plan so far, what it gains
//! and what no plan can exceed.
//!
//! 1. Work is counted in candidates looked at; the caller says how much a step may do, and looks at its own clock between
//!    steps. A step ends with the first part that uses the work up: some hundred microseconds late; of a million
//!    boxes 20 ms were seen, and some tens when they are sorted.
//! 2. How work is cut into steps changes nothing: after the same sum of work the answer is the same.
//! 3. The gain never falls and the bound never rises. Of a re-matching the gain may fall by what staying is worth, where a
//!    box goes back to where it was.
//! 4. First a plan by the prices at hand, so that there is one; in a re-matching whoever can stays, and the others take what is
//!    left. Then better prices (`prices`), a plan by them (`build`), a local search (`climb`) and windows (`window`), and a
//!    proof if there are at most [`SMALL`] boxes (`exact`).
//! 5. It ends when gain and bound meet, or when the last of these brings nothing more.
//!
//! One general method was not used. A proof of 8 relays takes milliseconds and one of 50 takes days, while prices are as good as
//! exact for 500.

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

/// What is known before a re-matching.
#[derive(Clone, Copy, Debug)]
pub struct WarmStart<'a> {
    /// The last prices.
    pub prices: &'a Prices,
    /// The relay of each box; none for those that are new or alone. May be shorter than the list of boxes.
    pub relays: &'a [Option<usize>],
    /// What it is worth that boxes stay.
    pub switching_cost: SwitchingCost,
}

/// How far a solver is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What the best plan gains.
    pub gain: Bitrate,
    /// What no plan exceeds.
    pub bound: Bitrate,
    /// Further steps change nothing.
    pub is_done: bool,
}

impl Progress {
    /// How much less than the bound the gain is: the most that is missing to the best plan.
    pub fn relative_gap(&self) -> f64 {
        let (gain, bound) = (self.gain.bits_per_sec() as f64, self.bound.bits_per_sec() as f64);
        if bound > 0.0 { 1.0 - gain / bound } else { 0.0 }
    }
}

/// A search for the best plan of an instance.
#[derive(Clone, Debug)]
pub struct Solver<'a> {
    instance: &'a Instance,
    /// Where boxes are, as candidates; empty for a first matching.
    current: Vec<u32>,
    switching_cost: SwitchingCost,
    dual_ascent: DualAscent,
    /// The plan that is worked on, and the one of the stage before while that is better.
    assignment: Assignment,
    previous: Option<Assignment>,
    bound: Bitrate,
    stage: SolverStage,
    /// Work asked for, and done.
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
    /// A solver that has not begun.
    pub fn new(instance: &'a Instance, warm_start: Option<WarmStart<'_>>) -> Self {
        let zero = Prices::zero(instance.relay_count());
        let (prices, switching_cost) =
            warm_start.map_or((&zero, SwitchingCost::default()), |before| (before.prices, before.switching_cost));
        let current = warm_start.map_or(vec![], |before| current_candidates(instance, before.relays));
        let problem = ReducedInstance::new(instance, &current, switching_cost);
        let mut assignment = Assignment::new(problem);
        for (edge, candidate) in current.iter().enumerate().filter(|(_, home)| **home != NONE) {
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

    /// Does so much more work, and says how far it is.
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

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let gain = Bitrate::from_bits_per_sec(self.best().rate_gain.max(0) as u64);
        Progress { gain, bound: self.bound.max(gain), is_done: matches!(self.stage, SolverStage::Done) }
    }

    /// The best plan so far.
    pub fn matching(&self) -> Matching {
        Matching::new(self.instance, &self.best().choice)
    }

    /// The best prices so far.
    pub fn prices(&self) -> Prices {
        Prices::new(self.dual_ascent.best.iter().copied())
    }

    fn best(&self) -> &Assignment {
        match &self.previous {
            Some(spare) if spare.gain > self.assignment.gain => spare,
            _ => &self.assignment,
        }
    }

    /// One part of the work, as much as must be done at once.
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

    /// Goes on with the better one of the two plans.
    fn finish_local_search(&mut self) {
        let problem = ReducedInstance::new(self.instance, &self.current, self.switching_cost);
        if let Some(previous) = self.previous.take().filter(|spare| spare.gain > self.assignment.gain) {
            self.assignment = previous;
        }
        self.stage = SolverStage::NeighborhoodSearch(NeighborhoodSearch::new(
            problem,
            self.instance.edge_count() > MAX_EXACT_EDGES,
        ));
    }

    /// Tries a proof, if there are few boxes.
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

/// Where boxes are, as candidates of this instance; empty if nobody is anywhere.
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
    if candidates.iter().all(|home| *home == NONE) { vec![] } else { candidates }
}

/// The most boxes for which a proof is tried. measured: 60 boxes of 8 relays take 0.1 to 0.3 s in the mean.
const MAX_EXACT_EDGES: usize = 100;
