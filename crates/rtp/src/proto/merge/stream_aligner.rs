//! Aligns two RTP streams by payload: finds which packets of both are the same, and the offset between the streams' clocks.
//!
//! Two sessions with one server begin at random sequence numbers and timestamps (RFC 3550 section 5.1), and the clocks in sender
//! reports agree to some milliseconds only. If the base-layer stream is a part of the primary stream, payloads are equal byte for
//! byte. That alignment is exact, and it also shows whether the second stream is a part of the first at all.
//!
//! A payload that occurs twice in one stream (parameter sets, a still picture) aligns nothing. The clock offset is trusted after
//! [`VOTES`] matching pictures with the same offset; pictures with another offset count against it.

use std::collections::{BTreeMap, VecDeque};

/// Minimum payload length in bytes. Parameter sets and empty pictures are shorter, fragments of pictures are longer.
const MIN_PAYLOAD: usize = 64;
/// Matching pictures before the clock offset is trusted. A single match by chance is improbable already.
const VOTES: u32 = 3;
/// Payloads that are indexed for each stream: two seconds at 20 Mbit/s.
const MAX_PAYLOADS: usize = 4096;
/// Payloads of each stream without any match, after which the streams count as unrelated: about ten seconds of a low-rate stream.
const UNRELATED_AFTER: u64 = 400;

/// Position of a payload in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamPos {
    pub(super) seq: u64,
    pub(super) timestamp: u32,
}

/// Aligner of two streams; see the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub(super) struct StreamAligner {
    primary: PayloadIndex,
    base_layer: PayloadIndex,
    clock_offset: u32,
    votes: u32,
    last_vote: Option<u32>,
}

/// Positions of one stream's payloads by fingerprint. Payloads at two positions have `None`.
#[derive(Clone, Debug, Default)]
struct PayloadIndex {
    positions: BTreeMap<u64, Option<StreamPos>>,
    order: VecDeque<u64>,
    count: u64,
}

impl StreamAligner {
    /// Records a packet of the primary stream. Returns its position in the base-layer stream, if known and in agreement with the
    /// clock offset.
    pub(super) fn on_primary(&mut self, payload: &[u8], pos: StreamPos) -> Option<StreamPos> {
        let fingerprint = self.primary.insert(payload, pos)?;
        let counterpart = self.base_layer.find(fingerprint)?;
        self.vote(pos, counterpart).then_some(counterpart)
    }

    /// Records a packet of the base-layer stream. Returns its position in the primary stream, under the same condition.
    pub(super) fn on_base_layer(&mut self, payload: &[u8], pos: StreamPos) -> Option<StreamPos> {
        let fingerprint = self.base_layer.insert(payload, pos)?;
        let counterpart = self.primary.find(fingerprint)?;
        self.vote(counterpart, pos).then_some(counterpart)
    }

    /// What to add to timestamps of the base-layer stream to get those of the primary stream, once known.
    pub(super) fn clock_offset(&self) -> Option<u32> {
        (self.votes >= VOTES).then_some(self.clock_offset)
    }

    /// Whether enough packets of both streams arrived without a match to conclude that they differ.
    pub(super) fn is_unrelated(&self) -> bool {
        self.votes == 0 && self.primary.count.min(self.base_layer.count) > UNRELATED_AFTER
    }

    /// Forgets the primary stream, because another SSRC replaced it.
    pub(super) fn restart(&mut self) {
        *self = Self { base_layer: std::mem::take(&mut self.base_layer), ..Self::default() };
    }

    fn vote(&mut self, primary: StreamPos, base_layer: StreamPos) -> bool {
        let clock_offset = primary.timestamp.wrapping_sub(base_layer.timestamp);
        // All packets of one picture are one vote.
        if self.last_vote != Some(base_layer.timestamp) {
            self.last_vote = Some(base_layer.timestamp);
            if self.votes == 0 {
                self.clock_offset = clock_offset;
            }
            self.votes =
                if clock_offset == self.clock_offset { (self.votes + 1).min(2 * VOTES) } else { self.votes - 1 };
        }
        self.clock_offset() == Some(clock_offset)
    }
}

impl PayloadIndex {
    fn insert(&mut self, payload: &[u8], pos: StreamPos) -> Option<u64> {
        if payload.len() < MIN_PAYLOAD {
            return None;
        }
        let fingerprint = fingerprint(payload);
        self.count += 1;
        match self.positions.get_mut(&fingerprint) {
            Some(Some(other)) if *other == pos => {}
            Some(known) => *known = None,
            None => {
                self.positions.insert(fingerprint, Some(pos));
                self.order.push_back(fingerprint);
            }
        }
        if self.order.len() > MAX_PAYLOADS
            && let Some(oldest) = self.order.pop_front()
        {
            self.positions.remove(&oldest);
        }
        self.find(fingerprint).map(|_| fingerprint)
    }

    fn find(&self, fingerprint: u64) -> Option<StreamPos> {
        self.positions.get(&fingerprint).copied().flatten()
    }
}

/// 64-bit FNV-1a (draft-eastlake-fnv). A keyed hash is not needed: a server gains nothing by a collision.
fn fingerprint(payload: &[u8]) -> u64 {
    payload.iter().fold(0xcbf2_9ce4_8422_2325, |fingerprint, byte| {
        (fingerprint ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pos(seq: u64, timestamp: u32) -> StreamPos {
        StreamPos { seq, timestamp }
    }

    #[test]
    fn matching_payloads_give_the_clock_offset() {
        let mut aligner = StreamAligner::default();
        for n in 0..3_u8 {
            let (primary, base_layer) = (pos(n.into(), 1000 * u32::from(n)), pos(50, 90 + 1000 * u32::from(n)));
            assert_eq!(aligner.clock_offset(), None);
            assert_eq!(aligner.on_primary(&[n; 64], primary), None);
            assert_eq!(aligner.on_base_layer(&[n; 64], base_layer), (n == 2).then_some(primary));
        }
        assert_eq!(aligner.clock_offset(), Some(90_u32.wrapping_neg()));
        assert_eq!(aligner.on_base_layer(&[9; 64], pos(60, 7)), None);
        assert_eq!(aligner.on_primary(&[9; 64], pos(9, 0)), None, "another clock offset");
    }

    #[test]
    fn repeated_and_short_payloads_align_nothing() {
        let mut aligner = StreamAligner::default();
        for n in 0..9 {
            aligner.on_primary(&[7; 100], pos(n, 100 * n as u32));
            aligner.on_primary(&[n as u8; 63], pos(n, 100 * n as u32));
            assert_eq!(aligner.on_base_layer(&[7; 100], pos(n, 100 * n as u32)), None);
            assert_eq!(aligner.on_base_layer(&[n as u8; 63], pos(n, 100 * n as u32)), None);
        }
        assert_eq!(aligner.clock_offset(), None);
    }

    #[test]
    fn streams_without_common_payloads_become_unrelated() {
        let mut aligner = StreamAligner::default();
        for n in 0..500_u32 {
            let bytes = n.to_be_bytes().repeat(20);
            aligner.on_primary(&bytes, pos(n.into(), n));
            assert_eq!(aligner.is_unrelated(), n > 400);
            aligner.on_base_layer(&bytes[1..], pos(n.into(), n));
        }
    }
}
