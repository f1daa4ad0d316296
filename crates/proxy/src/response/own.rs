//! Responses of the proxy itself, and the header fields that keep browsers from executing what it passes on.

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};

use super::body::{ProxyBody, text_body};

/// A response with one line of text.
pub(crate) fn text_response(status: StatusCode, message: &str) -> Response<ProxyBody> {
    let mut response = Response::new(text_body(message));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    add_security_headers(headers);
    response
}

/// A response of the proxy itself, which browsers must not cache, embed or reinterpret.
pub(crate) fn response_with_type(content_type: &'static str, body: ProxyBody) -> Response<ProxyBody> {
    let mut response = Response::new(body);
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    fields.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    fields.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    response
}

/// The body of a response to HEAD, whose fields describe the body of a GET.
pub(crate) fn empty_body() -> ProxyBody {
    ProxyBody::Text(http_body_util::Full::default())
}

/// Forbids type guessing, active content, and embedding by pages of other sites.
pub(crate) fn add_security_headers(headers: &mut HeaderMap) {
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-site"));
    let is_media = headers.get(CONTENT_TYPE).and_then(|medium| medium.to_str().ok()).is_some_and(is_plain_media);
    if !is_media {
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    }
}

/// Whether browsers treat a type as media and execute none of it.
fn is_plain_media(content_type: &str) -> bool {
    // Browsers use the last type of a list.
    if content_type.contains(',') {
        return false;
    }
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (main_type, subtype) = essence.split_once('/').unwrap_or_default();
    match main_type {
        "audio" | "video" => true,
        "image" => !subtype.contains("xml"),
        _ => matches!(essence.as_str(), "application/octet-stream" | "application/ogg" | "text/vtt"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_plain_media_is_sandboxed() {
        for (content_type, plain) in [
            ("video/mp4", true),
            ("Audio/MPEG; x=y", true),
            ("image/png", true),
            ("application/octet-stream", true),
            ("image/svg+xml", false),
            ("text/html", false),
            ("application/xhtml+xml", false),
            ("text/javascript", false),
            ("multipart/x-mixed-replace", false),
            ("nonsense", false),
            ("video/mp4, text/html", false),
            ("video/mp4; x=y, text/html", false),
        ] {
            assert_eq!(is_plain_media(content_type), plain, "{content_type}");
        }
    }
}
