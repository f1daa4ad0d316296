//! The page at `/` of the media port, which explains the proxy and how to use it.
//!
//! It is one document without script, images or external links. Its only variable content is the host and port under
//! which it was requested, which [`origin_check`](crate::client::origin_check) has verified. It reveals neither the status port
//! nor its token.

use base64::Engine as _;
use http::header::{CONTENT_LENGTH, CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderValue, X_FRAME_OPTIONS};
use http::{Method, Response};
use hyper::body::Body as _;
use sha2::{Digest as _, Sha256};

use crate::response::body::{ProxyBody, text_body};
use crate::response::own::response_with_type;

/// The page, or only its head, for a request whose Host field names this proxy.
pub(crate) fn handle(method: &Method, fields: &HeaderMap) -> Response<ProxyBody> {
    let host = fields.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let (host_name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, "80"),
    };
    // `{{host}}` is replaced last, so that placeholders within the host name have no effect.
    let page = PAGE.replace("{{style}}", STYLE).replace("{{port}}", port).replace("{{name}}", host_name);
    let mut response = response_with_type("text/html; charset=utf-8", text_body(page.replace("{{host}}", host)));
    let digest = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    );
    let fields = response.headers_mut();
    fields.extend(HeaderValue::from_str(&policy).ok().map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    fields.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    if method == Method::HEAD {
        let length = response.body().size_hint().exact();
        response.headers_mut().extend(length.map(|length| (CONTENT_LENGTH, HeaderValue::from(length))));
        *response.body_mut() = ProxyBody::Text(http_body_util::Full::default());
    }
    response
}

const PAGE: &str = include_str!("home.html");
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}\
    th,td{text-align:left;vertical-align:top;padding:.4rem .8rem .4rem 0}code{overflow-wrap:anywhere}\
    @media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}";
