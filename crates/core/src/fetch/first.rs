//! The first request covers the whole file. If no other request succeeds, its response is enough.
//!
//! Some URLs are valid for one request only. Some servers answer a range slowly, wrongly or not at all once they have answered
//! the first request. The response to `bytes=0-` is a range where ranges work and a download in one piece where they do not.
//!
//! 1. The first connection asks for `bytes=0-`. Other connections wait for the header section of its response: four handshake
//!    times, between 150 ms and 1 s ([`HEAD_WAIT`]).
//! 2. Then other requests take ranges from the end of its span, and that end moves to lower offsets.
//! 3. The first response is cancelled when it reaches bytes that are stored or that another request covers. It continues over
//!    the bytes of another request that has no response yet, or that it would deliver clearly sooner ([`OVERTAKES`]). HTTP/1.1
//!    must close the connection for a cancellation, but by then the download is almost complete.
//! 4. If another request fails, the first response delivers the bytes behind its own span again, up to the next byte that is
//!    stored or requested.
//! 5. While the first response is running, failures of other requests on its link do not close its connection.
//!
//! A small first range was not used here, although resumed and sequential downloads send one: if the server answers only that
//! request, the download fails.

use core::time::Duration;

use super::conn::Conn;
use super::plan::LEAST_PIECE;
use super::{Ask, ConnId, Fetch, Opening, Phase, Policy, Req, ReqId, Span, Wake};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

impl Fetch {
    /// Whether the next request may ask for the whole file by a range with an open end.
    fn may_ask_for_all(&self, link: LinkId) -> bool {
        self.config.open_first
            && self.config.policy == Policy::Marline
            && self.config.window.is_none()
            && self.config.resume.is_none()
            && self.steering.is_none()
            && self.opening == Opening::Range
            && self.ledger.done().is_zero()
            && self.budget_left(link) == DataSize::MAX
    }

    /// Sends the first request on this connection, if that is still to be sent. Returns true if it did.
    pub(super) fn ask_for_all(&mut self, conn: ConnId) -> bool {
        let Some(link) = self.conns.get(&conn).map(|conn| conn.link) else { return false };
        if !self.may_ask_for_all(link) || !self.reqs.is_empty() || !self.send(conn, Ask::From(0)) {
            return false;
        }
        let Some((id, req)) = self.reqs.iter_mut().next_back() else { return false };
        // A provisional end until the header section arrives: after the wait, others may request the bytes behind it.
        req.span.end = super::conn::FIRST_SPAN.bytes();
        self.first = Some(*id);
        self.rebuild();
        true
    }

    /// The first request, while it has no response.
    fn pending_first(&self) -> Option<&Req> {
        let req = self.first.and_then(|id| self.reqs.get(&id)).filter(|req| !req.accepted)?;
        Some(req).filter(|req| self.parked.iter().all(|parked| parked.conn != req.conn))
    }

    /// Until when other connections wait for the header section of the first response.
    pub(super) fn waits_for_first(&self, conn: &Conn) -> Option<Instant> {
        let req = self.pending_first()?;
        let first = self.conns.get(&req.conn).filter(|first| first.root == conn.root)?;
        let wait = (first.handshake * HEAD_WAIT_ROUNDS).clamp(HEAD_WAIT.0, HEAD_WAIT.1);
        Some(req.sent + wait).filter(|until| *until > self.now)
    }

    /// Returns true if a refusal of this request must be ignored for now, because the first request has no response yet: it may
    /// be the only one that the server answers.
    pub(super) fn awaits_first(&self, id: ReqId) -> bool {
        let pending = self.pending_first();
        self.first != Some(id) && pending.is_some_and(|req| req.sent + IGNORE_REFUSALS_FOR > self.now)
    }

    /// The first response, if it was accepted and is still running.
    fn first_response(&self) -> Option<(ReqId, &Req)> {
        let id = self.first.filter(|_| self.phase == Phase::Ranges)?;
        self.reqs.get(&id).filter(|req| req.accepted && !req.released).map(|req| (id, req))
    }

    /// Whether this is the first request.
    pub(super) fn is_first(&self, id: ReqId) -> bool {
        self.first == Some(id)
    }

    /// Whether the first response comes over this connection.
    pub(super) fn carries_first(&self, conn: &Conn) -> bool {
        self.first_response().is_some_and(|(id, _)| conn.reqs.contains(&id))
    }

    /// The connection that carries the first response.
    pub(super) fn first_conn(&self) -> Option<ConnId> {
        self.first_response().map(|(_, req)| req.conn)
    }

    /// Rule 5. If the first response comes over this link, clears the link's failures and sends no other request over it for
    /// [`PAUSE`]. Returns true if it did.
    pub(super) fn protect_first(&mut self, link: LinkId) -> bool {
        let carrier = self.first_response().and_then(|(_, req)| self.conns.get(&req.conn)).map(|conn| conn.link);
        if carrier != Some(link) {
            return false;
        }
        if let Some(link) = self.links.get_mut(&link) {
            link.lanes.be_modest();
            link.failures = 0;
        }
        self.rest(link, PAUSE);
        true
    }

    /// The bytes at the end of the first response that other connections may take.
    pub(super) fn divisible(&self) -> Span {
        let Some((_, req)) = self.first_response() else { return Span::default() };
        let Some(conn) = self.conns.get(&req.conn) else { return Span::default() };
        let kept = conn.wanted_ahead(self.now).max(LEAST_PIECE);
        let start = req.cursor.saturating_add(kept.bytes());
        if start + LEAST_PIECE.bytes() > req.span.end { Span::default() } else { Span::new(start, req.span.end) }
    }

    /// Another connection is about to ask for these bytes: removes them from the span of the first response.
    pub(super) fn take_from_first(&mut self, span: Span) {
        let Some((id, req)) = self.first_response() else { return };
        if span.end != req.span.end || span.start < req.cursor {
            return;
        }
        if let Some(req) = self.reqs.get_mut(&id) {
            req.span.end = span.start;
        }
        self.rebuild();
    }

    /// Rules 3 and 4.
    pub(super) fn update_first(&mut self) {
        let Some((id, req)) = self.first_response() else { return };
        let (cursor, end) = (req.cursor, req.span.end);
        let from = self.ledger.done_spans().run_from(end.max(cursor));
        let more = self.ledger.free(from, u64::MAX).filter(|free| free.start == from);
        if let Some(free) = more.filter(|_| DataSize::from_bytes(from - end.min(from)) <= MOST_SKIPPED) {
            if let Some(req) = self.reqs.get_mut(&id) {
                req.span.end = free.end;
            }
            return self.rebuild();
        }
        let total = self.ledger.total().map_or(u64::MAX, DataSize::bytes);
        if cursor < end || cursor >= total {
            return;
        }
        let brings = |(other, req): &(&ReqId, &Req)| **other != id && !req.released && req.span.contains(from);
        match self.reqs.iter().find(brings).map(|(other, req)| (*other, req.span.end)) {
            Some((other, upto)) if self.overtakes(id, other) => {
                if let Some(req) = self.reqs.get_mut(&id) {
                    req.span.end = upto;
                }
                self.rebuild();
            }
            _ => {
                self.cancel(id);
                self.first = None;
                self.wake_at(self.now, Wake::Retry);
            }
        }
    }

    /// Returns true if the first response would deliver the bytes of another request clearly sooner, or if that request has no
    /// response yet. In the first case the limit for bytes that are transferred twice applies.
    fn overtakes(&self, id: ReqId, other: ReqId) -> bool {
        let (Some(own), Some(req)) = (self.reqs.get(&id), self.reqs.get(&other)) else { return false };
        let (Some(conn), Some(late)) = (self.conns.get(&own.conn), self.conns.get(&req.conn)) else { return false };
        let distance = DataSize::from_bytes(req.span.end.saturating_sub(own.cursor));
        let own = distance / conn.pace(self.now);
        let theirs = (req.remaining().len() / late.pace(self.now)).saturating_add(self.standstill(late));
        let pays = own.saturating_add(OVERTAKES) < theirs;
        !req.accepted || (pays && self.ledger.wasted() + distance <= self.waste_allowed())
    }

    /// Ranges cannot be used any more. If the first response is still running, it becomes the only transfer. Returns true if
    /// it did.
    pub(super) fn fall_back_to_first(&mut self) -> bool {
        let Some((id, _)) = self.first_response() else { return false };
        self.carrier = self.carrier_of(id);
        self.drop_others(id);
        self.update_first();
        let total = self.ledger.total().map_or(u64::MAX, DataSize::bytes);
        let Some(req) = self.reqs.get_mut(&id) else { return false };
        req.span.end = total;
        self.rebuild();
        self.phase = Phase::OneAnswer { req: Some(id) };
        true
    }

    /// The link of the first response receives data again after a stall. Ends its span at the first byte that another request
    /// covers or that is stored.
    pub(super) fn resume_first(&mut self) {
        let Some((id, req)) = self.first_response() else { return };
        let from = req.cursor;
        let others = self.reqs.iter().filter(|(other, req)| **other != id && !req.released);
        let claimed = others.map(|(_, req)| req.remaining()).filter(|span| !span.is_empty());
        let next = claimed.map(|span| span.start).filter(|start| *start >= from).min().unwrap_or(u64::MAX);
        let gap = self.ledger.undone_from(from);
        if let Some(req) = self.reqs.get_mut(&id) {
            req.span.end = gap.map_or(from, |gap| if gap.start == from { gap.end.min(next) } else { from });
        }
    }
}

/// How long other connections wait for the header section of the first response: a multiple of its handshake time, within bounds.
/// chosen: if a server takes longer, the wait costs more than requests beside the first one.
const HEAD_WAIT_ROUNDS: u32 = 4;
const HEAD_WAIT: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(1000));
/// How long refusals of other requests are ignored while the first one has no response.
const IGNORE_REFUSALS_FOR: Duration = Duration::from_secs(15);
/// The most stored bytes that the first response may deliver again to reach missing bytes behind them.
const MOST_SKIPPED: DataSize = DataSize::from_mib(1);
/// The first response continues over the bytes of another request if it would deliver them sooner by at least this.
const OVERTAKES: Duration = Duration::from_millis(15);
/// The pause of a link after a refusal of a request beside the first response.
const PAUSE: Duration = Duration::from_secs(5);
