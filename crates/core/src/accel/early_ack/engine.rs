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

use super::http_map::Mirror;
use crate::accel::seq_space::{Stretch, Stretches, near, number};
use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, Rewrite, SackBlocks, Seq, SeqRange, TcpTimestamp, Timestamps};

/// A flow's holes.
#[derive(Clone, Debug)]
pub(in crate::accel) struct Hider {
    /// What the own stack has acknowledged.
    here: u64,
    /// The end of what it has room for.
    edge: u64,
    /// What it has beyond a hole.
    beyond: Stretches,
    /// What was acknowledged to the other end, or may have been.
    told: u64,
    /// The right edge as it was told.
    told_edge: u64,
    /// Holes before this are the sender's.
    exposed: u64,
    /// Everything before this is here or hidden.
    covered: u64,
    /// Acknowledged and not here.
    hidden: Vec<Hole>,
    /// Of these, not handed out yet.
    wanted: Vec<Stretch>,
    /// After a ladder: up to where it may have acknowledged.
    ladder: Option<u64>,
    /// When something was last said.
    said: Instant,
    /// The newest timestamp of the other end, by what came or what the own stack echoes.
    newest: Option<TcpTimestamp>,
    /// Bytes that were ever hidden.
    total: u64,
}

/// A hidden stretch.
#[derive(Clone, Copy, Debug)]
struct Hole {
    stretch: Stretch,
    since: Instant,
    /// The newest timestamp that had come then: older than any that comes later, newer than what came before the hole.
    stamp: Option<TcpTimestamp>,
}

/// What a decision rests on, beside the flow itself.
#[derive(Clone, Copy, Debug)]
pub(in crate::accel) struct Terms<'a> {
    /// Where bytes can be had.
    pub(in crate::accel) mirror: &'a Mirror,
    /// Whether a new hole may be hidden: the mechanism is on, and the delay gate calls the loss random.
    pub(in crate::accel) may_hide: bool,
    /// How many bytes more may be missing at the same time.
    pub(in crate::accel) room: u64,
    /// The newest timestamp of the other end.
    pub(in crate::accel) newest: Option<TcpTimestamp>,
}

/// What becomes of a segment that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum Verdict {
    /// It leaves as it is.
    Leave,
    /// It says this instead.
    Say(Said),
    /// It would say this, which is nothing new, and does not leave.
    Hold(Said),
}

/// What an acknowledgement says instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) struct Said {
    /// Its number.
    pub(in crate::accel) ack: Seq,
    /// Its SACK blocks: no more than it had.
    pub(in crate::accel) sacks: SackBlocks,
    /// Its window, as it stands in the header.
    pub(in crate::accel) window: u16,
    /// The timestamp that it echoes, if another.
    pub(in crate::accel) echo: Option<TcpTimestamp>,
}

impl Said {
    /// Writes it into the packet. The length does not change.
    pub(in crate::accel) fn write(&self, packet: &mut [u8]) {
        let Ok(mut rewrite) = Rewrite::of(packet) else { return };
        rewrite.set_ack(self.ack);
        rewrite.set_window(self.window);
        let mut blocks = self.sacks.blocks().iter();
        rewrite.map_sack_blocks(|_| blocks.next().copied());
        if let Some(echo) = self.echo {
            rewrite.set_ts_ecr(echo);
        }
    }

    /// What `ack` says then.
    #[must_use]
    pub(in crate::accel) fn said(&self, ack: &Ack) -> Ack {
        let fresh = |stamps: Timestamps| Timestamps { ts_ecr: self.echo.unwrap_or(stamps.ts_ecr), ..stamps };
        let timestamps = ack.timestamps.map(fresh);
        Ack { ack: self.ack, window: self.window, timestamps, sack_blocks: self.sacks, ..*ack }
    }
}

impl Hider {
    /// Of a flow whose own stack has acknowledged up to here.
    pub(in crate::accel) fn new(here: u64) -> Self {
        Self {
            here,
            edge: here,
            beyond: Stretches::default(),
            told: here,
            told_edge: here,
            exposed: here,
            covered: here,
            hidden: Vec::new(),
            wanted: Vec::new(),
            ladder: None,
            said: Instant::ZERO,
            newest: None,
            total: 0,
        }
    }

    /// The own stack says this; `carries` data of its own, or not. `scale` is that of its SYN.
    pub(in crate::accel) fn leaving(
        &mut self,
        now: Instant,
        ack: &Ack,
        carries: bool,
        scale: u8,
        terms: &Terms<'_>,
    ) -> Verdict {
        self.note(ack.timestamps.map(|stamps| stamps.ts_ecr));
        self.note(terms.newest);
        self.hear(ack, scale);
        let end = self.walk(now, terms);
        if end == self.here && self.hidden.is_empty() {
            self.told = self.told.max(end);
            self.told_edge = self.told_edge.max(self.edge);
            // Whatever it says of holes is said as it stands.
            self.exposed = self.exposed.max(self.beyond.end().unwrap_or(0));
            self.said = now;
            return Verdict::Leave;
        }
        let is_new = end > self.told || self.edge > self.told_edge;
        let said = self.say(end, ack, scale);
        let has_blocks = !said.sacks.is_empty();
        let is_asked = ack.dsack_range().is_some() || carries || has_blocks;
        self.told = self.told.max(end);
        if !is_new && !is_asked && now.since(self.said) < HELD {
            return Verdict::Hold(said);
        }
        if has_blocks {
            self.exposed = self.exposed.max(self.beyond.end().unwrap_or(0));
        }
        self.told_edge = self.told_edge.max(self.edge);
        self.said = now;
        Verdict::Say(said)
    }

    /// The other end is at this number: it begins a segment that came, or is that of a bare acknowledgement. After a
    /// ladder it says how much of it was believed.
    pub(in crate::accel) fn came(&mut self, now: Instant, seq: Seq, terms: &Terms<'_>) {
        self.note(terms.newest);
        let Some(top) = self.ladder else { return };
        let at = near(self.here, seq).min(top);
        if at > self.told {
            self.told = at;
            self.walk(now, terms);
        }
    }

    /// From now on everything before `top` may have been acknowledged: the numbers to be said, the highest first, of
    /// which the other end takes the first that it has reached. `step` is the size of its segments.
    ///
    /// What lies before bytes that came is hidden at once; what lies behind them as soon as the other end shows where it
    /// stands ([`came`](Self::came)).
    pub(in crate::accel) fn ladder(&mut self, now: Instant, top: u64, step: u32, terms: &Terms<'_>) -> Vec<Seq> {
        let step = u64::from(step.max(1));
        let top = top.min(self.edge).max(self.told).max(self.ladder.unwrap_or(0));
        self.ladder = Some(top);
        self.told = self.told.max(self.beyond.end().unwrap_or(0).min(top));
        self.walk(now, terms);
        let rungs = (self.told..=top).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        let mut rungs: Vec<u64> = rungs.take(LADDER_MOST).collect();
        // The last segment of a body, or of a window, may be shorter.
        if rungs.last().is_some_and(|last| *last < top && top - last < step) {
            rungs.push(top);
        }
        rungs.into_iter().rev().map(number).collect()
    }

    /// The window to be said with this number, so that the right edge stays where it is.
    pub(in crate::accel) fn window_at(&self, ack: Seq, scale: u8) -> u16 {
        self.window(near(self.here, ack), scale)
    }

    /// Up to where a ladder may have acknowledged, as long as that is not known.
    pub(in crate::accel) const fn ladder_top(&self) -> Option<u64> {
        self.ladder
    }

    /// Stretches that are to be fetched, each told once.
    pub(in crate::accel) fn wanted(&mut self) -> Vec<Stretch> {
        core::mem::take(&mut self.wanted)
    }

    /// What of this stretch is still hidden and not here.
    pub(in crate::accel) fn missing(&self, stretch: Stretch) -> Vec<Stretch> {
        let parts = self.hidden.iter().map(|hole| hole.stretch.common(&stretch));
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// The timestamp of a segment that fills this hole; none if it is none, or there are no timestamps.
    pub(in crate::accel) fn stamp(&self, position: u64) -> Option<TcpTimestamp> {
        self.hidden.iter().find(|hole| hole.stretch.contains(position)).and_then(|hole| hole.stamp)
    }

    /// What the own stack has acknowledged.
    pub(in crate::accel) const fn here(&self) -> u64 {
        self.here
    }

    /// What was acknowledged to the other end, as far as is known.
    pub(in crate::accel) const fn told(&self) -> u64 {
        self.told
    }

    /// Whether nothing is hidden, and nothing may have been acknowledged that is not here.
    pub(in crate::accel) fn is_idle(&self) -> bool {
        self.hidden.is_empty() && self.told <= self.here && self.ladder.is_none()
    }

    /// What is acknowledged and not here, with the timestamp of a segment that fills it.
    pub(in crate::accel) fn open(&self) -> impl Iterator<Item = (Stretch, Option<TcpTimestamp>)> + '_ {
        self.hidden.iter().map(|hole| (hole.stretch, hole.stamp))
    }

    /// Bytes that are acknowledged and not here.
    pub(in crate::accel) fn missing_bytes(&self) -> u64 {
        self.hidden.iter().map(|hole| hole.stretch.bytes()).sum()
    }

    /// Bytes that were ever hidden.
    pub(in crate::accel) const fn total(&self) -> u64 {
        self.total
    }

    /// When the connection is to be ended unless something comes; `moved`: when the own stack got further last.
    pub(in crate::accel) fn deadline(&self, moved: Instant) -> Option<Instant> {
        self.waits_since().map(|since| since.max(moved) + DEADLINE)
    }

    /// When the oldest hole was hidden that is still open.
    pub(in crate::accel) fn waits_since(&self) -> Option<Instant> {
        self.hidden.iter().map(|hole| hole.since).min()
    }

    /// Takes in what the own stack says.
    fn hear(&mut self, ack: &Ack, scale: u8) {
        let here = near(self.here, ack.ack);
        if here >= self.here {
            self.here = here;
            self.edge = near(here, ack.right_edge(scale)).max(here);
        }
        let blocks = ack.sack_blocks.blocks().iter().map(|block| {
            let start = near(self.here, block.start);
            Stretch::new(start, start.saturating_add(block.len().into()))
        });
        let blocks: Vec<Stretch> =
            blocks.filter(|block| block.start > self.here && block.end <= self.edge).collect();
        if here == self.here && self.beyond.contains(here) {
            // It waits for what it had: that was dropped, but for what it names now.
            self.beyond.remove(Stretch::new(here, self.beyond.run_from(here)));
            self.covered = here;
        }
        self.beyond.remove_before(self.here);
        for block in &blocks {
            self.beyond.insert(*block);
            let top = self.ladder.unwrap_or(0);
            self.told = self.told.max(block.start.min(top));
        }
        self.ladder = self.ladder.filter(|top| self.here < *top);
        self.told = self.told.max(self.here);
        let touches = |hole: &Hole| {
            hole.stretch.start < self.here || blocks.iter().any(|block| !block.common(&hole.stretch).is_empty())
        };
        if self.hidden.iter().any(touches) {
            self.found();
        }
    }

    /// Takes what is here out of what is hidden.
    fn found(&mut self) {
        let mut left = Vec::with_capacity(self.hidden.len());
        for hole in &self.hidden {
            let stretch = Stretch::new(hole.stretch.start.max(self.here), hole.stretch.end);
            let gaps = self.beyond.gaps(stretch).into_iter();
            left.extend(gaps.map(|stretch| Hole { stretch, ..*hole }));
        }
        self.hidden = left;
    }

    /// On over everything that is here or hidden, hiding what may and what must be hidden: the number that can be said.
    fn walk(&mut self, now: Instant, terms: &Terms<'_>) -> u64 {
        let known = terms.mirror.end().unwrap_or(0).min(self.edge);
        let end = self.beyond.end().unwrap_or(self.here).min(known).max(self.told);
        let from = self.covered.max(self.here);
        let (mut room, mut first) = (terms.room, None);
        let hidden: Stretches = self.hidden.iter().map(|hole| hole.stretch).collect();
        for gap in self.beyond.gaps(Stretch::new(from, end)) {
            for new in hidden.gaps(gap) {
                let must = Stretch::new(new.start, new.end.min(self.told));
                self.hide(now, must);
                let rest = Stretch::new(must.end, new.end);
                if rest.is_empty() {
                    continue;
                }
                let can = terms.may_hide && rest.start >= self.exposed && rest.bytes() <= room;
                if can && terms.mirror.place(rest).is_some() {
                    room -= rest.bytes();
                    self.hide(now, rest);
                } else {
                    first = first.or(Some(rest.start));
                }
            }
        }
        self.covered = first.unwrap_or(end.max(from));
        self.covered
    }

    fn hide(&mut self, now: Instant, stretch: Stretch) {
        if stretch.is_empty() {
            return;
        }
        self.hidden.push(Hole { stretch, since: now, stamp: self.newest });
        self.hidden.sort_by_key(|hole| hole.stretch.start);
        self.wanted.push(stretch);
        self.total += stretch.bytes();
    }

    fn say(&self, end: u64, ack: &Ack, scale: u8) -> Said {
        let echo = if end > self.here { self.newest } else { None };
        Said { ack: number(end), sacks: self.blocks(end, ack), window: self.window(end, scale), echo }
    }

    /// The SACK blocks of an acknowledgement that says `end`: those behind it, over what is hidden between them, each once.
    fn blocks(&self, end: u64, ack: &Ack) -> SackBlocks {
        let mut there = self.beyond.clone();
        self.hidden.iter().for_each(|hole| there.insert(hole.stretch));
        let mut blocks: Vec<SeqRange> = Vec::with_capacity(SackBlocks::MAX_BLOCKS);
        for block in ack.sack_blocks.blocks() {
            let position = near(self.here, block.start);
            let run = there.run_around(position).filter(|run| run.start > end);
            let Some(span) = run.map(|run| SeqRange::new(number(run.start), number(run.end))) else { continue };
            if !blocks.contains(&span) {
                blocks.push(span);
            }
        }
        SackBlocks::of(&blocks)
    }

    fn note(&mut self, stamp: Option<TcpTimestamp>) {
        let Some(new) = stamp else { return };
        self.newest = Some(self.newest.map_or(new, |old| if old.is_before(new) { new } else { old }));
    }

    fn window(&self, end: u64, scale: u8) -> u16 {
        let left = self.edge.saturating_sub(end) >> scale.min(14);
        u16::try_from(left).unwrap_or(u16::MAX)
    }
}

impl FromIterator<Stretch> for Stretches {
    fn from_iter<I: IntoIterator<Item = Stretch>>(all: I) -> Self {
        let mut set = Self::default();
        all.into_iter().for_each(|each| set.insert(each));
        set
    }
}

/// chosen: the paper gives no time. Longer than a link needs to come back from most of its pauses, shorter than people
/// wait before they begin again.
pub(in crate::accel) const DEADLINE: Duration = Duration::from_secs(10);
/// chosen: an acknowledgement that says nothing new is left out so long after the last one; far below any timeout.
const HELD: Duration = Duration::from_millis(20);
/// chosen: rungs of a ladder, 72 bytes each: 86 KB, a flight of 1.7 MB.
const LADDER_MOST: usize = 1200;
