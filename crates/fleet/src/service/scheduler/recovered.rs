//! What relays say that they keep for edges, when who has told them so knows it no longer.
//!
//! In: a relay's list. Out: room that waits for who stands there.
//!
//! 1. A relay that a later epoch finds here for the first time, and that an earlier one has told of its edges, is asked for them
//!    while everybody announces himself anew. Until it has answered it keeps what it has, and edges are taken at their word.
//! 2. Its list comes before the words of edges: what stands there waits for its edge as long as everybody announces himself, and who
//!    says more than stands there has only what is left. Where that is not enough, whoever says the most beyond it goes first.
//! 3. A list counts as far as the relay can be filled: a relay that lies fills itself and nobody else. It says nothing of who
//!    is here already, and an edge that is seated anywhere, or lets go, is kept no other place.
//! 4. Who is on a list has told nothing yet: he has no lease, and is gone when the others were heard.

use std::collections::BTreeMap;

use marline_core::units::Bitrate;

use super::super::api_types::{Reservation, StateVersion};
use super::FleetScheduler;
use crate::identity::Name;

/// A relay's list.
#[derive(Debug, Default)]
pub(super) struct RecoveredReservations {
    /// All that it has said, as far as it can be filled.
    reported: BTreeMap<Name, Bitrate>,
    /// Those who were not heard yet.
    waiting: BTreeMap<Name, Bitrate>,
    total_waiting: Bitrate,
}

impl RecoveredReservations {
    /// What waits for others than this one.
    fn waiting_for_others(&self, edge: &Name) -> Bitrate {
        self.total_waiting - self.waiting_for(edge)
    }

    /// What waits for this one.
    pub(super) fn waiting_for(&self, edge: &Name) -> Bitrate {
        self.waiting.get(edge).copied().unwrap_or_default()
    }

    /// What this one has said beyond the list.
    pub(super) fn excess_over_report(&self, edge: &Name, reserved: Bitrate) -> Bitrate {
        reserved - self.reported.get(edge).copied().unwrap_or_default()
    }

    /// What stands there of one who is seated.
    pub(super) fn reported(&self, edge: &Name) -> Option<Bitrate> {
        self.reported.get(edge).copied()
    }

    /// What waits in all.
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
    /// Rule 1: whether this relay is to be asked.
    pub(super) fn must_report_reservations(&self, relay: &Name, seen: StateVersion) -> bool {
        let is_in_grace = !self.is_leader || self.now < self.grace_until;
        let record = self.relays.get(relay);
        is_in_grace
            && seen.epoch > 0
            && seen.epoch != self.version.epoch
            && record.is_none_or(|before| before.is_report_awaited)
    }

    /// Whether it was asked and has not answered.
    pub(super) fn is_report_awaited(&self, relay: &Name) -> bool {
        self.now < self.grace_until && self.relays.get(relay).is_some_and(|relay| relay.is_report_awaited)
    }

    /// A relay's list.
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

    /// What waits at a relay for others than this one.
    pub(super) fn reserved_for_others(&self, relay: &Name, edge: &Name) -> Bitrate {
        self.claims.get(relay).map_or(Bitrate::ZERO, |claims| claims.recovered.waiting_for_others(edge))
    }

    /// Rule 3: this one is seated, or has let go.
    pub(super) fn remove_waiting(&mut self, edge: &Name) {
        if self.is_recovering {
            self.claims.values_mut().for_each(|claims| claims.recovered.remove_waiting(edge));
        }
    }

    /// Those at a relay who were not heard yet, as it is told of them.
    pub(super) fn waiting_at(&self, relay: &Name) -> impl Iterator<Item = Reservation> {
        let version = self.version;
        let waiting = self.claims.get(relay).into_iter().flat_map(|claims| &claims.recovered.waiting);
        waiting.map(move |(edge, rate)| Reservation { edge: edge.clone(), reservation: *rate, version })
    }

    /// Rule 4: everybody was heard who lives.
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
        let asked_relays: Vec<Name> =
            self.relays.iter().filter(|(_, relay)| relay.is_report_awaited).map(|(name, _)| name.clone()).collect();
        for relay in asked_relays {
            if let Some(record) = self.relays.get_mut(&relay) {
                record.is_report_awaited = false;
            }
            self.shed_excess(&relay);
        }
    }
}
