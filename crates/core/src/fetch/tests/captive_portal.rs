//! Pages of captive portals in place of the file (`portal_check`).

use super::servers::{SIZE, TAG, bytes, honest_response, one_link, resume_config, serve, status_head};
use super::*;
use crate::fetch::{BanReason, SingleResponseReason};

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
fn with_a_single_link_its_full_response_is_accepted() {
    let mut driver = one_link();
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(4000), None);
    assert_eq!(driver.notices, [Notice::SingleResponse { reason: SingleResponseReason::NoRanges }]);
    driver.deliver(req, 4000);
    assert!(driver.done);
}

#[test]
fn an_html_page_instead_of_the_rest_of_the_file_ends_the_download_soon() {
    for links in [1, 2] {
        let mut driver = TestDriver::with_one_link(resume_config());
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
