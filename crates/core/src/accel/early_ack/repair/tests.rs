//! Repair of the flows of a killed run: what is injected, what is reset, and when it is over.

use alloc::vec;

use super::*;
use crate::accel::early_ack::pending::PendingHole;
use crate::accel::event::{Fetch, FetchId};
use crate::link::LinkId;
use crate::units::DataSize;
use crate::wire::packet::{FourTuple, NewSegment, SeqRange, Timestamps};

const PORTS: [&str; 2] = ["10.0.0.2:40000", "192.0.2.1:80"];

/// A flow that waits for 1000, with early acknowledged holes of 1000 bytes from these numbers on, written down at 500.
fn pending_repair(holes: &[u32]) -> PendingRepair {
    let hole = |seq: &u32| PendingHole {
        seq: *seq,
        ts_val: Some(500),
        fetch: Some(Fetch {
            id: FetchId(0),
            link: LinkId(0),
            server: PORTS[1].parse().unwrap(),
            request: "GET / HTTP/1.1\r\n".into(),
            etag: "\"x\"".into(),
            length: DataSize::from_bytes(100_000),
            ranges: vec![(u64::from(*seq), u64::from(*seq) + 1000)],
        }),
    };
    PendingRepair {
        local: PORTS[0].parse().unwrap(),
        server: PORTS[1].parse().unwrap(),
        acked_by_server: (77, 500),
        timestamps: Some((510, 9)),
        next_expected: 1000,
        acked_to_server: Some(1000),
        is_acked_known: true,
        holes: holes.iter().map(hole).collect(),
    }
}

/// A receiver by RFC 9293 and RFC 7323: the number it waits for, its newest timestamp, and what it has beyond. It has
/// sent 100 bytes.
struct Stack {
    next: u32,
    recent: u32,
    beyond: Vec<(u32, u32)>,
    discarded: u32,
    is_open: bool,
}

impl Stack {
    fn new(beyond: &[(u32, u32)]) -> Self {
        Self { next: 1000, recent: 490, beyond: beyond.to_vec(), discarded: 0, is_open: true }
    }

    /// A segment comes; returns the answer of the stack.
    fn take(&mut self, segment: &Segment<'_>) -> Vec<u8> {
        let flow = FourTuple::new(PORTS[0].parse().unwrap(), PORTS[1].parse().unwrap()).unwrap();
        if segment.flags().contains(Flags::RST) && segment.seq() == Seq::new(self.next) {
            self.is_open = false;
        }
        if !self.is_open {
            return NewSegment::reset(&flow, Seq::new(100), Seq::new(self.next)).emit().unwrap();
        }
        self.hold(segment.payload_range(), segment.timestamps());
        let timestamps = Timestamps { ts_val: TcpTimestamp::new(9), ts_ecr: TcpTimestamp::new(self.recent) };
        let ack = NewSegment::data(&flow, Seq::new(100), Seq::new(self.next), 500, Some(timestamps), &[]);
        ack.emit().unwrap()
    }

    fn hold(&mut self, range: SeqRange, timestamps: Option<Timestamps>) {
        let value = timestamps.map_or(self.recent, |timestamps| timestamps.ts_val.ticks());
        if range.is_empty() || value < self.recent {
            self.discarded += u32::from(!range.is_empty() && value < self.recent);
            return;
        }
        if range.start.number() <= self.next {
            self.recent = value;
        }
        self.beyond.push((range.start.number(), range.end.number()));
        while let Some((_, end)) = self.beyond.iter().find(|(start, end)| *start <= self.next && self.next < *end) {
            self.next = *end;
        }
    }

    /// Sends the packets of the repair, and feeds back what the stack answers.
    fn serve(&mut self, now: Instant, repair: &mut Repair) -> Vec<PacketBytes> {
        let mut sent = Vec::new();
        for patch in repair.tick(now) {
            match patch {
                RepairPacket::Deliver(packet) => {
                    let answer = self.take(&Segment::parse(&packet.0).unwrap());
                    repair.on_local_segment(now, &Segment::parse(&answer).unwrap());
                }
                RepairPacket::Send(packet) => sent.push(packet),
            }
        }
        sent
    }
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Runs it from `from` on until it is over. Returns the time, and the packets for the server.
fn run(repair: &mut Repair, stack: &mut Stack, from: u64) -> (u64, Vec<PacketBytes>) {
    let mut sent = Vec::new();
    for now in (from..from + 200_000).step_by(10) {
        if repair.deadline().is_some_and(|due| due <= at(now)) {
            sent.extend(stack.serve(at(now), repair));
        }
        if repair.is_over() {
            return (now, sent);
        }
    }
    panic!("the repair does not end");
}

/// The case that stood still: the sender repairs an earlier hole itself, with a newer timestamp than the one written down.
#[test]
fn a_hole_older_than_the_senders_own_repair_is_filled_with_a_timestamp_that_the_stack_accepts() {
    let mut repair = Repair::new(at(0), pending_repair(&[3000]));
    let mut stack = Stack::new(&[(2000, 3000), (4000, 5000)]);
    stack.hold(
        SeqRange::new(Seq::new(1000), Seq::new(2000)),
        Some(Timestamps { ts_val: TcpTimestamp::new(700), ts_ecr: TcpTimestamp::new(9) }),
    );
    repair.on_fetched(0, Some(vec![7; 1000]));
    let (ended, sent) = run(&mut repair, &mut stack, 100);
    assert_eq!((repair.state(), repair.filled(), stack.next), (RepairState::Filled, 1, 5000));
    assert!(stack.discarded > 0 && ended < 300, "the first was discarded, the next was not: {ended}");
    assert_eq!(sent, []);
}

#[test]
fn a_repair_outlasts_the_senders_own_and_injects_dropped_bytes_again() {
    let mut repair = Repair::new(at(0), pending_repair(&[3000, 6000]));
    let mut stack = Stack::new(&[(2000, 3000), (4000, 6000)]);
    (0..2).for_each(|hole| repair.on_fetched(hole, Some(vec![7; 1000])));
    // Injected once while the stack waits for 1000, and dropped for want of memory.
    let first = repair.tick(at(10));
    assert_eq!(first.len(), 2);
    assert_eq!(repair.state(), RepairState::Open);
    for now in (20..30_000).step_by(20) {
        stack.serve(at(now), &mut repair);
    }
    assert_eq!((repair.state(), stack.next), (RepairState::Open, 1000), "the sender's repair takes half a minute");
    stack.hold(
        SeqRange::new(Seq::new(1000), Seq::new(2000)),
        Some(Timestamps { ts_val: TcpTimestamp::new(30_000), ts_ecr: TcpTimestamp::new(9) }),
    );
    let (_, sent) = run(&mut repair, &mut stack, 30_000);
    assert_eq!((repair.state(), repair.filled(), stack.next, sent.len()), (RepairState::Filled, 2, 7000, 0));
}

#[test]
fn without_its_bytes_a_flow_is_reset_at_both_ends_within_five_seconds() {
    for has_failed in [false, true] {
        let mut repair = Repair::new(at(0), pending_repair(&[1000]));
        // The stack waits for another number than was written down.
        let mut stack = Stack::new(&[(2000, 3000)]);
        stack.next = 1200;
        if has_failed {
            repair.on_fetched(0, None);
        }
        let (ended, sent) = run(&mut repair, &mut stack, 0);
        assert_eq!(repair.state(), RepairState::Reset);
        assert!(!stack.is_open && ended < if has_failed { 1000 } else { 5000 }, "{ended}");
        let reset = Segment::parse(&sent.last().unwrap().0).unwrap();
        assert!(reset.flags().contains(Flags::RST));
        assert_eq!((reset.four_tuple().destination(), reset.seq()), (PORTS[1].parse().unwrap(), Seq::new(100)));
    }
}

#[test]
fn a_stack_that_waits_for_acknowledged_bytes_has_its_flow_reset() {
    // The stack has dropped the data beyond the hole, which was acknowledged up to 5000.
    let mut repair = Repair::new(at(0), PendingRepair { acked_to_server: Some(5000), ..pending_repair(&[1000]) });
    let mut stack = Stack::new(&[]);
    repair.on_fetched(0, Some(vec![7; 1000]));
    let (ended, sent) = run(&mut repair, &mut stack, 0);
    assert_eq!((repair.state(), stack.next, stack.is_open), (RepairState::Reset, 2000, false));
    assert!(ended < 5000 && !sent.is_empty(), "{ended}");
}

#[test]
fn an_uncertain_flow_is_reset_at_once_and_one_that_is_gone_is_left_alone() {
    let mut repair = Repair::new(at(0), PendingRepair { is_acked_known: false, ..pending_repair(&[]) });
    let mut stack = Stack::new(&[]);
    assert!(run(&mut repair, &mut stack, 0).0 < 100);
    assert_eq!((repair.state(), stack.is_open), (RepairState::Reset, false));
    let mut repair = Repair::new(at(0), pending_repair(&[1000]));
    run(&mut repair, &mut stack, 0);
    assert_eq!(repair.state(), RepairState::Gone);
}
