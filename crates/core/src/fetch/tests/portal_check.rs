//! Which of several contradicting responses is accepted (`portal_check`).

use super::*;
use crate::fetch::BanReason;

const SIZE: u64 = 3_000_000;
/// Length of the page that a portal sends instead of the file.
const PAGE_SIZE: u64 = 4000;
const TAG: Option<&str> = Some("\"v1\"");
const C: LinkId = LinkId(2);

fn bytes(n: u64) -> Option<DataSize> {
    Some(DataSize::from_bytes(n))
}

/// A single response over `link` begins and breaks off; the next request is sent on the same connection or a new one.
fn break_off_response(driver: &mut TestDriver, link: LinkId, length: u64, etag: Option<&str>) {
    driver.connect_newest(link, 5);
    let req = driver.first_request(link);
    driver.respond_full(req, Some(length), etag);
    driver.deliver(req, 1000);
    driver.end_response(req);
    assert_eq!(driver.restarts, 1);
}

#[test]
fn the_response_on_which_two_of_three_links_agree_is_accepted() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.link_up(C, LinkProfile::new("c", LinkKind::Other));
    for link in [A, B, C] {
        driver.connect_newest(link, 5);
    }
    let (a, b, c) = (driver.first_request(A), driver.first_request(B), driver.first_request(C));
    driver.respond_full(a, Some(PAGE_SIZE), None);
    driver.respond_full(b, Some(SIZE), None);
    driver.respond_full(c, Some(SIZE), None);
    assert_eq!(driver.identified, Some((bytes(SIZE), None)));
}

#[test]
fn of_two_sizes_with_one_validator_the_larger_is_accepted() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.connect_newest(B, 5);
    let (a, b) = (driver.first_request(A), driver.first_request(B));
    driver.respond_full(a, Some(PAGE_SIZE), TAG);
    driver.respond_full(b, Some(SIZE), TAG);
    assert_eq!(driver.identified, Some((bytes(SIZE), None)));
}

#[test]
fn a_smaller_size_than_reported_with_the_same_validator_is_rejected() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.connect_newest(B, 5);
    let (a, b) = (driver.first_request(A), driver.first_request(B));
    driver.respond_full(a, Some(SIZE), TAG);
    driver.respond_full(b, Some(SIZE), TAG);
    driver.deliver(a, 1000);
    driver.end_response(a);
    let link = driver.conns[&driver.reqs.values().next().expect("the request is repeated").conn].0;
    driver.respond_full(driver.first_request(link), Some(PAGE_SIZE), TAG);
    let reason = BanReason::LengthMismatch { actual: bytes(PAGE_SIZE), expected: bytes(SIZE) };
    assert_eq!(driver.notices.last(), Some(&Notice::Banned { link, reason, will_probe: true }));
}

#[test]
fn a_size_that_contradicts_a_range_response_is_rejected() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, None);
    driver.connect_newest(A, 5);
    driver.respond_full(driver.first_request(A), Some(PAGE_SIZE), None);
    let reason = BanReason::LengthMismatch { actual: bytes(PAGE_SIZE), expected: bytes(SIZE) };
    assert_eq!(driver.notices.last(), Some(&Notice::Banned { link: A, reason, will_probe: true }));
}

#[test]
fn a_new_size_without_a_validator_is_accepted_once_all_links_report_one() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, None);
    break_off_response(&mut driver, A, SIZE, None);
    for (n, link) in [A, B].into_iter().enumerate() {
        if driver.requests_on(link).is_empty() {
            driver.connect_newest(link, 5);
        }
        driver.respond_full(driver.first_request(link), Some(SIZE + 1 + n as u64), None);
        assert!(driver.conns_on(link).is_empty(), "{:?}", driver.notices);
    }
    driver.advance(Duration::from_secs(6));
    let link = if driver.conns_on(A).is_empty() { B } else { A };
    driver.connect_newest(link, 5);
    let req = driver.first_request(link);
    driver.respond_full(req, Some(SIZE + 9), None);
    driver.deliver(req, SIZE + 9);
    assert!(driver.done, "{:?}", driver.notices);
}

#[test]
fn a_link_that_requested_bytes_behind_the_end_of_a_small_file_gets_another_request() {
    let mut driver = TestDriver::with_two_links(Config::default());
    for link in [A, B] {
        let conn = driver.conns_on(link)[0];
        driver.on_connected(conn, Protocol::Http2, 5, None);
    }
    let (a, b) = (driver.first_request(A), driver.first_request(B));
    let range = Some(ContentRange { range: None, total: bytes(PAGE_SIZE) });
    driver.handle(Input::Head { req: b, head: ResponseHead { status: 416, range, ..ResponseHead::default() } });
    driver.handle(Input::Head {
        req: a,
        head: ResponseHead { status: 200, is_encoded: true, ..ResponseHead::default() },
    });
    driver.advance(Duration::from_secs(1));
    let req = driver.first_request(B);
    driver.respond_partial(req, PAGE_SIZE, TAG);
    driver.deliver(req, PAGE_SIZE);
    assert!(driver.done);
}

#[test]
fn an_early_page_waits_for_a_link_that_is_still_connecting() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.respond_full(driver.first_request(A), Some(PAGE_SIZE), None);
    driver.advance(Duration::from_millis(1900));
    assert!(driver.identified.is_none(), "{:?}", driver.notices);
    driver.connect_newest(B, 1800);
    driver.advance(Duration::from_millis(3000));
    assert!(driver.identified.is_none(), "the other link has a request: {:?}", driver.notices);
    driver.respond_partial(driver.first_request(B), SIZE, TAG);
    assert_eq!(driver.identified, Some((bytes(SIZE), Some(Validator::Etag("\"v1\"".into())))));
    assert!(driver.conns_on(A).is_empty());
}

#[test]
fn a_response_that_no_other_link_confirms_is_accepted_with_a_notice() {
    for (etag, wait) in [(None, 10), (TAG, 6)] {
        let mut driver = TestDriver::with_two_links(Config::default());
        driver.connect_newest(A, 5);
        driver.respond_full(driver.first_request(A), Some(PAGE_SIZE), etag);
        driver.advance(Duration::from_secs(wait) - Duration::from_millis(100));
        assert!(driver.identified.is_none());
        driver.advance(Duration::from_millis(200));
        assert_eq!(driver.identified, Some((bytes(PAGE_SIZE), None)));
        assert!(
            driver.notices.contains(&Notice::Unconfirmed { link: B, accepted_from: A }),
            "{:?}",
            driver.notices
        );
    }
}

#[test]
fn a_link_with_a_pending_response_gets_no_other_request() {
    // A server that closes after each response, and one that does not.
    for closes in [false, true] {
        let mut driver = TestDriver::with_two_links(Config::default());
        let conn = driver.conns_on(A)[0];
        driver.on_connected(conn, Protocol::Http1, 5, None);
        let length = bytes(PAGE_SIZE);
        driver.handle(Input::Head {
            req: driver.first_request(A),
            head: ResponseHead { status: 200, length, closes_connection: closes, ..ResponseHead::default() },
        });
        for _ in 0..40 {
            driver.advance(Duration::from_millis(50));
            assert_eq!(
                (driver.conns_on(A), driver.requests_on(A).len()),
                (alloc::vec![conn], 1),
                "closes: {closes}"
            );
        }
        driver.connect_newest(B, 50);
        driver.respond_partial(driver.first_request(B), SIZE, TAG);
        let bans = driver.notices.iter().filter(|notice| matches!(notice, Notice::Banned { link: A, .. })).count();
        assert_eq!(bans, 1, "{:?}", driver.notices);
    }
}

#[test]
fn with_several_mirrors_a_contradicted_pending_response_switches_the_links_mirror() {
    let mut driver =
        TestDriver::with_two_links(Config { mirrors: 2, digest: Some(DigestScope::File), ..Config::default() });
    driver.connect_newest(A, 5);
    driver.respond_status(driver.first_request(A), 451);
    driver.connect_newest(B, 50);
    driver.respond_partial(driver.first_request(B), SIZE, TAG);
    assert!(matches!(driver.notices[..], [Notice::LinkMirrorSwitched { link: A, .. }]), "{:?}", driver.notices);
    assert_eq!(driver.conns[&driver.conns_on(A)[0]].1, UrlId(1));
}

#[test]
fn a_server_that_refuses_ranges_gets_one_request_without_a_range() {
    let mut driver = TestDriver::with_two_links(Config::default());
    for link in [A, B] {
        driver.connect_newest(link, 5);
    }
    for link in [A, B] {
        driver.respond_status(driver.first_request(link), 416);
    }
    driver.advance(Duration::from_millis(300));
    let link = if driver.conns_on(A).is_empty() { B } else { A };
    driver.connect_newest(link, 5);
    let req = driver.first_request(link);
    assert_eq!(driver.reqs[&req].range, RequestRange::Full);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, SIZE);
    assert!(driver.done && driver.failed.is_none(), "{:?}", driver.notices);
}

#[test]
fn a_416_on_one_link_only_is_treated_as_a_portals() {
    let mut driver = TestDriver::with_two_links(Config::default());
    for link in [A, B] {
        driver.connect_newest(link, 5);
    }
    driver.respond_status(driver.first_request(A), 416);
    driver.respond_partial(driver.first_request(B), SIZE, TAG);
    let reason = BanReason::BadStatus { status: 416 };
    assert_eq!(driver.notices, [Notice::Banned { link: A, reason, will_probe: true }]);
}

#[test]
fn if_the_full_request_is_refused_with_416_as_well_the_download_fails() {
    let mut driver = TestDriver::with_one_link(Config::default());
    for _ in 0..2 {
        driver.connect_newest(A, 5);
        driver.respond_status(driver.first_request(A), 416);
        driver.advance(Duration::from_millis(10));
    }
    assert_eq!(driver.failed, Some(Failure::BadStatus { status: 416 }));
}
