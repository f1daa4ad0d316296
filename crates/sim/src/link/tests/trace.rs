//! Links that follow recorded traces of delivery opportunities.

use std::path::PathBuf;

use super::*;

/// A link with a trace of opportunities at these milliseconds.
fn traced_link(text: &str) -> Link<NumberedPacket> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t"), text).unwrap();
    let mut spec: LinkSpec = "lte,trace=t,queue=1MB,up=1Gbit/s".parse().unwrap();
    spec.load(&[dir.path().to_path_buf()]).unwrap();
    Link::new(&spec, 1)
}

fn due_millis(link: &mut Link<NumberedPacket>) -> Vec<u64> {
    let mut out = Vec::new();
    drain(link, ms(100_000), &mut out);
    out.iter().map(|(due, _)| due.as_nanos() / 1_000_000).collect()
}

#[test]
fn a_trace_link_sends_at_its_opportunities_and_repeats_the_trace() {
    let mut link = traced_link("2\n5\n5\n10\n");
    for n in 0..6 {
        link.push(Direction::Down, full_packet(n), ms(0));
    }
    assert_eq!(link.next_event(), Some(ms(2)));
    assert_eq!(due_millis(&mut link), [2, 5, 5, 10, 12, 15]);
}

#[test]
fn packets_share_opportunities_and_extend_over_several() {
    let mut link = traced_link("2\n5\n5\n10\n");
    // 604 bytes each with the header: two and a half fit into an opportunity of 1504 bytes.
    for n in 0..5 {
        link.push(Direction::Down, NumberedPacket { number: n, bytes: 600 }, ms(0));
    }
    assert_eq!(due_millis(&mut link), [2, 2, 5, 5, 5]);
}

#[test]
fn unused_opportunities_are_lost() {
    let mut link = traced_link("2\n5\n5\n10\n");
    link.push(Direction::Down, full_packet(0), ms(6));
    link.push(Direction::Down, full_packet(1), ms(23));
    link.push(Direction::Down, full_packet(2), ms(1_000_000));
    let mut out = Vec::new();
    drain(&mut link, ms(2_000_000), &mut out);
    let due: Vec<u64> = out.iter().map(|(due, _)| due.as_nanos() / 1_000_000).collect();
    assert_eq!(due, [10, 25, 1_000_000]);
}

#[test]
fn a_held_trace_continues_without_sending() {
    let mut link = traced_link("1\n");
    link.push(Direction::Down, NumberedPacket { number: 0, bytes: 1500 }, Instant::from_nanos(1));
    link.push(Direction::Down, NumberedPacket { number: 1, bytes: 1500 }, Instant::from_nanos(1));
    link.change(&LinkEventKind::Hold, Instant::from_nanos(1_500_000));
    link.change(&LinkEventKind::Restore, Instant::from_nanos(7_500_000));
    assert_eq!(due_millis(&mut link), [1, 8]);
}

#[test]
fn the_part_of_a_packet_sent_before_a_hold_is_not_repeated() {
    let mut spec: LinkSpec = "lte,trace=t,mtu=9000B".parse().unwrap();
    let Downlink::Trace(file) = &mut spec.downlink else { panic!("a trace") };
    file.trace = Some(std::sync::Arc::new(Trace::parse("1\n").unwrap()));
    let mut link = Link::new(&spec, 1);
    // Three opportunities with its header: one before the hold, two after it.
    link.push(Direction::Down, NumberedPacket { number: 0, bytes: 3 * 1504 - 4 }, Instant::from_nanos(1));
    link.change(&LinkEventKind::Hold, Instant::from_nanos(1_500_000));
    link.change(&LinkEventKind::Restore, Instant::from_nanos(7_500_000));
    assert_eq!(due_millis(&mut link), [9]);
}

#[test]
fn a_rate_change_replaces_a_trace() {
    let mut link = traced_link("10\n");
    link.push(Direction::Down, NumberedPacket { number: 0, bytes: 1496 }, ms(0));
    link.change(&LinkEventKind::Rate(Bitrate::from_mbps(12)), ms(5));
    assert_eq!(due_millis(&mut link), [6]);
}

#[test]
fn a_recorded_trace_delivers_its_opportunities() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let mut spec: LinkSpec = "lte,trace=mm-tmobile-lte-short.down".parse().unwrap();
    if let Err(error) = spec.load(&[dir]) {
        eprintln!("skipped: {error}");
        return;
    }
    let Downlink::Trace(TraceFile { trace: Some(trace), .. }) = &spec.downlink else { panic!("loaded") };
    let mut link = Link::new(&spec, 1);
    let out = offer(&mut link, Direction::Down, Duration::from_micros(80), ms(60_000));
    let offered = trace.count_before(ms(60_000));
    assert!(out.len() as u64 * 1000 >= offered * 995, "{} of {offered}", out.len());
    assert!(out.len() as u64 <= offered && is_conserved(&link));
}
