//! HTTP simulator: a client with its links and a server in virtual time, driven by a real machine, optionally with
//! a player.
//!
//! [`HttpSim`] runs an [`HttpScenario`] with a machine and returns an [`HttpOutcome`].
//!
//! 1. The simulator is a driver like that of the crate `download`: it keeps the rules of [`marline_core::machine`],
//!    executes the machine's outputs, and reports events, one input at a time.
//! 2. Every event has its own instant, to the nanosecond, and takes no processing time. So the result shows the
//!    network and the machine's decisions only.
//! 3. The order at one instant: events of the scenario, arriving packets, timers, inputs for the machine
//!    (connections in the order in which they were opened), the machine's own deadline.
//! 4. Equal scenarios give equal outcomes, to the last input.
//!
//! There is no event queue: there are few links and connections, and each knows its next event. Finding the minimum
//! of a handful of times is cheaper than maintaining a heap.

mod conn;
mod file_check;
mod outcome;
mod output;
mod player;
mod response_stream;
mod scenario;
pub(crate) mod server;
mod server_conn;

use std::collections::{BTreeMap, BTreeSet};

use marline_core::fetch::{ConnErrorKind, ConnId, Input, Output, ReqId};
use marline_core::link::LinkId;
use marline_core::machine::Machine;
use marline_core::playback::Player;
use marline_core::units::{DataSize, Duration, Instant};

use crate::link::{Direction, Link};
use crate::spec::LinkEventKind;
use crate::tcp::{Segment, Socket, TcpConfig};
use conn::{Conn, OutgoingSegment, conn_error};
use file_check::FileCheck;
pub use outcome::{HttpLinkOutcome, HttpOutcome, TIMELINE_STEP};
pub use output::MachineOutput;
pub use player::PlaybackOutcome;
use player::SimPlayer;
pub use scenario::{ClientLink, HttpScenario, PresenceChange};
pub use server::{AvailableFrom, Fault, FaultKind, FileVersion, HttpServer};

/// A running simulation of one scenario with one machine.
#[derive(Debug)]
pub struct HttpSim<M> {
    machine: M,
    scenario: HttpScenario,
    now: Instant,
    links: Vec<ScenarioLink>,
    presence_changes: Vec<PresenceChange>,
    conns: BTreeMap<u32, Conn>,
    request_conns: BTreeMap<ReqId, u32>,
    /// Connections that may have inputs for the machine.
    changed_conns: BTreeSet<u32>,
    served_bytes: DataSize,
    file_check: FileCheck,
    received_body_bytes: DataSize,
    player: Option<SimPlayer>,
    outcome: HttpOutcome,
}

/// A link with the TCP configuration of its connections.
#[derive(Debug)]
struct ScenarioLink {
    link: Link<Segment>,
    config: TcpConfig,
    is_present: bool,
}

impl<M> HttpSim<M>
where
    M: Machine,
    M::Input: From<Input>,
    M::Output: Into<MachineOutput>,
{
    /// A simulation at time zero.
    ///
    /// # Panics
    /// If an event or a presence change names a link that is not in the scenario, or a trace was not loaded.
    pub fn new(scenario: HttpScenario, machine: M) -> Self {
        let link_index = |name: &str| scenario.links.iter().position(|link| link.spec.name == name);
        let mut links: Vec<ScenarioLink> =
            scenario.links.iter().map(|client| ScenarioLink::new(client, &scenario)).collect();
        for event in &scenario.events {
            let Some(index) = link_index(&event.link) else { panic!("{event}: the scenario has no such link") };
            links[index].link.schedule(Instant::ZERO + event.at, event.change);
        }
        let mut presence = scenario.presence_changes.clone();
        presence.sort_by_key(|presence| std::cmp::Reverse(presence.at));
        assert!(
            presence.iter().all(|presence| link_index(&presence.link).is_some()),
            "presence change of a link that is not in the scenario"
        );
        let names = scenario.links.iter().map(|link| link.spec.name.clone());
        let outcome = HttpOutcome {
            links: names.map(|name| HttpLinkOutcome { name, ..HttpLinkOutcome::default() }).collect(),
            ..HttpOutcome::default()
        };
        Self {
            machine,
            scenario,
            now: Instant::ZERO,
            links,
            presence_changes: presence,
            conns: BTreeMap::new(),
            request_conns: BTreeMap::new(),
            changed_conns: BTreeSet::new(),
            served_bytes: DataSize::ZERO,
            file_check: FileCheck::default(),
            received_body_bytes: DataSize::ZERO,
            player: None,
            outcome,
        }
    }

    /// Adds a player for what the machine delivers; the simulation then continues until the end of the video.
    #[must_use]
    pub fn with_player(mut self, player: Player) -> Self {
        self.player = Some(SimPlayer::new(player));
        self
    }

    /// Runs until the machine is done or has failed, nothing can happen any more, or `limit` has passed.
    pub fn run(mut self, limit: Duration) -> HttpOutcome {
        self.run_until(limit);
        self.into_outcome().0
    }

    /// Like [`Self::run`], and returns the machine as well.
    pub fn run_and_return_machine(mut self, limit: Duration) -> (HttpOutcome, M) {
        self.run_until(limit);
        self.into_outcome()
    }

    fn run_until(&mut self, limit: Duration) {
        let end = Instant::ZERO + limit;
        for link in 0..self.links.len() {
            if self.links[link].is_present {
                self.report_link_up(link);
            }
        }
        let mut stuck_steps = 0_u32;
        while !self.is_over() || self.player.as_ref().is_some_and(|player| !player.is_over()) {
            self.step();
            let Some(next) = self.next_event().filter(|next| *next <= end) else { return };
            // A few steps at one instant are normal; an endless number is an error of the simulator or the machine.
            stuck_steps = if next > self.now { 0 } else { stuck_steps + 1 };
            assert!(stuck_steps < MAX_STEPS_PER_INSTANT, "the simulation makes no progress at {next}");
            self.now = next.max(self.now);
        }
    }

    fn is_over(&self) -> bool {
        self.outcome.finished_at.is_some() || self.outcome.failed.is_some()
    }

    fn step(&mut self) {
        self.apply_presence_changes();
        for link in 0..self.links.len() {
            while let Some((direction, segment)) = self.links[link].link.pop(self.now) {
                self.deliver_segment(link, direction, &segment);
            }
        }
        let now = self.now;
        let is_due = |conn: &Conn| conn.next_event(&self.scenario.server).is_some_and(|at| at <= now);
        let due: Vec<u32> = self.conns.iter().filter(|(_, conn)| is_due(conn)).map(|(flow, _)| *flow).collect();
        for flow in due {
            self.run_conn(flow);
        }
        self.report_inputs();
        self.tick_due();
        self.run_player();
    }

    fn next_event(&self) -> Option<Instant> {
        let links = self.links.iter().filter_map(|link| link.link.next_event());
        let conns = self.conns.values().filter_map(|conn| conn.next_event(&self.scenario.server));
        let presence = self.presence_changes.last().map(|presence| Instant::ZERO + presence.at);
        let machine = self.machine.deadline().map(|(at, _)| at);
        let player = self.player.as_ref().and_then(SimPlayer::next_event);
        links.chain(conns).chain(presence).chain(machine).chain(player).min()
    }

    fn apply_presence_changes(&mut self) {
        while let Some(presence_change) =
            self.presence_changes.pop_if(|presence| Instant::ZERO + presence.at <= self.now)
        {
            let Some(link_index) =
                self.scenario.links.iter().position(|link| link.spec.name == presence_change.link)
            else {
                continue;
            };
            let change = if presence_change.is_present { LinkEventKind::Restore } else { LinkEventKind::Down };
            self.links[link_index].link.change(&change, self.now);
            self.links[link_index].is_present = presence_change.is_present;
            if presence_change.is_present {
                self.report_link_up(link_index);
            } else {
                self.feed(Input::LinkDown { link: link_id(link_index) });
            }
        }
    }

    fn report_link_up(&mut self, link: usize) {
        let profile = self.scenario.links[link].profile.clone();
        self.feed(Input::LinkUp { link: link_id(link), profile });
    }

    fn deliver_segment(&mut self, link: usize, direction: Direction, segment: &Segment) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&segment.flow) else { return };
        match direction {
            Direction::Down => conn.on_segment_at_client(now, segment),
            Direction::Up
                if !conn.has_server_conn()
                    && segment.flags.syn
                    && self.scenario.server.refuses_connection(link, now) =>
            {
                self.links[link].link.push(Direction::Down, Socket::reset_for(segment, now), now);
                return;
            }
            Direction::Up => conn.on_segment_at_server(now, segment, self.links[link].config),
        }
        self.run_conn(segment.flow);
    }

    fn run_conn(&mut self, flow: u32) {
        let Some(conn) = self.conns.get_mut(&flow) else { return };
        let (now, link) = (self.now, &mut self.links[conn.link].link);
        conn.run(now, &mut self.scenario.server, &mut self.served_bytes, |sent| match sent {
            OutgoingSegment::Up(segment) => link.push(Direction::Up, segment, now),
            OutgoingSegment::Down(segment) => link.push(Direction::Down, segment, now),
        });
        self.changed_conns.insert(flow);
    }

    /// Passes all pending inputs to the machine.
    fn report_inputs(&mut self) {
        while let Some(flow) = self.changed_conns.pop_first() {
            while !self.is_over()
                && let Some(input) =
                    self.conns.get_mut(&flow).and_then(|conn| conn.next_input(self.now, &mut self.file_check))
            {
                self.count_bytes(flow, &input);
                self.feed(input);
            }
            if self.conns.get(&flow).is_some_and(Conn::is_over)
                && let Some(conn) = self.conns.remove(&flow)
            {
                self.received_body_bytes += conn.body_bytes();
            }
        }
    }

    fn tick_due(&mut self) {
        for _ in 0..MAX_TICKS_PER_INSTANT {
            match self.machine.deadline() {
                Some((at, _)) if at <= self.now && !self.is_over() => {
                    self.machine.tick(self.now);
                    self.drain();
                    self.report_inputs();
                }
                _ => return,
            }
        }
        panic!("the machine sets overdue deadlines again and again at {}: {:?}", self.now, self.machine.deadline());
    }

    /// Lets the player play and read, and reports to the machine what it has read.
    fn run_player(&mut self) {
        let Some(player) = &mut self.player else { return };
        player.read(self.now);
        if let Some(end) = player.unreported_end().filter(|_| !self.is_over()) {
            self.feed(Input::Consumed { end });
        }
    }

    fn count_bytes(&mut self, flow: u32, input: &Input) {
        if let (Input::Data { len, .. }, Some(conn)) = (input, self.conns.get(&flow)) {
            self.outcome.links[conn.link].on_bytes(self.now.since(Instant::ZERO), *len);
        }
    }

    fn feed(&mut self, input: Input) {
        self.outcome.inputs += 1;
        self.machine.handle(self.now, input.into());
        self.drain();
    }

    fn drain(&mut self) {
        let mut unreachable = Vec::new();
        while let Some(output) = self.machine.poll() {
            match output.into() {
                MachineOutput::Fetch(Output::Connect { conn, link, .. }) if !self.connect(conn, link) => {
                    unreachable.push(conn);
                }
                MachineOutput::Fetch(output) => self.execute(output),
                MachineOutput::Deliver(end) => {
                    if let Some(player) = &mut self.player {
                        player.set_readable_end(self.now, end);
                    }
                }
                MachineOutput::Ignored => {}
            }
        }
        for conn in unreachable {
            self.feed(Input::Closed { conn, error: conn_error(ConnErrorKind::Unreachable) });
        }
    }

    fn connect(&mut self, id: ConnId, link: LinkId) -> bool {
        let link = usize::from(link.0);
        let Some(scenario_link) = self.links.get(link).filter(|site| site.is_present) else { return false };
        let conn =
            Conn::new(id, link, scenario_link.config, self.scenario.protocol, self.scenario.uses_tls, self.now);
        self.conns.insert(id.0, conn);
        self.outcome.links[link].connections += 1;
        self.run_conn(id.0);
        true
    }

    fn execute(&mut self, output: Output) {
        let at = self.now.since(Instant::ZERO);
        match output {
            Output::Connect { .. } | Output::Identified { .. } => {}
            Output::Request { req, conn, range, if_range } => {
                let now = self.now;
                let Some(conn_state) = self.conns.get_mut(&conn.0) else { return };
                conn_state.request(now, req, range, if_range);
                self.outcome.links[conn_state.link].requests += 1;
                self.request_conns.insert(req, conn.0);
                self.run_conn(conn.0);
            }
            Output::AcceptBody { req, offset: at, len, .. } => {
                self.update_response(req, |conn| conn.accept(req, at, len))
            }
            // The simulation has one source, whose bytes need no verification.
            Output::Verify { .. } => {}
            Output::Cancel { req } => self.update_response(req, |conn| conn.cancel(req)),
            Output::Close { conn } => {
                if let Some(closed) = self.conns.get_mut(&conn.0) {
                    closed.close();
                    self.run_conn(conn.0);
                }
            }
            Output::Restart => self.file_check.clear(),
            Output::Notice(notice) => self.outcome.notices.push((at, notice)),
            Output::Done => self.outcome.finished_at = Some(at),
            Output::Failed(failure) => self.outcome.failed = Some((failure, at)),
        }
    }

    fn update_response(&mut self, req: ReqId, update: impl FnOnce(&mut Conn) -> bool) {
        let Some(flow) = self.request_conns.get(&req) else { return };
        if self.conns.get_mut(flow).is_some_and(update) {
            self.changed_conns.insert(*flow);
        }
    }

    fn into_outcome(mut self) -> (HttpOutcome, M) {
        let open_conn_bytes: DataSize = self.conns.values().map(Conn::body_bytes).sum();
        let covered = self.file_check.covered();
        self.outcome.covered = covered;
        self.outcome.wasted = self.received_body_bytes + open_conn_bytes - covered;
        self.outcome.version =
            self.file_check.complete_version(self.scenario.server.versions.iter().map(|version| version.size));
        self.outcome.link_delta = outcome::link_delta(&self.outcome.links);
        self.outcome.playback = self.player.map(SimPlayer::into_outcome);
        (self.outcome, self.machine)
    }
}

impl ScenarioLink {
    fn new(client: &ClientLink, scenario: &HttpScenario) -> Self {
        let mut link = Link::new(&client.spec, scenario.seed);
        if !client.is_present {
            link.change(&LinkEventKind::Down, Instant::ZERO);
        }
        let config = TcpConfig {
            algorithm: scenario.algorithm,
            mtu: client.spec.mtu,
            receive_window: scenario.receive_window,
            ..TcpConfig::default()
        };
        Self { link, config, is_present: client.is_present }
    }
}

/// The machine identifies a link by its index in the scenario.
fn link_id(link: usize) -> LinkId {
    LinkId(u16::try_from(link).unwrap_or(u16::MAX))
}

/// Steps at one instant after which the simulator itself must be broken.
const MAX_STEPS_PER_INSTANT: u32 = 10_000;
/// Ticks at one instant after which the machine must be broken.
const MAX_TICKS_PER_INSTANT: u32 = 100;

#[cfg(test)]
mod tests;
