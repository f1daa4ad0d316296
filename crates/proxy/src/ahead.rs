//! Segments ahead of the player: while it takes one, the next ones of the same rendition are on their way.
//!
//! In: what playlists offer, and which segment a player asks for. Out: answers that are open already when the player
//! asks for them.
//!
//! 1. Earliest deadline first: the next segment is begun when all but the last [`LEAD`] of the one before it has come,
//!    so that it takes nothing from what is needed sooner, and the links never wait for the player's next request.
//! 2. At most [`COUNT`] segments wait, each within a window of its own, a quarter of the player's ([`Memory`]): the one
//!    that plays and those ahead have no more than one film would. A window that is full holds its servers back.
//! 3. What waits is dropped at once when the player goes elsewhere: to another segment, or to another rendition of the
//!    same choice; and after [`HOLD`] in which it asks for nothing.
//! 4. A player that asks for a segment while it takes the one before (ffmpeg does, on a second connection) gets its head
//!    at once, and its bytes in the order of 1.
//! 5. An answer that waits is given only to a request that would have fetched it the same way: the same client, login and fields
//!    that are passed on.
//! 6. What a list names may lead no further into local networks than the list's own server is ([`Right`]), whether it is fetched
//!    ahead or the player asks for it itself. Addresses that were replaced say so themselves ([`marks`](super::marks)); others
//!    are known for as long as their list is followed.
//! 7. What the player asks is what it gets. Which rendition it takes is its business: nothing is fetched of another one.
//! 8. What the links' streams must know of such a player is in [`Series`].
//!
//! An answer ahead is an ordinary answer that nobody reads yet, so there is no second cache and no second way to fetch.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use marline_core::stream::Policy;
use marline_core::units::DataSize;
use marline_download::same_origin;
use marline_net::reach::Right;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use url::Url;

use super::body::{Late, Task};
use super::fields::User;
use super::memory::{Client, Memory, Reserved, Use};
use super::named::Named;
use super::pieces::{Piece, Rendition, Spot};
use super::playlist_answer;
use super::range::Wanted;
use super::reload;
use super::series::{Series, Viewing};
use super::session::{Bytes, Head, Refusal, Session, Sessions};
use super::target::shown;
use super::viewings::Viewings;

/// What a playlist offers.
#[derive(Clone, Debug, Default)]
pub(super) struct Offer {
    /// Pieces that follow one another.
    pub(super) renditions: Vec<Rendition>,
    /// Other playlists, of which the player takes one.
    pub(super) variants: Vec<Url>,
    /// The player may choose between several renditions.
    pub(super) choice: bool,
    /// The longest that a segment may last.
    pub(super) target: Option<Duration>,
    /// Parts that the server is about to make, and holds answers back for.
    pub(super) hints: Vec<Url>,
    /// All addresses in it.
    pub(super) named: Named,
    /// What it defines for the playlists that it names.
    pub(super) variables: Vec<(String, String)>,
}

/// All playlists that players follow.
#[derive(Default)]
pub(super) struct Ahead {
    courses: RefCell<BTreeMap<Key, Course>>,
    viewings: RefCell<Viewings>,
}

/// Which player follows which playlist, and for which of its users.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    player: String,
    /// Its URL without what only a reload adds.
    list: String,
    user: User,
}

impl Key {
    fn of(session: &Session) -> Self {
        let list = reload::identity(&session.url).to_string();
        Self { player: session.player.clone(), list, user: session.sent.user }
    }
}

struct Course {
    offer: Offer,
    /// The one that it came from, behind redirects.
    host: String,
    /// What its addresses may lead to.
    right: Right,
    /// A URL of the origin that its player's fields are for.
    home: Url,
    tracks: BTreeMap<usize, Rc<Track>>,
    seen: Instant,
    /// Its segments have been forgotten.
    is_short: bool,
    reserved: Reserved,
    /// The bytes that its key takes up.
    around: usize,
}

impl Course {
    /// Whether its player may still request a URL because of it, so long after its last request.
    fn is_followed(&self, url: &Url, since: Duration) -> bool {
        since < if url.host_str() == Some(&self.host) { FORGET } else { FOLLOWED }
    }

    /// Gives back the memory of its segments.
    fn shorten(&mut self) {
        self.offer.shorten();
        self.tracks.clear();
        self.is_short = true;
        self.reserved.shrink_to((self.offer.size() + self.around) as u64);
    }
}

/// One rendition that is played.
struct Track {
    series: Rc<Series>,
    /// What the list's addresses may lead to.
    right: Cell<Right>,
    held: RefCell<VecDeque<Held>>,
    /// What the player asked for last, and what follows it.
    asked: RefCell<Option<(Rc<Session>, Vec<Piece>)>>,
    /// Fetches ahead; none: nothing is played.
    work: RefCell<Option<Task>>,
    seen: Cell<Instant>,
}

/// An answer that waits for the player.
struct Held {
    piece: Piece,
    session: Rc<Session>,
    opened: oneshot::Receiver<Result<(Head, Bytes), Refusal>>,
    _opening: Task,
}

/// A player's request for a segment.
pub(super) struct Turn {
    track: Rc<Track>,
    next: Vec<Piece>,
    held: Option<Held>,
    /// The segment before, if the player still takes it.
    before: Option<Rc<Session>>,
}

impl Ahead {
    /// A playlist of this host has been read, whose addresses may lead to this. What is remembered of it is charged to the memory of all
    /// players; of the client that has the most, those that were not used for the longest time go first.
    pub(super) fn learn(
        &self,
        memory: &Memory,
        session: &Session,
        mut offer: Offer,
        (host, right): (String, Right),
    ) {
        let mut courses = self.courses.borrow_mut();
        courses.retain(|_, course| course.seen.elapsed() < FORGET);
        let key = Key::of(session);
        let home = session.sent.home.clone();
        let around = 2 * (key.player.len() + key.list.len()) + host.len() + home.as_str().len();
        let tracks = courses.remove(&key).map(|course| course.tracks).unwrap_or_default();
        let mut is_short = false;
        let reserved = loop {
            let size = (offer.size() + around) as u64;
            let reserved =
                memory.reserve(Client::of(&right), Use::Remembered, size).filter(|_| courses.len() < MOST);
            if reserved.is_some() {
                break reserved;
            }
            // The segments of the oldest, as long as there are any; then its own; then the oldest itself.
            let is_full = courses.len() >= MOST;
            let is_long = |course: &Course| !is_full && !course.is_short;
            let own = Client::of(&right);
            let long = courses.values().filter(|course| is_long(course)).map(|course| Client::of(&course.right));
            let loser = Client::with_most(long, own);
            let with_segments = courses.values_mut().filter(|course| is_long(course));
            let of_loser = with_segments.filter(|course| Client::of(&course.right) == loser);
            if let Some(course) = of_loser.min_by_key(|course| course.seen) {
                course.shorten();
            } else if !is_full && !is_short {
                offer.shorten();
                is_short = true;
            } else {
                let loser = Client::with_most(courses.values().map(|course| Client::of(&course.right)), own);
                let of_loser = courses.iter().filter(|(_, course)| Client::of(&course.right) == loser);
                let oldest = of_loser.min_by_key(|(_, course)| course.seen).map(|(key, _)| key.clone());
                match oldest {
                    Some(oldest) => courses.remove(&oldest),
                    None => break None,
                };
            }
        };
        if let Some(reserved) = reserved {
            courses.insert(
                key,
                Course { offer, host, right, home, tracks, seen: Instant::now(), is_short, reserved, around },
            );
        }
    }

    /// What a player's request for a URL may lead to: what it may itself; but where a list has named the URL that a program of
    /// the same client follows, what that may. Of several lists the one counts that is nearest to this machine. URLs of a list's
    /// own host have no mark: they count for as long as the list is remembered, and lead to where the list came from.
    pub(super) fn right(&self, player: &str, url: &Url, itself: Right) -> Right {
        let (courses, client) = (self.courses.borrow(), Client::of_player(player));
        let followed = courses.iter().filter(|(key, course)| {
            course.is_followed(url, course.seen.elapsed())
                && Client::of_player(&key.player) == client
                && course.offer.named.contains(url)
        });
        let led = followed.filter_map(|(_, course)| course.right.led()).max();
        led.map_or(itself, |led| itself.led_by_zone(led))
    }

    /// What the multivariant playlist defines that names a playlist, as the same user has read it: variables may be secrets.
    pub(super) fn variables(&self, session: &Session) -> Vec<(String, String)> {
        let courses = self.courses.borrow();
        let naming = courses.iter().filter(|(key, course)| {
            let is_master = !course.offer.variables.is_empty() && course.offer.named.contains(&session.url);
            is_master && key.user == session.sent.user
        });
        let best = naming.max_by_key(|(_, course)| course.seen);
        best.map(|(_, course)| course.offer.variables.clone()).unwrap_or_default()
    }

    /// A URL of the origin that a player's fields are for when it requests this URL, because a list has named it. None: no list
    /// has, so it is its own. Of several lists one of another origin counts: it may be somebody else's, whom the proxy takes for
    /// the same player.
    pub(super) fn home(&self, player: &str, url: &Url) -> Option<Url> {
        let courses = self.courses.borrow();
        let own = courses.iter().filter(|(key, course)| key.player == player && course.offer.named.contains(url));
        own.map(|(_, course)| &course.home).min_by_key(|home| same_origin(home, url)).cloned()
    }

    /// The longest that a segment of a player's playlist may last, as it said when it was read last.
    pub(super) fn target(&self, session: &Session) -> Option<Duration> {
        self.courses.borrow().get(&Key::of(session))?.offer.target
    }

    /// How long a server may hold back what a session is of: a part that does not exist yet. None: it is no such one.
    pub(super) fn is_held_back(&self, session: &Session) -> Option<Duration> {
        let courses = self.courses.borrow();
        let of_player = courses.iter().filter(|(key, _)| key.player == session.player);
        let mut offers = of_player.map(|(_, course)| &course.offer);
        let offer = offers.find(|offer| offer.hints.contains(&session.url))?;
        Some(reload::patience(offer.target))
    }

    /// What a request means for what was fetched ahead; none: it is for no segment that is known.
    pub(super) fn turn(&self, sessions: &Sessions, session: &Rc<Session>, wanted: Wanted) -> Option<Turn> {
        let span = match wanted {
            Wanted::Part(from, Some(to)) => Some(from..to),
            _ => None,
        };
        let mut courses = self.courses.borrow_mut();
        let of_player = |is_of_user: bool| {
            let is_own = move |key: &Key| (key.user == session.sent.user) == is_of_user;
            courses.iter().filter(move |(key, _)| key.player == session.player && is_own(key))
        };
        let find = |(key, course): (&Key, &Course)| {
            let (index, at, next) = course.offer.find(&session.url, span.as_ref())?;
            Some((key.clone(), index, at, next))
        };
        // A login of a list's URL does not go to other hosts, so its segments there are of another user.
        let (key, index, (piece, spot), next) = of_player(true).chain(of_player(false)).find_map(find)?;
        session.most.set(DataSize::from_bytes(sessions.memory.most().bytes() / (COUNT as u64 + 1)));
        // Of a choice the player takes one: what waits of the others is not needed.
        let siblings = courses.iter().find_map(|(master, course)| {
            let variants = &course.offer.variants;
            let is_one = master.player == key.player && variants.iter().any(|variant| variant.as_str() == key.list);
            is_one.then(|| (master.list.clone(), variants.clone()))
        });
        let family = siblings.as_ref().map_or(&key.list, |(master, _)| master).clone();
        let is_chosen = siblings.as_ref().is_some_and(|(_, variants)| variants.len() > 1);
        let siblings = siblings.map(|(_, variants)| variants);
        let is_beside = |other: &Key| (&other.player, other.user) == (&key.player, key.user) && *other != key;
        for (other, course) in courses.iter_mut().filter(|(other, _)| is_beside(other)) {
            if siblings.iter().flatten().any(|variant| variant.as_str() == other.list) {
                course.tracks.clear();
            }
        }
        let course = courses.get_mut(&key)?;
        course.seen = Instant::now();
        let set = |at: usize| course.offer.renditions.get(at).map(|rendition| rendition.set);
        course.tracks.retain(|at, _| *at == index || set(*at) != set(index));
        let viewing = self.viewing(&session.player);
        let series = viewing.series(&family, set(index).unwrap_or_default());
        let choice = is_chosen || course.offer.choice;
        let track =
            Rc::clone(course.tracks.entry(index).or_insert_with(|| Rc::new(Track::new(&series, course.right))));
        track.right.set(course.right);
        drop(courses);
        // The published policies know nothing of parts.
        if sessions.terms.stream.policy == Policy::Marline {
            let from = span.as_ref().map_or(0, |span| span.start);
            let part = viewing.asks(&series, session.now(), (&piece, spot), &next, choice);
            session.is_part(from, &viewing, part);
        }

        *track.work.borrow_mut() = None;
        track.seen.set(Instant::now());
        let mut waiting = std::mem::take(&mut *track.held.borrow_mut());
        let is_asked = |held: &Held| Rc::ptr_eq(&held.session, session) && held.piece.span == span;
        let is_whole = span.is_some() || matches!(wanted, Wanted::Whole | Wanted::Part(0, None));
        let at = waiting.iter().position(is_asked);
        let held = at.and_then(|at| waiting.remove(at)).filter(|_| is_whole);
        waiting.retain(|held| next.contains(&held.piece));
        *track.held.borrow_mut() = waiting;
        let last = track.asked.replace(Some((Rc::clone(session), next.clone())));
        let follows = |(last, next): &(Rc<Session>, Vec<Piece>)| {
            last.id != session.id
                && is_whole
                && next.iter().any(|piece| piece.url == session.url && piece.span == span)
        };
        let before = last.filter(follows).map(|(last, _)| last).filter(|_| held.is_none());
        Some(Turn { track, next, held, before })
    }

    /// What is known of a player's segments and its links.
    pub(super) fn viewing(&self, player: &str) -> Rc<Viewing> {
        self.viewings.borrow_mut().of(player)
    }

    /// Whether a player's segments do without a link at present.
    pub(super) fn rests(&self, player: &str, link: &str) -> bool {
        let viewings = self.viewings.borrow();
        viewings.get(player).is_some_and(|viewing| viewing.lines.borrow().rests(link))
    }

    /// Drops what nobody has asked for in a long time; for ever.
    pub(super) async fn run(&self) {
        loop {
            tokio::time::sleep(SWEEP).await;
            for course in self.courses.borrow_mut().values_mut() {
                course.tracks.retain(|_, track| track.seen.get().elapsed() < HOLD);
            }
        }
    }

    /// What waits, for the status.
    pub(super) fn status(&self, now: marline_core::units::Instant) -> Vec<Value> {
        let mut all = Vec::new();
        for (Key { player, list, .. }, course) in &*self.courses.borrow() {
            for track in course.tracks.values() {
                let held = track.held.borrow();
                // Ranges of one file are answers of one session.
                let sessions: BTreeMap<u64, &Session> =
                    held.iter().map(|held| (held.session.id, &*held.session)).collect();
                let bytes: u64 = sessions.values().map(|session| session.waiting()).sum();
                let seconds: f64 = held.iter().map(|held| held.piece.duration).sum::<Duration>().as_secs_f64();
                let standing = track.series.standing(now);
                let playlist = Url::parse(list).map(|url| shown(&url)).unwrap_or_default();
                all.push(json!({
                    "player": player, "playlist": playlist, "choice": course.offer.choice,
                    "state": standing.as_ref().map(|standing| standing.state),
                    "buffer_s": standing.as_ref().map(|standing| standing.buffer.as_secs_f64()),
                    "stalls": standing.as_ref().map(|standing| standing.stalls),
                    "rate_bps": standing.as_ref().map(|standing| standing.rate.bits_per_sec()),
                    "segments_ahead": held.len(), "seconds_ahead": seconds, "bytes_ahead": bytes,
                }));
            }
        }
        all
    }
}

impl Offer {
    /// Forgets everything but the hosts of its addresses, which may not lead further later either.
    fn shorten(&mut self) {
        let (mut named, variables) = (std::mem::take(&mut self.named), std::mem::take(&mut self.variables));
        named.shorten();
        *self = Self { named, variables, ..Self::default() };
    }

    /// The memory it takes up, in bytes.
    fn size(&self) -> usize {
        let urls = self.variants.iter().chain(&self.hints);
        let variants = urls.map(|url| url.as_str().len() + size_of::<Url>());
        let renditions = self.renditions.iter().map(|rendition| rendition.pieces.size());
        let variables =
            self.variables.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<String>());
        size_of::<Course>()
            + self.named.size()
            + variables.sum::<usize>()
            + variants.sum::<usize>()
            + renditions.sum::<usize>()
    }

    /// The rendition that a segment is of, the segment as that has it, and what follows it.
    fn find(&self, url: &Url, span: Option<&Range<u64>>) -> Option<(usize, (Piece, Spot), Vec<Piece>)> {
        let find = |span: Option<&Range<u64>>| {
            self.renditions.iter().enumerate().find_map(|(index, rendition)| {
                let next = rendition.pieces.after(url, span, COUNT)?;
                let spot = rendition.spot(url, span)?;
                let piece = Piece { url: url.clone(), span: span.cloned(), duration: spot.lasts };
                Some((index, (piece, spot), next))
            })
        };
        // A player that has lost its connection asks for the rest of a segment.
        find(span).or_else(|| find(None).filter(|_| span.is_some()))
    }
}

impl Track {
    fn new(series: &Rc<Series>, right: Right) -> Self {
        Self {
            series: Rc::clone(series),
            right: Cell::new(right),
            held: RefCell::default(),
            asked: RefCell::default(),
            work: RefCell::default(),
            seen: Cell::new(Instant::now()),
        }
    }
}

impl Turn {
    /// The answer that has been waiting, if there is one and it is good.
    pub(super) async fn held(&mut self, wanted: Wanted) -> Option<(Head, Bytes)> {
        let Held { opened, _opening, .. } = self.held.take()?;
        let (mut head, bytes) = opened.await.ok()?.ok()?;
        if wanted == Wanted::Part(0, None) && head.span.is_none() && head.ranges {
            head.span = head.total.filter(|total| *total > 0).map(|total| 0..total);
        }
        Some((head, bytes))
    }

    /// The answer for a player that takes the segment before as yet; none: it does not, or the head cannot be known
    /// without the bytes.
    pub(super) async fn early(
        &mut self,
        sessions: &Rc<Sessions>,
        session: &Rc<Session>,
        wanted: Wanted,
    ) -> Option<(Head, Late)> {
        let before = self.before.take().filter(|before| is_taken(before))?;
        let head = sessions.head(session, wanted).await.ok()?;
        let total = session.total().filter(|_| head.ranges)?;
        if !playlist_answer::is_surely_no_list(session, &head) {
            return None;
        }
        let left = head.span.as_ref().map_or(total.bytes(), |span| span.end - span.start);
        let opening = Opening::new(session);
        let (sessions, session) = (Rc::clone(sessions), Rc::clone(session));
        let opening = Box::pin(async move {
            while is_taken(&before) {
                tokio::time::sleep(LOOK).await;
            }
            let opened = sessions.open(&session, wanted, |_| true).await;
            drop(opening);
            let (mut head, mut bytes) = opened.ok().filter(|(head, _)| head.total == Some(total.bytes()))?;
            // The head has been sent: a list could not be rewritten any more.
            let recognized = playlist_answer::recognized(&session, (&mut head, &mut bytes), wanted).await;
            match (recognized, bytes) {
                (Ok(None), Bytes::Play(play)) => Some(play),
                _ => None,
            }
        });
        Some((head, Late { opening, left, seat: None }))
    }

    /// From now on the next segments are fetched; `session` is that of the one which the player takes.
    pub(super) fn follow(self, sessions: &Rc<Sessions>, session: &Rc<Session>) {
        let Self { track, next, .. } = self;
        let (within, sessions, session) = (Rc::downgrade(&track), Rc::clone(sessions), Rc::clone(session));
        let work = tokio::task::spawn_local(async move {
            let mut before = session;
            for piece in next {
                let Some(track) = within.upgrade() else { return };
                let waiting =
                    track.held.borrow().iter().find(|held| held.piece == piece).map(|h| Rc::clone(&h.session));
                drop(track);
                if let Some(waiting) = waiting {
                    before = waiting;
                    continue;
                }
                while !before.is_nearly_there(LEAD) {
                    tokio::time::sleep(LOOK).await;
                }
                let Some(track) = within.upgrade() else { return };
                before = open(&sessions, &before, &track, piece);
            }
        });
        *track.work.borrow_mut() = Some(Task(work));
    }
}

/// Whether the player takes a segment of which more than its last moments are to come.
fn is_taken(session: &Session) -> bool {
    session.opening.get() || (session.plays() > 0 && !session.is_nearly_there(LEAD))
}

/// A session that will have its answer soon.
struct Opening(Rc<Session>);

impl Opening {
    fn new(session: &Rc<Session>) -> Self {
        session.opening.set(true);
        Self(Rc::clone(session))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.opening.set(false);
    }
}

/// Opens a piece ahead of the player.
fn open(sessions: &Rc<Sessions>, before: &Session, track: &Track, piece: Piece) -> Rc<Session> {
    let target = before.beside(piece.url.clone());
    let home = sessions.ahead.home(&before.player, &target.url);
    let sent = before.sent.beside(&sessions.jars, &before.player, target.user.as_ref(), home);
    let session = sessions.of(target, before.player.clone(), sent, track.right.get());
    session.most.set(before.most.get());
    if sessions.terms.stream.policy == Policy::Marline
        && let Some(part) = track.series.ahead(&piece)
    {
        let viewing = sessions.ahead.viewing(&session.player);
        session.is_part(piece.span.as_ref().map_or(0, |span| span.start), &viewing, part);
    }
    let wanted = piece.span.clone().map_or(Wanted::Whole, |span| Wanted::Part(span.start, Some(span.end)));
    let (tell, opened) = oneshot::channel();
    let (all, one) = (Rc::clone(sessions), Rc::clone(&session));
    let guard = Opening::new(&session);
    let opening = tokio::task::spawn_local(async move {
        let answer = all.open(&one, wanted, |_| true).await;
        drop(guard);
        let _ = tell.send(answer);
    });
    let held = Held { piece, session: Rc::clone(&session), opened, _opening: Task(opening) };
    track.held.borrow_mut().push_back(held);
    session
}

/// How many segments wait at most. chosen: with segments of two seconds a look-ahead of six, in which a link may change.
const COUNT: usize = 3;
/// How long before the end of a segment the next one begins. chosen: a loaded round trip, which a new request takes.
const LEAD: Duration = Duration::from_millis(250);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long an answer waits for a player that asks for nothing. chosen: a player with a full buffer asks for the next
/// segment within one segment's time.
const HOLD: Duration = Duration::from_secs(60);
const SWEEP: Duration = Duration::from_secs(5);
/// How long a playlist is remembered without a request. chosen: a pause of half an hour.
const FORGET: Duration = Duration::from_secs(1800);
/// How long a list is taken to be followed without a request for it or for a segment of it. chosen: as long as players with a
/// full buffer keep still, twice over.
const FOLLOWED: Duration = Duration::from_secs(120);
/// chosen: the playlists of two hundred players.
const MOST: usize = 1000;

#[cfg(test)]
mod tests {
    use marline_net::reach::Zone;

    use super::*;

    #[test]
    fn urls_of_a_lists_own_host_are_restricted_for_as_long_as_it_is_remembered() {
        let memory = Memory::new(DataSize::from_mib(64), DataSize::from_mib(32));
        let url = |text: &str| Url::parse(text).unwrap();
        let course = Course {
            offer: Offer::default(),
            host: "h.test".to_owned(),
            right: Right::of_peer("127.0.0.1:5".parse().unwrap()).led_by_zone(Zone::Internet),
            home: url("http://h.test/"),
            tracks: BTreeMap::new(),
            seen: Instant::now(),
            is_short: false,
            reserved: memory.reserve(Client::HERE, Use::Remembered, 1).unwrap(),
            around: 0,
        };
        let (own, other) = (url("http://h.test/admin?do=reboot"), url("http://10.0.0.1/"));
        for (url, lasts) in [(&own, FORGET), (&other, FOLLOWED)] {
            assert!(course.is_followed(url, lasts - Duration::from_secs(1)) && !course.is_followed(url, lasts));
        }
    }
}
