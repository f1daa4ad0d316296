//! Handles requests of the media port: `/https://host/path` in, a response head and body out.
//!
//! 1. Only GET and HEAD are served. The head repeats the origin server's metadata of the resource: type, validators,
//!    size.
//! 2. All sites share one browser origin here, so nothing that a browser could execute may become active. Whatever is
//!    not plain media is sandboxed (CSP), and browsers must not guess types.
//! 3. [`headers`](crate::upstream::headers) decides which fields of a player are forwarded. Cookies that
//!    servers set stay in the proxy, because a browser would send the cookies of one site to another.
//! 4. An error is one line of text.

use std::net::SocketAddr;
use std::rc::Rc;

use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HOST, HeaderMap,
    HeaderValue, IF_RANGE, LAST_MODIFIED, RETRY_AFTER, USER_AGENT,
};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Body as _;
use marline_net::egress::EgressPolicy;

use super::format_detection;
use super::index_page;
use super::playlist_handler::{PlaylistHandler, PlaylistOutcome, PlaylistRequest};
use super::prefetch::Prefetcher;
use crate::client::admission::ConnPermit;
use crate::client::buffer_budget;
use crate::client::media_url;
use crate::client::origin_check;
use crate::client::range::{self, RequestedRange};
use crate::playlist::format::PlaylistFormat;
use crate::playlist::marks;
use crate::response::body::ProxyBody;
use crate::response::own::{add_security_headers, empty_body, text_response};
use crate::session::Session;
use crate::session::resource::{ResponseBody, ResponseHead};
use crate::session::table::Sessions;
use crate::upstream::headers::{PlayerHeaders, UpstreamHeaders};
use crate::upstream::request_error::RequestError;

/// Serves the media port; see the [module documentation](self).
pub(crate) struct MediaHandler {
    sessions: Rc<Sessions>,
    prefetcher: Rc<Prefetcher>,
    playlists: PlaylistHandler,
}

impl MediaHandler {
    pub(crate) fn new(sessions: Rc<Sessions>, prefetcher: Rc<Prefetcher>) -> Self {
        let playlists = PlaylistHandler::new(Rc::clone(&sessions), Rc::clone(&prefetcher));
        Self { sessions, prefetcher, playlists }
    }

    /// Handles one request.
    pub(crate) async fn handle<B>(
        &self,
        request: &Request<B>,
        (listener, peer): (SocketAddr, SocketAddr),
        permit: &Rc<ConnPermit>,
    ) -> Response<ProxyBody> {
        let (sessions, headers) = (&self.sessions, request.headers());
        match origin_check::check_media(headers, listener) {
            Err(origin_check::Rejection::ForeignHost) => {
                return text_response(StatusCode::MISDIRECTED_REQUEST, "the Host field does not name this proxy");
            }
            Err(origin_check::Rejection::CrossSite) => {
                return text_response(
                    StatusCode::FORBIDDEN,
                    "pages of other sites may not play through this proxy",
                );
            }
            Ok(()) => {}
        }
        let head_only = request.method() == Method::HEAD;
        if !head_only && request.method() != Method::GET {
            let mut response =
                text_response(StatusCode::METHOD_NOT_ALLOWED, "the media port accepts only GET and HEAD");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        if path == "/" {
            return index_page::handle(request.method(), headers);
        }
        // A token before the URL selects the header fields of the user (`marline play -H`).
        let origin_headers = sessions.options.origin_headers.as_ref();
        let matched =
            origin_headers.and_then(|origin_headers| Some((origin_headers, origin_headers.strip_token(path)?)));
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let (host, path) = match matched {
            Some((matched_headers, path)) => {
                (format!("{host}/{}", matched_headers.path_prefix().trim_end_matches('/')), path)
            }
            None => (host.to_owned(), path),
        };
        // A mark shows that a playlist has named this URL, and in which network zone its server is.
        let (mark_zone, unmarked_path) = marks::strip_marks(path);
        let playlist_request = &PlaylistRequest { host: &host, path, is_marked: mark_zone.is_some(), permit };
        let target = match media_url::parse(unmarked_path) {
            Ok(target) => target,
            Err(message) => return text_response(StatusCode::BAD_REQUEST, &message),
        };
        let user_agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let player = buffer_budget::player_name(peer.ip(), user_agent);
        let Some(mut player_headers) = PlayerHeaders::from_request(headers, listener) else {
            let message = "the header fields of the request are longer than servers accept";
            return text_response(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message);
        };
        let origin_url = match matched {
            Some((origin_headers, _)) => origin_headers.url.clone(),
            None => match sessions.followed_playlists.origin_for(&player, &target.url) {
                Some(url) => url,
                None => {
                    let mut url = target.url.clone();
                    if mark_zone.is_some() {
                        // The playlist that named this URL belongs to another program or was forgotten, so the URL may
                        // belong to any origin. Port 0 matches no origin, so that no credentials are sent.
                        let _ = url.set_port(Some(0));
                    }
                    url
                }
            },
        };
        if let Some((origin_headers, _)) = matched {
            player_headers = player_headers.with_overrides(&origin_headers.headers);
        }
        if target.login.is_some() {
            player_headers = player_headers.without_authorization();
        }
        let upstream_headers = UpstreamHeaders::new(
            &sessions.cookie_jars,
            &player,
            Rc::new(player_headers),
            origin_url,
            target.login.as_ref(),
        );
        let upstream_headers =
            if matched.is_some() { upstream_headers.with_fixed_origin() } else { upstream_headers };
        // Three restrictions of the destinations apply together: those of the client, of the mark, and of playlists that
        // the client follows.
        let egress = EgressPolicy::for_peer(peer).with_listener(listener);
        let egress = mark_zone.map_or(egress, |zone| egress.referred_by_zone(zone));
        let egress = sessions.followed_playlists.egress_for(&player, &target.url, egress);
        let session = sessions.session_for(target, player, upstream_headers, egress);

        if session.playlist_format.get().is_some()
            && let Some(response) = self.playlist_response(&session, request, playlist_request).await
        {
            return response;
        }
        // Range applies to GET only, and conditions are evaluated before it (RFC 9110 §14.2, §13.2.2).
        if head_only || range::is_conditional(headers) {
            let head = match sessions.head(&session, RequestedRange::Full).await {
                Ok(head) => head,
                Err(refusal) => return error_response(refusal),
            };
            if is_declared_playlist(&session, &head)
                && let Some(response) = self.playlist_response(&session, request, playlist_request).await
            {
                return response;
            }
            if range::is_not_modified(headers, &metadata_headers(&head)) {
                return not_modified(&head);
            }
            if head_only {
                return response_with_body(&head, empty_body());
            }
        }
        let mut requested = RequestedRange::from_headers(headers);
        // If-Range that fails makes this a request for the whole resource, which is always a valid response.
        if range::is_multi_range(headers) && !headers.contains_key(IF_RANGE) {
            match sessions.head(&session, RequestedRange::Full).await {
                Ok(ResponseHead { total: Some(total), accepts_ranges: true, .. }) => {
                    match RequestedRange::from_multi_range(headers, total) {
                        Ok(single) => requested = single,
                        Err(range::UnsatisfiableRange) => {
                            return error_response(RequestError::RangeNotSatisfiable(total));
                        }
                    }
                }
                Ok(_) => {}
                Err(refusal) => return error_response(refusal),
            }
        }
        // A segment may have been prefetched already, or its body may have to wait for the end of the preceding segment.
        let mut segment_request = self.prefetcher.match_request(&session, requested);
        let prefetched = match segment_request.as_mut().filter(|_| !headers.contains_key(IF_RANGE)) {
            Some(segment_request) => segment_request.take_prefetched(requested).await,
            None => None,
        };
        let deferred =
            match segment_request.as_mut().filter(|_| prefetched.is_none() && !headers.contains_key(IF_RANGE)) {
                Some(segment_request) => segment_request.deferred_response(sessions, &session, requested).await,
                None => None,
            };
        if let Some((head, mut body)) = deferred {
            body.permit = Some(Rc::clone(permit));
            segment_request
                .into_iter()
                .for_each(|segment_request| segment_request.prefetch_next(sessions, &session));
            return response_with_body(&head, ProxyBody::Deferred(body));
        }
        let opened = match prefetched {
            Some(response) => Ok(response),
            None => sessions.open(&session, requested, |validator| range::if_range_holds(headers, validator)).await,
        };
        if let Some(segment_request) = segment_request.filter(|_| opened.is_ok()) {
            segment_request.prefetch_next(sessions, &session);
        }
        match opened {
            Ok((mut head, mut bytes)) => {
                let format = format_detection::detect_format(&session, (&mut head, &mut bytes), requested).await;
                let kind = match format {
                    Ok(kind) => kind,
                    Err(refusal) => return error_response(refusal),
                };
                if let Some(kind) = kind {
                    let is_full = head.range.is_none()
                        || matches!(requested, RequestedRange::Full | RequestedRange::Bytes(0, None));
                    let opened = is_full.then_some((head, bytes));
                    return match opened {
                        Some(opened) => {
                            let result =
                                self.playlists.serve_fetched(&session, kind, opened, playlist_request).await;
                            result.map_or_else(error_response, |mut response| {
                                add_security_headers(response.headers_mut());
                                response
                            })
                        }
                        // A range of a playlist cannot be rewritten, so the whole playlist is fetched.
                        None => {
                            self.playlist_response(&session, request, playlist_request).await.unwrap_or_else(|| {
                                text_response(
                                    StatusCode::BAD_GATEWAY,
                                    "the server declares a playlist, but the response is none",
                                )
                            })
                        }
                    };
                }
                match bytes {
                    ResponseBody::Stream(stream) => {
                        stream.set_connection(permit);
                        response_with_body(&head, ProxyBody::Stream(stream))
                    }
                    ResponseBody::SingleLink(single) => response_with_body(&head, ProxyBody::single_link(single)),
                }
            }
            Err(refusal) => error_response(refusal),
        }
    }

    /// The response for a playlist or manifest; `None`: the resource is none.
    async fn playlist_response<B>(
        &self,
        session: &Rc<Session>,
        request: &Request<B>,
        playlist_request: &PlaylistRequest<'_>,
    ) -> Option<Response<ProxyBody>> {
        let kind = session.playlist_format.get()?;
        let mut response = match self.playlists.serve(session, kind, playlist_request).await {
            Ok(PlaylistOutcome::Response(response)) => response,
            Ok(PlaylistOutcome::NotAPlaylist) => {
                session.playlist_format.set(None);
                return None;
            }
            Err(refusal) => return Some(error_response(refusal)),
        };
        add_security_headers(response.headers_mut());
        if request.method() == Method::HEAD {
            let length = response.body().size_hint().exact();
            response.headers_mut().extend(length.map(|length| (CONTENT_LENGTH, HeaderValue::from(length))));
            *response.body_mut() = empty_body();
        }
        Some(response)
    }
}

/// Whether the media type declares a playlist that the file extension did not.
fn is_declared_playlist(session: &Session, head: &ResponseHead) -> bool {
    if session.playlist_format.get().is_some() || session.not_a_playlist.get() {
        // It was requested as a playlist, and the response was none.
        return false;
    }
    session.playlist_format.set(head.description.content_type.as_deref().and_then(PlaylistFormat::from_media_type));
    session.playlist_format.get().is_some()
}

/// A response with this head and body.
fn response_with_body(head: &ResponseHead, body: ProxyBody) -> Response<ProxyBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    *headers = metadata_headers(head);
    add_security_headers(headers);
    let ranges = if head.accepts_ranges { "bytes" } else { "none" };
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static(ranges));
    if let Some(length) = head.range.as_ref().map(|range| range.end - range.start).or(head.total) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(range) = &head.range {
        let total = head.total.map_or_else(|| "*".to_owned(), |total| total.to_string());
        let range = format!("bytes {}-{}/{total}", range.start, range.end - 1);
        headers.extend(HeaderValue::from_str(&range).ok().map(|range| (CONTENT_RANGE, range)));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

/// The origin server's metadata of the resource.
fn metadata_headers(head: &ResponseHead) -> HeaderMap {
    let description = &head.description;
    let declared = [
        (CONTENT_TYPE, &description.content_type),
        (CONTENT_ENCODING, &description.content_encoding),
        (ETAG, &description.etag),
        (LAST_MODIFIED, &description.last_modified),
    ];
    declared
        .into_iter()
        .filter_map(|(name, text)| Some((name, HeaderValue::from_str(text.as_deref()?).ok()?)))
        .collect()
}

fn not_modified(head: &ResponseHead) -> Response<ProxyBody> {
    let mut response = Response::new(empty_body());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    *response.headers_mut() = metadata_headers(head);
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

fn error_response(refusal: RequestError) -> Response<ProxyBody> {
    match refusal {
        RequestError::RangeNotSatisfiable(total) => {
            let mut response = text_response(StatusCode::RANGE_NOT_SATISFIABLE, "the range lies beyond the end");
            let range = HeaderValue::from_str(&format!("bytes */{total}")).ok();
            response.headers_mut().extend(range.map(|range| (CONTENT_RANGE, range)));
            response
        }
        RequestError::Status(status) => {
            // 401 is passed on without a challenge. The login belongs into the URL, because a browser would offer the
            // login of one site to another.
            let code =
                StatusCode::from_u16(status).ok().filter(|code| code.is_client_error() || code.is_server_error());
            text_response(
                code.unwrap_or(StatusCode::BAD_GATEWAY),
                &format!("the server responded with status {status}"),
            )
        }
        RequestError::BadGateway(reason) => text_response(StatusCode::BAD_GATEWAY, &reason),
        RequestError::Forbidden(reason) => text_response(StatusCode::FORBIDDEN, &reason),
        RequestError::LoopDetected(reason) => text_response(StatusCode::LOOP_DETECTED, &reason),
        RequestError::Timeout(reason) => text_response(StatusCode::GATEWAY_TIMEOUT, &reason),
        RequestError::NoLink(reason) => unavailable_response(&reason),
        RequestError::OutOfMemory => {
            unavailable_response("no buffer memory is left for another player; increase --memory")
        }
    }
}

fn unavailable_response(reason: &str) -> Response<ProxyBody> {
    let mut response = text_response(StatusCode::SERVICE_UNAVAILABLE, reason);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_states_which_bytes_follow() {
        let mut head = ResponseHead {
            description: Default::default(),
            total: Some(100),
            range: Some(10..20),
            accepts_ranges: true,
        };
        let response = response_with_body(&head, empty_body());
        assert_eq!(response.status(), 206);
        assert_eq!(response.headers()[CONTENT_RANGE], "bytes 10-19/100");
        assert_eq!(response.headers()[CONTENT_LENGTH], "10");
        head.range = None;
        let response = response_with_body(&head, empty_body());
        assert_eq!(
            (response.status().as_u16(), &response.headers()[CONTENT_LENGTH]),
            (200, &HeaderValue::from(100))
        );
    }
}
