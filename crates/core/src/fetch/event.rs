//! What the driver tells the fetch machine, and what the machine asks of the driver.
//!
//! Payload never passes here: the driver reads bytes from a connection and puts them in their place, the machine
//! hears how many there were. Both sides are plain values that a log can keep.

use alloc::string::String;
use core::net::IpAddr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ByteRange, DigestScope};
use crate::link::{LinkId, LinkProfile};
use crate::units::DataSize;

/// Names a connection; the machine gives them out and never uses one twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnId(pub u32);

/// Names a request; the machine gives them out and never uses one twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReqId(pub u32);

/// Names a place where the resource can be had: a URL. `0` is the first one of the command line, further ones are
/// its mirrors, and the driver numbers the targets of redirects after them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UrlId(pub u16);

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum Input {
    /// A link can be used, from the start or from now on.
    LinkUp {
        /// Its name in this run.
        link: LinkId,
        /// What is known of it.
        profile: LinkProfile,
    },
    /// The system says that a link is gone: interface removed, carrier lost, address withdrawn.
    LinkDown {
        /// Which one.
        link: LinkId,
    },
    /// A connection that was asked for stands (TLS included).
    Connected {
        /// Which one.
        conn: ConnId,
        /// How requests share it.
        protocol: Protocol,
        /// Time from SYN to SYN-ACK: one round trip on an idle path.
        handshake_rtt: Duration,
        /// The address where it ends. A name may have another one on each link, with another edge behind it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<IpAddr>,
    },
    /// The head of an answer. The driver waits with the body for [`Output::Accept`] or [`Output::Cancel`].
    Head {
        /// The request that it answers.
        req: ReqId,
        /// What it says.
        head: ResponseHead,
    },
    /// Body bytes were read and put in their place, directly behind those before them.
    Data {
        /// The request that they answer.
        req: ReqId,
        /// How many.
        len: DataSize,
    },
    /// An answer is complete as the protocol frames it.
    End {
        /// The request that it answers.
        req: ReqId,
    },
    /// One answer broke off while its connection lives (an HTTP/2 stream was reset).
    Aborted {
        /// The request that it answers.
        req: ReqId,
        /// Why.
        error: ConnError,
    },
    /// A connection is over, or never stood. Every request on it that had no [`Input::End`] is unanswered.
    Closed {
        /// Which one.
        conn: ConnId,
        /// Why.
        error: ConnError,
    },
    /// What the kernel knows of a connection's path now.
    Sample {
        /// Which connection.
        conn: ConnId,
        /// Its path.
        path: PathSample,
    },
    /// The in-order reader has taken everything before this offset. Only runs with a window hear it.
    Consumed {
        /// One past the last byte taken.
        end: u64,
    },
    /// A server has named another URL of the same file (RFC 6249).
    Mirror {
        /// Its number.
        mirror: UrlId,
    },
    /// A digest of the file has become known: sources may be combined from now on.
    Digest {
        /// Of what it is.
        scope: DigestScope,
    },
    /// The bytes of an [`Output::Verify`] were compared with their digest.
    Verified {
        /// Which bytes.
        range: ByteRange,
        /// Whether they match.
        matches: bool,
    },
    /// How much a link may do for this download changes: other downloads share it.
    Share {
        /// Which link.
        link: LinkId,
        /// How much.
        share: LinkShare,
    },
}

/// How much of a link a download may use beside others of the same batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkShare {
    /// As much as there is.
    #[default]
    Full,
    /// One connection: another download has the first claim.
    OneConn,
    /// Nothing: what is under way ends, and nothing more is asked for.
    Paused,
}

/// How the requests of one connection share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1: answers come one after the other, in the order of the requests.
    Http1,
    /// HTTP/2: answers come side by side and can be cancelled one by one.
    Http2,
}

/// The parts of an answer's head that decide anything.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// Content-Length: bytes of this body. None: unknown (chunked, or until the connection closes).
    pub length: Option<DataSize>,
    /// Content-Range (RFC 9110 §14.4).
    pub range: Option<ContentRange>,
    /// The strongest validator that the answer carries.
    pub validator: Option<Validator>,
    /// Last-Modified, if it is a strong validator beside an ETag (RFC 9110 §8.8.2.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
    /// `Accept-Ranges: none` was said. For the log's reader: what counts is how the server answers.
    pub refuses_ranges: bool,
    /// The body is encoded (gzip and its kin) although identity was asked for.
    pub is_encoded: bool,
    /// Retry-After, as a delay from now.
    pub retry_after: Option<Duration>,
    /// The server ends the connection after this answer.
    pub closes_connection: bool,
    /// The target of a redirect, which the driver has numbered. None on a redirect: it must not be followed.
    pub location: Option<UrlId>,
    /// There is a Location, whether it may be followed or not.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub has_location: bool,
    /// An HTML page where the URL names something else.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub is_html_page: bool,
}

/// `Content-Range: bytes first-last/total`, or `bytes */total` with a 416.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContentRange {
    /// The bytes of this answer; none with a 416.
    pub range: Option<ByteRange>,
    /// Bytes of the whole resource, unless the server does not know.
    pub total: Option<DataSize>,
}

/// Proof that two answers carry the same bytes (RFC 9110 §8.8); only strong ones are kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Validator {
    /// A strong ETag, quotes included.
    Etag(String),
    /// Last-Modified, at least one minute older than the answer's Date (RFC 9110 §8.8.2.2).
    LastModified(String),
}

impl Validator {
    /// The text that If-Range takes.
    pub fn if_range_value(&self) -> &str {
        match self {
            Self::Etag(text) | Self::LastModified(text) => text,
        }
    }
}

/// Why something failed: the kind decides, the text is for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnError {
    /// What sort of failure.
    pub kind: ConnErrorKind,
    /// In words, without the link's name.
    pub text: String,
}

impl ConnError {
    /// Whether a rule of ours refuses the connection, whichever link it would be over.
    pub const fn is_refusal(&self) -> bool {
        matches!(self.kind, ConnErrorKind::Forbidden | ConnErrorKind::OwnListener)
    }
}

/// Sorts of failure, by what they mean for the next try.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnErrorKind {
    /// The server closed as HTTP allows: between answers, after `Connection: close`, GOAWAY without error.
    CleanClose,
    /// The connection ended in the middle of an answer.
    Truncated,
    /// Reset by the other end.
    Reset,
    /// Nobody listens there.
    Refused,
    /// No way there from this link: no route, no address, interface gone.
    Unreachable,
    /// No answer in time.
    TimedOut,
    /// The name could not be resolved on this link.
    Dns,
    /// The TLS handshake failed; on another link it might succeed.
    Tls,
    /// The other end does not speak HTTP as it should: bad head, too much data.
    Protocol,
    /// The server wants HTTP/1.1 for this request (RFC 9113 §7, HTTP_1_1_REQUIRED).
    Http1Required,
    /// HTTP/2: the server did not begin to work on the request (RFC 9113 section 8.7, REFUSED_STREAM).
    StreamRefused,
    /// The machine itself closed it.
    ClosedLocally,
    /// What led to the address, or who asked for it, may not lead there. No packet was sent.
    Forbidden,
    /// The address is our own listener, at which this was asked for. No packet was sent.
    OwnListener,
}

/// What TCP_INFO says of the path, at one moment. Zero where the kernel does not know yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PathSample {
    /// Smoothed round-trip time of what we send (requests); includes the queue when the link is loaded.
    pub rtt: Duration,
    /// The smallest round-trip time seen.
    pub min_rtt: Duration,
    /// Round-trip time as the receiver measures it from the data.
    pub rcv_rtt: Duration,
    /// Packets that arrived out of order, in all: on most paths the echo of losses.
    pub out_of_order: u32,
}

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "out")]
pub enum Output {
    /// Open a connection over `link` to `origin`. Answered by `Connected` or `Closed`.
    Connect {
        /// Its name from now on.
        conn: ConnId,
        /// The link to bind it to.
        link: LinkId,
        /// Where to.
        url: UrlId,
        /// The address to use for the origin's host; none: what the link's name server says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
    },
    /// Send a GET on a connection, directly behind those before it.
    Request {
        /// Its name from now on.
        req: ReqId,
        /// The connection.
        conn: ConnId,
        /// The bytes to ask for.
        range: RequestRange,
        /// If-Range, once the resource is identified.
        if_range: Option<Validator>,
    },
    /// The head is good: put the body at this offset onwards. More than `len` bytes must never be taken from it; where it
    /// has more, the answer ends there, in HTTP/1.1 with its connection.
    AcceptBody {
        /// The request.
        req: ReqId,
        /// Where its first body byte belongs.
        offset: u64,
        /// How many bytes it may carry; none: until it ends.
        len: Option<DataSize>,
        /// It comes from another source than the driver's journal is of: its bytes must not be claimed there.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        is_other_mirror: bool,
    },
    /// This answer is not wanted (any more). HTTP/2: reset the stream. HTTP/1.1: the machine closes the connection too.
    Cancel {
        /// The request.
        req: ReqId,
    },
    /// End a connection now. Nothing more is reported of it.
    Close {
        /// Which one.
        conn: ConnId,
    },
    /// The resource is known: name and journal can be settled.
    Identified {
        /// Its size, if the server tells.
        total: Option<DataSize>,
        /// Its strong validator, if there is one.
        validator: Option<Validator>,
    },
    /// The resource has changed: what is stored is worthless. Throw it away; everything starts again.
    Restart,
    /// Compare these bytes, which are in their place, with their digest. Answered by [`Input::Verified`].
    Verify {
        /// Which bytes: a piece, or the whole file.
        range: ByteRange,
    },
    /// Something that the user should read, once.
    Notice(super::Notice),
    /// Everything is in its place.
    Done,
    /// It cannot be had.
    Failed(super::Failure),
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestRange {
    /// Everything, without a Range field.
    Full,
    /// `bytes=start-`.
    From(u64),
    /// `bytes=start-(end-1)`.
    Bounded(ByteRange),
}
