//! The joules of a download: what the machine hears and asks for, told to a meter.
//!
//! In: the inputs and outputs of `core::fetch` with their times, live from a run or later from its log. Out: an
//! [`Account`].
//!
//! 1. A run and its log give the same joules, because both go through here.
//! 2. Signs of traffic are: a connection or a request begun (a radio wakes with the first of them), an answer's head, and
//!    body bytes. Acknowledgements, retransmissions and headers are not counted: the models' prices per bit are those of
//!    files, not of packets.

use std::collections::BTreeMap;

use marline_core::energy::{Direction, EnergyBreakdown, Meter, Model};
use marline_core::fetch::{ConnId, Input, Output, ReqId};
use marline_core::link::{LinkId, LinkProfile};
use marline_core::units::{DataSize, Instant};

/// A download as a meter sees it.
#[derive(Clone, Debug)]
pub struct Joules {
    meter: Meter,
    now: Instant,
    links: BTreeMap<LinkId, (LinkProfile, DataSize)>,
    conns: BTreeMap<ConnId, LinkId>,
    requests: BTreeMap<ReqId, (ConnId, LinkId)>,
}

impl Joules {
    /// Nothing has happened yet.
    pub fn new(model: Model) -> Self {
        Self {
            meter: Meter::new(model, Instant::ZERO),
            now: Instant::ZERO,
            links: BTreeMap::new(),
            conns: BTreeMap::new(),
            requests: BTreeMap::new(),
        }
    }

    /// The machine heard this.
    pub fn input(&mut self, at: Instant, input: &Input) {
        self.tick(at);
        match input {
            Input::LinkUp { link, profile } => {
                self.meter.add_link(self.now, *link, profile.kind);
                self.links.entry(*link).or_insert_with(|| (profile.clone(), DataSize::ZERO));
            }
            Input::Connected { conn, .. } => self.sign(self.conns.get(conn).copied(), Direction::Down),
            Input::Head { req, .. } => self.sign(self.requests.get(req).map(|(_, link)| *link), Direction::Down),
            Input::Data { req, len } => {
                if let Some((_, link)) = self.requests.get(req) {
                    self.meter.on_bytes(self.now, *link, Direction::Down, *len);
                    if let Some((_, carried)) = self.links.get_mut(link) {
                        *carried += *len;
                    }
                }
            }
            Input::End { req } | Input::Aborted { req, .. } => {
                self.requests.remove(req);
            }
            Input::Closed { conn, .. } => self.forget(*conn),
            _ => {}
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, at: Instant) {
        self.now = self.now.max(at);
    }

    /// The machine asked for this, in the moment last told of.
    pub fn output(&mut self, output: &Output) {
        match output {
            Output::Connect { conn, link, .. } => {
                self.conns.insert(*conn, *link);
                self.sign(Some(*link), Direction::Up);
            }
            Output::Request { req, conn, .. } => {
                let link = self.conns.get(conn).copied();
                if let Some(link) = link {
                    self.requests.insert(*req, (*conn, link));
                }
                self.sign(link, Direction::Up);
            }
            Output::Cancel { req } => {
                self.requests.remove(req);
            }
            Output::Close { conn } => self.forget(*conn),
            _ => {}
        }
    }

    /// Everything up to now, with the tails to come.
    pub fn account(&self) -> EnergyBreakdown {
        self.meter.energy_until_idle(self.now)
    }

    /// Every link that there was, with the body bytes that came over it.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &LinkProfile, DataSize)> {
        self.links.iter().map(|(link, (profile, carried))| (*link, profile, *carried))
    }

    /// The newest time told of.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The meter, for what its radios do now.
    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// A connection is over, and so are its requests.
    fn forget(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
        self.requests.retain(|_, (of, _)| *of != conn);
    }

    fn sign(&mut self, link: Option<LinkId>, direction: Direction) {
        if let Some(link) = link {
            self.meter.on_bytes(self.now, link, direction, DataSize::ZERO);
        }
    }
}
