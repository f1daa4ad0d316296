//! Loss, jitter and CoDel: within their bounds, and equal for equal seeds.

use crate::spec::Loss;

use super::*;

#[test]
fn each_loss_model_has_its_mean_and_burst_losses_are_bursty() {
    for (loss, least, most) in
        [("0.5%", 450, 550), ("ge:1%/25%/50%", 1750, 2100), ("100%", 100_000, 100_000), ("0%", 0, 0)]
    {
        let mut link = parse_link(&format!("w,rate=1Gbit/s,loss={loss}"));
        let out = offer(&mut link, Direction::Down, Duration::from_micros(20), ms(2000));
        let lost = link.stats(Direction::Down).dropped_loss.packets;
        assert!((least..=most).contains(&lost), "{loss}: {lost}");
        assert!(is_conserved(&link));
        let mean = u64::from(loss.parse::<Loss>().unwrap().mean().ppm()) / 10;
        assert!(mean >= least && mean <= most, "{loss}: {mean}");
        if loss.starts_with("ge") {
            let gaps = out.windows(2).filter(|pair| pair[1].1.number - pair[0].1.number > 1).count() as u64;
            // Independent losses of 1.9 % would leave 98 % of the losses isolated.
            assert!(gaps * 10 < lost * 8, "{gaps} gaps of {lost}");
        }
    }
}

#[test]
fn a_link_can_have_no_loss_on_the_uplink() {
    let lost = |link: &Link<NumberedPacket>| {
        [Direction::Down, Direction::Up].map(|direction| link.stats(direction).dropped_loss.packets)
    };
    let mut link = parse_link("w,rate=1Gbit/s,loss=100%,uploss=0%");
    for direction in [Direction::Down, Direction::Up] {
        offer(&mut link, direction, Duration::from_millis(1), ms(100));
    }
    assert_eq!(lost(&link), [100, 0]);
    link.change(&"loss=0%".parse().unwrap(), ms(200));
    link.change(&"loss=50%".parse().unwrap(), ms(200));
    for direction in [Direction::Down, Direction::Up] {
        offer(&mut link, direction, Duration::from_millis(1), ms(400));
    }
    assert!(lost(&link)[0] > 100 && lost(&link)[1] == 0);
}

#[test]
fn the_same_seed_loses_the_same_packets_whatever_else_changes() {
    let survivors = |text: &str, seed: u64, every: u64| {
        let mut link: Link<NumberedPacket> = Link::new(&text.parse().unwrap(), seed);
        let out =
            offer(&mut link, Direction::Down, Duration::from_micros(every), Instant::from_nanos(every * 2_000_000));
        // The last packets are ignored, because some are still in transit.
        out.into_iter().map(|(_, packet)| packet.number).filter(|n| *n < 1900).collect::<Vec<u64>>()
    };
    let first = survivors("w,rate=100Mbit/s,loss=3%", 7, 200);
    assert!((1800..1880).contains(&first.len()));
    assert_eq!(first, survivors("w,rate=1Gbit/s,loss=3%", 7, 100));
    assert_eq!(first, survivors("w,rate=100Mbit/s,loss=3%,rtt=20ms,jitter=1ms", 7, 300));
    assert_ne!(first, survivors("w,rate=100Mbit/s,loss=3%", 8, 200));
    assert_ne!(first, survivors("v,rate=100Mbit/s,loss=3%", 7, 200));
}

#[test]
fn jitter_stays_within_its_bounds_and_keeps_the_order() {
    let mut in_order = parse_link("w,rate=1Gbit/s,rtt=20ms,jitter=5ms");
    let mut reordering = parse_link("w,rate=1Gbit/s,rtt=20ms,jitter=5ms,reorder");
    let delivered = offer(&mut in_order, Direction::Down, Duration::from_millis(1), ms(3000));
    let mixed = offer(&mut reordering, Direction::Down, Duration::from_millis(1), ms(3000));
    let numbers =
        |out: &[(Instant, NumberedPacket)]| out.iter().map(|(_, packet)| packet.number).collect::<Vec<u64>>();
    assert!(numbers(&delivered).is_sorted());
    assert!(!numbers(&mixed).is_sorted());
    assert!(delivered.is_sorted_by_key(|(due, _)| *due) && mixed.is_sorted_by_key(|(due, _)| *due));
    let delays: Vec<u64> =
        mixed.iter().map(|(due, packet)| due.since(ms(packet.number)).as_nanos() as u64).collect();
    let (min, max) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
    assert!((5_012_000..5_100_000).contains(min), "{min}");
    assert!((14_900_000..=15_012_000).contains(max), "{max}");
    let mean = delays.iter().sum::<u64>() / delays.len() as u64;
    assert!((9_800_000..10_200_000).contains(&mean), "{mean}");
}

#[test]
fn a_shorter_delay_does_not_overtake() {
    let mut link = parse_link("w,rate=12Mbit/s,rtt=100ms");
    link.push(Direction::Down, full_packet(0), ms(0));
    link.change(&"rtt=10ms".parse().unwrap(), ms(2));
    link.push(Direction::Down, full_packet(1), ms(2));
    assert_eq!(link.pop_due(ms(200)), Some((ms(51), Direction::Down, full_packet(0))));
    assert_eq!(link.pop_due(ms(200)), Some((ms(51), Direction::Down, full_packet(1))));
}

#[test]
fn codel_keeps_the_queueing_delay_low_where_drop_tail_does_not() {
    // A sender that reacts to loss as TCP does: the window grows by one packet per RTT and is halved on loss.
    let median_queue_delay = |written: &str| {
        let mut link = parse_link(written);
        let (mut window, mut inside, mut n, mut halved) = (10.0_f64, 0.0, 0, ms(0));
        let (mut now, mut out, mut dropped, mut waits) = (ms(0), 0, 0, Vec::new());
        while now < ms(30_000) {
            while inside < window {
                link.push(Direction::Down, full_packet(n), now);
                inside += 1.0;
                n += 1;
            }
            now = link.next_event().unwrap();
            while link.pop(now).is_some() {
                out += 1;
                inside -= 1.0;
                window += 1.0 / window;
            }
            let lost = link.stats(Direction::Down).dropped().packets;
            inside -= (lost - dropped) as f64;
            if lost > dropped && now.since(halved) > Duration::from_millis(60) {
                (window, halved) = ((window / 2.0).max(2.0), now);
            }
            dropped = lost;
            if now > ms(5000) {
                waits.push(link.stats(Direction::Down).queued.bytes / Bitrate::from_mbps(10));
            }
        }
        waits.sort();
        (waits[waits.len() / 2], out)
    };
    let (tail, carried_tail) = median_queue_delay("w,rate=10Mbit/s,rtt=40ms,queue=240ms");
    let (codel, carried_codel) = median_queue_delay("w,rate=10Mbit/s,rtt=40ms,queue=240ms,codel");
    assert!(tail > Duration::from_millis(100), "{tail:?}");
    assert!(codel < Duration::from_millis(20), "{codel:?}");
    assert!(carried_codel * 100 > carried_tail * 90, "{carried_codel} of {carried_tail}");
}
