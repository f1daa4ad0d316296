//! Options of ACK offload.

use crate::accel::options::options;
use crate::units::{Duration, Ratio};

options! {
    /// Options of ACK offload: which flows, which ACKs, and how the trial measures.
    pub struct AckOffloadOptions {
        /// Segments in flight from which on a flow is offloaded (Super-aggregation §3.1); half of them afterwards.
        pub min_segments: u32 = 20,
        /// A flow that has lost nothing is not tried before this age: a window that has not filled a queue by then is
        /// limited by something else.
        pub min_age: Duration = Duration::from_secs(5),

        /// The longest delay of an ACK on the primary link: the path of a mobile link against that of a near access
        /// point. Longer paths are no help.
        pub max_delay: Duration = Duration::from_millis(150),
        /// ACKs are delayed one each this time: two hundred per second suffice for any rate, and are 3 % of an 802.11g
        /// cell.
        pub min_spacing: Duration = Duration::from_millis(5),
        /// For how long the delay fades when offload ends. With 50 ms the queue grows by an eightieth of the rate
        /// meanwhile; in one second it overflowed, and competing flows lost by it (`accel-beside.txt`).
        pub fade_time: Duration = Duration::from_secs(4),
        /// After a hole, ACKs leave over the primary link for this long: holes of one burst count as one.
        pub hole_gap: Duration = Duration::from_millis(60),
        /// Time without holes from which on bytes show a rate: longer than the ACKs of a repair take over either path.
        pub no_holes_time: Duration = Duration::from_millis(300),
        /// Packets are captured for so long beyond a trial; ACKs come more often.
        pub capture_time: Duration = Duration::from_millis(500),
        /// An offloaded ACK is not delivered if its echo takes longer than three round trips and this: the longest path
        /// difference and the longest queue for which offload pays.
        pub delivery_slack: Duration = Duration::from_millis(400),

        /// Samples of the secondary path: the first one may have begun before the path was changed.
        pub min_path_samples: u32 = 2,
        /// A sample after a longer pause of the capture does not count: longer than the gaps between packets of a flow
        /// that fills a queue. Samples are wrong by at most as much.
        pub max_capture_gap: Duration = Duration::from_millis(100),
        /// A probe without an echo by then is lost.
        pub max_probe_age: Duration = Duration::from_secs(1),

        /// Time without holes before offload begins, at first: some round trips, and short compared with the seconds
        /// between the losses of a window that fills a queue.
        pub min_clear_time: Duration = Duration::from_millis(400),
        /// A shorter phase was short: less than the time between two losses of CUBIC on a link of 20 Mbit/s. A hole is
        /// forgotten after as long.
        pub short_clear_time: Duration = Duration::from_secs(3),
        /// Holes within that time at which offload continues: CUBIC in a full queue has one at a time.
        pub max_holes: u32 = 3,
        /// Offload ends if holes last longer: the repair of half a window takes a second at 200 ms.
        pub max_repair_time: Duration = Duration::from_secs(2),

        /// A longer queueing delay is a standing queue: more than the jitter of a wireless link, and of ACKs for a
        /// dozen segments at 20 Mbit/s.
        pub standing_queue: Duration = Duration::from_millis(10),
        /// How long a queue must have stood without offload: some hundred packets.
        pub queue_time_without: Duration = Duration::from_millis(400),
        /// The same with offload.
        pub queue_time_with: Duration = Duration::from_millis(1000),
        /// The part of the measured time by which the queue may have grown. A window that doubles each round trip fills
        /// a queue in half of the time or less; one of 20 segments that grows by one, by one in twenty round trips.
        pub growth_part: u32 = 10,
        /// Gain behind a standing queue, in percent: its capacity varies by one.
        pub min_gain_queue: u64 = 2,
        /// Gain without one, in percent: means of seconds vary by some. Of the values of this comparison, only whether
        /// there is one changes a table (`accel.txt`, 200 ms and 0.1 %); the unit tests of `trial` have flows that gain.
        pub min_gain_mean: u64 = 5,
        /// How much longer the secondary path is until that is measured: an access point and a mobile link.
        pub default_difference: Duration = Duration::from_millis(50),
        /// How long the mean without offload is taken: longer than a window takes to fill a queue, where it fills one.
        pub mean_time_without: Duration = Duration::from_secs(3),
        /// The same with offload.
        pub mean_time_with: Duration = Duration::from_secs(4),
        /// The same without it again.
        pub mean_time_again: Duration = Duration::from_secs(2),
        /// For how long a trial with offload waits for a standing queue: the time between two losses of CUBIC at
        /// 20 Mbit/s and 100 ms, and some more.
        pub max_trial_wait: Duration = Duration::from_secs(12),
        /// After the switch all ACKs of the longer path have arrived by then.
        pub switch_time: Duration = Duration::from_millis(300),
        /// How often the rate is checked with offload: a longer path shows within two of its round trips.
        pub check_time: Duration = Duration::from_millis(500),
        /// The share of its rate that a flow behind a queue must keep: a reduction of CUBIC takes less.
        pub min_rate_queue: Ratio = Ratio::from_percent(70),
        /// The same without a queue. Means of half a second vary by less, and a flow that is slower by the longer path
        /// stays so.
        pub min_rate_mean: Ratio = Ratio::from_percent(85),
        /// The window has grown into the longer path by then.
        pub growth_time: Duration = Duration::from_secs(4),
        /// Before the rate without offload is taken again: longer than the delay takes to fade, and a round trip.
        pub settle_time: Duration = Duration::from_millis(4500),
        /// When a result is reviewed; doubled with each trial, from a minute to sixteen.
        pub first_review: Duration = Duration::from_secs(30),
    }
}
