//! The other end's timestamp clock beside our own: how late is a packet, against the others?
//!
//! In: timestamps (`TSval`, RFC 7323) and when they came. Out: a delay whose zero nobody knows, so that only differences
//! mean something; and what the other clock shows now.
//!
//! 1. How long a tick is, is not said in the protocol: Linux has 1 ms or 1 µs, others 4, 10 or 100 ms. It is taken for
//!    1 ms until enough has passed to tell, and then for the nearest of these. A clock that is near none of them tells
//!    nothing ([`Clock::delay`] is none).
//! 2. Both clocks drift apart; who compares delays does it within minutes.
//!
//! A regression over all samples was not used: queues bias it, and which of five lengths a tick has shows without.

use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// One connection's far clock.
#[derive(Clone, Debug, Default)]
pub(in crate::accel) struct PeerClock {
    first: Option<Instant>,
    last: Option<ClockSample>,
    tick: Tick,
}

/// When which stamp came, and how many ticks after the first.
#[derive(Clone, Copy, Debug)]
struct ClockSample {
    at: Instant,
    ts_val: TcpTimestamp,
    ticks: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Tick {
    #[default]
    Assumed,
    Known(Duration),
    Unknown,
}

impl PeerClock {
    /// A packet with this stamp came now. The answer is its delay, if the clock is one that can be read: nanoseconds
    /// beyond that of the first packet.
    pub(in crate::accel) fn on_tsval(&mut self, now: Instant, ts_val: TcpTimestamp) -> Option<i64> {
        let first = *self.first.get_or_insert(now);
        let ticks = self.last.map_or(0, |last| last.ticks + i64::from(ts_val.since(last.ts_val)));
        if self.last.is_none_or(|last| ticks >= last.ticks) {
            self.last = Some(ClockSample { at: now, ts_val, ticks });
        }
        self.estimate_tick(now.since(first), ticks);
        let tick_time = ticks.checked_mul(nanos(self.tick()?))?;
        Some(nanos(now.since(first)) - tick_time)
    }

    /// What it would show if a packet left it now and came at once: the newest stamp, moved on by the time since.
    pub(in crate::accel) fn current_tsval(&self, now: Instant) -> Option<TcpTimestamp> {
        let last = self.last?;
        let passed = now.since(last.at).as_nanos() / self.tick()?.as_nanos().max(1);
        Some(last.ts_val.plus(u32::try_from(passed).unwrap_or(u32::MAX)))
    }

    /// How long a tick is; none: it cannot be told. When it changes, delays from before mean nothing.
    pub(in crate::accel) const fn tick(&self) -> Option<Duration> {
        match self.tick {
            Tick::Assumed => Some(MILLISECOND),
            Tick::Known(tick) => Some(tick),
            Tick::Unknown => None,
        }
    }

    /// How long a tick is at least.
    pub(in crate::accel) const fn min_tick(&self) -> Duration {
        match self.tick {
            Tick::Known(tick) => tick,
            Tick::Assumed | Tick::Unknown => Duration::from_micros(1),
        }
    }

    fn estimate_tick(&mut self, passed: Duration, ticks: i64) {
        if self.tick != Tick::Assumed || passed < MIN_TIME {
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

/// Saturating, as all arithmetic of units.
fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// Linux with `tcp_usec_ts`; Linux; older systems with 250 and with 100 ticks a second; some small ones.
const TICKS: [Duration; 5] = [
    Duration::from_micros(1),
    MILLISECOND,
    Duration::from_millis(4),
    Duration::from_millis(10),
    Duration::from_millis(100),
];
/// In tenths. chosen: half of the way between 4 and 10 ms.
const TOLERANCE: u128 = 15;
/// chosen: a queue of 100 ms shifts the measure by less than half.
const MIN_TIME: Duration = Duration::from_millis(400);

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets every 5 ms, each 20 ms on its way.
    fn run(tick: Duration, start: u32) -> (PeerClock, Option<i64>) {
        let (mut clock, mut delay) = (PeerClock::default(), None);
        for n in 0..200_u64 {
            let sent = Duration::from_millis(5 * n);
            let ticks = u32::try_from(sent.as_nanos() / tick.as_nanos()).unwrap();
            let came = Instant::from_millis(20) + sent;
            delay = clock.on_tsval(came, TcpTimestamp::new(start).plus(ticks));
        }
        (clock, delay)
    }

    #[test]
    fn each_usual_tick_is_told_and_delays_stay_equal() {
        for tick in TICKS {
            let (clock, delay) = run(tick, u32::MAX - 50);
            assert_eq!(clock.tick(), Some(tick), "{tick:?}");
            let delay = delay.unwrap();
            assert!(delay >= 0 && delay <= nanos(tick), "{tick:?}: {delay}");
        }
    }

    #[test]
    fn a_strange_clock_tells_nothing() {
        let (clock, delay) = run(Duration::from_millis(33), 7);
        assert_eq!((clock.tick(), delay), (None, None));
        assert_eq!(clock.current_tsval(Instant::from_millis(5000)), None);
    }

    #[test]
    fn it_is_moved_on_by_the_time_that_passes() {
        let (clock, _) = run(MILLISECOND, 1000);
        let newest = clock.last.unwrap().ts_val;
        let came = Instant::from_millis(20 + 5 * 199);
        assert_eq!(clock.current_tsval(came), Some(newest));
        assert_eq!(clock.current_tsval(came + Duration::from_millis(250)), Some(newest.plus(250)));
    }
}
