//! The unfinished file and its journal: the order of system calls that keeps every journal record true after any
//! crash.
//!
//! 1. The bytes are written to `FILE.part`, the records to `FILE.part.journal`. `FILE` itself appears by one
//!    rename, when all bytes are complete and, if there is a journal, synced. Until then an older `FILE` stays as it is.
//! 2. A `written` record is appended after the write that it describes, at the latest after [`MAX_UNRECORDED`]
//!    bytes or [`RECORD_INTERVAL`]. The page cache outlives a killed process, so the record holds until the host
//!    goes down.
//! 3. A `synced` record is appended only after an fsync of `FILE.part` that began after the write returned without
//!    an error. Then the journal is synced, and the directory before the first sync of the journal.
//! 4. After a failed sync, unsynced bytes no longer count: the journal is rewritten without them. The kernel drops
//!    pages that it could not write, and reports that only once.
//! 5. Before recorded bytes are overwritten (the file has changed, or the journal cannot be used), the removal of
//!    the journal is made durable: unlink, fsync of the directory, and only then the first write.
//! 6. A journal that was read is rewritten with the present page-cache epoch, so that it stays small: written to a
//!    new file, synced, and renamed over the old one. The same happens when a journal has become much longer than
//!    its contents need.
//! 7. At the end: fsync, rename, removal of the journal, fsync of the directory; without a journal only the rename. A
//!    journal that reappears after a power failure would describe the `FILE.part` of the next download. So its removal
//!    is synced as well as the rename.
//! 8. No journal is created before [`JOURNAL_AFTER_BYTES`] or [`JOURNAL_AFTER`]. Nor is it for a file without size
//!    and strong validator, which could not be resumed anyway.
//! 9. A non-empty `FILE.part` belongs to marline if it has marline's mark (an extended attribute), or an authentic
//!    journal of this very file. Anything else under that name is left alone: another program's file, another
//!    user's file, and the target of a symbolic link. On file systems without extended attributes, a run that ends
//!    removes bytes without a journal, so that the next run can begin.
//! 10. Bytes count only with an authentic journal: its MAC uses the user's key, it is tied to the inode or the tag
//!     of `FILE.part`, and neither of the two files is writable by others. A marked file that others can write to,
//!     or that has a hard link, is replaced by a new one. A process that has the old file open can then change
//!     nothing. Without a key no journal is created.
//!
//! Rejected: O_DSYNC or a sync before each record, which limits the download to the latency of the disk; and a
//! checksum of each range, which costs as much as receiving it.

mod journaling;
mod opening;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use marline_core::fetch::{ByteRange, Validator};
use marline_core::units::{DataSize, Instant};
use marline_core::wire::download_journal::{self, Record};

use self::opening::open_locked;
use super::StoreError;
use super::coalesce::RunCoalescer;
use super::fs::FileSystem;
use super::journal_file::{self, JournalFile, JournalIdentity, RecordedRanges};
use super::paths::DownloadPaths;
use super::resume::ExistingDownload;

/// Number of written bytes from which on there is a journal. Our choice: fewer are fetched again in a moment.
const JOURNAL_AFTER_BYTES: u64 = 1_000_000;
/// The same limit for slow downloads, counted from the first byte.
const JOURNAL_AFTER: Duration = Duration::from_secs(1);
/// Number of written bytes after which records are appended at the latest. Our choice: a killed process loses no more.
const MAX_UNRECORDED: u64 = 1 << 20;
/// Time after which records are appended at the latest. Our choice: 32 bytes for each open run, four times a second, cost
/// next to nothing, and a quarter of a second of data is quickly fetched again.
const RECORD_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two syncs. Our choice: the received data that a power failure costs. A shorter interval would make slow
/// disks write small pieces all the time.
const SYNC_INTERVAL: Duration = Duration::from_secs(3);

/// An unfinished file, locked by this run.
#[derive(Debug)]
pub(super) struct PartialFile<D: FileSystem> {
    fs: D,
    paths: DownloadPaths,
    file: Arc<D::File>,
    journal: Option<JournalFile<D>>,
    /// What the bytes belong to, once it is known. Nothing is recorded before.
    identity: Option<JournalIdentity>,
    total: Option<u64>,
    url_digest: [u8; 32],
    runs: RunCoalescer,
    /// Number of bytes in `runs`, which are not recorded yet.
    unrecorded_bytes: u64,
    /// Number of bytes written by this run.
    written_bytes: u64,
    ranges: RecordedRanges,
    /// The bytes do not match their digest, so no run may resume from them.
    is_distrusted: bool,
    sync_stage: SyncStage,
    /// Whether the file has marline's mark.
    is_marked: bool,
    /// Why no journal can be created; reported to the user once.
    key_problem: KeyProblem,
    first_byte_at: Option<Instant>,
    recorded_at: Instant,
    last_sync_at: Instant,
}

/// Whether this run has no key for a journal.
#[derive(Debug, Default)]
enum KeyProblem {
    #[default]
    None,
    /// The reason, not reported yet.
    Unreported(String),
    Reported,
}

/// Which background sync is running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SyncStage {
    Idle,
    /// Syncing the data; it covers `ranges.syncing`.
    Data,
    /// Syncing the journal with the new `synced` records.
    Journal,
}

impl<D: FileSystem> PartialFile<D> {
    /// Takes the lock, and reads the state that an earlier run of any of these URLs (as digests) has left. A new
    /// journal records the first one.
    pub(super) fn open(
        fs: D,
        paths: DownloadPaths,
        urls: &[[u8; 32]],
    ) -> Result<(Self, ExistingDownload), StoreError> {
        let (data, shared) = open_locked(&fs, &paths)?;
        let data = Arc::new(data);
        let mut part = Self {
            fs,
            paths,
            file: data,
            journal: None,
            identity: None,
            total: None,
            url_digest: urls.first().copied().unwrap_or_default(),
            runs: RunCoalescer::new(),
            unrecorded_bytes: 0,
            written_bytes: 0,
            ranges: RecordedRanges::default(),
            is_distrusted: false,
            sync_stage: SyncStage::Idle,
            is_marked: false,
            key_problem: KeyProblem::None,
            first_byte_at: None,
            recorded_at: Instant::ZERO,
            last_sync_at: Instant::ZERO,
        };
        match part.load_existing(urls, shared) {
            Ok(existing) => Ok((part, existing)),
            Err(why) => {
                // Removes a file that this call has just created.
                if part.len().is_ok_and(|len| len == 0) && part.fs.is_marked(&part.file) {
                    let _ = part.fs.remove(&part.paths.part);
                }
                Err(why)
            }
        }
    }

    /// Sets size and validator, and ensures that the file fits on the disk. From now on a journal may be kept.
    pub(super) fn on_identified(
        &mut self,
        total: Option<DataSize>,
        validator: Option<&Validator>,
    ) -> Result<(), StoreError> {
        self.total = total.map(DataSize::bytes);
        let is_storable =
            |validator: &&Validator| validator.if_range_value().len() <= download_journal::MAX_VALIDATOR_LEN;
        let identified = self.total.zip(validator.filter(is_storable).cloned());
        let identity = identified.map(|(total, validator)| JournalIdentity {
            total,
            validator,
            url_digest: self.url_digest,
            last_modified: None,
        });
        let is_changed = identity != self.identity;
        self.identity = identity;
        // The bytes are kept: the caller has not discarded them, so they belong to this file even under another
        // validator. The journal must record the new identity, or go if the file cannot be resumed.
        match (&self.journal, &self.identity) {
            (Some(_), None) => self.remove_journal()?,
            (Some(_), Some(_)) if is_changed => self.compact_journal()?,
            _ => {}
        }
        self.total.map_or(Ok(()), |total| self.ensure_space(total))
    }

    /// See [`Store::set_last_modified`](super::Store::set_last_modified). Last-Modified is stored in the journal.
    pub(super) fn set_last_modified(&mut self, etag: &str, modified: &str) -> Result<Option<String>, StoreError> {
        let Some(identity) = &mut self.identity else { return Ok(None) };
        let has_same_etag = matches!(&identity.validator, Validator::Etag(tag) if tag == etag);
        let is_short =
            etag.len() + 1 + modified.len() <= download_journal::MAX_VALIDATOR_LEN && !modified.contains('\n');
        if !has_same_etag || !is_short || identity.last_modified.as_deref() == Some(modified) {
            return Ok(None);
        }
        let before = identity.last_modified.replace(modified.to_owned());
        if self.journal.is_some() {
            self.compact_journal()?;
        }
        Ok(before)
    }

    /// Writes bytes at an offset, and records them if enough have accumulated (rule 2).
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let result = self.fs.write_at(&self.file, at, bytes);
        result.map_err(|e| StoreError::io(&self.paths.part, "writing", e))?;
        let len = bytes.len() as u64;
        self.written_bytes += len;
        self.unrecorded_bytes += len;
        // A run that leaves the coalescer is recorded at once. All others wait for `record_writes`.
        if let Some(run) = self.runs.push(ByteRange::at(at, DataSize::from_bytes(len))) {
            self.ranges.dirty.insert(run);
            self.append_records([Record::Written { start: run.start, end: run.end }].into_iter())?;
        }
        let journal_due =
            self.journal.is_none() && self.identity.is_some() && self.written_bytes >= JOURNAL_AFTER_BYTES;
        if journal_due || self.unrecorded_bytes >= MAX_UNRECORDED { self.record_writes() } else { Ok(()) }
    }

    /// Records and syncs at the intervals of rules 2 and 3.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), StoreError> {
        // `write` has no time argument, so the intervals count from the first tick after the first byte.
        if self.written_bytes > 0 && self.first_byte_at.is_none() {
            (self.first_byte_at, self.recorded_at, self.last_sync_at) = (Some(now), now, now);
        }
        self.poll_sync(now)?;
        let Some(first) = self.first_byte_at.filter(|_| self.identity.is_some()) else { return Ok(()) };
        if now - self.recorded_at >= RECORD_INTERVAL {
            self.recorded_at = now;
            self.record_writes()?;
        }
        if self.journal.is_none() && now - first >= JOURNAL_AFTER {
            self.record_writes()?;
            self.begin_journal()?;
        }
        if self.journal.is_some() && self.sync_stage == SyncStage::Idle && now - self.last_sync_at >= SYNC_INTERVAL
        {
            self.start_sync(now)?;
        }
        Ok(())
    }

    /// When [`PartialFile::tick`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.identity.as_ref()?;
        // The first tick with bytes starts the intervals. It is due at once.
        let Some(_) = self.first_byte_at else { return (self.written_bytes > 0).then_some(Instant::ZERO) };
        Some(self.recorded_at + RECORD_INTERVAL)
    }

    /// Discards all bytes: the download begins again. Rule 5: the journal goes first.
    pub(super) fn restart(&mut self) -> Result<(), StoreError> {
        self.remove_journal()?;
        self.fs.truncate(&self.file, 0).map_err(|e| StoreError::io(&self.paths.part, "truncating", e))?;
        self.runs.clear();
        (self.unrecorded_bytes, self.written_bytes, self.first_byte_at) = (0, 0, None);
        (self.identity, self.total) = (None, None);
        // A sync that is in progress then records nothing.
        self.ranges = RecordedRanges::default();
        self.is_distrusted = false;
        Ok(())
    }

    /// Checks that all bytes are stored, and syncs them if there is a journal. The file keeps its unfinished name.
    pub(super) fn complete_and_sync(&mut self) -> Result<(), StoreError> {
        self.check_complete()?;
        // Files without a journal, mostly small ones, are not synced: as with other tools, the kernel writes them back
        // in its own time. What a power failure takes is fetched again.
        if self.journal.is_some() { self.sync_data() } else { Ok(()) }
    }

    /// Checks that all bytes are stored, and cuts off any beyond the size. Returns the size.
    pub(super) fn check_complete(&mut self) -> Result<u64, StoreError> {
        // Runs are moved to the set only: the complete file needs no further records.
        for run in self.runs.drain() {
            self.ranges.dirty.insert(run);
        }
        let len = self.len()?;
        let total = self.total.unwrap_or(len);
        let written = self.ranges.all_written();
        if let Some(gap) = written.next_gap(0, total) {
            let (path, missing) = (self.paths.final_path.clone(), written.missing_before(total));
            return Err(StoreError::Incomplete { path, missing, first: gap.start });
        }
        if len > total {
            self.fs.truncate(&self.file, total).map_err(|e| StoreError::io(&self.paths.part, "truncating", e))?;
        }
        Ok(total)
    }

    /// Renames the complete file to its final name, and removes the journal (rule 7).
    pub(super) fn publish(self) -> Result<PathBuf, StoreError> {
        let Self { fs, paths, file: data, journal, .. } = self;
        // Another program may have put its own file under the unfinished name meanwhile. The rename must not
        // publish it.
        if !fs
            .is_at_path(&data, &paths.part)
            .map_err(|e| StoreError::io(&paths.part, "reading its attributes", e))?
        {
            return Err(StoreError::PartReplaced { path: paths.final_path, part: paths.part });
        }
        let path =
            paths.publish(&fs).map_err(|e| StoreError::io(&paths.final_path, "renaming the complete file", e))?;
        // The mark is removed after the rename: if the run is killed in between, the next one must still recognize
        // its file.
        fs.finalize(&data, &paths.dir);
        if journal.is_some() {
            fs.remove(&paths.journal).map_err(|e| StoreError::io(&paths.journal, "removing", e))?;
            fs.sync_dir(&paths.dir).map_err(|e| StoreError::io(&paths.dir, "syncing the directory", e))?;
        }
        Ok(path)
    }

    /// Ends the run early: records and syncs all bytes. False: the next run cannot resume.
    pub(super) fn suspend(mut self) -> Result<bool, StoreError> {
        if self.is_distrusted {
            return Ok(false);
        }
        // What is still in the coalescer must be in `ranges` before they are examined.
        self.record_writes()?;
        // Nothing was stored, so nothing is left behind.
        if self.ranges.all_written().is_empty() {
            self.remove_journal()?;
            self.remove_part()?;
            return Ok(false);
        }
        // A run that ends before the first journal is due is resumed as well.
        self.begin_journal()?;
        // No journal (no identity or no key). Without a mark the next run could not recognize the file as marline's
        // (rule 9).
        if self.journal.is_none() {
            if !self.is_marked {
                self.remove_part()?;
            }
            return Ok(false);
        }
        // The order of rule 3: first the data, then the records that say so, then these records and their directory
        // entry. After a crash at any point, every record that is on the disk is true.
        self.sync_data()?;
        let newly_synced = self.ranges.mark_all_synced();
        self.append_records(journal_file::synced_records(&newly_synced))?;
        let Some(journal) = &self.journal else { return Ok(false) };
        let synced = self.fs.sync(&journal.file).and_then(|()| self.fs.sync_dir(&self.paths.dir));
        synced.map_err(|e| StoreError::io(&self.paths.journal, "syncing", e))?;
        Ok(true)
    }

    /// Removes the journal, so that the next run starts from zero. The bytes stay, and the returned path is shown
    /// to the user.
    pub(super) fn invalidate(&mut self) -> Result<&Path, StoreError> {
        self.remove_journal()?;
        self.is_distrusted = true;
        Ok(&self.paths.part)
    }

    /// Reads bytes of the unfinished file; zero bytes at its end.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        self.fs.read_at(&self.file, at, bytes).map_err(|e| StoreError::io(&self.paths.part, "reading", e))
    }

    pub(super) fn paths_mut(&mut self) -> &mut DownloadPaths {
        &mut self.paths
    }

    /// Sets the URL to which the following bytes belong. Call it while nothing is stored, or before everything is
    /// discarded.
    pub(super) fn set_url_digest(&mut self, url: [u8; 32]) {
        self.url_digest = url;
    }

    pub(super) fn paths(&self) -> &DownloadPaths {
        &self.paths
    }

    /// Sets another final name, and returns a message if it had to be adapted.
    pub(super) fn suggest_name(&mut self, name: &OsStr) -> Option<String> {
        self.paths.suggest_name(&self.fs, name)
    }

    /// Whether the unfinished file accepts writes at any offset. A resumed file has accepted them before.
    pub(super) fn supports_random_writes(&self) -> bool {
        !self.ranges.all_written().is_empty() || self.fs.supports_random_writes(&self.file)
    }

    /// Removes the unfinished file, so that it can be written in another way.
    pub(super) fn abandon(self) -> Result<DownloadPaths, StoreError> {
        self.remove_part()?;
        Ok(self.paths)
    }

    /// Checks that the disk has space for the bytes that are not allocated yet, and allocates them where that is
    /// cheap. Small files are not preallocated.
    fn ensure_space(&self, total: u64) -> Result<(), StoreError> {
        if let Some(limit) = self.fs.size_limit(&self.file, total) {
            let (path, total) = (self.paths.final_path.clone(), DataSize::from_bytes(total));
            return Err(StoreError::TooLarge { path, total, why: limit.to_string() });
        }
        // If the file system does not report its free space, it is assumed to suffice. A write will fail otherwise.
        let (Ok((_, allocated)), Ok(free)) = (self.fs.len(&self.file), self.fs.free_bytes(&self.file)) else {
            return Ok(());
        };
        let need = total.saturating_sub(allocated);
        if need <= free {
            let reserved =
                if total >= JOURNAL_AFTER_BYTES { self.fs.preallocate(&self.file, total) } else { Ok(()) };
            return reserved.map_err(|e| StoreError::io(&self.paths.part, "reserving disk space", e));
        }
        let [need, free] = [need, free].map(DataSize::from_bytes);
        Err(StoreError::NotEnoughSpace {
            path: self.paths.final_path.clone(),
            need,
            free,
            on: self.paths.dir.clone(),
        })
    }

    fn len(&self) -> Result<u64, StoreError> {
        let len =
            self.fs.len(&self.file).map_err(|e| StoreError::io(&self.paths.part, "reading its attributes", e))?;
        Ok(len.0)
    }

    /// A message about a missing key, once.
    pub(super) fn take_note(&mut self) -> Option<String> {
        match std::mem::replace(&mut self.key_problem, KeyProblem::Reported) {
            KeyProblem::Unreported(why) => Some(why),
            before => {
                self.key_problem = before;
                None
            }
        }
    }

    /// Removes the unfinished file, unless its name refers to another file by now.
    fn remove_part(&self) -> Result<(), StoreError> {
        let part = &self.paths.part;
        let is_own = self.fs.is_at_path(&self.file, part);
        let removed = is_own.and_then(|is_own| if is_own { self.fs.remove(part) } else { Ok(()) });
        removed.map_err(|e| StoreError::io(part, "removing", e))
    }
}
