//! Forecasts of connections: which of them may serve ranges, at what rate, and when the download will be complete.
//!
//! These are the figures on which the scheduler, the endgame and the review of the number of connections decide. They
//! are computed again for each decision, since each request changes them.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::{Conn, FIRST_CHUNK};
use super::link::LinkState;
use super::parallelism::LinkObservation;
use super::transfers::Transfers;
use super::water_filling::ConnForecast;
use super::{first_request, water_filling};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// Whether a connection may get requests for ranges, as far as its link and its history are concerned.
pub(super) fn can_serve_ranges(transfers: &Transfers, conn: &Conn) -> bool {
    let Some(link) = transfers.links.get(&conn.link) else { return false };
    let is_unused = conn.reqs.is_empty() && conn.rate_window.total().is_zero();
    let is_ready = match link.state {
        // Until its first byte arrives, a connection gets one request only: the response may be unusable.
        LinkState::Up => {
            !conn.rate_window.total().is_zero() || conn.reqs.is_empty() || is_first_chunk_pending(transfers, conn)
        }
        // A stalled or banned link is tested by new connections with one request each.
        LinkState::Stalled { .. } | LinkState::Probing => is_unused,
        LinkState::Banned { .. } | LinkState::Down => false,
    };
    conn.accepts_requests()
        && is_ready
        && transfers.is_link_allowed(conn.link)
        && !first_request::carries_first_response(transfers, conn)
}

/// Whether only the first chunk is in flight on a connection. If the resource is known from an earlier run, the
/// response holds no surprise, and the bytes behind the chunk may be requested at once.
fn is_first_chunk_pending(transfers: &Transfers, conn: &Conn) -> bool {
    transfers.config.resume.is_some() && conn.reqs.len() == 1 && transfers.in_flight(conn) <= FIRST_CHUNK
}

/// Forecast of a connection: its mean rate over the next `horizon`, and when a new request would begin to deliver.
pub(super) fn conn_forecast(transfers: &Transfers, conn: &Conn, horizon: Duration) -> ConnForecast {
    let current = conn.expected_rate(transfers.now);
    // If the server closes connections after a few responses, every connection is new and has no rate. The link's
    // rate is the best estimate; with none, requests would stay at the small initial size forever.
    let current = match transfers.links.get(&conn.link) {
        Some(link) if current.is_zero() && transfers.quirks.is_short_lived(conn) => {
            transfers.link_rate(link, SHORT_LIVED_WINDOW)
        }
        _ => current,
    };
    let rate = if conn.in_slow_start(transfers.now) {
        water_filling::slow_start_rate(current, fastest_rate(transfers), conn.min_rtt(), horizon)
    } else {
        current
    };
    // The end of the first response may be taken over by other requests, so it counts as free, not as in flight.
    let divisible = if first_request::carries_first_response(transfers, conn) {
        first_request::divisible_range(transfers).len()
    } else {
        DataSize::ZERO
    };
    ConnForecast::new(
        rate,
        transfers.in_flight(conn) - divisible,
        conn.min_rtt(),
        conn.server_delay_for(transfers.unanswered(conn) + 1),
    )
}

/// Rate that a connection in slow start may reach. Unknown, but the other connections show what is usual. A
/// connection that is in slow start itself counts with two more doublings.
fn fastest_rate(transfers: &Transfers) -> Bitrate {
    let potential_rate =
        |conn: &Conn| conn.expected_rate(transfers.now) * if conn.in_slow_start(transfers.now) { 4 } else { 1 };
    transfers.conns.values().map(potential_rate).max().unwrap_or_default()
}

/// Time until the download is complete if all connections keep their forecast rates and `free` bytes are
/// unrequested.
pub(super) fn time_left(transfers: &Transfers, free: DataSize) -> Duration {
    let finish = |horizon| {
        let forecasts: Vec<ConnForecast> = transfers
            .conns
            .values()
            .filter(|c| can_serve_ranges(transfers, c) || first_request::carries_first_response(transfers, c))
            .map(|c| conn_forecast(transfers, c, horizon))
            .collect();
        water_filling::finish_time(&forecasts, free)
    };
    // The finish time depends on the rates, and the rates in slow start on the time over which they are averaged. A
    // second iteration of this fixed point is accurate enough.
    finish(finish(Duration::ZERO).min(LONG_REMAINING))
}

/// Measurements of a link for `parallelism`; none if it is not up or none of its connections has delivered.
pub(super) fn observe_link(transfers: &Transfers, id: LinkId, left: Duration) -> Option<LinkObservation> {
    let link = transfers.links.get(&id)?;
    if link.state != LinkState::Up || link.conns.is_empty() {
        return None;
    }
    let live = || transfers.conns_of(link).filter(|conn| !conn.is_draining && !conn.rate_window.total().is_zero());
    let min_rtt = live().map(Conn::min_rtt).min()?;
    let window = (min_rtt * 8).clamp(Duration::from_millis(400), Duration::from_millis(1000));
    Some(LinkObservation {
        in_slow_start: live().any(|c| c.in_slow_start(transfers.now)),
        has_recent_loss: live().any(|c| c.has_recent_loss(transfers.now)),
        past_slow_start: transfers
            .conns_of(link)
            .all(|c| !c.rate_window.total().is_zero() && !c.in_slow_start(transfers.now)),
        delivering: live().count() as u32,
        rate: live().map(|c| c.rate_window.rate(c.transfer_clock(transfers.now), window)).sum::<Bitrate>(),
        min_rtt,
        rtt: live().map(Conn::latest_rtt).min()?,
        time_left: left,
    })
}

/// Forecasts look no further ahead than this. With more time left, each request lasts longer (`scheduler`).
pub(super) const LONG_REMAINING: Duration = Duration::from_secs(4);
/// Time over which the link's rate is taken as the estimate for its next connection.
const SHORT_LIVED_WINDOW: Duration = Duration::from_secs(2);
