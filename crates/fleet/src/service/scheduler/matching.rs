//! Formulates the requests of a window, or all edges, as one matching problem, and applies its solution.
//!
//! A [`MatchingProblem`] is self-contained, so that another thread can solve it.
//!
//! 1. Edges outside the problem keep their claims. Edges inside are treated as if they had left their relays.
//! 2. The capacity of a relay is R(s) less the threshold's share of T(s); a relay that is not open has none.
//! 3. The rate of an edge through a relay is B_o(c, s) = min(B(c, s), B_o(s)) (Algorithm 1, line 6), limited by what the edge needs and
//!    by the remaining capacity: an edge that could fill two relays is served by one. At its present relay the remaining
//!    capacity is its own reservation plus what is unreserved: it can grow into free capacity, but takes nothing from others. The
//!    resulting problem is that of BASS.
//! 4. A solution is applied as far as it still fits. Edges that stay are placed first, then edges that move, then edges without a
//!    relay. An edge of the last group keeps its old placement if that is still free, because the problem cannot assign a part of
//!    an edge's rate. An edge that does not fit any more keeps what it had, or is matched again.

use std::collections::BTreeMap;

use marline_core::assign::{Candidate, Instance, Prices, Solver, SwitchingCost, WarmStart};
use marline_core::units::{Bitrate, Ratio};

use super::super::api_types::NoRelayReason;
use super::edges::{EdgeRecord, Placement};
use super::relays::Load;
use super::{FleetScheduler, Output};
use crate::identity::Name;

/// A matching problem to be solved outside the scheduler.
#[derive(Debug)]
pub struct MatchingProblem {
    instance: Instance,
    relays: Vec<Name>,
    edges: Vec<MatchedEdge>,
    current_relays: Vec<Option<usize>>,
    prices: Prices,
    min_gain: Ratio,
    is_full: bool,
}

/// An edge in a matching problem.
#[derive(Clone, Debug)]
struct MatchedEdge {
    edge: Name,
    /// Its placement when the problem was built.
    placement: Option<Placement>,
    /// The reason to report if it gets no relay.
    fallback_reason: NoRelayReason,
}

/// The solution of a matching problem.
#[derive(Debug)]
pub struct MatchingSolution {
    edges: Vec<(MatchedEdge, Option<(Name, Bitrate)>)>,
    /// The solver's prices of the relays; only of a matching of all edges.
    prices: Option<BTreeMap<Name, f64>>,
}

impl MatchingProblem {
    /// The best assignment found with this much work, counted in candidates examined.
    pub fn solve(self, work: u64) -> MatchingSolution {
        let stay = SwitchingCost { share: self.min_gain, fee: Bitrate::ZERO };
        let before = WarmStart { prices: &self.prices, relays: &self.current_relays, switching_cost: stay };
        let mut solver = Solver::new(&self.instance, Some(before));
        let mut left = work;
        while !solver.step(SOLVER_STEP.min(left)).is_done && left > SOLVER_STEP {
            left -= SOLVER_STEP;
        }
        let (plan, found_prices) = (solver.matching(), solver.prices());
        let prices = self.is_full.then(|| {
            let named = self.relays.iter().enumerate();
            named.map(|(at, relay)| (relay.clone(), found_prices.of(at))).collect()
        });
        let assignment_of = |at: usize| {
            let relay = plan.relay(at)?;
            let rate = self.instance.candidates_of(at).find(|candidate| candidate.relay == relay)?.rate;
            Some((self.relays.get(relay)?.clone(), rate))
        };
        let edges = self.edges.iter().enumerate().map(|(at, edge)| (edge.clone(), assignment_of(at))).collect();
        MatchingSolution { edges, prices }
    }

    /// The number of edges in the problem.
    pub fn edge_count(&self) -> usize {
        self.edges.len()
    }

    /// Whether it contains all edges rather than those of a window.
    pub fn is_full(&self) -> bool {
        self.is_full
    }
}

/// Work between two checks of the limit. chosen: about 10 ms.
const SOLVER_STEP: u64 = 100_000;

impl FleetScheduler {
    /// Emits the matching problem of the window, or of all edges that may move.
    pub(super) fn begin_matching(&mut self, is_full: bool) {
        let queue = std::mem::take(&mut self.queue);
        let can_move = |edge: &EdgeRecord| match &edge.placement {
            Some(placement) => self.now.since(placement.assigned_at) >= self.config.min_stay,
            None => edge.reason != Some(NoRelayReason::Released),
        };
        let is_included =
            |(name, edge): &(&Name, &EdgeRecord)| queue.contains(*name) || (is_full && can_move(edge));
        let edges: Vec<(&Name, &EdgeRecord)> = self.edges.iter().filter(is_included).collect();
        if edges.is_empty() {
            return;
        }
        let problem = self.build_problem(&edges, is_full);
        self.is_solving = true;
        self.outputs.push_back(Output::Solve(Box::new(problem)));
    }

    /// Applies the solution of the last matching problem (rule 4).
    pub fn apply_solution(&mut self, solution: MatchingSolution, now: marline_core::units::Instant) {
        self.advance(now);
        self.is_solving = false;
        let MatchingSolution { edges, prices } = solution;
        if let Some(prices) = prices {
            self.prices = prices;
        }
        // The state has changed since the problem was built: the solution applies only to edges whose placement is still the same.
        let (mut edges, others): (Vec<_>, Vec<_>) =
            edges.into_iter().partition(|(matched, _)| self.is_unchanged(matched));
        others.into_iter().for_each(|(matched, _)| self.resolve_request(matched.edge));
        let does_stay = |edge: &MatchedEdge, to: &Option<(Name, Bitrate)>| {
            to.as_ref()
                .is_some_and(|(to, _)| edge.placement.as_ref().is_some_and(|placement| placement.relay == *to))
        };
        // The order of rule 4: staying, moving, without a relay.
        edges.sort_by_key(|(matched, to)| (to.is_none(), !does_stay(matched, to)));
        // The matched edges' own load does not count against the capacity of their relays; they reserve it anew one by one.
        let leaving = self.load_by_relay(edges.iter().map(|(matched, _)| matched));
        let mut capacities: BTreeMap<Name, Bitrate> = BTreeMap::new();
        for (matched, to) in edges {
            let MatchedEdge { edge, placement, fallback_reason } = matched;
            let mut reserve = |relay: &Name, rate: Bitrate| {
                let claims = leaving.get(relay).copied().unwrap_or_default();
                let left =
                    capacities.entry(relay.clone()).or_insert_with(|| self.assignable_capacity(relay, claims));
                let fits = rate <= *left;
                *left = if fits { *left - rate } else { *left };
                fits
            };
            // An edge keeps its old relay only if the solver wanted to give it one, or if merely the capacity was missing. It loses a
            // relay that brings no gain or is not open any more.
            let can_keep = to.is_some() || fallback_reason == NoRelayReason::NoCapacity;
            match &to {
                Some((relay, rate)) if reserve(relay, *rate) => self.assign(&edge, relay, *rate),
                _ if can_keep
                    && placement
                        .as_ref()
                        .is_some_and(|placement| reserve(&placement.relay, placement.reservation)) => {}
                Some(_) => {
                    self.unassign(&edge, NoRelayReason::NoCapacity);
                    self.enqueue(&edge);
                    continue;
                }
                None => self.unassign(&edge, fallback_reason),
            }
            if self.edges.get_mut(&edge).is_some_and(|edge| std::mem::take(&mut edge.is_pending)) {
                self.outputs.push_back(Output::Decided(edge));
            }
        }
    }

    /// Handles an edge whose placement has changed while the problem was solved. If it waits for a decision, the new placement is the
    /// decision; without one it is matched again.
    fn resolve_request(&mut self, name: Name) {
        let Some(edge) = self.edges.get_mut(&name).filter(|edge| edge.is_pending) else { return };
        if self.queue.contains(&name) {
            return;
        }
        if edge.placement.is_some() {
            edge.is_pending = false;
            self.outputs.push_back(Output::Decided(name));
        } else {
            self.enqueue(&name);
        }
    }

    fn build_problem(&self, edges: &[(&Name, &EdgeRecord)], is_full: bool) -> MatchingProblem {
        let relays: Vec<Name> = self.relays.keys().filter(|relay| self.is_open(relay)).cloned().collect();
        let index_of: BTreeMap<&Name, usize> = relays.iter().enumerate().map(|(at, relay)| (relay, at)).collect();
        let matched_edges: Vec<MatchedEdge> = edges
            .iter()
            .map(|(name, edge)| MatchedEdge {
                edge: (*name).clone(),
                placement: edge.placement.clone(),
                fallback_reason: self.unmatched_reason(edge),
            })
            .collect();
        let claims = self.load_by_relay(matched_edges.iter());
        // The instance bounds the sum of all capacities, so each relay gets an equal part of the bound at most.
        let max_capacity = Instance::MAX_CAPACITY / (relays.len() as u64).max(1);
        let capacity_of = |relay: &Name| {
            self.assignable_capacity(relay, claims.get(relay).copied().unwrap_or_default()).min(max_capacity)
        };
        let capacities: Vec<Bitrate> = relays.iter().map(capacity_of).collect();
        let mut instance = Instance::new(&capacities).expect("each relay has at most its part of the largest sum");
        let mut current_relays = Vec::with_capacity(edges.len());
        for (_, edge) in edges {
            let current_relay =
                edge.placement.as_ref().and_then(|placement| index_of.get(&placement.relay).copied());
            // At its present relay an edge can use only its own load and the free capacity, not the load of the other matched edges.
            let capacity_left = |at: usize, relay: &Name| {
                if current_relay == Some(at) {
                    self.assignable_capacity(relay, edge.load()).min(capacities[at])
                } else {
                    capacities[at]
                }
            };
            let candidates: Vec<Candidate> = self
                .reachable_rates(edge)
                .filter_map(|(relay, rate)| Some((*index_of.get(relay)?, relay, rate)))
                .map(|(at, relay, rate)| Candidate::through(at, rate, capacity_left(at, relay)))
                .collect();
            instance
                .add(edge.request.best_link_rate, &candidates)
                .expect("a relay is named once, and there are fewer than 2^32");
            current_relays.push(current_relay);
        }
        let prices = relays.iter().map(|relay| self.prices.get(relay).copied().unwrap_or(0.0));
        let prices = Prices::new(prices.collect::<Vec<_>>());
        MatchingProblem {
            instance,
            edges: matched_edges,
            current_relays,
            prices,
            min_gain: self.config.min_gain,
            is_full,
            relays,
        }
    }

    /// Rule 3: the relays that an edge has measured, each with the rate through it to the origin server.
    pub(super) fn reachable_rates<'a>(&'a self, edge: &'a EdgeRecord) -> impl Iterator<Item = (&'a Name, Bitrate)> {
        edge.request.measurements.iter().filter_map(move |measured| {
            let relay = self.relays.get(&measured.relay)?;
            let origin_rate =
                relay.heartbeat.origin_rates.get(&edge.request.origin).copied().unwrap_or(relay.heartbeat.capacity);
            let delivered =
                edge.delivered.as_ref().filter(|(relay, _, until)| *relay == measured.relay && self.now < *until);
            let uplink = delivered.map_or(measured.rate, |(_, rate, _)| measured.rate.min(*rate));
            let wanted = edge.request.target_rate.unwrap_or(Bitrate::MAX);
            Some((&measured.relay, uplink.min(origin_rate).min(wanted)))
        })
    }

    fn unmatched_reason(&self, edge: &EdgeRecord) -> NoRelayReason {
        let open_relays = self.reachable_rates(edge).filter(|(relay, _)| self.is_open(relay));
        match open_relays.map(|(_, rate)| rate).max() {
            None => NoRelayReason::NoRelay,
            Some(most) if most <= edge.request.best_link_rate => NoRelayReason::NoGain,
            Some(_) => NoRelayReason::NoCapacity,
        }
    }

    /// The sum of the edges' loads for each relay.
    fn load_by_relay<'a>(&self, edges: impl Iterator<Item = &'a MatchedEdge>) -> BTreeMap<Name, Load> {
        let mut claims = BTreeMap::new();
        for edge in edges.filter_map(|matched| self.edges.get(&matched.edge)) {
            if let Some(placement) = &edge.placement {
                let sum: &mut Load = claims.entry(placement.relay.clone()).or_default();
                *sum = sum.plus(edge.load());
            }
        }
        claims
    }

    fn is_unchanged(&self, matched: &MatchedEdge) -> bool {
        let version = |placement: &Option<Placement>| placement.as_ref().map(|placement| placement.version);
        let has_left = |edge: &EdgeRecord| edge.reason == Some(NoRelayReason::Released) && !edge.is_pending;
        self.edges
            .get(&matched.edge)
            .is_some_and(|edge| version(&edge.placement) == version(&matched.placement) && !has_left(edge))
    }

    /// Assigns a relay to an edge. If relay and reservation are unchanged, the placement stays as it is.
    fn assign(&mut self, edge: &Name, relay: &Name, reservation: Bitrate) {
        let previous = self.edges.get(edge).and_then(|edge| edge.placement.clone());
        let staying = previous.filter(|placement| placement.relay == *relay);
        if staying.as_ref().is_some_and(|placement| placement.reservation == reservation) {
            return;
        }
        let (now, ends, version) = (self.now, self.now + self.config.lease, self.next_version());
        let since = staying.map_or(now, |placement| placement.assigned_at);
        let placement =
            Placement { relay: relay.clone(), reservation, assigned_at: since, lease_ends: ends, version };
        self.update_edge(edge, |edge| {
            if edge.placement.as_ref().is_none_or(|old| old.relay != placement.relay) {
                // The throughput through the old relay is no information about the new one.
                (edge.throughput, edge.excess) = (Bitrate::ZERO, Bitrate::ZERO);
            }
            (edge.placement, edge.reason) = (Some(placement), None);
        });
    }
}
