//! HTTP as the machine sees it: identifiers of URLs, connections and requests, ranges, response heads, and errors.
//!
//! These values are what inputs, outputs, options and notices consist of. They are plain, so that a decision log can
//! store them.

use alloc::string::String;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::ByteRange;
use crate::units::DataSize;

/// Identifies a connection. The machine assigns the numbers and never reuses one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnId(pub u32);

/// Identifies a request. The machine assigns the numbers and never reuses one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReqId(pub u32);

/// Identifies a URL of the resource. `0` is the first URL given by the user, its mirrors follow, and the driver numbers
/// the targets of redirects after them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UrlId(pub u16);

/// HTTP version, which decides how the requests of one connection share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1: responses come one after another, in the order of the requests.
    Http1,
    /// HTTP/2: responses are interleaved and can be cancelled one by one.
    Http2,
}

/// Form of a request's Range field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestRange {
    /// The whole resource, without a Range field.
    Full,
    /// `bytes=start-`.
    From(u64),
    /// `bytes=start-(end-1)`.
    Bounded(ByteRange),
}

/// The parts of a response head on which decisions depend.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseHead {
    /// Status code.
    pub status: u16,
    /// Content-Length of this body. None: unknown (chunked, or until the connection closes).
    pub length: Option<DataSize>,
    /// Content-Range (RFC 9110 §14.4).
    pub range: Option<ContentRange>,
    /// The strongest validator in the head.
    pub validator: Option<Validator>,
    /// Last-Modified, if it is a strong validator beside an ETag (RFC 9110 §8.8.2.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
    /// `Accept-Ranges: none` is present. Only for readers of the log; decisions depend on the actual responses.
    pub refuses_ranges: bool,
    /// The body is encoded (for example gzip) although identity was requested.
    pub is_encoded: bool,
    /// Retry-After, as a delay from now.
    pub retry_after: Option<Duration>,
    /// The server closes the connection after this response.
    pub closes_connection: bool,
    /// Number of the redirect's target. None in a redirect: the target must not be followed.
    pub location: Option<UrlId>,
    /// Location is present, whether or not it may be followed.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub has_location: bool,
    /// The body is an HTML page, although the URL names another type of file.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub is_html_page: bool,
}

/// `Content-Range: bytes first-last/total`, or `bytes */total` with a 416.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContentRange {
    /// The bytes of this body; none with a 416.
    pub range: Option<ByteRange>,
    /// Size of the whole resource; none if the server does not know it.
    pub total: Option<DataSize>,
}

/// Proof that two responses are of the same version of a file (RFC 9110 §8.8); only strong validators are kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Validator {
    /// A strong ETag, including the quotes.
    Etag(String),
    /// Last-Modified, at least one minute older than the response's Date (RFC 9110 §8.8.2.2).
    LastModified(String),
}

impl Validator {
    /// The value of the If-Range field.
    pub fn if_range_value(&self) -> &str {
        match self {
            Self::Etag(text) | Self::LastModified(text) => text,
        }
    }
}

/// Failure of a connection or response. Decisions depend on the kind; the text is for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnError {
    /// Category of the failure.
    pub kind: ConnErrorKind,
    /// Description without the link's name.
    pub text: String,
}

impl ConnError {
    /// Whether a local rule refused the connection; it would do so on every link.
    pub const fn is_refusal(&self) -> bool {
        matches!(self.kind, ConnErrorKind::Forbidden | ConnErrorKind::OwnListener)
    }
}

/// Categories of failure, by what they mean for the next attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnErrorKind {
    /// The server closed as HTTP allows: between responses, after `Connection: close`, or GOAWAY without error.
    CleanClose,
    /// The connection ended in the middle of a response.
    Truncated,
    /// The connection was reset by the peer.
    Reset,
    /// The port is closed.
    Refused,
    /// The address is unreachable on this link: no route, no address, interface gone.
    Unreachable,
    /// No response in time.
    TimedOut,
    /// The name cannot be resolved on this link.
    Dns,
    /// The TLS handshake failed; it may succeed on another link.
    Tls,
    /// The peer violates HTTP: malformed head, too much data.
    Protocol,
    /// The server requires HTTP/1.1 for this request (RFC 9113 §7, HTTP_1_1_REQUIRED).
    Http1Required,
    /// HTTP/2: the server did not process the request (RFC 9113 section 8.7, REFUSED_STREAM).
    StreamRefused,
    /// The driver could not carry out a command for the connection, for example because it no longer knows the URL.
    ClosedLocally,
    /// A local rule forbids the address, which a redirect or the client named. No packet was sent.
    Forbidden,
    /// The address is the listener of this process that received the client's request: a loop. No packet was sent.
    OwnListener,
}

/// TCP_INFO of a connection at one moment. Zero where the kernel has no value yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PathSample {
    /// Smoothed RTT of the packets that we send (requests); includes the queueing delay of a loaded link.
    pub rtt: Duration,
    /// Minimum RTT.
    pub min_rtt: Duration,
    /// The kernel's receiver-side estimate of the RTT, from received data.
    pub rcv_rtt: Duration,
    /// Number of packets that arrived out of order so far; on most paths a sign of losses.
    pub out_of_order: u32,
}
