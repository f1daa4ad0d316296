//! State shared by all connections of the host: links, radios, trial results, and the queue of outputs.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::config::{Config, LinkConfig};
use super::event::{Command, CommandId, ConnId, Output};
use super::links::{Link, LinkSet};
use super::policy::TrialCache;
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
}
