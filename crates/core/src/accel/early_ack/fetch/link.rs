//! A link as the fetcher sees it: how much it was asked for, and how fast it answers.
//!
//! In: what is known of the link, questions and answers. Out: whether it may be asked for more, and how long that takes.
//!
//! 1. What an answer says around its bytes counts: a head, a part's head, headers of packets ([`cost`]).
//! 2. Where nobody says what it brings, its rate is found by what has to wait: an answer with much before it takes longer
//!    than the quickest one by the time that those bytes take. Holes alone fill no link and say nothing of it; until
//!    something has waited it is [`UNKNOWN`].
//! 3. What was late does not count as room taken for ever: a link that answers nothing is asked for little, not for
//!    nothing, for that is how it is found to live again.

use core::net::SocketAddr;

use super::QUEUE_TIME;
use super::in_flight::InFlightFetch;
use crate::accel::AddressFamilies;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// What is known of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) struct LinkInfo {
    /// Which.
    pub(in crate::accel) link: LinkId,
    /// Whether it is the one that is helped.
    pub(in crate::accel) is_primary: bool,
    /// Whether it brings nothing at all now.
    pub(in crate::accel) is_down: bool,
    /// What it brings, if that is known.
    pub(in crate::accel) receive_rate: Option<Bitrate>,
    /// Its round trip, if that is known.
    pub(in crate::accel) rtt: Option<Duration>,
    /// To whom it leads.
    pub(in crate::accel) families: AddressFamilies,
}

/// A link, and what it was asked for.
#[derive(Clone, Debug)]
pub(super) struct FetchLink {
    pub(super) info: LinkInfo,
    /// What was asked before something was late counts as room taken no more.
    since: Instant,
    /// What it was found to bring.
    pub(super) measured_rate: Option<Bitrate>,
    /// Everything that was answered.
    pub(super) total: DataSize,
    /// The quickest answer.
    min_latency: Option<Duration>,
    /// When something was late last.
    last_late: Option<Instant>,
}

impl FetchLink {
    pub(super) fn new(info: LinkInfo) -> Self {
        Self {
            info: info,
            since: Instant::ZERO,
            measured_rate: None,
            total: DataSize::ZERO,
            min_latency: None,
            last_late: None,
        }
    }

    pub(super) fn with_info(self, info: LinkInfo) -> Self {
        Self { info: info, ..self }
    }

    /// What it brings, as far as is known.
    pub(super) fn rate(&self) -> Bitrate {
        self.info.receive_rate.or(self.measured_rate).unwrap_or(self.default_rate())
    }

    const fn default_rate(&self) -> Bitrate {
        if self.info.is_primary { DEFAULT_PRIMARY_RATE } else { DEFAULT_RATE }
    }

    /// Whether it may be asked for what this server has.
    pub(super) const fn reaches(&self, server: SocketAddr) -> bool {
        let families = self.info.families;
        !self.info.is_down && if server.is_ipv6() { families.has_v6() } else { families.has_v4() }
    }

    /// Whether it may be asked for more, where `out` is asked for and not answered.
    pub(super) fn can_request(&self, now: Instant, out: DataSize) -> bool {
        out.is_zero() || (!self.was_late_within(now, LATE_TIME) && out < self.window())
    }

    /// Whether something was late of late, and nothing has been answered since.
    pub(super) fn is_doubtful(&self, now: Instant) -> bool {
        self.was_late_within(now, DOUBT_TIME)
    }

    fn was_late_within(&self, now: Instant, time: Duration) -> bool {
        self.last_late.is_some_and(|late| now.since(late) < time)
    }

    /// What takes room of it, of what is open.
    pub(super) fn outstanding<'a>(&self, open: impl Iterator<Item = &'a InFlightFetch>) -> DataSize {
        let counts = |open: &&InFlightFetch| open.link == self.info.link && open.sent_at >= self.since;
        open.filter(counts).map(InFlightFetch::cost).sum()
    }

    /// The most bytes of one question.
    pub(super) fn max_request(&self, is_bulk: bool) -> u64 {
        if is_bulk { self.window().bytes().max(MAX_BULK) } else { self.window().bytes().max(4096) }
    }

    /// How long an answer takes that is asked for now, behind so much.
    pub(super) fn expected_latency(&self, out: DataSize) -> Duration {
        let nanos = out.bytes().saturating_mul(8_000_000_000) / self.rate().bits_per_sec().max(1);
        Duration::from_nanos(nanos) + self.rtt() * 2
    }

    /// An answer after so long, with so many bytes up to its end when it was asked for.
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

/// What an answer of so many bytes takes of a link.
pub(super) fn response_cost(bytes: u64) -> DataSize {
    // 52 bytes of headers to 1448 of a segment.
    DataSize::from_bytes(bytes + bytes / 27 + PART_OVERHEAD)
}

fn rate_of(bytes: DataSize, time: Duration) -> Bitrate {
    let nanos = time.as_nanos().max(1);
    Bitrate::from_bits_per_sec(u64::try_from(u128::from(bytes.bytes()) * 8_000_000_000 / nanos).unwrap_or(u64::MAX))
}

/// chosen: below what a 3G link brings, above what it needs at 1 % of loss and 20 Mbit/s (facts C: 0.22 Mbit/s).
const DEFAULT_RATE: Bitrate = Bitrate::from_bits_per_sec(500_000);
/// chosen: a fifth of the link that the floors are about.
const DEFAULT_PRIMARY_RATE: Bitrate = Bitrate::from_mbps(4);
/// chosen: a cellular link's round trip (the floors' 150 ms).
const DEFAULT_RTT: Duration = Duration::from_millis(150);
/// What nginx writes around one of several ranges: 110 to 130 bytes; a head of its own has about 300.
const PART_OVERHEAD: u64 = 130;
/// chosen: what has waited behind so much has waited for the link: at 900 kbit/s 73 ms.
const MIN_SAMPLE: DataSize = DataSize::from_kib(8);
/// chosen: after something was late, so long only one question at a time.
const LATE_TIME: Duration = Duration::from_secs(1);
/// chosen: of a link that brings nothing, one hole in so long waits for the answer that does not come.
const DOUBT_TIME: Duration = Duration::from_secs(10);
/// chosen: one question for what a blackout has cost.
const MAX_BULK: u64 = 256 * 1024;
