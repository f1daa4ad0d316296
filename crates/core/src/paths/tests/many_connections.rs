//! Long-lived connections, and several at once: the past of a connection does not count forever, and the traffic of
//! all of them counts once.

use super::test_world::*;
use crate::paths::*;
use crate::units::DataSize;

use alloc::vec::Vec;

/// A world without connections, with the rates of both links in Mbit/s and the goal of energy.
fn world(wifi: f64, lte: f64) -> World {
    let mut world = World::new(config());
    world.set_rate(WIFI, wifi);
    world.set_rate(LTE, lte);
    world
}

/// Thirty responses of 20 kB, two per second.
fn browse(world: &mut World, conn: ConnId) {
    for _ in 0..30 {
        world.add_data(conn, 20_000);
        world.run(0.5);
    }
}

#[test]
fn a_large_transfer_before_a_pause_does_not_make_later_small_responses_count_as_large() {
    let mut world = world(2.5, 10.0);
    let conn = world.open(1, WIFI, 20_000_000);
    world.finish(100.0);
    world.run(30.0);
    let (joins, before) = (world.join_count(LTE), world.received(LTE));
    browse(&mut world, conn);
    assert_eq!((world.join_count(LTE), world.received(LTE)), (joins, before), "{:?}", world.notes);
}

#[test]
fn a_pausing_connection_releases_the_costly_radio_while_it_is_awake() {
    let mut world = world(0.8, 10.0);
    let conn = world.open(1, WIFI, 20_000_000);
    world.finish(100.0);
    world.commands.clear();
    world.run(30.0);
    let before = world.received(LTE);
    assert!(before > 10_000_000, "{:?}", world.notes);
    assert!(world.commands.iter().all(|(at, _)| world.now.since(*at).as_secs() >= 25), "{:?}", world.commands);
    browse(&mut world, conn);
    assert_eq!(world.received(LTE), before, "{:?} {:?}", world.notes, world.commands);
    // LTE is used again once a large transfer follows.
    world.add_data(conn, 20_000_000);
    assert!(world.finish(60.0) < 40.0, "{:?}", world.notes);
}

#[test]
fn a_connection_that_began_on_the_costly_link_pauses_on_the_cheap_one() {
    let mut world = world(8.0, 10.0);
    world.handle(Input::LinkDown { link: WIFI });
    let conn = world.open(1, LTE, 1 << 30);
    world.run(2.0);
    world.handle(Input::LinkUp { link: WIFI });
    world.run(20.0);
    assert!(world.received(WIFI) > 1_000_000, "{:?}", world.notes);
    world.stop(conn);
    world.run(30.0);
    let before = world.received(LTE);
    browse(&mut world, conn);
    assert_eq!(world.received(LTE), before, "{:?} {:?}", world.notes, world.commands);
}

#[test]
fn the_connections_of_a_web_page_do_not_add_up_to_a_large_file() {
    // 3.6 MB over six connections; after τ each of them might count as a large transfer.
    let mut world = world(2.5, 10.0);
    let conns: Vec<ConnId> = (1..=6).map(|token| world.open(token, WIFI, 600_000)).collect();
    world.run(6.0);
    let rest =
        conns.iter().filter_map(|conn| world.paths.conn_status(*conn)).map(|view| view.expected.bytes()).max();
    assert_eq!(world.join_count(LTE), 0, "{rest:?} {:?}", world.notes);
}

#[test]
fn many_small_responses_do_not_count_as_a_large_one() {
    // As many bytes per poll as in a slow download, for which LTE would be worth its energy.
    let lte = |sends_requests: bool| {
        let mut world = world(0.8, 10.0);
        let conn = world.open(1, WIFI, 0);
        for _ in 0..200 {
            if sends_requests {
                world.request(conn, 10_000)
            } else {
                world.add_data(conn, 10_000)
            }
            world.run(0.1);
        }
        (world.join_count(LTE), world.notes)
    };
    assert!(lte(false).0 > 0);
    let (joins, notes) = lte(true);
    assert_eq!(joins, 0, "{notes:?}");
}

#[test]
fn the_rate_of_a_link_does_not_depend_on_the_number_of_connections() {
    for conn_count in [1, 6, 20] {
        let mut world = world(5.0, 10.0);
        world.open(100, WIFI, 1 << 30);
        world.run(4.0);
        for token in 1..conn_count {
            world.open(token, WIFI, 1 << 30);
        }
        for tenth in 0..60 {
            let rate = world.paths.link_statuses().next().map_or(0.0, |link| link.rate.as_mbps_f64());
            assert!((4.5..5.5).contains(&rate), "{conn_count} connections after {tenth} tenths: {rate}");
            world.run(0.1);
        }
        // All connections but one end.
        (1..conn_count).for_each(|token| world.close(ConnId(token)));
        for tenth in 0..60 {
            let rate = world.paths.link_statuses().next().map_or(0.0, |link| link.rate.as_mbps_f64());
            assert!((4.5..5.5).contains(&rate), "one connection after {tenth} tenths: {rate}");
            world.run(0.1);
        }
        assert_eq!(world.join_count(LTE), 0, "{conn_count} {:?}", world.notes);
    }
}

#[test]
fn a_connection_becomes_bulk_when_its_link_slows_down_but_not_when_others_share_it() {
    // 10 MB over Wi-Fi at 20 Mbit/s; then the connection gets only 4 Mbit/s.
    let expected = |others: u32, rate: f64| {
        let mut world = world(20.0, 10.0);
        let conn = world.open(100, WIFI, 1 << 30);
        world.run(4.0);
        for token in 0..others {
            world.open(token, WIFI, 1 << 30);
        }
        world.set_rate(WIFI, rate);
        world.run(2.0);
        world.paths.conn_status(conn).unwrap().expected
    };
    assert!(expected(4, 20.0) < DataSize::from_bytes(16_000_000));
    assert_eq!(expected(0, 4.0), DataSize::from_bytes(64_000_000));
}
