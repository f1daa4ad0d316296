//! Responses of the API: bodies, and errors as `application/problem+json` (RFC 9457).
//!
//! `title` is one short token for each kind of problem, `detail` a sentence for people. Neither ever repeats an enrolment token.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};

/// The body of an error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{title}: {detail}")]
pub struct Problem {
    /// The HTTP status code.
    pub status: u16,
    /// The kind of problem, as a fixed token for programs; `docs/fleet-api.json` lists all.
    pub title: String,
    /// What failed and why, for people.
    pub detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, title: &str, detail: impl Into<String>) -> Self {
        Self { status: status.as_u16(), title: title.to_owned(), detail: detail.into() }
    }

    pub(super) fn not_allowed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "not_allowed", detail)
    }

    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    pub(super) fn to_response(&self) -> Response<Full<Bytes>> {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self.status {
            // Part of the request body may still arrive, and a refused caller has no use for the connection: close it.
            403 | 408 | 413 => drop(headers.insert(CONNECTION, HeaderValue::from_static("close"))),
            503 => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("5"))),
            _ => {}
        }
        response
    }
}

/// A successful response.
pub(super) fn response_with_type(body: impl Into<Bytes>, media_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
