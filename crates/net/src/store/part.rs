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
//! 7. At the end: fdatasync, rename, fsync of the directory, and only then the journal's removal.
//! 8. No journal is begun before [`JOURNAL_AFTER_BYTES`] or [`JOURNAL_AFTER`], nor for a file without length and
//!    strong validator, which could not be resumed anyway.
//!
//! Not used: `fallocate` (see [`super`]); O_DSYNC or a sync before each claim, which binds the download to the
//! disk's latency; a checksum of each span, which costs as much as receiving it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use marline_core::fetch::{Span, SpanSet, Validator};
use marline_core::units::{DataSize, Instant};
use marline_core::wire::journal::{self, Header, Mark, RECORD_LEN, Record};

use super::disk::Disk;
use super::found::{Found, StartOver};
use super::runs::{OPEN, Runs};
use super::{StoreError, place::Place};

/// Issue 2 B: no journal for what is fetched again in a moment.
pub(super) const JOURNAL_AFTER_BYTES: u64 = 1_000_000;
/// The other half of the same rule.
pub(super) const JOURNAL_AFTER: Duration = Duration::from_secs(1);
/// Chosen: a quarter of the 4 MiB that a kill may cost.
pub(super) const UNRECORDED: u64 = 1 << 20;
/// Chosen: 32 bytes for each open run, four times a second, are nothing; a quarter of a second is quickly fetched.
pub(super) const RECORD_EVERY: Duration = Duration::from_millis(250);
/// Chosen: what a power cut costs. Shorter would make slow disks write small pieces all the time.
pub(super) const SYNC_EVERY: Duration = Duration::from_secs(3);
/// A journal below this is never rewritten on the way.
const COMPACT_ABOVE: u64 = 1 << 20;

/// An unfinished file, locked.
#[derive(Debug)]
pub(super) struct Part<D: Disk> {
    pub(super) disk: D,
    place: Place,
    data: Arc<D::File>,
    journal: Option<Journal<D>>,
    /// What the bytes are of, once that is known; nothing is claimed before.
    identity: Option<Identity>,
    total: Option<u64>,
    url: [u8; 32],
    runs: Runs,
    /// Bytes in `runs`.
    unrecorded: u64,
    /// Bytes put in place by this run.
    bytes: u64,
    /// In place, and maybe not on the disk.
    dirty: SpanSet,
    /// In place, and being synced.
    syncing: SpanSet,
    /// On the disk.
    synced: SpanSet,
    stage: Stage,
    first_byte: Option<Instant>,
    recorded: Instant,
    last_sync: Instant,
}

#[derive(Debug)]
struct Journal<D: Disk> {
    file: Arc<D::File>,
    nonce: u64,
    /// Where the next record goes; a record that could not be written is overwritten by the next one.
    len: u64,
    /// Length when it was last written anew.
    compact: u64,
    /// Its name is on the disk.
    named: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Identity {
    total: u64,
    validator: Validator,
}

/// What the disk is doing for us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    /// Syncing the data; `syncing` is in it.
    Data,
    /// Syncing the journal that says so.
    Journal,
    /// Syncing what has been thrown away.
    Stale,
}

impl<D: Disk> Part<D> {
    /// Takes the lock and looks for what an earlier run left of any of these URLs (given as digests, the first one
    /// goes into a new journal).
    pub(super) fn open(disk: D, place: Place, urls: &[[u8; 32]]) -> Result<(Self, Found), StoreError> {
        let data = Arc::new(lock(&disk, &place)?);
        let mut part = Self {
            disk,
            place,
            data,
            journal: None,
            identity: None,
            total: None,
            url: urls.first().copied().unwrap_or_default(),
            runs: Runs::new(),
            unrecorded: 0,
            bytes: 0,
            dirty: SpanSet::default(),
            syncing: SpanSet::default(),
            synced: SpanSet::default(),
            stage: Stage::Idle,
            first_byte: None,
            recorded: Instant::ZERO,
            last_sync: Instant::ZERO,
        };
        let found = part.look(urls)?;
        Ok((part, found))
    }

    /// The file is known. Checks that it fits on the disk, and from now on a journal may be kept.
    pub(super) fn identified(
        &mut self,
        total: Option<DataSize>,
        validator: Option<&Validator>,
    ) -> Result<(), StoreError> {
        self.total = total.map(DataSize::bytes);
        let short = |validator: &&Validator| validator.text().len() <= journal::VALIDATOR_MAX;
        let identity = self.total.zip(validator.filter(short).cloned());
        let identity = identity.map(|(total, validator)| Identity { total, validator });
        let other = identity != self.identity;
        self.identity = identity;
        // The bytes stay: whoever calls has not thrown them away, so they are of this file, whatever it is called now.
        match (&self.journal, &self.identity) {
            (Some(_), None) => self.forget_journal()?,
            (Some(_), Some(_)) if other => self.compact()?,
            _ => {}
        }
        self.total.map_or(Ok(()), |total| self.check_space(total))
    }

    /// Puts bytes in their place.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let part = &self.place.part;
        self.disk.write_at(&self.data, at, bytes).map_err(|e| StoreError::io(part, "writing", e))?;
        let len = bytes.len() as u64;
        self.bytes += len;
        self.unrecorded += len;
        if let Some(run) = self.runs.add(Span::new(at, at.saturating_add(len))) {
            self.dirty.insert(run);
            self.append(&[Record::Written { start: run.start, end: run.end }])?;
        }
        if self.unrecorded >= UNRECORDED { self.record() } else { Ok(()) }
    }

    /// Keeps the cadence of claims and syncs.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), StoreError> {
        if self.bytes > 0 && self.first_byte.is_none() {
            (self.first_byte, self.recorded, self.last_sync) = (Some(now), now, now);
        }
        self.reap(now)?;
        let Some(first) = self.first_byte.filter(|_| self.identity.is_some()) else { return Ok(()) };
        if self.journal.is_none() && now - first >= JOURNAL_AFTER {
            self.record()?;
            self.begin()?;
        }
        if now - self.recorded >= RECORD_EVERY {
            self.recorded = now;
            self.record()?;
        }
        if self.journal.is_some() && self.stage == Stage::Idle && now - self.last_sync >= SYNC_EVERY {
            self.start_sync(now)?;
        }
        Ok(())
    }

    /// When [`Part::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let first = self.first_byte.filter(|_| self.identity.is_some());
        let due = first.map(|first| match &self.journal {
            None if self.unrecorded == 0 => first + JOURNAL_AFTER,
            _ => self.recorded + RECORD_EVERY,
        });
        let busy = self.journal.is_some() || self.unrecorded > 0 || !self.dirty.is_empty();
        due.filter(|_| busy)
    }

    /// The file is another one now: nothing that is stored belongs to it.
    pub(super) fn restart(&mut self) -> Result<(), StoreError> {
        self.forget_journal()?;
        self.disk.truncate(&self.data, 0).map_err(|e| StoreError::io(&self.place.part, "emptying", e))?;
        self.runs.clear();
        (self.unrecorded, self.bytes, self.first_byte) = (0, 0, None);
        (self.dirty, self.syncing, self.synced) = Default::default();
        (self.identity, self.total) = (None, None);
        if self.stage != Stage::Idle {
            self.stage = Stage::Stale;
        }
        Ok(())
    }

    /// All bytes are there: makes sure of it and of the disk. The file still has its unfinished name.
    pub(super) fn complete(&mut self) -> Result<u64, StoreError> {
        self.record()?;
        let all: SpanSet = self.dirty.iter().chain(self.syncing.iter()).chain(self.synced.iter()).collect();
        let (len, _) =
            self.disk.len(&self.data).map_err(|e| StoreError::io(&self.place.part, "looking at it", e))?;
        let total = self.total.unwrap_or(len);
        if let Some(gap) = all.gap(0, total) {
            let (path, missing) = (self.place.path.clone(), all.missing(total));
            return Err(StoreError::Incomplete { path, missing, first: gap.start });
        }
        if len > total {
            self.disk.truncate(&self.data, total).map_err(|e| StoreError::io(&self.place.part, "cutting", e))?;
        }
        self.sync_data()?;
        Ok(total)
    }

    /// Gives the complete file its name, and removes the journal.
    pub(super) fn publish(self) -> Result<PathBuf, StoreError> {
        let Self { disk, place, journal, .. } = self;
        let failed = |what| move |path: &Path, e| StoreError::io(path, what, e);
        let path = place.publish(&disk).map_err(|e| failed("naming the complete file")(&place.path, e))?;
        if journal.is_some() {
            disk.sync_dir(&place.dir).map_err(|e| failed("syncing the directory")(&place.dir, e))?;
            disk.remove(&place.journal).map_err(|e| failed("removing")(&place.journal, e))?;
        }
        Ok(path)
    }

    /// The run ends early: what is there is synced and claimed. False if it cannot be resumed.
    pub(super) fn suspend(mut self) -> Result<bool, StoreError> {
        if self.bytes == 0 && self.journal.is_none() && self.synced.is_empty() {
            let part = &self.place.part;
            self.disk.remove(part).map_err(|e| StoreError::io(part, "removing", e))?;
            return Ok(false);
        }
        self.record()?;
        if self.identity.is_none() {
            return Ok(false);
        }
        self.begin()?;
        self.sync_data()?;
        let safe: SpanSet = self.dirty.iter().chain(self.syncing.iter()).collect();
        self.claim_synced(safe)?;
        let Some(journal) = &self.journal else { return Ok(false) };
        let synced = self.disk.sync(&journal.file).and_then(|()| self.disk.sync_dir(&self.place.dir));
        synced.map_err(|e| StoreError::io(&self.place.journal, "syncing", e))?;
        Ok(true)
    }

    /// Removes the journal, so that the next run starts from zero; the bytes stay where they are.
    pub(super) fn distrust(&mut self) -> Result<&Path, StoreError> {
        self.forget_journal()?;
        Ok(&self.place.part)
    }

    /// The complete bytes, in pieces.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        self.disk.read_at(&self.data, at, bytes).map_err(|e| StoreError::io(&self.place.part, "reading", e))
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }

    /// What an earlier run left. Whatever cannot be used is gone from the disk when this returns (rule 5).
    fn look(&mut self, urls: &[[u8; 32]]) -> Result<Found, StoreError> {
        let (len, _) =
            self.disk.len(&self.data).map_err(|e| StoreError::io(&self.place.part, "looking at it", e))?;
        let life = self.disk.life(&self.data);
        match Found::read(&self.disk, &self.place.journal, len, life, urls) {
            Ok(Found::Claims { header, synced, written }) => {
                self.url = header.url;
                (self.synced, self.dirty) = (synced.clone(), written.clone());
                let validator = match header.validator.clone() {
                    Mark::Etag(text) => Validator::Etag(text),
                    Mark::Date(text) => Validator::Date(text),
                };
                self.identity = Some(Identity { total: header.total, validator });
                self.total = Some(header.total);
                self.compact()?;
                Ok(Found::Claims { header, synced, written })
            }
            Ok(Found::Nothing) if len == 0 => Ok(Found::Nothing),
            Ok(Found::Nothing) => {
                self.restart()?;
                Ok(Found::Useless(StartOver::NoJournal))
            }
            Ok(found) => {
                self.restart()?;
                Ok(found)
            }
            Err(e) => Err(StoreError::io(&self.place.journal, "reading", e)),
        }
    }

    /// Whether the disk has room for what is not allocated yet.
    fn check_space(&self, total: u64) -> Result<(), StoreError> {
        // A file system that does not know its free space (zero blocks in all, as some in user space) is believed
        // to have enough; the write will tell.
        let (Ok((_, allocated)), Ok(free)) = (self.disk.len(&self.data), self.disk.free(&self.data)) else {
            return Ok(());
        };
        let need = total.saturating_sub(allocated);
        if need <= free {
            return Ok(());
        }
        let [need, free] = [need, free].map(DataSize::from_bytes);
        Err(StoreError::WillNotFit { path: self.place.path.clone(), need, free, on: self.place.dir.clone() })
    }

    /// Claims everything that has been put in place since the last time.
    fn record(&mut self) -> Result<(), StoreError> {
        let mut claims = [Record::Written { start: 0, end: 0 }; OPEN];
        let mut len = 0;
        for (slot, run) in claims.iter_mut().zip(self.runs.drain()) {
            *slot = Record::Written { start: run.start, end: run.end };
            self.dirty.insert(run);
            len += 1;
        }
        self.unrecorded = 0;
        if self.journal.is_none() && self.bytes >= JOURNAL_AFTER_BYTES {
            return self.begin();
        }
        self.append(&claims[..len])
    }

    /// Begins the journal, with all claims so far.
    fn begin(&mut self) -> Result<(), StoreError> {
        if self.journal.is_some() {
            return Ok(());
        }
        let Some((nonce, bytes)) = self.compacted() else { return Ok(()) };
        let made = self.disk.create(&self.place.journal).and_then(|file| {
            self.disk.write_at(&file, 0, &bytes)?;
            Ok(file)
        });
        let file = Arc::new(made.map_err(|e| StoreError::io(&self.place.journal, "writing", e))?);
        let len = bytes.len() as u64;
        self.journal = Some(Journal { file, nonce, len, compact: len, named: false });
        Ok(())
    }

    /// Writes the journal anew, as small as can be, and puts it in the place of the old one at once.
    fn compact(&mut self) -> Result<(), StoreError> {
        let Some((nonce, bytes)) = self.compacted() else { return Ok(()) };
        let (new, old) = (&self.place.new_journal, &self.place.journal);
        let made = self.disk.create(new).and_then(|file| {
            self.disk.write_at(&file, 0, &bytes)?;
            self.disk.sync(&file)?;
            self.disk.rename(new, old)?;
            Ok(file)
        });
        let file = Arc::new(made.map_err(|e| StoreError::io(new, "writing", e))?);
        let len = bytes.len() as u64;
        self.journal = Some(Journal { file, nonce, len, compact: len, named: false });
        Ok(())
    }

    /// A fresh nonce and the bytes of a journal that claims what is known now.
    fn compacted(&self) -> Option<(u64, Vec<u8>)> {
        let Identity { total, validator } = self.identity.as_ref()?;
        let life = self.disk.life(&self.data);
        let nonce = self.disk.nonce();
        let validator = match validator {
            Validator::Etag(text) => Mark::Etag(text.clone()),
            Validator::Date(text) => Mark::Date(text.clone()),
        };
        let mut bytes = Header { nonce, total: *total, url: self.url, life, validator }.emit();
        for Span { start, end } in self.synced.iter() {
            bytes.extend(Record::Synced { start, end }.emit(nonce));
        }
        for Span { start, end } in self.syncing.iter().chain(self.dirty.iter()) {
            bytes.extend(Record::Written { start, end }.emit(nonce));
        }
        Some((nonce, bytes))
    }

    /// Appends claims, if there is a journal.
    fn append(&mut self, claims: &[Record]) -> Result<(), StoreError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut bytes = [0; OPEN * RECORD_LEN];
        for batch in claims.chunks(OPEN) {
            for (slot, record) in bytes.as_chunks_mut().0.iter_mut().zip(batch) {
                *slot = record.emit(journal.nonce);
            }
            let bytes = &bytes[..batch.len() * RECORD_LEN];
            let wrote = self.disk.write_at(&journal.file, journal.len, bytes);
            wrote.map_err(|e| StoreError::io(&self.place.journal, "writing", e))?;
            journal.len += bytes.len() as u64;
        }
        Ok(())
    }

    /// Asks the disk to make sure of everything that is in place now.
    fn start_sync(&mut self, now: Instant) -> Result<(), StoreError> {
        self.last_sync = now;
        self.record()?;
        if self.dirty.is_empty() {
            return Ok(());
        }
        self.syncing = std::mem::take(&mut self.dirty);
        self.stage = Stage::Data;
        self.disk.start_sync(&self.data, None);
        Ok(())
    }

    /// Takes the disk's answer, if there is one.
    fn reap(&mut self, now: Instant) -> Result<(), StoreError> {
        if self.stage == Stage::Idle {
            return Ok(());
        }
        let Some(result) = self.disk.synced() else { return Ok(()) };
        match (std::mem::replace(&mut self.stage, Stage::Idle), result) {
            (Stage::Data, Ok(())) => {
                let safe = std::mem::take(&mut self.syncing);
                self.claim_synced(safe)?;
                self.compact_if_grown()?;
                let Some(journal) = &mut self.journal else { return Ok(()) };
                let dir = (!journal.named).then_some(self.place.dir.as_path());
                journal.named = true;
                self.stage = Stage::Journal;
                self.disk.start_sync(&journal.file, dir);
            }
            (Stage::Data, Err(e)) => return Err(self.sync_failed(e)),
            (Stage::Journal, Err(e)) => return Err(StoreError::Sync { path: self.place.journal.clone(), why: e }),
            (Stage::Journal, Ok(())) => self.last_sync = now,
            (Stage::Idle | Stage::Stale, _) => {}
        }
        Ok(())
    }

    /// Says that these bytes are on the disk, which they are.
    fn claim_synced(&mut self, safe: SpanSet) -> Result<(), StoreError> {
        let claims: Vec<_> = safe.iter().map(|Span { start, end }| Record::Synced { start, end }).collect();
        for span in safe.iter() {
            self.synced.insert(span);
        }
        self.append(&claims)
    }

    fn compact_if_grown(&mut self) -> Result<(), StoreError> {
        match &self.journal {
            Some(journal) if journal.len > COMPACT_ABOVE.max(4 * journal.compact) => self.compact(),
            _ => Ok(()),
        }
    }

    fn sync_data(&mut self) -> Result<(), StoreError> {
        let synced = self.disk.sync(&self.data);
        synced.map_err(|e| self.sync_failed(e))
    }

    /// Rule 4. What cannot be said to the disk any more is unsaid by removing the journal.
    fn sync_failed(&mut self, why: io::Error) -> StoreError {
        self.runs.clear();
        (self.dirty, self.syncing) = Default::default();
        if self.journal.is_some() && self.compact().is_err() {
            // Both errors have one cause, and the first one says it.
            let _ = self.forget_journal();
        }
        match StoreError::io(&self.place.part, "syncing", why) {
            StoreError::Io { path, why, .. } => StoreError::Sync { path, why },
            full => full,
        }
    }

    /// Rule 5: the journal is gone, on the disk too.
    fn forget_journal(&mut self) -> Result<(), StoreError> {
        self.journal = None;
        let Place { journal, new_journal, dir, .. } = &self.place;
        let gone = self.disk.remove(journal).and_then(|()| self.disk.remove(new_journal));
        let gone = gone.and_then(|()| self.disk.sync_dir(dir));
        gone.map_err(|e| StoreError::io(&self.place.journal, "removing", e))
    }
}

/// Opens the unfinished file and takes its lock.
fn lock<D: Disk>(disk: &D, place: &Place) -> Result<D::File, StoreError> {
    let failed = |e| StoreError::io(&place.part, "opening", e);
    loop {
        let file = disk.open(&place.part).map_err(failed)?;
        if !disk.lock(&file).map_err(failed)? {
            return Err(StoreError::Locked { path: place.path.clone(), part: place.part.clone() });
        }
        // Between our open and our lock its owner may have finished, and then this is the complete file.
        if disk.is_at(&file, &place.part).map_err(failed)? {
            return Ok(file);
        }
    }
}
