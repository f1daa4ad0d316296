//! Whether a flow has holes too often for its ACKs to go another way.
//!
//! In: its holes. Out: whether offload may begin, and whether it must end.
//!
//! 1. It begins when nothing has been missing for a while. That is doubled when such a calm ended soon, and halved when it
//!    lasted.
//! 2. It goes on over a few holes, for a window that fills a queue has some every few seconds. While something is missing
//!    ACKs leave over the first link, as late as over the second (`line`): one with SACK blocks that overtakes a plain one
//!    makes the sender take for lost what is not (facts, D).
//! 3. It ends when holes come more often or last for longer: then they are not the sender's own, and a longer round trip
//!    slows its recovery.

use crate::accel::observation::sack_holes::SackHoles;
use crate::units::{Duration, Instant};

/// One flow's calm.
#[derive(Clone, Copy, Debug)]
pub(in crate::accel) struct LossGuard {
    required_time: Duration,
    clear_since: Option<Instant>,
    /// Since when there are holes, with pauses of less than [`LEAST`].
    holes_since: Option<Instant>,
    /// How long it takes to forget them all, at [`SOON`] for each; and as of when.
    backlog: Duration,
    updated: Instant,
}

impl Default for LossGuard {
    fn default() -> Self {
        Self {
            required_time: MIN_CLEAR_TIME,
            clear_since: None,
            holes_since: None,
            backlog: Duration::ZERO,
            updated: Instant::ZERO,
        }
    }
}

impl LossGuard {
    /// Whether it is, now.
    pub(in crate::accel) fn is_clear(&mut self, now: Instant, holes: &SackHoles) -> bool {
        self.update(now, holes);
        if holes.closed_for(now, self.required_time) {
            self.clear_since.get_or_insert(now);
            return true;
        }
        if let Some(began) = self.clear_since.take() {
            let needed =
                if now.since(began) < SHORT_CLEAR_TIME { self.required_time * 2 } else { self.required_time / 2 };
            self.required_time = needed.clamp(MIN_CLEAR_TIME, MAX_CLEAR_TIME);
        }
        false
    }

    /// Whether holes come too often or last too long. To be asked after [`Self::is_calm`].
    pub(in crate::accel) fn has_frequent_loss(&self, now: Instant) -> bool {
        self.backlog > SHORT_CLEAR_TIME * MAX_HOLES
            || self.holes_since.is_some_and(|since| now.since(since) >= MAX_REPAIR_TIME)
    }

    fn update(&mut self, now: Instant, holes: &SackHoles) {
        self.backlog = self.backlog.saturating_sub(now.since(self.updated));
        self.updated = now;
        if holes.is_open() {
            if self.holes_since.is_none() {
                self.backlog = (self.backlog + SHORT_CLEAR_TIME).min(SHORT_CLEAR_TIME * (MAX_HOLES + 1));
            }
            self.holes_since.get_or_insert(now);
        } else if holes.closed_for(now, MIN_CLEAR_TIME) {
            self.holes_since = None;
        }
    }
}

/// chosen: some round trips, and short beside the seconds between the losses of a window that fills a queue.
const MIN_CLEAR_TIME: Duration = Duration::from_millis(400);
const MAX_CLEAR_TIME: Duration = Duration::from_secs(30);
/// chosen: shorter than the time between two losses of CUBIC on a link of 20 Mbit/s.
const SHORT_CLEAR_TIME: Duration = Duration::from_secs(3);
/// chosen: CUBIC in a full queue has one at a time.
const MAX_HOLES: u32 = 3;
/// chosen: the repair of half a window takes a second at 200 ms.
const MAX_REPAIR_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{Ack, Flags, SackBlocks, Seq, SeqRange};

    /// Of a minute with a hole of `open` ms after each so many: how much was calm, in how many pieces, and how much strained.
    fn run(between: u64, open: u64) -> (u32, u32, u32) {
        let (mut guard, mut holes) = (LossGuard::default(), SackHoles::default());
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
            let is = guard.is_clear(now, &holes);
            clear_ms += u32::from(is);
            pieces += u32::from(is && !was);
            frequent_ms += u32::from(guard.has_frequent_loss(now));
            was = is;
        }
        (clear_ms, pieces, frequent_ms)
    }

    #[test]
    fn rare_holes_cost_little_and_frequent_ones_end_it() {
        let (guard, pieces, frequent_ms) = run(6000, 50);
        assert!(guard > 54_000 && pieces == 10 && frequent_ms == 0, "{guard} in {pieces}");
        let (guard, pieces, frequent_ms) = run(1000, 50);
        assert!(guard < 3000 && pieces <= 3 && frequent_ms > 50_000, "{guard} in {pieces}, {frequent_ms}");
        let (guard, pieces, frequent_ms) = run(200, 50);
        assert!((guard, pieces) == (0, 0) && frequent_ms > 57_000);
    }

    #[test]
    fn a_repair_may_take_a_second_and_not_three() {
        assert_eq!(run(6000, 1000).2, 0);
        assert!(run(8000, 3000).2 > 7 * 1000);
    }
}
