//! What an answer's head means: the same file, another file, a portal, a pause, the end.
//!
//! 1. A 206 with the asked range identifies the resource; nothing but the resource's own server can make one up.
//! 2. A 200 or an error may come from a captive portal: other links are heard first; see `opinions`.
//! 3. Later answers must agree in size and validator; see `same`.
//! 4. Without a strong validator two answers could be of two files, so everything comes from one answer, unless a
//!    checksum proves the whole; see `whole`. The same holds for a server whose answers to ranges cannot be used: what
//!    comes in one piece for other programs comes in one piece here.
//! 5. Redirects are followed and names resolved by each link for itself: its own edge of a content network, or its
//!    portal, which rule 2 then finds.
//!
//! Asking with HEAD first was not used: it costs a round trip, and servers answer it carelessly.

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
            // A part under the status of the whole.
            200 if requested != RequestRange::Full && head.range.is_some_and(|range| range.range.is_some()) => {
                self.on_partial_content(id, link, head);
            }
            // 203: a proxy has changed something (RFC 9110 §15.3.4). The others mean success to every downloader.
            200..=203 | 207..=299 => self.on_full_response(id, link, requested, head),
            300..=303 | 307 | 308 if head.has_location || head.location.is_some() => {
                self.on_redirect(id, link, head)
            }
            // Without a target a redirect is the response itself, as curl has it, and a 204 an empty file. To a request for a
            // range they say nothing of the file.
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

    /// 206: some of the bytes that were asked for.
    fn on_partial_content(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let Some(req) = self.reqs.get(&id) else { return };
        let (requested, conn) =
            (if self.is_first_request(id) { ByteRange::new(0, u64::MAX) } else { req.range }, req.conn);
        let range = match head.range {
            Some(ContentRange { range: Some(range), .. }) => range,
            // A range of no bytes, at the end of the file.
            Some(ContentRange { total: Some(total), .. }) if total.bytes() <= requested.start => {
                return self.on_range_not_satisfiable(id, link, head);
            }
            _ => return self.on_unusable_range(id, link, "206 without a usable Content-Range", head),
        };
        let total = head.range.and_then(|range| range.total);
        if head.is_encoded {
            return self.on_protocol_violation(id, link, "an encoded range although identity was asked for");
        }
        if head.length.is_some_and(|length| length != range.len()) {
            return self.on_unusable_range(id, link, "a Content-Length that is not its range's", head);
        }
        let within = range.start == requested.start && range.end <= requested.end;
        if !within && total.is_some_and(|total| range == ByteRange::at(0, total)) && !self.is_first_request(id) {
            return self.on_full_content_as_partial(id, link, head);
        }
        // More than was asked for is good if its head agrees with itself.
        let skipped = DataSize::from_bytes(requested.start.saturating_sub(range.start));
        let exceeds_request =
            head.length.is_some() && range.start <= requested.start && requested.start < range.end;
        if !within && (!exceeds_request || skipped > MAX_SKIPPED) {
            // Its total is that of the file all the same: no portal says one.
            if let Some(total) = total.filter(|total| self.phase == Phase::Unknown && range.end <= total.bytes()) {
                self.record_reported_file(link, Some(total), head.validator.as_ref(), true);
            }
            return self.on_unusable_range(id, link, "another range than the one that was asked for", head);
        }
        let total = match (total, self.coverage.total().filter(|_| self.phase == Phase::Ranges)) {
            (Some(total), _) => total,
            // Its validator will tell whether it is the file whose size is known.
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
            return self.on_unusable_range(id, link, "a range beyond the end", head);
        }
        // A small HTML page that claims to be all of the file may be an error page: one request without a range decides.
        let small_page = head.is_html_page && range == ByteRange::at(0, total) && total <= INITIAL_RANGE;
        if small_page && self.retry_without_range(id, link) {
            return;
        }
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

    /// Ranges of a few bytes each, where more was asked for, are not worth their requests.
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

    /// Whether a first answer says that the file ends exactly where the request did. Servers that number the bytes of a part
    /// as if it were the whole say so, too.
    pub(super) fn is_suspect_length(&self, id: ReqId, total: DataSize) -> bool {
        let requested = self.reqs.get(&id).map(|req| req.range_requested);
        // A range with an open end names no end that a server could repeat, and players send such ranges everywhere.
        let ends_there = matches!(requested, Some(RequestRange::Bounded(range)) if range.end == total.bytes());
        let is_known =
            self.config.expected_size.is_some() || self.config.resume.is_some() || self.coverage.total().is_some();
        self.phase == Phase::Unknown && ends_there && !is_known
    }

    /// The whole file is asked for instead.
    pub(super) fn recheck_length(&mut self, id: ReqId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        self.switch_to_single_response(SingleResponseReason::SuspectLength, conn);
    }

    /// Whether a file of this size is known to be another one.
    pub(super) fn is_unexpected_size(&self, total: DataSize) -> bool {
        self.config.expected_size.is_some_and(|expected| expected != total)
    }

    /// The source has a file of another size than the one that is wanted.
    pub(super) fn on_wrong_size(&mut self, id: ReqId, link: LinkId, actual: DataSize) {
        let expected = self.config.expected_size.unwrap_or_default();
        let text = format!("the file is {} bytes long instead of {}", actual.bytes(), expected.bytes());
        let ban = BanReason::LengthMismatch { actual: Some(actual), expected: Some(expected) };
        self.on_refused(id, link, ban, Failure::ProtocolViolation { text });
    }

    /// The first good answer. False: this answer cannot be used after all.
    fn identify(&mut self, id: ReqId, total: DataSize, validator: Option<&Validator>, range: ByteRange) -> bool {
        let provable = validator.is_some() || self.is_digest_known();
        if !provable && let Some(link) = self.request_link(id) {
            self.record_reported_file(link, Some(total), None, true);
        }
        if !provable && range != ByteRange::at(0, total) {
            let conn = self.reqs.get(&id).map(|req| req.conn);
            self.switch_to_single_response(SingleResponseReason::NoValidator, conn);
            return false;
        }
        // Without a validator, an answer that covers everything stands alone.
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

    /// The size is known: requests with open ends get theirs, and those beyond it are pointless.
    fn set_total(&mut self, total: DataSize) {
        self.coverage.set_total(total);
        for req in self.reqs.values_mut() {
            req.range.end = req.range.end.min(total.bytes()).max(req.next_offset);
        }
        self.rebuild_claims();
    }

    /// Tells the driver to take the body of an answer.
    pub(super) fn accept_body(&mut self, id: ReqId, at: u64, len: Option<DataSize>) {
        let conn = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let foreign = conn.is_some_and(|conn| self.is_other_mirror(conn.mirror));
        self.outputs.push_back(Output::AcceptBody { req: id, offset: at, len, is_other_mirror: foreign });
    }

    /// Takes the bytes of `span` up to the end of what was asked for: perhaps some that are in their place already, and
    /// perhaps fewer.
    fn accept_range(&mut self, id: ReqId, range: ByteRange) {
        let is_only_link = self.links.values().filter(|link| link.may_deliver()).count() == 1;
        let is_first =
            self.first_request == Some(id) && self.coverage.total().is_none_or(|total| range.end == total.bytes());
        if self.first_request == Some(id) && !is_first {
            // Only a part of what was asked for.
            self.first_request = None;
        }
        let Some(req) = self.reqs.get(&id) else { return };
        let mut end =
            range.end.min(if req.range_requested == RequestRange::From(0) { u64::MAX } else { req.range.end });
        // A server that does not heed the end of a range: what nobody else brings comes with it.
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
            // What is cut off takes its connection along.
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
        // Requests for a range may be sent round in circles, and others not.
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
            // One that must not be followed leads where it leads without a range, too.
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

    /// A link's connections lead to where its requests no longer go: what they bring already is still good.
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

    /// 416: the range lies beyond the end.
    fn on_range_not_satisfiable(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let total = head.range.and_then(|range| range.total);
        if total.is_none() && self.retry_smaller(id, head.status) {
            return;
        }
        let start = self.reqs.get(&id).map_or(0, |req| req.range.start);
        match (self.phase, total) {
            // An empty file, or a reader that has jumped beyond the end: nothing is wanted.
            (Phase::Unknown, Some(total)) if total.bytes() <= self.coverage.in_order_end() => {
                self.phase = Phase::Ranges;
                self.set_total(total);
                self.outputs.push_back(Output::Identified { total: Some(total), validator: None });
                self.finish_if_complete();
            }
            // The range begins within the file by the server's own word.
            (Phase::Unknown, Some(total)) if start < total.bytes() => {
                if !self.retry_without_range(id, link) {
                    let status = head.status;
                    self.on_refused(id, link, BanReason::BadStatus { status }, Failure::BadStatus { status });
                }
            }
            // A question for the bytes behind the first ones of a small file: the first answer is on its way.
            (Phase::Unknown, Some(total)) => {
                self.cancel_request(id);
                self.delay_link(link, BEYOND_END_DELAY);
                self.record_reported_file(link, Some(total), None, true);
                self.ban_other_sizes(total);
            }
            // No word of the size: a server that refuses ranges altogether, or a portal.
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
                    // It is not beyond the end by the server's own word.
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

    /// The server refuses a range of which it does not say what is wrong with it: everything is asked for, once.
    pub(super) fn fall_back_without_range(&mut self, id: ReqId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        self.switch_to_single_response(SingleResponseReason::NoRanges, conn);
    }

    /// Any other status: a server that fails is tried again, one that refuses is not.
    fn on_other_status(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let status = head.status;
        if self.handle_expired_target(id, link, status) || self.retry_smaller(id, status) {
            return;
        }
        if self.should_ignore_refusal(id) {
            self.cancel_request(id);
            return self.delay_link(link, FIRST_REQUEST_GRACE);
        }
        // Something that is only there for requests without a range.
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
        // All links may be refused alike: they are judged together.
        let same_status = self.pending_responses.iter().any(|pending| pending.head.status == status);
        if self.phase == Phase::Unknown && (same_status || self.awaits_other_links(link)) {
            return self.hold_response(id, link, head);
        }
        if self.try_other_initial_request(id, link, status) {
            return;
        }
        self.on_refused(id, link, BanReason::BadStatus { status }, Failure::BadStatus { status });
    }

    /// This link will not deliver from its present root: the next one, or the end.
    pub(super) fn on_refused(&mut self, id: ReqId, link_id: LinkId, ban: BanReason, failure: Failure) {
        self.cancel_request(id);
        if self.protect_first_response(link_id) || self.try_next_mirror(link_id, &ban) {
            return;
        }
        let probing = self.may_deliver_again();
        self.ban_or_fail(link_id, ban, probing, failure);
    }

    /// Whether the resource has been had from anywhere, so that a refusal may pass.
    pub(super) fn may_deliver_again(&self) -> bool {
        match self.phase {
            Phase::Unknown => false,
            Phase::Ranges | Phase::Finished => true,
            Phase::SingleResponse { .. } => self.links.values().any(Link::has_delivered_from_mirror),
        }
    }

    /// Bans a link; if it was the last that could bring anything, the failure itself says more than its ban.
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

    /// An answer to a range that cannot be used. Other links may have better ones; where this is the server's way, there
    /// is one answer without ranges.
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

    /// Answers that HTTP does not allow: once may be chance, again and again is not.
    pub(super) fn on_protocol_violation(&mut self, id: ReqId, link_id: LinkId, text: &str) {
        self.cancel_request(id);
        let reason = BanReason::ProtocolViolation { text: text.into() };
        if self.protect_first_response(link_id) || self.try_next_mirror(link_id, &reason) {
            return;
        }
        let probing = self.may_deliver_again();
        self.ban_or_fail(link_id, reason, probing, Failure::ProtocolViolation { text: text.into() });
    }

    /// The span that a connection asks for before the resource is known: the next bytes that nobody has asked for, and
    /// that the reader has room for, or the connection would wait for the others.
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

/// A server that begins so far before the range that was asked for is worth it. chosen: a second of a slow link.
const MAX_SKIPPED: DataSize = DataSize::from_mib(1);
/// What is asked for where a first range was refused: hosts that limit the size of a range allow this much.
pub(super) const SMALL_RANGE: DataSize = DataSize::from_kib(4);
/// Smaller ranges than this, where more was asked for, are given up after so many in a row.
const TINY_RANGE: DataSize = DataSize::from_kib(4);
const MAX_TINY_RANGES: u32 = 8;
/// How long a link waits that was refused while the first request is unanswered.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(5);
/// Where no more redirects are allowed than this, all of them are followed.
const FEW_REDIRECTS: u32 = 10;
/// How long a link waits that asked beyond a small file's end.
const BEYOND_END_DELAY: Duration = Duration::from_millis(200);
