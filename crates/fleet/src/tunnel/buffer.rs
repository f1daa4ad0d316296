//! Bytes that a tunnel has taken and cannot pass on yet, and how many of them all tunnels together have.
//!
//! In: bytes. Out: the same bytes, in order; and how large a piece may be that is taken next.
//!
//! 1. Who holds nothing has no memory: what is passed on at once never comes here.
//! 2. A piece is as large as its reader likes, until all tunnels together hold [`PLENTY`]. From then on it is a record of TLS: who
//!    stands still then holds as much as that in each of his buffers.

use std::sync::atomic::{AtomicUsize, Ordering};

/// chosen: 128 tunnels that stand still with all that two readers may take.
const SHRINK_THRESHOLD: usize = 40 << 20;
/// The longest record of TLS 1.3 (RFC 8446 §5.2), and its head.
const MAX_TLS_RECORD: usize = 16_384 + 256 + 5;

/// What all tunnels of this process hold.
static TOTAL_BUFFERED: AtomicUsize = AtomicUsize::new(0);

/// How much may be taken at once by a reader who likes `usual`.
pub(crate) fn read_size(preferred: usize) -> usize {
    read_size_at(preferred, TOTAL_BUFFERED.load(Ordering::Relaxed))
}

fn read_size_at(preferred: usize, held: usize) -> usize {
    if held < SHRINK_THRESHOLD { preferred } else { preferred.min(MAX_TLS_RECORD) }
}

/// Bytes that wait.
#[derive(Debug, Default)]
pub(crate) struct TunnelBuffer {
    bytes: Vec<u8>,
    consumed: usize,
    accounted: usize,
}

impl TunnelBuffer {
    /// What came already.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let mut buffer = Self { bytes, ..Self::default() };
        buffer.account();
        buffer
    }

    /// Behind what is there.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes.extend_from_slice(bytes);
            self.account();
        }
    }

    /// What waits.
    pub(crate) fn pending(&self) -> &[u8] {
        self.bytes.get(self.consumed..).unwrap_or_default()
    }

    /// So many of them have gone. With the last one the memory is given back.
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
    fn what_has_gone_holds_no_memory() {
        let mut buffer = TunnelBuffer::new(vec![1; 1000]);
        buffer.extend(&[2; 500]);
        assert!(buffer.accounted >= 1500);
        buffer.advance(1200);
        assert_eq!(buffer.pending(), [2; 300]);
        buffer.advance(300);
        assert_eq!((buffer.accounted, buffer.bytes.capacity(), buffer.pending()), (0, 0, &[][..]));
    }

    #[test]
    fn pieces_are_small_when_much_is_held() {
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
