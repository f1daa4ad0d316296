//! The marline policy: which bytes are asked for on which connection, and when.
//!
//! In: the books, and each connection's pace, round trip and bytes on the way. Out: requests.
//!
//! 1. A connection gets a request when its bytes on the way fall below what its pipe holds ([`Conn::wanted_ahead`]).
//!    The neediest comes first.
//! 2. A request is as large as a batch of its link's time, and never larger than the connection's share of what is
//!    left ([`super::level`]); towards the end the shares shrink by themselves until all end together.
//! 3. Bytes are taken from the front: the in-order reader, if there is one, never waits for a gap nobody asked for,
//!    and a run with a window never asks beyond it.
//! 4. When everything is on its way, the bytes of silent links are asked for again, and [`super::tail`] looks after
//!    connections that lag.
//!
//! Fixed pieces were not used: small ones pay a request each (and servers end connections after a thousand), large ones
//! leave a slow link alone with the last one.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::{Conn, INITIAL_RANGE};
use super::links::{Link, LinkState};
use super::parallelism::LinkObservation;
use super::water_filling::{self, ConnForecast};
use super::{ByteRange, ConnId, Fetch, Phase, RequestRange, TimerReason};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Instant};

impl Fetch {
    /// Sends what should be sent now.
    pub(super) fn schedule(&mut self) {
        self.resolve_pending();
        match self.phase {
            Phase::Unknown => self.schedule_probes(),
            Phase::Ranges => self.schedule_ranges(),
            Phase::SingleResponse { req: None } => self.send_single_request(),
            Phase::SingleResponse { .. } | Phase::Finished => {}
        }
    }

    /// Before the resource is known every connection asks for the next few bytes.
    pub(super) fn schedule_probes(&mut self) {
        let ready: Vec<(ConnId, Instant)> =
            self.conns.iter().filter_map(|(id, conn)| Some((*id, self.next_probe_at(conn)?))).collect();
        for (id, at) in ready {
            if self.now < at {
                self.set_timer(at, TimerReason::Retry);
            } else if !self.send_without_range(id) && !self.request_all(id) {
                let until = self.conns.get(&id).and_then(|conn| self.first_response_deadline(conn));
                match (until, self.probe_range()) {
                    (Some(until), _) => self.set_timer(until, TimerReason::Retry),
                    (None, Some(range)) => {
                        self.send_request(id, RequestRange::Bounded(range));
                    }
                    (None, None) => {}
                }
            }
        }
    }

    fn next_probe_at(&self, conn: &Conn) -> Option<Instant> {
        let link = self.links.get(&conn.link)?;
        let free = conn.accepts_requests() && conn.reqs.is_empty() && self.is_link_allowed(conn.link);
        // One answer that waits for another link's opinion says all that this link can say.
        let free = free && !self.has_pending_response(conn.link);
        // The next try of a silent link is its next connection's; what stands already is asked at once.
        let is_immediate = matches!(link.state, LinkState::Stalled { .. } | LinkState::Probing);
        free.then_some(if is_immediate { self.now } else { link.next_attempt })
    }

    pub(super) fn send_single_request(&mut self) {
        let only = self.only_link();
        let first = self.conns.iter().find(|(_, conn)| {
            conn.accepts_requests() && conn.reqs.is_empty() && only.is_none_or(|only| only == conn.link)
        });
        if let Some(id) = first.map(|(id, _)| *id)
            && self.send_request(id, RequestRange::Full)
        {
            self.phase = Phase::SingleResponse { req: self.reqs.keys().next_back().copied() };
        }
    }

    fn schedule_ranges(&mut self) {
        if self.send_full_request() {
            return;
        }
        self.update_first_response();
        let mut skipped: Vec<ConnId> = Vec::new();
        while let Some(id) = self.emptiest_conn(&skipped) {
            let free = self.coverage.free_bytes(self.window_end()) + self.divisible_range().len();
            if free.is_zero() {
                if self.release_stalled() {
                    continue;
                }
                break;
            }
            let Some(range) = self.next_range(id, free) else {
                skipped.push(id);
                continue;
            };
            self.shrink_first_response(range);
            if !self.send_request(id, RequestRange::Bounded(range)) {
                skipped.push(id);
            }
        }
        if self.coverage.free_bytes(u64::MAX).is_zero() && self.divisible_range().is_empty() {
            self.endgame();
        } else {
            self.review_conn_counts();
        }
    }

    /// The connection whose pipe runs dry first, if one needs a request now.
    fn emptiest_conn(&self, skipped: &[ConnId]) -> Option<ConnId> {
        let candidates = self.conns.iter().filter(|(id, conn)| {
            let is_below_target = || self.in_flight(conn) < conn.target_in_flight(self.now);
            !skipped.contains(id)
                && self.can_serve_ranges(conn)
                && has_request_slot(conn)
                && self.may_pipeline(conn)
                && is_below_target()
        });
        candidates.min_by_key(|(_, conn)| self.in_flight(conn) / conn.expected_rate(self.now)).map(|(id, _)| *id)
    }

    /// Whether a connection may be given requests for ranges.
    pub(super) fn can_serve_ranges(&self, conn: &Conn) -> bool {
        let Some(link) = self.links.get(&conn.link) else { return false };
        let is_unused = conn.reqs.is_empty() && conn.rate_window.total().is_zero();
        let is_ready = match link.state {
            LinkState::Up => {
                !conn.rate_window.total().is_zero() || conn.reqs.is_empty() || self.is_first_chunk_pending(conn)
            }
            LinkState::Stalled { .. } | LinkState::Probing => is_unused,
            LinkState::Banned { .. } | LinkState::Down => false,
        };
        conn.accepts_requests() && is_ready && self.is_link_allowed(conn.link) && !self.carries_first_response(conn)
    }

    /// Whether nothing but the first bite is on its way on a connection. Of a resource that is known already the answer is no
    /// surprise: what follows it may be asked for at once.
    fn is_first_chunk_pending(&self, conn: &Conn) -> bool {
        self.config.resume.is_some() && conn.reqs.len() == 1 && self.in_flight(conn) <= FIRST_CHUNK
    }

    /// The end of what may be asked for: of the window, or of everything.
    pub(super) fn window_end(&self) -> u64 {
        self.config.reader_window.map_or(u64::MAX, |window| self.consumed.saturating_add(window.bytes()))
    }

    /// A connection as it is to be expected over the next `horizon`.
    pub(super) fn conn_forecast(&self, conn: &Conn, horizon: Duration) -> ConnForecast {
        let current = conn.expected_rate(self.now);
        // Where each connection is new, its link's rate is the best guess; without one, nothing would ever be asked for
        // but the little that suits a connection of which nothing is known.
        let current = match self.links.get(&conn.link) {
            Some(link) if current.is_zero() && self.is_short_lived(conn) => {
                self.link_rate(link, SHORT_LIVED_WINDOW)
            }
            _ => current,
        };
        let rate = if conn.in_slow_start(self.now) {
            water_filling::slow_start_rate(current, self.fastest_rate(), conn.min_rtt(), horizon)
        } else {
            current
        };
        // What others may take from the end of the first response counts as free.
        let divisible =
            if self.carries_first_response(conn) { self.divisible_range().len() } else { DataSize::ZERO };
        ConnForecast::new(
            rate,
            self.in_flight(conn) - divisible,
            conn.min_rtt(),
            conn.server_delay_for(self.unanswered(conn) + 1),
        )
    }

    /// What a connection in slow start may reach: nobody knows, but the others show what is usual here. If they climb
    /// themselves, two more doublings are as likely as not.
    fn fastest_rate(&self) -> Bitrate {
        let potential_rate =
            |conn: &Conn| conn.expected_rate(self.now) * if conn.in_slow_start(self.now) { 4 } else { 1 };
        self.conns.values().map(potential_rate).max().unwrap_or_default()
    }

    /// Time until everything is there, if all go on as they do.
    pub(super) fn time_left(&self, free: DataSize) -> Duration {
        let finish = |horizon| {
            let forecasts: Vec<ConnForecast> = self
                .conns
                .values()
                .filter(|c| self.can_serve_ranges(c) || self.carries_first_response(c))
                .map(|c| self.conn_forecast(c, horizon))
                .collect();
            water_filling::finish_time(&forecasts, free)
        };
        // Slow starts shorten the time over which they are looked at; the second look is close enough.
        finish(finish(Duration::ZERO).min(LONG_REMAINING))
    }

    /// What this connection should ask for next; none: nothing, the others do it sooner.
    fn next_range(&self, id: ConnId, free: DataSize) -> Option<ByteRange> {
        let conn = self.conns.get(&id)?;
        let finish = self.time_left(free);
        let forecast = self.conn_forecast(conn, finish.min(LONG_REMAINING));
        let size = if forecast.rate.is_zero() {
            // Nothing is known of it. It is worth a try unless all is over before its second burst could come.
            if finish < conn.min_rtt() * 3 {
                return None;
            }
            INITIAL_RANGE
        } else {
            let batch = match () {
                () if self.is_short_lived(conn) => SHORT_LIVED_BATCH,
                // The round trip between two answers should be small beside what each brings.
                () if self.is_serial(conn) => conn.rtt() * DELAY_FACTOR,
                () if finish > LONG_REMAINING && !conn.in_slow_start(self.now) => LONG_BATCH,
                () => SHORT_BATCH,
            };
            let wanted = (conn.target_in_flight(self.now) - self.in_flight(conn))
                .max(forecast.rate * batch)
                .max(MIN_REQUEST);
            // The server's pause should be small beside what it brings.
            let wanted = wanted.max(forecast.rate * (conn.server_delay() * self.delay_factor(conn.link)));
            let quota = water_filling::quota(forecast, finish);
            // A share too small for a request of its own is left to the others, who are just as soon done.
            if quota < MIN_REQUEST && !self.in_flight(conn).is_zero() {
                return None;
            }
            wanted.min(quota.max(MIN_REQUEST))
        };
        // What is left would cost whoever asks for it a pause of its own.
        let min_remainder = MIN_REQUEST.max(forecast.rate * conn.server_delay());
        let size = if free - size < min_remainder { free } else { size };
        let size = size.min(self.budget_left(conn.link));
        if size.is_zero() {
            return None;
        }
        // Somebody reads along, and the pace of a connection's first burst is none: a long piece would hold all others up.
        let size = if self.config.reader_window.is_some() && conn.in_slow_start(self.now) {
            size.min((conn.target_in_flight(self.now) - self.in_flight(conn)).max(INITIAL_RANGE))
        } else {
            size
        };
        let Some(gap) = self.coverage.next_free(0, self.window_end()) else {
            let end = self.divisible_range();
            let size = size.min(self.max_request(conn)).min(end.len());
            return Some(ByteRange::new(end.end - size.bytes(), end.end)).filter(|range| !range.is_empty());
        };
        let reader_waits =
            self.config.reader_window.is_some() && self.config.resume.is_some() && gap.start == self.consumed;
        let size = if reader_waits && forecast.rate.is_zero() && conn.reqs.is_empty() {
            size.min(FIRST_CHUNK)
        } else {
            size
        };
        Some(ByteRange::at(gap.start, gap.len().min(size)))
    }

    /// How many times as long as its server thinks a request should last. Nobody else waits for the bytes of an only link.
    fn delay_factor(&self, id: LinkId) -> u32 {
        let others = self.links.iter().any(|(other, link)| *other != id && self.is_usable(*other, link));
        if others { DELAY_FACTOR } else { DELAY_FACTOR_ONLY_LINK }
    }

    /// Lets others have what silent links hold. Tells whether there was anything.
    fn release_stalled(&mut self) -> bool {
        let stalled = |(id, link): (&LinkId, &Link)| match link.state {
            LinkState::Stalled { .. } => Some(*id),
            _ => None,
        };
        let stalled: Vec<LinkId> = self.links.iter().filter_map(stalled).collect();
        let mut changed = false;
        for id in stalled {
            changed |= self.release(id);
        }
        changed
    }

    /// Looks at each link's number of connections.
    fn review_conn_counts(&mut self) {
        if self.config.max_connections <= 1 {
            return;
        }
        let left = self.time_left(self.coverage.free_bytes(u64::MAX) + self.divisible_range().len());
        let observations: Vec<(LinkId, LinkObservation)> =
            self.links.keys().filter_map(|id| Some((*id, self.observe_link(*id, left)?))).collect();
        for (id, observation) in observations {
            let Some(link) = self.links.get_mut(&id) else { continue };
            let max = self.config.max_connections.min(link.max_connections());
            let before = link.conn_count.target;
            link.conn_count.review(self.now, observation, max);
            let (wanted, due) = (link.conn_count.target, link.conn_count.next_review_at(self.now));
            if wanted < before {
                self.retire_conns(id, (before - wanted) as usize);
            } else if wanted > before {
                self.open_connections();
            }
            self.set_timer(due, TimerReason::ConnCount);
        }
    }

    pub(super) fn observe_link(&self, id: LinkId, left: Duration) -> Option<LinkObservation> {
        let link = self.links.get(&id)?;
        if link.state != LinkState::Up || link.conns.is_empty() {
            return None;
        }
        let live = || self.conns_of(link).filter(|conn| !conn.is_draining && !conn.rate_window.total().is_zero());
        let floor_rtt = live().map(Conn::min_rtt).min()?;
        let window = (floor_rtt * 8).clamp(Duration::from_millis(400), Duration::from_millis(1000));
        Some(LinkObservation {
            in_slow_start: live().any(|c| c.in_slow_start(self.now)),
            has_recent_loss: live().any(|c| c.has_recent_loss(self.now)),
            past_slow_start: self
                .conns_of(link)
                .all(|c| !c.rate_window.total().is_zero() && !c.in_slow_start(self.now)),
            delivering: live().count() as u32,
            rate: live().map(|c| c.rate_window.rate(c.transfer_clock(self.now), window)).sum::<Bitrate>(),
            min_rtt: floor_rtt,
            rtt: live().map(Conn::latest_rtt).min()?,
            time_left: left,
        })
    }

    /// The youngest connections of a link get no more requests and end when they are empty.
    pub(super) fn retire_conns(&mut self, id: LinkId, count: usize) {
        let Some(link) = self.links.get(&id) else { return };
        let newest: Vec<ConnId> = link.conns.iter().rev().take(count).copied().collect();
        for id in newest {
            match self.conns.get_mut(&id) {
                Some(conn) if conn.reqs.is_empty() => self.remove_conn(id, true),
                Some(conn) => conn.is_draining = true,
                None => {}
            }
        }
    }
}

/// Whether a connection may carry one more request.
pub(super) fn has_request_slot(conn: &Conn) -> bool {
    conn.reqs.len() < MAX_REQUESTS
}

/// Requests on one connection at a time: what a slow server does not answer must not pile up there.
/// chosen: no row of the reviewed tables moves, and servers allow 100 HTTP/2 streams (RFC 9113 §6.5.2).
const MAX_REQUESTS: usize = 32;
/// Smaller requests are not worth their head: about 500 bytes both ways.
pub(super) const MIN_REQUEST: DataSize = DataSize::from_kib(16);
/// What a reader that waits is brought first of a resource that is known: behind a full queue only the first packets of
/// a burst find room, and TLS gives nothing of a record before all of it is there, which most servers make of 16 KiB.
/// chosen: three packets with the head of the answer.
pub(crate) const FIRST_CHUNK: DataSize = DataSize::from_bytes(3000);
/// With more than this left, requests are sent for longer.
const LONG_REMAINING: Duration = Duration::from_secs(4);
/// What a request asks for, in time of its link: far from the end, and near it.
const LONG_BATCH: Duration = Duration::from_millis(300);
const SHORT_BATCH: Duration = Duration::from_millis(60);
/// The same where each answer costs a connection. chosen: ten handshakes of a slow path.
const SHORT_LIVED_BATCH: Duration = Duration::from_secs(3);
/// Over which time a link's rate is taken for what its next connection may carry.
const SHORT_LIVED_WINDOW: Duration = Duration::from_secs(2);
/// What a request lasts, in its server's pauses: beside other links, and alone.
const DELAY_FACTOR: u32 = 10;
const DELAY_FACTOR_ONLY_LINK: u32 = 40;
