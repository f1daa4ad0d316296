//! Instance lock: one daemon per network namespace and role, enforced by a lock file in the run directory.
//!
//! 1. The lock is a `flock` on a file that only root and the daemon's user can open, so no other user can take it. It
//!    ends with its process, however that ends.
//! 2. The file name contains the number of the network namespace, because path managers belong to namespaces.
//! 3. A dry run locks another file, so that it can run beside a daemon.
//! 4. The file contains the process id of the holder and is removed with the lock. A file without a lock has no
//!    meaning.
//!
//! A socket with an abstract name would not do: any user could take the name first. Two daemons with different run
//! directories detect each other in the kernel's list of event listeners ([`super::find_daemon`]), which requires
//! CAP_NET_ADMIN.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use marline_net::run_dir::RunDir;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::PathsError;
use super::undo_log::netns_inode;

/// Role of a daemon, each with its own lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Manages the paths of this network namespace.
    Paths,
    /// Only reports what it would do.
    DryRun,
    /// Serves a LAN.
    Gateway,
}

impl Role {
    fn file_name(self) -> io::Result<String> {
        let prefix = match self {
            Self::Paths => "paths",
            Self::DryRun => "paths-dry-run",
            Self::Gateway => "edge",
        };
        Ok(format!("{prefix}-{}.lock", netns_inode()?))
    }
}

/// An instance lock, held until it is dropped.
#[derive(Debug)]
pub struct InstanceLock {
    directory: RunDir,
    file_name: String,
    _file: File,
}

/// Why the lock cannot be acquired.
#[derive(Debug, thiserror::Error)]
pub enum InstanceLockError {
    /// Another process holds the lock.
    #[error("a `marline paths`{} already manages this network namespace; stop it first, or query it with `marline paths status`", process_suffix(.0))]
    AlreadyHeld(Option<u32>),
    /// The lock file cannot be opened or written.
    #[error("the instance lock of this network namespace: {0}; choose another directory with --run-dir")]
    File(#[from] io::Error),
}

impl From<InstanceLockError> for PathsError {
    fn from(error: InstanceLockError) -> Self {
        match &error {
            InstanceLockError::File(file) if file.kind() == io::ErrorKind::PermissionDenied => {
                Self::NotWritable(error.to_string())
            }
            _ => Self::HostConfig(error.to_string()),
        }
    }
}

fn process_suffix(process: &Option<u32>) -> String {
    process.map(|process| format!(" (process {process})")).unwrap_or_default()
}

impl InstanceLock {
    /// Acquires the lock, and waits briefly for a holder that is ending.
    ///
    /// # Errors
    /// Another process holds it, or the directory is unsuitable.
    pub fn acquire(run_dir: &Path, role: Role) -> Result<Self, InstanceLockError> {
        let (directory, file_name) = (RunDir::open_own(run_dir)?, role.file_name()?);
        let start = Instant::now();
        loop {
            let mut file = directory.open_lock_file(&file_name).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", run_dir.join(&file_name).display()))
            })?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The previous holder may have removed the file meanwhile; then the lock is on a deleted file, and a
                // new one must be opened.
                Ok(()) if !directory.is_same_file(&file_name, &file) => {}
                Ok(()) => {
                    file.set_len(0)?;
                    writeln!(file, "{}", std::process::id())?;
                    return Ok(Self { directory, file_name, _file: file });
                }
                Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_TIMEOUT / 20),
                Err(Errno::WOULDBLOCK) => return Err(InstanceLockError::AlreadyHeld(read_pid(file))),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// The process that holds the lock, if this user may see it.
    pub fn holder(run_dir: &Path, role: Role) -> Option<u32> {
        let (directory, file_name) = (RunDir::open(run_dir).ok()?, role.file_name().ok()?);
        directory.read(&file_name).ok()??;
        let file = directory.open_lock_file(&file_name).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => read_pid(file),
            _ => None,
        }
    }
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        // Removed before the lock ends: afterwards the file may belong to another process. A file that remains has no
        // meaning.
        let _ = self.directory.unlink(&self.file_name);
    }
}

/// The process id in the file.
fn read_pid(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Our choice: a child process that the holder was starting when it ended keeps the lock until its `exec`.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use marline_net::testing::in_a_network;

    use super::*;

    #[test]
    fn a_second_daemon_in_one_namespace_is_refused_with_the_holders_process() {
        let run_dir = tempfile::tempdir().unwrap();
        let (run_dir, own_pid) = (run_dir.path(), std::process::id());
        assert_eq!(InstanceLock::holder(run_dir, Role::Paths), None);
        let lock = InstanceLock::acquire(run_dir, Role::Paths).unwrap();
        let error = InstanceLock::acquire(run_dir, Role::Paths).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "a `marline paths` (process {own_pid}) already manages this network namespace"
            )),
            "{error}"
        );
        assert_eq!(InstanceLock::holder(run_dir, Role::Paths), Some(own_pid));
        drop(InstanceLock::acquire(run_dir, Role::DryRun).unwrap());
        drop(lock);
        assert_eq!(std::fs::read_dir(run_dir).unwrap().count(), 0);
        drop(InstanceLock::acquire(run_dir, Role::Paths).unwrap());
    }

    #[test]
    fn a_lock_file_of_a_killed_daemon_is_ignored() {
        let run_dir = tempfile::tempdir().unwrap();
        std::fs::write(run_dir.path().join(Role::Paths.file_name().unwrap()), "1\n").unwrap();
        assert_eq!(InstanceLock::holder(run_dir.path(), Role::Paths), None);
        let lock = InstanceLock::acquire(run_dir.path(), Role::Paths).unwrap();
        assert_eq!(InstanceLock::holder(run_dir.path(), Role::Paths), Some(std::process::id()));
        drop(lock);
    }

    #[test]
    fn two_network_namespaces_have_a_daemon_each() {
        let run_dir = tempfile::tempdir().unwrap();
        let run_dir = run_dir.path();
        in_a_network(|| {
            let _lock = InstanceLock::acquire(run_dir, Role::Paths).unwrap();
            in_a_network(|| drop(InstanceLock::acquire(run_dir, Role::Paths).unwrap()));
        });
    }

    #[test]
    fn another_user_cannot_take_the_lock() {
        use std::os::unix::fs::PermissionsExt;
        let run_dir = tempfile::tempdir().unwrap();
        let lock = InstanceLock::acquire(run_dir.path(), Role::Paths).unwrap();
        let file = run_dir.path().join(Role::Paths.file_name().unwrap());
        // Locking requires an open file, and only the owner can open this one.
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        drop(lock);
        std::fs::set_permissions(run_dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = InstanceLock::acquire(run_dir.path(), Role::Paths).unwrap_err().to_string();
        assert!(error.contains("users other than its owner may write to it"), "{error}");
    }
}
