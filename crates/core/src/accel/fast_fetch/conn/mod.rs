//! A replayed connection: the request of a flow once more over a helping link, walked forward to the bytes that the flow
//! misses by ACKs of what has not come (Super-aggregation §3.3, §4.2 "Fast Fetch").
//!
//! In: which bytes are missed ([`Replay::want`]), packets of the connection, the time. Out ([`Replay::drain`]): packets for
//! the helping link, bytes that came, and wants that are to be served otherwise.
//!
//! ```text
//!   SYN ─▶ request ─▶ head, read in order ─▶ walk: ACK, ACK, ACK … up to the first missing byte
//!                                             ▲                                     │
//!                                             └── it comes ◀── four ACKs of it ◀── silence, so that it fits
//! ```
//!
//! 1. While it walks, ACKs go out at an even beat ([`Stride`]), whatever has come: the server sends on, and most of it is
//!    lost in the thin link's queue. That is an optimistic-ACK attack on that link and on the server's sending rate. So it
//!    is off unless asked for, walks no further than the flow itself has come, and ends after [`WASTE`], or when its flow
//!    has not got on for [`LEFT`].
//! 2. It never acknowledges a wanted byte that has not come. There it waits for [`GUARD`], until the queue has room again,
//!    and says the same number four times: the server repeats that segment (RFC 5681 §3.2), or has it repeated by its
//!    timer. No SACK is offered, no timestamps: what the server repeats is the first that it misses.
//! 3. An ACK of what the server has not sent is ignored, and it stands still. Where nothing comes for a while it is asked
//!    where it is, by a number that is old (RFC 9293 §3.10.7.4), and the walk goes on from there, slower; after
//!    [`QUESTIONS`] without an answer the connection is given up. So is one that is reset, or closed early, or whose head is
//!    not that of the flow's resource, or that the flow has left behind.
//! 4. Few bytes are taken at a time, and none that are too far ahead to be reached in [`REACH`]: whoever asks gets them
//!    otherwise, and so he does if they do not come in [`PATIENCE`] after that.
//! 5. A packet counts only if it acknowledges what was sent: whoever guesses cannot see that.

mod close_reason;
mod pacer;
mod receive;
#[cfg(test)]
mod tests;
mod wanted;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::accel::early_ack::fetch::{Got, Want};
use crate::accel::early_ack::head_reassembler::Tap;
use crate::accel::early_ack::http_map::Resource;
use crate::accel::seq_space::{Stretches, number};
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::{Flags, FourTuple as Key, NewSegment, OptionList, Seq, TcpOption};
pub(in crate::accel) use close_reason::End;
use pacer::{SEGMENT, Stride};
use wanted::Hunts;

/// One of them.
#[derive(Clone, Debug)]
pub(in crate::accel) struct Replay {
    /// From here to the server.
    key: Key,
    resource: Arc<Resource>,
    /// The request, and the number of the SYN before it.
    request: Vec<u8>,
    isn: Seq,
    beat: Duration,
    stride: Stride,
    phase: Phase,
    /// When the last SYN left, and how long the server's answer took.
    called: Instant,
    rtt: Duration,
    tap: Tap,
    /// What has come in order, while the head is read.
    have: Stretches,
    /// The position of the resource's first byte.
    body: u64,
    /// What was acknowledged.
    told: u64,
    /// One past the furthest byte that came.
    front: u64,
    /// Up to where the flow itself has come, in the resource, and when that was said.
    follow: u64,
    followed: Instant,
    hunts: Hunts,
    /// When something last got on, or was asked.
    moved: Instant,
    /// It stands before a byte that is wanted, and says so again then.
    plea: Option<Instant>,
    /// How long a hole takes: a guard, a round trip and the thin link's queue.
    each: Duration,
    questions: u32,
    /// Bytes that were passed over.
    passed: u64,
    out: Yield,
}

/// What is to be done, and what has come.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::accel) struct Yield {
    /// Packets for the helping link.
    pub(in crate::accel) packets: Vec<Vec<u8>>,
    /// Bytes that were wanted.
    pub(in crate::accel) got: Vec<Got>,
    /// What is to be got otherwise.
    pub(in crate::accel) back: Vec<Want>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Calling { tries: u32 },
    Reading { tries: u32 },
    Walking,
    Over(End),
}

impl Replay {
    /// The SYN leaves; `beat`: so often an ACK may follow.
    pub(in crate::accel) fn new(now: Instant, key: Key, isn: Seq, resource: Arc<Resource>, beat: Duration) -> Self {
        let mut replay = Self {
            key,
            request: format!("{}\r\n", resource.request).into_bytes(),
            resource,
            isn,
            beat,
            stride: Stride::new(now, beat),
            phase: Phase::Calling { tries: 1 },
            called: now,
            rtt: Duration::ZERO,
            tap: Tap::new(0),
            have: Stretches::default(),
            body: 0,
            told: 0,
            front: 0,
            follow: 0,
            followed: now,
            hunts: Hunts::default(),
            moved: now,
            plea: None,
            each: EACH,
            questions: 0,
            passed: 0,
            out: Yield::default(),
        };
        replay.call();
        replay
    }

    /// From here to the server.
    pub(in crate::accel) const fn key(&self) -> &Key {
        &self.key
    }

    /// Whether a flow that has come so far can still be caught up with.
    pub(in crate::accel) fn is_in_time(offset: u64, beat: Duration) -> bool {
        DataSize::from_bytes(offset) <= Stride::top(beat) * BEHIND
    }

    /// The flow has come so far in the resource.
    pub(in crate::accel) fn follow(&mut self, now: Instant, offset: u64) {
        if !self.is_busy() {
            // It had nothing to say until now.
            self.moved = now;
        }
        (self.follow, self.followed) = (self.follow.max(offset), now);
        self.hunts.forget_before(self.follow);
        if self.follow >= self.resource.length {
            self.give_up(End::Done);
        } else if !Self::is_in_time(self.follow.saturating_sub(self.offset()), self.beat) {
            self.give_up(End::Behind);
        }
    }

    /// These bytes are wanted; given back if they cannot be reached in time.
    pub(in crate::accel) fn want(&mut self, now: Instant, want: Want) -> Result<(), Want> {
        let start = want.place.offset;
        let far = DataSize::from_bytes(start.saturating_sub(self.offset()));
        let at_hand = self.room() > 0 && start >= self.offset() && want.place.resource == self.resource;
        let is_near = far <= self.top() * REACH.saturating_sub(self.each * self.hunts.count());
        if !at_hand || !is_near || want.stretch.bytes() > LARGEST {
            return Err(want);
        }
        if !self.is_busy() {
            // It had nothing to say until now.
            self.moved = now;
        }
        self.hunts.add(want, now, now + REACH + PATIENCE);
        Ok(())
    }

    /// How many bytes it takes now.
    pub(in crate::accel) fn room(&self) -> u64 {
        let has_time = self.each * self.hunts.count() < REACH;
        if self.phase == Phase::Walking && has_time { LARGEST } else { 0 }
    }

    /// Time has passed.
    pub(in crate::accel) fn tick(&mut self, now: Instant) {
        let late = self.hunts.late(now);
        if !late.is_empty() {
            // Fewer at a time, so that the others are got otherwise at once.
            self.each = (self.each * 2).min(REACH);
        }
        self.out.back.extend(late);
        match self.phase {
            Phase::Over(_) => {}
            Phase::Calling { tries } | Phase::Reading { tries } if now.since(self.moved) >= AGAIN * tries => {
                if tries >= TRIES {
                    return self.give_up(End::Silent);
                }
                self.moved = now;
                if matches!(self.phase, Phase::Calling { .. }) {
                    self.called = now;
                    self.phase = Phase::Calling { tries: tries + 1 };
                    self.call();
                } else {
                    self.phase = Phase::Reading { tries: tries + 1 };
                    self.ask();
                }
            }
            Phase::Calling { .. } | Phase::Reading { .. } => {}
            Phase::Walking => self.walk(now),
        }
    }

    fn walk(&mut self, now: Instant) {
        if now.since(self.followed) >= LEFT {
            return self.give_up(End::Done);
        }
        if self.told < self.limit() {
            self.plea = None;
        }
        while self.may_step() && self.stride.step(now) {
            // What has come was certainly sent.
            let to = self.front.max(self.told + self.stride.bytes()).min(self.limit());
            self.passed += to - self.told;
            self.told = to;
            self.acknowledge();
        }
        if now.since(self.moved) < self.rtt * 2 {
            self.stride.on_followed(now);
        }
        if self.passed > WASTE {
            return self.give_up(End::Waste);
        }
        if self.stands() {
            let plea = *self.plea.get_or_insert(now + GUARD);
            if plea <= now {
                self.plea = Some(now + self.rtt * 2 + GUARD);
                (0..PLEAS).for_each(|_| self.acknowledge());
            }
        }
        if self.is_busy() && now.since(self.moved) >= self.silence() {
            if self.questions >= QUESTIONS {
                return self.give_up(End::Silent);
            }
            (self.questions, self.moved) = (self.questions + 1, now);
            let seq = self.own().minus(1);
            self.push(seq, Flags::ACK, OptionList::default(), &[]);
        }
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        let due = match self.phase {
            Phase::Over(_) => None,
            Phase::Calling { tries } | Phase::Reading { tries } => Some(self.moved + AGAIN * tries),
            Phase::Walking => {
                let step = self.may_step().then(|| self.stride.deadline());
                // One that stands and has not said so yet is to be woken at once.
                let plea = self.stands().then(|| self.plea.unwrap_or(self.moved));
                let silence = self.is_busy().then(|| self.moved + self.silence());
                [step, plea, silence, Some(self.followed + LEFT)].into_iter().flatten().min()
            }
        };
        [self.hunts.deadline(), due].into_iter().flatten().min()
    }

    /// The connection ends, and what was wanted of it is given back.
    pub(in crate::accel) fn give_up(&mut self, end: End) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        self.push(self.own(), Flags::RST | Flags::ACK, OptionList::default(), &[]);
        self.phase = Phase::Over(end);
        self.out.back.extend(self.hunts.drain());
    }

    /// Why nothing more comes of it, if so.
    pub(in crate::accel) const fn end(&self) -> Option<End> {
        match self.phase {
            Phase::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Bytes that are wanted and have not come.
    pub(in crate::accel) fn waiting(&self) -> u64 {
        self.hunts.bytes()
    }

    /// Bytes that were acknowledged and never looked at.
    pub(in crate::accel) const fn passed(&self) -> u64 {
        self.passed
    }

    /// What is to be done, and what has come.
    pub(in crate::accel) fn drain(&mut self) -> Yield {
        core::mem::take(&mut self.out)
    }

    /// Up to where may be acknowledged: the first wanted byte that has not come, or where the flow is.
    fn limit(&self) -> u64 {
        // Of bytes at which the flow itself waits, the first part may have come.
        let hunted = self.hunts.first().filter(|(start, _)| *start <= self.follow);
        let offset = hunted.map_or(self.follow, |(_, missing)| missing);
        (self.body + offset.min(self.resource.length)).max(self.told)
    }

    /// Whether there is something left to pass over, and the server is not being asked where it is.
    fn may_step(&self) -> bool {
        self.told < self.limit() && self.questions == 0
    }

    /// Whether it stands before a byte that is wanted.
    fn stands(&self) -> bool {
        self.hunts.first().is_some_and(|(_, missing)| self.told >= self.body + missing)
    }

    /// Whether it waits for anything of the server.
    fn is_busy(&self) -> bool {
        self.told < self.limit() || self.stands()
    }

    /// Where it stands in the resource.
    fn offset(&self) -> u64 {
        if self.phase == Phase::Walking { self.told.saturating_sub(self.body) } else { 0 }
    }

    fn top(&self) -> Bitrate {
        Stride::top(self.beat)
    }

    /// After so long without anything new it is asked where it stands.
    fn silence(&self) -> Duration {
        (self.rtt * 2 + SILENCE).min(SILENCE * 3)
    }

    /// Its own next number.
    fn own(&self) -> Seq {
        match self.phase {
            Phase::Calling { .. } => self.isn.plus(1),
            _ => self.isn.plus(1 + u32::try_from(self.request.len()).unwrap_or(0)),
        }
    }

    fn call(&mut self) {
        let mut options = OptionList::default();
        options.push(&TcpOption::Mss(SEGMENT));
        options.push(&TcpOption::Nop);
        options.push(&TcpOption::WindowScale(SCALE));
        self.push(self.isn, Flags::SYN, options, &[]);
    }

    fn ask(&mut self) {
        let (request, mut seq) = (core::mem::take(&mut self.request), self.isn.plus(1));
        for piece in request.chunks(SEGMENT.into()) {
            self.push(seq, Flags::ACK | Flags::PSH, OptionList::default(), piece);
            seq = seq.plus(u32::try_from(piece.len()).unwrap_or(0));
        }
        self.request = request;
    }

    fn acknowledge(&mut self) {
        self.push(self.own(), Flags::ACK, OptionList::default(), &[]);
    }

    fn push(&mut self, seq: Seq, flags: Flags, options: OptionList, payload: &[u8]) {
        let plain = NewSegment::data(&self.key, seq, number(self.told), u16::MAX, None, payload);
        let ack = if flags.contains(Flags::ACK) { plain.ack } else { Seq::default() };
        self.out.packets.extend(NewSegment { flags, options, ack, ..plain }.emit());
    }
}

/// chosen: a window of 8 MiB, so that it never holds the server.
const SCALE: u8 = 7;
/// §3.3: "one segment size divided by data rate … configured as 256 ms". chosen: less, for after 200 ms Linux's timer repeats the
/// segment, and a server that has timed out begins with one segment again.
const GUARD: Duration = Duration::from_millis(150);
/// RFC 5681: three are duplicates; one may get lost.
const PLEAS: u32 = 4;
/// chosen: while one hole waits the flow goes on for as long as its receive window bears.
const REACH: Duration = Duration::from_secs(1);
/// chosen: until that is known, a guard and a round trip without a queue.
const EACH: Duration = Duration::from_millis(250);
/// chosen: what has not come so long after it could have been reached is got otherwise.
const PATIENCE: Duration = Duration::from_millis(1000);
/// chosen: a flow that is further ahead goes on as fast, most likely.
const BEHIND: Duration = Duration::from_secs(2);
/// chosen: larger holes are not random losses.
const LARGEST: u64 = 64 * 1024;
/// chosen: with two round trips longer than Linux answers such a question again (500 ms), and a thin link's queue.
const SILENCE: Duration = Duration::from_millis(500);
/// chosen: a link that loses most of what comes loses answers, too.
const QUESTIONS: u32 = 4;
const AGAIN: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;
/// chosen: bytes that a server is made to send in vain for one flow; 100 s of 20 Mbit/s.
const WASTE: u64 = 256 * 1024 * 1024;
/// chosen: a flow that rests for so long gets another connection when it goes on, and leaves its place to others.
const LEFT: Duration = Duration::from_secs(10);
