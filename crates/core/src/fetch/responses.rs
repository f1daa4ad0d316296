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
use super::link::{CdnNode, Link};
use super::portal_check::Verdict;
use super::refusals::OtherRequest;
use super::resource::{InitialRequest, Phase};
use super::server_quirks::requested_len;
use super::transfers::Transfers;
use super::version_check::VersionReport;
use super::{
    BanReason, ByteRange, ContentRange, Failure, Fetch, Notice, Output, ReqId, RequestRange, ResponseHead,
    SingleResponseReason, Validator, first_request, portal_check, refusals, single_response, version_check,
};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Entry point: dispatches a response head by its status.
    ///
    /// The order of the arms matters. Redirects with a target come before those without. A range request that gets a
    /// bodiless status is repeated without a range before the status is taken at its word.
    pub(super) fn on_head(&mut self, id: ReqId, head: &ResponseHead) {
        let Some(req) = self.transfers.reqs.get(&id) else { return };
        let (conn_id, requested) = (req.conn, req.range_requested);
        let Some(conn) = self.transfers.conns.get_mut(&conn_id) else { return };
        let (link, mirror) = (conn.link, conn.mirror);
        conn.last_activity = self.transfers.now;
        if let Some(link) = self.transfers.links.get_mut(&link) {
            conn.end_server_delay(self.transfers.now, &mut link.stats.server_delays);
        }
        let announces_end = head.closes_connection && head.status == 206 && !conn.is_draining;
        conn.is_draining |= head.closes_connection;
        let responses = conn.responses + 1;
        if req.is_pipelined {
            self.transfers.quirks.of_mut(mirror).on_pipelined_answered();
        }
        if announces_end {
            self.transfers.quirks.of_mut(mirror).on_server_close(responses);
        }
        match head.status {
            206 if requested == RequestRange::Full => self.on_partial_to_full_request(id, link, head),
            206 => self.on_partial_content(id, link, head),
            // A range under the status of a whole file: Content-Range counts.
            200 if requested != RequestRange::Full && head.range.is_some_and(|range| range.range.is_some()) => {
                self.on_partial_content(id, link, head);
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
    fn on_partial_content(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let Some(req) = self.transfers.reqs.get(&id) else { return };
        // The first request covers the whole file, whatever provisional end its range has.
        let (requested, conn) = (
            if first_request::is_first_request(&self.transfers, id) {
                ByteRange::new(0, u64::MAX)
            } else {
                req.range
            },
            req.conn,
        );
        let range = match head.range {
            Some(ContentRange { range: Some(range), .. }) => range,
            // An empty range at the end of the file.
            Some(ContentRange { total: Some(total), .. }) if total.bytes() <= requested.start => {
                return self.on_range_not_satisfiable(id, link, head);
            }
            _ => return self.on_unusable_range(id, link, "206 without a usable Content-Range", head),
        };
        let total = head.range.and_then(|range| range.total);
        if head.is_encoded {
            return self.on_protocol_violation(id, link, "an encoded range although identity was requested");
        }
        if head.length.is_some_and(|length| length != range.len()) {
            return self.on_unusable_range(id, link, "a Content-Length that differs from the range", head);
        }
        let within = range.start == requested.start && range.end <= requested.end;
        if !within
            && total.is_some_and(|total| range == ByteRange::at(0, total))
            && !first_request::is_first_request(&self.transfers, id)
        {
            return self.on_full_content_as_partial(id, link, head);
        }
        // More than the requested range is usable if the head is consistent. What precedes the range is skipped, up to
        // a limit.
        let skipped = DataSize::from_bytes(requested.start.saturating_sub(range.start));
        let exceeds_request =
            head.length.is_some() && range.start <= requested.start && requested.start < range.end;
        if !within && (!exceeds_request || skipped > MAX_SKIPPED) {
            // The range is unusable, but no portal states a total size: remember it.
            if let Some(total) =
                total.filter(|total| self.transfers.resource.phase == Phase::Unknown && range.end <= total.bytes())
            {
                self.transfers.resource.pending.report(link, Some(total), head.validator.as_ref(), true);
            }
            return self.on_unusable_range(id, link, "a range other than the requested one", head);
        }
        let total = match (
            total,
            self.transfers.coverage.total().filter(|_| self.transfers.resource.phase == Phase::Ranges),
        ) {
            (Some(total), _) => total,
            // The total is unknown to the server: the validator will show whether it is the file whose size is known.
            (None, Some(known)) => known,
            (None, None) => return self.switch_to_single_response(SingleResponseReason::NoLength, Some(conn)),
        };
        if is_unexpected_size(&self.transfers, total) {
            return self.on_wrong_size(id, link, total);
        }
        if is_suspect_length(&self.transfers, id, total) {
            return self.recheck_length(id);
        }
        if range.end > total.bytes() {
            return self.on_unusable_range(id, link, "a range beyond the end of the file", head);
        }
        // A small HTML page that claims to be the whole file may be an error page. One request without a range decides.
        let small_page = head.is_html_page && range == ByteRange::at(0, total) && total <= INITIAL_RANGE;
        if small_page && refusals::retry_without_range(&mut self.transfers, id, link) {
            return;
        }
        // First identify (the size becomes known), then compare the version, then accept the bytes.
        if self.transfers.resource.phase == Phase::Unknown
            && !self.identify(id, total, head.validator.as_ref(), range)
        {
            return;
        }
        if !self.check_version(id, link, total, head) {
            return;
        }
        self.accept_range(id, range);
        portal_check::confirm_ranges(&mut self.transfers, &mut self.mirrors);
        self.give_up_tiny_ranges(id, range);
    }

    /// Counts responses of a few bytes where more was requested. After several in a row, ranges are given up.
    fn give_up_tiny_ranges(&mut self, id: ReqId, range: ByteRange) {
        let total = self.transfers.coverage.total().unwrap_or_default();
        let Some(req) = self.transfers.reqs.get(&id) else { return };
        let requested = requested_len(req.range_requested).unwrap_or(DataSize::MAX);
        let Some(mirror) = self.transfers.conns.get(&req.conn).map(|conn| conn.mirror) else { return };
        let is_part = range.end < total.bytes();
        if self.transfers.quirks.of_mut(mirror).on_range_len(range.len(), requested, is_part) {
            self.switch_to_single_response(SingleResponseReason::UnusableRanges, None);
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

    /// The first usable response identifies the resource. Returns false if this response cannot be used after all.
    fn identify(&mut self, id: ReqId, total: DataSize, validator: Option<&Validator>, range: ByteRange) -> bool {
        let provable = validator.is_some() || self.mirrors.is_result_verifiable();
        if !provable && let Some(link) = self.transfers.request_link(id) {
            self.transfers.resource.pending.report(link, Some(total), None, true);
        }
        if !provable && range != ByteRange::at(0, total) {
            let conn = self.transfers.reqs.get(&id).map(|req| req.conn);
            self.switch_to_single_response(SingleResponseReason::NoValidator, conn);
            return false;
        }
        // Without a validator, a response that covers the whole file is used alone.
        self.transfers.resource.phase =
            if provable { Phase::Ranges } else { Phase::SingleResponse { req: Some(id) } };
        if !provable {
            if first_request::is_first_request(&self.transfers, id) && total > INITIAL_RANGE {
                self.transfers.notice(Notice::SingleResponse { reason: SingleResponseReason::NoValidator });
            }
            self.transfers.resource.single_response_link = self.transfers.request_link(id);
            self.transfers.close_other_conns(id);
        }
        if self.transfers.resource.initial_request == InitialRequest::SmallRange
            && let Some(mirror) = self
                .transfers
                .reqs
                .get(&id)
                .and_then(|req| self.transfers.conns.get(&req.conn))
                .map(|conn| conn.mirror)
        {
            let refused = if self.transfers.config.open_ended_first { total } else { INITIAL_RANGE };
            self.transfers.quirks.of_mut(mirror).set_refused_size(refused);
        }
        self.transfers.set_total(total);
        self.transfers.outputs.push_back(Output::Identified { total: Some(total), validator: validator.cloned() });
        refusals::cancel_full_requests(&mut self.transfers);
        true
    }

    /// Accepts the bytes of `range` up to the end of the request. Some may be stored already, and some may be missing.
    fn accept_range(&mut self, id: ReqId, range: ByteRange) {
        let is_only_link = self.transfers.links.values().filter(|link| link.may_deliver()).count() == 1;
        let is_first = self.transfers.resource.first_request == Some(id)
            && self.transfers.coverage.total().is_none_or(|total| range.end == total.bytes());
        if self.transfers.resource.first_request == Some(id) && !is_first {
            // The server limited the response to `bytes=0-`: an ordinary range from now on.
            self.transfers.resource.first_request = None;
        }
        let Some(req) = self.transfers.reqs.get(&id) else { return };
        let mut end =
            range.end.min(if req.range_requested == RequestRange::From(0) { u64::MAX } else { req.range.end });
        // The server sends more than requested. If no other link can deliver, accept the free bytes behind the request
        // as well.
        if is_only_link && !self.transfers.reader.is_present() {
            end = self
                .transfers
                .coverage
                .next_free(end, range.end)
                .filter(|free| free.start == end)
                .map_or(end, |free| free.end);
        }
        if is_first {
            end = if self.transfers.resource.phase == Phase::Ranges {
                req.range.end.min(range.end)
            } else {
                range.end
            };
        }
        let (is_changed, is_truncated) =
            (range.start < req.range.start || end != req.range.end, end < range.end && !is_first);
        let (requested_len, link, mirror) = (
            requested_len(req.range_requested),
            self.transfers.request_link(id),
            self.transfers.conns.get(&req.conn).map(|conn| conn.mirror),
        );
        if let Some(req) = self.transfers.reqs.get_mut(&id) {
            req.is_accepted = true;
            req.range = ByteRange::new(range.start, end);
            req.next_offset = range.start;
        }
        if let Some(link) = link.and_then(|link| self.transfers.links.get_mut(&link)) {
            link.responses_from_target = link.responses_from_target.saturating_add(1);
        }
        if let Some(mirror) = mirror {
            let quirks = self.transfers.quirks.of_mut(mirror);
            quirks.on_range_served(requested_len.unwrap_or_default());
            // The rest of the body is cut off, and with it the HTTP/1.1 connection.
            quirks.is_short_lived |= is_truncated;
        }
        if is_changed {
            self.transfers.rebuild_claims();
        }
        let end = if is_first { range.end } else { end };
        self.accept_body(id, range.start, Some(DataSize::from_bytes(end - range.start)));
        if is_first {
            first_request::update_first_response(&mut self.transfers);
        }
    }

    /// A redirect: stores the target for this link and mirror, and moves the link's connections to it.
    ///
    /// Expired targets and redirect loops are handled first.
    fn on_redirect(&mut self, id: ReqId, link_id: LinkId, head: &ResponseHead) {
        let conn = self.transfers.reqs.get(&id).and_then(|req| self.transfers.conns.get(&req.conn));
        let from_url = conn.map(|conn| (conn.mirror, conn.cdn_node.url));
        if refusals::handle_expired_target(&mut self.transfers, id, link_id, head.status) {
            return;
        }
        let (Some((mirror, from)), Some(link)) = (from_url, self.transfers.links.get_mut(&link_id)) else { return };
        let max = self.transfers.config.max_redirects;
        let is_loop = head.location.is_some_and(|to| link.is_redirect_loop(mirror, from, to));
        let is_over = link.redirects > max || (is_loop && max > FEW_REDIRECTS);
        // Range requests may be redirected in a loop while others are not: try one without a range.
        if is_over && max > FEW_REDIRECTS && refusals::retry_without_range(&mut self.transfers, id, link_id) {
            if let Some(link) = self.transfers.links.get_mut(&link_id) {
                link.forget_redirects();
            }
            return;
        }
        let Some(link) = self.transfers.links.get_mut(&link_id) else { return };
        match head.location {
            Some(target) if !is_over => {
                link.redirect_targets.insert(mirror, CdnNode { url: target, address: None });
                link.responses_from_target = 0;
                link.next_attempt = self.transfers.now;
                drain_old_target(&mut self.transfers, link_id);
            }
            // A redirect without Location may depend on the Range field; a target that must not be followed does not.
            _ if !head.has_location && refusals::retry_without_range(&mut self.transfers, id, link_id) => {}
            _ => {
                let failure = match head.location {
                    Some(_) => Failure::RedirectLoop,
                    None => Failure::ProtocolViolation {
                        text: "a redirect whose target cannot be read or followed".into(),
                    },
                };
                self.on_refused(id, link_id, BanReason::BadStatus { status: head.status }, failure);
            }
        }
    }

    /// Holds a response until other links have responded; `unusable_reason`: why this response to a range request
    /// cannot be used.
    fn hold_response(&mut self, id: ReqId, link: LinkId, head: &ResponseHead, unusable_reason: Option<&str>) {
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
                self.transfers.outputs.push_back(Output::Identified { total: Some(total), validator: None });
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

    /// A 206 to a request without a range: accepted as a 200 if it covers the whole file.
    pub(super) fn on_partial_to_full_request(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let length = match head.range {
            None => head.length,
            Some(ContentRange { range: Some(range), total })
                if range.start == 0
                    && total.is_none_or(|total| total == range.len())
                    && head.length.is_none_or(|length| length == range.len()) =>
            {
                total.or(head.length)
            }
            Some(_) => {
                return self.on_protocol_violation(id, link, "a part of the file although all of it was requested");
            }
        };
        self.on_full_response(id, link, RequestRange::Full, &ResponseHead { status: 200, length, ..head.clone() });
    }

    /// Rule 4: the whole file as 206 to a request for a range.
    pub(super) fn on_full_content_as_partial(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let length = head.range.and_then(|range| range.total);
        self.on_full_response(id, link, RequestRange::Full, &ResponseHead { status: 200, length, ..head.clone() });
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
        if let Some(actual) = head.length.filter(|actual| is_unexpected_size(&self.transfers, *actual)) {
            return self.on_wrong_size(id, link, actual);
        }
        if head.length.is_some_and(|length| is_suspect_length(&self.transfers, id, length)) {
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
            // The last resort of the last link (rule 5).
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

    /// Accepts this response as the whole file, and closes all other connections.
    pub(super) fn accept_full_response(&mut self, id: ReqId, head: &ResponseHead) {
        if !self.transfers.resource.is_single_response() {
            let reason =
                if head.length.is_none() { SingleResponseReason::NoLength } else { SingleResponseReason::NoRanges };
            self.transfers.notice(Notice::SingleResponse { reason });
        }
        self.transfers.resource.phase = Phase::SingleResponse { req: Some(id) };
        self.transfers.resource.single_response_link = self.transfers.request_link(id);
        if let Some(link) = self.transfers.resource.single_response_link {
            // This response replaces what earlier ones stated about the version.
            if head.validator.is_some() {
                self.transfers.resource.pending.drop_report_if(|_| true);
            }
            self.transfers.resource.pending.report(link, head.length, head.validator.as_ref(), false);
        }
        self.transfers.close_other_conns(id);
        if let Some(req) = self.transfers.reqs.get_mut(&id) {
            req.range = ByteRange::new(0, head.length.map_or(u64::MAX, DataSize::bytes));
            req.next_offset = 0;
            req.is_accepted = true;
        }
        if let Some(total) = head.length {
            self.transfers.coverage.set_total(total);
        }
        self.transfers.rebuild_claims();
        self.transfers.outputs.push_back(Output::Identified { total: head.length, validator: None });
        self.accept_body(id, 0, head.length);
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

    /// Requests the resource in another form, once all links that may respond have been refused. Returns true if another
    /// form is tried.
    pub(super) fn try_other_initial_request(&mut self, id: ReqId, link: LinkId, status: u16) -> bool {
        if self.mirrors.has_untried_mirror(&self.transfers, link) {
            return false;
        }
        match refusals::other_initial_request(&mut self.transfers, id, link, status) {
            OtherRequest::None => false,
            OtherRequest::Ranged => true,
            OtherRequest::Full => {
                self.fall_back_without_range(id);
                true
            }
        }
    }

    /// The server is busy (429, 503) or fails: another form of request, another mirror, or a pause of the link.
    fn on_server_busy(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let status = head.status;
        if refusals::avoid_busy_server(&mut self.transfers, id, link, head) {
            return;
        }
        let failed = self.transfers.links.get(&link).map_or(0, |link| link.failures);
        // An application that fails because of the Range field fails every time.
        if status != 429 && status != 503 && failed > 0 && self.try_other_initial_request(id, link, status) {
            return;
        }
        let transfers = &mut self.transfers;
        refusals::note_failed_initial_request(transfers, id, link);
        transfers.cancel_request(id);
        let reason = BanReason::BadStatus { status };
        // Another mirror may be less busy.
        if first_request::protect_first_response(transfers, link)
            || self.mirrors.try_next_mirror(transfers, link, &reason)
        {
            return;
        }
        if !refusals::wait_for_busy_server(transfers, link, head) {
            self.ban_or_fail(link, reason, false, Failure::BadStatus { status });
        }
    }

    /// An unusable response to a range request. Other links may get better ones. If the server always responds like
    /// this, the whole file is requested without a range.
    pub(super) fn on_unusable_range(&mut self, id: ReqId, link_id: LinkId, text: &str, head: &ResponseHead) {
        if self.transfers.resource.phase == Phase::Unknown
            && portal_check::awaits_other_links(&self.transfers, link_id)
        {
            return self.hold_response(id, link_id, head, Some(text));
        }
        let is_other_verified =
            |(other, link): (&LinkId, &Link)| *other != link_id && link.is_in_service() && link.stats.is_verified;
        if self.mirrors.has_untried_mirror(&self.transfers, link_id)
            || self.transfers.links.iter().any(is_other_verified)
            || self.transfers.resource.is_single_response()
        {
            return self.on_protocol_violation(id, link_id, text);
        }
        let conn = self.transfers.reqs.get(&id).map(|req| req.conn);
        let mirror = conn.and_then(|conn| self.transfers.conns.get(&conn)).map(|conn| conn.mirror);
        let served = mirror.is_some_and(|mirror| self.transfers.quirks.serves_ranges(mirror));
        if first_request::protect_first_response(&mut self.transfers, link_id) {
            return self.transfers.cancel_request(id);
        }
        let Some(link) = self.transfers.links.get_mut(&link_id) else { return };
        link.failures += 1;
        let wait = link.backoff();
        if !served || link.failures > self.transfers.config.retries {
            return self.switch_to_single_response(SingleResponseReason::UnusableRanges, conn);
        }
        self.transfers.cancel_request(id);
        self.transfers.delay_link(link_id, wait);
    }

    /// Makes the driver store the body of a response.
    fn accept_body(&mut self, id: ReqId, at: u64, len: Option<DataSize>) {
        let conn = self.transfers.reqs.get(&id).and_then(|req| self.transfers.conns.get(&req.conn));
        let foreign = conn.is_some_and(|conn| self.mirrors.is_other_mirror(conn.mirror));
        self.transfers.outputs.push_back(Output::AcceptBody { req: id, offset: at, len, is_other_mirror: foreign });
    }
}

/// Whether the first response states a file size equal to the end of the request. Some servers number the bytes of
/// a part as if it were the whole file.
pub(super) fn is_suspect_length(transfers: &Transfers, id: ReqId, total: DataSize) -> bool {
    let requested = transfers.reqs.get(&id).map(|req| req.range_requested);
    // An open-ended range has no end that a server could repeat, and players send such ranges everywhere.
    let ends_there = matches!(requested, Some(RequestRange::Bounded(range)) if range.end == total.bytes());
    let is_known = transfers.config.expected_size.is_some()
        || transfers.config.resume.is_some()
        || transfers.coverage.total().is_some();
    transfers.resource.phase == Phase::Unknown && ends_there && !is_known
}

/// Whether this size differs from the size that the file must have.
pub(super) fn is_unexpected_size(transfers: &Transfers, total: DataSize) -> bool {
    transfers.config.expected_size.is_some_and(|expected| expected != total)
}

/// Connections to the previous target: those that deliver complete their requests, the others are closed.
fn drain_old_target(transfers: &mut Transfers, link: LinkId) {
    let Some(link) = transfers.links.get(&link) else { return };
    for id in link.conns.clone() {
        let is_delivering = |conn: &Conn| {
            let front = conn.reqs.front().and_then(|req| transfers.reqs.get(req));
            front.is_some_and(|req| req.is_accepted && !req.remaining().is_empty())
        };
        if transfers.resource.phase == Phase::Ranges && transfers.conns.get(&id).is_some_and(is_delivering) {
            transfers.conns.entry(id).and_modify(|conn| conn.is_draining = true);
        } else {
            transfers.remove_conn(id, true);
        }
    }
}

/// Maximum number of unneeded bytes in front of the requested range. chosen: one second of a slow link.
const MAX_SKIPPED: DataSize = DataSize::from_mib(1);
/// Size of the initial request after a larger one was refused. Hosts that limit the size of a range allow this much.
pub(super) const SMALL_RANGE: DataSize = DataSize::from_kib(4);
/// Delay of a link that was refused while the first request has no response yet.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(5);
/// If the limit of redirects is at most this, loops are not detected: the limit ends them.
const FEW_REDIRECTS: u32 = 10;
/// Delay of a link that requested bytes behind the end of a small file.
const BEYOND_END_DELAY: Duration = Duration::from_millis(200);
