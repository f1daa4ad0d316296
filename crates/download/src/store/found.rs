//! What an earlier run left, and whether it can be believed.

use std::fmt;
use std::io;
use std::path::Path;

use marline_core::fetch::{ByteRange, RangeSet, Resume, UrlId};
use marline_core::units::DataSize;
use marline_core::wire::download_journal::{Header, HeaderError, PageCacheEpoch, Record, valid_records};

use super::disk::{Custody, Disk};
use super::log::of_mark;

/// A journal beyond this is not ours: the greatest real ones have a few mebibytes.
const JOURNAL_MAX: u64 = 64 << 20;

/// What was found beside the file.
#[derive(Debug)]
pub(super) enum Found {
    /// No journal.
    Nothing,
    /// A journal that can be believed.
    Claims {
        /// Which file it is about.
        header: Header,
        /// What is on the disk.
        synced: RangeSet,
        /// What is in the page cache, at least.
        written: RangeSet,
    },
    /// A journal that must not be believed.
    Useless(StartOver),
    /// A file whose bytes are not a journal's, not even a damaged one's.
    NoJournal,
    /// Something that is not ours. The text completes "…, and it is not marline's to overwrite".
    Foreign(&'static str),
}

/// Why an earlier run's bytes are not used, for one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartOver {
    /// It kept no journal: less than a second, or nothing to know the file by.
    NoJournal,
    /// It is of another URL.
    OtherUrl,
    /// It is of another unfinished file: one of the two was copied or replaced.
    OtherPart,
    /// It cannot be read, or is not this user's.
    Unreadable(HeaderError),
    /// There is no key to check it with.
    NoKey(String),
    /// Others could have written to the journal or the unfinished file.
    Shared(&'static str),
    /// It claims bytes that are not there: someone has changed one of the two files.
    Short {
        /// How far the claims reach.
        claimed: DataSize,
        /// How long the unfinished file is.
        len: DataSize,
    },
    /// It claims bytes that the file cannot have.
    TooLong,
}

impl fmt::Display for StartOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("starting from zero: ")?;
        match self {
            Self::NoJournal => f.write_str("the earlier run left no journal"),
            Self::OtherUrl => f.write_str("the earlier run's bytes are of another URL"),
            Self::OtherPart => {
                f.write_str("the earlier run's journal is of another unfinished file (removed, copied or replaced)")
            }
            Self::Unreadable(why) => write!(f, "the earlier run's journal cannot be used: {why}"),
            Self::NoKey(why) => write!(f, "the earlier run's journal cannot be checked: {why}"),
            Self::Shared(what) => write!(f, "the earlier run's file or journal is not trusted: {what}"),
            Self::Short { claimed, len } => {
                write!(f, "the earlier run's journal claims {claimed} where {len} are left")
            }
            Self::TooLong => f.write_str("the earlier run's journal claims more than the file has"),
        }
    }
}

impl StartOver {
    /// Whether it is said of an authentic journal of the unfinished file beside it, which proves that file to be ours.
    pub(super) fn proves_part(&self) -> bool {
        match self {
            Self::OtherUrl | Self::Short { .. } | Self::TooLong => true,
            Self::NoJournal | Self::OtherPart | Self::Unreadable(_) | Self::NoKey(_) | Self::Shared(_) => false,
        }
    }
}

/// What a journal is weighed against.
#[derive(Debug)]
pub(super) struct Present<'a> {
    /// Length of the unfinished file.
    pub(super) len: u64,
    /// Its identity.
    pub(super) part: [u8; 16],
    /// How long unsynced bytes last now.
    pub(super) life: PageCacheEpoch,
    /// Digests of our URLs.
    pub(super) urls: &'a [[u8; 32]],
}

impl Found {
    /// Reads a journal and weighs it against the present.
    pub(super) fn read<D: Disk>(disk: &D, journal: &Path, present: &Present<'_>) -> io::Result<Self> {
        let Some((bytes, custody)) = disk.read_all(journal, JOURNAL_MAX)? else { return Ok(Self::Nothing) };
        Ok(match custody {
            Custody::Foreign(what) => Self::Foreign(what),
            _ if !Header::is_remnant(&bytes) => Self::NoJournal,
            Custody::Shared(what) => Self::Useless(StartOver::Shared(what)),
            Custody::Own => match disk.key() {
                Ok(key) => Self::weigh(&bytes, &key.for_purpose(super::PURPOSE), present),
                Err(why) => Self::Useless(StartOver::NoKey(why.to_string())),
            },
        })
    }

    fn weigh(bytes: &[u8], key: &super::key::Key, present: &Present<'_>) -> Self {
        let mac = |bytes: &[u8]| key.mac(bytes);
        let (header, sealed, begin) = match Header::parse(bytes, mac) {
            Ok(parsed) => parsed,
            Err(why) => return Self::Useless(StartOver::Unreadable(why)),
        };
        if header.partial_file != present.part {
            return Self::Useless(StartOver::OtherPart);
        }
        if !present.urls.contains(&header.url_digest) {
            return Self::Useless(StartOver::OtherUrl);
        }
        let lasts = header.epoch.is_valid_in(&present.life);
        let (mut synced, mut written) = (RangeSet::default(), RangeSet::default());
        for record in valid_records(bytes.get(begin..).unwrap_or_default(), sealed, mac) {
            match record {
                Record::Synced { start, end } => drop(synced.insert(ByteRange::new(start, end))),
                Record::Written { start, end } if lasts => drop(written.insert(ByteRange::new(start, end))),
                Record::Written { .. } => {}
            }
        }
        let reach = |set: &RangeSet| set.iter().next_back().map_or(0, |span| span.end);
        let claimed = reach(&synced).max(reach(&written));
        if claimed > header.file_size {
            return Self::Useless(StartOver::TooLong);
        }
        if claimed > present.len {
            let [claimed, len] = [claimed, present.len].map(DataSize::from_bytes);
            return Self::Useless(StartOver::Short { claimed, len });
        }
        Self::Claims { header, synced, written }
    }

    /// For the machine, and for the user.
    /// `urls` are the sources, in the order of their numbers.
    pub(super) fn split(self, urls: &[[u8; 32]]) -> (Option<Resume>, Option<StartOver>) {
        match self {
            // What is foreign ends the opening with an error.
            Self::Nothing | Self::NoJournal | Self::Foreign(_) => (None, None),
            Self::Useless(why) => (None, Some(why)),
            Self::Claims { header, synced, written } => {
                let have: RangeSet = synced.iter().chain(written.iter()).collect();
                let (validator, _) = of_mark(&header.validator);
                let total = DataSize::from_bytes(header.file_size);
                let have = have.iter().collect();
                let source =
                    urls.iter().position(|url| *url == header.url_digest).and_then(|n| u16::try_from(n).ok());
                (Some(Resume { total, validator, ranges: have, mirror: source.map(UrlId) }), None)
            }
        }
    }
}
