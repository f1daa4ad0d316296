//! What response heads mean for the download (`responses`, `single_response`, `version_check`).

use super::*;
use crate::fetch::{BanReason, Policy, Resume, SingleResponseReason};

const SIZE: u64 = 3_000_000;
const TAG: Option<&str> = Some("\"v1\"");

/// Configuration of a download of which an earlier run has left the first megabyte.
fn resume_config() -> Config {
    let resume = Resume {
        total: DataSize::from_bytes(SIZE),
        validator: Validator::Etag("\"v1\"".into()),
        ranges: alloc::vec![ByteRange::new(0, 1_000_000)],
        mirror: Some(UrlId(0)),
    };
    Config { resume: Some(resume), ..Config::default() }
}

#[test]
fn the_initial_request_asks_for_data_and_each_link_continues_the_range() {
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
fn a_portal_that_responds_first_is_not_accepted() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.respond_full(driver.first_request(A), Some(4000), None);
    assert!(driver.identified.is_none(), "the other link has not responded");
    driver.connect_newest(B, 50);
    driver.respond_partial(driver.first_request(B), SIZE, TAG);
    let got = Some(DataSize::from_bytes(4000));
    let want = Some(DataSize::from_bytes(SIZE));
    let banned = Notice::Banned {
        link: A,
        reason: BanReason::LengthMismatch { actual: got, expected: want },
        will_probe: true,
    };
    assert_eq!(driver.notices, [banned]);
    // The portal's link had requested the first bytes: they are requested again.
    driver.deliver_all(B, SIZE, TAG);
    assert!(driver.done);
}

#[test]
fn a_portal_that_responds_later_is_banned_and_its_ranges_are_freed() {
    for response in 0..4 {
        let mut driver = TestDriver::with_two_links(Config::default());
        driver.connect_newest(B, 50);
        driver.respond_partial(driver.first_request(B), SIZE, TAG);
        driver.connect_newest(A, 5);
        let req = driver.first_request(A);
        match response {
            0 => driver.respond_full(req, Some(4000), None),
            1 => driver.respond_status(req, 511),
            2 => driver.respond_partial(req, 4000, None),
            _ => driver.respond_partial(req, SIZE, Some("\"v2\"")),
        }
        assert!(matches!(driver.notices[..], [Notice::Banned { link: A, .. }]), "{response}: {:?}", driver.notices);
        assert!(driver.conns_on(A).is_empty());
        driver.deliver_all(B, SIZE, TAG);
        assert!(driver.done, "{response}");
    }
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
fn with_a_single_link_its_full_response_is_accepted() {
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(4000), None);
    assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::NoRanges }]);
    driver.deliver(req, 4000);
    assert!(driver.done);
}

#[test]
fn from_a_server_without_ranges_the_file_comes_over_one_link() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.connect_newest(B, 5);
    let (a, b) = (driver.first_request(A), driver.first_request(B));
    driver.respond_full(a, Some(SIZE), TAG);
    assert!(driver.identified.is_none());
    driver.respond_full(b, Some(SIZE), TAG);
    assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::NoRanges }]);
    assert_eq!(driver.conns.len(), 1);
    driver.deliver(a, SIZE);
    assert!(driver.done);
}

#[test]
fn a_body_without_length_ends_where_its_framing_ends() {
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, None, None);
    driver.deliver(req, 5000);
    assert!(!driver.done);
    driver.end_response(req);
    assert!(driver.done);
    assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::NoLength }]);
}

#[test]
fn responses_without_a_validator_are_not_combined() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, None);
    assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::NoValidator }]);
    driver.advance(Duration::from_millis(10));
    assert_eq!(driver.conns.len(), 1, "one link only");
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    assert_eq!(driver.reqs[&req].range, RequestRange::Full);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, SIZE);
    assert!(driver.done);
}

#[test]
fn a_checksum_replaces_the_validator() {
    let mut driver = TestDriver::with_two_links(Config { has_checksum: true, ..Config::default() });
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, None);
    driver.connect_newest(B, 5);
    driver.deliver_all(B, SIZE, None);
    driver.deliver_all(A, SIZE, None);
    assert!(driver.done && driver.notices.is_empty());
}

#[test]
fn a_lost_single_response_begins_again_from_zero() {
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    let conn = driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, 1000);
    driver.close_conn(conn, ConnErrorKind::Truncated);
    assert_eq!(driver.restarts, 1);
    driver.advance(Duration::from_secs(1));
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, SIZE);
    assert!(driver.done);
}

#[test]
fn a_single_response_that_always_breaks_off_is_given_up() {
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    let mut tries = 0;
    while driver.failed.is_none() && tries < 20 {
        tries += 1;
        let conn = driver.connect_newest(A, 5);
        let req = driver.first_request(A);
        driver.respond_full(req, None, None);
        driver.deliver(req, 1000);
        driver.close_conn(conn, ConnErrorKind::Truncated);
        driver.advance(Duration::from_secs(1));
    }
    assert!(matches!(driver.failed, Some(Failure::RetriesExhausted { .. })), "{:?} after {tries}", driver.failed);
    assert_eq!(tries, 1 + 5 + 1, "the first response was progress");
}

/// A single response has to carry the file, and over a link for which `bad` gives a size it always breaks off. Returns
/// how often it did.
fn count_broken_responses(driver: &mut TestDriver, bad: impl Fn(LinkId) -> Option<u64>) -> u32 {
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), bad(A).unwrap_or(SIZE), None);
    let mut lost = 0;
    for _ in 0..1000 {
        if driver.failed.is_some() || driver.done {
            break;
        }
        let Some(conn) = driver.conns.keys().next_back().copied() else {
            driver.advance(Duration::from_millis(500));
            continue;
        };
        let link = driver.conns[&conn].0;
        driver.connect_newest(link, 5);
        let Some((req, _)) = driver.requests_on(link).first().cloned() else {
            driver.advance(Duration::from_millis(500));
            continue;
        };
        driver.respond_full(req, Some(bad(link).unwrap_or(SIZE)), None);
        if !driver.reqs.contains_key(&req) {
            continue;
        }
        if bad(link).is_none() {
            driver.deliver(req, SIZE);
            break;
        }
        driver.deliver(req, 1000);
        driver.close_conn(conn, ConnErrorKind::Truncated);
        lost += 1;
    }
    lost
}

#[test]
fn a_single_response_that_breaks_off_on_one_link_comes_over_the_other() {
    let mut driver = TestDriver::with_two_links(Config::default());
    // The size that A reports contradicts the one from B, until A's retries are exhausted.
    let lost = count_broken_responses(&mut driver, |link| (link == A).then_some(SIZE + 1));
    assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
    assert!((1..=1 + 5 + 1).contains(&lost), "{lost}");
}

#[test]
fn a_single_response_that_breaks_off_on_every_link_is_given_up() {
    let mut driver = TestDriver::with_two_links(Config::default());
    let lost = count_broken_responses(&mut driver, |_| Some(SIZE));
    assert!(matches!(driver.failed, Some(Failure::RetriesExhausted { .. })), "{:?} after {lost}", driver.failed);
    assert_eq!(lost, 2 * (1 + 5 + 1), "on each link the first response was progress");
}

#[test]
fn a_single_response_moves_to_another_link_when_its_link_goes_down() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, None);
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, 1000);
    driver.handle(Input::LinkDown { link: A });
    driver.advance(Duration::from_millis(300));
    assert_eq!(driver.restarts, 1);
    driver.connect_newest(B, 5);
    let req = driver.first_request(B);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, SIZE);
    assert!(driver.done);
}

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
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
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
    let mut driver = TestDriver::new(resume_config());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
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
fn a_resumed_file_whose_server_stopped_serving_ranges_comes_as_a_single_response() {
    let mut driver = TestDriver::new(resume_config());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    driver.connect_newest(A, 5);
    driver.respond_full(driver.first_request(A), Some(SIZE), None);
    assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::NoRanges }]);
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, SIZE);
    assert!(driver.done);
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
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
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
fn each_link_follows_its_own_redirects() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    let head = |to| ResponseHead { status: 302, location: Some(UrlId(to)), ..ResponseHead::default() };
    driver.handle(Input::Head { req: driver.first_request(A), head: head(1) });
    assert_eq!(driver.conns[&driver.conns_on(A)[0]].1, UrlId(1));
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.connect_newest(B, 5);
    driver.handle(Input::Head { req: driver.first_request(B), head: head(2) });
    driver.connect_newest(B, 5);
    driver.deliver_all(B, SIZE, TAG);
    driver.deliver_all(A, SIZE, TAG);
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
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
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

/// Downloads over one link. `to` gives the redirect target of the nth request; none: the file. Returns the driver and
/// the number of requests.
fn run_redirects(config: Config, to: impl Fn(usize, UrlId) -> Option<u16>) -> (TestDriver, usize) {
    let mut driver = TestDriver::new(config);
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    let mut requests = 0;
    while !driver.done && driver.failed.is_none() && requests < 300 && driver.now < Instant::from_millis(300_000) {
        driver.advance(Duration::from_millis(10));
        if driver.conns_on(A).is_empty() {
            continue;
        }
        let conn = driver.connect_newest(A, 5);
        let (req, at) = (driver.first_request(A), driver.conns[&conn].1);
        match to(requests, at) {
            Some(n) => {
                let head = ResponseHead {
                    status: 302,
                    has_location: true,
                    location: Some(UrlId(n)),
                    ..ResponseHead::default()
                };
                driver.handle(Input::Head { req, head });
            }
            None => driver.deliver_all(A, 10_000, Some("\"v1\"")),
        }
        requests += 1;
    }
    (driver, requests)
}

#[test]
fn endless_redirects_are_given_up() {
    // Redirect loops of one, two and five URLs, and redirects that never repeat.
    for (circle, most) in [(1, 16), (2, 30), (5, 70), (10_000, 110)] {
        let next = |_, at: UrlId| Some(if at.0 == circle { 1 } else { at.0 + 1 });
        let (driver, requests) = run_redirects(Config::default(), next);
        assert_eq!(driver.failed, Some(Failure::RedirectLoop), "{circle}");
        assert!(requests <= most, "{circle}: {requests}");
    }
    let config = Config { max_redirects: 3, ..Config::default() };
    let (driver, requests) = run_redirects(config, |_, at| Some(at.0 + 1));
    assert_eq!((driver.failed, requests), (Some(Failure::RedirectLoop), 4));
}

#[test]
fn redirects_that_end_are_followed_up_to_the_limit() {
    for hops in [1, 25, 30, 49, 50] {
        let (driver, requests) = run_redirects(Config::default(), |_, at| (at.0 < hops).then_some(at.0 + 1));
        assert!(driver.done, "{hops}: {:?}", driver.failed);
        assert_eq!(requests, usize::from(hops) + 1);
        assert!(driver.now < Instant::from_millis(2000), "{hops}: {}", driver.now);
    }
    // Redirects to the same URL until the file is ready, or a cookie is set.
    for rounds in [1, 2, 5] {
        let (driver, requests) = run_redirects(Config::default(), |n, _| (n < rounds).then_some(1));
        assert!(driver.done && requests == rounds + 1, "{rounds}: {requests} {:?}", driver.failed);
    }
}

#[test]
fn an_html_page_instead_of_the_rest_of_the_file_ends_the_download_soon() {
    for links in [1, 2] {
        let mut driver = TestDriver::new(resume_config());
        driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
        if links == 2 {
            driver.link_up(B, LinkProfile::new("b", LinkKind::Lte));
        }
        for _ in 0..200 {
            for (conn, _) in driver.conns.clone() {
                if driver.fetch.transfers.conns.get(&conn).is_some_and(|conn| !conn.is_open()) {
                    driver.on_connected(conn, Protocol::Http1, 5, None);
                }
                let request = driver.reqs.iter().find(|(_, request)| request.conn == conn).map(|(req, _)| *req);
                if let Some(req) = request {
                    let length = Some(DataSize::from_bytes(700));
                    driver.handle(Input::Head {
                        req,
                        head: ResponseHead { status: 200, length, is_html_page: true, ..ResponseHead::default() },
                    });
                }
            }
            driver.advance(Duration::from_millis(100));
        }
        assert_eq!(driver.failed, Some(Failure::HtmlPage), "{:?}", driver.notices);
        assert!(driver.restarts == 0 && driver.received.is_empty(), "the stored bytes are kept");
    }
}

#[test]
fn a_short_response_frees_the_rest_of_its_range() {
    let mut driver = TestDriver::new(Config { policy: Policy::Marline, ..Config::default() });
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    let head = ResponseHead {
        status: 206,
        range: Some(ContentRange { range: Some(ByteRange::new(0, 1000)), total: Some(DataSize::from_bytes(SIZE)) }),
        validator: Some(Validator::Etag("\"v1\"".into())),
        ..ResponseHead::default()
    };
    driver.handle(Input::Head { req, head });
    driver.deliver(req, 1000);
    driver.end_response(req);
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done);
}

#[test]
fn a_pending_response_that_breaks_off_is_dropped() {
    let mut driver = TestDriver::with_two_links(Config::default());
    let conn = driver.conns_on(A)[0];
    driver.on_connected(conn, Protocol::Http2, 5, None);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(4000), None);
    driver.reqs.remove(&req);
    driver.handle(Input::Aborted { req, error: ConnError { kind: ConnErrorKind::Reset, text: "test".into() } });
    driver.advance(Duration::from_secs(20));
    assert!(driver.identified.is_none(), "an aborted response was accepted");
}

#[test]
fn a_range_without_a_total_is_accepted_if_its_validator_matches() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_partial(req, SIZE, TAG);
    driver.deliver(req, 60_000);
    driver.connect_newest(B, 5);
    let req = driver.first_request(B);
    let RequestRange::Bounded(range) = driver.reqs[&req].range else { panic!() };
    let head = ResponseHead {
        status: 206,
        range: Some(ContentRange { range: Some(range), total: None }),
        validator: Some(Validator::Etag("\"v1\"".into())),
        ..ResponseHead::default()
    };
    driver.handle(Input::Head { req, head });
    assert_eq!(driver.reqs[&req].next_offset, Some(range.start));
    assert!(driver.restarts == 0 && driver.fetch.status().received.bytes() == 60_000);
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

#[test]
fn a_portals_redirect_is_forgotten_when_the_link_is_probed_again() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(B, 50);
    driver.respond_partial(driver.first_request(B), 800_000_000, TAG);
    driver.connect_newest(A, 5);
    let head = ResponseHead { status: 302, location: Some(UrlId(1)), ..ResponseHead::default() };
    driver.handle(Input::Head { req: driver.first_request(A), head });
    driver.connect_newest(A, 5);
    driver.respond_full(driver.first_request(A), Some(4000), None);
    assert!(driver.conns_on(A).is_empty());
    for _ in 0..60 {
        driver.advance(Duration::from_millis(100));
        let req = driver.first_request(B);
        driver.deliver(req, 1000);
    }
    assert_eq!(driver.conns[&driver.conns_on(A)[0]].1, UrlId(0));
}

#[test]
fn empty_responses_and_resets_after_close_are_failures() {
    for empty in [true, false] {
        let mut driver = TestDriver::new(Config { retries: 3, ..Config::default() });
        driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
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
