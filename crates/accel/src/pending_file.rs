//! Pending file: a record of the flows with holes, which are bytes that were acknowledged to the server early, before
//! they arrived ([`PendingRepair`]).
//!
//! The server does not send these bytes again. If this process dies, another process must fetch them, or the
//! connections hang. That process is `marline accel repair`: it is started with each run, and reads the file when the
//! run has ended. If both were killed, the next run starts it again ([`orphaned_path`]).
//!
//! 1. The file is written before the early ACK is sent: the driver calls [`PendingFile::update`] before it executes any
//!    output.
//! 2. The file is not synced to the disk. It must survive a crash of this process, but not of the host: that ends the
//!    connections as well.
//! 3. The file contains HTTP requests with all their fields, which may be secret. So only its owner can read it, and it
//!    is removed at the end of the run unless there are holes left.
//! 4. The file name contains the process id, so that a later run does not overwrite it.
//! 5. The file is created and read in a [`RunDir`] that no other user can write to, and never through a symbolic link.
//!    The reason is that a forged file would control what root requests and which packets root injects into the local
//!    stack.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use marline_core::accel::{Accelerator, PendingRepair};
use marline_net::run_dir::RunDir;

/// The pending file of this process, open for writing.
#[derive(Debug)]
pub(super) struct PendingFile {
    file: File,
    directory: RunDir,
    path: PathBuf,
    /// [`Accelerator::pending_fingerprint`] at the last update: two counters that change with the pending repairs.
    fingerprint: (u64, u64),
    /// Whether the file lists no flow.
    is_empty: bool,
}

impl PendingFile {
    /// Creates the file; an existing file of that name is replaced.
    ///
    /// # Errors
    /// Another user can write to the directory, or the file cannot be created.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (directory, name) = open_directory(path)?;
        let file = directory.create_file(name)?;
        Ok(Self { file, directory, path: path.to_owned(), fingerprint: (0, 0), is_empty: true })
    }

    /// Writes the pending repairs if they have changed. An error is logged and the run continues.
    pub(super) fn update(&mut self, accelerator: &Accelerator) {
        let fingerprint = accelerator.pending_fingerprint();
        if std::mem::replace(&mut self.fingerprint, fingerprint) == fingerprint {
            return;
        }
        let pending = accelerator.pending_repairs();
        if pending.is_empty() && self.is_empty {
            return;
        }
        self.is_empty = pending.is_empty();
        let result = serde_json::to_vec(&pending).map_err(io::Error::from).and_then(|text| {
            // The file is not truncated, which saves a system call. If the previous text was longer, its end remains
            // after the new JSON value; `read` stops after the first value.
            self.file.write_all_at(&text, 0)?;
            if pending.is_empty() { self.file.set_len(text.len() as u64) } else { Ok(()) }
        });
        if let Err(error) = result {
            tracing::warn!(file = %self.path.display(), %error, "pending early ACKs cannot be written down");
        }
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        // A file with pending repairs stays for `marline accel repair`.
        if self.is_empty
            && let Some(name) = file_name(&self.path)
        {
            let _ = self.directory.unlink(name);
        }
    }
}

/// Path of the pending file of this process; `primary`: interface name of the primary link.
pub fn pending_path(run_dir: &Path, primary: &str) -> PathBuf {
    run_dir.join(format!("accel-{primary}-{}.pending", std::process::id()))
}

/// Path of the newest pending file of a primary link whose writer has ended. Older files of that link are removed: the
/// run that followed each of them has already started a repair of it. Only the file of the last run is left to repair,
/// which takes one process.
///
/// # Errors
/// Another user can write to the directory.
pub fn orphaned_path(run_dir: &Path, primary: &str) -> io::Result<Option<PathBuf>> {
    let writer_of = |name: &str| -> Option<u32> {
        let process =
            name.strip_prefix("accel-")?.strip_prefix(primary)?.strip_prefix('-')?.strip_suffix(".pending")?;
        process.parse().ok()
    };
    let has_ended =
        |process: u32| process != std::process::id() && !Path::new("/proc").join(process.to_string()).exists();
    let directory = match RunDir::open_own(run_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        directory => directory?,
    };
    let names = std::fs::read_dir(directory.path_in_dir("."))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut newest: Option<(i64, i64, String)> = None;
    for name in names.filter(|name| writer_of(name).is_some_and(has_ended)) {
        let metadata = directory.open_own_file(&name).ok().flatten().and_then(|file| file.metadata().ok());
        let Some(metadata) = metadata else {
            tracing::warn!(file = %run_dir.join(&name).display(), "not a pending file of this user: ignored");
            continue;
        };
        let candidate = (metadata.mtime(), metadata.mtime_nsec(), name);
        // Keeps the newer one of the two in `newest`.
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

/// Reads a pending file. The result is empty if the file does not exist or is incomplete.
///
/// # Errors
/// The file cannot be read, or another user owns it, can write to it or can write to its directory.
pub(super) fn read(path: &Path) -> io::Result<Vec<PendingRepair>> {
    let (directory, name) = open_directory(path)?;
    let Some(file) = directory.open_own_file(name)? else { return Ok(Vec::new()) };
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text)?;
    let first = serde_json::Deserializer::from_slice(&text).into_iter::<Vec<PendingRepair>>().next();
    Ok(first.and_then(Result::ok).unwrap_or_default())
}

/// Removes a pending file. Errors are ignored, because the file may be removed already.
pub(super) fn remove(path: &Path) {
    let _ = open_directory(path).and_then(|(directory, name)| directory.unlink(name));
}

fn open_directory(path: &Path) -> io::Result<(RunDir, &str)> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((RunDir::open_own(directory)?, file_name(path).ok_or(io::ErrorKind::InvalidInput)?))
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// Maximum number of bytes that are read. Our choice: it is enough for thousands of holes with their requests.
const MAX_SIZE: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::accel::PendingHole;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_the_first_json_value_of_a_file_is_read() {
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
    fn the_newest_file_of_an_ended_process_is_returned_and_older_ones_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "accel-wlan0-4194998.pending",
            "accel-wlan0-1.pending",
            "accel-wlan1-4194999.pending",
            "accel-wlan0.sock",
        ];
        names.iter().for_each(|name| std::fs::write(directory.path().join(name), "").unwrap());
        drop(PendingFile::open(&pending_path(directory.path(), "wlan0")).unwrap());
        let orphan = || orphaned_path(directory.path(), "wlan0").unwrap();
        assert_eq!(orphan(), Some(directory.path().join(names[0])));
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            4,
            "a process with nothing pending leaves no file"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(directory.path().join("accel-wlan0-4194997.pending"), "").unwrap();
        assert_eq!(orphan(), Some(directory.path().join("accel-wlan0-4194997.pending")));
        assert!(!directory.path().join(names[0]).exists());
        assert_eq!(orphaned_path(&directory.path().join("none"), "wlan0").unwrap(), None);
    }

    #[test]
    fn planted_files_are_neither_written_nor_read() {
        let directory = tempfile::tempdir().unwrap();
        let (run, victim) = (directory.path().join("run"), directory.path().join("victim"));
        std::fs::create_dir(&run).unwrap();
        std::fs::write(&victim, "unchanged").unwrap();
        symlink(&victim, pending_path(&run, "wlan0")).unwrap();
        symlink(&victim, run.join("accel-wlan0-4194998.pending")).unwrap();
        std::fs::hard_link(&victim, run.join("accel-wlan0-4194997.pending")).unwrap();
        drop(PendingFile::open(&pending_path(&run, "wlan0")).unwrap());
        assert_eq!(orphaned_path(&run, "wlan0").unwrap(), None);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "unchanged");
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
