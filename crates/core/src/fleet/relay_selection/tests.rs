//! Tests of the relay selection in virtual time: its requests, probes, relays in use and reports.
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;

use super::*;
use crate::fleet::messages::{Assignment, StateVersion};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn mbps(n: u64) -> Bitrate {
    Bitrate::from_mbps(n)
}

/// Late enough that saved state can be older than the start.
fn at(millis: u64) -> Instant {
    Instant::from_millis(100 * 86_400_000 + millis)
}

fn candidate(relay: &str) -> Candidate {
    Candidate {
        relay: name(relay),
        addresses: vec![format!("{relay}.example:4443").parse().unwrap()],
        server_name: format!("{relay}.example").parse().unwrap(),
        free: mbps(100),
        capacity: mbps(100),
        origin_rate: None,
        distance_km: None,
    }
}

/// The reply that assigns 8 Mbit/s at this relay.
fn assigned(relay: &str, version: u64) -> AssignmentReply {
    let assignment = Assignment {
        relay: name(relay),
        addresses: vec![format!("{relay}.example:4443").parse().unwrap()],
        server_name: Some(format!("{relay}.example").parse().unwrap()),
        reservation: mbps(8),
        lease_ms: 30_000,
        version: StateVersion { epoch: 1, version },
    };
    AssignmentReply { assignment: Some(assignment), reason: None, heartbeat_ms: 5000, revocations: 0 }
}

fn no_assignment(reason: NoRelayReason) -> AssignmentReply {
    AssignmentReply { assignment: None, reason: Some(reason), heartbeat_ms: 5000, revocations: 0 }
}

fn outputs(selector: &mut RelaySelector) -> Vec<Output> {
    core::iter::from_fn(|| selector.poll()).filter(|output| *output != Output::Persist).collect()
}

/// A measurement of this rate in Mbit/s and this RTT.
fn probe_result(rate: u64, millis: u64) -> Option<ProbeResult> {
    let rtt = Duration::from_millis(millis);
    Some(ProbeResult { rate: mbps(rate), rtt, bytes: DataSize::from_kib(100) })
}

/// Runs the selector until it requests an assignment, and returns the request. Each relay has this rate in Mbit/s and this RTT in
/// milliseconds.
fn run_until_request(selector: &mut RelaySelector, relays: &[(&str, u64, u64)], mut now: u64) -> AssignmentRequest {
    selector.tick(at(now));
    loop {
        for output in outputs(selector) {
            now += 10;
            match output {
                Output::FetchCandidates => {
                    selector
                        .handle_candidates(relays.iter().map(|(relay, ..)| candidate(relay)).collect(), at(now));
                }
                Output::Probe(relay, _) => {
                    let (_, rate, rtt) = relays.iter().find(|(one, ..)| name(one) == relay).unwrap();
                    now += 1000;
                    selector.handle_probe(&relay, probe_result(*rate, *rtt), DataSize::from_kib(100), at(now));
                }
                Output::RequestAssignment(request) => return request,
                _ => {}
            }
        }
    }
}

fn deadline(selector: &RelaySelector) -> Option<Instant> {
    selector.deadline().map(|(at, _)| at)
}

fn relays_in_use(selector: &RelaySelector) -> Vec<&str> {
    selector.relays_in_use().iter().map(Name::as_str).collect()
}

/// Names, rates in Mbit/s and RTTs in milliseconds: `b` is the fastest, `c` the nearest.
const THREE_RELAYS: [(&str, u64, u64); 3] = [("a", 10, 80), ("b", 16, 40), ("c", 12, 10)];

#[test]
fn candidates_are_measured_one_by_one_and_the_fastest_is_used_until_the_service_assigns_one() {
    let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
    selector.tick(at(0));
    assert_eq!(outputs(&mut selector), [Output::FetchCandidates]);
    assert_eq!(deadline(&selector), None);
    selector.handle_candidates(THREE_RELAYS.iter().map(|(relay, ..)| candidate(relay)).collect(), at(10));
    let first = outputs(&mut selector);
    assert!(
        matches!(&first[..], [Output::UseRelays(_), Output::Probe(relay, _)] if *relay == name("a")),
        "{first:?}"
    );
    selector.handle_probe(&name("a"), probe_result(10, 80), DataSize::from_kib(100), at(1000));
    let second = outputs(&mut selector);
    assert!(matches!(&second[..], [Output::Probe(relay, _)] if *relay == name("b")), "{second:?}");
    selector.handle_probe(&name("b"), probe_result(16, 40), DataSize::from_kib(100), at(2000));
    assert_eq!(relays_in_use(&selector), ["b", "a", "c"]);
    outputs(&mut selector);
    selector.handle_probe(&name("c"), None, DataSize::ZERO, at(3000));
    let last = outputs(&mut selector);
    let [Output::RequestAssignment(request)] = &last[..] else { panic!("{last:?}") };
    assert_eq!(request.origin.to_string(), UNKNOWN_ORIGIN);
    let measurements: Vec<_> =
        request.measurements.iter().map(|one| (one.relay.as_str(), one.rate, one.rtt_ms)).collect();
    assert_eq!(measurements, [("a", mbps(10), Some(80)), ("b", mbps(16), Some(40))]);
    selector.handle_reply(assigned("a", 1), at(3300));
    assert_eq!(outputs(&mut selector), [Output::UseRelays(vec![name("a"), name("b"), name("c")])]);
    // After the assignment the edge sends reports.
    assert_eq!(deadline(&selector), Some(at(8300)));
    selector.tick(at(8300));
    let reports = outputs(&mut selector);
    let [Output::SendReport(report)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(report.assignment.as_ref().map(|held| held.relay.as_str()), Some("a"));
}

#[test]
fn all_probes_together_take_at_most_five_seconds() {
    let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
    selector.tick(at(0));
    outputs(&mut selector);
    selector.handle_candidates(["a", "b", "c", "d"].iter().map(|relay| candidate(relay)).collect(), at(0));
    for (n, now) in [0, 2400, 4800].into_iter().enumerate() {
        let outputs_now = outputs(&mut selector);
        let Some(Output::Probe(relay, limits)) = outputs_now.last() else { panic!("{n}: {outputs_now:?}") };
        assert!(limits.max_time + Duration::from_millis(now) <= TOTAL_PROBE_TIME && limits.max_time <= PROBE_TIME);
        let relay = relay.clone();
        selector.handle_probe(&relay, probe_result(5, 20), DataSize::ZERO, at(2400 * (n as u64 + 1)));
    }
    assert!(matches!(outputs(&mut selector)[..], [.., Output::RequestAssignment(_)]));
}

#[test]
fn an_unreachable_service_is_contacted_less_often_and_the_last_relays_are_used() {
    let mut before = RelaySelector::new(SelectorConfig::default(), None, at(0));
    run_until_request(&mut before, &THREE_RELAYS, 0);
    before.handle_reply(assigned("b", 1), at(4000));
    let text = serde_json::to_string(&before.save()).unwrap();
    let saved: PersistedState = serde_json::from_str(&text).unwrap();
    let mut selector = RelaySelector::new(SelectorConfig::default(), Some((saved, Duration::from_secs(60))), at(0));
    assert_eq!(outputs(&mut selector), [Output::UseRelays(vec![name("b"), name("c"), name("a")])]);
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..8 {
        selector.tick(now);
        assert_eq!(outputs(&mut selector), [Output::FetchCandidates]);
        selector.handle_unreachable(now);
        let next = deadline(&selector).unwrap();
        waits.push(next.since(now).as_secs());
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(relays_in_use(&selector), ["b", "c", "a"]);
    // A rate measured a minute before the restart is still fresh.
    selector.tick(now);
    outputs(&mut selector);
    selector.handle_candidates(THREE_RELAYS.iter().map(|(relay, ..)| candidate(relay)).collect(), now);
    assert!(matches!(outputs(&mut selector)[..], [Output::RequestAssignment(_)]));
}

#[test]
fn saved_rates_of_unknown_age_rank_the_relays_and_are_measured_again() {
    let mut before = RelaySelector::new(SelectorConfig::default(), None, at(0));
    run_until_request(&mut before, &THREE_RELAYS, 0);
    let mut saved = before.save();
    saved.expire_rates();
    let mut selector = RelaySelector::new(SelectorConfig::default(), Some((saved, Duration::ZERO)), at(0));
    assert_eq!(relays_in_use(&selector), ["b", "c", "a"]);
    selector.tick(at(0));
    outputs(&mut selector);
    selector.handle_candidates(THREE_RELAYS.iter().map(|(relay, ..)| candidate(relay)).collect(), at(0));
    assert!(matches!(outputs(&mut selector)[..], [Output::Probe(..)]));
}

#[test]
fn a_failure_of_the_relay_in_use_causes_a_new_request_at_once() {
    let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
    run_until_request(&mut selector, &THREE_RELAYS, 0);
    selector.handle_reply(assigned("b", 1), at(4000));
    outputs(&mut selector);
    selector.set_failed(&name("b"), true, at(6000));
    assert_eq!(outputs(&mut selector), [Output::UseRelays(vec![name("c"), name("a"), name("b")])]);
    selector.set_failed(&name("b"), true, at(6001));
    selector.tick(deadline(&selector).unwrap());
    assert!(selector.now <= at(6001));
    assert_eq!(outputs(&mut selector), [Output::FetchCandidates]);
    selector.handle_candidates(THREE_RELAYS.iter().map(|(relay, ..)| candidate(relay)).collect(), at(6100));
    let outputs_now = outputs(&mut selector);
    let [Output::RequestAssignment(request)] = &outputs_now[..] else { panic!("{outputs_now:?}") };
    assert!(request.measurements.iter().all(|one| one.relay != name("b")));
    // While the service still assigns the failed relay, the report does not claim it.
    selector.handle_reply(assigned("b", 1), at(6200));
    selector.tick(at(11_200));
    let reports = outputs(&mut selector);
    let [Output::SendReport(report)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((&report.assignment, report.throughput), (&None, Bitrate::ZERO));
    selector.handle_reply(assigned("c", 2), at(11_300));
    assert_eq!(relays_in_use(&selector), ["c", "a", "b"]);
}

#[test]
fn a_lower_rate_causes_a_new_request_but_not_continuously() {
    let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
    run_until_request(&mut selector, &THREE_RELAYS, 0);
    selector.handle_reply(assigned("b", 1), at(4000));
    outputs(&mut selector);
    let period = Duration::from_secs(5);
    let sample = |bytes, blocked| [(name("b"), TrafficSample { sent: DataSize::from_bytes(bytes), blocked })];
    // A program that sends little does not lower the relay's rate.
    for n in 1..5 {
        selector.record_traffic(&sample(100_000, Duration::from_millis(100)), period, at(4000 + n * 5000));
    }
    assert_eq!(selector.stats.rate(&name("b")), Some(mbps(16)));
    assert!(selector.build_report().offered_rate.is_none());
    for n in 5..7 {
        selector.record_traffic(&sample(3_000_000, period), period, at(4000 + n * 5000));
    }
    let report = selector.build_report();
    assert_eq!((report.throughput, report.offered_rate), (Bitrate::from_bits_per_sec(4_800_000), Some(mbps(16))));
    // The last measurement is recent, so the next refresh waits for a minute.
    assert_eq!(selector.next_refresh, Some(selector.last_refresh.unwrap() + MIN_REFRESH_PAUSE));
    assert_eq!(selector.stats.rate(&name("b")), Some(Bitrate::from_bits_per_sec(4_800_000)));
}

#[test]
fn after_a_change_of_links_rates_are_measured_again() {
    let links =
        |up: &[&str]| LinkFacts { up: up.iter().map(|one| (*one).to_owned()).collect(), ..LinkFacts::default() };
    let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
    selector.set_links(links(&["wlan0", "wwan0"]), at(0));
    run_until_request(&mut selector, &THREE_RELAYS, 0);
    selector.handle_reply(assigned("b", 1), at(4000));
    selector.set_links(links(&["wlan0", "wwan0"]), at(5000));
    assert_eq!(selector.next_refresh, Some(selector.last_refresh.unwrap() + REFRESH_INTERVAL));
    selector.set_links(links(&["wlan0"]), at(6000));
    assert_eq!(selector.next_refresh, Some(selector.last_refresh.unwrap() + MIN_REFRESH_PAUSE));
    outputs(&mut selector);
    selector.tick(at(70_000));
    assert_eq!(outputs(&mut selector), [Output::FetchCandidates]);
    selector.handle_candidates(vec![candidate("b")], at(70_100));
    assert!(matches!(&outputs(&mut selector)[..], [Output::Probe(relay, _)] if *relay == name("b")));
}

#[test]
fn a_rate_belongs_to_the_links_at_the_start_of_its_probe() {
    let links =
        |up: &[&str]| LinkFacts { up: up.iter().map(|one| (*one).to_owned()).collect(), ..LinkFacts::default() };
    for (at_start, is_fresh) in [(&["wlan0"][..], false), (&["wlan0", "wwan0"], true), (&[], true)] {
        let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
        selector.set_links(links(at_start), at(0));
        selector.tick(at(0));
        selector.handle_candidates(vec![candidate("a")], at(10));
        assert!(matches!(outputs(&mut selector)[..], [.., Output::Probe(..)]));
        // A second link comes up while the probe runs, or the links become known.
        selector.set_links(links(&["wlan0", "wwan0"]), at(500));
        selector.handle_probe(&name("a"), probe_result(10, 20), DataSize::from_kib(100), at(1000));
        assert_eq!(selector.is_fresh(&name("a")), is_fresh, "{at_start:?}");
        let expected = if at_start.is_empty() { &["wlan0", "wwan0"][..] } else { at_start };
        assert_eq!(selector.relay_info(&name("a")).unwrap().links, expected);
    }
}

#[test]
fn metered_bytes_are_limited_per_probe_and_per_day() {
    let cap = DataSize::from_bytes(1_000_000);
    let links = LinkFacts {
        up: vec!["wlan0".to_owned(), "wwan0".to_owned()],
        metered: true,
        unmetered: Some("wlan0".to_owned()),
        best_rate: Bitrate::ZERO,
    };
    let mut selector =
        RelaySelector::new(SelectorConfig { probe_bytes: cap, ..SelectorConfig::default() }, None, at(0));
    selector.set_links(links.clone(), at(0));
    for _ in 0..PROBES_A_DAY {
        let limits = selector.probe_limits().unwrap();
        assert_eq!((limits.max_bytes, &limits.device), (cap, &None));
        selector.pending = PendingOp::Probe { is_metered: true, links: links.up.clone() };
        selector.handle_probe(&name("a"), None, cap, at(1000));
    }
    assert_eq!(selector.probe_limits().unwrap().device, Some("wlan0".to_owned()));
    selector.set_links(LinkFacts { unmetered: None, ..links.clone() }, at(2000));
    assert_eq!(selector.probe_limits(), None);
    // The count survives a restart, and expires after a day.
    let saved = selector.save();
    let mut after = RelaySelector::new(
        SelectorConfig { probe_bytes: cap, ..SelectorConfig::default() },
        Some((saved, DAY / 2)),
        at(0),
    );
    after.set_links(LinkFacts { unmetered: None, ..links }, at(0));
    assert_eq!(after.probe_limits(), None);
    after.advance_time(at(86_400_000));
    assert_eq!(after.probe_limits().unwrap().max_bytes, cap);
}

#[test]
fn the_links_at_the_start_of_a_probe_decide_whether_its_bytes_are_metered() {
    let links = |metered| LinkFacts { up: vec!["wwan0".to_owned()], metered, ..LinkFacts::default() };
    for is_metered in [true, false] {
        let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
        selector.set_links(links(is_metered), at(0));
        selector.tick(at(0));
        selector.handle_candidates(vec![candidate("a")], at(10));
        assert!(matches!(outputs(&mut selector)[..], [.., Output::Probe(..)]));
        // Another link replaces the first one while the probe runs.
        selector.set_links(links(!is_metered), at(500));
        selector.handle_probe(&name("a"), probe_result(10, 20), DataSize::from_kib(100), at(1000));
        let metered = if is_metered { DataSize::from_kib(100) } else { DataSize::ZERO };
        assert_eq!(selector.stats.metered_today(at(1000)), metered);
    }
}

#[test]
fn the_nearest_of_the_relays_that_are_fast_enough_is_preferred() {
    for (target_rate, expected_order, measured) in
        [(None, ["b", "c", "a"], vec!["b"]), (Some(mbps(9)), ["c", "b", "a"], vec!["c"])]
    {
        let mut selector = RelaySelector::new(
            SelectorConfig { prefer_near: true, target_rate, ..SelectorConfig::default() },
            None,
            at(0),
        );
        let request = run_until_request(&mut selector, &THREE_RELAYS, 0);
        assert_eq!(relays_in_use(&selector), expected_order);
        let names: Vec<_> = request.measurements.iter().map(|one| one.relay.as_str()).collect();
        assert_eq!(names, measured);
    }
}

#[test]
fn a_released_edge_requests_again_and_one_without_an_assignment_keeps_its_relays() {
    let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
    run_until_request(&mut selector, &THREE_RELAYS, 0);
    selector.handle_reply(no_assignment(NoRelayReason::NoCapacity), at(4000));
    assert_eq!(relays_in_use(&selector), ["b", "c", "a"]);
    assert_eq!(selector.assignment(), (None, Some(NoRelayReason::NoCapacity)));
    selector.tick(at(9000));
    assert!(matches!(outputs(&mut selector)[..], [.., Output::SendReport(_)]));
    selector.handle_reply(no_assignment(NoRelayReason::Released), at(9100));
    selector.tick(at(9100));
    assert_eq!(outputs(&mut selector), [Output::FetchCandidates]);
}

#[test]
fn the_origin_is_the_newest_flows_target_unless_configured() {
    let mut selector = RelaySelector::new(SelectorConfig::default(), None, at(0));
    let origin: Endpoint = "live.example:1935".parse().unwrap();
    selector.handle(at(0), Input::Origin(origin.clone()));
    assert_eq!(core::iter::from_fn(|| selector.poll()).collect::<Vec<_>>(), [Output::Persist]);
    selector.handle(at(0), Input::Origin(origin));
    assert_eq!(selector.poll(), None, "no change");
    assert_eq!(selector.build_report().request.origin.to_string(), "live.example:1935");
    let origin = Some("named.example:1935".parse().unwrap());
    let mut selector = RelaySelector::new(SelectorConfig { origin, ..SelectorConfig::default() }, None, at(0));
    selector.handle(at(0), Input::Origin("live.example:1935".parse().unwrap()));
    assert_eq!(selector.poll(), None);
    assert_eq!(selector.build_report().request.origin.to_string(), "named.example:1935");
}

#[test]
fn an_edge_without_direct_flows_keeps_its_relay_on_no_gain_and_waits_on_no_capacity() {
    for strict in [true, false] {
        let mut selector =
            RelaySelector::new(SelectorConfig { never_direct: strict, ..SelectorConfig::default() }, None, at(0));
        run_until_request(&mut selector, &THREE_RELAYS, 0);
        selector.handle_reply(assigned("a", 1), at(4000));
        assert_eq!((relays_in_use(&selector)[0], selector.is_waiting()), ("a", false));
        selector.handle_reply(no_assignment(NoRelayReason::Pending), at(5000));
        selector.handle_reply(no_assignment(NoRelayReason::NoGain), at(6000));
        // The previous relay, although another one is faster.
        assert_eq!((relays_in_use(&selector)[0], selector.is_waiting()), (if strict { "a" } else { "b" }, false));
        selector.handle_reply(no_assignment(NoRelayReason::NoCapacity), at(7000));
        assert_eq!((relays_in_use(&selector)[0], selector.is_waiting()), ("b", strict));
        // A pending decision, or an unreachable service, does not end the wait.
        selector.handle_reply(no_assignment(NoRelayReason::Pending), at(8000));
        selector.handle_unreachable(at(9000));
        assert_eq!(selector.is_waiting(), strict);
        for decided in [
            assigned("c", 2),
            no_assignment(NoRelayReason::NoRelay),
            no_assignment(NoRelayReason::NoGain),
            no_assignment(NoRelayReason::Released),
        ] {
            selector.handle_reply(no_assignment(NoRelayReason::NoCapacity), at(10_000));
            selector.handle_reply(decided, at(11_000));
            assert!(!selector.is_waiting());
        }
    }
}
