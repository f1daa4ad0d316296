//! A link as the fetcher sees it: how much was requested over it, and how fast it responds.
//!
//! 1. Overhead counts: a response head, part heads, packet headers ([`response_cost`]).
//! 2. Without a configured rate it is measured by responses that have to queue: a response behind many bytes takes
//!    longer than the fastest one by the transmission time of those bytes. Holes alone fill no link and show nothing;
//!    until something has queued the rate is [`DEFAULT_RATE`].
//! 3. Late ranges do not use capacity for ever: a link that answers nothing is requested to deliver little, not
//!    nothing, because that is how its recovery is noticed.

use core::net::SocketAddr;

use super::QUEUE_TIME;
use super::in_flight::InFlightFetch;
use crate::accel::AddressFamilies;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// What is known of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) struct LinkInfo {
    /// Which link.
    pub(in crate::accel) link: LinkId,
    /// Whether it is the primary link.
    pub(in crate::accel) is_primary: bool,
    /// Whether it delivers nothing now.
    pub(in crate::accel) is_down: bool,
    /// The rate that it delivers, if known.
    pub(in crate::accel) receive_rate: Option<Bitrate>,
    /// Its round-trip time, if known.
    pub(in crate::accel) rtt: Option<Duration>,
    /// The address families that it reaches.
    pub(in crate::accel) families: AddressFamilies,
}

/// A link, and what was requested over it.
#[derive(Clone, Debug)]
pub(super) struct FetchLink {
    pub(super) info: LinkInfo,
    /// Requests from before the last late one no longer use capacity.
    since: Instant,
    /// The measured rate.
    pub(super) measured_rate: Option<Bitrate>,
    /// All that was received.
    pub(super) total: DataSize,
    /// The fastest response.
    min_latency: Option<Duration>,
    /// When something was late last.
    last_late: Option<Instant>,
}

impl FetchLink {
    pub(super) fn new(info: LinkInfo) -> Self {
        Self {
            info,
            since: Instant::ZERO,
            measured_rate: None,
            total: DataSize::ZERO,
            min_latency: None,
            last_late: None,
        }
    }

    pub(super) fn with_info(self, info: LinkInfo) -> Self {
        Self { info, ..self }
    }

    /// Its rate, as far as known.
    pub(super) fn rate(&self) -> Bitrate {
        self.info.receive_rate.or(self.measured_rate).unwrap_or(self.default_rate())
    }

    const fn default_rate(&self) -> Bitrate {
        if self.info.is_primary { DEFAULT_PRIMARY_RATE } else { DEFAULT_RATE }
    }

    /// Whether it may be used for this server.
    pub(super) const fn reaches(&self, server: SocketAddr) -> bool {
        let families = self.info.families;
        !self.info.is_down && if server.is_ipv6() { families.has_v6() } else { families.has_v4() }
    }

    /// Whether more may be requested over it, with `out` outstanding.
    pub(super) fn can_request(&self, now: Instant, out: DataSize) -> bool {
        out.is_zero() || (!self.was_late_within(now, LATE_TIME) && out < self.window())
    }

    /// Whether something was late recently, and nothing has been answered since.
    pub(super) fn is_doubtful(&self, now: Instant) -> bool {
        self.was_late_within(now, DOUBT_TIME)
    }

    fn was_late_within(&self, now: Instant, time: Duration) -> bool {
        self.last_late.is_some_and(|late| now.since(late) < time)
    }

    /// What uses its capacity, of the fetches in flight.
    pub(super) fn outstanding<'a>(&self, open: impl Iterator<Item = &'a InFlightFetch>) -> DataSize {
        let counts = |open: &&InFlightFetch| open.link == self.info.link && open.sent_at >= self.since;
        open.filter(counts).map(InFlightFetch::cost).sum()
    }

    /// The most bytes of one request.
    pub(super) fn max_request(&self, is_bulk: bool) -> u64 {
        if is_bulk { self.window().bytes().max(MAX_BULK) } else { self.window().bytes().max(4096) }
    }

    /// The expected latency of a request that is sent now, behind so much.
    pub(super) fn expected_latency(&self, out: DataSize) -> Duration {
        let nanos = out.bytes().saturating_mul(8_000_000_000) / self.rate().bits_per_sec().max(1);
        Duration::from_nanos(nanos) + self.rtt() * 2
    }

    /// A response after this latency, with so many bytes up to its end when it was requested.
    pub(super) fn on_response(
        &mut self,
        latency: Duration,
        bytes_ahead: DataSize,
        cost: DataSize,
        has_bytes: bool,
    ) {
        if !has_bytes {
            return;
        }
        self.last_late = None;
        self.total += cost;
        let least = *self.min_latency.insert(self.min_latency.map_or(latency, |least| least.min(latency)));
        if bytes_ahead >= MIN_SAMPLE && latency > least {
            let rate = rate_of(bytes_ahead, latency - least);
            let old = self.measured_rate.unwrap_or(self.default_rate());
            self.measured_rate = Some((old * 7 + rate.min(old * 4)) / 8);
        }
    }

    pub(super) const fn on_late(&mut self, now: Instant) {
        (self.last_late, self.since) = (Some(now), now);
    }

    fn window(&self) -> DataSize {
        self.rate() * (self.rtt() + QUEUE_TIME)
    }

    fn rtt(&self) -> Duration {
        self.info.rtt.unwrap_or(DEFAULT_RTT)
    }
}

/// The load of a response with so many bytes on a link.
pub(super) fn response_cost(bytes: u64) -> DataSize {
    // 52 bytes of headers for 1448 of a segment.
    DataSize::from_bytes(bytes + bytes / 27 + PART_OVERHEAD)
}

fn rate_of(bytes: DataSize, time: Duration) -> Bitrate {
    let nanos = time.as_nanos().max(1);
    Bitrate::from_bits_per_sec(u64::try_from(u128::from(bytes.bytes()) * 8_000_000_000 / nanos).unwrap_or(u64::MAX))
}

/// chosen: below the rate of a 3G link, above the 0.22 Mbit/s that 1 % of loss at 20 Mbit/s needs.
const DEFAULT_RATE: Bitrate = Bitrate::from_bits_per_sec(500_000);
/// chosen: a fifth of the link that the thresholds are about.
const DEFAULT_PRIMARY_RATE: Bitrate = Bitrate::from_mbps(4);
/// chosen: the round trip of a cellular link in the thresholds.
const DEFAULT_RTT: Duration = Duration::from_millis(150);
/// What nginx writes around one of several ranges: 110 to 130 bytes; a head of its own has about 300.
const PART_OVERHEAD: u64 = 130;
/// chosen: what waited behind so much has waited for the link: 73 ms at 900 kbit/s.
const MIN_SAMPLE: DataSize = DataSize::from_kib(8);
/// chosen: after something was late, only one request at a time for so long.
const LATE_TIME: Duration = Duration::from_secs(1);
/// chosen: on a link that delivers nothing, one hole in this time waits for a response that does not come.
const DOUBT_TIME: Duration = Duration::from_secs(10);
/// chosen: one request for the loss of an outage.
const MAX_BULK: u64 = 256 * 1024;
