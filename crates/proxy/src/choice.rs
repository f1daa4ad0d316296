//! Which link a connection goes to, for everything that is not played: a decision without I/O.
//!
//! In: what is learnt of each link (handshakes, bytes and their time, failures, how many connections it has), and the
//! host that is wanted. Out: the links in the order in which to try them.
//!
//! 1. A host keeps its link as long as that works: logins are often tied to an address.
//! 2. A program that has [`MANY`] busy connections to one host wants throughput: further ones are spread over the links
//!    ([`Spread`]). Those over a link of whose rate nothing is known come first, one of them; then a link that carries less
//!    than half of its even share of the busy ones, because the highest rate ever seen says little of what it carries now;
//!    then rule 3 decides.
//! 3. A new host goes to the link that would bring its first 128 KiB soonest: two round trips and its share of the rate
//!    among the connections that are open.
//! 4. A link that failed rests for a time that doubles; until then it is the last resort. So are links that cost money,
//!    unless the user said otherwise.
//!
//! A link for each connection in turn was not used: every second connection would go to the worse link, and a login would
//! change its address from one request to the next.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use marline_core::fetch::MeteredUse;
use marline_core::units::{Bitrate, DataSize, Instant};

/// What is learnt.
#[derive(Debug, Default)]
pub(super) struct Choice {
    links: BTreeMap<String, Learnt>,
    hosts: BTreeMap<Pair, Kept>,
    next: u64,
}

/// A client (none: this machine) and the host that it wants.
pub(super) type Pair = (Option<IpAddr>, String);

/// What is known of a client's connections to a host.
#[derive(Debug, Default)]
struct Kept {
    /// The link of the last one, and since when there is none newer.
    link: String,
    at: Instant,
    /// Those that are open: their links, and when they last carried something.
    open: BTreeMap<u64, (String, Instant)>,
}

/// Whether a client's connections to one host are spread over the links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spread {
    /// Where many of them are busy at once.
    #[default]
    Auto,
    /// Each by itself.
    Always,
    /// A host keeps its link.
    Never,
}

/// The word is no way to spread connections.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way to spread connections: auto, always or never")]
pub struct UnknownSpread(String);

impl std::str::FromStr for Spread {
    type Err = UnknownSpread;
    fn from_str(word: &str) -> Result<Self, UnknownSpread> {
        match word {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(UnknownSpread(word.to_owned())),
        }
    }
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
    /// The names of the links for one more connection of a client to a host, the best one first.
    pub(super) fn order(
        &self,
        now: Instant,
        pair: &Pair,
        candidates: &[Candidate],
        (metered, spread): (MeteredUse, Spread),
    ) -> Vec<String> {
        let known = self.hosts.get(pair);
        let kept = known.filter(|known| now.since(known.at) < KEPT || !known.open.is_empty());
        let busy: Vec<&String> = known
            .iter()
            .flat_map(|known| known.open.values())
            .filter(|(_, last)| now.since(*last) < BUSY)
            .map(|(link, _)| link)
            .collect();
        let spreads = match spread {
            Spread::Auto => busy.len() >= MANY,
            Spread::Always => true,
            Spread::Never => false,
        };
        let kept = kept.map(|known| &known.link).filter(|_| !spreads);
        let is_dear = |link: &Candidate| link.metered && metered == MeteredUse::Avoid;
        let rests = |link: &Candidate| self.links.get(&link.name).is_some_and(|learnt| learnt.rests_until > now);
        let allowed = || candidates.iter().filter(|link| !link.metered || metered != MeteredUse::Never);
        let usable = allowed().filter(|link| !is_dear(link) && !rests(link)).count();
        let mut order: Vec<_> = allowed()
            .map(|link| {
                let (rests, dear) = (rests(link), is_dear(link));
                let learnt = self.links.get(&link.name);
                let is_new = learnt.is_none_or(|learnt| learnt.rate.is_none()) && !busy.contains(&&link.name);
                let own = busy.iter().filter(|name| **name == &link.name).count();
                let is_due = (own + 1) * 2 * usable <= busy.len() + 1;
                let other = match (spreads, is_new, is_due) {
                    (true, true, _) => 0,
                    (true, false, true) => 1,
                    (true, false, false) => 2,
                    (false, ..) => u8::from(kept != Some(&link.name)),
                };
                ((rests, dear, other, learnt.map_or(UNKNOWN, Learnt::cost)), link.name.clone())
            })
            .collect();
        // By name where nothing else tells: the same inputs give the same order.
        order.sort();
        order.into_iter().map(|(_, name)| name).collect()
    }

    /// A client's connection to a host is being opened; its number. It counts from now on: programs open many at once.
    pub(super) fn opens(&mut self, now: Instant, link: &str, pair: &Pair) -> u64 {
        self.links.entry(link.to_owned()).or_default().open += 1;
        self.make_room(now, pair);
        let known = self.hosts.entry(pair.clone()).or_default();
        if known.open.is_empty() && now.since(known.at) >= KEPT {
            known.link.clear();
        }
        if known.link.is_empty() {
            link.clone_into(&mut known.link);
        }
        known.at = now;
        let id = self.next;
        self.next += 1;
        known.open.insert(id, (link.to_owned(), now));
        id
    }

    /// It stands.
    pub(super) fn connected(&mut self, now: Instant, link: &str, pair: &Pair, handshake: Duration) {
        let learnt = self.links.entry(link.to_owned()).or_default();
        learnt.failures = 0;
        learnt.rests_until = now;
        learnt.rtt = Some(learnt.rtt.map_or(handshake, |rtt| (rtt * 7 + handshake) / 8));
        // Of those that are spread the first one's link is kept.
        if let Some(known) = self.hosts.get_mut(pair)
            && !known.open.values().any(|(of, _)| *of == known.link)
        {
            link.clone_into(&mut known.link);
        }
    }

    fn make_room(&mut self, now: Instant, pair: &Pair) {
        self.hosts.retain(|_, known| now.since(known.at) < KEPT || !known.open.is_empty());
        if self.hosts.len() >= MOST_HOSTS && !self.hosts.contains_key(pair) {
            let idle = self.hosts.iter().filter(|(_, known)| known.open.is_empty());
            let oldest = idle.min_by_key(|(_, known)| known.at).map(|(pair, _)| pair.clone());
            oldest.map(|oldest| self.hosts.remove(&oldest));
        }
    }

    /// A connection carries something.
    pub(super) fn is_busy(&mut self, now: Instant, pair: &Pair, id: u64) {
        if let Some((_, last)) = self.hosts.get_mut(pair).and_then(|known| known.open.get_mut(&id)) {
            *last = now;
        }
    }

    /// A connection could not be opened.
    pub(super) fn failed(&mut self, now: Instant, link: &str) {
        let learnt = self.links.entry(link.to_owned()).or_default();
        learnt.failures += 1;
        learnt.rests_until = now + REST * 2_u32.pow(learnt.failures.min(6) - 1);
    }

    /// A connection is over.
    pub(super) fn ended(&mut self, link: &str, pair: &Pair, id: u64) {
        if let Some(known) = self.hosts.get_mut(pair) {
            known.open.remove(&id);
        }
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
/// chosen: what a browser opens to a host for one page at once stays together mostly; download programs open four to sixteen.
const MANY: usize = 3;
/// A connection that has carried nothing for so long is idle. chosen: as long as a lost packet takes to be sent a third time.
const BUSY: Duration = Duration::from_secs(3);
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

    fn pair(host: &str) -> Pair {
        (None, host.to_owned())
    }

    fn order(choice: &Choice, at: u64, host: &str, spread: Spread) -> Vec<String> {
        choice.order(Instant::from_millis(at), &pair(host), &candidates(), (MeteredUse::Avoid, spread))
    }

    fn first(choice: &Choice, at: u64, host: &str) -> String {
        order(choice, at, host, Spread::Auto)[0].clone()
    }

    /// A connection that stands.
    fn connect(choice: &mut Choice, at: u64, link: &str, host: &str, handshake: u64) -> u64 {
        let at = Instant::from_millis(at);
        let id = choice.opens(at, link, &pair(host));
        choice.connected(at, link, &pair(host), Duration::from_millis(handshake));
        id
    }

    /// So many connections at once: how many go over each link.
    fn spread(choice: &mut Choice, at: u64, host: &str, count: usize, spread: Spread) -> (usize, usize) {
        let links: Vec<String> = (0..count)
            .map(|_| {
                let link = order(choice, at, host, spread)[0].clone();
                choice.opens(Instant::from_millis(at), &link, &pair(host));
                link
            })
            .collect();
        let over = |name| links.iter().filter(|link| *link == name).count();
        (over("wifi"), over("wire"))
    }

    #[test]
    fn many_connections_at_once_to_a_host_are_spread_and_few_stay_together() {
        assert_eq!(spread(&mut Choice::default(), 0, "h", 3, Spread::Auto), (3, 0));
        assert_eq!(spread(&mut Choice::default(), 0, "h", 8, Spread::Auto), (4, 4));
        assert_eq!(spread(&mut Choice::default(), 0, "h", 8, Spread::Never), (8, 0));
        assert_eq!(spread(&mut Choice::default(), 0, "h", 2, Spread::Always), (1, 1));
        // A link that is known to be much better carries more, and the other one is tried.
        let mut choice = Choice::default();
        choice.moved("wifi", DataSize::from_mib(100), Duration::from_secs(1));
        let (wifi, wire) = spread(&mut choice, 0, "h", 8, Spread::Auto);
        assert!(wifi >= 6 && wire >= 1, "{wifi} {wire}");
    }

    #[test]
    fn many_connections_are_spread_although_one_link_was_once_much_faster() {
        let mut choice = Choice::default();
        choice.moved("wifi", DataSize::from_mib(100), Duration::from_secs(1));
        choice.moved("wire", DataSize::from_kib(200), Duration::from_secs(1));
        assert_eq!(spread(&mut choice, 0, "few", 3, Spread::Auto), (3, 0));
        assert_eq!(spread(&mut choice, 0, "many", 8, Spread::Auto), (6, 2));
        assert_eq!(spread(&mut choice, 0, "more", 16, Spread::Auto), (12, 4));
        assert_eq!(spread(&mut choice, 0, "each", 8, Spread::Always), (6, 2));
        assert_eq!(spread(&mut choice, 0, "none", 8, Spread::Never), (8, 0));
        // Of three links, too, each gets half of its even share.
        let (mut links, now) = (Vec::new(), Instant::from_millis(0));
        for _ in 0..14 {
            let terms = (MeteredUse::Use, Spread::Auto);
            let link = choice.order(now, &pair("three"), &candidates(), terms)[0].clone();
            choice.opens(now, &link, &pair("three"));
            links.push(link);
        }
        for name in ["lte", "wifi", "wire"] {
            assert!(links.iter().filter(|link| *link == name).count() >= 2, "{links:?}");
        }
        // One that has just failed, or costs money, gets none of them.
        choice.failed(Instant::from_millis(0), "wire");
        assert_eq!(spread(&mut choice, 0, "failed", 8, Spread::Auto), (8, 0));
    }

    #[test]
    fn idle_connections_and_those_of_others_are_not_many() {
        let mut choice = Choice::default();
        let ids: Vec<u64> = (0..6).map(|_| connect(&mut choice, 0, "wifi", "h", 1)).collect();
        assert_eq!(first(&choice, 100, "h"), "wire");
        // The link of the first one is kept when they have nothing to do.
        assert_eq!(first(&choice, 10_000, "h"), "wifi");
        ids.iter().take(3).for_each(|id| choice.is_busy(Instant::from_millis(10_000), &pair("h"), *id));
        assert_eq!(first(&choice, 10_100, "h"), "wire");
        let other = (Some(IpAddr::from([192, 0, 2, 1])), "h".to_owned());
        let order = |pair: &Pair| {
            choice.order(Instant::from_millis(10_100), pair, &candidates(), (MeteredUse::Avoid, Spread::Auto))
        };
        assert_eq!(order(&other)[0], "wire", "by its cost");
    }

    #[test]
    fn a_host_keeps_the_first_ones_link_after_many() {
        let mut choice = Choice::default();
        let mut open = Vec::new();
        for _ in 0..8 {
            let link = first(&choice, 0, "h");
            open.push((connect(&mut choice, 0, &link, "h", 1), link));
        }
        for (id, link) in open {
            choice.ended(&link, &pair("h"), id);
        }
        assert_eq!(first(&choice, 1000, "h"), "wifi");
        assert_eq!(first(&choice, 500_000, "h"), "wifi");
    }

    #[test]
    fn what_is_known_of_hosts_is_bounded() {
        let mut choice = Choice::default();
        for n in 0..MOST_HOSTS + 10 {
            let id = connect(&mut choice, n as u64, "wifi", &format!("h{n}"), 1);
            choice.ended("wifi", &pair(&format!("h{n}")), id);
        }
        assert_eq!(choice.hosts.len(), MOST_HOSTS);
    }

    #[test]
    fn the_link_that_brings_the_first_bytes_soonest_is_first() {
        let mut choice = Choice::default();
        connect(&mut choice, 0, "wifi", "a", 80);
        connect(&mut choice, 0, "wire", "b", 5);
        choice.moved("wifi", DataSize::from_mib(10), Duration::from_secs(1));
        choice.moved("wire", DataSize::from_mib(10), Duration::from_secs(1));
        assert_eq!(first(&choice, 0, "c"), "wire");
        // Twenty connections share its rate.
        for n in 0..20 {
            connect(&mut choice, 0, "wire", &format!("h{n}"), 5);
        }
        assert_eq!(first(&choice, 0, "c"), "wifi");
    }

    #[test]
    fn a_host_keeps_its_link_until_that_fails() {
        let mut choice = Choice::default();
        let id = connect(&mut choice, 0, "wifi", "a", 500);
        choice.ended("wifi", &pair("a"), id);
        connect(&mut choice, 0, "wire", "b", 1);
        assert_eq!(first(&choice, 1000, "a"), "wifi");
        choice.failed(Instant::from_millis(1000), "wifi");
        assert_eq!(first(&choice, 1500, "a"), "wire");
        assert_eq!(first(&choice, 700_000, "a"), "wire");
    }

    #[test]
    fn a_link_that_failed_rests_and_then_gets_its_chance() {
        let mut choice = Choice::default();
        let id = connect(&mut choice, 0, "wifi", "a", 1);
        choice.ended("wifi", &pair("a"), id);
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
        let order = |metered| {
            choice.order(Instant::from_millis(0), &pair("h"), &candidates(), (metered, Spread::default()))
        };
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
