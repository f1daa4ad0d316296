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
pub(super) struct ReorderBuffer {
    /// One past the last byte that was passed on.
    next: u64,
    /// Pieces beyond `next`; none overlaps another.
    pending: BTreeMap<u64, Vec<u8>>,
}

impl ReorderBuffer {
    /// Begins at an offset; what lies before it is of no interest.
    pub(super) fn starting_at(next: u64) -> Self {
        Self { next, pending: BTreeMap::new() }
    }

    /// Takes a piece; gives what is next now.
    pub(super) fn insert(&mut self, at: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
        if at > self.next {
            self.buffer_piece(at, bytes);
            return Vec::new();
        }
        let duplicate = usize::try_from(self.next - at).unwrap_or(usize::MAX);
        let Some(new_bytes) = bytes.get(duplicate..).filter(|new_bytes| !new_bytes.is_empty()) else {
            return Vec::new();
        };
        let mut pieces = vec![new_bytes.to_vec()];
        self.next += new_bytes.len() as u64;
        while let Some(piece) = self.pending.first_entry().filter(|piece| *piece.key() <= self.next) {
            let (start, mut piece) = piece.remove_entry();
            let duplicate = usize::try_from(self.next - start).unwrap_or(usize::MAX);
            if duplicate < piece.len() {
                piece.drain(..duplicate);
                self.next += piece.len() as u64;
                pieces.push(piece);
            }
        }
        pieces
    }

    /// Forgets what is held.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// One past the last byte that was passed on.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Where the first piece beyond a gap begins.
    pub(super) fn first_pending(&self) -> Option<u64> {
        self.pending.first_key_value().map(|(first, _)| *first)
    }

    /// How many bytes are held.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending.values().map(|piece| piece.len() as u64).sum()
    }

    /// Keeps those bytes that are not held yet.
    fn buffer_piece(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let mut from = at;
        while from < end {
            let before = self.pending.range(..=from).next_back();
            let held_end = before.map_or(from, |(start, piece)| from.max(start + piece.len() as u64));
            if held_end > from {
                from = held_end;
                continue;
            }
            let to = self.pending.range(from..).next().map_or(end, |(start, _)| end.min(*start));
            let [first, last] = [from, to].map(|offset| usize::try_from(offset - at).unwrap_or(usize::MAX));
            self.pending.insert(from, bytes.get(first..last).unwrap_or_default().to_vec());
            from = to;
        }
    }
}
