//! The first request asks for the whole file (rules of `super::super::first`).

use super::servers::{SIZE, TAG, bytes, honest, part, serve, status};
use super::*;
use crate::fetch::OneAnswer;

fn config() -> Config {
    Config { open_first: true, ..Config::default() }
}

/// One link, and two.
fn desks(config: &Config) -> [Desk; 2] {
    let mut one = Desk::new(config.clone());
    one.link(A, LinkProfile::new("a", LinkKind::Wifi));
    [one, Desk::two(config.clone())]
}

/// Two links, and the first response over A has begun.
fn begun() -> (Desk, ReqId) {
    let mut desk = Desk::two(config());
    desk.connect(A, 5);
    desk.connect(B, 5);
    assert!(desk.asked(B).is_empty(), "the second link waits for the head");
    let first = desk.first(A);
    assert_eq!(desk.reqs[&first].ask, Ask::From(0));
    desk.part(first, SIZE, TAG);
    assert_eq!(desk.lens[&first], bytes(SIZE));
    (desk, first)
}

#[test]
fn the_only_response_that_a_url_gives_brings_the_file() {
    for refuses in [400, 401, 403, 404, 410, 416, 429, 500, 503] {
        for mut desk in desks(&config()) {
            let mut served = false;
            let requests = serve(&mut desk, |desk, _, req| {
                let fresh = !core::mem::replace(&mut served, true);
                Some(if fresh { honest(desk, req, TAG) } else { status(refuses) })
            });
            assert!(desk.done && desk.restarts == 0, "{refuses}: {:?} {:?}", desk.failed, desk.notices);
            assert!(requests <= 3, "{refuses}: {requests}");
        }
    }
}

#[test]
fn failures_of_the_second_link_do_not_cost_the_first_response() {
    for refuses in [0, 200, 204, 302, 401, 403, 404, 410, 416, 429, 500, 503] {
        let (mut desk, first) = begun();
        let mut refused = 0;
        for step in 0..300 {
            for (req, asked) in desk.asked(B) {
                refused += 1;
                match refuses {
                    0 => desk.close(asked.conn, TroubleKind::Reset),
                    200 => desk.whole(req, Some(1500), None),
                    refuses => desk.status(req, refuses),
                }
            }
            for conn in desk.on(B) {
                if !desk.stood.contains(&conn) {
                    desk.stands(conn, Protocol::Http1, 5, None);
                }
            }
            desk.pass(Duration::from_millis(20));
            if desk.done {
                break;
            }
            assert!(
                desk.reqs.contains_key(&first),
                "{refuses}: the response was left at step {step}: {:?}",
                desk.notices
            );
            desk.bytes(first, SIZE / 250);
        }
        assert!(desk.done && desk.restarts == 0, "{refuses}: {:?} {:?}", desk.failed, desk.notices);
        assert!(refused > 0 && refused < 12, "{refuses}: {refused}");
    }
}

#[test]
fn other_links_take_their_bytes_from_the_end() {
    let (mut desk, first) = begun();
    let mut lowest = SIZE;
    while !desk.done {
        desk.pass(Duration::from_millis(10));
        if desk.reqs.contains_key(&first) {
            desk.bytes(first, 20_000);
        }
        if let Some((req, asked)) = desk.asked(B).into_iter().find(|(req, _)| *req != first) {
            let Ask::Span(span) = asked.ask else { panic!("{asked:?}") };
            assert!(span.end == lowest || asked.at.is_some(), "{span:?} {lowest}");
            lowest = lowest.min(span.start);
            if asked.at.is_none() {
                desk.part(req, SIZE, TAG);
            }
            let left = span.end - desk.reqs[&req].at.unwrap();
            desk.bytes(req, left.min(20_000));
            if left <= 20_000 && desk.reqs.contains_key(&req) {
                desk.end(req);
            }
        }
        assert!(desk.now < Instant::from_millis(3000), "{:?}", desk.fetch.status());
    }
    let links = desk.fetch.status().links;
    assert!(links.iter().all(|(_, came, ..)| *came > DataSize::from_bytes(SIZE / 3)), "{links:?}");
    assert!(desk.fetch.status().wasted < DataSize::from_kib(100), "{:?}", desk.fetch.status().wasted);
}

#[test]
fn bytes_that_another_link_loses_are_the_first_responses_again() {
    let (mut desk, first) = begun();
    desk.pass(Duration::from_millis(10));
    desk.bytes(first, 100_000);
    let (req, asked) = desk.asked(B)[0].clone();
    assert!(matches!(asked.ask, Ask::Span(span) if span.end == SIZE));
    desk.part(req, SIZE, TAG);
    desk.tell(Input::LinkDown { link: B });
    while !desk.done {
        desk.pass(Duration::from_millis(10));
        assert!(desk.reqs.contains_key(&first), "{:?}", desk.fetch.status());
        desk.bytes(first, 100_000);
    }
    assert_eq!(desk.fetch.status().wasted, DataSize::ZERO);
}

#[test]
fn a_first_range_that_is_not_answered_by_the_file_is_left_for_a_request_without_one() {
    let page = Head { status: 200, length: bytes(1500), page: true, ..Head::default() };
    let answers: [(&str, Option<Head>); 10] = [
        ("close", Some(status(0))),
        ("silence", None),
        ("429", Some(status(429))),
        ("503", Some(status(503))),
        ("204", Some(status(204))),
        ("304", Some(status(304))),
        ("500", Some(status(500))),
        ("302 without Location", Some(status(302))),
        ("a redirect in circles", Some(Head { location: Some(OriginId(0)), redirects: true, ..status(302) })),
        ("page", Some(page)),
    ];
    for (what, ranged) in answers {
        for open_first in [true, false] {
            for mut desk in desks(&Config { open_first, ..Config::default() }) {
                let requests = serve(&mut desk, |desk, _, req| match desk.reqs[&req].ask {
                    Ask::Whole => Some(honest(desk, req, TAG)),
                    _ => ranged.clone(),
                });
                assert!(desk.done, "{what}: {:?} {:?}", desk.failed, desk.notices);
                assert!(desk.now < Instant::from_millis(5000), "{what}: {}", desk.now);
                assert!(requests <= if what.contains("circles") { 25 } else { 8 }, "{what}: {requests}");
                let why = desk.notices.iter().filter(|told| matches!(told, Notice::OneAnswer { .. })).count();
                assert_eq!(why, 1, "{what}: {:?}", desk.notices);
            }
        }
    }
}

#[test]
fn a_busy_server_that_serves_ranges_is_asked_for_them_again() {
    for mut desk in desks(&config()) {
        let mut busy = 2;
        serve(&mut desk, |desk, _, req| {
            if busy > 0 {
                busy -= 1;
                return Some(status(503));
            }
            Some(honest(desk, req, TAG))
        });
        assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
    }
}

#[test]
fn a_server_that_thinks_long_is_waited_for_once() {
    for mut desk in desks(&config()) {
        let mut due: BTreeMap<ReqId, Instant> = BTreeMap::new();
        let requests = serve(&mut desk, |desk, _, req| {
            let at = *due.entry(req).or_insert(desk.now + Duration::from_secs(12));
            (desk.now >= at).then(|| honest(desk, req, TAG))
        });
        assert!(desk.done && desk.restarts == 0, "{:?} {:?}", desk.failed, desk.notices);
        assert!(desk.now < Instant::from_millis(14_500), "{}", desk.now);
        assert!(requests <= 4, "{requests}");
    }
}

#[test]
fn a_page_to_whom_asked_without_a_range_is_the_answer() {
    let mut desk = Desk::new(config());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let page = Head { status: 200, length: bytes(1500), page: true, ..Head::default() };
    let requests = serve(&mut desk, |_, _, _| Some(page.clone()));
    assert!(desk.done && requests == 2, "{requests} {:?}", desk.failed);
}

#[test]
fn what_is_refused_to_everybody_ends_soon_with_its_status() {
    for refuses in [401, 403, 404, 410] {
        for mut desk in desks(&Config::default()) {
            let mut served = false;
            serve(&mut desk, |desk, _, req| {
                let fresh = !core::mem::replace(&mut served, true);
                Some(if fresh { honest(desk, req, TAG) } else { status(refuses) })
            });
            assert_eq!(desk.failed, Some(Failure::Status { status: refuses }), "{:?}", desk.notices);
            let most = if matches!(refuses, 403 | 404) { 45_000 } else { 15_000 };
            assert!(desk.now < Instant::from_millis(most), "{refuses}: {}", desk.now);
        }
    }
}

#[test]
fn a_capped_answer_to_the_first_request_is_a_range_like_any_other() {
    for mut desk in desks(&config()) {
        serve(&mut desk, |desk, _, req| {
            let head = honest(desk, req, TAG);
            let Some(span) = head.range.and_then(|range| range.span) else { return Some(head) };
            Some(part(Span::new(span.start, span.end.min(span.start + 100_000)), SIZE, TAG))
        });
        assert!(desk.done && desk.notices.is_empty(), "{:?} {:?}", desk.failed, desk.notices);
    }
}

#[test]
fn ranges_that_break_off_again_and_again_are_left_for_one_answer() {
    for open_first in [true, false] {
        let mut desk = Desk::new(Config { open_first, ..Config::default() });
        desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
        for _ in 0..2000 {
            if desk.done {
                break;
            }
            for conn in desk.on(A) {
                if !desk.stood.contains(&conn) {
                    desk.stands(conn, Protocol::Http1, 5, None);
                }
            }
            if let Some((req, asked)) = desk.asked(A).first().cloned() {
                if asked.ask == Ask::Whole {
                    desk.whole(req, Some(SIZE), TAG);
                    desk.bytes(req, SIZE);
                } else {
                    desk.part(req, SIZE, TAG);
                    desk.bytes(req, 1000);
                    desk.close(asked.conn, TroubleKind::Truncated);
                }
            }
            desk.pass(Duration::from_millis(10));
        }
        assert!(desk.done && desk.now < Instant::from_millis(8000), "{} {:?}", desk.now, desk.notices);
        assert_eq!(desk.notices, [Notice::OneAnswer { why: OneAnswer::BadRanges }]);
    }
}

#[test]
fn a_server_that_refuses_streams_is_asked_on_another_connection_at_once() {
    for open_first in [true, false] {
        for mut desk in desks(&Config { open_first, ..Config::default() }) {
            let mut asked_on: BTreeMap<ConnId, u32> = BTreeMap::new();
            let mut seen: Vec<ReqId> = Vec::new();
            while !desk.done && desk.now < Instant::from_millis(20_000) {
                for (conn, (link, _)) in desk.conns.clone() {
                    if !desk.stood.contains(&conn) {
                        desk.stands(conn, Protocol::Http2, 5, None);
                    }
                    for (req, asked) in desk.asked(link).into_iter().filter(|(_, asked)| asked.conn == conn) {
                        if !desk.reqs.contains_key(&req) {
                            continue;
                        }
                        if !seen.contains(&req) {
                            seen.push(req);
                            let count = asked_on.entry(conn).or_insert(0);
                            *count += 1;
                            if *count > 1 {
                                desk.reqs.remove(&req);
                                let trouble = Trouble { kind: TroubleKind::StreamRefused, text: "refused".into() };
                                desk.tell(Input::Aborted { req, trouble });
                                continue;
                            }
                            desk.part(req, SIZE, TAG);
                        }
                        let span = match asked.ask {
                            Ask::Span(span) => span,
                            _ => Span::new(0, SIZE),
                        };
                        let at = desk.reqs.get(&req).and_then(|asked| asked.at).unwrap_or(span.end);
                        let len = (span.end - at).min(50_000);
                        if len > 0 {
                            desk.bytes(req, len);
                        }
                        if at + len == span.end && desk.reqs.contains_key(&req) && !desk.done {
                            desk.end(req);
                        }
                    }
                }
                desk.pass(Duration::from_millis(5));
            }
            assert!(desk.done && desk.now < Instant::from_millis(3000), "{open_first} {}", desk.now);
            assert!(desk.notices.is_empty(), "{:?}", desk.notices);
        }
    }
}

#[test]
fn a_connection_that_will_close_carries_the_first_response_alone() {
    let mut desk = Desk::new(config());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 5);
    let first = desk.first(A);
    let head = Head { closes: true, ..honest(&desk, first, TAG) };
    desk.tell(Input::Head { req: first, head });
    for _ in 0..30 {
        desk.pass(Duration::from_millis(50));
        desk.bytes(first, SIZE / 30);
        assert!(desk.done || desk.on(A).len() == 1, "{:?}", desk.conns);
    }
    assert!(desk.done && desk.fetch.status().wasted.is_zero());
}
