//! Bytes that a tunnel has taken and cannot pass on yet, and how many of them all tunnels together have.
//!
//! In: bytes. Out: the same bytes, in order; and how large a piece may be that is taken next.
//!
//! 1. Who holds nothing has no memory: what is passed on at once never comes here.
//! 2. A piece is as large as its reader likes, until all tunnels together hold [`PLENTY`]. From then on it is a record of TLS: who
//!    stands still then holds as much as that in each of his buffers.

use std::sync::atomic::{AtomicUsize, Ordering};

/// chosen: 128 tunnels that stand still with all that two readers may take.
const PLENTY: usize = 40 << 20;
/// The longest record of TLS 1.3 (RFC 8446 §5.2), and its head.
const RECORD: usize = 16_384 + 256 + 5;

/// What all tunnels of this process hold.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// How much may be taken at once by a reader who likes `usual`.
pub(crate) fn piece(usual: usize) -> usize {
    allowed(usual, HELD.load(Ordering::Relaxed))
}

fn allowed(usual: usize, held: usize) -> usize {
    if held < PLENTY { usual } else { usual.min(RECORD) }
}

/// Bytes that wait.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    gone: usize,
    counted: usize,
}

impl Kept {
    /// What came already.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let mut kept = Self { bytes, ..Self::default() };
        kept.count();
        kept
    }

    /// Behind what is there.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes.extend_from_slice(bytes);
            self.count();
        }
    }

    /// What waits.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.gone..).unwrap_or_default()
    }

    /// So many of them have gone. With the last one the memory is given back.
    pub(crate) fn pass(&mut self, len: usize) {
        self.gone += len;
        if self.gone >= self.bytes.len() && self.counted > 0 {
            (self.bytes, self.gone) = (Vec::new(), 0);
            self.count();
        }
    }

    fn count(&mut self) {
        let now = self.bytes.capacity();
        HELD.fetch_add(now, Ordering::Relaxed);
        HELD.fetch_sub(std::mem::replace(&mut self.counted, now), Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        HELD.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_gone_holds_no_memory() {
        let mut kept = Kept::new(vec![1; 1000]);
        kept.put(&[2; 500]);
        assert!(kept.counted >= 1500);
        kept.pass(1200);
        assert_eq!(kept.rest(), [2; 300]);
        kept.pass(300);
        assert_eq!((kept.counted, kept.bytes.capacity(), kept.rest()), (0, 0, &[][..]));
    }

    #[test]
    fn pieces_are_small_when_much_is_held() {
        assert_eq!((allowed(65_536, PLENTY - 1), allowed(65_536, PLENTY), allowed(9, PLENTY)), (65_536, RECORD, 9));
    }
}
