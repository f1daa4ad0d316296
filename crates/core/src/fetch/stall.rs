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
use super::links::{FullRequest, Link, LinkState};
use super::{BanReason, ConnError, ConnErrorKind, ConnId, Failure, Fetch, Notice, Phase, TimerReason};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

impl Fetch {
    /// Looks for silence, slowness and the end of patience.
    pub(super) fn check_stalls(&mut self) {
        let stalled: Vec<ConnId> =
            self.stall_deadlines().filter(|(_, by)| *by <= self.now).map(|(id, _)| id).collect();
        for id in stalled {
            self.on_conn_stalled(id);
        }
        self.notify_stalls();
        self.give_up_stalled_response();
        self.leave_stalled_mirror();
        self.leave_stalled_mirrors();
        self.ban_slow_links();
        self.check_refusals();
        self.check_timeout();
    }

    /// Sees to it that silence is noticed in time; after everything has been ordered.
    pub(super) fn set_stall_timer(&mut self) {
        if let Some(next) = self.stall_deadlines().map(|(_, by)| by).filter(|by| *by > self.now).min() {
            self.set_timer(next, TimerReason::Stall);
        }
    }

    /// By when something should come on each connection on which something is awaited.
    fn stall_deadlines(&self) -> impl Iterator<Item = (ConnId, Instant)> {
        let is_expected_idle = |conn: &Conn| self.is_reader_limited(conn) || self.has_pending_response(conn.link);
        self.conns.iter().filter(move |(_, conn)| !is_expected_idle(conn)).filter_map(|(id, conn)| {
            let link_rtt =
                self.links.get(&conn.link).and_then(|link| link.stats.min_handshake_rtt).unwrap_or_default();
            Some((*id, conn.last_activity + stall_timeout(conn, link_rtt)?))
        })
    }

    /// Whether the reader has to take something before this connection may bring more: its silence says nothing.
    fn is_reader_limited(&self, conn: &Conn) -> bool {
        let Some(req) = conn.reqs.front().and_then(|id| self.reqs.get(id)) else { return false };
        let (limit, margin) = (
            self.window_end(),
            self.config.reader_window.map_or(0, |window| WINDOW_MARGIN.min(window.bytes() / 2)),
        );
        // A head is read in any case.
        req.is_accepted && req.range.end > limit && req.next_offset.saturating_add(margin) >= limit
    }

    /// The reader has taken something: what it held may be expected from now on.
    pub(super) fn on_consumed(&mut self, upto: u64) {
        let limited: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| self.is_reader_limited(conn)).map(|(id, _)| *id).collect();
        self.consumed = self.consumed.max(upto);
        self.last_data = self.now;
        for id in limited {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.last_activity = self.now;
            }
        }
    }

    /// Something should have come on this connection.
    fn on_conn_stalled(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (link_id, last, give_up_at) = (
            conn.link,
            conn.last_activity,
            conn.last_activity + STALLED_CONN_TIMEOUT.max(conn.rtt() * STALLED_CONN_ROUNDS),
        );
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let recent = RECENT_DATA.max(link.stats.min_handshake_rtt.unwrap_or_default() * 2);
        let has_recent_data = link.stats.last_data.is_some_and(|at| at + recent > self.now);
        match link.state {
            // The link is fine, the connection is not: after a while its bytes go elsewhere.
            LinkState::Up if has_recent_data && link.conns.len() > 1 => {
                if give_up_at < self.now {
                    self.note_pipelined_lost(id);
                    self.remove_conn(id, true);
                } else {
                    self.set_timer(give_up_at, TimerReason::Stall);
                }
            }
            LinkState::Up => {
                link.state = LinkState::Stalled { since: last };
                link.next_attempt = self.now;
                self.release_if_urgent(link_id);
            }
            // What was asked for over a fresh connection of a silent link, and is not answered either.
            LinkState::Stalled { .. } => self.release_if_urgent(link_id),
            LinkState::Probing => {
                let error = ConnError { kind: ConnErrorKind::TimedOut, text: "no answer".into() };
                self.remove_conn(id, true);
                self.on_failure(link_id, error);
            }
            _ => {}
        }
    }

    /// The one answer comes over a silent link while another link works: after a while that one is asked from zero.
    fn give_up_stalled_response(&mut self) {
        let Phase::SingleResponse { req: Some(req) } = self.phase else { return };
        let Some((conn_id, conn)) = self.reqs.get(&req).and_then(|r| self.conns.get(&r.conn).map(|c| (r.conn, c)))
        else {
            return;
        };
        let Some(LinkState::Stalled { since }) = self.links.get(&conn.link).map(|link| link.state.clone()) else {
            return;
        };
        let since = since.max(self.reqs.get(&req).map_or(since, |req| req.sent_at));
        let is_empty = conn.rate_window.total().is_zero();
        // A reader that has had the beginning cannot be given another one: waiting is its better chance.
        let timeout = match (is_empty, self.consumed) {
            (true, _) => EMPTY_RESPONSE_TIMEOUT,
            (false, 0) => STALLED_RESPONSE_TIMEOUT,
            (false, _) => READ_RESPONSE_TIMEOUT,
        };
        let mut others = self.links.iter().filter(|(id, link)| **id != conn.link && self.is_usable(**id, link));
        let until = match others.clone().any(|(_, link)| link.state == LinkState::Up) {
            true => since + timeout,
            // Those that were silent before this one may be back by now.
            false if others.next().is_some() => since + timeout.max(MIRROR_RETRY_TIMEOUT),
            false => return,
        };
        if self.now < until {
            return self.set_timer(until, TimerReason::Stall);
        }
        self.remove_conn(conn_id, true);
        self.check_lost_response();
    }

    /// Where sources are combined: a link on which nothing comes from one of them asks the next one, unless others get
    /// something from that one. Then the link is to blame.
    fn leave_stalled_mirrors(&mut self) {
        if !self.can_combine() {
            return;
        }
        let response_link = match self.phase {
            Phase::SingleResponse { req: Some(req) } => self.request_link(req),
            _ => None,
        };
        let stalled = |(id, link): (&LinkId, &Link)| match link.state {
            LinkState::Stalled { since } if Some(*id) != response_link => {
                Some((*id, link.mirror, since.max(link.mirror_since)))
            }
            _ => None,
        };
        let stalled: Vec<_> = self.links.iter().filter_map(stalled).collect();
        for (id, mirror, since) in stalled {
            let receives = |link: &Link| link.mirror == mirror && link.stats.last_data.is_some_and(|at| at > since);
            // Perhaps it is the link after all. Whichever URL it asks when it comes back may be a dead one.
            let until = since + if self.has_untried_mirror(id) { MIRROR_TIMEOUT } else { MIRROR_RETRY_TIMEOUT };
            if self.links.iter().any(|(other, link)| *other != id && receives(link)) {
                continue;
            }
            if self.now < until {
                self.set_timer(until, TimerReason::Stall);
                continue;
            }
            let error = ConnError { kind: ConnErrorKind::TimedOut, text: "nothing comes".into() };
            if !self.try_next_mirror(id, &BanReason::RepeatedErrors { error }) {
                self.switch_mirror(id);
            }
            self.set_timer(self.now + MIRROR_TIMEOUT, TimerReason::Stall);
        }
    }

    fn notify_stalls(&mut self) {
        let now = self.now;
        let mut notices = Vec::new();
        for (id, link) in &mut self.links {
            if let LinkState::Stalled { since } = link.state
                && !link.stall_notified
                && since + NOTIFY_STALL_AFTER <= now
            {
                link.stall_notified = true;
                notices.push(Notice::Stalled { link: *id, duration: now - since });
            }
        }
        for notice in notices {
            self.notice(notice);
        }
    }

    /// Every link has been refused, again after a rest, and by the server's own word the file is not there or not for us; or
    /// every link gets a page instead of the rest of the file.
    fn check_refusals(&mut self) {
        let delivered = self.links.values().any(Link::has_delivered_from_mirror);
        // What has delivered may do so again: a restart or a new version of the server takes seconds.
        let max_bans =
            |status| if delivered && matches!(status, 403 | 404) { MAX_REFUSALS_AFTER_DATA } else { MAX_REFUSALS };
        let refusal = |link: &Link| match link.state {
            LinkState::Banned { reason: BanReason::BadStatus { status }, .. } if link.bans >= max_bans(status) => {
                matches!(status, 401..=404 | 410 | 451).then_some(Failure::BadStatus { status })
            }
            LinkState::Banned { reason: BanReason::HtmlPage, .. } if link.bans >= max_bans(404) => {
                Some(Failure::HtmlPage)
            }
            _ => None,
        };
        let links_up = || self.links.values().filter(|link| link.state != LinkState::Down);
        if let Some(failure) = links_up().next().and_then(refusal)
            && links_up().all(|link| refusal(link).is_some())
            // A page may be a portal's: a link that is away may come back without one.
            && (failure != Failure::HtmlPage || links_up().count() == self.links.len())
        {
            self.failover_or_fail(failure);
        }
    }

    fn check_timeout(&mut self) {
        if self.conns.values().any(|conn| self.is_reader_limited(conn))
            || self.is_window_full()
            || self.mirrors.is_verifying()
        {
            return;
        }
        if self.is_paused_everywhere() {
            return;
        }
        let paused_until = self.links.values().map(|link| link.paused_until).max().unwrap_or(Instant::ZERO);
        let is_budget_exhausted = !self.links.is_empty() && self.links.values().all(|link| link.budget_exhausted);
        let end = self.last_data.max(paused_until)
            + if is_budget_exhausted { OTHER_LINKS_GRACE } else { DOWNLOAD_TIMEOUT };
        if self.now >= end && is_budget_exhausted {
            self.failover_or_fail(Failure::BudgetExhausted);
        } else if self.now >= end {
            let error = self.links.values().find_map(|link| link.stats.last_error.clone());
            // Where connections came to stand lately, and have been asked since, the links are fine.
            let is_unanswered = |conn: &Conn| {
                let is_waiting = conn.is_open() && !conn.reqs.is_empty() && conn.rate_window.total().is_zero();
                is_waiting && conn.last_activity + DOWNLOAD_TIMEOUT / 2 > self.now
            };
            let is_server_silent = self.conns.values().any(is_unanswered);
            self.failover_or_fail(if is_server_silent { Failure::NoResponse } else { Failure::NoLink { error } });
        } else {
            self.set_timer(end, TimerReason::Stall);
        }
    }

    /// A connection of a silent link stands: the other attempts are not needed.
    pub(super) fn on_probe_connected(&mut self, id: ConnId) {
        let Some(link) = self.conns.get(&id).and_then(|conn| self.links.get(&conn.link)) else { return };
        if !matches!(link.state, LinkState::Stalled { .. }) {
            return;
        }
        for other in link.conns.clone() {
            if self.conns.get(&other).is_some_and(|conn| !conn.is_open()) {
                self.remove_conn(other, true);
            }
        }
    }

    /// Bytes came over a link.
    pub(super) fn on_link_data(&mut self, link_id: LinkId, conn_id: ConnId, len: DataSize) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&link_id) else { return };
        link.stats.bytes += len;
        link.stats.rate_window.on_bytes(now, len);
        link.stats.last_data = Some(now);
        link.failures = 0;
        link.forget_redirects();
        link.full_request = FullRequest::default();
        link.mirrors_tried = 0;
        link.mirror_refused = false;
        link.token_buckets.credit(len);
        let previous = core::mem::replace(&mut link.state, LinkState::Up);
        if previous == LinkState::Up {
            return self.check_budget(link_id);
        }
        link.bans = 0;
        link.next_attempt = now;
        self.reclaim_released(conn_id);
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let notify = core::mem::take(&mut link.stall_notified) || previous == LinkState::Probing;
        // What stood still while this one moved would only bring its bytes late.
        let stale: Vec<ConnId> = link.conns.iter().copied().filter(|other| *other != conn_id).collect();
        for other in stale {
            self.note_pipelined_lost(other);
            self.note_truncated_range(other);
            self.remove_conn(other, true);
        }
        if notify {
            self.notice(Notice::Recovered { link: link_id });
        }
        self.check_budget(link_id);
    }

    /// A connection moves again: what it has on its way is its own once more.
    fn reclaim_released(&mut self, id: ConnId) {
        let mut changed = false;
        for req in self.reqs.values_mut().filter(|req| req.conn == id) {
            changed |= core::mem::take(&mut req.is_released);
        }
        if changed {
            self.resume_first_response();
            self.rebuild_claims();
        }
    }

    /// A reader that takes everything in order must not wait for a silent link's bytes. Where nobody reads, and nobody
    /// else chooses the spans, there is time until everything else has been asked for.
    fn release_if_urgent(&mut self, id: LinkId) {
        if self.config.reader_window.is_some() || self.is_externally_controlled() {
            self.release(id);
        }
    }

    /// Lets others ask for what a silent link has on its way. Tells whether there was anything.
    pub(super) fn release(&mut self, id: LinkId) -> bool {
        let mut changed = false;
        for req in self.reqs.values_mut() {
            let is_on_link = self.conns.get(&req.conn).is_some_and(|conn| conn.link == id);
            if is_on_link && !req.is_released {
                req.is_released = true;
                changed = true;
            }
        }
        if changed {
            self.rebuild_claims();
        }
        changed
    }
}

/// How long nothing may come on a connection; none: nothing is expected. `way` is the link's round trip, if known.
fn stall_timeout(conn: &Conn, link_rtt: Duration) -> Option<Duration> {
    if !conn.is_open() {
        return Some(SYN_TIMEOUT.max(link_rtt * 2));
    }
    if conn.reqs.is_empty() {
        return None;
    }
    if conn.rate_window.total().is_zero() {
        return Some((conn.handshake_rtt * 4).max(FIRST_BYTE_TIMEOUT));
    }
    Some((conn.rtt() * 4).max(MIN_STALL_TIMEOUT) + conn.server_delay() * 2)
}

/// How often a silent link is tried: often at first, when an outage is most likely to end, then rarely, for the
/// battery's sake. Each try is one SYN.
pub(super) fn probe_interval(stalled_for: Duration) -> Duration {
    match stalled_for.as_secs() {
        0..10 => Duration::from_millis(250),
        10..60 => Duration::from_secs(1),
        _ => Duration::from_secs(5),
    }
}

/// Twice the 200 ms minimum of Linux's retransmission timer: one lost burst is not silence.
const MIN_STALL_TIMEOUT: Duration = Duration::from_millis(450);
/// A server may think before its first answer.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_millis(1500);
/// A lost SYN is sent again by the kernel after one second (RFC 6298 §2); a second one overtakes it.
const SYN_TIMEOUT: Duration = Duration::from_millis(450);
/// A link on which bytes came this recently lives.
const RECENT_DATA: Duration = Duration::from_millis(450);
/// A connection that stands still this long beside living ones of its link is given up.
const STALLED_CONN_TIMEOUT: Duration = Duration::from_millis(2000);
const STALLED_CONN_ROUNDS: u32 = 8;
/// This near to the window's end a driver may stop reading.
const WINDOW_MARGIN: u64 = 64 * 1024;
const NOTIFY_STALL_AFTER: Duration = Duration::from_secs(1);
/// No byte from anywhere for so long ends the download.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// How many refusals in a row of each link end the download: the second one comes after 5 s.
const MAX_REFUSALS: u32 = 2;
/// The same for a server that has delivered: the fourth one comes after 35 s. Some URLs are good for one request only, so
/// it is less than [`PATIENCE`].
const MAX_REFUSALS_AFTER_DATA: u32 = 4;
/// How long nothing may come from one of several URLs: the first time, and once nothing has come from any of them, or
/// over any link.
const MIRROR_TIMEOUT: Duration = Duration::from_secs(3);
const MIRROR_RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long other links may take to appear when those that are there must not carry anything.
const OTHER_LINKS_GRACE: Duration = Duration::from_secs(1);
/// How long a silent link keeps the one answer: without a byte of it, with some, and with some that were read.
const EMPTY_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const STALLED_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const READ_RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
