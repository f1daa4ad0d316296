//! Failures of links, mirrors and the whole download: which of them is given up, and what replaces it.
//!
//! The rules of the other modules judge one response, one link or one mirror. Here their judgements are combined, from
//! the cheapest remedy to the last one: try again after a backoff, another mirror, a ban of the link, a single response,
//! another mirror for the whole download, and finally the end of the download.

use alloc::vec::Vec;

use super::link::{Link, LinkState};
use super::refusals::OtherRequest;
use super::resource::Phase;
use super::single_response::LostResponse;
use super::version_check::{VersionReport, VersionVerdict};
use super::{
    BanReason, ConnError, ConnErrorKind, ConnId, Failure, Fetch, MeteredUse, Notice, Output, Policy, ReqId,
    RequestRange, ResponseHead, SingleResponseReason, TimerReason, first_request, link_health, portal_check,
    refusals, single_response, stall, version_check,
};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Handles the failure of a connection or response: backoff, another mirror, or a ban.
    pub(super) fn on_failure(&mut self, id: LinkId, error: ConnError) {
        let transfers = &mut self.transfers;
        let errors = transfers.links.values().filter_map(|link| link.stats.last_error.as_ref());
        let refused = errors.chain([&error]).find(|error| error.is_refusal()).cloned();
        let Some(link) = transfers.links.get_mut(&id) else { return };
        link.failures += 1;
        link.stats.last_error = Some(error.clone());
        link.next_attempt = link.next_attempt.max(transfers.now + link.backoff());
        // An invalid certificate or a forbidden address will not change within a backoff.
        let is_permanent = match error.kind {
            ConnErrorKind::Tls => !link.stats.is_verified,
            ConnErrorKind::Forbidden | ConnErrorKind::OwnListener => true,
            // If another link found the address refused by a rule, failures to reach any address on this one are of no
            // interest.
            ConnErrorKind::Dns | ConnErrorKind::Unreachable => {
                refused.is_some() && transfers.resource.phase == Phase::Unknown
            }
            _ => false,
        };
        if !link.is_in_service() || (link.failures <= transfers.config.retries && !is_permanent) {
            // Another mirror may work.
            if link.failures >= 2 && link.is_in_service() && !link.stats.is_verified {
                self.mirrors.try_next_mirror(transfers, id, &BanReason::RepeatedErrors { error });
            }
            return;
        }
        if self.mirrors.try_next_mirror(transfers, id, &BanReason::RepeatedErrors { error: error.clone() }) {
            return;
        }
        let failure = Failure::RetriesExhausted { error: refused.unwrap_or_else(|| error.clone()) };
        let others = transfers.links.iter().any(|(other, link)| *other != id && link.is_in_service());
        if others || transfers.may_deliver_again() {
            link_health::ban(transfers, id, BanReason::RepeatedErrors { error }, true);
        } else {
            // Nothing has been received so far, and no other link is left.
            self.failover_or_fail(failure);
        }
    }

    /// The link gets nothing from its present mirror: switches to the next mirror, bans the link, or ends the download.
    pub(super) fn on_refused(&mut self, id: ReqId, link: LinkId, reason: BanReason, failure: Failure) {
        let transfers = &mut self.transfers;
        transfers.cancel_request(id);
        if first_request::protect_first_response(transfers, link)
            || self.mirrors.try_next_mirror(transfers, link, &reason)
        {
            return;
        }
        let probing = transfers.may_deliver_again();
        self.ban_or_fail(link, reason, probing, failure);
    }

    /// A response that violates HTTP or the request: the next mirror, a ban, or the end of the download.
    pub(super) fn on_protocol_violation(&mut self, id: ReqId, link: LinkId, text: &str) {
        let reason = BanReason::ProtocolViolation { text: text.into() };
        self.on_refused(id, link, reason, Failure::ProtocolViolation { text: text.into() });
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
    pub(super) fn on_server_busy(&mut self, id: ReqId, link: LinkId, head: &ResponseHead) {
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

    /// Bans a link. If no other link could deliver, reports the failure itself instead.
    pub(super) fn ban_or_fail(&mut self, id: LinkId, reason: BanReason, probing: bool, failure: Failure) {
        let transfers = &mut self.transfers;
        if single_response::schedule_full_request(transfers, id, &reason) {
            return;
        }
        let others = transfers.links.iter().any(|(other, link)| *other != id && link.may_deliver());
        if others || probing {
            link_health::ban(transfers, id, reason, probing);
            self.fail_if_no_link_left(failure);
        } else {
            self.failover_or_fail(failure);
        }
    }

    /// Ends the download, or switches mirrors, if no link can deliver any more.
    pub(super) fn fail_if_no_link_left(&mut self, failure: Failure) {
        let transfers = &self.transfers;
        let is_gone = |link: &Link| matches!(link.state, LinkState::Banned { until: None, .. } | LinkState::Down);
        let unusable = |(id, link): (&LinkId, &Link)| {
            is_gone(link)
                || link.budget_exhausted
                || (link.profile.metered && transfers.config.metered == MeteredUse::Never)
                || (transfers.config.policy == Policy::Single && !transfers.is_link_allowed(*id))
        };
        if transfers.links.iter().all(unusable) {
            self.failover_or_fail(failure);
        }
    }

    /// The mirror in use, or every link, has failed: switches to another mirror, or fails the download.
    pub(super) fn failover_or_fail(&mut self, failure: Failure) {
        if !self.transfers.is_finished() && !self.mirrors.try_failover(&mut self.transfers, &failure) {
            self.fail_with(failure);
        }
    }

    /// Ends the download without the file.
    pub(super) fn fail_with(&mut self, failure: Failure) {
        // If one mirror had a file with a wrong digest, report that rather than the failure of the others.
        let mirror_failed = matches!(
            failure,
            Failure::BadStatus { .. }
                | Failure::RetriesExhausted { .. }
                | Failure::ProtocolViolation { .. }
                | Failure::RedirectLoop
        );
        let failure =
            if mirror_failed && self.mirrors.has_mismatched() { Failure::DigestMismatch } else { failure };
        self.transfers.finish(Output::Failed(failure));
    }

    /// Takes a link out of use when its budget is exhausted.
    pub(super) fn check_budget(&mut self, id: LinkId) {
        let transfers = &mut self.transfers;
        let Some(link) = transfers.links.get_mut(&id) else { return };
        let Some(budget) = link.exhaust_budget() else { return };
        for conn in link.conns.clone() {
            transfers.remove_conn(conn, true);
        }
        transfers.notice(Notice::BudgetSpent { link: id, budget });
        // With a budget of zero this runs at the link's start, when other links may not be known yet.
        if !transfers.coverage.is_complete() && !budget.is_zero() {
            self.fail_if_no_link_left(Failure::BudgetExhausted);
        }
    }

    /// Handles everything that is overdue: stalled connections, links and mirrors, slow links, final refusals, the
    /// download timeout. May close connections and free ranges, so it runs before connections are opened and requests
    /// are sent.
    pub(super) fn check_stalls(&mut self) {
        for id in stall::overdue_conns(&self.transfers) {
            if let Some((link, error)) = stall::on_conn_stalled(&mut self.transfers, id) {
                self.on_failure(link, error);
            }
        }
        stall::notify_stalls(&mut self.transfers);
        if stall::give_up_stalled_response(&mut self.transfers) {
            self.check_lost_response();
        }
        self.mirrors.leave_stalled_mirror(&mut self.transfers);
        stall::leave_stalled_mirrors(&mut self.transfers, &mut self.mirrors);
        for link in link_health::slow_links(&self.transfers) {
            link_health::ban(&mut self.transfers, link, BanReason::Slow, true);
        }
        if let Some(failure) = stall::final_refusal(&self.transfers) {
            self.failover_or_fail(failure);
        }
        if let Some(failure) = stall::check_timeout(&mut self.transfers, self.mirrors.is_verifying()) {
            self.failover_or_fail(failure);
        }
    }

    /// Body bytes arrived on a link: resets its failure counters, and ends its stall or ban.
    pub(super) fn on_link_data(&mut self, id: LinkId, conn: ConnId, len: DataSize) {
        let Some(link) = self.transfers.links.get_mut(&id) else { return };
        let previous = link.on_data(self.transfers.now, len);
        if previous != LinkState::Up {
            self.on_link_recovered(id, conn, &previous);
        }
        self.check_budget(id);
    }

    /// The link has recovered from a stall or ban through one connection. Its other connections are still stalled and
    /// would deliver late, so they are closed.
    fn on_link_recovered(&mut self, id: LinkId, conn: ConnId, previous: &LinkState) {
        stall::reclaim_released(&mut self.transfers, conn);
        let Some(link) = self.transfers.links.get_mut(&id) else { return };
        let notify = core::mem::take(&mut link.stall_notified) || *previous == LinkState::Probing;
        let stale: Vec<ConnId> = link.conns.iter().copied().filter(|other| *other != conn).collect();
        for other in stale {
            stall::note_pipelined_lost(&mut self.transfers, other);
            self.note_truncated_range(other);
            self.transfers.remove_conn(other, true);
        }
        if notify {
            self.transfers.notice(Notice::Recovered { link: id });
        }
    }

    /// A connection ends. If connections repeatedly carried only the first bytes of a range, ranges are given up.
    pub(super) fn note_truncated_range(&mut self, id: ConnId) {
        let transfers = &mut self.transfers;
        let Some(conn) = transfers.conns.get(&id) else { return };
        let front = conn.reqs.front().and_then(|req| transfers.reqs.get(req));
        let is_ranged = front.is_some_and(|req| {
            req.is_accepted && req.range_requested != RequestRange::Full && !req.remaining().is_empty()
        });
        if is_ranged
            && transfers.resource.phase == Phase::Ranges
            && transfers.quirks.of_mut(conn.mirror).on_range_truncated(conn.rate_window.total())
        {
            self.switch_to_single_response(SingleResponseReason::UnusableRanges, Some(id));
        }
    }

    /// A response is of another version than the known one.
    pub(super) fn on_version_mismatch(&mut self, id: ReqId, link: LinkId, ban: BanReason, report: VersionReport) {
        match version_check::judge_mismatch(&mut self.transfers, id, link, report) {
            VersionVerdict::Handled => {}
            VersionVerdict::FileChanged => self.restart(),
            VersionVerdict::SelfContradiction => {
                self.switch_to_single_response(SingleResponseReason::UnstableValidator, None);
            }
            VersionVerdict::OtherVersion => link_health::ban(&mut self.transfers, link, ban, true),
        }
    }

    /// The file has changed: discards everything and begins again, or switches to a single response if this happens
    /// repeatedly.
    fn restart(&mut self) {
        if !version_check::forget_version(&mut self.transfers) {
            return self.switch_to_single_response(SingleResponseReason::UnstableValidator, None);
        }
        let transfers = &mut self.transfers;
        transfers.close_all();
        self.mirrors.discard_bytes(transfers);
        transfers.resource.phase = Phase::Unknown;
        transfers.reader.seek(0);
        transfers.notice(Notice::FileChanged);
        transfers.restart_storage();
    }

    /// Switches to a single response. `conn` got a response that cannot be used; its link sends the new request. If the
    /// first response (`bytes=0-`) is still running, that becomes the single response. Otherwise all bytes are
    /// discarded.
    pub(super) fn switch_to_single_response(&mut self, reason: SingleResponseReason, conn: Option<ConnId>) {
        let transfers = &mut self.transfers;
        if matches!(reason, SingleResponseReason::NoRanges | SingleResponseReason::UnusableRanges)
            && first_request::fall_back_to_first(transfers)
        {
            return transfers.notice(Notice::SingleResponse { reason });
        }
        transfers.resource.phase = Phase::SingleResponse { req: None };
        transfers.notice(Notice::SingleResponse { reason });
        transfers.set_timer(transfers.now, TimerReason::Retry);
        let keep = conn.and_then(|conn| transfers.conns.get(&conn)).map(|conn| conn.link);
        if let Some(link) = keep.or_else(|| transfers.links.keys().next().copied()) {
            // If the file keeps changing, its size is unknown, but its responses are known to have a validator.
            let total = transfers.coverage.total().filter(|_| reason != SingleResponseReason::UnstableValidator);
            let validator = transfers.resource.validators.first().cloned();
            transfers.resource.pending.report(link, total, validator.as_ref(), false);
        }
        transfers.close_all();
        if let Some(link) = keep.and_then(|link| transfers.links.get_mut(&link)) {
            link.next_attempt = transfers.now;
        }
        if !transfers.coverage.received().is_zero() {
            transfers.reader.seek(0);
            transfers.restart_storage();
        }
        self.mirrors.discard_bytes(transfers);
        for link in transfers.links.values_mut() {
            link.stats.is_verified = false;
        }
        if let Some(link) = keep.and_then(|link| transfers.links.get_mut(&link)) {
            link.stats.is_verified = true;
        }
    }

    /// The server refuses a range without a reason: the whole file is requested once.
    pub(super) fn fall_back_without_range(&mut self, id: ReqId) {
        let conn = self.transfers.reqs.get(&id).map(|req| req.conn);
        self.switch_to_single_response(SingleResponseReason::NoRanges, conn);
    }

    /// Checks whether the single response was lost. None of its bytes can be used, because nothing proves that the next
    /// response continues it.
    pub(super) fn check_lost_response(&mut self) {
        let transfers = &mut self.transfers;
        let Some(id) = transfers.resource.single_response() else { return };
        if transfers.reqs.contains_key(&id) || transfers.coverage.is_complete() {
            return;
        }
        transfers.resource.phase = Phase::SingleResponse { req: None };
        let received = transfers.coverage.in_order_end();
        self.mirrors.discard_bytes(transfers);
        // A response without a byte was already counted as a failure of its link.
        if received == 0 {
            return;
        }
        transfers.reader.seek(0);
        transfers.restart_storage();
        match single_response::count_lost(transfers, received) {
            LostResponse::Retry => {}
            LostResponse::Ban { link, error } => {
                link_health::ban(transfers, link, BanReason::RepeatedErrors { error }, true);
            }
            LostResponse::NoRetriesLeft { error } => self.failover_or_fail(Failure::RetriesExhausted { error }),
        }
    }
}
