//! What an edge knows of relays: where they are, how fast they were, how far they are; and what measuring has cost.
//!
//! 1. A rate belongs to the links by which it was measured. With others it serves to put relays in order, and is measured anew.
//! 2. What is kept for a later run has ages and no moments: a clock that was set meanwhile makes it older, never newer.
//! 3. At most [`MOST`] relays; those that were not heard of for the longest time are forgotten.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize, Instant};
use serde::{Deserialize, Serialize};

use super::{DAY, FAILED, FRESH};
use crate::ca::Address;
use crate::identity::Name;
use crate::service::words::{Endpoint, Measured};

/// As many as a request may name.
const MOST: usize = 32;
/// chosen: a round trip that is no more than a quarter longer is as short.
const AS_NEAR: u32 = 4;

/// All relays.
#[derive(Debug, Default)]
pub(super) struct Known {
    relays: BTreeMap<Name, Relay>,
    /// What probes have sent over metered links since then.
    paid: (Instant, DataSize),
}

#[derive(Clone, Debug)]
struct Relay {
    addresses: Vec<Endpoint>,
    server_name: Option<Address>,
    heard: Instant,
    rate: Option<Rate>,
    round_trip: Option<Duration>,
    failed: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Rate {
    rate: Bitrate,
    at: Instant,
    links: Vec<String>,
}

/// What is kept for a later run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Where the stream went to.
    #[serde(default)]
    pub origin: Option<Endpoint>,
    /// What probes have sent over metered links in the last day.
    #[serde(default)]
    pub probed_bytes: u64,
    /// Since when.
    #[serde(default)]
    pub probed_s: u64,
    /// Relays, the best first.
    #[serde(default)]
    pub relays: Vec<RelayKnown>,
    /// Of relays of the command line, `HOST:PORT`: the addresses that were found last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<String, Vec<SocketAddr>>,
}

/// One relay, as it is kept and shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelayKnown {
    /// Its name.
    pub relay: Name,
    /// Where it listens.
    pub addresses: Vec<Endpoint>,
    /// What its certificate is verified by.
    pub server_name: Option<Address>,
    /// B(c, s), as it was measured or seen last.
    #[serde(rename = "rate_bps")]
    pub rate: Option<Bitrate>,
    /// How long ago that was.
    pub rate_age_s: Option<u64>,
    /// By which links.
    #[serde(default)]
    pub links: Vec<String>,
    /// The round trip.
    pub rtt_ms: Option<u32>,
    /// It did not answer lately.
    #[serde(default)]
    pub failed: bool,
}

impl Known {
    pub(super) fn of(saved: Saved, passed: Duration, now: Instant) -> Self {
        let ago = |seconds: u64| now - (Duration::from_secs(seconds) + passed);
        let relay = |row: RelayKnown| {
            let at = ago(row.rate_age_s.unwrap_or_default());
            let rate = row.rate.map(|rate| Rate { rate, at, links: row.links });
            let round_trip = row.rtt_ms.map(|millis| Duration::from_millis(millis.into()));
            let RelayKnown { relay, addresses, server_name, .. } = row;
            (relay, Relay { addresses, server_name, heard: ago(0), rate, round_trip, failed: None })
        };
        Self {
            relays: saved.relays.into_iter().take(MOST).map(relay).collect(),
            paid: (ago(saved.probed_s), DataSize::from_bytes(saved.probed_bytes)),
        }
    }

    pub(super) fn save(&self, origin: Option<Endpoint>, now: Instant) -> Saved {
        let rows = self.order(&[], None, now).into_iter().filter_map(|name| self.row(&name, now));
        Saved {
            origin,
            probed_bytes: self.paid(now).bytes(),
            probed_s: now.since(self.paid.0).as_secs(),
            relays: rows.map(|row| RelayKnown { failed: false, ..row }).collect(),
            addresses: BTreeMap::new(),
        }
    }

    pub(super) fn row(&self, name: &Name, now: Instant) -> Option<RelayKnown> {
        let relay = self.relays.get(name)?;
        Some(RelayKnown {
            relay: name.clone(),
            addresses: relay.addresses.clone(),
            server_name: relay.server_name.clone(),
            rate: relay.rate.as_ref().map(|rate| rate.rate),
            rate_age_s: relay.rate.as_ref().map(|rate| now.since(rate.at).as_secs()),
            links: relay.rate.as_ref().map(|rate| rate.links.clone()).unwrap_or_default(),
            rtt_ms: relay.round_trip.map(millis),
            failed: self.is_failed(name, now),
        })
    }

    /// The service has named a relay. Where it does not say where that is, what was known counts.
    pub(super) fn meet(&mut self, name: &Name, addresses: Vec<Endpoint>, server: Option<Address>, now: Instant) {
        let new = || Relay {
            addresses: Vec::new(),
            server_name: None,
            heard: now,
            rate: None,
            round_trip: None,
            failed: None,
        };
        let relay = self.relays.entry(name.clone()).or_insert_with(new);
        relay.heard = now;
        if !addresses.is_empty() {
            (relay.addresses, relay.server_name) = (addresses, server);
        }
        while self.relays.len() > MOST {
            let oldest = self.relays.iter().min_by_key(|(_, relay)| relay.heard).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.relays.remove(&oldest));
        }
    }

    pub(super) fn measure(
        &mut self,
        name: &Name,
        rate: Bitrate,
        round_trip: Option<Duration>,
        links: &[String],
        now: Instant,
    ) {
        let Some(relay) = self.relays.get_mut(name) else { return };
        relay.rate = Some(Rate { rate, at: now, links: links.to_vec() });
        relay.round_trip = round_trip.or(relay.round_trip);
        relay.failed = None;
    }

    pub(super) fn fail(&mut self, name: &Name, fails: bool, now: Instant) {
        if let Some(relay) = self.relays.get_mut(name) {
            relay.failed = fails.then_some(now);
        }
    }

    pub(super) fn is_failed(&self, name: &Name, now: Instant) -> bool {
        let failed = self.relays.get(name).and_then(|relay| relay.failed);
        failed.is_some_and(|failed| now.since(failed) < FAILED)
    }

    pub(super) fn rate(&self, name: &Name) -> Option<Bitrate> {
        self.relays.get(name)?.rate.as_ref().map(|rate| rate.rate)
    }

    pub(super) fn is_fresh(&self, name: &Name, links: &[String], now: Instant) -> bool {
        let rate = self.relays.get(name).and_then(|relay| relay.rate.as_ref());
        rate.is_some_and(|rate| now.since(rate.at) < FRESH && (links.is_empty() || rate.links == links))
    }

    /// The highest rate of a relay that does not fail.
    pub(super) fn best(&self, now: Instant) -> Bitrate {
        let rates = self.relays.keys().filter(|name| !self.is_failed(name, now));
        rates.filter_map(|name| self.rate(name)).max().unwrap_or_default()
    }

    /// All whose place is known: those with a rate first, then those offered, in that order. With `enough` those that reach it
    /// come first, by their round trips.
    pub(super) fn order(&self, offered: &[Name], enough: Option<Bitrate>, now: Instant) -> Vec<Name> {
        let key = |name: &Name| {
            let rate = self.rate(name).unwrap_or_default();
            let near = enough.filter(|enough| rate >= *enough && !rate.is_zero());
            let round_trip = self.relays.get(name).and_then(|relay| relay.round_trip).unwrap_or(Duration::MAX);
            let place = offered.iter().position(|one| one == name).unwrap_or(usize::MAX);
            let by_trip = near.map_or(Duration::MAX, |_| round_trip);
            (self.is_failed(name, now), by_trip, Reverse(rate), place)
        };
        let placed = self.relays.iter().filter(|(_, relay)| !relay.addresses.is_empty());
        let mut names: Vec<Name> = placed.map(|(name, _)| name.clone()).collect();
        names.sort_by_key(key);
        names
    }

    /// What a request says. With `enough` only the nearest of those that reach it: the service gives no other then.
    pub(super) fn measured(&self, enough: Option<Bitrate>, now: Instant) -> Vec<Measured> {
        let good = |(name, relay): (&Name, &Relay)| {
            let rate = relay.rate.as_ref().filter(|rate| !rate.rate.is_zero() && !self.is_failed(name, now))?;
            Some((name.clone(), rate.rate, relay.round_trip))
        };
        let mut rows: Vec<_> = self.relays.iter().filter_map(good).collect();
        if let Some(enough) = enough {
            let trips = rows.iter().filter(|(_, rate, _)| *rate >= enough).filter_map(|(_, _, trip)| *trip);
            if let Some(nearest) = trips.min() {
                let as_near = nearest + nearest / AS_NEAR;
                rows.retain(|(_, rate, trip)| *rate >= enough && trip.is_some_and(|trip| trip <= as_near));
            }
        }
        let measured = |(relay, rate, trip): (Name, Bitrate, Option<Duration>)| Measured {
            relay,
            rate,
            rtt_ms: trip.map(millis),
        };
        rows.into_iter().map(measured).collect()
    }

    /// So much was sent over metered links.
    pub(super) fn pay(&mut self, sent: DataSize, now: Instant) {
        let paid = self.paid(now);
        let since = if paid.is_zero() { now } else { self.paid.0 };
        self.paid = (since, paid + sent);
    }

    /// What was sent over them in the last day.
    pub(super) fn paid(&self, now: Instant) -> DataSize {
        if now.since(self.paid.0) < DAY { self.paid.1 } else { DataSize::ZERO }
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}
