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
//!    to a request without a range is asked for a range, once per download. A portal does not answer with 206.
//!
//! The well-known probe URLs that phones use were rejected. They show how the network handles requests for the probe's
//! host, not for this one, and a download should contact no host but its server.

use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::conn::Conn;
use super::links::{Link, LinkState};
use super::refusals::may_concern_range;
use super::{
    BanReason, ConnId, Failure, Fetch, Notice, ReqId, RequestRange, ResponseHead, SingleResponseReason,
    TimerReason, Validator,
};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// A response that is held back until other links have responded.
#[derive(Clone, Debug)]
pub(super) struct PendingResponse {
    pub(super) conn: ConnId,
    pub(super) req: ReqId,
    link: LinkId,
    pub(super) head: ResponseHead,
    since: Instant,
    /// If it is the response to a range request: why it cannot be used.
    unusable_reason: Option<String>,
}

impl PendingResponse {
    /// Whether it is the whole file or a portal's page: a success, or a redirect without a target, whose body other
    /// programs take for the resource.
    fn is_full_body(&self) -> bool {
        (self.is_success() || matches!(self.head.status, 300..=303 | 307 | 308)) && self.unusable_reason.is_none()
    }

    fn is_success(&self) -> bool {
        matches!(self.head.status, 200..=299)
    }
}

/// Size and validator of the file, as stated in a response head. Used while ranges of several responses cannot be
/// combined.
#[derive(Clone, Debug)]
pub(super) struct ReportedFile {
    pub(super) link: LinkId,
    /// None: only the validator was stated.
    pub(super) total: Option<DataSize>,
    pub(super) validator: Option<Validator>,
    /// It was stated in the response to a range request, which no portal gives.
    pub(super) is_from_range: bool,
    /// Links whose responses have contradicted it since.
    pub(super) contradicted_by: Vec<LinkId>,
}

impl Fetch {
    /// Whether a whole file has another size than a reported one, without better proof. A report from the same link
    /// counts, too, if the new response has less proof: no validator, or the same validator with a smaller size. Never
    /// true if no other link could deliver.
    pub(super) fn contradicts_reported(&self, link: LinkId, head: &ResponseHead) -> bool {
        let (Some(reported), Some(length)) = (&self.reported_file, head.length) else { return false };
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
        disagree && self.links.iter().any(|(id, state)| *id != link && state.may_deliver())
    }

    /// A whole file contradicts the reported size: bans its link. Once all links contradict it, the file has changed,
    /// and the report is dropped.
    pub(super) fn ban_contradicting(&mut self, id: ReqId, link: LinkId, actual: Option<DataSize>) {
        let expected = self.reported_file.as_ref().and_then(|reported| reported.total);
        self.cancel_request(id);
        self.ban(link, BanReason::LengthMismatch { actual, expected }, true);
        let Some(reported) = &mut self.reported_file else { return };
        reported.contradicted_by.push(link);
        if self.links.iter().all(|(id, link)| reported.contradicted_by.contains(id) || !link.may_deliver()) {
            self.reported_file = None;
        }
    }

    /// Records the size and validator that a response head over this link stated. `ranged`: it responded to a range
    /// request. An existing validator is never replaced here, and a size only by better evidence.
    pub(super) fn record_reported_file(
        &mut self,
        link: LinkId,
        total: Option<DataSize>,
        validator: Option<&Validator>,
        ranged: bool,
    ) {
        let is_better = |reported: &ReportedFile| {
            reported.validator.is_none() && (validator.is_some() || ranged || !reported.is_from_range)
        };
        if (total.is_some() || validator.is_some()) && self.reported_file.as_ref().is_none_or(is_better) {
            let validator = validator.cloned();
            self.reported_file =
                Some(ReportedFile { link, total, validator, is_from_range: ranged, contradicted_by: Vec::new() });
        }
    }

    /// A server has stated the size without delivering a byte: pending whole files of another size are portal pages.
    pub(super) fn ban_other_sizes(&mut self, total: DataSize) {
        let (conflicting, consistent) =
            core::mem::take(&mut self.pending_responses).into_iter().partition(|pending| {
                pending.is_full_body() && pending.head.length.is_some_and(|length| length != total)
            });
        self.pending_responses = consistent;
        self.ban_pending(conflicting, Some(total));
    }

    /// Holds a response until other links have responded.
    pub(super) fn hold_response(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        self.add_pending(id, link, head, None);
    }

    /// Holds an unusable response to a range request until other links have responded.
    pub(super) fn hold_unusable_response(&mut self, id: ReqId, link: LinkId, head: &ResponseHead, reason: &str) {
        if let Some(req) = self.reqs.get_mut(&id) {
            // Other links request the same bytes meanwhile.
            req.range.end = 0;
        }
        self.rebuild_claims();
        self.add_pending(id, link, head, Some(reason.into()));
    }

    fn add_pending(&mut self, id: ReqId, link: LinkId, head: &ResponseHead, unusable: Option<String>) {
        let Some(conn) = self.reqs.get(&id).map(|req| req.conn) else { return };
        self.pending_responses.push(PendingResponse {
            conn,
            req: id,
            link,
            head: head.clone(),
            since: self.now,
            unusable_reason: unusable,
        });
        self.resolve_pending();
    }

    /// Whether a response over this link is pending. The link can report nothing more, so it gets no other request
    /// meanwhile and cannot stall.
    pub(super) fn has_pending_response(&self, link: LinkId) -> bool {
        self.pending_responses.iter().any(|pending| pending.link == link)
    }

    /// Whether another link without a response may still respond.
    pub(super) fn awaits_other_links(&self, except: LinkId) -> bool {
        self.links_without_response(except).next().is_some()
    }

    /// Usable links without a pending response.
    fn links_without_response(&self, except: LinkId) -> impl Iterator<Item = (LinkId, &Link)> {
        let has_response = |id: LinkId| self.pending_responses.iter().any(|pending| pending.link == id);
        let links = self.links.iter().map(|(id, link)| (*id, link));
        links.filter(move |(id, link)| *id != except && self.is_usable(*id, link) && !has_response(*id))
    }

    /// How long this response waits for the other links: the longest timeout that any of them calls for.
    fn pending_timeout(&self, pending: &PendingResponse) -> Duration {
        // A link counts as active while it connects or has a request.
        let is_active = |conn: &Conn| !conn.is_open() || !conn.reqs.is_empty();
        let is_unverified = pending.is_full_body() && pending.head.validator.is_none();
        let timeouts = self.links_without_response(pending.link).map(|(_, link)| match () {
            () if link.stats.has_connected => CONNECTED_TIMEOUT,
            () if !self.conns_of(link).any(is_active) => IDLE_LINK_TIMEOUT,
            () if is_unverified => CONNECTED_TIMEOUT,
            () => CONNECTING_TIMEOUT,
        });
        timeouts.max().unwrap_or_default()
    }

    /// Decides on the pending responses when their wait is over.
    pub(super) fn resolve_pending(&mut self) {
        // The wait begins with the first pending response. A response that came later waits with it.
        let Some(first) = self.pending_responses.first() else { return };
        let first_link = first.link;
        let until = first.since + self.pending_timeout(first);
        if self.now < until {
            return self.set_timer(until, TimerReason::PortalCheck);
        }
        // Every link was refused alike: the server refuses, so no link is banned.
        if self.is_refused_on_all_links() {
            let (req, link, status) = (first.req, first.link, first.head.status);
            if self.try_other_initial_request(req, link, status) {
                return;
            }
            for pending in core::mem::take(&mut self.pending_responses) {
                self.cancel_request(pending.req);
            }
            return self.failover_or_fail(Failure::BadStatus { status });
        }
        if self.recheck_conflict_by_range() {
            return;
        }
        // The other links did not respond in time: accept the best response, but report that it is unconfirmed.
        let unconfirmed: Vec<LinkId> = self.links_without_response(first_link).map(|(id, _)| id).collect();
        let pending = self.pending_responses.remove(self.best_pending());
        if pending.is_full_body() {
            for link in unconfirmed {
                self.notice(Notice::Unconfirmed { link, accepted_from: pending.link });
            }
            self.pending_responses.clear();
            self.accept_full_response(pending.req, &pending.head);
        } else if pending.head.status == 416 {
            self.pending_responses.clear();
            self.fall_back_without_range(pending.req);
        } else if pending.unusable_reason.is_some() {
            self.pending_responses.clear();
            self.switch_to_single_response(SingleResponseReason::UnusableRanges, Some(pending.conn));
        } else if !self.try_other_initial_request(pending.req, pending.link, pending.head.status) {
            let status = pending.head.status;
            self.on_refused(
                pending.req,
                pending.link,
                BanReason::BadStatus { status },
                Failure::BadStatus { status },
            );
            self.resolve_pending();
        }
    }

    /// Rule 5. Returns true if a link is asked for a range.
    fn recheck_conflict_by_range(&mut self) -> bool {
        let full_bodies: Vec<&PendingResponse> =
            self.pending_responses.iter().filter(|pending| pending.is_full_body()).collect();
        let sizes = || full_bodies.iter().map(|pending| pending.head.length);
        let has_validator = full_bodies.iter().any(|pending| pending.head.validator.is_some());
        let agree = sizes().all(|size| Some(size) == sizes().next());
        if self.conflict_rechecked || has_validator || agree || self.external_control.is_some() {
            return false;
        }
        let is_full_request =
            |id: ReqId| self.reqs.get(&id).is_some_and(|req| req.range_requested == RequestRange::Full);
        let to_recheck: Vec<(ReqId, LinkId)> = full_bodies
            .iter()
            .filter(|pending| is_full_request(pending.req))
            .map(|pending| (pending.req, pending.link))
            .collect();
        if to_recheck.is_empty() {
            return false;
        }
        self.conflict_rechecked = true;
        // The other pending responses wait for this one, however long they have waited already.
        for pending in &mut self.pending_responses {
            pending.since = self.now;
        }
        for (req, link) in to_recheck {
            self.cancel_request(req);
            if let Some(link) = self.links.get_mut(&link) {
                link.omit_range = false;
                link.next_attempt = self.now;
            }
        }
        self.set_timer(self.now, TimerReason::Retry);
        true
    }

    /// Removes the pending responses for which `lost` is true, but records the size and validator that they stated.
    pub(super) fn remove_pending(&mut self, lost: impl Fn(&PendingResponse) -> bool) {
        let (lost, kept) = core::mem::take(&mut self.pending_responses).into_iter().partition(lost);
        self.pending_responses = kept;
        for pending in <Vec<PendingResponse>>::into_iter(lost).filter(|pending| pending.is_full_body()) {
            if let Some(validator) = &pending.head.validator {
                self.record_reported_file(pending.link, pending.head.length, Some(validator), false);
            }
        }
    }

    /// Whether every link was refused with the same status: then the server refuses, and no link is at fault.
    fn is_refused_on_all_links(&self) -> bool {
        let Some(first) = self.pending_responses.first().filter(|_| !self.can_combine()) else { return false };
        let status = first.head.status;
        let has_response = |id: LinkId| self.pending_responses.iter().any(|pending| pending.link == id);
        let refused = |pending: &PendingResponse| {
            !pending.is_full_body()
                && pending.unusable_reason.is_none()
                && status != 416
                && pending.head.status == status
        };
        self.pending_responses.iter().all(refused)
            && self.links.iter().all(|(id, link)| has_response(*id) || !link.may_deliver())
    }

    /// Index of the response to accept (rules 2 and 3).
    fn best_pending(&self) -> usize {
        let claim =
            |pending: &PendingResponse| (pending.head.status, pending.head.length, pending.head.validator.clone());
        let votes = |pending: &PendingResponse| {
            self.pending_responses.iter().filter(|other| claim(other) == claim(pending)).count()
        };
        let rank = |pending: &PendingResponse| {
            let validated = pending.head.validator.is_some();
            (!pending.is_full_body(), !pending.is_success(), !validated, Reverse(votes(pending)))
        };
        // Among equally ranked responses with the same validator, the longest one (rule 3).
        let Some(first) = self.pending_responses.iter().min_by_key(|pending| rank(pending)) else { return 0 };
        let same = |pending: &&PendingResponse| {
            pending.head.validator.is_some()
                && pending.head.validator == first.head.validator
                && rank(pending) == rank(first)
        };
        let longest = self.pending_responses.iter().filter(same).min_by_key(|pending| Reverse(pending.head.length));
        let best = longest.unwrap_or(first).req;
        self.pending_responses.iter().position(|pending| pending.req == best).unwrap_or(0)
    }

    /// A link has delivered a range, which no portal can: resolves the pending responses by it.
    pub(super) fn resolve_pending_as_ranges(&mut self) {
        let (total, all) = (self.coverage.total(), core::mem::take(&mut self.pending_responses));
        let is_full_request = |pending: &PendingResponse| {
            self.reqs.get(&pending.req).is_some_and(|req| req.range_requested == RequestRange::Full)
        };
        let is_of_the_file = |pending: &PendingResponse| match pending.is_full_body() {
            true => is_full_request(pending) && pending.head.length == total,
            // The large first request was refused because of its size.
            false => self.is_first_request(pending.req) && may_concern_range(pending.head.status),
        };
        let (consistent, conflicting): (Vec<PendingResponse>, Vec<PendingResponse>) =
            all.into_iter().partition(is_of_the_file);
        // Consistent with the file: the responses are not needed, but their links are fine.
        for pending in consistent {
            self.cancel_request(pending.req);
        }
        self.ban_pending(conflicting, total);
    }

    fn ban_pending(&mut self, pending: Vec<PendingResponse>, expected: Option<DataSize>) {
        let mut handled = Vec::new();
        for pending in pending {
            let is_full_body = pending.is_full_body();
            let ban = match pending.unusable_reason {
                Some(text) => BanReason::ProtocolViolation { text },
                None if is_full_body && pending.head.is_html_page => BanReason::HtmlPage,
                None if is_full_body => BanReason::LengthMismatch { actual: pending.head.length, expected },
                None => BanReason::BadStatus { status: pending.head.status },
            };
            self.cancel_request(pending.req);
            // Several connections of a link may have got the same response: ban it once.
            let is_handled = handled.contains(&pending.link)
                || self.links.get(&pending.link).is_some_and(|link| matches!(link.state, LinkState::Banned { .. }));
            handled.push(pending.link);
            if !is_handled && !self.try_next_mirror(pending.link, &ban) {
                self.ban(pending.link, ban, true);
            }
        }
    }
}

/// Wait for a link that neither connects nor has a request. chosen: a second SYN (RFC 6298 §2) and the RTT of a slow
/// path.
const IDLE_LINK_TIMEOUT: Duration = Duration::from_millis(1500);
/// Wait for a link that is connecting: DNS, TCP and TLS over a satellite, or a third SYN.
const CONNECTING_TIMEOUT: Duration = Duration::from_secs(6);
/// Wait for a link that has reached the server before; or for any that is connecting, while the pending response could
/// be a portal's page.
const CONNECTED_TIMEOUT: Duration = Duration::from_secs(10);
