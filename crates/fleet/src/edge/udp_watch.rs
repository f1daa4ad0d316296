//! Detects links over which packets are not answered although no connection of the edge uses them: UDP of a LAN over its link, and this
//! host's own DNS queries. A link may fail while no TCP connection runs over it.
//!
//! 1. The packet counters of the interface are polled each [`SAMPLE_INTERVAL`]. If more than [`STRAY`] packets are sent and at most one is
//!    received for [`UNANSWERED_TIME`], the relay is probed over this link, and also over others if it does not answer at once. Traffic
//!    that is never answered (a stream without feedback) causes probes at growing intervals.
//! 2. Received packets may be broadcasts, router advertisements or ICMP errors. Therefore the relay is also probed each [`EACH`] while
//!    packets are sent. After [`MANY`] packets or a minute the probe includes a TLS handshake, because a captive portal accepts TCP
//!    connections. These probes are not needed while connections to relays receive data over this link.
//! 3. If another link reaches the relay and this one does not, the link is unresponsive until a later probe over it succeeds. A refused
//!    connection counts as an answer only if the other links are refused as well. A failure that a lost or late packet may have caused
//!    needs a second one ([`is_doubtful`], [`confirmed`]).
//! 4. Packets of a probe are not traffic: the counters are compared with those at its end. An edge whose LAN is idle sends nothing.
//! 5. Without a second link that is up nothing is sent, because traffic could not move to another link.
//!
//! Conntrack counters are not used: the interface's own counters need no privilege and cost nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use marline_core::units::Instant;
use tokio::task::{Id, JoinSet};
use tokio::time::sleep;

use super::Edge;
use super::backoff::{Backoff, BackoffLimits, MAX_IDLE_PACKETS};
use super::link_probe::{ProbeOutcome, ProbeServer, ProbeTiming};
use super::link_rates::LinkState;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Our choice: longer than a slow RTT over LTE; together with the probe, traffic leaves an unresponsive link within three seconds.
const UNANSWERED_TIME: Duration = Duration::from_millis(800);
/// Sent packets per received packet up to which a stream counts as answered. Our choice: streams with feedback have at least this share,
/// and the broadcasts of a provider's network are fewer.
const MAX_SENT_PER_RECEIVED: u64 = 10;
/// Our choice: an unused host sends so many packets that are not answered, or not soon (mDNS, MLD, a keep-alive), within [`STRAYS`].
const MAX_STRAY_PACKETS: u64 = 3;
const STRAY_PERIOD: Duration = Duration::from_secs(5);
/// Interval of probes by rule 2. Our choice: a probe without TLS is about 400 bytes.
const PERIODIC_INTERVAL: Duration = Duration::from_secs(10);
/// Packets, or time, after which a probe includes a TLS handshake. Our choice: it is about 5 kB, which is little compared with so many
/// packets, and little per minute.
const TLS_AFTER_PACKETS: u64 = 200;
const TLS_AFTER_TIME: Duration = Duration::from_secs(60);
/// Our choice: during a probe, peers whose packets are lost on the return path retransmit up to so many; a working link receives more.
const MAX_RETRANSMITTED: u64 = 10;
/// Between probes by rule 1, and of an unresponsive link.
const ATTEMPT_PAUSES: BackoffLimits = BackoffLimits { min: Duration::from_secs(1), max: Duration::from_secs(30) };
/// How long a probe by rule 1 runs before the other links are probed as well. Our choice: a relay answers earlier, TLS included, over all
/// links but a satellite's.
const COMPARE_DELAY: Duration = Duration::from_millis(500);
/// Our choice: more links than a usual host has.
const MAX_OTHER_LINKS: usize = 3;

/// Packets that an interface has sent and received since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketCounters {
    pub(super) sent: u64,
    received: u64,
}

/// Why a probe is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeReason {
    /// Packets are sent and nothing is received (rule 1).
    Unanswered,
    /// Packets are sent, and the last probe was long ago (rule 2).
    Periodic {
        /// Whether the probe includes a TLS handshake.
        includes_tls: bool,
    },
    /// The link is unresponsive; the probe detects whether it has recovered.
    Recheck,
}

impl ProbeReason {
    fn uses_tls(self) -> bool {
        self != Self::Periodic { includes_tls: false }
    }
}

/// Detects unanswered packets on one interface.
#[derive(Debug)]
struct UnansweredDetector {
    /// Counters at the last answer, or at the end of the last probe.
    last_answered: PacketCounters,
    /// Since when packets are sent without an answer.
    unanswered_since: Option<Instant>,
    next_attempt: Option<Instant>,
    pause: Option<Duration>,
    /// When rule 2 began to count packets, and the count of sent packets then.
    last_periodic: (Instant, u64),
    /// The same for probes with TLS.
    last_tls: (Instant, u64),
}

impl UnansweredDetector {
    fn new(now: Instant, packets: PacketCounters) -> Self {
        let last_probe = (now, packets.sent);
        Self {
            last_answered: packets,
            unanswered_since: None,
            next_attempt: None,
            pause: None,
            last_periodic: last_probe,
            last_tls: last_probe,
        }
    }

    /// Evaluates a sample of the counters; returns a probe that is due. `receives`: connections to relays receive data over this link.
    fn sample(&mut self, now: Instant, packets: PacketCounters, receives: bool) -> Option<ProbeReason> {
        if packets.sent < self.last_answered.sent || packets.received < self.last_answered.received {
            // The interface was removed and created again.
            *self = Self::new(now, packets);
        }
        if receives {
            (self.last_periodic, self.last_tls) = ((now, packets.sent), (now, packets.sent));
        }
        if self.is_unanswered(now, packets) {
            return Some(ProbeReason::Unanswered);
        }
        let (started_at, sent) = self.last_periodic;
        if now.since(started_at) < PERIODIC_INTERVAL {
            return None;
        }
        self.last_periodic = (now, packets.sent);
        let (started_at, sent_at_tls) = self.last_tls;
        let includes_tls = now.since(started_at) >= TLS_AFTER_TIME
            || packets.sent.saturating_sub(sent_at_tls) >= TLS_AFTER_PACKETS;
        (packets.sent.saturating_sub(sent) > MAX_IDLE_PACKETS).then_some(ProbeReason::Periodic { includes_tls })
    }

    /// A probe has ended: its packets do not count as traffic (rule 4).
    fn probe_ended(&mut self, now: Instant, packets: PacketCounters, due: ProbeReason) {
        (self.last_answered, self.unanswered_since, self.last_periodic) = (packets, None, (now, packets.sent));
        if due.uses_tls() {
            self.last_tls = (now, packets.sent);
        }
    }

    /// Whether packets are unanswered long enough for a probe (rule 1). Sets the time of the next one.
    fn is_unanswered(&mut self, now: Instant, packets: PacketCounters) -> bool {
        let sent = packets.sent.saturating_sub(self.last_answered.sent);
        let received = packets.received.saturating_sub(self.last_answered.received);
        // A single packet among several may come from a neighbor, for instance an ARP reply.
        let is_answer = received * MAX_SENT_PER_RECEIVED >= sent && (received > 1 || sent <= MAX_STRAY_PACKETS);
        if received > 0 && is_answer {
            *self = Self { last_periodic: self.last_periodic, last_tls: self.last_tls, ..Self::new(now, packets) };
            return false;
        }
        if sent == 0 {
            return false;
        }
        let since = *self.unanswered_since.get_or_insert(now);
        // Rare feedback or broadcasts of others: the probes of rule 2 distinguish them.
        if received > 1 || (sent <= MAX_STRAY_PACKETS && now.since(since) >= STRAY_PERIOD) {
            (self.last_answered, self.unanswered_since) = (packets, None);
            return false;
        }
        if sent <= MAX_STRAY_PACKETS
            || now.since(since) < UNANSWERED_TIME
            || self.next_attempt.is_some_and(|next| now < next)
        {
            return false;
        }
        let pause = self.pause.unwrap_or(ATTEMPT_PAUSES.min);
        self.next_attempt = Some(now + pause);
        self.pause = Some((2 * pause).min(ATTEMPT_PAUSES.max));
        true
    }
}

/// Result of a probe over a link.
struct ProbeEnd {
    link: String,
    due: ProbeReason,
    /// The interface's counters at its start.
    initial_counters: Option<PacketCounters>,
    /// Whether the link is unresponsive; `None`: the probe did not show it.
    verdict: Option<bool>,
}

/// The probes in progress, at most one for each link.
#[derive(Default)]
struct RunningProbes {
    tasks: JoinSet<ProbeEnd>,
    /// The link of each task: a task that panics returns no result that names its link.
    links: BTreeMap<Id, String>,
}

impl RunningProbes {
    fn is_running(&self, link: &str) -> bool {
        self.links.values().any(|running| running == link)
    }

    fn start(&mut self, link: &str, probe: impl Future<Output = ProbeEnd> + Send + 'static) {
        let task = self.tasks.spawn(probe);
        self.links.insert(task.id(), link.to_owned());
    }

    /// The next probe that ends; the error is one that has panicked. `None`: no probe is running.
    async fn next(&mut self) -> Option<Result<ProbeEnd, ()>> {
        let (id, ended) = match self.tasks.join_next_with_id().await? {
            Ok((id, ended)) => (id, Ok(ended)),
            Err(error) => (error.id(), Err(())),
        };
        self.links.remove(&id);
        Some(ended)
    }
}

/// Monitors the links that carry packets without a tunnel, and publishes the unresponsive ones, until dropped.
pub(super) async fn run(edge: &Arc<Edge>) -> Infallible {
    let epoch = std::time::Instant::now();
    // `watched` holds the links that seem to work, `unresponsive` the others with their backoff.
    let (mut watched, mut unresponsive) =
        (BTreeMap::<String, UnansweredDetector>::new(), BTreeMap::<String, Backoff>::new());
    let mut attempts = RunningProbes::default();
    loop {
        let ended = tokio::select! {
            Some(ended) = attempts.next() => Some(ended),
            () = sleep(SAMPLE_INTERVAL) => None,
        };
        let now = Instant::from_millis(u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX));
        let (uplinks, links) = (edge.lan_uplink.borrow().clone(), edge.links());
        let counters: BTreeMap<&str, PacketCounters> =
            links.iter().filter_map(|link| Some((link.name.as_str(), read_counters(&link.name)?))).collect();
        // Packets over all these links: they are the traffic that keeps the backoff of an unresponsive link running, because it carries
        // none itself.
        let sent = uplinks.iter().filter_map(|link| Some(counters.get(link.as_str())?.sent)).sum();
        // The counters were just read, so the packets of the ended probe do not count as traffic (rule 4). A probe that has panicked is
        // no evidence.
        if let Some(Ok(ProbeEnd { link, due, initial_counters, verdict })) = ended {
            let after = counters.get(link.as_str()).copied();
            if let (Some(after), Some(unanswered)) = (after, watched.get_mut(&link)) {
                unanswered.probe_ended(now, after, due);
            }
            let carries = links.iter().any(|now| now.name == link && carries(now));
            let verdict = confirmed(verdict, received(initial_counters, after), carries);
            record_verdict(&mut unresponsive, (now, sent), link, verdict);
            publish(edge, &unresponsive);
            continue;
        }
        // Rule 5.
        let others = |link: &str| replacements(&links, link);
        // A link that recovers gets a new detector.
        watched.retain(|link, _| {
            uplinks.contains(link) && !others(link).is_empty() && !unresponsive.contains_key(link)
        });
        unresponsive.retain(|name, _| is_relevant(&links, name));
        for link in links.iter().filter(|link| uplinks.contains(&link.name)) {
            let (others, is_tried) = (others(&link.name), attempts.is_running(&link.name));
            let is_monitored = !others.is_empty() && !is_tried && !unresponsive.contains_key(&link.name);
            let Some(packets) = counters.get(link.name.as_str()).filter(|_| is_monitored) else { continue };
            let unanswered =
                watched.entry(link.name.clone()).or_insert_with(|| UnansweredDetector::new(now, *packets));
            if let Some(due) = unanswered.sample(now, *packets, !link.down_rate.is_zero()) {
                attempts.start(&link.name, probe(Arc::clone(edge), link.name.clone(), others, due));
            }
        }
        for (link, again) in &unresponsive {
            if again.is_due(now, sent) && !attempts.is_running(link) {
                attempts.start(link, probe(Arc::clone(edge), link.clone(), others(link), ProbeReason::Recheck));
            }
        }
        publish(edge, &unresponsive);
    }
}

/// Whether the link exists and another one is up. Otherwise it does not matter whether this one is unresponsive.
fn is_relevant(links: &[LinkState], link: &str) -> bool {
    links.iter().any(|known| known.name == link) && links.iter().any(|other| other.up && other.name != link)
}

/// The links that could replace this one, unmetered ones first; at most [`MAX_OTHER_LINKS`].
fn replacements(links: &[LinkState], link: &str) -> Vec<String> {
    let mut others: Vec<&LinkState> =
        links.iter().filter(|other| other.up && !other.unresponsive && other.name != link).collect();
    others.sort_by_key(|other| other.metered);
    others.into_iter().take(MAX_OTHER_LINKS).map(|other| other.name.clone()).collect()
}

/// Whether connections to relays currently carry data over the link.
fn carries(link: &LinkState) -> bool {
    !link.rate.is_zero() || !link.down_rate.is_zero()
}

/// How many packets were received between two samples.
fn received(before: Option<PacketCounters>, after: Option<PacketCounters>) -> u64 {
    let received = |packets: Option<PacketCounters>| packets.map_or(0, |packets| packets.received);
    received(after).saturating_sub(received(before))
}

/// Whether a probe must be repeated before its result counts; `received` packets have arrived since it began.
fn is_doubtful(due: ProbeReason, shown: ProbeOutcome, received: u64) -> bool {
    match shown {
        ProbeOutcome::Reached => false,
        // TLS also fails if packets are late.
        ProbeOutcome::Refused => true,
        // If packets arrive, the link may only be slow, or its queue full.
        ProbeOutcome::NoResponse => due == ProbeReason::Unanswered && received > MAX_RETRANSMITTED,
    }
}

/// The verdict of a probe, or `None` if connections to relays contradict it: a link that carries their data is busy, not unresponsive. The
/// rate of these connections is up to some seconds old, so it does not count if hardly any packet arrived during the probe.
fn confirmed(verdict: Option<bool>, received: u64, carries: bool) -> Option<bool> {
    verdict.filter(|is_silent| !(*is_silent && carries && received > MAX_RETRANSMITTED))
}

/// Records the result of a probe. `verdict`: whether the link is unresponsive; `None`: the probe did not show it.
fn record_verdict(
    unresponsive: &mut BTreeMap<String, Backoff>,
    (now, sent): (Instant, u64),
    link: String,
    verdict: Option<bool>,
) {
    match (verdict, unresponsive.get_mut(&link)) {
        (Some(false), _) => drop(unresponsive.remove(&link)),
        (_, Some(again)) => again.record_failure(now, sent),
        (Some(true), None) => {
            tracing::warn!(
                link,
                "link is unresponsive: packets sent over it are not answered, and another link reaches the server"
            );
            unresponsive.insert(link, Backoff::new(now, ATTEMPT_PAUSES, sent));
        }
        (None, None) => {}
    }
}

fn publish(edge: &Edge, unresponsive: &BTreeMap<String, Backoff>) {
    let names: BTreeSet<String> = unresponsive.keys().cloned().collect();
    edge.unanswered_links.send_if_modified(|now| {
        let is_new = *now != names;
        *now = names;
        is_new
    });
}

/// Probes the server over the link, and over others for comparison.
async fn probe(edge: Arc<Edge>, link: String, others: Vec<String>, due: ProbeReason) -> ProbeEnd {
    let started_at = read_counters(&link);
    let verdict = match ProbeServer::choose(&edge).await {
        Some(server) => compare(&server, &link, &others, due, started_at).await,
        None => None,
    };
    ProbeEnd { link, due, initial_counters: started_at, verdict }
}

async fn compare(
    server: &ProbeServer,
    link: &str,
    others: &[String],
    due: ProbeReason,
    started_at: Option<PacketCounters>,
) -> Option<bool> {
    let over_link = probe_link(server, link, due, started_at);
    let over_others = server.probe_links(others, due.uses_tls(), ProbeTiming::QUICK);
    tokio::pin!(over_link, over_others);
    // Rule 1 has no time to probe the links one after the other.
    let compare_delay = if due == ProbeReason::Unanswered { COMPARE_DELAY } else { Duration::MAX };
    // The other links are only probed if this one fails, or if it takes longer than `alone`: an answer over this link alone decides.
    let (outcome, best) = tokio::select! {
        shown = &mut over_link => match shown {
            ProbeOutcome::Reached => return Some(false),
            // The link is still unresponsive, which needs no comparison.
            ProbeOutcome::NoResponse if due == ProbeReason::Recheck => return None,
            shown => (shown, over_others.await),
        },
        best = async { sleep(compare_delay).await; over_others.as_mut().await } => (over_link.await, best),
    };
    judge(outcome, best)
}

/// Whether a link is unresponsive, compared with the best result of the others; `None`: not known, because none of them reached anything
/// (rule 3).
fn judge(shown: ProbeOutcome, others: ProbeOutcome) -> Option<bool> {
    match (shown, others) {
        (ProbeOutcome::NoResponse, ProbeOutcome::NoResponse) => None,
        (shown, others) => Some(shown < others),
    }
}

/// Probes the link, a second time if the first result is doubtful.
async fn probe_link(
    server: &ProbeServer,
    link: &str,
    due: ProbeReason,
    started_at: Option<PacketCounters>,
) -> ProbeOutcome {
    let timing = match due {
        ProbeReason::Periodic { .. } => ProbeTiming::SLOW,
        ProbeReason::Unanswered | ProbeReason::Recheck => ProbeTiming::QUICK,
    };
    let shown = server.probe_link(link, due.uses_tls(), timing).await;
    if is_doubtful(due, shown, received(started_at, read_counters(link))) {
        return server.probe_link(link, due.uses_tls(), ProbeTiming::SLOW).await;
    }
    shown
}

/// Reads the packet counters of an interface of this network namespace.
pub(super) fn read_counters(link: &str) -> Option<PacketCounters> {
    parse_counters(&std::fs::read_to_string("/proc/thread-self/net/dev").ok()?, link)
}

/// Parses one interface's line of `/proc/net/dev` (proc_pid_net(5)): name, then received bytes, packets and six more fields, then sent
/// bytes and packets.
fn parse_counters(text: &str, link: &str) -> Option<PacketCounters> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(link)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    Some(PacketCounters { received: *numbers.get(1)?, sent: *numbers.get(9)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Takes `looks` samples, one per 250 ms, where the packets grow by `each`; returns the times of probes by rule 1, and those of rule 2.
    /// Each probe sends 12 packets itself and receives 10.
    fn attempts(
        unanswered: &mut UnansweredDetector,
        from: PacketCounters,
        each: (u64, u64),
        sample_count: u64,
    ) -> (Vec<u64>, Vec<(u64, bool)>) {
        let (mut due, mut periodic, mut packets) = (Vec::new(), Vec::new(), from);
        for sample_index in 1..=sample_count {
            packets.sent += each.0;
            packets.received += each.1;
            let now = unanswered.sample(at(sample_index * 250), packets, false);
            match now {
                Some(ProbeReason::Unanswered) => due.push(sample_index * 250),
                Some(ProbeReason::Periodic { includes_tls }) => periodic.push((sample_index * 250, includes_tls)),
                Some(ProbeReason::Recheck) | None => {}
            }
            if let Some(now) = now {
                (packets.sent, packets.received) = (packets.sent + 12, packets.received + 10);
                unanswered.probe_ended(at(sample_index * 250), packets, now);
            }
        }
        (due, periodic)
    }

    fn new() -> UnansweredDetector {
        UnansweredDetector::new(Instant::ZERO, PacketCounters::default())
    }

    #[test]
    fn unanswered_packets_cause_probes_at_growing_intervals() {
        let mut unanswered = new();
        let (due, _) = attempts(&mut unanswered, PacketCounters::default(), (3, 0), 80);
        assert_eq!(due, [1250, 2500, 4500, 8500, 16_500]);
        let packets = |n: u64, received: u64| PacketCounters { sent: 1000 + n, received: 1000 + received };
        unanswered.probe_ended(at(20_000), packets(0, 0), ProbeReason::Unanswered);
        assert_eq!(unanswered.sample(at(20_250), packets(10, 10), false), None);
        assert_eq!(unanswered.pause, None, "the next outage is detected as fast as the first one");
    }

    #[test]
    fn answered_packets_and_an_idle_link_cause_no_such_probes() {
        for each in [(5, 1), (1, 1), (100, 30), (0, 0), (0, 4)] {
            assert_eq!(attempts(&mut new(), PacketCounters::default(), each, 100).0, [0; 0], "{each:?}");
        }
    }

    #[test]
    fn an_upload_with_little_feedback_is_probed_like_answered_traffic() {
        // ACKs that a router thins out, or RTCP receiver reports: one to five packets in a hundred.
        for each in [(100, 2), (40, 2), (60, 3)] {
            let (due, periodic) = attempts(&mut new(), PacketCounters::default(), each, 4 * 60);
            assert_eq!((due, periodic.len()), (vec![], 6), "{each:?}");
        }
        // A report each five seconds does not reset the growing intervals.
        let (mut unanswered, mut packets, mut due) = (new(), PacketCounters::default(), Vec::new());
        for sample_index in 1..=4 * 60 {
            packets.sent += 25;
            packets.received += u64::from(sample_index % 20 == 0);
            if let Some(now) = unanswered.sample(at(sample_index * 250), packets, false) {
                due.extend((now == ProbeReason::Unanswered).then_some(sample_index * 250));
                unanswered.probe_ended(at(sample_index * 250), packets, now);
            }
        }
        assert!(due.len() <= 7, "{due:?}");
    }

    #[test]
    fn an_idle_lan_causes_no_probe_whatever_the_last_probe_sent() {
        let mut unanswered = new();
        let (_, periodic) = attempts(&mut unanswered, PacketCounters::default(), (10, 10), 40);
        assert_eq!(periodic.len(), 1);
        let packets = PacketCounters { sent: 5000, received: 5000 };
        unanswered.probe_ended(at(10_000), packets, ProbeReason::Periodic { includes_tls: true });
        assert!((1..4 * 3600).all(|n| unanswered.sample(at(10_000 + n * 250), packets, false).is_none()));
        // An upload that was not answered has ended.
        let mut unanswered = new();
        assert_eq!(attempts(&mut unanswered, PacketCounters::default(), (30, 0), 5).0, [1250]);
        let packets = PacketCounters { sent: 162, received: 10 };
        assert!((6..4 * 3600).all(|n| unanswered.sample(at(n * 250), packets, false).is_none()));
        // ARP requests, a group membership report, a NAT keep-alive: some packets a minute, which are not answered.
        let (mut unanswered, packets) = (new(), |n| PacketCounters { sent: n / 40, received: 0 });
        assert!((1..4 * 3600).all(|n| unanswered.sample(at(n * 250), packets(n), false).is_none()));
    }

    #[test]
    fn answered_traffic_causes_a_probe_each_ten_seconds_and_one_with_tls_after_many_packets_or_a_minute() {
        let probe_attempts = |each| attempts(&mut new(), PacketCounters::default(), each, 4 * 75).1;
        // With the packets of the attempts these are 248 in 50 s.
        let few: Vec<(u64, bool)> = (1..=7).map(|n| (n * 10_000, n == 5)).collect();
        assert_eq!(probe_attempts((1, 1)), few);
        let many: Vec<(u64, bool)> = (1..=7).map(|n| (n * 10_000, true)).collect();
        assert_eq!(probe_attempts((10, 10)), many);
        assert_eq!(probe_attempts((0, 9)), []);
        let mut packets = PacketCounters::default();
        let mut seldom = new();
        let full_probes = (1..=7).map(|n| {
            packets = PacketCounters { sent: packets.sent + 21, received: packets.received + 21 };
            seldom
                .sample(at(n * 10_000), packets, false)
                .inspect(|due| seldom.probe_ended(at(n * 10_000), packets, *due))
        });
        assert_eq!(full_probes.filter(|due| *due == Some(ProbeReason::Periodic { includes_tls: true })).count(), 1);
        // Connections to relays receive data.
        let packets = |n| PacketCounters { sent: n, received: n };
        let mut unanswered = new();
        assert!((1..400).all(|n| unanswered.sample(at(n * 250), packets(n), true).is_none()));
        assert_eq!(unanswered.sample(at(100_000), packets(400), false), None);
        assert_eq!(
            unanswered.sample(at(110_000), packets(421), false),
            Some(ProbeReason::Periodic { includes_tls: false })
        );
    }

    #[test]
    fn counters_that_start_again_at_zero_are_no_traffic() {
        let mut unanswered = UnansweredDetector::new(Instant::ZERO, PacketCounters { sent: 1000, received: 1000 });
        assert_eq!(unanswered.sample(at(5000), PacketCounters { sent: 10, received: 0 }, false), None);
        assert_eq!(unanswered.sample(at(14_000), PacketCounters { sent: 10, received: 0 }, false), None);
    }

    #[test]
    fn no_probe_is_sent_without_another_usable_link() {
        let link = |name: &str| LinkState { name: name.into(), up: true, ..LinkState::default() };
        let (down, silent) = (LinkState { up: false, ..link("b") }, LinkState { unresponsive: true, ..link("c") });
        assert_eq!(replacements(&[link("a"), down.clone(), silent.clone()], "a"), [""; 0]);
        assert!(!is_relevant(&[link("a"), down.clone()], "a") && !is_relevant(&[link("b")], "a"));
        assert!(is_relevant(&[link("a"), down, silent], "a"));
        let metered = LinkState { metered: true, ..link("b") };
        assert_eq!(replacements(&[link("a"), metered, link("c")], "a"), ["c", "b"]);
    }

    #[test]
    fn a_failure_that_may_come_from_late_packets_needs_a_second_probe() {
        let periodic = ProbeReason::Periodic { includes_tls: true };
        for due in [ProbeReason::Unanswered, periodic, ProbeReason::Recheck] {
            assert!(!is_doubtful(due, ProbeOutcome::Reached, 9), "{due:?}");
            assert!(is_doubtful(due, ProbeOutcome::Refused, 0), "{due:?}");
        }
        // Hardly any packet has arrived, so a second probe would not help.
        assert!(!is_doubtful(ProbeReason::Unanswered, ProbeOutcome::NoResponse, MAX_RETRANSMITTED));
        assert!(is_doubtful(ProbeReason::Unanswered, ProbeOutcome::NoResponse, MAX_RETRANSMITTED + 1));
        assert!(!is_doubtful(periodic, ProbeOutcome::NoResponse, 99), "the probe has waited long enough");
    }

    #[test]
    fn a_link_that_carries_relay_connections_is_unresponsive_only_if_hardly_any_packet_arrived() {
        assert_eq!(confirmed(Some(true), 11, true), None);
        assert_eq!(confirmed(Some(true), 11, false), Some(true));
        assert_eq!(confirmed(Some(true), 10, true), Some(true), "the rate is some seconds old");
        assert_eq!(confirmed(Some(false), 11, true), Some(false));
        assert_eq!(confirmed(None, 0, false), None);
        let rate = marline_core::units::Bitrate::from_mbps(1);
        assert!(
            carries(&LinkState { rate, ..LinkState::default() })
                && carries(&LinkState { down_rate: rate, ..LinkState::default() })
        );
    }

    #[test]
    fn a_refusal_is_an_answer_only_if_the_others_are_refused_as_well() {
        use ProbeOutcome::{NoResponse, Reached, Refused};
        for (shown, others, verdict) in [
            (Reached, Reached, Some(false)),
            (Reached, NoResponse, Some(false)),
            (Refused, Reached, Some(true)),
            (NoResponse, Reached, Some(true)),
            (NoResponse, Refused, Some(true)),
            (Refused, Refused, Some(false)),
            (Refused, NoResponse, Some(false)),
            (NoResponse, NoResponse, None),
        ] {
            assert_eq!(judge(shown, others), verdict, "{shown:?} {others:?}");
        }
    }

    #[test]
    fn an_unresponsive_link_is_probed_until_it_answers() {
        let (mut silent, link) = (BTreeMap::new(), || "wwan0".to_owned());
        record_verdict(&mut silent, (at(0), 0), link(), None);
        assert!(silent.is_empty());
        record_verdict(&mut silent, (at(1000), 0), link(), Some(true));
        assert!(!silent["wwan0"].is_due(at(1999), 0) && silent["wwan0"].is_due(at(2000), 0));
        for (now, verdict) in [(2000, None), (4000, Some(true))] {
            record_verdict(&mut silent, (at(now), 0), link(), verdict);
        }
        assert!(!silent["wwan0"].is_due(at(7999), 0) && silent["wwan0"].is_due(at(8000), 0));
        record_verdict(&mut silent, (at(8000), 0), link(), Some(false));
        assert!(silent.is_empty());
    }

    #[tokio::test]
    async fn a_probe_that_panics_ends_only_itself() {
        let mut probes = RunningProbes::default();
        let end = |link: &str| ProbeEnd {
            link: link.to_owned(),
            due: ProbeReason::Recheck,
            initial_counters: None,
            verdict: None,
        };
        probes.start("wlan0", async { panic!("a defect") });
        probes.start("wwan0", std::future::pending());
        assert!(matches!(probes.next().await, Some(Err(()))));
        assert!(!probes.is_running("wlan0") && probes.is_running("wwan0"));
        let ended = end("wlan0");
        probes.start("wlan0", async { ended });
        assert!(matches!(probes.next().await, Some(Ok(ended)) if ended.link == "wlan0"));
        assert!(!probes.is_running("wlan0") && probes.is_running("wwan0"));
    }

    #[test]
    fn packet_counters_are_parsed_by_interface_name() {
        let text = "Inter-|   Receive                          |  Transmit\n face |bytes    packets\n    lo:  1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n\
                    wwan10: 9 8 0 0 0 0 0 0 7 6 0 0 0 0 0 0\n wwan1: 10 20 0 0 0 0 0 0 30 40 0 0 0 0 0 0\n";
        assert_eq!(parse_counters(text, "wwan1"), Some(PacketCounters { sent: 40, received: 20 }));
        assert_eq!((parse_counters(text, "wwan"), parse_counters("wwan1: 1 2", "wwan1")), (None, None));
    }
}
