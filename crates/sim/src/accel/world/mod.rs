//! Runs a scenario.
//!
//! 1. At one instant, in this order: planned events, arrivals over links, both ends of each flow, replies of gateways
//!    and origins, the accelerator's deadline; repeated until nothing more happens at that instant.
//! 2. The accelerator gets one input at a time and is drained. Its outputs are executed after the drain, in their
//!    order.
//! 3. After the end of the last flow the accelerator runs for a while, which shows state that it keeps forever.

mod outcome;
mod packets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use marline_core::accel::{Accelerator, CaptureLevel, Config, Input, Mechanism, Output};
use marline_core::link::LinkId;
use marline_core::machine::Machine;
use marline_core::units::{Duration, Instant};

use super::link::Links;
use super::origin::OriginServer;
use crate::accel::invariants::InvariantChecker;
use crate::accel::malformed::MalformedPackets;
use crate::accel::mirrored_server::MirroredServers;
use crate::accel::payload::LinkPayload;
use crate::accel::scenario::Scenario;
use crate::accel::tcp_pair::TcpPair;
use crate::contract::{ContractChecker, DecisionLog};
use crate::link::Direction;
use crate::link::loss::LossProcess;
pub use outcome::{FlowOutcome, Outcome};

/// A running scenario.
pub struct World {
    scenario: Scenario,
    now: Instant,
    links: Links,
    connections: Vec<TcpPair>,
    /// Loss of each flow's own hop.
    hops: Vec<LossProcess>,
    origin: OriginServer,
    mirrored_servers: MirroredServers,
    machine: Option<ContractChecker<Config, Accelerator>>,
    log: Option<DecisionLog<Config, Accelerator>>,
    invariants: Option<InvariantChecker>,
    capture_level: CaptureLevel,
    events: VecDeque<Event>,
    /// The held packet has arrived; otherwise it leaves.
    is_incoming: bool,
    /// Planned events, in the order of their times.
    planned: VecDeque<(Instant, Planned)>,
    gateways: BTreeSet<(Instant, LinkId, u16)>,
    malformed: MalformedPackets,
    reset: BTreeSet<usize>,
    lost_early_acked: BTreeSet<usize>,
    ticks: u64,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Planned {
    Attach,
    Carrier(LinkId, bool),
    Malformed(crate::accel::scenario::Malformed),
    Kill,
}

/// Something that is to be passed on, in its order.
#[derive(Debug)]
enum Event {
    /// An input for the accelerator.
    Input(Input),
    /// A packet leaves without being held.
    PassThrough(Vec<u8>),
}

impl World {
    /// At time zero.
    ///
    /// # Panics
    /// When there are more flows than ports.
    pub fn new(scenario: Scenario) -> Self {
        let connections: Vec<TcpPair> = scenario
            .flows
            .iter()
            .enumerate()
            .map(|(n, script)| TcpPair::new(script, n).expect("there are ports and addresses for some flows"))
            .collect();
        Self {
            now: Instant::ZERO,
            links: Links::new(&scenario),
            origin: OriginServer::new(scenario.server, scenario.seed),
            mirrored_servers: MirroredServers::default(),
            machine: None,
            log: None,
            invariants: scenario.config.as_ref().map(|config| InvariantChecker::new(&config.mechanisms)),
            capture_level: CaptureLevel::None,
            events: VecDeque::new(),
            is_incoming: false,
            planned: planned_events(&scenario),
            gateways: BTreeSet::new(),
            malformed: MalformedPackets::new(scenario.seed),
            reset: BTreeSet::new(),
            lost_early_acked: BTreeSet::new(),
            ticks: 0,
            outcome: Outcome::default(),
            hops: hops(&scenario),
            connections,
            scenario,
        }
    }

    /// Runs up to `until`. False when nothing is left that could happen.
    pub fn run_until(&mut self, until: Instant) -> bool {
        let mut again = 0;
        loop {
            let Some(next) = self.step() else { return false };
            again = if next <= self.now { again + 1 } else { 0 };
            if again > MAX_SPINS {
                self.report_defect("makes no progress".into());
                return false;
            }
            if next > until {
                return true;
            }
            self.now = self.now.max(next);
        }
    }

    /// Runs until all flows are over, and a while longer.
    pub fn run(&mut self) -> Outcome {
        let limit = Instant::ZERO + self.scenario.limit;
        let mut until = Instant::ZERO;
        while !self.connections.iter().all(TcpPair::is_over) && until < limit {
            until = (until + CHECK_INTERVAL).min(limit);
            self.run_until(until);
            self.now = self.now.max(until);
        }
        self.outcome.ended = self.now;
        let (end, ticks) = (self.now + IDLE_TIME, self.ticks);
        self.run_until(end);
        self.now = self.now.max(end);
        self.check_after_end(self.ticks - ticks);
        self.outcome()
    }

    /// Checks what is left long after the end of the last flow.
    fn check_after_end(&mut self, ticks: u64) {
        let Some(machine) = &mut self.machine else { return };
        machine.tick(self.now);
        self.execute_outputs(None);
        if !self.connections.iter().all(TcpPair::is_over) {
            return;
        }
        let flows = self.accelerator().map(|machine| machine.flows(self.now)).unwrap_or_default();
        if let Some(first) = flows.first() {
            let first = format!("{:?} with {} ACKs", first.flow, first.acks);
            self.report_defect(format!(
                "{} flows are kept {IDLE_TIME:?} after the last one's end: {first}",
                flows.len()
            ));
        }
        if ticks > MAX_IDLE_TICKS {
            self.report_defect(format!("woken {ticks} times after the last flow's end"));
        }
    }

    /// The outcome so far.
    pub fn outcome(&self) -> Outcome {
        let flow = |(n, pair): (usize, &TcpPair)| FlowOutcome {
            finished: pair.finished(),
            read: pair.read(),
            stall: pair.stall(self.outcome.ended.max(Instant::ZERO)),
            state: pair.state(),
            server: pair.server_state(),
            was_reset: self.reset.contains(&n),
            lost_early_acked: self.lost_early_acked.contains(&n),
        };
        Outcome {
            flows: self.connections.iter().enumerate().map(flow).collect(),
            secondary_up: self.links.sent(Scenario::SECONDARY),
            fetched: self.origin.served,
            ..self.outcome.clone()
        }
    }

    /// Bytes that the n-th flow's client has read.
    pub fn read(&self, n: usize) -> u64 {
        self.connections.get(n).map_or(0, TcpPair::read)
    }

    /// Bytes that the n-th flow's server has read.
    pub fn server_read(&self, n: usize) -> u64 {
        self.connections.get(n).map_or(0, TcpPair::server_read)
    }

    /// Segments that the n-th flow's server has retransmitted.
    pub fn retransmitted(&self, n: usize) -> u64 {
        self.connections.get(n).map_or(0, |pair| pair.retransmitted)
    }

    /// Packets towards the client that the primary link dropped because of congestion.
    pub fn dropped(&self) -> u64 {
        self.links.dropped(Scenario::PRIMARY)
    }

    /// The state of the n-th flow in one line.
    pub fn summary(&self, n: usize) -> String {
        self.connections.get(n).map_or_else(String::new, |pair| format!("{}: {}", self.now, pair.summary()))
    }

    /// The log of the accelerator.
    pub fn into_log(self) -> Option<DecisionLog<Config, Accelerator>> {
        self.machine.map(|machine| machine.into_parts().1).or(self.log)
    }

    /// The accelerator, if it runs.
    pub fn accelerator(&self) -> Option<&Accelerator> {
        self.machine.as_ref().map(ContractChecker::machine)
    }

    /// Everything that happens now. Returns when to step next.
    fn step(&mut self) -> Option<Instant> {
        while let Some((_, planned)) = self.planned.front().copied().filter(|(at, _)| *at <= self.now) {
            self.planned.pop_front();
            self.on_planned(planned);
        }
        self.run_events();
        while let Some((link, direction, payload)) = self.links.pop(self.now) {
            self.on_arrival(link, direction, payload);
            self.run_events();
        }
        for n in 0..self.connections.len() {
            self.run_connection(n);
        }
        for (link, packet) in self.mirrored_servers.run(self.now) {
            self.links.push(link, Direction::Down, LinkPayload::MirroredServer(packet), self.now);
        }
        self.run_events();
        while let Some(&(at, link, sequence)) = self.gateways.first().filter(|(at, ..)| *at <= self.now) {
            self.gateways.remove(&(at, link, sequence));
            self.push_input(Input::ProbeReply { link, sequence });
        }
        while let Some(answer) = self.origin.next_failure(self.now) {
            self.push_input(answer);
        }
        while let Some((link, piece)) = {
            let links = &self.links;
            self.origin.next_piece(self.now, |link| links.rtt(link))
        } {
            self.links.push(link, Direction::Down, LinkPayload::Piece(piece), self.now);
        }
        self.run_events();
        if let Some(machine) = &mut self.machine
            && machine.deadline().is_some_and(|(at, _)| at <= self.now)
        {
            machine.tick(self.now);
            self.ticks += 1;
            self.execute_outputs(None);
            self.run_events();
        }
        let timers = self.connections.iter().filter_map(TcpPair::next).min();
        let machine = self.machine.as_ref().and_then(|machine| machine.deadline()).map(|(at, _)| at);
        let planned = self.planned.front().map(|(at, _)| *at);
        let gateway = self.gateways.first().map(|(at, ..)| *at);
        let calls = self.mirrored_servers.next();
        [timers, machine, planned, gateway, calls, self.links.next(), self.origin.next()]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_planned(&mut self, planned: Planned) {
        match planned {
            Planned::Attach => {
                let config = self.scenario.config.clone();
                self.machine = config.map(|config| ContractChecker::new(config.clone(), Accelerator::new(config)));
            }
            Planned::Kill => self.kill(),
            Planned::Carrier(link, is_up) if self.machine.is_some() => {
                self.push_input(Input::Carrier { link, is_up });
            }
            Planned::Malformed(kind) if self.machine.is_some() => {
                let input = self.malformed.input(kind, self.capture_level);
                self.events.extend(input.map(Event::Input));
            }
            Planned::Carrier(..) | Planned::Malformed(_) => {}
        }
    }

    /// From now on every packet passes unchanged, and held packets are lost.
    fn kill(&mut self) {
        let Some(machine) = self.machine.take() else { return };
        self.log = Some(machine.into_parts().1);
        self.lost_early_acked.extend(
            self.connections
                .iter()
                .enumerate()
                .filter_map(|(n, pair)| (pair.acknowledged() > pair.received()).then_some(n)),
        );
        self.events.clear();
        self.gateways.clear();
        self.origin.clear();
        self.mirrored_servers.clear();
        self.capture_level = CaptureLevel::None;
    }

    fn push_input(&mut self, input: Input) {
        self.events.push_back(Event::Input(input));
    }

    /// Passes the events on, and executes the outputs.
    fn run_events(&mut self) {
        while let Some(event) = self.events.pop_front() {
            let input = match event {
                Event::Input(input) => input,
                Event::PassThrough(packet) => {
                    self.links.push(Scenario::PRIMARY, Direction::Up, LinkPayload::Packet(packet), self.now);
                    continue;
                }
            };
            let Some(machine) = &mut self.machine else { continue };
            let queued = match &input {
                Input::Outgoing(packet) | Input::Incoming(packet) => Some(packet.0.clone()),
                _ => None,
            };
            self.is_incoming = matches!(input, Input::Incoming(_));
            machine.handle(self.now, input);
            self.execute_outputs(queued.as_deref());
        }
    }

    fn execute_outputs(&mut self, queued: Option<&[u8]>) {
        let Some(machine) = &mut self.machine else { return };
        let outputs: Vec<Output> = std::iter::from_fn(|| machine.poll()).collect();
        if let Some(Err(defect)) = self.invariants.map(|checker| checker.check_verdicts(queued, &outputs)) {
            self.report_defect(defect);
        }
        for output in outputs {
            *self.outcome.outputs.entry(output_name(&output)).or_default() += 1;
            match output {
                Output::Forward(packet) if self.is_incoming => self.deliver(&packet.0),
                Output::Forward(packet) => self.send(Scenario::PRIMARY, packet.0),
                Output::Send { link, packet } => self.send(link, packet.0),
                Output::Suppress => {}
                Output::Deliver(packet) => self.deliver(&packet.0),
                Output::CountPackets { link } => {
                    let packets = self.links.received_packets(link);
                    self.push_input(Input::PacketCount { link, packets });
                }
                Output::Probe { link, sequence } => {
                    let answer = self.links.probe_reply_at(link, self.now).map(|at| (at, link, sequence));
                    self.gateways.extend(answer);
                }
                Output::Capture(level) => self.capture_level = level,
                Output::ReservePort { conn, link, server } => {
                    let (local, isn) = self.mirrored_servers.reserve_port(conn, link, server);
                    self.push_input(Input::PortReserved { conn, local: Some(local), isn });
                }
                Output::ReleasePort(conn) => self.mirrored_servers.release_port(conn),
                Output::Fetch(fetch) => {
                    let servers: Vec<_> =
                        self.connections.iter().map(|pair| pair.params.flow.destination()).collect();
                    let link_info = (self.links.rate(fetch.link), self.links.rtt(fetch.link));
                    if let Err(defect) =
                        self.origin.on_fetch(self.now, fetch, &self.scenario.flows, &servers, link_info)
                    {
                        self.report_defect(format!("an invalid fetch: {defect}"));
                    }
                }
                Output::Cancel(fetch) => self.origin.on_cancel(fetch.0),
            }
        }
    }

    fn report_defect(&mut self, defect: String) {
        if self.outcome.defects.len() < MAX_DEFECTS {
            self.outcome.defects.push(format!("{}: {defect}", self.now));
        }
    }
}

/// The loss process of each flow's own hop.
fn hops(scenario: &Scenario) -> Vec<LossProcess> {
    let hop = |(n, script): (usize, &crate::accel::scenario::FlowScript)| {
        LossProcess::new(script.loss, scenario.seed, &format!("hop {n}"), Direction::Down)
    };
    scenario.flows.iter().enumerate().map(hop).collect()
}

/// Events at fixed times.
fn planned_events(scenario: &Scenario) -> VecDeque<(Instant, Planned)> {
    let at = |since: Duration| Instant::ZERO + since;
    let mut planned = vec![(at(scenario.attached_at), Planned::Attach)];
    planned.extend(scenario.killed_at.map(|killed| (at(killed), Planned::Kill)));
    for outage in scenario.outages.iter().filter(|outage| outage.is_carrier_lost) {
        planned.push((at(outage.at), Planned::Carrier(outage.link, false)));
        planned.push((at(outage.at + outage.duration), Planned::Carrier(outage.link, true)));
    }
    planned.extend(scenario.malformed.iter().map(|(since, kind)| (at(*since), Planned::Malformed(*kind))));
    planned.sort();
    planned.into()
}

/// An output's name.
fn output_name(output: &Output) -> &'static str {
    match output {
        Output::Forward(_) => "forward",
        Output::Suppress => "suppress",
        Output::Send { link, .. } if *link == Scenario::PRIMARY => "send over primary",
        Output::Send { .. } => "send over secondary",
        Output::Deliver(_) => "deliver",
        Output::CountPackets { .. } => "count",
        Output::Probe { .. } => "probe",
        Output::Capture(_) => "capture",
        Output::ReservePort { .. } => "reserve port",
        Output::ReleasePort(_) => "release port",
        Output::Fetch(_) => "fetch",
        Output::Cancel(_) => "cancel",
    }
}

/// Whether this mechanism needs bytes that can be fetched.
pub(super) fn needs_origin(mechanism: Mechanism) -> bool {
    matches!(mechanism, Mechanism::EarlyAck | Mechanism::FreezeInFlight | Mechanism::FastFetch)
}

/// Steps at one instant. Our choice: more than this means that the scenario makes no progress.
const MAX_SPINS: u32 = 100_000;
/// Defects that are kept of a scenario.
const MAX_DEFECTS: usize = 8;
/// How often it is checked whether all flows are over.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Wake-ups of the accelerator by its deadline during [`IDLE_TIME`]. Our choice: probes every 20 ms for ten seconds during an outage are
/// 500, then they become rarer; the rest is margin.
const MAX_IDLE_TICKS: u64 = 2500;
/// How long the simulation continues after the last flow's end. Our choice: longer than any pause after which a flow may still continue.
const IDLE_TIME: Duration = Duration::from_secs(1200);
