//! The player page: plays a video through the media port and shows what the proxy does meanwhile.
//!
//! Serves `/TOKEN/play` with its script and style, and `/TOKEN/state`, to which the page posts the state of its player.
//! All other paths belong to [`status`].
//!
//! 1. The page belongs to the origin of the status port, so content that comes through the media port cannot read it.
//! 2. The URL of the video follows `#`: it is sent to no server, and a foreign page that links here learns nothing.
//! 3. The page runs only its own script, connects only to its own origin, and plays only from the media port (CSP).
//! 4. A posted state is validated like any input: plausible numbers, a playable URL, a bounded size.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, X_FRAME_OPTIONS};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body;
use serde::Deserialize;
use serde_json::json;

use super::status::{self, StatusHandler};
use crate::client::media_url;
use crate::client::token::Token;
use crate::player::report::PlayerReport;
use crate::response::body::{ProxyBody, text_body};
use crate::response::own::{response_with_type, text_response};
use crate::session::table::Sessions;
use crate::upstream::origin_headers::OriginHeaders;

/// Handles one request of the status port.
pub(crate) async fn handle<B>(
    status: &StatusHandler,
    request: Request<B>,
    (listener, media): (SocketAddr, SocketAddr),
    token: &Token,
) -> Response<ProxyBody>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let path = match status::check_access(&request, listener, token) {
        Ok(path) => path.to_owned(),
        Err(refusal) => return *refusal,
    };
    match (request.method(), path.as_str()) {
        (&Method::GET, "play") => {
            let prefix =
                status.sessions.options.origin_headers.as_ref().map(OriginHeaders::path_prefix).unwrap_or_default();
            page_response(&format!("{}{prefix}", media_base_url(request.headers(), listener, media)))
        }
        (&Method::GET, "page.js") => response_with_type("text/javascript; charset=utf-8", text_body(SCRIPT)),
        (&Method::GET, "page.css") => response_with_type("text/css; charset=utf-8", text_body(STYLE)),
        (&Method::POST, "state") => handle_report(&status.sessions, request).await,
        (&Method::GET, path) => status.handle(path),
        _ => text_response(StatusCode::METHOD_NOT_ALLOWED, "only GET is accepted, and POST to /TOKEN/state"),
    }
}

/// The URL of the media port for the browser of the page. If both ports have the same address, the host name of the
/// page is used, because a browser takes `localhost` and `127.0.0.1` for two sites.
fn media_base_url(fields: &HeaderMap, listener: SocketAddr, media: SocketAddr) -> String {
    let host = fields.get(HOST).and_then(|host| host.to_str().ok()).and_then(|host| host.rsplit_once(':'));
    match host {
        Some((host, _)) if media.ip() == listener.ip() || media.ip().is_unspecified() => {
            format!("http://{host}:{}/", media.port())
        }
        _ => format!("http://{media}/"),
    }
}

fn page_response(media: &str) -> Response<ProxyBody> {
    let mut response = response_with_type("text/html; charset=utf-8", text_body(PAGE.replace("{{media}}", media)));
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; media-src {media}; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    );
    let fields = response.headers_mut();
    fields.extend(HeaderValue::from_str(&policy).ok().map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    fields.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    fields.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    response
}

/// The state of a player as the page posts it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageReport {
    url: String,
    position_s: f64,
    buffer_s: f64,
    #[serde(rename = "waiting")]
    is_waiting: bool,
    stalls: u32,
    stalled_s: f64,
    #[serde(rename = "ended")]
    has_ended: bool,
}

async fn handle_report<B>(sessions: &Sessions, request: Request<B>) -> Response<ProxyBody>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let is_json = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|content_type| content_type.as_bytes().starts_with(b"application/json"));
    if !is_json {
        return text_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the state must be sent as application/json");
    }
    let Ok(body) = Limited::new(request.into_body(), MAX_REPORT).collect().await else {
        return text_response(StatusCode::PAYLOAD_TOO_LARGE, "the state is too long");
    };
    match parse_report(&body.to_bytes()) {
        Ok((url, report)) => {
            let session = sessions.on_player_report(&url, &report);
            response_with_type("application/json", text_body(json!({ "session": session }).to_string()))
        }
        Err(message) => text_response(StatusCode::BAD_REQUEST, &message),
    }
}

pub(crate) fn parse_report(body: &[u8]) -> Result<(url::Url, PlayerReport), String> {
    let posted: PageReport = serde_json::from_slice(body).map_err(|why| format!("invalid player state: {why}"))?;
    let time = |seconds: f64| {
        Duration::try_from_secs_f64(seconds).map_err(|_| format!("{seconds} is not a valid time in seconds"))
    };
    let target = media_url::parse(&format!("/{}", posted.url))?;
    let report = PlayerReport {
        source: "page",
        position: time(posted.position_s)?,
        buffer: Some(time(posted.buffer_s)?),
        is_waiting: posted.is_waiting,
        stalls: posted.stalls,
        stalled_time: time(posted.stalled_s)?,
        has_ended: posted.has_ended,
    };
    Ok((target.url, report))
}

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");
/// Limit of a posted state, which has one long URL and some numbers.
const MAX_REPORT: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_implausible_player_state_is_refused() {
        let good = r#"{"url":"https://me:pw@h/f","position_s":1.5,"buffer_s":2,"waiting":false,"stalls":1,"stalled_s":0.5,"ended":false}"#;
        let (url, report) = parse_report(good.as_bytes()).unwrap();
        assert_eq!((url.as_str(), report.position, report.stalls), ("https://h/f", Duration::from_millis(1500), 1));
        for (from, to) in [
            ("1.5", "-1"),
            ("1.5", "1e300"),
            ("https://", "file://"),
            ("\"waiting\":false,", ""),
            ("\"ended\"", "\"other\""),
            ("false}", "false"),
        ] {
            let bad = good.replace(from, to);
            assert!(super::parse_report(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_media_url_uses_the_host_name_of_the_page() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let fields =
            |host: &'static str| [(HOST, HeaderValue::from_static(host))].into_iter().collect::<HeaderMap>();
        let (status_addr, media) = (at("127.0.0.1:9"), at("127.0.0.1:8480"));
        assert_eq!(media_base_url(&fields("localhost:9"), status_addr, media), "http://localhost:8480/");
        assert_eq!(
            media_base_url(&fields("127.0.0.1:9"), status_addr, at("0.0.0.0:8480")),
            "http://127.0.0.1:8480/"
        );
        assert_eq!(media_base_url(&fields("127.0.0.1:9"), status_addr, at("[::1]:8480")), "http://[::1]:8480/");
    }
}
