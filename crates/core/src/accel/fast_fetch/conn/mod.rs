//! A mirrored connection: repeats the request of a flow over a secondary link, and advances to the bytes that the flow
//! misses by acknowledging data that has not arrived (Super-aggregation §3.3, §4.2, *Fast Fetch*).
//!
//! ```text
//!   SYN ─▶ request ─▶ head, read in order ─▶ advance: ACK, ACK, ACK … up to the first wanted byte
//!                                              ▲                                     │
//!                                              └── it comes ◀── four ACKs of it ◀── pause, so that it fits
//! ```
//!
//! 1. While it advances, ACKs leave at an even interval ([`AckPacer`]), whatever has arrived: the server sends on, and
//!    most of that is lost in the thin link's queue. That is an optimistic-ACK attack on that link and on the server's
//!    sending rate. So it is off unless enabled, advances no further than the flow itself has come, and ends after
//!    256 MiB, or when its flow has been idle for `max_idle`.
//! 2. It never acknowledges a wanted byte that has not come. There it pauses for `duplicate_ack_delay`, until the
//!    queue has capacity again, and sends the same number four times: the server retransmits that segment (RFC 5681
//!    section 3.2), or its timeout does. No SACK is offered, and no timestamps: what the server retransmits is the
//!    first segment that it misses an ACK for.
//! 3. An ACK of what the server has not sent is ignored, and the server waits. If nothing comes for a while, its
//!    position is probed by a segment with an old number (RFC 9293 section 3.10.7.4), and the connection continues from
//!    there, slower; after [`MAX_PROBES`] without an answer it is given up. So is one that is reset, or closed early,
//!    or whose head is not that of the flow's resource, or that the flow has left behind.
//! 4. Few bytes are accepted at a time, and none that are too far ahead to be reached in `max_reach_time`: the caller
//!    fetches them otherwise, and also if they do not come within `range_timeout` after that.
//! 5. A packet counts only if it acknowledges what was sent, which an off-path attacker cannot see.

mod close_reason;
mod pacer;
mod receive;
#[cfg(test)]
mod tests;
mod wanted;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::accel::early_ack::fetch::{FetchRequest, FetchedRange};
use crate::accel::early_ack::head_reassembler::HeadReassembler;
use crate::accel::early_ack::http_map::Resource;
use crate::accel::fast_fetch::options::FastFetchOptions;
use crate::accel::seq_space::{PosRangeSet, seq_of};
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::{Flags, FourTuple as Key, NewSegment, OptionList, Seq, TcpOption};
pub(crate) use close_reason::CloseReason;
use pacer::{AckPacer, SEGMENT};
use wanted::WantedRanges;

/// A second connection to the flow's server that requests the same resource over a secondary link.
#[derive(Clone, Debug)]
pub(crate) struct MirroredConn {
    options: &'static FastFetchOptions,
    /// From this host to the server.
    key: Key,
    resource: Arc<Resource>,
    /// The request, and the number of the SYN before it.
    request: Vec<u8>,
    isn: Seq,
    ack_interval: Duration,
    pacer: AckPacer,
    phase: Phase,
    /// When the last SYN left.
    syn_sent: Instant,
    /// How long the server's answer took.
    rtt: Duration,
    head: HeadReassembler,
    /// What has come in order, while the head is read.
    received: PosRangeSet,
    /// The position of the resource's first byte.
    body_start: u64,
    /// Position up to which the server's data was acknowledged.
    acked: u64,
    /// One past the highest byte that came.
    highest: u64,
    /// How far the flow itself has come in the resource.
    flow_offset: u64,
    /// Time of the last report of `flow_offset`.
    flow_seen: Instant,
    wanted: WantedRanges,
    /// When the connection last advanced, or was probed.
    last_progress: Instant,
    /// It waits at a wanted byte, and repeats its ACK then.
    next_duplicate_acks: Option<Instant>,
    /// How long a hole takes: the delay, a round trip and the thin link's queue.
    hole_time: Duration,
    probes: u32,
    /// Bytes that were acknowledged and not kept.
    skipped: u64,
    outputs: ConnOutputs,
}

/// What is to be done, and what has come.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ConnOutputs {
    /// Packets for the secondary link.
    pub(crate) packets: Vec<Vec<u8>>,
    /// Received bytes that fill holes of the flow.
    pub(crate) fetched: Vec<FetchedRange>,
    /// What is to be fetched otherwise.
    pub(crate) returned: Vec<FetchRequest>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Connecting { tries: u32 },
    ReadingHead { tries: u32 },
    Advancing,
    Closed(CloseReason),
}

impl MirroredConn {
    /// The SYN leaves; `ack_interval`: how often an ACK may follow.
    pub(crate) fn new(
        options: &'static FastFetchOptions,
        now: Instant,
        key: Key,
        isn: Seq,
        resource: Arc<Resource>,
        beat: Duration,
    ) -> Self {
        let mut conn = Self {
            options,
            key,
            request: format!("{}\r\n", resource.request).into_bytes(),
            resource,
            isn,
            ack_interval: beat,
            pacer: AckPacer::new(options, now, beat),
            phase: Phase::Connecting { tries: 1 },
            syn_sent: now,
            rtt: Duration::ZERO,
            head: HeadReassembler::new(0),
            received: PosRangeSet::default(),
            body_start: 0,
            acked: 0,
            highest: 0,
            flow_offset: 0,
            flow_seen: now,
            wanted: WantedRanges::default(),
            last_progress: now,
            next_duplicate_acks: None,
            hole_time: options.first_hole_time,
            probes: 0,
            skipped: 0,
            outputs: ConnOutputs::default(),
        };
        conn.send_syn();
        conn
    }

    /// From this host to the server.
    pub(crate) const fn key(&self) -> &Key {
        &self.key
    }

    /// Whether a flow that has come so far can still be caught up with.
    pub(crate) fn can_catch_up(options: &FastFetchOptions, offset: u64, beat: Duration) -> bool {
        DataSize::from_bytes(offset) <= AckPacer::max_rate(options, beat) * options.max_lag
    }

    /// The flow has come so far in the resource.
    pub(crate) fn follow(&mut self, now: Instant, offset: u64) {
        if !self.is_waiting() {
            // It was idle until now.
            self.last_progress = now;
        }
        (self.flow_offset, self.flow_seen) = (self.flow_offset.max(offset), now);
        self.wanted.forget_before(self.flow_offset);
        if self.flow_offset >= self.resource.length {
            self.give_up(CloseReason::Done);
        } else if !Self::can_catch_up(
            self.options,
            self.flow_offset.saturating_sub(self.offset()),
            self.ack_interval,
        ) {
            self.give_up(CloseReason::TooSlow);
        }
    }

    /// These bytes are wanted; returned if they cannot be reached in time.
    pub(crate) fn request(&mut self, now: Instant, request: FetchRequest) -> Result<(), FetchRequest> {
        let start = request.source.offset;
        let distance = DataSize::from_bytes(start.saturating_sub(self.offset()));
        let at_hand = self.budget() > 0 && start >= self.offset() && request.source.resource == self.resource;
        let is_near = distance
            <= self.max_rate() * self.options.max_reach_time.saturating_sub(self.hole_time * self.wanted.count());
        if !at_hand || !is_near || request.range.len() > self.options.max_range {
            return Err(request);
        }
        if !self.is_waiting() {
            // It had nothing to say until now.
            self.last_progress = now;
        }
        self.wanted.add(request, now, now + self.options.max_reach_time + self.options.range_timeout);
        Ok(())
    }

    /// How many bytes it accepts now.
    pub(crate) fn budget(&self) -> u64 {
        let has_time = self.hole_time * self.wanted.count() < self.options.max_reach_time;
        if self.phase == Phase::Advancing && has_time { self.options.max_range } else { 0 }
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        let expired = self.wanted.take_overdue(now);
        if !expired.is_empty() {
            // Fewer at a time, so that the others are fetched otherwise at once.
            self.hole_time = (self.hole_time * 2).min(self.options.max_reach_time);
        }
        self.outputs.returned.extend(expired);
        match self.phase {
            Phase::Closed(_) => {}
            Phase::Connecting { tries } | Phase::ReadingHead { tries }
                if now.since(self.last_progress) >= self.options.retry_interval * tries =>
            {
                if tries >= MAX_TRIES {
                    return self.give_up(CloseReason::NoResponse);
                }
                self.last_progress = now;
                if matches!(self.phase, Phase::Connecting { .. }) {
                    self.syn_sent = now;
                    self.phase = Phase::Connecting { tries: tries + 1 };
                    self.send_syn();
                } else {
                    self.phase = Phase::ReadingHead { tries: tries + 1 };
                    self.send_request();
                }
            }
            Phase::Connecting { .. } | Phase::ReadingHead { .. } => {}
            Phase::Advancing => self.advance(now),
        }
    }

    fn advance(&mut self, now: Instant) {
        if now.since(self.flow_seen) >= self.options.max_idle {
            return self.give_up(CloseReason::Done);
        }
        if self.acked < self.ack_limit() {
            self.next_duplicate_acks = None;
        }
        while self.can_advance() && self.pacer.take_step(now) {
            // What has come was certainly sent.
            let to = self.highest.max(self.acked + self.pacer.step_bytes()).min(self.ack_limit());
            self.skipped += to - self.acked;
            self.acked = to;
            self.send_ack();
        }
        if now.since(self.last_progress) < self.rtt * 2 {
            self.pacer.on_progress(now);
        }
        if self.skipped > MAX_SKIPPED {
            return self.give_up(CloseReason::Waste);
        }
        if self.is_at_wanted_byte() {
            let due = *self.next_duplicate_acks.get_or_insert(now + self.options.duplicate_ack_delay);
            if due <= now {
                self.next_duplicate_acks = Some(now + self.rtt * 2 + self.options.duplicate_ack_delay);
                (0..self.options.duplicate_acks).for_each(|_| self.send_ack());
            }
        }
        if self.is_waiting() && now.since(self.last_progress) >= self.probe_timeout() {
            if self.probes >= MAX_PROBES {
                return self.give_up(CloseReason::NoResponse);
            }
            (self.probes, self.last_progress) = (self.probes + 1, now);
            let seq = self.next_seq().minus(1);
            self.send_segment(seq, Flags::ACK, OptionList::default(), &[]);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = match self.phase {
            Phase::Closed(_) => None,
            Phase::Connecting { tries } | Phase::ReadingHead { tries } => {
                Some(self.last_progress + self.options.retry_interval * tries)
            }
            Phase::Advancing => {
                let step = self.can_advance().then(|| self.pacer.deadline());
                // A connection that has just reached a wanted byte is to be woken at once.
                let due = self.is_at_wanted_byte().then(|| self.next_duplicate_acks.unwrap_or(self.last_progress));
                let probe = self.is_waiting().then(|| self.last_progress + self.probe_timeout());
                [step, due, probe, Some(self.flow_seen + self.options.max_idle)].into_iter().flatten().min()
            }
        };
        [self.wanted.deadline(), due].into_iter().flatten().min()
    }

    /// Closes the connection and returns what was wanted from it.
    pub(crate) fn give_up(&mut self, end: CloseReason) {
        if matches!(self.phase, Phase::Closed(_)) {
            return;
        }
        self.send_segment(self.next_seq(), Flags::RST | Flags::ACK, OptionList::default(), &[]);
        self.phase = Phase::Closed(end);
        self.outputs.returned.extend(self.wanted.drain());
    }

    /// Why nothing more comes of it, if so.
    pub(crate) const fn close_reason(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closed(end) => Some(end),
            _ => None,
        }
    }

    /// Bytes that are wanted and have not come.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.wanted.bytes()
    }

    /// Bytes that were acknowledged and not kept.
    pub(crate) const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// What is to be done, and what has come.
    pub(crate) fn drain(&mut self) -> ConnOutputs {
        core::mem::take(&mut self.outputs)
    }

    /// Up to where may be acknowledged: the first wanted byte that has not come, or the position of the flow.
    fn ack_limit(&self) -> u64 {
        // Of bytes for which the flow itself waits, the first part may have come.
        let hunted = self.wanted.first().filter(|(start, _)| *start <= self.flow_offset);
        let offset = hunted.map_or(self.flow_offset, |(_, missing)| missing);
        (self.body_start + offset.min(self.resource.length)).max(self.acked)
    }

    /// Whether something is left to skip, and the server is not being probed.
    fn can_advance(&self) -> bool {
        self.acked < self.ack_limit() && self.probes == 0
    }

    /// Whether it waits at a wanted byte.
    fn is_at_wanted_byte(&self) -> bool {
        self.wanted.first().is_some_and(|(_, missing)| self.acked >= self.body_start + missing)
    }

    /// Whether it waits for anything from the server.
    fn is_waiting(&self) -> bool {
        self.acked < self.ack_limit() || self.is_at_wanted_byte()
    }

    /// Its position in the resource.
    fn offset(&self) -> u64 {
        if self.phase == Phase::Advancing { self.acked.saturating_sub(self.body_start) } else { 0 }
    }

    fn max_rate(&self) -> Bitrate {
        AckPacer::max_rate(self.options, self.ack_interval)
    }

    /// After so long without anything new the server's position is probed.
    fn probe_timeout(&self) -> Duration {
        (self.rtt * 2 + self.options.min_probe_timeout).min(self.options.min_probe_timeout * 3)
    }

    /// Its own next sequence number.
    fn next_seq(&self) -> Seq {
        match self.phase {
            Phase::Connecting { .. } => self.isn.plus(1),
            _ => self.isn.plus(1 + u32::try_from(self.request.len()).unwrap_or(0)),
        }
    }

    fn send_syn(&mut self) {
        let mut options = OptionList::default();
        options.push(&TcpOption::Mss(SEGMENT));
        options.push(&TcpOption::Nop);
        options.push(&TcpOption::WindowScale(WINDOW_SCALE));
        self.send_segment(self.isn, Flags::SYN, options, &[]);
    }

    fn send_request(&mut self) {
        let (request, mut seq) = (core::mem::take(&mut self.request), self.isn.plus(1));
        for piece in request.chunks(SEGMENT.into()) {
            self.send_segment(seq, Flags::ACK | Flags::PSH, OptionList::default(), piece);
            seq = seq.plus(u32::try_from(piece.len()).unwrap_or(0));
        }
        self.request = request;
    }

    fn send_ack(&mut self) {
        self.send_segment(self.next_seq(), Flags::ACK, OptionList::default(), &[]);
    }

    fn send_segment(&mut self, seq: Seq, flags: Flags, options: OptionList, payload: &[u8]) {
        let plain = NewSegment::data(&self.key, seq, seq_of(self.acked), u16::MAX, None, payload);
        let ack = if flags.contains(Flags::ACK) { plain.ack } else { Seq::default() };
        self.outputs.packets.extend(NewSegment { flags, options, ack, ..plain }.emit());
    }
}

/// Bounds the probes without an answer: a link that loses most of what comes loses answers, too.
const MAX_PROBES: u32 = 4;
/// Bounds the SYNs, and the copies of the request.
const MAX_TRIES: u32 = 3;
/// Bounds the bytes that a server is made to send without effect for one flow: 100 s of 20 Mbit/s.
const MAX_SKIPPED: u64 = 256 * 1024 * 1024;
/// Our choice: a window of 8 MiB, so that it never limits the server.
const WINDOW_SCALE: u8 = 7;
