//! The edges, the relays to which they are assigned, and the load that results for each relay.
//!
//! 1. Every change of a placement or of an edge's use must keep the sum of its relay's claims correct: [`Placements::update`] is the only
//!    function that makes such changes.
//! 2. Each change of an assignment has a version of its own.
//! 3. An edge that is placed at a relay loses the reservations that wait for it elsewhere ([`recovered`](super::recovered)).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::SchedulerConfig;
use super::recovered::RecoveredReservations;
use super::replication::{ChangedNames, StoredEdge};
use crate::fleet::Name;
use crate::fleet::messages::{AssignmentRequest, CurrentAssignment, NoRelayReason, Reservation, StateVersion};
use crate::units::{Bitrate, Instant};

/// The state of an edge that has sent a request or report.
#[derive(Debug)]
pub(super) struct EdgeRecord {
    pub(super) request: AssignmentRequest,
    pub(super) last_seen: Instant,
    /// The last reported throughput, at most the capacity of its relay.
    pub(super) throughput: Bitrate,
    /// The part of its throughput beyond its reservation that counts (rule 3 of `edges`).
    pub(super) excess: Bitrate,
    pub(super) placement: Option<Placement>,
    pub(super) reason: Option<NoRelayReason>,
    /// Consecutive reports with low throughput.
    low_reports: u32,
    /// A relay, the rate that it actually delivered, and until when this limits the edge's measurement (rule 2 of `edges`).
    delivered: Option<(Name, Bitrate, Instant)>,
    /// A request waits for its decision.
    pub(super) is_pending: bool,
}

/// The assignment of an edge to a relay.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Placement {
    pub(super) relay: Name,
    pub(super) reservation: Bitrate,
    pub(super) assigned_at: Instant,
    pub(super) lease_ends: Instant,
    pub(super) version: StateVersion,
}

/// The load of edges on a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// The sum of reservations.
    pub(super) reserved: Bitrate,
    /// The throughput beyond the reservations, as far as it counts.
    pub(super) excess: Bitrate,
}

impl Load {
    pub(super) fn total(self) -> Bitrate {
        self.reserved + self.excess
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { reserved: self.reserved + other.reserved, excess: self.excess + other.excess }
    }

    pub(super) fn less(self, other: Self) -> Self {
        Self { reserved: self.reserved - other.reserved, excess: self.excess - other.excess }
    }
}

/// The edges of a relay and their load.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) load: Load,
    pub(super) edges: BTreeSet<Name>,
    /// The version of the last change of this relay's edges or reservations.
    pub(super) changed_in: StateVersion,
    /// The reservations that the relay has reported after the loss of the service's state.
    pub(super) recovered: RecoveredReservations,
}

/// Our choice: a single low report may be due to a moment without radio coverage.
const MAX_LOW_REPORTS: u32 = 2;

impl EdgeRecord {
    /// The load that it puts on its relay.
    pub(super) fn load(&self) -> Load {
        let of = |placement: &Placement| Load { reserved: placement.reservation, excess: self.excess };
        self.placement.as_ref().map_or_else(Load::default, of)
    }

    /// The rate that a relay has delivered recently, if that was too little for what the edge offered (rule 2 of `edges`).
    pub(super) fn delivered_by(&self, relay: &Name, now: Instant) -> Option<Bitrate> {
        self.delivered.as_ref().filter(|(name, _, until)| name == relay && now < *until).map(|(_, rate, _)| *rate)
    }

    /// What is stored of it for the next leader.
    pub(super) fn to_stored(&self) -> StoredEdge {
        let assignment = self.placement.as_ref().map(|placement| CurrentAssignment {
            relay: placement.relay.clone(),
            reservation: placement.reservation,
            version: placement.version,
        });
        StoredEdge { request: self.request.clone(), assignment }
    }

    fn location(&self) -> Option<(Name, Bitrate)> {
        self.placement.as_ref().map(|placement| (placement.relay.clone(), placement.reservation))
    }
}

/// All edges and the claims that result from their placements.
#[derive(Debug, Default)]
pub(super) struct Placements {
    edges: BTreeMap<Name, EdgeRecord>,
    /// The load of each relay by its edges, also of relays that have not sent a heartbeat yet.
    claims: BTreeMap<Name, Claims>,
    version: StateVersion,
    /// At least one relay was requested to report its reservations in this grace period, or has reported them.
    is_recovering: bool,
    changed: ChangedNames,
}

impl Placements {
    /// Without edges, in this epoch.
    pub(super) fn new(epoch: u64) -> Self {
        Self { version: StateVersion { epoch, version: 0 }, ..Self::default() }
    }

    pub(super) fn version(&self) -> StateVersion {
        self.version
    }

    pub(super) fn next_version(&mut self) -> StateVersion {
        self.version.version += 1;
        self.version
    }

    /// Begins a later epoch. No relay has seen it, so each of them must receive its reservations again.
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        self.version = StateVersion { epoch, version: 0 };
        self.mark_claims_changed();
    }

    /// All relays receive their reservations again.
    pub(super) fn mark_claims_changed(&mut self) {
        let version = self.version;
        self.claims.values_mut().for_each(|claims| claims.changed_in = version);
    }

    pub(super) fn get(&self, name: &Name) -> Option<&EdgeRecord> {
        self.edges.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &EdgeRecord)> {
        self.edges.iter()
    }

    pub(super) fn claims_of(&self, relay: &Name) -> Option<&Claims> {
        self.claims.get(relay)
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = (&Name, &Claims)> {
        self.claims.iter()
    }

    pub(super) fn placement_of(&self, name: &Name) -> Option<&Placement> {
        self.edges.get(name)?.placement.as_ref()
    }

    /// Stores the request of an edge and renews its lease.
    pub(super) fn note_request(
        &mut self,
        name: &Name,
        request: AssignmentRequest,
        now: Instant,
        lease_ends: Instant,
    ) {
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
            placement.lease_ends = lease_ends;
        }
    }

    /// A request of this edge waits for its decision.
    pub(super) fn set_pending(&mut self, name: &Name) {
        if let Some(edge) = self.edges.get_mut(name) {
            (edge.is_pending, edge.reason) = (true, Some(NoRelayReason::Pending));
        }
    }

    /// Ends the wait of an edge; returns whether it waited.
    pub(super) fn take_pending(&mut self, name: &Name) -> bool {
        self.edges.get_mut(name).is_some_and(|edge| core::mem::take(&mut edge.is_pending))
    }

    /// Counts low reports; returns whether there were too many of them, so that the edge is matched again.
    pub(super) fn check_throughput(
        &mut self,
        name: &Name,
        (offered, throughput): (Bitrate, Bitrate),
        now: Instant,
        config: &SchedulerConfig,
    ) -> bool {
        let Some(edge) = self.edges.get_mut(name) else { return false };
        let Some(placement) = &edge.placement else { return false };
        let is_low = throughput < offered.min(placement.reservation).share(config.low_share);
        edge.low_reports = if is_low { edge.low_reports + 1 } else { 0 };
        let is_due = edge.low_reports >= MAX_LOW_REPORTS && now.since(placement.assigned_at) >= config.min_stay;
        if is_due {
            edge.low_reports = 0;
            edge.delivered = Some((placement.relay.clone(), throughput, now + config.reallocation_interval));
        }
        is_due
    }

    /// Changes an edge and keeps the claims of its relays consistent (rule 1).
    pub(super) fn update(&mut self, name: &Name, change: impl FnOnce(&mut EdgeRecord)) {
        let version = self.version;
        let Some(edge) = self.edges.get_mut(name) else { return };
        let (old_location, old_load) = (edge.location(), edge.load());
        change(edge);
        let (new_location, new_load) = (edge.location(), edge.load());
        let has_moved = old_location != new_location;
        if has_moved {
            self.changed.mark(name);
        }
        if let Some((relay, _)) = &old_location
            && let Some(claims) = self.claims.get_mut(relay)
        {
            claims.load = claims.load.less(old_load);
            if has_moved {
                claims.edges.remove(name);
                claims.changed_in = version;
            }
        }
        if let Some((relay, _)) = &new_location {
            let claims = self.claims.entry(relay.clone()).or_default();
            claims.load = claims.load.plus(new_load);
            if has_moved {
                claims.edges.insert(name.clone());
                claims.changed_in = version;
                self.remove_waiting(name);
            }
        }
    }

    /// Removes the assignment of an edge.
    pub(super) fn unassign(&mut self, name: &Name, reason: NoRelayReason) {
        if self.placement_of(name).is_some() {
            self.next_version();
        }
        self.update(name, |edge| (edge.placement, edge.reason, edge.excess) = (None, Some(reason), Bitrate::ZERO));
    }

    /// Assigns a relay to an edge. If relay and reservation are unchanged, the placement stays as it is.
    pub(super) fn assign(
        &mut self,
        edge: &Name,
        (relay, reservation): (&Name, Bitrate),
        now: Instant,
        lease_ends: Instant,
    ) {
        let staying = self.placement_of(edge).filter(|placement| placement.relay == *relay);
        if staying.is_some_and(|placement| placement.reservation == reservation) {
            return;
        }
        let assigned_at = staying.map_or(now, |placement| placement.assigned_at);
        let version = self.next_version();
        let placement = Placement { relay: relay.clone(), reservation, assigned_at, lease_ends, version };
        self.update(edge, |edge| {
            if edge.placement.as_ref().is_none_or(|old| old.relay != placement.relay) {
                // The throughput through the old relay is no information about the new one.
                (edge.throughput, edge.excess) = (Bitrate::ZERO, Bitrate::ZERO);
            }
            (edge.placement, edge.reason) = (Some(placement), None);
        });
    }

    /// The edges that have sent neither request nor report for the duration of a lease, and whose lease has ended.
    pub(super) fn expired(&self, now: Instant, config: &SchedulerConfig) -> Vec<Name> {
        let has_lease =
            |edge: &EdgeRecord| edge.placement.as_ref().is_some_and(|placement| placement.lease_ends > now);
        let is_expired = |edge: &EdgeRecord| now.since(edge.last_seen) > config.lease && !has_lease(edge);
        self.edges.iter().filter(|(_, edge)| is_expired(edge)).map(|(name, _)| name.clone()).collect()
    }

    /// Removes an edge that has been released.
    pub(super) fn remove(&mut self, name: &Name) {
        self.edges.remove(name);
        self.changed.mark(name);
    }

    /// Removes the claims of relays that are neither known nor used by edges.
    pub(super) fn remove_unused_claims(&mut self, is_known: impl Fn(&Name) -> bool) {
        self.claims.retain(|relay, claims| !claims.edges.is_empty() || is_known(relay));
    }

    /// The sum of these edges' loads for each relay.
    pub(super) fn load_by_relay<'a>(&self, edges: impl Iterator<Item = &'a Name>) -> BTreeMap<Name, Load> {
        let mut loads = BTreeMap::new();
        for edge in edges.filter_map(|name| self.edges.get(name)) {
            if let Some(placement) = &edge.placement {
                let sum: &mut Load = loads.entry(placement.relay.clone()).or_default();
                *sum = sum.plus(edge.load());
            }
        }
        loads
    }

    /// The reservations at a relay, in the form in which the relay receives them: those of its edges, and those that wait for their edges.
    pub(super) fn reservations_at(&self, relay: &Name) -> Vec<Reservation> {
        let Some(claims) = self.claims.get(relay) else { return Vec::new() };
        let placed = claims.edges.iter().filter_map(|name| {
            let placement = self.placement_of(name)?;
            Some(Reservation { edge: name.clone(), reservation: placement.reservation, version: placement.version })
        });
        let version = self.version;
        let waiting = claims.recovered.waiting();
        placed
            .chain(waiting.map(|(edge, rate)| Reservation { edge: edge.clone(), reservation: rate, version }))
            .collect()
    }

    /// A relay was requested to report its reservations, or reports them.
    pub(super) fn begin_recovery(&mut self) {
        self.is_recovering = true;
    }

    /// Stores the reservations that a relay has reported, up to this capacity.
    pub(super) fn recover(&mut self, relay: &Name, reservations: BTreeMap<Name, Bitrate>, capacity: Bitrate) {
        let is_placed = |edge: &Name| self.placement_of(edge).is_some();
        let recovered = RecoveredReservations::new(reservations, capacity, is_placed);
        let version = self.version;
        let claims = self.claims.entry(relay.clone()).or_default();
        (claims.recovered, claims.changed_in) = (recovered, version);
    }

    /// Ends the waiting reservations of an edge that has been placed or has released its relay.
    pub(super) fn remove_waiting(&mut self, edge: &Name) {
        if self.is_recovering {
            self.claims.values_mut().for_each(|claims| claims.recovered.remove_waiting(edge));
        }
    }

    /// Ends the recovery at the end of the grace period: every running edge has reported by now. Returns whether there was one.
    pub(super) fn end_recovery(&mut self) -> bool {
        if !core::mem::take(&mut self.is_recovering) {
            return false;
        }
        let has_waiting = self.claims.values().any(|claims| claims.recovered.waiting().next().is_some());
        let version = if has_waiting { self.next_version() } else { self.version };
        for claims in self.claims.values_mut() {
            if core::mem::take(&mut claims.recovered).waiting().next().is_some() {
                claims.changed_in = version;
            }
        }
        true
    }

    pub(super) fn changed(&mut self) -> &mut ChangedNames {
        &mut self.changed
    }

    /// Marks all edges as changed.
    pub(super) fn mark_all_changed(&mut self) {
        self.changed.mark_all(self.edges.keys());
    }
}
