//! External control: the interface through which an owning machine ([`crate::stream`]) chooses the ranges of a
//! download.
//!
//! The owner decides which link requests which range next, what is cancelled, which links are on standby, and where to
//! continue after a seek. It sees each link's connection slot, and which ranges are unrequested.
//!
//! 1. Connections, response heads, validators, bans, stalls, retries and the coverage map stay in [`Fetch`](super::Fetch). Only the
//!    choice of ranges moves to the owner. While the resource is not identified, and while a single response carries
//!    it, there is no choice, and the machine proceeds by itself.
//! 2. A command takes effect at once, and its outputs are in the queue. The owner ends its turn with a `tick`, so that
//!    connections are opened and deadlines set as after any input.
//! 3. Bytes that a request had not delivered when it ended, or when its link stalled, are free again. The owner finds
//!    them with [`Transfers::next_unrequested`] and may assign them to any link.
//! 4. A link on standby completes its requests, closes its connections and opens no new ones, so that its radio can
//!    sleep. Idle connections would be closed by their server after a minute or so, which would wake the radio.
//!
//! A trait with a callback for the next range was rejected. A decision for a stream takes several links and several
//! steps at once (shorten one request, share its remainder), and a callback would see the machine in the middle of its
//! turn.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::{Conn, INITIAL_RANGE, Req};
use super::link::{Link, LinkState};
use super::transfers::Transfers;
use super::{ByteRange, ConnId, ReqId, RequestRange, endgame, forecast, stall};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// A link's connection that can take a request now, with the figures that the owner needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnSlot {
    conn: ConnId,
    /// Bytes requested and not yet received.
    pub(crate) in_flight: DataSize,
    /// Expected rate.
    pub(crate) rate: Bitrate,
    /// Current RTT: how early a request must be sent.
    pub(crate) rtt: Duration,
    /// Minimum RTT.
    pub(crate) min_rtt: Duration,
    /// Bytes to request so that the connection does not idle.
    pub(crate) deficit: DataSize,
}

impl ConnSlot {
    /// Whether nothing is known of the connection: no rate, and nothing in flight.
    pub(crate) fn is_untried(&self) -> bool {
        self.rate.is_zero() && self.in_flight.is_zero()
    }
}

impl Transfers {
    /// The link's connection for the next request: the one with the fewest bytes in flight.
    pub(crate) fn conn_slot(&self, link: LinkId) -> Option<ConnSlot> {
        let can_request = |conn: &Conn| forecast::can_serve_ranges(self, conn) && self.quirks.may_pipeline(conn);
        let conns = self.conns.iter().filter(|(_, conn)| conn.link == link && can_request(conn));
        let (id, conn) = conns.min_by_key(|(_, conn)| self.in_flight(conn))?;
        Some(ConnSlot {
            conn: *id,
            in_flight: self.in_flight(conn),
            rate: conn.expected_rate(self.now),
            rtt: conn.rtt(),
            min_rtt: conn.min_rtt(),
            deficit: conn.target_in_flight(self.now) - self.in_flight(conn),
        })
    }

    /// Like [`conn_slot`](Self::conn_slot), with the conservative rate, which does not overestimate after losses.
    pub(crate) fn conservative_slot(&self, link: LinkId) -> Option<ConnSlot> {
        let slot = self.conn_slot(link)?;
        let rate = self.conns.get(&slot.conn)?.conservative_rate(self.now);
        if rate >= slot.rate {
            return Some(slot);
        }
        let target = (rate * (slot.rtt + slot.min_rtt)).max(INITIAL_RANGE);
        Some(ConnSlot { rate, deficit: slot.deficit.min(target - slot.in_flight), ..slot })
    }

    /// Requests the first run of unrequested bytes in `range`, as far as one request may cover it. Returns the
    /// requested range; none if there are no such bytes, or if the link has no token (limit on the rate of requests) or
    /// data budget left.
    pub(crate) fn request_on(&mut self, slot: ConnSlot, range: ByteRange) -> Option<ByteRange> {
        let free = self.next_unrequested(range)?;
        if !self.send_request(slot.conn, RequestRange::Bounded(free)) {
            return None;
        }
        self.reqs.values().next_back().map(|req| req.range)
    }

    /// Cancels all requests of a link. Over HTTP/1.1 that closes its connections (RFC 9112 §9.3). Pending responses of
    /// the portal check are kept.
    pub(crate) fn cancel_link(&mut self, link: LinkId) {
        let is_on_link = |req: &Req| self.conns.get(&req.conn).is_some_and(|conn| conn.link == link);
        let pending = &self.resource.pending;
        let reqs = self.reqs.iter().filter(|(id, req)| is_on_link(req) && !pending.holds_request(**id));
        let reqs: Vec<ReqId> = reqs.map(|(id, _)| *id).collect();
        for req in reqs {
            self.cancel_request(req);
        }
    }

    /// Puts a link on standby, or activates it. Returns whether that changes anything.
    pub(crate) fn set_standby(&mut self, link: LinkId, standby: bool) -> bool {
        self.has_owner() && self.links.set_standby(link, standby)
    }

    /// Whether the link is on standby, by the owner's command or because it is paused for this download.
    pub(crate) fn is_standby(&self, link: LinkId) -> bool {
        self.links.is_standby(link)
    }

    /// Duplicates the end of the request that is to deliver the byte at `offset`, if it is late; see `endgame`. Returns
    /// whether a request was sent.
    pub(crate) fn duplicate_if_late(&mut self, offset: u64, deadline: Duration) -> bool {
        endgame::duplicate_if_late(self, offset, deadline)
    }

    /// Closes idle connections of links on standby.
    pub(super) fn close_standby(&mut self) {
        // Requests on a paused link that has stalled might never complete; other links can deliver their bytes.
        let is_stalled = |id: LinkId| self.links.get(&id).is_some_and(Link::is_paused_and_stalled);
        let is_closable =
            |conn: &Conn| (conn.reqs.is_empty() && self.is_standby(conn.link)) || is_stalled(conn.link);
        let idle = self.conns.iter().filter(|(_, conn)| is_closable(conn));
        let idle: Vec<ConnId> = idle.map(|(id, _)| *id).collect();
        for id in idle {
            self.remove_conn(id, true);
        }
    }

    /// Whether a link is on standby that may still be needed. After the end of the download none is activated.
    pub(crate) fn has_standby_links(&self) -> bool {
        !self.is_finished() && self.links.has_standby()
    }

    /// Ends the standby of all links.
    pub(crate) fn activate_all(&mut self) {
        self.links.end_standby();
    }

    /// The reader continues at `offset` and needs nothing before it. Requests are cancelled, and bytes behind `offset`
    /// that had arrived are fetched again. A driver that still has those bytes does not report the seek.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.restart_timeout();
        if self.will_reach(offset) {
            self.start_at(offset);
            return stall::on_consumed(self, offset);
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            self.cancel_link(link);
        }
        self.start_at(offset);
        self.reader.seek(offset);
        self.rebuild_claims();
    }

    /// Whether a single response is running that has not yet passed this offset. It continues until it gets there,
    /// since another one would begin at zero.
    fn will_reach(&self, offset: u64) -> bool {
        let Some(id) = self.resource.single_response() else { return false };
        self.reqs.get(&id).is_some_and(|req| req.next_offset <= offset)
    }

    /// The first run of bytes in `range` that are neither received nor requested, within the reader's window.
    pub(crate) fn next_unrequested(&self, range: ByteRange) -> Option<ByteRange> {
        self.coverage.next_free(range.start, range.end.min(self.reader.window_end()))
    }

    /// Number of bytes of `range` that have not been received.
    pub(crate) fn missing_bytes(&self, range: ByteRange) -> DataSize {
        self.coverage.missing_bytes(range)
    }

    /// Everything before this offset has been received.
    pub(crate) fn in_order_end(&self) -> u64 {
        self.coverage.in_order_end()
    }

    /// Size of the resource in bytes, once it is known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.coverage.total().map(DataSize::bytes)
    }

    /// End of the bytes that may be requested: the end of the reader's window.
    pub(crate) fn request_limit(&self) -> u64 {
        self.reader.window_end()
    }

    /// The link of a request in progress.
    pub(crate) fn link_of(&self, req: ReqId) -> Option<LinkId> {
        self.request_link(req)
    }

    /// Whether a link is usable: not stalled, banned or down.
    pub(crate) fn is_up(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.state == LinkState::Up)
    }

    /// Whether share, standby, budget and cost allow the use of a link now.
    pub(crate) fn may_use(&self, link: LinkId) -> bool {
        self.is_link_allowed(link)
    }

    /// Links that are neither banned nor down.
    pub(crate) fn links_in_service(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().filter(|(_, link)| link.is_in_service()).map(|(id, _)| *id)
    }
}
