//! Stalled links, connections and mirrors: detection by timeout, and what happens to their ranges.
//!
//! 1. A link is *stalled* when a response is overdue: about four RTTs, at least 450 ms. Its connections and ranges are
//!    kept, because most stalls end and then nothing is lost. But new connections are opened at short intervals: after
//!    an outage the server's retransmission timer has backed off to seconds, while a new SYN is answered within one
//!    RTT. The first connection to deliver wins; the others are closed.
//! 2. A single connection that stalls while others of its link deliver is closed after a while, and its bytes are free.
//! 3. When nothing has arrived on any link for [`DOWNLOAD_TIMEOUT`], the download ends; the stored bytes can be
//!    resumed.
//!
//! TCP keep-alive probes were rejected: kernels and middleboxes acknowledge them although no data is delivered.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::links::{FullRequest, Link, LinkState};
use super::mirrors::MIRROR_RETRY_TIMEOUT;
use super::{BanReason, ConnError, ConnErrorKind, ConnId, Failure, Fetch, Notice, Phase, TimerReason};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

impl Fetch {
    /// Handles everything that is overdue: stalled connections, links and mirrors, slow links, final refusals, the
    /// download timeout. May close connections and free ranges, so it runs before connections are opened and requests
    /// are sent.
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

    /// Sets the timer to the next stall deadline. Runs after all requests were sent, so that it covers them.
    pub(super) fn set_stall_timer(&mut self) {
        if let Some(next) = self.stall_deadlines().map(|(_, by)| by).filter(|by| *by > self.now).min() {
            self.set_timer(next, TimerReason::Stall);
        }
    }

    /// For each connection that is expected to deliver: when it counts as stalled.
    fn stall_deadlines(&self) -> impl Iterator<Item = (ConnId, Instant)> {
        let is_expected_idle = |conn: &Conn| self.is_reader_limited(conn) || self.has_pending_response(conn.link);
        self.conns.iter().filter(move |(_, conn)| !is_expected_idle(conn)).filter_map(|(id, conn)| {
            let link_rtt =
                self.links.get(&conn.link).and_then(|link| link.stats.min_handshake_rtt).unwrap_or_default();
            Some((*id, conn.last_activity + stall_timeout(conn, link_rtt)?))
        })
    }

    /// Whether the connection waits for the in-order reader: its requests reach up to the window's end. It is then
    /// expected to deliver nothing.
    fn is_reader_limited(&self, conn: &Conn) -> bool {
        let Some(req) = conn.reqs.front().and_then(|id| self.reqs.get(id)) else { return false };
        let (limit, margin) = (
            self.window_end(),
            self.config.reader_window.map_or(0, |window| WINDOW_MARGIN.min(window.bytes() / 2)),
        );
        // Only with an accepted body: the head is read even if the window is full.
        req.is_accepted && req.range.end > limit && req.next_offset.saturating_add(margin) >= limit
    }

    /// The in-order reader has consumed more. Connections that waited for it start a new stall timeout.
    pub(super) fn on_consumed(&mut self, end: u64) {
        let limited: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| self.is_reader_limited(conn)).map(|(id, _)| *id).collect();
        self.consumed = self.consumed.max(end);
        self.last_data = self.now;
        for id in limited {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.last_activity = self.now;
            }
        }
    }

    /// The stall timeout of this connection has expired.
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
            // Other connections of the link deliver: only this one has stalled, and it is closed after a longer
            // timeout.
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
            // A request on a new connection of the stalled link has timed out as well.
            LinkState::Stalled { .. } => self.release_if_urgent(link_id),
            LinkState::Probing => {
                let error = ConnError { kind: ConnErrorKind::TimedOut, text: "no response in time".into() };
                self.remove_conn(id, true);
                self.on_failure(link_id, error);
            }
            _ => {}
        }
    }

    /// A single response comes over a stalled link while another link is usable: after a timeout it is requested there,
    /// from the beginning.
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
        // A reader that has consumed the beginning cannot continue with another response: waiting longer is better.
        let timeout = match (is_empty, self.consumed) {
            (true, _) => EMPTY_RESPONSE_TIMEOUT,
            (false, 0) => STALLED_RESPONSE_TIMEOUT,
            (false, _) => READ_RESPONSE_TIMEOUT,
        };
        let mut others = self.links.iter().filter(|(id, link)| **id != conn.link && self.is_usable(**id, link));
        let until = match others.clone().any(|(_, link)| link.state == LinkState::Up) {
            true => since + timeout,
            // The other links have stalled as well; one of them may have recovered by then.
            false if others.next().is_some() => since + timeout.max(MIRROR_RETRY_TIMEOUT),
            false => return,
        };
        if self.now < until {
            return self.set_timer(until, TimerReason::Stall);
        }
        self.remove_conn(conn_id, true);
        self.check_lost_response();
    }

    /// If mirrors are combined: a stalled link switches to the next mirror, unless other links receive data from the
    /// same mirror. In that case the link is at fault.
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
            // The link may be at fault. After all mirrors were tried, switch more slowly, since the mirror that the
            // link is at when it recovers may be a dead one.
            let until = since + if self.has_untried_mirror(id) { MIRROR_TIMEOUT } else { MIRROR_RETRY_TIMEOUT };
            if self.links.iter().any(|(other, link)| *other != id && receives(link)) {
                continue;
            }
            if self.now < until {
                self.set_timer(until, TimerReason::Stall);
                continue;
            }
            let error = ConnError { kind: ConnErrorKind::TimedOut, text: "no data received".into() };
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

    /// Ends the download, or switches mirrors, if every link was refused repeatedly: the file does not exist or is not
    /// accessible by the server's own status, or every link gets an HTML page instead of the rest of the file.
    fn check_refusals(&mut self) {
        let delivered = self.links.values().any(Link::has_delivered_from_mirror);
        // A server that has delivered may recover: a restart or a new deployment takes seconds.
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
            // An HTML page may come from a captive portal. A link that is down may come back without one, so wait for
            // it.
            && (failure != Failure::HtmlPage || links_up().count() == self.links.len())
        {
            self.failover_or_fail(failure);
        }
    }

    /// Ends the download, or switches mirrors, if no byte has arrived on any link for [`DOWNLOAD_TIMEOUT`]. The timeout is
    /// suspended while no data can be expected: full reader window, verification, or all links paused.
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
            // If connections were established recently and their requests got no response, the server is at fault, not
            // the links.
            let is_unanswered = |conn: &Conn| {
                let is_waiting = conn.is_open() && !conn.reqs.is_empty() && conn.rate_window.total().is_zero();
                is_waiting && conn.last_activity + DOWNLOAD_TIMEOUT / 2 > self.now
            };
            let is_server_unresponsive = self.conns.values().any(is_unanswered);
            self.failover_or_fail(if is_server_unresponsive {
                Failure::NoResponse
            } else {
                Failure::NoLink { error }
            });
        } else {
            self.set_timer(end, TimerReason::Stall);
        }
    }

    /// A new connection of a stalled link is established: other attempts still in progress are not needed.
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

    /// Body bytes arrived on a link: resets its failure counters, and ends its stall or ban.
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
        // The link has recovered through one connection. The link's other connections are still stalled, and would
        // deliver late.
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

    /// A connection delivers again after a stall: ranges that were released and not received are its own once more.
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

    /// With an in-order reader or external control, releases the ranges of a stalled link at once, since the reader
    /// waits for them. Otherwise the scheduler does it when everything else has been requested.
    fn release_if_urgent(&mut self, id: LinkId) {
        if self.config.reader_window.is_some() || self.is_externally_controlled() {
            self.release(id);
        }
    }

    /// Frees the ranges of a stalled link for other links. Returns whether there were any.
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

/// How long a connection may deliver nothing before it is stalled; none: nothing is expected. `link_rtt` is the link's
/// smallest handshake RTT, zero if unknown.
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

/// Interval between connection attempts on a stalled link: short at first, when the outage is most likely to end, then
/// longer to save energy. Each attempt costs one SYN.
pub(super) fn probe_interval(stalled_for: Duration) -> Duration {
    match stalled_for.as_secs() {
        0..10 => Duration::from_millis(250),
        10..60 => Duration::from_secs(1),
        _ => Duration::from_secs(5),
    }
}

/// Twice the 200 ms minimum of Linux's retransmission timer: one lost burst is no stall.
const MIN_STALL_TIMEOUT: Duration = Duration::from_millis(450);
/// Time that a server may take for the first response on a connection.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Attempts that take longer are complemented by another one. The kernel retransmits a lost SYN only after one second
/// (RFC 6298 §2).
const SYN_TIMEOUT: Duration = Duration::from_millis(450);
/// A link that received bytes this recently is not stalled.
const RECENT_DATA: Duration = Duration::from_millis(450);
/// A stalled connection is closed after this time, or this many RTTs, if others of its link deliver.
const STALLED_CONN_TIMEOUT: Duration = Duration::from_millis(2000);
const STALLED_CONN_ROUNDS: u32 = 8;
/// A driver may stop reading this close to the window's end.
const WINDOW_MARGIN: u64 = 64 * 1024;
const NOTIFY_STALL_AFTER: Duration = Duration::from_secs(1);
/// The download ends if no byte arrives on any link for this long.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Refusals in a row on each link that end the download. The second one comes after 5 s.
const MAX_REFUSALS: u32 = 2;
/// The same if the server has delivered before. The fourth refusal comes after 35 s. Some URLs are valid for one
/// request only, so this is shorter than [`DOWNLOAD_TIMEOUT`].
const MAX_REFUSALS_AFTER_DATA: u32 = 4;
/// How long a link may receive nothing from a mirror if mirrors are combined, the first time. After all mirrors were
/// tried, and for a single response if no other link is up, it is [`MIRROR_RETRY_TIMEOUT`].
const MIRROR_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for other links to appear when all present links have exhausted their budgets.
const OTHER_LINKS_GRACE: Duration = Duration::from_secs(1);
/// How long a stalled link keeps the single response: without a byte of it, with some bytes, and with some that were
/// read.
const EMPTY_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const STALLED_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const READ_RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
