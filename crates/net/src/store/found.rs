//! What an earlier run left, and whether it can be believed.

use std::fmt;
use std::io;
use std::path::Path;

use marline_core::fetch::{Resume, Span, SpanSet, Validator};
use marline_core::units::DataSize;
use marline_core::wire::journal::{Header, HeaderError, Life, Mark, Record, records};

use super::disk::Disk;

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
        synced: SpanSet,
        /// What is in the page cache, at least.
        written: SpanSet,
    },
    /// A journal that must not be believed.
    Useless(StartOver),
}

/// Why an earlier run's bytes are not used, for one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartOver {
    /// It kept no journal: less than a second, or nothing to know the file by.
    NoJournal,
    /// It is of another URL.
    OtherUrl,
    /// It cannot be read.
    Unreadable(HeaderError),
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
            Self::Unreadable(why) => write!(f, "the earlier run's journal cannot be used: {why}"),
            Self::Short { claimed, len } => {
                write!(f, "the earlier run's journal claims {claimed} where {len} are left")
            }
            Self::TooLong => f.write_str("the earlier run's journal claims more than the file has"),
        }
    }
}

impl Found {
    /// Reads a journal and weighs it against the length of the unfinished file, the present life and our URLs.
    pub(super) fn read<D: Disk>(
        disk: &D,
        journal: &Path,
        len: u64,
        now: Life,
        urls: &[[u8; 32]],
    ) -> io::Result<Self> {
        let Some(bytes) = disk.read_all(journal, JOURNAL_MAX)? else { return Ok(Self::Nothing) };
        Ok(Self::weigh(&bytes, len, now, urls))
    }

    fn weigh(bytes: &[u8], len: u64, now: Life, urls: &[[u8; 32]]) -> Self {
        let (header, begin) = match Header::parse(bytes) {
            Ok(parsed) => parsed,
            Err(why) => return Self::Useless(StartOver::Unreadable(why)),
        };
        if !urls.contains(&header.url) {
            return Self::Useless(StartOver::OtherUrl);
        }
        let lasts = header.life.lasts(&now);
        let (mut synced, mut written) = (SpanSet::default(), SpanSet::default());
        for record in records(bytes.get(begin..).unwrap_or_default(), header.nonce) {
            match record {
                Record::Synced { start, end } => drop(synced.insert(Span::new(start, end))),
                Record::Written { start, end } if lasts => drop(written.insert(Span::new(start, end))),
                Record::Written { .. } => {}
            }
        }
        let reach = |set: &SpanSet| set.iter().next_back().map_or(0, |span| span.end);
        let claimed = reach(&synced).max(reach(&written));
        if claimed > header.total {
            return Self::Useless(StartOver::TooLong);
        }
        if claimed > len {
            let [claimed, len] = [claimed, len].map(DataSize::from_bytes);
            return Self::Useless(StartOver::Short { claimed, len });
        }
        Self::Claims { header, synced, written }
    }

    /// For the machine, and for the user.
    pub(super) fn split(self) -> (Option<Resume>, Option<StartOver>) {
        match self {
            Self::Nothing => (None, None),
            Self::Useless(why) => (None, Some(why)),
            Self::Claims { header, synced, written } => {
                let have: SpanSet = synced.iter().chain(written.iter()).collect();
                let validator = match header.validator {
                    Mark::Etag(text) => Validator::Etag(text),
                    Mark::Date(text) => Validator::Date(text),
                };
                let total = DataSize::from_bytes(header.total);
                (Some(Resume { total, validator, have: have.iter().collect() }), None)
            }
        }
    }
}
