//! Reservations that relays report after the service has lost its state.
//!
//! A relay holds the reservations that it received earlier. After a restart it reports them, and the scheduler sets capacity aside for
//! the edges in this list until they report.
//!
//! 1. A relay is requested to report its reservations if it appears for the first time in this epoch, has received reservations in an
//!    earlier epoch, and the grace period still runs. Until it has done so it keeps its reservations, and the edges' own reports are
//!    accepted.
//! 2. The list takes precedence over the edges' reports. Its reservations wait for their edges during the grace period, and an edge that
//!    reports more than is listed for it gets only what remains. If the capacity does not suffice, the edge that exceeds its
//!    listed reservation the most is removed first.
//! 3. A list counts up to the capacity of the relay: a relay that lies fills only itself. Edges that have reported are not
//!    affected by it, and an edge that is placed at any relay, or releases its relay, loses its waiting reservations.
//! 4. An edge that is only in a list has no lease. Its reservation ends with the grace period.

use std::collections::BTreeMap;

use marline_core::units::Bitrate;

use super::super::api_types::{Reservation, StateVersion};
use super::FleetScheduler;
use crate::identity::Name;

/// The reservations that one relay has reported.
#[derive(Debug, Default)]
pub(super) struct RecoveredReservations {
    /// All listed reservations, up to the capacity of the relay.
    reported: BTreeMap<Name, Bitrate>,
    /// Those of edges that have not reported yet.
    waiting: BTreeMap<Name, Bitrate>,
    total_waiting: Bitrate,
}

impl RecoveredReservations {
    /// The capacity that waits for edges other than this one.
    fn waiting_for_others(&self, edge: &Name) -> Bitrate {
        self.total_waiting - self.waiting_for(edge)
    }

    /// The capacity that waits for this edge.
    pub(super) fn waiting_for(&self, edge: &Name) -> Bitrate {
        self.waiting.get(edge).copied().unwrap_or_default()
    }

    /// By how much this edge's reservation exceeds the list.
    pub(super) fn excess_over_listed(&self, edge: &Name, reserved: Bitrate) -> Bitrate {
        reserved - self.reported.get(edge).copied().unwrap_or_default()
    }

    /// The listed reservation of an edge.
    pub(super) fn reported(&self, edge: &Name) -> Option<Bitrate> {
        self.reported.get(edge).copied()
    }

    /// The capacity that waits for all edges together.
    pub(super) fn total_waiting(&self) -> Bitrate {
        self.total_waiting
    }

    fn remove_waiting(&mut self, edge: &Name) {
        if let Some(rate) = self.waiting.remove(edge) {
            self.total_waiting = self.total_waiting - rate;
        }
    }
}

impl FleetScheduler {
    /// Whether this relay must report its reservations (rule 1). `seen`: the last version that it received.
    pub(super) fn must_report_reservations(&self, relay: &Name, seen: StateVersion) -> bool {
        let is_in_grace = !self.is_leader || self.now < self.grace_until;
        let record = self.relays.get(relay);
        is_in_grace
            && seen.epoch > 0
            && seen.epoch != self.version.epoch
            && record.is_none_or(|before| before.is_report_awaited)
    }

    /// Whether the relay was requested to report its reservations and has not done so.
    pub(super) fn is_report_awaited(&self, relay: &Name) -> bool {
        self.now < self.grace_until && self.relays.get(relay).is_some_and(|relay| relay.is_report_awaited)
    }

    /// Stores the reservations that a relay has reported.
    pub(super) fn accept_reservations(&mut self, relay: &Name, reservations: BTreeMap<Name, Bitrate>) {
        let Some(record) = self.relays.get(relay) else { return };
        let mut capacity_left = record.heartbeat.capacity - self.burst_reserve(relay);
        let mut recovered = RecoveredReservations::default();
        for (edge, rate) in reservations.into_iter().filter(|(_, rate)| !rate.is_zero()) {
            if rate > capacity_left {
                continue;
            }
            capacity_left = capacity_left - rate;
            if self.edges.get(&edge).is_none_or(|edge| edge.placement.is_none()) {
                recovered.waiting.insert(edge.clone(), rate);
                recovered.total_waiting = recovered.total_waiting + rate;
            }
            recovered.reported.insert(edge, rate);
        }
        let changed = self.version;
        let claims = self.claims.entry(relay.clone()).or_default();
        (claims.recovered, claims.changed_in) = (recovered, changed);
        self.shed_excess(relay);
    }

    /// The capacity at a relay that waits for edges other than this one.
    pub(super) fn reserved_for_others(&self, relay: &Name, edge: &Name) -> Bitrate {
        self.claims.get(relay).map_or(Bitrate::ZERO, |claims| claims.recovered.waiting_for_others(edge))
    }

    /// Rule 3: ends the waiting reservations of an edge that has been placed or has released its relay.
    pub(super) fn remove_waiting(&mut self, edge: &Name) {
        if self.is_recovering {
            self.claims.values_mut().for_each(|claims| claims.recovered.remove_waiting(edge));
        }
    }

    /// The waiting reservations at a relay, in the form in which the relay receives them.
    pub(super) fn waiting_at(&self, relay: &Name) -> impl Iterator<Item = Reservation> {
        let version = self.version;
        let waiting = self.claims.get(relay).into_iter().flat_map(|claims| &claims.recovered.waiting);
        waiting.map(move |(edge, rate)| Reservation { edge: edge.clone(), reservation: *rate, version })
    }

    /// Ends the recovery at the end of the grace period (rule 4): every running edge has reported by now.
    pub(super) fn end_recovery(&mut self) {
        if !std::mem::take(&mut self.is_recovering) {
            return;
        }
        let has_waiting = self.claims.values().any(|claims| !claims.recovered.waiting.is_empty());
        let version = if has_waiting { self.next_version() } else { self.version };
        for claims in self.claims.values_mut() {
            if !std::mem::take(&mut claims.recovered).waiting.is_empty() {
                claims.changed_in = version;
            }
        }
        let pending_relays: Vec<Name> =
            self.relays.iter().filter(|(_, relay)| relay.is_report_awaited).map(|(name, _)| name.clone()).collect();
        for relay in pending_relays {
            if let Some(record) = self.relays.get_mut(&relay) {
                record.is_report_awaited = false;
            }
            self.shed_excess(&relay);
        }
    }
}
