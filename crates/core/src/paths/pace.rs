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
pub(super) struct Pace {
    stretches: [Stretch; Pace::KEPT],
    len: usize,
    hole: Hole,
}

/// A silence and what follows it. Rates are in kbit/s and times in milliseconds, as in [`Stretch`].
#[derive(Clone, Copy, Debug, Default)]
struct Hole {
    /// How long nothing came; 0: there is no silence that still counts.
    silent: u32,
    /// How long it has been over, and what came since, in bits.
    since: u32,
    came: u64,
    /// The most that came before it.
    before: u32,
}

impl Hole {
    /// The highest rate that is plausible for a stretch of this rate, which is the next one.
    fn bound(&mut self, rate: u32, time: u32) -> u32 {
        self.since = self.since.saturating_add(time);
        self.came = self.came.saturating_add(u64::from(rate) * u64::from(time));
        let mean = self.came / u64::from(self.silent.saturating_add(self.since).max(1));
        self.before.max(u32::try_from(mean).unwrap_or(u32::MAX))
    }

    /// Whether what waited behind it has come: by then as much time has passed as it lasted, or [`CAUGHT_UP`].
    const fn is_over(&self) -> bool {
        self.since >= self.silent || self.since >= CAUGHT_UP
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// kbit/s and milliseconds, so that ten thousand connections stay small.
    rate: u32,
    time: u32,
}

impl Pace {
    /// How far back it reaches.
    pub(super) const MEMORY: Duration = Duration::from_millis(2000);
    /// Stretches kept: [`Self::MEMORY`] at the usual interval.
    const KEPT: usize = 20;

    pub(super) fn on_stretch(&mut self, rate: Bitrate, time: Duration) {
        let rate = u32::try_from(rate.bits_per_sec() / 1000).unwrap_or(u32::MAX);
        let time = u32::try_from(time.as_millis()).unwrap_or(u32::MAX).clamp(1, 2000);
        let rate = self.bounded(rate, time);
        if self.len == Self::KEPT {
            self.stretches.rotate_left(1);
            self.len -= 1;
        }
        if let Some(place) = self.stretches.get_mut(self.len) {
            *place = Stretch { rate, time };
            self.len += 1;
        }
    }

    /// A stretch's rate without what waited behind a hole before it; that is counted for the hole.
    fn bounded(&mut self, rate: u32, time: u32) -> u32 {
        if rate < SILENCE {
            if self.hole.silent == 0 {
                let before = self.most().unwrap_or_default().bits_per_sec() / 1000;
                self.hole = Hole { before: u32::try_from(before).unwrap_or(u32::MAX), ..Hole::default() };
            }
            self.hole.silent = self.hole.silent.saturating_add(time);
            return rate;
        }
        if self.hole.silent == 0 {
            return rate;
        }
        let bound = self.hole.bound(rate, time);
        let (silent, since) = (self.hole.silent, self.hole.since - time);
        if self.hole.is_over() {
            self.hole = Hole::default();
        }
        if rate <= bound {
            return rate;
        }
        let (mut passed, mut all) = (0, 0);
        let kept = self.stretches.get_mut(..self.len).unwrap_or_default();
        let mut hole = [0; 2];
        for (place, stretch) in kept.iter().enumerate().rev() {
            if passed >= since && passed < since.saturating_add(silent) {
                hole = [place, hole[1].max(place + 1)];
                all += u64::from(stretch.time);
            }
            passed += stretch.time;
        }
        let late = u64::from(rate - bound) * u64::from(time);
        let share = late.checked_div(all).map_or(0, |rate| u32::try_from(rate).unwrap_or(u32::MAX));
        for stretch in kept.get_mut(hole[0]..hole[1]).unwrap_or_default() {
            stretch.rate = stretch.rate.saturating_add(share).min(bound);
        }
        bound
    }

    /// A rate that is known to be the path's now, whatever it was.
    pub(super) fn begin_anew(&mut self, rate: Bitrate) {
        (self.len, self.hole) = (0, Hole::default());
        self.on_stretch(rate, Self::MEMORY / 2);
    }

    /// The path was dead, and not slow: forgets that nothing came lately.
    pub(super) fn forget_silence(&mut self) {
        while self.len > 0 && self.stretches.get(self.len - 1).is_some_and(|stretch| stretch.rate < SILENCE) {
            self.len -= 1;
        }
    }

    /// The median over the time remembered; none: nothing was seen.
    pub(super) fn median(&self) -> Option<Bitrate> {
        let mut found = [Stretch::default(); Self::KEPT];
        let (mut len, mut all) = (0, 0);
        for stretch in self.recent() {
            if let Some(place) = found.get_mut(len) {
                *place = stretch;
                len += 1;
                all += u64::from(stretch.time);
            }
        }
        let found = found.get_mut(..len)?;
        found.sort_unstable_by_key(|stretch| stretch.rate);
        let mut passed = 0;
        let middle = found.iter().find(|stretch| {
            passed += u64::from(stretch.time);
            2 * passed >= all
        });
        middle.map(|stretch| kbps(stretch.rate))
    }

    /// The mean over the last `time` of it; none: nothing was seen.
    pub(super) fn mean(&self, time: Duration) -> Option<Bitrate> {
        let (limit, mut passed, mut sum) = (time.as_millis() as u64, 0_u64, 0_u64);
        for stretch in self.recent() {
            let part = u64::from(stretch.time).min(limit - passed.min(limit));
            passed += part;
            sum += part * u64::from(stretch.rate);
        }
        sum.checked_div(passed).map(|rate| kbps(u32::try_from(rate).unwrap_or(u32::MAX)))
    }

    /// The mean over the last `time` in which anything came; none: nothing did.
    pub(super) fn moving(&self, time: Duration) -> Option<Bitrate> {
        let mut moved = Self::default();
        for stretch in self.stretches.iter().take(self.len).filter(|stretch| stretch.rate >= SILENCE) {
            // No silence is among these, so that nothing is bounded.
            moved.on_stretch(kbps(stretch.rate), Duration::from_millis(stretch.time.into()));
        }
        moved.mean(time)
    }

    /// The most of it, over three stretches at a time: what waited behind a lost packet counts when that comes, all at
    /// once; none: nothing was seen.
    pub(super) fn most(&self) -> Option<Bitrate> {
        let recent = self.stretches.get(self.len - self.recent().count()..self.len)?;
        let mean = |stretches: &[Stretch]| {
            let (time, sum) = stretches.iter().fold((0, 0), |(time, sum), stretch| {
                (time + u64::from(stretch.time), sum + u64::from(stretch.time) * u64::from(stretch.rate))
            });
            sum.checked_div(time)
        };
        let most = recent.windows(recent.len().clamp(1, 3)).filter_map(mean).max()?;
        Some(kbps(u32::try_from(most).unwrap_or(u32::MAX)))
    }

    /// How much time it has seen, up to its memory.
    pub(super) fn seen(&self) -> Duration {
        Duration::from_millis(self.recent().map(|stretch| u64::from(stretch.time)).sum())
    }

    /// The newest first, up to the memory.
    fn recent(&self) -> impl Iterator<Item = Stretch> {
        let mut left = Self::MEMORY.as_millis() as u32;
        self.stretches.get(..self.len).unwrap_or_default().iter().rev().map_while(move |stretch| {
            let time = stretch.time.min(left);
            left -= time;
            (time > 0).then_some(Stretch { time, ..*stretch })
        })
    }
}

/// Less than this is what a path brings in the stretch in which it dies.
const SILENCE: u32 = 20;

/// What waited behind a hole has come after this, in milliseconds. chosen: a receive window of 6 MB at 50 Mbit/s.
const CAUGHT_UP: u32 = 1000;

fn kbps(rate: u32) -> Bitrate {
    Bitrate::from_bits_per_sec(u64::from(rate) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ratio;

    fn pace(rates: impl IntoIterator<Item = u64>) -> Pace {
        let mut pace = Pace::default();
        for rate in rates {
            pace.on_stretch(Bitrate::from_mbps(rate), Duration::from_millis(100));
        }
        pace
    }

    #[test]
    fn a_dip_of_less_than_a_second_is_no_state() {
        let dip = |n: usize| pace(core::iter::repeat_n(16, 20).chain(core::iter::repeat_n(1, n)));
        assert_eq!(dip(9).median(), Some(Bitrate::from_mbps(16)));
        assert_eq!(dip(12).median(), Some(Bitrate::from_mbps(1)));
    }

    #[test]
    fn a_pause_is_no_slowness() {
        let second = Duration::from_secs(1);
        let paused = pace(core::iter::repeat_n(8, 5).chain(core::iter::repeat_n(0, 12)));
        assert_eq!(paused.mean(second), Some(Bitrate::ZERO));
        assert_eq!(paused.moving(second), Some(Bitrate::from_mbps(8)));
        assert_eq!(pace([0, 0, 0]).moving(second), None);
    }

    #[test]
    fn a_stretch_weighs_as_much_as_it_lasts() {
        let mut pace = pace([10, 10, 10]);
        pace.on_stretch(Bitrate::from_mbps(1), Duration::from_millis(400));
        assert_eq!(pace.median(), Some(Bitrate::from_mbps(1)));
        assert_eq!(pace.mean(Duration::from_millis(500)), Some(Bitrate::from_bits_per_sec(2_800_000)));
        assert_eq!(pace.seen(), Duration::from_millis(700));
    }

    #[test]
    fn the_most_is_no_jump_behind_a_gap() {
        let most = |rates: &[u64]| pace(rates.iter().copied()).most();
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
            let mut pace = pace(rates);
            assert_eq!(pace.most(), Some(four), "{burst:?}");
            assert!(pace.mean(second).unwrap() >= four.share(Ratio::from_percent(80)), "{burst:?}");
            assert!(pace.moving(second).unwrap() <= four);
            (0..5).for_each(|_| pace.on_stretch(four, Duration::from_millis(100)));
            assert_eq!(pace.most(), Some(four));
            assert!(pace.median().unwrap() >= four.share(Ratio::from_percent(80)), "{burst:?}");
        }
        // The hole was longer than the memory: the mean over all of it counts.
        let long = pace([4, 4, 4].into_iter().chain(core::iter::repeat_n(0, 60)).chain([80]));
        let most = long.most().unwrap();
        assert!(most <= four && most >= four.share(Ratio::from_percent(80)), "{most}");
        // Nothing was known before it.
        let first = pace(core::iter::repeat_n(0, 9).chain([40]));
        assert_eq!(first.most(), Some(four));
    }

    #[test]
    fn a_link_that_is_faster_after_a_pause_is_known_to_be_a_second_later() {
        let faster =
            pace([4, 4, 4].into_iter().chain(core::iter::repeat_n(0, 15)).chain(core::iter::repeat_n(20, 13)));
        assert_eq!(faster.most(), Some(Bitrate::from_mbps(20)));
    }

    #[test]
    fn nothing_seen_is_nothing_known() {
        assert_eq!(pace([]).median(), None);
        assert_eq!(pace([]).most(), None);
        assert_eq!(pace([]).mean(Duration::from_secs(1)), None);
        let mut long = Pace::default();
        long.on_stretch(Bitrate::MAX, Duration::MAX);
        assert_eq!(long.seen(), Pace::MEMORY);
    }
}
