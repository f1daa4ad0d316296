//! Which mechanism is worth its cost for a flow, as it runs now.
//!
//! 1. Each mechanism costs a little all the time and saves much at times, so it needs a window that is worth saving.
//! 2. A withheld byte keeps a segment in the sender's window that has already arrived. Of twenty segments that is a
//!    twentieth at most, and nothing where the link is the limit; a window of seven is slower by a seventh.
//! 3. Early ACK keeps a window from shrinking. Where only one segment is in flight at a time there is no window, and
//!    losses are those of a queue that is too short for two packets.

use super::FlowState;
use crate::accel::ack_offload::ack_path::{AckPath, AckPathSelector};
use crate::accel::ack_offload::delay_queue::AckInfo;
use crate::accel::ack_offload::trial;
use crate::units::{Bitrate, Duration, Instant};
use crate::wire::packet::Ack;

impl FlowState {
    /// Whether its ACKs may leave over a secondary link now, by its holes and its size alone (Super-aggregation §3.1).
    /// Early-acked holes are holes here: a longer round trip slows their repair.
    pub(in crate::accel) fn can_offload_as_published(&mut self, now: Instant) -> bool {
        self.ack_path.has_no_holes(now, &self.local_holes, self.eifel_undo.needs_exact_acks())
            && self.in_flight(now) >= u64::from(MIN_OFFLOAD_SEGMENTS)
    }

    /// Selects the link of an ACK that leaves now. `is_ready`: a secondary link responds; `max_rate`: a faster flow has
    /// more ACKs than that link can carry.
    pub(in crate::accel) fn select_ack_path(&mut self, now: Instant, is_ready: bool, max_rate: Bitrate) -> AckPath {
        // Hysteresis: a flow that fell below a limit must exceed it clearly to be offloaded again.
        let min_segments = if self.ack_path.is_on() { MIN_OFFLOAD_SEGMENTS / 2 } else { MIN_OFFLOAD_SEGMENTS };
        let max_rate = if self.ack_path.is_on() { max_rate + max_rate / 4 } else { max_rate };
        let sample = trial::TrialSample {
            received: self.goodput.total(),
            queue: self.loss_classifier.queueing_delay(now),
            max_queue: self.loss_classifier.max_queue(),
            rtt: self.rtt.min(),
            // Without timestamps nothing would show that ACKs do not arrive over the other link.
            is_eligible: self.last_ack.is_some_and(|(last, _)| last.timestamps.is_some())
                && self.in_flight(now) >= u64::from(min_segments)
                && self.goodput.rate(now) <= max_rate,
            has_started: self.local_holes.last_open().is_some() || now.since(self.opened) >= MIN_AGE,
            is_link_ready: is_ready,
            ..trial::TrialSample::new(now)
        };
        self.ack_path.select(sample, &self.local_holes, self.eifel_undo.needs_exact_acks())
    }

    /// What the delay queue needs to know of an ACK.
    pub(in crate::accel) fn ack_info(&self, ack: Ack) -> AckInfo {
        let echo = |ack: &Ack| ack.timestamps.map(|stamps| stamps.ts_ecr);
        let is_marked = self.last_ack.is_none_or(|(last, _)| echo(&last) != echo(&ack));
        AckInfo { ack, has_rewritten_echo: is_marked, scale: self.window_scale() }
    }

    /// The selection of the link of its ACKs.
    pub(in crate::accel) const fn ack_path_mut(&mut self) -> &mut AckPathSelector {
        &mut self.ack_path
    }

    /// Whether a byte may be withheld: the flow receives as many segments as a download that fills a link, many are in
    /// flight, those in the queue included, and no hole has shown for some time.
    pub(super) fn can_withhold_byte(&self, now: Instant) -> bool {
        let bytes = self.goodput.rate(now)
            * (self.rtt.min() + self.loss_classifier.queueing_delay(now).unwrap_or_default());
        let is_large = bytes.bytes() >= u64::from(self.segment_size) * MIN_WITHHELD_SEGMENTS;
        let is_whole = self.last_loss.is_none_or(|last| now.since(last) >= MIN_LOSS_FREE_TIME);
        self.goodput.recent_bytes(now).bytes() >= u64::from(self.segment_size) * MIN_RECENT_SEGMENTS
            && is_large
            && is_whole
    }

    /// Whether a reduction is worth undoing. It always is while a flow starts (its SYN was observed), because it has no
    /// rate yet and a reduction costs it most.
    pub(super) fn is_worth_undoing(&self, now: Instant) -> bool {
        let starts = self.scale.is_some() && now.since(self.opened) < self.rtt.min() * START_RTTS;
        starts || self.in_flight(now) >= MIN_UNDO_SEGMENTS
    }

    /// Whether a hole is worth an early ACK. It is for a young flow, and for one whose round-trip time is too short to
    /// be measured.
    pub(super) fn is_worth_early_ack(&self, now: Instant) -> bool {
        let (segment, rtt) = (u64::from(self.segment_size), self.rtt.min());
        let is_known = self.goodput.total().bytes() >= segment * YOUNG_SEGMENTS && !rtt.is_zero();
        let has_segments = !is_known || (self.goodput.rate(now) * rtt).bytes() >= segment * MIN_EARLY_ACK_SEGMENTS;
        has_segments && self.has_window_for_holes(now)
    }

    /// Whether the largest window that its scale allows lasts until a hole is filled.
    pub(super) fn has_window_for_holes(&self, now: Instant) -> bool {
        (self.goodput.rate(now) * self.fetch_latency.last_latency(now)).bytes()
            <= MAX_WINDOW << self.window_scale().min(MAX_WINDOW_SCALE)
    }

    /// Segments in flight, by its goodput and its round-trip time.
    fn in_flight(&self, now: Instant) -> u64 {
        let bytes = self.goodput.rate(now) * self.rtt.smoothed_or_default();
        bytes.bytes() / u64::from(self.segment_size)
    }
}

/// Bytes before scaling (RFC 9293 §3.1).
const MAX_WINDOW: u64 = 65535;
/// RFC 7323 §2.3.
const MAX_WINDOW_SCALE: u8 = 14;
/// Segments in the last 200 to 300 ms. chosen: 0.5 Mbit/s; a slower flow has no window that an outage could cost.
const MIN_RECENT_SEGMENTS: u64 = 10;
/// Segments in flight from which on a byte may be withheld: rule 2.
const MIN_WITHHELD_SEGMENTS: u64 = 20;
/// Since the last hole showed. chosen: a window that a loss has halved grows back in some seconds (RFC 9438), so behind
/// a policer, where one loss follows another, no byte is withheld.
const MIN_LOSS_FREE_TIME: Duration = Duration::from_secs(5);
/// Segments in flight from which on a reduction is worth undoing. chosen: fewer cause no three duplicate ACKs; at 3 %
/// of loss a window has five or six when its path is trusted first.
const MIN_UNDO_SEGMENTS: u64 = 4;
/// Round trips. chosen: one to connect, one for the request, and those in which a window grows from ten segments to
/// hundreds.
const START_RTTS: u32 = 8;
/// Segments. chosen: some round trips of a start.
const YOUNG_SEGMENTS: u64 = 100;
/// Segments in flight, those that wait in a queue not counted. chosen: at a loss of 5 % there are two or three of them.
const MIN_EARLY_ACK_SEGMENTS: u64 = 2;
/// chosen: a window that has not filled a queue by then is limited by something else.
const MIN_AGE: Duration = Duration::from_secs(5);
/// Segments in flight (Super-aggregation §3.1).
const MIN_OFFLOAD_SEGMENTS: u32 = 20;
