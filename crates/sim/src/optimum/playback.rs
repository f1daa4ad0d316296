//! P*: the least playback time of a case.
//!
//! In: the case. Out: d* + duration, exact up to the rounding of floating point.
//!
//! arr(V(s)) − s is a chain of straight lines in s: it bends where the video's rate changes and where a link's rate
//! changes, and it jumps where nothing is carried for a while. Its maximum therefore lies at one of those points.

use marline_core::units::{DataSize, Duration};

use super::{Case, bits};

impl Case {
    /// P*; none: the video is never all there.
    pub fn least_playback(&self) -> Option<Duration> {
        let start = self.least_wait()?;
        Some(Duration::from_secs_f64(start) + self.video.duration())
    }

    /// d*, in seconds.
    pub(super) fn least_wait(&self) -> Option<f64> {
        let total = bits(self.video.size());
        let mut changes: Vec<f64> = self.links.iter().flat_map(super::Supply::changes).collect();
        changes.sort_by(f64::total_cmp);
        changes.dedup();
        let arrivals = Arrivals { case: self, changes };
        let mut wait =
            arrivals.first(self.start_bits())?.max(arrivals.first(total)? - self.video.duration().as_secs_f64());
        for at in &arrivals.changes {
            let carried = self.carried(*at);
            if carried < total {
                wait = wait.max(arrivals.after(carried)? - self.played(carried));
            }
        }
        for (time, bytes) in self.video_ends() {
            let there = if bytes < total { arrivals.after(bytes)? } else { arrivals.first(bytes)? };
            wait = wait.max(there - time);
        }
        Some(wait.max(0.0))
    }

    /// V: bits decoded after `time` seconds of playing.
    pub(super) fn decoded(&self, time: f64) -> f64 {
        if time <= 0.0 {
            return 0.0;
        }
        self.video.bytes_at(Duration::from_secs_f64(time)) as f64 * 8.0
    }

    /// The inverse of V.
    fn played(&self, bits: f64) -> f64 {
        self.video.time_at((bits / 8.0) as u64).as_secs_f64()
    }

    /// Ends of the video's pieces: seconds and bits.
    fn video_ends(&self) -> Vec<(f64, f64)> {
        let pieces: Vec<(Duration, DataSize)> = self.video.clone().into();
        let sum = |(time, size): &mut (f64, f64), (more, bytes): (Duration, DataSize)| {
            *time += more.as_secs_f64();
            *size += bits(bytes);
            Some((*time, *size))
        };
        pieces.into_iter().scan((0.0, 0.0), sum).collect()
    }
}

/// When all links together have carried so many bits.
struct Arrivals<'a> {
    case: &'a Case,
    changes: Vec<f64>,
}

impl Arrivals<'_> {
    /// The first moment by which `bits` are there.
    fn first(&self, bits: f64) -> Option<f64> {
        self.at(bits, self.changes.partition_point(|at| self.case.carried(*at) < bits))
    }

    /// The last moment at which no more than `bits` are there.
    fn after(&self, bits: f64) -> Option<f64> {
        self.at(bits, self.changes.partition_point(|at| self.case.carried(*at) <= bits))
    }

    /// Where the line that ends at the change number `next` reaches `bits`.
    fn at(&self, bits: f64, next: usize) -> Option<f64> {
        let Some(last) = next.checked_sub(1) else { return self.changes.first().copied() };
        let start = *self.changes.get(last)?;
        let end = self.changes.get(next).copied().unwrap_or(start + 1.0);
        let before = self.case.carried(start);
        let rate = (self.case.carried(end) - before) / (end - start);
        (rate > 0.0).then(|| start + (bits - before).max(0.0) / rate)
    }
}
