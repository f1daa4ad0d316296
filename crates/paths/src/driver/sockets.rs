//! Queries of the kernel's sockets: counters of subflows, state of connections, aborts.
//!
//! A query that fails is no failure of the run: its replies are missing ([`SocketReply::Unknown`]), which means
//! nothing to the caller.

use std::collections::BTreeSet;

use marline_core::paths::ConnId;
use marline_core::wire::netlink::diag::{self, state};

use super::super::PathsError;
use super::super::kernel::{SockDiag, SocketReply, SubflowQuery};
use super::socket_dump::SocketDump;

/// The kernel's sockets, as far as the driver reads and aborts them.
#[derive(Debug)]
pub(super) struct Sockets {
    sock_diag: SockDiag,
    /// Number of queries of subflows.
    query_count: u64,
    /// The kernel has refused to abort a socket. This is logged once.
    has_abort_failed: bool,
}

impl Sockets {
    pub(super) const fn new(sock_diag: SockDiag) -> Self {
        Self { sock_diag, query_count: 0, has_abort_failed: false }
    }

    pub(super) const fn query_count(&self) -> u64 {
        self.query_count
    }

    /// Queries the sockets of these subflows; the replies are in the same order.
    pub(super) fn query_subflows(&mut self, queries: &[SubflowQuery]) -> Vec<SocketReply> {
        self.query_count += queries.len() as u64;
        let mut replies = vec![SocketReply::Unknown; queries.len()];
        let outcome = self.sock_diag.query_subflows(queries, |index, reply| {
            if let Some(slot) = replies.get_mut(index) {
                *slot = reply;
            }
        });
        if let Err(error) = outcome {
            tracing::warn!(%error, "no reply from sock_diag; subflow counters are missing");
        }
        replies
    }

    /// Queries the MPTCP sockets of these connections; the replies are in the same order.
    pub(super) fn query_connections(&self, conns: &[ConnId]) -> Vec<SocketReply> {
        let tokens: Vec<u32> = conns.iter().map(|conn| conn.0).collect();
        let mut replies = vec![SocketReply::Unknown; conns.len()];
        let outcome = self.sock_diag.query_connections(&tokens, |index, reply| {
            if let Some(slot) = replies.get_mut(index) {
                *slot = reply;
            }
        });
        if let Err(error) = outcome {
            tracing::warn!(%error, "no reply from sock_diag; ended connections may be shown as open");
        }
        replies
    }

    /// The half-closed ones among these connections. The kernel accepts joins only on established connections.
    pub(super) fn half_closed(&self, conns: Vec<ConnId>) -> BTreeSet<ConnId> {
        let mut closed = BTreeSet::new();
        if conns.is_empty() {
            return closed;
        }
        let tokens: Vec<u32> = conns.iter().map(|conn| conn.0).collect();
        let outcome = self.sock_diag.query_connections(&tokens, |index, reply| {
            let is_closed = reply.socket().is_some_and(|socket| socket.state != state::ESTABLISHED);
            closed.extend(conns.get(index).copied().filter(|_| is_closed));
        });
        if let Err(error) = outcome {
            tracing::debug!(%error, "no reply from sock_diag");
        }
        closed
    }

    /// Reads MPTCP's own counters of these connections, which count each byte once.
    pub(super) fn query_mptcp_info(&self, conns: &[ConnId], mut on_info: impl FnMut(ConnId, &diag::MptcpInfo)) {
        let tokens: Vec<u32> = conns.iter().map(|conn| conn.0).collect();
        let outcome = self.sock_diag.query_connections(&tokens, |index, reply| {
            let info = reply.socket().and_then(|socket| socket.mptcp_info);
            if let (Some(conn), Some(info)) = (conns.get(index), info) {
                on_info(*conn, &info);
            }
        });
        if let Err(error) = outcome {
            tracing::debug!(%error, "no reply from sock_diag");
        }
    }

    /// Dumps all MPTCP connections and their subflows.
    ///
    /// # Errors
    /// The kernel does not reply.
    pub(super) fn dump(&self) -> Result<SocketDump, PathsError> {
        SocketDump::read(&self.sock_diag).map_err(|error| PathsError::kernel("sock_diag", error))
    }

    /// Dumps subflows in these states.
    ///
    /// # Errors
    /// The kernel does not reply.
    pub(super) fn dump_subflows(&self, states: u32, on_subflow: impl FnMut(&diag::Socket)) -> std::io::Result<()> {
        self.sock_diag.dump_subflows(states, on_subflow).map(drop)
    }

    /// Aborts those of these sockets that are still subflows of this connection and closed on this side. Another
    /// socket may have the addresses and ports by now.
    pub(super) fn abort_closed(&mut self, conn: ConnId, sockets: &[SubflowQuery]) {
        let replies = self.query_subflows(sockets);
        let is_closed = |reply: &SocketReply| {
            let own_socket =
                reply.socket().filter(|socket| socket.subflow.is_some_and(|subflow| subflow.token == conn.0));
            own_socket.is_some_and(|socket| !socket.can_send())
        };
        let closed = sockets.iter().zip(&replies).filter(|(_, reply)| is_closed(reply));
        let closed: Vec<SubflowQuery> = closed.map(|(socket, _)| *socket).collect();
        if let Err(error) = self.sock_diag.abort(&closed)
            && !std::mem::replace(&mut self.has_abort_failed, true)
        {
            tracing::warn!(%error, "cannot abort sockets of destroyed subflows: downloads may stall on data that such a socket holds (the kernel needs CONFIG_INET_DIAG_DESTROY)");
        }
    }
}
