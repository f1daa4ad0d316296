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
use super::disk::{Custody, Disk};
use super::found::{Found, Present, StartOver};
use super::key::Key;
use super::log::{self, Claims, Identity, Log};
use super::place::Place;
use super::runs::Runs;

/// Issue 2 B: no journal for what is fetched again in a moment.
const JOURNAL_AFTER_BYTES: u64 = 1_000_000;
/// The other half of the same rule.
const JOURNAL_AFTER: Duration = Duration::from_secs(1);
/// Chosen: a quarter of the 4 MiB that a kill may cost.
const UNRECORDED: u64 = 1 << 20;
/// Chosen: 32 bytes for each open run, four times a second, are nothing; a quarter of a second is quickly fetched.
const RECORD_EVERY: Duration = Duration::from_millis(250);
/// Chosen: what a power cut costs. Shorter would make slow disks write small pieces all the time.
const SYNC_EVERY: Duration = Duration::from_secs(3);

const NO_JOURNAL: &str = "a file with this name is there that is no journal of marline";

/// Chosen: half a second in all, which nobody minds before an error.
const LOCK_TRIES: u32 = 50;
/// Chosen: longer than most programs take from their fork to their exec.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// An unfinished file, locked.
#[derive(Debug)]
pub(super) struct Part<D: Disk> {
    disk: D,
    place: Place,
    data: Arc<D::File>,
    log: Option<Log<D>>,
    /// What the bytes are of, once that is known; nothing is claimed before.
    identity: Option<Identity>,
    total: Option<u64>,
    url: [u8; 32],
    runs: Runs,
    /// Bytes in `runs`.
    unrecorded: u64,
    /// Bytes put in place by this run.
    bytes: u64,
    claims: Claims,
    /// The bytes do not match their digest: no run goes on with them.
    distrusted: bool,
    stage: Stage,
    /// Our mark is on the file.
    markable: bool,
    /// Why no journal can be begun, to be told once.
    keyless: Keyless,
    first_byte: Option<Instant>,
    recorded: Instant,
    last_sync: Instant,
}

/// Whether this run could not have a key.
#[derive(Debug, Default)]
enum Keyless {
    #[default]
    No,
    /// Not yet told why.
    Why(String),
    Told,
}

/// What the disk is doing for us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    /// Syncing the data; `claims.syncing` is in it.
    Data,
    /// Syncing the journal that says so.
    Journal,
}

impl<D: Disk> Part<D> {
    /// Takes the lock and looks for what an earlier run left of any of these URLs (given as digests; the first one
    /// goes into a new journal).
    pub(super) fn open(disk: D, place: Place, urls: &[[u8; 32]]) -> Result<(Self, Found), StoreError> {
        let (data, shared) = lock(&disk, &place)?;
        let data = Arc::new(data);
        let mut part = Self {
            disk,
            place,
            data,
            log: None,
            identity: None,
            total: None,
            url: urls.first().copied().unwrap_or_default(),
            runs: Runs::new(),
            unrecorded: 0,
            bytes: 0,
            claims: Claims::default(),
            distrusted: false,
            stage: Stage::Idle,
            markable: false,
            keyless: Keyless::No,
            first_byte: None,
            recorded: Instant::ZERO,
            last_sync: Instant::ZERO,
        };
        match part.look(urls, shared) {
            Ok(found) => Ok((part, found)),
            Err(why) => {
                // What was made for nothing.
                if part.len().is_ok_and(|len| len == 0) && part.disk.is_marked(&part.data) {
                    let _ = part.disk.remove(&part.place.part);
                }
                Err(why)
            }
        }
    }

    /// The file is known. Makes sure that it fits on the disk, and from now on a journal may be kept.
    pub(super) fn identified(
        &mut self,
        total: Option<DataSize>,
        validator: Option<&Validator>,
    ) -> Result<(), StoreError> {
        self.total = total.map(DataSize::bytes);
        let short = |validator: &&Validator| validator.if_range_value().len() <= download_journal::VALIDATOR_MAX;
        let known = self.total.zip(validator.filter(short).cloned());
        let identity = known.map(|(total, validator)| Identity { total, validator, url: self.url, modified: None });
        let other = identity != self.identity;
        self.identity = identity;
        // The bytes stay: the caller has not thrown them away, so they are of this file, by whatever validator.
        match (&self.log, &self.identity) {
            (Some(_), None) => self.forget_journal()?,
            (Some(_), Some(_)) if other => self.compact()?,
            _ => {}
        }
        self.total.map_or(Ok(()), |total| self.take_room(total))
    }

    /// A response with this strong ETag has this date. Gives another one that an earlier run was told under the same ETag.
    pub(super) fn note_modified(&mut self, etag: &str, modified: &str) -> Result<Option<String>, StoreError> {
        let Some(identity) = &mut self.identity else { return Ok(None) };
        let is_of_it = matches!(&identity.validator, Validator::Etag(tag) if tag == etag);
        let is_short =
            etag.len() + 1 + modified.len() <= download_journal::VALIDATOR_MAX && !modified.contains('\n');
        if !is_of_it || !is_short || identity.modified.as_deref() == Some(modified) {
            return Ok(None);
        }
        let before = identity.modified.replace(modified.to_owned());
        if self.log.is_some() {
            self.compact()?;
        }
        Ok(before)
    }

    /// Puts bytes in their place.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let wrote = self.disk.write_at(&self.data, at, bytes);
        wrote.map_err(|e| StoreError::io(&self.place.part, "writing", e))?;
        let len = bytes.len() as u64;
        self.bytes += len;
        self.unrecorded += len;
        if let Some(run) = self.runs.add(ByteRange::at(at, DataSize::from_bytes(len))) {
            self.claims.dirty.insert(run);
            self.append([Record::Written { start: run.start, end: run.end }].into_iter())?;
        }
        let begins = self.log.is_none() && self.identity.is_some() && self.bytes >= JOURNAL_AFTER_BYTES;
        if begins || self.unrecorded >= UNRECORDED { self.record() } else { Ok(()) }
    }

    /// Keeps the cadence of claims and syncs.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), StoreError> {
        if self.bytes > 0 && self.first_byte.is_none() {
            (self.first_byte, self.recorded, self.last_sync) = (Some(now), now, now);
        }
        self.reap(now)?;
        let Some(first) = self.first_byte.filter(|_| self.identity.is_some()) else { return Ok(()) };
        if now - self.recorded >= RECORD_EVERY {
            self.recorded = now;
            self.record()?;
        }
        if self.log.is_none() && now - first >= JOURNAL_AFTER {
            self.record()?;
            self.begin()?;
        }
        if self.log.is_some() && self.stage == Stage::Idle && now - self.last_sync >= SYNC_EVERY {
            self.start_sync(now)?;
        }
        Ok(())
    }

    /// When [`Part::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.identity.as_ref()?;
        // Before the first tick with bytes there is no moment to count from; any moment will do.
        let Some(_) = self.first_byte else { return (self.bytes > 0).then_some(Instant::ZERO) };
        Some(self.recorded + RECORD_EVERY)
    }

    /// The file is another one now: nothing that is stored belongs to it.
    pub(super) fn restart(&mut self) -> Result<(), StoreError> {
        self.forget_journal()?;
        self.disk.truncate(&self.data, 0).map_err(|e| StoreError::io(&self.place.part, "emptying", e))?;
        self.runs.clear();
        (self.unrecorded, self.bytes, self.first_byte) = (0, 0, None);
        (self.identity, self.total) = (None, None);
        // A sync that is under way ends with nothing to claim.
        self.claims = Claims::default();
        self.distrusted = false;
        Ok(())
    }

    /// All bytes are there: makes sure of it, and of the disk. The file still has its unfinished name.
    pub(super) fn complete(&mut self) -> Result<(), StoreError> {
        self.whole()?;
        // Small files have no journal and are not waited for either: as with any other tool, the kernel writes them
        // back in its own time, and a fetch of the same kilobytes mends what a power failure takes.
        if self.log.is_some() { self.sync_data() } else { Ok(()) }
    }

    /// Makes sure that all bytes are there, and none beyond; tells how many.
    pub(super) fn whole(&mut self) -> Result<u64, StoreError> {
        // Into the sets only: the journal has nothing to say any more.
        for run in self.runs.drain() {
            self.claims.dirty.insert(run);
        }
        let len = self.len()?;
        let total = self.total.unwrap_or(len);
        let all = self.claims.all();
        if let Some(gap) = all.next_gap(0, total) {
            let (path, missing) = (self.place.path.clone(), all.missing_before(total));
            return Err(StoreError::Incomplete { path, missing, first: gap.start });
        }
        if len > total {
            self.disk.truncate(&self.data, total).map_err(|e| StoreError::io(&self.place.part, "cutting", e))?;
        }
        Ok(total)
    }

    /// Gives the complete file its name, and removes the journal.
    pub(super) fn publish(self) -> Result<PathBuf, StoreError> {
        let Self { disk, place, data, log, .. } = self;
        // Under the unfinished name another program may have put its own file meanwhile.
        if !disk.is_at(&data, &place.part).map_err(|e| StoreError::io(&place.part, "looking at it", e))? {
            return Err(StoreError::Replaced { path: place.path, part: place.part });
        }
        let path = place.publish(&disk).map_err(|e| StoreError::io(&place.path, "naming the complete file", e))?;
        // Not before: a run that is killed in between must find its file again.
        disk.release(&data, &place.dir);
        if log.is_some() {
            disk.remove(&place.journal).map_err(|e| StoreError::io(&place.journal, "removing", e))?;
            disk.sync_dir(&place.dir).map_err(|e| StoreError::io(&place.dir, "syncing the directory", e))?;
        }
        Ok(path)
    }

    /// The run ends early: what is there is synced and claimed. False if it cannot be resumed.
    pub(super) fn suspend(mut self) -> Result<bool, StoreError> {
        if self.distrusted {
            return Ok(false);
        }
        self.record()?;
        if self.claims.all().is_empty() {
            self.forget_journal()?;
            self.remove_part()?;
            return Ok(false);
        }
        self.begin()?;
        if self.log.is_none() {
            if !self.markable {
                self.remove_part()?;
            }
            return Ok(false);
        }
        self.sync_data()?;
        let news = self.claims.all_synced();
        self.append(log::synced(&news))?;
        let Some(log) = &self.log else { return Ok(false) };
        let synced = self.disk.sync(&log.file).and_then(|()| self.disk.sync_dir(&self.place.dir));
        synced.map_err(|e| StoreError::io(&self.place.journal, "syncing", e))?;
        Ok(true)
    }

    /// Removes the journal, so that the next run starts from zero; the bytes stay where they are, and that is told.
    pub(super) fn distrust(&mut self) -> Result<&Path, StoreError> {
        self.forget_journal()?;
        self.distrusted = true;
        Ok(&self.place.part)
    }

    /// Reads some bytes of the unfinished file; zero at its end.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        self.disk.read_at(&self.data, at, bytes).map_err(|e| StoreError::io(&self.place.part, "reading", e))
    }

    pub(super) fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }

    /// What is written from now on is of this URL. To be called while nothing is in place, or before everything is thrown
    /// away.
    pub(super) fn set_url(&mut self, url: [u8; 32]) {
        self.url = url;
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Another final name, and a line if it had to be adapted.
    pub(super) fn suggest(&mut self, name: &OsStr) -> Option<String> {
        self.place.suggest(&self.disk, name)
    }

    /// Whether the unfinished file takes writes at any offset. One that is not empty has taken them already.
    pub(super) fn takes_any_order(&self) -> bool {
        !self.claims.all().is_empty() || self.disk.takes_any_order(&self.data)
    }

    /// Leaves nothing, for another way to write the file.
    pub(super) fn give_way(self) -> Result<Place, StoreError> {
        self.remove_part()?;
        Ok(self.place)
    }

    /// What an earlier run left. Whatever cannot be used is gone from the disk when this returns (rule 5).
    fn look(&mut self, urls: &[[u8; 32]], shared: Option<&'static str>) -> Result<Found, StoreError> {
        self.remove_leftover()?;
        let (len, marked) = (self.len()?, self.disk.is_marked(&self.data));
        let life = self.disk.life(&self.data);
        let present = Present { len, part: self.disk.identity(&self.data), life, urls };
        let found = Found::read(&self.disk, &self.place.journal, &present);
        let found = found.map_err(|e| foreign(&self.place.journal, "reading", e))?;
        let found = match found {
            // Beside our own bytes it is our journal, damaged; beside none it may be anybody's.
            Found::NoJournal if len > 0 && marked => {
                Found::Useless(StartOver::Unreadable(HeaderError::NotAJournal))
            }
            Found::NoJournal => Found::Foreign(NO_JOURNAL),
            found => found,
        };
        if let Found::Foreign(what) = found {
            return Err(StoreError::Foreign { part: self.place.journal.clone(), what });
        }
        // The file that the journal was of is gone.
        let found = shared.map_or(found, |what| Found::Useless(StartOver::Shared(what)));
        // Rule 9. A file system without marks leaves only the journal to tell by.
        let by_journal = match &found {
            Found::Claims { .. } => true,
            Found::Useless(why) => why.proves_part(),
            Found::Nothing | Found::NoJournal | Found::Foreign(_) => false,
        };
        if len > 0 && !by_journal && !marked {
            let what =
                "a file with this name is there, and no journal of this user's is evidence that marline wrote it";
            return Err(StoreError::Foreign { part: self.place.part.clone(), what });
        }
        self.markable = self.disk.mark(&self.data);
        match found {
            Found::Claims { header, synced, written } => {
                self.url = header.url_digest;
                self.total = Some(header.file_size);
                self.identity = Some(Identity::of(&header));
                self.claims =
                    Claims { dirty: written.clone(), syncing: RangeSet::default(), synced: synced.clone() };
                self.compact()?;
                Ok(Found::Claims { header, synced, written })
            }
            Found::Nothing if len == 0 => Ok(Found::Nothing),
            Found::Nothing => self.restart().map(|()| Found::Useless(StartOver::NoJournal)),
            other => self.restart().map(|()| other),
        }
    }

    /// Whether the disk has room for what is not allocated yet; takes it where that is cheap. Small files pay nothing.
    fn take_room(&self, total: u64) -> Result<(), StoreError> {
        if let Some(limit) = self.disk.limit(&self.data, total) {
            let (path, total) = (self.place.path.clone(), DataSize::from_bytes(total));
            return Err(StoreError::TooLarge { path, total, why: limit.to_string() });
        }
        // Who cannot tell is believed to have enough; the write will show.
        let (Ok((_, allocated)), Ok(free)) = (self.disk.len(&self.data), self.disk.free(&self.data)) else {
            return Ok(());
        };
        let need = total.saturating_sub(allocated);
        if need <= free {
            let reserved = if total >= JOURNAL_AFTER_BYTES { self.disk.reserve(&self.data, total) } else { Ok(()) };
            return reserved.map_err(|e| StoreError::io(&self.place.part, "reserving room", e));
        }
        let [need, free] = [need, free].map(DataSize::from_bytes);
        Err(StoreError::WillNotFit { path: self.place.path.clone(), need, free, on: self.place.dir.clone() })
    }

    fn len(&self) -> Result<u64, StoreError> {
        let len = self.disk.len(&self.data).map_err(|e| StoreError::io(&self.place.part, "looking at it", e))?;
        Ok(len.0)
    }

    /// Claims everything that has been put in place since the last time.
    fn record(&mut self) -> Result<(), StoreError> {
        self.unrecorded = 0;
        let Self { runs, claims, log, disk, place, .. } = self;
        let drained = runs.drain().map(|run| {
            claims.dirty.insert(run);
            Record::Written { start: run.start, end: run.end }
        });
        match log {
            Some(log) => {
                log.append(disk, drained).map_err(|e| StoreError::io(&place.journal, "writing", e))?;
            }
            None => drained.for_each(drop),
        }
        if self.bytes >= JOURNAL_AFTER_BYTES { self.begin() } else { Ok(()) }
    }

    /// Begins the journal, with all claims so far, if there is none and the file can be resumed at all.
    fn begin(&mut self) -> Result<(), StoreError> {
        if self.log.is_some() {
            return Ok(());
        }
        let Some(of) = self.provable() else { return Ok(()) };
        // No journal that was ever written speaks of the bytes that are in the file now.
        self.disk.tag(&self.data);
        let log = Log::begin(&self.disk, &self.place, &self.data, (&of.0, of.1), &self.claims);
        self.log = Some(log.map_err(|e| foreign(&self.place.journal, "writing", e))?);
        Ok(())
    }

    /// Writes the journal anew, as small as can be.
    fn compact(&mut self) -> Result<(), StoreError> {
        let Some(of) = self.provable() else { return Ok(()) };
        let log = Log::replace(&self.disk, &self.place, &self.data, (&of.0, of.1), &self.claims);
        self.log = Some(log.map_err(|e| StoreError::io(&self.place.new_journal, "writing", e))?);
        Ok(())
    }

    /// What the bytes are of and the key to say so with; none: the file cannot be resumed.
    fn provable(&mut self) -> Option<(Identity, Key)> {
        let identity = self.identity.clone()?;
        match (self.disk.key(), &self.keyless) {
            (Ok(key), _) => Some((identity, key.for_purpose(super::PURPOSE))),
            (Err(why), Keyless::No) => {
                self.keyless = Keyless::Why(format!("the download cannot be resumed if it is interrupted: {why}"));
                None
            }
            (Err(_), _) => None,
        }
    }

    /// What the user should read of this file, once.
    pub(super) fn take_note(&mut self) -> Option<String> {
        match std::mem::replace(&mut self.keyless, Keyless::Told) {
            Keyless::Why(why) => Some(why),
            before => {
                self.keyless = before;
                None
            }
        }
    }

    /// Removes the unfinished file, unless something else has its name by now.
    fn remove_part(&self) -> Result<(), StoreError> {
        let part = &self.place.part;
        let ours = self.disk.is_at(&self.data, part);
        let gone = ours.and_then(|ours| if ours { self.disk.remove(part) } else { Ok(()) });
        gone.map_err(|e| StoreError::io(part, "removing", e))
    }

    /// A crash between the making of a journal and its renaming leaves this; it is never used.
    fn remove_leftover(&self) -> Result<(), StoreError> {
        let path = &self.place.new_journal;
        let left = self.disk.read_all(path, 8).map_err(|e| foreign(path, "reading", e))?;
        let what = match left {
            None => return Ok(()),
            Some((_, Custody::Foreign(what))) => what,
            Some((bytes, _)) if Header::is_remnant(&bytes) => {
                return self.disk.remove(path).map_err(|e| StoreError::io(path, "removing", e));
            }
            Some(_) => NO_JOURNAL,
        };
        Err(StoreError::Foreign { part: path.clone(), what })
    }

    /// Appends claims, if there is a journal.
    fn append(&mut self, claims: impl Iterator<Item = Record>) -> Result<(), StoreError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        log.append(&self.disk, claims).map_err(|e| StoreError::io(&self.place.journal, "writing", e))
    }

    /// Asks the disk to make sure of everything that is in place now.
    fn start_sync(&mut self, now: Instant) -> Result<(), StoreError> {
        self.last_sync = now;
        self.record()?;
        if !self.claims.dirty.is_empty() {
            self.claims.syncing = std::mem::take(&mut self.claims.dirty);
            self.stage = Stage::Data;
            self.disk.start_sync(&self.data, None);
        }
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
                let news = self.claims.end_sync();
                self.append(log::synced(&news))?;
                if self.log.as_ref().is_some_and(Log::grown) {
                    self.compact()?;
                }
                let Some(log) = &mut self.log else { return Ok(()) };
                let dir = (!std::mem::replace(&mut log.named, true)).then_some(self.place.dir.as_path());
                self.stage = Stage::Journal;
                self.disk.start_sync(&log.file, dir);
            }
            (Stage::Data, Err(e)) => return Err(self.sync_failed(e)),
            (Stage::Journal, Err(why)) => {
                return Err(StoreError::Sync { path: self.place.journal.clone(), why });
            }
            (Stage::Journal, Ok(())) => self.last_sync = now,
            (Stage::Idle, _) => {}
        }
        Ok(())
    }

    fn sync_data(&mut self) -> Result<(), StoreError> {
        let synced = self.disk.sync(&self.data);
        synced.map_err(|e| self.sync_failed(e))
    }

    /// Rule 4: what is not known to be on the disk is not claimed any more.
    fn sync_failed(&mut self, why: io::Error) -> StoreError {
        self.runs.clear();
        self.claims = Claims { synced: std::mem::take(&mut self.claims.synced), ..Claims::default() };
        if self.log.is_some() && self.compact().is_err() {
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
        self.log = None;
        let Place { journal, new_journal, dir, .. } = &self.place;
        let gone = self.disk.remove(journal).and_then(|()| self.disk.remove(new_journal));
        let gone = gone.and_then(|()| self.disk.sync_dir(dir));
        gone.map_err(|e| StoreError::io(journal, "removing", e))
    }
}

/// The error for a name that could not be opened: what stands there may be somebody else's.
fn foreign(path: &Path, doing: &'static str, why: io::Error) -> StoreError {
    let what = match Errno::from_io_error(&why) {
        Some(Errno::LOOP) => "a symbolic link with this name is there",
        Some(Errno::NXIO | Errno::ISDIR) => "something with this name is there that is no regular file",
        Some(Errno::EXIST) => "a file with this name has been put there meanwhile",
        // An encoding that the file system does not know, or a character that it does not take.
        Some(Errno::INVAL | Errno::ILSEQ) if doing == "opening" => {
            return StoreError::BadName { path: path.to_owned(), why };
        }
        _ => return StoreError::io(path, doing, why),
    };
    StoreError::Foreign { part: path.to_owned(), what }
}

/// Opens the unfinished file and takes its lock. Waits a moment for it: a lock lives on in a program that its owner is just
/// starting, up to the exec, and in an owner that was killed until the kernel has taken it down.
///
/// A file of ours that others could have written to is replaced by a new one, and the reason is returned (rule 10).
fn lock<D: Disk>(disk: &D, place: &Place) -> Result<(D::File, Option<&'static str>), StoreError> {
    let failed = |e| foreign(&place.part, "opening", e);
    let foreign = |what| Err(StoreError::Foreign { part: place.part.clone(), what });
    let (mut tries, mut shared) = (0, None);
    loop {
        let (file, made) = disk.open(&place.part).map_err(failed)?;
        let custody = if made { Custody::Own } else { disk.custody(&file).map_err(failed)? };
        // Before the lock, which its owner could hold for ever.
        match custody {
            Custody::Foreign(what) => return foreign(what),
            Custody::Shared(_) if !disk.is_marked(&file) => {
                return foreign("a file with this name is there that others can write to, or that has a hard link");
            }
            _ => {}
        }
        if !disk.lock(&file).map_err(failed)? {
            if tries == LOCK_TRIES {
                return Err(StoreError::Locked { path: place.path.clone(), part: place.part.clone() });
            }
            tries += 1;
            std::thread::sleep(LOCK_PAUSE);
            continue;
        }
        // Between our open and our lock its owner may have finished, and then this is the complete file.
        if !disk.is_at(&file, &place.part).map_err(failed)? {
            continue;
        }
        match custody {
            Custody::Shared(what) if shared.is_none() => {
                disk.remove(&place.part).map_err(failed)?;
                shared = Some(what);
            }
            // Again: somebody is faster than we are.
            Custody::Shared(what) => return foreign(what),
            _ => return Ok((file, shared)),
        }
    }
}
