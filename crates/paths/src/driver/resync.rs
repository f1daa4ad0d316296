//! Resynchronizes the subflow table with the kernel's sockets: at the start, after lost events, and periodically.
//!
//! One dump lists MPTCP sockets (token, first addresses, fallback) and another one TCP sockets that are subflows
//! (token, addresses, ids, flags). Differences from the table are handled as if events had reported them.
//!
//! 1. A connection is managed if this host opened it as a client, if it is fully established, and if it has a subflow
//!    over a link.
//! 2. A connection that its application has closed has ended, although its sockets linger (its socket has no inode).
//! 3. A connection that fell back to plain TCP has ended for the policy. The kernel sends no event for that.
//! 4. Connections and subflows that a dump lacks are queried one by one before they count as ended: a dump that runs
//!    while the list changes can miss entries.
//! 5. An adopted connection is tested for manageability: its socket may be older than the switch to the userspace
//!    path manager. The test is a request to destroy a subflow that cannot exist.
//!
//! Whether the server denies joins to its first address is not visible in a dump, so this remains unknown for adopted
//! connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use marline_core::paths::{CloseReason, ConnId, Counters};
use marline_core::wire::netlink::diag::{self, state};
use marline_core::wire::netlink::mptcp::SubflowTuple;

use super::super::PathsError;
use super::super::kernel::SocketReply;
use super::super::snapshot::Management;
use super::commands::{is_open_subflow_of, to_counters};
use super::events::SubflowOrigin;
use super::subflow_table::{ConnEntry, Subflow, default_address_id};
use super::{Driver, MAX_FALLBACK_QUERIES, Mode, Policy};

/// Result of a dump. It may hold tens of thousands of sockets: only needed fields are kept, in few allocations.
#[derive(Debug, Default)]
struct SocketDump {
    connections: BTreeMap<ConnId, DumpedConnection>,
    /// Sorted by connection.
    subflows: Vec<(ConnId, DumpedSubflow)>,
    plain_tcp: u64,
}

/// A TCP socket that is a subflow.
#[derive(Clone, Copy, Debug)]
struct DumpedSubflow {
    local: SocketAddr,
    remote: SocketAddr,
    interface: u32,
    subflow: diag::SubflowInfo,
    counters: Option<Counters>,
}

impl SocketDump {
    /// The subflows of a connection, by binary search.
    fn subflows_of(&self, conn: ConnId) -> &[(ConnId, DumpedSubflow)] {
        let start = self.subflows.partition_point(|(other, _)| *other < conn);
        let tail = self.subflows.get(start..).unwrap_or(&[]);
        tail.get(..tail.partition_point(|(other, _)| *other == conn)).unwrap_or(&[])
    }
}

/// An MPTCP socket. Its addresses are those of the first subflow, even after that has ended.
#[derive(Clone, Copy, Debug)]
struct DumpedConnection {
    local: SocketAddr,
    remote: SocketAddr,
    is_fallback: bool,
}

impl<M: Policy> Driver<M> {
    /// Makes the table equal to the kernel's sockets. `adopt`: new connections are older than the driver.
    pub(super) fn resync(&mut self, adopt: bool) -> Result<(), PathsError> {
        let start = self.now();
        let dump = self.dump_sockets()?;
        self.totals.plain_now = dump.plain_tcp;
        // Ended entries go first: a new subflow may have the addresses of an ended one.
        self.remove_missing(&dump);
        let opened = self.open_new(&dump, adopt);
        for (conn, subflow) in &dump.subflows {
            let origin = match subflow.subflow.local_id {
                _ if subflow.subflow.is_local_initial() => SubflowOrigin::First,
                Some(0) => SubflowOrigin::InitialAddress,
                _ => SubflowOrigin::OtherAddress,
            };
            self.add_subflow(*conn, subflow.local, subflow.remote, subflow.interface, origin, subflow.counters);
        }
        let now = self.now();
        self.next_resync = None;
        self.resync_not_before = now + now.since(start) * RESYNC_PAUSE_FACTOR;
        tracing::debug!(connections = self.subflow_table.conns.len(), opened, "read everything again");
        Ok(())
    }

    /// Dumps all sockets; repeated a few times if the list changed during the dump.
    fn dump_sockets(&self) -> Result<SocketDump, PathsError> {
        let (mut dump, mut is_incomplete) = self.dump_once()?;
        for _ in 1..MAX_DUMP_TRIES {
            if !is_incomplete {
                break;
            }
            (dump, is_incomplete) = self.dump_once()?;
        }
        Ok(dump)
    }

    /// Dumps all sockets once. True: the list changed meanwhile, and entries may be missing.
    fn dump_once(&self) -> Result<(SocketDump, bool), PathsError> {
        let dump_error = |error| PathsError::kernel("sock_diag", error);
        let mut dump = SocketDump::default();
        let connections = self.sock_diag.dump_connections(|socket| {
            let (Some(info), true) = (socket.mptcp_info, socket.inode != 0) else { return };
            dump.plain_tcp += u64::from(info.is_fallback);
            let is_fallback = is_plain_tcp(&info);
            let socket = DumpedConnection { local: socket.local, remote: socket.remote, is_fallback };
            dump.connections.insert(ConnId(info.token), socket);
        });
        let mut is_incomplete = connections.map_err(dump_error)?;
        // Sockets that this host has closed belong to destroyed subflows and remain until their data is acknowledged.
        let subflows = self.sock_diag.dump_subflows(state::CAN_SEND, |socket| {
            let Some(subflow) = socket.subflow else { return };
            let (local, remote, interface) = (socket.local, socket.remote, socket.interface);
            let dumped = DumpedSubflow { local, remote, interface, subflow, counters: to_counters(socket) };
            dump.subflows.push((ConnId(subflow.token), dumped));
        });
        is_incomplete |= subflows.map_err(dump_error)?;
        dump.subflows.sort_by_key(|(conn, _)| *conn);
        Ok((dump, is_incomplete))
    }

    /// Removes connections and subflows that have ended.
    fn remove_missing(&mut self, dump: &SocketDump) {
        let is_alive = |conn: &ConnId| dump.connections.get(conn).is_some_and(|socket| !socket.is_fallback);
        let missing: Vec<ConnId> =
            self.subflow_table.conns.keys().copied().filter(|conn| !is_alive(conn)).collect();
        self.close_ended(&missing);
        let (mut queries, mut ids) = (Vec::new(), Vec::new());
        for (conn, connection) in &self.subflow_table.conns {
            let dumped = dump.subflows_of(*conn);
            let is_dumped =
                |sub: &&Subflow| dumped.iter().any(|(_, p)| p.local == sub.local && p.remote == sub.remote);
            for sub in connection.subflows.iter().filter(|sub| !is_dumped(sub)) {
                queries.push(sub.query());
                ids.push((*conn, sub.id));
            }
        }
        for ((conn, id), reply) in ids.into_iter().zip(self.query_sockets(&queries)) {
            let has_ended = match reply {
                SocketReply::Found(socket) => !is_open_subflow_of(&socket, conn),
                SocketReply::Gone => true,
                SocketReply::Unknown => false,
            };
            // Only a definite reply ends a subflow; see point 4.
            if has_ended && let Some(sub) = self.take_subflow(conn, id) {
                self.on_subflow_gone(conn, &sub, CloseReason::Other);
            }
        }
    }

    /// Queries each of these connections, and closes those that have ended or fell back to plain TCP.
    pub(super) fn close_ended(&mut self, conns: &[ConnId]) {
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
        for (conn, reply) in conns.iter().zip(replies) {
            let has_ended = match reply {
                SocketReply::Found(socket) => {
                    let is_fallback = socket.mptcp_info.is_some_and(|info| is_plain_tcp(&info));
                    if is_fallback {
                        tracing::warn!(conn = conn.0, "the connection fell back to plain TCP");
                    }
                    is_fallback || socket.inode == 0 || !socket.is_open()
                }
                SocketReply::Gone => true,
                SocketReply::Unknown => false,
            };
            if has_ended {
                self.close_connection(*conn);
            }
        }
    }

    /// Reads the MPTCP byte counters of a connection, which count each byte once. A connection that its program has
    /// closed may remain in the kernel for a moment.
    pub(super) fn update_totals(&self, conn: ConnId, connection: &mut ConnEntry) {
        self.query_mptcp_info(&[conn], |_, info| connection.update_totals(info));
    }

    /// Reads the MPTCP byte counters of connections with new traffic, up to a maximum number.
    pub(super) fn update_active_totals(&mut self) {
        let mut table = std::mem::take(&mut self.subflow_table);
        let active = table.conns.iter().filter(|(_, connection)| connection.has_new_bytes()).map(|(conn, _)| *conn);
        let active: Vec<ConnId> = active.take(MAX_FALLBACK_QUERIES).collect();
        self.query_mptcp_info(&active, |conn, info| {
            if let Some(connection) = table.conn_mut(conn) {
                connection.update_totals(info);
            }
        });
        self.subflow_table = table;
    }

    /// Reads the initial data sequence number of these connections, once for each.
    pub(super) fn find_initial_data_seqs(&mut self, conns: &BTreeSet<ConnId>) {
        let mut table = std::mem::take(&mut self.subflow_table);
        let needs_query = |conn: &&ConnId| table.conns.get(conn).is_some_and(ConnEntry::needs_initial_data_seq);
        let missing: Vec<ConnId> = conns.iter().filter(needs_query).copied().collect();
        if !missing.is_empty() {
            self.query_mptcp_info(&missing, |conn, info| {
                if let Some(connection) = table.conn_mut(conn) {
                    connection.update_totals(info);
                }
            });
        }
        self.subflow_table = table;
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

    fn query_mptcp_info(&self, conns: &[ConnId], mut on_info: impl FnMut(ConnId, &diag::MptcpInfo)) {
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

    /// Opens connections of the dump that are not in the table; returns their number.
    fn open_new(&mut self, dump: &SocketDump, adopt: bool) -> usize {
        let mut new_connections = Vec::new();
        for (conn, socket) in dump.connections.iter().filter(|(_, socket)| !socket.is_fallback) {
            let subflows = dump.subflows_of(*conn);
            if !self.subflow_table.conns.contains_key(conn) && self.is_own_client(subflows) {
                let mut connection = ConnEntry::new(socket.local.ip(), socket.remote, self.now());
                connection.adopted = adopt;
                connection.management = self.initial_management();
                connection.address_ids = nondefault_ids(subflows);
                new_connections.push((*conn, connection));
            }
        }
        self.mark_predating_switch(&mut new_connections);
        let count = new_connections.len();
        for (conn, connection) in new_connections {
            self.open_connection(conn, connection);
        }
        count
    }

    fn is_own_client(&self, subflows: &[(ConnId, DumpedSubflow)]) -> bool {
        let flags = || subflows.iter().map(|(_, subflow)| subflow.subflow);
        flags().any(|flags| flags.is_local_initial() || flags.is_local_join())
            && flags().any(|flags| flags.is_fully_established())
            && subflows
                .iter()
                .any(|(_, subflow)| self.links.for_address(subflow.local.ip(), subflow.interface).is_some())
    }

    /// Marks connections whose sockets keep the kernel's own path manager.
    fn mark_predating_switch(&self, new_connections: &mut [(ConnId, ConnEntry)]) {
        let Some(manager) = self.path_manager.as_ref().filter(|_| self.mode == Mode::Userspace) else { return };
        let nonexistent_subflow = |conn: &ConnId, connection: &ConnEntry| {
            // No socket has port 0. The addresses must still have the connection's family.
            let local = SocketAddr::new(connection.initial_address, 0);
            SubflowTuple { token: conn.0, local, remote: connection.server }.destroy(manager.family_id())
        };
        let requests =
            new_connections.iter().map(|(conn, connection)| nonexistent_subflow(conn, connection)).collect();
        match manager.execute(requests) {
            Ok(acks) => {
                for ((conn, connection), ack) in new_connections.iter_mut().zip(acks) {
                    if ack.message.contains("not selected") {
                        connection.management = Management::PredatesSwitch;
                        connection.set_reason(
                            self.now(),
                            "its socket was created before the userspace path manager was enabled".into(),
                        );
                        tracing::warn!(
                            conn = conn.0,
                            "unmanaged: its socket was created before the userspace path manager was enabled"
                        );
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no reply from the kernel's MPTCP path manager; cannot test adopted connections")
            }
        }
    }
}

/// Whether a connection fell back to plain TCP, or its server never used MPTCP.
const fn is_plain_tcp(info: &diag::MptcpInfo) -> bool {
    info.is_fallback || !info.has_remote_key
}

/// Attempts to dump a list that changes during the dump. chosen: the next dump has what this one misses, and missing
/// entries are queried one by one.
const MAX_DUMP_TRIES: usize = 3;
/// Pause after a dump, in multiples of its duration. chosen: a fifth of a core at most, and less than a second with
/// ten thousand connections.
const RESYNC_PAUSE_FACTOR: u32 = 4;

/// Address ids in the kernel that differ from [`default_address_id`].
fn nondefault_ids(subflows: &[(ConnId, DumpedSubflow)]) -> Vec<(IpAddr, u8)> {
    let all = subflows.iter().filter_map(|(_, subflow)| Some((subflow.local.ip(), subflow.subflow.local_id?)));
    let mut ids: Vec<_> = all.filter(|(address, id)| *id != 0 && *id != default_address_id(*address)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
