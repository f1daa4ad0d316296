//! Stalls: of a path that has died, of an application that pauses, and of single packets that are lost.

use super::test_world::*;

/// A world without connections: Wi-Fi carries 16 Mbit/s and LTE 8, with the goal of energy.
fn world() -> World {
    let mut world = World::new(config());
    world.set_rate(WIFI, 16.0);
    world.set_rate(LTE, 8.0);
    world
}

#[test]
fn a_lost_syn_does_not_make_the_path_of_a_pausing_application_dead() {
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
fn a_connection_with_its_usual_pauses_is_not_probed_even_if_its_link_has_died() {
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
    world.unresponsive.insert(WIFI);
    world.run(60.0);
    assert!(world.commands.is_empty(), "{:?}", world.commands);
    // It sends a request and gets no response.
    world.unanswered = 300;
    world.add_data(conn, 2000);
    world.run(3.0);
    assert_eq!(world.received(LTE), 2000, "{:?}", world.commands);
}

#[test]
fn a_stall_of_unanswered_data_counts_from_its_sending_and_not_from_the_last_byte() {
    let mut world = world();
    let conn = world.open(1, WIFI, 2000);
    world.run(20.0);
    world.commands.clear();
    // One poll sees the request in flight, and the next one its response.
    world.unresponsive.insert(WIFI);
    world.unanswered = 300;
    world.run(0.45);
    world.unresponsive.clear();
    world.add_data(conn, 2000);
    world.run(0.4);
    assert!(world.commands.is_empty(), "{:?}", world.commands);
}

#[test]
fn received_bytes_end_an_unanswered_liveness_probe() {
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
fn a_stalled_stream_is_probed_twice_and_any_other_stall_until_the_kernel_repeats_the_syn() {
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
        world.unresponsive.insert(WIFI);
        world.run(least);
        assert_eq!(world.join_count(LTE), 0, "{bytes} {:?}", world.commands);
        world.run(most - least);
        assert_eq!(world.join_count(LTE), 1, "{bytes} {:?}", world.commands);
    }
}
