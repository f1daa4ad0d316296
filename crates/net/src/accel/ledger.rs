//! What is owed to flows ([`Owed`]), written down where this process's death does not reach.
//!
//! In: the machine, after each thing that it was told. Out: a file that says what is owed as it is now.
//!
//! 1. It is written before the acknowledgement leaves that makes a debt: whoever asks [`Ledger::note`] has not acted yet.
//! 2. Nothing is synced: it is to outlive this process, not the machine, whose connections die with it.
//! 3. Requests stand in it, with all that they hold: nobody else may read it, and it is gone when nothing is owed at the end.
//! 4. Its name has the process's number in it, so that one who comes after a death does not write over it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use marline_core::accel::{Accelerator, Owed};

/// An open ledger.
#[derive(Debug)]
pub(super) struct Ledger {
    file: File,
    path: PathBuf,
    owing: (u64, u64),
    is_empty: bool,
}

impl Ledger {
    /// A new one; what is there by its name is gone.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Self { file, path: path.to_owned(), owing: (0, 0), is_empty: true })
    }

    /// Writes what is owed now, if that is not what stands there.
    pub(super) fn note(&mut self, machine: &Accelerator) {
        let owing = machine.owing();
        if std::mem::replace(&mut self.owing, owing) == owing {
            return;
        }
        let owed = machine.owed();
        if owed.is_empty() && self.is_empty {
            return;
        }
        self.is_empty = owed.is_empty();
        let written = serde_json::to_vec(&owed).map_err(io::Error::from).and_then(|text| {
            // What is longer from before stays behind it, and is not read.
            self.file.write_all_at(&text, 0)?;
            if owed.is_empty() { self.file.set_len(text.len() as u64) } else { Ok(()) }
        });
        if let Err(error) = written {
            tracing::warn!(file = %self.path.display(), %error, "what is owed to flows is not written down");
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // What is owed is for the keeper to read.
        if self.is_empty {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Where the ledger of this process is.
pub fn ledger(run_dir: &Path, primary: &str) -> PathBuf {
    run_dir.join(format!("accel-{primary}-{}.owed", std::process::id()))
}

/// Ledgers of a primary link whose writers are no more.
pub fn orphans(run_dir: &Path, primary: &str) -> Vec<PathBuf> {
    let is_orphan = |name: &str| {
        let number =
            name.strip_prefix("accel-")?.strip_prefix(primary)?.strip_prefix('-')?.strip_suffix(".owed")?;
        let number: u32 = number.parse().ok()?;
        (number != std::process::id() && !Path::new("/proc").join(number.to_string()).exists()).then_some(())
    };
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().and_then(is_orphan).is_some())
        .map(|entry| entry.path())
        .collect();
    all.sort();
    all
}

/// What a ledger says; nothing, if it is not there or was not finished.
pub(super) fn read(path: &Path) -> Vec<Owed> {
    let text = std::fs::read(path).unwrap_or_default();
    let first = serde_json::Deserializer::from_slice(&text).into_iter::<Vec<Owed>>().next();
    first.and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::accel::Hole;

    #[test]
    fn what_stands_there_is_read_whatever_is_behind_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ledger");
        let hole = |seq| Hole { seq, stamp: Some(7), fetch: None };
        let owed = Owed {
            local: ([10, 0, 0, 2], 40_000).into(),
            server: ([192, 0, 2, 1], 80).into(),
            said: (1, 2),
            stamps: None,
            holes: vec![hole(1), hole(2)],
        };
        let mut text = serde_json::to_string(&[&owed]).unwrap();
        text += "],\"of before\"";
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read(&path), [owed]);
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(read(&path), []);
        assert_eq!(read(place.path()), []);
    }

    #[test]
    fn only_those_who_are_no_more_leave_orphans() {
        let place = tempfile::tempdir().unwrap();
        let names =
            ["accel-wlan0-4194999.owed", "accel-wlan0-1.owed", "accel-wlan1-4194999.owed", "accel-wlan0.sock"];
        names.iter().for_each(|name| std::fs::write(place.path().join(name), "").unwrap());
        drop(Ledger::open(&ledger(place.path(), "wlan0")).unwrap());
        assert_eq!(orphans(place.path(), "wlan0"), [place.path().join(names[0])]);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 4, "one that owes nothing leaves nothing");
    }
}
