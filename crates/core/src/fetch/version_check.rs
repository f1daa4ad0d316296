//! Version check: whether responses of one or several links are of the same version of the file.
//!
//! 1. Responses must agree in size and validator. A link whose response does not agree is banned. If every link that
//!    still works reports the same new version, the file has changed, and the download begins again.
//! 2. Servers behind one address may give the same bytes different ETags. If the size and a strong Last-Modified agree,
//!    the date identifies the version from then on (RFC 9110 §8.8.2.2): it replaces the ETag in If-Range. If a server
//!    ignores it there, the date is compared in responses only.
//! 3. If a server contradicts itself on every link, and differently each time, a single response carries the file.
//! 4. If CDN nodes do not agree, a link switches to the node of a link that has delivered: to its URL, at its address.
//!    It does so once, because a captive portal answers for every address.

use alloc::string::String;
use core::time::Duration;

use super::links::{CdnNode, Link, LinkState};
use super::{BanReason, Fetch, Notice, Output, Phase, ReqId, ResponseHead, SingleResponseReason, UrlId, Validator};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Whether the response is of the version that is being downloaded. If not, handles the mismatch: another mirror,
    /// another CDN node, a restart, or a ban.
    pub(super) fn check_version(&mut self, id: ReqId, link: LinkId, total: DataSize, head: &ResponseHead) -> bool {
        let validator = head.validator.as_ref();
        let conn = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let Some((mirror, node)) = conn.map(|conn| (conn.mirror, conn.cdn_node)) else { return false };
        let expected = self.coverage.total();
        // First, since the date may replace the known validator with which the response is then compared.
        if expected == Some(total) {
            self.switch_to_date(mirror, head);
        }
        let known = self.known_validator(mirror);
        // Combined mirrors have validators of their own; the digest proves that their files are the same.
        let is_same_version =
            known.map_or(validator.is_some() || self.is_result_verifiable(), |known| matches_version(known, head));
        let is_single_response = matches!(self.phase, Phase::SingleResponse { .. });
        if expected.is_none_or(|expected| expected == total) && (is_same_version || is_single_response) {
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
        // A mismatch. Another mirror is the cheapest remedy; only then is the link judged.
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

    /// The validator that responses from this mirror must have.
    pub(super) fn known_validator(&self, mirror: UrlId) -> Option<&Validator> {
        self.validators.get(&mirror)
    }

    /// The validator for If-Range in a request for a range of this mirror; none if its server ignores it.
    pub(super) fn if_range_for(&self, mirror: UrlId) -> Option<&Validator> {
        let compare_only =
            self.date_validators.get(&mirror).is_some_and(|dated| dated.role == DateRole::CompareOnly);
        if compare_only { None } else { self.known_validator(mirror) }
    }

    /// Whether a response is of the version that is known for this mirror.
    pub(super) fn matches_known(&self, mirror: UrlId, head: &ResponseHead) -> bool {
        self.known_validator(mirror).is_some_and(|known| matches_version(known, head))
    }

    /// Remembers the date of the version that the known ETag identifies.
    fn note_date(&mut self, mirror: UrlId, head: &ResponseHead) {
        let same = matches!((self.known_validator(mirror), &head.validator), (Some(known @ Validator::Etag(_)), Some(of)) if known == of);
        if let Some(text) = head.last_modified.as_ref().filter(|_| same) {
            self.date_validators
                .entry(mirror)
                .or_insert_with(|| DateValidator { text: text.clone(), role: DateRole::Unused });
        }
    }

    /// Switches from ETag to date if a response of the right size has another ETag and the same date.
    fn switch_to_date(&mut self, mirror: UrlId, head: &ResponseHead) {
        let other = matches!(self.known_validator(mirror), Some(known @ Validator::Etag(_)) if !matches_version(known, head));
        let Some(dated) = self.date_validators.get_mut(&mirror).filter(|_| other) else { return };
        if head.last_modified.as_ref() == Some(&dated.text) {
            dated.role = DateRole::IfRange;
            self.validators.insert(mirror, Validator::LastModified(dated.text.clone()));
        }
    }

    /// The server sent the whole file instead of a range. It may not know the validator in If-Range, which another
    /// server had issued, or it may not compare dates. Returns true if the request is repeated with a weaker condition:
    /// with the date, then without If-Range.
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
            // It was sent before the condition was weakened; repeat it with the present one.
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

    /// Rule 3: the response surely comes from the server and contradicts what is known of the file. Returns true if no
    /// ban is needed, because the link repeats its request or the download switches to a single response.
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
        // A single contradiction may be a coincidence if no other link confirms it.
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

    /// A response is of another version. `change`: size and validator of the other version, if the response has a
    /// validator. `is_certain`: no portal can have sent the response.
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
        // All links that have reported a conflict or could still respond must report the same version. Decided before the
        // ban below, which may activate further links.
        let is_concerned =
            |(id, link): &(&LinkId, &Link)| link.stats.conflicting_version.is_some() || self.is_usable(**id, link);
        let mut versions = self.links.iter().filter(is_concerned).map(|(_, link)| &link.stats.conflicting_version);
        let first = versions.next().cloned().flatten();
        let all = first.is_some() && versions.all(|differs| *differs == first);
        // The version of this link is accepted, so it needs no ban.
        if all {
            return self.restart();
        }
        if !(is_certain && self.handle_self_contradiction(link_id)) {
            self.ban(link_id, ban, true);
        }
    }

    /// Redirects or name servers led this link to another CDN node than one that has delivered, and the two do not
    /// agree: uses that node from now on. Once per link, because a captive portal would redirect it again.
    fn adopt_cdn_node(&mut self, id: LinkId, current: CdnNode) -> bool {
        let Some(link) = self.links.get(&id).filter(|link| !link.follows_other_node) else { return false };
        let mirror = link.mirror;
        let verified_node =
            |link: &Link| link.stats.cdn_node.filter(|_| link.stats.is_verified && link.mirror == mirror);
        // A name with several addresses may have led only one connection of this link to another node, so its own node
        // comes first.
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

    /// The file has changed: discards everything and begins again, or switches to a single response if this happens
    /// repeatedly.
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

/// The Last-Modified date of a version, for servers whose ETags differ.
#[derive(Clone, Debug)]
pub(super) struct DateValidator {
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

/// Whether a response is of the version with this validator.
fn matches_version(known: &Validator, head: &ResponseHead) -> bool {
    let by_date = matches!(known, Validator::LastModified(date) if head.last_modified.as_ref() == Some(date));
    by_date || head.validator.as_ref() == Some(known)
}

/// Delay before a link repeats a request whose response was contradictory.
const RECHECK_DELAY: Duration = Duration::from_millis(200);
/// Restarts, after which a single response is used: the file changes too often, or each response has another validator.
const MAX_RESTARTS: u32 = 2;
