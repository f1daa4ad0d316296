//! The worst file system that POSIX allows, for tests.
//!
//! It keeps two states: what programs see, and what the disk has. In between lie the writes, cuts and renames that
//! were not synced yet. When the power fails, each of them, on its own, happens, does not happen, or happens in part:
//! any bytes of a write may be missing, whichever order they were made in. Names behave the same way, except that a
//! rename is never half done. Randomness comes from a seed, so each history can be had again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use marline_core::wire::download_journal::PageCacheEpoch;

use super::disk::{Custody, Disk, Limit};
use super::key::{Key, KeyError};

/// A file system that can lose its power. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    world: Rc<RefCell<World>>,
}

/// A file, by its number.
#[derive(Debug)]
pub(super) struct Handle(usize);

#[derive(Debug, Default)]
struct World {
    files: Vec<Stored>,
    names: BTreeMap<PathBuf, usize>,
    disk_names: BTreeMap<PathBuf, usize>,
    name_changes: Vec<(u64, NameChange)>,
    /// Counts changes, so that a sync knows which came before it.
    clock: u64,
    boots: u8,
    nonces: u64,
    /// A sync that runs beside the program: the file, whether the directory too, and when it began.
    running: Option<(usize, bool, u64)>,
    /// Bytes that may still be written; none: no limit.
    room: Option<u64>,
    /// The next sync fails.
    sync_fails: bool,
    dice: Dice,
}

#[derive(Debug, Default)]
struct Stored {
    seen: Vec<u8>,
    disk: Vec<u8>,
    changes: Vec<(u64, Change)>,
    marked: bool,
    /// The tag as programs see it, on the disk, and on its way there.
    tag: Option<[u8; 16]>,
    disk_tag: Option<[u8; 16]>,
    tags: Vec<(u64, [u8; 16])>,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(PathBuf, usize),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, usize),
}

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators" (2016).
#[derive(Debug)]
pub(super) struct Dice(Cell<u64>);

impl Default for Dice {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1))
    }

    /// A number below `end`; zero if there is none.
    pub(super) fn below(&self, end: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % end.max(1)
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Truncate(len) => bytes.resize(*len, 0),
            Self::Write(at, new) => {
                bytes.resize(bytes.len().max(at + new.len()), 0);
                bytes[*at..at + new.len()].copy_from_slice(new);
            }
        }
    }

    /// What the disk may have of it after a power cut.
    fn survive(&self, bytes: &mut Vec<u8>, dice: &Dice) {
        match (self, dice.below(5)) {
            (_, 0 | 1) => {}
            (_, 2) | (Self::Truncate(_), _) => self.apply(bytes),
            (Self::Write(at, new), 3) => {
                let (from, to) = (dice.below(new.len() as u64) as usize, dice.below(new.len() as u64 + 1) as usize);
                if from < to {
                    Self::Write(at + from, new[from..to].to_vec()).apply(bytes);
                }
            }
            // The length made it, the bytes did not.
            (Self::Write(at, new), _) => bytes.resize(bytes.len().max(at + new.len()), 0),
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Set(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Remove(path) => drop(names.remove(path)),
            Self::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
        }
    }
}

impl World {
    fn change(&mut self, file: usize, change: Change) {
        self.clock += 1;
        change.apply(&mut self.files[file].seen);
        self.files[file].changes.push((self.clock, change));
    }

    fn change_name(&mut self, change: NameChange) {
        self.clock += 1;
        change.apply(&mut self.names);
        self.name_changes.push((self.clock, change));
    }

    fn sync(&mut self, file: usize, until: u64) -> io::Result<()> {
        let fails = std::mem::take(&mut self.sync_fails);
        let stored = &mut self.files[file];
        let begun = stored.changes.partition_point(|(at, _)| *at <= until);
        for (_, change) in stored.changes.drain(..begun) {
            // A page that could not be written is clean for the kernel, and lost.
            if fails { change.survive(&mut stored.disk, &self.dice) } else { change.apply(&mut stored.disk) }
        }
        let begun = stored.tags.partition_point(|(at, _)| *at <= until);
        stored.disk_tag = stored.tags.drain(..begun).next_back().map(|(_, tag)| tag).or(stored.disk_tag);
        if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    fn sync_names(&mut self, until: u64) {
        let begun = self.name_changes.partition_point(|(at, _)| *at <= until);
        for (_, change) in self.name_changes.drain(..begun) {
            change.apply(&mut self.disk_names);
        }
    }

    fn make(&mut self, path: &Path) -> usize {
        self.files.push(Stored::default());
        let file = self.files.len() - 1;
        self.change_name(NameChange::Set(path.to_owned(), file));
        file
    }
}

impl Model {
    pub(super) fn new(seed: u64) -> Self {
        let model = Self::default();
        model.world.borrow_mut().dice = Dice::new(seed);
        model.world.borrow_mut().boots = 1;
        model
    }

    /// The process is gone; the kernel lives.
    pub(super) fn kill(&self) {
        self.world.borrow_mut().running = None;
    }

    /// The kernel forgets the pages that it believes to be on the disk.
    pub(super) fn drop_caches(&self) {
        for file in &mut self.world.borrow_mut().files {
            file.seen = file.disk.clone();
            file.changes.iter().for_each(|(_, change)| change.apply(&mut file.seen));
        }
    }

    /// The power is gone, and what was not synced is at the mercy of the dice.
    pub(super) fn cut_power(&self) {
        let world = &mut *self.world.borrow_mut();
        world.running = None;
        world.boots += 1;
        for file in &mut world.files {
            for (_, change) in file.changes.drain(..) {
                change.survive(&mut file.disk, &world.dice);
            }
            file.seen = file.disk.clone();
            for (_, tag) in file.tags.drain(..) {
                file.disk_tag = if world.dice.below(2) == 0 { Some(tag) } else { file.disk_tag };
            }
            file.tag = file.disk_tag;
        }
        for (_, change) in world.name_changes.drain(..) {
            if world.dice.below(2) == 0 {
                change.apply(&mut world.disk_names);
            }
        }
        world.names = world.disk_names.clone();
    }

    /// The disk is full after so many more bytes.
    pub(super) fn set_room(&self, room: Option<u64>) {
        self.world.borrow_mut().room = room;
    }

    pub(super) fn fail_next_sync(&self) {
        self.world.borrow_mut().sync_fails = true;
    }

    /// If that failure is still to come, it does not.
    pub(super) fn stop_failing(&self) {
        self.world.borrow_mut().sync_fails = false;
    }

    /// A complete file that was there before.
    pub(super) fn put(&self, path: &Path, bytes: &[u8]) {
        let world = &mut *self.world.borrow_mut();
        let file = world.make(path);
        world.change(file, Change::Write(0, bytes.to_vec()));
        let now = world.clock;
        world.sync(file, now).unwrap();
        world.sync_names(now);
    }

    /// What programs read under this name.
    pub(super) fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let world = self.world.borrow();
        world.names.get(path).map(|file| world.files[*file].seen.clone())
    }

    /// Every name there is.
    pub(super) fn names(&self) -> Vec<PathBuf> {
        self.world.borrow().names.keys().cloned().collect()
    }
}

impl Disk for Model {
    type File = Handle;

    fn open(&self, path: &Path) -> io::Result<(Handle, bool)> {
        if let Some(there) = self.world.borrow().names.get(path) {
            return Ok((Handle(*there), false));
        }
        let file = self.create(path)?;
        // The mark is a part of the new file's inode: one is not on the disk without the other.
        self.mark(&file);
        Ok((file, true))
    }

    fn custody(&self, _: &Handle) -> io::Result<Custody> {
        Ok(Custody::Own)
    }

    fn mark(&self, file: &Handle) -> bool {
        self.world.borrow_mut().files[file.0].marked = true;
        true
    }

    fn is_marked(&self, file: &Handle) -> bool {
        self.world.borrow().files[file.0].marked
    }

    fn tag(&self, file: &Handle) {
        let world = &mut *self.world.borrow_mut();
        world.clock += 1;
        world.nonces += 1;
        let tag = (u128::from(world.nonces) << 8).to_be_bytes();
        let stored = &mut world.files[file.0];
        stored.tag = Some(tag);
        stored.tags.push((world.clock, tag));
    }

    fn identity(&self, file: &Handle) -> [u8; 16] {
        self.world.borrow().files[file.0].tag.unwrap_or([255; 16])
    }

    fn release(&self, file: &Handle, _: &Path) {
        self.world.borrow_mut().files[file.0].marked = false;
    }

    fn key(&self) -> Result<Key, KeyError> {
        Ok(Key::from_bytes(b"the user of the model"))
    }

    fn create(&self, path: &Path) -> io::Result<Handle> {
        let world = &mut *self.world.borrow_mut();
        if world.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(Handle(world.make(path)))
    }

    fn read_all(&self, path: &Path, limit: u64) -> io::Result<Option<(Vec<u8>, Custody)>> {
        let mut bytes = self.bytes(path);
        if let Some(bytes) = &mut bytes {
            bytes.truncate(limit as usize);
        }
        Ok(bytes.map(|bytes| (bytes, Custody::Own)))
    }

    fn lock(&self, _: &Handle) -> io::Result<bool> {
        Ok(true)
    }

    fn is_at(&self, file: &Handle, path: &Path) -> io::Result<bool> {
        Ok(self.world.borrow().names.get(path) == Some(&file.0))
    }

    fn write_at(&self, file: &Handle, at: u64, bytes: &[u8]) -> io::Result<()> {
        let world = &mut *self.world.borrow_mut();
        let fits = world.room.map_or(bytes.len(), |room| bytes.len().min(room as usize));
        world.room = world.room.map(|room| room - fits as u64);
        if fits > 0 {
            world.change(file.0, Change::Write(at as usize, bytes[..fits].to_vec()));
        }
        if fits < bytes.len() { Err(rustix::io::Errno::NOSPC.into()) } else { Ok(()) }
    }

    fn read_at(&self, file: &Handle, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let world = self.world.borrow();
        let seen = world.files[file.0].seen.get(at as usize..).unwrap_or_default();
        let len = seen.len().min(bytes.len());
        bytes[..len].copy_from_slice(&seen[..len]);
        Ok(len)
    }

    fn len(&self, file: &Handle) -> io::Result<(u64, u64)> {
        let len = self.world.borrow().files[file.0].seen.len() as u64;
        Ok((len, len))
    }

    fn truncate(&self, file: &Handle, len: u64) -> io::Result<()> {
        self.world.borrow_mut().change(file.0, Change::Truncate(len as usize));
        Ok(())
    }

    fn sync(&self, file: &Handle) -> io::Result<()> {
        let world = &mut *self.world.borrow_mut();
        let now = world.clock;
        world.sync(file.0, now)
    }

    fn start_sync(&mut self, file: &Arc<Handle>, dir: Option<&Path>) {
        let world = &mut *self.world.borrow_mut();
        assert!(world.running.is_none(), "two syncs at once");
        world.running = Some((file.0, dir.is_some(), world.clock));
    }

    fn synced(&mut self) -> Option<io::Result<()>> {
        let world = &mut *self.world.borrow_mut();
        if world.dice.below(2) == 0 {
            return None;
        }
        let (file, names, until) = world.running.take()?;
        if names {
            world.sync_names(until);
        }
        Some(world.sync(file, until))
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let world = &mut *self.world.borrow_mut();
        let now = world.clock;
        world.sync_names(now);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let world = &mut *self.world.borrow_mut();
        let file = *world.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        world.change_name(NameChange::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<bool> {
        if self.world.borrow().names.contains_key(to) {
            return Ok(false);
        }
        self.rename(from, to).map(|()| true)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let world = &mut *self.world.borrow_mut();
        if world.names.contains_key(path) {
            world.change_name(NameChange::Remove(path.to_owned()));
        }
        Ok(())
    }

    fn life(&self, _: &Handle) -> PageCacheEpoch {
        PageCacheEpoch { boot_id: [self.world.borrow().boots; 16], mount_namespace: 1, mount: 1 }
    }

    fn nonce(&self) -> u64 {
        let world = &mut *self.world.borrow_mut();
        world.nonces += 1;
        world.nonces
    }

    fn reserve(&self, _: &Handle, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn free(&self, _: &Handle) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn limit(&self, _: &Handle, _: u64) -> Option<Limit> {
        None
    }

    fn longest_name(&self, _: &Path) -> usize {
        255
    }

    fn try_name(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn takes_any_order(&self, _: &Handle) -> bool {
        true
    }
}
