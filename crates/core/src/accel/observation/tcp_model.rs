//! The goodput that plain TCP would reach at a given loss rate and round-trip time.
//!
//! The model is CUBIC's mean window (RFC 9438 section 5.1, with β = 0.7 and C = 0.4), or Reno's where that is larger
//! (RFC 9438 section 4.3): `max(1.054 · rtt^0.75 / p^0.75, sqrt(3 / 2p))` segments per round trip. It is shown in
//! `status` as the gain of a flow, and tells a sender that reacts to losses from one that does not
//! ([`super::congestion_response`]).

use crate::units::{Bitrate, DataSize, Duration};

/// The goodput of plain TCP with these segments if `losses` of `segments` are lost; none without losses.
pub(crate) fn plain_tcp_rate(segment: DataSize, rtt: Duration, segments: u64, losses: u64) -> Option<Bitrate> {
    if losses == 0 || rtt.is_zero() || segments < losses {
        return None;
    }
    // Counts of this size are exact in floating point.
    let (share, seconds) = (losses as f64 / segments as f64, rtt.as_secs_f64());
    let cubic = CUBIC_FACTOR * libm::pow(seconds / share, 0.75);
    let reno = libm::sqrt(1.5 / share);
    let bits = cubic.max(reno) * segment.bytes() as f64 * 8.0 / seconds;
    Some(Bitrate::from_bits_per_sec(bits as u64))
}

/// `(C · (3 + β) / (4 · (1 − β)))^¼`.
const CUBIC_FACTOR: f64 = 1.054;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_that_of_rfc_9438() {
        // Its table 1: at a loss of 1e-3 and 100 ms, CUBIC's mean window is 45 segments; at 1e-2 and 10 ms Reno's 12.
        let rate =
            |rtt, segments, losses| plain_tcp_rate(DataSize::from_bytes(1250), rtt, segments, losses).unwrap();
        let window = |rate: Bitrate, rtt: Duration| rate.as_mbps_f64() * rtt.as_secs_f64() * 100.0;
        let hundred = Duration::from_millis(100);
        let cubic = window(rate(hundred, 1000, 1), hundred);
        assert!((30.0..60.0).contains(&cubic), "{cubic}");
        let ten = Duration::from_millis(10);
        let reno = window(rate(ten, 100, 1), ten);
        assert!((12.0..13.0).contains(&reno), "{reno}");
        assert_eq!(plain_tcp_rate(DataSize::from_bytes(1250), ten, 100, 0), None);
    }
}
