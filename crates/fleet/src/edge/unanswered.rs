//! Whether packets go unanswered that no connection of the edge shows: UDP of a LAN over its link, and this host's own name queries. A link
//! may fail while no TCP connection is there to show it.
//!
//! 1. The counters of the interface are looked at each [`LOOK`]. Where packets leave and few or none come back for [`PATIENCE`], the relay is
//!    connected to over this link and over others. Traffic that is never answered (a stream without feedback) causes an attempt at growing
//!    intervals.
//! 2. Received packets may be broadcasts, router advertisements or ICMP errors. So the relay is also connected to each [`EACH`] while packets
//!    leave, and TLS is spoken with it after [`MANY`] packets or a minute: a captive portal accepts connections. Not so while connections to
//!    relays receive over this link.
//! 3. If another link reaches the relay and this one does not, the link counts as silent until a later attempt over it succeeds. A refusal
//!    counts as an answer only if the other links are refused as well.
//! 4. While no relay can be reached, the attempts go to the server to which a flow has gone directly.
//!
//! Counting packets in conntrack was not used: the interface's own counters are there without a privilege and cost nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_core::units::Instant;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Edge;
use super::dial::{By, connect, shake};
use super::relays::Station;
use super::trust::Trusted;

const LOOK: Duration = Duration::from_millis(250);
/// chosen: longer than a round trip over LTE in a bad moment; with the attempt a silent link is left within three seconds.
const PATIENCE: Duration = Duration::from_millis(800);
/// chosen: one packet of feedback for so many is what streams have; broadcasts of a provider's network are fewer.
const FEEDBACK: u64 = 10;
/// chosen: an attempt without TLS is some 400 bytes.
const EACH: Duration = Duration::from_secs(10);
/// chosen: an attempt with TLS is some 5 kB, which is little beside so many packets, and little in a minute.
const MANY: u64 = 200;
const LONG: Duration = Duration::from_secs(60);
/// chosen: a SYN that is answered later than this is as good as lost for a call.
const ANSWER: Duration = Duration::from_secs(1);
/// Between attempts: the first pause, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// chosen: more links than anybody's default and next best.
const OTHERS: usize = 3;

/// Packets that an interface has sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packets {
    pub(super) sent: u64,
    received: u64,
}

/// An attempt that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Rule 1.
    Unanswered,
    /// Rule 2.
    Periodic {
        /// With TLS.
        whole: bool,
    },
    /// The link is silent.
    Again,
}

/// Looks for packets of one interface that go unanswered.
#[derive(Debug)]
struct Unanswered {
    /// When an answer was seen last.
    before: Packets,
    /// Since when packets are sent that nothing answers.
    since: Option<Instant>,
    next: Option<Instant>,
    pause: Option<Duration>,
    /// The last attempts, without TLS and with it: when, and how many packets had been sent.
    checked: [(Instant, u64); 2],
}

impl Unanswered {
    fn new(now: Instant, packets: Packets) -> Self {
        Self { before: packets, since: None, next: None, pause: None, checked: [(now, packets.sent); 2] }
    }

    /// Looks once. `receives`: connections to relays receive over this link.
    fn look(&mut self, now: Instant, packets: Packets, receives: bool) -> Option<Due> {
        if packets.sent < self.before.sent || packets.received < self.before.received {
            // The interface was made anew.
            *self = Self::new(now, packets);
        }
        if receives {
            self.checked = [(now, packets.sent); 2];
        }
        if self.is_unanswered(now, packets) {
            self.checked = [(now, packets.sent); 2];
            return Some(Due::Unanswered);
        }
        let [(short, sent), (whole, whole_sent)] = self.checked;
        if now.since(short) < EACH || packets.sent == sent {
            return None;
        }
        let is_whole = now.since(whole) >= LONG || packets.sent - whole_sent >= MANY;
        self.checked[0] = (now, packets.sent);
        if is_whole {
            self.checked[1] = (now, packets.sent);
        }
        Some(Due::Periodic { whole: is_whole })
    }

    /// Rule 1.
    fn is_unanswered(&mut self, now: Instant, packets: Packets) -> bool {
        let sent = packets.sent.saturating_sub(self.before.sent);
        let received = packets.received.saturating_sub(self.before.received);
        // One packet among several may be a neighbour's, an answer to ARP say.
        let is_answer = received * FEEDBACK >= sent && (received > 1 || sent <= 3);
        if received > 0 && is_answer {
            *self = Self { checked: self.checked, ..Self::new(now, packets) };
            return false;
        }
        if sent == 0 {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        if now.since(since) < PATIENCE || self.next.is_some_and(|next| now < next) {
            return false;
        }
        let [first, longest] = PAUSES;
        let pause = self.pause.unwrap_or(first);
        self.next = Some(now + pause);
        self.pause = Some((2 * pause).min(longest));
        true
    }
}

/// What an attempt over a link shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shown {
    /// No answer, or no route.
    Nothing,
    /// A refusal, or another server in place of the relay.
    Refused,
    /// The server answers.
    Reached,
}

/// Watches the links by which packets leave that no connection of the edge shows, until dropped.
pub(super) async fn watch(edge: &Arc<Edge>) -> Infallible {
    let begun = std::time::Instant::now();
    let (mut watched, mut silent) =
        (BTreeMap::<String, Unanswered>::new(), BTreeMap::<String, (Instant, Duration)>::new());
    let mut attempts: JoinSet<(String, Option<bool>)> = JoinSet::new();
    let mut running = BTreeSet::new();
    loop {
        let ended = tokio::select! {
            Some(ended) = attempts.join_next() => Some(ended),
            () = sleep(LOOK) => None,
        };
        let now = Instant::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        match ended {
            Some(Ok((link, verdict))) => {
                running.remove(&link);
                conclude(&mut silent, now, link, verdict);
                publish(edge, &silent);
                continue;
            }
            // It has panicked, which shows nothing.
            Some(Err(_)) => running.clear(),
            None => {}
        }
        let passing = edge.passing.borrow().clone();
        let links = edge.links();
        watched.retain(|link, _| passing.contains(link));
        for link in links.iter().filter(|link| passing.contains(&link.name)) {
            let Some(packets) = packets(&link.name) else { continue };
            let unanswered = watched.entry(link.name.clone()).or_insert_with(|| Unanswered::new(now, packets));
            let due = unanswered.look(now, packets, !link.down.is_zero());
            if let Some(due) = due.filter(|_| !silent.contains_key(&link.name))
                && running.insert(link.name.clone())
            {
                attempts.spawn(attempt(Arc::clone(edge), link.name.clone(), due));
            }
        }
        for (link, (next, _)) in &silent {
            if *next <= now && running.insert(link.clone()) {
                attempts.spawn(attempt(Arc::clone(edge), link.clone(), Due::Again));
            }
        }
        silent.retain(|name, _| links.iter().any(|link| link.name == *name));
        publish(edge, &silent);
    }
}

/// `verdict`: whether the link is silent; none: nothing has shown it.
fn conclude(silent: &mut BTreeMap<String, (Instant, Duration)>, now: Instant, link: String, verdict: Option<bool>) {
    match (verdict, silent.get_mut(&link)) {
        (Some(false), _) => drop(silent.remove(&link)),
        (_, Some((next, pause))) => {
            *pause = (2 * *pause).min(PAUSES[1]);
            *next = now + *pause;
        }
        (Some(true), None) => {
            tracing::warn!(link, "packets go unanswered, and another link reaches the server");
            silent.insert(link, (now + PAUSES[0], PAUSES[0]));
        }
        (None, None) => {}
    }
}

fn publish(edge: &Edge, silent: &BTreeMap<String, (Instant, Duration)>) {
    let names: BTreeSet<String> = silent.keys().cloned().collect();
    edge.silent.send_if_modified(|now| {
        let is_new = *now != names;
        *now = names;
        is_new
    });
}

/// Attempts to reach the server over the link, and over others to compare with. Returns the link, and whether it is silent.
async fn attempt(edge: Arc<Edge>, link: String, due: Due) -> (String, Option<bool>) {
    let mut others: Vec<_> =
        edge.links().into_iter().filter(|other| other.up && !other.silent && other.name != link).collect();
    others.sort_by_key(|other| other.metered);
    let others: Vec<String> = others.into_iter().take(OTHERS).map(|other| other.name).collect();
    let Some(server) = Server::of(&edge).await else { return (link, None) };
    let own = [link.clone()];
    let (shown, over_others) = match due {
        Due::Unanswered => tokio::join!(server.over(&own, true), server.over(&others, true)),
        Due::Periodic { whole } => match server.over(&own, whole).await {
            Shown::Reached => return (link, Some(false)),
            shown => (shown, server.over(&others, whole).await),
        },
        Due::Again => match server.over(&own, true).await {
            Shown::Reached => return (link, Some(false)),
            Shown::Nothing => return (link, None),
            Shown::Refused => (Shown::Refused, server.over(&others, true).await),
        },
    };
    let verdict = judge(shown, over_others);
    (link, verdict)
}

/// Whether a link is silent; none: nothing has shown it. Rule 3.
fn judge(shown: Shown, others: Shown) -> Option<bool> {
    match (shown, others) {
        (Shown::Nothing, Shown::Nothing) => None,
        (shown, others) => Some(shown < others),
    }
}

/// The server to which the attempts go.
#[derive(Clone)]
enum Server {
    Relay(Arc<Station>, Vec<SocketAddr>, Arc<Trusted>),
    /// Rule 4: with the links over which it counts.
    Direct(BTreeMap<String, SocketAddr>),
}

impl Server {
    /// The first relay that is not known to be unreachable; else the server of a direct flow.
    async fn of(edge: &Edge) -> Option<Self> {
        let relay = edge.roads.relays.order().into_iter().find(|station| station.unreachable().is_none());
        if let Some(station) = relay {
            let addresses = timeout(ANSWER, station.addresses()).await.ok()?.ok()?;
            return Some(Self::Relay(station, addresses, Arc::new(edge.roads.trusted())));
        }
        // Over a link with a captive portal, which answers in the server's place, nothing counts.
        let of = |link: String| Some((edge.roads.starts.direct_probe(&link)?, link));
        let servers = edge.roads.starts.names().into_iter().filter_map(of).map(|(server, link)| (link, server));
        Some(Self::Direct(servers.collect()))
            .filter(|server| !matches!(server, Self::Direct(all) if all.is_empty()))
    }

    /// The best that these links show.
    async fn over(&self, links: &[String], whole: bool) -> Shown {
        let mut tried = JoinSet::new();
        for link in links {
            let (server, link) = (self.clone(), link.clone());
            tried.spawn(async move { server.over_one(&link, whole).await });
        }
        let mut best = Shown::Nothing;
        while best < Shown::Reached
            && let Some(one) = tried.join_next().await
        {
            best = best.max(one.unwrap_or(Shown::Nothing));
        }
        best
    }

    async fn over_one(&self, link: &str, whole: bool) -> Shown {
        let by = |link: &str| By { device: Some(link.to_owned()), plain: true, ..By::default() };
        match self {
            Self::Direct(servers) => match servers.get(link) {
                Some(server) => answer(timeout(ANSWER, connect(*server, by(link))).await).1,
                None => Shown::Nothing,
            },
            Self::Relay(station, addresses, trusted) => {
                let mut best = Shown::Nothing;
                for address in addresses.iter().take(2) {
                    let shown = match answer(timeout(ANSWER, connect(*address, by(link))).await) {
                        (Some(socket), _) if whole => match shake(socket, station, trusted).await {
                            Ok(_) => Shown::Reached,
                            Err(_) => Shown::Refused,
                        },
                        (_, shown) => shown,
                    };
                    best = best.max(shown);
                    if best == Shown::Reached {
                        break;
                    }
                }
                best
            }
        }
    }
}

fn answer<T, E>(connected: Result<io::Result<T>, E>) -> (Option<T>, Shown) {
    match connected {
        Ok(Ok(socket)) => (Some(socket), Shown::Reached),
        Ok(Err(error))
            if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset) =>
        {
            (None, Shown::Refused)
        }
        _ => (None, Shown::Nothing),
    }
}

/// The counters of an interface of this network.
pub(super) fn packets(link: &str) -> Option<Packets> {
    parse(&std::fs::read_to_string("/proc/thread-self/net/dev").ok()?, link)
}

/// A line of proc_pid_net(5)'s `dev`: name, then received bytes, packets and six more, then sent bytes and packets.
fn parse(text: &str, link: &str) -> Option<Packets> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(link)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    Some(Packets { received: *numbers.get(1)?, sent: *numbers.get(9)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Looks each 250 ms with so many more packets each time; gives the times of attempts by rule 1, and those of rule 2.
    fn attempts(
        unanswered: &mut Unanswered,
        from: Packets,
        each: (u64, u64),
        looks: u64,
    ) -> (Vec<u64>, Vec<(u64, bool)>) {
        let (mut due, mut periodic, mut packets) = (Vec::new(), Vec::new(), from);
        for look in 1..=looks {
            packets.sent += each.0;
            packets.received += each.1;
            match unanswered.look(at(look * 250), packets, false) {
                Some(Due::Unanswered) => due.push(look * 250),
                Some(Due::Periodic { whole }) => periodic.push((look * 250, whole)),
                Some(Due::Again) | None => {}
            }
        }
        (due, periodic)
    }

    fn new() -> Unanswered {
        Unanswered::new(Instant::ZERO, Packets::default())
    }

    #[test]
    fn packets_without_an_answer_are_followed_by_attempts_at_growing_intervals() {
        // One packet in twenty may be a broadcast.
        for each in [(3, 0), (40, 2)] {
            let mut unanswered = new();
            let (due, _) = attempts(&mut unanswered, Packets::default(), each, 80);
            assert_eq!(due, [1250, 2250, 4250, 8250, 16_250], "{each:?}");
            let answered = Packets { sent: 80 * each.0, received: 80 * each.1 + 80 * each.0 };
            assert_eq!(unanswered.look(at(20_250), answered, false), None);
            assert_eq!(unanswered.pause, None, "the next silence is found as soon as the first one");
        }
    }

    #[test]
    fn what_is_answered_or_idle_causes_none_of_these() {
        for each in [(5, 1), (1, 1), (100, 30), (0, 0), (0, 4)] {
            assert_eq!(attempts(&mut new(), Packets::default(), each, 100).0, [0; 0], "{each:?}");
        }
    }

    #[test]
    fn what_seems_to_be_answered_is_tried_each_ten_seconds_and_with_tls_after_many_packets_or_a_minute() {
        let of = |each| attempts(&mut new(), Packets::default(), each, 4 * 75).1;
        let few: Vec<(u64, bool)> = (1..=7).map(|n| (n * 10_000, n == 5)).collect();
        assert_eq!(of((1, 1)), few, "these are 200 packets in 50 s");
        let many: Vec<(u64, bool)> = (1..=7).map(|n| (n * 10_000, true)).collect();
        assert_eq!(of((10, 10)), many);
        assert_eq!(of((0, 9)), []);
        let packets = |n| Packets { sent: n, received: n };
        let mut seldom = new();
        let is_whole = (1..=7).map(|n| seldom.look(at(n * 10_000), packets(n), false));
        assert_eq!(is_whole.filter(|due| *due == Some(Due::Periodic { whole: true })).count(), 1);
        // Connections to relays receive.
        let mut unanswered = new();
        assert!((1..400).all(|n| unanswered.look(at(n * 250), packets(n), true).is_none()));
        assert_eq!(unanswered.look(at(100_000), packets(400), false), None);
        assert_eq!(unanswered.look(at(110_000), packets(401), false), Some(Due::Periodic { whole: false }));
    }

    #[test]
    fn counters_that_begin_anew_are_no_traffic() {
        let mut unanswered = Unanswered::new(Instant::ZERO, Packets { sent: 1000, received: 1000 });
        assert_eq!(unanswered.look(at(5000), Packets { sent: 10, received: 0 }, false), None);
        assert_eq!(unanswered.look(at(14_000), Packets { sent: 10, received: 0 }, false), None);
    }

    #[test]
    fn a_refusal_is_an_answer_only_if_the_others_are_refused_as_well() {
        use Shown::{Nothing, Reached, Refused};
        for (shown, others, verdict) in [
            (Reached, Reached, Some(false)),
            (Reached, Nothing, Some(false)),
            (Refused, Reached, Some(true)),
            (Nothing, Reached, Some(true)),
            (Nothing, Refused, Some(true)),
            (Refused, Refused, Some(false)),
            (Refused, Nothing, Some(false)),
            (Nothing, Nothing, None),
        ] {
            assert_eq!(judge(shown, others), verdict, "{shown:?} {others:?}");
        }
    }

    #[test]
    fn a_silent_link_is_tried_at_growing_intervals_until_it_answers() {
        let (mut silent, link) = (BTreeMap::new(), || "wwan0".to_owned());
        conclude(&mut silent, at(0), link(), None);
        assert!(silent.is_empty());
        conclude(&mut silent, at(1000), link(), Some(true));
        let mut next = Vec::new();
        for verdict in [Some(true), None, Some(true), None, Some(true), Some(true)] {
            let (at, _) = silent["wwan0"];
            next.push(at.since(Instant::ZERO).as_secs());
            conclude(&mut silent, at, link(), verdict);
        }
        assert_eq!(next, [2, 4, 8, 16, 32, 62]);
        conclude(&mut silent, at(95_000), link(), Some(false));
        assert!(silent.is_empty());
    }

    #[test]
    fn the_kernels_table_is_read_by_name() {
        let text = "Inter-|   Receive                          |  Transmit\n face |bytes    packets\n    lo:  1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n\
                    wwan10: 9 8 0 0 0 0 0 0 7 6 0 0 0 0 0 0\n wwan1: 10 20 0 0 0 0 0 0 30 40 0 0 0 0 0 0\n";
        assert_eq!(parse(text, "wwan1"), Some(Packets { sent: 40, received: 20 }));
        assert_eq!((parse(text, "wwan"), parse("wwan1: 1 2", "wwan1")), (None, None));
    }
}
