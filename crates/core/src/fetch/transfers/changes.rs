//! What happens to connections and requests after they were opened and sent: responses, data, changed ranges and
//! stalls. Each method keeps the claims of the coverage map equal to the ranges of the requests, unless it says
//! otherwise.

use core::net::IpAddr;
use core::time::Duration;

use super::Transfers;
use crate::fetch::{
    ByteRange, ConnId, Output, PathSample, Protocol, RangeSet, ReqId, RequestRange, ResponseHead, UrlId, Validator,
};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// A response head's request, with the facts that the rules for responses need.
pub(in crate::fetch) struct AnsweredRequest {
    pub(in crate::fetch) link: LinkId,
    pub(in crate::fetch) mirror: UrlId,
    pub(in crate::fetch) range_requested: RequestRange,
    /// Responses on the connection, including this one.
    pub(in crate::fetch) responses: u32,
    /// The server will close the connection after this response to a range request; it did not say so before.
    pub(in crate::fetch) announces_end: bool,
    pub(in crate::fetch) is_pipelined: bool,
}

impl Transfers {
    /// Advances the time. It never goes back.
    pub(in crate::fetch) fn advance_time(&mut self, now: Instant) {
        let now = self.now.max(now);
        self.now = now;
    }

    /// A connection was established. Returns false if it was closed meanwhile.
    pub(in crate::fetch) fn on_connected(
        &mut self,
        id: ConnId,
        protocol: Protocol,
        handshake: Duration,
        peer: Option<IpAddr>,
    ) -> bool {
        let Some(conn) = self.conns.write().get_mut(&id) else { return false };
        conn.protocol = Some(protocol);
        conn.handshake_rtt = handshake;
        conn.cdn_node.address = peer.or(conn.cdn_node.address);
        conn.last_activity = self.now;
        if let Some(link) = self.links.get_mut(&conn.link) {
            link.stats.has_connected = true;
            link.stats.min_handshake_rtt =
                Some(link.stats.min_handshake_rtt.map_or(handshake, |least| least.min(handshake)));
            link.token_buckets.connections.take(self.now);
        }
        true
    }

    /// The kernel's TCP statistics of a connection were read.
    pub(in crate::fetch) fn on_sample(&mut self, id: ConnId, path: PathSample) {
        if let Some(conn) = self.conns.write().get_mut(&id) {
            conn.on_sample(self.now, path);
        }
    }

    /// A response head has arrived: ends the server delay of its connection. None: its request was cancelled.
    pub(in crate::fetch) fn on_head(&mut self, id: ReqId, head: &ResponseHead) -> Option<AnsweredRequest> {
        let req = self.reqs.get(&id)?;
        let conn = self.conns.write().get_mut(&req.conn)?;
        conn.last_activity = self.now;
        if let Some(link) = self.links.get_mut(&conn.link) {
            conn.end_server_delay(self.now, &mut link.stats.server_delays);
        }
        let announces_end = head.closes_connection && head.status == 206 && !conn.is_draining;
        conn.is_draining |= head.closes_connection;
        Some(AnsweredRequest {
            link: conn.link,
            mirror: conn.mirror,
            range_requested: req.range_requested,
            responses: conn.responses + 1,
            announces_end,
            is_pipelined: req.is_pipelined,
        })
    }

    /// A response is accepted and delivers this range. The caller renews the claims if the range has changed.
    pub(in crate::fetch) fn accept_response(&mut self, id: ReqId, range: ByteRange) {
        if let Some(req) = self.reqs.write().get_mut(&id) {
            req.is_accepted = true;
            req.range = range;
            req.next_offset = range.start;
        }
    }

    /// Body bytes have arrived. Returns their range and connection. None: their request was cancelled, so they are waste.
    pub(in crate::fetch) fn on_data(&mut self, id: ReqId, len: DataSize) -> Option<(ByteRange, ConnId)> {
        let Some(req) = self.reqs.write().get_mut(&id) else {
            self.coverage.write().add_wasted(len);
            return None;
        };
        let range = ByteRange::at(req.next_offset, len);
        req.next_offset = range.end;
        let id = req.conn;
        self.restart_timeout();
        self.coverage.write().add_received(range);
        let conn = self.conns.write().get_mut(&id)?;
        conn.last_activity = self.now;
        conn.rate_window.on_bytes(conn.transfer_clock(self.now), len);
        Some((range, id))
    }

    /// A response is complete, and its request is removed. The server may start the next response of the connection.
    /// Returns its link. None: the connection was closed.
    pub(in crate::fetch) fn on_response_complete(&mut self, id: ConnId) -> Option<LinkId> {
        let next = self.conns.get(&id).and_then(|conn| conn.reqs.front()).and_then(|id| self.reqs.get(id));
        let next = next.filter(|next| !next.is_accepted).map(|next| next.sent_at);
        let conn = self.conns.write().get_mut(&id)?;
        conn.responses += 1;
        if let Some(sent) = next.filter(|_| conn.protocol == Some(Protocol::Http1)) {
            conn.start_server_delay(self.now, sent);
        }
        let link = conn.link;
        self.close_if_drained(id);
        Some(link)
    }

    /// The connection gets no more requests: the server accepts none, or it uses an old redirect target.
    pub(in crate::fetch) fn mark_draining(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.write().get_mut(&id) {
            conn.is_draining = true;
        }
    }

    /// Closes a connection that gets no more requests and has none.
    pub(in crate::fetch) fn close_if_drained(&mut self, id: ConnId) {
        if self.conns.get(&id).is_some_and(|conn| conn.is_draining && conn.reqs.is_empty()) {
            self.remove_conn(id, true);
        }
    }

    /// Changes the end of the range that a request is to deliver.
    pub(in crate::fetch) fn set_request_end(&mut self, id: ReqId, end: u64) {
        if let Some(req) = self.reqs.write().get_mut(&id) {
            req.range.end = end;
        }
        self.rebuild_claims();
    }

    /// The request that was sent last, of those in progress.
    pub(in crate::fetch) fn newest_request(&self) -> Option<ReqId> {
        self.reqs.keys().next_back().copied()
    }

    /// Requests the end of a slow request over another connection as well. The request's exclusive range becomes
    /// shorter.
    pub(in crate::fetch) fn duplicate(&mut self, slow: ReqId, range: ByteRange, backup: ConnId) {
        if let Some(req) = self.reqs.write().get_mut(&slow) {
            req.duplicated_from = range.start;
        }
        self.send_request(backup, RequestRange::Bounded(range));
    }

    /// Frees the bytes of a stalled link's requests for other links. Returns whether there were any.
    pub(in crate::fetch) fn release_requests(&mut self, link: LinkId) -> bool {
        let mut changed = false;
        for req in self.reqs.write().values_mut() {
            let is_on_link = self.conns.get(&req.conn).is_some_and(|conn| conn.link == link);
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

    /// Takes the released bytes of a connection back. Returns whether there were any.
    pub(in crate::fetch) fn reclaim_requests(&mut self, conn: ConnId) -> bool {
        let mut changed = false;
        for req in self.reqs.write().values_mut().filter(|req| req.conn == conn) {
            changed |= core::mem::take(&mut req.is_released);
        }
        if changed {
            self.rebuild_claims();
        }
        changed
    }

    /// The reader has consumed the bytes before `end`. Connections that waited for it start a new stall timeout.
    pub(in crate::fetch) fn on_consumed(&mut self, end: u64, waiting: &[ConnId]) {
        self.reader.on_consumed(end);
        self.restart_timeout();
        for id in waiting {
            if let Some(conn) = self.conns.write().get_mut(id) {
                conn.last_activity = self.now;
            }
        }
    }

    /// Restarts the timeout after which a download without data fails.
    pub(in crate::fetch) fn restart_timeout(&mut self) {
        *self.last_data.write() = self.now;
    }

    /// Sets the size, and leaves the requests and the claims as they are.
    pub(in crate::fetch) fn record_total(&mut self, total: DataSize) {
        self.coverage.write().set_total(total);
    }

    /// These received bytes were wrong and are missing again.
    pub(in crate::fetch) fn invalidate(&mut self, range: ByteRange) {
        self.coverage.write().invalidate(range);
        self.rebuild_claims();
    }

    /// Keeps only these received bytes.
    pub(in crate::fetch) fn retain_received(&mut self, retained: &RangeSet) {
        self.coverage.write().retain_only(retained);
        self.rebuild_claims();
    }

    /// Forgets all received bytes and the size: the resource is another file now.
    pub(in crate::fetch) fn discard_received(&mut self) {
        self.coverage.write().restart();
    }

    /// Continues at `offset` after a seek. The caller renews the claims if it cancels requests.
    pub(in crate::fetch) fn start_at(&mut self, offset: u64) {
        self.coverage.write().start_at(offset);
    }

    /// Whether an owning machine exists, also while it does not choose the ranges.
    pub(in crate::fetch) const fn has_owner(&self) -> bool {
        self.external_control.is_some()
    }

    /// From now on an owning machine chooses the ranges.
    pub(in crate::fetch) const fn add_owner(&mut self) {
        self.external_control = Some(true);
    }

    /// Sets whether the owner chooses the ranges. No effect on a download without external control.
    pub(crate) const fn set_external_control(&mut self, active: bool) {
        if let Some(is_active) = &mut self.external_control {
            *is_active = active;
        }
    }

    /// The resource is identified: reports its size and version.
    pub(in crate::fetch) fn report_identified(&mut self, total: Option<DataSize>, validator: Option<Validator>) {
        self.outputs.push_back(Output::Identified { total, validator });
    }

    /// Makes the driver store the body of a response from `offset` on.
    pub(in crate::fetch) fn accept_body(
        &mut self,
        id: ReqId,
        offset: u64,
        len: Option<DataSize>,
        is_other_mirror: bool,
    ) {
        self.outputs.push_back(Output::AcceptBody { req: id, offset, len, is_other_mirror });
    }

    /// Makes the driver discard the stored bytes.
    pub(in crate::fetch) fn restart_storage(&mut self) {
        self.outputs.push_back(Output::Restart);
    }

    /// Makes the driver compare these bytes with their digest.
    pub(in crate::fetch) fn verify(&mut self, range: ByteRange) {
        self.outputs.push_back(Output::Verify { range });
    }

    /// The next command or message for the driver.
    pub(in crate::fetch) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
}
