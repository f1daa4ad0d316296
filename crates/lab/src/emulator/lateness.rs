//! How late packets left the emulator: a histogram of fixed size with an error of at most 3 %.
//!
//! Microseconds up to 63 have a slot each; above, each doubling has 32 slots. Keeping every sample was not chosen: a
//! run of minutes at full speed has tens of millions.

use std::time::Duration;

const SLOTS: usize = 64 + 32 * 40;

/// Lateness of all packets of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Packets measured.
    pub packets: u64,
    /// Half of them were at most this late.
    pub p50: Duration,
    /// All but one in a hundred.
    pub p99: Duration,
    /// The latest.
    pub max: Duration,
}

/// Collects samples.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    slots: Vec<u64>,
    packets: u64,
    max: Duration,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { slots: vec![0; SLOTS], packets: 0, max: Duration::ZERO }
    }

    pub(super) fn record(&mut self, late: Duration) {
        let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        if let Some(slot) = self.slots.get_mut(slot(micros).min(SLOTS - 1)) {
            *slot += 1;
        }
        self.packets += 1;
        self.max = self.max.max(late);
    }

    pub(super) fn lateness(&self) -> Lateness {
        let quantile = |percent: u64| {
            let rank = (self.packets * percent).div_ceil(100);
            let mut seen = 0;
            let slot = self.slots.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            slot.map_or(Duration::ZERO, |slot| Duration::from_micros(upper(slot)).min(self.max))
        };
        Lateness { packets: self.packets, p50: quantile(50), p99: quantile(99), max: self.max }
    }
}

/// The slot of a sample.
fn slot(micros: u64) -> usize {
    if micros < 64 {
        return micros as usize;
    }
    let doubling = micros.ilog2() - 6;
    64 + 32 * doubling as usize + ((micros >> (doubling + 1)) & 31) as usize
}

/// The largest sample of a slot.
fn upper(slot: usize) -> u64 {
    if slot < 64 {
        return slot as u64;
    }
    let (doubling, step) = ((slot - 64) / 32, (slot - 64) as u64 % 32);
    ((32 + step + 1) << (doubling + 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_lies_in_its_slot_within_3_percent() {
        for micros in (0..5000).chain((1..40).map(|n| 1 << n)).chain([123_456_789]) {
            let top = upper(slot(micros));
            assert!(top >= micros, "{micros} in a slot up to {top}");
            assert!(top - micros <= micros / 31, "{micros} in a slot up to {top}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_samples() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.lateness(), Lateness::default());
        for micros in 1..=100 {
            histogram.record(Duration::from_micros(micros));
        }
        let lateness = histogram.lateness();
        assert_eq!(lateness.p50, Duration::from_micros(50));
        assert_eq!(lateness.max, Duration::from_micros(100));
        assert!(lateness.p99 >= Duration::from_micros(99));
    }
}
