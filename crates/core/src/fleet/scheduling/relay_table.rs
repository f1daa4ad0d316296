//! The relays that have sent a heartbeat, and the drains that operators have ordered.
//!
//! A relay without heartbeats for the duration of a lease is removed. Its edges were matched again when it became unhealthy.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::SchedulerConfig;
use super::clock::Clock;
use super::replication::ChangedNames;
use crate::fleet::Name;
use crate::fleet::messages::{Heartbeat, StateVersion};
use crate::units::{Bitrate, Instant};

/// The state of a relay that has sent a heartbeat.
#[derive(Debug)]
pub(super) struct RelayRecord {
    pub(super) heartbeat: Heartbeat,
    pub(super) last_seen: Instant,
    /// When it last reported a version later than ours (rule 3 of `heartbeats`).
    pub(super) ahead_at: Option<Instant>,
    /// It was requested to report its reservations and has not done so ([`recovered`](super::recovered)).
    pub(super) is_report_awaited: bool,
    /// The version in the last reply to it.
    pub(super) last_version: Option<StateVersion>,
}

#[derive(Debug, Default)]
pub(super) struct RelayTable {
    relays: BTreeMap<Name, RelayRecord>,
    /// Relays drained by operators, each with the end of its drain; none: no end.
    drains: BTreeMap<Name, Option<Instant>>,
    changed: ChangedNames,
}

impl RelayTable {
    /// A table without relays, with these drains.
    pub(super) fn with_drains(drains: BTreeMap<Name, Option<Instant>>) -> Self {
        Self { drains, ..Self::default() }
    }

    /// Stores the record that results from a heartbeat.
    pub(super) fn insert(&mut self, name: &Name, record: RelayRecord) {
        let previous = self.relays.get(name);
        if previous.is_none_or(|before| !before.heartbeat.is_same_relay(&record.heartbeat)) {
            self.changed.mark(name);
        }
        self.relays.insert(name.clone(), record);
    }

    /// Adds a relay that another process has stored. The stored reservations are those that the relay has received, so it need not
    /// report them.
    pub(super) fn restore(&mut self, name: Name, heartbeat: Heartbeat, now: Instant) {
        let new = || RelayRecord {
            heartbeat,
            last_seen: now,
            ahead_at: None,
            is_report_awaited: false,
            last_version: None,
        };
        self.relays.entry(name).or_insert_with(new).is_report_awaited = false;
    }

    /// Stores the version of the reply to a relay.
    pub(super) fn set_last_version(&mut self, name: &Name, version: StateVersion) {
        if let Some(record) = self.relays.get_mut(name) {
            record.last_version = Some(version);
        }
    }

    /// Waits no longer for reports of reservations; returns the relays that have sent none.
    pub(super) fn end_reports(&mut self) -> Vec<Name> {
        let awaited = self.relays.iter_mut().filter(|(_, relay)| relay.is_report_awaited);
        awaited
            .map(|(name, relay)| {
                relay.is_report_awaited = false;
                name.clone()
            })
            .collect()
    }

    /// Removes relays that have not reported for the duration of a lease.
    pub(super) fn expire(&mut self, now: Instant, lease: Duration) {
        let Self { relays, changed, .. } = self;
        relays.retain(|name, relay| {
            let is_recent = now.since(relay.last_seen) <= lease;
            if !is_recent {
                changed.mark(name);
            }
            is_recent
        });
    }

    pub(super) fn drain(&mut self, relay: &Name, until: Option<Instant>) {
        self.drains.insert(relay.clone(), until);
    }

    pub(super) fn undrain(&mut self, relay: &Name) {
        self.drains.remove(relay);
    }

    pub(super) fn set_drains(&mut self, drains: BTreeMap<Name, Option<Instant>>) {
        self.drains = drains;
    }

    pub(super) fn take_drains(&mut self) -> BTreeMap<Name, Option<Instant>> {
        core::mem::take(&mut self.drains)
    }

    pub(super) fn expire_drains(&mut self, now: Instant) {
        self.drains.retain(|_, until| until.is_none_or(|until| until > now));
    }

    pub(super) fn drains(&self) -> &BTreeMap<Name, Option<Instant>> {
        &self.drains
    }

    pub(super) fn get(&self, name: &Name) -> Option<&RelayRecord> {
        self.relays.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &RelayRecord)> {
        self.relays.iter()
    }

    /// T(s) of a relay; zero if it is unknown.
    pub(super) fn capacity(&self, name: &Name) -> Bitrate {
        self.relays.get(name).map_or(Bitrate::ZERO, |relay| relay.heartbeat.capacity)
    }

    /// Whether it is healthy and accepts new streams.
    pub(super) fn is_open(&self, name: &Name, clock: Clock, config: &SchedulerConfig) -> bool {
        let is_usable = |relay: &RelayRecord| relay.is_healthy(clock, config) && !relay.heartbeat.draining;
        self.relays.get(name).is_some_and(is_usable) && !self.drains.contains_key(name)
    }

    pub(super) fn changed(&mut self) -> &mut ChangedNames {
        &mut self.changed
    }

    /// Marks all relays as changed.
    pub(super) fn mark_all_changed(&mut self) {
        self.changed.mark_all(self.relays.keys());
    }
}

impl RelayRecord {
    /// Whether its last heartbeat is recent, or members have not had the time to report yet.
    pub(super) fn is_healthy(&self, clock: Clock, config: &SchedulerConfig) -> bool {
        clock.is_in_grace() || clock.now().since(self.last_seen) <= config.heartbeat * config.max_missed
    }
}
