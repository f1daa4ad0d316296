//! The marline policy: which bytes are asked for on which connection, and when.
//!
//! In: the books, and each connection's pace, round trip and bytes on the way. Out: requests.
//!
//! 1. A connection gets a request when its bytes on the way fall below what its pipe holds ([`Conn::wanted_ahead`]).
//!    The neediest comes first.
//! 2. A request is as large as a batch of its link's time, and never larger than the connection's share of what is
//!    left ([`super::level`]); towards the end the shares shrink by themselves until all end together.
//! 3. Bytes are taken from the front: the in-order reader, if there is one, never waits for a gap nobody asked for,
//!    and a run with a window never asks beyond it.
//! 4. When everything is on its way, the bytes of silent links are asked for again, and [`super::tail`] looks after
//!    connections that lag.
//!
//! Fixed pieces were not used: small ones pay a request each (and servers end connections after a thousand), large ones
//! leave a slow link alone with the last one.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::{Conn, FIRST_SPAN};
use super::lanes::View;
use super::level::{self, Lane};
use super::links::{LinkState, Standing};
use super::{Ask, ConnId, Fetch, Phase, Span, Wake};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Instant};

impl Fetch {
    /// Sends what should be sent now.
    pub(super) fn plan(&mut self) {
        self.hear_parked();
        match self.phase {
            Phase::Unknown => self.plan_probes(),
            Phase::Ranges => self.plan_ranges(),
            Phase::OneAnswer { req: None } => self.ask_whole(),
            Phase::OneAnswer { .. } | Phase::Over => {}
        }
    }

    /// Before the resource is known every connection asks for the next few bytes.
    pub(super) fn plan_probes(&mut self) {
        let ready: Vec<(ConnId, Instant)> =
            self.conns.iter().filter_map(|(id, conn)| Some((*id, self.may_probe_at(conn)?))).collect();
        for (id, at) in ready {
            if self.now < at {
                self.wake_at(at, Wake::Retry);
            } else if !self.open_in_one_piece(id) && !self.ask_for_all(id) {
                let until = self.conns.get(&id).and_then(|conn| self.waits_for_first(conn));
                match (until, self.probe_span()) {
                    (Some(until), _) => self.wake_at(until, Wake::Retry),
                    (None, Some(span)) => {
                        self.send(id, Ask::Span(span));
                    }
                    (None, None) => {}
                }
            }
        }
    }

    fn may_probe_at(&self, conn: &Conn) -> Option<Instant> {
        let link = self.links.get(&conn.link)?;
        let free = conn.takes_requests() && conn.reqs.is_empty() && self.allowed(conn.link);
        // One answer that waits for another link's opinion says all that this link can say.
        let free = free && !self.waits_for_opinion(conn.link);
        // The next try of a silent link is its next connection's; what stands already is asked at once.
        let at_once = matches!(link.standing, Standing::Silent { .. } | Standing::Probation);
        free.then_some(if at_once { self.now } else { link.next_try })
    }

    pub(super) fn ask_whole(&mut self) {
        let only = self.only_link();
        let first = self.conns.iter().find(|(_, conn)| {
            conn.takes_requests() && conn.reqs.is_empty() && only.is_none_or(|only| only == conn.link)
        });
        if let Some(id) = first.map(|(id, _)| *id)
            && self.send(id, Ask::Whole)
        {
            self.phase = Phase::OneAnswer { req: self.reqs.keys().next_back().copied() };
        }
    }

    fn plan_ranges(&mut self) {
        if self.try_whole() {
            return;
        }
        self.update_first();
        let mut passed: Vec<ConnId> = Vec::new();
        while let Some(id) = self.neediest(&passed) {
            let free = self.ledger.free_bytes(self.limit()) + self.divisible().len();
            if free.is_zero() {
                if self.release_silent() {
                    continue;
                }
                break;
            }
            let Some(span) = self.next_span(id, free) else {
                passed.push(id);
                continue;
            };
            self.take_from_first(span);
            if !self.send(id, Ask::Span(span)) {
                passed.push(id);
            }
        }
        if self.ledger.free_bytes(u64::MAX).is_zero() && self.divisible().is_empty() {
            self.tail();
        } else {
            self.review_lanes();
        }
    }

    /// The connection whose pipe runs dry first, if one needs a request now.
    fn neediest(&self, passed: &[ConnId]) -> Option<ConnId> {
        let hungry = self.conns.iter().filter(|(id, conn)| {
            let hungry = || self.ahead(conn) < conn.wanted_ahead(self.now);
            !passed.contains(id) && self.serves(conn) && has_room(conn) && self.may_pipeline(conn) && hungry()
        });
        hungry.min_by_key(|(_, conn)| self.ahead(conn) / conn.pace(self.now)).map(|(id, _)| *id)
    }

    /// Whether a connection may be given requests for ranges.
    pub(super) fn serves(&self, conn: &Conn) -> bool {
        let Some(link) = self.links.get(&conn.link) else { return false };
        let fresh = conn.reqs.is_empty() && conn.meter.total().is_zero();
        let standing = match link.standing {
            Standing::Up => !conn.meter.total().is_zero() || conn.reqs.is_empty() || self.has_bitten(conn),
            Standing::Silent { .. } | Standing::Probation => fresh,
            Standing::Banned { .. } | Standing::Down => false,
        };
        conn.takes_requests() && standing && self.allowed(conn.link) && !self.carries_first(conn)
    }

    /// Whether nothing but the first bite is on its way on a connection. Of a resource that is known already the answer is no
    /// surprise: what follows it may be asked for at once.
    fn has_bitten(&self, conn: &Conn) -> bool {
        self.config.resume.is_some() && conn.reqs.len() == 1 && self.ahead(conn) <= FIRST_BITE
    }

    /// The end of what may be asked for: of the window, or of everything.
    pub(super) fn limit(&self) -> u64 {
        self.config.window.map_or(u64::MAX, |window| self.consumed.saturating_add(window.bytes()))
    }

    /// A connection as it is to be expected over the next `horizon`.
    pub(super) fn lane(&self, conn: &Conn, horizon: Duration) -> Lane {
        let now = conn.pace(self.now);
        // Where each connection is new, its link's rate is the best guess; without one, nothing would ever be asked for
        // but the little that suits a connection of which nothing is known.
        let now = match self.links.get(&conn.link) {
            Some(link) if now.is_zero() && self.is_brief(conn) => self.link_rate(link, BRIEF_MEMORY),
            _ => now,
        };
        let pace = if conn.ramping(self.now) {
            level::climb(now, self.fastest_pace(), conn.floor_rtt(), horizon)
        } else {
            now
        };
        // What others may take from the end of the first response counts as free.
        let divisible = if self.carries_first(conn) { self.divisible().len() } else { DataSize::ZERO };
        Lane::new(pace, self.ahead(conn) - divisible, conn.floor_rtt(), conn.thinks_of(self.unanswered(conn) + 1))
    }

    /// What a connection in slow start may reach: nobody knows, but the others show what is usual here. If they climb
    /// themselves, two more doublings are as likely as not.
    fn fastest_pace(&self) -> Bitrate {
        let reach = |conn: &Conn| conn.pace(self.now) * if conn.ramping(self.now) { 4 } else { 1 };
        self.conns.values().map(reach).max().unwrap_or_default()
    }

    /// Time until everything is there, if all go on as they do.
    pub(super) fn time_left(&self, free: DataSize) -> Duration {
        let at = |horizon| {
            let lanes: Vec<Lane> = self
                .conns
                .values()
                .filter(|c| self.serves(c) || self.carries_first(c))
                .map(|c| self.lane(c, horizon))
                .collect();
            level::level(&lanes, free)
        };
        // Slow starts shorten the time over which they are looked at; the second look is close enough.
        at(at(Duration::ZERO).min(FAR))
    }

    /// What this connection should ask for next; none: nothing, the others do it sooner.
    fn next_span(&self, id: ConnId, free: DataSize) -> Option<Span> {
        let conn = self.conns.get(&id)?;
        let level = self.time_left(free);
        let lane = self.lane(conn, level.min(FAR));
        let size = if lane.pace.is_zero() {
            // Nothing is known of it. It is worth a try unless all is over before its second burst could come.
            if level < conn.floor_rtt() * 3 {
                return None;
            }
            FIRST_SPAN
        } else {
            let batch = match () {
                () if self.is_brief(conn) => BRIEF,
                // The round trip between two answers should be small beside what each brings.
                () if self.is_alone(conn) => conn.rtt() * WORTH,
                () if level > FAR && !conn.ramping(self.now) => BULK,
                () => SOON,
            };
            let need = (conn.wanted_ahead(self.now) - self.ahead(conn)).max(lane.pace * batch).max(LEAST_PIECE);
            // The server's pause should be small beside what it brings.
            let need = need.max(lane.pace * (conn.thinks() * self.worth(conn.link)));
            let quota = level::quota(lane, level);
            // A share too small for a request of its own is left to the others, who are just as soon done.
            if quota < LEAST_PIECE && !self.ahead(conn).is_zero() {
                return None;
            }
            need.min(quota.max(LEAST_PIECE))
        };
        // What is left would cost whoever asks for it a pause of its own.
        let least = LEAST_PIECE.max(lane.pace * conn.thinks());
        let size = if free - size < least { free } else { size };
        let size = size.min(self.budget_left(conn.link));
        if size.is_zero() {
            return None;
        }
        // Somebody reads along, and the pace of a connection's first burst is none: a long piece would hold all others up.
        let size = if self.config.window.is_some() && conn.ramping(self.now) {
            size.min((conn.wanted_ahead(self.now) - self.ahead(conn)).max(FIRST_SPAN))
        } else {
            size
        };
        let Some(gap) = self.ledger.free(0, self.limit()) else {
            let end = self.divisible();
            let size = size.min(self.largest(conn)).min(end.len());
            return Some(Span::new(end.end - size.bytes(), end.end)).filter(|span| !span.is_empty());
        };
        let waits = self.config.window.is_some() && self.config.resume.is_some() && gap.start == self.consumed;
        let size = if waits && lane.pace.is_zero() && conn.reqs.is_empty() { size.min(FIRST_BITE) } else { size };
        Some(Span::at(gap.start, gap.len().min(size)))
    }

    /// How many times as long as its server thinks a request should last. Nobody else waits for the bytes of an only link.
    fn worth(&self, id: LinkId) -> u32 {
        let others = self.links.iter().any(|(other, link)| *other != id && self.usable(*other, link));
        if others { WORTH } else { WORTH_ALONE }
    }

    /// Lets others have what silent links hold. Tells whether there was anything.
    fn release_silent(&mut self) -> bool {
        let silent = |(id, link): (&LinkId, &LinkState)| match link.standing {
            Standing::Silent { .. } => Some(*id),
            _ => None,
        };
        let silent: Vec<LinkId> = self.links.iter().filter_map(silent).collect();
        let mut any = false;
        for id in silent {
            any |= self.release(id);
        }
        any
    }

    /// Looks at each link's number of connections.
    fn review_lanes(&mut self) {
        if self.config.max_connections <= 1 {
            return;
        }
        let left = self.time_left(self.ledger.free_bytes(u64::MAX) + self.divisible().len());
        let views: Vec<(LinkId, View)> =
            self.links.keys().filter_map(|id| Some((*id, self.view(*id, left)?))).collect();
        for (id, view) in views {
            let Some(link) = self.links.get_mut(&id) else { continue };
            let most = self.config.max_connections.min(link.most_connections());
            let before = link.lanes.wanted;
            link.lanes.review(self.now, view, most);
            let (wanted, due) = (link.lanes.wanted, link.lanes.due(self.now));
            if wanted < before {
                self.retire(id, (before - wanted) as usize);
            } else if wanted > before {
                self.open_connections();
            }
            self.wake_at(due, Wake::Review);
        }
    }

    pub(super) fn view(&self, id: LinkId, left: Duration) -> Option<View> {
        let link = self.links.get(&id)?;
        if link.standing != Standing::Up || link.conns.is_empty() {
            return None;
        }
        let live = || self.conns_of(link).filter(|conn| !conn.draining && !conn.meter.total().is_zero());
        let floor_rtt = live().map(Conn::floor_rtt).min()?;
        let window = (floor_rtt * 8).clamp(Duration::from_millis(400), Duration::from_millis(1000));
        Some(View {
            climbing: live().any(|c| c.ramping(self.now)),
            lossy: live().any(|c| c.lossy(self.now)),
            settled: self.conns_of(link).all(|c| !c.meter.total().is_zero() && !c.ramping(self.now)),
            delivering: live().count() as u32,
            rate: live().map(|c| c.meter.rate(c.clock(self.now), window)).sum::<Bitrate>(),
            floor_rtt,
            rtt: live().map(Conn::young_rtt).min()?,
            left,
        })
    }

    /// The youngest connections of a link get no more requests and end when they are empty.
    pub(super) fn retire(&mut self, id: LinkId, count: usize) {
        let Some(link) = self.links.get(&id) else { return };
        let young: Vec<ConnId> = link.conns.iter().rev().take(count).copied().collect();
        for id in young {
            match self.conns.get_mut(&id) {
                Some(conn) if conn.reqs.is_empty() => self.drop_conn(id, true),
                Some(conn) => conn.draining = true,
                None => {}
            }
        }
    }
}

/// Whether a connection may carry one more request.
pub(super) fn has_room(conn: &Conn) -> bool {
    conn.reqs.len() < MOST_REQUESTS
}

/// Requests on one connection at a time: what a slow server does not answer must not pile up there.
/// chosen: no row of the reviewed tables moves, and servers allow 100 HTTP/2 streams (RFC 9113 §6.5.2).
const MOST_REQUESTS: usize = 32;
/// Smaller requests are not worth their head: about 500 bytes both ways.
pub(super) const LEAST_PIECE: DataSize = DataSize::from_kib(16);
/// What a reader that waits is brought first of a resource that is known: behind a full queue only the first packets of
/// a burst find room, and TLS gives nothing of a record before all of it is there, which most servers make of 16 KiB.
/// chosen: three packets with the head of the answer.
pub(crate) const FIRST_BITE: DataSize = DataSize::from_bytes(3000);
/// With more than this left, requests are sent for longer.
const FAR: Duration = Duration::from_secs(4);
/// What a request asks for, in time of its link: far from the end, and near it.
const BULK: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_millis(60);
/// The same where each answer costs a connection. chosen: ten handshakes of a slow path.
const BRIEF: Duration = Duration::from_secs(3);
/// Over which time a link's rate is taken for what its next connection may carry.
const BRIEF_MEMORY: Duration = Duration::from_secs(2);
/// What a request lasts, in its server's pauses: beside other links, and alone.
const WORTH: u32 = 10;
const WORTH_ALONE: u32 = 40;
