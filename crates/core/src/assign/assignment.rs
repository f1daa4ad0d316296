//! Assignment under construction: the current candidate of each edge, and the remaining capacity of each relay.
//!
//! An edge is assigned only where its rate fits, so every intermediate state is a feasible matching. The total gain
//! is updated with each change.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::NONE;
use super::reduced_values::ReducedInstance;

/// A feasible matching that is being changed, with the edges of each relay.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    /// Candidate of each edge, or [`NONE`].
    pub(super) choice: Vec<u32>,
    /// Remaining capacity of each relay in bits per second.
    pub(super) remaining: Vec<u64>,
    /// Gain of all assignments: `gain` includes the bonus for unchanged relays ([`super::SwitchingCost`]),
    /// `rate_gain` does not.
    pub(super) gain: i64,
    pub(super) rate_gain: i64,
    /// Edges of each relay in no particular order, and the position of each edge in its relay's list.
    members: Vec<Vec<u32>>,
    positions: Vec<u32>,
}

impl Assignment {
    /// An assignment without relays.
    pub(super) fn new(problem: ReducedInstance<'_>) -> Self {
        let (relays, boxes) = (problem.instance.relay_count(), problem.instance.edge_count());
        Self {
            choice: vec![NONE; boxes],
            remaining: (0..relays).map(|relay| problem.instance.capacity(relay).bits_per_sec()).collect(),
            gain: 0,
            rate_gain: 0,
            members: vec![Vec::new(); relays],
            positions: vec![NONE; boxes],
        }
    }

    /// The edges assigned to a relay.
    pub(super) fn members(&self, relay: usize) -> &[u32] {
        &self.members[relay]
    }

    /// Whether the remaining capacity suffices for a candidate.
    pub(super) fn has_capacity(&self, problem: ReducedInstance<'_>, choice: u32) -> bool {
        let candidate = choice as usize;
        choice == NONE
            || problem.instance.rate_of(candidate).bits_per_sec()
                <= self.remaining[problem.instance.relay_of(candidate)]
    }

    /// Assigns an edge to a candidate or to [`NONE`]. The candidate must fit once the edge has left its present
    /// relay.
    pub(super) fn assign(&mut self, problem: ReducedInstance<'_>, edge: usize, choice: u32) {
        let before = self.choice[edge];
        self.gain += problem.gain(edge, choice) - problem.gain(edge, before);
        self.rate_gain += problem.rate_gain(edge, choice) - problem.rate_gain(edge, before);
        self.choice[edge] = choice;
        if before != NONE {
            let relay = problem.instance.relay_of(before as usize);
            self.remaining[relay] += problem.instance.rate_of(before as usize).bits_per_sec();
            let position = self.positions[edge] as usize;
            self.members[relay].swap_remove(position);
            // The last edge of the list has taken the position of the removed one.
            if let Some(moved) = self.members[relay].get(position) {
                self.positions[*moved as usize] = position as u32;
            }
        }
        if choice != NONE {
            let relay = problem.instance.relay_of(choice as usize);
            self.remaining[relay] -= problem.instance.rate_of(choice as usize).bits_per_sec();
            self.positions[edge] = self.members[relay].len() as u32;
            self.members[relay].push(edge as u32);
        }
    }

    /// Assigns several edges that fit together. All leave their relays before the first one is assigned, so that
    /// they can exchange capacity.
    pub(super) fn assign_all(&mut self, problem: ReducedInstance<'_>, moves: &[(u32, u32)]) {
        moves.iter().for_each(|(edge, _)| self.assign(problem, *edge as usize, NONE));
        moves.iter().for_each(|(edge, choice)| self.assign(problem, *edge as usize, *choice));
    }

    /// The candidate of an edge with the highest reduced value among those that fit and exceed `min_value`;
    /// [`NONE`] if there is none.
    pub(super) fn best_fit(
        &self,
        problem: ReducedInstance<'_>,
        prices: &[f64],
        edge: usize,
        min_value: f64,
    ) -> u32 {
        let (mut best, mut best_value) = (NONE, min_value);
        for candidate in problem.instance.candidate_range(edge).map(|edge| edge as u32) {
            let value = problem.reduced_value(prices, edge, candidate);
            if value > best_value && self.has_capacity(problem, candidate) {
                (best, best_value) = (candidate, value);
            }
        }
        best
    }
}
