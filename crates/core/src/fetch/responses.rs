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
use super::links::{CdnNode, Link};
use super::scheduler::MIN_REQUEST;
use super::server_quirks::requested_len;
use super::{
    BanReason, ByteRange, ContentRange, Failure, Fetch, InitialRequest, Notice, Output, Phase, ReqId, RequestRange,
    ResponseHead, SingleResponseReason, Validator,
};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Entry point: dispatches a response head by its status.
    ///
    /// The order of the arms matters. Redirects with a target come before those without. A range request that gets a
    /// bodiless status is repeated without a range before the status is taken at its word.
    pub(super) fn on_head(&mut self, id: ReqId, head: &ResponseHead) {
        let Some(req) = self.reqs.get(&id) else { return };
        let (conn_id, requested) = (req.conn, req.range_requested);
        let Some(conn) = self.conns.get_mut(&conn_id) else { return };
        let (link, mirror) = (conn.link, conn.mirror);
        conn.last_activity = self.now;
        if let Some(link) = self.links.get_mut(&link) {
            conn.end_server_delay(self.now, &mut link.stats.server_delays);
        }
        let announces_end = head.closes_connection && head.status == 206 && !conn.is_draining;
        conn.is_draining |= head.closes_connection;
        let responses = conn.responses + 1;
        if req.is_pipelined {
            self.quirks_mut(mirror).on_pipelined_answered();
        }
        if announces_end {
            self.quirks_mut(mirror).on_server_close(responses);
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
            204 | 205 | 300..=308 if requested != RequestRange::Full && self.retry_without_range(id, link) => {}
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
        let Some(req) = self.reqs.get(&id) else { return };
        // The first request covers the whole file, whatever provisional end its range has.
        let (requested, conn) =
            (if self.is_first_request(id) { ByteRange::new(0, u64::MAX) } else { req.range }, req.conn);
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
        if !within && total.is_some_and(|total| range == ByteRange::at(0, total)) && !self.is_first_request(id) {
            return self.on_full_content_as_partial(id, link, head);
        }
        // More than the requested range is usable if the head is consistent. What precedes the range is skipped, up to
        // a limit.
        let skipped = DataSize::from_bytes(requested.start.saturating_sub(range.start));
        let exceeds_request =
            head.length.is_some() && range.start <= requested.start && requested.start < range.end;
        if !within && (!exceeds_request || skipped > MAX_SKIPPED) {
            // The range is unusable, but no portal states a total size: remember it.
            if let Some(total) = total.filter(|total| self.phase == Phase::Unknown && range.end <= total.bytes()) {
                self.record_reported_file(link, Some(total), head.validator.as_ref(), true);
            }
            return self.on_unusable_range(id, link, "a range other than the requested one", head);
        }
        let total = match (total, self.coverage.total().filter(|_| self.phase == Phase::Ranges)) {
            (Some(total), _) => total,
            // The total is unknown to the server: the validator will show whether it is the file whose size is known.
            (None, Some(known)) => known,
            (None, None) => return self.switch_to_single_response(SingleResponseReason::NoLength, Some(conn)),
        };
        if self.is_unexpected_size(total) {
            return self.on_wrong_size(id, link, total);
        }
        if self.is_suspect_length(id, total) {
            return self.recheck_length(id);
        }
        if range.end > total.bytes() {
            return self.on_unusable_range(id, link, "a range beyond the end of the file", head);
        }
        // A small HTML page that claims to be the whole file may be an error page. One request without a range decides.
        let small_page = head.is_html_page && range == ByteRange::at(0, total) && total <= INITIAL_RANGE;
        if small_page && self.retry_without_range(id, link) {
            return;
        }
        // First identify (the size becomes known), then compare the version, then accept the bytes.
        if self.phase == Phase::Unknown && !self.identify(id, total, head.validator.as_ref(), range) {
            return;
        }
        if !self.check_version(id, link, total, head) {
            return;
        }
        self.accept_range(id, range);
        self.resolve_pending_as_ranges();
        self.give_up_tiny_ranges(id, range);
    }

    /// Counts responses of a few bytes where more was requested. After several in a row, ranges are given up.
    fn give_up_tiny_ranges(&mut self, id: ReqId, range: ByteRange) {
        let total = self.coverage.total().unwrap_or_default();
        let Some(req) = self.reqs.get(&id) else { return };
        let requested = requested_len(req.range_requested).unwrap_or(DataSize::MAX);
        let Some(mirror) = self.conns.get(&req.conn).map(|conn| conn.mirror) else { return };
        let quirks = self.quirks_mut(mirror);
        if range.len() < TINY_RANGE && range.len() < requested && range.end < total.bytes() {
            quirks.tiny_ranges += 1;
            if quirks.tiny_ranges >= MAX_TINY_RANGES {
                self.switch_to_single_response(SingleResponseReason::UnusableRanges, None);
            }
        } else if range.len() >= TINY_RANGE {
            quirks.tiny_ranges = 0;
        }
    }

    /// Whether the first response states a file size equal to the end of the request. Some servers number the bytes of
    /// a part as if it were the whole file.
    pub(super) fn is_suspect_length(&self, id: ReqId, total: DataSize) -> bool {
        let requested = self.reqs.get(&id).map(|req| req.range_requested);
        // An open-ended range has no end that a server could repeat, and players send such ranges everywhere.
        let ends_there = matches!(requested, Some(RequestRange::Bounded(range)) if range.end == total.bytes());
        let is_known =
            self.config.expected_size.is_some() || self.config.resume.is_some() || self.coverage.total().is_some();
        self.phase == Phase::Unknown && ends_there && !is_known
    }

    /// Checks a suspect length with a request for the whole file.
    pub(super) fn recheck_length(&mut self, id: ReqId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        self.switch_to_single_response(SingleResponseReason::SuspectLength, conn);
    }

    /// Whether this size differs from the size that the file must have.
    pub(super) fn is_unexpected_size(&self, total: DataSize) -> bool {
        self.config.expected_size.is_some_and(|expected| expected != total)
    }

    /// The mirror's file has another size than required: treats it as a refusal.
    pub(super) fn on_wrong_size(&mut self, id: ReqId, link: LinkId, actual: DataSize) {
        let expected = self.config.expected_size.unwrap_or_default();
        let text = format!("the file is {} bytes long instead of {}", actual.bytes(), expected.bytes());
        let ban = BanReason::LengthMismatch { actual: Some(actual), expected: Some(expected) };
        self.on_refused(id, link, ban, Failure::ProtocolViolation { text });
    }

    /// The first usable response identifies the resource. Returns false if this response cannot be used after all.
    fn identify(&mut self, id: ReqId, total: DataSize, validator: Option<&Validator>, range: ByteRange) -> bool {
        let provable = validator.is_some() || self.is_result_verifiable();
        if !provable && let Some(link) = self.request_link(id) {
            self.record_reported_file(link, Some(total), None, true);
        }
        if !provable && range != ByteRange::at(0, total) {
            let conn = self.reqs.get(&id).map(|req| req.conn);
            self.switch_to_single_response(SingleResponseReason::NoValidator, conn);
            return false;
        }
        // Without a validator, a response that covers the whole file is used alone.
        self.phase = if provable { Phase::Ranges } else { Phase::SingleResponse { req: Some(id) } };
        if !provable {
            if self.is_first_request(id) && total > INITIAL_RANGE {
                self.notice(Notice::SingleResponse { reason: SingleResponseReason::NoValidator });
            }
            self.single_response_link = self.request_link(id);
            self.close_other_conns(id);
        }
        if self.initial_request == InitialRequest::SmallRange
            && let Some(mirror) =
                self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.mirror)
        {
            let refused = if self.config.open_ended_first { total } else { INITIAL_RANGE };
            self.quirks_mut(mirror).set_refused_size(refused);
        }
        self.set_total(total);
        self.outputs.push_back(Output::Identified { total: Some(total), validator: validator.cloned() });
        self.cancel_full_requests();
        true
    }

    /// Sets the size: open-ended requests get their end, and requests behind the end become empty.
    fn set_total(&mut self, total: DataSize) {
        self.coverage.set_total(total);
        for req in self.reqs.values_mut() {
            req.range.end = req.range.end.min(total.bytes()).max(req.next_offset);
        }
        self.rebuild_claims();
    }

    /// Makes the driver store the body of a response.
    pub(super) fn accept_body(&mut self, id: ReqId, at: u64, len: Option<DataSize>) {
        let conn = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let foreign = conn.is_some_and(|conn| self.is_other_mirror(conn.mirror));
        self.outputs.push_back(Output::AcceptBody { req: id, offset: at, len, is_other_mirror: foreign });
    }

    /// Accepts the bytes of `range` up to the end of the request. Some may be stored already, and some may be missing.
    fn accept_range(&mut self, id: ReqId, range: ByteRange) {
        let is_only_link = self.links.values().filter(|link| link.may_deliver()).count() == 1;
        let is_first =
            self.first_request == Some(id) && self.coverage.total().is_none_or(|total| range.end == total.bytes());
        if self.first_request == Some(id) && !is_first {
            // The server limited the response to `bytes=0-`: an ordinary range from now on.
            self.first_request = None;
        }
        let Some(req) = self.reqs.get(&id) else { return };
        let mut end =
            range.end.min(if req.range_requested == RequestRange::From(0) { u64::MAX } else { req.range.end });
        // The server sends more than requested. If no other link can deliver, accept the free bytes behind the request
        // as well.
        if is_only_link && self.config.reader_window.is_none() {
            end = self
                .coverage
                .next_free(end, range.end)
                .filter(|free| free.start == end)
                .map_or(end, |free| free.end);
        }
        if is_first {
            end = if self.phase == Phase::Ranges { req.range.end.min(range.end) } else { range.end };
        }
        let (is_changed, is_truncated) =
            (range.start < req.range.start || end != req.range.end, end < range.end && !is_first);
        let (requested_len, link, mirror) = (
            requested_len(req.range_requested),
            self.request_link(id),
            self.conns.get(&req.conn).map(|conn| conn.mirror),
        );
        if let Some(req) = self.reqs.get_mut(&id) {
            req.is_accepted = true;
            req.range = ByteRange::new(range.start, end);
            req.next_offset = range.start;
        }
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            link.responses_from_target = link.responses_from_target.saturating_add(1);
        }
        if let Some(mirror) = mirror {
            let quirks = self.quirks_mut(mirror);
            quirks.on_range_served(requested_len.unwrap_or_default());
            // The rest of the body is cut off, and with it the HTTP/1.1 connection.
            quirks.is_short_lived |= is_truncated;
        }
        if is_changed {
            self.rebuild_claims();
        }
        let end = if is_first { range.end } else { end };
        self.accept_body(id, range.start, Some(DataSize::from_bytes(end - range.start)));
        if is_first {
            self.update_first_response();
        }
    }

    /// A redirect: stores the target for this link and mirror, and moves the link's connections to it.
    ///
    /// Expired targets and redirect loops are handled first.
    fn on_redirect(&mut self, id: ReqId, link_id: LinkId, head: &ResponseHead) {
        let conn = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let from_url = conn.map(|conn| (conn.mirror, conn.cdn_node.url));
        if self.handle_expired_target(id, link_id, head.status) {
            return;
        }
        let (Some((mirror, from)), Some(link)) = (from_url, self.links.get_mut(&link_id)) else { return };
        let max = self.config.max_redirects;
        let is_loop = head.location.is_some_and(|to| link.is_redirect_loop(mirror, from, to));
        let is_over = link.redirects > max || (is_loop && max > FEW_REDIRECTS);
        // Range requests may be redirected in a loop while others are not: try one without a range.
        if is_over && max > FEW_REDIRECTS && self.retry_without_range(id, link_id) {
            if let Some(link) = self.links.get_mut(&link_id) {
                link.forget_redirects();
            }
            return;
        }
        let Some(link) = self.links.get_mut(&link_id) else { return };
        match head.location {
            Some(target) if !is_over => {
                link.redirect_targets.insert(mirror, CdnNode { url: target, address: None });
                link.responses_from_target = 0;
                link.next_attempt = self.now;
                self.drain_old_target(link_id);
            }
            // A redirect without Location may depend on the Range field; a target that must not be followed does not.
            _ if !head.has_location && self.retry_without_range(id, link_id) => {}
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

    /// Connections to the previous target: those that deliver complete their requests, the others are closed.
    fn drain_old_target(&mut self, link: LinkId) {
        let Some(link) = self.links.get(&link) else { return };
        for id in link.conns.clone() {
            let is_delivering = |conn: &Conn| {
                let front = conn.reqs.front().and_then(|req| self.reqs.get(req));
                front.is_some_and(|req| req.is_accepted && !req.remaining().is_empty())
            };
            if self.phase == Phase::Ranges && self.conns.get(&id).is_some_and(is_delivering) {
                self.conns.entry(id).and_modify(|conn| conn.is_draining = true);
            } else {
                self.remove_conn(id, true);
            }
        }
    }

    /// 416 (range not satisfiable): the range may lie behind the end of the file, or the server may refuse ranges.
    fn on_range_not_satisfiable(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let total = head.range.and_then(|range| range.total);
        if total.is_none() && self.retry_smaller(id, head.status) {
            return;
        }
        let start = self.reqs.get(&id).map_or(0, |req| req.range.start);
        match (self.phase, total) {
            // An empty file, or a seek beyond the end: nothing more is needed.
            (Phase::Unknown, Some(total)) if total.bytes() <= self.coverage.in_order_end() => {
                self.phase = Phase::Ranges;
                self.set_total(total);
                self.outputs.push_back(Output::Identified { total: Some(total), validator: None });
                self.finish_if_complete();
            }
            // By the server's own total, the range begins within the file. So the Range field is the problem.
            (Phase::Unknown, Some(total)) if start < total.bytes() => {
                if !self.retry_without_range(id, link) {
                    let status = head.status;
                    self.on_refused(id, link, BanReason::BadStatus { status }, Failure::BadStatus { status });
                }
            }
            // The file is small, and the first response, for the bytes before these, is still in flight.
            (Phase::Unknown, Some(total)) => {
                self.cancel_request(id);
                self.delay_link(link, BEYOND_END_DELAY);
                self.record_reported_file(link, Some(total), None, true);
                self.ban_other_sizes(total);
            }
            // The size is not stated: the server refuses ranges in general, or a portal answers.
            (Phase::Unknown, None) if self.awaits_other_links(link) => self.hold_response(id, link, head),
            (Phase::Unknown, None) => self.fall_back_without_range(id),
            (Phase::SingleResponse { .. }, None) => {
                self.cancel_request(id);
                let reason = BanReason::BadStatus { status: head.status };
                if !self.try_next_mirror(link, &reason) {
                    self.ban_or_fail(link, reason, false, Failure::BadStatus { status: head.status });
                }
            }
            (_, total) if total.is_some() && total == self.coverage.total() => {
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
                self.cancel_request(id);
                self.delay_link(link, BEYOND_END_DELAY);
            }
            (_, actual) => {
                let expected = self.coverage.total();
                self.on_version_mismatch(
                    id,
                    link,
                    BanReason::LengthMismatch { actual, expected },
                    None,
                    actual.is_some(),
                );
            }
        }
    }

    /// The server refuses a range without a reason: the whole file is requested once.
    pub(super) fn fall_back_without_range(&mut self, id: ReqId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        self.switch_to_single_response(SingleResponseReason::NoRanges, conn);
    }

    /// Any other status. Errors of the server are retried, refusals are not.
    fn on_other_status(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let status = head.status;
        if self.handle_expired_target(id, link, status) || self.retry_smaller(id, status) {
            return;
        }
        if self.should_ignore_refusal(id) {
            self.cancel_request(id);
            return self.delay_link(link, FIRST_REQUEST_GRACE);
        }
        // The target may serve only requests without a range.
        let is_redirected =
            self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).is_some_and(Conn::is_redirected);
        if (is_redirected || status == 304) && self.retry_without_range(id, link) {
            return;
        }
        if matches!(status, 408 | 500 | 502 | 504) {
            return self.on_server_busy(id, link, head);
        }
        if self.check_without_range(id, link, status) {
            return;
        }
        // All links may be refused alike, so their responses are compared.
        let same_status = self.pending_responses.iter().any(|pending| pending.head.status == status);
        if self.phase == Phase::Unknown && (same_status || self.awaits_other_links(link)) {
            return self.hold_response(id, link, head);
        }
        if self.try_other_initial_request(id, link, status) {
            return;
        }
        self.on_refused(id, link, BanReason::BadStatus { status }, Failure::BadStatus { status });
    }

    /// The link gets nothing from its present mirror: switches to the next mirror, bans the link, or ends the download.
    pub(super) fn on_refused(&mut self, id: ReqId, link_id: LinkId, ban: BanReason, failure: Failure) {
        self.cancel_request(id);
        if self.protect_first_response(link_id) || self.try_next_mirror(link_id, &ban) {
            return;
        }
        let probing = self.may_deliver_again();
        self.ban_or_fail(link_id, ban, probing, failure);
    }

    /// Whether the resource has been delivered by the mirror, so that a refusal may be temporary.
    pub(super) fn may_deliver_again(&self) -> bool {
        match self.phase {
            Phase::Unknown => false,
            Phase::Ranges | Phase::Finished => true,
            Phase::SingleResponse { .. } => self.links.values().any(Link::has_delivered_from_mirror),
        }
    }

    /// Bans a link. If no other link could deliver, reports the failure itself instead.
    pub(super) fn ban_or_fail(&mut self, link_id: LinkId, reason: BanReason, probing: bool, failure: Failure) {
        if self.schedule_full_request(link_id, &reason) {
            return;
        }
        let others = self.links.iter().any(|(id, link)| *id != link_id && link.may_deliver());
        if others || probing {
            self.ban(link_id, reason, probing);
            self.fail_if_no_link_left(failure);
        } else {
            self.failover_or_fail(failure);
        }
    }

    /// An unusable response to a range request. Other links may get better ones. If the server always responds like
    /// this, the whole file is requested without a range.
    pub(super) fn on_unusable_range(&mut self, id: ReqId, link_id: LinkId, text: &str, head: &ResponseHead) {
        if self.phase == Phase::Unknown && self.awaits_other_links(link_id) {
            return self.hold_unusable_response(id, link_id, head, text);
        }
        let is_other_verified =
            |(other, link): (&LinkId, &Link)| *other != link_id && link.is_in_service() && link.stats.is_verified;
        if self.has_untried_mirror(link_id)
            || self.links.iter().any(is_other_verified)
            || matches!(self.phase, Phase::SingleResponse { .. })
        {
            return self.on_protocol_violation(id, link_id, text);
        }
        let conn = self.reqs.get(&id).map(|req| req.conn);
        let mirror = conn.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.mirror);
        let served = mirror.is_some_and(|mirror| self.quirks_mut(mirror).serves_ranges());
        if self.protect_first_response(link_id) {
            return self.cancel_request(id);
        }
        let Some(link) = self.links.get_mut(&link_id) else { return };
        link.failures += 1;
        let wait = link.backoff();
        if !served || link.failures > self.config.retries {
            return self.switch_to_single_response(SingleResponseReason::UnusableRanges, conn);
        }
        self.cancel_request(id);
        self.delay_link(link_id, wait);
    }

    /// A response that violates HTTP or the request: the next mirror, a ban, or the end of the download.
    pub(super) fn on_protocol_violation(&mut self, id: ReqId, link_id: LinkId, text: &str) {
        self.cancel_request(id);
        let reason = BanReason::ProtocolViolation { text: text.into() };
        if self.protect_first_response(link_id) || self.try_next_mirror(link_id, &reason) {
            return;
        }
        let probing = self.may_deliver_again();
        self.ban_or_fail(link_id, reason, probing, Failure::ProtocolViolation { text: text.into() });
    }

    /// The range for an initial request: the next unrequested bytes. Limited to this link's part of the reader's
    /// window, because a connection with more would wait for the others.
    pub(super) fn probe_range(&self) -> Option<ByteRange> {
        let free = self.coverage.next_free(0, self.window_end())?;
        let window_share =
            self.config.reader_window.map_or(DataSize::MAX, |window| window / (self.links.len() as u64).max(1));
        let first = match self.initial_request {
            InitialRequest::Range => INITIAL_RANGE,
            InitialRequest::SmallRange => SMALL_RANGE,
        };
        Some(ByteRange::at(free.start, free.len().min(first).min(window_share.max(MIN_REQUEST))))
    }
}

/// Maximum number of unneeded bytes in front of the requested range. chosen: one second of a slow link.
const MAX_SKIPPED: DataSize = DataSize::from_mib(1);
/// Size of the initial request after a larger one was refused. Hosts that limit the size of a range allow this much.
pub(super) const SMALL_RANGE: DataSize = DataSize::from_kib(4);
/// Ranges smaller than this, although more was requested, are given up after so many in a row.
const TINY_RANGE: DataSize = DataSize::from_kib(4);
const MAX_TINY_RANGES: u32 = 8;
/// Delay of a link that was refused while the first request has no response yet.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(5);
/// If the limit of redirects is at most this, loops are not detected: the limit ends them.
const FEW_REDIRECTS: u32 = 10;
/// Delay of a link that requested bytes behind the end of a small file.
const BEYOND_END_DELAY: Duration = Duration::from_millis(200);
