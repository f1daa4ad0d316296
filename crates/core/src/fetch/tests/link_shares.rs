//! Links that are shared with other downloads of a batch (`link_share`).

use super::*;

const SIZE: u64 = 30_000_000;
const TAG: Option<&str> = Some("\"v1\"");

impl TestDriver {
    fn set_share(&mut self, link: LinkId, share: LinkShare) {
        self.handle(Input::Share { link, share });
    }
}

#[test]
fn a_paused_link_completes_its_requests_and_closes_its_connections() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    let req = driver.first_request(A);
    driver.respond_partial(req, SIZE, TAG);
    driver.deliver(req, 10_000);
    driver.set_share(A, LinkShare::Paused);
    assert!(driver.reqs.contains_key(&req), "the response is not cancelled");
    driver.deliver(req, 55_536);
    driver.end_response(req);
    driver.deliver_all(A, SIZE, TAG);
    assert!(driver.conns_on(A).is_empty(), "closed, so that another download can connect");
    driver.advance(Duration::from_secs(10));
    assert!(driver.conns_on(A).is_empty());
    driver.set_share(A, LinkShare::Full);
    driver.connect_newest(A, 5);
    assert!(!driver.requests_on(A).is_empty());
}

#[test]
fn a_link_can_be_paused_before_it_comes_up() {
    let mut driver = TestDriver::new(Config::default());
    driver.set_share(A, LinkShare::Paused);
    driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
    assert!(driver.conns_on(A).is_empty());
}

#[test]
fn the_download_timeout_does_not_run_while_all_links_are_paused() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.set_share(A, LinkShare::Paused);
    driver.set_share(B, LinkShare::Paused);
    driver.advance(Duration::from_secs(1000));
    assert_eq!((driver.failed.clone(), driver.conns.len()), (None, 0));
    driver.set_share(B, LinkShare::OneConn);
    driver.connect_newest(B, 5);
    driver.deliver_all(B, 100_000, TAG);
    assert!(driver.done, "{:?}", driver.failed);
}

#[test]
fn stalled_requests_of_a_paused_link_are_cancelled() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.connect_newest(A, 5);
    driver.connect_newest(B, 5);
    driver.respond_partial(driver.first_request(A), SIZE, TAG);
    driver.deliver(driver.first_request(A), 10_000);
    driver.set_share(A, LinkShare::Paused);
    for _ in 0..100 {
        let req = driver.first_request(B);
        if driver.reqs[&req].next_offset.is_none() {
            driver.respond_partial(req, SIZE, TAG);
        }
        driver.deliver(req, 100);
        driver.advance(Duration::from_millis(100));
    }
    assert!(driver.conns_on(A).is_empty());
}

#[test]
fn a_link_shared_with_another_download_has_one_connection() {
    let mut driver = TestDriver::new(Config::default());
    driver.link_up(A, LinkProfile::new("a", LinkKind::Satellite));
    // With a long RTT several connections go through slow start at once.
    driver.connect_newest(A, 600);
    let serve = |driver: &mut TestDriver| {
        for conn in driver.conns_on(A) {
            if driver.fetch.transfers.conns.get(&conn).is_some_and(|conn| !conn.is_open()) {
                driver.on_connected(conn, Protocol::Http1, 600, None);
            }
            let request = driver.reqs.iter().find(|(_, request)| request.conn == conn).map(|(req, _)| *req);
            let Some(req) = request else { continue };
            if driver.reqs[&req].next_offset.is_none() {
                driver.respond_partial(req, SIZE * 10, TAG);
            }
            let RequestRange::Bounded(range) = driver.reqs[&req].range else { panic!() };
            let left = range.end - driver.reqs[&req].next_offset.unwrap();
            driver.deliver(req, left.min(3000));
            if left <= 3000 {
                driver.end_response(req);
            }
        }
        driver.advance(Duration::from_millis(100));
    };
    for _ in 0..20 {
        serve(&mut driver);
    }
    assert!(driver.conns_on(A).len() > 1, "{}", driver.conns_on(A).len());
    driver.set_share(A, LinkShare::OneConn);
    for _ in 0..400 {
        serve(&mut driver);
    }
    assert_eq!(driver.conns_on(A).len(), 1);
}

#[test]
fn link_loads_report_demand_and_use() {
    let mut driver = TestDriver::with_two_links(Config::default());
    let load = |driver: &TestDriver, link: LinkId| {
        driver.fetch.link_loads().into_iter().find(|load| load.link == link).unwrap()
    };
    assert!(load(&driver, A).has_demand && load(&driver, A).has_connections);
    driver.set_share(A, LinkShare::Paused);
    assert!(load(&driver, A).has_demand && !load(&driver, A).has_connections);
    driver.connect_newest(B, 5);
    driver.respond_full(driver.first_request(B), Some(SIZE), TAG);
    driver.advance(Duration::from_secs(20));
    assert!(!load(&driver, A).has_demand, "a single response over the other link carries the file");
    assert!(load(&driver, B).has_demand);
}
