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

use super::container::ContainerScan;
use super::hls::RewrittenPlaylist;
use super::mpv::MpvState;
use super::parse_budget::{ParseBudget, PlaylistError};
use super::range::RequestedRange;
use super::url_rewrite::RewriteContext;
use super::{content_coding, dash, hls, media_url, player_page};

/// The URL that a path at the media port means, and how it is shown.
pub fn proxy_target(path_and_query: &str) -> Option<(Url, String)> {
    let target = target::parse(path_and_query).ok()?;
    let redacted = target::redacted(&target.url);
    Some((target.url, redacted))
}

/// The bytes of a resource of `total` that a Range field asks for; none: all of it, or none of them.
pub fn proxy_range(field: &[u8], total: u64) -> Option<Range<u64>> {
    let mut fields = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(field) {
        fields.insert(RANGE, value);
    }
    RequestedRange::from_headers(&fields).resolve(total).ok().flatten()
}

/// What a SOCKS5 client that says this asks for, or the code with which it is refused; and what was answered meanwhile.
/// None: it hangs up, or is sent away.
pub fn proxy_socks(bytes: &[u8]) -> (Option<Result<(String, u16), u8>>, Vec<u8>) {
    let mut client = tokio::io::join(bytes, Vec::new());
    let result = {
        let request = pin!(marline_net::socks5::read_request(&mut client));
        match request.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.ok(),
            Poll::Pending => None,
        }
    };
    (result, client.into_inner().1)
}

/// What reading a list has come to.
#[derive(Debug)]
pub struct PlaylistReading {
    /// The text for the player; none: it is passed on as it is, or refused.
    pub text: Option<String>,
    /// How many addresses are others.
    pub changed_urls: usize,
    /// Bytes that are remembered for fetching ahead.
    pub index_bytes: usize,
    /// The work that it took, in bytes touched.
    pub work: u64,
    /// It costs too much, for this reason.
    pub limit: Option<String>,
}

/// A playlist as a player gets it.
pub fn proxy_playlist(text: &str) -> Option<PlaylistReading> {
    rewrite_within_budget(text, |text, place, cost| playlist::rewrite(text, place, &[], cost))
}

/// The same of a manifest.
pub fn proxy_manifest(text: &str) -> Option<PlaylistReading> {
    rewrite_within_budget(text, manifest::rewrite)
}

/// The text behind a value of Content-Encoding, at most `most` bytes; none: it is damaged, not known, or longer.
pub fn proxy_content_coding(body: &[u8], encoding: &str, most: usize) -> Option<Vec<u8>> {
    if let Ok(codings) = encoded::parse_codings(encoding) {
        let _ = encoded::decode_prefix(body, &codings, most);
    }
    encoded::decode(body, encoding, most, &mut test_budget(body.len())).ok()
}

type RewriteFn = fn(&str, &RewriteContext, &mut ParseBudget) -> Result<RewrittenPlaylist, PlaylistError>;

fn rewrite_within_budget(text: &str, rewrite: RewriteFn) -> Option<PlaylistReading> {
    let mut cost = test_budget(text.len());
    let initial_work = cost.work_left();
    let result = rewrite(text, &test_context()?, &mut cost);
    let limit = result.as_ref().err().and_then(|error| match error {
        PlaylistError::Limit(reason) => Some(reason.clone()),
        PlaylistError::Malformed(_) => None,
    });
    let rewritten = result.ok();
    let remembered =
        rewritten.iter().flat_map(|rewritten| &rewritten.renditions).map(|rendition| rendition.index.memory_size());
    let (remembered, moved) = (remembered.sum(), rewritten.as_ref().map_or(0, |rewritten| rewritten.changed_urls));
    Some(PlaylistReading {
        text: rewritten.map(|rewritten| rewritten.text),
        changed_urls: moved,
        index_bytes: remembered,
        work: initial_work - cost.work_left(),
        limit,
    })
}

/// Without a clock: a target is a function of its bytes.
fn test_budget(input: usize) -> ParseBudget {
    ParseBudget::new(input, u64::MAX, std::time::Instant::now() + std::time::Duration::from_secs(3600))
}

fn test_context() -> Option<RewriteContext> {
    Some(RewriteContext {
        source_url: Url::parse("https://host.example/films/list?token=1").ok()?,
        player_url: Url::parse("http://127.0.0.1:8480/https://host.example/list?token=1").ok()?,
        proxy_prefix: "http://127.0.0.1:8480/".to_owned(),
        mark: "from-list/",
        unmarked_host: Some("host.example".to_owned()),
    })
}

/// What a file that begins like this plays, where that is written, and where its first picture begins; it comes in these
/// pieces, and is `total` long.
pub fn proxy_container<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    total: u64,
) -> (Option<(Profile, &'static str)>, Option<u64>) {
    let (mut scan, mut at) = (ContainerScan::default(), 0);
    for chunk in pieces {
        scan.feed(at, chunk);
        at += chunk.len() as u64;
    }
    let found = scan.video();
    let found = found.and_then(|(video, source)| Some((video.profile(DataSize::from_bytes(total))?, source)));
    (found, scan.media_start())
}

/// The state that a player page tells: its URL; none: it makes no sense.
pub fn proxy_player_page_report(body: &[u8]) -> Option<Url> {
    page::parse_report(body).ok().map(|(url, _)| url)
}

/// What mpv plays, after these lines.
pub fn proxy_mpv_url<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Url> {
    let (mut mpv, now) = (MpvState::default(), Instant::ZERO);
    for line in lines {
        mpv.on_line(now, line);
    }
    mpv.report(now).map(|(url, _)| url.clone())
}
