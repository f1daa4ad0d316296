//! Where downloaded bytes go: a file that survives crashes, or a stream that is strictly in order.
//!
//! In: pieces at any offset, from the pump. Out: the complete file under its name, or nothing under that name.
//!
//! The discipline, which the tests check against a model of a file system that drops
//! any un-synced subset of writes:
//!
//! 1. Bytes go to `FILE.part` at once and once. `FILE` appears by a rename when all of them are there, checked and
//!    synced; an older `FILE` is replaced in that moment and not before.
//! 2. `FILE.part.journal` says what is in place. It is begun after 1 MB or 1 s, and only for files with a length and
//!    a strong validator. After a crash of the process its `written` claims hold, after a crash of the machine only
//!    its `synced` ones; `part` has the order of system calls behind that.
//! 3. A journal that is torn, damaged, of another URL, not authentic (`key`), or that claims more than there is, means a
//!    start from zero and one line that says why ([`StartOver`]). Nothing is ever repaired by guessing.
//! 4. One run on one file: `FILE.part` is locked (flock), and a second run is refused. A `FILE.part` that is not ours is
//!    left as it is ([`StoreError::Foreign`]).
//! 5. When the size is known, the free space is looked up, and on file systems where that takes a millisecond the
//!    room is reserved (`disk` has the measurement), so that a full disk is known before the first byte. A disk that
//!    becomes full on the way is an error, and what is there can be resumed.
//! 6. What is read within this program (a player behind the proxy) takes the same way, without a thread (`reader`).
//! 7. What is no regular file (a pipe, a terminal, a device) is a stream: in order, with bounded memory, no journal.
//!    `/dev/null` takes bytes in any order.
//!
//! aio or io_uring for the writes were not used: a `pwrite` into the page cache is a copy, and a copy by another
//! thread costs more than it saves at these rates.

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
pub use error::{Recoverable, StoreError};
pub use memory_stream::{Reader, StreamIdentity};
pub use paths::MAX_NAME_LEN;
pub(crate) use paths::PART_SUFFIXES;
pub use resume::RestartReason;

use digest::{Hasher, Mismatch};
use fs::{FileSystem as _, OsFileSystem};
use partial_file::PartialFile;
use paths::DownloadPaths;
use sequential_file::SequentialFile;
use stream_writer::{StreamTarget, StreamWriter};

/// How far a stream's pieces may run ahead of its reader. Chosen: 400 Mbit/s for a third of a second, more than
/// links that differ by a few hundred milliseconds need.
pub const STREAM_WINDOW: DataSize = DataSize::from_mib(16);

/// What the user's key is used for here.
const KEY_PURPOSE: &str = "marline journal of a download, format 2";

/// One download's bytes.
#[derive(Debug)]
pub struct Store {
    backend: Backend,
    /// What the user called it; none: standard output.
    requested_path: Option<PathBuf>,
    checksum: Option<Checksum>,
    /// The checksum under way.
    checksum_run: Option<ChecksumRun>,
    total: Option<DataSize>,
    /// What the user should read.
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
    /// `/dev/null`.
    Null,
}

/// A store, and what an earlier run left in it.
#[derive(Debug)]
pub struct Opened {
    /// Takes the bytes.
    pub store: Store,
    /// What is there already.
    pub resume: Option<Resume>,
    /// Why what is there is not used; one line for the user.
    pub restart_reason: Option<RestartReason>,
}

impl Store {
    /// Opens the file at `path` for a download from `urls`, all of the same file, and looks for what an earlier run
    /// left. What is there but no regular file becomes a stream.
    ///
    /// # Errors
    /// When the file cannot be made there, or another run is at it.
    pub fn open(path: &Path, urls: &[Url]) -> Result<Opened, StoreError> {
        let meta = match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => return Err(StoreError::IsDirectory { path: path.to_owned() }),
            Ok(meta) => Some(meta),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(StoreError::io(path, "looking at it", e)),
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
            let kind = if null { Backend::Null } else { Backend::Stream(stream()) };
            return Ok(Opened { store: Self::new(kind, Some(path)), resume: None, restart_reason: None });
        }
        // Through a symbolic link, as a plain write would go; a rename would replace the link itself.
        let real = if path.is_symlink() { path.canonicalize().ok() } else { None };
        let real = real.unwrap_or_else(|| path.to_owned());
        let max_len = OsFileSystem::default().max_name_len(paths::parent_dir(&real));
        let paths = DownloadPaths::new(&real, max_len);
        if real.file_name().is_none_or(|name| name.len() > max_len) {
            return Err(StoreError::NameTooLong { path: path.to_owned(), most: max_len });
        }
        if !paths.dir.is_dir() {
            return Err(StoreError::NoDirectory { path: path.to_owned(), dir: paths.dir });
        }
        if paths::is_partial_state(&real) {
            return Err(StoreError::IsPartialState { path: path.to_owned() });
        }
        let urls: Vec<_> = urls.iter().map(digest::url_digest).collect();
        match PartialFile::open(OsFileSystem::default(), paths.clone(), &urls) {
            Ok((part, existing)) if part.supports_random_writes() => {
                let (resume, start_over) = existing.into_resume(&urls);
                Ok(Opened {
                    store: Self::new(Backend::File(Box::new(part)), Some(path)),
                    resume,
                    restart_reason: start_over,
                })
            }
            Ok((part, _)) => {
                Self::open_sequential(part.abandon()?, path).map_err(|e| StoreError::io(&paths.part, "opening", e))
            }
            // Some take a file only when it is open for nothing but writing.
            Err(why) if why.is_open_refused(&paths.part) => {
                Self::open_sequential(paths, path).map_err(|_| match why {
                    StoreError::NameRefused { why, .. } => StoreError::NameRefused { path: path.to_owned(), why },
                    why => why,
                })
            }
            Err(why) => Err(why),
        }
    }

    /// Like [`Store::open`], for a name that a URL or a server suggests: what the file system does not take of it is
    /// changed, and [`Store::take_note`] says so.
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

    /// The file, written from its first byte to its last.
    fn open_sequential(paths: DownloadPaths, path: &Path) -> io::Result<Opened> {
        let dir = paths.dir.display().to_string();
        let mut store = Self::new(Backend::Sequential(Box::new(SequentialFile::create(paths)?)), Some(path));
        store.notes.push(format!(
            "{dir}: this file system takes bytes only in order; the download cannot be resumed if it is interrupted"
        ));
        Ok(Opened { store, resume: None, restart_reason: None })
    }

    /// Standard output.
    ///
    /// # Errors
    /// When it is closed.
    pub fn stdout() -> Result<Self, StoreError> {
        let path = PathBuf::from("standard output");
        if marline_sys::early::is_stdout_closed() {
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

    /// For a reader within this program, of the bytes from `from` onwards. With `fixed` it knows the file already.
    pub(crate) fn for_reader(from: u64, window: DataSize, fixed: bool) -> (Self, Reader) {
        let (writer, reader) = memory_stream::reader_pair(from, window, fixed);
        (Self::new(Backend::Reader(writer), None), reader)
    }

    fn new(kind: Backend, called: Option<&Path>) -> Self {
        Self {
            backend: kind,
            requested_path: called.map(Path::to_owned),
            checksum: None,
            checksum_run: None,
            total: None,
            notes: Vec::new(),
        }
    }

    /// What the whole must hash to. To be called before the first [`Store::write`].
    pub fn expect_checksum(&mut self, checksum: Checksum) {
        match &mut self.backend {
            Backend::File(_) => self.checksum = Some(checksum),
            Backend::Sequential(file) => file.stream.set_hasher(Hasher::new(&checksum)),
            Backend::Stream(stream) => stream.set_hasher(Hasher::new(&checksum)),
            // Nobody asks for one: the player would have to be told after it has played.
            Backend::Reader(_) => {}
            Backend::Null => {
                let path = PathBuf::from("/dev/null");
                let mut stream = StreamWriter::new(path.clone(), StreamTarget::PathToOpen(path), STREAM_WINDOW);
                stream.set_hasher(Hasher::new(&checksum));
                self.backend = Backend::Stream(Box::new(stream));
            }
        }
    }

    /// Whether a digest that becomes known on the way can still be compared: streams have passed bytes on by then.
    pub fn supports_late_checksum(&self) -> bool {
        matches!(self.backend, Backend::File(_))
    }

    /// For streams: how far beyond [`Store::consumed`] a write may reach. None: any order will do.
    pub fn window(&self) -> Option<DataSize> {
        match &self.backend {
            Backend::Sequential(file) => Some(file.stream.window()),
            Backend::Stream(stream) => Some(stream.window()),
            Backend::Reader(writer) => Some(writer.window()),
            Backend::File(_) | Backend::Null => None,
        }
    }

    /// For streams: one past the last byte that the reader has taken. Zero for files.
    pub fn consumed(&self) -> u64 {
        match &self.backend {
            Backend::Sequential(file) => file.stream.consumed_end(),
            Backend::Stream(stream) => stream.consumed_end(),
            Backend::Reader(writer) => writer.consumed_end(),
            Backend::File(_) | Backend::Null => 0,
        }
    }

    /// For streams: told when [`Store::consumed`] has grown or the reader is gone ([`Store::tick`] then says so).
    pub fn reader_notify(&self) -> Option<Arc<Notify>> {
        match &self.backend {
            Backend::Sequential(file) => Some(file.stream.consumed_notify()),
            Backend::Stream(stream) => Some(stream.consumed_notify()),
            Backend::Reader(writer) => Some(writer.consumed_notify()),
            Backend::File(_) | Backend::Null => None,
        }
    }

    /// The final name is another one, in the same directory (Content-Disposition). A name that a server chose
    /// replaces no file: if it is taken, a number is put behind it. A name that the file system does not take is adapted
    /// to it, and [`Store::take_note`] says so; one with a slash is ignored. Without effect on streams.
    pub fn suggest_name(&mut self, name: &OsStr) {
        let note = match &mut self.backend {
            Backend::File(part) => part.suggest_name(name),
            Backend::Sequential(file) => file.paths.suggest_name(&OsFileSystem::default(), name),
            Backend::Stream(_) | Backend::Reader(_) | Backend::Null => return,
        };
        self.notes.extend(note);
        self.requested_path = None;
    }

    /// The final name is this one, in the same directory. `replaces`: a file that has it is replaced; otherwise a number
    /// is put behind it. Without effect on streams.
    pub(crate) fn set_final_name(&mut self, name: &OsStr, replaces: bool) {
        self.suggest_name(name);
        match &mut self.backend {
            Backend::File(part) => part.paths_mut().keep_existing = !replaces,
            Backend::Sequential(file) => file.paths.keep_existing = !replaces,
            Backend::Stream(_) | Backend::Reader(_) | Backend::Null => {}
        }
    }

    /// What comes from now on is of this URL.
    pub(crate) fn set_url(&mut self, url: &Url) {
        if let Backend::File(part) = &mut self.backend {
            part.set_url_digest(digest::url_digest(url));
        }
    }

    /// Reads some bytes that are in their place; none of a stream.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        match &self.backend {
            Backend::File(part) => part.read(at, bytes),
            Backend::Sequential(_) | Backend::Stream(_) | Backend::Reader(_) | Backend::Null => Ok(0),
        }
    }

    /// The file is known; from now on a journal may be kept.
    ///
    /// # Errors
    /// When the disk has no room for it, or the journal cannot be written.
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

    /// A response with this strong ETag has this Last-Modified. Gives another one that an earlier run of this download was
    /// told under the same ETag.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn set_last_modified(&mut self, etag: &str, modified: &str) -> Result<Option<String>, StoreError> {
        match &mut self.backend {
            Backend::File(part) => part.set_last_modified(etag, modified),
            Backend::Sequential(_) | Backend::Stream(_) | Backend::Reader(_) | Backend::Null => Ok(None),
        }
    }

    /// Puts bytes in their place. Cheap: one system call for a file, one copy for a stream; never waits for a disk
    /// or a reader.
    ///
    /// # Errors
    /// When the disk is full or fails, the reader is gone, or a piece lies beyond a stream's window.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        match &mut self.backend {
            Backend::File(part) => part.write(at, bytes),
            Backend::Sequential(file) => file.stream.write(at, bytes),
            Backend::Stream(stream) => stream.write(at, bytes),
            Backend::Reader(writer) => writer.write(at, bytes),
            Backend::Null => Ok(()),
        }
    }

    /// Lets time pass; to be called at [`Store::deadline`], and whenever it is convenient.
    ///
    /// # Errors
    /// As [`Store::write`], for what happened in the background.
    pub fn tick(&mut self, now: Instant) -> Result<(), StoreError> {
        match &mut self.backend {
            Backend::File(part) => part.tick(now),
            Backend::Sequential(file) => file.stream.check_reader(),
            Backend::Stream(stream) => stream.check_reader(),
            Backend::Reader(writer) => writer.check_reader(),
            Backend::Null => Ok(()),
        }
    }

    /// A line for the user about how the bytes are stored, once it is known.
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

    /// The file is another one now: everything that is stored is thrown away.
    ///
    /// # Errors
    /// When that fails, or a stream's reader has already had some of it.
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

    /// All bytes are there: reads some of them again for the checksum; how many have been read by now. None: there is
    /// nothing (more) to check. In pieces, so that whoever waits for gigabytes can still be stopped.
    ///
    /// # Errors
    /// When bytes are missing, the checksum is another one, or the disk fails.
    pub fn check_step(&mut self) -> Result<Option<u64>, StoreError> {
        let Backend::File(part) = &mut self.backend else { return Ok(None) };
        let mut checking = match (self.checksum_run.take(), &self.checksum) {
            (Some(checking), _) => checking,
            (None, None) => return Ok(None),
            (None, Some(checksum)) => {
                let hasher = Hasher::new(checksum);
                ChecksumRun { hasher, offset: 0, total: part.check_complete()?, buffer: vec![0; CHECK_LEN] }
            }
        };
        let len =
            if checking.offset < checking.total { part.read(checking.offset, &mut checking.buffer)? } else { 0 };
        if len > 0 {
            checking.hasher.update(checking.buffer.get(..len).unwrap_or_default());
            checking.offset += len as u64;
            let at = checking.offset;
            self.checksum_run = Some(checking);
            return Ok(Some(at));
        }
        checking.hasher.finish().map_err(|Mismatch { algorithm: name, computed: got, expected: want }| {
            let path = part.paths().final_path.clone();
            match part.invalidate() {
                Ok(part_path) => StoreError::ChecksumMismatch {
                    path,
                    name,
                    got,
                    want,
                    kept: Recoverable::InFile(part_path.to_owned()),
                },
                Err(e) => e,
            }
        })?;
        self.checksum = None;
        Ok(None)
    }

    /// All bytes are there: checks them (the rest of [`Store::check`]), makes them safe and gives the file its name,
    /// which comes back as the user wrote it (none for standard output). A stream's reader is waited for; who must not
    /// block waits for [`Store::consumed`] first.
    ///
    /// # Errors
    /// When bytes are missing, the checksum is another one, or the disk fails.
    pub fn finish(mut self) -> Result<Option<PathBuf>, StoreError> {
        while self.check_step()?.is_some() {}
        let Self { backend: kind, requested_path: called, total, .. } = self;
        match kind {
            Backend::File(mut part) => {
                part.complete_and_sync()?;
                let path = part.publish()?;
                Ok(Some(called.unwrap_or(path)))
            }
            Backend::Sequential(file) => {
                let path = file.finish(total.map(DataSize::bytes))?;
                Ok(Some(called.unwrap_or(path)))
            }
            Backend::Stream(stream) => stream.finish(total.map(DataSize::bytes)).map(|()| called),
            Backend::Reader(_) | Backend::Null => Ok(called),
        }
    }

    /// The run ends early. What is there is made safe; true if the next run can go on from it.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn suspend(self) -> Result<bool, StoreError> {
        match self.backend {
            Backend::File(part) => part.suspend(),
            Backend::Sequential(file) => file.abandon().map(|()| false),
            Backend::Stream(_) | Backend::Reader(_) | Backend::Null => Ok(false),
        }
    }
}

/// Whether a file at `other` would be the one at `path`, or be in the way of it while it is unfinished.
pub(crate) fn conflicts_with(other: &Path, path: &Path) -> bool {
    // A device takes what anybody writes.
    if path.metadata().is_ok_and(|meta| !meta.is_file()) {
        return false;
    }
    let path = paths::follow_symlinks(path);
    let paths = DownloadPaths::new(&path, OsFileSystem::default().max_name_len(paths::parent_dir(&path)));
    let other = paths::follow_symlinks(other);
    let names = [&paths.final_path, &paths.part, &paths.journal, &paths.new_journal];
    names.into_iter().any(|name| paths::is_same_file(&other, name))
}

/// Whether a file at `other` is the one to which standard output goes.
pub(crate) fn is_stdout_file(other: &Path) -> bool {
    let Ok(out) = io::stdout().as_fd().try_clone_to_owned() else { return false };
    match (other.metadata(), File::from(out).metadata()) {
        (Ok(other), Ok(out)) => out.is_file() && (other.dev(), other.ino()) == (out.dev(), out.ino()),
        _ => false,
    }
}

/// Read at once for a checksum. chosen: half a millisecond of SHA-256.
const CHECK_LEN: usize = 256 * 1024;
