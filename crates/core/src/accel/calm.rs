//! Is a flow quiet enough for its ACKs to take a longer way?
//!
//! In: its holes. Out: whether its ACKs may go elsewhere.
//!
//! 1. Never while something is missing: an ACK with SACK blocks that overtakes a plain one makes the sender take for lost
//!    what is not (facts, D).
//! 2. Each change of the way is a gap of the ways' difference in the stream of ACKs. So where holes come often the wait
//!    grows: it is doubled when calm ended soon, and halved when it lasted.

use super::holes::Holes;
use crate::units::{Duration, Instant};

/// One flow's calm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calm {
    needed: Duration,
    began: Option<Instant>,
}

impl Default for Calm {
    fn default() -> Self {
        Self { needed: LEAST, began: None }
    }
}

impl Calm {
    /// Whether it is, now.
    pub(super) fn is_calm(&mut self, now: Instant, holes: &Holes) -> bool {
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
}

/// chosen: some round trips, and short beside the seconds between the losses of a window that fills a queue.
const LEAST: Duration = Duration::from_millis(400);
const MOST: Duration = Duration::from_secs(30);
/// chosen: shorter than the time between two losses of CUBIC on a link of 20 Mbit/s.
const SOON: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{Ack, Flags, Sacks, Seq, Span};

    /// Of a minute with a hole of 50 ms after each so many: how much was calm, and in how many pieces.
    fn run(between: u64) -> (u32, u32) {
        let (mut calm, mut holes) = (Calm::default(), Holes::default());
        let (mut calms, mut pieces, mut was) = (0, 0, false);
        for ms in 0..60_000 {
            let now = Instant::from_millis(ms);
            let blocks: &[Span] = if ms % between < 50 { &[Span::at(Seq::new(200), 9)] } else { &[] };
            let (seq, ack) = (Seq::new(1), Seq::new(100));
            holes.on_ack(
                now,
                &Ack { seq, ack, window: 9, flags: Flags::ACK, timestamps: None, sacks: Sacks::of(blocks) },
            );
            let is = calm.is_calm(now, &holes);
            calms += u32::from(is);
            pieces += u32::from(is && !was);
            was = is;
        }
        (calms, pieces)
    }

    #[test]
    fn rare_holes_cost_little_and_frequent_ones_end_it() {
        let (calm, pieces) = run(6000);
        assert!(calm > 54_000 && pieces == 10, "{calm} in {pieces}");
        let (calm, pieces) = run(1000);
        assert!(calm < 3000 && pieces <= 3, "{calm} in {pieces}");
        assert_eq!(run(200), (0, 0));
    }
}
