//! Links that lose full-sized packets while small ones pass, and situations that look similar.

use alloc::vec::Vec;

use super::test_world::*;
use crate::link::LinkId;
use crate::paths::black_hole::track_data_seq;
use crate::paths::subflow::Subflow;
use crate::paths::subflow_set::SubflowSet;
use crate::paths::traffic::Traffic;
use crate::paths::*;
use crate::units::{DataSize, Instant};

/// A connection with endless data that has just begun on Wi-Fi, with the goal of throughput; both links carry 4 Mbit/s.
/// `path_mtus`: links that lose packets larger than this many bytes; all others carry 1500.
fn world(upload: bool, path_mtus: &[(LinkId, u16)]) -> (World, ConnId) {
    let mut world = World::new(Config { goal: Goal::Speed, short_queues: upload, ..config() });
    [WIFI, LTE].into_iter().for_each(|link| world.set_rate(link, 4.0));
    world.path_mtus.extend(path_mtus.iter().copied());
    world.uploads.extend(upload.then_some(ConnId(1)));
    let conn = world.open(1, WIFI, 1 << 40);
    (world, conn)
}

/// Mbit/s that a link carries during the next second.
fn measured_mbps(world: &mut World, link: LinkId) -> f64 {
    let before = world.received(link);
    world.run(1.0);
    (world.received(link) - before) as f64 * 8.0 / 1e6
}

/// The MTUs that were requested.
fn requested_mtus(world: &World) -> Vec<Option<u16>> {
    world.mtu_steps.iter().map(|(_, mtu)| *mtu).collect()
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_within_two_seconds() {
    for (upload, reports_seq, small_passes) in
        [(true, true, false), (false, true, false), (false, true, true), (false, false, false)]
    {
        // The path MTU, the MTU that is found, and the seconds within which the link carries.
        for (most, mtu, time) in [(1428, 1280, 2.0), (1280, 1280, 2.0), (1100, 1024, 4.5)] {
            // For downloads without sequence numbers, only the first step is detected.
            if !upload && !reports_seq && most < 1280 {
                continue;
            }
            let (mut world, _) = world(upload, &[(LTE, most)]);
            (world.reports_seq, world.small_passes) = (reports_seq, small_passes);
            world.run(time);
            assert!(
                measured_mbps(&mut world, LTE) > 3.0,
                "{upload} {most} {:#?} {:?}",
                world.notes,
                world.commands
            );
            assert_eq!(world.mtus.get(&LTE), Some(&mtu), "{upload} {most}");
            world.run(20.0);
            assert!(
                measured_mbps(&mut world, LTE) > 3.0 && measured_mbps(&mut world, WIFI) > 3.0,
                "{:#?}",
                world.notes
            );
            assert!(world.join_count(LTE) <= 6 && world.subflow_count(LTE) == 1, "{:?}", world.commands);
            assert!(
                world.join_count(LTE) <= 1 + usize::from(upload) + world.mtu_steps.len(),
                "{:?}",
                world.commands
            );
            assert_eq!((world.mtus.len(), world.mtu_log.len()), (1, 1), "{:#?}", world.mtu_log);
            assert!(
                world.mtu_log[0].contains(&alloc::format!("lte: MTU of new subflows lowered from 1500 to {mtu}"))
            );
        }
    }
}

#[test]
fn a_lost_syn_does_not_end_the_mtu_trial() {
    let (mut world, _) = world(false, &[(LTE, 1400)]);
    while world.subflow_count(LTE) == 0 {
        world.run(0.1);
    }
    world.delayed_joins = 1;
    while world.mtu_steps.is_empty() {
        world.run(0.1);
    }
    world.run(2.5);
    assert!(measured_mbps(&mut world, LTE) > 3.0, "{:#?} {:?}", world.notes, world.commands);
    assert_eq!((requested_mtus(&world), world.mtu_log.len()), (alloc::vec![Some(1280); 2], 1));
    assert_eq!((world.join_count(LTE), world.subflow_count(LTE)), (2, 1), "{:?}", world.commands);
}

#[test]
fn the_only_link_is_joined_again_with_a_smaller_mtu() {
    let (mut world, _) = world(true, &[(WIFI, 1400)]);
    world.handle(Input::LinkDown { link: LTE });
    world.run(3.0);
    assert!(measured_mbps(&mut world, WIFI) > 3.0, "{:#?} {:?}", world.notes, world.commands);
    assert_eq!((world.subflow_count(WIFI), world.mtu_log.len()), (1, 1));
}

#[test]
fn the_new_subflow_replaces_the_old_one_if_the_server_refuses_a_second_one() {
    let (mut world, _) = world(false, &[(LTE, 1400)]);
    world.refuses_second = true;
    world.run(3.0);
    assert!(measured_mbps(&mut world, LTE) > 3.0, "{:#?} {:?}", world.notes, world.commands);
    assert_eq!((requested_mtus(&world), world.mtu_log.len()), (alloc::vec![Some(1280); 2], 1));
}

#[test]
fn a_trial_whose_join_fails_for_another_reason_keeps_the_old_subflow() {
    let (mut world, _) = world(false, &[(LTE, 1400)]);
    while world.subflow_count(LTE) == 0 {
        world.run(0.1);
    }
    world.refused_commands.insert(LTE, CommandError::NoAddress);
    world.run(5.0);
    assert_eq!(requested_mtus(&world), [Some(1280), None], "{:?}", world.commands);
    assert!(
        !world.commands.iter().any(|(_, what)| matches!(what, Command::Destroy { .. })),
        "{:?}",
        world.commands
    );
    assert_eq!((world.subflow_count(LTE), world.mtu_log.len()), (1, 0));
    world.refused_commands.clear();
    world.run(20.0);
    assert!(
        measured_mbps(&mut world, LTE) > 3.0 && world.mtus.len() == 1,
        "{:#?} {:?}",
        world.notes,
        world.commands
    );
}

#[test]
fn the_mtu_trial_of_a_half_closed_connection_ends_and_another_connection_may_start_one_at_once() {
    for upload in [false, true] {
        let (mut world, _) = world(upload, &[(LTE, 1428)]);
        world.half_closed = true;
        world.run(10.0);
        // An upload would start with a second subflow, which shows that small packets pass.
        let expected = if upload { alloc::vec![] } else { alloc::vec![Some(1280), None] };
        assert_eq!((requested_mtus(&world), world.mtus.get(&LTE)), (expected, None), "{upload}");
        world.half_closed = false;
        world.open(2, WIFI, 1 << 40);
        if upload {
            world.uploads.insert(ConnId(2));
        }
        world.run(4.0);
        assert_eq!(world.mtus.get(&LTE), Some(&1280), "{upload}: {:#?}", world.notes);
    }
}

#[test]
fn a_link_on_which_no_mtu_helps_is_left_out_and_its_mtu_is_restored() {
    let (mut world, _) = world(true, &[(LTE, 100)]);
    world.run(10.0);
    let joins = world.join_count(LTE);
    assert_eq!(requested_mtus(&world), [Some(1280), Some(1024), Some(576), None]);
    world.run(30.0);
    assert_eq!((world.subflow_count(LTE), world.join_count(LTE)), (0, joins), "{:#?}", world.notes);
    assert!(measured_mbps(&mut world, WIFI) > 3.0);
    world.run(300.0);
    // It is joined again from time to time, without further steps and without a note for each time.
    assert!(
        world.join_count(LTE) > joins && world.mtus.is_empty() && world.mtu_log.is_empty(),
        "{:#?}",
        world.mtu_log
    );
    let notes =
        world.notes.iter().filter(|note| note.contains("data over lte is lost even in packets of 576 bytes"));
    assert_eq!((notes.count(), world.mtu_steps.len()), (1, 4), "{:#?}", world.notes);
    world.run(400.0);
    assert!(world.mtu_steps.len() == 8 && world.mtus.is_empty(), "{:?}", world.mtu_steps);
}

#[test]
fn a_download_that_receives_nothing_at_all_keeps_the_mtu_of_its_link() {
    for reports_seq in [false, true] {
        let (mut world, conn) = world(false, &[(LTE, 100)]);
        world.reports_seq = reports_seq;
        world.run(600.0);
        assert!(world.mtu_steps.len() <= 16 && world.mtu_log.is_empty(), "{:?}", world.mtu_steps);
        world.stop(conn);
        world.run(30.0);
        assert!(world.mtus.is_empty() && world.mtu_log.is_empty(), "{:?} {:#?}", world.mtu_steps, world.mtu_log);
    }
}

#[test]
fn outages_alone_lower_no_mtu() {
    for upload in [false, true] {
        let (mut world, conn) = world(upload, &[]);
        world.run(5.0);
        for _ in 0..3 {
            world.unresponsive.insert(LTE);
            world.run(4.0);
            world.unresponsive.remove(&LTE);
            world.run(4.0);
        }
        world.stop(conn);
        world.run(10.0);
        assert!(world.mtu_steps.is_empty(), "{:?} {:#?}", world.mtu_steps, world.notes);
    }
}

#[test]
fn a_download_whose_sender_has_little_data_lowers_no_mtu() {
    for rate in [20_000.0, 100_000.0, 400_000.0] {
        let (mut world, conn) = world(false, &[]);
        world.rate_limits.insert(conn, rate);
        world.run(60.0);
        assert!(
            world.join_count(LTE) > 0 && world.mtu_steps.is_empty(),
            "{rate} {:?} {:?}",
            world.mtu_steps,
            world.commands
        );
    }
}

#[test]
fn a_download_whose_sender_pauses_lowers_no_mtu() {
    for reports_seq in [false, true] {
        let (mut world, conn) = world(false, &[]);
        world.reports_seq = reports_seq;
        world.stop(conn);
        world.rate_limits.insert(conn, 500_000.0);
        for _ in 0..60 {
            world.add_data(conn, 200_000);
            world.run(1.0);
        }
        assert!(world.mtu_steps.is_empty(), "{reports_seq} {:?}", world.mtu_steps);
    }
}

#[test]
fn without_sequence_numbers_a_step_for_a_sender_with_little_data_is_undone() {
    let (mut world, conn) = world(false, &[]);
    world.reports_seq = false;
    world.rate_limits.insert(conn, 100_000.0);
    world.run(600.0);
    assert!(world.mtus.is_empty() && world.mtu_log.is_empty(), "{:?} {:#?}", world.mtu_steps, world.mtu_log);
    assert!(world.mtu_steps.len() <= 16 && world.subflow_count(LTE) <= 1, "{:?}", world.mtu_steps);
    // Now the sender has enough data.
    world.rate_limits.clear();
    world.run(2.0);
    assert!(measured_mbps(&mut world, LTE) > 3.0 && world.mtu_log.is_empty(), "{:#?}", world.mtu_log);
}

#[test]
fn without_sequence_numbers_few_bytes_over_the_replacing_subflow_do_not_confirm_the_mtu() {
    let (mut world, conn) = world(false, &[]);
    (world.reports_seq, world.refuses_second) = (false, true);
    world.rate_limits.insert(conn, 100_000.0);
    while !world.commands.iter().any(|(_, command)| matches!(command, Command::Destroy { .. })) {
        world.run(0.1);
    }
    world.rate_limits.clear();
    world.stop(conn);
    world.run(1.0);
    let before = world.received(LTE);
    world.add_data(conn, 20_000);
    world.run(10.0);
    assert!(world.received(LTE) - before > 5000, "{:?}", world.commands);
    assert!(world.mtus.is_empty() && world.mtu_log.is_empty(), "{:?} {:#?}", world.mtu_steps, world.mtu_log);
}

#[test]
fn with_the_kernels_path_manager_downloads_are_not_examined() {
    let config = Config { goal: Goal::Speed, kernel_path_manager: true, ..config() };
    let mut world = World::new(config);
    [WIFI, LTE].into_iter().for_each(|link| world.set_rate(link, 4.0));
    world.reports_seq = false;
    let conn = world.open(1, WIFI, 1 << 40);
    world.rate_limits.insert(conn, 400_000.0);
    world.run(60.0);
    assert!(world.join_count(LTE) == 1 && world.mtu_steps.is_empty(), "{:?} {:?}", world.mtu_steps, world.commands);
}

#[test]
fn an_outage_that_ends_during_the_probe_lowers_no_mtu() {
    for outage_tenths in 1..=30 {
        let (mut world, _) = world(true, &[]);
        world.backs_off = true;
        world.unanswered = 100_000;
        world.run(5.0);
        world.unresponsive.insert(LTE);
        world.run(f64::from(outage_tenths) / 10.0);
        world.unresponsive.remove(&LTE);
        world.run(10.0);
        assert!(world.mtu_steps.is_empty(), "{outage_tenths} {:#?}", world.notes);
    }
}

#[test]
fn a_second_outage_shortly_after_the_first_lowers_no_mtu() {
    for upload in [false, true] {
        for (after, silent) in (1..=12).flat_map(|after| (1..=40).map(move |silent| (after, silent))) {
            let (mut world, _) = world(upload, &[]);
            world.backs_off = true;
            world.unanswered = 100_000;
            world.run(5.0);
            world.unplug(LTE);
            world.run(3.0);
            world.handle(Input::LinkUp { link: LTE });
            world.run(f64::from(after) / 20.0);
            world.unresponsive.insert(LTE);
            world.run(f64::from(silent) / 10.0);
            world.unresponsive.remove(&LTE);
            world.run(10.0);
            assert!(
                world.mtu_log.is_empty(),
                "{upload} {after} {silent} {:#?} {:?}",
                world.mtu_log,
                world.mtu_steps
            );
            assert!(!upload || world.mtu_steps.is_empty(), "{after} {silent} {:?}", world.mtu_steps);
        }
    }
}

#[test]
fn a_recovered_link_starts_with_the_interface_mtu() {
    let (mut world, _) = world(true, &[(LTE, 1400)]);
    world.run(5.0);
    assert_eq!(world.mtus.get(&LTE), Some(&1280));
    world.unplug(LTE);
    assert!(
        world.mtu_log.len() == 2 && world.mtu_log[1].contains("restored from 1280 to 1500"),
        "{:#?}",
        world.mtu_log
    );
    world.path_mtus.clear();
    world.run(2.0);
    world.handle(Input::LinkUp { link: LTE });
    world.run(2.0);
    assert!(measured_mbps(&mut world, LTE) > 3.0 && world.mtus.is_empty(), "{:#?}", world.notes);
}

#[test]
fn full_sized_packets_are_tried_again_after_ten_minutes() {
    for upload in [false, true] {
        for heals in [false, true] {
            let (mut world, conn) = world(upload, &[(LTE, 1400)]);
            world.run(590.0);
            assert_eq!(
                (requested_mtus(&world), world.mtu_log.len()),
                (alloc::vec![Some(1280); 2], 1),
                "{:#?}",
                world.mtu_log
            );
            let lowered = world.mtu_steps[0].0;
            if heals {
                world.path_mtus.clear();
            }
            world.run(15.0);
            assert_eq!((world.mtus.get(&LTE), world.mtu_log.len()), (None, 2), "{:#?}", world.mtu_log);
            assert!(world.mtu_log[1].contains("lte: MTU of new subflows restored from 1280 to 1500 bytes"));
            let restored: Vec<Instant> =
                world.mtu_steps.iter().filter(|step| step.1.is_none()).map(|step| step.0).collect();
            assert!(restored[0].since(lowered).as_secs() < 602);
            // Existing subflows continue.
            assert!(measured_mbps(&mut world, LTE) > 3.0);
            // A new connection detects whether the path has changed.
            world.close(conn);
            world.uploads.extend(upload.then_some(ConnId(2)));
            world.open(2, WIFI, 1 << 40);
            world.run(4.0);
            assert!(measured_mbps(&mut world, LTE) > 3.0, "{upload} {heals} {:#?}", world.notes);
            assert_eq!(world.mtus.get(&LTE), Some(&1280).filter(|_| !heals));
            assert_eq!(world.mtu_log.len(), if heals { 2 } else { 3 });
        }
    }
}

#[test]
fn ipv6_alone_has_no_smaller_mtu_than_1280() {
    let (mut world, _) = world(true, &[(LTE, 1100)]);
    world.handle(Input::Interface { link: LTE, mtu: 1500, has_ipv4: false });
    world.run(20.0);
    assert_eq!((requested_mtus(&world), world.subflow_count(LTE)), (alloc::vec![Some(1280), None], 0));
    for (mtu, v4, expected) in [(1280, false, &[][..]), (1280, true, &[Some(1024), Some(1024)])] {
        let (mut world, _) = self::world(true, &[(LTE, 1100)]);
        world.handle(Input::Interface { link: LTE, mtu, has_ipv4: v4 });
        world.run(20.0);
        assert_eq!(requested_mtus(&world), expected, "{mtu} {v4}");
    }
}

#[test]
fn one_log_line_per_link_whatever_the_number_of_connections() {
    for upload in [false, true] {
        let (mut world, _) = world(upload, &[(LTE, 1400)]);
        for token in 2..12 {
            world.uploads.extend(upload.then_some(ConnId(token)));
            world.open(token, WIFI, 1 << 40);
        }
        world.run(20.0);
        assert_eq!(world.mtu_log.len(), 1, "{:#?}", world.mtu_log);
        assert!(measured_mbps(&mut world, LTE) > 3.0 && world.subflow_count(LTE) == 11, "{:?}", world.commands);
    }
}

#[test]
fn a_confirmed_mtu_outlives_the_failed_trial_of_a_smaller_one() {
    for upload in [false, true] {
        let (mut world, conn) = world(upload, &[(LTE, 1400)]);
        world.run(30.0);
        assert_eq!((requested_mtus(&world), world.mtu_log.len()), (alloc::vec![Some(1280); 2], 1));
        let lowered = world.mtu_steps[0].0;
        world.close(conn);
        // Another connection receives nothing at all.
        world.path_mtus.insert(LTE, 100);
        world.uploads.extend(upload.then_some(ConnId(2)));
        let other = world.open(2, WIFI, 1 << 40);
        world.run(15.0);
        assert!(requested_mtus(&world).contains(&Some(1024)), "{upload} {:?}", world.mtu_steps);
        world.close(other);
        world.path_mtus.insert(LTE, 1400);
        world.run(8.0);
        assert_eq!((world.mtus.get(&LTE), world.mtu_log.len()), (Some(&1280), 1), "{upload} {:#?}", world.mtu_log);
        world.uploads.extend(upload.then_some(ConnId(3)));
        world.open(3, WIFI, 1 << 40);
        world.run(3.0);
        assert!(measured_mbps(&mut world, LTE) > 3.0, "{upload} {:#?}", world.notes);
        while world.mtu_log.len() < 2 && world.now.since(lowered).as_secs() < 610 {
            world.run(1.0);
        }
        assert!(world.mtu_log[1].contains("restored from 1280 to 1500"), "{upload} {:#?}", world.mtu_log);
        assert!(world.now.since(lowered).as_secs().abs_diff(602) < 3, "{:?}", world.now.since(lowered));
    }
}

#[test]
fn data_that_another_subflow_has_yet_to_deliver_does_not_count_as_missing() {
    let mut subflows = SubflowSet::new(ConnId(1), 3, Instant::ZERO);
    let mut traffic = Traffic::new(Instant::ZERO);
    for id in 0..3 {
        let subflow =
            EstablishedSubflow { id: SubflowId(id), link: None, initial: id == 0, backup: false, rtt: None };
        subflows.all.push(Subflow::new(&subflow, Some(id as usize), Instant::ZERO));
    }
    let size = DataSize::from_bytes;
    let mut is_missing = |ms, first: [u64; 2], second: [u64; 2]| {
        let now = Instant::from_millis(ms);
        for (id, [received, reached]) in [(0, first), (1, second)] {
            let (received, reached) = (size(received), Some(size(reached)));
            let counters = Counters { received, data_seq: reached, ..Counters::default() };
            let moved = subflows.get_mut(SubflowId(id)).unwrap().on_counters(now, counters, false);
            traffic.on_bytes(&moved);
        }
        track_data_seq(&mut subflows, traffic.received, now);
        subflows.all[2].missing_since.is_some()
    };
    assert!(!is_missing(100, [100_000, 150_000], [50_000, 145_000]), "the third subflow was just established");
    assert!(!is_missing(200, [130_000, 200_000], [50_000, 145_000]), "the second subflow is 20 kB behind");
    assert!(!is_missing(300, [130_000, 200_000], [70_000, 190_000]));
    assert!(!is_missing(400, [150_000, 249_000], [90_000, 200_000]), "the second subflow is 9 kB behind");
    assert!(
        is_missing(500, [150_000, 249_000], [91_000, 250_000]),
        "8 kB were delivered by neither of the two, and both have passed them"
    );
}
