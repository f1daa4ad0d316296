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
use crate::accel::ack_offload::options::AckOffloadOptions;
use crate::accel::mechanism::Mechanism;
use crate::accel::observation::flow_meter::FlowMeter;
use crate::accel::observation::loss_classifier::LossClassifier;
use crate::accel::observation::sack_holes::SackHoles;
use crate::accel::status::MechanismReport;
use crate::units::{Bitrate, Duration, Instant};
use crate::wire::packet::{Ack, TcpTimestamp};

/// Link over which an ACK is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckPath {
    /// It may leave over a secondary link.
    Secondary,
    /// It leaves over the primary link, after this delay.
    Delayed(Duration),
}

/// Selects the link of each ACK of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct AckPathSelector {
    options: &'static AckOffloadOptions,
    trial: OffloadTrial,
    loss_guard: LossGuard,
    path_delay: PathDelay,
    delay_queue: AckDelayQueue,
    assumed_path: AssumedPath,
    /// Whether ACKs may take the secondary link now: the trial allows it, and the flow is eligible.
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

/// What is known of a flow whose ACK leaves now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffloadCandidate<'a> {
    pub(crate) meter: &'a FlowMeter,
    pub(crate) classifier: &'a LossClassifier,
    /// As the receiver reports them. Early-acked holes count: a longer round trip slows their repair.
    pub(crate) holes: &'a SackHoles,
    /// The receiver's last ACK, before it was rewritten.
    pub(crate) last_ack: Option<Ack>,
    /// The next ACKs must arrive as they are.
    pub(crate) is_exact: bool,
    /// The receiver's window scale, an exponent (RFC 7323).
    pub(crate) scale: u8,
}

impl OffloadCandidate<'_> {
    /// What the delay queue needs to know of an ACK that was rewritten.
    pub(crate) fn ack_info(&self, ack: Ack) -> AckInfo {
        let echo = |ack: &Ack| ack.timestamps.map(|stamps| stamps.ts_ecr);
        let has_rewritten_echo = self.last_ack.is_none_or(|last| echo(&last) != echo(&ack));
        AckInfo { ack, has_rewritten_echo, scale: self.scale }
    }
}

impl AckPathSelector {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static AckOffloadOptions) -> Self {
        Self {
            options,
            trial: OffloadTrial::new(options),
            loss_guard: LossGuard::new(options),
            path_delay: PathDelay::new(options),
            delay_queue: AckDelayQueue::new(options),
            ..Self::default()
        }
    }

    /// Whether ACKs may leave over a secondary link now, by holes and size alone (Super-aggregation §3.1).
    pub(crate) fn can_offload_as_published(&mut self, now: Instant, flow: &OffloadCandidate<'_>) -> bool {
        self.loss_guard.is_clear(now, flow.holes)
            && !flow.is_exact
            && flow.meter.segments_in_flight(now) >= u64::from(self.options.min_segments)
    }

    /// The link of an ACK of this flow that leaves now. `is_link_ready`: a secondary link responds; `max_rate`: a faster
    /// flow has more ACKs than that link can carry.
    pub(crate) fn choose(
        &mut self,
        now: Instant,
        flow: &OffloadCandidate<'_>,
        is_link_ready: bool,
        max_rate: Bitrate,
    ) -> AckPath {
        // Hysteresis: a flow that fell below a limit must exceed it clearly to be offloaded again.
        let min_segments = if self.is_on { self.options.min_segments / 2 } else { self.options.min_segments };
        let max_rate = if self.is_on { max_rate + max_rate / 4 } else { max_rate };
        let meter = flow.meter;
        let sample = TrialSample {
            received: meter.goodput.total(),
            queue: flow.classifier.queueing_delay(now),
            max_queue: flow.classifier.max_queue(),
            rtt: meter.rtt.min(),
            // Without timestamps nothing would show that ACKs do not arrive over the other link.
            is_eligible: flow.last_ack.is_some_and(|last| last.timestamps.is_some())
                && meter.segments_in_flight(now) >= u64::from(min_segments)
                && meter.goodput.rate(now) <= max_rate,
            has_started: flow.holes.last_open().is_some() || now.since(meter.opened) >= self.options.min_age,
            is_link_ready,
            ..TrialSample::new(now)
        };
        self.select(sample, flow.holes, flow.is_exact)
    }

    /// The path of an ACK that leaves now. The fields of `sample` about holes are filled in here.
    fn select(&mut self, sample: TrialSample, holes: &SackHoles, is_exact: bool) -> AckPath {
        let now = sample.now;
        let is_calm = self.loss_guard.is_clear(now, holes) && !is_exact;
        let sample = TrialSample {
            is_clear: is_calm,
            has_no_holes: holes.closed_for(now, self.options.no_holes_time),
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
            self.capture_until = Some(now + self.options.capture_time);
        }
        if self.is_on && holes.closed_for(now, self.options.hole_gap) && !is_exact {
            return AckPath::Secondary;
        }
        // ACKs on the primary link prove nothing.
        self.delivery_deadline = self.delivery_deadline.and_then(|_| self.delivery_deadline(&sample));
        AckPath::Delayed(self.current_delay(now, !self.is_on))
    }

    /// No secondary link could take the ACK. Returns its delay on the primary link.
    pub(crate) fn on_no_capacity(&mut self, now: Instant) -> Duration {
        self.current_delay(now, true)
    }

    /// A secondary link has taken an ACK with this timestamp.
    pub(crate) fn on_offloaded(&mut self, now: Instant, value: Option<TcpTimestamp>) {
        self.assumed_path = AssumedPath::Secondary;
        if let Some(value) = value {
            self.path_delay.on_ack_sent(now, value, AckLink::Secondary);
        }
    }

    /// An ACK leaves over the primary link after this delay. It is returned if that is now.
    pub(crate) fn delay(
        &mut self,
        now: Instant,
        packet: Vec<u8>,
        info: AckInfo,
        delay: Duration,
    ) -> Option<Vec<u8>> {
        let packet = self.delay_queue.push(now, packet, info, delay);
        let value = info.ack.timestamps.map(|timestamps| timestamps.ts_val);
        match value.filter(|_| packet.is_some()) {
            Some(value) => self.path_delay.on_ack_sent(now, value, AckLink::Primary),
            None => self.path_delay.on_ack_delayed(),
        }
        packet
    }

    /// A packet comes that echoes this timestamp, after this queueing delay.
    pub(crate) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp, waited: Option<Duration>) {
        self.path_delay.on_echo(now, echo, waited);
        if self.path_delay.is_delivered() {
            self.delivery_deadline = None;
        }
    }

    /// The ACKs that are due over the primary link; all of them if the link is down.
    pub(crate) fn take_due(&mut self, now: Instant, is_down: bool) -> Vec<Vec<u8>> {
        if is_down {
            return self.delay_queue.drain().collect();
        }
        core::iter::from_fn(|| self.delay_queue.pop(now)).collect()
    }

    /// Whether offloaded ACKs do not arrive. Then all leave over the primary link from now on.
    pub(crate) fn has_failed(&mut self, now: Instant) -> bool {
        let has_failed = self.delivery_deadline.is_some_and(|deadline| now >= deadline);
        if has_failed {
            (self.delivery_deadline, self.is_on) = (None, false);
            self.trial.on_delivery_failure(now);
        }
        has_failed
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.delay_queue.due(), self.delivery_deadline].into_iter().flatten().min()
    }

    /// Until when its packets are to be shown.
    pub(crate) const fn capture_until(&self) -> Option<Instant> {
        self.capture_until
    }

    /// Whether ACKs of this flow are offloaded, and why not. `was_offloaded`: some were.
    pub(crate) fn report(&self, was_offloaded: bool, report: &mut MechanismReport<'_>) {
        report.active(Mechanism::AckOffload, self.is_on);
        report.active(Mechanism::AckOffloadAsPublished, !self.is_on && was_offloaded);
        if self.trial.has_no_benefit() {
            report.inactive(&[Mechanism::AckOffload], "it runs no better with its ACKs elsewhere");
        }
    }

    pub(crate) const fn trial(&self) -> &OffloadTrial {
        &self.trial
    }

    /// When an ACK that is offloaded now must have been echoed; none: echoes are not captured.
    fn delivery_deadline(&self, sample: &TrialSample) -> Option<Instant> {
        let rtt = self.path_delay.primary_rtt().or(sample.queue.map(|_| sample.rtt))?;
        Some(sample.now + rtt * 3 + self.options.delivery_slack)
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
                let left = self.options.fade_time.saturating_sub(now.since(since));
                if left.is_zero() {
                    self.assumed_path = AssumedPath::Primary;
                }
                extra.mul_f64(left.as_secs_f64() / self.options.fade_time.as_secs_f64())
            }
        }
    }
}

#[cfg(test)]
mod tests;
