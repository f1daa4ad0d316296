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

use super::segment::Seqs;

/// What is known of the last reduction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undo {
    reduction: Option<Reduction>,
    /// When the first segment of this episode was sent again (Linux's `retrans_stamp`).
    first_repeat: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Reduction {
    /// The first unacknowledged number at that moment.
    edge: u64,
    /// Segments sent again and not reported as duplicates; none: none was sent again.
    repeats: Option<u32>,
    before: Before,
}

/// What a reduction has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Before {
    /// The congestion window.
    pub(super) window: u32,
    /// The slow-start threshold.
    pub(super) threshold: u32,
}

impl Undo {
    /// The window is about to be reduced, with so many repeated segments on their way.
    pub(super) fn on_reduction(&mut self, edge: u64, before: Before, on_way: u32) {
        self.reduction = Some(Reduction { edge, repeats: (on_way > 0).then_some(on_way), before });
        if on_way == 0 {
            self.first_repeat = None;
        }
    }

    /// A segment was sent again.
    pub(super) fn on_repeat(&mut self, now: Instant) {
        self.first_repeat.get_or_insert(now);
        if let Some(reduction) = &mut self.reduction {
            *reduction.repeats.get_or_insert(0) += 1;
        }
    }

    /// This has arrived twice; everything before `edge` was acknowledged earlier.
    pub(super) fn on_duplicate(&mut self, block: Seqs, edge: u64) {
        let Some(reduction) = &mut self.reduction else { return };
        if block.end <= edge && block.end > reduction.edge {
            reduction.repeats = reduction.repeats.map(|repeats| repeats.saturating_sub(1));
        }
    }

    /// No repeated segment is on its way any more: the next one begins another episode.
    pub(super) fn forget_repeats(&mut self) {
        self.first_repeat = None;
    }

    /// Rule 1: whether an ACK that moved the edge and echoes this answers an original.
    pub(super) fn is_original(&self, echo: Option<Instant>) -> bool {
        let is_earlier = |first| echo.is_some_and(|echo| tick(echo) < tick(first));
        self.reduction.is_some() && self.first_repeat.is_none_or(is_earlier)
    }

    /// Rule 2: whether every repetition was a duplicate.
    pub(super) fn all_were_duplicates(&self) -> bool {
        self.reduction.is_some_and(|reduction| reduction.repeats == Some(0))
    }

    /// Whether there is something to put back, as far as an ACK that echoes this tells.
    pub(super) fn may(&self, echo: Option<Instant>) -> bool {
        self.reduction.is_some() && (self.all_were_duplicates() || self.is_original(echo))
    }

    /// What is to be put back.
    pub(super) fn take(&mut self) -> Option<Before> {
        self.reduction.take().map(|reduction| reduction.before)
    }
}

/// The tick of Linux's timestamps.
pub(super) const fn tick(at: Instant) -> u64 {
    at.as_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Before = Before { window: 100, threshold: 80 };

    fn reduced_and_repeated(at: u64) -> Undo {
        let mut undo = Undo::default();
        undo.on_reduction(1000, BEFORE, 0);
        undo.on_repeat(Instant::from_millis(at));
        undo
    }

    #[test]
    fn an_echo_from_before_the_first_repetition_takes_it_back_once() {
        let mut undo = reduced_and_repeated(100);
        undo.on_repeat(Instant::from_millis(200));
        assert!(!undo.may(None) && !undo.may(Some(Instant::from_millis(100))), "the same tick is not before");
        assert!(undo.may(Some(Instant::from_millis(99))));
        assert_eq!((undo.take(), undo.take()), (Some(BEFORE), None));
    }

    #[test]
    fn as_many_duplicates_as_repetitions_take_it_back() {
        let mut undo = reduced_and_repeated(100);
        undo.on_repeat(Instant::from_millis(101));
        undo.on_duplicate(Seqs::new(1000, 2000), 5000);
        undo.on_duplicate(Seqs::new(0, 1000), 5000);
        assert!(!undo.all_were_duplicates(), "one lay before the reduction");
        undo.on_duplicate(Seqs::new(2000, 3000), 5000);
        assert!(undo.all_were_duplicates() && undo.may(None));
    }

    #[test]
    fn without_a_repetition_whatever_arrives_is_an_original() {
        let mut undo = Undo::default();
        undo.on_reduction(0, BEFORE, 0);
        assert!(undo.may(None) && !undo.all_were_duplicates());
    }
}
