//! Files of an authority, written so that a crash leaves the old or the new contents, never a part.
//!
//! 1. A file is created or replaced atomically: its bytes are written to a temporary name, synced, and renamed.
//! 2. A log grows by complete lines. A line without a line end was truncated by a crash before anything depended on it;
//!    the next line overwrites it.
//! 3. Changes are serialized between processes by a lock of the directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use marline_net::atomic_file::{self, FileError};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::CaError;

/// Mode of a file that only its owner may read.
pub(super) const SECRET_MODE: u32 = 0o600;
/// Mode of a file that everybody may read.
pub(super) const PUBLIC_MODE: u32 = 0o644;

/// Exclusive lock of a directory. The kernel releases it however the process ends.
#[derive(Debug)]
pub(super) struct DirLock(#[expect(dead_code, reason = "it is held, not read")] File);

impl DirLock {
    /// Waits until the lock is free.
    pub(super) fn acquire(dir: &Path) -> Result<Self, CaError> {
        let file = File::open(dir).map_err(CaError::file(dir))?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(CaError::File { path: dir.into(), error: error.into() }),
            }
        }
    }
}

/// Creates a directory for its owner alone, and missing parents with default permissions.
pub(super) fn make_dir(dir: &Path) -> Result<(), CaError> {
    if let Some(parent) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(CaError::file(parent))?;
    }
    match DirBuilder::new()
        .mode(0o700)
        .create(dir)
        .and_then(|()| atomic_file::sync_directory(atomic_file::parent_dir(dir)))
    {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(CaError::File { path: dir.into(), error }),
        _ => Ok(()),
    }
}

/// Removes temporary files that killed processes have left in a locked directory.
pub(super) fn remove_temp_files(dir: &Path) -> Result<(), CaError> {
    for entry in std::fs::read_dir(dir).map_err(CaError::file(dir))? {
        let entry = entry.map_err(CaError::file(dir))?;
        let name = entry.file_name();
        let is_left =
            name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(atomic_file::TEMP_SUFFIX));
        if is_left {
            std::fs::remove_file(entry.path()).map_err(CaError::file(entry.path()))?;
        }
    }
    Ok(())
}

/// Rejects a file or directory that grants others any of these permissions.
pub(super) fn check_mode(
    path: &Path,
    forbidden: u32,
    action: &'static str,
    required_mode: u32,
) -> Result<(), CaError> {
    let mode = std::fs::metadata(path).map_err(CaError::file(path))?.mode() & 0o7777;
    if mode & forbidden == 0 {
        Ok(())
    } else {
        Err(CaError::TooPermissive { path: path.into(), action, mode, required_mode })
    }
}

/// Rejects a directory of another user, who could have placed symbolic links in it that root would follow.
pub(super) fn check_owner(dir: &Path) -> Result<(), CaError> {
    let owner = std::fs::metadata(dir).map_err(CaError::file(dir))?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(CaError::OtherOwner { dir: dir.into(), owner })
    }
}

/// The whole text of a file, at most [`MAX_LEN`] bytes; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>, CaError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CaError::File { path: path.into(), error }),
    };
    let mut text = String::new();
    let read = file.take(MAX_LEN + 1).read_to_string(&mut text).map_err(CaError::file(path))?;
    let fits = u64::try_from(read).is_ok_and(|read| read <= MAX_LEN);
    if fits { Ok(Some(text)) } else { Err(CaError::damaged(path, "it is too large for a file of an authority")) }
}

/// Largest file in bytes. Our choice: a log of a million certificates has 200 MB.
const MAX_LEN: u64 = 1 << 30;

/// Replaces or creates a file of a locked directory atomically.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CaError> {
    Ok(atomic_file::replace(path, bytes, mode)?)
}

/// Creates a file atomically, unless one of this name exists.
pub(super) fn create(path: &Path, bytes: &[u8], mode: u32, help: &'static str) -> Result<(), CaError> {
    match atomic_file::create_new(path, bytes, mode) {
        Err(FileError { path, error }) if error.kind() == ErrorKind::AlreadyExists => {
            Err(CaError::Exists { path, help })
        }
        created => Ok(created?),
    }
}

/// Appends a line to a log of a locked directory and syncs it to the disk.
pub(super) fn append(path: &Path, line: &str) -> Result<(), CaError> {
    let write = || {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut file =
            OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() || meta.nlink() != 1 || meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it is not a regular file of this user with a single link"));
        }
        let end = end_of_lines(&mut file)?;
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_data()
    };
    write().map_err(CaError::file(path))
}

/// Offset of the end of the last complete line.
fn end_of_lines(file: &mut File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut byte = [0];
    // A line has some hundred bytes; only one truncated by a crash is scanned.
    while end > 0 {
        file.seek(SeekFrom::Start(end - 1))?;
        file.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        end -= 1;
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_line_is_overwritten_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list");
        std::fs::write(&list, "one\ntw").unwrap();
        append(&list, "three").unwrap();
        assert_eq!(std::fs::read_to_string(&list).unwrap(), "one\nthree\n");
        std::fs::write(&list, "tw").unwrap();
        append(&list, "three").unwrap();
        assert_eq!(std::fs::read_to_string(&list).unwrap(), "three\n");
    }

    #[test]
    fn nothing_is_appended_through_symbolic_or_hard_links() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "one\ntwo").unwrap();
        let (soft, hard) = (dir.path().join("soft"), dir.path().join("hard"));
        std::os::unix::fs::symlink(&victim, &soft).unwrap();
        std::fs::hard_link(&victim, &hard).unwrap();
        assert!(append(&soft, "three").is_err() && append(&hard, "three").is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "one\ntwo");
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        check_owner(dir.path()).unwrap();
        std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
        let error = check_owner(dir.path()).unwrap_err().to_string();
        assert!(error.contains("it belongs to another user (65534); run this command as that user"), "{error}");
    }

    #[test]
    fn existing_files_are_not_overwritten_and_no_partial_file_remains() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        create(&file, b"first", SECRET_MODE, "").unwrap();
        assert!(matches!(create(&file, b"second", SECRET_MODE, ""), Err(CaError::Exists { .. })));
        assert_eq!(std::fs::read(&file).unwrap(), b"first");
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, SECRET_MODE);
        replace(&file, b"third", SECRET_MODE).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"third");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_one_process_holds_the_directory_lock() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        let other = File::open(dir.path()).unwrap();
        let busy = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(busy, Err(Errno::WOULDBLOCK));
        drop(lock);
        assert_eq!(rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive), Ok(()));
    }
}
