//! Reads the state that an earlier run has left, and decides whether the new run can use it.

use std::fmt;
use std::io;
use std::path::Path;

use marline_core::fetch::{ByteRange, RangeSet, Resume, UrlId};
use marline_core::units::DataSize;
use marline_core::wire::download_journal::{Header, HeaderError, PageCacheEpoch, Record, valid_records};

use super::fs::{FileSystem, Ownership};
use super::journal_file::from_stored;

/// Maximum number of bytes that are read of a journal. The largest ones have a few mebibytes.
const MAX_JOURNAL_LEN: u64 = 64 << 20;

/// The state that an earlier run has left.
#[derive(Debug)]
pub(super) enum ExistingDownload {
    /// There is no journal.
    Absent,
    /// An authentic journal of this unfinished file and one of the URLs.
    Valid {
        /// Identifies the file that the journal describes.
        header: Header,
        /// Bytes that are on the disk.
        synced: RangeSet,
        /// Bytes that are at least in the page cache.
        written: RangeSet,
    },
    /// A journal that must not be used.
    Unusable(RestartReason),
    /// A file that is not a journal, not even a damaged one.
    NotAJournal,
    /// A file that is not marline's; the text names the problem.
    Foreign(&'static str),
}

/// Why the bytes of an earlier run are not used, as one line for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RestartReason {
    /// The run kept no journal: it was too short, the file had no size or validator, or there was no key.
    NoJournal,
    /// The journal belongs to another URL.
    OtherUrl,
    /// The journal is for another unfinished file: one of the two was copied or replaced.
    OtherPartialFile,
    /// The journal is damaged, or was not written with this user's key.
    Unreadable(HeaderError),
    /// There is no key to verify the journal with.
    NoKey(String),
    /// Other users could have written to the journal or the unfinished file.
    Untrusted(&'static str),
    /// The journal records bytes that the unfinished file does not have: one of the two was changed.
    Truncated {
        /// End of the recorded bytes.
        claimed: DataSize,
        /// Length of the unfinished file.
        len: DataSize,
    },
    /// The journal records bytes beyond the size of the file.
    BeyondTotal,
}

impl fmt::Display for RestartReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("starting from zero: ")?;
        match self {
            Self::NoJournal => f.write_str("the earlier run left no journal"),
            Self::OtherUrl => f.write_str("the earlier run's bytes belong to another URL"),
            Self::OtherPartialFile => {
                f.write_str("the earlier journal is for another unfinished file (removed, copied or replaced)")
            }
            Self::Unreadable(why) => write!(f, "the earlier run's journal cannot be used: {why}"),
            Self::NoKey(why) => write!(f, "the earlier run's journal cannot be checked: {why}"),
            Self::Untrusted(reason) => write!(f, "the earlier run's file or journal is not trusted: {reason}"),
            Self::Truncated { claimed, len } => {
                write!(f, "the earlier run's journal records {claimed}, but the file has only {len}")
            }
            Self::BeyondTotal => f.write_str("the earlier run's journal records more than the size of the file"),
        }
    }
}

impl RestartReason {
    /// Whether the reason implies an authentic journal of this unfinished file, which proves that the file is
    /// marline's.
    pub(super) fn proves_ownership(&self) -> bool {
        match self {
            Self::OtherUrl | Self::Truncated { .. } | Self::BeyondTotal => true,
            Self::NoJournal
            | Self::OtherPartialFile
            | Self::Unreadable(_)
            | Self::NoKey(_)
            | Self::Untrusted(_) => false,
        }
    }
}

/// Properties of the unfinished file and the download, with which the journal must agree.
#[derive(Debug)]
pub(super) struct ResumeContext<'a> {
    /// Length of the unfinished file.
    pub(super) len: u64,
    /// Identity of the unfinished file, see `FileSystem::file_id`.
    pub(super) part_id: [u8; 16],
    /// The present page-cache epoch.
    pub(super) epoch: PageCacheEpoch,
    /// Digests of the download's URLs.
    pub(super) url_digests: &'a [[u8; 32]],
}

impl ExistingDownload {
    /// Reads a journal and checks it against the unfinished file and the download.
    pub(super) fn read<D: FileSystem>(fs: &D, journal: &Path, context: &ResumeContext<'_>) -> io::Result<Self> {
        let Some((bytes, ownership)) = fs.read(journal, MAX_JOURNAL_LEN)? else { return Ok(Self::Absent) };
        Ok(match ownership {
            Ownership::Foreign(reason) => Self::Foreign(reason),
            _ if !Header::is_remnant(&bytes) => Self::NotAJournal,
            Ownership::Shared(reason) => Self::Unusable(RestartReason::Untrusted(reason)),
            Ownership::Private => match fs.user_key() {
                Ok(key) => Self::validate(&bytes, &key.for_purpose(super::KEY_PURPOSE), context),
                Err(why) => Self::Unusable(RestartReason::NoKey(why.to_string())),
            },
        })
    }

    fn validate(bytes: &[u8], key: &super::mac_key::MacKey, context: &ResumeContext<'_>) -> Self {
        let mac = |bytes: &[u8]| key.mac(bytes);
        let (header, header_mac, records_start) = match Header::parse(bytes, mac) {
            Ok(parsed) => parsed,
            Err(why) => return Self::Unusable(RestartReason::Unreadable(why)),
        };
        // The header is authentic. If it describes this unfinished file, the file is marline's, whatever else is
        // wrong (`proves_ownership`).
        if header.partial_file != context.part_id {
            return Self::Unusable(RestartReason::OtherPartialFile);
        }
        if !context.url_digests.contains(&header.url_digest) {
            return Self::Unusable(RestartReason::OtherUrl);
        }
        let is_same_epoch = header.epoch.is_valid_in(&context.epoch);
        let (mut synced, mut written) = (RangeSet::default(), RangeSet::default());
        for record in valid_records(bytes.get(records_start..).unwrap_or_default(), header_mac, mac) {
            match record {
                Record::Synced { start, end } => drop(synced.insert(ByteRange::new(start, end))),
                Record::Written { start, end } if is_same_epoch => drop(written.insert(ByteRange::new(start, end))),
                // Of another boot or mount: the page cache was lost, so only synced records hold.
                Record::Written { .. } => {}
            }
        }
        let end_of = |set: &RangeSet| set.iter().next_back().map_or(0, |span| span.end);
        let claimed = end_of(&synced).max(end_of(&written));
        if claimed > header.file_size {
            return Self::Unusable(RestartReason::BeyondTotal);
        }
        if claimed > context.len {
            let [claimed, len] = [claimed, context.len].map(DataSize::from_bytes);
            return Self::Unusable(RestartReason::Truncated { claimed, len });
        }
        Self::Valid { header, synced, written }
    }

    /// Converts the state into the machine's input, or a reason for the user. `urls` are the mirrors, in the order
    /// of their IDs.
    pub(super) fn into_resume(self, urls: &[[u8; 32]]) -> (Option<Resume>, Option<RestartReason>) {
        match self {
            // `Foreign` does not occur here: it ends the opening with an error.
            Self::Absent | Self::NotAJournal | Self::Foreign(_) => (None, None),
            Self::Unusable(why) => (None, Some(why)),
            Self::Valid { header, synced, written } => {
                let ranges: RangeSet = synced.iter().chain(written.iter()).collect();
                let (validator, _) = from_stored(&header.validator);
                let total = DataSize::from_bytes(header.file_size);
                let ranges = ranges.iter().collect();
                let source =
                    urls.iter().position(|url| *url == header.url_digest).and_then(|n| u16::try_from(n).ok());
                (Some(Resume { total, validator, ranges, mirror: source.map(UrlId) }), None)
            }
        }
    }
}
