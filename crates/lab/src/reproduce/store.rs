//! Stored results of a long reproduction (`evidence/NAME/lab.jsonl`), so that it can be resumed.
//!
//! The file has one JSON object per line: `{"session": …}` at the start of each command (command line, machine,
//! commit), then `{"outcome": …}` for every download or `{"cell": …}` for every other measurement, written as soon
//! as it is complete. A line that a crash truncated is skipped. Timelines are omitted to keep the file small.
//! Figures that need them, such as the peak and the 90th percentile of power (table 7.10), are therefore missing
//! from tables made from this file.
//!
//! `--stored` prints the tables of a file without measuring ([`read_results`]). [`StoredResults`] shows the commits
//! and machines of its sessions, because one file may mix several builds.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::LabError;
use crate::results::{DownloadOutcome, HostInfo};

/// A result that can be stored.
pub(super) trait Persist: Serialize + DeserializeOwned {
    /// Key of the result in its line.
    const KEY: &'static str;

    /// Whether the result is complete and need not be repeated.
    fn is_done(&self) -> bool;

    /// The result as it is stored.
    fn without_timeline(&self) -> Self;

    /// Whether both are measurements of the same thing; of these the last one counts.
    fn is_same(&self, other: &Self) -> bool;

    /// Whether its values are unreliable, for example because the emulator was late.
    fn is_unreliable(&self) -> bool;
}

impl Persist for DownloadOutcome {
    const KEY: &'static str = "outcome";

    fn is_done(&self) -> bool {
        self.is_complete()
    }

    fn without_timeline(&self) -> Self {
        let mut lean = self.clone();
        lean.links.iter_mut().for_each(|link| link.timeline = Vec::new());
        lean
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.case, &self.client, self.run, self.backend) == (&other.case, &other.client, other.run, other.backend)
    }

    fn is_unreliable(&self) -> bool {
        self.unreliable_reason.is_some()
    }
}

/// Command, build and machine: the first line of a session in a file, and of printed rows.
pub(super) fn session_record(scale: f64) -> Value {
    let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let version = env!("CARGO_PKG_VERSION");
    json!({"command": command, "seed": "run + 1", "version": version, "scale": scale, "machine": HostInfo::current()})
}

/// Content of a file, read without changing it.
#[derive(Debug)]
pub(super) struct StoredResults<T> {
    /// The complete results.
    pub(super) results: Vec<T>,
    sessions: Vec<Value>,
}

/// Reads the results of earlier sessions. A file with another scale is refused, because different scales must not
/// be averaged.
pub(super) fn read_results<T: Persist>(path: &Path, scale: f64) -> Result<StoredResults<T>, LabError> {
    let text = fs::read_to_string(path).map_err(LabError::at_step(format!("{}", path.display())))?;
    let mut contents = StoredResults { results: Vec::new(), sessions: Vec::new() };
    for mut line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some(session) = line.get_mut("session").map(Value::take) {
            if session["scale"] != json!(scale) {
                return Err(LabError::Spec(format!(
                    "{} holds runs of another scale: --scale {}",
                    path.display(),
                    session["scale"]
                )));
            }
            contents.sessions.push(session);
        }
        contents.results.extend(line.get(T::KEY).and_then(|stored| T::deserialize(stored).ok()).filter(T::is_done));
    }
    Ok(contents)
}

impl<T: Persist> fmt::Display for StoredResults<T> {
    /// Prints where the results come from: sessions, commits, machines, and the number of unreliable results.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |session: &Value, key: &str| session["machine"][key].as_str().map(ToOwned::to_owned);
        let distinct = |extract: &dyn Fn(&Value) -> Option<String>| {
            let mut all: Vec<String> = Vec::new();
            for value in self.sessions.iter().filter_map(extract) {
                if !all.contains(&value) {
                    all.push(value);
                }
            }
            all
        };
        let mut commits = distinct(&|session| text(session, "commit"));
        let unknown = self.sessions.iter().filter(|session| text(session, "commit").is_none()).count();
        if unknown > 0 {
            commits.push(format!("{unknown} without a commit"));
        }
        let machines = distinct(&|session| {
            let cores = &session["machine"]["cores"];
            Some(format!("{cores} cores of {}, Linux {}", text(session, "cpu")?, text(session, "kernel")?))
        });
        let last: Vec<&T> = self
            .results
            .iter()
            .enumerate()
            .filter(|(at, one)| self.results[at + 1..].iter().all(|later| !later.is_same(one)))
            .map(|(_, one)| one)
            .collect();
        let unreliable_count = last.iter().filter(|one| one.is_unreliable()).count();
        write!(
            f,
            "stored results of {} sessions ({}; + is a changed tree) on {}; {unreliable_count} of {} results are suspect",
            self.sessions.len(),
            commits.join(", "),
            machines.join("; "),
            last.len()
        )
    }
}

/// File of one reproduction, open for appending.
#[derive(Debug)]
pub(super) struct ResultStore<T> {
    file: File,
    path: PathBuf,
    /// Results of earlier sessions.
    pub(super) earlier_results: Vec<T>,
}

impl<T: Persist> ResultStore<T> {
    /// Opens or creates the file. An existing file is only extended with `continues`, because it contains hours of
    /// work.
    pub(super) fn open(path: &Path, continues: bool, scale: f64) -> Result<Self, LabError> {
        let at = || LabError::at_step(format!("{}", path.display()));
        let mut earlier = Vec::new();
        if path.exists() {
            if !continues {
                return Err(LabError::Spec(format!(
                    "{} exists: resume it with --continue, or set another directory with --out",
                    path.display()
                )));
            }
            earlier = read_results(path, scale)?.results;
        } else if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(at())?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(at())?;
        // Terminate a last line that a crash truncated.
        let cut = fs::read(path).map_err(at())?.last().is_some_and(|byte| *byte != b'\n');
        if cut {
            file.write_all(b"\n").map_err(at())?;
        }
        let mut store = Self { file, path: path.to_path_buf(), earlier_results: earlier };
        store.write_line(&json!({ "session": session_record(scale) }))?;
        Ok(store)
    }

    /// Stores one result.
    pub(super) fn append(&mut self, one: &T) -> Result<(), LabError> {
        self.write_line(&json!({ T::KEY: one.without_timeline() }))
    }

    fn write_line(&mut self, value: &Value) -> Result<(), LabError> {
        let step = LabError::at_step(format!("{}", self.path.display()));
        self.file.write_all(format!("{value}\n").as_bytes()).map_err(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::outcome::tests::example_outcome;

    #[test]
    fn a_store_resumes_even_after_a_truncated_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("evidence/thesis/lab.jsonl");
        let outcome = example_outcome("marline", 0, 6.0);
        ResultStore::open(&path, false, 1.0).unwrap().append(&outcome).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}{{\"outcome\": {{\"case")).unwrap();
        let mut store = ResultStore::<DownloadOutcome>::open(&path, true, 1.0).unwrap();
        assert_eq!(store.earlier_results.len(), 1);
        assert_eq!(store.earlier_results[0].links[0].median_mbps, outcome.links[0].median_mbps);
        assert!(store.earlier_results[0].links[0].timeline.is_empty());
        store.append(&example_outcome("marline", 1, 6.1)).unwrap();
        assert_eq!(ResultStore::<DownloadOutcome>::open(&path, true, 1.0).unwrap().earlier_results.len(), 2);
    }

    #[test]
    fn stored_results_show_their_commits_and_machines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lab.jsonl");
        let session = |commit: Value| {
            let machine = json!({"commit": commit, "cores": 2, "cpu": "AMD EPYC", "kernel": "6.18"});
            json!({"session": {"scale": 1.0, "machine": machine}})
        };
        let unreliable =
            DownloadOutcome { unreliable_reason: Some("late".into()), ..example_outcome("marline", 0, 6.0) };
        let again = example_outcome("marline", 0, 6.1);
        let other = DownloadOutcome { unreliable_reason: Some("late".into()), ..example_outcome("naive", 0, 9.0) };
        let outcomes = [unreliable, again, other].map(|outcome| json!({"outcome": outcome.without_timeline()}));
        let lines = [session(json!("43aa757+")), session(json!("43aa757+")), session(Value::Null)];
        let lines: Vec<String> = lines.iter().chain(&outcomes).map(ToString::to_string).collect();
        fs::write(&path, lines.join("\n")).unwrap();
        let contents = read_results::<DownloadOutcome>(&path, 1.0).unwrap();
        assert_eq!(contents.results.len(), 3);
        assert_eq!(
            contents.to_string(),
            "stored results of 3 sessions (43aa757+, 1 without a commit; + is a changed tree) on 2 cores of AMD EPYC, Linux 6.18; \
             1 of 2 results are suspect"
        );
        assert!(read_results::<DownloadOutcome>(&path, 0.25).unwrap_err().to_string().contains("--scale 1.0"));
        assert!(read_results::<DownloadOutcome>(&directory.path().join("none"), 1.0).is_err());
    }

    #[test]
    fn stored_results_are_not_overwritten_or_mixed_with_another_scale() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lab.jsonl");
        ResultStore::<DownloadOutcome>::open(&path, false, 1.0).unwrap();
        let refused = ResultStore::<DownloadOutcome>::open(&path, false, 1.0).unwrap_err().to_string();
        assert!(refused.contains("--continue"), "{refused}");
        assert!(ResultStore::<DownloadOutcome>::open(&path, true, 0.1).unwrap_err().to_string().contains("scale"));
    }
}
