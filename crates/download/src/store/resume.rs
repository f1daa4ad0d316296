//! What an earlier run left, and whether it can be believed.

use std::fmt;
use std::io;
use std::path::Path;

use marline_core::fetch::{ByteRange, RangeSet, Resume, UrlId};
use marline_core::units::DataSize;
use marline_core::wire::download_journal::{Header, HeaderError, PageCacheEpoch, Record, valid_records};

use super::fs::{FileSystem, Ownership};
use super::journal_file::from_stored;

/// A journal beyond this is not ours: the greatest real ones have a few mebibytes.
const MAX_JOURNAL_LEN: u64 = 64 << 20;

/// What was found beside the file.
#[derive(Debug)]
pub(super) enum ExistingDownload {
    /// No journal.
    Absent,
    /// A journal that can be believed.
    Valid {
        /// Which file it is about.
        header: Header,
        /// What is on the disk.
        synced: RangeSet,
        /// What is in the page cache, at least.
        written: RangeSet,
    },
    /// A journal that must not be believed.
    Unusable(RestartReason),
    /// A file whose bytes are not a journal's, not even a damaged one's.
    NotAJournal,
    /// Something that is not ours. The text completes "…, and it is not marline's to overwrite".
    Foreign(&'static str),
}

/// Why an earlier run's bytes are not used, for one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RestartReason {
    /// It kept no journal: less than a second, or nothing to know the file by.
    NoJournal,
    /// It is of another URL.
    OtherUrl,
    /// It is of another unfinished file: one of the two was copied or replaced.
    OtherPartialFile,
    /// It cannot be read, or is not this user's.
    Unreadable(HeaderError),
    /// There is no key to check it with.
    NoKey(String),
    /// Others could have written to the journal or the unfinished file.
    Untrusted(&'static str),
    /// It claims bytes that are not there: someone has changed one of the two files.
    Truncated {
        /// How far the claims reach.
        claimed: DataSize,
        /// How long the unfinished file is.
        len: DataSize,
    },
    /// It claims bytes that the file cannot have.
    BeyondTotal,
}

impl fmt::Display for RestartReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("starting from zero: ")?;
        match self {
            Self::NoJournal => f.write_str("the earlier run left no journal"),
            Self::OtherUrl => f.write_str("the earlier run's bytes are of another URL"),
            Self::OtherPartialFile => {
                f.write_str("the earlier run's journal is of another unfinished file (removed, copied or replaced)")
            }
            Self::Unreadable(why) => write!(f, "the earlier run's journal cannot be used: {why}"),
            Self::NoKey(why) => write!(f, "the earlier run's journal cannot be checked: {why}"),
            Self::Untrusted(what) => write!(f, "the earlier run's file or journal is not trusted: {what}"),
            Self::Truncated { claimed, len } => {
                write!(f, "the earlier run's journal claims {claimed} where {len} are left")
            }
            Self::BeyondTotal => f.write_str("the earlier run's journal claims more than the file has"),
        }
    }
}

impl RestartReason {
    /// Whether it is said of an authentic journal of the unfinished file beside it, which proves that file to be ours.
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

/// What a journal is weighed against.
#[derive(Debug)]
pub(super) struct ResumeContext<'a> {
    /// Length of the unfinished file.
    pub(super) len: u64,
    /// Its identity.
    pub(super) part_id: [u8; 16],
    /// How long unsynced bytes last now.
    pub(super) epoch: PageCacheEpoch,
    /// Digests of our URLs.
    pub(super) url_digests: &'a [[u8; 32]],
}

impl ExistingDownload {
    /// Reads a journal and weighs it against the present.
    pub(super) fn read<D: FileSystem>(disk: &D, journal: &Path, present: &ResumeContext<'_>) -> io::Result<Self> {
        let Some((bytes, custody)) = disk.read(journal, MAX_JOURNAL_LEN)? else { return Ok(Self::Absent) };
        Ok(match custody {
            Ownership::Foreign(what) => Self::Foreign(what),
            _ if !Header::is_remnant(&bytes) => Self::NotAJournal,
            Ownership::Shared(what) => Self::Unusable(RestartReason::Untrusted(what)),
            Ownership::Private => match disk.user_key() {
                Ok(key) => Self::validate(&bytes, &key.for_purpose(super::KEY_PURPOSE), present),
                Err(why) => Self::Unusable(RestartReason::NoKey(why.to_string())),
            },
        })
    }

    fn validate(bytes: &[u8], key: &super::mac_key::MacKey, present: &ResumeContext<'_>) -> Self {
        let mac = |bytes: &[u8]| key.mac(bytes);
        let (header, header_mac, records_start) = match Header::parse(bytes, mac) {
            Ok(parsed) => parsed,
            Err(why) => return Self::Unusable(RestartReason::Unreadable(why)),
        };
        if header.partial_file != present.part_id {
            return Self::Unusable(RestartReason::OtherPartialFile);
        }
        if !present.url_digests.contains(&header.url_digest) {
            return Self::Unusable(RestartReason::OtherUrl);
        }
        let is_same_epoch = header.epoch.is_valid_in(&present.epoch);
        let (mut synced, mut written) = (RangeSet::default(), RangeSet::default());
        for record in valid_records(bytes.get(records_start..).unwrap_or_default(), header_mac, mac) {
            match record {
                Record::Synced { start, end } => drop(synced.insert(ByteRange::new(start, end))),
                Record::Written { start, end } if is_same_epoch => drop(written.insert(ByteRange::new(start, end))),
                Record::Written { .. } => {}
            }
        }
        let end_of = |set: &RangeSet| set.iter().next_back().map_or(0, |span| span.end);
        let claimed = end_of(&synced).max(end_of(&written));
        if claimed > header.file_size {
            return Self::Unusable(RestartReason::BeyondTotal);
        }
        if claimed > present.len {
            let [claimed, len] = [claimed, present.len].map(DataSize::from_bytes);
            return Self::Unusable(RestartReason::Truncated { claimed, len });
        }
        Self::Valid { header, synced, written }
    }

    /// For the machine, and for the user.
    /// `urls` are the sources, in the order of their numbers.
    pub(super) fn into_resume(self, urls: &[[u8; 32]]) -> (Option<Resume>, Option<RestartReason>) {
        match self {
            // What is foreign ends the opening with an error.
            Self::Absent | Self::NotAJournal | Self::Foreign(_) => (None, None),
            Self::Unusable(why) => (None, Some(why)),
            Self::Valid { header, synced, written } => {
                let held: RangeSet = synced.iter().chain(written.iter()).collect();
                let (validator, _) = from_stored(&header.validator);
                let total = DataSize::from_bytes(header.file_size);
                let held = held.iter().collect();
                let source =
                    urls.iter().position(|url| *url == header.url_digest).and_then(|n| u16::try_from(n).ok());
                (Some(Resume { total, validator, ranges: held, mirror: source.map(UrlId) }), None)
            }
        }
    }
}
