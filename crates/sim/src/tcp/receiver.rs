//! What has arrived, and when is the other side told?
//!
//! In: data segments. Out: how far the stream is complete, and ACKs with SACK blocks, now or a little later.
//!
//! 1. An ACK goes out at once for the first 16 segments, for every second full segment, for anything out of order, for
//!    what fills the last hole, for duplicates and for FIN; otherwise after 40 ms (RFC 5681 §4.2, Linux's figures).
//! 2. SACK blocks: the one with the newest segment first, then the ones before it (RFC 2018 §4); a duplicate comes
//!    before all of them (RFC 2883 §4).
//! 3. The timestamp echoed is that of the segment that moved the edge first since the last ACK (RFC 7323 §4.3), so that
//!    the sender's measure contains the delay of the ACK.
//! 4. The receiver's own round-trip time is that from an ACK to the first full segment that echoes it.
//!
//! The application reads at once whatever is complete, so the window never closes.

use core::time::Duration;
use std::collections::VecDeque;

use marline_core::units::{DataSize, Instant};

use super::segment::{Sacks, Segment, Seqs};

/// One direction's receiving end.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    next: u64,
    ahead: VecDeque<Seqs>,
    recent: Vec<Seqs>,
    duplicate: Option<Seqs>,
    fin: Option<u64>,
    window: DataSize,
    sack: bool,
    mss: u64,
    ack: Pending,
    acked: u64,
    quick: u32,
    echo: Option<Instant>,
    rtt: Duration,
    rtt_echo: Option<Instant>,
    out_of_order: u32,
    arrived: u64,
}

/// Whether an ACK is owed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pending {
    Nothing,
    At(Instant),
    Now,
}

impl Receiver {
    /// Waits for number zero; `mss` is a full segment's payload.
    pub(super) fn new(mss: u64, window: DataSize, sack: bool) -> Self {
        Self {
            next: 0,
            ahead: VecDeque::new(),
            recent: Vec::new(),
            duplicate: None,
            fin: None,
            window,
            sack,
            mss,
            ack: Pending::Nothing,
            acked: 0,
            quick: QUICK_ACKS,
            echo: None,
            rtt: Duration::ZERO,
            rtt_echo: None,
            out_of_order: 0,
            arrived: 0,
        }
    }

    /// Takes what a segment carries; handshake and window are the socket's and the sender's matter.
    pub(super) fn on_segment(&mut self, now: Instant, segment: &Segment) {
        if segment.data.start <= self.acked && self.echo.is_none_or(|echo| echo <= segment.sent) {
            self.echo = Some(segment.sent);
        }
        self.measure(now, segment);
        if segment.flags.fin {
            self.fin = Some(segment.data.end);
        }
        if segment.end() == segment.data.start {
            return;
        }
        if segment.end() <= self.next {
            self.on_duplicate(segment.data);
        } else if segment.data.start <= self.next {
            self.on_next(now, segment);
        } else {
            self.on_ahead(segment.data);
        }
    }

    /// The peer must be answered at once (a handshake's end, a probe).
    pub(super) fn owe_ack(&mut self) {
        self.ack = Pending::Now;
    }

    /// An ACK goes out with the segment that is being made.
    pub(super) fn take_ack(&mut self) -> Sacks {
        let mut sacks = Sacks::default();
        for block in self.duplicate.take().into_iter().chain(self.recent.iter().copied()).filter(|_| self.sack) {
            sacks.push(block);
        }
        self.ack = Pending::Nothing;
        self.acked = self.ack();
        self.quick = self.quick.saturating_sub(1);
        sacks
    }

    /// Whether an ACK that goes out now has SACK blocks.
    pub(super) fn has_blocks(&self) -> bool {
        self.sack && (self.duplicate.is_some() || !self.recent.is_empty())
    }

    /// Whether an ACK is to go out now even without data.
    pub(super) fn ack_due(&self, now: Instant) -> bool {
        match self.ack {
            Pending::Nothing => false,
            Pending::At(at) => at <= now,
            Pending::Now => true,
        }
    }

    /// When a delayed ACK is due.
    pub(super) const fn timer(&self) -> Option<Instant> {
        match self.ack {
            Pending::At(at) => Some(at),
            Pending::Nothing | Pending::Now => None,
        }
    }

    /// Bytes complete from the stream's start.
    pub(super) fn complete(&self) -> u64 {
        self.fin.map_or(self.next, |fin| self.next.min(fin))
    }

    /// Whether the stream is complete and ended.
    pub(super) fn ended(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// The number to be acknowledged.
    pub(super) const fn ack(&self) -> u64 {
        self.next
    }

    /// The number that was acknowledged last.
    pub(super) const fn acked(&self) -> u64 {
        self.acked
    }

    /// The other side's clock to be echoed.
    pub(super) const fn echo(&self) -> Option<Instant> {
        self.echo
    }

    /// Room behind the acknowledged number.
    pub(super) const fn window(&self) -> DataSize {
        self.window
    }

    /// Round-trip time as seen from here; zero before the first.
    pub(super) const fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Segments that came out of order.
    pub(super) const fn out_of_order(&self) -> u32 {
        self.out_of_order
    }

    /// Different bytes that have arrived, complete or not.
    pub(super) const fn arrived(&self) -> u64 {
        self.arrived
    }

    fn measure(&mut self, now: Instant, segment: &Segment) {
        if segment.echo == self.rtt_echo || segment.data.len() < self.mss {
            return;
        }
        self.rtt_echo = segment.echo;
        let Some(echo) = segment.echo else { return };
        let sample = now.since(echo);
        self.rtt = if self.rtt.is_zero() { sample } else { (self.rtt * 7 + sample) / 8 };
    }

    fn on_duplicate(&mut self, data: Seqs) {
        if !data.is_empty() {
            self.duplicate = Some(data);
        }
        self.quick = QUICK_ACKS;
        self.ack = Pending::Now;
    }

    fn on_next(&mut self, now: Instant, segment: &Segment) {
        let had_holes = !self.ahead.is_empty();
        self.arrived += self.missing(Seqs::new(self.next, segment.data.end.max(self.next)));
        self.next = segment.end().max(self.next);
        while let Some(first) = self.ahead.front().copied() {
            if first.start > self.next {
                break;
            }
            self.ahead.pop_front();
            self.next = self.next.max(first.end);
        }
        if self.fin == Some(self.next) {
            self.next += 1;
        }
        let next = self.next;
        self.recent.retain(|block| block.start > next);
        let full = self.next - self.acked > self.mss;
        self.ack = if full || had_holes || segment.flags.fin || self.quick > 0 || self.ended() {
            Pending::Now
        } else {
            match self.ack {
                Pending::Nothing => Pending::At(now + DELAY),
                owed => owed,
            }
        };
    }

    fn on_ahead(&mut self, data: Seqs) {
        self.out_of_order = self.out_of_order.saturating_add(1);
        self.ack = Pending::Now;
        if data.is_empty() {
            return;
        }
        let new = self.missing(data);
        if new == 0 {
            self.duplicate = Some(data);
            self.quick = QUICK_ACKS;
        }
        self.arrived += new;
        let merged = self.insert(data);
        self.recent.retain(|block| !merged.covers(*block));
        self.recent.insert(0, merged);
        self.recent.truncate(REMEMBERED);
    }

    /// Numbers of `data` that have not arrived yet.
    fn missing(&self, data: Seqs) -> u64 {
        let from = self.ahead.partition_point(|block| block.end <= data.start);
        let known = self.ahead.range(from..).take_while(|block| block.start < data.end);
        let known: u64 = known.map(|block| block.end.min(data.end) - block.start.max(data.start)).sum();
        data.len() - known
    }

    fn insert(&mut self, data: Seqs) -> Seqs {
        let from = self.ahead.partition_point(|block| block.end < data.start);
        let to = self.ahead.partition_point(|block| block.start <= data.end);
        let touched = || self.ahead.range(from..to);
        let start = touched().next().map_or(data.start, |first| first.start.min(data.start));
        let end = touched().next_back().map_or(data.end, |last| last.end.max(data.end));
        let merged = Seqs::new(start, end);
        match self.ahead.get_mut(from) {
            Some(place) if from < to => {
                *place = merged;
                self.ahead.drain(from + 1..to);
            }
            _ => self.ahead.insert(from, merged),
        }
        merged
    }
}

/// Linux's `TCP_MAX_QUICKACKS`.
const QUICK_ACKS: u32 = 16;
/// Linux's `TCP_DELACK_MIN`.
const DELAY: Duration = Duration::from_millis(40);
/// Linux's `selective_acks`.
const REMEMBERED: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::segment::Flags;
    use super::*;

    const MSS: u64 = 1000;

    fn receiver() -> Receiver {
        Receiver::new(MSS, DataSize::from_mib(1), true)
    }

    fn segment(n: u64) -> Segment {
        Segment { data: Seqs::new(n * MSS, (n + 1) * MSS), ..Segment::default() }
    }

    fn blocks(receiver: &mut Receiver) -> Vec<(u64, u64)> {
        receiver.take_ack().iter().map(|block| (block.start / MSS, block.end / MSS)).collect()
    }

    #[test]
    fn the_newest_block_comes_first() {
        let mut r = receiver();
        for n in [2, 4, 6, 8] {
            r.on_segment(Instant::ZERO, &segment(n));
            assert!(r.ack_due(Instant::ZERO));
        }
        assert_eq!(blocks(&mut r), [(8, 9), (6, 7), (4, 5)]);
        r.on_segment(Instant::ZERO, &segment(3));
        assert_eq!(blocks(&mut r), [(2, 5), (8, 9), (6, 7)], "merged with both neighbours");
        assert_eq!((r.complete(), r.arrived(), r.out_of_order()), (0, 5 * MSS, 5));
    }

    #[test]
    fn a_filled_hole_moves_the_edge_over_all_of_it() {
        let mut r = receiver();
        for n in [1, 2, 4, 0] {
            r.on_segment(Instant::ZERO, &segment(n));
        }
        assert_eq!(r.complete(), 3 * MSS);
        assert_eq!(blocks(&mut r), [(4, 5)]);
        assert_eq!(r.arrived(), 4 * MSS);
    }

    #[test]
    fn after_the_quick_start_every_second_segment_is_acknowledged_or_40_ms_pass() {
        let mut r = receiver();
        for n in 0..16 {
            r.on_segment(Instant::ZERO, &segment(n));
            assert!(r.ack_due(Instant::ZERO), "segment {n}");
            r.take_ack();
        }
        r.on_segment(Instant::ZERO, &segment(16));
        assert!(!r.ack_due(Instant::ZERO));
        assert_eq!(r.timer(), Some(Instant::from_millis(40)));
        r.on_segment(Instant::ZERO, &segment(17));
        assert!(r.ack_due(Instant::ZERO));
    }

    #[test]
    fn a_duplicate_is_reported_once() {
        let mut r = receiver();
        r.on_segment(Instant::ZERO, &segment(0));
        r.take_ack();
        r.on_segment(Instant::ZERO, &segment(0));
        assert_eq!(blocks(&mut r), [(0, 1)]);
        assert!(blocks(&mut r).is_empty());
        assert_eq!(r.arrived(), MSS);
    }

    #[test]
    fn the_end_counts_only_when_everything_before_it_is_there() {
        let mut r = receiver();
        let last = Segment { flags: Flags { fin: true, ..Flags::default() }, ..segment(1) };
        r.on_segment(Instant::ZERO, &last);
        assert!(!r.ended());
        r.on_segment(Instant::ZERO, &segment(0));
        assert!(r.ended());
        assert_eq!((r.complete(), r.ack()), (2 * MSS, 2 * MSS + 1));
    }

    #[test]
    fn the_round_trip_is_measured_from_the_echo() {
        let mut r = receiver();
        let data = Segment { echo: Some(Instant::from_millis(10)), ..segment(0) };
        r.on_segment(Instant::from_millis(60), &data);
        assert_eq!(r.rtt(), Duration::from_millis(50));
    }
}
