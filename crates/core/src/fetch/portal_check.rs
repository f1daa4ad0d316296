//! Second opinions: what is believed of an answer that a captive portal could have given.
//!
//! In: whole files, refusals and sizes, each from one link. Out: the answer that is taken, and the links that are banned
//! for theirs.
//!
//! 1. Such an answer is parked until every other link that may still speak has spoken, or the time for that is over.
//!    How long that is follows from how the others stand now, not from how they stood when it came: a slow network
//!    takes seconds to reach its server beside a portal that answers at once.
//! 2. A whole file beats a refusal, a success beats the body of a redirect, one with a validator beats one without, two
//!    links that say the same beat one; otherwise the first to speak.
//! 3. Of two sizes under one validator the longer counts: a file cut short would pass for the whole, while one that is
//!    promised too long breaks off.
//! 4. A range that was delivered, or a size that a response over another link stated, decides against whole files of
//!    another size. Once a response has had a validator, a whole file that has none and states a length is refused,
//!    unless a response has stated that length. This also holds after the connection of that response was lost.
//! 5. If two links deliver whole files of different sizes and no response has a validator, a link whose response was to a
//!    request without a range is asked for a range, once per download. A portal does not answer with 206.
//!
//! Well-known probe URLs (as phones ask them) were not used: they tell of the network that answers them, not of the one
//! that answers for this host, and a download should talk to nobody but its server.

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

/// An answer that waits for another link's opinion.
#[derive(Clone, Debug)]
pub(super) struct PendingResponse {
    pub(super) conn: ConnId,
    pub(super) req: ReqId,
    link: LinkId,
    pub(super) head: ResponseHead,
    since: Instant,
    /// Why it cannot be used, if it is an answer to a range.
    unusable_reason: Option<String>,
}

impl PendingResponse {
    /// Whether it is the whole file, or a portal's page: a success, or a redirect without a target, which is the resource
    /// itself for other programs.
    fn is_full_body(&self) -> bool {
        (self.is_success() || matches!(self.head.status, 300..=303 | 307 | 308)) && self.unusable_reason.is_none()
    }

    fn is_success(&self) -> bool {
        matches!(self.head.status, 200..=299)
    }
}

/// What the header section of a response stated about the file: its size, its validator or both. Kept while the ranges of
/// several responses cannot be combined.
#[derive(Clone, Debug)]
pub(super) struct ReportedFile {
    pub(super) link: LinkId,
    /// `None`: no size was stated, only a validator.
    pub(super) total: Option<DataSize>,
    pub(super) validator: Option<Validator>,
    /// An answer to a question for a range said so, which no portal gives.
    pub(super) is_from_range: bool,
    /// The links that have been told otherwise since.
    pub(super) contradicted_by: Vec<LinkId>,
}

impl Fetch {
    /// Whether a whole file is of another size than another link was told, and proves no more than that. What a link was
    /// told itself stands against it, too, where it now proves less, or speaks of less under the same validator.
    pub(super) fn contradicts_reported(&self, link: LinkId, head: &ResponseHead) -> bool {
        let (Some(reported), Some(length)) = (&self.reported_file, head.length) else { return false };
        let differs = reported.total.is_some_and(|total| total != length);
        let disagree = match (&reported.validator, &head.validator) {
            (Some(reported_validator), Some(validator)) if reported_validator == validator => {
                reported.total.is_some_and(|total| length < total)
            }
            (Some(_), None) => reported.total != Some(length),
            (None, Some(_)) => false,
            _ => (reported.link != link || reported.is_from_range) && differs,
        };
        disagree && self.links.iter().any(|(id, state)| *id != link && state.may_deliver())
    }

    /// A whole file is of another size than was told: its link is banned. Once all links say so, the file has changed,
    /// and nothing is known of its size.
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

    /// The header section of a response over this link stated the size or the validator of the file. `ranged`: it was the
    /// response to a request for a range. A validator is never replaced here, and a size only by better evidence.
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

    /// A server has told the size without delivering anything: a whole file of another size is a portal's page.
    pub(super) fn ban_other_sizes(&mut self, total: DataSize) {
        let (conflicting, consistent) =
            core::mem::take(&mut self.pending_responses).into_iter().partition(|pending| {
                pending.is_full_body() && pending.head.length.is_some_and(|length| length != total)
            });
        self.pending_responses = consistent;
        self.ban_pending(conflicting, Some(total));
    }

    /// Keeps an answer until another link has spoken.
    pub(super) fn hold_response(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        self.add_pending(id, link, head, None);
    }

    /// Keeps an answer to a range that cannot be used, until another link has spoken.
    pub(super) fn hold_unusable_response(&mut self, id: ReqId, link: LinkId, head: &ResponseHead, reason: &str) {
        if let Some(req) = self.reqs.get_mut(&id) {
            // Other links ask for the same bytes meanwhile.
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

    /// Whether an answer over this link waits for another link's opinion. The link has said what it knows: it is asked
    /// nothing more meanwhile, and its silence says nothing.
    pub(super) fn has_pending_response(&self, link: LinkId) -> bool {
        self.pending_responses.iter().any(|pending| pending.link == link)
    }

    /// Whether a link that has not spoken yet may still do so.
    pub(super) fn awaits_other_links(&self, except: LinkId) -> bool {
        self.links_without_response(except).next().is_some()
    }

    /// The other links that have not spoken yet and may still do so.
    fn links_without_response(&self, except: LinkId) -> impl Iterator<Item = (LinkId, &Link)> {
        let has_response = |id: LinkId| self.pending_responses.iter().any(|pending| pending.link == id);
        let links = self.links.iter().map(|(id, link)| (*id, link));
        links.filter(move |(id, link)| *id != except && self.is_usable(*id, link) && !has_response(*id))
    }

    /// How long the others are waited for with this answer.
    fn pending_timeout(&self, pending: &PendingResponse) -> Duration {
        let is_active = |conn: &Conn| !conn.is_open() || !conn.reqs.is_empty();
        let is_unverified = pending.is_full_body() && pending.head.validator.is_none();
        let patience = self.links_without_response(pending.link).map(|(_, link)| match () {
            () if link.stats.has_connected => CONNECTED_TIMEOUT,
            () if !self.conns_of(link).any(is_active) => IDLE_LINK_TIMEOUT,
            () if is_unverified => CONNECTED_TIMEOUT,
            () => CONNECTING_TIMEOUT,
        });
        patience.max().unwrap_or_default()
    }

    /// Decides on parked answers whose time has come.
    pub(super) fn resolve_pending(&mut self) {
        let Some(first) = self.pending_responses.first() else { return };
        let first_link = first.link;
        let until = first.since + self.pending_timeout(first);
        if self.now < until {
            return self.set_timer(until, TimerReason::PortalCheck);
        }
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
        // The others wait for this answer, too, however long they have waited.
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

    /// Removes the parked answers for which `lost` holds. Keeps the size and the validator that they stated.
    pub(super) fn remove_pending(&mut self, lost: impl Fn(&PendingResponse) -> bool) {
        let (lost, kept) = core::mem::take(&mut self.pending_responses).into_iter().partition(lost);
        self.pending_responses = kept;
        for pending in <Vec<PendingResponse>>::into_iter(lost).filter(|pending| pending.is_full_body()) {
            if let Some(validator) = &pending.head.validator {
                self.record_reported_file(pending.link, pending.head.length, Some(validator), false);
            }
        }
    }

    /// Whether every link was refused with the same status: then it is the server that refuses, and no link is to blame.
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

    /// The answer to believe (rules 2 and 3).
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

    /// A link has delivered a range: what others said instead was not the file.
    pub(super) fn resolve_pending_as_ranges(&mut self) {
        let (total, all) = (self.coverage.total(), core::mem::take(&mut self.pending_responses));
        let is_full_request = |pending: &PendingResponse| {
            self.reqs.get(&pending.req).is_some_and(|req| req.range_requested == RequestRange::Full)
        };
        let is_of_the_file = |pending: &PendingResponse| match pending.is_full_body() {
            true => is_full_request(pending) && pending.head.length == total,
            // So much was not to be had in one piece.
            false => self.is_first_request(pending.req) && may_concern_range(pending.head.status),
        };
        let (consistent, conflicting): (Vec<PendingResponse>, Vec<PendingResponse>) =
            all.into_iter().partition(is_of_the_file);
        // Nothing is wrong with their links.
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
            // Each of its connections may have said the same: that is one reason, not several.
            let is_handled = handled.contains(&pending.link)
                || self.links.get(&pending.link).is_some_and(|link| matches!(link.state, LinkState::Banned { .. }));
            handled.push(pending.link);
            if !is_handled && !self.try_next_mirror(pending.link, &ban) {
                self.ban(pending.link, ban, true);
            }
        }
    }
}

/// How long a link is waited for that is neither reaching for the server nor asked. chosen: a second SYN (RFC 6298 §2)
/// and a slow path's round trip.
const IDLE_LINK_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long a link is waited for that is on its way: a name, TCP and TLS over a satellite, or a third SYN.
const CONNECTING_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a link is waited for that does reach the server, or any that is on its way while all that is known could as
/// well be a portal's page.
const CONNECTED_TIMEOUT: Duration = Duration::from_secs(10);
