//! Requests, reports and assignments of edges.
//!
//! 1. Every change of a placement or of an edge's use must keep the sum of its relay's claims correct:
//!    [`FleetScheduler::update_edge`] is the only function that makes such changes.
//! 2. An edge that gets less than [`low_share`](super::SchedulerConfig::low_share) of what it offers in [`MAX_LOW_REPORTS`] consecutive
//!    reports is matched anew. Its throughput then counts as the rate of that relay, instead of its own measurement, until the next
//!    re-allocation.
//! 3. Throughput beyond the reservation counts at most once more as much as the reservation, and no more than the share that relays keep
//!    for bursts: an edge that exaggerates its throughput cannot fill a relay.
//! 4. An edge gets back the relay that it reports only during the grace period, or if an earlier leader assigned it. It never displaces
//!    other edges, including those in the relay's list of reservations ([`recovered`](super::recovered)).
//! 5. An edge that has requested a relay and has none is matched again with each report, because capacity may be available now. An edge
//!    that has released its relay is not; it sends a new request when it needs one.

use marline_core::units::{Bitrate, Instant};

use super::super::api_types::{
    Assignment, AssignmentReply, AssignmentRequest, CurrentAssignment, EdgeSummary, NoRelayReason, Report,
    StateVersion,
};
use super::relays::{Load, millis};
use super::{FleetScheduler, Output};
use crate::identity::Name;

/// The state of an edge that has sent a request or report.
#[derive(Debug)]
pub(super) struct EdgeRecord {
    pub(super) request: AssignmentRequest,
    pub(super) last_seen: Instant,
    pub(super) throughput: Bitrate,
    /// The part of its throughput beyond its reservation that counts (rule 3).
    pub(super) excess: Bitrate,
    pub(super) placement: Option<Placement>,
    pub(super) reason: Option<NoRelayReason>,
    /// Consecutive reports with low throughput.
    low_reports: u32,
    /// A relay, the rate that it actually delivered, and until when this replaces the edge's measurement (rule 2).
    pub(super) delivered: Option<(Name, Bitrate, Instant)>,
    /// A request waits for its decision.
    pub(super) is_pending: bool,
}

/// The assignment of an edge to a relay.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) relay: Name,
    pub(super) reservation: Bitrate,
    pub(super) assigned_at: Instant,
    pub(super) lease_ends: Instant,
    pub(super) version: StateVersion,
}

/// chosen: a single low report may be due to a tunnel.
const MAX_LOW_REPORTS: u32 = 2;

impl EdgeRecord {
    /// The load that it puts on its relay.
    pub(super) fn load(&self) -> Load {
        let of = |placement: &Placement| Load { reserved: placement.reservation, excess: self.excess };
        self.placement.as_ref().map_or_else(Load::default, of)
    }
}

impl FleetScheduler {
    /// Handles an edge's request for a relay; it is matched when the window ends.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn request(&mut self, name: &Name, request: AssignmentRequest, now: Instant) -> Result<(), String> {
        request.validate()?;
        self.advance(now);
        self.note_edge(name, request);
        if let Some(edge) = self.edges.get_mut(name) {
            (edge.is_pending, edge.reason) = (true, Some(NoRelayReason::Pending));
        }
        self.enqueue(name);
        Ok(())
    }

    /// Handles an edge's report; the edge keeps its assignment.
    ///
    /// # Errors
    /// The report is invalid.
    pub fn report(&mut self, name: &Name, report: Report, now: Instant) -> Result<AssignmentReply, String> {
        let Report { request, throughput, offered_rate: offered, assignment } = report;
        request.validate()?;
        self.advance(now);
        self.note_edge(name, request);
        let is_placed = self.edges.get(name).is_some_and(|edge| edge.placement.is_some());
        if let Some(assignment) = assignment.filter(|_| !is_placed) {
            self.adopt_assignment(name, &assignment);
        }
        let (max_rate, bursts) = self.relay_limits(name);
        self.update_edge(name, |edge| {
            edge.throughput = throughput.min(max_rate);
            let reserved = edge.placement.as_ref().map_or(Bitrate::ZERO, |placement| placement.reservation);
            edge.excess = (edge.throughput - reserved).min(reserved).min(bursts);
        });
        self.check_throughput(name, offered.unwrap_or(throughput), throughput);
        let edge = self.edges.get(name);
        let unassigned_reason = edge.filter(|edge| edge.placement.is_none()).and_then(|edge| edge.reason);
        if matches!(
            unassigned_reason,
            Some(NoRelayReason::NoRelay | NoRelayReason::NoGain | NoRelayReason::NoCapacity)
        ) {
            self.enqueue(name);
        }
        Ok(self.reply_for(name))
    }

    /// Releases the relay of an edge.
    pub fn release(&mut self, name: &Name, now: Instant) {
        self.advance(now);
        self.queue.remove(name);
        self.remove_waiting(name);
        self.unassign(name, NoRelayReason::Released);
        if self.edges.get_mut(name).is_some_and(|edge| std::mem::take(&mut edge.is_pending)) {
            self.outputs.push_back(Output::Decided(name.clone()));
        }
    }

    /// The current assignment of an edge, or the reason why it has none.
    pub fn reply_for(&self, name: &Name) -> AssignmentReply {
        let edge = self.edges.get(name);
        let assignment = edge.and_then(|edge| edge.placement.as_ref()).map(|placement| {
            let relay = self.relays.get(&placement.relay);
            Assignment {
                relay: placement.relay.clone(),
                addresses: relay.map(|relay| relay.heartbeat.addresses.clone()).unwrap_or_default(),
                server_name: relay.map(|relay| relay.heartbeat.server_name.clone()),
                reservation: placement.reservation,
                lease_ms: millis(placement.lease_ends.since(self.now)),
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
            age_ms: millis(self.now.since(edge.last_seen)),
            certificate_not_after: None,
            duplicate_addresses: Vec::new(),
        };
        self.edges.iter().map(row).collect()
    }

    /// Stores the request of an edge and renews its lease.
    pub(super) fn note_edge(&mut self, name: &Name, request: AssignmentRequest) {
        let (now, ends) = (self.now, self.now + self.config.lease);
        let new = || EdgeRecord {
            request: request.clone(),
            last_seen: now,
            throughput: Bitrate::ZERO,
            excess: Bitrate::ZERO,
            placement: None,
            reason: None,
            low_reports: 0,
            delivered: None,
            is_pending: false,
        };
        let edge = self.edges.entry(name.clone()).or_insert_with(new);
        (edge.request, edge.last_seen) = (request, now);
        if let Some(placement) = &mut edge.placement {
            placement.lease_ends = ends;
        }
    }

    /// Assigns the relay that an edge reports to use, if rule 4 permits it; otherwise the edge is matched in the next window.
    fn adopt_assignment(&mut self, name: &Name, assignment: &CurrentAssignment) {
        let (relay, is_in_grace) = (&assignment.relay, self.now < self.grace_until);
        let Some(edge) = self.edges.get(name) else { return };
        let measured = edge.request.measurements.iter().find(|one| one.relay == *relay).map(|one| one.rate);
        let Some(measured) = measured.filter(|_| assignment.version.epoch <= self.version.epoch) else { return };
        let reachable_rate = self.reachable_rates(edge).find(|(name, _)| *name == relay).map(|(_, rate)| rate);
        let mut reservation = assignment.reservation.min(reachable_rate.unwrap_or(measured));
        let capacity = match self.relays.get(relay) {
            // The relay will report its reservations; `shed_excess` then removes what does not fit.
            Some(_) if self.is_report_awaited(relay) && self.is_open(relay) => Bitrate::MAX,
            // In the grace period the relay's reported load still includes edges assigned by the previous leader. Only the edges'
            // reports count.
            Some(record) if is_in_grace && self.is_open(relay) => {
                let assigned = self.claims.get(relay).map_or(Bitrate::ZERO, |claims| claims.load.reserved);
                record.heartbeat.capacity
                    - self.burst_reserve(relay)
                    - assigned
                    - self.reserved_for_others(relay, name)
            }
            Some(_) => self.assignable_capacity(relay, Load::default()),
            None if is_in_grace => Bitrate::MAX,
            None => Bitrate::ZERO,
        };
        // An edge that reports more than fits still gets what its relay has listed for it.
        if reservation > capacity {
            let recovered =
                self.claims.get(relay).map_or(Bitrate::ZERO, |claims| claims.recovered.waiting_for(name));
            reservation = if recovered.is_zero() { reservation } else { reservation.min(recovered) };
        }
        let is_allowed = is_in_grace || assignment.version.epoch < self.version.epoch;
        if reservation.is_zero() || reservation > capacity || !is_allowed {
            self.enqueue(name);
            return;
        }
        let version = self.next_version();
        let (since, ends) = (self.now, self.now + self.config.lease);
        let placement = Placement {
            relay: assignment.relay.clone(),
            reservation,
            assigned_at: since,
            lease_ends: ends,
            version,
        };
        self.update_edge(name, |edge| edge.placement = Some(placement));
    }

    /// Counts low reports, and queues the edge after too many of them (rule 2).
    fn check_throughput(&mut self, name: &Name, offered: Bitrate, throughput: Bitrate) {
        let (now, config) = (self.now, self.config);
        let Some(edge) = self.edges.get_mut(name) else { return };
        let Some(placement) = &edge.placement else { return };
        let is_low = throughput < offered.min(placement.reservation).share(config.low_share);
        edge.low_reports = if is_low { edge.low_reports + 1 } else { 0 };
        if edge.low_reports >= MAX_LOW_REPORTS && now.since(placement.assigned_at) >= config.min_stay {
            edge.low_reports = 0;
            edge.delivered = Some((placement.relay.clone(), throughput, now + config.reallocation_interval));
            self.enqueue(name);
        }
    }

    /// The capacity of an edge's relay, and the share of it that is kept for bursts.
    fn relay_limits(&self, name: &Name) -> (Bitrate, Bitrate) {
        let Some(placement) = self.edges.get(name).and_then(|edge| edge.placement.as_ref()) else {
            return <_>::default();
        };
        let relay = self.relays.get(&placement.relay);
        (relay.map_or(Bitrate::ZERO, |relay| relay.heartbeat.capacity), self.burst_reserve(&placement.relay))
    }

    /// Removes edges from a relay that is overbooked because edges reported it before it announced its capacity or its reservations.
    /// The edge that exceeds its reported reservation the most is cut back or removed first.
    pub(super) fn shed_excess(&mut self, relay: &Name) {
        loop {
            let Some(claims) = self.claims.get(relay) else { return };
            let capacity = self.relays.get(relay).map_or(Bitrate::ZERO, |relay| relay.heartbeat.capacity);
            if claims.load.reserved + claims.recovered.total_waiting() <= capacity - self.burst_reserve(relay) {
                return;
            }
            let reserved = |name: &Name| self.edges.get(name).map_or(Bitrate::ZERO, |edge| edge.load().reserved);
            // The edge that is furthest above its listed reservation; among equals the largest one.
            let excess = |name: &&Name| (claims.recovered.excess_over_listed(name, reserved(name)), reserved(name));
            let Some(worst) = claims.edges.iter().max_by_key(excess).cloned() else { return };
            if let Some(reported) =
                claims.recovered.reported(&worst).filter(|reported| *reported < reserved(&worst))
            {
                let version = self.next_version();
                self.update_edge(&worst, |edge| {
                    if let Some(placement) = &mut edge.placement {
                        (placement.reservation, placement.version) = (reported, version);
                    }
                });
                continue;
            }
            self.unassign(&worst, NoRelayReason::NoCapacity);
            self.enqueue(&worst);
        }
    }

    /// Removes the assignment of an edge.
    pub(super) fn unassign(&mut self, name: &Name, reason: NoRelayReason) {
        if self.edges.get(name).is_some_and(|edge| edge.placement.is_some()) {
            self.next_version();
        }
        self.update_edge(name, |edge| {
            (edge.placement, edge.reason, edge.excess) = (None, Some(reason), Bitrate::ZERO)
        });
    }

    /// Changes an edge and keeps the claims of its relays consistent (rule 1).
    pub(super) fn update_edge(&mut self, name: &Name, change: impl FnOnce(&mut EdgeRecord)) {
        let version = self.version;
        let Some(edge) = self.edges.get_mut(name) else { return };
        let placement_of = |edge: &EdgeRecord| {
            edge.placement.as_ref().map(|placement| (placement.relay.clone(), placement.reservation))
        };
        let (old_placement, old_load) = (placement_of(edge), edge.load());
        change(edge);
        let (new_placement, new_load) = (placement_of(edge), edge.load());
        if old_placement != new_placement {
            self.dirty.mark_edge(name);
        }
        if let Some((relay, _)) = &old_placement
            && let Some(claims) = self.claims.get_mut(relay)
        {
            claims.load = claims.load.less(old_load);
            if old_placement != new_placement {
                claims.edges.remove(name);
                claims.changed_in = version;
            }
        }
        if let Some((relay, _)) = &new_placement {
            let claims = self.claims.entry(relay.clone()).or_default();
            claims.load = claims.load.plus(new_load);
            if old_placement != new_placement {
                claims.edges.insert(name.clone());
                claims.changed_in = version;
                self.remove_waiting(name);
            }
        }
    }

    /// Removes edges whose lease has ended and that have not reported for as long.
    pub(super) fn expire_leases(&mut self) {
        let (now, lease) = (self.now, self.config.lease);
        let has_lease =
            |edge: &EdgeRecord| edge.placement.as_ref().is_some_and(|placement| placement.lease_ends > now);
        let is_expired = |edge: &EdgeRecord| now.since(edge.last_seen) > lease && !has_lease(edge);
        let expired: Vec<Name> =
            self.edges.iter().filter(|(_, edge)| is_expired(edge)).map(|(name, _)| name.clone()).collect();
        for name in expired {
            self.release(&name, now);
            self.edges.remove(&name);
            self.dirty.mark_edge(&name);
        }
    }

    /// Queues the edges of relays that are no longer open. They keep their assignments until they are matched.
    pub(super) fn requeue_displaced(&mut self) {
        let is_open =
            |name: &Name| self.is_open(name) || (!self.relays.contains_key(name) && self.now < self.grace_until);
        let closed = self.claims.iter().filter(|(relay, claims)| !claims.edges.is_empty() && !is_open(relay));
        let displaced: Vec<Name> = closed.flat_map(|(_, claims)| claims.edges.iter().cloned()).collect();
        displaced.iter().for_each(|edge| self.enqueue(edge));
    }
}
