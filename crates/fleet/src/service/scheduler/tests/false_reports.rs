//! Members that lie: a relay about epochs or its load, an edge about what it holds or uses. It must cost others nothing.

use super::*;

fn heartbeat_having_seen(epoch: u64, version: u64) -> Heartbeat {
    Heartbeat { seen_version: StateVersion { epoch, version }, ..heartbeat(100, 100) }
}

#[test]
fn a_relay_that_is_always_ahead_neither_keeps_the_others_nor_uses_up_epochs() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
    world.request("a", edge.clone());
    world.advance(20 * SECOND);
    // fra is silent from now on; the liar says with each heartbeat that it has seen the next epoch.
    for _ in 0..12 {
        let next = world.machine.version().epoch + 1;
        world.heartbeat("liar", heartbeat_having_seen(next, 0));
        if let Some(epoch) = world.raised_epochs.pop() {
            world.machine.bump_epoch(epoch + 1);
        }
        world.heartbeat("ams", heartbeat(100, 100));
        world.report("a", report(edge.clone(), 40, 40));
        world.advance(5 * SECOND);
    }
    assert_eq!(world.relay_of("a").unwrap(), "ams", "its relay is known to be gone");
    assert!(!world.machine.has_relay(&name("fra")), "and forgotten");
    assert!(world.machine.version().epoch <= 1 + 3 * 2, "one lift in a lease: {:?}", world.machine.version());
}

#[test]
fn each_relay_that_saw_a_later_epoch_is_heard_once() {
    let mut world = World::new();
    world.heartbeat("fra", heartbeat_having_seen(4, 0));
    world.heartbeat("ams", heartbeat_having_seen(7, 0));
    world.heartbeat("ams", heartbeat_having_seen(8, 0));
    assert_eq!(world.raised_epochs, [4, 7]);
    world.machine.bump_epoch(8);
    world.advance(31 * SECOND);
    world.heartbeat("fra", heartbeat_having_seen(8, 0));
    assert_eq!(world.raised_epochs, [4, 7], "the epoch is ours, and nothing has happened in it");
    world.heartbeat("fra", heartbeat_having_seen(8, 1));
    assert_eq!(world.raised_epochs, [4, 7, 8], "somebody else leads in our epoch");
}

#[test]
fn what_an_edge_says_that_it_holds_counts_at_the_beginning_or_if_it_is_of_before() {
    let report_held = |epoch, reservation| {
        let assignment = CurrentAssignment {
            relay: name("fra"),
            reservation: mbps(reservation),
            version: StateVersion { epoch, version: 1 },
        };
        Report { assignment: Some(assignment), ..report(assignment_request(1, &[("fra", 60)]), 0, 0) }
    };
    let mut world = World::with(&[("fra", 100)]);
    world.run_heartbeats(20 * SECOND, &[("fra", heartbeat(100, 100))], &[]);
    assert_eq!(world.report("a", report_held(1, 60)).assignment, None, "of our epoch: it would be here");
    world.machine.bump_epoch(2);
    assert!(world.report("b", report_held(1, 60)).assignment.is_some(), "who led before gave it");
    assert_eq!(world.report("c", report_held(1, 31)).assignment, None, "there is room for 30");
    assert_eq!(world.relay_of("b").unwrap(), "fra", "and nobody makes room for it");
}

#[test]
fn what_is_held_is_no_more_than_what_is_reached_and_wanted() {
    let mut world = World::new();
    let mut slow = heartbeat(100, 100);
    slow.origin_rates.insert("live.example:1935".parse().unwrap(), mbps(20));
    world.heartbeat("fra", slow);
    let assignment = |relay, rate| {
        Some(CurrentAssignment { relay: name(relay), reservation: mbps(rate), version: StateVersion::default() })
    };
    let got = world.report(
        "a",
        Report { assignment: assignment("fra", 60), ..report(assignment_request(1, &[("fra", 60)]), 0, 0) },
    );
    assert_eq!(got.assignment.unwrap().reservation, mbps(20), "what the relay reaches");
}

#[test]
fn who_named_the_most_at_a_relay_that_was_not_known_goes_when_it_is() {
    let mut world = World::new();
    let report_held = |rate| {
        let assignment =
            CurrentAssignment { relay: name("fra"), reservation: mbps(rate), version: StateVersion::default() };
        Report { assignment: Some(assignment), ..report(assignment_request(1, &[("fra", rate)]), 0, 0) }
    };
    for (edge, rate) in [("liar", 900_000), ("a", 30), ("b", 30), ("c", 30)] {
        assert!(world.report(edge, report_held(rate)).assignment.is_some());
    }
    world.heartbeat("fra", heartbeat(100, 10));
    let have = ["liar", "a", "b", "c"].map(|edge| world.relay_of(edge).is_some());
    assert_eq!(have, [false, true, true, true]);
}

#[test]
fn an_edge_that_says_it_uses_everything_takes_nothing_from_others() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("liar", assignment_request(1, &[("fra", 20)]));
    world.request("a", assignment_request(1, &[("fra", 40)]));
    world.advance(SECOND);
    world.report("liar", report(assignment_request(1, &[("fra", 20)]), 1_000_000, 1_000_000));
    assert_eq!(world.free_capacity("fra"), mbps(30), "its word counts as far as the share for bursts");
    // There is as much room for others as without it, and those who are there stay there.
    world.request("b", assignment_request(1, &[("fra", 30)]));
    world.advance(SECOND);
    assert_eq!(world.relay_of("b").unwrap(), "fra");
    let reports = [
        ("liar", report(assignment_request(1, &[("fra", 20)]), 1_000_000, 1_000_000)),
        ("a", report(assignment_request(1, &[("fra", 40)]), 40, 40)),
        ("b", report(assignment_request(1, &[("fra", 30)]), 30, 30)),
    ];
    world.run_heartbeats(31 * MINUTE, &[("fra", heartbeat(100, 10))], &reports);
    assert!(["liar", "a", "b"].iter().all(|edge| world.relay_of(edge).as_deref() == Some("fra")));
}

#[test]
fn a_relay_that_says_it_carries_nothing_gets_no_more_edges_than_it_can_carry() {
    let mut world = World::with(&[("liar", 100)]);
    for n in 0..9 {
        world.request(&format!("cam-{n}"), assignment_request(1, &[("liar", 10)]));
    }
    world.advance(SECOND);
    let bursts: Vec<(String, Report)> =
        (0..9).map(|n| (format!("cam-{n}"), report(assignment_request(1, &[("liar", 10)]), 12, 12))).collect();
    let words: Vec<(&str, Report)> = bursts.iter().map(|(edge, word)| (edge.as_str(), word.clone())).collect();
    world.run_heartbeats(MINUTE, &[("liar", heartbeat(100, 100))], &words);
    assert!(bursts.iter().all(|(edge, _)| world.relay_of(edge).is_some()));
    assert_eq!(world.free_capacity("liar"), Bitrate::ZERO, "nine that use 12 each");
    assert_eq!(world.machine.candidates(&name("new"), &Proximity::default(), world.now), []);
    world.request("new", assignment_request(1, &[("liar", 10)]));
    world.advance(SECOND);
    assert_eq!(world.reason("new"), Some(NoRelayReason::NoCapacity));
    // What it said it could carry it does not: who gets too little goes elsewhere, whatever the relay says.
    world.heartbeat("ams", heartbeat(100, 100));
    let starved = |n: u64| report(assignment_request(1, &[("liar", 10), ("ams", 9)]), n, 10);
    let relays = [("liar", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
    world.run_heartbeats(15 * SECOND, &relays, &[("cam-0", starved(1)), ("cam-1", starved(10))]);
    assert_eq!((world.relay_of("cam-0").unwrap(), world.relay_of("cam-1").unwrap()), ("ams".into(), "liar".into()));
}
