//! Inputs and outputs of the [`Fetch`](super::Fetch) machine, and the values they consist of.
//!
//! Payload never passes here: the driver reads bytes from a connection and stores them at their offset, and the machine
//! receives their number. Inputs and outputs are plain values that a decision log can store.

use alloc::string::String;
use core::net::IpAddr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ByteRange, DigestScope};
use crate::link::{LinkId, LinkProfile};
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

/// An event that the driver reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum Input {
    /// A link is usable, at the start or from now on.
    LinkUp {
        /// The link's number in this run.
        link: LinkId,
        /// Its properties: kind, metering, budget.
        profile: LinkProfile,
    },
    /// The operating system reports that a link is gone: interface removed, carrier lost, address withdrawn.
    LinkDown {
        /// The link.
        link: LinkId,
    },
    /// A connection is established (TLS included).
    Connected {
        /// The connection.
        conn: ConnId,
        /// Protocol, which decides how requests share the connection.
        protocol: Protocol,
        /// Time from SYN to SYN-ACK: one round trip on an idle path.
        handshake_rtt: Duration,
        /// The address of the server. One name may have different addresses, and so CDN nodes, on each link.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<IpAddr>,
    },
    /// The head of a response. The driver holds the body until [`Output::AcceptBody`] or [`Output::Cancel`].
    Head {
        /// The request that it responds to.
        req: ReqId,
        /// Status and the header fields that matter.
        head: ResponseHead,
    },
    /// Body bytes were read and stored directly behind the previous ones.
    Data {
        /// The request that they belong to.
        req: ReqId,
        /// Number of bytes.
        len: DataSize,
    },
    /// A response is complete by the protocol's framing.
    End {
        /// The request that it responds to.
        req: ReqId,
    },
    /// One response was aborted while its connection stays open (an HTTP/2 stream was reset).
    Aborted {
        /// The request that it responds to.
        req: ReqId,
        /// The cause.
        error: ConnError,
    },
    /// A connection ended or could not be established. Its requests without [`Input::End`] get no further events.
    Closed {
        /// The connection.
        conn: ConnId,
        /// The cause.
        error: ConnError,
    },
    /// The kernel's current view of a connection's path.
    Sample {
        /// The connection.
        conn: ConnId,
        /// RTTs and reordering.
        path: PathSample,
    },
    /// The in-order reader has consumed everything before this offset. Sent only in runs with a reader window.
    Consumed {
        /// One past the last byte consumed.
        end: u64,
    },
    /// A server named another URL of the same file (RFC 6249).
    Mirror {
        /// Its number.
        mirror: UrlId,
    },
    /// A digest of the file has become known: from now on mirrors may be combined.
    Digest {
        /// What the digest covers.
        scope: DigestScope,
    },
    /// The bytes of an [`Output::Verify`] were compared with their digest.
    Verified {
        /// The compared bytes.
        range: ByteRange,
        /// Whether they match.
        matches: bool,
    },
    /// This download's share of a link changes, because other downloads use the link as well.
    Share {
        /// The link.
        link: LinkId,
        /// The new share.
        share: LinkShare,
    },
}

/// How much of a link a download may use beside other downloads of the same batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkShare {
    /// No limit.
    #[default]
    Full,
    /// One connection: another download has priority.
    OneConn,
    /// Nothing: requests in flight are completed, and no new ones are sent.
    Paused,
}

/// HTTP version, which decides how the requests of one connection share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1: responses come one after another, in the order of the requests.
    Http1,
    /// HTTP/2: responses are interleaved and can be cancelled one by one.
    Http2,
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

/// A command to the driver, or a result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "out")]
pub enum Output {
    /// Open a connection. The driver reports [`Input::Connected`] or [`Input::Closed`].
    Connect {
        /// Its number from now on.
        conn: ConnId,
        /// The link to bind the socket to.
        link: LinkId,
        /// The URL to connect to.
        url: UrlId,
        /// The address of the URL's host; none: resolve the name with the link's name server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
    },
    /// Send a GET on a connection, directly behind earlier requests.
    Request {
        /// Its number from now on.
        req: ReqId,
        /// The connection to send it on.
        conn: ConnId,
        /// The requested bytes.
        range: RequestRange,
        /// If-Range, once the resource is identified.
        if_range: Option<Validator>,
    },
    /// Store the body from this offset on. The driver must never store more than `len` bytes. If the body is longer,
    /// the response ends there; with HTTP/1.1 so does its connection.
    AcceptBody {
        /// The request.
        req: ReqId,
        /// Offset of the first body byte.
        offset: u64,
        /// Maximum number of bytes; none: until the response ends.
        len: Option<DataSize>,
        /// The response is from another mirror than the one the driver's journal is for: its bytes must not be recorded
        /// there.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        is_other_mirror: bool,
    },
    /// Drop a response. HTTP/2: reset the stream. HTTP/1.1: the machine closes the connection too.
    Cancel {
        /// The request.
        req: ReqId,
    },
    /// Close a connection. The driver reports nothing more about it.
    Close {
        /// The connection.
        conn: ConnId,
    },
    /// The resource is identified: the driver can fix the file name and write its journal.
    Identified {
        /// Its size, if the server stated it.
        total: Option<DataSize>,
        /// Its strong validator, if there is one.
        validator: Option<Validator>,
    },
    /// The stored bytes are worthless: the resource has changed, or they cannot be continued. Discard them; the
    /// download begins again.
    Restart,
    /// Compare these stored bytes with their digest. The driver reports [`Input::Verified`].
    Verify {
        /// The bytes: a piece, or the whole file.
        range: ByteRange,
    },
    /// A message for the user.
    Notice(super::Notice),
    /// The download is complete.
    Done,
    /// The download has failed.
    Failed(super::Failure),
}

/// Why the machine wants to be called at its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {
    /// A connection is stalled if it delivers nothing by then.
    Stall,
    /// A connection may be opened again, a ban ends, or a request token becomes available.
    Retry,
    /// The wait for other links' responses ends; see `portal_check`.
    PortalCheck,
    /// Periodic review of the number of connections per link.
    ConnCount,
    /// Frequent review of stragglers while the last bytes are in flight.
    Endgame,
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
