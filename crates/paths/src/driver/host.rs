//! The degraded mode: all connections of the host as one, steered by the endpoints of the kernel's own path manager.
//!
//! In: the real connections and subflows of the table, and the policy's orders for the one connection that it sees. Out:
//! endpoints that come, go and become backups; one subflow for each link, whose counters are sums.
//!
//! 1. The host is connection 0. It opens with the first real connection and closes with the last; then the endpoints of
//!    the links that joined go, so that the next connection begins on its first link alone.
//! 2. A join is an endpoint more, a suspension is a changed endpoint, an end is an endpoint less. The first link, which
//!    is the first of the configuration that is up, has its endpoint from the start: one that is added while a
//!    connection runs would make a second subflow over it, and MP_PRIO would not reach the first.
//! 3. What a subflow had carried when it was seen last counts on after its end: sums never fall. They begin at zero where
//!    the policy hears of a new subflow.
//! 4. What is added or raised the ground hears first, and puts it back at the end, also after a crash. Endpoints of a
//!    run that crashed go on where connections use them; those of somebody else are used, and never removed.
//! 5. An address of the other family that comes later has its endpoint too, and what is gone has none.
//! 6. An endpoint that cannot go (the first link's, somebody else's) is made a backup where its subflow is to be ended, and
//!    the policy hears that the subflow is gone; a join takes it up again. A second subflow over a link, as a proof that
//!    it works, there is not: the kernel makes one for each endpoint.
//! 7. A server takes two subflows beside the first by default; so does this end, and as many as there are links if
//!    that is more.
//!
//! It outlives its daemon's death better than the other mode (the kernel goes on by itself), and can do less: what is
//! small pays for what is large.

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
use super::super::kernel::{PathManager, refusal};
use super::act::counters;
use super::lines::Turn;
use super::table::Sub;
use super::words::{self, Over};
use super::{Driver, Policy};

/// The one connection.
const HOST: ConnId = ConnId(0);

/// What the policy sees instead of the real connections.
#[derive(Debug, Default)]
pub(super) struct Host {
    open: bool,
    first: Option<LinkId>,
    parts: BTreeMap<LinkId, SubflowId>,
    /// What had passed each when it began: received, sent.
    began: BTreeMap<LinkId, (DataSize, DataSize)>,
    /// Links whose subflows are gone for the policy and backups in truth.
    parked: BTreeSet<LinkId>,
    next: u64,
    /// What ended subflows had carried: received, sent.
    retired: BTreeMap<LinkId, (DataSize, DataSize)>,
    /// Ours, by link.
    endpoints: BTreeMap<LinkId, Vec<Endpoint>>,
}

impl<M: Policy> Driver<M> {
    /// Makes room for a subflow over each link.
    pub(super) fn make_room(&mut self) -> Result<(), PathsError> {
        let (Some(_), Some(manager)) = (&self.host, &self.manager) else { return Ok(()) };
        let told = |error| PathsError::kernel("limits of MPTCP's path manager", error);
        let limits = manager.limits().map_err(told)?;
        let wanted = u32::try_from(self.lines.all.len()).unwrap_or(MOST).min(MOST);
        if limits.subflows < wanted {
            let more = Limits { subflows: wanted, ..limits };
            self.ground.note_limits(limits, more)?;
            let answers = manager.carry_out(vec![more.set(manager.family())]).map_err(told)?;
            if let Some(ack) = answers.iter().find(|ack| ack.error != 0) {
                return Err(told(std::io::Error::from_raw_os_error(ack.error)));
            }
        }
        Ok(())
    }

    /// Makes room for subflows, and takes over what a run that crashed has left.
    pub(super) fn begin(&mut self) -> Result<(), PathsError> {
        self.make_room()?;
        self.host_links(&[]);
        let (Some(host), Some(manager)) = (&mut self.host, &self.manager) else { return Ok(()) };
        let mut gone = Vec::new();
        for endpoint in manager.endpoints().unwrap_or_default() {
            let line = self.lines.of(endpoint.address, 0).filter(|line| line.up);
            match line {
                _ if !self.ground.is_ours(endpoint.address) => {}
                Some(line) if host.first == Some(line.link) => {}
                Some(line) => host.endpoints.entry(line.link).or_default().push(endpoint),
                None => gone.push(endpoint.delete(manager.family())),
            }
        }
        let _ = manager.carry_out(gone);
        Ok(())
    }

    /// Links or addresses came or went: the first link has its endpoint, and none is kept of one that is down.
    pub(super) fn host_links(&mut self, turns: &[Turn]) {
        let (Some(host), Some(manager)) = (&mut self.host, &self.manager) else { return };
        for turn in turns {
            if let Turn::Down(link) = turn {
                let gone = host.endpoints.remove(link).unwrap_or_default();
                let gone = gone.iter().filter(|endpoint| self.ground.is_ours(endpoint.address));
                let _ = manager.carry_out(gone.map(|e| e.delete(manager.family())).collect());
            }
        }
        if host.first.is_none_or(|first| self.lines.line(first).is_none_or(|line| !line.up)) {
            host.first = self.lines.all.iter().find(|line| line.up).map(|line| line.link);
        }
        if let Some(first) = host.first
            && !host.endpoints.contains_key(&first)
            && let Some(refused) = self.add_endpoints(first, false)
        {
            tracing::warn!(?refused, "the first link has no endpoint: it cannot be suspended");
        }
        self.host_addresses();
    }

    /// A link that has endpoints has one for an address of each family, and none for addresses that are gone.
    fn host_addresses(&mut self) {
        let (Some(host), Some(manager)) = (&mut self.host, &self.manager) else { return };
        let (mut gone, mut incomplete) = (Vec::new(), Vec::new());
        for line in self.lines.all.iter().filter(|line| line.up) {
            let Some(endpoints) = host.endpoints.get_mut(&line.link) else { continue };
            let backup = endpoints.iter().any(|endpoint| endpoint.backup);
            let lost = endpoints.extract_if(.., |endpoint| !line.addresses.contains(&endpoint.address));
            let ours = lost.filter(|endpoint| self.ground.is_ours(endpoint.address));
            gone.extend(ours.map(|endpoint| endpoint.delete(manager.family())));
            let is_bare = |address: &IpAddr| {
                !endpoints.iter().any(|endpoint| endpoint.address.is_ipv4() == address.is_ipv4())
            };
            if line.lasting.iter().any(is_bare) {
                incomplete.push((line.link, backup));
            }
        }
        if let Err(error) = manager.carry_out(gone) {
            tracing::warn!(%error, "endpoints of lost addresses could not be removed");
        }
        for (link, backup) in incomplete {
            if let Some(refused) = self.add_endpoints(link, backup) {
                tracing::warn!(?refused, "a new address has no endpoint");
            }
        }
    }

    /// There are more real connections or subflows.
    pub(super) fn host_grew(&mut self) {
        let Some(host) = &mut self.host else { return };
        if !host.open {
            host.open = true;
            self.tell(Input::Opened { conn: HOST, adopted: false, deny_join_id0: false });
        }
        for line in 0..self.lines.all.len() {
            let Some(link) = self.lines.all.get(line).map(|line| line.link) else { continue };
            let mut over = self.table.conns.values().flat_map(|of| &of.subflows).filter(|s| s.link == Some(link));
            let Some(one) = over.next() else { continue };
            let all = self.carried(link);
            let began = (all.received, all.sent);
            let Some(host) = &mut self.host else { return };
            if host.parts.contains_key(&link) || host.parked.contains(&link) {
                continue;
            }
            let id = SubflowId(host.next);
            host.next += 1;
            host.parts.insert(link, id);
            host.began.insert(link, began);
            let initial = host.first == Some(link);
            let (backup, rtt) = (one.counters.backup, one.counters.rtt);
            let subflow = EstablishedSubflow { id, link: Some(link), initial, backup, rtt };
            self.tell(Input::SubflowUp { conn: HOST, subflow });
        }
    }

    /// These real subflows are gone from the table.
    pub(super) fn host_lost(&mut self, subflows: &[Sub]) {
        let Some(host) = &mut self.host else { return };
        for sub in subflows {
            if let Some(link) = sub.link {
                let (received, sent) = host.retired.entry(link).or_default();
                *received += sub.counters.received;
                *sent += sub.counters.sent;
            }
        }
        if self.table.conns.is_empty() {
            self.host_closed();
            return;
        }
        host.parked.retain(|link| self.table.over(*link) > 0);
        let empty: Vec<LinkId> = host.parts.keys().copied().filter(|link| self.table.over(*link) == 0).collect();
        for link in empty {
            if let Some(subflow) = self.host.as_mut().and_then(|host| host.parts.remove(&link)) {
                self.tell(Input::SubflowDown { conn: HOST, subflow, reason: CloseReason::Closed });
            }
        }
    }

    fn host_closed(&mut self) {
        let Some(host) = self.host.as_mut().filter(|host| host.open) else { return };
        host.open = false;
        host.parts.clear();
        host.parked.clear();
        host.began.clear();
        host.retired.clear();
        self.host_rests();
        self.tell(Input::Closed { conn: HOST });
    }

    /// Without connections there is the first link's endpoint alone.
    pub(super) fn host_rests(&mut self) {
        let (Some(host), Some(manager)) = (&mut self.host, &self.manager) else { return };
        if host.open {
            return;
        }
        let mut last = Vec::new();
        for (link, endpoints) in &mut host.endpoints {
            if host.first == Some(*link) {
                for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.backup) {
                    endpoint.backup = false;
                    last.push(endpoint.set_backup(manager.family()));
                }
            } else {
                let ours = endpoints.iter().filter(|endpoint| self.ground.is_ours(endpoint.address));
                last.extend(ours.map(|endpoint| endpoint.delete(manager.family())));
            }
        }
        let first = host.first;
        host.endpoints.retain(|link, _| first == Some(*link));
        if let Err(error) = manager.carry_out(last) {
            tracing::warn!(%error, "endpoints of MPTCP's path manager could not be removed");
        }
    }

    pub(super) fn host_order(&mut self, command: CommandId, what: Command) {
        let link = match what {
            Command::Join { link, .. } => Some(link),
            Command::SetBackup { subflow, .. } | Command::Destroy { subflow } => {
                self.host.as_ref().and_then(|host| host.link_of(subflow))
            }
        };
        let has = link.and_then(|link| self.host.as_ref()?.parts.get(&link).copied());
        if let (Command::Join { .. }, Some(_)) = (what, has) {
            tracing::debug!("a second subflow over one link cannot be had of the kernel's own path manager");
            self.tell(Input::CommandDone { command, error: Some(CommandError::NotYet) });
            return;
        }
        let refused = match what {
            Command::Join { link, backup } => self.add_endpoints(link, backup),
            Command::SetBackup { subflow, backup } => self.change_endpoints(subflow, backup),
            Command::Destroy { subflow } => self.delete_endpoints(subflow),
        };
        let parked = link.filter(|link| self.host.as_ref().is_some_and(|host| host.parked.contains(link)));
        self.host_remember(what, link, refused, parked.is_some());
        self.tell(Input::CommandDone { command, error: refused });
        match (what, parked, &mut self.host) {
            (Command::Destroy { subflow }, Some(link), Some(host)) if refused.is_none() => {
                host.parts.remove(&link);
                self.tell(Input::SubflowDown { conn: HOST, subflow, reason: CloseReason::Closed });
            }
            (Command::Join { .. }, Some(link), Some(host)) if refused.is_none() => {
                host.parked.remove(&link);
                self.host_grew();
            }
            _ => {}
        }
    }

    /// What was done for the host was done for each connection; why each is carried as it is remains the last reason.
    fn host_remember(&mut self, what: Command, link: Option<LinkId>, refused: Option<CommandError>, parked: bool) {
        let name = link.and_then(|link| self.lines.line(link)).map_or("another interface", |line| line.name());
        let asked = words::asked(what, name, Over::default());
        let mut words = words::answered(asked, refused, None);
        match refused {
            None => self.totals.commands += 1,
            Some(refused) if words::late(refused, None).is_some() => {}
            Some(_) => self.totals.refused += 1,
        }
        if parked && refused.is_none() && matches!(what, Command::Destroy { .. }) {
            words += ": its endpoint stays, so it is suspended";
        }
        tracing::info!("{words}");
        let now = self.now();
        for of in self.table.conns.values_mut() {
            of.remember(now, words.clone());
        }
    }

    /// What is decided for the host is decided for each connection.
    pub(super) fn host_note(&mut self, now: Instant, reason: &str) {
        for of in self.table.conns.values_mut() {
            of.explain(now, reason.to_owned());
        }
    }

    fn add_endpoints(&mut self, link: LinkId, backup: bool) -> Option<CommandError> {
        let Some(line) = self.lines.line(link).filter(|line| line.up) else { return Some(CommandError::NoAddress) };
        let Some(manager) = &self.manager else { return Some(CommandError::NotPermitted) };
        let have = self.host.as_ref().and_then(|host| host.endpoints.get(&link)).map_or(&[][..], Vec::as_slice);
        let one_of_each = [true, false].into_iter().filter_map(|v4| {
            let mut fit = line.lasting.iter().filter(|address| address.is_ipv4() == v4);
            let has = |address: &&IpAddr| have.iter().any(|endpoint| endpoint.address == **address);
            let address = fit.clone().find(has).or_else(|| fit.next())?;
            Some(Endpoint::for_subflows(*address, line.index, backup))
        });
        let wanted: Vec<Endpoint> = one_of_each.collect();
        let noted =
            manager.endpoints().map_err(|error| PathsError::kernel("endpoints of MPTCP's path manager", error));
        if let Err(error) = noted.and_then(|there| self.ground.note_endpoints(&wanted, &there)) {
            tracing::warn!(%error, "no endpoint is added");
            return Some(CommandError::Other(rustix::io::Errno::IO.raw_os_error()));
        }
        let requests = wanted.iter().map(|endpoint| endpoint.add(manager.family())).collect();
        let answers = match carried(manager, requests) {
            Ok(answers) => answers,
            Err(refused) => return Some(refused),
        };
        // Their ids are the kernel's to give.
        let all = manager.endpoints().unwrap_or_default();
        let ours = all.into_iter().filter(|have| wanted.iter().any(|wanted| wanted.address == have.address));
        let mut ours: Vec<Endpoint> = ours.collect();
        if ours.is_empty() {
            return answers.iter().find_map(refusal).or(Some(CommandError::NoAddress));
        }
        // One that was there already may have the other priority.
        let other: Vec<Request> = ours
            .iter_mut()
            .filter(|endpoint| endpoint.backup != backup)
            .map(|endpoint| {
                endpoint.backup = backup;
                endpoint.set_backup(manager.family())
            })
            .collect();
        let changed = carried(manager, other);
        self.host.as_mut()?.endpoints.insert(link, ours);
        changed.err()
    }

    fn change_endpoints(&mut self, subflow: SubflowId, backup: bool) -> Option<CommandError> {
        let Some(manager) = &self.manager else { return Some(CommandError::NotPermitted) };
        let link = self.host.as_ref()?.link_of(subflow);
        let Some(link) = link else { return Some(CommandError::NoSubflow) };
        let Some(endpoints) = self.host.as_mut()?.endpoints.get_mut(&link) else {
            // Somebody else's, of which nothing was needed until now.
            return self.add_endpoints(link, backup);
        };
        for endpoint in &mut *endpoints {
            endpoint.backup = backup;
        }
        let requests = endpoints.iter().map(|endpoint| endpoint.set_backup(manager.family())).collect();
        match carried(manager, requests) {
            Ok(answers) => answers.iter().find_map(refusal),
            Err(refused) => Some(refused),
        }
    }

    fn delete_endpoints(&mut self, subflow: SubflowId) -> Option<CommandError> {
        let Some(manager) = &self.manager else { return Some(CommandError::NotPermitted) };
        let host = self.host.as_mut()?;
        let Some(link) = host.link_of(subflow) else { return Some(CommandError::NoSubflow) };
        let ours = |have: &Vec<Endpoint>| have.iter().all(|endpoint| self.ground.is_ours(endpoint.address));
        if host.first == Some(link) || !host.endpoints.get(&link).is_some_and(ours) {
            // Connections begin on the first; without its endpoint they could not be suspended any more. And what is
            // somebody else's stays.
            let refused = self.add_endpoints(link, true);
            if let (None, Some(host)) = (refused, &mut self.host) {
                host.parked.insert(link);
            }
            return refused;
        }
        let gone = host.endpoints.remove(&link).unwrap_or_default();
        match carried(manager, gone.iter().map(|endpoint| endpoint.delete(manager.family())).collect()) {
            Ok(answers) => answers.iter().find_map(refusal),
            Err(refused) => Some(refused),
        }
    }

    /// Looks at all real subflows, and tells the sums.
    pub(super) fn host_look(&mut self) {
        let mut asked = Vec::new();
        let mut whose = Vec::new();
        for (conn, of) in &self.table.conns {
            for sub in &of.subflows {
                asked.push(sub.asked());
                whose.push((*conn, sub.id));
            }
        }
        let now = self.now();
        if asked.len() <= FEW {
            let found = self.found(&asked);
            for ((conn, id), answer) in whose.into_iter().zip(found) {
                let Some(counters) = answer.there().and_then(counters) else { continue };
                let of = self.table.conn(conn);
                if let Some(sub) = of.and_then(|of| of.subflows.iter_mut().find(|sub| sub.id == id)) {
                    sub.saw(now, counters);
                }
            }
        } else {
            let table = &mut self.table;
            let told = self.sockets.subflows(state::CAN_TRANSFER, |socket| {
                let (Some(subflow), Some(counters)) = (socket.subflow, counters(socket)) else { return };
                let of = table.conn(ConnId(subflow.token));
                let same = |sub: &&mut Sub| sub.local == socket.local && sub.remote == socket.remote;
                if let Some(sub) = of.and_then(|of| of.subflows.iter_mut().find(same)) {
                    sub.saw(now, counters);
                }
            });
            if let Err(error) = told {
                tracing::warn!(%error, "sock_diag does not answer");
            }
        }
        let parts: Vec<(LinkId, SubflowId)> =
            self.host.iter().flat_map(|host| &host.parts).map(|(link, id)| (*link, *id)).collect();
        for (link, subflow) in parts {
            let counters = self.sum(link);
            self.tell(Input::Counters { conn: HOST, subflow, counters });
        }
    }

    /// What the policy hears of a link's subflow: from zero on, whatever passed the link before it.
    fn sum(&self, link: LinkId) -> Counters {
        let all = self.carried(link);
        let began = self.host.as_ref().and_then(|host| host.began.get(&link)).copied().unwrap_or_default();
        Counters { received: all.received - began.0, sent: all.sent - began.1, ..all }
    }

    fn carried(&self, link: LinkId) -> Counters {
        let retired = self.host.as_ref().and_then(|host| host.retired.get(&link)).copied().unwrap_or_default();
        let mut sum = Counters { received: retired.0, sent: retired.1, ..Counters::default() };
        let subs = self.table.conns.values().flat_map(|of| &of.subflows).filter(|sub| sub.link == Some(link));
        let mut none = true;
        for counters in subs.map(|sub| sub.counters) {
            sum.received += counters.received;
            sum.sent += counters.sent;
            sum.outstanding += counters.outstanding;
            let least = |a: Option<_>, b: Option<_>| a.into_iter().chain(b).min();
            sum.rtt = least(sum.rtt, counters.rtt);
            sum.receiver_rtt = least(sum.receiver_rtt, counters.receiver_rtt);
            // A link is as dead, or as suspended, as the liveliest of its subflows.
            sum.timeouts = if none { counters.timeouts } else { sum.timeouts.min(counters.timeouts) };
            sum.backup = counters.backup && (none || sum.backup);
            sum.peer_backup = counters.peer_backup && (none || sum.peer_backup);
            none = false;
        }
        sum
    }
}

impl Host {
    fn link_of(&self, subflow: SubflowId) -> Option<LinkId> {
        self.parts.iter().find(|(_, id)| **id == subflow).map(|(link, _)| *link)
    }
}

fn carried(manager: &PathManager, requests: Vec<Request>) -> Result<Vec<Ack>, CommandError> {
    manager.carry_out(requests).map_err(|error| CommandError::Other(error.raw_os_error().unwrap_or(0)))
}

/// `MPTCP_PM_ADDR_MAX`.
const MOST: u32 = 8;
/// Subflows that are looked at one by one. chosen: above it a dump of all is as cheap.
const FEW: usize = 256;
