//! A range of bytes of the resource.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::units::DataSize;

/// Bytes `start..end` of the resource; `end` is not part of it. Never holds `end < start`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "UncheckedRange")]
pub struct ByteRange {
    /// The first byte's offset.
    pub start: u64,
    /// One past the last byte's offset.
    pub end: u64,
}

/// A span as a log has it, before anybody has looked at it.
#[derive(Deserialize)]
struct UncheckedRange {
    start: u64,
    end: u64,
}

impl TryFrom<UncheckedRange> for ByteRange {
    type Error = &'static str;
    fn try_from(UncheckedRange { start, end }: UncheckedRange) -> Result<Self, Self::Error> {
        if end < start { Err("a span ends before it starts") } else { Ok(Self { start, end }) }
    }
}

impl ByteRange {
    /// Bytes `start..end`; empty if `end` lies before `start`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end: if end < start { start } else { end } }
    }

    /// `len` bytes from `start`.
    pub const fn at(start: u64, len: DataSize) -> Self {
        Self { start, end: start.saturating_add(len.bytes()) }
    }

    /// How many bytes.
    pub const fn len(self) -> DataSize {
        DataSize::from_bytes(self.end - self.start)
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether the byte at `offset` is part of it.
    pub const fn contains(self, offset: u64) -> bool {
        self.start <= offset && offset < self.end
    }

    /// The bytes in both, empty if there are none.
    pub fn intersect(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }
}

impl fmt::Debug for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_before_it_starts_is_empty() {
        assert!(ByteRange::new(5, 3).is_empty());
        assert_eq!(ByteRange::new(0, 10).intersect(ByteRange::new(20, 30)).len(), DataSize::ZERO);
        assert_eq!(ByteRange::new(0, 10).intersect(ByteRange::new(4, 30)), ByteRange::new(4, 10));
    }

    #[test]
    fn a_log_cannot_say_a_span_that_ends_before_it_starts() {
        assert_eq!(ByteRange::try_from(UncheckedRange { start: 3, end: 5 }), Ok(ByteRange::new(3, 5)));
        assert!(ByteRange::try_from(UncheckedRange { start: 5, end: 3 }).is_err());
    }
}
