//! What was changed on this machine, written down before it is changed: so that even after `kill -9` it can be put back.
//!
//! In: each change, before it is made. Out: a small JSON file in the run directory, and after a crash what stands in it.
//!
//! 1. Ahead: an entry is on the disk (`fsync`, rename, `fsync` of the directory) before the change is made. A crash
//!    between the two leaves an entry for a change that never was; putting that back changes nothing.
//! 2. Each network namespace has a file of its own, named by the namespace's number: a daemon in another one, with the
//!    same run directory, neither sees nor disturbs it.
//! 3. An entry of an earlier boot is worth nothing, since settings end with the machine; it is passed over.
//! 4. The first value counts: a daemon that finds the entries of one that crashed keeps what they say was there before.
//! 5. An entry is struck out after the change was undone, never before. While a value that a crashed run has set gives
//!    way to another one, the entry knows both as ours, so that it does not matter which of them a further crash leaves.
//!
//! Rules and routes are not in it. Each carries marline's number as its origin, by which the kernel itself tells them
//! apart (see `super::source_routing`), and no file can be as true as that.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use marline_net::run_dir::RunDir;
use serde::{Deserialize, Serialize};

use super::crash_point;

/// What was changed.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Changes {
    /// The settings, each once.
    pub(super) settings: Vec<SysctlEntry>,
    /// Where there are endpoints for the run, each address once.
    pub(super) endpoints: Vec<EndpointEntry>,
    /// The limits of the kernel's path manager.
    pub(super) limits: Option<RaisedLimit>,
}

/// One setting (sysctl).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SysctlEntry {
    /// Its name, with dots.
    pub(super) name: String,
    /// What it was before.
    #[serde(alias = "was")]
    pub(super) previous: String,
    /// What it was set to.
    #[serde(alias = "set")]
    pub(super) value: String,
    /// What a crashed run had set it to, while that gives way; none: what it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "before")]
    pub(super) crashed_value: Option<String>,
}

/// An address that has an endpoint for this run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct EndpointEntry {
    /// The address.
    pub(super) address: IpAddr,
    /// Whether somebody else's endpoint there was a backup; none: there was no endpoint.
    #[serde(alias = "was")]
    pub(super) previous_backup: Option<bool>,
}

/// Limits that were raised, subflows first and addresses of the other end second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RaisedLimit {
    /// What they were before.
    #[serde(alias = "was")]
    pub(super) previous: (u32, u32),
    /// What they were set to.
    #[serde(alias = "set")]
    pub(super) value: (u32, u32),
    /// What an earlier raise had set them to, while that gives way; none: what they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "before")]
    pub(super) crashed_value: Option<(u32, u32)>,
}

/// The file.
#[derive(Debug)]
pub(super) struct UndoLog {
    run_dir: PathBuf,
    file_name: String,
    boot_id: String,
    changes: Changes,
}

/// What stands in the file.
#[derive(Debug, Serialize, Deserialize)]
struct UndoLogFile {
    /// Of this layout.
    version: u32,
    /// The boot that it was written in.
    #[serde(alias = "boot")]
    boot_id: String,
    #[serde(flatten)]
    changes: Changes,
}

const FORMAT_VERSION: u32 = 1;

impl UndoLog {
    /// Opens the ledger of this network in a run directory, with what a run that crashed has left in it. Nothing is
    /// written.
    ///
    /// # Errors
    /// The file is there and cannot be read, or is not understood.
    pub(super) fn open(run_dir: &Path) -> io::Result<Self> {
        Self::open_named(run_dir, "paths")
    }

    /// The same for another sort of run, which has this word in the file's name.
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

    /// What is written down.
    pub(super) const fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Writes down what is going to be. Without anything to say there is no file.
    ///
    /// # Errors
    /// The directory cannot be written: then nothing may be changed.
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

/// An error with the file's name in it.
fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn parse(text: &[u8], boot_id: &str) -> Result<Changes, String> {
    let file: UndoLogFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match file.version {
        FORMAT_VERSION if file.boot_id == boot_id => Ok(file.changes),
        FORMAT_VERSION => Ok(Changes::default()),
        other => Err(format!("it is of another marline (version {other} of the file)")),
    }
}

/// The number of this network namespace.
pub(super) fn netns_inode() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// This boot, by the kernel's own random name for it; the same word for all where it does not say.
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
    fn what_was_written_is_there_after_a_crash_and_gone_when_it_was_put_back() {
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
    fn the_changes_of_an_earlier_boot_are_passed_over() {
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
    fn a_file_that_is_not_understood_is_told_and_not_overwritten() {
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
    fn without_a_directory_nothing_can_be_written_down() {
        let mut undo_log = UndoLog::open(Path::new("/nonexistent")).unwrap();
        assert!(undo_log.write(changes("kernel")).unwrap_err().to_string().starts_with("/nonexistent: "));
        assert_eq!(undo_log.changes(), &Changes::default());
    }
}
