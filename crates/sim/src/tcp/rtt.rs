//! RTT estimation: smoothed and minimum RTT, and the timeouts derived from them.
//!
//! Samples come from segments that were sent once, or from echoed timestamps.
//!
//! 1. Smoothed RTT and variance follow RFC 6298 §2, with gains of 1/8 and 1/4.
//! 2. The variance term of the timeout is at least 200 ms, which is how Linux implements the RFC's minimum.
//! 3. The minimum is kept forever. Linux forgets it after five minutes, which is longer than any download here.

use core::time::Duration;

/// RTT estimate of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct RttEstimator {
    smoothed: Option<Duration>,
    rttvar: Duration,
    min: Option<Duration>,
}

impl RttEstimator {
    /// Adds a sample.
    pub(super) fn on_sample(&mut self, sample: Duration) {
        self.min = Some(self.min.map_or(sample, |min| min.min(sample)));
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.rttvar = sample / 2;
            }
            Some(smoothed) => {
                self.rttvar = (self.rttvar * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
    }

    /// Smoothed RTT; zero before the first sample.
    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or_default()
    }

    /// Minimum RTT; zero before the first sample.
    pub(super) fn min(&self) -> Duration {
        self.min.unwrap_or_default()
    }

    /// Retransmission timeout, without backoff.
    pub(super) fn rto(&self) -> Duration {
        match self.smoothed {
            None => INITIAL_RTO,
            Some(smoothed) => smoothed + (self.rttvar * 4).max(MIN_RTO_VARIANCE),
        }
    }

    /// Timeout of the tail-loss probe (RFC 8985 §7.2), with `in_flight` segments in flight.
    pub(super) fn probe_timeout(&self, in_flight: u32) -> Duration {
        let margin = if in_flight == 1 { MIN_RTO_VARIANCE } else { PROBE_MARGIN };
        match self.smoothed {
            None => INITIAL_RTO,
            Some(smoothed) => smoothed * 2 + margin,
        }
    }
}

/// Retransmission timeout before the first sample (RFC 6298 §2.1).
pub(super) const INITIAL_RTO: Duration = Duration::from_secs(1);
/// Linux's `tcp_rto_min_us`; also the peer's maximum ACK delay, which applies to a single segment in flight.
const MIN_RTO_VARIANCE: Duration = Duration::from_millis(200);
/// Two ticks of a kernel with 250 ticks per second.
const PROBE_MARGIN: Duration = Duration::from_millis(8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rto_of_a_steady_path_is_its_rtt_plus_200_ms() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        for _ in 0..50 {
            rtt.on_sample(Duration::from_millis(40));
        }
        assert_eq!(rtt.rto(), Duration::from_millis(240));
        assert_eq!(rtt.probe_timeout(5), Duration::from_millis(88));
        assert_eq!(rtt.probe_timeout(1), Duration::from_millis(280));
    }
}
