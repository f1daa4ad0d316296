//! Which relay an edge is assigned, and when edges are matched again.

use super::*;

#[test]
fn requests_of_one_window_are_matched_together() {
    // Less the tenth for bursts, each relay has 100.8 Mbit/s for reservations.
    let mut world = World::with(&[("fra", 112), ("ams", 112)]);
    // Matched one after the other, a would get fra, and b, which reaches no other relay, would get none.
    world.request("a", assignment_request(10, &[("fra", 90), ("ams", 80)]));
    world.advance(Duration::from_millis(150));
    world.request("b", assignment_request(10, &[("fra", 100)]));
    assert_eq!((world.reason("a"), world.decided.len()), (Some(NoRelayReason::Pending), 0));
    world.advance(Duration::from_millis(60));
    assert_eq!(world.decided, [name("a"), name("b")]);
    assert_eq!((world.relay_of("a").unwrap(), world.relay_of("b").unwrap()), ("ams".into(), "fra".into()));
    let first = world.machine.reply_for(&name("a")).assignment.unwrap();
    // The lease of 30 s began 10 ms ago, at the end of the window.
    assert_eq!((first.reservation, first.lease_ms), (mbps(80), 29_990));
    assert_eq!(first.version.epoch, 1);
}

#[test]
fn a_relay_is_filled_to_the_threshold_and_then_not_offered() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(1, &[("fra", 60)]));
    world.request("b", assignment_request(1, &[("fra", 31)]));
    world.advance(SECOND);
    assert_eq!((world.relay_of("a").is_some(), world.reason("b")), (true, Some(NoRelayReason::NoCapacity)));
    world.request("b", assignment_request(1, &[("fra", 30)]));
    world.advance(SECOND);
    assert_eq!(world.free_capacity("fra"), mbps(10));
    let proximity = Proximity::default();
    assert_eq!(world.candidates(&name("c"), &proximity).len(), 1, "a free share equal to the threshold is enough");
    world.heartbeat("fra", heartbeat(100, 9));
    assert_eq!(world.candidates(&name("c"), &proximity), []);
}

#[test]
fn the_reply_states_why_an_edge_has_no_relay() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("none", assignment_request(10, &[]));
    world.request("unknown", assignment_request(10, &[("ams", 50)]));
    world.request("gainless", assignment_request(50, &[("fra", 50)]));
    world.request("large", assignment_request(90, &[("fra", 95)]));
    world.advance(SECOND);
    let reasons = ["none", "unknown", "gainless", "large"].map(|edge| world.reason(edge).unwrap());
    assert_eq!(
        reasons,
        [NoRelayReason::NoRelay, NoRelayReason::NoRelay, NoRelayReason::NoGain, NoRelayReason::NoCapacity]
    );
}

#[test]
fn an_unplaced_edge_is_matched_again_and_a_released_one_is_not() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("ams", 50)]));
    world.request("b", assignment_request(10, &[("ams", 40)]));
    world.advance(SECOND);
    assert_eq!(world.reason("a"), Some(NoRelayReason::NoRelay));
    world.release(&name("b"));
    let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
    let reports = [
        ("a", report(assignment_request(10, &[("ams", 50)]), 0, 0)),
        ("b", report(assignment_request(10, &[("ams", 40)]), 0, 0)),
    ];
    world.run_heartbeats(5 * SECOND, &relays, &reports);
    assert_eq!((world.relay_of("a").unwrap().as_str(), world.reason("b")), ("ams", Some(NoRelayReason::Released)));
}

#[test]
fn the_origin_rate_and_the_target_rate_limit_the_reservation() {
    let mut world = World::new();
    let mut slow = heartbeat(1000, 1000);
    slow.origin_rates.insert("live.example:1935".parse().unwrap(), mbps(20));
    world.heartbeat("fra", slow);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.request("b", AssignmentRequest { target_rate: Some(mbps(15)), ..assignment_request(10, &[("fra", 50)]) });
    world.advance(SECOND);
    let reserved = ["a", "b"].map(|edge| world.machine.reply_for(&name(edge)).assignment.unwrap().reservation);
    assert_eq!(reserved, [mbps(20), mbps(15)]);
}

#[test]
fn all_edges_are_matched_each_half_hour_and_move_only_for_a_gain_above_a_tenth() {
    for (better, moves) in [(54, false), (56, true)] {
        let mut world = World::with(&[("fra", 100)]);
        let before = assignment_request(10, &[("fra", 50)]);
        world.request("a", before.clone());
        world.advance(SECOND);
        let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
        let after = assignment_request(10, &[("fra", 50), ("ams", better)]);
        world.run_heartbeats(29 * MINUTE, &relays, &[("a", report(after.clone(), 50, 50))]);
        assert_eq!(world.relay_of("a").unwrap(), "fra", "not before the re-allocation");
        world.run_heartbeats(2 * MINUTE, &relays, &[("a", report(after, 50, 50))]);
        assert_eq!(world.relay_of("a").unwrap(), if moves { "ams" } else { "fra" }, "{better}");
    }
}

#[test]
fn an_edge_that_was_just_placed_is_not_moved() {
    let mut world = World::with(&[("fra", 100)]);
    let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
    world.run_heartbeats(29 * MINUTE + 30 * SECOND, &relays[..1], &[]);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(SECOND);
    let after = report(assignment_request(10, &[("fra", 50), ("ams", 90)]), 50, 50);
    world.run_heartbeats(29 * MINUTE, &relays, &[("a", after.clone())]);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
    world.run_heartbeats(3 * MINUTE, &relays, &[("a", after)]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
}

#[test]
fn an_edge_with_low_throughput_is_matched_by_its_throughput() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
    let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
    world.request("a", edge.clone());
    world.advance(SECOND);
    world.run_heartbeats(MINUTE, &relays, &[("a", report(edge.clone(), 5, 5))]);
    assert_eq!(world.relay_of("a").unwrap(), "fra", "its programs offer no more");
    world.run_heartbeats(5 * SECOND, &relays, &[("a", report(edge.clone(), 12, 50))]);
    assert_eq!(world.relay_of("a").unwrap(), "fra", "one low report is not enough");
    world.run_heartbeats(5 * SECOND, &relays, &[("a", report(edge.clone(), 12, 50))]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
    // It does not return on the strength of its old measurement.
    world.run_heartbeats(10 * MINUTE, &relays, &[("a", report(edge, 40, 40))]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
}

#[test]
fn the_load_of_a_relay_is_the_largest_of_all_reports() {
    let mut world = World::with(&[("fra", 100)]);
    let edge = assignment_request(10, &[("fra", 50)]);
    world.request("a", edge.clone());
    world.advance(SECOND);
    world.heartbeat("fra", heartbeat(100, 100));
    assert_eq!(world.free_capacity("fra"), mbps(50), "the reservation counts");
    world.report("a", report(edge, 58, 58));
    assert_eq!(world.free_capacity("fra"), mbps(42), "the throughput counts");
    world.heartbeat("fra", heartbeat(100, 20));
    assert_eq!(world.free_capacity("fra"), mbps(20), "the relay's own report counts if it is higher");
    world.request("b", assignment_request(10, &[("fra", 11)]));
    world.advance(SECOND);
    assert_eq!(world.reason("b"), Some(NoRelayReason::NoCapacity));
}

#[test]
fn a_late_solution_is_applied_only_as_far_as_it_fits() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("fra", 80)]));
    world.request("b", assignment_request(10, &[("fra", 50)]));
    world.now += Duration::from_millis(250);
    world.machine.tick(world.now);
    let Some(Output::Solve(problem)) = world.machine.poll() else { panic!("the window is over") };
    assert_eq!((problem.edge_count(), problem.is_full()), (2, false));
    // In the meantime half of the relay is in use, and b has released its request.
    world.heartbeat("fra", heartbeat(100, 50));
    world.release(&name("b"));
    world.machine.apply_solution(problem.solve(1_000_000));
    assert_eq!((world.relay_of("a"), world.reason("a")), (None, Some(NoRelayReason::NoCapacity)));
    assert_eq!(world.reason("b"), Some(NoRelayReason::Released));
    world.outputs();
    world.advance(SECOND);
    assert_eq!(world.decided, [name("b"), name("a")]);
}

#[test]
fn an_edge_placed_while_a_matching_is_solved_gets_its_reply() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[]));
    world.now += Duration::from_millis(200);
    world.machine.tick(world.now);
    let Some(Output::Solve(problem)) = world.machine.poll() else { panic!("the window is over") };
    let assignment = Some(CurrentAssignment {
        relay: name("fra"),
        reservation: mbps(20),
        version: StateVersion { epoch: 1, version: 9 },
    });
    world.report("a", Report { assignment, ..report(assignment_request(10, &[("fra", 20)]), 0, 0) });
    world.machine.apply_solution(problem.solve(1_000_000));
    world.outputs();
    assert_eq!((world.decided.as_slice(), world.relay_of("a").unwrap().as_str()), (&[name("a")][..], "fra"));
}

#[test]
fn candidates_are_the_nearest_relays_with_free_capacity() {
    let mut world = World::new();
    let at = |latitude, longitude| Some(crate::fleet::Position::new(latitude, longitude).unwrap());
    for (relay, position) in
        [("fra", at(50.1, 8.7)), ("ams", at(52.4, 4.9)), ("nyc", at(40.7, -74.0)), ("sfo", at(37.8, -122.4))]
    {
        world.heartbeat(relay, Heartbeat { position, ..heartbeat(100, 100) });
    }
    world.heartbeat("full", Heartbeat { position: at(50.0, 8.0), ..heartbeat(100, 9) });
    let proximity = Proximity { position: at(50.0, 8.3), origin: None };
    let names = |world: &mut World, proximity: &Proximity| -> Vec<String> {
        let found = world.candidates(&name("cam"), proximity);
        found.into_iter().map(|candidate| candidate.relay.to_string()).collect()
    };
    assert_eq!(names(&mut world, &proximity), ["fra", "ams", "nyc"]);
    world.machine.drain(&name("fra"), true, None);
    assert_eq!(names(&mut world, &proximity), ["ams", "nyc", "sfo"]);
    // Without positions they are sorted by RTT.
    let mut world = World::with(&[("a", 100), ("b", 100), ("c", 100), ("d", 100)]);
    let mut measured = assignment_request(1, &[("c", 10), ("a", 10)]);
    measured.measurements[0].rtt_ms = Some(10);
    measured.measurements[1].rtt_ms = Some(30);
    world.request("cam", measured);
    assert_eq!(names(&mut world, &Proximity::default())[..2], ["c", "a"]);
}
