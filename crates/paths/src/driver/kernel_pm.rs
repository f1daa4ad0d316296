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
//!    to the number of links, at most 8.
//!
//! This mode survives the end of the daemon better than the userspace mode, because the kernel continues by itself.
//! It is coarser: small transfers bear the cost of links that large ones need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use marline_core::link::LinkId;
use marline_core::paths::{
    CloseReason, Command, CommandError, ConnId, Counters, EstablishedSubflow, Input, SubflowId,
};
use marline_core::units::{DataSize, Instant};
use marline_core::wire::netlink::diag::state;
use marline_core::wire::netlink::mptcp::{Endpoint, Limits};
use marline_core::wire::netlink::{Ack, Request};

use super::super::kernel::{PathManager, command_error};
use super::super::{HostConfigurator, PathsError};
use super::counters::to_counters;
use super::interfaces::{LinkInterfaces, LinkTransition};
use super::sockets::Sockets;
use super::subflow_table::{Subflow, SubflowTable};

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

/// What the aggregate reads and changes beside its own state.
pub(super) struct KernelPm<'a> {
    pub(super) manager: &'a PathManager,
    pub(super) links: &'a LinkInterfaces,
    pub(super) host_config: &'a mut dyn HostConfigurator,
}

impl KernelPm<'_> {
    /// Raises the kernel's subflow limit to the number of links, or to [`MAX_SUBFLOWS`] if there are more.
    ///
    /// # Errors
    /// The kernel refuses it, or the undo log cannot be written.
    pub(super) fn raise_limits(&mut self) -> Result<(), PathsError> {
        let netlink_error = |error| PathsError::kernel("limits of MPTCP's path manager", error);
        let limits = self.manager.limits().map_err(netlink_error)?;
        let needed = u32::try_from(self.links.all.len()).unwrap_or(MAX_SUBFLOWS).min(MAX_SUBFLOWS);
        if limits.subflows < needed {
            let raised_limits = Limits { subflows: needed, ..limits };
            self.host_config.record_limits(limits, raised_limits)?;
            let acks =
                self.manager.execute(vec![raised_limits.set(self.manager.family_id())]).map_err(netlink_error)?;
            if let Some(ack) = acks.iter().find(|ack| ack.error != 0) {
                return Err(netlink_error(std::io::Error::from_raw_os_error(ack.error)));
            }
        }
        Ok(())
    }

    /// Deletes those of these endpoints that belong to marline.
    fn delete_own(&self, endpoints: &[Endpoint]) -> Vec<Request> {
        let own = endpoints.iter().filter(|endpoint| self.host_config.is_own_address(endpoint.address));
        own.map(|endpoint| endpoint.delete(self.manager.family_id())).collect()
    }
}

/// Result of a command on the aggregate.
#[derive(Clone, Copy, Debug)]
pub(super) struct AggregateResult {
    pub(super) link: Option<LinkId>,
    pub(super) error: Option<CommandError>,
    /// The link's endpoint must stay, so it is or was a backup instead of being removed.
    pub(super) is_kept_as_backup: bool,
}

impl AggregateConn {
    /// Raises limits, and adopts or removes endpoints of a crashed run.
    ///
    /// # Errors
    /// See [`KernelPm::raise_limits`].
    pub(super) fn start(&mut self, mut kernel: KernelPm<'_>) -> Result<(), PathsError> {
        kernel.raise_limits()?;
        self.follow_links(&mut kernel, &[]);
        let mut deletions = Vec::new();
        for endpoint in kernel.manager.endpoints().unwrap_or_default() {
            let interface = kernel.links.for_address(endpoint.address, 0).filter(|interface| interface.is_up);
            match interface {
                _ if !kernel.host_config.is_own_address(endpoint.address) => {}
                Some(interface) if self.initial_link == Some(interface.link) => {}
                Some(interface) => self.endpoints.entry(interface.link).or_default().push(endpoint),
                None => deletions.push(endpoint.delete(kernel.manager.family_id())),
            }
        }
        let _ = kernel.manager.execute(deletions);
        Ok(())
    }

    /// Follows changes of links: ensures an endpoint for the initial link, and removes endpoints of links that are
    /// down.
    pub(super) fn follow_links(&mut self, kernel: &mut KernelPm<'_>, transitions: &[LinkTransition]) {
        for transition in transitions {
            if let LinkTransition::Down(link) = transition {
                let deletions = self.endpoints.remove(link).unwrap_or_default();
                let _ = kernel.manager.execute(kernel.delete_own(&deletions));
            }
        }
        let is_up = |link: LinkId| kernel.links.get(link).is_some_and(|interface| interface.is_up);
        if self.initial_link.is_none_or(|initial_link| !is_up(initial_link)) {
            self.initial_link =
                kernel.links.all.iter().find(|interface| interface.is_up).map(|interface| interface.link);
        }
        if let Some(initial_link) = self.initial_link
            && !self.endpoints.contains_key(&initial_link)
            && let Some(error) = self.add_endpoints(kernel, initial_link, false)
        {
            tracing::warn!(?error, "cannot add an endpoint for the initial link: it cannot be suspended");
        }
        self.update_address_endpoints(kernel);
    }

    /// Ensures that a link with endpoints has one per address family, and none for lost addresses.
    fn update_address_endpoints(&mut self, kernel: &mut KernelPm<'_>) {
        let (mut deletions, mut incomplete) = (Vec::new(), Vec::new());
        for interface in kernel.links.all.iter().filter(|interface| interface.is_up) {
            let Some(endpoints) = self.endpoints.get_mut(&interface.link) else { continue };
            let backup = endpoints.iter().any(|endpoint| endpoint.backup);
            let stale: Vec<Endpoint> =
                endpoints.extract_if(.., |endpoint| !interface.addresses.contains(&endpoint.address)).collect();
            deletions.extend(kernel.delete_own(&stale));
            let has_no_endpoint = |address: &IpAddr| {
                !endpoints.iter().any(|endpoint| endpoint.address.is_ipv4() == address.is_ipv4())
            };
            if interface.stable_addresses.iter().any(has_no_endpoint) {
                incomplete.push((interface.link, backup));
            }
        }
        if let Err(error) = kernel.manager.execute(deletions) {
            tracing::warn!(%error, "cannot remove endpoints of lost addresses");
        }
        for (link, backup) in incomplete {
            if let Some(error) = self.add_endpoints(kernel, link, backup) {
                tracing::warn!(?error, "cannot add an endpoint for a new address");
            }
        }
    }

    /// Handles new real connections and subflows: opens the aggregate, and reports links that now carry a subflow.
    pub(super) fn on_grew(&mut self, links: &LinkInterfaces, table: &SubflowTable) -> Vec<Input> {
        let mut inputs = Vec::new();
        if !self.is_open {
            self.is_open = true;
            inputs.push(Input::Opened { conn: AGGREGATE_CONN, adopted: false, deny_join_id0: false });
        }
        for link in links.all.iter().map(|interface| interface.link) {
            let Some(first_subflow) = subflows_over(table, link).next() else { continue };
            // A link that is kept as a backup has ended for the policy, although its real subflows remain.
            if self.subflows.contains_key(&link) || self.kept_as_backup.contains(&link) {
                continue;
            }
            let totals = self.link_totals(table, link);
            let id = SubflowId(self.next_id);
            self.next_id += 1;
            self.subflows.insert(link, id);
            self.start_totals.insert(link, (totals.received, totals.sent));
            let initial = self.initial_link == Some(link);
            let (backup, rtt) = (first_subflow.counters.backup, first_subflow.counters.rtt);
            let subflow = EstablishedSubflow { id, link: Some(link), initial, backup, rtt };
            inputs.push(Input::SubflowUp { conn: AGGREGATE_CONN, subflow });
        }
        inputs
    }

    /// Handles real subflows that were removed from the table: keeps their byte counts, and reports links without
    /// subflows.
    pub(super) fn on_shrank(
        &mut self,
        kernel: KernelPm<'_>,
        table: &SubflowTable,
        subflows: &[Subflow],
    ) -> Vec<Input> {
        for sub in subflows {
            if let Some(link) = sub.link {
                let (received, sent) = self.ended_totals.entry(link).or_default();
                *received += sub.counters.received;
                *sent += sub.counters.sent;
            }
        }
        if table.conns.is_empty() {
            return self.close(kernel).into_iter().collect();
        }
        self.kept_as_backup.retain(|link| table.subflows_over(*link) > 0);
        let mut ended = Vec::new();
        self.subflows.retain(|link, subflow| {
            let is_used = table.subflows_over(*link) > 0;
            if !is_used {
                ended.push(subflow_ended(*subflow));
            }
            is_used
        });
        ended
    }

    fn close(&mut self, kernel: KernelPm<'_>) -> Option<Input> {
        if !std::mem::replace(&mut self.is_open, false) {
            return None;
        }
        self.subflows.clear();
        self.kept_as_backup.clear();
        self.start_totals.clear();
        self.ended_totals.clear();
        self.remove_idle_endpoints(kernel);
        Some(Input::Closed { conn: AGGREGATE_CONN })
    }

    /// While no connection is open, keeps only the endpoint of the initial link, and not as a backup.
    pub(super) fn remove_idle_endpoints(&mut self, kernel: KernelPm<'_>) {
        if self.is_open {
            return;
        }
        let mut requests = Vec::new();
        for (link, endpoints) in &mut self.endpoints {
            if self.initial_link == Some(*link) {
                for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.backup) {
                    endpoint.backup = false;
                    requests.push(endpoint.set_backup(kernel.manager.family_id()));
                }
            } else {
                requests.extend(kernel.delete_own(endpoints));
            }
        }
        let initial_link = self.initial_link;
        self.endpoints.retain(|link, _| initial_link == Some(*link));
        if let Err(error) = kernel.manager.execute(requests) {
            tracing::warn!(%error, "cannot remove endpoints of MPTCP's path manager");
        }
    }

    /// Executes a command of the policy. None: a second subflow over one link, which the kernel's path manager cannot
    /// open.
    pub(super) fn execute(&mut self, kernel: &mut KernelPm<'_>, command: Command) -> Option<AggregateResult> {
        let link = match command {
            Command::Join { link, .. } => Some(link),
            Command::SetBackup { subflow, .. } | Command::Destroy { subflow } => self.link_of(subflow),
        };
        let has_subflow = link.is_some_and(|link| self.subflows.contains_key(&link));
        if has_subflow && matches!(command, Command::Join { .. }) {
            return None;
        }
        let error = match command {
            Command::Join { link, backup } => self.add_endpoints(kernel, link, backup),
            Command::SetBackup { subflow, backup } => self.set_endpoints_backup(kernel, subflow, backup),
            Command::Destroy { subflow } => self.delete_endpoints(kernel, subflow),
        };
        let is_kept_as_backup = link.is_some_and(|link| self.kept_as_backup.contains(&link));
        Some(AggregateResult { link, error, is_kept_as_backup })
    }

    /// The subflow changes that follow from a successful command on a link that is kept as a backup.
    pub(super) fn after_command(
        &mut self,
        links: &LinkInterfaces,
        table: &SubflowTable,
        command: Command,
        result: AggregateResult,
    ) -> Vec<Input> {
        let AggregateResult { link: Some(link), error: None, is_kept_as_backup: true } = result else {
            return Vec::new();
        };
        match command {
            Command::Destroy { subflow } => {
                self.subflows.remove(&link);
                vec![subflow_ended(subflow)]
            }
            Command::Join { .. } => {
                self.kept_as_backup.remove(&link);
                self.on_grew(links, table)
            }
            Command::SetBackup { .. } => Vec::new(),
        }
    }

    fn add_endpoints(&mut self, kernel: &mut KernelPm<'_>, link: LinkId, backup: bool) -> Option<CommandError> {
        let Some(interface) = kernel.links.get(link).filter(|interface| interface.is_up) else {
            return Some(CommandError::NoAddress);
        };
        let manager = kernel.manager;
        let existing = self.endpoints.get(&link).map_or(&[][..], Vec::as_slice);
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
            .and_then(|existing_endpoints| kernel.host_config.record_endpoints(&endpoints, &existing_endpoints))
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
        self.endpoints.insert(link, own_endpoints);
        outcome.err()
    }

    fn set_endpoints_backup(
        &mut self,
        kernel: &mut KernelPm<'_>,
        subflow: SubflowId,
        backup: bool,
    ) -> Option<CommandError> {
        let manager = kernel.manager;
        let Some(link) = self.link_of(subflow) else { return Some(CommandError::NoSubflow) };
        let Some(endpoints) = self.endpoints.get_mut(&link) else {
            // An endpoint of another program that was not needed until now.
            return self.add_endpoints(kernel, link, backup);
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

    fn delete_endpoints(&mut self, kernel: &mut KernelPm<'_>, subflow: SubflowId) -> Option<CommandError> {
        let Some(link) = self.link_of(subflow) else { return Some(CommandError::NoSubflow) };
        let own_endpoints = |endpoints: &Vec<Endpoint>| {
            endpoints.iter().all(|endpoint| kernel.host_config.is_own_address(endpoint.address))
        };
        // These endpoints cannot be deleted, so the subflow is suspended and the policy sees it as ended.
        if self.initial_link == Some(link) || !self.endpoints.get(&link).is_some_and(own_endpoints) {
            // Connections begin on the initial link; without its endpoint they could not be suspended any more.
            // Endpoints of other programs are never removed.
            let error = self.add_endpoints(kernel, link, true);
            if error.is_none() {
                self.kept_as_backup.insert(link);
            }
            return error;
        }
        let deletions = self.endpoints.remove(&link).unwrap_or_default();
        match execute_requests(
            kernel.manager,
            deletions.iter().map(|endpoint| endpoint.delete(kernel.manager.family_id())).collect(),
        ) {
            Ok(acks) => acks.iter().find_map(command_error),
            Err(error) => Some(error),
        }
    }

    /// Reports the sums over all real subflows to the policy.
    pub(super) fn report_counters(&self, table: &SubflowTable) -> Vec<Input> {
        let input = |(link, subflow): (&LinkId, &SubflowId)| {
            let totals = self.link_totals(table, *link);
            // They start at zero, whatever passed the link before.
            let start = self.start_totals.get(link).copied().unwrap_or_default();
            let counters = Counters { received: totals.received - start.0, sent: totals.sent - start.1, ..totals };
            Input::Counters { conn: AGGREGATE_CONN, subflow: *subflow, counters }
        };
        self.subflows.iter().map(input).collect()
    }

    /// Sums over all real subflows of a link, past and present.
    fn link_totals(&self, table: &SubflowTable, link: LinkId) -> Counters {
        let ended_totals = self.ended_totals.get(&link).copied().unwrap_or_default();
        let mut total = Counters { received: ended_totals.0, sent: ended_totals.1, ..Counters::default() };
        let mut is_first = true;
        for counters in subflows_over(table, link).map(|sub| sub.counters) {
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

    fn link_of(&self, subflow: SubflowId) -> Option<LinkId> {
        self.subflows.iter().find(|(_, id)| **id == subflow).map(|(link, _)| *link)
    }
}

fn subflows_over(table: &SubflowTable, link: LinkId) -> impl Iterator<Item = &Subflow> {
    table.conns.values().flat_map(|connection| &connection.subflows).filter(move |sub| sub.link == Some(link))
}

fn subflow_ended(subflow: SubflowId) -> Input {
    Input::SubflowDown { conn: AGGREGATE_CONN, subflow, reason: CloseReason::Closed }
}

/// Takes new counters of all real subflows.
pub(super) fn sample_subflows(sockets: &mut Sockets, table: &mut SubflowTable, now: Instant) {
    let (mut queries, mut ids) = (Vec::new(), Vec::new());
    for (conn, connection) in &table.conns {
        for sub in &connection.subflows {
            queries.push(sub.query());
            ids.push((*conn, sub.id));
        }
    }
    if queries.len() <= MAX_EXACT_QUERIES {
        for ((conn, id), reply) in ids.into_iter().zip(sockets.query_subflows(&queries)) {
            let Some(counters) = reply.socket().and_then(to_counters) else { continue };
            let connection = table.conn_mut(conn);
            if let Some(sub) =
                connection.and_then(|connection| connection.subflows.iter_mut().find(|sub| sub.id == id))
            {
                sub.add_sample(now, counters);
            }
        }
        return;
    }
    let dump = sockets.dump_subflows(state::CAN_TRANSFER, |socket| {
        let (Some(subflow), Some(counters)) = (socket.subflow, to_counters(socket)) else { return };
        let connection = table.conn_mut(ConnId(subflow.token));
        let has_same_addresses = |sub: &&mut Subflow| sub.local == socket.local && sub.remote == socket.remote;
        if let Some(sub) = connection.and_then(|connection| connection.subflows.iter_mut().find(has_same_addresses))
        {
            sub.add_sample(now, counters);
        }
    });
    if let Err(error) = dump {
        tracing::warn!(%error, "no reply from sock_diag; subflow counters are missing");
    }
}

fn execute_requests(manager: &PathManager, requests: Vec<Request>) -> Result<Vec<Ack>, CommandError> {
    manager.execute(requests).map_err(|error| CommandError::Other(error.raw_os_error().unwrap_or(0)))
}

/// The kernel's maximum of that limit, `MPTCP_PM_ADDR_MAX`.
const MAX_SUBFLOWS: u32 = 8;
/// Up to this number, subflows are queried one by one. Our choice: above it, a dump of all costs the same.
const MAX_EXACT_QUERIES: usize = 256;
