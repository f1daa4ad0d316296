//! The pump: one task that owns every socket, tells the machine what happens, and does what it asks.
//!
//! In: readiness of sockets, time, changes of links, the user's interrupt. Out: bytes in the store, lines and progress
//! for the watcher, and in the end a verdict.
//!
//! 1. Everything happens in [`Pump::poll`], on one thread; there are no channels and no locks, and the machine's
//!    contract (drain after each call) is kept in one place, [`Pump::act`].
//! 2. Bytes go once from the socket's buffer to the store. The machine hears of them at most once a millisecond, and
//!    always before it hears of anything else.
//! 3. What the machine asks for is done at once; what comes of it is an input of the next turn. An order that cannot be
//!    carried out is answered, too: its connection is over.
//! 4. Sockets write only when they are looked at. So a turn in which something was ordered is followed by another one.
//! 5. Connections have their turns one behind the other, so that a limit is shared.
//! 6. A stream that is full stops the reading of the answers that would overfill it ([`Place::room`]).
//!
//! A task per connection was not used: at 10 Gbit/s on one core the hand-over of buffers would cost more than all
//! decisions together.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::fetch::{
    ConnError, ConnErrorKind, ConnId, DigestScope, Input, Notice, Output, ReqId, RequestRange, UrlId, Validator,
};
use marline_core::link::LinkId;
use marline_core::stream::{LinkMode, StreamEvent};
use marline_core::units::{DataSize, Instant};
use marline_net::http::{Described, Event};
use marline_sys::mptcp::Spoken;
use tokio::time::Sleep;

use super::driven::{Driven, Order};
use super::limit::Limits;
use super::links::Uplinks;
use super::log::Logged;
use super::mptcp::Together;
use super::origins::Origins;
use super::place::Place;
use super::sockets::{Happening, Refused, Sockets};
use super::tally::{self, Tally};
use super::verify::Verifier;
use super::{GetError, Watcher, lines, page};

/// See the [module](self).
pub(super) struct Pump<'a, M: Driven> {
    pub(super) started: std::time::Instant,
    pub(super) logged: Logged<M>,
    pub(super) place: Place,
    pub(super) tallies: Vec<Tally>,
    pub(super) origins: Origins,
    pub(super) uplinks: Uplinks,
    pub(super) watcher: &'a mut dyn Watcher,
    pub(super) resumed: u64,
    /// The suggested name of the first good answer; what becomes of it is the run's matter.
    pub(super) disposition: Option<String>,
    /// What the last good answer said of its body, whose it was, and the server's address.
    pub(super) described: Option<(UrlId, Option<IpAddr>, Described)>,
    /// What a stream has said, for whoever watches it.
    pub(super) said: Vec<StreamEvent>,
    /// Whether an encoded body is taken as it comes, instead of being refused.
    pub(super) takes_encoded: bool,
    /// Whether copies and a digest that the user's server names are used.
    pub(super) takes_sources: bool,
    pub(super) sockets: Sockets,
    pub(super) limits: Limits,
    /// Compares what is in its place with its digest.
    pub(super) verifier: Verifier,
    /// The date of a first response was compared with that of the last run.
    is_dated: bool,
    /// The first good answer has come: name and size are known.
    pub(super) identity: Option<(Option<DataSize>, Option<Validator>)>,
    /// Links with a budget that this download may use, and how much it may carry there; none: each has its own.
    pub(super) leases: Option<BTreeMap<LinkId, DataSize>>,
    /// Which links wait because one connection may carry all of them.
    pub(super) together: Together,
    /// Bytes that the machine has not heard of yet, and since when.
    unheard: Vec<(ReqId, DataSize)>,
    unheard_since: Instant,
    next_sample: Instant,
    next_progress: Instant,
    consumed: u64,
    /// Told when a stream's reader has taken something.
    reader: Option<Reader>,
    /// The machine has ordered something that waits for a look at the sockets.
    ordered: bool,
    /// What the machine is to hear in the next turn.
    answers: Vec<Input>,
    sleep: Pin<Box<Sleep>>,
    sleep_until: Instant,
    /// A notice was shown.
    told: bool,
    /// It was said that the body is encoded.
    encoding_told: bool,
    /// The connection that brought bytes last.
    served: ConnId,
    /// Set once: everything is there, or why it will not be.
    end: Option<Result<(), GetError>>,
}

/// Waits for the reader of a stream.
type Reader = Pin<Box<dyn Future<Output = ()>>>;

impl<'a, M: Driven> Pump<'a, M> {
    pub(super) fn new(
        logged: Logged<M>,
        place: Place,
        sockets: Sockets,
        origins: Origins,
        uplinks: Uplinks,
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
            watcher,
            resumed: 0,
            disposition: None,
            described: None,
            said: Vec::new(),
            takes_encoded: false,
            takes_sources: false,
            encoding_told: false,
            // Nobody yet: the first one comes first.
            served: ConnId(u32::MAX),
            sockets,
            limits: Limits::default(),
            verifier: Verifier::default(),
            is_dated: false,
            identity: None,
            leases: None,
            together: Together::default(),
            unheard: Vec::new(),
            unheard_since: Instant::ZERO,
            next_sample: Instant::ZERO,
            next_progress: Instant::ZERO,
            consumed: 0,
            reader: None,
            ordered: false,
            answers: Vec::new(),
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            sleep_until: Instant::ZERO,
            told: false,
            end: None,
        }
    }

    /// Time since the start of the run.
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// A link can be used from now on.
    pub(super) fn link_up(&mut self, link: LinkId) {
        let Some(mut profile) = self.uplinks.profile(link).cloned() else { return };
        self.introduce(link);
        if !self.together.admits(link) {
            return;
        }
        if let (Some(leases), Some(budget)) = (&self.leases, &mut profile.budget) {
            match leases.get(&link) {
                Some(left) => *budget = *left,
                None => return,
            }
        }
        if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
            tally.profile = profile.clone();
        }
        self.tell(Input::LinkUp { link, profile });
    }

    /// A link with a budget may be used, as far as so much.
    pub(super) fn lease(&mut self, link: LinkId, most: DataSize) {
        if let Some(leases) = &mut self.leases {
            leases.insert(link, most);
            self.link_up(link);
        }
    }

    /// The reader wants nothing before this offset. To be told before the first link comes.
    pub(super) fn begin_at(&mut self, from: u64) {
        if from > 0 {
            self.consumed = from;
            self.tell(Input::Consumed { end: from });
        }
    }

    /// Books for a link, in the order of the links' numbers.
    pub(super) fn introduce(&mut self, link: LinkId) {
        let Some(profile) = self.uplinks.profile(link) else { return };
        if usize::from(link.0) == self.tallies.len() {
            self.limits.set(link, profile);
            self.tallies.push(Tally::new(profile.clone()));
        }
    }

    /// Runs until there is a verdict.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), GetError>> {
        loop {
            let busy = self.turn(cx);
            if let Some(end) = self.end.take() {
                return Poll::Ready(end);
            }
            if busy {
                continue;
            }
            // Armed last: everything above may have moved the next moment of interest.
            let at = self.next_moment();
            if at != self.sleep_until {
                self.sleep_until = at;
                self.sleep.as_mut().reset((self.started + Duration::from_nanos(at.as_nanos())).into());
            }
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.sleep_until = Instant::ZERO;
        }
    }

    /// One look at everything. Tells whether there may be more to see at once.
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.now();
        for input in std::mem::take(&mut self.answers) {
            self.tell(input);
        }
        // What was ordered before this look is seen to by it.
        self.ordered = false;
        let mut busy = self.look_at_sockets(cx);
        busy |= self.verify();
        busy |= self.look_at_links(cx);
        busy |= self.look_at_store(cx, now);
        if self.logged.machine().deadline().is_some_and(|(at, _)| at <= now) {
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
            self.show(now);
        }
        busy || self.ordered || !self.answers.is_empty()
    }

    /// Reads on what is to be verified. Tells whether there is more.
    fn verify(&mut self) -> bool {
        if !self.verifier.is_busy() || self.end.is_some() {
            return false;
        }
        match self.verifier.step(&mut self.place.store) {
            Ok(Some((span, good))) => self.tell(Input::Verified { range: span, matches: good }),
            Ok(None) => {}
            Err(error) => self.end = Some(Err(error)),
        }
        true
    }

    /// Shows how it goes.
    pub(super) fn show(&mut self, now: Instant) {
        let status = self.logged.machine().status();
        let opening = |link| self.sockets.opening(link);
        let mut progress = tally::progress(&status, &self.tallies, opening, self.resumed, now);
        progress.checked = self.verifier.checked();
        self.watcher.progress(&progress);
    }

    /// All bytes are there, and so many of them have been read again for the checksum.
    pub(super) fn show_checked(&mut self, checked: u64) {
        let now = self.now();
        if now >= self.next_progress {
            self.next_progress = now + PROGRESS_EVERY;
            let status = self.logged.machine().status();
            let mut progress = tally::progress(&status, &self.tallies, |_| None, self.resumed, now);
            progress.checked = Some(checked);
            self.watcher.progress(&progress);
        }
    }

    fn next_moment(&self) -> Instant {
        let now = self.now();
        let mut at = self.next_sample.min(self.next_progress);
        if let Some((deadline, _)) = self.logged.machine().deadline() {
            at = at.min(deadline);
        }
        if let Some(deadline) = self.place.store.deadline() {
            at = at.min(deadline);
        }
        if !self.unheard.is_empty() {
            at = at.min(self.unheard_since + HEAR_EVERY);
        }
        if let Some(next) = self.limits.next(now) {
            at = at.min(next);
        }
        at
    }

    fn look_at_sockets(&mut self, cx: &mut Context<'_>) -> bool {
        let mut busy = false;
        for id in behind(self.served, self.sockets.ids()) {
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

    /// The next that happens on one connection.
    fn look_at(&mut self, id: ConnId, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.now();
        let Some((link, origin)) = self.sockets.purpose(id) else { return Poll::Pending };
        let room = self.room(id);
        let limits = &self.limits;
        let looked = self.sockets.look_at(id, cx, &mut self.place, |link| limits.level(link, now).min(room));
        let Poll::Ready(happening) = looked else { return Poll::Pending };
        if let Some(error) = self.place.take_error() {
            self.end = Some(Err(error.into()));
            return Poll::Ready(());
        }
        match happening {
            Happening::Open { protocol, handshake, peer, spoken } => {
                if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
                    tally.connections += 1;
                    tally.rtt(handshake);
                    tally.dns = self.sockets.named_by(id);
                }
                self.tell(Input::Connected { conn: id, protocol, handshake_rtt: handshake, peer: Some(peer) });
                self.spoke(spoken);
            }
            Happening::Failed(Refused { trouble, denied }) => {
                let why = trouble.clone();
                self.told = false;
                self.tell(Input::Closed { conn: id, error: trouble });
                self.failed(link, &why, denied);
                self.let_go();
            }
            Happening::Event(event) => self.event(id, link, origin, event),
        }
        Poll::Ready(())
    }

    /// What a connection speaks may let further links in.
    fn spoke(&mut self, spoken: Spoken) {
        let (links, line) = self.together.spoke(spoken);
        if let Some(line) = line {
            self.watcher.line(line);
        }
        self.let_in(links);
    }

    /// What one link was to carry does not come.
    fn let_go(&mut self) {
        let links = self.together.let_go();
        self.let_in(links);
    }

    fn let_in(&mut self, links: Vec<LinkId>) {
        self.sockets.mptcp = self.together.holds();
        links.into_iter().for_each(|link| self.link_up(link));
    }

    /// How many bytes the store takes of what comes on a connection. When there is none, the look at the store sees to
    /// it that the connection is looked at again.
    fn room(&self, conn: ConnId) -> DataSize {
        if self.place.store.window().is_none() {
            return DataSize::MAX;
        }
        let rooms = self.sockets.asked_of(conn).filter_map(|req| self.place.room(req));
        rooms.min().unwrap_or(DataSize::MAX)
    }

    fn event(&mut self, conn: ConnId, link: LinkId, origin: UrlId, event: Event) {
        let now = self.now();
        match event {
            Event::Data { req, len } => {
                if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
                    tally.data(now, len);
                }
                self.limits.take(link, len);
                self.served = conn;
                self.note(now, req, len);
            }
            Event::Head { req, mut head, location, disposition, described } => {
                self.origins.take_cookies(origin, &described.cookies);
                if let Some(location) = location {
                    if self.origins.is_full() {
                        self.origins.make_room(&self.sockets.origins());
                    }
                    match self.origins.redirect(origin, &location, self.sockets.server(conn)) {
                        Ok(id) => head.location = Some(id),
                        Err(why) => self.watcher.line(&why),
                    }
                }
                head.is_html_page = matches!(head.status, 200 | 206) && self.is_page_instead(origin, &described);
                let sources = self.sources_of(origin, conn, head.status, &described);
                let dated = (head.status == 206 && !self.is_dated)
                    .then(|| described.etag.clone().zip(described.last_modified.clone()));
                if matches!(head.status, 200 | 206) {
                    self.encoded(&mut head.is_encoded, described.encoding.as_deref());
                    self.disposition = self.disposition.take().or(disposition);
                    self.described = Some((origin, self.sockets.server(conn), *described));
                }
                self.tell(Input::Head { req, head });
                sources.into_iter().for_each(|input| self.tell(input));
                if let Some((etag, modified)) = dated.flatten() {
                    self.note_modified(&etag, &modified);
                }
            }
            Event::End { req, unconfirmed } => {
                if unconfirmed {
                    self.watcher.line(UNCONFIRMED_END);
                }
                self.sockets.ended(req);
                self.tell(Input::End { req });
                self.place.forget(req);
            }
            Event::Aborted { req, trouble } => {
                self.sockets.ended(req);
                self.place.forget(req);
                let why = trouble.clone();
                self.told = false;
                self.tell(Input::Aborted { req, error: trouble });
                self.failed(link, &why, false);
            }
            Event::Closed { trouble } => {
                self.forget(conn);
                let why = trouble.clone();
                self.told = false;
                self.tell(Input::Closed { conn, error: trouble });
                self.failed(link, &why, false);
            }
        }
    }

    /// What the server that the user has named says of other sources, once. A digest that the user gave comes first.
    fn sources_of(&mut self, origin: UrlId, conn: ConnId, status: u16, described: &Described) -> Vec<Input> {
        let speaks = matches!(status, 200 | 206 | 301 | 302 | 303 | 307 | 308);
        if !self.takes_sources || !speaks || !self.origins.is_users(origin) {
            return Vec::new();
        }
        let Some(base) = self.origins.url(origin).cloned() else { return Vec::new() };
        let mut inputs = Vec::new();
        let server = self.sockets.server(conn);
        for url in described.duplicates(&base) {
            let source = self.origins.add_source(origin, &url, server);
            inputs.extend(source.map(|origin| Input::Mirror { mirror: origin }));
        }
        let is_of_use = self.verifier.knows_nothing() && self.place.store.can_be_checked_later();
        if let Some(checksum) = described.digest().filter(|_| is_of_use) {
            self.place.store.expect(checksum.clone());
            self.verifier.learn(checksum);
            inputs.push(Input::Digest { scope: DigestScope::File });
        }
        // Redirects go on speaking of the same file; the file's own server has the last word.
        self.takes_sources = matches!(status, 300..=399);
        inputs
    }

    /// A strong ETag decides whether two responses are of one version (RFC 9110 section 8.8). A date that has changed under it
    /// since the last run is worth a line: the server may not mean what it says.
    fn note_modified(&mut self, etag: &str, modified: &str) {
        self.is_dated = true;
        match self.place.store.note_modified(etag, modified) {
            Ok(None) => {}
            Ok(Some(before)) => self.watcher.line(&format!(
                "the server's Last-Modified is {modified} and was {before}, under the same ETag: the ETag decides, \
                 the download goes on"
            )),
            Err(error) => self.end = Some(Err(error.into())),
        }
    }

    /// Whether a response is an HTML page although its URL does not name one.
    fn is_page_instead(&self, origin: UrlId, described: &Described) -> bool {
        let content_type = described.content_type.as_deref();
        self.origins.url(origin).is_some_and(|url| page::may_stand_for(url, content_type))
    }

    /// Servers that were asked for the file as it is and send it encoded often mean the file itself (a .tgz whose server
    /// takes its ending for an encoding). Ranges and validators are of the encoded bytes (RFC 9110 §8.4, §14.2), so
    /// they fit together; what they are is told.
    fn encoded(&mut self, encoded: &mut bool, encoding: Option<&str>) {
        if !self.takes_encoded || !std::mem::take(encoded) || std::mem::replace(&mut self.encoding_told, true) {
            return;
        }
        let encoding = encoding.unwrap_or("somehow");
        self.watcher.line(&format!(
            "the server says that the file is encoded ({encoding}), though it was not asked to; it is taken as it comes"
        ));
    }

    /// Something failed on a link, and the machine has heard of it. What it had to say of it needs no second line.
    fn failed(&mut self, link: LinkId, trouble: &ConnError, denied: bool) {
        let is_usual = matches!(
            trouble.kind,
            ConnErrorKind::CleanClose
                | ConnErrorKind::ClosedLocally
                | ConnErrorKind::Http1Required
                | ConnErrorKind::StreamRefused
        );
        if is_usual {
            return;
        }
        let Some(tally) = self.tallies.get_mut(usize::from(link.0)) else { return };
        let worth_a_line = tally.failed(trouble, denied);
        if self.end.is_some() {
            return;
        }
        if denied && self.is_nameless(trouble) {
            let url = self.origins.url(UrlId(0)).map(ToString::to_string).unwrap_or_default();
            self.end = Some(Err(GetError::Name { url, why: trouble.text.clone() }));
        } else if worth_a_line && !self.told {
            self.watcher.line(&lines::trouble(&self.tallies, link, trouble));
        }
    }

    /// Whether every link that has tried was told that there is no such name. This is no matter for the machine: the
    /// links work, the server is not silent, and there is only one place to ask.
    fn is_nameless(&self, trouble: &ConnError) -> bool {
        let denied = |tally: &Tally| tally.denied || (tally.retries == 0 && tally.connections == 0);
        trouble.kind == ConnErrorKind::Dns
            && self.origins.is_one()
            && self.sockets.ids().is_empty()
            && self.tallies.iter().all(|tally| tally.connections == 0 && denied(tally))
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
    pub(super) fn tell(&mut self, input: Input) {
        self.hear();
        let now = self.now();
        self.logged.handle(now, input);
        self.act();
    }

    /// The machine hears of something of which a download knows nothing.
    pub(super) fn tell_own(&mut self, input: M::Input) {
        self.hear();
        let now = self.now();
        self.logged.handle_own(now, input);
        self.act();
    }

    /// Does what the machine asks for.
    fn act(&mut self) {
        while let Some(order) = self.logged.poll() {
            if self.end.is_some() {
                continue;
            }
            let output = match order {
                Order::Fetch(output) => output,
                // The reader takes what is in order by itself.
                Order::Said(StreamEvent::Deliver { .. }) => continue,
                Order::Said(said) => {
                    self.let_rest(&said);
                    self.said.push(said);
                    continue;
                }
            };
            self.ordered |= !matches!(output, Output::Notice(_));
            match output {
                Output::Connect { conn, link, url: origin, address: at } => self.connect(conn, link, origin, at),
                Output::Request { req, conn, range, if_range } => self.request(req, conn, range, if_range),
                Output::AcceptBody { req, offset: at, len, .. } => {
                    self.place.accept(req, at, len);
                    self.sockets.accept(req, len);
                }
                Output::Cancel { req } => {
                    self.place.forget(req);
                    self.sockets.cancel(req);
                }
                Output::Close { conn } => self.forget(conn),
                Output::Identified { total, validator } => self.identified(total, validator.as_ref()),
                Output::Restart => {
                    self.consumed = 0;
                    self.is_dated = false;
                    self.resumed = 0;
                    self.place.head.clear();
                    if let Err(error) = self.place.store.restart() {
                        self.end = Some(Err(error.into()));
                    }
                }
                Output::Verify { range: span } => self.verifier.begin(span),
                Output::Notice(notice) => self.notice(&notice),
                Output::Done => self.end = Some(Ok(())),
                Output::Failed(failure) => {
                    let url = self.origins.url(UrlId(0)).map(ToString::to_string).unwrap_or_default();
                    self.end = Some(Err(GetError::Failed { url, failure }));
                }
            }
        }
    }

    /// What stands over links that rest from now on must not wake them later.
    fn let_rest(&self, said: &StreamEvent) {
        let rests = |id: LinkId| match *said {
            StreamEvent::Standby { link, standby: true, .. } => id == link,
            StreamEvent::Mode { mode: LinkMode::Only(link), .. } => id != link,
            _ => false,
        };
        let resting = self.uplinks.ids().filter(|id| rests(*id));
        resting.filter_map(|id| self.uplinks.interface(id)).for_each(|interface| self.sockets.rests(interface));
    }

    fn connect(&mut self, conn: ConnId, link: LinkId, origin: UrlId, at: Option<IpAddr>) {
        match (self.origins.url(origin), self.origins.right(origin)) {
            (Some(url), Some(right)) => {
                self.sockets.connect(conn, link, origin, (url, at, right), self.uplinks.interface(link).cloned());
            }
            _ => self.refuse(conn, "no URL has this number"),
        }
    }

    fn request(&mut self, req: ReqId, conn: ConnId, range: RequestRange, if_range: Option<Validator>) {
        let Some((link, origin)) = self.sockets.purpose(conn) else { return self.refuse(conn, "it is not there") };
        let Some(get) = self.origins.get(origin, range, if_range) else {
            return self.refuse(conn, "its URL names no host");
        };
        if !self.sockets.request(req, conn, &get) {
            return self.refuse(conn, "it is not open");
        }
        if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
            tally.requests += 1;
        }
    }

    /// An order for a connection cannot be carried out: the machine hears that it is over, as of any other that ends
    /// (rule 6 of its contract).
    fn refuse(&mut self, conn: ConnId, why: &str) {
        self.forget(conn);
        let trouble =
            ConnError { kind: ConnErrorKind::ClosedLocally, text: format!("the connection cannot be used: {why}") };
        self.answers.push(Input::Closed { conn, error: trouble });
    }

    fn forget(&mut self, conn: ConnId) {
        for req in self.sockets.close(conn) {
            self.place.forget(req);
        }
    }

    fn identified(&mut self, total: Option<DataSize>, validator: Option<&Validator>) {
        if let Some(suggested) = self.uplinks.name_from(self.disposition.as_deref(), self.origins.url(UrlId(0))) {
            self.place.store.name(suggested.name.as_ref());
            if let Some(note) = suggested.note {
                self.watcher.line(&note);
            }
        }
        self.identity = Some((total, validator.cloned()));
        if let Err(error) = self.place.store.identified(total, validator) {
            self.end = Some(Err(error.into()));
        }
        self.pass_notes();
    }

    /// What the server calls the file, if it may.
    pub(super) fn suggested_name(&self) -> Option<String> {
        let name = self.uplinks.name_from(self.disposition.as_deref(), self.origins.url(UrlId(0)));
        name.map(|suggested| suggested.name)
    }

    /// What the store has to tell the user.
    fn pass_notes(&mut self) {
        while let Some(note) = self.place.store.take_note() {
            self.watcher.line(&note);
            self.told = true;
        }
    }

    fn notice(&mut self, notice: &Notice) {
        // From now on the journal is of another URL.
        if let Notice::MirrorSwitched { next, .. } = notice
            && let Some(url) = self.origins.url(*next)
        {
            self.place.store.set_source(url);
        }
        let line = lines::notice(notice, &self.tallies, &self.origins, |link| self.sockets.opening(link));
        self.watcher.line(&line);
        self.told = true;
    }

    /// Interfaces that came, went or changed.
    fn look_at_links(&mut self, cx: &mut Context<'_>) -> bool {
        let Poll::Ready(changes) = self.uplinks.poll_changes(cx) else { return false };
        self.sockets.forget_names();
        for link in changes.gone {
            self.tell(Input::LinkDown { link });
            let others = self.together.gone(link);
            self.let_in(others);
        }
        for link in changes.come {
            self.link_up(link);
        }
        true
    }

    /// Tells whether a stream's reader has made room.
    fn look_at_store(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
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
            return false;
        }
        if due {
            self.pass_notes();
        }
        let upto = self.place.store.consumed();
        let more = upto > self.consumed;
        if more {
            self.consumed = upto;
            self.tell(Input::Consumed { end: upto });
        }
        more
    }

    fn sample(&mut self) {
        if self.sockets.has_fallen_back() {
            self.spoke(Spoken::FellBack);
        }
        for (conn, link, path) in self.sockets.paths() {
            if let Some(tally) = self.tallies.get_mut(usize::from(link.0)) {
                tally.rtt(path.min_rtt);
            }
            self.tell(Input::Sample { conn, path });
        }
    }
}

/// The connections, in the order of their numbers, from the one behind `served` on: under a limit the first one takes what
/// there is, and whoever came behind it each time would look silent.
fn behind(served: ConnId, mut ids: Vec<ConnId>) -> Vec<ConnId> {
    let after = ids.partition_point(|id| *id <= served);
    ids.rotate_left(after);
    ids
}

/// Other downloaders say nothing of it.
const UNCONFIRMED_END: &str = "the server ended the connection without closing TLS, and told no length: the file may \
                               be cut short (--checksum would tell)";
/// Reads on one connection before the others have their turn.
const READS_A_TURN: usize = 4;
/// The machine hears of bytes this often; finer steps cost time and change no decision.
const HEAR_EVERY: Duration = Duration::from_millis(1);
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
