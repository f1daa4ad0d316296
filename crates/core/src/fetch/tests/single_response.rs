//! Downloads by a single response (`single_response`).

use super::servers::{SIZE, TAG, bytes, honest_response, one_link, resume_config, serve, status_head};
use super::*;
use crate::fetch::SingleResponseReason;

/// Connects over a link. The server responds with the whole file, which completes the download.
fn complete_with_full_response(driver: &mut TestDriver, link: LinkId) {
    driver.connect_newest(link, 5);
    let req = driver.first_request(link);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, SIZE);
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
    let mut driver = one_link();
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
    let mut driver = one_link();
    let conn = driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, 1000);
    driver.close_conn(conn, ConnErrorKind::Truncated);
    assert_eq!(driver.restarts, 1);
    driver.advance(Duration::from_secs(1));
    complete_with_full_response(&mut driver, A);
}

#[test]
fn a_single_response_that_always_breaks_off_is_given_up() {
    let mut driver = one_link();
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
    complete_with_full_response(&mut driver, B);
}

#[test]
fn a_resumed_file_whose_server_stopped_serving_ranges_comes_as_a_single_response() {
    let mut driver = TestDriver::with_one_link(resume_config());
    driver.connect_newest(A, 5);
    driver.respond_full(driver.first_request(A), Some(SIZE), None);
    assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::NoRanges }]);
    complete_with_full_response(&mut driver, A);
}

#[test]
fn a_server_that_refuses_further_ranges_gets_a_request_for_the_whole_file() {
    type Refusal = fn(ResponseHead, ByteRange) -> ResponseHead;
    let table: [(&str, Refusal); 5] = [
        ("403", |_, _| status_head(403)),
        ("412", |_, _| status_head(412)),
        ("500", |_, _| status_head(500)),
        ("416 with the size", |_, _| ResponseHead {
            range: Some(ContentRange { range: None, total: bytes(SIZE) }),
            ..status_head(416)
        }),
        ("no Content-Range", |head, _| ResponseHead { range: None, ..head }),
    ];
    for (what, refusal) in table {
        for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
            let mut served = 0;
            let requests = serve(&mut driver, |driver, _, req| {
                let head = honest_response(driver, req, TAG);
                let Some(range) = head.range.and_then(|range| range.range) else { return Some(head) };
                served += 1;
                Some(if served <= 3 { head } else { refusal(head, range) })
            });
            assert!(driver.done, "{what}: {:?} {:?}", driver.failed, driver.notices);
            assert!(requests < 60, "{what}: {requests}");
        }
    }
}
