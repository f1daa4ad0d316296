//! State file: keeps what an edge knows about relays, their rates and the stream's origin server across restarts.
//!
//! 1. Only the owner may read the file. It is replaced atomically: a crash leaves the old or the new version. A file that cannot be read
//!    counts as missing, because everything in it can be measured again.
//! 2. While an edge runs, the file is written at most each [`WRITE_INTERVAL`], in a thread of its own. So no flow waits for the disk, and
//!    clients that open many flows do not wear out flash memory ([`StateWriter`]).

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use marline_core::fleet::relay_selection::PersistedState;
use marline_net::atomic_file;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Edge;
use crate::ca::UtcSeconds;

/// A longer file is not a state file.
const MAX_LEN: u64 = 256 * 1024;

/// The path of a state file.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct StateFileContents {
    version: u32,
    saved_unix_s: u64,
    #[serde(alias = "known")]
    state: PersistedState,
}

impl StateFile {
    /// A state file at this path; its directory is created when the file is written.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The saved state and its age; `None`: there is no valid file. If the clock was set back to a time before the state was saved, its
    /// age is unknown: then the rates count as too old to be fresh, and the age is zero.
    pub fn read(&self) -> Option<(PersistedState, Duration)> {
        let is_short = std::fs::metadata(&self.path).is_ok_and(|meta| meta.len() <= MAX_LEN);
        let text = std::fs::read_to_string(&self.path).ok().filter(|_| is_short)?;
        match serde_json::from_str::<StateFileContents>(&text) {
            Ok(StateFileContents { version: 1, saved_unix_s, state: mut known }) => {
                let age = UtcSeconds::now().since_epoch().checked_sub(Duration::from_secs(saved_unix_s));
                if age.is_none() {
                    known.expire_rates();
                }
                Some((known, age.unwrap_or_default()))
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(
                    "{}: cannot read the state file: {error}; relays will be measured again",
                    self.path.display()
                );
                None
            }
        }
    }

    /// Replaces the saved state.
    ///
    /// # Errors
    /// The file or its directory cannot be written; the error names it.
    pub fn write(&self, state: PersistedState) -> io::Result<()> {
        let text = StateFileContents { version: 1, saved_unix_s: UtcSeconds::now().since_epoch().as_secs(), state };
        if let Some(dir) = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
            std::fs::create_dir_all(dir).map_err(named)?;
        }
        Ok(atomic_file::replace(&self.path, &serde_json::to_vec(&text)?, 0o600)?)
    }
}

/// Our choice: what was measured in half a minute can be measured again.
const WRITE_INTERVAL: Duration = Duration::from_secs(30);

/// Writes the state file while an edge runs.
#[derive(Debug)]
pub(super) struct StateWriter {
    file: StateFile,
    is_dirty: bool,
    last_write: Option<Instant>,
    writing: Option<JoinHandle<()>>,
    /// Why the last write failed; `None`: it did not.
    error: watch::Sender<Option<String>>,
}

impl StateWriter {
    /// Write errors are published on `error`.
    pub(super) fn new(file: StateFile, error: watch::Sender<Option<String>>) -> Self {
        Self { file, is_dirty: false, last_write: None, writing: None, error }
    }

    /// The state has changed since the last write.
    pub(super) fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// Writes the state if it has changed or the last write failed, but not more often than the interval allows.
    pub(super) fn write_if_due(&mut self, state: impl FnOnce() -> PersistedState) {
        let is_early = self.last_write.is_some_and(|at| at.elapsed() < WRITE_INTERVAL);
        let is_writing = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        let is_needed = self.is_dirty || self.error.borrow().is_some();
        if is_needed && !is_early && !is_writing {
            (self.is_dirty, self.last_write) = (false, Some(Instant::now()));
            let (file, state, error) = (self.file.clone(), state(), self.error.clone());
            self.writing = Some(spawn_blocking(move || write_state(&file, state, &error)));
        }
    }

    /// Writes the state for the last time.
    pub(super) async fn finish(&mut self, state: PersistedState) {
        if let Some(writing) = self.writing.take() {
            // A write in progress would replace the same file.
            let _ = writing.await;
        }
        write_state(&self.file, state, &self.error);
    }
}

/// Saves the state of an edge without a fleet service until dropped; a change just before the end is not written.
pub async fn run_state_writer(edge: &Edge, file: &StateFile) -> Infallible {
    let mut writer = StateWriter::new(file.clone(), edge.state_file_error.clone());
    let mut saved = PersistedState::default();
    loop {
        tokio::time::sleep(WRITE_INTERVAL / 15).await;
        let now = edge.save();
        if now != saved {
            saved = now.clone();
            writer.mark_dirty();
        }
        writer.write_if_due(|| now);
    }
}

fn write_state(file: &StateFile, state: PersistedState, error_tx: &watch::Sender<Option<String>>) {
    let error = file.write(state).err().map(|error| error.to_string());
    if let Some(why) = &error {
        tracing::warn!(why, "cannot write the state file: measured relays will be unknown after a restart");
    }
    error_tx.send_if_modified(|previous| {
        let is_new = *previous != error;
        *previous = error;
        is_new
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_saved_state_is_read_again_and_a_damaged_file_counts_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/edge.json");
        let file = StateFile::new(&path);
        assert!(file.read().is_none());
        let state = PersistedState { origin: Some("a.example:1935".parse().unwrap()), ..PersistedState::default() };
        file.write(state.clone()).unwrap();
        file.write(state.clone()).unwrap();
        let (read, age) = file.read().unwrap();
        assert!(read == state && age < Duration::from_secs(60));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        for damaged in ["", "{}", "{\"version\":2,\"saved_unix_s\":0,\"known\":{}}"] {
            std::fs::write(&path, damaged).unwrap();
            assert!(file.read().is_none(), "{damaged}");
        }
    }

    #[test]
    fn if_the_clock_was_set_back_rates_are_too_old_to_be_fresh() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::new(&dir.path().join("edge.json"));
        let relay = serde_json::json!({"relay": "fra", "addresses": ["fra.example:4443"], "rate_bps": 8_000_000, "rate_age_s": 10});
        let state = serde_json::json!({"relays": [relay], "probed_bytes": 1000, "probed_age_s": 10});
        for (saved_after, rate_age_s) in [(0, 10), (3600, 30 * 60)] {
            let saved_unix_s = UtcSeconds::now().since_epoch().as_secs() + saved_after;
            let text = serde_json::json!({"version": 1, "saved_unix_s": saved_unix_s, "state": state.clone()});
            std::fs::write(&file.path, text.to_string()).unwrap();
            let (read, age) = file.read().unwrap();
            assert_eq!((read.relays[0].rate_age_s, age.as_secs() / 60), (Some(rate_age_s), 0), "{saved_after}");
            assert_eq!(
                (read.probed_bytes, read.probed_age_s),
                (1000, 10),
                "the limit for metered links still holds"
            );
        }
    }

    #[test]
    fn a_failed_write_leaves_no_file_and_is_reported_until_one_succeeds() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("edge.json");
            // A directory cannot be replaced by a file: writing fails at the last step, as on a full disk.
            std::fs::create_dir(&path).unwrap();
            let error = watch::Sender::<Option<String>>::default();
            let mut writer = StateWriter::new(StateFile::new(&path), error.clone());
            writer.finish(PersistedState::default()).await;
            let why = error.borrow().clone();
            assert!(why.unwrap().contains("edge.json: "), "it names the file");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no edge.json.new");
            std::fs::remove_dir(&path).unwrap();
            writer.write_if_due(PersistedState::default);
            writer.writing.take().unwrap().await.unwrap();
            assert_eq!(*error.borrow(), None);
            writer.last_write = None;
            writer.write_if_due(PersistedState::default);
            assert!(writer.writing.is_none(), "nothing has changed");
        });
    }

    #[test]
    fn many_changes_are_written_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let file = StateFile::new(&dir.path().join("edge.json"));
            let mut writer = StateWriter::new(file.clone(), watch::Sender::default());
            let state = |n: u32| PersistedState {
                origin: format!("a{n}.example:80").parse().ok(),
                ..PersistedState::default()
            };
            for n in 0..50 {
                writer.mark_dirty();
                writer.write_if_due(|| state(n));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            writer.writing.take().unwrap().await.unwrap();
            assert!(file.read().unwrap().0 == state(0) && writer.is_dirty);
            writer.finish(state(99)).await;
            assert!(file.read().unwrap().0 == state(99));
        });
    }
}
