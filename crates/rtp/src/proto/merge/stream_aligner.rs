//! The same content in two streams, found by what it is.
//!
//! In: payloads of both, with their numbers and times. Out: pairs, and how far apart the streams' clocks are.
//!
//! 1. Two sessions with one server begin at random numbers and times (RFC 3550 §5.1), and clocks of senders' reports agree no
//!    better than to some milliseconds. Where the second stream is a layer of the first, payloads are the same to the byte:
//!    that is exact, and says by itself whether it is a layer of it.
//! 2. What occurs twice in one stream (parameter sets, a picture that stands still) tells nothing.
//! 3. Clocks are believed after [`VOTES`] pairs of different times that agree; pairs that disagree weigh against it.

use std::collections::{BTreeMap, VecDeque};

/// Shorter payloads are not looked at. chosen: parameter sets and empty pictures are shorter, parts of pictures are not.
const MIN_PAYLOAD: usize = 64;
/// chosen: chance agrees not even once.
const VOTES: u32 = 3;
/// Payloads that are remembered of each stream. chosen: two seconds of 20 Mbit/s.
const MAX_PAYLOADS: usize = 4096;
/// Payloads of both streams without a pair that agrees, after which they are called unrelated. chosen: some ten seconds of a
/// thin stream.
const UNRELATED_AFTER: u64 = 400;

/// Where a payload stood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamPos {
    pub(super) seq: u64,
    pub(super) timestamp: u32,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct StreamAligner {
    primary: PayloadIndex,
    base_layer: PayloadIndex,
    clock_offset: u32,
    votes: u32,
    last_vote: Option<u32>,
}

/// Payloads of one stream by their print; those that stood in two places have none.
#[derive(Clone, Debug, Default)]
struct PayloadIndex {
    positions: BTreeMap<u64, Option<StreamPos>>,
    order: VecDeque<u64>,
    count: u64,
}

impl StreamAligner {
    /// One of the first stream; where it stood in the second, if that is known and agrees.
    pub(super) fn on_primary(&mut self, payload: &[u8], pos: StreamPos) -> Option<StreamPos> {
        let fingerprint = self.primary.insert(payload, pos)?;
        let counterpart = self.base_layer.find(fingerprint)?;
        self.vote(pos, counterpart).then_some(counterpart)
    }

    /// One of the second stream; where it stood in the first.
    pub(super) fn on_base_layer(&mut self, payload: &[u8], pos: StreamPos) -> Option<StreamPos> {
        let fingerprint = self.base_layer.insert(payload, pos)?;
        let counterpart = self.primary.find(fingerprint)?;
        self.vote(counterpart, pos).then_some(counterpart)
    }

    /// What is to be added to times of the second stream to have the first's; none: not known yet.
    pub(super) fn clock_offset(&self) -> Option<u32> {
        (self.votes >= VOTES).then_some(self.clock_offset)
    }

    /// Whether enough of both was seen to say that they are not of one content.
    pub(super) fn is_unrelated(&self) -> bool {
        self.votes == 0 && self.primary.count.min(self.base_layer.count) > UNRELATED_AFTER
    }

    /// Forgets the first stream: another has taken its place.
    pub(super) fn restart(&mut self) {
        *self = Self { base_layer: std::mem::take(&mut self.base_layer), ..Self::default() };
    }

    fn vote(&mut self, primary: StreamPos, base_layer: StreamPos) -> bool {
        let clock_offset = primary.timestamp.wrapping_sub(base_layer.timestamp);
        // Parts of one picture are one vote.
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

/// FNV-1a (draft-eastlake-fnv) with 64 bits: both streams are one server's, who has nothing to gain from a collision.
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
    fn pairs_that_agree_tell_how_far_clocks_are_apart() {
        let mut aligner = StreamAligner::default();
        for n in 0..3_u8 {
            let (primary, base_layer) = (pos(n.into(), 1000 * u32::from(n)), pos(50, 90 + 1000 * u32::from(n)));
            assert_eq!(aligner.clock_offset(), None);
            assert_eq!(aligner.on_primary(&[n; 64], primary), None);
            assert_eq!(aligner.on_base_layer(&[n; 64], base_layer), (n == 2).then_some(primary));
        }
        assert_eq!(aligner.clock_offset(), Some(90_u32.wrapping_neg()));
        assert_eq!(aligner.on_base_layer(&[9; 64], pos(60, 7)), None);
        assert_eq!(aligner.on_primary(&[9; 64], pos(9, 0)), None, "it disagrees");
    }

    #[test]
    fn what_occurs_twice_or_is_short_tells_nothing() {
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
    fn other_content_is_unrelated_in_the_end() {
        let mut aligner = StreamAligner::default();
        for n in 0..500_u32 {
            let bytes = n.to_be_bytes().repeat(20);
            aligner.on_primary(&bytes, pos(n.into(), n));
            assert_eq!(aligner.is_unrelated(), n > 400);
            aligner.on_base_layer(&bytes[1..], pos(n.into(), n));
        }
    }
}
