//! A byte kept back, to restart the sender with when a blackout ends.
//!
//! In: what the own stack acknowledges. Out: what is said instead, and when the rest must be said.
//!
//! 1. Anything that moves the sender's left edge restarts it at once, however long its timeout has become (measured on
//!    6.18; a repeated ACK or a window update does not). So while bytes flow in order, one byte less is acknowledged,
//!    and that byte when the link is back. It has come: nothing is acknowledged that is not here.
//! 2. The byte is given out after some time without another ACK, so that nothing waits for it, and with every ACK that
//!    tells of holes, else the sender takes the segment for lost. Giving it out over a dark link costs nothing.
//! 3. Behind a hole, and for some seconds after it, no byte is kept back ([`super::flow`] decides). The sender would hear of its
//!    last segment later than without a reserve and repair its losses at another time, which takes goodput from the flows
//!    beside it where the loss is that of a policer.
//! 4. What was said is never taken back.

use crate::units::{Duration, Instant};
use crate::wire::packet::Seq;

/// One flow's byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WithheldAck {
    acked: Option<Seq>,
    /// Until when a byte is kept back, and what is to be acknowledged then.
    withheld: Option<(Instant, Seq)>,
    /// It was given out, and nothing came since, so that perhaps it did not arrive; or it is put aside.
    is_released: bool,
}

impl WithheldAck {
    /// This is acknowledged; `keep`: for so long one byte may be kept back. The answer is what goes on.
    pub(super) fn on_ack(&mut self, now: Instant, ack: Seq, keep: Option<Duration>) -> Seq {
        let one_less = self.acked.map_or(ack.minus(1), |acked| ack.minus(1).later(acked));
        self.withheld = keep.filter(|_| one_less.is_before(ack)).map(|hold_time| (now + hold_time, ack));
        let number = if self.withheld.is_some() { one_less } else { ack };
        self.is_released = false;
        self.acked = Some(self.acked.map_or(number, |acked| acked.later(number)));
        number
    }

    /// Everything before this was acknowledged.
    pub(super) const fn acked(&self) -> Option<Seq> {
        self.acked
    }

    /// Something else has acknowledged this.
    pub(super) fn on_acked(&mut self, ack: Seq) {
        self.acked = Some(self.acked.map_or(ack, |acked| acked.later(ack)));
        if self.withheld.is_some_and(|(_, kept)| !kept.is_after(ack)) {
            self.withheld = None;
        }
    }

    /// When it is to be given out, for nothing came behind it.
    pub(super) fn due(&self) -> Option<Instant> {
        self.withheld.map(|(until, _)| until)
    }

    /// It is given out, if there is one.
    pub(super) fn release(&mut self) -> bool {
        let kept = self.withheld.take();
        if let Some((_, ack)) = kept {
            self.on_acked(ack);
        }
        self.is_released |= kept.is_some();
        kept.is_some()
    }

    /// The link is dark: the byte is kept for the end of that.
    pub(super) fn keep_for_outage_end(&mut self) {
        self.is_released |= self.withheld.take().is_some();
    }

    /// Whether acknowledging all that is here may restart the sender: it may never have heard of the last byte.
    pub(super) const fn can_restart_sender(&self) -> bool {
        self.withheld.is_some() || self.is_released
    }
}

/// Longer than Linux delays an ACK (40 ms), far shorter than a sender waits for one (200 ms more than the round trip).
pub(super) const HOLD_TIME: Duration = Duration::from_millis(60);
/// Towards the own stack, where a byte that is given out is spent, even in the dark: longer than a blackout takes to be
/// noticed ([`crate::accel::outage::detector`]) while the gateway answers within 80 ms.
pub(super) const UPLOAD_HOLD_TIME: Duration = Duration::from_millis(400);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn one_byte_less_is_said_while_the_stream_moves() {
        let mut withheld = WithheldAck::default();
        assert_eq!(withheld.on_ack(NOW, Seq::new(1000), Some(HOLD_TIME)), Seq::new(999));
        assert_eq!(withheld.on_ack(NOW, Seq::new(2000), Some(HOLD_TIME)), Seq::new(1999));
        assert!(withheld.can_restart_sender());
        assert_eq!(withheld.due(), Some(NOW + HOLD_TIME));
    }

    #[test]
    fn what_was_said_is_never_taken_back() {
        let mut withheld = WithheldAck::default();
        assert_eq!(withheld.on_ack(NOW, Seq::new(1000), None), Seq::new(1000));
        assert_eq!(withheld.on_ack(NOW, Seq::new(1000), Some(HOLD_TIME)), Seq::new(1000));
        assert!(!withheld.can_restart_sender() && withheld.due().is_none());
        withheld.on_acked(Seq::new(3000));
        assert_eq!(withheld.on_ack(NOW, Seq::new(3000), Some(HOLD_TIME)), Seq::new(3000));
        assert_eq!(withheld.on_ack(NOW, Seq::new(3001), Some(HOLD_TIME)), Seq::new(3000));
    }

    #[test]
    fn it_is_given_out_once() {
        let mut withheld = WithheldAck::default();
        withheld.on_ack(NOW, Seq::new(1000), Some(HOLD_TIME));
        assert!(withheld.release());
        assert!(!withheld.release() && withheld.due().is_none());
        assert!(withheld.can_restart_sender(), "it may be lost");
        withheld.on_ack(NOW, Seq::new(2000), Some(HOLD_TIME));
        withheld.on_acked(Seq::new(2000));
        assert!(!withheld.can_restart_sender());
    }
}
