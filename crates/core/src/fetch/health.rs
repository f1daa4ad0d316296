//! Links that work, fall silent, fail, are banned, rest, and come back.
//!
//! 1. A link is *silent* when something should have come for several round trips and nothing has. Its connections and
//!    their bytes are kept: most silences end by themselves, and then nothing was lost. But fresh connections are
//!    ordered at short intervals, because after an outage TCP's retransmission timer has backed off for seconds, while
//!    a new SYN is answered within a round trip. The first connection to deliver wins, the others are closed.
//! 2. A connection that fails is ordered again after a pause that doubles; any byte sets the pause back. After
//!    [`Config::retries`](super::Config::retries) failures without a byte the link is banned (thesis §8.2.4).
//! 3. A banned link rests and is then tested by one connection (the thesis leaves open how; a probe costs a few
//!    packets, and radio signal strength says nothing about the server). Rests double.
//! 4. A metered link stands by while any unmetered one works.
//! 5. When nothing has come from anywhere for [`PATIENCE`], the download ends; what it has is resumable.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::links::{LinkState, Standing};
use super::{
    BAN_REST, Ban, ConnId, Failure, Fetch, MeteredUse, Notice, OriginId, Phase, Policy, SlowLink, Trouble, Wake,
};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

impl Fetch {
    /// Looks for silence, slowness and the end of patience.
    pub(super) fn watch(&mut self) {
        let mut stuck = Vec::new();
        let mut next = Instant::FAR_FUTURE;
        for (id, conn) in &self.conns {
            let way = self.links.get(&conn.link).and_then(|link| link.handshake).unwrap_or_default();
            let Some(limit) = patience(conn, way) else { continue };
            if self.now < conn.last + limit {
                next = next.min(conn.last + limit);
            } else {
                stuck.push(*id);
            }
        }
        for id in stuck {
            self.stuck(id);
        }
        if next != Instant::FAR_FUTURE {
            self.wake_at(next, Wake::Silence);
        }
        self.tell_silence();
        self.leave_silent_answer();
        self.slow_links();
        self.end_of_patience();
    }

    /// Something should have come on this connection.
    fn stuck(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (link_id, last, given_up) = (conn.link, conn.last, conn.last + STUCK.max(conn.rtt() * STUCK_ROUNDS));
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let lively = LIVELY.max(link.handshake.unwrap_or_default() * 2);
        let others_live = link.last_data.is_some_and(|at| at + lively > self.now);
        match link.standing {
            // The link is fine, the connection is not: after a while its bytes go elsewhere.
            Standing::Up if others_live && link.conns.len() > 1 => {
                if given_up < self.now {
                    self.drop_conn(id, true);
                } else {
                    self.wake_at(given_up, Wake::Silence);
                }
            }
            Standing::Up => {
                link.standing = Standing::Silent { since: last };
                link.next_try = self.now;
                if self.config.window.is_some() {
                    self.release(link_id);
                }
            }
            Standing::Probation => {
                let trouble = Trouble { kind: super::TroubleKind::TimedOut, text: "no answer".into() };
                self.drop_conn(id, true);
                self.fail(link_id, trouble);
            }
            _ => {}
        }
    }

    /// The one answer comes over a silent link while another link works: after a while that one is asked from zero.
    fn leave_silent_answer(&mut self) {
        let Phase::OneAnswer { req: Some(req) } = self.phase else { return };
        let Some((conn_id, conn)) = self.reqs.get(&req).and_then(|r| self.conns.get(&r.conn).map(|c| (r.conn, c)))
        else {
            return;
        };
        let Some(Standing::Silent { since }) = self.links.get(&conn.link).map(|link| link.standing.clone()) else {
            return;
        };
        let nothing_yet = conn.meter.total().is_zero();
        // A reader that has had the beginning cannot be given another one: waiting is its better chance.
        let patience = match (nothing_yet, self.consumed) {
            (true, _) => LEAVE_EMPTY,
            (false, 0) => LEAVE_ANSWER,
            (false, _) => LEAVE_READ,
        };
        let until = since + patience;
        let others =
            self.links.iter().any(|(id, l)| *id != conn.link && l.standing == Standing::Up && self.allowed(*id));
        if !others {
            return;
        }
        if self.now < until {
            return self.wake_at(until, Wake::Silence);
        }
        self.drop_conn(conn_id, true);
        self.after_lost_answer();
    }

    fn tell_silence(&mut self) {
        let now = self.now;
        let mut told = Vec::new();
        for (id, link) in &mut self.links {
            if let Standing::Silent { since } = link.standing
                && !link.told_silent
                && since + TELL_SILENCE <= now
            {
                link.told_silent = true;
                told.push(Notice::Silent { link: *id, after: now - since });
            }
        }
        for notice in told {
            self.notice(notice);
        }
    }

    /// The thesis's rules for slow links (§8.2.4), if they were asked for.
    fn slow_links(&mut self) {
        if self.config.thesis.slow_link == SlowLink::Off {
            return;
        }
        let rate = |link: &LinkState| -> crate::units::Bitrate {
            let conns = link.conns.iter().filter_map(|id| self.conns.get(id));
            conns.map(|conn| conn.meter.rate(self.now, SLOW_WINDOW)).sum()
        };
        let working: Vec<_> = self.links.iter().filter(|(_, link)| link.hopeful()).collect();
        let sum: crate::units::Bitrate = working.iter().map(|(_, link)| rate(link)).sum();
        let limit = match self.config.thesis.slow_link {
            SlowLink::Static(limit) => limit,
            SlowLink::Dynamic(share) => (sum / (working.len() as u64).max(1)).share(share),
            SlowLink::Off => return,
        };
        let settled = |link: &LinkState| {
            let first = link.conns.iter().filter_map(|id| self.conns.get(id)?.meter.first()).min();
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

    fn end_of_patience(&mut self) {
        let pause = self.links.values().map(|link| link.paused_until).max().unwrap_or(Instant::ZERO);
        let end = self.last_data.max(pause) + PATIENCE;
        if self.now >= end {
            let trouble = self.links.values().find_map(|link| link.last_trouble.clone());
            self.give_up(Failure::NoLink { trouble });
        } else {
            self.wake_at(end, Wake::Silence);
        }
    }

    /// Orders the connections that should be there and are not.
    pub(super) fn open_connections(&mut self) {
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

    fn tell_metered(&mut self, id: LinkId) {
        let avoided = self.config.metered == MeteredUse::Avoid;
        let Some(link) = self.links.get_mut(&id) else { return };
        if avoided && link.profile.metered && !link.conns.is_empty() && !link.told_metered {
            link.told_metered = true;
            self.notice(Notice::MeteredInUse { link: id });
        }
    }

    fn open_on(&mut self, id: LinkId) {
        let now = self.now;
        let extra = if self.phase == Phase::Ranges { u32::MAX } else { 1 };
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
                let useful = link.conns.iter().filter(|c| self.conns.get(c).is_some_and(|c| !c.draining)).count();
                let missing = (link.lanes.wanted.min(extra) as usize).saturating_sub(useful);
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
        let usable = || self.links.iter().filter(|(id, link)| link.hopeful() && self.allowed(**id));
        match self.phase {
            Phase::OneAnswer { req: Some(req) } => {
                self.reqs.get(&req).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
            }
            Phase::OneAnswer { req: None } => {
                let worse = |link: &LinkState| (link.standing != Standing::Up, link.failures > 0, !link.proved);
                usable().min_by_key(|(_, link)| worse(link)).map(|(id, _)| *id)
            }
            _ if self.config.policy == Policy::Single => usable().next().map(|(id, _)| *id),
            _ => None,
        }
    }

    /// Whether money and budget let this link be used now.
    pub(super) fn allowed(&self, id: LinkId) -> bool {
        let Some(link) = self.links.get(&id) else { return false };
        if link.told_budget {
            return false;
        }
        if !link.profile.metered {
            return true;
        }
        match self.config.metered {
            MeteredUse::Use => true,
            MeteredUse::Never => false,
            MeteredUse::Avoid => !self.links.values().any(|other| !other.profile.metered && self.works(other)),
        }
    }

    /// Whether an unmetered link is good enough to keep metered ones out.
    fn works(&self, link: &LinkState) -> bool {
        match link.standing {
            Standing::Up => link.failures < METERED_AFTER_FAILURES && !link.told_budget,
            Standing::Silent { since } => self.now < since + METERED_AFTER,
            _ => false,
        }
    }

    /// A connection of a silent link stands: the other attempts are not needed.
    pub(super) fn probe_stands(&mut self, id: ConnId) {
        let Some(link) = self.conns.get(&id).and_then(|conn| self.links.get(&conn.link)) else { return };
        if !matches!(link.standing, Standing::Silent { .. }) {
            return;
        }
        for other in link.conns.clone() {
            if self.conns.get(&other).is_some_and(|conn| !conn.is_open()) {
                self.drop_conn(other, true);
            }
        }
    }

    /// Bytes came over a link.
    pub(super) fn came_alive(&mut self, link_id: LinkId, conn_id: ConnId, len: DataSize) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&link_id) else { return };
        link.bytes += len;
        link.last_data = Some(now);
        link.failures = 0;
        let was = core::mem::replace(&mut link.standing, Standing::Up);
        if was == Standing::Up {
            return self.spend(link_id);
        }
        link.bans = 0;
        link.next_try = now;
        let told = core::mem::take(&mut link.told_silent) || was == Standing::Probation;
        // What stood still while this one moved would only bring its bytes late.
        let stale: Vec<ConnId> = link.conns.iter().copied().filter(|other| *other != conn_id).collect();
        for other in stale {
            self.drop_conn(other, true);
        }
        if told {
            self.notice(Notice::Back { link: link_id });
        }
        self.spend(link_id);
    }

    /// Ends the use of a link whose budget is spent.
    fn spend(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(budget) = link.profile.budget else { return };
        if link.bytes >= budget && !link.told_budget {
            link.told_budget = true;
            for conn in link.conns.clone() {
                self.drop_conn(conn, true);
            }
            self.notice(Notice::BudgetSpent { link: id, budget });
        }
    }

    /// What a link may still ask for: its budget less what came and what is on its way.
    pub(super) fn budget_left(&self, id: LinkId) -> DataSize {
        let Some(link) = self.links.get(&id) else { return DataSize::ZERO };
        let Some(budget) = link.profile.budget else { return DataSize::MAX };
        let ahead: DataSize = link.conns.iter().filter_map(|id| self.conns.get(id)).map(|conn| conn.ahead).sum();
        budget - link.bytes - ahead
    }

    /// A connection or an answer failed.
    pub(super) fn fail(&mut self, id: LinkId, trouble: Trouble) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.failures += 1;
        link.last_trouble = Some(trouble.clone());
        link.next_try = link.next_try.max(self.now + link.backoff());
        if !link.hopeful() || link.failures <= self.config.retries {
            // A mirror may do better.
            if link.failures >= 2 && link.hopeful() && !self.is_proved(id) {
                self.next_root(id, &Ban::Trouble { trouble });
            }
            return;
        }
        if self.next_root(id, &Ban::Trouble { trouble: trouble.clone() }) {
            return;
        }
        let failure = Failure::Retries { trouble: trouble.clone() };
        self.ban_or_end(id, Ban::Trouble { trouble }, self.phase != Phase::Unknown, failure);
    }

    fn is_proved(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.proved)
    }

    /// Moves a link to the next of several URLs. False: it has tried them all.
    pub(super) fn next_root(&mut self, id: LinkId, why: &Ban) -> bool {
        let origins = self.config.origins.max(1);
        let Some(link) = self.links.get_mut(&id) else { return false };
        let old = link.root;
        let next = OriginId((old.0 + 1) % origins);
        let first = OriginId(id.0 % origins);
        if next == first {
            return false;
        }
        link.root = next;
        link.failures = 0;
        link.next_try = self.now;
        for conn in link.conns.clone() {
            self.drop_conn(conn, true);
        }
        self.notice(Notice::OriginDropped { origin: old, why: why.clone() });
        true
    }

    /// Takes a link out of use, for a while or for good.
    pub(super) fn ban(&mut self, id: LinkId, why: Ban, probing: bool) {
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

    /// Lets others ask for what a silent link has on its way. Tells whether there was anything.
    pub(super) fn release(&mut self, id: LinkId) -> bool {
        let mut any = false;
        for req in self.reqs.values_mut() {
            let silent = self.conns.get(&req.conn).is_some_and(|conn| conn.link == id);
            if silent && !req.released {
                req.released = true;
                any = true;
            }
        }
        if any {
            self.rebuild();
        }
        any
    }
}

/// How long nothing may come on a connection; none: nothing is expected. `way` is the link's round trip, if known.
fn patience(conn: &Conn, way: Duration) -> Option<Duration> {
    if !conn.is_open() {
        return Some(SYN_PATIENCE.max(way * 2));
    }
    if conn.reqs.is_empty() {
        return None;
    }
    if conn.meter.total().is_zero() {
        return Some((conn.handshake * 4).max(FIRST_BYTE_PATIENCE));
    }
    Some((conn.rtt() * 4).max(LEAST_PATIENCE))
}

/// How often a silent link is tried: often at first, when an outage is most likely to end, then rarely, for the
/// battery's sake. Each try is one SYN.
fn probe_interval(silent: Duration) -> Duration {
    match silent.as_secs() {
        0..10 => Duration::from_millis(250),
        10..60 => Duration::from_secs(1),
        _ => Duration::from_secs(5),
    }
}

/// Twice the 200 ms minimum of Linux's retransmission timer: one lost burst is not silence.
const LEAST_PATIENCE: Duration = Duration::from_millis(450);
/// A server may think before its first answer.
const FIRST_BYTE_PATIENCE: Duration = Duration::from_millis(1500);
/// A lost SYN is sent again by the kernel after one second (RFC 6298 §2); a second one overtakes it.
const SYN_PATIENCE: Duration = Duration::from_millis(450);
/// A link on which bytes came this recently lives.
const LIVELY: Duration = Duration::from_millis(450);
/// A connection that stands still this long beside living ones of its link is given up.
const STUCK: Duration = Duration::from_millis(2000);
const STUCK_ROUNDS: u32 = 8;
const TELL_SILENCE: Duration = Duration::from_secs(1);
/// How often a link is tried whose connections stand and are not answered.
const SLOW_PROBE: Duration = Duration::from_secs(5);
/// Connections that stand on a silent link, unanswered, before more are ordered slowly.
const MOST_UNANSWERED: usize = 4;
/// Attempts under way at the same time on a silent link. With one each quarter of a second the oldest has had three
/// seconds when it makes room: a name, TCP and TLS one after the other over a satellite take two.
const MOST_PROBES: usize = 12;
/// No byte from anywhere for so long ends the download.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a silent link keeps the one answer: without a byte of it, with some, and with some that were read.
const LEAVE_EMPTY: Duration = Duration::from_secs(2);
const LEAVE_ANSWER: Duration = Duration::from_secs(10);
const LEAVE_READ: Duration = Duration::from_secs(60);
/// The thesis takes averages; §3.2.2 samples once a second.
const SLOW_WINDOW: Duration = Duration::from_secs(2);
/// A metered link steps in when the others have been silent this long, or failed this often.
const METERED_AFTER: Duration = Duration::from_secs(3);
const METERED_AFTER_FAILURES: u32 = 2;
