//! Why a request is not done, as programs read it: `application/problem+json` (RFC 9457).
//!
//! `title` is one short word for each kind of problem, `detail` a line for people. Nothing in them repeats a token.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{title}: {detail}")]
pub struct Problem {
    /// HTTP's number for it.
    pub status: u16,
    /// Which kind.
    pub title: String,
    /// What and why.
    pub detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, title: &str, detail: impl Into<String>) -> Self {
        Self { status: status.as_u16(), title: title.to_owned(), detail: detail.into() }
    }

    pub(super) fn not_allowed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "not-allowed", detail)
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
            // What was sent of the body may still be on its way; who is not let in needs no connection.
            403 | 408 | 413 => drop(headers.insert(CONNECTION, HeaderValue::from_static("close"))),
            503 => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("5"))),
            _ => {}
        }
        response
    }
}
