//! Decides by the frequency of holes whether the ACKs of a flow may leave over a secondary link.
//!
//! 1. Offload begins when nothing has been missing for a while. That time is doubled if such a phase ended soon, and
//!    halved if it lasted.
//! 2. Offload continues over a few holes, because a window that fills a queue has some every few seconds. While
//!    something is missing, ACKs leave over the primary link with the delay of the secondary one
//!    ([`super::delay_queue`]): an ACK with SACK blocks that overtakes a plain one makes the sender take data for lost
//!    that is not.
//! 3. Offload ends when holes come more often or last longer: then the sender's own window is not their cause, and a
//!    longer round trip slows its recovery.

use crate::accel::ack_offload::options::AckOffloadOptions;
use crate::accel::observation::sack_holes::SackHoles;
use crate::units::{Duration, Instant};

/// Hole statistics of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossGuard {
    options: &'static AckOffloadOptions,
    required_time: Duration,
    clear_since: Option<Instant>,
    /// Since when there are holes, with pauses shorter than `min_clear_time`.
    holes_since: Option<Instant>,
    /// The time in which all recent holes are forgotten, at `short_clear_time` each, as of `updated`.
    backlog: Duration,
    updated: Instant,
}

impl LossGuard {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static AckOffloadOptions) -> Self {
        Self { options, required_time: options.min_clear_time, ..Self::default() }
    }

    /// Whether nothing has been missing for long enough.
    pub(crate) fn is_clear(&mut self, now: Instant, holes: &SackHoles) -> bool {
        self.update(now, holes);
        if holes.closed_for(now, self.required_time) {
            self.clear_since.get_or_insert(now);
            return true;
        }
        if let Some(began) = self.clear_since.take() {
            let needed = if now.since(began) < self.options.short_clear_time {
                self.required_time * 2
            } else {
                self.required_time / 2
            };
            self.required_time = needed.clamp(self.options.min_clear_time, MAX_CLEAR_TIME);
        }
        false
    }

    /// Whether holes come too often or last too long. To be called after [`Self::is_clear`].
    pub(crate) fn has_frequent_loss(&self, now: Instant) -> bool {
        self.backlog > self.options.short_clear_time * self.options.max_holes
            || self.holes_since.is_some_and(|since| now.since(since) >= self.options.max_repair_time)
    }

    fn update(&mut self, now: Instant, holes: &SackHoles) {
        self.backlog = self.backlog.saturating_sub(now.since(self.updated));
        self.updated = now;
        if holes.is_open() {
            if self.holes_since.is_none() {
                self.backlog = (self.backlog + self.options.short_clear_time)
                    .min(self.options.short_clear_time * (self.options.max_holes + 1));
            }
            self.holes_since.get_or_insert(now);
        } else if holes.closed_for(now, self.options.min_clear_time) {
            self.holes_since = None;
        }
    }
}

/// Bounds the doubled time, so that a flow can be tried again within a minute after its last loss.
const MAX_CLEAR_TIME: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{Ack, Flags, SackBlocks, Seq, SeqRange};

    /// A minute with a hole of `open` ms after each `between` ms: how many milliseconds were clear, in how many phases,
    /// and in how many losses were frequent.
    fn run(between: u64, open: u64) -> (u32, u32, u32) {
        let (mut guard, mut holes) = (LossGuard::new(&AckOffloadOptions::DEFAULT), SackHoles::default());
        let (mut clear_ms, mut pieces, mut frequent_ms, mut was) = (0, 0, 0, false);
        for ms in 0..60_000 {
            let now = Instant::from_millis(ms);
            let blocks: &[SeqRange] =
                if ms % between < open { &[SeqRange::with_len(Seq::new(200), 9)] } else { &[] };
            let (seq, ack) = (Seq::new(1), Seq::new(100));
            holes.on_ack(
                now,
                &Ack {
                    seq,
                    ack,
                    window: 9,
                    flags: Flags::ACK,
                    timestamps: None,
                    sack_blocks: SackBlocks::of(blocks),
                },
                1448,
            );
            let is_clear = guard.is_clear(now, &holes);
            clear_ms += u32::from(is_clear);
            pieces += u32::from(is_clear && !was);
            frequent_ms += u32::from(guard.has_frequent_loss(now));
            was = is_clear;
        }
        (clear_ms, pieces, frequent_ms)
    }

    #[test]
    fn rare_holes_cost_little_and_frequent_ones_end_offload() {
        let (guard, pieces, frequent_ms) = run(6000, 50);
        assert!(guard > 54_000 && pieces == 10 && frequent_ms == 0, "{guard} in {pieces}");
        let (guard, pieces, frequent_ms) = run(1000, 50);
        assert!(guard < 3000 && pieces <= 3 && frequent_ms > 50_000, "{guard} in {pieces}, {frequent_ms}");
        let (guard, pieces, frequent_ms) = run(200, 50);
        assert!((guard, pieces) == (0, 0) && frequent_ms > 57_000);
    }

    #[test]
    fn a_repair_may_take_one_second_but_not_three() {
        assert_eq!(run(6000, 1000).2, 0);
        assert!(run(8000, 3000).2 > 7 * 1000);
    }
}
