//! Mahimahi traces: when a recorded link could have sent a packet.
//!
//! In: a text file, plain or gzip, one whole number of milliseconds per line. Out: a [`Trace`].
//!
//! 1. Each line is one opportunity to send 1504 bytes (an Ethernet frame of 1500 bytes of IP and the 4 bytes of the
//!    tunnel header that mahimahi counts); equal lines are several opportunities in the same millisecond.
//! 2. Times never decrease. The last one is the trace's length, and the trace begins anew there for ever.
//! 3. A packet costs its IP length plus 4 bytes. It may span opportunities, and an opportunity may carry several
//!    packets; what is not used when it comes is lost.
//!
//! Turning the trace into a rate per second was not done: the burstiness within a second is what fills and empties
//! queues, and it is the point of using a trace.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

/// What one opportunity carries.
pub const OPPORTUNITY: DataSize = DataSize::from_bytes(1504);
/// What each packet costs beside its IP length.
pub const PACKET_HEADER: DataSize = DataSize::from_bytes(4);

/// The longest trace that is read, in opportunities: an hour at 1 Gbit/s needs 300 million, a day at 10 Mbit/s 72
/// million. Bounds the memory that a wrong file can take.
const MAX_OPPORTUNITIES: usize = 100_000_000;

/// Why a trace cannot be used. Names the file and the line.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("trace {}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is no trace.
    #[error("trace {}: line {line}: {problem}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// The sending opportunities of a recorded link, repeated for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Milliseconds, in order, at least one; the last one is above zero.
    times: Vec<u32>,
}

impl Trace {
    /// Reads a file; one that begins as gzip is unpacked.
    ///
    /// # Errors
    /// When the file cannot be read or is no trace.
    pub fn read(file: &Path) -> Result<Self, TraceError> {
        let unreadable = |source| TraceError::Unreadable { file: file.to_path_buf(), source };
        let raw = fs::read(file).map_err(unreadable)?;
        let text = if raw.starts_with(&[0x1f, 0x8b]) {
            let mut text = String::new();
            GzDecoder::new(raw.as_slice()).read_to_string(&mut text).map_err(unreadable)?;
            text
        } else {
            String::from_utf8(raw)
                .map_err(|e| unreadable(std::io::Error::new(std::io::ErrorKind::InvalidData, e)))?
        };
        Self::parse(&text).map_err(|(line, problem)| TraceError::Malformed {
            file: file.to_path_buf(),
            line,
            problem,
        })
    }

    /// Reads the text of a trace. Empty lines are passed over.
    ///
    /// # Errors
    /// The line, from 1, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut times: Vec<u32> = Vec::new();
        for (line, entry) in text.lines().enumerate().map(|(n, l)| (n + 1, l.trim())) {
            if entry.is_empty() {
                continue;
            }
            let at = entry.parse().map_err(|_| {
                (line, format!("`{entry}` is not a whole number of milliseconds (at most 4294967295)"))
            })?;
            if times.last().is_some_and(|last| *last > at) {
                return Err((line, format!("{at} comes after a later time; times must not decrease")));
            }
            if times.len() == MAX_OPPORTUNITIES {
                return Err((line, format!("more than {MAX_OPPORTUNITIES} opportunities")));
            }
            times.push(at);
        }
        match times.last() {
            None => Err((1, "no opportunity at all".to_string())),
            Some(0) => Err((1, "the last time is 0, so the trace has no length".to_string())),
            Some(_) => Ok(Self { times }),
        }
    }

    /// After this the trace begins anew.
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.length_millis())
    }

    /// Opportunities in one round.
    pub fn opportunities(&self) -> u64 {
        self.times.len() as u64
    }

    /// The mean rate of IP bytes when all packets are full (1500 of each 1504 bytes).
    pub fn mean_rate(&self) -> Bitrate {
        (OPPORTUNITY - PACKET_HEADER) * self.opportunities() / self.duration()
    }

    /// The time of the k-th opportunity since the beginning, over all rounds.
    pub fn opportunity_time(&self, index: u64) -> Instant {
        let repetition = index / self.opportunities();
        // The remainder is below the number of entries, so the entry exists and fits usize.
        let offset = self.times[(index % self.opportunities()) as usize];
        Instant::from_millis(repetition.saturating_mul(self.length_millis()).saturating_add(u64::from(offset)))
    }

    /// How many opportunities come before this time: also the number of the first one at or after it.
    pub fn count_before(&self, at: Instant) -> u64 {
        let millis = at.as_nanos().div_ceil(1_000_000);
        // A trace that begins at 0 has its first opportunity where the round before has its last.
        let repetition = millis.saturating_sub(1) / self.length_millis();
        let offset = millis - repetition * self.length_millis();
        repetition * self.opportunities() + self.times.partition_point(|t| u64::from(*t) < offset) as u64
    }

    /// What the link carries for TCP in this part of time: 1448 bytes of payload for each opportunity from `from`
    /// (included) to `to` (excluded), with full packets of 1500 bytes.
    pub fn capacity(&self, from: Duration, to: Duration) -> DataSize {
        let count = |at: Duration| self.count_before(Instant::ZERO + at);
        DataSize::from_bytes(1448) * count(to).saturating_sub(count(from))
    }

    fn length_millis(&self) -> u64 {
        self.times.last().map_or(1, |last| u64::from(*last))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_trace_repeats_from_its_last_time() {
        let trace = Trace::parse("2\n5\n5\n10\n").unwrap();
        let times: Vec<u64> = (0..9).map(|k| trace.opportunity_time(k).as_nanos() / 1_000_000).collect();
        assert_eq!(times, [2, 5, 5, 10, 12, 15, 15, 20, 22]);
        assert_eq!(trace.duration(), Duration::from_millis(10));
        assert_eq!(trace.mean_rate(), DataSize::from_bytes(4 * 1500) / Duration::from_millis(10));
    }

    #[test]
    fn counting_agrees_with_a_walk() {
        for text in ["2\n5\n5\n10\n", "0\n0\n3\n", "1\n", "7\n7\n7\n"] {
            let trace = Trace::parse(text).unwrap();
            for half_millis in 0..100 {
                let at = Instant::from_nanos(half_millis * 500_000);
                let walked = (0..).take_while(|k| trace.opportunity_time(*k) < at).count() as u64;
                assert_eq!(trace.count_before(at), walked, "{text:?} at {at}");
            }
        }
    }

    #[test]
    fn capacity_is_payload_of_the_opportunities_between() {
        let trace = Trace::parse("2\n5\n5\n10\n").unwrap();
        let ms = Duration::from_millis;
        assert_eq!(trace.capacity(ms(0), ms(10)), DataSize::from_bytes(3 * 1448));
        assert_eq!(trace.capacity(ms(5), ms(12)), DataSize::from_bytes(3 * 1448));
        assert_eq!(trace.capacity(ms(12), ms(5)), DataSize::ZERO);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        for (text, line, part) in [
            ("", 1, "no opportunity"),
            ("0\n0\n", 1, "no length"),
            ("1\nx\n", 2, "`x`"),
            ("1\n-2\n", 2, "`-2`"),
            ("1\n2.5\n", 2, "`2.5`"),
            ("5\n\n3\n", 3, "must not decrease"),
            ("99999999999\n", 1, "whole number"),
        ] {
            let (at, problem) = Trace::parse(text).unwrap_err();
            assert_eq!(at, line, "{text:?}");
            assert!(problem.contains(part), "{problem}");
        }
    }

    #[test]
    fn gzip_is_read_like_plain_text() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("a.down");
        let packed = dir.path().join("a.down.gz");
        fs::write(&plain, "1\n2\n").unwrap();
        let mut gz = flate2::write::GzEncoder::new(fs::File::create(&packed).unwrap(), Default::default());
        gz.write_all(b"1\n2\n").unwrap();
        gz.finish().unwrap();
        assert_eq!(Trace::read(&plain).unwrap(), Trace::read(&packed).unwrap());
        let absent = Trace::read(&dir.path().join("b")).unwrap_err().to_string();
        assert!(absent.contains("/b: "), "{absent}");
        fs::write(&plain, "1\nx\n").unwrap();
        let wrong = Trace::read(&plain).unwrap_err().to_string();
        assert!(wrong.contains("a.down: line 2: `x`"), "{wrong}");
    }
}
