//! Degraded mode: manages all connections of the host as one, through the endpoints of the kernel's own path manager.
//!
//! The policy sees one aggregate connection with one subflow per link, whose counters are sums over the real
//! subflows. Its commands add, remove or change endpoints, which affect all connections.
//!
//! 1. The aggregate is connection 0. It opens with the first real connection and closes with the last. Then the
//!    endpoints of joined links are removed, so that the next connection begins on its first link alone.
//! 2. A join adds an endpoint, a suspension makes it a backup, and the end of a subflow removes it. The initial link
//!    is the first configured link that is up, and it has its endpoint from the start. An endpoint that is added
//!    during a connection would create a second subflow over that link, and MP_PRIO would not affect the first one.
//! 3. Bytes of ended subflows remain in the sums, which therefore never decrease. The counters of a new subflow of
//!    the aggregate start at zero.
//! 4. Added endpoints and raised limits are recorded in the undo log first and restored at the end, also after a
//!    crash. Endpoints of a crashed run are kept while connections use them. Endpoints of other programs are used and
//!    never removed.
//! 5. A new address of the other family gets an endpoint, and the endpoint of a lost address is removed.
//! 6. An endpoint that cannot be removed (the initial link's, or one of another program) becomes a backup when its
//!    subflow is to end, and the policy sees the subflow as ended. A join resets the backup flag. A second subflow
//!    over a link, as a liveness probe, is impossible: the kernel creates one per endpoint.
//! 7. By default, a server accepts two subflows besides the first, and so does this host. The local limit is raised
//!    to the number of links.
//!
//! This mode survives the end of the daemon better than the userspace mode, because the kernel continues by itself.
//! It is coarser: small transfers bear the cost of links that large ones need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use marline_core::link::LinkId;
use marline_core::paths::{
    CloseReason, Command, CommandError, CommandId, ConnId, Counters, EstablishedSubflow, Input, SubflowId,
};
use marline_core::units::{DataSize, Instant};
use marline_core::wire::netlink::diag::state;
use marline_core::wire::netlink::mptcp::{Endpoint, Limits};
use marline_core::wire::netlink::{Ack, Request};

use super::super::PathsError;
use super::super::kernel::{PathManager, command_error};
use super::commands::to_counters;
use super::describe::{self, LinkSubflows};
use super::interfaces::LinkTransition;
use super::subflow_table::Subflow;
use super::{Driver, Policy};

/// Id of the aggregate connection.
const AGGREGATE_CONN: ConnId = ConnId(0);

/// The aggregate connection, which the policy sees instead of the real ones.
#[derive(Debug, Default)]
pub(super) struct AggregateConn {
    is_open: bool,
    initial_link: Option<LinkId>,
    subflows: BTreeMap<LinkId, SubflowId>,
    /// Received and sent bytes of each link when its subflow of the aggregate began.
    start_totals: BTreeMap<LinkId, (DataSize, DataSize)>,
    /// Links whose subflows have ended for the policy and are backups in the kernel.
    kept_as_backup: BTreeSet<LinkId>,
    next_id: u64,
    /// Received and sent bytes of ended real subflows.
    ended_totals: BTreeMap<LinkId, (DataSize, DataSize)>,
    /// Endpoints in use, by link.
    endpoints: BTreeMap<LinkId, Vec<Endpoint>>,
}

impl<M: Policy> Driver<M> {
    /// Raises the kernel's subflow limit to the number of links.
    pub(super) fn raise_limits(&mut self) -> Result<(), PathsError> {
        let (Some(_), Some(manager)) = (&self.aggregate, &self.path_manager) else { return Ok(()) };
        let netlink_error = |error| PathsError::kernel("limits of MPTCP's path manager", error);
        let limits = manager.limits().map_err(netlink_error)?;
        let needed = u32::try_from(self.links.all.len()).unwrap_or(MAX_SUBFLOWS).min(MAX_SUBFLOWS);
        if limits.subflows < needed {
            let raised_limits = Limits { subflows: needed, ..limits };
            self.host_config.record_limits(limits, raised_limits)?;
            let acks = manager.execute(vec![raised_limits.set(manager.family_id())]).map_err(netlink_error)?;
            if let Some(ack) = acks.iter().find(|ack| ack.error != 0) {
                return Err(netlink_error(std::io::Error::from_raw_os_error(ack.error)));
            }
        }
        Ok(())
    }

    /// Raises limits, and adopts or removes endpoints of a crashed run.
    pub(super) fn start_aggregate(&mut self) -> Result<(), PathsError> {
        self.raise_limits()?;
        self.update_link_endpoints(&[]);
        let (Some(aggregate), Some(manager)) = (&mut self.aggregate, &self.path_manager) else { return Ok(()) };
        let mut deletions = Vec::new();
        for endpoint in manager.endpoints().unwrap_or_default() {
            let interface = self.links.for_address(endpoint.address, 0).filter(|interface| interface.is_up);
            match interface {
                _ if !self.host_config.is_own_address(endpoint.address) => {}
                Some(interface) if aggregate.initial_link == Some(interface.link) => {}
                Some(interface) => aggregate.endpoints.entry(interface.link).or_default().push(endpoint),
                None => deletions.push(endpoint.delete(manager.family_id())),
            }
        }
        let _ = manager.execute(deletions);
        Ok(())
    }

    /// Follows changes of links: ensures an endpoint for the initial link, and removes endpoints of links that are
    /// down.
    pub(super) fn update_link_endpoints(&mut self, transitions: &[LinkTransition]) {
        let (Some(aggregate), Some(manager)) = (&mut self.aggregate, &self.path_manager) else { return };
        for transition in transitions {
            if let LinkTransition::Down(link) = transition {
                let deletions = aggregate.endpoints.remove(link).unwrap_or_default();
                let deletions =
                    deletions.iter().filter(|endpoint| self.host_config.is_own_address(endpoint.address));
                let _ = manager.execute(deletions.map(|endpoint| endpoint.delete(manager.family_id())).collect());
            }
        }
        if aggregate
            .initial_link
            .is_none_or(|initial_link| self.links.get(initial_link).is_none_or(|interface| !interface.is_up))
        {
            aggregate.initial_link =
                self.links.all.iter().find(|interface| interface.is_up).map(|interface| interface.link);
        }
        if let Some(initial_link) = aggregate.initial_link
            && !aggregate.endpoints.contains_key(&initial_link)
            && let Some(error) = self.add_endpoints(initial_link, false)
        {
            tracing::warn!(?error, "cannot add an endpoint for the initial link: it cannot be suspended");
        }
        self.update_address_endpoints();
    }

    /// Ensures that a link with endpoints has one per address family, and none for lost addresses.
    fn update_address_endpoints(&mut self) {
        let (Some(aggregate), Some(manager)) = (&mut self.aggregate, &self.path_manager) else { return };
        let (mut deletions, mut incomplete) = (Vec::new(), Vec::new());
        for interface in self.links.all.iter().filter(|interface| interface.is_up) {
            let Some(endpoints) = aggregate.endpoints.get_mut(&interface.link) else { continue };
            let backup = endpoints.iter().any(|endpoint| endpoint.backup);
            let stale = endpoints.extract_if(.., |endpoint| !interface.addresses.contains(&endpoint.address));
            let own_endpoints = stale.filter(|endpoint| self.host_config.is_own_address(endpoint.address));
            deletions.extend(own_endpoints.map(|endpoint| endpoint.delete(manager.family_id())));
            let has_no_endpoint = |address: &IpAddr| {
                !endpoints.iter().any(|endpoint| endpoint.address.is_ipv4() == address.is_ipv4())
            };
            if interface.stable_addresses.iter().any(has_no_endpoint) {
                incomplete.push((interface.link, backup));
            }
        }
        if let Err(error) = manager.execute(deletions) {
            tracing::warn!(%error, "cannot remove endpoints of lost addresses");
        }
        for (link, backup) in incomplete {
            if let Some(error) = self.add_endpoints(link, backup) {
                tracing::warn!(?error, "cannot add an endpoint for a new address");
            }
        }
    }

    /// Handles new real connections and subflows: opens the aggregate, and reports links that now carry a subflow.
    pub(super) fn on_aggregate_grew(&mut self) {
        let Some(aggregate) = &mut self.aggregate else { return };
        if !aggregate.is_open {
            aggregate.is_open = true;
            self.feed_machine(Input::Opened { conn: AGGREGATE_CONN, adopted: false, deny_join_id0: false });
        }
        for index in 0..self.links.all.len() {
            let Some(link) = self.links.all.get(index).map(|interface| interface.link) else { continue };
            let mut link_subflows = self
                .subflow_table
                .conns
                .values()
                .flat_map(|connection| &connection.subflows)
                .filter(|s| s.link == Some(link));
            let Some(first_subflow) = link_subflows.next() else { continue };
            let totals = self.link_totals(link);
            let start_totals = (totals.received, totals.sent);
            let Some(aggregate) = &mut self.aggregate else { return };
            // A link that is kept as a backup has ended for the policy, although its real subflows remain.
            if aggregate.subflows.contains_key(&link) || aggregate.kept_as_backup.contains(&link) {
                continue;
            }
            let id = SubflowId(aggregate.next_id);
            aggregate.next_id += 1;
            aggregate.subflows.insert(link, id);
            aggregate.start_totals.insert(link, start_totals);
            let initial = aggregate.initial_link == Some(link);
            let (backup, rtt) = (first_subflow.counters.backup, first_subflow.counters.rtt);
            let subflow = EstablishedSubflow { id, link: Some(link), initial, backup, rtt };
            self.feed_machine(Input::SubflowUp { conn: AGGREGATE_CONN, subflow });
        }
    }

    /// Handles real subflows that were removed from the table: keeps their byte counts, and reports links without
    /// subflows.
    pub(super) fn on_aggregate_shrank(&mut self, subflows: &[Subflow]) {
        let Some(aggregate) = &mut self.aggregate else { return };
        for sub in subflows {
            if let Some(link) = sub.link {
                let (received, sent) = aggregate.ended_totals.entry(link).or_default();
                *received += sub.counters.received;
                *sent += sub.counters.sent;
            }
        }
        if self.subflow_table.conns.is_empty() {
            self.close_aggregate();
            return;
        }
        aggregate.kept_as_backup.retain(|link| self.subflow_table.subflows_over(*link) > 0);
        let empty: Vec<LinkId> = aggregate
            .subflows
            .keys()
            .copied()
            .filter(|link| self.subflow_table.subflows_over(*link) == 0)
            .collect();
        for link in empty {
            if let Some(subflow) = self.aggregate.as_mut().and_then(|aggregate| aggregate.subflows.remove(&link)) {
                self.feed_machine(Input::SubflowDown {
                    conn: AGGREGATE_CONN,
                    subflow,
                    reason: CloseReason::Closed,
                });
            }
        }
    }

    fn close_aggregate(&mut self) {
        let Some(aggregate) = self.aggregate.as_mut().filter(|aggregate| aggregate.is_open) else { return };
        aggregate.is_open = false;
        aggregate.subflows.clear();
        aggregate.kept_as_backup.clear();
        aggregate.start_totals.clear();
        aggregate.ended_totals.clear();
        self.remove_idle_endpoints();
        self.feed_machine(Input::Closed { conn: AGGREGATE_CONN });
    }

    /// While no connection is open, keeps only the endpoint of the initial link, and not as a backup.
    pub(super) fn remove_idle_endpoints(&mut self) {
        let (Some(aggregate), Some(manager)) = (&mut self.aggregate, &self.path_manager) else { return };
        if aggregate.is_open {
            return;
        }
        let mut requests = Vec::new();
        for (link, endpoints) in &mut aggregate.endpoints {
            if aggregate.initial_link == Some(*link) {
                for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.backup) {
                    endpoint.backup = false;
                    requests.push(endpoint.set_backup(manager.family_id()));
                }
            } else {
                let own_endpoints =
                    endpoints.iter().filter(|endpoint| self.host_config.is_own_address(endpoint.address));
                requests.extend(own_endpoints.map(|endpoint| endpoint.delete(manager.family_id())));
            }
        }
        let initial_link = aggregate.initial_link;
        aggregate.endpoints.retain(|link, _| initial_link == Some(*link));
        if let Err(error) = manager.execute(requests) {
            tracing::warn!(%error, "cannot remove endpoints of MPTCP's path manager");
        }
    }

    pub(super) fn execute_on_aggregate(&mut self, id: CommandId, command: Command) {
        let link = match command {
            Command::Join { link, .. } => Some(link),
            Command::SetBackup { subflow, .. } | Command::Destroy { subflow } => {
                self.aggregate.as_ref().and_then(|aggregate| aggregate.link_of(subflow))
            }
        };
        let subflow_id = link.and_then(|link| self.aggregate.as_ref()?.subflows.get(&link).copied());
        if let (Command::Join { .. }, Some(_)) = (command, subflow_id) {
            tracing::debug!("the kernel's path manager cannot open a second subflow over one link");
            self.feed_machine(Input::CommandDone { command: id, error: Some(CommandError::NotYet) });
            return;
        }
        let error = match command {
            Command::Join { link, backup } => self.add_endpoints(link, backup),
            Command::SetBackup { subflow, backup } => self.set_endpoints_backup(subflow, backup),
            Command::Destroy { subflow } => self.delete_endpoints(subflow),
        };
        let is_kept_as_backup = link.filter(|link| {
            self.aggregate.as_ref().is_some_and(|aggregate| aggregate.kept_as_backup.contains(link))
        });
        // The order matters: the policy gets the result of its command before the subflow change that follows from
        // it.
        self.record_for_all(command, link, error, is_kept_as_backup.is_some());
        self.feed_machine(Input::CommandDone { command: id, error });
        match (command, is_kept_as_backup, &mut self.aggregate) {
            (Command::Destroy { subflow }, Some(link), Some(aggregate)) if error.is_none() => {
                aggregate.subflows.remove(&link);
                self.feed_machine(Input::SubflowDown {
                    conn: AGGREGATE_CONN,
                    subflow,
                    reason: CloseReason::Closed,
                });
            }
            (Command::Join { .. }, Some(link), Some(aggregate)) if error.is_none() => {
                aggregate.kept_as_backup.remove(&link);
                self.on_aggregate_grew();
            }
            _ => {}
        }
    }

    /// Records a command in the history of each connection. The reason of each connection remains the last one.
    fn record_for_all(
        &mut self,
        command: Command,
        link: Option<LinkId>,
        error: Option<CommandError>,
        is_kept_as_backup: bool,
    ) {
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

    /// Sets the reason of the aggregate for each connection.
    pub(super) fn set_reason_for_all(&mut self, now: Instant, reason: &str) {
        for connection in self.subflow_table.conns.values_mut() {
            connection.set_reason(now, reason.to_owned());
        }
    }

    fn add_endpoints(&mut self, link: LinkId, backup: bool) -> Option<CommandError> {
        let Some(interface) = self.links.get(link).filter(|interface| interface.is_up) else {
            return Some(CommandError::NoAddress);
        };
        let Some(manager) = &self.path_manager else { return Some(CommandError::NotPermitted) };
        let existing = self
            .aggregate
            .as_ref()
            .and_then(|aggregate| aggregate.endpoints.get(&link))
            .map_or(&[][..], Vec::as_slice);
        let one_per_family = [true, false].into_iter().filter_map(|v4| {
            let mut candidates = interface.stable_addresses.iter().filter(|address| address.is_ipv4() == v4);
            let has_endpoint = |address: &&IpAddr| existing.iter().any(|endpoint| endpoint.address == **address);
            let address = candidates.clone().find(has_endpoint).or_else(|| candidates.next())?;
            Some(Endpoint::for_subflows(*address, interface.index, backup))
        });
        let endpoints: Vec<Endpoint> = one_per_family.collect();
        // The undo log must know of the endpoints before the kernel does.
        let recorded =
            manager.endpoints().map_err(|error| PathsError::kernel("endpoints of MPTCP's path manager", error));
        if let Err(error) = recorded
            .and_then(|existing_endpoints| self.host_config.record_endpoints(&endpoints, &existing_endpoints))
        {
            tracing::warn!(%error, "cannot record endpoints in the undo log; none is added");
            return Some(CommandError::Other(rustix::io::Errno::IO.raw_os_error()));
        }
        let requests = endpoints.iter().map(|endpoint| endpoint.add(manager.family_id())).collect();
        let acks = match execute_requests(manager, requests) {
            Ok(acks) => acks,
            Err(error) => return Some(error),
        };
        // The kernel assigns the ids of endpoints, so they are read back.
        let kernel_endpoints = manager.endpoints().unwrap_or_default();
        let own_endpoints = kernel_endpoints
            .into_iter()
            .filter(|existing| endpoints.iter().any(|endpoint| endpoint.address == existing.address));
        let mut own_endpoints: Vec<Endpoint> = own_endpoints.collect();
        if own_endpoints.is_empty() {
            return acks.iter().find_map(command_error).or(Some(CommandError::NoAddress));
        }
        // An endpoint that existed already may have the other priority.
        let to_change: Vec<Request> = own_endpoints
            .iter_mut()
            .filter(|endpoint| endpoint.backup != backup)
            .map(|endpoint| {
                endpoint.backup = backup;
                endpoint.set_backup(manager.family_id())
            })
            .collect();
        let outcome = execute_requests(manager, to_change);
        self.aggregate.as_mut()?.endpoints.insert(link, own_endpoints);
        outcome.err()
    }

    fn set_endpoints_backup(&mut self, subflow: SubflowId, backup: bool) -> Option<CommandError> {
        let Some(manager) = &self.path_manager else { return Some(CommandError::NotPermitted) };
        let link = self.aggregate.as_ref()?.link_of(subflow);
        let Some(link) = link else { return Some(CommandError::NoSubflow) };
        let Some(endpoints) = self.aggregate.as_mut()?.endpoints.get_mut(&link) else {
            // An endpoint of another program that was not needed until now.
            return self.add_endpoints(link, backup);
        };
        for endpoint in &mut *endpoints {
            endpoint.backup = backup;
        }
        let requests = endpoints.iter().map(|endpoint| endpoint.set_backup(manager.family_id())).collect();
        match execute_requests(manager, requests) {
            Ok(acks) => acks.iter().find_map(command_error),
            Err(error) => Some(error),
        }
    }

    fn delete_endpoints(&mut self, subflow: SubflowId) -> Option<CommandError> {
        let Some(manager) = &self.path_manager else { return Some(CommandError::NotPermitted) };
        let aggregate = self.aggregate.as_mut()?;
        let Some(link) = aggregate.link_of(subflow) else { return Some(CommandError::NoSubflow) };
        let own_endpoints = |endpoints: &Vec<Endpoint>| {
            endpoints.iter().all(|endpoint| self.host_config.is_own_address(endpoint.address))
        };
        // These endpoints cannot be deleted, so the subflow is suspended and the policy sees it as ended.
        if aggregate.initial_link == Some(link) || !aggregate.endpoints.get(&link).is_some_and(own_endpoints) {
            // Connections begin on the initial link; without its endpoint they could not be suspended any more.
            // Endpoints of other programs are never removed.
            let error = self.add_endpoints(link, true);
            if let (None, Some(aggregate)) = (error, &mut self.aggregate) {
                aggregate.kept_as_backup.insert(link);
            }
            return error;
        }
        let deletions = aggregate.endpoints.remove(&link).unwrap_or_default();
        match execute_requests(
            manager,
            deletions.iter().map(|endpoint| endpoint.delete(manager.family_id())).collect(),
        ) {
            Ok(acks) => acks.iter().find_map(command_error),
            Err(error) => Some(error),
        }
    }

    /// Samples all real subflows and reports the sums to the policy.
    pub(super) fn poll_aggregate(&mut self) {
        let mut queries = Vec::new();
        let mut ids = Vec::new();
        for (conn, connection) in &self.subflow_table.conns {
            for sub in &connection.subflows {
                queries.push(sub.query());
                ids.push((*conn, sub.id));
            }
        }
        let now = self.now();
        if queries.len() <= MAX_EXACT_QUERIES {
            let replies = self.query_sockets(&queries);
            for ((conn, id), reply) in ids.into_iter().zip(replies) {
                let Some(counters) = reply.socket().and_then(to_counters) else { continue };
                let connection = self.subflow_table.conn_mut(conn);
                if let Some(sub) =
                    connection.and_then(|connection| connection.subflows.iter_mut().find(|sub| sub.id == id))
                {
                    sub.add_sample(now, counters);
                }
            }
        } else {
            let table = &mut self.subflow_table;
            let dump = self.sock_diag.dump_subflows(state::CAN_TRANSFER, |socket| {
                let (Some(subflow), Some(counters)) = (socket.subflow, to_counters(socket)) else { return };
                let connection = table.conn_mut(ConnId(subflow.token));
                let has_same_addresses =
                    |sub: &&mut Subflow| sub.local == socket.local && sub.remote == socket.remote;
                if let Some(sub) =
                    connection.and_then(|connection| connection.subflows.iter_mut().find(has_same_addresses))
                {
                    sub.add_sample(now, counters);
                }
            });
            if let Err(error) = dump {
                tracing::warn!(%error, "no reply from sock_diag; subflow counters are missing");
            }
        }
        let subflows: Vec<(LinkId, SubflowId)> = self
            .aggregate
            .iter()
            .flat_map(|aggregate| &aggregate.subflows)
            .map(|(link, id)| (*link, *id))
            .collect();
        for (link, subflow) in subflows {
            let counters = self.aggregate_counters(link);
            self.feed_machine(Input::Counters { conn: AGGREGATE_CONN, subflow, counters });
        }
    }

    /// Counters of the aggregate's subflow over a link: they start at zero, whatever passed the link before.
    fn aggregate_counters(&self, link: LinkId) -> Counters {
        let totals = self.link_totals(link);
        let start_totals = self
            .aggregate
            .as_ref()
            .and_then(|aggregate| aggregate.start_totals.get(&link))
            .copied()
            .unwrap_or_default();
        Counters { received: totals.received - start_totals.0, sent: totals.sent - start_totals.1, ..totals }
    }

    fn link_totals(&self, link: LinkId) -> Counters {
        let ended_totals = self
            .aggregate
            .as_ref()
            .and_then(|aggregate| aggregate.ended_totals.get(&link))
            .copied()
            .unwrap_or_default();
        let mut total = Counters { received: ended_totals.0, sent: ended_totals.1, ..Counters::default() };
        let subflows = self
            .subflow_table
            .conns
            .values()
            .flat_map(|connection| &connection.subflows)
            .filter(|sub| sub.link == Some(link));
        let mut is_first = true;
        for counters in subflows.map(|sub| sub.counters) {
            total.received += counters.received;
            total.sent += counters.sent;
            total.outstanding += counters.outstanding;
            let min_of = |a: Option<_>, b: Option<_>| a.into_iter().chain(b).min();
            total.rtt = min_of(total.rtt, counters.rtt);
            total.receiver_rtt = min_of(total.receiver_rtt, counters.receiver_rtt);
            // A link counts as failed or suspended only if all of its subflows are.
            total.timeouts = if is_first { counters.timeouts } else { total.timeouts.min(counters.timeouts) };
            total.backup = counters.backup && (is_first || total.backup);
            total.peer_backup = counters.peer_backup && (is_first || total.peer_backup);
            is_first = false;
        }
        total
    }
}

impl AggregateConn {
    fn link_of(&self, subflow: SubflowId) -> Option<LinkId> {
        self.subflows.iter().find(|(_, id)| **id == subflow).map(|(link, _)| *link)
    }
}

fn execute_requests(manager: &PathManager, requests: Vec<Request>) -> Result<Vec<Ack>, CommandError> {
    manager.execute(requests).map_err(|error| CommandError::Other(error.raw_os_error().unwrap_or(0)))
}

/// `MPTCP_PM_ADDR_MAX`.
const MAX_SUBFLOWS: u32 = 8;
/// Up to this number, subflows are queried one by one. chosen: above it, a dump of all costs the same.
const MAX_EXACT_QUERIES: usize = 256;
