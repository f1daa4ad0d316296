//! Trials of links while several connections could start them.

use super::test_world::*;
use crate::paths::*;
use crate::units::{DataSize, Instant};

use alloc::vec::Vec;

#[test]
fn only_one_of_several_connections_makes_the_first_use_trial() {
    for conn_count in [1, 2, 6] {
        let mut world = World::new(config());
        world.set_rate(WIFI, 0.8);
        world.set_rate(LTE, 8.0);
        for token in 1..=conn_count {
            world.open(token, WIFI, 64 << 20);
        }
        let probe_count =
            |world: &World| world.notes.iter().filter(|note| note.starts_with("lte alone on trial")).count();
        while world
            .paths
            .link_statuses()
            .all(|view| view.link != LTE || view.carried < DataSize::from_bytes(1_500_000))
        {
            world.run(0.1);
            assert!(world.now < Instant::from_millis(30_000), "{conn_count}: {:#?}", world.notes);
        }
        assert_eq!(probe_count(&world), 1, "{conn_count}: {:#?}", world.notes);
        // No connection is left behind: all of them leave slow Wi-Fi, or use LTE as well.
        world.run(20.0);
        let only: Vec<ConnId> =
            (1..=conn_count).map(ConnId).filter(|conn| world.state(*conn) == "wifi only").collect();
        assert!(only.is_empty(), "{conn_count}: {only:?} {:#?}", world.notes);
    }
}

#[test]
fn a_trial_is_repeated_if_the_link_could_not_be_joined() {
    let mut world = World::new(config());
    world.set_rate(WIFI, 0.8);
    world.set_rate(LTE, 8.0);
    world.lost_joins = 1;
    let conn = world.open(1, WIFI, 64 << 20);
    world.run(12.0);
    let trials = world.notes.iter().filter(|note| note.starts_with("lte alone on trial")).count();
    assert_eq!(trials, 2, "{:#?}", world.notes);
    assert_eq!(world.state(conn), "lte only", "{:#?}", world.notes);
}

#[test]
fn an_initial_link_that_has_slowed_down_is_reprobed_before_it_carries_beside_the_new_one() {
    let mut world = World::new(config());
    world.set_rate(WIFI, 18.0);
    world.set_rate(LTE, 10.0);
    let conn = world.open(1, WIFI, 1 << 30);
    world.run(5.0);
    // The host moves out of range: the rate during the first use of LTE is not the rate after it.
    for rate in [9.0, 6.0, 4.0, 3.0, 2.0, 1.0, 0.5] {
        world.set_rate(WIFI, rate);
        world.run(1.0);
    }
    world.set_rate(WIFI, 0.3);
    world.run(4.0);
    let compared = world.notes.iter().any(|note| note.starts_with("wifi and lte at"));
    assert!(world.join_count(LTE) == 1 && !compared && world.state(conn) == "lte only", "{:#?}", world.notes);
    world.set_rate(WIFI, 18.0);
    world.run(8.0);
    assert_ne!(world.state(conn), "lte only", "{:#?}", world.notes);
}

#[test]
fn a_costly_initial_link_that_had_slowed_down_is_used_again_without_a_reprobe() {
    let mut world = World::new(config());
    world.set_rate(WIFI, 16.0);
    world.set_rate(LTE, 12.0);
    let conn = world.open(1, LTE, 1 << 30);
    world.run(3.0);
    world.set_rate(LTE, 2.0);
    world.run(10.0);
    assert_eq!(world.state(conn), "wifi only", "{:#?}", world.notes);
    world.set_rate(LTE, 12.0);
    world.set_rate(WIFI, 0.3);
    world.run(15.0);
    assert!(world.state(conn).contains("lte"), "{} {:#?}", world.state(conn), world.notes);
}
