//! Reorder buffer: accepts pieces in any order, and delivers the bytes in order.
//!
//! Pieces may start at any offset. Each byte is delivered once; bytes beyond a gap are buffered.
//!
//! 1. No byte is buffered twice; further copies are dropped.
//! 2. Delivered bytes are not kept.
//!
//! A ring buffer of the window's size was rejected. All of it becomes resident after one round, although the full
//! window is needed only if the delays of the links differ.

use std::collections::BTreeMap;

/// Puts pieces in order; see the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct ReorderBuffer {
    /// One past the last byte that was delivered.
    next: u64,
    /// Pieces beyond `next`, by offset; they do not overlap.
    pending: BTreeMap<u64, Vec<u8>>,
}

impl ReorderBuffer {
    /// A buffer whose first byte has this offset. Earlier bytes are dropped.
    pub(super) fn starting_at(next: u64) -> Self {
        Self { next, pending: BTreeMap::new() }
    }

    /// Adds a piece. Returns the pieces that are next in order now.
    pub(super) fn insert(&mut self, at: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
        if at > self.next {
            self.buffer_piece(at, bytes);
            return Vec::new();
        }
        let duplicate = usize::try_from(self.next - at).unwrap_or(usize::MAX);
        let Some(new_bytes) = bytes.get(duplicate..).filter(|new_bytes| !new_bytes.is_empty()) else {
            return Vec::new();
        };
        // The piece closes the gap: deliver it without its duplicate beginning, then all buffered pieces that
        // follow directly.
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

    /// Drops all buffered pieces.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// One past the last byte that was delivered.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Offset of the first buffered piece; it lies beyond a gap.
    pub(super) fn first_pending(&self) -> Option<u64> {
        self.pending.first_key_value().map(|(first, _)| *first)
    }

    /// Number of buffered bytes.
    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending.values().map(|piece| piece.len() as u64).sum()
    }

    /// Buffers the bytes of a piece that are not buffered yet: the parts between the existing pieces.
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
