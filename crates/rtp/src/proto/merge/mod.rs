//! One stream of media from two: the first link's, and its base layer over the second link (Super-aggregation §5.1.3).
//!
//! In: packets of RTP of both links. Out: packets of one stream, in the first one's numbers, times and name.
//!
//! 1. What the first link brings leaves at once. Where it has a hole, what comes behind waits for [`Merge::new`]'s hold at
//!    most, and for nothing while the second link brings nothing that could fill it.
//! 2. The streams are laid upon each other by their content (`matching`). A picture of which the first link has brought one
//!    part has its other parts' numbers from that: they are filled in exactly.
//! 3. A picture of which the first link has brought nothing fills a hole that has room for it, in the second stream's
//!    order, when it is whole and its time is up: a hold after it came, or when the first link is past it.
//! 4. What the second link cannot fill stays a hole in the numbers: a player sees losses as losses.
//! 5. Everything that is kept has a bound and an age.

mod base_layer_buffer;
mod extended_seq;
mod h264_layer;
mod stream_aligner;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use marline_core::units::{Duration, Instant};

use self::base_layer_buffer::{Kept, Mirror, Unit};
use self::extended_seq::Numbers;
use self::stream_aligner::{Mark, Matching};
use super::wire::rtp::Rtp;

pub use self::h264_layer::Layer;

/// Makes one stream of media of two: the first link's, and its base layer over the second link.
#[derive(Clone, Debug)]
pub struct Merge {
    hold: Duration,
    is_h264: bool,
    now: Instant,
    /// The first stream's name and kind, and when it last brought something.
    name: Option<(u32, u8, Instant)>,
    numbers: Numbers,
    /// The number that leaves next.
    next: Option<u64>,
    waiting: BTreeMap<u64, Waiting>,
    /// The latest time of the first stream.
    latest: Option<u32>,
    /// Whether what left last ended a picture.
    ended: bool,
    mirror: Mirror,
    matching: Matching,
    /// Numbers that were given up, and those that the second link has filled.
    skipped: BTreeSet<u64>,
    filled: BTreeSet<u64>,
    counts: Counts,
    outputs: VecDeque<Vec<u8>>,
}

/// One that is ahead of a hole.
#[derive(Clone, Debug)]
struct Waiting {
    bytes: Vec<u8>,
    since: Instant,
    is_mirrored: bool,
}

/// What was done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Packets that the first link has brought.
    pub first: u64,
    /// Packets that the second link has brought.
    pub second: u64,
    /// Packets that only the second link has brought, and that have left.
    pub filled: u64,
    /// Numbers that have not left.
    pub lost: u64,
    /// Pictures of the second link for which the hole had no room.
    pub unfit: u64,
    /// Pictures of H.264 that have left, by the last packet of each: of the base.
    pub base: u64,
    /// And of the enhancement.
    pub enhancement: u64,
}

/// How it stands with the second stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mirroring {
    /// It has brought nothing for a while.
    Silent,
    /// Nothing of it was found in the first one yet.
    Looking,
    /// It fills holes.
    Aligned,
    /// It is not a layer of the first one: other bytes.
    Unrelated,
}

impl Merge {
    /// `hold`: for how long what is behind a hole waits for it to be filled. `is_h264`: pictures are counted by layers.
    pub fn new(hold: Duration, is_h264: bool) -> Self {
        Self {
            hold,
            is_h264,
            now: Instant::ZERO,
            name: None,
            numbers: Numbers::default(),
            next: None,
            waiting: BTreeMap::new(),
            latest: None,
            ended: true,
            mirror: Mirror::default(),
            matching: Matching::default(),
            skipped: BTreeSet::new(),
            filled: BTreeSet::new(),
            counts: Counts::default(),
            outputs: VecDeque::new(),
        }
    }

    /// The first link has brought this.
    pub fn on_first(&mut self, now: Instant, bytes: Vec<u8>) {
        self.now = self.now.max(now);
        let Some(rtp) = Rtp::parse(&bytes) else {
            self.outputs.push_back(bytes);
            return;
        };
        match self.name {
            Some((source, ..)) if source == rtp.source => {}
            // Repairs and the like may have names of their own; a stream that is silent has ended.
            Some((.., heard)) if now.since(heard) < SILENT => {
                self.outputs.push_back(bytes);
                return;
            }
            Some(_) => self.restart(),
            None => {}
        }
        self.name = Some((rtp.source, rtp.kind, now));
        self.counts.first += 1;
        let number = self.numbers.extend(rtp.number);
        let mark = Mark { number, timestamp: rtp.timestamp };
        let is_later = self.latest.is_none_or(|latest| is_after(rtp.timestamp, latest));
        if is_later {
            self.latest = Some(rtp.timestamp);
        }
        let twin = self.matching.first(rtp.payload, mark);
        let next = *self.next.get_or_insert(number);
        if number < next {
            if self.filled.remove(&number) {
                self.counts.filled -= 1;
            } else if self.skipped.remove(&number) {
                self.counts.lost -= 1;
                self.outputs.push_back(bytes);
            }
        } else if self.waiting.len() < MOST {
            self.waiting.insert(number, Waiting { bytes, since: now, is_mirrored: false });
        }
        if let Some(twin) = twin {
            self.pair(mark, twin);
        }
        self.advance();
    }

    /// The second link has brought this.
    pub fn on_second(&mut self, now: Instant, bytes: Vec<u8>) {
        self.now = self.now.max(now);
        let Some(rtp) = Rtp::parse(&bytes) else { return };
        if self.mirror.name.is_some_and(|name| name != rtp.source) {
            self.mirror = Mirror::default();
        }
        self.mirror.name = Some(rtp.source);
        self.mirror.since = Some(now);
        self.counts.second += 1;
        let (timestamp, marker) = (rtp.timestamp, rtp.marker);
        let mark = Mark { number: self.mirror.numbers.extend(rtp.number), timestamp };
        let twin = self.matching.second(rtp.payload, mark);
        if self.mirror.packets.len() < MOST && mark.number > self.mirror.passed {
            self.mirror.packets.insert(mark.number, Kept { bytes, timestamp, marker, since: now });
        }
        if let Some(twin) = twin {
            self.pair(twin, mark);
        } else {
            self.fill(timestamp);
        }
        self.advance();
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.advance();
    }

    /// When there is something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let next = self.next?;
        let ahead = self.waiting.values().next().map(|waiting| waiting.since + self.patience());
        let unit = self.mirror.unit(next, self.matching.apart()).map(|unit| unit.since + self.hold);
        [ahead, unit].into_iter().flatten().min()
    }

    /// What leaves.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        self.outputs.pop_front()
    }

    /// What was done so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// How it stands with the second stream.
    pub fn mirroring(&self) -> Mirroring {
        match () {
            () if !self.is_mirrored() => Mirroring::Silent,
            () if self.matching.apart().is_some() => Mirroring::Aligned,
            () if self.matching.is_hopeless() => Mirroring::Unrelated,
            () => Mirroring::Looking,
        }
    }

    fn is_mirrored(&self) -> bool {
        self.mirror.since.is_some_and(|since| self.now.since(since) < SILENT)
    }

    /// For how long something waits behind a hole.
    fn patience(&self) -> Duration {
        let may_be_filled = self.matching.apart().is_some() && self.is_mirrored();
        if may_be_filled { self.hold } else { Duration::ZERO }
    }

    /// Another stream in the place of the first.
    fn restart(&mut self) {
        for (_, waiting) in core::mem::take(&mut self.waiting) {
            self.outputs.push_back(waiting.bytes);
        }
        (self.numbers, self.next, self.latest, self.ended) = (Numbers::default(), None, None, true);
        self.mirror.restart();
        self.skipped.clear();
        self.filled.clear();
        self.matching.restart();
    }

    /// The same payload in both.
    fn pair(&mut self, first: Mark, second: Mark) {
        self.mirror.shift(first.number.wrapping_sub(second.number), second.timestamp);
        if self.next.is_some_and(|next| first.number < next) {
            self.mirror.passed = self.mirror.passed.max(second.number);
        } else if self.mirror.pairs.len() < MOST {
            self.mirror.pairs.insert(first.number, second.number);
        }
        self.fill(second.timestamp);
    }

    /// Fills in the parts of a picture whose numbers are known.
    fn fill(&mut self, timestamp: u32) {
        let (Some(shift), Some(next)) = (self.mirror.shift_of(timestamp), self.next) else { return };
        for (of_mirror, bytes) in self.mirror.parts(timestamp) {
            let number = of_mirror.wrapping_add(shift);
            if number >= next && number - next < MOST as u64 && !self.waiting.contains_key(&number) {
                self.mirror.pairs.insert(number, of_mirror);
                self.enter(number, bytes);
            } else if self.skipped.remove(&number) {
                // A player that waits for longer than we do still takes it.
                self.counts.lost -= 1;
                self.counts.filled += 1;
                self.filled.insert(number);
                self.outputs.extend(self.relabelled(number, bytes));
            }
        }
    }

    /// One of the second stream gets a number of the first.
    fn enter(&mut self, number: u64, bytes: Vec<u8>) {
        if let Some(bytes) = self.relabelled(number, bytes) {
            self.waiting.insert(number, Waiting { bytes, since: self.now, is_mirrored: true });
        }
    }

    fn relabelled(&self, number: u64, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let ((source, kind, _), apart) = (self.name?, self.matching.apart()?);
        let timestamp = Rtp::parse(&bytes)?.timestamp.wrapping_add(apart);
        let [.., high, low] = number.to_be_bytes();
        Rtp::relabel(&mut bytes, kind, u16::from_be_bytes([high, low]), timestamp, source).then_some(bytes)
    }

    /// Lets go what may.
    fn advance(&mut self) {
        let Some(mut next) = self.next else { return };
        loop {
            if let Some(waiting) = self.waiting.remove(&next) {
                self.leave(next, waiting);
                next += 1;
                self.next = Some(next);
                continue;
            }
            let ahead = self.waiting.first_key_value().map(|(number, waiting)| (*number, waiting.since));
            let is_up = ahead.is_some_and(|(_, since)| self.now >= since + self.patience());
            if let Some(unit) = self.mirror.unit(next, self.matching.apart()) {
                let is_past = self.latest.is_some_and(|latest| is_after(latest, unit.timestamp));
                if self.now >= unit.since + self.hold || is_up && is_past {
                    next = self.place(next, ahead.map(|(number, _)| number), &unit);
                    continue;
                }
            }
            let Some((number, _)) = ahead.filter(|_| is_up) else { break };
            self.counts.lost += number - next;
            self.skipped.extend((next..number).rev().take(REMEMBERED));
            next = number;
            self.next = Some(next);
        }
        self.forget();
    }

    fn leave(&mut self, number: u64, waiting: Waiting) {
        if let Some(of_mirror) = self.mirror.pairs.remove(&number) {
            self.mirror.passed = self.mirror.passed.max(of_mirror);
        }
        if waiting.is_mirrored {
            self.counts.filled += 1;
            self.filled.insert(number);
        }
        if let Some(rtp) = Rtp::parse(&waiting.bytes) {
            self.ended = rtp.marker;
            let layer = Layer::of_h264(rtp.payload).filter(|_| rtp.marker && self.is_h264);
            self.counts.base += u64::from(layer == Some(Layer::Base));
            self.counts.enhancement += u64::from(layer == Some(Layer::Enhancement));
        }
        self.outputs.push_back(waiting.bytes);
    }

    /// Puts a picture into the hole at `next`, if it has room; what leaves next then.
    fn place(&mut self, next: u64, ahead: Option<u64>, unit: &Unit) -> u64 {
        // What is missing of the picture before it is to be seen as missing.
        let begin = next + u64::from(!self.ended);
        let length = unit.last - unit.first + 1;
        self.mirror.passed = unit.last;
        if ahead.is_some_and(|ahead| ahead < begin + length) {
            self.counts.unfit += 1;
            return next;
        }
        for (number, of_mirror) in (begin..).zip(unit.first..=unit.last) {
            if let Some(kept) = self.mirror.packets.get(&of_mirror) {
                let bytes = kept.bytes.clone();
                self.enter(number, bytes);
            }
        }
        if begin > next {
            self.counts.lost += 1;
            self.skipped.insert(next);
        }
        self.next = Some(begin);
        begin
    }

    /// What has left and what is old is not kept.
    fn forget(&mut self) {
        let (passed, now) = (self.mirror.passed, self.now);
        let old = self.hold + SILENT;
        self.mirror
            .packets
            .retain(|number, kept| *number > passed.saturating_sub(KEPT) && now.since(kept.since) < old);
        while self
            .mirror
            .pairs
            .first_key_value()
            .is_some_and(|(number, _)| self.next.is_some_and(|next| *number < next))
        {
            self.mirror.pairs.pop_first();
        }
        for set in [&mut self.skipped, &mut self.filled] {
            while set.len() > REMEMBERED {
                set.pop_first();
            }
        }
    }
}

/// Whether a time is behind another one; times go round.
fn is_after(one: u32, other: u32) -> bool {
    (1..1 << 31).contains(&one.wrapping_sub(other))
}

/// A stream that brings nothing for so long has ended. chosen: longer than pauses between pictures, even of slides.
const SILENT: Duration = Duration::from_secs(5);
/// chosen: two seconds of 20 Mbit/s, as `matching` remembers.
const MOST: usize = 4096;
/// Numbers that may still come late. chosen: half a second of 12 Mbit/s.
const REMEMBERED: usize = 512;
/// Passed packets of the second stream that still may fill what was given up. chosen: a picture of 100 KiB.
const KEPT: u64 = 96;
