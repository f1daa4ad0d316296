//! Response heads: what a status and its header fields mean for the download.
//!
//! 1. A 206 with the requested range identifies the resource. Only the resource's own server can produce one.
//! 2. A 200 or an error may come from a captive portal. Responses over other links are compared first; see
//!    `portal_check`.
//! 3. Later responses must agree in size and validator; see `version_check`.
//! 4. Without a strong validator two responses could be of two versions. Then a single response carries everything,
//!    unless a checksum proves the whole file; see `single_response`. The same holds if the server's responses to range
//!    requests cannot be used: other programs get the file in one piece, so this one does, too.
//! 5. Each link follows redirects and resolves names for itself: the result may be its own CDN node, or a portal that
//!    rule 2 detects.
//!
//! A HEAD request first was rejected: it costs a round trip, and many servers answer it incorrectly.

use alloc::format;
use core::time::Duration;

use super::conn::{Conn, INITIAL_RANGE};
use super::portal_check::Verdict;
use super::range_response::RangeResponse;
use super::resource::Phase;
use super::transfers::AnsweredRequest;
use super::version_check::VersionReport;
use super::{
    BanReason, ByteRange, Failure, Fetch, ReqId, RequestRange, ResponseHead, SingleResponseReason, first_request,
    portal_check, range_response, redirects, refusals, single_response, version_check,
};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Entry point: dispatches a response head by its status.
    ///
    /// The order of the arms matters. Redirects with a target come before those without. A range request that gets a
    /// bodiless status is repeated without a range before the status is taken at its word.
    pub(super) fn on_head(&mut self, id: ReqId, head: &ResponseHead) {
        let Some(answered) = self.transfers.on_head(id, head) else { return };
        let AnsweredRequest { link, mirror, range_requested: requested, .. } = answered;
        if answered.is_pipelined {
            self.transfers.quirks.of_mut(mirror).on_pipelined_answered();
        }
        if answered.announces_end {
            self.transfers.quirks.of_mut(mirror).on_server_close(answered.responses);
        }
        match head.status {
            // A 206 to a request without a range is as good as a 200 if it covers the whole file.
            206 if requested == RequestRange::Full => match single_response::whole_length(head) {
                Some(length) => self.on_whole_file(id, link, head, length),
                None => {
                    self.on_protocol_violation(id, link, "a part of the file although all of it was requested");
                }
            },
            206 => self.on_range_response(id, link, head),
            // A range under the status of a whole file: Content-Range counts.
            200 if requested != RequestRange::Full && head.range.is_some_and(|range| range.range.is_some()) => {
                self.on_range_response(id, link, head);
            }
            // 203: a proxy has changed something (RFC 9110 §15.3.4). All downloaders treat the others as success.
            200..=203 | 207..=299 => self.on_full_response(id, link, requested, head),
            300..=303 | 307 | 308 if head.has_location || head.location.is_some() => {
                self.on_redirect(id, link, head)
            }
            // A redirect without a target is the resource itself, as for curl, and a 204 is an empty file. As the
            // response to a range request they say nothing about the file.
            204 | 205 | 300..=308
                if requested != RequestRange::Full
                    && refusals::retry_without_range(&mut self.transfers, id, link) => {}
            204 | 205 if requested == RequestRange::Full => {
                self.on_full_response(
                    id,
                    link,
                    requested,
                    &ResponseHead { length: Some(DataSize::ZERO), ..head.clone() },
                );
            }
            300..=303 | 307 | 308 if requested == RequestRange::Full && head.length != Some(DataSize::ZERO) => {
                self.on_full_response(id, link, requested, head);
            }
            301..=303 | 307 | 308 => self.on_redirect(id, link, head),
            416 => self.on_range_not_satisfiable(id, link, head),
            429 | 503 => self.on_server_busy(id, link, head),
            _ => self.on_other_status(id, link, head),
        }
    }

    /// 206: a range of the file. Checks that it fits the request, the known size and the known version, in this order.
    fn on_range_response(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let Some(conn) = self.transfers.reqs.get(&id).map(|req| req.conn) else { return };
        let (range, total) = match range_response::classify(&mut self.transfers, id, link, head) {
            RangeResponse::Usable { range, total: Some(total) } => (range, total),
            RangeResponse::Usable { total: None, .. } => {
                return self.switch_to_single_response(SingleResponseReason::NoLength, Some(conn));
            }
            RangeResponse::BehindEnd => return self.on_range_not_satisfiable(id, link, head),
            RangeResponse::WholeFile => {
                let length = head.range.and_then(|range| range.total);
                return self.on_whole_file(id, link, head, length);
            }
            RangeResponse::Unusable(reason) => return self.on_unusable_range(id, link, reason, head),
            RangeResponse::Violation(reason) => return self.on_protocol_violation(id, link, reason),
        };
        if self.transfers.is_unexpected_size(total) {
            return self.on_wrong_size(id, link, total);
        }
        if range_response::is_suspect_length(&self.transfers, id, total) {
            return self.recheck_length(id);
        }
        if range.end > total.bytes() {
            return self.on_unusable_range(id, link, "a range beyond the end of the file", head);
        }
        // A small HTML page that claims to be the whole file may be an error page. One request without a range decides.
        let is_small_page = head.is_html_page && range == ByteRange::at(0, total) && total <= INITIAL_RANGE;
        if is_small_page && refusals::retry_without_range(&mut self.transfers, id, link) {
            return;
        }
        // First identify (the size becomes known), then compare the version, then accept the bytes.
        if self.transfers.resource.phase == Phase::Unknown {
            let validator = head.validator.as_ref();
            let is_provable = validator.is_some() || self.mirrors.is_result_verifiable();
            if !range_response::identify(&mut self.transfers, id, total, validator, range, is_provable) {
                return self.switch_to_single_response(SingleResponseReason::NoValidator, Some(conn));
            }
        }
        if !self.check_version(id, link, total, head) {
            return;
        }
        range_response::accept(&mut self.transfers, &self.mirrors, id, range);
        portal_check::confirm_ranges(&mut self.transfers, &mut self.mirrors);
        if range_response::is_too_tiny(&mut self.transfers, id, range) {
            self.switch_to_single_response(SingleResponseReason::UnusableRanges, None);
        }
    }

    /// The whole file of this length under another status than 200.
    fn on_whole_file(&mut self, id: ReqId, link: LinkId, head: &ResponseHead, length: Option<DataSize>) {
        let head = ResponseHead { status: 200, length, ..head.clone() };
        self.on_full_response(id, link, RequestRange::Full, &head);
    }

    fn on_redirect(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        if let Some(failure) = redirects::follow(&mut self.transfers, id, link, head) {
            self.on_refused(id, link, BanReason::BadStatus { status: head.status }, failure);
        }
    }

    /// Checks a suspect length with a request for the whole file.
    pub(super) fn recheck_length(&mut self, id: ReqId) {
        let conn = self.transfers.reqs.get(&id).map(|req| req.conn);
        self.switch_to_single_response(SingleResponseReason::SuspectLength, conn);
    }

    /// The mirror's file has another size than required: treats it as a refusal.
    pub(super) fn on_wrong_size(&mut self, id: ReqId, link: LinkId, actual: DataSize) {
        let expected = self.transfers.config.expected_size.unwrap_or_default();
        let text = format!("the file is {} bytes long instead of {}", actual.bytes(), expected.bytes());
        let ban = BanReason::LengthMismatch { actual: Some(actual), expected: Some(expected) };
        self.on_refused(id, link, ban, Failure::ProtocolViolation { text });
    }

    /// Holds a response until other links have responded; `unusable_reason`: why this response to a range request
    /// cannot be used.
    pub(super) fn hold_response(
        &mut self,
        id: ReqId,
        link: LinkId,
        head: &ResponseHead,
        unusable_reason: Option<&str>,
    ) {
        portal_check::hold(&mut self.transfers, id, link, head, unusable_reason);
        self.resolve_pending();
    }

    /// Decides on the held responses when their wait is over.
    pub(super) fn resolve_pending(&mut self) {
        match portal_check::decide(&mut self.transfers, self.mirrors.can_combine()) {
            None => {}
            Some(Verdict::RefusedEverywhere { req, link, status }) => {
                if self.try_other_initial_request(req, link, status) {
                    return;
                }
                for pending in self.transfers.resource.pending.take_all() {
                    self.transfers.cancel_request(pending.req);
                }
                self.failover_or_fail(Failure::BadStatus { status });
            }
            Some(Verdict::Accept(best)) => self.accept_full_response(best.req, &best.head),
            Some(Verdict::NoRanges(best)) => self.fall_back_without_range(best.req),
            Some(Verdict::UnusableRange(best)) => {
                self.switch_to_single_response(SingleResponseReason::UnusableRanges, Some(best.conn));
            }
            Some(Verdict::Refused(best)) => {
                let status = best.head.status;
                if !self.try_other_initial_request(best.req, best.link, status) {
                    self.on_refused(
                        best.req,
                        best.link,
                        BanReason::BadStatus { status },
                        Failure::BadStatus { status },
                    );
                    self.resolve_pending();
                }
            }
        }
    }

    /// 416 (range not satisfiable): the range may lie behind the end of the file, or the server may refuse ranges.
    fn on_range_not_satisfiable(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let total = head.range.and_then(|range| range.total);
        if total.is_none() && refusals::retry_smaller(&mut self.transfers, id, head.status) {
            return;
        }
        let start = self.transfers.reqs.get(&id).map_or(0, |req| req.range.start);
        match (self.transfers.resource.phase, total) {
            // An empty file, or a seek beyond the end: nothing more is needed.
            (Phase::Unknown, Some(total)) if total.bytes() <= self.transfers.coverage.in_order_end() => {
                self.transfers.resource.phase = Phase::Ranges;
                self.transfers.set_total(total);
                self.transfers.report_identified(Some(total), None);
                self.finish_if_complete();
            }
            // By the server's own total, the range begins within the file. So the Range field is the problem.
            (Phase::Unknown, Some(total)) if start < total.bytes() => {
                if !refusals::retry_without_range(&mut self.transfers, id, link) {
                    let status = head.status;
                    self.on_refused(id, link, BanReason::BadStatus { status }, Failure::BadStatus { status });
                }
            }
            // The file is small, and the first response, for the bytes before these, is still in flight.
            (Phase::Unknown, Some(total)) => {
                self.transfers.cancel_request(id);
                self.transfers.delay_link(link, BEYOND_END_DELAY);
                self.transfers.resource.pending.report(link, Some(total), None, true);
                portal_check::ban_other_sizes(&mut self.transfers, &mut self.mirrors, total);
            }
            // The size is not stated: the server refuses ranges in general, or a portal answers.
            (Phase::Unknown, None) if portal_check::awaits_other_links(&self.transfers, link) => {
                self.hold_response(id, link, head, None)
            }
            (Phase::Unknown, None) => self.fall_back_without_range(id),
            (Phase::SingleResponse { .. }, None) => {
                self.transfers.cancel_request(id);
                let reason = BanReason::BadStatus { status: head.status };
                if !self.mirrors.try_next_mirror(&mut self.transfers, link, &reason) {
                    self.ban_or_fail(link, reason, false, Failure::BadStatus { status: head.status });
                }
            }
            (_, total) if total.is_some() && total == self.transfers.coverage.total() => {
                if total.is_some_and(|total| start < total.bytes()) {
                    // By the server's own total, the range is not behind the end: a refusal.
                    let status = head.status;
                    return self.on_refused(
                        id,
                        link,
                        BanReason::BadStatus { status },
                        Failure::BadStatus { status },
                    );
                }
                self.transfers.cancel_request(id);
                self.transfers.delay_link(link, BEYOND_END_DELAY);
            }
            (_, actual) => {
                let expected = self.transfers.coverage.total();
                let report = VersionReport { change: None, is_certain: actual.is_some() };
                self.on_version_mismatch(id, link, BanReason::LengthMismatch { actual, expected }, report);
            }
        }
    }

    /// Any other status. Errors of the server are retried, refusals are not.
    fn on_other_status(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let status = head.status;
        if refusals::handle_expired_target(&mut self.transfers, id, link, status)
            || refusals::retry_smaller(&mut self.transfers, id, status)
        {
            return;
        }
        if first_request::should_ignore_refusal(&self.transfers, id) {
            self.transfers.cancel_request(id);
            return self.transfers.delay_link(link, FIRST_REQUEST_GRACE);
        }
        // The target may serve only requests without a range.
        let is_redirected = self
            .transfers
            .reqs
            .get(&id)
            .and_then(|req| self.transfers.conns.get(&req.conn))
            .is_some_and(Conn::is_redirected);
        if (is_redirected || status == 304) && refusals::retry_without_range(&mut self.transfers, id, link) {
            return;
        }
        if matches!(status, 408 | 500 | 502 | 504) {
            return self.on_server_busy(id, link, head);
        }
        if !self.mirrors.has_untried_mirror(&self.transfers, link)
            && refusals::check_without_range(&mut self.transfers, id, link, status)
        {
            return;
        }
        // All links may be refused alike, so their responses are compared.
        let same_status = self.transfers.resource.pending.iter().any(|pending| pending.head.status == status);
        if self.transfers.resource.phase == Phase::Unknown
            && (same_status || portal_check::awaits_other_links(&self.transfers, link))
        {
            return self.hold_response(id, link, head, None);
        }
        if self.try_other_initial_request(id, link, status) {
            return;
        }
        self.on_refused(id, link, BanReason::BadStatus { status }, Failure::BadStatus { status });
    }

    /// A 200: the whole file, or a captive portal's page.
    pub(super) fn on_full_response(
        &mut self,
        id: ReqId,
        link: LinkId,
        requested: RequestRange,
        head: &ResponseHead,
    ) {
        // Checks that need no comparison with other responses come first: encoding, required size, suspect length.
        if head.is_encoded {
            return self.on_protocol_violation(id, link, "an encoded body although identity was requested");
        }
        if let Some(actual) = head.length.filter(|actual| self.transfers.is_unexpected_size(*actual)) {
            return self.on_wrong_size(id, link, actual);
        }
        if head.length.is_some_and(|length| range_response::is_suspect_length(&self.transfers, id, length)) {
            return self.recheck_length(id);
        }
        let is_known = self.transfers.resource.phase == Phase::Ranges
            && single_response::is_known_version(&self.transfers, id, head);
        // An HTML page or an empty body in response to a range request may not be the response to a full one. Or the
        // target of a redirect has expired.
        let is_suspicious = head.is_html_page || head.length == Some(DataSize::ZERO);
        if (self.transfers.resource.phase == Phase::Unknown
            && is_suspicious
            && refusals::retry_without_range(&mut self.transfers, id, link))
            || (self.transfers.resource.phase == Phase::Ranges
                && !is_known
                && refusals::handle_expired_target(&mut self.transfers, id, link, head.status))
        {
            return;
        }
        match self.transfers.resource.phase {
            // The last resort of the last link (rule 5 of `single_response`).
            Phase::Ranges
                if requested == RequestRange::Full
                    && single_response::matches_known_file(&self.transfers, id, head) =>
            {
                let conn = self.transfers.reqs.get(&id).map(|req| req.conn);
                self.switch_to_single_response(SingleResponseReason::UnusableRanges, conn);
            }
            Phase::Unknown | Phase::SingleResponse { .. }
                if self.transfers.links.get(&link).is_some_and(|link| link.exceeds_budget(head.length)) =>
            {
                self.transfers.cancel_request(id);
                self.ban_or_fail(link, BanReason::OverBudget, false, Failure::BudgetExhausted);
            }
            Phase::Unknown | Phase::SingleResponse { .. }
                if portal_check::contradicts_reported(&self.transfers, link, head) =>
            {
                portal_check::ban_contradicting(&mut self.transfers, id, link, head.length);
            }
            Phase::SingleResponse { .. } if requested == RequestRange::Full => self.accept_full_response(id, head),
            Phase::Unknown => self.hold_response(id, link, head, None),
            // If-Range did not match: the file has changed if the response proves it by a validator; otherwise it is a
            // portal's page.
            _ => match &head.validator {
                Some(validator) if !single_response::is_known_version(&self.transfers, id, head) => {
                    if !version_check::relax_if_range(&mut self.transfers, id, head) {
                        let is_certain = head.length.is_some() && head.length == self.transfers.coverage.total();
                        let change = Some((head.length, validator.clone()));
                        let report = VersionReport { change, is_certain };
                        self.on_version_mismatch(id, link, BanReason::ValidatorMismatch, report);
                    }
                }
                Some(_) if version_check::relax_if_range(&mut self.transfers, id, head) => {}
                Some(_) => self.on_ranges_ignored(id, link),
                // Nothing proves that it is the file, but a portal's page would not have its length.
                None if head.length.is_some() && head.length == self.transfers.coverage.total() => {
                    self.on_ranges_ignored(id, link);
                }
                None => {
                    let (actual, expected) = (head.length, self.transfers.coverage.total());
                    let ban = if head.is_html_page {
                        BanReason::HtmlPage
                    } else {
                        BanReason::LengthMismatch { actual, expected }
                    };
                    self.on_version_mismatch(id, link, ban, VersionReport { change: None, is_certain: false });
                }
            },
        }
    }

    /// The right file, but the whole of it: the server ignored the range. If that happens repeatedly and another link
    /// gets ranges, this link's server is at fault. Otherwise a single response must carry everything, and the stored
    /// bytes are of no use.
    fn on_ranges_ignored(&mut self, id: ReqId, link: LinkId) {
        let conn = self.transfers.reqs.get(&id).map(|req| req.conn);
        let mirror = conn.and_then(|conn| self.transfers.conns.get(&conn)).map(|conn| conn.mirror);
        if mirror.is_some_and(|mirror| self.transfers.quirks.of_mut(mirror).on_range_ignored()) {
            self.transfers.cancel_request(id);
            return self.transfers.delay_link(link, Duration::ZERO);
        }
        if self
            .transfers
            .links
            .iter()
            .any(|(other, state)| *other != link && state.stats.is_verified && state.is_in_service())
        {
            return self.on_protocol_violation(id, link, "200 with the whole file instead of the range");
        }
        if let (Some(mirror), Some(total)) = (mirror, self.transfers.coverage.total()) {
            let known = self.transfers.resource.validators.known(mirror).cloned();
            self.transfers.resource.pending.report(link, Some(total), known.as_ref(), false);
        }
        self.switch_to_single_response(SingleResponseReason::NoRanges, conn);
        self.transfers.resource.validators.forget_known();
    }

    /// Accepts this response as the whole file.
    fn accept_full_response(&mut self, id: ReqId, head: &ResponseHead) {
        single_response::accept(&mut self.transfers, &self.mirrors, id, head);
        self.finish_if_complete();
    }

    /// Whether the response is of the version that is being downloaded. If not, handles the mismatch: another mirror,
    /// another CDN node, a restart, or a ban.
    pub(super) fn check_version(&mut self, id: ReqId, link: LinkId, total: DataSize, head: &ResponseHead) -> bool {
        if !self.transfers.reqs.contains_key(&id) {
            return false;
        }
        let is_verifiable = self.mirrors.is_result_verifiable();
        let Err((ban, report)) = version_check::check(&mut self.transfers, id, total, head, is_verifiable) else {
            return true;
        };
        // Another mirror is the cheapest remedy; only then is the link judged.
        if !self.mirrors.try_next_mirror(&mut self.transfers, link, &ban) {
            self.on_version_mismatch(id, link, ban, report);
        }
        false
    }
}

/// Delay of a link that was refused while the first request has no response yet.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(5);
/// Delay of a link that requested bytes behind the end of a small file.
const BEYOND_END_DELAY: Duration = Duration::from_millis(200);
