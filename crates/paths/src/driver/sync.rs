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
use super::super::kernel::Answer;
use super::super::snapshot::Managed;
use super::act::{counters, is_of};
use super::hear::Born;
use super::table::{Conn, Sub, id_of};
use super::{Driver, FEW, Mode, Policy};

/// What the kernel has. There may be ten thousands: nothing is kept that is not needed, and nothing in small pieces.
#[derive(Debug, Default)]
struct Found {
    connections: BTreeMap<ConnId, Socket>,
    /// By connection.
    subflows: Vec<(ConnId, Part)>,
    plain: u64,
}

/// A TCP socket that is a subflow.
#[derive(Clone, Copy, Debug)]
struct Part {
    local: SocketAddr,
    remote: SocketAddr,
    link: u32,
    subflow: diag::SubflowInfo,
    counters: Option<Counters>,
}

impl Found {
    /// The subflows of a connection.
    fn of(&self, conn: ConnId) -> &[(ConnId, Part)] {
        let from = self.subflows.partition_point(|(of, _)| *of < conn);
        let rest = self.subflows.get(from..).unwrap_or(&[]);
        rest.get(..rest.partition_point(|(of, _)| *of == conn)).unwrap_or(&[])
    }
}

/// An MPTCP socket: its addresses are those of the first subflow, also after that has gone.
#[derive(Clone, Copy, Debug)]
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    fell_back: bool,
}

impl<M: Policy> Driver<M> {
    /// Makes the table as the kernel has it. `adopt`: what is new was there before the driver.
    pub(super) fn resync(&mut self, adopt: bool) -> Result<(), PathsError> {
        let began = self.now();
        let found = self.dump()?;
        self.totals.plain_now = found.plain;
        self.end_missing(&found);
        let new = self.begin_new(&found, adopt);
        for (conn, part) in &found.subflows {
            let born = match part.subflow.local_id {
                _ if part.subflow.is_local_initial() => Born::First,
                Some(0) => Born::There,
                _ => Born::Elsewhere,
            };
            self.subflow(*conn, part.local, part.remote, part.link, born, part.counters);
        }
        let now = self.now();
        self.next_resync = None;
        self.rested = now + now.since(began) * REST;
        tracing::debug!(connections = self.table.conns.len(), new, "read everything again");
        Ok(())
    }

    /// The kernel's list; told again, a few times, if it changed while it was told.
    fn dump(&self) -> Result<Found, PathsError> {
        let (mut found, mut missed) = self.dump_once()?;
        for _ in 1..TELLINGS {
            if !missed {
                break;
            }
            (found, missed) = self.dump_once()?;
        }
        Ok(found)
    }

    /// True: something may be missing.
    fn dump_once(&self) -> Result<(Found, bool), PathsError> {
        let told = |error| PathsError::kernel("sock_diag", error);
        let mut found = Found::default();
        let connections = self.sockets.connections(|socket| {
            let (Some(connection), true) = (socket.mptcp_info, socket.inode != 0) else { return };
            found.plain += u64::from(connection.is_fallback);
            let fell_back = fell_back(&connection);
            let socket = Socket { local: socket.local, remote: socket.remote, fell_back };
            found.connections.insert(ConnId(connection.token), socket);
        });
        let mut missed = connections.map_err(told)?;
        // One that this end has closed was destroyed: its socket goes on until its data is acknowledged.
        let subflows = self.sockets.subflows(state::CAN_SEND, |socket| {
            let Some(subflow) = socket.subflow else { return };
            let (local, remote, link) = (socket.local, socket.remote, socket.interface);
            let part = Part { local, remote, link, subflow, counters: counters(socket) };
            found.subflows.push((ConnId(subflow.token), part));
        });
        missed |= subflows.map_err(told)?;
        found.subflows.sort_by_key(|(conn, _)| *conn);
        Ok((found, missed))
    }

    /// Connections and subflows that are no more.
    fn end_missing(&mut self, found: &Found) {
        let lives = |conn: &ConnId| found.connections.get(conn).is_some_and(|socket| !socket.fell_back);
        let doubtful: Vec<ConnId> = self.table.conns.keys().copied().filter(|conn| !lives(conn)).collect();
        self.end_over(&doubtful);
        let (mut asked, mut whose) = (Vec::new(), Vec::new());
        for (conn, of) in &self.table.conns {
            let have = found.of(*conn);
            let is_there = |sub: &&Sub| have.iter().any(|(_, p)| p.local == sub.local && p.remote == sub.remote);
            for sub in of.subflows.iter().filter(|sub| !is_there(sub)) {
                asked.push(sub.asked());
                whose.push((*conn, sub.id));
            }
        }
        for ((conn, id), answer) in whose.into_iter().zip(self.found(&asked)) {
            let over = match answer {
                Answer::There(socket) => !is_of(&socket, conn),
                Answer::Gone => true,
                Answer::Unknown => false,
            };
            if over && let Some(sub) = self.take(conn, id) {
                self.gone(conn, &sub, CloseReason::Other);
            }
        }
    }

    /// Asks for each of these connections, and ends those that are over or became plain TCP.
    pub(super) fn end_over(&mut self, conns: &[ConnId]) {
        let tokens: Vec<u32> = conns.iter().map(|conn| conn.0).collect();
        let mut answers = vec![Answer::Unknown; conns.len()];
        let asked = self.sockets.look_at_connections(&tokens, |place, answer| {
            if let Some(slot) = answers.get_mut(place) {
                *slot = answer;
            }
        });
        if let Err(error) = asked {
            tracing::warn!(%error, "sock_diag does not answer");
        }
        for (conn, answer) in conns.iter().zip(answers) {
            let over = match answer {
                Answer::There(socket) => {
                    let plain = socket.mptcp_info.is_some_and(|connection| fell_back(&connection));
                    if plain {
                        tracing::warn!(conn = conn.0, "the connection fell back to plain TCP");
                    }
                    plain || socket.inode == 0 || !socket.is_open()
                }
                Answer::Gone => true,
                Answer::Unknown => false,
            };
            if over {
                self.closed(*conn);
            }
        }
    }

    /// Asks how much a connection has carried, each byte once. One that is over for its program may be there a moment longer.
    pub(super) fn count(&self, conn: ConnId, of: &mut Conn) {
        self.count_these(&[conn], |_, connection| of.counted(connection));
    }

    /// The same of those in which something has moved, but not of very many.
    pub(super) fn count_moved(&mut self) {
        let mut table = std::mem::take(&mut self.table);
        let moved = table.conns.iter().filter(|(_, of)| of.has_moved()).map(|(conn, _)| *conn);
        let moved: Vec<ConnId> = moved.take(FEW).collect();
        self.count_these(&moved, |conn, connection| {
            if let Some(of) = table.conn(conn) {
                of.counted(connection);
            }
        });
        self.table = table;
    }

    /// Asks the kernel where the data of these connections begin, once for each.
    pub(super) fn find_origins(&mut self, conns: &BTreeSet<ConnId>) {
        let mut table = std::mem::take(&mut self.table);
        let lacks = |conn: &&ConnId| table.conns.get(conn).is_some_and(Conn::lacks_origin);
        let lack: Vec<ConnId> = conns.iter().filter(lacks).copied().collect();
        if !lack.is_empty() {
            self.count_these(&lack, |conn, connection| {
                if let Some(of) = table.conn(conn) {
                    of.counted(connection);
                }
            });
        }
        self.table = table;
    }

    /// Those of these connections of which one direction is closed. The kernel joins only connections that are established.
    pub(super) fn half_closed(&self, conns: Vec<ConnId>) -> BTreeSet<ConnId> {
        let mut closed = BTreeSet::new();
        if conns.is_empty() {
            return closed;
        }
        let tokens: Vec<u32> = conns.iter().map(|conn| conn.0).collect();
        let asked = self.sockets.look_at_connections(&tokens, |place, answer| {
            let is_closed = answer.there().is_some_and(|socket| socket.state != state::ESTABLISHED);
            closed.extend(conns.get(place).copied().filter(|_| is_closed));
        });
        if let Err(error) = asked {
            tracing::debug!(%error, "sock_diag does not answer");
        }
        closed
    }

    fn count_these(&self, conns: &[ConnId], mut each: impl FnMut(ConnId, &diag::MptcpInfo)) {
        let tokens: Vec<u32> = conns.iter().map(|conn| conn.0).collect();
        let asked = self.sockets.look_at_connections(&tokens, |place, answer| {
            let connection = answer.there().and_then(|socket| socket.mptcp_info);
            if let (Some(conn), Some(connection)) = (conns.get(place), connection) {
                each(*conn, &connection);
            }
        });
        if let Err(error) = asked {
            tracing::debug!(%error, "sock_diag does not answer");
        }
    }

    /// Connections that are not known yet; how many.
    fn begin_new(&mut self, found: &Found, adopt: bool) -> usize {
        let mut new = Vec::new();
        for (conn, socket) in found.connections.iter().filter(|(_, socket)| !socket.fell_back) {
            let subflows = found.of(*conn);
            if !self.table.conns.contains_key(conn) && self.is_ours(subflows) {
                let mut of = Conn::new(socket.local.ip(), socket.remote, self.now());
                of.adopted = adopt;
                of.managed = self.managed();
                of.ids = ids(subflows);
                new.push((*conn, of));
            }
        }
        self.mark_older(&mut new);
        let count = new.len();
        for (conn, of) in new {
            self.open(conn, of);
        }
        count
    }

    fn is_ours(&self, parts: &[(ConnId, Part)]) -> bool {
        let flags = || parts.iter().map(|(_, part)| part.subflow);
        flags().any(|flags| flags.is_local_initial() || flags.is_local_join())
            && flags().any(|flags| flags.is_fully_established())
            && parts.iter().any(|(_, part)| self.lines.of(part.local.ip(), part.link).is_some())
    }

    /// Finds those whose sockets keep the kernel's own path manager.
    fn mark_older(&self, new: &mut [(ConnId, Conn)]) {
        let Some(manager) = self.manager.as_ref().filter(|_| self.mode == Mode::Userspace) else { return };
        let nowhere = |conn: &ConnId, of: &Conn| {
            // Port 0 is nobody's; the addresses must be of the connection's family all the same.
            let local = SocketAddr::new(of.first, 0);
            SubflowTuple { token: conn.0, local, remote: of.server }.destroy(manager.family())
        };
        let questions = new.iter().map(|(conn, of)| nowhere(conn, of)).collect();
        match manager.carry_out(questions) {
            Ok(answers) => {
                for ((conn, of), ack) in new.iter_mut().zip(answers) {
                    if ack.message.contains("not selected") {
                        of.managed = Managed::Older;
                        of.explain(self.now(), "its socket is older than this path manager".into());
                        tracing::warn!(conn = conn.0, "unmanaged: its socket is older than this path manager");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the path manager does not answer"),
        }
    }
}

/// Whether a connection is plain TCP by now, or its server speaks nothing else.
const fn fell_back(connection: &diag::MptcpInfo) -> bool {
    connection.is_fallback || !connection.has_remote_key
}

/// How often a list that changes while it is told is asked for. chosen: what it misses the next dump has, and what it
/// lacks is asked for by itself.
const TELLINGS: usize = 3;
/// So many times as long as a dump takes, the next one waits. chosen: a fifth of a core at most, and with ten thousand
/// connections less than a second.
const REST: u32 = 4;

/// Ids that the kernel has for addresses and [`id_of`] would not give.
fn ids(parts: &[(ConnId, Part)]) -> Vec<(IpAddr, u8)> {
    let all = parts.iter().filter_map(|(_, part)| Some((part.local.ip(), part.subflow.local_id?)));
    let mut ids: Vec<_> = all.filter(|(address, id)| *id != 0 && *id != id_of(*address)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
