//! Used data budgets of links, stored across runs in a small JSON file of link names and bytes.
//!
//! 1. A budget lasts as long as the file: for a monthly tariff, the user removes the file or the link's entry once a
//!    month.
//! 2. The file is written at intervals, so a crash loses the traffic since the last write.
//! 3. Only changed entries are replaced: another daemon with the same directory (in another network namespace) keeps
//!    the entries of its links.
//! 4. The directory must belong to this process's user ([`RunDir::open_own`]). Root stores nothing in a directory of
//!    another user, such as that of the systemd unit: that user could have placed symbolic links there.
//!
//! The undo log does not serve for this, because its content ends with the run and with the boot.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use marline_core::units::DataSize;
use marline_net::run_dir::RunDir;

/// Used bytes by link.
#[derive(Debug, Default)]
pub struct Budgets {
    /// Directory of the file; none: nothing is stored.
    directory: Option<PathBuf>,
    /// Used bytes at the start of the run.
    previous: BTreeMap<String, u64>,
    /// Used bytes of the links in this run, including `previous`.
    current: BTreeMap<String, u64>,
}

impl Budgets {
    /// Reads the file of earlier runs. A missing file means no use.
    ///
    /// # Errors
    /// The directory belongs to another user, or the file cannot be read or parsed.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let previous = match RunDir::open_own(directory) {
            Ok(dir) => read_file(&dir).map_err(|error| file_error(directory, &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { directory: Some(directory.to_owned()), previous, current: BTreeMap::new() })
    }

    /// Used bytes of a link in all runs.
    pub fn used(&self, link: &str) -> DataSize {
        DataSize::from_bytes(self.current.get(link).or_else(|| self.previous.get(link)).copied().unwrap_or(0))
    }

    /// Remaining part of a link's budget.
    pub fn remaining(&self, link: &str, budget: DataSize) -> DataSize {
        budget - self.used(link)
    }

    /// Records the traffic of a link in this run.
    pub fn record(&mut self, link: &str, transferred: DataSize) {
        let previous = self.previous.get(link).copied().unwrap_or(0);
        self.current.insert(link.to_owned(), previous.saturating_add(transferred.bytes()));
    }

    /// Saves the file if anything has changed.
    pub fn save(&self) -> io::Result<()> {
        let Some(directory) = self.directory.as_ref().filter(|_| !self.current.is_empty()) else { return Ok(()) };
        RunDir::ensure(directory)?;
        let dir = RunDir::open_own(directory)?;
        let stored = read_file(&dir).unwrap_or_default();
        let mut all = stored.clone();
        all.extend(self.current.iter().map(|(link, used)| (link.clone(), *used)));
        if all == stored {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(&all)?;
        dir.replace(FILE_NAME, &text).map_err(|error| file_error(directory, &error))
    }
}

const FILE_NAME: &str = "budgets.json";

fn read_file(directory: &RunDir) -> io::Result<BTreeMap<String, u64>> {
    directory.read(FILE_NAME)?.map_or_else(|| Ok(BTreeMap::new()), |text| Ok(serde_json::from_slice(&text)?))
}

fn file_error(directory: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", directory.join(FILE_NAME).display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MB: DataSize = DataSize::from_bytes(1_000_000);

    #[test]
    fn used_budgets_persist_until_the_file_is_removed() {
        let temp_dir = tempfile::tempdir().unwrap();
        let directory = temp_dir.path().join("new");
        let mut first_run = Budgets::open(&directory).unwrap();
        first_run.save().unwrap();
        assert!(!directory.exists(), "nothing was used, so nothing is stored");
        first_run.record("wwan0", MB);
        first_run.record("wwan0", MB * 3);
        first_run.save().unwrap();
        let mut second_run = Budgets::open(&directory).unwrap();
        assert_eq!((second_run.used("wwan0"), second_run.remaining("wwan0", MB * 10)), (MB * 3, MB * 7));
        second_run.record("wwan0", MB);
        assert_eq!((second_run.used("wwan0"), second_run.remaining("wwan0", MB * 2)), (MB * 4, DataSize::ZERO));
        second_run.save().unwrap();
        // Entries of another daemon's links are kept.
        let mut other = Budgets::open(&directory).unwrap();
        other.record("usb0", MB);
        second_run.record("wwan0", MB * 2);
        second_run.save().unwrap();
        other.save().unwrap();
        let all = Budgets::open(&directory).unwrap();
        assert_eq!((all.used("wwan0"), all.used("usb0")), (MB * 5, MB));
        fs::remove_file(directory.join(FILE_NAME)).unwrap();
        assert_eq!(Budgets::open(&directory).unwrap().used("wwan0"), DataSize::ZERO);
    }

    #[test]
    fn nothing_is_written_through_a_symlink_or_into_another_users_directory() {
        let temp_dir = tempfile::tempdir().unwrap();
        let (directory, victim) = (temp_dir.path().join("kept"), temp_dir.path().join("victim"));
        fs::create_dir(&directory).unwrap();
        fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, directory.join(FILE_NAME)).unwrap();
        let mut first_run = Budgets { directory: Some(directory.clone()), ..Budgets::default() };
        first_run.record("wwan0", MB);
        first_run.save().unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert_eq!(Budgets::open(&directory).unwrap().used("wwan0"), MB);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&directory, Some(65_534), None).unwrap();
            for error in [Budgets::open(&directory).unwrap_err(), first_run.save().unwrap_err()] {
                assert!(error.to_string().contains("it belongs to another user"), "{error}");
            }
        }
    }

    #[test]
    fn a_file_that_is_not_understood_is_no_empty_one() {
        let temp_dir = tempfile::tempdir().unwrap();
        fs::write(temp_dir.path().join(FILE_NAME), "{\"wwan0\": \"much\"}").unwrap();
        let error = Budgets::open(temp_dir.path()).unwrap_err().to_string();
        assert!(error.contains("budgets.json: "), "{error}");
    }
}
