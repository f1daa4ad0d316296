//! The marline policy: which bytes are requested on which connection, and when.
//!
//! 1. A connection gets a request when its bytes in flight fall below [`Conn::target_in_flight`], so that it never
//!    idles. The connection that runs empty first is served first.
//! 2. A request covers what the connection delivers in 300 ms (60 ms in slow start, and in the last four seconds); more
//!    if its target, or the server's delay or limits, require it, but at most the connection's quota of the remaining bytes
//!    ([`super::water_filling`]). Near the end the quotas shrink until all connections finish together.
//! 3. Bytes are requested from the front. So an in-order reader never waits for bytes that nothing has requested, and
//!    no request reaches beyond the reader's window.
//! 4. When all bytes are in flight, the ranges of stalled links are requested again, and [`super::endgame`] duplicates
//!    the ranges of stragglers.
//!
//! Ranges of a fixed size were rejected. Small ones cost a request each (and servers close connections after a thousand
//! requests); with large ones the download waits for a slow link to finish its last one.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::{Conn, FIRST_CHUNK, INITIAL_RANGE, MIN_REQUEST};
use super::forecast::LONG_REMAINING;
use super::link::{Link, LinkState};
use super::parallelism::LinkObservation;
use super::refusals::SMALL_RANGE;
use super::resource::{InitialRequest, Phase};
use super::transfers::Transfers;
use super::{
    ByteRange, ConnId, RequestRange, TimerReason, endgame, first_request, forecast, link_health, refusals,
    single_response, water_filling,
};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// Sends all requests that are due.
pub(super) fn schedule(transfers: &mut Transfers) {
    match transfers.resource.phase {
        Phase::Unknown => schedule_probes(transfers),
        Phase::Ranges => schedule_ranges(transfers),
        Phase::SingleResponse { req: None } => send_single_request(transfers),
        Phase::SingleResponse { .. } | Phase::Finished => {}
    }
}

/// While the resource is not identified, every idle connection requests the next few bytes (the initial request).
pub(super) fn schedule_probes(transfers: &mut Transfers) {
    let ready: Vec<(ConnId, Instant)> =
        transfers.conns.iter().filter_map(|(id, conn)| Some((*id, next_probe_at(transfers, conn)?))).collect();
    for (id, at) in ready {
        if transfers.now < at {
            transfers.set_timer(at, TimerReason::Retry);
        } else if !refusals::send_without_range(transfers, id) && !first_request::request_all(transfers, id) {
            let until =
                transfers.conns.get(&id).and_then(|conn| first_request::first_response_deadline(transfers, conn));
            match (until, probe_range(transfers)) {
                (Some(until), _) => transfers.set_timer(until, TimerReason::Retry),
                (None, Some(range)) => {
                    transfers.send_request(id, RequestRange::Bounded(range));
                }
                (None, None) => {}
            }
        }
    }
}

/// When an idle connection may send its initial request; none: not at all.
fn next_probe_at(transfers: &Transfers, conn: &Conn) -> Option<Instant> {
    let link = transfers.links.get(&conn.link)?;
    let free = conn.accepts_requests() && conn.reqs.is_empty() && transfers.is_link_allowed(conn.link);
    // A pending response from this link already contains all that it can report.
    let free = free && !transfers.resource.pending.holds_link(conn.link);
    // On a stalled or probed link, backoff applies to opening connections; an open one sends its request at once.
    let is_immediate = matches!(link.state, LinkState::Stalled { .. } | LinkState::Probing);
    free.then_some(if is_immediate { transfers.now } else { link.next_attempt })
}

/// Requests the whole resource, without a Range field, on an idle connection of the chosen link.
pub(super) fn send_single_request(transfers: &mut Transfers) {
    let only = link_health::only_link(transfers);
    let first = transfers.conns.iter().find(|(_, conn)| {
        conn.accepts_requests() && conn.reqs.is_empty() && only.is_none_or(|only| only == conn.link)
    });
    if let Some(id) = first.map(|(id, _)| *id)
        && transfers.send_request(id, RequestRange::Full)
    {
        transfers.resource.phase = Phase::SingleResponse { req: transfers.reqs.keys().next_back().copied() };
    }
}

/// Fills all connections below their target, then reviews the number of connections, or runs the endgame if nothing
/// is left to request.
///
/// Each pass picks one connection and sends at most one request. The forecasts are computed again in each pass,
/// since a request changes them.
fn schedule_ranges(transfers: &mut Transfers) {
    if single_response::send_full_request(transfers) {
        return;
    }
    // First, because the first response may take over bytes of failed requests or give up its own.
    first_request::update_first_response(transfers);
    let mut skipped: Vec<ConnId> = Vec::new();
    while let Some(id) = emptiest_conn(transfers, &skipped) {
        let free = transfers.coverage.free_bytes(transfers.reader.window_end())
            + first_request::divisible_range(transfers).len();
        if free.is_zero() {
            // Only now, with nothing else to request: most stalls end, and then the link delivers its bytes itself.
            if release_stalled(transfers) {
                continue;
            }
            break;
        }
        let Some(range) = next_range(transfers, id, free) else {
            // The others deliver the remaining bytes sooner.
            skipped.push(id);
            continue;
        };
        // The range may come from the end of the first response. Shrink that before the new claim.
        first_request::shrink_first_response(transfers, range);
        if !transfers.send_request(id, RequestRange::Bounded(range)) {
            // No token or no budget.
            skipped.push(id);
        }
    }
    if transfers.coverage.free_bytes(u64::MAX).is_zero() && first_request::divisible_range(transfers).is_empty() {
        endgame::duplicate_stragglers(transfers);
    } else {
        review_conn_counts(transfers);
    }
}

/// The connection below its target whose bytes in flight last for the shortest time.
fn emptiest_conn(transfers: &Transfers, skipped: &[ConnId]) -> Option<ConnId> {
    let candidates = transfers.conns.iter().filter(|(id, conn)| {
        let is_below_target = || transfers.in_flight(conn) < conn.target_in_flight(transfers.now);
        !skipped.contains(id)
            && forecast::can_serve_ranges(transfers, conn)
            && conn.has_request_slot()
            && transfers.quirks.may_pipeline(conn)
            && is_below_target()
    });
    candidates
        .min_by_key(|(_, conn)| transfers.in_flight(conn) / conn.expected_rate(transfers.now))
        .map(|(id, _)| *id)
}

/// The next range for this connection; none: the other connections deliver the bytes sooner, or its budget is used
/// up.
///
/// First the size: as much as in-flight target, batch (the time that the request should last) and server delay require,
/// but at most the water-filling quota. Then corrections: no remainder too small to be requested, budget, reader.
/// Finally the position: the first free bytes, or the end of the first response.
fn next_range(transfers: &Transfers, id: ConnId, free: DataSize) -> Option<ByteRange> {
    let conn = transfers.conns.get(&id)?;
    let finish = forecast::time_left(transfers, free);
    let forecast = forecast::conn_forecast(transfers, conn, finish.min(LONG_REMAINING));
    let size = if forecast.rate.is_zero() {
        // The rate is unknown. Try the connection, unless the download ends before its second burst arrives.
        if finish < conn.min_rtt() * 3 {
            return None;
        }
        INITIAL_RANGE
    } else {
        // How long the request should last at the forecast rate.
        let batch = match () {
            () if transfers.quirks.is_short_lived(conn) => SHORT_LIVED_BATCH,
            // Without pipelining, each response is followed by an idle RTT: that should be a small part of the
            // time.
            () if transfers.quirks.is_serial(conn) => conn.rtt() * DELAY_FACTOR,
            () if finish > LONG_REMAINING && !conn.in_slow_start(transfers.now) => LONG_BATCH,
            () => SHORT_BATCH,
        };
        let wanted = (conn.target_in_flight(transfers.now) - transfers.in_flight(conn))
            .max(forecast.rate * batch)
            .max(MIN_REQUEST);
        // The server delay, too, should be a small part of the time that a response takes.
        let wanted = wanted.max(forecast.rate * (conn.server_delay() * delay_factor(transfers, conn.link)));
        let quota = water_filling::quota(forecast, finish);
        // A quota too small for a request is left to the others; they finish just as soon. An idle connection takes
        // a minimal request all the same.
        if quota < MIN_REQUEST && !transfers.in_flight(conn).is_zero() {
            return None;
        }
        wanted.min(quota.max(MIN_REQUEST))
    };
    // A tiny remainder would cost another request and another server delay: take it along.
    let min_remainder = MIN_REQUEST.max(forecast.rate * conn.server_delay());
    let size = if free - size < min_remainder { free } else { size };
    let size = size.min(transfers.budget_left(conn.link));
    if size.is_zero() {
        return None;
    }
    // The rate in slow start is a guess. A large range at the front could make the in-order reader wait, so only
    // the target is requested.
    let size = if transfers.reader.is_present() && conn.in_slow_start(transfers.now) {
        size.min((conn.target_in_flight(transfers.now) - transfers.in_flight(conn)).max(INITIAL_RANGE))
    } else {
        size
    };
    let Some(gap) = transfers.coverage.next_free(0, transfers.reader.window_end()) else {
        // Everything in the window is claimed: take the tail of the first response, from its end backwards.
        let end = first_request::divisible_range(transfers);
        let size = size.min(transfers.quirks.max_request(conn)).min(end.len());
        return Some(ByteRange::new(end.end - size.bytes(), end.end)).filter(|range| !range.is_empty());
    };
    // A reader that waits for the very next byte of a known resource gets a small first chunk; see FIRST_CHUNK.
    let reader_waits = transfers.reader.is_present()
        && transfers.config.resume.is_some()
        && gap.start == transfers.reader.position();
    let size =
        if reader_waits && forecast.rate.is_zero() && conn.reqs.is_empty() { size.min(FIRST_CHUNK) } else { size };
    Some(ByteRange::at(gap.start, gap.len().min(size)))
}

/// How many server delays a request should last. More on a single link, where large ranges delay no other link.
fn delay_factor(transfers: &Transfers, id: LinkId) -> u32 {
    let others = transfers.links.iter().any(|(other, _)| *other != id && transfers.is_usable(*other));
    if others { DELAY_FACTOR } else { DELAY_FACTOR_ONLY_LINK }
}

/// Frees the ranges of all stalled links for others. Returns whether there were any.
fn release_stalled(transfers: &mut Transfers) -> bool {
    let stalled = |(id, link): (&LinkId, &Link)| match link.state {
        LinkState::Stalled { .. } => Some(*id),
        _ => None,
    };
    let stalled: Vec<LinkId> = transfers.links.iter().filter_map(stalled).collect();
    let mut changed = false;
    for id in stalled {
        changed |= transfers.release_requests(id);
    }
    changed
}

/// Reviews the number of connections of each link (`parallelism`): retires surplus ones and opens missing ones.
fn review_conn_counts(transfers: &mut Transfers) {
    if transfers.config.max_connections <= 1 {
        return;
    }
    let left = forecast::time_left(
        transfers,
        transfers.coverage.free_bytes(u64::MAX) + first_request::divisible_range(transfers).len(),
    );
    let observations: Vec<(LinkId, LinkObservation)> = transfers
        .links
        .keys()
        .filter_map(|id| Some((*id, forecast::observe_link(transfers, *id, left)?)))
        .collect();
    for (id, observation) in observations {
        let Some(link) = transfers.links.get_mut(&id) else { continue };
        let max = transfers.config.max_connections.min(link.max_connections());
        let before = link.conn_count.target;
        link.conn_count.review(transfers.now, observation, max);
        let (wanted, due) = (link.conn_count.target, link.conn_count.next_review_at(transfers.now));
        if wanted < before {
            transfers.retire_conns(id, (before - wanted) as usize);
        } else if wanted > before {
            link_health::open_connections(transfers);
        }
        transfers.set_timer(due, TimerReason::ConnCount);
    }
}

/// The range for an initial request: the next unrequested bytes. Limited to this link's part of the reader's
/// window, because a connection with more would wait for the others.
pub(super) fn probe_range(transfers: &Transfers) -> Option<ByteRange> {
    let free = transfers.coverage.next_free(0, transfers.reader.window_end())?;
    let window_share =
        transfers.reader.window().map_or(DataSize::MAX, |window| window / (transfers.links.len() as u64).max(1));
    let first = match transfers.resource.initial_request {
        InitialRequest::Range => INITIAL_RANGE,
        InitialRequest::SmallRange => SMALL_RANGE,
    };
    Some(ByteRange::at(free.start, free.len().min(first).min(window_share.max(MIN_REQUEST))))
}

/// Time that a request lasts at the connection's rate: far from the end of the download, and near it or in slow start.
const LONG_BATCH: Duration = Duration::from_millis(300);
const SHORT_BATCH: Duration = Duration::from_millis(60);
/// The same if connections last for a few responses only. Our choice: ten handshakes of a slow path.
const SHORT_LIVED_BATCH: Duration = Duration::from_secs(3);
/// Time that a request lasts, in server delays (or RTTs without pipelining): with other usable links, and without.
const DELAY_FACTOR: u32 = 10;
const DELAY_FACTOR_ONLY_LINK: u32 = 40;
