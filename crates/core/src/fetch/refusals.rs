//! Answers that refuse: the size of a range, the Range field itself, a URL that has expired, or everybody for a while.
//!
//! 1. A range larger than any that was served is asked for again in parts ([`Manners`](super::manners::Manners)).
//! 2. The target of a redirect that has delivered and then refuses has expired: the redirecting URL is asked again at
//!    once. A refusal that may be one of size is answered by a smaller range first.
//! 3. A first request that is refused for no reason that concerns the resource is repeated with a small range, and then
//!    without one.
//!    The first 404 or the like of a download is checked by one request without a range.
//! 4. A busy server (429, 503) is left alone for as long as it says. Where it serves other connections of the link or
//!    other links, it limits their number: one that is turned away waits longer each time, and disturbs none of them.
//!
//! A refusal by the URL itself is final after that: a file that is not there costs one more request, not ten.

use alloc::vec::Vec;
use core::time::Duration;

use super::answers::SMALL_SPAN;
use super::links::{LinkState, Standing};
use super::manners::size_of;
use super::{Ask, Ban, ConnId, Failure, Fetch, Head, Notice, Opening, Phase, Req, ReqId, Wake};
use crate::link::LinkId;

impl Fetch {
    /// Rule 2. Tells whether that is it.
    pub(super) fn has_expired(&mut self, id: ReqId, link_id: LinkId, status: u16) -> bool {
        let Some(conn) = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)) else { return false };
        let (root, redirected) = (conn.root, conn.is_redirected());
        let served = self.links.get(&link_id).is_some_and(|link| link.served_here > 0 || link.adopted);
        // 200 and redirects: to a page that says so. Errors of a server that has lost what it issued count as well.
        let refused = matches!(status, 200 | 204 | 300..=308 | 400 | 401 | 403 | 404 | 410 | 500..=504);
        if !redirected || !served || !refused {
            return false;
        }
        // 401, 404 and 410 do not speak of sizes.
        if matches!(status, 400 | 403) && !self.manners(root).expires && self.was_too_large(id, status) {
            return true;
        }
        self.manners(root).on_expired();
        if let Some(link) = self.links.get_mut(&link_id) {
            link.targets.remove(&root);
            link.served_here = 0;
            link.next_try = self.now;
        }
        self.cancel(id);
        self.wake_at(self.now, Wake::Retry);
        true
    }

    /// Rule 1. Tells whether that is it.
    pub(super) fn was_too_large(&mut self, id: ReqId, status: u16) -> bool {
        let Some(req) = self.reqs.get(&id) else { return false };
        let Some(conn) = self.conns.get(&req.conn) else { return false };
        // A server that fails as soon as a connection stands may count connections.
        let counts = matches!(status, 429 | 503) && conn.answered == 0;
        if self.phase != Phase::Ranges || !concerns_the_range(status) || counts {
            return false;
        }
        let (link, root) = (conn.link, conn.root);
        let Some(len) = size_of(req.ask) else { return false };
        if !self.manners(root).on_refused(len) {
            return false;
        }
        self.cancel(id);
        if let Some(link) = self.links.get_mut(&link) {
            link.next_try = self.now;
        }
        self.wake_at(self.now, Wake::Retry);
        true
    }

    /// Rule 3, once all links that may speak have been refused. Tells whether the resource is asked for in another way.
    pub(super) fn open_otherwise(&mut self, id: ReqId, link: LinkId, status: u16) -> bool {
        if self.phase != Phase::Unknown || !concerns_the_range(status) || self.untried_root(link) {
            return false;
        }
        if let Some(link) = self.links.get_mut(&link) {
            link.plain = false;
        }
        let small = self.reqs.get(&id).and_then(|req| size_of(req.ask)).is_some_and(|size| size <= SMALL_SPAN);
        if self.opening == Opening::SmallRange && !small {
            // It was sent before that was decided.
            self.cancel(id);
            self.rest(link, Duration::ZERO);
            return true;
        }
        if self.opening == Opening::SmallRange {
            self.parked.clear();
            self.ask_without_range(id);
            return true;
        }
        self.opening = Opening::SmallRange;
        let parked = core::mem::take(&mut self.parked);
        for id in parked.into_iter().map(|parked| parked.req).chain([id]) {
            self.cancel(id);
        }
        for link in self.links.values_mut().filter(|link| link.hopeful()) {
            link.next_try = self.now;
        }
        self.wake_at(self.now, Wake::Retry);
        true
    }

    /// Rule 4. A mirror may do better.
    pub(super) fn pause(&mut self, id: ReqId, link_id: LinkId, head: &Head) {
        let status = head.status;
        if head.retry_after.is_none() && self.was_too_large(id, status) {
            return;
        }
        if self.is_one_too_many(id, link_id) {
            self.cancel(id);
            if let Some(link) = self.links.get_mut(&link_id) {
                link.lanes.be_modest();
            }
            // The other one may be about to end.
            return self.rest(link_id, TURN);
        }
        if head.retry_after.is_none() && self.has_expired(id, link_id, status) {
            return;
        }
        let failed = self.links.get(&link_id).map_or(0, |link| link.failures);
        // An application that fails because of the Range field fails each time.
        if status != 429 && status != 503 && failed > 0 && self.open_otherwise(id, link_id, status) {
            return;
        }
        self.note_failed_opening(id, link_id);
        self.cancel(id);
        if self.protect_first(link_id) || self.next_root(link_id, &Ban::OtherStatus { status }) {
            return;
        }
        let delivers = |(id, link): (&LinkId, &LinkState)| {
            *id != link_id && link.hopeful() && link.known.last_data.is_some_and(|at| at + LATELY > self.now)
        };
        let others = self.links.iter().any(delivers);
        let Some(link) = self.links.get_mut(&link_id) else { return };
        link.failures += 1;
        link.lanes.be_modest();
        let asked = head.retry_after.filter(|asked| *asked > LONGEST_PAUSE);
        let own = if others { link.backoff().saturating_mul(TURNED_AWAY) } else { link.backoff() };
        let wait = head.retry_after.unwrap_or(own).min(LONGEST_PAUSE);
        link.next_try = self.now + wait;
        link.paused_until = link.next_try;
        let (again, spent) = (link.failures > 1, link.failures > self.config.retries);
        for conn in link.conns.clone() {
            self.drop_conn(conn, true);
        }
        match (others, spent) {
            // The others carry the file; one line is enough.
            (true, _) if again => {}
            (true, _) | (false, false) => self.notice(Notice::Pause { link: link_id, wait, asked, status }),
            (false, true) => {
                self.ban_or_end(link_id, Ban::OtherStatus { status }, false, Failure::Status { status });
            }
        }
    }

    /// As long as nothing is known of the resource, requests with a range and requests without take turns on a link where
    /// they fail: what fails may be the Range field.
    pub(super) fn note_failed_opening(&mut self, id: ReqId, link: LinkId) {
        let Some(ask) = self.reqs.get(&id).filter(|req| !req.accepted).map(|req| req.ask) else { return };
        if let Some(link) = self.links.get_mut(&link).filter(|_| self.phase == Phase::Unknown) {
            link.plain = ask != Ask::Whole;
        }
    }

    /// A first request for a range was answered by something that is not the file: the link asks without a range, at once.
    /// Tells whether it does.
    pub(super) fn try_in_one_piece(&mut self, id: ReqId, link_id: LinkId) -> bool {
        let ranged = self.reqs.get(&id).is_some_and(|req| req.ask != Ask::Whole);
        // A reader that steers its requests never sends one without a range (`open_in_one_piece`).
        if self.phase != Phase::Unknown || !ranged || self.steering.is_some() {
            return false;
        }
        self.cancel(id);
        if let Some(link) = self.links.get_mut(&link_id) {
            link.plain = true;
            link.forget_places();
            link.next_try = self.now;
        }
        self.wake_at(self.now, Wake::Retry);
        true
    }

    /// A request for a range was refused with a status that concerns the resource. Some servers send it because of the Range
    /// field: the first one of a download is checked by one request without a range. Tells whether that is so, or such a
    /// request is under way on the link.
    pub(super) fn retries_whole(&mut self, id: ReqId, link_id: LinkId, status: u16) -> bool {
        let ranged = self.reqs.get(&id).is_some_and(|req| req.ask != Ask::Whole);
        let login = matches!(status, 401 | 407 | 511);
        let may = ranged && self.phase == Phase::Unknown && self.steering.is_none();
        if !may || login || concerns_the_range(status) || self.untried_root(link_id) {
            return false;
        }
        if !core::mem::replace(&mut self.retried_whole, true) {
            return self.try_in_one_piece(id, link_id);
        }
        let pending = self.links.get(&link_id).is_some_and(|link| link.plain);
        if pending {
            self.cancel(id);
            self.rest(link_id, TURN);
        }
        pending
    }

    /// Sends a request without a range on this connection, if its link is to try one. A link on which nothing comes tries it
    /// beside the request that is not answered, which may yet be.
    pub(super) fn open_in_one_piece(&mut self, id: ConnId) -> bool {
        let Some(link_id) = self.conns.get(&id).map(|conn| conn.link) else { return false };
        let of_link = |req: &Req| self.conns.get(&req.conn).is_some_and(|conn| conn.link == link_id);
        let is_tried = self.reqs.values().any(|req| req.ask == Ask::Whole && of_link(req));
        let waits = self.reqs.values().any(|req| req.ask != Ask::Whole && !req.accepted && of_link(req));
        let Some(link) = self.links.get(&link_id) else { return false };
        let silent = waits && matches!(link.standing, Standing::Silent { .. });
        let due = !is_tried && (link.plain || silent) && self.steering.is_none();
        if !due || !self.send(id, Ask::Whole) {
            return false;
        }
        if let Some(req) = self.reqs.values_mut().next_back() {
            // Requests for ranges beside it ask for the same bytes.
            req.span.end = 0;
        }
        self.rebuild();
        true
    }

    /// The resource is known by a range: requests without one are not needed.
    pub(super) fn end_plain_tries(&mut self) {
        self.links.values_mut().for_each(|link| link.plain = false);
        if self.phase != Phase::Ranges {
            return;
        }
        let parked = |id: &ReqId| self.parked.iter().any(|parked| parked.req == *id);
        let tries = self.reqs.iter().filter(|(id, req)| req.ask == Ask::Whole && !req.accepted && !parked(id));
        let tries: Vec<ReqId> = tries.map(|(id, _)| *id).collect();
        for id in tries {
            self.cancel(id);
        }
    }

    /// Whether another connection of the link is being served: then the server allows no more of them.
    fn is_one_too_many(&self, id: ReqId, link: LinkId) -> bool {
        let own = self.reqs.get(&id).map(|req| req.conn);
        self.conns.iter().any(|(id, conn)| {
            Some(*id) != own && conn.link == link && conn.last + LATELY > self.now && !conn.meter.total().is_zero()
        })
    }
}

/// Whether a request for other bytes may be answered better: not where the resource, the client or the login is at fault.
pub(super) fn concerns_the_range(status: u16) -> bool {
    match status {
        401 | 402 | 404 | 407 | 408 | 410 | 421 | 423..=429 | 451 | 511 => false,
        400..=599 => true,
        _ => false,
    }
}

/// A server that wants to be asked later than this is asked then all the same: a laptop is carried away meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Bytes that came in this time show that the server serves.
const LATELY: Duration = Duration::from_secs(5);
/// How long a connection waits for the end of the one that keeps it out.
const TURN: Duration = Duration::from_millis(200);
/// How many times as long as after other failures a link waits that is turned away while others are served.
const TURNED_AWAY: u32 = 5;
