//! Executes the outputs of the policy: commands to the path manager, polls of subflow counters, aborts of sockets.
//!
//! 1. Commands of one round are sent to the kernel together, and so are polls.
//! 2. A command that cannot be expressed to the kernel (no such subflow, no address of the family) fails here, with
//!    the same errors as the kernel's refusals.
//! 3. A destroyed subflow leaves the table when the kernel acknowledges the command. Its event comes later and finds
//!    no entry. Its socket may remain ([`Driver::close_socket`]).
//! 4. If the id of an address is used by another address of the connection (two of 255 can collide), the next id is
//!    tried.
//! 5. A join without result is ended after [`JOIN_TIMEOUT`]. The kernel would send SYNs for two minutes, and a
//!    subflow that is established that late would contradict the state of the policy.

use std::collections::BTreeSet;
use std::time::Duration;

use marline_core::link::LinkId;
use marline_core::paths::{
    CloseReason, Command, CommandError, CommandId, ConnId, Counters, Input, Output, SubflowId,
};
use marline_core::wire::netlink::Ack;
use marline_core::wire::netlink::diag::state;
use marline_core::wire::netlink::mptcp::{NewSubflow, SubflowTuple};

use super::super::kernel::{SocketReply, SubflowQuery, command_error, is_family_mismatch};
use super::super::snapshot::Management;
use super::address_id::next_address_id;
use super::command_requests::{PendingCommand, build_request, plan_subflow, subflow_tuple};
use super::counters::{is_open_subflow_of, to_counters};
use super::describe::{self, LinkSubflows};
use super::interfaces::LinkInterface;
use super::kernel_pm::{self, AggregateResult};
use super::subflow_table::{PendingJoin, Subflow};
use super::{Driver, Mode, Policy};

impl<M: Policy> Driver<M> {
    /// Executes queued outputs for up to [`MAX_ROUNDS`] rounds. Returns true if more are left.
    pub(super) fn execute_outputs(&mut self) -> bool {
        for _ in 0..MAX_ROUNDS {
            if !self.machine.has_outputs() {
                return false;
            }
            let mut commands = Vec::new();
            for output in self.machine.take_outputs() {
                match output {
                    Output::Command { id, conn, command } => commands.push(PendingCommand { id, conn, command }),
                    Output::Note { conn, reason } => {
                        let now = self.now();
                        if self.aggregate.is_some() {
                            for connection in self.subflow_table.conns.values_mut() {
                                connection.set_reason(now, reason.clone());
                            }
                        } else if let Some(connection) = self.subflow_table.conn_mut(conn) {
                            connection.set_reason(now, reason);
                        }
                    }
                    Output::Poll { conn } => self.machine.request_poll(conn),
                    Output::SetMtu { link, mtu, reason } => self.set_mtu(link, mtu, reason.as_deref()),
                }
            }
            if self.aggregate.is_some() {
                for command in commands {
                    self.execute_on_aggregate(command.id, command.command);
                }
            } else {
                self.execute_commands(&commands);
            }
            self.poll_subflows();
        }
        self.machine.has_outputs()
    }

    /// Limits the packet size of subflows that begin over this link from now on.
    fn set_mtu(&mut self, link: LinkId, mtu: Option<u16>, reason: Option<&str>) {
        let Some(interface) = self.links.get(link) else { return };
        self.host_config.set_mtu(interface.name(), mtu, reason);
        if let Err(error) = self.survey_links() {
            tracing::warn!(%error, "cannot list the interfaces");
        }
    }

    fn execute_commands(&mut self, commands: &[PendingCommand]) {
        let mut sent = Vec::new();
        let mut requests = Vec::new();
        // A subflow of a half-closed connection is not destroyed: the kernel would not permit a new one.
        let half_closed = self.update_half_closed(commands);
        for command in commands {
            if matches!(command.command, Command::Destroy { .. }) && half_closed.contains(&command.conn) {
                self.complete_command(command, Some(CommandError::HalfClosed), None);
                continue;
            }
            match build_request(&self.subflow_table, &self.links, self.path_manager.as_ref(), command) {
                Ok(request) => {
                    sent.push(*command);
                    requests.push(request);
                }
                Err(error) => self.complete_command(command, Some(error), None),
            }
        }
        if requests.is_empty() {
            return;
        }
        // All requests in one system call: the time between the join of a new subflow and the end of an old one stays
        // short.
        let acks = self.path_manager.as_ref().map(|manager| manager.execute(requests));
        match acks {
            Some(Ok(acks)) => {
                for (command, ack) in sent.iter().zip(&acks) {
                    self.on_ack(command, ack);
                }
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "no reply from the kernel's MPTCP path manager; commands failed");
                let number = error.raw_os_error().unwrap_or(0);
                for command in &sent {
                    self.complete_command(command, Some(CommandError::Other(number)), None);
                }
            }
            None => {}
        }
    }

    /// Finds the connections of these `Destroy` commands with one direction closed, and marks them. The policy
    /// decides again once it knows.
    fn update_half_closed(&mut self, commands: &[PendingCommand]) -> BTreeSet<ConnId> {
        let destroys = commands.iter().filter(|command| matches!(command.command, Command::Destroy { .. }));
        let unknown =
            |conn: &ConnId| self.subflow_table.conns.get(conn).is_some_and(|connection| !connection.is_half_closed);
        let closed = self.sockets.half_closed(destroys.map(|command| command.conn).filter(unknown).collect());
        for conn in &closed {
            if let Some(connection) = self.subflow_table.conn_mut(*conn) {
                connection.is_half_closed = true;
            }
        }
        closed
    }

    fn on_ack(&mut self, command: &PendingCommand, ack: &Ack) {
        let mut ack = ack.clone();
        if let Command::Join { link, backup } = command.command {
            // The kernel's refusal of an id that another address of the connection has.
            for _ in 0..MAX_ID_TRIES {
                if !ack.message.contains("match address and id") {
                    break;
                }
                match self.join_with_next_id(command.conn, link, backup) {
                    Some(next_ack) => ack = next_ack,
                    None => break,
                }
            }
        }
        if let Command::Destroy { subflow } = command.command {
            let connection = self.subflow_table.conns.get(&command.conn);
            let tuple = connection.and_then(|connection| subflow_tuple(command.conn, connection, subflow).ok());
            let retried = self
                .path_manager
                .as_ref()
                .zip(tuple)
                // A subflow of a dual-stack socket is known to the kernel by its IPv4-mapped address.
                .and_then(|(manager, tuple)| manager.destroy_v4_mapped(&tuple, &ack));
            ack = retried.unwrap_or(ack);
        }
        let family = match command.command {
            Command::Join { link, .. } => self.links.get(link).and_then(LinkInterface::only_family),
            Command::SetBackup { .. } | Command::Destroy { .. } => None,
        };
        let error = command_error(&ack).map(|error| match family {
            Some(family) if is_family_mismatch(&ack) => CommandError::SocketFamily(family),
            // "Not yet" also stands for half-closed connections, where retries would be useless.
            _ if error == CommandError::NotYet && !self.sockets.half_closed(vec![command.conn]).is_empty() => {
                CommandError::HalfClosed
            }
            _ => error,
        });
        self.complete_command(command, error, Some(&ack));
    }

    /// Repeats a join with the next address id, and remembers that id for the address.
    fn join_with_next_id(&mut self, conn: ConnId, link: LinkId, backup: bool) -> Option<Ack> {
        let connection = self.subflow_table.conns.get(&conn)?;
        let new = plan_subflow(&self.links, conn, connection, link, backup).ok().filter(|new| new.id != 0)?;
        let new = NewSubflow { id: next_address_id(new.id), ..new };
        let manager = self.path_manager.as_ref()?;
        let ack = manager.execute(vec![new.create(manager.family_id())]).ok()?.pop()?;
        let connection = self.subflow_table.conn_mut(conn)?;
        connection.address_ids.retain(|(address, _)| *address != new.local);
        connection.address_ids.push((new.local, new.id));
        Some(ack)
    }

    /// Records the result of a command: log, history, pending join, and the input for the policy.
    fn complete_command(&mut self, command: &PendingCommand, error: Option<CommandError>, ack: Option<&Ack>) {
        let now = self.now();
        let description = self.describe(command, error, ack);
        match error {
            None => {
                self.totals.commands += 1;
                tracing::info!(conn = command.conn.0, "{description}");
            }
            Some(_) if self.mode == Mode::DryRun => tracing::info!(conn = command.conn.0, "{description}"),
            Some(error) if describe::ended_reason(error, ack).is_some() => {
                tracing::debug!(conn = command.conn.0, "{description}")
            }
            // Not a malfunction: the reason shown for the connection explains it.
            Some(CommandError::NotAnnounced(_) | CommandError::SocketFamily(_)) => {
                self.totals.refused += 1;
                tracing::info!(conn = command.conn.0, "{description}");
            }
            Some(_) => {
                self.totals.refused += 1;
                tracing::warn!(conn = command.conn.0, "{description}");
            }
        }
        let local = match command.command {
            Command::Join { link, .. } if error.is_none() => {
                let connection = self.subflow_table.conns.get(&command.conn);
                let new = connection
                    .and_then(|connection| plan_subflow(&self.links, command.conn, connection, link, false).ok());
                new.and_then(|new| Some((link, new.local, new.interface?)))
            }
            _ => None,
        };
        if let Some(connection) = self.subflow_table.conn_mut(command.conn) {
            // A half-closed connection is no refusal by the kernel, so a dry run does not report it.
            let is_refused = error.is_some_and(|error| error != CommandError::HalfClosed);
            if is_refused && self.mode == Mode::DryRun && connection.is_new_dry_run(&description) {
                let suffix = if connection.reason().is_empty() {
                    String::new()
                } else {
                    format!(": {}", connection.reason())
                };
                self.host_config.report_dry_run(&format!("{:08x}: {description}{suffix}", command.conn.0));
            }
            connection.record_decision(now, description);
            if let Some((link, local, index)) = local {
                connection.pending_joins.push(PendingJoin { link, local, interface: index, started_at: now });
            }
        }
        if ack.is_some_and(|ack| ack.message.contains("not selected")) {
            // The connection was opened before the run, or after another program has switched the path manager.
            self.host_config.recheck_sysctls();
            self.mark_predates_switch(command.conn);
        }
        // The policy receives the result of the command before the end of the subflow.
        self.machine.feed(Input::CommandDone { command: command.id, error });
        if let (Command::Destroy { subflow }, None) = (command.command, error)
            && let Some(sub) = self.take_subflow(command.conn, subflow)
        {
            self.close_socket(command.conn, &sub);
            self.on_subflow_gone(command.conn, &sub, CloseReason::Closed);
        }
    }

    /// Handles the socket of a destroyed subflow: it is aborted at once, or when a new subflow is established over
    /// the link.
    ///
    /// The kernel closes only its own direction of a connection's first subflow. It acknowledges what the server
    /// sends over it afterwards, and does not deliver it. A server that has sent all its data may then repeat the
    /// missing part over this subflow forever. A RST ends the subflow on both sides. It also ends a socket that waits
    /// for its retransmission timer and would retransmit data that other subflows have delivered. While the link is
    /// down no RST reaches the server.
    fn close_socket(&mut self, conn: ConnId, sub: &Subflow) {
        let is_link_up = sub.link.is_some_and(|link| self.links.get(link).is_some_and(|interface| interface.is_up));
        if is_link_up && (sub.is_first || sub.initial || sub.counters.timeouts > 0) {
            self.sockets.abort_closed(conn, &[sub.query()]);
        } else {
            self.defer_abort(conn, sub);
        }
    }

    /// Schedules the abort of a destroyed subflow's socket for the moment when a new one is established over its
    /// link.
    fn defer_abort(&mut self, conn: ConnId, sub: &Subflow) {
        if let (Some(link), Some(connection)) = (sub.link, self.subflow_table.conn_mut(conn)) {
            connection.closing_sockets.push((link, sub.query()));
        }
    }

    /// Aborts deferred sockets after a new subflow was established over this link: a RST reaches the server now.
    /// Remaining sockets of destroyed subflows would also count as subflows at the server.
    pub(super) fn abort_deferred(&mut self, conn: ConnId, link: LinkId) {
        let Some(connection) =
            self.subflow_table.conn_mut(conn).filter(|connection| !connection.closing_sockets.is_empty())
        else {
            return;
        };
        let (on_link, others) = std::mem::take(&mut connection.closing_sockets)
            .into_iter()
            .partition(|(closing_link, _)| *closing_link == link);
        connection.closing_sockets = others;
        let queries: Vec<SubflowQuery> = Vec::into_iter(on_link).map(|(_, queries)| queries).collect();
        self.sockets.abort_closed(conn, &queries);
    }

    /// Marks a connection whose socket is older than the switch of the path manager. It cannot be managed, so the
    /// policy sees it as closed.
    fn mark_predates_switch(&mut self, conn: ConnId) {
        if let Some(connection) =
            self.subflow_table.conn_mut(conn).filter(|connection| connection.management == Management::Userspace)
        {
            connection.management = Management::PredatesSwitch;
            self.machine.cancel_poll(conn);
            self.machine.feed(Input::Closed { conn });
        }
    }

    /// Describes a command and its result for logs and `explain`.
    fn describe(&self, command: &PendingCommand, error: Option<CommandError>, ack: Option<&Ack>) -> String {
        let connection = self.subflow_table.conns.get(&command.conn);
        let subs = || connection.map_or(&[][..], |connection| &connection.subflows).iter();
        let (link, subflow_id) = match command.command {
            Command::Join { link, .. } => (Some(link), None),
            Command::SetBackup { subflow, .. } | Command::Destroy { subflow } => {
                (subs().find(|sub| sub.id == subflow).and_then(|sub| sub.link), Some(subflow))
            }
        };
        let others_on_link =
            || subs().filter(|sub| link.is_some() && sub.link == link && Some(sub.id) != subflow_id);
        let has_older = others_on_link().any(|sub| subflow_id.is_some_and(|subflow_id| sub.id < subflow_id));
        let link_subflows = LinkSubflows { others: others_on_link().count(), has_older };
        let name =
            link.and_then(|link| self.links.get(link)).map_or("another interface", |interface| interface.name());
        let text = describe::describe_command(command.command, name, link_subflows);
        if error.is_some() && self.mode == Mode::DryRun {
            format!("would {text}")
        } else {
            describe::describe_result(text, error, ack)
        }
    }

    /// Reads the counters of all subflows of the connections in the queue.
    fn poll_subflows(&mut self) {
        let polls = self.machine.take_polls();
        if polls.is_empty() {
            return;
        }
        if self.aggregate.is_some() {
            let now = self.now();
            kernel_pm::sample_subflows(&mut self.sockets, &mut self.subflow_table, now);
            let counters = self.aggregate().map(|(aggregate, _, table)| aggregate.report_counters(table));
            self.feed_all(counters.unwrap_or_default());
            return;
        }
        // First, because the counters below are converted to offsets in the data stream.
        self.subflow_table.find_initial_data_seqs(&self.sockets, &polls);
        let mut queries = Vec::new();
        let mut ids = Vec::new();
        for conn in polls {
            let subs = self.subflow_table.conns.get(&conn).map_or(&[][..], |connection| &connection.subflows);
            for sub in subs {
                queries.push(sub.query());
                ids.push((conn, sub.id));
            }
        }
        let replies = self.sockets.query_subflows(&queries);
        for ((conn, id), reply) in ids.into_iter().zip(replies) {
            self.on_reply(conn, id, &reply);
        }
    }

    fn on_reply(&mut self, conn: ConnId, id: SubflowId, reply: &SocketReply) {
        let now = self.now();
        let socket = reply.socket().filter(|socket| is_open_subflow_of(socket, conn));
        if let Some((socket, counters)) = socket.and_then(|socket| Some((socket, to_counters(socket)?))) {
            let Some(connection) = self.subflow_table.conn_mut(conn) else { return };
            let counters = Counters { data_seq: connection.data_progress(socket), ..counters };
            let Some(sub) = connection.subflows.iter_mut().find(|sub| sub.id == id) else { return };
            sub.add_sample(now, counters);
            self.machine.feed(Input::Counters { conn, subflow: id, counters });
        // A missing reply means nothing. Any other reply means that the subflow has ended without an event.
        } else if *reply != SocketReply::Unknown
            && let Some(sub) = self.take_subflow(conn, id)
        {
            let is_link_up = sub.link.and_then(|link| self.links.get(link)).is_none_or(|interface| interface.is_up);
            self.on_subflow_gone(
                conn,
                &sub,
                if is_link_up { CloseReason::Other } else { CloseReason::Unreachable },
            );
        }
    }

    /// Executes a command for all connections together, through the kernel's path manager.
    fn execute_on_aggregate(&mut self, id: CommandId, command: Command) {
        let Some((aggregate, mut kernel, _)) = self.aggregate() else { return };
        let Some(result) = aggregate.execute(&mut kernel, command) else {
            tracing::debug!("the kernel's path manager cannot open a second subflow over one link");
            self.machine.feed(Input::CommandDone { command: id, error: Some(CommandError::NotYet) });
            return;
        };
        // The order matters: the policy gets the result of its command before the subflow change that follows from
        // it.
        self.record_for_all(command, result);
        self.machine.feed(Input::CommandDone { command: id, error: result.error });
        let inputs = self
            .aggregate()
            .map(|(aggregate, kernel, table)| aggregate.after_command(kernel.links, table, command, result));
        self.feed_all(inputs.unwrap_or_default());
    }

    /// Records a command in the history of each connection. The reason of each connection remains the last one.
    fn record_for_all(&mut self, command: Command, result: AggregateResult) {
        let AggregateResult { link, error, is_kept_as_backup } = result;
        let name =
            link.and_then(|link| self.links.get(link)).map_or("another interface", |interface| interface.name());
        let text = describe::describe_command(command, name, LinkSubflows::default());
        let mut description = describe::describe_result(text, error, None);
        match error {
            None => self.totals.commands += 1,
            Some(error) if describe::ended_reason(error, None).is_some() => {}
            Some(_) => self.totals.refused += 1,
        }
        if is_kept_as_backup && error.is_none() && matches!(command, Command::Destroy { .. }) {
            description += ": its endpoint must stay, so it is suspended instead";
        }
        tracing::info!("{description}");
        let now = self.now();
        for connection in self.subflow_table.conns.values_mut() {
            connection.record_decision(now, description.clone());
        }
    }

    /// Ends subflows from addresses that an active link has lost: no packet can reach them any more.
    pub(super) fn destroy_stranded(&mut self) {
        let Some(manager) = self.path_manager.as_ref().filter(|_| self.aggregate.is_none()) else { return };
        let mut stranded = Vec::new();
        for (conn, connection) in
            self.subflow_table.conns.iter().filter(|(_, connection)| connection.management == Management::Userspace)
        {
            for sub in &connection.subflows {
                let interface = sub.link.and_then(|link| self.links.get(link));
                if interface
                    .is_some_and(|interface| interface.is_up && !interface.addresses.contains(&sub.local.ip()))
                {
                    stranded.push((
                        *conn,
                        sub.id,
                        SubflowTuple { token: conn.0, local: sub.local, remote: sub.remote },
                    ));
                }
            }
        }
        if stranded.is_empty() {
            return;
        }
        let tuples: Vec<SubflowTuple> = stranded.iter().map(|(.., tuple)| *tuple).collect();
        if let Err(error) = manager.destroy_subflows(&tuples) {
            tracing::warn!(%error, "cannot end subflows whose local addresses are gone");
        }
        for (conn, id, _) in stranded {
            if let Some(sub) = self.take_subflow(conn, id) {
                // It may be the last one, and its address is gone: a RST could not be sent now.
                self.defer_abort(conn, &sub);
                self.on_subflow_gone(conn, &sub, CloseReason::Unreachable);
            }
        }
    }

    /// Ends joins that were not established within [`JOIN_TIMEOUT`].
    pub(super) fn destroy_stale_joins(&mut self) {
        let now = self.now();
        let mut stale = BTreeSet::new();
        for (conn, connection) in &mut self.subflow_table.conns {
            connection.pending_joins.retain(|pending| {
                let is_stale = now.since(pending.started_at) > JOIN_TIMEOUT;
                if is_stale {
                    stale.insert((conn.0, pending.local, pending.interface));
                }
                !is_stale
            });
        }
        let Some(manager) = self.path_manager.as_ref().filter(|_| !stale.is_empty()) else { return };
        let mut tuples = Vec::new();
        let dump = self.sockets.dump_subflows(1 << state::SYN_SENT, |socket| {
            let token = socket.subflow.map_or(0, |subflow| subflow.token);
            if stale.contains(&(token, socket.local.ip(), socket.interface)) {
                let tuple = SubflowTuple { token, local: socket.local, remote: socket.remote };
                tuples.push(tuple);
            }
        });
        let outcome = dump.and_then(|()| manager.destroy_subflows(&tuples));
        if let Err(error) = outcome {
            tracing::warn!(%error, "cannot end unanswered joins; the kernel ends them after its own timeout");
        }
    }
}

/// Rounds of commands and polls before other event sources are served. Our choice: a command with its result, and the
/// policy's reaction to that, are two.
const MAX_ROUNDS: usize = 4;
/// Our choice: collisions of four of 255 ids are no coincidence.
const MAX_ID_TRIES: usize = 4;
/// Time after which a join is given up. Our choice: three SYNs, at 0, 1 and 3 seconds.
const JOIN_TIMEOUT: Duration = Duration::from_secs(4);
