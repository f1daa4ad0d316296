//! How many connections a link should have.
//!
//! One connection fills most links. It does not where the sender is held back by something else than the link's
//! capacity: random loss that it takes for congestion, or a server that gives each connection only so much. Both look
//! the same from here: bytes come at a steady rate although nothing waits in the link's queue. So:
//!
//! 1. A link is *slack* when its connections have left slow start and the round trip stays that of the empty path: for
//!    a few round trips if packets were lost lately, otherwise for longer, since an empty queue may just be filling.
//! 2. A slack link gets twice as many connections, if enough is left to fetch for that to pay; without losses never more
//!    than two, since what a server gives to each connection is not ours to multiply.
//! 3. After a few round trips the new rate is compared with the old. Less than a tenth more: the number was right, and
//!    the question rests, twice as long after each time. Without losses the new connections are taken back; with them
//!    they stay, for what one loses the others keep.
//! 4. On a long way (a satellite's) slow start takes seconds: a link that is still climbing gets [`CLIMBERS`] at once.
//!
//! A fixed number was not used: on the measured peers, 16 connections win on the lossy link and lose 30 % on unequal
//! ones, two the other way round (`docs/algorithms.md`).

use core::time::Duration;

use crate::units::{Bitrate, Instant};

/// How many connections, and the experiment that is running, if any.
#[derive(Clone, Debug)]
pub(super) struct ConnCountController {
    /// How many there should be.
    pub(super) target: u32,
    probe: Option<AbProbe>,
    /// No new trial before this.
    next_probe_at: Instant,
    probe_interval: Duration,
    /// Since when the link has been slack.
    spare_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct AbProbe {
    /// The rate before it.
    rate_before: Bitrate,
    /// The number before it.
    count_before: u32,
    /// When its result is read; none until the new connections have brought their first bytes.
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

/// What a link looks like to [`Lanes::review`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkObservation {
    /// A connection is in slow start and has delivered.
    pub(super) in_slow_start: bool,
    /// Packets were lost lately.
    pub(super) has_recent_loss: bool,
    /// All connections have left slow start, and this many deliver.
    pub(super) past_slow_start: bool,
    pub(super) delivering: u32,
    /// The rate of all connections together over the last few round trips.
    pub(super) rate: Bitrate,
    /// The round trip of the empty path.
    pub(super) min_rtt: Duration,
    /// The round trip now.
    pub(super) rtt: Duration,
    /// How long the download still takes.
    pub(super) time_left: Duration,
}

impl LinkObservation {
    /// Whether nothing waits in the link's queue: the sender or the server holds the bytes back, not the link.
    pub(super) fn has_spare_capacity(&self) -> bool {
        self.rtt <= self.min_rtt + self.min_rtt / 4 + QUEUEING_NOISE
    }
}

impl ConnCountController {
    /// Looks at the link, and changes the number if that is worth trying. Tells whether it did.
    pub(super) fn review(&mut self, now: Instant, observation: LinkObservation, max: u32) -> bool {
        match self.probe {
            Some(probe) => self.evaluate_probe(now, observation, probe),
            None => self.maybe_start_probe(now, observation, max),
        }
    }

    fn maybe_start_probe(&mut self, now: Instant, observation: LinkObservation, max: u32) -> bool {
        // Rule 4: the climb itself is what takes long here, and several climb at once.
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
        // Without losses a second one is tried, and no more: it may be the server that shares itself out.
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
            // The server lets no more in.
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
                    self.back_off(now);
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

    /// The server asks for less: back to one connection for the rest of the run.
    pub(super) fn limit_to_one(&mut self) {
        *self = Self { next_probe_at: Instant::FAR_FUTURE, ..Self::default() };
    }

    /// When the next look is due.
    pub(super) fn next_review_at(&self, now: Instant) -> Instant {
        let next = now + REVIEW_INTERVAL;
        self.probe
            .and_then(|probe| probe.evaluate_at)
            .map_or(next, |at| at.min(next))
            .max(now + MIN_REVIEW_INTERVAL)
    }
}

/// The rate must grow by a tenth.
const MIN_GAIN_DIVISOR: u64 = 10;
/// A queue shorter than this is noise.
const QUEUEING_NOISE: Duration = Duration::from_millis(6);
/// What is left must last this long, or a new connection does not pay for its slow start.
const MIN_TIME_LEFT: Duration = Duration::from_millis(1500);
const MIN_TIME_LEFT_RTTS: u32 = 20;
/// How long new connections take to show what they can do.
const SETTLE_TIME: Duration = Duration::from_millis(400);
const SETTLE_RTTS: u32 = 8;
/// An empty queue that stays empty this long is not filling.
const SPARE_TIME: Duration = Duration::from_millis(2500);
/// With losses: longer than the dip behind a loss that the queue itself has caused.
const LOSSY_SPARE_RTTS: u32 = 4;
const LOSSY_SPARE_TIME: Duration = Duration::from_millis(150);
/// A round trip from which slow start takes seconds, what must be left for the climb to pay, and how many climb.
const LONG_RTT: Duration = Duration::from_millis(200);
const LONG_RTT_ROUNDS: u32 = 4;
const LONG_RTT_CONNECTIONS: u32 = 4;
const INITIAL_PROBE_INTERVAL: Duration = Duration::from_secs(1);
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// How often a link is looked at.
const REVIEW_INTERVAL: Duration = Duration::from_millis(100);
const MIN_REVIEW_INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_slack_link_gets_more_as_long_as_they_pay() {
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
    fn without_losses_there_are_never_more_than_two() {
        let mut controller = ConnCountController::default();
        for t in 0..400_u64 {
            let n = controller.target;
            controller.review(Instant::from_millis(t * 50), observation(5 * u64::from(n), 31, n), 16);
        }
        assert_eq!(controller.target, 2);
    }

    #[test]
    fn more_that_bring_nothing_are_taken_back() {
        let mut controller = ConnCountController::default();
        let mut most = 0;
        for t in 0..100_u64 {
            controller.review(Instant::from_millis(t * 50), observation(5, 30, controller.target), 16);
            most = most.max(controller.target);
        }
        assert_eq!((controller.target, most), (1, 2));
    }

    #[test]
    fn on_a_long_way_several_climb_at_once() {
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
    fn nothing_is_tried_at_the_end() {
        let mut controller = ConnCountController::default();
        let end = LinkObservation { time_left: Duration::from_millis(300), ..observation(5, 30, 1) };
        assert!(!controller.review(Instant::from_millis(1000), end, 16));
    }
}
