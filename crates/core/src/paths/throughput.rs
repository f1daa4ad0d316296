//! Throughput window: mean, median and maximum of a path's rate over the last two seconds, robust against short
//! dips.
//!
//! 1. Each sample has the weight of its duration. The median is taken over time, so that a state that has lasted
//!    less than one of the two seconds does not count yet. A short dip must not wake another link's radio, whose
//!    promotion and tail need as much energy as two megabytes.
//! 2. A path that is no longer used keeps its last rates.
//! 3. Data that waited behind a gap (a lost packet, a change of address) arrives all at once when the gap is
//!    closed, at a rate that no link had. After a gap, a sample counts with at most the rate from before it, or the
//!    mean since the gap began if that is higher ([`Gap`]). The excess is added to the samples of the gap, during
//!    which it was transmitted.
//!
//! The trend of single samples was rejected for these decisions: eMPTCP (§4.4, Figure 9) shows the two energy tails
//! that it costs.

use crate::units::{Bitrate, Duration};

/// The last samples, the newest last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThroughputWindow {
    samples: [RateSample; ThroughputWindow::CAPACITY],
    len: usize,
    gap: Gap,
}

/// A gap without data and what follows it. Rates are in kbit/s and times in milliseconds, as in [`RateSample`].
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    /// Duration of the gap; 0: there is no gap that still matters.
    duration_ms: u32,
    /// Time since its end, and the bits that arrived since.
    since_ms: u32,
    bits: u64,
    /// Highest rate before it.
    kbps_before: u32,
}

impl Gap {
    /// Highest plausible rate of the next sample, which has this rate and duration.
    fn max_kbps(&mut self, rate: u32, time: u32) -> u32 {
        self.since_ms = self.since_ms.saturating_add(time);
        self.bits = self.bits.saturating_add(u64::from(rate) * u64::from(time));
        let mean = self.bits / u64::from(self.duration_ms.saturating_add(self.since_ms).max(1));
        self.kbps_before.max(u32::try_from(mean).unwrap_or(u32::MAX))
    }

    /// Whether all data that waited behind the gap has arrived: after as long as the gap lasted, but
    /// after [`CATCH_UP_MS`] at the latest.
    const fn is_over(&self) -> bool {
        self.since_ms >= self.duration_ms || self.since_ms >= CATCH_UP_MS
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct RateSample {
    /// In kbit/s and milliseconds, which keeps the state of ten thousand connections small.
    kbps: u32,
    millis: u32,
}

impl ThroughputWindow {
    /// Length of the window.
    pub(super) const LENGTH: Duration = Duration::from_millis(2000);
    /// Number of samples kept: [`Self::LENGTH`] at 100 ms each. Shorter samples (of eMPTCP) cover less time.
    const CAPACITY: usize = 20;

    pub(super) fn push(&mut self, rate: Bitrate, time: Duration) {
        let rate = u32::try_from(rate.bits_per_sec() / 1000).unwrap_or(u32::MAX);
        let time = u32::try_from(time.as_millis()).unwrap_or(u32::MAX).clamp(1, 2000);
        let rate = self.limit_after_gap(rate, time);
        if self.len == Self::CAPACITY {
            self.samples.rotate_left(1);
            self.len -= 1;
        }
        if let Some(slot) = self.samples.get_mut(self.len) {
            *slot = RateSample { kbps: rate, millis: time };
            self.len += 1;
        }
    }

    /// Limits a sample after a gap to its plausible rate, and adds the excess to the samples of the gap.
    fn limit_after_gap(&mut self, rate: u32, time: u32) -> u32 {
        if rate < EMPTY_KBPS {
            if self.gap.duration_ms == 0 {
                // The peak must be read before the gap's samples displace it from the window.
                let before = self.peak().unwrap_or_default().bits_per_sec() / 1000;
                self.gap = Gap { kbps_before: u32::try_from(before).unwrap_or(u32::MAX), ..Gap::default() };
            }
            self.gap.duration_ms = self.gap.duration_ms.saturating_add(time);
            return rate;
        }
        if self.gap.duration_ms == 0 {
            return rate;
        }
        let bound = self.gap.max_kbps(rate, time);
        let (gap_ms, since) = (self.gap.duration_ms, self.gap.since_ms - time);
        if self.gap.is_over() {
            self.gap = Gap::default();
        }
        if rate <= bound {
            // No data was late.
            return rate;
        }
        let (mut passed, mut gap_time) = (0, 0);
        // Find the samples of the gap, from the newest backwards, skipping the time since its end.
        let recorded = self.samples.get_mut(..self.len).unwrap_or_default();
        let mut gap_range = [0; 2];
        for (index, sample) in recorded.iter().enumerate().rev() {
            if passed >= since && passed < since.saturating_add(gap_ms) {
                gap_range = [index, gap_range[1].max(index + 1)];
                gap_time += u64::from(sample.millis);
            }
            passed += sample.millis;
        }
        let excess_bits = u64::from(rate - bound) * u64::from(time);
        // Distribute the excess evenly over the gap, again up to the plausible rate.
        let added_kbps =
            excess_bits.checked_div(gap_time).map_or(0, |rate| u32::try_from(rate).unwrap_or(u32::MAX));
        for sample in recorded.get_mut(gap_range[0]..gap_range[1]).unwrap_or_default() {
            sample.kbps = sample.kbps.saturating_add(added_kbps).min(bound);
        }
        bound
    }

    /// Replaces all samples by a rate that was just measured in a trial, as one sample of a second.
    pub(super) fn reset_to(&mut self, rate: Bitrate) {
        (self.len, self.gap) = (0, Gap::default());
        self.push(rate, Self::LENGTH / 2);
    }

    /// Removes the newest samples without data: the path was dead, not slow.
    pub(super) fn drop_trailing_gap(&mut self) {
        while self.len > 0 && self.samples.get(self.len - 1).is_some_and(|sample| sample.kbps < EMPTY_KBPS) {
            self.len -= 1;
        }
    }

    /// Median over the window; `None`: there are no samples.
    pub(super) fn median(&self) -> Option<Bitrate> {
        let mut sorted = [RateSample::default(); Self::CAPACITY];
        let (mut len, mut total) = (0, 0);
        for sample in self.recent() {
            if let Some(slot) = sorted.get_mut(len) {
                *slot = sample;
                len += 1;
                total += u64::from(sample.millis);
            }
        }
        let sorted = sorted.get_mut(..len)?;
        sorted.sort_unstable_by_key(|sample| sample.kbps);
        let mut passed = 0;
        let middle = sorted.iter().find(|sample| {
            passed += u64::from(sample.millis);
            2 * passed >= total
        });
        middle.map(|sample| bitrate_from_kbps(sample.kbps))
    }

    /// Mean over the last `time`; `None`: there are no samples.
    pub(super) fn mean(&self, time: Duration) -> Option<Bitrate> {
        let (limit, mut passed, mut sum) = (time.as_millis() as u64, 0_u64, 0_u64);
        for sample in self.recent() {
            let part = u64::from(sample.millis).min(limit - passed.min(limit));
            passed += part;
            sum += part * u64::from(sample.kbps);
        }
        sum.checked_div(passed).map(|rate| bitrate_from_kbps(u32::try_from(rate).unwrap_or(u32::MAX)))
    }

    /// Mean over the last `time` in which data arrived; `None`: none did.
    pub(super) fn active_mean(&self, time: Duration) -> Option<Bitrate> {
        let mut moved = Self::default();
        for sample in self.samples.iter().take(self.len).filter(|sample| sample.kbps >= EMPTY_KBPS) {
            // These samples contain no gap, so that none is limited.
            moved.push(bitrate_from_kbps(sample.kbps), Duration::from_millis(sample.millis.into()));
        }
        moved.mean(time)
    }

    /// Highest rate, as the mean of three consecutive samples, because data that waited behind a lost packet
    /// arrives all at once; `None`: there are no samples.
    pub(super) fn peak(&self) -> Option<Bitrate> {
        let recent = self.samples.get(self.len - self.recent().count()..self.len)?;
        let mean = |samples: &[RateSample]| {
            let (time, sum) = samples.iter().fold((0, 0), |(time, sum), sample| {
                (time + u64::from(sample.millis), sum + u64::from(sample.millis) * u64::from(sample.kbps))
            });
            sum.checked_div(time)
        };
        let peak = recent.windows(recent.len().clamp(1, 3)).filter_map(mean).max()?;
        Some(bitrate_from_kbps(u32::try_from(peak).unwrap_or(u32::MAX)))
    }

    /// Duration of all samples, up to the length of the window.
    pub(super) fn covered_time(&self) -> Duration {
        Duration::from_millis(self.recent().map(|sample| u64::from(sample.millis)).sum())
    }

    /// The samples of the window, the newest first.
    fn recent(&self) -> impl Iterator<Item = RateSample> {
        let mut left = Self::LENGTH.as_millis() as u32;
        self.samples.get(..self.len).unwrap_or_default().iter().rev().map_while(move |sample| {
            let time = sample.millis.min(left);
            left -= time;
            (time > 0).then_some(RateSample { millis: time, ..*sample })
        })
    }
}

/// A sample below this rate counts as one without data: it is what a path still delivers when it dies.
const EMPTY_KBPS: u32 = 20;

/// Time in milliseconds after which all data that waited behind a gap has arrived. Our choice: a receive window of
/// 6 MB at 50 Mbit/s.
const CATCH_UP_MS: u32 = 1000;

fn bitrate_from_kbps(rate: u32) -> Bitrate {
    Bitrate::from_bits_per_sec(u64::from(rate) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ratio;

    /// A window with samples of 100 ms each at these rates in Mbit/s, the newest last.
    fn window_of(rates: impl IntoIterator<Item = u64>) -> ThroughputWindow {
        let mut window = ThroughputWindow::default();
        for rate in rates {
            window.push(Bitrate::from_mbps(rate), Duration::from_millis(100));
        }
        window
    }

    #[test]
    fn a_dip_of_less_than_a_second_does_not_change_the_median() {
        let dip = |n: usize| window_of(core::iter::repeat_n(16, 20).chain(core::iter::repeat_n(1, n)));
        assert_eq!(dip(9).median(), Some(Bitrate::from_mbps(16)));
        assert_eq!(dip(12).median(), Some(Bitrate::from_mbps(1)));
    }

    #[test]
    fn a_pause_does_not_lower_the_active_mean() {
        let second = Duration::from_secs(1);
        let paused = window_of(core::iter::repeat_n(8, 5).chain(core::iter::repeat_n(0, 12)));
        assert_eq!(paused.mean(second), Some(Bitrate::ZERO));
        assert_eq!(paused.active_mean(second), Some(Bitrate::from_mbps(8)));
        assert_eq!(window_of([0, 0, 0]).active_mean(second), None);
    }

    #[test]
    fn a_sample_has_the_weight_of_its_duration() {
        let mut window = window_of([10, 10, 10]);
        window.push(Bitrate::from_mbps(1), Duration::from_millis(400));
        assert_eq!(window.median(), Some(Bitrate::from_mbps(1)));
        assert_eq!(window.mean(Duration::from_millis(500)), Some(Bitrate::from_bits_per_sec(2_800_000)));
        assert_eq!(window.covered_time(), Duration::from_millis(700));
    }

    #[test]
    fn the_peak_is_not_a_single_sample_after_a_gap() {
        let most = |rates: &[u64]| window_of(rates.iter().copied()).peak();
        assert_eq!(most(&[20, 20, 0, 40, 0, 20]), Some(Bitrate::from_mbps(20)));
        assert_eq!(most(&[2, 2, 9, 9, 9, 2]), Some(Bitrate::from_mbps(9)));
        assert_eq!(most(&[4, 8]), Some(Bitrate::from_mbps(6)));
    }

    #[test]
    fn data_that_waited_behind_a_gap_does_not_raise_the_rate() {
        let second = Duration::from_secs(1);
        let four = Bitrate::from_mbps(4);
        // One second of a link of 4 Mbit/s that arrives in one, two or three samples.
        for burst in [&[44][..], &[22, 22], &[16, 14, 14]] {
            let rates = core::iter::repeat_n(4, 10).chain(core::iter::repeat_n(0, 10)).chain(burst.iter().copied());
            let mut window = window_of(rates);
            assert_eq!(window.peak(), Some(four), "{burst:?}");
            assert!(window.mean(second).unwrap() >= four.share(Ratio::from_percent(80)), "{burst:?}");
            assert!(window.active_mean(second).unwrap() <= four);
            (0..5).for_each(|_| window.push(four, Duration::from_millis(100)));
            assert_eq!(window.peak(), Some(four));
            assert!(window.median().unwrap() >= four.share(Ratio::from_percent(80)), "{burst:?}");
        }
        // The gap was longer than the window: the mean over all of it counts.
        let long = window_of([4, 4, 4].into_iter().chain(core::iter::repeat_n(0, 60)).chain([80]));
        let most = long.peak().unwrap();
        assert!(most <= four && most >= four.share(Ratio::from_percent(80)), "{most}");
        // No rate was known before the gap.
        let first = window_of(core::iter::repeat_n(0, 9).chain([40]));
        assert_eq!(first.peak(), Some(four));
    }

    #[test]
    fn a_link_that_is_faster_after_a_pause_is_recognized_a_second_later() {
        let faster =
            window_of([4, 4, 4].into_iter().chain(core::iter::repeat_n(0, 15)).chain(core::iter::repeat_n(20, 13)));
        assert_eq!(faster.peak(), Some(Bitrate::from_mbps(20)));
    }

    #[test]
    fn an_empty_window_has_no_rates() {
        assert_eq!(window_of([]).median(), None);
        assert_eq!(window_of([]).peak(), None);
        assert_eq!(window_of([]).mean(Duration::from_secs(1)), None);
        let mut long = ThroughputWindow::default();
        long.push(Bitrate::MAX, Duration::MAX);
        assert_eq!(long.covered_time(), ThroughputWindow::LENGTH);
    }
}
