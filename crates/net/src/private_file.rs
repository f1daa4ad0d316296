//! Files that only their owner may access: secrets that are read, and logs that are written.
//!
//! [`read_secret`] refuses a file that other users may read, as ssh does: a readable private key or password is no
//! longer secret, and a warning in a log would not be seen. [`create_log`] and [`append_log`] open a log so that
//! another user can neither read it nor have put a link or a file of their own in its place: names of logs are
//! predictable, and directories such as `/tmp` are shared.
//!
//! All checks are made on the open descriptor, so replacing the path meanwhile has no effect. Pipes and devices
//! (`<(command)`, `/dev/stdin`) have no meaningful mode and are accepted as they are.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

/// Our choice: a key or a password has a few hundred bytes.
const MAX_SECRET_LEN: u64 = 1 << 20;

/// Why a secret was not read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the secret.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Users other than the owner may access the file.
    #[error("{0}: users other than its owner may read it (mode {mode:04o}): chmod 600 {0}", path.display())]
    Exposed {
        /// Path of the secret.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Reads a file that only its owner may access.
///
/// # Errors
/// It cannot be read, is longer than a mebibyte, or other users may read it.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, SecretError> {
    let failed = |error: io::Error| SecretError::File { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.is_file() {
        let mode = meta.mode() & 0o7777;
        // systemd grants credentials to the unit's user by an access control list, whose mask appears as the mode of
        // the group. The directory is accessible to that user only.
        let forbidden_bits = if is_credential(path) { 0o027 } else { 0o077 };
        if mode & forbidden_bits != 0 {
            return Err(SecretError::Exposed { path: path.to_owned(), mode });
        }
    }
    let mut bytes = Vec::new();
    file.take(MAX_SECRET_LEN + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_SECRET_LEN {
        return Err(failed(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the file is too long for a key or a password (at most 1 MiB)",
        )));
    }
    Ok(bytes)
}

/// Whether the file is a credential that systemd provided to this unit (`LoadCredential=`).
fn is_credential(path: &Path) -> bool {
    let directory = std::env::var_os("CREDENTIALS_DIRECTORY").filter(|directory| !directory.is_empty());
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    directory.and_then(|directory| Path::new(&directory).canonicalize().ok()).is_some_and(|dir| parent == Some(dir))
}

/// Opens a log for overwriting: truncated, locked against other processes, accessible to its owner only. Does not
/// wait for the lock of another process.
///
/// # Errors
/// It cannot be opened, another process writes it, or another user could have put it there.
pub fn create_log(path: &Path) -> io::Result<File> {
    let file = open_log(path, false)?;
    // A device or a pipe cannot be truncated, and is not exclusively this process's, so it is not locked.
    if file.metadata()?.is_file() {
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "another run of marline writes this file"));
        }
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a log for appending, accessible to its owner only.
///
/// # Errors
/// It cannot be opened, or another user could have put it there.
pub fn append_log(path: &Path) -> io::Result<File> {
    open_log(path, true)
}

fn open_log(path: &Path, append: bool) -> io::Result<File> {
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).mode(0o600).custom_flags(flags.bits().cast_signed());
        if append { options.append(true) } else { options.write(true) }.open(path)
    };
    let file = match open(OFlags::NOFOLLOW) {
        // Symbolic links are followed only if root or this user created them, such as /dev/stderr.
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            let link = std::fs::symlink_metadata(path)?;
            if !is_trusted(link.uid()) {
                return Err(unsafe_file_error("it is a symbolic link that another user created"));
            }
            open(OFlags::empty())?
        }
        opened => opened?,
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(file);
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(unsafe_file_error("the file belongs to another user; remove it, or name another file"));
    }
    if meta.nlink() != 1 {
        return Err(unsafe_file_error("the file has several names (hard links); remove it, or name another file"));
    }
    if meta.mode() & 0o077 != 0 {
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600))?;
    }
    Ok(file)
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn unsafe_file_error(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_secret_that_other_users_may_read_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "hunter2").unwrap();
        for mode in [0o600, 0o400] {
            set_mode(&path, mode);
            assert_eq!(read_secret(&path).unwrap(), b"hunter2");
        }
        for mode in [0o644, 0o640, 0o604, 0o602, 0o660] {
            set_mode(&path, mode);
            let error = read_secret(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && !error.contains("hunter2"), "{mode:o}: {error}");
        }
        let absent = read_secret(&dir.path().join("absent")).unwrap_err().to_string();
        assert!(absent.contains("absent: No such file"), "{absent}");
        std::fs::write(&path, vec![b'x'; 2 << 20]).unwrap();
        set_mode(&path, 0o600);
        assert!(matches!(read_secret(&path), Err(SecretError::File { .. })));
    }

    #[test]
    fn a_log_is_not_written_to_a_file_that_another_user_could_have_created() {
        let dir = tempfile::tempdir().unwrap();
        let (log, victim) = (dir.path().join("log"), dir.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        std::fs::hard_link(&victim, &log).unwrap();
        for open in [create_log, append_log] {
            assert_eq!(open(&log).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "a hard link");
        }
        std::fs::remove_file(&log).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::symlink(&victim, &log).unwrap();
            std::os::unix::fs::lchown(&log, Some(65_534), Some(65_534)).unwrap();
            assert_eq!(
                create_log(&log).unwrap_err().kind(),
                io::ErrorKind::PermissionDenied,
                "another user's link"
            );
            std::fs::remove_file(&log).unwrap();
            std::fs::write(&log, "").unwrap();
            std::os::unix::fs::chown(&log, Some(65_534), None).unwrap();
            assert_eq!(
                create_log(&log).unwrap_err().kind(),
                io::ErrorKind::PermissionDenied,
                "another user's file"
            );
            std::fs::remove_file(&log).unwrap();
        } else {
            eprintln!("skipped in part: only root can give files away");
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        std::fs::write(&log, "before\n").unwrap();
        set_mode(&log, 0o644);
        append_log(&log).unwrap().write_all(b"after\n").unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "before\nafter\n");
        assert_eq!(std::fs::metadata(&log).unwrap().mode() & 0o777, 0o600);
        let first = create_log(&log).unwrap();
        assert_eq!(create_log(&log).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        create_log(Path::new("/dev/null")).unwrap();
        // A link of this user, as /dev/stderr is one of root. The test avoids /dev/stderr itself, which may be the
        // file that receives the test results.
        let link = log.with_extension("link");
        std::os::unix::fs::symlink(&log, &link).unwrap();
        create_log(&link).unwrap();
    }
}
