//! Who sits where: a plan that is being changed.
//!
//! In: boxes and where they go. Out: who is at a relay, what is left there, what all of it is worth.
//!
//! A box is only ever put where it fits, so that every state is a plan that can be carried out.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::NONE;
use super::reduced_values::ReducedInstance;

/// A plan, with the boxes of each relay.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    /// Of each box its candidate, or [`NONE`].
    pub(super) choice: Vec<u32>,
    /// What each relay has left, in bits per second.
    pub(super) remaining: Vec<u64>,
    /// What all choices gain, and that without what staying is worth.
    pub(super) gain: i64,
    pub(super) rate_gain: i64,
    /// The boxes of each relay, in no order, and where each box is in its list.
    members: Vec<Vec<u32>>,
    positions: Vec<u32>,
}

impl Assignment {
    /// Everybody is alone.
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

    /// The boxes at a relay.
    pub(super) fn members(&self, relay: usize) -> &[u32] {
        &self.members[relay]
    }

    /// Whether there is room for a candidate.
    pub(super) fn has_capacity(&self, problem: ReducedInstance<'_>, choice: u32) -> bool {
        let candidate = choice as usize;
        choice == NONE
            || problem.instance.rate_of(candidate).bits_per_sec()
                <= self.remaining[problem.instance.relay_of(candidate)]
    }

    /// Puts a box somewhere, where it must fit once it has left its place.
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

    /// Puts several boxes where they fit together: all leave before the first one is seated.
    pub(super) fn assign_all(&mut self, problem: ReducedInstance<'_>, moves: &[(u32, u32)]) {
        moves.iter().for_each(|(edge, _)| self.assign(problem, *edge as usize, NONE));
        moves.iter().for_each(|(edge, choice)| self.assign(problem, *edge as usize, *choice));
    }

    /// The choice of a box that is worth most under prices among those that fit and are worth more than `least`.
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
