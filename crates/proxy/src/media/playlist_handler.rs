//! Serves playlists and manifests: fetches them completely and rewrites their URLs where necessary.
//!
//! 1. Invalid parts of a playlist are kept, and all else is rewritten. A manifest that is not well-formed XML is passed
//!    on, and the status states the reason. A playlist that exceeds the parse budget, whose encoding cannot be decoded, or that
//!    has a document type declaration is answered with 502: passed on unchanged, it would lead the player past the
//!    proxy, or to URLs that do not exist.
//! 2. The response is always complete: the proxy has changed the text, so neither ranges nor validators of the origin
//!    apply.
//! 3. Its bytes are charged to the buffer budget while it is fetched, parsed and sent. A player that does not read them
//!    within [`READ_TIMEOUT`] loses its connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Weak;
use std::time::Duration;

use http::Response;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use marline_net::egress::AddressZone;
use serde_json::json;
use tokio::time::sleep;
use url::Url;

use super::playlist_fetch::{FetchedPlaylist, PlaylistDownload, fetch};
use super::prefetch::Prefetcher;
use crate::client::admission::ConnPermit;
use crate::playlist::followed::{PlaylistInfo, PlaylistOrigin};
use crate::playlist::format::PlaylistFormat;
use crate::playlist::hls::RewrittenPlaylist;
use crate::playlist::marks;
use crate::playlist::reader::{PlaylistReader, ReadJob, ReadOutcome};
use crate::playlist::url_rewrite::RewriteContext;
use crate::response::body::{self, ProxyBody};
use crate::session::Session;
use crate::session::resource::{ResponseBody, ResponseHead};
use crate::session::table::Sessions;
use crate::upstream::request_error::RequestError;

/// Serves playlists to all players; see the [module documentation](self).
pub(crate) struct PlaylistHandler {
    sessions: Rc<Sessions>,
    prefetcher: Rc<Prefetcher>,
    reader: PlaylistReader,
}

/// The outcome of a request for a playlist.
pub(crate) enum PlaylistOutcome {
    /// The rewritten playlist.
    Response(Response<ProxyBody>),
    /// The resource is no playlist, despite its name.
    NotAPlaylist,
}

/// A player's request for a playlist.
pub(crate) struct PlaylistRequest<'a> {
    /// Host and port of the proxy, as the player writes them before a URL: `127.0.0.1:8480`.
    pub(crate) host: &'a str,
    /// Path and query, including marks (`from-list/`), which show that a playlist has named the URL.
    pub(crate) path: &'a str,
    /// A playlist has named this URL.
    pub(crate) is_marked: bool,
    /// The player's connection.
    pub(crate) permit: &'a Rc<ConnPermit>,
}

impl PlaylistHandler {
    pub(crate) fn new(sessions: Rc<Sessions>, prefetcher: Rc<Prefetcher>) -> Self {
        Self { sessions, prefetcher, reader: PlaylistReader::default() }
    }

    /// Fetches and rewrites a playlist.
    pub(crate) async fn serve(
        &self,
        session: &Rc<Session>,
        kind: PlaylistFormat,
        request: &PlaylistRequest<'_>,
    ) -> Result<PlaylistOutcome, RequestError> {
        match fetch(&self.sessions, session).await? {
            Some(fetched) => {
                self.rewrite_response(session, kind, fetched, request).await.map(PlaylistOutcome::Response)
            }
            None => {
                session.not_a_playlist.set(true);
                Ok(PlaylistOutcome::NotAPlaylist)
            }
        }
    }

    /// Rewrites a playlist whose download began as that of an ordinary resource.
    pub(crate) async fn serve_fetched(
        &self,
        session: &Rc<Session>,
        kind: PlaylistFormat,
        (head, bytes): (ResponseHead, ResponseBody),
        request: &PlaylistRequest<'_>,
    ) -> Result<Response<ProxyBody>, RequestError> {
        let mut download = PlaylistDownload::new(&self.sessions.buffer_budget, &session.egress)?;
        let (url, referred_egress) = match bytes {
            ResponseBody::Stream(mut stream) => {
                let transfer_failed =
                    |_| RequestError::BadGateway("the transfer of the playlist failed".to_owned());
                while let Some(chunk) = poll_fn(|cx| stream.poll_ungated(cx)).await {
                    download.push(&chunk.map_err(transfer_failed)?)?;
                }
                // The server is unknown, so its URLs may lead only where those of a server on the Internet may.
                stream.source_url().unwrap_or_else(|| (session.url.clone(), session.egress.referred_by(None)))
            }
            ResponseBody::SingleLink(mut response) => {
                while let Some(chunk) = response.next_chunk().await {
                    download.push(&chunk?)?;
                }
                (response.url.clone(), response.referred_egress())
            }
        };
        self.rewrite_response(session, kind, download.finish(head.description, url, referred_egress), request).await
    }

    /// Rewrites a playlist that has been fetched.
    async fn rewrite_response(
        &self,
        session: &Rc<Session>,
        kind: PlaylistFormat,
        fetched: FetchedPlaylist,
        request: &PlaylistRequest<'_>,
    ) -> Result<Response<ProxyBody>, RequestError> {
        let FetchedPlaylist { body, content_type, encoding, url, referred_egress, reservation } = fetched;
        let kind = content_type.as_deref().and_then(PlaylistFormat::from_media_type).unwrap_or(kind);
        session.delivery.responses.add_delivered(body.len() as u64);
        let proxy_prefix = format!("http://{}/", request.host);
        let player_url = Url::parse(&format!("{proxy_prefix}{}", request.path.trim_start_matches('/')));
        let player = player_url
            .map_err(|error| RequestError::BadGateway(format!("the URL of the playlist is not valid: {error}")))?;
        let mark = marks::mark_for(referred_egress.referrer_zone().unwrap_or(AddressZone::Internet));
        let unmarked_host = session.url.host_str().filter(|_| !request.is_marked).map(str::to_owned);
        let server = url.host_str().unwrap_or_default().to_owned();
        let context = RewriteContext {
            source_url: session.url_with_login(url),
            player_url: player,
            proxy_prefix,
            mark,
            unmarked_host,
        };
        let imported = self.sessions.followed_playlists.imported_variables(&session.requester());
        let outcome = self
            .reader
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
                        self.publish_notice(session, &format!("the playlist is passed on unparsed: {why}"))
                    }
                    None => {
                        let note =
                            note.map(|note| format!("; segments are not prefetched: {note}")).unwrap_or_default();
                        session.delivery.set_status(&format!("playlist: {changed_urls} URLs rewritten{note}"));
                    }
                }
                let info = PlaylistInfo {
                    renditions,
                    variants,
                    can_choose,
                    target_duration: target,
                    preload_hints: hints,
                    urls: named,
                    variables,
                };
                let origin = PlaylistOrigin {
                    host: server,
                    egress: referred_egress,
                    url: session.headers.origin_url.clone(),
                };
                let sessions = &self.sessions;
                sessions.followed_playlists.add(&sessions.buffer_budget, &session.requester(), info, origin);
                self.prefetcher.drop_unfollowed();
                (kind, bytes, is_converted)
            }
            ReadOutcome::Rejected(why) => {
                let line = format!("this playlist cannot be played through the proxy: {why}");
                self.publish_notice(session, &line);
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

    /// Sets a message as the status and publishes it as an event, unless it is the status already.
    fn publish_notice(&self, session: &Session, line: &str) {
        if session.delivery.status_text() != line {
            self.sessions
                .accounting
                .events
                .publish(&json!({"event": "notice", "session": session.id, "text": line}));
        }
        session.delivery.set_status(line);
    }
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

/// How long a player may take to read a playlist. Our choice: the longest one at the rate of a slow mobile link.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
