//! Blackout Handler: what a flow does while its link is dark, and when it comes back (Super-aggregation §3.2).
//!
//! In: the detector's turns, the time. Out: when packets are to be sent that restart the sender.
//!
//! 1. A kick is the acknowledgement of what is here, no more; sent again it says the same. So it needs no proof that the
//!    link is back: it is sent every 40 ms while the link is dark, and the first that gets through restarts the sender,
//!    half a round trip before an answer of the gateway could say that it may be sent.
//! 2. After ten seconds the gateway is waited for. When it answers there are three kicks more, unless data comes first.
//! 3. A sender doubles its timer each time that it repeats something in the dark, and takes one such step back for each
//!    word that there was no way to go (RFC 6069, which has routers say so): with fewer it waits on for a part of
//!    the blackout, and after one for each the timer of what it repeats now is that of before, should that be lost.

use crate::units::{Duration, Instant};

/// One flow's kicks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handler {
    state: State,
    /// Since the link went dark.
    has_kicked: bool,
    kicks: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Idle,
    Dark {
        since: Instant,
        next: Option<Instant>,
    },
    Light {
        left: u8,
        next: Instant,
        /// How often the sender's timer may have run out in the dark.
        steps: u32,
    },
}

/// Packets that restart a sender are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kick {
    /// Steps of its timer to be taken back: of one in the dark the next is 40 ms away.
    pub(super) steps: u32,
}

impl Handler {
    /// The link is dark; `early`: kicks may be sent before it is back.
    pub(super) fn on_dark(&mut self, now: Instant, early: bool) {
        self.state = State::Dark { since: now, next: early.then_some(now + RHYTHM) };
        self.has_kicked = false;
    }

    /// The link is back.
    pub(super) fn on_light(&mut self, now: Instant) {
        if let State::Dark { since, .. } = self.state {
            self.state = State::Light { left: AGAIN, next: now, steps: steps(now.since(since)) };
        }
    }

    /// Data has come.
    pub(super) fn on_data(&mut self) {
        self.state = State::Idle;
    }

    /// The kick that is due; it is taken for sent.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Kick> {
        match self.state {
            State::Dark { since, next: Some(next) } if now >= next => {
                let next = (now.since(since) < PATIENCE).then_some(now + RHYTHM);
                self.state = State::Dark { since, next };
                Some(Kick { steps: 1 })
            }
            State::Light { left, next, steps } if now >= next => {
                self.state = match left {
                    0 => State::Idle,
                    left => State::Light { left: left - 1, next: now + RHYTHM, steps },
                };
                Some(Kick { steps })
            }
            _ => None,
        }
    }

    /// When to tick next.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Dark { next, .. } => next,
            State::Light { next, .. } => Some(next),
        }
    }

    /// Whether the link is dark, or was until a moment ago and nothing has come since.
    pub(super) const fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// A kick is sent.
    pub(super) fn on_kick(&mut self) {
        self.kicks += u64::from(!core::mem::replace(&mut self.has_kicked, true));
    }

    /// Blackouts in which or behind which kicks were sent.
    pub(super) const fn kicks(&self) -> u64 {
        self.kicks
    }
}

/// How often a timer has run out that began before the link was taken for dark, and lasts as short as timers do: as often
/// as its doubled lengths fit in.
const fn steps(dark: Duration) -> u32 {
    ((dark.as_nanos() + UNNOTICED.as_nanos()) / LEAST.as_nanos() + 1).ilog2()
}

/// chosen: as long as a blackout takes to be noticed ([`super::detector`]).
const UNNOTICED: Duration = Duration::from_millis(400);
/// Linux's `tcp_rto_min_us`; that of others is longer, and there are fewer steps.
const LEAST: Duration = Duration::from_millis(200);
/// chosen: on average 20 ms are lost, and 25 small packets a second are sent.
const RHYTHM: Duration = Duration::from_millis(40);
/// As long as the gateway is asked often ([`super::detector`]).
const PATIENCE: Duration = Duration::from_secs(10);
/// Kicks behind the first one when the link is back, for it may be lost.
const AGAIN: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kicks_come_in_the_dark_and_thrice_in_the_light() {
        let mut handler = Handler::default();
        handler.on_dark(Instant::ZERO, true);
        let mut sent = 0;
        while let Some(at) = handler.deadline() {
            sent += u32::from(handler.tick(at) == Some(Kick { steps: 1 }));
            handler.on_kick();
        }
        assert_eq!(sent, 250, "ten seconds of them");
        handler.on_light(Instant::from_millis(15_000));
        let mut at = alloc::vec::Vec::new();
        while let Some(due) = handler.deadline() {
            assert_eq!(handler.tick(due), Some(Kick { steps: 6 }), "after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s");
            at.push(due);
        }
        assert!(!handler.is_busy());
        assert_eq!(at, [15_000, 15_040, 15_080].map(Instant::from_millis));
        assert_eq!(handler.kicks(), 1);
    }

    #[test]
    fn data_ends_them() {
        let mut handler = Handler::default();
        handler.on_dark(Instant::ZERO, true);
        handler.on_data();
        assert_eq!(handler.deadline(), None);
        handler.on_light(Instant::from_millis(10));
        assert_eq!(handler.deadline(), None, "it was light already");
    }
}
