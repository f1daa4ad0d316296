//! The shortest round trip of the flows that move now: how long an acknowledgement may wait for others depends on it.
//!
//! In: round trips of flows, each time when one is heard. Out: the least of the last second, for whatever number of flows.
//!
//! One whose acknowledgements may not wait counts as the shortest there is.

use crate::units::{Duration, Instant};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct MinRtt {
    /// Of the running slot of time and of the one before.
    min: [Option<Duration>; 2],
    began: Instant,
}

impl MinRtt {
    /// A flow of this round trip moves.
    pub(in crate::accel) fn on_rtt(&mut self, now: Instant, rtt: Option<Duration>) {
        if now.since(self.began) >= SLOT {
            (self.min, self.began) = ([None, self.min[0]], now);
        }
        let (rtt, min) = (rtt.unwrap_or_default(), &mut self.min[0]);
        *min = Some(min.map_or(rtt, |min| min.min(rtt)));
    }

    /// None: nothing has moved yet.
    pub(in crate::accel) fn min(&self) -> Option<Duration> {
        self.min.into_iter().flatten().min()
    }
}

/// chosen: longer than a round trip, shorter than what a user waits for.
const SLOT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_least_of_those_who_were_heard_lately() {
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
        assert_eq!(min_rtt.min(), Some(Duration::ZERO), "nothing is known of it");
    }
}
