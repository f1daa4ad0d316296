//! Everything as one answer: for servers without ranges, lengths or validators.
//!
//! In: answers with status 200, and the loss of the one that was taken. Out: its acceptance, or another try.
//!
//! 1. One connection of one link carries it; all others are closed.
//! 2. If it breaks off, nothing of it can be used, because nothing proves that the next one continues it.
//! 3. A 200 to a question for a range is a changed file, a server that has stopped serving ranges, or a portal's page;
//!    the validator and the length tell which. A server that serves ranges most of the time is asked again.
//! 4. A 206 of all bytes, whatever was asked for, is a 200 in disguise. No portal gives one.
//! 5. A server that refuses ranges after it has served some is asked for the whole file, over the last link that it has not
//!    refused. Only if that answer is of the known size or version, what is there is given up for it.

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
    /// 206 to a request without a range.
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
                return self.on_protocol_violation(id, link, "a part of the file although all of it was asked for");
            }
        };
        self.on_full_response(id, link, RequestRange::Full, &ResponseHead { status: 200, length, ..head.clone() });
    }

    /// Rule 4.
    pub(super) fn on_full_content_as_partial(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
        let length = head.range.and_then(|range| range.total);
        self.on_full_response(id, link, RequestRange::Full, &ResponseHead { status: 200, length, ..head.clone() });
    }

    /// 200: the whole file, or a portal's page.
    pub(super) fn on_full_response(
        &mut self,
        id: ReqId,
        link: LinkId,
        requested: RequestRange,
        head: &ResponseHead,
    ) {
        if head.is_encoded {
            return self.on_protocol_violation(id, link, "an encoded body although identity was asked for");
        }
        if let Some(actual) = head.length.filter(|actual| self.is_unexpected_size(*actual)) {
            return self.on_wrong_size(id, link, actual);
        }
        if head.length.is_some_and(|length| self.is_suspect_length(id, length)) {
            return self.recheck_length(id);
        }
        let is_known = self.phase == Phase::Ranges && self.is_known_version(id, head);
        // A page or nothing instead of a range: perhaps not instead of the file. Or the target of a redirect has expired.
        let is_suspicious = head.is_html_page || head.length == Some(DataSize::ZERO);
        if (self.phase == Phase::Unknown && is_suspicious && self.retry_without_range(id, link))
            || (self.phase == Phase::Ranges && !is_known && self.handle_expired_target(id, link, head.status))
        {
            return;
        }
        match self.phase {
            // The last link has asked for it (rule 5).
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
            // If-Range failed: the file has changed, if the answer can prove it; otherwise it is a portal's page.
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

    /// The right file, but all of it: the server serves no ranges. If another link has delivered one, this link's
    /// server is to blame; otherwise everything has to come as one answer, and what an earlier run left is of no use.
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
            return self.on_protocol_violation(id, link, "200 with everything instead of the range");
        }
        if let (Some(mirror), Some(total)) = (mirror, self.coverage.total()) {
            let known = self.known_validator(mirror).cloned();
            self.record_reported_file(link, Some(total), known.as_ref(), false);
        }
        self.switch_to_single_response(SingleResponseReason::NoRanges, conn);
        self.validators.clear();
    }

    /// Whether an answer to a request without a range is of the file that is known: no portal's page is of its size.
    fn matches_known_file(&self, id: ReqId, head: &ResponseHead) -> bool {
        let total = self.coverage.total();
        (head.length.is_some() && head.length == total && head.validator.is_none())
            || self.is_known_version(id, head)
    }

    /// Rule 5. Tells whether a link that was to be banned asks for the whole file instead.
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

    /// Sends the request for the whole file that a link owes. Tells whether such a request is to be sent or under way: then
    /// there are no others.
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

    fn is_known_version(&self, id: ReqId, head: &ResponseHead) -> bool {
        let mirror = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.mirror);
        let is_matching = mirror.is_some_and(|mirror| self.matches_known(mirror, head));
        (head.length.is_none() || self.coverage.total() == head.length) && is_matching
    }

    /// Takes this answer for the whole file, and no other.
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

    /// The link over which an answer comes.
    pub(super) fn request_link(&self, id: ReqId) -> Option<LinkId> {
        self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
    }

    /// Closes all connections but the one of this request.
    pub(super) fn close_other_conns(&mut self, id: ReqId) {
        let keep = self.reqs.get(&id).map(|req| req.conn);
        let others: Vec<ConnId> = self.conns.keys().copied().filter(|other| Some(*other) != keep).collect();
        for other in others {
            self.remove_conn(other, true);
        }
    }

    /// From now on everything comes as one answer; `conn` has an answer that is of no use.
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
            // The size of a file that keeps changing is not known, only that its responses have a validator.
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

    /// Looks whether the one answer broke off: nothing of it can be used, as nothing proves that the next one
    /// continues it.
    pub(super) fn check_lost_response(&mut self) {
        let Phase::SingleResponse { req: Some(id) } = self.phase else { return };
        if self.reqs.contains_key(&id) || self.coverage.is_complete() {
            return;
        }
        self.phase = Phase::SingleResponse { req: None };
        let received = self.coverage.in_order_end();
        self.discard_bytes();
        // One that never began is among its link's failures already.
        if received > 0 {
            self.consumed = 0;
            self.outputs.push_back(Output::Restart);
            self.count_lost_response(received);
        }
    }

    /// Bytes of a lost answer are no progress, so each link's tries are counted by how far it came over that link. Who
    /// has used them up makes room for the others, and its word for the size no longer counts against theirs.
    fn count_lost_response(&mut self, received: u64) {
        let Some(id) = self.single_response_link else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        let (best, lost) = link.stats.best_single_response;
        link.stats.best_single_response = if received > best { (received, 0) } else { (best, lost + 1) };
        if link.stats.best_single_response.1 <= self.config.retries {
            return;
        }
        let text = "the one answer breaks off again and again".into();
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

/// Answers with everything, in a row, from a server that has served ranges, before everything is taken from one of them.
const MAX_RANGES_IGNORED: u32 = 3;
