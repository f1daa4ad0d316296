//! A link as the fetcher sees it: how much was requested over it, and how fast it responds.
//!
//! 1. Overhead counts: a response head, part heads, packet headers ([`InFlightRange::cost`](super::in_flight::InFlightRange::cost)).
//! 2. Without a configured rate it is measured by responses that have to queue: a response behind many bytes takes
//!    longer than the fastest one by the transmission time of those bytes. Holes alone fill no link and show nothing;
//!    until something has queued the rate is `default_rate`.
//! 3. Late ranges do not use capacity for ever: a link that answers nothing is requested to deliver little, not
//!    nothing, because that is how its recovery is noticed.

use core::net::SocketAddr;

use super::in_flight::InFlightFetch;
use crate::accel::early_ack::fetch::options::FetchOptions;
use crate::accel::secondary::link::LinkInfo;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// A link, and what was requested over it.
#[derive(Clone, Debug)]
pub(super) struct FetchLink {
    options: &'static FetchOptions,
    pub(super) info: LinkInfo,
    /// Requests from before the last late one no longer use capacity.
    since: Instant,
    /// Smoothed rate of the fetches; none: nothing was measured yet.
    pub(super) measured_rate: Option<Bitrate>,
    /// Bytes received over the link in all fetches.
    pub(super) total: DataSize,
    /// Shortest latency of a response.
    min_latency: Option<Duration>,
    /// When something was late last.
    last_overdue: Option<Instant>,
}

impl FetchLink {
    pub(super) fn new(options: &'static FetchOptions, info: LinkInfo) -> Self {
        Self {
            options,
            info,
            since: Instant::ZERO,
            measured_rate: None,
            total: DataSize::ZERO,
            min_latency: None,
            last_overdue: None,
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
        if self.info.is_primary { self.options.default_primary_rate } else { self.options.default_rate }
    }

    /// Whether it may be used for this server.
    pub(super) const fn reaches(&self, server: SocketAddr) -> bool {
        let families = self.info.families;
        !self.info.is_down && if server.is_ipv6() { families.has_v6() } else { families.has_v4() }
    }

    /// Whether more may be requested over it, with `out` outstanding.
    pub(super) fn can_request(&self, now: Instant, out: DataSize) -> bool {
        out.is_zero() || (!self.was_overdue_within(now, self.options.late_time) && out < self.window())
    }

    /// Whether something was late recently, and nothing has been answered since.
    pub(super) fn is_doubtful(&self, now: Instant) -> bool {
        self.was_overdue_within(now, self.options.doubt_time)
    }

    fn was_overdue_within(&self, now: Instant, time: Duration) -> bool {
        self.last_overdue.is_some_and(|late| now.since(late) < time)
    }

    /// What uses its capacity, of the fetches in flight.
    pub(super) fn outstanding<'a>(&self, open: impl Iterator<Item = &'a InFlightFetch>) -> DataSize {
        let counts = |open: &&InFlightFetch| open.link == self.info.link && open.sent_at >= self.since;
        open.filter(counts).map(InFlightFetch::cost).sum()
    }

    /// The most bytes of one request.
    pub(super) fn max_request(&self, is_bulk: bool) -> u64 {
        if is_bulk { self.window().bytes().max(self.options.max_bulk) } else { self.window().bytes().max(4096) }
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
        self.last_overdue = None;
        self.total += cost;
        let least = *self.min_latency.insert(self.min_latency.map_or(latency, |least| least.min(latency)));
        if bytes_ahead >= self.options.min_sample && latency > least {
            let rate = rate_of(bytes_ahead, latency - least);
            let previous_rate = self.measured_rate.unwrap_or(self.default_rate());
            self.measured_rate = Some((previous_rate * 7 + rate.min(previous_rate * 4)) / 8);
        }
    }

    pub(super) const fn on_overdue(&mut self, now: Instant) {
        (self.last_overdue, self.since) = (Some(now), now);
    }

    fn window(&self) -> DataSize {
        self.rate() * (self.rtt() + self.options.queue_time)
    }

    fn rtt(&self) -> Duration {
        self.info.rtt.unwrap_or(self.options.default_rtt)
    }
}

fn rate_of(bytes: DataSize, time: Duration) -> Bitrate {
    let nanos = time.as_nanos().max(1);
    Bitrate::from_bits_per_sec(u64::try_from(u128::from(bytes.bytes()) * 8_000_000_000 / nanos).unwrap_or(u64::MAX))
}
