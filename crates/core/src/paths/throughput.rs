//! How fast a path of a connection has been lately, whatever a second's dip says.
//!
//! In: bytes over stretches of time. Out: the mean, the median and the spread of the last two seconds.
//!
//! 1. A stretch weighs as much as it lasts; the median is that of time, so that a state that has lasted less than a
//!    second of the two does not count yet. A predicted dip must not wake a radio whose promotion and tail cost what two
//!    megabytes do.
//! 2. The last rate of a path that rests stays.
//! 3. What waited behind a hole (a lost packet, a change of address) comes all at once when the hole is filled, at a rate
//!    that no link had. After a silence no more is taken for a rate than what came before it, or the mean since the silence
//!    began if that is more ([`Hole`]). The rest is counted for the silence itself, during which it arrived.
//!
//! The trend of one sample was not used for these decisions: eMPTCP (§4.4, Figure 9) shows the two tails that it cost.

use crate::units::{Bitrate, Duration};

/// The last stretches, the newest last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThroughputWindow {
    samples: [RateSample; ThroughputWindow::CAPACITY],
    len: usize,
    gap: Gap,
}

/// A silence and what follows it. Rates are in kbit/s and times in milliseconds, as in [`Stretch`].
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    /// How long nothing came; 0: there is no silence that still counts.
    silent_ms: u32,
    /// How long it has been over, and what came since, in bits.
    since_ms: u32,
    bits: u64,
    /// The most that came before it.
    kbps_before: u32,
}

impl Gap {
    /// The highest rate that is plausible for a stretch of this rate, which is the next one.
    fn max_kbps(&mut self, rate: u32, time: u32) -> u32 {
        self.since_ms = self.since_ms.saturating_add(time);
        self.bits = self.bits.saturating_add(u64::from(rate) * u64::from(time));
        let mean = self.bits / u64::from(self.silent_ms.saturating_add(self.since_ms).max(1));
        self.kbps_before.max(u32::try_from(mean).unwrap_or(u32::MAX))
    }

    /// Whether what waited behind it has come: by then as much time has passed as it lasted, or [`CAUGHT_UP`].
    const fn is_over(&self) -> bool {
        self.since_ms >= self.silent_ms || self.since_ms >= CATCH_UP_MS
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct RateSample {
    /// kbit/s and milliseconds, so that ten thousand connections stay small.
    kbps: u32,
    millis: u32,
}

impl ThroughputWindow {
    /// How far back it reaches.
    pub(super) const LENGTH: Duration = Duration::from_millis(2000);
    /// Stretches kept: [`Self::MEMORY`] at the usual interval.
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

    /// A stretch's rate without what waited behind a hole before it; that is counted for the hole.
    fn limit_after_gap(&mut self, rate: u32, time: u32) -> u32 {
        if rate < SILENT_KBPS {
            if self.gap.silent_ms == 0 {
                let before = self.peak().unwrap_or_default().bits_per_sec() / 1000;
                self.gap = Gap { kbps_before: u32::try_from(before).unwrap_or(u32::MAX), ..Gap::default() };
            }
            self.gap.silent_ms = self.gap.silent_ms.saturating_add(time);
            return rate;
        }
        if self.gap.silent_ms == 0 {
            return rate;
        }
        let bound = self.gap.max_kbps(rate, time);
        let (silent, since) = (self.gap.silent_ms, self.gap.since_ms - time);
        if self.gap.is_over() {
            self.gap = Gap::default();
        }
        if rate <= bound {
            return rate;
        }
        let (mut passed, mut gap_time) = (0, 0);
        let kept = self.samples.get_mut(..self.len).unwrap_or_default();
        let mut gap_range = [0; 2];
        for (index, sample) in kept.iter().enumerate().rev() {
            if passed >= since && passed < since.saturating_add(silent) {
                gap_range = [index, gap_range[1].max(index + 1)];
                gap_time += u64::from(sample.millis);
            }
            passed += sample.millis;
        }
        let late_bits = u64::from(rate - bound) * u64::from(time);
        let added_kbps = late_bits.checked_div(gap_time).map_or(0, |rate| u32::try_from(rate).unwrap_or(u32::MAX));
        for sample in kept.get_mut(gap_range[0]..gap_range[1]).unwrap_or_default() {
            sample.kbps = sample.kbps.saturating_add(added_kbps).min(bound);
        }
        bound
    }

    /// A rate that is known to be the path's now, whatever it was.
    pub(super) fn reset_to(&mut self, rate: Bitrate) {
        (self.len, self.gap) = (0, Gap::default());
        self.push(rate, Self::LENGTH / 2);
    }

    /// The path was dead, and not slow: forgets that nothing came lately.
    pub(super) fn drop_trailing_silence(&mut self) {
        while self.len > 0 && self.samples.get(self.len - 1).is_some_and(|stretch| stretch.kbps < SILENT_KBPS) {
            self.len -= 1;
        }
    }

    /// The median over the time remembered; none: nothing was seen.
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
        sorted.sort_unstable_by_key(|stretch| stretch.kbps);
        let mut passed = 0;
        let middle = sorted.iter().find(|stretch| {
            passed += u64::from(stretch.millis);
            2 * passed >= total
        });
        middle.map(|stretch| bitrate_from_kbps(stretch.kbps))
    }

    /// The mean over the last `time` of it; none: nothing was seen.
    pub(super) fn mean(&self, time: Duration) -> Option<Bitrate> {
        let (limit, mut passed, mut sum) = (time.as_millis() as u64, 0_u64, 0_u64);
        for sample in self.recent() {
            let part = u64::from(sample.millis).min(limit - passed.min(limit));
            passed += part;
            sum += part * u64::from(sample.kbps);
        }
        sum.checked_div(passed).map(|rate| bitrate_from_kbps(u32::try_from(rate).unwrap_or(u32::MAX)))
    }

    /// The mean over the last `time` in which anything came; none: nothing did.
    pub(super) fn active_mean(&self, time: Duration) -> Option<Bitrate> {
        let mut moved = Self::default();
        for stretch in self.samples.iter().take(self.len).filter(|stretch| stretch.kbps >= SILENT_KBPS) {
            // No silence is among these, so that nothing is bounded.
            moved.push(bitrate_from_kbps(stretch.kbps), Duration::from_millis(stretch.millis.into()));
        }
        moved.mean(time)
    }

    /// The most of it, over three stretches at a time: what waited behind a lost packet counts when that comes, all at
    /// once; none: nothing was seen.
    pub(super) fn peak(&self) -> Option<Bitrate> {
        let recent = self.samples.get(self.len - self.recent().count()..self.len)?;
        let mean = |samples: &[RateSample]| {
            let (time, sum) = samples.iter().fold((0, 0), |(time, sum), stretch| {
                (time + u64::from(stretch.millis), sum + u64::from(stretch.millis) * u64::from(stretch.kbps))
            });
            sum.checked_div(time)
        };
        let peak = recent.windows(recent.len().clamp(1, 3)).filter_map(mean).max()?;
        Some(bitrate_from_kbps(u32::try_from(peak).unwrap_or(u32::MAX)))
    }

    /// How much time it has seen, up to its memory.
    pub(super) fn covered_time(&self) -> Duration {
        Duration::from_millis(self.recent().map(|stretch| u64::from(stretch.millis)).sum())
    }

    /// The newest first, up to the memory.
    fn recent(&self) -> impl Iterator<Item = RateSample> {
        let mut left = Self::LENGTH.as_millis() as u32;
        self.samples.get(..self.len).unwrap_or_default().iter().rev().map_while(move |stretch| {
            let time = stretch.millis.min(left);
            left -= time;
            (time > 0).then_some(RateSample { millis: time, ..*stretch })
        })
    }
}

/// Less than this is what a path brings in the stretch in which it dies.
const SILENT_KBPS: u32 = 20;

/// What waited behind a hole has come after this, in milliseconds. chosen: a receive window of 6 MB at 50 Mbit/s.
const CATCH_UP_MS: u32 = 1000;

fn bitrate_from_kbps(rate: u32) -> Bitrate {
    Bitrate::from_bits_per_sec(u64::from(rate) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ratio;

    fn window_of(rates: impl IntoIterator<Item = u64>) -> ThroughputWindow {
        let mut pace = ThroughputWindow::default();
        for rate in rates {
            pace.push(Bitrate::from_mbps(rate), Duration::from_millis(100));
        }
        pace
    }

    #[test]
    fn a_dip_of_less_than_a_second_is_no_state() {
        let dip = |n: usize| window_of(core::iter::repeat_n(16, 20).chain(core::iter::repeat_n(1, n)));
        assert_eq!(dip(9).median(), Some(Bitrate::from_mbps(16)));
        assert_eq!(dip(12).median(), Some(Bitrate::from_mbps(1)));
    }

    #[test]
    fn a_pause_is_no_slowness() {
        let second = Duration::from_secs(1);
        let paused = window_of(core::iter::repeat_n(8, 5).chain(core::iter::repeat_n(0, 12)));
        assert_eq!(paused.mean(second), Some(Bitrate::ZERO));
        assert_eq!(paused.active_mean(second), Some(Bitrate::from_mbps(8)));
        assert_eq!(window_of([0, 0, 0]).active_mean(second), None);
    }

    #[test]
    fn a_stretch_weighs_as_much_as_it_lasts() {
        let mut pace = window_of([10, 10, 10]);
        pace.push(Bitrate::from_mbps(1), Duration::from_millis(400));
        assert_eq!(pace.median(), Some(Bitrate::from_mbps(1)));
        assert_eq!(pace.mean(Duration::from_millis(500)), Some(Bitrate::from_bits_per_sec(2_800_000)));
        assert_eq!(pace.covered_time(), Duration::from_millis(700));
    }

    #[test]
    fn the_most_is_no_jump_behind_a_gap() {
        let most = |rates: &[u64]| window_of(rates.iter().copied()).peak();
        assert_eq!(most(&[20, 20, 0, 40, 0, 20]), Some(Bitrate::from_mbps(20)));
        assert_eq!(most(&[2, 2, 9, 9, 9, 2]), Some(Bitrate::from_mbps(9)));
        assert_eq!(most(&[4, 8]), Some(Bitrate::from_mbps(6)));
    }

    #[test]
    fn what_waited_behind_a_hole_is_no_rate() {
        let second = Duration::from_secs(1);
        let four = Bitrate::from_mbps(4);
        // A second of a link of 4 Mbit/s that comes in one, two or three stretches.
        for burst in [&[44][..], &[22, 22], &[16, 14, 14]] {
            let rates = core::iter::repeat_n(4, 10).chain(core::iter::repeat_n(0, 10)).chain(burst.iter().copied());
            let mut pace = window_of(rates);
            assert_eq!(pace.peak(), Some(four), "{burst:?}");
            assert!(pace.mean(second).unwrap() >= four.share(Ratio::from_percent(80)), "{burst:?}");
            assert!(pace.active_mean(second).unwrap() <= four);
            (0..5).for_each(|_| pace.push(four, Duration::from_millis(100)));
            assert_eq!(pace.peak(), Some(four));
            assert!(pace.median().unwrap() >= four.share(Ratio::from_percent(80)), "{burst:?}");
        }
        // The hole was longer than the memory: the mean over all of it counts.
        let long = window_of([4, 4, 4].into_iter().chain(core::iter::repeat_n(0, 60)).chain([80]));
        let most = long.peak().unwrap();
        assert!(most <= four && most >= four.share(Ratio::from_percent(80)), "{most}");
        // Nothing was known before it.
        let first = window_of(core::iter::repeat_n(0, 9).chain([40]));
        assert_eq!(first.peak(), Some(four));
    }

    #[test]
    fn a_link_that_is_faster_after_a_pause_is_known_to_be_a_second_later() {
        let faster =
            window_of([4, 4, 4].into_iter().chain(core::iter::repeat_n(0, 15)).chain(core::iter::repeat_n(20, 13)));
        assert_eq!(faster.peak(), Some(Bitrate::from_mbps(20)));
    }

    #[test]
    fn nothing_seen_is_nothing_known() {
        assert_eq!(window_of([]).median(), None);
        assert_eq!(window_of([]).peak(), None);
        assert_eq!(window_of([]).mean(Duration::from_secs(1)), None);
        let mut long = ThroughputWindow::default();
        long.push(Bitrate::MAX, Duration::MAX);
        assert_eq!(long.covered_time(), ThroughputWindow::LENGTH);
    }
}
