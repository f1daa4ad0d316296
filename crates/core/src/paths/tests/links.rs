//! Links that are added while the machine runs.

use super::test_world::*;
use crate::link::{LinkId, LinkKind};
use crate::paths::*;

const USB: LinkId = LinkId(2);

fn usb() -> LinkConfig {
    LinkConfig { id: USB, name: "usb".into(), kind: LinkKind::Nr, metered: false, budget: None }
}

#[test]
fn a_link_added_later_is_joined_by_existing_and_new_connections() {
    for policy in [Policy::Mptcp, Policy::Emptcp, Policy::Marline] {
        let mut world = World::new(Config { policy, goal: Goal::Speed, ..config() });
        [WIFI, LTE].into_iter().for_each(|link| world.set_rate(link, 4.0));
        world.set_rate(USB, 8.0);
        let first = world.open(1, WIFI, 1 << 30);
        world.run(10.0);
        world.handle(Input::LinkUp { link: USB });
        world.run(1.0);
        assert_eq!(world.join_count(USB), 0, "{policy:?}: it was not added yet");
        world.handle(Input::LinkAdded { config: usb() });
        world.run(1.0);
        assert_eq!(world.join_count(USB), 0, "{policy:?}: it is not up");
        world.handle(Input::LinkUp { link: USB });
        world.run(10.0);
        assert_eq!(world.join_count(USB), 1, "{policy:?} {:?}", world.notes);
        assert!(world.received(USB) > 1_000_000, "{policy:?} {}", world.state(first));
        world.open(2, WIFI, 1 << 30);
        world.run(10.0);
        assert_eq!(world.join_count(USB), 2, "{policy:?}");
        // Added once more, it is the same link with its earlier counters.
        let before = world.received(USB);
        world.handle(Input::LinkAdded { config: usb() });
        world.run(0.1);
        assert!(world.received(USB) >= before && world.paths.link_statuses().count() == 3);
        assert_eq!(world.join_count(USB), 2);
    }
}

#[test]
fn a_link_that_was_removed_and_added_again_is_joined_again() {
    let mut world = World::new(Config { goal: Goal::Speed, ..config() });
    [WIFI, USB].into_iter().for_each(|link| world.set_rate(link, 8.0));
    world.handle(Input::LinkDown { link: LTE });
    world.handle(Input::LinkAdded { config: usb() });
    world.handle(Input::LinkUp { link: USB });
    let conn = world.open(1, WIFI, 1 << 30);
    world.run(5.0);
    assert_eq!(world.subflow_count(USB), 1, "{:?}", world.notes);
    world.unplug(USB);
    world.run(5.0);
    assert_eq!(world.state(conn), "wifi only");
    let before = world.received(USB);
    world.handle(Input::LinkAdded { config: usb() });
    world.handle(Input::LinkUp { link: USB });
    world.run(3.0);
    assert_eq!(world.join_count(USB), 2, "{:?}", world.notes);
    assert!(world.received(USB) > before + 1_000_000, "{} {:?}", world.received(USB), world.notes);
}

#[test]
fn at_most_sixty_four_links_are_used() {
    let mut world = World::new(config());
    for number in 2..100 {
        let name = alloc::format!("usb{number}");
        world.handle(Input::LinkAdded { config: LinkConfig { id: LinkId(number), name, ..usb() } });
        world.handle(Input::LinkUp { link: LinkId(number) });
    }
    world.set_rate(WIFI, 1.0);
    let conn = world.open(1, WIFI, 1 << 30);
    world.run(20.0);
    assert_eq!(world.paths.link_statuses().count(), 64);
    assert!(!world.state(conn).is_empty());
}

#[test]
fn a_link_with_a_tenth_of_the_rate_helps_an_upload_with_short_queues() {
    for (short_queues, upload, left_out) in [(true, true, false), (false, true, true), (true, false, true)] {
        let mut world = World::new(Config { goal: Goal::Speed, short_queues, ..config() });
        world.set_rate(WIFI, 20.0);
        world.set_rate(LTE, 2.0);
        world.uploads.extend(upload.then_some(ConnId(1)));
        world.open(1, WIFI, 64 << 20);
        world.run(2.0);
        let has_note = world.notes.iter().any(|note| note.contains("would hold it up"));
        assert_eq!(has_note, left_out, "{short_queues} {upload}: {:#?}", world.notes);
    }
}

#[test]
fn an_upload_with_short_queues_destroys_the_subflow_of_a_lost_link_at_once() {
    for (short_queues, ends) in [(true, 1), (false, 0)] {
        let mut world = World::new(Config { goal: Goal::Speed, short_queues, ..config() });
        [WIFI, LTE].into_iter().for_each(|link| world.set_rate(link, 8.0));
        world.uploads.insert(ConnId(1));
        world.open(1, WIFI, 1 << 30);
        world.run(3.0);
        let before = world.commands.len();
        world.unresponsive.insert(LTE);
        world.handle(Input::LinkDown { link: LTE });
        world.run(0.1);
        let destroys = |(_, command): &&(_, Command)| matches!(command, Command::Destroy { .. });
        assert_eq!(world.commands[before..].iter().filter(destroys).count(), ends, "{:#?}", world.commands);
        // The last subflow always stays.
        world.handle(Input::LinkDown { link: WIFI });
        world.run(0.1);
        assert_eq!(world.subflow_count(WIFI), 1);
        world.unresponsive.clear();
        [WIFI, LTE].into_iter().for_each(|link| world.handle(Input::LinkUp { link }));
        world.run(3.0);
        assert!(world.join_count(LTE) > ends, "{:#?}", world.notes);
    }
}

#[test]
fn a_pause_makes_a_path_slow_for_an_upload_but_not_for_data_from_a_relay() {
    for (short_queues, upload, left_out) in [(true, false, false), (true, true, true), (false, false, true)] {
        let mut world = World::new(Config { goal: Goal::Speed, short_queues, ..config() });
        world.set_rate(WIFI, 10.0);
        world.set_rate(LTE, 8.0);
        world.uploads.extend(upload.then_some(ConnId(1)));
        world.open(1, WIFI, 64 << 20);
        world.run(5.0);
        world.set_rate(LTE, 0.0);
        world.run(1.2);
        let has_note = world.notes.iter().any(|note| note.contains("would hold it up"));
        assert_eq!(has_note, left_out, "{short_queues} {upload}: {:#?}", world.notes);
    }
}
