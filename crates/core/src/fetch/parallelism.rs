//! Number of connections per link, found by A/B probes.
//!
//! One connection fills most links. It does not if something other than the link's capacity limits the sender: random
//! loss that it mistakes for congestion, or a server that limits the rate of each connection. Both look the same to the
//! receiver: bytes arrive at a steady rate although the link's queue is empty. Therefore:
//!
//! 1. A link has spare capacity when its connections have left slow start and the RTT stays near its minimum. With
//!    recent losses a few RTTs are enough; otherwise it must last longer, since an empty queue may just be filling.
//! 2. On such a link the number of connections is doubled, if enough remains to be fetched to pay for it. Without
//!    losses it is at most two: a limit that a server sets per connection is not to be evaded.
//! 3. After a few RTTs the new rate is compared with the old one. If it has grown by less than a tenth, the old number
//!    was right, and the next probe waits twice as long each time. Without losses the new connections are closed again.
//!    With losses they stay, because a loss slows down only one of them.
//! 4. With a long RTT (satellite) slow start takes seconds: a link in slow start gets [`LONG_RTT_CONNECTIONS`] at once.
//!
//! A fixed number was rejected: in comparison with other download tools, 16 connections win on the lossy link and lose
//! 30 % on unequal links; with two it is the other way round (`docs/how-it-works/algorithms.md`).

use core::time::Duration;

use crate::units::{Bitrate, Instant};

/// Target number of connections of one link, and the running A/B probe, if any.
#[derive(Clone, Debug)]
pub(super) struct ConnCountController {
    /// Number of connections that the link should have.
    pub(super) target: u32,
    probe: Option<AbProbe>,
    /// No new probe before this time.
    next_probe_at: Instant,
    probe_interval: Duration,
    /// Since when the link has had spare capacity.
    spare_since: Option<Instant>,
}

/// A running comparison of the rate with more connections against the rate before.
#[derive(Clone, Copy, Debug)]
struct AbProbe {
    /// Rate before the probe.
    rate_before: Bitrate,
    /// Target before the probe.
    count_before: u32,
    /// When the result is evaluated; none until the new connections have received their first bytes.
    evaluate_at: Option<Instant>,
    started: Instant,
}

impl Default for ConnCountController {
    fn default() -> Self {
        Self {
            target: 1,
            probe: None,
            next_probe_at: Instant::ZERO,
            probe_interval: INITIAL_PROBE_INTERVAL,
            spare_since: None,
        }
    }
}

/// Measurements of a link for [`ConnCountController::review`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkObservation {
    /// A connection that has delivered is in slow start.
    pub(super) in_slow_start: bool,
    /// A connection has lost packets recently.
    pub(super) has_recent_loss: bool,
    /// All connections have delivered and have left slow start.
    pub(super) past_slow_start: bool,
    /// Number of connections that have delivered.
    pub(super) delivering: u32,
    /// Rate of all connections over eight minimum RTTs, but at least 400 ms and at most 1 s.
    pub(super) rate: Bitrate,
    /// Shortest minimum RTT of its connections.
    pub(super) min_rtt: Duration,
    /// Shortest of its connections' latest RTTs.
    pub(super) rtt: Duration,
    /// Estimated time until the download is complete.
    pub(super) time_left: Duration,
}

impl LinkObservation {
    /// Whether there is no queueing delay: then the sender or the server limits the rate, not the link.
    pub(super) fn has_spare_capacity(&self) -> bool {
        self.rtt <= self.min_rtt + self.min_rtt / 4 + QUEUEING_NOISE
    }
}

impl ConnCountController {
    /// Evaluates the running probe, or raises the target if that is worthwhile. Returns true if it raised or restored it.
    pub(super) fn review(&mut self, now: Instant, observation: LinkObservation, max: u32) -> bool {
        match self.probe {
            Some(probe) => self.evaluate_probe(now, observation, probe),
            None => self.maybe_start_probe(now, observation, max),
        }
    }

    fn maybe_start_probe(&mut self, now: Instant, observation: LinkObservation, max: u32) -> bool {
        // Rule 4: slow start itself takes long here; several connections go through it at the same time.
        if now >= self.next_probe_at
            && self.target == 1
            && observation.in_slow_start
            && observation.min_rtt >= LONG_RTT
            && observation.time_left >= observation.min_rtt * LONG_RTT_ROUNDS
        {
            self.target = LONG_RTT_CONNECTIONS.min(max);
            return self.target > 1;
        }
        if !observation.has_spare_capacity() || !observation.past_slow_start {
            self.spare_since = None;
            return false;
        }
        let since = *self.spare_since.get_or_insert(now);
        let lossy = observation.has_recent_loss
            && since + (observation.min_rtt * LOSSY_SPARE_RTTS).max(LOSSY_SPARE_TIME) <= now;
        // Without losses only a second connection is tried: the server may limit the rate per connection on purpose.
        let is_persistent = lossy || (since + SPARE_TIME <= now && self.target == 1);
        let is_worthwhile = observation.time_left >= (observation.min_rtt * MIN_TIME_LEFT_RTTS).max(MIN_TIME_LEFT);
        if now < self.next_probe_at || !is_persistent || !is_worthwhile || self.target >= max {
            return false;
        }
        self.probe = Some(AbProbe {
            rate_before: observation.rate,
            count_before: self.target,
            evaluate_at: None,
            started: now,
        });
        self.target = (self.target * 2).min(max);
        true
    }

    fn evaluate_probe(&mut self, now: Instant, observation: LinkObservation, probe: AbProbe) -> bool {
        let settle_time = (observation.min_rtt * SETTLE_RTTS).max(SETTLE_TIME);
        match probe.evaluate_at {
            None if observation.delivering >= self.target => {
                self.probe = Some(AbProbe { evaluate_at: Some(now + settle_time), ..probe });
            }
            // The server accepts no more connections.
            None if now > probe.started + settle_time * 4 => {
                self.target = observation.delivering.max(1);
                self.probe = None;
                self.back_off(now);
            }
            Some(at) if now >= at => {
                self.probe = None;
                if observation.rate >= probe.rate_before + probe.rate_before / MIN_GAIN_DIVISOR {
                    self.probe_interval = INITIAL_PROBE_INTERVAL;
                } else {
                    // Less than a tenth more: not worth the connections. Try again later.
                    self.back_off(now);
                    // With losses the larger number stays (rule 3).
                    if !observation.has_recent_loss {
                        self.target = probe.count_before;
                        return true;
                    }
                }
            }
            _ => {}
        }
        false
    }

    fn back_off(&mut self, now: Instant) {
        self.next_probe_at = now + self.probe_interval;
        self.probe_interval = (self.probe_interval * 2).min(MAX_PROBE_INTERVAL);
    }

    /// The server refuses requests: one connection from now on, without further probes.
    pub(super) fn limit_to_one(&mut self) {
        *self = Self { next_probe_at: Instant::FAR_FUTURE, ..Self::default() };
    }

    /// When the next review is due.
    pub(super) fn next_review_at(&self, now: Instant) -> Instant {
        let next = now + REVIEW_INTERVAL;
        self.probe
            .and_then(|probe| probe.evaluate_at)
            .map_or(next, |at| at.min(next))
            .max(now + MIN_REVIEW_INTERVAL)
    }
}

/// The rate must grow by at least a tenth.
const MIN_GAIN_DIVISOR: u64 = 10;
/// A queueing delay below this is measurement noise.
const QUEUEING_NOISE: Duration = Duration::from_millis(6);
/// The rest of the download must take at least this long, and this many RTTs, or a new connection does not pay for its
/// slow start.
const MIN_TIME_LEFT: Duration = Duration::from_millis(1500);
const MIN_TIME_LEFT_RTTS: u32 = 20;
/// Time in which new connections reach their rate.
const SETTLE_TIME: Duration = Duration::from_millis(400);
const SETTLE_RTTS: u32 = 8;
/// After this long without a queue, the queue is not just filling.
const SPARE_TIME: Duration = Duration::from_millis(2500);
/// With recent losses: longer than the dip in rate after a loss that the link's own queue has caused.
const LOSSY_SPARE_RTTS: u32 = 4;
const LOSSY_SPARE_TIME: Duration = Duration::from_millis(150);
/// Minimum RTT from which slow start takes seconds, RTTs that must be left for slow start to pay, and number of
/// connections.
const LONG_RTT: Duration = Duration::from_millis(200);
const LONG_RTT_ROUNDS: u32 = 4;
const LONG_RTT_CONNECTIONS: u32 = 4;
/// Pause after a probe without gain; doubles with each such probe.
const INITIAL_PROBE_INTERVAL: Duration = Duration::from_secs(1);
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two reviews of a link.
const REVIEW_INTERVAL: Duration = Duration::from_millis(100);
const MIN_REVIEW_INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Rate in Mbit/s, RTT in ms (30 ms: an empty queue), number of connections.
    fn observation(rate: u64, rtt: u64, delivering: u32) -> LinkObservation {
        LinkObservation {
            in_slow_start: false,
            has_recent_loss: false,
            past_slow_start: true,
            delivering,
            rate: Bitrate::from_mbps(rate),
            min_rtt: Duration::from_millis(30),
            rtt: Duration::from_millis(rtt),
            time_left: Duration::from_secs(20),
        }
    }

    #[test]
    fn a_link_with_a_standing_queue_keeps_its_one_connection() {
        let mut controller = ConnCountController::default();
        for t in 0..100 {
            controller.review(Instant::from_millis(t * 100), observation(20, 80, 1), 16);
        }
        assert_eq!(controller.target, 1);
    }

    #[test]
    fn a_lossy_link_with_spare_capacity_gets_connections_while_the_rate_grows() {
        let mut controller = ConnCountController::default();
        for t in 0..200_u64 {
            // Each connection brings 5 Mbit/s, up to 20, as losses allow.
            let n = controller.target;
            let rate = (5 * u64::from(n)).min(20);
            let observed =
                LinkObservation { has_recent_loss: true, ..observation(rate, if rate == 20 { 60 } else { 31 }, n) };
            controller.review(Instant::from_millis(t * 50), observed, 16);
        }
        assert_eq!(controller.target, 4);
    }

    #[test]
    fn without_losses_a_link_gets_at_most_two_connections() {
        let mut controller = ConnCountController::default();
        for t in 0..400_u64 {
            let n = controller.target;
            controller.review(Instant::from_millis(t * 50), observation(5 * u64::from(n), 31, n), 16);
        }
        assert_eq!(controller.target, 2);
    }

    #[test]
    fn a_second_connection_without_gain_is_closed_again() {
        let mut controller = ConnCountController::default();
        let mut most = 0;
        for t in 0..100_u64 {
            controller.review(Instant::from_millis(t * 50), observation(5, 30, controller.target), 16);
            most = most.max(controller.target);
        }
        assert_eq!((controller.target, most), (1, 2));
    }

    #[test]
    fn with_a_long_rtt_several_connections_go_through_slow_start_at_once() {
        let mut controller = ConnCountController::default();
        let long_rtt = LinkObservation {
            in_slow_start: true,
            past_slow_start: false,
            min_rtt: Duration::from_millis(600),
            ..observation(1, 600, 1)
        };
        assert!(controller.review(Instant::from_millis(1300), long_rtt, 16));
        assert_eq!(controller.target, 4);
        assert!(!ConnCountController::default().review(
            Instant::from_millis(1300),
            LinkObservation { time_left: Duration::from_secs(1), ..long_rtt },
            16
        ));
    }

    #[test]
    fn no_probe_starts_near_the_end() {
        let mut controller = ConnCountController::default();
        let end = LinkObservation { time_left: Duration::from_millis(300), ..observation(5, 30, 1) };
        assert!(!controller.review(Instant::from_millis(1000), end, 16));
    }
}
