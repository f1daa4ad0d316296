//! How fast bytes have been coming, over any recent window.
//!
//! In: the moments at which bytes arrived. Out: the mean rate over the last so many milliseconds.
//!
//! 1. Arrivals within one step are one point, so the memory is bounded whatever the packet rate.
//! 2. The bytes of a window are those that came after its beginning; the very first arrival only starts the clock,
//!    since nobody knows how long it had been on its way.
//! 3. Silence counts: without arrivals the rate falls as time passes.
//!
//! A moving average (EWMA) was not used: the answer is needed over different windows at once (one round trip to see a
//! ramp, a second to share the rest of a file), and an average by arrivals cannot tell a fast link from a chatty one.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::units::{Bitrate, DataSize, Instant};

/// Arrivals of the last [`Meter::MEMORY`].
#[derive(Clone, Debug, Default)]
pub struct RateWindow {
    /// Moment of arrival, and all bytes up to and with it.
    arrivals: VecDeque<(Instant, u64)>,
    total: u64,
    first_arrival: Option<Instant>,
}

impl RateWindow {
    /// Arrivals closer than this are one. chosen: a tenth of the shortest round trip that matters (20 ms links).
    const RESOLUTION: Duration = Duration::from_millis(2);
    /// How far back windows may reach.
    pub const MAX_WINDOW: Duration = Duration::from_millis(2000);

    /// Bytes arrived.
    pub fn on_bytes(&mut self, now: Instant, len: DataSize) {
        self.total += len.bytes();
        self.first_arrival.get_or_insert(now);
        match self.arrivals.back_mut() {
            Some((at, total)) if now.since(*at) < Self::RESOLUTION => *total = self.total,
            _ => self.arrivals.push_back((now, self.total)),
        }
        while self.arrivals.len() > 2 && self.arrivals.get(1).is_some_and(|(at, _)| *at + Self::MAX_WINDOW < now) {
            self.arrivals.pop_front();
        }
    }

    /// All bytes ever.
    pub fn total(&self) -> DataSize {
        DataSize::from_bytes(self.total)
    }

    /// When the first bytes of all came.
    pub fn first_arrival(&self) -> Option<Instant> {
        self.first_arrival
    }

    /// Bytes that arrived after `from` and not after `to`.
    pub fn bytes_between(&self, from: Instant, to: Instant) -> DataSize {
        DataSize::from_bytes(self.bytes_until(to).saturating_sub(self.bytes_until(from)))
    }

    /// Mean rate over `window` up to `now`, or since the first arrival if that is later. Zero before the second one.
    pub fn rate(&self, now: Instant, window: Duration) -> Bitrate {
        let Some((first, _)) = self.arrivals.front() else { return Bitrate::ZERO };
        let from = (now - window).max(*first);
        if from >= now {
            return Bitrate::ZERO;
        }
        self.bytes_between(from, now) / (now - from)
    }

    /// All bytes up to and with `at`, as far as is remembered.
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
    fn a_steady_stream_has_its_rate_over_every_window() {
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
    fn silence_lowers_the_rate() {
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
    fn its_memory_is_bounded() {
        let mut meter = RateWindow::default();
        for t in 0..20_000_000 / 100 {
            meter.on_bytes(Instant::from_nanos(t * 100_000), DataSize::from_bytes(1));
        }
        assert!(meter.arrivals.len() <= 1003, "{}", meter.arrivals.len());
    }
}
