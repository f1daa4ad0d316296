//! The known version of the file, per mirror: the validators that responses must have.
//!
//! A strong ETag or Last-Modified date identifies a version (RFC 9110 §8.8). Servers behind one address may give the
//! same bytes different ETags. If the size and a strong Last-Modified agree, the date identifies the version from then
//! on (RFC 9110 §8.8.2.2): it replaces the ETag in If-Range. If a server ignores it there, the date is compared in
//! responses only.

use alloc::collections::BTreeMap;
use alloc::string::String;

use super::{ResponseHead, Resume, UrlId, Validator};

/// Validators of all mirrors.
#[derive(Clone, Debug, Default)]
pub(super) struct Validators {
    /// The validator that responses of each mirror must have.
    known: BTreeMap<UrlId, Validator>,
    /// Last-Modified dates that identify the version where ETags of one URL differ.
    dates: BTreeMap<UrlId, DateValidator>,
}

/// The Last-Modified date of a version, for servers whose ETags differ.
#[derive(Clone, Debug)]
struct DateValidator {
    /// Last-Modified as the server writes it.
    text: String,
    role: DateRole,
}

/// How the date is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DateRole {
    /// Not at all: the ETag identifies the version.
    Unused,
    /// It is sent as If-Range and compared in responses.
    IfRange,
    /// It is compared in responses.
    CompareOnly,
}

impl Validators {
    /// Starts with the validator of an earlier run. Bytes of several mirrors have none; a digest must prove them.
    pub(super) fn new(resume: Option<&Resume>) -> Self {
        let known = resume.and_then(|resume| Some((resume.mirror?, resume.validator.clone())));
        Self { known: known.into_iter().collect(), dates: BTreeMap::new() }
    }

    /// The validator that responses from this mirror must have.
    pub(super) fn known(&self, mirror: UrlId) -> Option<&Validator> {
        self.known.get(&mirror)
    }

    /// The validator of the first mirror that has one.
    pub(super) fn first(&self) -> Option<&Validator> {
        self.known.values().next()
    }

    /// The validator for If-Range in a request for a range of this mirror; none if its server ignores it.
    pub(super) fn for_if_range(&self, mirror: UrlId) -> Option<&Validator> {
        let compare_only = self.dates.get(&mirror).is_some_and(|dated| dated.role == DateRole::CompareOnly);
        if compare_only { None } else { self.known(mirror) }
    }

    /// Whether a response is of the version that is known for this mirror; none if no version is known.
    pub(super) fn matches(&self, mirror: UrlId, head: &ResponseHead) -> Option<bool> {
        self.known(mirror).map(|known| matches_version(known, head))
    }

    /// A response of the known version was accepted: remembers its validator if none is known, and its date beside the
    /// ETag.
    pub(super) fn record(&mut self, mirror: UrlId, head: &ResponseHead) {
        if let (None, Some(validator)) = (self.known(mirror), &head.validator) {
            self.known.insert(mirror, validator.clone());
        }
        let is_known_etag = matches!(
            (self.known(mirror), &head.validator),
            (Some(known @ Validator::Etag(_)), Some(of)) if known == of
        );
        if let Some(text) = head.last_modified.as_ref().filter(|_| is_known_etag) {
            let dated = || DateValidator { text: text.clone(), role: DateRole::Unused };
            self.dates.entry(mirror).or_insert_with(dated);
        }
    }

    /// Switches from ETag to date if a response of the right size has another ETag and the same date.
    pub(super) fn switch_to_date(&mut self, mirror: UrlId, head: &ResponseHead) {
        let is_other = self.has_other_etag(mirror, head);
        let Some(dated) = self.dates.get_mut(&mirror).filter(|_| is_other) else { return };
        if head.last_modified.as_ref() == Some(&dated.text) {
            dated.role = DateRole::IfRange;
            self.known.insert(mirror, Validator::LastModified(dated.text.clone()));
        }
    }

    /// The server sent the whole file of the right size instead of a range. It may not know the validator in If-Range
    /// (`sent`), which another server had issued, or it may not compare dates. Weakens the condition: to the date, then
    /// to no If-Range. Returns true if the request is to be repeated with the present condition.
    pub(super) fn relax_if_range(&mut self, mirror: UrlId, head: &ResponseHead, sent: Option<&Validator>) -> bool {
        let sent_before_change = sent != self.for_if_range(mirror);
        let by_etag = self.has_other_etag(mirror, head);
        let Some(dated) = self.dates.get_mut(&mirror) else { return false };
        if head.last_modified.as_ref().is_some_and(|modified| *modified != dated.text) {
            return false;
        }
        dated.role = match dated.role {
            // It was sent before the condition was weakened; repeat it with the present one.
            role @ (DateRole::IfRange | DateRole::CompareOnly) if sent_before_change => role,
            DateRole::Unused if by_etag => DateRole::IfRange,
            DateRole::IfRange => DateRole::CompareOnly,
            DateRole::Unused | DateRole::CompareOnly => return false,
        };
        self.known.insert(mirror, Validator::LastModified(dated.text.clone()));
        true
    }

    /// Forgets the validators, but not the dates: a single response follows.
    pub(super) fn forget_known(&mut self) {
        self.known.clear();
    }

    /// Whether an ETag is known and the response has another one.
    fn has_other_etag(&self, mirror: UrlId, head: &ResponseHead) -> bool {
        matches!(self.known(mirror), Some(known @ Validator::Etag(_)) if !matches_version(known, head))
    }
}

/// Whether a response is of the version with this validator.
fn matches_version(known: &Validator, head: &ResponseHead) -> bool {
    let by_date = matches!(known, Validator::LastModified(date) if head.last_modified.as_ref() == Some(date));
    by_date || head.validator.as_ref() == Some(known)
}
