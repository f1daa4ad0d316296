//! Gives live streams priority: decides how much the other (bulk) flows may send while a live stream is running.
//!
//! For each live flow it is sampled how many bytes were written to its connection and how many of them are unacknowledged. Bulk flows
//! request permission to send; the reply is a number of bytes, or a time after which to request again.
//!
//! 1. A live flow's delay is its unacknowledged bytes divided by its acknowledged rate (Little's law): the RTT between edge and relay,
//!    queues included. The minimum over `DELAY_WINDOW` counts. A key frame causes a queue that drains; a standing queue belongs to other
//!    flows, or to a link that is full (CoDel, RFC 8289 section 3.2).
//! 2. A live flow is delayed if this exceeds the minimum of the last minute by more than `MAX_EXTRA_DELAY`.
//! 3. Then the allowance of all bulk flows together is cut at once to half of what they recently sent, and again each `CUT_INTERVAL`
//!    until the delay falls. While no live flow is delayed and the allowance limits some bulk flow, it grows. First it returns quickly to
//!    seven tenths of the rate at which the delay began, since the queue that caused the cuts is gone. From there it grows slowly, because
//!    each increase costs the live flow a queue (AIMD; Chiu and Jain 1989).
//! 4. Bulk flows share the allowance equally, and what one does not use goes to the others ([`FairScheduler`]).
//! 5. Without a live flow that has sent within `LIVE_IDLE_TIMEOUT` or has unacknowledged data there is no allowance, and bulk flows are
//!    not limited. A live flow without an acknowledgement for so long does not count: it waits for its server, or for a link in an
//!    outage; limiting others does not help it.
//!
//! It is a [`Machine`]: while there is a live flow, its deadline is the next sample, for which it requests the counts of all live flows.
//!
//! Kernel pacing is not used, because MPTCP sockets do not support `SO_MAX_PACING_RATE`. There is no queue either: data that is not read
//! from a client stays in the client's socket, and flow control slows the client down.

use alloc::collections::{BTreeMap, VecDeque};

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::fair_share::{FairScheduler, PaceGrant};
use crate::machine::Machine;
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// Interval of the samples. Our choice: a video has 20 to 60 pictures a second.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// Our choice: four samples; twice the time between pictures of a video with ten a second.
const DELAY_WINDOW: Duration = Duration::from_millis(200);
/// Our choice: less than the smallest queue of a modem, more than the jitter of a radio's schedule.
const MAX_EXTRA_DELAY: Duration = Duration::from_millis(60);
/// Our choice: the longest RTT of a terrestrial link under load, so that the effect of a cut is seen before the next one.
const CUT_INTERVAL: Duration = Duration::from_millis(300);
/// Our choice: an encoder that pauses longer has stopped.
const LIVE_IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// The minimum allowance of all bulk flows together, so that their connections do not break. Our choice: enough for a mail or a page of
/// text.
const MIN_ALLOWANCE: Bitrate = Bitrate::from_bits_per_sec(128_000);
/// Added with each sample. Our choice: from the minimum to 4 Mbit/s in about 12 s.
const ADDITIVE_INCREASE: Bitrate = Bitrate::from_bits_per_sec(12_500);
/// The allowance also grows by this part of itself with each sample.
const GROWTH_DIVISOR: u64 = 400;
/// Share of the rate at which the live flow's delay began. Our choice: what TCP's CUBIC returns to.
const RECOVERY_SHARE: Ratio = Ratio::from_percent(70);
/// Part of the missing rate that is recovered with each sample. Our choice: most of it within 3 s.
const RECOVERY_DIVISOR: u64 = 30;
/// An allowance that has not limited any flow for this long does not grow: the longest pause that a flow is given, plus a sample.
const LIMITED_WINDOW: Duration = Duration::from_millis(1050);
/// Window over which rates are measured. Our choice: several key frames a second or two apart have equal weight.
const RATE_WINDOW: Duration = Duration::from_secs(2);
/// The minimum delay is that of the last minute, kept in buckets of which the oldest is dropped.
const MIN_DELAY_BUCKETS: usize = 6;
const MIN_DELAY_BUCKET: Duration = Duration::from_secs(10);

/// An event of a flow, or the result of [`Output::Sample`]. Flows are numbered by the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A live flow has begun.
    LiveFlowStarted(u64),
    /// A flow has ended, live or bulk.
    FlowEnded(u64),
    /// A bulk flow wants to send this much. The output is [`Output::Grant`].
    Request {
        /// The flow.
        flow: u64,
        /// Bytes that it could send now.
        wanted: DataSize,
    },
    /// How much of its last grant a bulk flow has sent.
    Settle {
        /// The flow.
        flow: u64,
        /// Bytes that were granted.
        granted: DataSize,
        /// Bytes that were sent.
        sent: DataSize,
    },
    /// The counts of all live flows.
    Samples(Vec<FlowSample>),
}

/// The counts of a live flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSample {
    /// The flow.
    pub flow: u64,
    /// Bytes written to its connection in total.
    pub sent: DataSize,
    /// How many of them are unacknowledged.
    pub unacknowledged: DataSize,
}

/// A command or reply for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Read the counts of all live flows; the result is [`Input::Samples`].
    Sample,
    /// The reply to [`Input::Request`].
    Grant(PaceGrant),
    /// What all bulk flows together may send has changed; `None`: unlimited.
    Allowance(Option<Bitrate>),
}

/// Purpose of the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The live flows are sampled.
    Sample,
}

/// Priority of the live flows of an edge over its bulk flows.
#[derive(Debug)]
pub struct LivePriority {
    now: Instant,
    /// When the live flows are sampled next; `None`: there is no live flow.
    next_sample: Option<Instant>,
    outputs: VecDeque<Output>,
    live: BTreeMap<u64, LiveFlowState>,
    bulk_scheduler: FairScheduler<u64>,
    allowance: Option<Bitrate>,
    last_cut: Option<Instant>,
    /// Whether a live flow was delayed at the last sample.
    is_delayed: bool,
    /// The rate to which the allowance recovers quickly after a cut.
    recovery_rate: Bitrate,
    /// When the allowance last limited a flow.
    last_limited: Option<Instant>,
    /// Bytes that bulk flows have sent in total, and the total at each sample of [`RATE_WINDOW`].
    sent: DataSize,
    samples: VecDeque<(Instant, DataSize)>,
}

/// Samples of one live flow.
#[derive(Debug, Default)]
struct LiveFlowState {
    /// Total acknowledged bytes and the delay, at each sample of [`RATE_WINDOW`].
    samples: VecDeque<(Instant, DataSize, Duration)>,
    /// The minimum delay of each bucket of the last minute, and when the newest bucket began.
    min_delays: VecDeque<Duration>,
    bucket_start: Option<Instant>,
    sent: DataSize,
    /// When data was last written to it.
    last_sent: Option<Instant>,
    /// When data was last acknowledged, or nothing was unacknowledged.
    last_acked: Option<Instant>,
}

impl Default for LivePriority {
    fn default() -> Self {
        Self {
            now: Instant::ZERO,
            next_sample: None,
            outputs: VecDeque::new(),
            live: BTreeMap::new(),
            bulk_scheduler: FairScheduler::new(None),
            allowance: None,
            last_cut: None,
            is_delayed: false,
            recovery_rate: Bitrate::ZERO,
            last_limited: None,
            sent: DataSize::ZERO,
            samples: VecDeque::new(),
        }
    }
}

impl LivePriority {
    /// Adds a live flow.
    fn begin(&mut self, id: u64) {
        self.live.insert(id, LiveFlowState::default());
        self.next_sample.get_or_insert(self.now + SAMPLE_INTERVAL);
    }

    /// Removes a flow, live or bulk.
    fn end(&mut self, id: u64) {
        self.live.remove(&id);
        self.bulk_scheduler.remove(&id);
        if self.live.is_empty() {
            // Without live flows there are no more samples that would end the allowance.
            self.next_sample = None;
            self.update(self.now);
        }
    }

    /// What all bulk flows together may send; `None`: unlimited.
    pub fn allowance(&self) -> Option<Bitrate> {
        self.allowance
    }

    /// How much of `wanted` a bulk flow may send now.
    fn request(&mut self, now: Instant, id: u64, wanted: DataSize) -> PaceGrant {
        let granted = self.bulk_scheduler.request(now, &id, wanted);
        if matches!(granted, PaceGrant::RetryAfter(_)) {
            self.last_limited = Some(now);
        }
        granted
    }

    /// Reports how much of a grant a bulk flow has actually sent.
    fn settle(&mut self, id: u64, granted: DataSize, sent: DataSize) {
        self.sent += sent;
        self.bulk_scheduler.settle(&id, granted, sent);
    }

    /// Adds a sample of a live flow: the bytes written to it in total, and how many of them are unacknowledged.
    fn sample(&mut self, now: Instant, id: u64, sent: DataSize, unacknowledged: DataSize) {
        if let Some(stream) = self.live.get_mut(&id) {
            stream.sample(now, sent, unacknowledged);
        }
    }

    /// All live flows have been sampled: updates the allowance.
    fn update(&mut self, now: Instant) {
        let previous = self.allowance;
        self.update_allowance(now);
        if self.allowance != previous {
            self.outputs.push_back(Output::Allowance(self.allowance));
        }
    }

    fn update_allowance(&mut self, now: Instant) {
        while self.samples.front().is_some_and(|(at, _)| now.since(*at) > RATE_WINDOW) {
            self.samples.pop_front();
        }
        self.samples.push_back((now, self.sent));
        if !self.live.values().any(|stream| stream.is_live(now)) {
            (self.allowance, self.last_cut, self.is_delayed) = (None, None, false);
            return self.bulk_scheduler.resize(None);
        }
        let rate = self.rate(now);
        let is_delayed = self.live.values().any(|stream| stream.is_live(now) && stream.is_delayed(now));
        let is_new = !core::mem::replace(&mut self.is_delayed, is_delayed) && is_delayed;
        if is_delayed {
            // After a cut the queue needs time to drain, so the next cut follows after an interval only. The recent rate bounds the
            // allowance because bulk flows may send less than they are allowed; otherwise a cut might have no effect.
            if self.last_cut.is_none_or(|cut| now.since(cut) >= CUT_INTERVAL) {
                let allowed = self.allowance.map_or(rate, |allowance| allowance.min(rate.max(MIN_ALLOWANCE * 2)));
                if is_new {
                    self.recovery_rate = allowed.share(RECOVERY_SHARE);
                }
                self.allowance = Some((allowed / 2).max(MIN_ALLOWANCE));
                self.last_cut = Some(now);
            }
        // The allowance grows only if it limits some flow: otherwise it would rise without any evidence that the links can carry more.
        } else if let Some(allowance) =
            self.allowance.filter(|_| self.last_limited.is_some_and(|at| now.since(at) < LIMITED_WINDOW))
        {
            // Additive increase, a proportional part, and a part of what is missing to the recovery rate (zero above it).
            let recovery = (self.recovery_rate - allowance) / RECOVERY_DIVISOR;
            self.allowance = Some(allowance + ADDITIVE_INCREASE + allowance / GROWTH_DIVISOR + recovery);
        }
        self.bulk_scheduler.resize(self.allowance);
    }

    /// The recent sending rate of all bulk flows.
    fn rate(&self, now: Instant) -> Bitrate {
        // Only since the last cut: the rate before it does not show what is sent now.
        let since = self.last_cut.unwrap_or_default();
        let first = self.samples.iter().find(|(at, _)| *at >= since);
        first.map_or(Bitrate::ZERO, |(at, sent)| rate(self.sent - *sent, now.since(*at)))
    }
}

impl Machine for LivePriority {
    type Input = Input;
    type Output = Output;
    type Reason = Reason;

    fn handle(&mut self, now: Instant, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::LiveFlowStarted(flow) => self.begin(flow),
            Input::FlowEnded(flow) => self.end(flow),
            Input::Request { flow, wanted } => {
                let granted = self.request(self.now, flow, wanted);
                self.outputs.push_back(Output::Grant(granted));
            }
            Input::Settle { flow, granted, sent } => self.settle(flow, granted, sent),
            Input::Samples(samples) => {
                for FlowSample { flow, sent, unacknowledged } in samples {
                    self.sample(self.now, flow, sent, unacknowledged);
                }
                self.update(self.now);
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.next_sample.is_some_and(|at| at <= self.now) {
            self.next_sample = Some(self.now + SAMPLE_INTERVAL);
            self.outputs.push_back(Output::Sample);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Reason)> {
        self.next_sample.map(|at| (at, Reason::Sample))
    }
}

impl LiveFlowState {
    fn sample(&mut self, now: Instant, sent: DataSize, unacknowledged: DataSize) {
        if sent > self.sent {
            (self.sent, self.last_sent) = (sent, Some(now));
        }
        let acknowledged = sent - unacknowledged;
        let previous = self.samples.back().map(|(_, before, _)| *before);
        if unacknowledged.is_zero() || previous.is_none_or(|previous| acknowledged > previous) {
            self.last_acked = Some(now);
        }
        while self.samples.front().is_some_and(|(at, ..)| now.since(*at) > RATE_WINDOW) {
            self.samples.pop_front();
        }
        let rate = self.samples.front().map(|(at, previous, _)| rate(acknowledged - *previous, now.since(*at)));
        let delay = match rate.filter(|rate| !rate.is_zero()) {
            _ if unacknowledged.is_zero() => Duration::ZERO,
            Some(rate) => unacknowledged / rate,
            // No data was acknowledged within the window, so the delay is at least this long.
            None => self.samples.front().map_or(Duration::ZERO, |(at, ..)| now.since(*at)),
        };
        self.samples.push_back((now, acknowledged, delay));
        if self.bucket_start.is_none_or(|part| now.since(part) >= MIN_DELAY_BUCKET) {
            self.bucket_start = Some(now);
            self.min_delays.push_back(Duration::MAX);
            if self.min_delays.len() > MIN_DELAY_BUCKETS {
                self.min_delays.pop_front();
            }
        }
        // At the start of a flow there is none: a rate over so short a time is not reliable.
        let window_min = self.window_min_delay(now);
        if let (Some(least), Some(window_min)) = (self.min_delays.back_mut(), window_min) {
            *least = (*least).min(window_min);
        }
    }

    /// The minimum delay within [`DELAY_WINDOW`]; `None`: the samples do not yet cover twice that time.
    fn window_min_delay(&self, now: Instant) -> Option<Duration> {
        let observed = self.samples.front().map(|(at, ..)| now.since(*at))?;
        let recent = self.samples.iter().filter(|(at, ..)| now.since(*at) <= DELAY_WINDOW);
        recent.map(|(_, _, wait)| *wait).min().filter(|_| observed >= DELAY_WINDOW * 2)
    }

    fn is_live(&self, now: Instant) -> bool {
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| now.since(at) < LIVE_IDLE_TIMEOUT);
        let is_delayed = self.samples.back().is_some_and(|(_, _, wait)| !wait.is_zero());
        (is_recent(self.last_sent) || is_delayed) && is_recent(self.last_acked)
    }

    fn is_delayed(&self, now: Instant) -> bool {
        let min_delay = self.min_delays.iter().min().copied().unwrap_or_default();
        self.window_min_delay(now).is_some_and(|delay| delay > min_delay.saturating_add(MAX_EXTRA_DELAY))
    }
}

fn rate(size: DataSize, time: Duration) -> Bitrate {
    if time.is_zero() { Bitrate::ZERO } else { size / time }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    /// A link with one queue for all flows, a live flow, and bulk flows that send as much as they may.
    struct Simulation {
        priority: LivePriority,
        /// Bytes per millisecond that the link carries.
        rate: u64,
        /// Bytes per millisecond of the live flow.
        live_rate: u64,
        /// The queue: flow and bytes of each piece.
        queue: VecDeque<(u64, u64)>,
        live_sent: u64,
        live_arrived: u64,
        /// Bytes that each bulk flow has sent, and the millisecond at which it requests again.
        bulk: Vec<u64>,
        next: Vec<u64>,
        ms: u64,
    }

    const LIVE: u64 = 100;

    impl Simulation {
        /// `rate` of the link and `demand` of the live flow in bytes per millisecond (0: no live flow), and the number of bulk flows.
        fn new(rate: u64, demand: u64, bulk: usize) -> Self {
            let mut priority = LivePriority::default();
            if demand > 0 {
                priority.begin(LIVE);
            }
            Self {
                priority,
                rate,
                live_rate: demand,
                queue: VecDeque::new(),
                live_sent: 0,
                live_arrived: 0,
                bulk: vec![0; bulk],
                next: vec![0; bulk],
                ms: 0,
            }
        }

        fn run(&mut self, seconds: u64) {
            for _ in 0..seconds * 1000 {
                self.ms += 1;
                let now = Instant::from_millis(self.ms);
                // A picture is sent each 40 ms.
                if self.live_rate > 0 && self.ms.is_multiple_of(40) {
                    self.live_sent += self.live_rate * 40;
                    self.queue.push_back((LIVE, self.live_rate * 40));
                }
                for index in 0..self.bulk.len() {
                    let waiting: u64 =
                        self.queue.iter().filter(|(flow, _)| *flow == index as u64).map(|(_, b)| b).sum();
                    if self.ms < self.next[index] || waiting > 128 * 1024 {
                        continue;
                    }
                    let wanted = DataSize::from_bytes(16_384);
                    match self.priority.request(now, index as u64, wanted) {
                        PaceGrant::Granted(size) => {
                            self.priority.settle(index as u64, size, size);
                            self.bulk[index] += size.bytes();
                            self.queue.push_back((index as u64, size.bytes()));
                        }
                        PaceGrant::RetryAfter(wait) => {
                            self.next[index] = self.ms + u64::try_from(wait.as_millis()).unwrap().max(1)
                        }
                    }
                }
                let mut left = self.rate;
                while let Some((flow, bytes)) = self.queue.front_mut().filter(|_| left > 0) {
                    let sent = left.min(*bytes);
                    (*bytes, left) = (*bytes - sent, left - sent);
                    self.live_arrived += if *flow == LIVE { sent } else { 0 };
                    if *bytes == 0 {
                        self.queue.pop_front();
                    }
                }
                if self.ms.is_multiple_of(50) {
                    if self.live_rate > 0 {
                        let waiting: u64 =
                            self.queue.iter().filter(|(flow, _)| *flow == LIVE).map(|(_, b)| b).sum();
                        // The live flow's data in flight for 20 ms, and its data in the queue.
                        let in_flight = (self.live_rate * 20).min(self.live_sent);
                        let size = DataSize::from_bytes;
                        self.priority.sample(now, LIVE, size(self.live_sent), size(waiting + in_flight));
                    }
                    self.priority.update(now);
                }
            }
        }

        fn sent(&self) -> u64 {
            self.bulk.iter().sum()
        }
    }

    /// 8 Mbit/s are 1000 bytes per millisecond.
    #[test]
    fn without_a_live_flow_bulk_flows_are_not_limited() {
        let mut world = Simulation::new(1000, 0, 2);
        world.run(10);
        assert_eq!(world.priority.allowance(), None);
        assert!(world.sent() >= 9_900_000, "{}", world.sent());
    }

    #[test]
    fn the_live_flow_keeps_its_rate_and_bulk_flows_use_most_of_the_remaining_capacity() {
        let mut world = Simulation::new(1000, 600, 2);
        world.run(20);
        let (arrived, sent) = (world.live_arrived, world.sent());
        world.run(60);
        let (arrived, sent) = (world.live_arrived - arrived, world.sent() - sent);
        assert!(arrived >= 35_500_000, "of 36000000 bytes {arrived}");
        // The live flow leaves 400 bytes per millisecond.
        assert!((16_000_000..25_000_000).contains(&sent), "{sent}");
        let [one, other] = world.bulk[..] else { panic!() };
        assert!(one.abs_diff(other) < one / 10, "{one} and {other}");
    }

    #[test]
    fn if_the_live_flow_needs_all_capacity_bulk_flows_get_only_the_minimum() {
        let mut world = Simulation::new(600, 600, 3);
        world.run(20);
        let sent = world.sent();
        world.run(20);
        let rate = (world.sent() - sent) * 8 / 20;
        assert!(rate <= MIN_ALLOWANCE.bits_per_sec() * 3 / 2, "{rate} bit/s");
        assert!(rate >= MIN_ALLOWANCE.bits_per_sec() / 2, "{rate} bit/s");
    }

    #[test]
    fn bulk_flows_are_unlimited_again_after_the_live_flow_ends_or_stops_sending() {
        let mut world = Simulation::new(1000, 600, 3);
        world.run(20);
        assert!(world.priority.allowance().is_some());
        world.priority.end(LIVE);
        world.live_rate = 0;
        let sent = world.sent();
        world.run(5);
        assert_eq!(world.priority.allowance(), None);
        assert!(world.sent() - sent >= 4_700_000);
        // The same if the live flow stops sending without ending.
        let mut world = Simulation::new(1000, 600, 1);
        world.run(20);
        world.live_rate = 0;
        world.priority.sample(
            Instant::from_millis(world.ms),
            LIVE,
            DataSize::from_bytes(world.live_sent),
            DataSize::ZERO,
        );
        world.priority.update(Instant::from_millis(world.ms + 6000));
        assert_eq!(world.priority.allowance(), None);
    }

    #[test]
    fn a_live_flow_whose_server_stopped_reading_limits_no_bulk_flow() {
        let mut priority = LivePriority::default();
        priority.begin(LIVE);
        let size = DataSize::from_bytes;
        let mut allowed = Vec::new();
        for sample_index in 0..1200_u64 {
            let now = Instant::from_millis(sample_index * 50);
            // The live flow sends 400 kB/s for ten seconds. Then the server stops reading, and the kernel's buffers fill up. After 30 s it
            // continues.
            let acknowledged =
                20_000 * if sample_index < 200 { sample_index } else { 200 + sample_index.saturating_sub(800) };
            let sent = (acknowledged + 8_000).max(20_000 * sample_index.min(250));
            priority.sample(now, LIVE, size(sent), size(sent - acknowledged));
            if let PaceGrant::Granted(granted) = priority.request(now, 1, size(16_384)) {
                priority.settle(1, granted, granted);
            }
            priority.update(now);
            allowed.push(priority.allowance().is_some());
        }
        assert!(!allowed[190] && allowed[240], "limited while that may help");
        assert!(allowed[320..800].iter().all(|is| !is), "a stalled server limits no bulk flow");
        assert!(allowed[810], "a stream that continues has priority again");
    }

    #[test]
    fn a_key_frame_does_not_limit_bulk_flows() {
        let mut priority = LivePriority::default();
        priority.begin(LIVE);
        let size = DataSize::from_bytes;
        let mut sent = 0;
        for sample_index in 0..400_u64 {
            let now = Instant::from_millis(sample_index * 50);
            sent += 20_000;
            // Each second a queue forms that is gone two samples later.
            let queued = if sample_index % 20 < 2 { 120_000 } else { 8_000 };
            priority.sample(now, LIVE, size(sent), size(queued));
            let PaceGrant::Granted(granted) = priority.request(now, 1, size(16_384)) else { panic!("at {now}") };
            priority.settle(1, granted, granted);
            priority.update(now);
            assert_eq!(priority.allowance(), None, "at {now}");
        }
    }
}
