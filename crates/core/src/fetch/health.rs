//! Links that fail, are banned, rest, and come back; and the connections that should be there.
//!
//! 1. A connection that fails is ordered again after a pause that doubles; any byte sets the pause back. After
//!    [`Config::retries`](super::Config::retries) failures without a byte the link is banned (thesis §8.2.4).
//! 2. A banned link rests and is then tested by one connection (the thesis leaves open how; a probe costs a few
//!    packets, and radio signal strength says nothing about the server). Rests double.
//! 3. A silent link is tried by fresh connections (see `silence`), often at first and then rarely.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::links::{LinkState, Standing};
use super::silence::probe_interval;
use super::{
    BAN_REST, Ban, ConnId, Failure, Fetch, MeteredUse, Notice, Phase, Policy, SlowLink, Trouble, TroubleKind, Wake,
};
use crate::link::LinkId;

impl Fetch {
    /// The thesis's rules for slow links (§8.2.4), if they were asked for.
    pub(super) fn slow_links(&mut self) {
        if self.config.thesis.slow_link == SlowLink::Off {
            return;
        }
        let rate = |link: &LinkState| self.link_rate(link, SLOW_WINDOW);
        let working: Vec<_> = self.links.iter().filter(|(_, link)| link.hopeful()).collect();
        let sum: crate::units::Bitrate = working.iter().map(|(_, link)| rate(link)).sum();
        let limit = match self.config.thesis.slow_link {
            SlowLink::Static(limit) => limit,
            SlowLink::Dynamic(share) => (sum / (working.len() as u64).max(1)).share(share),
            SlowLink::Off => return,
        };
        let settled = |link: &LinkState| {
            let first = self.conns_of(link).filter_map(|conn| conn.meter.first()).min();
            first.is_some_and(|first| first + SLOW_WINDOW <= self.now)
        };
        let fastest = working.iter().max_by_key(|(_, link)| rate(link)).map(|(id, _)| **id);
        let slow: Vec<LinkId> = working
            .iter()
            .filter(|(id, link)| Some(**id) != fastest && settled(link) && rate(link) < limit)
            .map(|(id, _)| **id)
            .collect();
        for id in slow {
            self.ban(id, Ban::Slow, true);
        }
    }

    /// Orders the connections that should be there and are not.
    pub(super) fn open_connections(&mut self) {
        // Only the digest is missing.
        if self.ledger.complete() {
            return;
        }
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        let only = self.only_link();
        for id in ids {
            if self.phase == Phase::Over {
                return;
            }
            if !self.allowed(id) || only.is_some_and(|only| only != id) {
                continue;
            }
            self.open_on(id);
            self.tell_metered(id);
        }
    }

    fn open_on(&mut self, id: LinkId) {
        let now = self.now;
        // What waits for another link's opinion needs no second connection beside it.
        if self.waits_for_opinion(id) {
            return;
        }
        let extra = if self.phase == Phase::Ranges { u32::MAX } else { 1 };
        let first = self.first_conn();
        let Some(link) = self.links.get_mut(&id) else { return };
        let opening = |conns: &alloc::collections::BTreeMap<ConnId, Conn>, link: &LinkState| {
            link.conns.iter().copied().filter(|c| conns.get(c).is_some_and(|c| !c.is_open())).collect::<Vec<_>>()
        };
        match link.standing {
            Standing::Banned { until: Some(until), .. } => {
                if now < until {
                    return self.wake_at(until, Wake::Retry);
                }
                link.standing = Standing::Probation;
                link.roots_left = 0;
                link.forget_places();
                link.next_try = now;
                self.connect(id);
            }
            Standing::Probation if link.conns.is_empty() => {
                if now < link.next_try {
                    let at = link.next_try;
                    return self.wake_at(at, Wake::Retry);
                }
                self.connect(id);
            }
            Standing::Silent { since } => {
                if now >= link.next_try {
                    // The network is fine if connections stand: then the server is slow, and more would not help it.
                    let unanswered =
                        |c: &&ConnId| self.conns.get(c).is_some_and(|c| c.is_open() && c.meter.total().is_zero());
                    let slow = link.conns.iter().filter(unanswered).count() >= MOST_UNANSWERED;
                    link.next_try = now + if slow { SLOW_PROBE } else { probe_interval(now - since) };
                    let pending = opening(&self.conns, link);
                    if pending.len() >= MOST_PROBES
                        && let Some(oldest) = pending.first()
                    {
                        self.drop_conn(*oldest, true);
                    }
                    self.connect(id);
                }
                if let Some(link) = self.links.get(&id) {
                    let at = link.next_try;
                    self.wake_at(at, Wake::Retry);
                }
            }
            Standing::Up => {
                let is_useful =
                    |id: &&ConnId| first == Some(**id) || self.conns.get(id).is_some_and(|c| !c.draining);
                let useful = link.conns.iter().filter(is_useful).count();
                let wanted = link.lanes.wanted.min(extra).min(link.most_connections());
                let missing = (wanted as usize).saturating_sub(useful);
                if missing == 0 {
                    return;
                }
                if now < link.next_try {
                    let at = link.next_try;
                    return self.wake_at(at, Wake::Retry);
                }
                for _ in 0..missing {
                    self.connect(id);
                }
            }
            _ => {}
        }
    }

    /// The one link to use, if only one may be used.
    pub(super) fn only_link(&self) -> Option<LinkId> {
        let usable = || self.links.iter().filter(|(id, link)| self.usable(**id, link));
        match self.phase {
            Phase::OneAnswer { req: Some(req) } => {
                self.reqs.get(&req).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
            }
            Phase::OneAnswer { req: None } => {
                // Of links that are silent the one that has not just been waited for.
                let worse = |id: LinkId, link: &LinkState| {
                    let silent = link.standing != Standing::Up;
                    let waited = silent && self.carrier == Some(id);
                    (silent, waited, link.failures > 0, !link.known.proved)
                };
                usable().min_by_key(|(id, link)| worse(**id, link)).map(|(id, _)| *id)
            }
            _ if self.config.policy == Policy::Single => usable().next().map(|(id, _)| *id),
            _ => None,
        }
    }

    /// A connection or an answer failed.
    pub(super) fn fail(&mut self, id: LinkId, trouble: Trouble) {
        let troubles = self.links.values().filter_map(|link| link.known.last_trouble.as_ref());
        let refused = troubles.chain([&trouble]).find(|trouble| trouble.is_refusal()).cloned();
        let Some(link) = self.links.get_mut(&id) else { return };
        link.failures += 1;
        link.known.last_trouble = Some(trouble.clone());
        link.next_try = link.next_try.max(self.now + link.backoff());
        // A certificate that is wrong now is wrong in a second, too; so is an address that is forbidden.
        let lasting = match trouble.kind {
            TroubleKind::Tls => !link.known.proved,
            TroubleKind::Forbidden | TroubleKind::Loop => true,
            // A link that reaches no address of a host says less than one on which its address is refused.
            TroubleKind::Name | TroubleKind::Unreachable => refused.is_some() && self.phase == Phase::Unknown,
            _ => false,
        };
        if !link.hopeful() || (link.failures <= self.config.retries && !lasting) {
            // A mirror may do better.
            if link.failures >= 2 && link.hopeful() && !self.is_proved(id) {
                self.next_root(id, &Ban::Trouble { trouble });
            }
            return;
        }
        if self.next_root(id, &Ban::Trouble { trouble: trouble.clone() }) {
            return;
        }
        let failure = Failure::Retries { trouble: refused.unwrap_or_else(|| trouble.clone()) };
        let others = self.links.iter().any(|(other, link)| *other != id && link.hopeful());
        if others || self.may_deliver_again() {
            self.ban(id, Ban::Trouble { trouble }, true);
        } else {
            // Nothing has ever come from anywhere.
            self.give_up(failure);
        }
    }

    fn is_proved(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.known.proved)
    }

    /// Takes a link out of use, for a while or for good.
    pub(super) fn ban(&mut self, id: LinkId, why: Ban, probing: bool) {
        if self.protect_first(id) || (probing && self.asks_whole_first(id, &why)) {
            return;
        }
        let Some(link) = self.links.get_mut(&id) else { return };
        let rest = BAN_REST * 2_u32.saturating_pow(link.bans).min(64);
        link.bans += 1;
        link.standing = Standing::Banned { why: why.clone(), until: probing.then_some(self.now + rest) };
        for conn in core::mem::take(&mut link.conns) {
            self.drop_conn(conn, true);
        }
        self.notice(Notice::Banned { link: id, why, probing });
    }

    /// Ends the download if no link can ever bring anything.
    pub(super) fn fail_if_hopeless(&mut self, failure: Failure) {
        let lost =
            |link: &LinkState| matches!(link.standing, Standing::Banned { until: None, .. } | Standing::Down);
        let unusable = |id: &LinkId, link: &LinkState| {
            lost(link)
                || link.spent
                || (link.profile.metered && self.config.metered == MeteredUse::Never)
                || (self.config.policy == Policy::Single && !self.allowed(*id))
        };
        if self.links.iter().all(|(id, link)| unusable(id, link)) {
            self.give_up(failure);
        }
    }

    /// A link waits before its next request.
    pub(super) fn rest(&mut self, id: LinkId, time: Duration) {
        if let Some(link) = self.links.get_mut(&id) {
            link.next_try = link.next_try.max(self.now + time);
        }
    }
}

/// How often a link is tried whose connections stand and are not answered.
const SLOW_PROBE: Duration = Duration::from_secs(5);
/// Connections that stand on a silent link, unanswered, before more are ordered slowly.
const MOST_UNANSWERED: usize = 4;
/// Attempts under way at the same time on a silent link. With one each quarter of a second the oldest has had three
/// seconds when it makes room: a name, TCP and TLS one after the other over a satellite take two.
const MOST_PROBES: usize = 12;
/// The thesis takes averages; §3.2.2 samples once a second.
const SLOW_WINDOW: Duration = Duration::from_secs(2);
