//! Connection and request: estimates of rate and RTT, and the bytes that should be in flight.
//!
//! The rate is computed over the connection's transfer clock, which stands still while the client waits for the server to
//! process a request (`server_delay`), so that such waits do not lower it. "In flight" means requested and not yet
//! received; the target is about twice the bandwidth-delay product, so that each response follows the previous one
//! without a gap.

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
    /// The mirror for which the connection was opened: a URL given by the user, or named by a server (Link header) or a
    /// Metalink file.
    pub(super) mirror: UrlId,
    /// The URL after redirects together with the server address in use.
    pub(super) cdn_node: CdnNode,
    /// None while the connection is being opened.
    pub(super) protocol: Option<Protocol>,
    pub(super) handshake_rtt: Duration,
    /// Incomplete requests, in the order in which they were sent.
    pub(super) reqs: VecDeque<ReqId>,
    /// History of received bytes, over the time of the [`transfer_clock`](Conn::transfer_clock).
    pub(super) rate_window: RateWindow,
    /// Start of the stall timeout: the latest time at which the connection was opened, received bytes, or got a request
    /// while it had none.
    pub(super) last_activity: Instant,
    /// Complete responses so far.
    pub(super) responses: u32,
    /// The connection gets no more requests and is closed after those in flight: the server will close it, the link has
    /// more connections than it needs, or a redirect leads to another server now.
    pub(super) is_draining: bool,
    /// The newest sample of the kernel's TCP statistics (TCP_INFO).
    pub(super) path: PathSample,
    /// When the sample's count of packets out of order (`out_of_order`) last grew.
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

    /// Whether fewer than [`MAX_REQUESTS`] are in flight on it.
    pub(super) fn has_request_slot(&self) -> bool {
        self.reqs.len() < MAX_REQUESTS
    }

    /// Time from now until the connection probably delivers its next byte. A connection that has paused, for example for
    /// a retransmission, is assumed to pause for the same time again. In slow start the next burst arrives after one RTT.
    pub(super) fn expected_pause(&self, now: Instant) -> Duration {
        let burst = if self.in_slow_start(now) { self.min_rtt() } else { Duration::ZERO };
        now.since(self.last_activity).max(burst)
    }

    /// Whether it is established and not draining.
    pub(super) fn accepts_requests(&self) -> bool {
        self.is_open() && !self.is_draining
    }

    pub(super) fn on_sample(&mut self, now: Instant, path: PathSample) {
        if path.out_of_order > self.path.out_of_order {
            self.last_reordering = Some(now);
        }
        self.path = path;
    }

    /// Whether packets were lost recently. A receiver sees a loss as segments that arrive out of order, which the kernel
    /// counts (`tcpi_rcv_ooopack`).
    pub(super) fn has_recent_loss(&self, now: Instant) -> bool {
        self.last_reordering.is_some_and(|at| at + LOSS_MEMORY > now)
    }

    /// Server delay before each response; zero if it is small compared with the RTT.
    pub(super) fn server_delay(&self) -> Duration {
        self.server_delay.typical(self.min_rtt())
    }

    /// Total server delay of `count` requests that have no response yet. In HTTP/1 the server processes them one after
    /// another.
    pub(super) fn server_delay_for(&self, count: usize) -> Duration {
        let delay = self.server_delay();
        match self.protocol {
            Some(Protocol::Http1) => delay * u32::try_from(count).unwrap_or(u32::MAX),
            // HTTP/2: the server processes requests in parallel.
            _ if count == 0 => Duration::ZERO,
            _ => delay,
        }
    }

    /// Clock that runs only while bytes could arrive. It is the time base of the rate measurement.
    pub(super) fn transfer_clock(&self, now: Instant) -> Instant {
        self.server_delay.transfer_clock(now, self.min_rtt())
    }

    /// Starts a delay sample for the request whose response is next; it was sent at `sent`. The delay counts from the
    /// earliest time at which a response could arrive.
    pub(super) fn start_server_delay(&mut self, now: Instant, sent: Instant) {
        self.server_delay.start((sent + self.rtt()).max(now));
    }

    /// A response head has arrived: ends the delay sample and adds it to the samples of the link too.
    pub(super) fn end_server_delay(&mut self, now: Instant, link: &mut DelayWindow) {
        let min_rtt = self.min_rtt();
        self.server_delay.end(now, min_rtt, link);
    }

    /// Conservative RTT including queueing delay, the larger one of the kernel's estimates: how early a request must be sent
    /// so that its response arrives in time.
    pub(super) fn rtt(&self) -> Duration {
        let measured = self.path.rtt.max(self.path.rcv_rtt).min(RTT_CEILING);
        measured.max(self.min_rtt())
    }

    /// Most recent RTT. The kernel's smoothed RTT is measured only with the few data packets of a client, its requests, and
    /// may be seconds old. The receiver-side estimate is updated as data arrives.
    pub(super) fn latest_rtt(&self) -> Duration {
        let latest = if self.path.rcv_rtt.is_zero() { self.path.rtt } else { self.path.rcv_rtt };
        latest.max(self.min_rtt())
    }

    /// Minimum RTT (without queueing delay), limited to [`RTT_FLOOR`] to [`RTT_CEILING`].
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

    /// Expected rate while data flows. Data arrives in bursts of one per RTT, so the rate is never computed over less
    /// than one RTT.
    pub(super) fn expected_rate(&self, at: Instant) -> Bitrate {
        let now = self.transfer_clock(at);
        let Some(first) = self.rate_window.first_arrival() else { return Bitrate::ZERO };
        let rtt = self.min_rtt();
        let window = (self.rtt() * 8).clamp(RATE_WINDOW.0, RATE_WINDOW.1);
        // One burst arrives per RTT. A margin of a quarter RTT includes a late one; its bytes still count as those of one
        // RTT.
        let burst_interval = rtt + rtt / 4;
        if now < first + burst_interval {
            return self.rate_window.total() / rtt;
        }
        let mean = self.rate_window.rate(now, window);
        if !self.in_slow_start(at) {
            return mean;
        }
        // In slow start the rate up to doubles in the next RTT. Assume half of that growth: 1.5 times.
        let recent = self.rate_window.bytes_between(now - burst_interval, now) / rtt;
        mean.max(recent + recent / 2)
    }

    /// Expected rate that does not overestimate after losses. TCP holds back the data after a lost segment, then
    /// delivers all of it at once, which looks like a growing congestion window. After recent loss the rate is therefore
    /// limited to the mean over one second, the longest rate window.
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
    /// In slow start: 2 × everything received so far. The next two RTTs bring about 1.25 × if the congestion window grows
    /// by half per RTT (delayed ACKs), and 3 × if it doubles; 2 × is between these. Afterwards: about two RTTs at
    /// the expected rate, plus a margin for requests that are sent late and the server delay.
    pub(super) fn target_in_flight(&self, now: Instant) -> DataSize {
        let slow_start_target = self.rate_window.total() * 2 + INITIAL_RANGE;
        if self.in_slow_start(now) {
            let now = self.transfer_clock(now);
            // Also limited to four times the bytes of the last two RTTs, plus a margin. If the congestion window doubles per
            // RTT, the next two RTTs bring four times as much as the last two; this also limits the target after a stall.
            return slow_start_target
                .min(self.rate_window.bytes_between(now - self.min_rtt() * 2, now) * 4 + INITIAL_RANGE * 2);
        }
        // RTT plus minimum RTT, about two round trips: the RTT may have grown since it was measured, as the queue
        // fills.
        let steady =
            self.expected_rate(now) * (self.rtt() + self.min_rtt() + IN_FLIGHT_MARGIN + self.server_delay());
        steady.max(INITIAL_RANGE).min(slow_start_target.max(INITIAL_RANGE * 4))
    }
}

/// A request that was sent and is not complete.
#[derive(Clone, Debug)]
pub(super) struct Req {
    pub(super) conn: ConnId,
    /// The range in the request as it was sent; it may be open-ended.
    pub(super) range_requested: RequestRange,
    pub(super) sent_at: Instant,
    /// The bytes that the response is expected to deliver. For an open-ended request the end is far beyond the file until its
    /// size is known.
    pub(super) range: ByteRange,
    /// The offset of the next byte to arrive.
    pub(super) next_offset: u64,
    /// The response head was received and accepted.
    pub(super) is_accepted: bool,
    /// The validator sent as If-Range.
    pub(super) if_range: Option<Validator>,
    /// When this request was sent, an earlier request on the same connection was incomplete.
    pub(super) is_pipelined: bool,
    /// From this offset on, another request delivers the same bytes; `u64::MAX`, the initial value, if none does.
    pub(super) duplicated_from: u64,
    /// The bytes of this request were assigned to other links, because its own link is stalled. The request stays open
    /// and may still deliver them.
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

/// Size of the first request on a connection of unknown rate.
/// Our choice: four to five initial windows (RFC 6928), more than the first two round trips of slow start can deliver.
pub(super) const INITIAL_RANGE: DataSize = DataSize::from_kib(64);

/// Lower bound of the RTT: a busy host does not schedule timers more precisely.
const RTT_FLOOR: Duration = Duration::from_millis(4);

/// Upper bound of the RTT: longer measurements are caused by a stall, not by the path.
const RTT_CEILING: Duration = Duration::from_secs(2);

/// This many RTTs after the first byte slow start is over, whatever the last two RTTs brought.
const SLOW_START_ROUNDS: u32 = 14;

/// Bounds of the time over which the rate is taken (eight RTTs). Our choice: long enough to contain the repair of a loss,
/// short enough to follow a fading link.
const RATE_WINDOW: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1000));

/// Time after which a loss no longer counts as recent.
const LOSS_MEMORY: Duration = Duration::from_millis(1500);

/// Margin of the target in flight: a request that is sent this much late leaves no gap before its response.
const IN_FLIGHT_MARGIN: Duration = Duration::from_millis(40);

/// Maximum number of requests in flight per connection, so that they do not pile up at a slow server.
/// Our choice: no result in the reviewed tables of the simulation (`crates/sim/tests/tables`) depends on it, and servers
/// allow 100 HTTP/2 streams (RFC 9113 §6.5.2).
const MAX_REQUESTS: usize = 32;

/// Smallest request worth the overhead of its heads, about 500 bytes in both directions.
pub(super) const MIN_REQUEST: DataSize = DataSize::from_kib(16);

/// Size of the first request on a connection while a reader (a player, or a pipe) waits for the next bytes and the size
/// of the resource is known. If the queue of the bottleneck is full, it drops all but the first packets of a burst. TLS
/// delivers no byte of a record (16 KiB with most servers) before the whole record has arrived, so a short response
/// arrives earlier.
/// Our choice: three packets including the response head.
pub(crate) const FIRST_CHUNK: DataSize = DataSize::from_bytes(3000);
