//! Servers that answer in ways of their own (rules of `super::super::manners`, `refusals`, `same` and `allowance`).

use super::*;
use crate::fetch::{Ban, OneAnswer};

pub(super) const SIZE: u64 = 3_000_000;
pub(super) const TAG: Option<&str> = Some("\"v1\"");

pub(super) fn bytes(n: u64) -> Option<DataSize> {
    Some(DataSize::from_bytes(n))
}

fn etag(tag: &str) -> Option<Validator> {
    Some(Validator::Etag(tag.into()))
}

/// One link.
pub(super) fn one() -> Desk {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk
}

/// A 206 of these bytes.
pub(super) fn part(span: Span, total: u64, tag: Option<&str>) -> Head {
    Head {
        status: 206,
        length: Some(span.len()),
        range: Some(ContentRange { span: Some(span), total: bytes(total) }),
        validator: tag.and_then(etag),
        ..Head::default()
    }
}

fn asks(desk: &Desk, req: ReqId) -> Span {
    match desk.reqs[&req].ask {
        Ask::Span(span) => span,
        ask => panic!("{ask:?}"),
    }
}

/// Answers requests, one at a time, until the download is over. `answer` says what the server answers; a connection on
/// which a request was cancelled, or whose answer says that it closes, ends; one with status 0 is closed instead. Tells how many requests there were.
pub(super) fn serve(desk: &mut Desk, mut answer: impl FnMut(&Desk, LinkId, ReqId) -> Option<Head>) -> u32 {
    let (mut requests, mut heads) = (0, BTreeMap::new());
    for _ in 0..20_000 {
        if desk.done || desk.failed.is_some() {
            break;
        }
        for (conn, (link, _)) in desk.conns.clone() {
            if !desk.conns.contains_key(&conn) {
                continue;
            }
            if !desk.stood.contains(&conn) {
                desk.stands(conn, Protocol::Http1, 5, None);
                continue;
            }
            let next = desk.asked(link).into_iter().find(|(_, asked)| asked.conn == conn);
            let Some((req, _)) = next else { continue };
            let unanswered = !heads.contains_key(&req);
            if unanswered {
                let Some(head) = answer(desk, link, req) else { continue };
                requests += 1;
                if head.status == 0 {
                    desk.close(conn, TroubleKind::Reset);
                    continue;
                }
                heads.insert(req, head.clone());
                desk.tell(Input::Head { req, head });
            }
            let (Some(head), Some(at)) = (heads.get(&req), desk.reqs.get(&req).and_then(|asked| asked.at)) else {
                continue;
            };
            let span = head.range.and_then(|range| range.span).filter(|_| matches!(head.status, 200 | 206));
            assert_eq!(at, span.map_or(0, |span| span.start), "bytes go where they do not belong");
            let body = span.map_or(head.length.unwrap_or_default(), Span::len);
            let wanted = desk.lens.get(&req).copied().flatten().unwrap_or(body);
            desk.pass(Duration::from_millis(2));
            if !desk.reqs.contains_key(&req) {
                continue;
            }
            desk.bytes(req, wanted.min(body).bytes());
            if desk.done {
                break;
            }
            if desk.reqs.contains_key(&req) {
                desk.end(req);
            }
            if (head.closes || body > wanted) && desk.conns.contains_key(&conn) {
                desk.close(conn, TroubleKind::Finished);
            }
        }
        desk.pass(Duration::from_millis(5));
    }
    requests
}

/// What an honest server answers.
pub(super) fn honest(desk: &Desk, req: ReqId, tag: Option<&str>) -> Head {
    match desk.reqs[&req].ask {
        Ask::Span(span) => part(span.intersect(Span::new(0, SIZE)), SIZE, tag),
        Ask::From(start) => part(Span::new(start, SIZE), SIZE, tag),
        Ask::Whole => Head { status: 200, length: bytes(SIZE), validator: tag.and_then(etag), ..Head::default() },
    }
}

pub(super) fn status(status: u16) -> Head {
    Head { status, length: bytes(0), ..Head::default() }
}

#[test]
fn a_206_of_everything_is_a_200() {
    for mut desk in [one(), Desk::two(Config::default())] {
        let requests = serve(&mut desk, |_, _, _| Some(part(Span::new(0, SIZE), SIZE, TAG)));
        assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
        assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::NoRanges }]);
        assert!(requests <= 2 && desk.restarts == 0, "{requests}");
    }
}

#[test]
fn an_answer_to_a_range_that_cannot_be_used_is_left_for_one_without_a_range() {
    type Spoil = fn(Head) -> Head;
    let table: [(&str, Spoil); 4] = [
        ("no Content-Range", |head| Head { range: None, ..head }),
        ("another length", |head| Head { length: bytes(7), ..head }),
        ("another range", |mut head| {
            head.range = Some(ContentRange { span: Some(Span::new(100_000, 100_010)), total: bytes(SIZE) });
            Head { length: bytes(10), ..head }
        }),
        ("a range beyond the end", |head| {
            let span = head.range.and_then(|range| range.span);
            Head { range: Some(ContentRange { span, total: bytes(10) }), ..head }
        }),
    ];
    for (what, spoil) in table {
        for mut desk in [one(), Desk::two(Config::default())] {
            let requests = serve(&mut desk, |desk, _, req| {
                let head = honest(desk, req, TAG);
                Some(if head.status == 206 { spoil(head) } else { head })
            });
            assert!(desk.done, "{what}: {:?} {:?}", desk.failed, desk.notices);
            assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::BadRanges }], "{what}");
            assert!(requests <= 3, "{what}: {requests}");
        }
    }
}

#[test]
fn a_server_that_refuses_further_ranges_is_asked_for_the_whole_file() {
    type Refusal = fn(Head, Span) -> Head;
    let table: [(&str, Refusal); 5] = [
        ("403", |_, _| status(403)),
        ("412", |_, _| status(412)),
        ("500", |_, _| status(500)),
        ("416 with the size", |_, _| Head {
            range: Some(ContentRange { span: None, total: bytes(SIZE) }),
            ..status(416)
        }),
        ("no Content-Range", |head, _| Head { range: None, ..head }),
    ];
    for (what, refusal) in table {
        for mut desk in [one(), Desk::two(Config::default())] {
            let mut served = 0;
            let requests = serve(&mut desk, |desk, _, req| {
                let head = honest(desk, req, TAG);
                let Some(span) = head.range.and_then(|range| range.span) else { return Some(head) };
                served += 1;
                Some(if served <= 3 { head } else { refusal(head, span) })
            });
            assert!(desk.done, "{what}: {:?} {:?}", desk.failed, desk.notices);
            assert!(requests < 60, "{what}: {requests}");
        }
    }
}

#[test]
fn a_page_that_answers_for_the_whole_file_costs_no_byte() {
    let (mut desk, mut served) = (one(), 0);
    serve(&mut desk, |desk, _, req| {
        let head = honest(desk, req, TAG);
        served += 1;
        Some(match served {
            0..=3 => head,
            // A portal: it refuses ranges, and has a page for everything else.
            4..=12 if head.status == 206 => status(403),
            4..=12 => Head { status: 200, length: bytes(1000), ..Head::default() },
            _ => head,
        })
    });
    assert!(desk.done && desk.restarts == 0, "{:?} {:?}", desk.failed, desk.notices);
}

#[test]
fn a_part_is_not_taken_for_the_whole_file() {
    type Spoil = fn(Head, Span) -> Head;
    let table: [(&str, Spoil); 2] = [
        ("numbered as if it were the whole", |head, span| Head {
            range: Some(ContentRange { span: Some(span), total: bytes(span.end) }),
            ..head
        }),
        ("sent as the whole", |head, _| Head { status: 200, range: None, ..head }),
    ];
    for (what, spoil) in table {
        for mut desk in [one(), Desk::two(Config::default())] {
            serve(&mut desk, |desk, _, req| {
                let head = honest(desk, req, TAG);
                let span = head.range.and_then(|range| range.span);
                Some(span.map_or(head.clone(), |span| spoil(head, span)))
            });
            assert!(desk.done, "{what}: {:?} {:?}", desk.failed, desk.notices);
            assert_eq!(desk.fetch.ledger.total(), bytes(SIZE), "{what}");
            assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::Doubtful }], "{what}");
        }
    }
}

#[test]
fn a_part_under_the_status_of_the_whole_is_a_part() {
    for mut desk in [one(), Desk::two(Config::default())] {
        serve(&mut desk, |desk, _, req| Some(Head { status: 200, ..honest(desk, req, TAG) }));
        assert!(desk.done && desk.notices.is_empty(), "{:?} {:?}", desk.failed, desk.notices);
        assert_eq!(desk.fetch.ledger.total(), bytes(SIZE));
    }
}

#[test]
fn an_answer_to_a_range_that_cannot_be_used_once_is_asked_for_again() {
    let (mut desk, mut nth) = (one(), 0);
    serve(&mut desk, |desk, _, req| {
        nth += 1;
        let head = honest(desk, req, TAG);
        Some(if nth == 3 { Head { range: None, ..head } } else { head })
    });
    assert!(desk.done && desk.notices.is_empty() && desk.restarts == 0, "{:?}", desk.notices);
}

#[test]
fn more_bytes_than_were_asked_for_are_skipped() {
    type Wider = fn(Span) -> Span;
    let table: [(&str, Wider); 2] = [
        ("before", |span| Span::new(span.start.saturating_sub(70_000), span.end.min(SIZE))),
        ("both", |span| Span::new(span.start / 65_536 * 65_536, (span.end + 100_000).min(SIZE))),
    ];
    for (what, wider) in table {
        for mut desk in [one(), Desk::two(Config::default())] {
            let requests = serve(&mut desk, |desk, _, req| {
                let Ask::Span(span) = desk.reqs[&req].ask else { return Some(honest(desk, req, TAG)) };
                Some(part(wider(span), SIZE, TAG))
            });
            assert!(desk.done, "{what}: {:?} {:?}", desk.failed, desk.notices);
            assert!(desk.notices.is_empty() && desk.restarts == 0, "{what}: {:?}", desk.notices);
            assert!(requests < 60, "{what}: {requests}");
        }
    }
}

#[test]
fn ranges_of_a_few_bytes_are_left_for_one_answer() {
    let mut desk = one();
    let requests = serve(&mut desk, |desk, _, req| {
        let Ask::Span(span) = desk.reqs[&req].ask else { return Some(honest(desk, req, TAG)) };
        Some(part(Span::new(span.start, span.end.min(span.start + 100)), SIZE, TAG))
    });
    assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
    assert!(requests < 12, "{requests}");
}

#[test]
fn a_range_that_is_refused_for_its_size_is_asked_for_in_parts() {
    for (limit, refuses) in [
        (5_000, 403),
        (5_000, 500),
        (65_536, 400),
        (100_000, 413),
        (131_072, 403),
        (131_072, 416),
        (131_072, 502),
        (200_000, 503),
    ] {
        for mut desk in [one(), Desk::two(Config::default())] {
            let (mut refused, mut largest) = (0, 0);
            serve(&mut desk, |desk, _, req| {
                let head = honest(desk, req, TAG);
                let Ask::Span(span) = desk.reqs[&req].ask else { return Some(status(403)) };
                if span.len().bytes() > limit {
                    refused += 1;
                    return Some(status(refuses));
                }
                largest = largest.max(span.len().bytes());
                Some(head)
            });
            let what = alloc::format!("{limit} {refuses}: {refused} refused, {:?}", desk.notices);
            assert!(desk.done, "{:?} {what}", desk.failed);
            let quiet = desk.notices.iter().all(|told| matches!(told, Notice::Pause { .. }));
            assert!(quiet && desk.restarts == 0, "{what}");
            assert!(refused <= 8 && largest * 2 > limit, "{what}");
        }
    }
}

#[test]
fn a_server_that_refuses_the_range_field_is_asked_without() {
    for refuses in [400, 403, 406, 416, 500, 501] {
        for mut desk in [one(), Desk::two(Config::default())] {
            let requests = serve(&mut desk, |desk, _, req| {
                Some(if desk.reqs[&req].ask == Ask::Whole { honest(desk, req, TAG) } else { status(refuses) })
            });
            assert!(desk.done, "{refuses}: {:?} {:?}", desk.failed, desk.notices);
            assert!(requests <= 7, "{refuses}: {requests}");
        }
    }
}

#[test]
fn an_empty_or_contradictory_answer_to_a_range_leads_to_one_request_without() {
    let beyond = Some(ContentRange { span: None, total: bytes(SIZE) });
    let page = Head { page: true, ..part(Span::new(0, 1553), 1553, None) };
    for answer in [
        Head { status: 200, ..status(200) },
        Head { range: beyond, ..status(416) },
        Head { validator: etag("page"), ..page.clone() },
        page,
    ] {
        for mut desk in [one(), Desk::two(Config::default())] {
            let requests = serve(&mut desk, |desk, _, req| {
                Some(if desk.reqs[&req].ask == Ask::Whole { honest(desk, req, TAG) } else { answer.clone() })
            });
            assert!(desk.done, "{answer:?}: {:?} {:?}", desk.failed, desk.notices);
            assert_eq!(desk.identified.as_ref().and_then(|(total, _)| *total), bytes(SIZE), "{answer:?}");
            assert!(requests <= 5, "{answer:?}: {requests}");
        }
    }
    let mut desk = one();
    let requests = serve(&mut desk, |_, _, _| Some(status(200)));
    assert!(desk.done && requests == 2, "an empty file: {requests}");
    let mut desk = one();
    let requests = serve(&mut desk, |_, _, _| Some(Head { range: beyond, ..status(416) }));
    assert_eq!((desk.failed, requests), (Some(Failure::Status { status: 416 }), 2));
}

#[test]
fn a_refusal_that_speaks_of_the_resource_is_final_at_once() {
    for (refuses, most) in [(401, 1), (402, 2), (404, 2), (410, 2), (451, 2), (511, 1)] {
        let mut desk = one();
        let requests = serve(&mut desk, |_, _, _| Some(status(refuses)));
        assert_eq!((desk.failed, requests), (Some(Failure::Status { status: refuses }), most));
    }
    for refuses in [400, 403, 501] {
        let mut desk = one();
        let requests = serve(&mut desk, |_, _, _| Some(status(refuses)));
        assert_eq!((desk.failed, requests), (Some(Failure::Status { status: refuses }), 3));
    }
}

/// A URL that redirects each time to another target; `good_for` says of a target's answer, by number, whether it is given.
fn redirects(desk: &mut Desk, refuses: u16, good_for: impl Fn(u32, Instant) -> bool) -> (u32, u32) {
    let (mut targets, mut made, mut answered) = (1, BTreeMap::new(), BTreeMap::new());
    let requests = serve(desk, |desk, _, req| {
        let origin = desk.conns[&desk.reqs[&req].conn].1;
        if origin == OriginId(0) {
            let target = OriginId(targets);
            targets += 1;
            made.insert(target, desk.now);
            return Some(Head { status: 302, location: Some(target), ..Head::default() });
        }
        let nth = answered.entry(origin).or_insert(0);
        *nth += 1;
        Some(if good_for(*nth, Instant::ZERO + (desk.now - made[&origin])) {
            honest(desk, req, TAG)
        } else {
            status(refuses)
        })
    });
    (requests, u32::from(targets - 1))
}

#[test]
fn an_expired_target_is_asked_for_again_where_it_came_from() {
    for refuses in [400, 401, 403, 404, 410, 500, 502, 503, 302, 204] {
        for links in [1, 2] {
            let mut desk = if links == 1 { one() } else { Desk::two(Config::default()) };
            let (requests, _) = redirects(&mut desk, refuses, |_, age| age < Instant::from_millis(40));
            assert!(desk.done && desk.notices.is_empty(), "{refuses}: {:?} {:?}", desk.failed, desk.notices);
            assert!(desk.now < Instant::from_millis(3000) && requests < 150, "{refuses}: {requests} {}", desk.now);
        }
    }
}

#[test]
fn a_target_that_has_expired_and_says_so_by_a_page_is_asked_for_where_it_came_from() {
    for links in [1, 2] {
        let mut desk = if links == 1 { one() } else { Desk::two(Config::default()) };
        let (mut made, mut answered) = (0, BTreeMap::new());
        serve(&mut desk, |desk, _, req| {
            let origin = desk.conns[&desk.reqs[&req].conn].1;
            if origin == OriginId(0) {
                made += 1;
                return Some(Head { status: 302, location: Some(OriginId(made)), ..Head::default() });
            }
            let nth = answered.entry(origin).or_insert(0);
            *nth += 1;
            let page = Head { status: 200, length: bytes(1500), page: true, ..Head::default() };
            Some(if *nth <= 2 { honest(desk, req, TAG) } else { page })
        });
        assert!(desk.done && desk.notices.is_empty(), "{:?} {:?}", desk.failed, desk.notices);
        assert!(desk.now < Instant::from_millis(3000), "{}", desk.now);
    }
}

#[test]
fn a_target_that_is_good_for_one_request_is_asked_for_much() {
    for links in [1, 2] {
        let mut desk = if links == 1 { one() } else { Desk::two(Config::default()) };
        let (requests, targets) = redirects(&mut desk, 403, |nth, _| nth == 1);
        assert!(desk.done && desk.notices.is_empty(), "{:?} {:?}", desk.failed, desk.notices);
        assert!(targets <= 12 && requests <= 40, "{targets} targets, {requests} requests");
    }
}

#[test]
fn a_target_that_refuses_large_ranges_has_not_expired() {
    let mut desk = one();
    let mut targets = 0;
    serve(&mut desk, |desk, _, req| {
        if desk.conns[&desk.reqs[&req].conn].1 == OriginId(0) {
            targets += 1;
            return Some(Head { status: 302, location: Some(OriginId(targets)), ..Head::default() });
        }
        let large = asks(desk, req).len() > DataSize::from_kib(128);
        Some(if large { status(403) } else { honest(desk, req, TAG) })
    });
    assert!(desk.done && desk.notices.is_empty() && targets == 1, "{targets} {:?}", desk.notices);
}

const DATE: &str = "Sat, 01 Aug 2020 10:00:00 GMT";

/// A server whose ETag depends on the link; `honours` says whether it compares an If-Range that is a date.
fn two_tags(desk: &mut Desk, honours: bool, date: Option<&'static str>) {
    serve(desk, |desk, link, req| {
        let tag = if link == A { "\"a\"" } else { "\"b\"" };
        let asked = &desk.reqs[&req];
        let same = match &asked.if_range {
            None => true,
            Some(Validator::Etag(known)) => known == tag,
            Some(Validator::Date(known)) => honours && Some(known.as_str()) == date,
        };
        let mut head = honest(desk, req, Some(tag));
        if !same {
            head = Head { status: 200, length: bytes(SIZE), range: None, ..head };
        }
        // As the server of the report: no date where If-Range failed.
        Some(Head { modified: date.filter(|_| head.status == 206).map(Into::into), ..head })
    });
}

#[test]
fn servers_behind_one_address_are_combined_by_their_date() {
    for honours in [true, false] {
        let mut desk = Desk::two(Config::default());
        two_tags(&mut desk, honours, Some(DATE));
        assert!(desk.done && desk.restarts == 0, "{:?}", desk.notices);
        assert!(desk.notices.is_empty(), "{:?}", desk.notices);
        for (_, came, ..) in desk.fetch.status().links {
            assert!(came > DataSize::from_kib(100), "{honours}: a link carries little: {came:?}");
        }
    }
}

#[test]
fn without_a_date_two_etags_are_two_files() {
    let mut desk = Desk::two(Config::default());
    two_tags(&mut desk, true, None);
    assert!(desk.done);
    assert!(
        matches!(desk.notices[..], [Notice::Banned { why: Ban::OtherValidator, .. }, ..]),
        "{:?}",
        desk.notices
    );
}

#[test]
fn another_date_is_another_file() {
    let mut desk = Desk::two(Config::default());
    for link in [A, B] {
        desk.connect(link, 5);
    }
    let (a, b) = (desk.first(A), desk.first(B));
    let with =
        |desk: &Desk, req, tag, date: &str| Head { modified: Some(date.into()), ..honest(desk, req, Some(tag)) };
    desk.tell(Input::Head { req: a, head: with(&desk, a, "\"a\"", DATE) });
    desk.tell(Input::Head { req: b, head: with(&desk, b, "\"b\"", "Sat, 01 Aug 2020 10:00:01 GMT") });
    assert!(!desk.reqs.contains_key(&b), "taken");
    assert!(matches!(desk.notices[..], [Notice::Banned { link: B, why: Ban::OtherValidator, .. }]));
}

#[test]
fn a_server_that_contradicts_itself_gives_one_answer() {
    for mut desk in [one(), Desk::two(Config::default())] {
        // The total is wrong in each range, and right where one goes beyond the end.
        let requests = serve(&mut desk, |desk, _, req| {
            let Ask::Span(span) = desk.reqs[&req].ask else { return Some(honest(desk, req, TAG)) };
            let beyond = Some(ContentRange { span: None, total: bytes(SIZE) });
            Some(match span.intersect(Span::new(0, SIZE)) {
                span if span.is_empty() => Head { range: beyond, ..status(416) },
                span => part(span, SIZE + 1, TAG),
            })
        });
        assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
        assert_eq!(desk.notices.last(), Some(&Notice::OneAnswer { why: OneAnswer::Unsteady }));
        assert!(desk.now < Instant::from_millis(3000) && requests < 40, "{requests} {}", desk.now);
    }
}

#[test]
fn a_server_that_names_another_version_each_time_gives_one_answer() {
    for mut desk in [one(), Desk::two(Config::default())] {
        let mut nth = 0;
        serve(&mut desk, |desk, _, req| {
            nth += 1;
            let tag = alloc::format!("\"{nth}\"");
            let head = honest(desk, req, Some(&tag));
            let bound = desk.reqs[&req].if_range.is_some();
            Some(if bound { Head { status: 200, length: bytes(SIZE), range: None, ..head } } else { head })
        });
        assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
        assert_eq!(desk.notices.last(), Some(&Notice::OneAnswer { why: OneAnswer::Unsteady }));
        assert!(desk.now < Instant::from_millis(3000), "{}", desk.now);
    }
}

#[test]
fn a_page_on_the_only_link_is_not_taken_for_a_contradiction() {
    let mut desk = one();
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.part(req, 80_000_000, TAG);
    desk.pass(Duration::from_millis(10));
    desk.bytes(req, 65_536);
    desk.end(req);
    for _ in 0..4 {
        desk.whole(desk.first(A), Some(4000), None);
        assert!(matches!(desk.notices.last(), Some(Notice::Banned { link: A, .. })), "{:?}", desk.notices);
        assert_eq!(desk.restarts, 0);
        while desk.on(A).is_empty() {
            desk.pass(Duration::from_millis(500));
        }
        desk.connect(A, 5);
    }
}

#[test]
fn a_server_that_sometimes_ignores_ranges_is_asked_again() {
    let (mut desk, mut nth) = (one(), 0);
    serve(&mut desk, |desk, _, req| {
        nth += 1;
        let head = honest(desk, req, TAG);
        Some(if nth % 3 == 0 { Head { status: 200, length: bytes(SIZE), range: None, ..head } } else { head })
    });
    assert!(desk.done && desk.notices.is_empty() && desk.restarts == 0, "{:?}", desk.notices);
}

#[test]
fn a_connection_that_ends_after_a_few_answers_is_no_failure_and_asks_for_much() {
    for keeps in [1, 3] {
        for mut desk in [one(), Desk::two(Config::default())] {
            let mut answered: BTreeMap<ConnId, u32> = BTreeMap::new();
            let requests = serve(&mut desk, |desk, _, req| {
                let nth = answered.entry(desk.reqs[&req].conn).or_insert(0);
                *nth += 1;
                Some(Head { closes: *nth == keeps, ..honest(desk, req, TAG) })
            });
            assert!(desk.done && desk.notices.is_empty(), "{:?} {:?}", desk.failed, desk.notices);
            assert!(requests <= 30, "{keeps}: {requests} requests");
        }
    }
}

#[test]
fn what_comes_behind_a_good_answer_ends_the_connection_and_is_no_failure() {
    for kind in [TroubleKind::Protocol, TroubleKind::Reset, TroubleKind::Truncated] {
        let mut desk = one();
        let conn = desk.connect(A, 5);
        let req = desk.first(A);
        let len = asks(&desk, req).len().bytes();
        desk.part(req, SIZE, TAG);
        desk.pass(Duration::from_millis(10));
        desk.bytes(req, len);
        desk.end(req);
        desk.close(conn, kind);
        assert_eq!(desk.on(A).len(), 1, "another one at once");
        assert!(desk.notices.is_empty());
    }
}

#[test]
fn a_server_that_goes_away_keeps_its_answers_and_gives_the_rest_back() {
    let mut desk = one();
    let conn = desk.on(A)[0];
    desk.stands(conn, Protocol::Http2, 5, None);
    let req = desk.first(A);
    desk.part(req, SIZE, TAG);
    desk.bytes(req, 65_536);
    desk.end(req);
    desk.pass(Duration::from_millis(10));
    desk.part(desk.first(A), SIZE, TAG);
    while desk.asked(A).len() == 1 {
        desk.bytes(desk.first(A), 5000);
        desk.pass(Duration::from_millis(2));
    }
    let asked: Vec<ReqId> = desk.asked(A).iter().map(|(id, _)| *id).collect();
    for req in &asked[1..] {
        desk.reqs.remove(req);
        desk.tell(Input::Aborted {
            req: *req,
            trouble: Trouble { kind: TroubleKind::Finished, text: "goaway".into() },
        });
    }
    assert_eq!(desk.on(A).len(), 2, "a new connection beside the old one");
    assert!(desk.reqs.contains_key(&asked[0]) && desk.notices.is_empty());
    desk.connect(A, 5);
    assert!(!asks(&desk, desk.asked(A).last().expect("asked").0).is_empty());
}

#[test]
fn a_server_that_wants_http_1_1_is_reached_again_at_once() {
    for aborted in [true, false] {
        let mut desk = one();
        let conn = desk.on(A)[0];
        desk.stands(conn, Protocol::Http2, 5, None);
        let req = desk.first(A);
        let trouble = Trouble { kind: TroubleKind::Http1Required, text: "0xd".into() };
        if aborted {
            desk.reqs.remove(&req);
            desk.tell(Input::Aborted { req, trouble });
        } else {
            desk.conns.remove(&conn);
            desk.reqs.clear();
            desk.tell(Input::Closed { conn, trouble });
        }
        assert_eq!(desk.on(A).len(), 1);
        assert_ne!(desk.on(A)[0], conn);
        desk.connect(A, 5);
        desk.deliver_all(A, SIZE, TAG);
        assert!(desk.done && desk.notices.is_empty());
    }
}

#[test]
fn a_server_that_forgets_pipelined_requests_gets_one_at_a_time() {
    let mut desk = one();
    let old = desk.connect(A, 20);
    let req = desk.first(A);
    desk.part(req, 80_000_000, TAG);
    desk.pass(Duration::from_millis(20));
    desk.bytes(req, 65_536);
    desk.end(req);
    desk.pass(Duration::from_millis(20));
    // Two were sent together; the first is answered.
    let first = desk.first(A);
    let mut left = asks(&desk, first).len().bytes();
    desk.part(first, 80_000_000, TAG);
    while desk.asked(A).len() == 1 {
        let some = left.min(5000);
        left -= some;
        desk.bytes(first, some);
        desk.pass(Duration::from_millis(2));
    }
    desk.bytes(first, left);
    desk.end(first);
    while desk.on(A) == [old] {
        desk.pass(Duration::from_millis(50));
    }
    let fresh = desk.connect(A, 20);
    let req = desk.asked(A).iter().find(|(_, asked)| asked.conn == fresh).expect("asked").0;
    desk.part(req, 80_000_000, TAG);
    desk.bytes(req, 1000);
    assert_eq!(desk.on(A), [fresh]);
    for _ in 0..20 {
        desk.pass(Duration::from_millis(5));
        assert_eq!(desk.asked(A).len(), 1, "one at a time");
        let req = desk.first(A);
        if desk.reqs[&req].at.is_none() {
            desk.part(req, 80_000_000, TAG);
        }
        desk.bytes(req, 1000);
    }
}

#[test]
fn a_link_that_is_turned_away_waits_longer_each_time_and_disturbs_nobody() {
    let mut desk = Desk::two(Config { max_connections: 1, ..Config::default() });
    let mut tries = Vec::new();
    desk.connect(A, 5);
    desk.part(desk.first(A), 800_000_000, TAG);
    while desk.now < Instant::from_millis(60_000) {
        if let Some(conn) = desk.on(B).first().copied() {
            if !desk.stood.contains(&conn) {
                desk.stands(conn, Protocol::Http1, 5, None);
            }
            if let Some((req, _)) = desk.asked(B).first().cloned() {
                tries.push(desk.now);
                desk.status(req, 503);
            }
        }
        assert_eq!(desk.on(A).len(), 1, "the first link is left alone");
        desk.pass(Duration::from_millis(50));
        let req = desk.first(A);
        if desk.reqs[&req].at.is_none() {
            desk.part(req, 800_000_000, TAG);
        }
        desk.bytes(req, 10_000);
        if asks(&desk, req).end - asks(&desk, req).start < 20_000 {
            desk.end(req);
        }
    }
    assert!((3..=8).contains(&tries.len()), "{tries:?}");
    let waits: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.is_sorted(), "{waits:?}");
    assert_eq!(desk.notices.len(), 1, "{:?}", desk.notices);
}

#[test]
fn a_second_connection_that_is_turned_away_leaves_the_first_alone() {
    let mut desk = one();
    let first = desk.connect(A, 300);
    // Far away several connections climb at once.
    for _ in 0..40 {
        desk.pass(Duration::from_millis(30));
        let req = desk.first(A);
        if desk.reqs[&req].at.is_none() {
            desk.part(req, 800_000_000, TAG);
        }
        desk.bytes(req, 1000);
        if desk.on(A).len() > 1 {
            break;
        }
    }
    let second = *desk.on(A).last().expect("more connections");
    assert_ne!(first, second);
    desk.stands(second, Protocol::Http1, 300, None);
    let req = desk.asked(A).iter().find(|(_, asked)| asked.conn == second).expect("asked").0;
    desk.status(req, 503);
    assert!(desk.on(A).contains(&first), "the first one is lost");
    assert!(desk.notices.is_empty(), "{:?}", desk.notices);
}

#[test]
fn a_server_that_closes_is_asked_seldom_while_another_link_says_nothing() {
    let mut desk = Desk::two(Config::default());
    let small =
        |closes| Head { status: 200, length: bytes(11), validator: etag("\"x\""), closes, ..Head::default() };
    let requests = serve(&mut desk, |_, link, _| (link == A).then(|| small(true)));
    assert!(desk.done && requests <= 2, "{requests}");
}

#[test]
fn no_server_makes_a_link_ask_without_end() {
    // Each answer is good, brings one byte and closes the connection.
    let mut desk = one();
    let mut asked = 0;
    while desk.now < Instant::from_millis(10_000) && desk.failed.is_none() && !desk.done {
        for conn in desk.on(A) {
            if !desk.stood.contains(&conn) {
                desk.stands(conn, Protocol::Http1, 1, None);
            }
            let Some((req, _)) = desk.asked(A).into_iter().find(|(_, asked)| asked.conn == conn) else { continue };
            asked += 1;
            let head = match desk.reqs[&req].ask {
                Ask::Whole => Head { status: 200, length: None, closes: true, ..Head::default() },
                _ => {
                    let start = asks(&desk, req).start;
                    Head { closes: true, ..part(Span::new(start, start + 1), SIZE, TAG) }
                }
            };
            desk.tell(Input::Head { req, head });
            desk.bytes(req, 1);
            if desk.conns.contains_key(&conn) {
                desk.close(conn, TroubleKind::Truncated);
            }
        }
        desk.pass(Duration::from_millis(1));
    }
    assert!(asked <= 24 + 20, "{asked} requests in ten seconds");
}
