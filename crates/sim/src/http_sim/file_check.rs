//! Is what the client has put together one file?
//!
//! In: bytes of an edition of the server's file, and where the client put them. Out: whether all of them came from
//! one edition and lie where they belong.
//!
//! Contents are not kept: a byte is known by its edition and its place there.

use marline_core::fetch::{ByteRange, RangeSet};
use marline_core::units::DataSize;

/// The client's file.
#[derive(Clone, Debug, Default)]
pub(super) struct FileCheck {
    /// What is in place, for each edition.
    versions: Vec<RangeSet>,
    /// Bytes of a page that is no file's, or of another place of the file.
    misplaced: DataSize,
}

impl FileCheck {
    /// The client puts `from` of this edition at `at`.
    pub(super) fn record(&mut self, version: Option<usize>, range: ByteRange, at: u64) {
        match version {
            Some(edition) if range.start == at => {
                if self.versions.len() <= edition {
                    self.versions.resize_with(edition + 1, RangeSet::default);
                }
                self.versions[edition].insert(range);
            }
            _ => self.misplaced += range.len(),
        }
    }

    /// The client throws everything away.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Different bytes in place.
    pub(super) fn covered(&self) -> DataSize {
        self.versions.iter().map(RangeSet::len).sum()
    }

    /// The edition that the file is, if it is one: every byte from it, every byte there. `sizes` are the editions'.
    pub(super) fn complete_version(&self, sizes: impl IntoIterator<Item = DataSize>) -> Option<usize> {
        let covered = self.covered();
        let bytes_of = |edition: usize| self.versions.get(edition).map_or(DataSize::ZERO, RangeSet::len);
        let mut sizes = sizes.into_iter().enumerate();
        let complete = sizes.find(|(edition, size)| *size == covered && bytes_of(*edition) == covered);
        complete.map(|(edition, _)| edition).filter(|_| self.misplaced.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [DataSize; 2] = [DataSize::from_bytes(10), DataSize::from_bytes(12)];

    #[test]
    fn a_mixture_is_no_file() {
        let mut store = FileCheck::default();
        store.record(Some(0), ByteRange::new(0, 5), 0);
        assert_eq!(store.complete_version(SIZES), None);
        store.record(Some(0), ByteRange::new(5, 10), 5);
        assert_eq!(store.complete_version(SIZES), Some(0));
        store.record(Some(1), ByteRange::new(5, 7), 5);
        assert_eq!(store.complete_version(SIZES), None);
    }

    #[test]
    fn bytes_at_another_place_are_no_file() {
        let mut store = FileCheck::default();
        store.record(Some(0), ByteRange::new(0, 10), 0);
        store.record(Some(0), ByteRange::new(3, 4), 4);
        assert_eq!(store.complete_version(SIZES), None);
    }
}
