//! What the kernel counts of subflows: sock_diag, which any user may ask.
//!
//! In: the subflows that are wanted, or nothing. Out: [`diag::Socket`]s.
//!
//! 1. Exact questions go in groups, so that their answers fit the socket's buffer.
//! 2. A dump is for finding again what was lost; its answers are handed on one by one and never held here.
//! 3. What a dump lacks may be there all the same: the kernel goes on in its table by places, and what comes and goes
//!    meanwhile shifts them. Only the answer to an exact question says that a socket is gone.

use std::io;
use std::net::SocketAddr;

use marline_core::wire::netlink::diag::{self, state};
use marline_core::wire::netlink::{Ack, Message, Request, family, messages};
use marline_sys::netlink::{Protocol, Socket};

/// One subflow that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubflowQuery {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The interface that it is bound to, or goes over.
    pub(crate) interface: u32,
}

/// What the kernel says to a question about one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are sockets, and live for a moment")]
pub(crate) enum SocketReply {
    Found(diag::Socket),
    /// There is no such socket.
    Gone,
    /// It could not say, or was not heard: nothing follows from that.
    #[default]
    Unknown,
}

impl SocketReply {
    fn parse(message: &[u8], parse: impl Fn(&Message<'_>) -> Option<diag::Socket>) -> Self {
        let Some(message) = messages(message).next() else { return Self::Unknown };
        match (parse(&message), Ack::parse(&message)) {
            (Some(socket), _) => Self::Found(socket),
            (None, Some(Ack { error: NO_ENTRY, .. })) => Self::Gone,
            _ => Self::Unknown,
        }
    }

    pub(crate) fn socket(&self) -> Option<&diag::Socket> {
        match self {
            Self::Found(socket) => Some(socket),
            Self::Gone | Self::Unknown => None,
        }
    }
}

/// There is no such socket.
const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();

/// The socket for questions.
#[derive(Debug)]
pub(crate) struct SockDiag {
    socket: Socket,
}

impl SockDiag {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::open(Protocol::SockDiag)?;
        socket.set_rcvbuf(1 << 20)?;
        Ok(Self { socket })
    }

    /// Looks at each subflow; the answers have its places, as far as they came.
    pub(crate) fn query_subflows(
        &self,
        queries: &[SubflowQuery],
        on_reply: impl FnMut(usize, SocketReply),
    ) -> io::Result<()> {
        let request = |query: &SubflowQuery| diag::query_tcp(query.local, query.remote, query.interface);
        self.query(queries.iter().map(request), diag::Socket::parse, on_reply)
    }

    /// The same for connections, by their tokens.
    pub(crate) fn query_connections(
        &self,
        tokens: &[u32],
        on_reply: impl FnMut(usize, SocketReply),
    ) -> io::Result<()> {
        self.query(tokens.iter().copied().map(diag::query_mptcp), diag::Socket::parse_mptcp, on_reply)
    }

    /// Aborts these TCP sockets. Those that have ended meanwhile are no error.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the kernel cannot abort sockets (`CONFIG_INET_DIAG_DESTROY`). `EPERM`: `CAP_NET_ADMIN` is missing.
    pub(crate) fn abort(&self, sockets: &[SubflowQuery]) -> io::Result<()> {
        let mut first_error = None;
        let requests =
            sockets.iter().map(|query| diag::abort(query.local, query.remote, query.interface).finish(0));
        let requests: Vec<Vec<u8>> = requests.collect();
        for group in requests.chunks(MAX_BATCH) {
            self.socket.exchange(group.iter().map(Vec::as_slice), |_, reply| {
                let error =
                    messages(reply).next().and_then(|message| Ack::parse(&message)).map_or(0, |ack| ack.error);
                if error != 0 && error != NO_ENTRY {
                    first_error.get_or_insert(error);
                }
            })?;
        }
        first_error.map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)))
    }

    fn query(
        &self,
        requests: impl Iterator<Item = Request>,
        parse: impl Fn(&Message<'_>) -> Option<diag::Socket>,
        mut on_reply: impl FnMut(usize, SocketReply),
    ) -> io::Result<()> {
        let requests: Vec<Vec<u8>> = requests.map(|request| request.finish(0)).collect();
        for (group, requests) in requests.chunks(MAX_BATCH).enumerate() {
            self.socket.exchange(requests.iter().map(Vec::as_slice), |index, message| {
                on_reply(group * MAX_BATCH + index, SocketReply::parse(message, &parse));
            })?;
        }
        Ok(())
    }

    /// All TCP sockets in these states that are subflows. True: the kernel says that it may have missed some.
    pub(crate) fn dump_subflows(&self, states: u32, mut on_subflow: impl FnMut(&diag::Socket)) -> io::Result<bool> {
        self.dump(
            |family| diag::dump_tcp(family, states),
            |message| {
                let parsed = diag::Socket::parse(message);
                if let Some(parsed) = parsed.filter(|parsed| parsed.subflow.is_some()) {
                    on_subflow(&parsed);
                }
            },
        )
    }

    /// All MPTCP sockets in open states, those that fell back to plain TCP included. True: as above.
    pub(crate) fn dump_connections(&self, mut on_connection: impl FnMut(&diag::Socket)) -> io::Result<bool> {
        self.dump(
            |family| diag::dump_mptcp(family, state::CAN_TRANSFER),
            |message| {
                if let Some(socket) = diag::Socket::parse_mptcp(message) {
                    on_connection(&socket);
                }
            },
        )
    }

    fn dump(&self, request: impl Fn(u8) -> Request, mut on_message: impl FnMut(&Message<'_>)) -> io::Result<bool> {
        let mut is_interrupted = false;
        for family in [family::V4, family::V6] {
            let request = request(family).finish(0);
            is_interrupted |=
                self.socket.dump(&request, |message| messages(message).for_each(|m| on_message(&m)))?;
        }
        Ok(is_interrupted)
    }
}

/// One over a socket that a test has opened.
#[cfg(test)]
impl From<Socket> for SockDiag {
    fn from(socket: Socket) -> Self {
        Self { socket }
    }
}

/// Questions in one call. chosen: an answer takes up to 2.3 kB of the socket's buffer, which has at least 200 kB.
const MAX_BATCH: usize = 64;
