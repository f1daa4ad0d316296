//! Journal and background syncs of an unfinished file: when records are appended, when they may say that bytes are on
//! the disk, and when the journal is rewritten or removed (rules 2 to 8 of [`super`]).

use std::io;

use marline_core::units::Instant;
use marline_core::wire::download_journal::Record;

use super::opening::open_error;
use super::{JOURNAL_AFTER_BYTES, KeyProblem, PartialFile, SyncStage};
use crate::store::fs::FileSystem;
use crate::store::journal_file::{self, JournalFile, JournalIdentity, RecordedRanges};
use crate::store::mac_key::MacKey;
use crate::store::paths::DownloadPaths;
use crate::store::{KEY_PURPOSE, StoreError};

impl<D: FileSystem> PartialFile<D> {
    /// Appends `written` records for all bytes since the last call.
    pub(super) fn record_writes(&mut self) -> Result<(), StoreError> {
        // Reset even if the append fails: an error of the journal ends the run.
        self.unrecorded_bytes = 0;
        let Self { runs, ranges, journal, fs, paths, .. } = self;
        let drained = runs.drain().map(|run| {
            ranges.dirty.insert(run);
            Record::Written { start: run.start, end: run.end }
        });
        match journal {
            Some(journal) => {
                journal.append(fs, drained).map_err(|e| StoreError::io(&paths.journal, "writing", e))?;
            }
            None => drained.for_each(drop),
        }
        // A new journal contains `ranges`, to which the runs were just added, so none is recorded twice.
        if self.written_bytes >= JOURNAL_AFTER_BYTES { self.begin_journal() } else { Ok(()) }
    }

    /// Creates the journal, with all records so far, if there is none and the file can be resumed.
    pub(super) fn begin_journal(&mut self) -> Result<(), StoreError> {
        if self.journal.is_some() {
            return Ok(());
        }
        let Some(identity_and_key) = self.journal_identity() else { return Ok(()) };
        // With a new tag, no older journal matches the present contents of the file.
        self.fs.set_tag(&self.file);
        let journal = JournalFile::create(
            &self.fs,
            &self.paths,
            &self.file,
            (&identity_and_key.0, identity_and_key.1),
            &self.ranges,
        );
        self.journal = Some(journal.map_err(|e| open_error(&self.paths.journal, "writing", e))?);
        Ok(())
    }

    /// Rewrites the journal with the fewest records (rule 6).
    pub(super) fn compact_journal(&mut self) -> Result<(), StoreError> {
        let Some(identity_and_key) = self.journal_identity() else { return Ok(()) };
        let journal = JournalFile::replace(
            &self.fs,
            &self.paths,
            &self.file,
            (&identity_and_key.0, identity_and_key.1),
            &self.ranges,
        );
        self.journal = Some(journal.map_err(|e| StoreError::io(&self.paths.new_journal, "writing", e))?);
        Ok(())
    }

    /// What the bytes belong to, and the key for the MACs; none: the file cannot be resumed.
    fn journal_identity(&mut self) -> Option<(JournalIdentity, MacKey)> {
        let identity = self.identity.clone()?;
        match (self.fs.user_key(), &self.key_problem) {
            (Ok(key), _) => Some((identity, key.for_purpose(KEY_PURPOSE))),
            (Err(why), KeyProblem::None) => {
                self.key_problem =
                    KeyProblem::Unreported(format!("the download cannot be resumed if it is interrupted: {why}"));
                None
            }
            (Err(_), _) => None,
        }
    }

    /// Appends records, if there is a journal.
    pub(super) fn append_records(&mut self, records: impl Iterator<Item = Record>) -> Result<(), StoreError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.append(&self.fs, records).map_err(|e| StoreError::io(&self.paths.journal, "writing", e))
    }

    /// Starts to sync everything that has been written so far (rule 3).
    pub(super) fn start_sync(&mut self, now: Instant) -> Result<(), StoreError> {
        self.last_sync_at = now;
        // The sync covers everything written before it, so all of that must be in `ranges.dirty` first. Bytes that are
        // written while it runs go to `dirty` again and wait for the next one.
        self.record_writes()?;
        if !self.ranges.dirty.is_empty() {
            self.ranges.syncing = std::mem::take(&mut self.ranges.dirty);
            self.sync_stage = SyncStage::Data;
            self.fs.start_sync(&self.file, None);
        }
        Ok(())
    }

    /// Processes the result of a background sync, if it has one. Data is followed by the journal.
    pub(super) fn poll_sync(&mut self, now: Instant) -> Result<(), StoreError> {
        if self.sync_stage == SyncStage::Idle {
            return Ok(());
        }
        let Some(result) = self.fs.poll_sync() else { return Ok(()) };
        match (std::mem::replace(&mut self.sync_stage, SyncStage::Idle), result) {
            (SyncStage::Data, Ok(())) => {
                // The data is on the disk now, so the records may say so. They become durable with the sync below.
                let newly_synced = self.ranges.finish_sync();
                self.append_records(journal_file::synced_records(&newly_synced))?;
                if self.journal.as_ref().is_some_and(JournalFile::needs_compaction) {
                    self.compact_journal()?;
                }
                // Before the first sync of a new journal, its directory entry is synced as well.
                let Some(journal) = &mut self.journal else { return Ok(()) };
                let dir =
                    (!std::mem::replace(&mut journal.is_dir_synced, true)).then_some(self.paths.dir.as_path());
                self.sync_stage = SyncStage::Journal;
                self.fs.start_sync(&journal.file, dir);
            }
            (SyncStage::Data, Err(e)) => return Err(self.on_sync_failure(e)),
            (SyncStage::Journal, Err(why)) => {
                return Err(StoreError::SyncFailed { path: self.paths.journal.clone(), why });
            }
            (SyncStage::Journal, Ok(())) => self.last_sync_at = now,
            (SyncStage::Idle, _) => {}
        }
        Ok(())
    }

    pub(super) fn sync_data(&mut self) -> Result<(), StoreError> {
        let synced = self.fs.sync(&self.file);
        synced.map_err(|e| self.on_sync_failure(e))
    }

    /// Rule 4: bytes that are not known to be on the disk no longer count.
    fn on_sync_failure(&mut self, why: io::Error) -> StoreError {
        self.runs.clear();
        self.ranges =
            RecordedRanges { synced: std::mem::take(&mut self.ranges.synced), ..RecordedRanges::default() };
        if self.journal.is_some() && self.compact_journal().is_err() {
            // Both errors have the same cause, so the first one is reported.
            let _ = self.remove_journal();
        }
        match StoreError::io(&self.paths.part, "syncing", why) {
            StoreError::Io { path, why, .. } => StoreError::SyncFailed { path, why },
            full => full,
        }
    }

    /// Rule 5: removes the journal, and syncs the directory.
    pub(super) fn remove_journal(&mut self) -> Result<(), StoreError> {
        self.journal = None;
        let DownloadPaths { journal, new_journal, dir, .. } = &self.paths;
        let removed = self.fs.remove(journal).and_then(|()| self.fs.remove(new_journal));
        let removed = removed.and_then(|()| self.fs.sync_dir(dir));
        removed.map_err(|e| StoreError::io(journal, "removing", e))
    }
}
