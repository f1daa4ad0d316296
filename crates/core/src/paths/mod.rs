//! MPTCP path management: decides which links carry each connection, and when. The kernel itself has no such
//! policy.
//!
//! Inputs are the kernel's events about MPTCP connections and their subflows, counters that were requested, and the
//! state of the links. Outputs are commands for the kernel's path manager (join, change priority, destroy) and
//! requests to read counters.
//!
//! 1. One machine decides for all connections of a host, because they share its radios: a radio that one connection
//!    keeps awake is cheap for the others.
//! 2. The driver handles addresses, ports and address ids; this module knows only links, connections and subflows.
//! 3. A command alone proves nothing. A subflow exists when it is reported ([`Input::SubflowUp`]), and is suspended
//!    when its byte counters stop.
//! 4. The driver reads counters only on request ([`Output::Poll`]), so ten thousand idle connections cost next to
//!    nothing. The cost of an event is logarithmic in the number of connections; only a change of a link concerns
//!    all of them.
//! 5. Each event is processed in four steps: it updates the connection's state; the policy decides again
//!    (`policy`); commands make the subflows equal to the decision (`reconcile`); the connection sets its next
//!    timer.

mod black_hole;
mod config;
mod conn;
mod event;
mod explanation;
mod host_state;
mod idle_poll;
mod late_bytes;
mod link_mtu;
mod links;
mod liveness;
mod outage;
mod path;
mod policy;
mod polling;
mod reason;
mod reconcile;
mod sampling;
pub mod send_gate;
mod status;
mod subflow;
mod subflow_set;
#[cfg(test)]
mod tests;
mod throughput;
mod traffic;
mod trial_cache;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::machine::Machine;
use crate::units::{Duration, Instant};

pub use config::{Config, Goal, LinkConfig, Policy};
pub use event::{
    CloseReason, Command, CommandError, CommandId, ConnId, Counters, EstablishedSubflow, Input, IpFamily, Output,
    SubflowId,
};
pub use status::{ConnStatus, LinkStatus, SubflowStatus};

use conn::Conn;
use host_state::HostState;
use idle_poll::IdlePoller;
use polling::Activity;

/// State machine of the path management; see the [module documentation](self).
#[derive(Debug)]
pub struct Paths {
    host: HostState,
    conns: BTreeMap<ConnId, Conn>,
    timers: BTreeSet<(Instant, ConnId)>,
    idle_poller: IdlePoller,
}

/// Purpose of a timer of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {
    /// A connection must be polled, or one of its time limits (of a join, a retry or a dead path) is over.
    Conn(ConnId),
    /// A batch of idle connections must be polled.
    IdlePoll,
    /// A link's lowered MTU is to be raised again.
    Mtu,
}

impl Paths {
    /// A machine with the links of the configuration, all of them down.
    pub fn new(config: Config) -> Self {
        Self {
            host: HostState::new(config),
            conns: BTreeMap::new(),
            timers: BTreeSet::new(),
            idle_poller: IdlePoller::default(),
        }
    }

    /// Processes an event of one connection: `change` updates its state, then the policy decides again if
    /// `should_reevaluate`.
    fn update_conn(&mut self, id: ConnId, should_reevaluate: bool, change: impl FnOnce(&mut Conn, &mut HostState)) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        change(conn, &mut self.host);
        if should_reevaluate {
            conn.reevaluate(&mut self.host);
        }
        self.reschedule(id);
    }

    /// Updates the connection's entries in the timer queue and in the queue of idle connections.
    fn reschedule(&mut self, id: ConnId) {
        let now = self.host.now;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let timer = conn.deadline(&self.host).map(|at| at.max(now + MIN_TIMER_DELAY));
        if timer != conn.polling.timer {
            if let Some(at) = conn.polling.timer {
                self.timers.remove(&(at, id));
            }
            if let Some(at) = timer {
                self.timers.insert((at, id));
            }
            conn.polling.timer = timer;
        }
        match (conn.polling.activity(), conn.polling.idle_poll_key) {
            (Activity::Idle, None) => conn.polling.idle_poll_key = Some(self.idle_poller.add(now, id)),
            (Activity::Busy, Some(at)) => {
                self.idle_poller.remove(at, id);
                conn.polling.idle_poll_key = None;
            }
            _ => {}
        }
    }

    fn close(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        conn.withdraw(&mut self.host);
        if let Some(at) = conn.polling.timer {
            self.timers.remove(&(at, id));
        }
        if let Some(at) = conn.polling.idle_poll_key {
            self.idle_poller.remove(at, id);
        }
    }

    /// Processes a change of a link, which concerns all connections.
    fn on_link_change(&mut self, index: usize, up: bool) {
        let Some(link) = self.host.links.get_mut(index) else { return };
        let conn_ids: Vec<ConnId> = self.conns.keys().copied().collect();
        if link.up == up {
            // The link was already up: it has got an address of a further family.
            for id in conn_ids.into_iter().filter(|_| up) {
                self.update_conn(id, true, |conn, host| outage::on_address_added(&mut conn.subflows, host, index));
            }
            return;
        }
        link.up = up;
        self.host.reset_mtu(index);
        self.host.on_link_recovered(index);
        for id in conn_ids {
            self.update_conn(id, true, |conn, host| conn.on_link_change(host, index, up));
        }
    }
}

impl Machine for Paths {
    type Input = Input;
    type Output = Output;
    type Reason = TimerReason;

    fn handle(&mut self, now: Instant, input: Input) {
        self.host.now = self.host.now.max(now);
        let now = self.host.now;
        match input {
            Input::LinkUp { link } | Input::LinkDown { link } => {
                let up = matches!(input, Input::LinkUp { .. });
                if let Some(index) = self.host.link_index(link) {
                    self.on_link_change(index, up);
                }
            }
            Input::Interface { link, mtu, has_ipv4 } => {
                if let Some(index) = self.host.link_index(link) {
                    self.host.on_interface(index, mtu, has_ipv4);
                }
            }
            Input::LinkAdded { config } => {
                if self.host.add_link(config) {
                    let links = self.host.links.len();
                    self.conns.values_mut().for_each(|conn| conn.subflows.set_link_count(links, now));
                }
            }
            Input::InterfaceCounters { link, received, sent } => {
                let Some(index) = self.host.link_index(link) else { return };
                let HostState { links, meter, .. } = &mut self.host;
                let Some(link) = links.get_mut(index) else { return };
                let unattributed = link.on_interface_counters(meter, now, [received, sent]);
                self.idle_poller.on_unattributed_bytes(now, unattributed);
            }
            Input::Opened { conn, adopted, deny_join_id0 } => {
                if !self.conns.contains_key(&conn) {
                    let mut opened = Conn::new(conn, self.host.links.len(), now);
                    (opened.adopted, opened.subflows.joins_denied) = (adopted, deny_join_id0);
                    self.host.busy_conns += 1;
                    self.conns.insert(conn, opened);
                    self.reschedule(conn);
                }
            }
            Input::AddressAnnounced { conn } => {
                self.update_conn(conn, true, |conn, host| conn.on_address_announced(host.now))
            }
            Input::Closed { conn } => self.close(conn),
            Input::SubflowUp { conn, subflow } => {
                self.update_conn(conn, true, |conn, host| conn.on_subflow_up(host, &subflow));
            }
            Input::SubflowDown { conn, subflow, reason } => {
                self.update_conn(conn, true, |conn, host| conn.on_subflow_down(host, subflow, reason));
            }
            Input::Counters { conn, subflow, counters } => {
                let mut is_complete = false;
                self.update_conn(conn, false, |conn, host| is_complete = conn.on_counters(host, subflow, counters));
                if is_complete {
                    self.update_conn(conn, true, Conn::on_poll_complete);
                }
            }
            Input::CommandDone { command, error } => {
                let Some((id, issued)) = self.host.take_command(command) else { return };
                if error == Some(CommandError::NoConnection) {
                    self.close(id);
                } else {
                    self.update_conn(id, error.is_some(), |conn, host| {
                        conn.on_command_done(host, command, issued, error)
                    });
                }
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.host.now = self.host.now.max(now);
        let now = self.host.now;
        self.host.raise_mtus();
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.update_conn(id, true, Conn::on_timer);
            if self.timers.contains(&(at, id)) {
                // The connection has not moved its deadline. Drop it, because a deadline in the past would stop
                // time.
                self.timers.remove(&(at, id));
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.polling.timer = None;
                }
            }
        }
        for _ in 0..self.idle_poller.start_batch(now) {
            let Some((_, id)) = self.idle_poller.rotate_oldest(now) else { break };
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.polling.idle_poll_key = Some(now);
            conn.request_poll(&mut self.host);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.host.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, TimerReason)> {
        let conn = self.timers.first().map(|(at, id)| (*at, TimerReason::Conn(*id)));
        let idle_poll = self.idle_poller.deadline().map(|at| (at, TimerReason::IdlePoll));
        let mtu = self.host.mtu_deadline().map(|at| (at, TimerReason::Mtu));
        conn.into_iter().chain(idle_poll).chain(mtu).min_by_key(|(at, _)| *at)
    }
}

/// Shortest time between two timers of a connection, so that time advances between them.
const MIN_TIMER_DELAY: Duration = Duration::from_millis(1);
