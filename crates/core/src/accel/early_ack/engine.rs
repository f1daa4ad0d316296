//! Early ACK engine: decides what is acknowledged to the sender of one flow and which ranges must be fetched
//! (Super-aggregation §3.3, §4.2).
//!
//! ```text
//!   local stack:  ack ...... hole ...... SACK block ...... hole ... SACK block          right edge
//!   early-acked:      [ acknowledged, fetched ]        [ the same ]
//!   to the sender:                                                       ack   window up to there
//! ```
//!
//! 1. What has arrived is what the local stack acknowledges: its acknowledgement number and its SACK blocks, of which
//!    it reports the newest three or four; a set keeps the others. A stack may drop data beyond a hole when memory is
//!    short (reneging, RFC 2018 section 8). That is noticed when its acknowledgement number stops where there were
//!    bytes.
//! 2. A hole is acknowledged early when its loss is classified as random, its bytes can be fetched, and the budget
//!    permits: what the fetching link delivers in two seconds. Any other hole is reported to the sender, with all that
//!    were known by then. While one of these is open, SACK blocks cover the early-acked holes behind it; else the
//!    sender would learn of every hole in a flow that always has one.
//! 3. An acknowledged byte is never the sender's again: such a hole is early-acked whatever the budget.
//! 4. Never acknowledged are: bytes beyond what is early-acked or has arrived; bytes beyond the local stack's right
//!    edge, because the stack would drop them for good; a FIN that the local stack has not acknowledged.
//! 5. A rewritten ACK echoes the newest timestamp that came, because the local stack's echo stays constant at a hole
//!    and would look like a round trip of seconds (RFC 7323 section 4.3).
//! 6. An ACK without new information is suppressed if one has just left. A duplicate that answers a retransmission
//!    never is, because the previous one may have been lost.
//! 7. If a hole is open and the local stack does not advance for `hole_timeout`, the connection is reset: a stream
//!    that stops for ever is worse than an error. The holes of an outage may take longer as long as they advance.

use alloc::vec::Vec;

use super::http_map::HttpMap;
use crate::accel::early_ack::options::EarlyAckOptions;
use crate::accel::seq_space::{PosRange, PosRangeSet, nearest_position, seq_of};
use crate::units::Instant;
use crate::wire::packet::{Ack, Rewrite, SackBlocks, Seq, SeqRange, TcpTimestamp, Timestamps};

/// The holes of one flow.
#[derive(Clone, Debug)]
pub(crate) struct EarlyAckEngine {
    options: &'static EarlyAckOptions,
    /// What the local stack has acknowledged.
    next_expected: u64,
    /// The right edge of its receive window.
    right_edge: u64,
    /// What it has beyond a hole.
    received_beyond: PosRangeSet,
    /// What was acknowledged to the sender, or may have been.
    acked: u64,
    /// The right edge that was advertised to the sender.
    advertised_edge: u64,
    /// Holes before this position were reported to the sender.
    reported_below: u64,
    /// Everything before this position has arrived or is early-acked.
    acked_or_received: u64,
    /// Ranges that were acknowledged to the sender and have not arrived.
    holes: Vec<EarlyAckedHole>,
    /// Of these, not handed out yet.
    to_fetch: Vec<PosRange>,
    /// After a sweep: up to where it may have acknowledged.
    sweep_top: Option<u64>,
    /// When an ACK last left.
    last_ack_sent: Instant,
    /// The newest timestamp of the sender, captured or echoed by the local stack.
    newest_tsval: Option<TcpTimestamp>,
    /// Bytes that were ever acknowledged early.
    total_bytes: u64,
}

/// A range that was acknowledged early at `since`.
#[derive(Clone, Copy, Debug)]
struct EarlyAckedHole {
    range: PosRange,
    since: Instant,
    /// The newest timestamp that had come by then: older than any that comes later, newer than those before the hole.
    ts_val: Option<TcpTimestamp>,
}

/// What a decision depends on, beside the flow itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyAckPolicy<'a> {
    /// Where bytes can be fetched.
    pub(crate) http_map: &'a HttpMap,
    /// Whether a new hole may be acknowledged early: the mechanism is on, and the loss is random.
    pub(crate) allows_new: bool,
    /// How many more bytes may be missing at the same time.
    pub(crate) budget: u64,
    /// The newest timestamp of the sender.
    pub(crate) newest_tsval: Option<TcpTimestamp>,
}

/// What becomes of a segment that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckAction {
    /// Send it unchanged.
    Forward,
    /// Send it with these fields.
    Rewrite(AckRewrite),
    /// It would have these fields, without new information, and does not leave.
    Suppress(AckRewrite),
}

/// The fields of a rewritten ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AckRewrite {
    /// Its acknowledgement number.
    pub(crate) ack: Seq,
    /// Its SACK blocks: no more than it had.
    pub(crate) sack_blocks: SackBlocks,
    /// Its window, as in the header.
    pub(crate) window: u16,
    /// The timestamp that it echoes, if another.
    pub(crate) echo: Option<TcpTimestamp>,
}

impl AckRewrite {
    /// Writes the fields into the packet. The length does not change.
    pub(crate) fn write(&self, packet: &mut [u8]) {
        let Ok(mut rewrite) = Rewrite::of(packet) else { return };
        rewrite.set_ack(self.ack);
        rewrite.set_window(self.window);
        let mut blocks = self.sack_blocks.blocks().iter();
        rewrite.map_sack_blocks(|_| blocks.next().copied());
        if let Some(echo) = self.echo {
            rewrite.set_ts_ecr(echo);
        }
    }

    /// Returns `ack` with the rewritten fields, as the sender receives it.
    #[must_use]
    pub(crate) fn applied_to(&self, ack: &Ack) -> Ack {
        let fresh =
            |timestamps: Timestamps| Timestamps { ts_ecr: self.echo.unwrap_or(timestamps.ts_ecr), ..timestamps };
        let timestamps = ack.timestamps.map(fresh);
        Ack { ack: self.ack, window: self.window, timestamps, sack_blocks: self.sack_blocks, ..*ack }
    }
}

impl EarlyAckEngine {
    /// Of a flow whose local stack has acknowledged up to here.
    pub(crate) fn new(options: &'static EarlyAckOptions, next_expected: u64) -> Self {
        Self {
            options,
            next_expected,
            right_edge: next_expected,
            received_beyond: PosRangeSet::default(),
            acked: next_expected,
            advertised_edge: next_expected,
            reported_below: next_expected,
            acked_or_received: next_expected,
            holes: Vec::new(),
            to_fetch: Vec::new(),
            sweep_top: None,
            last_ack_sent: Instant::ZERO,
            newest_tsval: None,
            total_bytes: 0,
        }
    }

    /// The local stack sends this acknowledgement; `carries_data`: with data of its own. `scale` is its window scale.
    pub(crate) fn on_ack_out(
        &mut self,
        now: Instant,
        ack: &Ack,
        carries_data: bool,
        scale: u8,
        policy: &EarlyAckPolicy<'_>,
    ) -> AckAction {
        self.on_tsval(ack.timestamps.map(|timestamps| timestamps.ts_ecr));
        self.on_tsval(policy.newest_tsval);
        self.on_local_ack(ack, scale);
        let end = self.advance_ack(now, policy);
        if end == self.next_expected && self.holes.is_empty() {
            self.acked = self.acked.max(end);
            self.advertised_edge = self.advertised_edge.max(self.right_edge);
            // Whatever it reports of holes is forwarded unchanged.
            self.reported_below = self.reported_below.max(self.received_beyond.end().unwrap_or(0));
            self.last_ack_sent = now;
            return AckAction::Forward;
        }
        let is_new = end > self.acked || self.right_edge > self.advertised_edge;
        let rewrite_to = self.rewrite(end, ack, scale);
        let has_blocks = !rewrite_to.sack_blocks.is_empty();
        let must_leave = ack.dsack_range().is_some() || carries_data || has_blocks;
        self.acked = self.acked.max(end);
        if !is_new && !must_leave && now.since(self.last_ack_sent) < self.options.suppress_time {
            return AckAction::Suppress(rewrite_to);
        }
        if has_blocks {
            self.reported_below = self.reported_below.max(self.received_beyond.end().unwrap_or(0));
        }
        self.advertised_edge = self.advertised_edge.max(self.right_edge);
        self.last_ack_sent = now;
        AckAction::Rewrite(rewrite_to)
    }

    /// The sender is at this number: it begins a segment that came, or is that of a bare acknowledgement. After a sweep
    /// it shows how much of the sweep was accepted.
    pub(crate) fn on_peer_seq(&mut self, now: Instant, seq: Seq, policy: &EarlyAckPolicy<'_>) {
        self.on_tsval(policy.newest_tsval);
        let Some(top) = self.sweep_top else { return };
        let at = nearest_position(self.next_expected, seq).min(top);
        if at > self.acked {
            self.acked = at;
            self.advance_ack(now, policy);
        }
    }

    /// From now on everything before `top` may have been acknowledged. Returns the acknowledgement numbers, the highest
    /// first, of which the sender accepts the first that it has reached. `step` is its segment size.
    ///
    /// Holes before bytes that arrived are early-acked at once; those behind them as soon as the sender shows its
    /// position ([`on_peer_seq`](Self::on_peer_seq)).
    pub(crate) fn sweep(&mut self, now: Instant, top: u64, step: u32, policy: &EarlyAckPolicy<'_>) -> Vec<Seq> {
        let step = u64::from(step.max(1));
        let top = top.min(self.right_edge).max(self.acked).max(self.sweep_top.unwrap_or(0));
        self.sweep_top = Some(top);
        self.acked = self.acked.max(self.received_beyond.end().unwrap_or(0).min(top));
        self.advance_ack(now, policy);
        let acks = (self.acked..=top).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        let mut acks: Vec<u64> = acks.take(MAX_SWEEP_ACKS).collect();
        // The last segment of a body, or of a window, may be shorter.
        if acks.last().is_some_and(|last| *last < top && top - last < step) {
            acks.push(top);
        }
        acks.into_iter().rev().map(seq_of).collect()
    }

    /// The window to advertise with this number, so that the right edge stays where it is.
    pub(crate) fn window_at(&self, ack: Seq, scale: u8) -> u16 {
        self.window(nearest_position(self.next_expected, ack), scale)
    }

    /// Up to where a sweep may have acknowledged, as long as that is unknown.
    pub(crate) const fn sweep_top(&self) -> Option<u64> {
        self.sweep_top
    }

    /// Ranges to be fetched, each once.
    pub(crate) fn take_to_fetch(&mut self) -> Vec<PosRange> {
        core::mem::take(&mut self.to_fetch)
    }

    /// What of this range is early-acked and has not arrived.
    pub(crate) fn missing(&self, range: PosRange) -> Vec<PosRange> {
        let parts = self.holes.iter().map(|hole| hole.range.intersection(&range));
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// The timestamp of a segment that fills this hole; none if it is no hole, or without timestamps.
    pub(crate) fn tsval_at(&self, position: u64) -> Option<TcpTimestamp> {
        self.holes.iter().find(|hole| hole.range.contains(position)).and_then(|hole| hole.ts_val)
    }

    /// What the local stack has acknowledged.
    pub(crate) const fn next_expected(&self) -> u64 {
        self.next_expected
    }

    /// What was acknowledged to the sender, as far as is known.
    pub(crate) const fn acked(&self) -> u64 {
        self.acked
    }

    /// Whether nothing is early-acked, and nothing may have been acknowledged that has not arrived.
    pub(crate) fn is_idle(&self) -> bool {
        self.holes.is_empty() && self.acked <= self.next_expected && self.sweep_top.is_none()
    }

    /// What is acknowledged and has not arrived, with the timestamp of a segment that fills it.
    pub(crate) fn open_holes(&self) -> impl Iterator<Item = (PosRange, Option<TcpTimestamp>)> + '_ {
        self.holes.iter().map(|hole| (hole.range, hole.ts_val))
    }

    /// Bytes that are acknowledged and have not arrived.
    pub(crate) fn missing_bytes(&self) -> u64 {
        self.holes.iter().map(|hole| hole.range.len()).sum()
    }

    /// Bytes that were ever acknowledged early.
    pub(crate) const fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// When the connection is to be reset unless something comes; `moved`: when the local stack last advanced.
    pub(crate) fn deadline(&self, moved: Instant) -> Option<Instant> {
        self.oldest_hole().map(|since| since.max(moved) + self.options.hole_timeout)
    }

    /// Since when the oldest open hole is early-acked.
    pub(crate) fn oldest_hole(&self) -> Option<Instant> {
        self.holes.iter().map(|hole| hole.since).min()
    }

    /// Takes in an acknowledgement of the local stack.
    fn on_local_ack(&mut self, ack: &Ack, scale: u8) {
        let next_expected = nearest_position(self.next_expected, ack.ack);
        if next_expected >= self.next_expected {
            self.next_expected = next_expected;
            self.right_edge = nearest_position(next_expected, ack.right_edge(scale)).max(next_expected);
        }
        let blocks = ack.sack_blocks.blocks().iter().map(|block| {
            let start = nearest_position(self.next_expected, block.start);
            PosRange::new(start, start.saturating_add(block.len().into()))
        });
        let blocks: Vec<PosRange> =
            blocks.filter(|block| block.start > self.next_expected && block.end <= self.right_edge).collect();
        if next_expected == self.next_expected && self.received_beyond.contains(next_expected) {
            // The stack waits for data that it had: it dropped it, except for the blocks that it reports now.
            self.received_beyond.remove(PosRange::new(next_expected, self.received_beyond.run_from(next_expected)));
            self.acked_or_received = next_expected;
        }
        self.received_beyond.remove_before(self.next_expected);
        for block in &blocks {
            self.received_beyond.insert(*block);
            let top = self.sweep_top.unwrap_or(0);
            self.acked = self.acked.max(block.start.min(top));
        }
        self.sweep_top = self.sweep_top.filter(|top| self.next_expected < *top);
        self.acked = self.acked.max(self.next_expected);
        let touches = |hole: &EarlyAckedHole| {
            hole.range.start < self.next_expected
                || blocks.iter().any(|block| !block.intersection(&hole.range).is_empty())
        };
        if self.holes.iter().any(touches) {
            self.drop_received();
        }
    }

    /// Removes what has arrived from the early-acked holes.
    fn drop_received(&mut self) {
        let mut left = Vec::with_capacity(self.holes.len());
        for hole in &self.holes {
            let range = PosRange::new(hole.range.start.max(self.next_expected), hole.range.end);
            let gaps = self.received_beyond.gaps(range).into_iter();
            left.extend(gaps.map(|range| EarlyAckedHole { range, ..*hole }));
        }
        self.holes = left;
    }

    /// Advances over everything that has arrived or is early-acked, adding holes that may and that must be early-acked.
    /// Returns the number that can be acknowledged.
    fn advance_ack(&mut self, now: Instant, policy: &EarlyAckPolicy<'_>) -> u64 {
        let known = policy.http_map.end().unwrap_or(0).min(self.right_edge);
        let end = self.received_beyond.end().unwrap_or(self.next_expected).min(known).max(self.acked);
        let from = self.acked_or_received.max(self.next_expected);
        let (mut budget, mut first) = (policy.budget, None);
        let early_acked: PosRangeSet = self.holes.iter().map(|hole| hole.range).collect();
        for gap in self.received_beyond.gaps(PosRange::new(from, end)) {
            for new in early_acked.gaps(gap) {
                let required = PosRange::new(new.start, new.end.min(self.acked));
                self.add_hole(now, required);
                let remaining = PosRange::new(required.end, new.end);
                if remaining.is_empty() {
                    continue;
                }
                let is_allowed =
                    policy.allows_new && remaining.start >= self.reported_below && remaining.len() <= budget;
                if is_allowed && policy.http_map.locate(remaining).is_some() {
                    budget -= remaining.len();
                    self.add_hole(now, remaining);
                } else {
                    first = first.or(Some(remaining.start));
                }
            }
        }
        self.acked_or_received = first.unwrap_or(end.max(from));
        self.acked_or_received
    }

    fn add_hole(&mut self, now: Instant, range: PosRange) {
        if range.is_empty() {
            return;
        }
        self.holes.push(EarlyAckedHole { range, since: now, ts_val: self.newest_tsval });
        self.holes.sort_by_key(|hole| hole.range.start);
        self.to_fetch.push(range);
        self.total_bytes += range.len();
    }

    fn rewrite(&self, end: u64, ack: &Ack, scale: u8) -> AckRewrite {
        let echo = if end > self.next_expected { self.newest_tsval } else { None };
        AckRewrite {
            ack: seq_of(end),
            sack_blocks: self.sack_blocks(end, ack),
            window: self.window(end, scale),
            echo,
        }
    }

    /// The SACK blocks of an acknowledgement up to `end`: those behind it, extended over early-acked holes, each once.
    fn sack_blocks(&self, end: u64, ack: &Ack) -> SackBlocks {
        let mut reported = self.received_beyond.clone();
        self.holes.iter().for_each(|hole| reported.insert(hole.range));
        let mut blocks: Vec<SeqRange> = Vec::with_capacity(SackBlocks::MAX_BLOCKS);
        for block in ack.sack_blocks.blocks() {
            let position = nearest_position(self.next_expected, block.start);
            let run = reported.run_around(position).filter(|run| run.start > end);
            let Some(block_range) = run.map(|run| SeqRange::new(seq_of(run.start), seq_of(run.end))) else {
                continue;
            };
            if !blocks.contains(&block_range) {
                blocks.push(block_range);
            }
        }
        SackBlocks::of(&blocks)
    }

    fn on_tsval(&mut self, ts_val: Option<TcpTimestamp>) {
        let Some(new) = ts_val else { return };
        self.newest_tsval = Some(self.newest_tsval.map_or(new, |old| if old.is_before(new) { new } else { old }));
    }

    fn window(&self, end: u64, scale: u8) -> u16 {
        let left = self.right_edge.saturating_sub(end) >> scale.min(14);
        u16::try_from(left).unwrap_or(u16::MAX)
    }
}

impl FromIterator<PosRange> for PosRangeSet {
    fn from_iter<I: IntoIterator<Item = PosRange>>(all: I) -> Self {
        let mut set = Self::default();
        all.into_iter().for_each(|each| set.insert(each));
        set
    }
}

/// Our choice: 72 bytes each: 86 KB, a flight of 1.7 MB.
const MAX_SWEEP_ACKS: usize = 1200;
