//! Links, connections and requests of a download, and the bytes that the requests cover.
//!
//! Connections and requests begin and end only here, so that each command to the driver and its bookkeeping stay
//! together. The rules that decide which of them are needed are in other modules.
//!
//! The fields that these rules concern can be read everywhere and changed only here ([`ReadOnly`]); [`changes`] has the
//! changes after a request was sent.
//!
//! 1. Sending a request claims its bytes in the coverage map. When the request or its connection ends early, the bytes
//!    that it has not delivered are free again.
//! 2. HTTP/2 cancels one response with a stream reset, HTTP/1.1 only by closing the connection (RFC 9112 §9.3).
//! 3. Requests and connections are limited by the link's [`token_bucket`](super::token_bucket).

mod changes;
mod read_only;

pub(super) use changes::AnsweredRequest;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use self::read_only::ReadOnly;
use super::conn::{Conn, INITIAL_RANGE, Req};
use super::coverage::Coverage;
use super::link::Link;
use super::links::Links;
use super::reader::Reader;
use super::resource::{Phase, Resource};
use super::server_quirks::QuirksByMirror;
use super::{ByteRange, Config, ConnId, Notice, Output, Protocol, ReqId, RequestRange, TimerReason};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Instant};

/// The parts of a download that its rules work on; see the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Transfers {
    pub(super) config: Config,
    pub(super) now: Instant,
    pub(super) links: Links,
    pub(super) conns: ReadOnly<BTreeMap<ConnId, Conn>>,
    pub(super) reqs: ReadOnly<BTreeMap<ReqId, Req>>,
    pub(super) coverage: ReadOnly<Coverage>,
    pub(super) resource: Resource,
    /// Limits and defects that each mirror's servers have shown.
    pub(super) quirks: QuirksByMirror,
    pub(super) reader: Reader,
    /// When body bytes last arrived on any link, or when the timeout was last restarted.
    pub(super) last_data: ReadOnly<Instant>,
    /// Whether an owning machine (`stream`) chooses the ranges; none: there is no owner.
    external_control: Option<bool>,
    next_conn: u32,
    next_req: u32,
    timer: Option<(Instant, TimerReason)>,
    outputs: VecDeque<Output>,
}

impl Transfers {
    pub(super) fn new(config: Config) -> Self {
        Self {
            now: Instant::ZERO,
            links: Links::new(config.metered),
            conns: ReadOnly::new(BTreeMap::new()),
            reqs: ReadOnly::new(BTreeMap::new()),
            coverage: ReadOnly::new(Coverage::new(config.resume.as_ref())),
            resource: Resource::new(config.resume.as_ref()),
            quirks: QuirksByMirror::default(),
            reader: Reader::new(config.reader_window),
            last_data: ReadOnly::new(Instant::ZERO),
            external_control: None,
            next_conn: 0,
            next_req: 0,
            timer: None,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// Delays the next connection or initial request of a link.
    pub(super) fn delay_link(&mut self, id: LinkId, delay: Duration) {
        if let Some(link) = self.links.get_mut(&id) {
            link.next_attempt = link.next_attempt.max(self.now + delay);
        }
    }

    /// The link that carries a request.
    pub(super) fn request_link(&self, id: ReqId) -> Option<LinkId> {
        self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
    }

    /// Closes all connections except the one of this request.
    pub(super) fn close_other_conns(&mut self, id: ReqId) {
        let keep = self.reqs.get(&id).map(|req| req.conn);
        let others: Vec<ConnId> = self.conns.keys().copied().filter(|other| Some(*other) != keep).collect();
        for other in others {
            self.remove_conn(other, true);
        }
    }

    /// Limit for bytes that are transferred without use: 0.8 % of the file, one bandwidth-delay product of all connections,
    /// or 64 KiB, whichever is most.
    pub(super) fn max_waste(&self) -> DataSize {
        let total = self.coverage.total().unwrap_or_default();
        let pipes: DataSize = self.conns.values().map(|conn| conn.expected_rate(self.now) * conn.min_rtt()).sum();
        (total / 125).max(pipes).max(INITIAL_RANGE)
    }

    /// Whether the download is done or has failed.
    pub(super) fn is_finished(&self) -> bool {
        self.resource.phase == Phase::Finished
    }

    /// Ends the download with this result, if it has not ended before.
    pub(super) fn finish(&mut self, result: Output) {
        if !self.is_finished() {
            self.resource.phase = Phase::Finished;
            self.close_all();
            self.outputs.push_back(result);
        }
    }

    /// Whether this size differs from the size that the file must have.
    pub(super) fn is_unexpected_size(&self, total: DataSize) -> bool {
        self.config.expected_size.is_some_and(|expected| expected != total)
    }

    /// Closes all connections.
    pub(super) fn close_all(&mut self) {
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in all {
            self.remove_conn(id, true);
        }
    }

    /// Forgets a connection and its requests; `notify_driver` makes the driver close it.
    pub(super) fn remove_conn(&mut self, id: ConnId, notify_driver: bool) {
        let Some(conn) = self.conns.write().remove(&id) else { return };
        if let Some(link) = self.links.get_mut(&conn.link) {
            link.conns.retain(|other| *other != id);
        }
        for req in &conn.reqs {
            self.reqs.write().remove(req);
        }
        self.resource.pending.remove_lost(|pending| pending.conn == id);
        if !conn.reqs.is_empty() {
            // Other requests may have counted on duplicates from this connection. They are responsible for all of their
            // bytes again. The markers are reset for all requests, because they do not name the duplicating request.
            for req in self.reqs.write().values_mut() {
                req.duplicated_from = u64::MAX;
            }
            self.rebuild_claims();
        }
        if notify_driver {
            self.outputs.push_back(Output::Close { conn: id });
        }
    }

    pub(super) fn remove_req(&mut self, id: ReqId) {
        let Some(req) = self.reqs.write().remove(&id) else { return };
        self.resource.pending.remove_lost(|pending| pending.req == id);
        if let Some(conn) = self.conns.write().get_mut(&req.conn) {
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
        self.coverage.write().rebuild_claims(self.reqs.values().filter(|req| !req.is_released).map(Req::remaining));
    }

    /// Sends a request; every request passes through here. A range is limited to the link's budget and to the size that
    /// the server serves per request. Returns false if nothing was sent: the range is empty, or the link has no token.
    pub(super) fn send_request(&mut self, conn_id: ConnId, requested: RequestRange) -> bool {
        let Some(link) = self.conns.get(&conn_id).map(|conn| conn.link) else { return false };
        let max = self.conns.get(&conn_id).map_or(DataSize::MAX, |conn| self.quirks.max_request(conn));
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
        let if_range =
            self.conns.get(&conn_id).and_then(|conn| self.resource.validators.for_if_range(conn.mirror)).cloned();
        if let Some(link) = self.links.get_mut(&link) {
            link.token_buckets.requests.take(self.now);
        }
        let Some(conn) = self.conns.write().get_mut(&conn_id) else { return false };
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
        self.reqs.write().insert(id, req);
        self.coverage.write().claim(range);
        self.outputs.push_back(Output::Request { req: id, conn: conn_id, range: requested, if_range });
        true
    }

    /// Whether the link has a token for a request; if not, [`Transfers::set_token_timer`] sets the timer for the next one.
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
        self.conns.write().insert(id, Conn::new(link_id, link.mirror, node, self.now));
        self.outputs.push_back(Output::Connect { conn: id, link: link_id, url: node.url, address: node.address });
    }

    /// Sends a message for the user.
    pub(super) fn notice(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Notice(notice));
    }

    /// Sets the deadline to this time, unless an earlier one is set.
    pub(super) fn set_timer(&mut self, at: Instant, reason: TimerReason) {
        let at = at.max(self.now + MIN_TIMER);
        if self.timer.is_none_or(|(earlier, _)| at < earlier) {
            self.timer = Some((at, reason));
        }
    }

    /// When the machine wants to be called, and why.
    pub(super) fn deadline(&self) -> Option<(Instant, TimerReason)> {
        self.timer
    }

    /// Forgets the deadline: every rule sets its own again.
    pub(super) fn clear_timer(&mut self) {
        self.timer = None;
    }

    /// Whether budget, standby and cost allow the use of a link now.
    pub(super) fn is_link_allowed(&self, id: LinkId) -> bool {
        self.links.is_allowed(id, self.now)
    }

    /// Whether a link may be used now: in service, and allowed by share, cost and budget.
    pub(super) fn is_usable(&self, id: LinkId) -> bool {
        self.links.is_usable(id, self.now)
    }

    /// Bytes that may still be requested on a link: budget minus received bytes and bytes in flight.
    pub(super) fn budget_left(&self, id: LinkId) -> DataSize {
        let Some(link) = self.links.get(&id) else { return DataSize::ZERO };
        link.budget_left(self.conns_of(link).map(|conn| self.in_flight(conn)).sum())
    }

    /// The link's connections, in the order in which they were opened.
    pub(super) fn conns_of<'a>(&'a self, link: &'a Link) -> impl Iterator<Item = &'a Conn> {
        link.conns.iter().filter_map(|id| self.conns.get(id))
    }

    /// Rate of received bytes over the last `window`.
    pub(super) fn link_rate(&self, link: &Link, window: Duration) -> Bitrate {
        link.stats.rate_window.rate(self.now, window)
    }

    /// Whether the owner chooses the ranges at present.
    pub(crate) fn is_externally_controlled(&self) -> bool {
        self.external_control == Some(true) && self.resource.phase == Phase::Ranges
    }

    /// Retires the newest `count` connections of a link: they get no more requests and are closed when they are empty.
    pub(super) fn retire_conns(&mut self, id: LinkId, count: usize) {
        let Some(link) = self.links.get(&id) else { return };
        let newest: Vec<ConnId> = link.conns.iter().rev().take(count).copied().collect();
        for id in newest {
            match self.conns.write().get_mut(&id) {
                Some(conn) if conn.reqs.is_empty() => self.remove_conn(id, true),
                Some(conn) => conn.is_draining = true,
                None => {}
            }
        }
    }

    /// Sets the size: open-ended requests get their end, and requests behind the end become empty.
    pub(super) fn set_total(&mut self, total: DataSize) {
        self.coverage.write().set_total(total);
        for req in self.reqs.write().values_mut() {
            req.range.end = req.range.end.min(total.bytes()).max(req.next_offset);
        }
        self.rebuild_claims();
    }

    /// Whether the resource has been delivered by the mirror, so that a refusal may be temporary.
    pub(super) fn may_deliver_again(&self) -> bool {
        match self.resource.phase {
            Phase::Unknown => false,
            Phase::Ranges | Phase::Finished => true,
            Phase::SingleResponse { .. } => self.links.values().any(Link::has_delivered_from_mirror),
        }
    }

    /// Whether everything within the reader's window has been received and nothing is in flight. Then no data is
    /// expected, for as long as the reader does not proceed.
    pub(super) fn is_window_full(&self) -> bool {
        self.resource.phase == Phase::Ranges
            && self.reqs.is_empty()
            && self.coverage.next_free(0, self.reader.window_end()).is_none()
    }
}

/// Smallest delay of a timer: a deadline always lies in the future (rule 3 of the machine contract).
const MIN_TIMER: Duration = Duration::from_millis(1);
