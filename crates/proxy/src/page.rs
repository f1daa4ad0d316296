//! The player page: a video that plays through the media port, and what the proxy does meanwhile.
//!
//! In: requests on the status port. Out: `/TOKEN/play` with its script and style; `/TOKEN/state`, where the page says how
//! its player stands; everything else is the status's.
//!
//! 1. The page is of the status port's origin, so whatever comes through the media port can read nothing of it.
//! 2. The URL stands behind `#`: it is sent to nobody, and a foreign page that links here learns nothing.
//! 3. The page runs its own script and no other, talks to its own origin, and plays from the media port only (CSP).
//! 4. What the page says is checked like any input: numbers that make sense, a URL that can be played, few bytes.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, X_FRAME_OPTIONS};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body;
use serde::Deserialize;
use serde_json::json;

use super::body::{Reply, text};
use super::media::plain;
use super::session::Sessions;
use super::token::Token;
use super::told::Told;
use super::{Given, status, target};

/// Answers one request.
pub(super) async fn answer<B>(
    sessions: &Sessions,
    request: Request<B>,
    (listener, media): (SocketAddr, SocketAddr),
    token: &Token,
) -> Response<Reply>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let wanted = match status::admitted(&request, listener, token) {
        Ok(wanted) => wanted.to_owned(),
        Err(refusal) => return *refusal,
    };
    match (request.method(), wanted.as_str()) {
        (&Method::GET, "play") => {
            let given = sessions.terms.given.as_ref().map(Given::prefix).unwrap_or_default();
            page(&format!("{}{given}", media_of(request.headers(), listener, media)))
        }
        (&Method::GET, "page.js") => status::with_type("text/javascript; charset=utf-8", text(SCRIPT)),
        (&Method::GET, "page.css") => status::with_type("text/css; charset=utf-8", text(STYLE)),
        (&Method::POST, "state") => stands(sessions, request).await,
        (&Method::GET, wanted) => status::answer(sessions, wanted),
        _ => plain(StatusCode::METHOD_NOT_ALLOWED, "only GET, and POST of a player's state"),
    }
}

/// The media port as the page's browser finds it: under the page's own name where both listen at the same address, since
/// a browser takes `localhost` and `127.0.0.1` for two sites.
fn media_of(fields: &HeaderMap, listener: SocketAddr, media: SocketAddr) -> String {
    let host = fields.get(HOST).and_then(|host| host.to_str().ok()).and_then(|host| host.rsplit_once(':'));
    match host {
        Some((host, _)) if media.ip() == listener.ip() || media.ip().is_unspecified() => {
            format!("http://{host}:{}/", media.port())
        }
        _ => format!("http://{media}/"),
    }
}

fn page(media: &str) -> Response<Reply> {
    let mut answer = status::with_type("text/html; charset=utf-8", text(PAGE.replace("{{media}}", media)));
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; media-src {media}; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    );
    let fields = answer.headers_mut();
    fields.extend(HeaderValue::from_str(&policy).ok().map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    fields.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    fields.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    answer
}

/// How a player stands, as a page says it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    url: String,
    position_s: f64,
    buffer_s: f64,
    waits: bool,
    stalls: u32,
    stalled_s: f64,
    ended: bool,
}

async fn stands<B>(sessions: &Sessions, request: Request<B>) -> Response<Reply>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let is_json =
        request.headers().get(CONTENT_TYPE).is_some_and(|said| said.as_bytes().starts_with(b"application/json"));
    if !is_json {
        return plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a state is JSON");
    }
    let Ok(body) = Limited::new(request.into_body(), LONGEST).collect().await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "a state is shorter");
    };
    match told(&body.to_bytes()) {
        Ok((url, told)) => {
            let session = sessions.stands(&url, &told);
            status::with_type("application/json", text(json!({ "session": session }).to_string()))
        }
        Err(line) => plain(StatusCode::BAD_REQUEST, &line),
    }
}

pub(super) fn told(body: &[u8]) -> Result<(url::Url, Told), String> {
    let state: State = serde_json::from_slice(body).map_err(|why| format!("no state: {why}"))?;
    let time = |seconds: f64| {
        Duration::try_from_secs_f64(seconds).map_err(|_| format!("{seconds} is no time of a player"))
    };
    let target = target::parse(&format!("/{}", state.url))?;
    let told = Told {
        source: "page",
        position: time(state.position_s)?,
        buffer: Some(time(state.buffer_s)?),
        waits: state.waits,
        stalls: state.stalls,
        stalled: time(state.stalled_s)?,
        ended: state.ended,
    };
    Ok((target.url, told))
}

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");
/// Of a state: a long URL and some numbers.
const LONGEST: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_makes_sense_or_is_refused() {
        let good = r#"{"url":"https://me:pw@h/f","position_s":1.5,"buffer_s":2,"waits":false,"stalls":1,"stalled_s":0.5,"ended":false}"#;
        let (url, told) = told(good.as_bytes()).unwrap();
        assert_eq!((url.as_str(), told.position, told.stalls), ("https://h/f", Duration::from_millis(1500), 1));
        for (from, to) in [
            ("1.5", "-1"),
            ("1.5", "1e300"),
            ("https://", "file://"),
            ("\"waits\":false,", ""),
            ("\"ended\"", "\"other\""),
            ("false}", "false"),
        ] {
            let bad = good.replace(from, to);
            assert!(super::told(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_media_port_has_the_pages_own_name() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let fields =
            |host: &'static str| [(HOST, HeaderValue::from_static(host))].into_iter().collect::<HeaderMap>();
        let (ours, media) = (at("127.0.0.1:9"), at("127.0.0.1:8480"));
        assert_eq!(media_of(&fields("localhost:9"), ours, media), "http://localhost:8480/");
        assert_eq!(media_of(&fields("127.0.0.1:9"), ours, at("0.0.0.0:8480")), "http://127.0.0.1:8480/");
        assert_eq!(media_of(&fields("127.0.0.1:9"), ours, at("[::1]:8480")), "http://[::1]:8480/");
    }
}
