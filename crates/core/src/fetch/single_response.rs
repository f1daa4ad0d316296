//! Download by a single response, for servers without ranges, lengths or validators.
//!
//! 1. One connection of one link carries the response; all others are closed.
//! 2. If it breaks off, none of its bytes can be used, because nothing proves that the next response continues it.
//! 3. A 200 to a range request means a changed file, a server that has stopped serving ranges, or a captive portal's
//!    page. Validator and length decide. A server that usually serves ranges is asked again.
//! 4. A 206 that covers the whole file without being asked to is treated as a 200. No portal gives one.
//! 5. If a server refuses ranges after it has served some, the last link that was not banned requests the whole file.
//!    Received ranges are given up only if that response has the known size or version.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::links::{FullRequest, Link, LinkState};
use super::{
    BanReason, ByteRange, ConnError, ConnErrorKind, ConnId, ContentRange, Failure, Fetch, Notice, Output, Phase,
    ReqId, RequestRange, ResponseHead, SingleResponseReason, TimerReason,
};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
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
        if let Some(actual) = head.length.filter(|actual| self.is_unexpected_size(*actual)) {
            return self.on_wrong_size(id, link, actual);
        }
        if head.length.is_some_and(|length| self.is_suspect_length(id, length)) {
            return self.recheck_length(id);
        }
        let is_known = self.phase == Phase::Ranges && self.is_known_version(id, head);
        // An HTML page or an empty body in response to a range request may not be the response to a full one. Or the
        // target of a redirect has expired.
        let is_suspicious = head.is_html_page || head.length == Some(DataSize::ZERO);
        if (self.phase == Phase::Unknown && is_suspicious && self.retry_without_range(id, link))
            || (self.phase == Phase::Ranges && !is_known && self.handle_expired_target(id, link, head.status))
        {
            return;
        }
        match self.phase {
            // The last resort of the last link (rule 5).
            Phase::Ranges if requested == RequestRange::Full && self.matches_known_file(id, head) => {
                let conn = self.reqs.get(&id).map(|req| req.conn);
                self.switch_to_single_response(SingleResponseReason::UnusableRanges, conn);
            }
            Phase::Unknown | Phase::SingleResponse { .. } if self.exceeds_budget(link, head.length) => {
                self.cancel_request(id);
                self.ban_or_fail(link, BanReason::OverBudget, false, Failure::BudgetExhausted);
            }
            Phase::Unknown | Phase::SingleResponse { .. } if self.contradicts_reported(link, head) => {
                self.ban_contradicting(id, link, head.length);
            }
            Phase::SingleResponse { .. } if requested == RequestRange::Full => self.accept_full_response(id, head),
            Phase::Unknown => self.hold_response(id, link, head),
            // If-Range did not match: the file has changed if the response proves it by a validator; otherwise it is a
            // portal's page.
            _ => match &head.validator {
                Some(validator) if !self.is_known_version(id, head) => {
                    if !self.relax_if_range(id, head) {
                        let is_certain = head.length.is_some() && head.length == self.coverage.total();
                        let change = Some((head.length, validator.clone()));
                        self.on_version_mismatch(id, link, BanReason::ValidatorMismatch, change, is_certain);
                    }
                }
                Some(_) if self.relax_if_range(id, head) => {}
                Some(_) => self.on_ranges_ignored(id, link),
                // Nothing proves that it is the file, but a portal's page would not have its length.
                None if head.length.is_some() && head.length == self.coverage.total() => {
                    self.on_ranges_ignored(id, link);
                }
                None => {
                    let (actual, expected) = (head.length, self.coverage.total());
                    let ban = if head.is_html_page {
                        BanReason::HtmlPage
                    } else {
                        BanReason::LengthMismatch { actual, expected }
                    };
                    self.on_version_mismatch(id, link, ban, None, false);
                }
            },
        }
    }

    /// The right file, but the whole of it: the server ignored the range. If that happens repeatedly and another link
    /// gets ranges, this link's server is at fault. Otherwise a single response must carry everything, and the stored
    /// bytes are of no use.
    fn on_ranges_ignored(&mut self, id: ReqId, link: LinkId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        let mirror = conn.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.mirror);
        if let Some(quirks) = mirror.map(|mirror| self.quirks_mut(mirror)).filter(|quirks| quirks.serves_ranges()) {
            quirks.ranges_ignored += 1;
            if quirks.ranges_ignored <= MAX_RANGES_IGNORED {
                self.cancel_request(id);
                return self.delay_link(link, Duration::ZERO);
            }
        }
        if self
            .links
            .iter()
            .any(|(other, state)| *other != link && state.stats.is_verified && state.is_in_service())
        {
            return self.on_protocol_violation(id, link, "200 with the whole file instead of the range");
        }
        if let (Some(mirror), Some(total)) = (mirror, self.coverage.total()) {
            let known = self.known_validator(mirror).cloned();
            self.record_reported_file(link, Some(total), known.as_ref(), false);
        }
        self.switch_to_single_response(SingleResponseReason::NoRanges, conn);
        self.validators.clear();
    }

    /// Whether the response to a request without a range is of the known file. A portal's page would not have its size.
    fn matches_known_file(&self, id: ReqId, head: &ResponseHead) -> bool {
        let total = self.coverage.total();
        (head.length.is_some() && head.length == total && head.validator.is_none())
            || self.is_known_version(id, head)
    }

    /// Rule 5. Returns true if a link that was to be banned requests the whole file instead.
    pub(super) fn schedule_full_request(&mut self, id: LinkId, reason: &BanReason) -> bool {
        let others = self
            .links
            .iter()
            .any(|(other, link)| *other != id && self.is_usable(*other, link) && link.is_in_service());
        let is_read = self.config.reader_window.is_some() && self.consumed > 0;
        let may_help = matches!(
            reason,
            BanReason::BadStatus { .. } | BanReason::ProtocolViolation { .. } | BanReason::RepeatedErrors { .. }
        );
        if self.phase != Phase::Ranges || others || is_read || !may_help || self.external_control.is_some() {
            return false;
        }
        let Some(link) = self.links.get_mut(&id).filter(|link| link.full_request == FullRequest::NotTried) else {
            return false;
        };
        if link.state == LinkState::Down || link.stats.bytes.is_zero() {
            return false;
        }
        link.full_request = FullRequest::Due;
        link.failures = 0;
        link.next_attempt = self.now;
        for conn in link.conns.clone() {
            self.remove_conn(conn, true);
        }
        self.set_timer(self.now, TimerReason::Retry);
        true
    }

    /// Sends the request for the whole file that is due on a link. Returns true if such a request is due or in flight:
    /// then no others are sent.
    pub(super) fn send_full_request(&mut self) -> bool {
        let is_due = |link: &Link| link.full_request == FullRequest::Due && link.may_deliver();
        let Some(id) = self.links.iter().find(|(_, link)| is_due(link)).map(|(id, _)| *id) else {
            return self.reqs.values().any(|req| req.range_requested == RequestRange::Full);
        };
        let is_idle = |conn: &Conn| conn.link == id && conn.accepts_requests() && conn.reqs.is_empty();
        let conn = self.conns.iter().find(|(_, conn)| is_idle(conn)).map(|(conn, _)| *conn);
        if let Some(conn) = conn
            && self.send_request(conn, RequestRange::Full)
            && let Some(link) = self.links.get_mut(&id)
        {
            link.full_request = FullRequest::Sent;
        }
        true
    }

    /// Whether the response has the known validator, and the known size if it states one.
    fn is_known_version(&self, id: ReqId, head: &ResponseHead) -> bool {
        let mirror = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.mirror);
        let is_matching = mirror.is_some_and(|mirror| self.matches_known(mirror, head));
        (head.length.is_none() || self.coverage.total() == head.length) && is_matching
    }

    /// Accepts this response as the whole file, and closes all other connections.
    pub(super) fn accept_full_response(&mut self, id: ReqId, head: &ResponseHead) {
        if !matches!(self.phase, Phase::SingleResponse { .. }) {
            let reason =
                if head.length.is_none() { SingleResponseReason::NoLength } else { SingleResponseReason::NoRanges };
            self.notice(Notice::SingleResponse { reason });
        }
        self.phase = Phase::SingleResponse { req: Some(id) };
        self.single_response_link = self.request_link(id);
        if let Some(link) = self.single_response_link {
            // This response replaces what earlier ones stated about the version.
            self.reported_file.take_if(|_| head.validator.is_some());
            self.record_reported_file(link, head.length, head.validator.as_ref(), false);
        }
        self.close_other_conns(id);
        if let Some(req) = self.reqs.get_mut(&id) {
            req.range = ByteRange::new(0, head.length.map_or(u64::MAX, DataSize::bytes));
            req.next_offset = 0;
            req.is_accepted = true;
        }
        if let Some(total) = head.length {
            self.coverage.set_total(total);
        }
        self.rebuild_claims();
        self.outputs.push_back(Output::Identified { total: head.length, validator: None });
        self.accept_body(id, 0, head.length);
        self.finish_if_complete();
    }

    /// The link that carries a request.
    pub(super) fn request_link(&self, id: ReqId) -> Option<LinkId> {
        self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
    }

    /// Closes all connections except the one of this request.
    pub(super) fn close_other_conns(&mut self, id: ReqId) {
        let keep = self.reqs.get(&id).map(|req| req.conn);
        let others: Vec<ConnId> = self.conns.keys().copied().filter(|other| Some(*other) != keep).collect();
        for other in others {
            self.remove_conn(other, true);
        }
    }

    /// Switches to a single response. `conn` got a response that cannot be used; its link sends the new request. If the
    /// first response (`bytes=0-`) is still running, that becomes the single response. Otherwise all bytes are
    /// discarded.
    pub(super) fn switch_to_single_response(&mut self, reason: SingleResponseReason, conn: Option<ConnId>) {
        if matches!(reason, SingleResponseReason::NoRanges | SingleResponseReason::UnusableRanges)
            && self.fall_back_to_first()
        {
            return self.notice(Notice::SingleResponse { reason });
        }
        self.phase = Phase::SingleResponse { req: None };
        self.notice(Notice::SingleResponse { reason });
        self.set_timer(self.now, TimerReason::Retry);
        let keep = conn.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.link);
        if let Some(link) = keep.or_else(|| self.links.keys().next().copied()) {
            // If the file keeps changing, its size is unknown, but its responses are known to have a validator.
            let total = self.coverage.total().filter(|_| reason != SingleResponseReason::UnstableValidator);
            let validator = self.validators.values().next().cloned();
            self.record_reported_file(link, total, validator.as_ref(), false);
        }
        self.close_all();
        if let Some(link) = keep.and_then(|link| self.links.get_mut(&link)) {
            link.next_attempt = self.now;
        }
        if !self.coverage.received().is_zero() {
            self.consumed = 0;
            self.outputs.push_back(Output::Restart);
        }
        self.discard_bytes();
        for link in self.links.values_mut() {
            link.stats.is_verified = false;
        }
        if let Some(link) = keep.and_then(|link| self.links.get_mut(&link)) {
            link.stats.is_verified = true;
        }
    }

    /// Checks whether the single response was lost. None of its bytes can be used, because nothing proves that the next
    /// response continues it.
    pub(super) fn check_lost_response(&mut self) {
        let Phase::SingleResponse { req: Some(id) } = self.phase else { return };
        if self.reqs.contains_key(&id) || self.coverage.is_complete() {
            return;
        }
        self.phase = Phase::SingleResponse { req: None };
        let received = self.coverage.in_order_end();
        self.discard_bytes();
        // A response without a byte was already counted as a failure of its link.
        if received > 0 {
            self.consumed = 0;
            self.outputs.push_back(Output::Restart);
            self.count_lost_response(received);
        }
    }

    /// Counts lost single responses per link. Bytes of a lost response are no progress, unless it got further than the
    /// best one on this link. A link without retries is banned, and the size that it reported no longer counts.
    fn count_lost_response(&mut self, received: u64) {
        let Some(id) = self.single_response_link else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        let (best, lost) = link.stats.best_single_response;
        link.stats.best_single_response = if received > best { (received, 0) } else { (best, lost + 1) };
        if link.stats.best_single_response.1 <= self.config.retries {
            return;
        }
        let text = "the response breaks off repeatedly".into();
        let error = link.stats.last_error.clone().unwrap_or(ConnError { kind: ConnErrorKind::Truncated, text });
        let is_in_service = link.is_in_service();
        let has_retries =
            |link: &Link| link.stats.best_single_response.1 <= self.config.retries && !link.budget_exhausted;
        if !self.links.values().any(|link| has_retries(link) && link.may_deliver()) {
            return self.failover_or_fail(Failure::RetriesExhausted { error });
        }
        self.reported_file.take_if(|reported| reported.link == id);
        if is_in_service {
            self.ban(id, BanReason::RepeatedErrors { error }, true);
        }
    }
}

/// Number of 200 responses in a row to range requests, from a server that has served ranges, before ranges are given
/// up.
const MAX_RANGES_IGNORED: u32 = 3;
