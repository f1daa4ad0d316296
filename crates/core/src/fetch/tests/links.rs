//! Links that go down, stall, recover, are metered or have a budget (`stall`, `link_health`, `metering`).

use super::*;
use crate::fetch::{BanReason, MeteredUse};

const SIZE: u64 = 50_000_000;
const TAG: Option<&str> = Some("\"v1\"");

/// Two links, each with a first response of which a few bytes have arrived.
fn two_delivering_links() -> TestDriver {
    let mut driver = TestDriver::with_two_links(Config::default());
    for link in [A, B] {
        driver.connect_newest(link, 20);
        let req = driver.first_request(link);
        driver.respond_partial(req, SIZE, TAG);
        driver.deliver(req, 1000);
    }
    driver
}

#[test]
fn a_link_that_goes_down_returns_its_ranges() {
    let mut driver = two_delivering_links();
    driver.handle(Input::LinkDown { link: A });
    assert!(driver.conns_on(A).is_empty());
    driver.deliver_all(B, SIZE, TAG);
    assert!(driver.done);
}

#[test]
fn a_stalled_link_keeps_its_ranges_until_the_others_have_nothing_to_request() {
    let mut driver = two_delivering_links();
    for _ in 0..10 {
        driver.advance(Duration::from_millis(100));
        let req = driver.first_request(B);
        driver.deliver(req, 5000);
    }
    let requested: Vec<ByteRange> = driver.requests_on(A).iter().filter_map(|(_, a)| bounded_range(a)).collect();
    assert!(!requested.is_empty());
    let taken = |driver: &TestDriver| {
        driver
            .requests_on(B)
            .iter()
            .filter_map(|(_, a)| bounded_range(a))
            .any(|s| s.start < requested[0].end && s.end > 1000 && s.start >= requested[0].start)
    };
    assert!(!taken(&driver), "requested at once");
    driver.deliver_all(B, SIZE, TAG);
    assert!(driver.done, "completed without the stalled link");
}

fn bounded_range(request: &SentRequest) -> Option<ByteRange> {
    match request.range {
        RequestRange::Bounded(range) => Some(range),
        _ => None,
    }
}

#[test]
fn a_stalled_link_is_probed_by_new_connections_and_the_first_to_deliver_wins() {
    let mut driver = two_delivering_links();
    let first_conn = driver.conns_on(A)[0];
    for _ in 0..20 {
        driver.advance(Duration::from_millis(100));
        let req = driver.first_request(B);
        driver.deliver(req, 1000);
    }
    let probes = driver.conns_on(A).len() - 1;
    assert!((2..=12).contains(&probes), "{probes}");
    assert!(driver.notices.iter().any(|n| matches!(n, Notice::Stalled { link: A, .. })));
    let fresh = driver.connect_newest(A, 20);
    assert_eq!(driver.conns_on(A), [first_conn, fresh]);
    let req =
        driver.requests_on(A).iter().find(|(_, a)| a.conn == fresh).expect("a request on the new connection").0;
    driver.respond_partial(req, SIZE, TAG);
    driver.deliver(req, 1000);
    assert_eq!(driver.conns_on(A), [fresh], "the stalled connection is closed");
    assert!(driver.notices.contains(&Notice::Recovered { link: A }));
}

#[test]
fn a_refused_connection_is_retried_with_backoff_and_then_given_up() {
    let mut driver = TestDriver::with_one_link(Config { retries: 3, ..Config::default() });
    let mut tries = 0;
    while driver.failed.is_none() && tries < 20 {
        if let Some(conn) = driver.conns_on(A).first().copied() {
            tries += 1;
            driver.close_conn(conn, ConnErrorKind::Refused);
        }
        driver.advance(Duration::from_millis(50));
    }
    assert_eq!(tries, 4);
    assert!(matches!(driver.failed, Some(Failure::RetriesExhausted { .. })), "{:?}", driver.failed);
    assert!(driver.now > Instant::from_millis(1000), "{}", driver.now);
}

#[test]
fn a_server_that_closes_after_each_response_is_no_failure() {
    let mut driver = TestDriver::with_one_link(Config::default());
    let mut rounds = 0;
    while !driver.done && rounds < 1000 {
        rounds += 1;
        let conn = driver.connect_newest(A, 5);
        let (req, request) = driver.requests_on(A)[0].clone();
        driver.respond_partial(req, 2_000_000, TAG);
        let len = bounded_range(&request).unwrap().intersect(ByteRange::new(0, 2_000_000)).len().bytes();
        driver.deliver(req, len);
        if driver.done {
            break;
        }
        driver.end_response(req);
        driver.close_conn(conn, ConnErrorKind::CleanClose);
        driver.advance(Duration::from_millis(1));
    }
    assert!(driver.done && driver.notices.is_empty(), "{:?}", driver.notices);
}

#[test]
fn a_metered_link_is_on_standby_while_an_unmetered_one_works() {
    let metered = LinkProfile { metered: true, ..LinkProfile::new("lte", LinkKind::Lte) };
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("wifi", LinkKind::Wifi));
    driver.link_up(B, metered.clone());
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    assert!(driver.conns_on(B).is_empty());
    driver.handle(Input::LinkDown { link: A });
    assert_eq!(driver.conns_on(B).len(), 1, "now it is needed");
    assert!(driver.notices.contains(&Notice::MeteredInUse { link: B }));

    let mut driver = TestDriver::new(Config { metered: MeteredUse::Never, ..Config::default() });
    driver.link_up(A, LinkProfile::new("wifi", LinkKind::Wifi));
    driver.link_up(B, metered);
    driver.handle(Input::LinkDown { link: A });
    driver.advance(Duration::from_secs(60));
    assert!(driver.conns_on(B).is_empty());
}

#[test]
fn a_budget_is_never_exceeded() {
    let budget = 300_000;
    let profile =
        LinkProfile { budget: Some(DataSize::from_bytes(budget)), ..LinkProfile::new("b", LinkKind::Lte) };
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    driver.link_up(B, profile);
    driver.connect_newest(A, 20);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.connect_newest(B, 20);
    let mut got = 0;
    while let Some((req, request)) = driver.requests_on(B).first().cloned() {
        driver.respond_partial(req, SIZE, TAG);
        let len = bounded_range(&request).unwrap().len().bytes();
        got += len;
        driver.advance(Duration::from_millis(20));
        driver.deliver(req, len);
        driver.end_response(req);
    }
    assert_eq!(got, budget);
    assert!(driver.notices.iter().any(|n| matches!(n, Notice::BudgetSpent { link: B, .. })));
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.done);
}

#[test]
fn a_link_without_budget_does_not_duplicate_a_stragglers_range() {
    let mut driver = TestDriver::with_two_links(Config::default());
    for link in [A, B] {
        driver.connect_newest(link, 20);
        driver.respond_partial(driver.first_request(link), 200_000, TAG);
    }
    // Everything is in flight. B is fast, but its budget has just been set to less than it has received.
    let (slow, quick) = (driver.first_request(A), driver.first_request(B));
    for _ in 0..6 {
        driver.advance(Duration::from_millis(5));
        driver.deliver(slow, 500);
        driver.deliver(quick, 10_000);
    }
    let spent = DataSize::from_bytes(1);
    driver.link_up(B, LinkProfile { budget: Some(spent), ..LinkProfile::new("b", LinkKind::Lte) });
    let before = driver.requests_on(B).len();
    driver.advance(Duration::from_millis(400));
    assert!(driver.requests_on(B).len() <= before, "{:?}", driver.requests_on(B));
}

#[test]
fn a_link_that_comes_up_during_the_download_is_used() {
    let mut driver = TestDriver::with_one_link(Config::default());
    driver.connect_newest(A, 20);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.link_up(B, LinkProfile::new("b", LinkKind::Lte));
    driver.connect_newest(B, 20);
    assert_eq!(driver.requests_on(B).len(), 1);
}

#[test]
fn without_data_on_any_link_the_download_ends_after_two_minutes() {
    let mut driver = two_delivering_links();
    driver.advance(Duration::from_secs(119));
    assert_eq!(driver.failed, None);
    driver.advance(Duration::from_secs(3));
    assert!(matches!(driver.failed, Some(Failure::NoLink { .. })), "{:?}", driver.failed);
}

#[test]
fn a_link_whose_first_connection_is_slow_gets_a_request_as_soon_as_one_is_established() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.handle(Input::LinkDown { link: A });
    // A slow name server, or a radio that has to be promoted first.
    driver.advance(Duration::from_millis(2300));
    driver.connect_newest(B, 40);
    assert_eq!(driver.requests_on(B).len(), 1, "the connection is established and has no request");
    driver.deliver_all(B, 3_000_000, TAG);
    assert!(driver.done);
}

#[test]
fn a_slow_satellite_handshake_is_not_replaced_by_later_attempts() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 20);
    let req = driver.first_request(A);
    driver.respond_partial(req, SIZE, TAG);
    let first = driver.conns_on(B)[0];
    for _ in 0..25 {
        driver.advance(Duration::from_millis(100));
        driver.deliver(req, 1000);
    }
    assert!(driver.conns_on(B).contains(&first), "given up after {:?}: {:?}", driver.now, driver.conns_on(B));
    driver.on_connected(first, Protocol::Http1, 2500, None);
    assert_eq!(driver.conns_on(B), [first]);
    assert_eq!(driver.requests_on(B).len(), 1);
}

#[test]
fn a_server_that_accepts_connections_but_never_responds_is_not_flooded() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 20);
    let req = driver.first_request(A);
    driver.respond_partial(req, SIZE, TAG);
    let mut connected = Vec::new();
    for _ in 0..200 {
        for conn in driver.conns_on(B).into_iter().filter(|conn| !connected.contains(conn)).collect::<Vec<_>>() {
            driver.on_connected(conn, Protocol::Http1, 20, None);
            connected.push(conn);
        }
        driver.advance(Duration::from_millis(100));
        driver.deliver(req, 10);
    }
    assert!(connected.len() <= 12, "{} connections in 20 s", connected.len());
    // A late response is used all the same.
    let late_request = driver.first_request(B);
    driver.respond_partial(late_request, SIZE, TAG);
    driver.deliver(late_request, 1000);
    assert_eq!(driver.conns_on(B).len(), 1);
}

#[test]
fn a_failed_certificate_check_is_not_retried() {
    let mut driver = TestDriver::with_one_link(Config::default());
    let conn = driver.conns_on(A)[0];
    driver.close_conn(conn, ConnErrorKind::Tls);
    assert!(matches!(driver.failed, Some(Failure::RetriesExhausted { .. })), "{:?}", driver.failed);
}

#[test]
fn a_stall_of_the_only_link_is_detected_by_the_timer_alone() {
    let mut driver = TestDriver::with_one_link(Config::default());
    driver.advance(Duration::from_millis(600));
    assert_eq!(driver.conns_on(A).len(), 2, "a second SYN");
}

#[test]
fn the_download_fails_when_the_only_link_has_used_its_budget() {
    let mut driver = TestDriver::new(Config::default());
    let budget = Some(DataSize::from_bytes(1000));
    driver.link_up(A, LinkProfile { budget, ..LinkProfile::new("a", LinkKind::Lte) });
    driver.connect_newest(A, 20);
    let (req, request) = driver.requests_on(A)[0].clone();
    assert_eq!(
        request.range,
        RequestRange::Bounded(ByteRange::new(0, 1000)),
        "the initial request respects the budget"
    );
    driver.respond_partial(req, SIZE, TAG);
    driver.deliver(req, 1000);
    assert_eq!(driver.failed, Some(Failure::BudgetExhausted));
}

#[test]
fn a_recovered_connection_owns_its_ranges_again() {
    let mut driver = two_delivering_links();
    for _ in 0..10 {
        driver.advance(Duration::from_millis(100));
        let req = driver.first_request(B);
        driver.deliver(req, 1000);
    }
    let first_request = driver.requests_on(A)[0].0;
    // Everything else is in flight, so the ranges of A are released. Then A delivers again.
    driver.fetch.transfers.release_requests(A);
    driver.deliver(first_request, 1000);
    assert!(driver.fetch.transfers.coverage.next_free(0, 65_536).is_none(), "free although it is in flight");
}

#[test]
fn a_paused_reader_stalls_no_link() {
    let mut driver =
        TestDriver::with_one_link(Config { reader_window: Some(DataSize::from_mib(1)), ..Config::default() });
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_full(req, Some(SIZE), None);
    driver.deliver(req, 1_030_000);
    driver.advance(Duration::from_secs(300));
    assert!(driver.failed.is_none() && driver.conns_on(A).len() == 1, "{:?}", driver.notices);
    driver.handle(Input::Consumed { end: 1_000_000 });
    driver.advance(Duration::from_secs(3));
    assert!(driver.conns_on(A).len() > 1, "the reader has consumed, so data is overdue");
}

#[test]
fn a_links_rate_includes_bytes_of_closed_connections() {
    let mut driver = TestDriver::with_one_link(Config::default());
    for _ in 0..8 {
        let conn = driver.connect_newest(A, 5);
        let req = driver.first_request(A);
        driver.respond_partial(req, 80_000_000, Some("\"v1\""));
        driver.deliver(req, 10_000);
        driver.close_conn(conn, ConnErrorKind::Truncated);
        driver.advance(Duration::from_millis(250));
    }
    let rate = driver.fetch.status().links[0].2.bits_per_sec();
    assert!((200_000..500_000).contains(&rate), "{rate}");
}

/// One link and two mirrors. They are used one at a time: without a digest, they are not known to have the same file.
fn driver_with_two_mirrors() -> TestDriver {
    TestDriver::with_one_link(Config { mirrors: 2, ..Config::default() })
}

#[test]
fn a_busy_mirror_is_left_for_the_next_one() {
    for status in [429, 500, 503] {
        let mut driver = driver_with_two_mirrors();
        driver.connect_newest(A, 5);
        let retry_after = Some(Duration::from_secs(60));
        driver.handle(Input::Head {
            req: driver.first_request(A),
            head: ResponseHead { status, retry_after, ..ResponseHead::default() },
        });
        driver.advance(Duration::from_millis(10));
        assert_eq!(driver.conns[&driver.conns_on(A)[0]].1, UrlId(1), "{status}");
        assert!(
            matches!(driver.notices[..], [Notice::MirrorSwitched { discards_data: false, .. }]),
            "{:?}",
            driver.notices
        );
        // If that mirror is busy, too, the link waits for it.
        driver.connect_newest(A, 5);
        driver.handle(Input::Head {
            req: driver.first_request(A),
            head: ResponseHead { status, retry_after, ..ResponseHead::default() },
        });
        driver.advance(Duration::from_secs(50));
        assert!(driver.conns.is_empty());
        driver.advance(Duration::from_secs(11));
        driver.connect_newest(A, 5);
        driver.deliver_all(A, 3_000_000, Some("\"v1\""));
        assert!(driver.done);
    }
}

#[test]
fn a_mirror_that_does_not_respond_is_left_for_the_next_one() {
    for is_connected in [false, true] {
        let mut driver = driver_with_two_mirrors();
        if is_connected {
            driver.connect_newest(A, 5);
        }
        driver.advance(Duration::from_secs(5));
        let urls: Vec<_> = driver.conns_on(A).iter().map(|conn| driver.conns[conn].1).collect();
        assert!(!urls.is_empty() && urls.iter().all(|at| *at == UrlId(1)), "{urls:?}");
        driver.connect_newest(A, 5);
        driver.deliver_all(A, 3_000_000, Some("\"v1\""));
        assert!(driver.done);
    }
}

#[test]
fn a_link_without_data_alternates_between_mirrors_until_one_works() {
    let mut driver = driver_with_two_mirrors();
    let mut request = Vec::new();
    for _ in 0..60 {
        driver.advance(Duration::from_millis(500));
        request.extend(driver.conns_on(A).last().map(|conn| driver.conns[conn].1.0));
    }
    request.dedup();
    assert!(request.starts_with(&[0, 1, 0, 1]), "{request:?}");
    let switches = driver.notices.iter().filter(|notice| matches!(notice, Notice::MirrorSwitched { .. })).count();
    assert_eq!(switches, 1, "{:?}", driver.notices);
}

#[test]
fn a_stalled_link_keeps_a_mirror_from_which_other_links_receive_data() {
    let mut driver =
        TestDriver::with_two_links(Config { mirrors: 2, digest: Some(DigestScope::File), ..Config::default() });
    driver.connect_newest(A, 5);
    driver.respond_status(driver.first_request(A), 503);
    driver.connect_newest(A, 5);
    driver.respond_partial(driver.first_request(A), 800_000_000, Some("\"v1\""));
    for _ in 0..100 {
        driver.deliver(driver.first_request(A), 10);
        driver.advance(Duration::from_millis(100));
    }
    assert!(driver.conns_on(B).iter().all(|conn| driver.conns[conn].1 == UrlId(1)));
}

/// `budget`: bytes that the link may carry.
fn profile_with_budget(metered: bool, budget: u64) -> LinkProfile {
    LinkProfile { metered, budget: Some(DataSize::from_bytes(budget)), ..LinkProfile::new("x", LinkKind::Lte) }
}

#[test]
fn a_budget_of_zero_is_used_up_from_the_start() {
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, profile_with_budget(false, 0));
    assert_eq!(driver.notices, [Notice::BudgetSpent { link: A, budget: DataSize::ZERO }]);
    driver.advance(Duration::from_secs(2));
    assert_eq!(driver.failed, Some(Failure::BudgetExhausted));

    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, profile_with_budget(false, 0));
    driver.link_up(B, LinkProfile { metered: true, ..LinkProfile::new("b", LinkKind::Lte) });
    driver.connect_newest(B, 5);
    driver.deliver_all(B, 3_000_000, Some("\"v1\""));
    assert!(driver.done, "a metered link replaces the one whose budget is used up: {:?}", driver.failed);
}

#[test]
fn a_whole_file_beyond_the_budget_is_not_begun() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.link_up(A, profile_with_budget(false, 100_000));
    driver.connect_newest(A, 5);
    driver.respond_full(driver.first_request(A), Some(200_000), Some("\"v1\""));
    assert_eq!(driver.notices, [Notice::Banned { link: A, reason: BanReason::OverBudget, will_probe: false }]);
    driver.connect_newest(B, 5);
    let req = driver.first_request(B);
    driver.respond_full(req, Some(200_000), Some("\"v1\""));
    driver.deliver(req, 200_000);
    assert!(driver.done);

    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, profile_with_budget(false, 100_000));
    driver.connect_newest(A, 5);
    driver.respond_full(driver.first_request(A), Some(200_000), None);
    assert_eq!(driver.failed, Some(Failure::BudgetExhausted));
}

#[test]
fn a_server_that_accepts_requests_but_never_responds_is_reported_instead_of_the_links() {
    let mut driver = TestDriver::with_two_links(Config::default());
    for _ in 0..130 {
        for (conn, (_, _)) in driver.conns.clone() {
            if driver.reqs.values().all(|request| request.conn != conn) {
                driver.on_connected(conn, Protocol::Http1, 5, None);
            }
        }
        driver.advance(Duration::from_secs(1));
    }
    assert_eq!(driver.failed, Some(Failure::NoResponse));
}

#[test]
fn a_pause_is_reported_with_its_retry_after_and_not_when_the_download_ends() {
    let mut driver = TestDriver::with_one_link(Config { retries: 1, ..Config::default() });
    let hour = Duration::from_secs(3600);
    let head = ResponseHead { status: 503, retry_after: Some(hour), ..ResponseHead::default() };
    driver.connect_newest(A, 5);
    driver.handle(Input::Head { req: driver.first_request(A), head: head.clone() });
    let expected =
        [Notice::ServerBusy { link: A, wait: Duration::from_secs(300), retry_after: Some(hour), status: 503 }];
    assert_eq!(driver.notices, expected);
    driver.advance(Duration::from_secs(301));
    driver.connect_newest(A, 5);
    driver.handle(Input::Head { req: driver.first_request(A), head });
    assert_eq!(driver.failed, Some(Failure::BadStatus { status: 503 }));
    let pauses: Vec<_> =
        driver.notices.into_iter().filter(|notice| matches!(notice, Notice::ServerBusy { .. })).collect();
    assert_eq!(pauses, expected);
}

#[test]
fn a_forbidden_address_is_not_retried() {
    let mut driver = TestDriver::with_one_link(Config { retries: 3, ..Config::default() });
    driver.close_conn(driver.conns_on(A)[0], ConnErrorKind::Forbidden);
    assert!(matches!(driver.failed, Some(Failure::RetriesExhausted { .. })), "{:?}", driver.failed);
}

#[test]
fn an_address_that_is_forbidden_on_one_link_leaves_the_file_to_the_others() {
    let mut driver = two_delivering_links();
    driver.close_conn(driver.conns_on(A)[0], ConnErrorKind::Forbidden);
    assert_eq!(driver.failed, None);
    let req = driver.first_request(B);
    driver.deliver(req, 1000);
    assert!(driver.notices.iter().any(|n| matches!(n, Notice::Banned { link: A, .. })), "{:?}", driver.notices);
}
