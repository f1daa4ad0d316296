//! Undo log: records changes of this host before they are made, so that they can be undone even after `kill -9`.
//!
//! The log is a small JSON file in the run directory.
//!
//! 1. Write-ahead: an entry is on disk (`fsync`, rename, `fsync` of the directory) before the change is made. A crash
//!    between the two leaves an entry for a change that was never made; undoing that changes nothing.
//! 2. Each network namespace has its own file, named by the inode number of the namespace. Daemons in several
//!    namespaces can share a run directory.
//! 3. Entries of an earlier boot are ignored, since a reboot resets all settings.
//! 4. The first value counts: a run that finds entries of a crashed run keeps their previous values.
//! 5. An entry is removed after the change was undone, never before. While a value of a crashed run is replaced by
//!    another one, the entry accepts both as marline's own, so that a further crash at any moment is harmless.
//!
//! Rules and routes are not recorded. Each carries marline's protocol number as its origin, by which the kernel
//! identifies them (see `super::source_routing`), and a file could only be less accurate.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use marline_net::run_dir::RunDir;
use serde::{Deserialize, Serialize};

use super::crash_point;

/// Recorded changes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Changes {
    /// Changed settings, each once.
    pub(super) settings: Vec<SysctlEntry>,
    /// Addresses with endpoints for the run, each once.
    pub(super) endpoints: Vec<EndpointEntry>,
    /// Changed limits of the kernel's path manager.
    pub(super) limits: Option<RaisedLimit>,
}

/// A changed setting (sysctl).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SysctlEntry {
    /// Name, with dots.
    pub(super) name: String,
    /// Value before the first run.
    #[serde(alias = "was")]
    pub(super) previous: String,
    /// Value that the run sets.
    #[serde(alias = "set")]
    pub(super) value: String,
    /// Value of a crashed run, while it is being replaced; none: the value before was `previous`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "before")]
    pub(super) crashed_value: Option<String>,
}

/// An address that has an endpoint for this run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct EndpointEntry {
    /// Local address of the endpoint.
    pub(super) address: IpAddr,
    /// Backup flag of an endpoint that existed before; none: there was no endpoint.
    #[serde(alias = "was")]
    pub(super) previous_backup: Option<bool>,
}

/// Raised limits: subflows, and accepted addresses of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RaisedLimit {
    /// Limits before the first run.
    #[serde(alias = "was")]
    pub(super) previous: (u32, u32),
    /// Limits that the run sets.
    #[serde(alias = "set")]
    pub(super) value: (u32, u32),
    /// Limits of an earlier raise, while they are being replaced; none: they were `previous`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "before")]
    pub(super) crashed_value: Option<(u32, u32)>,
}

/// The undo log of one network namespace, with its file.
#[derive(Debug)]
pub(super) struct UndoLog {
    run_dir: PathBuf,
    file_name: String,
    boot_id: String,
    changes: Changes,
}

/// Contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct UndoLogFile {
    /// Format version.
    version: u32,
    /// Boot id of the system that wrote it.
    #[serde(alias = "boot")]
    boot_id: String,
    #[serde(flatten)]
    changes: Changes,
}

const FORMAT_VERSION: u32 = 1;

impl UndoLog {
    /// Opens the undo log of this network namespace in a run directory, with the entries of a crashed run. Nothing is
    /// written.
    ///
    /// # Errors
    /// The file exists and cannot be read or parsed.
    pub(super) fn open(run_dir: &Path) -> io::Result<Self> {
        Self::open_named(run_dir, "paths")
    }

    /// Opens an undo log whose file name has another prefix.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_named(run_dir: &Path, prefix: &str) -> io::Result<Self> {
        let (run_dir, file_name, boot_id) =
            (run_dir.to_owned(), format!("{prefix}-{}.json", netns_inode()?), read_boot_id());
        let text = match RunDir::open(&run_dir) {
            Ok(directory) => {
                directory.read(&file_name).map_err(|error| with_path(&run_dir.join(&file_name), error))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let to_error =
            |reason| with_path(&run_dir.join(&file_name), io::Error::new(io::ErrorKind::InvalidData, reason));
        let changes =
            text.map_or_else(|| Ok(Changes::default()), |text| parse(&text, &boot_id)).map_err(to_error)?;
        Ok(Self { run_dir, file_name, boot_id, changes })
    }

    /// The recorded changes.
    pub(super) const fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Replaces the recorded changes on disk. Without changes the file is removed.
    ///
    /// # Errors
    /// The directory cannot be written: nothing may be changed then.
    pub(super) fn write(&mut self, changes: Changes) -> io::Result<()> {
        if changes != self.changes {
            crash_point()?;
            let file = UndoLogFile { version: FORMAT_VERSION, boot_id: self.boot_id.clone(), changes };
            let directory = RunDir::open(&self.run_dir)?;
            self.write_file(&directory, &file)
                .map_err(|error| with_path(&self.run_dir.join(&self.file_name), error))?;
            self.changes = file.changes;
        }
        Ok(())
    }

    fn write_file(&self, directory: &RunDir, file: &UndoLogFile) -> io::Result<()> {
        if file.changes == Changes::default() {
            return directory.remove(&self.file_name);
        }
        let mut text = serde_json::to_vec(file)?;
        text.push(b'\n');
        directory.replace(&self.file_name, &text)
    }
}

/// Adds the file name to an error.
fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn parse(text: &[u8], boot_id: &str) -> Result<Changes, String> {
    let file: UndoLogFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match file.version {
        FORMAT_VERSION if file.boot_id == boot_id => Ok(file.changes),
        FORMAT_VERSION => Ok(Changes::default()),
        other => Err(format!("unknown format version {other}: it was written by another version of marline")),
    }
}

/// Inode number of this network namespace.
pub(super) fn netns_inode() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// The kernel's random id of this boot; empty if it cannot be read.
fn read_boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(previous: &str) -> Changes {
        let setting = SysctlEntry {
            name: "net.mptcp.path_manager".into(),
            previous: previous.into(),
            value: "userspace".into(),
            crashed_value: None,
        };
        let endpoint = EndpointEntry { address: "10.0.0.2".parse().unwrap(), previous_backup: Some(true) };
        Changes {
            settings: vec![setting],
            endpoints: vec![endpoint],
            limits: Some(RaisedLimit { previous: (2, 0), value: (3, 0), crashed_value: None }),
        }
    }

    #[test]
    fn changes_survive_a_crash_and_the_file_is_removed_after_undo() {
        let directory = tempfile::tempdir().unwrap();
        let mut undo_log = UndoLog::open(directory.path()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "opening writes nothing");
        undo_log.write(changes("kernel")).unwrap();
        drop(undo_log);
        let mut undo_log = UndoLog::open(directory.path()).unwrap();
        assert_eq!(undo_log.changes(), &changes("kernel"));
        undo_log.write(Changes::default()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn changes_of_an_earlier_boot_are_ignored() {
        let file = |boot_id: &str| UndoLogFile {
            version: FORMAT_VERSION,
            boot_id: boot_id.into(),
            changes: changes("kernel"),
        };
        let text = serde_json::to_vec(&file("yesterday")).unwrap();
        assert_eq!(parse(&text, "today"), Ok(Changes::default()));
        assert_eq!(parse(&text, "yesterday"), Ok(changes("kernel")));
    }

    #[test]
    fn an_unreadable_file_is_an_error_and_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(format!("paths-{}.json", netns_inode().unwrap()));
        for text in ["", "{", "[]", r#"{"version":1}"#, r#"{"version":99,"boot":"x"}"#] {
            fs::write(&path, text).unwrap();
            let error = UndoLog::open(directory.path()).unwrap_err().to_string();
            assert!(error.starts_with(&path.display().to_string()), "{text}: {error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn without_a_directory_writing_fails() {
        let mut undo_log = UndoLog::open(Path::new("/nonexistent")).unwrap();
        assert!(undo_log.write(changes("kernel")).unwrap_err().to_string().starts_with("/nonexistent: "));
        assert_eq!(undo_log.changes(), &Changes::default());
    }
}
