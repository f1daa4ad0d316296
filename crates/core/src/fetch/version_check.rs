//! Version check: whether responses of one or several links are of the same version of the file.
//!
//! 1. Responses must agree in size and validator. A link whose response does not agree is banned. If every link that
//!    still works reports the same new version, the file has changed, and the download begins again.
//! 2. Servers behind one address may give the same bytes different ETags. Then the date identifies the version; see
//!    `validators`.
//! 3. If a server contradicts itself on every link, and differently each time, a single response carries the file.
//! 4. If CDN nodes do not agree, a link switches to the node of a link that has delivered: to its URL, at its address.
//!    It does so once, because a captive portal answers for every address.

use core::time::Duration;

use super::link::{CdnNode, Link, LinkState};
use super::resource::Phase;
use super::transfers::Transfers;
use super::{BanReason, ReqId, ResponseHead, Validator, first_request};
use crate::link::LinkId;
use crate::units::DataSize;

/// What a response of another version than the known one reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct VersionReport {
    /// Size and validator of the other version, if the response has a validator.
    pub(super) change: Option<(Option<DataSize>, Validator)>,
    /// No portal can have sent the response.
    pub(super) is_certain: bool,
}

/// What is to be done about a response of another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VersionVerdict {
    /// Nothing more: the request is repeated, perhaps to another CDN node.
    Handled,
    /// All links report the same new version: the download begins again.
    FileChanged,
    /// The server contradicts itself on every link, and differently each time: a single response is needed.
    SelfContradiction,
    /// The link gets another version than the others.
    OtherVersion,
}

/// Whether the response is of the version that is being downloaded. If so, records what it adds. If not, returns the
/// reason for a ban of the link and what the response reports. `is_verifiable`: the result is verified, so responses
/// without a validator may be combined.
pub(super) fn check(
    transfers: &mut Transfers,
    id: ReqId,
    total: DataSize,
    head: &ResponseHead,
    is_verifiable: bool,
) -> Result<(), (BanReason, VersionReport)> {
    let expected = transfers.coverage.total();
    let conn = transfers.reqs.get(&id).and_then(|req| transfers.conns.get(&req.conn));
    let Some((link, mirror, node)) = conn.map(|conn| (conn.link, conn.mirror, conn.cdn_node)) else {
        return Ok(());
    };
    let validators = &mut transfers.resource.validators;
    // First, since the date may replace the known validator with which the response is then compared.
    if expected == Some(total) {
        validators.switch_to_date(mirror, head);
    }
    // Combined mirrors have validators of their own; the digest proves that their files are the same.
    let is_same_version = validators.matches(mirror, head).unwrap_or(head.validator.is_some() || is_verifiable);
    if expected.is_none_or(|expected| expected == total)
        && (is_same_version || transfers.resource.is_single_response())
    {
        transfers.resource.validators.record(mirror, head);
        if let Some(link) = transfers.links.get_mut(&link) {
            link.stats.conflicting_version = None;
            link.stats.contradictions = 0;
            link.stats.is_verified = true;
            link.stats.cdn_node = Some(node);
        }
        return Ok(());
    }
    let ban = if expected == Some(total) {
        BanReason::ValidatorMismatch
    } else {
        BanReason::LengthMismatch { actual: Some(total), expected }
    };
    let change = head.validator.as_ref().map(|validator| (Some(total), validator.clone()));
    Err((ban, VersionReport { change, is_certain: true }))
}

/// The server sent the whole file instead of a range. Returns true if the request is repeated with a weaker condition
/// (see [`Validators::relax_if_range`](super::validators::Validators::relax_if_range)).
pub(super) fn relax_if_range(transfers: &mut Transfers, id: ReqId, head: &ResponseHead) -> bool {
    let Some(req) = transfers.reqs.get(&id) else { return false };
    let Some(conn) = transfers.conns.get(&req.conn) else { return false };
    let link = conn.link;
    let is_size_right = head.length.is_none() || head.length == transfers.coverage.total();
    if !is_size_right || !transfers.resource.validators.relax_if_range(conn.mirror, head, req.if_range.as_ref()) {
        return false;
    }
    transfers.cancel_request(id);
    transfers.delay_link(link, Duration::ZERO);
    true
}

/// A response is of another version: decides whether the link, the CDN node or the file is the cause.
pub(super) fn judge_mismatch(
    transfers: &mut Transfers,
    id: ReqId,
    link_id: LinkId,
    report: VersionReport,
) -> VersionVerdict {
    let node = transfers.reqs.get(&id).and_then(|req| transfers.conns.get(&req.conn)).map(|conn| conn.cdn_node);
    transfers.cancel_request(id);
    if first_request::protect_first_response(transfers, link_id) {
        return VersionVerdict::Handled;
    }
    if report.change.is_some() && node.is_some_and(|node| adopt_cdn_node(transfers, link_id, node)) {
        return VersionVerdict::Handled;
    }
    if let Some(link) = transfers.links.get_mut(&link_id) {
        link.stats.conflicting_version = report.change;
    }
    // All links that have reported a conflict or could still respond must report the same version. Decided before the
    // ban of this link, which may activate further links.
    let is_concerned =
        |(id, link): &(&LinkId, &Link)| link.stats.conflicting_version.is_some() || transfers.is_usable(**id);
    let mut versions = transfers.links.iter().filter(is_concerned).map(|(_, link)| &link.stats.conflicting_version);
    let first = versions.next().cloned().flatten();
    // The version of this link is accepted, so it needs no ban.
    if first.is_some() && versions.all(|differs| *differs == first) {
        return VersionVerdict::FileChanged;
    }
    if report.is_certain { judge_contradiction(transfers, link_id) } else { VersionVerdict::OtherVersion }
}

/// Rule 3: the response surely comes from the server and contradicts what is known of the file.
fn judge_contradiction(transfers: &mut Transfers, link_id: LinkId) -> VersionVerdict {
    if let Some(link) = transfers.links.get_mut(&link_id) {
        link.stats.contradictions += 1;
    }
    let is_concerned = |(id, link): &(&LinkId, &Link)| link.stats.contradictions > 0 || transfers.is_usable(**id);
    let counts = || transfers.links.iter().filter(is_concerned).map(|(_, link)| link.stats.contradictions);
    if transfers.resource.phase != Phase::Ranges || counts().any(|count| count == 0) {
        return VersionVerdict::OtherVersion;
    }
    // A single contradiction may be a coincidence if no other link confirms it.
    if counts().sum::<u32>() == 1 {
        transfers.delay_link(link_id, RECHECK_DELAY);
        return VersionVerdict::Handled;
    }
    for link in transfers.links.values_mut() {
        if core::mem::take(&mut link.stats.contradictions) > 0 && !matches!(link.state, LinkState::Down) {
            link.state = LinkState::Up;
            link.stats.conflicting_version = None;
            link.next_attempt = transfers.now;
        }
    }
    VersionVerdict::SelfContradiction
}

/// Redirects or name servers led this link to another CDN node than one that has delivered, and the two do not
/// agree: uses that node from now on. Once per link, because a captive portal would redirect it again.
fn adopt_cdn_node(transfers: &mut Transfers, id: LinkId, current: CdnNode) -> bool {
    let Some(link) = transfers.links.get(&id).filter(|link| !link.follows_other_node) else { return false };
    let mirror = link.mirror;
    let verified_node =
        |link: &Link| link.stats.cdn_node.filter(|_| link.stats.is_verified && link.mirror == mirror);
    // A name with several addresses may have led only one connection of this link to another node, so its own node
    // comes first.
    let others = transfers.links.iter().filter(|(other, _)| **other != id);
    let mut nodes = verified_node(link)
        .into_iter()
        .chain(others.filter_map(|(_, link)| verified_node(link)).map(CdnNode::for_other_link));
    let is_other =
        |node: &CdnNode| node.url != current.url || (node.address.is_some() && node.address != current.address);
    let (Some(node), Some(link)) = (nodes.find(is_other), transfers.links.get_mut(&id)) else { return false };
    link.follows_other_node = true;
    link.stats.cdn_node = None;
    link.redirect_targets.insert(mirror, node);
    link.next_attempt = transfers.now;
    for conn in link.conns.clone() {
        transfers.remove_conn(conn, true);
    }
    true
}

/// The file has changed: forgets the known version, and forgives the links that reported the new one. Returns false if
/// that has happened so often that the download cannot begin again.
pub(super) fn forget_version(transfers: &mut Transfers) -> bool {
    let restarts = transfers.resource.forget_version();
    for link in transfers.links.values_mut() {
        link.stats.is_verified = false;
        if link.stats.conflicting_version.take().is_some() {
            link.state = LinkState::Up;
            link.next_attempt = transfers.now;
        }
    }
    restarts <= MAX_RESTARTS
}

/// Delay before a link repeats a request whose response was contradictory.
const RECHECK_DELAY: Duration = Duration::from_millis(200);
/// Restarts, after which a single response is used: the file changes too often, or each response has another validator.
const MAX_RESTARTS: u32 = 2;
