//! A client, its links and a server in virtual time, with a real machine in the client, and a player if one is given.
//!
//! In: a [`Scene`] and a machine. Out: an [`Outcome`].
//!
//! 1. The world is a driver like the pump in `download`: it keeps the rules of [`marline_core::machine`], carries out what
//!    the machine asks for, and reports what happens, one input at a time.
//! 2. Everything happens at its own instant, to the nanosecond, and costs the client no time: what is measured is the
//!    network and the machine's decisions.
//! 3. At one instant, in this order: events of the scene, packets that arrive, timers, what the machine is to hear
//!    (connections in the order in which they were opened), the machine's own deadline.
//! 4. Equal scenes give equal outcomes, to the last input.
//!
//! An event queue was not used: there are few links and connections, each knows when it has something to do, and the
//! earliest of a handful of times is found faster than a heap is kept in order.

mod conn;
mod order;
mod outcome;
mod peer;
mod scene;
mod script;
pub(crate) mod server;
mod store;
mod viewer;

use std::collections::{BTreeMap, BTreeSet};

use marline_core::fetch::{ConnErrorKind, ConnId, Input, Output, ReqId};
use marline_core::link::LinkId;
use marline_core::machine::Machine;
use marline_core::playback::Player;
use marline_core::units::{DataSize, Duration, Instant};

use crate::link::{Direction, Link};
use crate::spec::Change;
use crate::tcp::{Config, Segment, Socket};
use conn::{Conn, Sent, trouble};
pub use order::Order;
pub use outcome::{LinkOutcome, Outcome, SLICE};
pub use scene::{ClientLink, Presence, Scene};
pub use server::{Edition, Fault, Server, Since, What};
use store::Store;
use viewer::Viewer;
pub use viewer::Viewing;

/// A running world.
#[derive(Debug)]
pub struct World<M> {
    machine: M,
    scene: Scene,
    now: Instant,
    links: Vec<Site>,
    presence: Vec<Presence>,
    conns: BTreeMap<u32, Conn>,
    reqs: BTreeMap<ReqId, u32>,
    /// Connections that may have something to say.
    touched: BTreeSet<u32>,
    served: DataSize,
    store: Store,
    arrived: DataSize,
    viewer: Option<Viewer>,
    outcome: Outcome,
}

/// A link and what its connections are made with.
#[derive(Debug)]
struct Site {
    link: Link<Segment>,
    config: Config,
    present: bool,
}

impl<M> World<M>
where
    M: Machine,
    M::Input: From<Input>,
    M::Output: Into<Order>,
{
    /// A world at time zero.
    ///
    /// # Panics
    /// When an event or a presence names a link that the scene does not have, or a trace was not loaded.
    pub fn new(scene: Scene, machine: M) -> Self {
        let place = |name: &str| scene.links.iter().position(|link| link.spec.name == name);
        let mut links: Vec<Site> = scene.links.iter().map(|client| Site::new(client, &scene)).collect();
        for event in &scene.events {
            let Some(at) = place(&event.link) else { panic!("{event}: the scene has no such link") };
            links[at].link.schedule(Instant::ZERO + event.at, event.change);
        }
        let mut presence = scene.presence.clone();
        presence.sort_by_key(|presence| std::cmp::Reverse(presence.at));
        assert!(presence.iter().all(|presence| place(&presence.link).is_some()), "presence of an unknown link");
        let names = scene.links.iter().map(|link| link.spec.name.clone());
        let outcome = Outcome {
            links: names.map(|name| LinkOutcome { name, ..LinkOutcome::default() }).collect(),
            ..Outcome::default()
        };
        Self {
            machine,
            scene,
            now: Instant::ZERO,
            links,
            presence,
            conns: BTreeMap::new(),
            reqs: BTreeMap::new(),
            touched: BTreeSet::new(),
            served: DataSize::ZERO,
            store: Store::default(),
            arrived: DataSize::ZERO,
            viewer: None,
            outcome,
        }
    }

    /// Somebody watches what the machine delivers; the world then goes on until the video is over.
    #[must_use]
    pub fn watched_by(mut self, player: Player) -> Self {
        self.viewer = Some(Viewer::new(player));
        self
    }

    /// Lets the world go until the machine is done or has failed, nothing can happen any more, or `limit` is over.
    pub fn run(mut self, limit: Duration) -> Outcome {
        self.advance(limit);
        self.conclude().0
    }

    /// As [`Self::run`], and gives the machine back.
    pub fn run_machine(mut self, limit: Duration) -> (Outcome, M) {
        self.advance(limit);
        self.conclude()
    }

    fn advance(&mut self, limit: Duration) {
        let end = Instant::ZERO + limit;
        for link in 0..self.links.len() {
            if self.links[link].present {
                self.link_up(link);
            }
        }
        let mut standing = 0_u32;
        while !self.is_over() || self.viewer.as_ref().is_some_and(|viewer| !viewer.is_over()) {
            self.turn();
            let Some(next) = self.next().filter(|next| *next <= end) else { return };
            standing = if next > self.now { 0 } else { standing + 1 };
            assert!(standing < STANDSTILL, "at {next} the world stands still");
            self.now = next.max(self.now);
        }
    }

    fn is_over(&self) -> bool {
        self.outcome.finished.is_some() || self.outcome.failed.is_some()
    }

    fn turn(&mut self) {
        self.appear();
        for link in 0..self.links.len() {
            while let Some((direction, segment)) = self.links[link].link.pop(self.now) {
                self.dispatch(link, direction, &segment);
            }
        }
        let now = self.now;
        let due = |conn: &Conn| conn.next(&self.scene.server).is_some_and(|at| at <= now);
        let due: Vec<u32> = self.conns.iter().filter(|(_, conn)| due(conn)).map(|(flow, _)| *flow).collect();
        for flow in due {
            self.turn_conn(flow);
        }
        self.tell();
        self.wake();
        self.watch();
    }

    fn next(&self) -> Option<Instant> {
        let links = self.links.iter().filter_map(|site| site.link.next_event());
        let conns = self.conns.values().filter_map(|conn| conn.next(&self.scene.server));
        let presence = self.presence.last().map(|presence| Instant::ZERO + presence.at);
        let machine = self.machine.deadline().map(|(at, _)| at);
        let viewer = self.viewer.as_ref().and_then(Viewer::next);
        links.chain(conns).chain(presence).chain(machine).chain(viewer).min()
    }

    fn appear(&mut self) {
        while let Some(due) = self.presence.pop_if(|presence| Instant::ZERO + presence.at <= self.now) {
            let Some(link) = self.scene.links.iter().position(|link| link.spec.name == due.link) else { continue };
            let change = if due.present { Change::Back } else { Change::Down };
            self.links[link].link.change(&change, self.now);
            self.links[link].present = due.present;
            if due.present {
                self.link_up(link);
            } else {
                self.deliver(Input::LinkDown { link: name(link) });
            }
        }
    }

    fn link_up(&mut self, link: usize) {
        let profile = self.scene.links[link].profile.clone();
        self.deliver(Input::LinkUp { link: name(link), profile });
    }

    fn dispatch(&mut self, link: usize, direction: Direction, segment: &Segment) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&segment.flow) else { return };
        match direction {
            Direction::Down => conn.on_client(now, segment),
            Direction::Up if !conn.has_peer() && segment.flags.syn && self.scene.server.refuses(link, now) => {
                self.links[link].link.push(Direction::Down, Socket::refuse(segment, now), now);
                return;
            }
            Direction::Up => conn.on_server(now, segment, self.links[link].config),
        }
        self.turn_conn(segment.flow);
    }

    fn turn_conn(&mut self, flow: u32) {
        let Some(conn) = self.conns.get_mut(&flow) else { return };
        let (now, link) = (self.now, &mut self.links[conn.link].link);
        conn.turn(now, &mut self.scene.server, &mut self.served, |sent| match sent {
            Sent::Up(segment) => link.push(Direction::Up, segment, now),
            Sent::Down(segment) => link.push(Direction::Down, segment, now),
        });
        self.touched.insert(flow);
    }

    /// Tells the machine everything that can be told now.
    fn tell(&mut self) {
        while let Some(flow) = self.touched.pop_first() {
            while !self.is_over()
                && let Some(input) =
                    self.conns.get_mut(&flow).and_then(|conn| conn.next_input(self.now, &mut self.store))
            {
                self.count(flow, &input);
                self.deliver(input);
            }
            if self.conns.get(&flow).is_some_and(Conn::is_over)
                && let Some(conn) = self.conns.remove(&flow)
            {
                self.arrived += conn.body_bytes();
            }
        }
    }

    fn wake(&mut self) {
        for _ in 0..MOST_TICKS {
            match self.machine.deadline() {
                Some((at, _)) if at <= self.now && !self.is_over() => {
                    self.machine.tick(self.now);
                    self.drain();
                    self.tell();
                }
                _ => return,
            }
        }
        panic!("at {} the machine wants to be woken again and again: {:?}", self.now, self.machine.deadline());
    }

    /// Lets the player play and read, and tells the machine what it has read.
    fn watch(&mut self) {
        let Some(viewer) = &mut self.viewer else { return };
        viewer.read(self.now);
        if let Some(upto) = viewer.news().filter(|_| !self.is_over()) {
            self.deliver(Input::Consumed { end: upto });
        }
    }

    fn count(&mut self, flow: u32, input: &Input) {
        if let (Input::Data { len, .. }, Some(conn)) = (input, self.conns.get(&flow)) {
            self.outcome.links[conn.link].on_bytes(self.now.since(Instant::ZERO), *len);
        }
    }

    fn deliver(&mut self, input: Input) {
        self.outcome.inputs += 1;
        self.machine.handle(self.now, input.into());
        self.drain();
    }

    fn drain(&mut self) {
        let mut unreachable = Vec::new();
        while let Some(output) = self.machine.poll() {
            match output.into() {
                Order::Fetch(Output::Connect { conn, link, .. }) if !self.connect(conn, link) => {
                    unreachable.push(conn);
                }
                Order::Fetch(output) => self.perform(output),
                Order::Deliver(upto) => {
                    if let Some(viewer) = &mut self.viewer {
                        viewer.offer(self.now, upto);
                    }
                }
                Order::Nothing => {}
            }
        }
        for conn in unreachable {
            self.deliver(Input::Closed { conn, error: trouble(ConnErrorKind::Unreachable) });
        }
    }

    fn connect(&mut self, id: ConnId, link: LinkId) -> bool {
        let link = usize::from(link.0);
        let Some(site) = self.links.get(link).filter(|site| site.present) else { return false };
        let conn = Conn::new(id, link, site.config, self.scene.protocol, self.scene.tls, self.now);
        self.conns.insert(id.0, conn);
        self.outcome.links[link].connections += 1;
        self.turn_conn(id.0);
        true
    }

    fn perform(&mut self, output: Output) {
        let at = self.now.since(Instant::ZERO);
        match output {
            Output::Connect { .. } | Output::Identified { .. } => {}
            Output::Request { req, conn, range, if_range } => {
                let now = self.now;
                let Some(asked) = self.conns.get_mut(&conn.0) else { return };
                asked.request(now, req, range, if_range);
                self.outcome.links[asked.link].requests += 1;
                self.reqs.insert(req, conn.0);
                self.turn_conn(conn.0);
            }
            Output::AcceptBody { req, offset: at, len, .. } => self.judge(req, |conn| conn.accept(req, at, len)),
            // A world has one source, whose bytes need no digest.
            Output::Verify { .. } => {}
            Output::Cancel { req } => self.judge(req, |conn| conn.cancel(req)),
            Output::Close { conn } => {
                if let Some(closed) = self.conns.get_mut(&conn.0) {
                    closed.close();
                    self.turn_conn(conn.0);
                }
            }
            Output::Restart => self.store.clear(),
            Output::Notice(notice) => self.outcome.notices.push((at, notice)),
            Output::Done => self.outcome.finished = Some(at),
            Output::Failed(failure) => self.outcome.failed = Some((failure, at)),
        }
    }

    fn judge(&mut self, req: ReqId, judgement: impl FnOnce(&mut Conn) -> bool) {
        let Some(flow) = self.reqs.get(&req) else { return };
        if self.conns.get_mut(flow).is_some_and(judgement) {
            self.touched.insert(*flow);
        }
    }

    fn conclude(mut self) -> (Outcome, M) {
        let alive: DataSize = self.conns.values().map(Conn::body_bytes).sum();
        let covered = self.store.covered();
        self.outcome.covered = covered;
        self.outcome.wasted = self.arrived + alive - covered;
        self.outcome.edition = self.store.whole(self.scene.server.editions.iter().map(|edition| edition.size));
        self.outcome.link_delta = outcome::delta(&self.outcome.links);
        self.outcome.viewing = self.viewer.map(Viewer::viewing);
        (self.outcome, self.machine)
    }
}

impl Site {
    fn new(client: &ClientLink, scene: &Scene) -> Self {
        let mut link = Link::new(&client.spec, scene.seed);
        if !client.present {
            link.change(&Change::Down, Instant::ZERO);
        }
        let config =
            Config { algorithm: scene.algorithm, mtu: client.spec.mtu, window: scene.window, ..Config::default() };
        Self { link, config, present: client.present }
    }
}

/// A link's place in the scene is its name in the machine.
fn name(link: usize) -> LinkId {
    LinkId(u16::try_from(link).unwrap_or(u16::MAX))
}

/// Turns at one instant before something is wrong with the world.
const STANDSTILL: u32 = 10_000;
/// Wakings at one instant before something is wrong with the machine.
const MOST_TICKS: u32 = 100;

#[cfg(test)]
mod tests;
