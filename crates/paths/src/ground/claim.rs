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

use marline_net::directory::Directory;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::PathsError;
use super::ledger::network;

/// What is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Steering this network's connections.
    Steer,
    /// Only looking at them.
    Look,
    /// Serving a LAN.
    Gateway,
}

impl Role {
    fn file(self) -> io::Result<String> {
        let word = match self {
            Self::Steer => "paths",
            Self::Look => "paths-dry-run",
            Self::Gateway => "edge",
        };
        Ok(format!("{word}-{}.lock", network()?))
    }
}

/// Held for as long as it lives.
#[derive(Debug)]
pub struct Claim {
    directory: Directory,
    name: String,
    _file: File,
}

/// Why there is no claim.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process holds it.
    #[error("a `marline paths`{} steers this network already; stop it first, or ask it with `marline paths status`", shown(.0))]
    Held(Option<u32>),
    /// The file cannot be had.
    #[error("the claim on this network: {0}; name another directory with --run-dir")]
    File(#[from] io::Error),
}

impl From<ClaimError> for PathsError {
    fn from(error: ClaimError) -> Self {
        match &error {
            ClaimError::File(file) if file.kind() == io::ErrorKind::PermissionDenied => {
                Self::Unwritable(error.to_string())
            }
            _ => Self::Ground(error.to_string()),
        }
    }
}

fn shown(process: &Option<u32>) -> String {
    process.map(|process| format!(" (process {process})")).unwrap_or_default()
}

impl Claim {
    /// Takes it.
    ///
    /// # Errors
    /// Somebody holds it, or the directory is not to be used.
    pub fn take(run_dir: &Path, role: Role) -> Result<Self, ClaimError> {
        let (directory, name) = (Directory::own(run_dir)?, role.file()?);
        let begun = Instant::now();
        loop {
            let mut file = directory.lockable(&name).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", run_dir.join(&name).display()))
            })?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever held it last may have removed the file meanwhile.
                Ok(()) if !directory.has(&name, &file) => {}
                Ok(()) => {
                    file.set_len(0)?;
                    writeln!(file, "{}", std::process::id())?;
                    return Ok(Self { directory, name, _file: file });
                }
                Err(Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 20),
                Err(Errno::WOULDBLOCK) => return Err(ClaimError::Held(written(file))),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// The process that holds it, as far as this user may know.
    pub fn held(run_dir: &Path, role: Role) -> Option<u32> {
        let (directory, name) = (Directory::open(run_dir).ok()?, role.file().ok()?);
        directory.read(&name).ok()??;
        let file = directory.lockable(&name).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => written(file),
            _ => None,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Before the lock ends: after that the file may be another's. One that stays means nothing.
        let _ = self.directory.unlink(&self.name);
    }
}

/// The process that the file names.
fn written(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// chosen: a child that the holder was just starting when it ended keeps the lock until it has become its program.
const PATIENCE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use marline_net::testing::in_a_network;

    use super::*;

    #[test]
    fn a_second_daemon_of_one_network_is_refused_and_told_who_is_there() {
        let run = tempfile::tempdir().unwrap();
        let (run, us) = (run.path(), std::process::id());
        assert_eq!(Claim::held(run, Role::Steer), None);
        let claim = Claim::take(run, Role::Steer).unwrap();
        let error = Claim::take(run, Role::Steer).unwrap_err().to_string();
        assert!(error.starts_with(&format!("a `marline paths` (process {us}) steers this network")), "{error}");
        assert_eq!(Claim::held(run, Role::Steer), Some(us));
        drop(Claim::take(run, Role::Look).unwrap());
        drop(claim);
        assert_eq!(std::fs::read_dir(run).unwrap().count(), 0);
        drop(Claim::take(run, Role::Steer).unwrap());
    }

    #[test]
    fn a_file_that_a_killed_daemon_has_left_is_no_claim() {
        let run = tempfile::tempdir().unwrap();
        std::fs::write(run.path().join(Role::Steer.file().unwrap()), "1\n").unwrap();
        assert_eq!(Claim::held(run.path(), Role::Steer), None);
        let claim = Claim::take(run.path(), Role::Steer).unwrap();
        assert_eq!(Claim::held(run.path(), Role::Steer), Some(std::process::id()));
        drop(claim);
    }

    #[test]
    fn two_networks_have_a_daemon_each() {
        let run = tempfile::tempdir().unwrap();
        let run = run.path();
        in_a_network(|| {
            let _claim = Claim::take(run, Role::Steer).unwrap();
            in_a_network(|| drop(Claim::take(run, Role::Steer).unwrap()));
        });
    }

    #[test]
    fn another_user_cannot_take_it_first() {
        use std::os::unix::fs::PermissionsExt;
        let run = tempfile::tempdir().unwrap();
        let claim = Claim::take(run.path(), Role::Steer).unwrap();
        let file = run.path().join(Role::Steer.file().unwrap());
        // A lock takes an open file, and this one opens for its owner alone.
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        drop(claim);
        std::fs::set_permissions(run.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = Claim::take(run.path(), Role::Steer).unwrap_err().to_string();
        assert!(error.contains("users other than its owner may write to it"), "{error}");
    }
}
