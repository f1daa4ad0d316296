//! Entry points of the fuzz targets: the proxy's parsers of untrusted input.
//!
//! They take and return plain values, so the proxy's own types stay private.

use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::header::{HeaderMap, HeaderValue, RANGE};
use marline_core::playback::MediaProfile;
use marline_core::units::{DataSize, Instant};
use url::Url;

use crate::client::media_url;
use crate::client::range::RequestedRange;
use crate::page::player_page;
use crate::player::container::ContainerScan;
use crate::player::mpv::MpvState;
use crate::playlist::content_coding;
use crate::playlist::dash;
use crate::playlist::hls;
use crate::playlist::hls::RewrittenPlaylist;
use crate::playlist::parse_budget::{ParseBudget, PlaylistError};
use crate::playlist::url_rewrite::RewriteContext;

/// The URL that a path at the media port stands for, and its redacted form.
pub fn proxy_target(path_and_query: &str) -> Option<(Url, String)> {
    let target = media_url::parse(path_and_query).ok()?;
    let redacted = media_url::redacted(&target.url);
    Some((target.url, redacted))
}

/// The bytes of a resource of `total` that a Range field requests; `None`: all or none of them.
pub fn proxy_range(field: &[u8], total: u64) -> Option<Range<u64>> {
    let mut fields = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(field) {
        fields.insert(RANGE, value);
    }
    RequestedRange::from_headers(&fields).resolve(total).ok().flatten()
}

/// The request of a SOCKS5 client, or the code with which it is refused, and the bytes sent to the client. `None`: the
/// client disconnects or is rejected.
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

/// The result of rewriting a playlist.
#[derive(Debug)]
pub struct PlaylistReading {
    /// The text for the player; `None`: it is passed on unchanged, or refused.
    pub text: Option<String>,
    /// How many URLs were changed.
    pub changed_urls: usize,
    /// Memory that is kept for prefetching, in bytes.
    pub index_bytes: usize,
    /// The work of parsing, in bytes touched.
    pub work: u64,
    /// The limit that was exceeded.
    pub limit: Option<String>,
}

/// Rewrites an HLS playlist.
pub fn proxy_playlist(text: &str) -> Option<PlaylistReading> {
    rewrite_within_budget(text, |text, place, cost| hls::rewrite(text, place, &[], cost))
}

/// Rewrites a DASH manifest.
pub fn proxy_manifest(text: &str) -> Option<PlaylistReading> {
    rewrite_within_budget(text, dash::rewrite)
}

/// Decodes a body with this Content-Encoding, to at most `most` bytes; `None`: it is damaged, unknown, or longer.
pub fn proxy_content_coding(body: &[u8], encoding: &str, most: usize) -> Option<Vec<u8>> {
    if let Ok(codings) = content_coding::parse_codings(encoding) {
        let _ = content_coding::decode_prefix(body, &codings, most);
    }
    content_coding::decode(body, encoding, most, &mut test_budget(body.len())).ok()
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

/// The deadline is far away, so that the result depends on the bytes only.
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

/// The profile of a file of `total` bytes that begins with these chunks, the structure that contained it, and the
/// offset of the media data.
pub fn proxy_container<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    total: u64,
) -> (Option<(MediaProfile, &'static str)>, Option<u64>) {
    let (mut scan, mut at) = (ContainerScan::default(), 0);
    for chunk in pieces {
        scan.feed(at, chunk);
        at += chunk.len() as u64;
    }
    let found = scan.video();
    let found = found.and_then(|(video, source)| Some((video.profile(DataSize::from_bytes(total))?, source)));
    (found, scan.media_start())
}

/// The URL in the state that a player page posts; `None`: the state is invalid.
pub fn proxy_player_page_report(body: &[u8]) -> Option<Url> {
    player_page::parse_report(body).ok().map(|(url, _)| url)
}

/// The URL that mpv plays, after these lines.
pub fn proxy_mpv_url<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Url> {
    let (mut mpv, now) = (MpvState::default(), Instant::ZERO);
    for line in lines {
        mpv.on_line(now, line);
    }
    mpv.report(now).map(|(url, _)| url.clone())
}
