//! Options of mirrored connections.

use crate::accel::options::options;
use crate::units::Duration;

options! {
    /// Options of mirrored connections: how fast they advance, and when they are given up.
    pub struct FastFetchOptions {
        /// Connections at a time: each is an attack on the thin link that it uses, and two are what it carries.
        pub max_conns: usize = 2,

        /// Segments that the first ACK covers, like that of any receiver.
        pub first_segments: u64 = 2,
        /// Segments that an ACK covers at most: at 4 ms each 45 Mbit/s, with which a link of 20 Mbit/s can be caught up
        /// with; half of what a server has in flight at the loss rates of `accel-fast-fetch.txt`.
        pub max_segments: u64 = 16,
        /// Time between two increases: a server's window doubles each round trip in slow start; this is slower over any
        /// link.
        pub increase_interval: Duration = Duration::from_millis(50),
        /// For so long it stays at the lower rate after it was too fast.
        pub backoff: Duration = Duration::from_secs(1),

        /// Before duplicate ACKs. Super-aggregation §3.3: "one segment size divided by data rate … configured as
        /// 256 ms". Less here, because Linux's timeout retransmits the segment after 200 ms, and a server after a
        /// timeout begins with one segment again.
        pub duplicate_ack_delay: Duration = Duration::from_millis(150),
        /// ACKs with the same number: three are duplicates (RFC 5681 section 3.2), and one may be lost.
        pub duplicate_acks: u32 = 4,
        /// Bytes farther ahead are fetched otherwise: while one hole is open the flow continues for as long as its
        /// receive window permits.
        pub max_reach_time: Duration = Duration::from_secs(1),
        /// How long a hole takes until that is measured: the delay and a round trip without a queue.
        pub first_hole_time: Duration = Duration::from_millis(250),
        /// What has not come so long after it could have been reached is fetched otherwise.
        pub range_timeout: Duration = Duration::from_millis(1000),
        /// A flow that is further ahead will most likely stay ahead.
        pub max_lag: Duration = Duration::from_secs(2),
        /// Bytes of a hole: larger ones are not random losses.
        pub max_range: u64 = 64 * 1024,
        /// With two round trips longer than Linux limits the rate of answers to probes (500 ms), and a thin link's queue.
        pub min_probe_timeout: Duration = Duration::from_millis(500),
        /// Time between two SYNs or requests, times their number.
        pub retry_interval: Duration = Duration::from_secs(1),
        /// A flow that is idle for so long gets another connection when it continues, and its slot is free for others.
        pub max_idle: Duration = Duration::from_secs(10),
    }
}
