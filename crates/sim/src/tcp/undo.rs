//! Detects spurious reductions of the congestion window and restores the values from before.
//!
//! Inputs are reductions, retransmissions, echoed timestamps, and the duplicates that ACKs report.
//!
//! 1. Eifel (RFC 3522, as implemented in Linux): an ACK that advances and echoes a timestamp from before the first
//!    retransmission was caused by the original. Timestamps are compared in milliseconds, the ticks of Linux.
//! 2. Duplicates (RFC 3708): as many duplicates were reported as segments were retransmitted, so all originals had
//!    arrived.
//! 3. If nothing was retransmitted yet, everything that arrives is an original.
//! 4. Restored values are never smaller than the current ones.

use marline_core::units::Instant;

use super::segment::SeqRange;

/// State of the last reduction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UndoState {
    reduction: Option<Reduction>,
    /// Time of the first retransmission of this episode (Linux's `retrans_stamp`).
    first_retransmit: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Reduction {
    /// First unacknowledged sequence number at the reduction.
    una: u64,
    /// Retransmitted segments that were not reported as duplicates; `None` if none was retransmitted.
    undo_retransmits: Option<u32>,
    prior: PriorCwnd,
}

/// Values before a reduction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PriorCwnd {
    /// Congestion window in segments.
    pub(super) cwnd: u32,
    /// Slow-start threshold in segments.
    pub(super) ssthresh: u32,
}

impl UndoState {
    /// The window is about to be reduced while `retransmits_in_flight` retransmissions are in flight.
    pub(super) fn on_reduction(&mut self, una: u64, prior: PriorCwnd, retransmits_in_flight: u32) {
        self.reduction = Some(Reduction {
            una,
            undo_retransmits: (retransmits_in_flight > 0).then_some(retransmits_in_flight),
            prior,
        });
        if retransmits_in_flight == 0 {
            self.first_retransmit = None;
        }
    }

    /// A segment was retransmitted.
    pub(super) fn on_retransmit(&mut self, now: Instant) {
        self.first_retransmit.get_or_insert(now);
        if let Some(reduction) = &mut self.reduction {
            *reduction.undo_retransmits.get_or_insert(0) += 1;
        }
    }

    /// `block` has arrived twice; `una` is the first unacknowledged sequence number before this ACK.
    pub(super) fn on_duplicate(&mut self, block: SeqRange, una: u64) {
        let Some(reduction) = &mut self.reduction else { return };
        if block.end <= una && block.end > reduction.una {
            reduction.undo_retransmits = reduction.undo_retransmits.map(|repeats| repeats.saturating_sub(1));
        }
    }

    /// No retransmission is in flight any more: the next one begins a new episode.
    pub(super) fn forget_retransmits(&mut self) {
        self.first_retransmit = None;
    }

    /// Rule 1: whether an ACK that advances and echoes this timestamp was caused by an original.
    pub(super) fn is_original(&self, ts_ecr: Option<Instant>) -> bool {
        let is_earlier = |first| ts_ecr.is_some_and(|echo| timestamp_tick(echo) < timestamp_tick(first));
        self.reduction.is_some() && self.first_retransmit.is_none_or(is_earlier)
    }

    /// Rule 2: whether every retransmission was reported as a duplicate.
    pub(super) fn all_retransmits_were_spurious(&self) -> bool {
        self.reduction.is_some_and(|reduction| reduction.undo_retransmits == Some(0))
    }

    /// Whether an ACK that echoes this timestamp permits an undo.
    pub(super) fn can_undo(&self, ts_ecr: Option<Instant>) -> bool {
        self.reduction.is_some() && (self.all_retransmits_were_spurious() || self.is_original(ts_ecr))
    }

    /// The values to restore, once.
    pub(super) fn take(&mut self) -> Option<PriorCwnd> {
        self.reduction.take().map(|reduction| reduction.prior)
    }
}

/// Converts to the ticks of Linux's timestamps.
pub(super) const fn timestamp_tick(at: Instant) -> u64 {
    at.as_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: PriorCwnd = PriorCwnd { cwnd: 100, ssthresh: 80 };

    fn after_reduction_and_retransmit(at: u64) -> UndoState {
        let mut undo = UndoState::default();
        undo.on_reduction(1000, PRIOR, 0);
        undo.on_retransmit(Instant::from_millis(at));
        undo
    }

    #[test]
    fn an_echo_from_before_the_first_retransmission_permits_one_undo() {
        let mut undo = after_reduction_and_retransmit(100);
        undo.on_retransmit(Instant::from_millis(200));
        assert!(
            !undo.can_undo(None) && !undo.can_undo(Some(Instant::from_millis(100))),
            "the same tick is not earlier"
        );
        assert!(undo.can_undo(Some(Instant::from_millis(99))));
        assert_eq!((undo.take(), undo.take()), (Some(PRIOR), None));
    }

    #[test]
    fn as_many_duplicates_as_retransmissions_permit_an_undo() {
        let mut undo = after_reduction_and_retransmit(100);
        undo.on_retransmit(Instant::from_millis(101));
        undo.on_duplicate(SeqRange::new(1000, 2000), 5000);
        undo.on_duplicate(SeqRange::new(0, 1000), 5000);
        assert!(!undo.all_retransmits_were_spurious(), "one was below the reduction");
        undo.on_duplicate(SeqRange::new(2000, 3000), 5000);
        assert!(undo.all_retransmits_were_spurious() && undo.can_undo(None));
    }

    #[test]
    fn without_a_retransmission_everything_that_arrives_is_an_original() {
        let mut undo = UndoState::default();
        undo.on_reduction(0, PRIOR, 0);
        assert!(undo.can_undo(None) && !undo.all_retransmits_were_spurious());
    }
}
