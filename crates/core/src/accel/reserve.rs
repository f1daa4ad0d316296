//! A byte kept back, to restart the sender with when a blackout ends.
//!
//! In: what the own stack acknowledges. Out: what is said instead, and when the rest must be said.
//!
//! 1. Anything that moves the sender's left edge restarts it at once, however long its timeout has become (measured on
//!    6.18; a repeated ACK or a window update does not). So while bytes flow in order, one byte less is acknowledged,
//!    and that byte when the link is back. It has come: nothing is acknowledged that is not here.
//! 2. The byte is given out after some time without another ACK, so that nobody waits for it, and with every ACK that
//!    tells of holes, else the sender takes the segment for lost. Giving it out over a dark link costs nothing.
//! 3. While a hole is open the acknowledgement moves nothing; then it is the newest SACK block that ends a byte early, so
//!    that its last segment counts as not arrived. Told when the link is back it is a segment that was never sent again,
//!    from which the sender concludes that its timeout was none (RFC 5682 §3.1). But it leaves what it repeated in the dark
//!    to its timer, which lasts as long as the blackout did from then on (`tcp_mark_skb_lost`, `sack_rtt_us`; seen on
//!    6.18). So after [`SHORT`] it is not told before more comes: the timer of before is the sooner one.
//!    An ACK that moves the edge tells a segment that has just come: it was sent once, and gives the sender a true round trip
//!    where otherwise the echo does, which may be old ([`super::undo`]). Unless a byte was kept back until then: where the
//!    first hole shows, one thing is kept in place of the other. The hole may be that of a full queue, which would drop the
//!    segment that the sender sends for the byte.
//! 4. What was said is never taken back.

use crate::units::{Duration, Instant};
use crate::wire::packet::Seq;

/// One flow's byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reserve {
    said: Option<Seq>,
    /// Until when a byte is kept back, and what is to be acknowledged then.
    kept: Option<(Instant, Seq)>,
    /// The newest SACK block's.
    tail: Option<Tail>,
    /// It was given out, and nothing came since, so that perhaps it did not arrive; or it is put aside.
    is_out: bool,
}

/// The last byte of a SACK block.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// Where the block ends.
    high: Seq,
    /// When it came, at the latest.
    since: Instant,
    /// When it is to be given out; none: it is, or it is put aside.
    until: Option<Instant>,
}

impl Reserve {
    /// This is acknowledged; `keep`: for so long one byte may be kept back. The answer is what goes on.
    pub(super) fn on_ack(&mut self, now: Instant, ack: Seq, keep: Option<Duration>) -> Seq {
        let less = self.said.map_or(ack.minus(1), |said| ack.minus(1).later(said));
        self.kept = keep.filter(|_| less.is_before(ack)).map(|patience| (now + patience, ack));
        let says = if self.kept.is_some() { less } else { ack };
        self.is_out = false;
        self.said = Some(self.said.map_or(says, |said| said.later(says)));
        says
    }

    /// What is acknowledged has SACK blocks, the newest of which ends here; `keep`: for so long its last byte may be kept back.
    /// Whether it is.
    pub(super) fn on_blocks(&mut self, now: Instant, high: Seq, has_moved: bool, keep: Option<Duration>) -> bool {
        let since = self.tail.filter(|tail| tail.high == high).map_or(now, |tail| tail.since);
        let keep = keep.filter(|_| !has_moved || now.since(since) >= OLD);
        self.tail = keep.map(|patience| Tail { high, since, until: Some(now + patience) });
        self.tail.is_some()
    }

    /// Everything before this was acknowledged.
    pub(super) const fn said(&self) -> Option<Seq> {
        self.said
    }

    /// Whether something is kept back of what was acknowledged last.
    pub(super) const fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Something else has acknowledged this.
    pub(super) fn on_said(&mut self, ack: Seq) {
        self.said = Some(self.said.map_or(ack, |said| said.later(ack)));
        if self.kept.is_some_and(|(_, kept)| !kept.is_after(ack)) {
            self.kept = None;
        }
    }

    /// When it is to be given out, for nothing came behind it.
    pub(super) fn due(&self) -> Option<Instant> {
        self.kept.map(|(until, _)| until).or(self.tail.and_then(|tail| tail.until))
    }

    /// It is given out, if there is one.
    pub(super) fn give_out(&mut self) -> bool {
        let kept = self.kept.take();
        if let Some((_, ack)) = kept {
            self.on_said(ack);
        }
        self.is_out |= kept.is_some();
        let tail = self.tail.as_mut().and_then(|tail| tail.until.take());
        kept.is_some() || tail.is_some()
    }

    /// Nobody waits for it any more: the link is dark, and it is for the end of that.
    pub(super) fn put_aside(&mut self) {
        self.is_out |= self.kept.take().is_some();
        if let Some(tail) = &mut self.tail {
            tail.until = None;
        }
    }

    /// Whether acknowledging all that is here may restart the sender: it may never have heard of the last byte.
    pub(super) fn may_restart(&self, now: Instant) -> bool {
        let has_tail = self.tail.is_some_and(|tail| now.since(tail.since) < SHORT);
        self.kept.is_some() || self.is_out || has_tail
    }
}

/// chosen: timeouts fall 0.25, 0.75, 1.75 and 3.75 s into a blackout; from 3 s on the next is nearer than the blackout was long.
const SHORT: Duration = Duration::from_secs(3);
/// chosen: what is as old makes a timer of a second.
const OLD: Duration = Duration::from_millis(500);
/// Longer than Linux delays an ACK (40 ms), far shorter than a sender waits for one (200 ms more than the round trip).
pub(super) const PATIENCE: Duration = Duration::from_millis(60);
/// Towards the own stack, where a byte that is given out is spent, even in the dark: longer than a blackout takes to be
/// noticed ([`super::detector`]) while the gateway answers within 80 ms.
pub(super) const UPWARD: Duration = Duration::from_millis(400);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn one_byte_less_is_said_while_the_stream_moves() {
        let mut reserve = Reserve::default();
        assert_eq!(reserve.on_ack(NOW, Seq::new(1000), Some(PATIENCE)), Seq::new(999));
        assert_eq!(reserve.on_ack(NOW, Seq::new(2000), Some(PATIENCE)), Seq::new(1999));
        assert!(reserve.may_restart(NOW));
        assert_eq!(reserve.due(), Some(NOW + PATIENCE));
    }

    #[test]
    fn what_was_said_is_never_taken_back() {
        let mut reserve = Reserve::default();
        assert_eq!(reserve.on_ack(NOW, Seq::new(1000), None), Seq::new(1000));
        assert_eq!(reserve.on_ack(NOW, Seq::new(1000), Some(PATIENCE)), Seq::new(1000));
        assert!(!reserve.may_restart(NOW) && reserve.due().is_none());
        reserve.on_said(Seq::new(3000));
        assert_eq!(reserve.on_ack(NOW, Seq::new(3000), Some(PATIENCE)), Seq::new(3000));
        assert_eq!(reserve.on_ack(NOW, Seq::new(3001), Some(PATIENCE)), Seq::new(3000));
    }

    #[test]
    fn a_blocks_byte_restarts_after_a_short_blackout_alone() {
        let mut reserve = Reserve::default();
        let (ack, high) = (Seq::new(1000), Seq::new(9000));
        reserve.on_ack(NOW, ack, None);
        assert!(reserve.on_blocks(NOW, high, false, Some(PATIENCE)));
        assert_eq!(reserve.due(), Some(NOW + PATIENCE));
        reserve.put_aside();
        assert!(reserve.may_restart(NOW + SHORT / 2) && reserve.due().is_none());
        assert!(!reserve.may_restart(NOW + SHORT));
        // An old one is not told by the first repair either; by more that comes it is.
        let later = NOW + SHORT;
        reserve.on_ack(later, Seq::new(2000), None);
        assert!(reserve.on_blocks(later, high, true, Some(PATIENCE)) && !reserve.may_restart(later));
        assert!(!reserve.on_blocks(later, high.plus(1000), true, Some(PATIENCE)), "it has just come");
        assert!(reserve.on_blocks(later, high.plus(2000), false, Some(PATIENCE)));
        reserve.on_ack(later, Seq::new(20_000), Some(PATIENCE));
        reserve.put_aside();
        assert!(reserve.may_restart(later + SHORT), "of an acknowledgement");
    }

    #[test]
    fn it_is_given_out_once() {
        let mut reserve = Reserve::default();
        reserve.on_ack(NOW, Seq::new(1000), Some(PATIENCE));
        assert!(reserve.give_out());
        assert!(!reserve.give_out() && reserve.due().is_none());
        assert!(reserve.may_restart(NOW), "it may be lost");
        reserve.on_ack(NOW, Seq::new(2000), Some(PATIENCE));
        reserve.on_said(Seq::new(2000));
        assert!(!reserve.may_restart(NOW));
    }
}
