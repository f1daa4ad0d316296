//! Heartbeats, leases and versions: relays and edges that come, become unresponsive, drain or report an earlier state.

use super::*;

#[test]
fn a_relay_that_misses_its_heartbeats_loses_its_edges() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
    world.request("a", edge.clone());
    world.advance(SECOND);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
    let (ams, edge_report) = (("ams", heartbeat(100, 100)), ("a", report(edge, 40, 40)));
    world.run_heartbeats(MINUTE / 4, core::slice::from_ref(&ams), core::slice::from_ref(&edge_report));
    assert_eq!(world.relay_of("a").unwrap(), "fra", "three heartbeats");
    world.run_heartbeats(MINUTE / 6, &[ams], &[edge_report]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
    world.advance(MINUTE);
    assert!(world.machine.relay_summaries().is_empty(), "no relay has sent a heartbeat for a lease");
}

#[test]
fn a_lease_that_is_not_renewed_ends() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(SECOND);
    world.run_heartbeats(25 * SECOND, &[("fra", heartbeat(100, 100))], &[]);
    assert_eq!(world.free_capacity("fra"), mbps(50));
    world.run_heartbeats(10 * SECOND, &[("fra", heartbeat(100, 100))], &[]);
    assert_eq!((world.free_capacity("fra"), world.machine.edge_summaries().len()), (mbps(100), 0));
}

#[test]
fn edges_leave_a_relay_that_drains_by_itself_or_by_an_operator() {
    for by_operator in [false, true] {
        let mut world = World::with(&[("fra", 100), ("ams", 100)]);
        let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
        world.request("a", edge.clone());
        world.advance(SECOND);
        if by_operator {
            world.machine.drain(&name("fra"), true, Some(MINUTE));
        } else {
            world.heartbeat("fra", Heartbeat { draining: true, ..heartbeat(100, 100) });
        }
        world.advance(SECOND);
        assert_eq!(world.relay_of("a").unwrap(), "ams");
        if by_operator {
            assert!(world.heartbeat("fra", heartbeat(100, 100)).draining);
            let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
            world.run_heartbeats(2 * MINUTE, &relays, &[]);
            assert!(!world.heartbeat("fra", heartbeat(100, 100)).draining, "the drain lasted one minute");
        }
    }
}

#[test]
fn a_relay_receives_its_reservations_only_when_they_change() {
    let mut world = World::with(&[("fra", 100)]);
    let first = world.heartbeat("fra", heartbeat(100, 100));
    assert_eq!(first.reservations, Some(vec![]));
    let seen = |version| Heartbeat { seen_version: version, ..heartbeat(100, 100) };
    assert_eq!(world.heartbeat("fra", seen(first.version)).reservations, None);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(SECOND);
    let second = world.heartbeat("fra", seen(first.version));
    let reply = second.reservations.unwrap();
    assert_eq!((reply[0].edge.as_str(), reply[0].reservation, reply.len()), ("a", mbps(50), 1));
    assert!(second.version > first.version);
    assert_eq!(world.heartbeat("fra", seen(second.version)).reservations, None);
    world.release(&name("a"));
    assert_eq!(world.heartbeat("fra", seen(second.version)).reservations, Some(vec![]));
    world.machine.begin_epoch(2);
    let third = world.heartbeat("fra", seen(second.version));
    assert_eq!((third.version.epoch, third.reservations), (2, Some(vec![])));
}

#[test]
fn a_version_from_another_leader_in_our_epoch_is_not_taken_for_ours() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    world.heartbeat("fra", heartbeat(100, 100));
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(SECOND);
    world.request("b", assignment_request(10, &[("ams", 50)]));
    world.advance(SECOND);
    // Two processes lead in one epoch and their versions are equal, but the relay has not received this process's reservations.
    let reply = world.heartbeat("fra", Heartbeat { seen_version: world.machine.version(), ..heartbeat(100, 100) });
    assert_eq!(reply.reservations.map(|edges| edges.len()), Some(1));
    assert_eq!(
        world.heartbeat("fra", Heartbeat { seen_version: reply.version, ..heartbeat(100, 100) }).reservations,
        None
    );
}

#[test]
fn the_epoch_is_raised_above_that_of_a_relay_unless_it_is_implausible() {
    let mut world = World::new();
    world.heartbeat(
        "fra",
        Heartbeat { seen_version: StateVersion { epoch: u64::MAX, version: 0 }, ..heartbeat(100, 100) },
    );
    assert!(world.raised_epochs.is_empty());
    world
        .heartbeat("fra", Heartbeat { seen_version: StateVersion { epoch: 7, version: 0 }, ..heartbeat(100, 100) });
    assert_eq!(world.raised_epochs, [7]);
    world.machine.begin_epoch(8);
    assert_eq!(world.machine.version(), StateVersion { epoch: 8, version: 0 });
    world.machine.begin_epoch(3);
    assert_eq!(world.machine.version().epoch, 8);
}

#[test]
fn time_does_not_go_back() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(10 * SECOND);
    world.machine.tick(Instant::from_millis(0));
    world.machine.handle(Instant::from_millis(1), Input::Heartbeat(name("fra"), heartbeat(100, 100)));
    assert_eq!(world.machine.relay_summaries()[0].age_ms, 0);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
}

#[test]
fn after_a_clock_jump_of_an_hour_reporting_members_keep_their_assignments() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
    world.request("a", edge.clone());
    world.request("b", assignment_request(10, &[("ams", 40)]));
    world.advance(SECOND);
    let before = world.machine.reply_for(&name("a")).assignment.unwrap().version;
    world.now += Duration::from_secs(3600);
    world.machine.tick(world.now);
    world.outputs();
    world.advance(9 * SECOND);
    world.heartbeat("fra", heartbeat(100, 100));
    world.report("a", report(edge, 40, 40));
    world.advance(2 * SECOND);
    let after = world.machine.reply_for(&name("a")).assignment.unwrap();
    assert_eq!((after.relay.as_str(), after.version), ("fra", before));
    assert_eq!(world.relay_of("b"), None, "an edge that does not report is removed");
    assert_eq!(world.machine.relay_summaries().len(), 1);
}

#[test]
fn a_scheduler_that_lost_its_state_recovers_it_within_two_heartbeats() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edges: Vec<(String, AssignmentRequest)> =
        (0..6).map(|n| (format!("cam-{n}"), assignment_request(1, &[("fra", 20), ("ams", 15)]))).collect();
    edges.iter().for_each(|(edge, request)| world.request(edge, request.clone()));
    world.advance(SECOND);
    let assignments: Vec<Option<CurrentAssignment>> = edges
        .iter()
        .map(|(edge, _)| {
            let assignment = world.machine.reply_for(&name(edge)).assignment?;
            Some(CurrentAssignment {
                relay: assignment.relay,
                reservation: assignment.reservation,
                version: assignment.version,
            })
        })
        .collect();
    assert!(assignments.iter().all(Option::is_some));
    let (fra, ams) = (world.free_capacity("fra"), world.free_capacity("ams"));
    // A new scheduler takes over. Edges report before their relays, and lose nothing for two heartbeats.
    world.machine = FleetScheduler::new(SchedulerConfig::default(), 2, world.now);
    for round in 0..2 {
        for ((edge, request), assignment) in edges.iter().zip(&assignments) {
            let reply =
                world.report(edge, Report { assignment: assignment.clone(), ..report(request.clone(), 10, 10) });
            assert_eq!(reply.assignment.unwrap().relay, assignment.clone().unwrap().relay, "{round}");
        }
        world.advance(3 * SECOND);
        world.heartbeat("fra", heartbeat(100, fra.as_mbps_f64() as u64));
        world.heartbeat("ams", heartbeat(100, ams.as_mbps_f64() as u64));
        world.advance(2 * SECOND);
    }
    assert_eq!((world.free_capacity("fra"), world.free_capacity("ams")), (fra, ams));
    assert_eq!(world.machine.edge_summaries().len(), 6);
}

#[test]
fn a_reported_assignment_gives_an_edge_no_more_than_measured_and_available() {
    let mut world = World::with(&[("fra", 100)]);
    let assignment = |reservation, epoch| {
        let version = StateVersion { epoch, version: 9 };
        Some(CurrentAssignment { relay: name("fra"), reservation: mbps(reservation), version })
    };
    let report_with = |assignment| Report { assignment, ..report(assignment_request(1, &[("fra", 30)]), 0, 0) };
    let got = world.report("a", report_with(assignment(90, 1))).assignment.unwrap();
    assert_eq!(got.reservation, mbps(30), "the rate that it has measured");
    assert_eq!(
        world.report("b", report_with(assignment(20, 5))).assignment,
        None,
        "of an epoch that does not exist yet"
    );
    let other = Report { assignment: assignment(20, 1), ..report(assignment_request(1, &[("ams", 30)]), 0, 0) };
    assert_eq!(world.report("c", other).assignment, None, "at a relay that it has not measured");
    for n in 0..5 {
        world.report(&format!("d{n}"), report_with(assignment(30, 1)));
    }
    assert_eq!(
        world.machine.placements.claims_of(&name("fra")).unwrap().load.total(),
        mbps(90),
        "and no more than the relay's capacity"
    );
}

#[test]
fn invalid_heartbeats_and_requests_are_rejected() {
    let mut world = World::new();
    let mut refused = |heartbeat: Heartbeat| world.machine.heartbeat(&name("fra"), heartbeat).is_err();
    assert!(refused(heartbeat(0, 0)) && refused(heartbeat(2_000_000, 0)));
    assert!(refused(Heartbeat { addresses: vec![], ..heartbeat(1, 1) }));
    let twice = assignment_request(1, &[("fra", 1), ("fra", 2)]);
    assert!(world.machine.request(&name("a"), twice).is_err());
}
