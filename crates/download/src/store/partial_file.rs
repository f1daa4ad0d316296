//! One unfinished file and its journal: the discipline that makes every claim true after every crash.
//!
//! In: where bytes were put, the time, the end. Out: system calls in an order that keeps these rules:
//!
//! 1. The bytes go to `FILE.part`, the claims to `FILE.part.journal`. `FILE` itself appears by one rename, when all
//!    bytes are there and synced; until then an older `FILE` stays as it is.
//! 2. A `written` record is appended after the write that it speaks of, at the latest [`UNRECORDED`] bytes or
//!    [`RECORD_EVERY`] later. The page cache outlives a killed process, so it holds until the machine goes down.
//! 3. A `synced` record is appended only after an fdatasync of `FILE.part` that began after the write has returned
//!    without an error. Then the journal is synced, and before its first sync the directory.
//! 4. After a sync that failed, nothing unsynced is believed any more: the journal is rewritten without it (the
//!    kernel drops pages that it could not write, and says so only once).
//! 5. Before other bytes than the claimed ones are written (the file changed, the journal cannot be used), the
//!    journal's removal is on the disk: unlink, fsync of the directory, and only then the first write.
//! 6. A journal that was read is written anew with the present boot's identity beside the old one, synced and renamed
//!    over it, so that it stays small. The same happens when it has grown far beyond what it says.
//! 7. At the end: fdatasync, rename, removal of the journal, fsync of the directory. A journal that came back after a
//!    power cut would speak of the next download's `FILE.part`, so its removal is made sure of, not only the rename.
//! 8. No journal is begun before [`JOURNAL_AFTER_BYTES`] or [`JOURNAL_AFTER`], nor for a file without length and
//!    strong validator, which could not be resumed anyway.
//! 9. A `FILE.part` that is not empty is ours if it bears our mark or an authentic journal of this very file is beside
//!    it; anything else under that name, another user's file, and what a symbolic link leads to, is left alone. Where the
//!    file system has no room for marks, bytes that no journal speaks of are not left behind by a run that ends, so that
//!    the next one can begin.
//! 10. Only an authentic journal makes bytes count: with the user's key, tied to the inode or the tag of `FILE.part`, and
//!     neither of the two files open to others. A marked file that others can write to, or that has a second name, is
//!     replaced by a new one: who has it open can then change nothing of ours. Without a key no journal is begun.
//!
//! Not used: O_DSYNC or a sync before each claim, which binds the download to the
//! disk's latency; a checksum of each span, which costs as much as receiving it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use marline_core::fetch::{ByteRange, RangeSet, Validator};
use marline_core::units::{DataSize, Instant};
use marline_core::wire::download_journal::{self, Header, HeaderError, Record};

use rustix::io::Errno;

use super::StoreError;
use super::coalesce::RunCoalescer;
use super::fs::{FileSystem, Ownership};
use super::journal_file::{self, JournalFile, JournalIdentity, RecordedRanges};
use super::mac_key::MacKey;
use super::paths::DownloadPaths;
use super::resume::{ExistingDownload, RestartReason, ResumeContext};

/// Issue 2 B: no journal for what is fetched again in a moment.
const JOURNAL_AFTER_BYTES: u64 = 1_000_000;
/// The other half of the same rule.
const JOURNAL_AFTER: Duration = Duration::from_secs(1);
/// Chosen: a quarter of the 4 MiB that a kill may cost.
const MAX_UNRECORDED: u64 = 1 << 20;
/// Chosen: 32 bytes for each open run, four times a second, are nothing; a quarter of a second is quickly fetched.
const RECORD_INTERVAL: Duration = Duration::from_millis(250);
/// Chosen: what a power cut costs. Shorter would make slow disks write small pieces all the time.
const SYNC_INTERVAL: Duration = Duration::from_secs(3);

const NOT_A_JOURNAL: &str = "a file with this name is there that is no journal of marline";

/// Chosen: half a second in all, which nobody minds before an error.
const MAX_LOCK_TRIES: u32 = 50;
/// Chosen: longer than most programs take from their fork to their exec.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// An unfinished file, locked.
#[derive(Debug)]
pub(super) struct PartialFile<D: FileSystem> {
    fs: D,
    paths: DownloadPaths,
    file: Arc<D::File>,
    journal: Option<JournalFile<D>>,
    /// What the bytes are of, once that is known; nothing is claimed before.
    identity: Option<JournalIdentity>,
    total: Option<u64>,
    url_digest: [u8; 32],
    runs: RunCoalescer,
    /// Bytes in `runs`.
    unrecorded_bytes: u64,
    /// Bytes put in place by this run.
    written_bytes: u64,
    ranges: RecordedRanges,
    /// The bytes do not match their digest: no run goes on with them.
    is_distrusted: bool,
    sync_stage: SyncStage,
    /// Our mark is on the file.
    is_marked: bool,
    /// Why no journal can be begun, to be told once.
    key_problem: KeyProblem,
    first_byte_at: Option<Instant>,
    recorded_at: Instant,
    last_sync_at: Instant,
}

/// Whether this run could not have a key.
#[derive(Debug, Default)]
enum KeyProblem {
    #[default]
    None,
    /// Not yet told why.
    Unreported(String),
    Reported,
}

/// What the disk is doing for us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SyncStage {
    Idle,
    /// Syncing the data; `claims.syncing` is in it.
    Data,
    /// Syncing the journal that says so.
    Journal,
}

impl<D: FileSystem> PartialFile<D> {
    /// Takes the lock and looks for what an earlier run left of any of these URLs (given as digests; the first one
    /// goes into a new journal).
    pub(super) fn open(
        disk: D,
        paths: DownloadPaths,
        urls: &[[u8; 32]],
    ) -> Result<(Self, ExistingDownload), StoreError> {
        let (data, shared) = open_locked(&disk, &paths)?;
        let data = Arc::new(data);
        let mut part = Self {
            fs: disk,
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
                // What was made for nothing.
                if part.len().is_ok_and(|len| len == 0) && part.fs.is_marked(&part.file) {
                    let _ = part.fs.remove(&part.paths.part);
                }
                Err(why)
            }
        }
    }

    /// The file is known. Makes sure that it fits on the disk, and from now on a journal may be kept.
    pub(super) fn on_identified(
        &mut self,
        total: Option<DataSize>,
        validator: Option<&Validator>,
    ) -> Result<(), StoreError> {
        self.total = total.map(DataSize::bytes);
        let is_storable =
            |validator: &&Validator| validator.if_range_value().len() <= download_journal::VALIDATOR_MAX;
        let identified = self.total.zip(validator.filter(is_storable).cloned());
        let identity = identified.map(|(total, validator)| JournalIdentity {
            total,
            validator,
            url_digest: self.url_digest,
            last_modified: None,
        });
        let is_changed = identity != self.identity;
        self.identity = identity;
        // The bytes stay: the caller has not thrown them away, so they are of this file, by whatever validator.
        match (&self.journal, &self.identity) {
            (Some(_), None) => self.remove_journal()?,
            (Some(_), Some(_)) if is_changed => self.compact_journal()?,
            _ => {}
        }
        self.total.map_or(Ok(()), |total| self.ensure_space(total))
    }

    /// A response with this strong ETag has this date. Gives another one that an earlier run was told under the same ETag.
    pub(super) fn set_last_modified(&mut self, etag: &str, modified: &str) -> Result<Option<String>, StoreError> {
        let Some(identity) = &mut self.identity else { return Ok(None) };
        let is_of_it = matches!(&identity.validator, Validator::Etag(tag) if tag == etag);
        let is_short =
            etag.len() + 1 + modified.len() <= download_journal::VALIDATOR_MAX && !modified.contains('\n');
        if !is_of_it || !is_short || identity.last_modified.as_deref() == Some(modified) {
            return Ok(None);
        }
        let before = identity.last_modified.replace(modified.to_owned());
        if self.journal.is_some() {
            self.compact_journal()?;
        }
        Ok(before)
    }

    /// Puts bytes in their place.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let result = self.fs.write_at(&self.file, at, bytes);
        result.map_err(|e| StoreError::io(&self.paths.part, "writing", e))?;
        let len = bytes.len() as u64;
        self.written_bytes += len;
        self.unrecorded_bytes += len;
        if let Some(run) = self.runs.push(ByteRange::at(at, DataSize::from_bytes(len))) {
            self.ranges.dirty.insert(run);
            self.append_records([Record::Written { start: run.start, end: run.end }].into_iter())?;
        }
        let journal_due =
            self.journal.is_none() && self.identity.is_some() && self.written_bytes >= JOURNAL_AFTER_BYTES;
        if journal_due || self.unrecorded_bytes >= MAX_UNRECORDED { self.record_writes() } else { Ok(()) }
    }

    /// Keeps the cadence of claims and syncs.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), StoreError> {
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

    /// When [`Part::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.identity.as_ref()?;
        // Before the first tick with bytes there is no moment to count from; any moment will do.
        let Some(_) = self.first_byte_at else { return (self.written_bytes > 0).then_some(Instant::ZERO) };
        Some(self.recorded_at + RECORD_INTERVAL)
    }

    /// The file is another one now: nothing that is stored belongs to it.
    pub(super) fn restart(&mut self) -> Result<(), StoreError> {
        self.remove_journal()?;
        self.fs.truncate(&self.file, 0).map_err(|e| StoreError::io(&self.paths.part, "emptying", e))?;
        self.runs.clear();
        (self.unrecorded_bytes, self.written_bytes, self.first_byte_at) = (0, 0, None);
        (self.identity, self.total) = (None, None);
        // A sync that is under way ends with nothing to claim.
        self.ranges = RecordedRanges::default();
        self.is_distrusted = false;
        Ok(())
    }

    /// All bytes are there: makes sure of it, and of the disk. The file still has its unfinished name.
    pub(super) fn complete_and_sync(&mut self) -> Result<(), StoreError> {
        self.check_complete()?;
        // Small files have no journal and are not waited for either: as with any other tool, the kernel writes them
        // back in its own time, and a fetch of the same kilobytes mends what a power failure takes.
        if self.journal.is_some() { self.sync_data() } else { Ok(()) }
    }

    /// Makes sure that all bytes are there, and none beyond; tells how many.
    pub(super) fn check_complete(&mut self) -> Result<u64, StoreError> {
        // Into the sets only: the journal has nothing to say any more.
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
            self.fs.truncate(&self.file, total).map_err(|e| StoreError::io(&self.paths.part, "cutting", e))?;
        }
        Ok(total)
    }

    /// Gives the complete file its name, and removes the journal.
    pub(super) fn publish(self) -> Result<PathBuf, StoreError> {
        let Self { fs: disk, paths, file: data, journal: log, .. } = self;
        // Under the unfinished name another program may have put its own file meanwhile.
        if !disk.is_at_path(&data, &paths.part).map_err(|e| StoreError::io(&paths.part, "looking at it", e))? {
            return Err(StoreError::PartReplaced { path: paths.final_path, part: paths.part });
        }
        let path =
            paths.publish(&disk).map_err(|e| StoreError::io(&paths.final_path, "naming the complete file", e))?;
        // Not before: a run that is killed in between must find its file again.
        disk.finalize(&data, &paths.dir);
        if log.is_some() {
            disk.remove(&paths.journal).map_err(|e| StoreError::io(&paths.journal, "removing", e))?;
            disk.sync_dir(&paths.dir).map_err(|e| StoreError::io(&paths.dir, "syncing the directory", e))?;
        }
        Ok(path)
    }

    /// The run ends early: what is there is synced and claimed. False if it cannot be resumed.
    pub(super) fn suspend(mut self) -> Result<bool, StoreError> {
        if self.is_distrusted {
            return Ok(false);
        }
        self.record_writes()?;
        if self.ranges.all_written().is_empty() {
            self.remove_journal()?;
            self.remove_part()?;
            return Ok(false);
        }
        self.begin_journal()?;
        if self.journal.is_none() {
            if !self.is_marked {
                self.remove_part()?;
            }
            return Ok(false);
        }
        self.sync_data()?;
        let newly_synced = self.ranges.mark_all_synced();
        self.append_records(journal_file::synced_records(&newly_synced))?;
        let Some(log) = &self.journal else { return Ok(false) };
        let synced = self.fs.sync(&log.file).and_then(|()| self.fs.sync_dir(&self.paths.dir));
        synced.map_err(|e| StoreError::io(&self.paths.journal, "syncing", e))?;
        Ok(true)
    }

    /// Removes the journal, so that the next run starts from zero; the bytes stay where they are, and that is told.
    pub(super) fn invalidate(&mut self) -> Result<&Path, StoreError> {
        self.remove_journal()?;
        self.is_distrusted = true;
        Ok(&self.paths.part)
    }

    /// Reads some bytes of the unfinished file; zero at its end.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        self.fs.read_at(&self.file, at, bytes).map_err(|e| StoreError::io(&self.paths.part, "reading", e))
    }

    pub(super) fn paths_mut(&mut self) -> &mut DownloadPaths {
        &mut self.paths
    }

    /// What is written from now on is of this URL. To be called while nothing is in place, or before everything is thrown
    /// away.
    pub(super) fn set_url_digest(&mut self, url: [u8; 32]) {
        self.url_digest = url;
    }

    pub(super) fn paths(&self) -> &DownloadPaths {
        &self.paths
    }

    /// Another final name, and a line if it had to be adapted.
    pub(super) fn suggest_name(&mut self, name: &OsStr) -> Option<String> {
        self.paths.suggest_name(&self.fs, name)
    }

    /// Whether the unfinished file takes writes at any offset. One that is not empty has taken them already.
    pub(super) fn supports_random_writes(&self) -> bool {
        !self.ranges.all_written().is_empty() || self.fs.supports_random_writes(&self.file)
    }

    /// Leaves nothing, for another way to write the file.
    pub(super) fn abandon(self) -> Result<DownloadPaths, StoreError> {
        self.remove_part()?;
        Ok(self.paths)
    }

    /// What an earlier run left. Whatever cannot be used is gone from the disk when this returns (rule 5).
    fn load_existing(
        &mut self,
        urls: &[[u8; 32]],
        shared: Option<&'static str>,
    ) -> Result<ExistingDownload, StoreError> {
        self.remove_stale_journal()?;
        let (len, marked) = (self.len()?, self.fs.is_marked(&self.file));
        let life = self.fs.page_cache_epoch(&self.file);
        let present = ResumeContext { len, part_id: self.fs.file_id(&self.file), epoch: life, url_digests: urls };
        let existing = ExistingDownload::read(&self.fs, &self.paths.journal, &present);
        let existing = existing.map_err(|e| open_error(&self.paths.journal, "reading", e))?;
        let existing = match existing {
            // Beside our own bytes it is our journal, damaged; beside none it may be anybody's.
            ExistingDownload::NotAJournal if len > 0 && marked => {
                ExistingDownload::Unusable(RestartReason::Unreadable(HeaderError::NotAJournal))
            }
            ExistingDownload::NotAJournal => ExistingDownload::Foreign(NOT_A_JOURNAL),
            found => found,
        };
        if let ExistingDownload::Foreign(what) = existing {
            return Err(StoreError::NotOurs { part: self.paths.journal.clone(), what });
        }
        // The file that the journal was of is gone.
        let existing = shared.map_or(existing, |what| ExistingDownload::Unusable(RestartReason::Untrusted(what)));
        // Rule 9. A file system without marks leaves only the journal to tell by.
        let by_journal = match &existing {
            ExistingDownload::Valid { .. } => true,
            ExistingDownload::Unusable(why) => why.proves_ownership(),
            ExistingDownload::Absent | ExistingDownload::NotAJournal | ExistingDownload::Foreign(_) => false,
        };
        if len > 0 && !by_journal && !marked {
            let what =
                "a file with this name is there, and no journal of this user's is evidence that marline wrote it";
            return Err(StoreError::NotOurs { part: self.paths.part.clone(), what });
        }
        self.is_marked = self.fs.set_mark(&self.file);
        match existing {
            ExistingDownload::Valid { header, synced, written } => {
                self.url_digest = header.url_digest;
                self.total = Some(header.file_size);
                self.identity = Some(JournalIdentity::from_header(&header));
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

    /// Whether the disk has room for what is not allocated yet; takes it where that is cheap. Small files pay nothing.
    fn ensure_space(&self, total: u64) -> Result<(), StoreError> {
        if let Some(limit) = self.fs.size_limit(&self.file, total) {
            let (path, total) = (self.paths.final_path.clone(), DataSize::from_bytes(total));
            return Err(StoreError::TooLarge { path, total, why: limit.to_string() });
        }
        // Who cannot tell is believed to have enough; the write will show.
        let (Ok((_, allocated)), Ok(free)) = (self.fs.len(&self.file), self.fs.free_bytes(&self.file)) else {
            return Ok(());
        };
        let need = total.saturating_sub(allocated);
        if need <= free {
            let reserved =
                if total >= JOURNAL_AFTER_BYTES { self.fs.preallocate(&self.file, total) } else { Ok(()) };
            return reserved.map_err(|e| StoreError::io(&self.paths.part, "reserving room", e));
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
        let len = self.fs.len(&self.file).map_err(|e| StoreError::io(&self.paths.part, "looking at it", e))?;
        Ok(len.0)
    }

    /// Claims everything that has been put in place since the last time.
    fn record_writes(&mut self) -> Result<(), StoreError> {
        self.unrecorded_bytes = 0;
        let Self { runs, ranges, journal: log, fs: disk, paths, .. } = self;
        let drained = runs.drain().map(|run| {
            ranges.dirty.insert(run);
            Record::Written { start: run.start, end: run.end }
        });
        match log {
            Some(log) => {
                log.append(disk, drained).map_err(|e| StoreError::io(&paths.journal, "writing", e))?;
            }
            None => drained.for_each(drop),
        }
        if self.written_bytes >= JOURNAL_AFTER_BYTES { self.begin_journal() } else { Ok(()) }
    }

    /// Begins the journal, with all claims so far, if there is none and the file can be resumed at all.
    fn begin_journal(&mut self) -> Result<(), StoreError> {
        if self.journal.is_some() {
            return Ok(());
        }
        let Some(identity_and_key) = self.journal_identity() else { return Ok(()) };
        // No journal that was ever written speaks of the bytes that are in the file now.
        self.fs.set_tag(&self.file);
        let log = JournalFile::create(
            &self.fs,
            &self.paths,
            &self.file,
            (&identity_and_key.0, identity_and_key.1),
            &self.ranges,
        );
        self.journal = Some(log.map_err(|e| open_error(&self.paths.journal, "writing", e))?);
        Ok(())
    }

    /// Writes the journal anew, as small as can be.
    fn compact_journal(&mut self) -> Result<(), StoreError> {
        let Some(identity_and_key) = self.journal_identity() else { return Ok(()) };
        let log = JournalFile::replace(
            &self.fs,
            &self.paths,
            &self.file,
            (&identity_and_key.0, identity_and_key.1),
            &self.ranges,
        );
        self.journal = Some(log.map_err(|e| StoreError::io(&self.paths.new_journal, "writing", e))?);
        Ok(())
    }

    /// What the bytes are of and the key to say so with; none: the file cannot be resumed.
    fn journal_identity(&mut self) -> Option<(JournalIdentity, MacKey)> {
        let identity = self.identity.clone()?;
        match (self.fs.user_key(), &self.key_problem) {
            (Ok(key), _) => Some((identity, key.for_purpose(super::KEY_PURPOSE))),
            (Err(why), KeyProblem::None) => {
                self.key_problem =
                    KeyProblem::Unreported(format!("the download cannot be resumed if it is interrupted: {why}"));
                None
            }
            (Err(_), _) => None,
        }
    }

    /// What the user should read of this file, once.
    pub(super) fn take_note(&mut self) -> Option<String> {
        match std::mem::replace(&mut self.key_problem, KeyProblem::Reported) {
            KeyProblem::Unreported(why) => Some(why),
            before => {
                self.key_problem = before;
                None
            }
        }
    }

    /// Removes the unfinished file, unless something else has its name by now.
    fn remove_part(&self) -> Result<(), StoreError> {
        let part = &self.paths.part;
        let is_own = self.fs.is_at_path(&self.file, part);
        let removed = is_own.and_then(|is_own| if is_own { self.fs.remove(part) } else { Ok(()) });
        removed.map_err(|e| StoreError::io(part, "removing", e))
    }

    /// A crash between the making of a journal and its renaming leaves this; it is never used.
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
        Err(StoreError::NotOurs { part: path.clone(), what })
    }

    /// Appends claims, if there is a journal.
    fn append_records(&mut self, records: impl Iterator<Item = Record>) -> Result<(), StoreError> {
        let Some(log) = &mut self.journal else { return Ok(()) };
        log.append(&self.fs, records).map_err(|e| StoreError::io(&self.paths.journal, "writing", e))
    }

    /// Asks the disk to make sure of everything that is in place now.
    fn start_sync(&mut self, now: Instant) -> Result<(), StoreError> {
        self.last_sync_at = now;
        self.record_writes()?;
        if !self.ranges.dirty.is_empty() {
            self.ranges.syncing = std::mem::take(&mut self.ranges.dirty);
            self.sync_stage = SyncStage::Data;
            self.fs.start_sync(&self.file, None);
        }
        Ok(())
    }

    /// Takes the disk's answer, if there is one.
    fn poll_sync(&mut self, now: Instant) -> Result<(), StoreError> {
        if self.sync_stage == SyncStage::Idle {
            return Ok(());
        }
        let Some(result) = self.fs.poll_sync() else { return Ok(()) };
        match (std::mem::replace(&mut self.sync_stage, SyncStage::Idle), result) {
            (SyncStage::Data, Ok(())) => {
                let newly_synced = self.ranges.finish_sync();
                self.append_records(journal_file::synced_records(&newly_synced))?;
                if self.journal.as_ref().is_some_and(JournalFile::needs_compaction) {
                    self.compact_journal()?;
                }
                let Some(log) = &mut self.journal else { return Ok(()) };
                let dir = (!std::mem::replace(&mut log.is_dir_synced, true)).then_some(self.paths.dir.as_path());
                self.sync_stage = SyncStage::Journal;
                self.fs.start_sync(&log.file, dir);
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

    fn sync_data(&mut self) -> Result<(), StoreError> {
        let synced = self.fs.sync(&self.file);
        synced.map_err(|e| self.on_sync_failure(e))
    }

    /// Rule 4: what is not known to be on the disk is not claimed any more.
    fn on_sync_failure(&mut self, why: io::Error) -> StoreError {
        self.runs.clear();
        self.ranges =
            RecordedRanges { synced: std::mem::take(&mut self.ranges.synced), ..RecordedRanges::default() };
        if self.journal.is_some() && self.compact_journal().is_err() {
            // Both errors have one cause, and the first one says it.
            let _ = self.remove_journal();
        }
        match StoreError::io(&self.paths.part, "syncing", why) {
            StoreError::Io { path, why, .. } => StoreError::SyncFailed { path, why },
            full => full,
        }
    }

    /// Rule 5: the journal is gone, on the disk too.
    fn remove_journal(&mut self) -> Result<(), StoreError> {
        self.journal = None;
        let DownloadPaths { journal, new_journal, dir, .. } = &self.paths;
        let removed = self.fs.remove(journal).and_then(|()| self.fs.remove(new_journal));
        let removed = removed.and_then(|()| self.fs.sync_dir(dir));
        removed.map_err(|e| StoreError::io(journal, "removing", e))
    }
}

/// The error for a name that could not be opened: what stands there may be somebody else's.
fn open_error(path: &Path, doing: &'static str, why: io::Error) -> StoreError {
    let what = match Errno::from_io_error(&why) {
        Some(Errno::LOOP) => "a symbolic link with this name is there",
        Some(Errno::NXIO | Errno::ISDIR) => "something with this name is there that is no regular file",
        Some(Errno::EXIST) => "a file with this name has been put there meanwhile",
        // An encoding that the file system does not know, or a character that it does not take.
        Some(Errno::INVAL | Errno::ILSEQ) if doing == "opening" => {
            return StoreError::NameRefused { path: path.to_owned(), why };
        }
        _ => return StoreError::io(path, doing, why),
    };
    StoreError::NotOurs { part: path.to_owned(), what }
}

/// Opens the unfinished file and takes its lock. Waits a moment for it: a lock lives on in a program that its owner is just
/// starting, up to the exec, and in an owner that was killed until the kernel has taken it down.
///
/// A file of ours that others could have written to is replaced by a new one, and the reason is returned (rule 10).
fn open_locked<D: FileSystem>(
    disk: &D,
    paths: &DownloadPaths,
) -> Result<(D::File, Option<&'static str>), StoreError> {
    let failed = |e| open_error(&paths.part, "opening", e);
    let foreign = |what| Err(StoreError::NotOurs { part: paths.part.clone(), what });
    let (mut tries, mut shared) = (0, None);
    loop {
        let (file, is_new) = disk.open(&paths.part).map_err(failed)?;
        let custody = if is_new { Ownership::Private } else { disk.ownership(&file).map_err(failed)? };
        // Before the lock, which its owner could hold for ever.
        match custody {
            Ownership::Foreign(what) => return foreign(what),
            Ownership::Shared(_) if !disk.is_marked(&file) => {
                return foreign("a file with this name is there that others can write to, or that has a hard link");
            }
            _ => {}
        }
        if !disk.lock(&file).map_err(failed)? {
            if tries == MAX_LOCK_TRIES {
                return Err(StoreError::Locked { path: paths.final_path.clone(), part: paths.part.clone() });
            }
            tries += 1;
            std::thread::sleep(LOCK_RETRY_INTERVAL);
            continue;
        }
        // Between our open and our lock its owner may have finished, and then this is the complete file.
        if !disk.is_at_path(&file, &paths.part).map_err(failed)? {
            continue;
        }
        match custody {
            Ownership::Shared(what) if shared.is_none() => {
                disk.remove(&paths.part).map_err(failed)?;
                shared = Some(what);
            }
            // Again: somebody is faster than we are.
            Ownership::Shared(what) => return foreign(what),
            _ => return Ok((file, shared)),
        }
    }
}
