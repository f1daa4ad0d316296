//! Whether two answers are of the same file.
//!
//! 1. Answers must agree in size and validator. One that does not bans its link; if every link that still works says the
//!    same new thing, the file has changed and the download starts again.
//! 2. Servers behind one address may give the same bytes different ETags. Where the size and a strong Last-Modified agree,
//!    the date proves the version from then on (RFC 9110 §8.8.2.2): it takes the ETag's place in If-Range and, should
//!    the server not know what to do with it there, stands alone.
//! 3. A server that contradicts itself on every link, and not always in the same way, gives one answer.
//! 4. Where edges of a content network do not agree, a link goes over to one that has delivered: to its URL, at its
//!    address. It does so once, as a portal answers for every address.

use alloc::string::String;
use core::time::Duration;

use super::links::{CdnNode, Link, LinkState};
use super::{BanReason, Fetch, Notice, Output, Phase, ReqId, ResponseHead, SingleResponseReason, UrlId, Validator};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Whether the answer is of the file that the others are of. If not, its link is dealt with.
    pub(super) fn check_version(&mut self, id: ReqId, link: LinkId, total: DataSize, head: &ResponseHead) -> bool {
        let validator = head.validator.as_ref();
        let conn = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let Some((mirror, node)) = conn.map(|conn| (conn.mirror, conn.cdn_node)) else { return false };
        let expected = self.coverage.total();
        if expected == Some(total) {
            self.switch_to_date(mirror, head);
        }
        let known = self.known_validator(mirror);
        // Sources that are combined have validators of their own; the digest proves that their files are one.
        let proof =
            known.map_or(validator.is_some() || self.is_digest_known(), |known| matches_version(known, head));
        let is_single_response = matches!(self.phase, Phase::SingleResponse { .. });
        if expected.is_none_or(|expected| expected == total) && (proof || is_single_response) {
            if let (None, Some(validator)) = (known, validator) {
                self.validators.insert(mirror, validator.clone());
            }
            self.note_date(mirror, head);
            if let Some(link) = self.links.get_mut(&link) {
                link.stats.conflicting_version = None;
                link.stats.contradictions = 0;
                link.stats.is_verified = true;
                link.stats.cdn_node = Some(node);
            }
            return true;
        }
        let ban = if expected == Some(total) {
            BanReason::ValidatorMismatch
        } else {
            BanReason::LengthMismatch { actual: Some(total), expected }
        };
        if self.try_next_mirror(link, &ban) {
            return false;
        }
        self.on_version_mismatch(id, link, ban, validator.map(|validator| (Some(total), validator.clone())), true);
        false
    }

    /// The validator that answers of this source must have.
    pub(super) fn known_validator(&self, mirror: UrlId) -> Option<&Validator> {
        self.validators.get(&mirror)
    }

    /// The validator that a request for a range of this URL is bound to.
    pub(super) fn if_range_for(&self, mirror: UrlId) -> Option<&Validator> {
        let compare_only =
            self.date_validators.get(&mirror).is_some_and(|dated| dated.role == DateRole::CompareOnly);
        if compare_only { None } else { self.known_validator(mirror) }
    }

    /// Whether an answer is of the version that is known of this URL.
    pub(super) fn matches_known(&self, mirror: UrlId, head: &ResponseHead) -> bool {
        self.known_validator(mirror).is_some_and(|known| matches_version(known, head))
    }

    /// The date of a version that its ETag proves.
    fn note_date(&mut self, mirror: UrlId, head: &ResponseHead) {
        let same = matches!((self.known_validator(mirror), &head.validator), (Some(known @ Validator::Etag(_)), Some(of)) if known == of);
        if let Some(text) = head.last_modified.as_ref().filter(|_| same) {
            self.date_validators
                .entry(mirror)
                .or_insert_with(|| DateValidator { text: text.clone(), role: DateRole::Unused });
        }
    }

    /// An answer of the right size has another ETag and the same date: the date proves the version from now on.
    fn switch_to_date(&mut self, mirror: UrlId, head: &ResponseHead) {
        let other = matches!(self.known_validator(mirror), Some(known @ Validator::Etag(_)) if !matches_version(known, head));
        let Some(dated) = self.date_validators.get_mut(&mirror).filter(|_| other) else { return };
        if head.last_modified.as_ref() == Some(&dated.text) {
            dated.role = DateRole::IfRange;
            self.validators.insert(mirror, Validator::LastModified(dated.text.clone()));
        }
    }

    /// The whole file instead of a range: the server may not know the validator that If-Range named, as it was another
    /// server's, or may not compare dates. Tells whether the request is to be repeated with less of a condition.
    pub(super) fn relax_if_range(&mut self, id: ReqId, head: &ResponseHead) -> bool {
        let Some(conn) = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)) else { return false };
        let (mirror, link) = (conn.mirror, conn.link);
        let sent_before_change =
            self.reqs.get(&id).is_some_and(|req| req.if_range.as_ref() != self.if_range_for(mirror));
        let by_etag = matches!(self.known_validator(mirror), Some(known @ Validator::Etag(_)) if !matches_version(known, head));
        let size = head.length.is_none() || head.length == self.coverage.total();
        let Some(dated) = self.date_validators.get_mut(&mirror) else { return false };
        if !size || head.last_modified.as_ref().is_some_and(|modified| *modified != dated.text) {
            return false;
        }
        dated.role = match dated.role {
            // It was sent before the condition was changed.
            role @ (DateRole::IfRange | DateRole::CompareOnly) if sent_before_change => role,
            DateRole::Unused if by_etag => DateRole::IfRange,
            DateRole::IfRange => DateRole::CompareOnly,
            DateRole::Unused | DateRole::CompareOnly => return false,
        };
        self.validators.insert(mirror, Validator::LastModified(dated.text.clone()));
        self.cancel_request(id);
        self.delay_link(link, Duration::ZERO);
        true
    }

    /// Rule 3: a link's answer, which is the server's for sure, is of no file that is known. Tells whether the link needs
    /// no ban, as it is asked again, or everything is.
    fn handle_self_contradiction(&mut self, link_id: LinkId) -> bool {
        if let Some(link) = self.links.get_mut(&link_id) {
            link.stats.contradictions += 1;
        }
        let is_concerned =
            |(id, link): &(&LinkId, &Link)| link.stats.contradictions > 0 || self.is_usable(**id, link);
        let links = || self.links.iter().filter(is_concerned).map(|(_, link)| link.stats.contradictions);
        if self.phase != Phase::Ranges || links().any(|count| count == 0) {
            return false;
        }
        // Once is chance, where there is nobody else to say so.
        if links().sum::<u32>() == 1 {
            self.delay_link(link_id, RECHECK_DELAY);
            return true;
        }
        for link in self.links.values_mut() {
            if core::mem::take(&mut link.stats.contradictions) > 0 && !matches!(link.state, LinkState::Down) {
                link.state = LinkState::Up;
                link.stats.conflicting_version = None;
                link.next_attempt = self.now;
            }
        }
        self.switch_to_single_response(SingleResponseReason::UnstableValidator, None);
        true
    }

    /// A link speaks of another file. `change` is what it would be, if the answer proves that; `sure` that no portal has
    /// answered.
    pub(super) fn on_version_mismatch(
        &mut self,
        id: ReqId,
        link_id: LinkId,
        ban: BanReason,
        change: Option<(Option<DataSize>, Validator)>,
        is_certain: bool,
    ) {
        let node = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.cdn_node);
        self.cancel_request(id);
        if self.protect_first_response(link_id) {
            return;
        }
        if change.is_some() && node.is_some_and(|node| self.adopt_cdn_node(link_id, node)) {
            return;
        }
        if let Some(link) = self.links.get_mut(&link_id) {
            link.stats.conflicting_version = change;
        }
        // Judged before the ban, which may call in links that have not spoken yet.
        let has_spoken =
            |(id, link): &(&LinkId, &Link)| link.stats.conflicting_version.is_some() || self.is_usable(**id, link);
        let mut versions = self.links.iter().filter(has_spoken).map(|(_, link)| &link.stats.conflicting_version);
        let first = versions.next().cloned().flatten();
        let all = first.is_some() && versions.all(|differs| *differs == first);
        // A link that is believed needs no ban.
        if all {
            return self.restart();
        }
        if !(is_certain && self.handle_self_contradiction(link_id)) {
            self.ban(link_id, ban, true);
        }
    }

    /// Redirects or name servers have led this link to another edge of a content network than one that has delivered,
    /// and the two do not agree: from now on it asks that one. Once for each link, as a portal would lead it away again.
    fn adopt_cdn_node(&mut self, id: LinkId, current: CdnNode) -> bool {
        let Some(link) = self.links.get(&id).filter(|link| !link.follows_other_node) else { return false };
        let mirror = link.mirror;
        let verified_node =
            |link: &Link| link.stats.cdn_node.filter(|_| link.stats.is_verified && link.mirror == mirror);
        // A name with several addresses may have led astray one connection only.
        let others = self.links.iter().filter(|(other, _)| **other != id);
        let mut nodes = verified_node(link)
            .into_iter()
            .chain(others.filter_map(|(_, link)| verified_node(link)).map(CdnNode::for_other_link));
        let is_other =
            |node: &CdnNode| node.url != current.url || (node.address.is_some() && node.address != current.address);
        let (Some(node), Some(link)) = (nodes.find(is_other), self.links.get_mut(&id)) else { return false };
        link.follows_other_node = true;
        link.stats.cdn_node = None;
        link.redirect_targets.insert(mirror, node);
        link.next_attempt = self.now;
        for conn in link.conns.clone() {
            self.remove_conn(conn, true);
        }
        true
    }

    /// The file is another one now: everything starts again.
    pub(super) fn restart(&mut self) {
        self.restarts += 1;
        self.validators.clear();
        self.date_validators.clear();
        self.pending_responses.clear();
        self.reported_file = None;
        for link in self.links.values_mut() {
            link.stats.is_verified = false;
            if link.stats.conflicting_version.take().is_some() {
                link.state = LinkState::Up;
                link.next_attempt = self.now;
            }
        }
        if self.restarts > MAX_RESTARTS {
            return self.switch_to_single_response(SingleResponseReason::UnstableValidator, None);
        }
        self.close_all();
        self.discard_bytes();
        self.phase = Phase::Unknown;
        self.consumed = 0;
        self.notice(Notice::FileChanged);
        self.outputs.push_back(Output::Restart);
    }
}

/// What proves a version where ETags do not.
#[derive(Clone, Debug)]
pub(super) struct DateValidator {
    /// Last-Modified, as the server writes it.
    text: String,
    role: DateRole,
}

/// What a date is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DateRole {
    /// The ETag does.
    Unused,
    /// Requests are bound to it, and answers compared with it.
    IfRange,
    /// Answers are compared with it.
    CompareOnly,
}

/// Whether an answer is of this version.
fn matches_version(known: &Validator, head: &ResponseHead) -> bool {
    let by_date = matches!(known, Validator::LastModified(date) if head.last_modified.as_ref() == Some(date));
    by_date || head.validator.as_ref() == Some(known)
}

/// How long a server that has contradicted itself once is left alone.
const RECHECK_DELAY: Duration = Duration::from_millis(200);
/// A file that changes more often, or a server that gives each answer a validator of its own, gives one answer.
const MAX_RESTARTS: u32 = 2;
