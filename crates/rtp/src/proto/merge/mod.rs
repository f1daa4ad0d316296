//! Merges two RTP streams into one: the stream of the primary link, and its base layer over the secondary link (Super-aggregation
//! section 5.1.3). The output has the sequence numbers, timestamps and SSRC of the primary stream.
//!
//! 1. Packets of the primary link leave at once. Packets behind a hole wait for the base layer, for `reorder_wait` at most, and not
//!    at all while the secondary link delivers nothing that could fill the hole.
//! 2. `stream_aligner` aligns the streams by payload. Where the primary link delivered one packet of a picture, the other packets
//!    of that picture have known sequence numbers and are filled in exactly.
//! 3. A picture of which the primary link delivered nothing fills a hole that is large enough, in the order of the base-layer
//!    stream. It must be complete, and `reorder_wait` must have passed since it arrived, or the primary stream must have
//!    continued past it.
//! 4. What the base layer cannot fill stays a gap in the sequence numbers, so that the player sees losses as losses.
//! 5. All buffers are bounded in size and age.

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

/// Merger of one track; see the [module documentation](self).
#[derive(Clone, Debug)]
pub struct StreamMerger {
    reorder_wait: Duration,
    is_h264: bool,
    now: Instant,
    /// SSRC and payload type of the primary stream, and when its last packet arrived.
    source: Option<(u32, u8, Instant)>,
    ext_seq: ExtendedSeq,
    /// Extended sequence number that leaves next.
    next_seq: Option<u64>,
    /// Packets behind a hole, by extended sequence number.
    waiting: BTreeMap<u64, WaitingPacket>,
    /// Latest timestamp of the primary stream.
    latest: Option<u32>,
    /// Whether the packet that left last ended a picture.
    at_picture_boundary: bool,
    base_layer: BaseLayerBuffer,
    aligner: StreamAligner,
    /// Sequence numbers that were given up as lost.
    skipped: BTreeSet<u64>,
    /// Sequence numbers that the base layer has filled.
    filled: BTreeSet<u64>,
    counts: MergeCounts,
    outputs: VecDeque<Vec<u8>>,
}

/// A packet behind a hole.
#[derive(Clone, Debug)]
struct WaitingPacket {
    bytes: Vec<u8>,
    since: Instant,
    is_base_layer: bool,
}

/// Counters of one track.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeCounts {
    /// Packets from the primary link.
    pub primary: u64,
    /// Base-layer packets from the secondary link.
    pub base_layer: u64,
    /// Packets in the output that only the secondary link delivered. May fall when the primary link delivers one late.
    pub filled: u64,
    /// Sequence numbers missing in the output. May fall when a packet arrives late.
    pub lost: u64,
    /// Pictures of the base layer that were larger than the hole.
    pub unplaced: u64,
    /// H.264 pictures of the base layer in the output, counted by the last packet of each.
    pub base_pictures: u64,
    /// H.264 pictures of the enhancement layer in the output, counted in the same way.
    pub enhancement_pictures: u64,
}

/// Relation of the base-layer stream to the primary stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlignmentState {
    /// No base-layer packet has arrived in the last five seconds.
    NoData,
    /// No common payload was found yet.
    Searching,
    /// The streams are aligned, and the base layer fills holes.
    Aligned,
    /// The streams have no payload in common: it is another encoding.
    Unrelated,
}

impl StreamMerger {
    /// `reorder_wait` is how long packets behind a hole wait for the base layer. `is_h264` enables counting pictures by layer.
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

    /// Handles a datagram from the primary link.
    pub fn on_primary(&mut self, now: Instant, bytes: Vec<u8>) {
        self.now = self.now.max(now);
        let Some(rtp) = RtpPacket::parse(&bytes) else {
            self.outputs.push_back(bytes);
            return;
        };
        match self.source {
            Some((ssrc, ..)) if ssrc == rtp.ssrc => {}
            // Retransmissions and FEC may use an SSRC of their own: they pass. After a timeout, another SSRC is a new stream.
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

    /// Handles a datagram of the base layer from the secondary link.
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

    /// Releases packets whose wait is over.
    pub fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.release();
    }

    /// When to call [`tick`](Self::tick) next.
    pub fn deadline(&self) -> Option<Instant> {
        let next = self.next_seq?;
        let ahead = self.waiting.values().next().map(|waiting| waiting.since + self.hole_wait());
        let picture = self
            .base_layer
            .next_access_unit(next, self.aligner.clock_offset())
            .map(|picture| picture.since + self.reorder_wait);
        [ahead, picture].into_iter().flatten().min()
    }

    /// Next packet for the player.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        self.outputs.pop_front()
    }

    /// Counters so far.
    pub const fn counts(&self) -> MergeCounts {
        self.counts
    }

    /// Relation of the base-layer stream to the primary stream.
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

    /// How long a packet waits behind a hole.
    fn hole_wait(&self) -> Duration {
        let may_be_filled = self.aligner.clock_offset().is_some() && self.has_base_layer();
        if may_be_filled { self.reorder_wait } else { Duration::ZERO }
    }

    /// Begins with a new primary stream. Packets of the old one leave at once.
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

    /// Records that packets of both streams have the same payload.
    fn record_pair(&mut self, primary: StreamPos, base: StreamPos) {
        self.base_layer.learn_seq_shift(primary.seq.wrapping_sub(base.seq), base.timestamp);
        if self.next_seq.is_some_and(|next| primary.seq < next) {
            self.base_layer.passed = self.base_layer.passed.max(base.seq);
        } else if self.base_layer.pairs.len() < MAX_PACKETS {
            self.base_layer.pairs.insert(primary.seq, base.seq);
        }
        self.fill_known(base.timestamp);
    }

    /// Fills in the packets of a picture whose sequence numbers are known.
    fn fill_known(&mut self, timestamp: u32) {
        let (Some(shift), Some(next)) = (self.base_layer.seq_shift(timestamp), self.next_seq) else { return };
        for (base_seq, bytes) in self.base_layer.packets_of(timestamp) {
            let seq = base_seq.wrapping_add(shift);
            if seq >= next && seq - next < MAX_PACKETS as u64 && !self.waiting.contains_key(&seq) {
                self.base_layer.pairs.insert(seq, base_seq);
                self.enqueue_base_layer(seq, bytes);
            } else if self.skipped.remove(&seq) {
                // Too late for the order, but players with a longer reordering buffer still use it.
                self.counts.lost -= 1;
                self.counts.filled += 1;
                self.filled.insert(seq);
                self.outputs.extend(self.with_primary_header(seq, bytes));
            }
        }
    }

    /// Queues a base-layer packet under a sequence number of the primary stream.
    fn enqueue_base_layer(&mut self, seq: u64, bytes: Vec<u8>) {
        if let Some(bytes) = self.with_primary_header(seq, bytes) {
            self.waiting.insert(seq, WaitingPacket { bytes, since: self.now, is_base_layer: true });
        }
    }

    /// Rewrites a base-layer packet to the header of the primary stream.
    fn with_primary_header(&self, seq: u64, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let ((ssrc, payload_type, _), clock_offset) = (self.source?, self.aligner.clock_offset()?);
        let timestamp = RtpPacket::parse(&bytes)?.timestamp.wrapping_add(clock_offset);
        let [.., high, low] = seq.to_be_bytes();
        RtpPacket::rewrite_header(&mut bytes, payload_type, u16::from_be_bytes([high, low]), timestamp, ssrc)
            .then_some(bytes)
    }

    /// Moves all packets that may leave to the output.
    ///
    /// Each round does the first of these that applies: emit the next packet in order; place a complete picture of the base layer
    /// into the hole; give up the hole, because the packet behind it has waited long enough.
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
            let wait_is_over = ahead.is_some_and(|(_, since)| self.now >= since + self.hole_wait());
            if let Some(picture) = self.base_layer.next_access_unit(next, self.aligner.clock_offset()) {
                let is_past = self.latest.is_some_and(|latest| is_after(latest, picture.timestamp));
                if self.now >= picture.since + self.reorder_wait || wait_is_over && is_past {
                    next = self.place_picture(next, ahead.map(|(seq, _)| seq), &picture);
                    continue;
                }
            }
            let Some((seq, _)) = ahead.filter(|_| wait_is_over) else { break };
            self.counts.lost += seq - next;
            self.skipped.extend((next..seq).rev().take(MAX_REMEMBERED));
            next = seq;
            self.next_seq = Some(next);
        }
        self.prune();
    }

    /// Outputs one packet and updates the counters.
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

    /// Places a picture into the hole at `next`, if it fits before the packet `ahead`. Returns the sequence number that leaves next.
    fn place_picture(&mut self, next: u64, ahead: Option<u64>, picture: &AccessUnit) -> u64 {
        // If the previous picture has no end, one number stays free, so that the player sees that picture as incomplete.
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

    /// Drops packets that were merged or are too old, and bounds the sets of sequence numbers.
    fn prune(&mut self) {
        let (passed, now) = (self.base_layer.passed, self.now);
        let max_age = self.reorder_wait + STREAM_TIMEOUT;
        self.base_layer.packets.retain(|seq, packet| {
            *seq > passed.saturating_sub(MAX_RETAINED_PACKETS) && now.since(packet.since) < max_age
        });
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

/// Whether timestamp `one` is later than `other`. Timestamps wrap.
fn is_after(one: u32, other: u32) -> bool {
    (1..1 << 31).contains(&one.wrapping_sub(other))
}

/// A stream without packets for this long has ended. Longer than pauses between pictures, even of slide shows.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);
/// Packets per buffer: two seconds at 20 Mbit/s, as in `stream_aligner`.
const MAX_PACKETS: usize = 4096;
/// Sequence numbers for which late packets are still accepted: half a second at 12 Mbit/s.
const MAX_REMEMBERED: usize = 512;
/// Merged base-layer packets that are kept, since they may still fill sequence numbers that were given up: a picture of 100 KiB.
const MAX_RETAINED_PACKETS: u64 = 96;
