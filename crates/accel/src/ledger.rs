//! Bytes that were acknowledged early ([`Owed`]), written down where the death of this process does not reach.
//!
//! 1. It is written before the acknowledgement leaves: [`Ledger::note`] is called before anything is done.
//! 2. Nothing is synced: it is to outlive this process, not the machine, whose connections die with it.
//! 3. It holds requests with all their fields. So it is readable for its owner alone, and removed at the end unless
//!    something is still missing.
//! 4. Its name has the process's number in it, so that a later run does not write over it.
//! 5. It is made and read within a [`Directory`] that no other user can write, and never through a link: a ledger says what
//!    root requests, and which packets it gives to the local stack.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use marline_core::accel::{Accelerator, Owed};
use marline_net::run_dir::RunDir;

/// An open ledger.
#[derive(Debug)]
pub(super) struct Ledger {
    file: File,
    directory: RunDir,
    path: PathBuf,
    owing: (u64, u64),
    is_empty: bool,
}

impl Ledger {
    /// A new one; what is there by its name is gone.
    ///
    /// # Errors
    /// Another user can write its directory, or it cannot be made.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (directory, name) = place(path)?;
        let file = directory.create_file(name)?;
        Ok(Self { file, directory, path: path.to_owned(), owing: (0, 0), is_empty: true })
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
            tracing::warn!(file = %self.path.display(), %error, "bytes that were acknowledged early are not written down");
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // What is owed is for the keeper to read.
        if self.is_empty
            && let Some(name) = name(&self.path)
        {
            let _ = self.directory.unlink(name);
        }
    }
}

/// Where the ledger of this process is.
pub fn ledger(run_dir: &Path, primary: &str) -> PathBuf {
    run_dir.join(format!("accel-{primary}-{}.owed", std::process::id()))
}

/// The newest ledger of a primary link whose writer has ended. Older ones are removed: the run after each of them has seen to
/// it, and one process must be enough for what is left.
///
/// # Errors
/// Another user can write the directory.
pub fn orphan(run_dir: &Path, primary: &str) -> io::Result<Option<PathBuf>> {
    let is_orphan = |name: &str| {
        let number =
            name.strip_prefix("accel-")?.strip_prefix(primary)?.strip_prefix('-')?.strip_suffix(".owed")?;
        let number: u32 = number.parse().ok()?;
        (number != std::process::id() && !Path::new("/proc").join(number.to_string()).exists()).then_some(())
    };
    let directory = match RunDir::open_own(run_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        directory => directory?,
    };
    let names = std::fs::read_dir(directory.path_in_dir("."))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut newest: Option<(i64, i64, String)> = None;
    for name in names.filter(|name| is_orphan(name).is_some()) {
        let written = directory.open_own_file(&name).ok().flatten().and_then(|file| file.metadata().ok());
        let Some(meta) = written else {
            tracing::warn!(file = %run_dir.join(&name).display(), "no ledger of this user's: it is left alone");
            continue;
        };
        let this = (meta.mtime(), meta.mtime_nsec(), name);
        let older = match newest.take() {
            Some(other) if other > this => {
                newest = Some(other);
                Some(this)
            }
            other => {
                newest = Some(this);
                other
            }
        };
        if let Some((.., name)) = older {
            let _ = directory.unlink(&name);
        }
    }
    Ok(newest.map(|(.., name)| run_dir.join(name)))
}

/// What a ledger says; nothing, if it is not there or was not finished.
///
/// # Errors
/// It is not this user's alone, or cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Vec<Owed>> {
    let (directory, name) = place(path)?;
    let Some(file) = directory.open_own_file(name)? else { return Ok(Vec::new()) };
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    let first = serde_json::Deserializer::from_slice(&text).into_iter::<Vec<Owed>>().next();
    Ok(first.and_then(Result::ok).unwrap_or_default())
}

/// Removes a ledger.
pub(super) fn remove(path: &Path) {
    // It may be gone already.
    let _ = place(path).and_then(|(directory, name)| directory.unlink(name));
}

fn place(path: &Path) -> io::Result<(RunDir, &str)> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((RunDir::open_own(directory)?, name(path).ok_or(io::ErrorKind::InvalidInput)?))
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// chosen: thousands of holes with their requests.
const LONGEST: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::accel::Hole;
    use std::os::unix::fs::symlink;

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
            here: 1,
            told: Some(3),
            is_sure: true,
            holes: vec![hole(1), hole(2)],
        };
        let mut text = serde_json::to_string(&[&owed]).unwrap();
        text += "],\"of before\"";
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read(&path).unwrap(), [owed]);
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(read(&path).unwrap(), []);
        assert_eq!(read(&place.path().join("none")).unwrap(), []);
        read(place.path()).unwrap_err();
    }

    #[test]
    fn only_those_that_have_ended_leave_an_orphan_and_the_newest_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let names =
            ["accel-wlan0-4194998.owed", "accel-wlan0-1.owed", "accel-wlan1-4194999.owed", "accel-wlan0.sock"];
        names.iter().for_each(|name| std::fs::write(place.path().join(name), "").unwrap());
        drop(Ledger::open(&ledger(place.path(), "wlan0")).unwrap());
        let newest = || orphan(place.path(), "wlan0").unwrap();
        assert_eq!(newest(), Some(place.path().join(names[0])));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 4, "one that owes nothing leaves nothing");
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(place.path().join("accel-wlan0-4194997.owed"), "").unwrap();
        assert_eq!(newest(), Some(place.path().join("accel-wlan0-4194997.owed")));
        assert!(!place.path().join(names[0]).exists());
        assert_eq!(orphan(&place.path().join("none"), "wlan0").unwrap(), None);
    }

    #[test]
    fn what_others_have_planted_is_neither_written_nor_paid() {
        let place = tempfile::tempdir().unwrap();
        let (run, victim) = (place.path().join("run"), place.path().join("victim"));
        std::fs::create_dir(&run).unwrap();
        std::fs::write(&victim, "whole").unwrap();
        symlink(&victim, ledger(&run, "wlan0")).unwrap();
        symlink(&victim, run.join("accel-wlan0-4194998.owed")).unwrap();
        std::fs::hard_link(&victim, run.join("accel-wlan0-4194997.owed")).unwrap();
        drop(Ledger::open(&ledger(&run, "wlan0")).unwrap());
        assert_eq!(orphan(&run, "wlan0").unwrap(), None);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "whole");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&run, Some(65_534), None).unwrap();
            for error in [Ledger::open(&ledger(&run, "wlan0")).unwrap_err(), orphan(&run, "wlan0").unwrap_err()] {
                assert!(error.to_string().ends_with("it belongs to another user"), "{error}");
            }
        }
    }
}
