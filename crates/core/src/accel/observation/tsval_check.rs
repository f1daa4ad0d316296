//! Checks whether a captured timestamp can be one of the peer's.
//!
//! Captured packets have not passed TCP's own checks. A forged timestamp would reach the local stack in the next
//! segment that is injected, and the stack would then discard all genuine segments as old (PAWS, RFC 7323 section 5). A
//! timestamp that the local stack echoes has passed its checks.
//!
//! A timestamp may be newer than the last echoed one by the time that has passed since then plus ten seconds, because the
//! echoed one may have been queued. A genuine timestamp that is rejected here is echoed soon, and accepted from then
//! on.

use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// Timestamp check of one flow; see the [module documentation](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TsvalCheck {
    echoed: Option<(TcpTimestamp, Instant)>,
}

impl TsvalCheck {
    /// The local stack echoes this timestamp.
    pub(crate) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp) {
        if self.echoed.is_none_or(|(old, _)| old.is_before(echo)) {
            self.echoed = Some((echo, now));
        }
    }

    /// Whether this timestamp can be genuine. `tick` is the shortest tick that the peer's clock may have.
    pub(crate) fn is_plausible(&self, now: Instant, ts_val: TcpTimestamp, tick: Duration) -> bool {
        let Some((echo, at)) = self.echoed else { return true };
        let max_ticks = (now.since(at) + SLACK).as_nanos() / tick.as_nanos().max(1);
        i64::try_from(max_ticks).map_or(true, |max_ticks| i64::from(ts_val.since(echo)) <= max_ticks)
    }
}

/// Bounds for how long a flow that accepts a forged timestamp stalls, and exceeds what packets wait on a link that is
/// down.
const SLACK: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_may_exceed_the_last_echo_by_the_elapsed_time_and_a_slack() {
        let (mut check, at) = (TsvalCheck::default(), Instant::from_millis);
        let allows = |check: &TsvalCheck, ms, ts_val| {
            check.is_plausible(at(ms), TcpTimestamp::new(ts_val), Duration::from_millis(1))
        };
        assert!(allows(&check, 0, 1 << 30), "no echo yet");
        check.on_echo(at(1000), TcpTimestamp::new(u32::MAX - 10));
        check.on_echo(at(2000), TcpTimestamp::new(u32::MAX - 20));
        assert!(allows(&check, 1500, u32::MAX - 500), "older timestamps are delayed packets");
        assert!(allows(&check, 1500, 10_489) && !allows(&check, 1500, 10_490));
        assert!(!allows(&check, 60_000, 1 << 30));
    }
}
