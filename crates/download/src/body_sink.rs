//! Writes body bytes from the socket's buffer to the store, at the offset of their response.
//!
//! The reorder buffer of a stream holds no more than its window, and a response without a known end may exceed it.
//! Such a response is read only as far as the window has capacity. Then its bytes stay in the kernel, and TCP flow
//! control stops the sender. A response that ends within the window is never held up, because earlier bytes may
//! need its connection.

use std::collections::BTreeMap;

use marline_core::fetch::ReqId;
use marline_core::units::DataSize;
use marline_net::http::Sink;

use super::html_page;
use crate::store::{Store, StoreError};

/// The store, and the write offset of each accepted response.
#[derive(Debug)]
pub(super) struct BodySink {
    pub(super) store: Store,
    cursors: BTreeMap<ReqId, WriteCursor>,
    /// The first bytes of the file, as far as they have arrived in order (used to recognize HTML pages).
    pub(super) prefix: Vec<u8>,
    error: Option<StoreError>,
}

/// Write position of an accepted response.
#[derive(Debug)]
struct WriteCursor {
    offset: u64,
    /// One past its last byte; none: unknown.
    end: Option<u64>,
}

impl BodySink {
    pub(super) fn new(store: Store) -> Self {
        Self { store, cursors: BTreeMap::new(), prefix: Vec::new(), error: None }
    }

    /// Accepts the body of a response: it begins at offset `at` and has at most `len` bytes.
    pub(super) fn accept(&mut self, req: ReqId, at: u64, len: Option<DataSize>) {
        let end = len.map(|len| at.saturating_add(len.bytes()));
        self.cursors.insert(req, WriteCursor { offset: at, end });
    }

    /// The number of bytes of this response that may be read now; none: no limit.
    pub(super) fn readable(&self, req: ReqId) -> Option<DataSize> {
        let window = self.store.window()?;
        let limit = self.store.consumed().saturating_add(window.bytes());
        let cursor = self.cursors.get(&req)?;
        if cursor.end.is_some_and(|end| end <= limit) {
            return None;
        }
        Some(DataSize::from_bytes(limit.saturating_sub(cursor.offset).saturating_sub(MAX_OVERSHOOT)))
    }

    /// Discards further bytes of this response.
    pub(super) fn forget(&mut self, req: ReqId) {
        self.cursors.remove(&req);
    }

    /// The first error since the last call.
    pub(super) fn take_error(&mut self) -> Option<StoreError> {
        self.error.take()
    }
}

impl Sink for BodySink {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        let Some(cursor) = self.cursors.get_mut(&req) else { return };
        if cursor.offset < html_page::SNIFF_LEN as u64 && cursor.offset == self.prefix.len() as u64 {
            let added = (html_page::SNIFF_LEN - self.prefix.len()).min(bytes.len());
            self.prefix.extend_from_slice(&bytes[..added]);
        }
        // The sink cannot return an error. It is kept until the driver takes it, before it processes the event.
        if let Err(error) = self.store.write(cursor.offset, bytes) {
            self.error.get_or_insert(error);
        }
        cursor.offset += bytes.len() as u64;
    }
}

/// Bytes that a connection may deliver beyond its limit: the rest of an HTTP/2 frame, which has at most 16 KiB
/// unless a larger SETTINGS_MAX_FRAME_SIZE is advertised (RFC 9113 §4.2).
const MAX_OVERSHOOT: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::{Opened, STREAM_WINDOW};

    #[test]
    fn a_response_without_an_end_is_read_up_to_the_window() {
        // Any device is opened as a stream. The test writes nothing to it.
        let Opened { store, .. } = Store::open(Path::new("/dev/zero"), &[]).unwrap();
        let mut sink = BodySink::new(store);
        let (open, short, long) = (ReqId(0), ReqId(1), ReqId(2));
        sink.accept(open, 0, None);
        sink.accept(short, STREAM_WINDOW.bytes() - 10, Some(DataSize::from_bytes(10)));
        sink.accept(long, STREAM_WINDOW.bytes() - 10, Some(DataSize::from_bytes(11)));
        assert_eq!(sink.readable(open), Some(STREAM_WINDOW - DataSize::from_bytes(MAX_OVERSHOOT)));
        assert_eq!(sink.readable(short), None);
        assert_eq!(sink.readable(long), Some(DataSize::ZERO));
        assert_eq!(sink.readable(ReqId(9)), None);
    }
}
