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
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    deviation: Duration,
    smallest: Option<Duration>,
}

impl Rtt {
    /// A segment sent once was acknowledged after `sample`.
    pub(super) fn on_sample(&mut self, sample: Duration) {
        self.smallest = Some(self.smallest.map_or(sample, |least| least.min(sample)));
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.deviation = sample / 2;
            }
            Some(smoothed) => {
                self.deviation = (self.deviation * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
    }

    /// The smoothed round-trip time; zero before the first sample.
    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or_default()
    }

    /// The smallest sample; zero before the first.
    pub(super) fn smallest(&self) -> Duration {
        self.smallest.unwrap_or_default()
    }

    /// When an unanswered segment is given up, without back-off.
    pub(super) fn timeout(&self) -> Duration {
        match self.smoothed {
            None => INITIAL_TIMEOUT,
            Some(smoothed) => smoothed + (self.deviation * 4).max(LEAST_VARIANCE),
        }
    }

    /// When an unanswered tail is probed (RFC 8985 §7.2), with `in_flight` segments on their way.
    pub(super) fn probe_timeout(&self, in_flight: u32) -> Duration {
        let slack = if in_flight == 1 { LEAST_VARIANCE } else { PROBE_SLACK };
        match self.smoothed {
            None => INITIAL_TIMEOUT,
            Some(smoothed) => smoothed * 2 + slack,
        }
    }
}

/// RFC 6298 §2.1.
pub(super) const INITIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Linux's `tcp_rto_min_us`; also the other side's longest delay of an ACK, which a single segment must wait for.
const LEAST_VARIANCE: Duration = Duration::from_millis(200);
/// Two ticks of a kernel with 250 a second.
const PROBE_SLACK: Duration = Duration::from_millis(8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_path_times_out_200_ms_after_its_round_trip() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), Duration::from_secs(1));
        for _ in 0..50 {
            rtt.on_sample(Duration::from_millis(40));
        }
        assert_eq!(rtt.timeout(), Duration::from_millis(240));
        assert_eq!(rtt.probe_timeout(5), Duration::from_millis(88));
        assert_eq!(rtt.probe_timeout(1), Duration::from_millis(280));
    }
}
