//! Blackout Handler: what a flow does while its link is dark, and when it comes back (Super-aggregation §3.2).
//!
//! In: the detector's turns, the time. Out: when a packet is to be sent that restarts the sender.
//!
//! 1. A kick is the acknowledgement of what is here, no more; sent again it says the same. So it needs no proof that the
//!    link is back: it is sent every 40 ms while the link is dark, and the first that gets through restarts the sender,
//!    half a round trip before an answer of the gateway could say that it may be sent.
//! 2. After ten seconds the gateway is waited for. When it answers there are three kicks more, unless data comes first.

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
    },
}

impl Handler {
    /// The link is dark; `early`: kicks may be sent before it is back.
    pub(super) fn on_dark(&mut self, now: Instant, early: bool) {
        self.state = State::Dark { since: now, next: early.then_some(now + RHYTHM) };
        self.has_kicked = false;
    }

    /// The link is back.
    pub(super) fn on_light(&mut self, now: Instant) {
        if matches!(self.state, State::Dark { .. }) {
            self.state = State::Light { left: AGAIN, next: now };
        }
    }

    /// Data has come.
    pub(super) fn on_data(&mut self) {
        self.state = State::Idle;
    }

    /// Whether a kick is due; then it is taken for sent.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        match self.state {
            State::Dark { since, next: Some(next) } if now >= next => {
                let next = (now.since(since) < PATIENCE).then_some(now + RHYTHM);
                self.state = State::Dark { since, next };
                true
            }
            State::Light { left, next } if now >= next => {
                self.state = match left {
                    0 => State::Idle,
                    left => State::Light { left: left - 1, next: now + RHYTHM },
                };
                true
            }
            _ => false,
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

    /// A kick is sent.
    pub(super) fn on_kick(&mut self) {
        self.kicks += u64::from(!core::mem::replace(&mut self.has_kicked, true));
    }

    /// Blackouts in which or behind which kicks were sent.
    pub(super) const fn kicks(&self) -> u64 {
        self.kicks
    }
}

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
            sent += u32::from(handler.tick(at));
            handler.on_kick();
        }
        assert_eq!(sent, 250, "ten seconds of them");
        handler.on_light(Instant::from_millis(15_000));
        let mut at = alloc::vec::Vec::new();
        while let Some(due) = handler.deadline() {
            assert!(handler.tick(due));
            at.push(due);
        }
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
