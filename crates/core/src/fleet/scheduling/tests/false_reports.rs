//! Members that send false data: relays about epochs or their load, edges about their assignment or throughput. Others must
//! not be harmed.
//!
//! A [`World`] begins with the grace period of its first epoch: for two heartbeat intervals of 5 s the scheduler accepts the
//! assignments that edges report, and considers no relay failed. Tests of the time after it advance by 20 s. An edge's lease
//! lasts 30 s; within that time each relay can raise the epoch once.

use super::*;

/// The heartbeat of a relay that claims to have seen this version of the assignments in an earlier reply. If it is ahead of
/// the scheduler's, the epoch is raised (`World::raised_epochs`): the leader then begins a new epoch above it.
fn heartbeat_having_seen(epoch: u64, version: u64) -> Heartbeat {
    Heartbeat { seen_version: StateVersion { epoch, version }, ..heartbeat(100, 100) }
}

#[test]
fn a_relay_that_always_claims_a_later_epoch_neither_extends_the_grace_period_nor_uses_up_epochs() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
    world.request("a", edge.clone());
    world.advance(20 * SECOND);
    // fra is unresponsive from now on; the liar claims in each heartbeat to have seen the next epoch. If each claim raised
    // the epoch, the grace period would begin again and again, and fra would never count as failed.
    for _ in 0..12 {
        let next = world.machine.version().epoch + 1;
        world.heartbeat("liar", heartbeat_having_seen(next, 0));
        if let Some(epoch) = world.raised_epochs.pop() {
            world.machine.begin_epoch(epoch + 1);
        }
        world.heartbeat("ams", heartbeat(100, 100));
        world.report("a", report(edge.clone(), 40, 40));
        world.advance(5 * SECOND);
    }
    assert_eq!(world.relay_of("a").unwrap(), "ams", "its relay has been recognized as failed");
    assert!(!world.machine.has_relay(&name("fra")), "and removed");
    assert!(
        world.machine.version().epoch <= 1 + 3 * 2,
        "the epoch is raised once per lease: {:?}",
        world.machine.version()
    );
}

#[test]
fn each_relay_can_raise_the_epoch_once_per_lease() {
    let mut world = World::new();
    world.heartbeat("fra", heartbeat_having_seen(4, 0));
    world.heartbeat("ams", heartbeat_having_seen(7, 0));
    world.heartbeat("ams", heartbeat_having_seen(8, 0));
    assert_eq!(world.raised_epochs, [4, 7]);
    world.machine.begin_epoch(8);
    world.advance(31 * SECOND);
    world.heartbeat("fra", heartbeat_having_seen(8, 0));
    assert_eq!(world.raised_epochs, [4, 7], "our own epoch, without any change in it");
    world.heartbeat("fra", heartbeat_having_seen(8, 1));
    assert_eq!(world.raised_epochs, [4, 7, 8], "another process leads in our epoch");
}

#[test]
fn a_reported_assignment_counts_in_the_grace_period_or_from_an_earlier_epoch() {
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
    assert_eq!(world.report("a", report_held(1, 60)).assignment, None, "of our epoch: the scheduler would know it");
    world.machine.begin_epoch(2);
    assert!(world.report("b", report_held(1, 60)).assignment.is_some(), "assigned by the previous leader");
    assert_eq!(world.report("c", report_held(1, 31)).assignment, None, "only 30 Mbit/s are left");
    assert_eq!(world.relay_of("b").unwrap(), "fra", "and it displaces no other edge");
}

#[test]
fn a_recovered_reservation_is_limited_by_the_rate_to_the_origin() {
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
    assert_eq!(got.assignment.unwrap().reservation, mbps(20), "the rate from the relay to the origin server");
}

#[test]
fn the_edge_with_the_largest_claim_on_an_unknown_relay_is_removed_when_it_appears() {
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
    let have_relay = ["liar", "a", "b", "c"].map(|edge| world.relay_of(edge).is_some());
    assert_eq!(have_relay, [false, true, true, true]);
}

#[test]
fn an_edge_that_exaggerates_its_throughput_takes_nothing_from_others() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("liar", assignment_request(1, &[("fra", 20)]));
    world.request("a", assignment_request(1, &[("fra", 40)]));
    world.advance(SECOND);
    world.report("liar", report(assignment_request(1, &[("fra", 20)]), 1_000_000, 1_000_000));
    assert_eq!(
        world.free_capacity("fra"),
        mbps(30),
        "its report counts up to the share for bursts, a tenth of the capacity"
    );
    // Other edges have as much capacity as without the report, and placed edges stay.
    world.request("b", assignment_request(1, &[("fra", 30)]));
    world.advance(SECOND);
    assert_eq!(world.relay_of("b").unwrap(), "fra");
    let reports = [
        ("liar", report(assignment_request(1, &[("fra", 20)]), 1_000_000, 1_000_000)),
        ("a", report(assignment_request(1, &[("fra", 40)]), 40, 40)),
        ("b", report(assignment_request(1, &[("fra", 30)]), 30, 30)),
    ];
    // Longer than the interval at which all edges are matched again.
    world.run_heartbeats(31 * MINUTE, &[("fra", heartbeat(100, 10))], &reports);
    assert!(["liar", "a", "b"].iter().all(|edge| world.relay_of(edge).as_deref() == Some("fra")));
}

#[test]
fn a_relay_that_reports_no_load_gets_no_more_edges_than_its_capacity() {
    let mut world = World::with(&[("liar", 100)]);
    for n in 0..9 {
        world.request(&format!("cam-{n}"), assignment_request(1, &[("liar", 10)]));
    }
    world.advance(SECOND);
    let bursts: Vec<(String, Report)> =
        (0..9).map(|n| (format!("cam-{n}"), report(assignment_request(1, &[("liar", 10)]), 12, 12))).collect();
    let reports: Vec<(&str, Report)> =
        bursts.iter().map(|(edge, report)| (edge.as_str(), report.clone())).collect();
    world.run_heartbeats(MINUTE, &[("liar", heartbeat(100, 100))], &reports);
    assert!(bursts.iter().all(|(edge, _)| world.relay_of(edge).is_some()));
    assert_eq!(world.free_capacity("liar"), Bitrate::ZERO, "nine edges that use 12 Mbit/s each");
    assert_eq!(world.candidates(&name("new"), &Proximity::default()), []);
    world.request("new", assignment_request(1, &[("liar", 10)]));
    world.advance(SECOND);
    assert_eq!(world.reason("new"), Some(NoRelayReason::NoCapacity));
    // The relay does not deliver the capacity that it announced: an edge that gets too little moves, whatever the relay reports.
    world.heartbeat("ams", heartbeat(100, 100));
    let starved = |n: u64| report(assignment_request(1, &[("liar", 10), ("ams", 9)]), n, 10);
    let relays = [("liar", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
    world.run_heartbeats(15 * SECOND, &relays, &[("cam-0", starved(1)), ("cam-1", starved(10))]);
    assert_eq!((world.relay_of("cam-0").unwrap(), world.relay_of("cam-1").unwrap()), ("ams".into(), "liar".into()));
}
