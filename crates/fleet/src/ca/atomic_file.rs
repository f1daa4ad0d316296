//! Files of an authority, written so that a crash leaves the old or the new, and never a half.
//!
//! 1. A file appears, or changes, whole: its bytes go to another name, to the disk, and then to the right name.
//! 2. A list grows by whole lines. A line without its end was cut off by a crash before anybody saw what it speaks of; the
//!    next line takes its place.
//! 3. Two processes take turns: whoever changes something holds the lock of the directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use marline_net::atomic_file::{self, FileError};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::CaError;

/// A file that its owner alone may read.
pub(super) const SECRET_MODE: u32 = 0o600;
/// A file that everybody may read.
pub(super) const PUBLIC_MODE: u32 = 0o644;

/// Held while something is changed; the kernel gives it back however the process ends.
#[derive(Debug)]
pub(super) struct DirLock(#[expect(dead_code, reason = "it is held, not read")] File);

impl DirLock {
    /// Waits for whoever has it.
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

/// Makes a directory for its owner alone, and those above it as usual.
pub(super) fn make_dir(dir: &Path) -> Result<(), CaError> {
    if let Some(parent) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(CaError::file(parent))?;
    }
    match DirBuilder::new()
        .mode(0o700)
        .create(dir)
        .and_then(|()| atomic_file::sync_directory(atomic_file::parent(dir)))
    {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(CaError::File { path: dir.into(), error }),
        _ => Ok(()),
    }
}

/// Removes what processes that were killed have left in a locked directory.
pub(super) fn remove_temp_files(dir: &Path) -> Result<(), CaError> {
    for entry in std::fs::read_dir(dir).map_err(CaError::file(dir))? {
        let entry = entry.map_err(CaError::file(dir))?;
        let name = entry.file_name();
        let is_left =
            name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(atomic_file::TEMPORARY));
        if is_left {
            std::fs::remove_file(entry.path()).map_err(CaError::file(entry.path()))?;
        }
    }
    Ok(())
}

/// Refuses a file or directory of which others have any of these rights.
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

/// Refuses a directory of another user, who could have put links into it: root would follow them.
pub(super) fn check_owner(dir: &Path) -> Result<(), CaError> {
    let owner = std::fs::metadata(dir).map_err(CaError::file(dir))?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(CaError::OtherOwner { dir: dir.into(), owner })
    }
}

/// The whole text of a file, no longer than [`LONGEST`]; none if it is not there.
pub(super) fn read(path: &Path) -> Result<Option<String>, CaError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CaError::File { path: path.into(), error }),
    };
    let mut text = String::new();
    let read = file.take(MAX_LEN + 1).read_to_string(&mut text).map_err(CaError::file(path))?;
    let fits = u64::try_from(read).is_ok_and(|read| read <= MAX_LEN);
    if fits { Ok(Some(text)) } else { Err(CaError::damaged(path, "it is too long to be one of ours")) }
}

/// Chosen: a list of a million certificates has 200 MB.
const MAX_LEN: u64 = 1 << 30;

/// Writes a file of a locked directory whole, over the old one if there is one.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CaError> {
    Ok(atomic_file::replace(path, bytes, mode)?)
}

/// Writes a file whole, unless there is one of its name.
pub(super) fn create(path: &Path, bytes: &[u8], mode: u32, help: &'static str) -> Result<(), CaError> {
    match atomic_file::create(path, bytes, mode) {
        Err(FileError { path, error }) if error.kind() == ErrorKind::AlreadyExists => {
            Err(CaError::Exists { path, help })
        }
        created => Ok(created?),
    }
}

/// Puts a line at the end of a list of a locked directory, and waits until it is on the disk.
pub(super) fn append(path: &Path, line: &str) -> Result<(), CaError> {
    let write = || {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut file =
            OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() || meta.nlink() != 1 || meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it is not a file of this user with one name"));
        }
        let end = end_of_lines(&mut file)?;
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_data()
    };
    write().map_err(CaError::file(path))
}

/// Where the last whole line ends.
fn end_of_lines(file: &mut File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut byte = [0];
    // A line has some hundred bytes; only one that a crash has cut is walked through.
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
    fn a_line_that_was_cut_off_gives_its_place_to_the_next() {
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
    fn nothing_is_appended_through_a_link() {
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
    fn what_is_there_is_not_overwritten_and_no_half_file_stays() {
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
    fn only_one_process_changes_something_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        let other = File::open(dir.path()).unwrap();
        let busy = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(busy, Err(Errno::WOULDBLOCK));
        drop(lock);
        assert_eq!(rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive), Ok(()));
    }
}
