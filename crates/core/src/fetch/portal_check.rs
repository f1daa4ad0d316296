//! Check of responses that a captive portal could have given: they are compared with responses over other links.
//!
//! A captive portal answers any request with its own page, usually with 200 or a redirect. Whole files, refusals and
//! file sizes received over one link are therefore not trusted until the other links have responded. The result is the
//! accepted response, and bans for the links with contradicting ones.
//!
//! 1. Such a response is *pending*, its body unread, until every other link that may still respond has done so or the
//!    wait is over. The wait depends on the present state of the other links, not on their state when the response
//!    arrived: a slow network needs seconds to reach the server while a portal answers at once.
//! 2. A whole file is preferred to a refusal, a success to the body of a redirect, a response with a validator to one
//!    without, and equal responses of two links to one. Otherwise the first counts.
//! 3. Of two sizes with the same validator the longer one counts. A file that is cut short would pass for the whole;
//!    one with too large a size is noticed, because it ends early.
//! 4. A range that was delivered, or a size that a response over another link stated, decides against whole files of
//!    another size. Once a response has had a validator, a whole file without one is refused if it states a length that
//!    no response has stated. This still holds after the connection of that response was lost.
//! 5. If two links deliver whole files of different sizes and no response has a validator, each link whose response was
//!    to a request without a range is sent a range request, once per download. A portal does not answer with 206.
//!
//! The well-known probe URLs that phones use were rejected. They show how the network handles requests for the probe's
//! host, not for this one, and a download should contact no host but its server.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::link::{Link, LinkState};
use super::mirrors::Mirrors;
use super::pending_responses::PendingResponse;
use super::refusals::may_concern_range;
use super::transfers::Transfers;
use super::{BanReason, Notice, ReqId, RequestRange, ResponseHead, TimerReason, first_request, link_health};
use crate::link::LinkId;
use crate::units::DataSize;

/// What is to be done with the held responses, once their wait is over.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Every link was refused alike: the server refuses, and no link is at fault.
    RefusedEverywhere {
        /// The oldest of the refused requests, and its link.
        req: ReqId,
        link: LinkId,
        /// The status that all links got.
        status: u16,
    },
    /// This response is the whole file.
    Accept(PendingResponse),
    /// The server refuses the range without stating the size (416).
    NoRanges(PendingResponse),
    /// The best response to a range request cannot be used.
    UnusableRange(PendingResponse),
    /// The best response refuses the request.
    Refused(PendingResponse),
}

/// Holds a response until other links have responded. `unusable_reason`: it is the response to a range request, and
/// why it cannot be used.
pub(super) fn hold(
    transfers: &mut Transfers,
    id: ReqId,
    link: LinkId,
    head: &ResponseHead,
    unusable_reason: Option<&str>,
) {
    let Some(conn) = transfers.reqs.get(&id).map(|req| req.conn) else { return };
    if unusable_reason.is_some() {
        // Other links request the same bytes meanwhile.
        transfers.set_request_end(id, 0);
    }
    let unusable_reason = unusable_reason.map(Into::into);
    let pending =
        PendingResponse { conn, req: id, link, head: head.clone(), since: transfers.now, unusable_reason };
    transfers.resource.pending.push(pending);
}

/// Decides on the held responses. None: there are none, they have to wait longer, or a link gets another request.
pub(super) fn decide(transfers: &mut Transfers, can_combine: bool) -> Option<Verdict> {
    // The wait begins with the first pending response. A response that came later waits with it.
    let first = transfers.resource.pending.first()?;
    let until = first.since + pending_timeout(transfers, first);
    if transfers.now < until {
        transfers.set_timer(until, TimerReason::PortalCheck);
        return None;
    }
    let (req, link, status) = (first.req, first.link, first.head.status);
    // With combined mirrors each link may have been refused by another server.
    if !can_combine && is_refused_on_all_links(transfers, status) {
        return Some(Verdict::RefusedEverywhere { req, link, status });
    }
    if recheck_conflict_by_range(transfers) {
        return None;
    }
    // The other links did not respond in time: accept the best response, but report that it is unconfirmed.
    let unconfirmed: Vec<LinkId> = links_without_response(transfers, link).map(|(id, _)| id).collect();
    let best = transfers.resource.pending.take_best()?;
    if best.is_full_body() {
        for link in unconfirmed {
            transfers.notice(Notice::Unconfirmed { link, accepted_from: best.link });
        }
        transfers.resource.pending.take_all();
        return Some(Verdict::Accept(best));
    }
    if best.head.status == 416 {
        transfers.resource.pending.take_all();
        return Some(Verdict::NoRanges(best));
    }
    if best.unusable_reason.is_some() {
        transfers.resource.pending.take_all();
        return Some(Verdict::UnusableRange(best));
    }
    Some(Verdict::Refused(best))
}

/// A link has delivered a range, which no portal can: resolves the held responses by it.
pub(super) fn confirm_ranges(transfers: &mut Transfers, mirrors: &mut Mirrors) {
    let (total, all) = (transfers.coverage.total(), transfers.resource.pending.take_all());
    let is_full_request = |pending: &PendingResponse| {
        transfers.reqs.get(&pending.req).is_some_and(|req| req.range_requested == RequestRange::Full)
    };
    let is_of_the_file = |pending: &PendingResponse| match pending.is_full_body() {
        true => is_full_request(pending) && pending.head.length == total,
        // The large first request was refused because of its size.
        false => first_request::is_first_request(transfers, pending.req) && may_concern_range(pending.head.status),
    };
    let (consistent, conflicting): (Vec<PendingResponse>, Vec<PendingResponse>) =
        all.into_iter().partition(is_of_the_file);
    // Consistent with the file: the responses are not needed, but their links are fine.
    for pending in consistent {
        transfers.cancel_request(pending.req);
    }
    ban_pending(transfers, mirrors, conflicting, total);
}

/// A server has stated the size without delivering a byte: held whole files of another size are portal pages.
pub(super) fn ban_other_sizes(transfers: &mut Transfers, mirrors: &mut Mirrors, total: DataSize) {
    let conflicting = transfers.resource.pending.take_other_sizes(total);
    ban_pending(transfers, mirrors, conflicting, Some(total));
}

/// Bans the links of responses that contradict the file of size `expected`.
fn ban_pending(
    transfers: &mut Transfers,
    mirrors: &mut Mirrors,
    pending: Vec<PendingResponse>,
    expected: Option<DataSize>,
) {
    let mut handled = Vec::new();
    for pending in pending {
        let is_full_body = pending.is_full_body();
        let ban = match pending.unusable_reason {
            Some(text) => BanReason::ProtocolViolation { text },
            None if is_full_body && pending.head.is_html_page => BanReason::HtmlPage,
            None if is_full_body => BanReason::LengthMismatch { actual: pending.head.length, expected },
            None => BanReason::BadStatus { status: pending.head.status },
        };
        transfers.cancel_request(pending.req);
        // Several connections of a link may have got the same response: ban it once.
        let is_handled = handled.contains(&pending.link)
            || transfers
                .links
                .get(&pending.link)
                .is_some_and(|link| matches!(link.state, LinkState::Banned { .. }));
        handled.push(pending.link);
        if !is_handled && !mirrors.try_next_mirror(transfers, pending.link, &ban) {
            link_health::ban(transfers, pending.link, ban, true);
        }
    }
}

/// A whole file contradicts the reported size: bans its link. Once all links contradict it, the file has changed, and
/// the report is dropped.
pub(super) fn ban_contradicting(transfers: &mut Transfers, id: ReqId, link: LinkId, actual: Option<DataSize>) {
    let expected = transfers.resource.pending.reported().and_then(|reported| reported.total);
    transfers.cancel_request(id);
    link_health::ban(transfers, link, BanReason::LengthMismatch { actual, expected }, true);
    let links = &transfers.links;
    transfers.resource.pending.contradict(link, |contradicting| {
        links.iter().all(|(id, link)| contradicting.contains(id) || !link.may_deliver())
    });
}

/// Whether a whole file has another size than a reported one, without better proof. A report from the same link
/// counts, too, if the new response has less proof: no validator, or the same validator with a smaller size. Never
/// true if no other link could deliver.
pub(super) fn contradicts_reported(transfers: &Transfers, link: LinkId, head: &ResponseHead) -> bool {
    let (Some(reported), Some(length)) = (transfers.resource.pending.reported(), head.length) else { return false };
    let differs = reported.total.is_some_and(|total| total != length);
    let disagree = match (&reported.validator, &head.validator) {
        // Same validator: a shorter file is cut short (rule 3).
        (Some(reported_validator), Some(validator)) if reported_validator == validator => {
            reported.total.is_some_and(|total| length < total)
        }
        // A validator was reported, and this response has none: only the reported size passes (rule 4).
        (Some(_), None) => reported.total != Some(length),
        // The new response has the better proof.
        (None, Some(_)) => false,
        // No validator, or two different ones: the report counts if it is from another link or a range response.
        _ => (reported.link != link || reported.is_from_range) && differs,
    };
    disagree && transfers.links.iter().any(|(id, state)| *id != link && state.may_deliver())
}

/// Whether another link without a response may still respond.
pub(super) fn awaits_other_links(transfers: &Transfers, except: LinkId) -> bool {
    links_without_response(transfers, except).next().is_some()
}

/// Usable links without a pending response.
fn links_without_response(transfers: &Transfers, except: LinkId) -> impl Iterator<Item = (LinkId, &Link)> {
    let links = transfers.links.iter().map(|(id, link)| (*id, link));
    links.filter(move |(id, _)| {
        *id != except && transfers.is_usable(*id) && !transfers.resource.pending.holds_link(*id)
    })
}

/// How long this response waits for the other links: the longest timeout that any of them calls for.
fn pending_timeout(transfers: &Transfers, pending: &PendingResponse) -> Duration {
    // A link counts as active while it connects or has a request.
    let is_active = |conn: &Conn| !conn.is_open() || !conn.reqs.is_empty();
    let is_unverified = pending.is_full_body() && pending.head.validator.is_none();
    let timeouts = links_without_response(transfers, pending.link).map(|(_, link)| match () {
        () if link.stats.has_connected => CONNECTED_TIMEOUT,
        () if !transfers.conns_of(link).any(is_active) => IDLE_LINK_TIMEOUT,
        () if is_unverified => CONNECTED_TIMEOUT,
        () => CONNECTING_TIMEOUT,
    });
    timeouts.max().unwrap_or_default()
}

/// Rule 5. Returns true if a link is to be sent a range request.
fn recheck_conflict_by_range(transfers: &mut Transfers) -> bool {
    let pending = &transfers.resource.pending;
    let full_bodies: Vec<&PendingResponse> = pending.iter().filter(|pending| pending.is_full_body()).collect();
    let sizes = || full_bodies.iter().map(|pending| pending.head.length);
    let has_validator = full_bodies.iter().any(|pending| pending.head.validator.is_some());
    let agree = sizes().all(|size| Some(size) == sizes().next());
    if pending.is_rechecked() || has_validator || agree || transfers.has_owner() {
        return false;
    }
    let is_full_request =
        |id: ReqId| transfers.reqs.get(&id).is_some_and(|req| req.range_requested == RequestRange::Full);
    let to_recheck: Vec<(ReqId, LinkId)> = full_bodies
        .iter()
        .filter(|pending| is_full_request(pending.req))
        .map(|pending| (pending.req, pending.link))
        .collect();
    if to_recheck.is_empty() {
        return false;
    }
    // The other pending responses wait for this one, however long they have waited already.
    transfers.resource.pending.start_recheck(transfers.now);
    for (req, link) in to_recheck {
        transfers.cancel_request(req);
        if let Some(link) = transfers.links.get_mut(&link) {
            link.omit_range = false;
            link.next_attempt = transfers.now;
        }
    }
    transfers.set_timer(transfers.now, TimerReason::Retry);
    true
}

/// Whether every link was refused with this status: then the server refuses, and no link is at fault.
fn is_refused_on_all_links(transfers: &Transfers, status: u16) -> bool {
    let pending = &transfers.resource.pending;
    status != 416
        && pending.iter().all(|pending| pending.is_refusal(status))
        && transfers.links.iter().all(|(id, link)| pending.holds_link(*id) || !link.may_deliver())
}

/// Wait for a link that neither connects nor has a request. Our choice: a second SYN (RFC 6298 §2) and the RTT of a
/// slow path.
const IDLE_LINK_TIMEOUT: Duration = Duration::from_millis(1500);
/// Wait for a link that is connecting: DNS, TCP and TLS over a satellite, or a third SYN.
const CONNECTING_TIMEOUT: Duration = Duration::from_secs(6);
/// Wait for a link that has reached the server before; or for any that is connecting, while the pending response could
/// be a portal's page.
const CONNECTED_TIMEOUT: Duration = Duration::from_secs(10);
