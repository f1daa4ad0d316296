//! Estimates the goodput of a flow from its ACKs: the mean of the last two seconds, in slots of 100 ms.

use crate::units::{Bitrate, DataSize, Duration, Instant};

/// Goodput of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct GoodputEstimator {
    slots: [u64; SLOTS],
    /// Number of the slot that is being filled; the slots before it within the window count.
    current: u64,
    first: u64,
    /// Bytes acknowledged since the flow was first seen.
    total: u64,
}

impl GoodputEstimator {
    /// Adds newly acknowledged bytes.
    pub(crate) fn on_bytes(&mut self, now: Instant, bytes: u32) {
        let slot = slot_of(now);
        if self.total == 0 {
            (self.first, self.current) = (slot, slot);
        }
        // Clear the slots that passed without an ACK.
        for passed in (self.current + 1..=slot).take(SLOTS) {
            if let Some(slot) = self.slots.get_mut(slot_index(passed)) {
                *slot = 0;
            }
        }
        self.current = self.current.max(slot);
        if let Some(current) = self.slots.get_mut(slot_index(slot)) {
            *current += u64::from(bytes);
        }
        self.total += u64::from(bytes);
    }

    /// Bytes acknowledged since the flow was first seen.
    pub(crate) const fn total(&self) -> DataSize {
        DataSize::from_bytes(self.total)
    }

    /// The mean over the complete slots of the last two seconds.
    pub(crate) fn rate(&self, now: Instant) -> Bitrate {
        let (bytes, slots) = self.bytes_in_last(now, SLOTS as u64 - 1);
        DataSize::from_bytes(bytes) / (SLOT * u32::try_from(slots.max(1)).unwrap_or(1))
    }

    /// Bytes of the last two complete slots and of the current one.
    pub(crate) fn recent_bytes(&self, now: Instant) -> DataSize {
        let current = if slot_of(now) == self.current {
            self.slots.get(slot_index(self.current)).copied().unwrap_or(0)
        } else {
            0
        };
        DataSize::from_bytes(self.bytes_in_last(now, 2).0 + current)
    }

    /// Bytes in the last so many complete slots, and how many of them the flow has existed for.
    fn bytes_in_last(&self, now: Instant, slots: u64) -> (u64, u64) {
        let now = slot_of(now);
        let from = now.saturating_sub(slots).max(self.first);
        let is_recent = |slot: &u64| *slot <= self.current && self.current - *slot < SLOTS as u64;
        let bytes = (from..now).filter(is_recent).filter_map(|slot| self.slots.get(slot_index(slot))).sum();
        (bytes, now.saturating_sub(from))
    }
}

fn slot_of(now: Instant) -> u64 {
    u64::try_from(now.since(Instant::ZERO).as_nanos() / SLOT.as_nanos()).unwrap_or(u64::MAX)
}

fn slot_index(slot: u64) -> usize {
    usize::try_from(slot % SLOTS as u64).unwrap_or(0)
}

const SLOT: Duration = Duration::from_millis(100);
/// Two seconds, and the slot that is being filled.
const SLOTS: usize = 21;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_mean_of_two_seconds() {
        let mut goodput = GoodputEstimator::default();
        for n in 0..100_u64 {
            goodput.on_bytes(Instant::from_millis(10_000 + n * 50), 12_500);
        }
        let now = Instant::from_millis(15_000);
        assert_eq!(goodput.rate(now), Bitrate::from_mbps(2));
        assert_eq!(goodput.recent_bytes(now), DataSize::from_bytes(50_000));
        assert_eq!(goodput.rate(now + Duration::from_secs(1)), Bitrate::from_mbps(1));
        assert!(goodput.rate(now + Duration::from_secs(30)).is_zero());
        assert!(goodput.recent_bytes(now + Duration::from_secs(30)).is_zero());
        assert_eq!(goodput.total(), DataSize::from_bytes(1_250_000));
    }

    #[test]
    fn a_young_flow_is_measured_over_its_lifetime() {
        let mut goodput = GoodputEstimator::default();
        goodput.on_bytes(Instant::from_millis(5000), 12_500);
        goodput.on_bytes(Instant::from_millis(5150), 12_500);
        assert_eq!(goodput.rate(Instant::from_millis(5200)), Bitrate::from_mbps(1));
    }
}
