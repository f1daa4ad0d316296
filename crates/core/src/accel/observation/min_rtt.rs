//! The shortest round-trip time of all flows that moved in the last second. It bounds how long ACKs may be batched.
//!
//! A flow whose ACKs may not wait counts as zero.

use crate::accel::observation::options::ObservationOptions;
use crate::units::{Duration, Instant};

/// See the [module documentation](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MinRtt {
    options: &'static ObservationOptions,
    /// Of the current slot and of the one before.
    min: [Option<Duration>; 2],
    began: Instant,
}

impl MinRtt {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static ObservationOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// A flow with this round-trip time moves; none: its ACKs may not wait.
    pub(crate) fn on_rtt(&mut self, now: Instant, rtt: Option<Duration>) {
        if now.since(self.began) >= self.options.min_rtt_slot {
            (self.min, self.began) = ([None, self.min[0]], now);
        }
        let (rtt, min) = (rtt.unwrap_or_default(), &mut self.min[0]);
        *min = Some(min.map_or(rtt, |min| min.min(rtt)));
    }

    /// None: nothing has moved yet.
    pub(crate) fn min(&self) -> Option<Duration> {
        self.min.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_covers_the_flows_of_the_last_second() {
        let (mut min_rtt, ms, at) = (MinRtt::default(), Duration::from_millis, Instant::from_millis);
        assert_eq!(min_rtt.min(), None);
        min_rtt.on_rtt(at(5000), Some(ms(50)));
        min_rtt.on_rtt(at(5001), Some(ms(200)));
        assert_eq!(min_rtt.min(), Some(ms(50)));
        min_rtt.on_rtt(at(6100), Some(ms(200)));
        assert_eq!(min_rtt.min(), Some(ms(50)));
        min_rtt.on_rtt(at(7200), Some(ms(200)));
        assert_eq!(min_rtt.min(), Some(ms(200)));
        min_rtt.on_rtt(at(7201), None);
        assert_eq!(min_rtt.min(), Some(Duration::ZERO), "its ACKs may not wait");
    }
}
