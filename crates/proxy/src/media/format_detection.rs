//! Determines whether an open response is a playlist, by its media type or its first bytes.
//!
//! The first bytes of every response are examined, whatever is remembered of the session, because a server may respond
//! differently each time. They are only peeked at and stay part of the body.

use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::client::range::RequestedRange;
use crate::playlist::format::PlaylistFormat;
use crate::playlist::parse_budget::quote_excerpt;
use crate::playlist::response_sniffer::{BodyEnd, ResponseSniffer, SniffResult};
use crate::playlist::signature::{Signature, sniff_bytes};
use crate::session::Session;
use crate::session::resource::{ResponseBody, ResponseHead};
use crate::upstream::request_error::RequestError;
use crate::upstream::single_link::{FIRST_BYTE_TIMEOUT, PeekOutcome};

/// Determines whether a response is a playlist, by its media type or its first bytes, which are only peeked at. `None`:
/// it is no playlist.
///
/// # Errors
/// It may be a playlist and cannot be decoded, or no data arrives.
pub(crate) async fn detect_format(
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
pub(crate) fn is_not_playlist(session: &Session, head: &ResponseHead) -> bool {
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

pub(crate) fn unknown_encoding_error(encoding: Option<&str>) -> RequestError {
    let encoding = quote_excerpt(encoding.unwrap_or_default());
    RequestError::BadGateway(format!(
        "this resource cannot be played through the proxy: its encoding is not known (Content-Encoding: {encoding}), and it may be a playlist"
    ))
}

/// A pause after which the format is decided from the bytes that have arrived.
const SNIFF_PAUSE: Duration = Duration::from_millis(200);
