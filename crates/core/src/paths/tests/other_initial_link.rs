//! Cases in which another link takes the role of the initial link: it is down, its subflow is gone, or another link
//! carried the connection from the start.

use super::test_world::*;
use crate::link::{LinkId, LinkKind};
use crate::paths::*;
use crate::units::{DataSize, Instant};

/// A world without connections, with the rates of both links in Mbit/s and the goal of energy.
fn world(wifi: f64, lte: f64) -> World {
    let mut world = World::new(config());
    world.set_rate(WIFI, wifi);
    world.set_rate(LTE, lte);
    world
}

#[test]
fn a_connection_whose_last_subflow_has_gone_is_joined_over_another_link() {
    for why in [
        CloseReason::TimedOut,
        CloseReason::Unreachable,
        CloseReason::Reset,
        CloseReason::Closed,
        CloseReason::Other,
    ] {
        for unplugged in [false, true] {
            let mut world = world(16.0, 8.0);
            world.open(1, WIFI, 1 << 30);
            world.run(5.0);
            world.unresponsive.insert(WIFI);
            world.end_subflows(WIFI, why);
            if unplugged {
                world.handle(Input::LinkDown { link: WIFI });
            }
            world.run(3.0);
            assert!(world.received(LTE) > 500_000, "{why:?} {unplugged} {:#?}", world.notes);
        }
    }
}

#[test]
fn a_short_outage_does_not_move_an_idle_connection() {
    let mut world = world(16.0, 8.0);
    let conn = world.open(1, WIFI, 2 << 20);
    world.run(30.0);
    world.handle(Input::LinkDown { link: WIFI });
    world.run(0.5);
    world.handle(Input::LinkUp { link: WIFI });
    world.run(20.0);
    world.add_data(conn, 20_000);
    world.run(20.0);
    assert_eq!(world.received(LTE), 0, "{:#?}", world.notes);
}

#[test]
fn an_adopted_connection_continues_over_its_present_link() {
    let mut world = world(0.8, 8.0);
    world.adopt(1, LTE, 1 << 30);
    world.run(2.0);
    assert!(world.received(LTE) > 1_500_000, "{:?} {:#?}", world.commands, world.notes);
}

#[test]
fn a_reprobe_interrupted_by_an_outage_has_no_result_after_the_recovery() {
    for after in [0.1, 0.3, 0.5] {
        let mut world = world(0.8, 8.0);
        let conn = world.open(1, WIFI, 1 << 30);
        world.run(60.0);
        while world.state(conn) == "lte only" {
            world.run(0.05);
            assert!(world.now < Instant::from_millis(120_000), "no reprobe: {:#?}", world.notes);
        }
        world.run(after);
        world.unresponsive.insert(WIFI);
        world.unplug(WIFI);
        world.run(30.0);
        world.unresponsive.clear();
        world.set_rate(WIFI, 16.0);
        let before = world.received(WIFI);
        world.handle(Input::LinkUp { link: WIFI });
        world.run(4.0);
        assert!(world.received(WIFI) > before + 3_000_000, "{after} {:#?}", world.notes);
    }
}

#[test]
fn a_link_that_was_never_the_initial_one_is_not_reprobed() {
    let mut world = world(8.0, 3.0);
    let usb = LinkId(2);
    let link_config = LinkConfig { id: usb, name: "usb".into(), kind: LinkKind::Lte, metered: false, budget: None };
    world.handle(Input::LinkAdded { config: link_config });
    world.handle(Input::LinkUp { link: usb });
    world.set_rate(usb, 20.0);
    let conn = world.open(1, WIFI, 1 << 32);
    world.run(10.0);
    world.set_rate(WIFI, 0.3);
    world.run(60.0);
    assert_eq!(world.state(conn), "usb only", "{:#?}", world.notes);
    world.unplug(WIFI);
    world.notes.clear();
    let before = world.received(LTE);
    world.run(60.0);
    assert_eq!((world.received(LTE), world.subflow_count(LTE)), (before, 0), "{:#?}", world.notes);
}

#[test]
fn a_connection_that_began_on_lte_moves_to_wifi_without_the_charge_for_waking_lte_again() {
    // LTE was in use when the connection began and was not woken because of bad Wi-Fi.
    let mut world = world(16.0, 10.0);
    world.handle(Input::LinkDown { link: WIFI });
    world.open(1, LTE, 1 << 30);
    world.run(4.0);
    world.handle(Input::LinkUp { link: WIFI });
    world.run(6.0);
    assert!(world.received(LTE) < 10_000_000, "{} {:#?}", world.received(LTE), world.notes);
}

#[test]
fn other_programs_traffic_over_lte_does_not_bring_a_connection_back_to_it() {
    let mut world = world(0.8, 10.0);
    let conn = world.open(1, WIFI, 1 << 30);
    world.run(12.0);
    world.set_rate(WIFI, 20.0);
    world.run(80.0);
    assert_eq!(world.state(conn), "wifi only", "{:#?}", world.notes);
    world.set_rate(WIFI, 7.0);
    world.run(5.0);
    let before = world.received(LTE);
    let traffic = |received| Input::InterfaceCounters {
        link: LTE,
        received: DataSize::from_bytes(received),
        sent: DataSize::ZERO,
    };
    for second in 0..60 {
        world.handle(traffic(1_000_000_000 + second * 30_000));
        world.run(1.0);
    }
    assert_eq!(world.received(LTE), before, "{:#?}", world.notes);
}
