//! Recovery of a scheduler that has lost its state, with edges that lie before the honest ones report, and relays that report their lists.

use proptest::prelude::*;

use super::*;

/// The version that the members have received from the previous leader.
const OLD_VERSION: StateVersion = StateVersion { epoch: 3, version: 9 };

/// A scheduler that has just become leader in epoch 4 without any state, at the beginning of its grace period.
fn world_after_failover() -> World {
    let mut world = World::new();
    world.machine = FleetScheduler::new(SchedulerConfig::default(), 4, world.now);
    world
}

/// The heartbeat of a relay that the previous leader knew, with the list of reservations (Mbit/s) that it holds, and with the load of
/// these. `None`: it reports no list.
fn heartbeat_with_reservations(capacity: u64, assignment: Option<&[(&str, u64)]>) -> Heartbeat {
    let list =
        |assignment: &[(&str, u64)]| assignment.iter().map(|(edge, rate)| (name(edge), mbps(*rate))).collect();
    let used: u64 = assignment.unwrap_or_default().iter().map(|(_, rate)| rate).sum();
    Heartbeat {
        seen_version: OLD_VERSION,
        reservations: assignment.map(list),
        ..heartbeat(capacity, capacity.saturating_sub(used))
    }
}

/// The report of an edge that holds this reservation (Mbit/s) of the previous leader, and has measured as much.
fn report_held(relay: &str, rate: u64) -> Report {
    let assignment = CurrentAssignment { relay: name(relay), reservation: mbps(rate), version: OLD_VERSION };
    Report { assignment: Some(assignment), ..report(assignment_request(1, &[(relay, rate)]), 0, 0) }
}

fn reservation_of(world: &World, edge: &str) -> Option<Bitrate> {
    world.machine.reply_for(&name(edge)).assignment.map(|assignment| assignment.reservation)
}

#[test]
fn a_relay_is_requested_once_to_report_its_reservations_and_keeps_them_until_then() {
    let mut world = world_after_failover();
    let first_reply = world.heartbeat("fra", heartbeat_with_reservations(100, None));
    assert_eq!(
        (first_reply.report_reservations, first_reply.version, first_reply.reservations),
        (true, OLD_VERSION, None)
    );
    let reply = world.heartbeat("fra", heartbeat_with_reservations(100, Some(&[("a", 60)])));
    let reservations = reply.reservations.unwrap();
    assert_eq!((reply.report_reservations, reply.version.epoch, reservations.len()), (false, 4, 1));
    assert_eq!(
        (reservations[0].edge.clone(), reservations[0].reservation),
        (name("a"), mbps(60)),
        "an edge that has not reported yet"
    );
    // A relay that has never received reservations is not requested to report any.
    assert!(!world.heartbeat("new", heartbeat(100, 100)).report_reservations);
    // Edges that have not reported lose their reservations at the end of the grace period, and the relay receives the change.
    world.run_heartbeats(
        15 * SECOND,
        &[("fra", Heartbeat { seen_version: reply.version, ..heartbeat(100, 100) })],
        &[],
    );
    let second_reply = world.heartbeat("fra", Heartbeat { seen_version: reply.version, ..heartbeat(100, 100) });
    assert_eq!(second_reply.reservations, Some(vec![]));
    assert_eq!(world.free_capacity("fra"), mbps(100));
}

#[test]
fn a_lying_edge_that_reports_first_takes_no_capacity_from_honest_edges() {
    let mut world = world_after_failover();
    assert_eq!(reservation_of(&world, "liar"), None);
    world.report("liar", report_held("fra", 90));
    assert_eq!(reservation_of(&world, "liar"), Some(mbps(90)), "the relay has not reported yet");
    world.heartbeat("fra", heartbeat_with_reservations(100, None));
    world.report("second", report_held("fra", 80));
    world.heartbeat("fra", heartbeat_with_reservations(100, Some(&[("a", 40), ("b", 40), ("second", 5)])));
    assert_eq!(
        (reservation_of(&world, "liar"), reservation_of(&world, "second")),
        (None, Some(mbps(5))),
        "the list of the relay decides"
    );
    world.report("third", report_held("fra", 6));
    assert_eq!(reservation_of(&world, "third"), None, "only 5 Mbit/s are left");
    world.report("a", report_held("fra", 40));
    world.report("b", report_held("fra", 40));
    assert_eq!((reservation_of(&world, "a"), reservation_of(&world, "b")), (Some(mbps(40)), Some(mbps(40))));
}

#[test]
fn recovered_reservations_wait_only_for_unplaced_edges() {
    let mut world = world_after_failover();
    for relay in ["fra", "ams"] {
        world.heartbeat(relay, heartbeat_with_reservations(100, None));
        world.heartbeat(relay, heartbeat_with_reservations(100, Some(&[("a", 60), ("b", 30)])));
    }
    let capacity_left = |world: &World| world.machine.view().assignable(&name("fra"), Default::default());
    assert_eq!(capacity_left(&world), Bitrate::ZERO);
    world.report("a", report_held("ams", 60));
    world.heartbeat("fra", heartbeat(100, 100));
    assert_eq!(capacity_left(&world), mbps(60), "a is at ams");
    world.release(&name("b"));
    assert_eq!(capacity_left(&world), mbps(90), "b has released its relay");
}

#[test]
fn a_relay_that_never_reports_its_reservations_delays_no_edge() {
    let mut world = world_after_failover();
    world.report("liar", report_held("fra", 900));
    world.report("a", report_held("fra", 40));
    for _ in 0..4 {
        world.heartbeat("fra", heartbeat_with_reservations(100, None));
        world.advance(5 * SECOND);
        world.report("a", report_held("fra", 40));
    }
    let reply = world.heartbeat("fra", heartbeat_with_reservations(100, None));
    assert!(!reply.report_reservations && reply.version.epoch == 4);
    // An edge that requests more than the capacity gets what the others leave.
    assert_eq!((reservation_of(&world, "liar"), reservation_of(&world, "a")), (Some(mbps(50)), Some(mbps(40))));
}

#[test]
fn an_edge_without_a_relay_is_matched_after_its_next_report_to_a_new_leader() {
    let wanted = assignment_request(1, &[("fra", 30)]);
    let mut world = world_after_failover();
    world.heartbeat("fra", heartbeat(100, 100));
    let row = StoredEdge { request: wanted.clone(), assignment: None };
    world.machine.handle(world.now, Input::Restore(vec![MemberRow::Edge(name("restored"), Some(row))]));
    for edge in ["restored", "unknown"] {
        let reply = world.report(edge, report(wanted.clone(), 0, 0));
        assert_eq!((reply.assignment, reply.reason), (None, Some(NoRelayReason::Pending)), "{edge}");
    }
    world.advance(SECOND);
    for edge in ["restored", "unknown"] {
        assert_eq!(world.relay_of(edge).as_deref(), Some("fra"), "{edge}");
    }
    // If the fleet is full, the edge gets a relay when capacity becomes free.
    world.request("third", wanted.clone());
    world.advance(SECOND);
    world.report("late", report(wanted.clone(), 0, 0));
    world.advance(SECOND);
    assert_eq!(world.reason("late"), Some(NoRelayReason::NoCapacity));
    world.release(&name("third"));
    world.report("late", report(wanted.clone(), 0, 0));
    world.advance(SECOND);
    assert_eq!(world.relay_of("late").as_deref(), Some("fra"));
    // An edge that has released its relay waits for nothing.
    world.release(&name("late"));
    world.report("late", report(wanted, 0, 0));
    world.advance(SECOND);
    assert_eq!(world.reason("late"), Some(NoRelayReason::Released));
}

#[test]
fn an_edge_whose_reported_assignment_is_not_plausible_is_matched() {
    let at = |relay, epoch| {
        let version = StateVersion { epoch, version: 9 };
        Some(CurrentAssignment { relay: name(relay), reservation: mbps(30), version })
    };
    let mut world = world_after_failover();
    world.heartbeat("fra", heartbeat(100, 100));
    for (edge, assignment) in [("unmeasured", at("ams", 3)), ("later", at("fra", 5))] {
        let reply =
            world.report(edge, Report { assignment, ..report(assignment_request(1, &[("fra", 30)]), 0, 0) });
        assert_eq!((reply.assignment, reply.reason), (None, Some(NoRelayReason::Pending)), "{edge}");
        world.advance(SECOND);
        assert_eq!(world.relay_of(edge).as_deref(), Some("fra"), "{edge}");
    }
}

/// The member that reports: a relay, or an edge by its index; the indices of liars follow those of honest edges.
#[derive(Clone, Copy, Debug)]
enum Speaker {
    Relay(usize),
    Edge(usize),
}

proptest! {
    #[test]
    fn after_a_restart_honest_edges_get_their_reservations_back_despite_liars(
        rates in proptest::collection::vec((1_u64..30, 0_usize..2), 1..8),
        lies in proptest::collection::vec((1_u64..200, 0_usize..2), 0..6),
        events in proptest::collection::vec((0_usize..3, 0_usize..16), 0..60),
    ) {
        let relays = ["fra", "ams"];
        let mut left = [90, 90];
        let honest: Vec<(String, u64, usize)> = rates.iter().enumerate().filter_map(|(n, (rate, at))| {
            left[*at] -= i64::try_from(*rate).unwrap();
            (left[*at] >= 0).then(|| (format!("h{n}"), *rate, *at)).or_else(|| {
                left[*at] += i64::try_from(*rate).unwrap();
                None
            })
        }).collect();
        let all: Vec<(String, u64, usize)> = honest.iter().cloned()
            .chain(lies.iter().enumerate().map(|(n, (rate, at))| (format!("l{n}"), *rate, *at))).collect();
        let list = |at: usize| honest.iter().filter(|edge| edge.2 == at)
            .map(|(edge, rate, _)| (edge.as_str(), *rate)).collect::<Vec<_>>();
        let mut world = world_after_failover();
        let mut must_report = [false; 2];
        let mut seen = [OLD_VERSION; 2];
        let mut report_in_turn = |world: &mut World, speaker: Speaker| match speaker {
            Speaker::Relay(at) => {
                let reply = heartbeat_with_reservations(100, Some(&list(at)));
                let reservations = if must_report[at] { reply.reservations.clone() } else { None };
                let reply_to_relay = world.heartbeat(relays[at], Heartbeat { reservations, seen_version: seen[at], ..reply });
                (must_report[at], seen[at]) = (reply_to_relay.report_reservations, reply_to_relay.version);
            }
            Speaker::Edge(at) => {
                let (edge, rate, at) = &all[at % all.len()];
                world.report(edge, report_held(relays[*at], *rate));
            }
        };
        // During the first heartbeat members report in random order, honest or not; during the second every member reports.
        for (kind, n) in events {
            report_in_turn(&mut world, if kind == 0 { Speaker::Relay(n % 2) } else { Speaker::Edge(n) });
            world.advance(Duration::from_millis(100));
        }
        for at in (0..all.len()).rev() {
            if at >= honest.len() {
                report_in_turn(&mut world, Speaker::Edge(at));
            }
        }
        for at in [0, 1, 0, 1] {
            report_in_turn(&mut world, Speaker::Relay(at));
        }
        (0..honest.len()).for_each(|at| report_in_turn(&mut world, Speaker::Edge(at)));
        for (edge, rate, at) in &honest {
            let has = world.machine.reply_for(&name(edge)).assignment;
            prop_assert_eq!(has.map(|it| (it.relay, it.reservation)), Some((name(relays[*at]), mbps(*rate))));
        }
        for relay in relays {
            let load = world.machine.placements.claims_of(&name(relay)).unwrap().load.reserved;
            prop_assert!(load <= mbps(90), "{}: {}", relay, load);
        }
    }
}
