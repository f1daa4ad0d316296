//! The marline policy: which bytes are requested on which connection, and when.
//!
//! 1. A connection gets a request when its bytes in flight fall below [`Conn::target_in_flight`], so that it never
//!    idles. The connection that runs empty first is served first.
//! 2. A request covers a batch (60 to 300 ms of the connection's rate), but at most the connection's quota of the
//!    remaining bytes ([`super::water_filling`]). Near the end the quotas shrink until all connections finish together.
//! 3. Bytes are requested from the front. So an in-order reader never waits for bytes that nothing has requested, and
//!    no request reaches beyond the reader's window.
//! 4. When all bytes are in flight, the ranges of stalled links are requested again, and [`super::endgame`] duplicates
//!    the ranges of stragglers.
//!
//! Ranges of a fixed size were rejected. Small ones cost a request each (and servers close connections after a thousand
//! requests); with large ones the download waits for a slow link to finish its last one.

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
    /// Sends all requests that are due.
    pub(super) fn schedule(&mut self) {
        self.resolve_pending();
        match self.phase {
            Phase::Unknown => self.schedule_probes(),
            Phase::Ranges => self.schedule_ranges(),
            Phase::SingleResponse { req: None } => self.send_single_request(),
            Phase::SingleResponse { .. } | Phase::Finished => {}
        }
    }

    /// While the resource is not identified, every idle connection requests the next few bytes (the initial request).
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

    /// When an idle connection may send its initial request; none: not at all.
    fn next_probe_at(&self, conn: &Conn) -> Option<Instant> {
        let link = self.links.get(&conn.link)?;
        let free = conn.accepts_requests() && conn.reqs.is_empty() && self.is_link_allowed(conn.link);
        // A pending response from this link already contains all that it can report.
        let free = free && !self.has_pending_response(conn.link);
        // On a stalled or probed link, backoff applies to opening connections; an open one sends its request at once.
        let is_immediate = matches!(link.state, LinkState::Stalled { .. } | LinkState::Probing);
        free.then_some(if is_immediate { self.now } else { link.next_attempt })
    }

    /// Requests the whole resource, without a Range field, on an idle connection of the chosen link.
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

    /// Fills all connections below their target, then reviews the number of connections, or runs the endgame if nothing
    /// is left to request.
    ///
    /// Each pass picks one connection and sends at most one request. The forecasts are computed anew in each pass,
    /// since a request changes them.
    fn schedule_ranges(&mut self) {
        if self.send_full_request() {
            return;
        }
        // First, because the first response may take over bytes of failed requests or give up its own.
        self.update_first_response();
        let mut skipped: Vec<ConnId> = Vec::new();
        while let Some(id) = self.emptiest_conn(&skipped) {
            let free = self.coverage.free_bytes(self.window_end()) + self.divisible_range().len();
            if free.is_zero() {
                // Only now, with nothing else to request: most stalls end, and then the link delivers its bytes itself.
                if self.release_stalled() {
                    continue;
                }
                break;
            }
            let Some(range) = self.next_range(id, free) else {
                // The others deliver the remaining bytes sooner.
                skipped.push(id);
                continue;
            };
            // The range may come from the end of the first response. Shrink that before the new claim.
            self.shrink_first_response(range);
            if !self.send_request(id, RequestRange::Bounded(range)) {
                // No token or no budget.
                skipped.push(id);
            }
        }
        if self.coverage.free_bytes(u64::MAX).is_zero() && self.divisible_range().is_empty() {
            self.endgame();
        } else {
            self.review_conn_counts();
        }
    }

    /// The connection below its target whose bytes in flight last for the shortest time.
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

    /// Whether a connection may get requests for ranges, as far as its link and its history are concerned.
    pub(super) fn can_serve_ranges(&self, conn: &Conn) -> bool {
        let Some(link) = self.links.get(&conn.link) else { return false };
        let is_unused = conn.reqs.is_empty() && conn.rate_window.total().is_zero();
        let is_ready = match link.state {
            // Until its first byte arrives, a connection gets one request only: the response may be unusable.
            LinkState::Up => {
                !conn.rate_window.total().is_zero() || conn.reqs.is_empty() || self.is_first_chunk_pending(conn)
            }
            // A stalled or banned link is tested by new connections with one request each.
            LinkState::Stalled { .. } | LinkState::Probing => is_unused,
            LinkState::Banned { .. } | LinkState::Down => false,
        };
        conn.accepts_requests() && is_ready && self.is_link_allowed(conn.link) && !self.carries_first_response(conn)
    }

    /// Whether only the first chunk is in flight on a connection. If the resource is known from an earlier run, the
    /// response holds no surprise, and the bytes behind the chunk may be requested at once.
    fn is_first_chunk_pending(&self, conn: &Conn) -> bool {
        self.config.resume.is_some() && conn.reqs.len() == 1 && self.in_flight(conn) <= FIRST_CHUNK
    }

    /// End of the bytes that may be requested: of the reader's window, if there is one.
    pub(super) fn window_end(&self) -> u64 {
        self.config.reader_window.map_or(u64::MAX, |window| self.consumed.saturating_add(window.bytes()))
    }

    /// Forecast of a connection: its mean rate over the next `horizon`, and when a new request would begin to deliver.
    pub(super) fn conn_forecast(&self, conn: &Conn, horizon: Duration) -> ConnForecast {
        let current = conn.expected_rate(self.now);
        // If the server closes connections after a few responses, every connection is new and has no rate. The link's
        // rate is the best estimate; with none, requests would stay at the small initial size forever.
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
        // The end of the first response may be taken over by other requests, so it counts as free, not as in flight.
        let divisible =
            if self.carries_first_response(conn) { self.divisible_range().len() } else { DataSize::ZERO };
        ConnForecast::new(
            rate,
            self.in_flight(conn) - divisible,
            conn.min_rtt(),
            conn.server_delay_for(self.unanswered(conn) + 1),
        )
    }

    /// Rate that a connection in slow start may reach. Unknown, but the other connections show what is usual. A
    /// connection that is in slow start itself counts with two more doublings.
    fn fastest_rate(&self) -> Bitrate {
        let potential_rate =
            |conn: &Conn| conn.expected_rate(self.now) * if conn.in_slow_start(self.now) { 4 } else { 1 };
        self.conns.values().map(potential_rate).max().unwrap_or_default()
    }

    /// Time until the download is complete if all connections keep their forecast rates and `free` bytes are
    /// unrequested.
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
        // The finish time depends on the rates, and the rates in slow start on the time over which they are averaged. A
        // second iteration of this fixed point is accurate enough.
        finish(finish(Duration::ZERO).min(LONG_REMAINING))
    }

    /// The next range for this connection; none: the other connections deliver the bytes sooner, or its budget is used
    /// up.
    ///
    /// First the size: as much as in-flight target, batch and server delay ask for, but at most the water-filling
    /// quota. Then corrections: no remainder too small to be requested, budget, reader. Finally the position: the first
    /// free bytes, or the end of the first response.
    fn next_range(&self, id: ConnId, free: DataSize) -> Option<ByteRange> {
        let conn = self.conns.get(&id)?;
        let finish = self.time_left(free);
        let forecast = self.conn_forecast(conn, finish.min(LONG_REMAINING));
        let size = if forecast.rate.is_zero() {
            // The rate is unknown. Try the connection, unless the download ends before its second burst arrives.
            if finish < conn.min_rtt() * 3 {
                return None;
            }
            INITIAL_RANGE
        } else {
            // How long the request should last at the forecast rate.
            let batch = match () {
                () if self.is_short_lived(conn) => SHORT_LIVED_BATCH,
                // Without pipelining, each response is followed by an idle RTT: that should be a small part of the
                // time.
                () if self.is_serial(conn) => conn.rtt() * DELAY_FACTOR,
                () if finish > LONG_REMAINING && !conn.in_slow_start(self.now) => LONG_BATCH,
                () => SHORT_BATCH,
            };
            let wanted = (conn.target_in_flight(self.now) - self.in_flight(conn))
                .max(forecast.rate * batch)
                .max(MIN_REQUEST);
            // The server delay, too, should be a small part of the time that a response takes.
            let wanted = wanted.max(forecast.rate * (conn.server_delay() * self.delay_factor(conn.link)));
            let quota = water_filling::quota(forecast, finish);
            // A quota too small for a request is left to the others; they finish just as soon. An idle connection takes
            // a minimal request all the same.
            if quota < MIN_REQUEST && !self.in_flight(conn).is_zero() {
                return None;
            }
            wanted.min(quota.max(MIN_REQUEST))
        };
        // A tiny remainder would cost another request and another server delay: take it along.
        let min_remainder = MIN_REQUEST.max(forecast.rate * conn.server_delay());
        let size = if free - size < min_remainder { free } else { size };
        let size = size.min(self.budget_left(conn.link));
        if size.is_zero() {
            return None;
        }
        // The rate in slow start is a guess. A large range at the front could make the in-order reader wait, so only
        // the target is requested.
        let size = if self.config.reader_window.is_some() && conn.in_slow_start(self.now) {
            size.min((conn.target_in_flight(self.now) - self.in_flight(conn)).max(INITIAL_RANGE))
        } else {
            size
        };
        let Some(gap) = self.coverage.next_free(0, self.window_end()) else {
            // Everything in the window is claimed: take the tail of the first response, from its end backwards.
            let end = self.divisible_range();
            let size = size.min(self.max_request(conn)).min(end.len());
            return Some(ByteRange::new(end.end - size.bytes(), end.end)).filter(|range| !range.is_empty());
        };
        // A reader that waits for the very next byte of a known resource gets a small first chunk; see FIRST_CHUNK.
        let reader_waits =
            self.config.reader_window.is_some() && self.config.resume.is_some() && gap.start == self.consumed;
        let size = if reader_waits && forecast.rate.is_zero() && conn.reqs.is_empty() {
            size.min(FIRST_CHUNK)
        } else {
            size
        };
        Some(ByteRange::at(gap.start, gap.len().min(size)))
    }

    /// How many server delays a request should last. More on a single link, where large ranges delay no other link.
    fn delay_factor(&self, id: LinkId) -> u32 {
        let others = self.links.iter().any(|(other, link)| *other != id && self.is_usable(*other, link));
        if others { DELAY_FACTOR } else { DELAY_FACTOR_ONLY_LINK }
    }

    /// Frees the ranges of all stalled links for others. Returns whether there were any.
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

    /// Reviews the number of connections of each link (`parallelism`): retires surplus ones and opens missing ones.
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

    /// Measurements of a link for `parallelism`; none if it is not up or none of its connections has delivered.
    pub(super) fn observe_link(&self, id: LinkId, left: Duration) -> Option<LinkObservation> {
        let link = self.links.get(&id)?;
        if link.state != LinkState::Up || link.conns.is_empty() {
            return None;
        }
        let live = || self.conns_of(link).filter(|conn| !conn.is_draining && !conn.rate_window.total().is_zero());
        let min_rtt = live().map(Conn::min_rtt).min()?;
        let window = (min_rtt * 8).clamp(Duration::from_millis(400), Duration::from_millis(1000));
        Some(LinkObservation {
            in_slow_start: live().any(|c| c.in_slow_start(self.now)),
            has_recent_loss: live().any(|c| c.has_recent_loss(self.now)),
            past_slow_start: self
                .conns_of(link)
                .all(|c| !c.rate_window.total().is_zero() && !c.in_slow_start(self.now)),
            delivering: live().count() as u32,
            rate: live().map(|c| c.rate_window.rate(c.transfer_clock(self.now), window)).sum::<Bitrate>(),
            min_rtt,
            rtt: live().map(Conn::latest_rtt).min()?,
            time_left: left,
        })
    }

    /// Retires the newest `count` connections of a link: they get no more requests and are closed when they are empty.
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

/// Whether a connection may carry one more request ([`MAX_REQUESTS`]).
pub(super) fn has_request_slot(conn: &Conn) -> bool {
    conn.reqs.len() < MAX_REQUESTS
}

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
/// With more time left than this, requests cover longer batches.
const LONG_REMAINING: Duration = Duration::from_secs(4);
/// Time that a request lasts at the connection's rate: far from the end of the download, and near it.
const LONG_BATCH: Duration = Duration::from_millis(300);
const SHORT_BATCH: Duration = Duration::from_millis(60);
/// The same if connections last for a few responses only. chosen: ten handshakes of a slow path.
const SHORT_LIVED_BATCH: Duration = Duration::from_secs(3);
/// Window over which the link's rate is taken as the estimate for its next connection.
const SHORT_LIVED_WINDOW: Duration = Duration::from_secs(2);
/// Time that a request lasts, in server delays (or RTTs without pipelining): with other usable links, and without.
const DELAY_FACTOR: u32 = 10;
const DELAY_FACTOR_ONLY_LINK: u32 = 40;
