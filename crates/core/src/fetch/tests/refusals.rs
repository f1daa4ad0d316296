//! Servers that refuse for a while after they have delivered, or that refuse range requests (`refusals`, `stall`).

use super::servers::{SIZE, TAG, bytes, etag, honest_response, one_link, partial_head, serve, status_head};
use super::*;

/// The server delivers half of the file, then responds to every request with the status `code` for the duration
/// `until`, and then delivers the rest. Returns when the download ended.
fn run_refusal_after_half(code: u16, until: Duration) -> (TestDriver, Instant) {
    let mut driver = one_link();
    let mut half = None;
    serve(&mut driver, |driver, _, req| {
        if driver.fetch.status().received.bytes() < SIZE / 2 {
            return Some(honest_response(driver, req, TAG));
        }
        let since = *half.get_or_insert(driver.now);
        Some(if driver.now < since + until { status_head(code) } else { honest_response(driver, req, TAG) })
    });
    let end = driver.now;
    (driver, end)
}

#[test]
fn a_server_that_has_delivered_may_refuse_for_a_while() {
    for code in [403, 404] {
        for seconds in [6, 14, 25] {
            let (driver, end) = run_refusal_after_half(code, Duration::from_secs(seconds));
            assert!(driver.done, "{code} for {seconds} s: {:?}", driver.failed);
            assert!(end < Instant::ZERO + Duration::from_secs(40), "{end:?}");
        }
        let (driver, end) = run_refusal_after_half(code, Duration::from_secs(3600));
        assert_eq!(driver.failed, Some(Failure::BadStatus { status: code }));
        assert!(end < Instant::ZERO + Duration::from_secs(45), "{end:?}");
    }
}

#[test]
fn a_refusal_of_the_resource_is_checked_by_one_request_without_a_range() {
    for code in [402, 404, 410, 421, 423, 428, 451] {
        for open_first in [false, true] {
            let config = Config { open_ended_first: open_first, ..Config::default() };
            let mut single = TestDriver::new(config.clone());
            single.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
            for mut driver in [single, TestDriver::with_two_links(config)] {
                let requests = serve(&mut driver, |driver, _, req| {
                    Some(if driver.reqs[&req].range == RequestRange::Full {
                        honest_response(driver, req, TAG)
                    } else {
                        status_head(code)
                    })
                });
                assert!(driver.done, "{code}: {:?} {:?}", driver.failed, driver.notices);
                assert!(requests <= 4, "{code}: {requests}");
            }
        }
    }
    for open_first in [false, true] {
        let mut driver = TestDriver::with_two_links(Config { open_ended_first: open_first, ..Config::default() });
        let mut full_requests = 0;
        let requests = serve(&mut driver, |driver, _, req| {
            full_requests += u32::from(driver.reqs[&req].range == RequestRange::Full);
            Some(status_head(404))
        });
        assert_eq!(driver.failed, Some(Failure::BadStatus { status: 404 }));
        assert!(full_requests == 1 && requests <= 3, "{full_requests} of {requests}");
    }
}

#[test]
fn a_body_that_cannot_be_read_ends_the_download_soon() {
    for kind in [ConnErrorKind::Protocol, ConnErrorKind::Reset] {
        let mut driver = one_link();
        let begun = driver.now;
        for _ in 0..50 {
            if driver.failed.is_some() {
                break;
            }
            if !driver.conns_on(A).is_empty() {
                let conn = driver.connect_newest(A, 5);
                if let Some((req, _)) = driver.requests_on(A).first() {
                    driver.respond_full(*req, None, None);
                }
                driver.close_conn(conn, kind);
            }
            driver.advance(Duration::from_millis(500));
        }
        assert!(matches!(driver.failed, Some(Failure::RetriesExhausted { .. })), "{:?}", driver.failed);
        assert!(driver.now - begun < Duration::from_secs(20));
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
