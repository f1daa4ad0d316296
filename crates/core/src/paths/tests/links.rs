//! Links that come while it runs.

use super::world::*;
use crate::link::{LinkId, LinkKind};
use crate::paths::*;

const USB: LinkId = LinkId(2);

fn usb() -> LinkTerms {
    LinkTerms { link: USB, name: "usb".into(), kind: LinkKind::Nr, metered: false, budget: None }
}

#[test]
fn a_link_that_comes_later_is_joined_by_what_runs_and_by_what_comes() {
    for policy in [Policy::Mptcp, Policy::Emptcp, Policy::Marline] {
        let mut world = World::new(Config { policy, profile: Profile::Throughput, ..config() });
        [WIFI, LTE].into_iter().for_each(|link| world.rate(link, 4.0));
        world.rate(USB, 8.0);
        let first = world.open(1, WIFI, 1 << 30);
        world.run(10.0);
        world.tell(Input::LinkUp { link: USB });
        world.run(1.0);
        assert_eq!(world.joins(USB), 0, "{policy:?}: nobody has told of it");
        world.tell(Input::Link { terms: usb() });
        world.run(1.0);
        assert_eq!(world.joins(USB), 0, "{policy:?}: it is not up");
        world.tell(Input::LinkUp { link: USB });
        world.run(10.0);
        assert_eq!(world.joins(USB), 1, "{policy:?} {:?}", world.notes);
        assert!(world.received(USB) > 1_000_000, "{policy:?} {}", world.state(first));
        world.open(2, WIFI, 1 << 30);
        world.run(10.0);
        assert_eq!(world.joins(USB), 2, "{policy:?}");
        // Told of once more it is the same one, with what it carried.
        let before = world.received(USB);
        world.tell(Input::Link { terms: usb() });
        world.run(0.1);
        assert!(world.received(USB) >= before && world.paths.links().count() == 3);
        assert_eq!(world.joins(USB), 2);
    }
}

#[test]
fn what_went_and_came_back_is_joined_again() {
    let mut world = World::new(Config { profile: Profile::Throughput, ..config() });
    [WIFI, USB].into_iter().for_each(|link| world.rate(link, 8.0));
    world.tell(Input::LinkDown { link: LTE });
    world.tell(Input::Link { terms: usb() });
    world.tell(Input::LinkUp { link: USB });
    let conn = world.open(1, WIFI, 1 << 30);
    world.run(5.0);
    assert_eq!(world.subflows(USB), 1, "{:?}", world.notes);
    world.unplug(USB);
    world.run(5.0);
    assert_eq!(world.state(conn), "wifi only");
    let before = world.received(USB);
    world.tell(Input::Link { terms: usb() });
    world.tell(Input::LinkUp { link: USB });
    world.run(3.0);
    assert_eq!(world.joins(USB), 2, "{:?}", world.notes);
    assert!(world.received(USB) > before + 1_000_000, "{} {:?}", world.received(USB), world.notes);
}

#[test]
fn there_are_sixty_four_links_at_most() {
    let mut world = World::new(config());
    for number in 2..100 {
        let name = alloc::format!("usb{number}");
        world.tell(Input::Link { terms: LinkTerms { link: LinkId(number), name, ..usb() } });
        world.tell(Input::LinkUp { link: LinkId(number) });
    }
    world.rate(WIFI, 1.0);
    let conn = world.open(1, WIFI, 1 << 30);
    world.run(20.0);
    assert_eq!(world.paths.links().count(), 64);
    assert!(!world.state(conn).is_empty());
}

#[test]
fn a_tenth_helps_an_upload_whose_sender_keeps_queues_short() {
    for (short_queues, upload, left_out) in [(true, true, false), (false, true, true), (true, false, true)] {
        let mut world = World::new(Config { profile: Profile::Throughput, short_queues, ..config() });
        world.rate(WIFI, 20.0);
        world.rate(LTE, 2.0);
        world.uploads.extend(upload.then_some(ConnId(1)));
        world.open(1, WIFI, 64 << 20);
        world.run(2.0);
        let says = world.notes.iter().any(|note| note.contains("would hold it up"));
        assert_eq!(says, left_out, "{short_queues} {upload}: {:#?}", world.notes);
    }
}

#[test]
fn what_was_sent_over_a_link_that_is_lost_is_sent_again_at_once() {
    for (short_queues, ends) in [(true, 1), (false, 0)] {
        let mut world = World::new(Config { profile: Profile::Throughput, short_queues, ..config() });
        [WIFI, LTE].into_iter().for_each(|link| world.rate(link, 8.0));
        world.uploads.insert(ConnId(1));
        world.open(1, WIFI, 1 << 30);
        world.run(3.0);
        let before = world.commands.len();
        world.silent.insert(LTE);
        world.tell(Input::LinkDown { link: LTE });
        world.run(0.1);
        let destroys = |(_, command): &&(_, Command)| matches!(command, Command::Destroy { .. });
        assert_eq!(world.commands[before..].iter().filter(destroys).count(), ends, "{:#?}", world.commands);
        // The last one stays, whatever it is.
        world.tell(Input::LinkDown { link: WIFI });
        world.run(0.1);
        assert_eq!(world.subflows(WIFI), 1);
        world.silent.clear();
        [WIFI, LTE].into_iter().for_each(|link| world.tell(Input::LinkUp { link }));
        world.run(3.0);
        assert!(world.joins(LTE) > ends, "{:#?}", world.notes);
    }
}

#[test]
fn a_pause_is_no_slowness_of_what_a_relay_sends_and_is_of_an_upload() {
    for (short_queues, upload, left_out) in [(true, false, false), (true, true, true), (false, false, true)] {
        let mut world = World::new(Config { profile: Profile::Throughput, short_queues, ..config() });
        world.rate(WIFI, 10.0);
        world.rate(LTE, 8.0);
        world.uploads.extend(upload.then_some(ConnId(1)));
        world.open(1, WIFI, 64 << 20);
        world.run(5.0);
        world.rate(LTE, 0.0);
        world.run(1.2);
        let says = world.notes.iter().any(|note| note.contains("would hold it up"));
        assert_eq!(says, left_out, "{short_queues} {upload}: {:#?}", world.notes);
    }
}
