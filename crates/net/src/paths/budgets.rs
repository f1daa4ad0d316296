//! What was used of the budgets of links, kept from one run to the next.
//!
//! In: what has passed a link's interface in this run. Out: a small JSON file of link names and bytes.
//!
//! 1. A budget is for as long as the file is there: whoever pays by the month removes it, or its line, once a month.
//! 2. It is written seldom and without waiting for the disk: what a crash takes is what passed since the last time.
//! 3. Only what changed is written over: another daemon with the same directory (another network namespace) keeps its
//!    links' lines.
//!
//! The ledger was not used: it ends with a run, and with the machine's.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use marline_core::units::DataSize;

/// What was used, by link.
#[derive(Debug, Default)]
pub struct Budgets {
    /// None: nothing is kept.
    path: Option<PathBuf>,
    /// At the beginning of the run, in bytes.
    before: BTreeMap<String, u64>,
    /// Of the links that are counted in this run.
    now: BTreeMap<String, u64>,
}

impl Budgets {
    /// Reads what earlier runs have left in this directory. Without a file nothing was used.
    ///
    /// # Errors
    /// It is there and cannot be read, or is not understood.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let before = read(&path).map_err(|error| at(&path, &error))?;
        Ok(Self { path: Some(path), before, now: BTreeMap::new() })
    }

    /// What was used of a link's budget in all runs.
    pub fn used(&self, link: &str) -> DataSize {
        DataSize::from_bytes(self.now.get(link).or_else(|| self.before.get(link)).copied().unwrap_or(0))
    }

    /// What this budget of a link still allows.
    pub fn left(&self, link: &str, budget: DataSize) -> DataSize {
        budget - self.used(link)
    }

    /// So much has passed a link in this run.
    pub fn count(&mut self, link: &str, passed: DataSize) {
        let before = self.before.get(link).copied().unwrap_or(0);
        self.now.insert(link.to_owned(), before.saturating_add(passed.bytes()));
    }

    /// Keeps it, if there is anything to keep that is not kept yet.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> io::Result<()> {
        let Some(path) = self.path.as_ref().filter(|_| !self.now.is_empty()) else { return Ok(()) };
        let kept = read(path).unwrap_or_default();
        let mut all = kept.clone();
        all.extend(self.now.iter().map(|(link, used)| (link.clone(), *used)));
        if all == kept {
            return Ok(());
        }
        let next = path.with_extension("json.next");
        let text = serde_json::to_vec_pretty(&all)?;
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&next, text));
        written.and_then(|()| fs::rename(&next, path)).map_err(|error| at(path, &error))
    }
}

const FILE: &str = "budgets.json";

fn read(path: &Path) -> io::Result<BTreeMap<String, u64>> {
    match fs::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: DataSize = DataSize::from_bytes(1_000_000);

    #[test]
    fn what_was_used_is_known_to_the_next_run_until_the_file_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("new");
        let mut run = Budgets::open(&directory).unwrap();
        run.save().unwrap();
        assert!(!directory.exists(), "nothing was used, so there is nothing to keep");
        run.count("wwan0", MB);
        run.count("wwan0", MB * 3);
        run.save().unwrap();
        let mut next = Budgets::open(&directory).unwrap();
        assert_eq!((next.used("wwan0"), next.left("wwan0", MB * 10)), (MB * 3, MB * 7));
        next.count("wwan0", MB);
        assert_eq!((next.used("wwan0"), next.left("wwan0", MB * 2)), (MB * 4, DataSize::ZERO));
        next.save().unwrap();
        // Another daemon's links stay.
        let mut other = Budgets::open(&directory).unwrap();
        other.count("usb0", MB);
        next.count("wwan0", MB * 2);
        next.save().unwrap();
        other.save().unwrap();
        let all = Budgets::open(&directory).unwrap();
        assert_eq!((all.used("wwan0"), all.used("usb0")), (MB * 5, MB));
        fs::remove_file(directory.join(FILE)).unwrap();
        assert_eq!(Budgets::open(&directory).unwrap().used("wwan0"), DataSize::ZERO);
    }

    #[test]
    fn a_file_that_is_not_understood_is_no_empty_one() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(FILE), "{\"wwan0\": \"much\"}").unwrap();
        let error = Budgets::open(place.path()).unwrap_err().to_string();
        assert!(error.contains("budgets.json: "), "{error}");
    }
}
