//! Which link a connection goes to, for everything that is not played: a decision without I/O.
//!
//! In: what is learnt of each link (handshakes, bytes and their time, failures, how many connections it has), and the
//! host that is wanted. Out: the links in the order in which to try them.
//!
//! 1. A host keeps its link as long as that works: logins are often tied to an address.
//! 2. A new host goes to the link that would bring its first 128 KiB soonest: two round trips and its share of the rate
//!    among the connections that are open.
//! 3. A link that failed rests for a time that doubles; until then it is the last resort. So are links that cost money,
//!    unless the user said otherwise.
//!
//! A link for each connection in turn was not used: every second connection would go to the worse link.

use std::collections::BTreeMap;
use std::time::Duration;

use marline_core::fetch::MeteredUse;
use marline_core::units::{Bitrate, DataSize, Instant};

/// What is learnt.
#[derive(Debug, Default)]
pub(super) struct Choice {
    links: BTreeMap<String, Learnt>,
    hosts: BTreeMap<String, (String, Instant)>,
}

#[derive(Debug, Default)]
struct Learnt {
    rtt: Option<Duration>,
    rate: Option<Bitrate>,
    /// In a row.
    failures: u32,
    rests_until: Instant,
    open: u64,
}

/// A link that may be chosen.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) metered: bool,
}

impl Choice {
    /// The names of the links for a connection to `host`, the best one first.
    pub(super) fn order(
        &self,
        now: Instant,
        host: &str,
        candidates: &[Candidate],
        metered: MeteredUse,
    ) -> Vec<String> {
        let kept = self.hosts.get(host).filter(|(_, at)| now.since(*at) < KEPT).map(|(link, _)| link);
        let mut order: Vec<_> = candidates
            .iter()
            .filter(|link| !link.metered || metered != MeteredUse::Never)
            .map(|link| {
                let dear = link.metered && metered == MeteredUse::Avoid;
                let learnt = self.links.get(&link.name);
                let rests = learnt.is_some_and(|learnt| learnt.rests_until > now);
                let other = kept != Some(&link.name);
                ((rests, dear, other, learnt.map_or(UNKNOWN, Learnt::cost)), link.name.clone())
            })
            .collect();
        // By name where nothing else tells: the same inputs give the same order.
        order.sort();
        order.into_iter().map(|(_, name)| name).collect()
    }

    /// A connection to `host` stands.
    pub(super) fn connected(&mut self, now: Instant, link: &str, host: &str, handshake: Duration) {
        let learnt = self.links.entry(link.to_owned()).or_default();
        learnt.failures = 0;
        learnt.rests_until = now;
        learnt.open += 1;
        learnt.rtt = Some(learnt.rtt.map_or(handshake, |rtt| (rtt * 7 + handshake) / 8));
        self.hosts.retain(|_, (_, at)| now.since(*at) < KEPT);
        if self.hosts.len() >= MOST_HOSTS {
            self.hosts.pop_first();
        }
        self.hosts.insert(host.to_owned(), (link.to_owned(), now));
    }

    /// A connection could not be opened.
    pub(super) fn failed(&mut self, now: Instant, link: &str) {
        let learnt = self.links.entry(link.to_owned()).or_default();
        learnt.failures += 1;
        learnt.rests_until = now + REST * 2_u32.pow(learnt.failures.min(6) - 1);
    }

    /// A connection is over.
    pub(super) fn ended(&mut self, link: &str) {
        if let Some(learnt) = self.links.get_mut(link) {
            learnt.open = learnt.open.saturating_sub(1);
        }
    }

    /// So much came over a link in this time. What an application did not ask for is no sign of a slow link, so a
    /// smaller rate counts little.
    pub(super) fn moved(&mut self, link: &str, bytes: DataSize, time: Duration) {
        if time.is_zero() || bytes < LEAST {
            return;
        }
        let rate = bytes / time;
        let learnt = self.links.entry(link.to_owned()).or_default();
        learnt.rate = Some(learnt.rate.map_or(rate, |old| {
            let slow = (old.bits_per_sec() / 16 * 15).saturating_add(rate.bits_per_sec() / 16);
            rate.max(Bitrate::from_bits_per_sec(slow))
        }));
    }
}

impl Learnt {
    fn cost(&self) -> Duration {
        let rtt = self.rtt.unwrap_or(UNKNOWN_RTT);
        let share = Bitrate::from_bits_per_sec(self.rate.unwrap_or(UNKNOWN_RATE).bits_per_sec() / (self.open + 1));
        if share.is_zero() { Duration::MAX } else { (rtt * 2).saturating_add(FIRST / share) }
    }
}

/// How long a host keeps its link without a new connection. chosen: longer than people leave a page open to read it.
const KEPT: Duration = Duration::from_secs(600);
const MOST_HOSTS: usize = 1000;
/// What most pages need before they show anything.
const FIRST: DataSize = DataSize::from_kib(128);
/// Less than this says nothing of a link's rate.
const LEAST: DataSize = DataSize::from_kib(64);
const REST: Duration = Duration::from_secs(2);
const UNKNOWN_RTT: Duration = Duration::from_millis(50);
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(10);
/// The cost of a link of which nothing is known: that of the two figures above.
const UNKNOWN: Duration = Duration::from_millis(205);

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates() -> Vec<Candidate> {
        [("lte", true), ("wifi", false), ("wire", false)]
            .map(|(name, metered)| Candidate { name: name.into(), metered })
            .to_vec()
    }

    fn first(choice: &Choice, at: u64, host: &str) -> String {
        choice.order(Instant::from_millis(at), host, &candidates(), MeteredUse::Avoid)[0].clone()
    }

    #[test]
    fn the_link_that_brings_the_first_bytes_soonest_is_first() {
        let mut choice = Choice::default();
        let at = Instant::from_millis(0);
        choice.connected(at, "wifi", "a", Duration::from_millis(80));
        choice.connected(at, "wire", "b", Duration::from_millis(5));
        choice.moved("wifi", DataSize::from_mib(10), Duration::from_secs(1));
        choice.moved("wire", DataSize::from_mib(10), Duration::from_secs(1));
        assert_eq!(first(&choice, 0, "c"), "wire");
        // Twenty connections share its rate.
        for n in 0..20 {
            choice.connected(at, "wire", &format!("h{n}"), Duration::from_millis(5));
        }
        assert_eq!(first(&choice, 0, "c"), "wifi");
    }

    #[test]
    fn a_host_keeps_its_link_until_that_fails() {
        let mut choice = Choice::default();
        choice.connected(Instant::from_millis(0), "wifi", "a", Duration::from_millis(500));
        choice.connected(Instant::from_millis(0), "wire", "b", Duration::from_millis(1));
        assert_eq!(first(&choice, 1000, "a"), "wifi");
        choice.failed(Instant::from_millis(1000), "wifi");
        assert_eq!(first(&choice, 1500, "a"), "wire");
        assert_eq!(first(&choice, 700_000, "a"), "wire");
    }

    #[test]
    fn a_link_that_failed_rests_and_then_gets_its_chance() {
        let mut choice = Choice::default();
        choice.connected(Instant::from_millis(0), "wifi", "a", Duration::from_millis(1));
        choice.ended("wifi");
        choice.failed(Instant::from_millis(0), "wifi");
        assert_eq!(first(&choice, 1999, "c"), "wire");
        assert_eq!(first(&choice, 2000, "c"), "wifi");
        (0..40).for_each(|_| choice.failed(Instant::from_millis(0), "wifi"));
        assert_eq!(first(&choice, 63_999, "c"), "wire");
        assert_eq!(first(&choice, 64_000, "c"), "wifi");
    }

    #[test]
    fn links_that_cost_money_come_last_or_not_at_all() {
        let choice = Choice::default();
        let order = |metered| choice.order(Instant::from_millis(0), "h", &candidates(), metered);
        assert_eq!(order(MeteredUse::Avoid), ["wifi", "wire", "lte"]);
        assert_eq!(order(MeteredUse::Use), ["lte", "wifi", "wire"]);
        assert_eq!(order(MeteredUse::Never), ["wifi", "wire"]);
    }

    #[test]
    fn the_cost_of_the_unknown_is_that_of_its_figures() {
        let cost = Learnt::default().cost();
        assert!(cost.abs_diff(UNKNOWN) < Duration::from_millis(1), "{cost:?}");
    }
}
