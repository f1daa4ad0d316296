//! What an edge knows over its restarts, in one small file: relays, their rates, where the stream went to.
//!
//! In: a path. Out: what was kept, and how long ago.
//!
//! 1. The file is for its owner alone, and is written beside and moved: a crash leaves the old one or the new one. One that
//!    cannot be read is as good as none: all in it can be learnt again.
//! 2. While an edge runs it is written at most each [`EACH`], in a thread of its own: until it is on the disk no flow waits for it,
//!    and whoever opens flows wears out no flash by that ([`Keeper`]).

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use marline_net::atomic_file;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Edge;
use super::relay_selector::PersistedState;
use crate::ca::UtcSeconds;

/// A file that is longer is none of ours.
const MAX_LEN: u64 = 256 * 1024;

/// The file.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct StateFileContents {
    version: u32,
    saved_unix_s: u64,
    state: PersistedState,
}

impl StateFile {
    /// At this path; its directory is made when something is kept.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// What was kept, and how long ago.
    pub fn read(&self) -> Option<(PersistedState, Duration)> {
        let is_short = std::fs::metadata(&self.path).is_ok_and(|meta| meta.len() <= MAX_LEN);
        let text = std::fs::read_to_string(&self.path).ok().filter(|_| is_short)?;
        match serde_json::from_str::<StateFileContents>(&text) {
            Ok(StateFileContents { version: 1, saved_unix_s, state: known }) => {
                let age = UtcSeconds::now().since_epoch().saturating_sub(Duration::from_secs(saved_unix_s));
                Some((known, age))
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!("{}: {error}: relays are measured anew", self.path.display());
                None
            }
        }
    }

    /// Keeps it.
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

/// chosen: what was learnt in half a minute can be learnt again.
const WRITE_INTERVAL: Duration = Duration::from_secs(30);

/// Keeps what is known while an edge runs.
#[derive(Debug)]
pub(super) struct StateWriter {
    file: StateFile,
    is_dirty: bool,
    last_write: Option<Instant>,
    writing: Option<JoinHandle<()>>,
    /// Why it could not be written last.
    error: watch::Sender<Option<String>>,
}

impl StateWriter {
    /// Whether it can be written is told to `trouble`.
    pub(super) fn new(file: StateFile, error: watch::Sender<Option<String>>) -> Self {
        Self { file, is_dirty: false, last_write: None, writing: None, error }
    }

    /// There is something new.
    pub(super) fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// Writes what is known, if it is time: what is new, and what could not be written.
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

    /// Writes it for the last time.
    pub(super) async fn finish(&mut self, state: PersistedState) {
        if let Some(writing) = self.writing.take() {
            // Two would write into one file.
            let _ = writing.await;
        }
        write_state(&self.file, state, &self.error);
    }
}

/// Keeps what an edge knows that asks no service, until dropped; what is new when it ends is not written by this.
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
        tracing::warn!(why, "what is known of relays is not kept");
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
    fn what_was_kept_is_read_again_and_what_is_damaged_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/edge.json");
        let file = StateFile::new(&path);
        assert!(file.read().is_none());
        let state = PersistedState { origin: Some("a.example:1935".parse().unwrap()), ..PersistedState::default() };
        file.write(state.clone()).unwrap();
        file.write(state.clone()).unwrap();
        let (read, passed) = file.read().unwrap();
        assert!(read == state && passed < Duration::from_secs(60));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        for damaged in ["", "{}", "{\"version\":2,\"saved_unix_s\":0,\"known\":{}}"] {
            std::fs::write(&path, damaged).unwrap();
            assert!(file.read().is_none(), "{damaged}");
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_no_file_and_is_told_until_it_can_be() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("edge.json");
            // A file cannot take the place of a directory: it fails after it was written, as on a full disk.
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
            assert!(writer.writing.is_none(), "there is nothing to be written");
        });
    }

    #[test]
    fn many_news_are_written_once() {
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
