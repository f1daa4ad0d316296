//! The last bytes: what lags behind is asked for a second time where it comes sooner.
//!
//! In: everything is on its way, and each connection's owed bytes and pace. Out: requests for the ends of spans that
//! another connection would bring too late.
//!
//! 1. The laggard is the connection that ends last, the helper the one that could bring another byte first.
//! 2. The helper takes as much of the laggard's end as makes both end together; both may bring it, the first counts.
//! 3. The laggard brings its end last, so if both keep their pace nothing comes twice. What does come twice is bounded
//!    by [`Fetch::waste_allowed`]; against a laggard that is far behind no bound is needed, as it cannot bring much.

use core::time::Duration;

use super::level::{Lane, level, quota};
use super::plan::LEAST_PIECE;
use super::{Ask, Conn, ConnId, Fetch, ReqId, Span, Wake};
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
        // What may carry nothing more cannot help: a request for no bytes would be one for everything.
        let may_carry = |conn: &Conn| self.serves(conn) && !self.budget_left(conn.link).is_zero();
        let helpers = self.conns.iter().filter(|(id, conn)| **id != late && may_carry(conn));
        let lanes = helpers
            .map(|(id, conn)| (*id, self.lane(conn, Duration::ZERO)))
            .filter(|(_, lane)| !lane.pace.is_zero());
        let (helper, lane) = lanes.min_by_key(|(_, lane)| lane.ready)?;
        let gain = end.saturating_sub(lane.ready);
        if gain < LEAST_GAIN.max(lane.ready / 4) {
            return None;
        }
        let conn = self.conns.get(&late)?;
        let owed = self.owed(conn);
        let own = Lane { pace: conn.pace(self.now), ready: self.now.since(conn.last) };
        let both = level(&[own, lane], owed);
        let part =
            quota(lane, both).min(owed).max(LEAST_PIECE).min(self.budget_left(self.conns.get(&helper)?.link));
        if gain < HOPELESS && self.ledger.wasted() > self.waste_allowed() {
            return None;
        }
        let (req, span) = self.last_owed(conn, part)?;
        Some((helper, req, span))
    }

    /// The connection that ends last, and when.
    fn laggard(&self) -> Option<(ConnId, Duration)> {
        let ends = self.conns.iter().filter_map(|(id, conn)| {
            let owed = self.owed(conn);
            // A connection that stands still (a loss that is being repaired) will stand still for as long again.
            let still = self.now.since(conn.last);
            (!owed.is_zero()).then(|| (*id, (owed / conn.pace(self.now)).saturating_add(still)))
        });
        ends.max_by_key(|(_, end)| *end)
    }

    /// Bytes that only this connection is to bring.
    fn owed(&self, conn: &Conn) -> DataSize {
        let reqs = conn.reqs.iter().filter_map(|id| self.reqs.get(id)).filter(|req| !req.released);
        reqs.map(|req| self.ledger.undone_bytes(req.owed())).sum()
    }

    /// The last `part` bytes that a connection owes, as far as they are in one request.
    fn last_owed(&self, conn: &Conn, part: DataSize) -> Option<(ReqId, Span)> {
        let reqs = conn.reqs.iter().rev().filter_map(|id| Some((*id, self.reqs.get(id)?)));
        for (id, req) in reqs.filter(|(_, req)| !req.released) {
            let owed = req.owed();
            if self.ledger.undone_bytes(owed).is_zero() {
                continue;
            }
            let start = owed.start.max(owed.end.saturating_sub(part.bytes()));
            return Some((id, Span::new(start, owed.end)));
        }
        None
    }

    /// How many bytes may have come for nothing before no more is asked for twice: under one percent of a large file,
    /// what the pipes hold of a small one.
    fn waste_allowed(&self) -> DataSize {
        let total = self.ledger.total().unwrap_or_default();
        let pipes: DataSize = self.conns.values().map(|conn| conn.pace(self.now) * conn.floor_rtt()).sum();
        (total / 125).max(pipes)
    }
}

/// Ending this much sooner is worth asking twice.
const LEAST_GAIN: Duration = Duration::from_millis(15);
/// This far behind, the laggard brings next to nothing of what it owes.
const HOPELESS: Duration = Duration::from_millis(700);
/// Requests at one look.
const MOST_STEPS: usize = 8;
/// How often the ends are looked at.
const LOOK: Duration = Duration::from_millis(10);
