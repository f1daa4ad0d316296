//! The paths of a download: that of the complete file, and those of the unfinished file and its journal.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use marline_core::wire::download_journal::Header;
use sha2::{Digest as _, Sha256};

use super::fs::{FileSystem, OsFileSystem};
use super::portable_name;
use crate::name::{MAX_SUFFIX_LEN, has_reserved_suffix, quote_name, truncate};

/// All paths of one download. They are in one directory, so that one rename and one fsync are enough.
#[derive(Clone, Debug)]
pub(super) struct DownloadPaths {
    /// Path of the complete file.
    pub(super) final_path: PathBuf,
    /// Whether an existing file of that name is kept, and a number is appended to the name of the new one.
    pub(super) keep_existing: bool,
    /// The directory of all paths.
    pub(super) dir: PathBuf,
    /// Path of the unfinished file, `FILE.part`.
    pub(super) part: PathBuf,
    /// Path of the journal, `FILE.part.journal`.
    pub(super) journal: PathBuf,
    /// Path of a new journal, `FILE.part.journal.new`, until it is renamed over the old one.
    pub(super) new_journal: PathBuf,
}

impl DownloadPaths {
    /// The paths for a file at `path`, on a file system with names of at most `max_name_len` bytes. If the suffixes
    /// do not fit behind a name that the user chose, a digest replaces its end in the names with suffixes.
    pub(super) fn new(path: &Path, max_name_len: usize) -> Self {
        let dir = parent_dir(path).to_owned();
        let name = path.file_name().unwrap_or_default();
        let max_len = max_name_len.saturating_sub(MAX_SUFFIX_LEN);
        let stem = if name.len() > max_len {
            path.with_file_name(shorten_with_digest(name, max_len))
        } else {
            path.to_owned()
        };
        let with_suffix = |ending: &str| {
            let mut name = stem.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        Self {
            final_path: path.to_owned(),
            keep_existing: false,
            dir,
            part: with_suffix(".part"),
            journal: with_suffix(".part.journal"),
            new_journal: with_suffix(".part.journal.new"),
        }
    }

    /// Sets another final name in the same directory, which does not replace an existing file. Returns a message if
    /// the name had to be adapted to the file system. A name that is not a plain file name is ignored.
    pub(super) fn suggest_name<D: FileSystem>(&mut self, fs: &D, name: &OsStr) -> Option<String> {
        let name = name.to_str().filter(|name| Path::new(name).file_name() == Some(OsStr::new(name)))?;
        // Tested now, not at the end of the download.
        let is_possible = |name: &String| {
            let mut part = OsString::from(name);
            part.push(".part");
            !portable_name::needs_probe(name) || fs.probe_name(&self.dir.join(part)).is_ok()
        };
        let Some(best) =
            portable_name::name_candidates(name, fs.max_name_len(&self.dir)).into_iter().find(is_possible)
        else {
            let current_name = quote_name(&self.final_path.file_name().unwrap_or_default().to_string_lossy());
            return Some(format!(
                "the file system rejects the name {}; the file is named {current_name}",
                quote_name(name)
            ));
        };
        self.final_path.set_file_name(&best);
        self.keep_existing = true;
        (best != name).then(|| adapted_note(name, &best))
    }

    /// Renames the unfinished file to its final name, and returns that name.
    pub(super) fn publish<D: FileSystem>(&self, fs: &D) -> io::Result<PathBuf> {
        if !self.keep_existing {
            fs.rename(&self.part, &self.final_path)?;
            return Ok(self.final_path.clone());
        }
        for number in 0..1000 {
            let path = if number == 0 { self.final_path.clone() } else { with_number(&self.final_path, number) };
            if fs.rename_new(&self.part, &path)? {
                return Ok(path);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// The directory that contains a path.
pub(super) fn parent_dir(path: &Path) -> &Path {
    path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."))
}

/// At most `max_len` bytes of a name and its digest; different for different names.
fn shorten_with_digest(name: &OsStr, max_len: usize) -> String {
    let digest: String =
        HEXLOWER.encode(&Sha256::digest(name.as_encoded_bytes())).chars().take(DIGEST_DIGITS).collect();
    format!("{}~{digest}", truncate(&name.to_string_lossy(), max_len.saturating_sub(DIGEST_DIGITS + 1)))
}

/// Number of hexadecimal digits of the digest in a shortened name.
const DIGEST_DIGITS: usize = 16;

/// The message that a suggested name was adapted to the file system.
pub(super) fn adapted_note(name: &str, best: &str) -> String {
    format!(
        "the name {} is changed to {}: the file system rejects the original name",
        quote_name(name),
        quote_name(best)
    )
}

/// The path to which a write would go: symbolic links are followed, even if the target does not exist yet.
pub(super) fn follow_symlinks(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // Linux follows at most 40 links (path_resolution(7)).
    for _ in 0..40 {
        let Ok(target) = path.read_link() else { break };
        path.set_file_name("");
        path.push(target);
    }
    path
}

/// Whether the file at `path` is the unfinished file or the journal of another download, which a file of that name
/// would replace.
pub(super) fn is_partial_state(path: &Path) -> bool {
    if !path.file_name().is_some_and(|name| has_reserved_suffix(&name.to_string_lossy())) {
        return false;
    }
    let fs = OsFileSystem::default();
    let journal =
        |path: &Path| fs.read(path, 8).is_ok_and(|read| read.is_some_and(|(first, _)| is_journal(&first)));
    let mut journal_path = path.as_os_str().to_owned();
    journal_path.push(".journal");
    OsFileSystem::is_marked_at(path) || journal(path) || journal(Path::new(&journal_path))
}

fn is_journal(bytes: &[u8]) -> bool {
    !bytes.is_empty() && Header::is_remnant(bytes)
}

/// Whether both paths refer to one file, or would do so if it existed.
pub(super) fn is_same_file(first: &Path, other: &Path) -> bool {
    if let (Ok(first), Ok(other)) = (first.metadata(), other.metadata()) {
        return (first.dev(), first.ino()) == (other.dev(), other.ino());
    }
    let dir = |path: &Path| match path.parent() {
        Some(dir) if dir != Path::new("") => dir.canonicalize().ok(),
        _ => Path::new(".").canonicalize().ok(),
    };
    first.file_name() == other.file_name() && dir(first).is_some_and(|first| dir(other) == Some(first))
}

/// `a.tar.gz` with number 2 is `a.tar.gz.2`.
fn with_number(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    PathBuf::from(name)
}
