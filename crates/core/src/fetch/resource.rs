//! What is known of the resource, and in which form it is requested.
//!
//! Responses identify the resource by its size (in the coverage map) and its validators, and show whether its server
//! serves ranges. All of this is forgotten when the download begins again, because the file has changed or another
//! mirror is used.

use super::pending_responses::PendingResponses;
use super::validators::Validators;
use super::{ReqId, Resume};
use crate::link::LinkId;

/// State of the identification of the resource.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) phase: Phase,
    pub(super) validators: Validators,
    /// Responses that may come from a captive portal, held until other links have responded.
    pub(super) pending: PendingResponses,
    /// Form of the first request while the resource is not identified.
    pub(super) initial_request: InitialRequest,
    /// A refusal was checked by a request without a Range field, which happens once until the download begins again with
    /// another mirror.
    pub(super) rechecked_without_range: bool,
    /// The initial request for `bytes=0-`; see `first_request`.
    pub(super) first_request: Option<ReqId>,
    /// The link that carries the single response, or carried the last one.
    pub(super) single_response_link: Option<LinkId>,
    /// How often the file has changed during the download.
    restarts: u32,
}

/// Progress of the download.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// No usable response yet: size and validator are unknown.
    Unknown,
    /// The size is known, and the validator unless digests verify the file; ranges are requested on all links.
    Ranges,
    /// One response carries the whole file.
    SingleResponse {
        /// Its request; none until one is sent.
        req: Option<ReqId>,
    },
    /// Done or failed; inputs are ignored.
    Finished,
}

/// Form of the first request for a resource. A server may reject its Range field or the size of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InitialRequest {
    /// `bytes=0-` (`first_request`), or the next 64 KiB (`conn::INITIAL_RANGE`).
    Range,
    /// A range of a few KiB, after the larger one was refused.
    SmallRange,
}

impl Resource {
    /// The resource of an earlier run is known by its validator.
    pub(super) fn new(resume: Option<&Resume>) -> Self {
        Self {
            phase: if resume.is_some() { Phase::Ranges } else { Phase::Unknown },
            validators: Validators::new(resume),
            pending: PendingResponses::default(),
            initial_request: InitialRequest::Range,
            rechecked_without_range: false,
            first_request: None,
            single_response_link: None,
            restarts: 0,
        }
    }

    /// The request that carries the single response.
    pub(super) fn single_response(&self) -> Option<ReqId> {
        match self.phase {
            Phase::SingleResponse { req } => req,
            _ => None,
        }
    }

    /// Whether one response carries the whole file, or will.
    pub(super) fn is_single_response(&self) -> bool {
        matches!(self.phase, Phase::SingleResponse { .. })
    }

    /// The file has changed: forgets the version. Returns how often that has happened.
    pub(super) fn forget_version(&mut self) -> u32 {
        self.validators = Validators::default();
        self.pending.forget();
        self.restarts += 1;
        self.restarts
    }

    /// Another mirror is used: forgets everything about the file. The caller sets the phase, because verified bytes may
    /// be kept.
    pub(super) fn forget_mirror(&mut self) {
        self.validators = Validators::default();
        self.pending.forget();
        self.initial_request = InitialRequest::Range;
        self.rechecked_without_range = false;
        self.first_request = None;
        self.single_response_link = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_another_mirror_is_checked_again() {
        let mut resource = Resource::new(None);
        resource.rechecked_without_range = true;
        resource.initial_request = InitialRequest::SmallRange;
        resource.forget_mirror();
        assert!(!resource.rechecked_without_range && resource.initial_request == InitialRequest::Range);
    }
}
