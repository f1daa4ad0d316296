//! The first request asks for the whole file, so that its response alone can bring it.
//!
//! Some URLs answer one request only. Some servers answer a range slowly, wrongly or not at all once they have answered
//! the first. The response to `bytes=0-` is a range where ranges work and a download in one piece where they do not.
//!
//! 1. The first connection asks for `bytes=0-`. The others wait for the head of its response, at most [`HEAD_WAIT`].
//! 2. Then they take their ranges from its end, which moves forward, while the response goes on from its front. So it
//!    is read to its end where no other request succeeds, and nothing is cut off early where they do.
//! 3. It is cut off when it reaches bytes that another response brings. That costs HTTP/1.1 its connection, but then
//!    the download is all but over.
//! 4. Bytes behind it that no other request brings any more are its own again.
//! 5. While it delivers, failures of other requests on its link do not end its connection.
//!
//! A first request for a few bytes, as downloads that are resumed or read in order send it, is not used here: where it is
//! the only one that is answered, the file is lost.

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

    /// Sends the first request on this connection, if that is still to be sent. Tells whether it was.
    pub(super) fn ask_for_all(&mut self, conn: ConnId) -> bool {
        let Some(link) = self.conns.get(&conn).map(|conn| conn.link) else { return false };
        if !self.may_ask_for_all(link) || !self.reqs.is_empty() || !self.send(conn, Ask::From(0)) {
            return false;
        }
        let Some((id, req)) = self.reqs.iter_mut().next_back() else { return false };
        // Until its head has come, the others may ask for what follows.
        req.span.end = super::conn::FIRST_SPAN.bytes();
        self.first = Some(*id);
        self.rebuild();
        true
    }

    /// The first request, as long as its head has not come.
    fn pending_first(&self) -> Option<&Req> {
        let req = self.first.and_then(|id| self.reqs.get(&id)).filter(|req| !req.accepted)?;
        Some(req).filter(|req| self.parked.iter().all(|parked| parked.conn != req.conn))
    }

    /// Until when other connections wait for the head of the first response.
    pub(super) fn waits_for_first(&self, conn: &Conn) -> Option<Instant> {
        let req = self.pending_first()?;
        let first = self.conns.get(&req.conn).filter(|first| first.root == conn.root)?;
        let wait = (first.handshake * HEAD_WAIT_ROUNDS).clamp(HEAD_WAIT.0, HEAD_WAIT.1);
        Some(req.sent + wait).filter(|until| *until > self.now)
    }

    /// Whether a refusal says nothing yet, because the first request is still unanswered: it may be the only one that the
    /// server answers.
    pub(super) fn awaits_first(&self, id: ReqId) -> bool {
        let pending = self.pending_first();
        self.first != Some(id) && pending.is_some_and(|req| req.sent + FIRST_PATIENCE > self.now)
    }

    /// The response to the first request, while it delivers.
    fn first_response(&self) -> Option<(ReqId, &Req)> {
        let id = self.first.filter(|_| self.phase == Phase::Ranges)?;
        self.reqs.get(&id).filter(|req| req.accepted && !req.released).map(|req| (id, req))
    }

    /// Whether a response is the first one and brings everything up to the end of the file.
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

    /// Rule 5. Whether the first response comes over this link: then it is neither banned nor moved, asks for no more beside
    /// that response, and waits.
    pub(super) fn spares_first(&mut self, link: LinkId) -> bool {
        let carrier = self.first_response().and_then(|(_, req)| self.conns.get(&req.conn)).map(|conn| conn.link);
        if carrier != Some(link) {
            return false;
        }
        if let Some(link) = self.links.get_mut(&link) {
            link.lanes.be_modest();
            link.failures = 0;
        }
        self.rest(link, BESIDE);
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

    /// Another connection is about to ask for these bytes: the first response does not owe them any more.
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
    pub(super) fn tend_first(&mut self) {
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

    /// Whether the first response brings what another request owes much sooner than that one, or that one has no response
    /// yet. What then comes twice is bounded as at the end of any download.
    fn overtakes(&self, id: ReqId, other: ReqId) -> bool {
        let (Some(own), Some(req)) = (self.reqs.get(&id), self.reqs.get(&other)) else { return false };
        let (Some(conn), Some(late)) = (self.conns.get(&own.conn), self.conns.get(&req.conn)) else { return false };
        let way = DataSize::from_bytes(req.span.end.saturating_sub(own.cursor));
        let own = way / conn.pace(self.now);
        let theirs = (req.remaining().len() / late.pace(self.now)).saturating_add(self.standstill(late));
        let pays = own.saturating_add(OVERTAKES) < theirs;
        !req.accepted || (pays && self.ledger.wasted() + way <= self.waste_allowed())
    }

    /// Ranges cannot be used any more. Where the first response still comes, it brings what is missing: nothing has to be
    /// asked for again. Tells whether it does.
    pub(super) fn is_left_to_first(&mut self) -> bool {
        let Some((id, _)) = self.first_response() else { return false };
        self.carrier = self.carrier_of(id);
        self.drop_others(id);
        self.tend_first();
        let total = self.ledger.total().map_or(u64::MAX, DataSize::bytes);
        let Some(req) = self.reqs.get_mut(&id) else { return false };
        req.span.end = total;
        self.rebuild();
        self.phase = Phase::OneAnswer { req: Some(id) };
        true
    }

    /// Its link was silent and delivers again. Other links may have fetched a part of it: what lies before that part remains to be delivered.
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

/// How long other connections wait for the head of the first response: so many round trips of its path, within bounds.
/// chosen: a server that takes longer is slower than the round trip that waiting costs.
const HEAD_WAIT_ROUNDS: u32 = 4;
const HEAD_WAIT: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(1000));
/// How long refusals of other requests say nothing while the first one is unanswered.
const FIRST_PATIENCE: Duration = Duration::from_secs(15);
/// Bytes that are there already and are skipped by the first response, so that it can bring those behind them.
const MOST_SKIPPED: DataSize = DataSize::from_mib(1);
/// The first response goes on over bytes that another one is bringing if it is so much sooner.
const OVERTAKES: Duration = Duration::from_millis(15);
/// How long a link waits whose request beside the first response was refused.
const BESIDE: Duration = Duration::from_secs(5);
