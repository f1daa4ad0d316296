//! Which link gets which ranges, how many bytes are in flight, and how the download ends (`scheduler`, `endgame`).

use super::*;
use crate::fetch::Policy;

const TAG: Option<&str> = Some("\"v1\"");

/// A simulated link: constant rate, constant delay, one connection.
struct SimulatedLink {
    link: LinkId,
    bytes_per_ms: u64,
    one_way_ms: u64,
    /// Per request, when the server's response begins to arrive without a server delay.
    arrived_at: BTreeMap<ReqId, u64>,
    /// Bytes of each response that have arrived.
    sent: BTreeMap<ReqId, u64>,
    /// Number of milliseconds with unused capacity for want of a response, after the first two RTTs.
    idle_ms: u64,
    /// When the link's last byte arrived.
    last_ms: u64,
    /// Delay of the server before each response.
    server_delay_ms: u64,
    /// The request that the server is processing, and until when.
    serving: Option<(ReqId, u64)>,
}

/// Runs the download in steps of a millisecond. Returns its duration in milliseconds.
fn run(driver: &mut TestDriver, links: &mut [SimulatedLink], total: u64) -> u64 {
    for link in links.iter() {
        driver.connect_newest(link.link, link.one_way_ms * 2);
    }
    for ms in 0..60_000 {
        for link in links.iter_mut() {
            for (req, _) in driver.requests_on(link.link) {
                link.arrived_at.entry(req).or_insert(ms + link.one_way_ms * 2);
            }
            let mut capacity = link.bytes_per_ms;
            while capacity > 0 {
                let ready = driver.requests_on(link.link).into_iter().find(|(req, _)| link.arrived_at[req] <= ms);
                let Some((req, request)) = ready else {
                    link.idle_ms += u64::from(ms > link.one_way_ms * 4);
                    break;
                };
                if link.server_delay_ms > 0 && link.serving.is_none_or(|(served, _)| served != req) {
                    link.serving = Some((req, ms + link.server_delay_ms));
                }
                if link.serving.is_some_and(|(_, until)| ms < until) {
                    break;
                }
                if request.next_offset.is_none() {
                    driver.respond_partial(req, total, TAG);
                }
                let RequestRange::Bounded(range) = request.range else { panic!() };
                let range = range.intersect(ByteRange::new(0, total));
                let sent = link.sent.entry(req).or_default();
                let part = capacity.min(range.len().bytes() - *sent);
                *sent += part;
                capacity -= part;
                let all = *sent == range.len().bytes();
                link.last_ms = ms;
                driver.deliver(req, part);
                if driver.done {
                    return ms;
                }
                if all {
                    driver.end_response(req);
                }
            }
        }
        driver.advance(Duration::from_millis(1));
    }
    panic!("not done");
}

/// A link of `mbps` Mbit/s with a round-trip time of `rtt` milliseconds, and a server that responds at once.
fn simulated_link(link: LinkId, mbps: u64, rtt: u64) -> SimulatedLink {
    SimulatedLink {
        link,
        bytes_per_ms: mbps * 125,
        one_way_ms: rtt / 2,
        arrived_at: BTreeMap::new(),
        sent: BTreeMap::new(),
        idle_ms: 0,
        last_ms: 0,
        server_delay_ms: 0,
        serving: None,
    }
}

#[test]
fn a_server_with_a_delay_before_each_response_gets_large_requests() {
    for server_delay_ms in [50, 100, 400] {
        let total = 40_000_000;
        let mut driver = TestDriver::with_one_link(Config::default());
        let mut links = [SimulatedLink { server_delay_ms, ..simulated_link(A, 80, 20) }];
        let time = run(&mut driver, &mut links, total);
        let alone = total / (80 * 125) + server_delay_ms + 40;
        // The first bytes are a request of their own, and the size of the next one is estimated from them.
        assert!(
            time <= alone + alone / 20 + server_delay_ms * 2,
            "{server_delay_ms}: {time} ms, one request takes {alone}"
        );

        let mut driver = TestDriver::with_two_links(Config::default());
        let mut links = [
            SimulatedLink { server_delay_ms, ..simulated_link(A, 80, 20) },
            SimulatedLink { server_delay_ms, ..simulated_link(B, 61, 50) },
        ];
        let time = run(&mut driver, &mut links, total);
        let ideal = total / (141 * 125) + server_delay_ms + 60;
        assert!(
            time <= ideal + ideal / 5 + server_delay_ms,
            "{server_delay_ms}: {time} ms over two links instead of {ideal}"
        );
        let wasted = driver.fetch.status().wasted.bytes();
        assert!(wasted <= total / 100, "{server_delay_ms}: wasted {wasted}");
    }
}

#[test]
fn two_steady_links_finish_together_and_never_idle() {
    // Each path: Mbit/s and RTT in ms.
    for (path_a, path_b) in [((80, 20), (61, 50)), ((8, 20), (61, 50)), ((50, 20), (5, 100)), ((30, 20), (30, 60))]
    {
        let total = 20_000_000;
        let mut driver = TestDriver::with_two_links(Config::default());
        let mut links = [simulated_link(A, path_a.0, path_a.1), simulated_link(B, path_b.0, path_b.1)];
        let time = run(&mut driver, &mut links, total);
        let ideal = total / ((path_a.0 + path_b.0) * 125);
        let delta = links[0].last_ms.abs_diff(links[1].last_ms);
        let idle = links.iter().map(|p| p.idle_ms).max().unwrap();
        assert!(delta <= 30, "{path_a:?} {path_b:?}: delta {delta} ms");
        assert!(idle <= 40, "{path_a:?} {path_b:?}: drained for {idle} ms");
        assert!(time <= ideal + ideal / 50 + 100, "{path_a:?} {path_b:?}: {time} ms instead of {ideal}");
        let wasted = driver.fetch.status().wasted.bytes();
        assert!(wasted <= total / 100, "{path_a:?} {path_b:?}: wasted {wasted}");
    }
}

#[test]
fn a_slow_second_link_never_delays_a_small_file() {
    let total = 1_000_000;
    let alone = {
        let mut driver = TestDriver::with_one_link(Config::default());
        run(&mut driver, &mut [simulated_link(A, 50, 20)], total)
    };
    let mut driver = TestDriver::with_two_links(Config::default());
    let both = run(&mut driver, &mut [simulated_link(A, 50, 20), simulated_link(B, 2, 300)], total);
    assert!(both <= alone + 2, "{both} ms instead of {alone}");
}

#[test]
fn the_order_of_the_links_does_not_matter() {
    let total = 20_000_000;
    let mut times = Vec::new();
    for swap in [false, true] {
        let mut driver = TestDriver::with_two_links(Config::default());
        let (a, b) = if swap { (B, A) } else { (A, B) };
        times.push(run(&mut driver, &mut [simulated_link(a, 80, 20), simulated_link(b, 20, 60)], total));
    }
    assert!(times[0].abs_diff(times[1]) <= 20, "{times:?}");
}

#[test]
fn no_request_exceeds_the_readers_window() {
    let window = DataSize::from_mib(2);
    let mut driver = TestDriver::with_two_links(Config { reader_window: Some(window), ..Config::default() });
    driver.connect_newest(A, 20);
    driver.respond_partial(driver.first_request(A), 100_000_000, TAG);
    driver.connect_newest(B, 20);
    let mut consumed = 0;
    for round in 0..2000_u64 {
        let ends = driver.reqs.values().filter_map(|a| match a.range {
            RequestRange::Bounded(range) => Some(range.end),
            _ => None,
        });
        assert!(ends.max().unwrap_or(0) <= consumed + window.bytes());
        let link = if round % 3 == 0 { B } else { A };
        let Some((req, request)) = driver.requests_on(link).first().cloned() else { continue };
        if request.next_offset.is_none() {
            driver.respond_partial(req, 100_000_000, TAG);
        }
        let RequestRange::Bounded(range) = request.range else { panic!() };
        driver.advance(Duration::from_millis(3));
        driver.deliver(req, range.len().bytes());
        driver.end_response(req);
        let frontier = driver.fetch.status().in_order_end;
        if frontier > consumed {
            consumed = frontier;
            driver.handle(Input::Consumed { end: consumed });
        }
    }
    assert!(consumed > 20_000_000, "{consumed}");
}

#[test]
fn thesis_policies_send_the_next_request_at_sixty_percent() {
    let mut driver = TestDriver::with_two_links(Config { policy: Policy::StaticLimit, ..Config::default() });
    driver.connect_newest(A, 20);
    driver.connect_newest(B, 20);
    let req = driver.first_request(A);
    driver.respond_partial(req, 100_000_000, TAG);
    let RequestRange::Bounded(range) = driver.reqs[&req].range else { panic!() };
    let size = range.len().bytes();
    driver.deliver(req, size * 59 / 100);
    assert_eq!(driver.requests_on(A).len(), 1);
    driver.deliver(req, size / 100 + 1);
    assert_eq!(driver.requests_on(A).len(), 2);
}

#[test]
fn the_naive_policy_gives_each_link_half() {
    let total = 10_000_000;
    let mut driver = TestDriver::with_two_links(Config { policy: Policy::Naive, ..Config::default() });
    let mut links = [simulated_link(A, 80, 20), simulated_link(B, 10, 20)];
    run(&mut driver, &mut links, total);
    let status = driver.fetch.status();
    let (a, b) = (status.links[0].1.bytes(), status.links[1].1.bytes());
    assert_eq!(a + b, total);
    assert!(a.abs_diff(b) <= 300_000, "{a} {b}");
    assert!(links[1].last_ms > links[0].last_ms + 2000, "the slow half ends much later");
}

#[test]
fn the_single_policy_sends_one_request_on_one_link() {
    let mut driver = TestDriver::with_two_links(Config { policy: Policy::Single, ..Config::default() });
    assert!(driver.conns_on(B).is_empty());
    driver.connect_newest(A, 20);
    assert_eq!(driver.reqs[&driver.first_request(A)].range, RequestRange::From(0));
    driver.deliver_all(A, 5_000_000, TAG);
    assert!(driver.done);
}
