//! Large neighborhood search (LNS): applies branch and bound to a few relays and their least decided edges, while
//! all other edges keep their assignments.
//!
//! 1. A window consists of a relay and some of the relays with which it shares most edges; these take turns. Of all
//!    edges that measured one of its relays, it contains those whose two best choices have the closest reduced
//!    values.
//! 2. The subproblem is an instance of its own for [`BranchAndBound`]. Each relay has its remaining capacity plus
//!    the load of the window's edges. The direct rate of an edge that is assigned outside the window is the value
//!    of that assignment.
//! 3. Each relay in turn has its window. When a round gains almost nothing, windows grow: more relays, more edges,
//!    more work for each. The search ends when a round with the largest windows gains almost nothing.
//!
//! Larger sweeps of the local search were rejected: after it, an improvement has to move five or more edges at
//! once.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::assignment::Assignment;
use super::branch_and_bound::BranchAndBound;
use super::instance::{Candidate, Instance, NONE};
use super::reduced_values::{ReducedInstance, SwitchingCost};
use crate::units::Bitrate;

#[derive(Clone, Debug)]
pub(super) struct NeighborhoodSearch {
    /// Edges that measured each relay, stored relay by relay, and the index of each relay's first edge.
    offsets: Vec<u32>,
    edges_by_relay: Vec<u32>,
    size_index: usize,
    /// Number of window sizes used.
    size_limit: usize,
    round: usize,
    next_relay: usize,
    /// Gain at the beginning of the round.
    gain_before: i64,
    current: Option<Box<Window>>,
}

/// A subproblem in progress.
#[derive(Clone, Debug)]
struct Window {
    instance: Instance,
    current: Vec<u32>,
    switching_cost: SwitchingCost,
    /// Numbers of the window's edges in the whole instance, and likewise of its candidates.
    edges: Vec<u32>,
    outer_candidates: Vec<u32>,
    initial_gain: i64,
    search: BranchAndBound,
    work: u64,
}

#[derive(Clone, Copy, Debug)]
struct WindowSize {
    relays: usize,
    edges: usize,
    /// Limit of work, in candidates evaluated.
    work: u64,
}

impl NeighborhoodSearch {
    /// `is_thorough`: up to the largest windows; otherwise only the first few sizes.
    pub(super) fn new(problem: ReducedInstance<'_>, is_thorough: bool) -> Self {
        let instance = problem.instance;
        let mut offsets = vec![0_u32; instance.relay_count() + 1];
        // Counting sort of the candidates by relay: count, prefix sums, then distribute.
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

    /// Does one part of the search and returns its work.
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

    /// A relay and others with which it shares edges. The relays that share most edges take turns from round to
    /// round.
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
            let offset = self.round % others.len();
            others.rotate_left(offset);
        }
        (core::iter::once(relay).chain(others).take(count).collect(), work)
    }

    /// The edges of these relays whose two best choices have the closest reduced values.
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
        // Remaining capacity plus what the window's own edges use now: they are free to be assigned again.
        let mut capacity: Vec<u64> = relays.iter().map(|relay| assignment.remaining[*relay]).collect();
        let assigned = edges.iter().map(|edge| assignment.choice[*edge as usize]).filter(|choice| *choice != NONE);
        for candidate in assigned.map(|choice| choice as usize) {
            if let Some(slot) = inside(candidate) {
                capacity[slot] += problem.instance.rate_of(candidate).bits_per_sec();
            }
        }
        let capacity: Vec<Bitrate> = capacity.into_iter().map(Bitrate::from_bits_per_sec).collect();
        let mut instance = Instance::new(&capacity).expect("part of the capacity of a valid instance");
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
                // `Instance::add` would drop these candidates, so they must not get a number.
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
            instance.add(direct, &candidates).expect("an edge of a valid instance with some of its candidates");
            current.push(current_candidate);
            matching.push(assigned_candidate);
        }
        let prices: Vec<f64> = relays.iter().map(|relay| prices[*relay]).collect();
        let inner = ReducedInstance::new(&instance, &current, problem.switching_cost());
        let (search, work) = BranchAndBound::new(inner, &prices, &matching);
        let switching_cost = problem.switching_cost();
        (
            Self {
                initial_gain: search.gain,
                instance,
                current,
                switching_cost,
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

    /// Transfers the result to the whole assignment, if it is better.
    fn apply(&self, problem: ReducedInstance<'_>, assignment: &mut Assignment) {
        if self.search.gain <= self.initial_gain {
            return;
        }
        let mut moves = Vec::new();
        for (edge, choice) in self.edges.iter().zip(&self.search.best) {
            let assigned_to = assignment.choice[*edge as usize];
            let to = if *choice == NONE { NONE } else { self.outer_candidates[*choice as usize] };
            // "No relay" inside the window means that an edge assigned outside keeps that assignment.
            let is_inside = assigned_to != NONE && self.outer_candidates.contains(&assigned_to);
            if to != assigned_to && (to != NONE || is_inside) {
                moves.push((*edge, to));
            }
        }
        assignment.assign_all(problem, &moves);
    }
}

/// Rule 3. Measured on 50 relays and 1,000 edges at loads of 0.9 and 1.2: 40 edges of two relays leave a gap of 0.6
/// %, 80 leave 0.5, 160 leave 0.3, and 160 of four relays 0.25 and 0.19.
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
/// Number of sizes used before an exact proof. Measured on 8 relays and 60 edges at a load of 1.2: they halve the
/// gap after one second.
const FEW_SIZES: usize = 3;
/// A round with windows of the same size follows only if the last one gained more than this fraction (1 / 100,000)
/// of the total.
const MIN_ROUND_GAIN: i64 = 100_000;
/// Number of edges examined to find neighbor relays, and number of neighbors that take turns. Our choice: a city
/// and those around it.
const NEIGHBOR_SAMPLE: usize = 1000;
const MAX_NEIGHBORS: usize = 8;
