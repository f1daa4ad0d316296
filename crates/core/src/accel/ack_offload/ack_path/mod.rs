//! Selects the path of each ACK of a flow: over a secondary link, or over the primary link with a delay.
//!
//! 1. Offload is switched on by trial ([`OffloadTrial`]), and off where holes are frequent ([`LossGuard`]).
//! 2. The round-trip time changes with the path, and the data in flight was sent for one of them. So while something is
//!    missing, ACKs leave over the primary link with the delay of the secondary one ([`AckDelayQueue`]); and when
//!    offload ends, that delay fades slowly, so that the difference does not fall on the queue at once.
//! 3. ACKs that do not arrive over the secondary link are detected by missing echoes: nothing echoes their timestamps.
//!    Then the flow returns to the primary link at once. ACKs that stay on the primary link, because of a hole or for
//!    their exactness, prove nothing and postpone this deadline.

use alloc::vec::Vec;

use super::delay_queue::{AckDelayQueue, AckInfo};
use super::loss_guard::LossGuard;
use super::path_delay::{AckLink, PathDelay};
use super::trial::{OffloadTrial, TrialSample};
use crate::accel::observation::sack_holes::SackHoles;
use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// Where an ACK leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum AckPath {
    /// It may leave over a secondary link.
    Secondary,
    /// It leaves over the primary link, after this delay.
    Delayed(Duration),
}

/// State of one flow.
#[derive(Clone, Debug, Default)]
pub(in crate::accel) struct AckPathSelector {
    trial: OffloadTrial,
    loss_guard: LossGuard,
    path_delay: PathDelay,
    delay_queue: AckDelayQueue,
    assumed_path: AssumedPath,
    /// Whether ACKs are offloaded.
    is_on: bool,
    /// Until when packets of the flow must be captured.
    capture_until: Option<Instant>,
    /// When an offloaded ACK must have been echoed.
    delivery_deadline: Option<Instant>,
}

/// The path whose round-trip time the sender's window is adapted to.
#[derive(Clone, Copy, Debug, Default)]
enum AssumedPath {
    #[default]
    Primary,
    Secondary,
    /// The delay of the secondary path is being removed.
    Fading {
        since: Instant,
    },
}

impl AckPathSelector {
    /// Whether holes permit offload; `is_exact`: the next ACKs must arrive as they are.
    pub(in crate::accel) fn has_no_holes(&mut self, now: Instant, holes: &SackHoles, is_exact: bool) -> bool {
        self.loss_guard.is_clear(now, holes) && !is_exact
    }

    /// The path of an ACK that leaves now. The fields of `sample` about holes are filled in here.
    pub(in crate::accel) fn select(&mut self, sample: TrialSample, holes: &SackHoles, is_exact: bool) -> AckPath {
        let now = sample.now;
        let is_calm = self.loss_guard.is_clear(now, holes) && !is_exact;
        let sample = TrialSample {
            is_clear: is_calm,
            has_no_holes: holes.closed_for(now, NO_HOLES_TIME),
            has_frequent_loss: self.loss_guard.has_frequent_loss(now),
            path_difference: self.path_delay.is_known().then(|| self.path_delay.difference()),
            ..sample
        };
        let was_on = core::mem::replace(&mut self.is_on, self.trial.is_on(&sample) && sample.is_eligible);
        if self.is_on && !was_on {
            self.path_delay.reset_secondary();
            self.delivery_deadline = self.delivery_deadline(&sample);
        } else if !self.is_on {
            self.delivery_deadline = None;
        }
        if self.trial.is_running() || self.delivery_deadline.is_some() {
            self.capture_until = Some(now + CAPTURE_TIME);
        }
        if self.is_on && holes.closed_for(now, HOLE_GAP) && !is_exact {
            return AckPath::Secondary;
        }
        // ACKs on the primary link prove nothing.
        self.delivery_deadline = self.delivery_deadline.and_then(|_| self.delivery_deadline(&sample));
        AckPath::Delayed(self.current_delay(now, !self.is_on))
    }

    /// No secondary link could take the ACK. Returns its delay on the primary link.
    pub(in crate::accel) fn on_no_capacity(&mut self, now: Instant) -> Duration {
        self.current_delay(now, true)
    }

    /// A secondary link has taken an ACK with this timestamp.
    pub(in crate::accel) fn on_offloaded(&mut self, now: Instant, value: Option<TcpTimestamp>) {
        self.assumed_path = AssumedPath::Secondary;
        if let Some(value) = value {
            self.path_delay.on_ack_sent(now, value, AckLink::Secondary);
        }
    }

    /// An ACK leaves over the primary link after this delay. It is returned if that is now.
    pub(in crate::accel) fn delay(
        &mut self,
        now: Instant,
        packet: Vec<u8>,
        info: AckInfo,
        delay: Duration,
    ) -> Option<Vec<u8>> {
        let packet = self.delay_queue.push(now, packet, info, delay);
        let value = info.ack.timestamps.map(|stamps| stamps.ts_val);
        match value.filter(|_| packet.is_some()) {
            Some(value) => self.path_delay.on_ack_sent(now, value, AckLink::Primary),
            None => self.path_delay.on_ack_delayed(),
        }
        packet
    }

    /// A packet comes that echoes this timestamp, after this queueing delay.
    pub(in crate::accel) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp, waited: Option<Duration>) {
        self.path_delay.on_echo(now, echo, waited);
        if self.path_delay.is_delivered() {
            self.delivery_deadline = None;
        }
    }

    /// The ACKs that are due over the primary link; all of them if the link is down.
    pub(in crate::accel) fn take_due(&mut self, now: Instant, is_dark: bool) -> Vec<Vec<u8>> {
        if is_dark {
            return self.delay_queue.drain().collect();
        }
        core::iter::from_fn(|| self.delay_queue.pop(now)).collect()
    }

    /// Whether offloaded ACKs do not arrive. Then all leave over the primary link from now on.
    pub(in crate::accel) fn has_failed(&mut self, now: Instant) -> bool {
        let has_failed = self.delivery_deadline.is_some_and(|proof| now >= proof);
        if has_failed {
            (self.delivery_deadline, self.is_on) = (None, false);
            self.trial.on_delivery_failure(now);
        }
        has_failed
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        [self.delay_queue.due(), self.delivery_deadline].into_iter().flatten().min()
    }

    /// Until when its packets are to be shown.
    pub(in crate::accel) const fn capture_until(&self) -> Option<Instant> {
        self.capture_until
    }

    /// Whether ACKs go elsewhere.
    pub(in crate::accel) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// The trial.
    pub(in crate::accel) const fn trial(&self) -> &OffloadTrial {
        &self.trial
    }

    /// When an ACK that is offloaded now must have been echoed; none: echoes are not captured.
    fn delivery_deadline(&self, sample: &TrialSample) -> Option<Instant> {
        let rtt = self.path_delay.primary_rtt().or(sample.queue.map(|_| sample.rtt))?;
        Some(sample.now + rtt * 3 + DELIVERY_SLACK)
    }

    /// The delay of an ACK on the primary link; `ends`: offload ends.
    fn current_delay(&mut self, now: Instant, ends: bool) -> Duration {
        let extra = self.path_delay.difference();
        if let (AssumedPath::Secondary, true) = (self.assumed_path, ends) {
            self.assumed_path = AssumedPath::Fading { since: now };
        }
        match self.assumed_path {
            AssumedPath::Primary => Duration::ZERO,
            AssumedPath::Secondary => extra,
            AssumedPath::Fading { since } => {
                let left = FADE_TIME.saturating_sub(now.since(since));
                if left.is_zero() {
                    self.assumed_path = AssumedPath::Primary;
                }
                extra.mul_f64(left.as_secs_f64() / FADE_TIME.as_secs_f64())
            }
        }
    }
}

/// chosen: longer than the ACKs of a repair take, over either path; what follows is a rate.
const NO_HOLES_TIME: Duration = Duration::from_millis(300);
/// chosen: holes of one burst count as one.
const HOLE_GAP: Duration = Duration::from_millis(60);
/// chosen: packets are captured for so long beyond a trial; ACKs come more often.
const CAPTURE_TIME: Duration = Duration::from_millis(500);
/// chosen: the longest path difference and the longest queue for which offload pays.
const DELIVERY_SLACK: Duration = Duration::from_millis(400);
/// chosen: with 50 ms the queue grows by an eightieth of the rate meanwhile; in one second it overflowed, and competing
/// flows lost by it (`tests/tables/accel-beside.txt` of the simulator).
const FADE_TIME: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests;
