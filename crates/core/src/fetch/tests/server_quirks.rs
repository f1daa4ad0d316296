//! Servers with unusual connections: short-lived, limited in number, or without pipelining (`server_quirks`, `refusals`,
//! `token_bucket`).

use super::servers::{SIZE, TAG, bytes, etag, honest_response, one_link, partial_head, requested_range, serve};
use super::*;

#[test]
fn connections_that_end_after_a_few_responses_are_no_failure_and_get_large_requests() {
    for keeps in [1, 3] {
        for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
            let mut responses: BTreeMap<ConnId, u32> = BTreeMap::new();
            let requests = serve(&mut driver, |driver, _, req| {
                let nth = responses.entry(driver.reqs[&req].conn).or_insert(0);
                *nth += 1;
                Some(ResponseHead { closes_connection: *nth == keeps, ..honest_response(driver, req, TAG) })
            });
            assert!(driver.done && driver.notices.is_empty(), "{:?} {:?}", driver.failed, driver.notices);
            assert!(requests <= 30, "{keeps}: {requests} requests");
        }
    }
}

#[test]
fn surplus_data_behind_a_good_response_ends_the_connection_without_a_failure() {
    for kind in [ConnErrorKind::Protocol, ConnErrorKind::Reset, ConnErrorKind::Truncated] {
        let mut driver = one_link();
        let conn = driver.connect_newest(A, 5);
        let req = driver.first_request(A);
        let len = requested_range(&driver, req).len().bytes();
        driver.respond_partial(req, SIZE, TAG);
        driver.advance(Duration::from_millis(10));
        driver.deliver(req, len);
        driver.end_response(req);
        driver.close_conn(conn, kind);
        assert_eq!(driver.conns_on(A).len(), 1, "a new connection at once");
        assert!(driver.notices.is_empty());
    }
}

#[test]
fn after_goaway_complete_responses_count_and_other_requests_are_sent_elsewhere() {
    let mut driver = one_link();
    let conn = driver.conns_on(A)[0];
    driver.on_connected(conn, Protocol::Http2, 5, None);
    let req = driver.first_request(A);
    driver.respond_partial(req, SIZE, TAG);
    driver.deliver(req, 65_536);
    driver.end_response(req);
    driver.advance(Duration::from_millis(10));
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    while driver.requests_on(A).len() == 1 {
        driver.deliver(driver.first_request(A), 5000);
        driver.advance(Duration::from_millis(2));
    }
    let request: Vec<ReqId> = driver.requests_on(A).iter().map(|(id, _)| *id).collect();
    for req in &request[1..] {
        driver.reqs.remove(req);
        driver.handle(Input::Aborted {
            req: *req,
            error: ConnError { kind: ConnErrorKind::CleanClose, text: "goaway".into() },
        });
    }
    assert_eq!(driver.conns_on(A).len(), 2, "a new connection beside the old one");
    assert!(driver.reqs.contains_key(&request[0]) && driver.notices.is_empty());
    driver.connect_newest(A, 5);
    assert!(!requested_range(&driver, driver.requests_on(A).last().expect("a request").0).is_empty());
}

#[test]
fn after_http_1_1_required_a_new_connection_is_opened_at_once() {
    for aborted in [true, false] {
        let mut driver = one_link();
        let conn = driver.conns_on(A)[0];
        driver.on_connected(conn, Protocol::Http2, 5, None);
        let req = driver.first_request(A);
        let error = ConnError { kind: ConnErrorKind::Http1Required, text: "0xd".into() };
        if aborted {
            driver.reqs.remove(&req);
            driver.handle(Input::Aborted { req, error });
        } else {
            driver.conns.remove(&conn);
            driver.reqs.clear();
            driver.handle(Input::Closed { conn, error });
        }
        assert_eq!(driver.conns_on(A).len(), 1);
        assert_ne!(driver.conns_on(A)[0], conn);
        driver.connect_newest(A, 5);
        driver.deliver_all(A, SIZE, TAG);
        assert!(driver.done && driver.notices.is_empty());
    }
}

#[test]
fn a_server_that_loses_pipelined_requests_gets_one_at_a_time() {
    let mut driver = one_link();
    let first_conn = driver.connect_newest(A, 20);
    let req = driver.first_request(A);
    driver.respond_partial(req, 80_000_000, TAG);
    driver.advance(Duration::from_millis(20));
    driver.deliver(req, 65_536);
    driver.end_response(req);
    driver.advance(Duration::from_millis(20));
    // Two requests were sent together; the first one gets a response.
    let first = driver.first_request(A);
    let mut left = requested_range(&driver, first).len().bytes();
    driver.respond_partial(first, 80_000_000, TAG);
    while driver.requests_on(A).len() == 1 {
        let some = left.min(5000);
        left -= some;
        driver.deliver(first, some);
        driver.advance(Duration::from_millis(2));
    }
    driver.deliver(first, left);
    driver.end_response(first);
    while driver.conns_on(A) == [first_conn] {
        driver.advance(Duration::from_millis(50));
    }
    let fresh = driver.connect_newest(A, 20);
    let req = driver.requests_on(A).iter().find(|(_, request)| request.conn == fresh).expect("a request").0;
    driver.respond_partial(req, 80_000_000, TAG);
    driver.deliver(req, 1000);
    assert_eq!(driver.conns_on(A), [fresh]);
    for _ in 0..20 {
        driver.advance(Duration::from_millis(5));
        assert_eq!(driver.requests_on(A).len(), 1, "one at a time");
        let req = driver.first_request(A);
        if driver.reqs[&req].next_offset.is_none() {
            driver.respond_partial(req, 80_000_000, TAG);
        }
        driver.deliver(req, 1000);
    }
}

#[test]
fn a_link_refused_by_a_connection_limit_waits_longer_each_time_and_disturbs_no_other() {
    let mut driver = TestDriver::with_two_links(Config { max_connections: 1, ..Config::default() });
    let mut tries = Vec::new();
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), 800_000_000, TAG);
    while driver.now < Instant::from_millis(60_000) {
        if let Some(conn) = driver.conns_on(B).first().copied() {
            if !driver.connected.contains(&conn) {
                driver.on_connected(conn, Protocol::Http1, 5, None);
            }
            if let Some((req, _)) = driver.requests_on(B).first().cloned() {
                tries.push(driver.now);
                driver.respond_status(req, 503);
            }
        }
        assert_eq!(driver.conns_on(A).len(), 1, "the first link is left alone");
        driver.advance(Duration::from_millis(50));
        let req = driver.first_request(A);
        if driver.reqs[&req].next_offset.is_none() {
            driver.respond_partial(req, 800_000_000, TAG);
        }
        driver.deliver(req, 10_000);
        if requested_range(&driver, req).end - requested_range(&driver, req).start < 20_000 {
            driver.end_response(req);
        }
    }
    assert!((3..=8).contains(&tries.len()), "{tries:?}");
    let waits: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.is_sorted(), "{waits:?}");
    assert_eq!(driver.notices.len(), 1, "{:?}", driver.notices);
}

#[test]
fn a_refused_second_connection_leaves_the_first_one_alone() {
    let mut driver = one_link();
    let first = driver.connect_newest(A, 300);
    // With a long RTT several connections go through slow start at once.
    for _ in 0..40 {
        driver.advance(Duration::from_millis(30));
        let req = driver.first_request(A);
        if driver.reqs[&req].next_offset.is_none() {
            driver.respond_partial(req, 800_000_000, TAG);
        }
        driver.deliver(req, 1000);
        if driver.conns_on(A).len() > 1 {
            break;
        }
    }
    let second = *driver.conns_on(A).last().expect("more connections");
    assert_ne!(first, second);
    driver.on_connected(second, Protocol::Http1, 300, None);
    let req = driver.requests_on(A).iter().find(|(_, request)| request.conn == second).expect("a request").0;
    driver.respond_status(req, 503);
    assert!(driver.conns_on(A).contains(&first), "the first one is lost");
    assert!(driver.notices.is_empty(), "{:?}", driver.notices);
}

#[test]
fn a_server_that_closes_gets_few_requests_while_another_link_does_not_respond() {
    let mut driver = TestDriver::with_two_links(Config::default());
    let small = |closes| ResponseHead {
        status: 200,
        length: bytes(11),
        validator: etag("\"x\""),
        closes_connection: closes,
        ..ResponseHead::default()
    };
    let requests = serve(&mut driver, |_, link, _| (link == A).then(|| small(true)));
    assert!(driver.done && requests <= 2, "{requests}");
}

#[test]
fn no_server_causes_an_endless_stream_of_requests() {
    // Each response is good, delivers one byte and closes the connection.
    let mut driver = one_link();
    let mut request = 0;
    while driver.now < Instant::from_millis(10_000) && driver.failed.is_none() && !driver.done {
        for conn in driver.conns_on(A) {
            if !driver.connected.contains(&conn) {
                driver.on_connected(conn, Protocol::Http1, 1, None);
            }
            let Some((req, _)) = driver.requests_on(A).into_iter().find(|(_, request)| request.conn == conn) else {
                continue;
            };
            request += 1;
            let head = match driver.reqs[&req].range {
                RequestRange::Full => {
                    ResponseHead { status: 200, length: None, closes_connection: true, ..ResponseHead::default() }
                }
                _ => {
                    let start = requested_range(&driver, req).start;
                    ResponseHead {
                        closes_connection: true,
                        ..partial_head(ByteRange::new(start, start + 1), SIZE, TAG)
                    }
                }
            };
            driver.handle(Input::Head { req, head });
            driver.deliver(req, 1);
            if driver.conns.contains_key(&conn) {
                driver.close_conn(conn, ConnErrorKind::Truncated);
            }
        }
        driver.advance(Duration::from_millis(1));
    }
    assert!(request <= 24 + 20, "{request} requests in ten seconds");
}
