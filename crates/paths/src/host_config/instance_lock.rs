//! One daemon steers a network: who holds the claim is he.
//!
//! In: a run directory and what is claimed. Out: a value that holds it for as long as it lives, or who holds it already.
//!
//! 1. The claim is a lock (`flock`) on a file of the run directory, which only root and the daemon's user can open: so
//!    nobody else can take it. It ends with its process, however that ends.
//! 2. The file's name has the number of the network namespace in it: path managers belong to those.
//! 3. A run that changes nothing locks another file, so that it can stand beside one that steers.
//! 4. The file says which process it is. It goes with the claim; a file that nobody has locked means nothing.
//!
//! A socket with an abstract name was not used: any user can take the name first. Two daemons with two run directories
//! find each other by the kernel's list of those who listen to its events ([`super::daemon`]), which takes CAP_NET_ADMIN.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use marline_net::run_dir::RunDir;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::PathsError;
use super::undo_log::netns_inode;

/// What is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Steering this network's connections.
    Paths,
    /// Only looking at them.
    DryRun,
    /// Serving a LAN.
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

/// Held for as long as it lives.
#[derive(Debug)]
pub struct InstanceLock {
    directory: RunDir,
    file_name: String,
    _file: File,
}

/// Why there is no claim.
#[derive(Debug, thiserror::Error)]
pub enum InstanceLockError {
    /// Another process holds it.
    #[error("a `marline paths`{} steers this network already; stop it first, or ask it with `marline paths status`", process_suffix(.0))]
    AlreadyHeld(Option<u32>),
    /// The file cannot be had.
    #[error("the claim on this network: {0}; name another directory with --run-dir")]
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
    /// Takes it.
    ///
    /// # Errors
    /// Somebody holds it, or the directory is not to be used.
    pub fn acquire(run_dir: &Path, role: Role) -> Result<Self, InstanceLockError> {
        let (directory, file_name) = (RunDir::open_own(run_dir)?, role.file_name()?);
        let start = Instant::now();
        loop {
            let mut file = directory.open_lock_file(&file_name).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", run_dir.join(&file_name).display()))
            })?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever held it last may have removed the file meanwhile.
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

    /// The process that holds it, as far as this user may know.
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
        // Before the lock ends: after that the file may be another's. One that stays means nothing.
        let _ = self.directory.unlink(&self.file_name);
    }
}

/// The process that the file names.
fn read_pid(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// chosen: a child that the holder was just starting when it ended keeps the lock until it has become its program.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use marline_net::testing::in_a_network;

    use super::*;

    #[test]
    fn a_second_daemon_of_one_network_is_refused_and_told_who_is_there() {
        let run_dir = tempfile::tempdir().unwrap();
        let (run_dir, own_pid) = (run_dir.path(), std::process::id());
        assert_eq!(InstanceLock::holder(run_dir, Role::Paths), None);
        let lock = InstanceLock::acquire(run_dir, Role::Paths).unwrap();
        let error = InstanceLock::acquire(run_dir, Role::Paths).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("a `marline paths` (process {own_pid}) steers this network")),
            "{error}"
        );
        assert_eq!(InstanceLock::holder(run_dir, Role::Paths), Some(own_pid));
        drop(InstanceLock::acquire(run_dir, Role::DryRun).unwrap());
        drop(lock);
        assert_eq!(std::fs::read_dir(run_dir).unwrap().count(), 0);
        drop(InstanceLock::acquire(run_dir, Role::Paths).unwrap());
    }

    #[test]
    fn a_file_that_a_killed_daemon_has_left_is_no_claim() {
        let run_dir = tempfile::tempdir().unwrap();
        std::fs::write(run_dir.path().join(Role::Paths.file_name().unwrap()), "1\n").unwrap();
        assert_eq!(InstanceLock::holder(run_dir.path(), Role::Paths), None);
        let lock = InstanceLock::acquire(run_dir.path(), Role::Paths).unwrap();
        assert_eq!(InstanceLock::holder(run_dir.path(), Role::Paths), Some(std::process::id()));
        drop(lock);
    }

    #[test]
    fn two_networks_have_a_daemon_each() {
        let run_dir = tempfile::tempdir().unwrap();
        let run_dir = run_dir.path();
        in_a_network(|| {
            let _lock = InstanceLock::acquire(run_dir, Role::Paths).unwrap();
            in_a_network(|| drop(InstanceLock::acquire(run_dir, Role::Paths).unwrap()));
        });
    }

    #[test]
    fn another_user_cannot_take_it_first() {
        use std::os::unix::fs::PermissionsExt;
        let run_dir = tempfile::tempdir().unwrap();
        let lock = InstanceLock::acquire(run_dir.path(), Role::Paths).unwrap();
        let file = run_dir.path().join(Role::Paths.file_name().unwrap());
        // A lock takes an open file, and this one opens for its owner alone.
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        drop(lock);
        std::fs::set_permissions(run_dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = InstanceLock::acquire(run_dir.path(), Role::Paths).unwrap_err().to_string();
        assert!(error.contains("users other than its owner may write to it"), "{error}");
    }
}
