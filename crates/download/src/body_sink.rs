//! Where each answer's bytes belong: the way from a socket's buffer to the store.
//!
//! A stream holds no more than its window, and an answer without an end of its own does not know of it. So such an
//! answer is read only as far as there is room; then its sender waits, as TCP lets it. An answer that ends within the
//! window is never held up: those before it may need its connection.

use std::collections::BTreeMap;

use marline_core::fetch::ReqId;
use marline_core::units::DataSize;
use marline_net::http::Sink;

use super::html_page;
use crate::store::{Store, StoreError};

/// The store, and the offset at which each accepted answer goes on.
#[derive(Debug)]
pub(super) struct BodySink {
    pub(super) store: Store,
    cursors: BTreeMap<ReqId, WriteCursor>,
    /// The first bytes of the resource, as far as they came in order.
    pub(super) prefix: Vec<u8>,
    error: Option<StoreError>,
}

/// Where an accepted answer goes on.
#[derive(Debug)]
struct WriteCursor {
    offset: u64,
    /// One past its last byte, where that was said.
    end: Option<u64>,
}

impl BodySink {
    pub(super) fn new(store: Store) -> Self {
        Self { store, cursors: BTreeMap::new(), prefix: Vec::new(), error: None }
    }

    /// The body of this answer belongs at `at` onwards, and is of no more bytes than `len`.
    pub(super) fn accept(&mut self, req: ReqId, at: u64, len: Option<DataSize>) {
        let end = len.map(|len| at.saturating_add(len.bytes()));
        self.cursors.insert(req, WriteCursor { offset: at, end });
    }

    /// How many bytes of this answer may be read now; none: all that come.
    pub(super) fn readable(&self, req: ReqId) -> Option<DataSize> {
        let window = self.store.window()?;
        let limit = self.store.consumed().saturating_add(window.bytes());
        let cursor = self.cursors.get(&req)?;
        if cursor.end.is_some_and(|end| end <= limit) {
            return None;
        }
        Some(DataSize::from_bytes(limit.saturating_sub(cursor.offset).saturating_sub(MAX_OVERSHOOT)))
    }

    /// Nothing more is taken of this answer.
    pub(super) fn forget(&mut self, req: ReqId) {
        self.cursors.remove(&req);
    }

    /// What went wrong since the last call.
    pub(super) fn take_error(&mut self) -> Option<StoreError> {
        self.error.take()
    }
}

impl Sink for BodySink {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        let Some(cursor) = self.cursors.get_mut(&req) else { return };
        if cursor.offset < html_page::SNIFF_LEN as u64 && cursor.offset == self.prefix.len() as u64 {
            let more = (html_page::SNIFF_LEN - self.prefix.len()).min(bytes.len());
            self.prefix.extend_from_slice(&bytes[..more]);
        }
        if let Err(error) = self.store.write(cursor.offset, bytes) {
            self.error.get_or_insert(error);
        }
        cursor.offset += bytes.len() as u64;
    }
}

/// How much more than it was told a connection may deliver at a time: the rest of a frame of HTTP/2, which has at most
/// 16 KiB as long as no more is offered (RFC 9113 §4.2).
const MAX_OVERSHOOT: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::{Opened, STREAM_WINDOW};

    #[test]
    fn an_answer_without_an_end_is_read_as_far_as_the_window_goes() {
        // Any device is a stream; nothing is written to it.
        let Opened { store, .. } = Store::open(Path::new("/dev/zero"), &[]).unwrap();
        let mut place = BodySink::new(store);
        let (open, short, long) = (ReqId(0), ReqId(1), ReqId(2));
        place.accept(open, 0, None);
        place.accept(short, STREAM_WINDOW.bytes() - 10, Some(DataSize::from_bytes(10)));
        place.accept(long, STREAM_WINDOW.bytes() - 10, Some(DataSize::from_bytes(11)));
        assert_eq!(place.readable(open), Some(STREAM_WINDOW - DataSize::from_bytes(MAX_OVERSHOOT)));
        assert_eq!(place.readable(short), None);
        assert_eq!(place.readable(long), Some(DataSize::ZERO));
        assert_eq!(place.readable(ReqId(9)), None);
    }
}
