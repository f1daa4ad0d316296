//! The initial request for the whole file (`bytes=0-`), and how its response shares the file with other requests.
//!
//! Some URLs are valid for one request only. Some servers answer a second request slowly, wrongly or not at all. The
//! response to `bytes=0-` is a range where ranges work, and a complete download where they do not. So if no other
//! request succeeds, this response is enough.
//!
//! 1. The first connection requests `bytes=0-`. Other connections wait for the head of its response: four handshake
//!    RTTs, between 150 ms and 1 s ([`HEAD_WAIT`]).
//! 2. Then other requests take ranges from the end of its range, and that end moves towards the front.
//! 3. The first response is cancelled when it reaches bytes that are stored or that another request covers. It
//!    continues over the bytes of another request if that has no response yet, or if it would deliver them clearly
//!    sooner ([`MIN_TIME_SAVED`]). With HTTP/1.1 the cancellation closes the connection, but by then the download is
//!    almost complete.
//! 4. If another request fails, the first response also delivers the bytes behind its own range, up to the next byte
//!    that is stored or requested.
//! 5. While the first response is running, failures of other requests on its link do not close its connection.
//!
//! A small first range was rejected here: if the server answers only that request, the download fails. Resumed
//! downloads, those with an in-order reader, and links with a data budget send one nevertheless.

use core::time::Duration;

use super::conn::{Conn, MIN_REQUEST, Req};
use super::resource::{InitialRequest, Phase};
use super::transfers::Transfers;
use super::{ByteRange, ConnId, Policy, ReqId, RequestRange, TimerReason};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// Whether the initial request may be `bytes=0-`: configured, nothing received yet, and no limit (window, budget,
/// external control) that an open-ended request would break.
fn may_request_all(transfers: &Transfers, link: LinkId) -> bool {
    transfers.config.open_ended_first
        && transfers.config.policy == Policy::Marline
        && !transfers.reader.is_present()
        && transfers.config.resume.is_none()
        && !transfers.has_owner()
        && transfers.resource.initial_request == InitialRequest::Range
        && transfers.coverage.received().is_zero()
        && transfers.budget_left(link) == DataSize::MAX
}

/// Sends the initial request for `bytes=0-` on this connection, if it is still due. Returns true if it was sent.
pub(super) fn request_all(transfers: &mut Transfers, conn: ConnId) -> bool {
    let Some(link) = transfers.conns.get(&conn).map(|conn| conn.link) else { return false };
    if !may_request_all(transfers, link)
        || !transfers.reqs.is_empty()
        || !transfers.send_request(conn, RequestRange::From(0))
    {
        return false;
    }
    let Some(id) = transfers.newest_request() else { return false };
    // A provisional end until the head arrives: after the wait, other connections may request the bytes behind it.
    transfers.set_request_end(id, super::conn::INITIAL_RANGE.bytes());
    transfers.resource.first_request = Some(id);
    true
}

/// The first request, while it has no response (not even a pending one).
fn pending_first(transfers: &Transfers) -> Option<&Req> {
    let req =
        transfers.resource.first_request.and_then(|id| transfers.reqs.get(&id)).filter(|req| !req.is_accepted)?;
    Some(req).filter(|req| !transfers.resource.pending.holds_conn(req.conn))
}

/// Until when other connections wait for the head of the first response.
pub(super) fn first_response_deadline(transfers: &Transfers, conn: &Conn) -> Option<Instant> {
    let req = pending_first(transfers)?;
    let first = transfers.conns.get(&req.conn).filter(|first| first.mirror == conn.mirror)?;
    let wait = (first.handshake_rtt * HEAD_WAIT_RTTS).clamp(HEAD_WAIT.0, HEAD_WAIT.1);
    Some(req.sent_at + wait).filter(|until| *until > transfers.now)
}

/// Whether a refusal of this request must be ignored for now. The first request has no response yet and may be the
/// only one that the server answers.
pub(super) fn should_ignore_refusal(transfers: &Transfers, id: ReqId) -> bool {
    let pending = pending_first(transfers);
    transfers.resource.first_request != Some(id)
        && pending.is_some_and(|req| req.sent_at + IGNORE_REFUSALS_FOR > transfers.now)
}

/// The first response, if it was accepted and is still running.
fn first_response(transfers: &Transfers) -> Option<(ReqId, &Req)> {
    let id = transfers.resource.first_request.filter(|_| transfers.resource.phase == Phase::Ranges)?;
    transfers.reqs.get(&id).filter(|req| req.is_accepted && !req.is_released).map(|req| (id, req))
}

/// Whether this is the first request.
pub(super) fn is_first_request(transfers: &Transfers, id: ReqId) -> bool {
    transfers.resource.first_request == Some(id)
}

/// Whether the first response comes over this connection.
pub(super) fn carries_first_response(transfers: &Transfers, conn: &Conn) -> bool {
    first_response(transfers).is_some_and(|(id, _)| conn.reqs.contains(&id))
}

/// The connection that carries the first response.
pub(super) fn first_conn(transfers: &Transfers) -> Option<ConnId> {
    first_response(transfers).map(|(_, req)| req.conn)
}

/// Rule 5. If the first response comes over this link, clears the link's failures, limits it to one connection, and
/// delays other requests over it by [`LINK_DELAY_AFTER_REFUSAL`]. Returns true if it did.
pub(super) fn protect_first_response(transfers: &mut Transfers, link: LinkId) -> bool {
    let first_link =
        first_response(transfers).and_then(|(_, req)| transfers.conns.get(&req.conn)).map(|conn| conn.link);
    if first_link != Some(link) {
        return false;
    }
    if let Some(link) = transfers.links.get_mut(&link) {
        link.conn_count.limit_to_one();
        link.failures = 0;
    }
    transfers.delay_link(link, LINK_DELAY_AFTER_REFUSAL);
    true
}

/// The bytes at the end of the first response that other connections may take over. It keeps what its connection
/// needs in flight.
pub(super) fn divisible_range(transfers: &Transfers) -> ByteRange {
    let Some((_, req)) = first_response(transfers) else { return ByteRange::default() };
    let Some(conn) = transfers.conns.get(&req.conn) else { return ByteRange::default() };
    let reserve = conn.target_in_flight(transfers.now).max(MIN_REQUEST);
    let start = req.next_offset.saturating_add(reserve.bytes());
    if start + MIN_REQUEST.bytes() > req.range.end {
        ByteRange::default()
    } else {
        ByteRange::new(start, req.range.end)
    }
}

/// Another connection is about to request these bytes: removes them from the range of the first response.
pub(super) fn shrink_first_response(transfers: &mut Transfers, range: ByteRange) {
    let Some((id, req)) = first_response(transfers) else { return };
    if range.end != req.range.end || range.start < req.next_offset {
        return;
    }
    transfers.set_request_end(id, range.start);
}

/// Rules 3 and 4: extends the first response over free bytes, or ends it where others have taken over.
pub(super) fn update_first_response(transfers: &mut Transfers) {
    let Some((id, req)) = first_response(transfers) else { return };
    let (cursor, end) = (req.next_offset, req.range.end);
    // Rule 4: free bytes behind the range, or behind stored bytes that are few enough to be delivered again.
    let from = transfers.coverage.received_ranges().end_of_run(end.max(cursor));
    let adjacent_free = transfers.coverage.next_free(from, u64::MAX).filter(|free| free.start == from);
    if let Some(free) = adjacent_free.filter(|_| DataSize::from_bytes(from - end.min(from)) <= MAX_SKIPPED) {
        return transfers.set_request_end(id, free.end);
    }
    // Rule 3: at the end of the range. If another request covers the next bytes, the faster one continues.
    let total = transfers.coverage.total().map_or(u64::MAX, DataSize::bytes);
    if cursor < end || cursor >= total {
        return;
    }
    let covers = |(other, req): &(&ReqId, &Req)| **other != id && !req.is_released && req.range.contains(from);
    match transfers.reqs.iter().find(covers).map(|(other, req)| (*other, req.range.end)) {
        Some((other, other_end)) if is_faster_than(transfers, id, other) => {
            transfers.set_request_end(id, other_end);
        }
        _ => {
            transfers.cancel_request(id);
            transfers.resource.first_request = None;
            transfers.set_timer(transfers.now, TimerReason::Retry);
        }
    }
}

/// Whether the first response should continue over the bytes of another request: that has no response yet, or the
/// first response would deliver the bytes clearly sooner. In the latter case the limit for duplicate bytes applies.
fn is_faster_than(transfers: &Transfers, id: ReqId, other: ReqId) -> bool {
    let (Some(first), Some(req)) = (transfers.reqs.get(&id), transfers.reqs.get(&other)) else { return false };
    let (Some(conn), Some(other_conn)) = (transfers.conns.get(&first.conn), transfers.conns.get(&req.conn)) else {
        return false;
    };
    let distance = DataSize::from_bytes(req.range.end.saturating_sub(first.next_offset));
    let first_time = distance / conn.expected_rate(transfers.now);
    let other_time = (req.remaining().len() / other_conn.expected_rate(transfers.now))
        .saturating_add(other_conn.expected_pause(transfers.now));
    let is_worthwhile = first_time.saturating_add(MIN_TIME_SAVED) < other_time;
    !req.is_accepted || (is_worthwhile && transfers.coverage.wasted_bytes() + distance <= transfers.max_waste())
}

/// Ranges cannot be used any more. If the first response is still running, it becomes the single response. Returns
/// true if it did.
pub(super) fn fall_back_to_first(transfers: &mut Transfers) -> bool {
    let Some((id, _)) = first_response(transfers) else { return false };
    transfers.resource.single_response_link = transfers.request_link(id);
    transfers.close_other_conns(id);
    update_first_response(transfers);
    let total = transfers.coverage.total().map_or(u64::MAX, DataSize::bytes);
    if !transfers.reqs.contains_key(&id) {
        return false;
    }
    transfers.set_request_end(id, total);
    transfers.resource.phase = Phase::SingleResponse { req: Some(id) };
    true
}

/// The link of the first response has recovered from a stall: ends its range before the first byte that is stored
/// or that another request covers.
pub(super) fn resume_first_response(transfers: &mut Transfers) {
    let Some((id, req)) = first_response(transfers) else { return };
    let from = req.next_offset;
    let others = transfers.reqs.iter().filter(|(other, req)| **other != id && !req.is_released);
    let claimed = others.map(|(_, req)| req.remaining()).filter(|range| !range.is_empty());
    let next = claimed.map(|range| range.start).filter(|start| *start >= from).min().unwrap_or(u64::MAX);
    let gap = transfers.coverage.next_missing(from);
    let end = gap.map_or(from, |gap| if gap.start == from { gap.end.min(next) } else { from });
    transfers.set_request_end(id, end);
}

/// How long other connections wait for the head of the first response: a multiple of its handshake RTT, within bounds.
/// Our choice: if a server takes longer, waiting costs more than requests beside the first one.
const HEAD_WAIT_RTTS: u32 = 4;
const HEAD_WAIT: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(1000));
/// How long refusals of other requests are ignored while the first one has no response.
const IGNORE_REFUSALS_FOR: Duration = Duration::from_secs(15);
/// Maximum number of stored bytes that the first response may deliver again to reach missing bytes behind them.
const MAX_SKIPPED: DataSize = DataSize::from_mib(1);
/// The first response continues over the bytes of another request if it delivers them sooner by at least this.
const MIN_TIME_SAVED: Duration = Duration::from_millis(15);
/// Delay of a link after a refusal of a request beside the first response.
const LINK_DELAY_AFTER_REFUSAL: Duration = Duration::from_secs(5);
