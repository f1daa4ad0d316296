//! Detects links that fail to resolve names: a link whose own DNS servers do not answer over it, while those of another link answer over
//! that one.
//!
//! Lookups of relay names do not show this, because the system's resolver may get its answers over the other link.
//!
//! 1. The DNS servers of the links by which packets leave are probed each [`PROBE_INTERVAL`] while more than [`MAX_IDLE_PACKETS`] packets
//!    leave in it. A failed link is probed at growing intervals ([`Backoff`]), and not at all while nothing is sent.
//! 2. A lost packet is no failure: a link has failed only when its servers did not answer two queries in a row.
//! 3. Metered links are probed last. Traffic does not move to them if the system's own resolver answers, because that may use servers that
//!    no link has announced.
//! 4. With fewer than two usable links nothing is probed, because queries could not move to another link.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use marline_core::units::Instant;
use marline_net::links::{InterfaceList, list_interfaces};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Edge;
use super::backoff::{Backoff, BackoffLimits};
use super::link_rates::LinkState;
use super::udp_watch::read_counters;

/// Our choice: a user looks for the cause of a failure after some seconds; one query is about 150 bytes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Our choice: more than the keep-alives of spare connections, and fewer than the unanswered queries of one web page.
const MAX_IDLE_PACKETS: u64 = 4;
/// Between probes of a link whose DNS servers do not answer.
const PROBE_PAUSES: BackoffLimits = BackoffLimits { min: PROBE_INTERVAL, max: Duration::from_secs(60) };
/// For a query of the system's resolver. Our choice: the resolver's own limit for one server of a link, plus the start of a second query.
const SYSTEM_TIMEOUT: Duration = Duration::from_secs(3);

/// Probes the DNS servers of the links by which packets leave, until dropped.
pub(super) async fn run(edge: &Edge) -> Infallible {
    let started_at = std::time::Instant::now();
    let now = || Instant::from_millis(u64::try_from(started_at.elapsed().as_millis()).unwrap_or(u64::MAX));
    let mut schedule = ProbeSchedule::default();
    loop {
        sleep(PROBE_INTERVAL).await;
        let passing = edge.lan_uplink.borrow().clone();
        let sent = || passing.iter().filter_map(|link| Some((link.clone(), read_counters(link)?.sent))).collect();
        let links: Vec<LinkState> = edge.links().into_iter().filter(|link| link.up && !link.unresponsive).collect();
        let is_due = schedule.is_due(now(), sent(), links.len());
        let found = if is_due {
            let Ok(Ok(survey)) = spawn_blocking(list_interfaces).await else { continue };
            let before = edge.dns_failures.borrow().clone();
            probe_links(edge, &survey, ProbeRound::new(&links, &passing, &before)).await
        } else if links.len() < 2 {
            DnsProbeResult::default()
        } else {
            continue;
        };
        let is_new = edge
            .dns_failures
            .send_if_modified(|now| std::mem::replace(now, found.failed_links.clone()) != found.failed_links);
        if is_due {
            schedule.round_ended(now(), sent(), &found, is_new);
        }
    }
}

async fn probe_links(edge: &Edge, survey: &InterfaceList, mut inquiry: ProbeRound) -> DnsProbeResult {
    let resolver = &edge.relay_pool.dialer.resolver;
    loop {
        match inquiry.next_step() {
            Step::Link(link) => {
                let answers = match survey.by_name(&link) {
                    Some(interface) => resolver.can_resolve_over(interface).await,
                    None => None,
                };
                inquiry.record_link(&link, answers);
            }
            Step::System => {
                let answer = resolver.resolve_for(None, &uncached_name(), None, SYSTEM_TIMEOUT).await;
                inquiry.system_answers = Some(answer.map_or_else(|error| error.is_definitive, |_| true));
            }
            Step::Done(found) => return found,
        }
    }
}

/// A name that no resolver has in its cache.
fn uncached_name() -> String {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("x{:x}.arpa.", time.as_nanos())
}

/// Decides when links are probed (rules 1 and 4).
#[derive(Debug, Default)]
struct ProbeSchedule {
    /// Packets that each link by which packets leave had sent at the previous check.
    sent_before: BTreeMap<String, u64>,
    /// Backoff after the servers of a link did not answer.
    backoff: Option<Backoff>,
    /// Queries have moved away from that link.
    has_moved: bool,
}

impl ProbeSchedule {
    fn is_due(&mut self, now: Instant, sent: BTreeMap<String, u64>, links: usize) -> bool {
        let all = sent.values().sum();
        let before = std::mem::replace(&mut self.sent_before, sent);
        if links < 2 {
            (self.backoff, self.has_moved) = (None, false);
            return false;
        }
        let is_used = |(link, sent): (&String, &u64)| {
            before.get(link).is_some_and(|before| sent.saturating_sub(*before) > MAX_IDLE_PACKETS)
        };
        let is_used = self.sent_before.iter().any(is_used);
        (is_used || self.has_moved) && self.backoff.as_ref().is_none_or(|again| again.is_due(now, all))
    }

    /// The probes have ended. The packets that they sent do not count as traffic.
    fn round_ended(&mut self, now: Instant, sent: BTreeMap<String, u64>, found: &DnsProbeResult, is_new: bool) {
        let all = sent.values().sum();
        (self.sent_before, self.has_moved) = (sent, !found.failed_links.is_empty());
        match &mut self.backoff {
            _ if !found.is_any_failing => self.backoff = None,
            Some(again) if !is_new => again.record_failure(now, all),
            _ => self.backoff = Some(Backoff::new(now, PROBE_PAUSES, all)),
        }
    }
}

/// Result of a round of probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DnsProbeResult {
    /// The links whose DNS servers do not answer, while those of another usable link do.
    failed_links: BTreeSet<String>,
    /// Whether the servers of some link do not answer, even if there is no better link.
    is_any_failing: bool,
}

/// The next action of a round of probes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Link(String),
    /// Query the system's own resolver.
    System,
    Done(DnsProbeResult),
}

/// A round of probes: which links have answered so far. Decides the next probe and the result.
#[derive(Debug)]
struct ProbeRound {
    links: Vec<LinkQueries>,
    /// Whether the system's own resolver answered; `None`: not queried yet.
    system_answers: Option<bool>,
}

#[derive(Debug)]
struct LinkQueries {
    name: String,
    metered: bool,
    is_in_use: bool,
    /// Whether its DNS servers did not answer in the previous round.
    had_failed: bool,
    /// Whether its servers answered each probe; `None`: no server is known.
    answers: Vec<Option<bool>>,
}

impl LinkQueries {
    fn answered(&self) -> Option<bool> {
        self.answers.last().copied().flatten()
    }

    /// Whether it needs another query (rule 2): none was sent yet, or the first one was not answered.
    fn needs_query(&self) -> bool {
        self.answers.is_empty() || (self.answers == [Some(false)] && !self.had_failed)
    }
}

impl ProbeRound {
    fn new(links: &[LinkState], passing: &BTreeSet<String>, nameless: &BTreeSet<String>) -> Self {
        let queries_of = |link: &LinkState| LinkQueries {
            name: link.name.clone(),
            metered: link.metered,
            is_in_use: passing.contains(&link.name),
            had_failed: nameless.contains(&link.name),
            answers: Vec::new(),
        };
        Self { links: links.iter().map(queries_of).collect(), system_answers: None }
    }

    fn record_link(&mut self, link: &str, answers: Option<bool>) {
        if let Some(queried) = self.links.iter_mut().find(|queried| queried.name == link) {
            queried.answers.push(answers);
        }
    }

    fn next_step(&self) -> Step {
        let passing = || self.links.iter().filter(|link| link.is_in_use);
        // First the links that are in use, each until its result is clear.
        if let Some(link) = passing().find(|link| link.needs_query()) {
            return Step::Link(link.name.clone());
        }
        // If all of them answer, the other links need no probe.
        let suspects = || passing().filter(|link| link.answered() == Some(false));
        if suspects().next().is_none() {
            return Step::Done(DnsProbeResult::default());
        }
        // Then another link must answer before one is left: unmetered links first, metered ones only as rule 3 allows.
        for metered in [false, true] {
            // The system's resolver is no evidence if queries have already left the failed link: then it uses the metered link now.
            if metered && !suspects().any(|link| link.had_failed) {
                match self.system_answers {
                    None => return Step::System,
                    Some(true) => break,
                    Some(false) => {}
                }
            }
            let mut candidates = self.links.iter().filter(|link| link.metered == metered);
            if candidates.clone().any(|link| link.answered() == Some(true)) {
                let nameless = suspects().map(|link| link.name.clone()).collect();
                return Step::Done(DnsProbeResult { failed_links: nameless, is_any_failing: true });
            }
            if let Some(link) = candidates.find(|link| !link.is_in_use && link.answers.is_empty()) {
                return Step::Link(link.name.clone());
            }
        }
        Step::Done(DnsProbeResult { failed_links: BTreeSet::new(), is_any_failing: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Runs a round of probes over the links `own`, `free` and `metered`, where packets leave by `own`. `answers` gives for each link
    /// whether its servers answer each query; the last value repeats. `before` are the links that had failed, `system` is whether the
    /// system's resolver answers. Returns which servers were probed, and the result.
    fn run(before: &[&str], system: bool, answers: &[(&str, &[bool])]) -> (Vec<String>, DnsProbeResult) {
        let link = |name: &str| LinkState {
            name: name.to_owned(),
            up: true,
            metered: name == "metered",
            ..LinkState::default()
        };
        // The metered link comes first in the kernel's order.
        let links: Vec<LinkState> = ["metered", "own", "free"]
            .into_iter()
            .filter(|name| answers.iter().any(|(link, _)| link == name))
            .map(link)
            .collect();
        let (mut inquiry, mut probed) =
            (ProbeRound::new(&links, &set(&["own"]), &set(before)), Vec::<String>::new());
        loop {
            match inquiry.next_step() {
                Step::Link(link) => {
                    let (_, message) = answers.iter().find(|(name, _)| *name == link).unwrap();
                    let times = probed.iter().filter(|name| **name == link).count();
                    inquiry.record_link(&link, Some(message[times.min(message.len() - 1)]));
                    probed.push(link);
                }
                Step::System => {
                    inquiry.system_answers = Some(system);
                    probed.push("system".to_owned());
                }
                Step::Done(found) => return (probed, found),
            }
        }
    }

    #[test]
    fn a_link_fails_if_its_dns_servers_do_not_answer_twice_and_those_of_another_link_do() {
        let (queried, found) = run(&[], false, &[("own", &[true]), ("free", &[true])]);
        assert_eq!(
            (queried.concat(), found),
            ("own".into(), DnsProbeResult::default()),
            "the other link is not probed"
        );
        let (queried, found) = run(&[], false, &[("own", &[false, true]), ("free", &[true])]);
        assert_eq!((queried.concat(), found), ("ownown".into(), DnsProbeResult::default()), "packets were lost");
        let (queried, found) = run(&[], false, &[("own", &[false]), ("free", &[true]), ("metered", &[true])]);
        assert_eq!(queried, ["own", "own", "free"]);
        assert_eq!(found, DnsProbeResult { failed_links: set(&["own"]), is_any_failing: true });
        let (_, found) = run(&[], false, &[("own", &[false]), ("free", &[false])]);
        assert_eq!(found, DnsProbeResult { failed_links: set(&[]), is_any_failing: true }, "none is better");
    }

    #[test]
    fn a_metered_link_is_probed_last_and_only_if_the_systems_resolver_does_not_answer() {
        let all: [(&str, &[bool]); 3] = [("own", &[false]), ("free", &[false]), ("metered", &[true])];
        let (queried, found) = run(&[], true, &all);
        assert_eq!(queried, ["own", "own", "free", "system"]);
        assert_eq!(found, DnsProbeResult { failed_links: set(&[]), is_any_failing: true });
        let (queried, found) = run(&[], false, &all);
        assert_eq!(queried, ["own", "own", "free", "system", "metered"]);
        assert_eq!(found.failed_links, set(&["own"]));
        // Queries have left `own`: the system's resolver uses the metered link now.
        let (queried, found) = run(&["own"], true, &all);
        assert_eq!((queried.join(" "), found.failed_links), ("own free metered".into(), set(&["own"])));
        assert_eq!(run(&["own"], true, &[("own", &[true]), ("metered", &[true])]).1, DnsProbeResult::default());
    }

    /// The seconds at which links are probed within an hour, if `each` packets leave per check.
    fn probe_times(schedule: &mut ProbeSchedule, each: u64, links: usize, found: &DnsProbeResult) -> Vec<u64> {
        let (mut sent, mut due) = (0, Vec::new());
        for second in (5..=3600).step_by(5) {
            sent += each;
            if schedule.is_due(at(second), BTreeMap::from([("own".to_owned(), sent)]), links) {
                due.push(second);
                // The probes themselves send packets.
                sent += 8;
                schedule.round_ended(at(second), BTreeMap::from([("own".to_owned(), sent)]), found, false);
            }
        }
        due
    }

    #[test]
    fn links_are_probed_while_packets_leave_and_another_link_is_usable() {
        assert_eq!(probe_times(&mut ProbeSchedule::default(), 5, 2, &DnsProbeResult::default()).len(), 719);
        assert_eq!(probe_times(&mut ProbeSchedule::default(), 4, 2, &DnsProbeResult::default()), [0; 0]);
        assert_eq!(probe_times(&mut ProbeSchedule::default(), 5, 1, &DnsProbeResult::default()), [0; 0]);
    }

    #[test]
    fn a_failed_link_is_probed_at_growing_intervals_and_not_while_nothing_is_sent() {
        let found = DnsProbeResult { failed_links: set(&["own"]), is_any_failing: true };
        let nameless = || ProbeSchedule {
            backoff: Some(Backoff::new(at(0), PROBE_PAUSES, 0)),
            has_moved: true,
            ..ProbeSchedule::default()
        };
        assert_eq!(probe_times(&mut nameless(), 0, 2, &found), [5, 15, 35, 75]);
        let due = probe_times(&mut nameless(), 5, 2, &found);
        assert_eq!((&due[..6], due.len()), (&[5, 15, 35, 75, 135, 195][..], 62));
        assert_eq!(probe_times(&mut nameless(), 5, 1, &found), [0; 0]);
    }

    #[test]
    fn if_no_links_dns_servers_answer_they_are_probed_at_growing_intervals_while_packets_leave() {
        let found = DnsProbeResult { failed_links: set(&[]), is_any_failing: true };
        let suspected =
            || ProbeSchedule { backoff: Some(Backoff::new(at(0), PROBE_PAUSES, 0)), ..ProbeSchedule::default() };
        assert_eq!(probe_times(&mut suspected(), 0, 2, &found), [0; 0]);
        assert_eq!(probe_times(&mut suspected(), 5, 2, &found)[..4], [10, 20, 40, 80]);
    }
}
