//! Options of secondary links.

use crate::accel::options::options;
use crate::units::{Bitrate, Duration, Ratio};

options! {
    /// Options of secondary links: what may be sent over one, and how it is probed.
    pub struct SecondaryLinkOptions {
        /// Share of a configured uplink rate that is used, so that its queue stays empty.
        pub usable_share: Ratio = Ratio::from_percent(90),
        /// The allowance at first: the slowest link worth using has 50 kbit/s.
        pub first_allowance: Bitrate = Bitrate::from_bits_per_sec(50_000),
        /// The lowest one: two ACKs per round trip.
        pub min_allowance: Bitrate = Bitrate::from_bits_per_sec(16_000),
        /// The highest one: six hundred ACKs per second, and more of them change nothing.
        pub max_allowance: Bitrate = Bitrate::from_bits_per_sec(280_000),
        /// How much of the allowance may be sent at once: two ACKs at 100 kbit/s.
        pub max_credit: Duration = Duration::from_millis(10),
        /// Time between two probes while the link is used (Super-aggregation §4.2).
        pub probe_interval: Duration = Duration::from_millis(200),
        /// A reply that is delayed for less was not delayed: the transmission time of two ACKs at 50 kbit/s.
        pub no_delay: Duration = Duration::from_millis(15),
        /// A shorter delay is due to the radio's scheduling.
        pub short_delay: Duration = Duration::from_millis(30),
        /// A longer delay halves the allowance.
        pub long_delay: Duration = Duration::from_millis(80),
        /// Delayed replies in a row that shrink it: a second of them.
        pub max_delayed_replies: u32 = 5,
        /// For how long an allowance is tried before it grows again: an overload builds a queue within it.
        pub min_test_time: Duration = Duration::from_millis(100),
        /// For how long a rate that was too high is not tried again at first: one late reply may be due to the radio,
        /// and costs no more than some seconds.
        pub first_cap_time: Duration = Duration::from_secs(4),
        /// The time doubles up to this one: the rate of a mobile link changes within minutes.
        pub max_cap_time: Duration = Duration::from_secs(60),
        /// Window of the shortest round trip, from which the delay of a reply is measured: longer than a queue of the
        /// accelerator's own stands.
        pub min_rtt_window: Duration = Duration::from_secs(30),
        /// A link whose reply is overdue by this is down: longer than any round trip of a link worth using.
        pub reply_timeout: Duration = Duration::from_secs(1),
        /// A link whose last reply is older is not used before the next one.
        pub max_reply_age: Duration = Duration::from_millis(1500),
        /// A link that was not wanted for so long is not probed any more, because its radio may sleep.
        pub idle_time: Duration = Duration::from_secs(1),
        /// Share of the uplink for each of two mirrored connections: the other half is for ACKs and requests.
        pub uplink_share: Ratio = Ratio::from_percent(25),
        /// The shortest time between two ACKs of a mirrored connection: with sixteen segments each 45 Mbit/s; the resolution of a timer.
        pub min_ack_interval: Duration = Duration::from_millis(4),
        /// The longest one: at a slower rate no flow can be caught up with.
        pub max_ack_interval: Duration = Duration::from_millis(40),
        /// The rate of an uplink until it is measured: any link of today carries such a burst once per outage.
        pub default_uplink_rate: Bitrate = Bitrate::from_bits_per_sec(300_000),
    }
}
