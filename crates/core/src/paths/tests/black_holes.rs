//! Links whose full-sized packets vanish while small ones pass.

use super::world::*;
use crate::link::LinkId;
use crate::paths::*;

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

#[test]
fn a_link_with_a_smaller_path_mtu_carries_within_two_seconds() {
    for upload in [false, true] {
        for (most, mtu, time) in [(1428, 1280, 2.1), (1280, 1280, 2.1), (1100, 1024, 4.5)] {
            // Of what the other end sends, only the first step is found.
            if !upload && most < 1280 {
                continue;
            }
            let (mut world, _) = world(upload, &[(LTE, most)]);
            world.run(time);
            assert!(carries(&mut world, LTE) > 3.0, "{upload} {most} {:#?} {:?}", world.notes, world.commands);
            assert_eq!(world.mtus.get(&LTE), Some(&mtu), "{upload} {most}");
            world.run(20.0);
            assert!(carries(&mut world, LTE) > 3.0 && carries(&mut world, WIFI) > 3.0, "{:#?}", world.notes);
            assert!(world.joins(LTE) <= 6, "{:?}", world.commands);
            assert_eq!(world.mtus.len(), 1);
        }
    }
}

#[test]
fn the_only_link_is_joined_again_with_a_smaller_mtu() {
    let (mut world, _) = world(true, &[(WIFI, 1400)]);
    world.tell(Input::LinkDown { link: LTE });
    world.run(3.0);
    assert!(carries(&mut world, WIFI) > 3.0, "{:#?} {:?}", world.notes, world.commands);
}

#[test]
fn a_link_on_which_no_mtu_helps_is_left_out() {
    let (mut world, _) = world(true, &[(LTE, 100)]);
    world.run(10.0);
    let joins = world.joins(LTE);
    world.run(30.0);
    assert_eq!((world.subflows(LTE), world.joins(LTE)), (0, joins), "{:#?}", world.notes);
    assert!(carries(&mut world, WIFI) > 3.0);
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
        assert!(world.mtus.is_empty(), "{:#?}", world.notes);
    }
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
        assert!(world.mtus.is_empty(), "{silent} {:#?}", world.notes);
    }
}

#[test]
fn a_link_that_returns_begins_with_its_own_mtu() {
    let (mut world, _) = world(true, &[(LTE, 1400)]);
    world.run(5.0);
    assert_eq!(world.mtus.remove(&LTE), Some(1280));
    world.unplug(LTE);
    world.path_mtus.clear();
    world.run(2.0);
    world.tell(Input::LinkUp { link: LTE });
    world.run(2.0);
    assert!(carries(&mut world, LTE) > 3.0 && world.mtus.is_empty(), "{:#?}", world.notes);
}
