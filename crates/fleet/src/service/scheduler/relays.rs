//! Heartbeats of relays, their capacity and health, and what to send them in return.
//!
//! 1. A relay receives its complete set of reservations if one has changed since the version that it has seen, and otherwise none. It
//!    also receives them if it has seen a version of our epoch that we did not send: a store that lost its latest writes may
//!    have let another process lead in the same epoch.
//! 2. A relay without heartbeats for the duration of a lease is removed. Its edges were matched anew when it became unhealthy.
//! 3. If a relay has seen a later epoch, the store may have been lost, and the epoch is raised. The same holds if it has seen a version
//!    of our epoch that does not exist yet, because then another process leads in the same epoch. Epochs more than
//!    [`MAX_EPOCH_LEAP`] ahead are ignored, and each relay counts once in a lease: a relay that lies must neither use up the
//!    numbers nor extend the grace period of the others. It has no other effect.

use std::collections::BTreeSet;
use std::time::Duration;

use marline_core::units::{Bitrate, Instant, Ratio};

use super::super::api_types::{Heartbeat, HeartbeatReply, RelaySummary, Reservation, StateVersion};
use super::recovered::RecoveredReservations;
use super::{FleetScheduler, Output};
use crate::identity::Name;

/// The state of a relay that has sent a heartbeat.
#[derive(Debug)]
pub(super) struct RelayRecord {
    pub(super) heartbeat: Heartbeat,
    pub(super) last_seen: Instant,
    /// When it last reported a version later than ours (rule 3).
    ahead_at: Option<Instant>,
    /// It was requested to report its reservations and has not done so ([`recovered`](super::recovered)).
    pub(super) is_report_awaited: bool,
    /// The version in the last reply to it.
    last_version: Option<StateVersion>,
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

/// Rule 3. chosen: an epoch begins with each start of the service, so that a million is never reached.
const MAX_EPOCH_LEAP: u64 = 1_000_000;

impl FleetScheduler {
    /// Handles the heartbeat of a relay.
    ///
    /// # Errors
    /// The heartbeat is invalid.
    pub fn heartbeat(
        &mut self,
        relay: &Name,
        mut heartbeat: Heartbeat,
        now: Instant,
    ) -> Result<HeartbeatReply, String> {
        heartbeat.validate()?;
        self.advance(now);
        let (seen_version, reservations) = (heartbeat.seen_version, heartbeat.reservations.take());
        // Computed before the record is replaced, because both depend on the previous heartbeat.
        let must_report = self.must_report_reservations(relay, seen_version) && reservations.is_none();
        let is_expected_report = self.must_report_reservations(relay, seen_version) && self.is_leader;
        let was_open = self.is_open(relay);
        let previous = self.relays.get(relay);
        let (is_new, mut ahead) = (previous.is_none(), previous.and_then(|before| before.ahead_at));
        let is_our_version = previous.and_then(|before| before.last_version) == Some(seen_version);
        if self.is_ahead(seen_version) && ahead.is_none_or(|at| self.now.since(at) >= self.config.lease) {
            ahead = Some(self.now);
            self.outputs.push_back(Output::RaiseEpoch(seen_version.epoch));
        }
        if previous.is_none_or(|before| !before.heartbeat.is_same_relay(&heartbeat)) {
            self.dirty.mark_relay(relay);
        }
        self.relays.insert(
            relay.clone(),
            RelayRecord {
                heartbeat,
                last_seen: self.now,
                ahead_at: ahead,
                is_report_awaited: must_report,
                last_version: None,
            },
        );
        let request_reservations = must_report && self.is_leader;
        self.is_recovering |= request_reservations || is_expected_report;
        match reservations {
            Some(reservations) if is_expected_report => self.accept_reservations(relay, reservations),
            _ if is_new && self.is_leader && !must_report => self.shed_excess(relay),
            _ => {}
        }
        // The relay drains from now on: let the next tick queue its edges at once.
        if was_open && !self.is_open(relay) {
            self.next_sweep = self.now;
        }
        let changed = self.claims.get(relay).map_or(StateVersion::default(), |claims| claims.changed_in);
        let is_up_to_date = seen_version.epoch == self.version.epoch
            && seen_version >= changed
            && (is_our_version || !self.is_leader);
        // A relay that is requested to report has not received the new state. With the version unchanged it keeps its reservations.
        let version = if request_reservations { seen_version } else { self.version };
        if let Some(record) = self.relays.get_mut(relay) {
            record.last_version = Some(version);
        }
        Ok(HeartbeatReply {
            version,
            heartbeat_ms: millis(self.config.heartbeat),
            revocations: 0,
            draining: self.drains.contains_key(relay),
            reservations: (!is_up_to_date && !request_reservations).then(|| self.reservations_at(relay)),
            report_reservations: request_reservations,
        })
    }

    /// Drains a relay on an operator's order, for `time` or without end, or undrains it.
    pub fn drain(&mut self, relay: &Name, closed: bool, time: Option<Duration>, now: Instant) {
        self.advance(now);
        if closed {
            self.drains.insert(relay.clone(), time.map(|time| self.now + time));
            self.next_sweep = self.now;
        } else {
            self.drains.remove(relay);
        }
    }

    /// Replaces all drains.
    pub fn set_drains(&mut self, drains: Vec<(Name, Option<Duration>)>, now: Instant) {
        self.advance(now);
        self.drains = drains.into_iter().map(|(relay, time)| (relay, time.map(|time| self.now + time))).collect();
        self.next_sweep = self.now;
    }

    /// The current drains, each with its remaining time; none: no end.
    pub fn active_drains(&self) -> Vec<(Name, Option<Duration>)> {
        let left = |until: &Option<Instant>| until.map(|until| until.since(self.now));
        self.drains.iter().map(|(relay, until)| (relay.clone(), left(until))).collect()
    }

    /// Whether this relay has sent a heartbeat.
    pub fn has_relay(&self, relay: &Name) -> bool {
        self.relays.contains_key(relay)
    }

    /// All relays, sorted by name.
    pub fn relay_summaries(&self) -> Vec<RelaySummary> {
        let row = |(name, relay): (&Name, &RelayRecord)| RelaySummary {
            name: name.clone(),
            capacity: relay.heartbeat.capacity,
            free: self.free_capacity(name),
            claimed: self.claims.get(name).map_or(Bitrate::ZERO, |claims| claims.load.total()),
            edges: self.claims.get(name).map_or(0, |claims| claims.edges.len()),
            healthy: self.is_healthy(relay),
            draining: relay.heartbeat.draining || self.drains.contains_key(name),
            age_ms: millis(self.now.since(relay.last_seen)),
            addresses: relay.heartbeat.addresses.clone(),
            position: relay.heartbeat.position,
            certificate_not_after: None,
            duplicate_addresses: Vec::new(),
        };
        self.relays.iter().map(row).collect()
    }

    /// R(s) by rule 3 of the scheduler; zero for an unknown relay.
    pub(super) fn free_capacity(&self, name: &Name) -> Bitrate {
        let Some(relay) = self.relays.get(name) else { return Bitrate::ZERO };
        let claimed = self.claims.get(name).map_or(Bitrate::ZERO, |claims| claims.load.total());
        let reported_use = relay.heartbeat.capacity - relay.heartbeat.free;
        relay.heartbeat.capacity - reported_use.max(claimed)
    }

    /// The capacity for new reservations if the load `leaving` were gone: R(s) less the threshold's share. Throughput beyond the
    /// reservations counts against that share first, so that an edge's report of its throughput takes nothing from other edges.
    pub(super) fn assignable_capacity(&self, name: &Name, leaving: Load) -> Bitrate {
        let Some(relay) = self.relays.get(name).filter(|_| self.is_open(name)) else { return Bitrate::ZERO };
        let remaining_load = self.claims.get(name).map_or_else(Load::default, |claims| claims.load.less(leaving));
        let reported_use = relay.heartbeat.capacity - relay.heartbeat.free - leaving.total();
        let bursts = self.burst_reserve(name);
        let waiting = self.claims.get(name).map_or(Bitrate::ZERO, |claims| claims.recovered.total_waiting());
        relay.heartbeat.capacity
            - bursts
            - reported_use.max(remaining_load.reserved + waiting + (remaining_load.excess - bursts))
    }

    /// The threshold's share of T(s), which is kept for bursts.
    pub(super) fn burst_reserve(&self, name: &Name) -> Bitrate {
        self.relays.get(name).map_or(Bitrate::ZERO, |relay| relay.heartbeat.capacity.share(self.config.threshold))
    }

    /// Whether a relay has seen a version later than ours, within plausible bounds (rule 3).
    fn is_ahead(&self, version: StateVersion) -> bool {
        match version.epoch.checked_sub(self.version.epoch) {
            None => false,
            Some(0) => version.version > self.version.version,
            Some(by) => by <= MAX_EPOCH_LEAP,
        }
    }

    /// Adds a relay that another process has stored.
    pub(super) fn restore_relay(&mut self, name: Name, heartbeat: Heartbeat) {
        let last_seen = self.now;
        // The stored reservations are those that the relay has received, so it need not report them.
        self.relays
            .entry(name)
            .or_insert(RelayRecord {
                heartbeat,
                last_seen,
                ahead_at: None,
                is_report_awaited: false,
                last_version: None,
            })
            .is_report_awaited = false;
    }

    /// r(s): the free share of its capacity; zero for an unknown relay.
    pub(super) fn free_share(&self, name: &Name) -> Ratio {
        let capacity = self.relays.get(name).map_or(0, |relay| relay.heartbeat.capacity.bits_per_sec());
        Ratio::of(self.free_capacity(name).bits_per_sec(), capacity)
    }

    /// Whether it is healthy and accepts new streams.
    pub(super) fn is_open(&self, name: &Name) -> bool {
        let is_usable = |relay: &RelayRecord| self.is_healthy(relay) && !relay.heartbeat.draining;
        self.relays.get(name).is_some_and(is_usable) && !self.drains.contains_key(name)
    }

    fn is_healthy(&self, relay: &RelayRecord) -> bool {
        self.now < self.grace_until
            || self.now.since(relay.last_seen) <= self.config.heartbeat * self.config.max_missed
    }

    pub(super) fn expire_relays(&mut self) {
        let (now, lease) = (self.now, self.config.lease);
        let dirty = &mut self.dirty;
        self.relays.retain(|name, relay| {
            let is_recent = now.since(relay.last_seen) <= lease;
            if !is_recent {
                dirty.mark_relay(name);
            }
            is_recent
        });
    }

    fn reservations_at(&self, relay: &Name) -> Vec<Reservation> {
        let edges = self.claims.get(relay).into_iter().flat_map(|claims| &claims.edges);
        let reservation_of = |name: &Name| {
            let placement = self.edges.get(name)?.placement.as_ref()?;
            Some(Reservation { edge: name.clone(), reservation: placement.reservation, version: placement.version })
        };
        edges.filter_map(reservation_of).chain(self.waiting_at(relay)).collect()
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
