//! What heads mean (rules of `super::super::answers`).

use super::*;
use crate::fetch::{Ban, OneAnswer, Policy, Resume};

const SIZE: u64 = 3_000_000;
const TAG: Option<&str> = Some("\"v1\"");

/// An earlier run has left the first megabyte.
fn resumed() -> Config {
    let resume = Resume {
        total: DataSize::from_bytes(SIZE),
        validator: Validator::Etag("\"v1\"".into()),
        have: alloc::vec![Span::new(0, 1_000_000)],
        source: Some(OriginId(0)),
    };
    Config { resume: Some(resume), ..Config::default() }
}

#[test]
fn the_first_data_request_is_the_probe() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 20);
    let asked = desk.asked(A);
    assert!(matches!(asked[0].1.ask, Ask::Span(span) if span.start == 0), "{asked:?}");
    assert_eq!(asked[0].1.if_range, None);
    desk.connect(B, 50);
    let Ask::Span(second) = desk.asked(B)[0].1.ask else { panic!() };
    let Ask::Span(first) = asked[0].1.ask else { panic!() };
    assert_eq!(second.start, first.end, "the second link asks for the next bytes");
}

#[test]
fn once_identified_every_request_carries_if_range() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 20);
    desk.part(desk.first(A), SIZE, TAG);
    assert_eq!(desk.identified, Some((Some(DataSize::from_bytes(SIZE)), Some(Validator::Etag("\"v1\"".into())))));
    desk.connect(B, 50);
    assert_eq!(desk.asked(B)[0].1.if_range, Some(Validator::Etag("\"v1\"".into())));
    desk.deliver_all(B, SIZE, TAG);
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn a_file_smaller_than_the_probe_is_done_with_one_answer() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 20);
    let req = desk.first(A);
    desk.part(req, 10_000, None);
    desk.bytes(req, 10_000);
    assert!(desk.done && desk.conns.is_empty());
}

#[test]
fn an_empty_file_is_done_at_once() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 20);
    let range = Some(ContentRange { span: None, total: Some(DataSize::ZERO) });
    desk.tell(Input::Head { req: desk.first(A), head: Head { status: 416, range, ..Head::default() } });
    assert!(desk.done);
}

#[test]
fn a_question_beyond_a_small_file_is_no_failure() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 20);
    desk.connect(B, 20);
    let range = Some(ContentRange { span: None, total: Some(DataSize::from_bytes(10_000)) });
    desk.tell(Input::Head { req: desk.first(B), head: Head { status: 416, range, ..Head::default() } });
    assert_eq!(desk.failed, None);
    let req = desk.first(A);
    desk.part(req, 10_000, TAG);
    desk.bytes(req, 10_000);
    assert!(desk.done && desk.notices.is_empty(), "{:?}", desk.notices);
}

#[test]
fn a_portal_that_answers_first_is_not_believed() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.whole(desk.first(A), Some(4000), None);
    assert!(desk.identified.is_none(), "the other link has not spoken");
    desk.connect(B, 50);
    desk.part(desk.first(B), SIZE, TAG);
    let got = Some(DataSize::from_bytes(4000));
    let want = Some(DataSize::from_bytes(SIZE));
    let banned = Notice::Banned { link: A, why: Ban::OtherLength { got, want }, probing: true };
    assert_eq!(desk.notices, [banned]);
    // The portal's link had the first bytes: they are asked for again.
    desk.deliver_all(B, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn a_portal_that_answers_later_is_banned_and_its_bytes_go_elsewhere() {
    for answer in 0..4 {
        let mut desk = Desk::two(Config::default());
        desk.connect(B, 50);
        desk.part(desk.first(B), SIZE, TAG);
        desk.connect(A, 5);
        let req = desk.first(A);
        match answer {
            0 => desk.whole(req, Some(4000), None),
            1 => desk.status(req, 511),
            2 => desk.part(req, 4000, None),
            _ => desk.part(req, SIZE, Some("\"v2\"")),
        }
        assert!(matches!(desk.notices[..], [Notice::Banned { link: A, .. }]), "{answer}: {:?}", desk.notices);
        assert!(desk.on(A).is_empty());
        desk.deliver_all(B, SIZE, TAG);
        assert!(desk.done, "{answer}");
    }
}

#[test]
fn a_banned_link_is_probed_and_used_again() {
    let mut desk = Desk::two(Config::default());
    desk.connect(B, 50);
    desk.part(desk.first(B), 800_000_000, TAG);
    desk.connect(A, 5);
    desk.status(desk.first(A), 511);
    assert!(desk.on(A).is_empty());
    let mut waited = 0;
    while desk.on(A).is_empty() && waited < 100 {
        desk.pass(Duration::from_millis(100));
        let req = desk.first(B);
        desk.bytes(req, 1000);
        waited += 1;
    }
    desk.connect(A, 5);
    desk.part(desk.first(A), 800_000_000, TAG);
    let req = desk.first(A);
    desk.bytes(req, 1000);
    assert!(desk.notices.contains(&Notice::Back { link: A }), "{:?}", desk.notices);
}

#[test]
fn the_only_links_word_counts() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.whole(req, Some(4000), None);
    assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::NoRanges }]);
    desk.bytes(req, 4000);
    assert!(desk.done);
}

#[test]
fn a_server_without_ranges_is_read_from_one_link() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.connect(B, 5);
    let (a, b) = (desk.first(A), desk.first(B));
    desk.whole(a, Some(SIZE), TAG);
    assert!(desk.identified.is_none());
    desk.whole(b, Some(SIZE), TAG);
    assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::NoRanges }]);
    assert_eq!(desk.conns.len(), 1);
    desk.bytes(a, SIZE);
    assert!(desk.done);
}

#[test]
fn a_body_without_length_ends_where_its_framing_ends() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.whole(req, None, None);
    desk.bytes(req, 5000);
    assert!(!desk.done);
    desk.end(req);
    assert!(desk.done);
    assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::NoLength }]);
}

#[test]
fn without_a_validator_answers_are_not_mixed() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, None);
    assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::NoValidator }]);
    desk.pass(Duration::from_millis(10));
    assert_eq!(desk.conns.len(), 1, "one link only");
    desk.connect(A, 5);
    let req = desk.first(A);
    assert_eq!(desk.reqs[&req].ask, Ask::Whole);
    desk.whole(req, Some(SIZE), None);
    desk.bytes(req, SIZE);
    assert!(desk.done);
}

#[test]
fn a_checksum_stands_in_for_a_validator() {
    let mut desk = Desk::two(Config { proven: true, ..Config::default() });
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, None);
    desk.connect(B, 5);
    desk.deliver_all(B, SIZE, None);
    desk.deliver_all(A, SIZE, None);
    assert!(desk.done && desk.notices.is_empty());
}

#[test]
fn a_lost_single_answer_starts_from_zero() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let conn = desk.connect(A, 5);
    let req = desk.first(A);
    desk.whole(req, Some(SIZE), None);
    desk.bytes(req, 1000);
    desk.close(conn, TroubleKind::Truncated);
    assert_eq!(desk.restarts, 1);
    desk.pass(Duration::from_secs(1));
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.whole(req, Some(SIZE), None);
    desk.bytes(req, SIZE);
    assert!(desk.done);
}

#[test]
fn a_single_answer_that_always_breaks_off_is_given_up() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let mut tries = 0;
    while desk.failed.is_none() && tries < 20 {
        tries += 1;
        let conn = desk.connect(A, 5);
        let req = desk.first(A);
        desk.whole(req, None, None);
        desk.bytes(req, 1000);
        desk.close(conn, TroubleKind::Truncated);
        desk.pass(Duration::from_secs(1));
    }
    assert!(matches!(desk.failed, Some(Failure::Retries { .. })), "{:?} after {tries}", desk.failed);
    assert_eq!(tries, 1 + 5 + 1, "the first one was progress");
}

/// Everything has to come as one answer, and over `bad` it breaks off each time. Tells how often it did.
fn breaks_off(desk: &mut Desk, bad: impl Fn(LinkId) -> Option<u64>) -> u32 {
    desk.connect(A, 5);
    desk.part(desk.first(A), bad(A).unwrap_or(SIZE), None);
    let mut lost = 0;
    for _ in 0..1000 {
        if desk.failed.is_some() || desk.done {
            break;
        }
        let Some(conn) = desk.conns.keys().next_back().copied() else {
            desk.pass(Duration::from_millis(500));
            continue;
        };
        let link = desk.conns[&conn].0;
        desk.connect(link, 5);
        let Some((req, _)) = desk.asked(link).first().cloned() else {
            desk.pass(Duration::from_millis(500));
            continue;
        };
        desk.whole(req, Some(bad(link).unwrap_or(SIZE)), None);
        if !desk.reqs.contains_key(&req) {
            continue;
        }
        if bad(link).is_none() {
            desk.bytes(req, SIZE);
            break;
        }
        desk.bytes(req, 1000);
        desk.close(conn, TroubleKind::Truncated);
        lost += 1;
    }
    lost
}

#[test]
fn a_single_answer_that_always_breaks_off_on_one_link_comes_over_the_other() {
    let mut desk = Desk::two(Config::default());
    // Its own word for the size stands against the other's, until it has lost its credit.
    let lost = breaks_off(&mut desk, |link| (link == A).then_some(SIZE + 1));
    assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
    assert!((1..=1 + 5 + 1).contains(&lost), "{lost}");
}

#[test]
fn a_single_answer_that_breaks_off_on_every_link_is_given_up() {
    let mut desk = Desk::two(Config::default());
    let lost = breaks_off(&mut desk, |_| Some(SIZE));
    assert!(matches!(desk.failed, Some(Failure::Retries { .. })), "{:?} after {lost}", desk.failed);
    assert_eq!(lost, 2 * (1 + 5 + 1), "on each the first one was progress");
}

#[test]
fn a_single_answer_goes_on_over_another_link_when_its_own_is_taken_away() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, None);
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.whole(req, Some(SIZE), None);
    desk.bytes(req, 1000);
    desk.tell(Input::LinkDown { link: A });
    desk.pass(Duration::from_millis(300));
    assert_eq!(desk.restarts, 1);
    desk.connect(B, 5);
    let req = desk.first(B);
    desk.whole(req, Some(SIZE), None);
    desk.bytes(req, SIZE);
    assert!(desk.done);
}

#[test]
fn a_file_that_changes_starts_again_once_all_links_agree() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, TAG);
    desk.connect(B, 5);
    desk.part(desk.first(B), SIZE, TAG);
    let more = |desk: &mut Desk, link| {
        let req = desk.first(link);
        desk.bytes(req, 131_072);
        desk.end(req);
    };
    more(&mut desk, A);
    more(&mut desk, B);
    desk.whole(desk.first(A), Some(SIZE + 5), Some("\"v2\""));
    assert_eq!(desk.restarts, 0, "one link alone may be lying");
    desk.whole(desk.first(B), Some(SIZE + 5), Some("\"v2\""));
    assert_eq!(desk.restarts, 1);
    assert!(desk.notices.contains(&Notice::Changed));
    desk.connect(A, 5);
    desk.deliver_all(A, SIZE + 5, Some("\"v2\""));
    assert!(desk.done);
}

#[test]
fn a_file_that_always_changes_comes_as_one_answer() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    for version in 0..3 {
        desk.connect(A, 5);
        let tag = alloc::format!("\"v{version}\"");
        let req = desk.first(A);
        desk.part(req, SIZE, Some(&tag));
        desk.bytes(req, 131_072);
        desk.end(req);
        desk.whole(desk.first(A), Some(SIZE), Some(&alloc::format!("\"v{}\"", version + 1)));
        desk.pass(Duration::from_millis(1));
    }
    assert_eq!(desk.notices.last(), Some(&Notice::OneAnswer { why: OneAnswer::Unsteady }));
    desk.connect(A, 5);
    let req = desk.first(A);
    assert_eq!(desk.reqs[&req].ask, Ask::Whole);
    desk.whole(req, Some(SIZE), Some("\"v9\""));
    desk.bytes(req, SIZE);
    assert!(desk.done);
}

#[test]
fn a_resumed_file_that_changed_starts_again() {
    let mut desk = Desk::new(resumed());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 5);
    let (req, asked) = desk.asked(A)[0].clone();
    assert!(matches!(asked.ask, Ask::Span(span) if span.start == 1_000_000));
    assert_eq!(asked.if_range, Some(Validator::Etag("\"v1\"".into())));
    desk.whole(req, Some(SIZE), Some("\"v2\""));
    assert_eq!(desk.restarts, 1);
    desk.connect(A, 5);
    desk.deliver_all(A, SIZE, Some("\"v2\""));
    assert!(desk.done);
}

#[test]
fn what_a_reader_waits_for_of_a_known_resource_begins_with_a_bite() {
    let spans = |config| {
        let mut desk = Desk::new(config);
        desk.tell(Input::Consumed { upto: 1_000_000 });
        desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
        desk.connect(A, 20);
        let span = |asked: &Asked| if let Ask::Span(span) = asked.ask { span } else { panic!("{asked:?}") };
        desk.asked(A).iter().map(|(_, asked)| span(asked)).collect::<Vec<_>>()
    };
    let asked = spans(Config { window: Some(DataSize::from_mib(1)), ..resumed() });
    assert_eq!(asked[0], Span::at(1_000_000, crate::fetch::FIRST_BITE));
    assert_eq!((asked[1].start, asked.len()), (asked[0].end, 2), "and goes on at once");
    // Nobody waits for the next byte of a file.
    assert_eq!(spans(resumed()).len(), 1);
}

#[test]
fn a_resumed_file_whose_server_serves_neither_ranges_nor_validators_any_more_is_one_answer() {
    let mut desk = Desk::new(resumed());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 5);
    desk.whole(desk.first(A), Some(SIZE), None);
    assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::NoRanges }]);
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.whole(req, Some(SIZE), None);
    desk.bytes(req, SIZE);
    assert!(desk.done);
}

#[test]
fn a_refusal_by_all_links_is_the_end() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.connect(B, 5);
    desk.status(desk.first(A), 404);
    assert_eq!(desk.failed, None);
    desk.status(desk.first(B), 404);
    // Once more without a range.
    desk.connect(A, 5);
    desk.status(desk.first(A), 404);
    assert_eq!(desk.failed, Some(Failure::Status { status: 404 }));
}

#[test]
fn retry_after_is_obeyed() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 5);
    let retry_after = Some(Duration::from_secs(7));
    desk.tell(Input::Head { req: desk.first(A), head: Head { status: 503, retry_after, ..Head::default() } });
    assert_eq!(desk.notices, [Notice::Pause { link: A, wait: Duration::from_secs(7), asked: None, status: 503 }]);
    desk.pass(Duration::from_millis(6900));
    assert!(desk.conns.is_empty());
    desk.pass(Duration::from_millis(200));
    desk.connect(A, 5);
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn redirects_are_followed_by_each_link() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    let head = |to| Head { status: 302, location: Some(OriginId(to)), ..Head::default() };
    desk.tell(Input::Head { req: desk.first(A), head: head(1) });
    assert_eq!(desk.conns[&desk.on(A)[0]].1, OriginId(1));
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, TAG);
    desk.connect(B, 5);
    desk.tell(Input::Head { req: desk.first(B), head: head(2) });
    desk.connect(B, 5);
    desk.deliver_all(B, SIZE, TAG);
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn edges_that_do_not_agree_become_one_edge() {
    let mut desk = Desk::two(Config::default());
    let head = |to| Head { status: 302, location: Some(OriginId(to)), ..Head::default() };
    desk.connect(A, 5);
    desk.tell(Input::Head { req: desk.first(A), head: head(1) });
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, TAG);
    desk.connect(B, 5);
    desk.tell(Input::Head { req: desk.first(B), head: head(2) });
    desk.connect(B, 5);
    desk.part(desk.first(B), SIZE, Some("\"of another edge\""));
    assert_eq!(desk.conns[&desk.on(B)[0]].1, OriginId(1), "the edge that has delivered");
    desk.connect(B, 5);
    desk.part(desk.first(B), SIZE, TAG);
    assert!(desk.notices.is_empty(), "{:?}", desk.notices);
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn of_two_addresses_that_do_not_agree_one_is_used() {
    let mut desk = Desk::two(Config::default());
    let (here, there) = ("198.51.100.1", "198.51.100.2");
    desk.connect_to(A, here);
    desk.part(desk.first(A), SIZE, TAG);
    desk.connect_to(B, there);
    desk.whole(desk.first(B), Some(SIZE), Some("\"of another edge\""));
    let conn = desk.on(B)[0];
    assert_eq!(desk.conns[&conn].1, OriginId(0), "the same URL");
    assert_eq!(desk.ordered_at[&conn].to_string(), here, "the edge that has delivered");
    desk.connect_to(B, there);
    desk.part(desk.first(B), SIZE, TAG);
    assert!(desk.notices.is_empty(), "{:?}", desk.notices);
    desk.deliver_all(B, SIZE, TAG);
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done && desk.restarts == 0);
}

#[test]
fn addresses_that_agree_are_all_used() {
    let mut desk = Desk::two(Config::default());
    desk.connect_to(A, "198.51.100.1");
    desk.part(desk.first(A), SIZE, TAG);
    desk.connect_to(B, "198.51.100.2");
    desk.deliver_all(B, SIZE, TAG);
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done && desk.ordered_at.is_empty() && desk.notices.is_empty());
}

/// What a portal's link does whose first connection ends there: the address that is tried then, if one is.
fn tried_for_a_portal(real: &str, portal: &str) -> Option<IpAddr> {
    let mut desk = Desk::two(Config::default());
    desk.connect_to(A, real);
    desk.part(desk.first(A), SIZE, TAG);
    desk.connect_to(B, portal);
    desk.part(desk.first(B), SIZE, Some("\"log in\""));
    let tried = desk.on(B).first().and_then(|conn| desk.ordered_at.get(conn)).copied();
    if tried.is_some() {
        desk.connect_to(B, portal);
        desk.part(desk.first(B), SIZE, Some("\"log in\""));
    }
    let banned = Notice::Banned { link: B, why: Ban::OtherValidator, probing: true };
    assert_eq!(desk.notices, [banned]);
    assert!(desk.on(B).is_empty());
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done);
    tried
}

#[test]
fn a_portal_is_banned_at_once_or_when_it_answers_for_another_address_too() {
    assert_eq!(tried_for_a_portal("198.51.100.1", "198.51.100.1"), None);
    assert_eq!(tried_for_a_portal("198.51.100.1", "10.0.0.1"), "198.51.100.1".parse().ok());
    assert_eq!(tried_for_a_portal("2001:db8::1", "198.51.100.1"), "2001:db8::1".parse().ok());
    // A private address is another machine on the other link.
    for private in ["192.168.1.1", "100.64.0.1", "169.254.0.1", "fd00::1", "fe80::1", "::ffff:10.0.0.1"] {
        assert_eq!(tried_for_a_portal(private, "198.51.100.1"), None, "{private}");
    }
}

#[test]
fn addresses_of_one_name_that_do_not_agree_leave_their_link_the_one_that_has_delivered() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let conn = desk.connect_to(A, "198.51.100.1");
    let req = desk.first(A);
    desk.part(req, SIZE, TAG);
    desk.bytes(req, 65_536);
    desk.close(conn, TroubleKind::Reset);
    desk.pass(Duration::from_secs(1));
    desk.connect_to(A, "198.51.100.2");
    desk.whole(desk.first(A), Some(SIZE), Some("\"of another edge\""));
    assert_eq!(desk.restarts, 0);
    let conn = desk.connect_to(A, "198.51.100.2");
    assert_eq!(desk.ordered_at[&conn].to_string(), "198.51.100.1");
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn a_change_on_all_addresses_is_a_change() {
    let mut desk = Desk::two(Config::default());
    let addresses = [(A, "198.51.100.1"), (B, "198.51.100.2")];
    for (link, address) in addresses {
        desk.connect_to(link, address);
        let req = desk.first(link);
        desk.part(req, SIZE, TAG);
        desk.bytes(req, 65_536);
        desk.end(req);
    }
    let changed = Some("\"v2\"");
    desk.whole(desk.first(A), Some(SIZE), changed);
    desk.connect_to(A, "198.51.100.1");
    desk.whole(desk.first(B), Some(SIZE), changed);
    desk.whole(desk.first(A), Some(SIZE), changed);
    assert_eq!(desk.restarts, 1, "{:?}", desk.notices);
    desk.connect_to(A, "198.51.100.1");
    desk.deliver_all(A, SIZE, changed);
    assert!(desk.done);
}

/// What becomes of a download over one link whose nth request is redirected there; none: it is the file.
fn redirected(config: Config, to: impl Fn(usize, OriginId) -> Option<u16>) -> (Desk, usize) {
    let mut desk = Desk::new(config);
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let mut requests = 0;
    while !desk.done && desk.failed.is_none() && requests < 300 && desk.now < Instant::from_millis(300_000) {
        desk.pass(Duration::from_millis(10));
        if desk.on(A).is_empty() {
            continue;
        }
        let conn = desk.connect(A, 5);
        let (req, at) = (desk.first(A), desk.conns[&conn].1);
        match to(requests, at) {
            Some(n) => {
                let head = Head { status: 302, redirects: true, location: Some(OriginId(n)), ..Head::default() };
                desk.tell(Input::Head { req, head });
            }
            None => desk.deliver_all(A, 10_000, Some("\"v1\"")),
        }
        requests += 1;
    }
    (desk, requests)
}

#[test]
fn redirects_without_end_are_given_up() {
    // In a circle of one, two and five places, and ever on.
    for (circle, most) in [(1, 16), (2, 30), (5, 70), (10_000, 110)] {
        let next = |_, at: OriginId| Some(if at.0 == circle { 1 } else { at.0 + 1 });
        let (desk, requests) = redirected(Config::default(), next);
        assert_eq!(desk.failed, Some(Failure::Redirect), "{circle}");
        assert!(requests <= most, "{circle}: {requests}");
    }
    let config = Config { max_redirects: 3, ..Config::default() };
    let (desk, requests) = redirected(config, |_, at| Some(at.0 + 1));
    assert_eq!((desk.failed, requests), (Some(Failure::Redirect), 4));
}

#[test]
fn redirects_that_end_are_followed_however_many() {
    for hops in [1, 25, 30, 49, 50] {
        let (desk, requests) = redirected(Config::default(), |_, at| (at.0 < hops).then_some(at.0 + 1));
        assert!(desk.done, "{hops}: {:?}", desk.failed);
        assert_eq!(requests, usize::from(hops) + 1);
        assert!(desk.now < Instant::from_millis(2000), "{hops}: {}", desk.now);
    }
    // To the same place until the file is ready, or a cookie has come back.
    for rounds in [1, 2, 5] {
        let (desk, requests) = redirected(Config::default(), |n, _| (n < rounds).then_some(1));
        assert!(desk.done && requests == rounds + 1, "{rounds}: {requests} {:?}", desk.failed);
    }
}

#[test]
fn a_page_instead_of_the_rest_of_the_file_ends_the_download_soon() {
    for links in [1, 2] {
        let mut desk = Desk::new(resumed());
        desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
        if links == 2 {
            desk.link(B, LinkProfile::new("b", LinkKind::Lte));
        }
        for _ in 0..200 {
            for (conn, _) in desk.conns.clone() {
                if desk.fetch.conns.get(&conn).is_some_and(|conn| !conn.is_open()) {
                    desk.stands(conn, Protocol::Http1, 5, None);
                }
                let asked = desk.reqs.iter().find(|(_, asked)| asked.conn == conn).map(|(req, _)| *req);
                if let Some(req) = asked {
                    let length = Some(DataSize::from_bytes(700));
                    desk.tell(Input::Head {
                        req,
                        head: Head { status: 200, length, page: true, ..Head::default() },
                    });
                }
            }
            desk.pass(Duration::from_millis(100));
        }
        assert_eq!(desk.failed, Some(Failure::Page), "{:?}", desk.notices);
        assert!(desk.restarts == 0 && desk.came.is_empty(), "what is there stays");
    }
}

#[test]
fn a_short_answer_gives_the_rest_back() {
    let mut desk = Desk::new(Config { policy: Policy::Marline, ..Config::default() });
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 5);
    let req = desk.first(A);
    let head = Head {
        status: 206,
        range: Some(ContentRange { span: Some(Span::new(0, 1000)), total: Some(DataSize::from_bytes(SIZE)) }),
        validator: Some(Validator::Etag("\"v1\"".into())),
        ..Head::default()
    };
    desk.tell(Input::Head { req, head });
    desk.bytes(req, 1000);
    desk.end(req);
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn an_answer_that_breaks_off_while_it_waits_for_an_opinion_is_forgotten() {
    let mut desk = Desk::two(Config::default());
    let conn = desk.on(A)[0];
    desk.stands(conn, Protocol::Http2, 5, None);
    let req = desk.first(A);
    desk.whole(req, Some(4000), None);
    desk.reqs.remove(&req);
    desk.tell(Input::Aborted { req, trouble: Trouble { kind: TroubleKind::Reset, text: "test".into() } });
    desk.pass(Duration::from_secs(20));
    assert!(desk.identified.is_none(), "an answer that is gone was taken for the file");
}

#[test]
fn a_range_without_total_counts_if_its_validator_does() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.part(req, SIZE, TAG);
    desk.bytes(req, 60_000);
    desk.connect(B, 5);
    let req = desk.first(B);
    let Ask::Span(span) = desk.reqs[&req].ask else { panic!() };
    let head = Head {
        status: 206,
        range: Some(ContentRange { span: Some(span), total: None }),
        validator: Some(Validator::Etag("\"v1\"".into())),
        ..Head::default()
    };
    desk.tell(Input::Head { req, head });
    assert_eq!(desk.reqs[&req].at, Some(span.start));
    assert!(desk.restarts == 0 && desk.fetch.status().done.bytes() == 60_000);
}

#[test]
fn a_link_that_may_not_be_used_has_no_say_in_a_change() {
    let mut desk = Desk::new(Config { metered: crate::fetch::MeteredUse::Never, ..Config::default() });
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.link(B, LinkProfile { metered: true, ..LinkProfile::new("b", LinkKind::Lte) });
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.part(req, SIZE, TAG);
    desk.bytes(req, 65_536);
    desk.end(req);
    desk.whole(desk.first(A), Some(SIZE), Some("\"v2\""));
    assert_eq!(desk.restarts, 1);
}

#[test]
fn a_portals_redirect_is_forgotten_when_the_link_is_tested_again() {
    let mut desk = Desk::two(Config::default());
    desk.connect(B, 50);
    desk.part(desk.first(B), 800_000_000, TAG);
    desk.connect(A, 5);
    let head = Head { status: 302, location: Some(OriginId(1)), ..Head::default() };
    desk.tell(Input::Head { req: desk.first(A), head });
    desk.connect(A, 5);
    desk.whole(desk.first(A), Some(4000), None);
    assert!(desk.on(A).is_empty());
    for _ in 0..60 {
        desk.pass(Duration::from_millis(100));
        let req = desk.first(B);
        desk.bytes(req, 1000);
    }
    assert_eq!(desk.conns[&desk.on(A)[0]].1, OriginId(0));
}

#[test]
fn answers_without_a_byte_and_resets_after_close_are_failures() {
    for empty in [true, false] {
        let mut desk = Desk::new(Config { retries: 3, ..Config::default() });
        desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
        let mut tries = 0;
        while desk.now < Instant::from_millis(1000) && tries < 100 {
            if desk.on(A).is_empty() {
                desk.pass(Duration::from_millis(50));
                continue;
            }
            tries += 1;
            let conn = desk.connect(A, 5);
            let Some((req, _)) = desk.asked(A).first().cloned() else {
                desk.pass(Duration::from_millis(50));
                continue;
            };
            if empty {
                desk.part(req, SIZE, TAG);
                desk.end(req);
            } else {
                let head = Head { status: 206, closes: true, ..Head::default() };
                desk.tell(Input::Head {
                    req,
                    head: Head {
                        range: Some(ContentRange {
                            span: Some(Span::new(0, 65_536)),
                            total: Some(DataSize::from_bytes(SIZE)),
                        }),
                        validator: Some(Validator::Etag("\"v1\"".into())),
                        ..head
                    },
                });
                desk.close(conn, TroubleKind::Reset);
            }
        }
        assert!(tries < 20, "{tries} tries within a second (empty: {empty})");
    }
}
