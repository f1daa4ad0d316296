//! Reads counters of subflows with sock_diag, which any user may query.
//!
//! 1. Exact queries are sent in groups whose replies fit the socket's buffer.
//! 2. A dump finds sockets after lost events. Its messages are passed on one by one and not stored here.
//! 3. A socket that a dump lacks may still exist: the kernel continues a dump by positions in its table, which shift
//!    when sockets appear and disappear. Only the reply to an exact query proves that a socket has ended.

use std::io;
use std::net::SocketAddr;

use marline_core::wire::netlink::diag::{self, state};
use marline_core::wire::netlink::{Ack, Message, Request, family, messages};
use marline_sys::netlink::{Protocol, Socket};

/// Identifies the subflow of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubflowQuery {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Index of the interface to which it is bound, or which it uses.
    pub(crate) interface: u32,
}

/// Reply to the query of one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are sockets, and live for a moment")]
pub(crate) enum SocketReply {
    Found(diag::Socket),
    /// The socket does not exist.
    Gone,
    /// No usable reply; nothing follows from that.
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

/// Errno for a socket that does not exist.
const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();

/// Netlink socket for queries.
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

    /// Queries each subflow. `on_reply` gets the index of the query; replies may be missing.
    pub(crate) fn query_subflows(
        &self,
        queries: &[SubflowQuery],
        on_reply: impl FnMut(usize, SocketReply),
    ) -> io::Result<()> {
        let request = |query: &SubflowQuery| diag::query_tcp(query.local, query.remote, query.interface);
        self.query(queries.iter().map(request), diag::Socket::parse, on_reply)
    }

    /// Queries connections by their tokens.
    pub(crate) fn query_connections(
        &self,
        tokens: &[u32],
        on_reply: impl FnMut(usize, SocketReply),
    ) -> io::Result<()> {
        self.query(tokens.iter().copied().map(diag::query_mptcp), diag::Socket::parse_mptcp, on_reply)
    }

    /// Aborts these TCP sockets. Sockets that have ended meanwhile are ignored.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the kernel cannot abort sockets (`CONFIG_INET_DIAG_DESTROY`). `EPERM`: `CAP_NET_ADMIN` is
    /// missing.
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

    /// Dumps all TCP sockets in these states that are subflows. True: the list changed meanwhile, and some may be
    /// missing.
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

    /// Dumps all MPTCP sockets in open states, including those that fell back to plain TCP. True: as above.
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

/// For tests, which open the socket themselves.
#[cfg(test)]
impl From<Socket> for SockDiag {
    fn from(socket: Socket) -> Self {
        Self { socket }
    }
}

/// Queries in one call. Our choice: a reply takes up to 2.3 kB of the socket's buffer, which has at least 200 kB.
const MAX_BATCH: usize = 64;
