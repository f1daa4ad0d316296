//! Estimates the timestamp clock of the peer (`TSval`, RFC 7323) and measures the relative delay of each packet with
//! it.
//!
//! The delay has an unknown offset, so only differences are meaningful: the delay of a packet minus the minimum of the
//! last minutes is its queueing delay.
//!
//! 1. The protocol does not announce how long a tick is: Linux uses 1 ms or 1 µs, others 4, 10 or 100 ms. The tick is
//!    assumed to be 1 ms until `clock_time` has passed, and is then the nearest of these lengths. A clock that is near
//!    none of them is not used ([`PeerClock::tick`] is none).
//! 2. The two clocks drift apart. Callers compare delays within minutes only.
//!
//! A linear regression over all samples was not used: queues bias it, and five possible lengths can be distinguished
//! without it.

use crate::accel::observation::options::ObservationOptions;
use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// The clock of one connection's peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerClock {
    options: &'static ObservationOptions,
    first: Option<Instant>,
    last: Option<ClockSample>,
    /// The length of a tick; none if it is unknown. When it changes, earlier delays are meaningless.
    tick: Tick,
}

/// When a timestamp came, and its number of ticks after the first one.
#[derive(Clone, Copy, Debug)]
struct ClockSample {
    at: Instant,
    ts_val: TcpTimestamp,
    ticks: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Tick {
    /// 1 ms, until it is measured.
    #[default]
    Assumed,
    Known(Duration),
    /// None of the usual lengths fits.
    Unknown,
}

impl PeerClock {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static ObservationOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// A packet with this timestamp came now. Returns its delay in nanoseconds beyond that of the first packet; none if
    /// the clock cannot be used.
    pub(crate) fn on_tsval(&mut self, now: Instant, ts_val: TcpTimestamp) -> Option<i64> {
        let first = *self.first.get_or_insert(now);
        let ticks = self.last.map_or(0, |last| last.ticks + i64::from(ts_val.since(last.ts_val)));
        if self.last.is_none_or(|last| ticks >= last.ticks) {
            self.last = Some(ClockSample { at: now, ts_val, ticks });
        }
        self.estimate_tick(now.since(first), ticks);
        let tick_time = ticks.checked_mul(nanos(self.tick()?))?;
        Some(nanos(now.since(first)) - tick_time)
    }

    /// The timestamp that a packet would carry if the peer sent it now and it arrived at once: the newest one, advanced
    /// by the time since.
    pub(crate) fn current_tsval(&self, now: Instant) -> Option<TcpTimestamp> {
        let last = self.last?;
        let passed = now.since(last.at).as_nanos() / self.tick()?.as_nanos().max(1);
        Some(last.ts_val.plus(u32::try_from(passed).unwrap_or(u32::MAX)))
    }

    /// How long a tick is; none: it cannot be estimated. When it changes, delays from before mean nothing.
    pub(crate) const fn tick(&self) -> Option<Duration> {
        match self.tick {
            Tick::Assumed => Some(MILLISECOND),
            Tick::Known(tick) => Some(tick),
            Tick::Unknown => None,
        }
    }

    /// The shortest length that a tick may have.
    pub(crate) const fn min_tick(&self) -> Duration {
        match self.tick {
            Tick::Known(tick) => tick,
            Tick::Assumed | Tick::Unknown => Duration::from_micros(1),
        }
    }

    fn estimate_tick(&mut self, passed: Duration, ticks: i64) {
        if self.tick != Tick::Assumed || passed < self.options.clock_time {
            return;
        }
        let measured = passed.as_nanos() / u128::from(u64::try_from(ticks).unwrap_or(0).max(1));
        let near = |tick: &&Duration| {
            let tick = tick.as_nanos();
            measured * 10 < tick * TOLERANCE && tick * 10 < measured * TOLERANCE
        };
        self.tick = TICKS.iter().find(near).map_or(Tick::Unknown, |tick| Tick::Known(*tick));
    }
}

/// Saturating, like all arithmetic of units.
fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// Linux with `tcp_usec_ts`; Linux; older systems with 250 and with 100 ticks a second; some embedded systems.
const TICKS: [Duration; 5] = [
    Duration::from_micros(1),
    MILLISECOND,
    Duration::from_millis(4),
    Duration::from_millis(10),
    Duration::from_millis(100),
];
/// In tenths. Our choice: half of the ratio between 4 and 10 ms.
const TOLERANCE: u128 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets every 5 ms, each with a delay of 20 ms.
    fn run(tick: Duration, start: u32) -> (PeerClock, Option<i64>) {
        let (mut clock, mut delay) = (PeerClock::default(), None);
        for n in 0..200_u64 {
            let sent = Duration::from_millis(5 * n);
            let ticks = u32::try_from(sent.as_nanos() / tick.as_nanos()).unwrap();
            let received_at = Instant::from_millis(20) + sent;
            delay = clock.on_tsval(received_at, TcpTimestamp::new(start).plus(ticks));
        }
        (clock, delay)
    }

    #[test]
    fn each_usual_tick_is_recognized_and_delays_stay_equal() {
        for tick in TICKS {
            let (clock, delay) = run(tick, u32::MAX - 50);
            assert_eq!(clock.tick(), Some(tick), "{tick:?}");
            let delay = delay.unwrap();
            assert!(delay >= 0 && delay <= nanos(tick), "{tick:?}: {delay}");
        }
    }

    #[test]
    fn a_clock_with_an_unusual_tick_is_not_used() {
        let (clock, delay) = run(Duration::from_millis(33), 7);
        assert_eq!((clock.tick(), delay), (None, None));
        assert_eq!(clock.current_tsval(Instant::from_millis(5000)), None);
    }

    #[test]
    fn the_current_timestamp_advances_with_time() {
        let (clock, _) = run(MILLISECOND, 1000);
        let newest = clock.last.unwrap().ts_val;
        let received_at = Instant::from_millis(20 + 5 * 199);
        assert_eq!(clock.current_tsval(received_at), Some(newest));
        assert_eq!(clock.current_tsval(received_at + Duration::from_millis(250)), Some(newest.plus(250)));
    }
}
