//! Set of bytes, stored as sorted ranges that neither touch nor overlap.
//!
//! Downloads leave few gaps (a handful per connection), so a sorted vector with binary search is faster than a tree.

use alloc::vec::Vec;

use super::ByteRange;
use crate::units::DataSize;

/// Set of byte offsets as sorted, disjoint ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeSet {
    ranges: Vec<ByteRange>,
}

impl RangeSet {
    /// Adds the bytes of `range`. Returns how many of them are new.
    pub fn insert(&mut self, range: ByteRange) -> DataSize {
        if range.is_empty() {
            return DataSize::ZERO;
        }
        let from = self.ranges.partition_point(|s| s.end < range.start);
        let to = self.ranges.partition_point(|s| s.start <= range.end);
        // `from..to`: the stored ranges that overlap or touch the new one. They are merged into one.
        let (mut merged, mut known) = (range, DataSize::ZERO);
        for existing in self.ranges.get(from..to).unwrap_or_default() {
            known += existing.intersect(range).len();
            merged = ByteRange::new(merged.start.min(existing.start), merged.end.max(existing.end));
        }
        match self.ranges.get_mut(from) {
            // The common case: one existing range grows, and the vector keeps its length.
            Some(slot) if to == from + 1 => *slot = merged,
            _ => drop(self.ranges.splice(from..to, [merged])),
        }
        range.len() - known
    }

    /// Removes the bytes of `range`. Returns how many of them were in the set.
    pub fn remove(&mut self, range: ByteRange) -> DataSize {
        if range.is_empty() {
            return DataSize::ZERO;
        }
        let from = self.ranges.partition_point(|s| s.end <= range.start);
        let to = self.ranges.partition_point(|s| s.start < range.end).max(from);
        let (mut removed, mut remainder) = (DataSize::ZERO, Vec::new());
        for existing in self.ranges.get(from..to).unwrap_or_default() {
            removed += existing.intersect(range).len();
            let sides = [
                ByteRange::new(existing.start, range.start.max(existing.start)),
                ByteRange::new(range.end.min(existing.end), existing.end),
            ];
            remainder.extend(sides.into_iter().filter(|side| !side.is_empty()));
        }
        self.ranges.splice(from..to, remainder);
        removed
    }

    /// The bytes that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let with =
            |range: ByteRange| other.iter().map(move |part| part.intersect(range)).filter(|both| !both.is_empty());
        self.iter().flat_map(with).collect()
    }

    /// The ranges, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = ByteRange> + '_ {
        self.ranges.iter().copied()
    }

    /// Number of bytes in the set.
    pub fn len(&self) -> DataSize {
        self.iter().map(ByteRange::len).sum()
    }

    /// Whether the set has no bytes.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// One past the last byte of the range that contains `offset`; `offset` itself if it is not in the set.
    pub fn end_of_run(&self, offset: u64) -> u64 {
        let i = self.ranges.partition_point(|s| s.end <= offset);
        self.ranges.get(i).filter(|s| s.start <= offset).map_or(offset, |s| s.end)
    }

    /// The first run of missing bytes at or after `offset` and before `end`.
    pub fn next_gap(&self, offset: u64, end: u64) -> Option<ByteRange> {
        let start = self.end_of_run(offset);
        let next = self.ranges.partition_point(|s| s.start < start);
        let stop = self.ranges.get(next).map_or(end, |s| s.start.min(end));
        (start < stop).then(|| ByteRange::new(start, stop))
    }

    /// Number of bytes before `end` that are not in the set.
    pub fn missing_before(&self, end: u64) -> DataSize {
        let below: DataSize = self.iter().map(|s| s.intersect(ByteRange::new(0, end)).len()).sum();
        DataSize::from_bytes(end) - below
    }
}

impl FromIterator<ByteRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = ByteRange>>(ranges: I) -> Self {
        let mut set = Self::default();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn set(ranges: &[(u64, u64)]) -> RangeSet {
        ranges.iter().map(|(a, b)| ByteRange::new(*a, *b)).collect()
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut s = set(&[(0, 10), (20, 30)]);
        assert_eq!(s.insert(ByteRange::new(10, 20)).bytes(), 10);
        assert_eq!(s, set(&[(0, 30)]));
        assert_eq!(s.insert(ByteRange::new(5, 35)).bytes(), 5);
        assert_eq!(s.len().bytes(), 35);
    }

    #[test]
    fn bytes_that_are_already_in_the_set_are_not_new() {
        let mut s = set(&[(0, 10), (20, 30), (40, 50)]);
        assert_eq!(s.insert(ByteRange::new(22, 28)).bytes(), 0);
        assert_eq!(s.insert(ByteRange::new(5, 45)).bytes(), 20);
        assert_eq!(s, set(&[(0, 50)]));
    }

    #[test]
    fn the_intersection_has_the_bytes_of_both_sets() {
        let one = set(&[(0, 10), (20, 30), (40, 50)]);
        assert_eq!(one.intersection(&set(&[(5, 25), (45, 60)])), set(&[(5, 10), (20, 25), (45, 50)]));
        assert_eq!(one.intersection(&set(&[(10, 20)])), set(&[]));
    }

    #[test]
    fn gaps_are_found_from_any_offset() {
        let s = set(&[(0, 10), (20, 30)]);
        assert_eq!(s.next_gap(0, 100), Some(ByteRange::new(10, 20)));
        assert_eq!(s.next_gap(15, 100), Some(ByteRange::new(15, 20)));
        assert_eq!(s.next_gap(25, 100), Some(ByteRange::new(30, 100)));
        assert_eq!(s.next_gap(25, 30), None);
        assert_eq!(set(&[]).next_gap(0, 5), Some(ByteRange::new(0, 5)));
        assert_eq!(s.missing_before(25).bytes(), 10);
    }

    #[test]
    fn agrees_with_a_plain_list_of_bytes() {
        let (mut set, mut plain, mut seed) = (RangeSet::default(), vec![false; 300], 12345_u64);
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (start, len) = ((seed >> 33) % 290, (seed >> 53) % 10);
            let new = (start..start + len).filter(|i| !plain[*i as usize]).count() as u64;
            (start..start + len).for_each(|i| plain[i as usize] = true);
            assert_eq!(set.insert(ByteRange::new(start, start + len)).bytes(), new);
            assert!(set.ranges.windows(2).all(|w| w[0].end < w[1].start));
            let gap = (0..300).find(|i| !plain[*i]).map(|i| i as u64);
            assert_eq!(set.next_gap(0, 300).map(|g| g.start), gap);
            if seed % 3 == 0 {
                let (a, l) = ((seed >> 23) % 290, (seed >> 43) % 10);
                let removed_bytes = (a..a + l).filter(|i| plain[*i as usize]).count() as u64;
                (a..a + l).for_each(|i| plain[i as usize] = false);
                assert_eq!(set.remove(ByteRange::new(a, a + l)).bytes(), removed_bytes);
                assert!(set.ranges.windows(2).all(|w| w[0].end < w[1].start) && set.iter().all(|w| !w.is_empty()));
            }
            if seed % 17 == 0 {
                (set, plain) = (RangeSet::default(), vec![false; 300]);
            }
        }
    }
}
