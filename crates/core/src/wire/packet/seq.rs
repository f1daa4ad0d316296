//! Sequence numbers and timestamps of TCP: 32-bit numbers that wrap around.
//!
//! 1. Arithmetic is modulo 2³² (RFC 9293 §3.4; for timestamps RFC 7323 §5.2), so nothing overflows.
//! 2. A number less than 2³¹ ahead is later. Of two numbers exactly 2³¹ apart, each is before the other, as in the
//!    kernel; no TCP window is that large (RFC 7323 §2.2).
//! 3. The order is therefore not transitive. There is no `Ord`, and these types cannot be keys of a sorted map.

/// A TCP sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Seq(u32);

impl Seq {
    /// Creates a sequence number from a header field.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The value for a header field.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The number `bytes` further on.
    pub const fn plus(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// The number `bytes` before.
    pub const fn minus(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }

    /// Bytes from `earlier` forward to `self`. If `earlier` is in fact later, the result is close to 2³².
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Signed distance from `origin` to `self` in the shorter direction: negative if `self` is before `origin`.
    pub const fn offset_from(self, origin: Self) -> i32 {
        self.since(origin).cast_signed()
    }

    /// Whether `self` comes before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.offset_from(other) < 0
    }

    /// Whether `self` comes after `other`.
    pub const fn is_after(self, other: Self) -> bool {
        other.is_before(self)
    }

    /// The later of the two numbers.
    pub const fn later(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }
}

/// A half-open range of sequence numbers: a segment's bytes, a SACK block, a hole.
///
/// A range whose end is not after its start is empty, whatever the numbers are; hostile SACK blocks may be like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SeqRange {
    /// First number of the range.
    pub start: Seq,
    /// One past the last number.
    pub end: Seq,
}

impl SeqRange {
    /// The range from `start` to before `end`.
    pub const fn new(start: Seq, end: Seq) -> Self {
        Self { start, end }
    }

    /// The range of `bytes` numbers from `start` on.
    pub const fn with_len(start: Seq, bytes: u32) -> Self {
        Self { start, end: start.plus(bytes) }
    }

    /// Number of sequence numbers in the range.
    pub const fn len(&self) -> u32 {
        if self.start.is_before(self.end) && !self.end.is_before(self.start) {
            self.end.since(self.start)
        } else {
            0
        }
    }

    /// Whether the range contains no number.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the range contains `seq`.
    pub const fn contains(&self, seq: Seq) -> bool {
        seq.since(self.start) < self.len()
    }

    /// Whether the range contains all numbers of `inner`. An empty range is contained in none.
    pub const fn contains_range(&self, inner: &Self) -> bool {
        !inner.is_empty() && self.contains(inner.start) && self.contains(inner.end.minus(1))
    }
}

/// A TCP timestamp (RFC 7323 §3): ticks of the sender's clock. The duration of a tick is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct TcpTimestamp(u32);

impl TcpTimestamp {
    /// Creates a timestamp from an option field.
    pub const fn new(ticks: u32) -> Self {
        Self(ticks)
    }

    /// The value for an option field.
    pub const fn ticks(self) -> u32 {
        self.0
    }

    /// The timestamp `ticks` later.
    pub const fn plus(self, ticks: u32) -> Self {
        Self(self.0.wrapping_add(ticks))
    }

    /// Signed number of ticks since `earlier`: negative if `self` is older.
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Whether `self` is older than `other`, as PAWS defines it (RFC 7323 §5.2).
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HALF: u32 = 1 << 31;

    #[test]
    fn numbers_wrap_around() {
        let last = Seq::new(u32::MAX);
        assert!(last.is_before(Seq::new(0)) && Seq::new(0).is_after(last));
        assert_eq!(last.plus(1), Seq::new(0));
        assert_eq!(Seq::new(5).since(last), 6);
        assert_eq!(last.offset_from(Seq::new(5)), -6);
        assert_eq!(last.later(Seq::new(3)), Seq::new(3));
        assert!(TcpTimestamp::new(u32::MAX).is_before(TcpTimestamp::new(1)));
    }

    #[test]
    fn numbers_half_the_space_apart_are_each_before_the_other() {
        let (here, there) = (Seq::new(7), Seq::new(7).plus(HALF));
        assert!(here.is_before(there) && there.is_before(here));
        assert!(here.is_before(there.minus(1)) && !there.minus(1).is_before(here));
        assert!(SeqRange::new(here, there).is_empty());
    }

    #[test]
    fn a_range_may_wrap_around() {
        let span = SeqRange::new(Seq::new(u32::MAX - 1), Seq::new(2));
        assert_eq!(span.len(), 4);
        assert!(span.contains(Seq::new(0)) && !span.contains(Seq::new(2)));
        assert!(
            span.contains_range(&SeqRange::with_len(Seq::new(0), 2))
                && !span.contains_range(&SeqRange::with_len(Seq::new(0), 3))
        );
    }

    #[test]
    fn a_range_with_its_end_before_its_start_is_empty() {
        let span = SeqRange::new(Seq::new(9), Seq::new(3));
        assert!(span.is_empty() && !span.contains(Seq::new(5)) && !span.contains_range(&span));
    }

    proptest! {
        #[test]
        fn order_and_distance_agree(start: u32, by in 1..HALF) {
            let (a, b) = (Seq::new(start), Seq::new(start).plus(by));
            prop_assert!(a.is_before(b) && b.is_after(a) && !b.is_before(a) && !a.is_after(b));
            prop_assert_eq!((b.since(a), b.minus(by)), (by, a));
            prop_assert_eq!((a.later(b), b.later(a)), (b, b));
            prop_assert_eq!(SeqRange::new(a, b).len(), by);
        }

        #[test]
        fn ranges_are_sets_of_their_numbers(start: u32, a in 0_u32..40, n in 0_u32..40, b in 0_u32..40, m in 0_u32..40) {
            let at = |from: u32, bytes: u32| SeqRange::with_len(Seq::new(start).plus(from), bytes);
            let (one, two) = (at(a, n), at(b, m));
            let holds = |span: SeqRange| (0_u32..80).filter(|i| span.contains(Seq::new(start).plus(*i))).collect::<alloc::vec::Vec<_>>();
            let (first, second) = (holds(one), holds(two));
            prop_assert_eq!(first.len(), n as usize);
            prop_assert_eq!(one.contains_range(&two), m > 0 && second.iter().all(|i| first.contains(i)));
        }
    }
}
