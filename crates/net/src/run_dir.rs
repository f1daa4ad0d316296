//! The run directory: opens it only if no user other than root and the daemon's user can have put files into it.
//!
//! The directory is opened once. Each file is then accessed by its name relative to that descriptor, so replacing the
//! path has no effect.
//!
//! 1. The directory belongs to root or to this process's user, and no other user may write to it. To query a daemon
//!    ([`RunDir::open`]), root also accepts another user's directory if only root can have created it, as systemd
//!    does (`DynamicUser=`). A daemon never keeps its own files in such a directory ([`RunDir::open_own`],
//!    [`RunDir::ensure`]): that user could plant links and forged state files for root.
//! 2. The path may be a symbolic link, as systemd creates it, if the link belongs to root or this user.
//! 3. Files are never symbolic links: they are created exclusively (`O_EXCL`) and renamed into place.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, open, openat, unlinkat};
use rustix::io::Errno;

use crate::atomic_file::replace_in;

/// An open run directory into which only root and its owner can have put files.
#[derive(Debug)]
pub struct RunDir {
    fd: OwnedFd,
}

impl RunDir {
    /// Opens the directory to connect to the daemon whose socket is in it.
    ///
    /// # Errors
    /// It does not exist, is not a directory, or another user could put files into it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_checked(path, true).map_err(|error| with_path(path, error))
    }

    /// Opens the directory to keep files in it. It must belong to this process's user or to root.
    ///
    /// # Errors
    /// It does not exist, is not a directory, or another user could put files into it.
    pub fn open_own(path: &Path) -> io::Result<Self> {
        Self::open_checked(path, false).map_err(|error| with_path(path, error))
    }

    fn open_checked(path: &Path, allow_granted: bool) -> io::Result<Self> {
        let name = open(path, PATH_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = fstat(&name)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink && !is_trusted(&stat) {
            return Err(unsafe_error("it is a symbolic link that another user created"));
        }
        let fd = open(path, PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        let stat = fstat(&fd)?;
        if is_writable_by_others(&stat) {
            return Err(unsafe_error("users other than its owner may write to it"));
        }
        let granted = is_trusted(&stat) || allow_granted && is_root() && is_controlled_by_root(&fd)?;
        if !granted {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
        }
        Ok(Self { fd })
    }

    /// Creates the directory if it does not exist; returns whether it was created.
    ///
    /// # Errors
    /// As [`open_own`](Self::open_own), and if it cannot be created.
    pub fn ensure(path: &Path) -> io::Result<bool> {
        match Self::open_own(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let created = DirBuilder::new().mode(0o755).recursive(true).create(path);
                created.map_err(|error| with_path(path, error))?;
                Self::open_own(path).map(|_| true)
            }
            opened => opened.map(|_| false),
        }
    }

    /// Creates a new file, accessible to its owner only. An existing file of that name is removed; the target of an
    /// existing link is not touched.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create_file(&self, name: &str) -> io::Result<File> {
        self.unlink(name)?;
        Ok(openat(&self.fd, name, OFlags::WRONLY | CREATE_NEW_FLAGS, OWNER_MODE)?.into())
    }

    /// Opens for reading a file that this process's user has written; `None`: it does not exist.
    ///
    /// # Errors
    /// It is a link or not a regular file, another user has written it or may write to it, or it cannot be read.
    pub fn open_own_file(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&file)?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw() && !is_writable_by_others(&stat);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_own || stat.st_nlink != 1 {
            return Err(unsafe_error("it is not a regular file that only this user can have written"));
        }
        Ok(Some(file.into()))
    }

    /// A path to `name` in exactly this directory, even if the directory is renamed or replaced. Valid as long as
    /// `self` exists.
    pub fn path_in_dir(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(name)
    }

    /// Reads a file; `None`: it does not exist.
    ///
    /// # Errors
    /// It cannot be read, or is longer than 1 MiB, more than anything that is written here.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut text = Vec::new();
        file.take(MAX_FILE_LEN + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_FILE_LEN {
            Err(unsafe_error("the file is longer than 1 MiB"))
        } else {
            Ok(Some(text))
        }
    }

    /// Replaces a file atomically, accessible to its owner only. The content is on disk when this returns.
    ///
    /// # Errors
    /// The file cannot be written; then the old content remains.
    pub fn replace(&self, name: &str, text: &[u8]) -> io::Result<()> {
        replace_in(&self.fd, name.as_ref(), text, OWNER_MODE.as_raw_mode())
    }

    /// Removes a file if it exists, and syncs the directory.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.unlink(name)?;
        self.sync()
    }

    /// Opens a file to hold a lock on, accessible to its owner only; it is created if it does not exist.
    ///
    /// # Errors
    /// It belongs to another user, or cannot be created.
    pub fn open_lock_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.fd, name, flags, OWNER_MODE)?.into())
    }

    /// Whether `name` currently refers to this open file.
    pub fn is_same_file(&self, name: &str, file: &File) -> bool {
        let entry = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        entry.is_ok_and(|entry| {
            fstat(file).is_ok_and(|opened| (opened.st_dev, opened.st_ino) == (entry.st_dev, entry.st_ino))
        })
    }

    /// Removes a name if it exists; the target of a link is not touched.
    ///
    /// # Errors
    /// The name cannot be removed.
    pub fn unlink(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => Ok(result?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        // The stored descriptor was opened with `O_PATH` and cannot be synced.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::fsync(openat(&self.fd, ".", flags, Mode::empty())?)?)
    }
}

/// Adds the path of the directory to an error.
fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn unsafe_error(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_trusted(stat: &Stat) -> bool {
    stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw()
}

fn is_writable_by_others(stat: &Stat) -> bool {
    Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH)
}

/// Whether only root can have created or renamed this directory: the parent belongs to root and is not writable by
/// others.
fn is_controlled_by_root(directory: impl AsFd) -> io::Result<bool> {
    let parent = fstat(openat(directory, "..", PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?)?;
    Ok(parent.st_uid == 0 && !is_writable_by_others(&parent))
}

/// A descriptor that only identifies a directory or link, without access to its content.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const CREATE_NEW_FLAGS: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const OWNER_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Maximum length of a file that is read. Our choice: enough for the records of thousands of MPTCP endpoints, more
/// than any host has.
const MAX_FILE_LEN: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    /// A user ID that is not this process's.
    const OTHER_UID: u32 = 65_534;

    fn open_error(path: &Path) -> String {
        RunDir::open(path).map(|_| "opened".to_owned()).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn a_directory_that_other_users_may_write_to_is_refused() {
        let temp_dir = tempfile::tempdir().unwrap();
        assert_eq!(open_error(temp_dir.path()), "opened");
        for mode in [0o777, 0o1777, 0o775, 0o702] {
            fs::set_permissions(temp_dir.path(), Permissions::from_mode(mode)).unwrap();
            assert!(
                open_error(temp_dir.path()).ends_with("users other than its owner may write to it"),
                "{mode:o}"
            );
        }
        assert_eq!(RunDir::open(Path::new("/nonexistent")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(open_error(Path::new("/dev/null")).starts_with("/dev/null: "));
    }

    #[test]
    fn a_directory_or_link_of_another_user_is_refused_unless_root_created_it() {
        if !is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let temp_dir = tempfile::tempdir().unwrap();
        let (given, link) = (temp_dir.path().join("given"), temp_dir.path().join("link"));
        fs::create_dir(&given).unwrap();
        symlink(&given, &link).unwrap();
        assert_eq!(open_error(&link), "opened", "a link of root, as systemd creates it");
        chown(&given, Some(OTHER_UID), None).unwrap();
        assert_eq!(open_error(&link), "opened", "a directory that root gave to the unit's user, for queries");
        for path in [&given, &link] {
            let errors = [RunDir::open_own(path).unwrap_err(), RunDir::ensure(path).unwrap_err()];
            assert!(errors.iter().all(|error| error.to_string().ends_with("it belongs to another user")));
        }
        lchown(&link, Some(OTHER_UID), None).unwrap();
        assert!(open_error(&link).ends_with("it is a symbolic link that another user created"));
        chown(temp_dir.path(), Some(OTHER_UID), None).unwrap();
        assert!(open_error(&given).ends_with("it belongs to another user"));
    }

    #[test]
    fn files_are_never_accessed_through_symbolic_links() {
        let temp_dir = tempfile::tempdir().unwrap();
        let (run, victim) = (temp_dir.path().join("run"), temp_dir.path().join("victim"));
        assert!(RunDir::ensure(&run).unwrap() && !RunDir::ensure(&run).unwrap());
        fs::write(&victim, "whole").unwrap();
        for name in ["a", "lock"] {
            symlink(&victim, run.join(name)).unwrap();
        }
        let directory = RunDir::open(&run).unwrap();
        directory.read("a").unwrap_err();
        directory.open_lock_file("lock").unwrap_err();
        directory.replace("a", b"new").unwrap();
        assert_eq!(directory.read("a").unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(fs::metadata(run.join("a")).unwrap().permissions().mode() & 0o777, 0o600);
        directory.remove("a").unwrap();
        directory.remove("a").unwrap();
        assert_eq!(directory.read("a").unwrap(), None);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "whole");
    }

    #[test]
    fn a_file_planted_by_another_user_is_neither_written_nor_read() {
        let temp_dir = tempfile::tempdir().unwrap();
        let (run, victim) = (temp_dir.path().join("run"), temp_dir.path().join("victim"));
        fs::create_dir(&run).unwrap();
        fs::write(&victim, "whole").unwrap();
        let directory = RunDir::open_own(&run).unwrap();
        symlink(&victim, run.join("symlink")).unwrap();
        fs::hard_link(&victim, run.join("hard")).unwrap();
        rustix::fs::mknodat(&directory.fd, "pipe", FileType::Fifo, OWNER_MODE, 0).unwrap();
        for name in ["symlink", "hard", "pipe"] {
            directory.open_own_file(name).unwrap_err();
            directory.create_file(name).unwrap().write_all(b"new").unwrap();
            let text = std::io::read_to_string(directory.open_own_file(name).unwrap().unwrap()).unwrap();
            assert_eq!(text, "new", "{name}");
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "whole");
        assert!(directory.open_own_file("nothing").unwrap().is_none());
        fs::set_permissions(run.join("hard"), Permissions::from_mode(0o620)).unwrap();
        directory.open_own_file("hard").unwrap_err();
        if is_root() {
            chown(run.join("pipe"), Some(OTHER_UID), None).unwrap();
            directory.open_own_file("pipe").unwrap_err();
        }
    }
}
