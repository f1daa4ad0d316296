//! Options of the outage detector and of what restarts senders.

use crate::accel::options::options;
use crate::units::Duration;

options! {
    /// Options of the outage detector, the restart ACKs and the outage revert.
    pub struct OutageOptions {
        /// Time without activity that is a suspicion (Super-aggregation §3.2).
        pub quiet_time: Duration = Duration::from_millis(200),
        /// Time between two reads of the packet counter: an active link receives a packet meanwhile.
        pub count_interval: Duration = Duration::from_millis(40),
        /// For the replies to two probes, or twice the smoothed round trip: a gateway on an access link replies within
        /// some milliseconds.
        pub min_reply_timeout: Duration = Duration::from_millis(40),
        /// Longer pauses say nothing about how often packets come.
        pub max_gap: Duration = Duration::from_secs(1),
        /// A suspicion that was refuted so often is not raised again before the next activity: 200 ms to 3.2 s.
        pub max_refuted: u32 = 4,
        /// Time between two probes in the first ten seconds of an outage: its end is noticed 10 ms later on average.
        pub first_probe_interval: Duration = Duration::from_millis(20),
        /// The same in the rest of the first minute.
        pub second_probe_interval: Duration = Duration::from_millis(100),
        /// The same afterwards.
        pub last_probe_interval: Duration = Duration::from_secs(1),

        /// Time between two restart ACKs: 20 ms are lost on average, at 25 small packets per second.
        pub restart_interval: Duration = Duration::from_millis(40),
        /// For how long restart ACKs are sent during an outage: as long as the gateway is probed often.
        pub restart_time: Duration = Duration::from_secs(10),
        /// Restart ACKs after the first one when the link recovers, because that may be lost.
        pub restart_repeats: u8 = 2,
        /// ICMP messages with each later restart ACK: more than is lost of the first ones, unless all are.
        pub repeated_unreachables: u32 = 2,
        /// What queues of the link hold beyond a round trip when an outage begins: two queues of 100 ms.
        pub queue_time: Duration = Duration::from_millis(200),
        /// Segments in flight. A sender with fewer often has nothing more to send, as behind a response that has ended.
        pub min_in_flight: u64 = 4,
    }
}
