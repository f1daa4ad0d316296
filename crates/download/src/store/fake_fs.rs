//! Model of the worst file system that POSIX allows, for tests.
//!
//! It keeps two states: what programs see, and what is on the disk. They differ by the writes, truncations and
//! renames that are not synced yet. When the power fails, each of these independently survives, is lost, or
//! survives in part: any bytes of a write may be missing, in whatever order the writes were made. Names behave in
//! the same way, except that a rename is atomic. The randomness comes from a seed, so each history can be repeated.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use marline_core::wire::download_journal::PageCacheEpoch;

use super::fs::{FileSystem, Ownership, SizeLimit};
use super::mac_key::{KeyError, MacKey};

/// A file system with simulated power failures. Clones share its state.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeFs {
    state: Rc<RefCell<FakeFsState>>,
}

/// An open file, identified by its index.
#[derive(Debug)]
pub(super) struct FileHandle(usize);

#[derive(Debug, Default)]
struct FakeFsState {
    files: Vec<FakeFile>,
    visible_names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    name_changes: Vec<(u64, NameChange)>,
    /// Counts changes, so that a sync knows which ones preceded it.
    clock: u64,
    boots: u8,
    nonces: u64,
    /// The background sync: the file, whether the directory is synced as well, and the clock at its start.
    pending_sync: Option<(usize, bool, u64)>,
    /// Bytes that may still be written; none: no limit.
    free_space: Option<u64>,
    /// The next sync fails.
    sync_fails: bool,
    rng: TestRng,
}

#[derive(Debug, Default)]
struct FakeFile {
    visible: Vec<u8>,
    durable: Vec<u8>,
    changes: Vec<(u64, DataChange)>,
    /// The mark of an unfinished file (an extended attribute), which is durable at once.
    marked: bool,
    /// The tag (the unique value of the mark) as programs see it, the tag on the disk, and the changes that are not synced yet.
    tag: Option<[u8; 16]>,
    durable_tag: Option<[u8; 16]>,
    tag_changes: Vec<(u64, [u8; 16])>,
}

#[derive(Clone, Debug)]
enum DataChange {
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
pub(super) struct TestRng(Cell<u64>);

impl Default for TestRng {
    fn default() -> Self {
        Self::new(1)
    }
}

impl TestRng {
    pub(super) fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1))
    }

    /// A random number below `end`; zero if `end` is zero.
    pub(super) fn next_below(&self, end: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % end.max(1)
    }
}

impl DataChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Truncate(len) => bytes.resize(*len, 0),
            Self::Write(at, new) => {
                bytes.resize(bytes.len().max(at + new.len()), 0);
                bytes[*at..at + new.len()].copy_from_slice(new);
            }
        }
    }

    /// Applies what a power failure leaves of this change.
    fn apply_partly(&self, bytes: &mut Vec<u8>, rng: &TestRng) {
        match (self, rng.next_below(5)) {
            (_, 0 | 1) => {}
            (_, 2) | (Self::Truncate(_), _) => self.apply(bytes),
            (Self::Write(at, new), 3) => {
                let (from, to) =
                    (rng.next_below(new.len() as u64) as usize, rng.next_below(new.len() as u64 + 1) as usize);
                if from < to {
                    Self::Write(at + from, new[from..to].to_vec()).apply(bytes);
                }
            }
            // The new length survives, the bytes do not.
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

impl FakeFsState {
    fn change(&mut self, file: usize, change: DataChange) {
        self.clock += 1;
        change.apply(&mut self.files[file].visible);
        self.files[file].changes.push((self.clock, change));
    }

    fn change_name(&mut self, change: NameChange) {
        self.clock += 1;
        change.apply(&mut self.visible_names);
        self.name_changes.push((self.clock, change));
    }

    /// Syncs the file's changes up to the clock value `until`.
    fn sync(&mut self, file: usize, until: u64) -> io::Result<()> {
        let fails = std::mem::take(&mut self.sync_fails);
        let stored = &mut self.files[file];
        let begun = stored.changes.partition_point(|(at, _)| *at <= until);
        for (_, change) in stored.changes.drain(..begun) {
            // A page that could not be written is marked clean by the kernel, and its contents are lost.
            if fails {
                change.apply_partly(&mut stored.durable, &self.rng)
            } else {
                change.apply(&mut stored.durable)
            }
        }
        let begun = stored.tag_changes.partition_point(|(at, _)| *at <= until);
        stored.durable_tag =
            stored.tag_changes.drain(..begun).next_back().map(|(_, tag)| tag).or(stored.durable_tag);
        if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    fn sync_names(&mut self, until: u64) {
        let begun = self.name_changes.partition_point(|(at, _)| *at <= until);
        for (_, change) in self.name_changes.drain(..begun) {
            change.apply(&mut self.durable_names);
        }
    }

    fn create_file(&mut self, path: &Path) -> usize {
        self.files.push(FakeFile::default());
        let file = self.files.len() - 1;
        self.change_name(NameChange::Set(path.to_owned(), file));
        file
    }
}

impl FakeFs {
    pub(super) fn new(seed: u64) -> Self {
        let fs = Self::default();
        fs.state.borrow_mut().rng = TestRng::new(seed);
        fs.state.borrow_mut().boots = 1;
        fs
    }

    /// The process is killed; the kernel and its page cache survive.
    pub(super) fn kill(&self) {
        self.state.borrow_mut().pending_sync = None;
    }

    /// The kernel drops the pages that it considers written.
    pub(super) fn drop_caches(&self) {
        for file in &mut self.state.borrow_mut().files {
            file.visible = file.durable.clone();
            file.changes.iter().for_each(|(_, change)| change.apply(&mut file.visible));
        }
    }

    /// The power fails: chance decides which unsynced changes survive.
    pub(super) fn cut_power(&self) {
        let state = &mut *self.state.borrow_mut();
        state.pending_sync = None;
        state.boots += 1;
        for file in &mut state.files {
            for (_, change) in file.changes.drain(..) {
                change.apply_partly(&mut file.durable, &state.rng);
            }
            file.visible = file.durable.clone();
            for (_, tag) in file.tag_changes.drain(..) {
                file.durable_tag = if state.rng.next_below(2) == 0 { Some(tag) } else { file.durable_tag };
            }
            file.tag = file.durable_tag;
        }
        for (_, change) in state.name_changes.drain(..) {
            if state.rng.next_below(2) == 0 {
                change.apply(&mut state.durable_names);
            }
        }
        state.visible_names = state.durable_names.clone();
    }

    /// Sets how many more bytes fit on the disk.
    pub(super) fn set_free_space(&self, free_space: Option<u64>) {
        self.state.borrow_mut().free_space = free_space;
    }

    pub(super) fn fail_next_sync(&self) {
        self.state.borrow_mut().sync_fails = true;
    }

    /// Cancels a failure that has not occurred yet.
    pub(super) fn stop_failing(&self) {
        self.state.borrow_mut().sync_fails = false;
    }

    /// Creates a complete file that existed before.
    pub(super) fn write_file(&self, path: &Path, bytes: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        let file = state.create_file(path);
        state.change(file, DataChange::Write(0, bytes.to_vec()));
        let now = state.clock;
        state.sync(file, now).unwrap();
        state.sync_names(now);
    }

    /// The contents that programs read under this path.
    pub(super) fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        state.visible_names.get(path).map(|file| state.files[*file].visible.clone())
    }

    /// All existing paths.
    pub(super) fn names(&self) -> Vec<PathBuf> {
        self.state.borrow().visible_names.keys().cloned().collect()
    }
}

impl FileSystem for FakeFs {
    type File = FileHandle;

    fn open(&self, path: &Path) -> io::Result<(FileHandle, bool)> {
        if let Some(handle) = self.state.borrow().visible_names.get(path) {
            return Ok((FileHandle(*handle), false));
        }
        let file = self.create(path)?;
        // The mark is part of the new file's inode, so both reach the disk together.
        self.set_mark(&file);
        Ok((file, true))
    }

    fn ownership(&self, _: &FileHandle) -> io::Result<Ownership> {
        Ok(Ownership::Private)
    }

    fn set_mark(&self, file: &FileHandle) -> bool {
        self.state.borrow_mut().files[file.0].marked = true;
        true
    }

    fn is_marked(&self, file: &FileHandle) -> bool {
        self.state.borrow().files[file.0].marked
    }

    fn set_tag(&self, file: &FileHandle) {
        let state = &mut *self.state.borrow_mut();
        state.clock += 1;
        state.nonces += 1;
        let tag = (u128::from(state.nonces) << 8).to_be_bytes();
        let stored = &mut state.files[file.0];
        stored.tag = Some(tag);
        stored.tag_changes.push((state.clock, tag));
    }

    fn file_id(&self, file: &FileHandle) -> [u8; 16] {
        self.state.borrow().files[file.0].tag.unwrap_or([255; 16])
    }

    fn finalize(&self, file: &FileHandle, _: &Path) {
        self.state.borrow_mut().files[file.0].marked = false;
    }

    fn user_key(&self) -> Result<MacKey, KeyError> {
        Ok(MacKey::from_bytes(b"the user of the model"))
    }

    fn create(&self, path: &Path) -> io::Result<FileHandle> {
        let state = &mut *self.state.borrow_mut();
        if state.visible_names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(FileHandle(state.create_file(path)))
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Option<(Vec<u8>, Ownership)>> {
        let mut bytes = self.bytes(path);
        if let Some(bytes) = &mut bytes {
            bytes.truncate(limit as usize);
        }
        Ok(bytes.map(|bytes| (bytes, Ownership::Private)))
    }

    fn lock(&self, _: &FileHandle) -> io::Result<bool> {
        Ok(true)
    }

    fn is_at_path(&self, file: &FileHandle, path: &Path) -> io::Result<bool> {
        Ok(self.state.borrow().visible_names.get(path) == Some(&file.0))
    }

    fn write_at(&self, file: &FileHandle, at: u64, bytes: &[u8]) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        let fits = state.free_space.map_or(bytes.len(), |free_space| bytes.len().min(free_space as usize));
        state.free_space = state.free_space.map(|free_space| free_space - fits as u64);
        if fits > 0 {
            state.change(file.0, DataChange::Write(at as usize, bytes[..fits].to_vec()));
        }
        if fits < bytes.len() { Err(rustix::io::Errno::NOSPC.into()) } else { Ok(()) }
    }

    fn read_at(&self, file: &FileHandle, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let state = self.state.borrow();
        let seen = state.files[file.0].visible.get(at as usize..).unwrap_or_default();
        let len = seen.len().min(bytes.len());
        bytes[..len].copy_from_slice(&seen[..len]);
        Ok(len)
    }

    fn len(&self, file: &FileHandle) -> io::Result<(u64, u64)> {
        let len = self.state.borrow().files[file.0].visible.len() as u64;
        Ok((len, len))
    }

    fn truncate(&self, file: &FileHandle, len: u64) -> io::Result<()> {
        self.state.borrow_mut().change(file.0, DataChange::Truncate(len as usize));
        Ok(())
    }

    fn sync(&self, file: &FileHandle) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        let now = state.clock;
        state.sync(file.0, now)
    }

    fn start_sync(&mut self, file: &Arc<FileHandle>, dir: Option<&Path>) {
        let state = &mut *self.state.borrow_mut();
        assert!(state.pending_sync.is_none(), "two syncs at once");
        state.pending_sync = Some((file.0, dir.is_some(), state.clock));
    }

    fn poll_sync(&mut self) -> Option<io::Result<()>> {
        let state = &mut *self.state.borrow_mut();
        if state.rng.next_below(2) == 0 {
            return None;
        }
        let (file, names, until) = state.pending_sync.take()?;
        if names {
            state.sync_names(until);
        }
        Some(state.sync(file, until))
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        let now = state.clock;
        state.sync_names(now);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        let file = *state.visible_names.get(from).ok_or(io::ErrorKind::NotFound)?;
        state.change_name(NameChange::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<bool> {
        if self.state.borrow().visible_names.contains_key(to) {
            return Ok(false);
        }
        self.rename(from, to).map(|()| true)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        if state.visible_names.contains_key(path) {
            state.change_name(NameChange::Remove(path.to_owned()));
        }
        Ok(())
    }

    fn page_cache_epoch(&self, _: &FileHandle) -> PageCacheEpoch {
        PageCacheEpoch { boot_id: [self.state.borrow().boots; 16], mount_namespace: 1, mount: 1 }
    }

    fn nonce(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        state.nonces += 1;
        state.nonces
    }

    fn preallocate(&self, _: &FileHandle, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, _: &FileHandle) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn size_limit(&self, _: &FileHandle, _: u64) -> Option<SizeLimit> {
        None
    }

    fn max_name_len(&self, _: &Path) -> usize {
        255
    }

    fn probe_name(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn supports_random_writes(&self, _: &FileHandle) -> bool {
        true
    }
}
