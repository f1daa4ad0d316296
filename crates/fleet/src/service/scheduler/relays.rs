//! Relays: what they say, what their edges claim, and what follows of both.
//!
//! 1. Whose reservations have changed since the state that a relay has seen, is told all of them; others nothing. So is who has seen a
//!    state of our epoch that we have not told it: a store that lost its newest words has let somebody else lead in the same one.
//! 2. A relay that has not been heard for a lease is forgotten; its edges were matched anew when it missed its heartbeats.
//! 3. A relay that has seen a later epoch counts, for a store may have been lost, and so does one that has seen a version of
//!    ours that is still to come: another one leads in the same epoch. But not beyond [`FARTHEST`], and each relay once in a lease:
//!    one that lies must neither use up the numbers nor keep the others listening. Nothing else follows of it.

use std::collections::BTreeSet;
use std::time::Duration;

use marline_core::units::{Bitrate, Instant, Ratio};

use super::super::api_types::{Heartbeat, HeartbeatReply, RelaySummary, Reservation, StateVersion};
use super::recovered::RecoveredReservations;
use super::{FleetScheduler, Output};
use crate::identity::Name;

/// A relay that was heard.
#[derive(Debug)]
pub(super) struct RelayRecord {
    pub(super) heartbeat: Heartbeat,
    pub(super) last_seen: Instant,
    /// When it was ahead of us last (rule 3).
    ahead_at: Option<Instant>,
    /// It is to say what it keeps, and has not yet ([`kept`](super::kept)).
    pub(super) is_report_awaited: bool,
    /// What it was told last.
    last_version: Option<StateVersion>,
}

/// What edges take up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// What is kept for them.
    pub(super) reserved: Bitrate,
    /// What they use beyond that.
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

/// What edges have at a relay.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) load: Load,
    pub(super) edges: BTreeSet<Name>,
    /// When somebody came, went, or got another reservation.
    pub(super) changed_in: StateVersion,
    /// What the relay has said that it keeps.
    pub(super) recovered: RecoveredReservations,
}

/// Rule 3. chosen: epochs count starts of the service.
const MAX_EPOCH_LEAP: u64 = 1_000_000;

impl FleetScheduler {
    /// A relay announces itself.
    ///
    /// # Errors
    /// What it says cannot be.
    pub fn heartbeat(
        &mut self,
        relay: &Name,
        mut heartbeat: Heartbeat,
        now: Instant,
    ) -> Result<HeartbeatReply, String> {
        heartbeat.validate()?;
        self.advance(now);
        let (seen_version, reservations) = (heartbeat.seen_version, heartbeat.reservations.take());
        let is_asked = self.must_report_reservations(relay, seen_version) && reservations.is_none();
        let is_answer = self.must_report_reservations(relay, seen_version) && self.is_leader;
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
                is_report_awaited: is_asked,
                last_version: None,
            },
        );
        let tell_held = is_asked && self.is_leader;
        self.is_recovering |= tell_held || is_answer;
        match reservations {
            Some(reservations) if is_answer => self.accept_reservations(relay, reservations),
            _ if is_new && self.is_leader && !is_asked => self.shed_excess(relay),
            _ => {}
        }
        if was_open && !self.is_open(relay) {
            self.next_sweep = self.now;
        }
        let changed = self.claims.get(relay).map_or(StateVersion::default(), |claims| claims.changed_in);
        let is_up_to_date = seen_version.epoch == self.version.epoch
            && seen_version >= changed
            && (is_our_version || !self.is_leader);
        // One that is asked has seen nothing new, and keeps what it has.
        let version = if tell_held { seen_version } else { self.version };
        if let Some(record) = self.relays.get_mut(relay) {
            record.last_version = Some(version);
        }
        Ok(HeartbeatReply {
            version,
            heartbeat_ms: millis(self.config.heartbeat),
            revocations: 0,
            draining: self.drains.contains_key(relay),
            reservations: (!is_up_to_date && !tell_held).then(|| self.reservations_at(relay)),
            report_reservations: tell_held,
        })
    }

    /// An operator closes a relay for new streams, for so long or for good, or opens it again.
    pub fn drain(&mut self, relay: &Name, closed: bool, time: Option<Duration>, now: Instant) {
        self.advance(now);
        if closed {
            self.drains.insert(relay.clone(), time.map(|time| self.now + time));
            self.next_sweep = self.now;
        } else {
            self.drains.remove(relay);
        }
    }

    /// What operators have said in all, and to whoever; nothing else counts.
    pub fn set_drains(&mut self, drains: Vec<(Name, Option<Duration>)>, now: Instant) {
        self.advance(now);
        self.drains = drains.into_iter().map(|(relay, time)| (relay, time.map(|time| self.now + time))).collect();
        self.next_sweep = self.now;
    }

    /// What operators have said and still counts, and for how long.
    pub fn active_drains(&self) -> Vec<(Name, Option<Duration>)> {
        let left = |until: &Option<Instant>| until.map(|until| until.since(self.now));
        self.drains.iter().map(|(relay, until)| (relay.clone(), left(until))).collect()
    }

    /// Whether this relay has announced itself.
    pub fn has_relay(&self, relay: &Name) -> bool {
        self.relays.contains_key(relay)
    }

    /// All relays, by name.
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

    /// R(s), by rule 3 of the machine; none of a relay that is not known.
    pub(super) fn free_capacity(&self, name: &Name) -> Bitrate {
        let Some(relay) = self.relays.get(name) else { return Bitrate::ZERO };
        let claimed = self.claims.get(name).map_or(Bitrate::ZERO, |claims| claims.load.total());
        let reported_use = relay.heartbeat.capacity - relay.heartbeat.free;
        relay.heartbeat.capacity - reported_use.max(claimed)
    }

    /// What a relay can still be given, if these were not there: R(s) less the threshold's share, which bursts of others fill
    /// first. So the word of one edge takes nothing from another.
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

    /// The threshold's share of T(s).
    pub(super) fn burst_reserve(&self, name: &Name) -> Bitrate {
        self.relays.get(name).map_or(Bitrate::ZERO, |relay| relay.heartbeat.capacity.share(self.config.threshold))
    }

    /// Rule 3.
    fn is_ahead(&self, version: StateVersion) -> bool {
        match version.epoch.checked_sub(self.version.epoch) {
            None => false,
            Some(0) => version.version > self.version.version,
            Some(by) => by <= MAX_EPOCH_LEAP,
        }
    }

    /// One that another process has heard.
    pub(super) fn restore_relay(&mut self, name: Name, heartbeat: Heartbeat) {
        let last_seen = self.now;
        // What is written is what it was told.
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

    /// r(s).
    pub(super) fn free_share(&self, name: &Name) -> Ratio {
        let capacity = self.relays.get(name).map_or(0, |relay| relay.heartbeat.capacity.bits_per_sec());
        Ratio::of(self.free_capacity(name).bits_per_sec(), capacity)
    }

    /// Whether it is there and takes new streams.
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
        let news = &mut self.dirty;
        self.relays.retain(|name, relay| {
            let is_recent = now.since(relay.last_seen) <= lease;
            if !is_recent {
                news.mark_relay(name);
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
