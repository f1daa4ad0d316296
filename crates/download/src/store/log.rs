//! The journal's file: begun, appended to, written anew.
//!
//! In: what is known of the bytes. Out: records behind a header, in the format of `core::wire::journal`, authenticated
//! with the user's key. The order of these calls against the data's is [`super::part`]'s affair.

use std::io;
use std::path::Path;
use std::sync::Arc;

use marline_core::fetch::{ByteRange, RangeSet, Validator};
use marline_core::wire::download_journal::{Header, Mac, RECORD_LEN, Record, StoredValidator};

use super::disk::Disk;
use super::key::Key;
use super::place::Place;
use super::runs::OPEN;

/// A journal below this is never written anew on the way. Chosen: 32,000 records, a few milliseconds to read.
const COMPACT_ABOVE: u64 = 1 << 20;

/// A journal that is open.
#[derive(Debug)]
pub(super) struct Log<D: Disk> {
    pub(super) file: Arc<D::File>,
    key: Key,
    /// MAC of the header, which ties the records to it.
    header: Mac,
    /// Where the next record goes. It grows with each success, so a record that was torn is overwritten by the next.
    len: u64,
    /// Its length when it was written anew.
    compact: u64,
    /// Its name is on the disk, or a sync of the directory is under way.
    pub(super) named: bool,
}

/// What the bytes are of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) total: u64,
    pub(super) validator: Validator,
    /// Digest of the URL.
    pub(super) url: [u8; 32],
    /// Last-Modified beside a strong ETag. It decides nothing; that it has changed is told.
    pub(super) modified: Option<String>,
}

impl Identity {
    /// What a journal's header says the bytes are of.
    pub(super) fn of(header: &Header) -> Self {
        let (validator, modified) = of_mark(&header.validator);
        Self { total: header.file_size, validator, url: header.url_digest, modified }
    }

    /// An ETag has no line end in it, so the date stands in the line behind it.
    fn mark(&self) -> StoredValidator {
        match (&self.validator, &self.modified) {
            (Validator::Etag(tag), Some(date)) => StoredValidator::Etag(format!("{tag}\n{date}")),
            (Validator::Etag(tag), None) => StoredValidator::Etag(tag.clone()),
            (Validator::LastModified(text), _) => StoredValidator::LastModified(text.clone()),
        }
    }
}

/// The validator and the date of a header.
pub(super) fn of_mark(mark: &StoredValidator) -> (Validator, Option<String>) {
    match mark {
        StoredValidator::Etag(text) => {
            let (tag, date) = text.split_once('\n').map_or((text.as_str(), None), |(tag, date)| (tag, Some(date)));
            (Validator::Etag(tag.to_owned()), date.map(str::to_owned))
        }
        StoredValidator::LastModified(text) => (Validator::LastModified(text.clone()), None),
    }
}

/// What is in place; no byte is in two of the sets for long, and if it is, both are true.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Given to the kernel, and maybe not on the disk.
    pub(super) dirty: RangeSet,
    /// Given to the kernel, and being synced.
    pub(super) syncing: RangeSet,
    /// On the disk.
    pub(super) synced: RangeSet,
}

impl Claims {
    /// All bytes that are in place.
    pub(super) fn all(&self) -> RangeSet {
        self.dirty.iter().chain(self.syncing.iter()).chain(self.synced.iter()).collect()
    }

    /// Everything that is in place is on the disk now; tells what that was not known of.
    pub(super) fn all_synced(&mut self) -> RangeSet {
        let news: RangeSet = self.dirty.iter().chain(self.syncing.iter()).collect();
        *self = Self { synced: self.all(), ..Self::default() };
        news
    }

    /// What was being synced is on the disk now; tells what that was.
    pub(super) fn end_sync(&mut self) -> RangeSet {
        let news = std::mem::take(&mut self.syncing);
        for span in news.iter() {
            self.synced.insert(span);
        }
        news
    }
}

impl<D: Disk> Log<D> {
    /// Begins a journal under its name; an error if something has that name.
    pub(super) fn begin(
        disk: &D,
        place: &Place,
        data: &D::File,
        of: (&Identity, Key),
        claims: &Claims,
    ) -> io::Result<Self> {
        Self::make(disk, &place.journal, data, of, claims)
    }

    /// Writes a journal and puts it in the place of the old one at once; after a crash there is one or the other.
    pub(super) fn replace(
        disk: &D,
        place: &Place,
        data: &D::File,
        of: (&Identity, Key),
        claims: &Claims,
    ) -> io::Result<Self> {
        // An earlier try of this run may have failed half-way.
        disk.remove(&place.new_journal)?;
        let log = Self::make(disk, &place.new_journal, data, of, claims)?;
        disk.sync(&log.file)?;
        disk.rename(&place.new_journal, &place.journal)?;
        Ok(log)
    }

    /// Appends claims.
    pub(super) fn append(&mut self, disk: &D, claims: impl Iterator<Item = Record>) -> io::Result<()> {
        let mut bytes = [0; OPEN * RECORD_LEN];
        let mut claims = claims.peekable();
        while claims.peek().is_some() {
            let mut len = 0;
            for (slot, record) in bytes.as_chunks_mut().0.iter_mut().zip(&mut claims) {
                *slot = record.emit(&self.header, |bytes| self.key.mac(bytes));
                len += RECORD_LEN;
            }
            disk.write_at(&self.file, self.len, bytes.get(..len).unwrap_or_default())?;
            self.len += len as u64;
        }
        Ok(())
    }

    /// Whether most of it has been said twice.
    pub(super) fn grown(&self) -> bool {
        self.len > COMPACT_ABOVE.max(4 * self.compact)
    }

    fn make(
        disk: &D,
        path: &Path,
        data: &D::File,
        (identity, key): (&Identity, Key),
        claims: &Claims,
    ) -> io::Result<Self> {
        let (nonce, life, part) = (disk.nonce(), disk.life(data), disk.identity(data));
        let validator = identity.mark();
        let header = Header {
            nonce,
            file_size: identity.total,
            url_digest: identity.url,
            epoch: life,
            partial_file: part,
            validator,
        };
        let mac = |bytes: &[u8]| key.mac(bytes);
        let (mut bytes, header) = header.emit(mac);
        for record in synced(&claims.synced).chain(written(&claims.syncing)).chain(written(&claims.dirty)) {
            bytes.extend(record.emit(&header, mac));
        }
        let file = disk.create(path)?;
        disk.write_at(&file, 0, &bytes)?;
        let len = bytes.len() as u64;
        Ok(Self { file: Arc::new(file), key, header, len, compact: len, named: false })
    }
}

/// Claims that these bytes were given to the kernel.
pub(super) fn written(spans: &RangeSet) -> impl Iterator<Item = Record> + '_ {
    spans.iter().map(|ByteRange { start, end }| Record::Written { start, end })
}

/// Claims that these bytes are on the disk.
pub(super) fn synced(spans: &RangeSet) -> impl Iterator<Item = Record> + '_ {
    spans.iter().map(|ByteRange { start, end }| Record::Synced { start, end })
}
