//! Receiver of one direction: which data has arrived, and when and how it is acknowledged.
//!
//! 1. These segments are acknowledged at once: the first 16 of a connection and after each duplicate, every second full segment, everything
//!    that arrives out of order or while there is a gap, duplicates, and the FIN. All others are acknowledged after 40 ms (RFC 5681 §4.2,
//!    Linux's constants).
//! 2. The first SACK block contains the newest segment, followed by the previous blocks (RFC 2018 §4). A duplicate
//!    is reported before all others (RFC 2883 §4).
//! 3. The echoed timestamp is that of the first segment that advanced the stream since the last ACK (RFC 7323
//!    §4.3), so that the sender's RTT sample includes the ACK delay.
//! 4. The receiver's own RTT is the time from an ACK to the first full segment that echoes it.
//!
//! The application reads complete data at once, so the window never closes.

use core::time::Duration;
use std::collections::VecDeque;

use marline_core::units::{DataSize, Instant};

use super::segment::{SackBlocks, Segment, SeqRange};

/// Receiving side of one direction.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    rcv_nxt: u64,
    out_of_order_ranges: VecDeque<SeqRange>,
    recent_blocks: Vec<SeqRange>,
    dsack: Option<SeqRange>,
    fin_seq: Option<u64>,
    window: DataSize,
    uses_sack: bool,
    mss: u64,
    pending_ack: PendingAck,
    last_acked: u64,
    quick_acks_left: u32,
    ts_recent: Option<Instant>,
    rtt: Duration,
    last_rtt_echo: Option<Instant>,
    out_of_order_segments: u32,
    received_bytes: u64,
}

/// Whether and when an ACK must be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PendingAck {
    Nothing,
    At(Instant),
    Now,
}

impl Receiver {
    /// Expects sequence number zero; `mss` is the payload of a full segment.
    pub(super) fn new(mss: u64, window: DataSize, sack: bool) -> Self {
        Self {
            rcv_nxt: 0,
            out_of_order_ranges: VecDeque::new(),
            recent_blocks: Vec::new(),
            dsack: None,
            fin_seq: None,
            window,
            uses_sack: sack,
            mss,
            pending_ack: PendingAck::Nothing,
            last_acked: 0,
            quick_acks_left: QUICK_ACKS,
            ts_recent: None,
            rtt: Duration::ZERO,
            last_rtt_echo: None,
            out_of_order_segments: 0,
            received_bytes: 0,
        }
    }

    /// Processes the data of a segment; handshake and window are handled by the socket and the sender.
    pub(super) fn on_segment(&mut self, now: Instant, segment: &Segment) {
        if segment.seqs.start <= self.last_acked && self.ts_recent.is_none_or(|echo| echo <= segment.ts_val) {
            self.ts_recent = Some(segment.ts_val);
        }
        self.update_rtt(now, segment);
        if segment.flags.fin {
            self.fin_seq = Some(segment.seqs.end);
        }
        if segment.end() == segment.seqs.start {
            return;
        }
        if segment.end() <= self.rcv_nxt {
            self.on_duplicate(segment.seqs);
        } else if segment.seqs.start <= self.rcv_nxt {
            self.on_in_order(now, segment);
        } else {
            self.on_out_of_order(segment.seqs);
        }
    }

    /// Requests an immediate ACK (end of a handshake, a probe).
    pub(super) fn request_ack(&mut self) {
        self.pending_ack = PendingAck::Now;
    }

    /// SACK blocks for the segment that is being built, which also counts as the ACK.
    pub(super) fn take_sack_blocks(&mut self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        for block in
            self.dsack.take().into_iter().chain(self.recent_blocks.iter().copied()).filter(|_| self.uses_sack)
        {
            blocks.push(block);
        }
        self.pending_ack = PendingAck::Nothing;
        self.last_acked = self.rcv_nxt();
        self.quick_acks_left = self.quick_acks_left.saturating_sub(1);
        blocks
    }

    /// Whether an ACK sent now would have SACK blocks.
    pub(super) fn has_blocks(&self) -> bool {
        self.uses_sack && (self.dsack.is_some() || !self.recent_blocks.is_empty())
    }

    /// Whether an ACK must be sent now, even without data.
    pub(super) fn is_ack_due(&self, now: Instant) -> bool {
        match self.pending_ack {
            PendingAck::Nothing => false,
            PendingAck::At(at) => at <= now,
            PendingAck::Now => true,
        }
    }

    /// When a delayed ACK is due.
    pub(super) const fn timer(&self) -> Option<Instant> {
        match self.pending_ack {
            PendingAck::At(at) => Some(at),
            PendingAck::Nothing | PendingAck::Now => None,
        }
    }

    /// Bytes received in order since the start of the stream.
    pub(super) fn in_order_bytes(&self) -> u64 {
        self.fin_seq.map_or(self.rcv_nxt, |fin| self.rcv_nxt.min(fin))
    }

    /// Whether the whole stream, including the FIN, has arrived.
    pub(super) fn is_finished(&self) -> bool {
        self.fin_seq.is_some_and(|fin| self.rcv_nxt > fin)
    }

    /// Next expected sequence number, which ACKs carry.
    pub(super) const fn rcv_nxt(&self) -> u64 {
        self.rcv_nxt
    }

    /// The sequence number acknowledged last.
    pub(super) const fn last_acked(&self) -> u64 {
        self.last_acked
    }

    /// Timestamp of the peer to be echoed.
    pub(super) const fn ts_recent(&self) -> Option<Instant> {
        self.ts_recent
    }

    /// Receive window, counted from the acknowledged number.
    pub(super) const fn window(&self) -> DataSize {
        self.window
    }

    /// RTT measured by the receiver; zero before the first sample.
    pub(super) const fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Number of segments that arrived out of order.
    pub(super) const fn out_of_order_segments(&self) -> u32 {
        self.out_of_order_segments
    }

    /// Number of distinct bytes that have arrived.
    pub(super) const fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    fn update_rtt(&mut self, now: Instant, segment: &Segment) {
        if segment.ts_ecr == self.last_rtt_echo || segment.seqs.len() < self.mss {
            return;
        }
        self.last_rtt_echo = segment.ts_ecr;
        let Some(echo) = segment.ts_ecr else { return };
        let sample = now.since(echo);
        self.rtt = if self.rtt.is_zero() { sample } else { (self.rtt * 7 + sample) / 8 };
    }

    fn on_duplicate(&mut self, data: SeqRange) {
        if !data.is_empty() {
            self.dsack = Some(data);
        }
        self.quick_acks_left = QUICK_ACKS;
        self.pending_ack = PendingAck::Now;
    }

    fn on_in_order(&mut self, now: Instant, segment: &Segment) {
        let had_holes = !self.out_of_order_ranges.is_empty();
        self.received_bytes += self.new_bytes_in(SeqRange::new(self.rcv_nxt, segment.seqs.end.max(self.rcv_nxt)));
        self.rcv_nxt = segment.end().max(self.rcv_nxt);
        while let Some(first) = self.out_of_order_ranges.front().copied() {
            if first.start > self.rcv_nxt {
                break;
            }
            self.out_of_order_ranges.pop_front();
            self.rcv_nxt = self.rcv_nxt.max(first.end);
        }
        if self.fin_seq == Some(self.rcv_nxt) {
            self.rcv_nxt += 1;
        }
        let next = self.rcv_nxt;
        self.recent_blocks.retain(|block| block.start > next);
        let is_full_segment_due = self.rcv_nxt - self.last_acked > self.mss;
        self.pending_ack = if is_full_segment_due
            || had_holes
            || segment.flags.fin
            || self.quick_acks_left > 0
            || self.is_finished()
        {
            PendingAck::Now
        } else {
            match self.pending_ack {
                PendingAck::Nothing => PendingAck::At(now + DELAYED_ACK),
                pending => pending,
            }
        };
    }

    fn on_out_of_order(&mut self, data: SeqRange) {
        self.out_of_order_segments = self.out_of_order_segments.saturating_add(1);
        self.pending_ack = PendingAck::Now;
        if data.is_empty() {
            return;
        }
        let new_bytes = self.new_bytes_in(data);
        if new_bytes == 0 {
            self.dsack = Some(data);
            self.quick_acks_left = QUICK_ACKS;
        }
        self.received_bytes += new_bytes;
        let merged = self.merge_range(data);
        self.recent_blocks.retain(|block| !merged.covers(*block));
        self.recent_blocks.insert(0, merged);
        self.recent_blocks.truncate(MAX_SACK_BLOCKS);
    }

    /// Number of bytes in `data` that have not arrived before.
    fn new_bytes_in(&self, data: SeqRange) -> u64 {
        let from = self.out_of_order_ranges.partition_point(|block| block.end <= data.start);
        let received_blocks = self.out_of_order_ranges.range(from..).take_while(|block| block.start < data.end);
        let received_bytes: u64 =
            received_blocks.map(|block| block.end.min(data.end) - block.start.max(data.start)).sum();
        data.len() - received_bytes
    }

    fn merge_range(&mut self, data: SeqRange) -> SeqRange {
        let from = self.out_of_order_ranges.partition_point(|block| block.end < data.start);
        let to = self.out_of_order_ranges.partition_point(|block| block.start <= data.end);
        let overlapping = || self.out_of_order_ranges.range(from..to);
        let start = overlapping().next().map_or(data.start, |first| first.start.min(data.start));
        let end = overlapping().next_back().map_or(data.end, |last| last.end.max(data.end));
        let merged = SeqRange::new(start, end);
        match self.out_of_order_ranges.get_mut(from) {
            Some(block) if from < to => {
                *block = merged;
                self.out_of_order_ranges.drain(from + 1..to);
            }
            _ => self.out_of_order_ranges.insert(from, merged),
        }
        merged
    }
}

/// Immediate ACKs at the start and after a duplicate: Linux's `TCP_MAX_QUICKACKS`.
const QUICK_ACKS: u32 = 16;
/// Delay of an ACK: Linux's `TCP_DELACK_MIN`.
const DELAYED_ACK: Duration = Duration::from_millis(40);
/// Blocks remembered: size of Linux's `selective_acks`.
const MAX_SACK_BLOCKS: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::segment::Flags;
    use super::*;

    const MSS: u64 = 1000;

    fn receiver() -> Receiver {
        Receiver::new(MSS, DataSize::from_mib(1), true)
    }

    fn segment(n: u64) -> Segment {
        Segment { seqs: SeqRange::new(n * MSS, (n + 1) * MSS), ..Segment::default() }
    }

    fn blocks(receiver: &mut Receiver) -> Vec<(u64, u64)> {
        receiver.take_sack_blocks().iter().map(|block| (block.start / MSS, block.end / MSS)).collect()
    }

    #[test]
    fn the_newest_block_comes_first() {
        let mut r = receiver();
        for n in [2, 4, 6, 8] {
            r.on_segment(Instant::ZERO, &segment(n));
            assert!(r.is_ack_due(Instant::ZERO));
        }
        assert_eq!(blocks(&mut r), [(8, 9), (6, 7), (4, 5)]);
        r.on_segment(Instant::ZERO, &segment(3));
        assert_eq!(blocks(&mut r), [(2, 5), (8, 9), (6, 7)], "merged with both neighbours");
        assert_eq!((r.in_order_bytes(), r.received_bytes(), r.out_of_order_segments()), (0, 5 * MSS, 5));
    }

    #[test]
    fn a_filled_gap_advances_the_stream_over_all_received_data() {
        let mut r = receiver();
        for n in [1, 2, 4, 0] {
            r.on_segment(Instant::ZERO, &segment(n));
        }
        assert_eq!(r.in_order_bytes(), 3 * MSS);
        assert_eq!(blocks(&mut r), [(4, 5)]);
        assert_eq!(r.received_bytes(), 4 * MSS);
    }

    #[test]
    fn after_the_quick_acks_every_second_segment_or_40_ms_cause_an_ack() {
        let mut r = receiver();
        for n in 0..16 {
            r.on_segment(Instant::ZERO, &segment(n));
            assert!(r.is_ack_due(Instant::ZERO), "segment {n}");
            r.take_sack_blocks();
        }
        r.on_segment(Instant::ZERO, &segment(16));
        assert!(!r.is_ack_due(Instant::ZERO));
        assert_eq!(r.timer(), Some(Instant::from_millis(40)));
        r.on_segment(Instant::ZERO, &segment(17));
        assert!(r.is_ack_due(Instant::ZERO));
    }

    #[test]
    fn a_duplicate_is_reported_once() {
        let mut r = receiver();
        r.on_segment(Instant::ZERO, &segment(0));
        r.take_sack_blocks();
        r.on_segment(Instant::ZERO, &segment(0));
        assert_eq!(blocks(&mut r), [(0, 1)]);
        assert!(blocks(&mut r).is_empty());
        assert_eq!(r.received_bytes(), MSS);
    }

    #[test]
    fn a_stream_is_finished_only_when_all_data_before_the_fin_has_arrived() {
        let mut r = receiver();
        let last = Segment { flags: Flags { fin: true, ..Flags::default() }, ..segment(1) };
        r.on_segment(Instant::ZERO, &last);
        assert!(!r.is_finished());
        r.on_segment(Instant::ZERO, &segment(0));
        assert!(r.is_finished());
        assert_eq!((r.in_order_bytes(), r.rcv_nxt()), (2 * MSS, 2 * MSS + 1));
    }

    #[test]
    fn the_receiver_measures_the_rtt_from_the_echoed_timestamp() {
        let mut r = receiver();
        let data = Segment { ts_ecr: Some(Instant::from_millis(10)), ..segment(0) };
        r.on_segment(Instant::from_millis(60), &data);
        assert_eq!(r.rtt(), Duration::from_millis(50));
    }
}
