//! Storage of downloaded bytes: a file that survives crashes, or a stream that is strictly in order.
//!
//! The driver writes pieces at any offset. In the end the complete file exists under its name, or no file under
//! that name.
//!
//! The following rules are tested against a model of a file system that loses any subset of the unsynced writes:
//!
//! 1. Each byte is written once, at once, to `FILE.part`. `FILE` appears by a rename when all bytes are complete and
//!    verified, and, if the file has a journal, synced. An older `FILE` is replaced at that moment and not earlier.
//! 2. `FILE.part.journal` records which bytes are stored. It is created after 1 MB or 1 s, and only for files with
//!    a known size and a strong validator. After a crash of the process its `written` records hold, after a crash
//!    of the host only its `synced` records. `partial_file` has the order of system calls that ensures this.
//! 3. A download starts from zero if the journal is torn, damaged, not authentic (`mac_key`), of another URL, or
//!    records more than the file has. One message gives the reason ([`RestartReason`]). Nothing is repaired by
//!    guessing.
//! 4. Only one run writes a file: `FILE.part` is locked (flock), and a second run fails. A `FILE.part` that marline
//!    did not write is left unchanged ([`StoreError::ForeignFile`]).
//! 5. When the size is known, the free space is checked. On file systems where that takes a millisecond the space
//!    is allocated (`fs` has the measurement). So a full disk is noticed before the first byte. If the disk
//!    becomes full later, the run fails, and the stored bytes can be resumed.
//! 6. Bytes for a reader within this program (a player behind the proxy) take the same path, without a thread
//!    (`memory_stream`).
//! 7. A target that is no regular file (a pipe, a terminal, a device) is a stream: in order, with bounded memory,
//!    without a journal. `/dev/null` accepts bytes in any order.
//!
//! Writing with aio or io_uring was rejected: a `pwrite` into the page cache is a copy, and at these rates a copy
//! by another thread costs more than it saves.
//!
//! `partial_file` decides what is written, recorded and synced when. `journal_file` writes the journal, from the ranges
//! that `coalesce` merges; `resume` reads it. `fs` and `fsync_thread` are the system calls; `paths` and `portable_name`
//! choose names. `stream_writer`, `memory_stream` and `sequential_file` write in order, with `reorder_buffer`. `digest`
//! computes checksums, and `completed_files` lists what needs no second download.

mod coalesce;
mod completed_files;
#[cfg(test)]
mod crash_tests;
mod digest;
mod error;
#[cfg(test)]
mod fake_fs;
mod fs;
#[cfg(test)]
mod fs_quirks;
mod fsync_thread;
mod journal_file;
mod mac_key;
mod memory_stream;
mod partial_file;
mod paths;
mod portable_name;
mod reorder_buffer;
mod resume;
mod sequential_file;
mod stream_writer;
#[cfg(test)]
mod tampering_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unusual_fs_tests;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline_core::fetch::{Resume, Validator};
use marline_core::units::{DataSize, Instant};
use marline_net::checksum::Checksum;
use tokio::sync::Notify;
use url::Url;

pub(crate) use completed_files::{CompletedFile, CompletedFiles};
pub use error::{MismatchedBytes, StoreError};
pub use memory_stream::{Reader, StreamIdentity};
pub use resume::RestartReason;

use digest::{Hasher, Mismatch};
use fs::{FileSystem as _, OsFileSystem};
use partial_file::PartialFile;
use paths::DownloadPaths;
use sequential_file::SequentialFile;
use stream_writer::{StreamTarget, StreamWriter};

/// How far the pieces of a stream may be ahead of its reader. Our choice: 400 Mbit/s for a third of a second, which
/// is more than needed for links whose delays differ by a few hundred milliseconds.
pub const STREAM_WINDOW: DataSize = DataSize::from_mib(16);

/// Derives the journal's MAC key from the user's key. Changing the text invalidates all existing journals.
const KEY_PURPOSE: &str = "marline journal of a download, format 2";

/// The target of one download.
#[derive(Debug)]
pub struct Store {
    backend: Backend,
    /// Path as the user wrote it; none: standard output, or a name that was changed since.
    requested_path: Option<PathBuf>,
    checksum: Option<Checksum>,
    /// The verification in progress.
    checksum_run: Option<ChecksumRun>,
    total: Option<DataSize>,
    /// Messages for the user.
    notes: Vec<String>,
}

/// A complete file that is being read for its checksum.
#[derive(Debug)]
struct ChecksumRun {
    hasher: Hasher,
    /// One past the last byte that was read.
    offset: u64,
    total: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Backend {
    File(Box<PartialFile<OsFileSystem>>),
    Sequential(Box<SequentialFile>),
    Stream(Box<StreamWriter>),
    Reader(memory_stream::Writer),
    /// `/dev/null`: bytes are discarded.
    Null,
}

/// A store, and the state that an earlier run has left.
#[derive(Debug)]
pub struct Opened {
    /// The store, which accepts the bytes of the download.
    pub store: Store,
    /// Bytes that the new run can keep; none: it starts from zero.
    pub resume: Option<Resume>,
    /// Why existing bytes are not used; one line for the user.
    pub restart_reason: Option<RestartReason>,
}

impl Store {
    /// Opens the file at `path` for a download from `urls`, all of the same file, and reads the state that an
    /// earlier run has left. An existing target that is not a regular file becomes a stream.
    ///
    /// # Errors
    /// The file cannot be created, or another run is writing it.
    pub fn open(path: &Path, urls: &[Url]) -> Result<Opened, StoreError> {
        let meta = match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => return Err(StoreError::IsDirectory { path: path.to_owned() }),
            Ok(meta) => Some(meta),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(StoreError::io(path, "reading its attributes", e)),
        };
        if let Some(meta) = meta.as_ref().filter(|meta| !meta.is_file()) {
            let null = meta.file_type().is_char_device() && path == Path::new("/dev/null");
            let stream = || {
                Box::new(StreamWriter::new(
                    path.to_owned(),
                    StreamTarget::PathToOpen(path.to_owned()),
                    STREAM_WINDOW,
                ))
            };
            let backend = if null { Backend::Null } else { Backend::Stream(stream()) };
            return Ok(Opened { store: Self::new(backend, Some(path)), resume: None, restart_reason: None });
        }
        // A symbolic link is followed, as by a plain write. The rename at the end would replace the link itself.
        let resolved = if path.is_symlink() { path.canonicalize().ok() } else { None };
        let resolved = resolved.unwrap_or_else(|| path.to_owned());
        let max_len = OsFileSystem::default().max_name_len(paths::parent_dir(&resolved));
        let paths = DownloadPaths::new(&resolved, max_len);
        if resolved.file_name().is_none_or(|name| name.len() > max_len) {
            return Err(StoreError::NameTooLong { path: path.to_owned(), most: max_len });
        }
        if !paths.dir.is_dir() {
            return Err(StoreError::NoDirectory { path: path.to_owned(), dir: paths.dir });
        }
        if paths::is_partial_state(&resolved) {
            return Err(StoreError::IsPartialState { path: path.to_owned() });
        }
        let urls: Vec<_> = urls.iter().map(digest::url_digest).collect();
        match PartialFile::open(OsFileSystem::default(), paths.clone(), &urls) {
            Ok((part, existing)) if part.supports_random_writes() => {
                let (resume, restart_reason) = existing.into_resume(&urls);
                Ok(Opened { store: Self::new(Backend::File(Box::new(part)), Some(path)), resume, restart_reason })
            }
            Ok((part, _)) => {
                Self::open_sequential(part.abandon()?, path).map_err(|e| StoreError::io(&paths.part, "opening", e))
            }
            // Some file systems open a file for writing only, not for reading and writing.
            Err(why) if why.is_open_refused(&paths.part) => {
                Self::open_sequential(paths, path).map_err(|_| match why {
                    StoreError::NameRefused { why, .. } => StoreError::NameRefused { path: path.to_owned(), why },
                    why => why,
                })
            }
            Err(why) => Err(why),
        }
    }

    /// Like [`Store::open`], for a name that a URL or a server suggests. If the file system rejects it, the name is
    /// adapted, and [`Store::take_note`] returns a message about it.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_suggested(path: &Path, urls: &[Url]) -> Result<Opened, StoreError> {
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { return Self::open(path, urls) };
        let max_len = OsFileSystem::default().max_name_len(paths::parent_dir(path));
        let mut first_error = None;
        for candidate in portable_name::name_candidates(name, max_len) {
            match Self::open(&path.with_file_name(&candidate), urls) {
                Err(why @ (StoreError::NameRefused { .. } | StoreError::NameTooLong { .. })) => {
                    first_error.get_or_insert(why);
                }
                Ok(mut opened) => {
                    opened.store.notes.extend((candidate != name).then(|| paths::adapted_note(name, &candidate)));
                    return Ok(opened);
                }
                Err(why) => return Err(why),
            }
        }
        Err(first_error.unwrap_or_else(|| StoreError::NameTooLong { path: path.to_owned(), most: 0 }))
    }

    /// A file that is written sequentially, from its first byte to its last.
    fn open_sequential(paths: DownloadPaths, path: &Path) -> io::Result<Opened> {
        let dir = paths.dir.display().to_string();
        let mut store = Self::new(Backend::Sequential(Box::new(SequentialFile::create(paths)?)), Some(path));
        store.notes.push(format!(
            "{dir}: this file system accepts only sequential writes; the download cannot be resumed if it is interrupted"
        ));
        Ok(Opened { store, resume: None, restart_reason: None })
    }

    /// Opens standard output as a stream.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn stdout() -> Result<Self, StoreError> {
        let path = PathBuf::from("standard output");
        if marline_sys::pre_main::is_stdout_closed() {
            return Err(StoreError::io(&path, "opening", rustix::io::Errno::BADF.into()));
        }
        let fd = io::stdout().as_fd().try_clone_to_owned().map_err(|e| StoreError::io(&path, "opening", e))?;
        Ok(Self::new(
            Backend::Stream(Box::new(StreamWriter::new(
                path,
                StreamTarget::OpenFile(File::from(fd)),
                STREAM_WINDOW,
            ))),
            None,
        ))
    }

    /// A stream for a reader within this program that begins at offset `from`. With `fixed`, the reader already
    /// knows the file, and it must not change.
    pub(crate) fn for_reader(from: u64, window: DataSize, fixed: bool) -> (Self, Reader) {
        let (writer, reader) = memory_stream::reader_pair(from, window, fixed);
        (Self::new(Backend::Reader(writer), None), reader)
    }

    fn new(backend: Backend, requested_path: Option<&Path>) -> Self {
        Self {
            backend,
            requested_path: requested_path.map(Path::to_owned),
            checksum: None,
            checksum_run: None,
            total: None,
            notes: Vec::new(),
        }
    }

    /// Sets the expected checksum of the full file. For a stream, call it before the first [`Store::write`].
    pub fn expect_checksum(&mut self, checksum: Checksum) {
        match &mut self.backend {
            Backend::File(_) => self.checksum = Some(checksum),
            Backend::Sequential(file) => file.stream.set_hasher(Hasher::new(&checksum)),
            Backend::Stream(stream) => stream.set_hasher(Hasher::new(&checksum)),
            // Not supported: the player would learn of a mismatch only after it has played the bytes.
            Backend::Reader(_) => {}
            // A checksum needs the bytes in order, so the device is written like any other stream.
            Backend::Null => {
                let path = PathBuf::from("/dev/null");
                let mut stream = StreamWriter::new(path.clone(), StreamTarget::PathToOpen(path), STREAM_WINDOW);
                stream.set_hasher(Hasher::new(&checksum));
                self.backend = Backend::Stream(Box::new(stream));
            }
        }
    }

    /// Whether a digest that becomes known during the download can still be verified. Streams have delivered bytes
    /// by then.
    pub fn supports_late_checksum(&self) -> bool {
        matches!(self.backend, Backend::File(_))
    }

    /// For streams: how far beyond [`Store::consumed`] a write may reach. None: no limit, bytes may come in any
    /// order.
    pub fn window(&self) -> Option<DataSize> {
        match &self.backend {
            Backend::Sequential(file) => Some(file.stream.window()),
            Backend::Stream(stream) => Some(stream.window()),
            Backend::Reader(writer) => Some(writer.window()),
            Backend::File(_) | Backend::Null => None,
        }
    }

    /// For streams: one past the last byte that the reader has consumed. Zero for files.
    pub fn consumed(&self) -> u64 {
        match &self.backend {
            Backend::Sequential(file) => file.stream.consumed_end(),
            Backend::Stream(stream) => stream.consumed_end(),
            Backend::Reader(writer) => writer.consumed_end(),
            Backend::File(_) | Backend::Null => 0,
        }
    }

    /// For streams: notified when [`Store::consumed`] has grown or the reader is gone ([`Store::tick`] then fails).
    pub fn reader_notify(&self) -> Option<Arc<Notify>> {
        match &self.backend {
            Backend::Sequential(file) => Some(file.stream.consumed_notify()),
            Backend::Stream(stream) => Some(stream.consumed_notify()),
            Backend::Reader(writer) => Some(writer.consumed_notify()),
            Backend::File(_) | Backend::Null => None,
        }
    }

    /// Sets another final name in the same directory (Content-Disposition). A name from a server replaces no file:
    /// if it is taken, a number is appended. A name that the file system rejects is adapted, and
    /// [`Store::take_note`] returns a message about it. A name with a slash is ignored. Without effect on streams.
    pub fn suggest_name(&mut self, name: &OsStr) {
        let note = match &mut self.backend {
            Backend::File(part) => part.suggest_name(name),
            Backend::Sequential(file) => file.paths.suggest_name(&OsFileSystem::default(), name),
            Backend::Stream(_) | Backend::Reader(_) | Backend::Null => return,
        };
        self.notes.extend(note);
        self.requested_path = None;
    }

    /// Sets the final name, in the same directory. With `replaces`, an existing file is replaced; otherwise a
    /// number is appended to the new name. Without effect on streams.
    pub(crate) fn set_final_name(&mut self, name: &OsStr, replaces: bool) {
        self.suggest_name(name);
        match &mut self.backend {
            Backend::File(part) => part.paths_mut().keep_existing = !replaces,
            Backend::Sequential(file) => file.paths.keep_existing = !replaces,
            Backend::Stream(_) | Backend::Reader(_) | Backend::Null => {}
        }
    }

    /// Sets the URL to which the following bytes belong; the journal records it.
    pub(crate) fn set_url(&mut self, url: &Url) {
        if let Backend::File(part) = &mut self.backend {
            part.set_url_digest(digest::url_digest(url));
        }
    }

    /// Reads stored bytes; always zero bytes for streams.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        match &self.backend {
            Backend::File(part) => part.read(at, bytes),
            Backend::Sequential(_) | Backend::Stream(_) | Backend::Reader(_) | Backend::Null => Ok(0),
        }
    }

    /// Sets size and validator of the file. From now on a journal may be kept.
    ///
    /// # Errors
    /// The disk has not enough space, or the journal cannot be written.
    pub fn on_identified(
        &mut self,
        total: Option<DataSize>,
        validator: Option<&Validator>,
    ) -> Result<(), StoreError> {
        self.total = total;
        match &mut self.backend {
            Backend::File(part) => part.on_identified(total, validator),
            Backend::Sequential(file) => total.map_or(Ok(()), |total| file.check_space(total)),
            Backend::Reader(writer) => {
                writer.on_identified(total, validator);
                Ok(())
            }
            Backend::Stream(_) | Backend::Null => Ok(()),
        }
    }

    /// Records that a response with this strong ETag has this Last-Modified. Returns the previous value if an
    /// earlier run received another one under the same ETag.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn set_last_modified(&mut self, etag: &str, modified: &str) -> Result<Option<String>, StoreError> {
        match &mut self.backend {
            Backend::File(part) => part.set_last_modified(etag, modified),
            Backend::Sequential(_) | Backend::Stream(_) | Backend::Reader(_) | Backend::Null => Ok(None),
        }
    }

    /// Stores bytes at an offset. Costs one system call for a file, seldom a second one for its journal, and one copy for a
    /// stream. It never waits for a disk or a reader.
    ///
    /// # Errors
    /// The disk is full or fails, the reader is gone, or the bytes exceed the window of a stream.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        match &mut self.backend {
            Backend::File(part) => part.write(at, bytes),
            Backend::Sequential(file) => file.stream.write(at, bytes),
            Backend::Stream(stream) => stream.write(at, bytes),
            Backend::Reader(writer) => writer.write(at, bytes),
            Backend::Null => Ok(()),
        }
    }

    /// Performs the work that is due. Call it at [`Store::deadline`]; earlier calls do no harm.
    ///
    /// # Errors
    /// As [`Store::write`], for operations that run in the background.
    pub fn tick(&mut self, now: Instant) -> Result<(), StoreError> {
        match &mut self.backend {
            Backend::File(part) => part.tick(now),
            Backend::Sequential(file) => file.stream.check_reader(),
            Backend::Stream(stream) => stream.check_reader(),
            Backend::Reader(writer) => writer.check_reader(),
            Backend::Null => Ok(()),
        }
    }

    /// The next message for the user about how the bytes are stored.
    pub fn take_note(&mut self) -> Option<String> {
        match &mut self.backend {
            _ if !self.notes.is_empty() => Some(self.notes.remove(0)),
            Backend::File(part) => part.take_note(),
            Backend::Sequential(_) | Backend::Stream(_) | Backend::Reader(_) | Backend::Null => None,
        }
    }

    /// When [`Store::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.backend {
            Backend::File(part) => part.deadline(),
            Backend::Sequential(_) | Backend::Stream(_) | Backend::Reader(_) | Backend::Null => None,
        }
    }

    /// Discards all stored bytes: the download begins again, for example because the file has changed.
    ///
    /// # Errors
    /// The bytes cannot be discarded, or the reader of a stream has consumed some of them.
    pub fn restart(&mut self) -> Result<(), StoreError> {
        self.total = None;
        match &mut self.backend {
            Backend::File(part) => part.restart(),
            Backend::Sequential(file) => file.stream.restart(),
            Backend::Stream(stream) => stream.restart(),
            Backend::Reader(writer) => writer.restart(),
            Backend::Null => Ok(()),
        }
    }

    /// Reads the next part of the complete file for its checksum. Returns the number of bytes read so far; none:
    /// nothing (more) to verify. The work is split, so that the user can stop a verification of gigabytes.
    ///
    /// # Errors
    /// Bytes are missing, the checksum differs, or the disk fails.
    pub fn check_step(&mut self) -> Result<Option<u64>, StoreError> {
        let Backend::File(part) = &mut self.backend else { return Ok(None) };
        let mut run = match (self.checksum_run.take(), &self.checksum) {
            (Some(run), _) => run,
            (None, None) => return Ok(None),
            (None, Some(checksum)) => {
                let hasher = Hasher::new(checksum);
                ChecksumRun { hasher, offset: 0, total: part.check_complete()?, buffer: vec![0; CHECK_LEN] }
            }
        };
        let len = if run.offset < run.total { part.read(run.offset, &mut run.buffer)? } else { 0 };
        if len > 0 {
            run.hasher.update(run.buffer.get(..len).unwrap_or_default());
            run.offset += len as u64;
            let at = run.offset;
            self.checksum_run = Some(run);
            return Ok(Some(at));
        }
        run.hasher.finish().map_err(|Mismatch { algorithm: name, computed: got, expected: want }| {
            // A resume must not continue with these bytes, so the journal is removed. The bytes stay for
            // inspection.
            let path = part.paths().final_path.clone();
            match part.invalidate() {
                Ok(part_path) => StoreError::ChecksumMismatch {
                    path,
                    name,
                    got,
                    want,
                    location: MismatchedBytes::InFile(part_path.to_owned()),
                },
                Err(e) => e,
            }
        })?;
        self.checksum = None;
        Ok(None)
    }

    /// Completes the file: finishes [`Store::check_step`], syncs the bytes and renames the file. Returns its path
    /// as the user wrote it (none for standard output). For a stream, it blocks until the reader has consumed
    /// everything; a caller that must not block waits for [`Store::consumed`] first.
    ///
    /// # Errors
    /// Bytes are missing, the checksum differs, or the disk fails.
    pub fn finish(mut self) -> Result<Option<PathBuf>, StoreError> {
        while self.check_step()?.is_some() {}
        let Self { backend, requested_path, total, .. } = self;
        match backend {
            Backend::File(mut part) => {
                part.complete_and_sync()?;
                let path = part.publish()?;
                Ok(Some(requested_path.unwrap_or(path)))
            }
            Backend::Sequential(file) => {
                let path = file.finish(total.map(DataSize::bytes))?;
                Ok(Some(requested_path.unwrap_or(path)))
            }
            Backend::Stream(stream) => stream.finish(total.map(DataSize::bytes)).map(|()| requested_path),
            Backend::Reader(_) | Backend::Null => Ok(requested_path),
        }
    }

    /// Ends the run early and makes the stored bytes durable. Returns whether the next run can resume.
    ///
    /// # Errors
    /// The disk fails.
    pub fn suspend(self) -> Result<bool, StoreError> {
        match self.backend {
            Backend::File(part) => part.suspend(),
            Backend::Sequential(file) => file.abandon().map(|()| false),
            Backend::Stream(_) | Backend::Reader(_) | Backend::Null => Ok(false),
        }
    }
}

/// Whether a file at `other` would be the target at `path`, or one of the target's unfinished files.
pub(crate) fn conflicts_with(other: &Path, path: &Path) -> bool {
    // Several writers of a device do not conflict.
    if path.metadata().is_ok_and(|meta| !meta.is_file()) {
        return false;
    }
    let path = paths::follow_symlinks(path);
    let paths = DownloadPaths::new(&path, OsFileSystem::default().max_name_len(paths::parent_dir(&path)));
    let other = paths::follow_symlinks(other);
    let names = [&paths.final_path, &paths.part, &paths.journal, &paths.new_journal];
    names.into_iter().any(|name| paths::is_same_file(&other, name))
}

/// Whether `other` is the file to which standard output is redirected.
pub(crate) fn is_stdout_file(other: &Path) -> bool {
    let Ok(out) = io::stdout().as_fd().try_clone_to_owned() else { return false };
    match (other.metadata(), File::from(out).metadata()) {
        (Ok(other), Ok(out)) => out.is_file() && (other.dev(), other.ino()) == (out.dev(), out.ino()),
        _ => false,
    }
}

/// Bytes read in one step of the checksum. Our choice: half a millisecond of SHA-256.
const CHECK_LEN: usize = 256 * 1024;
