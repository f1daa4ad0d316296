//! Reassembles one direction of a flow where HTTP heads are expected: from segments in any order, with holes and
//! duplicates.
//!
//! 1. Only bytes within [`MAX_HEAD`] of the next head are kept; bodies are skipped without a copy. So the memory of a
//!    flow is bounded, whatever its peer sends.
//! 2. Of duplicates the first is kept, as TCP gives the application no other.
//! 3. A part of a head that was not captured makes it [`Head::Lost`] as soon as it is clear that it will not be
//!    retransmitted: nothing more can be parsed in this direction then.

use alloc::vec::Vec;

use crate::accel::seq_space::{PosRange, PosRangeSet};

/// One direction.
#[derive(Clone, Debug)]
pub(crate) struct HeadReassembler {
    /// Where the next head begins.
    next: u64,
    /// The known bytes from there on.
    bytes: Vec<u8>,
    /// Which of them are known.
    received: PosRangeSet,
    /// One past the highest byte that was observed.
    highest: u64,
}

/// What is at the position of the next head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// A head, with its empty line.
    Complete(Vec<u8>),
    /// Its beginning, or nothing yet.
    Partial,
    /// It is longer than is kept.
    TooLong,
    /// A part of it was not captured.
    Lost,
}

impl HeadReassembler {
    /// A direction whose next head begins here.
    pub(crate) fn new(next: u64) -> Self {
        Self { next, bytes: Vec::new(), received: PosRangeSet::default(), highest: next }
    }

    /// Where the next head begins.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// One past the highest byte that was observed.
    pub(crate) const fn highest(&self) -> u64 {
        self.highest
    }

    /// A payload of `length` bytes at `at`, of which `captured` are the first.
    pub(crate) fn on_payload(&mut self, at: u64, captured: &[u8], length: u64) {
        if at > self.next.saturating_add(MAX_DISTANCE) {
            return;
        }
        self.highest = self.highest.max(at.saturating_add(length));
        let window = PosRange::new(self.next, self.next.saturating_add(MAX_HEAD));
        let new = PosRange::new(at, at.saturating_add(captured.len() as u64)).intersection(&window);
        for gap in self.received.gaps(new) {
            let (to, from) = ((gap.start - self.next) as usize, (gap.start - at) as usize);
            let length = gap.len() as usize;
            if self.bytes.len() < to + length {
                self.bytes.resize(to + length, 0);
            }
            if let (Some(to), Some(from)) = (self.bytes.get_mut(to..to + length), captured.get(from..from + length))
            {
                to.copy_from_slice(from);
            }
            self.received.insert(gap);
        }
    }

    /// The next head; a complete one is consumed.
    pub(crate) fn take_head(&mut self) -> Head {
        let known = (self.received.run_from(self.next) - self.next) as usize;
        let known = self.bytes.get(..known).unwrap_or(&self.bytes);
        let end = known.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        match end.and_then(|end| known.get(..end)) {
            Some(head) => {
                let head = head.to_vec();
                self.skip(head.len() as u64);
                Head::Complete(head)
            }
            None if known.len() as u64 >= MAX_HEAD => Head::TooLong,
            None if self.highest > self.next.saturating_add(MAX_HEAD + MAX_UNSEEN) => Head::Lost,
            None => Head::Partial,
        }
    }

    /// The first known bytes of the next head.
    pub(crate) fn known_start(&self) -> &[u8] {
        let known = (self.received.run_from(self.next) - self.next) as usize;
        self.bytes.get(..known).unwrap_or(&self.bytes)
    }

    /// The next head begins so many bytes further on.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.next = self.next.saturating_add(bytes);
        self.received.remove_before(self.next);
        let drained = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.bytes.len());
        self.bytes.drain(..drained);
    }
}

/// Our choice: as much as nginx and Apache accept by default for a request's head, twice over.
const MAX_HEAD: u64 = 16 * 1024;
/// Our choice: bytes that may pass before a missing part of a head counts as not captured; a retransmission takes a
/// round trip, in which a window of data passes.
const MAX_UNSEEN: u64 = 4 * 1024 * 1024;
/// Farther ahead than any window: not of this flow.
const MAX_DISTANCE: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_head_is_complete_in_any_order() {
        let stream = b"GET / HTTP/1.1\r\n\r\nbodyGET /b HTTP/1.1\r\n\r\n";
        let mut tap = HeadReassembler::new(100);
        tap.on_payload(110, &stream[10..], 31);
        assert_eq!(tap.take_head(), Head::Partial);
        tap.on_payload(100, &stream[..12], 12);
        assert_eq!(tap.take_head(), Head::Complete(stream[..18].to_vec()));
        tap.skip(4);
        assert_eq!(tap.take_head(), Head::Complete(stream[22..].to_vec()));
        assert_eq!((tap.take_head(), tap.next()), (Head::Partial, 100 + stream.len() as u64));
    }

    #[test]
    fn a_head_that_was_not_captured_is_lost() {
        let mut tap = HeadReassembler::new(0);
        tap.on_payload(0, b"HTTP", 1400);
        assert_eq!(tap.take_head(), Head::Partial, "it may be retransmitted");
        tap.on_payload(MAX_HEAD + MAX_UNSEEN, b"", 1400);
        assert_eq!(tap.take_head(), Head::Lost);
        let mut tap = HeadReassembler::new(0);
        tap.on_payload(0, &[b'a'; 20_000], 20_000);
        assert_eq!((tap.take_head(), tap.bytes.len() as u64), (Head::TooLong, MAX_HEAD));
        tap.on_payload(u64::MAX - 3, b"abcd", 4);
        assert_eq!(tap.highest(), 20_000);
    }

    proptest! {
        #[test]
        fn the_order_of_segments_does_not_change_the_heads(pieces in prop::collection::vec((0_usize..60, 1_usize..30), 0..40)) {
            let stream = b"HTTP/1.1 200 OK\r\n\r\n0123456789HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n";
            let mut tap = HeadReassembler::new(7);
            for (at, length) in pieces {
                let (from, to) = (at.min(stream.len()), (at + length).min(stream.len()));
                tap.on_payload(7 + from as u64, &stream[from..to], (to - from) as u64);
                prop_assert!(stream.starts_with(tap.known_start()));
            }
            tap.on_payload(7, stream, stream.len() as u64);
            prop_assert_eq!(tap.take_head(), Head::Complete(stream[..19].to_vec()));
            tap.skip(10);
            prop_assert_eq!(tap.take_head(), Head::Complete(stream[29..].to_vec()));
        }
    }
}
