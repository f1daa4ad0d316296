//! Each policy in the settings of the paper and of the project's own requirements.

use super::test_world::*;
use crate::link::{LinkId, LinkKind};
use crate::paths::*;

use alloc::vec::Vec;

/// A world without connections, with the rates of both links in Mbit/s; marline's policy has the goal of energy.
fn world(policy: Policy, wifi: f64, lte: f64) -> World {
    let mut world = World::new(Config { policy, ..config() });
    world.set_rate(WIFI, wifi);
    world.set_rate(LTE, lte);
    world
}

#[test]
fn a_small_file_never_wakes_lte() {
    for policy in [Policy::Emptcp, Policy::EmptcpSettled, Policy::EmptcpTable, Policy::Marline] {
        for (wifi, lte) in [(2.0, 2.0), (2.0, 20.0), (16.0, 4.0), (20.0, 20.0)] {
            let mut world = world(policy, wifi, lte);
            world.open(1, WIFI, 262_144);
            world.finish(10.0);
            world.run(20.0);
            assert_eq!(world.join_count(LTE), 0, "{policy:?} {wifi} {lte}");
        }
    }
}

#[test]
fn with_good_wifi_and_bad_lte_the_energy_is_little_more_than_half_of_mptcps() {
    // With this model Wi-Fi alone, without any tail, needs 0.56 of it: 19.0 J of 33.6 J.
    let joules = |policy| {
        let mut world = world(policy, 16.0, 2.0);
        world.open(1, WIFI, 16 << 20);
        world.finish(60.0);
        world.joules()
    };
    let [mptcp, emptcp, marline] = [Policy::Mptcp, Policy::Emptcp, Policy::Marline].map(joules);
    assert!(marline <= 0.58 * mptcp && emptcp <= 0.58 * mptcp, "{marline} {emptcp} {mptcp}");
}

#[test]
fn another_link_joins_a_bad_initial_link_at_tau() {
    for policy in [Policy::Emptcp, Policy::Marline] {
        let mut world = world(policy, 0.8, 8.0);
        let conn = world.open(1, WIFI, 64 << 20);
        world.run(2.9);
        assert_eq!(world.join_count(LTE), 0, "{policy:?}");
        world.run(1.0);
        assert_eq!(world.join_count(LTE), 1, "{policy:?}");
        world.run(5.0);
        assert!(world.received(LTE) > 3_000_000);
        assert!(world.state(conn).contains("lte"), "{}", world.state(conn));
        assert_eq!(world.join_count(LTE), 1, "{policy:?}");
    }
}

#[test]
fn the_energy_of_an_upload_is_computed_with_the_power_of_sending() {
    // Huang 2012: a bit sent over LTE needs eight times the energy of one received, over Wi-Fi twice. The transfer
    // takes Wi-Fi 267 s and needs 44 J or 54 J there; over LTE, not measured yet, it needs 33 J or 58 J.
    let joins = |upload: bool| {
        let mut world = World::new(Config { energy: crate::energy::tests::huang(), ..config() });
        world.set_rate(WIFI, 0.24);
        world.set_rate(LTE, 5.0);
        world.uploads.extend(upload.then_some(ConnId(1)));
        world.open(1, WIFI, 64 << 20);
        world.run(20.0);
        assert!(world.received(WIFI) > 50_000, "{:?}", world.notes);
        world.join_count(LTE)
    };
    assert_eq!((joins(false), joins(true)), (1, 0));
}

#[test]
fn lte_is_released_when_wifi_is_good_again_and_used_again_when_it_is_bad() {
    // Published policies suspend it. marline's closes its subflow while the radio is awake, so that no FIN wakes it
    // at the end.
    for (policy, suspended) in [(Policy::Emptcp, 1), (Policy::EmptcpSettled, 1), (Policy::Marline, 0)] {
        let mut world = world(policy, 0.8, 8.0);
        let conn = world.open(1, WIFI, 1 << 30);
        world.run(10.0);
        world.set_rate(WIFI, 16.0);
        // marline's policy releases it only when so much data is expected that waking LTE once more pays off.
        world.run(if policy == Policy::Marline { 60.0 } else { 5.0 });
        assert_eq!(world.state(conn), "wifi only", "{policy:?} {:#?} {:?}", world.notes, world.commands);
        let before = world.received(LTE);
        world.run(20.0);
        assert_eq!((world.received(LTE), world.subflow_count(LTE)), (before, suspended), "{policy:?}");
        world.set_rate(WIFI, 0.8);
        world.run(4.0);
        assert!(world.received(LTE) > before, "{policy:?}");
        assert_eq!(world.join_count(LTE), 2 - suspended, "{policy:?}");
    }
}

#[test]
fn lte_stays_in_use_during_a_moment_of_good_wifi() {
    let mut world = world(Policy::Marline, 0.8, 8.0);
    let conn = world.open(1, WIFI, 1 << 30);
    world.run(8.0);
    world.set_rate(WIFI, 12.0);
    world.run(4.0);
    assert_eq!(world.state(conn), "wifi and lte", "{:#?}", world.notes);
    world.set_rate(WIFI, 0.8);
    world.run(15.0);
    assert_eq!(world.join_count(LTE), 1, "{:#?}", world.notes);
    // For this much data, the saving exceeds the cost of waking LTE once more.
    world.set_rate(WIFI, 16.0);
    world.run(60.0);
    assert_eq!(world.state(conn), "wifi only", "{:#?}", world.notes);
}

#[test]
fn only_the_policy_with_the_whole_table_uses_lte_alone_beside_very_slow_wifi() {
    // Table 2's first column: LTE alone below a seventh of its rate.
    for (policy, state) in [
        (Policy::Emptcp, "wifi and lte"),
        (Policy::EmptcpSettled, "wifi and lte"),
        (Policy::EmptcpTable, "lte only"),
    ] {
        let mut world = world(policy, 0.3, 4.0);
        let conn = world.open(1, WIFI, 1 << 30);
        world.run(15.0);
        assert_eq!(world.state(conn), state, "{policy:?} {:#?}", world.notes);
    }
}

#[test]
fn the_reason_names_all_links_in_use() {
    let third = |kind| LinkConfig { id: LinkId(2), name: "third".into(), kind, metered: false, budget: None };
    let reason = |world: &World, conn| world.paths.conn_status(conn).unwrap().reason;
    for policy in [Policy::Emptcp, Policy::EmptcpSettled, Policy::EmptcpTable] {
        // The energy model does not describe Ethernet, which counts as free and is used at once.
        let mut world = world(policy, 16.0, 8.0);
        world.handle(Input::LinkDown { link: LTE });
        world.handle(Input::LinkAdded { config: third(LinkKind::Ethernet) });
        world.handle(Input::LinkUp { link: LinkId(2) });
        let conn = world.open(1, WIFI, 400_000);
        world.run(0.1);
        assert_eq!(world.state(conn), "wifi and third", "{policy:?}");
        let expected = "wifi and third: the energy model does not describe third, which counts as free";
        assert_eq!(reason(&world, conn), expected, "{policy:?}");
        // LTE is not joined before κ or τ.
        world.handle(Input::LinkUp { link: LTE });
        world.run(0.05);
        let expected = "wifi and third: the transfer may end before another radio saves energy";
        assert_eq!(reason(&world, conn), expected, "{policy:?}");
    }
    // A link that is added while the connection is quiet is not joined. The two others stay in use.
    let mut world = world(Policy::Emptcp, 0.8, 8.0);
    let conn = world.open(1, WIFI, 1 << 30);
    world.run(10.0);
    assert_eq!(world.state(conn), "wifi and lte");
    world.stop(conn);
    world.run(0.5);
    world.handle(Input::LinkAdded { config: third(LinkKind::Lte) });
    world.handle(Input::LinkUp { link: LinkId(2) });
    assert!(reason(&world, conn).starts_with("wifi and lte: "), "{}", reason(&world, conn));
}

#[test]
fn the_goal_cost_without_an_unmetered_link_says_that_all_are_metered() {
    let mut config = Config { goal: Goal::Cost, ..config() };
    config.links.iter_mut().for_each(|link| link.metered = true);
    let mut world = World::new(config);
    [WIFI, LTE].into_iter().for_each(|link| world.set_rate(link, 4.0));
    let conn = world.open(1, WIFI, 64 << 20);
    world.run(5.0);
    let reason = world.paths.conn_status(conn).unwrap().reason;
    assert_eq!(reason, "wifi alone: every usable link is metered");
}

#[test]
fn the_literal_policy_decides_by_the_first_sample_and_the_settled_one_by_the_tenth() {
    // LTE turns out so slow that Wi-Fi alone is better.
    let suspended = |policy| {
        let mut world = world(policy, 0.8, 0.2);
        let conn = world.open(1, WIFI, 1 << 30);
        world.run(3.2);
        while world.state(conn) != "wifi only" || world.join_count(LTE) == 0 {
            world.run(0.1);
            assert!(world.now < Instant::from_millis(20_000), "{policy:?} {:#?}", world.notes);
        }
        world.now
    };
    assert!(suspended(Policy::Emptcp) < suspended(Policy::EmptcpSettled));
}

#[test]
fn a_dead_initial_link_is_replaced_within_three_seconds_and_used_again_later() {
    for idle_lte in [true, false] {
        let mut world = world(Policy::Marline, 16.0, 8.0);
        world.set_rtt(WIFI, 150);
        world.set_rtt(LTE, 150);
        if !idle_lte {
            world.set_rate(WIFI, 0.8);
        }
        let conn = world.open(1, WIFI, 1 << 30);
        world.run(10.0);
        world.set_rate(WIFI, 16.0);
        world.run(6.0);
        let before = world.received(LTE);
        world.unresponsive.insert(WIFI);
        world.run(3.0);
        assert!(world.received(LTE) > before, "{:?}", world.commands);
        world.unresponsive.clear();
        let before = world.received(WIFI);
        world.run(12.0);
        assert!(world.received(WIFI) > before, "{:#?} {:?}", world.notes, world.commands);
        world.run(40.0);
        assert_eq!(world.state(conn), "wifi only", "{:#?} {:?}", world.notes, world.commands);
    }
}

#[test]
fn the_path_of_a_pausing_application_is_probed_once_and_no_other_radio_is_woken() {
    let mut world = world(Policy::Marline, 16.0, 8.0);
    let conn = world.open(1, WIFI, 4 << 20);
    world.run(60.0);
    assert_eq!((world.join_count(LTE), world.join_count(WIFI)), (0, 1), "{:?}", world.commands);
    assert_eq!(world.state(conn), "idle");
    world.add_data(conn, 4 << 20);
    world.run(1.5);
    assert_eq!(world.state(conn), "wifi only");
}

#[test]
fn the_longer_the_initial_link_is_bad_the_less_often_it_is_reprobed() {
    let mut world = world(Policy::Marline, 0.8, 8.0);
    let conn = world.open(1, WIFI, 1 << 30);
    let mut reprobe_counts = Vec::new();
    for _ in 0..4 {
        world.commands.clear();
        world.run(30.0);
        let reprobes = |command: &Command| matches!(command, Command::SetBackup { backup: false, .. });
        reprobe_counts.push(world.commands.iter().filter(|(_, command)| reprobes(command)).count());
    }
    assert!(reprobe_counts[0] >= 4 && reprobe_counts[3] <= 2, "{reprobe_counts:?}");
    assert_eq!(world.state(conn), "lte only", "{:?}", world.notes);
    // Good again after two minutes: detected after at most a quarter of that time.
    world.set_rate(WIFI, 16.0);
    world.run(32.0);
    assert_eq!(world.state(conn), "wifi only", "{:?}", world.notes);
}
