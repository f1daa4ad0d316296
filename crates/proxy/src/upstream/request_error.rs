//! Why a request of a player cannot be satisfied.

use marline_core::fetch::{ConnError, ConnErrorKind};

/// Each reason becomes one status code of the response.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The range lies beyond the end. Holds the size of the resource.
    RangeNotSatisfiable(u64),
    /// The origin server responded with this error status.
    Status(u16),
    /// The origin server cannot be reached, or its response is unusable.
    BadGateway(String),
    /// The client, or the URL that led here, is not permitted to reach this address.
    Forbidden(String),
    /// The URL leads back to the proxy.
    LoopDetected(String),
    /// The origin server accepts requests and does not respond.
    Timeout(String),
    /// No link can be used.
    NoLink(String),
    /// No memory is left for another window or playlist, or too many playlists are queued.
    OutOfMemory,
}

impl From<ConnError> for RequestError {
    fn from(ConnError { kind, text }: ConnError) -> Self {
        match kind {
            ConnErrorKind::Forbidden => Self::Forbidden(text),
            ConnErrorKind::OwnListener => Self::LoopDetected(text),
            _ => Self::BadGateway(text),
        }
    }
}
