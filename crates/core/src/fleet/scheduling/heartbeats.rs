//! Heartbeats of relays, their capacity and health, and what to send them in return.
//!
//! 1. A relay receives its complete set of reservations if one has changed since the version that it has seen, and otherwise none. It
//!    also receives them if the version that it has seen is not that of our last reply: a store that lost its latest writes may
//!    have let another process lead in the same epoch.
//! 2. A relay must report its reservations if it appears for the first time in this epoch ([`recovered`](super::recovered)).
//! 3. If a relay has seen a later epoch (each leader begins a new one), the store may have been lost, and the epoch is raised. The same
//!    holds if it has seen a version of our epoch that does not exist yet, because then another process leads in the same epoch. Epochs
//!    more than [`MAX_EPOCH_LEAP`] ahead are ignored, and each relay counts once in the time of a lease: a relay that lies must neither
//!    use up the numbers nor extend the grace period of the others. A version ahead of ours has no other effect.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::capacity::millis;
use super::relay_table::RelayRecord;
use super::{FleetScheduler, Output};
use crate::fleet::Name;
use crate::fleet::messages::{Heartbeat, HeartbeatReply, RelaySummary, StateVersion};
use crate::units::{Bitrate, Instant};

/// Rule 3. Our choice: an epoch begins with each start of the service, so that a million is never reached.
const MAX_EPOCH_LEAP: u64 = 1_000_000;

impl FleetScheduler {
    /// Handles the heartbeat of a relay.
    ///
    /// # Errors
    /// The heartbeat is invalid.
    pub(super) fn heartbeat(&mut self, relay: &Name, mut heartbeat: Heartbeat) -> Result<HeartbeatReply, String> {
        heartbeat.validate()?;
        let now = self.clock.now();
        let (seen_version, reservations) = (heartbeat.seen_version, heartbeat.reservations.take());
        // Computed before the record is replaced, because all depend on the previous heartbeat.
        let is_report_due = self.must_report_reservations(relay, seen_version);
        let must_report = is_report_due && reservations.is_none();
        let is_expected_report = is_report_due && self.is_leader;
        let was_open = self.view().is_open(relay);
        let previous = self.relays.get(relay);
        let (is_new, mut ahead_at) = (previous.is_none(), previous.and_then(|before| before.ahead_at));
        let is_our_version = previous.and_then(|before| before.last_version) == Some(seen_version);
        if self.is_ahead(seen_version) && ahead_at.is_none_or(|at| now.since(at) >= self.config.lease) {
            ahead_at = Some(now);
            self.outputs.push_back(Output::RaiseEpoch(seen_version.epoch));
        }
        let record =
            RelayRecord { heartbeat, last_seen: now, ahead_at, is_report_awaited: must_report, last_version: None };
        self.relays.insert(relay, record);
        let request_reservations = must_report && self.is_leader;
        if request_reservations || is_expected_report {
            self.placements.begin_recovery();
        }
        match reservations {
            Some(reservations) if is_expected_report => {
                let capacity = self.relays.capacity(relay) - self.view().burst_reserve(relay);
                self.placements.recover(relay, reservations, capacity);
                self.shed_excess(relay);
            }
            _ if is_new && self.is_leader && !must_report => self.shed_excess(relay),
            _ => {}
        }
        // The relay drains from now on: let the next tick queue its edges at once.
        if was_open && !self.view().is_open(relay) {
            self.next_sweep = now;
        }
        let own_version = self.placements.version();
        let changed = self.placements.claims_of(relay).map_or(StateVersion::default(), |claims| claims.changed_in);
        let is_up_to_date = seen_version.epoch == own_version.epoch
            && seen_version >= changed
            && (is_our_version || !self.is_leader);
        // A relay that is requested to report has not received the new state. With the version unchanged it keeps its reservations.
        let version = if request_reservations { seen_version } else { own_version };
        self.relays.set_last_version(relay, version);
        Ok(HeartbeatReply {
            version,
            heartbeat_ms: millis(self.config.heartbeat),
            revocations: 0,
            draining: self.relays.drains().contains_key(relay),
            reservations: (!is_up_to_date && !request_reservations).then(|| self.placements.reservations_at(relay)),
            report_reservations: request_reservations,
        })
    }

    /// Drains a relay on an operator's order, for `time` or without end, or undrains it.
    pub(super) fn drain(&mut self, relay: &Name, closed: bool, time: Option<Duration>) {
        let now = self.clock.now();
        if closed {
            self.relays.drain(relay, time.map(|time| now + time));
            self.next_sweep = now;
        } else {
            self.relays.undrain(relay);
        }
    }

    /// Replaces all drains.
    pub(super) fn set_drains(&mut self, drains: Vec<(Name, Option<Duration>)>) {
        let now = self.clock.now();
        let drains: BTreeMap<Name, Option<Instant>> =
            drains.into_iter().map(|(relay, time)| (relay, time.map(|time| now + time))).collect();
        self.relays.set_drains(drains);
        self.next_sweep = now;
    }

    /// The current drains, each with its remaining time; none: no end.
    pub fn active_drains(&self) -> Vec<(Name, Option<Duration>)> {
        let left = |until: &Option<Instant>| until.map(|until| until.since(self.clock.now()));
        self.relays.drains().iter().map(|(relay, until)| (relay.clone(), left(until))).collect()
    }

    /// Whether this relay is known: it has sent a heartbeat within the time of a lease, or was restored from the store.
    pub fn has_relay(&self, relay: &Name) -> bool {
        self.relays.get(relay).is_some()
    }

    /// All relays, sorted by name.
    pub fn relay_summaries(&self) -> Vec<RelaySummary> {
        let row = |(name, relay): (&Name, &RelayRecord)| {
            let claims = self.placements.claims_of(name);
            RelaySummary {
                name: name.clone(),
                capacity: relay.heartbeat.capacity,
                free: self.view().free_capacity(name),
                claimed: claims.map_or(Bitrate::ZERO, |claims| claims.load.total()),
                edges: claims.map_or(0, |claims| claims.edges.len()),
                healthy: relay.is_healthy(self.clock, &self.config),
                draining: relay.heartbeat.draining || self.relays.drains().contains_key(name),
                age_ms: millis(self.clock.now().since(relay.last_seen)),
                addresses: relay.heartbeat.addresses.clone(),
                position: relay.heartbeat.position,
                certificate_not_after: None,
                duplicate_addresses: Vec::new(),
            }
        };
        self.relays.iter().map(row).collect()
    }

    /// Whether this relay must report its reservations (rule 1 of `recovered`). `seen`: the last version that it received.
    fn must_report_reservations(&self, relay: &Name, seen: StateVersion) -> bool {
        let is_in_grace = !self.is_leader || self.clock.is_in_grace();
        is_in_grace
            && seen.epoch > 0
            && seen.epoch != self.placements.version().epoch
            && self.relays.get(relay).is_none_or(|before| before.is_report_awaited)
    }

    /// Whether a relay has seen a version later than ours, within plausible bounds (rule 3).
    fn is_ahead(&self, seen: StateVersion) -> bool {
        let own = self.placements.version();
        match seen.epoch.checked_sub(own.epoch) {
            None => false,
            Some(0) => seen.version > own.version,
            Some(by) => by <= MAX_EPOCH_LEAP,
        }
    }
}
