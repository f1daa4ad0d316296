//! Responses that are held back until other links have responded, and the file that earlier responses reported.
//!
//! This is the memory of the portal check. The rules that decide on it are in `portal_check`. A response is removed here
//! when its request ends; what it stated of the file is kept as the *reported file*, so that a captive portal's page
//! cannot pass after the only genuine response was lost.

use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::{ConnId, ReqId, ResponseHead, Validator};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// Held responses in the order in which they arrived, and the reported file.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingResponses {
    list: Vec<PendingResponse>,
    /// Whether links that delivered whole files of different sizes were sent a range request, which happens once.
    conflict_rechecked: bool,
    /// Size and validator that a response reported, while a single response may have to carry the whole file.
    reported: Option<ReportedFile>,
}

/// A response that is held back until other links have responded.
#[derive(Clone, Debug)]
pub(super) struct PendingResponse {
    pub(super) conn: ConnId,
    pub(super) req: ReqId,
    pub(super) link: LinkId,
    pub(super) head: ResponseHead,
    pub(super) since: Instant,
    /// If it is the response to a range request: why it cannot be used.
    pub(super) unusable_reason: Option<String>,
}

impl PendingResponse {
    /// Whether it is the whole file or a portal's page: a success, or a redirect without a target, whose body other
    /// programs take for the resource.
    pub(super) fn is_full_body(&self) -> bool {
        (self.is_success() || matches!(self.head.status, 300..=303 | 307 | 308)) && self.unusable_reason.is_none()
    }

    fn is_success(&self) -> bool {
        matches!(self.head.status, 200..=299)
    }

    /// Whether it refuses the request with this status.
    pub(super) fn is_refusal(&self, status: u16) -> bool {
        !self.is_full_body() && self.unusable_reason.is_none() && self.head.status == status
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
    contradicted_by: Vec<LinkId>,
}

impl PendingResponses {
    /// Holds a response.
    pub(super) fn push(&mut self, pending: PendingResponse) {
        self.list.push(pending);
    }

    /// The responses, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingResponse> {
        self.list.iter()
    }

    /// The oldest response; the wait of all begins with it.
    pub(super) fn first(&self) -> Option<&PendingResponse> {
        self.list.first()
    }

    /// Whether the response to this request is held.
    pub(super) fn holds_request(&self, req: ReqId) -> bool {
        self.list.iter().any(|pending| pending.req == req)
    }

    /// Whether a response on this connection is held.
    pub(super) fn holds_conn(&self, conn: ConnId) -> bool {
        self.list.iter().any(|pending| pending.conn == conn)
    }

    /// Whether a response over this link is held. The link can report nothing more, so it gets no other request
    /// meanwhile and cannot stall.
    pub(super) fn holds_link(&self, link: LinkId) -> bool {
        self.list.iter().any(|pending| pending.link == link)
    }

    /// Removes all responses and returns them.
    pub(super) fn take_all(&mut self) -> Vec<PendingResponse> {
        core::mem::take(&mut self.list)
    }

    /// Removes the whole files of another size than this one and returns them.
    pub(super) fn take_other_sizes(&mut self, total: DataSize) -> Vec<PendingResponse> {
        let is_other = |pending: &PendingResponse| {
            pending.is_full_body() && pending.head.length.is_some_and(|length| length != total)
        };
        let (other, kept) = self.take_all().into_iter().partition(is_other);
        self.list = kept;
        other
    }

    /// Removes the best response and returns it: a whole file rather than a refusal, a success rather than the body of
    /// a redirect, one with a validator rather than one without, and what most responses state. Otherwise the first one.
    pub(super) fn take_best(&mut self) -> Option<PendingResponse> {
        let claim =
            |pending: &PendingResponse| (pending.head.status, pending.head.length, pending.head.validator.clone());
        let votes =
            |pending: &PendingResponse| self.list.iter().filter(|other| claim(other) == claim(pending)).count();
        let rank = |pending: &PendingResponse| {
            let validated = pending.head.validator.is_some();
            (!pending.is_full_body(), !pending.is_success(), !validated, Reverse(votes(pending)))
        };
        let first = self.list.iter().min_by_key(|pending| rank(pending))?;
        // Among equally ranked responses with the same validator the longest one: a file that is cut short would pass
        // for the whole, while one with too large a size ends early and is noticed.
        let same = |pending: &&PendingResponse| {
            pending.head.validator.is_some()
                && pending.head.validator == first.head.validator
                && rank(pending) == rank(first)
        };
        let longest = self.list.iter().filter(same).min_by_key(|pending| Reverse(pending.head.length));
        let best = longest.unwrap_or(first).req;
        let index = self.list.iter().position(|pending| pending.req == best)?;
        Some(self.list.remove(index))
    }

    /// A conflict between whole files is rechecked, which happens once: the wait of all responses starts again.
    pub(super) fn start_recheck(&mut self, now: Instant) {
        self.conflict_rechecked = true;
        for pending in &mut self.list {
            pending.since = now;
        }
    }

    /// Whether a conflict was rechecked already.
    pub(super) fn is_rechecked(&self) -> bool {
        self.conflict_rechecked
    }

    /// A request ended, or its connection: removes its response, but records the size and validator that it stated.
    pub(super) fn remove_lost(&mut self, is_lost: impl Fn(&PendingResponse) -> bool) {
        let (lost, kept): (Vec<_>, Vec<_>) = self.take_all().into_iter().partition(is_lost);
        self.list = kept;
        for pending in lost.into_iter().filter(PendingResponse::is_full_body) {
            if let Some(validator) = &pending.head.validator {
                self.report(pending.link, pending.head.length, Some(validator), false);
            }
        }
    }

    /// Forgets the responses and the reported file: the download begins again.
    pub(super) fn forget(&mut self) {
        self.list.clear();
        self.reported = None;
    }

    /// The file that earlier responses reported.
    pub(super) fn reported(&self) -> Option<&ReportedFile> {
        self.reported.as_ref()
    }

    /// Records the size and validator that a response head over this link stated. `ranged`: it responded to a range
    /// request. An existing validator is never replaced here, and a size from a range response only by one with a
    /// validator or from another range response.
    pub(super) fn report(
        &mut self,
        link: LinkId,
        total: Option<DataSize>,
        validator: Option<&Validator>,
        ranged: bool,
    ) {
        let is_better = |reported: &ReportedFile| {
            reported.validator.is_none() && (validator.is_some() || ranged || !reported.is_from_range)
        };
        if (total.is_some() || validator.is_some()) && self.reported.as_ref().is_none_or(is_better) {
            let validator = validator.cloned();
            self.reported =
                Some(ReportedFile { link, total, validator, is_from_range: ranged, contradicted_by: Vec::new() });
        }
    }

    /// Drops the report if `is_void` holds for it.
    pub(super) fn drop_report_if(&mut self, is_void: impl Fn(&ReportedFile) -> bool) {
        self.reported.take_if(|reported| is_void(reported));
    }

    /// A response over this link contradicts the report. If `is_unanimous` finds that the contradicting links are all
    /// that count, the file has changed, and the report is dropped.
    pub(super) fn contradict(&mut self, link: LinkId, mut is_unanimous: impl FnMut(&[LinkId]) -> bool) {
        let Some(reported) = &mut self.reported else { return };
        reported.contradicted_by.push(link);
        if is_unanimous(&reported.contradicted_by) {
            self.reported = None;
        }
    }
}
