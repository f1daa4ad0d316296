//! The outcomes of a long reproduction on disk, so that it can go on where it was: `evidence/NAME/lab.jsonl`.
//!
//! One JSON object per line: `{"session": …}` where a command began (command line, machine, commit), then
//! `{"outcome": …}` for every download, or `{"cell": …}` for every video that was played, written as soon as it is done. A
//! line that a crash cut off is passed over. Timelines are left out: what tables need of them is in the outcome already.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::LabError;
use crate::evidence::{Machine, Outcome};

/// What is kept.
pub(super) trait Kept: Serialize + DeserializeOwned {
    /// The word before it on its line.
    const KEY: &'static str;

    /// Whether it need not be done again.
    fn is_done(&self) -> bool;

    /// As it is kept.
    fn lean(&self) -> Self;
}

impl Kept for Outcome {
    const KEY: &'static str = "outcome";

    fn is_done(&self) -> bool {
        self.is_good()
    }

    fn lean(&self) -> Self {
        let mut lean = self.clone();
        lean.links.iter_mut().for_each(|link| link.timeline = Vec::new());
        lean
    }
}

/// The file of one reproduction.
#[derive(Debug)]
pub(super) struct Store<T> {
    file: File,
    path: PathBuf,
    /// What earlier sessions left.
    pub(super) earlier: Vec<T>,
}

impl<T: Kept> Store<T> {
    /// Opens or makes it. An existing file is only added to when that is asked for: hours of work are in it.
    pub(super) fn open(path: &Path, go_on: bool, scale: f64) -> Result<Self, LabError> {
        let at = || LabError::at(format!("{}", path.display()));
        let mut earlier = Vec::new();
        if path.exists() {
            if !go_on {
                return Err(LabError::Spec(format!(
                    "{} exists: go on with --continue, or name another place with --out",
                    path.display()
                )));
            }
            let text = fs::read_to_string(path).map_err(at())?;
            for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
                if line.get("session").is_some_and(|session| session["scale"] != json!(scale)) {
                    return Err(LabError::Spec(format!("{} holds runs of another scale", path.display())));
                }
                earlier.extend(line.get(T::KEY).and_then(|kept| T::deserialize(kept).ok()));
            }
            earlier.retain(T::is_done);
        } else if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(at())?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(at())?;
        // Whatever a crash left of the last line ends here.
        let cut = fs::read(path).map_err(at())?.last().is_some_and(|byte| *byte != b'\n');
        if cut {
            file.write_all(b"\n").map_err(at())?;
        }
        let mut store = Self { file, path: path.to_path_buf(), earlier };
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let version = env!("CARGO_PKG_VERSION");
        store.line(&json!({"session": {
            "command": command, "seed": "run + 1", "version": version, "scale": scale, "machine": Machine::here(),
        }}))?;
        Ok(store)
    }

    /// Keeps one more.
    pub(super) fn keep(&mut self, one: &T) -> Result<(), LabError> {
        self.line(&json!({ T::KEY: one.lean() }))
    }

    fn line(&mut self, value: &Value) -> Result<(), LabError> {
        let step = LabError::at(format!("{}", self.path.display()));
        self.file.write_all(format!("{value}\n").as_bytes()).map_err(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::outcome::tests::example;

    #[test]
    fn a_store_goes_on_where_it_was_even_after_a_torn_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("evidence/thesis/lab.jsonl");
        let outcome = example("marline", 0, 6.0);
        Store::open(&path, false, 1.0).unwrap().keep(&outcome).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{{\"outcome\": {{\"case")).unwrap();
        let mut store = Store::<Outcome>::open(&path, true, 1.0).unwrap();
        assert_eq!(store.earlier.len(), 1);
        assert_eq!(store.earlier[0].links[0].median_mbps, outcome.links[0].median_mbps);
        assert!(store.earlier[0].links[0].timeline.is_empty());
        store.keep(&example("marline", 1, 6.1)).unwrap();
        assert_eq!(Store::<Outcome>::open(&path, true, 1.0).unwrap().earlier.len(), 2);
    }

    #[test]
    fn hours_of_work_are_not_overwritten_or_mixed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lab.jsonl");
        Store::<Outcome>::open(&path, false, 1.0).unwrap();
        let refused = Store::<Outcome>::open(&path, false, 1.0).unwrap_err().to_string();
        assert!(refused.contains("--continue"), "{refused}");
        assert!(Store::<Outcome>::open(&path, true, 0.1).unwrap_err().to_string().contains("scale"));
    }
}
