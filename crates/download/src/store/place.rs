//! The names of a download: the one that it will have, and those that it has until then.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use marline_core::wire::download_journal::Header;
use sha2::{Digest as _, Sha256};

use super::disk::{Disk, Os};
use super::fit;
use crate::name::{cut, is_reserved, quoted};

/// Bytes that the names of an unfinished file have beyond the final name.
pub(super) const LONGEST_ENDING: usize = ".part.journal.new".len();

/// Bytes that a suggested file name may have, so that the unfinished file's names fit as well (NAME_MAX of Linux is 255).
pub const NAME_MAX: usize = 255 - LONGEST_ENDING;

/// The endings of the unfinished file and its journals. A name from a server or a URL never has one of them.
pub(crate) const RESERVED: [&str; 3] = [".part", ".part.journal", ".part.journal.new"];

/// All names of one download; all in one directory, so that one rename and one fsync are enough.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The final name.
    pub(super) path: PathBuf,
    /// Whether a file that has it already is kept, and ours gets a number behind its name.
    pub(super) keep_old: bool,
    /// The directory.
    pub(super) dir: PathBuf,
    /// The unfinished file.
    pub(super) part: PathBuf,
    /// Its journal.
    pub(super) journal: PathBuf,
    /// The next journal, for the moment of its making.
    pub(super) new_journal: PathBuf,
}

impl Place {
    /// The names around `path`, in a file system whose names have at most `longest` bytes. If the user chose a name to which the
    /// endings of unfinished files cannot be added, a digest takes the place of its end in those.
    pub(super) fn new(path: &Path, longest: usize) -> Self {
        let dir = dir_of(path).to_owned();
        let name = path.file_name().unwrap_or_default();
        let most = longest.saturating_sub(LONGEST_ENDING);
        let stem = if name.len() > most { path.with_file_name(shortened(name, most)) } else { path.to_owned() };
        let with = |ending: &str| {
            let mut name = stem.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        Self {
            path: path.to_owned(),
            keep_old: false,
            dir,
            part: with(".part"),
            journal: with(".part.journal"),
            new_journal: with(".part.journal.new"),
        }
    }

    /// Another final name in the same directory, which does not replace a file; adapted to the file system, and then
    /// there is a line that says so. What is no plain file name changes nothing.
    pub(super) fn suggest<D: Disk>(&mut self, disk: &D, name: &OsStr) -> Option<String> {
        let name = name.to_str().filter(|name| Path::new(name).file_name() == Some(OsStr::new(name)))?;
        // Tried here, not at the end of the download.
        let can_be = |name: &String| {
            let mut part = OsString::from(name);
            part.push(".part");
            !fit::is_doubtful(name) || disk.try_name(&self.dir.join(part)).is_ok()
        };
        let Some(best) = fit::candidates(name, disk.longest_name(&self.dir)).into_iter().find(can_be) else {
            let kept = quoted(&self.path.file_name().unwrap_or_default().to_string_lossy());
            return Some(format!("the name {} is not possible here; the file is called {kept}", quoted(name)));
        };
        self.path.set_file_name(&best);
        self.keep_old = true;
        (best != name).then(|| adapted(name, &best))
    }

    /// Gives the unfinished file its final name and tells which one that became.
    pub(super) fn publish<D: Disk>(&self, disk: &D) -> io::Result<PathBuf> {
        if !self.keep_old {
            disk.rename(&self.part, &self.path)?;
            return Ok(self.path.clone());
        }
        for number in 0..1000 {
            let path = if number == 0 { self.path.clone() } else { numbered(&self.path, number) };
            if disk.rename_new(&self.part, &path)? {
                return Ok(path);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// The directory that a file is in.
pub(super) fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."))
}

/// At most this many bytes of a name and its digest, distinct for distinct names.
fn shortened(name: &OsStr, most: usize) -> String {
    let digest: String = HEXLOWER.encode(&Sha256::digest(name.as_encoded_bytes())).chars().take(DIGITS).collect();
    format!("{}~{digest}", cut(&name.to_string_lossy(), most.saturating_sub(DIGITS + 1)))
}

/// Digits of the digest in a shortened name.
const DIGITS: usize = 16;

/// Says that a suggested name was adapted to the file system.
pub(super) fn adapted(name: &str, best: &str) -> String {
    format!("the name {} is changed to {}: the file system does not take it as it is", quoted(name), quoted(best))
}

/// Where a write to this path would go: through symbolic links, also through one that leads nowhere yet.
pub(super) fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // As many links as Linux follows (path_resolution(7)).
    for _ in 0..40 {
        let Ok(leads) = path.read_link() else { break };
        path.set_file_name("");
        path.push(leads);
    }
    path
}

/// Whether the file at `path` is the unfinished file or the journal of another download, which a file of that name
/// would replace.
pub(super) fn is_state(path: &Path) -> bool {
    if !path.file_name().is_some_and(|name| is_reserved(&name.to_string_lossy())) {
        return false;
    }
    let disk = Os::default();
    let journal =
        |path: &Path| disk.read_all(path, 8).is_ok_and(|read| read.is_some_and(|(first, _)| is_journal(&first)));
    let mut beside = path.as_os_str().to_owned();
    beside.push(".journal");
    Os::is_marked_at(path) || journal(path) || journal(Path::new(&beside))
}

fn is_journal(bytes: &[u8]) -> bool {
    !bytes.is_empty() && Header::is_remnant(bytes)
}

/// Whether both are one file, or would be.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    if let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) {
        return (one.dev(), one.ino()) == (other.dev(), other.ino());
    }
    let dir = |path: &Path| match path.parent() {
        Some(dir) if dir != Path::new("") => dir.canonicalize().ok(),
        _ => Path::new(".").canonicalize().ok(),
    };
    one.file_name() == other.file_name() && dir(one).is_some_and(|one| dir(other) == Some(one))
}

/// `a.tar.gz` with number 2 is `a.tar.gz.2`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    PathBuf::from(name)
}
