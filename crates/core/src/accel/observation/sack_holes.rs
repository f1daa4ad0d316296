//! Tracks SACK holes: the ranges that a receiver's ACKs report as missing.
//!
//! 1. A hole is new if it lies above everything reported before; below that, blocks only merge.
//! 2. A duplicate block (D-SACK, RFC 2883) is no hole.
//! 3. Reordering looks like a hole at first, and closes by itself.
//! 4. Where more than one of seven segments is missing, a queue is too short for a burst: no radio link loses so much
//!    for only a moment.

use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, Seq, SeqRange};

/// Holes of one flow, as one receiver reports them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SackHoles {
    /// One past the highest number that is known to have arrived.
    high: Option<Seq>,
    /// Whether the last ACK reported a hole.
    is_open: bool,
    /// When something was missing last.
    last_open: Option<Instant>,
    /// The number of holes so far.
    count: u64,
    /// Where the last hole of many segments ends.
    long_hole_end: Option<Seq>,
    /// Where the last holes showed, the newest last.
    recent: [Option<Seq>; BURST_HOLES],
}

impl SackHoles {
    /// Returns how many holes this ACK shows for the first time. `segment` is the segment size.
    pub(crate) fn on_ack(&mut self, now: Instant, ack: &Ack, segment: u32) -> u32 {
        let is_ahead = |block: &&SeqRange| !block.is_empty() && block.start.is_after(ack.ack);
        let mut high = self.high.map_or(ack.ack, |high| high.later(ack.ack));
        let (mut new, mut open) = (0, false);
        // A duplicate block comes first (RFC 2883 section 4); the block behind it may contain it.
        let duplicates = usize::from(ack.dsack_range().is_some());
        let blocks = ack.sack_blocks.blocks().get(duplicates..).unwrap_or_default();
        // At most four blocks: take the lowest of the remaining ones until none is left.
        let mut from = ack.ack;
        while let Some(block) =
            lowest_block(blocks.iter().filter(is_ahead).filter(|block| !block.start.is_before(from)))
        {
            open = true;
            if block.start.is_after(high) {
                new += 1;
                let length = i64::from(block.start.offset_from(high));
                if length > i64::from(segment) * LONG_HOLE {
                    self.long_hole_end = Some(block.start);
                }
                self.recent.rotate_left(1);
                self.recent[BURST_HOLES - 1] = Some(block.start);
            }
            high = high.later(block.end);
            from = block.start.plus(1);
        }
        self.high = Some(high);
        self.is_open = open;
        self.long_hole_end = self.long_hole_end.filter(|end| ack.ack.is_before(*end));
        if open {
            self.last_open = Some(now);
        }
        self.count += u64::from(new);
        new
    }

    /// Whether the last holes are so close together that a burst was lost. `segment` is the segment size.
    pub(crate) fn is_burst(&self, segment: u32) -> bool {
        let (Some(first), Some(last)) = (self.recent[0], self.recent[BURST_HOLES - 1]) else { return false };
        let apart = last.offset_from(first);
        apart >= 0 && i64::from(apart) < i64::from(segment) * BURST_SEGMENTS
    }

    /// One past the highest number that is known to have arrived.
    pub(crate) const fn high(&self) -> Option<Seq> {
        self.high
    }

    /// Whether many segments in a row were missing where something is missing still.
    pub(crate) const fn has_long_hole(&self) -> bool {
        self.long_hole_end.is_some()
    }

    /// Whether the last ACK reported a hole.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether nothing has been missing for this time.
    pub(crate) fn closed_for(&self, now: Instant, time: Duration) -> bool {
        !self.is_open && self.last_open.is_none_or(|last| now.since(last) >= time)
    }

    /// When something was missing last.
    pub(crate) const fn last_open(&self) -> Option<Instant> {
        self.last_open
    }

    /// Number of holes since the flow was first seen.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }
}

/// A burst is so many holes within [`BURST_SEGMENTS`]. Our choice: six of forty are 15 %; of 3 % at random, six of
/// forty come once in a thousand times.
const BURST_HOLES: usize = 6;
const BURST_SEGMENTS: i64 = 40;
/// Segments. Our choice: random loss is never as long, and a sender repairs as many at once.
const LONG_HOLE: i64 = 8;

fn lowest_block<'a>(blocks: impl Iterator<Item = &'a SeqRange>) -> Option<SeqRange> {
    blocks.copied().reduce(|a, b| if b.start.is_before(a.start) { b } else { a })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{Flags, SackBlocks};

    fn ack(number: u32, blocks: &[(u32, u32)]) -> Ack {
        let ranges: alloc::vec::Vec<SeqRange> =
            blocks.iter().map(|(a, b)| SeqRange::new(Seq::new(*a), Seq::new(*b))).collect();
        let (seq, ack) = (Seq::new(1), Seq::new(number));
        Ack { seq, ack, window: 9, flags: Flags::ACK, timestamps: None, sack_blocks: SackBlocks::of(&ranges) }
    }

    #[test]
    fn a_missing_flight_is_a_long_hole_until_all_of_it_has_arrived() {
        let mut holes = SackHoles::default();
        holes.on_ack(Instant::ZERO, &ack(100, &[(180, 190)]), 10);
        assert!(!holes.has_long_hole());
        holes.on_ack(Instant::ZERO, &ack(100, &[(300, 310), (180, 190)]), 10);
        assert!(holes.has_long_hole());
        holes.on_ack(Instant::ZERO, &ack(290, &[(300, 310), (320, 340)]), 10);
        assert!(holes.has_long_hole());
        holes.on_ack(Instant::ZERO, &ack(310, &[(320, 340)]), 10);
        assert!(!holes.has_long_hole() && holes.is_open());
    }

    #[test]
    fn a_hole_is_counted_when_it_first_shows() {
        let mut holes = SackHoles::default();
        let now = Instant::ZERO;
        assert_eq!(holes.on_ack(now, &ack(100, &[]), 1), 0);
        assert_eq!(holes.on_ack(now, &ack(100, &[(200, 300)]), 1), 1);
        assert_eq!(holes.on_ack(now, &ack(100, &[(200, 400)]), 1), 0, "the same hole, with more data behind it");
        assert_eq!(holes.on_ack(now, &ack(100, &[(600, 700), (500, 550), (200, 400)]), 1), 2);
        assert_eq!(holes.on_ack(now, &ack(400, &[(500, 700)]), 1), 0, "the first and the third are filled");
        assert!(holes.is_open());
        assert_eq!(holes.on_ack(now, &ack(700, &[]), 1), 0);
        assert!(!holes.is_open());
        assert_eq!((holes.count(), holes.high()), (3, Some(Seq::new(700))));
    }

    #[test]
    fn a_duplicate_block_is_no_hole() {
        let mut holes = SackHoles::default();
        assert_eq!(holes.on_ack(Instant::ZERO, &ack(400, &[(300, 350)]), 1), 0);
        assert_eq!(
            holes.on_ack(Instant::ZERO, &ack(400, &[(520, 530), (500, 600)]), 1),
            1,
            "the first is part of the second"
        );
        assert_eq!(holes.count(), 1);
        assert_eq!(holes.on_ack(Instant::ZERO, &ack(400, &[(500, 600), (500, 600)]), 1), 0);
        assert!(holes.is_open(), "all of it came twice");
    }

    #[test]
    fn six_holes_of_forty_segments_are_a_burst() {
        for (every, dense) in [(2, true), (7, true), (9, false)] {
            let mut holes = SackHoles::default();
            for n in 1..8 {
                let at = n * every * 10;
                holes.on_ack(Instant::ZERO, &ack(0, &[(at, at + 10)]), 1);
            }
            assert_eq!(holes.is_burst(10), dense, "one of {every}");
        }
        assert!(!SackHoles::default().is_burst(10));
    }

    #[test]
    fn holes_are_counted_across_sequence_wraparound() {
        let mut holes = SackHoles::default();
        let start = u32::MAX - 100;
        holes.on_ack(Instant::ZERO, &ack(start, &[]), 1);
        assert_eq!(holes.on_ack(Instant::ZERO, &ack(start, &[(50, 90)]), 1), 1);
        assert_eq!(holes.on_ack(Instant::ZERO, &ack(start, &[(50, 120)]), 1), 0);
    }
}
