//! A link as the fetcher sees it: how much it was asked for, and how fast it answers.
//!
//! In: what is known of the link, questions and answers. Out: whether it may be asked for more, and how long that takes.
//!
//! 1. What an answer says around its bytes counts: a head, a part's head, headers of packets ([`cost`]).
//! 2. Where nobody says what it brings, its rate is found while it is busy: bytes over time, a quarter at a time; until
//!    then [`UNKNOWN`].
//! 3. What was late does not count as room taken for ever: a link that answers nothing is asked for little, not for
//!    nothing, for that is how it is found to live again.

use super::QUEUE;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// What is known of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) struct Road {
    /// Which.
    pub(in crate::accel) link: LinkId,
    /// Whether it is the one that is helped.
    pub(in crate::accel) is_primary: bool,
    /// Whether it brings nothing at all now.
    pub(in crate::accel) is_dark: bool,
    /// What it brings, if that is known.
    pub(in crate::accel) down: Option<Bitrate>,
    /// Its round trip, if that is known.
    pub(in crate::accel) rtt: Option<Duration>,
}

/// A link, and what it was asked for.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) road: Road,
    /// Asked for and not answered, with what stands around it.
    out: DataSize,
    /// What it was found to bring.
    pub(super) found: Option<Bitrate>,
    /// Everything that was answered.
    pub(super) total: DataSize,
    /// Since when it is busy, and what it has brought since.
    busy: Option<(Instant, DataSize)>,
    /// When something was late last.
    late: Option<Instant>,
}

impl Lane {
    pub(super) fn new(road: Road) -> Self {
        Self { road, out: DataSize::ZERO, found: None, total: DataSize::ZERO, busy: None, late: None }
    }

    pub(super) fn with(self, road: Road) -> Self {
        Self { road, ..self }
    }

    /// What it brings, as far as is known.
    pub(super) fn rate(&self) -> Bitrate {
        let guess = if self.road.is_primary { UNKNOWN_PRIMARY } else { UNKNOWN };
        self.road.down.or(self.found).unwrap_or(guess)
    }

    /// Whether it may be asked for more.
    pub(super) fn has_room(&self, now: Instant) -> bool {
        let is_slow = self.late.is_some_and(|late| now.since(late) < SULK);
        self.out.is_zero() || (!is_slow && self.out < self.window())
    }

    /// The most bytes of one question.
    pub(super) fn most(&self, is_bulk: bool) -> u64 {
        if is_bulk { self.window().bytes().max(BULK_MOST) } else { self.window().bytes().max(4096) }
    }

    /// How long an answer takes that is asked for now.
    pub(super) fn wait(&self) -> Duration {
        let nanos = self.out.bytes().saturating_mul(8_000_000_000) / self.rate().bits_per_sec().max(1);
        Duration::from_nanos(nanos) + self.rtt() * 2
    }

    pub(super) fn asked(&mut self, now: Instant, cost: DataSize) {
        if self.out.is_zero() {
            self.busy = Some((now, DataSize::ZERO));
        }
        self.out += cost;
    }

    pub(super) fn done(&mut self, now: Instant, cost: DataSize, came: bool) {
        self.freed(cost);
        if !came {
            return;
        }
        self.late = None;
        self.total += cost;
        let Some((since, bytes)) = &mut self.busy else { return };
        *bytes += cost;
        let took = now.since(*since);
        if *bytes >= SAMPLE && took > self.road.rtt.unwrap_or(RTT) {
            let rate = bits(*bytes, took - self.road.rtt.unwrap_or(RTT));
            self.found = Some(self.found.map_or(rate, |old| (old * 3 + rate) / 4));
            self.busy = Some((now, DataSize::ZERO));
        }
        if self.out.is_zero() {
            self.busy = None;
        }
    }

    /// Something was asked for that is not wanted any more.
    pub(super) fn freed(&mut self, cost: DataSize) {
        self.out -= cost;
    }

    pub(super) fn was_late(&mut self, now: Instant) {
        self.late = Some(now);
        self.out = DataSize::ZERO;
        self.busy = None;
    }

    fn window(&self) -> DataSize {
        self.rate() * (self.rtt() + QUEUE)
    }

    fn rtt(&self) -> Duration {
        self.road.rtt.unwrap_or(RTT)
    }
}

/// What an answer of so many bytes in so many ranges takes of a link.
pub(super) fn cost(bytes: u64, ranges: u64) -> DataSize {
    // 52 bytes of headers to 1448 of a segment.
    DataSize::from_bytes(bytes + bytes / 27 + ranges * PART)
}

fn bits(bytes: DataSize, time: Duration) -> Bitrate {
    let nanos = time.as_nanos().max(1);
    Bitrate::from_bits_per_sec(u64::try_from(u128::from(bytes.bytes()) * 8_000_000_000 / nanos).unwrap_or(u64::MAX))
}

/// chosen: below what a 3G link brings, above what it needs at 1 % of loss and 20 Mbit/s (facts C: 0.22 Mbit/s).
const UNKNOWN: Bitrate = Bitrate::from_bits_per_sec(500_000);
/// chosen: a fifth of the link that the floors are about.
const UNKNOWN_PRIMARY: Bitrate = Bitrate::from_mbps(4);
/// chosen: a cellular link's round trip (the floors' 150 ms).
const RTT: Duration = Duration::from_millis(150);
/// What nginx writes around one of several ranges: 110 to 130 bytes; a head of its own has about 300.
const PART: u64 = 130;
/// chosen: bytes after which a rate is taken; at 900 kbit/s 0.3 s.
const SAMPLE: DataSize = DataSize::from_kib(32);
/// chosen: after something was late, so long only one question at a time.
const SULK: Duration = Duration::from_secs(1);
/// chosen: one question for what a blackout has cost.
const BULK_MOST: u64 = 256 * 1024;
