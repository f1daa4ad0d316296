//! Orders to the driver, and the books that go with each: no connection or request begins or ends anywhere else.
//!
//! 1. A request is claimed in the ledger when it is sent; what it still owes is free again when it or its connection
//!    ends without having brought it.
//! 2. HTTP/2 takes back one answer with a reset, HTTP/1.1 only with the whole connection (RFC 9112 §9.3).
//! 3. Nothing is sent for which a link has no [`allowance`](super::allowance).

use alloc::vec::Vec;

use super::conn::{Conn, Req};
use super::{Ask, ConnId, Fetch, Output, Protocol, ReqId, Span, Wake};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    pub(super) fn close_all(&mut self) {
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in all {
            self.drop_conn(id, true);
        }
    }

    /// Takes a connection out of the books; `order` tells the driver to close it.
    pub(super) fn drop_conn(&mut self, id: ConnId, order: bool) {
        let Some(conn) = self.conns.remove(&id) else { return };
        if let Some(link) = self.links.get_mut(&conn.link) {
            link.conns.retain(|other| *other != id);
        }
        for req in &conn.reqs {
            self.reqs.remove(req);
        }
        self.unpark(|parked| parked.conn == id);
        if !conn.reqs.is_empty() {
            // Whoever relied on these requests' help has to bring its bytes itself again.
            for req in self.reqs.values_mut() {
                req.covered_from = u64::MAX;
            }
            self.rebuild();
        }
        if order {
            self.out.push_back(Output::Close { conn: id });
        }
    }

    pub(super) fn forget_req(&mut self, id: ReqId) {
        let Some(req) = self.reqs.remove(&id) else { return };
        self.unpark(|parked| parked.req == id);
        if let Some(conn) = self.conns.get_mut(&req.conn) {
            conn.reqs.retain(|other| *other != id);
        }
    }

    /// Ends one answer: on HTTP/2 by a reset, on HTTP/1.1 only with its connection.
    pub(super) fn cancel(&mut self, id: ReqId) {
        let Some(req) = self.reqs.get(&id) else { return };
        let conn = req.conn;
        self.out.push_back(Output::Cancel { req: id });
        match self.conns.get(&conn).and_then(|conn| conn.protocol) {
            Some(Protocol::Http2) => {
                self.forget_req(id);
                self.rebuild();
            }
            _ => self.drop_conn(conn, true),
        }
    }

    /// Bytes that a connection's requests still bring.
    pub(super) fn ahead(&self, conn: &Conn) -> DataSize {
        conn.reqs.iter().filter_map(|id| self.reqs.get(id)).map(|req| req.remaining().len()).sum()
    }

    /// How many of a connection's requests have no head yet.
    pub(super) fn unanswered(&self, conn: &Conn) -> usize {
        conn.reqs.iter().filter_map(|id| self.reqs.get(id)).filter(|req| !req.accepted).count()
    }

    pub(super) fn rebuild(&mut self) {
        self.ledger.rebuild(self.reqs.values().filter(|req| !req.released).map(Req::remaining));
    }

    /// Sends a request: the one gate. A span is cut to what its link may still carry, and to what its server serves at a
    /// time; nothing is sent for no bytes. Tells whether it was sent.
    pub(super) fn send(&mut self, conn_id: ConnId, ask: Ask) -> bool {
        let Some(link) = self.conns.get(&conn_id).map(|conn| conn.link) else { return false };
        let most = self.conns.get(&conn_id).map_or(DataSize::MAX, |conn| self.largest(conn));
        let ask = match ask {
            Ask::Span(span) => Ask::Span(Span::at(span.start, span.len().min(self.budget_left(link)).min(most))),
            // An end of its own, where the server serves no more at a time.
            Ask::From(start) if most < DataSize::MAX => {
                let total = self.ledger.total().map_or(u64::MAX, DataSize::bytes);
                Ask::Span(Span::at(start, most).intersect(Span::new(0, total)))
            }
            open => open,
        };
        if matches!(ask, Ask::Span(span) if span.is_empty()) || !self.has_request(link) {
            return false;
        }
        let total = self.ledger.total().map_or(u64::MAX, DataSize::bytes);
        let span = match ask {
            Ask::Whole => Span::new(0, total),
            Ask::From(start) => Span::new(start, total),
            Ask::Span(span) => span,
        };
        let if_range = self.conns.get(&conn_id).and_then(|conn| self.condition(conn.root)).cloned();
        if let Some(link) = self.links.get_mut(&link) {
            link.allowance.requests.take(self.now);
        }
        let Some(conn) = self.conns.get_mut(&conn_id) else { return false };
        let id = ReqId(self.next_req);
        self.next_req += 1;
        if conn.reqs.is_empty() {
            conn.last = self.now;
            conn.on_next(self.now, self.now);
        }
        let piped = !conn.reqs.is_empty();
        conn.reqs.push_back(id);
        let if_range = match ask {
            Ask::Whole => None,
            _ => if_range,
        };
        let req = Req {
            conn: conn_id,
            ask,
            sent: self.now,
            span,
            cursor: span.start,
            accepted: false,
            condition: if_range.clone(),
            piped,
            covered_from: u64::MAX,
            released: false,
        };
        self.reqs.insert(id, req);
        self.ledger.claim(span);
        self.out.push_back(Output::Request { req: id, conn: conn_id, range: ask, if_range });
        true
    }

    /// Whether a link may send a request now; if not, [`Fetch::await_allowance`] sees to it that the machine is woken.
    pub(super) fn has_request(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.allowance.requests.has(self.now))
    }

    /// A link that has used up its requests may send the next one a moment later.
    pub(super) fn await_allowance(&mut self) {
        let spent =
            self.links.values().filter(|link| !link.conns.is_empty() && !link.allowance.requests.has(self.now));
        if let Some(next) = spent.map(|link| link.allowance.requests.next(self.now)).min() {
            self.wake_at(next, Wake::Retry);
        }
    }

    /// Orders a connection, unless too many have stood on this link lately for what they brought.
    pub(super) fn connect(&mut self, link_id: LinkId) {
        let Some(link) = self.links.get_mut(&link_id) else { return };
        if !link.allowance.connections.has(self.now) {
            let next = link.allowance.connections.next(self.now);
            return self.wake_at(next, Wake::Retry);
        }
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        let edge = link.target();
        link.conns.push(id);
        self.conns.insert(id, Conn::new(link_id, link.root, edge, self.now));
        self.out.push_back(Output::Connect { conn: id, link: link_id, origin: edge.origin, at: edge.at });
    }
}
