//! Responses to range requests (`range_response`, `server_quirks`).

use super::servers::{SIZE, TAG, bytes, honest_response, one_link, partial_head, serve, status_head};
use super::*;
use crate::fetch::{Policy, SingleResponseReason};

#[test]
fn a_short_response_frees_the_rest_of_its_range() {
    let mut driver = TestDriver::with_one_link(Config { policy: Policy::Marline, ..Config::default() });
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
fn a_206_with_the_whole_file_is_treated_as_a_200() {
    for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
        let requests = serve(&mut driver, |_, _, _| Some(partial_head(ByteRange::new(0, SIZE), SIZE, TAG)));
        assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
        assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::NoRanges }]);
        assert!(requests <= 2 && driver.restarts == 0, "{requests}");
    }
}

#[test]
fn after_an_unusable_range_response_the_file_is_requested_without_a_range() {
    type Spoil = fn(ResponseHead) -> ResponseHead;
    let table: [(&str, Spoil); 4] = [
        ("no Content-Range", |head| ResponseHead { range: None, ..head }),
        ("another length", |head| ResponseHead { length: bytes(7), ..head }),
        ("another range", |mut head| {
            head.range = Some(ContentRange { range: Some(ByteRange::new(100_000, 100_010)), total: bytes(SIZE) });
            ResponseHead { length: bytes(10), ..head }
        }),
        ("a range beyond the end", |head| {
            let range = head.range.and_then(|range| range.range);
            ResponseHead { range: Some(ContentRange { range, total: bytes(10) }), ..head }
        }),
    ];
    for (what, spoil) in table {
        for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
            let requests = serve(&mut driver, |driver, _, req| {
                let head = honest_response(driver, req, TAG);
                Some(if head.status == 206 { spoil(head) } else { head })
            });
            assert!(driver.done, "{what}: {:?} {:?}", driver.failed, driver.notices);
            assert_eq!(
                driver.notices,
                [Notice::SingleResponse { reason: SingleResponseReason::UnusableRanges }],
                "{what}"
            );
            assert!(requests <= 3, "{what}: {requests}");
        }
    }
}

#[test]
fn a_part_is_not_accepted_as_the_whole_file() {
    type Spoil = fn(ResponseHead, ByteRange) -> ResponseHead;
    let table: [(&str, Spoil); 2] = [
        ("numbered as if it were the whole", |head, range| ResponseHead {
            range: Some(ContentRange { range: Some(range), total: bytes(range.end) }),
            ..head
        }),
        ("sent as the whole", |head, _| ResponseHead { status: 200, range: None, ..head }),
    ];
    for (what, spoil) in table {
        for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
            serve(&mut driver, |driver, _, req| {
                let head = honest_response(driver, req, TAG);
                let range = head.range.and_then(|range| range.range);
                Some(range.map_or(head.clone(), |range| spoil(head, range)))
            });
            assert!(driver.done, "{what}: {:?} {:?}", driver.failed, driver.notices);
            assert_eq!(driver.fetch.transfers.coverage.total(), bytes(SIZE), "{what}");
            assert_eq!(
                driver.notices,
                [Notice::SingleResponse { reason: SingleResponseReason::SuspectLength }],
                "{what}"
            );
        }
    }
}

#[test]
fn a_range_with_status_200_is_accepted_as_a_range() {
    for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
        serve(&mut driver, |driver, _, req| {
            Some(ResponseHead { status: 200, ..honest_response(driver, req, TAG) })
        });
        assert!(driver.done && driver.notices.is_empty(), "{:?} {:?}", driver.failed, driver.notices);
        assert_eq!(driver.fetch.transfers.coverage.total(), bytes(SIZE));
    }
}

#[test]
fn after_one_unusable_range_response_the_range_is_requested_again() {
    let (mut driver, mut nth) = (one_link(), 0);
    serve(&mut driver, |driver, _, req| {
        nth += 1;
        let head = honest_response(driver, req, TAG);
        Some(if nth == 3 { ResponseHead { range: None, ..head } } else { head })
    });
    assert!(driver.done && driver.notices.is_empty() && driver.restarts == 0, "{:?}", driver.notices);
}

#[test]
fn surplus_bytes_of_a_range_response_are_skipped() {
    type Wider = fn(ByteRange) -> ByteRange;
    let table: [(&str, Wider); 2] = [
        ("before", |range| ByteRange::new(range.start.saturating_sub(70_000), range.end.min(SIZE))),
        ("both", |range| ByteRange::new(range.start / 65_536 * 65_536, (range.end + 100_000).min(SIZE))),
    ];
    for (what, wider) in table {
        for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
            let requests = serve(&mut driver, |driver, _, req| {
                let RequestRange::Bounded(range) = driver.reqs[&req].range else {
                    return Some(honest_response(driver, req, TAG));
                };
                Some(partial_head(wider(range), SIZE, TAG))
            });
            assert!(driver.done, "{what}: {:?} {:?}", driver.failed, driver.notices);
            assert!(driver.notices.is_empty() && driver.restarts == 0, "{what}: {:?}", driver.notices);
            assert!(requests < 60, "{what}: {requests}");
        }
    }
}

#[test]
fn ranges_of_a_few_bytes_are_given_up_for_a_single_response() {
    let mut driver = one_link();
    let requests = serve(&mut driver, |driver, _, req| {
        let RequestRange::Bounded(range) = driver.reqs[&req].range else {
            return Some(honest_response(driver, req, TAG));
        };
        Some(partial_head(ByteRange::new(range.start, range.end.min(range.start + 100)), SIZE, TAG))
    });
    assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
    assert!(requests < 12, "{requests}");
}

#[test]
fn a_range_that_is_refused_for_its_size_is_requested_in_parts() {
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
        for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
            let (mut refused, mut largest) = (0, 0);
            serve(&mut driver, |driver, _, req| {
                let head = honest_response(driver, req, TAG);
                let RequestRange::Bounded(range) = driver.reqs[&req].range else { return Some(status_head(403)) };
                if range.len().bytes() > limit {
                    refused += 1;
                    return Some(status_head(refuses));
                }
                largest = largest.max(range.len().bytes());
                Some(head)
            });
            let what = alloc::format!("{limit} {refuses}: {refused} refused, {:?}", driver.notices);
            assert!(driver.done, "{:?} {what}", driver.failed);
            let quiet = driver.notices.iter().all(|notice| matches!(notice, Notice::ServerBusy { .. }));
            assert!(quiet && driver.restarts == 0, "{what}");
            assert!(refused <= 8 && largest * 2 > limit, "{what}");
        }
    }
}

#[test]
fn a_server_that_sometimes_ignores_ranges_gets_further_range_requests() {
    let (mut driver, mut nth) = (one_link(), 0);
    serve(&mut driver, |driver, _, req| {
        nth += 1;
        let head = honest_response(driver, req, TAG);
        Some(if nth % 3 == 0 {
            ResponseHead { status: 200, length: bytes(SIZE), range: None, ..head }
        } else {
            head
        })
    });
    assert!(driver.done && driver.notices.is_empty() && driver.restarts == 0, "{:?}", driver.notices);
}
