//! Options of early ACK.

use crate::accel::options::options;
use crate::units::Duration;

options! {
    /// Options of early ACK: which holes are acknowledged, and what happens when they are not filled.
    pub struct EarlyAckOptions {
        /// Segments in flight, without those in a queue, from which on a hole is worth it: at a loss of 5 % there are
        /// two or three of them.
        pub min_segments: u64 = 2,
        /// A flow that has received fewer segments is young, and a hole of it always worth it: some round trips of a
        /// start.
        pub young_segments: u64 = 100,
        /// A flow whose request was not captured by then is not followed.
        pub max_request_wait: Duration = Duration::from_secs(5),

        /// The connection is reset when a hole is open and the local stack does not advance for so long. The paper gives
        /// no time. Longer than a link needs to recover from most of its pauses, shorter than users wait before they
        /// retry.
        pub hole_timeout: Duration = Duration::from_secs(10),
        /// An ACK without new information is suppressed for this long after another; far below any timeout.
        pub suppress_time: Duration = Duration::from_millis(20),

        /// A hole that is open for longer is late: longer than two seconds' worth of missing bytes takes, with one
        /// range requested twice; shorter than the five seconds that a flow may be delayed at all.
        pub max_latency: Duration = Duration::from_secs(3),
        /// After a late hole nothing is acknowledged early for this long: a wait of some seconds is a tenth of it.
        pub first_pause: Duration = Duration::from_secs(30),
        /// After a late first response, for this long at least: as long as many downloads take.
        pub min_pause: Duration = Duration::from_secs(10),
        /// And for this many times as long as the response took: one late response in this time costs a tenth.
        pub pause_factor: u32 = 10,
        /// Holes that show within this time after an outage are due to it (unit test of `latency_guard`; no scenario
        /// depends on it).
        pub outage_settle: Duration = Duration::from_secs(1),
    }
}
