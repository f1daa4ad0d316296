//! Formulates the requests of a window, or all edges, as one matching problem, and applies its solution.
//!
//! A [`MatchingProblem`] is self-contained, so that another thread can solve it.
//!
//! 1. Edges outside the problem keep their claims. Edges inside are treated as if they had left their relays.
//! 2. The capacity of a relay is R(s) less the threshold's share of T(s); a relay that is not open has none.
//! 3. The rate of an edge through a relay is B_o(c, s) = min(B(c, s), B_o(s)) (Algorithm 1, line 6; the rate that the edge has measured
//!    to the relay, and that of the relay to the origin server), limited by what the edge needs and
//!    by the remaining capacity: an edge that could fill two relays is served by one. At its present relay the remaining
//!    capacity is its own reservation plus what is unreserved: it can grow into free capacity, but takes nothing from others. The
//!    resulting problem is that of BASS.
//! 4. A solution is applied as far as it still fits. Edges that stay are placed first, then edges that move, then edges without a
//!    relay. An edge of the last group keeps its old placement if that is still free, because the problem cannot assign a part of
//!    an edge's rate. An edge that does not fit any more keeps what it had, or is matched again.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::capacity::CapacityView;
use super::matching_window::{MatchingScope, MatchingWindow};
use super::placements::{EdgeRecord, Load, Placement};
use crate::assign::{Candidate, Instance, Prices, Solver, SwitchingCost, WarmStart};
use crate::fleet::Name;
use crate::fleet::messages::NoRelayReason;
use crate::units::{Bitrate, Ratio};

/// A matching problem to be solved outside the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatchingProblem {
    relays: Vec<ProblemRelay>,
    edges: Vec<ProblemEdge>,
    min_gain: Ratio,
    is_full: bool,
}

/// A relay in a matching problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ProblemRelay {
    name: Name,
    capacity: Bitrate,
    /// Its price in the last matching of all edges.
    price: f64,
}

/// An edge in a matching problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ProblemEdge {
    matched: MatchedEdge,
    /// B_o(c).
    best_link_rate: Bitrate,
    /// The index of each relay that it reaches, and the rate through it.
    candidates: Vec<(usize, Bitrate)>,
    /// The index of its present relay.
    current_relay: Option<usize>,
}

/// An edge that is matched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MatchedEdge {
    pub(super) edge: Name,
    /// Its placement when the problem was built.
    pub(super) placement: Option<Placement>,
    /// The reason to report if it gets no relay.
    pub(super) fallback_reason: NoRelayReason,
}

/// The relay that a solution gives to an edge, and the rate there.
pub(super) type AssignedRelay = Option<(Name, Bitrate)>;

/// The solution of a matching problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatchingSolution {
    pub(super) edges: Vec<(MatchedEdge, AssignedRelay)>,
    /// The solver's prices of the relays; only of a matching of all edges.
    pub(super) prices: Option<BTreeMap<Name, f64>>,
}

impl MatchingProblem {
    /// Formulates the problem of these edges.
    pub(super) fn new(
        view: CapacityView<'_>,
        window: &MatchingWindow,
        edges: &[(&Name, &EdgeRecord)],
        scope: MatchingScope,
    ) -> Self {
        let names: Vec<&Name> =
            view.relays.iter().map(|(name, _)| name).filter(|name| view.is_open(name)).collect();
        let index_of: BTreeMap<&Name, usize> = names.iter().enumerate().map(|(at, relay)| (*relay, at)).collect();
        let leaving = view.placements.load_by_relay(edges.iter().map(|(name, _)| *name));
        // The instance bounds the sum of all capacities, so each relay gets an equal part of the bound at most.
        let max_capacity = Instance::MAX_CAPACITY / (names.len() as u64).max(1);
        let capacity_of = |relay: &Name, leaving: Load| view.assignable(relay, leaving).min(max_capacity);
        let relays: Vec<ProblemRelay> = names
            .iter()
            .map(|name| ProblemRelay {
                name: (*name).clone(),
                capacity: capacity_of(name, leaving.get(*name).copied().unwrap_or_default()),
                price: window.prices.get(*name).copied().unwrap_or(0.0),
            })
            .collect();
        let problem_edge = |(name, edge): &(&Name, &EdgeRecord)| {
            let current_relay =
                edge.placement.as_ref().and_then(|placement| index_of.get(&placement.relay).copied());
            // At its present relay an edge can use only its own load and the free capacity, not the load of the other matched edges.
            let capacity_left = |at: usize, relay: &Name| {
                let capacity = relays.get(at).map_or(Bitrate::ZERO, |relay| relay.capacity);
                if current_relay == Some(at) { view.assignable(relay, edge.load()).min(capacity) } else { capacity }
            };
            let reachable = view.reachable_rates(edge).filter_map(|(relay, rate)| {
                let at = *index_of.get(relay)?;
                Some((at, Candidate::through(at, rate, capacity_left(at, relay)).rate))
            });
            ProblemEdge {
                matched: MatchedEdge {
                    edge: (*name).clone(),
                    placement: edge.placement.clone(),
                    fallback_reason: view.unmatched_reason(edge),
                },
                best_link_rate: edge.request.best_link_rate,
                candidates: reachable.collect(),
                current_relay,
            }
        };
        let edges = edges.iter().map(problem_edge).collect();
        Self { edges, min_gain: view.config.min_gain, is_full: scope == MatchingScope::All, relays }
    }

    /// The best assignment found with this much work, counted in candidates examined.
    pub fn solve(self, work: u64) -> MatchingSolution {
        let capacities: Vec<Bitrate> = self.relays.iter().map(|relay| relay.capacity).collect();
        let mut instance = Instance::new(&capacities).expect("each relay has at most its part of the largest sum");
        for edge in &self.edges {
            let candidates: Vec<Candidate> =
                edge.candidates.iter().map(|(relay, rate)| Candidate { relay: *relay, rate: *rate }).collect();
            instance
                .add(edge.best_link_rate, &candidates)
                .expect("a relay is named once, and there are fewer than 2^32");
        }
        let prices = Prices::new(self.relays.iter().map(|relay| relay.price));
        let current_relays: Vec<Option<usize>> = self.edges.iter().map(|edge| edge.current_relay).collect();
        let stay = SwitchingCost { share: self.min_gain, fee: Bitrate::ZERO };
        let before = WarmStart { prices: &prices, relays: &current_relays, switching_cost: stay };
        let mut solver = Solver::new(&instance, Some(before));
        let mut left = work;
        while !solver.step(SOLVER_STEP.min(left)).is_done && left > SOLVER_STEP {
            left -= SOLVER_STEP;
        }
        let (plan, found_prices) = (solver.matching(), solver.prices());
        let prices = self.is_full.then(|| {
            let named = self.relays.iter().enumerate();
            named.map(|(at, relay)| (relay.name.clone(), found_prices.of(at))).collect()
        });
        let assignment_of = |at: usize| {
            let relay = plan.relay(at)?;
            let rate = instance.candidates_of(at).find(|candidate| candidate.relay == relay)?.rate;
            Some((self.relays.get(relay)?.name.clone(), rate))
        };
        let edges = self.edges.iter().enumerate();
        let edges = edges.map(|(at, edge)| (edge.matched.clone(), assignment_of(at))).collect();
        MatchingSolution { edges, prices }
    }

    /// The number of edges in the problem.
    pub fn edge_count(&self) -> usize {
        self.edges.len()
    }

    /// Whether it contains all edges that may move, rather than only those of a window.
    pub fn is_full(&self) -> bool {
        self.is_full
    }
}

/// Work between two checks of the limit. Our choice: less than a millisecond.
const SOLVER_STEP: u64 = 100_000;
