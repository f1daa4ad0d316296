//! Connection and request: estimates of rate and RTT, and the bytes that should be in flight.
//!
//! The rate is computed over the connection's transfer clock, which excludes server delay (`server_delay`). "In flight"
//! means requested and not yet received; the target is about twice the bandwidth-delay product, so that the next
//! response follows the last one without a gap.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::link::CdnNode;
use super::server_delay::{DelayWindow, ServerDelay};
use super::{ByteRange, ConnId, PathSample, Protocol, ReqId, RequestRange, UrlId, Validator};
use crate::link::LinkId;
use crate::predict::RateWindow;
use crate::units::{Bitrate, DataSize, Instant};

/// One connection, from the command to open it until it is closed.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) link: LinkId,
    /// The mirror (a URL given by the user or named by a server) that it serves.
    pub(super) mirror: UrlId,
    /// The URL after redirects, and the server address in use.
    pub(super) cdn_node: CdnNode,
    /// None while the connection is being opened.
    pub(super) protocol: Option<Protocol>,
    pub(super) handshake_rtt: Duration,
    /// Incomplete requests, in the order in which they were sent.
    pub(super) reqs: VecDeque<ReqId>,
    /// Received bytes over [`transfer_clock`](Conn::transfer_clock) time.
    pub(super) rate_window: RateWindow,
    /// When the connection was opened, received bytes, or got a request while it had none: the start of the stall
    /// timeout.
    pub(super) last_activity: Instant,
    /// Complete responses so far.
    pub(super) responses: u32,
    /// The server closes the connection after the requests in flight, or the link has too many: it gets no more
    /// requests.
    pub(super) is_draining: bool,
    pub(super) path: PathSample,
    /// When packets last arrived out of order.
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

    /// Whether it uses the target of a redirect instead of the mirror's own URL.
    pub(super) fn is_redirected(&self) -> bool {
        self.cdn_node.url != self.mirror
    }

    /// Whether it may carry one more request.
    pub(super) fn has_request_slot(&self) -> bool {
        self.reqs.len() < MAX_REQUESTS
    }

    /// How long it will probably deliver nothing more. A connection that has paused (for example while a loss is
    /// repaired) will pause as long again, and in slow start the next burst comes an RTT later.
    pub(super) fn stalled_for(&self, now: Instant) -> Duration {
        let burst = if self.in_slow_start(now) { self.min_rtt() } else { Duration::ZERO };
        now.since(self.last_activity).max(burst)
    }

    /// Whether it may get another request.
    pub(super) fn accepts_requests(&self) -> bool {
        self.is_open() && !self.is_draining
    }

    pub(super) fn on_sample(&mut self, now: Instant, path: PathSample) {
        if path.out_of_order > self.path.out_of_order {
            self.last_reordering = Some(now);
        }
        self.path = path;
    }

    /// Whether packets were lost recently. A receiver sees loss only as reordering.
    pub(super) fn has_recent_loss(&self, now: Instant) -> bool {
        self.last_reordering.is_some_and(|at| at + LOSS_MEMORY > now)
    }

    /// Server delay before each response; zero if not noticeable.
    pub(super) fn server_delay(&self) -> Duration {
        self.server_delay.typical(self.min_rtt())
    }

    /// Total server delay of `count` requests without a response.
    pub(super) fn server_delay_for(&self, count: usize) -> Duration {
        let delay = self.server_delay();
        match self.protocol {
            Some(Protocol::Http1) => delay * u32::try_from(count).unwrap_or(u32::MAX),
            // HTTP/2: the server processes requests in parallel.
            _ if count == 0 => Duration::ZERO,
            _ => delay,
        }
    }

    /// Clock that runs only while bytes could arrive; the origin of the rate measurement.
    pub(super) fn transfer_clock(&self, now: Instant) -> Instant {
        self.server_delay.transfer_clock(now, self.min_rtt())
    }

    /// The request that was sent at `sent` is the next one that the server responds to: starts a delay sample.
    pub(super) fn start_server_delay(&mut self, now: Instant, sent: Instant) {
        self.server_delay.start((sent + self.rtt()).max(now));
    }

    /// A response head has arrived: ends the delay sample, which also counts for the link.
    pub(super) fn end_server_delay(&mut self, now: Instant, link: &mut DelayWindow) {
        let min_rtt = self.min_rtt();
        self.server_delay.end(now, min_rtt, link);
    }

    /// Current RTT including queueing delay: how early a request must be sent so that its response arrives in time.
    pub(super) fn rtt(&self) -> Duration {
        let measured = self.path.rtt.max(self.path.rcv_rtt).min(RTT_CEILING);
        measured.max(self.min_rtt())
    }

    /// RTT of the newest measurement. The kernel's smoothed RTT is based on the few packets that we send and may be
    /// seconds old; its receiver-side estimate follows the data.
    pub(super) fn latest_rtt(&self) -> Duration {
        let latest = if self.path.rcv_rtt.is_zero() { self.path.rtt } else { self.path.rcv_rtt };
        latest.max(self.min_rtt())
    }

    /// Minimum RTT (without queueing delay), bounded to a plausible range.
    pub(super) fn min_rtt(&self) -> Duration {
        let min = if self.path.min_rtt.is_zero() { self.handshake_rtt } else { self.path.min_rtt };
        min.clamp(RTT_FLOOR, RTT_CEILING)
    }

    /// Whether the sender is probably still in slow start: the last RTT brought over 1.4 times the bytes of the one
    /// before.
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

    /// Expected rate while data flows. Data arrives in bursts of one per RTT, so the rate is never taken over a shorter
    /// time.
    pub(super) fn expected_rate(&self, at: Instant) -> Bitrate {
        let now = self.transfer_clock(at);
        let Some(first) = self.rate_window.first_arrival() else { return Bitrate::ZERO };
        let rtt = self.min_rtt();
        let window = (self.rtt() * 8).clamp(RATE_WINDOW.0, RATE_WINDOW.1);
        // Time for one burst, and a quarter of an RTT more in which the next one may be late.
        let burst_interval = rtt + rtt / 4;
        if now < first + burst_interval {
            return self.rate_window.total() / rtt;
        }
        let mean = self.rate_window.rate(now, window);
        if !self.in_slow_start(at) {
            return mean;
        }
        // In slow start the next RTT brings up to twice the last one: assume half of that growth.
        let recent = self.rate_window.bytes_between(now - burst_interval, now) / rtt;
        mean.max(recent + recent / 2)
    }

    /// Expected rate that does not overestimate after losses. Behind a lost packet TCP delivers nothing and then
    /// everything at once, which looks like a growing window. With recent loss the mean over the longest window is the
    /// limit.
    pub(super) fn conservative_rate(&self, at: Instant) -> Bitrate {
        let rate = self.expected_rate(at);
        if !self.has_recent_loss(at) {
            return rate;
        }
        let mean = self.rate_window.rate(self.transfer_clock(at), RATE_WINDOW.1);
        if mean.is_zero() { rate } else { rate.min(mean) }
    }

    /// Bytes that should be requested and not yet received, so that the connection does not idle before the next
    /// response.
    ///
    /// In slow start: what the next two RTTs can bring, 2 × everything received so far. Afterwards: about two RTTs at
    /// the expected rate, plus the time in which requests are batched and the server delay.
    pub(super) fn target_in_flight(&self, now: Instant) -> DataSize {
        let slow_start_target = self.rate_window.total() * 2 + INITIAL_RANGE;
        if self.in_slow_start(now) {
            let now = self.transfer_clock(now);
            // Also limited to four times the last two RTTs: more than the next two can bring, even right after a stall.
            return slow_start_target
                .min(self.rate_window.bytes_between(now - self.min_rtt() * 2, now) * 4 + INITIAL_RANGE * 2);
        }
        // RTT plus minimum RTT, about two round trips: the RTT may have grown since it was measured, as the queue
        // fills.
        let steady = self.expected_rate(now) * (self.rtt() + self.min_rtt() + BATCH_INTERVAL + self.server_delay());
        steady.max(INITIAL_RANGE).min(slow_start_target.max(INITIAL_RANGE * 4))
    }
}

/// A request that was sent and is not complete.
#[derive(Clone, Debug)]
pub(super) struct Req {
    pub(super) conn: ConnId,
    pub(super) range_requested: RequestRange,
    pub(super) sent_at: Instant,
    /// The bytes that it is expected to deliver. For an open-ended request the end is far beyond the file until its
    /// size is known.
    pub(super) range: ByteRange,
    /// The offset of the next byte to arrive.
    pub(super) next_offset: u64,
    /// The response head was received and accepted.
    pub(super) is_accepted: bool,
    /// The validator sent as If-Range.
    pub(super) if_range: Option<Validator>,
    /// Another request on its connection was incomplete when it was sent.
    pub(super) is_pipelined: bool,
    /// From this offset on, another request delivers the same bytes.
    pub(super) duplicated_from: u64,
    /// Its bytes were given to other links because its link is stalled.
    pub(super) is_released: bool,
}

impl Req {
    pub(super) fn remaining(&self) -> ByteRange {
        ByteRange::new(self.next_offset, self.range.end)
    }

    /// The bytes that no other request delivers.
    pub(super) fn exclusive_range(&self) -> ByteRange {
        ByteRange::new(self.next_offset, self.range.end.min(self.duplicated_from))
    }
}

/// First request on a connection of unknown rate.
/// chosen: four to five initial windows (RFC 6928), more than the first two round trips of slow start can deliver.
pub(super) const INITIAL_RANGE: DataSize = DataSize::from_kib(64);

/// Lower bound of the RTT: timers of a busy host are no finer.
const RTT_FLOOR: Duration = Duration::from_millis(4);

/// Upper bound of the RTT: longer measurements stem from a stall, not from the path.
const RTT_CEILING: Duration = Duration::from_secs(2);

/// After this many RTTs slow start is over, whatever the last two RTTs brought.
const SLOW_START_ROUNDS: u32 = 14;

/// Bounds of the window over which the rate is taken. chosen: long enough to contain the repair of a loss, short enough
/// to follow a fading link.
const RATE_WINDOW: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1000));

/// Older losses say nothing about the present.
const LOSS_MEMORY: Duration = Duration::from_millis(1500);

/// Requests due within this time are sent as one.
const BATCH_INTERVAL: Duration = Duration::from_millis(40);

/// Maximum number of requests in flight per connection, so that they do not pile up at a slow server.
/// chosen: no row of the reviewed simulation tables changes with it, and servers allow 100 HTTP/2 streams (RFC 9113
/// §6.5.2).
const MAX_REQUESTS: usize = 32;

/// Smallest request worth the overhead of its heads, about 500 bytes in both directions.
pub(super) const MIN_REQUEST: DataSize = DataSize::from_kib(16);

/// First request of a waiting reader, of a resource that is known. With a full queue only the first packets of a burst
/// get through, and TLS delivers no byte of a record (16 KiB with most servers) before all of it has arrived.
/// chosen: three packets including the response head.
pub(crate) const FIRST_CHUNK: DataSize = DataSize::from_bytes(3000);
