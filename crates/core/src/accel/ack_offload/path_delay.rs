//! Measures how much longer the path of an ACK over the secondary link is than over the primary one.
//!
//! 1. A sample is a round-trip time as in [`crate::accel::observation::rtt`] minus the queueing delay of the data: what
//!    remains differs only by the path of the ACK. Samples exist only while packets are captured.
//! 2. For the primary path the mean counts. For the secondary path it is nearly the longest recent sample, because an
//!    ACK that follows over the primary link that much later must not overtake an offloaded one.
//! 3. A probe whose ACK may have been overtaken gives no sample. Neither does one whose echo is the first packet
//!    captured after a pause, because an earlier echo may have been missed; it does prove that the ACK arrived.
//!
//! Replies of gateways were not used: they measure the first hop only.

use crate::accel::ack_offload::options::AckOffloadOptions;
use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// The link over which an ACK leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckLink {
    /// The flow's own link.
    Primary,
    /// The secondary link.
    Secondary,
}

/// Both paths of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathDelay {
    options: &'static AckOffloadOptions,
    probe: Option<(TcpTimestamp, Instant, AckLink)>,
    /// When a packet was captured last.
    last_packet: Option<Instant>,
    primary_rtt: Option<Duration>,
    secondary_rtt: Option<Duration>,
    /// Samples of the secondary path since it was taken last.
    samples: u32,
    /// Whether an offloaded ACK has arrived.
    is_delivered: bool,
}

impl PathDelay {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static AckOffloadOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// An ACK with this timestamp leaves.
    pub(crate) fn on_ack_sent(&mut self, now: Instant, value: TcpTimestamp, link: AckLink) {
        if self.probe.is_none_or(|(_, sent, other)| other != link || now.since(sent) >= self.options.max_probe_age)
        {
            self.probe = Some((value, now, link));
        }
    }

    /// An ACK leaves that was queued first.
    pub(crate) fn on_ack_delayed(&mut self) {
        self.probe = None;
    }

    /// A packet comes that echoes this timestamp, after this queueing delay.
    pub(crate) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp, waited: Option<Duration>) {
        let was_seen = self.is_captured(now);
        self.last_packet = Some(now);
        let Some((value, sent, link)) = self.probe else { return };
        if echo.is_before(value) {
            return;
        }
        self.probe = None;
        self.is_delivered |= link == AckLink::Secondary;
        let Some(waited) = waited.filter(|_| was_seen) else { return };
        let sample = now.since(sent).saturating_sub(waited);
        match link {
            AckLink::Primary => {
                self.primary_rtt = Some(self.primary_rtt.map_or(sample, |mean| (mean * 7 + sample) / 8));
            }
            AckLink::Secondary => {
                self.secondary_rtt =
                    Some(self.secondary_rtt.map_or(sample, |long| sample.max((long * 15 + sample) / 16)));
                self.samples = self.samples.saturating_add(1);
            }
        }
    }

    /// Forgets the secondary path's delay.
    pub(crate) fn reset_secondary(&mut self) {
        (self.secondary_rtt, self.samples, self.is_delivered) = (None, 0, false);
    }

    /// The difference, at most `max_delay`; zero while it is unknown.
    pub(crate) fn difference(&self) -> Duration {
        let known =
            self.secondary_rtt.zip(self.primary_rtt).filter(|_| self.samples >= self.options.min_path_samples);
        known.map_or(Duration::ZERO, |(second, first)| second.saturating_sub(first).min(self.options.max_delay))
    }

    /// Whether an offloaded ACK has arrived.
    pub(crate) const fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// Whether packets are captured, as far as is known.
    fn is_captured(&self, now: Instant) -> bool {
        self.last_packet.is_some_and(|seen| now.since(seen) < self.options.max_capture_gap)
    }

    /// The round-trip time over the primary path.
    pub(crate) const fn primary_rtt(&self) -> Option<Duration> {
        self.primary_rtt
    }

    /// Whether both paths were measured.
    pub(crate) const fn is_known(&self) -> bool {
        self.primary_rtt.is_some() && self.samples >= self.options.min_path_samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes over this link, one after another, with a queue of 30 ms.
    fn probe_rtts(delay: &mut PathDelay, from: u64, link: AckLink, rtts: &[u64]) -> u64 {
        let mut at = from;
        for rtts in rtts {
            delay.on_echo(Instant::from_millis(at), TcpTimestamp::new(0), None);
            delay.on_ack_sent(Instant::from_millis(at), TcpTimestamp::new(u32::try_from(at).unwrap()), link);
            let echo = TcpTimestamp::new(u32::try_from(at).unwrap());
            // Meanwhile packets are captured that left before.
            for captured in (at..at + rtts + 30).step_by(20) {
                delay.on_echo(Instant::from_millis(captured), TcpTimestamp::new(0), None);
            }
            at += rtts + 30;
            delay.on_echo(Instant::from_millis(at), echo, Some(Duration::from_millis(30)));
        }
        at
    }

    #[test]
    fn the_difference_excludes_the_queue() {
        let mut delay = PathDelay::default();
        let at = probe_rtts(&mut delay, 0, AckLink::Primary, &[50, 52, 50]);
        assert_eq!((delay.difference(), delay.is_known()), (Duration::ZERO, false));
        let at = probe_rtts(&mut delay, at, AckLink::Secondary, &[100, 110, 104]);
        assert!((55..60).contains(&delay.difference().as_millis()) && delay.is_known(), "{:?}", delay.difference());
        probe_rtts(&mut delay, at, AckLink::Secondary, &[900]);
        assert_eq!(delay.difference(), AckOffloadOptions::DEFAULT.max_delay);
        delay.reset_secondary();
        assert_eq!((delay.difference(), delay.is_known()), (Duration::ZERO, false));
    }

    #[test]
    fn queued_acks_and_unknown_queueing_delays_give_no_sample() {
        let (mut delay, at) = (PathDelay::default(), Instant::from_millis);
        delay.on_echo(at(0), TcpTimestamp::new(0), None);
        delay.on_ack_sent(at(0), TcpTimestamp::new(1), AckLink::Primary);
        delay.on_ack_delayed();
        delay.on_echo(at(50), TcpTimestamp::new(1), Some(Duration::ZERO));
        delay.on_ack_sent(at(50), TcpTimestamp::new(50), AckLink::Primary);
        delay.on_echo(at(100), TcpTimestamp::new(50), None);
        assert_eq!(delay.primary_rtt, None);
    }

    #[test]
    fn an_echo_after_a_capture_gap_gives_no_sample() {
        let at = Instant::from_millis;
        let first = |captured: &[u64]| {
            let mut delay = PathDelay::default();
            for (n, ms) in captured.iter().enumerate() {
                // The first captured packet is an older one.
                delay.on_echo(at(*ms), TcpTimestamp::new(if n == 0 { 0 } else { 9 }), Some(Duration::ZERO));
                delay.on_ack_sent(at(*ms), TcpTimestamp::new(9 + u32::from(n > 0)), AckLink::Primary);
            }
            delay.primary_rtt
        };
        assert_eq!(first(&[0, 50]), Some(Duration::from_millis(50)));
        assert_eq!(first(&[0, 400]), None, "its echo came at 50 ms and was not captured");
        let mut delay = PathDelay::default();
        delay.on_ack_sent(at(0), TcpTimestamp::new(1), AckLink::Secondary);
        delay.on_echo(at(200), TcpTimestamp::new(5), Some(Duration::ZERO));
        assert!(
            delay.secondary_rtt.is_none() && delay.is_delivered(),
            "no packet was captured before; but the ACK has arrived"
        );
    }
}
