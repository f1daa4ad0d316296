//! Measurements of relays: their addresses, throughputs, RTTs and failures, and how many metered bytes the probes have used.
//!
//! 1. A rate belongs to the set of links over which it was measured. After a change of the links it still ranks the relays, but is measured
//!    again.
//! 2. Saved state contains ages instead of points in time, so that no rate was measured in the future. If the clock was set forward
//!    since the state was saved, a rate looks older than it is. If it was set back to an earlier time, the rates are too old to be
//!    fresh ([`PersistedState::expire_rates`]).
//! 3. At most [`MAX_RELAYS`] relays are kept; the one seen least recently is dropped first.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::SocketAddr;
use core::time::Duration;

use crate::units::{Bitrate, DataSize, Instant};
use serde::{Deserialize, Serialize};

use super::{DAY, FAILURE_MEMORY, RATE_LIFETIME};
use crate::fleet::messages::RelayMeasurement;
use crate::fleet::{Address, Endpoint, Name};

/// As many as a request may contain.
const MAX_RELAYS: usize = 32;
/// Divisor: an RTT may be longer than the shortest by a quarter of it and still count as equal. Our choice.
const RTT_TOLERANCE: u32 = 4;

/// Measurements of all known relays.
#[derive(Debug, Default)]
pub(super) struct RelayStats {
    relays: BTreeMap<Name, RelayRecord>,
    /// When the current day of probes over metered links began (with its first probe), and the bytes that they have sent since.
    metered_probes: (Instant, DataSize),
}

#[derive(Clone, Debug)]
struct RelayRecord {
    addresses: Vec<Endpoint>,
    server_name: Option<Address>,
    last_seen: Instant,
    rate: Option<MeasuredRate>,
    rtt: Option<Duration>,
    failed_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct MeasuredRate {
    rate: Bitrate,
    measured_at: Instant,
    links: Vec<String>,
}

/// State that is saved for a later run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PersistedState {
    /// The origin server of the stream.
    #[serde(default)]
    pub origin: Option<Endpoint>,
    /// Bytes that probes have sent over metered links in the current day, which begins with its first probe.
    #[serde(default)]
    pub probed_bytes: u64,
    /// How long ago that count began, in seconds.
    #[serde(default)]
    #[serde(alias = "probed_s")]
    pub probed_age_s: u64,
    /// Known relays, in order of preference.
    #[serde(default)]
    pub relays: Vec<RelayInfo>,
    /// For relays of the command line, by `HOST:PORT`: the addresses to which the host name resolved last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<String, Vec<SocketAddr>>,
}

/// One relay, as it is saved and shown in the status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelayInfo {
    /// The name in the fleet.
    pub relay: Name,
    /// Where it listens, in order of preference.
    pub addresses: Vec<Endpoint>,
    /// The name or address that its certificate must contain.
    pub server_name: Option<Address>,
    /// B(c, s), as last measured or observed.
    #[serde(rename = "rate_bps")]
    pub rate: Option<Bitrate>,
    /// How long ago that was, in seconds.
    pub rate_age_s: Option<u64>,
    /// The links over which it was measured.
    #[serde(default)]
    pub links: Vec<String>,
    /// The RTT in milliseconds.
    pub rtt_ms: Option<u32>,
    /// Whether it failed recently.
    #[serde(default)]
    pub failed: bool,
}

impl PersistedState {
    /// Makes all rates too old to be fresh, because the time since the state was saved is unknown. They still rank the relays. The
    /// count of metered bytes keeps its age, so that no more is sent than the limit allows.
    pub fn expire_rates(&mut self) {
        for relay in &mut self.relays {
            relay.rate_age_s = relay.rate_age_s.max(Some(RATE_LIFETIME.as_secs()));
        }
    }
}

impl RelayStats {
    pub(super) fn restore(saved: PersistedState, elapsed: Duration, now: Instant) -> Self {
        let ago = |seconds: u64| now - (Duration::from_secs(seconds) + elapsed);
        let relay = |row: RelayInfo| {
            let at = ago(row.rate_age_s.unwrap_or_default());
            let rate = row.rate.map(|rate| MeasuredRate { rate, measured_at: at, links: row.links });
            let rtt = row.rtt_ms.map(|millis| Duration::from_millis(millis.into()));
            let RelayInfo { relay, addresses, server_name, .. } = row;
            (relay, RelayRecord { addresses, server_name, last_seen: ago(0), rate, rtt, failed_at: None })
        };
        Self {
            relays: saved.relays.into_iter().take(MAX_RELAYS).map(relay).collect(),
            metered_probes: (ago(saved.probed_age_s), DataSize::from_bytes(saved.probed_bytes)),
        }
    }

    pub(super) fn save(&self, origin: Option<Endpoint>, now: Instant) -> PersistedState {
        let rows = self.ranked(&[], None, now).into_iter().filter_map(|name| self.info(&name, now));
        PersistedState {
            origin,
            probed_bytes: self.metered_today(now).bytes(),
            probed_age_s: now.since(self.metered_probes.0).as_secs(),
            relays: rows.map(|row| RelayInfo { failed: false, ..row }).collect(),
            addresses: BTreeMap::new(),
        }
    }

    pub(super) fn info(&self, name: &Name, now: Instant) -> Option<RelayInfo> {
        let relay = self.relays.get(name)?;
        Some(RelayInfo {
            relay: name.clone(),
            addresses: relay.addresses.clone(),
            server_name: relay.server_name.clone(),
            rate: relay.rate.as_ref().map(|rate| rate.rate),
            rate_age_s: relay.rate.as_ref().map(|rate| now.since(rate.measured_at).as_secs()),
            links: relay.rate.as_ref().map(|rate| rate.links.clone()).unwrap_or_default(),
            rtt_ms: relay.rtt.map(millis),
            failed: self.is_failed(name, now),
        })
    }

    /// Adds a relay that the service has named. If no addresses are given, the known ones are kept.
    pub(super) fn add(&mut self, name: &Name, addresses: Vec<Endpoint>, server: Option<Address>, now: Instant) {
        let new = || RelayRecord {
            addresses: Vec::new(),
            server_name: None,
            last_seen: now,
            rate: None,
            rtt: None,
            failed_at: None,
        };
        let relay = self.relays.entry(name.clone()).or_insert_with(new);
        relay.last_seen = now;
        if !addresses.is_empty() {
            (relay.addresses, relay.server_name) = (addresses, server);
        }
        while self.relays.len() > MAX_RELAYS {
            let oldest = self.relays.iter().min_by_key(|(_, relay)| relay.last_seen).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.relays.remove(&oldest));
        }
    }

    pub(super) fn record_rate(
        &mut self,
        name: &Name,
        rate: Bitrate,
        rtt: Option<Duration>,
        links: &[String],
        now: Instant,
    ) {
        let Some(relay) = self.relays.get_mut(name) else { return };
        relay.rate = Some(MeasuredRate { rate, measured_at: now, links: links.to_vec() });
        relay.rtt = rtt.or(relay.rtt);
        relay.failed_at = None;
    }

    pub(super) fn set_failed(&mut self, name: &Name, has_failed: bool, now: Instant) {
        if let Some(relay) = self.relays.get_mut(name) {
            relay.failed_at = has_failed.then_some(now);
        }
    }

    pub(super) fn is_failed(&self, name: &Name, now: Instant) -> bool {
        let failed = self.relays.get(name).and_then(|relay| relay.failed_at);
        failed.is_some_and(|failed| now.since(failed) < FAILURE_MEMORY)
    }

    pub(super) fn rate(&self, name: &Name) -> Option<Bitrate> {
        self.relays.get(name)?.rate.as_ref().map(|rate| rate.rate)
    }

    pub(super) fn is_fresh(&self, name: &Name, links: &[String], now: Instant) -> bool {
        let rate = self.relays.get(name).and_then(|relay| relay.rate.as_ref());
        rate.is_some_and(|rate| {
            now.since(rate.measured_at) < RATE_LIFETIME && (links.is_empty() || rate.links == links)
        })
    }

    /// The highest rate of a relay that has not failed.
    pub(super) fn best_rate(&self, now: Instant) -> Bitrate {
        let rates = self.relays.keys().filter(|name| !self.is_failed(name, now));
        rates.filter_map(|name| self.rate(name)).max().unwrap_or_default()
    }

    /// All relays with known addresses: by falling rate, those without a rate in the order in which the service offered them, then the
    /// others. With `sufficient_rate`, relays that reach this rate come first, ordered by RTT. Failed ones come last.
    pub(super) fn ranked(&self, offered: &[Name], sufficient_rate: Option<Bitrate>, now: Instant) -> Vec<Name> {
        let key = |name: &Name| {
            let rate = self.rate(name).unwrap_or_default();
            let is_fast_enough =
                sufficient_rate.filter(|sufficient_rate| rate >= *sufficient_rate && !rate.is_zero());
            let rtt = self.relays.get(name).and_then(|relay| relay.rtt).unwrap_or(Duration::MAX);
            let offered_at = offered.iter().position(|one| one == name).unwrap_or(usize::MAX);
            let rtt_rank = is_fast_enough.map_or(Duration::MAX, |_| rtt);
            (self.is_failed(name, now), rtt_rank, Reverse(rate), offered_at)
        };
        let located = self.relays.iter().filter(|(_, relay)| !relay.addresses.is_empty());
        let mut names: Vec<Name> = located.map(|(name, _)| name.clone()).collect();
        names.sort_by_key(key);
        names
    }

    /// The measurements for a request. With `sufficient_rate`, only the nearest relays that reach this rate are included, so that the
    /// service can assign no other.
    pub(super) fn measurements(&self, sufficient_rate: Option<Bitrate>, now: Instant) -> Vec<RelayMeasurement> {
        let measured_row = |(name, relay): (&Name, &RelayRecord)| {
            let rate = relay.rate.as_ref().filter(|rate| !rate.rate.is_zero() && !self.is_failed(name, now))?;
            Some((name.clone(), rate.rate, relay.rtt))
        };
        let mut rows: Vec<_> = self.relays.iter().filter_map(measured_row).collect();
        if let Some(sufficient_rate) = sufficient_rate {
            let rtts = rows.iter().filter(|(_, rate, _)| *rate >= sufficient_rate).filter_map(|(_, _, rtt)| *rtt);
            if let Some(nearest) = rtts.min() {
                let max_rtt = nearest + nearest / RTT_TOLERANCE;
                rows.retain(|(_, rate, rtt)| *rate >= sufficient_rate && rtt.is_some_and(|rtt| rtt <= max_rtt));
            }
        }
        let to_measurement = |(relay, rate, rtt): (Name, Bitrate, Option<Duration>)| RelayMeasurement {
            relay,
            rate,
            rtt_ms: rtt.map(millis),
        };
        rows.into_iter().map(to_measurement).collect()
    }

    /// Adds bytes that were sent over metered links.
    pub(super) fn add_metered(&mut self, sent: DataSize, now: Instant) {
        let total = self.metered_today(now);
        let since = if total.is_zero() { now } else { self.metered_probes.0 };
        self.metered_probes = (since, total + sent);
    }

    /// Bytes that probes have sent over metered links in the current day.
    pub(super) fn metered_today(&self, now: Instant) -> DataSize {
        if now.since(self.metered_probes.0) < DAY { self.metered_probes.1 } else { DataSize::ZERO }
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}
