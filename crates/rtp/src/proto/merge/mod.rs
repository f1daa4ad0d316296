//! One stream of media from two: the first link's, and its base layer over the second link (Super-aggregation §5.1.3).
//!
//! In: packets of RTP of both links. Out: packets of one stream, in the first one's numbers, times and name.
//!
//! 1. What the first link brings leaves at once. Where it has a hole, what comes behind waits for [`StreamMerger::new`]'s hold at
//!    most, and for nothing while the second link brings nothing that could fill it.
//! 2. The streams are laid upon each other by their content (`stream_aligner`). A picture of which the first link has brought one
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

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use marline_core::units::{Duration, Instant};

use self::base_layer_buffer::{AccessUnit, BaseLayerBuffer, BufferedPacket};
use self::extended_seq::ExtendedSeq;
use self::stream_aligner::{StreamAligner, StreamPos};
use super::wire::rtp::RtpPacket;

pub use self::h264_layer::Layer;

/// Makes one stream of media of two: the first link's, and its base layer over the second link.
#[derive(Clone, Debug)]
pub struct StreamMerger {
    reorder_wait: Duration,
    is_h264: bool,
    now: Instant,
    /// The first stream's name and kind, and when it last brought something.
    source: Option<(u32, u8, Instant)>,
    ext_seq: ExtendedSeq,
    /// The number that leaves next.
    next_seq: Option<u64>,
    waiting: BTreeMap<u64, WaitingPacket>,
    /// The latest time of the first stream.
    latest: Option<u32>,
    /// Whether what left last ended a picture.
    at_picture_boundary: bool,
    base_layer: BaseLayerBuffer,
    aligner: StreamAligner,
    /// Numbers that were given up, and those that the second link has filled.
    skipped: BTreeSet<u64>,
    filled: BTreeSet<u64>,
    counts: MergeCounts,
    outputs: VecDeque<Vec<u8>>,
}

/// One that is ahead of a hole.
#[derive(Clone, Debug)]
struct WaitingPacket {
    bytes: Vec<u8>,
    since: Instant,
    is_base_layer: bool,
}

/// What was done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeCounts {
    /// Packets that the first link has brought.
    pub primary: u64,
    /// Packets that the second link has brought.
    pub base_layer: u64,
    /// Packets that only the second link has brought, and that have left.
    pub filled: u64,
    /// Numbers that have not left.
    pub lost: u64,
    /// Pictures of the second link for which the hole had no room.
    pub unplaced: u64,
    /// Pictures of H.264 that have left, by the last packet of each: of the base.
    pub base_pictures: u64,
    /// And of the enhancement.
    pub enhancement_pictures: u64,
}

/// How it stands with the second stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlignmentState {
    /// It has brought nothing for a while.
    NoData,
    /// Nothing of it was found in the first one yet.
    Searching,
    /// It fills holes.
    Aligned,
    /// It is not a layer of the first one: other bytes.
    Unrelated,
}

impl StreamMerger {
    /// `reorder_wait`: for how long what is behind a hole waits for it to be filled. `is_h264`: pictures are counted by layers.
    pub fn new(reorder_wait: Duration, is_h264: bool) -> Self {
        Self {
            reorder_wait,
            is_h264,
            now: Instant::ZERO,
            source: None,
            ext_seq: ExtendedSeq::default(),
            next_seq: None,
            waiting: BTreeMap::new(),
            latest: None,
            at_picture_boundary: true,
            base_layer: BaseLayerBuffer::default(),
            aligner: StreamAligner::default(),
            skipped: BTreeSet::new(),
            filled: BTreeSet::new(),
            counts: MergeCounts::default(),
            outputs: VecDeque::new(),
        }
    }

    /// The first link has brought this.
    pub fn on_primary(&mut self, now: Instant, bytes: Vec<u8>) {
        self.now = self.now.max(now);
        let Some(rtp) = RtpPacket::parse(&bytes) else {
            self.outputs.push_back(bytes);
            return;
        };
        match self.source {
            Some((ssrc, ..)) if ssrc == rtp.ssrc => {}
            // Repairs and the like may have names of their own; a stream that is silent has ended.
            Some((.., last_seen)) if now.since(last_seen) < STREAM_TIMEOUT => {
                self.outputs.push_back(bytes);
                return;
            }
            Some(_) => self.restart_primary(),
            None => {}
        }
        self.source = Some((rtp.ssrc, rtp.payload_type, now));
        self.counts.primary += 1;
        let seq = self.ext_seq.extend(rtp.seq);
        let pos = StreamPos { seq, timestamp: rtp.timestamp };
        let is_later = self.latest.is_none_or(|latest| is_after(rtp.timestamp, latest));
        if is_later {
            self.latest = Some(rtp.timestamp);
        }
        let counterpart = self.aligner.on_primary(rtp.payload, pos);
        let next = *self.next_seq.get_or_insert(seq);
        if seq < next {
            if self.filled.remove(&seq) {
                self.counts.filled -= 1;
            } else if self.skipped.remove(&seq) {
                self.counts.lost -= 1;
                self.outputs.push_back(bytes);
            }
        } else if self.waiting.len() < MAX_PACKETS {
            self.waiting.insert(seq, WaitingPacket { bytes, since: now, is_base_layer: false });
        }
        if let Some(counterpart) = counterpart {
            self.record_pair(pos, counterpart);
        }
        self.release();
    }

    /// The second link has brought this.
    pub fn on_base_layer(&mut self, now: Instant, bytes: Vec<u8>) {
        self.now = self.now.max(now);
        let Some(rtp) = RtpPacket::parse(&bytes) else { return };
        if self.base_layer.ssrc.is_some_and(|ssrc| ssrc != rtp.ssrc) {
            self.base_layer = BaseLayerBuffer::default();
        }
        self.base_layer.ssrc = Some(rtp.ssrc);
        self.base_layer.last_seen = Some(now);
        self.counts.base_layer += 1;
        let (timestamp, marker) = (rtp.timestamp, rtp.marker);
        let pos = StreamPos { seq: self.base_layer.ext_seq.extend(rtp.seq), timestamp };
        let counterpart = self.aligner.on_base_layer(rtp.payload, pos);
        if self.base_layer.packets.len() < MAX_PACKETS && pos.seq > self.base_layer.passed {
            self.base_layer.packets.insert(pos.seq, BufferedPacket { bytes, timestamp, marker, since: now });
        }
        if let Some(counterpart) = counterpart {
            self.record_pair(counterpart, pos);
        } else {
            self.fill_known(timestamp);
        }
        self.release();
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.release();
    }

    /// When there is something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let next = self.next_seq?;
        let ahead = self.waiting.values().next().map(|waiting| waiting.since + self.hole_wait());
        let picture = self
            .base_layer
            .next_access_unit(next, self.aligner.clock_offset())
            .map(|picture| picture.since + self.reorder_wait);
        [ahead, picture].into_iter().flatten().min()
    }

    /// What leaves.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        self.outputs.pop_front()
    }

    /// What was done so far.
    pub const fn counts(&self) -> MergeCounts {
        self.counts
    }

    /// How it stands with the second stream.
    pub fn alignment(&self) -> AlignmentState {
        match () {
            () if !self.has_base_layer() => AlignmentState::NoData,
            () if self.aligner.clock_offset().is_some() => AlignmentState::Aligned,
            () if self.aligner.is_unrelated() => AlignmentState::Unrelated,
            () => AlignmentState::Searching,
        }
    }

    fn has_base_layer(&self) -> bool {
        self.base_layer.last_seen.is_some_and(|since| self.now.since(since) < STREAM_TIMEOUT)
    }

    /// For how long something waits behind a hole.
    fn hole_wait(&self) -> Duration {
        let may_be_filled = self.aligner.clock_offset().is_some() && self.has_base_layer();
        if may_be_filled { self.reorder_wait } else { Duration::ZERO }
    }

    /// Another stream in the place of the first.
    fn restart_primary(&mut self) {
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            self.outputs.push_back(waiting.bytes);
        }
        (self.ext_seq, self.next_seq, self.latest, self.at_picture_boundary) =
            (ExtendedSeq::default(), None, None, true);
        self.base_layer.restart();
        self.skipped.clear();
        self.filled.clear();
        self.aligner.restart();
    }

    /// The same payload in both.
    fn record_pair(&mut self, primary: StreamPos, base: StreamPos) {
        self.base_layer.learn_seq_shift(primary.seq.wrapping_sub(base.seq), base.timestamp);
        if self.next_seq.is_some_and(|next| primary.seq < next) {
            self.base_layer.passed = self.base_layer.passed.max(base.seq);
        } else if self.base_layer.pairs.len() < MAX_PACKETS {
            self.base_layer.pairs.insert(primary.seq, base.seq);
        }
        self.fill_known(base.timestamp);
    }

    /// Fills in the parts of a picture whose numbers are known.
    fn fill_known(&mut self, timestamp: u32) {
        let (Some(shift), Some(next)) = (self.base_layer.seq_shift(timestamp), self.next_seq) else { return };
        for (base_seq, bytes) in self.base_layer.packets_of(timestamp) {
            let seq = base_seq.wrapping_add(shift);
            if seq >= next && seq - next < MAX_PACKETS as u64 && !self.waiting.contains_key(&seq) {
                self.base_layer.pairs.insert(seq, base_seq);
                self.enqueue_base_layer(seq, bytes);
            } else if self.skipped.remove(&seq) {
                // A player that waits for longer than we do still takes it.
                self.counts.lost -= 1;
                self.counts.filled += 1;
                self.filled.insert(seq);
                self.outputs.extend(self.with_primary_header(seq, bytes));
            }
        }
    }

    /// One of the second stream gets a number of the first.
    fn enqueue_base_layer(&mut self, seq: u64, bytes: Vec<u8>) {
        if let Some(bytes) = self.with_primary_header(seq, bytes) {
            self.waiting.insert(seq, WaitingPacket { bytes, since: self.now, is_base_layer: true });
        }
    }

    fn with_primary_header(&self, seq: u64, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let ((ssrc, payload_type, _), clock_offset) = (self.source?, self.aligner.clock_offset()?);
        let timestamp = RtpPacket::parse(&bytes)?.timestamp.wrapping_add(clock_offset);
        let [.., high, low] = seq.to_be_bytes();
        RtpPacket::rewrite_header(&mut bytes, payload_type, u16::from_be_bytes([high, low]), timestamp, ssrc)
            .then_some(bytes)
    }

    /// Lets go what may.
    fn release(&mut self) {
        let Some(mut next) = self.next_seq else { return };
        loop {
            if let Some(waiting) = self.waiting.remove(&next) {
                self.emit(next, waiting);
                next += 1;
                self.next_seq = Some(next);
                continue;
            }
            let ahead = self.waiting.first_key_value().map(|(seq, waiting)| (*seq, waiting.since));
            let is_up = ahead.is_some_and(|(_, since)| self.now >= since + self.hole_wait());
            if let Some(picture) = self.base_layer.next_access_unit(next, self.aligner.clock_offset()) {
                let is_past = self.latest.is_some_and(|latest| is_after(latest, picture.timestamp));
                if self.now >= picture.since + self.reorder_wait || is_up && is_past {
                    next = self.place_picture(next, ahead.map(|(seq, _)| seq), &picture);
                    continue;
                }
            }
            let Some((seq, _)) = ahead.filter(|_| is_up) else { break };
            self.counts.lost += seq - next;
            self.skipped.extend((next..seq).rev().take(MAX_REMEMBERED));
            next = seq;
            self.next_seq = Some(next);
        }
        self.prune();
    }

    fn emit(&mut self, seq: u64, waiting: WaitingPacket) {
        if let Some(base_seq) = self.base_layer.pairs.remove(&seq) {
            self.base_layer.passed = self.base_layer.passed.max(base_seq);
        }
        if waiting.is_base_layer {
            self.counts.filled += 1;
            self.filled.insert(seq);
        }
        if let Some(rtp) = RtpPacket::parse(&waiting.bytes) {
            self.at_picture_boundary = rtp.marker;
            let layer = Layer::of_h264(rtp.payload).filter(|_| rtp.marker && self.is_h264);
            self.counts.base_pictures += u64::from(layer == Some(Layer::Base));
            self.counts.enhancement_pictures += u64::from(layer == Some(Layer::Enhancement));
        }
        self.outputs.push_back(waiting.bytes);
    }

    /// Puts a picture into the hole at `next`, if it has room; what leaves next then.
    fn place_picture(&mut self, next: u64, ahead: Option<u64>, picture: &AccessUnit) -> u64 {
        // What is missing of the picture before it is to be seen as missing.
        let begin = next + u64::from(!self.at_picture_boundary);
        let length = picture.last - picture.first + 1;
        self.base_layer.passed = picture.last;
        if ahead.is_some_and(|ahead| ahead < begin + length) {
            self.counts.unplaced += 1;
            return next;
        }
        for (seq, base_seq) in (begin..).zip(picture.first..=picture.last) {
            if let Some(packet) = self.base_layer.packets.get(&base_seq) {
                let bytes = packet.bytes.clone();
                self.enqueue_base_layer(seq, bytes);
            }
        }
        if begin > next {
            self.counts.lost += 1;
            self.skipped.insert(next);
        }
        self.next_seq = Some(begin);
        begin
    }

    /// What has left and what is old is not kept.
    fn prune(&mut self) {
        let (passed, now) = (self.base_layer.passed, self.now);
        let old = self.reorder_wait + STREAM_TIMEOUT;
        self.base_layer
            .packets
            .retain(|seq, packet| *seq > passed.saturating_sub(KEPT_PASSED) && now.since(packet.since) < old);
        while self
            .base_layer
            .pairs
            .first_key_value()
            .is_some_and(|(seq, _)| self.next_seq.is_some_and(|next| *seq < next))
        {
            self.base_layer.pairs.pop_first();
        }
        for set in [&mut self.skipped, &mut self.filled] {
            while set.len() > MAX_REMEMBERED {
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
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);
/// chosen: two seconds of 20 Mbit/s, as `stream_aligner` remembers.
const MAX_PACKETS: usize = 4096;
/// Numbers that may still come late. chosen: half a second of 12 Mbit/s.
const MAX_REMEMBERED: usize = 512;
/// Passed packets of the second stream that still may fill what was given up. chosen: a picture of 100 KiB.
const KEPT_PASSED: u64 = 96;
