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

use crate::accel::observation::sack_holes::Holes;
use crate::units::{Duration, Instant};

/// One flow's calm.
#[derive(Clone, Copy, Debug)]
pub(in crate::accel) struct Calm {
    needed: Duration,
    began: Option<Instant>,
    /// Since when there are holes, with pauses of less than [`LEAST`].
    stirred: Option<Instant>,
    /// How long it takes to forget them all, at [`SOON`] for each; and as of when.
    strain: Duration,
    counted: Instant,
}

impl Default for Calm {
    fn default() -> Self {
        Self { needed: LEAST, began: None, stirred: None, strain: Duration::ZERO, counted: Instant::ZERO }
    }
}

impl Calm {
    /// Whether it is, now.
    pub(in crate::accel) fn is_calm(&mut self, now: Instant, holes: &Holes) -> bool {
        self.count(now, holes);
        if holes.closed_for(now, self.needed) {
            self.began.get_or_insert(now);
            return true;
        }
        if let Some(began) = self.began.take() {
            let needed = if now.since(began) < SOON { self.needed * 2 } else { self.needed / 2 };
            self.needed = needed.clamp(LEAST, MOST);
        }
        false
    }

    /// Whether holes come too often or last too long. To be asked after [`Self::is_calm`].
    pub(in crate::accel) fn is_strained(&self, now: Instant) -> bool {
        self.strain > SOON * OFTEN || self.stirred.is_some_and(|since| now.since(since) >= LONG)
    }

    fn count(&mut self, now: Instant, holes: &Holes) {
        self.strain = self.strain.saturating_sub(now.since(self.counted));
        self.counted = now;
        if holes.is_open() {
            if self.stirred.is_none() {
                self.strain = (self.strain + SOON).min(SOON * (OFTEN + 1));
            }
            self.stirred.get_or_insert(now);
        } else if holes.closed_for(now, LEAST) {
            self.stirred = None;
        }
    }
}

/// chosen: some round trips, and short beside the seconds between the losses of a window that fills a queue.
const LEAST: Duration = Duration::from_millis(400);
const MOST: Duration = Duration::from_secs(30);
/// chosen: shorter than the time between two losses of CUBIC on a link of 20 Mbit/s.
const SOON: Duration = Duration::from_secs(3);
/// chosen: CUBIC in a full queue has one at a time.
const OFTEN: u32 = 3;
/// chosen: the repair of half a window takes a second at 200 ms.
const LONG: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{Ack, Flags, SackBlocks, Seq, SeqRange};

    /// Of a minute with a hole of `open` ms after each so many: how much was calm, in how many pieces, and how much strained.
    fn run(between: u64, open: u64) -> (u32, u32, u32) {
        let (mut calm, mut holes) = (Calm::default(), Holes::default());
        let (mut calms, mut pieces, mut strained, mut was) = (0, 0, 0, false);
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
            let is = calm.is_calm(now, &holes);
            calms += u32::from(is);
            pieces += u32::from(is && !was);
            strained += u32::from(calm.is_strained(now));
            was = is;
        }
        (calms, pieces, strained)
    }

    #[test]
    fn rare_holes_cost_little_and_frequent_ones_end_it() {
        let (calm, pieces, strained) = run(6000, 50);
        assert!(calm > 54_000 && pieces == 10 && strained == 0, "{calm} in {pieces}");
        let (calm, pieces, strained) = run(1000, 50);
        assert!(calm < 3000 && pieces <= 3 && strained > 50_000, "{calm} in {pieces}, {strained}");
        let (calm, pieces, strained) = run(200, 50);
        assert!((calm, pieces) == (0, 0) && strained > 57_000);
    }

    #[test]
    fn a_repair_may_take_a_second_and_not_three() {
        assert_eq!(run(6000, 1000).2, 0);
        assert!(run(8000, 3000).2 > 7 * 1000);
    }
}
