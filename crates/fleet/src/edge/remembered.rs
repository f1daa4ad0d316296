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
use super::machine::Saved;
use crate::ca::Stamp;

/// A file that is longer is none of ours.
const LONGEST: u64 = 256 * 1024;

/// The file.
#[derive(Clone, Debug)]
pub struct Remembered {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    saved_unix_s: u64,
    known: Saved,
}

impl Remembered {
    /// At this path; its directory is made when something is kept.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// What was kept, and how long ago.
    pub fn read(&self) -> Option<(Saved, Duration)> {
        let is_short = std::fs::metadata(&self.path).is_ok_and(|meta| meta.len() <= LONGEST);
        let text = std::fs::read_to_string(&self.path).ok().filter(|_| is_short)?;
        match serde_json::from_str::<Text>(&text) {
            Ok(Text { version: 1, saved_unix_s, known }) => {
                let passed = Stamp::now().since_1970().saturating_sub(Duration::from_secs(saved_unix_s));
                Some((known, passed))
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
    /// The file cannot be written.
    pub fn write(&self, known: Saved) -> io::Result<()> {
        let text = Text { version: 1, saved_unix_s: Stamp::now().since_1970().as_secs(), known };
        if let Some(dir) = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir)?;
        }
        Ok(atomic_file::replace(&self.path, &serde_json::to_vec(&text)?, 0o600)?)
    }
}

/// chosen: what was learnt in half a minute can be learnt again.
const EACH: Duration = Duration::from_secs(30);

/// Keeps what is known while an edge runs.
#[derive(Debug)]
pub(super) struct Keeper {
    file: Remembered,
    is_new: bool,
    began: Option<Instant>,
    writing: Option<JoinHandle<()>>,
    /// Why it could not be written last.
    trouble: watch::Sender<Option<String>>,
}

impl Keeper {
    /// Whether it can be written is told to `trouble`.
    pub(super) fn new(file: Remembered, trouble: watch::Sender<Option<String>>) -> Self {
        Self { file, is_new: false, began: None, writing: None, trouble }
    }

    /// There is something new.
    pub(super) fn note(&mut self) {
        self.is_new = true;
    }

    /// Writes what is known, if it is time: what is new, and what could not be written.
    pub(super) fn keep(&mut self, known: impl FnOnce() -> Saved) {
        let is_early = self.began.is_some_and(|began| began.elapsed() < EACH);
        let writes = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        let is_owed = self.is_new || self.trouble.borrow().is_some();
        if is_owed && !is_early && !writes {
            (self.is_new, self.began) = (false, Some(Instant::now()));
            let (file, known, trouble) = (self.file.clone(), known(), self.trouble.clone());
            self.writing = Some(spawn_blocking(move || write(&file, known, &trouble)));
        }
    }

    /// Writes it for the last time.
    pub(super) async fn end(&mut self, known: Saved) {
        if let Some(writing) = self.writing.take() {
            // Two would write into one file.
            let _ = writing.await;
        }
        write(&self.file, known, &self.trouble);
    }
}

/// Keeps what an edge knows that asks no service, until dropped; what is new when it ends is not written by this.
pub async fn keep_state(edge: &Edge, file: &Remembered) -> Infallible {
    let mut keeper = Keeper::new(file.clone(), edge.state_trouble.clone());
    let mut kept = Saved::default();
    loop {
        tokio::time::sleep(EACH / 15).await;
        let now = edge.save();
        if now != kept {
            kept = now.clone();
            keeper.note();
        }
        keeper.keep(|| now);
    }
}

fn write(file: &Remembered, known: Saved, trouble: &watch::Sender<Option<String>>) {
    let why = file.write(known).err().map(|error| format!("{}: {error}", file.path.display()));
    if let Some(why) = &why {
        tracing::warn!(why, "what is known of relays is not kept");
    }
    trouble.send_if_modified(|before| {
        let is_new = *before != why;
        *before = why;
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
        let file = Remembered::at(&path);
        assert!(file.read().is_none());
        let known = Saved { origin: Some("a.example:1935".parse().unwrap()), ..Saved::default() };
        file.write(known.clone()).unwrap();
        file.write(known.clone()).unwrap();
        let (read, passed) = file.read().unwrap();
        assert!(read == known && passed < Duration::from_secs(60));
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
            let trouble = watch::Sender::<Option<String>>::default();
            let mut keeper = Keeper::new(Remembered::at(&path), trouble.clone());
            keeper.end(Saved::default()).await;
            let why = trouble.borrow().clone();
            assert!(why.unwrap().contains("edge.json: "), "it names the file");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no edge.json.new");
            std::fs::remove_dir(&path).unwrap();
            keeper.keep(Saved::default);
            keeper.writing.take().unwrap().await.unwrap();
            assert_eq!(*trouble.borrow(), None);
            keeper.began = None;
            keeper.keep(Saved::default);
            assert!(keeper.writing.is_none(), "there is nothing to be written");
        });
    }

    #[test]
    fn many_news_are_written_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let file = Remembered::at(&dir.path().join("edge.json"));
            let mut keeper = Keeper::new(file.clone(), watch::Sender::default());
            let known = |n: u32| Saved { origin: format!("a{n}.example:80").parse().ok(), ..Saved::default() };
            for n in 0..50 {
                keeper.note();
                keeper.keep(|| known(n));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            keeper.writing.take().unwrap().await.unwrap();
            assert!(file.read().unwrap().0 == known(0) && keeper.is_new);
            keeper.end(known(99)).await;
            assert!(file.read().unwrap().0 == known(99));
        });
    }
}
