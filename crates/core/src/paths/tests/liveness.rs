//! Silence: of a path that has died, of an application that pauses, and of single packets that are lost.

use super::test_world::*;

fn world() -> World {
    let mut world = World::new(config());
    world.set_rate(WIFI, 16.0);
    world.set_rate(LTE, 8.0);
    world
}

#[test]
fn a_lost_syn_does_not_bury_a_path_whose_application_pauses() {
    for (rtt, bytes) in [(30, 4 << 20), (150, 4 << 20), (30, 2000), (150, 2000)] {
        let mut world = world();
        world.set_rtt(WIFI, rtt);
        world.lost_joins = 1;
        let conn = world.open(1, WIFI, bytes);
        world.run(20.0);
        assert_eq!((world.join_count(LTE), world.join_count(WIFI)), (0, 2), "{rtt} {bytes} {:?}", world.commands);
        assert_eq!((world.state(conn).as_str(), world.subflow_count(WIFI)), ("idle", 1), "{rtt} {bytes}");
    }
}

#[test]
fn who_pauses_as_ever_is_not_asked_and_wakes_nothing_when_its_link_has_died() {
    let mut world = world();
    let conn = world.open(1, WIFI, 2000);
    for _ in 0..4 {
        world.run(5.0);
        world.add_data(conn, 2000);
    }
    world.run(5.0);
    world.commands.clear();
    world.add_data(conn, 2000);
    world.run(0.3);
    world.silent.insert(WIFI);
    world.run(60.0);
    assert!(world.commands.is_empty(), "{:?}", world.commands);
    // It asks for something, and nobody answers.
    world.unanswered = 300;
    world.add_data(conn, 2000);
    world.run(3.0);
    assert_eq!(world.received(LTE), 2000, "{:?}", world.commands);
}

#[test]
fn data_without_an_answer_is_a_silence_from_its_beginning_on_and_not_from_the_last_byte() {
    let mut world = world();
    let conn = world.open(1, WIFI, 2000);
    world.run(20.0);
    world.commands.clear();
    // A look sees the request on its way, and the next one its answer.
    world.silent.insert(WIFI);
    world.unanswered = 300;
    world.run(0.45);
    world.silent.clear();
    world.add_data(conn, 2000);
    world.run(0.4);
    assert!(world.commands.is_empty(), "{:?}", world.commands);
}

#[test]
fn bytes_end_a_proof_that_nobody_answers() {
    let mut world = world();
    let conn = world.open(1, WIFI, 4 << 20);
    world.lost_joins = 10;
    while world.join_count(WIFI) == 0 {
        world.run(0.1);
    }
    world.add_data(conn, 16 << 20);
    world.run(5.0);
    assert_eq!((world.join_count(LTE), world.state(conn).as_str()), (0, "wifi only"), "{:?}", world.commands);
}

#[test]
fn a_stream_that_stops_is_left_within_two_attempts_and_any_other_silence_is_given_the_kernels_repetition() {
    for (bytes, least, most) in [(1 << 30, 1.3, 1.8), (400_000, 1.8, 2.6)] {
        let mut world = world();
        for link in [WIFI, LTE] {
            world.set_rtt(link, 150);
        }
        let conn = world.open(1, WIFI, 2000);
        world.run(20.0);
        world.commands.clear();
        world.add_data(conn, bytes);
        world.run(if bytes > 1 << 20 { 10.0 } else { 0.1 });
        world.silent.insert(WIFI);
        world.run(least);
        assert_eq!(world.join_count(LTE), 0, "{bytes} {:?}", world.commands);
        world.run(most - least);
        assert_eq!(world.join_count(LTE), 1, "{bytes} {:?}", world.commands);
    }
}
