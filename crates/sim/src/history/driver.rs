//! A driver that lets everything happen that a network can do, at random.
//!
//! In: a [`Weather`] and a machine. Out: how the download ended, or the first thing that the [`Ledger`] found wrong.
//!
//! There is no TCP here: a connection delivers pieces of random size at random times, and at every step something may
//! go wrong. That reaches more states in a second than the world does in an hour.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use marline_core::fetch::{
    ByteRange, ConnError, ConnErrorKind, ConnId, ContentRange, Input, Output, PathSample, Policy, Protocol, ReqId,
    RequestRange, ResponseHead, Validator,
};
use marline_core::link::{LinkId, LinkKind, LinkProfile};
use marline_core::machine::Machine;
use marline_core::stream::{self, PlayerInput, StreamEvent};
use marline_core::units::{DataSize, Duration, Instant};

use super::audience::{Act, Audience};
use super::judge::Scene;
use super::ledger::{Ledger, Page, Source};
use super::subject::Subject;
use super::weather::{Manner, Weather, etag, one_in};
use crate::contract::Checked;
use crate::rng::Stream;
use crate::world::server::{Answer, Asking, Body};

/// A history in the making.
pub(super) struct Driver<M: Subject> {
    pub(super) machine: Checked<M::Config, M>,
    weather: Weather,
    stream: Stream,
    now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    ordinal: u64,
    conns: BTreeMap<ConnId, Conn>,
    present: Vec<bool>,
    served: DataSize,
    pub(super) ledger: Ledger,
    consumed: u64,
    audience: Option<Audience>,
    pub(super) ended: Option<Result<(), String>>,
    pub(super) steps: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Step(ConnId),
    Flap(usize),
    Consume,
    /// The audience takes something.
    Take,
    /// The audience does something else.
    Act,
}

#[derive(Debug)]
struct Conn {
    link: usize,
    open: bool,
    /// A step is on the list of events.
    moving: bool,
    /// It will never do anything again, and nobody says so.
    mute: bool,
    answered: u32,
    /// Bytes of its last piece.
    last: u64,
    queue: VecDeque<Pending>,
}

#[derive(Debug)]
struct Pending {
    req: ReqId,
    ask: RequestRange,
    if_range: Option<Validator>,
    body: Option<ByteRange>,
    room: Option<u64>,
    accepted: bool,
    closes: bool,
}

impl<M: Subject> Driver<M> {
    pub(super) fn new(
        weather: Weather,
        stream: Stream,
        machine: Checked<M::Config, M>,
        audience: Option<Audience>,
    ) -> Self {
        let mut ledger = Ledger::default();
        if let Some(resume) = &weather.config.resume {
            ledger.resume(resume.total, &resume.ranges);
        }
        Self {
            machine,
            present: vec![false; weather.links.len()],
            weather,
            stream,
            now: Instant::ZERO,
            events: BinaryHeap::new(),
            ordinal: 0,
            conns: BTreeMap::new(),
            served: DataSize::ZERO,
            ledger,
            consumed: 0,
            audience,
            ended: None,
            steps: 0,
        }
    }

    /// Runs until the machine says done or failed, or `limit` is over.
    pub(super) fn run(&mut self, limit: Duration) -> Result<Duration, String> {
        for link in 0..self.weather.links.len() {
            self.appear(link)?;
            self.plan_flap(link);
        }
        self.plan_act();
        self.let_in(0);
        while self.ended.is_none() {
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            let deadline = self.machine.deadline().map(|(at, _)| at);
            let Some(next) = [event, deadline].into_iter().flatten().min() else {
                return Err("nothing is planned, and nothing will ever happen".to_string());
            };
            if next > Instant::ZERO + limit {
                return Err(format!("not over after {limit:?}, {} bytes in place", self.ledger.covered().bytes()));
            }
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return Err(format!("not over after {MOST_STEPS} steps at {}", self.now));
            }
            self.now = self.now.max(next);
            if deadline.is_some_and(|at| at <= self.now) {
                self.machine.tick(self.now);
                self.drain()?;
            } else if let Some(Reverse((_, _, event))) = self.events.pop() {
                self.happen(event)?;
            }
        }
        Ok(self.now.since(Instant::ZERO))
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Step(conn) => self.step(conn),
            Event::Flap(link) if self.present[link] => {
                self.present[link] = false;
                self.plan_flap(link);
                self.tell(Input::LinkDown { link: LinkId(link as u16) })
            }
            Event::Flap(link) => {
                self.plan_flap(link);
                self.appear(link)
            }
            Event::Consume => {
                self.consumed = self.ledger.frontier();
                self.tell(Input::Consumed { end: self.consumed })
            }
            Event::Take => self.take(),
            Event::Act => self.act(),
        }
    }

    fn plan_act(&mut self) {
        if let Some(after) = self.audience.as_mut().and_then(Audience::next_act) {
            self.plan(after, Event::Act);
        }
    }

    fn act(&mut self) -> Result<(), String> {
        self.plan_act();
        let seen = self.machine.machine().stream().and_then(|stream| stream.player());
        let Some(audience) = &mut self.audience else { return Ok(()) };
        match audience.act(seen) {
            Act::Pauses(time) => {
                audience.pauses = self.now + time;
                Ok(())
            }
            Act::Says(viewer) => {
                if let PlayerInput::Seek { offset: to } = viewer {
                    audience.goes_to(to);
                    self.ledger.seek(to);
                    self.let_in(to);
                }
                let Some(input) = M::hears(viewer) else { return Ok(()) };
                self.machine.handle(self.now, input);
                self.drain()?;
                self.wake_all();
                Ok(())
            }
        }
    }

    fn take(&mut self) -> Result<(), String> {
        let Some(audience) = &mut self.audience else { return Ok(()) };
        audience.takes = false;
        if self.now < audience.pauses {
            let after = audience.pauses.since(self.now);
            self.plan_take(after);
            return Ok(());
        }
        if audience.taken == audience.offered {
            return Ok(());
        }
        let after = audience.take();
        let (taken, more) = (audience.taken, audience.taken < audience.offered);
        if more {
            self.plan_take(after);
        }
        if self.window().is_none() {
            return Ok(());
        }
        self.let_in(taken);
        self.wake_all();
        self.tell(Input::Consumed { end: taken })
    }

    /// There may be room for what connections hold.
    fn wake_all(&mut self) {
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.wake(conn, false));
    }

    fn plan_take(&mut self, after: Duration) {
        let Some(audience) = &mut self.audience else { return };
        if !std::mem::replace(&mut audience.takes, true) {
            self.plan(after, Event::Take);
        }
    }

    /// The reader has taken everything before this offset.
    fn let_in(&mut self, taken: u64) {
        if let (Some(_), Some(window)) = (&self.audience, self.window()) {
            self.ledger.limit(taken.saturating_add(window.bytes()));
        }
    }

    fn window(&self) -> Option<DataSize> {
        self.weather.config.reader_window
    }

    fn appear(&mut self, link: usize) -> Result<(), String> {
        self.present[link] = true;
        let profile = match &self.audience {
            Some(audience) => audience.profile(link),
            None => LinkProfile::new(&format!("link{link}"), LinkKind::Other),
        };
        self.tell(Input::LinkUp { link: LinkId(link as u16), profile })
    }

    fn plan(&mut self, after: Duration, event: Event) {
        self.ordinal += 1;
        self.events.push(Reverse((self.now + after, self.ordinal, event)));
    }

    fn plan_flap(&mut self, link: usize) {
        if let Some(mean) = self.weather.links[link].flaps {
            let after = self.up_to(mean * 2);
            self.plan(after, Event::Flap(link));
        }
    }

    /// A random time less than `most`.
    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.stream.below(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX).max(1)))
    }

    fn tell(&mut self, input: Input) -> Result<(), String> {
        self.ledger.on_input(&input)?;
        self.machine.handle(self.now, input.into());
        self.drain()
    }

    fn drain(&mut self) -> Result<(), String> {
        let mut unreachable = Vec::new();
        while let Some(output) = self.machine.poll() {
            match output.into() {
                stream::Output::Fetch(output) => {
                    self.ledger.on_output(&output).map_err(|wrong| format!("at {}: {wrong}", self.now))?;
                    self.perform(output, &mut unreachable);
                }
                stream::Output::Stream(StreamEvent::Deliver { end: upto }) => {
                    self.ledger.on_deliver(upto).map_err(|wrong| format!("at {}: {wrong}", self.now))?;
                    if let Some(audience) = &mut self.audience {
                        audience.offered = upto;
                        self.plan_take(Duration::ZERO);
                    }
                }
                stream::Output::Stream(_) => {}
            }
        }
        self.judge().map_err(|wrong| format!("at {}: {wrong}", self.now))?;
        for conn in unreachable {
            self.tell(closed(conn, ConnErrorKind::Unreachable))?;
        }
        Ok(())
    }

    fn perform(&mut self, output: Output, unreachable: &mut Vec<ConnId>) {
        match output {
            Output::Connect { conn, link, .. } => {
                let link = usize::from(link.0);
                if !self.present[link] {
                    return unreachable.push(conn);
                }
                let (open, moving, mute) = (false, true, false);
                let (answered, last, queue) = (0, 0, VecDeque::new());
                self.conns.insert(conn, Conn { link, open, moving, mute, answered, last, queue });
                self.plan(self.weather.links[link].latency, Event::Step(conn));
            }
            Output::Request { req, conn, range, if_range } => {
                let (body, room, accepted, closes) = (None, None, false, false);
                if let Some(asked) = self.conns.get_mut(&conn) {
                    if let Some(audience) = &mut self.audience {
                        audience.judge.on_request(LinkId(asked.link as u16));
                    }
                    asked.queue.push_back(Pending { req, ask: range, if_range, body, room, accepted, closes });
                    self.wake(conn, true);
                }
            }
            Output::AcceptBody { req, len, .. } => {
                let mut all = self.conns.iter_mut().flat_map(|(id, conn)| conn.queue.iter_mut().map(|p| (*id, p)));
                if let Some((conn, pending)) = all.find(|(_, pending)| pending.req == req) {
                    pending.accepted = true;
                    pending.room = len.map(DataSize::bytes);
                    self.wake(conn, false);
                }
            }
            Output::Cancel { req } => {
                for conn in self.conns.values_mut() {
                    conn.queue.retain(|pending| pending.req != req);
                }
            }
            Output::Close { conn } => {
                self.conns.remove(&conn);
            }
            Output::Restart => {
                self.consumed = 0;
                if let Some(audience) = &mut self.audience {
                    audience.goes_to(0);
                }
                self.let_in(0);
            }
            Output::Done => {
                let sizes: Vec<DataSize> =
                    self.weather.server.editions.iter().map(|edition| edition.size).collect();
                let gullible = self.weather.config.policy == Policy::Single;
                self.ended = Some(self.ledger.on_done(&sizes, gullible));
            }
            Output::Failed(failure) => self.ended = Some(Err(format!("failed: {failure}"))),
            Output::Verify { .. } => {}
            Output::Notice(notice) => {
                if let Some(audience) = &mut self.audience {
                    audience.judge.on_notice(&notice);
                }
            }
            Output::Identified { .. } => {}
        }
    }

    fn judge(&mut self) -> Result<(), String> {
        let (Some(stream), Some(audience)) = (self.machine.machine().stream(), &mut self.audience) else {
            return Ok(());
        };
        let works = |conn: &&Conn| !conn.open || !conn.queue.is_empty();
        audience.judge.look(&Scene {
            now: self.now,
            stream,
            ledger: &self.ledger,
            links: &self.weather.links,
            busy: self.conns.values().filter(works).map(|conn| conn.link).collect(),
            ended: self.ended.as_ref(),
        })
    }

    /// One past the last byte that the reader has room for.
    fn room_ends(&self) -> u64 {
        let audience = self.audience.as_ref();
        let limit =
            audience.zip(self.window()).map(|(audience, window)| audience.taken.saturating_add(window.bytes()));
        limit.unwrap_or(u64::MAX)
    }

    /// Plans a connection's next step, unless one is planned.
    fn wake(&mut self, id: ConnId, far: bool) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.moving || conn.mute {
            return;
        }
        conn.moving = true;
        let latency = self.weather.links[conn.link].latency;
        self.plan(if far { latency } else { Duration::ZERO }, Event::Step(id));
    }

    fn step(&mut self, id: ConnId) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        conn.moving = false;
        let manner = self.weather.links[conn.link].clone();
        if !self.present[conn.link] || conn.mute {
            return Ok(());
        }
        if self.stream.happens(manner.trouble) {
            return self.go_wrong(id);
        }
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if !conn.open {
            conn.open = true;
            let (protocol, handshake) = (self.weather.protocol, manner.latency);
            return self.tell(Input::Connected { conn: id, protocol, handshake_rtt: handshake, peer: None });
        }
        let Some(place) = self.choose(id) else { return Ok(()) };
        self.answer(id, place, &manner)?;
        self.wake_later(id, &manner);
        Ok(())
    }

    /// Which answer goes on: the first with HTTP/1.1, any with HTTP/2.
    fn choose(&mut self, id: ConnId) -> Option<usize> {
        let conn = self.conns.get(&id)?;
        let room_ends = self.room_ends();
        let held = |body: ByteRange| !body.is_empty() && body.start >= room_ends;
        let ready = |pending: &Pending| pending.body.is_none_or(|body| pending.accepted && !held(body));
        if self.weather.protocol == Protocol::Http1 {
            return conn.queue.front().filter(|pending| ready(pending)).map(|_| 0);
        }
        let places: Vec<usize> = (0..conn.queue.len()).filter(|place| ready(&conn.queue[*place])).collect();
        let place = self.stream.below(places.len() as u64);
        places.get(usize::try_from(place).unwrap_or(0)).copied()
    }

    fn answer(&mut self, id: ConnId, place: usize, manner: &Manner) -> Result<(), String> {
        let room_ends = self.room_ends();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let pending = &mut conn.queue[place];
        let req = pending.req;
        let Some(body) = &mut pending.body else { return self.head(id, place, manner) };
        let room = pending.room.unwrap_or(u64::MAX);
        if body.is_empty() {
            let closes = pending.closes;
            conn.queue.remove(place);
            self.tell(Input::End { req })?;
            return if closes { self.end(id, ConnErrorKind::CleanClose) } else { Ok(()) };
        }
        if room == 0 {
            return self.end(id, ConnErrorKind::Protocol);
        }
        let most = body.len().bytes().min(room).min(1 << 16).min(room_ends - body.start);
        let len = 1 + self.stream.below(most);
        conn.last = len;
        body.start += len;
        pending.room = pending.room.map(|room| room - len);
        let len = DataSize::from_bytes(len);
        self.served += len;
        self.tell(Input::Data { req, len })?;
        if self.audience.is_none() && self.window().is_some() && self.ledger.frontier() > self.consumed {
            let after = self.up_to(Duration::from_millis(30));
            self.plan(after, Event::Consume);
        }
        if one_in(&mut self.stream, 8) && self.conns.contains_key(&id) {
            let rtt = manner.latency + self.up_to(manner.latency);
            let path = PathSample { rtt, min_rtt: manner.latency, rcv_rtt: rtt, out_of_order: 0 };
            self.tell(Input::Sample { conn: id, path })?;
        }
        Ok(())
    }

    fn head(&mut self, id: ConnId, place: usize, manner: &Manner) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        conn.answered += 1;
        let server = &mut self.weather.server;
        let last = server.keepalive_requests.is_some_and(|most| conn.answered >= most);
        let pending = &mut conn.queue[place];
        let asking = Asking { what: pending.ask, if_range: pending.if_range.as_ref(), last };
        let mut answer = server.answer(conn.link, self.now, self.served, asking);
        if self.stream.happens(manner.lies) {
            lie(&mut self.stream, &mut answer);
        }
        let Answer { head, body, .. } = answer;
        let source = match (body.edition, &head.validator) {
            (Some(edition), Some(_)) => Source::Edition(edition),
            (Some(_), None) => Source::Unproven(pending.req, Page::File),
            (None, _) => Source::Unproven(pending.req, Page::Other),
        };
        pending.body = Some(body.span);
        pending.closes = last;
        let req = pending.req;
        self.ledger.on_head(req, source, body.span.start);
        self.tell(Input::Head { req, head })
    }

    fn wake_later(&mut self, id: ConnId, manner: &Manner) {
        let sharing = self.conns.values().filter(|conn| !conn.queue.is_empty()).count() as u64;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.moving || conn.mute || conn.queue.is_empty() {
            return;
        }
        conn.moving = true;
        // All connections that have something to do share the link.
        let piece = DataSize::from_bytes(conn.last) * sharing / manner.rate;
        let after = piece + self.up_to(Duration::from_millis(20));
        self.plan(after, Event::Step(id));
    }

    fn go_wrong(&mut self, id: ConnId) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        match self.stream.below(6) {
            0 => {
                conn.mute = true;
                Ok(())
            }
            1 if conn.open && self.weather.protocol == Protocol::Http2 => match conn.queue.pop_front() {
                Some(Pending { req, .. }) => {
                    self.wake(id, false);
                    let trouble = ConnError { kind: ConnErrorKind::Reset, text: "stream reset".to_string() };
                    self.tell(Input::Aborted { req, error: trouble })
                }
                None => Ok(()),
            },
            // A framing that ends too early, where that can be known.
            2 if conn.queue.front().is_some_and(|pending| pending.accepted && pending.room.is_some()) => {
                let Some(Pending { req, .. }) = conn.queue.pop_front() else { return Ok(()) };
                self.wake(id, false);
                self.tell(Input::End { req })
            }
            3 => {
                conn.moving = true;
                let after = self.up_to(Duration::from_secs(8));
                self.plan(after, Event::Step(id));
                Ok(())
            }
            _ => {
                let kinds: &[ConnErrorKind] = if conn.open { &OPEN_ENDS } else { &EARLY_ENDS };
                let kind = kinds[usize::try_from(self.stream.below(kinds.len() as u64)).unwrap_or(0)];
                self.end(id, kind)
            }
        }
    }

    fn end(&mut self, id: ConnId, kind: ConnErrorKind) -> Result<(), String> {
        match self.conns.remove(&id) {
            Some(_) => self.tell(closed(id, kind)),
            None => Ok(()),
        }
    }
}

fn closed(conn: ConnId, kind: ConnErrorKind) -> Input {
    Input::Closed { conn, error: ConnError { kind, text: format!("{kind:?}") } }
}

/// Makes another answer of it: a portal's, a broken server's, another edge's.
fn lie(stream: &mut Stream, answer: &mut Answer) {
    let page = |stream: &mut Stream, status: u16| {
        let body = Body { edition: None, span: ByteRange::new(0, stream.below(20_000)) };
        let head = ResponseHead { status, length: Some(body.span.len()), ..ResponseHead::default() };
        Answer { head, body, spoiled: None }
    };
    match stream.below(12) {
        0..3 => *answer = page(stream, 200),
        3 => *answer = page(stream, 404),
        4 => *answer = page(stream, 403),
        5 => *answer = page(stream, 302),
        6 => *answer = page(stream, 503),
        7 => answer.head.is_encoded = true,
        8 => answer.head.range = None,
        9 => {
            // What is cut elsewhere than the server cuts it is not the server's file, whatever validator it carries.
            answer.body.edition = None;
            answer.head.length = Some(DataSize::from_bytes(stream.below(1_000_000)));
        }
        10 => {
            // Another edge of a content network, which has an edition of its own.
            answer.body.edition = Some(OTHER_EDGE);
            answer.head.validator = etag(OTHER_EDGE);
        }
        _ => {
            if let Some(ContentRange { range: Some(span), .. }) = &mut answer.head.range {
                span.start += 1 + stream.below(1000);
                span.end = span.end.max(span.start);
                answer.body.span = *span;
            }
        }
    }
}

const EARLY_ENDS: [ConnErrorKind; 5] = [
    ConnErrorKind::Refused,
    ConnErrorKind::Unreachable,
    ConnErrorKind::TimedOut,
    ConnErrorKind::Dns,
    ConnErrorKind::Tls,
];
const OPEN_ENDS: [ConnErrorKind; 4] =
    [ConnErrorKind::CleanClose, ConnErrorKind::Truncated, ConnErrorKind::Reset, ConnErrorKind::Protocol];
/// The edition that only another edge has; it is as long as the server's.
const OTHER_EDGE: usize = 9;
/// More than any history needs whose machine makes progress.
const MOST_STEPS: u32 = 1_000_000;
