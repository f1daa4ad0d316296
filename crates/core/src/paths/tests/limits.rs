//! Effects of servers, budgets and lost packets: spent budgets, refused joins, announced addresses, lost
//! priorities.

use super::test_world::*;
use crate::link::LinkId;
use crate::paths::*;
use crate::units::{DataSize, Duration, Instant};

use alloc::vec::Vec;

/// A world without connections: budgets in bytes and rates in Mbit/s of Wi-Fi and LTE, of which LTE is metered.
fn world(policy: Policy, goal: Goal, budgets: [Option<u64>; 2], rates: [f64; 2]) -> World {
    let mut config = Config { policy, goal, ..config() };
    for (link_config, budget) in config.links.iter_mut().zip(budgets) {
        link_config.budget = budget.map(DataSize::from_bytes);
        link_config.metered = link_config.id == LTE;
    }
    let mut world = World::new(config);
    world.set_rate(WIFI, rates[0]);
    world.set_rate(LTE, rates[1]);
    world
}

fn has_note(world: &World, text: &str) -> bool {
    world.notes.iter().any(|note| note.contains(text))
}

fn joined_at(world: &World, link: LinkId) -> Vec<Instant> {
    let joins = world
        .commands
        .iter()
        .filter(|(_, command)| matches!(command, Command::Join { link: to, .. } if *to == link));
    joins.map(|(at, _)| *at).collect()
}

fn destroy_count(world: &World) -> usize {
    world.commands.iter().filter(|(_, command)| matches!(command, Command::Destroy { .. })).count()
}

#[test]
fn a_budget_is_never_exceeded_and_the_subflow_of_its_link_is_closed() {
    for policy in [Policy::Mptcp, Policy::WifiFirst, Policy::Emptcp, Policy::Marline] {
        for budget in [3_000_000, 6_000_000] {
            let mut world = world(policy, Goal::Energy, [None, Some(budget)], [0.8, 8.0]);
            world.open(1, WIFI, 8 << 20);
            let time = world.finish(200.0);
            assert!(time.is_finite(), "{policy:?}: the download must end over the other link");
            assert!(world.received(LTE) <= budget, "{policy:?}: {} of {budget}", world.received(LTE));
            if policy != Policy::WifiFirst {
                assert!(world.received(LTE) > budget / 3, "{policy:?}: {} of {budget}", world.received(LTE));
                assert_eq!(world.subflow_count(LTE), 0, "{policy:?}");
                assert!(has_note(&world, "the budget of lte is spent"), "{:?}", world.notes);
            }
        }
    }
}

#[test]
fn a_budget_counts_all_traffic_of_the_interface() {
    for policy in [Policy::Mptcp, Policy::Marline] {
        let mut world = world(policy, Goal::Energy, [None, Some(10_000_000)], [0.8, 8.0]);
        let traffic = |received, sent| Input::InterfaceCounters {
            link: LTE,
            received: DataSize::from_bytes(received),
            sent: DataSize::from_bytes(sent),
        };
        let left = |world: &World| world.paths.link_statuses().find_map(|link| link.budget_left).unwrap().bytes();
        // Traffic before the first reading does not count.
        world.handle(traffic(500_000_000, 70_000_000));
        assert_eq!(left(&world), 10_000_000);
        world.now += Duration::from_secs(1);
        world.handle(traffic(503_000_000, 70_100_000));
        assert_eq!(left(&world), 6_900_000);
        // The modem was unplugged and plugged in again: its counters restart, the budget does not.
        world.now += Duration::from_secs(1);
        world.handle(traffic(100_000, 100_000));
        assert_eq!(left(&world), 6_700_000);
        world.now += Duration::from_secs(1);
        world.handle(traffic(3_100_000, 600_000));
        assert_eq!(left(&world), 3_200_000, "counters that restart at zero count from zero");
        world.open(1, WIFI, 4 << 20);
        world.run(30.0);
        assert_eq!(
            (world.join_count(LTE), world.received(LTE)),
            (0, 0),
            "{policy:?}: the remaining budget is kept as a reserve"
        );
    }
}

#[test]
fn payload_is_not_charged_twice_to_a_budget() {
    let mut world = world(Policy::Mptcp, Goal::Energy, [None, Some(100_000_000)], [0.8, 8.0]);
    world.open(1, WIFI, 16 << 20);
    // The interface counts 5 % more because of headers.
    for _ in 0..10 {
        let received = DataSize::from_bytes(world.received(LTE) / 20 * 21);
        world.handle(Input::InterfaceCounters { link: LTE, received, sent: DataSize::ZERO });
        world.run(1.0);
    }
    let link = world.paths.link_statuses().find(|link| link.link == LTE).unwrap();
    let used = 100_000_000 - link.budget_left.unwrap().bytes();
    let carried = link.carried.bytes();
    assert!(carried > 5_000_000 && (carried..carried / 20 * 21 + 1000).contains(&used), "{used} {carried}");
}

#[test]
fn a_spent_budget_does_not_close_the_only_subflow_that_the_server_allows() {
    for policy in [Policy::Mptcp, Policy::Emptcp, Policy::Marline] {
        let mut world = world(policy, Goal::Energy, [Some(500_000), None], [8.0, 8.0]);
        world.refusing.insert(LTE);
        world.open(1, WIFI, 4 << 20);
        assert!(world.finish(60.0).is_finite(), "{policy:?} {:?}", world.commands);
        assert_eq!(destroy_count(&world), 0, "{policy:?} {:?}", world.commands);
        assert!(has_note(&world, "wifi: its budget is spent, and no other"), "{:?}", world.notes);
    }
}

#[test]
fn a_metered_link_helps_only_when_the_others_do_not_work() {
    let mut world = world(Policy::Marline, Goal::Cost, [None, None], [0.8, 20.0]);
    let conn = world.open(1, WIFI, 64 << 20);
    world.run(30.0);
    assert_eq!((world.join_count(LTE), world.received(LTE)), (0, 0), "{:?}", world.notes);
    world.unresponsive.insert(WIFI);
    world.run(5.0);
    assert!(world.received(LTE) > 1_000_000, "{:?} {:?}", world.notes, world.commands);
    world.unresponsive.clear();
    world.run(20.0);
    assert_eq!(world.state(conn), "wifi only", "{:?}", world.notes);
    let before = world.received(LTE);
    world.run(10.0);
    assert_eq!(world.received(LTE), before);
}

#[test]
fn a_link_is_unresponsive_from_a_failed_probe_until_data_is_received() {
    let mut world = world(Policy::Marline, Goal::Speed, [None, None], [8.0, 8.0]);
    world.open(1, WIFI, 1 << 30);
    let unresponsive =
        |world: &World| world.paths.link_statuses().map(|link| link.is_unresponsive).collect::<Vec<_>>();
    world.run(10.0);
    assert_eq!(unresponsive(&world), [false, false]);
    world.unresponsive.insert(WIFI);
    world.run(5.0);
    assert_eq!(unresponsive(&world), [true, false], "{:?}", world.notes);
    world.unresponsive.clear();
    world.run(20.0);
    assert_eq!(unresponsive(&world), [false, false], "{:?}", world.notes);
}

#[test]
fn a_server_that_accepts_only_announced_addresses_is_joined_after_an_announcement() {
    for policy in [Policy::Mptcp, Policy::Emptcp, Policy::Marline] {
        let mut world = world(policy, Goal::Energy, [None, None], [0.8, 8.0]);
        let conn = world.open_to(1, WIFI, 64 << 20, true);
        world.run(20.0);
        assert_eq!(world.join_count(LTE), 0, "{policy:?}");
        world.handle(Input::AddressAnnounced { conn });
        world.run(1.0);
        assert_eq!(world.join_count(LTE), 1, "{policy:?}");
        assert!(world.received(LTE) > 0, "{policy:?}");
    }
}

#[test]
fn a_refused_join_is_reported_and_repeated_at_growing_intervals() {
    for policy in [Policy::Mptcp, Policy::Emptcp, Policy::Marline] {
        let mut world = world(policy, Goal::Energy, [None, None], [0.8, 8.0]);
        world.refusing.insert(LTE);
        let conn = world.open(1, WIFI, 256 << 20);
        world.run(450.0);
        let at = joined_at(&world, LTE);
        let pauses: Vec<u64> = at.windows(2).map(|pair| pair[1].since(pair[0]).as_secs()).collect();
        assert!(matches!(pauses[..], [60..=62, 120..=122, 240..=242]), "{policy:?} {pauses:?}");
        assert!(has_note(&world, "the server refuses subflows over lte"), "{policy:?} {:?}", world.notes);
        assert_eq!(world.paths.conn_status(conn).unwrap().subflows.len(), 1, "{policy:?}");
    }
}

/// LTE helps bad Wi-Fi and is suspended, as published, once Wi-Fi is good; the first `lost` priorities that request
/// this do not arrive.
fn suspend_with_losses(lost: u32) -> (World, Vec<Instant>) {
    let mut world = world(Policy::EmptcpSettled, Goal::Energy, [None, None], [1.0, 4.0]);
    world.open(1, WIFI, 1 << 30);
    world.run(20.0);
    assert_eq!(world.join_count(LTE), 1, "{:?}", world.notes);
    world.commands.clear();
    (world.lost_priorities, world.lost_priorities_link) = (lost, Some(LTE));
    world.set_rate(WIFI, 16.0);
    world.run(15.0);
    let is_suspend = |command: &Command| matches!(command, Command::SetBackup { backup: true, .. });
    let requests = world.commands.iter().filter(|(_, command)| is_suspend(command)).map(|(at, _)| *at).collect();
    (world, requests)
}

#[test]
fn a_lost_priority_is_repeated_until_it_takes_effect() {
    for lost in 0..=5_u32 {
        let (mut world, requests) = suspend_with_losses(lost);
        assert_eq!(requests.len(), 1 + lost as usize, "{:?}", world.commands);
        for pair in requests.windows(2) {
            // Upper bound for each loss: 0.5 s and twice the drain that is predicted for 60 ms (180 ms).
            assert!(pair[1].since(pair[0]).as_millis() <= 860, "{requests:?}");
        }
        assert_eq!((destroy_count(&world), world.subflow_count(LTE)), (0, 1), "{:?}", world.commands);
        let before = world.received(LTE);
        world.run(10.0);
        assert_eq!(world.received(LTE), before);
    }
}

#[test]
fn a_subflow_whose_priorities_are_all_lost_is_destroyed_in_the_end() {
    let (mut world, requests) = suspend_with_losses(u32::MAX);
    assert_eq!(requests.len(), 6, "{:?}", world.commands);
    assert_eq!((destroy_count(&world), world.subflow_count(LTE)), (1, 0), "{:?}", world.commands);
    let before = world.received(LTE);
    world.run(10.0);
    assert_eq!(world.received(LTE), before);
}

#[test]
fn a_join_without_an_address_costs_no_energy_and_is_repeated_later() {
    for policy in [Policy::Mptcp, Policy::Emptcp, Policy::Marline] {
        let mut world = world(policy, Goal::Energy, [None, None], [0.8, 8.0]);
        world.refused_commands.insert(LTE, CommandError::NoAddress);
        world.open(1, WIFI, 64 << 20);
        world.run(60.0);
        let at = joined_at(&world, LTE);
        assert!(at.len() > 2, "{policy:?} {at:?}");
        assert!(at.windows(2).all(|pair| pair[1].since(pair[0]).as_secs() >= 15), "{policy:?} {at:?}");
        let breakdown = world.paths.energy_until_idle(world.now);
        assert!(breakdown.radio(LTE).is_none_or(|energy| energy.total().is_zero()), "{policy:?}");
    }
}

#[test]
fn a_link_of_another_address_family_is_joined_after_an_announcement_and_reported_before() {
    let mut world = world(Policy::Marline, Goal::Speed, [None, None], [2.0, 2.0]);
    world.refused_commands.insert(LTE, CommandError::NotAnnounced(IpFamily::V6));
    world.open(1, WIFI, 64 << 20);
    world.run(40.0);
    let last = |world: &World| world.notes.last().cloned().unwrap_or_default();
    assert_eq!(last(&world), "wifi: lte has only IPv6, and the server announced no IPv6 address");
    assert_eq!(joined_at(&world, LTE).len(), 1, "only an announcement makes a retry useful");

    world.refused_commands.insert(LTE, CommandError::SocketFamily(IpFamily::V6));
    world.handle(Input::AddressAnnounced { conn: ConnId(1) });
    world.run(40.0);
    assert_eq!(last(&world), "wifi: lte has only IPv6, and the program's socket is for IPv4 only");
    assert_eq!(joined_at(&world, LTE).len(), 2);

    // The link gets an IPv4 address as well.
    world.refused_commands.clear();
    world.handle(Input::LinkUp { link: LTE });
    world.run(5.0);
    assert_eq!(world.subflow_count(LTE), 1);
    assert!(last(&world).starts_with("wifi and lte: "), "{:?}", world.notes);
}

#[test]
fn a_join_without_response_is_reported_with_the_time_of_the_next_attempt() {
    let mut world = world(Policy::Mptcp, Goal::Energy, [None, None], [2.0, 2.0]);
    world.lost_joins = 2;
    world.open(1, WIFI, 8 << 20);
    world.run(15.0);
    let reports: Vec<usize> = world
        .notes
        .iter()
        .enumerate()
        .filter(|(_, note)| note.starts_with("join over lte: no response within 3 s; next attempt in "))
        .map(|(at, _)| at)
        .collect();
    let [first, second] = reports[..] else { panic!("{:#?}", world.notes) };
    assert!(world.notes[first].ends_with(" 2 s") && world.notes[second].ends_with(" 4 s"), "{:#?}", world.notes);
    // The newest note is the reason of the present state.
    assert!(world.notes[first + 1].starts_with("wifi: ") && world.notes.len() > second + 1, "{:#?}", world.notes);
}

#[test]
fn subflows_of_a_half_closed_connection_stay_because_they_cannot_be_replaced() {
    for half_closed in [false, true] {
        let mut world = world(Policy::Marline, Goal::Speed, [None, None], [4.0, 4.0]);
        world.open(1, WIFI, 1 << 40);
        world.run(10.0);
        assert!(world.subflow_count(LTE) == 1 && destroy_count(&world) == 0, "{:?}", world.commands);
        world.half_closed = half_closed;
        // The link would hold the other one up.
        world.set_rate(LTE, 0.02);
        world.run(60.0);
        let joins = joined_at(&world, LTE).len();
        assert!(destroy_count(&world) > 0, "{half_closed}: {:?}", world.commands);
        if half_closed {
            assert_eq!((destroy_count(&world), world.subflow_count(LTE)), (1, 1), "{:?}", world.commands);
            assert!(joins <= 2, "the second join only probes the link: {:?}", world.commands);
        }
        world.set_rate(LTE, 4.0);
        let before = world.received(LTE);
        world.run(60.0);
        assert!(world.received(LTE) > before + 1_000_000, "{half_closed}: {}", world.state(ConnId(1)));
    }
}

#[test]
fn a_half_closed_connection_is_not_joined_repeatedly_and_keeps_its_budget() {
    let begin = |half_closed| {
        let mut world = world(Policy::Marline, Goal::Speed, [None, Some(30_000_000)], [4.0, 4.0]);
        world.half_closed = half_closed;
        world.open(1, WIFI, 1 << 40);
        world
    };
    let mut world = begin(true);
    world.run(20.0);
    assert_eq!((joined_at(&world, LTE).len(), world.subflow_count(LTE)), (1, 0), "{:?}", world.commands);

    let mut world = begin(false);
    world.run(10.0);
    assert_eq!(world.subflow_count(LTE), 1);
    world.half_closed = true;
    world.run(100.0);
    assert_eq!((destroy_count(&world), world.subflow_count(LTE)), (2, 0), "{:?}", world.commands);
    assert!(world.received(LTE) <= 30_000_000);
}
