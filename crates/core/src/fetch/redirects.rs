//! Redirects: each link follows them for itself, since the target may be its own CDN node.
//!
//! The target is stored per link and mirror. Some servers redirect to the same URL until the file is ready or a cookie
//! is set, so a few repetitions of a target are normal; more are a loop. Loops of many targets end at the limit of
//! redirects.

use super::conn::Conn;
use super::link::CdnNode;
use super::resource::Phase;
use super::transfers::Transfers;
use super::{Failure, ReqId, ResponseHead, refusals};
use crate::link::LinkId;

/// Stores the target for this link and mirror, and moves the link's connections to it. Returns the failure if the
/// redirect cannot be followed.
pub(super) fn follow(
    transfers: &mut Transfers,
    id: ReqId,
    link_id: LinkId,
    head: &ResponseHead,
) -> Option<Failure> {
    let conn = transfers.reqs.get(&id).and_then(|req| transfers.conns.get(&req.conn));
    let from_url = conn.map(|conn| (conn.mirror, conn.cdn_node.url));
    // The redirect may come from the target of an earlier one that has expired.
    if refusals::handle_expired_target(transfers, id, link_id, head.status) {
        return None;
    }
    let (mirror, from) = from_url?;
    let link = transfers.links.get_mut(&link_id)?;
    let max = transfers.config.max_redirects;
    let is_loop = head.location.is_some_and(|to| link.is_redirect_loop(mirror, from, to));
    let is_over = link.redirects > max || (is_loop && max > FEW_REDIRECTS);
    // Range requests may be redirected in a loop while others are not: try one without a range.
    if is_over && max > FEW_REDIRECTS && refusals::retry_without_range(transfers, id, link_id) {
        if let Some(link) = transfers.links.get_mut(&link_id) {
            link.forget_redirects();
        }
        return None;
    }
    let link = transfers.links.get_mut(&link_id)?;
    match head.location {
        Some(target) if !is_over => {
            link.redirect_targets.insert(mirror, CdnNode { url: target, address: None });
            link.responses_from_target = 0;
            link.next_attempt = transfers.now;
            drain_old_target(transfers, link_id);
            None
        }
        // A redirect without Location may depend on the Range field; a target that must not be followed does not.
        _ if !head.has_location && refusals::retry_without_range(transfers, id, link_id) => None,
        Some(_) => Some(Failure::RedirectLoop),
        None => {
            Some(Failure::ProtocolViolation { text: "a redirect whose target cannot be read or followed".into() })
        }
    }
}

/// Connections to the previous target: those that deliver complete their requests, the others are closed.
fn drain_old_target(transfers: &mut Transfers, link: LinkId) {
    let Some(link) = transfers.links.get(&link) else { return };
    for id in link.conns.clone() {
        let is_delivering = |conn: &Conn| {
            let front = conn.reqs.front().and_then(|req| transfers.reqs.get(req));
            front.is_some_and(|req| req.is_accepted && !req.remaining().is_empty())
        };
        if transfers.resource.phase == Phase::Ranges && transfers.conns.get(&id).is_some_and(is_delivering) {
            transfers.mark_draining(id);
        } else {
            transfers.remove_conn(id, true);
        }
    }
}

/// If the limit of redirects is at most this, loops are not detected: the limit ends them.
const FEW_REDIRECTS: u32 = 10;
