//! Stalled links, connections and mirrors: detection by timeout, and what happens to their ranges.
//!
//! 1. A link is *stalled* when a response is overdue: about four RTTs, at least 450 ms (1.5 s for the first response on a
//!    connection). Its connections and ranges are kept, because most stalls end and then nothing is lost. But new
//!    connections are opened at short intervals: after an outage the server's retransmission timer has backed off to
//!    seconds, while a new SYN is answered within one RTT. The first connection to deliver wins; the others are closed.
//! 2. A single connection that stalls while others of its link deliver is closed after a while, and its bytes are free.
//! 3. When nothing has arrived on any link for [`DOWNLOAD_TIMEOUT`], the download ends; the stored bytes can be
//!    resumed.
//!
//! TCP keep-alive probes were rejected: kernels and middleboxes acknowledge them although no data is delivered.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::{Conn, Req};
use super::link::{Link, LinkState};
use super::mirrors::{MIRROR_RETRY_TIMEOUT, Mirrors};
use super::resource::Phase;
use super::transfers::Transfers;
use super::{BanReason, ConnError, ConnErrorKind, ConnId, Failure, Notice, Protocol, TimerReason, first_request};
use crate::link::LinkId;
use crate::units::Instant;

/// Sets the timer to the next stall deadline. Runs after all requests were sent, so that it covers them.
pub(super) fn set_stall_timer(transfers: &mut Transfers) {
    if let Some(next) = stall_deadlines(transfers).map(|(_, by)| by).filter(|by| *by > transfers.now).min() {
        transfers.set_timer(next, TimerReason::Stall);
    }
}

/// For each connection that is expected to deliver: when it counts as stalled.
fn stall_deadlines(transfers: &Transfers) -> impl Iterator<Item = (ConnId, Instant)> {
    let is_expected_idle =
        |conn: &Conn| is_reader_limited(transfers, conn) || transfers.resource.pending.holds_link(conn.link);
    transfers.conns.iter().filter(move |(_, conn)| !is_expected_idle(conn)).filter_map(|(id, conn)| {
        let link_rtt =
            transfers.links.get(&conn.link).and_then(|link| link.stats.min_handshake_rtt).unwrap_or_default();
        Some((*id, conn.last_activity + stall_timeout(conn, link_rtt)?))
    })
}

/// Whether the connection waits for the in-order reader: its requests reach up to the window's end. It is then
/// expected to deliver nothing.
fn is_reader_limited(transfers: &Transfers, conn: &Conn) -> bool {
    let Some(req) = conn.reqs.front().and_then(|id| transfers.reqs.get(id)) else { return false };
    let (limit, margin) = (
        transfers.reader.window_end(),
        transfers.reader.window().map_or(0, |window| WINDOW_MARGIN.min(window.bytes() / 2)),
    );
    // Only with an accepted body: the head is read even if the window is full.
    req.is_accepted && req.range.end > limit && req.next_offset.saturating_add(margin) >= limit
}

/// The in-order reader has consumed more. Connections that waited for it start a new stall timeout.
pub(super) fn on_consumed(transfers: &mut Transfers, end: u64) {
    let limited: Vec<ConnId> =
        transfers.conns.iter().filter(|(_, conn)| is_reader_limited(transfers, conn)).map(|(id, _)| *id).collect();
    transfers.on_consumed(end, &limited);
}

/// Connections whose stall timeout has expired.
pub(super) fn overdue_conns(transfers: &Transfers) -> Vec<ConnId> {
    stall_deadlines(transfers).filter(|(_, by)| *by <= transfers.now).map(|(id, _)| id).collect()
}

/// The stall timeout of this connection has expired. Returns the link and the error if that is a failure of the link.
pub(super) fn on_conn_stalled(transfers: &mut Transfers, id: ConnId) -> Option<(LinkId, ConnError)> {
    let conn = transfers.conns.get(&id)?;
    let (link_id, last, give_up_at) = (
        conn.link,
        conn.last_activity,
        conn.last_activity + STALLED_CONN_TIMEOUT.max(conn.rtt() * STALLED_CONN_ROUNDS),
    );
    let link = transfers.links.get_mut(&link_id)?;
    let recent = RECENT_DATA.max(link.stats.min_handshake_rtt.unwrap_or_default() * 2);
    let has_recent_data = link.stats.last_data.is_some_and(|at| at + recent > transfers.now);
    match link.state {
        // Other connections of the link deliver: only this one has stalled, and it is closed after a longer
        // timeout.
        LinkState::Up if has_recent_data && link.conns.len() > 1 => {
            if give_up_at < transfers.now {
                note_pipelined_lost(transfers, id);
                transfers.remove_conn(id, true);
            } else {
                transfers.set_timer(give_up_at, TimerReason::Stall);
            }
        }
        LinkState::Up => {
            link.state = LinkState::Stalled { since: last };
            link.next_attempt = transfers.now;
            release_if_urgent(transfers, link_id);
        }
        // A request on a new connection of the stalled link has timed out as well.
        LinkState::Stalled { .. } => {
            release_if_urgent(transfers, link_id);
        }
        LinkState::Probing => {
            let error = ConnError { kind: ConnErrorKind::TimedOut, text: "no response in time".into() };
            transfers.remove_conn(id, true);
            return Some((link_id, error));
        }
        _ => {}
    }
    None
}

/// A single response comes over a stalled link while another link is usable: after a timeout it is requested there,
/// from the beginning. Returns true if the stalled response was given up.
pub(super) fn give_up_stalled_response(transfers: &mut Transfers) -> bool {
    let Some(req) = transfers.resource.single_response() else { return false };
    let Some((conn_id, conn)) =
        transfers.reqs.get(&req).and_then(|r| transfers.conns.get(&r.conn).map(|c| (r.conn, c)))
    else {
        return false;
    };
    let Some(LinkState::Stalled { since }) = transfers.links.get(&conn.link).map(|link| link.state.clone()) else {
        return false;
    };
    let since = since.max(transfers.reqs.get(&req).map_or(since, |req| req.sent_at));
    let is_empty = conn.rate_window.total().is_zero();
    // A reader that has consumed the beginning cannot continue with another response: waiting longer is better.
    let timeout = match (is_empty, transfers.reader.position()) {
        (true, _) => EMPTY_RESPONSE_TIMEOUT,
        (false, 0) => STALLED_RESPONSE_TIMEOUT,
        (false, _) => READ_RESPONSE_TIMEOUT,
    };
    let mut others = transfers.links.iter().filter(|(id, _)| **id != conn.link && transfers.is_usable(**id));
    let until = match others.clone().any(|(_, link)| link.state == LinkState::Up) {
        true => since + timeout,
        // The other links have stalled as well; one of them may have recovered by then.
        false if others.next().is_some() => since + timeout.max(MIRROR_RETRY_TIMEOUT),
        false => return false,
    };
    if transfers.now < until {
        transfers.set_timer(until, TimerReason::Stall);
        return false;
    }
    transfers.remove_conn(conn_id, true);
    true
}

/// Notifies the user, once per stall, of links that have been stalled for [`NOTIFY_STALL_AFTER`].
pub(super) fn notify_stalls(transfers: &mut Transfers) {
    let now = transfers.now;
    let mut notices = Vec::new();
    for (id, link) in transfers.links.iter_mut() {
        if let LinkState::Stalled { since } = link.state
            && !link.stall_notified
            && since + NOTIFY_STALL_AFTER <= now
        {
            link.stall_notified = true;
            notices.push(Notice::Stalled { link: *id, duration: now - since });
        }
    }
    for notice in notices {
        transfers.notice(notice);
    }
}

/// The reason to give up, if every link was refused repeatedly: the file does not exist or is not accessible by the
/// server's own status, or every link gets an HTML page instead of the rest of the file.
pub(super) fn final_refusal(transfers: &Transfers) -> Option<Failure> {
    let delivered = transfers.links.values().any(Link::has_delivered_from_mirror);
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
    let links_up = || transfers.links.values().filter(|link| link.state != LinkState::Down);
    let failure = links_up().next().and_then(refusal)?;
    let is_unanimous = links_up().all(|link| refusal(link).is_some());
    // An HTML page may come from a captive portal. A link that is down may come back without one, so wait for it.
    let awaits_links = failure == Failure::HtmlPage && links_up().count() != transfers.links.len();
    (is_unanimous && !awaits_links).then_some(failure)
}

/// The reason to give up, if no byte has arrived on any link for [`DOWNLOAD_TIMEOUT`]; otherwise sets the timer. The
/// timeout is suspended while no data can be expected: full reader window, verification, or all links paused.
pub(super) fn check_timeout(transfers: &mut Transfers, is_verifying: bool) -> Option<Failure> {
    if transfers.conns.values().any(|conn| is_reader_limited(transfers, conn))
        || transfers.is_window_full()
        || is_verifying
        || transfers.links.is_paused_everywhere()
    {
        return None;
    }
    let paused_until = transfers.links.values().map(|link| link.paused_until).max().unwrap_or(Instant::ZERO);
    let is_budget_exhausted =
        !transfers.links.is_empty() && transfers.links.values().all(|link| link.budget_exhausted);
    let end = (*transfers.last_data).max(paused_until)
        + if is_budget_exhausted { OTHER_LINKS_GRACE } else { DOWNLOAD_TIMEOUT };
    if transfers.now < end {
        transfers.set_timer(end, TimerReason::Stall);
        return None;
    }
    if is_budget_exhausted {
        return Some(Failure::BudgetExhausted);
    }
    // If connections were established recently and their requests got no response, the server is at fault, not the
    // links.
    let is_unanswered = |conn: &Conn| {
        let is_waiting = conn.is_open() && !conn.reqs.is_empty() && conn.rate_window.total().is_zero();
        is_waiting && conn.last_activity + DOWNLOAD_TIMEOUT / 2 > transfers.now
    };
    let error = transfers.links.values().find_map(|link| link.stats.last_error.clone());
    let is_server_unresponsive = transfers.conns.values().any(is_unanswered);
    Some(if is_server_unresponsive { Failure::NoResponse } else { Failure::NoLink { error } })
}

/// A new connection of a stalled link is established: other attempts still in progress are not needed.
pub(super) fn on_probe_connected(transfers: &mut Transfers, id: ConnId) {
    let Some(link) = transfers.conns.get(&id).and_then(|conn| transfers.links.get(&conn.link)) else { return };
    if !matches!(link.state, LinkState::Stalled { .. }) {
        return;
    }
    for other in link.conns.clone() {
        if transfers.conns.get(&other).is_some_and(|conn| !conn.is_open()) {
            transfers.remove_conn(other, true);
        }
    }
}

/// A connection delivers again after a stall: ranges that were released and not received are its own once more.
pub(super) fn reclaim_released(transfers: &mut Transfers, id: ConnId) {
    if transfers.reclaim_requests(id) {
        first_request::resume_first_response(transfers);
    }
}

/// With an in-order reader or external control, releases the ranges of a stalled link at once, since the reader
/// waits for them. Otherwise the scheduler does it when everything else has been requested.
fn release_if_urgent(transfers: &mut Transfers, id: LinkId) {
    if transfers.reader.is_present() || transfers.is_externally_controlled() {
        transfers.release_requests(id);
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

/// A connection has stalled while another one of its link delivers: checks whether the server lost a pipelined
/// request.
pub(super) fn note_pipelined_lost(transfers: &mut Transfers, id: super::ConnId) {
    let Some(conn) = transfers.conns.get(&id) else { return };
    let front = conn.reqs.front().and_then(|req| transfers.reqs.get(req));
    let forgotten = front.is_some_and(|req: &Req| !req.is_accepted && req.is_pipelined);
    if conn.responses > 0 && forgotten && conn.protocol == Some(Protocol::Http1) {
        transfers.quirks.of_mut(conn.mirror).on_pipelined_lost();
    }
}

/// If mirrors are combined: a stalled link switches to the next mirror, unless other links receive data from the
/// same mirror. In that case the link is at fault.
pub(super) fn leave_stalled_mirrors(transfers: &mut Transfers, mirrors: &mut Mirrors) {
    if !mirrors.can_combine() {
        return;
    }
    let response_link = match transfers.resource.phase {
        Phase::SingleResponse { req: Some(req) } => transfers.request_link(req),
        _ => None,
    };
    let stalled = |(id, link): (&LinkId, &Link)| match link.state {
        LinkState::Stalled { since } if Some(*id) != response_link => {
            Some((*id, link.mirror, since.max(link.mirror_since)))
        }
        _ => None,
    };
    let stalled: Vec<_> = transfers.links.iter().filter_map(stalled).collect();
    for (id, mirror, since) in stalled {
        let receives = |link: &Link| link.mirror == mirror && link.stats.last_data.is_some_and(|at| at > since);
        // The link may be at fault. After all mirrors were tried, switch more slowly, since the mirror that the
        // link is at when it recovers may be a dead one.
        let until =
            since + if mirrors.has_untried_mirror(transfers, id) { MIRROR_TIMEOUT } else { MIRROR_RETRY_TIMEOUT };
        if transfers.links.iter().any(|(other, link)| *other != id && receives(link)) {
            continue;
        }
        if transfers.now < until {
            transfers.set_timer(until, TimerReason::Stall);
            continue;
        }
        let error = ConnError { kind: ConnErrorKind::TimedOut, text: "no data received".into() };
        if !mirrors.try_next_mirror(transfers, id, &BanReason::RepeatedErrors { error }) {
            mirrors.switch_mirror(transfers, id);
        }
        transfers.set_timer(transfers.now + MIRROR_TIMEOUT, TimerReason::Stall);
    }
}

/// A little more than twice the 200 ms minimum of Linux's retransmission timer: one lost burst is no stall.
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
/// tried, it is [`MIRROR_RETRY_TIMEOUT`]; so it is at least for a single response if no other link is up.
const MIRROR_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for other links to appear when all present links have exhausted their budgets.
const OTHER_LINKS_GRACE: Duration = Duration::from_secs(1);
/// How long a stalled link keeps the single response: without a byte of it, with some bytes, and with some that were
/// read.
const EMPTY_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const STALLED_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const READ_RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
