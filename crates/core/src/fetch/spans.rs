//! A set of bytes, kept as spans that neither touch nor overlap.
//!
//! Downloads leave few holes (a handful for each connection), so a sorted vector with binary search beats any tree.

use alloc::vec::Vec;

use super::Span;
use crate::units::DataSize;

/// Bytes of the resource, in order, without overlap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpanSet {
    spans: Vec<Span>,
}

impl SpanSet {
    /// Adds the bytes of `span` and tells how many of them are new.
    pub fn insert(&mut self, span: Span) -> DataSize {
        if span.is_empty() {
            return DataSize::ZERO;
        }
        let from = self.spans.partition_point(|s| s.end < span.start);
        let to = self.spans.partition_point(|s| s.start <= span.end);
        let (mut merged, mut had) = (span, DataSize::ZERO);
        for old in self.spans.get(from..to).unwrap_or_default() {
            had += old.intersect(span).len();
            merged = Span::new(merged.start.min(old.start), merged.end.max(old.end));
        }
        match self.spans.get_mut(from) {
            // The common case: the span before grows.
            Some(slot) if to == from + 1 => *slot = merged,
            _ => drop(self.spans.splice(from..to, [merged])),
        }
        span.len() - had
    }

    /// Takes the bytes of `span` out of the set and tells how many of them were in it.
    pub fn remove(&mut self, span: Span) -> DataSize {
        if span.is_empty() {
            return DataSize::ZERO;
        }
        let from = self.spans.partition_point(|s| s.end <= span.start);
        let to = self.spans.partition_point(|s| s.start < span.end).max(from);
        let (mut had, mut rest) = (DataSize::ZERO, Vec::new());
        for old in self.spans.get(from..to).unwrap_or_default() {
            had += old.intersect(span).len();
            let sides =
                [Span::new(old.start, span.start.max(old.start)), Span::new(span.end.min(old.end), old.end)];
            rest.extend(sides.into_iter().filter(|side| !side.is_empty()));
        }
        self.spans.splice(from..to, rest);
        had
    }

    /// The bytes that are in both sets.
    pub fn common(&self, other: &Self) -> Self {
        let with = |span: Span| other.iter().map(move |of| of.intersect(span)).filter(|both| !both.is_empty());
        self.iter().flat_map(with).collect()
    }

    /// The spans, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Span> + '_ {
        self.spans.iter().copied()
    }

    /// How many bytes are in the set.
    pub fn len(&self) -> DataSize {
        self.iter().map(Span::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// One past the last byte of the run that begins at `offset`; `offset` itself if that byte is missing.
    pub fn run_from(&self, offset: u64) -> u64 {
        let i = self.spans.partition_point(|s| s.end <= offset);
        self.spans.get(i).filter(|s| s.start <= offset).map_or(offset, |s| s.end)
    }

    /// The first run of missing bytes at or after `offset`, and before `end`.
    pub fn gap(&self, offset: u64, end: u64) -> Option<Span> {
        let start = self.run_from(offset);
        let next = self.spans.partition_point(|s| s.start < start);
        let stop = self.spans.get(next).map_or(end, |s| s.start.min(end));
        (start < stop).then(|| Span::new(start, stop))
    }

    /// The bytes before `end` that are not in the set.
    pub fn missing(&self, end: u64) -> DataSize {
        let below: DataSize = self.iter().map(|s| s.intersect(Span::new(0, end)).len()).sum();
        DataSize::from_bytes(end) - below
    }
}

impl FromIterator<Span> for SpanSet {
    fn from_iter<I: IntoIterator<Item = Span>>(spans: I) -> Self {
        let mut set = Self::default();
        for span in spans {
            set.insert(span);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn set(spans: &[(u64, u64)]) -> SpanSet {
        spans.iter().map(|(a, b)| Span::new(*a, *b)).collect()
    }

    #[test]
    fn neighbours_become_one() {
        let mut s = set(&[(0, 10), (20, 30)]);
        assert_eq!(s.insert(Span::new(10, 20)).bytes(), 10);
        assert_eq!(s, set(&[(0, 30)]));
        assert_eq!(s.insert(Span::new(5, 35)).bytes(), 5);
        assert_eq!(s.len().bytes(), 35);
    }

    #[test]
    fn what_is_there_already_is_not_new() {
        let mut s = set(&[(0, 10), (20, 30), (40, 50)]);
        assert_eq!(s.insert(Span::new(22, 28)).bytes(), 0);
        assert_eq!(s.insert(Span::new(5, 45)).bytes(), 20);
        assert_eq!(s, set(&[(0, 50)]));
    }

    #[test]
    fn what_two_sets_share_is_in_both() {
        let one = set(&[(0, 10), (20, 30), (40, 50)]);
        assert_eq!(one.common(&set(&[(5, 25), (45, 60)])), set(&[(5, 10), (20, 25), (45, 50)]));
        assert_eq!(one.common(&set(&[(10, 20)])), set(&[]));
    }

    #[test]
    fn gaps_are_found_from_any_offset() {
        let s = set(&[(0, 10), (20, 30)]);
        assert_eq!(s.gap(0, 100), Some(Span::new(10, 20)));
        assert_eq!(s.gap(15, 100), Some(Span::new(15, 20)));
        assert_eq!(s.gap(25, 100), Some(Span::new(30, 100)));
        assert_eq!(s.gap(25, 30), None);
        assert_eq!(set(&[]).gap(0, 5), Some(Span::new(0, 5)));
        assert_eq!(s.missing(25).bytes(), 10);
    }

    #[test]
    fn agrees_with_a_plain_list_of_bytes() {
        let (mut s, mut plain, mut x) = (SpanSet::default(), vec![false; 300], 12345_u64);
        for _ in 0..2000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (a, l) = ((x >> 33) % 290, (x >> 53) % 10);
            let new = (a..a + l).filter(|i| !plain[*i as usize]).count() as u64;
            (a..a + l).for_each(|i| plain[i as usize] = true);
            assert_eq!(s.insert(Span::new(a, a + l)).bytes(), new);
            assert!(s.spans.windows(2).all(|w| w[0].end < w[1].start));
            let gap = (0..300).find(|i| !plain[*i]).map(|i| i as u64);
            assert_eq!(s.gap(0, 300).map(|g| g.start), gap);
            if x % 3 == 0 {
                let (a, l) = ((x >> 23) % 290, (x >> 43) % 10);
                let had = (a..a + l).filter(|i| plain[*i as usize]).count() as u64;
                (a..a + l).for_each(|i| plain[i as usize] = false);
                assert_eq!(s.remove(Span::new(a, a + l)).bytes(), had);
                assert!(s.spans.windows(2).all(|w| w[0].end < w[1].start) && s.iter().all(|w| !w.is_empty()));
            }
            if x % 17 == 0 {
                (s, plain) = (SpanSet::default(), vec![false; 300]);
            }
        }
    }
}
