//! Requests, reports and assignments of edges.
//!
//! 1. An edge's request is decided when its window ends; until then the reason in its replies is `pending`.
//! 2. An edge that gets less than [`low_share`](super::SchedulerConfig::low_share) of what it offers, or of its reservation if that is
//!    less, in two consecutive reports is matched again. For one re-allocation interval from then, this throughput limits the rate of
//!    that relay for this edge, whatever the edge has measured.
//! 3. Throughput beyond the reservation counts as load up to the amount of the reservation, and up to the share that relays keep for
//!    bursts: an edge that exaggerates its throughput cannot fill a relay.
//! 4. An edge gets back the relay that it reports only during the grace period, or if an earlier leader assigned it. It never displaces
//!    other edges, including those in the relay's list of reservations ([`recovered`](super::recovered)).
//! 5. An edge that has no relay is matched again with each report, because capacity may be available now. This includes an edge whose
//!    request a previous leader has received. An edge that has released its relay is not matched; it sends a new request when it needs
//!    one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use super::capacity::millis;
use super::matching::{AssignedRelay, MatchedEdge, MatchingProblem, MatchingSolution};
use super::matching_window::MatchingScope;
use super::placements::{EdgeRecord, Placement};
use super::{FleetScheduler, Output};
use crate::fleet::Name;
use crate::fleet::messages::{
    Assignment, AssignmentReply, AssignmentRequest, CurrentAssignment, EdgeSummary, NoRelayReason, Report,
};
use crate::units::{Bitrate, Instant};

impl FleetScheduler {
    /// Handles an edge's request for a relay; it is matched when the window ends.
    ///
    /// # Errors
    /// The request is invalid.
    pub(super) fn request(&mut self, name: &Name, request: AssignmentRequest) -> Result<(), String> {
        request.validate()?;
        self.note_request(name, request);
        self.placements.set_pending(name);
        self.enqueue(name);
        Ok(())
    }

    /// Handles an edge's report; the edge keeps its assignment.
    ///
    /// # Errors
    /// The report is invalid.
    pub(super) fn report(&mut self, name: &Name, report: Report) -> Result<AssignmentReply, String> {
        let Report { request, throughput, offered_rate: offered, assignment } = report;
        request.validate()?;
        self.note_request(name, request);
        let is_placed = self.placements.placement_of(name).is_some();
        if let Some(assignment) = assignment.filter(|_| !is_placed) {
            self.adopt_assignment(name, &assignment);
        }
        let relay = self.placements.placement_of(name).map(|placement| &placement.relay);
        let max_rate = relay.map_or(Bitrate::ZERO, |relay| self.relays.capacity(relay));
        let bursts = relay.map_or(Bitrate::ZERO, |relay| self.view().burst_reserve(relay));
        self.placements.update(name, |edge| {
            edge.throughput = throughput.min(max_rate);
            let reserved = edge.placement.as_ref().map_or(Bitrate::ZERO, |placement| placement.reservation);
            edge.excess = (edge.throughput - reserved).min(reserved).min(bursts);
        });
        let rates = (offered.unwrap_or(throughput), throughput);
        if self.placements.check_throughput(name, rates, self.clock.now(), &self.config) {
            self.enqueue(name);
        }
        self.requeue_unassigned(name);
        Ok(self.reply_for(name))
    }

    /// Queues an edge that has reported and has no relay (rule 5).
    fn requeue_unassigned(&mut self, name: &Name) {
        let Some(edge) = self.placements.get(name).filter(|edge| edge.placement.is_none()) else { return };
        match edge.reason {
            Some(NoRelayReason::Pending | NoRelayReason::Released) => {}
            Some(NoRelayReason::NoRelay | NoRelayReason::NoGain | NoRelayReason::NoCapacity) => self.enqueue(name),
            // This process has not matched the edge yet.
            None => {
                self.placements.update(name, |edge| edge.reason = Some(NoRelayReason::Pending));
                self.enqueue(name);
            }
        }
    }

    /// Releases the relay of an edge.
    pub(super) fn release(&mut self, name: &Name) {
        self.window.remove(name);
        self.placements.remove_waiting(name);
        self.placements.unassign(name, NoRelayReason::Released);
        if self.placements.take_pending(name) {
            self.outputs.push_back(Output::Decided(name.clone()));
        }
    }

    /// The current assignment of an edge, or the reason why it has none.
    pub fn reply_for(&self, name: &Name) -> AssignmentReply {
        let edge = self.placements.get(name);
        let assignment = edge.and_then(|edge| edge.placement.as_ref()).map(|placement| {
            let relay = self.relays.get(&placement.relay);
            Assignment {
                relay: placement.relay.clone(),
                addresses: relay.map(|relay| relay.heartbeat.addresses.clone()).unwrap_or_default(),
                server_name: relay.map(|relay| relay.heartbeat.server_name.clone()),
                reservation: placement.reservation,
                lease_ms: millis(placement.lease_ends.since(self.clock.now())),
                version: placement.version,
            }
        });
        let reason = if assignment.is_some() { None } else { edge.and_then(|edge| edge.reason) };
        AssignmentReply { assignment, reason, heartbeat_ms: millis(self.config.heartbeat), revocations: 0 }
    }

    /// All edges, sorted by name.
    pub fn edge_summaries(&self) -> Vec<EdgeSummary> {
        let row = |(name, edge): (&Name, &EdgeRecord)| EdgeSummary {
            name: name.clone(),
            origin: edge.request.origin.clone(),
            best_link_rate: edge.request.best_link_rate,
            relay: edge.placement.as_ref().map(|placement| placement.relay.clone()),
            reservation: edge.placement.as_ref().map(|placement| placement.reservation),
            throughput: edge.throughput,
            reason: if edge.placement.is_some() { None } else { edge.reason },
            version: edge.placement.as_ref().map(|placement| placement.version),
            age_ms: millis(self.clock.now().since(edge.last_seen)),
            certificate_not_after: None,
            duplicate_addresses: Vec::new(),
        };
        self.placements.iter().map(row).collect()
    }

    /// Stores the request of an edge and renews its lease.
    pub(super) fn note_request(&mut self, name: &Name, request: AssignmentRequest) {
        self.placements.note_request(name, request, self.clock.now(), self.lease_end());
    }

    /// The end of a lease that begins now.
    pub(super) fn lease_end(&self) -> Instant {
        self.clock.now() + self.config.lease
    }

    /// Assigns the relay that an edge reports to use, if rule 4 permits it, the edge has measured this relay, and its version is not of
    /// a later epoch than ours. Otherwise the edge keeps no relay and is matched in the next window (rule 5).
    fn adopt_assignment(&mut self, name: &Name, assignment: &CurrentAssignment) {
        let (relay, epoch) = (&assignment.relay, self.placements.version().epoch);
        let Some(edge) = self.placements.get(name) else { return };
        let measured = edge.request.measurements.iter().find(|one| one.relay == *relay).map(|one| one.rate);
        let Some(measured) = measured.filter(|_| assignment.version.epoch <= epoch) else { return };
        let reachable_rate =
            self.view().reachable_rates(edge).find(|(name, _)| *name == relay).map(|(_, rate)| rate);
        let mut reservation = assignment.reservation.min(reachable_rate.unwrap_or(measured));
        let capacity = self.view().reclaimable(relay, name);
        // An edge that reports more than fits still gets what its relay has listed for it.
        if reservation > capacity {
            let claims = self.placements.claims_of(relay);
            let recovered = claims.map_or(Bitrate::ZERO, |claims| claims.recovered.waiting_for(name));
            reservation = if recovered.is_zero() { reservation } else { reservation.min(recovered) };
        }
        let is_allowed = self.clock.is_in_grace() || assignment.version.epoch < epoch;
        if reservation.is_zero() || reservation > capacity || !is_allowed {
            self.enqueue(name);
            return;
        }
        let placement = Placement {
            relay: relay.clone(),
            reservation,
            assigned_at: self.clock.now(),
            lease_ends: self.lease_end(),
            version: self.placements.next_version(),
        };
        self.placements.update(name, |edge| edge.placement = Some(placement));
    }

    /// Removes edges from a relay that is overbooked because edges reported it before it announced its capacity or its reservations.
    /// The edge that most exceeds the reservation that the relay has listed for it is cut back or removed first.
    pub(super) fn shed_excess(&mut self, relay: &Name) {
        loop {
            let Some(claims) = self.placements.claims_of(relay) else { return };
            let capacity = self.relays.capacity(relay) - self.view().burst_reserve(relay);
            if claims.load.reserved + claims.recovered.total_waiting() <= capacity {
                return;
            }
            let reserved =
                |name: &Name| self.placements.get(name).map_or(Bitrate::ZERO, |edge| edge.load().reserved);
            // The edge that is furthest above its listed reservation; among equals the largest one.
            let excess = |name: &&Name| (claims.recovered.excess_over_listed(name, reserved(name)), reserved(name));
            let Some(worst) = claims.edges.iter().max_by_key(excess).cloned() else { return };
            if let Some(reported) =
                claims.recovered.reported(&worst).filter(|reported| *reported < reserved(&worst))
            {
                let version = self.placements.next_version();
                self.placements.update(&worst, |edge| {
                    if let Some(placement) = &mut edge.placement {
                        (placement.reservation, placement.version) = (reported, version);
                    }
                });
                continue;
            }
            self.placements.unassign(&worst, NoRelayReason::NoCapacity);
            self.enqueue(&worst);
        }
    }

    /// Queues the edges of relays that are no longer open. They keep their assignments until they are matched.
    pub(super) fn requeue_displaced(&mut self) {
        let is_open = |name: &Name| {
            self.view().is_open(name) || (self.relays.get(name).is_none() && self.clock.is_in_grace())
        };
        let closed = self.placements.claims().filter(|(relay, claims)| !claims.edges.is_empty() && !is_open(relay));
        let displaced: Vec<Name> = closed.flat_map(|(_, claims)| claims.edges.iter().cloned()).collect();
        displaced.iter().for_each(|edge| self.enqueue(edge));
    }

    /// Emits the matching problem of the window, or of all edges that may move.
    pub(super) fn begin_matching(&mut self, scope: MatchingScope, queue: &BTreeSet<Name>) {
        let can_move = |edge: &EdgeRecord| match &edge.placement {
            Some(placement) => self.clock.now().since(placement.assigned_at) >= self.config.min_stay,
            None => edge.reason != Some(NoRelayReason::Released),
        };
        let is_included = |(name, edge): &(&Name, &EdgeRecord)| {
            queue.contains(*name) || (scope == MatchingScope::All && can_move(edge))
        };
        let edges: Vec<(&Name, &EdgeRecord)> = self.placements.iter().filter(is_included).collect();
        if edges.is_empty() {
            return;
        }
        let problem = MatchingProblem::new(self.view(), &self.window, &edges, scope);
        self.window.set_solving(true);
        self.outputs.push_back(Output::Solve(problem));
    }

    /// Applies the solution of the last matching problem (rule 4 of `matching`).
    pub(super) fn apply_solution(&mut self, solution: MatchingSolution) {
        self.window.set_solving(false);
        let MatchingSolution { edges, prices } = solution;
        if let Some(prices) = prices {
            self.window.prices = prices;
        }
        // The state has changed since the problem was built: the solution applies only to edges whose placement is still the same.
        let (mut edges, others): (Vec<_>, Vec<_>) =
            edges.into_iter().partition(|(matched, _)| self.is_unchanged(matched));
        others.into_iter().for_each(|(matched, _)| self.resolve_request(matched.edge));
        let does_stay = |edge: &MatchedEdge, to: &AssignedRelay| {
            to.as_ref()
                .is_some_and(|(to, _)| edge.placement.as_ref().is_some_and(|placement| placement.relay == *to))
        };
        // The order of rule 4: staying, moving, without a relay.
        edges.sort_by_key(|(matched, to)| (to.is_none(), !does_stay(matched, to)));
        // The matched edges' own load does not count against the capacity of their relays; they reserve it again one by one.
        let leaving = self.placements.load_by_relay(edges.iter().map(|(matched, _)| &matched.edge));
        let mut capacities: BTreeMap<Name, Bitrate> = BTreeMap::new();
        for (matched, to) in edges {
            let MatchedEdge { edge, placement, fallback_reason } = matched;
            let mut reserve = |relay: &Name, rate: Bitrate| {
                let load = leaving.get(relay).copied().unwrap_or_default();
                let left = capacities.entry(relay.clone()).or_insert_with(|| self.view().assignable(relay, load));
                let fits = rate <= *left;
                *left = if fits { *left - rate } else { *left };
                fits
            };
            // An edge keeps its old relay only if the solver wanted to give it one, or if merely the capacity was missing. It loses a
            // relay that brings no gain or is not open any more.
            let can_keep = to.is_some() || fallback_reason == NoRelayReason::NoCapacity;
            match &to {
                Some((relay, rate)) if reserve(relay, *rate) => {
                    self.placements.assign(&edge, (relay, *rate), self.clock.now(), self.lease_end());
                }
                _ if can_keep
                    && placement
                        .as_ref()
                        .is_some_and(|placement| reserve(&placement.relay, placement.reservation)) => {}
                Some(_) => {
                    self.placements.unassign(&edge, NoRelayReason::NoCapacity);
                    self.enqueue(&edge);
                    continue;
                }
                None => self.placements.unassign(&edge, fallback_reason),
            }
            if self.placements.take_pending(&edge) {
                self.outputs.push_back(Output::Decided(edge));
            }
        }
    }

    /// Handles an edge whose placement has changed while the problem was solved. If it waits for a decision, the new placement is the
    /// decision; without one it is matched again.
    fn resolve_request(&mut self, name: Name) {
        let is_pending = self.placements.get(&name).is_some_and(|edge| edge.is_pending);
        if !is_pending || self.window.contains(&name) {
            return;
        }
        if self.placements.placement_of(&name).is_some() {
            self.placements.take_pending(&name);
            self.outputs.push_back(Output::Decided(name));
        } else {
            self.enqueue(&name);
        }
    }

    fn is_unchanged(&self, matched: &MatchedEdge) -> bool {
        let version = |placement: &Option<Placement>| placement.as_ref().map(|placement| placement.version);
        let has_left = |edge: &EdgeRecord| edge.reason == Some(NoRelayReason::Released) && !edge.is_pending;
        self.placements
            .get(&matched.edge)
            .is_some_and(|edge| version(&edge.placement) == version(&matched.placement) && !has_left(edge))
    }
}
