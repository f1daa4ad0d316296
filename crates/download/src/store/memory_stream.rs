//! An ordered stream of bytes for a reader within this program: a player behind the proxy.
//!
//! The driver writes pieces at any offset. The reader polls for the bytes in order, from its first offset on, each
//! once.
//!
//! 1. Nothing is buffered beyond the window, which begins at the reader's position: `buffered + queued <= window`,
//!    always. A reader that does not read stops the driver, and so the servers.
//! 2. Delivered bytes cannot be revoked, and what the reader learned of the file must remain true: a change of the
//!    file ends the stream.
//! 3. If either end is dropped, the other one notices it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use marline_core::fetch::Validator;
use marline_core::units::DataSize;
use tokio::sync::Notify;

use super::StoreError;
use super::reorder_buffer::ReorderBuffer;

/// The writing end, which a [`Store`](super::Store) holds.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<SharedStream>,
    window: u64,
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<SharedStream>,
}

#[derive(Debug)]
struct SharedStream {
    state: Mutex<StreamState>,
    /// Notified when the reader has consumed bytes or is gone.
    consumed_notify: Arc<Notify>,
}

#[derive(Debug)]
struct StreamState {
    reorder: ReorderBuffer,
    queue: VecDeque<Bytes>,
    /// One past the last byte that the reader has consumed.
    consumed_end: u64,
    /// The file must not change any more.
    is_identity_fixed: bool,
    identity: Option<StreamIdentity>,
    /// The writer is gone.
    is_closed: bool,
    is_reader_gone: bool,
    waker: Option<Waker>,
}

/// Size and validator of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamIdentity {
    /// Size in bytes; none: the server does not state it.
    pub total: Option<DataSize>,
    /// Strong validator; none: ranges of the file cannot be combined.
    pub validator: Option<Validator>,
}

/// Both ends of a stream whose first byte has offset `from`. With `fixed` the reader knows the file, and it must
/// not change.
pub(super) fn reader_pair(from: u64, window: DataSize, fixed: bool) -> (Writer, Reader) {
    let state = StreamState {
        reorder: ReorderBuffer::starting_at(from),
        queue: VecDeque::new(),
        consumed_end: from,
        is_identity_fixed: fixed,
        identity: None,
        is_closed: false,
        is_reader_gone: false,
        waker: None,
    };
    let shared = Arc::new(SharedStream { state: Mutex::new(state), consumed_notify: Arc::default() });
    (Writer { shared: Arc::clone(&shared), window: window.bytes() }, Reader { shared })
}

impl SharedStream {
    fn lock(&self) -> MutexGuard<'_, StreamState> {
        // The state is consistent wherever a panic could leave it, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamState {
    fn wake_reader(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Writer {
    pub(super) fn window(&self) -> DataSize {
        DataSize::from_bytes(self.window)
    }

    /// One past the last byte that the reader has consumed.
    pub(super) fn consumed_end(&self) -> u64 {
        self.shared.lock().consumed_end
    }

    pub(super) fn consumed_notify(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.consumed_notify)
    }

    pub(super) fn on_identified(&self, total: Option<DataSize>, validator: Option<&Validator>) {
        let mut state = self.shared.lock();
        state.identity = Some(StreamIdentity { total, validator: validator.cloned() });
        state.wake_reader();
    }

    /// Fails if the reader is gone.
    pub(super) fn check_reader(&self) -> Result<(), StoreError> {
        let state = self.shared.lock();
        if state.is_reader_gone {
            return Err(StoreError::ReaderGone {
                path: display_path(),
                taken: DataSize::from_bytes(state.consumed_end),
            });
        }
        Ok(())
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.check_reader()?;
        let mut state = self.shared.lock();
        let limit = state.consumed_end.saturating_add(self.window);
        if at.saturating_add(bytes.len() as u64) > limit {
            return Err(StoreError::BeyondWindow { path: display_path(), at, end: limit });
        }
        let pieces = state.reorder.insert(at, bytes);
        if !pieces.is_empty() {
            state.queue.extend(pieces.into_iter().map(Bytes::from));
            state.wake_reader();
        }
        Ok(())
    }

    /// Discards everything: the download begins again. Possible only while the reader knows nothing of the file.
    pub(super) fn restart(&self) -> Result<(), StoreError> {
        let mut state = self.shared.lock();
        let passed = state.reorder.next();
        if state.is_identity_fixed || passed > 0 {
            return Err(StoreError::ChangedAfterDelivery {
                path: display_path(),
                passed: DataSize::from_bytes(passed),
            });
        }
        state.reorder.clear();
        state.identity = None;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        state.wake_reader();
    }
}

impl Reader {
    /// The next bytes; none: the writer is gone. The caller must know whether these were all.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.shared.lock();
        if let Some(bytes) = state.queue.pop_front() {
            state.consumed_end += bytes.len() as u64;
            drop(state);
            self.shared.consumed_notify.notify_one();
            return Poll::Ready(Some(bytes));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when the file is known and its first byte has arrived, or nothing more will come.
    pub fn poll_identity(&self, cx: &mut Context<'_>) -> Poll<Option<StreamIdentity>> {
        let mut state = self.shared.lock();
        if state.is_closed || ((state.is_identity_fixed || state.identity.is_some()) && !state.queue.is_empty()) {
            return Poll::Ready(state.identity.clone());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// From now on the reader relies on the present version of the file.
    pub fn fix_identity(&self) {
        self.shared.lock().is_identity_fixed = true;
    }

    /// One past the last consumed byte, the number of buffered bytes in order, and the number beyond a gap.
    pub fn buffered(&self) -> (u64, u64, u64) {
        let state = self.shared.lock();
        (state.consumed_end, state.reorder.next() - state.consumed_end, state.reorder.pending_bytes())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_reader_gone = true;
        state.queue.clear();
        state.reorder.clear();
        drop(state);
        self.shared.consumed_notify.notify_one();
    }
}

/// Stands for a path in messages.
fn display_path() -> PathBuf {
    PathBuf::from("the player")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reader: &Reader) -> Vec<u8> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut out = Vec::new();
        while let Poll::Ready(Some(bytes)) = reader.poll_next(&mut cx) {
            out.extend_from_slice(&bytes);
        }
        out
    }

    #[test]
    fn pieces_are_delivered_in_order_from_the_first_offset() {
        let (writer, reader) = reader_pair(100, DataSize::from_bytes(10), true);
        writer.write(104, b"efgh").unwrap();
        assert_eq!((read(&reader).len(), reader.buffered()), (0, (100, 0, 4)));
        writer.write(98, b"..abcd").unwrap();
        assert_eq!(read(&reader), b"abcdefgh");
        assert_eq!(writer.consumed_end(), 108);
        let mut cx = Context::from_waker(Waker::noop());
        drop(writer);
        assert!(matches!(reader.poll_next(&mut cx), Poll::Ready(None)));
    }

    #[test]
    fn writes_beyond_the_window_are_rejected_until_the_reader_reads() {
        let (writer, reader) = reader_pair(5, DataSize::from_bytes(10), false);
        writer.write(5, &[1; 10]).unwrap();
        assert!(matches!(writer.write(15, &[1]), Err(StoreError::BeyondWindow { end: 15, .. })));
        assert_eq!(read(&reader).len(), 10);
        writer.write(15, &[1; 10]).unwrap();
    }

    #[test]
    fn a_file_may_change_until_the_reader_knows_it() {
        let (writer, reader) = reader_pair(0, DataSize::from_bytes(10), false);
        writer.on_identified(None, None);
        writer.write(5, b"x").unwrap();
        writer.restart().unwrap();
        assert_eq!(reader.buffered(), (0, 0, 0));
        writer.write(0, b"x").unwrap();
        assert!(matches!(writer.restart(), Err(StoreError::ChangedAfterDelivery { .. })));
        let (writer, _reader) = reader_pair(7, DataSize::from_bytes(10), true);
        assert!(matches!(writer.restart(), Err(StoreError::ChangedAfterDelivery { .. })));
    }

    #[test]
    fn the_writer_notices_that_the_reader_is_gone() {
        let (writer, reader) = reader_pair(0, DataSize::from_bytes(10), false);
        drop(reader);
        assert!(matches!(writer.check_reader(), Err(StoreError::ReaderGone { .. })));
        assert!(matches!(writer.write(0, b"x"), Err(StoreError::ReaderGone { .. })));
    }
}
