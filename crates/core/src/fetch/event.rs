//! Inputs and outputs of the [`Fetch`](super::Fetch) machine. The values that they consist of are in `http`.
//!
//! Payload never passes here: the driver reads bytes from a connection and stores them at their offset, and the machine
//! receives their number. Inputs and outputs are plain values that a decision log can store.

use core::net::IpAddr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    ByteRange, ConnError, ConnId, DigestScope, Failure, Notice, PathSample, Protocol, ReqId, RequestRange,
    ResponseHead, UrlId, Validator,
};
use crate::link::{LinkId, LinkProfile};
use crate::units::DataSize;

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
    Notice(Notice),
    /// The download is complete.
    Done,
    /// The download has failed.
    Failed(Failure),
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
