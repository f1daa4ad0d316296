//! File of used tokens: DIR/spent, one line `NONCE UNTIL` for each.
//!
//! 1. A nonce is on the disk before its certificate is signed. The directory lock makes check and write one step, even
//!    for two processes.
//! 2. All lines have the same length. A last line truncated by a crash counts if its nonce is complete. With an
//!    incomplete nonce no certificate was issued.
//! 3. Lines are dropped when the file is opened a day after their token has expired. Setting the clock back by less
//!    than that does not make a token usable again.
//! 4. If a line cannot be parsed, every enrolment is refused until an operator has repaired the file.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::atomic_file::{self, DirLock};
use super::enrol::UsedTokens;
use super::ids::Nonce;
use super::timestamp::UtcSeconds;
use super::{Authority, CaError};

/// The used tokens of the authority in one directory.
#[derive(Debug)]
pub struct UsedTokensFile {
    dir: PathBuf,
    used: BTreeMap<Nonce, UtcSeconds>,
    /// Inode and length after the last read or write.
    last_stat: Option<(u64, u64)>,
}

impl UsedTokensFile {
    /// Opens the file of this authority and drops expired entries.
    ///
    /// # Errors
    /// If the file operation fails, or the file is damaged.
    pub fn open(authority: &Authority, now: UtcSeconds) -> Result<Self, CaError> {
        let mut used_tokens = Self { dir: authority.dir.clone(), used: BTreeMap::new(), last_stat: None };
        let _lock = DirLock::acquire(&used_tokens.dir)?;
        used_tokens.reload()?;
        used_tokens.used.retain(|_, until| until.saturating_add(RETENTION) >= now);
        used_tokens.rewrite()?;
        Ok(used_tokens)
    }

    fn path(&self) -> PathBuf {
        self.dir.join("spent")
    }

    /// Reads entries that another process has added.
    fn reload(&mut self) -> Result<(), CaError> {
        let path = self.path();
        let stat = stat_file(&path);
        if stat.is_some() && stat == self.last_stat {
            return Ok(());
        }
        let read =
            parse(&atomic_file::read(&path)?.unwrap_or_default()).map_err(|text| CaError::damaged(&path, text))?;
        // Known entries are kept, even if the file was removed.
        self.used.extend(read);
        self.last_stat = stat;
        Ok(())
    }

    fn rewrite(&mut self) -> Result<(), CaError> {
        let text: String = self.used.iter().map(|(nonce, until)| format_line(*nonce, *until) + "\n").collect();
        atomic_file::replace(&self.path(), text.as_bytes(), atomic_file::SECRET_MODE)?;
        self.last_stat = stat_file(&self.path());
        Ok(())
    }
}

impl UsedTokens for UsedTokensFile {
    fn mark_used(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, CaError> {
        let _lock = DirLock::acquire(&self.dir)?;
        self.reload()?;
        if self.used.contains_key(&nonce) {
            return Ok(false);
        }
        // A truncated line that counts must not be lost when the next line is appended.
        let has_expected_len = stat_file(&self.path()).is_some_and(|(_, length)| length == self.expected_len());
        if !has_expected_len {
            self.rewrite()?;
        }
        atomic_file::append(&self.path(), &format_line(nonce, until))?;
        self.used.insert(nonce, until);
        self.last_stat = stat_file(&self.path());
        Ok(true)
    }
}

impl UsedTokensFile {
    /// Length of the file if every line is complete.
    fn expected_len(&self) -> u64 {
        u64::try_from(self.used.len().saturating_mul(LINE_LEN + 1)).unwrap_or(u64::MAX)
    }
}

fn stat_file(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.ino(), meta.size()))
}

fn format_line(nonce: Nonce, until: UtcSeconds) -> String {
    format!("{nonce} {until}")
}

fn parse(text: &str) -> Result<BTreeMap<Nonce, UtcSeconds>, String> {
    let mut taken = BTreeMap::new();
    let mut lines: Vec<&str> = text.split('\n').collect();
    let truncated = lines.pop().unwrap_or_default();
    for (at, line) in lines.into_iter().enumerate() {
        let entry =
            line.split_once(' ').and_then(|(nonce, until)| Some((nonce.parse().ok()?, until.parse().ok()?)));
        let (nonce, until) = entry.ok_or_else(|| format!("line {} cannot be read", at + 1))?;
        taken.insert(nonce, until);
    }
    if let Some(Ok(nonce)) = truncated.get(..NONCE_LEN).map(str::parse) {
        taken.insert(nonce, UtcSeconds::MAX);
    }
    Ok(taken)
}

const NONCE_LEN: usize = 32;
/// A nonce, a space, and a time.
const LINE_LEN: usize = NONCE_LEN + 1 + 20;
/// Our choice: more than a clock that lost its time server is ever set back.
const RETENTION: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_line_counts_if_its_nonce_is_complete() {
        let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let line = format_line(nonce, UtcSeconds::from_unix(1_800_000_000));
        assert_eq!(line.len(), LINE_LEN);
        for length in 0..=LINE_LEN {
            let taken = parse(&line[..length]).unwrap();
            assert_eq!(taken.contains_key(&nonce), length >= NONCE_LEN, "{length}");
        }
        assert_eq!(parse(&format!("{line}\nxx\n{line}\n")).unwrap_err(), "line 2 cannot be read");
        assert!(parse(&format!("{line}\n\n")).is_err());
    }
}
