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

#[cfg(test)]
mod crashes;
mod digest;
mod disk;
mod error;
mod finished;
mod fit;
mod found;
mod inorder;
mod key;
mod log;
#[cfg(test)]
mod model;
#[cfg(test)]
mod odd;
mod order;
mod part;
mod place;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod quirks;
mod reader;
mod runs;
mod stream;
mod syncer;
#[cfg(test)]
mod tests;

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

pub use error::{Kept, StoreError};
pub(crate) use finished::{Finished, Record};
pub use found::StartOver;
pub use place::NAME_MAX;
pub(crate) use place::RESERVED;
pub use reader::{Identity, Reader};

use digest::{Hasher, Mismatch};
use disk::{Disk as _, Os};
use inorder::InOrder;
use part::Part;
use place::Place;
use stream::{Sink, Stream};

/// How far a stream's pieces may run ahead of its reader. Chosen: 400 Mbit/s for a third of a second, more than
/// links that differ by a few hundred milliseconds need.
pub const WINDOW: DataSize = DataSize::from_mib(16);

/// What the user's key is used for here.
const PURPOSE: &str = "marline journal of a download, format 2";

/// One download's bytes.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    /// What the user called it; none: standard output.
    called: Option<PathBuf>,
    checksum: Option<Checksum>,
    /// The checksum under way.
    checking: Option<Checking>,
    total: Option<DataSize>,
    /// What the user should read.
    notes: Vec<String>,
}

/// A complete file that is being read for its checksum.
#[derive(Debug)]
struct Checking {
    hasher: Hasher,
    /// One past the last byte that was read.
    at: u64,
    total: u64,
    piece: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    File(Box<Part<Os>>),
    InOrder(Box<InOrder>),
    Stream(Box<Stream>),
    Reader(reader::Writer),
    /// `/dev/null`.
    Nowhere,
}

/// A store, and what an earlier run left in it.
#[derive(Debug)]
pub struct Opened {
    /// Takes the bytes.
    pub store: Store,
    /// What is there already.
    pub resume: Option<Resume>,
    /// Why what is there is not used; one line for the user.
    pub start_over: Option<StartOver>,
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
            let stream = || Box::new(Stream::new(path.to_owned(), Sink::Path(path.to_owned()), WINDOW));
            let kind = if null { Kind::Nowhere } else { Kind::Stream(stream()) };
            return Ok(Opened { store: Self::of(kind, Some(path)), resume: None, start_over: None });
        }
        // Through a symbolic link, as a plain write would go; a rename would replace the link itself.
        let real = if path.is_symlink() { path.canonicalize().ok() } else { None };
        let real = real.unwrap_or_else(|| path.to_owned());
        let most = Os::default().longest_name(place::dir_of(&real));
        let place = Place::new(&real, most);
        if real.file_name().is_none_or(|name| name.len() > most) {
            return Err(StoreError::NameTooLong { path: path.to_owned(), most });
        }
        if !place.dir.is_dir() {
            return Err(StoreError::NoDirectory { path: path.to_owned(), dir: place.dir });
        }
        if place::is_state(&real) {
            return Err(StoreError::State { path: path.to_owned() });
        }
        let urls: Vec<_> = urls.iter().map(digest::of_url).collect();
        match Part::open(Os::default(), place.clone(), &urls) {
            Ok((part, found)) if part.takes_any_order() => {
                let (resume, start_over) = found.split(&urls);
                Ok(Opened { store: Self::of(Kind::File(Box::new(part)), Some(path)), resume, start_over })
            }
            Ok((part, _)) => {
                Self::in_order(part.give_way()?, path).map_err(|e| StoreError::io(&place.part, "opening", e))
            }
            // Some take a file only when it is open for nothing but writing.
            Err(why) if why.is_refusal(&place.part) => Self::in_order(place, path).map_err(|_| match why {
                StoreError::BadName { why, .. } => StoreError::BadName { path: path.to_owned(), why },
                why => why,
            }),
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
        let most = Os::default().longest_name(place::dir_of(path));
        let mut refused = None;
        for candidate in fit::candidates(name, most) {
            match Self::open(&path.with_file_name(&candidate), urls) {
                Err(why @ (StoreError::BadName { .. } | StoreError::NameTooLong { .. })) => {
                    refused.get_or_insert(why);
                }
                Ok(mut opened) => {
                    opened.store.notes.extend((candidate != name).then(|| place::adapted(name, &candidate)));
                    return Ok(opened);
                }
                Err(why) => return Err(why),
            }
        }
        Err(refused.unwrap_or_else(|| StoreError::NameTooLong { path: path.to_owned(), most: 0 }))
    }

    /// The file, written from its first byte to its last.
    fn in_order(place: Place, path: &Path) -> io::Result<Opened> {
        let dir = place.dir.display().to_string();
        let mut store = Self::of(Kind::InOrder(Box::new(InOrder::create(place)?)), Some(path));
        store.notes.push(format!(
            "{dir}: this file system takes bytes only in order; the download cannot be resumed if it is interrupted"
        ));
        Ok(Opened { store, resume: None, start_over: None })
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
        Ok(Self::of(Kind::Stream(Box::new(Stream::new(path, Sink::Open(File::from(fd)), WINDOW))), None))
    }

    /// For a reader within this program, of the bytes from `from` onwards. With `fixed` it knows the file already.
    pub(crate) fn for_reader(from: u64, window: DataSize, fixed: bool) -> (Self, Reader) {
        let (writer, reader) = reader::pair(from, window, fixed);
        (Self::of(Kind::Reader(writer), None), reader)
    }

    fn of(kind: Kind, called: Option<&Path>) -> Self {
        Self {
            kind,
            called: called.map(Path::to_owned),
            checksum: None,
            checking: None,
            total: None,
            notes: Vec::new(),
        }
    }

    /// What the whole must hash to. To be called before the first [`Store::write`].
    pub fn expect(&mut self, checksum: Checksum) {
        match &mut self.kind {
            Kind::File(_) => self.checksum = Some(checksum),
            Kind::InOrder(file) => file.stream.expect(Hasher::new(&checksum)),
            Kind::Stream(stream) => stream.expect(Hasher::new(&checksum)),
            // Nobody asks for one: the player would have to be told after it has played.
            Kind::Reader(_) => {}
            Kind::Nowhere => {
                let path = PathBuf::from("/dev/null");
                let mut stream = Stream::new(path.clone(), Sink::Path(path), WINDOW);
                stream.expect(Hasher::new(&checksum));
                self.kind = Kind::Stream(Box::new(stream));
            }
        }
    }

    /// Whether a digest that becomes known on the way can still be compared: streams have passed bytes on by then.
    pub fn can_be_checked_later(&self) -> bool {
        matches!(self.kind, Kind::File(_))
    }

    /// For streams: how far beyond [`Store::consumed`] a write may reach. None: any order will do.
    pub fn window(&self) -> Option<DataSize> {
        match &self.kind {
            Kind::InOrder(file) => Some(file.stream.window()),
            Kind::Stream(stream) => Some(stream.window()),
            Kind::Reader(writer) => Some(writer.window()),
            Kind::File(_) | Kind::Nowhere => None,
        }
    }

    /// For streams: one past the last byte that the reader has taken. Zero for files.
    pub fn consumed(&self) -> u64 {
        match &self.kind {
            Kind::InOrder(file) => file.stream.taken(),
            Kind::Stream(stream) => stream.taken(),
            Kind::Reader(writer) => writer.taken(),
            Kind::File(_) | Kind::Nowhere => 0,
        }
    }

    /// For streams: told when [`Store::consumed`] has grown or the reader is gone ([`Store::tick`] then says so).
    pub fn wake(&self) -> Option<Arc<Notify>> {
        match &self.kind {
            Kind::InOrder(file) => Some(file.stream.wake()),
            Kind::Stream(stream) => Some(stream.wake()),
            Kind::Reader(writer) => Some(writer.notify()),
            Kind::File(_) | Kind::Nowhere => None,
        }
    }

    /// The final name is another one, in the same directory (Content-Disposition). A name that a server chose
    /// replaces no file: if it is taken, a number is put behind it. A name that the file system does not take is adapted
    /// to it, and [`Store::take_note`] says so; one with a slash is ignored. Without effect on streams.
    pub fn name(&mut self, name: &OsStr) {
        let note = match &mut self.kind {
            Kind::File(part) => part.suggest(name),
            Kind::InOrder(file) => file.place.suggest(&Os::default(), name),
            Kind::Stream(_) | Kind::Reader(_) | Kind::Nowhere => return,
        };
        self.notes.extend(note);
        self.called = None;
    }

    /// The final name is this one, in the same directory. `replaces`: a file that has it is replaced; otherwise a number
    /// is put behind it. Without effect on streams.
    pub(crate) fn call(&mut self, name: &OsStr, replaces: bool) {
        self.name(name);
        match &mut self.kind {
            Kind::File(part) => part.place_mut().keep_old = !replaces,
            Kind::InOrder(file) => file.place.keep_old = !replaces,
            Kind::Stream(_) | Kind::Reader(_) | Kind::Nowhere => {}
        }
    }

    /// What comes from now on is of this URL.
    pub(crate) fn set_source(&mut self, url: &Url) {
        if let Kind::File(part) = &mut self.kind {
            part.set_url(digest::of_url(url));
        }
    }

    /// Reads some bytes that are in their place; none of a stream.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        match &self.kind {
            Kind::File(part) => part.read(at, bytes),
            Kind::InOrder(_) | Kind::Stream(_) | Kind::Reader(_) | Kind::Nowhere => Ok(0),
        }
    }

    /// The file is known; from now on a journal may be kept.
    ///
    /// # Errors
    /// When the disk has no room for it, or the journal cannot be written.
    pub fn identified(&mut self, total: Option<DataSize>, validator: Option<&Validator>) -> Result<(), StoreError> {
        self.total = total;
        match &mut self.kind {
            Kind::File(part) => part.identified(total, validator),
            Kind::InOrder(file) => total.map_or(Ok(()), |total| file.identified(total)),
            Kind::Reader(writer) => {
                writer.identified(total, validator);
                Ok(())
            }
            Kind::Stream(_) | Kind::Nowhere => Ok(()),
        }
    }

    /// A response with this strong ETag has this Last-Modified. Gives another one that an earlier run of this download was
    /// told under the same ETag.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn note_modified(&mut self, etag: &str, modified: &str) -> Result<Option<String>, StoreError> {
        match &mut self.kind {
            Kind::File(part) => part.note_modified(etag, modified),
            Kind::InOrder(_) | Kind::Stream(_) | Kind::Reader(_) | Kind::Nowhere => Ok(None),
        }
    }

    /// Puts bytes in their place. Cheap: one system call for a file, one copy for a stream; never waits for a disk
    /// or a reader.
    ///
    /// # Errors
    /// When the disk is full or fails, the reader is gone, or a piece lies beyond a stream's window.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        match &mut self.kind {
            Kind::File(part) => part.write(at, bytes),
            Kind::InOrder(file) => file.stream.write(at, bytes),
            Kind::Stream(stream) => stream.write(at, bytes),
            Kind::Reader(writer) => writer.write(at, bytes),
            Kind::Nowhere => Ok(()),
        }
    }

    /// Lets time pass; to be called at [`Store::deadline`], and whenever it is convenient.
    ///
    /// # Errors
    /// As [`Store::write`], for what happened in the background.
    pub fn tick(&mut self, now: Instant) -> Result<(), StoreError> {
        match &mut self.kind {
            Kind::File(part) => part.tick(now),
            Kind::InOrder(file) => file.stream.check(),
            Kind::Stream(stream) => stream.check(),
            Kind::Reader(writer) => writer.check(),
            Kind::Nowhere => Ok(()),
        }
    }

    /// A line for the user about how the bytes are stored, once it is known.
    pub fn take_note(&mut self) -> Option<String> {
        match &mut self.kind {
            _ if !self.notes.is_empty() => Some(self.notes.remove(0)),
            Kind::File(part) => part.take_note(),
            Kind::InOrder(_) | Kind::Stream(_) | Kind::Reader(_) | Kind::Nowhere => None,
        }
    }

    /// When [`Store::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.kind {
            Kind::File(part) => part.deadline(),
            Kind::InOrder(_) | Kind::Stream(_) | Kind::Reader(_) | Kind::Nowhere => None,
        }
    }

    /// The file is another one now: everything that is stored is thrown away.
    ///
    /// # Errors
    /// When that fails, or a stream's reader has already had some of it.
    pub fn restart(&mut self) -> Result<(), StoreError> {
        self.total = None;
        match &mut self.kind {
            Kind::File(part) => part.restart(),
            Kind::InOrder(file) => file.stream.restart(),
            Kind::Stream(stream) => stream.restart(),
            Kind::Reader(writer) => writer.restart(),
            Kind::Nowhere => Ok(()),
        }
    }

    /// All bytes are there: reads some of them again for the checksum; how many have been read by now. None: there is
    /// nothing (more) to check. In pieces, so that whoever waits for gigabytes can still be stopped.
    ///
    /// # Errors
    /// When bytes are missing, the checksum is another one, or the disk fails.
    pub fn check(&mut self) -> Result<Option<u64>, StoreError> {
        let Kind::File(part) = &mut self.kind else { return Ok(None) };
        let mut checking = match (self.checking.take(), &self.checksum) {
            (Some(checking), _) => checking,
            (None, None) => return Ok(None),
            (None, Some(checksum)) => {
                let hasher = Hasher::new(checksum);
                Checking { hasher, at: 0, total: part.whole()?, piece: vec![0; PIECE] }
            }
        };
        let len = if checking.at < checking.total { part.read(checking.at, &mut checking.piece)? } else { 0 };
        if len > 0 {
            checking.hasher.update(checking.piece.get(..len).unwrap_or_default());
            checking.at += len as u64;
            let at = checking.at;
            self.checking = Some(checking);
            return Ok(Some(at));
        }
        checking.hasher.finish().map_err(|Mismatch { name, got, want }| {
            let path = part.place().path.clone();
            match part.distrust() {
                Ok(kept) => StoreError::Checksum { path, name, got, want, kept: Kept::In(kept.to_owned()) },
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
        while self.check()?.is_some() {}
        let Self { kind, called, total, .. } = self;
        match kind {
            Kind::File(mut part) => {
                part.complete()?;
                let path = part.publish()?;
                Ok(Some(called.unwrap_or(path)))
            }
            Kind::InOrder(file) => {
                let path = file.finish(total.map(DataSize::bytes))?;
                Ok(Some(called.unwrap_or(path)))
            }
            Kind::Stream(stream) => stream.finish(total.map(DataSize::bytes)).map(|()| called),
            Kind::Reader(_) | Kind::Nowhere => Ok(called),
        }
    }

    /// The run ends early. What is there is made safe; true if the next run can go on from it.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn suspend(self) -> Result<bool, StoreError> {
        match self.kind {
            Kind::File(part) => part.suspend(),
            Kind::InOrder(file) => file.abandon().map(|()| false),
            Kind::Stream(_) | Kind::Reader(_) | Kind::Nowhere => Ok(false),
        }
    }
}

/// Whether a file at `other` would be the one at `path`, or be in the way of it while it is unfinished.
pub(crate) fn is_of(other: &Path, path: &Path) -> bool {
    // A device takes what anybody writes.
    if path.metadata().is_ok_and(|meta| !meta.is_file()) {
        return false;
    }
    let path = place::followed(path);
    let place = Place::new(&path, Os::default().longest_name(place::dir_of(&path)));
    let other = place::followed(other);
    let names = [&place.path, &place.part, &place.journal, &place.new_journal];
    names.into_iter().any(|name| place::is_same(&other, name))
}

/// Whether a file at `other` is the one to which standard output goes.
pub(crate) fn is_stdout(other: &Path) -> bool {
    let Ok(out) = io::stdout().as_fd().try_clone_to_owned() else { return false };
    match (other.metadata(), File::from(out).metadata()) {
        (Ok(other), Ok(out)) => out.is_file() && (other.dev(), other.ino()) == (out.dev(), out.ino()),
        _ => false,
    }
}

/// Read at once for a checksum. chosen: half a millisecond of SHA-256.
const PIECE: usize = 256 * 1024;
