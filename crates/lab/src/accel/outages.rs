//! Outages of a link, drawn from a seed, so that all trials of a run meet the same ones.
//!
//! 1. One begins every 20 s on average (Super-aggregation §6.4); each interval varies by up to a quarter.
//! 2. The first one comes after half such an interval, so that a minute has about three.
//! 3. An outage that would not end two seconds before the end of the run is omitted: what follows an outage is what is measured.

use std::time::Duration;

use marline_core::units::Ratio;
use marline_sim::rng::{Purpose, RandomStream};
use marline_sim::spec::{LinkEvent, LinkEventKind};

/// From the beginning of an outage to that of the next, on average (Super-aggregation §6.4).
const OUTAGE_INTERVAL: Duration = Duration::from_secs(20);
/// After an outage at least so much of the run remains, so that its effect is measured. Our choice: some round trips of
/// 200 ms.
const MIN_TIME_AFTER: Duration = Duration::from_secs(2);

/// A time in which nothing passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outage {
    /// Since the start of the run.
    pub(crate) from: Duration,
    pub(crate) length: Duration,
}

impl Outage {
    fn end(self) -> Duration {
        self.from + self.length
    }
}

/// Outages of this length within a run.
pub(crate) fn draw(seed: u64, length: Duration, run: Duration) -> Vec<Outage> {
    let mut random = RandomStream::new(seed, "blackouts", 0, Purpose::Other);
    // Varies by at most a quarter, in steps of a thousandth.
    let mut gap = |mean: Duration| mean.mul_f64(0.75 + random.below(501) as f64 / 1000.0);
    let mut all = Vec::new();
    let mut from = gap(OUTAGE_INTERVAL / 2);
    while from + length + MIN_TIME_AFTER <= run {
        all.push(Outage { from, length });
        from += gap(OUTAGE_INTERVAL).max(length + MIN_TIME_AFTER);
    }
    all
}

/// The events of the lab for these outages.
pub(crate) fn events(link: &str, outages: &[Outage]) -> Vec<LinkEvent> {
    let event = |at, change| LinkEvent { at, link: link.to_owned(), change };
    outages
        .iter()
        .flat_map(|one| [event(one.from, LinkEventKind::Down), event(one.end(), LinkEventKind::Restore)])
        .collect()
}

/// The share of the time from `from` to `to` without an outage.
pub(crate) fn availability(outages: &[Outage], from: Duration, to: Duration) -> Ratio {
    let total_time = to.saturating_sub(from);
    let outage_time: Duration =
        outages.iter().map(|one| one.end().min(to).saturating_sub(one.from.max(from))).sum();
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    if total_time.is_zero() {
        Ratio::ONE
    } else {
        Ratio::of(nanos(total_time.saturating_sub(outage_time)), nanos(total_time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_minute_has_three_outages_at_times_that_depend_on_the_seed() {
        for seed in 0..200 {
            let drawn = draw(seed, S(2), S(60));
            assert!((2..=4).contains(&drawn.len()), "{seed}: {drawn:?}");
            for pair in drawn.windows(2) {
                let gap = pair[1].from - pair[0].from;
                assert!(gap >= S(15) && gap <= S(25), "{gap:?}");
            }
            assert!(drawn.iter().all(|one| one.end() + MIN_TIME_AFTER <= S(60)));
        }
        assert_eq!(draw(7, S(2), S(60)), draw(7, S(2), S(60)));
        assert_ne!(draw(7, S(2), S(60)), draw(8, S(2), S(60)));
        assert!(draw(1, S(2), S(5)).is_empty());
    }

    #[test]
    fn outages_never_overlap_even_if_they_are_longer_than_the_interval() {
        let drawn = draw(3, S(30), S(200));
        assert!(drawn.windows(2).all(|pair| pair[0].end() + MIN_TIME_AFTER <= pair[1].from));
    }

    #[test]
    fn outages_within_a_time_reduce_its_availability() {
        let outages = [Outage { from: S(10), length: S(2) }, Outage { from: S(30), length: S(10) }];
        assert_eq!(availability(&outages, S(0), S(60)).ppm(), 800_000);
        assert_eq!(availability(&outages, S(11), S(31)).ppm(), 900_000);
        assert_eq!(availability(&outages, S(50), S(50)), Ratio::ONE);
        let texts: Vec<String> = events("primary", &outages).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10s:primary=down", "12s:primary=up", "30s:primary=down", "40s:primary=up"]);
    }
}
