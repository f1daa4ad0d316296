//! Pieces that come in any order, passed on in order.
//!
//! In: pieces at any offset. Out: those that are next, each byte once; what lies beyond a gap is held.
//!
//! 1. No byte is held twice; a second copy of a byte is dropped.
//! 2. What was passed on is forgotten.
//!
//! A ring of the window's size was not used: it becomes resident in full after one round, while the window is only
//! needed where links differ.

use std::collections::BTreeMap;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Order {
    /// One past the last byte that was passed on.
    next: u64,
    /// Pieces beyond `next`; none overlaps another.
    held: BTreeMap<u64, Vec<u8>>,
}

impl Order {
    /// Begins at an offset; what lies before it is of no interest.
    pub(super) fn starting(next: u64) -> Self {
        Self { next, held: BTreeMap::new() }
    }

    /// Takes a piece; gives what is next now.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
        if at > self.next {
            self.hold(at, bytes);
            return Vec::new();
        }
        let known = usize::try_from(self.next - at).unwrap_or(usize::MAX);
        let Some(fresh) = bytes.get(known..).filter(|fresh| !fresh.is_empty()) else { return Vec::new() };
        let mut pieces = vec![fresh.to_vec()];
        self.next += fresh.len() as u64;
        while let Some(piece) = self.held.first_entry().filter(|piece| *piece.key() <= self.next) {
            let (start, mut piece) = piece.remove_entry();
            let known = usize::try_from(self.next - start).unwrap_or(usize::MAX);
            if known < piece.len() {
                piece.drain(..known);
                self.next += piece.len() as u64;
                pieces.push(piece);
            }
        }
        pieces
    }

    /// Forgets what is held.
    pub(super) fn clear(&mut self) {
        self.held.clear();
    }

    /// One past the last byte that was passed on.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Where the first piece beyond a gap begins.
    pub(super) fn first_held(&self) -> Option<u64> {
        self.held.first_key_value().map(|(first, _)| *first)
    }

    /// How many bytes are held.
    pub(super) fn len(&self) -> u64 {
        self.held.values().map(|piece| piece.len() as u64).sum()
    }

    /// Keeps those bytes that are not held yet.
    fn hold(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let mut from = at;
        while from < end {
            let before = self.held.range(..=from).next_back();
            let known = before.map_or(from, |(start, piece)| from.max(start + piece.len() as u64));
            if known > from {
                from = known;
                continue;
            }
            let to = self.held.range(from..).next().map_or(end, |(start, _)| end.min(*start));
            let [first, last] = [from, to].map(|offset| usize::try_from(offset - at).unwrap_or(usize::MAX));
            self.held.insert(from, bytes.get(first..last).unwrap_or_default().to_vec());
            from = to;
        }
    }
}
