//! Health of links: failures, backoff, bans and probes; and opening the connections that should exist.
//!
//! 1. After a failure the next connection is opened after a backoff that doubles; any received byte resets it. After
//!    [`Config::retries`](super::Config::retries) failures without a byte the link is banned (thesis §8.2.4).
//! 2. When a ban ends, one connection probes the link. The thesis leaves the method open; this one costs a few packets,
//!    while radio signal strength would say nothing about the server. Each further ban lasts twice as long.
//! 3. A stalled link is probed by new connections (see `stall`), first at short and then at long intervals.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::links::{Link, LinkState};
use super::stall::probe_interval;
use super::{
    BanReason, ConnError, ConnErrorKind, ConnId, Failure, Fetch, INITIAL_BAN, MeteredUse, Notice, Phase, Policy,
    SlowLinkRule, TimerReason,
};
use crate::link::LinkId;

impl Fetch {
    /// Applies the thesis's rules for slow links (§8.2.4), if configured.
    pub(super) fn ban_slow_links(&mut self) {
        if self.config.thesis.slow_link == SlowLinkRule::Off {
            return;
        }
        let rate = |link: &Link| self.link_rate(link, SLOW_LINK_WINDOW);
        let working: Vec<_> = self.links.iter().filter(|(_, link)| link.is_in_service()).collect();
        let sum: crate::units::Bitrate = working.iter().map(|(_, link)| rate(link)).sum();
        let limit = match self.config.thesis.slow_link {
            SlowLinkRule::Static(limit) => limit,
            SlowLinkRule::Dynamic(share) => (sum / (working.len() as u64).max(1)).share(share),
            SlowLinkRule::Off => return,
        };
        // A link is judged only after it has delivered for the whole window, and the fastest one never.
        let settled = |link: &Link| {
            let first = self.conns_of(link).filter_map(|conn| conn.rate_window.first_arrival()).min();
            first.is_some_and(|first| first + SLOW_LINK_WINDOW <= self.now)
        };
        let fastest = working.iter().max_by_key(|(_, link)| rate(link)).map(|(id, _)| **id);
        let slow: Vec<LinkId> = working
            .iter()
            .filter(|(id, link)| Some(**id) != fastest && settled(link) && rate(link) < limit)
            .map(|(id, _)| **id)
            .collect();
        for id in slow {
            self.ban(id, BanReason::Slow, true);
        }
    }

    /// Opens the connections that are missing on each link.
    pub(super) fn open_connections(&mut self) {
        // All bytes are there; only the verification of the digest is pending.
        if self.coverage.is_complete() {
            return;
        }
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        let only = self.only_link();
        for id in ids {
            if self.phase == Phase::Finished {
                return;
            }
            if !self.is_link_allowed(id) || only.is_some_and(|only| only != id) {
                continue;
            }
            self.open_on_link(id);
            self.notify_metered(id);
        }
    }

    fn open_on_link(&mut self, id: LinkId) {
        let now = self.now;
        // While a response waits for other links, a second connection of this link would add nothing.
        if self.has_pending_response(id) {
            return;
        }
        let phase_max = if self.phase == Phase::Ranges { u32::MAX } else { 1 };
        let first = self.first_conn();
        let Some(link) = self.links.get_mut(&id) else { return };
        let connecting = |conns: &alloc::collections::BTreeMap<ConnId, Conn>, link: &Link| {
            link.conns.iter().copied().filter(|c| conns.get(c).is_some_and(|c| !c.is_open())).collect::<Vec<_>>()
        };
        match link.state {
            // The ban has ended: one connection probes the link, from the mirror's own URL.
            LinkState::Banned { until: Some(until), .. } => {
                if now < until {
                    return self.set_timer(until, TimerReason::Retry);
                }
                link.state = LinkState::Probing;
                link.mirrors_tried = 0;
                link.forget_redirect_targets();
                link.next_attempt = now;
                self.open_conn(id);
            }
            LinkState::Probing if link.conns.is_empty() => {
                if now < link.next_attempt {
                    let at = link.next_attempt;
                    return self.set_timer(at, TimerReason::Retry);
                }
                self.open_conn(id);
            }
            LinkState::Stalled { since } => {
                if now >= link.next_attempt {
                    // If connections are established but get no response, the network works and the server is slow.
                    // More connections would not help.
                    let unanswered = |c: &&ConnId| {
                        self.conns.get(c).is_some_and(|c| c.is_open() && c.rate_window.total().is_zero())
                    };
                    let slow = link.conns.iter().filter(unanswered).count() >= MAX_UNANSWERED;
                    link.next_attempt = now + if slow { SLOW_PROBE_INTERVAL } else { probe_interval(now - since) };
                    let pending = connecting(&self.conns, link);
                    // The oldest attempt has had about three seconds.
                    if pending.len() >= MAX_PROBES
                        && let Some(oldest) = pending.first()
                    {
                        self.remove_conn(*oldest, true);
                    }
                    self.open_conn(id);
                }
                if let Some(link) = self.links.get(&id) {
                    let at = link.next_attempt;
                    self.set_timer(at, TimerReason::Retry);
                }
            }
            LinkState::Up => {
                let is_useful =
                    |id: &&ConnId| first == Some(**id) || self.conns.get(id).is_some_and(|c| !c.is_draining);
                let useful = link.conns.iter().filter(is_useful).count();
                let wanted = link.conn_count.target.min(phase_max).min(link.max_connections());
                let missing = (wanted as usize).saturating_sub(useful);
                if missing == 0 {
                    return;
                }
                if now < link.next_attempt {
                    let at = link.next_attempt;
                    return self.set_timer(at, TimerReason::Retry);
                }
                for _ in 0..missing {
                    self.open_conn(id);
                }
            }
            _ => {}
        }
    }

    /// The only link that may be used, if there is such a restriction: single response, or the policy `single`.
    pub(super) fn only_link(&self) -> Option<LinkId> {
        let usable = || self.links.iter().filter(|(id, link)| self.is_usable(**id, link));
        match self.phase {
            Phase::SingleResponse { req: Some(req) } => {
                self.reqs.get(&req).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
            }
            Phase::SingleResponse { req: None } => {
                // Prefer links that are up. Among stalled ones, avoid the link that has just been waited for.
                let rank = |id: LinkId, link: &Link| {
                    let is_stalled = link.state != LinkState::Up;
                    let was_tried = is_stalled && self.single_response_link == Some(id);
                    (is_stalled, was_tried, link.failures > 0, !link.stats.is_verified)
                };
                usable().min_by_key(|(id, link)| rank(**id, link)).map(|(id, _)| *id)
            }
            _ if self.config.policy == Policy::Single => usable().next().map(|(id, _)| *id),
            _ => None,
        }
    }

    /// Handles the failure of a connection or response: backoff, another mirror, or a ban.
    pub(super) fn on_failure(&mut self, id: LinkId, error: ConnError) {
        let errors = self.links.values().filter_map(|link| link.stats.last_error.as_ref());
        let refused = errors.chain([&error]).find(|error| error.is_refusal()).cloned();
        let Some(link) = self.links.get_mut(&id) else { return };
        link.failures += 1;
        link.stats.last_error = Some(error.clone());
        link.next_attempt = link.next_attempt.max(self.now + link.backoff());
        // An invalid certificate or a forbidden address will not change within a backoff.
        let is_permanent = match error.kind {
            ConnErrorKind::Tls => !link.stats.is_verified,
            ConnErrorKind::Forbidden | ConnErrorKind::OwnListener => true,
            // If another link found the address refused by a rule, failures to reach any address on this one are of no
            // interest.
            ConnErrorKind::Dns | ConnErrorKind::Unreachable => refused.is_some() && self.phase == Phase::Unknown,
            _ => false,
        };
        if !link.is_in_service() || (link.failures <= self.config.retries && !is_permanent) {
            // Another mirror may work.
            if link.failures >= 2 && link.is_in_service() && !self.is_link_verified(id) {
                self.try_next_mirror(id, &BanReason::RepeatedErrors { error });
            }
            return;
        }
        if self.try_next_mirror(id, &BanReason::RepeatedErrors { error: error.clone() }) {
            return;
        }
        let failure = Failure::RetriesExhausted { error: refused.unwrap_or_else(|| error.clone()) };
        let others = self.links.iter().any(|(other, link)| *other != id && link.is_in_service());
        if others || self.may_deliver_again() {
            self.ban(id, BanReason::RepeatedErrors { error }, true);
        } else {
            // Nothing has been received so far, and no other link is left.
            self.failover_or_fail(failure);
        }
    }

    fn is_link_verified(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.stats.is_verified)
    }

    /// Bans a link: for a while if `probing`, otherwise for the rest of the run. Spared are the link of the first
    /// response, and a last link that requests the whole file instead.
    pub(super) fn ban(&mut self, id: LinkId, reason: BanReason, probing: bool) {
        if self.protect_first_response(id) || (probing && self.schedule_full_request(id, &reason)) {
            return;
        }
        let Some(link) = self.links.get_mut(&id) else { return };
        let duration = INITIAL_BAN * 2_u32.saturating_pow(link.bans).min(64);
        link.bans += 1;
        link.state = LinkState::Banned { reason: reason.clone(), until: probing.then_some(self.now + duration) };
        for conn in core::mem::take(&mut link.conns) {
            self.remove_conn(conn, true);
        }
        self.notice(Notice::Banned { link: id, reason, will_probe: probing });
    }

    /// Ends the download, or switches mirrors, if no link can deliver any more.
    pub(super) fn fail_if_no_link_left(&mut self, failure: Failure) {
        let is_gone = |link: &Link| matches!(link.state, LinkState::Banned { until: None, .. } | LinkState::Down);
        let unusable = |id: &LinkId, link: &Link| {
            is_gone(link)
                || link.budget_exhausted
                || (link.profile.metered && self.config.metered == MeteredUse::Never)
                || (self.config.policy == Policy::Single && !self.is_link_allowed(*id))
        };
        if self.links.iter().all(|(id, link)| unusable(id, link)) {
            self.failover_or_fail(failure);
        }
    }

    /// Delays the next connection or initial request of a link.
    pub(super) fn delay_link(&mut self, id: LinkId, delay: Duration) {
        if let Some(link) = self.links.get_mut(&id) {
            link.next_attempt = link.next_attempt.max(self.now + delay);
        }
    }
}

/// Probe interval of a stalled link whose connections are established and get no response.
const SLOW_PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of such connections from which that interval applies.
const MAX_UNANSWERED: usize = 4;
/// Maximum number of connection attempts at the same time on a stalled link. At one per 250 ms the oldest has had three
/// seconds when it is replaced: DNS, TCP and TLS over a satellite take two.
const MAX_PROBES: usize = 12;
/// The thesis uses averages; §3.2.2 samples once a second.
const SLOW_LINK_WINDOW: Duration = Duration::from_secs(2);
