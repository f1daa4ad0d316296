//! Which tokens were used: DIR/spent, one line for each, `NONCE UNTIL`.
//!
//! 1. A nonce is on the disk before its certificate is made; the directory's lock makes looking and writing one step, also
//!    for two processes.
//! 2. Each line has the same length. A last line that a crash has cut short counts if its nonce is whole; a nonce that is not
//!    whole was never answered.
//! 3. Lines go when the file is opened a day after their token has expired: a clock that is put back by less opens no door.
//! 4. A line that cannot be read refuses everybody, until a person has looked at it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::enrol::Spent;
use super::files::{self, Lock};
use super::numbers::Nonce;
use super::stamp::Stamp;
use super::{Authority, CaError};

/// The tokens that were used with the authority of one directory.
#[derive(Debug)]
pub struct SpentFile {
    dir: PathBuf,
    taken: BTreeMap<Nonce, Stamp>,
    /// Inode and length of what was read or written last.
    seen: Option<(u64, u64)>,
}

impl SpentFile {
    /// Of this authority; forgets what has expired.
    ///
    /// # Errors
    /// The file refuses, or is damaged.
    pub fn open(authority: &Authority, now: Stamp) -> Result<Self, CaError> {
        let mut spent = Self { dir: authority.dir.clone(), taken: BTreeMap::new(), seen: None };
        let _lock = Lock::take(&spent.dir)?;
        spent.read_again()?;
        spent.taken.retain(|_, until| until.after(KEPT) >= now);
        spent.rewrite()?;
        Ok(spent)
    }

    fn path(&self) -> PathBuf {
        self.dir.join("spent")
    }

    /// Reads what another process has written in the meantime.
    fn read_again(&mut self) -> Result<(), CaError> {
        let path = self.path();
        let seen = look(&path);
        if seen.is_some() && seen == self.seen {
            return Ok(());
        }
        let read = parse(&files::read(&path)?.unwrap_or_default()).map_err(|text| CaError::damaged(&path, text))?;
        // What was known stays known, even if somebody has removed the file.
        self.taken.extend(read);
        self.seen = seen;
        Ok(())
    }

    fn rewrite(&mut self) -> Result<(), CaError> {
        let text: String = self.taken.iter().map(|(nonce, until)| line(*nonce, *until) + "\n").collect();
        files::replace(&self.path(), text.as_bytes(), files::SECRET)?;
        self.seen = look(&self.path());
        Ok(())
    }
}

impl Spent for SpentFile {
    fn claim(&mut self, nonce: Nonce, until: Stamp) -> Result<bool, CaError> {
        let _lock = Lock::take(&self.dir)?;
        self.read_again()?;
        if self.taken.contains_key(&nonce) {
            return Ok(false);
        }
        // What a crash has cut short but counts must not be lost with the end of the file.
        let is_whole = look(&self.path()).is_some_and(|(_, length)| length == self.length());
        if !is_whole {
            self.rewrite()?;
        }
        files::append(&self.path(), &line(nonce, until))?;
        self.taken.insert(nonce, until);
        self.seen = look(&self.path());
        Ok(true)
    }
}

impl SpentFile {
    /// Of the file, if each line is whole.
    fn length(&self) -> u64 {
        u64::try_from(self.taken.len().saturating_mul(LINE + 1)).unwrap_or(u64::MAX)
    }
}

fn look(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.ino(), meta.size()))
}

fn line(nonce: Nonce, until: Stamp) -> String {
    format!("{nonce} {until}")
}

fn parse(text: &str) -> Result<BTreeMap<Nonce, Stamp>, String> {
    let mut taken = BTreeMap::new();
    let mut lines: Vec<&str> = text.split('\n').collect();
    let cut = lines.pop().unwrap_or_default();
    for (at, line) in lines.into_iter().enumerate() {
        let read = line.split_once(' ').and_then(|(nonce, until)| Some((nonce.parse().ok()?, until.parse().ok()?)));
        let (nonce, until) = read.ok_or_else(|| format!("line {} cannot be read", at + 1))?;
        taken.insert(nonce, until);
    }
    if let Some(Ok(nonce)) = cut.get(..NONCE).map(str::parse) {
        taken.insert(nonce, Stamp::LAST);
    }
    Ok(taken)
}

const NONCE: usize = 32;
/// A nonce, a space, and a time.
const LINE: usize = NONCE + 1 + 20;
/// Chosen: more than a clock that lost its time server is ever put back by.
const KEPT: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_counts_if_its_nonce_is_whole() {
        let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let whole = line(nonce, Stamp::from_unix(1_800_000_000));
        assert_eq!(whole.len(), LINE);
        for length in 0..=LINE {
            let taken = parse(&whole[..length]).unwrap();
            assert_eq!(taken.contains_key(&nonce), length >= NONCE, "{length}");
        }
        assert_eq!(parse(&format!("{whole}\nxx\n{whole}\n")).unwrap_err(), "line 2 cannot be read");
        assert!(parse(&format!("{whole}\n\n")).is_err());
    }
}
