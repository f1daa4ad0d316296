//! Windows: branch and bound on a few relays and the boxes there that are least decided, all others staying where they are.
//!
//! In: a plan, prices. Out: a better plan.
//!
//! 1. A window is a relay and some of those with which it shares most boxes, in turn. Of all boxes that measured one of them it has
//!    those whose two best choices are nearest to each other under the prices.
//! 2. What is to be decided there is an instance of its own ([`Tree`]): the relays have what is left and what the window's
//!    boxes take up; a box that is elsewhere now has as its own rate what it is worth there.
//! 3. Each relay has its window in turn. When a round brings next to nothing, windows grow: more relays, more boxes, more work
//!    for each. After the round of the largest ones it is done.
//!
//! Larger sweeps of the local search were not used: what is left after it are knots of five and more boxes.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::assignment::Assignment;
use super::branch_and_bound::BranchAndBound;
use super::instance::{Candidate, Instance, NONE};
use super::reduced_values::{ReducedInstance, SwitchingCost};
use crate::units::Bitrate;

/// A search under way.
#[derive(Clone, Debug)]
pub(super) struct NeighborhoodSearch {
    /// The boxes that measured each relay, one relay after the other, and where they begin.
    offsets: Vec<u32>,
    edges_by_relay: Vec<u32>,
    size_index: usize,
    /// Where growing ends.
    size_limit: usize,
    round: usize,
    next_relay: usize,
    /// What the plan gained when the round began.
    gain_before: i64,
    current: Option<Box<Window>>,
}

/// One of them.
#[derive(Clone, Debug)]
struct Window {
    instance: Instance,
    current: Vec<u32>,
    switching_cost: SwitchingCost,
    /// The boxes, and of each candidate in it the candidate outside.
    edges: Vec<u32>,
    outer_candidates: Vec<u32>,
    initial_gain: i64,
    search: BranchAndBound,
    work: u64,
}

/// How large windows are.
#[derive(Clone, Copy, Debug)]
struct WindowSize {
    relays: usize,
    edges: usize,
    /// Candidates looked at.
    work: u64,
}

impl NeighborhoodSearch {
    /// `thorough`: up to the largest windows; else only the first few sizes.
    pub(super) fn new(problem: ReducedInstance<'_>, is_thorough: bool) -> Self {
        let instance = problem.instance;
        let mut offsets = vec![0_u32; instance.relay_count() + 1];
        (0..instance.candidate_count()).for_each(|candidate| offsets[instance.relay_of(candidate) + 1] += 1);
        for relay in 0..instance.relay_count() {
            offsets[relay + 1] += offsets[relay];
        }
        let (mut next, mut edges_by_relay) = (offsets.clone(), vec![0; instance.candidate_count()]);
        for edge in 0..instance.edge_count() {
            for candidate in instance.candidate_range(edge) {
                let slot = &mut next[instance.relay_of(candidate)];
                edges_by_relay[*slot as usize] = edge as u32;
                *slot += 1;
            }
        }
        let largest = if is_thorough { WINDOW_SIZES.len() } else { FEW_SIZES };
        Self {
            offsets,
            edges_by_relay,
            size_index: 0,
            size_limit: largest,
            round: 0,
            next_relay: 0,
            gain_before: 0,
            current: None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.size_index == self.size_limit
    }

    /// Some more of it; gives the work that this was.
    pub(super) fn advance(
        &mut self,
        problem: ReducedInstance<'_>,
        prices: &[f64],
        assignment: &mut Assignment,
    ) -> u64 {
        let size = WINDOW_SIZES[self.size_index];
        if let Some(window) = self.current.as_mut().filter(|window| !window.is_done(size)) {
            let work = window.search.advance(ReducedInstance::new(
                &window.instance,
                &window.current,
                window.switching_cost,
            ));
            window.work += work;
            return work;
        }
        if let Some(window) = self.current.take() {
            window.apply(problem, assignment);
        }
        if self.next_relay == 0 {
            self.gain_before = assignment.gain;
        }
        if self.next_relay == problem.instance.relay_count() {
            self.end_round(assignment.gain);
            return 1;
        }
        self.next_relay += 1;
        let (relays, neighbor_work) = self.neighbors(problem, self.next_relay - 1, size.relays);
        let (edges, edge_work) = self.least_decided(problem, prices, &relays, size.edges);
        let (window, window_work) = Window::new(problem, prices, assignment, &relays, edges);
        self.current = Some(Box::new(window));
        neighbor_work + edge_work + window_work
    }

    fn end_round(&mut self, gain: i64) {
        let grows = gain - self.gain_before <= gain / MIN_ROUND_GAIN;
        self.size_index += usize::from(grows);
        self.round += 1;
        self.next_relay = 0;
    }

    fn edges_of(&self, relay: usize) -> &[u32] {
        &self.edges_by_relay[self.offsets[relay] as usize..self.offsets[relay + 1] as usize]
    }

    /// A relay and others with which it shares boxes: those with which it shares most take turns.
    fn neighbors(&self, problem: ReducedInstance<'_>, relay: usize, count: usize) -> (Vec<usize>, u64) {
        let mut shared = vec![0_u32; problem.instance.relay_count()];
        let mut work = 0;
        for edge in self.edges_of(relay).iter().take(NEIGHBOR_SAMPLE) {
            for candidate in problem.instance.candidate_range(*edge as usize) {
                work += 1;
                shared[problem.instance.relay_of(candidate)] += 1;
            }
        }
        shared[relay] = 0;
        let mut others: Vec<usize> = (0..shared.len()).filter(|other| shared[*other] > 0).collect();
        others.sort_by_key(|other| core::cmp::Reverse(shared[*other]));
        others.truncate(MAX_NEIGHBORS.max(count));
        if !others.is_empty() {
            let turn = self.round % others.len();
            others.rotate_left(turn);
        }
        (core::iter::once(relay).chain(others).take(count).collect(), work)
    }

    /// The boxes of these relays whose two best choices are nearest to each other.
    fn least_decided(
        &self,
        problem: ReducedInstance<'_>,
        prices: &[f64],
        relays: &[usize],
        count: usize,
    ) -> (Vec<u32>, u64) {
        let mut all: Vec<u32> = relays.iter().flat_map(|relay| self.edges_of(*relay)).copied().collect();
        all.sort_unstable();
        all.dedup();
        let mut work = 0;
        let difference = |edge: &u32| {
            work += problem.instance.candidate_range(*edge as usize).len() as u64;
            let two = problem.top_two(prices, *edge as usize);
            (two.best_value - two.second_value, *edge)
        };
        let mut differences: Vec<(f64, u32)> = all.iter().map(difference).collect();
        if differences.len() > count {
            differences.select_nth_unstable_by(count, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            differences.truncate(count);
            differences.sort_unstable_by_key(|(_, edge)| *edge);
        }
        (differences.into_iter().map(|(_, edge)| edge).collect(), work + all.len() as u64)
    }
}

impl Window {
    fn new(
        problem: ReducedInstance<'_>,
        prices: &[f64],
        assignment: &Assignment,
        relays: &[usize],
        edges: Vec<u32>,
    ) -> (Self, u64) {
        let inside =
            |candidate: usize| relays.iter().position(|relay| *relay == problem.instance.relay_of(candidate));
        let mut capacity: Vec<u64> = relays.iter().map(|relay| assignment.remaining[*relay]).collect();
        let assigned = edges.iter().map(|edge| assignment.choice[*edge as usize]).filter(|choice| *choice != NONE);
        for candidate in assigned.map(|choice| choice as usize) {
            if let Some(slot) = inside(candidate) {
                capacity[slot] += problem.instance.rate_of(candidate).bits_per_sec();
            }
        }
        let capacity: Vec<Bitrate> = capacity.into_iter().map(Bitrate::from_bits_per_sec).collect();
        let mut instance = Instance::new(&capacity).expect("a part of what an instance has room for");
        let (mut outer_candidates, mut current, mut matching) = (Vec::new(), Vec::new(), Vec::new());
        for edge in edges.iter().map(|edge| *edge as usize) {
            let assigned_to = assignment.choice[edge];
            let is_outside = assigned_to != NONE && inside(assigned_to as usize).is_none();
            let direct =
                Bitrate::from_bits_per_sec(problem.value(edge, if is_outside { assigned_to } else { NONE }));
            let (mut current_candidate, mut assigned_candidate, mut candidates) = (NONE, NONE, Vec::new());
            for candidate in problem.instance.candidate_range(edge) {
                let Some(relay) = inside(candidate) else { continue };
                let rate = problem.instance.rate_of(candidate);
                // What the instance would leave out has no number in it.
                if rate <= direct || rate > capacity[relay] {
                    continue;
                }
                let number = outer_candidates.len() as u32;
                current_candidate =
                    if problem.current(edge) == candidate as u32 { number } else { current_candidate };
                assigned_candidate = if assigned_to == candidate as u32 { number } else { assigned_candidate };
                outer_candidates.push(candidate as u32);
                candidates.push(Candidate { relay, rate });
            }
            instance.add(direct, &candidates).expect("a box of an instance, with some of its candidates");
            current.push(current_candidate);
            matching.push(assigned_candidate);
        }
        let prices: Vec<f64> = relays.iter().map(|relay| prices[*relay]).collect();
        let inner = ReducedInstance::new(&instance, &current, problem.switching_cost());
        let (search, work) = BranchAndBound::new(inner, &prices, &matching);
        let stay = problem.switching_cost();
        (
            Self {
                initial_gain: search.gain,
                instance,
                current,
                switching_cost: stay,
                edges,
                outer_candidates,
                search,
                work,
            },
            work,
        )
    }

    fn is_done(&self, size: WindowSize) -> bool {
        self.search.is_done() || self.work >= size.work
    }

    /// Takes over what was found.
    fn apply(&self, problem: ReducedInstance<'_>, assignment: &mut Assignment) {
        if self.search.gain <= self.initial_gain {
            return;
        }
        let mut moves = Vec::new();
        for (edge, choice) in self.edges.iter().zip(&self.search.best) {
            let assigned_to = assignment.choice[*edge as usize];
            let to = if *choice == NONE { NONE } else { self.outer_candidates[*choice as usize] };
            // To stay alone in the window is to stay where one is outside.
            let is_inside = assigned_to != NONE && self.outer_candidates.contains(&assigned_to);
            if to != assigned_to && (to != NONE || is_inside) {
                moves.push((*edge, to));
            }
        }
        assignment.assign_all(problem, &moves);
    }
}

/// Rule 3. measured on 50 relays and 1,000 boxes, load 0.9 and 1.2: 40 boxes of two relays leave 0.6 %, 80 leave 0.5, 160 leave
/// 0.3, and 160 of four relays 0.25 and 0.19.
const WINDOW_SIZES: [WindowSize; 8] = [
    WindowSize { relays: 2, edges: 40, work: 60_000 },
    WindowSize { relays: 2, edges: 80, work: 120_000 },
    WindowSize { relays: 2, edges: 160, work: 500_000 },
    WindowSize { relays: 3, edges: 160, work: 1_000_000 },
    WindowSize { relays: 4, edges: 160, work: 2_000_000 },
    WindowSize { relays: 4, edges: 240, work: 4_000_000 },
    WindowSize { relays: 5, edges: 240, work: 8_000_000 },
    WindowSize { relays: 6, edges: 320, work: 16_000_000 },
];
/// Before a proof: so many sizes. measured on 8 relays and 60 boxes, load 1.2: they halve what is missing after a second.
const FEW_SIZES: usize = 3;
/// Which part of the plan a round must gain for another one with windows of the same size.
const MIN_ROUND_GAIN: i64 = 100_000;
/// So many boxes tell which relays are neighbours, and so many neighbours take turns. chosen: a city and those around it.
const NEIGHBOR_SAMPLE: usize = 1000;
const MAX_NEIGHBORS: usize = 8;
