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
pub(super) struct Store {
    /// What is in place, for each edition.
    editions: Vec<RangeSet>,
    /// Bytes of a page that is no file's, or of another place of the file.
    foreign: DataSize,
}

impl Store {
    /// The client puts `from` of this edition at `at`.
    pub(super) fn put(&mut self, edition: Option<usize>, from: ByteRange, at: u64) {
        match edition {
            Some(edition) if from.start == at => {
                if self.editions.len() <= edition {
                    self.editions.resize_with(edition + 1, RangeSet::default);
                }
                self.editions[edition].insert(from);
            }
            _ => self.foreign += from.len(),
        }
    }

    /// The client throws everything away.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Different bytes in place.
    pub(super) fn covered(&self) -> DataSize {
        self.editions.iter().map(RangeSet::len).sum()
    }

    /// The edition that the file is, if it is one: every byte from it, every byte there. `sizes` are the editions'.
    pub(super) fn whole(&self, sizes: impl IntoIterator<Item = DataSize>) -> Option<usize> {
        let covered = self.covered();
        let own = |edition: usize| self.editions.get(edition).map_or(DataSize::ZERO, RangeSet::len);
        let mut sizes = sizes.into_iter().enumerate();
        let whole = sizes.find(|(edition, size)| *size == covered && own(*edition) == covered);
        whole.map(|(edition, _)| edition).filter(|_| self.foreign.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [DataSize; 2] = [DataSize::from_bytes(10), DataSize::from_bytes(12)];

    #[test]
    fn a_mixture_is_no_file() {
        let mut store = Store::default();
        store.put(Some(0), ByteRange::new(0, 5), 0);
        assert_eq!(store.whole(SIZES), None);
        store.put(Some(0), ByteRange::new(5, 10), 5);
        assert_eq!(store.whole(SIZES), Some(0));
        store.put(Some(1), ByteRange::new(5, 7), 5);
        assert_eq!(store.whole(SIZES), None);
    }

    #[test]
    fn bytes_at_another_place_are_no_file() {
        let mut store = Store::default();
        store.put(Some(0), ByteRange::new(0, 10), 0);
        store.put(Some(0), ByteRange::new(3, 4), 4);
        assert_eq!(store.whole(SIZES), None);
    }
}
