//! Worked examples of the range fetcher: what is requested when, and over which link.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::super::*;
use crate::accel::early_ack::fetch::{FetchRequest, FetchedRange, RangeFetcher};
use crate::accel::secondary::link::LinkInfo;
use crate::units::Bitrate;

const WIFI: LinkId = LinkId(0);
const CELL: LinkId = LinkId(1);

fn link_info(link: LinkId) -> LinkInfo {
    let rtt = Duration::from_millis(if link == CELL { 150 } else { 50 });
    let down = (link == CELL).then(|| Bitrate::from_bits_per_sec(900_000));
    LinkInfo {
        link,
        is_primary: link == WIFI,
        is_down: false,
        receive_rate: down,
        rtt: Some(rtt),
        families: AddressFamilies::Both,
    }
}

fn both() -> RangeFetcher {
    let mut fetcher = RangeFetcher::default();
    fetcher.set_links(&[link_info(CELL), link_info(WIFI)]);
    fetcher
}

fn hole(flow: u64, start: u64, bytes: u64) -> FetchRequest {
    let resource =
        Resource { request: "GET / HTTP/1.1\r\n".to_string(), etag: "\"x\"".to_string(), length: 1 << 20 };
    let source = ResourceOffset { resource: Arc::new(resource), offset: start - 1000 };
    FetchRequest { flow, range: PosRange::new(start, start + bytes), source, server: ([10, 0, 0, 1], 80).into() }
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// The fetches that start at this time, if everything is still missing.
fn started(fetcher: &mut RangeFetcher, millis: u64) -> Vec<Fetch> {
    fetcher.tick(at(millis), |_, range| vec![range]);
    let fetches = fetcher.take_outputs().into_iter().filter_map(|output| match output {
        Output::Fetch(fetch) => Some(fetch),
        _ => None,
    });
    fetches.collect()
}

#[test]
fn holes_of_twenty_milliseconds_are_requested_together_over_the_secondary_link() {
    let mut fetcher = both();
    fetcher.request(at(0), hole(1, 5000, 1448));
    fetcher.request(at(10), hole(1, 9000, 2896));
    assert_eq!(started(&mut fetcher, 19), []);
    assert_eq!(fetcher.deadline(), Some(at(20)));
    let fetches = started(&mut fetcher, 20);
    assert_eq!(fetches.len(), 1);
    assert_eq!((fetches[0].link, &fetches[0].ranges), (CELL, &vec![(4000, 5448), (8000, 10896)]));
    let fetched = fetcher.fetched(at(200), fetches[0].id, 1, Some(vec![7; 2896]));
    assert_eq!(
        fetched,
        Some(FetchedRange {
            flow: 1,
            start: 9000,
            bytes: vec![7; 2896],
            latency: Some(Duration::from_millis(180)),
            is_overdue: false
        })
    );
    assert_eq!(
        fetcher.fetched(at(201), fetches[0].id, 1, Some(vec![7; 2896])),
        None,
        "each range is answered once"
    );
    assert_eq!(fetcher.fetched(at(201), fetches[0].id, 9, None), None, "no such range");
}

#[test]
fn what_has_arrived_in_the_meantime_is_not_requested() {
    let mut fetcher = both();
    fetcher.request(at(0), hole(1, 5000, 3000));
    fetcher.tick(at(20), |flow, _| if flow == 1 { vec![PosRange::new(6000, 6500)] } else { vec![] });
    let outputs = fetcher.take_outputs();
    let Some(Output::Fetch(fetch)) = outputs.first() else { panic!("{outputs:?}") };
    assert_eq!(fetch.ranges, [(5000, 5500)]);
}

#[test]
fn a_late_range_is_requested_over_another_link_and_the_first_response_counts() {
    let mut fetcher = both();
    fetcher.request(at(0), hole(1, 5000, 1448));
    let first = started(&mut fetcher, 20).remove(0);
    let due = fetcher.deadline().unwrap();
    assert_eq!(due, at(20 + 600 + 300), "600 ms and two round trips");
    fetcher.tick(due, |_, range| vec![range]);
    let second = fetcher.take_outputs();
    let Some(Output::Fetch(second)) = second.first() else { panic!("{second:?}") };
    assert_eq!((second.link, &second.ranges), (WIFI, &first.ranges));
    assert!(fetcher.fetched(at(1000), second.id, 0, Some(vec![1; 1448])).is_some());
    assert_eq!(fetcher.take_outputs(), [Output::Cancel(first.id)]);
    assert_eq!(fetcher.fetched(at(1001), first.id, 0, Some(vec![1; 1448])), None);
    assert_eq!(fetcher.deadline(), None);
}

#[test]
fn a_fetch_that_delivers_ranges_is_not_late_and_a_single_link_gets_more_time() {
    let mut fetcher = RangeFetcher::default();
    fetcher.set_links(&[link_info(WIFI)]);
    fetcher.request(at(0), hole(1, 5000, 64 * 1024));
    let first = started(&mut fetcher, 20).remove(0);
    let due = fetcher.deadline().unwrap();
    assert!((at(1900)..at(2200)).contains(&due), "{due:?}");
    fetcher.fetched(at(1500), first.id, 0, Some(vec![7; 32 * 1024])).unwrap();
    assert_eq!(fetcher.deadline(), Some(at(3300)));
    assert_eq!(started(&mut fetcher, 3299), []);
    assert_eq!(started(&mut fetcher, 3300)[0].ranges, [(4000 + 32 * 1024, 4000 + 64 * 1024)]);
}

#[test]
fn an_empty_or_short_response_is_requested_over_the_other_link() {
    let mut fetcher = both();
    for (number, bytes) in [None, Some(vec![1; 10])].into_iter().enumerate() {
        let start = number as u64 * 10_000;
        fetcher.request(at(start), hole(1, 5000 + start, 1448));
        let fetch = started(&mut fetcher, start + 20).remove(0);
        assert_eq!(fetcher.fetched(at(start + 100), fetch.id, 0, bytes), None);
        assert_eq!(started(&mut fetcher, start + 299), []);
        let again = started(&mut fetcher, start + 300).remove(0);
        assert_eq!((fetch.link, again.link), (CELL, WIFI));
        assert!(fetcher.fetched(at(start + 400), again.id, 0, Some(vec![1; 1448])).is_some());
    }
}

#[test]
fn a_slow_link_gets_what_it_can_deliver_in_time_and_the_rest_waits_or_uses_the_other_link() {
    let mut fetcher = both();
    // 900 kbit/s for 650 ms are 73 kB, which is not enough for 44 holes and more.
    for n in 0..44 {
        fetcher.request(at(0), hole(n, 5000, 1448));
    }
    let mut fetches = started(&mut fetcher, 20);
    fetches.extend(started(&mut fetcher, 40));
    let over = |link: LinkId| fetches.iter().filter(|fetch| fetch.link == link).count();
    assert_eq!(over(CELL) + over(WIFI), 44);
    assert!((40..=44).contains(&over(CELL)), "{}", over(CELL));
    let budget = fetcher.budget(hole(1, 5000, 1).server);
    assert!(budget < 225_000 - 44 * 1448 + 1, "{budget}");
    fetcher.forget(3);
    assert_eq!(fetcher.take_outputs().len(), 1, "its fetch is cancelled");
}

#[test]
fn a_server_that_is_late_over_all_links_gets_no_budget() {
    let mut fetcher = both();
    let (server, other) = (hole(1, 5000, 1).server, core::net::SocketAddr::from(([192, 0, 2, 99], 80)));
    let budget = fetcher.budget(server);
    fetcher.request(at(0), hole(1, 5000, 1448));
    let first = started(&mut fetcher, 20).remove(0);
    let second = started(&mut fetcher, 950).remove(0);
    assert_eq!((first.link, second.link), (CELL, WIFI));
    assert!(fetcher.budget(server) > budget / 2, "the other link may deliver it");
    let third = started(&mut fetcher, 2000).remove(0);
    assert_eq!((third.link, fetcher.budget(server)), (CELL, 0));
    assert!(fetcher.budget(other) > budget / 2);
    let fetched = fetcher.fetched(at(2100), third.id, 0, Some(vec![1; 1448])).unwrap();
    assert!(fetched.is_overdue && fetched.latency == Some(Duration::from_millis(100)), "both links were late");
    assert!(fetcher.budget(server) > budget / 2, "no early-acked hole is open any more");
}

#[test]
fn what_has_arrived_in_the_meantime_does_not_count_against_the_budget() {
    let mut fetcher = both();
    let server = hole(1, 5000, 1).server;
    fetcher.request(at(0), hole(1, 5000, 1448));
    [20, 950, 2000].into_iter().for_each(|millis| assert_eq!(started(&mut fetcher, millis).len(), 1));
    assert_eq!(fetcher.budget(server), 0);
    fetcher.tick(at(2001), |_, _| Vec::new());
    let cancelled = |output: &Output| matches!(output, Output::Cancel(_));
    assert_eq!(
        fetcher.take_outputs().iter().filter(|output| cancelled(output)).count(),
        2,
        "the third is not late yet"
    );
    assert!(fetcher.budget(server) > 0);
}

#[test]
fn a_response_is_late_only_if_its_own_link_and_the_others_were() {
    let mut fetcher = both();
    fetcher.request(at(0), hole(1, 5000, 1448));
    let slow = started(&mut fetcher, 20).remove(0);
    let quick = started(&mut fetcher, 950).remove(0);
    assert!(
        !fetcher.fetched(at(1000), quick.id, 0, Some(vec![1; 1448])).unwrap().is_overdue,
        "only one link was slow"
    );
    fetcher.request(at(2000), hole(1, 9000, 1448));
    let fetch = started(&mut fetcher, 2020).remove(0);
    started(&mut fetcher, 3500);
    assert!(fetcher.fetched(at(3600), fetch.id, 0, Some(vec![1; 1448])).unwrap().is_overdue);
    assert!(fetcher.fetched(at(3600), slow.id, 0, Some(vec![1; 1448])).is_none(), "its range was no longer wanted");
}

#[test]
fn bulk_after_an_outage_uses_the_fast_link_and_a_link_that_is_down_is_not_used() {
    let mut fetcher = both();
    fetcher.request(at(0), hole(1, 5000, 300_000));
    let fetches = started(&mut fetcher, 20);
    let bytes = |link: LinkId| -> u64 {
        let over = fetches.iter().filter(|fetch| fetch.link == link);
        over.flat_map(|fetch| &fetch.ranges).map(|(from, to)| to - from).sum()
    };
    assert_eq!(bytes(WIFI) + bytes(CELL), 300_000);
    assert!(bytes(WIFI) > 250_000, "{}: the remainder is not bulk any more", bytes(CELL));
    fetcher.set_links(&[link_info(CELL), LinkInfo { is_down: true, ..link_info(WIFI) }]);
    fetcher.request(at(1000), hole(2, 5000, 100_000));
    assert!(started(&mut fetcher, 1020).iter().all(|fetch| fetch.link == CELL));
    fetcher
        .set_links(&[LinkInfo { is_down: true, ..link_info(CELL) }, LinkInfo { is_down: true, ..link_info(WIFI) }]);
    fetcher.request(at(3000), hole(3, 5000, 1000));
    assert_eq!(started(&mut fetcher, 3020), []);
    fetcher.set_links(&[LinkInfo { is_down: true, ..link_info(CELL) }, link_info(WIFI)]);
    assert_eq!(started(&mut fetcher, 3040).len(), 1, "as soon as one has recovered");
}

#[test]
fn ranges_that_have_arrived_free_the_capacity_of_both_links() {
    let mut fetcher = both();
    fetcher.request(at(0), hole(1, 5000, 30_000));
    fetcher.request(at(0), hole(1, 90_000, 1448));
    let first = started(&mut fetcher, 20).remove(0);
    let second = started(&mut fetcher, 1500).remove(0);
    assert_eq!((first.link, second.link, &first.ranges), (CELL, WIFI, &second.ranges));
    fetcher.fetched(at(1600), first.id, 0, Some(vec![1; 30_000])).unwrap();
    fetcher.fetched(at(1600), second.id, 1, Some(vec![1; 1448])).unwrap();
    fetcher.set_links(&[LinkInfo { is_down: true, ..link_info(CELL) }, link_info(WIFI)]);
    fetcher.request(at(2000), hole(1, 200_000, 1448));
    assert_eq!(started(&mut fetcher, 2020)[0].link, WIFI);
    assert_eq!(fetcher.deadline(), Some(at(2020 + 1800 + 100)), "as if nothing had been requested before");
}

#[test]
fn a_link_that_delivers_nothing_is_not_tried_first_for_each_hole() {
    let mut fetcher = both();
    let mut links = Vec::new();
    for second in [0, 3, 6, 13, 16] {
        fetcher.request(at(second * 1000), hole(1, 5000 + second * 10_000, 1448));
        let fetch = started(&mut fetcher, second * 1000 + 20).remove(0);
        let answer = if fetch.link == CELL && second == 0 { started(&mut fetcher, 1500).remove(0) } else { fetch };
        links.push(answer.link);
        fetcher.fetched(at(second * 1000 + 1600), answer.id, 0, Some(vec![1; 1448])).unwrap();
    }
    assert_eq!(links, [WIFI, WIFI, WIFI, CELL, CELL], "tried again, and used again");
}

#[test]
fn a_link_without_the_address_family_of_a_server_is_not_used() {
    let mut fetcher = RangeFetcher::default();
    let server = hole(1, 5000, 1).server;
    fetcher.set_links(&[link_info(CELL)]);
    assert!(fetcher.budget(server) > 0);
    let six = LinkInfo { families: AddressFamilies::V6, ..link_info(CELL) };
    fetcher.set_links(&[six]);
    assert_eq!(fetcher.budget(server), 0);
    fetcher.set_links(&[six, link_info(WIFI)]);
    fetcher.request(at(0), hole(1, 5000, 1448));
    assert_eq!(started(&mut fetcher, 20)[0].link, WIFI);
}
