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
pub struct DownloadEnergy {
    meter: Meter,
    now: Instant,
    links: BTreeMap<LinkId, (LinkProfile, DataSize)>,
    conn_links: BTreeMap<ConnId, LinkId>,
    request_links: BTreeMap<ReqId, (ConnId, LinkId)>,
}

impl DownloadEnergy {
    /// Nothing has happened yet.
    pub fn new(model: Model) -> Self {
        Self {
            meter: Meter::new(model, Instant::ZERO),
            now: Instant::ZERO,
            links: BTreeMap::new(),
            conn_links: BTreeMap::new(),
            request_links: BTreeMap::new(),
        }
    }

    /// The machine heard this.
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

    /// Time has passed.
    pub fn tick(&mut self, at: Instant) {
        self.now = self.now.max(at);
    }

    /// The machine asked for this, in the moment last told of.
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

    /// Everything up to now, with the tails to come.
    pub fn breakdown(&self) -> EnergyBreakdown {
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
