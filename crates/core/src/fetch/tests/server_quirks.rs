//! Servers with unusual behaviour (`server_quirks`, `refusals`, `version_check`, `token_bucket`).

use super::*;
use crate::fetch::{BanReason, SingleResponseReason};

pub(super) const SIZE: u64 = 3_000_000;
pub(super) const TAG: Option<&str> = Some("\"v1\"");

pub(super) fn bytes(n: u64) -> Option<DataSize> {
    Some(DataSize::from_bytes(n))
}

fn etag(tag: &str) -> Option<Validator> {
    Some(Validator::Etag(tag.into()))
}

/// A driver with one link.
pub(super) fn one_link() -> TestDriver {
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    driver
}

/// Head of a 206 with these bytes.
pub(super) fn partial_head(range: ByteRange, total: u64, tag: Option<&str>) -> ResponseHead {
    ResponseHead {
        status: 206,
        length: Some(range.len()),
        range: Some(ContentRange { range: Some(range), total: bytes(total) }),
        validator: tag.and_then(etag),
        ..ResponseHead::default()
    }
}

fn requested_range(driver: &TestDriver, req: ReqId) -> ByteRange {
    match driver.reqs[&req].range {
        RequestRange::Bounded(range) => range,
        requested => panic!("{requested:?}"),
    }
}

/// Responds to requests, one at a time per connection, until the download is over. `respond` gives the response head;
/// none: not yet. With status 0 the connection is reset instead. A connection is closed if its response was longer than
/// accepted, or if the head announces it. Returns the number of requests.
pub(super) fn serve(
    driver: &mut TestDriver,
    mut respond: impl FnMut(&TestDriver, LinkId, ReqId) -> Option<ResponseHead>,
) -> u32 {
    let (mut requests, mut heads) = (0, BTreeMap::new());
    for _ in 0..20_000 {
        if driver.done || driver.failed.is_some() {
            break;
        }
        for (conn, (link, _)) in driver.conns.clone() {
            if !driver.conns.contains_key(&conn) {
                continue;
            }
            if !driver.connected.contains(&conn) {
                driver.on_connected(conn, Protocol::Http1, 5, None);
                continue;
            }
            let next = driver.requests_on(link).into_iter().find(|(_, request)| request.conn == conn);
            let Some((req, _)) = next else { continue };
            let unanswered = !heads.contains_key(&req);
            if unanswered {
                let Some(head) = respond(driver, link, req) else { continue };
                requests += 1;
                if head.status == 0 {
                    driver.close_conn(conn, ConnErrorKind::Reset);
                    continue;
                }
                heads.insert(req, head.clone());
                driver.handle(Input::Head { req, head });
            }
            let (Some(head), Some(at)) =
                (heads.get(&req), driver.reqs.get(&req).and_then(|request| request.next_offset))
            else {
                continue;
            };
            let range = head.range.and_then(|range| range.range).filter(|_| matches!(head.status, 200 | 206));
            assert_eq!(at, range.map_or(0, |range| range.start), "bytes are stored at a wrong offset");
            let body = range.map_or(head.length.unwrap_or_default(), ByteRange::len);
            let wanted = driver.accepted_lens.get(&req).copied().flatten().unwrap_or(body);
            driver.advance(Duration::from_millis(2));
            if !driver.reqs.contains_key(&req) {
                continue;
            }
            driver.deliver(req, wanted.min(body).bytes());
            if driver.done {
                break;
            }
            if driver.reqs.contains_key(&req) {
                driver.end_response(req);
            }
            if (head.closes_connection || body > wanted) && driver.conns.contains_key(&conn) {
                driver.close_conn(conn, ConnErrorKind::CleanClose);
            }
        }
        driver.advance(Duration::from_millis(5));
    }
    requests
}

/// The response of a server that behaves correctly.
pub(super) fn honest_response(driver: &TestDriver, req: ReqId, tag: Option<&str>) -> ResponseHead {
    match driver.reqs[&req].range {
        RequestRange::Bounded(range) => partial_head(range.intersect(ByteRange::new(0, SIZE)), SIZE, tag),
        RequestRange::From(start) => partial_head(ByteRange::new(start, SIZE), SIZE, tag),
        RequestRange::Full => ResponseHead {
            status: 200,
            length: bytes(SIZE),
            validator: tag.and_then(etag),
            ..ResponseHead::default()
        },
    }
}

pub(super) fn status_head(status: u16) -> ResponseHead {
    ResponseHead { status, length: bytes(0), ..ResponseHead::default() }
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

#[test]
fn a_portals_page_in_response_to_the_full_request_discards_no_byte() {
    let (mut driver, mut served) = (one_link(), 0);
    serve(&mut driver, |driver, _, req| {
        let head = honest_response(driver, req, TAG);
        served += 1;
        Some(match served {
            0..=3 => head,
            // A portal: refuses ranges, and has a page for everything else.
            4..=12 if head.status == 206 => status_head(403),
            4..=12 => ResponseHead { status: 200, length: bytes(1000), ..ResponseHead::default() },
            _ => head,
        })
    });
    assert!(driver.done && driver.restarts == 0, "{:?} {:?}", driver.failed, driver.notices);
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
fn a_server_that_refuses_the_range_field_gets_a_request_without_it() {
    for refuses in [400, 403, 406, 416, 500, 501] {
        for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
            let requests = serve(&mut driver, |driver, _, req| {
                Some(if driver.reqs[&req].range == RequestRange::Full {
                    honest_response(driver, req, TAG)
                } else {
                    status_head(refuses)
                })
            });
            assert!(driver.done, "{refuses}: {:?} {:?}", driver.failed, driver.notices);
            assert!(requests <= 7, "{refuses}: {requests}");
        }
    }
}

#[test]
fn an_empty_or_contradictory_range_response_leads_to_one_request_without_a_range() {
    let beyond = Some(ContentRange { range: None, total: bytes(SIZE) });
    let page = ResponseHead { is_html_page: true, ..partial_head(ByteRange::new(0, 1553), 1553, None) };
    for response in [
        ResponseHead { status: 200, ..status_head(200) },
        ResponseHead { range: beyond, ..status_head(416) },
        ResponseHead { validator: etag("page"), ..page.clone() },
        page,
    ] {
        for mut driver in [one_link(), TestDriver::with_two_links(Config::default())] {
            let requests = serve(&mut driver, |driver, _, req| {
                Some(if driver.reqs[&req].range == RequestRange::Full {
                    honest_response(driver, req, TAG)
                } else {
                    response.clone()
                })
            });
            assert!(driver.done, "{response:?}: {:?} {:?}", driver.failed, driver.notices);
            assert_eq!(driver.identified.as_ref().and_then(|(total, _)| *total), bytes(SIZE), "{response:?}");
            assert!(requests <= 5, "{response:?}: {requests}");
        }
    }
    let mut driver = one_link();
    let requests = serve(&mut driver, |_, _, _| Some(status_head(200)));
    assert!(driver.done && requests == 2, "an empty file: {requests}");
    let mut driver = one_link();
    let requests = serve(&mut driver, |_, _, _| Some(ResponseHead { range: beyond, ..status_head(416) }));
    assert_eq!((driver.failed, requests), (Some(Failure::BadStatus { status: 416 }), 2));
}

#[test]
fn a_refusal_that_concerns_the_resource_is_final_after_one_check() {
    for (refuses, most) in [(401, 1), (402, 2), (404, 2), (410, 2), (451, 2), (511, 1)] {
        let mut driver = one_link();
        let requests = serve(&mut driver, |_, _, _| Some(status_head(refuses)));
        assert_eq!((driver.failed, requests), (Some(Failure::BadStatus { status: refuses }), most));
    }
    for refuses in [400, 403, 501] {
        let mut driver = one_link();
        let requests = serve(&mut driver, |_, _, _| Some(status_head(refuses)));
        assert_eq!((driver.failed, requests), (Some(Failure::BadStatus { status: refuses }), 3));
    }
}

/// A URL that redirects to a new target each time. `good_for` decides by number and age whether a target's response is
/// good. Returns the numbers of requests and targets.
fn run_redirects(driver: &mut TestDriver, refuses: u16, good_for: impl Fn(u32, Instant) -> bool) -> (u32, u32) {
    let (mut targets, mut made, mut responses) = (1, BTreeMap::new(), BTreeMap::new());
    let requests = serve(driver, |driver, _, req| {
        let url = driver.conns[&driver.reqs[&req].conn].1;
        if url == UrlId(0) {
            let target = UrlId(targets);
            targets += 1;
            made.insert(target, driver.now);
            return Some(ResponseHead { status: 302, location: Some(target), ..ResponseHead::default() });
        }
        let nth = responses.entry(url).or_insert(0);
        *nth += 1;
        Some(if good_for(*nth, Instant::ZERO + (driver.now - made[&url])) {
            honest_response(driver, req, TAG)
        } else {
            status_head(refuses)
        })
    });
    (requests, u32::from(targets - 1))
}

#[test]
fn after_an_expired_target_the_redirecting_url_is_requested_again() {
    for refuses in [400, 401, 403, 404, 410, 500, 502, 503, 302, 204] {
        for links in [1, 2] {
            let mut driver = if links == 1 { one_link() } else { TestDriver::with_two_links(Config::default()) };
            let (requests, _) = run_redirects(&mut driver, refuses, |_, age| age < Instant::from_millis(40));
            assert!(
                driver.done && driver.notices.is_empty(),
                "{refuses}: {:?} {:?}",
                driver.failed,
                driver.notices
            );
            assert!(
                driver.now < Instant::from_millis(3000) && requests < 150,
                "{refuses}: {requests} {}",
                driver.now
            );
        }
    }
}

#[test]
fn a_page_that_reports_an_expired_target_leads_back_to_the_redirecting_url() {
    for links in [1, 2] {
        let mut driver = if links == 1 { one_link() } else { TestDriver::with_two_links(Config::default()) };
        let (mut made, mut responses) = (0, BTreeMap::new());
        serve(&mut driver, |driver, _, req| {
            let url = driver.conns[&driver.reqs[&req].conn].1;
            if url == UrlId(0) {
                made += 1;
                return Some(ResponseHead { status: 302, location: Some(UrlId(made)), ..ResponseHead::default() });
            }
            let nth = responses.entry(url).or_insert(0);
            *nth += 1;
            let page =
                ResponseHead { status: 200, length: bytes(1500), is_html_page: true, ..ResponseHead::default() };
            Some(if *nth <= 2 { honest_response(driver, req, TAG) } else { page })
        });
        assert!(driver.done && driver.notices.is_empty(), "{:?} {:?}", driver.failed, driver.notices);
        assert!(driver.now < Instant::from_millis(3000), "{}", driver.now);
    }
}

#[test]
fn a_target_that_is_valid_for_one_request_gets_a_large_one() {
    for links in [1, 2] {
        let mut driver = if links == 1 { one_link() } else { TestDriver::with_two_links(Config::default()) };
        let (requests, targets) = run_redirects(&mut driver, 403, |nth, _| nth == 1);
        assert!(driver.done && driver.notices.is_empty(), "{:?} {:?}", driver.failed, driver.notices);
        assert!(targets <= 12 && requests <= 40, "{targets} targets, {requests} requests");
    }
}

#[test]
fn a_target_that_refuses_large_ranges_has_not_expired() {
    let mut driver = one_link();
    let mut targets = 0;
    serve(&mut driver, |driver, _, req| {
        if driver.conns[&driver.reqs[&req].conn].1 == UrlId(0) {
            targets += 1;
            return Some(ResponseHead { status: 302, location: Some(UrlId(targets)), ..ResponseHead::default() });
        }
        let large = requested_range(driver, req).len() > DataSize::from_kib(128);
        Some(if large { status_head(403) } else { honest_response(driver, req, TAG) })
    });
    assert!(driver.done && driver.notices.is_empty() && targets == 1, "{targets} {:?}", driver.notices);
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
    let old = driver.connect_newest(A, 20);
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
    while driver.conns_on(A) == [old] {
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
