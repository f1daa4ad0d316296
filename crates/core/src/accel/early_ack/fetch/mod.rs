//! Fast Fetcher: which missing bytes are asked for when, and over which link (Super-aggregation §3.3, §4.2).
//!
//! In: what flows miss ([`Want`]), what the links are like ([`Road`]), what came of a fetch. Out: [`Output::Fetch`] and
//! [`Output::Cancel`], and whose bytes have come ([`Got`]).
//!
//! 1. Holes of one resource are gathered for [`GATHER`] and asked for at once, as several ranges: a hole that was only
//!    reordering is gone by then, and a head costs as much as a third of a segment.
//! 2. Helping links first, the primary one last; what is too much for a thin link (what a blackout has cost) the other
//!    way round. A link that is dark is not asked, one that has just failed only if there is no other.
//! 3. No link is asked for more than it brings in a round trip and [`QUEUE`], counting what answers say around their
//!    bytes: what waits here may still come by itself, or go over another link.
//! 4. What has not come after [`PATIENCE`], two round trips and its turn in the queue is asked for again, if possible
//!    over another link. Of one link alone it is asked for later, and not while one range comes after the other. The first
//!    answer counts; a fetch of which nothing is wanted any more is cancelled.
//!    While a server is late with the same bytes over every link, no more of its bytes are to be missing ([`Fetcher::room`]).
//! 5. It never gives up by itself, save after [`TRIES`]: how long a hole may stay open is its flow's to say.

mod in_flight;
mod link;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::http_map::Place;
use crate::accel::Output;
use crate::accel::seq_space::Stretch;
use crate::link::LinkId;
use crate::units::{DataSize, Duration, Instant};
use in_flight::{Open, Part};
use link::Lane;

pub(in crate::accel) use link::Road;

/// Which fetch: counted from one, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FetchId(pub u64);

/// Bytes of a resource that are to be got over another connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Which.
    pub id: FetchId,
    /// Over which link.
    pub link: LinkId,
    /// From whom: where the flow goes to.
    pub server: SocketAddr,
    /// The request as its application sent it, without fields of ranges, conditions, codings and connections: a request
    /// line and fields, each ended by CR LF, and no empty line. The fetch adds `Range` and `If-Range`.
    pub request: String,
    /// The strong validator that the answer must still have (RFC 9110 §8.8.3), quotes included.
    pub etag: String,
    /// The resource's whole length.
    pub length: DataSize,
    /// Where in the resource: first byte, and one past the last.
    pub ranges: Vec<(u64, u64)>,
}

impl fmt::Debug for Fetch {
    /// Without the request: it may hold secrets, and this goes to logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, link, server, length, ranges, .. } = self;
        write!(f, "{id:?} of {ranges:?} in {length:?} from {server} over {link:?}")
    }
}

/// Bytes that a flow misses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::accel) struct Want {
    /// Whose: the caller's number.
    pub(in crate::accel) flow: u64,
    /// Which, in the flow's sequence.
    pub(in crate::accel) stretch: Stretch,
    /// Which, in their resource.
    pub(in crate::accel) place: Place,
    /// Where they can be had.
    pub(in crate::accel) server: SocketAddr,
}

/// Bytes that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::accel) struct Got {
    /// Whose.
    pub(in crate::accel) flow: u64,
    /// Where in the flow's sequence they begin.
    pub(in crate::accel) start: u64,
    /// They.
    pub(in crate::accel) bytes: Vec<u8>,
    /// How long the answer took; none: it is a replayed connection's.
    pub(in crate::accel) took: Option<Duration>,
    /// Whether that was too long, or others were late over each link there is.
    pub(in crate::accel) is_late: bool,
}

/// What waits to be asked for.
#[derive(Clone, Debug)]
struct Waiting {
    want: Want,
    /// Not before this.
    due: Instant,
    /// How often it was asked for, and how often that was not answered in time.
    tries: u32,
    late: u32,
    /// Over which link in vain.
    vain: Option<LinkId>,
}

/// All fetches of a host.
#[derive(Clone, Debug, Default)]
pub(in crate::accel) struct Fetcher {
    lanes: Vec<Lane>,
    waiting: Vec<Waiting>,
    open: BTreeMap<FetchId, Open>,
    last: u64,
    outputs: Vec<Output>,
}

impl Fetcher {
    /// The links, those that help first and the primary one last.
    pub(in crate::accel) fn set_roads(&mut self, roads: &[Road]) {
        self.lanes.retain(|lane| roads.iter().any(|road| road.link == lane.road.link));
        for (at, road) in roads.iter().enumerate() {
            match self.lanes.iter().position(|lane| lane.road.link == road.link) {
                Some(old) => {
                    let lane = self.lanes.remove(old);
                    self.lanes.insert(at.min(self.lanes.len()), lane.with(*road));
                }
                None => self.lanes.insert(at.min(self.lanes.len()), Lane::new(*road)),
            }
        }
    }

    /// A flow misses bytes.
    pub(in crate::accel) fn want(&mut self, now: Instant, want: Want) {
        // In pieces, so that one that is lost on the way costs no more than a piece.
        let mut start = want.stretch.start;
        while start < want.stretch.end {
            let stretch = Stretch::new(start, want.stretch.end.min(start + PIECE));
            let offset = want.place.offset + (start - want.stretch.start);
            let place = Place { offset, ..want.place.clone() };
            let want = Want { stretch, place, ..want.clone() };
            self.waiting.push(Waiting { want, due: now + GATHER, tries: 0, late: 0, vain: None });
            start = stretch.end;
        }
    }

    /// What became of one range of a fetch; none, if nobody waits for it any more.
    pub(in crate::accel) fn fetched(
        &mut self,
        now: Instant,
        fetch: FetchId,
        range: u32,
        bytes: Option<Vec<u8>>,
    ) -> Option<Got> {
        let open = self.open.get_mut(&fetch)?;
        let part = open.close(range)?;
        let link = open.link;
        if let Some(patience) = open.patience.filter(|_| bytes.is_some()) {
            open.due = open.due.max(now + patience);
        }
        let is_over = open.is_over();
        // Only the end of an answer says how long all of it took.
        let ahead = if is_over { open.ahead } else { DataSize::ZERO };
        let took = now.since(open.asked);
        let links = self.links(part.server);
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.road.link == link) {
            lane.done(took, ahead, part.cost(), bytes.is_some());
        }
        if is_over {
            self.open.remove(&fetch);
        }
        match bytes.filter(|bytes| bytes.len() as u64 == part.stretch.bytes()) {
            Some(bytes) => {
                self.settle(part.flow, part.stretch);
                let is_late = part.is_asked_again || part.late >= links;
                Some(Got { flow: part.flow, start: part.stretch.start, bytes, took: Some(took), is_late })
            }
            None => {
                if !part.is_asked_again {
                    self.again(now, part, link, REST);
                }
                None
            }
        }
    }

    /// Nothing of this flow is wanted any more.
    pub(in crate::accel) fn forget(&mut self, flow: u64) {
        self.waiting.retain(|waiting| waiting.want.flow != flow);
        self.drop_parts(|part| part.flow == flow);
    }

    /// Asks for what is due. `missing` says what of a stretch its flow still misses.
    pub(in crate::accel) fn tick(&mut self, now: Instant, missing: impl Fn(u64, Stretch) -> Vec<Stretch>) {
        self.give_back(now);
        // What has come by itself meanwhile is not owed.
        self.drop_parts(|part| part.is_asked_again && missing(part.flow, part.stretch).is_empty());
        let due = self.waiting.iter().any(|waiting| waiting.due <= now);
        if due {
            self.trim(&missing);
            while self.ask(now) {}
        }
    }

    /// What is to be done.
    pub(in crate::accel) fn outputs(&mut self) -> Vec<Output> {
        core::mem::take(&mut self.outputs)
    }

    /// When to call [`tick`](Self::tick) next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|waiting| waiting.due);
        let late = self.open.values().filter_map(Open::deadline);
        waiting.chain(late).min()
    }

    /// How many bytes more may be missing at the same time, of all flows together: what the links that may be asked bring
    /// in [`HIDDEN`], less what is wanted already. Of a server that is late with something over all of them: none.
    pub(in crate::accel) fn room(&self, server: SocketAddr) -> u64 {
        if self.is_late(server) {
            return 0;
        }
        let is_up = |lane: &&Lane| lane.leads_to(server);
        // Beside a helping link the primary one is kept for what that one loses.
        let is_helped = self.lanes.iter().filter(is_up).any(|lane| !lane.road.is_primary);
        let asked = self.lanes.iter().filter(is_up).filter(|lane| !is_helped || !lane.road.is_primary);
        let bring: DataSize = asked.map(|lane| lane.rate() * HIDDEN).sum();
        let waiting: u64 = self.waiting.iter().map(|waiting| waiting.want.stretch.bytes()).sum();
        let open: u64 = self.open.values().map(Open::bytes).sum();
        bring.bytes().saturating_sub(waiting + open)
    }

    /// Whether this server was late with the same bytes as often as there are links, and still owes them.
    fn is_late(&self, server: SocketAddr) -> bool {
        let links = self.links(server);
        self.open.values().any(|open| open.owes(server, links))
    }

    /// Links over which this server may be asked; one at least.
    fn links(&self, server: SocketAddr) -> u32 {
        let links = self.lanes.iter().filter(|lane| lane.leads_to(server)).count();
        u32::try_from(links).unwrap_or(u32::MAX).max(1)
    }

    /// Bytes that came over each link, what answers say around them included.
    pub(in crate::accel) fn fetched_over(&self, link: LinkId) -> DataSize {
        self.lanes.iter().find(|lane| lane.road.link == link).map_or(DataSize::ZERO, |lane| lane.total)
    }

    /// What a link was found to bring, if that was not told.
    pub(in crate::accel) fn found_rate(&self, link: LinkId) -> Option<crate::units::Bitrate> {
        self.lanes.iter().find(|lane| lane.road.link == link).and_then(|lane| lane.found)
    }

    /// What has waited too long is asked for again.
    fn give_back(&mut self, now: Instant) {
        let late: Vec<FetchId> =
            self.open.iter().filter(|(_, open)| open.is_late(now)).map(|(id, _)| *id).collect();
        for id in late {
            let Some(open) = self.open.get_mut(&id) else { continue };
            let (link, parts) = (open.link, open.ask_again());
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.road.link == link) {
                lane.was_late(now);
            }
            for part in parts {
                self.again(now, Part { late: part.late + 1, ..part }, link, Duration::ZERO);
            }
        }
    }

    fn again(&mut self, now: Instant, part: Part, link: LinkId, rest: Duration) {
        if part.tries >= TRIES {
            return;
        }
        let want = Want { flow: part.flow, stretch: part.stretch, place: part.place, server: part.server };
        self.waiting.push(Waiting { want, due: now + rest, tries: part.tries, late: part.late, vain: Some(link) });
    }

    /// What waits shrinks to what is still missing.
    fn trim(&mut self, missing: impl Fn(u64, Stretch) -> Vec<Stretch>) {
        let old = core::mem::take(&mut self.waiting);
        for waiting in old {
            for stretch in missing(waiting.want.flow, waiting.want.stretch) {
                let offset = waiting.want.place.offset + (stretch.start - waiting.want.stretch.start);
                let place = Place { offset, ..waiting.want.place.clone() };
                self.waiting
                    .push(Waiting { want: Want { stretch, place, ..waiting.want.clone() }, ..waiting.clone() });
            }
        }
    }

    /// One fetch more, if there is what is due and a link for it.
    fn ask(&mut self, now: Instant) -> bool {
        let Some(first) =
            self.waiting.iter().filter(|waiting| waiting.due <= now).min_by_key(|waiting| waiting.due)
        else {
            return false;
        };
        let (flow, vain, server) = (first.want.flow, first.vain, first.want.server);
        let resource = first.want.place.resource.clone();
        let goes_along = |waiting: &Waiting| {
            waiting.want.flow == flow && waiting.vain == vain && waiting.want.place.resource == resource
        };
        let all: u64 = self.waiting.iter().filter(|w| goes_along(w)).map(|w| w.want.stretch.bytes()).sum();
        let is_bulk = all > BULK;
        let Some(at) = self.lane(now, (server, vain), is_bulk) else {
            // Every link is busy, or none is there: later.
            let later = now + LATER;
            self.waiting.iter_mut().filter(|waiting| waiting.due <= now).for_each(|waiting| waiting.due = later);
            return false;
        };
        let is_alone = self.links(server) < 2;
        let Some(lane) = self.lanes.get(at) else { return false };
        let most = lane.most(is_bulk);
        let (mut parts, mut bytes) = (Vec::new(), 0);
        self.waiting.retain(|waiting| {
            let fits = parts.is_empty() || (parts.len() < RANGES && bytes + waiting.want.stretch.bytes() <= most);
            let goes = goes_along(waiting) && fits;
            if goes {
                bytes += waiting.want.stretch.bytes();
                parts.push(Part {
                    flow,
                    stretch: waiting.want.stretch,
                    place: waiting.want.place.clone(),
                    server,
                    tries: waiting.tries + 1,
                    late: waiting.late,
                    is_asked_again: false,
                    is_closed: false,
                    is_answered: false,
                });
            }
            !goes
        });
        self.last += 1;
        let id = FetchId(self.last);
        let patience = is_alone.then(|| PATIENCE * ALONE);
        let out = lane.out(self.open.values());
        let due = now + lane.wait(out) + patience.unwrap_or(PATIENCE);
        let ahead = out + parts.iter().map(Part::cost).sum::<DataSize>();
        let ranges =
            parts.iter().map(|part| (part.place.offset, part.place.offset + part.stretch.bytes())).collect();
        self.outputs.push(Output::Fetch(Fetch {
            id,
            link: lane.road.link,
            server,
            request: resource.request.clone(),
            etag: resource.etag.clone(),
            length: DataSize::from_bytes(resource.length),
            ranges,
        }));
        self.open
            .insert(id, Open { link: lane.road.link, due, patience, asked: now, ahead, was_late: false, parts });
        true
    }

    /// The link over which to ask this server.
    fn lane(&self, now: Instant, (server, vain): (SocketAddr, Option<LinkId>), is_bulk: bool) -> Option<usize> {
        let has_room = |lane: &Lane| lane.has_room(now, lane.out(self.open.values()));
        let usable = |lane: &Lane| lane.leads_to(server) && has_room(lane);
        let mut order: Vec<usize> = (0..self.lanes.len()).collect();
        if is_bulk {
            order.sort_by_key(|at| self.lanes.get(*at).is_some_and(|lane| !lane.road.is_primary));
        }
        let good = |at: &&usize| self.lanes.get(**at).is_some_and(usable);
        let other = |at: &&usize| self.lanes.get(**at).is_some_and(|lane| Some(lane.road.link) != vain);
        let sure = |at: &&usize| is_bulk || self.lanes.get(**at).is_some_and(|lane| !lane.is_doubtful(now));
        let (good, others) = (|| order.iter().filter(good), || order.iter().filter(good).filter(other));
        others().find(sure).or_else(|| others().next()).or_else(|| good().next()).copied()
    }

    /// These bytes are here: whoever else is asked for them need not answer.
    fn settle(&mut self, flow: u64, stretch: Stretch) {
        self.waiting.retain(|waiting| waiting.want.flow != flow || !stretch.encloses(&waiting.want.stretch));
        self.drop_parts(|part| part.flow == flow && stretch.encloses(&part.stretch));
    }

    fn drop_parts(&mut self, gone: impl Fn(&Part) -> bool) {
        let mut over = Vec::new();
        for (id, open) in &mut self.open {
            if open.drop_parts(&gone) && open.is_over() {
                over.push(*id);
            }
        }
        for id in over {
            self.open.remove(&id);
            self.outputs.push(Output::Cancel(id));
        }
    }
}

/// The paper's prototype gives no time; facts "Fast Fetcher" gathers 20 ms of holes.
const GATHER: Duration = Duration::from_millis(20);
/// Facts "Fast Fetcher": asked again after 600 ms and two round trips.
const PATIENCE: Duration = Duration::from_millis(600);
/// Times [`PATIENCE`] where there is one link alone. chosen: a handshake, a question and the start of a connection over 200 ms;
/// asked twice for the same, one link brings each half as fast.
const ALONE: u32 = 3;
/// chosen: after an answer that has nothing, so long until the next question.
const REST: Duration = Duration::from_millis(200);
/// chosen: how soon a busy link is looked at again.
const LATER: Duration = Duration::from_millis(20);
/// Facts "Loss Hider": what the link brings in two seconds may be missing at the same time.
const HIDDEN: Duration = Duration::from_secs(2);
/// chosen: more than the holes of 20 ms at 20 Mbit/s and 3 % of loss, and fewer than any server refuses (Apache: 200).
const RANGES: usize = 32;
/// chosen: bytes of one range; at 20 Mbit/s 13 ms.
const PIECE: u64 = 32 * 1024;
/// chosen: from here on a hole is not what random loss makes, and takes a thin link half a second.
const BULK: u64 = 64 * 1024;
/// chosen: at 600 ms and more each, longer than a hole may stay open.
const TRIES: u32 = 16;
/// chosen: a link is asked for what it brings in a round trip and this.
const QUEUE: Duration = Duration::from_millis(500);
