//! Mahimahi traces: the times at which a recorded link could have sent a packet.
//!
//! A trace is a text file, plain or gzip, with one whole number of milliseconds per line.
//!
//! 1. Each line is one opportunity to send 1504 bytes (1500 bytes of IP, and the 4 bytes of the tunnel header that
//!    mahimahi counts). Equal lines are several opportunities in the same millisecond.
//! 2. Times never decrease. The last one is the length of the trace, after which the trace is repeated forever.
//! 3. A packet costs its IP length plus 4 bytes. It may use several opportunities, and an opportunity may carry
//!    several packets. Unused capacity is lost.
//!
//! A trace is not converted to a rate per second: the variation within a second is what fills and empties queues,
//! and the reason to use a trace.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

/// Capacity of one opportunity.
pub const OPPORTUNITY: DataSize = DataSize::from_bytes(1504);
/// Overhead of each packet in addition to its IP length.
pub const PACKET_HEADER: DataSize = DataSize::from_bytes(4);

/// Maximum number of opportunities: limits the memory that a wrong file can take. A day at 10 Mbit/s needs 72
/// million, an hour at 1 Gbit/s would need 300 million.
const MAX_OPPORTUNITIES: usize = 100_000_000;

/// Errors of reading a trace, with the file and the line.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("trace {}: {source}", file.display())]
    Unreadable {
        /// The trace file.
        file: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The text is not a valid trace.
    #[error("trace {}: line {line}: {problem}", file.display())]
    Malformed {
        /// The trace file.
        file: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// Description of the problem.
        problem: String,
    },
}

/// Sending opportunities of a recorded link, repeated forever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// In milliseconds and in order; at least one, and the last one is above zero.
    times: Vec<u32>,
}

impl Trace {
    /// Reads a file; one with a gzip header is decompressed.
    ///
    /// # Errors
    /// If the file cannot be read or is not a valid trace.
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

    /// Parses the text of a trace; empty lines are skipped.
    ///
    /// # Errors
    /// The line number, counted from 1, and the problem.
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
            None => Err((1, "the trace has no opportunity".to_string())),
            Some(0) => Err((1, "the last time is 0, so the trace has no length".to_string())),
            Some(_) => Ok(Self { times }),
        }
    }

    /// Length of one repetition.
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.length_millis())
    }

    /// Number of opportunities in one repetition.
    pub fn opportunities(&self) -> u64 {
        self.times.len() as u64
    }

    /// Mean rate of IP bytes if all packets are full (1500 of each 1504 bytes).
    pub fn mean_rate(&self) -> Bitrate {
        (OPPORTUNITY - PACKET_HEADER) * self.opportunities() / self.duration()
    }

    /// Time of an opportunity, counted from zero over all repetitions.
    pub fn opportunity_time(&self, index: u64) -> Instant {
        let repetition = index / self.opportunities();
        // The remainder is below the number of entries, so the index is valid and fits usize.
        let offset = self.times[(index % self.opportunities()) as usize];
        Instant::from_millis(repetition.saturating_mul(self.length_millis()).saturating_add(u64::from(offset)))
    }

    /// Number of opportunities before this time; also the index of the first one at or after it.
    pub fn count_before(&self, at: Instant) -> u64 {
        let millis = at.as_nanos().div_ceil(1_000_000);
        // In a trace that begins at 0, the first opportunity coincides with the last one of the previous
        // repetition.
        let repetition = millis.saturating_sub(1) / self.length_millis();
        let offset = millis - repetition * self.length_millis();
        repetition * self.opportunities() + self.times.partition_point(|t| u64::from(*t) < offset) as u64
    }

    /// TCP payload that the link carries in a period: 1448 bytes for each opportunity from `from` (inclusive) to
    /// `to` (exclusive), with full packets of 1500 bytes.
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
    fn counting_agrees_with_enumeration() {
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
    fn errors_name_the_line_and_the_problem() {
        for (text, line, part) in [
            ("", 1, "has no opportunity"),
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
