//! Opening of an unfinished file: whose file it is, its lock, and what an earlier run has left (rules 5, 9 and 10 of
//! [`super`]).

use std::io;
use std::path::Path;
use std::time::Duration;

use marline_core::fetch::RangeSet;
use marline_core::wire::download_journal::{Header, HeaderError};
use rustix::io::Errno;

use super::PartialFile;
use crate::store::StoreError;
use crate::store::fs::{FileSystem, Ownership};
use crate::store::journal_file::{JournalIdentity, RecordedRanges};
use crate::store::paths::DownloadPaths;
use crate::store::resume::{ExistingDownload, RestartReason, ResumeContext};

const NOT_A_JOURNAL: &str = "a file with this name exists and is not a journal of marline";

/// Our choice: half a second in total, an acceptable wait before an error.
const MAX_LOCK_TRIES: u32 = 50;
/// Our choice: longer than most programs need from fork to exec, during which the child holds the lock as well.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

impl<D: FileSystem> PartialFile<D> {
    /// Reads what an earlier run has left. Unusable state has been removed from the disk when this returns (rule
    /// 5).
    pub(super) fn load_existing(
        &mut self,
        urls: &[[u8; 32]],
        shared: Option<&'static str>,
    ) -> Result<ExistingDownload, StoreError> {
        self.remove_stale_journal()?;
        let (len, marked) = (self.len()?, self.fs.is_marked(&self.file));
        let epoch = self.fs.page_cache_epoch(&self.file);
        let present = ResumeContext { len, part_id: self.fs.file_id(&self.file), epoch, url_digests: urls };
        let existing = ExistingDownload::read(&self.fs, &self.paths.journal, &present);
        let existing = existing.map_err(|e| open_error(&self.paths.journal, "reading", e))?;
        let existing = match existing {
            // Beside a marked file with data it is marline's own journal, damaged. Otherwise it may be anyone's
            // file.
            ExistingDownload::NotAJournal if len > 0 && marked => {
                ExistingDownload::Unusable(RestartReason::Unreadable(HeaderError::NotAJournal))
            }
            ExistingDownload::NotAJournal => ExistingDownload::Foreign(NOT_A_JOURNAL),
            found => found,
        };
        if let ExistingDownload::Foreign(what) = existing {
            return Err(StoreError::ForeignFile { part: self.paths.journal.clone(), reason: what });
        }
        // The file of the journal was replaced by `open_locked`, so the journal no longer applies.
        let existing = shared.map_or(existing, |what| ExistingDownload::Unusable(RestartReason::Untrusted(what)));
        // Rule 9. On a file system without extended attributes, only the journal shows whose file it is.
        let by_journal = match &existing {
            ExistingDownload::Valid { .. } => true,
            ExistingDownload::Unusable(why) => why.proves_ownership(),
            ExistingDownload::Absent | ExistingDownload::NotAJournal | ExistingDownload::Foreign(_) => false,
        };
        if len > 0 && !by_journal && !marked {
            let what = "a file with this name exists, and no journal of this user proves that marline wrote it";
            return Err(StoreError::ForeignFile { part: self.paths.part.clone(), reason: what });
        }
        self.is_marked = self.fs.set_mark(&self.file);
        match existing {
            ExistingDownload::Valid { header, synced, written } => {
                self.url_digest = header.url_digest;
                self.total = Some(header.file_size);
                self.identity = Some(JournalIdentity::from_header(&header));
                // Records of the earlier run hold, but its unsynced bytes must be synced by this run.
                self.ranges =
                    RecordedRanges { dirty: written.clone(), syncing: RangeSet::default(), synced: synced.clone() };
                self.compact_journal()?;
                Ok(ExistingDownload::Valid { header, synced, written })
            }
            ExistingDownload::Absent if len == 0 => Ok(ExistingDownload::Absent),
            ExistingDownload::Absent => {
                self.restart().map(|()| ExistingDownload::Unusable(RestartReason::NoJournal))
            }
            other => self.restart().map(|()| other),
        }
    }

    /// Removes a new journal that a crash has left before it was renamed. It is never used.
    fn remove_stale_journal(&self) -> Result<(), StoreError> {
        let path = &self.paths.new_journal;
        let leftover = self.fs.read(path, 8).map_err(|e| open_error(path, "reading", e))?;
        let what = match leftover {
            None => return Ok(()),
            Some((_, Ownership::Foreign(what))) => what,
            Some((bytes, _)) if Header::is_remnant(&bytes) => {
                return self.fs.remove(path).map_err(|e| StoreError::io(path, "removing", e));
            }
            Some(_) => NOT_A_JOURNAL,
        };
        Err(StoreError::ForeignFile { part: path.clone(), reason: what })
    }
}

/// The error for a path that could not be opened. What has this name may belong to someone else.
pub(super) fn open_error(path: &Path, doing: &'static str, why: io::Error) -> StoreError {
    let what = match Errno::from_io_error(&why) {
        Some(Errno::LOOP) => "a symbolic link with this name exists",
        Some(Errno::NXIO | Errno::ISDIR) => "an entry with this name exists and is not a regular file",
        Some(Errno::EXIST) => "a file with this name was created meanwhile",
        // The file system does not support an encoding or a character of the name.
        Some(Errno::INVAL | Errno::ILSEQ) if doing == "opening" => {
            return StoreError::NameRefused { path: path.to_owned(), why };
        }
        _ => return StoreError::io(path, doing, why),
    };
    StoreError::ForeignFile { part: path.to_owned(), reason: what }
}

/// Opens the unfinished file and takes its lock. Waits for a short time if it is locked: a child process of the
/// owner holds the lock until its exec, and a killed owner until the kernel has removed it.
///
/// A file of marline that others could have written to is replaced by a new one, and the reason is returned (rule
/// 10).
pub(super) fn open_locked<D: FileSystem>(
    fs: &D,
    paths: &DownloadPaths,
) -> Result<(D::File, Option<&'static str>), StoreError> {
    let failed = |e| open_error(&paths.part, "opening", e);
    let foreign = |what| Err(StoreError::ForeignFile { part: paths.part.clone(), reason: what });
    let (mut tries, mut shared) = (0, None);
    loop {
        let (file, is_new) = fs.open(&paths.part).map_err(failed)?;
        let ownership = if is_new { Ownership::Private } else { fs.ownership(&file).map_err(failed)? };
        // Checked before the lock, which the owner of a foreign file could hold forever.
        match ownership {
            Ownership::Foreign(what) => return foreign(what),
            Ownership::Shared(_) if !fs.is_marked(&file) => {
                return foreign("a file with this name exists, and others can write to it, or it has a hard link");
            }
            _ => {}
        }
        if !fs.lock(&file).map_err(failed)? {
            if tries == MAX_LOCK_TRIES {
                return Err(StoreError::Locked { path: paths.final_path.clone(), part: paths.part.clone() });
            }
            tries += 1;
            std::thread::sleep(LOCK_RETRY_INTERVAL);
            continue;
        }
        // Between opening and locking, the previous owner may have finished and renamed this file.
        if !fs.is_at_path(&file, &paths.part).map_err(failed)? {
            continue;
        }
        match ownership {
            Ownership::Shared(what) if shared.is_none() => {
                fs.remove(&paths.part).map_err(failed)?;
                shared = Some(what);
            }
            // It happened again: another process replaces the file faster than this one can.
            Ownership::Shared(what) => return foreign(what),
            _ => return Ok((file, shared)),
        }
    }
}
