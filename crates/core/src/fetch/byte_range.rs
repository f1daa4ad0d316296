//! Half-open range of bytes of a downloaded resource. The fields of HTTP (`Range`, `Content-Range`) name the last byte
//! instead of the end; their text is written and parsed elsewhere.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::units::DataSize;

/// Bytes from `start` up to, but not including, `end`. `start <= end` always holds: the constructors ensure it,
/// deserialization rejects other values, and code that writes the fields must keep it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "UncheckedRange")]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// A deserialized range before it is validated. Ranges are read from decision logs (JSON records of a run's inputs and
/// decisions) when the run is replayed.
#[derive(Deserialize)]
struct UncheckedRange {
    start: u64,
    end: u64,
}

impl TryFrom<UncheckedRange> for ByteRange {
    type Error = &'static str;
    fn try_from(UncheckedRange { start, end }: UncheckedRange) -> Result<Self, Self::Error> {
        if end < start { Err("a byte range ends before it starts") } else { Ok(Self { start, end }) }
    }
}

impl ByteRange {
    /// Bytes `start..end`; empty if `end` is before `start`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end: if end < start { start } else { end } }
    }

    /// `len` bytes from `start` on.
    pub const fn at(start: u64, len: DataSize) -> Self {
        Self { start, end: start.saturating_add(len.bytes()) }
    }

    /// Number of bytes.
    pub const fn len(self) -> DataSize {
        DataSize::from_bytes(self.end - self.start)
    }

    /// Whether the range has no bytes.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether the byte at `offset` is in the range.
    pub const fn contains(self, offset: u64) -> bool {
        self.start <= offset && offset < self.end
    }

    /// The bytes in both ranges; empty if there are none.
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
    fn a_range_that_ends_before_its_start_is_empty() {
        assert!(ByteRange::new(5, 3).is_empty());
        assert_eq!(ByteRange::new(0, 10).intersect(ByteRange::new(20, 30)).len(), DataSize::ZERO);
        assert_eq!(ByteRange::new(0, 10).intersect(ByteRange::new(4, 30)), ByteRange::new(4, 10));
    }

    #[test]
    fn deserialization_rejects_a_range_that_ends_before_its_start() {
        assert_eq!(ByteRange::try_from(UncheckedRange { start: 3, end: 5 }), Ok(ByteRange::new(3, 5)));
        assert!(ByteRange::try_from(UncheckedRange { start: 5, end: 3 }).is_err());
    }
}
