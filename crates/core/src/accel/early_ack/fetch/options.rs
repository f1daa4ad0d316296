//! Options of the range fetcher.

use crate::accel::options::options;
use crate::units::{Bitrate, DataSize, Duration};

options! {
    /// Options of the range fetcher: when ranges are requested, and how much of a link they may use.
    pub struct FetchOptions {
        /// Holes are collected for so long: reordering lasts for some milliseconds, and the holes of 20 ms fit into one
        /// request.
        pub gather_time: Duration = Duration::from_millis(20),
        /// A response that takes longer, beyond two round trips and its turn in the queue, is late: longer than most
        /// servers need.
        pub timeout: Duration = Duration::from_millis(600),
        /// Times `timeout` with a single link: a handshake, a request and the start of a connection over 200 ms. Of a
        /// duplicate request one link delivers each half as fast.
        pub single_link_factor: u32 = 3,
        /// Time until the next request after a failed one.
        pub retry_delay: Duration = Duration::from_millis(200),
        /// How soon a busy link is tried again.
        pub busy_delay: Duration = Duration::from_millis(20),
        /// As much may be missing as the links deliver in this time, so that the application waits no longer.
        pub budget_time: Duration = Duration::from_secs(2),
        /// Bytes of one range: 13 ms at 20 Mbit/s.
        pub max_range_bytes: u64 = 32 * 1024,
        /// More bytes are bulk, as after an outage: larger holes are not random losses, and take a thin link half a
        /// second.
        pub min_bulk: u64 = 64 * 1024,
        /// Bytes of one request of bulk: one request for the loss of an outage (`accel-outage.txt`).
        pub max_bulk: u64 = 256 * 1024,
        /// A link is requested to deliver what it can in a round trip and this time.
        pub queue_time: Duration = Duration::from_millis(500),

        /// The rate of a secondary link until it is measured: below that of a 3G link, above the 0.22 Mbit/s that 1 % of
        /// loss at 20 Mbit/s needs.
        pub default_rate: Bitrate = Bitrate::from_bits_per_sec(500_000),
        /// The same of the primary link: a fifth of the 20 Mbit/s of `accel.txt`.
        pub default_primary_rate: Bitrate = Bitrate::from_mbps(4),
        /// The round trip of a link until it is measured: that of the cellular link of `accel.txt`.
        pub default_rtt: Duration = Duration::from_millis(150),
        /// A response behind so much has waited for the link, and shows its rate: 73 ms at 900 kbit/s.
        pub min_sample: DataSize = DataSize::from_kib(8),
        /// For so long after a late response only one request at a time is sent over the link.
        pub late_time: Duration = Duration::from_secs(1),
        /// For so long other links are preferred: on a link that delivers nothing, one hole in this time waits for a
        /// response that does not come.
        pub doubt_time: Duration = Duration::from_secs(10),
    }
}
