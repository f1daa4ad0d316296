//! The pump: one task that owns every socket, tells the machine what happens, and does what it asks.
//!
//! In: readiness of sockets, time, changes of links, the user's interrupt. Out: bytes in the store, lines and progress
//! for the watcher, and in the end a verdict.
//!
//! 1. Everything happens in [`Pump::poll`], on one thread; there are no channels and no locks, and the machine's
//!    contract (drain after each call) is kept in one place, [`Pump::act`].
//! 2. Bytes go once from the socket's buffer to the store. The machine hears of them at most once a millisecond, and
//!    always before it hears of anything else.
//! 3. What the machine asks for is done at once; what comes of it is an input of the next turn.
//!
//! A task per connection was not used: at 10 Gbit/s on one core the hand-over of buffers would cost more than all
//! decisions together.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::fetch::{Ask, ConnId, Input, Notice, OriginId, Output, ReqId, Trouble, TroubleKind, Validator};
use marline_core::link::LinkId;
use marline_core::machine::Machine as _;
use marline_core::units::{DataSize, Instant};
use rustls::ClientConfig;
use tokio::time::Sleep;

use super::limit::Bucket;
use super::links::Uplinks;
use super::log::Logged;
use super::origins::{Origins, host_of};
use super::place::Place;
use super::tally::{self, Tally};
use super::{GetError, Watcher, lines};
use crate::dns::{Answer, Resolver};
use crate::http::{Connection, Dial, Event, Windows};

/// See the [module](self).
pub(super) struct Pump<'a> {
    pub(super) started: std::time::Instant,
    pub(super) logged: Logged,
    pub(super) place: Place,
    pub(super) tallies: Vec<Tally>,
    pub(super) origins: Origins,
    pub(super) uplinks: Uplinks,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) watcher: &'a mut dyn Watcher,
    pub(super) resumed: u64,
    /// The suggested name of the first good answer; what becomes of it is the run's matter.
    pub(super) disposition: Option<String>,
    slots: BTreeMap<ConnId, Slot>,
    /// The connection of each request that is not complete.
    reqs: BTreeMap<ReqId, ConnId>,
    names: BTreeMap<(LinkId, String), Answer>,
    resolver: Rc<Resolver>,
    total_limit: Option<Bucket>,
    link_limits: BTreeMap<LinkId, Bucket>,
    scratch: Vec<u8>,
    /// Bytes that the machine has not heard of yet, and since when.
    unheard: Vec<(ReqId, DataSize)>,
    unheard_since: Instant,
    next_sample: Instant,
    next_progress: Instant,
    consumed: u64,
    /// Told when a stream's reader has taken something.
    reader: Option<Reader>,
    sleep: Pin<Box<Sleep>>,
    sleep_until: Instant,
    /// Set once: everything is there, or why it will not be.
    end: Option<Result<(), GetError>>,
}

/// A connection and what it is for.
struct Slot {
    link: LinkId,
    origin: OriginId,
    state: State,
}

enum State {
    Dialing(Pin<Box<dyn Future<Output = Dialed>>>),
    Open(Box<Connection>),
}

/// Waits for the reader of a stream.
type Reader = Pin<Box<dyn Future<Output = ()>>>;

/// The name's addresses, if they were looked up, and the connection.
type Dialed = (Option<Answer>, Result<Connection, Trouble>);

impl<'a> Pump<'a> {
    pub(super) fn new(
        logged: Logged,
        place: Place,
        origins: Origins,
        uplinks: Uplinks,
        limit: Option<marline_core::units::Bitrate>,
        watcher: &'a mut dyn Watcher,
        started: std::time::Instant,
    ) -> Self {
        Self {
            started,
            logged,
            place,
            tallies: Vec::new(),
            origins,
            uplinks,
            tls: None,
            watcher,
            resumed: 0,
            disposition: None,
            slots: BTreeMap::new(),
            reqs: BTreeMap::new(),
            names: BTreeMap::new(),
            resolver: Rc::new(Resolver::new()),
            total_limit: limit.map(Bucket::new),
            link_limits: BTreeMap::new(),
            scratch: vec![0; SCRATCH],
            unheard: Vec::new(),
            unheard_since: Instant::ZERO,
            next_sample: Instant::ZERO,
            next_progress: Instant::ZERO,
            consumed: 0,
            reader: None,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            sleep_until: Instant::ZERO,
            end: None,
        }
    }

    /// Time since the start of the run.
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// A link can be used from now on.
    pub(super) fn link_up(&mut self, link: LinkId) {
        let Some(profile) = self.uplinks.profile(link).cloned() else { return };
        if usize::from(link.0) == self.tallies.len() {
            self.tallies.push(Tally::new(profile.clone()));
            if let Some(limit) = profile.limit {
                self.link_limits.insert(link, Bucket::new(limit));
            }
        }
        self.tell(Input::LinkUp { link, profile });
    }

    /// Runs until there is a verdict.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), GetError>> {
        loop {
            let busy = self.turn(cx);
            if let Some(end) = self.end.take() {
                return Poll::Ready(end);
            }
            if !busy {
                break;
            }
        }
        // Armed last: everything above may have moved the next moment of interest.
        loop {
            let at = self.next_moment();
            if at != self.sleep_until {
                self.sleep_until = at;
                self.sleep.as_mut().reset((self.started + Duration::from_nanos(at.as_nanos())).into());
            }
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.sleep_until = Instant::ZERO;
            self.turn(cx);
            if let Some(end) = self.end.take() {
                return Poll::Ready(end);
            }
        }
    }

    /// One look at everything. Tells whether there may be more to see at once.
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.now();
        let mut busy = self.look_at_sockets(cx);
        busy |= self.look_at_links(cx);
        self.look_at_store(cx, now);
        if self.logged.machine.deadline().is_some_and(|(at, _)| at <= now) {
            self.hear();
            self.logged.tick(now);
            self.act();
        }
        if !self.unheard.is_empty() && now >= self.unheard_since + HEAR_EVERY {
            self.hear();
        }
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_EVERY;
            self.sample();
        }
        if now >= self.next_progress {
            self.next_progress = now + PROGRESS_EVERY;
            let status = self.logged.machine.status();
            self.watcher.progress(&tally::progress(&status, &self.tallies, self.resumed, now));
        }
        busy
    }

    fn next_moment(&mut self) -> Instant {
        let now = self.now();
        let mut at = self.next_sample.min(self.next_progress);
        if let Some((deadline, _)) = self.logged.machine.deadline() {
            at = at.min(deadline);
        }
        if let Some(deadline) = self.place.store.deadline() {
            at = at.min(deadline);
        }
        if !self.unheard.is_empty() {
            at = at.min(self.unheard_since + HEAR_EVERY);
        }
        for bucket in self.total_limit.iter_mut().chain(self.link_limits.values_mut()) {
            at = at.min(bucket.next(now));
        }
        at
    }

    fn look_at_sockets(&mut self, cx: &mut Context<'_>) -> bool {
        let mut busy = false;
        let ids: Vec<ConnId> = self.slots.keys().copied().collect();
        for id in ids {
            for _ in 0..READS_A_TURN {
                match self.look_at(id, cx) {
                    Poll::Ready(()) => busy = true,
                    Poll::Pending => break,
                }
                if self.end.is_some() {
                    return false;
                }
            }
        }
        busy
    }

    /// The next event of one connection.
    fn look_at(&mut self, id: ConnId, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.now();
        let Some(slot) = self.slots.get_mut(&id) else { return Poll::Pending };
        let (link, origin) = (slot.link, slot.origin);
        match &mut slot.state {
            State::Dialing(dialing) => {
                let Poll::Ready((answer, dialed)) = dialing.as_mut().poll(cx) else { return Poll::Pending };
                self.dialed(id, link, origin, answer, dialed);
            }
            State::Open(connection) => {
                let mut most = DataSize::from_bytes(SCRATCH as u64);
                for bucket in self.total_limit.iter_mut().chain(self.link_limits.get_mut(&link)) {
                    most = most.min(bucket.level(now));
                }
                let event = connection.poll_event(cx, &mut self.scratch, &mut self.place, most);
                let Poll::Ready(event) = event else { return Poll::Pending };
                if let Some(error) = self.place.take_error() {
                    self.end = Some(Err(error.into()));
                    return Poll::Ready(());
                }
                self.event(id, link, origin, event);
            }
        }
        Poll::Ready(())
    }

    fn dialed(
        &mut self,
        id: ConnId,
        link: LinkId,
        origin: OriginId,
        answer: Option<Answer>,
        dialed: Result<Connection, Trouble>,
    ) {
        if let Some(answer) = answer
            && let Some(url) = self.origins.url(origin)
        {
            if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
                tally.dns = Some(answer.source.to_string());
            }
            self.names.insert((link, host_of(url)), answer);
        }
        match dialed {
            Ok(connection) => {
                let (protocol, handshake) = (connection.protocol(), connection.handshake());
                if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
                    tally.connections += 1;
                    tally.rtt(handshake);
                }
                if let Some(slot) = self.slots.get_mut(&id) {
                    slot.state = State::Open(Box::new(connection));
                }
                self.tell(Input::Connected { conn: id, protocol, handshake });
            }
            Err(trouble) => {
                // The addresses may be what is wrong: the next try asks again.
                if let Some(url) = self.origins.url(origin) {
                    self.names.remove(&(link, host_of(url)));
                }
                self.slots.remove(&id);
                self.failed(link, &trouble);
                self.tell(Input::Closed { conn: id, trouble });
            }
        }
    }

    fn event(&mut self, conn: ConnId, link: LinkId, origin: OriginId, event: Event) {
        let now = self.now();
        match event {
            Event::Data { req, len } => {
                if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
                    tally.data(now, len);
                }
                for bucket in self.total_limit.iter_mut().chain(self.link_limits.get_mut(&link)) {
                    bucket.take(len);
                }
                self.note(now, req, len);
            }
            Event::Head { req, mut head, location, disposition } => {
                if let Some(location) = location {
                    match self.origins.redirect(origin, &location) {
                        Ok(id) => head.location = Some(id),
                        Err(why) => self.watcher.line(&why),
                    }
                }
                if matches!(head.status, 200 | 206) && disposition.is_some() {
                    self.disposition = self.disposition.take().or(disposition);
                }
                self.tell(Input::Head { req, head });
            }
            Event::End { req } => {
                self.reqs.remove(&req);
                self.tell(Input::End { req });
                self.place.forget(req);
            }
            Event::Aborted { req, trouble } => {
                self.reqs.remove(&req);
                self.place.forget(req);
                self.failed(link, &trouble);
                self.tell(Input::Aborted { req, trouble });
            }
            Event::Closed { trouble } => {
                self.forget(conn);
                self.failed(link, &trouble);
                self.tell(Input::Closed { conn, trouble });
            }
        }
    }

    fn failed(&mut self, link: LinkId, trouble: &Trouble) {
        if !matches!(trouble.kind, TroubleKind::Finished | TroubleKind::Local)
            && let Some(tally) = self.tallies.get_mut(usize::from(link.0))
        {
            tally.retries += 1;
        }
    }

    /// Bytes that the machine will hear of.
    fn note(&mut self, now: Instant, req: ReqId, len: DataSize) {
        if self.unheard.is_empty() {
            self.unheard_since = now;
        }
        match self.unheard.iter_mut().find(|(other, _)| *other == req) {
            Some((_, sum)) => *sum += len,
            None => self.unheard.push((req, len)),
        }
    }

    /// The machine hears of the bytes that have come.
    fn hear(&mut self) {
        let now = self.now();
        let mut unheard = std::mem::take(&mut self.unheard);
        for (req, len) in unheard.drain(..) {
            self.logged.handle(now, Input::Data { req, len });
            self.act();
        }
        self.unheard = unheard;
    }

    /// The machine hears of something else than bytes.
    fn tell(&mut self, input: Input) {
        self.hear();
        let now = self.now();
        self.logged.handle(now, input);
        self.act();
    }

    /// Does what the machine asks for.
    fn act(&mut self) {
        while let Some(output) = self.logged.poll() {
            if self.end.is_some() {
                continue;
            }
            match output {
                Output::Connect { conn, link, origin } => self.connect(conn, link, origin),
                Output::Request { req, conn, range, if_range } => self.request(req, conn, range, if_range),
                Output::Accept { req, at, len } => {
                    self.place.accept(req, at);
                    if let Some(connection) = self.connection_of(req) {
                        connection.accept(req, len);
                    }
                }
                Output::Cancel { req } => {
                    self.place.forget(req);
                    if let Some(connection) = self.connection_of(req) {
                        connection.cancel(req);
                    }
                    self.reqs.remove(&req);
                }
                Output::Close { conn } => self.forget(conn),
                Output::Identified { total, validator } => self.identified(total, validator.as_ref()),
                Output::Restart => {
                    self.consumed = 0;
                    self.resumed = 0;
                    if let Err(error) = self.place.store.restart() {
                        self.end = Some(Err(error.into()));
                    }
                }
                Output::Notice(notice) => self.notice(&notice),
                Output::Done => self.end = Some(Ok(())),
                Output::Failed(failure) => {
                    let url = self.origins.url(OriginId(0)).map(ToString::to_string).unwrap_or_default();
                    self.end = Some(Err(GetError::Failed { url, failure }));
                }
            }
        }
    }

    fn connect(&mut self, conn: ConnId, link: LinkId, origin: OriginId) {
        let Some(url) = self.origins.url(origin) else { return };
        let host = host_of(url);
        let port = url.port_or_known_default().unwrap_or(80);
        let tls = if url.scheme() == "https" { self.tls.clone() } else { None };
        let interface = self.uplinks.interface(link).cloned();
        let device = interface.as_ref().map(|interface| interface.name.clone());
        let known = self.names.get(&(link, host.clone())).cloned();
        let resolver = Rc::clone(&self.resolver);
        let dialing = async move {
            let (answer, fresh) = match known {
                Some(answer) => (answer, false),
                None => match resolver.resolve(&host, interface.as_ref(), NAME_TIMEOUT).await {
                    Ok(answer) => (answer, true),
                    Err(trouble) => return (None, Err(trouble)),
                },
            };
            let addresses = answer.addresses.iter().map(|ip| (*ip, port).into()).collect();
            let windows = Windows::default();
            let dial = Dial { device, addresses, server_name: host, tls, timeout: DIAL_TIMEOUT, windows };
            let dialed = Connection::dial(dial).await;
            (fresh.then_some(answer), dialed)
        };
        self.slots.insert(conn, Slot { link, origin, state: State::Dialing(Box::pin(dialing)) });
    }

    fn request(&mut self, req: ReqId, conn: ConnId, range: Ask, if_range: Option<Validator>) {
        let Some(slot) = self.slots.get_mut(&conn) else { return };
        let (State::Open(connection), Some(get)) =
            (&mut slot.state, self.origins.get(slot.origin, range, if_range))
        else {
            return;
        };
        connection.request(req, &get);
        self.reqs.insert(req, conn);
        if let Some(tally) = self.tallies.get_mut(usize::from(slot.link.0)) {
            tally.requests += 1;
        }
    }

    fn connection_of(&mut self, req: ReqId) -> Option<&mut Connection> {
        let conn = self.reqs.get(&req)?;
        match &mut self.slots.get_mut(conn)?.state {
            State::Open(connection) => Some(connection),
            State::Dialing(_) => None,
        }
    }

    fn forget(&mut self, conn: ConnId) {
        self.slots.remove(&conn);
        let place = &mut self.place;
        self.reqs.retain(|req, of| {
            if *of == conn {
                place.forget(*req);
            }
            *of != conn
        });
    }

    fn identified(&mut self, total: Option<DataSize>, validator: Option<&Validator>) {
        if let Some(name) = self.uplinks.name_from(self.disposition.as_deref(), self.origins.url(OriginId(0))) {
            self.place.store.name(name.as_ref());
        }
        if let Err(error) = self.place.store.identified(total, validator) {
            self.end = Some(Err(error.into()));
        }
    }

    fn notice(&mut self, notice: &Notice) {
        let line = lines::notice(notice, &self.tallies, &self.origins);
        self.watcher.line(&line);
    }

    /// Interfaces that came, went or changed.
    fn look_at_links(&mut self, cx: &mut Context<'_>) -> bool {
        let Poll::Ready(changes) = self.uplinks.poll_changes(cx) else { return false };
        for link in changes.gone {
            self.tell(Input::LinkDown { link });
        }
        for link in changes.come {
            self.link_up(link);
        }
        true
    }

    fn look_at_store(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Some(wake) = self.place.store.wake() {
            let reader = self.reader.get_or_insert_with(|| Box::pin(async move { wake.notified().await }));
            if reader.as_mut().poll(cx).is_pending() {
                break;
            }
            self.reader = None;
        }
        let store = &mut self.place.store;
        let due = store.deadline().is_some_and(|at| at <= now) || store.window().is_some();
        if due && let Err(error) = store.tick(now) {
            self.end = Some(Err(error.into()));
            return;
        }
        let upto = self.place.store.consumed();
        if upto > self.consumed {
            self.consumed = upto;
            self.tell(Input::Consumed { upto });
        }
    }

    fn sample(&mut self) {
        let mut samples = Vec::new();
        for (id, slot) in &self.slots {
            if let State::Open(connection) = &slot.state
                && self.reqs.values().any(|conn| conn == id)
            {
                samples.push((*id, slot.link, connection.path()));
            }
        }
        for (conn, link, path) in samples {
            if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
                tally.rtt(path.min_rtt);
            }
            self.tell(Input::Sample { conn, path });
        }
    }
}

/// One buffer for all reads. chosen: larger ones save no system calls below 10 Gbit/s.
const SCRATCH: usize = 256 * 1024;
/// Reads on one connection before the others have their turn.
const READS_A_TURN: usize = 4;
/// The machine hears of bytes this often; finer steps cost time and change no decision.
const HEAR_EVERY: Duration = Duration::from_millis(1);
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
const NAME_TIMEOUT: Duration = Duration::from_secs(5);
/// Linux sends four SYNs in this time (RFC 6298 back-off: at 0, 1, 3 and 7 s).
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
