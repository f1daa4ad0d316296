//! What all connections of the host have in common: links, radios, and the way to the driver.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::config::{Config, LinkTerms};
use super::decide::Trials;
use super::event::{Command, CommandId, ConnId, Output};
use super::links::{Link, Links};
use crate::energy::{Meter, State};
use crate::link::LinkId;
use crate::units::{Energy, Instant};

/// Everything but the connections.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) config: Config,
    pub(super) now: Instant,
    pub(super) meter: Meter,
    pub(super) links: Vec<Link>,
    /// What busy connections have carried in their present stretches, in bytes.
    pub(super) passed: u64,
    pub(super) trials: Trials,
    /// Connections that are not idle.
    pub(super) busy: usize,
    pub(super) out: VecDeque<Output>,
    pending: BTreeMap<CommandId, (ConnId, Command)>,
    commands: u64,
}

impl Host {
    pub(super) fn new(config: Config) -> Self {
        let mut host = Self {
            links: Vec::new(),
            trials: Trials::default(),
            now: Instant::ZERO,
            meter: Meter::new(config.energy.clone(), Instant::ZERO),
            passed: 0,
            busy: 0,
            out: VecDeque::new(),
            pending: BTreeMap::new(),
            commands: 0,
            config,
        };
        for terms in host.config.links.clone() {
            host.add(terms);
        }
        host
    }

    /// There is one more link, if its number is new and there is room for it; says whether it was added.
    pub(super) fn add(&mut self, terms: LinkTerms) -> bool {
        let new = self.links.len() < Links::MAX && self.place(terms.link).is_none();
        if new {
            self.meter.on_link(self.now, terms.link, terms.kind);
            self.links.push(Link::new(terms));
        }
        new
    }

    /// A link's place; none: it was never told of.
    pub(super) fn place(&self, link: LinkId) -> Option<usize> {
        self.links.iter().position(|known| known.terms.link == link)
    }

    pub(super) fn link(&self, at: usize) -> Option<&Link> {
        self.links.get(at)
    }

    /// Its name, for people.
    pub(super) fn name(&self, at: usize) -> String {
        self.links.get(at).map_or_else(|| "?".to_string(), |link| link.terms.name.clone())
    }

    /// Links that are up.
    pub(super) fn up(&self) -> Links {
        let up = self.links.iter().enumerate().filter(|(_, link)| link.up);
        up.fold(Links::NONE, |links, (at, _)| links.with(at))
    }

    /// Those of some links whose radios are awake.
    pub(super) fn awake(&self, links: Links) -> Links {
        let radio = |at: usize| self.link(at).and_then(|link| self.meter.radio(link.terms.link));
        let awake = |at: &usize| radio(*at).is_some_and(|radio| radio.state(self.now) != State::Idle);
        links.iter().filter(awake).fold(Links::NONE, Links::with)
    }

    /// What it costs to wake a link's radio for one packet.
    pub(super) fn one_packet(&self, at: usize) -> Energy {
        let radio = self.link(at).and_then(|link| self.meter.radio(link.terms.link));
        radio.map_or(Energy::ZERO, |radio| radio.model().one_packet())
    }

    /// Asks for a command.
    pub(super) fn command(&mut self, conn: ConnId, what: Command) -> CommandId {
        let command = CommandId(self.commands);
        self.commands += 1;
        self.pending.insert(command, (conn, what));
        self.out.push_back(Output::Do { command, conn, what });
        command
    }

    /// What a command was, once.
    pub(super) fn answered(&mut self, command: CommandId) -> Option<(ConnId, Command)> {
        self.pending.remove(&command)
    }
}
