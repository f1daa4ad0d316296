//! HTTP client connections, as the pump needs them: one task polls all of them, and they decide nothing.
//!
//! In: requests, verdicts on heads, and turns to read. Out: [`Event`]s, and body bytes that go to the [`Sink`] while
//! they still lie in the buffer into which the socket was read.
//!
//! 1. A connection is bound to one link from its SYN onwards, and never changes it.
//! 2. Requests are written at once, behind those that are not answered yet: true pipelining in HTTP/1.1
//!    (RFC 9112 §9.3.2), streams in HTTP/2. So the pipe never drains between two answers.
//! 3. After a head nothing of its body is read until [`Connection::accept`]: a wrong answer costs no bytes.
//! 4. What is read at one time is bounded by the caller's buffer and by `most`; nothing is gathered in between, but
//!    for less than 4 KiB behind a head (HTTP/1.1), and what the peer's flow control allows (HTTP/2).
//! 5. Trouble on the network is an event with its kind and a sentence for people; after [`Event::Closed`] the
//!    connection has nothing more to say.
//!
//! hyper and reqwest were not used: they refuse pipelining on purpose, hide which link a request takes, and hand out
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
mod response;
mod response_head;
mod tls;
mod transport;
mod upstream_proxy;
mod url_host;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::fetch::{ConnError, ConnErrorKind, PathSample, Protocol, ReqId, ResponseHead};
use marline_core::units::DataSize;
use marline_sys::mptcp::Spoken;
use marline_sys::tcp_info::TcpInfo;

pub use dial::DialRequest;
pub use get_request::GetRequest;
pub use http2::Http2Windows;
pub use response::MAX_FIELDS;
pub use response_head::ResponseMeta;
pub use tls::{TlsContext, TrustRootsError, tls_config};
pub use upstream_proxy::{Proxy, ProxyError, ProxyResponseTimer, ProxyRules, ProxySettings, Tunnel};
pub use url_host::{is_loopback_host, is_loopback_url, resolver_host};

/// Where body bytes go.
pub trait Sink {
    /// The next bytes of an accepted answer, directly behind those before them. Never empty.
    fn body(&mut self, req: ReqId, bytes: &[u8]);
}

/// What happened on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The head of an answer. Its body waits for [`Connection::accept`] or [`Connection::cancel`].
    Head {
        /// The request that it answers.
        req: ReqId,
        /// What it says; `location` is left for the caller to number.
        head: ResponseHead,
        /// The Location field as it was sent.
        location: Option<String>,
        /// The Content-Disposition field as it was sent.
        content_disposition: Option<String>,
        /// What it says of its body.
        meta: Box<ResponseMeta>,
    },
    /// Body bytes went to the sink.
    Data {
        /// The request that they answer.
        req: ReqId,
        /// How many.
        len: DataSize,
    },
    /// An answer is complete.
    End {
        /// The request that it answers.
        req: ReqId,
        /// Nothing but the end of the TCP connection says so: the body has no length, and TLS was not closed. An attacker can
        /// end a connection like this, too.
        unconfirmed: bool,
    },
    /// One answer broke off while the connection lives (HTTP/2 only).
    Aborted {
        /// The request that it answers.
        req: ReqId,
        /// Why.
        error: ConnError,
    },
    /// The connection is over. Every request without an [`Event::End`] is unanswered.
    Closed {
        /// Why.
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

/// The protocols; ALPN chooses (RFC 7301).
enum ProtocolState {
    Http1(Box<http1::Http1>),
    Http2(Box<http2::Http2>, OwnedFd),
}

impl Connection {
    /// Opens a connection, TLS included.
    ///
    /// # Errors
    /// [`TroubleKind::Refused`], `Reset`, `Unreachable`, `TimedOut`, `Tls` or `Protocol`, with the address in words.
    pub async fn dial(dial: DialRequest) -> Result<Self, ConnError> {
        dial.connect().await
    }

    /// Queues a GET. It is written when [`poll_event`](Self::poll_event) runs next, directly behind those before it.
    pub fn request(&mut self, req: ReqId, get: &GetRequest) {
        match &mut self.protocol_state {
            ProtocolState::Http1(http) => http.request(req, get),
            ProtocolState::Http2(http, _) => http.request(req, get),
        }
    }

    /// Speaks HTTP/1.1 in plain text over a socket that is connected already.
    ///
    /// # Errors
    /// It is not connected any more.
    pub fn from_socket(socket: tokio::net::TcpStream) -> io::Result<Self> {
        let (local, peer, handshake) =
            (socket.local_addr()?, socket.peer_addr()?, socket_path_sample(socket.as_fd()).rtt);
        let exchange = ProtocolState::Http1(Box::new(http1::Http1::new(transport::Transport::plain(socket, None))));
        Ok(Self { protocol_state: exchange, handshake, local, peer })
    }

    /// Queues a GET of somebody else as it stands: a whole head, its empty line included. HTTP/1.1 only; HTTP/2 has
    /// other heads, and closes nothing and answers nothing here.
    pub fn request_raw(&mut self, req: ReqId, head: &[u8]) {
        if let ProtocolState::Http1(http) = &mut self.protocol_state {
            http.request_raw(req, head);
        }
    }

    /// The verdict on a head: its body may flow. More body bytes than `limit` end the answer with
    /// [`TroubleKind::Protocol`]; the bytes within it are still delivered.
    pub fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        match &mut self.protocol_state {
            ProtocolState::Http1(http) => http.accept(req, limit),
            ProtocolState::Http2(http, _) => http.accept(req, limit),
        }
    }

    /// This answer is not wanted. HTTP/2: the stream is reset and nothing more is said of it. HTTP/1.1 cannot do so:
    /// the connection stops at that answer, and the caller is expected to drop it.
    pub fn cancel(&mut self, req: ReqId) {
        match &mut self.protocol_state {
            ProtocolState::Http1(http) => http.cancel(req),
            ProtocolState::Http2(http, _) => http.cancel(req),
        }
    }

    /// Writes what is queued, reads once, and says what happened. Call until it is pending.
    ///
    /// `scratch` is where bytes are read to; one buffer of 128 to 256 KiB serves all connections, for nothing in it
    /// outlives the call. About `most` body bytes are delivered at the most; with zero none are read, and the
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

    /// How requests share it.
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

    /// What the kernel knows of the path now; all zero if it does not tell.
    pub fn path_sample(&self) -> PathSample {
        socket_path_sample(self.socket())
    }

    /// Whether MPTCP is spoken on it.
    pub fn mptcp_status(&self) -> Spoken {
        Spoken::of(self.socket()).unwrap_or(Spoken::Never)
    }

    /// The other end.
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

/// TCP_INFO of a socket.
fn socket_path_sample(socket: BorrowedFd<'_>) -> PathSample {
    let Ok(info) = TcpInfo::of(socket) else { return PathSample::default() };
    PathSample {
        rtt: info.rtt,
        min_rtt: info.min_rtt.unwrap_or_default(),
        rcv_rtt: info.receiver_rtt.unwrap_or_default(),
        out_of_order: info.out_of_order.unwrap_or_default(),
    }
}

/// A failure of a kind, in words.
fn conn_error(kind: ConnErrorKind, text: impl Into<String>) -> ConnError {
    ConnError { kind, text: text.into() }
}

/// What an error of the socket means, with `what` was being done in front of it.
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
