//! What the relay reaches to servers: BASS's B_o(s), without a byte sent for it.
//!
//! In: for each tunnel, how many bytes have gone up by when, and whether some wait for the server. Out: the best rate of late for
//! each `host:port`, as edges name it, and whether more may be possible.
//!
//! 1. A sample is what goes up in a [`WINDOW`] of a tunnel. Bytes that wait for the server in half of it say that the way to the
//!    server was the limit: then the sample is what the relay reaches. Else the edge was, or its share, and it reaches that at least.
//! 2. The best sample of [`LATELY`] counts, among those of the better kind: one that was the server's limit says more than one that
//!    was not, unless that one is greater.
//! 3. No more than [`MOST`] servers are known: whose last sample is the oldest makes way.
//!
//! A test transfer was not used: an ingest that is not ours is no place to send one to.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_core::units::{Bitrate, DataSize};

use crate::service::words::Endpoint;

/// chosen: BASS measures 5 s; a live stream's rate is even over one.
const WINDOW: Duration = Duration::from_secs(1);
/// A window that lasts longer had a pause in it, and says little.
const LONGEST_WINDOW: Duration = Duration::from_millis(1500);
/// chosen: less is one key frame, and no rate.
const LEAST: DataSize = DataSize::from_bytes(64 * 1024);
/// Each of the two parts of what is remembered. chosen: paths change by the hour.
const LATELY: Duration = Duration::from_secs(300);
/// chosen: an operator's fleet streams to a handful of ingests.
const MOST: usize = 64;

/// What was reached to one server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Origin {
    /// Which one.
    pub origin: Endpoint,
    /// How fast.
    #[serde(rename = "rate_bps")]
    pub rate: Bitrate,
    /// It was not the server, or the way to it, that was the limit.
    pub lower_bound: bool,
}

/// All servers.
#[derive(Debug, Default)]
pub(super) struct Origins(Mutex<BTreeMap<Endpoint, Reached>>);

/// The best rates of two stretches of time: [lower bounds, limits] of the last one and of this one.
#[derive(Clone, Copy, Debug)]
struct Reached {
    before: [Bitrate; 2],
    now: [Bitrate; 2],
    since: Instant,
    at: Instant,
}

impl Reached {
    fn new(at: Instant) -> Self {
        Self { before: [Bitrate::ZERO; 2], now: [Bitrate::ZERO; 2], since: at, at }
    }

    fn pass_time(&mut self, at: Instant) {
        let passed = at.saturating_duration_since(self.since);
        if passed >= LATELY {
            self.before = if passed < 2 * LATELY { self.now } else { [Bitrate::ZERO; 2] };
            (self.now, self.since) = ([Bitrate::ZERO; 2], at);
        }
    }

    /// The best rate, and whether it is a lower bound.
    fn best(&self) -> (Bitrate, bool) {
        let [least, limit] = [0, 1].map(|kind| {
            let of = |rates: &[Bitrate; 2]| rates.get(kind).copied().unwrap_or_default();
            of(&self.before).max(of(&self.now))
        });
        if limit.is_zero() || least > limit { (least, true) } else { (limit, false) }
    }
}

impl Origins {
    fn note(&self, origin: &Endpoint, rate: Bitrate, is_limit: bool, at: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(origin) && all.len() >= MOST {
            let oldest = all.iter().min_by_key(|(_, reached)| reached.at).map(|(origin, _)| origin.clone());
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        let reached = all.entry(origin.clone()).or_insert_with(|| Reached::new(at));
        reached.pass_time(at);
        reached.at = at;
        if let Some(best) = reached.now.get_mut(usize::from(is_limit)) {
            *best = rate.max(*best);
        }
    }

    /// What is known now.
    pub(super) fn known(&self) -> Vec<Origin> {
        self.known_at(Instant::now())
    }

    fn known_at(&self, now: Instant) -> Vec<Origin> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values_mut().for_each(|reached| reached.pass_time(now));
        all.retain(|_, reached| !reached.best().0.is_zero());
        let told = |(origin, reached): (&Endpoint, &Reached)| {
            let (rate, lower_bound) = reached.best();
            Origin { origin: origin.clone(), rate, lower_bound }
        };
        all.iter().map(told).collect()
    }
}

/// One tunnel's windows.
#[derive(Debug)]
pub(super) struct Window<'a> {
    origins: &'a Origins,
    origin: Endpoint,
    began: Instant,
    bytes: u64,
    /// Since when bytes wait for the server, and how long they have waited before in this window.
    waits: Option<Instant>,
    waited: Duration,
}

impl<'a> Window<'a> {
    pub(super) fn new(origins: &'a Origins, origin: Endpoint) -> Self {
        Self { origins, origin, began: Instant::now(), bytes: 0, waits: None, waited: Duration::ZERO }
    }

    /// So many bytes have gone up by now, and some wait for the server or none do.
    pub(super) fn watch(&mut self, up: u64, waits: bool) {
        self.watch_at(Instant::now(), up, waits);
    }

    fn watch_at(&mut self, now: Instant, up: u64, waits: bool) {
        if let Some(since) = self.waits.take() {
            self.waited += now.saturating_duration_since(since);
        }
        self.waits = waits.then_some(now);
        let time = now.saturating_duration_since(self.began);
        if time < WINDOW {
            return;
        }
        let size = DataSize::from_bytes(up.saturating_sub(self.bytes));
        if time <= LONGEST_WINDOW && size >= LEAST {
            self.origins.note(&self.origin, size / time, self.waited * 2 >= time, now);
        }
        (self.began, self.bytes, self.waited) = (now, up, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    fn known(origins: &Origins, at: Instant) -> Vec<(String, u64, bool)> {
        let told = |one: &Origin| (one.origin.to_string(), one.rate.bits_per_sec(), one.lower_bound);
        origins.known_at(at).iter().map(told).collect()
    }

    #[test]
    fn a_server_that_makes_bytes_wait_is_the_limit_and_an_edge_that_sends_little_is_not() {
        let (origins, began) = (Origins::default(), Instant::now());
        let at = |ms| began + Duration::from_millis(ms);
        let mut window = Window::new(&origins, endpoint("live.example:1935"));
        window.began = began;
        // 1 Mbit in the first second, and nothing waits.
        (1..=10_u64).for_each(|n| window.watch_at(at(100 * n), 12_500 * n, false));
        assert_eq!(known(&origins, at(1000)), [("live.example:1935".to_owned(), 1_000_000, true)]);
        // 0.8 Mbit in the second one, in which bytes wait for 600 ms: less, and yet what is reached is 1 Mbit/s at least.
        (1..=10_u64).for_each(|n| window.watch_at(at(1000 + 100 * n), 125_000 + 10_000 * n, n < 7));
        assert_eq!(known(&origins, at(2000)), [("live.example:1935".to_owned(), 1_000_000, true)]);
        // 4 Mbit, and all the time something waits.
        (1..=10_u64).for_each(|n| window.watch_at(at(2000 + 100 * n), 225_000 + 50_000 * n, true));
        assert_eq!(known(&origins, at(3000)), [("live.example:1935".to_owned(), 4_000_000, false)]);
        // After a pause there is no rate.
        window.watch_at(at(9000), 50_000_000, true);
        assert_eq!(known(&origins, at(9000)), [("live.example:1935".to_owned(), 4_000_000, false)]);
        assert_eq!(known(&origins, at(9000) + 3 * LATELY), []);
    }

    #[test]
    fn many_names_are_no_many_servers() {
        let (origins, began) = (Origins::default(), Instant::now());
        for n in 0..1000_u64 {
            let origin = endpoint(&format!("n{n}.example:80"));
            origins.note(&origin, Bitrate::from_mbps(1), true, began + Duration::from_millis(n));
        }
        let known = known(&origins, began + Duration::from_secs(1));
        assert!(known.len() == MOST && known.iter().any(|(name, ..)| name == "n999.example:80"));
    }
}
