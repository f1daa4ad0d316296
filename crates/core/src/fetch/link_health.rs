//! Health of links: failures, backoff, bans and probes; and opening the connections that should exist.
//!
//! 1. After a failure the next connection is opened after a backoff that doubles; any received byte resets it. After
//!    more than [`Config::retries`](super::Config::retries) failures without a byte the link is banned (thesis §8.2.4).
//! 2. When a ban ends, one connection probes the link. The thesis leaves the method open; this one costs a few packets,
//!    while radio signal strength would say nothing about the server. Until a byte arrives, each further ban lasts twice
//!    as long, up to 64 times the first.
//! 3. A stalled link is probed by new connections (see `stall`), first at short and then at long intervals.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::link::{Link, LinkState};
use super::resource::Phase;
use super::stall::probe_interval;
use super::transfers::Transfers;
use super::{
    BanReason, ConnId, INITIAL_BAN, Notice, Policy, SlowLinkRule, TimerReason, first_request, single_response,
};
use crate::link::LinkId;
use crate::units::Bitrate;

/// The links that are slow by the thesis's rules (§8.2.4), if configured.
pub(super) fn slow_links(transfers: &Transfers) -> Vec<LinkId> {
    if transfers.config.thesis.slow_link == SlowLinkRule::Off {
        return Vec::new();
    }
    let rate = |link: &Link| transfers.link_rate(link, SLOW_LINK_WINDOW);
    let working: Vec<_> = transfers.links.iter().filter(|(_, link)| link.is_in_service()).collect();
    let sum: Bitrate = working.iter().map(|(_, link)| rate(link)).sum();
    let limit = match transfers.config.thesis.slow_link {
        SlowLinkRule::Static(limit) => limit,
        SlowLinkRule::Dynamic(share) => (sum / (working.len() as u64).max(1)).share(share),
        SlowLinkRule::Off => return Vec::new(),
    };
    // A link is judged only after it has delivered for the whole window, and the fastest one never.
    let settled = |link: &Link| {
        let first = transfers.conns_of(link).filter_map(|conn| conn.rate_window.first_arrival()).min();
        first.is_some_and(|first| first + SLOW_LINK_WINDOW <= transfers.now)
    };
    let fastest = working.iter().max_by_key(|(_, link)| rate(link)).map(|(id, _)| **id);
    working
        .iter()
        .filter(|(id, link)| Some(**id) != fastest && settled(link) && rate(link) < limit)
        .map(|(id, _)| **id)
        .collect()
}

/// Opens the connections that are missing on each link.
pub(super) fn open_connections(transfers: &mut Transfers) {
    // All bytes are there; only the verification of the digest is pending.
    if transfers.coverage.is_complete() {
        return;
    }
    let ids: Vec<LinkId> = transfers.links.keys().copied().collect();
    let only = only_link(transfers);
    for id in ids {
        if transfers.resource.phase == Phase::Finished {
            return;
        }
        if !transfers.is_link_allowed(id) || only.is_some_and(|only| only != id) {
            continue;
        }
        open_on_link(transfers, id);
        if transfers.links.notify_metered(id) {
            transfers.notice(Notice::MeteredInUse { link: id });
        }
    }
}

fn open_on_link(transfers: &mut Transfers, id: LinkId) {
    let now = transfers.now;
    // While a response waits for other links, a second connection of this link would add nothing.
    if transfers.resource.pending.holds_link(id) {
        return;
    }
    let phase_max = if transfers.resource.phase == Phase::Ranges { u32::MAX } else { 1 };
    let first = first_request::first_conn(transfers);
    let Some(link) = transfers.links.get_mut(&id) else { return };
    let connecting = |conns: &alloc::collections::BTreeMap<ConnId, Conn>, link: &Link| {
        link.conns.iter().copied().filter(|c| conns.get(c).is_some_and(|c| !c.is_open())).collect::<Vec<_>>()
    };
    match link.state {
        // The ban has ended: one connection probes the link, from the mirror's own URL.
        LinkState::Banned { until: Some(until), .. } => {
            if now < until {
                return transfers.set_timer(until, TimerReason::Retry);
            }
            link.state = LinkState::Probing;
            link.mirrors_tried = 0;
            link.forget_redirect_targets();
            link.next_attempt = now;
            transfers.open_conn(id);
        }
        LinkState::Probing if link.conns.is_empty() => {
            if now < link.next_attempt {
                let at = link.next_attempt;
                return transfers.set_timer(at, TimerReason::Retry);
            }
            transfers.open_conn(id);
        }
        LinkState::Stalled { since } => {
            if now >= link.next_attempt {
                // If connections are established but get no response, the network works and the server is slow.
                // More connections would not help.
                let unanswered = |c: &&ConnId| {
                    transfers.conns.get(c).is_some_and(|c| c.is_open() && c.rate_window.total().is_zero())
                };
                let slow = link.conns.iter().filter(unanswered).count() >= MAX_UNANSWERED;
                link.next_attempt = now + if slow { SLOW_PROBE_INTERVAL } else { probe_interval(now - since) };
                let pending = connecting(&transfers.conns, link);
                // The oldest attempt has had about three seconds.
                if pending.len() >= MAX_PROBES
                    && let Some(oldest) = pending.first()
                {
                    transfers.remove_conn(*oldest, true);
                }
                transfers.open_conn(id);
            }
            if let Some(link) = transfers.links.get(&id) {
                let at = link.next_attempt;
                transfers.set_timer(at, TimerReason::Retry);
            }
        }
        LinkState::Up => {
            let is_useful =
                |id: &&ConnId| first == Some(**id) || transfers.conns.get(id).is_some_and(|c| !c.is_draining);
            let useful = link.conns.iter().filter(is_useful).count();
            let wanted = link.conn_count.target.min(phase_max).min(link.max_connections());
            let missing = (wanted as usize).saturating_sub(useful);
            if missing == 0 {
                return;
            }
            if now < link.next_attempt {
                let at = link.next_attempt;
                return transfers.set_timer(at, TimerReason::Retry);
            }
            for _ in 0..missing {
                transfers.open_conn(id);
            }
        }
        _ => {}
    }
}

/// The only link that may be used, if there is such a restriction: single response, or the policy `single`.
pub(super) fn only_link(transfers: &Transfers) -> Option<LinkId> {
    let usable = || transfers.links.iter().filter(|(id, _)| transfers.is_usable(**id));
    match transfers.resource.phase {
        Phase::SingleResponse { req: Some(req) } => {
            transfers.reqs.get(&req).and_then(|req| transfers.conns.get(&req.conn)).map(|conn| conn.link)
        }
        Phase::SingleResponse { req: None } => {
            // Prefer links that are up. Among stalled ones, avoid the link that has just been waited for.
            let rank = |id: LinkId, link: &Link| {
                let is_stalled = link.state != LinkState::Up;
                let was_tried = is_stalled && transfers.resource.single_response_link == Some(id);
                (is_stalled, was_tried, link.failures > 0, !link.stats.is_verified)
            };
            usable().min_by_key(|(id, link)| rank(**id, link)).map(|(id, _)| *id)
        }
        _ if transfers.config.policy == Policy::Single => usable().next().map(|(id, _)| *id),
        _ => None,
    }
}

/// Bans a link: for a while if `probing`, otherwise for the rest of the run. Spared are the link of the first
/// response, and a last link that requests the whole file instead.
pub(super) fn ban(transfers: &mut Transfers, id: LinkId, reason: BanReason, probing: bool) {
    if first_request::protect_first_response(transfers, id)
        || (probing && single_response::schedule_full_request(transfers, id, &reason))
    {
        return;
    }
    let Some(link) = transfers.links.get_mut(&id) else { return };
    let duration = INITIAL_BAN * 2_u32.saturating_pow(link.bans).min(64);
    link.bans += 1;
    link.state = LinkState::Banned { reason: reason.clone(), until: probing.then_some(transfers.now + duration) };
    for conn in core::mem::take(&mut link.conns) {
        transfers.remove_conn(conn, true);
    }
    transfers.notice(Notice::Banned { link: id, reason, will_probe: probing });
}

/// Probe interval of a stalled link whose connections are established and get no response.
const SLOW_PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of such connections from which that interval applies.
const MAX_UNANSWERED: usize = 4;
/// Maximum number of connection attempts at the same time on a stalled link. At one per 250 ms the oldest has had three
/// seconds when it is replaced: DNS, TCP and TLS over a satellite take two.
const MAX_PROBES: usize = 12;
/// Time over which the rate is taken that decides whether a link is slow. The thesis uses averages; §3.2.2 samples once a
/// second.
const SLOW_LINK_WINDOW: Duration = Duration::from_secs(2);
