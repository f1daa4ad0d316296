//! Runs a scenario.
//!
//! 1. At one instant, in this order: planned events, arrivals over links, both ends of each flow, replies of gateways
//!    and origins, the accelerator's deadline; repeated until nothing more happens at that instant.
//! 2. The accelerator gets one input at a time and is drained. Its outputs are executed after the drain, in their
//!    order.
//! 3. After the end of the last flow the accelerator runs for a while, which shows state that it keeps forever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use marline_core::accel::{Accelerator, CaptureLevel, Config, Input, Mechanism, Output, PacketBytes, SNAP_LENGTH};
use marline_core::link::LinkId;
use marline_core::machine::Machine;
use marline_core::units::{Duration, Instant};
use marline_core::wire::packet::{Checksum, IcmpUnreachable, Packet, Segment as View, Seq};

use super::link::Links;
use super::origin::OriginServer;
use super::packet::Read;
use crate::accel::invariants::InvariantChecker;
use crate::accel::malformed::MalformedPackets;
use crate::accel::mirrored_server::MirroredServers;
use crate::accel::payload::LinkPayload;
use crate::accel::scenario::Scenario;
use crate::accel::tcp_pair::TcpPair;
use crate::contract::{ContractChecker, DecisionLog};
use crate::link::Direction;
use crate::link::loss::LossProcess;
use crate::tcp::{Segment, TcpCloseReason, TcpState};

/// The outcome of a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowOutcome {
    /// When the client had received everything.
    pub finished: Option<Instant>,
    /// Bytes that it has read.
    pub read: u64,
    /// The longest time that it has waited for a byte, and when that ended.
    pub stall: (Duration, Instant),
    /// The final state of the client's end.
    pub state: Option<TcpState>,
    /// The final state of the server's end.
    pub server: Option<TcpState>,
    /// The accelerator has reset it.
    pub was_reset: bool,
    /// When the accelerator was killed, or soon after, bytes were acknowledged to the server that the client did not
    /// have.
    pub lost_early_acked: bool,
}

/// The outcome of a scenario.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Of each flow.
    pub flows: Vec<FlowOutcome>,
    /// Violations of invariants.
    pub defects: Vec<String>,
    /// How often there was each output, by its name.
    pub outputs: BTreeMap<&'static str, u64>,
    /// IP bytes that were sent over the secondary link.
    pub secondary_up: u64,
    /// Bytes that were fetched.
    pub fetched: u64,
    /// When the last flow was over.
    pub ended: Instant,
}

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

    fn on_arrival(&mut self, link: LinkId, direction: Direction, payload: LinkPayload) {
        match payload {
            LinkPayload::Packet(bytes) => self.on_server(link, &bytes),
            LinkPayload::MirroredServer(bytes) => {
                if let Some(conn) = self.mirrored_servers.conn_of(link, &bytes) {
                    self.push_input(Input::ConnPacket { conn, packet: PacketBytes(bytes) });
                }
            }
            LinkPayload::Piece(piece) => self.events.extend(self.origin.on_piece(piece).map(Event::Input)),
            LinkPayload::Segment { flow, segment } => {
                if direction == Direction::Down && self.hops.get_mut(flow).is_some_and(LossProcess::next_is_lost) {
                    return;
                }
                if direction == Direction::Down && link == Scenario::PRIMARY && self.is_accelerated(flow) {
                    self.capture(flow, Direction::Down, &segment);
                    self.run_events();
                    if self.queue_incoming(flow, &segment) {
                        return self.run_events();
                    }
                }
                if let Some(pair) = self.connections.get_mut(flow) {
                    pair.on_client(self.now, &segment);
                }
                self.run_connection(flow);
            }
        }
    }

    /// A packet has arrived at the servers.
    fn on_server(&mut self, link: LinkId, bytes: &[u8]) {
        if let Some((n, message)) = self.unreachable_of(bytes, Direction::Down) {
            return self.on_unreachable(n, Direction::Down, message.seq);
        }
        let Some((conn_index, view)) = self.flow_of(bytes, Direction::Up) else {
            let servers: Vec<_> = self.connections.iter().map(|pair| pair.params.flow).collect();
            self.mirrored_servers.on_packet(self.now, link, bytes, &self.scenario.flows, &servers);
            return;
        };
        let Some(pair) = self.connections.get_mut(conn_index) else { return };
        let read = pair.params.read(Direction::Up, &view, pair.read_position(Direction::Up), self.now);
        if let Read::Segment(segment) = read {
            let due = pair.content.bytes(Direction::Up, segment.seqs.start, segment.seqs.end);
            let is_right = view.payload() == due;
            pair.on_server(self.now, &segment);
            // ACKs of the killed accelerator may still have been in flight.
            if self.log.is_some() && pair.acknowledged() > pair.received() {
                self.lost_early_acked.insert(conn_index);
            }
            if !is_right {
                self.report_defect(format!(
                    "flow {conn_index}: wrong bytes at the server within {:?}",
                    segment.seqs
                ));
            }
            self.run_connection(conn_index);
        }
    }

    /// The sender of this direction learns that a segment had no route.
    fn on_unreachable(&mut self, n: usize, direction: Direction, seq: Seq) {
        if let Some(pair) = self.connections.get_mut(n) {
            pair.on_unreachable(self.now, direction, seq);
            self.run_connection(n);
        }
    }

    /// Both ends of a flow do what is due: the stacks first, then the applications, so that a handshake ends with an
    /// ACK of its own.
    fn run_connection(&mut self, n: usize) {
        let Some(pair) = self.connections.get_mut(n) else { return };
        pair.on_timers(self.now);
        self.flush(n);
        if let Some(pair) = self.connections.get_mut(n) {
            pair.run_applications(self.now);
            self.flush(n);
        }
    }

    fn flush(&mut self, n: usize) {
        while let Some((direction, segment)) = self.connections.get_mut(n).and_then(|pair| pair.poll(self.now)) {
            if direction == Direction::Down {
                let payload = LinkPayload::Segment { flow: n, segment };
                self.links.push(Scenario::PRIMARY, Direction::Down, payload, self.now);
            } else {
                self.send_from_client(n, &segment);
            }
        }
    }

    /// The client's stack sends a segment.
    fn send_from_client(&mut self, conn_index: usize, segment: &Segment) {
        let Some(pair) = self.connections.get(conn_index) else { return };
        let bytes = pair.params.emit(Direction::Up, segment, &pair.content);
        if !self.is_accelerated(conn_index) {
            self.links.push(Scenario::PRIMARY, Direction::Up, LinkPayload::Packet(bytes), self.now);
            return;
        }
        self.malformed.remember(&bytes);
        if bytes.len() <= MAX_QUEUED_PACKET {
            self.push_input(Input::Outgoing(PacketBytes(bytes)));
        } else {
            self.capture(conn_index, Direction::Up, segment);
            // It does not overtake packets that were held before it.
            self.events.push_back(Event::PassThrough(bytes));
        }
    }

    /// Whether packets of this flow pass an accelerator now.
    fn is_accelerated(&self, n: usize) -> bool {
        self.machine.is_some() && self.scenario.flows.get(n).is_some_and(|script| script.is_accelerated)
    }

    /// Whether an arriving packet is held: a pure ACK, if a mechanism for uploads is enabled. What it becomes is
    /// delivered.
    fn queue_incoming(&mut self, n: usize, segment: &Segment) -> bool {
        let has_uploads =
            self.scenario.config.as_ref().is_some_and(|config| config.mechanisms.has_any(&UPLOAD_MECHANISMS));
        let flags = segment.flags;
        let Some(pair) = self.connections.get(n).filter(|_| has_uploads && flags.ack && !flags.fin && !flags.rst)
        else {
            return false;
        };
        // A real kernel sets PSH on the last bytes of an application.
        if !segment.seqs.is_empty() {
            return false;
        }
        let bytes = pair.params.emit(Direction::Down, segment, &pair.content);
        self.malformed.remember(&bytes);
        self.events.push_back(Event::Input(Input::Incoming(PacketBytes(bytes))));
        true
    }

    /// A packet passes without being held.
    fn capture(&mut self, n: usize, direction: Direction, segment: &Segment) {
        if self.capture_level == CaptureLevel::None {
            return;
        }
        let Some(pair) = self.connections.get(n) else { return };
        let mut bytes = pair.params.emit(direction, segment, &pair.content);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.malformed.remember(&bytes);
        if self.capture_level == CaptureLevel::Headers {
            bytes.truncate(SNAP_LENGTH);
        }
        self.push_input(Input::Captured { packet: PacketBytes(bytes), length });
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

    /// The accelerator sends a packet to a server.
    fn send(&mut self, link: LinkId, bytes: Vec<u8>) {
        if let (Some(invariants), Some((n, view))) = (self.invariants, self.flow_of(&bytes, Direction::Up))
            && let Some(pair) = self.connections.get(n)
        {
            let read = pair.params.read(Direction::Up, &view, pair.read_position(Direction::Up), self.now);
            if let Err(defect) = invariants.check_sent(pair, &bytes, &read) {
                self.report_defect(format!("flow {n}: {defect}"));
            }
        }
        if !self.links.push(link, Direction::Up, LinkPayload::Packet(bytes), self.now) {
            self.report_defect(format!("a packet over {link:?}, which does not exist"));
        }
    }

    /// The accelerator delivers a packet to the client's stack.
    fn deliver(&mut self, bytes: &[u8]) {
        if let Some((n, message)) = self.unreachable_of(bytes, Direction::Up) {
            return self.on_unreachable(n, Direction::Up, message.seq);
        }
        let Some((conn_index, view)) = self.flow_of(bytes, Direction::Down) else {
            return self.report_defect("delivered: a packet of no flow".into());
        };
        let Some(pair) = self.connections.get_mut(conn_index) else { return };
        let read = pair.params.read(Direction::Down, &view, pair.read_position(Direction::Down), self.now);
        match InvariantChecker::check_delivered(pair, bytes, &read) {
            Err(defect) => self.report_defect(format!("flow {conn_index}: delivered: {defect}")),
            Ok(segment) => {
                pair.on_client(self.now, &segment);
                if segment.flags.rst && pair.state() == Some(TcpState::Closed(TcpCloseReason::Reset)) {
                    self.reset.insert(conn_index);
                }
                self.run_connection(conn_index);
            }
        }
    }

    /// The flow of a packet.
    fn flow_of<'a>(&self, bytes: &'a [u8], direction: Direction) -> Option<(usize, View<'a>)> {
        let view = View::parse(bytes).ok()?;
        let flow = if direction == Direction::Up { view.four_tuple() } else { view.four_tuple().reversed() };
        Some((self.connections.iter().position(|pair| pair.params.flow == flow)?, view))
    }

    /// The flow whose segment of this direction had no route, if the packet is such a message.
    fn unreachable_of(&mut self, bytes: &[u8], direction: Direction) -> Option<(usize, IcmpUnreachable)> {
        let packet = Packet::parse(bytes).ok()?;
        let message = IcmpUnreachable::of(packet).ok()?;
        if packet.checksum() != Checksum::Valid {
            self.report_defect("an ICMP message with a wrong checksum".into());
        }
        let flow = if direction == Direction::Up { message.four_tuple } else { message.four_tuple.reversed() };
        Some((self.connections.iter().position(|pair| pair.params.flow == flow)?, message))
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

const UPLOAD_MECHANISMS: [Mechanism; 5] = [
    Mechanism::EifelUndo,
    Mechanism::WithheldAck,
    Mechanism::OutageRevert,
    Mechanism::ZeroWindowFreeze,
    Mechanism::FreezeInFlight,
];
/// Packets of at most so many bytes are held when they leave: all pure ACKs, and little else.
const MAX_QUEUED_PACKET: usize = 160;
/// Chosen: more than this at one instant means that it never ends.
const MAX_SPINS: u32 = 100_000;
/// Defects that are kept of a scenario.
const MAX_DEFECTS: usize = 8;
/// How often it is checked whether all flows are over.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Chosen: probes every 20 ms for ten seconds during an outage, then fewer; and some more.
const MAX_IDLE_TICKS: u64 = 2500;
/// Chosen: longer than any pause after which a flow may still continue.
const IDLE_TIME: Duration = Duration::from_secs(1200);

#[cfg(test)]
mod tests;
