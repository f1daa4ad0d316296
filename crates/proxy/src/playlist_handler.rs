//! Serves playlists and manifests: fetches them completely and rewrites their URLs where necessary.
//!
//! 1. A playlist is one small response, so it is fetched over the best link. If that has no response after
//!    [`HEDGE_DELAY`], the next one is tried as well, and the first response counts: a live player must not stall
//!    because a link has failed. A response that the server delays on purpose ([`blocking_reload`]) is waited for
//!    instead.
//! 2. A playlist is recognized by its name, its media type, or its first bytes ([`ResponseSniffer`]). The first bytes
//!    of every response are examined, whatever is remembered of the session.
//! 3. Invalid parts of a playlist are kept, and all else is rewritten. A manifest that is not well-formed XML is passed
//!    on, and the status states the reason. A playlist that exceeds the parse budget, whose encoding cannot be decoded, or that
//!    has a document type declaration is answered with 502: passed on unchanged, it would lead the player past the
//!    proxy, or to URLs that do not exist.
//! 4. The response is always complete: the proxy has changed the text, so neither ranges nor validators of the origin
//!    apply.
//! 5. Its bytes are charged to the buffer budget while it is fetched, parsed and sent. A player that does not read them
//!    within [`READ_TIMEOUT`] loses its connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Weak;
use std::time::{Duration, Instant};

use http::Response;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use marline_core::fetch::{ByteRange, RequestRange};
use marline_core::units::DataSize;
use marline_download::ClientContext;
use marline_net::egress::{AddressZone, EgressPolicy};
use marline_net::http::ResponseMeta;
use marline_net::links::Interface;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use url::Url;

use super::body::{self, ProxyBody};
use super::buffer_budget::{Client, Purpose, Reservation};
use super::client_admission::ConnPermit;
use super::hls::RewrittenPlaylist;
use super::parse_budget::{MAX_HLS_BYTES, quote_excerpt};
use super::playlist_reader::{ReadJob, ReadOutcome};
use super::range::RequestedRange;
use super::response_sniffer::{BodyEnd, ResponseSniffer, SniffResult};
use super::session::{RequestError, ResponseBody, ResponseHead, Session, Sessions};
use super::signature::{Signature, sniff_bytes};
use super::single_link::{FIRST_BYTE_TIMEOUT, PeekOutcome, SingleLinkRequest, SingleLinkResponse};
use super::url_rewrite::RewriteContext;
use super::{blocking_reload, playlist_marks, prefetch};

/// The format of a playlist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PlaylistFormat {
    /// HLS.
    Hls,
    /// DASH.
    Dash,
    /// Another format (PLS, ASX, XSPF, SMIL, …), which the proxy does not parse: it is passed on with marks.
    Other,
}

/// The outcome of a request for a playlist.
pub(super) enum PlaylistOutcome {
    /// The rewritten playlist.
    Response(Response<ProxyBody>),
    /// The resource is no playlist, despite its name.
    NotAPlaylist,
}

impl PlaylistFormat {
    /// Determines the format from the extension of the path.
    pub(super) fn from_extension(url: &Url) -> Option<Self> {
        let extension = url.path().rsplit_once('.')?.1.to_ascii_lowercase();
        match extension.as_str() {
            "m3u8" | "m3u" => Some(Self::Hls),
            "mpd" => Some(Self::Dash),
            _ => None,
        }
    }

    /// Determines the format from the media type (RFC 8216 §4, ISO/IEC 23009-1 annex C).
    pub(super) fn from_media_type(content_type: &str) -> Option<Self> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        // Servers use audio, application and video before the subtype.
        match media_type.split_once('/')?.1 {
            "vnd.apple.mpegurl" | "vnd.apple.mpegurl.audio" | "x-mpegurl" | "mpegurl" => Some(Self::Hls),
            "dash+xml" => Some(Self::Dash),
            "x-scpls" | "scpls" | "pls" | "pls+xml" | "xspf+xml" | "x-ms-asx" | "x-ms-wax" | "x-ms-wvx"
            | "x-ms-wpl" | "vnd.ms-wpl" | "smil" | "smil+xml" | "x-pn-realaudio" | "vnd.rn-realmedia" => {
                Some(Self::Other)
            }
            _ => None,
        }
    }

    /// The format by media type, or by an extension for which players take any text for a playlist. Some look for the
    /// extension at the end of the query.
    fn declared(url: &Url, content_type: Option<&str>) -> Option<Self> {
        let url_lower = url.as_str().to_ascii_lowercase();
        let has_extension = |name: &str| {
            let path = url.path().to_ascii_lowercase();
            [&path, &url_lower].iter().any(|text| text.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')))
        };
        let by_extension = || match () {
            () if ["m3u", "m3u8"].into_iter().any(has_extension) => Some(Self::Hls),
            () if OTHER_EXTENSIONS.into_iter().any(has_extension) => Some(Self::Other),
            () => None,
        };
        content_type.and_then(Self::from_media_type).or_else(by_extension)
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Hls => "application/vnd.apple.mpegurl",
            Self::Dash => "application/dash+xml",
            Self::Other => "text/plain",
        })
    }
}

/// A player's request for a playlist.
pub(super) struct PlaylistRequest<'a> {
    /// Host and port of the proxy, as the player writes them before a URL: `127.0.0.1:8480`.
    pub(super) host: &'a str,
    /// Path and query, including marks.
    pub(super) path: &'a str,
    /// A playlist has named this URL.
    pub(super) is_marked: bool,
    /// The player's connection.
    pub(super) permit: &'a Rc<ConnPermit>,
}

/// Fetches and rewrites a playlist.
pub(super) async fn serve_playlist(
    sessions: &Rc<Sessions>,
    session: &Rc<Session>,
    kind: PlaylistFormat,
    request: &PlaylistRequest<'_>,
) -> Result<PlaylistOutcome, RequestError> {
    match fetch(sessions, session).await? {
        Some(fetched) => {
            rewrite_response(sessions, session, kind, fetched, request).await.map(PlaylistOutcome::Response)
        }
        None => {
            session.not_a_playlist.set(true);
            Ok(PlaylistOutcome::NotAPlaylist)
        }
    }
}

/// Rewrites a playlist whose download began as that of an ordinary resource.
pub(super) async fn serve_fetched(
    sessions: &Rc<Sessions>,
    session: &Rc<Session>,
    kind: PlaylistFormat,
    (head, bytes): (ResponseHead, ResponseBody),
    request: &PlaylistRequest<'_>,
) -> Result<Response<ProxyBody>, RequestError> {
    let mut download = PlaylistDownload::new(sessions, session)?;
    let (url, referred_egress) = match bytes {
        ResponseBody::Stream(mut stream) => {
            let transfer_failed = |_| RequestError::BadGateway("the transfer of the playlist failed".to_owned());
            while let Some(chunk) = poll_fn(|cx| stream.poll_ungated(cx)).await {
                download.push(&chunk.map_err(transfer_failed)?)?;
            }
            // The server is unknown, so its URLs may lead only where those of any server may.
            stream.source_url().unwrap_or_else(|| (session.url.clone(), session.egress.referred_by(None)))
        }
        ResponseBody::SingleLink(mut response) => {
            while let Some(chunk) = response.next_chunk().await {
                download.push(&chunk?)?;
            }
            (response.url.clone(), response.referred_egress())
        }
    };
    rewrite_response(sessions, session, kind, download.finish(head.description, url, referred_egress), request)
        .await
}

/// Determines whether a response is a playlist, by its media type or its first bytes, which are only peeked at. `None`:
/// it is no playlist.
///
/// # Errors
/// It may be a playlist and cannot be decoded, or no data arrives.
pub(super) async fn detect_format(
    session: &Session,
    (head, body): (&mut ResponseHead, &mut ResponseBody),
    requested: RequestedRange,
) -> Result<Option<PlaylistFormat>, RequestError> {
    let ResponseHead { description: described, range, total, .. } = head;
    let by_type = described.content_type.as_deref().and_then(PlaylistFormat::from_media_type);
    let start = range.as_ref().map_or(0, |span| span.start);
    let is_partial = !matches!(requested, RequestedRange::Full | RequestedRange::Bytes(0, None))
        && range.as_ref().is_some_and(|span| start > 0 || Some(span.end) != *total);
    if is_partial && by_type.is_some() && !session.not_a_playlist.get() {
        session.playlist_format.set(by_type);
        return Ok(by_type);
    }
    let encoding = described.content_encoding.as_deref();
    let sniffer = ResponseSniffer::new(
        encoding,
        PlaylistFormat::declared(&session.url, described.content_type.as_deref()),
        start,
    );
    let end = if is_partial { BodyEnd::Partial } else { BodyEnd::Complete };
    let result = sniff_body(&sniffer, body, end).await?;
    if start == 0 {
        session.first_byte.set(body.peeked().first().copied());
    }
    match result {
        SniffResult::Playlist(kind) => {
            session.playlist_format.set(Some(kind));
            Ok(Some(kind))
        }
        SniffResult::UnknownEncoding => Err(unknown_encoding_error(encoding)),
        SniffResult::NotAPlaylist | SniffResult::NeedMore => {
            // A player could take it for a playlist by the media type alone.
            described.content_type = described.content_type.take().filter(|_| by_type.is_none());
            Ok(None)
        }
    }
}

/// Whether media type and first byte rule out a playlist. The bytes are examined all the same before they are sent.
pub(super) fn is_not_playlist(session: &Session, head: &ResponseHead) -> bool {
    let content_type = head.description.content_type.as_deref();
    let first_byte = session.first_byte.get();
    // Many containers begin with a NUL, as a manifest in UTF-32 does.
    PlaylistFormat::declared(&session.url, content_type).is_none()
        && head.description.content_encoding.is_none()
        && first_byte.is_some_and(|byte| byte == 0 || sniff_bytes(&[byte]) == Signature::NotAPlaylist)
}

/// Waits for enough bytes to decide what a response is.
async fn sniff_body(
    sniffer: &ResponseSniffer,
    body: &mut ResponseBody,
    end: BodyEnd,
) -> Result<SniffResult, RequestError> {
    let started_at = Instant::now();
    loop {
        let result =
            match timeout(SNIFF_PAUSE, body.peek(&|first| sniffer.sniff(first) != SniffResult::NeedMore)).await {
                Ok(PeekOutcome::Enough) => sniffer.sniff(body.peeked()),
                Ok(PeekOutcome::Ended) => return Ok(sniffer.sniff_at_end(body.peeked(), end)),
                Ok(PeekOutcome::Failed) => {
                    let line = "the transfer failed before the proxy could determine whether this is a playlist";
                    return Err(RequestError::BadGateway(line.to_owned()));
                }
                Err(_) => sniffer.sniff_now(body.peeked()),
            };
        if result != SniffResult::NeedMore {
            return Ok(result);
        }
        if started_at.elapsed() >= FIRST_BYTE_TIMEOUT {
            let line = format!(
                "the first {} s of the response do not show whether this is a playlist",
                FIRST_BYTE_TIMEOUT.as_secs()
            );
            return Err(RequestError::Timeout(line));
        }
    }
}

fn unknown_encoding_error(encoding: Option<&str>) -> RequestError {
    let encoding = quote_excerpt(encoding.unwrap_or_default());
    RequestError::BadGateway(format!(
        "this resource cannot be played through the proxy: its encoding is not known (Content-Encoding: {encoding}), and it may be a playlist"
    ))
}

/// Rewrites a playlist that has been fetched.
async fn rewrite_response(
    sessions: &Rc<Sessions>,
    session: &Rc<Session>,
    kind: PlaylistFormat,
    fetched: FetchedPlaylist,
    request: &PlaylistRequest<'_>,
) -> Result<Response<ProxyBody>, RequestError> {
    let FetchedPlaylist { body, content_type, encoding, url, referred_egress, reservation } = fetched;
    let kind = content_type.as_deref().and_then(PlaylistFormat::from_media_type).unwrap_or(kind);
    session.delivered_bytes.set(session.delivered_bytes.get() + body.len() as u64);
    let proxy_prefix = format!("http://{}/", request.host);
    let player_url = Url::parse(&format!("{proxy_prefix}{}", request.path.trim_start_matches('/')));
    let player = player_url
        .map_err(|error| RequestError::BadGateway(format!("the URL of the playlist is not valid: {error}")))?;
    let mark = playlist_marks::mark_for(referred_egress.referrer_zone().unwrap_or(AddressZone::Internet));
    let unmarked_host = session.url.host_str().filter(|_| !request.is_marked).map(str::to_owned);
    let server = url.host_str().unwrap_or_default().to_owned();
    let context = RewriteContext {
        source_url: session.url_with_login(url),
        player_url: player,
        proxy_prefix,
        mark,
        unmarked_host,
    };
    let imported = sessions.prefetcher.imported_variables(session);
    let outcome = sessions
        .playlist_reader
        .run_job(ReadJob { body, encoding, format: kind, context, imported_variables: imported, reservation })
        .await;
    let (kind, bytes, is_converted) = match outcome {
        ReadOutcome::Rewritten { bytes, format: kind, is_converted, unsent, playlist: rewritten } => {
            close_if_not_read(unsent, request.permit);
            let RewrittenPlaylist {
                changed_urls,
                renditions,
                variants,
                can_choose,
                note,
                target_duration: target,
                preload_hints: hints,
                urls: named,
                variables,
                parse_error,
                ..
            } = *rewritten;
            match parse_error {
                Some(why) => {
                    publish_notice(sessions, session, &format!("the playlist is passed on unchanged: {why}"))
                }
                None => {
                    let note =
                        note.map(|note| format!("; segments are not prefetched: {note}")).unwrap_or_default();
                    session.set_status(&format!("playlist: {changed_urls} URLs rewritten{note}"));
                }
            }
            let info = prefetch::PlaylistInfo {
                renditions,
                variants,
                can_choose,
                target_duration: target,
                preload_hints: hints,
                urls: named,
                variables,
            };
            sessions.prefetcher.add_playlist(&sessions.buffer_budget, session, info, (server, referred_egress));
            (kind, bytes, is_converted)
        }
        ReadOutcome::Rejected(why) => {
            let line = format!("this playlist cannot be played through the proxy: {why}");
            publish_notice(sessions, session, &line);
            return Err(RequestError::BadGateway(line));
        }
        ReadOutcome::NoCapacity => return Err(RequestError::OutOfMemory),
    };
    let mut response = Response::new(body::full_body(bytes));
    let fields = response.headers_mut();
    let declared_type = content_type
        .as_deref()
        .filter(|_| !is_converted)
        .and_then(|content_type| HeaderValue::from_str(content_type).ok());
    fields.insert(CONTENT_TYPE, declared_type.unwrap_or_else(|| kind.content_type()));
    fields.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// Closes the connection of a player that does not read a playlist, to free playlist memory for others.
fn close_if_not_read(unsent: Weak<()>, permit: &Rc<ConnPermit>) {
    let permit = Rc::downgrade(permit);
    tokio::task::spawn_local(async move {
        sleep(READ_TIMEOUT).await;
        if let Some(permit) = permit.upgrade().filter(|_| unsent.strong_count() > 0) {
            tracing::debug!("connection closed: the client does not read the playlist");
            permit.close();
        }
    });
}

/// Sets a message as the status and publishes it as an event, unless it is the status already.
fn publish_notice(sessions: &Sessions, session: &Session, line: &str) {
    if session.status_text.borrow().as_str() != line {
        sessions.events.publish(&json!({"event": "notice", "session": session.id, "text": line}));
    }
    session.set_status(line);
}

/// A playlist as received.
struct FetchedPlaylist {
    body: Vec<u8>,
    content_type: Option<String>,
    /// Its Content-Encoding; servers apply one although the proxy does not request it.
    encoding: Option<String>,
    /// The URL after all redirects.
    url: Url,
    /// The destinations to which its URLs may lead.
    referred_egress: EgressPolicy,
    reservation: Reservation,
}

/// A playlist that is being received.
struct PlaylistDownload {
    body: Vec<u8>,
    reservation: Reservation,
}

impl PlaylistDownload {
    fn new(sessions: &Sessions, session: &Session) -> Result<Self, RequestError> {
        let client = Client::of_egress(&session.egress);
        let reservation =
            sessions.buffer_budget.reserve(client, Purpose::Playlists, 0).ok_or(RequestError::OutOfMemory)?;
        Ok(Self { body: Vec::new(), reservation })
    }

    fn push(&mut self, chunk: &[u8]) -> Result<(), RequestError> {
        if self.body.len() + chunk.len() > MAX_HLS_BYTES {
            let line = format!("the playlist has more than {} MiB; play it without the proxy", MAX_HLS_BYTES >> 20);
            return Err(RequestError::BadGateway(line));
        }
        let (old_capacity, must_grow) =
            (self.body.capacity(), self.body.len() + chunk.len() > self.body.capacity());
        if must_grow {
            // Doubling the capacity would use much more memory than needed.
            self.body.reserve_exact(chunk.len().max(self.body.len() / 8));
        }
        if must_grow && !self.reservation.grow((self.body.capacity() - old_capacity) as u64) {
            return Err(RequestError::OutOfMemory);
        }
        self.body.extend_from_slice(chunk);
        Ok(())
    }

    fn finish(self, described: ResponseMeta, url: Url, referred_egress: EgressPolicy) -> FetchedPlaylist {
        let Self { body, reservation: reserved } = self;
        let ResponseMeta { content_type, content_encoding: encoding, .. } = described;
        FetchedPlaylist { body, content_type, encoding, url, referred_egress, reservation: reserved }
    }
}

/// Fetches a playlist over the best link, and over the next one if that does not respond. `None`: it is no playlist.
async fn fetch(sessions: &Sessions, session: &Session) -> Result<Option<FetchedPlaylist>, RequestError> {
    let mut request = session.single_link_request(RequestRange::Full);
    let blocking_timeout = blocking_reload::is_blocking(&session.url)
        .then(|| blocking_reload::blocking_timeout(sessions.prefetcher.target_duration(session)));
    request.timeout = blocking_timeout.unwrap_or(request.timeout);
    let mut links = sessions.links_beside_playback(session)?.into_iter();
    let (mut requests, mut sent_flags) = (JoinSet::new(), Vec::new());
    let mut last_error = RequestError::BadGateway("no response in time".to_owned());
    loop {
        // Each round tries one more link, and then waits for the first response of all links that were tried.
        let next_link = links.next();
        let is_last = links.len() == 0;
        match next_link {
            Some(link) => {
                let download = PlaylistDownload::new(sessions, session)?;
                request.is_sent = Rc::default();
                sent_flags.push(Rc::clone(&request.is_sent));
                requests.spawn_local(fetch_over(Rc::clone(&sessions.network), link, request.clone(), download));
            }
            None if requests.is_empty() => return Err(last_error),
            None => {}
        }
        let mut outcome = timeout(if is_last { RESPONSE_TIMEOUT } else { HEDGE_DELAY }, requests.join_next()).await;
        if let (Err(_), Some(hold_time)) = (&outcome, blocking_timeout.filter(|_| request.is_sent.get())) {
            // The request was sent, so the link works: now the server is waited for.
            outcome = timeout(hold_time, requests.join_next()).await;
        } else if outcome.is_err() && is_last && sent_flags.iter().any(|sent| sent.get()) {
            outcome = timeout(FIRST_BYTE_TIMEOUT - RESPONSE_TIMEOUT, requests.join_next()).await;
        }
        match outcome {
            Ok(Some(Ok(Err(RequestError::BadGateway(why))))) => last_error = RequestError::BadGateway(why),
            Ok(Some(Ok(result))) => return result,
            Ok(Some(Err(_)) | None) => {}
            Err(_) if is_last => return Err(last_error),
            Err(_) => {}
        }
    }
}

async fn fetch_over(
    network: Rc<ClientContext>,
    link: Option<Interface>,
    request: SingleLinkRequest,
    mut download: PlaylistDownload,
) -> Result<Option<FetchedPlaylist>, RequestError> {
    let mut response = SingleLinkResponse::request(&network, &[link], &request).await?;
    // From now on, missing data means that the link stalls, not that the server delays its response.
    request.is_sent.set(false);
    let referred_egress = response.referred_egress();
    let range = response.head.range;
    match response.head.status {
        // 203: a proxy has changed something (RFC 9110 section 15.3.4).
        200 | 203 => {}
        // Some servers respond to every request with 206.
        206 if range.is_some_and(|range| is_complete_range(range.range, range.total)) => {}
        status => return Err(RequestError::Status(status)),
    }
    let encoding = response.described.content_encoding.clone();
    let declared_format = PlaylistFormat::declared(&request.url, response.described.content_type.as_deref());
    let sniffer = ResponseSniffer::new(encoding.as_deref(), declared_format, 0);
    let mut result = SniffResult::NeedMore;
    while let Some(chunk) = response.next_chunk().await {
        download.push(&chunk?)?;
        result = sniffer.sniff(&download.body);
        // If a server declares a playlist and sends something else, that is played like any resource, with ranges if
        // possible.
        if result == SniffResult::NotAPlaylist {
            return Ok(None);
        }
    }
    if result == SniffResult::NeedMore {
        result = sniffer.sniff_at_end(&download.body, BodyEnd::Complete);
    }
    match result {
        SniffResult::Playlist(_) => {
            Ok(Some(download.finish(response.described.clone(), response.url.clone(), referred_egress)))
        }
        SniffResult::UnknownEncoding => Err(unknown_encoding_error(encoding.as_deref())),
        SniffResult::NotAPlaylist | SniffResult::NeedMore => Ok(None),
    }
}

/// Whether a range extends from the first byte to the last one. The server may not know the total.
fn is_complete_range(range: Option<ByteRange>, total: Option<DataSize>) -> bool {
    range.is_some_and(|span| span.start == 0 && total.is_none_or(|total| total.bytes() == span.end))
}

/// Extensions of playlists that players parse and the proxy does not.
const OTHER_EXTENSIONS: [&str; 11] =
    ["pls", "asx", "wax", "wvx", "wpl", "zpl", "xspf", "smil", "smi", "ram", "b4s"];
/// chosen: the longest playlist at the rate of a slow mobile link.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// A pause after which the format is decided from the bytes that have arrived.
const SNIFF_PAUSE: Duration = Duration::from_millis(200);
/// chosen: three times the RTT of a loaded mobile link. A second request costs a few kilobytes.
const HEDGE_DELAY: Duration = Duration::from_millis(1500);
/// chosen: three segments of six seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(18);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlists_are_recognized_by_name_or_media_type() {
        for (url, kind) in [
            ("https://h/a/list.M3U8?x=.mpd", Some(PlaylistFormat::Hls)),
            ("https://h/manifest.mpd", Some(PlaylistFormat::Dash)),
            ("https://h/film.mp4?list.m3u8", None),
            ("https://h/m3u8", None),
        ] {
            assert_eq!(PlaylistFormat::from_extension(&Url::parse(url).unwrap()), kind, "{url}");
        }
        assert_eq!(
            PlaylistFormat::from_media_type("Application/X-mpegURL; charset=utf-8"),
            Some(PlaylistFormat::Hls)
        );
        assert_eq!(PlaylistFormat::from_media_type("application/dash+xml"), Some(PlaylistFormat::Dash));
        assert_eq!(PlaylistFormat::from_media_type("audio/mpeg"), None);
        for (url, content_type, kind) in [
            ("https://h/radio.M3U", None, Some(PlaylistFormat::Hls)),
            ("https://h/radio?x=.m3u", Some("text/plain"), Some(PlaylistFormat::Hls)),
            ("https://h/radio", Some("audio/mpegurl"), Some(PlaylistFormat::Hls)),
            ("https://h/a.mpd", None, None),
            ("https://h/a.pls?x", None, Some(PlaylistFormat::Other)),
            ("https://h/a", Some("audio/x-scpls"), Some(PlaylistFormat::Other)),
            ("https://h/apls", None, None),
            ("https://h/a.m3u8", Some("application/dash+xml"), Some(PlaylistFormat::Dash)),
        ] {
            assert_eq!(PlaylistFormat::declared(&Url::parse(url).unwrap(), content_type), kind, "{url}");
        }
    }

    #[test]
    fn a_range_of_all_bytes_counts_as_the_whole_resource() {
        let is = |from, to, total: Option<u64>| {
            is_complete_range(Some(ByteRange::new(from, to)), total.map(DataSize::from_bytes))
        };
        assert!(is(0, 9, Some(9)) && is(0, 9, None));
        assert!(!is(0, 9, Some(10)) && !is(1, 9, Some(9)) && !is_complete_range(None, None));
    }
}
