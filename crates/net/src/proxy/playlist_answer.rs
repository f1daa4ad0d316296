//! The answer to a request for a playlist or a manifest: fetched whole, with other addresses where they are needed.
//!
//! In: a session and the address as the player wrote it. Out: the answer, and for [`Ahead`](super::ahead::Ahead) what
//! the playlist offers.
//!
//! 1. A playlist is one small answer, so it comes over one link, the best one; if that keeps still for [`HEDGE`], the
//!    next one is asked as well, and the first answer counts. A live player must not starve on a link that has died.
//! 2. It is known by its name, or by its type; what its type has told once is remembered in the session.
//! 3. A playlist with errors is passed on as it is, and the status says why.
//! 4. It is always answered whole: its text is of this proxy, so neither ranges nor validators of the origin fit.

use std::rc::Rc;
use std::time::Duration;

use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::{Response, Uri};
use marline_core::fetch::Ask;
use marline_core::units::DataSize;
use serde_json::json;
use tokio::task::JoinSet;
use url::Url;

use super::body::{self, Reply};
use super::playlist::{self, Place, Rewritten};
use super::session::{Refusal, Session, Sessions};
use super::single::{Question, Single};
use super::{ahead, manifest};
use crate::get::Network;
use crate::links::Interface;
use crate::reach::Right;

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

/// Answers a request for a list. `asked` is the path and query as the player wrote them, `host` its name for the proxy.
pub(super) async fn answer(
    sessions: &Rc<Sessions>,
    session: &Rc<Session>,
    kind: Kind,
    (host, asked): (&str, &Uri),
) -> Result<Answered, Refusal> {
    let Some(fetched) = fetch(sessions, session).await? else { return Ok(Answered::NoList) };
    let kind = fetched.content_type.as_deref().and_then(Kind::typed).unwrap_or(kind);
    session.delivered.set(session.delivered.get() + fetched.bytes.len() as u64);
    let bytes = match read(&fetched, session, kind, host, asked) {
        Ok(Rewritten { text, moved, renditions, variants, choice }) => {
            session.say(&format!("a list: {moved} addresses changed"));
            sessions.ahead.learn(session, ahead::Offer { renditions, variants, choice }, fetched.leads);
            text.into_bytes()
        }
        Err(why) => {
            let line = format!("a list that is passed on as it is: {why}");
            if session.reason.borrow().as_str() != line {
                sessions.events.tell(&json!({"event": "notice", "session": session.id, "text": line}));
            }
            session.say(&line);
            fetched.bytes
        }
    };
    let mut answer = Response::new(body::whole(bytes));
    let fields = answer.headers_mut();
    let said = fetched.content_type.as_deref().and_then(|said| HeaderValue::from_str(said).ok());
    fields.insert(CONTENT_TYPE, said.unwrap_or_else(|| kind.content_type()));
    let encoding = fetched.encoding.as_deref().and_then(|encoding| HeaderValue::from_str(encoding).ok());
    fields.extend(encoding.map(|encoding| (CONTENT_ENCODING, encoding)));
    fields.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(Answered::With(answer))
}

fn read(fetched: &Fetched, session: &Session, kind: Kind, host: &str, asked: &Uri) -> Result<Rewritten, String> {
    let text = std::str::from_utf8(&fetched.bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let via = format!("http://{host}/");
    let asked = asked.path_and_query().map_or("/", |path| path.as_str()).trim_start_matches('/');
    let player = Url::parse(&format!("{via}{asked}")).map_err(|why| format!("its address is none: {why}"))?;
    let place = Place { origin: session.with_login(fetched.url.clone()), player, via };
    match kind {
        Kind::Playlist => playlist::rewrite(text, &place),
        Kind::Manifest => manifest::rewrite(text, &place),
    }
}

/// A list as it came.
struct Fetched {
    bytes: Vec<u8>,
    content_type: Option<String>,
    /// It came encoded although it was not asked to: nobody here reads it.
    encoding: Option<String>,
    /// Behind all redirects.
    url: Url,
    /// What its addresses may lead to.
    leads: Right,
}

/// Asks over the best link, and over the next one if that keeps still. None: it is no list.
async fn fetch(sessions: &Sessions, session: &Session) -> Result<Option<Fetched>, Refusal> {
    let question = session.question(Ask::Whole);
    let mut links = sessions.links_of(session)?.into_iter();
    let mut under = JoinSet::new();
    let mut last = Refusal::Gone("no answer in time".to_owned());
    loop {
        let fresh = links.next();
        let is_last = links.len() == 0;
        match fresh {
            Some(link) => {
                under.spawn_local(ask(Rc::clone(&sessions.network), link, question.clone()));
            }
            None if under.is_empty() => return Err(last),
            None => {}
        }
        // A server may hold an answer back until a new segment is there (blocking reload).
        let patience = if is_last { PATIENCE } else { HEDGE };
        match tokio::time::timeout(patience, under.join_next()).await {
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
) -> Result<Option<Fetched>, Refusal> {
    let mut single = Single::ask(&network, &[link], &question).await?;
    let leads = single.leads();
    if single.head.status != 200 {
        return Err(Refusal::Status(single.head.status));
    }
    let content_type = single.described.content_type.clone();
    let is_medium = content_type.as_deref().is_some_and(|said| {
        let kind = said.split('/').next().unwrap_or_default();
        Kind::typed(said).is_none() && matches!(kind, "video" | "audio" | "image")
    });
    if is_medium || single.head.length.is_some_and(|length| length > MOST) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    while let Some(piece) = single.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() as u64 > MOST.bytes() {
            return Ok(None);
        }
    }
    let (encoding, url) = (single.described.encoding.clone(), single.url.clone());
    Ok(Some(Fetched { bytes, content_type, encoding, url, leads }))
}

/// chosen: the longest playlists in use (half a day in segments of two seconds) have two.
const MOST: DataSize = DataSize::from_mib(8);
/// chosen: three times a loaded round trip on a phone's link; asking twice costs a few kilobytes.
const HEDGE: Duration = Duration::from_millis(1500);
/// chosen: three segments of six seconds (draft RFC 8216bis §6.2.5.2 for held-back answers).
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
