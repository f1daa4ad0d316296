//! When a link is dark: drawn from a seed, so that everybody in a run meets the same blackouts.
//!
//! In: a seed, how long each is, how long the run is. Out: blackouts in their order; events for the lab; the share of a time
//! in which the link was there.
//!
//! 1. One begins every 20 s on average (Super-aggregation §6.4), each gap being off by up to a quarter.
//! 2. The first one comes after half such a gap, so that a minute has three.
//! 3. One that would not end within the run is left out: what comes after a blackout is what is measured.

use std::time::Duration;

use marline_core::units::Ratio;
use marline_sim::rng::{Purpose, RandomStream};
use marline_sim::spec::{LinkEvent, LinkEventKind};

/// From the beginning of one to that of the next, on average (§6.4).
const EVERY: Duration = Duration::from_secs(20);
/// After a blackout at least so much of the run is left, so that what it did can be seen. chosen: a few round trips of 200 ms.
const AFTER: Duration = Duration::from_secs(2);

/// A time in which nothing passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blackout {
    /// When it begins, since the start of the run.
    pub(crate) from: Duration,
    /// How long it is.
    pub(crate) length: Duration,
}

impl Blackout {
    fn end(self) -> Duration {
        self.from + self.length
    }
}

/// Blackouts of this length within a run.
pub(crate) fn draw(seed: u64, length: Duration, run: Duration) -> Vec<Blackout> {
    let mut random = RandomStream::new(seed, "blackouts", 0, Purpose::Other);
    // Off by at most a quarter either way, in steps of a thousandth.
    let mut gap = |mean: Duration| mean.mul_f64(0.75 + random.below(501) as f64 / 1000.0);
    let mut all = Vec::new();
    let mut from = gap(EVERY / 2);
    while from + length + AFTER <= run {
        all.push(Blackout { from, length });
        from += gap(EVERY).max(length + AFTER);
    }
    all
}

/// What the lab is to do.
pub(crate) fn events(link: &str, blackouts: &[Blackout]) -> Vec<LinkEvent> {
    let event = |at, change| LinkEvent { at, link: link.to_owned(), change };
    blackouts
        .iter()
        .flat_map(|dark| [event(dark.from, LinkEventKind::Down), event(dark.end(), LinkEventKind::Restore)])
        .collect()
}

/// The share of the time from `from` to `to` that was not dark.
pub(crate) fn availability(blackouts: &[Blackout], from: Duration, to: Duration) -> Ratio {
    let whole = to.saturating_sub(from);
    let dark: Duration = blackouts.iter().map(|dark| dark.end().min(to).saturating_sub(dark.from.max(from))).sum();
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    if whole.is_zero() { Ratio::ONE } else { Ratio::of(nanos(whole.saturating_sub(dark)), nanos(whole)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_minute_has_three_blackouts_at_times_that_the_seed_decides() {
        for seed in 0..200 {
            let drawn = draw(seed, S(2), S(60));
            assert!((2..=4).contains(&drawn.len()), "{seed}: {drawn:?}");
            for pair in drawn.windows(2) {
                let gap = pair[1].from - pair[0].from;
                assert!(gap >= S(15) && gap <= S(25), "{gap:?}");
            }
            assert!(drawn.iter().all(|dark| dark.end() + AFTER <= S(60)));
        }
        assert_eq!(draw(7, S(2), S(60)), draw(7, S(2), S(60)));
        assert_ne!(draw(7, S(2), S(60)), draw(8, S(2), S(60)));
        assert!(draw(1, S(2), S(5)).is_empty());
    }

    #[test]
    fn blackouts_never_touch_even_where_they_are_longer_than_a_gap() {
        let drawn = draw(3, S(30), S(200));
        assert!(drawn.windows(2).all(|pair| pair[0].end() + AFTER <= pair[1].from));
    }

    #[test]
    fn what_was_dark_within_a_time_is_not_available() {
        let dark = [Blackout { from: S(10), length: S(2) }, Blackout { from: S(30), length: S(10) }];
        assert_eq!(availability(&dark, S(0), S(60)).ppm(), 800_000);
        assert_eq!(availability(&dark, S(11), S(31)).ppm(), 900_000);
        assert_eq!(availability(&dark, S(50), S(50)), Ratio::ONE);
        let words: Vec<String> = events("primary", &dark).iter().map(ToString::to_string).collect();
        assert_eq!(words, ["10s:primary=down", "12s:primary=up", "30s:primary=down", "40s:primary=up"]);
    }
}
