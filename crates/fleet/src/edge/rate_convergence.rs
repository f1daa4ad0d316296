//! Determines a relay's throughput B(c, s) from the byte counts of a probe, as soon as the rate has settled.
//!
//! 1. Rates are means over windows of [`RATE_WINDOW`]. The first windows belong to slow start and to links that have not joined yet, so no
//!    rate counts before [`MIN_TIME`], or [`MIN_RTTS`] RTTs if these take longer.
//! 2. The rate has settled when three consecutive windows differ by no more than a tenth.
//! 3. If a probe ends earlier, its result is the best mean of two consecutive windows.

use std::time::Duration;

use marline_core::units::{Bitrate, DataSize};

/// Our choice: five packets at 300 kbit/s.
const RATE_WINDOW: Duration = Duration::from_millis(200);
/// Our choice: a second link joins some RTTs after the first one.
const MIN_TIME: Duration = Duration::from_millis(800);
/// Our choice: slow start grows from ten packets to a thousand in seven RTTs.
const MIN_RTTS: u32 = 8;

/// The windows of one probe.
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

    /// Adds a count: the total bytes received, and the time since the start. Returns the rate once it has settled.
    pub(super) fn add(&mut self, bytes: u64, time: Duration) -> Option<Bitrate> {
        let elapsed = time.saturating_sub(self.last_count.1);
        if elapsed < RATE_WINDOW {
            return None;
        }
        self.windows.push((bytes.saturating_sub(self.last_count.0), elapsed));
        self.last_count = (bytes, time);
        // Early windows are recorded for `best_rate`, but do not settle (rule 1).
        let last = self.windows.last_chunk::<3>().filter(|_| time >= self.min_time)?;
        let rates = last.map(rate);
        let (min_rate, max_rate) = (rates.iter().min()?, rates.iter().max()?);
        let is_settled = max_rate.bits_per_sec() - min_rate.bits_per_sec() <= max_rate.bits_per_sec() / 10;
        (is_settled && !max_rate.is_zero()).then(|| mean(last))
    }

    /// The best rate so far; `None`: nothing was received.
    pub(super) fn best_rate(&self) -> Option<Bitrate> {
        let best_pair = self.windows.windows(2).map(mean).max();
        let first_rate = self.windows.first().map(|window| rate(*window));
        // With fewer than two windows, the first one has to do.
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

    /// Adds the bytes of each tenth of a second; returns when the rate settled, and the rate.
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
    fn a_steady_rate_settles_but_not_before_other_links_can_join() {
        let mut settle = RateConvergence::new(Duration::from_millis(20));
        let steady = [100_000; 15];
        assert_eq!(run(&mut settle, &steady), Some((8, Bitrate::from_mbps(8))));
        // A longer RTT takes longer.
        let mut settle = RateConvergence::new(Duration::from_millis(150));
        assert_eq!(run(&mut settle, &steady).unwrap().0, 12);
        // A second link joins after half a second.
        let mut settle = RateConvergence::new(Duration::from_millis(20));
        let joined = [[100_000; 5], [200_000; 5], [200_000; 5]].concat();
        let (at, rate) = run(&mut settle, &joined).unwrap();
        assert!(at >= 11 && rate == Bitrate::from_mbps(16), "{at} {rate}");
    }

    #[test]
    fn a_rate_that_never_settles_gives_the_best_windows() {
        let mut settle = RateConvergence::new(Duration::from_millis(20));
        let wild: Vec<u64> = (0..15).map(|n| if n % 4 < 2 { 50_000 } else { 150_000 }).collect();
        assert_eq!(run(&mut settle, &wild), None);
        assert_eq!(settle.best_rate(), Some(Bitrate::from_mbps(8)));
        assert_eq!(RateConvergence::new(Duration::ZERO).best_rate(), None);
    }
}
