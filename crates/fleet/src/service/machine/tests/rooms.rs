//! What an edge gets that could use more than any relay has left.

use super::*;

fn reserved(world: &World, edge: &str) -> Bitrate {
    world.machine.standing(&name(edge)).assignment.map_or(Bitrate::ZERO, |it| it.reservation)
}

#[test]
fn who_could_fill_two_relays_gets_what_one_has_left() {
    let mut world = World::with(&[("fra", 100), ("ams", 60)]);
    world.ask("a", wish(10, &[("fra", 300), ("ams", 300)]));
    world.pass(SECOND);
    assert_eq!((world.relay_of("a").unwrap(), reserved(&world, "a")), ("fra".into(), mbps(90)));
    world.ask("b", wish(10, &[("fra", 300), ("ams", 300)]));
    world.pass(SECOND);
    assert_eq!((world.relay_of("b").unwrap(), reserved(&world, "b")), ("ams".into(), mbps(54)));
    // Nothing is left that brings more than its own link.
    world.ask("c", wish(10, &[("fra", 300), ("ams", 300)]));
    world.pass(SECOND);
    assert_eq!(world.reason("c"), Some(Reason::NoRoom));
    assert_eq!(["fra", "ams"].map(|relay| world.free(relay)), [mbps(10), mbps(6)]);
}

#[test]
fn a_re_allocation_takes_from_nobody_what_nobody_else_gets() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(10, &[("fra", 60)]));
    world.pass(SECOND);
    world.ask("b", wish(10, &[("fra", 80)]));
    world.pass(SECOND);
    assert_eq!(["a", "b"].map(|edge| reserved(&world, edge)), [mbps(60), mbps(30)]);
    // With all of the relay to be given anew there is no place for both as they would like it.
    let words = [("a", report(wish(10, &[("fra", 60)]), 60, 60)), ("b", report(wish(10, &[("fra", 80)]), 30, 30))];
    world.live(31 * MINUTE, &[("fra", beat(100, 10))], &words);
    assert_eq!(["a", "b"].map(|edge| reserved(&world, edge)), [mbps(60), mbps(30)]);
    // Who has less than he could use grows into what becomes free.
    world.machine.release(&name("a"), world.now);
    world.live(30 * MINUTE, &[("fra", beat(100, 70))], &words[1..]);
    assert_eq!(reserved(&world, "b"), mbps(80));
}

#[test]
fn who_reports_that_he_has_none_gets_what_others_leave_of_a_window() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(1, &[("fra", 80)]));
    world.ask("b", wish(1, &[("fra", 70)]));
    world.pass(SECOND);
    assert_eq!((reserved(&world, "a"), world.reason("b")), (mbps(80), Some(Reason::NoRoom)));
    world.report("b", report(wish(1, &[("fra", 70)]), 0, 0));
    world.pass(SECOND);
    assert_eq!(reserved(&world, "b"), mbps(10));
}
