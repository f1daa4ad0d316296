//! The answer to a request for a playlist or a manifest: fetched whole, with other addresses where they are needed.
//!
//! 1. A playlist is one small answer, so it comes over one link, the best one; if that keeps still for [`HEDGE`], the
//!    next one is asked as well, and the first answer counts. A live player must not starve on a link that has died. An
//!    answer that the server holds back on purpose ([`reload`]) is waited for instead.
//! 2. It is known by its name, its type, or its first bytes ([`look`]); what was learnt so is remembered in the session.
//! 3. What is wrong in a playlist stays as it is, and all else is rewritten; a manifest that is no XML is passed on, and the
//!    status says why. One that costs too much, whose encoding cannot be undone, or that has a document type declaration is
//!    answered with 502: passed on as it is, it would send the player around the proxy, or to addresses that do not exist.
//! 4. It is always answered whole: its text is of this proxy, so neither ranges nor validators of the origin fit.
//! 5. Its bytes are charged to the memory of all players while they are fetched, read and sent. A player that does not take
//!    them within [`TAKEN_IN`] loses its connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Weak;
use std::time::Duration;

use http::Response;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use marline_core::fetch::Ask;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use url::Url;

use super::address::Place;
use super::body::{self, Reply};
use super::clients::Seat;
use super::cost::MOST_PLAYLIST;
use super::list_reader::{Job, Outcome};
use super::memory::{Client, Reserved, Use};
use super::playlist::Rewritten;
use super::range::Wanted;
use super::recognize::{self, Look, look};
use super::session::{Bytes, Head, Refusal, Session, Sessions};
use super::single::{Question, Single};
use super::{ahead, encoded, marks, reload};
use crate::get::Network;
use crate::http::Described;
use crate::links::Interface;
use crate::reach::{Right, Zone};

/// What kind of list it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// HLS.
    Playlist,
    /// DASH.
    Manifest,
}

/// What has come of a request.
pub(super) enum Answered {
    /// This.
    With(Response<Reply>),
    /// It is no list, whatever its name says.
    NoList,
}

impl Kind {
    /// By the end of the path.
    pub(super) fn named(url: &Url) -> Option<Self> {
        let end = url.path().rsplit_once('.')?.1.to_ascii_lowercase();
        match end.as_str() {
            "m3u8" | "m3u" => Some(Self::Playlist),
            "mpd" => Some(Self::Manifest),
            _ => None,
        }
    }

    /// By the type (RFC 8216 §4, ISO/IEC 23009-1 annex C).
    pub(super) fn typed(content_type: &str) -> Option<Self> {
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/vnd.apple.mpegurl" | "application/x-mpegurl" | "audio/mpegurl" | "audio/x-mpegurl" => {
                Some(Self::Playlist)
            }
            "application/dash+xml" => Some(Self::Manifest),
            _ => None,
        }
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Playlist => "application/vnd.apple.mpegurl",
            Self::Manifest => "application/dash+xml",
        })
    }
}

/// A player's request for a list.
pub(super) struct Asked<'a> {
    /// What the player writes before a URL: `127.0.0.1:8480`.
    pub(super) host: &'a str,
    /// Path and query, with a mark if there is one.
    pub(super) path: &'a str,
    /// A list has named it.
    pub(super) is_marked: bool,
    /// The player's connection.
    pub(super) seat: &'a Rc<Seat>,
}

/// Answers a request for a list.
pub(super) async fn answer(
    sessions: &Rc<Sessions>,
    session: &Rc<Session>,
    kind: Kind,
    asked: &Asked<'_>,
) -> Result<Answered, Refusal> {
    match fetch(sessions, session).await? {
        Some(fetched) => read(sessions, session, kind, fetched, asked).await.map(Answered::With),
        None => {
            session.not_a_list.set(true);
            Ok(Answered::NoList)
        }
    }
}

/// Answers with a list whose transfer has begun as that of any other resource.
pub(super) async fn answer_with(
    sessions: &Rc<Sessions>,
    session: &Rc<Session>,
    kind: Kind,
    (head, bytes): (Head, Bytes),
    asked: &Asked<'_>,
) -> Result<Response<Reply>, Refusal> {
    let mut gathering = Gathering::new(sessions, session)?;
    let (url, leads) = match bytes {
        Bytes::Play(mut play) => {
            let broken = |_| Refusal::Gone("the transfer of the playlist broke off".to_owned());
            while let Some(piece) = poll_fn(|cx| play.poll_whole(cx)).await {
                gathering.add(&piece.map_err(broken)?)?;
            }
            // Of a server that is not known any more nothing is known but that it is one.
            play.place().unwrap_or_else(|| (session.url.clone(), session.right.led_by(None)))
        }
        Bytes::Single(mut single) => {
            while let Some(piece) = single.next().await {
                gathering.add(&piece?)?;
            }
            (single.url.clone(), single.leads())
        }
    };
    read(sessions, session, kind, gathering.done(head.described, url, leads), asked).await
}

/// What kind of list an answer is, by its type or its first bytes, which stay in it.
pub(super) async fn recognized(session: &Session, head: &Head, bytes: &mut Bytes, wanted: Wanted) -> Option<Kind> {
    if session.not_a_list.get() || session.list.get().is_some() {
        return None;
    }
    let described = &head.described;
    let content_type = described.content_type.as_deref().unwrap_or_default();
    let kind = match Kind::typed(content_type) {
        None if matches!(wanted, Wanted::Whole | Wanted::Part(0, _)) => {
            let encoding = described.encoding.as_deref();
            let enough = |first: &[u8]| of_encoded(first, encoding) != Look::Unsure;
            // A body that comes byte by byte is no list that a player waits for.
            let in_time = timeout(PEEK, bytes.peek(&enough)).await.is_ok();
            match of_encoded(bytes.peeked(), encoding) {
                Look::Is(kind) => Some(kind),
                Look::Other => None,
                // A server that sends it slowly must not get it past the proxy unread.
                Look::Unsure => {
                    let has_ended = in_time && wanted == Wanted::Whole && bytes.peeked().len() < MOST_PEEKED;
                    recognize::undecided(bytes.peeked(), has_ended)
                }
            }
        }
        kind => kind,
    };
    session.list.set(kind);
    kind
}

/// What the first bytes say, behind their encoding.
fn of_encoded(first: &[u8], encoding: Option<&str>) -> Look {
    let Some(encoding) = encoding else { return look(first) };
    match encoded::beginning(first, encoding, recognize::MOST) {
        Some(text) => match look(&text) {
            Look::Unsure if first.len() >= MOST_PEEKED => match recognize::undecided(&text, false) {
                Some(kind) => Look::Is(kind),
                // Nothing but a header as long as a server likes.
                None if first.starts_with(&encoded::GZIP) => Look::Is(Kind::Manifest),
                None => Look::Other,
            },
            says => says,
        },
        // A character set, or nonsense, before a body that is not encoded.
        None => look(first),
    }
}

/// The answer for a list that is here.
async fn read(
    sessions: &Rc<Sessions>,
    session: &Rc<Session>,
    kind: Kind,
    fetched: Fetched,
    asked: &Asked<'_>,
) -> Result<Response<Reply>, Refusal> {
    let Fetched { body, content_type, encoding, url, leads, reserved } = fetched;
    let kind = content_type.as_deref().and_then(Kind::typed).unwrap_or(kind);
    session.delivered.set(session.delivered.get() + body.len() as u64);
    let via = format!("http://{}/", asked.host);
    let player = Url::parse(&format!("{via}{}", asked.path.trim_start_matches('/')));
    let player = player.map_err(|why| Refusal::Gone(format!("the address of the playlist is none: {why}")))?;
    let mark = marks::of(leads.led().unwrap_or(Zone::Internet));
    let own = session.url.host_str().filter(|_| !asked.is_marked).map(str::to_owned);
    let place = Place { origin: session.with_login(url), player, via, mark, own };
    let imported = sessions.ahead.variables(session);
    let read = sessions.lists.read(Job { body, encoding, kind, place, imported, reserved }).await;
    let (kind, bytes, is_converted) = match read {
        Outcome::Rewritten { bytes, kind, is_converted, untaken, rewritten } => {
            close_unless_taken(untaken, asked.seat);
            let Rewritten {
                moved, renditions, variants, choice, note, target, hints, named, variables, fault, ..
            } = *rewritten;
            match fault {
                Some(why) => tell(sessions, session, &format!("a list that is passed on as it is: {why}")),
                None => {
                    let note = note.map(|note| format!("; nothing is fetched ahead: {note}")).unwrap_or_default();
                    session.say(&format!("a list: {moved} addresses changed{note}"));
                }
            }
            let offer = ahead::Offer { renditions, variants, choice, target, hints, named, variables };
            sessions.ahead.learn(&sessions.memory, session, offer, leads);
            (kind, bytes, is_converted)
        }
        Outcome::Refused(why) => {
            let line = format!("this playlist cannot be played through the proxy: {why}");
            tell(sessions, session, &line);
            return Err(Refusal::Gone(line));
        }
        Outcome::Full => return Err(Refusal::Full),
    };
    let mut answer = Response::new(body::whole(bytes));
    let fields = answer.headers_mut();
    let said = content_type.as_deref().filter(|_| !is_converted).and_then(|said| HeaderValue::from_str(said).ok());
    fields.insert(CONTENT_TYPE, said.unwrap_or_else(|| kind.content_type()));
    fields.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(answer)
}

/// Closes a player's connection if it does not take a list, so that the memory of lists is free for others.
fn close_unless_taken(untaken: Weak<()>, seat: &Rc<Seat>) {
    let seat = Rc::downgrade(seat);
    tokio::task::spawn_local(async move {
        sleep(TAKEN_IN).await;
        if let Some(seat) = seat.upgrade().filter(|_| untaken.strong_count() > 0) {
            tracing::debug!("closed: a list is not taken");
            seat.close();
        }
    });
}

/// Says it once in the status and to those who hear events.
fn tell(sessions: &Sessions, session: &Session, line: &str) {
    if session.reason.borrow().as_str() != line {
        sessions.events.tell(&json!({"event": "notice", "session": session.id, "text": line}));
    }
    session.say(line);
}

/// A list as it came.
struct Fetched {
    body: Vec<u8>,
    content_type: Option<String>,
    /// It came encoded although it was not asked to.
    encoding: Option<String>,
    /// Behind all redirects.
    url: Url,
    /// What its addresses may lead to.
    leads: Right,
    reserved: Reserved,
}

/// A list that is on its way.
struct Gathering {
    body: Vec<u8>,
    reserved: Reserved,
}

impl Gathering {
    fn new(sessions: &Sessions, session: &Session) -> Result<Self, Refusal> {
        let client = Client::of(&session.right);
        let reserved = sessions.memory.reserve(client, Use::Lists, 0).ok_or(Refusal::Full)?;
        Ok(Self { body: Vec::new(), reserved })
    }

    fn add(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        if self.body.len() + piece.len() > MOST_PLAYLIST {
            let line = format!("the playlist has more than {} MiB: play it without the proxy", MOST_PLAYLIST >> 20);
            return Err(Refusal::Gone(line));
        }
        let (before, lacks) = (self.body.capacity(), self.body.len() + piece.len() > self.body.capacity());
        if lacks {
            // Doubling would take up much more than is needed.
            self.body.reserve_exact(piece.len().max(self.body.len() / 8));
        }
        if lacks && !self.reserved.grow((self.body.capacity() - before) as u64) {
            return Err(Refusal::Full);
        }
        self.body.extend_from_slice(piece);
        Ok(())
    }

    fn done(self, described: Described, url: Url, leads: Right) -> Fetched {
        let Self { body, reserved } = self;
        let Described { content_type, encoding, .. } = described;
        Fetched { body, content_type, encoding, url, leads, reserved }
    }
}

/// Asks over the best link, and over the next one if that keeps still. None: it is no list.
async fn fetch(sessions: &Sessions, session: &Session) -> Result<Option<Fetched>, Refusal> {
    let mut question = session.question(Ask::Whole);
    let held = reload::is_blocking(&session.url).then(|| reload::patience(sessions.ahead.target(session)));
    question.patience = held.unwrap_or(question.patience);
    let mut links = sessions.links_of(session)?.into_iter();
    let mut under = JoinSet::new();
    let mut last = Refusal::Gone("no answer in time".to_owned());
    loop {
        let fresh = links.next();
        let is_last = links.len() == 0;
        match fresh {
            Some(link) => {
                let gathering = Gathering::new(sessions, session)?;
                question.sent = Rc::default();
                under.spawn_local(ask(Rc::clone(&sessions.network), link, question.clone(), gathering));
            }
            None if under.is_empty() => return Err(last),
            None => {}
        }
        let mut answer = timeout(if is_last { PATIENCE } else { HEDGE }, under.join_next()).await;
        if let (Err(_), Some(held)) = (&answer, held.filter(|_| question.sent.get())) {
            // The request has left, so the link carries: now the server waits.
            answer = timeout(held, under.join_next()).await;
        }
        match answer {
            Ok(Some(Ok(Err(Refusal::Gone(why))))) => last = Refusal::Gone(why),
            Ok(Some(Ok(answer))) => return answer,
            Ok(Some(Err(_)) | None) => {}
            Err(_) if is_last => return Err(last),
            Err(_) => {}
        }
    }
}

async fn ask(
    network: Rc<Network>,
    link: Option<Interface>,
    question: Question,
    mut gathering: Gathering,
) -> Result<Option<Fetched>, Refusal> {
    let mut single = Single::ask(&network, &[link], &question).await?;
    let leads = single.leads();
    if single.head.status != 200 {
        return Err(Refusal::Status(single.head.status));
    }
    let encoding = single.described.encoding.clone();
    let mut is_known = false;
    while let Some(piece) = single.next().await {
        let piece = piece?;
        if !is_known {
            let first = [gathering.body.as_slice(), &piece].concat();
            match of_encoded(&first, encoding.as_deref()) {
                Look::Is(_) => is_known = true,
                Look::Other if encoding.as_deref().is_some_and(|encoding| !encoded::is_known(encoding)) => {
                    // A player may know it, and find addresses that the proxy has not read.
                    let line = "this playlist cannot be played through the proxy: its encoding is not known";
                    return Err(Refusal::Gone(line.to_owned()));
                }
                Look::Other => return Ok(None),
                Look::Unsure => {}
            }
        }
        gathering.add(&piece)?;
    }
    // What a server calls a list and is none is played as anything else, with ranges if it has some.
    Ok(is_known.then(|| gathering.done(single.described.clone(), single.url.clone(), leads)))
}

/// chosen: the longest playlist at the rate of a slow phone's link.
const TAKEN_IN: Duration = Duration::from_secs(60);
/// For the first bytes of a body that may be a list.
const PEEK: Duration = Duration::from_secs(2);
/// Of an encoded body so many bytes are looked at.
const MOST_PEEKED: usize = 4096;
/// chosen: three times a loaded round trip on a phone's link; asking twice costs a few kilobytes.
const HEDGE: Duration = Duration::from_millis(1500);
/// chosen: three segments of six seconds.
const PATIENCE: Duration = Duration::from_secs(18);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_known_by_name_or_type() {
        for (url, kind) in [
            ("https://h/a/list.M3U8?x=.mpd", Some(Kind::Playlist)),
            ("https://h/manifest.mpd", Some(Kind::Manifest)),
            ("https://h/film.mp4?list.m3u8", None),
            ("https://h/m3u8", None),
        ] {
            assert_eq!(Kind::named(&Url::parse(url).unwrap()), kind, "{url}");
        }
        assert_eq!(Kind::typed("Application/X-mpegURL; charset=utf-8"), Some(Kind::Playlist));
        assert_eq!(Kind::typed("application/dash+xml"), Some(Kind::Manifest));
        assert_eq!(Kind::typed("audio/mpeg"), None);
    }
}
