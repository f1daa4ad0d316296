//! P*: the minimum playback time of a video over links with known capacity.
//!
//! The result, d* + duration, is exact up to floating-point rounding.
//!
//! arr(V(s)) − s is piecewise linear in s. Its slope changes where the rate of the video or of a link changes, and
//! it jumps where nothing is carried for a while. Therefore its maximum lies at one of these points, and only these
//! are evaluated.

use marline_core::units::{DataSize, Duration};

use super::{PlaybackCase, bits};

impl PlaybackCase {
    /// P*, or `None` if the links never deliver the whole video.
    pub fn min_playback_time(&self) -> Option<Duration> {
        let start = self.min_start_delay()?;
        Some(Duration::from_secs_f64(start) + self.video.duration())
    }

    /// d*: the earliest start of playback that avoids all stalls, in seconds.
    pub(super) fn min_start_delay(&self) -> Option<f64> {
        let total = bits(self.video.size());
        let mut change_times: Vec<f64> = self.links.iter().flat_map(super::CapacityCurve::change_times).collect();
        change_times.sort_by(f64::total_cmp);
        change_times.dedup();
        let arrivals = ArrivalTimes { case: self, change_times };
        let mut start_delay = arrivals
            .first_time(self.start_bits())?
            .max(arrivals.first_time(total)? - self.video.duration().as_secs_f64());
        // Candidates where a link's rate changes. The latest arrival counts, because the function may jump there.
        for at in &arrivals.change_times {
            let carried = self.carried(*at);
            if carried < total {
                start_delay = start_delay.max(arrivals.last_time(carried)? - self.time_of_bits(carried));
            }
        }
        // Candidates where the video's rate changes.
        for (time, bytes) in self.segment_ends() {
            let arrival = if bytes < total { arrivals.last_time(bytes)? } else { arrivals.first_time(bytes)? };
            start_delay = start_delay.max(arrival - time);
        }
        Some(start_delay.max(0.0))
    }

    /// V: bits decoded after `time` seconds of playback.
    pub(super) fn bits_decoded_after(&self, time: f64) -> f64 {
        if time <= 0.0 {
            return 0.0;
        }
        self.video.bytes_at(Duration::from_secs_f64(time)) as f64 * 8.0
    }

    /// Inverse of V: seconds of playback after which `bits` are decoded.
    fn time_of_bits(&self, bits: f64) -> f64 {
        self.video.time_at((bits / 8.0) as u64).as_secs_f64()
    }

    /// End of each segment of the video, in seconds and bits.
    fn segment_ends(&self) -> Vec<(f64, f64)> {
        let segments: Vec<(Duration, DataSize)> = self.video.clone().into();
        let sum = |(time, size): &mut (f64, f64), (duration, bytes): (Duration, DataSize)| {
            *time += duration.as_secs_f64();
            *size += bits(bytes);
            Some((*time, *size))
        };
        segments.into_iter().scan((0.0, 0.0), sum).collect()
    }
}

/// arr: when all links together have carried a number of bits.
struct ArrivalTimes<'a> {
    case: &'a PlaybackCase,
    change_times: Vec<f64>,
}

impl ArrivalTimes<'_> {
    /// First moment at which `bits` have been carried.
    fn first_time(&self, bits: f64) -> Option<f64> {
        self.time_in_step(bits, self.change_times.partition_point(|at| self.case.carried(*at) < bits))
    }

    /// Last moment at which no more than `bits` have been carried. Differs from [`Self::first_time`] in an outage.
    fn last_time(&self, bits: f64) -> Option<f64> {
        self.time_in_step(bits, self.change_times.partition_point(|at| self.case.carried(*at) <= bits))
    }

    /// Time at which `bits` are reached within the step that ends at change number `next_index`.
    fn time_in_step(&self, bits: f64, next_index: usize) -> Option<f64> {
        let Some(last) = next_index.checked_sub(1) else { return self.change_times.first().copied() };
        let start = *self.change_times.get(last)?;
        let end = self.change_times.get(next_index).copied().unwrap_or(start + 1.0);
        let before = self.case.carried(start);
        let rate = (self.case.carried(end) - before) / (end - start);
        (rate > 0.0).then(|| start + (bits - before).max(0.0) / rate)
    }
}
