//! Commands to the driver, with the bookkeeping of each: connections and requests begin and end only here.
//!
//! 1. Sending a request claims its bytes in the coverage map. When the request or its connection ends early, the bytes
//!    that it has not delivered are free again.
//! 2. HTTP/2 cancels one response with a stream reset, HTTP/1.1 only by closing the connection (RFC 9112 §9.3).
//! 3. Requests and connections are limited by the link's [`token_bucket`](super::token_bucket).

use alloc::vec::Vec;

use super::conn::{Conn, Req};
use super::{ByteRange, ConnId, Fetch, Output, Protocol, ReqId, RequestRange, TimerReason};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    pub(super) fn close_all(&mut self) {
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in all {
            self.remove_conn(id, true);
        }
    }

    /// Forgets a connection and its requests; `notify_driver` makes the driver close it.
    pub(super) fn remove_conn(&mut self, id: ConnId, notify_driver: bool) {
        let Some(conn) = self.conns.remove(&id) else { return };
        if let Some(link) = self.links.get_mut(&conn.link) {
            link.conns.retain(|other| *other != id);
        }
        for req in &conn.reqs {
            self.reqs.remove(req);
        }
        self.remove_pending(|pending| pending.conn == id);
        if !conn.reqs.is_empty() {
            // Other requests may have counted on duplicates from this connection. They are responsible for all of their
            // bytes again. The markers are reset for all requests, because they do not name the duplicating request.
            for req in self.reqs.values_mut() {
                req.duplicated_from = u64::MAX;
            }
            self.rebuild_claims();
        }
        if notify_driver {
            self.outputs.push_back(Output::Close { conn: id });
        }
    }

    pub(super) fn remove_req(&mut self, id: ReqId) {
        let Some(req) = self.reqs.remove(&id) else { return };
        self.remove_pending(|pending| pending.req == id);
        if let Some(conn) = self.conns.get_mut(&req.conn) {
            conn.reqs.retain(|other| *other != id);
        }
    }

    /// Cancels one response: on HTTP/2 by a stream reset, on HTTP/1.1 by closing the connection.
    pub(super) fn cancel_request(&mut self, id: ReqId) {
        let Some(req) = self.reqs.get(&id) else { return };
        let conn = req.conn;
        self.outputs.push_back(Output::Cancel { req: id });
        match self.conns.get(&conn).and_then(|conn| conn.protocol) {
            Some(Protocol::Http2) => {
                self.remove_req(id);
                self.rebuild_claims();
            }
            _ => self.remove_conn(conn, true),
        }
    }

    /// Bytes that the connection's requests have still to deliver.
    pub(super) fn in_flight(&self, conn: &Conn) -> DataSize {
        conn.reqs.iter().filter_map(|id| self.reqs.get(id)).map(|req| req.remaining().len()).sum()
    }

    /// Number of the connection's requests without an accepted head.
    pub(super) fn unanswered(&self, conn: &Conn) -> usize {
        conn.reqs.iter().filter_map(|id| self.reqs.get(id)).filter(|req| !req.is_accepted).count()
    }

    pub(super) fn rebuild_claims(&mut self) {
        self.coverage.rebuild_claims(self.reqs.values().filter(|req| !req.is_released).map(Req::remaining));
    }

    /// Sends a request; every request passes through here. A range is limited to the link's budget and to the size that
    /// the server serves per request. Returns false if nothing was sent: the range is empty, or the link has no token.
    pub(super) fn send_request(&mut self, conn_id: ConnId, requested: RequestRange) -> bool {
        let Some(link) = self.conns.get(&conn_id).map(|conn| conn.link) else { return false };
        let max = self.conns.get(&conn_id).map_or(DataSize::MAX, |conn| self.max_request(conn));
        let requested = match requested {
            RequestRange::Bounded(range) => {
                RequestRange::Bounded(ByteRange::at(range.start, range.len().min(self.budget_left(link)).min(max)))
            }
            // The server limits the size of a range: the open range gets an explicit end.
            RequestRange::From(start) if max < DataSize::MAX => {
                let total = self.coverage.total().map_or(u64::MAX, DataSize::bytes);
                RequestRange::Bounded(ByteRange::at(start, max).intersect(ByteRange::new(0, total)))
            }
            open => open,
        };
        if matches!(requested, RequestRange::Bounded(range) if range.is_empty()) || !self.may_send_request(link) {
            return false;
        }
        let total = self.coverage.total().map_or(u64::MAX, DataSize::bytes);
        let range = match requested {
            RequestRange::Full => ByteRange::new(0, total),
            RequestRange::From(start) => ByteRange::new(start, total),
            RequestRange::Bounded(range) => range,
        };
        let if_range = self.conns.get(&conn_id).and_then(|conn| self.if_range_for(conn.mirror)).cloned();
        if let Some(link) = self.links.get_mut(&link) {
            link.token_buckets.requests.take(self.now);
        }
        let Some(conn) = self.conns.get_mut(&conn_id) else { return false };
        let id = ReqId(self.next_req);
        self.next_req += 1;
        if conn.reqs.is_empty() {
            conn.last_activity = self.now;
            conn.start_server_delay(self.now, self.now);
        }
        let is_pipelined = !conn.reqs.is_empty();
        conn.reqs.push_back(id);
        let if_range = match requested {
            RequestRange::Full => None,
            _ => if_range,
        };
        let req = Req {
            conn: conn_id,
            range_requested: requested,
            sent_at: self.now,
            range,
            next_offset: range.start,
            is_accepted: false,
            if_range: if_range.clone(),
            is_pipelined,
            duplicated_from: u64::MAX,
            is_released: false,
        };
        self.reqs.insert(id, req);
        self.coverage.claim(range);
        self.outputs.push_back(Output::Request { req: id, conn: conn_id, range: requested, if_range });
        true
    }

    /// Whether the link has a token for a request; if not, [`Fetch::set_token_timer`] sets the timer for the next one.
    pub(super) fn may_send_request(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.token_buckets.requests.has_token(self.now))
    }

    /// Sets the timer for the next token of links that have connections and no token.
    pub(super) fn set_token_timer(&mut self) {
        let empty = self
            .links
            .values()
            .filter(|link| !link.conns.is_empty() && !link.token_buckets.requests.has_token(self.now));
        if let Some(next) = empty.map(|link| link.token_buckets.requests.next_token_at(self.now)).min() {
            self.set_timer(next, TimerReason::Retry);
        }
    }

    /// Opens a connection. Without a token the timer is set instead: the link opened too many for the bytes they
    /// delivered.
    pub(super) fn open_conn(&mut self, link_id: LinkId) {
        let Some(link) = self.links.get_mut(&link_id) else { return };
        if !link.token_buckets.connections.has_token(self.now) {
            let next = link.token_buckets.connections.next_token_at(self.now);
            return self.set_timer(next, TimerReason::Retry);
        }
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        let node = link.target();
        link.conns.push(id);
        self.conns.insert(id, Conn::new(link_id, link.mirror, node, self.now));
        self.outputs.push_back(Output::Connect { conn: id, link: link_id, url: node.url, address: node.address });
    }
}
