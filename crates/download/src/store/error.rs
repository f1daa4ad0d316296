//! Errors of storing a download. Each message names the file, the problem and a remedy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use marline_core::units::DataSize;
use rustix::io::Errno;

use crate::name::{MAX_NAME_LEN, quote_name};

/// Why a download cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The path is a directory.
    #[error("{path}: is a directory; name a file in it")]
    IsDirectory {
        /// Path as the user gave it.
        path: PathBuf,
    },
    /// The directory of the file does not exist.
    #[error("{path}: the directory {dir} does not exist")]
    NoDirectory {
        /// Path as the user gave it.
        path: PathBuf,
        /// The missing directory.
        dir: PathBuf,
    },
    /// The file cannot be created or written, for lack of permission.
    #[error("{path}: cannot be written: {why}; choose another path with -o")]
    NotWritable {
        /// The file to be written.
        path: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// The name is longer than the file system allows.
    #[error("{path}: the name is too long: this file system allows {most} bytes")]
    NameTooLong {
        /// Path as the user gave it.
        path: PathBuf,
        /// Maximum length in bytes.
        most: usize,
    },
    /// The file system rejects the name: a reserved character, or an unsupported encoding.
    #[error("{path}: the file system rejects this name: {why}; choose another name with -o{}", instead(path))]
    NameRefused {
        /// Path as the user gave it.
        path: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// The file system, or a limit of the process, does not allow a file of this size.
    #[error(
        "{path}: {total} cannot be stored in one file here: {why}; choose a directory on another file system with -o"
    )]
    TooLarge {
        /// Path of the complete file.
        path: PathBuf,
        /// The size of the file.
        total: DataSize,
        /// The limit that applies.
        why: String,
    },
    /// The file system cannot rename files, so the complete file keeps its unfinished name.
    #[error("{path}: the file system cannot rename files; the complete file is {}", part.display())]
    RenameUnsupported {
        /// Path of the complete file.
        path: PathBuf,
        /// Path of the unfinished file, which is complete.
        part: PathBuf,
    },
    /// Another run holds the lock.
    #[error(
        "{path}: another run of marline is downloading this file ({part} is locked); wait for it, or choose another name with -o"
    )]
    Locked {
        /// Path of the complete file.
        path: PathBuf,
        /// The locked file.
        part: PathBuf,
    },
    /// The name of the unfinished file or journal is taken by a file that marline did not write.
    #[error(
        "{}: {reason}, and marline does not overwrite it; move it away, or choose another name with -o", part.display()
    )]
    ForeignFile {
        /// The path that is taken.
        part: PathBuf,
        /// What has this name.
        reason: &'static str,
    },
    /// The unfinished file was replaced or removed by another program.
    #[error(
        "{path}: another program has replaced or removed {} during the download; run the command again", part.display()
    )]
    PartReplaced {
        /// Path of the complete file.
        path: PathBuf,
        /// The unfinished file.
        part: PathBuf,
    },
    /// The path is the unfinished file or the journal of another download.
    #[error("{path}: this is an unfinished file or journal of another download; choose another name with -o")]
    IsPartialState {
        /// Path as the user gave it.
        path: PathBuf,
    },
    /// The free space does not suffice; found before the download.
    #[error(
        "disk full: {path} needs {need} more, {free} free on {on}; free some space or choose another directory with -o"
    )]
    NotEnoughSpace {
        /// Path of the complete file.
        path: PathBuf,
        /// Bytes that still have to be allocated.
        need: DataSize,
        /// Bytes that this user may allocate.
        free: DataSize,
        /// The directory of the file.
        on: PathBuf,
    },
    /// The disk or the user's quota became full during the download.
    #[error("disk full: {path}: {why}; free some space and run the same command again")]
    DiskFull {
        /// The file that could not be written.
        path: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// Syncing has failed: the disk did not store written bytes.
    #[error("{path}: syncing to the disk failed: {why}; only bytes that were synced before are kept")]
    SyncFailed {
        /// The unfinished file.
        path: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// Any other error of the system.
    #[error("{path}: {operation} failed: {why}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        operation: &'static str,
        /// The error of the system.
        why: io::Error,
    },
    /// The reader of the stream has closed it.
    #[error("{path}: the reader closed it after {taken}")]
    ReaderGone {
        /// The stream.
        path: PathBuf,
        /// Bytes that the reader had consumed.
        taken: DataSize,
    },
    /// The file changed on the server after a part of it was delivered.
    #[error(
        "{path}: the file changed on the server after {passed} were delivered, which a stream cannot undo; run the command again"
    )]
    ChangedAfterDelivery {
        /// The stream.
        path: PathBuf,
        /// Bytes that were delivered.
        passed: DataSize,
    },
    /// Bytes beyond the window of a stream: a defect of the caller. Rejected, so that memory stays bounded.
    #[error("{path}: bytes at offset {at} are beyond the window, which ends at {end}")]
    BeyondWindow {
        /// The stream.
        path: PathBuf,
        /// Offset of the first byte.
        at: u64,
        /// One past the last byte of the window.
        end: u64,
    },
    /// The caller treats the file as complete although bytes are missing: a defect. Rejected, so that no file is
    /// corrupt.
    #[error("{path}: not complete: {missing} are missing, the first byte at offset {first}")]
    Incomplete {
        /// Path of the complete file.
        path: PathBuf,
        /// Number of missing bytes.
        missing: DataSize,
        /// Offset of the first missing byte.
        first: u64,
    },
    /// The file does not have the expected checksum.
    #[error("{path}: checksum mismatch: {name} is {got}, expected {want}; {location}")]
    ChecksumMismatch {
        /// Path of the complete file.
        path: PathBuf,
        /// `sha256` or `sha512`.
        name: &'static str,
        /// Computed digest, in hexadecimal digits.
        got: String,
        /// Expected digest, in hexadecimal digits.
        want: String,
        /// Where the bytes are now.
        location: MismatchedBytes,
    },
}

/// Location of the bytes that do not match their checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MismatchedBytes {
    /// In this file, for inspection; the next run starts from zero.
    InFile(PathBuf),
    /// Delivered to the reader of the stream.
    Delivered,
}

impl fmt::Display for MismatchedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFile(path) => {
                write!(f, "the bytes are kept in {}, and the next run starts from zero", path.display())
            }
            Self::Delivered => f.write_str("the reader must discard the bytes"),
        }
    }
}

/// Suggests a name that every file system accepts, as the end of a sentence; empty if there is none.
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
            // Some FUSE file systems (rclone) report a lack of permission. The attempt to write sequentially shows
            // whether it is real.
            Self::NotWritable { path, .. } => path == part,
            Self::Io { operation: "opening", why, .. } => {
                matches!(Errno::from_io_error(why), Some(Errno::OPNOTSUPP | Errno::NOSYS))
            }
            _ => false,
        }
    }

    /// The error for a failed `operation` on `path`.
    pub(super) fn io(path: &Path, operation: &'static str, why: io::Error) -> Self {
        let path = path.to_owned();
        match Errno::from_io_error(&why) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::DiskFull { path, why },
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::NotWritable { path, why },
            Some(Errno::NAMETOOLONG) => Self::NameTooLong { path, most: MAX_NAME_LEN },
            Some(Errno::FBIG) => {
                Self::Io { path, operation: "writing a file of this size (FAT allows less than 4 GiB)", why }
            }
            Some(Errno::ISDIR) => Self::IsDirectory { path },
            _ => Self::Io { path, operation, why },
        }
    }
}
