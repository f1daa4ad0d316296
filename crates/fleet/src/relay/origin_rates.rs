//! Measures the rates from the relay to origin servers, BASS's B_o(s), from the traffic of tunnels.
//!
//! For each `host:port`, as edges name it, it keeps the best recent rate, and whether this is only a lower bound.
//!
//! 1. A sample is the rate of the upload in a [`WINDOW_TIME`] of a tunnel. If bytes wait for the server during at least half of the window,
//!    the path to the server is the bottleneck and the sample is B_o(s). Otherwise the edge or its share of the relay is the
//!    bottleneck, and the sample is a lower bound.
//! 2. The best sample of the last two [`HISTORY_PERIOD`]s counts. A true limit takes precedence over a lower bound, unless the lower bound
//!    is greater.
//! 3. At most [`MAX_ORIGINS`] servers are kept; a new one replaces the server with the oldest last sample.
//!
//! There are no test transfers, because the ingest servers belong to others.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_core::units::{Bitrate, DataSize};

use crate::service::api_types::Endpoint;

/// Our choice: BASS measures for 5 s; the rate of a live stream is even over one second.
const WINDOW_TIME: Duration = Duration::from_secs(1);
/// A longer window contained a pause, and its rate has no meaning.
const MAX_WINDOW: Duration = Duration::from_millis(1500);
/// Our choice: less is a single key frame, and not a rate.
const MIN_SAMPLE: DataSize = DataSize::from_bytes(64 * 1024);
/// Length of the present and of the previous period. Our choice: paths change over hours.
const HISTORY_PERIOD: Duration = Duration::from_secs(300);
/// Our choice: a fleet streams to a handful of ingest servers.
const MAX_ORIGINS: usize = 64;

/// The measured rate to one origin server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OriginRate {
    /// The server.
    pub origin: Endpoint,
    /// The rate.
    #[serde(rename = "rate_bps")]
    pub rate: Bitrate,
    /// The rate is a lower bound: neither the server nor the path to it was the bottleneck.
    pub lower_bound: bool,
}

/// The rates to all origin servers.
#[derive(Debug, Default)]
pub(super) struct OriginRates(Mutex<BTreeMap<Endpoint, RateHistory>>);

/// The best rates of two periods: `[lower bounds, limits]` of the previous one and of the current one.
#[derive(Clone, Copy, Debug)]
struct RateHistory {
    previous: [Bitrate; 2],
    current: [Bitrate; 2],
    period_start: Instant,
    last_sample: Instant,
}

impl RateHistory {
    fn new(at: Instant) -> Self {
        Self { previous: [Bitrate::ZERO; 2], current: [Bitrate::ZERO; 2], period_start: at, last_sample: at }
    }

    fn advance(&mut self, at: Instant) {
        let elapsed = at.saturating_duration_since(self.period_start);
        if elapsed >= HISTORY_PERIOD {
            self.previous = if elapsed < 2 * HISTORY_PERIOD { self.current } else { [Bitrate::ZERO; 2] };
            (self.current, self.period_start) = ([Bitrate::ZERO; 2], at);
        }
    }

    /// The best rate, and whether it is a lower bound.
    fn best(&self) -> (Bitrate, bool) {
        let [lower_bound, limit] = [0, 1].map(|kind| {
            let rate_of = |rates: &[Bitrate; 2]| rates.get(kind).copied().unwrap_or_default();
            rate_of(&self.previous).max(rate_of(&self.current))
        });
        if limit.is_zero() || lower_bound > limit { (lower_bound, true) } else { (limit, false) }
    }
}

impl OriginRates {
    fn record(&self, origin: &Endpoint, rate: Bitrate, is_limit: bool, at: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(origin) && all.len() >= MAX_ORIGINS {
            let oldest =
                all.iter().min_by_key(|(_, reached)| reached.last_sample).map(|(origin, _)| origin.clone());
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        let reached = all.entry(origin.clone()).or_insert_with(|| RateHistory::new(at));
        reached.advance(at);
        reached.last_sample = at;
        if let Some(best) = reached.current.get_mut(usize::from(is_limit)) {
            *best = rate.max(*best);
        }
    }

    /// All rates that are known now.
    pub(super) fn rates(&self) -> Vec<OriginRate> {
        self.rates_at(Instant::now())
    }

    fn rates_at(&self, now: Instant) -> Vec<OriginRate> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values_mut().for_each(|reached| reached.advance(now));
        all.retain(|_, reached| !reached.best().0.is_zero());
        let row = |(origin, reached): (&Endpoint, &RateHistory)| {
            let (rate, lower_bound) = reached.best();
            OriginRate { origin: origin.clone(), rate, lower_bound }
        };
        all.iter().map(row).collect()
    }
}

/// The current measuring window of one tunnel.
#[derive(Debug)]
pub(super) struct RateWindow<'a> {
    origins: &'a OriginRates,
    origin: Endpoint,
    window_start: Instant,
    bytes: u64,
    /// Since when bytes wait for the server, and how long they waited earlier in this window.
    blocked_since: Option<Instant>,
    blocked: Duration,
}

impl<'a> RateWindow<'a> {
    pub(super) fn new(origins: &'a OriginRates, origin: Endpoint) -> Self {
        Self {
            origins,
            origin,
            window_start: Instant::now(),
            bytes: 0,
            blocked_since: None,
            blocked: Duration::ZERO,
        }
    }

    /// Records the number of bytes uploaded so far, and whether bytes wait for the server now.
    pub(super) fn update(&mut self, up: u64, is_blocked: bool) {
        self.update_at(Instant::now(), up, is_blocked);
    }

    fn update_at(&mut self, now: Instant, up: u64, is_blocked: bool) {
        if let Some(since) = self.blocked_since.take() {
            self.blocked += now.saturating_duration_since(since);
        }
        self.blocked_since = is_blocked.then_some(now);
        let time = now.saturating_duration_since(self.window_start);
        if time < WINDOW_TIME {
            return;
        }
        let size = DataSize::from_bytes(up.saturating_sub(self.bytes));
        if time <= MAX_WINDOW && size >= MIN_SAMPLE {
            self.origins.record(&self.origin, size / time, self.blocked * 2 >= time, now);
        }
        (self.window_start, self.bytes, self.blocked) = (now, up, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    fn known(origins: &OriginRates, at: Instant) -> Vec<(String, u64, bool)> {
        let row = |one: &OriginRate| (one.origin.to_string(), one.rate.bits_per_sec(), one.lower_bound);
        origins.rates_at(at).iter().map(row).collect()
    }

    #[test]
    fn only_a_server_for_which_bytes_wait_is_the_limit() {
        let (origins, started_at) = (OriginRates::default(), Instant::now());
        let at = |ms| started_at + Duration::from_millis(ms);
        let mut window = RateWindow::new(&origins, endpoint("live.example:1935"));
        window.window_start = started_at;
        // 1 Mbit in the first second, and no bytes wait.
        (1..=10_u64).for_each(|n| window.update_at(at(100 * n), 12_500 * n, false));
        assert_eq!(known(&origins, at(1000)), [("live.example:1935".to_owned(), 1_000_000, true)]);
        // 0.8 Mbit in the second one, in which bytes wait for 600 ms: a limit below the known lower bound of 1 Mbit/s.
        (1..=10_u64).for_each(|n| window.update_at(at(1000 + 100 * n), 125_000 + 10_000 * n, n < 7));
        assert_eq!(known(&origins, at(2000)), [("live.example:1935".to_owned(), 1_000_000, true)]);
        // 4 Mbit, with bytes waiting all the time.
        (1..=10_u64).for_each(|n| window.update_at(at(2000 + 100 * n), 225_000 + 50_000 * n, true));
        assert_eq!(known(&origins, at(3000)), [("live.example:1935".to_owned(), 4_000_000, false)]);
        // A window with a pause gives no rate.
        window.update_at(at(9000), 50_000_000, true);
        assert_eq!(known(&origins, at(9000)), [("live.example:1935".to_owned(), 4_000_000, false)]);
        assert_eq!(known(&origins, at(9000) + 3 * HISTORY_PERIOD), []);
    }

    #[test]
    fn the_number_of_servers_is_bounded() {
        let (origins, started_at) = (OriginRates::default(), Instant::now());
        for n in 0..1000_u64 {
            let origin = endpoint(&format!("n{n}.example:80"));
            origins.record(&origin, Bitrate::from_mbps(1), true, started_at + Duration::from_millis(n));
        }
        let known = known(&origins, started_at + Duration::from_secs(1));
        assert!(known.len() == MAX_ORIGINS && known.iter().any(|(name, ..)| name == "n999.example:80"));
    }
}
