//! Responses of several versions of a file, CDN nodes and addresses (`version_check`, `validators`).

use super::servers::{
    SIZE, TAG, bytes, honest_response, one_link, partial_head, resume_config, serve, status_head,
};
use super::*;
use crate::fetch::{BanReason, SingleResponseReason};

#[test]
fn a_changed_file_is_fetched_again_once_all_links_agree() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.connect_newest(B, 5);
    driver.respond_partial(driver.first_request(B), SIZE, TAG);
    let more = |driver: &mut TestDriver, link| {
        let req = driver.first_request(link);
        driver.deliver(req, 131_072);
        driver.end_response(req);
    };
    more(&mut driver, A);
    more(&mut driver, B);
    driver.respond_full(driver.first_request(A), Some(SIZE + 5), Some("\"v2\""));
    assert_eq!(driver.restarts, 0, "one link alone is not sufficient");
    driver.respond_full(driver.first_request(B), Some(SIZE + 5), Some("\"v2\""));
    assert_eq!(driver.restarts, 1);
    assert!(driver.notices.contains(&Notice::FileChanged));
    driver.connect_newest(A, 5);
    driver.deliver_all(A, SIZE + 5, Some("\"v2\""));
    assert!(driver.done);
}

#[test]
fn a_file_that_keeps_changing_comes_as_a_single_response() {
    let mut driver = one_link();
    for version in 0..3 {
        driver.connect_newest(A, 5);
        let tag = alloc::format!("\"v{version}\"");
        let req = driver.first_request(A);
        driver.respond_partial(req, SIZE, Some(&tag));
        driver.deliver(req, 131_072);
        driver.end_response(req);
        driver.respond_full(driver.first_request(A), Some(SIZE), Some(&alloc::format!("\"v{}\"", version + 1)));
        driver.advance(Duration::from_millis(1));
    }
    assert_eq!(
        driver.notices.last(),
        Some(&Notice::SingleResponse { reason: SingleResponseReason::UnstableValidator })
    );
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    assert_eq!(driver.reqs[&req].range, RequestRange::Full);
    driver.respond_full(req, Some(SIZE), Some("\"v9\""));
    driver.deliver(req, SIZE);
    assert!(driver.done);
}

#[test]
fn a_resumed_file_that_has_changed_is_fetched_again() {
    let mut driver = TestDriver::with_one_link(resume_config());
    driver.connect_newest(A, 5);
    let (req, request) = driver.requests_on(A)[0].clone();
    assert!(matches!(request.range, RequestRange::Bounded(range) if range.start == 1_000_000));
    assert_eq!(request.if_range, Some(Validator::Etag("\"v1\"".into())));
    driver.respond_full(req, Some(SIZE), Some("\"v2\""));
    assert_eq!(driver.restarts, 1);
    driver.connect_newest(A, 5);
    driver.deliver_all(A, SIZE, Some("\"v2\""));
    assert!(driver.done);
}

#[test]
fn if_cdn_nodes_do_not_agree_one_of_them_is_used() {
    let mut driver = TestDriver::with_two_links(Config::default());
    let head = |to| ResponseHead { status: 302, location: Some(UrlId(to)), ..ResponseHead::default() };
    driver.connect_newest(A, 5);
    driver.handle(Input::Head { req: driver.first_request(A), head: head(1) });
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.connect_newest(B, 5);
    driver.handle(Input::Head { req: driver.first_request(B), head: head(2) });
    driver.connect_newest(B, 5);
    driver.respond_partial(driver.first_request(B), SIZE, Some("\"of another node\""));
    assert_eq!(driver.conns[&driver.conns_on(B)[0]].1, UrlId(1), "the node that has delivered");
    driver.connect_newest(B, 5);
    driver.respond_partial(driver.first_request(B), SIZE, TAG);
    assert!(driver.notices.is_empty(), "{:?}", driver.notices);
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done);
}

#[test]
fn if_two_addresses_do_not_agree_one_of_them_is_used() {
    let mut driver = TestDriver::with_two_links(Config::default());
    let (here, there) = ("198.51.100.1", "198.51.100.2");
    driver.connect_to(A, here);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.connect_to(B, there);
    driver.respond_full(driver.first_request(B), Some(SIZE), Some("\"of another node\""));
    let conn = driver.conns_on(B)[0];
    assert_eq!(driver.conns[&conn].1, UrlId(0), "the same URL");
    assert_eq!(driver.conn_addresses[&conn].to_string(), here, "the node that has delivered");
    driver.connect_to(B, there);
    driver.respond_partial(driver.first_request(B), SIZE, TAG);
    assert!(driver.notices.is_empty(), "{:?}", driver.notices);
    driver.deliver_all(B, SIZE, TAG);
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done && driver.restarts == 0);
}

#[test]
fn addresses_that_agree_are_all_used() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_to(A, "198.51.100.1");
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.connect_to(B, "198.51.100.2");
    driver.deliver_all(B, SIZE, TAG);
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done && driver.conn_addresses.is_empty() && driver.notices.is_empty());
}

/// Link B belongs to a portal, and its first connection ends at the portal's address. Returns the address that B tries
/// next, if it does.
fn address_tried_after_portal(real: &str, portal: &str) -> Option<IpAddr> {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_to(A, real);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.connect_to(B, portal);
    driver.respond_partial(driver.first_request(B), SIZE, Some("\"log in\""));
    let tried = driver.conns_on(B).first().and_then(|conn| driver.conn_addresses.get(conn)).copied();
    if tried.is_some() {
        driver.connect_to(B, portal);
        driver.respond_partial(driver.first_request(B), SIZE, Some("\"log in\""));
    }
    let banned = Notice::Banned { link: B, reason: BanReason::ValidatorMismatch, will_probe: true };
    assert_eq!(driver.notices, [banned]);
    assert!(driver.conns_on(B).is_empty());
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done);
    tried
}

#[test]
fn a_portal_is_banned_at_once_or_when_it_responds_at_another_address_too() {
    assert_eq!(address_tried_after_portal("198.51.100.1", "198.51.100.1"), None);
    assert_eq!(address_tried_after_portal("198.51.100.1", "10.0.0.1"), "198.51.100.1".parse().ok());
    assert_eq!(address_tried_after_portal("2001:db8::1", "198.51.100.1"), "2001:db8::1".parse().ok());
    // A private address is another host on the other link.
    for private in ["192.168.1.1", "100.64.0.1", "169.254.0.1", "fd00::1", "fe80::1", "::ffff:10.0.0.1"] {
        assert_eq!(address_tried_after_portal(private, "198.51.100.1"), None, "{private}");
    }
}

#[test]
fn if_addresses_of_one_name_do_not_agree_a_link_keeps_the_one_that_delivered() {
    let mut driver = one_link();
    let conn = driver.connect_to(A, "198.51.100.1");
    let req = driver.first_request(A);
    driver.respond_partial(req, SIZE, TAG);
    driver.deliver(req, 65_536);
    driver.close_conn(conn, ConnErrorKind::Reset);
    driver.advance(Duration::from_secs(1));
    driver.connect_to(A, "198.51.100.2");
    driver.respond_full(driver.first_request(A), Some(SIZE), Some("\"of another node\""));
    assert_eq!(driver.restarts, 0);
    let conn = driver.connect_to(A, "198.51.100.2");
    assert_eq!(driver.conn_addresses[&conn].to_string(), "198.51.100.1");
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done);
}

#[test]
fn a_change_at_all_addresses_is_a_change_of_the_file() {
    let mut driver = TestDriver::with_two_links(Config::default());
    let addresses = [(A, "198.51.100.1"), (B, "198.51.100.2")];
    for (link, address) in addresses {
        driver.connect_to(link, address);
        let req = driver.first_request(link);
        driver.respond_partial(req, SIZE, TAG);
        driver.deliver(req, 65_536);
        driver.end_response(req);
    }
    let changed = Some("\"v2\"");
    driver.respond_full(driver.first_request(A), Some(SIZE), changed);
    driver.connect_to(A, "198.51.100.1");
    driver.respond_full(driver.first_request(B), Some(SIZE), changed);
    driver.respond_full(driver.first_request(A), Some(SIZE), changed);
    assert_eq!(driver.restarts, 1, "{:?}", driver.notices);
    driver.connect_to(A, "198.51.100.1");
    driver.deliver_all(A, SIZE, changed);
    assert!(driver.done);
}

#[test]
fn a_link_that_may_not_be_used_does_not_count_for_a_change() {
    let mut driver = TestDriver::new(Config { metered: crate::fetch::MeteredUse::Never, ..Config::default() });
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    driver.link_up(B, LinkProfile { metered: true, ..LinkProfile::new("b", LinkKind::Lte) });
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_partial(req, SIZE, TAG);
    driver.deliver(req, 65_536);
    driver.end_response(req);
    driver.respond_full(driver.first_request(A), Some(SIZE), Some("\"v2\""));
    assert_eq!(driver.restarts, 1);
}

const DATE: &str = "Sat, 01 Aug 2020 10:00:00 GMT";

/// A server whose ETag differs per link. `honours`: it compares a date in If-Range.
fn serve_two_etags(driver: &mut TestDriver, honours: bool, date: Option<&'static str>) {
    serve(driver, |driver, link, req| {
        let tag = if link == A { "\"a\"" } else { "\"b\"" };
        let request = &driver.reqs[&req];
        let same = match &request.if_range {
            None => true,
            Some(Validator::Etag(known)) => known == tag,
            Some(Validator::LastModified(known)) => honours && Some(known.as_str()) == date,
        };
        let mut head = honest_response(driver, req, Some(tag));
        if !same {
            head = ResponseHead { status: 200, length: bytes(SIZE), range: None, ..head };
        }
        // Like a server that was reported: no date if If-Range failed.
        Some(ResponseHead { last_modified: date.filter(|_| head.status == 206).map(Into::into), ..head })
    });
}

#[test]
fn servers_with_different_etags_are_combined_by_their_date() {
    for honours in [true, false] {
        let mut driver = TestDriver::with_two_links(Config::default());
        serve_two_etags(&mut driver, honours, Some(DATE));
        assert!(driver.done && driver.restarts == 0, "{:?}", driver.notices);
        assert!(driver.notices.is_empty(), "{:?}", driver.notices);
        for (_, received, ..) in driver.fetch.status().links {
            assert!(received > DataSize::from_kib(100), "{honours}: a link carries little: {received:?}");
        }
    }
}

#[test]
fn without_a_date_different_etags_are_different_files() {
    let mut driver = TestDriver::with_two_links(Config::default());
    serve_two_etags(&mut driver, true, None);
    assert!(driver.done);
    assert!(
        matches!(driver.notices[..], [Notice::Banned { reason: BanReason::ValidatorMismatch, .. }, ..]),
        "{:?}",
        driver.notices
    );
}

#[test]
fn a_different_date_is_a_different_file() {
    let mut driver = TestDriver::with_two_links(Config::default());
    for link in [A, B] {
        driver.connect_newest(link, 5);
    }
    let (a, b) = (driver.first_request(A), driver.first_request(B));
    let with = |driver: &TestDriver, req, tag, date: &str| ResponseHead {
        last_modified: Some(date.into()),
        ..honest_response(driver, req, Some(tag))
    };
    driver.handle(Input::Head { req: a, head: with(&driver, a, "\"a\"", DATE) });
    driver.handle(Input::Head { req: b, head: with(&driver, b, "\"b\"", "Sat, 01 Aug 2020 10:00:01 GMT") });
    assert!(!driver.reqs.contains_key(&b), "accepted");
    assert!(matches!(driver.notices[..], [Notice::Banned { link: B, reason: BanReason::ValidatorMismatch, .. }]));
}

#[test]
fn from_a_server_that_contradicts_itself_the_file_comes_as_a_single_response() {
    for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
        // The total is wrong in each range, and right in the response to a range behind the end.
        let requests = serve(&mut driver, |driver, _, req| {
            let RequestRange::Bounded(range) = driver.reqs[&req].range else {
                return Some(honest_response(driver, req, TAG));
            };
            let beyond = Some(ContentRange { range: None, total: bytes(SIZE) });
            Some(match range.intersect(ByteRange::new(0, SIZE)) {
                range if range.is_empty() => ResponseHead { range: beyond, ..status_head(416) },
                range => partial_head(range, SIZE + 1, TAG),
            })
        });
        assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
        assert_eq!(
            driver.notices.last(),
            Some(&Notice::SingleResponse { reason: SingleResponseReason::UnstableValidator })
        );
        assert!(driver.now < Instant::from_millis(3000) && requests < 40, "{requests} {}", driver.now);
    }
}

#[test]
fn with_a_new_validator_in_each_response_the_file_comes_as_a_single_response() {
    for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
        let mut nth = 0;
        serve(&mut driver, |driver, _, req| {
            nth += 1;
            let tag = alloc::format!("\"{nth}\"");
            let head = honest_response(driver, req, Some(&tag));
            let bound = driver.reqs[&req].if_range.is_some();
            Some(if bound { ResponseHead { status: 200, length: bytes(SIZE), range: None, ..head } } else { head })
        });
        assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
        assert_eq!(
            driver.notices.last(),
            Some(&Notice::SingleResponse { reason: SingleResponseReason::UnstableValidator })
        );
        assert!(driver.now < Instant::from_millis(3000), "{}", driver.now);
    }
}

#[test]
fn a_page_on_the_only_link_does_not_count_as_a_contradiction() {
    let mut driver = one_link();
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_partial(req, 80_000_000, TAG);
    driver.advance(Duration::from_millis(10));
    driver.deliver(req, 65_536);
    driver.end_response(req);
    for _ in 0..4 {
        driver.respond_full(driver.first_request(A), Some(4000), None);
        assert!(matches!(driver.notices.last(), Some(Notice::Banned { link: A, .. })), "{:?}", driver.notices);
        assert_eq!(driver.restarts, 0);
        while driver.conns_on(A).is_empty() {
            driver.advance(Duration::from_millis(500));
        }
        driver.connect_newest(A, 5);
    }
}
