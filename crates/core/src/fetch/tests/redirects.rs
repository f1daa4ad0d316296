//! Redirects, and targets that expire (`redirects`, `refusals`).

use super::servers::{SIZE, TAG, bytes, honest_response, one_link, requested_range, serve, status_head};
use super::*;

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

/// Downloads over one link. `to` gives the redirect target of the nth request; none: the file. Returns the driver and
/// the number of requests.
fn run_redirects(config: Config, to: impl Fn(usize, UrlId) -> Option<u16>) -> (TestDriver, usize) {
    let mut driver = TestDriver::with_one_link(config);
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
    // Redirect loops of one, two and five URLs, and redirects that never repeat, each with its maximum number of
    // requests.
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

/// A URL that redirects to a new target each time. `good_for` decides by number and age whether a target's response is
/// good. Returns the numbers of requests and targets.
fn run_expiring_redirects(
    driver: &mut TestDriver,
    refuses: u16,
    good_for: impl Fn(u32, Instant) -> bool,
) -> (u32, u32) {
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
            let (requests, _) =
                run_expiring_redirects(&mut driver, refuses, |_, age| age < Instant::from_millis(40));
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
        let (requests, targets) = run_expiring_redirects(&mut driver, 403, |nth, _| nth == 1);
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
