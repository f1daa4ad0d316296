//! Send gate: decides when a sender on this host writes more data to an MPTCP connection, from the send queues of
//! its subflows.
//!
//! The stock MPTCP scheduler passes data to a subflow as soon as its send buffer accepts it, up to 64 KiB to one
//! subflow at a time. With full buffers, hundreds of milliseconds of data wait on each subflow, a slow subflow gets
//! more data once a fast one's queue is equally long, and data on a slow subflow delays everything behind it.
//! Therefore:
//!
//! 1. More data is written only when a subflow in use has less than 20 ms of unsent data at the rate that its
//!    congestion window allows. This subflow then has the shortest queue, so the scheduler gives it the data.
//! 2. A subflow that has not sent for a second does not count: it is a backup, or its path has failed.

use crate::units::{Bitrate, DataSize, Duration};

/// Queue below which more is written. Our choice: several wake-ups of a delayed sender. Measured with the kernel,
/// 20 MB over 20 + 2 Mbit/s: 2.51 MB/s; with 50 ms 2.48, with 100 ms 2.45; with full buffers 2.17.
const TARGET_QUEUE: Duration = Duration::from_millis(20);
/// Time without sending after which a subflow does not count (rule 2). Our choice: longer than any pause between the
/// frames of a live stream.
const INACTIVE_AFTER: Duration = Duration::from_secs(1);
/// Shortest and longest wait before the queues are checked again. Our choice: the resolution of a timer, and a fifth
/// of a congestion window that has just opened.
const WAIT_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));

/// Send queue of a subflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubflowQueue {
    /// Bytes in the send queue that were not yet sent.
    pub unsent: DataSize,
    /// Rate at which its congestion window lets it send.
    pub rate: Bitrate,
    /// Time since it last sent data.
    pub since_last_send: Duration,
}

/// How long to wait before more data is written; `None`: write now.
pub fn wait(subflows: impl IntoIterator<Item = SubflowQueue>) -> Option<Duration> {
    let active = subflows.into_iter().filter(|queue| queue.since_last_send < INACTIVE_AFTER);
    let shortest = active.map(|queue| queue.unsent / queue.rate).min()?;
    let excess = shortest.checked_sub(TARGET_QUEUE).filter(|over| !over.is_zero())?;
    Some(excess.clamp(WAIT_RANGE.0, WAIT_RANGE.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(unsent: u64, mbps: u64, since_last_send: u64) -> SubflowQueue {
        SubflowQueue {
            unsent: DataSize::from_bytes(unsent),
            rate: Bitrate::from_mbps(mbps),
            since_last_send: Duration::from_millis(since_last_send),
        }
    }

    #[test]
    fn the_shortest_queue_of_the_active_subflows_decides() {
        // 8 Mbit/s are 1 kB per millisecond.
        assert_eq!(wait([queue(20_000, 8, 0)]), None);
        assert_eq!(wait([queue(23_000, 8, 0)]), Some(Duration::from_millis(3)));
        assert_eq!(wait([queue(23_000, 8, 0), queue(1_000, 8, 0)]), None);
        // An inactive subflow does not open the gate, and without any active subflow the gate is open.
        assert_eq!(wait([queue(23_000, 8, 0), queue(0, 8, 1_500)]), Some(Duration::from_millis(3)));
        assert_eq!(wait([queue(0, 8, 1_500)]), None);
        assert_eq!(wait([]), None);
    }

    #[test]
    fn the_wait_is_between_one_and_ten_milliseconds() {
        assert_eq!(wait([queue(5_000_000, 1, 0)]), Some(Duration::from_millis(10)));
        assert_eq!(wait([queue(20_001, 8, 0)]), Some(Duration::from_millis(1)));
        assert_eq!(wait([queue(1, 0, 0)]), Some(Duration::from_millis(10)));
    }
}
