//! Mean throughput of a byte stream over any time window within the last two seconds.
//!
//! The input is the time and size of each arrival.
//!
//! 1. Arrivals within `RESOLUTION` count as one point, so the memory is bounded at any packet rate.
//! 2. The bytes of a window are those that arrived after its start. The very first arrival only starts the clock,
//!    because the time in which its bytes were transferred is unknown.
//! 3. Time without arrivals counts: the rate falls while no data arrives.
//!
//! A moving average (EWMA) was rejected: the rate is needed over several windows at once (one RTT to detect a ramp,
//! a second to divide the rest of a file), and an average over arrivals cannot distinguish a fast link from one
//! with many small arrivals.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::units::{Bitrate, DataSize, Instant};

/// Arrivals of the last [`RateWindow::MAX_WINDOW`].
#[derive(Clone, Debug, Default)]
pub struct RateWindow {
    /// Time of an arrival, and the total number of bytes up to and including it.
    arrivals: VecDeque<(Instant, u64)>,
    total: u64,
    first_arrival: Option<Instant>,
}

impl RateWindow {
    /// Arrivals closer together than this are one point. Our choice: a tenth of the shortest RTT that matters (20
    /// ms links).
    const RESOLUTION: Duration = Duration::from_millis(2);
    /// Longest window that [`rate`](Self::rate) can use.
    pub const MAX_WINDOW: Duration = Duration::from_millis(2000);

    /// Reports that `len` bytes arrived at `now`.
    pub fn on_bytes(&mut self, now: Instant, len: DataSize) {
        self.total += len.bytes();
        self.first_arrival.get_or_insert(now);
        match self.arrivals.back_mut() {
            Some((at, total)) if now.since(*at) < Self::RESOLUTION => *total = self.total,
            _ => self.arrivals.push_back((now, self.total)),
        }
        // The two newest points always stay: a window needs a point at or before its start.
        while self.arrivals.len() > 2 && self.arrivals.get(1).is_some_and(|(at, _)| *at + Self::MAX_WINDOW < now) {
            self.arrivals.pop_front();
        }
    }

    /// Number of bytes since the beginning.
    pub fn total(&self) -> DataSize {
        DataSize::from_bytes(self.total)
    }

    /// Time of the very first arrival.
    pub fn first_arrival(&self) -> Option<Instant> {
        self.first_arrival
    }

    /// Number of bytes that arrived after `from` and until `to`.
    pub fn bytes_between(&self, from: Instant, to: Instant) -> DataSize {
        DataSize::from_bytes(self.bytes_until(to).saturating_sub(self.bytes_until(from)))
    }

    /// Mean rate over `window` up to `now`, or since the first arrival if that is later. Zero before the second
    /// arrival.
    pub fn rate(&self, now: Instant, window: Duration) -> Bitrate {
        let Some((first, _)) = self.arrivals.front() else { return Bitrate::ZERO };
        let from = (now - window).max(*first);
        if from >= now {
            return Bitrate::ZERO;
        }
        self.bytes_between(from, now) / (now - from)
    }

    /// Number of bytes up to and including `at`; for times older than the memory, the oldest known total.
    fn bytes_until(&self, at: Instant) -> u64 {
        let after = self.arrivals.partition_point(|(point, _)| *point <= at);
        match after.checked_sub(1) {
            Some(i) => self.arrivals.get(i).map_or(0, |(_, total)| *total),
            None => self.arrivals.front().map_or(0, |(_, total)| *total),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    #[test]
    fn a_constant_stream_has_the_same_rate_in_every_window() {
        let mut meter = RateWindow::default();
        for t in 0..=1000 {
            meter.on_bytes(ms(t), DataSize::from_bytes(1000));
        }
        for window in [50, 200, 900] {
            let rate = meter.rate(ms(1000), Duration::from_millis(window)).bits_per_sec();
            assert!((7_800_000..8_300_000).contains(&rate), "{window} ms: {rate}");
        }
    }

    #[test]
    fn time_without_arrivals_lowers_the_rate() {
        let mut meter = RateWindow::default();
        for t in 0..100 {
            meter.on_bytes(ms(t), DataSize::from_bytes(1000));
        }
        assert!(meter.rate(ms(300), Duration::from_millis(400)) < Bitrate::from_mbps(3));
        assert_eq!(meter.rate(ms(900), Duration::from_millis(400)), Bitrate::ZERO);
    }

    #[test]
    fn the_first_arrival_only_starts_the_clock() {
        let mut meter = RateWindow::default();
        meter.on_bytes(ms(10), DataSize::from_mib(1));
        assert_eq!(meter.rate(ms(10), Duration::from_millis(100)), Bitrate::ZERO);
        assert_eq!(meter.rate(ms(20), Duration::from_millis(100)), Bitrate::ZERO);
        meter.on_bytes(ms(20), DataSize::from_bytes(10_000));
        assert_eq!(meter.rate(ms(20), Duration::from_millis(100)), Bitrate::from_mbps(8));
    }

    #[test]
    fn the_number_of_stored_points_is_bounded() {
        let mut meter = RateWindow::default();
        for t in 0..20_000_000 / 100 {
            meter.on_bytes(Instant::from_nanos(t * 100_000), DataSize::from_bytes(1));
        }
        assert!(meter.arrivals.len() <= 1003, "{}", meter.arrivals.len());
    }
}
