//! How long does a round trip take, and when is silence a loss?
//!
//! In: round-trip times of segments that were sent once. Out: their smoothed value, their smallest, and the timeout.
//!
//! 1. Smoothing and variance by RFC 6298 §2 with its gains of 1/8 and 1/4.
//! 2. The variance's share of the timeout is never below 200 ms, which is how Linux reads the RFC's lower bound.
//! 3. The smallest is kept for ever; Linux forgets it after five minutes, longer than any download here.

use core::time::Duration;

/// One connection's estimate of its round-trip time.
#[derive(Clone, Debug, Default)]
pub(super) struct RttEstimator {
    smoothed: Option<Duration>,
    rttvar: Duration,
    min: Option<Duration>,
}

impl RttEstimator {
    /// A segment sent once was acknowledged after `sample`.
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

    /// The smoothed round-trip time; zero before the first sample.
    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or_default()
    }

    /// The smallest sample; zero before the first.
    pub(super) fn min(&self) -> Duration {
        self.min.unwrap_or_default()
    }

    /// When an unanswered segment is given up, without back-off.
    pub(super) fn rto(&self) -> Duration {
        match self.smoothed {
            None => INITIAL_RTO,
            Some(smoothed) => smoothed + (self.rttvar * 4).max(MIN_RTO_VARIANCE),
        }
    }

    /// When an unanswered tail is probed (RFC 8985 §7.2), with `in_flight` segments on their way.
    pub(super) fn probe_timeout(&self, in_flight: u32) -> Duration {
        let margin = if in_flight == 1 { MIN_RTO_VARIANCE } else { PROBE_MARGIN };
        match self.smoothed {
            None => INITIAL_RTO,
            Some(smoothed) => smoothed * 2 + margin,
        }
    }
}

/// RFC 6298 §2.1.
pub(super) const INITIAL_RTO: Duration = Duration::from_secs(1);
/// Linux's `tcp_rto_min_us`; also the other side's longest delay of an ACK, which a single segment must wait for.
const MIN_RTO_VARIANCE: Duration = Duration::from_millis(200);
/// Two ticks of a kernel with 250 a second.
const PROBE_MARGIN: Duration = Duration::from_millis(8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_path_times_out_200_ms_after_its_round_trip() {
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
