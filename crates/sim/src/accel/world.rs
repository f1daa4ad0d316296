//! Runs a scene.
//!
//! In: a [`Scene`]. Out: an [`Outcome`].
//!
//! 1. At one instant: what was planned, what has come over links, what both ends do, answers of gateways and origins, the
//!    machine's deadline; again until nothing is left of that instant.
//! 2. The machine is told one thing at a time and drained; what it asks for is done after the drain, in its order.
//! 3. After the last flow's end the machine goes on for a while, so that what it keeps for ever is seen.

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
use crate::contract::{Checked, Log};
use crate::link::Direction;
use crate::link::loss::LossProcess;
use crate::tcp::{Ending, Segment, State};

/// What became of a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowOutcome {
    /// When the client had everything.
    pub finished: Option<Instant>,
    /// How far it has read.
    pub read: u64,
    /// The longest time that it has waited for a byte, and when that ended.
    pub stall: (Duration, Instant),
    /// How the client's end stood at the end.
    pub state: Option<State>,
    /// How the server's end stood.
    pub server: Option<State>,
    /// The accelerator has reset it.
    pub was_reset: bool,
    /// When the accelerator died, bytes were missing that the server took for arrived, then or soon afterwards.
    pub lost_early_acked: bool,
}

/// What became of a scene.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Of each flow.
    pub flows: Vec<FlowOutcome>,
    /// What must not be.
    pub defects: Vec<String>,
    /// How often each output was asked for, by its name.
    pub outputs: BTreeMap<&'static str, u64>,
    /// IP bytes that went up the helping link.
    pub secondary_up: u64,
    /// Bytes that were fetched.
    pub fetched: u64,
    /// When the last flow was over.
    pub ended: Instant,
}

/// A running scene.
pub struct World {
    scene: Scenario,
    now: Instant,
    links: Links,
    connections: Vec<TcpPair>,
    /// Of each flow's own hop.
    hops: Vec<LossProcess>,
    origin: OriginServer,
    mirrored_servers: MirroredServers,
    machine: Option<Checked<Config, Accelerator>>,
    log: Option<Log<Config, Accelerator>>,
    invariants: Option<InvariantChecker>,
    capture_level: CaptureLevel,
    events: VecDeque<Event>,
    /// The packet that is held came; else it leaves.
    is_incoming: bool,
    /// Planned: times, in order, and what.
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

/// What has happened and is to be told or done, in its order.
#[derive(Debug)]
enum Event {
    /// For the machine.
    Input(Input),
    /// A packet leaves without being held.
    PassThrough(Vec<u8>),
}

impl World {
    /// At time zero.
    ///
    /// # Panics
    /// When there are more flows than ports.
    pub fn new(scene: Scenario) -> Self {
        let stations: Vec<TcpPair> = scene
            .flows
            .iter()
            .enumerate()
            .map(|(n, plan)| TcpPair::new(plan, n).expect("a handful of flows have ports and addresses"))
            .collect();
        Self {
            now: Instant::ZERO,
            links: Links::new(&scene),
            origin: OriginServer::new(scene.server, scene.seed),
            mirrored_servers: MirroredServers::default(),
            machine: None,
            log: None,
            invariants: scene.config.as_ref().map(|config| InvariantChecker::new(&config.mechanisms)),
            capture_level: CaptureLevel::None,
            events: VecDeque::new(),
            is_incoming: false,
            planned: planned_events(&scene),
            gateways: BTreeSet::new(),
            malformed: MalformedPackets::new(scene.seed),
            reset: BTreeSet::new(),
            lost_early_acked: BTreeSet::new(),
            ticks: 0,
            outcome: Outcome::default(),
            hops: hops(&scene),
            connections: stations,
            scene,
        }
    }

    /// Lets everything happen up to `until`. False when nothing is left that could.
    pub fn run_until(&mut self, until: Instant) -> bool {
        let mut again = 0;
        loop {
            let Some(next) = self.step() else { return false };
            again = if next <= self.now { again + 1 } else { 0 };
            if again > MAX_SPINS {
                self.report_defect("does not get on".into());
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
        let limit = Instant::ZERO + self.scene.limit;
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

    /// What may still be there long after the last flow's end.
    fn check_after_end(&mut self, ticks: u64) {
        let Some(machine) = &mut self.machine else { return };
        machine.tick(self.now);
        self.execute_outputs(None);
        if !self.connections.iter().all(TcpPair::is_over) {
            return;
        }
        let kept = self.accelerator().map(|machine| machine.flows(self.now)).unwrap_or_default();
        if let Some(first) = kept.first() {
            let first = format!("{:?} with {} ACKs", first.flow, first.acks);
            self.report_defect(format!(
                "{} flows are kept {IDLE_TIME:?} after the last one's end: {first}",
                kept.len()
            ));
        }
        if ticks > MAX_IDLE_TICKS {
            self.report_defect(format!("woken {ticks} times after the last flow's end"));
        }
    }

    /// What has become of everything by now.
    pub fn outcome(&self) -> Outcome {
        let flow = |(n, station): (usize, &TcpPair)| FlowOutcome {
            finished: station.finished(),
            read: station.read(),
            stall: station.stall(self.outcome.ended.max(Instant::ZERO)),
            state: station.state(),
            server: station.server_state(),
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

    /// Segments that the n-th flow's server has sent again.
    pub fn retransmitted(&self, n: usize) -> u64 {
        self.connections.get(n).map_or(0, |station| station.retransmitted)
    }

    /// Packets towards the client that the primary link dropped because of congestion.
    pub fn dropped(&self) -> u64 {
        self.links.dropped(Scenario::PRIMARY)
    }

    /// How the n-th flow stands, as a line for people.
    pub fn summary(&self, n: usize) -> String {
        self.connections.get(n).map_or_else(String::new, |station| format!("{}: {}", self.now, station.summary()))
    }

    /// What the machine says of its flows, and everything that it has been through.
    pub fn into_log(self) -> Option<Log<Config, Accelerator>> {
        self.machine.map(|machine| machine.into_parts().1).or(self.log)
    }

    /// The machine.
    pub fn accelerator(&self) -> Option<&Accelerator> {
        self.machine.as_ref().map(Checked::machine)
    }

    /// Everything that happens now. When to come again.
    fn step(&mut self) -> Option<Instant> {
        while let Some((_, planned)) = self.planned.front().copied().filter(|(at, _)| *at <= self.now) {
            self.planned.pop_front();
            self.on_planned(planned);
        }
        self.run_events();
        while let Some((link, direction, carried)) = self.links.pop(self.now) {
            self.on_arrival(link, direction, carried);
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
                let config = self.scene.config.clone();
                self.machine = config.map(|config| Checked::new(config.clone(), Accelerator::new(config)));
            }
            Planned::Kill => self.kill(),
            Planned::Carrier(link, is_up) if self.machine.is_some() => {
                self.push_input(Input::Carrier { link, is_up });
            }
            Planned::Malformed(hostility) if self.machine.is_some() => {
                let input = self.malformed.input(hostility, self.capture_level);
                self.events.extend(input.map(Event::Input));
            }
            Planned::Carrier(..) | Planned::Malformed(_) => {}
        }
    }

    /// From now on everything passes untouched, and what was held is gone.
    fn kill(&mut self) {
        let Some(machine) = self.machine.take() else { return };
        self.log = Some(machine.into_parts().1);
        self.lost_early_acked.extend(
            self.connections
                .iter()
                .enumerate()
                .filter_map(|(n, station)| (station.acknowledged() > station.received()).then_some(n)),
        );
        self.events.clear();
        self.gateways.clear();
        self.origin.clear();
        self.mirrored_servers.clear();
        self.capture_level = CaptureLevel::None;
    }

    fn on_arrival(&mut self, link: LinkId, direction: Direction, carried: LinkPayload) {
        match carried {
            LinkPayload::Packet(bytes) => self.on_server(link, &bytes),
            LinkPayload::MirroredServer(bytes) => {
                if let Some(conn) = self.mirrored_servers.conn_of(link, &bytes) {
                    self.push_input(Input::ConnPacket { conn, packet: PacketBytes(bytes) });
                }
            }
            LinkPayload::Piece(piece) => self.events.extend(self.origin.on_piece(piece).map(Event::Input)),
            LinkPayload::Segment { flow, segment } => {
                if direction == Direction::Down && self.hops.get_mut(flow).is_some_and(LossProcess::loses) {
                    return;
                }
                if direction == Direction::Down && link == Scenario::PRIMARY && self.is_accelerated(flow) {
                    self.capture(flow, Direction::Down, &segment);
                    self.run_events();
                    if self.queue_incoming(flow, &segment) {
                        return self.run_events();
                    }
                }
                if let Some(station) = self.connections.get_mut(flow) {
                    station.on_client(self.now, &segment);
                }
                self.run_connection(flow);
            }
        }
    }

    /// A packet has reached the other side, where the servers are.
    fn on_server(&mut self, link: LinkId, bytes: &[u8]) {
        if let Some((n, message)) = self.unreachable_of(bytes, Direction::Down) {
            return self.on_unreachable(n, Direction::Down, message.seq);
        }
        let Some((n, view)) = self.flow_of(bytes, Direction::Up) else {
            let servers: Vec<_> = self.connections.iter().map(|station| station.params.flow).collect();
            self.mirrored_servers.on_packet(self.now, link, bytes, &self.scene.flows, &servers);
            return;
        };
        let Some(station) = self.connections.get_mut(n) else { return };
        let read = station.params.read(Direction::Up, &view, station.read_position(Direction::Up), self.now);
        if let Read::Segment(segment) = read {
            let due = station.content.bytes(Direction::Up, segment.data.start, segment.data.end);
            let is_right = view.payload() == due;
            station.on_server(self.now, &segment);
            // What the dead one has acknowledged may have been on its way still.
            if self.log.is_some() && station.acknowledged() > station.received() {
                self.lost_early_acked.insert(n);
            }
            if !is_right {
                self.report_defect(format!("flow {n}: wrong bytes at the server within {:?}", segment.data));
            }
            self.run_connection(n);
        }
    }

    /// The sender of this direction hears that a segment of its had no way to go.
    fn on_unreachable(&mut self, n: usize, direction: Direction, seq: Seq) {
        if let Some(station) = self.connections.get_mut(n) {
            station.on_unreachable(self.now, direction, seq);
            self.run_connection(n);
        }
    }

    /// Both ends of a flow do what is due, and say what they have to say: the stacks first, then what applications do
    /// upon it, so that a handshake ends with an ACK of its own.
    fn run_connection(&mut self, n: usize) {
        let Some(station) = self.connections.get_mut(n) else { return };
        station.on_timers(self.now);
        self.flush(n);
        if let Some(station) = self.connections.get_mut(n) {
            station.run_applications(self.now);
            self.flush(n);
        }
    }

    fn flush(&mut self, n: usize) {
        while let Some((direction, segment)) =
            self.connections.get_mut(n).and_then(|station| station.poll(self.now))
        {
            if direction == Direction::Down {
                let carried = LinkPayload::Segment { flow: n, segment };
                self.links.push(Scenario::PRIMARY, Direction::Down, carried, self.now);
            } else {
                self.send_from_client(n, &segment);
            }
        }
    }

    /// The client's stack sends this.
    fn send_from_client(&mut self, n: usize, segment: &Segment) {
        let Some(station) = self.connections.get(n) else { return };
        let bytes = station.params.emit(Direction::Up, segment, &station.content);
        if !self.is_accelerated(n) {
            self.links.push(Scenario::PRIMARY, Direction::Up, LinkPayload::Packet(bytes), self.now);
            return;
        }
        self.malformed.remember(&bytes);
        if bytes.len() <= MAX_QUEUED_PACKET {
            self.push_input(Input::Outgoing(PacketBytes(bytes)));
        } else {
            self.capture(n, Direction::Up, segment);
            // It does not overtake what is held before it.
            self.events.push_back(Event::PassThrough(bytes));
        }
    }

    /// Whether there is a machine that is meant for this flow.
    fn is_accelerated(&self, n: usize) -> bool {
        self.machine.is_some() && self.scene.flows.get(n).is_some_and(|plan| plan.is_accelerated)
    }

    /// Whether a packet that came waits for a word: an acknowledgement without more, where something may be done for
    /// uploads. What it becomes is delivered.
    fn queue_incoming(&mut self, n: usize, segment: &Segment) -> bool {
        let has_uploads =
            self.scene.config.as_ref().is_some_and(|config| config.mechanisms.has_any(&UPLOAD_MECHANISMS));
        let flags = segment.flags;
        let Some(station) =
            self.connections.get(n).filter(|_| has_uploads && flags.ack && !flags.fin && !flags.rst)
        else {
            return false;
        };
        // What a real kernel sends of an application's last bytes has PSH.
        if !segment.data.is_empty() {
            return false;
        }
        let bytes = station.params.emit(Direction::Down, segment, &station.content);
        self.malformed.remember(&bytes);
        self.events.push_back(Event::Input(Input::Incoming(PacketBytes(bytes))));
        true
    }

    /// A packet passes without being held.
    fn capture(&mut self, n: usize, direction: Direction, segment: &Segment) {
        if self.capture_level == CaptureLevel::None {
            return;
        }
        let Some(station) = self.connections.get(n) else { return };
        let mut bytes = station.params.emit(direction, segment, &station.content);
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

    /// Tells the machine what there is to be told, and does what it asks for.
    fn run_events(&mut self) {
        while let Some(news) = self.events.pop_front() {
            let input = match news {
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
        if let Some(Err(defect)) = self.invariants.map(|watch| watch.check_verdicts(queued, &outputs)) {
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
                        self.connections.iter().map(|station| station.params.flow.destination()).collect();
                    let link_info = (self.links.rate(fetch.link), self.links.rtt(fetch.link));
                    if let Err(defect) =
                        self.origin.on_fetch(self.now, fetch, &self.scene.flows, &servers, link_info)
                    {
                        self.report_defect(format!("a fetch that cannot be: {defect}"));
                    }
                }
                Output::Cancel(fetch) => self.origin.on_cancel(fetch.0),
            }
        }
    }

    /// The accelerator sends a packet to a server.
    fn send(&mut self, link: LinkId, bytes: Vec<u8>) {
        if let (Some(watch), Some((n, view))) = (self.invariants, self.flow_of(&bytes, Direction::Up))
            && let Some(station) = self.connections.get(n)
        {
            let read = station.params.read(Direction::Up, &view, station.read_position(Direction::Up), self.now);
            if let Err(defect) = watch.check_sent(station, &bytes, &read) {
                self.report_defect(format!("flow {n}: {defect}"));
            }
        }
        if !self.links.push(link, Direction::Up, LinkPayload::Packet(bytes), self.now) {
            self.report_defect(format!("a packet over {link:?}, which is not there"));
        }
    }

    /// The accelerator gives a packet to the stack.
    fn deliver(&mut self, bytes: &[u8]) {
        if let Some((n, message)) = self.unreachable_of(bytes, Direction::Up) {
            return self.on_unreachable(n, Direction::Up, message.seq);
        }
        let Some((n, view)) = self.flow_of(bytes, Direction::Down) else {
            return self.report_defect("delivered: a packet of no flow".into());
        };
        let Some(station) = self.connections.get_mut(n) else { return };
        let read = station.params.read(Direction::Down, &view, station.read_position(Direction::Down), self.now);
        match InvariantChecker::check_delivered(station, bytes, &read) {
            Err(defect) => self.report_defect(format!("flow {n}: delivered: {defect}")),
            Ok(segment) => {
                station.on_client(self.now, &segment);
                if segment.flags.rst && station.state() == Some(State::Over(Ending::Reset)) {
                    self.reset.insert(n);
                }
                self.run_connection(n);
            }
        }
    }

    /// Whose packet it is, if it is one of a flow here.
    fn flow_of<'a>(&self, bytes: &'a [u8], direction: Direction) -> Option<(usize, View<'a>)> {
        let view = View::parse(bytes).ok()?;
        let flow = if direction == Direction::Up { view.four_tuple() } else { view.four_tuple().reversed() };
        Some((self.connections.iter().position(|station| station.params.flow == flow)?, view))
    }

    /// Whose segment of this direction had no way to go, if that is what the packet says.
    fn unreachable_of(&mut self, bytes: &[u8], direction: Direction) -> Option<(usize, IcmpUnreachable)> {
        let packet = Packet::parse(bytes).ok()?;
        let message = IcmpUnreachable::of(packet).ok()?;
        if packet.checksum() != Checksum::Valid {
            self.report_defect("a message of ICMP with a wrong checksum".into());
        }
        let flow = if direction == Direction::Up { message.four_tuple } else { message.four_tuple.reversed() };
        Some((self.connections.iter().position(|station| station.params.flow == flow)?, message))
    }

    fn report_defect(&mut self, what: String) {
        if self.outcome.defects.len() < MAX_DEFECTS {
            self.outcome.defects.push(format!("{}: {what}", self.now));
        }
    }
}

/// What each flow loses on its own.
fn hops(scene: &Scenario) -> Vec<LossProcess> {
    let hop = |(n, plan): (usize, &crate::accel::scenario::FlowScript)| {
        LossProcess::new(plan.loss, scene.seed, &format!("hop {n}"), Direction::Down)
    };
    scene.flows.iter().enumerate().map(hop).collect()
}

/// What happens at fixed times.
fn planned_events(scene: &Scenario) -> VecDeque<(Instant, Planned)> {
    let at = |since: Duration| Instant::ZERO + since;
    let mut planned = vec![(at(scene.attached_at), Planned::Attach)];
    planned.extend(scene.killed_at.map(|killed| (at(killed), Planned::Kill)));
    for outage in scene.outages.iter().filter(|outage| outage.is_carrier_lost) {
        planned.push((at(outage.at), Planned::Carrier(outage.link, false)));
        planned.push((at(outage.at + outage.duration), Planned::Carrier(outage.link, true)));
    }
    planned.extend(scene.malformed.iter().map(|(since, hostility)| (at(*since), Planned::Malformed(*hostility))));
    planned.sort();
    planned.into()
}

/// An output's name.
fn output_name(output: &Output) -> &'static str {
    match output {
        Output::Forward(_) => "leave",
        Output::Suppress => "hold",
        Output::Send { link, .. } if *link == Scenario::PRIMARY => "send over primary",
        Output::Send { .. } => "send over helper",
        Output::Deliver(_) => "deliver",
        Output::CountPackets { .. } => "count",
        Output::Probe { .. } => "ask",
        Output::Capture(_) => "watch",
        Output::ReservePort { .. } => "conn",
        Output::ReleasePort(_) => "hang up",
        Output::Fetch(_) => "fetch",
        Output::Cancel(_) => "cancel",
    }
}

/// Whether one of these mechanisms needs bytes that can be fetched.
pub(super) fn needs_origin(mechanism: Mechanism) -> bool {
    matches!(mechanism, Mechanism::EarlyAck | Mechanism::FreezeInFlight | Mechanism::FastFetch)
}

/// What may be done for uploads.
const UPLOAD_MECHANISMS: [Mechanism; 5] = [
    Mechanism::EifelUndo,
    Mechanism::WithheldAck,
    Mechanism::OutageRevert,
    Mechanism::ZeroWindowFreeze,
    Mechanism::FreezeInFlight,
];
/// What leaves with so many bytes or fewer is held: all pure ACKs, and little else.
const MAX_QUEUED_PACKET: usize = 160;
/// Chosen: an instant at which more than this happens never ends.
const MAX_SPINS: u32 = 100_000;
/// Of a scene that is all wrong, so much is enough.
const MAX_DEFECTS: usize = 8;
/// How often it is asked whether all is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Chosen: questions every 20 ms for ten seconds where a link stays dark, then fewer; and some figures.
const MAX_IDLE_TICKS: u64 = 2500;
/// Chosen: longer than any silence after which a flow may still come back.
const IDLE_TIME: Duration = Duration::from_secs(1200);

#[cfg(test)]
mod tests;
