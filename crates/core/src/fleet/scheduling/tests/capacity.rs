//! Reservations of edges that could use more than any relay has left.

use super::*;

fn reservation_of(world: &World, edge: &str) -> Bitrate {
    world.machine.reply_for(&name(edge)).assignment.map_or(Bitrate::ZERO, |assignment| assignment.reservation)
}

#[test]
fn an_edge_that_could_fill_two_relays_gets_the_free_capacity_of_one() {
    let mut world = World::with(&[("fra", 100), ("ams", 60)]);
    world.request("a", assignment_request(10, &[("fra", 300), ("ams", 300)]));
    world.advance(SECOND);
    assert_eq!((world.relay_of("a").unwrap(), reservation_of(&world, "a")), ("fra".into(), mbps(90)));
    world.request("b", assignment_request(10, &[("fra", 300), ("ams", 300)]));
    world.advance(SECOND);
    assert_eq!((world.relay_of("b").unwrap(), reservation_of(&world, "b")), ("ams".into(), mbps(54)));
    // The remaining capacity brings no more than the edge's own link.
    world.request("c", assignment_request(10, &[("fra", 300), ("ams", 300)]));
    world.advance(SECOND);
    assert_eq!(world.reason("c"), Some(NoRelayReason::NoCapacity));
    assert_eq!(["fra", "ams"].map(|relay| world.free_capacity(relay)), [mbps(10), mbps(6)]);
}

#[test]
fn a_re_allocation_takes_no_capacity_that_no_other_edge_gains() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("fra", 60)]));
    world.advance(SECOND);
    world.request("b", assignment_request(10, &[("fra", 80)]));
    world.advance(SECOND);
    assert_eq!(["a", "b"].map(|edge| reservation_of(&world, edge)), [mbps(60), mbps(30)]);
    // The relay's whole capacity is matched again, but it cannot satisfy both edges completely.
    let reports = [
        ("a", report(assignment_request(10, &[("fra", 60)]), 60, 60)),
        ("b", report(assignment_request(10, &[("fra", 80)]), 30, 30)),
    ];
    world.run_heartbeats(31 * MINUTE, &[("fra", heartbeat(100, 10))], &reports);
    assert_eq!(["a", "b"].map(|edge| reservation_of(&world, edge)), [mbps(60), mbps(30)]);
    // An edge with less than it could use grows into capacity that becomes free.
    world.release(&name("a"));
    world.run_heartbeats(30 * MINUTE, &[("fra", heartbeat(100, 70))], &reports[1..]);
    assert_eq!(reservation_of(&world, "b"), mbps(80));
}

#[test]
fn an_edge_without_a_relay_gets_the_capacity_that_a_window_has_left() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(1, &[("fra", 80)]));
    world.request("b", assignment_request(1, &[("fra", 70)]));
    world.advance(SECOND);
    assert_eq!((reservation_of(&world, "a"), world.reason("b")), (mbps(80), Some(NoRelayReason::NoCapacity)));
    world.report("b", report(assignment_request(1, &[("fra", 70)]), 0, 0));
    world.advance(SECOND);
    assert_eq!(reservation_of(&world, "b"), mbps(10));
}
