//! Buffer for bytes that a tunnel has received and cannot forward yet, with a common account over all tunnels.
//!
//! 1. An empty buffer has no memory. Bytes that are forwarded at once never enter a buffer.
//! 2. Readers read pieces of their preferred size until all tunnels together hold [`SHRINK_THRESHOLD`]. From then on a
//!    piece is at most one TLS record, so a blocked tunnel holds at most that much in each of its buffers.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Our choice: 128 blocked tunnels, each with all that two readers may have read.
const SHRINK_THRESHOLD: usize = 40 << 20;
/// Longest record of TLS 1.3 (RFC 8446 §5.2), including its header.
const MAX_TLS_RECORD: usize = 16_384 + 256 + 5;

/// Memory that the buffers of all tunnels of this process hold.
static TOTAL_BUFFERED: AtomicUsize = AtomicUsize::new(0);

/// How much may be read at once by a reader that prefers `preferred` bytes.
pub(crate) fn read_size(preferred: usize) -> usize {
    read_size_at(preferred, TOTAL_BUFFERED.load(Ordering::Relaxed))
}

fn read_size_at(preferred: usize, buffered: usize) -> usize {
    if buffered < SHRINK_THRESHOLD { preferred } else { preferred.min(MAX_TLS_RECORD) }
}

/// Bytes that await forwarding.
#[derive(Debug, Default)]
pub(crate) struct TunnelBuffer {
    bytes: Vec<u8>,
    consumed: usize,
    accounted: usize,
}

impl TunnelBuffer {
    /// Creates a buffer with bytes that have already been received.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let mut buffer = Self { bytes, ..Self::default() };
        buffer.account();
        buffer
    }

    /// Appends bytes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes.extend_from_slice(bytes);
            self.account();
        }
    }

    /// The bytes that are not forwarded yet.
    pub(crate) fn pending(&self) -> &[u8] {
        self.bytes.get(self.consumed..).unwrap_or_default()
    }

    /// Removes `len` forwarded bytes. Releases the memory once all are forwarded.
    pub(crate) fn advance(&mut self, len: usize) {
        self.consumed += len;
        if self.consumed >= self.bytes.len() && self.accounted > 0 {
            (self.bytes, self.consumed) = (Vec::new(), 0);
            self.account();
        }
    }

    fn account(&mut self) {
        let capacity = self.bytes.capacity();
        TOTAL_BUFFERED.fetch_add(capacity, Ordering::Relaxed);
        TOTAL_BUFFERED.fetch_sub(std::mem::replace(&mut self.accounted, capacity), Ordering::Relaxed);
    }
}

impl Drop for TunnelBuffer {
    fn drop(&mut self) {
        TOTAL_BUFFERED.fetch_sub(self.accounted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_buffer_holds_no_memory() {
        let mut buffer = TunnelBuffer::new(vec![1; 1000]);
        buffer.extend(&[2; 500]);
        assert!(buffer.accounted >= 1500);
        buffer.advance(1200);
        assert_eq!(buffer.pending(), [2; 300]);
        buffer.advance(300);
        assert_eq!((buffer.accounted, buffer.bytes.capacity(), buffer.pending()), (0, 0, &[][..]));
    }

    #[test]
    fn pieces_are_small_when_much_is_buffered() {
        assert_eq!(
            (
                read_size_at(65_536, SHRINK_THRESHOLD - 1),
                read_size_at(65_536, SHRINK_THRESHOLD),
                read_size_at(9, SHRINK_THRESHOLD)
            ),
            (65_536, MAX_TLS_RECORD, 9)
        );
    }
}
