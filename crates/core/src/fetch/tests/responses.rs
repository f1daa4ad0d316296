//! What response heads mean for the download (`responses`, `range_response`).

use super::servers::{SIZE, TAG, resume_config};
use super::*;

#[test]
fn the_initial_request_is_for_data_and_each_link_continues_the_range() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 20);
    let request = driver.requests_on(A);
    assert!(matches!(request[0].1.range, RequestRange::Bounded(range) if range.start == 0), "{request:?}");
    assert_eq!(request[0].1.if_range, None);
    driver.connect_newest(B, 50);
    let RequestRange::Bounded(second) = driver.requests_on(B)[0].1.range else { panic!() };
    let RequestRange::Bounded(first) = request[0].1.range else { panic!() };
    assert_eq!(second.start, first.end, "the second link requests the next bytes");
}

#[test]
fn once_the_file_is_identified_every_request_carries_if_range() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 20);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    assert_eq!(driver.identified, Some((Some(DataSize::from_bytes(SIZE)), Some(Validator::Etag("\"v1\"".into())))));
    driver.connect_newest(B, 50);
    assert_eq!(driver.requests_on(B)[0].1.if_range, Some(Validator::Etag("\"v1\"".into())));
    driver.deliver_all(B, SIZE, TAG);
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done);
}

#[test]
fn a_file_smaller_than_the_initial_request_takes_one_response() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 20);
    let req = driver.first_request(A);
    driver.respond_partial(req, 10_000, None);
    driver.deliver(req, 10_000);
    assert!(driver.done && driver.conns.is_empty());
}

#[test]
fn an_empty_file_is_done_at_once() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 20);
    let range = Some(ContentRange { range: None, total: Some(DataSize::ZERO) });
    driver.handle(Input::Head {
        req: driver.first_request(A),
        head: ResponseHead { status: 416, range, ..ResponseHead::default() },
    });
    assert!(driver.done);
}

#[test]
fn a_request_behind_the_end_of_a_small_file_is_no_failure() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 20);
    driver.connect_newest(B, 20);
    let range = Some(ContentRange { range: None, total: Some(DataSize::from_bytes(10_000)) });
    driver.handle(Input::Head {
        req: driver.first_request(B),
        head: ResponseHead { status: 416, range, ..ResponseHead::default() },
    });
    assert_eq!(driver.failed, None);
    let req = driver.first_request(A);
    driver.respond_partial(req, 10_000, TAG);
    driver.deliver(req, 10_000);
    assert!(driver.done && driver.notices.is_empty(), "{:?}", driver.notices);
}

#[test]
fn a_banned_link_is_probed_and_used_again() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(B, 50);
    driver.respond_partial(driver.first_request(B), 800_000_000, TAG);
    driver.connect_newest(A, 5);
    driver.respond_status(driver.first_request(A), 511);
    assert!(driver.conns_on(A).is_empty());
    let mut waited = 0;
    while driver.conns_on(A).is_empty() && waited < 100 {
        driver.advance(Duration::from_millis(100));
        let req = driver.first_request(B);
        driver.deliver(req, 1000);
        waited += 1;
    }
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), 800_000_000, TAG);
    let req = driver.first_request(A);
    driver.deliver(req, 1000);
    assert!(driver.notices.contains(&Notice::Recovered { link: A }), "{:?}", driver.notices);
}

#[test]
fn a_waiting_reader_of_a_known_resource_gets_a_small_first_chunk() {
    let ranges = |config| {
        let mut driver = TestDriver::new(config);
        driver.handle(Input::Consumed { end: 1_000_000 });
        driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
        driver.connect_newest(A, 20);
        let range = |request: &SentRequest| {
            if let RequestRange::Bounded(range) = request.range { range } else { panic!("{request:?}") }
        };
        driver.requests_on(A).iter().map(|(_, request)| range(request)).collect::<Vec<_>>()
    };
    let request = ranges(Config { reader_window: Some(DataSize::from_mib(1)), ..resume_config() });
    assert_eq!(request[0], ByteRange::at(1_000_000, crate::fetch::FIRST_CHUNK));
    assert_eq!((request[1].start, request.len()), (request[0].end, 2), "and the rest is requested at once");
    // A download without a reader needs no small chunk.
    assert_eq!(ranges(resume_config()).len(), 1);
}

#[test]
fn a_refusal_on_all_links_ends_the_download() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.connect_newest(B, 5);
    driver.respond_status(driver.first_request(A), 404);
    assert_eq!(driver.failed, None);
    driver.respond_status(driver.first_request(B), 404);
    // One more request, without a range.
    driver.connect_newest(A, 5);
    driver.respond_status(driver.first_request(A), 404);
    assert_eq!(driver.failed, Some(Failure::BadStatus { status: 404 }));
}

#[test]
fn retry_after_is_respected() {
    let mut driver = TestDriver::with_one_link(Config::default());
    driver.connect_newest(A, 5);
    let retry_after = Some(Duration::from_secs(7));
    driver.handle(Input::Head {
        req: driver.first_request(A),
        head: ResponseHead { status: 503, retry_after, ..ResponseHead::default() },
    });
    assert_eq!(
        driver.notices,
        [Notice::ServerBusy { link: A, wait: Duration::from_secs(7), retry_after: None, status: 503 }]
    );
    driver.advance(Duration::from_millis(6900));
    assert!(driver.conns.is_empty());
    driver.advance(Duration::from_millis(200));
    driver.connect_newest(A, 5);
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done);
}

#[test]
fn empty_responses_and_resets_after_close_are_failures() {
    for empty in [true, false] {
        let mut driver = TestDriver::with_one_link(Config { retries: 3, ..Config::default() });
        let mut tries = 0;
        while driver.now < Instant::from_millis(1000) && tries < 100 {
            if driver.conns_on(A).is_empty() {
                driver.advance(Duration::from_millis(50));
                continue;
            }
            tries += 1;
            let conn = driver.connect_newest(A, 5);
            let Some((req, _)) = driver.requests_on(A).first().cloned() else {
                driver.advance(Duration::from_millis(50));
                continue;
            };
            if empty {
                driver.respond_partial(req, SIZE, TAG);
                driver.end_response(req);
            } else {
                let head = ResponseHead { status: 206, closes_connection: true, ..ResponseHead::default() };
                driver.handle(Input::Head {
                    req,
                    head: ResponseHead {
                        range: Some(ContentRange {
                            range: Some(ByteRange::new(0, 65_536)),
                            total: Some(DataSize::from_bytes(SIZE)),
                        }),
                        validator: Some(Validator::Etag("\"v1\"".into())),
                        ..head
                    },
                });
                driver.close_conn(conn, ConnErrorKind::Reset);
            }
        }
        assert!(tries < 20, "{tries} tries within a second (empty: {empty})");
    }
}
