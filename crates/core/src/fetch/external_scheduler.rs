//! A download whose spans somebody else chooses: the seam on which [`crate::stream`] stands.
//!
//! In: the owner's orders: which link asks for which span next, what is taken back, which links rest, where to read on.
//! Out: what the owner needs to choose: each link's seat, and who brings which bytes.
//!
//! 1. Connections, heads, validators, bans, silence, retries and the books stay here; only the choice of spans moves
//!    out. Until the resource is known, and when everything comes as one answer, there is nothing to choose, and the
//!    machine goes on by itself.
//! 2. An order is carried out at once, its outputs lie in the queue; the owner ends its turn with a `tick`, so that
//!    connections are ordered and deadlines set as after any input.
//! 3. What a request still owed when it or its connection ended, or when its link fell silent, is free; the owner finds
//!    it with [`Fetch::unasked`] and gives it to whom it likes.
//! 4. A link that rests finishes what it has, closes its connections and gets no new one, so that its radio may sleep:
//!    idle ones are closed by their server after a minute or so, and that would wake it.
//!
//! A trait that the machine calls for the next span was not used: what a stream decides takes several links and several
//! steps at once (cut this one, share its rest), and a callback sees a machine in the middle of its turn.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::conn::{Conn, INITIAL_RANGE};
use super::links::{Link, LinkState};
use super::{ByteRange, Config, ConnId, Fetch, LinkShare, Phase, ReqId, RequestRange};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// What the owner has ordered that lasts.
#[derive(Clone, Debug, Default)]
pub(super) struct ExternalControl {
    /// The owner chooses the spans, once there is something to choose.
    is_active: bool,
    standby: BTreeSet<LinkId>,
}

/// A link as its owner sees it: one connection on which it may ask now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnSlot {
    conn: ConnId,
    /// Bytes that are on their way on it.
    pub(crate) in_flight: DataSize,
    /// How fast they come.
    pub(crate) rate: Bitrate,
    /// How long before it is needed a request must leave.
    pub(crate) rtt: Duration,
    /// The same on an empty path.
    pub(crate) min_rtt: Duration,
    /// How many more bytes should be on their way, so that its pipe does not run dry.
    pub(crate) deficit: DataSize,
}

impl ConnSlot {
    /// Nothing was asked for on it.
    pub(crate) fn is_untried(&self) -> bool {
        self.rate.is_zero() && self.in_flight.is_zero()
    }
}

impl Fetch {
    /// A download that asks for nothing by itself once the resource is known.
    pub(crate) fn with_external_control(config: Config) -> Self {
        let mut fetch = Self::new(config);
        fetch.external_control = Some(ExternalControl { is_active: true, ..ExternalControl::default() });
        fetch
    }

    /// Its owner chooses the spans from now on, or leaves that to the download.
    pub(crate) fn set_external_control(&mut self, active: bool) {
        if let Some(steering) = &mut self.external_control {
            steering.is_active = active;
        }
    }

    /// Whether its owner chooses the spans at present.
    pub(crate) fn is_externally_controlled(&self) -> bool {
        self.external_control.as_ref().is_some_and(|steering| steering.is_active) && self.phase == Phase::Ranges
    }

    /// Whether everything is there that the reader lets come: silence then says nothing, however long it lasts.
    pub(super) fn is_window_full(&self) -> bool {
        self.phase == Phase::Ranges
            && self.reqs.is_empty()
            && self.coverage.next_free(0, self.window_end()).is_none()
    }

    /// The connection on which a link may ask now: the one with the least on its way.
    pub(crate) fn conn_slot(&self, link: LinkId) -> Option<ConnSlot> {
        let can_request = |conn: &super::conn::Conn| self.can_serve_ranges(conn) && self.may_pipeline(conn);
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

    /// The same, with no more trust in a connection than it has earned.
    pub(crate) fn conservative_slot(&self, link: LinkId) -> Option<ConnSlot> {
        let slot = self.conn_slot(link)?;
        let rate = self.conns.get(&slot.conn)?.conservative_rate(self.now);
        if rate >= slot.rate {
            return Some(slot);
        }
        let target = (rate * (slot.rtt + slot.min_rtt)).max(INITIAL_RANGE);
        Some(ConnSlot { rate, deficit: slot.deficit.min(target - slot.in_flight), ..slot })
    }

    /// Asks for the bytes of `span` that nobody brings, as far as they lie together and one request may bring them. Gives
    /// what was asked for. None: there are no such bytes, or the link may not carry them.
    pub(crate) fn request_on(&mut self, slot: ConnSlot, range: ByteRange) -> Option<ByteRange> {
        let free = self.next_unrequested(range)?;
        if !self.send_request(slot.conn, RequestRange::Bounded(free)) {
            return None;
        }
        self.reqs.values().next_back().map(|req| req.range)
    }

    /// Takes back everything that a link was asked for: over HTTP/1.1 that ends its connections (RFC 9112 §9.3). What
    /// answers for the whole file and waits for another link's opinion still does.
    pub(crate) fn cancel_link(&mut self, link: LinkId) {
        let is_on_link = |req: &super::Req| self.conns.get(&req.conn).is_some_and(|conn| conn.link == link);
        let is_pending = |id: ReqId| self.pending_responses.iter().any(|pending| pending.req == id);
        let reqs = self.reqs.iter().filter(|(id, req)| is_on_link(req) && !is_pending(**id));
        let reqs: Vec<ReqId> = reqs.map(|(id, _)| *id).collect();
        for req in reqs {
            self.cancel_request(req);
        }
    }

    /// Lets a link rest, or wakes it. Tells whether that changes anything.
    pub(crate) fn set_standby(&mut self, link: LinkId, standby: bool) -> bool {
        let Some(steering) = &mut self.external_control else { return false };
        if standby { steering.standby.insert(link) } else { steering.standby.remove(&link) }
    }

    /// Closes what has nothing to do on links that rest.
    pub(super) fn close_standby(&mut self) {
        let is_standby = |link: LinkId| self.is_standby(link);
        // What a silent link was asked for would never end, and another link can bring it.
        let is_stalled = |id: LinkId| self.links.get(&id).is_some_and(Link::is_paused_and_stalled);
        let is_closable = |conn: &Conn| (conn.reqs.is_empty() && is_standby(conn.link)) || is_stalled(conn.link);
        let idle = self.conns.iter().filter(|(_, conn)| is_closable(conn));
        let idle: Vec<ConnId> = idle.map(|(id, _)| *id).collect();
        for id in idle {
            self.remove_conn(id, true);
        }
    }

    /// Whether any link was let rest that may be needed yet: when all is over, nobody is woken.
    pub(crate) fn has_standby_links(&self) -> bool {
        self.phase != Phase::Finished
            && self.external_control.as_ref().is_some_and(|steering| !steering.standby.is_empty())
    }

    /// Wakes all links.
    pub(crate) fn activate_all(&mut self) {
        if let Some(steering) = &mut self.external_control {
            steering.standby.clear();
        }
    }

    /// Whether it was let rest.
    pub(crate) fn is_standby(&self, link: LinkId) -> bool {
        let is_paused = self.links.get(&link).is_some_and(|link| link.share == LinkShare::Paused);
        is_paused || self.external_control.as_ref().is_some_and(|steering| steering.standby.contains(&link))
    }

    /// The reader goes on at `offset` and wants nothing of what lies before it. What is on its way is taken back, what
    /// had come beyond `offset` comes again: a driver that still has it does not tell of the jump.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.last_data = self.now;
        if self.will_reach(offset) {
            self.coverage.start_at(offset);
            return self.on_consumed(offset);
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            self.cancel_link(link);
        }
        self.coverage.start_at(offset);
        self.consumed = offset;
        self.rebuild_claims();
    }

    /// Whether everything comes as one answer that has not yet reached this offset: it goes on until it does, as another
    /// one would begin at zero.
    fn will_reach(&self, offset: u64) -> bool {
        let Phase::SingleResponse { req: Some(id) } = self.phase else { return false };
        self.reqs.get(&id).is_some_and(|req| req.next_offset <= offset)
    }

    /// The first bytes of `span` that are neither in their place nor on their way.
    pub(crate) fn next_unrequested(&self, range: ByteRange) -> Option<ByteRange> {
        self.coverage.next_free(range.start, range.end.min(self.window_end()))
    }

    /// How many bytes of `span` are not in their place.
    pub(crate) fn missing_bytes(&self, range: ByteRange) -> DataSize {
        self.coverage.missing_bytes(range)
    }

    /// Everything before it is in its place.
    pub(crate) fn in_order_end(&self) -> u64 {
        self.coverage.in_order_end()
    }

    /// The size, once it is known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.coverage.total().map(DataSize::bytes)
    }

    /// One past the last byte that may be asked for: the reader's window ends there.
    pub(crate) fn request_limit(&self) -> u64 {
        self.window_end()
    }

    /// The link that a live request is on.
    pub(crate) fn link_of(&self, req: ReqId) -> Option<LinkId> {
        self.reqs.get(&req).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
    }

    /// Whether a link is in use, and not silent, banned or gone.
    pub(crate) fn is_up(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.state == LinkState::Up)
    }

    /// Whether its terms let a link be used now.
    pub(crate) fn may_use(&self, link: LinkId) -> bool {
        self.is_link_allowed(link)
    }

    /// The links that may yet bring something.
    pub(crate) fn links_in_service(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().filter(|(_, link)| link.is_in_service()).map(|(id, _)| *id)
    }
}
