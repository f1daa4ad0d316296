//! Where each answer's bytes belong: the way from a socket's buffer to the store.
//!
//! A stream holds no more than its window, and an answer without an end of its own does not know of it. So such an
//! answer is read only as far as there is room; then its sender waits, as TCP lets it. An answer that ends within the
//! window is never held up: those before it may need its connection.

use std::collections::BTreeMap;

use marline_core::fetch::ReqId;
use marline_core::units::DataSize;
use marline_net::http::Sink;

use super::page;
use crate::store::{Store, StoreError};

/// The store, and the offset at which each accepted answer goes on.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) store: Store,
    answers: BTreeMap<ReqId, Way>,
    /// The first bytes of the resource, as far as they came in order.
    pub(super) head: Vec<u8>,
    error: Option<StoreError>,
}

/// Where an accepted answer goes on.
#[derive(Debug)]
struct Way {
    next: u64,
    /// One past its last byte, where that was said.
    end: Option<u64>,
}

impl Place {
    pub(super) fn new(store: Store) -> Self {
        Self { store, answers: BTreeMap::new(), head: Vec::new(), error: None }
    }

    /// The body of this answer belongs at `at` onwards, and is of no more bytes than `len`.
    pub(super) fn accept(&mut self, req: ReqId, at: u64, len: Option<DataSize>) {
        let end = len.map(|len| at.saturating_add(len.bytes()));
        self.answers.insert(req, Way { next: at, end });
    }

    /// How many bytes of this answer may be read now; none: all that come.
    pub(super) fn room(&self, req: ReqId) -> Option<DataSize> {
        let window = self.store.window()?;
        let limit = self.store.consumed().saturating_add(window.bytes());
        let way = self.answers.get(&req)?;
        if way.end.is_some_and(|end| end <= limit) {
            return None;
        }
        Some(DataSize::from_bytes(limit.saturating_sub(way.next).saturating_sub(EXCESS)))
    }

    /// Nothing more is taken of this answer.
    pub(super) fn forget(&mut self, req: ReqId) {
        self.answers.remove(&req);
    }

    /// What went wrong since the last call.
    pub(super) fn take_error(&mut self) -> Option<StoreError> {
        self.error.take()
    }
}

impl Sink for Place {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        let Some(way) = self.answers.get_mut(&req) else { return };
        if way.next < page::HEAD as u64 && way.next == self.head.len() as u64 {
            let more = (page::HEAD - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..more]);
        }
        if let Err(error) = self.store.write(way.next, bytes) {
            self.error.get_or_insert(error);
        }
        way.next += bytes.len() as u64;
    }
}

/// How much more than it was told a connection may deliver at a time: the rest of a frame of HTTP/2, which has at most
/// 16 KiB as long as no more is offered (RFC 9113 §4.2).
const EXCESS: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::{Opened, WINDOW};

    #[test]
    fn an_answer_without_an_end_is_read_as_far_as_the_window_goes() {
        // Any device is a stream; nothing is written to it.
        let Opened { store, .. } = Store::open(Path::new("/dev/zero"), &[]).unwrap();
        let mut place = Place::new(store);
        let (open, short, long) = (ReqId(0), ReqId(1), ReqId(2));
        place.accept(open, 0, None);
        place.accept(short, WINDOW.bytes() - 10, Some(DataSize::from_bytes(10)));
        place.accept(long, WINDOW.bytes() - 10, Some(DataSize::from_bytes(11)));
        assert_eq!(place.room(open), Some(WINDOW - DataSize::from_bytes(EXCESS)));
        assert_eq!(place.room(short), None);
        assert_eq!(place.room(long), Some(DataSize::ZERO));
        assert_eq!(place.room(ReqId(9)), None);
    }
}
