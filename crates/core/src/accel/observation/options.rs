//! Options of the estimators and of the loss classifier.

use crate::accel::options::options;
use crate::units::{Duration, Ratio};

options! {
    /// Options of what is observed of flows and paths.
    pub struct ObservationOptions {
        /// The round-trip time of a flow before the first sample: between a cable and a mobile link.
        pub default_rtt: Duration = Duration::from_millis(80),
        /// A longer round-trip sample is a stall, and a probe without an echo by then is lost.
        pub max_rtt_sample: Duration = Duration::from_secs(2),
        /// When the tick of the peer's clock is estimated: a queue of 100 ms then changes the estimate by less than
        /// half.
        pub clock_time: Duration = Duration::from_millis(400),

        /// The shortest queueing delay of a congestion loss, unless the queue is known to be shorter. Measured on
        /// Linux 6.18 with a queue of 100 ms: flows without random loss run as before, and drops do not grow.
        pub min_threshold: Duration = Duration::from_millis(20),
        /// Shorter queueing delays are within the resolution of the clocks.
        pub clock_grain: Duration = Duration::from_millis(2),
        /// A shorter queueing delay is an empty queue. It is above the resolution of a clock of milliseconds, and below
        /// CoDel's target of 5 ms (RFC 8289 section 4.4): a controlled queue stands at its target when it drops.
        pub empty_queue: Duration = Duration::from_millis(3),
        /// For how long random loss is assumed to be frequent after five losses with an empty queue: longer than
        /// CUBIC's window takes to recover from a reduction at 20 Mbit/s and 300 ms. An estimate: no scenario depends on
        /// it.
        pub lossy_time: Duration = Duration::from_secs(20),
        /// An older packet says nothing about the present queue.
        pub max_sample_age: Duration = Duration::from_millis(250),
        /// Window of the minimum delay: clocks of 50 ppm drift apart by 3 ms in it.
        pub min_delay_window: Duration = Duration::from_secs(60),
        /// Window of the recent minimum delay, or half a round trip: as long as a burst of half a window takes at
        /// 20 Mbit/s, and short compared with the time in which a queue fills.
        pub recent_window: Duration = Duration::from_millis(40),
        /// The longest queueing delay is known when it has not grown by a step for this time, within which a queue that
        /// a growing window fills grows by its sixteenth.
        pub growth_time: Duration = Duration::from_secs(1),
        /// Window of the longest queueing delay: some oscillations of a window that fills a queue.
        pub max_queue_window: Duration = Duration::from_secs(5),

        /// Share, in 256ths, of the recent losses that a queue which overflows drops at its maximum: five of eight,
        /// after as many in a row.
        pub queue_drop_share: u32 = 150,
        /// How many times as frequent per byte losses at the maximum must be: more than chance makes of some dozen
        /// losses, far less than a queue that overflows shows.
        pub queue_drop_ratio: u64 = 4,
        /// After this time the counts are halved: a cycle of a window that fills a queue.
        pub queue_drop_half_life: Duration = Duration::from_secs(10),

        /// Round trips over which the response to a congestion loss is measured: long enough to count some hundred
        /// packets, too short for the window to recover.
        pub response_rtts: u32 = 6,
        /// Share of the bytes in flight that a sender keeps which does not respond: between no reduction and the three
        /// tenths of CUBIC (RFC 9438 section 4.6).
        pub unresponsive_share: Ratio = Ratio::from_ppm(875_000),
        /// How often in a row a sender must not respond: one that does looks otherwise once in ten times, by the sizes
        /// of the samples. Simulated senders all respond; the unit tests of `congestion_response` have one that does
        /// not.
        pub unresponsive_count: u32 = 3,

        /// Losses that make a baseline of a path. With fewer, the rate is within a factor of two in less than 90 % of
        /// cases (`accel-fairness.txt`).
        pub baseline_losses: u64 = 6,
        /// The shortest time of a baseline: a cycle of CUBIC at 10 Mbit/s and 50 ms (RFC 9438 section 4.1).
        pub baseline_time: Duration = Duration::from_secs(4),
        /// Round trips between two losses of a baseline: an overshoot of a policed sender takes one to three
        /// (`accel-fairness.txt`).
        pub baseline_loss_rtts: u32 = 4,
        /// A shorter queueing delay is no standing queue. The usual timestamp clock is finer (1 ms).
        pub standing_queue: Duration = Duration::from_millis(3),
        /// The part of a round trip for which a queue must stand. A burst of 64 KiB stands for a tenth of 50 ms at
        /// 100 Mbit/s, and a flow that fills its link for all of it. With a half, the trial never begins for flows that
        /// lose 1 % at random (`accel-fairness.txt`).
        pub standing_rtt_part: u32 = 4,
        /// Expected losses that a decision about a path needs.
        pub min_expected_losses: u32 = 6,
        /// From this many expected losses on, both counts are halved.
        pub max_expected_losses: u32 = 24,
        /// Fewer losses than this at the lower rate of a probe, where `min_expected_losses` were expected, are
        /// congestion: by chance once in 57 times.
        pub probe_losses: u64 = 2,
        /// For how long no reduction is undone after a CE mark, and at first after a failed test: longer than any cycle
        /// of a sender on a queue that marks, and one trial costs a policed path about as much as one such cycle (unit
        /// tests of `path_test`).
        pub refusal_time: Duration = Duration::from_secs(60),
        /// Time between two probes of a trusted path at first: a reduction that remains costs CUBIC about five seconds
        /// among random losses.
        pub first_probe_interval: Duration = Duration::from_secs(20),
        /// The time doubles with each probe up to this one.
        pub max_probe_interval: Duration = Duration::from_secs(160),
    }
}
