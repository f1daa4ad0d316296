//! The free capacity of relays, and the rates that edges can reach through them: read-only calculations on relays and placements.

use core::time::Duration;

use super::SchedulerConfig;
use super::clock::Clock;
use super::placements::{EdgeRecord, Load, Placements};
use super::relay_table::RelayTable;
use crate::fleet::Name;
use crate::fleet::messages::NoRelayReason;
use crate::units::{Bitrate, Ratio};

/// The state at one time, for calculations.
#[derive(Clone, Copy)]
pub(super) struct CapacityView<'a> {
    pub(super) config: &'a SchedulerConfig,
    pub(super) clock: Clock,
    pub(super) relays: &'a RelayTable,
    pub(super) placements: &'a Placements,
}

impl<'a> CapacityView<'a> {
    /// Whether a relay is healthy and accepts new streams.
    pub(super) fn is_open(self, relay: &Name) -> bool {
        self.relays.is_open(relay, self.clock, self.config)
    }

    /// Whether a relay was requested to report its reservations and has not done so.
    pub(super) fn is_report_awaited(self, relay: &Name) -> bool {
        self.clock.is_in_grace() && self.relays.get(relay).is_some_and(|relay| relay.is_report_awaited)
    }

    /// R(s), the free capacity, by rule 3 of the scheduler; zero for an unknown relay.
    pub(super) fn free_capacity(self, name: &Name) -> Bitrate {
        let Some(relay) = self.relays.get(name) else { return Bitrate::ZERO };
        let claimed = self.placements.claims_of(name).map_or(Bitrate::ZERO, |claims| claims.load.total());
        let reported_use = relay.heartbeat.capacity - relay.heartbeat.free;
        relay.heartbeat.capacity - reported_use.max(claimed)
    }

    /// r(s): the free share of a relay's capacity; zero for an unknown relay.
    pub(super) fn free_share(self, name: &Name) -> Ratio {
        Ratio::of(self.free_capacity(name).bits_per_sec(), self.relays.capacity(name).bits_per_sec())
    }

    /// The share ([`SchedulerConfig::threshold`]) of a relay's capacity T(s) that is kept for bursts.
    pub(super) fn burst_reserve(self, name: &Name) -> Bitrate {
        self.relays.capacity(name).share(self.config.threshold)
    }

    /// The capacity for new reservations if the load `leaving` were gone: R(s) less the share for bursts. Throughput beyond the
    /// reservations counts against that share first, so that an edge's report of its throughput takes nothing from other edges.
    pub(super) fn assignable(self, name: &Name, leaving: Load) -> Bitrate {
        let Some(relay) = self.relays.get(name).filter(|_| self.is_open(name)) else { return Bitrate::ZERO };
        let claims = self.placements.claims_of(name);
        let remaining_load = claims.map_or_else(Load::default, |claims| claims.load.less(leaving));
        let reported_use = relay.heartbeat.capacity - relay.heartbeat.free - leaving.total();
        let bursts = self.burst_reserve(name);
        let waiting = claims.map_or(Bitrate::ZERO, |claims| claims.recovered.total_waiting());
        relay.heartbeat.capacity
            - bursts
            - reported_use.max(remaining_load.reserved + waiting + (remaining_load.excess - bursts))
    }

    /// What an edge may take back at the relay that it reports to use (rule 4 of `edges`).
    pub(super) fn reclaimable(self, relay: &Name, edge: &Name) -> Bitrate {
        let is_in_grace = self.clock.is_in_grace();
        match self.relays.get(relay) {
            // The relay will report its reservations; what does not fit is removed then.
            Some(_) if self.is_report_awaited(relay) && self.is_open(relay) => Bitrate::MAX,
            // In the grace period the relay's reported load still includes edges assigned by the previous leader. Only the edges'
            // reports count.
            Some(record) if is_in_grace && self.is_open(relay) => {
                let claims = self.placements.claims_of(relay);
                let assigned = claims.map_or(Bitrate::ZERO, |claims| claims.load.reserved);
                let waiting = claims.map_or(Bitrate::ZERO, |claims| claims.recovered.waiting_for_others(edge));
                record.heartbeat.capacity - self.burst_reserve(relay) - assigned - waiting
            }
            Some(_) => self.assignable(relay, Load::default()),
            None if is_in_grace => Bitrate::MAX,
            None => Bitrate::ZERO,
        }
    }

    /// Rule 3 of `matching`: the relays that an edge has measured, each with the rate through it to the origin server.
    pub(super) fn reachable_rates(self, edge: &'a EdgeRecord) -> impl Iterator<Item = (&'a Name, Bitrate)> {
        edge.request.measurements.iter().filter_map(move |measured| {
            let relay = self.relays.get(&measured.relay)?;
            let origin_rate =
                relay.heartbeat.origin_rates.get(&edge.request.origin).copied().unwrap_or(relay.heartbeat.capacity);
            let delivered = edge.delivered_by(&measured.relay, self.clock.now());
            let uplink = delivered.map_or(measured.rate, |rate| measured.rate.min(rate));
            let wanted = edge.request.target_rate.unwrap_or(Bitrate::MAX);
            Some((&measured.relay, uplink.min(origin_rate).min(wanted)))
        })
    }

    /// Why an edge would get no relay.
    pub(super) fn unmatched_reason(self, edge: &EdgeRecord) -> NoRelayReason {
        let open_relays = self.reachable_rates(edge).filter(|(relay, _)| self.is_open(relay));
        match open_relays.map(|(_, rate)| rate).max() {
            None => NoRelayReason::NoRelay,
            Some(most) if most <= edge.request.best_link_rate => NoRelayReason::NoGain,
            Some(_) => NoRelayReason::NoCapacity,
        }
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
