//! What one player plays: a URL, what is known of its resource, and the answers that are under way.
//!
//! In: a player's wish for some bytes. Out: what the resource is, and a body that delivers them in order over all links.
//!
//! 1. A session is one player (its address and User-Agent) at one URL. It lives while something plays, and for
//!    [`LINGER`] afterwards, so that a seek finds what is known.
//! 2. Each answer is one [`Feed`]. The machine behind it may change; what the front sees is [`Sessions::open`].
//! 3. A resource whose ranges fit together (size and strong validator) is remembered, with the place that redirects have
//!    led to. The first answer of a transfer proves that it still holds (If-Range); if not, it is asked for anew, once.
//! 4. A resource without ranges is played as one answer over one link; one with ranges that nothing proves to fit
//!    together is passed on range by range.
//! 5. When the player closes, everything that was under way for this answer ends at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use base64::Engine as _;
use http::header::HeaderValue;
use marline_core::fetch::{ByteRange, ConnError, ConnErrorKind, Failure, RequestRange};
use marline_core::units::{Bitrate, DataSize};
use marline_download::store::{Identity, Reader, StoreError};
use marline_download::{Feed, GetError, Known, Learnt, Network, Progress, Watcher as _};
use marline_net::http::Described;
use marline_net::http::host_of;
use marline_net::links::Interface;
use marline_net::reach::Right;
use serde_json::json;
use tokio::time::{sleep, timeout};
use url::Url;

use super::ahead::Ahead;
use super::body::{Play, Task, Work};
use super::choice::{Candidate, Choice, Pair};
use super::ear::{Decided, Ear};
use super::events::Events;
use super::fields::{Jars, Sent};
use super::hold::{Hold, Start};
use super::list_reader::ListReader;
use super::loans::Loans;
use super::memory::{Client, Grant, Lacks, Memory};
use super::playlist_answer::Kind;
use super::radios::Radios;
use super::range::{self, Wanted};
use super::series::{Part, Viewing};
use super::single::{DRAINS, FIRST_BYTE, PATIENCE, Peeked, Question, Single};
use super::target::{Target, shown};
use super::terms::Terms;
use super::told::Told;
use super::watching::Watching;

/// All sessions, and what they share.
pub(super) struct Sessions {
    pub(super) network: Rc<Network>,
    pub(super) memory: Memory,
    pub(super) loans: Loans,
    pub(super) lists: ListReader,
    pub(super) events: Rc<Events>,
    pub(super) choice: Rc<RefCell<Choice>>,
    pub(super) ahead: Ahead,
    pub(super) radios: Rc<RefCell<Radios>>,
    pub(super) terms: Terms,
    pub(super) jars: Jars,
    table: RefCell<BTreeMap<Key, Rc<Session>>>,
    next: Cell<u64>,
    started: Instant,
}

/// What makes two requests of one session: the URL with its login, the player, the fields that are passed on, and what it
/// may reach. What was fetched for one of them is given to no other.
type Key = (String, String, Vec<u8>, Right);

/// One player at one URL.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) url: Url,
    pub(super) player: String,
    /// What its URL may lead to.
    pub(super) right: Right,
    user: Option<(String, String)>,
    pub(super) sent: Sent,
    resource: RefCell<Option<Resource>>,
    /// How the last look at the resource ended, in words.
    pub(super) reason: RefCell<String>,
    pub(super) progress: RefCell<Option<Progress>>,
    pub(super) plays: RefCell<BTreeMap<u64, Under>>,
    windows: Cell<u64>,
    /// How much may wait for one answer: less for one of several segments than for a film.
    pub(super) most: Cell<DataSize>,
    /// It is a playlist or manifest.
    pub(super) list: Cell<Option<Kind>>,
    /// It was requested as a list, and that answer was none. Other answers may be.
    pub(super) not_a_list: Cell<bool>,
    /// The first byte of the resource, as the last answer had it.
    pub(super) first_byte: Cell<Option<u8>>,
    /// The player did not take the last answer to its end.
    pub(super) left_early: Cell<bool>,
    /// It is being opened ahead of the player.
    pub(super) opening: Cell<bool>,
    pub(super) delivered: Cell<u64>,
    seen: Cell<Instant>,
    pub(super) started: Instant,
    pub(super) watching: RefCell<Watching>,
    pub(super) hold: Hold,
    /// What its player says of itself, and when it did.
    pub(super) told: RefCell<Option<(Told, Instant)>>,
    pub(super) decided: RefCell<Decided>,
    /// The segments that are answers of it, by their first bytes, and what its player plays.
    parts: RefCell<BTreeMap<u64, Segment>>,
    /// What the last answer has learnt of links.
    pub(super) expected: RefCell<Vec<(String, Bitrate, bool)>>,
}

/// A segment, and what its player plays.
pub(super) type Segment = (Rc<Viewing>, Rc<Part>);

/// An answer under way: what it is of, and its window.
pub(super) type Under = (Range<u64>, Weak<Reader>);

/// What is known of a resource whose ranges fit together.
#[derive(Clone, Debug)]
struct Resource {
    known: Known,
    described: Described,
    url: Url,
    /// What this URL may be connected to.
    right: Right,
    checked: Instant,
}

/// What an answer to the player says.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) described: Described,
    pub(super) total: Option<u64>,
    /// The bytes of a 206; none: a 200.
    pub(super) span: Option<Range<u64>>,
    /// Whether ranges of it can be asked for.
    pub(super) ranges: bool,
}

/// The bytes behind a head.
pub(super) enum Bytes {
    /// Over all links.
    Play(Box<Play>),
    /// As one answer brings them.
    Single(Box<Single>),
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The range lies beyond the end; the size.
    Beyond(u64),
    /// The origin says so: its status.
    Status(u16),
    /// The origin cannot be reached, or does not make sense.
    Gone(String),
    /// The address may not be reached by whoever asks, or by what led to it.
    Forbidden(String),
    /// It would lead back to the proxy.
    Loop(String),
    /// The origin takes requests and does not answer.
    Silent(String),
    /// No link can be used.
    NoLink(String),
    /// No memory is left for one more player.
    Full,
}

/// What a look at a resource has found.
enum Looked {
    Ranges(Resource),
    /// Ranges that nothing proves to fit together.
    Loose(Head),
    /// No ranges.
    Whole(Head),
}

impl Bytes {
    /// Takes bytes in until there are enough of them, or the end; they stay.
    pub(super) async fn peek(&mut self, is_enough: &impl Fn(&[u8]) -> bool) -> Peeked {
        match self {
            Self::Play(play) => play.peek(is_enough).await,
            Self::Single(single) => single.peek(is_enough).await,
        }
    }

    /// The bytes that have been taken in.
    pub(super) fn peeked(&self) -> &[u8] {
        match self {
            Self::Play(play) => play.peeked(),
            Self::Single(single) => single.peeked(),
        }
    }
}

impl Sessions {
    pub(super) fn new(network: Rc<Network>, memory: Memory, events: Rc<Events>, terms: Terms) -> Self {
        Self {
            network,
            memory,
            loans: Loans::default(),
            lists: ListReader::default(),
            events,
            choice: Rc::default(),
            ahead: Ahead::default(),
            radios: Rc::new(RefCell::new(Radios::new(terms.energy.clone()))),
            next: Cell::new(terms.first_number()),
            terms,
            jars: Jars::default(),
            table: RefCell::default(),
            started: Instant::now(),
        }
    }

    /// The session of a player at a URL, a new one if there is none.
    pub(super) fn of(&self, target: Target, player: String, sent: Sent, right: Right) -> Rc<Session> {
        let mut table = self.table.borrow_mut();
        table.retain(|_, session| session.plays() > 0 || session.seen.get().elapsed() < LINGER);
        while table.len() >= MOST {
            let idle = table.iter().filter(|(_, session)| session.plays() == 0);
            let Some(oldest) = idle.min_by_key(|(_, session)| session.seen.get()).map(|(key, _)| key.clone())
            else {
                break;
            };
            table.remove(&oldest);
        }
        // The login's ends are told from the URL by what no URL has.
        let login =
            target.user.as_ref().map(|(user, password)| format!("{user}\0{password}\0")).unwrap_or_default();
        let key = (format!("{login}{}", target.url), player.clone(), sent.key(), right);
        let session = table.entry(key).or_insert_with(|| {
            let id = self.next.replace(self.next.get() + 1);
            self.events.tell(&json!({"event": "session", "session": id, "url": shown(&target.url)}));
            Rc::new(Session::new(id, target, player, sent, right, self.started, self.terms.start))
        });
        session.seen.set(Instant::now());
        Rc::clone(session)
    }

    /// All of them, the oldest first.
    pub(super) fn all(&self) -> Vec<Rc<Session>> {
        let mut all: Vec<_> = self.table.borrow().values().cloned().collect();
        all.sort_by_key(|session| session.id);
        all
    }

    /// What the resource is now, as its origin says within the last moments.
    pub(super) async fn head(&self, session: &Session, wanted: Wanted) -> Result<Head, Refusal> {
        let known = session.resource.borrow().clone().filter(|known| known.checked.elapsed() < FRESH);
        let looked = match known {
            Some(known) => Looked::Ranges(known),
            None => self.look(session).await?,
        };
        match looked {
            Looked::Ranges(resource) => resource.head(wanted),
            Looked::Loose(head) | Looked::Whole(head) => Ok(head),
        }
    }

    /// Opens the bytes that a player wants. `holds` tells whether its condition (If-Range) holds for a validator.
    pub(super) async fn open(
        &self,
        session: &Rc<Session>,
        wanted: Wanted,
        holds: impl Fn(Option<&str>) -> bool,
    ) -> Result<(Head, Bytes), Refusal> {
        if let Some(held) = self.ahead.is_held_back(session) {
            return self.wait_for(session, wanted, held).await;
        }
        for last_try in [false, true] {
            let known = session.resource.borrow().clone();
            let from_zero = matches!(wanted, Wanted::Whole | Wanted::Part(0, None)) && holds(None);
            let looked = match known {
                Some(resource) => Looked::Ranges(resource),
                None if from_zero => return self.first(session, wanted).await,
                None => self.look(session).await?,
            };
            match looked {
                Looked::Ranges(resource) => {
                    let wanted =
                        if holds(Some(resource.known.validator.if_range_value())) { wanted } else { Wanted::Whole };
                    match self.again(session, resource, wanted).await {
                        Err(Outdated(None)) if !last_try => *session.resource.borrow_mut() = None,
                        Err(Outdated(refusal)) => {
                            let changes = || Refusal::Gone("the resource changes again and again".to_owned());
                            return Err(refusal.unwrap_or_else(changes));
                        }
                        Ok(opened) => return Ok(opened),
                    }
                }
                Looked::Loose(head) => {
                    let wanted = if holds(None) { wanted } else { Wanted::Whole };
                    return self.pass_on(session, wanted, &head).await;
                }
                Looked::Whole(_) => return self.first(session, Wanted::Whole).await,
            }
        }
        Err(Refusal::Gone("the resource changes again and again".to_owned()))
    }

    /// The first transfer of a resource: from zero to the end, and its first answer tells what it is.
    async fn first(&self, session: &Rc<Session>, wanted: Wanted) -> Result<(Head, Bytes), Refusal> {
        let feed = self.feed(session, (session.url.clone(), session.right), None, 0..u64::MAX)?;
        let mut play = self.play(session, feed, 0..u64::MAX)?;
        let Ok(identity) = timeout(FIRST_BYTE, play.begun()).await else {
            return Err(Refusal::Silent(NO_BYTE.to_owned()));
        };
        let Some(Identity { total, validator }) = identity.filter(|_| !play.is_over_before_it_began()) else {
            return Err(refusal(play.work.outcome.take()));
        };
        // An empty resource is known by a 416, which describes nothing.
        let learnt = play.work.learnt.borrow().clone();
        let (described, (url, right)) = learnt.map_or_else(
            || (Described::default(), (session.url.clone(), session.right)),
            |Learnt { described, url, right, .. }| (described, (url, right)),
        );
        play.promise(total.map(DataSize::bytes));
        let ranges = validator.is_some();
        if let (Some(total), Some(validator)) = (total, validator) {
            let known = Known { total, validator };
            let checked = Instant::now();
            let resource = Resource { known, described: described.clone(), url, right, checked };
            *session.resource.borrow_mut() = Some(resource);
        }
        let total = total.map(DataSize::bytes);
        session.say(if ranges { "ranges over all links" } else { "one answer over one link: no provable ranges" });
        let span = total.filter(|total| ranges && wanted != Wanted::Whole && *total > 0).map(|total| 0..total);
        Ok((Head { described, total, span, ranges }, Bytes::Play(Box::new(play))))
    }

    /// A transfer of a resource that is known.
    async fn again(
        &self,
        session: &Rc<Session>,
        resource: Resource,
        wanted: Wanted,
    ) -> Result<(Head, Bytes), Outdated> {
        let head = resource.head(wanted).map_err(|refusal| Outdated(Some(refusal)))?;
        let total = resource.known.total.bytes();
        let span = head.span.clone().unwrap_or(0..total);
        let told = |refusal| Outdated(Some(refusal));
        let place = (resource.url.clone(), resource.right);
        let feed = self.feed(session, place, Some(resource.known), span.clone()).map_err(told)?;
        let mut play = self.play(session, feed, span.clone()).map_err(told)?;
        play.promise(Some(span.end - span.start));
        if !span.is_empty() {
            tokio::select! {
                _ = play.begun() => {}
                // What the origin says to it is asked in the look that follows.
                () = play.is_hopeless() => return Err(Outdated(None)),
                () = sleep(FIRST_BYTE) => return Err(Outdated(Some(Refusal::Silent(NO_BYTE.to_owned())))),
            }
            if play.is_over_before_it_began() {
                return Err(match play.work.outcome.take() {
                    // Another file, or the place that a redirect led to is closed by now.
                    Some(Err(GetError::Store(StoreError::PassedOn { .. }))) => Outdated(None),
                    Some(Err(GetError::Failed { .. })) if resource.url != session.url => Outdated(None),
                    outcome => Outdated(Some(refusal(outcome))),
                });
            }
        }
        if let Some(resource) = &mut *session.resource.borrow_mut() {
            resource.checked = Instant::now();
        }
        session.say("ranges over all links");
        Ok((head, Bytes::Play(Box::new(play))))
    }

    /// One range as the origin answers it.
    async fn pass_on(&self, session: &Session, wanted: Wanted, known: &Head) -> Result<(Head, Bytes), Refusal> {
        let single = self.ask(session, asking(wanted, known.total)).await?;
        session.say("one answer over one link: no strong validator");
        opened(single)
    }

    /// A part of a segment that does not exist yet: the server holds its answer back until it does, at most for so long. That
    /// is no silence of the link, so no other link is asked meanwhile.
    async fn wait_for(&self, session: &Session, wanted: Wanted, held: Duration) -> Result<(Head, Bytes), Refusal> {
        let links = self.links_of(session)?;
        let question = Question { patience: held, ..session.question(asking(wanted, None)) };
        session.say("one answer over one link: the server holds it back until there is something to send");
        opened(Single::ask(&self.network, &links, &question).await?)
    }

    /// Asks for the first byte, to learn what the resource is.
    async fn look(&self, session: &Session) -> Result<Looked, Refusal> {
        let mut single = self.ask(session, RequestRange::Bounded(ByteRange::new(0, 1))).await?;
        let described = single.described.clone();
        let head = |total: Option<DataSize>, ranges| Head {
            described: described.clone(),
            total: total.map(DataSize::bytes),
            span: None,
            ranges,
        };
        let total = single.head.range.and_then(|range| range.total);
        let looked = match (single.head.status, total, single.head.validator.clone()) {
            (206, Some(total), Some(validator)) => {
                let known = Known { total, validator };
                let resource = Resource {
                    known,
                    described,
                    url: single.url.clone(),
                    right: single.right,
                    checked: Instant::now(),
                };
                *session.resource.borrow_mut() = Some(resource.clone());
                let _ = timeout(DRAINS, single.peek(&|first| !first.is_empty())).await;
                session.first_byte.set(single.peeked().first().copied());
                Looked::Ranges(resource)
            }
            (206, total, _) => Looked::Loose(head(total, true)),
            // No first byte: an empty resource.
            (416, total, _) => Looked::Whole(head(total.or(Some(DataSize::ZERO)), false)),
            (200, _, _) => Looked::Whole(head(single.head.length, false)),
            (status, ..) => return Err(Refusal::Status(status)),
        };
        single.drain().await;
        Ok(looked)
    }

    /// One question over the link that suits the host.
    async fn ask(&self, session: &Session, ask: RequestRange) -> Result<Single, Refusal> {
        let links = self.links_of(session)?;
        Ok(Single::ask(&self.network, &links, &session.question(ask)).await?)
    }

    /// The interfaces for a question beside what a player plays: those last that rest.
    pub(super) fn links_of(&self, session: &Session) -> Result<Vec<Option<Interface>>, Refusal> {
        let mut links = self.links_for(&session.url)?;
        let rests = |link: &Option<Interface>| {
            link.as_ref().is_some_and(|link| self.ahead.rests(&session.player, &link.name))
        };
        links.sort_by_key(rests);
        Ok(links)
    }

    /// The interfaces for a connection to the URL's host, the best one first.
    pub(super) fn links_for(&self, url: &Url) -> Result<Vec<Option<Interface>>, Refusal> {
        if self.network.needs_no_link(&host_of(url)) {
            return Ok(vec![None]);
        }
        let links: Vec<_> = self.interfaces(&(None, host_of(url))).into_iter().map(Some).collect();
        if links.is_empty() { Err(Refusal::NoLink("no link can be used now".to_owned())) } else { Ok(links) }
    }

    /// The interfaces for a client's connection to a host, the best one first.
    pub(super) fn interfaces(&self, pair: &Pair) -> Vec<Interface> {
        let lines: Vec<_> = self.network.lines().into_iter().filter(|line| line.up).collect();
        let candidates: Vec<Candidate> = lines
            .iter()
            .map(|line| Candidate { name: line.profile.name.clone(), metered: line.profile.metered })
            .collect();
        let terms = (self.terms.stream.fetch.metered, self.terms.spread);
        let order = self.choice.borrow().order(self.now(), pair, &candidates, terms);
        let interface = |name: &String| lines.iter().find(|line| line.profile.name == *name)?.interface.clone();
        order.iter().filter_map(interface).collect()
    }

    /// Time since the start.
    pub(super) fn now(&self) -> marline_core::units::Instant {
        marline_core::units::Instant::ZERO + self.started.elapsed()
    }

    fn feed(
        &self,
        session: &Session,
        (url, right): (Url, Right),
        known: Option<Known>,
        span: Range<u64>,
    ) -> Result<Feed, Refusal> {
        let order = self.links_for(&url)?.into_iter().flatten().map(|interface| interface.name).collect();
        // A login is for the host that the player named; a redirect has its own.
        let user = session.user.clone().filter(|_| url.origin() == session.url.origin());
        let to = known.as_ref().map(|_| span.end);
        let (from, window) = (span.start, DataSize::ZERO);
        let config = self.terms.stream.clone();
        let prices = self.terms.prices.clone();
        let expected = match session.part(span.start) {
            Some((viewing, _)) => viewing.lines.borrow().expected(),
            None => session.expected(span.start),
        };
        Ok(Feed {
            fields: session.sent.fields_to(&url),
            common: session.sent.elsewhere(),
            jar: Rc::clone(&session.sent.jar),
            url,
            user,
            right,
            config,
            order,
            expected,
            prices,
            trace: None,
            known,
            from,
            to,
            window,
        })
    }

    /// Starts the work of a feed.
    fn play(&self, session: &Rc<Session>, mut feed: Feed, span: Range<u64>) -> Result<Play, Refusal> {
        let beyond = self.memory.most() - session.most.get();
        let has = DataSize::from_bytes(session.windows.get()).max(beyond);
        let grant = self.grant(session, has)?;
        feed.window = grant.size();
        session.windows.set(session.windows.get() + grant.size().bytes());
        let (id, from) = (self.next.replace(self.next.get() + 1), feed.from);
        feed.trace = self.terms.trace.as_ref().map(|folder| folder.join(format!("{id:06}.ndjson")));
        let rests = feed.expected.iter().filter(|(.., rests)| *rests).map(|(name, ..)| name.clone()).collect();
        let (reader, filling) = feed.open();
        let (reader, window) = (Rc::new(reader), grant.size());
        session.watching.borrow_mut().asks(session.now(), from);
        *session.decided.borrow_mut() = Decided { rests, ..Decided::default() };
        session.plays.borrow_mut().insert(id, (span, Rc::downgrade(&reader)));
        let (learnt, outcome) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(None)));
        let hopeless = Rc::new(Cell::new(false));
        let part = session.part(from);
        let mut ear = Ear::new(id, from, self, session, window, Rc::clone(&hopeless));
        let (network, tell, told) = (Rc::clone(&self.network), Rc::clone(&learnt), Rc::clone(&outcome));
        let work = tokio::task::spawn_local(async move {
            let ended = filling.run(&network, &mut ear, tell).await;
            if let Err(why) = &ended {
                ear.line(&why.to_string());
            }
            *told.borrow_mut() = Some(ended);
            ear.is_over();
        });
        let loan = self.loans.lend(session.now(), &session.right, grant, reader, Task(work));
        let work = Work { learnt, outcome, hopeless };
        Ok(Play::new(id, from, Rc::clone(session), part.map(|(_, part)| part), loan, work))
    }

    /// A window for one more answer; where none is left, that of a client which has many.
    fn grant(&self, session: &Session, has: DataSize) -> Result<Grant, Refusal> {
        let client = Client::of(&session.right);
        let grant = self.memory.grant(client, has);
        let grant = grant.or_else(|lacks| {
            let is_revoked = self.loans.revoke_for(&session.right, lacks == Lacks::PartOfOthers);
            if is_revoked { self.memory.grant(client, has) } else { Err(lacks) }
        });
        grant.map_err(|_| Refusal::Full)
    }
}

/// What is asked for the bytes that a player wants, of so many if that is known.
fn asking(wanted: Wanted, total: Option<u64>) -> RequestRange {
    match (wanted, total) {
        (Wanted::Whole, _) => RequestRange::Full,
        (Wanted::Part(from, None), _) => RequestRange::From(from),
        (Wanted::Part(from, Some(to)), _) => RequestRange::Bounded(ByteRange::new(from, to)),
        (Wanted::Last(len), Some(total)) => RequestRange::From(total.saturating_sub(len)),
        (Wanted::Last(_), None) => RequestRange::Full,
    }
}

/// An answer that is passed on as it comes.
fn opened(single: Single) -> Result<(Head, Bytes), Refusal> {
    let span = single.head.range.and_then(|range| range.range).map(|span| span.start..span.end);
    let total = single.head.range.and_then(|range| range.total).or(single.head.length);
    match single.head.status {
        206 if span.is_some() => {}
        200 => {}
        416 => return Err(Refusal::Beyond(total.map_or(0, DataSize::bytes))),
        status => return Err(Refusal::Status(status)),
    }
    let span = span.filter(|_| single.head.status == 206);
    let total = total.map(DataSize::bytes);
    let head = Head { described: single.described.clone(), total, span, ranges: true };
    Ok((head, Bytes::Single(Box::new(single))))
}

/// The resource is another one now, or cannot be had for this reason.
struct Outdated(Option<Refusal>);

impl Resource {
    fn head(&self, wanted: Wanted) -> Result<Head, Refusal> {
        let total = self.known.total.bytes();
        let span = wanted.within(total).map_err(|range::Beyond| Refusal::Beyond(total))?;
        Ok(Head { described: self.described.clone(), total: Some(total), span, ranges: true })
    }
}

impl Session {
    fn new(
        id: u64,
        target: Target,
        player: String,
        sent: Sent,
        right: Right,
        started: Instant,
        start: Start,
    ) -> Self {
        Self {
            id,
            list: Cell::new(Kind::named(&target.url)),
            not_a_list: Cell::new(false),
            first_byte: Cell::new(None),
            left_early: Cell::new(false),
            opening: Cell::new(false),
            url: target.url,
            player,
            right,
            user: target.user,
            sent,
            resource: RefCell::default(),
            reason: RefCell::default(),
            progress: RefCell::default(),
            plays: RefCell::default(),
            windows: Cell::new(0),
            most: Cell::new(DataSize::MAX),
            delivered: Cell::new(0),
            seen: Cell::new(Instant::now()),
            started,
            watching: RefCell::default(),
            hold: Hold::new(start),
            told: RefCell::default(),
            decided: RefCell::default(),
            parts: RefCell::default(),
            expected: RefCell::default(),
        }
    }

    /// The bytes from an offset on are a segment of what its player plays.
    pub(super) fn is_part(&self, from: u64, viewing: &Rc<Viewing>, part: Rc<Part>) {
        let mut parts = self.parts.borrow_mut();
        parts.insert(from, (Rc::clone(viewing), part));
        while parts.len() > PARTS {
            parts.pop_first();
        }
    }

    /// The segment that begins at an offset.
    pub(super) fn part(&self, from: u64) -> Option<Segment> {
        self.parts.borrow().get(&from).cloned()
    }

    /// What an answer from an offset on may expect of links.
    fn expected(&self, from: u64) -> Vec<(String, Bitrate, bool)> {
        let mut expected = self.expected.borrow().clone();
        if !self.plays_on(from) {
            expected.iter_mut().for_each(|(.., rests)| *rests = false);
        }
        expected
    }

    /// A question to the origin, with what the player says of itself and the login of its URL.
    pub(super) fn question(&self, ask: RequestRange) -> Question {
        let login = self.user.as_ref().and_then(|(user, password)| {
            let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            let mut value = HeaderValue::from_str(&format!("Basic {text}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let (url, fields) = (self.url.clone(), self.sent.clone());
        Question { url, fields, login, ask, right: self.right, patience: PATIENCE, sent: Rc::default() }
    }

    /// Another part of what is played, as the player will ask for it.
    pub(super) fn beside(&self, url: Url) -> Target {
        // A login is for the host that the player named.
        let user = self.user.clone().filter(|_| url.origin() == self.url.origin());
        Target { url, user }
    }

    /// A URL with the player's login, if it is of the host that this is for.
    pub(super) fn with_login(&self, mut url: Url) -> Url {
        if let Some((user, password)) = self.user.as_ref().filter(|_| url.origin() == self.url.origin()) {
            // Both fail only for URLs without a host.
            let _ = url.set_username(user);
            let _ = url.set_password(Some(password));
        }
        url
    }

    /// Whether all that was asked for has come, or will within this time, and nobody went away from it. The last eighth at most is taken to be on its
    /// way: a rate that was just begun to be known may be many times too high.
    pub(super) fn is_nearly_there(&self, within: Duration) -> bool {
        let total = self.known().map_or(u64::MAX, |(total, _)| total);
        let rate = self.progress.borrow().as_ref().map_or(0.0, |progress| progress.rate);
        let soon = (rate / 8.0 * within.as_secs_f64()) as u64;
        let is_nearly = |(span, taken, ready, held): &(Range<u64>, u64, u64, u64)| {
            let end = span.end.min(total);
            end.saturating_sub(taken + ready + held) <= soon.min(end.saturating_sub(span.start) / 8)
        };
        let left = self.left_early.get() && self.plays() == 0;
        !self.opening.get() && !left && self.windows().iter().all(is_nearly)
    }

    /// Bytes that wait for the player, in order or not.
    pub(super) fn waiting(&self) -> u64 {
        self.windows().iter().map(|(_, _, ready, held)| ready + held).sum()
    }

    /// How many answers are under way.
    pub(super) fn plays(&self) -> usize {
        self.plays.borrow().len()
    }

    /// The answers under way: what each is of, how far the player has taken it, and how many bytes wait in order and
    /// beyond a gap.
    pub(super) fn windows(&self) -> Vec<(Range<u64>, u64, u64, u64)> {
        let plays = self.plays.borrow();
        let window = |(span, reader): &Under| {
            let (taken, ready, held) = reader.upgrade()?.held();
            Some((span.clone(), taken, ready, held))
        };
        plays.values().filter_map(window).collect()
    }

    /// An answer is over.
    pub(super) fn ended(&self, id: u64, window: DataSize) {
        self.plays.borrow_mut().remove(&id);
        self.windows.set(self.windows.get().saturating_sub(window.bytes()));
        self.seen.set(Instant::now());
        if self.plays() == 0 {
            self.watching.borrow_mut().leaves(self.now());
            *self.progress.borrow_mut() = None;
        }
    }

    /// The size of a resource whose ranges fit together.
    pub(super) fn total(&self) -> Option<DataSize> {
        self.resource.borrow().as_ref().map(|resource| resource.known.total)
    }

    /// The size and the validator, as far as they are known.
    pub(super) fn known(&self) -> Option<(u64, String)> {
        let resource = self.resource.borrow();
        resource.as_ref().map(|r| (r.known.total.bytes(), r.known.validator.if_range_value().to_owned()))
    }

    pub(super) fn say(&self, reason: &str) {
        *self.reason.borrow_mut() = reason.to_owned();
    }
}

/// Waits until a play has something to tell.
pub(super) async fn begun(reader: &Reader) -> Option<Identity> {
    poll_fn(|cx| reader.poll_begun(cx)).await
}

impl From<ConnError> for Refusal {
    fn from(ConnError { kind, text }: ConnError) -> Self {
        match kind {
            ConnErrorKind::Forbidden => Self::Forbidden(text),
            ConnErrorKind::OwnListener => Self::Loop(text),
            _ => Self::Gone(text),
        }
    }
}

/// What a transfer that brought nothing tells the player.
fn refusal(outcome: Option<Result<(), GetError>>) -> Refusal {
    match outcome {
        Some(Err(GetError::Failed { failure: Failure::BadStatus { status }, .. })) => Refusal::Status(status),
        Some(Err(GetError::Failed { failure: Failure::RetriesExhausted { error: trouble }, .. }))
            if matches!(trouble.kind, ConnErrorKind::Forbidden | ConnErrorKind::OwnListener) =>
        {
            trouble.into()
        }
        Some(Err(GetError::Failed { failure: Failure::NoLink { error: trouble }, .. })) => {
            Refusal::NoLink(trouble.map_or_else(|| "no link can be used".to_owned(), |trouble| trouble.text))
        }
        Some(Err(why @ GetError::Failed { failure: Failure::NoResponse, .. })) => Refusal::Silent(why.to_string()),
        Some(Err(GetError::Links(why))) => Refusal::NoLink(why.to_string()),
        Some(Err(why)) => Refusal::Gone(why.to_string()),
        Some(Ok(())) | None => Refusal::Gone("the transfer ended without a word".to_owned()),
    }
}

/// How long what was learnt of a resource is kept without a player. chosen: a pause in which a player lets its
/// connection go.
const LINGER: Duration = Duration::from_secs(300);
const NO_BYTE: &str = "not one byte of it has come in a minute";
/// chosen: the segments of an hour, each a URL; those that play are never dropped.
const MOST: usize = 1000;
/// chosen: as a player's window, and a good many behind it.
const PARTS: usize = 100;
/// How long a resource's description answers conditions without another question.
const FRESH: Duration = Duration::from_secs(1);
