//! Doors to what the proxy reads of players, origins and programs, for the fuzz targets alone.
//!
//! Plain values go in and come out: the proxy's own types stay its own.

use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::header::{HeaderMap, HeaderValue, RANGE};
use marline_core::playback::Profile;
use marline_core::units::{DataSize, Instant};
use url::Url;

use super::address::Place;
use super::container::Scan;
use super::cost::{Cost, ListError};
use super::mpv::Mpv;
use super::playlist::Rewritten;
use super::range::Wanted;
use super::{encoded, manifest, page, playlist, target};

/// The URL that a path at the media port means, and how it is shown.
pub fn proxy_target(path_and_query: &str) -> Option<(Url, String)> {
    let target = target::parse(path_and_query).ok()?;
    let shown = target::shown(&target.url);
    Some((target.url, shown))
}

/// The bytes of a resource of `total` that a Range field asks for; none: all of it, or none of them.
pub fn proxy_range(field: &[u8], total: u64) -> Option<Range<u64>> {
    let mut fields = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(field) {
        fields.insert(RANGE, value);
    }
    Wanted::of(&fields).within(total).ok().flatten()
}

/// What a SOCKS5 client that says this asks for, or the code with which it is refused; and what was answered meanwhile.
/// None: it hangs up, or is sent away.
pub fn proxy_socks(bytes: &[u8]) -> (Option<Result<(String, u16), u8>>, Vec<u8>) {
    let mut near = tokio::io::join(bytes, Vec::new());
    let heard = {
        let hearing = pin!(marline_net::socks5::hear(&mut near));
        match hearing.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(heard) => heard.ok(),
            Poll::Pending => None,
        }
    };
    (heard, near.into_inner().1)
}

/// What reading a list has come to.
#[derive(Debug)]
pub struct List {
    /// The text for the player; none: it is passed on as it is, or refused.
    pub text: Option<String>,
    /// How many addresses are others.
    pub moved: usize,
    /// Bytes that are remembered for fetching ahead.
    pub remembered: usize,
    /// The work that it took, in bytes touched.
    pub work: u64,
    /// It costs too much, for this reason.
    pub limit: Option<String>,
}

/// A playlist as a player gets it.
pub fn proxy_playlist(text: &str) -> Option<List> {
    told(text, |text, place, cost| playlist::rewrite(text, place, &[], cost))
}

/// The same of a manifest.
pub fn proxy_manifest(text: &str) -> Option<List> {
    told(text, manifest::rewrite)
}

/// The text behind a value of Content-Encoding, at most `most` bytes; none: it is damaged, not known, or longer.
pub fn proxy_encoded(body: &[u8], encoding: &str, most: usize) -> Option<Vec<u8>> {
    if let Ok(codings) = encoded::codings(encoding) {
        let _ = encoded::beginning(body, &codings, most);
    }
    encoded::decoded(body, encoding, most, &mut cost(body.len())).ok()
}

type Read = fn(&str, &Place, &mut Cost) -> Result<Rewritten, ListError>;

fn told(text: &str, read: Read) -> Option<List> {
    let mut cost = cost(text.len());
    let before = cost.left_for_work();
    let read = read(text, &place()?, &mut cost);
    let limit = read.as_ref().err().and_then(|why| match why {
        ListError::Limit(why) => Some(why.clone()),
        ListError::Malformed(_) => None,
    });
    let rewritten = read.ok();
    let remembered =
        rewritten.iter().flat_map(|rewritten| &rewritten.renditions).map(|rendition| rendition.pieces.size());
    let (remembered, moved) = (remembered.sum(), rewritten.as_ref().map_or(0, |rewritten| rewritten.moved));
    Some(List {
        text: rewritten.map(|rewritten| rewritten.text),
        moved,
        remembered,
        work: before - cost.left_for_work(),
        limit,
    })
}

/// Without a clock: a target is a function of its bytes.
fn cost(input: usize) -> Cost {
    Cost::new(input, u64::MAX, std::time::Instant::now() + std::time::Duration::from_secs(3600))
}

fn place() -> Option<Place> {
    Some(Place {
        origin: Url::parse("https://host.example/films/list?token=1").ok()?,
        player: Url::parse("http://127.0.0.1:8480/https://host.example/list?token=1").ok()?,
        via: "http://127.0.0.1:8480/".to_owned(),
        mark: "from-list/",
        own: Some("host.example".to_owned()),
    })
}

/// What a file that begins like this plays, where that is written, and where its first picture begins; it comes in these
/// pieces, and is `total` long.
pub fn container<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    total: u64,
) -> (Option<(Profile, &'static str)>, Option<u64>) {
    let (mut scan, mut at) = (Scan::default(), 0);
    for piece in pieces {
        scan.take(at, piece);
        at += piece.len() as u64;
    }
    let found = scan.found();
    let found = found.and_then(|(video, source)| Some((video.profile(DataSize::from_bytes(total))?, source)));
    (found, scan.media())
}

/// The state that a player page tells: its URL; none: it makes no sense.
pub fn page_state(body: &[u8]) -> Option<Url> {
    page::told(body).ok().map(|(url, _)| url)
}

/// What mpv plays, after these lines.
pub fn mpv_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Url> {
    let (mut mpv, now) = (Mpv::default(), Instant::ZERO);
    for line in lines {
        mpv.hear(now, line);
    }
    mpv.stands(now).map(|(url, _)| url.clone())
}
