//! Checks that the client has assembled one file from one version.
//!
//! It records which bytes of which version of the server's file the client has stored where. Contents are not
//! stored: a byte is identified by its version and its offset.

use marline_core::fetch::{ByteRange, RangeSet};
use marline_core::units::DataSize;

/// What the client has stored, by version and offset.
#[derive(Clone, Debug, Default)]
pub(super) struct FileCheck {
    /// Ranges stored at the right offset, for each version.
    versions: Vec<RangeSet>,
    /// Bytes of other pages, or stored at a wrong offset.
    misplaced: DataSize,
}

impl FileCheck {
    /// The client stores `range` of this version at offset `at`.
    pub(super) fn record(&mut self, version: Option<usize>, range: ByteRange, at: u64) {
        match version {
            Some(version) if range.start == at => {
                if self.versions.len() <= version {
                    self.versions.resize_with(version + 1, RangeSet::default);
                }
                self.versions[version].insert(range);
            }
            _ => self.misplaced += range.len(),
        }
    }

    /// The client discards everything, as after a change of the file.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Number of distinct bytes stored at the right offset.
    pub(super) fn covered(&self) -> DataSize {
        self.versions.iter().map(RangeSet::len).sum()
    }

    /// The version that the file is, if it consists of all bytes of one version and nothing else. `sizes` has the
    /// size of each version.
    pub(super) fn complete_version(&self, sizes: impl IntoIterator<Item = DataSize>) -> Option<usize> {
        let covered = self.covered();
        let bytes_of = |version: usize| self.versions.get(version).map_or(DataSize::ZERO, RangeSet::len);
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
    fn bytes_of_two_versions_are_no_file() {
        let mut file_check = FileCheck::default();
        file_check.record(Some(0), ByteRange::new(0, 5), 0);
        assert_eq!(file_check.complete_version(SIZES), None);
        file_check.record(Some(0), ByteRange::new(5, 10), 5);
        assert_eq!(file_check.complete_version(SIZES), Some(0));
        file_check.record(Some(1), ByteRange::new(5, 7), 5);
        assert_eq!(file_check.complete_version(SIZES), None);
    }

    #[test]
    fn bytes_at_a_wrong_offset_are_no_file() {
        let mut file_check = FileCheck::default();
        file_check.record(Some(0), ByteRange::new(0, 10), 0);
        file_check.record(Some(0), ByteRange::new(3, 4), 4);
        assert_eq!(file_check.complete_version(SIZES), None);
    }
}
