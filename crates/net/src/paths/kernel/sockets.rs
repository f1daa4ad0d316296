//! What the kernel counts of subflows: sock_diag, which any user may ask.
//!
//! In: the subflows that are wanted, or nothing. Out: [`diag::Socket`]s.
//!
//! 1. Exact questions go in groups, so that their answers fit the socket's buffer.
//! 2. A dump is for finding again what was lost; its answers are handed on one by one and never held here.

use std::io;
use std::net::SocketAddr;

use marline_core::wire::netlink::diag::{self, state};
use marline_core::wire::netlink::{family, messages};
use marline_sys::netlink::{Protocol, Socket};

/// One subflow that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The interface that it is bound to, or goes over.
    pub(crate) link: u32,
}

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

    /// Looks at each; gives what is found with its place, and nothing for those that are gone.
    pub(crate) fn look(
        &self,
        asked: &[Asked],
        mut each: impl FnMut(usize, Option<diag::Socket>),
    ) -> io::Result<()> {
        for (group, asked) in asked.chunks(AT_ONCE).enumerate() {
            let mut questions: Vec<Vec<u8>> =
                asked.iter().map(|one| diag::one(one.local, one.remote, one.link).finish(0)).collect();
            self.socket.exchange(questions.iter_mut().map(Vec::as_mut_slice), |place, message| {
                let found = messages(message).find_map(|m| diag::Socket::parse(&m));
                each(group * AT_ONCE + place, found);
            })?;
        }
        Ok(())
    }

    /// All TCP sockets in these states that are subflows.
    pub(crate) fn subflows(&self, states: u32, mut each: impl FnMut(&diag::Socket)) -> io::Result<()> {
        for family in [family::V4, family::V6] {
            self.socket.dump(&diag::all(family, states).finish(1), |message| {
                let found = messages(message).find_map(|m| diag::Socket::parse(&m));
                if let Some(found) = found.filter(|found| found.subflow.is_some()) {
                    each(&found);
                }
            })?;
        }
        Ok(())
    }

    /// All MPTCP sockets in open states, those that fell back to plain TCP included.
    pub(crate) fn connections(&self, mut each: impl FnMut(&diag::Socket)) -> io::Result<()> {
        for family in [family::V4, family::V6] {
            self.socket.dump(&diag::all_mptcp(family, state::OPEN).finish(1), |message| {
                if let Some(found) = messages(message).find_map(|m| diag::Socket::parse_mptcp(&m)) {
                    each(&found);
                }
            })?;
        }
        Ok(())
    }
}

/// Questions in one call. chosen: an answer takes up to 2.3 kB of the socket's buffer, which has at least 200 kB.
const AT_ONCE: usize = 64;
