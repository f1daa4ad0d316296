//! The journal's file: begun, appended to, written anew.
//!
//! In: what is known of the bytes. Out: records behind a header, in the format of `core::wire::journal`, authenticated
//! with the user's key. The order of these calls against the data's is [`super::part`]'s affair.

use std::io;
use std::path::Path;
use std::sync::Arc;

use marline_core::fetch::{ByteRange, RangeSet, Validator};
use marline_core::wire::download_journal::{Header, Mac, RECORD_LEN, Record, StoredValidator};

use super::coalesce::MAX_RUNS;
use super::fs::FileSystem;
use super::mac_key::MacKey;
use super::paths::DownloadPaths;

/// A journal below this is never written anew on the way. Chosen: 32,000 records, a few milliseconds to read.
const MIN_COMPACTION_LEN: u64 = 1 << 20;

/// A journal that is open.
#[derive(Debug)]
pub(super) struct JournalFile<D: FileSystem> {
    pub(super) file: Arc<D::File>,
    key: MacKey,
    /// MAC of the header, which ties the records to it.
    header_mac: Mac,
    /// Where the next record goes. It grows with each success, so a record that was torn is overwritten by the next.
    len: u64,
    /// Its length when it was written anew.
    compacted_len: u64,
    /// Its name is on the disk, or a sync of the directory is under way.
    pub(super) is_dir_synced: bool,
}

/// What the bytes are of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JournalIdentity {
    pub(super) total: u64,
    pub(super) validator: Validator,
    /// Digest of the URL.
    pub(super) url_digest: [u8; 32],
    /// Last-Modified beside a strong ETag. It decides nothing; that it has changed is told.
    pub(super) last_modified: Option<String>,
}

impl JournalIdentity {
    /// What a journal's header says the bytes are of.
    pub(super) fn from_header(header: &Header) -> Self {
        let (validator, modified) = from_stored(&header.validator);
        Self { total: header.file_size, validator, url_digest: header.url_digest, last_modified: modified }
    }

    /// An ETag has no line end in it, so the date stands in the line behind it.
    fn stored_validator(&self) -> StoredValidator {
        match (&self.validator, &self.last_modified) {
            (Validator::Etag(etag), Some(date)) => StoredValidator::Etag(format!("{etag}\n{date}")),
            (Validator::Etag(etag), None) => StoredValidator::Etag(etag.clone()),
            (Validator::LastModified(text), _) => StoredValidator::LastModified(text.clone()),
        }
    }
}

/// The validator and the date of a header.
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

/// What is in place; no byte is in two of the sets for long, and if it is, both are true.
#[derive(Debug, Default)]
pub(super) struct RecordedRanges {
    /// Given to the kernel, and maybe not on the disk.
    pub(super) dirty: RangeSet,
    /// Given to the kernel, and being synced.
    pub(super) syncing: RangeSet,
    /// On the disk.
    pub(super) synced: RangeSet,
}

impl RecordedRanges {
    /// All bytes that are in place.
    pub(super) fn all_written(&self) -> RangeSet {
        self.dirty.iter().chain(self.syncing.iter()).chain(self.synced.iter()).collect()
    }

    /// Everything that is in place is on the disk now; tells what that was not known of.
    pub(super) fn mark_all_synced(&mut self) -> RangeSet {
        let newly_synced: RangeSet = self.dirty.iter().chain(self.syncing.iter()).collect();
        *self = Self { synced: self.all_written(), ..Self::default() };
        newly_synced
    }

    /// What was being synced is on the disk now; tells what that was.
    pub(super) fn finish_sync(&mut self) -> RangeSet {
        let newly_synced = std::mem::take(&mut self.syncing);
        for span in newly_synced.iter() {
            self.synced.insert(span);
        }
        newly_synced
    }
}

impl<D: FileSystem> JournalFile<D> {
    /// Begins a journal under its name; an error if something has that name.
    pub(super) fn create(
        disk: &D,
        paths: &DownloadPaths,
        data: &D::File,
        identity_and_key: (&JournalIdentity, MacKey),
        ranges: &RecordedRanges,
    ) -> io::Result<Self> {
        Self::write_new(disk, &paths.journal, data, identity_and_key, ranges)
    }

    /// Writes a journal and puts it in the place of the old one at once; after a crash there is one or the other.
    pub(super) fn replace(
        disk: &D,
        paths: &DownloadPaths,
        data: &D::File,
        identity_and_key: (&JournalIdentity, MacKey),
        ranges: &RecordedRanges,
    ) -> io::Result<Self> {
        // An earlier try of this run may have failed half-way.
        disk.remove(&paths.new_journal)?;
        let log = Self::write_new(disk, &paths.new_journal, data, identity_and_key, ranges)?;
        disk.sync(&log.file)?;
        disk.rename(&paths.new_journal, &paths.journal)?;
        Ok(log)
    }

    /// Appends claims.
    pub(super) fn append(&mut self, disk: &D, records: impl Iterator<Item = Record>) -> io::Result<()> {
        let mut bytes = [0; MAX_RUNS * RECORD_LEN];
        let mut records = records.peekable();
        while records.peek().is_some() {
            let mut len = 0;
            for (slot, record) in bytes.as_chunks_mut().0.iter_mut().zip(&mut records) {
                *slot = record.emit(&self.header_mac, |bytes| self.key.mac(bytes));
                len += RECORD_LEN;
            }
            disk.write_at(&self.file, self.len, bytes.get(..len).unwrap_or_default())?;
            self.len += len as u64;
        }
        Ok(())
    }

    /// Whether most of it has been said twice.
    pub(super) fn needs_compaction(&self) -> bool {
        self.len > MIN_COMPACTION_LEN.max(4 * self.compacted_len)
    }

    fn write_new(
        disk: &D,
        path: &Path,
        data: &D::File,
        (identity, key): (&JournalIdentity, MacKey),
        ranges: &RecordedRanges,
    ) -> io::Result<Self> {
        let (nonce, epoch, part) = (disk.nonce(), disk.page_cache_epoch(data), disk.file_id(data));
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
        let file = disk.create(path)?;
        disk.write_at(&file, 0, &bytes)?;
        let len = bytes.len() as u64;
        Ok(Self { file: Arc::new(file), key, header_mac: header, len, compacted_len: len, is_dir_synced: false })
    }
}

/// Claims that these bytes were given to the kernel.
pub(super) fn written_records(ranges: &RangeSet) -> impl Iterator<Item = Record> + '_ {
    ranges.iter().map(|ByteRange { start, end }| Record::Written { start, end })
}

/// Claims that these bytes are on the disk.
pub(super) fn synced_records(ranges: &RangeSet) -> impl Iterator<Item = Record> + '_ {
    ranges.iter().map(|ByteRange { start, end }| Record::Synced { start, end })
}
