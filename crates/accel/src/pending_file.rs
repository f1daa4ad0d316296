//! The pending file: bytes that were acknowledged early ([`PendingRepair`]), written down so that they survive the
//! death of this process.
//!
//! 1. It is written before the acknowledgement leaves: [`PendingFile::update`] is called before any output is executed.
//! 2. Nothing is synced: it is to survive this process, not the machine, whose connections die with it.
//! 3. It contains requests with all their fields. So it is readable for its owner alone, and removed at the end unless
//!    something is still missing.
//! 4. Its name contains the process id, so that a later run does not overwrite it.
//! 5. It is created and read within a [`RunDir`] that no other user can write, and never through a symbolic link: it
//!    controls what root requests, and which packets root injects into the local stack.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use marline_core::accel::{Accelerator, PendingRepair};
use marline_net::run_dir::RunDir;

/// An open file.
#[derive(Debug)]
pub(super) struct PendingFile {
    file: File,
    directory: RunDir,
    path: PathBuf,
    fingerprint: (u64, u64),
    is_empty: bool,
}

impl PendingFile {
    /// Creates a new one; an old one of that name is replaced.
    ///
    /// # Errors
    /// Another user can write its directory, or it cannot be created.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (directory, name) = open_directory(path)?;
        let file = directory.create_file(name)?;
        Ok(Self { file, directory, path: path.to_owned(), fingerprint: (0, 0), is_empty: true })
    }

    /// Writes what is pending now, if it has changed.
    pub(super) fn update(&mut self, machine: &Accelerator) {
        let fingerprint = machine.pending_fingerprint();
        if std::mem::replace(&mut self.fingerprint, fingerprint) == fingerprint {
            return;
        }
        let pending = machine.pending_repairs();
        if pending.is_empty() && self.is_empty {
            return;
        }
        self.is_empty = pending.is_empty();
        let written = serde_json::to_vec(&pending).map_err(io::Error::from).and_then(|text| {
            // A longer previous text remains behind the new one, and is not read.
            self.file.write_all_at(&text, 0)?;
            if pending.is_empty() { self.file.set_len(text.len() as u64) } else { Ok(()) }
        });
        if let Err(error) = written {
            tracing::warn!(file = %self.path.display(), %error, "pending early ACKs cannot be written down");
        }
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        // What is pending is left for the crash repair.
        if self.is_empty
            && let Some(name) = file_name(&self.path)
        {
            let _ = self.directory.unlink(name);
        }
    }
}

/// The pending file of this process.
pub fn pending_path(run_dir: &Path, primary: &str) -> PathBuf {
    run_dir.join(format!("accel-{primary}-{}.pending", std::process::id()))
}

/// The newest pending file of a primary link whose writer has ended. Older ones are removed: the run after each of them
/// has seen to it, and one process must suffice for the rest.
///
/// # Errors
/// Another user can write the directory.
pub fn orphaned_path(run_dir: &Path, primary: &str) -> io::Result<Option<PathBuf>> {
    let is_orphan = |name: &str| {
        let number =
            name.strip_prefix("accel-")?.strip_prefix(primary)?.strip_prefix('-')?.strip_suffix(".pending")?;
        let number: u32 = number.parse().ok()?;
        (number != std::process::id() && !Path::new("/proc").join(number.to_string()).exists()).then_some(())
    };
    let directory = match RunDir::open_own(run_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        directory => directory?,
    };
    let names = std::fs::read_dir(directory.path_in_dir("."))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut newest: Option<(i64, i64, String)> = None;
    for name in names.filter(|name| is_orphan(name).is_some()) {
        let written = directory.open_own_file(&name).ok().flatten().and_then(|file| file.metadata().ok());
        let Some(meta) = written else {
            tracing::warn!(file = %run_dir.join(&name).display(), "not a pending file of this user: ignored");
            continue;
        };
        let candidate = (meta.mtime(), meta.mtime_nsec(), name);
        let older = match newest.take() {
            Some(other) if other > candidate => {
                newest = Some(other);
                Some(candidate)
            }
            other => {
                newest = Some(candidate);
                other
            }
        };
        if let Some((.., name)) = older {
            let _ = directory.unlink(&name);
        }
    }
    Ok(newest.map(|(.., name)| run_dir.join(name)))
}

/// The content of a pending file; empty if it does not exist or is incomplete.
///
/// # Errors
/// It does not belong to this user alone, or cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Vec<PendingRepair>> {
    let (directory, name) = open_directory(path)?;
    let Some(file) = directory.open_own_file(name)? else { return Ok(Vec::new()) };
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text)?;
    let first = serde_json::Deserializer::from_slice(&text).into_iter::<Vec<PendingRepair>>().next();
    Ok(first.and_then(Result::ok).unwrap_or_default())
}

/// Removes a pending file.
pub(super) fn remove(path: &Path) {
    // It may be gone already.
    let _ = open_directory(path).and_then(|(directory, name)| directory.unlink(name));
}

fn open_directory(path: &Path) -> io::Result<(RunDir, &str)> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((RunDir::open_own(directory)?, file_name(path).ok_or(io::ErrorKind::InvalidInput)?))
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// chosen: thousands of holes with their requests.
const MAX_SIZE: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::accel::PendingHole;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_first_value_is_read_whatever_follows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pending");
        let hole = |seq| PendingHole { seq, ts_val: Some(7), fetch: None };
        let pending = PendingRepair {
            local: ([10, 0, 0, 2], 40_000).into(),
            server: ([192, 0, 2, 1], 80).into(),
            acked_by_server: (1, 2),
            timestamps: None,
            next_expected: 1,
            acked_to_server: Some(3),
            is_acked_known: true,
            holes: vec![hole(1), hole(2)],
        };
        let mut text = serde_json::to_string(&[&pending]).unwrap();
        text += "],\"older text\"";
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read(&path).unwrap(), [pending]);
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(read(&path).unwrap(), []);
        assert_eq!(read(&directory.path().join("none")).unwrap(), []);
        read(directory.path()).unwrap_err();
    }

    #[test]
    fn only_ended_processes_leave_an_orphan_and_the_newest_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "accel-wlan0-4194998.pending",
            "accel-wlan0-1.pending",
            "accel-wlan1-4194999.pending",
            "accel-wlan0.sock",
        ];
        names.iter().for_each(|name| std::fs::write(directory.path().join(name), "").unwrap());
        drop(PendingFile::open(&pending_path(directory.path(), "wlan0")).unwrap());
        let newest = || orphaned_path(directory.path(), "wlan0").unwrap();
        assert_eq!(newest(), Some(directory.path().join(names[0])));
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            4,
            "a process with nothing pending leaves no file"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(directory.path().join("accel-wlan0-4194997.pending"), "").unwrap();
        assert_eq!(newest(), Some(directory.path().join("accel-wlan0-4194997.pending")));
        assert!(!directory.path().join(names[0]).exists());
        assert_eq!(orphaned_path(&directory.path().join("none"), "wlan0").unwrap(), None);
    }

    #[test]
    fn planted_files_are_neither_written_nor_read() {
        let directory = tempfile::tempdir().unwrap();
        let (run, victim) = (directory.path().join("run"), directory.path().join("victim"));
        std::fs::create_dir(&run).unwrap();
        std::fs::write(&victim, "whole").unwrap();
        symlink(&victim, pending_path(&run, "wlan0")).unwrap();
        symlink(&victim, run.join("accel-wlan0-4194998.pending")).unwrap();
        std::fs::hard_link(&victim, run.join("accel-wlan0-4194997.pending")).unwrap();
        drop(PendingFile::open(&pending_path(&run, "wlan0")).unwrap());
        assert_eq!(orphaned_path(&run, "wlan0").unwrap(), None);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "whole");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&run, Some(65_534), None).unwrap();
            for error in [
                PendingFile::open(&pending_path(&run, "wlan0")).unwrap_err(),
                orphaned_path(&run, "wlan0").unwrap_err(),
            ] {
                assert!(error.to_string().ends_with("it belongs to another user"), "{error}");
            }
        }
    }
}
