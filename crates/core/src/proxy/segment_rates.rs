//! Learns link rates across the segments of one player, each of which is too short for an estimate of its own.
//!
//! From the transfers of each stream it derives the rates with which the next stream begins, and which links it begins
//! with on standby.
//!
//! 1. The rate of a link is the received bytes divided by the time in which any stream of this player had an
//!    outstanding request on it.
//! 2. The first second of that time is slow start and is ignored. A link counts as known after two more.
//! 3. A link on standby stays so for the next segment, until a stream activates it.

use alloc::borrow::ToOwned as _;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use crate::predict::Forecast;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// Link rates of one player.
#[derive(Debug, Default)]
pub struct SegmentRates {
    links: BTreeMap<String, LinkRate>,
    standby: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct LinkRate {
    /// Streams with an outstanding request on this link.
    busy_streams: BTreeSet<u64>,
    /// When the link was last sampled.
    sampled_at: Option<Instant>,
    /// Busy time that was skipped as slow start.
    warm_up_time: Duration,
    /// Busy time and bytes since the last sample of the forecast.
    busy_time: Duration,
    bytes: DataSize,
    forecast: Forecast,
}

impl SegmentRates {
    /// The memory that this uses, in bytes.
    pub fn memory_size(&self) -> usize {
        let links =
            self.links.iter().map(|(name, rate)| name.len() + size_of::<LinkRate>() + rate.busy_streams.len() * 16);
        links.sum::<usize>() + self.standby.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>()
    }

    /// Accounts bytes of a stream over a link. `is_busy`: the stream still has an outstanding request on the link.
    pub fn on_transfer(&mut self, now: Instant, stream: u64, link: &str, bytes: u64, is_busy: bool) {
        let rate = self.links.entry(link.to_owned()).or_default();
        let elapsed = rate
            .sampled_at
            .replace(now)
            .map_or(Duration::ZERO, |sampled_at| now.since(sampled_at))
            .min(MAX_SAMPLE_INTERVAL);
        if !rate.busy_streams.is_empty() || bytes > 0 {
            rate.busy_time += elapsed;
            rate.bytes += DataSize::from_bytes(bytes);
        }
        if is_busy {
            rate.busy_streams.insert(stream)
        } else {
            rate.busy_streams.remove(&stream)
        };
        if rate.busy_time < Forecast::SAMPLE_INTERVAL {
            return;
        }
        let (bytes, time) = (core::mem::take(&mut rate.bytes), core::mem::take(&mut rate.busy_time));
        if rate.warm_up_time < WARM_UP {
            rate.warm_up_time += time;
        } else {
            rate.forecast.add(bytes / time);
        }
    }

    /// Notes that a stream has ended.
    pub fn on_stream_ended(&mut self, stream: u64) {
        for rate in self.links.values_mut() {
            rate.busy_streams.remove(&stream);
        }
    }

    /// Notes that a stream puts a link on standby, or activates it.
    pub fn set_standby(&mut self, link: &str, is_standby: bool) {
        if is_standby {
            self.standby.insert(link.to_owned())
        } else {
            self.standby.remove(link)
        };
    }

    /// Activates all links.
    pub fn activate_all(&mut self) {
        self.standby.clear();
    }

    /// Whether a link is on standby.
    pub fn is_standby(&self, link: &str) -> bool {
        self.standby.contains(link)
    }

    /// The estimates for the next stream: interface, rate (zero: not known yet), and whether the link is on standby.
    pub fn estimates(&self) -> Vec<(String, Bitrate, bool)> {
        let known_rate = |link: &LinkRate| {
            if link.forecast.steps() >= MIN_SAMPLES { link.forecast.mean_rate() } else { Bitrate::ZERO }
        };
        self.links
            .iter()
            .map(|(name, link)| (name.clone(), known_rate(link), self.standby.contains(name)))
            .collect()
    }
}

/// At most this much of the time between two reports counts as busy time.
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
const WARM_UP: Duration = Duration::from_secs(1);
const MIN_SAMPLES: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_link_is_measured_while_it_is_busy() {
        let mut rates = SegmentRates::default();
        let mut now = Instant::ZERO;
        // Segments of half a second every two seconds, two overlapping streams, 1 MB/s.
        for n in 0..12_u64 {
            for step in 0..20 {
                now += Duration::from_millis(100);
                let is_active = step < 5;
                rates.on_transfer(now, n, "wifi", if is_active { 100_000 } else { 0 }, step < 4);
                rates.on_transfer(now, n + 1, "wifi", 0, false);
            }
            rates.on_stream_ended(n);
        }
        let expected = rates.estimates();
        let [(name, rate, is_standby)] = &expected[..] else { panic!("{expected:?}") };
        assert_eq!((name.as_str(), *is_standby), ("wifi", false));
        assert!((7.5..10.1).contains(&rate.as_mbps_f64()), "{rate}");
        rates.set_standby("wifi", true);
        assert!(rates.is_standby("wifi") && rates.estimates()[0].2);
        rates.activate_all();
        assert!(!rates.estimates()[0].2);
    }

    #[test]
    fn a_short_observation_yields_no_rate() {
        let mut rates = SegmentRates::default();
        for n in 0..25 {
            rates.on_transfer(Instant::from_millis(n * 100), 1, "wifi", 10_000, true);
        }
        assert_eq!(rates.estimates(), [("wifi".to_owned(), Bitrate::ZERO, false)]);
    }
}
