//! The initial request for the whole file (`first_request`).

use super::servers::{SIZE, TAG, bytes, honest_response, partial_head, serve, status_head};
use super::*;
use crate::fetch::SingleResponseReason;

fn config() -> Config {
    Config { open_ended_first: true, ..Config::default() }
}

/// A driver with one link, and one with two.
fn drivers(config: &Config) -> [TestDriver; 2] {
    let mut one = TestDriver::new(config.clone());
    one.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    [one, TestDriver::with_two_links(config.clone())]
}

/// Two links; the first response over A has begun.
fn started() -> (TestDriver, ReqId) {
    let mut driver = TestDriver::with_two_links(config());
    driver.connect_newest(A, 5);
    driver.connect_newest(B, 5);
    assert!(driver.requests_on(B).is_empty(), "the second link waits for the head");
    let first = driver.first_request(A);
    assert_eq!(driver.reqs[&first].range, RequestRange::From(0));
    driver.respond_partial(first, SIZE, TAG);
    assert_eq!(driver.accepted_lens[&first], bytes(SIZE));
    (driver, first)
}

#[test]
fn a_url_that_is_valid_for_one_request_still_delivers_the_file() {
    for refuses in [400, 401, 403, 404, 410, 416, 429, 500, 503] {
        for mut driver in drivers(&config()) {
            let mut served = false;
            let requests = serve(&mut driver, |driver, _, req| {
                let fresh = !core::mem::replace(&mut served, true);
                Some(if fresh { honest_response(driver, req, TAG) } else { status_head(refuses) })
            });
            assert!(driver.done && driver.restarts == 0, "{refuses}: {:?} {:?}", driver.failed, driver.notices);
            assert!(requests <= 3, "{refuses}: {requests}");
        }
    }
}

#[test]
fn failures_of_the_second_link_do_not_end_the_first_response() {
    for refuses in [0, 200, 204, 302, 401, 403, 404, 410, 416, 429, 500, 503] {
        let (mut driver, first) = started();
        let mut refused = 0;
        for step in 0..300 {
            for (req, request) in driver.requests_on(B) {
                refused += 1;
                match refuses {
                    0 => driver.close_conn(request.conn, ConnErrorKind::Reset),
                    200 => driver.respond_full(req, Some(1500), None),
                    refuses => driver.respond_status(req, refuses),
                }
            }
            for conn in driver.conns_on(B) {
                if !driver.connected.contains(&conn) {
                    driver.on_connected(conn, Protocol::Http1, 5, None);
                }
            }
            driver.advance(Duration::from_millis(20));
            if driver.done {
                break;
            }
            assert!(
                driver.reqs.contains_key(&first),
                "{refuses}: the response was cancelled at step {step}: {:?}",
                driver.notices
            );
            driver.deliver(first, SIZE / 250);
        }
        assert!(driver.done && driver.restarts == 0, "{refuses}: {:?} {:?}", driver.failed, driver.notices);
        assert!(refused > 0 && refused < 12, "{refuses}: {refused}");
    }
}

#[test]
fn other_links_take_ranges_from_the_end() {
    let (mut driver, first) = started();
    let mut lowest = SIZE;
    while !driver.done {
        driver.advance(Duration::from_millis(10));
        if driver.reqs.contains_key(&first) {
            driver.deliver(first, 20_000);
        }
        if let Some((req, request)) = driver.requests_on(B).into_iter().find(|(req, _)| *req != first) {
            let RequestRange::Bounded(range) = request.range else { panic!("{request:?}") };
            assert!(range.end == lowest || request.next_offset.is_some(), "{range:?} {lowest}");
            lowest = lowest.min(range.start);
            if request.next_offset.is_none() {
                driver.respond_partial(req, SIZE, TAG);
            }
            let left = range.end - driver.reqs[&req].next_offset.unwrap();
            driver.deliver(req, left.min(20_000));
            if left <= 20_000 && driver.reqs.contains_key(&req) {
                driver.end_response(req);
            }
        }
        assert!(driver.now < Instant::from_millis(3000), "{:?}", driver.fetch.status());
    }
    let links = driver.fetch.status().links;
    assert!(links.iter().all(|(_, received, ..)| *received > DataSize::from_bytes(SIZE / 3)), "{links:?}");
    assert!(driver.fetch.status().wasted < DataSize::from_kib(100), "{:?}", driver.fetch.status().wasted);
}

#[test]
fn the_first_response_takes_over_ranges_that_another_link_lost() {
    let (mut driver, first) = started();
    driver.advance(Duration::from_millis(10));
    driver.deliver(first, 100_000);
    let (req, request) = driver.requests_on(B)[0].clone();
    assert!(matches!(request.range, RequestRange::Bounded(range) if range.end == SIZE));
    driver.respond_partial(req, SIZE, TAG);
    driver.handle(Input::LinkDown { link: B });
    while !driver.done {
        driver.advance(Duration::from_millis(10));
        assert!(driver.reqs.contains_key(&first), "{:?}", driver.fetch.status());
        driver.deliver(first, 100_000);
    }
    assert_eq!(driver.fetch.status().wasted, DataSize::ZERO);
}

#[test]
fn if_range_requests_fail_a_request_without_a_range_is_sent() {
    let page = ResponseHead { status: 200, length: bytes(1500), is_html_page: true, ..ResponseHead::default() };
    let responses: [(&str, Option<ResponseHead>); 10] = [
        ("close", Some(status_head(0))),
        ("no response", None),
        ("429", Some(status_head(429))),
        ("503", Some(status_head(503))),
        ("204", Some(status_head(204))),
        ("304", Some(status_head(304))),
        ("500", Some(status_head(500))),
        ("302 without Location", Some(status_head(302))),
        (
            "a redirect loop",
            Some(ResponseHead { location: Some(UrlId(0)), has_location: true, ..status_head(302) }),
        ),
        ("page", Some(page)),
    ];
    for (name, ranged) in responses {
        for open_first in [true, false] {
            for mut driver in drivers(&Config { open_ended_first: open_first, ..Config::default() }) {
                let requests = serve(&mut driver, |driver, _, req| match driver.reqs[&req].range {
                    RequestRange::Full => Some(honest_response(driver, req, TAG)),
                    _ => ranged.clone(),
                });
                assert!(driver.done, "{name}: {:?} {:?}", driver.failed, driver.notices);
                assert!(driver.now < Instant::from_millis(5000), "{name}: {}", driver.now);
                assert!(requests <= if name.contains("loop") { 25 } else { 8 }, "{name}: {requests}");
                let reason =
                    driver.notices.iter().filter(|notice| matches!(notice, Notice::SingleResponse { .. })).count();
                assert_eq!(reason, 1, "{name}: {:?}", driver.notices);
            }
        }
    }
}

#[test]
fn a_busy_server_that_serves_ranges_gets_range_requests_again() {
    for mut driver in drivers(&config()) {
        let mut busy = 2;
        serve(&mut driver, |driver, _, req| {
            if busy > 0 {
                busy -= 1;
                return Some(status_head(503));
            }
            Some(honest_response(driver, req, TAG))
        });
        assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
    }
}

#[test]
fn a_slow_server_is_waited_for_once() {
    for mut driver in drivers(&config()) {
        let mut due: BTreeMap<ReqId, Instant> = BTreeMap::new();
        let requests = serve(&mut driver, |driver, _, req| {
            let at = *due.entry(req).or_insert(driver.now + Duration::from_secs(12));
            (driver.now >= at).then(|| honest_response(driver, req, TAG))
        });
        assert!(driver.done && driver.restarts == 0, "{:?} {:?}", driver.failed, driver.notices);
        assert!(driver.now < Instant::from_millis(14_500), "{}", driver.now);
        assert!(requests <= 4, "{requests}");
    }
}

#[test]
fn an_html_page_in_response_to_a_full_request_is_accepted() {
    let mut driver = TestDriver::with_one_link(config());
    let page = ResponseHead { status: 200, length: bytes(1500), is_html_page: true, ..ResponseHead::default() };
    let requests = serve(&mut driver, |_, _, _| Some(page.clone()));
    assert!(driver.done && requests == 2, "{requests} {:?}", driver.failed);
}

#[test]
fn a_refusal_on_every_link_ends_the_download_soon_with_its_status() {
    for refuses in [401, 403, 404, 410] {
        for mut driver in drivers(&Config::default()) {
            let mut served = false;
            serve(&mut driver, |driver, _, req| {
                let fresh = !core::mem::replace(&mut served, true);
                Some(if fresh { honest_response(driver, req, TAG) } else { status_head(refuses) })
            });
            assert_eq!(driver.failed, Some(Failure::BadStatus { status: refuses }), "{:?}", driver.notices);
            let most = if matches!(refuses, 403 | 404) { 45_000 } else { 15_000 };
            assert!(driver.now < Instant::from_millis(most), "{refuses}: {}", driver.now);
        }
    }
}

#[test]
fn a_shortened_first_response_is_an_ordinary_range() {
    for mut driver in drivers(&config()) {
        serve(&mut driver, |driver, _, req| {
            let head = honest_response(driver, req, TAG);
            let Some(range) = head.range.and_then(|range| range.range) else { return Some(head) };
            Some(partial_head(ByteRange::new(range.start, range.end.min(range.start + 100_000)), SIZE, TAG))
        });
        assert!(driver.done && driver.notices.is_empty(), "{:?} {:?}", driver.failed, driver.notices);
    }
}

#[test]
fn ranges_that_break_off_repeatedly_are_given_up_for_a_single_response() {
    for open_first in [true, false] {
        let mut driver = TestDriver::with_one_link(Config { open_ended_first: open_first, ..Config::default() });
        for _ in 0..2000 {
            if driver.done {
                break;
            }
            for conn in driver.conns_on(A) {
                if !driver.connected.contains(&conn) {
                    driver.on_connected(conn, Protocol::Http1, 5, None);
                }
            }
            if let Some((req, request)) = driver.requests_on(A).first().cloned() {
                if request.range == RequestRange::Full {
                    driver.respond_full(req, Some(SIZE), TAG);
                    driver.deliver(req, SIZE);
                } else {
                    driver.respond_partial(req, SIZE, TAG);
                    driver.deliver(req, 1000);
                    driver.close_conn(request.conn, ConnErrorKind::Truncated);
                }
            }
            driver.advance(Duration::from_millis(10));
        }
        assert!(driver.done && driver.now < Instant::from_millis(8000), "{} {:?}", driver.now, driver.notices);
        assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::UnusableRanges }]);
    }
}

#[test]
fn after_a_refused_stream_the_request_is_sent_on_another_connection_at_once() {
    for open_first in [true, false] {
        for mut driver in drivers(&Config { open_ended_first: open_first, ..Config::default() }) {
            let mut requests_on: BTreeMap<ConnId, u32> = BTreeMap::new();
            let mut started_requests: Vec<ReqId> = Vec::new();
            while !driver.done && driver.now < Instant::from_millis(20_000) {
                for (conn, (link, _)) in driver.conns.clone() {
                    if !driver.connected.contains(&conn) {
                        driver.on_connected(conn, Protocol::Http2, 5, None);
                    }
                    for (req, request) in
                        driver.requests_on(link).into_iter().filter(|(_, request)| request.conn == conn)
                    {
                        if !driver.reqs.contains_key(&req) {
                            continue;
                        }
                        if !started_requests.contains(&req) {
                            started_requests.push(req);
                            let count = requests_on.entry(conn).or_insert(0);
                            *count += 1;
                            if *count > 1 {
                                driver.reqs.remove(&req);
                                let error =
                                    ConnError { kind: ConnErrorKind::StreamRefused, text: "refused".into() };
                                driver.handle(Input::Aborted { req, error });
                                continue;
                            }
                            driver.respond_partial(req, SIZE, TAG);
                        }
                        let range = match request.range {
                            RequestRange::Bounded(range) => range,
                            _ => ByteRange::new(0, SIZE),
                        };
                        let at = driver.reqs.get(&req).and_then(|request| request.next_offset).unwrap_or(range.end);
                        let len = (range.end - at).min(50_000);
                        if len > 0 {
                            driver.deliver(req, len);
                        }
                        if at + len == range.end && driver.reqs.contains_key(&req) && !driver.done {
                            driver.end_response(req);
                        }
                    }
                }
                driver.advance(Duration::from_millis(5));
            }
            assert!(driver.done && driver.now < Instant::from_millis(3000), "{open_first} {}", driver.now);
            assert!(driver.notices.is_empty(), "{:?}", driver.notices);
        }
    }
}

#[test]
fn a_connection_that_will_close_carries_the_first_response_alone() {
    let mut driver = TestDriver::with_one_link(config());
    driver.connect_newest(A, 5);
    let first = driver.first_request(A);
    let head = ResponseHead { closes_connection: true, ..honest_response(&driver, first, TAG) };
    driver.handle(Input::Head { req: first, head });
    for _ in 0..30 {
        driver.advance(Duration::from_millis(50));
        driver.deliver(first, SIZE / 30);
        assert!(driver.done || driver.conns_on(A).len() == 1, "{:?}", driver.conns);
    }
    assert!(driver.done && driver.fetch.status().wasted.is_zero());
}
