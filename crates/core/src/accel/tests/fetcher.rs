//! What is asked for when, and over which link: worked examples of the fetcher.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::super::*;
use crate::accel::early_ack::fetch::{FetchRequest, FetchedRange, LinkInfo, RangeFetcher};
use crate::units::Bitrate;

const WIFI: LinkId = LinkId(0);
const CELL: LinkId = LinkId(1);

fn road(link: LinkId) -> LinkInfo {
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
    fetcher.set_links(&[road(CELL), road(WIFI)]);
    fetcher
}

fn want(flow: u64, start: u64, bytes: u64) -> FetchRequest {
    let resource =
        Resource { request: "GET / HTTP/1.1\r\n".to_string(), etag: "\"x\"".to_string(), length: 1 << 20 };
    let place = ResourceOffset { resource: Arc::new(resource), offset: start - 1000 };
    FetchRequest {
        flow,
        range: PosRange::new(start, start + bytes),
        source: place,
        server: ([10, 0, 0, 1], 80).into(),
    }
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// What is asked at this time, if everything is missing still.
fn asked(fetcher: &mut RangeFetcher, millis: u64) -> Vec<Fetch> {
    fetcher.tick(at(millis), |_, range| vec![range]);
    let fetches = fetcher.take_outputs().into_iter().filter_map(|output| match output {
        Output::Fetch(fetch) => Some(fetch),
        _ => None,
    });
    fetches.collect()
}

#[test]
fn holes_of_twenty_milliseconds_are_asked_for_at_once_over_the_helper() {
    let mut fetcher = both();
    fetcher.request(at(0), want(1, 5000, 1448));
    fetcher.request(at(10), want(1, 9000, 2896));
    assert_eq!(asked(&mut fetcher, 19), []);
    assert_eq!(fetcher.deadline(), Some(at(20)));
    let fetches = asked(&mut fetcher, 20);
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
            is_late: false
        })
    );
    assert_eq!(fetcher.fetched(at(201), fetches[0].id, 1, Some(vec![7; 2896])), None, "answered once");
    assert_eq!(fetcher.fetched(at(201), fetches[0].id, 9, None), None, "there is no such range");
}

#[test]
fn what_came_by_itself_is_not_asked_for() {
    let mut fetcher = both();
    fetcher.request(at(0), want(1, 5000, 3000));
    fetcher.tick(at(20), |flow, _| if flow == 1 { vec![PosRange::new(6000, 6500)] } else { vec![] });
    let outputs = fetcher.take_outputs();
    let Some(Output::Fetch(fetch)) = outputs.first() else { panic!("{outputs:?}") };
    assert_eq!(fetch.ranges, [(5000, 5500)]);
}

#[test]
fn what_is_late_is_asked_for_elsewhere_and_the_first_answer_counts() {
    let mut fetcher = both();
    fetcher.request(at(0), want(1, 5000, 1448));
    let first = asked(&mut fetcher, 20).remove(0);
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
fn what_comes_range_by_range_is_not_late_and_a_link_alone_is_waited_for() {
    let mut fetcher = RangeFetcher::default();
    fetcher.set_links(&[road(WIFI)]);
    fetcher.request(at(0), want(1, 5000, 64 * 1024));
    let first = asked(&mut fetcher, 20).remove(0);
    let due = fetcher.deadline().unwrap();
    assert!((at(1900)..at(2200)).contains(&due), "{due:?}");
    fetcher.fetched(at(1500), first.id, 0, Some(vec![7; 32 * 1024])).unwrap();
    assert_eq!(fetcher.deadline(), Some(at(3300)));
    assert_eq!(asked(&mut fetcher, 3299), []);
    assert_eq!(asked(&mut fetcher, 3300)[0].ranges, [(4000 + 32 * 1024, 4000 + 64 * 1024)]);
}

#[test]
fn nothing_or_too_little_is_no_answer() {
    let mut fetcher = both();
    for (number, bytes) in [None, Some(vec![1; 10])].into_iter().enumerate() {
        let start = number as u64 * 10_000;
        fetcher.request(at(start), want(1, 5000 + start, 1448));
        let fetch = asked(&mut fetcher, start + 20).remove(0);
        assert_eq!(fetcher.fetched(at(start + 100), fetch.id, 0, bytes), None);
        assert_eq!(asked(&mut fetcher, start + 299), []);
        let again = asked(&mut fetcher, start + 300).remove(0);
        assert_eq!((fetch.link, again.link), (CELL, WIFI));
        assert!(fetcher.fetched(at(start + 400), again.id, 0, Some(vec![1; 1448])).is_some());
    }
}

#[test]
fn a_thin_link_is_asked_for_what_it_brings_in_its_time_and_the_rest_waits_or_goes_elsewhere() {
    let mut fetcher = both();
    // 900 kbit/s for 650 ms are 73 kB: of so many holes not all.
    for n in 0..44 {
        fetcher.request(at(0), want(n, 5000, 1448));
    }
    let mut fetches = asked(&mut fetcher, 20);
    fetches.extend(asked(&mut fetcher, 40));
    let over = |link: LinkId| fetches.iter().filter(|fetch| fetch.link == link).count();
    assert_eq!(over(CELL) + over(WIFI), 44);
    assert!((40..=44).contains(&over(CELL)), "{}", over(CELL));
    let budget = fetcher.budget(want(1, 5000, 1).server);
    assert!(budget < 225_000 - 44 * 1448 + 1, "{budget}");
    fetcher.forget(3);
    assert_eq!(fetcher.take_outputs().len(), 1, "its fetch is cancelled");
}

#[test]
fn of_a_server_that_is_late_over_all_links_nothing_more_is_to_be_missing() {
    let mut fetcher = both();
    let (server, other) = (want(1, 5000, 1).server, core::net::SocketAddr::from(([192, 0, 2, 99], 80)));
    let budget = fetcher.budget(server);
    fetcher.request(at(0), want(1, 5000, 1448));
    let first = asked(&mut fetcher, 20).remove(0);
    let second = asked(&mut fetcher, 950).remove(0);
    assert_eq!((first.link, second.link), (CELL, WIFI));
    assert!(fetcher.budget(server) > budget / 2, "the other link may bring it");
    let third = asked(&mut fetcher, 2000).remove(0);
    assert_eq!((third.link, fetcher.budget(server)), (CELL, 0));
    assert!(fetcher.budget(other) > budget / 2);
    let fetched = fetcher.fetched(at(2100), third.id, 0, Some(vec![1; 1448])).unwrap();
    assert!(fetched.is_late && fetched.latency == Some(Duration::from_millis(100)), "both links were late");
    assert!(fetcher.budget(server) > budget / 2, "nothing is owed any more");
}

#[test]
fn what_has_come_by_itself_is_not_owed() {
    let mut fetcher = both();
    let server = want(1, 5000, 1).server;
    fetcher.request(at(0), want(1, 5000, 1448));
    [20, 950, 2000].into_iter().for_each(|millis| assert_eq!(asked(&mut fetcher, millis).len(), 1));
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
fn an_answer_is_late_by_itself_or_because_others_were() {
    let mut fetcher = both();
    fetcher.request(at(0), want(1, 5000, 1448));
    let slow = asked(&mut fetcher, 20).remove(0);
    let quick = asked(&mut fetcher, 950).remove(0);
    assert!(!fetcher.fetched(at(1000), quick.id, 0, Some(vec![1; 1448])).unwrap().is_late, "one link slept");
    fetcher.request(at(2000), want(1, 9000, 1448));
    let fetch = asked(&mut fetcher, 2020).remove(0);
    asked(&mut fetcher, 3500);
    assert!(fetcher.fetched(at(3600), fetch.id, 0, Some(vec![1; 1448])).unwrap().is_late);
    assert!(fetcher.fetched(at(3600), slow.id, 0, Some(vec![1; 1448])).is_none(), "it was not wanted any more");
}

#[test]
fn what_a_blackout_has_cost_goes_over_the_fast_link_and_a_dark_one_is_not_asked() {
    let mut fetcher = both();
    fetcher.request(at(0), want(1, 5000, 300_000));
    let fetches = asked(&mut fetcher, 20);
    let bytes = |link: LinkId| -> u64 {
        let over = fetches.iter().filter(|fetch| fetch.link == link);
        over.flat_map(|fetch| &fetch.ranges).map(|(from, to)| to - from).sum()
    };
    assert_eq!(bytes(WIFI) + bytes(CELL), 300_000);
    assert!(bytes(WIFI) > 250_000, "{}: what is left of it is no bulk", bytes(CELL));
    fetcher.set_links(&[road(CELL), LinkInfo { is_down: true, ..road(WIFI) }]);
    fetcher.request(at(1000), want(2, 5000, 100_000));
    assert!(asked(&mut fetcher, 1020).iter().all(|fetch| fetch.link == CELL));
    fetcher.set_links(&[LinkInfo { is_down: true, ..road(CELL) }, LinkInfo { is_down: true, ..road(WIFI) }]);
    fetcher.request(at(3000), want(3, 5000, 1000));
    assert_eq!(asked(&mut fetcher, 3020), []);
    fetcher.set_links(&[LinkInfo { is_down: true, ..road(CELL) }, road(WIFI)]);
    assert_eq!(asked(&mut fetcher, 3040).len(), 1, "as soon as one is back");
}

#[test]
fn what_came_over_either_link_takes_no_room_any_more() {
    let mut fetcher = both();
    fetcher.request(at(0), want(1, 5000, 30_000));
    fetcher.request(at(0), want(1, 90_000, 1448));
    let first = asked(&mut fetcher, 20).remove(0);
    let second = asked(&mut fetcher, 1500).remove(0);
    assert_eq!((first.link, second.link, &first.ranges), (CELL, WIFI, &second.ranges));
    fetcher.fetched(at(1600), first.id, 0, Some(vec![1; 30_000])).unwrap();
    fetcher.fetched(at(1600), second.id, 1, Some(vec![1; 1448])).unwrap();
    fetcher.set_links(&[LinkInfo { is_down: true, ..road(CELL) }, road(WIFI)]);
    fetcher.request(at(2000), want(1, 200_000, 1448));
    assert_eq!(asked(&mut fetcher, 2020)[0].link, WIFI);
    assert_eq!(fetcher.deadline(), Some(at(2020 + 1800 + 100)), "as if nothing had been asked before");
}

#[test]
fn a_link_that_brings_nothing_is_not_asked_first_for_each_hole() {
    let mut fetcher = both();
    let mut links = Vec::new();
    for second in [0, 3, 6, 13, 16] {
        fetcher.request(at(second * 1000), want(1, 5000 + second * 10_000, 1448));
        let fetch = asked(&mut fetcher, second * 1000 + 20).remove(0);
        let answer = if fetch.link == CELL && second == 0 { asked(&mut fetcher, 1500).remove(0) } else { fetch };
        links.push(answer.link);
        fetcher.fetched(at(second * 1000 + 1600), answer.id, 0, Some(vec![1; 1448])).unwrap();
    }
    assert_eq!(links, [WIFI, WIFI, WIFI, CELL, CELL], "tried again, and believed again");
}

#[test]
fn a_server_is_not_asked_over_a_link_that_does_not_lead_to_it() {
    let mut fetcher = RangeFetcher::default();
    let server = want(1, 5000, 1).server;
    fetcher.set_links(&[road(CELL)]);
    assert!(fetcher.budget(server) > 0);
    let six = LinkInfo { families: AddressFamilies::V6, ..road(CELL) };
    fetcher.set_links(&[six]);
    assert_eq!(fetcher.budget(server), 0);
    fetcher.set_links(&[six, road(WIFI)]);
    fetcher.request(at(0), want(1, 5000, 1448));
    assert_eq!(asked(&mut fetcher, 20)[0].link, WIFI);
}
