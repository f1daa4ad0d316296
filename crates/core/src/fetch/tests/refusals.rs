//! Servers that refuse for a while after they have delivered, or that refuse range requests (`refusals`, `stall`).

use super::server_quirks::{SIZE, TAG, honest_response, one_link, serve, status_head};
use super::*;

/// The server delivers half of the file and then refuses everything for the duration `until`. Returns when the download
/// ended.
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
        let mut driver = TestDriver::new(Config::default());
        driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
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
