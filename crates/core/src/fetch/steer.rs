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

use super::conn::{Conn, FIRST_SPAN};
use super::links::{LinkState, Standing};
use super::{Ask, Config, ConnId, Fetch, Phase, ReqId, Share, Span};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// What the owner has ordered that lasts.
#[derive(Clone, Debug, Default)]
pub(super) struct Steering {
    /// The owner chooses the spans, once there is something to choose.
    leads: bool,
    resting: BTreeSet<LinkId>,
}

/// A link as its owner sees it: one connection on which it may ask now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seat {
    conn: ConnId,
    /// Bytes that are on their way on it.
    pub(crate) ahead: DataSize,
    /// How fast they come.
    pub(crate) pace: Bitrate,
    /// How long before it is needed a request must leave.
    pub(crate) rtt: Duration,
    /// The same on an empty path.
    pub(crate) floor: Duration,
    /// How many more bytes should be on their way, so that its pipe does not run dry.
    pub(crate) wants: DataSize,
}

impl Seat {
    /// Nothing was asked for on it.
    pub(crate) fn is_untried(&self) -> bool {
        self.pace.is_zero() && self.ahead.is_zero()
    }
}

impl Fetch {
    /// A download that asks for nothing by itself once the resource is known.
    pub(crate) fn steered(config: Config) -> Self {
        let mut fetch = Self::new(config);
        fetch.steering = Some(Steering { leads: true, ..Steering::default() });
        fetch
    }

    /// Its owner chooses the spans from now on, or leaves that to the download.
    pub(crate) fn lead(&mut self, leads: bool) {
        if let Some(steering) = &mut self.steering {
            steering.leads = leads;
        }
    }

    /// Whether its owner chooses the spans at present.
    pub(crate) fn is_led(&self) -> bool {
        self.steering.as_ref().is_some_and(|steering| steering.leads) && self.phase == Phase::Ranges
    }

    /// Whether everything is there that the reader lets come: silence then says nothing, however long it lasts.
    pub(super) fn is_sated(&self) -> bool {
        self.phase == Phase::Ranges && self.reqs.is_empty() && self.ledger.free(0, self.limit()).is_none()
    }

    /// The connection on which a link may ask now: the one with the least on its way.
    pub(crate) fn seat(&self, link: LinkId) -> Option<Seat> {
        let may_ask = |conn: &super::conn::Conn| self.serves(conn) && self.may_pipeline(conn);
        let conns = self.conns.iter().filter(|(_, conn)| conn.link == link && may_ask(conn));
        let (id, conn) = conns.min_by_key(|(_, conn)| self.ahead(conn))?;
        Some(Seat {
            conn: *id,
            ahead: self.ahead(conn),
            pace: conn.pace(self.now),
            rtt: conn.rtt(),
            floor: conn.floor_rtt(),
            wants: conn.wanted_ahead(self.now) - self.ahead(conn),
        })
    }

    /// The same, with no more trust in a connection than it has earned.
    pub(crate) fn sure_seat(&self, link: LinkId) -> Option<Seat> {
        let seat = self.seat(link)?;
        let pace = self.conns.get(&seat.conn)?.sure_pace(self.now);
        if pace >= seat.pace {
            return Some(seat);
        }
        let enough = (pace * (seat.rtt + seat.floor)).max(FIRST_SPAN);
        Some(Seat { pace, wants: seat.wants.min(enough - seat.ahead), ..seat })
    }

    /// Asks for the bytes of `span` that nobody brings, as far as they lie together and one request may bring them. Gives
    /// what was asked for. None: there are no such bytes, or the link may not carry them.
    pub(crate) fn ask(&mut self, seat: Seat, span: Span) -> Option<Span> {
        let free = self.unasked(span)?;
        if !self.send(seat.conn, Ask::Span(free)) {
            return None;
        }
        self.reqs.values().next_back().map(|req| req.span)
    }

    /// Takes back everything that a link was asked for: over HTTP/1.1 that ends its connections (RFC 9112 §9.3). What
    /// answers for the whole file and waits for another link's opinion still does.
    pub(crate) fn take_from(&mut self, link: LinkId) {
        let of = |req: &super::Req| self.conns.get(&req.conn).is_some_and(|conn| conn.link == link);
        let waits = |id: ReqId| self.parked.iter().any(|parked| parked.req == id);
        let reqs = self.reqs.iter().filter(|(id, req)| of(req) && !waits(**id));
        let reqs: Vec<ReqId> = reqs.map(|(id, _)| *id).collect();
        for req in reqs {
            self.cancel(req);
        }
    }

    /// Lets a link rest, or wakes it. Tells whether that changes anything.
    pub(crate) fn rest_link(&mut self, link: LinkId, rests: bool) -> bool {
        let Some(steering) = &mut self.steering else { return false };
        if rests { steering.resting.insert(link) } else { steering.resting.remove(&link) }
    }

    /// Closes what has nothing to do on links that rest.
    pub(super) fn close_resting(&mut self) {
        let rests = |link: LinkId| self.rests(link);
        // What a silent link was asked for would never end, and another link can bring it.
        let stuck = |id: LinkId| self.links.get(&id).is_some_and(LinkState::is_stuck);
        let done = |conn: &Conn| (conn.reqs.is_empty() && rests(conn.link)) || stuck(conn.link);
        let idle = self.conns.iter().filter(|(_, conn)| done(conn));
        let idle: Vec<ConnId> = idle.map(|(id, _)| *id).collect();
        for id in idle {
            self.drop_conn(id, true);
        }
    }

    /// Whether any link was let rest that may be needed yet: when all is over, nobody is woken.
    pub(crate) fn lets_rest(&self) -> bool {
        self.phase != Phase::Over && self.steering.as_ref().is_some_and(|steering| !steering.resting.is_empty())
    }

    /// Wakes all links.
    pub(crate) fn rest_none(&mut self) {
        if let Some(steering) = &mut self.steering {
            steering.resting.clear();
        }
    }

    /// Whether it was let rest.
    pub(crate) fn rests(&self, link: LinkId) -> bool {
        let shared_out = self.links.get(&link).is_some_and(|link| link.share == Share::Rest);
        shared_out || self.steering.as_ref().is_some_and(|steering| steering.resting.contains(&link))
    }

    /// The reader goes on at `offset` and wants nothing of what lies before it. What is on its way is taken back, what
    /// had come beyond `offset` comes again: a driver that still has it does not tell of the jump.
    pub(crate) fn read_from(&mut self, offset: u64) {
        self.last_data = self.now;
        if self.comes_by(offset) {
            self.ledger.begin_at(offset);
            return self.consumed(offset);
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            self.take_from(link);
        }
        self.ledger.begin_at(offset);
        self.consumed = offset;
        self.rebuild();
    }

    /// Whether everything comes as one answer that has not yet reached this offset: it goes on until it does, as another
    /// one would begin at zero.
    fn comes_by(&self, offset: u64) -> bool {
        let Phase::OneAnswer { req: Some(id) } = self.phase else { return false };
        self.reqs.get(&id).is_some_and(|req| req.cursor <= offset)
    }

    /// The first bytes of `span` that are neither in their place nor on their way.
    pub(crate) fn unasked(&self, span: Span) -> Option<Span> {
        self.ledger.free(span.start, span.end.min(self.limit()))
    }

    /// How many bytes of `span` are not in their place.
    pub(crate) fn missing(&self, span: Span) -> DataSize {
        self.ledger.undone_bytes(span)
    }

    /// Everything before it is in its place.
    pub(crate) fn frontier(&self) -> u64 {
        self.ledger.frontier()
    }

    /// The size, once it is known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.ledger.total().map(DataSize::bytes)
    }

    /// One past the last byte that may be asked for: the reader's window ends there.
    pub(crate) fn may_ask_upto(&self) -> u64 {
        self.limit()
    }

    /// The link that a live request is on.
    pub(crate) fn link_of(&self, req: ReqId) -> Option<LinkId> {
        self.reqs.get(&req).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
    }

    /// Whether a link is in use, and not silent, banned or gone.
    pub(crate) fn is_up(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.standing == Standing::Up)
    }

    /// Whether its terms let a link be used now.
    pub(crate) fn may_use(&self, link: LinkId) -> bool {
        self.allowed(link)
    }

    /// The links that may yet bring something.
    pub(crate) fn hopeful_links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().filter(|(_, link)| link.hopeful()).map(|(id, _)| *id)
    }
}
