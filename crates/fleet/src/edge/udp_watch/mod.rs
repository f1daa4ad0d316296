//! Detects links over which packets are not answered although no connection of the edge uses them: UDP of a LAN over its link, and this
//! host's own DNS queries. A link may fail while no TCP connection runs over it.
//!
//! 1. The packet counters of the interface are polled each [`SAMPLE_INTERVAL`]. If more than `MAX_STRAY_PACKETS` are sent and at most one
//!    is received for `UNANSWERED_TIME`, the relay is probed over this link, and also over others if it does not answer at once. Traffic
//!    that is never answered (a stream without feedback) causes probes at growing intervals.
//! 2. Received packets may be broadcasts, router advertisements or ICMP errors. Therefore the relay is also probed each
//!    `PERIODIC_INTERVAL` while packets are sent. After `TLS_AFTER_PACKETS` packets or a minute the probe includes a TLS handshake,
//!    because a captive portal accepts TCP connections. These probes are not needed while connections to relays receive data over this
//!    link.
//! 3. If another link reaches the relay and this one does not, the link is unresponsive until a later probe over it succeeds. A refused
//!    connection counts as an answer unless another link reaches the relay. A failure that a lost or late packet may have caused
//!    needs a second one ([`is_doubtful`], [`confirmed`]).
//! 4. Packets of a probe are not traffic: the counters are compared with those at its end. An edge whose LAN is idle sends nothing.
//! 5. Without a second link that is up nothing is sent, because traffic could not move to another link.
//!
//! Conntrack counters are not used: the interface's own counters need no privilege and cost nothing.

mod unanswered;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use marline_core::units::Instant;
use tokio::task::{Id, JoinSet};
use tokio::time::sleep;

use super::Edge;
use super::backoff::{Backoff, BackoffLimits};
use super::link_probe::{ProbeOutcome, ProbeServer, ProbeTiming};
use super::link_rates::LinkState;
pub(super) use unanswered::read_counters;
use unanswered::{PacketCounters, ProbeReason, UnansweredDetector};

const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Packets received during a probe up to which a link may be unresponsive. Our choice: peers whose packets are lost on the return path
/// retransmit up to so many; a working link receives more.
const MAX_RETRANSMITTED: u64 = 10;
/// Between probes by rule 1, and of an unresponsive link.
const ATTEMPT_PAUSES: BackoffLimits = BackoffLimits { min: Duration::from_secs(1), max: Duration::from_secs(30) };
/// How long a probe by rule 1 runs before the other links are probed as well. Our choice: a relay answers earlier, TLS included, over all
/// links but a satellite's.
const COMPARE_DELAY: Duration = Duration::from_millis(500);
/// Our choice: more links than a usual host has.
const MAX_OTHER_LINKS: usize = 3;

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
    // The other links are only probed if this one fails, or if it takes longer than `compare_delay`: an answer over this link alone
    // decides.
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_refusal_is_an_answer_unless_another_link_reaches_the_server() {
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
        record_verdict(&mut silent, (Instant::from_millis(0), 0), link(), None);
        assert!(silent.is_empty());
        record_verdict(&mut silent, (Instant::from_millis(1000), 0), link(), Some(true));
        assert!(
            !silent["wwan0"].is_due(Instant::from_millis(1999), 0)
                && silent["wwan0"].is_due(Instant::from_millis(2000), 0)
        );
        for (now, verdict) in [(2000, None), (4000, Some(true))] {
            record_verdict(&mut silent, (Instant::from_millis(now), 0), link(), verdict);
        }
        assert!(
            !silent["wwan0"].is_due(Instant::from_millis(7999), 0)
                && silent["wwan0"].is_due(Instant::from_millis(8000), 0)
        );
        record_verdict(&mut silent, (Instant::from_millis(8000), 0), link(), Some(false));
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
}
