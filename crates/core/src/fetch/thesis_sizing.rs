//! Request sizes of the multi-link HTTP thesis, exactly as its chapter 4 defines them.
//!
//! Pure functions from throughput, bandwidth and RTT of the links and the payload's size to the size of a link's next
//! request. Rates are per link; `sum` means all links together. Everything is computed in whole bytes, rounded down.
//!
//! The thesis's text contains two errors, which the tests name. The BDP example of §4.3.5 uses 30,000 KBps for each
//! link (half of the 60,000 given for both). The padding example gives 10,000 KB and computes with 9,000.

use core::time::Duration;

use crate::units::{Bitrate, DataSize, Ratio};

/// `total × part / sum`: the share of a link (thesis figure 4.5). With nothing measured yet, an equal share (§4.4.3:
/// the first requests are shared equally).
pub(super) fn proportional_share(total: DataSize, part: Bitrate, sum: Bitrate, links: u64) -> DataSize {
    if sum.is_zero() {
        return total / links.max(1);
    }
    let bytes = u128::from(total.bytes()) * u128::from(part.bits_per_sec()) / u128::from(sum.bits_per_sec());
    DataSize::from_bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Algorithm 2's upper limit (figure 4.8): `payload / n × sum of throughputs / sum of bandwidths`.
pub(super) fn dynamic_limit(payload: DataSize, links: u64, throughput: Bitrate, bandwidth: Bitrate) -> DataSize {
    let part = payload / links.max(1);
    if bandwidth.is_zero() {
        return part;
    }
    proportional_share(part, throughput.min(bandwidth), bandwidth, 1)
}

/// Algorithm 3 (§4.3.5): at least the bandwidth-delay product, plus a fraction (`padding`) of what the request exceeds
/// it by.
pub(super) fn bdp_limit(request: DataSize, bandwidth: Bitrate, rtt: Duration, padding: Ratio) -> DataSize {
    let bdp = bandwidth * rtt;
    if request < bdp { bdp } else { bdp + (request - bdp).share(padding) }
}

/// The rule of §4.2.2: the next request starts when this share of the current one has been received.
pub(super) fn should_start_next(received: DataSize, size: DataSize, overlap: Ratio) -> bool {
    received >= size.share(overlap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kb(n: u64) -> DataSize {
        DataSize::from_bytes(n * 1000)
    }

    /// A rate of `n` KB/s (not kbit/s), as the thesis gives its speeds.
    fn kbps(n: u64) -> Bitrate {
        Bitrate::from_bits_per_sec(n * 8000)
    }

    /// The thesis rounds down to whole KB.
    fn in_kb(size: DataSize) -> u64 {
        size.bytes() / 1000
    }

    #[test]
    fn algorithm_1_example_1() {
        let size = |rate| in_kb(proportional_share(kb(4000), kbps(rate), kbps(2400), 2));
        assert_eq!((size(1600), size(800)), (2666, 1333));
    }

    #[test]
    fn algorithm_2_example_1() {
        let limit = dynamic_limit(kb(250_000), 2, kbps(2400), kbps(60_000));
        assert_eq!(in_kb(limit), 5000);
        let size = |rate| in_kb(proportional_share(limit, kbps(rate), kbps(2400), 2));
        assert_eq!((size(1600), size(800)), (3333, 1666));
    }

    #[test]
    fn algorithm_2_example_2_the_faster_link_does_not_touch_the_slow_one() {
        let limit = dynamic_limit(kb(250_000), 2, kbps(8800), kbps(60_000));
        assert_eq!(in_kb(limit), 18_333);
        let size = |rate| in_kb(proportional_share(limit, kbps(rate), kbps(8800), 2));
        assert_eq!((size(8000), size(800)), (16_666, 1666));
    }

    #[test]
    fn algorithm_3_example() {
        let limit = dynamic_limit(kb(250_000), 2, kbps(2000), kbps(60_000));
        assert_eq!(in_kb(limit), 4166);
        let request = |rate| proportional_share(limit, kbps(rate), kbps(2000), 2);
        assert_eq!((in_kb(request(1600)), in_kb(request(400))), (3333, 833));
        // The text takes 30,000 KBps, half of the sum, for each link's bandwidth.
        let bdp = |rtt| kbps(30_000) * Duration::from_millis(rtt);
        assert_eq!((bdp(20), bdp(40)), (kb(600), kb(1200)));
        // With a padding of 1: the first link keeps its size, the second is raised to its BDP.
        let sized = |rate, rtt| bdp_limit(request(rate), kbps(30_000), Duration::from_millis(rtt), Ratio::ONE);
        assert_eq!((in_kb(sized(1600, 20)), in_kb(sized(400, 40))), (3333, 1200));
    }

    #[test]
    fn algorithm_3_example_of_padding() {
        // The text says 10,000 KB and computes with 9,000 KB; both are checked.
        let padded = |request| {
            in_kb(bdp_limit(kb(request), kbps(20_000), Duration::from_millis(100), Ratio::from_percent(30)))
        };
        assert_eq!(padded(9000), 4100);
        assert_eq!(padded(10_000), 4400);
    }

    #[test]
    fn the_next_request_starts_at_sixty_percent() {
        let overlap = Ratio::from_percent(60);
        assert!(!should_start_next(kb(599), kb(1000), overlap));
        assert!(should_start_next(kb(600), kb(1000), overlap));
    }

    #[test]
    fn nothing_measured_means_equal_shares() {
        assert_eq!(proportional_share(kb(4000), Bitrate::ZERO, Bitrate::ZERO, 2), kb(2000));
        assert_eq!(dynamic_limit(kb(100), 2, Bitrate::ZERO, Bitrate::ZERO), kb(50));
    }
}
