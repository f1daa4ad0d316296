//! Blackout Handler: what a flow does while its link is dark, and when it comes back (Super-aggregation §3.2).
//!
//! In: the detector's turns, the time. Out: when packets are to be sent that restart the sender.
//!
//! 1. A kick is the acknowledgement of what is here, no more; sent again it says the same. So it needs no proof that the
//!    link is back: it is sent every 40 ms while the link is dark, and the first that gets through restarts the sender,
//!    half a round trip before an answer of the gateway could say that it may be sent.
//! 2. After ten seconds the gateway is waited for. When it answers there are three kicks more, unless data comes first.
//! 3. A sender doubles its timer each time that it repeats something in the dark, and takes one such step back for each
//!    word that there was no way to go. RFC 6069 has routers say so, once for each packet that they cannot send on; here it is
//!    said when the link is back, as often as the timer may have run out since data came last, and once more for what
//!    the sender repeats upon it: then its timer is that of before, should that be lost. Before the first timeout nothing is said.
//! 4. What is owed to a sender in one blackout is owed after the next as well, until data comes.

use crate::units::{Duration, Instant};

/// One flow's kicks.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct OutageRecovery {
    state: State,
    /// When data came last.
    last_data: Option<Instant>,
    /// The link was dark since.
    is_waiting: bool,
    /// Since the link went dark.
    has_restarted: bool,
    restarts: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Idle,
    Down {
        since: Instant,
        next: Option<Instant>,
    },
    Ended {
        left: u8,
        next: Instant,
    },
}

/// Packets that restart a sender are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum RestartAck {
    /// They may not get through.
    Down,
    /// The link is back; those that follow are for the case that the first ones were lost.
    Ended { is_first: bool },
}

impl OutageRecovery {
    /// The link is dark; `early`: kicks may be sent before it is back.
    pub(in crate::accel) fn on_outage_start(&mut self, now: Instant, early: bool) {
        self.state = State::Down { since: now, next: early.then_some(now + RESTART_INTERVAL) };
        self.has_restarted = false;
        self.is_waiting = true;
    }

    /// The link is back.
    pub(in crate::accel) fn on_outage_end(&mut self, now: Instant) {
        if matches!(self.state, State::Down { .. }) {
            self.state = State::Ended { left: REPEATS, next: now };
        }
    }

    /// Data has come.
    pub(in crate::accel) fn on_data(&mut self, now: Instant) {
        self.state = State::Idle;
        (self.last_data, self.is_waiting) = (Some(now), false);
    }

    /// Whether its sender may still wait for the end of a blackout.
    pub(in crate::accel) fn is_sender_waiting(&self, now: Instant) -> bool {
        self.is_waiting && self.last_data.is_some_and(|moved| now.since(moved) < MAX_RTO)
    }

    /// How often the sender's timer may have run out since data came last, over a round trip of `rtt`.
    pub(in crate::accel) fn timeouts(&self, now: Instant, rtt: Duration) -> u32 {
        let idle = self.last_data.map_or(Duration::ZERO, |moved| now.since(moved).min(MAX_RTO));
        // After one, three, seven times its length, and so on.
        (idle.as_nanos() / (MIN_RTO + rtt).as_nanos() + 1).ilog2()
    }

    /// The kick that is due; it is taken for sent.
    pub(in crate::accel) fn tick(&mut self, now: Instant) -> Option<RestartAck> {
        match self.state {
            State::Down { since, next: Some(next) } if now >= next => {
                let next = (now.since(since) < RESTART_TIME).then_some(now + RESTART_INTERVAL);
                self.state = State::Down { since, next };
                Some(RestartAck::Down)
            }
            State::Ended { left, next } if now >= next => {
                self.state = match left {
                    0 => State::Idle,
                    left => State::Ended { left: left - 1, next: now + RESTART_INTERVAL },
                };
                Some(RestartAck::Ended { is_first: left == REPEATS })
            }
            _ => None,
        }
    }

    /// When to tick next.
    pub(in crate::accel) const fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Down { next, .. } => next,
            State::Ended { next, .. } => Some(next),
        }
    }

    /// Whether the link is dark, or was until a moment ago and nothing has come since.
    pub(in crate::accel) const fn is_active(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// A kick is sent.
    pub(in crate::accel) fn on_restart(&mut self) {
        self.restarts += u64::from(!core::mem::replace(&mut self.has_restarted, true));
    }

    /// Blackouts in which or behind which kicks were sent.
    pub(in crate::accel) const fn restarts(&self) -> u64 {
        self.restarts
    }
}

/// Linux's `tcp_rto_min_us`, beside a round trip; that of others is usually longer, and it ran out less often.
const MIN_RTO: Duration = Duration::from_millis(200);
/// Linux's `TCP_RTO_MAX`: a sender that has more to say has said it by then.
const MAX_RTO: Duration = Duration::from_secs(120);
/// chosen: on average 20 ms are lost, and 25 small packets a second are sent.
const RESTART_INTERVAL: Duration = Duration::from_millis(40);
/// As long as the gateway is asked often ([`super::detector`]).
const RESTART_TIME: Duration = Duration::from_secs(10);
/// Kicks behind the first one when the link is back, for it may be lost.
const REPEATS: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kicks_come_in_the_dark_and_thrice_in_the_light() {
        let mut recovery = OutageRecovery::default();
        recovery.on_outage_start(Instant::ZERO, true);
        let mut sent = 0;
        while let Some(at) = recovery.deadline() {
            sent += u32::from(recovery.tick(at) == Some(RestartAck::Down));
            recovery.on_restart();
        }
        assert_eq!(sent, 250, "ten seconds of them");
        recovery.on_outage_end(Instant::from_millis(15_000));
        let mut at = alloc::vec::Vec::new();
        while let Some(due) = recovery.deadline() {
            assert_eq!(recovery.tick(due), Some(RestartAck::Ended { is_first: at.is_empty() }));
            at.push(due);
        }
        assert!(!recovery.is_active());
        assert_eq!(at, [15_000, 15_040, 15_080].map(Instant::from_millis));
        assert_eq!(recovery.restarts(), 1);
    }

    #[test]
    fn data_ends_them() {
        let mut recovery = OutageRecovery::default();
        recovery.on_outage_start(Instant::ZERO, true);
        recovery.on_data(Instant::ZERO);
        assert_eq!(recovery.deadline(), None);
        recovery.on_outage_end(Instant::from_millis(10));
        assert_eq!(recovery.deadline(), None, "it was light already");
    }

    #[test]
    fn timers_run_out_after_one_three_and_seven_times_their_length() {
        let (mut recovery, rtt) = (OutageRecovery::default(), Duration::from_millis(50));
        recovery.on_data(Instant::ZERO);
        let after = |millis| recovery.timeouts(Instant::from_millis(millis), rtt);
        assert_eq!([0, 249, 250, 749, 750, 1749, 1750, 3750].map(after), [0, 0, 1, 1, 2, 2, 3, 4]);
        assert_eq!(after(10_000_000), 8, "120 s are the longest");
    }

    #[test]
    fn what_is_owed_outlasts_a_light_in_which_nothing_comes() {
        let (mut recovery, at) = (OutageRecovery::default(), Instant::from_millis);
        recovery.on_data(at(0));
        assert!(!recovery.is_sender_waiting(at(1)));
        recovery.on_outage_start(at(300), true);
        recovery.on_outage_end(at(3000));
        assert!(recovery.is_sender_waiting(at(60_000)) && !recovery.is_sender_waiting(at(120_000)));
        recovery.on_data(at(60_000));
        assert!(!recovery.is_sender_waiting(at(60_001)));
    }
}
