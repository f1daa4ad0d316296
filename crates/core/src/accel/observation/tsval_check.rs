//! Can a timestamp that passes be the other end's?
//!
//! In: what the own stack echoes, and when. Out: whether a stamp may be that much newer.
//!
//! 1. Nobody checks what passes. One forged stamp would be given to the own stack with the next bytes that are fetched, which
//!    then takes all that is real for old (RFC 7323 §5). What the own stack echoes it has checked.
//! 2. A stamp is newer than the last that was echoed by no more than the time since and [`SLACK`], for that one may have waited on
//!    its way. What is refused wrongly is echoed soon.

use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// One flow's bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct TsvalCheck {
    echoed: Option<(TcpTimestamp, Instant)>,
}

impl TsvalCheck {
    /// The own stack echoes this.
    pub(in crate::accel) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp) {
        if self.echoed.is_none_or(|(old, _)| old.is_before(echo)) {
            self.echoed = Some((echo, now));
        }
    }

    /// Whether this one may be real; a tick is at least so long.
    pub(in crate::accel) fn is_plausible(&self, now: Instant, ts_val: TcpTimestamp, tick: Duration) -> bool {
        let Some((echo, at)) = self.echoed else { return true };
        let max_ticks = (now.since(at) + SLACK).as_nanos() / tick.as_nanos().max(1);
        i64::try_from(max_ticks).map_or(true, |max_ticks| i64::from(ts_val.since(echo)) <= max_ticks)
    }
}

/// chosen: packets wait for so long at a dark link at most, as a rule; and a flow that believes a forged stamp stands no longer.
const SLACK: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_ahead_of_what_was_echoed_by_the_time_since_and_a_little() {
        let (mut check, at) = (TsvalCheck::default(), Instant::from_millis);
        let allows = |check: &TsvalCheck, ms, ts_val| {
            check.is_plausible(at(ms), TcpTimestamp::new(ts_val), Duration::from_millis(1))
        };
        assert!(allows(&check, 0, 1 << 30), "nothing is known");
        check.on_echo(at(1000), TcpTimestamp::new(u32::MAX - 10));
        check.on_echo(at(2000), TcpTimestamp::new(u32::MAX - 20));
        assert!(allows(&check, 1500, u32::MAX - 500), "older ones are late");
        assert!(allows(&check, 1500, 10_489) && !allows(&check, 1500, 10_490));
        assert!(!allows(&check, 60_000, 1 << 30));
    }
}
