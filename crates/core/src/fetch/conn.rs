//! One connection and its requests: what is on the way, how fast it comes, how long the way is.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::links::CdnNode;
use super::server_delay::ServerDelay;
use super::{ByteRange, PathSample, Protocol, ReqId, RequestRange, UrlId, Validator};
use crate::link::LinkId;
use crate::predict::RateWindow;
use crate::units::{Bitrate, DataSize, Instant};

/// A connection, from the order to open it until it is closed.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) link: LinkId,
    /// The URL of the command line that this is for.
    pub(super) mirror: UrlId,
    /// Where it leads.
    pub(super) cdn_node: CdnNode,
    /// None while it is being opened.
    pub(super) protocol: Option<Protocol>,
    pub(super) handshake_rtt: Duration,
    /// Requests without their end, in the order in which they were sent.
    pub(super) reqs: VecDeque<ReqId>,
    /// What came, by the connection's own [`clock`](Conn::clock).
    pub(super) rate_window: RateWindow,
    /// The last sign of life: opened, or bytes; or a request sent when nothing else was on the way.
    pub(super) last_activity: Instant,
    /// Complete answers so far.
    pub(super) responses: u32,
    /// The server closes after what is on its way: no more requests.
    pub(super) is_draining: bool,
    pub(super) path: PathSample,
    /// When packets last came out of order.
    pub(super) last_reordering: Option<Instant>,
    pub(super) server_delay: ServerDelay,
}

impl Conn {
    pub(super) fn new(link: LinkId, mirror: UrlId, node: CdnNode, now: Instant) -> Self {
        Self {
            link,
            mirror,
            cdn_node: node,
            protocol: None,
            handshake_rtt: Duration::ZERO,
            reqs: VecDeque::new(),
            rate_window: RateWindow::default(),
            last_activity: now,
            responses: 0,
            is_draining: false,
            path: PathSample::default(),
            last_reordering: None,
            server_delay: ServerDelay::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.protocol.is_some()
    }

    /// Whether redirects have led it away from its URL.
    pub(super) fn is_redirected(&self) -> bool {
        self.cdn_node.url != self.mirror
    }

    /// Whether another request may be sent.
    pub(super) fn accepts_requests(&self) -> bool {
        self.is_open() && !self.is_draining
    }

    pub(super) fn on_sample(&mut self, now: Instant, path: PathSample) {
        if path.out_of_order > self.path.out_of_order {
            self.last_reordering = Some(now);
        }
        self.path = path;
    }

    /// Whether packets have been lost lately, as far as a receiver can tell.
    pub(super) fn has_recent_loss(&self, now: Instant) -> bool {
        self.last_reordering.is_some_and(|at| at + LOSS_MEMORY > now)
    }

    /// The round trip now, the queue included: how long before it is needed a request must leave.
    pub(super) fn rtt(&self) -> Duration {
        let measured = self.path.rtt.max(self.path.rcv_rtt).min(RTT_CEILING);
        measured.max(self.min_rtt())
    }

    /// The round trip as the youngest measurement has it. What we send is little, so its smoothed time may be seconds
    /// old; the receiver's own estimate follows the data.
    pub(super) fn latest_rtt(&self) -> Duration {
        let latest = if self.path.rcv_rtt.is_zero() { self.path.rtt } else { self.path.rcv_rtt };
        latest.max(self.min_rtt())
    }

    /// The round trip of the empty path.
    pub(super) fn min_rtt(&self) -> Duration {
        let min = if self.path.min_rtt.is_zero() { self.handshake_rtt } else { self.path.min_rtt };
        min.clamp(RTT_FLOOR, RTT_CEILING)
    }

    /// Whether the sender is still doubling its window: each round trip brings far more than the one before.
    pub(super) fn in_slow_start(&self, now: Instant) -> bool {
        let now = self.transfer_clock(now);
        let rtt = self.min_rtt();
        let Some(first) = self.rate_window.first_arrival() else { return true };
        if self.rate_window.total() > DataSize::from_mib(64) || first + rtt * SLOW_START_ROUNDS < now {
            return false;
        }
        if now < first + rtt * 2 {
            return true;
        }
        let last_round = self.rate_window.bytes_between(now - rtt, now);
        let previous_round = self.rate_window.bytes_between(now - rtt * 2, now - rtt);
        last_round * 10 > previous_round * 14
    }

    /// The rate to expect from now on, while bytes flow. Never taken over less than a round trip: bytes come in bursts.
    pub(super) fn expected_rate(&self, at: Instant) -> Bitrate {
        let now = self.transfer_clock(at);
        let Some(first) = self.rate_window.first_arrival() else { return Bitrate::ZERO };
        let rtt = self.min_rtt();
        let window = (self.rtt() * 8).clamp(RATE_WINDOW.0, RATE_WINDOW.1);
        // A burst, and a quarter of a round trip in which the next one may be late.
        let burst_interval = rtt + rtt / 4;
        if now < first + burst_interval {
            return self.rate_window.total() / rtt;
        }
        let mean = self.rate_window.rate(now, window);
        if !self.in_slow_start(at) {
            return mean;
        }
        // Half of a doubling: what the next round trip brings on average, as far as the link bears it.
        let recent = self.rate_window.bytes_between(now - burst_interval, now) / rtt;
        mean.max(recent + recent / 2)
    }

    /// The rate to rely on. Behind a lost packet nothing is delivered and then everything at once, which a growing window
    /// would look like: while packets are lost, what came counts over all of its time.
    pub(super) fn conservative_rate(&self, at: Instant) -> Bitrate {
        let rate = self.expected_rate(at);
        if !self.has_recent_loss(at) {
            return rate;
        }
        let mean = self.rate_window.rate(self.transfer_clock(at), RATE_WINDOW.1);
        if mean.is_zero() { rate } else { rate.min(mean) }
    }

    /// How many bytes should be on their way, so that the pipe does not run dry before the next request's answer.
    ///
    /// While the window doubles: the next two rounds, 2 × what has come so far. Then: a round trip and the time in
    /// which requests are batched.
    pub(super) fn target_in_flight(&self, now: Instant) -> DataSize {
        let slow_start_target = self.rate_window.total() * 2 + INITIAL_RANGE;
        if self.in_slow_start(now) {
            let now = self.transfer_clock(now);
            // Four times the last two round trips: more than the next two can bring, also after a stall.
            return slow_start_target
                .min(self.rate_window.bytes_between(now - self.min_rtt() * 2, now) * 4 + INITIAL_RANGE * 2);
        }
        // Twice the round trip: it may have grown since it was measured, as the queue fills.
        let steady = self.expected_rate(now) * (self.rtt() + self.min_rtt() + BATCH_INTERVAL + self.server_delay());
        steady.max(INITIAL_RANGE).min(slow_start_target.max(INITIAL_RANGE * 4))
    }
}

/// A request that has been sent and is not complete.
#[derive(Clone, Debug)]
pub(super) struct Req {
    pub(super) conn: super::ConnId,
    pub(super) range_requested: RequestRange,
    pub(super) sent_at: Instant,
    /// The bytes that it brings; the end is far beyond the file for an open range until its size is known.
    pub(super) range: ByteRange,
    /// The next byte that it brings.
    pub(super) next_offset: u64,
    /// The head has come and was good.
    pub(super) is_accepted: bool,
    /// The version that it was bound to.
    pub(super) if_range: Option<Validator>,
    /// It was sent while others on its connection were not complete.
    pub(super) is_pipelined: bool,
    /// The first of the bytes that another request brings as well.
    pub(super) duplicated_from: u64,
    /// Its bytes were given to others, because its link is silent.
    pub(super) is_released: bool,
}

impl Req {
    pub(super) fn remaining(&self) -> ByteRange {
        ByteRange::new(self.next_offset, self.range.end)
    }

    /// The bytes that only this request brings.
    pub(super) fn exclusive_range(&self) -> ByteRange {
        ByteRange::new(self.next_offset, self.range.end.min(self.duplicated_from))
    }
}

/// What a connection is asked for before anything is known of it.
/// chosen: nine initial windows (RFC 6928) cover the first three round trips of slow start.
pub(super) const INITIAL_RANGE: DataSize = DataSize::from_kib(64);

/// Shorter round trips than this are taken for this: the timers of a busy machine are no finer.
const RTT_FLOOR: Duration = Duration::from_millis(4);

/// Longer ones are a measurement of a stall, not of a path.
const RTT_CEILING: Duration = Duration::from_secs(2);

/// After this many round trips the ramp is over, whatever the last two looked like.
const SLOW_START_ROUNDS: u32 = 14;

/// Bounds of the window over which a pace is taken. chosen: long enough for a loss to be repaired
/// within it, short enough to follow a link that fades.
const RATE_WINDOW: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1000));

/// Losses older than this say nothing of now.
const LOSS_MEMORY: Duration = Duration::from_millis(1500);

/// Requests closer than this are sent as one.
const BATCH_INTERVAL: Duration = Duration::from_millis(40);
