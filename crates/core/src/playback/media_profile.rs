//! Decoding curve of a video: how many of its bytes are decoded by which media time.
//!
//! The profile is built from a bit rate and a duration, or from segments of any length with their sizes. It gives D(s)
//! (the bytes decoded by media time s), its inverse, and whether a given arrival rate keeps up with playback.
//!
//! 1. Within a segment the rate is constant, so the curve is piecewise linear and strictly increasing. A segment
//!    without bytes or without time (a container's header) is merged with the next one, at the end with the previous
//!    one.
//! 2. [`MediaProfile::bytes_at`] rounds down, [`MediaProfile::time_at`] rounds up: `time_at(n)` is the first nanosecond
//!    by which n bytes are decoded.
//!
//! A mean rate with a variance would not suffice: stalls depend on where in the file the segments with a high bit rate
//! are.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{Bitrate, DataSize};

/// The decoding curve of a video. It has at least one byte and one nanosecond.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Segment>", into = "Vec<Segment>")]
pub struct MediaProfile {
    /// Ends of the segments: nanoseconds and bytes since the start, both strictly increasing.
    segment_ends: Vec<(u64, u64)>,
}

/// Duration and size of one segment, as decision logs hold them.
type Segment = (Duration, DataSize);

/// Error: the segments do not describe a video.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// The segments contain no bytes or no time.
    #[error("a video needs at least one byte and some time")]
    Empty,
    /// The segments add up to more than 584 years or 2^64 bytes.
    #[error("a video of more than 584 years or 16 exbibytes")]
    TooLong,
}

/// Result of comparing arrival times with decoding times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timing {
    /// No byte is late. The value is the smallest margin before a deadline.
    InTime(Duration),
    /// Some byte is late. The value is the largest delay after a deadline.
    Late(Duration),
}

impl MediaProfile {
    /// A constant bit rate: `rate × duration` bytes, rounded down.
    ///
    /// # Errors
    /// If that is less than one byte, or more than a `u64` holds.
    pub fn constant(rate: Bitrate, duration: Duration) -> Result<Self, ProfileError> {
        Self::variable([(duration, rate * duration)])
    }

    /// Segments in playback order, each with its duration and its size.
    ///
    /// # Errors
    /// If they contain no bytes or no time, or more than a `u64` holds.
    pub fn variable(segments: impl IntoIterator<Item = Segment>) -> Result<Self, ProfileError> {
        let mut ends: Vec<(u64, u64)> = Vec::new();
        let (mut time, mut bytes) = (0_u64, 0_u64);
        for (duration, size) in segments {
            let nanos = u64::try_from(duration.as_nanos()).map_err(|_| ProfileError::TooLong)?;
            time = time.checked_add(nanos).ok_or(ProfileError::TooLong)?;
            bytes = bytes.checked_add(size.bytes()).ok_or(ProfileError::TooLong)?;
            let (last_time, last_bytes) = ends.last().copied().unwrap_or_default();
            if time > last_time && bytes > last_bytes {
                ends.push((time, bytes));
            }
        }
        match ends.last_mut() {
            Some(last) => *last = (time, bytes),
            None => return Err(ProfileError::Empty),
        }
        Ok(Self { segment_ends: ends })
    }

    /// Total duration of the video.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.segment_ends.last().map_or(0, |(time, _)| *time))
    }

    /// Total size of the video: L.
    pub fn size(&self) -> DataSize {
        DataSize::from_bytes(self.segment_ends.last().map_or(0, |(_, bytes)| *bytes))
    }

    /// The mean bit rate: Q.
    pub fn mean_rate(&self) -> Bitrate {
        self.size() / self.duration()
    }

    /// Bytes decoded after playing for `time`, rounded down.
    pub fn bytes_at(&self, time: Duration) -> u64 {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let at = self.segment_ends.partition_point(|(end, _)| *end <= nanos);
        let Some((end, end_bytes)) = self.segment_ends.get(at) else { return self.size().bytes() };
        let (start, before) = self.segment_start(at);
        before + scale(nanos - start, end_bytes - before, end - start, Rounding::Down)
    }

    /// How long it takes to play the first `bytes` bytes, rounded up. Beyond the size it is the total duration.
    pub fn time_at(&self, bytes: u64) -> Duration {
        let at = self.segment_ends.partition_point(|(_, end_bytes)| *end_bytes < bytes);
        let Some((end, end_bytes)) = self.segment_ends.get(at) else { return self.duration() };
        let (start, before) = self.segment_start(at);
        let into = bytes.saturating_sub(before);
        Duration::from_nanos(start + scale(into, end - start, end_bytes - before, Rounding::Up))
    }

    /// Whether every byte from `from` on arrives in time if the bytes arrive at `rate` from now on while the video is
    /// played from `position`.
    ///
    /// The straight line of arrivals can cross the decoding curve only at the end of a segment, so only those points
    /// and `from` are checked. At rate zero everything is late forever, unless nothing is missing.
    pub fn timing_at_rate(&self, from: u64, rate: Bitrate, position: Duration) -> Timing {
        let first = (self.time_at(from), Duration::ZERO);
        let ends = self.segment_ends.iter().filter(|(_, bytes)| *bytes > from);
        let later_segments =
            ends.map(|(time, bytes)| (Duration::from_nanos(*time), DataSize::from_bytes(bytes - from) / rate));
        let mut tightest = Timing::InTime(Duration::MAX);
        for (needed, arrival) in core::iter::once(first).chain(later_segments) {
            let timing = match (needed.saturating_sub(position), position.saturating_sub(needed)) {
                (left, Duration::ZERO) if arrival <= left => Timing::InTime(left - arrival),
                (left, overdue) => Timing::Late(arrival.saturating_add(overdue).saturating_sub(left)),
            };
            tightest = tightest.worse_of(timing);
        }
        tightest
    }

    /// Start time and first byte of the segment with index `at`.
    fn segment_start(&self, at: usize) -> (u64, u64) {
        at.checked_sub(1).and_then(|before| self.segment_ends.get(before)).copied().unwrap_or_default()
    }
}

impl Timing {
    /// Whether no byte is late.
    pub const fn is_in_time(self) -> bool {
        matches!(self, Self::InTime(_))
    }

    fn worse_of(self, other: Self) -> Self {
        match (self, other) {
            (Self::InTime(a), Self::InTime(b)) => Self::InTime(a.min(b)),
            (Self::Late(a), Self::Late(b)) => Self::Late(a.max(b)),
            (late @ Self::Late(_), _) | (_, late) => late,
        }
    }
}

impl TryFrom<Vec<Segment>> for MediaProfile {
    type Error = ProfileError;
    fn try_from(pieces: Vec<Segment>) -> Result<Self, ProfileError> {
        Self::variable(pieces)
    }
}

impl From<MediaProfile> for Vec<Segment> {
    fn from(profile: MediaProfile) -> Self {
        let ends = profile.segment_ends.iter().enumerate();
        let piece = |(at, (time, bytes)): (usize, &(u64, u64))| {
            let (start, before) = profile.segment_start(at);
            (Duration::from_nanos(time - start), DataSize::from_bytes(bytes - before))
        };
        ends.map(piece).collect()
    }
}

enum Rounding {
    Down,
    Up,
}

/// `part × total / denominator` without overflow. `part <= denominator`, so the result fits.
fn scale(part: u64, total: u64, denominator: u64, rounding: Rounding) -> u64 {
    let (product, denominator) = (u128::from(part) * u128::from(total), u128::from(denominator.max(1)));
    let scaled = match rounding {
        Rounding::Down => product / denominator,
        Rounding::Up => product.div_ceil(denominator),
    };
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn bytes(n: u64) -> DataSize {
        DataSize::from_bytes(n)
    }

    #[test]
    fn at_a_constant_rate_byte_k_is_due_at_k_divided_by_q() {
        // 8 Mbit/s is one byte per microsecond.
        let video = MediaProfile::constant(Bitrate::from_mbps(8), secs(10)).unwrap();
        assert_eq!(video.size(), bytes(10_000_000));
        assert_eq!(video.time_at(0), Duration::ZERO);
        assert_eq!(video.time_at(2_500_000), Duration::from_millis(2500));
        assert_eq!(video.bytes_at(Duration::from_nanos(2_500_999)), 2500);
        assert_eq!((video.time_at(u64::MAX), video.bytes_at(Duration::MAX)), (secs(10), 10_000_000));
    }

    #[test]
    fn a_variable_rate_is_piecewise_constant() {
        let video =
            MediaProfile::variable([(secs(2), bytes(100)), (secs(1), bytes(400)), (secs(4), bytes(100))]).unwrap();
        assert_eq!(video.time_at(50), secs(1));
        assert_eq!(video.time_at(300), Duration::from_millis(2500));
        assert_eq!(video.time_at(501), Duration::from_millis(3040));
        assert_eq!(video.bytes_at(secs(5)), 550);
        assert_eq!(video.mean_rate(), bytes(600) / secs(7));
    }

    #[test]
    fn segments_without_time_or_bytes_are_merged_with_a_neighbor() {
        let plain = MediaProfile::variable([(secs(3), bytes(150)), (secs(2), bytes(80))]).unwrap();
        let head = (Duration::ZERO, bytes(50));
        let gap = (secs(1), DataSize::ZERO);
        let tail = (Duration::ZERO, bytes(30));
        let parts = [head, (secs(3), bytes(100)), gap, (secs(1), bytes(50)), tail];
        assert_eq!(MediaProfile::variable(parts), Ok(plain));
        assert_eq!(MediaProfile::variable([head]), Err(ProfileError::Empty));
        assert_eq!(MediaProfile::variable([gap]), Err(ProfileError::Empty));
        assert_eq!(MediaProfile::variable([(Duration::MAX, bytes(1))]), Err(ProfileError::TooLong));
    }

    #[test]
    fn a_profile_survives_conversion_to_segments_and_back() {
        let video = MediaProfile::variable([(secs(2), bytes(100)), (secs(1), bytes(400))]).unwrap();
        assert_eq!(MediaProfile::try_from(Vec::from(video.clone())), Ok(video));
    }

    #[test]
    fn a_rate_keeps_up_if_it_sustains_the_segment_with_the_highest_bit_rate() {
        let video = MediaProfile::variable([(secs(10), bytes(1000)), (secs(10), bytes(3000))]).unwrap();
        let rate = |per_second| bytes(per_second) / secs(1);
        // 100 bytes per second for ten seconds, then 300: at 200 the last byte arrives just in time.
        assert_eq!(video.timing_at_rate(0, rate(200), Duration::ZERO), Timing::InTime(Duration::ZERO));
        assert_eq!(video.timing_at_rate(0, rate(160), Duration::ZERO), Timing::Late(secs(5)));
        // With 600 bytes arrived after 2 s of playback (400 of them buffered), 18 s are left for 3400 bytes.
        assert_eq!(video.timing_at_rate(600, rate(200), secs(2)), Timing::InTime(secs(1)));
        // Bytes that were due in the past are late, however fast the link is.
        assert_eq!(video.timing_at_rate(100, Bitrate::MAX, secs(3)), Timing::Late(secs(2)));
        assert_eq!(video.timing_at_rate(0, Bitrate::ZERO, Duration::ZERO), Timing::Late(Duration::MAX - secs(10)));
        assert_eq!(video.timing_at_rate(4000, Bitrate::ZERO, secs(20)), Timing::InTime(Duration::ZERO));
    }
}
