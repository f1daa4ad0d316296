//! An ordered stream of bytes to a file descriptor: standard output, a pipe, a device.
//!
//! Pieces may be written at any offset. A thread of its own writes the bytes in order, each once, because a slow
//! reader must not block the driver.
//!
//! 1. Nothing is buffered beyond the window, which begins at the reader's position: `buffered + queued <= window`,
//!    always.
//! 2. Delivered bytes cannot be revoked, so the file must not change afterwards.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use marline_core::units::DataSize;
use rustix::io::Errno;
use tokio::sync::Notify;

use super::StoreError;
use super::digest::{Hasher, Mismatch};
use super::error::MismatchedBytes;
use super::reorder_buffer::ReorderBuffer;

/// Puts pieces in order, and passes them to the writing thread.
#[derive(Debug)]
pub(super) struct StreamWriter {
    path: PathBuf,
    window: u64,
    /// Pieces that are delivered from here go to the queue of the thread.
    reorder: ReorderBuffer,
    shared: Arc<SharedQueue>,
    thread: Option<JoinHandle<Result<(), Mismatch>>>,
    hasher: Option<Hasher>,
    target: Option<StreamTarget>,
}

/// Destination of the bytes. The thread opens it, because opening a pipe waits for its reader.
#[derive(Debug)]
pub(super) enum StreamTarget {
    OpenFile(File),
    PathToOpen(PathBuf),
    /// A regular file, which is synced at the end.
    SyncedFile(File),
}

#[derive(Debug, Default)]
struct SharedQueue {
    queue: Mutex<PieceQueue>,
    has_more: Condvar,
    /// One past the last byte that was written to the destination.
    consumed_end: AtomicU64,
    consumed_notify: Arc<Notify>,
}

#[derive(Debug, Default)]
struct PieceQueue {
    pieces: VecDeque<Vec<u8>>,
    /// No more pieces follow.
    is_closed: bool,
    /// The error that stopped the thread, until it is reported.
    error: Option<io::Error>,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, PieceQueue> {
        // The queue is consistent wherever a panic could leave it, so a poisoned lock is usable.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamWriter {
    pub(super) fn new(path: PathBuf, target: StreamTarget, window: DataSize) -> Self {
        Self {
            path,
            window: window.bytes(),
            reorder: ReorderBuffer::default(),
            shared: Arc::default(),
            thread: None,
            hasher: None,
            target: Some(target),
        }
    }

    /// Computes a checksum of the bytes. Call it before the first byte.
    pub(super) fn set_hasher(&mut self, hasher: Hasher) {
        self.hasher = Some(hasher);
    }

    pub(super) fn window(&self) -> DataSize {
        DataSize::from_bytes(self.window)
    }

    /// One past the last byte that the reader has consumed.
    pub(super) fn consumed_end(&self) -> u64 {
        self.shared.consumed_end.load(Ordering::Acquire)
    }

    /// Notified whenever bytes were consumed, or the reader is gone.
    pub(super) fn consumed_notify(&self) -> Arc<Notify> {
        self.shared.consumed_notify.clone()
    }

    /// Returns the error of the thread, if it has failed since the last call.
    pub(super) fn check_reader(&self) -> Result<(), StoreError> {
        let failed = self.shared.lock().error.take();
        failed.map_or(Ok(()), |why| Err(self.write_error(why)))
    }

    /// Accepts bytes at an offset. Those that are next in order go to the thread.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let limit = self.consumed_end().saturating_add(self.window);
        let end = at.saturating_add(bytes.len() as u64);
        if end > limit {
            return Err(StoreError::BeyondWindow { path: self.path.clone(), at, end: limit });
        }
        let pieces = self.reorder.insert(at, bytes);
        if pieces.is_empty() {
            return Ok(());
        }
        self.start_thread()?;
        let mut queue = self.shared.lock();
        queue.pieces.extend(pieces);
        self.shared.has_more.notify_one();
        match queue.error.take() {
            Some(why) => {
                drop(queue);
                Err(self.write_error(why))
            }
            None => Ok(()),
        }
    }

    /// Discards everything: the download begins again. Possible only while nothing was delivered.
    pub(super) fn restart(&mut self) -> Result<(), StoreError> {
        self.reorder.clear();
        if self.reorder.next() == 0 {
            return Ok(());
        }
        Err(StoreError::ChangedAfterDelivery {
            path: self.path.clone(),
            passed: DataSize::from_bytes(self.reorder.next()),
        })
    }

    /// Waits until all bytes before `total` are written, and verifies the checksum.
    pub(super) fn finish(mut self, total: Option<u64>) -> Result<(), StoreError> {
        let next = self.reorder.next();
        let total = total.unwrap_or(next).max(self.reorder.first_pending().unwrap_or(0));
        if next < total {
            let missing = DataSize::from_bytes(total - next);
            return Err(StoreError::Incomplete { path: self.path.clone(), missing, first: next });
        }
        self.start_thread()?;
        self.close();
        let checked = match self.thread.take().map(JoinHandle::join) {
            Some(Ok(checked)) => checked,
            // The thread is joined only here, and it has been started above. After a panic, bytes may be missing.
            None | Some(Err(_)) => return Err(self.write_error(thread_ended())),
        };
        self.check_reader()?;
        checked.map_err(|Mismatch { algorithm: name, computed: got, expected: want }| {
            let path = self.path.clone();
            StoreError::ChecksumMismatch { path, name, got, want, location: MismatchedBytes::Delivered }
        })
    }

    fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.has_more.notify_one();
    }

    /// Starts the thread, once.
    fn start_thread(&mut self) -> Result<(), StoreError> {
        let Some(target) = self.target.take() else { return Ok(()) };
        let (shared, hasher) = (self.shared.clone(), self.hasher.take());
        let thread = std::thread::Builder::new().name("marline-out".into()).spawn(move || {
            let _report = PanicReport(&shared);
            write_pieces(&shared, target, hasher)
        });
        self.thread = Some(thread.map_err(|e| StoreError::io(&self.path, "starting a thread", e))?);
        Ok(())
    }

    fn write_error(&self, why: io::Error) -> StoreError {
        if why.kind() == io::ErrorKind::BrokenPipe {
            let taken = DataSize::from_bytes(self.consumed_end());
            return StoreError::ReaderGone { path: self.path.clone(), taken };
        }
        StoreError::io(&self.path, "writing", why)
    }
}

impl Drop for StreamWriter {
    /// Drops queued pieces. The thread ends after its current write.
    fn drop(&mut self) {
        self.shared.lock().pieces.clear();
        self.close();
    }
}

/// Reports a panic of the thread, so that the driver does not wait for a window that no longer advances.
struct PanicReport<'a>(&'a SharedQueue);

impl Drop for PanicReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().error = Some(thread_ended());
            self.0.consumed_notify.notify_one();
        }
    }
}

fn thread_ended() -> io::Error {
    io::Error::other("the writing thread has ended unexpectedly")
}

/// Errors of file systems that do not support fsync.
const SYNC_UNSUPPORTED: [i32; 3] =
    [Errno::INVAL.raw_os_error(), Errno::NOSYS.raw_os_error(), Errno::OPNOTSUPP.raw_os_error()];

/// The thread: writes pieces until the queue is closed and empty. Returns a checksum mismatch; other errors go to
/// the queue.
fn write_pieces(shared: &SharedQueue, target: StreamTarget, mut hasher: Option<Hasher>) -> Result<(), Mismatch> {
    let is_synced = matches!(target, StreamTarget::SyncedFile(_));
    let opened = match target {
        StreamTarget::OpenFile(file) | StreamTarget::SyncedFile(file) => Ok(file),
        StreamTarget::PathToOpen(path) => File::options().write(true).open(path),
    };
    let done = opened.and_then(|mut file| {
        while let Some(piece) = next_piece(shared) {
            // Written in small parts, so that the window advances while a slow reader consumes a large piece.
            for part in piece.chunks(64 * 1024) {
                file.write_all(part)?;
                if let Some(hasher) = &mut hasher {
                    hasher.update(part);
                }
                shared.consumed_end.fetch_add(part.len() as u64, Ordering::Release);
                shared.consumed_notify.notify_one();
            }
        }
        // Not all file systems with sequential writes support fsync. Those that upload a file do it now, or when it
        // is closed.
        match if is_synced { file.sync_all() } else { Ok(()) } {
            Err(e) if !SYNC_UNSUPPORTED.contains(&e.raw_os_error().unwrap_or_default()) => Err(e),
            _ => Ok(()),
        }
    });
    if let Err(why) = done {
        shared.lock().error = Some(why);
        shared.consumed_notify.notify_one();
        return Ok(());
    }
    hasher.map_or(Ok(()), Hasher::finish)
}

fn next_piece(shared: &SharedQueue) -> Option<Vec<u8>> {
    let mut queue = shared.lock();
    loop {
        if let Some(piece) = queue.pieces.pop_front() {
            return Some(piece);
        }
        if queue.is_closed {
            return None;
        }
        queue = shared.has_more.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn pipe(window: u64) -> (StreamWriter, std::io::PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        (
            StreamWriter::new(PathBuf::from("pipe"), StreamTarget::OpenFile(file), DataSize::from_bytes(window)),
            reader,
        )
    }

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|i| ((i * 7919) >> 5) as u8).collect()
    }

    fn pending_len(stream: &StreamWriter) -> usize {
        let queued: usize = stream.shared.lock().pieces.iter().map(Vec::len).sum();
        queued + stream.reorder.pending_bytes() as usize
    }

    #[test]
    fn pieces_in_any_order_are_written_in_order() {
        let data = content(300);
        let (mut stream, mut reader) = pipe(300);
        for (from, to) in [(200, 300), (50, 120), (100, 210), (0, 60), (0, 300)] {
            stream.write(from, &data[from as usize..to]).unwrap();
        }
        stream.finish(Some(300)).unwrap();
        let mut out = Vec::new();
        reader.read_to_end(&mut out).unwrap();
        assert_eq!(out, data);
    }

    #[test]
    fn at_most_the_window_is_buffered_for_a_slow_reader() {
        const WINDOW: usize = 1 << 20;
        let data = content(4 << 20);
        let (mut stream, mut reader) = pipe(WINDOW as u64);
        let mut out = vec![0; data.len()];
        let (mut front, mut seen) = (0_usize, 0);
        while seen < data.len() {
            // Fills the window completely, its second half first.
            let limit = (stream.consumed_end() as usize + WINDOW).min(data.len());
            let middle = front + (limit - front) / 2;
            stream.write(middle as u64, &data[middle..limit]).unwrap();
            stream.write(front as u64, &data[front..middle]).unwrap();
            assert!(pending_len(&stream) <= WINDOW);
            if limit < data.len() {
                let beyond = stream.consumed_end() as usize + WINDOW + 1;
                let past = stream.write(beyond as u64, &[0]);
                assert!(matches!(past, Err(StoreError::BeyondWindow { .. })));
            }
            front = limit;
            seen += reader.read(&mut out[seen..]).unwrap();
        }
        stream.finish(Some(data.len() as u64)).unwrap();
        assert!(out == data);
    }

    #[test]
    fn a_closed_reader_is_an_error_and_no_signal() {
        let (mut stream, reader) = pipe(1 << 20);
        drop(reader);
        let begun = Instant::now();
        let error = loop {
            assert!(begun.elapsed() < Duration::from_secs(20), "no error");
            // On a busy machine the writing thread may be late. Until it has written, the window has no capacity.
            let has_space = stream.reorder.next() + 100 <= stream.consumed_end() + (1 << 20);
            let written = if has_space { stream.write(stream.reorder.next(), &[0; 100]) } else { Ok(()) };
            if let Err(error) = written.and_then(|()| stream.check_reader()) {
                break error;
            }
        };
        assert!(matches!(error, StoreError::ReaderGone { .. }), "{error}");
    }

    #[test]
    fn a_checksum_is_computed_during_writing() {
        let want = "sha256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".parse().unwrap();
        for (text, good) in [(b"abc", true), (b"abd", false)] {
            let (mut stream, _reader) = pipe(10);
            stream.set_hasher(Hasher::new(&want));
            stream.write(1, &text[1..]).unwrap();
            stream.write(0, &text[..1]).unwrap();
            let done = stream.finish(Some(3));
            assert_eq!(done.is_ok(), good, "{done:?}");
        }
    }

    #[test]
    fn a_panic_of_the_writing_thread_is_an_error() {
        let (mut stream, _reader) = pipe(10);
        let shared = stream.shared.clone();
        let thread = std::thread::spawn(move || {
            let _report = PanicReport(&shared);
            panic!("a panic of the test")
        });
        (stream.target, stream.thread) = (None, Some(thread));
        let begun = Instant::now();
        let error = loop {
            assert!(begun.elapsed() < Duration::from_secs(20), "no error");
            if let Err(error) = stream.check_reader() {
                break error;
            }
        };
        assert!(error.to_string().contains("writing thread"), "{error}");
        // Reported again at the end, although the first report was taken.
        let error = stream.finish(None).unwrap_err();
        assert!(matches!(error, StoreError::Io { .. }), "{error}");
    }

    #[test]
    fn delivered_bytes_cannot_be_revoked() {
        let (mut stream, _reader) = pipe(10);
        stream.write(5, b"x").unwrap();
        stream.restart().unwrap();
        stream.write(0, b"abc").unwrap();
        assert!(matches!(stream.restart(), Err(StoreError::ChangedAfterDelivery { .. })));
        assert!(matches!(stream.finish(Some(10)), Err(StoreError::Incomplete { first: 3, .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn every_byte_is_written_once_whatever_the_order(
            pieces in prop::collection::vec((0_usize..2000, 1_usize..300), 0..60)
        ) {
            let data = content(2300);
            let (mut stream, mut reader) = pipe(2300);
            for (at, len) in pieces {
                stream.write(at as u64, &data[at..at + len]).unwrap();
                prop_assert!(pending_len(&stream) <= 2300);
            }
            stream.write(0, &data).unwrap();
            stream.finish(Some(2300)).unwrap();
            let mut out = Vec::new();
            reader.read_to_end(&mut out).unwrap();
            prop_assert!(out == data);
        }
    }
}
