//! What the segments of one player teach of links, each of them too short to learn anything by itself.
//!
//! In: which links have something to bring, and what they bring, of each stream. Out: what the next stream may expect of
//! them, and which of them rest.
//!
//! 1. A link's rate is what came over it, by the time in which any stream of this player had something under way on it.
//! 2. The first second of that is slow start and counts for nothing; a link is known after two more.
//! 3. A link that rests rests for the next segment, too, until a stream wakes it.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::predict::Forecast;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Lines {
    links: BTreeMap<String, Line>,
    rests: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Line {
    /// Streams that have something under way on it.
    busy: BTreeSet<u64>,
    looked: Option<Instant>,
    settled: Duration,
    time: Duration,
    bytes: DataSize,
    course: Forecast,
}

impl Lines {
    /// The memory it takes up, in bytes.
    pub(super) fn size(&self) -> usize {
        let links = self.links.iter().map(|(name, line)| name.len() + size_of::<Line>() + line.busy.len() * 16);
        links.sum::<usize>() + self.rests.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>()
    }

    /// So much came over a link for a stream, which has something under way on it, or not.
    pub(super) fn moved(&mut self, now: Instant, stream: u64, link: &str, bytes: u64, busy: bool) {
        let line = self.links.entry(link.to_owned()).or_default();
        let time = line.looked.replace(now).map_or(Duration::ZERO, |looked| now.since(looked)).min(LOOKS);
        if !line.busy.is_empty() || bytes > 0 {
            line.time += time;
            line.bytes += DataSize::from_bytes(bytes);
        }
        if busy {
            line.busy.insert(stream)
        } else {
            line.busy.remove(&stream)
        };
        if line.time < Forecast::SAMPLE_INTERVAL {
            return;
        }
        let (bytes, time) = (std::mem::take(&mut line.bytes), std::mem::take(&mut line.time));
        if line.settled < SETTLES {
            line.settled += time;
        } else {
            line.course.add(bytes / time);
        }
    }

    /// A stream is over.
    pub(super) fn ended(&mut self, stream: u64) {
        for line in self.links.values_mut() {
            line.busy.remove(&stream);
        }
    }

    /// A stream lets a link rest, or wakes it.
    pub(super) fn rest(&mut self, link: &str, rests: bool) {
        if rests {
            self.rests.insert(link.to_owned())
        } else {
            self.rests.remove(link)
        };
    }

    /// All links work again.
    pub(super) fn wake(&mut self) {
        self.rests.clear();
    }

    /// Whether a link rests.
    pub(super) fn rests(&self, link: &str) -> bool {
        self.rests.contains(link)
    }

    /// What the next stream may expect of links: what they bring (zero: not known yet), and whether they rest.
    pub(super) fn expected(&self) -> Vec<(String, Bitrate, bool)> {
        let rate = |line: &Line| if line.course.steps() >= KNOWN { line.course.mean_rate() } else { Bitrate::ZERO };
        self.links.iter().map(|(name, line)| (name.clone(), rate(line), self.rests.contains(name))).collect()
    }
}

/// Streams are looked at as often as this at least.
const LOOKS: Duration = Duration::from_millis(250);
const SETTLES: Duration = Duration::from_secs(1);
const KNOWN: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_known_by_the_time_in_which_it_had_something_to_do() {
        let mut lines = Lines::default();
        let mut now = Instant::ZERO;
        // Segments of half a second every two seconds, two streams that overlap, 1 MB/s.
        for n in 0..12_u64 {
            for step in 0..20 {
                now += Duration::from_millis(100);
                let works = step < 5;
                lines.moved(now, n, "wifi", if works { 100_000 } else { 0 }, step < 4);
                lines.moved(now, n + 1, "wifi", 0, false);
            }
            lines.ended(n);
        }
        let expected = lines.expected();
        let [(name, rate, rests)] = &expected[..] else { panic!("{expected:?}") };
        assert_eq!((name.as_str(), *rests), ("wifi", false));
        assert!((7.5..10.1).contains(&rate.as_mbps_f64()), "{rate}");
        lines.rest("wifi", true);
        assert!(lines.rests("wifi") && lines.expected()[0].2);
        lines.wake();
        assert!(!lines.expected()[0].2);
    }

    #[test]
    fn what_was_seen_for_a_moment_is_not_known() {
        let mut lines = Lines::default();
        for n in 0..25 {
            lines.moved(Instant::from_millis(n * 100), 1, "wifi", 10_000, true);
        }
        assert_eq!(lines.expected(), [("wifi".to_owned(), Bitrate::ZERO, false)]);
    }
}
