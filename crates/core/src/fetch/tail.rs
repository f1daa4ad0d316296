//! The last bytes: what lags behind is asked for a second time where it comes sooner.
//!
//! In: everything is on its way, and each connection's owed bytes and pace. Out: requests for the ends of spans that
//! another connection would bring too late.
//!
//! 1. The laggard is the connection that ends last, the helper the one that could bring another byte first.
//! 2. The helper takes as much of the laggard's end as makes both end together; both may bring it, the first counts.
//! 3. The laggard brings its end last, so if both keep their pace nothing comes twice. What has come twice, and half of
//!    what still may, is bounded by [`Fetch::waste_allowed`]; against a laggard that is far behind, by a twentieth.

use core::time::Duration;

use super::conn::FIRST_SPAN;
use super::level::{Lane, level, quota};
use super::plan::{LEAST_PIECE, has_room};
use super::{Ask, Conn, ConnId, Fetch, Req, ReqId, Span, Wake};
use crate::units::DataSize;

impl Fetch {
    /// Looks at the ends of all connections.
    pub(super) fn tail(&mut self) {
        for _ in 0..MOST_STEPS {
            let Some((helper, req, span)) = self.next_double() else { break };
            if let Some(req) = self.reqs.get_mut(&req) {
                req.covered_from = span.start;
            }
            self.send(helper, Ask::Span(span));
        }
        if self.conns.len() > 1 {
            self.wake_at(self.now + LOOK, Wake::Tail);
        }
    }

    fn next_double(&self) -> Option<(ConnId, ReqId, Span)> {
        let (late, end) = self.laggard()?;
        let laggard = self.conns.get(&late)?;
        // A connection of the same link shares its capacity: it helps only one that stands still.
        let stuck = self.now.since(laggard.last) >= laggard.rtt();
        let helpers = self
            .conns
            .iter()
            .filter(|(id, conn)| **id != late && self.may_help(conn) && (stuck || conn.link != laggard.link));
        let lanes = helpers
            .map(|(id, conn)| (*id, self.lane(conn, Duration::ZERO)))
            .filter(|(_, lane)| !lane.pace.is_zero());
        let (helper, lane) = lanes.min_by_key(|(_, lane)| lane.ready)?;
        let gain = end.saturating_sub(lane.ready);
        if gain < LEAST_GAIN.max(lane.ready / 4) {
            return None;
        }
        let owed = self.owed(laggard);
        let own = Lane { pace: laggard.pace(self.now), ready: self.standstill(laggard) };
        let both = level(&[own, lane], owed);
        let part = quota(lane, both).min(owed).max(LEAST_PIECE).min(self.may_carry(self.conns.get(&helper)?));
        let costs = self.links.get(&self.conns.get(&helper)?.link).is_some_and(|link| link.profile.metered);
        let far = if gain < HOPELESS || costs { DataSize::ZERO } else { self.ledger.total()? / HOPELESS_WASTE };
        let allowed = self.waste_allowed().max(far);
        if self.ledger.wasted() + (self.at_risk() + part) / 2 > allowed {
            return None;
        }
        let (req, span) = self.last_owed(laggard, self.conns.get(&helper)?, part)?;
        Some((helper, req, span))
    }

    /// Another link brings the end of the request that owes the byte at `offset`, if the request would not be complete
    /// within `within` and both together end it clearly sooner. What its connection then brings twice stays within the
    /// bound against laggards that are far behind.
    pub(crate) fn hasten(&mut self, offset: u64, within: Duration) -> bool {
        let Some((helper, req, span)) = self.relief(offset, within) else { return false };
        if let Some(req) = self.reqs.get_mut(&req) {
            req.covered_from = span.start;
        }
        self.send(helper, Ask::Span(span));
        true
    }

    fn relief(&self, offset: u64, within: Duration) -> Option<(ConnId, ReqId, Span)> {
        let (id, req) = self.reqs.iter().find(|(_, req)| !req.released && req.owed().contains(offset))?;
        let laggard = self.conns.get(&req.conn)?;
        let queue = laggard.reqs.iter().take_while(|other| *other != id).filter_map(|id| self.reqs.get(id));
        let before: DataSize = queue.map(|req| req.remaining().len()).sum();
        let pace = laggard.pace(self.now);
        let own = Lane { pace, ready: (before / pace).saturating_add(self.standstill(laggard)) };
        let owed = self.ledger.undone_bytes(req.owed());
        let end = own.ready.saturating_add(owed / pace).saturating_add(laggard.thinks_of(self.unanswered(laggard)));
        let others = self.conns.iter().filter(|(_, conn)| conn.link != laggard.link && self.may_help(conn));
        let lanes = others.map(|(id, conn)| (*id, self.lane(conn, Duration::ZERO)));
        let (helper, lane) = lanes.filter(|(_, lane)| !lane.pace.is_zero()).min_by_key(|(_, lane)| lane.ready)?;
        let both = level(&[own, lane], owed);
        if end <= within || both.saturating_add(RELIEF) > end {
            return None;
        }
        let part = quota(lane, both).min(owed).max(LEAST_PIECE).min(self.may_carry(self.conns.get(&helper)?));
        if self.ledger.wasted() + part > self.ledger.total()? / HOPELESS_WASTE {
            return None;
        }
        let span = req.owed();
        Some((helper, *id, Span::new(span.start.max(span.end.saturating_sub(part.bytes())), span.end)))
    }

    /// Whether a connection may get another request, and its link carry its bytes. A request for no bytes would be one
    /// for everything.
    fn may_help(&self, conn: &Conn) -> bool {
        let may_ask = self.serves(conn) && has_room(conn) && self.may_pipeline(conn);
        may_ask && self.has_request(conn.link) && !self.budget_left(conn.link).is_zero()
    }

    /// The most that one request on a connection may bring.
    fn may_carry(&self, conn: &Conn) -> DataSize {
        self.budget_left(conn.link).min(self.largest(conn))
    }

    /// The connection that ends last, and when.
    fn laggard(&self) -> Option<(ConnId, Duration)> {
        let ends = self.conns.iter().filter_map(|(id, conn)| {
            let owed = self.owed(conn);
            let late = || self.standstill(conn).saturating_add(conn.thinks_of(self.unanswered(conn)));
            (!owed.is_zero()).then(|| (*id, (owed / conn.pace(self.now)).saturating_add(late())))
        });
        ends.max_by_key(|(_, end)| *end)
    }

    /// How long a connection may bring nothing: one that stands still (a loss that is being repaired) will stand still
    /// for as long again, and in slow start the next burst is a round trip away.
    pub(super) fn standstill(&self, conn: &Conn) -> Duration {
        let burst = if conn.ramping(self.now) { conn.floor_rtt() } else { Duration::ZERO };
        self.now.since(conn.last).max(burst)
    }

    /// Bytes that only this connection is to bring.
    fn owed(&self, conn: &Conn) -> DataSize {
        let reqs = conn.reqs.iter().filter_map(|id| self.reqs.get(id)).filter(|req| !req.released);
        reqs.map(|req| self.ledger.undone_bytes(req.owed())).sum()
    }

    /// The last `part` bytes that a connection owes, as far as they are in one request and not on their way to the
    /// helper already.
    fn last_owed(&self, conn: &Conn, helper: &Conn, part: DataSize) -> Option<(ReqId, Span)> {
        let brings = |span: Span| {
            let mut own = helper.reqs.iter().filter_map(|id| self.reqs.get(id));
            own.any(|req| !req.remaining().intersect(span).is_empty())
        };
        let reqs = conn.reqs.iter().rev().filter_map(|id| Some((*id, self.reqs.get(id)?)));
        for (id, req) in reqs.filter(|(_, req)| !req.released) {
            let owed = req.owed();
            if self.ledger.undone_bytes(owed).is_zero() {
                continue;
            }
            let start = owed.start.max(owed.end.saturating_sub(part.bytes()));
            let span = Span::new(start, owed.end);
            if !brings(span) {
                return Some((id, span));
            }
        }
        None
    }

    /// Bytes that two connections are about to bring.
    fn at_risk(&self) -> DataSize {
        let twice = |req: &Req| Span::new(req.cursor.max(req.covered_from), req.span.end);
        self.reqs.values().map(|req| self.ledger.undone_bytes(twice(req))).sum()
    }

    /// How many bytes may have come for nothing before no more is asked for twice: under one percent of a large file,
    /// what the pipes hold of a small one.
    pub(super) fn waste_allowed(&self) -> DataSize {
        let total = self.ledger.total().unwrap_or_default();
        let pipes: DataSize = self.conns.values().map(|conn| conn.pace(self.now) * conn.floor_rtt()).sum();
        (total / 125).max(pipes).max(FIRST_SPAN)
    }
}

/// Ending this much sooner is worth asking twice.
const LEAST_GAIN: Duration = Duration::from_millis(15);
/// This far behind, waiting is worse than waste, unless it costs money; then up to a twentieth may come twice.
const HOPELESS: Duration = Duration::from_millis(700);
const HOPELESS_WASTE: u64 = 20;
/// Before the end of a file, only this much is worth bytes that come twice.
const RELIEF: Duration = Duration::from_millis(150);
/// Requests at one look.
const MOST_STEPS: usize = 8;
/// How often the ends are looked at.
const LOOK: Duration = Duration::from_millis(10);
