//! When a probe has shown what it can: a relay's counts become a rate.
//!
//! In: how many bytes have come at the relay, and in what time. Out: B(c, s), as soon as it has settled.
//!
//! 1. A rate is the mean of a window of [`WINDOW`]. The first of them belong to slow start and to links that have not joined yet:
//!    nothing settles before [`EARLIEST`], or [`ROUND_TRIPS`] round trips where these take longer.
//! 2. It has settled when three windows running differ by no more than a tenth.
//! 3. A probe that ends before has reached what its best two windows running did.

use std::time::Duration;

use marline_core::units::{Bitrate, DataSize};

/// chosen: five packets at 300 kbit/s.
const RATE_WINDOW: Duration = Duration::from_millis(200);
/// chosen: a second link joins some round trips after the first one.
const MIN_TIME: Duration = Duration::from_millis(800);
/// chosen: slow start doubles ten packets to a thousand in seven.
const MIN_RTTS: u32 = 8;

/// A probe's windows.
#[derive(Clone, Debug)]
pub(super) struct RateConvergence {
    min_time: Duration,
    last_count: (u64, Duration),
    windows: Vec<(u64, Duration)>,
}

impl RateConvergence {
    pub(super) fn new(rtt: Duration) -> Self {
        let earliest = MIN_TIME.max(rtt * MIN_RTTS);
        Self { min_time: earliest, last_count: (0, Duration::ZERO), windows: Vec::new() }
    }

    /// So many bytes have come in so long a time; the rate, once it has settled.
    pub(super) fn add(&mut self, bytes: u64, time: Duration) -> Option<Bitrate> {
        let elapsed = time.saturating_sub(self.last_count.1);
        if elapsed < RATE_WINDOW {
            return None;
        }
        self.windows.push((bytes.saturating_sub(self.last_count.0), elapsed));
        self.last_count = (bytes, time);
        let last = self.windows.last_chunk::<3>().filter(|_| time >= self.min_time)?;
        let rates = last.map(rate);
        let (min_rate, max_rate) = (rates.iter().min()?, rates.iter().max()?);
        let is_settled = max_rate.bits_per_sec() - min_rate.bits_per_sec() <= max_rate.bits_per_sec() / 10;
        (is_settled && !max_rate.is_zero()).then(|| mean(last))
    }

    /// What was reached; none: nothing came.
    pub(super) fn best_rate(&self) -> Option<Bitrate> {
        let best_pair = self.windows.windows(2).map(mean).max();
        let first_rate = self.windows.first().map(|window| rate(*window));
        // A whole window has not passed: what there is.
        best_pair.or(first_rate).filter(|rate| !rate.is_zero())
    }
}

fn rate((bytes, time): (u64, Duration)) -> Bitrate {
    DataSize::from_bytes(bytes) / time
}

fn mean(windows: &[(u64, Duration)]) -> Bitrate {
    rate((windows.iter().map(|window| window.0).sum(), windows.iter().map(|window| window.1).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes at the end of each tenth of a second; when it settled, and at which rate.
    fn run(convergence: &mut RateConvergence, tenths: &[u64]) -> Option<(usize, Bitrate)> {
        let mut sum = 0;
        for (n, bytes) in tenths.iter().enumerate() {
            sum += bytes;
            if let Some(rate) = convergence.add(sum, Duration::from_millis(100 * (n as u64 + 1))) {
                return Some((n + 1, rate));
            }
        }
        None
    }

    #[test]
    fn a_steady_rate_settles_and_no_sooner_than_others_can_join() {
        let mut settle = RateConvergence::new(Duration::from_millis(20));
        let steady = [100_000; 15];
        assert_eq!(run(&mut settle, &steady), Some((8, Bitrate::from_mbps(8))));
        // A long way takes longer.
        let mut settle = RateConvergence::new(Duration::from_millis(150));
        assert_eq!(run(&mut settle, &steady).unwrap().0, 12);
        // A second link comes after half a second.
        let mut settle = RateConvergence::new(Duration::from_millis(20));
        let joined = [[100_000; 5], [200_000; 5], [200_000; 5]].concat();
        let (at, rate) = run(&mut settle, &joined).unwrap();
        assert!(at >= 11 && rate == Bitrate::from_mbps(16), "{at} {rate}");
    }

    #[test]
    fn what_never_settles_has_reached_its_best() {
        let mut settle = RateConvergence::new(Duration::from_millis(20));
        let wild: Vec<u64> = (0..15).map(|n| if n % 4 < 2 { 50_000 } else { 150_000 }).collect();
        assert_eq!(run(&mut settle, &wild), None);
        assert_eq!(settle.best_rate(), Some(Bitrate::from_mbps(8)));
        assert_eq!(RateConvergence::new(Duration::ZERO).best_rate(), None);
    }
}
