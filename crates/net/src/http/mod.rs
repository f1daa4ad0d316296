//! HTTP client connections for a driver that polls all of them in one task. They make no decisions.
//!
//! The driver queues requests, accepts or cancels a response when its head has arrived, and polls. A connection
//! returns [`Event`]s, and passes body bytes to the [`Sink`] while they are still in the buffer into which the socket
//! was read.
//!
//! 1. A connection is bound to one link from its SYN on, and never changes the link.
//! 2. Requests are written at once, after those that are still unanswered: by pipelining in HTTP/1.1 (RFC 9112
//!    section 9.3.2), as streams in HTTP/2. So the path does not idle between two responses.
//! 3. After a head none of its body is delivered until [`Connection::accept`]. So an unwanted response costs at most
//!    the bytes that rule 4 permits to be buffered.
//! 4. The caller's buffer and `max_body` bound what one call reads. Nothing is buffered in between, except less than
//!    4 KiB after a head (HTTP/1.1) and what the peer's flow control allows (HTTP/2).
//! 5. Network failures are events with a kind and a sentence for users. [`Event::Closed`] is the last event of a
//!    connection.
//!
//! hyper and reqwest were not used: they do not pipeline on purpose, hide which link a request uses, and return
//! bodies in buffers of their own. A task per connection was not used either: its channels would copy or delay what
//! one poll can pass on directly.

mod chunked;
mod dial;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod get_request;
mod http1;
mod http2;
mod lenient;
mod mirror_links;
mod proxy_tunnel;
mod response;
mod response_head;
mod tls;
mod transport;
mod upstream_proxy;
mod url_parts;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::fetch::{ConnError, ConnErrorKind, PathSample, Protocol, ReqId, ResponseHead};
use marline_core::units::DataSize;
use marline_sys::mptcp::MptcpStatus;
use marline_sys::tcp_info::TcpInfo;

pub use dial::DialRequest;
pub use get_request::GetRequest;
pub use http2::Http2Windows;
pub use proxy_tunnel::{ProxyResponseTimer, Tunnel};
pub use response::MAX_FIELDS;
pub use response_head::ResponseMeta;
pub use tls::{TlsContext, TrustRootsError, tls_config};
pub use upstream_proxy::{Proxy, ProxyError, ProxyRules, ProxySettings};
pub use url_parts::{host_and_port, is_loopback_host, is_loopback_url, percent_decoded, resolver_host, take_login};

/// Receives the body bytes of all responses.
pub trait Sink {
    /// The next bytes of an accepted response, directly after the previous ones. Never empty.
    fn body(&mut self, req: ReqId, bytes: &[u8]);
}

/// An event on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The head of a response. Its body waits for [`Connection::accept`] or [`Connection::cancel`].
    Head {
        /// The request of this response.
        req: ReqId,
        /// The fields that decide how the response is used; the caller sets its `location`.
        head: ResponseHead,
        /// The Location field, unchanged.
        location: Option<String>,
        /// The Content-Disposition field, unchanged.
        content_disposition: Option<String>,
        /// The fields that describe the body, for callers that forward it.
        meta: Box<ResponseMeta>,
    },
    /// Body bytes were passed to the sink.
    Data {
        /// The request of this response.
        req: ReqId,
        /// How many bytes.
        len: DataSize,
    },
    /// A response is complete.
    End {
        /// The request of this response.
        req: ReqId,
        /// Only the end of the TCP connection ended the body: it has no length, and TLS was not closed. An attacker
        /// can end a connection in this way as well.
        unconfirmed: bool,
    },
    /// One response was cut off while the connection continues (HTTP/2 only).
    Aborted {
        /// The request of this response.
        req: ReqId,
        /// The reason.
        error: ConnError,
    },
    /// The connection has ended. Every request without an [`Event::End`] or [`Event::Aborted`] is unanswered.
    Closed {
        /// The reason.
        error: ConnError,
    },
}

/// A connection to one server over one link.
pub struct Connection {
    protocol_state: ProtocolState,
    handshake: Duration,
    local: SocketAddr,
    peer: SocketAddr,
}

/// The protocol of a connection, selected by ALPN (RFC 7301).
enum ProtocolState {
    Http1(Box<http1::Http1>),
    Http2(Box<http2::Http2>, OwnedFd),
}

impl Connection {
    /// Opens a connection, including TLS.
    ///
    /// # Errors
    /// [`ConnErrorKind::Refused`], `Reset`, `Unreachable`, `TimedOut`, `Tls` or `Protocol`; `Dns` if there is no
    /// address; `Forbidden` or `OwnListener` if the egress policy or the proxy refuses. The text names the server,
    /// the address or the proxy.
    pub async fn dial(dial: DialRequest) -> Result<Self, ConnError> {
        dial.connect().await
    }

    /// Queues a GET request. The next call of [`poll_event`](Self::poll_event) writes it, directly after earlier
    /// ones.
    pub fn request(&mut self, req: ReqId, get: &GetRequest) {
        match &mut self.protocol_state {
            ProtocolState::Http1(http) => http.request(req, get),
            ProtocolState::Http2(http, _) => http.request(req, get),
        }
    }

    /// Creates an unencrypted HTTP/1.1 connection on a socket that is already connected.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn from_socket(socket: tokio::net::TcpStream) -> io::Result<Self> {
        let (local, peer, handshake) =
            (socket.local_addr()?, socket.peer_addr()?, socket_path_sample(socket.as_fd()).rtt);
        let protocol_state =
            ProtocolState::Http1(Box::new(http1::Http1::new(transport::Transport::plain(socket, None))));
        Ok(Self { protocol_state, handshake, local, peer })
    }

    /// Queues a complete request head of another program unchanged, including its empty line. Only for HTTP/1.1: an
    /// HTTP/2 connection ignores it and reports no event for it.
    pub fn request_raw(&mut self, req: ReqId, head: &[u8]) {
        if let ProtocolState::Http1(http) = &mut self.protocol_state {
            http.request_raw(req, head);
        }
    }

    /// Accepts a response after its head: its body may be read. A body of more than `limit` bytes ends the response
    /// there; the bytes within the limit are still delivered.
    pub fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        match &mut self.protocol_state {
            ProtocolState::Http1(http) => http.accept(req, limit),
            ProtocolState::Http2(http, _) => http.accept(req, limit),
        }
    }

    /// Declines a response. In HTTP/2 the stream is reset, and no further events of it are reported. In HTTP/1.1 that
    /// is impossible: the connection stops at that response, and the caller is expected to drop it.
    pub fn cancel(&mut self, req: ReqId) {
        match &mut self.protocol_state {
            ProtocolState::Http1(http) => http.cancel(req),
            ProtocolState::Http2(http, _) => http.cancel(req),
        }
    }

    /// Writes queued requests, reads once, and returns the next event. Call it until it is pending.
    ///
    /// `scratch` is the read buffer. One buffer of 128 to 256 KiB can serve all connections, because nothing in it
    /// outlives the call. About `max_body` body bytes are delivered at most. With zero none are read, and the
    /// connection does not wake the task for them: poll it again when it may read.
    pub fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        sink: &mut dyn Sink,
        max_body: DataSize,
    ) -> Poll<Event> {
        match &mut self.protocol_state {
            ProtocolState::Http1(http) => http.poll_event(cx, scratch, sink, max_body),
            ProtocolState::Http2(http, _) => http.poll_event(cx, sink, max_body),
        }
    }

    /// Whether requests share the connection by pipelining or as streams.
    pub fn protocol(&self) -> Protocol {
        match &self.protocol_state {
            ProtocolState::Http1(_) => Protocol::Http1,
            ProtocolState::Http2(..) => Protocol::Http2,
        }
    }

    /// Time from SYN to SYN-ACK.
    pub fn handshake(&self) -> Duration {
        self.handshake
    }

    /// The kernel's present measurements of the path; all zero if it does not report them.
    pub fn path_sample(&self) -> PathSample {
        socket_path_sample(self.socket())
    }

    /// Whether the connection uses MPTCP.
    pub fn mptcp_status(&self) -> MptcpStatus {
        MptcpStatus::query(self.socket()).unwrap_or(MptcpStatus::PlainTcp)
    }

    /// Address of the server or proxy.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match &self.protocol_state {
            ProtocolState::Http1(http) => http.socket(),
            ProtocolState::Http2(_, socket) => socket.as_fd(),
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {} -> {} fd {}", self.protocol(), self.local, self.peer, self.socket().as_raw_fd())
    }
}

/// Reads TCP_INFO of a socket.
fn socket_path_sample(socket: BorrowedFd<'_>) -> PathSample {
    let Ok(info) = TcpInfo::query(socket) else { return PathSample::default() };
    PathSample {
        rtt: info.rtt,
        min_rtt: info.min_rtt.unwrap_or_default(),
        rcv_rtt: info.receiver_rtt.unwrap_or_default(),
        out_of_order: info.out_of_order.unwrap_or_default(),
    }
}

/// An error of this kind with a text.
fn conn_error(kind: ConnErrorKind, text: impl Into<String>) -> ConnError {
    ConnError { kind, text: text.into() }
}

/// Converts an error of the socket; `context` precedes the text.
fn socket_error(context: &str, error: &io::Error) -> ConnError {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let kind = match errno {
        Some(Errno::CONNREFUSED) => ConnErrorKind::Refused,
        Some(Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED) => ConnErrorKind::Reset,
        Some(Errno::TIMEDOUT) => ConnErrorKind::TimedOut,
        Some(_) => ConnErrorKind::Unreachable,
        None if error.kind() == io::ErrorKind::TimedOut => ConnErrorKind::TimedOut,
        None if error.kind() == io::ErrorKind::UnexpectedEof => ConnErrorKind::Truncated,
        None => ConnErrorKind::Reset,
    };
    let reason = match errno {
        Some(Errno::CONNREFUSED) => "connection refused",
        Some(Errno::CONNRESET) => "reset by the server",
        Some(Errno::PIPE) => "closed by the server",
        Some(Errno::TIMEDOUT) => "no answer in time",
        Some(Errno::NETUNREACH) => "network unreachable",
        Some(Errno::HOSTUNREACH) => "host unreachable",
        Some(Errno::NODEV) => "no such interface",
        Some(Errno::ADDRNOTAVAIL) => "no usable address on this interface",
        Some(Errno::PERM | Errno::ACCESS) => "not permitted: needs CAP_NET_RAW",
        _ => return conn_error(kind, format!("{context}: {error}")),
    };
    conn_error(kind, format!("{context}: {reason}"))
}
