//! Outage recovery: when packets are sent that restart the sender of a flow (Super-aggregation §3.2, *Blackout
//! Handler*).
//!
//! 1. A restart ACK acknowledges what has arrived and no more, so it needs no proof that the link is up: it is sent
//!    every 40 ms during an outage, and the first one that gets through restarts the sender, half a round trip before a
//!    reply of the gateway could show that the link is back.
//! 2. After ten seconds only the gateway is probed. When it replies, three more restart ACKs follow, unless data comes
//!    first.
//! 3. Outage revert (RFC 6069): a sender doubles its timeout at each retransmission during the outage, and takes one
//!    such step back for each ICMP message that its segment could not be delivered. RFC 6069 has routers send it, once
//!    for each packet that they cannot forward; here the messages are sent when the link recovers, as often as the
//!    timeout may have expired since the last data, and once more for what the sender retransmits upon them, so that
//!    its timeout is that of before should that be lost. Before the first timeout nothing is sent.
//! 4. A sender that did not answer after one outage still waits after the next one, until data comes.

use crate::accel::mechanism::Mechanism;
use crate::accel::outage::options::OutageOptions;
use crate::accel::status::MechanismReport;
use crate::units::{Duration, Instant};

/// Sends restart ACKs for one flow during and after an outage of its link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutageRecovery {
    options: &'static OutageOptions,
    state: State,
    /// Time at which data last arrived.
    last_data: Option<Instant>,
    /// The link has been down since then.
    is_waiting: bool,
    /// Restart ACKs were sent for this outage.
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

/// Phase of the outage to which the due restart ACKs belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RestartAck {
    /// During the outage: they may not get through.
    Down,
    /// After the outage; the later ones are sent in case the first was lost.
    Ended { is_first: bool },
}

impl OutageRecovery {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static OutageOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The link is down; `early`: restart ACKs may be sent before it recovers.
    pub(crate) fn on_outage_start(&mut self, now: Instant, early: bool) {
        self.state = State::Down { since: now, next: early.then_some(now + self.options.restart_interval) };
        self.has_restarted = false;
        self.is_waiting = true;
    }

    /// The link has recovered.
    pub(crate) fn on_outage_end(&mut self, now: Instant) {
        if matches!(self.state, State::Down { .. }) {
            self.state = State::Ended { left: self.options.restart_repeats, next: now };
        }
    }

    /// Data has arrived: the sender transmits, so the recovery is complete.
    pub(crate) fn on_data(&mut self, now: Instant) {
        self.state = State::Idle;
        (self.last_data, self.is_waiting) = (Some(now), false);
    }

    /// Whether the sender may still wait for the end of an outage.
    pub(crate) fn is_sender_waiting(&self, now: Instant) -> bool {
        self.is_waiting && self.last_data.is_some_and(|moved| now.since(moved) < MAX_RTO)
    }

    /// How often the sender's retransmission timeout may have expired since the last data, at this round-trip time.
    pub(crate) fn timeouts(&self, now: Instant, rtt: Duration) -> u32 {
        let idle = self.last_data.map_or(Duration::ZERO, |moved| now.since(moved).min(MAX_RTO));
        // The timeout expires after one, three, seven times its first length, and so on.
        (idle.as_nanos() / (MIN_RTO + rtt).as_nanos() + 1).ilog2()
    }

    /// The restart ACK that is due; it counts as sent.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<RestartAck> {
        match self.state {
            State::Down { since, next: Some(next) } if now >= next => {
                let next =
                    (now.since(since) < self.options.restart_time).then_some(now + self.options.restart_interval);
                self.state = State::Down { since, next };
                Some(RestartAck::Down)
            }
            State::Ended { left, next } if now >= next => {
                self.state = match left {
                    0 => State::Idle,
                    left => State::Ended { left: left - 1, next: now + self.options.restart_interval },
                };
                Some(RestartAck::Ended { is_first: left == self.options.restart_repeats })
            }
            _ => None,
        }
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Down { next, .. } => next,
            State::Ended { next, .. } => Some(next),
        }
    }

    /// Whether the link is down, or was until a moment ago and nothing has come since.
    pub(crate) fn report(&self, report: &mut MechanismReport<'_>) {
        report.active(Mechanism::OutageRevert, self.is_active());
    }

    const fn is_active(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// A restart ACK is sent.
    pub(crate) fn on_restart(&mut self) {
        self.restarts += u64::from(!core::mem::replace(&mut self.has_restarted, true));
    }

    /// Outages during or after which restart ACKs were sent.
    pub(crate) const fn restarts(&self) -> u64 {
        self.restarts
    }
}

/// Linux's `tcp_rto_min_us`, beside a round trip; others usually have a longer one, which expired less often.
const MIN_RTO: Duration = Duration::from_millis(200);
/// Linux's `TCP_RTO_MAX`: a sender that has more to send has retransmitted by then.
const MAX_RTO: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_acks_are_sent_during_an_outage_and_three_times_after_it() {
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
    fn data_ends_the_restart_acks() {
        let mut recovery = OutageRecovery::default();
        recovery.on_outage_start(Instant::ZERO, true);
        recovery.on_data(Instant::ZERO);
        assert_eq!(recovery.deadline(), None);
        recovery.on_outage_end(Instant::from_millis(10));
        assert_eq!(recovery.deadline(), None, "the link was up already");
    }

    #[test]
    fn timeouts_expire_after_one_three_and_seven_times_their_length() {
        let (mut recovery, rtt) = (OutageRecovery::default(), Duration::from_millis(50));
        recovery.on_data(Instant::ZERO);
        let after = |millis| recovery.timeouts(Instant::from_millis(millis), rtt);
        assert_eq!([0, 249, 250, 749, 750, 1749, 1750, 3750].map(after), [0, 0, 1, 1, 2, 2, 3, 4]);
        assert_eq!(after(10_000_000), 8, "the longest timeout is 120 s");
    }

    #[test]
    fn a_sender_still_waits_after_an_outage_that_ended_without_data() {
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
