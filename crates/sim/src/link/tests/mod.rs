//! The link model in virtual time: exact rates and delays, bounded losses, conservation of packets.

mod chance;
mod changes;
mod histories;
mod trace;
mod wifi_channel;

use marline_core::units::Duration;

use super::*;

/// A packet with a size and an identifying number.
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

fn parse_link(text: &str) -> Link<NumberedPacket> {
    Link::new(&text.parse().unwrap(), 1)
}

const fn ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

/// Pushes full packets at this interval and polls the link at the same times. Returns the packets that came out by
/// `end`, with their due times.
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
fn an_overloaded_link_delivers_exactly_its_rate() {
    for (text, mbps) in [("w,rate=1Mbit/s", 1), ("w,rate=80Mbit/s", 80), ("w,rate=937Mbit/s", 937)] {
        let mut link = parse_link(text);
        let out = offer(&mut link, Direction::Down, Duration::from_micros(11), ms(5000));
        let ideal = 5 * mbps * 1_000_000 / 8 / 1500;
        assert!((out.len() as u64).abs_diff(ideal) <= 1, "{text}: {} of {ideal}", out.len());
        assert!(is_conserved(&link));
    }
}

#[test]
fn an_idle_link_adds_half_the_rtt_and_the_transmission_time() {
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
fn a_late_driver_loses_no_capacity() {
    let prompt = {
        let mut link = parse_link("w,rate=20Mbit/s,rtt=10ms,queue=50ms");
        offer(&mut link, Direction::Down, Duration::from_micros(500), ms(2000))
    };
    // The same packets, but the driver polls only every 37 ms, at times unrelated to the link's events.
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
fn a_queue_limit_in_time_is_converted_at_the_first_rate() {
    // 50 ms at 12 Mbit/s are 50 packets of 1500 bytes; one more is in transmission.
    let mut link = parse_link("w,rate=12Mbit/s,queue=50ms");
    link.change(&LinkEventKind::Rate(Bitrate::from_mbps(1)), ms(1));
    for n in 0..100 {
        link.push(Direction::Down, full_packet(n), ms(2));
    }
    let stats = link.stats(Direction::Down);
    assert_eq!((stats.queued.packets, stats.in_link.packets, stats.dropped_queue_full.packets), (50, 51, 49));
    // At a twelfth of the rate the same bytes stay twelve times as long.
    let mut out = Vec::new();
    drain(&mut link, ms(10_000), &mut out);
    assert_eq!(link.stats(Direction::Down).max_queue_delay, Duration::from_millis(50 * 12));
}

#[test]
fn a_policer_passes_its_burst_then_its_rate_without_delay() {
    // 60 kB at once, then 12 Mbit/s: 1000 packets per second of the 4000 offered.
    let mut link = parse_link("w,rate=100Mbit/s,rtt=20ms,queue=1s,police=12Mbit/s:60kB");
    let out = offer(&mut link, Direction::Down, Duration::from_micros(250), ms(5000));
    let passed = 5000 + 60_000 / 1500;
    assert!(
        (out.len() as u64).abs_diff(passed) <= 11,
        "{} of {passed}; those of the last ten milliseconds are in transit",
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
fn a_minute_at_100_mbit_is_simulated_quickly() {
    let mut link = parse_link("w,rate=100Mbit/s,rtt=40ms,loss=0.1%,jitter=1ms");
    let out = offer(&mut link, Direction::Down, Duration::from_micros(120), ms(60_000));
    assert!(out.len() > 499_000 * 999 / 1000 - 1000, "{}", out.len());
    assert!(is_conserved(&link));
}
