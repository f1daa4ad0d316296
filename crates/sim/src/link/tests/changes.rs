//! Changes of a running link.

use super::*;

#[test]
fn a_rate_change_in_mid_packet_applies_to_the_rest_of_it() {
    let mut link = parse_link("w,rate=12Mbit/s");
    link.push(Direction::Down, full_packet(0), ms(0));
    // Half of the packet is sent in 0.5 ms at 12 Mbit/s, the other half in 1 ms at 6 Mbit/s.
    link.change(&"rate=6Mbit/s".parse().unwrap(), Instant::from_nanos(500_000));
    assert_eq!(link.next_event(), Some(Instant::from_nanos(1_500_000)));
    // Without a rate of its own, the uplink follows the downlink.
    link.push(Direction::Up, full_packet(1), ms(10));
    assert_eq!(link.pop(ms(11)).unwrap().0, Direction::Down);
    assert_eq!(link.next_event(), Some(ms(12)));
    link.change(&"up=12Mbit/s".parse().unwrap(), ms(20));
    link.change(&"rate=1Mbit/s".parse().unwrap(), ms(20));
    while link.pop(ms(20)).is_some() {}
    link.push(Direction::Up, full_packet(2), ms(20));
    assert_eq!(link.next_event(), Some(ms(21)));
}

#[test]
fn rate_steps_take_effect_on_time_with_a_late_driver() {
    let mut link = parse_link("w,rate=12Mbit/s,steps=10ms:6Mbit/s+20ms:12Mbit/s,queue=1MB");
    for n in 0..20 {
        link.push(Direction::Down, full_packet(n), ms(0));
    }
    let mut out = Vec::new();
    drain(&mut link, ms(1000), &mut out);
    let due: Vec<u64> = out.iter().map(|(due, _)| due.as_nanos() / 1_000_000).collect();
    assert_eq!(due[9..16], [10, 12, 14, 16, 18, 20, 21]);
}

#[test]
fn packets_sent_while_the_link_is_down_are_lost_and_those_in_transit_arrive() {
    let mut link = parse_link("w,rate=12Mbit/s,rtt=20ms,queue=1MB");
    for n in 0..10 {
        link.push(Direction::Down, full_packet(n), ms(0));
    }
    link.change(&LinkEventKind::Down, Instant::from_nanos(3_500_000));
    link.change(&LinkEventKind::Restore, Instant::from_nanos(6_500_000));
    let mut out = Vec::new();
    drain(&mut link, ms(100), &mut out);
    let arrived: Vec<u64> = out.iter().map(|(_, packet)| packet.number).collect();
    assert_eq!(arrived, [0, 1, 2, 6, 7, 8, 9]);
    assert_eq!(link.stats(Direction::Down).dropped_down.packets, 3);
}

#[test]
fn a_held_link_resumes_in_mid_packet() {
    let mut link = parse_link("w,rate=12Mbit/s,rtt=20ms,queue=15kB");
    link.push(Direction::Down, full_packet(0), ms(0));
    link.change(&LinkEventKind::Hold, Instant::from_nanos(250_000));
    assert_eq!(link.next_event(), None);
    for n in 1..20 {
        link.push(Direction::Down, full_packet(n), ms(50));
    }
    assert_eq!(link.pop(ms(900)), None);
    assert_eq!(link.stats(Direction::Down).dropped_queue_full.packets, 9);
    link.change(&LinkEventKind::Restore, ms(1000));
    // A quarter of the packet had been sent before.
    assert_eq!(link.next_event(), Some(Instant::from_nanos(1_010_750_000)));
    let mut out = Vec::new();
    drain(&mut link, ms(2000), &mut out);
    assert_eq!(out.len(), 11);
}

#[test]
fn a_scheduled_change_wakes_the_driver_only_if_packets_are_queued() {
    let mut link = parse_link("w,rate=12Mbit/s");
    link.schedule(ms(30), LinkEventKind::Restore);
    link.schedule(ms(10), LinkEventKind::Hold);
    assert_eq!(link.next_event(), None);
    link.push(Direction::Down, full_packet(0), ms(20));
    assert_eq!(link.next_event(), Some(ms(30)));
    assert_eq!(link.pop(ms(30)), None);
    assert_eq!(link.next_event(), Some(ms(31)));
    assert!(link.pop(ms(31)).is_some());
}

#[test]
fn a_rate_of_zero_holds_packets_until_the_next_rate() {
    let mut link = parse_link("w,rate=12Mbit/s");
    link.change(&LinkEventKind::Rate(Bitrate::ZERO), ms(0));
    link.push(Direction::Down, full_packet(0), ms(1));
    assert_eq!((link.next_event(), link.pop(ms(500))), (None, None));
    link.change(&LinkEventKind::Rate(Bitrate::from_mbps(12)), ms(500));
    assert_eq!(link.next_event(), Some(ms(501)));
}
