//! One flow's hiding: mirror and hider together, and what is given to the own stack.
//!
//! In: the flow's packets both ways, fetched bytes, the time. Out: what its ACKs say ([`Verdict`]), what is to be fetched
//! ([`Want`]), and packets for the own stack and for the other end.
//!
//! 1. Bytes are given as segments of the other end would be: with a timestamp as it was when the hole showed, so that
//!    neither they nor what is on its way is taken for old (RFC 7323 §5), never with an older one than before; and
//!    with what it has acknowledged itself, so that nothing of the own stack counts as arrived that may be lost yet.
//! 2. What was given is kept until it is acknowledged, and given again when the own stack waits for it: it may have had
//!    no room.
//! 3. When a blackout ends in which a sender was frozen, all that was on its way is acknowledged by a ladder of ACKs with the
//!    timestamp from before, from which the sender concludes that nothing was lost (RFC 3522). Behind it goes an ACK of a number
//!    that is old, which TCP answers with where it stands (RFC 9293 §3.10.7.4): so the end of the hole is known, even if nothing
//!    more is to come.
//! 4. A hole that nobody fills ends the connection ([`super::engine`]), towards the application: it gets an error. Not while the
//!    link is dark: TCP would outlast that as well.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::RangeInclusive;

use super::engine::{Hider, Terms, Verdict};
use super::fetch::Want;
use super::http_head::Refusal;
use super::http_map::{Mirror, Place, Seen};
use super::peer_state::Far;
use super::pending::{self, Hole, Owed};
use crate::accel::Sight;
use crate::accel::seq_space::{Stretch, number};
use crate::accel::zero_window::Grain;
use crate::units::{Duration, Instant};
use crate::wire::packet::{
    Ack, Flags, FourTuple as Key, IpParams, NewSegment, SackBlocks, Segment, Seq, TcpTimestamp, Timestamps,
};

/// A flow's hiding.
#[derive(Clone, Debug)]
pub(in crate::accel) struct Hiding {
    /// The number under which the fetcher knows it.
    number: u64,
    /// From here to its other end.
    key: Key,
    opened: Instant,
    mirror: Mirror,
    hider: Option<Hider>,
    /// What was fetched, and given to the own stack; not known to be here.
    given: BTreeMap<u64, Given>,
    far: Far,
    grain: Grain,
    /// The newest timestamp of what was given, and of what the own stack echoes.
    floor: Option<TcpTimestamp>,
    /// When the application was told that this is the end.
    over: Option<Instant>,
    /// When the own stack got further last, or the link came back.
    moved: Instant,
    /// The link is dark: nobody can fill anything.
    is_dark: bool,
    /// The own end asks for nothing more.
    has_closed: bool,
    holes: u64,
}

#[derive(Clone, Debug)]
struct Given {
    bytes: Vec<u8>,
    at: Instant,
    stamp: Option<TcpTimestamp>,
}

/// What may be done, beside what is known here.
#[derive(Clone, Copy, Debug)]
pub(in crate::accel) struct Allowed {
    /// Losses that show now may be hidden.
    pub(in crate::accel) new: bool,
    /// How many bytes more may be missing.
    pub(in crate::accel) room: u64,
    /// How the own windows are shifted.
    pub(in crate::accel) scale: u8,
}

impl Hiding {
    /// Of a flow that may be HTTP in plain text.
    pub(in crate::accel) fn new(now: Instant, number: u64, key: Key) -> Self {
        Self {
            number,
            key,
            opened: now,
            mirror: Mirror::default(),
            hider: None,
            given: BTreeMap::new(),
            far: Far::default(),
            grain: Grain::default(),
            floor: None,
            over: None,
            moved: now,
            is_dark: false,
            has_closed: false,
            holes: 0,
        }
    }

    /// The link is dark.
    pub(in crate::accel) const fn on_dark(&mut self) {
        self.is_dark = true;
    }

    /// The link is back.
    pub(in crate::accel) fn on_light(&mut self, now: Instant) {
        self.is_dark = false;
        self.moved = now;
    }

    /// When the connection is to be ended.
    fn end(&self) -> Option<Instant> {
        self.hider.as_ref().filter(|_| !self.is_dark)?.deadline(self.moved)
    }

    /// The number under which the fetcher knows it.
    pub(in crate::accel) const fn number(&self) -> u64 {
        self.number
    }

    /// A segment of its own passes or leaves, `length` bytes of payload long.
    pub(in crate::accel) fn on_asked(&mut self, segment: &Segment<'_>, length: u32) {
        if let Some(seen) = seen(segment, length) {
            let has_fin = segment.flags().contains(Flags::FIN);
            self.has_closed |= has_fin;
            self.far.on_sent(segment.seq().plus(length).plus(u32::from(has_fin)));
            self.mirror.asked(&seen);
        }
    }

    /// A segment of the other end passes.
    pub(in crate::accel) fn on_arrival(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        if segment.flags().has_any(Flags::SYN | Flags::RST) {
            return;
        }
        let Some(seen) = seen(segment, length) else { return };
        if !self.far.on_arrival(segment, seen.ack) {
            return;
        }
        self.mirror.answered(&seen);
        self.grain.on_arrival(length);
        let newest = self.newest();
        if let Some(hider) = &mut self.hider {
            hider.came(now, segment.seq(), &Terms { mirror: &self.mirror, may_hide: false, room: 0, newest });
        }
    }

    /// A segment of the own stack leaves; `carries`: with data.
    pub(in crate::accel) fn on_leaving(
        &mut self,
        now: Instant,
        ack: &Ack,
        carries: bool,
        allowed: &Allowed,
    ) -> Verdict {
        if self.hider.is_none() {
            // Where the stream stands is known only once a request was seen; a hider that began with an older number would
            // hide nothing else.
            self.hider = self.mirror.position(ack.ack).map(Hider::new);
        }
        self.far.on_sent(ack.seq);
        if let Some(stamps) = ack.timestamps {
            self.floor = Some(later(self.floor, stamps.ts_ecr));
        }
        let newest = self.newest();
        let Some(hider) = &mut self.hider else { return Verdict::Leave };
        let (before, was_here) = (hider.total(), hider.here());
        let terms = Terms { mirror: &self.mirror, may_hide: allowed.new, room: allowed.room, newest };
        let verdict = hider.leaving(now, ack, carries, allowed.scale, &terms);
        self.holes += u64::from(hider.total() > before);
        let here = hider.here();
        if here > was_here {
            self.moved = now;
        }
        while let Some(first) = self.given.first_entry() {
            if first.key() + first.get().bytes.len() as u64 > here {
                break;
            }
            first.remove();
        }
        self.mirror.forget_before(here);
        verdict
    }

    /// What is to be fetched now; what was fetched already is given again instead.
    pub(in crate::accel) fn wants(&mut self, now: Instant, packets: &mut Vec<Vec<u8>>) -> Vec<Want> {
        let server = SocketAddr::new(self.key.addrs.destination(), self.key.destination_port);
        let flow = self.number;
        let want = |stretch, place| Want { flow, stretch, place, server };
        let mut wants: Vec<Want> =
            self.mirror.check().into_iter().map(|(stretch, place)| want(stretch, place)).collect();
        let wanted = self.hider.as_mut().map(Hider::wanted).unwrap_or_default();
        for stretch in wanted {
            let again = self
                .given
                .iter()
                .any(|(start, given)| Stretch::new(*start, start + given.bytes.len() as u64).encloses(&stretch));
            if again {
                packets.extend(self.give(now, stretch));
            } else if let Some(place) = self.mirror.place(stretch) {
                wants.push(want(stretch, place));
            }
        }
        wants
    }

    /// What of a stretch that was wanted still is.
    pub(in crate::accel) fn missing(&self, stretch: Stretch) -> Vec<Stretch> {
        if self.mirror.awaits(stretch.start) {
            return alloc::vec![stretch];
        }
        self.hider.as_ref().map(|hider| hider.missing(stretch)).unwrap_or_default()
    }

    /// Whether the bytes from here on are to be compared.
    pub(in crate::accel) fn awaits(&self, start: u64) -> bool {
        self.mirror.awaits(start)
    }

    /// Bytes were fetched: packets for the own stack.
    pub(in crate::accel) fn on_fetched(&mut self, now: Instant, start: u64, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        if self.mirror.checked(start, &bytes) {
            return Vec::new();
        }
        let stretch = Stretch::new(start, start + bytes.len() as u64);
        let missing = self.hider.as_ref().map(|hider| hider.missing(stretch)).unwrap_or_default();
        if missing.is_empty() {
            return Vec::new();
        }
        let stamp = missing.first().and_then(|first| self.hider.as_ref()?.stamp(first.start));
        let is_longer = |old: &Given| old.bytes.len() >= bytes.len();
        if !self.given.get(&start).is_some_and(is_longer) {
            self.given.insert(start, Given { bytes, at: now, stamp });
        }
        missing.into_iter().flat_map(|stretch| self.give(now, stretch)).collect()
    }

    /// Time has passed: packets for the own stack.
    pub(in crate::accel) fn tick(&mut self, now: Instant) -> Vec<Vec<u8>> {
        if now.since(self.opened) >= EARLY {
            self.mirror.give_up();
        }
        let Some(hider) = &self.hider else { return Vec::new() };
        if self.end().is_some_and(|end| end <= now) {
            // It may get lost as anything else.
            if self.over.is_some_and(|over| now.since(over) < RESET_AGAIN) {
                return Vec::new();
            }
            self.over = Some(now);
            let ack = self.far.ack();
            let reset = NewSegment::reset(&self.key.reversed(), number(hider.here()), ack);
            return reset.emit().into_iter().collect();
        }
        let here = hider.here();
        match self.given_at(here) {
            Some((end, at)) if now.since(at) >= AGAIN => self.give(now, Stretch::new(here, end)),
            _ => Vec::new(),
        }
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        let early = self.mirror.is_silent().then(|| self.opened + EARLY);
        let over = self.end().map(|at| self.over.map_or(at, |over| at.max(over + RESET_AGAIN)));
        let hider = self.hider.as_ref().filter(|_| self.over.is_none());
        let again = hider.and_then(|hider| self.given_at(hider.here())).map(|(_, at)| at + AGAIN);
        [early, over, again].into_iter().flatten().min()
    }

    /// The link is back after a blackout: ACKs of all that may have been on its way, `flight` bytes at the most; then the
    /// question where the other end stands. None if its bytes cannot be had.
    pub(in crate::accel) fn open_ladder(
        &mut self,
        now: Instant,
        last: (Ack, IpParams),
        flight: u64,
        step: u32,
        scale: u8,
    ) -> Vec<Vec<u8>> {
        let rungs = self.ladder(now, flight, step);
        if rungs.is_empty() {
            return Vec::new();
        }
        let mut packets: Vec<Vec<u8>> =
            rungs.iter().filter_map(|rung| self.say(last, last.0.seq, *rung, scale)).collect();
        packets.extend(self.ask(last, scale));
        packets
    }

    /// The question where the other end stands.
    pub(in crate::accel) fn ask(&self, last: (Ack, IpParams), scale: u8) -> Vec<Vec<u8>> {
        let told = self.hider.as_ref().map(|hider| number(hider.told()));
        told.and_then(|told| self.say(last, last.0.seq.minus(1), told, scale)).into_iter().collect()
    }

    /// An acknowledgement of this, with the right edge as it was told.
    fn say(&self, (last, envelope): (Ack, IpParams), seq: Seq, ack: Seq, scale: u8) -> Option<Vec<u8>> {
        let window = self.hider.as_ref()?.window_at(ack, scale);
        let ack = Ack { seq, ack, window, flags: Flags::ACK, sack_blocks: SackBlocks::default(), ..last };
        Some(ack.emit(&self.key, envelope))
    }

    /// The link is dark: the same ladder with a window of zero, of which `rungs` say which are sent. None if its bytes cannot
    /// be had.
    pub(in crate::accel) fn freeze(
        &mut self,
        now: Instant,
        (last, envelope): (&Ack, IpParams),
        rungs: &RangeInclusive<u64>,
        step: u32,
    ) -> Vec<Vec<u8>> {
        let ladder = self.ladder(now, rungs.end().saturating_mul(step.into()), step);
        let Some(lowest) = ladder.last().copied() else { return Vec::new() };
        let is_sent = |rung: &&Seq| u64::from(rung.since(lowest) / step.max(1)) >= *rungs.start();
        let say = |ack| Ack { ack, window: 0, flags: Flags::ACK, sack_blocks: SackBlocks::default(), ..*last };
        ladder.iter().filter(is_sent).map(|rung| say(*rung).emit(&self.key, envelope)).collect()
    }

    /// Whether a ladder stands of which is not known how far it was believed, or what it acknowledged is not all here.
    pub(in crate::accel) fn has_ladder(&self) -> bool {
        self.hider.as_ref().is_some_and(|hider| hider.ladder_top().is_some())
    }

    /// Where the flow is in its resource, and who has it; none: its bytes cannot be had.
    pub(in crate::accel) fn here(&self) -> Option<(Place, SocketAddr)> {
        let here = self.hider.as_ref().map(Hider::here)?;
        let place = self.mirror.place(Stretch::new(here, here + 1))?;
        Some((place, SocketAddr::new(self.key.addrs.destination(), self.key.destination_port)))
    }

    /// Whether these bytes are wanted to be compared.
    pub(in crate::accel) fn is_check(&self, want: &Want) -> bool {
        self.mirror.awaits(want.stretch.start)
    }

    /// The size of the sender's segments, as they came.
    pub(in crate::accel) const fn step(&self) -> Option<u32> {
        self.grain.known()
    }

    /// The numbers of a ladder over `flight` bytes, the highest first; one that stands already is gone up again, as far as it is
    /// not known how much of it was believed.
    fn ladder(&mut self, now: Instant, flight: u64, step: u32) -> Vec<Seq> {
        let newest = self.newest();
        let (Some(hider), Some(end)) = (&mut self.hider, self.mirror.end()) else { return Vec::new() };
        let front = hider.told().max(hider.here());
        let top = end.min(front.saturating_add(flight));
        // Of one body, whose bytes can be had.
        let standing = hider.ladder_top();
        let from = standing.map_or(front, |standing| standing.saturating_sub(1));
        let can = top > from && self.mirror.place(Stretch::new(from, top)).is_some();
        let Some(top) = standing.filter(|_| !can).or(can.then_some(top)) else { return Vec::new() };
        let terms = Terms { mirror: &self.mirror, may_hide: false, room: 0, newest };
        hider.ladder(now, top, step, &terms)
    }

    /// Whether nothing is to be hidden any more.
    pub(in crate::accel) fn is_over(&self) -> bool {
        !self.is_busy() && self.mirror.is_over(self.hider.as_ref().map_or(0, Hider::here), self.has_closed)
    }

    /// Nothing is hidden any more, for this reason unless there was one. To be done while nothing is missing.
    pub(in crate::accel) fn close(&mut self, why: Refusal) {
        self.mirror.close(why);
        self.hider = None;
        self.given.clear();
    }

    /// How much it needs to be shown.
    pub(in crate::accel) fn sight(&self) -> Sight {
        match self.mirror.wants() {
            Sight::Whole => Sight::Whole,
            _ if self.is_busy() || self.refusal().is_none() => Sight::Heads,
            _ => Sight::None,
        }
    }

    /// Whether bytes of it can be had now.
    pub(in crate::accel) fn is_on(&self) -> bool {
        let here = self.hider.as_ref().map(Hider::here);
        here.is_some_and(|here| self.mirror.place(Stretch::new(here, here + 1)).is_some())
    }

    /// Whether something was acknowledged that is not here.
    pub(in crate::accel) fn is_busy(&self) -> bool {
        self.hider.as_ref().is_some_and(|hider| !hider.is_idle())
    }

    /// Why nothing is hidden.
    pub(in crate::accel) fn refusal(&self) -> Option<Refusal> {
        self.mirror.refusal()
    }

    /// Bytes that were hidden, those of them that are missing, and how often something was.
    pub(in crate::accel) fn figures(&self) -> (u64, u64, u64) {
        self.hider.as_ref().map_or((0, 0, 0), |hider| (hider.total(), hider.missing_bytes(), self.holes))
    }

    /// Changes with [`owed`](Self::owed).
    pub(in crate::accel) fn owing(&self) -> (u64, u64) {
        let ladder = self.hider.as_ref().and_then(Hider::ladder_top).unwrap_or(0);
        let (hidden, missing, _) = self.figures();
        (hidden, missing.wrapping_add(ladder))
    }

    /// What was acknowledged, or may have been, and is not here; none if there is nothing.
    pub(in crate::accel) fn owed(&self) -> Option<Owed> {
        let server = SocketAddr::new(self.key.addrs.destination(), self.key.destination_port);
        let hole = |(stretch, stamp): (Stretch, Option<TcpTimestamp>)| {
            let place = self.mirror.place(stretch).map(|place| (server, place));
            let stamp = stamp.map(|stamp| later(self.floor, stamp));
            pending::hole(number(stretch.start), stretch.bytes(), stamp, place)
        };
        let hider = self.hider.as_ref()?;
        let holes: Vec<Hole> = hider.open().map(hole).collect();
        let is_sure = hider.ladder_top().is_none();
        let stamps =
            self.far.stamps.map(|stamps| (later(self.floor, stamps.ts_val).ticks(), stamps.ts_ecr.ticks()));
        (!holes.is_empty() || !is_sure).then(|| Owed {
            local: SocketAddr::new(self.key.addrs.source(), self.key.source_port),
            server,
            said: (self.far.ack().number(), self.far.window),
            stamps,
            here: number(hider.here()).number(),
            told: Some(number(hider.told()).number()),
            is_sure,
            holes,
        })
    }

    /// When the oldest hole was hidden that is still open.
    pub(in crate::accel) fn waits_since(&self) -> Option<Instant> {
        self.hider.as_ref()?.waits_since()
    }

    fn newest(&self) -> Option<TcpTimestamp> {
        self.far.stamps.map(|stamps| stamps.ts_val)
    }

    /// The end of what was given that has this position, and when it was.
    fn given_at(&self, position: u64) -> Option<(u64, Instant)> {
        // They may lie within each other.
        let parts = self.given.range(..=position).rev();
        let mut ends = parts.map(|(start, given)| (start + given.bytes.len() as u64, given.at));
        ends.find(|(end, _)| position < *end)
    }

    /// Packets with these bytes, as far as they were fetched.
    fn give(&mut self, now: Instant, stretch: Stretch) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for (start, given) in self.given.range_mut(..stretch.end) {
            let common = Stretch::new(*start, start + given.bytes.len() as u64).common(&stretch);
            if common.is_empty() {
                continue;
            }
            let (from, to) = ((common.start - start) as usize, (common.end - start) as usize);
            let Some(bytes) = given.bytes.get(from..to) else { continue };
            given.at = now;
            let far = self.far;
            let stamps = far.stamps.map(|stamps| {
                let value = later(self.floor, given.stamp.unwrap_or(stamps.ts_val));
                self.floor = Some(value);
                Timestamps { ts_val: value, ..stamps }
            });
            for (at, piece) in bytes.chunks(PIECE).enumerate() {
                let seq = number(common.start + (at * PIECE) as u64);
                let (flow, ack) = (self.key.reversed(), far.ack());
                let segment = NewSegment::data(&flow, seq, ack, far.window, stamps, piece);
                packets.extend(segment.emit());
            }
        }
        packets
    }
}

fn later(old: Option<TcpTimestamp>, new: TcpTimestamp) -> TcpTimestamp {
    old.map_or(new, |old| if old.is_before(new) { new } else { old })
}

fn seen<'a>(segment: &Segment<'a>, length: u32) -> Option<Seen<'a>> {
    Some(Seen { seq: segment.payload_range().start, ack: segment.ack()?, length, payload: segment.payload() })
}

/// chosen: fits into a packet of 1500 bytes with all headers of IPv6 and options.
pub(in crate::accel) const PIECE: usize = 1400;
/// Facts "Pitfalls" 5: given again when the own stack has waited for 60 ms.
const AGAIN: Duration = Duration::from_millis(60);
/// chosen: the end is told once a second until the connection is gone.
const RESET_AGAIN: Duration = Duration::from_secs(1);
/// chosen: a flow whose request was not seen by then began before anybody looked.
const EARLY: Duration = Duration::from_secs(5);
