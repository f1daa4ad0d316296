//! What the segments of one player teach of links, each of them too short to learn anything by itself.
//!
//! In: which links have something to bring, and what they bring, of each stream. Out: what the next stream may expect of
//! them, and which of them rest.
//!
//! 1. A link's rate is what came over it, by the time in which any stream of this player had something under way on it.
//! 2. The first second of that is slow start and counts for nothing; a link is known after two more.
//! 3. A link that rests rests for the next segment, too, until a stream wakes it.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::predict::Forecast;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct SegmentRates {
    links: BTreeMap<String, LinkRate>,
    standby: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct LinkRate {
    /// Streams that have something under way on it.
    busy_streams: BTreeSet<u64>,
    sampled_at: Option<Instant>,
    warm_up_time: Duration,
    busy_time: Duration,
    bytes: DataSize,
    forecast: Forecast,
}

impl SegmentRates {
    /// The memory it takes up, in bytes.
    pub(super) fn memory_size(&self) -> usize {
        let links =
            self.links.iter().map(|(name, rate)| name.len() + size_of::<LinkRate>() + rate.busy_streams.len() * 16);
        links.sum::<usize>() + self.standby.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>()
    }

    /// So much came over a link for a stream, which has something under way on it, or not.
    pub(super) fn on_transfer(&mut self, now: Instant, stream: u64, link: &str, bytes: u64, is_busy: bool) {
        let rate = self.links.entry(link.to_owned()).or_default();
        let elapsed = rate
            .sampled_at
            .replace(now)
            .map_or(Duration::ZERO, |looked| now.since(looked))
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
        let (bytes, time) = (std::mem::take(&mut rate.bytes), std::mem::take(&mut rate.busy_time));
        if rate.warm_up_time < WARM_UP {
            rate.warm_up_time += time;
        } else {
            rate.forecast.add(bytes / time);
        }
    }

    /// A stream is over.
    pub(super) fn on_stream_ended(&mut self, stream: u64) {
        for rate in self.links.values_mut() {
            rate.busy_streams.remove(&stream);
        }
    }

    /// A stream lets a link rest, or wakes it.
    pub(super) fn set_standby(&mut self, link: &str, is_standby: bool) {
        if is_standby {
            self.standby.insert(link.to_owned())
        } else {
            self.standby.remove(link)
        };
    }

    /// All links work again.
    pub(super) fn activate_all(&mut self) {
        self.standby.clear();
    }

    /// Whether a link rests.
    pub(super) fn is_standby(&self, link: &str) -> bool {
        self.standby.contains(link)
    }

    /// What the next stream may expect of links: what they bring (zero: not known yet), and whether they rest.
    pub(super) fn estimates(&self) -> Vec<(String, Bitrate, bool)> {
        let known_rate = |link: &LinkRate| {
            if link.forecast.steps() >= MIN_SAMPLES { link.forecast.mean_rate() } else { Bitrate::ZERO }
        };
        self.links
            .iter()
            .map(|(name, link)| (name.clone(), known_rate(link), self.standby.contains(name)))
            .collect()
    }
}

/// Streams are looked at as often as this at least.
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
const WARM_UP: Duration = Duration::from_secs(1);
const MIN_SAMPLES: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_known_by_the_time_in_which_it_had_something_to_do() {
        let mut rates = SegmentRates::default();
        let mut now = Instant::ZERO;
        // Segments of half a second every two seconds, two streams that overlap, 1 MB/s.
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
    fn what_was_seen_for_a_moment_is_not_known() {
        let mut rates = SegmentRates::default();
        for n in 0..25 {
            rates.on_transfer(Instant::from_millis(n * 100), 1, "wifi", 10_000, true);
        }
        assert_eq!(rates.estimates(), [("wifi".to_owned(), Bitrate::ZERO, false)]);
    }
}
