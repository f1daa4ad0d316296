//! Links in virtual time: rates and delays to the nanosecond, losses in their bounds, every packet accounted for.

mod chance;
mod changes;
mod histories;
mod trace;
mod wifi_channel;

use marline_core::units::Duration;

use super::*;

/// A packet of some size with a number to know it by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NumberedPacket {
    number: u64,
    bytes: u64,
}

impl Packet for NumberedPacket {
    fn size(&self) -> DataSize {
        DataSize::from_bytes(self.bytes)
    }
}

fn full_packet(n: u64) -> NumberedPacket {
    NumberedPacket { number: n, bytes: 1500 }
}

fn parse_link(written: &str) -> Link<NumberedPacket> {
    Link::new(&written.parse().unwrap(), 1)
}

const fn ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

/// Offers full packets at this interval and looks at the link at the same times; the answer is what came out by
/// `end`, with the times at which it was due.
fn offer(
    link: &mut Link<NumberedPacket>,
    direction: Direction,
    interval: Duration,
    end: Instant,
) -> Vec<(Instant, NumberedPacket)> {
    let mut out = Vec::new();
    let mut now = Instant::ZERO;
    for n in 0.. {
        if now >= end {
            break;
        }
        link.push(direction, full_packet(n), now);
        drain(link, now, &mut out);
        now += interval;
    }
    drain(link, end, &mut out);
    out
}

fn drain(link: &mut Link<NumberedPacket>, now: Instant, out: &mut Vec<(Instant, NumberedPacket)>) {
    while let Some((due, _, packet)) = link.pop_due(now) {
        out.push((due, packet));
    }
}

fn is_conserved(link: &Link<NumberedPacket>) -> bool {
    Direction::BOTH.into_iter().all(|direction| {
        let stats = link.stats(direction);
        stats.offered == stats.delivered + stats.dropped() + stats.in_link
    })
}

#[test]
fn an_offered_overload_leaves_at_the_rate_exactly() {
    for (written, mbps) in [("w,rate=1Mbit/s", 1), ("w,rate=80Mbit/s", 80), ("w,rate=937Mbit/s", 937)] {
        let mut link = parse_link(written);
        let out = offer(&mut link, Direction::Down, Duration::from_micros(11), ms(5000));
        let ideal = 5 * mbps * 1_000_000 / 8 / 1500;
        assert!((out.len() as u64).abs_diff(ideal) <= 1, "{written}: {} of {ideal}", out.len());
        assert!(is_conserved(&link));
    }
}

#[test]
fn an_idle_link_adds_half_the_round_trip_and_the_time_of_the_packet() {
    let mut link = parse_link("w,rate=12Mbit/s,rtt=20ms,up=6Mbit/s");
    link.push(Direction::Down, full_packet(0), ms(100));
    link.push(Direction::Up, full_packet(1), ms(100));
    assert_eq!(link.next_event(), Some(ms(111)));
    assert_eq!(link.pop(ms(111) - Duration::from_nanos(1)), None);
    assert_eq!(link.pop_due(ms(111)), Some((ms(111), Direction::Down, full_packet(0))));
    assert_eq!(link.next_event(), Some(ms(112)));
    assert_eq!(link.pop_due(ms(500)), Some((ms(112), Direction::Up, full_packet(1))));
    assert_eq!((link.pop(ms(500)), link.next_event()), (None, None));
}

#[test]
fn a_driver_that_comes_late_loses_no_rate() {
    let prompt = {
        let mut link = parse_link("w,rate=20Mbit/s,rtt=10ms,queue=50ms");
        offer(&mut link, Direction::Down, Duration::from_micros(500), ms(2000))
    };
    // The same packets; the driver looks every 37 ms only, and never at a time that matters to the link.
    let mut late = parse_link("w,rate=20Mbit/s,rtt=10ms,queue=50ms");
    let mut out = Vec::new();
    for n in 0..4000 {
        let now = Instant::from_nanos(n * 500_000);
        late.push(Direction::Down, full_packet(n), now);
        if n % 74 == 73 {
            drain(&mut late, now, &mut out);
        }
    }
    drain(&mut late, ms(2000), &mut out);
    assert_eq!(out, prompt);
}

#[test]
fn a_queue_in_time_is_fixed_in_bytes_by_the_first_rate() {
    // 50 ms at 12 Mbit/s are 50 packets of 1500 bytes; one more is being sent.
    let mut link = parse_link("w,rate=12Mbit/s,queue=50ms");
    link.change(&LinkEventKind::Rate(Bitrate::from_mbps(1)), ms(1));
    for n in 0..100 {
        link.push(Direction::Down, full_packet(n), ms(2));
    }
    let stats = link.stats(Direction::Down);
    assert_eq!((stats.queued.packets, stats.in_link.packets, stats.dropped_queue_full.packets), (50, 51, 49));
    // At a twelfth of the rate the same bytes wait twelve times as long.
    let mut out = Vec::new();
    drain(&mut link, ms(10_000), &mut out);
    assert_eq!(link.stats(Direction::Down).max_queue_delay, Duration::from_millis(50 * 12));
}

#[test]
fn a_policer_passes_its_burst_and_then_its_rate_and_delays_nothing() {
    // 60 kB at once, then 12 Mbit/s: 1000 packets a second of the 4000 that are offered.
    let mut link = parse_link("w,rate=100Mbit/s,rtt=20ms,queue=1s,police=12Mbit/s:60kB");
    let out = offer(&mut link, Direction::Down, Duration::from_micros(250), ms(5000));
    let passed = 5000 + 60_000 / 1500;
    assert!(
        (out.len() as u64).abs_diff(passed) <= 11,
        "{} of {passed}; ten milliseconds are on their way",
        out.len()
    );
    let stats = link.stats(Direction::Down);
    assert_eq!(stats.max_queue_delay, Duration::ZERO);
    assert!(stats.dropped_policer.packets > 14_000 && stats.dropped_queue_full.packets == 0);
    assert!(is_conserved(&link));
}

#[test]
fn a_packet_larger_than_the_mtu_is_dropped_and_counted() {
    let mut link = parse_link("w,rate=12Mbit/s,mtu=1280B");
    link.push(Direction::Down, full_packet(0), ms(0));
    assert_eq!(link.stats(Direction::Down).dropped_oversize.packets, 1);
    assert_eq!((link.next_event(), is_conserved(&link)), (None, true));
}

#[test]
fn a_simulated_minute_at_100_mbit_costs_little() {
    let mut link = parse_link("w,rate=100Mbit/s,rtt=40ms,loss=0.1%,jitter=1ms");
    let out = offer(&mut link, Direction::Down, Duration::from_micros(120), ms(60_000));
    assert!(out.len() > 499_000 * 999 / 1000 - 1000, "{}", out.len());
    assert!(is_conserved(&link));
}
