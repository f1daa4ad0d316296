//! The answer to a request for a playlist or a manifest: fetched whole, with other addresses where they are needed.
//!
//! 1. A playlist is one small answer, so it comes over one link, the best one; if that keeps still for [`HEDGE`], the
//!    next one is asked as well, and the first answer counts. A live player must not starve on a link that has died. An
//!    answer that the server holds back on purpose ([`reload`]) is waited for instead.
//! 2. It is known by its name, its type, or its first bytes ([`Beginning`]). The first bytes of every answer count, whatever is
//!    remembered of the session.
//! 3. What is wrong in a playlist stays as it is, and all else is rewritten; a manifest that is no XML is passed on, and the
//!    status says why. One that costs too much, whose encoding cannot be undone, or that has a document type declaration is
//!    answered with 502: passed on as it is, it would send the player around the proxy, or to addresses that do not exist.
//! 4. It is always answered whole: its text is of this proxy, so neither ranges nor validators of the origin fit.
//! 5. Its bytes are charged to the memory of all players while they are fetched, read and sent. A player that does not take
//!    them within [`TAKEN_IN`] loses its connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Weak;
use std::time::{Duration, Instant};

use http::Response;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use marline_core::fetch::{ByteRange, RequestRange};
use marline_core::units::DataSize;
use marline_download::Network;
use marline_net::http::Described;
use marline_net::links::Interface;
use marline_net::reach::{Right, Zone};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use url::Url;

use super::address::Place;
use super::beginning::{Beginning, End, Verdict};
use super::body::{self, Reply};
use super::clients::Seat;
use super::cost::{MOST_PLAYLIST, quoted};
use super::list_reader::{Job, Outcome};
use super::memory::{Client, Reserved, Use};
use super::playlist::Rewritten;
use super::range::Wanted;
use super::recognize::{Look, look};
use super::session::{Bytes, Head, Refusal, Session, Sessions};
use super::single::{FIRST_BYTE, Peeked, Question, Single};
use super::{ahead, marks, reload};

/// What kind of list it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// HLS.
    Playlist,
    /// DASH.
    Manifest,
    /// Another format (PLS, ASX, XSPF, SMIL, …), which the proxy does not read: it is passed on with marks.
    Unread,
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
        // Servers write audio, application and video before the subtype.
        match essence.split_once('/')?.1 {
            "vnd.apple.mpegurl" | "vnd.apple.mpegurl.audio" | "x-mpegurl" | "mpegurl" => Some(Self::Playlist),
            "dash+xml" => Some(Self::Manifest),
            "x-scpls" | "scpls" | "pls" | "pls+xml" | "xspf+xml" | "x-ms-asx" | "x-ms-wax" | "x-ms-wvx"
            | "x-ms-wpl" | "vnd.ms-wpl" | "smil" | "smil+xml" | "x-pn-realaudio" | "vnd.rn-realmedia" => {
                Some(Self::Unread)
            }
            _ => None,
        }
    }

    /// By the type, or by a name with which players take any text for a playlist. Some look for it at the end of the query.
    fn called(url: &Url, content_type: Option<&str>) -> Option<Self> {
        let whole = url.as_str().to_ascii_lowercase();
        let ends = |name: &str| {
            let path = url.path().to_ascii_lowercase();
            [&path, &whole].iter().any(|text| text.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')))
        };
        let named = || match () {
            () if ["m3u", "m3u8"].into_iter().any(ends) => Some(Self::Playlist),
            () if UNREAD.into_iter().any(ends) => Some(Self::Unread),
            () => None,
        };
        content_type.and_then(Self::typed).or_else(named)
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Playlist => "application/vnd.apple.mpegurl",
            Self::Manifest => "application/dash+xml",
            Self::Unread => "text/plain",
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

/// What kind of list an answer is, by its type or its first bytes, which stay in it; none: it is no list.
///
/// # Errors
/// It may be a list, and cannot be read; or nothing comes.
pub(super) async fn recognized(
    session: &Session,
    (head, bytes): (&mut Head, &mut Bytes),
    wanted: Wanted,
) -> Result<Option<Kind>, Refusal> {
    let Head { described, span, total, .. } = head;
    let typed = described.content_type.as_deref().and_then(Kind::typed);
    let start = span.as_ref().map_or(0, |span| span.start);
    let is_part = !matches!(wanted, Wanted::Whole | Wanted::Part(0, None))
        && span.as_ref().is_some_and(|span| start > 0 || Some(span.end) != *total);
    if is_part && typed.is_some() && !session.not_a_list.get() {
        session.list.set(typed);
        return Ok(typed);
    }
    let encoding = described.encoding.as_deref();
    let beginning = Beginning::new(encoding, Kind::called(&session.url, described.content_type.as_deref()), start);
    let end = if is_part { End::Part } else { End::Whole };
    let verdict = first_bytes(&beginning, bytes, end).await?;
    if start == 0 {
        session.first_byte.set(bytes.peeked().first().copied());
    }
    match verdict {
        Verdict::List(kind) => {
            session.list.set(Some(kind));
            Ok(Some(kind))
        }
        Verdict::UnknownCoding => Err(unknown_coding(encoding)),
        Verdict::Other | Verdict::Unsure => {
            // A player could take it for a list by its type alone.
            described.content_type = described.content_type.take().filter(|_| typed.is_none());
            Ok(None)
        }
    }
}

/// Whether the type and the first byte of a resource are of no list. Its bytes are looked at all the same before they are sent.
pub(super) fn is_surely_no_list(session: &Session, head: &Head) -> bool {
    let content_type = head.described.content_type.as_deref();
    let byte = session.first_byte.get();
    // Many containers begin with a zero, as a manifest in UTF-32 does.
    Kind::called(&session.url, content_type).is_none()
        && head.described.encoding.is_none()
        && byte.is_some_and(|byte| byte == 0 || look(&[byte]) == Look::Other)
}

/// Waits for as many bytes as decide what an answer is.
async fn first_bytes(beginning: &Beginning, bytes: &mut Bytes, end: End) -> Result<Verdict, Refusal> {
    let since = Instant::now();
    loop {
        let verdict = match timeout(PAUSE, bytes.peek(&|first| beginning.decide(first) != Verdict::Unsure)).await {
            Ok(Peeked::Enough) => beginning.decide(bytes.peeked()),
            Ok(Peeked::Ended) => return Ok(beginning.decide_at_end(bytes.peeked(), end)),
            Ok(Peeked::Broken) => {
                let line = "the transfer broke off before it was known whether this is a playlist";
                return Err(Refusal::Gone(line.to_owned()));
            }
            Err(_) => beginning.decide_now(bytes.peeked()),
        };
        if verdict != Verdict::Unsure {
            return Ok(verdict);
        }
        if since.elapsed() >= FIRST_BYTE {
            let line = format!("after {} s it is not known whether this is a playlist", FIRST_BYTE.as_secs());
            return Err(Refusal::Silent(line));
        }
    }
}

fn unknown_coding(encoding: Option<&str>) -> Refusal {
    let encoding = quoted(encoding.unwrap_or_default());
    Refusal::Gone(format!(
        "this cannot be played through the proxy: its encoding is not known (Content-Encoding: {encoding}), and it may be a playlist"
    ))
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
    let server = url.host_str().unwrap_or_default().to_owned();
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
            sessions.ahead.learn(&sessions.memory, session, offer, (server, leads));
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
    let mut question = session.question(RequestRange::Full);
    let held = reload::is_blocking(&session.url).then(|| reload::patience(sessions.ahead.target(session)));
    question.patience = held.unwrap_or(question.patience);
    let mut links = sessions.links_of(session)?.into_iter();
    let (mut under, mut sent) = (JoinSet::new(), Vec::new());
    let mut last = Refusal::Gone("no answer in time".to_owned());
    loop {
        let fresh = links.next();
        let is_last = links.len() == 0;
        match fresh {
            Some(link) => {
                let gathering = Gathering::new(sessions, session)?;
                question.sent = Rc::default();
                sent.push(Rc::clone(&question.sent));
                under.spawn_local(ask(Rc::clone(&sessions.network), link, question.clone(), gathering));
            }
            None if under.is_empty() => return Err(last),
            None => {}
        }
        let mut answer = timeout(if is_last { PATIENCE } else { HEDGE }, under.join_next()).await;
        if let (Err(_), Some(held)) = (&answer, held.filter(|_| question.sent.get())) {
            // The request has left, so the link carries: now the server waits.
            answer = timeout(held, under.join_next()).await;
        } else if answer.is_err() && is_last && sent.iter().any(|sent| sent.get()) {
            answer = timeout(FIRST_BYTE - PATIENCE, under.join_next()).await;
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
    // From now on it is the body that is waited for.
    question.sent.set(false);
    let leads = single.leads();
    let range = single.head.range;
    match single.head.status {
        // 203: a proxy has changed something (RFC 9110 section 15.3.4).
        200 | 203 => {}
        // Some servers answer any request so.
        206 if range.is_some_and(|range| is_all(range.range, range.total)) => {}
        status => return Err(Refusal::Status(status)),
    }
    let encoding = single.described.encoding.clone();
    let called = Kind::called(&question.url, single.described.content_type.as_deref());
    let beginning = Beginning::new(encoding.as_deref(), called, 0);
    let mut verdict = Verdict::Unsure;
    while let Some(piece) = single.next().await {
        gathering.add(&piece?)?;
        verdict = beginning.decide(&gathering.body);
        // What a server calls a list and is none is played as anything else, with ranges if it has some.
        if verdict == Verdict::Other {
            return Ok(None);
        }
    }
    if verdict == Verdict::Unsure {
        verdict = beginning.decide_at_end(&gathering.body, End::Whole);
    }
    match verdict {
        Verdict::List(_) => Ok(Some(gathering.done(single.described.clone(), single.url.clone(), leads))),
        Verdict::UnknownCoding => Err(unknown_coding(encoding.as_deref())),
        Verdict::Other | Verdict::Unsure => Ok(None),
    }
}

/// Whether a range is from the first byte to the last one, which a server may not know.
fn is_all(span: Option<ByteRange>, total: Option<DataSize>) -> bool {
    span.is_some_and(|span| span.start == 0 && total.is_none_or(|total| total.bytes() == span.end))
}

/// Names of playlists that players read, and the proxy does not.
const UNREAD: [&str; 11] = ["pls", "asx", "wax", "wvx", "wpl", "zpl", "xspf", "smil", "smi", "ram", "b4s"];
/// chosen: the longest playlist at the rate of a slow phone's link.
const TAKEN_IN: Duration = Duration::from_secs(60);
/// No more first bytes for so long are a pause, in which what has come is decided on.
const PAUSE: Duration = Duration::from_millis(200);
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
        for (url, content_type, kind) in [
            ("https://h/radio.M3U", None, Some(Kind::Playlist)),
            ("https://h/radio?x=.m3u", Some("text/plain"), Some(Kind::Playlist)),
            ("https://h/radio", Some("audio/mpegurl"), Some(Kind::Playlist)),
            ("https://h/a.mpd", None, None),
            ("https://h/a.pls?x", None, Some(Kind::Unread)),
            ("https://h/a", Some("audio/x-scpls"), Some(Kind::Unread)),
            ("https://h/apls", None, None),
            ("https://h/a.m3u8", Some("application/dash+xml"), Some(Kind::Manifest)),
        ] {
            assert_eq!(Kind::called(&Url::parse(url).unwrap(), content_type), kind, "{url}");
        }
    }

    #[test]
    fn a_part_that_is_all_counts_as_the_whole() {
        let is =
            |from, to, total: Option<u64>| is_all(Some(ByteRange::new(from, to)), total.map(DataSize::from_bytes));
        assert!(is(0, 9, Some(9)) && is(0, 9, None));
        assert!(!is(0, 9, Some(10)) && !is(1, 9, Some(9)) && !is_all(None, None));
    }
}
