//! Download by a single response, for servers without ranges, lengths or validators.
//!
//! 1. One connection of one link carries the response; all others are closed.
//! 2. If it breaks off, none of its bytes can be used, because nothing proves that the next response continues it.
//! 3. A 200 to a range request means a changed file, a server that has stopped serving ranges, or a captive portal's
//!    page. Validator and length decide. If the server usually serves ranges, the request is repeated.
//! 4. A 206 that covers the whole file, although another range or none was requested, is treated as a 200. No portal
//!    gives one.
//! 5. If a server refuses ranges after it has served some, the last link that was not banned requests the whole file.
//!    Received ranges are given up only if that response has the known size or version.

use super::conn::Conn;
use super::link::{FullRequest, Link, LinkState};
use super::mirrors::Mirrors;
use super::resource::Phase;
use super::transfers::Transfers;
use super::{
    BanReason, ByteRange, ConnError, ConnErrorKind, ContentRange, Notice, ReqId, RequestRange, ResponseHead,
    SingleResponseReason, TimerReason, range_response,
};
use crate::link::LinkId;
use crate::units::DataSize;

/// The length that a 206 to a request without a range gives the file, if it covers the whole file; the length itself may
/// be unknown.
pub(super) fn whole_length(head: &ResponseHead) -> Option<Option<DataSize>> {
    match head.range {
        None => Some(head.length),
        Some(ContentRange { range: Some(range), total })
            if range.start == 0
                && total.is_none_or(|total| total == range.len())
                && head.length.is_none_or(|length| length == range.len()) =>
        {
            Some(total.or(head.length))
        }
        Some(_) => None,
    }
}

/// Accepts this response as the whole file, and closes all other connections.
pub(super) fn accept(transfers: &mut Transfers, mirrors: &Mirrors, id: ReqId, head: &ResponseHead) {
    if !transfers.resource.is_single_response() {
        let reason =
            if head.length.is_none() { SingleResponseReason::NoLength } else { SingleResponseReason::NoRanges };
        transfers.notice(Notice::SingleResponse { reason });
    }
    transfers.resource.phase = Phase::SingleResponse { req: Some(id) };
    transfers.resource.single_response_link = transfers.request_link(id);
    if let Some(link) = transfers.resource.single_response_link {
        // This response replaces what earlier ones stated about the version.
        if head.validator.is_some() {
            transfers.resource.pending.drop_report_if(|_| true);
        }
        transfers.resource.pending.report(link, head.length, head.validator.as_ref(), false);
    }
    transfers.close_other_conns(id);
    transfers.accept_response(id, ByteRange::new(0, head.length.map_or(u64::MAX, DataSize::bytes)));
    if let Some(total) = head.length {
        transfers.record_total(total);
    }
    transfers.rebuild_claims();
    transfers.report_identified(head.length, None);
    range_response::accept_body(transfers, mirrors, id, 0, head.length);
}

/// Whether the response to a request without a range is of the known file. A portal's page would not have its size.
pub(super) fn matches_known_file(transfers: &Transfers, id: ReqId, head: &ResponseHead) -> bool {
    let total = transfers.coverage.total();
    (head.length.is_some() && head.length == total && head.validator.is_none())
        || is_known_version(transfers, id, head)
}

/// Rule 5. Returns true if a link that was to be banned requests the whole file instead.
pub(super) fn schedule_full_request(transfers: &mut Transfers, id: LinkId, reason: &BanReason) -> bool {
    let others = transfers
        .links
        .iter()
        .any(|(other, link)| *other != id && transfers.is_usable(*other) && link.is_in_service());
    let is_read = transfers.reader.has_consumed();
    let may_help = matches!(
        reason,
        BanReason::BadStatus { .. } | BanReason::ProtocolViolation { .. } | BanReason::RepeatedErrors { .. }
    );
    if transfers.resource.phase != Phase::Ranges || others || is_read || !may_help || transfers.has_owner() {
        return false;
    }
    let Some(link) = transfers.links.get_mut(&id).filter(|link| link.full_request == FullRequest::NotTried) else {
        return false;
    };
    if link.state == LinkState::Down || link.stats.bytes.is_zero() {
        return false;
    }
    link.full_request = FullRequest::Due;
    link.failures = 0;
    link.next_attempt = transfers.now;
    for conn in link.conns.clone() {
        transfers.remove_conn(conn, true);
    }
    transfers.set_timer(transfers.now, TimerReason::Retry);
    true
}

/// Sends the request for the whole file that is due on a link. Returns true if such a request is due or in flight:
/// then no others are sent.
pub(super) fn send_full_request(transfers: &mut Transfers) -> bool {
    let is_due = |link: &Link| link.full_request == FullRequest::Due && link.may_deliver();
    let Some(id) = transfers.links.iter().find(|(_, link)| is_due(link)).map(|(id, _)| *id) else {
        return transfers.reqs.values().any(|req| req.range_requested == RequestRange::Full);
    };
    let is_idle = |conn: &Conn| conn.link == id && conn.accepts_requests() && conn.reqs.is_empty();
    let conn = transfers.conns.iter().find(|(_, conn)| is_idle(conn)).map(|(conn, _)| *conn);
    if let Some(conn) = conn
        && transfers.send_request(conn, RequestRange::Full)
        && let Some(link) = transfers.links.get_mut(&id)
    {
        link.full_request = FullRequest::Sent;
    }
    true
}

/// Whether the response has the known validator, and the known size if it states one.
pub(super) fn is_known_version(transfers: &Transfers, id: ReqId, head: &ResponseHead) -> bool {
    let mirror = transfers.reqs.get(&id).and_then(|req| transfers.conns.get(&req.conn)).map(|conn| conn.mirror);
    let is_matching =
        mirror.is_some_and(|mirror| transfers.resource.validators.matches(mirror, head) == Some(true));
    (head.length.is_none() || transfers.coverage.total() == head.length) && is_matching
}

/// What follows from the loss of a single response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LostResponse {
    /// It is requested again.
    Retry,
    /// The link has no retries left and is banned.
    Ban {
        link: LinkId,
        /// Its last error.
        error: ConnError,
    },
    /// No link that may deliver has retries left.
    NoRetriesLeft {
        /// The last error of the link that carried the response.
        error: ConnError,
    },
}

/// Counts lost single responses per link. Bytes of a lost response are no progress, unless it got further than the best
/// one on this link. When a link has no retries left, the size that it reported no longer counts.
pub(super) fn count_lost(transfers: &mut Transfers, received: u64) -> LostResponse {
    let Some(id) = transfers.resource.single_response_link else { return LostResponse::Retry };
    let Some(link) = transfers.links.get_mut(&id) else { return LostResponse::Retry };
    let (best, lost) = link.stats.best_single_response;
    link.stats.best_single_response = if received > best { (received, 0) } else { (best, lost + 1) };
    let retries = transfers.config.retries;
    if link.stats.best_single_response.1 <= retries {
        return LostResponse::Retry;
    }
    let text = "the response breaks off repeatedly".into();
    let error = link.stats.last_error.clone().unwrap_or(ConnError { kind: ConnErrorKind::Truncated, text });
    let is_in_service = link.is_in_service();
    let has_retries = |link: &Link| link.stats.best_single_response.1 <= retries && !link.budget_exhausted;
    if !transfers.links.values().any(|link| has_retries(link) && link.may_deliver()) {
        return LostResponse::NoRetriesLeft { error };
    }
    transfers.resource.pending.drop_report_if(|reported| reported.link == id);
    if is_in_service { LostResponse::Ban { link: id, error } } else { LostResponse::Retry }
}
