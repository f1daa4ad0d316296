//! Refused requests: because of the size of a range, the Range field, an expired URL, or the server's load.
//!
//! 1. A range that is larger than any that was served is requested again in smaller parts
//!    ([`ServerQuirks`](super::server_quirks::ServerQuirks)).
//! 2. If the target of a redirect has delivered and then refuses, it has expired: the redirecting URL is requested
//!    again at once. If the range may have been too large, a smaller one is tried first.
//! 3. If the initial request is refused with a status that does not concern the resource, it is repeated with a small
//!    range and then without a range.
//!    The first status such as 404 is checked by one request without a range.
//! 4. A busy server (429, 503) is left alone for as long as it requests. If it serves other connections of the link, or
//!    other links, it limits their number: the refused connection waits longer each time, and the others are not
//!    disturbed.
//!
//! After that a refusal of the URL itself is final. So a file that does not exist costs one extra request, not ten.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Req;
use super::link::{Link, LinkState};
use super::resource::{InitialRequest, Phase};
use super::server_quirks::requested_len;
use super::transfers::Transfers;
use super::{ConnId, Notice, ReqId, RequestRange, ResponseHead, TimerReason};
use crate::link::LinkId;
use crate::units::DataSize;

/// Rule 2. Returns true if the target has expired and the mirror's own URL is requested next.
pub(super) fn handle_expired_target(transfers: &mut Transfers, id: ReqId, link_id: LinkId, status: u16) -> bool {
    let Some(conn) = transfers.reqs.get(&id).and_then(|req| transfers.conns.get(&req.conn)) else { return false };
    let (mirror, redirected) = (conn.mirror, conn.is_redirected());
    let served =
        transfers.links.get(&link_id).is_some_and(|link| link.responses_from_target > 0 || link.follows_other_node);
    // 200 and redirects may lead to a page that reports the expiry. A server that has lost the URLs it issued may
    // also fail (5xx).
    let refused = matches!(status, 200 | 204 | 300..=308 | 400 | 401 | 403 | 404 | 410 | 500..=504);
    if !redirected || !served || !refused {
        return false;
    }
    // 401, 404 and 410 do not depend on the size of the range.
    if matches!(status, 400 | 403)
        && !transfers.quirks.of_mut(mirror).urls_expire
        && retry_smaller(transfers, id, status)
    {
        return true;
    }
    transfers.quirks.of_mut(mirror).on_expired();
    if let Some(link) = transfers.links.get_mut(&link_id) {
        link.redirect_targets.remove(&mirror);
        link.responses_from_target = 0;
        link.next_attempt = transfers.now;
    }
    transfers.cancel_request(id);
    transfers.set_timer(transfers.now, TimerReason::Retry);
    true
}

/// Rule 1. Returns true if a smaller range is tried.
pub(super) fn retry_smaller(transfers: &mut Transfers, id: ReqId, status: u16) -> bool {
    let Some(req) = transfers.reqs.get(&id) else { return false };
    let Some(conn) = transfers.conns.get(&req.conn) else { return false };
    // 429 or 503 to the first request of a connection may be a limit on connections.
    let may_be_conn_limit = matches!(status, 429 | 503) && conn.responses == 0;
    if transfers.resource.phase != Phase::Ranges || !may_concern_range(status) || may_be_conn_limit {
        return false;
    }
    let (link, mirror) = (conn.link, conn.mirror);
    let Some(len) = requested_len(req.range_requested) else { return false };
    if !transfers.quirks.of_mut(mirror).on_size_refused(len) {
        return false;
    }
    transfers.cancel_request(id);
    if let Some(link) = transfers.links.get_mut(&link) {
        link.next_attempt = transfers.now;
    }
    transfers.set_timer(transfers.now, TimerReason::Retry);
    true
}

/// Another form of the initial request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OtherRequest {
    /// There is none that could get a better response.
    None,
    /// A request for a range, which is smaller than the last one.
    Ranged,
    /// A request without a range.
    Full,
}

/// Rule 3: chooses the form in which the initial request is repeated after a refusal.
pub(super) fn other_initial_request(
    transfers: &mut Transfers,
    id: ReqId,
    link: LinkId,
    status: u16,
) -> OtherRequest {
    if transfers.resource.phase != Phase::Unknown || !may_concern_range(status) {
        return OtherRequest::None;
    }
    if let Some(link) = transfers.links.get_mut(&link) {
        link.omit_range = false;
    }
    let requested = transfers.reqs.get(&id).and_then(|req| requested_len(req.range_requested));
    let is_small = requested.is_some_and(|size| size <= SMALL_RANGE);
    if transfers.resource.initial_request == InitialRequest::SmallRange {
        if !is_small {
            // It was sent before the small range was chosen.
            transfers.cancel_request(id);
            transfers.delay_link(link, Duration::ZERO);
            return OtherRequest::Ranged;
        }
        transfers.resource.pending.take_all();
        return OtherRequest::Full;
    }
    transfers.resource.initial_request = InitialRequest::SmallRange;
    let pending = transfers.resource.pending.take_all();
    for id in pending.into_iter().map(|pending| pending.req).chain([id]) {
        transfers.cancel_request(id);
    }
    for link in transfers.links.values_mut().filter(|link| link.is_in_service()) {
        link.next_attempt = transfers.now;
    }
    transfers.set_timer(transfers.now, TimerReason::Retry);
    OtherRequest::Ranged
}

/// Rule 4, first part. Returns true if the status has a cause that waiting would not remove: the size of the range, a
/// limit on the number of connections, or an expired target.
pub(super) fn avoid_busy_server(
    transfers: &mut Transfers,
    id: ReqId,
    link_id: LinkId,
    head: &ResponseHead,
) -> bool {
    if head.retry_after.is_none() && retry_smaller(transfers, id, head.status) {
        return true;
    }
    // Another connection of this link is served: the limit is on connections, so this one just goes away.
    if is_over_conn_limit(transfers, id, link_id) {
        transfers.cancel_request(id);
        if let Some(link) = transfers.links.get_mut(&link_id) {
            link.conn_count.limit_to_one();
        }
        // The other connection may be about to end.
        transfers.delay_link(link_id, CONN_SLOT_DELAY);
        return true;
    }
    head.retry_after.is_none() && handle_expired_target(transfers, id, link_id, head.status)
}

/// Rule 4, second part: the link pauses. Returns false if it has no retries left and no other link is served, so that
/// waiting is of no use.
pub(super) fn wait_for_busy_server(transfers: &mut Transfers, link_id: LinkId, head: &ResponseHead) -> bool {
    let is_delivering = |(id, link): (&LinkId, &Link)| {
        *id != link_id
            && link.is_in_service()
            && link.stats.last_data.is_some_and(|at| at + RECENT_DATA > transfers.now)
    };
    let others = transfers.links.iter().any(is_delivering);
    let Some(link) = transfers.links.get_mut(&link_id) else { return true };
    link.failures += 1;
    link.conn_count.limit_to_one();
    let backoff = if others { link.backoff().saturating_mul(REFUSED_CONN_FACTOR) } else { link.backoff() };
    let wait = head.retry_after.unwrap_or(backoff).min(MAX_RETRY_AFTER);
    link.next_attempt = transfers.now + wait;
    link.paused_until = link.next_attempt;
    let (is_repeated, retries_exhausted) = (link.failures > 1, link.failures > transfers.config.retries);
    for conn in link.conns.clone() {
        transfers.remove_conn(conn, true);
    }
    if !others && retries_exhausted {
        return false;
    }
    // Where other links carry the file, one notice is enough.
    if !(others && is_repeated) {
        let retry_after = head.retry_after.filter(|delay| *delay > MAX_RETRY_AFTER);
        transfers.notice(Notice::ServerBusy { link: link_id, wait, retry_after, status: head.status });
    }
    true
}

/// A range request was refused with a status that concerns the resource. Some servers send such a status because of the
/// Range field, so the first one of a download is checked by one request without a range, and again the first one after
/// the download has begun again with another mirror. Returns true if that request is sent or in progress on the link.
pub(super) fn check_without_range(transfers: &mut Transfers, id: ReqId, link_id: LinkId, status: u16) -> bool {
    let is_ranged = transfers.reqs.get(&id).is_some_and(|req| req.range_requested != RequestRange::Full);
    let is_login = matches!(status, 401 | 407 | 511);
    let may_retry = is_ranged && transfers.resource.phase == Phase::Unknown && !transfers.has_owner();
    if !may_retry || is_login || may_concern_range(status) {
        return false;
    }
    if !core::mem::replace(&mut transfers.resource.rechecked_without_range, true) {
        return retry_without_range(transfers, id, link_id);
    }
    let pending = transfers.links.get(&link_id).is_some_and(|link| link.omit_range);
    if pending {
        transfers.cancel_request(id);
        transfers.delay_link(link_id, CONN_SLOT_DELAY);
    }
    pending
}

/// While the resource is not identified: after a failed request the link alternates between requests with and
/// without a range, because the Range field may be the cause.
pub(super) fn note_failed_initial_request(transfers: &mut Transfers, id: ReqId, link: LinkId) {
    let Some(requested) = transfers.reqs.get(&id).filter(|req| !req.is_accepted).map(|req| req.range_requested)
    else {
        return;
    };
    if let Some(link) = transfers.links.get_mut(&link).filter(|_| transfers.resource.phase == Phase::Unknown) {
        link.omit_range = requested != RequestRange::Full;
    }
}

/// The initial range request got a response that is not the file: the link sends a request without a range at once.
/// Returns true if it does.
pub(super) fn retry_without_range(transfers: &mut Transfers, id: ReqId, link_id: LinkId) -> bool {
    let ranged = transfers.reqs.get(&id).is_some_and(|req| req.range_requested != RequestRange::Full);
    // With external control, ranges are always needed (a player seeks), so no request is sent without one.
    if transfers.resource.phase != Phase::Unknown || !ranged || transfers.has_owner() {
        return false;
    }
    transfers.cancel_request(id);
    if let Some(link) = transfers.links.get_mut(&link_id) {
        link.omit_range = true;
        link.forget_redirect_targets();
        link.next_attempt = transfers.now;
    }
    transfers.set_timer(transfers.now, TimerReason::Retry);
    true
}

/// Sends a request without a range on this connection, if it is due on the link. A stalled link sends it beside its
/// range request, which may still get a response.
pub(super) fn send_without_range(transfers: &mut Transfers, id: ConnId) -> bool {
    let Some(link_id) = transfers.conns.get(&id).map(|conn| conn.link) else { return false };
    let of_link = |req: &Req| transfers.conns.get(&req.conn).is_some_and(|conn| conn.link == link_id);
    let is_sent = transfers.reqs.values().any(|req| req.range_requested == RequestRange::Full && of_link(req));
    let is_waiting = transfers
        .reqs
        .values()
        .any(|req| req.range_requested != RequestRange::Full && !req.is_accepted && of_link(req));
    let Some(link) = transfers.links.get(&link_id) else { return false };
    let is_stalled = is_waiting && matches!(link.state, LinkState::Stalled { .. });
    let due = !is_sent && (link.omit_range || is_stalled) && !transfers.has_owner();
    if !due || !transfers.send_request(id, RequestRange::Full) {
        return false;
    }
    if let Some(id) = transfers.newest_request() {
        // It claims no bytes: range requests beside it cover the same ones.
        transfers.set_request_end(id, 0);
    }
    true
}

/// The resource is identified by a range: cancels the requests without one.
pub(super) fn cancel_full_requests(transfers: &mut Transfers) {
    transfers.links.values_mut().for_each(|link| link.omit_range = false);
    if transfers.resource.phase != Phase::Ranges {
        return;
    }
    let pending = |id: &ReqId| transfers.resource.pending.holds_request(*id);
    let tries = transfers
        .reqs
        .iter()
        .filter(|(id, req)| req.range_requested == RequestRange::Full && !req.is_accepted && !pending(id));
    let tries: Vec<ReqId> = tries.map(|(id, _)| *id).collect();
    for id in tries {
        transfers.cancel_request(id);
    }
}

/// Whether another connection of the link is being served. Then the server limits their number.
fn is_over_conn_limit(transfers: &Transfers, id: ReqId, link: LinkId) -> bool {
    let own_conn = transfers.reqs.get(&id).map(|req| req.conn);
    transfers.conns.iter().any(|(id, conn)| {
        Some(*id) != own_conn
            && conn.link == link
            && conn.last_activity + RECENT_DATA > transfers.now
            && !conn.rate_window.total().is_zero()
    })
}

/// Whether a request for other bytes may get a better response: not if the resource, the client or the login is the
/// cause.
pub(super) fn may_concern_range(status: u16) -> bool {
    match status {
        401 | 402 | 404 | 407 | 408 | 410 | 421 | 423..=429 | 451 | 511 => false,
        400..=599 => true,
        _ => false,
    }
}

/// Longest pause. A server that requests a longer one gets the next request after this time: by then a laptop may be on
/// another network.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// A server that delivered bytes within this time is serving.
const RECENT_DATA: Duration = Duration::from_secs(5);
/// How long a refused connection waits for the end of the one that occupies the server's limit.
const CONN_SLOT_DELAY: Duration = Duration::from_millis(200);
/// Factor on the backoff of a link that is refused while other links are served.
const REFUSED_CONN_FACTOR: u32 = 5;
/// Size of the initial request after a larger one was refused. Hosts that limit the size of a range allow this much.
pub(super) const SMALL_RANGE: DataSize = DataSize::from_kib(4);
