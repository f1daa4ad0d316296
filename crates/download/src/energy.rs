//! Energy of a download: feeds an energy meter with the inputs and outputs of the machine.
//!
//! The inputs and outputs of `core::fetch` come from a running download, or later from its decision log. The result
//! is an [`EnergyBreakdown`].
//!
//! 1. A run and the replay of its log give the same energy, because both use this type.
//! 2. Radio activity is a connection or request that begins (the first one wakes the radio), a response head, and
//!    body bytes. ACKs, retransmissions and headers are not counted, because the energy per bit of the models
//!    refers to files, not to packets.

use std::collections::BTreeMap;

use marline_core::energy::{Direction, EnergyBreakdown, Meter, Model};
use marline_core::fetch::{ConnId, Input, Output, ReqId};
use marline_core::link::{LinkId, LinkProfile};
use marline_core::units::{DataSize, Instant};

/// Translates the events of a download into radio activity.
#[derive(Clone, Debug)]
pub struct DownloadEnergy {
    meter: Meter,
    now: Instant,
    links: BTreeMap<LinkId, (LinkProfile, DataSize)>,
    conn_links: BTreeMap<ConnId, LinkId>,
    request_links: BTreeMap<ReqId, (ConnId, LinkId)>,
}

impl DownloadEnergy {
    /// A meter for a download that has not begun.
    pub fn new(model: Model) -> Self {
        Self {
            meter: Meter::new(model, Instant::ZERO),
            now: Instant::ZERO,
            links: BTreeMap::new(),
            conn_links: BTreeMap::new(),
            request_links: BTreeMap::new(),
        }
    }

    /// Records an input of the machine.
    pub fn on_input(&mut self, at: Instant, input: &Input) {
        self.tick(at);
        match input {
            Input::LinkUp { link, profile } => {
                self.meter.add_link(self.now, *link, profile.kind);
                self.links.entry(*link).or_insert_with(|| (profile.clone(), DataSize::ZERO));
            }
            Input::Connected { conn, .. } => self.on_traffic(self.conn_links.get(conn).copied(), Direction::Down),
            Input::Head { req, .. } => {
                self.on_traffic(self.request_links.get(req).map(|(_, link)| *link), Direction::Down)
            }
            Input::Data { req, len } => {
                if let Some((_, link)) = self.request_links.get(req) {
                    self.meter.on_bytes(self.now, *link, Direction::Down, *len);
                    if let Some((_, carried)) = self.links.get_mut(link) {
                        *carried += *len;
                    }
                }
            }
            Input::End { req } | Input::Aborted { req, .. } => {
                self.request_links.remove(req);
            }
            Input::Closed { conn, .. } => self.forget_conn(*conn),
            _ => {}
        }
    }

    /// Advances the time.
    pub fn tick(&mut self, at: Instant) {
        self.now = self.now.max(at);
    }

    /// Records an output of the machine, at the time of the latest input or tick.
    pub fn on_output(&mut self, output: &Output) {
        match output {
            Output::Connect { conn, link, .. } => {
                self.conn_links.insert(*conn, *link);
                self.on_traffic(Some(*link), Direction::Up);
            }
            Output::Request { req, conn, .. } => {
                let link = self.conn_links.get(conn).copied();
                if let Some(link) = link {
                    self.request_links.insert(*req, (*conn, link));
                }
                self.on_traffic(link, Direction::Up);
            }
            Output::Cancel { req } => {
                self.request_links.remove(req);
            }
            Output::Close { conn } => self.forget_conn(*conn),
            _ => {}
        }
    }

    /// Energy up to now, including the radio tails that follow.
    pub fn breakdown(&self) -> EnergyBreakdown {
        self.meter.energy_until_idle(self.now)
    }

    /// All links that were ever added, with their received body bytes.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &LinkProfile, DataSize)> {
        self.links.iter().map(|(link, (profile, carried))| (*link, profile, *carried))
    }

    /// Time of the latest input or tick.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The energy meter, which also has the present state of each radio.
    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Forgets a closed connection and its requests.
    fn forget_conn(&mut self, conn: ConnId) {
        self.conn_links.remove(&conn);
        self.request_links.retain(|_, (conn_id, _)| *conn_id != conn);
    }

    fn on_traffic(&mut self, link: Option<LinkId>, direction: Direction) {
        if let Some(link) = link {
            self.meter.on_bytes(self.now, link, direction, DataSize::ZERO);
        }
    }
}
