//! Was a reduction of the window needless, and what was it before?
//!
//! In: reductions, segments sent again, what ACKs echo and which duplicates they report. Out: the window and the threshold
//! to be put back, once.
//!
//! 1. Eifel (RFC 3522, as Linux reads it): an ACK that moves the edge and echoes a clock from before the first repetition
//!    answers the original. Clocks are compared in milliseconds, the ticks of Linux's timestamps.
//! 2. Duplicates (RFC 3708): as many were reported as segments were sent again, so all originals had arrived.
//! 3. Where nothing was sent again yet, whatever arrives is an original.
//! 4. What is put back is never smaller than what is there.

use marline_core::units::Instant;

use super::segment::SeqRange;

/// What is known of the last reduction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UndoState {
    reduction: Option<Reduction>,
    /// When the first segment of this episode was sent again (Linux's `retrans_stamp`).
    first_retransmit: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Reduction {
    /// The first unacknowledged number at that moment.
    una: u64,
    /// Segments sent again and not reported as duplicates; none: none was sent again.
    undo_retransmits: Option<u32>,
    prior: PriorCwnd,
}

/// What a reduction has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PriorCwnd {
    /// The congestion window.
    pub(super) cwnd: u32,
    /// The slow-start threshold.
    pub(super) ssthresh: u32,
}

impl UndoState {
    /// The window is about to be reduced, with so many repeated segments on their way.
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

    /// A segment was sent again.
    pub(super) fn on_retransmit(&mut self, now: Instant) {
        self.first_retransmit.get_or_insert(now);
        if let Some(reduction) = &mut self.reduction {
            *reduction.undo_retransmits.get_or_insert(0) += 1;
        }
    }

    /// This has arrived twice; everything before `edge` was acknowledged earlier.
    pub(super) fn on_duplicate(&mut self, block: SeqRange, una: u64) {
        let Some(reduction) = &mut self.reduction else { return };
        if block.end <= una && block.end > reduction.una {
            reduction.undo_retransmits = reduction.undo_retransmits.map(|repeats| repeats.saturating_sub(1));
        }
    }

    /// No repeated segment is on its way any more: the next one begins another episode.
    pub(super) fn forget_retransmits(&mut self) {
        self.first_retransmit = None;
    }

    /// Rule 1: whether an ACK that moved the edge and echoes this answers an original.
    pub(super) fn is_original(&self, ts_ecr: Option<Instant>) -> bool {
        let is_earlier = |first| ts_ecr.is_some_and(|echo| timestamp_tick(echo) < timestamp_tick(first));
        self.reduction.is_some() && self.first_retransmit.is_none_or(is_earlier)
    }

    /// Rule 2: whether every repetition was a duplicate.
    pub(super) fn all_retransmits_were_spurious(&self) -> bool {
        self.reduction.is_some_and(|reduction| reduction.undo_retransmits == Some(0))
    }

    /// Whether there is something to put back, as far as an ACK that echoes this tells.
    pub(super) fn can_undo(&self, ts_ecr: Option<Instant>) -> bool {
        self.reduction.is_some() && (self.all_retransmits_were_spurious() || self.is_original(ts_ecr))
    }

    /// What is to be put back.
    pub(super) fn take(&mut self) -> Option<PriorCwnd> {
        self.reduction.take().map(|reduction| reduction.prior)
    }
}

/// The tick of Linux's timestamps.
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
    fn an_echo_from_before_the_first_repetition_takes_it_back_once() {
        let mut undo = after_reduction_and_retransmit(100);
        undo.on_retransmit(Instant::from_millis(200));
        assert!(
            !undo.can_undo(None) && !undo.can_undo(Some(Instant::from_millis(100))),
            "the same tick is not before"
        );
        assert!(undo.can_undo(Some(Instant::from_millis(99))));
        assert_eq!((undo.take(), undo.take()), (Some(PRIOR), None));
    }

    #[test]
    fn as_many_duplicates_as_repetitions_take_it_back() {
        let mut undo = after_reduction_and_retransmit(100);
        undo.on_retransmit(Instant::from_millis(101));
        undo.on_duplicate(SeqRange::new(1000, 2000), 5000);
        undo.on_duplicate(SeqRange::new(0, 1000), 5000);
        assert!(!undo.all_retransmits_were_spurious(), "one lay before the reduction");
        undo.on_duplicate(SeqRange::new(2000, 3000), 5000);
        assert!(undo.all_retransmits_were_spurious() && undo.can_undo(None));
    }

    #[test]
    fn without_a_repetition_whatever_arrives_is_an_original() {
        let mut undo = UndoState::default();
        undo.on_reduction(0, PRIOR, 0);
        assert!(undo.can_undo(None) && !undo.all_retransmits_were_spurious());
    }
}
