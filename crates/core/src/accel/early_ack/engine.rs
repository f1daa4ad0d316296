//! Loss Hider: acknowledges past holes, and sees to it that they are filled (Super-aggregation §3.3, §4.2).
//!
//! In: what the own stack acknowledges, and what the other end says of its sequence. Out: what is said to the other end
//! instead ([`Verdict`]), and which stretches are to be fetched ([`Hider::wanted`]).
//!
//! ```text
//!   own stack:  ack ...... hole ...... SACK block ...... hole ... SACK block          right edge
//!   hidden:         [ acknowledged, fetched ]        [ the same ]
//!   said:                                                                 ack   window up to there
//! ```
//!
//! 1. What is here is what the own stack says: its acknowledgement and its SACK blocks, of which it tells the three or
//!    four newest; a set keeps the others. What it has said and then forgets (it may drop what lies beyond a hole when
//!    memory is short, RFC 2018 §8) is noticed when its acknowledgement stands still where there were bytes.
//! 2. A hole is hidden when it is called random, its bytes can be had, and there is room for it: what the fetching link
//!    brings in two seconds. Any other is the sender's: it is told of it, and of all that were seen by then. While such a
//!    one is open, SACK blocks reach over those that are hidden behind it; else the sender would hear of every hole in
//!    a flow that always has one.
//! 3. Once a byte is acknowledged it is never the sender's again: such a hole is hidden whatever the room.
//! 4. Never acknowledged: beyond what is hidden or here; beyond the right edge of the own stack, or what comes finds
//!    no room and is lost for good; a FIN that the own stack has not acknowledged.
//! 5. An ACK that is changed echoes the newest timestamp that came, for that of the own stack stands still at a hole and
//!    would look like a round trip of seconds (RFC 7323 §4.3).
//! 6. An acknowledgement that says nothing new is held, if one has just left; a duplicate that answers a retransmission
//!    never is, for it may be that the last one was lost.
//! 7. Where something is hidden and the own stack gets no further for [`DEADLINE`], the connection ends: a stream that stands
//!    still for ever is worse than an error. What a blackout has cost may take longer, and come all the time.

use alloc::vec::Vec;

use super::http_map::HttpMap;
use crate::accel::seq_space::{PosRange, PosRangeSet, nearest_position, seq_of};
use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, Rewrite, SackBlocks, Seq, SeqRange, TcpTimestamp, Timestamps};

/// A flow's holes.
#[derive(Clone, Debug)]
pub(in crate::accel) struct EarlyAckEngine {
    /// What the own stack has acknowledged.
    next_expected: u64,
    /// The end of what it has room for.
    right_edge: u64,
    /// What it has beyond a hole.
    received_beyond: PosRangeSet,
    /// What was acknowledged to the other end, or may have been.
    acked: u64,
    /// The right edge as it was told.
    advertised_edge: u64,
    /// Holes before this are the sender's.
    reported_below: u64,
    /// Everything before this is here or hidden.
    acked_or_received: u64,
    /// Acknowledged and not here.
    holes: Vec<EarlyAckedHole>,
    /// Of these, not handed out yet.
    to_fetch: Vec<PosRange>,
    /// After a ladder: up to where it may have acknowledged.
    sweep_top: Option<u64>,
    /// When something was last said.
    last_ack_sent: Instant,
    /// The newest timestamp of the other end, by what came or what the own stack echoes.
    newest_tsval: Option<TcpTimestamp>,
    /// Bytes that were ever hidden.
    total_bytes: u64,
}

/// A hidden stretch.
#[derive(Clone, Copy, Debug)]
struct EarlyAckedHole {
    range: PosRange,
    since: Instant,
    /// The newest timestamp that had come then: older than any that comes later, newer than what came before the hole.
    ts_val: Option<TcpTimestamp>,
}

/// What a decision rests on, beside the flow itself.
#[derive(Clone, Copy, Debug)]
pub(in crate::accel) struct EarlyAckPolicy<'a> {
    /// Where bytes can be had.
    pub(in crate::accel) http_map: &'a HttpMap,
    /// Whether a new hole may be hidden: the mechanism is on, and the delay gate calls the loss random.
    pub(in crate::accel) allows_new: bool,
    /// How many bytes more may be missing at the same time.
    pub(in crate::accel) budget: u64,
    /// The newest timestamp of the other end.
    pub(in crate::accel) newest_tsval: Option<TcpTimestamp>,
}

/// What becomes of a segment that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum AckAction {
    /// It leaves as it is.
    Forward,
    /// It says this instead.
    Rewrite(AckRewrite),
    /// It would say this, which is nothing new, and does not leave.
    Suppress(AckRewrite),
}

/// What an acknowledgement says instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) struct AckRewrite {
    /// Its number.
    pub(in crate::accel) ack: Seq,
    /// Its SACK blocks: no more than it had.
    pub(in crate::accel) sack_blocks: SackBlocks,
    /// Its window, as it stands in the header.
    pub(in crate::accel) window: u16,
    /// The timestamp that it echoes, if another.
    pub(in crate::accel) echo: Option<TcpTimestamp>,
}

impl AckRewrite {
    /// Writes it into the packet. The length does not change.
    pub(in crate::accel) fn write(&self, packet: &mut [u8]) {
        let Ok(mut rewrite) = Rewrite::of(packet) else { return };
        rewrite.set_ack(self.ack);
        rewrite.set_window(self.window);
        let mut blocks = self.sack_blocks.blocks().iter();
        rewrite.map_sack_blocks(|_| blocks.next().copied());
        if let Some(echo) = self.echo {
            rewrite.set_ts_ecr(echo);
        }
    }

    /// What `ack` says then.
    #[must_use]
    pub(in crate::accel) fn applied_to(&self, ack: &Ack) -> Ack {
        let fresh = |stamps: Timestamps| Timestamps { ts_ecr: self.echo.unwrap_or(stamps.ts_ecr), ..stamps };
        let timestamps = ack.timestamps.map(fresh);
        Ack { ack: self.ack, window: self.window, timestamps, sack_blocks: self.sack_blocks, ..*ack }
    }
}

impl EarlyAckEngine {
    /// Of a flow whose own stack has acknowledged up to here.
    pub(in crate::accel) fn new(next_expected: u64) -> Self {
        Self {
            next_expected: next_expected,
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

    /// The own stack says this; `carries` data of its own, or not. `scale` is that of its SYN.
    pub(in crate::accel) fn on_ack_out(
        &mut self,
        now: Instant,
        ack: &Ack,
        carries_data: bool,
        scale: u8,
        policy: &EarlyAckPolicy<'_>,
    ) -> AckAction {
        self.on_tsval(ack.timestamps.map(|stamps| stamps.ts_ecr));
        self.on_tsval(policy.newest_tsval);
        self.on_local_ack(ack, scale);
        let end = self.advance_ack(now, policy);
        if end == self.next_expected && self.holes.is_empty() {
            self.acked = self.acked.max(end);
            self.advertised_edge = self.advertised_edge.max(self.right_edge);
            // Whatever it says of holes is said as it stands.
            self.reported_below = self.reported_below.max(self.received_beyond.end().unwrap_or(0));
            self.last_ack_sent = now;
            return AckAction::Forward;
        }
        let is_new = end > self.acked || self.right_edge > self.advertised_edge;
        let rewrite_to = self.rewrite(end, ack, scale);
        let has_blocks = !rewrite_to.sack_blocks.is_empty();
        let must_leave = ack.dsack_range().is_some() || carries_data || has_blocks;
        self.acked = self.acked.max(end);
        if !is_new && !must_leave && now.since(self.last_ack_sent) < SUPPRESS_TIME {
            return AckAction::Suppress(rewrite_to);
        }
        if has_blocks {
            self.reported_below = self.reported_below.max(self.received_beyond.end().unwrap_or(0));
        }
        self.advertised_edge = self.advertised_edge.max(self.right_edge);
        self.last_ack_sent = now;
        AckAction::Rewrite(rewrite_to)
    }

    /// The other end is at this number: it begins a segment that came, or is that of a bare acknowledgement. After a
    /// ladder it says how much of it was believed.
    pub(in crate::accel) fn on_peer_seq(&mut self, now: Instant, seq: Seq, policy: &EarlyAckPolicy<'_>) {
        self.on_tsval(policy.newest_tsval);
        let Some(top) = self.sweep_top else { return };
        let at = nearest_position(self.next_expected, seq).min(top);
        if at > self.acked {
            self.acked = at;
            self.advance_ack(now, policy);
        }
    }

    /// From now on everything before `top` may have been acknowledged: the numbers to be said, the highest first, of
    /// which the other end takes the first that it has reached. `step` is the size of its segments.
    ///
    /// What lies before bytes that came is hidden at once; what lies behind them as soon as the other end shows where it
    /// stands ([`came`](Self::came)).
    pub(in crate::accel) fn sweep(
        &mut self,
        now: Instant,
        top: u64,
        step: u32,
        policy: &EarlyAckPolicy<'_>,
    ) -> Vec<Seq> {
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

    /// The window to be said with this number, so that the right edge stays where it is.
    pub(in crate::accel) fn window_at(&self, ack: Seq, scale: u8) -> u16 {
        self.window(nearest_position(self.next_expected, ack), scale)
    }

    /// Up to where a ladder may have acknowledged, as long as that is not known.
    pub(in crate::accel) const fn sweep_top(&self) -> Option<u64> {
        self.sweep_top
    }

    /// Stretches that are to be fetched, each told once.
    pub(in crate::accel) fn take_to_fetch(&mut self) -> Vec<PosRange> {
        core::mem::take(&mut self.to_fetch)
    }

    /// What of this stretch is still hidden and not here.
    pub(in crate::accel) fn missing(&self, range: PosRange) -> Vec<PosRange> {
        let parts = self.holes.iter().map(|hole| hole.range.intersection(&range));
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// The timestamp of a segment that fills this hole; none if it is none, or there are no timestamps.
    pub(in crate::accel) fn tsval_at(&self, position: u64) -> Option<TcpTimestamp> {
        self.holes.iter().find(|hole| hole.range.contains(position)).and_then(|hole| hole.ts_val)
    }

    /// What the own stack has acknowledged.
    pub(in crate::accel) const fn next_expected(&self) -> u64 {
        self.next_expected
    }

    /// What was acknowledged to the other end, as far as is known.
    pub(in crate::accel) const fn acked(&self) -> u64 {
        self.acked
    }

    /// Whether nothing is hidden, and nothing may have been acknowledged that is not here.
    pub(in crate::accel) fn is_idle(&self) -> bool {
        self.holes.is_empty() && self.acked <= self.next_expected && self.sweep_top.is_none()
    }

    /// What is acknowledged and not here, with the timestamp of a segment that fills it.
    pub(in crate::accel) fn open_holes(&self) -> impl Iterator<Item = (PosRange, Option<TcpTimestamp>)> + '_ {
        self.holes.iter().map(|hole| (hole.range, hole.ts_val))
    }

    /// Bytes that are acknowledged and not here.
    pub(in crate::accel) fn missing_bytes(&self) -> u64 {
        self.holes.iter().map(|hole| hole.range.len()).sum()
    }

    /// Bytes that were ever hidden.
    pub(in crate::accel) const fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// When the connection is to be ended unless something comes; `moved`: when the own stack got further last.
    pub(in crate::accel) fn deadline(&self, moved: Instant) -> Option<Instant> {
        self.oldest_hole().map(|since| since.max(moved) + HOLE_TIMEOUT)
    }

    /// When the oldest hole was hidden that is still open.
    pub(in crate::accel) fn oldest_hole(&self) -> Option<Instant> {
        self.holes.iter().map(|hole| hole.since).min()
    }

    /// Takes in what the own stack says.
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
            // It waits for what it had: that was dropped, but for what it names now.
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

    /// Takes what is here out of what is hidden.
    fn drop_received(&mut self) {
        let mut left = Vec::with_capacity(self.holes.len());
        for hole in &self.holes {
            let range = PosRange::new(hole.range.start.max(self.next_expected), hole.range.end);
            let gaps = self.received_beyond.gaps(range).into_iter();
            left.extend(gaps.map(|range| EarlyAckedHole { range, ..*hole }));
        }
        self.holes = left;
    }

    /// On over everything that is here or hidden, hiding what may and what must be hidden: the number that can be said.
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
                let rest = PosRange::new(required.end, new.end);
                if rest.is_empty() {
                    continue;
                }
                let is_allowed = policy.allows_new && rest.start >= self.reported_below && rest.len() <= budget;
                if is_allowed && policy.http_map.locate(rest).is_some() {
                    budget -= rest.len();
                    self.add_hole(now, rest);
                } else {
                    first = first.or(Some(rest.start));
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

    /// The SACK blocks of an acknowledgement that says `end`: those behind it, over what is hidden between them, each once.
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

/// chosen: the paper gives no time. Longer than a link needs to come back from most of its pauses, shorter than people
/// wait before they begin again.
pub(in crate::accel) const HOLE_TIMEOUT: Duration = Duration::from_secs(10);
/// chosen: an acknowledgement that says nothing new is left out so long after the last one; far below any timeout.
const SUPPRESS_TIME: Duration = Duration::from_millis(20);
/// chosen: rungs of a ladder, 72 bytes each: 86 KB, a flight of 1.7 MB.
const MAX_SWEEP_ACKS: usize = 1200;
