//! What an edge gets that could use more than any relay has left.

use super::*;

fn reservation_of(world: &World, edge: &str) -> Bitrate {
    world.machine.reply_for(&name(edge)).assignment.map_or(Bitrate::ZERO, |it| it.reservation)
}

#[test]
fn who_could_fill_two_relays_gets_what_one_has_left() {
    let mut world = World::with(&[("fra", 100), ("ams", 60)]);
    world.request("a", assignment_request(10, &[("fra", 300), ("ams", 300)]));
    world.advance(SECOND);
    assert_eq!((world.relay_of("a").unwrap(), reservation_of(&world, "a")), ("fra".into(), mbps(90)));
    world.request("b", assignment_request(10, &[("fra", 300), ("ams", 300)]));
    world.advance(SECOND);
    assert_eq!((world.relay_of("b").unwrap(), reservation_of(&world, "b")), ("ams".into(), mbps(54)));
    // Nothing is left that brings more than its own link.
    world.request("c", assignment_request(10, &[("fra", 300), ("ams", 300)]));
    world.advance(SECOND);
    assert_eq!(world.reason("c"), Some(NoRelayReason::NoCapacity));
    assert_eq!(["fra", "ams"].map(|relay| world.free_capacity(relay)), [mbps(10), mbps(6)]);
}

#[test]
fn a_re_allocation_takes_from_nobody_what_nobody_else_gets() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("fra", 60)]));
    world.advance(SECOND);
    world.request("b", assignment_request(10, &[("fra", 80)]));
    world.advance(SECOND);
    assert_eq!(["a", "b"].map(|edge| reservation_of(&world, edge)), [mbps(60), mbps(30)]);
    // With all of the relay to be given anew there is no place for both as they would like it.
    let reports = [
        ("a", report(assignment_request(10, &[("fra", 60)]), 60, 60)),
        ("b", report(assignment_request(10, &[("fra", 80)]), 30, 30)),
    ];
    world.run_heartbeats(31 * MINUTE, &[("fra", heartbeat(100, 10))], &reports);
    assert_eq!(["a", "b"].map(|edge| reservation_of(&world, edge)), [mbps(60), mbps(30)]);
    // Who has less than he could use grows into what becomes free.
    world.machine.release(&name("a"), world.now);
    world.run_heartbeats(30 * MINUTE, &[("fra", heartbeat(100, 70))], &reports[1..]);
    assert_eq!(reservation_of(&world, "b"), mbps(80));
}

#[test]
fn who_reports_that_he_has_none_gets_what_others_leave_of_a_window() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(1, &[("fra", 80)]));
    world.request("b", assignment_request(1, &[("fra", 70)]));
    world.advance(SECOND);
    assert_eq!((reservation_of(&world, "a"), world.reason("b")), (mbps(80), Some(NoRelayReason::NoCapacity)));
    world.report("b", report(assignment_request(1, &[("fra", 70)]), 0, 0));
    world.advance(SECOND);
    assert_eq!(reservation_of(&world, "b"), mbps(10));
}
