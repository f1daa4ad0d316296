//! Has the sender take back what it did because of a random loss: by the timestamp that ACKs echo (Eifel, RFC 3522).
//!
//! In: the own stack's ACKs with holes, each with the gate's word on it. Out: the timestamp that an ACK is to echo in
//! place of its own.
//!
//! 1. The sender repairs the loss as ever. Only the ACKs that close the hole echo a timestamp from before the repair,
//!    so that the sender concludes that the original was merely late, and restores its window (Linux:
//!    `tcp_packet_delayed`). Nothing is acknowledged that is not here; it works under TLS and needs no second link.
//! 2. The timestamp is the newest that had come when the oldest open hole showed: the repair was sent later than that.
//!    An episode ends where the sender's ends: when all is acknowledged that it had sent when it began to repair, about
//!    one round trip after the hole showed. The next hole has a newer timestamp, so that the sender's round-trip time
//!    never takes a sample of many.
//! 3. A loss that the gate calls congestion ends the episode: its reduction stands, and no hole that opens before it
//!    is repaired is helped.
//! 4. ACKs get lost, too: the two that follow the closing one echo the same.
//! 5. A blackout ends the episode (facts: a timestamp held over one multiplies the sender's timeout).

use alloc::collections::VecDeque;

use crate::units::{Duration, Instant};
use crate::wire::packet::{Seq, Stamp};

/// One flow's episode.
#[derive(Clone, Debug, Default)]
pub(super) struct Undo {
    gaps: VecDeque<Gap>,
    state: State,
    undone: u64,
    random: u64,
}

/// A hole, by where what has come goes on behind it.
#[derive(Clone, Copy, Debug)]
struct Gap {
    end: Seq,
    /// The newest timestamp that had come when it showed.
    echo: Stamp,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Quiet,
    /// Holes are open, and their closing is to be taken for delay.
    Armed { echo: Stamp, began: Instant, until: Option<Seq> },
    /// All are closed; so many ACKs more say so.
    Closed { echo: Stamp, left: u8 },
    /// The sender was told of congestion: until this is acknowledged nothing is helped.
    Barred { until: Seq },
}

/// What an ACK of the own stack shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// Holes for the first time.
    pub(super) new: u32,
    /// Everything before this is here.
    pub(super) ack: Seq,
    /// One past the highest number that is here.
    pub(super) high: Seq,
    /// Whether a hole is open.
    pub(super) is_open: bool,
    /// What the ACK echoes by itself.
    pub(super) echo: Stamp,
    /// The newest timestamp that has come.
    pub(super) newest: Stamp,
    /// Whether a loss that shows now is taken for random.
    pub(super) is_random: bool,
    /// The flow's round trip.
    pub(super) rtt: Duration,
}

impl Undo {
    /// What this ACK is to echo; none: what it does.
    pub(super) fn on_ack(&mut self, now: Instant, shown: &Shown) -> Option<Stamp> {
        while self.gaps.front().is_some_and(|gap| !gap.end.is_after(shown.ack)) {
            self.gaps.pop_front();
        }
        if shown.new > 0 {
            self.on_gap(now, shown);
        }
        let (echo, next) = self.step(now, shown);
        self.state = next;
        echo
    }

    /// The link is dark, or the flow is left alone.
    pub(super) fn clear(&mut self) {
        self.gaps.clear();
        self.state = State::Quiet;
    }

    /// Whether ACKs must be exact now: they close holes whose repair is to be taken for delay.
    pub(super) const fn is_armed(&self) -> bool {
        matches!(self.state, State::Armed { .. } | State::Closed { .. })
    }

    /// Episodes that ended with the sender told to take its reduction back.
    pub(super) const fn undone(&self) -> u64 {
        self.undone
    }

    /// Holes that were called random.
    pub(super) const fn random(&self) -> u64 {
        self.random
    }

    fn on_gap(&mut self, now: Instant, shown: &Shown) {
        if self.gaps.len() == GAPS {
            self.gaps.pop_back();
        }
        self.gaps.push_back(Gap { end: shown.high, echo: shown.newest });
        if !shown.is_random {
            self.state = State::Barred { until: shown.high };
            return;
        }
        self.random += u64::from(shown.new);
        if matches!(self.state, State::Quiet | State::Closed { .. }) {
            self.state = State::Armed { echo: shown.echo, began: now, until: None };
        }
    }

    fn step(&mut self, now: Instant, shown: &Shown) -> (Option<Stamp>, State) {
        match self.state {
            State::Quiet => (None, State::Quiet),
            State::Barred { until } if shown.ack.is_before(until) => (None, self.state),
            State::Barred { .. } => (None, State::Quiet),
            State::Closed { left: 0, .. } => (None, State::Quiet),
            State::Closed { echo, left } => (Some(echo), State::Closed { echo, left: left - 1 }),
            State::Armed { echo, .. } if !shown.is_open => {
                self.undone += 1;
                (Some(echo), State::Closed { echo, left: AGAIN })
            }
            State::Armed { echo, began, until } => {
                let until = until.or_else(|| (now.since(began) >= shown.rtt).then_some(shown.high));
                if until.is_none_or(|until| shown.ack.is_before(until)) {
                    return (Some(echo), State::Armed { echo, began, until });
                }
                self.undone += 1;
                let next = self.gaps.front().map_or(shown.newest, |gap| gap.echo);
                (Some(echo), State::Armed { echo: next, began: now, until: None })
            }
        }
    }
}

/// ACKs behind the closing one. chosen: of three, all are lost once in a million at 1 %.
const AGAIN: u8 = 2;
/// chosen: more holes at a time are congestion, or nothing that a timestamp helps.
const GAPS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    fn shown(new: u32, ack: u32, high: u32, echo: u32, newest: u32) -> Shown {
        Shown {
            new,
            ack: Seq::new(ack),
            high: Seq::new(high),
            is_open: high > ack,
            echo: Stamp::new(echo),
            newest: Stamp::new(newest),
            is_random: true,
            rtt: RTT,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn the_closing_ack_and_two_more_echo_what_was_before_the_hole() {
        let mut undo = Undo::default();
        assert_eq!(undo.on_ack(at(0), &shown(0, 100, 100, 10, 10)), None);
        assert_eq!(undo.on_ack(at(1), &shown(1, 100, 300, 10, 11)), Some(Stamp::new(10)));
        assert_eq!(undo.on_ack(at(51), &shown(0, 900, 900, 61, 61)), Some(Stamp::new(10)));
        assert_eq!(undo.undone(), 1);
        for n in 52..54 {
            assert_eq!(undo.on_ack(at(n), &shown(0, 1000, 1000, 62, 62)), Some(Stamp::new(10)));
        }
        assert_eq!(undo.on_ack(at(54), &shown(0, 1100, 1100, 63, 63)), None);
        assert!(!undo.is_armed());
    }

    #[test]
    fn the_next_episode_echoes_a_newer_timestamp() {
        let mut undo = Undo::default();
        undo.on_ack(at(0), &shown(1, 100, 300, 10, 11));
        undo.on_ack(at(30), &shown(1, 100, 500, 10, 41));
        undo.on_ack(at(51), &shown(1, 100, 900, 10, 62));
        assert_eq!(undo.on_ack(at(60), &shown(0, 450, 950, 70, 70)), Some(Stamp::new(10)), "all of one episode");
        assert_eq!(undo.on_ack(at(103), &shown(1, 910, 1200, 112, 112)), Some(Stamp::new(10)));
        assert_eq!(undo.on_ack(at(104), &shown(0, 1000, 1200, 113, 113)), Some(Stamp::new(112)));
        assert_eq!(undo.undone(), 1);
    }

    #[test]
    fn congestion_stands_until_it_is_repaired() {
        let mut undo = Undo::default();
        undo.on_ack(at(0), &shown(1, 100, 300, 10, 11));
        let full = Shown { is_random: false, ..shown(1, 100, 500, 10, 40) };
        assert_eq!(undo.on_ack(at(20), &full), None);
        assert_eq!(undo.on_ack(at(30), &shown(1, 100, 700, 10, 50)), None, "what opens behind it is not helped");
        assert_eq!(undo.on_ack(at(80), &shown(0, 500, 700, 70, 70)), None);
        assert_eq!(undo.on_ack(at(90), &shown(1, 700, 900, 80, 80)), Some(Stamp::new(80)));
        assert_eq!(undo.random(), 3);
    }

    #[test]
    fn a_blackout_ends_it() {
        let mut undo = Undo::default();
        undo.on_ack(at(0), &shown(1, 100, 300, 10, 11));
        undo.clear();
        assert_eq!(undo.on_ack(at(3000), &shown(0, 300, 300, 3000, 3000)), None);
    }
}
