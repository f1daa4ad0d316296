//! Positions: the sequence numbers of one direction without wraparound, and sets of them.
//!
//! 1. The lower half of a position is the sequence number; the upper half counts wraparounds, from one, so that numbers
//!    before the first one seen have a position, too.
//! 2. A sequence number is resolved relative to a known position, at most half of the sequence space away ([`Seq`]).
//! 3. A set keeps [`MAX_RANGES`] ranges. A range that would be one more is ignored, and so counts as missing.
//!
//! A map was not used: a flow has some tens of holes, and a sorted vector is searched as fast.

use alloc::vec::Vec;

use crate::wire::packet::Seq;

/// The position of the first number that is known.
pub(super) fn position_of(seq: Seq) -> u64 {
    1 << 32 | u64::from(seq.number())
}

/// The position of `seq` that is nearest to `position`.
pub(super) fn nearest_position(position: u64, seq: Seq) -> u64 {
    position.saturating_add_signed(i64::from(seq.offset_from(seq_of(position))))
}

/// The sequence number of a position.
pub(super) fn seq_of(position: u64) -> Seq {
    Seq::new((position & u64::from(u32::MAX)) as u32)
}

/// Positions from `start` to `end`, exclusive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct PosRange {
    /// The first position.
    pub start: u64,
    /// One past the last position.
    pub end: u64,
}

impl PosRange {
    /// From `start` to `end`; empty if `end` is not after it.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end: if end < start { start } else { end } }
    }

    /// The number of positions.
    pub const fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it has no position.
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether this position is in the range.
    pub const fn contains(&self, position: u64) -> bool {
        self.start <= position && position < self.end
    }

    /// Whether all of `other` is in the range.
    pub const fn covers(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The positions that both ranges have.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }
}

/// A set of positions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PosRangeSet {
    /// Sorted; they neither touch nor overlap.
    ranges: Vec<PosRange>,
}

impl PosRangeSet {
    /// Adds a range.
    pub fn insert(&mut self, new: PosRange) {
        if new.is_empty() {
            return;
        }
        let from = self.ranges.partition_point(|range| range.end < new.start);
        let to = self.ranges.partition_point(|range| range.start <= new.end);
        if from == to && self.ranges.len() >= MAX_RANGES {
            return;
        }
        let touched = self.ranges.get(from..to).unwrap_or_default();
        let start = touched.first().map_or(new.start, |range| range.start.min(new.start));
        let end = touched.last().map_or(new.end, |range| range.end.max(new.end));
        self.ranges.splice(from..to, [PosRange::new(start, end)]);
    }

    /// Removes a range.
    pub fn remove(&mut self, removed: PosRange) {
        if removed.is_empty() {
            return;
        }
        let from = self.ranges.partition_point(|range| range.end <= removed.start);
        let to = self.ranges.partition_point(|range| range.start < removed.end);
        let touched = self.ranges.get(from..to).unwrap_or_default();
        let left = touched.first().map(|range| PosRange::new(range.start, removed.start));
        let right = touched.last().map(|range| PosRange::new(removed.end, range.end.max(removed.end)));
        let part = [left, right].into_iter().flatten().filter(|part| !part.is_empty());
        self.ranges.splice(from..to, part.collect::<Vec<_>>());
    }

    /// Removes everything before this position.
    pub fn remove_before(&mut self, position: u64) {
        self.remove(PosRange::new(0, position));
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = PosRange> + '_ {
        self.ranges.iter().copied()
    }

    /// The number of positions in the set.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|each| each.len()).sum()
    }

    /// Whether the set has no position.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether this position is in the set.
    pub fn contains(&self, position: u64) -> bool {
        self.run_from(position) > position
    }

    /// The end of the range that has this position; the position itself if none has.
    pub fn run_from(&self, position: u64) -> u64 {
        self.run_around(position).map_or(position, |run| run.end)
    }

    /// The range that has this position.
    pub fn run_around(&self, position: u64) -> Option<PosRange> {
        let at = self.ranges.partition_point(|each| each.end <= position);
        self.ranges.get(at).copied().filter(|each| each.contains(position))
    }

    /// One past the last position of the set.
    pub fn end(&self) -> Option<u64> {
        self.ranges.last().map(|each| each.end)
    }

    /// What of `within` is not in the set, in order.
    pub fn gaps(&self, within: PosRange) -> Vec<PosRange> {
        let mut gaps = Vec::new();
        let mut at = within.start;
        let from = self.ranges.partition_point(|each| each.end <= within.start);
        for each in self.ranges.get(from..).unwrap_or_default().iter().take_while(|each| each.start < within.end) {
            gaps.push(PosRange::new(at, each.start));
            at = each.end;
        }
        gaps.push(PosRange::new(at, within.end));
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }
}

/// Our choice: at 3 % of loss and a window of 6 MiB there are 130 holes; a peer that makes holes on purpose gets no
/// more.
const MAX_RANGES: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn positions_are_monotonic_across_wraparound() {
        let start = position_of(Seq::new(u32::MAX - 1));
        let later = nearest_position(start, Seq::new(3));
        assert_eq!(later - start, 5);
        assert_eq!((seq_of(start), seq_of(later)), (Seq::new(u32::MAX - 1), Seq::new(3)));
        assert_eq!(nearest_position(later, Seq::new(u32::MAX - 1)), start);
        assert_eq!(
            nearest_position(position_of(Seq::new(0)), Seq::new(u32::MAX)),
            u64::from(u32::MAX),
            "before the first number"
        );
    }

    #[test]
    fn a_set_is_bounded() {
        let mut set = PosRangeSet::default();
        (0..MAX_RANGES as u64 + 50).for_each(|at| set.insert(PosRange::new(at * 2, at * 2 + 1)));
        assert_eq!(set.bytes(), MAX_RANGES as u64);
        set.insert(PosRange::new(1, 2));
        assert_eq!(set.bytes(), MAX_RANGES as u64 + 1, "a range that joins two is always added");
    }

    proptest! {
        #[test]
        fn a_set_equals_a_list_of_flags(ops in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..20), 0..60)) {
            let (mut set, mut flags) = (PosRangeSet::default(), vec![false; 80]);
            for (adds, at, bytes) in ops {
                let stretch = PosRange::new(at, at + bytes);
                if adds { set.insert(stretch) } else { set.remove(stretch) }
                flags[at as usize..(at + bytes) as usize].fill(adds);
                prop_assert_eq!(set.bytes(), flags.iter().filter(|is| **is).count() as u64);
                prop_assert!(set.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
                for position in 0..80 {
                    prop_assert_eq!(set.contains(position), flags[position as usize]);
                }
                let mut absent = [true; 80];
                set.gaps(PosRange::new(10, 70)).iter().for_each(|g| absent[g.start as usize..g.end as usize].fill(false));
                prop_assert!((10..70).all(|at| absent[at] == flags[at]));
                prop_assert_eq!(set.end(), flags.iter().rposition(|is| *is).map(|last| last as u64 + 1));
            }
        }
    }
}
