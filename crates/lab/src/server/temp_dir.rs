//! Temporary directory in memory that is removed with the lab, or at the latest by the next lab.
//!
//! `Drop` removes it. After `kill -9` no code of this process runs any more, but the lock that it held is released.
//! The next lab, or the next temporary directory, removes the directories whose lock is free.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};

const PREFIX: &str = "marline-lab-";
/// Directory in memory.
const SHM: &str = "/dev/shm";

/// Removes what killed labs left behind, in both directories where a [`TempDir`] can be.
pub(crate) fn remove_stale_dirs() {
    remove_stale_in(Path::new(SHM));
    remove_stale_in(&std::env::temp_dir());
}

/// A temporary directory that only this process uses.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
    _lock: File,
}

impl TempDir {
    /// Creates a directory in `/dev/shm`, so that no disk affects a measurement, otherwise in the system's
    /// temporary directory.
    ///
    /// # Errors
    /// Neither directory is writable.
    pub fn new() -> io::Result<Self> {
        Self::create_in(Path::new(SHM)).or_else(|_| Self::create_in(&std::env::temp_dir()))
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        remove_stale_in(parent);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            }
            // Before it is locked, another lab may take the new directory for an abandoned one and remove it. Then
            // the loop tries the next number.
            if let Ok(lock) = File::open(&path)
                && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
                && path.exists()
            {
                return Ok(Self { path, _lock: lock });
            }
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the directories of killed labs in `parent`.
fn remove_stale_in(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let measured = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let Some(lock) = measured.then(|| File::open(entry.path()).ok()).flatten() else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_directory_is_removed_by_the_next_one_and_a_locked_one_is_kept() {
        let parent = tempfile::tempdir().unwrap();
        let abandoned = parent.path().join("marline-lab-0-0");
        let foreign = parent.path().join("something-else");
        fs::create_dir(&abandoned).unwrap();
        fs::create_dir(&foreign).unwrap();
        fs::write(abandoned.join("file"), b"x").unwrap();
        let first = TempDir::create_in(parent.path()).unwrap();
        let second = TempDir::create_in(parent.path()).unwrap();
        assert!(!abandoned.exists() && foreign.exists());
        assert!(first.path().exists() && second.path().exists() && first.path() != second.path());
        let path = first.path().to_path_buf();
        drop(first);
        assert!(!path.exists());
    }
}
