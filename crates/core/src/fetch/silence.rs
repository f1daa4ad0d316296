//! Links on which nothing comes although something should.
//!
//! 1. A link is *silent* when something should have come for several round trips and nothing has. Its connections and
//!    their bytes are kept: most silences end by themselves, and then nothing was lost. But fresh connections are
//!    ordered at short intervals, because after an outage TCP's retransmission timer has backed off for seconds, while
//!    a new SYN is answered within a round trip. The first connection to deliver wins, the others are closed.
//! 2. One connection that stands still beside living ones of its link is given up after a while, and its bytes with it.
//! 3. When nothing has come from anywhere for [`PATIENCE`], the download ends; what it has is resumable.
//!
//! Keep-alive probes of TCP were not used: they are answered by kernels and middle boxes that deliver nothing.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::links::{LinkState, Standing, WholeTry};
use super::{Ban, ConnId, Failure, Fetch, Notice, Phase, Trouble, TroubleKind, Wake};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

impl Fetch {
    /// Looks for silence, slowness and the end of patience.
    pub(super) fn watch(&mut self) {
        let stuck: Vec<ConnId> = self.expected().filter(|(_, by)| *by <= self.now).map(|(id, _)| id).collect();
        for id in stuck {
            self.stuck(id);
        }
        self.tell_silence();
        self.leave_silent_answer();
        self.leave_silent_source();
        self.leave_silent_mirrors();
        self.slow_links();
        self.end_of_refusals();
        self.end_of_patience();
    }

    /// Sees to it that silence is noticed in time; after everything has been ordered.
    pub(super) fn await_silence(&mut self) {
        if let Some(next) = self.expected().map(|(_, by)| by).filter(|by| *by > self.now).min() {
            self.wake_at(next, Wake::Silence);
        }
    }

    /// By when something should come on each connection on which something is awaited.
    fn expected(&self) -> impl Iterator<Item = (ConnId, Instant)> {
        let waits = |conn: &Conn| self.is_held(conn) || self.waits_for_opinion(conn.link);
        self.conns.iter().filter(move |(_, conn)| !waits(conn)).filter_map(|(id, conn)| {
            let way = self.links.get(&conn.link).and_then(|link| link.known.handshake).unwrap_or_default();
            Some((*id, conn.last + patience(conn, way)?))
        })
    }

    /// Whether the reader has to take something before this connection may bring more: its silence says nothing.
    fn is_held(&self, conn: &Conn) -> bool {
        let Some(req) = conn.reqs.front().and_then(|id| self.reqs.get(id)) else { return false };
        let (limit, held) = (self.limit(), self.config.window.map_or(0, |window| HELD.min(window.bytes() / 2)));
        // A head is read in any case.
        req.accepted && req.span.end > limit && req.cursor.saturating_add(held) >= limit
    }

    /// The reader has taken something: what it held may be expected from now on.
    pub(super) fn consumed(&mut self, upto: u64) {
        let held: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| self.is_held(conn)).map(|(id, _)| *id).collect();
        self.consumed = self.consumed.max(upto);
        self.last_data = self.now;
        for id in held {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.last = self.now;
            }
        }
    }

    /// Something should have come on this connection.
    fn stuck(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (link_id, last, given_up) = (conn.link, conn.last, conn.last + STUCK.max(conn.rtt() * STUCK_ROUNDS));
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let lively = LIVELY.max(link.known.handshake.unwrap_or_default() * 2);
        let others_live = link.known.last_data.is_some_and(|at| at + lively > self.now);
        match link.standing {
            // The link is fine, the connection is not: after a while its bytes go elsewhere.
            Standing::Up if others_live && link.conns.len() > 1 => {
                if given_up < self.now {
                    self.note_forgotten(id);
                    self.drop_conn(id, true);
                } else {
                    self.wake_at(given_up, Wake::Silence);
                }
            }
            Standing::Up => {
                link.standing = Standing::Silent { since: last };
                link.next_try = self.now;
                self.let_go(link_id);
            }
            // What was asked for over a fresh connection of a silent link, and is not answered either.
            Standing::Silent { .. } => self.let_go(link_id),
            Standing::Probation => {
                let trouble = Trouble { kind: TroubleKind::TimedOut, text: "no answer".into() };
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
        let since = since.max(self.reqs.get(&req).map_or(since, |req| req.sent));
        let nothing_yet = conn.meter.total().is_zero();
        // A reader that has had the beginning cannot be given another one: waiting is its better chance.
        let patience = match (nothing_yet, self.consumed) {
            (true, _) => LEAVE_EMPTY,
            (false, 0) => LEAVE_ANSWER,
            (false, _) => LEAVE_READ,
        };
        let mut others = self.links.iter().filter(|(id, link)| **id != conn.link && self.usable(**id, link));
        let until = match others.clone().any(|(_, link)| link.standing == Standing::Up) {
            true => since + patience,
            // Those that were silent before this one may be back by now.
            false if others.next().is_some() => since + patience.max(LEAVE_AGAIN),
            false => return,
        };
        if self.now < until {
            return self.wake_at(until, Wake::Silence);
        }
        self.drop_conn(conn_id, true);
        self.after_lost_answer();
    }

    /// Where sources are combined: a link on which nothing comes from one of them asks the next one, unless others get
    /// something from that one. Then the link is to blame.
    fn leave_silent_mirrors(&mut self) {
        if !self.combines() {
            return;
        }
        let carrier = match self.phase {
            Phase::OneAnswer { req: Some(req) } => self.carrier_of(req),
            _ => None,
        };
        let silent = |(id, link): (&LinkId, &LinkState)| match link.standing {
            Standing::Silent { since } if Some(*id) != carrier => {
                Some((*id, link.root, since.max(link.root_since)))
            }
            _ => None,
        };
        let silent: Vec<_> = self.links.iter().filter_map(silent).collect();
        for (id, root, since) in silent {
            let hears = |link: &LinkState| link.root == root && link.known.last_data.is_some_and(|at| at > since);
            // Perhaps it is the link after all. Whichever URL it asks when it comes back may be a dead one.
            let until = since + if self.untried_root(id) { LEAVE_MIRROR } else { LEAVE_AGAIN };
            if self.links.iter().any(|(other, link)| *other != id && hears(link)) {
                continue;
            }
            if self.now < until {
                self.wake_at(until, Wake::Silence);
                continue;
            }
            let trouble = Trouble { kind: TroubleKind::TimedOut, text: "nothing comes".into() };
            if !self.next_root(id, &Ban::Trouble { trouble }) {
                self.leave_root(id);
            }
            self.wake_at(self.now + LEAVE_MIRROR, Wake::Silence);
        }
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

    /// Every link has been refused, again after a rest, and by the server's own word the file is not there or not for us; or
    /// every link gets a page instead of the rest of the file.
    fn end_of_refusals(&mut self) {
        let delivered = self.links.values().any(LinkState::has_delivered_here);
        // What has delivered may do so again: a restart or a new version of the server takes seconds.
        let enough = |status| if delivered && matches!(status, 403 | 404) { REFUSALS_AFTER_DATA } else { REFUSALS };
        let refusal = |link: &LinkState| match link.standing {
            Standing::Banned { why: Ban::OtherStatus { status }, .. } if link.bans >= enough(status) => {
                matches!(status, 401..=404 | 410 | 451).then_some(Failure::Status { status })
            }
            Standing::Banned { why: Ban::Page, .. } if link.bans >= enough(404) => Some(Failure::Page),
            _ => None,
        };
        let there = || self.links.values().filter(|link| link.standing != Standing::Down);
        if let Some(failure) = there().next().and_then(refusal)
            && there().all(|link| refusal(link).is_some())
            // A page may be a portal's: a link that is away may come back without one.
            && (failure != Failure::Page || there().count() == self.links.len())
        {
            self.give_up(failure);
        }
    }

    fn end_of_patience(&mut self) {
        if self.conns.values().any(|conn| self.is_held(conn)) || self.is_sated() || self.sources.is_verifying() {
            return;
        }
        if self.rests_everywhere() {
            return;
        }
        let pause = self.links.values().map(|link| link.paused_until).max().unwrap_or(Instant::ZERO);
        let broke = !self.links.is_empty() && self.links.values().all(|link| link.spent);
        let end = self.last_data.max(pause) + if broke { OTHER_LINKS } else { PATIENCE };
        if self.now >= end && broke {
            self.give_up(Failure::Budget);
        } else if self.now >= end {
            let trouble = self.links.values().find_map(|link| link.known.last_trouble.clone());
            // Where connections came to stand lately, and have been asked since, the links are fine.
            let in_vain = |conn: &Conn| {
                let asked = conn.is_open() && !conn.reqs.is_empty() && conn.meter.total().is_zero();
                asked && conn.last + PATIENCE / 2 > self.now
            };
            let server = self.conns.values().any(in_vain);
            self.give_up(if server { Failure::NoAnswer } else { Failure::NoLink { trouble } });
        } else {
            self.wake_at(end, Wake::Silence);
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
        link.known.bytes += len;
        link.known.meter.on_bytes(now, len);
        link.known.last_data = Some(now);
        link.failures = 0;
        link.forget_redirects();
        link.whole = WholeTry::default();
        link.roots_left = 0;
        link.refused = false;
        link.allowance.earn(len);
        let was = core::mem::replace(&mut link.standing, Standing::Up);
        if was == Standing::Up {
            return self.spend(link_id);
        }
        link.bans = 0;
        link.next_try = now;
        self.take_back(conn_id);
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let told = core::mem::take(&mut link.told_silent) || was == Standing::Probation;
        // What stood still while this one moved would only bring its bytes late.
        let stale: Vec<ConnId> = link.conns.iter().copied().filter(|other| *other != conn_id).collect();
        for other in stale {
            self.note_forgotten(other);
            self.note_stub(other);
            self.drop_conn(other, true);
        }
        if told {
            self.notice(Notice::Back { link: link_id });
        }
        self.spend(link_id);
    }

    /// A connection moves again: what it has on its way is its own once more.
    fn take_back(&mut self, id: ConnId) {
        let mut any = false;
        for req in self.reqs.values_mut().filter(|req| req.conn == id) {
            any |= core::mem::take(&mut req.released);
        }
        if any {
            self.resume_first();
            self.rebuild();
        }
    }

    /// A reader that takes everything in order must not wait for a silent link's bytes. Where nobody reads, and nobody
    /// else chooses the spans, there is time until everything else has been asked for.
    fn let_go(&mut self, id: LinkId) {
        if self.config.window.is_some() || self.is_led() {
            self.release(id);
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
    Some((conn.rtt() * 4).max(LEAST_PATIENCE) + conn.thinks() * 2)
}

/// How often a silent link is tried: often at first, when an outage is most likely to end, then rarely, for the
/// battery's sake. Each try is one SYN.
pub(super) fn probe_interval(silent: Duration) -> Duration {
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
/// This near to the window's end a driver may stop reading.
const HELD: u64 = 64 * 1024;
const TELL_SILENCE: Duration = Duration::from_secs(1);
/// No byte from anywhere for so long ends the download.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many refusals in a row of each link end the download: the second one comes after 5 s.
const REFUSALS: u32 = 2;
/// The same for a server that has delivered: the fourth one comes after 35 s. Some URLs are good for one request only, so
/// it is less than [`PATIENCE`].
const REFUSALS_AFTER_DATA: u32 = 4;
/// How long nothing may come from one of several URLs: the first time, and once nothing has come from any of them, or
/// over any link.
const LEAVE_MIRROR: Duration = Duration::from_secs(3);
const LEAVE_AGAIN: Duration = Duration::from_secs(10);
/// How long other links may take to appear when those that are there must not carry anything.
const OTHER_LINKS: Duration = Duration::from_secs(1);
/// How long a silent link keeps the one answer: without a byte of it, with some, and with some that were read.
const LEAVE_EMPTY: Duration = Duration::from_secs(2);
const LEAVE_ANSWER: Duration = Duration::from_secs(10);
const LEAVE_READ: Duration = Duration::from_secs(60);
