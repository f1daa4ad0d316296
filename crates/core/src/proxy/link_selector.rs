//! Selects the link for each connection that is not media.
//!
//! Learns handshake times, throughput, failures and the number of connections of each link, and returns the links in
//! the order in which to try them.
//!
//! 1. A host keeps its link while that works, because logins are often tied to an IP address.
//! 2. A program with [`SPREAD_THRESHOLD`] busy connections to one host wants throughput, so further ones are spread
//!    over the links ([`SpreadMode`]). A link of unknown rate comes first, for one connection. Next is a link that
//!    carries less than half of its even share of the busy connections, because the highest rate ever seen is a poor
//!    predictor of the present one. Otherwise rule 3 decides.
//! 3. A new host uses the link that would deliver its first 128 KiB soonest: two RTTs, and its share of the rate among
//!    the open connections.
//! 4. A link that failed is tried last during a backoff time, which doubles with each failure. Metered links are also
//!    tried last, unless the user permits their use, and not at all if the user forbids it.
//!
//! Round robin would send every second connection over the worse link, and a login would change its address from one
//! request to the next.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use crate::fetch::MeteredUse;
use crate::units::{Bitrate, DataSize, Instant};

/// Link statistics and host affinities.
#[derive(Debug, Default)]
pub struct LinkSelector {
    links: BTreeMap<String, LinkStats>,
    hosts: BTreeMap<ClientHost, HostState>,
    next_id: u64,
}

/// A client (`None`: this machine) and the host to which it connects.
pub type ClientHost = (Option<IpAddr>, String);

/// The connections of a client to a host.
#[derive(Debug, Default)]
struct HostState {
    /// The link to which the host has affinity.
    link: String,
    /// When the last connection was opened.
    last_opened: Instant,
    /// The open connections by number: link, and when each last carried data.
    connections: BTreeMap<u64, (String, Instant)>,
}

/// Whether a client's connections to one host are spread over the links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SpreadMode {
    /// Spread while many connections are busy at once.
    #[default]
    Auto,
    /// Place each connection separately.
    Always,
    /// A host always keeps its link.
    Never,
}

/// The name is not that of a [`SpreadMode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a spread mode; use auto, always or never")]
pub struct UnknownSpreadMode(String);

impl core::str::FromStr for SpreadMode {
    type Err = UnknownSpreadMode;
    fn from_str(name: &str) -> Result<Self, UnknownSpreadMode> {
        match name {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(UnknownSpreadMode(name.to_owned())),
        }
    }
}

#[derive(Debug, Default)]
struct LinkStats {
    rtt: Option<Duration>,
    rate: Option<Bitrate>,
    /// Consecutive failures to connect.
    failures: u32,
    backoff_until: Instant,
    open_count: u64,
}

/// A link that may be selected.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its interface.
    pub name: String,
    /// Whether its data costs money.
    pub metered: bool,
}

impl LinkSelector {
    /// Ranks the links for another connection of a client to a host, the best one first.
    pub fn rank_links(
        &self,
        now: Instant,
        key: &ClientHost,
        candidates: &[Candidate],
        (metered, spread): (MeteredUse, SpreadMode),
    ) -> Vec<String> {
        let host = self.hosts.get(key);
        let recent =
            host.filter(|known| now.since(known.last_opened) < AFFINITY_TIMEOUT || !known.connections.is_empty());
        let busy_links: Vec<&String> = host
            .iter()
            .flat_map(|known| known.connections.values())
            .filter(|(_, last)| now.since(*last) < BUSY_TIMEOUT)
            .map(|(link, _)| link)
            .collect();
        let is_spread = match spread {
            SpreadMode::Auto => busy_links.len() >= SPREAD_THRESHOLD,
            SpreadMode::Always => true,
            SpreadMode::Never => false,
        };
        let recent_link = recent.map(|known| &known.link).filter(|_| !is_spread);
        let is_costly = |link: &Candidate| link.metered && metered == MeteredUse::Avoid;
        let is_backing_off =
            |link: &Candidate| self.links.get(&link.name).is_some_and(|stats| stats.backoff_until > now);
        let allowed_links = || candidates.iter().filter(|link| !link.metered || metered != MeteredUse::Never);
        let usable_count = allowed_links().filter(|link| !is_costly(link) && !is_backing_off(link)).count();
        let mut ranked: Vec<_> = allowed_links()
            .map(|link| {
                let (backs_off, costly) = (is_backing_off(link), is_costly(link));
                let stats = self.links.get(&link.name);
                let is_unmeasured =
                    stats.is_none_or(|stats| stats.rate.is_none()) && !busy_links.contains(&&link.name);
                let own_count = busy_links.iter().filter(|name| **name == &link.name).count();
                // The even share after this connection is (busy + 1) / usable links; a link is underused if it carries,
                // this connection included, at most half of that.
                let is_underused = (own_count + 1) * 2 * usable_count <= busy_links.len() + 1;
                let tier = match (is_spread, is_unmeasured, is_underused) {
                    (true, true, _) => 0,
                    (true, false, true) => 1,
                    (true, false, false) => 2,
                    (false, ..) => u8::from(recent_link != Some(&link.name)),
                };
                (
                    // Lower values rank first, so links in backoff come last, preceded by metered ones.
                    (backs_off, costly, tier, stats.map_or(DEFAULT_COST, LinkStats::first_bytes_time)),
                    link.name.clone(),
                )
            })
            .collect();
        // Equal ranks are ordered by name, so that equal inputs give an equal order.
        ranked.sort();
        ranked.into_iter().map(|(_, name)| name).collect()
    }

    /// Notes that a client is opening a connection to a host, and returns its number. It counts at once, because
    /// programs open many at the same time.
    pub fn on_opening(&mut self, now: Instant, link: &str, key: &ClientHost) -> u64 {
        self.links.entry(link.to_owned()).or_default().open_count += 1;
        self.evict_hosts(now, key);
        let host = self.hosts.entry(key.clone()).or_default();
        if host.connections.is_empty() && now.since(host.last_opened) >= AFFINITY_TIMEOUT {
            host.link.clear();
        }
        if host.link.is_empty() {
            link.clone_into(&mut host.link);
        }
        host.last_opened = now;
        let id = self.next_id;
        self.next_id += 1;
        host.connections.insert(id, (link.to_owned(), now));
        id
    }

    /// Notes that a connection was established.
    pub fn on_connected(&mut self, now: Instant, link: &str, key: &ClientHost, handshake: Duration) {
        let stats = self.links.entry(link.to_owned()).or_default();
        stats.failures = 0;
        stats.backoff_until = now;
        stats.rtt = Some(stats.rtt.map_or(handshake, |rtt| (rtt * 7 + handshake) / 8));
        // While connections are spread, the affinity stays with the link of the first one.
        if let Some(host) = self.hosts.get_mut(key)
            && !host.connections.values().any(|(link_of, _)| *link_of == host.link)
        {
            link.clone_into(&mut host.link);
        }
    }

    fn evict_hosts(&mut self, now: Instant, key: &ClientHost) {
        self.hosts.retain(|_, host| now.since(host.last_opened) < AFFINITY_TIMEOUT || !host.connections.is_empty());
        if self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(key) {
            let idle = self.hosts.iter().filter(|(_, known)| known.connections.is_empty());
            let oldest = idle.min_by_key(|(_, known)| known.last_opened).map(|(pair, _)| pair.clone());
            oldest.map(|oldest| self.hosts.remove(&oldest));
        }
    }

    /// Notes that a connection carried data.
    pub fn on_activity(&mut self, now: Instant, key: &ClientHost, id: u64) {
        if let Some((_, last_active)) = self.hosts.get_mut(key).and_then(|known| known.connections.get_mut(&id)) {
            *last_active = now;
        }
    }

    /// Notes that a connection could not be opened, and starts or doubles the backoff time.
    pub fn on_failed(&mut self, now: Instant, link: &str) {
        let stats = self.links.entry(link.to_owned()).or_default();
        stats.failures += 1;
        stats.backoff_until = now + INITIAL_BACKOFF * 2_u32.pow(stats.failures.min(6) - 1);
    }

    /// Notes that a connection has ended.
    pub fn on_closed(&mut self, link: &str, key: &ClientHost, id: u64) {
        if let Some(host) = self.hosts.get_mut(key) {
            host.connections.remove(&id);
        }
        if let Some(stats) = self.links.get_mut(link) {
            stats.open_count = stats.open_count.saturating_sub(1);
        }
    }

    /// Notes how much a link delivered in this time. An application that requests little does not make the link slow,
    /// so a lower rate counts little.
    pub fn on_transfer(&mut self, link: &str, bytes: DataSize, time: Duration) {
        if time.is_zero() || bytes < MIN_RATE_SAMPLE {
            return;
        }
        let rate = bytes / time;
        let stats = self.links.entry(link.to_owned()).or_default();
        stats.rate = Some(stats.rate.map_or(rate, |previous| {
            let decayed = (previous.bits_per_sec() / 16 * 15).saturating_add(rate.bits_per_sec() / 16);
            rate.max(Bitrate::from_bits_per_sec(decayed))
        }));
    }
}

impl LinkStats {
    /// When a new connection would have received its first [`FIRST_BYTES`].
    fn first_bytes_time(&self) -> Duration {
        let rtt = self.rtt.unwrap_or(DEFAULT_RTT);
        let per_connection =
            Bitrate::from_bits_per_sec(self.rate.unwrap_or(DEFAULT_RATE).bits_per_sec() / (self.open_count + 1));
        if per_connection.is_zero() {
            Duration::MAX
        } else {
            (rtt * 2).saturating_add(FIRST_BYTES / per_connection)
        }
    }
}

/// How long a host keeps its link without a new connection. Our choice: longer than people take to read a page.
const AFFINITY_TIMEOUT: Duration = Duration::from_secs(600);
const MAX_HOSTS: usize = 1000;
/// Our choice: the connections that a browser opens for one page mostly stay together; download programs open four to
/// sixteen.
const SPREAD_THRESHOLD: usize = 3;
/// A connection without data for this long is idle. Our choice: as long as two retransmissions of a lost packet take.
const BUSY_TIMEOUT: Duration = Duration::from_secs(3);
/// The amount of data that most pages need before they show anything.
const FIRST_BYTES: DataSize = DataSize::from_kib(128);
/// Smaller samples do not indicate the rate of a link.
const MIN_RATE_SAMPLE: DataSize = DataSize::from_kib(64);
/// Backoff time after the first failure; it doubles up to 64 s.
const INITIAL_BACKOFF: Duration = Duration::from_secs(2);
const DEFAULT_RTT: Duration = Duration::from_millis(50);
const DEFAULT_RATE: Bitrate = Bitrate::from_mbps(10);
/// The time for a link of which nothing is known, with the two defaults above.
const DEFAULT_COST: Duration = Duration::from_millis(205);

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn candidates() -> Vec<Candidate> {
        [("lte", true), ("wifi", false), ("wire", false)]
            .map(|(name, metered)| Candidate { name: name.into(), metered })
            .to_vec()
    }

    fn host_key(host: &str) -> ClientHost {
        (None, host.to_owned())
    }

    fn order(selector: &LinkSelector, at: u64, host: &str, spread: SpreadMode) -> Vec<String> {
        selector.rank_links(Instant::from_millis(at), &host_key(host), &candidates(), (MeteredUse::Avoid, spread))
    }

    fn best_link(selector: &LinkSelector, at: u64, host: &str) -> String {
        order(selector, at, host, SpreadMode::Auto)[0].clone()
    }

    /// Opens an established connection (`at` and `handshake` in ms), and returns its number.
    fn connect(selector: &mut LinkSelector, at: u64, link: &str, host: &str, handshake: u64) -> u64 {
        let at = Instant::from_millis(at);
        let id = selector.on_opening(at, link, &host_key(host));
        selector.on_connected(at, link, &host_key(host), Duration::from_millis(handshake));
        id
    }

    /// Opens `count` connections at the same time (`at`, in ms), and counts those over `wifi` and over `wire`.
    fn spread(
        selector: &mut LinkSelector,
        at: u64,
        host: &str,
        count: usize,
        spread: SpreadMode,
    ) -> (usize, usize) {
        let links: Vec<String> = (0..count)
            .map(|_| {
                let link = order(selector, at, host, spread)[0].clone();
                selector.on_opening(Instant::from_millis(at), &link, &host_key(host));
                link
            })
            .collect();
        let over = |name| links.iter().filter(|link| *link == name).count();
        (over("wifi"), over("wire"))
    }

    #[test]
    fn many_busy_connections_to_a_host_are_spread_and_few_stay_on_one_link() {
        assert_eq!(spread(&mut LinkSelector::default(), 0, "h", 3, SpreadMode::Auto), (3, 0));
        assert_eq!(spread(&mut LinkSelector::default(), 0, "h", 8, SpreadMode::Auto), (4, 4));
        assert_eq!(spread(&mut LinkSelector::default(), 0, "h", 8, SpreadMode::Never), (8, 0));
        assert_eq!(spread(&mut LinkSelector::default(), 0, "h", 2, SpreadMode::Always), (1, 1));
        // A link that is known to be much faster carries more, and the other one is tried.
        let mut selector = LinkSelector::default();
        selector.on_transfer("wifi", DataSize::from_mib(100), Duration::from_secs(1));
        let (wifi, wire) = spread(&mut selector, 0, "h", 8, SpreadMode::Auto);
        assert!(wifi >= 6 && wire >= 1, "{wifi} {wire}");
    }

    #[test]
    fn many_connections_are_spread_even_if_one_link_was_once_much_faster() {
        let mut selector = LinkSelector::default();
        selector.on_transfer("wifi", DataSize::from_mib(100), Duration::from_secs(1));
        selector.on_transfer("wire", DataSize::from_kib(200), Duration::from_secs(1));
        assert_eq!(spread(&mut selector, 0, "few", 3, SpreadMode::Auto), (3, 0));
        assert_eq!(spread(&mut selector, 0, "many", 8, SpreadMode::Auto), (6, 2));
        assert_eq!(spread(&mut selector, 0, "more", 16, SpreadMode::Auto), (12, 4));
        assert_eq!(spread(&mut selector, 0, "each", 8, SpreadMode::Always), (6, 2));
        assert_eq!(spread(&mut selector, 0, "none", 8, SpreadMode::Never), (8, 0));
        // With three links, each gets at least half of its even share.
        let (mut links, now) = (Vec::new(), Instant::from_millis(0));
        for _ in 0..14 {
            let policy = (MeteredUse::Use, SpreadMode::Auto);
            let link = selector.rank_links(now, &host_key("three"), &candidates(), policy)[0].clone();
            selector.on_opening(now, &link, &host_key("three"));
            links.push(link);
        }
        for name in ["lte", "wifi", "wire"] {
            assert!(links.iter().filter(|link| *link == name).count() >= 2, "{links:?}");
        }
        // A link that has just failed, or is metered, gets none of them.
        selector.on_failed(Instant::from_millis(0), "wire");
        assert_eq!(spread(&mut selector, 0, "failed", 8, SpreadMode::Auto), (8, 0));
    }

    #[test]
    fn idle_connections_and_those_of_other_clients_do_not_count_as_busy() {
        let mut selector = LinkSelector::default();
        let ids: Vec<u64> = (0..6).map(|_| connect(&mut selector, 0, "wifi", "h", 1)).collect();
        assert_eq!(best_link(&selector, 100, "h"), "wire");
        // The host returns to the link of the first connection when all are idle.
        assert_eq!(best_link(&selector, 10_000, "h"), "wifi");
        ids.iter().take(3).for_each(|id| selector.on_activity(Instant::from_millis(10_000), &host_key("h"), *id));
        assert_eq!(best_link(&selector, 10_100, "h"), "wire");
        let other_client = (Some(IpAddr::from([192, 0, 2, 1])), "h".to_owned());
        let order = |pair: &ClientHost| {
            selector.rank_links(
                Instant::from_millis(10_100),
                pair,
                &candidates(),
                (MeteredUse::Avoid, SpreadMode::Auto),
            )
        };
        assert_eq!(order(&other_client)[0], "wire", "by its cost");
    }

    #[test]
    fn after_spreading_a_host_returns_to_the_link_of_its_first_connection() {
        let mut selector = LinkSelector::default();
        let mut open = Vec::new();
        for _ in 0..8 {
            let link = best_link(&selector, 0, "h");
            open.push((connect(&mut selector, 0, &link, "h", 1), link));
        }
        for (id, link) in open {
            selector.on_closed(&link, &host_key("h"), id);
        }
        assert_eq!(best_link(&selector, 1000, "h"), "wifi");
        assert_eq!(best_link(&selector, 500_000, "h"), "wifi");
    }

    #[test]
    fn the_number_of_remembered_hosts_is_bounded() {
        let mut selector = LinkSelector::default();
        for n in 0..MAX_HOSTS + 10 {
            let id = connect(&mut selector, n as u64, "wifi", &format!("h{n}"), 1);
            selector.on_closed("wifi", &host_key(&format!("h{n}")), id);
        }
        assert_eq!(selector.hosts.len(), MAX_HOSTS);
    }

    #[test]
    fn the_link_that_delivers_the_first_bytes_soonest_is_ranked_first() {
        let mut selector = LinkSelector::default();
        connect(&mut selector, 0, "wifi", "a", 80);
        connect(&mut selector, 0, "wire", "b", 5);
        selector.on_transfer("wifi", DataSize::from_mib(10), Duration::from_secs(1));
        selector.on_transfer("wire", DataSize::from_mib(10), Duration::from_secs(1));
        assert_eq!(best_link(&selector, 0, "c"), "wire");
        // Twenty connections share its rate.
        for n in 0..20 {
            connect(&mut selector, 0, "wire", &format!("h{n}"), 5);
        }
        assert_eq!(best_link(&selector, 0, "c"), "wifi");
    }

    #[test]
    fn a_host_keeps_its_link_until_that_fails() {
        let mut selector = LinkSelector::default();
        let id = connect(&mut selector, 0, "wifi", "a", 500);
        selector.on_closed("wifi", &host_key("a"), id);
        connect(&mut selector, 0, "wire", "b", 1);
        assert_eq!(best_link(&selector, 1000, "a"), "wifi");
        selector.on_failed(Instant::from_millis(1000), "wifi");
        assert_eq!(best_link(&selector, 1500, "a"), "wire");
        assert_eq!(best_link(&selector, 700_000, "a"), "wire");
    }

    #[test]
    fn a_failed_link_is_used_again_after_its_backoff() {
        let mut selector = LinkSelector::default();
        let id = connect(&mut selector, 0, "wifi", "a", 1);
        selector.on_closed("wifi", &host_key("a"), id);
        selector.on_failed(Instant::from_millis(0), "wifi");
        assert_eq!(best_link(&selector, 1999, "c"), "wire");
        assert_eq!(best_link(&selector, 2000, "c"), "wifi");
        (0..40).for_each(|_| selector.on_failed(Instant::from_millis(0), "wifi"));
        assert_eq!(best_link(&selector, 63_999, "c"), "wire");
        assert_eq!(best_link(&selector, 64_000, "c"), "wifi");
    }

    #[test]
    fn metered_links_come_last_or_not_at_all() {
        let selector = LinkSelector::default();
        let order = |metered| {
            selector.rank_links(
                Instant::from_millis(0),
                &host_key("h"),
                &candidates(),
                (metered, SpreadMode::default()),
            )
        };
        assert_eq!(order(MeteredUse::Avoid), ["wifi", "wire", "lte"]);
        assert_eq!(order(MeteredUse::Use), ["lte", "wifi", "wire"]);
        assert_eq!(order(MeteredUse::Never), ["wifi", "wire"]);
    }

    #[test]
    fn the_default_cost_matches_the_default_rtt_and_rate() {
        let cost = LinkStats::default().first_bytes_time();
        assert!(cost.abs_diff(DEFAULT_COST) < Duration::from_millis(1), "{cost:?}");
    }
}
