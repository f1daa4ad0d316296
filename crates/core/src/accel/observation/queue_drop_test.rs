//! Tests whether losses come with the longest queueing delays, as those of a short queue that overflows do.
//!
//! Bytes and losses are counted in two classes: while the newest packet has waited about as long as packets ever do,
//! and below that.
//!
//! 1. A queue that overflows drops at its maximum and nowhere else, so most of the recent losses were there.
//! 2. Random losses are proportional to bytes, wherever the queue stands; and it may stand at its maximum for seconds
//!    when a window has reached its former size. So losses at the maximum must also be more frequent per byte than
//!    below it. Old counts are halved again and again.

use super::path_test::LossCounts;
use crate::accel::observation::options::ObservationOptions;
use crate::units::Instant;

/// Counters of one flow; see the [module documentation](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueDropTest {
    options: &'static ObservationOptions,
    near_max: LossCounts,
    below: LossCounts,
    halved: Instant,
    /// Share of the recent losses that came at the maximum, in 256ths (exponential average).
    recent_share: u32,
}

impl QueueDropTest {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static ObservationOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// So many bytes arrived.
    pub(crate) fn on_bytes(&mut self, now: Instant, bytes: u32, is_top: bool) {
        if now.since(self.halved) >= self.options.queue_drop_half_life {
            (self.near_max, self.below, self.halved) = (self.near_max.half(), self.below.half(), now);
        }
        let count = self.count(is_top);
        count.bytes += u64::from(bytes);
    }

    /// A loss showed.
    pub(crate) fn on_loss(&mut self, is_top: bool) {
        let count = self.count(is_top);
        count.losses += 1;
        self.recent_share = self.recent_share * 7 / 8 + if is_top { 32 } else { 0 };
    }

    /// Whether losses now come from a queue at its maximum.
    pub(crate) fn drops_at_max(&self) -> bool {
        let (top, below) = (
            self.near_max.losses.saturating_mul(self.below.bytes),
            self.below.losses.saturating_mul(self.near_max.bytes),
        );
        self.recent_share >= self.options.queue_drop_share
            && top >= below.saturating_mul(self.options.queue_drop_ratio)
    }

    const fn count(&mut self, is_top: bool) -> &mut LossCounts {
        if is_top { &mut self.near_max } else { &mut self.below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test after these bytes and losses at the maximum and below it.
    fn odds(top: (u32, u32), below: (u32, u32)) -> QueueDropTest {
        let mut test = QueueDropTest::default();
        for (is_top, (bytes, losses)) in [(false, below), (true, top)] {
            test.on_bytes(Instant::ZERO, bytes, is_top);
            (0..losses).for_each(|_| test.on_loss(is_top));
        }
        test
    }

    #[test]
    fn losses_per_byte_are_compared_not_counts() {
        assert!(odds((100, 8), (900, 0)).drops_at_max(), "a queue that overflows");
        assert!(odds((100, 8), (900, 9)).drops_at_max(), "and some at random");
        assert!(!odds((900, 9), (100, 1)).drops_at_max(), "a queue that stands long, and losses at random");
        assert!(!odds((100, 4), (900, 0)).drops_at_max(), "too few to tell");
    }

    #[test]
    fn one_or_two_losses_below_the_maximum_end_it() {
        let mut test = odds((100, 8), (900, 0));
        (0..2).for_each(|_| test.on_loss(false));
        assert!(!test.drops_at_max());
    }

    #[test]
    fn old_counts_fade() {
        let (mut test, mut now) = (odds((100, 8), (100, 3)), Instant::ZERO);
        assert!(!test.drops_at_max());
        for _ in 0..2 {
            now += ObservationOptions::DEFAULT.queue_drop_half_life;
            test.on_bytes(now, 100, true);
            (0..8).for_each(|_| test.on_loss(true));
        }
        assert!(test.drops_at_max(), "three losses of long ago");
    }
}
