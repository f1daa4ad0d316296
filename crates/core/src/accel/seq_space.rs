//! Positions: the sequence numbers of one direction laid out in a line, and sets of them.
//!
//! In: numbers that go round, and stretches of them. Out: positions that do not, and what of a line is there.
//!
//! 1. The lower half of a position is the sequence number itself; the upper half counts how often it went round, from
//!    one, so that what lies before the first number seen has a position, too.
//! 2. A number is read near a position that is known, at most half a circle away ([`Seq`]).
//! 3. A set keeps [`MOST`] stretches; what would be one more is not taken in, and so counts as not there.
//!
//! A map was not used: a flow has some tens of holes, and a sorted vector is searched as fast.

use alloc::vec::Vec;

use crate::wire::packet::Seq;

/// The position of the first number that is known.
pub(super) fn first(seq: Seq) -> u64 {
    1 << 32 | u64::from(seq.number())
}

/// The position of `seq` that is nearest to `position`.
pub(super) fn near(position: u64, seq: Seq) -> u64 {
    position.saturating_add_signed(i64::from(seq.offset_from(number(position))))
}

/// The sequence number of a position.
pub(super) fn number(position: u64) -> Seq {
    Seq::new((position & u64::from(u32::MAX)) as u32)
}

/// Positions from `start` up to `end`, which is not part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stretch {
    /// The first position.
    pub start: u64,
    /// One past the last position.
    pub end: u64,
}

impl Stretch {
    /// From `start` up to `end`; empty if that is not after it.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end: if end < start { start } else { end } }
    }

    /// How many positions.
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether this is one of them.
    pub const fn contains(&self, position: u64) -> bool {
        self.start <= position && position < self.end
    }

    /// Whether all of `other` is part of it.
    pub const fn encloses(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// What both have.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }
}

/// A set of positions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stretches {
    /// In order; they neither touch nor overlap.
    all: Vec<Stretch>,
}

impl Stretches {
    /// Adds these.
    pub fn insert(&mut self, new: Stretch) {
        if new.is_empty() {
            return;
        }
        let from = self.all.partition_point(|old| old.end < new.start);
        let to = self.all.partition_point(|old| old.start <= new.end);
        if from == to && self.all.len() >= MOST {
            return;
        }
        let touched = self.all.get(from..to).unwrap_or_default();
        let start = touched.first().map_or(new.start, |old| old.start.min(new.start));
        let end = touched.last().map_or(new.end, |old| old.end.max(new.end));
        self.all.splice(from..to, [Stretch::new(start, end)]);
    }

    /// Takes these out.
    pub fn remove(&mut self, gone: Stretch) {
        if gone.is_empty() {
            return;
        }
        let from = self.all.partition_point(|old| old.end <= gone.start);
        let to = self.all.partition_point(|old| old.start < gone.end);
        let touched = self.all.get(from..to).unwrap_or_default();
        let left = touched.first().map(|old| Stretch::new(old.start, gone.start));
        let right = touched.last().map(|old| Stretch::new(gone.end, old.end.max(gone.end)));
        let rest = [left, right].into_iter().flatten().filter(|rest| !rest.is_empty());
        self.all.splice(from..to, rest.collect::<Vec<_>>());
    }

    /// Takes out everything before this position.
    pub fn remove_before(&mut self, position: u64) {
        self.remove(Stretch::new(0, position));
    }

    /// The stretches, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Stretch> + '_ {
        self.all.iter().copied()
    }

    /// How many positions it has.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|each| each.bytes()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether this is one of them.
    pub fn contains(&self, position: u64) -> bool {
        self.run_from(position) > position
    }

    /// The end of the run that begins at, or has, this position; the position itself if it is not there.
    pub fn run_from(&self, position: u64) -> u64 {
        self.run_around(position).map_or(position, |run| run.end)
    }

    /// The run that has this position.
    pub fn run_around(&self, position: u64) -> Option<Stretch> {
        let at = self.all.partition_point(|each| each.end <= position);
        self.all.get(at).copied().filter(|each| each.contains(position))
    }

    /// One past the last position of the set.
    pub fn end(&self) -> Option<u64> {
        self.all.last().map(|each| each.end)
    }

    /// What of `within` is not there, in order.
    pub fn gaps(&self, within: Stretch) -> Vec<Stretch> {
        let mut gaps = Vec::new();
        let mut at = within.start;
        let from = self.all.partition_point(|each| each.end <= within.start);
        for each in self.all.get(from..).unwrap_or_default().iter().take_while(|each| each.start < within.end) {
            gaps.push(Stretch::new(at, each.start));
            at = each.end;
        }
        gaps.push(Stretch::new(at, within.end));
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }
}

/// chosen: at 3 % of loss and a window of 6 MiB there are 130 holes; a peer that makes holes on purpose gets no more.
const MOST: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn numbers_that_go_round_stay_in_line() {
        let start = first(Seq::new(u32::MAX - 1));
        let later = near(start, Seq::new(3));
        assert_eq!(later - start, 5);
        assert_eq!((number(start), number(later)), (Seq::new(u32::MAX - 1), Seq::new(3)));
        assert_eq!(near(later, Seq::new(u32::MAX - 1)), start);
        assert_eq!(near(first(Seq::new(0)), Seq::new(u32::MAX)), u64::from(u32::MAX), "before the first one");
    }

    #[test]
    fn a_set_has_a_bound() {
        let mut set = Stretches::default();
        (0..MOST as u64 + 50).for_each(|at| set.insert(Stretch::new(at * 2, at * 2 + 1)));
        assert_eq!(set.bytes(), MOST as u64);
        set.insert(Stretch::new(1, 2));
        assert_eq!(set.bytes(), MOST as u64 + 1, "what joins two is always taken");
    }

    proptest! {
        #[test]
        fn a_set_is_a_list_of_flags(ops in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..20), 0..60)) {
            let (mut set, mut flags) = (Stretches::default(), vec![false; 80]);
            for (adds, at, bytes) in ops {
                let stretch = Stretch::new(at, at + bytes);
                if adds { set.insert(stretch) } else { set.remove(stretch) }
                flags[at as usize..(at + bytes) as usize].fill(adds);
                prop_assert_eq!(set.bytes(), flags.iter().filter(|is| **is).count() as u64);
                prop_assert!(set.all.windows(2).all(|pair| pair[0].end < pair[1].start));
                for position in 0..80 {
                    prop_assert_eq!(set.contains(position), flags[position as usize]);
                }
                let mut absent = [true; 80];
                set.gaps(Stretch::new(10, 70)).iter().for_each(|g| absent[g.start as usize..g.end as usize].fill(false));
                prop_assert!((10..70).all(|at| absent[at] == flags[at]));
                prop_assert_eq!(set.end(), flags.iter().rposition(|is| *is).map(|last| last as u64 + 1));
            }
        }
    }
}
