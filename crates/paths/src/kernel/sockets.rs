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
pub(crate) struct Asked {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The interface that it is bound to, or goes over.
    pub(crate) link: u32,
}

/// What the kernel says to a question about one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are sockets, and live for a moment")]
pub(crate) enum Answer {
    There(diag::Socket),
    /// There is no such socket.
    Gone,
    /// It could not say, or was not heard: nothing follows from that.
    #[default]
    Unknown,
}

impl Answer {
    fn of(message: &[u8], parse: impl Fn(&Message<'_>) -> Option<diag::Socket>) -> Self {
        let Some(message) = messages(message).next() else { return Self::Unknown };
        match (parse(&message), Ack::parse(&message)) {
            (Some(socket), _) => Self::There(socket),
            (None, Some(Ack { error: NO_ENTRY, .. })) => Self::Gone,
            _ => Self::Unknown,
        }
    }

    pub(crate) fn there(&self) -> Option<&diag::Socket> {
        match self {
            Self::There(socket) => Some(socket),
            Self::Gone | Self::Unknown => None,
        }
    }
}

/// There is no such socket.
const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();

/// The socket for questions.
#[derive(Debug)]
pub(crate) struct Sockets {
    socket: Socket,
}

impl Sockets {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::open(Protocol::SockDiag)?;
        socket.make_room(1 << 20)?;
        Ok(Self { socket })
    }

    /// Looks at each subflow; the answers have its places, as far as they came.
    pub(crate) fn look(&self, asked: &[Asked], each: impl FnMut(usize, Answer)) -> io::Result<()> {
        let question = |one: &Asked| diag::query_tcp(one.local, one.remote, one.link);
        self.ask(asked.iter().map(question), diag::Socket::parse, each)
    }

    /// The same for connections, by their tokens.
    pub(crate) fn look_at_connections(&self, tokens: &[u32], each: impl FnMut(usize, Answer)) -> io::Result<()> {
        self.ask(tokens.iter().copied().map(diag::query_mptcp), diag::Socket::parse_mptcp, each)
    }

    /// Aborts these TCP sockets. Those that have ended meanwhile are no error.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the kernel cannot abort sockets (`CONFIG_INET_DIAG_DESTROY`). `EPERM`: `CAP_NET_ADMIN` is missing.
    pub(crate) fn abort(&self, sockets: &[Asked]) -> io::Result<()> {
        let mut refused = None;
        let requests = sockets.iter().map(|one| diag::abort(one.local, one.remote, one.link).finish(0));
        let requests: Vec<Vec<u8>> = requests.collect();
        for group in requests.chunks(AT_ONCE) {
            self.socket.exchange(group.iter().map(Vec::as_slice), |_, answer| {
                let error =
                    messages(answer).next().and_then(|message| Ack::parse(&message)).map_or(0, |ack| ack.error);
                if error != 0 && error != NO_ENTRY {
                    refused.get_or_insert(error);
                }
            })?;
        }
        refused.map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)))
    }

    fn ask(
        &self,
        questions: impl Iterator<Item = Request>,
        parse: impl Fn(&Message<'_>) -> Option<diag::Socket>,
        mut each: impl FnMut(usize, Answer),
    ) -> io::Result<()> {
        let questions: Vec<Vec<u8>> = questions.map(|question| question.finish(0)).collect();
        for (group, questions) in questions.chunks(AT_ONCE).enumerate() {
            self.socket.exchange(questions.iter().map(Vec::as_slice), |place, message| {
                each(group * AT_ONCE + place, Answer::of(message, &parse));
            })?;
        }
        Ok(())
    }

    /// All TCP sockets in these states that are subflows. True: the kernel says that it may have missed some.
    pub(crate) fn subflows(&self, states: u32, mut each: impl FnMut(&diag::Socket)) -> io::Result<bool> {
        self.dump(
            |family| diag::dump_tcp(family, states),
            |message| {
                let found = diag::Socket::parse(message);
                if let Some(found) = found.filter(|found| found.subflow.is_some()) {
                    each(&found);
                }
            },
        )
    }

    /// All MPTCP sockets in open states, those that fell back to plain TCP included. True: as above.
    pub(crate) fn connections(&self, mut each: impl FnMut(&diag::Socket)) -> io::Result<bool> {
        self.dump(
            |family| diag::dump_mptcp(family, state::CAN_TRANSFER),
            |message| {
                if let Some(found) = diag::Socket::parse_mptcp(message) {
                    each(&found);
                }
            },
        )
    }

    fn dump(&self, question: impl Fn(u8) -> Request, mut each: impl FnMut(&Message<'_>)) -> io::Result<bool> {
        let mut interrupted = false;
        for family in [family::V4, family::V6] {
            let question = question(family).finish(0);
            interrupted |= self.socket.dump(&question, |message| messages(message).for_each(|m| each(&m)))?;
        }
        Ok(interrupted)
    }
}

/// One over a socket that a test has opened.
#[cfg(test)]
impl From<Socket> for Sockets {
    fn from(socket: Socket) -> Self {
        Self { socket }
    }
}

/// Questions in one call. chosen: an answer takes up to 2.3 kB of the socket's buffer, which has at least 200 kB.
const AT_ONCE: usize = 64;
