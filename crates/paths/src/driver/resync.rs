//! Everything again from the kernel's list of sockets: at the start, after lost events, and now and then.
//!
//! In: a dump of MPTCP sockets (token, first addresses, fallback) and one of TCP sockets that are subflows (token,
//! addresses, ids, flags). Out: what differs from the table, told as if events had said it.
//!
//! 1. Ours is what this host opened as a client, what is fully established, and what has a subflow over a link.
//! 2. A connection whose application has closed it is over, although its sockets linger (its socket has no inode).
//! 3. A connection that became plain TCP in mid-flight is over for the policy; no event tells of it.
//! 4. What a dump lacks is asked for by itself before it is taken for gone: a dump may miss what is there.
//! 5. An adopted connection is asked whether it can be managed: its socket may be older than the switch to this path
//!    manager. The question is to end a subflow that cannot exist.
//!
//! Whether the server denies joins to its first address cannot be seen in a dump: of adopted connections it is not known.

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

/// What the kernel has. There may be ten thousands: nothing is kept that is not needed, and nothing in small pieces.
#[derive(Debug, Default)]
struct SocketDump {
    connections: BTreeMap<ConnId, DumpedConnection>,
    /// By connection.
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
    /// The subflows of a connection.
    fn subflows_of(&self, conn: ConnId) -> &[(ConnId, DumpedSubflow)] {
        let start = self.subflows.partition_point(|(other, _)| *other < conn);
        let tail = self.subflows.get(start..).unwrap_or(&[]);
        tail.get(..tail.partition_point(|(other, _)| *other == conn)).unwrap_or(&[])
    }
}

/// An MPTCP socket: its addresses are those of the first subflow, also after that has gone.
#[derive(Clone, Copy, Debug)]
struct DumpedConnection {
    local: SocketAddr,
    remote: SocketAddr,
    is_fallback: bool,
}

impl<M: Policy> Driver<M> {
    /// Makes the table as the kernel has it. `adopt`: what is new was there before the driver.
    pub(super) fn resync(&mut self, adopt: bool) -> Result<(), PathsError> {
        let start = self.now();
        let dump = self.dump_sockets()?;
        self.totals.plain_now = dump.plain_tcp;
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

    /// The kernel's list; told again, a few times, if it changed while it was told.
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

    /// True: something may be missing.
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
        // One that this end has closed was destroyed: its socket goes on until its data is acknowledged.
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

    /// Connections and subflows that are no more.
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
            if has_ended && let Some(sub) = self.take_subflow(conn, id) {
                self.on_subflow_gone(conn, &sub, CloseReason::Other);
            }
        }
    }

    /// Asks for each of these connections, and ends those that are over or became plain TCP.
    pub(super) fn close_ended(&mut self, conns: &[ConnId]) {
        let tokens: Vec<u32> = conns.iter().map(|conn| conn.0).collect();
        let mut replies = vec![SocketReply::Unknown; conns.len()];
        let outcome = self.sock_diag.query_connections(&tokens, |index, reply| {
            if let Some(slot) = replies.get_mut(index) {
                *slot = reply;
            }
        });
        if let Err(error) = outcome {
            tracing::warn!(%error, "sock_diag does not answer");
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

    /// Asks how much a connection has carried, each byte once. One that is over for its program may be there a moment longer.
    pub(super) fn update_totals(&self, conn: ConnId, connection: &mut ConnEntry) {
        self.query_mptcp_info(&[conn], |_, info| connection.update_totals(info));
    }

    /// The same of those in which something has moved, but not of very many.
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

    /// Asks the kernel where the data of these connections begin, once for each.
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

    /// Those of these connections of which one direction is closed. The kernel joins only connections that are established.
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
            tracing::debug!(%error, "sock_diag does not answer");
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
            tracing::debug!(%error, "sock_diag does not answer");
        }
    }

    /// Connections that are not known yet; how many.
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

    /// Finds those whose sockets keep the kernel's own path manager.
    fn mark_predating_switch(&self, new_connections: &mut [(ConnId, ConnEntry)]) {
        let Some(manager) = self.path_manager.as_ref().filter(|_| self.mode == Mode::Userspace) else { return };
        let nonexistent_subflow = |conn: &ConnId, connection: &ConnEntry| {
            // Port 0 is nobody's; the addresses must be of the connection's family all the same.
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
                        connection.set_reason(self.now(), "its socket is older than this path manager".into());
                        tracing::warn!(conn = conn.0, "unmanaged: its socket is older than this path manager");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the path manager does not answer"),
        }
    }
}

/// Whether a connection is plain TCP by now, or its server speaks nothing else.
const fn is_plain_tcp(info: &diag::MptcpInfo) -> bool {
    info.is_fallback || !info.has_remote_key
}

/// How often a list that changes while it is told is asked for. chosen: what it misses the next dump has, and what it
/// lacks is asked for by itself.
const MAX_DUMP_TRIES: usize = 3;
/// So many times as long as a dump takes, the next one waits. chosen: a fifth of a core at most, and with ten thousand
/// connections less than a second.
const RESYNC_PAUSE_FACTOR: u32 = 4;

/// Ids that the kernel has for addresses and [`id_of`] would not give.
fn nondefault_ids(subflows: &[(ConnId, DumpedSubflow)]) -> Vec<(IpAddr, u8)> {
    let all = subflows.iter().filter_map(|(_, subflow)| Some((subflow.local.ip(), subflow.subflow.local_id?)));
    let mut ids: Vec<_> = all.filter(|(address, id)| *id != 0 && *id != default_address_id(*address)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
