//! Water filling: divides the remaining bytes so that all connections finish at the same time.
//!
//! A connection is available for new bytes after `ready_in` and then delivers at `rate`. The finish time `T` is the
//! earliest time at which the sum of `rate × (T − ready_in)` over all connections covers the remaining bytes. A
//! connection that would be ready only after `T` gets nothing. So a slow link never gets a byte that the others would
//! deliver sooner.

use alloc::vec::Vec;
use core::time::Duration;

use crate::units::{Bitrate, DataSize};

/// A connection's rate and availability, as far as water filling needs them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConnForecast {
    pub(super) rate: Bitrate,
    /// Time from now until it could deliver the first byte of a new request.
    pub(super) ready_in: Duration,
}

impl ConnForecast {
    /// A new request delivers when the bytes in flight have arrived, but at the earliest after one RTT; the server
    /// delay is added.
    pub(super) fn new(rate: Bitrate, in_flight: DataSize, rtt: Duration, server_delay: Duration) -> Self {
        Self { rate, ready_in: (in_flight / rate).max(rtt).saturating_add(server_delay) }
    }
}

/// Mean rate over `horizon` of a connection whose rate doubles every `rtt` until it reaches `ceiling`.
///
/// Over `m` doublings from `p` the mean is `p (2^m - 1) / (m ln 2)`; after them the rate is `p 2^m`.
pub(super) fn slow_start_rate(rate: Bitrate, ceiling: Bitrate, rtt: Duration, horizon: Duration) -> Bitrate {
    if rate.is_zero() || ceiling <= rate || horizon.is_zero() {
        return rate;
    }
    let rounds = horizon.as_secs_f64() / rtt.as_secs_f64().max(1e-6);
    let to_ceiling = libm::log2(ceiling.bits_per_sec() as f64 / rate.bits_per_sec() as f64);
    let doublings = rounds.min(to_ceiling);
    let growth = libm::exp2(doublings);
    let sum = (growth - 1.0) / core::f64::consts::LN_2 + growth * (rounds - doublings);
    Bitrate::from_bits_per_sec((rate.bits_per_sec() as f64 * sum / rounds) as u64).clamp(rate, ceiling)
}

/// Time until `free` more bytes have been delivered by all connections together; `Duration::MAX` if none has a rate.
pub(super) fn finish_time(conns: &[ConnForecast], free: DataSize) -> Duration {
    // Raise the water level from one connection's start to the next, until the open connections carry the rest.
    let mut by_ready: Vec<ConnForecast> = conns.iter().copied().filter(|conn| !conn.rate.is_zero()).collect();
    by_ready.sort_by_key(|conn| conn.ready_in);
    let (mut sum, mut at, mut left) = (Bitrate::ZERO, Duration::ZERO, free);
    for conn in by_ready {
        // Bytes carried by the connections before this one, up to its start.
        let carried = sum * conn.ready_in.saturating_sub(at);
        if !sum.is_zero() && carried >= left {
            break;
        }
        left -= carried;
        at = conn.ready_in;
        sum += conn.rate;
    }
    if sum.is_zero() { Duration::MAX } else { at.saturating_add(left / sum) }
}

/// Bytes that this connection can deliver until `finish`.
pub(super) fn quota(conn: ConnForecast, finish: Duration) -> DataSize {
    conn.rate * finish.saturating_sub(conn.ready_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection with this rate in Mbit/s that is ready in `ready` ms.
    fn forecast(mbps: u64, ready: u64) -> ConnForecast {
        ConnForecast { rate: Bitrate::from_mbps(mbps), ready_in: Duration::from_millis(ready) }
    }

    #[test]
    fn all_connections_finish_together() {
        let forecasts = [forecast(80, 100), forecast(40, 400)];
        let left = DataSize::from_bytes(15_000_000);
        let level = finish_time(&forecasts, left);
        assert_eq!(level, Duration::from_millis(1200));
        assert_eq!(quota(forecasts[0], level) + quota(forecasts[1], level), left);
    }

    #[test]
    fn a_connection_that_is_ready_too_late_gets_no_bytes() {
        let forecasts = [forecast(80, 100), forecast(1, 5000)];
        let level = finish_time(&forecasts, DataSize::from_bytes(1_000_000));
        assert_eq!(level, Duration::from_millis(200));
        assert_eq!(quota(forecasts[1], level), DataSize::ZERO);
    }

    #[test]
    fn the_order_of_the_connections_does_not_matter() {
        let (a, b, c) = (forecast(10, 30), forecast(50, 10), forecast(3, 0));
        let left = DataSize::from_mib(1);
        assert_eq!(finish_time(&[a, b, c], left), finish_time(&[c, a, b], left));
    }

    #[test]
    fn the_mean_slow_start_rate_lies_between_its_start_and_its_ceiling() {
        let mbps = Bitrate::from_mbps;
        let ms = Duration::from_millis;
        assert_eq!(slow_start_rate(mbps(10), mbps(80), ms(50), ms(0)), mbps(10));
        assert_eq!(slow_start_rate(mbps(10), mbps(5), ms(50), ms(500)), mbps(10));
        // One round: between 10 and 20.
        let one = slow_start_rate(mbps(10), mbps(80), ms(50), ms(50)).as_mbps_f64();
        assert!((14.0..15.0).contains(&one), "{one}");
        // Three rounds up to 80 and three at 80.
        let six = slow_start_rate(mbps(10), mbps(80), ms(50), ms(300)).as_mbps_f64();
        assert!((56.0..58.0).contains(&six), "{six}");
    }

    #[test]
    fn without_a_rate_the_finish_time_is_infinite() {
        assert_eq!(finish_time(&[forecast(0, 0)], DataSize::from_bytes(1)), Duration::MAX);
        assert_eq!(finish_time(&[], DataSize::from_bytes(1)), Duration::MAX);
    }
}
