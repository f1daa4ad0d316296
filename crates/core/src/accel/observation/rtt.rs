//! Estimates a flow's round-trip time from the receiver's side.
//!
//! 1. The first sample is the handshake: from the SYN to the ACK of its answer, which may carry data already.
//! 2. Later samples are from an ACK to the first packet that echoes its timestamp. They exist only while packets are
//!    captured ([`crate::accel::CaptureLevel`]) from before the ACK on, and not across an outage.

use crate::accel::observation::options::ObservationOptions;
use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// Round-trip time of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RttEstimator {
    options: &'static ObservationOptions,
    syn_sent: Option<Instant>,
    probe: Option<(TcpTimestamp, Instant)>,
    /// None before the first sample.
    smoothed: Option<Duration>,
    /// The shortest sample, that is the round-trip time without queueing; `default_rtt` before the first one.
    min: Option<Duration>,
}

impl RttEstimator {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static ObservationOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The local SYN leaves.
    pub(crate) fn on_syn(&mut self, now: Instant) {
        // A retransmitted SYN gives no sample: it is unknown which of the two was answered.
        self.syn_sent = if self.syn_sent.is_some() { None } else { Some(now) };
    }

    /// The first packet after the SYN leaves, or any later one.
    pub(crate) fn on_handshake_end(&mut self, now: Instant) {
        if let Some(opened) = self.syn_sent.take() {
            self.add_sample(now.since(opened));
        }
    }

    /// An ACK leaves with this timestamp of the local clock. `is_watched`: packets are captured.
    pub(crate) fn on_ack_sent(&mut self, now: Instant, ts_val: TcpTimestamp, is_watched: bool) {
        self.on_handshake_end(now);
        if !is_watched {
            self.probe = None;
        } else if self.probe.is_none_or(|(_, sent)| now.since(sent) >= self.options.max_rtt_sample) {
            self.probe = Some((ts_val, now));
        }
    }

    /// A packet comes that echoes this timestamp.
    pub(crate) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp) {
        let Some((ts_val, sent)) = self.probe else { return };
        if echo.is_before(ts_val) {
            return;
        }
        self.on_sample(now.since(sent));
        self.probe = None;
    }

    /// The link is down: what is in flight will not be answered soon.
    pub(crate) fn on_outage_start(&mut self) {
        (self.probe, self.syn_sent) = (None, None);
    }

    /// A sample that was measured elsewhere. One longer than `max_rtt_sample` is a stall.
    pub(crate) fn on_sample(&mut self, rtt: Duration) {
        if rtt < self.options.max_rtt_sample {
            self.add_sample(rtt);
        }
    }

    fn add_sample(&mut self, sample: Duration) {
        self.smoothed = Some(self.smoothed.map_or(sample, |smoothed| (smoothed * 7 + sample) / 8));
        self.min = Some(self.min.map_or(sample, |min| min.min(sample)));
    }

    /// None before the first measure.
    pub(crate) const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The shortest sample; none before the first one.
    pub(crate) const fn measured_min(&self) -> Option<Duration> {
        self.min
    }

    /// The shortest there was: without waiting. Something usual before the first measure.
    pub(crate) fn min(&self) -> Duration {
        self.min.unwrap_or(self.options.default_rtt)
    }

    /// The smoothed round-trip time; `default_rtt` before the first sample.
    pub(crate) fn smoothed_or_default(&self) -> Duration {
        self.smoothed.unwrap_or(self.options.default_rtt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_is_the_first_sample_and_echoes_are_the_next() {
        let (mut rtt, at) = (RttEstimator::default(), Instant::from_millis);
        assert_eq!(rtt.smoothed_or_default(), ObservationOptions::DEFAULT.default_rtt);
        rtt.on_syn(at(0));
        rtt.on_ack_sent(at(50), TcpTimestamp::new(7), true);
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(50)));
        rtt.on_echo(at(60), TcpTimestamp::new(6));
        rtt.on_echo(at(108), TcpTimestamp::new(7));
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(51)));
    }

    #[test]
    fn an_echo_that_may_be_old_gives_no_sample() {
        let (mut rtt, at) = (RttEstimator::default(), Instant::from_millis);
        rtt.on_ack_sent(at(0), TcpTimestamp::new(7), false);
        rtt.on_echo(at(900), TcpTimestamp::new(7));
        rtt.on_ack_sent(at(1000), TcpTimestamp::new(1007), true);
        rtt.on_ack_sent(at(1020), TcpTimestamp::new(1027), false);
        rtt.on_echo(at(1900), TcpTimestamp::new(1027));
        rtt.on_ack_sent(at(2000), TcpTimestamp::new(2007), true);
        rtt.on_outage_start();
        rtt.on_echo(at(2100), TcpTimestamp::new(2007));
        rtt.on_ack_sent(at(3000), TcpTimestamp::new(3007), true);
        rtt.on_echo(at(9000), TcpTimestamp::new(3007));
        assert_eq!(rtt.smoothed(), None);
    }

    #[test]
    fn a_handshake_may_end_with_data() {
        let (mut rtt, at) = (RttEstimator::default(), Instant::from_millis);
        rtt.on_syn(at(0));
        rtt.on_handshake_end(at(50));
        rtt.on_ack_sent(at(900), TcpTimestamp::new(7), true);
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(50)));
    }

    #[test]
    fn a_retransmitted_syn_gives_no_sample() {
        let mut rtt = RttEstimator::default();
        rtt.on_syn(Instant::ZERO);
        rtt.on_syn(Instant::from_millis(1000));
        rtt.on_ack_sent(Instant::from_millis(1050), TcpTimestamp::new(7), true);
        assert_eq!(rtt.smoothed(), None);
    }
}
