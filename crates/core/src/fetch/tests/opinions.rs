//! Which of several answers is believed (rules of `super::super::opinions`).

use super::*;
use crate::fetch::Ban;

const SIZE: u64 = 3_000_000;
const PAGE: u64 = 4000;
const TAG: Option<&str> = Some("\"v1\"");
const C: LinkId = LinkId(2);

fn bytes(n: u64) -> Option<DataSize> {
    Some(DataSize::from_bytes(n))
}

/// The one answer over `link` begins and breaks off; the next one is asked for on the same connection or a new one.
fn breaks_off(desk: &mut Desk, link: LinkId, length: u64, etag: Option<&str>) {
    desk.connect(link, 5);
    let req = desk.first(link);
    desk.whole(req, Some(length), etag);
    desk.bytes(req, 1000);
    desk.end(req);
    assert_eq!(desk.restarts, 1);
}

#[test]
fn of_three_links_two_that_say_the_same_are_believed() {
    let mut desk = Desk::two(Config::default());
    desk.link(C, LinkProfile::new("c", LinkKind::Other));
    for link in [A, B, C] {
        desk.connect(link, 5);
    }
    let (a, b, c) = (desk.first(A), desk.first(B), desk.first(C));
    desk.whole(a, Some(PAGE), None);
    desk.whole(b, Some(SIZE), None);
    desk.whole(c, Some(SIZE), None);
    assert_eq!(desk.identified, Some((bytes(SIZE), None)));
}

#[test]
fn of_two_sizes_under_one_validator_the_longer_is_believed() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.connect(B, 5);
    let (a, b) = (desk.first(A), desk.first(B));
    desk.whole(a, Some(PAGE), TAG);
    desk.whole(b, Some(SIZE), TAG);
    assert_eq!(desk.identified, Some((bytes(SIZE), None)));
}

#[test]
fn a_link_that_was_told_more_under_the_same_validator_is_not_believed_less() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.connect(B, 5);
    let (a, b) = (desk.first(A), desk.first(B));
    desk.whole(a, Some(SIZE), TAG);
    desk.whole(b, Some(SIZE), TAG);
    desk.bytes(a, 1000);
    desk.end(a);
    let link = desk.conns[&desk.reqs.values().next().expect("asked again").conn].0;
    desk.whole(desk.first(link), Some(PAGE), TAG);
    let why = Ban::OtherLength { got: bytes(PAGE), want: bytes(SIZE) };
    assert_eq!(desk.notices.last(), Some(&Notice::Banned { link, why, probing: true }));
}

#[test]
fn a_link_that_was_told_the_size_by_a_range_is_not_believed_another() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, None);
    desk.connect(A, 5);
    desk.whole(desk.first(A), Some(PAGE), None);
    let why = Ban::OtherLength { got: bytes(PAGE), want: bytes(SIZE) };
    assert_eq!(desk.notices.last(), Some(&Notice::Banned { link: A, why, probing: true }));
}

#[test]
fn a_file_that_grows_without_a_validator_is_believed_once_all_links_say_another_size() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, None);
    breaks_off(&mut desk, A, SIZE, None);
    for (n, link) in [A, B].into_iter().enumerate() {
        if desk.asked(link).is_empty() {
            desk.connect(link, 5);
        }
        desk.whole(desk.first(link), Some(SIZE + 1 + n as u64), None);
        assert!(desk.on(link).is_empty(), "{:?}", desk.notices);
    }
    desk.pass(Duration::from_secs(6));
    let link = if desk.on(A).is_empty() { B } else { A };
    desk.connect(link, 5);
    let req = desk.first(link);
    desk.whole(req, Some(SIZE + 9), None);
    desk.bytes(req, SIZE + 9);
    assert!(desk.done, "{:?}", desk.notices);
}

#[test]
fn a_link_that_asked_beyond_a_small_file_is_asked_again() {
    let mut desk = Desk::two(Config::default());
    for link in [A, B] {
        let conn = desk.on(link)[0];
        desk.stands(conn, Protocol::Http2, 5, None);
    }
    let (a, b) = (desk.first(A), desk.first(B));
    let range = Some(ContentRange { span: None, total: bytes(PAGE) });
    desk.tell(Input::Head { req: b, head: Head { status: 416, range, ..Head::default() } });
    desk.tell(Input::Head { req: a, head: Head { status: 200, encoded: true, ..Head::default() } });
    desk.pass(Duration::from_secs(1));
    let req = desk.first(B);
    desk.part(req, PAGE, TAG);
    desk.bytes(req, PAGE);
    assert!(desk.done);
}

#[test]
fn a_page_that_comes_at_once_waits_for_a_link_that_is_still_connecting() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.whole(desk.first(A), Some(PAGE), None);
    desk.pass(Duration::from_millis(1900));
    assert!(desk.identified.is_none(), "{:?}", desk.notices);
    desk.connect(B, 1800);
    desk.pass(Duration::from_millis(3000));
    assert!(desk.identified.is_none(), "the other link has been asked: {:?}", desk.notices);
    desk.part(desk.first(B), SIZE, TAG);
    assert_eq!(desk.identified, Some((bytes(SIZE), Some(Validator::Etag("\"v1\"".into())))));
    assert!(desk.on(A).is_empty());
}

#[test]
fn an_answer_that_another_link_never_confirms_is_taken_and_told() {
    for (etag, wait) in [(None, 10), (TAG, 6)] {
        let mut desk = Desk::two(Config::default());
        desk.connect(A, 5);
        desk.whole(desk.first(A), Some(PAGE), etag);
        desk.pass(Duration::from_secs(wait) - Duration::from_millis(100));
        assert!(desk.identified.is_none());
        desk.pass(Duration::from_millis(200));
        assert_eq!(desk.identified, Some((bytes(PAGE), None)));
        assert!(desk.notices.contains(&Notice::Unconfirmed { link: B, told: A }), "{:?}", desk.notices);
    }
}

#[test]
fn while_an_answer_waits_for_an_opinion_its_link_is_asked_nothing_more() {
    // A server that closes behind each answer, and one that does not.
    for closes in [false, true] {
        let mut desk = Desk::two(Config::default());
        let conn = desk.on(A)[0];
        desk.stands(conn, Protocol::Http1, 5, None);
        let length = bytes(PAGE);
        desk.tell(Input::Head {
            req: desk.first(A),
            head: Head { status: 200, length, closes, ..Head::default() },
        });
        for _ in 0..40 {
            desk.pass(Duration::from_millis(50));
            assert_eq!((desk.on(A), desk.asked(A).len()), (alloc::vec![conn], 1), "closes: {closes}");
        }
        desk.connect(B, 50);
        desk.part(desk.first(B), SIZE, TAG);
        let bans = desk.notices.iter().filter(|notice| matches!(notice, Notice::Banned { link: A, .. })).count();
        assert_eq!(bans, 1, "{:?}", desk.notices);
    }
}

#[test]
fn a_parked_answer_of_one_of_several_mirrors_sends_its_link_to_the_next() {
    let mut desk = Desk::two(Config { origins: 2, proof: Some(Proof::Whole), ..Config::default() });
    desk.connect(A, 5);
    desk.status(desk.first(A), 451);
    desk.connect(B, 50);
    desk.part(desk.first(B), SIZE, TAG);
    assert!(matches!(desk.notices[..], [Notice::NextOrigin { link: A, .. }]), "{:?}", desk.notices);
    assert_eq!(desk.conns[&desk.on(A)[0]].1, OriginId(1));
}

#[test]
fn a_server_that_refuses_ranges_is_asked_once_without() {
    let mut desk = Desk::two(Config::default());
    for link in [A, B] {
        desk.connect(link, 5);
    }
    for link in [A, B] {
        desk.status(desk.first(link), 416);
    }
    desk.pass(Duration::from_millis(300));
    let link = if desk.on(A).is_empty() { B } else { A };
    desk.connect(link, 5);
    let req = desk.first(link);
    assert_eq!(desk.reqs[&req].ask, Ask::Whole);
    desk.whole(req, Some(SIZE), None);
    desk.bytes(req, SIZE);
    assert!(desk.done && desk.failed.is_none(), "{:?}", desk.notices);
}

#[test]
fn a_link_alone_in_refusing_ranges_is_a_portals() {
    let mut desk = Desk::two(Config::default());
    for link in [A, B] {
        desk.connect(link, 5);
    }
    desk.status(desk.first(A), 416);
    desk.part(desk.first(B), SIZE, TAG);
    let why = Ban::OtherStatus { status: 416 };
    assert_eq!(desk.notices, [Notice::Banned { link: A, why, probing: true }]);
}

#[test]
fn a_server_that_refuses_everything_as_a_range_has_refused() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    for _ in 0..2 {
        desk.connect(A, 5);
        desk.status(desk.first(A), 416);
        desk.pass(Duration::from_millis(10));
    }
    assert_eq!(desk.failed, Some(Failure::Status { status: 416 }));
}
