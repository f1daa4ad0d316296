//! Dumps of the kernel's sockets: MPTCP sockets (token, first addresses, fallback), and TCP sockets that are subflows
//! (token, addresses, ids, flags).

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use marline_core::paths::{ConnId, Counters};
use marline_core::wire::netlink::diag::{self, state};

use super::super::kernel::SockDiag;
use super::address_id::default_address_id;
use super::counters::to_counters;

/// Result of a dump. It may hold tens of thousands of sockets: only needed fields are kept, in few allocations.
#[derive(Debug, Default)]
pub(super) struct SocketDump {
    pub(super) connections: BTreeMap<ConnId, DumpedConnection>,
    /// Sorted by connection.
    pub(super) subflows: Vec<(ConnId, DumpedSubflow)>,
    /// Open sockets that requested MPTCP and are plain TCP.
    pub(super) plain_tcp: u64,
}

/// A TCP socket that is a subflow.
#[derive(Clone, Copy, Debug)]
pub(super) struct DumpedSubflow {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) interface: u32,
    pub(super) subflow: diag::SubflowInfo,
    pub(super) counters: Option<Counters>,
}

impl SocketDump {
    /// Dumps all sockets; repeated a few times if the list changed during the dump.
    ///
    /// # Errors
    /// The kernel does not reply.
    pub(super) fn read(sock_diag: &SockDiag) -> io::Result<Self> {
        let (mut dump, mut is_incomplete) = Self::read_once(sock_diag)?;
        for _ in 1..MAX_DUMP_TRIES {
            if !is_incomplete {
                break;
            }
            (dump, is_incomplete) = Self::read_once(sock_diag)?;
        }
        Ok(dump)
    }

    /// Dumps all sockets once. True: the list changed meanwhile, and entries may be missing.
    fn read_once(sock_diag: &SockDiag) -> io::Result<(Self, bool)> {
        let mut dump = Self::default();
        let mut is_incomplete = sock_diag.dump_connections(|socket| {
            let (Some(info), true) = (socket.mptcp_info, socket.inode != 0) else { return };
            dump.plain_tcp += u64::from(info.is_fallback);
            let is_fallback = is_plain_tcp(&info);
            let socket = DumpedConnection { local: socket.local, remote: socket.remote, is_fallback };
            dump.connections.insert(ConnId(info.token), socket);
        })?;
        // Sockets that this host has closed belong to destroyed subflows and remain until their data is acknowledged.
        is_incomplete |= sock_diag.dump_subflows(state::CAN_SEND, |socket| {
            let Some(subflow) = socket.subflow else { return };
            let (local, remote, interface) = (socket.local, socket.remote, socket.interface);
            let dumped = DumpedSubflow { local, remote, interface, subflow, counters: to_counters(socket) };
            dump.subflows.push((ConnId(subflow.token), dumped));
        })?;
        dump.subflows.sort_by_key(|(conn, _)| *conn);
        Ok((dump, is_incomplete))
    }

    /// Whether this host opened the connection as a client, and it is fully established.
    pub(super) fn is_own_client(&self, conn: ConnId) -> bool {
        let flags = || self.subflows_of(conn).iter().map(|(_, subflow)| subflow.subflow);
        flags().any(|flags| flags.is_local_initial() || flags.is_local_join())
            && flags().any(|flags| flags.is_fully_established())
    }

    /// Address ids of a connection that differ from [`default_address_id`].
    pub(super) fn nondefault_ids(&self, conn: ConnId) -> Vec<(IpAddr, u8)> {
        let subflows = self.subflows_of(conn);
        let all = subflows.iter().filter_map(|(_, subflow)| Some((subflow.local.ip(), subflow.subflow.local_id?)));
        let mut ids: Vec<_> = all.filter(|(address, id)| *id != 0 && *id != default_address_id(*address)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The subflows of a connection, by binary search.
    pub(super) fn subflows_of(&self, conn: ConnId) -> &[(ConnId, DumpedSubflow)] {
        let start = self.subflows.partition_point(|(other, _)| *other < conn);
        let tail = self.subflows.get(start..).unwrap_or(&[]);
        tail.get(..tail.partition_point(|(other, _)| *other == conn)).unwrap_or(&[])
    }
}

/// An MPTCP socket. Its addresses are those of the first subflow, even after that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct DumpedConnection {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) is_fallback: bool,
}

/// Whether a connection fell back to plain TCP, or its server never used MPTCP.
pub(super) const fn is_plain_tcp(info: &diag::MptcpInfo) -> bool {
    info.is_fallback || !info.has_remote_key
}

/// Attempts to dump a list that changes during the dump. Our choice: the next dump has what this one misses, and
/// missing entries are queried one by one.
const MAX_DUMP_TRIES: usize = 3;
