//! The journal file: creation, appending and replacement.
//!
//! Writes a header and records in the format of `core::wire::download_journal`, with MACs that use the user's key.
//! [`super::partial_file`] decides the order of these calls and those for the data.

use std::io;
use std::path::Path;
use std::sync::Arc;

use marline_core::fetch::{ByteRange, RangeSet, Validator};
use marline_core::wire::download_journal::{Header, Mac, RECORD_LEN, Record, StoredValidator};

use super::coalesce::MAX_RUNS;
use super::fs::FileSystem;
use super::mac_key::MacKey;
use super::paths::DownloadPaths;

/// A journal below this length is not compacted. Our choice: 32,000 records, which take a few milliseconds to read.
const MIN_COMPACTION_LEN: u64 = 1 << 20;

/// An open journal.
#[derive(Debug)]
pub(super) struct JournalFile<D: FileSystem> {
    pub(super) file: Arc<D::File>,
    key: MacKey,
    /// MAC of the header; it is part of each record's MAC, which ties the records to this journal.
    header_mac: Mac,
    /// Offset of the next record. It grows only after a successful write, so the next record overwrites a torn one.
    len: u64,
    /// Length after the last compaction.
    compacted_len: u64,
    /// Whether the directory entry is on the disk, or a sync of the directory is in progress.
    pub(super) is_dir_synced: bool,
}

/// What the recorded bytes belong to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JournalIdentity {
    pub(super) total: u64,
    pub(super) validator: Validator,
    /// SHA-256 of the URL, see [`super::digest::url_digest`].
    pub(super) url_digest: [u8; 32],
    /// Last-Modified beside a strong ETag. It decides nothing; only a change is reported to the user.
    pub(super) last_modified: Option<String>,
}

impl JournalIdentity {
    /// The identity from the header of a journal.
    pub(super) fn from_header(header: &Header) -> Self {
        let (validator, modified) = from_stored(&header.validator);
        Self { total: header.file_size, validator, url_digest: header.url_digest, last_modified: modified }
    }

    /// The validator as stored in the header. An ETag contains no line feed, so Last-Modified follows in the next
    /// line.
    fn stored_validator(&self) -> StoredValidator {
        match (&self.validator, &self.last_modified) {
            (Validator::Etag(etag), Some(date)) => StoredValidator::Etag(format!("{etag}\n{date}")),
            (Validator::Etag(etag), None) => StoredValidator::Etag(etag.clone()),
            (Validator::LastModified(text), _) => StoredValidator::LastModified(text.clone()),
        }
    }
}

/// The validator and the Last-Modified of a header.
pub(super) fn from_stored(stored: &StoredValidator) -> (Validator, Option<String>) {
    match stored {
        StoredValidator::Etag(text) => {
            let (etag, date) =
                text.split_once('\n').map_or((text.as_str(), None), |(etag, date)| (etag, Some(date)));
            (Validator::Etag(etag.to_owned()), date.map(str::to_owned))
        }
        StoredValidator::LastModified(text) => (Validator::LastModified(text.clone()), None),
    }
}

/// The stored bytes, by how durable they are. A byte may briefly be in two of the sets; then both are true.
#[derive(Debug, Default)]
pub(super) struct RecordedRanges {
    /// Written to the kernel, and possibly not on the disk.
    pub(super) dirty: RangeSet,
    /// Written to the kernel, and covered by the sync in progress.
    pub(super) syncing: RangeSet,
    /// On the disk.
    pub(super) synced: RangeSet,
}

impl RecordedRanges {
    /// All stored bytes.
    pub(super) fn all_written(&self) -> RangeSet {
        self.dirty.iter().chain(self.syncing.iter()).chain(self.synced.iter()).collect()
    }

    /// Moves everything to `synced`. Returns what was not in it before.
    pub(super) fn mark_all_synced(&mut self) -> RangeSet {
        let newly_synced: RangeSet = self.dirty.iter().chain(self.syncing.iter()).collect();
        *self = Self { synced: self.all_written(), ..Self::default() };
        newly_synced
    }

    /// The sync in progress has succeeded. Returns the bytes that it covered.
    pub(super) fn finish_sync(&mut self) -> RangeSet {
        let newly_synced = std::mem::take(&mut self.syncing);
        for span in newly_synced.iter() {
            self.synced.insert(span);
        }
        newly_synced
    }
}

impl<D: FileSystem> JournalFile<D> {
    /// Creates a journal under its name. Fails if the name is taken.
    pub(super) fn create(
        fs: &D,
        paths: &DownloadPaths,
        data: &D::File,
        identity_and_key: (&JournalIdentity, MacKey),
        ranges: &RecordedRanges,
    ) -> io::Result<Self> {
        Self::write_new(fs, &paths.journal, data, identity_and_key, ranges)
    }

    /// Writes a new journal, and replaces the old one atomically. After a crash there is either the old or the new
    /// one.
    pub(super) fn replace(
        fs: &D,
        paths: &DownloadPaths,
        data: &D::File,
        identity_and_key: (&JournalIdentity, MacKey),
        ranges: &RecordedRanges,
    ) -> io::Result<Self> {
        // An earlier attempt of this run may have failed half-way.
        fs.remove(&paths.new_journal)?;
        let journal = Self::write_new(fs, &paths.new_journal, data, identity_and_key, ranges)?;
        // The contents must be on the disk before the rename. Otherwise a crash could leave an empty journal under
        // the name.
        fs.sync(&journal.file)?;
        fs.rename(&paths.new_journal, &paths.journal)?;
        Ok(journal)
    }

    pub(super) fn append(&mut self, fs: &D, records: impl Iterator<Item = Record>) -> io::Result<()> {
        let mut bytes = [0; MAX_RUNS * RECORD_LEN];
        let mut records = records.peekable();
        while records.peek().is_some() {
            let mut len = 0;
            for (slot, record) in bytes.as_chunks_mut().0.iter_mut().zip(&mut records) {
                *slot = record.emit(&self.header_mac, |bytes| self.key.mac(bytes));
                len += RECORD_LEN;
            }
            fs.write_at(&self.file, self.len, bytes.get(..len).unwrap_or_default())?;
            self.len += len as u64;
        }
        Ok(())
    }

    /// Whether the journal has become much longer than its contents need.
    pub(super) fn needs_compaction(&self) -> bool {
        self.len > MIN_COMPACTION_LEN.max(4 * self.compacted_len)
    }

    fn write_new(
        fs: &D,
        path: &Path,
        data: &D::File,
        (identity, key): (&JournalIdentity, MacKey),
        ranges: &RecordedRanges,
    ) -> io::Result<Self> {
        let (nonce, epoch, part) = (fs.nonce(), fs.page_cache_epoch(data), fs.file_id(data));
        let validator = identity.stored_validator();
        let header = Header {
            nonce,
            file_size: identity.total,
            url_digest: identity.url_digest,
            epoch,
            partial_file: part,
            validator,
        };
        let mac = |bytes: &[u8]| key.mac(bytes);
        let (mut bytes, header) = header.emit(mac);
        for record in synced_records(&ranges.synced)
            .chain(written_records(&ranges.syncing))
            .chain(written_records(&ranges.dirty))
        {
            bytes.extend(record.emit(&header, mac));
        }
        let file = fs.create(path)?;
        fs.write_at(&file, 0, &bytes)?;
        let len = bytes.len() as u64;
        Ok(Self { file: Arc::new(file), key, header_mac: header, len, compacted_len: len, is_dir_synced: false })
    }
}

/// Records that these bytes were written to the kernel.
pub(super) fn written_records(ranges: &RangeSet) -> impl Iterator<Item = Record> + '_ {
    ranges.iter().map(|ByteRange { start, end }| Record::Written { start, end })
}

/// Records that these bytes are on the disk.
pub(super) fn synced_records(ranges: &RangeSet) -> impl Iterator<Item = Record> + '_ {
    ranges.iter().map(|ByteRange { start, end }| Record::Synced { start, end })
}
