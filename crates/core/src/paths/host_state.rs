//! State shared by all connections of the host: links, radios, trial results, and the queue of outputs.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::config::{Config, LinkConfig, Policy};
use super::event::{Command, CommandId, ConnId, Output};
use super::link_mtu::{LinkMtu, MtuChange, MtuStep};
use super::links::{Link, LinkSet};
use super::trial_cache::TrialCache;
use crate::energy::{Meter, RadioState};
use crate::link::LinkId;
use crate::units::{Energy, Instant};

/// State of the host, without the connections.
#[derive(Debug)]
pub(super) struct HostState {
    pub(super) config: Config,
    pub(super) now: Instant,
    pub(super) meter: Meter,
    pub(super) links: Vec<Link>,
    /// Bytes that the busy connections have carried in their present bursts.
    pub(super) busy_bytes: u64,
    pub(super) trial_cache: TrialCache,
    /// Number of connections that are not idle.
    pub(super) busy_conns: usize,
    pub(super) outputs: VecDeque<Output>,
    pending_commands: BTreeMap<CommandId, (ConnId, Command)>,
    next_command: u64,
}

impl HostState {
    pub(super) fn new(config: Config) -> Self {
        let mut host = Self {
            links: Vec::new(),
            trial_cache: TrialCache::default(),
            now: Instant::ZERO,
            meter: Meter::new(config.energy.clone(), Instant::ZERO),
            busy_bytes: 0,
            busy_conns: 0,
            outputs: VecDeque::new(),
            pending_commands: BTreeMap::new(),
            next_command: 0,
            config,
        };
        for link in host.config.links.clone() {
            host.add_link(link);
        }
        host
    }

    /// Adds a link, if its number is new and fewer than [`LinkSet::MAX`] exist; returns whether it was added.
    pub(super) fn add_link(&mut self, config: LinkConfig) -> bool {
        let is_new = self.links.len() < LinkSet::MAX && self.link_index(config.id).is_none();
        if is_new {
            self.meter.add_link(self.now, config.id, config.kind);
            self.links.push(Link::new(config));
        }
        is_new
    }

    /// Index of a link; `None`: it is unknown.
    pub(super) fn link_index(&self, link: LinkId) -> Option<usize> {
        self.links.iter().position(|known| known.config.id == link)
    }

    pub(super) fn link(&self, index: usize) -> Option<&Link> {
        self.links.get(index)
    }

    /// Name of a link, for messages.
    pub(super) fn link_name(&self, index: usize) -> String {
        self.links.get(index).map_or_else(|| "?".to_string(), |link| link.config.name.clone())
    }

    /// The links that are up.
    pub(super) fn up_links(&self) -> LinkSet {
        let up = self.links.iter().enumerate().filter(|(_, link)| link.up);
        up.fold(LinkSet::EMPTY, |links, (at, _)| links.with(at))
    }

    /// Those of some links whose radios are not idle.
    pub(super) fn awake_links(&self, links: LinkSet) -> LinkSet {
        let radio = |index: usize| self.link(index).and_then(|link| self.meter.radio(link.config.id));
        let awake = |index: &usize| radio(*index).is_some_and(|radio| radio.state(self.now) != RadioState::Idle);
        links.iter().filter(awake).fold(LinkSet::EMPTY, LinkSet::with)
    }

    /// Energy to wake a link's radio for one packet: promotion and tail.
    pub(super) fn single_packet_energy(&self, index: usize) -> Energy {
        let radio = self.link(index).and_then(|link| self.meter.radio(link.config.id));
        radio.map_or(Energy::ZERO, |radio| radio.model().single_packet_energy())
    }

    /// Queues a command for the driver and returns its number.
    pub(super) fn send_command(&mut self, conn: ConnId, command: Command) -> CommandId {
        let id = CommandId(self.next_command);
        self.next_command += 1;
        self.pending_commands.insert(id, (conn, command));
        self.outputs.push_back(Output::Command { id, conn, command });
        id
    }

    /// Removes a pending command and returns it.
    pub(super) fn take_command(&mut self, command: CommandId) -> Option<(ConnId, Command)> {
        self.pending_commands.remove(&command)
    }

    /// A link recovers from an outage or goes down: earlier rates and results of trials are no longer valid.
    pub(super) fn on_link_recovered(&mut self, index: usize) {
        if self.config.policy == Policy::Marline {
            self.trial_cache.forget_link(index);
            if let Some(link) = self.links.get_mut(index) {
                link.on_recovery(&self.config, self.now);
            }
        }
    }

    /// Lowers a link's MTU by one step, for a subflow established at `established_at`.
    pub(super) fn lower_mtu(&mut self, index: usize, established_at: Instant) -> MtuStep {
        let (now, hold_time) = (self.now, self.config.raise_mtu_after);
        let mut result = MtuStep::KnownUseless;
        self.change_mtu(index, |mtu, name| {
            let (step, change) = mtu.lower(now, established_at, hold_time, name);
            result = step;
            change
        });
        result
    }

    /// Confirms the step on trial: data was carried with it.
    pub(super) fn confirm_mtu(&mut self, index: usize) {
        let (now, hold_time) = (self.now, self.config.raise_mtu_after);
        self.change_mtu(index, |mtu, name| mtu.confirm(now, hold_time, name));
    }

    /// Undoes a step on trial that was wrong, or for which no data was seen.
    pub(super) fn undo_mtu(&mut self, index: usize) {
        let (now, max_pause) = (self.now, self.config.raise_mtu_after);
        self.change_mtu(index, |mtu, name| mtu.undo(now, max_pause, name));
    }

    /// Ends a trial whose connection can no longer show a result.
    pub(super) fn abandon_mtu_trial(&mut self, index: usize) {
        let now = self.now;
        self.change_mtu(index, |mtu, name| mtu.abandon_trial(now, name));
    }

    /// Restores the MTU when the link comes up or goes down.
    pub(super) fn reset_mtu(&mut self, index: usize) {
        self.change_mtu(index, LinkMtu::reset);
    }

    /// Records the MTU and the address families of the interface.
    pub(super) fn on_interface(&mut self, index: usize, interface_mtu: u16, has_ipv4: bool) {
        self.change_mtu(index, |mtu, name| mtu.on_interface(interface_mtu, has_ipv4, name));
    }

    /// Raises MTUs whose time is over.
    pub(super) fn raise_mtus(&mut self) {
        let (now, max_pause) = (self.now, self.config.raise_mtu_after);
        for index in 0..self.links.len() {
            self.change_mtu(index, |mtu, name| mtu.raise_if_due(now, max_pause, name));
        }
    }

    pub(super) fn mtu_deadline(&self) -> Option<Instant> {
        self.links.iter().filter_map(|link| link.mtu.deadline()).min()
    }

    /// Passes a change of a link's MTU to the driver.
    fn change_mtu(&mut self, index: usize, change: impl FnOnce(&mut LinkMtu, &str) -> Option<MtuChange>) {
        let Some(link) = self.links.get_mut(index) else { return };
        if let Some(MtuChange { mtu, reason }) = change(&mut link.mtu, &link.config.name) {
            self.outputs.push_back(Output::SetMtu { link: link.config.id, mtu, reason });
        }
    }
}
