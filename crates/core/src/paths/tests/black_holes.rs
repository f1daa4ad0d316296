//! Links whose full-sized packets vanish while small ones pass, and what looks like it.

use alloc::vec::Vec;

use super::world::*;
use crate::link::LinkId;
use crate::paths::conn::Conn;
use crate::paths::subflow::Sub;
use crate::paths::*;
use crate::units::{DataSize, Instant};

fn world(upload: bool, path_mtus: &[(LinkId, u16)]) -> (World, ConnId) {
    let mut world = World::new(Config { profile: Profile::Throughput, short_queues: upload, ..config() });
    [WIFI, LTE].into_iter().for_each(|link| world.rate(link, 4.0));
    world.path_mtus.extend(path_mtus.iter().copied());
    world.uploads.extend(upload.then_some(ConnId(1)));
    let conn = world.open(1, WIFI, 1 << 40);
    (world, conn)
}

fn carries(world: &mut World, link: LinkId) -> f64 {
    let before = world.received(link);
    world.run(1.0);
    (world.received(link) - before) as f64 * 8.0 / 1e6
}

/// The MTUs that were asked for.
fn steps(world: &World) -> Vec<Option<u16>> {
    world.steps.iter().map(|(_, mtu)| *mtu).collect()
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_within_two_seconds() {
    for (upload, reports_seq, small_passes) in
        [(true, true, false), (false, true, false), (false, true, true), (false, false, false)]
    {
        for (most, mtu, time) in [(1428, 1280, 2.0), (1280, 1280, 2.0), (1100, 1024, 4.5)] {
            // Without sequence numbers only the first step is found of what the peer sends.
            if !upload && !reports_seq && most < 1280 {
                continue;
            }
            let (mut world, _) = world(upload, &[(LTE, most)]);
            (world.reports_seq, world.small_passes) = (reports_seq, small_passes);
            world.run(time);
            assert!(carries(&mut world, LTE) > 3.0, "{upload} {most} {:#?} {:?}", world.notes, world.commands);
            assert_eq!(world.mtus.get(&LTE), Some(&mtu), "{upload} {most}");
            world.run(20.0);
            assert!(carries(&mut world, LTE) > 3.0 && carries(&mut world, WIFI) > 3.0, "{:#?}", world.notes);
            assert!(world.joins(LTE) <= 6 && world.subflows(LTE) == 1, "{:?}", world.commands);
            assert!(world.joins(LTE) <= 1 + usize::from(upload) + world.steps.len(), "{:?}", world.commands);
            assert_eq!((world.mtus.len(), world.lines.len()), (1, 1), "{:#?}", world.lines);
            assert!(
                world.lines[0].contains(&alloc::format!("lte: MTU of new subflows lowered from 1500 to {mtu}"))
            );
        }
    }
}

#[test]
fn a_lost_syn_does_not_end_the_trial() {
    let (mut world, _) = world(false, &[(LTE, 1400)]);
    while world.subflows(LTE) == 0 {
        world.run(0.1);
    }
    world.delay_joins = 1;
    while world.steps.is_empty() {
        world.run(0.1);
    }
    world.run(2.5);
    assert!(carries(&mut world, LTE) > 3.0, "{:#?} {:?}", world.notes, world.commands);
    assert_eq!((steps(&world), world.lines.len()), (alloc::vec![Some(1280); 2], 1));
    assert_eq!((world.joins(LTE), world.subflows(LTE)), (2, 1), "{:?}", world.commands);
}

#[test]
fn the_only_link_is_joined_again_with_a_smaller_mtu() {
    let (mut world, _) = world(true, &[(WIFI, 1400)]);
    world.tell(Input::LinkDown { link: LTE });
    world.run(3.0);
    assert!(carries(&mut world, WIFI) > 3.0, "{:#?} {:?}", world.notes, world.commands);
    assert_eq!((world.subflows(WIFI), world.lines.len()), (1, 1));
}

#[test]
fn a_server_that_refuses_a_second_subflow_gets_the_new_one_in_place_of_the_old_one() {
    let (mut world, _) = world(false, &[(LTE, 1400)]);
    world.refuse_second = true;
    world.run(3.0);
    assert!(carries(&mut world, LTE) > 3.0, "{:#?} {:?}", world.notes, world.commands);
    assert_eq!((steps(&world), world.lines.len()), (alloc::vec![Some(1280); 2], 1));
}

#[test]
fn a_trial_whose_join_is_refused_for_another_reason_leaves_the_old_subflow() {
    let (mut world, _) = world(false, &[(LTE, 1400)]);
    while world.subflows(LTE) == 0 {
        world.run(0.1);
    }
    world.refuses.insert(LTE, Refusal::NoAddress);
    world.run(5.0);
    assert_eq!(steps(&world), [Some(1280), None], "{:?}", world.commands);
    assert!(
        !world.commands.iter().any(|(_, what)| matches!(what, Command::Destroy { .. })),
        "{:?}",
        world.commands
    );
    assert_eq!((world.subflows(LTE), world.lines.len()), (1, 0));
    world.refuses.clear();
    world.run(20.0);
    assert!(carries(&mut world, LTE) > 3.0 && world.mtus.len() == 1, "{:#?} {:?}", world.notes, world.commands);
}

#[test]
fn the_trial_of_a_half_closed_connection_is_abandoned_and_another_one_begins_at_once() {
    for upload in [false, true] {
        let (mut world, _) = world(upload, &[(LTE, 1428)]);
        world.half_closed = true;
        world.run(10.0);
        // An upload would begin with a second subflow, which shows that small packets pass.
        let expected = if upload { alloc::vec![] } else { alloc::vec![Some(1280), None] };
        assert_eq!((steps(&world), world.mtus.get(&LTE)), (expected, None), "{upload}");
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
    let joins = world.joins(LTE);
    assert_eq!(steps(&world), [Some(1280), Some(1024), Some(576), None]);
    world.run(30.0);
    assert_eq!((world.subflows(LTE), world.joins(LTE)), (0, joins), "{:#?}", world.notes);
    assert!(carries(&mut world, WIFI) > 3.0);
    world.run(300.0);
    // It is joined again from time to time, without further steps and without a note for each time.
    assert!(world.joins(LTE) > joins && world.mtus.is_empty() && world.lines.is_empty(), "{:#?}", world.lines);
    let notes =
        world.notes.iter().filter(|note| note.contains("data over lte is lost even in packets of 576 bytes"));
    assert_eq!((notes.count(), world.steps.len()), (1, 4), "{:#?}", world.notes);
    world.run(400.0);
    assert!(world.steps.len() == 8 && world.mtus.is_empty(), "{:?}", world.steps);
}

#[test]
fn a_download_of_which_nothing_passes_keeps_the_mtu_of_its_link() {
    for reports_seq in [false, true] {
        let (mut world, conn) = world(false, &[(LTE, 100)]);
        world.reports_seq = reports_seq;
        world.run(600.0);
        assert!(world.steps.len() <= 16 && world.lines.is_empty(), "{:?}", world.steps);
        world.stop(conn);
        world.run(30.0);
        assert!(world.mtus.is_empty() && world.lines.is_empty(), "{:?} {:#?}", world.steps, world.lines);
    }
}

#[test]
fn packets_of_any_size_pass_and_no_mtu_is_lowered() {
    for upload in [false, true] {
        let (mut world, conn) = world(upload, &[]);
        world.run(5.0);
        for _ in 0..3 {
            world.silent.insert(LTE);
            world.run(4.0);
            world.silent.remove(&LTE);
            world.run(4.0);
        }
        world.stop(conn);
        world.run(10.0);
        assert!(world.steps.is_empty(), "{:?} {:#?}", world.steps, world.notes);
    }
}

#[test]
fn a_download_whose_sender_has_little_to_send_lowers_no_mtu() {
    for rate in [20_000.0, 100_000.0, 400_000.0] {
        let (mut world, conn) = world(false, &[]);
        world.limited.insert(conn, rate);
        world.run(60.0);
        assert!(world.joins(LTE) > 0 && world.steps.is_empty(), "{rate} {:?} {:?}", world.steps, world.commands);
    }
}

#[test]
fn a_download_whose_sender_pauses_lowers_no_mtu() {
    for reports_seq in [false, true] {
        let (mut world, conn) = world(false, &[]);
        world.reports_seq = reports_seq;
        world.stop(conn);
        world.limited.insert(conn, 500_000.0);
        for _ in 0..60 {
            world.more(conn, 200_000);
            world.run(1.0);
        }
        assert!(world.steps.is_empty(), "{reports_seq} {:?}", world.steps);
    }
}

#[test]
fn without_sequence_numbers_a_step_for_a_sender_with_little_to_send_is_undone() {
    let (mut world, conn) = world(false, &[]);
    world.reports_seq = false;
    world.limited.insert(conn, 100_000.0);
    world.run(600.0);
    assert!(world.mtus.is_empty() && world.lines.is_empty(), "{:?} {:#?}", world.steps, world.lines);
    assert!(world.steps.len() <= 16 && world.subflows(LTE) <= 1, "{:?}", world.steps);
    // It has something to send now.
    world.limited.clear();
    world.run(2.0);
    assert!(carries(&mut world, LTE) > 3.0 && world.lines.is_empty(), "{:#?}", world.lines);
}

#[test]
fn without_sequence_numbers_a_little_over_what_replaced_the_old_subflow_confirms_nothing() {
    let (mut world, conn) = world(false, &[]);
    (world.reports_seq, world.refuse_second) = (false, true);
    world.limited.insert(conn, 100_000.0);
    while !world.commands.iter().any(|(_, what)| matches!(what, Command::Destroy { .. })) {
        world.run(0.1);
    }
    world.limited.clear();
    world.stop(conn);
    world.run(1.0);
    let before = world.received(LTE);
    world.more(conn, 20_000);
    world.run(10.0);
    assert!(world.received(LTE) - before > 5000, "{:?}", world.commands);
    assert!(world.mtus.is_empty() && world.lines.is_empty(), "{:?} {:#?}", world.steps, world.lines);
}

#[test]
fn where_all_connections_are_steered_as_one_downloads_are_not_examined() {
    let config = Config { profile: Profile::Throughput, as_one: true, ..config() };
    let mut world = World::new(config);
    [WIFI, LTE].into_iter().for_each(|link| world.rate(link, 4.0));
    world.reports_seq = false;
    let conn = world.open(1, WIFI, 1 << 40);
    world.limited.insert(conn, 400_000.0);
    world.run(60.0);
    assert!(world.joins(LTE) == 1 && world.steps.is_empty(), "{:?} {:?}", world.steps, world.commands);
}

#[test]
fn a_link_that_was_silent_until_it_was_proved_has_no_smaller_mtu() {
    for silent in 1..=30 {
        let (mut world, _) = world(true, &[]);
        world.backs_off = true;
        world.unanswered = 100_000;
        world.run(5.0);
        world.silent.insert(LTE);
        world.run(f64::from(silent) / 10.0);
        world.silent.remove(&LTE);
        world.run(10.0);
        assert!(world.steps.is_empty(), "{silent} {:#?}", world.notes);
    }
}

#[test]
fn a_link_that_returns_and_falls_silent_once_more_has_no_smaller_mtu() {
    for upload in [false, true] {
        for (after, silent) in (1..=12).flat_map(|after| (1..=40).map(move |silent| (after, silent))) {
            let (mut world, _) = world(upload, &[]);
            world.backs_off = true;
            world.unanswered = 100_000;
            world.run(5.0);
            world.unplug(LTE);
            world.run(3.0);
            world.tell(Input::LinkUp { link: LTE });
            world.run(f64::from(after) / 20.0);
            world.silent.insert(LTE);
            world.run(f64::from(silent) / 10.0);
            world.silent.remove(&LTE);
            world.run(10.0);
            assert!(world.lines.is_empty(), "{upload} {after} {silent} {:#?} {:?}", world.lines, world.steps);
            assert!(!upload || world.steps.is_empty(), "{after} {silent} {:?}", world.steps);
        }
    }
}

#[test]
fn a_link_that_returns_begins_with_its_own_mtu() {
    let (mut world, _) = world(true, &[(LTE, 1400)]);
    world.run(5.0);
    assert_eq!(world.mtus.get(&LTE), Some(&1280));
    world.unplug(LTE);
    assert!(world.lines.len() == 2 && world.lines[1].contains("restored from 1280 to 1500"), "{:#?}", world.lines);
    world.path_mtus.clear();
    world.run(2.0);
    world.tell(Input::LinkUp { link: LTE });
    world.run(2.0);
    assert!(carries(&mut world, LTE) > 3.0 && world.mtus.is_empty(), "{:#?}", world.notes);
}

#[test]
fn full_sized_packets_are_tried_again_after_ten_minutes() {
    for upload in [false, true] {
        for heals in [false, true] {
            let (mut world, conn) = world(upload, &[(LTE, 1400)]);
            world.run(590.0);
            assert_eq!((steps(&world), world.lines.len()), (alloc::vec![Some(1280); 2], 1), "{:#?}", world.lines);
            let lowered = world.steps[0].0;
            if heals {
                world.path_mtus.clear();
            }
            world.run(15.0);
            assert_eq!((world.mtus.get(&LTE), world.lines.len()), (None, 2), "{:#?}", world.lines);
            assert!(world.lines[1].contains("lte: MTU of new subflows restored from 1280 to 1500 bytes"));
            let restored: Vec<Instant> =
                world.steps.iter().filter(|step| step.1.is_none()).map(|step| step.0).collect();
            assert!(restored[0].since(lowered).as_secs() < 602);
            // What runs goes on.
            assert!(carries(&mut world, LTE) > 3.0);
            // What begins finds out.
            world.close(conn);
            world.uploads.extend(upload.then_some(ConnId(2)));
            world.open(2, WIFI, 1 << 40);
            world.run(4.0);
            assert!(carries(&mut world, LTE) > 3.0, "{upload} {heals} {:#?}", world.notes);
            assert_eq!(world.mtus.get(&LTE), Some(&1280).filter(|_| !heals));
            assert_eq!(world.lines.len(), if heals { 2 } else { 3 });
        }
    }
}

#[test]
fn ipv6_alone_has_no_smaller_mtu_than_1280() {
    let (mut world, _) = world(true, &[(LTE, 1100)]);
    world.tell(Input::Interface { link: LTE, mtu: 1500, v4: false });
    world.run(20.0);
    assert_eq!((steps(&world), world.subflows(LTE)), (alloc::vec![Some(1280), None], 0));
    for (mtu, v4, expected) in [(1280, false, &[][..]), (1280, true, &[Some(1024), Some(1024)])] {
        let (mut world, _) = self::world(true, &[(LTE, 1100)]);
        world.tell(Input::Interface { link: LTE, mtu, v4 });
        world.run(20.0);
        assert_eq!(steps(&world), expected, "{mtu} {v4}");
    }
}

#[test]
fn one_line_for_each_link_whatever_the_number_of_connections() {
    for upload in [false, true] {
        let (mut world, _) = world(upload, &[(LTE, 1400)]);
        for token in 2..12 {
            world.uploads.extend(upload.then_some(ConnId(token)));
            world.open(token, WIFI, 1 << 40);
        }
        world.run(20.0);
        assert_eq!(world.lines.len(), 1, "{:#?}", world.lines);
        assert!(carries(&mut world, LTE) > 3.0 && world.subflows(LTE) == 11, "{:?}", world.commands);
    }
}

#[test]
fn a_confirmed_mtu_outlives_the_failed_trial_of_a_smaller_one() {
    for upload in [false, true] {
        let (mut world, conn) = world(upload, &[(LTE, 1400)]);
        world.run(30.0);
        assert_eq!((steps(&world), world.lines.len()), (alloc::vec![Some(1280); 2], 1));
        let lowered = world.steps[0].0;
        world.close(conn);
        // Of another connection nothing passes.
        world.path_mtus.insert(LTE, 100);
        world.uploads.extend(upload.then_some(ConnId(2)));
        let other = world.open(2, WIFI, 1 << 40);
        world.run(15.0);
        assert!(steps(&world).contains(&Some(1024)), "{upload} {:?}", world.steps);
        world.close(other);
        world.path_mtus.insert(LTE, 1400);
        world.run(8.0);
        assert_eq!((world.mtus.get(&LTE), world.lines.len()), (Some(&1280), 1), "{upload} {:#?}", world.lines);
        world.uploads.extend(upload.then_some(ConnId(3)));
        world.open(3, WIFI, 1 << 40);
        world.run(3.0);
        assert!(carries(&mut world, LTE) > 3.0, "{upload} {:#?}", world.notes);
        while world.lines.len() < 2 && world.now.since(lowered).as_secs() < 610 {
            world.run(1.0);
        }
        assert!(world.lines[1].contains("restored from 1280 to 1500"), "{upload} {:#?}", world.lines);
        assert!(world.now.since(lowered).as_secs().abs_diff(602) < 3, "{:?}", world.now.since(lowered));
    }
}

#[test]
fn what_one_of_two_other_subflows_has_yet_to_deliver_is_not_charged_to_a_third() {
    let mut conn = Conn::new(ConnId(1), 3, Instant::ZERO);
    for id in 0..3 {
        let subflow = Subflow { id: SubflowId(id), link: None, initial: id == 0, backup: false, rtt: None };
        conn.subs.push(Sub::new(&subflow, Some(id as usize), Instant::ZERO));
    }
    let size = DataSize::from_bytes;
    let mut given = |ms, first: [u64; 2], second: [u64; 2]| {
        let now = Instant::from_millis(ms);
        for (id, [received, reached]) in [(0, first), (1, second)] {
            let (received, reached) = (size(received), Some(size(reached)));
            let counters = Counters { received, reached, ..Counters::default() };
            let moved = conn.sub_mut(SubflowId(id)).unwrap().on_seen(now, counters, false);
            conn.on_moved(&moved);
        }
        conn.on_reached(now);
        conn.subs[2].given.is_some()
    };
    assert!(!given(100, [100_000, 150_000], [50_000, 145_000]), "the third one has just come up");
    assert!(!given(200, [130_000, 200_000], [50_000, 145_000]), "the second one is 20 kB behind");
    assert!(!given(300, [130_000, 200_000], [70_000, 190_000]));
    assert!(!given(400, [150_000, 249_000], [90_000, 200_000]), "it is 9 kB behind");
    assert!(
        given(500, [150_000, 249_000], [91_000, 250_000]),
        "neither of both has delivered 8 kB, and both are beyond"
    );
}
