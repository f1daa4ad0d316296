//! The machine in virtual time: what it asks, measures, uses and says.
use super::*;
use crate::service::words::{Assignment, Mark};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn mbps(n: u64) -> Bitrate {
    Bitrate::from_mbps(n)
}

/// Long after the beginning of time, so that there is a before.
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
        origin: None,
        distance_km: None,
    }
}

fn given(relay: &str, version: u64) -> Standing {
    let assignment = Assignment {
        relay: name(relay),
        addresses: vec![format!("{relay}.example:4443").parse().unwrap()],
        server_name: Some(format!("{relay}.example").parse().unwrap()),
        reservation: mbps(8),
        lease_ms: 30_000,
        mark: Mark { epoch: 1, version },
    };
    Standing { assignment: Some(assignment), reason: None, heartbeat_ms: 5000, revocations: 0 }
}

fn none(reason: Reason) -> Standing {
    Standing { assignment: None, reason: Some(reason), heartbeat_ms: 5000, revocations: 0 }
}

fn outputs(machine: &mut Machine) -> Vec<Output> {
    std::iter::from_fn(|| machine.poll()).filter(|output| *output != Output::Keep).collect()
}

fn probed(rate: u64, millis: u64) -> Option<Probed> {
    let round_trip = Duration::from_millis(millis);
    Some(Probed { rate: mbps(rate), round_trip, bytes: DataSize::from_kib(100) })
}

/// Runs until it has asked for a relay: what it has asked; each relay has this rate and round trip.
fn settle(machine: &mut Machine, relays: &[(&str, u64, u64)], mut now: u64) -> Wish {
    machine.tick(at(now));
    loop {
        for output in outputs(machine) {
            now += 10;
            match output {
                Output::Candidates => {
                    machine.candidates(relays.iter().map(|(relay, ..)| candidate(relay)).collect(), at(now));
                }
                Output::Probe(relay, _) => {
                    let (_, rate, trip) = relays.iter().find(|(one, ..)| name(one) == relay).unwrap();
                    now += 1000;
                    machine.probed(&relay, probed(*rate, *trip), DataSize::from_kib(100), at(now));
                }
                Output::Request(wish) => return wish,
                _ => {}
            }
        }
    }
}

fn used(machine: &Machine) -> Vec<&str> {
    machine.used().iter().map(Name::as_str).collect()
}

const THREE: [(&str, u64, u64); 3] = [("a", 10, 80), ("b", 16, 40), ("c", 12, 10)];

#[test]
fn candidates_are_measured_one_by_one_and_the_fastest_serves_until_the_service_has_chosen() {
    let mut machine = Machine::new(Config::default(), None, at(0));
    machine.tick(at(0));
    assert_eq!(outputs(&mut machine), [Output::Candidates]);
    assert_eq!(machine.deadline(), None);
    machine.candidates(THREE.iter().map(|(relay, ..)| candidate(relay)).collect(), at(10));
    let first = outputs(&mut machine);
    assert!(matches!(&first[..], [Output::Use(_), Output::Probe(relay, _)] if *relay == name("a")), "{first:?}");
    machine.probed(&name("a"), probed(10, 80), DataSize::from_kib(100), at(1000));
    let second = outputs(&mut machine);
    assert!(matches!(&second[..], [Output::Probe(relay, _)] if *relay == name("b")), "{second:?}");
    machine.probed(&name("b"), probed(16, 40), DataSize::from_kib(100), at(2000));
    assert_eq!(used(&machine), ["b", "a", "c"]);
    outputs(&mut machine);
    machine.probed(&name("c"), None, DataSize::ZERO, at(3000));
    let last = outputs(&mut machine);
    let [Output::Request(wish)] = &last[..] else { panic!("{last:?}") };
    assert_eq!(wish.origin.to_string(), UNKNOWN);
    let measured: Vec<_> = wish.measured.iter().map(|one| (one.relay.as_str(), one.rate, one.rtt_ms)).collect();
    assert_eq!(measured, [("a", mbps(10), Some(80)), ("b", mbps(16), Some(40))]);
    machine.standing(given("a", 1), at(3300));
    assert_eq!(outputs(&mut machine), [Output::Use(vec![name("a"), name("b"), name("c")])]);
    // And then it reports.
    assert_eq!(machine.deadline(), Some(at(8300)));
    machine.tick(at(8300));
    let reports = outputs(&mut machine);
    let [Output::Report(report)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(report.held.as_ref().map(|held| held.relay.as_str()), Some("a"));
}

#[test]
fn five_seconds_are_spent_on_measuring_in_all() {
    let mut machine = Machine::new(Config::default(), None, at(0));
    machine.tick(at(0));
    outputs(&mut machine);
    machine.candidates(["a", "b", "c", "d"].iter().map(|relay| candidate(relay)).collect(), at(0));
    for (n, now) in [0, 2400, 4800].into_iter().enumerate() {
        let asked = outputs(&mut machine);
        let Some(Output::Probe(relay, terms)) = asked.last() else { panic!("{n}: {asked:?}") };
        assert!(terms.time + Duration::from_millis(now) <= ALL && terms.time <= EACH);
        let relay = relay.clone();
        machine.probed(&relay, probed(5, 20), DataSize::ZERO, at(2400 * (n as u64 + 1)));
    }
    assert!(matches!(outputs(&mut machine)[..], [.., Output::Request(_)]));
}

#[test]
fn a_service_that_does_not_answer_is_asked_ever_less_and_its_last_relays_serve() {
    let mut before = Machine::new(Config::default(), None, at(0));
    settle(&mut before, &THREE, 0);
    before.standing(given("b", 1), at(4000));
    let text = serde_json::to_string(&before.save()).unwrap();
    let saved: Saved = serde_json::from_str(&text).unwrap();
    let mut machine = Machine::new(Config::default(), Some((saved, Duration::from_secs(60))), at(0));
    assert_eq!(outputs(&mut machine), [Output::Use(vec![name("b"), name("c"), name("a")])]);
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..8 {
        machine.tick(now);
        assert_eq!(outputs(&mut machine), [Output::Candidates]);
        machine.unreachable(now);
        let next = machine.deadline().unwrap();
        waits.push(next.since(now).as_secs());
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(used(&machine), ["b", "c", "a"]);
    // What was measured a minute before the restart need not be measured again.
    machine.tick(now);
    outputs(&mut machine);
    machine.candidates(THREE.iter().map(|(relay, ..)| candidate(relay)).collect(), now);
    assert!(matches!(outputs(&mut machine)[..], [Output::Request(_)]));
}

#[test]
fn the_relay_in_use_fails_and_another_one_is_asked_for_at_once() {
    let mut machine = Machine::new(Config::default(), None, at(0));
    settle(&mut machine, &THREE, 0);
    machine.standing(given("b", 1), at(4000));
    outputs(&mut machine);
    machine.failed(&name("b"), true, at(6000));
    assert_eq!(outputs(&mut machine), [Output::Use(vec![name("c"), name("a"), name("b")])]);
    machine.failed(&name("b"), true, at(6001));
    machine.tick(machine.deadline().unwrap());
    assert!(machine.now <= at(6001));
    assert_eq!(outputs(&mut machine), [Output::Candidates]);
    machine.candidates(THREE.iter().map(|(relay, ..)| candidate(relay)).collect(), at(6100));
    let asked = outputs(&mut machine);
    let [Output::Request(wish)] = &asked[..] else { panic!("{asked:?}") };
    assert!(wish.measured.iter().all(|one| one.relay != name("b")));
    // While the service still has it there, it is not said to be held.
    machine.standing(given("b", 1), at(6200));
    machine.tick(at(11_200));
    let reports = outputs(&mut machine);
    let [Output::Report(report)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((&report.held, report.throughput), (&None, Bitrate::ZERO));
    machine.standing(given("c", 2), at(11_300));
    assert_eq!(used(&machine), ["c", "a", "b"]);
}

#[test]
fn less_than_before_is_asked_about_but_not_all_the_time() {
    let mut machine = Machine::new(Config::default(), None, at(0));
    settle(&mut machine, &THREE, 0);
    machine.standing(given("b", 1), at(4000));
    outputs(&mut machine);
    let span = Duration::from_secs(5);
    let sample = |bytes, waited| [(name("b"), Sample { sent: DataSize::from_bytes(bytes), waited })];
    // A program that sends little is not a relay that carries little.
    for n in 1..5 {
        machine.traffic(&sample(100_000, Duration::from_millis(100)), span, at(4000 + n * 5000));
    }
    assert_eq!(machine.known.rate(&name("b")), Some(mbps(16)));
    assert!(machine.report().offered.is_none());
    for n in 5..7 {
        machine.traffic(&sample(3_000_000, span), span, at(4000 + n * 5000));
    }
    let report = machine.report();
    assert_eq!((report.throughput, report.offered), (Bitrate::from_bits_per_sec(4_800_000), Some(mbps(16))));
    // It has measured a moment ago: not before a minute has passed.
    assert_eq!(machine.again, Some(machine.asked.unwrap() + CALM));
    assert_eq!(machine.known.rate(&name("b")), Some(Bitrate::from_bits_per_sec(4_800_000)));
}

#[test]
fn other_links_mean_other_rates() {
    let links =
        |up: &[&str]| LinksNow { up: up.iter().map(|one| (*one).to_owned()).collect(), ..LinksNow::default() };
    let mut machine = Machine::new(Config::default(), None, at(0));
    machine.links(links(&["wlan0", "wwan0"]), at(0));
    settle(&mut machine, &THREE, 0);
    machine.standing(given("b", 1), at(4000));
    machine.links(links(&["wlan0", "wwan0"]), at(5000));
    assert_eq!(machine.again, Some(machine.asked.unwrap() + REMEASURE));
    machine.links(links(&["wlan0"]), at(6000));
    assert_eq!(machine.again, Some(machine.asked.unwrap() + CALM));
    outputs(&mut machine);
    machine.tick(at(70_000));
    assert_eq!(outputs(&mut machine), [Output::Candidates]);
    machine.candidates(vec![candidate("b")], at(70_100));
    assert!(matches!(&outputs(&mut machine)[..], [Output::Probe(relay, _)] if *relay == name("b")));
}

#[test]
fn metered_bytes_have_a_limit_a_probe_and_a_day() {
    let cap = DataSize::from_bytes(1_000_000);
    let links = LinksNow {
        up: vec!["wlan0".to_owned(), "wwan0".to_owned()],
        metered: true,
        free: Some("wlan0".to_owned()),
        alone: Bitrate::ZERO,
    };
    let mut machine = Machine::new(Config { probe_bytes: cap, ..Config::default() }, None, at(0));
    machine.links(links.clone(), at(0));
    for _ in 0..PROBES_A_DAY {
        let terms = machine.terms().unwrap();
        assert_eq!((terms.most, &terms.only), (cap, &None));
        machine.probed(&name("a"), None, cap, at(1000));
    }
    assert_eq!(machine.terms().unwrap().only, Some("wlan0".to_owned()));
    machine.links(LinksNow { free: None, ..links.clone() }, at(2000));
    assert_eq!(machine.terms(), None);
    // It is remembered over a restart, and forgotten a day later.
    let saved = machine.save();
    let mut after = Machine::new(Config { probe_bytes: cap, ..Config::default() }, Some((saved, DAY / 2)), at(0));
    after.links(LinksNow { free: None, ..links }, at(0));
    assert_eq!(after.terms(), None);
    after.pass(at(86_400_000));
    assert_eq!(after.terms().unwrap().most, cap);
}

#[test]
fn of_relays_that_are_fast_enough_the_nearest() {
    for (wanted, near, measured) in
        [(None, ["b", "c", "a"], vec!["b"]), (Some(mbps(9)), ["c", "b", "a"], vec!["c"])]
    {
        let mut machine = Machine::new(Config { near: true, wanted, ..Config::default() }, None, at(0));
        let wish = settle(&mut machine, &THREE, 0);
        assert_eq!(used(&machine), near);
        let names: Vec<_> = wish.measured.iter().map(|one| one.relay.as_str()).collect();
        assert_eq!(names, measured);
    }
}

#[test]
fn who_was_released_asks_again_and_who_gets_none_goes_on_with_what_it_has() {
    let mut machine = Machine::new(Config::default(), None, at(0));
    settle(&mut machine, &THREE, 0);
    machine.standing(none(Reason::NoRoom), at(4000));
    assert_eq!(used(&machine), ["b", "c", "a"]);
    assert_eq!(machine.given(), (None, Some(Reason::NoRoom)));
    machine.tick(at(9000));
    assert!(matches!(outputs(&mut machine)[..], [.., Output::Report(_)]));
    machine.standing(none(Reason::Released), at(9100));
    machine.tick(at(9100));
    assert_eq!(outputs(&mut machine), [Output::Candidates]);
}

#[test]
fn the_origin_is_the_newest_flows_unless_one_is_named() {
    let mut machine = Machine::new(Config::default(), None, at(0));
    assert!(machine.origin("live.example:1935".parse().unwrap()));
    assert!(!machine.origin("live.example:1935".parse().unwrap()), "no news");
    assert!(std::iter::from_fn(|| machine.poll()).all(|output| output != Output::Keep), "it may wait");
    assert_eq!(machine.report().wish.origin.to_string(), "live.example:1935");
    let origin = Some("named.example:1935".parse().unwrap());
    let mut machine = Machine::new(Config { origin, ..Config::default() }, None, at(0));
    assert!(!machine.origin("live.example:1935".parse().unwrap()));
    assert_eq!(machine.report().wish.origin.to_string(), "named.example:1935");
}

#[test]
fn an_edge_whose_flows_never_go_directly_keeps_its_relay_without_gain_and_waits_without_room() {
    for strict in [true, false] {
        let mut machine = Machine::new(Config { strict, ..Config::default() }, None, at(0));
        settle(&mut machine, &THREE, 0);
        machine.standing(given("a", 1), at(4000));
        assert_eq!((used(&machine)[0], machine.waits()), ("a", false));
        machine.standing(none(Reason::Pending), at(5000));
        machine.standing(none(Reason::NoGain), at(6000));
        // The one that it had, though another one is faster.
        assert_eq!((used(&machine)[0], machine.waits()), (if strict { "a" } else { "b" }, false));
        machine.standing(none(Reason::NoRoom), at(7000));
        assert_eq!((used(&machine)[0], machine.waits()), ("b", strict));
        // Undecided is no room either, and neither is a service that does not answer.
        machine.standing(none(Reason::Pending), at(8000));
        machine.unreachable(at(9000));
        assert_eq!(machine.waits(), strict);
        for decided in [given("c", 2), none(Reason::NoRelay), none(Reason::NoGain), none(Reason::Released)] {
            machine.standing(none(Reason::NoRoom), at(10_000));
            machine.standing(decided, at(11_000));
            assert!(!machine.waits());
        }
    }
}
