//! Which mechanism is worth it for a flow, as it runs now.
//!
//! In: its pace, its round trip, its queue, its holes. Out: yes or no for each mechanism.
//!
//! 1. Each mechanism costs a little all the time and saves much at times, so it needs a window that is worth saving.
//! 2. A byte kept back (`reserve`) leaves a segment in the sender's window that is here already: of twenty that is a
//!    twentieth at the most, and nothing where the link is the limit; of seven a sender is slower by a seventh.
//! 3. Hiding keeps a window from shrinking. Where one segment follows another by itself there is none, and the losses are those
//!    of a queue that is too short for two.

use super::Flow;
use crate::accel::ack_offload::ack_path::{Detour, Road};
use crate::accel::ack_offload::delay_queue::Says;
use crate::accel::ack_offload::trial;
use crate::units::{Bitrate, Duration, Instant};
use crate::wire::packet::Ack;

impl Flow {
    /// Whether its ACKs may go over a helping link now, by nothing but its holes and its size (§3.1). Holes that are hidden
    /// from the sender are holes here: a longer round trip slows their repair.
    pub(in crate::accel) fn may_spill(&mut self, now: Instant) -> bool {
        self.detour.is_clear(now, &self.missing, self.undo.is_armed())
            && self.in_flight(now) >= u64::from(THRESHOLD)
    }

    /// The way of an ACK that leaves now; `is_ready`: a helping link answers; `most`: of faster flows it cannot bear enough ACKs.
    pub(in crate::accel) fn road(&mut self, now: Instant, is_ready: bool, most: Bitrate) -> Road {
        // One who is below is not let in again before he is well above.
        let least = if self.detour.is_on() { THRESHOLD / 2 } else { THRESHOLD };
        let most = if self.detour.is_on() { most + most / 4 } else { most };
        let moment = trial::Moment {
            total: self.pace.total(),
            queue: self.gate.queue(now),
            longest: self.gate.longest(),
            rtt: self.trip.least(),
            // Without timestamps nothing would show that ACKs do not arrive by the other way.
            fits: self.last.is_some_and(|(last, _)| last.timestamps.is_some())
                && self.in_flight(now) >= u64::from(least)
                && self.pace.rate(now) <= most,
            has_started: self.missing.last_open().is_some() || now.since(self.opened) >= STARTED,
            is_ready,
            ..trial::Moment::at(now)
        };
        self.detour.road(moment, &self.missing, self.undo.is_armed())
    }

    /// What an ACK says as it leaves, beside what the own stack has said.
    pub(in crate::accel) fn says(&self, ack: Ack) -> Says {
        let echo = |ack: &Ack| ack.timestamps.map(|stamps| stamps.ts_ecr);
        let is_marked = self.last.is_none_or(|(last, _)| echo(&last) != echo(&ack));
        Says { ack, is_marked, scale: self.scale() }
    }

    /// What is known of the two ways of its ACKs.
    pub(in crate::accel) const fn detour_mut(&mut self) -> &mut Detour {
        &mut self.detour
    }

    /// Whether a byte may be kept back: it brings as many segments as a download does that fills a link, many are on their
    /// way, those in the queue included, and nothing was missing of late.
    pub(super) fn may_keep_byte(&self, now: Instant) -> bool {
        let bytes = self.pace.rate(now) * (self.trip.least() + self.gate.queue(now).unwrap_or_default());
        let is_large = bytes.bytes() >= u64::from(self.segment) * LARGE;
        let is_whole = self.lost.is_none_or(|last| now.since(last) >= WHOLE);
        self.pace.lately(now).bytes() >= u64::from(self.segment) * SWING && is_large && is_whole
    }

    /// Whether a reduction is worth taking back; above all that of a flow which starts (its SYN was seen), and has
    /// no pace yet.
    pub(super) fn is_worth_undoing(&self, now: Instant) -> bool {
        let starts = self.scale.is_some() && now.since(self.opened) < self.trip.least() * START;
        starts || self.in_flight(now) >= WORTH
    }

    /// Whether a loss is worth hiding; a young flow's is, and that of one whose round trip is too short to be measured.
    pub(super) fn is_worth_hiding(&self, now: Instant) -> bool {
        let (segment, rtt) = (u64::from(self.segment), self.trip.least());
        let is_known = self.pace.total().bytes() >= segment * YOUNG && !rtt.is_zero();
        let has_segments = !is_known || (self.pace.rate(now) * rtt).bytes() >= segment * SEVERAL;
        has_segments && self.has_window_for_holes(now)
    }

    /// Whether the largest window that its scale allows lasts until a hole is filled.
    pub(super) fn has_window_for_holes(&self, now: Instant) -> bool {
        (self.pace.rate(now) * self.filling.usual(now)).bytes() <= WINDOW << self.scale().min(SCALE_MOST)
    }

    /// Segments on their way, by its pace and its round trip.
    fn in_flight(&self, now: Instant) -> u64 {
        let bytes = self.pace.rate(now) * self.trip.assumed();
        bytes.bytes() / u64::from(self.segment)
    }
}

/// RFC 9293 §3.1: bytes, before they are shifted.
const WINDOW: u64 = 65535;
/// RFC 7323 §2.3.
const SCALE_MOST: u8 = 14;
/// Segments in the last 200 to 300 ms. chosen: 0.5 Mbit/s; less has no window that a blackout could cost.
const SWING: u64 = 10;
/// Segments on their way from which on a byte may be kept back: rule 2.
const LARGE: u64 = 20;
/// Since the last hole showed. chosen: a window that a loss has halved grows back in some seconds (RFC 9438), so behind a policer,
/// where one loss follows another, no byte is kept back.
const WHOLE: Duration = Duration::from_secs(5);
/// Segments in flight from which on a reduction is worth taking back. chosen: fewer bring no three duplicates; at 3 % of loss a window has
/// five or six when its path is trusted first.
const WORTH: u64 = 4;
/// Round trips. chosen: one to connect, one to ask, and those in which a window grows from ten segments to hundreds.
const START: u32 = 8;
/// Segments. chosen: some round trips of a start.
const YOUNG: u64 = 100;
/// Segments on their way, those that wait in a queue not counted. chosen: at a loss of 5 % there are two or three of them.
const SEVERAL: u64 = 2;
/// chosen: a window that has not filled a queue by then is limited by something else.
const STARTED: Duration = Duration::from_secs(5);
/// Segments in flight (§3.1).
const THRESHOLD: u32 = 20;
