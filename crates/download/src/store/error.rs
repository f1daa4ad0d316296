//! Why bytes cannot be kept, in words for the person who asked for the file: what, which file, why, what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use marline_core::units::DataSize;
use rustix::io::Errno;

use crate::name::quote_name;

/// Why a download cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The name is a directory's.
    #[error("{path}: is a directory; name a file in it")]
    IsDirectory {
        /// As the user gave it.
        path: PathBuf,
    },
    /// There is no such directory.
    #[error("{path}: the directory {dir} does not exist")]
    NoDirectory {
        /// As the user gave it.
        path: PathBuf,
        /// Its missing parent.
        dir: PathBuf,
    },
    /// Nothing can be written in the directory.
    #[error("{path}: cannot be written: {why}; choose another place with -o")]
    NotWritable {
        /// The file that was to be made.
        path: PathBuf,
        /// In the system's words.
        why: io::Error,
    },
    /// The name is longer than the file system allows.
    #[error("{path}: the name is too long: this file system takes {most} bytes")]
    NameTooLong {
        /// As the user gave it.
        path: PathBuf,
        /// Bytes that it may have.
        most: usize,
    },
    /// The file system does not take the name: a reserved character, or bytes that are no text.
    #[error("{path}: the file system does not take this name: {why}; choose another name with -o{}", instead(path))]
    NameRefused {
        /// As the user gave it.
        path: PathBuf,
        /// In the system's words.
        why: io::Error,
    },
    /// The file system, or a limit of the process, does not take a file of this size.
    #[error(
        "{path}: {total} cannot be stored in one file here: {why}; choose a directory on another file system with -o"
    )]
    TooLarge {
        /// The final name.
        path: PathBuf,
        /// The size of the file.
        total: DataSize,
        /// Which limit.
        why: String,
    },
    /// The file system cannot rename files: the complete file keeps its unfinished name.
    #[error("{path}: the file system cannot rename files; the complete file is {}", part.display())]
    RenameUnsupported {
        /// The final name.
        path: PathBuf,
        /// Where the file is.
        part: PathBuf,
    },
    /// Another run has the lock.
    #[error(
        "{path}: another run of marline is downloading this file ({part} is locked); wait for it, or choose another name with -o"
    )]
    Locked {
        /// The final name.
        path: PathBuf,
        /// The locked file.
        part: PathBuf,
    },
    /// The name of the unfinished file is taken by something that is not ours.
    #[error(
        "{}: {what}, and it is not marline's to overwrite; move it away, or choose another name with -o", part.display()
    )]
    NotOurs {
        /// The name that is taken.
        part: PathBuf,
        /// What stands there.
        what: &'static str,
    },
    /// The unfinished file is not under its name any more, but another one.
    #[error(
        "{path}: another program has replaced or removed {} while it was written; run the command again", part.display()
    )]
    PartReplaced {
        /// The final name.
        path: PathBuf,
        /// The unfinished file.
        part: PathBuf,
    },
    /// The name of the file is that of another download's unfinished file or journal.
    #[error("{path}: this is the unfinished state of another download; choose another name with -o")]
    IsPartialState {
        /// As the user gave it.
        path: PathBuf,
    },
    /// It is known beforehand that the file will not fit.
    #[error(
        "disk full: {path} needs {need} more, {free} free on {on}; free some space or choose another place with -o"
    )]
    NotEnoughSpace {
        /// The final name.
        path: PathBuf,
        /// Bytes that still have to be allocated.
        need: DataSize,
        /// Bytes that this user may allocate.
        free: DataSize,
        /// The directory.
        on: PathBuf,
    },
    /// The disk or the user's quota became full on the way.
    #[error("disk full: {path}: {why}; free some space and run the same command again")]
    DiskFull {
        /// The file that did not get its bytes.
        path: PathBuf,
        /// In the system's words.
        why: io::Error,
    },
    /// The disk does not keep what it was given.
    #[error("{path}: the disk failed: {why}; only what was safe before that is kept")]
    SyncFailed {
        /// The unfinished file.
        path: PathBuf,
        /// In the system's words.
        why: io::Error,
    },
    /// Any other failure of the system.
    #[error("{path}: {what} failed: {why}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// In the system's words.
        why: io::Error,
    },
    /// The reader of the stream went away.
    #[error("{path}: its reader has closed it after {taken}")]
    ReaderGone {
        /// The stream.
        path: PathBuf,
        /// What had been taken.
        taken: DataSize,
    },
    /// The file changed on the server after a part of it had been passed on.
    #[error(
        "{path}: the file changed on the server after {passed} had been passed on, and a stream cannot take them back; run the command again"
    )]
    ChangedAfterDelivery {
        /// The stream.
        path: PathBuf,
        /// What had been passed on.
        passed: DataSize,
    },
    /// Bytes came from beyond the window of a stream: a defect of the caller, refused so that memory stays bounded.
    #[error("{path}: bytes at {at} lie beyond the window, which ends at {end}")]
    BeyondWindow {
        /// The stream.
        path: PathBuf,
        /// The first byte.
        at: u64,
        /// One past the window's last byte.
        end: u64,
    },
    /// The caller calls the file complete although bytes are missing: a defect, refused so that no file is corrupt.
    #[error("{path}: not complete: {missing} are missing, the first at {first}")]
    Incomplete {
        /// The final name.
        path: PathBuf,
        /// How much.
        missing: DataSize,
        /// The first missing byte.
        first: u64,
    },
    /// The file is not the one that the checksum is of.
    #[error("{path}: checksum mismatch: {name} is {got}, expected {want}; {kept}")]
    ChecksumMismatch {
        /// The final name.
        path: PathBuf,
        /// `sha256` or `sha512`.
        name: &'static str,
        /// In hexadecimal digits.
        got: String,
        /// In hexadecimal digits.
        want: String,
        /// What became of the bytes.
        kept: Recoverable,
    },
}

/// What became of bytes that have another checksum than the user expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recoverable {
    /// They are in this file, to look at; the next run starts from zero.
    InFile(PathBuf),
    /// They have been passed on.
    Delivered,
}

impl fmt::Display for Recoverable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFile(path) => {
                write!(f, "the bytes are left in {} and the next run starts from zero", path.display())
            }
            Self::Delivered => f.write_str("its reader must throw them away"),
        }
    }
}

/// A name that every file system takes, for the end of a sentence; nothing if there is none.
fn instead(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let suggestion = super::portable_name::portable_name(&name);
    if suggestion.is_empty() || suggestion == name {
        String::new()
    } else {
        format!(", for example {}", quote_name(&suggestion))
    }
}

impl StoreError {
    /// Whether the file system refused to open a new file for reading and writing.
    pub(super) fn is_open_refused(&self, part: &Path) -> bool {
        match self {
            Self::NameRefused { .. } => true,
            // Permission, as rclone says it; the next try shows whether it is that.
            Self::NotWritable { path, .. } => path == part,
            Self::Io { what: "opening", why, .. } => {
                matches!(Errno::from_io_error(why), Some(Errno::OPNOTSUPP | Errno::NOSYS))
            }
            _ => false,
        }
    }

    /// The error for `what` having failed on `path`.
    pub(super) fn io(path: &Path, operation: &'static str, why: io::Error) -> Self {
        let path = path.to_owned();
        match Errno::from_io_error(&why) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::DiskFull { path, why },
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::NotWritable { path, why },
            Some(Errno::NAMETOOLONG) => Self::NameTooLong { path, most: super::MAX_NAME_LEN },
            Some(Errno::FBIG) => {
                Self::Io { path, what: "writing a file of this size (FAT takes less than 4 GiB)", why }
            }
            Some(Errno::ISDIR) => Self::IsDirectory { path },
            _ => Self::Io { path, what: operation, why },
        }
    }
}
