//! Translates what the kernel reports into inputs of the policy: events of the path manager, and dumps of the sockets.
//!
//! 1. Connections that this host serves, and connections over interfaces that are no links, are not entered into the
//!    table. Later events of them find no entry and are ignored.
//! 2. The socket of a new subflow is queried at once: the event reports neither the RTT of its handshake nor whether
//!    this host wants it as a backup.
//! 3. A subflow that a dump found before its event is not reported twice. Events of unknown subflows are ignored.
//!
//! Dumps find what was there before the run, what lost events reported, and what has no event. Differences from the
//! table are handled as if events had reported them:
//!
//! 4. A connection is managed if this host opened it as a client, if it is fully established, and if it has a subflow
//!    over a link.
//! 5. A connection that its application has closed has ended, although its sockets linger (its socket has no inode).
//! 6. A connection that fell back to plain TCP has ended for the policy. The kernel sends no event for that.
//! 7. Connections and subflows that a dump lacks are queried one by one before they count as ended: a dump that runs
//!    while the list changes can miss entries.
//! 8. An adopted connection is tested for manageability: its socket may be older than the switch to the userspace
//!    path manager. The test is a request to destroy a subflow that cannot exist.
//!
//! Whether the server denies joins to its first address is not visible in a dump, so this remains unknown for adopted
//! connections.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use marline_core::paths::{CloseReason, ConnId, Counters, EstablishedSubflow, Input, SubflowId};
use marline_core::wire::netlink::mptcp::{Event, SubflowEvent, SubflowTuple};

use super::super::kernel::{EventBatch, EventSubscription, SocketReply, SubflowQuery};
use super::super::snapshot::Management;
use super::super::{Mode, PathsError};
use super::counters::{is_open_subflow_of, to_counters};
use super::socket_dump::{DumpedSubflow, SocketDump, is_plain_tcp};
use super::subflow_table::{ConnEntry, Subflow};
use super::{Driver, Policy};

/// Waits for the next batch of events; without a subscription it never completes.
pub(super) async fn next_events(events: &mut Option<&mut EventSubscription>) -> io::Result<EventBatch> {
    match events {
        Some(events) => events.next_batch().await,
        None => pending().await,
    }
}

impl<M: Policy> Driver<M> {
    pub(super) fn on_events(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Established(event) => self.on_established(&event),
                Event::SubflowEstablished(event) => self.on_subflow_established(&event),
                Event::SubflowClosed(event) => self.on_subflow_closed(&event),
                Event::Closed { token } => self.close_connection(ConnId(token)),
                Event::AddressAnnounced { token, id, address, port } => {
                    let conn = ConnId(token);
                    if let Some(connection) = self.subflow_table.conn_mut(conn) {
                        connection.announced_addresses.retain(|(announced_id, ..)| *announced_id != id);
                        connection.announced_addresses.push((id, address, port));
                        self.machine.feed(Input::AddressAnnounced { conn });
                    }
                }
                Event::AddressRemoved { token, id } => {
                    if let Some(connection) = self.subflow_table.conn_mut(ConnId(token)) {
                        connection.announced_addresses.retain(|(announced_id, ..)| *announced_id != id);
                    }
                }
                // The peer's priority is read with the counters.
                Event::SubflowPriority(_) | Event::Created(_) | Event::Listener => {}
            }
        }
    }

    fn on_established(&mut self, event: &SubflowEvent) {
        let conn = ConnId(event.token);
        if event.server_side {
            return;
        }
        if let Some(connection) = self.subflow_table.conn_mut(conn) {
            connection.deny_join_id0 |= event.deny_join_id0;
            return;
        }
        if self.links.is_unknown_address(event.local.ip()) {
            // The event of the new connection can arrive before the notification of its interface.
            if let Err(error) = self.survey_links() {
                tracing::warn!(%error, "cannot list the interfaces");
            }
        }
        if self.links.for_address(event.local.ip(), event.interface).is_none() {
            return;
        }
        let mut connection = ConnEntry::new(event.local.ip(), event.remote, self.now());
        connection.deny_join_id0 = event.deny_join_id0;
        connection.management = self.initial_management();
        self.open_connection(conn, connection);
        self.add_subflow(conn, event.local, event.remote, event.interface, SubflowOrigin::First, None);
    }

    fn on_subflow_established(&mut self, event: &SubflowEvent) {
        // Id 0 is the address of the first subflow, whatever link has it now.
        let origin = if event.local_id == 0 { SubflowOrigin::InitialAddress } else { SubflowOrigin::OtherAddress };
        self.add_subflow(ConnId(event.token), event.local, event.remote, event.interface, origin, None);
    }

    fn on_subflow_closed(&mut self, event: &SubflowEvent) {
        let conn = ConnId(event.token);
        let Some(connection) = self.subflow_table.conn_mut(conn) else { return };
        match connection.take_by_addresses(event.local, event.remote) {
            Some(sub) => {
                // If the server refused a join, the kernel reports no error at all.
                let is_young = !sub.initial && self.now().since(sub.known_since) < JOIN_REFUSAL_TIME;
                let refused = event.reset || (is_young && event.error == 0 && sub.counters.received.is_zero());
                self.on_subflow_gone(
                    conn,
                    &sub,
                    if refused { CloseReason::Reset } else { close_reason(event.error) },
                );
            }
            // A join that was never established.
            None => connection.pending_joins.retain(|pending| !pending.matches(event.local.ip(), event.interface)),
        }
    }

    /// Adds a connection to the table and reports it to the policy.
    pub(super) fn open_connection(&mut self, conn: ConnId, connection: ConnEntry) {
        self.totals.opened += 1;
        self.totals.adopted += u64::from(connection.adopted);
        let input = Input::Opened { conn, adopted: connection.adopted, deny_join_id0: connection.deny_join_id0 };
        let scope = self.scope_for(connection.management);
        self.subflow_table.conns.insert(conn, connection);
        match scope {
            PolicyScope::Connection => self.machine.feed(input),
            PolicyScope::Aggregate => self.on_aggregate_grew(),
            PolicyScope::Ignored => {}
        }
    }

    /// Moves a connection to the recently ended ones and reports its end to the policy.
    pub(super) fn close_connection(&mut self, conn: ConnId) {
        let Some(mut connection) = self.subflow_table.conns.remove(&conn) else { return };
        self.totals.closed += 1;
        self.machine.cancel_poll(conn);
        // Its socket may remain in the kernel for a moment after its program has closed it.
        self.sockets.query_mptcp_info(&[conn], |_, info| connection.update_totals(info));
        match self.scope_for(connection.management) {
            PolicyScope::Connection => self.machine.feed(Input::Closed { conn }),
            PolicyScope::Aggregate => self.on_aggregate_shrank(&connection.subflows),
            PolicyScope::Ignored => {}
        }
        self.subflow_table.add_ended(self.now(), conn, connection);
    }

    /// Adds a subflow to the table and reports it to the policy. Its socket is queried unless its counters are known.
    pub(super) fn add_subflow(
        &mut self,
        conn: ConnId,
        local: std::net::SocketAddr,
        remote: std::net::SocketAddr,
        index: u32,
        origin: SubflowOrigin,
        known_counters: Option<Counters>,
    ) {
        // The bound interface decides, because several links may have the same address. Sockets of programs are not
        // bound; theirs is the link by which packets from this address leave.
        let interface =
            self.links.for_address(local.ip(), index).map(|interface| (interface.link, interface.index));
        let (link, interface_index) =
            interface.map_or((None, index), |(link, interface_index)| (Some(link), interface_index));
        let Some(connection) = self.subflow_table.conn_mut(conn) else { return };
        // An event and a dump may both report it. Addresses and ports identify it; address ids do not, because all
        // subflows from one address have the same.
        if connection.find_subflow(local, remote).is_some() {
            return;
        }
        let adopted = connection.adopted;
        // For the policy one subflow stands for the link on which the connection began. Another one from the same
        // address takes that role only after the first has ended.
        let initial = origin != SubflowOrigin::OtherAddress && !connection.subflows.iter().any(|sub| sub.initial);
        let counters = known_counters.or_else(|| {
            let replies =
                self.sockets.query_subflows(&[SubflowQuery { local, remote, interface: interface_index }]);
            replies.first().and_then(SocketReply::socket).and_then(to_counters)
        });
        let now = self.now();
        let id = self.subflow_table.add_subflow(conn, |id| {
            let mut sub = Subflow::new(id, local, remote, interface_index);
            (sub.link, sub.initial, sub.known_since) = (link, initial, now);
            sub.is_first = origin == SubflowOrigin::First;
            if let Some(counters) = counters {
                sub.add_sample(now, counters);
            }
            sub
        });
        let Some(id) = id else { return };
        // For a subflow that runs for some time, the kernel reports the RTT of its data, not of its handshake.
        let rtt = counters.and_then(|counters| counters.rtt).filter(|_| !adopted);
        let backup = counters.is_some_and(|counters| counters.backup);
        let subflow = EstablishedSubflow { id, link, initial, backup, rtt };
        if let Some(link) = link {
            self.abort_deferred(conn, link);
        }
        match self.scope_of(conn) {
            PolicyScope::Connection => self.machine.feed(Input::SubflowUp { conn, subflow }),
            PolicyScope::Aggregate => self.on_aggregate_grew(),
            PolicyScope::Ignored => {}
        }
    }

    /// Reports the end of a subflow, which was removed from the table, to the policy.
    pub(super) fn on_subflow_gone(&mut self, conn: ConnId, sub: &Subflow, reason: CloseReason) {
        match self.scope_of(conn) {
            PolicyScope::Connection => self.machine.feed(Input::SubflowDown { conn, subflow: sub.id, reason }),
            PolicyScope::Aggregate => self.on_aggregate_shrank(std::slice::from_ref(sub)),
            PolicyScope::Ignored => {}
        }
    }

    /// Management of a connection that is discovered now.
    pub(super) fn initial_management(&self) -> Management {
        match self.mode {
            Mode::Userspace => Management::Userspace,
            Mode::KernelPm => Management::KernelPm,
            Mode::DryRun => Management::DryRun,
        }
    }

    pub(super) fn scope_of(&mut self, conn: ConnId) -> PolicyScope {
        self.subflow_table
            .conns
            .get(&conn)
            .map_or(PolicyScope::Ignored, |connection| self.scope_for(connection.management))
    }

    fn scope_for(&self, management: Management) -> PolicyScope {
        match management {
            Management::PredatesSwitch => PolicyScope::Ignored,
            _ if self.aggregate.is_some() => PolicyScope::Aggregate,
            _ => PolicyScope::Connection,
        }
    }

    /// Removes a subflow from the table by its id.
    pub(super) fn take_subflow(&mut self, conn: ConnId, id: SubflowId) -> Option<Subflow> {
        self.subflow_table.conn_mut(conn)?.take_where(|sub| sub.id == id)
    }

    fn on_aggregate_grew(&mut self) {
        let Some((aggregate, kernel, table)) = self.aggregate() else { return };
        let inputs = aggregate.on_grew(kernel.links, table);
        self.feed_all(inputs);
    }

    fn on_aggregate_shrank(&mut self, subflows: &[Subflow]) {
        let Some((aggregate, kernel, table)) = self.aggregate() else { return };
        let inputs = aggregate.on_shrank(kernel, table, subflows);
        self.feed_all(inputs);
    }

    /// Makes the table equal to the kernel's sockets. `adopt`: new connections are older than the driver.
    pub(super) fn resync(&mut self, adopt: bool) -> Result<(), PathsError> {
        let start = self.now();
        let dump = self.sockets.dump()?;
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
        self.schedule.on_resynced(start, now);
        tracing::debug!(connections = self.subflow_table.conns.len(), opened, "read everything again");
        Ok(())
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
        for ((conn, id), reply) in ids.into_iter().zip(self.sockets.query_subflows(&queries)) {
            let has_ended = match reply {
                SocketReply::Found(socket) => !is_open_subflow_of(&socket, conn),
                SocketReply::Gone => true,
                SocketReply::Unknown => false,
            };
            // Only a definite reply ends a subflow; see point 7.
            if has_ended && let Some(sub) = self.take_subflow(conn, id) {
                self.on_subflow_gone(conn, &sub, CloseReason::Other);
            }
        }
    }

    /// Queries each of these connections, and closes those that have ended or fell back to plain TCP.
    pub(super) fn close_ended(&mut self, conns: &[ConnId]) {
        let replies = self.sockets.query_connections(conns);
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

    /// Opens connections of the dump that are not in the table; returns their number.
    fn open_new(&mut self, dump: &SocketDump, adopt: bool) -> usize {
        let mut new_connections = Vec::new();
        for (conn, socket) in dump.connections.iter().filter(|(_, socket)| !socket.is_fallback) {
            let is_over_link = |(_, subflow): &(ConnId, DumpedSubflow)| {
                self.links.for_address(subflow.local.ip(), subflow.interface).is_some()
            };
            let is_ours = dump.is_own_client(*conn) && dump.subflows_of(*conn).iter().any(is_over_link);
            if is_ours && !self.subflow_table.conns.contains_key(conn) {
                let mut connection = ConnEntry::new(socket.local.ip(), socket.remote, self.now());
                connection.adopted = adopt;
                connection.management = self.initial_management();
                connection.address_ids = dump.nondefault_ids(*conn);
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

/// How a subflow began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubflowOrigin {
    /// The connection began with it.
    First,
    /// It joined from the address of the first subflow, which has id 0.
    InitialAddress,
    /// It joined from another address.
    OtherAddress,
}

/// How a connection appears to the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyScope {
    /// As a connection of its own.
    Connection,
    /// As a part of the aggregate connection, which stands for the whole host.
    Aggregate,
    /// Not at all, because it cannot be managed.
    Ignored,
}

/// Translates the errno of a closed subflow.
fn close_reason(error: i32) -> CloseReason {
    use rustix::io::Errno;
    const RESET: i32 = Errno::CONNRESET.raw_os_error();
    const REFUSED: i32 = Errno::CONNREFUSED.raw_os_error();
    const BROKEN: i32 = Errno::PIPE.raw_os_error();
    const TIMED_OUT: i32 = Errno::TIMEDOUT.raw_os_error();
    const NO_HOST: i32 = Errno::HOSTUNREACH.raw_os_error();
    const NO_NETWORK: i32 = Errno::NETUNREACH.raw_os_error();
    const DOWN: i32 = Errno::NETDOWN.raw_os_error();
    match error {
        0 => CloseReason::Closed,
        RESET | REFUSED | BROKEN => CloseReason::Reset,
        TIMED_OUT => CloseReason::TimedOut,
        NO_HOST | NO_NETWORK | DOWN => CloseReason::Unreachable,
        _ => CloseReason::Other,
    }
}

/// Age up to which the end of a subflow counts as a refused join. Our choice: a refusal comes with the reply to the
/// join's last packet, one RTT later; the longest RTT in practice is 0.6 s (satellite).
const JOIN_REFUSAL_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_closed_subflows_map_to_close_reasons() {
        let reasons = [0, 104, 111, 110, 113, 101, 5].map(close_reason);
        use CloseReason::{Closed, Other, Reset, TimedOut, Unreachable};
        assert_eq!(reasons, [Closed, Reset, Reset, TimedOut, Unreachable, Unreachable, Other]);
    }
}
