//! Runs a scene.
//!
//! In: a [`Scene`]. Out: an [`Outcome`].
//!
//! 1. At one instant: what was planned, what has come over links, what both ends do, answers of gateways and origins, the
//!    machine's deadline; again until nothing is left of that instant.
//! 2. The machine is told one thing at a time and drained; what it asks for is done after the drain, in its order.
//! 3. After the last flow's end the machine goes on for a while, so that what it keeps for ever is seen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use marline_core::accel::{Accelerator, Bytes, Config, Input, Mechanism, Output, SIGHT, Sight};
use marline_core::link::LinkId;
use marline_core::machine::Machine;
use marline_core::units::{Duration, Instant};
use marline_core::wire::packet::{Checksum, IcmpUnreachable, Packet, Segment as View, Seq};

use super::calls::Calls;
use super::carried::Carried;
use super::hostile::Hostile;
use super::link::Links;
use super::origin::Origin;
use super::packet::Read;
use super::scene::Scene;
use super::station::Station;
use super::watch::Watch;
use crate::contract::{ContractChecker, DecisionLog};
use crate::link::Direction;
use crate::link::loss::LossProcess;
use crate::tcp::{Segment, TcpCloseReason, TcpState};

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
    pub state: Option<TcpState>,
    /// How the server's end stood.
    pub server: Option<TcpState>,
    /// The accelerator has reset it.
    pub was_reset: bool,
    /// When the accelerator died, bytes were missing that the server took for arrived, then or soon afterwards.
    pub was_robbed: bool,
}

/// What became of a scene.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Of each flow.
    pub flows: Vec<FlowOutcome>,
    /// What must not be.
    pub wrong: Vec<String>,
    /// How often each output was asked for, by its name.
    pub asked: BTreeMap<&'static str, u64>,
    /// IP bytes that went up the helping link.
    pub helper_up: u64,
    /// Bytes that were fetched.
    pub fetched: u64,
    /// When the last flow was over.
    pub ended: Instant,
}

/// A running scene.
pub struct World {
    scene: Scene,
    now: Instant,
    links: Links,
    stations: Vec<Station>,
    /// Of each flow's own hop.
    hops: Vec<LossProcess>,
    origin: Origin,
    calls: Calls,
    machine: Option<ContractChecker<Config, Accelerator>>,
    log: Option<DecisionLog<Config, Accelerator>>,
    watch: Option<Watch>,
    sight: Sight,
    news: VecDeque<News>,
    /// The packet that is held came; else it leaves.
    comes: bool,
    /// Planned: times, in order, and what.
    planned: VecDeque<(Instant, Planned)>,
    gateways: BTreeSet<(Instant, LinkId, u16)>,
    hostile: Hostile,
    reset: BTreeSet<usize>,
    robbed: BTreeSet<usize>,
    ticks: u64,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Planned {
    Attach,
    Carrier(LinkId, bool),
    Hostile(super::scene::Hostility),
    Kill,
}

/// What has happened and is to be told or done, in its order.
#[derive(Debug)]
enum News {
    /// For the machine.
    Input(Input),
    /// A packet leaves without being held.
    Passes(Vec<u8>),
}

impl World {
    /// At time zero.
    ///
    /// # Panics
    /// When there are more flows than ports.
    pub fn new(scene: Scene) -> Self {
        let stations: Vec<Station> = scene
            .flows
            .iter()
            .enumerate()
            .map(|(n, plan)| Station::new(plan, n).expect("a handful of flows have ports and addresses"))
            .collect();
        Self {
            now: Instant::ZERO,
            links: Links::new(&scene),
            origin: Origin::new(scene.manners, scene.seed),
            calls: Calls::default(),
            machine: None,
            log: None,
            watch: scene.config.as_ref().map(|config| Watch::new(&config.mechanisms)),
            sight: Sight::None,
            news: VecDeque::new(),
            comes: false,
            planned: plans(&scene),
            gateways: BTreeSet::new(),
            hostile: Hostile::new(scene.seed),
            reset: BTreeSet::new(),
            robbed: BTreeSet::new(),
            ticks: 0,
            outcome: Outcome::default(),
            hops: hops(&scene),
            stations,
            scene,
        }
    }

    /// Lets everything happen up to `until`. False when nothing is left that could.
    pub fn run_until(&mut self, until: Instant) -> bool {
        let mut again = 0;
        loop {
            let Some(next) = self.step() else { return false };
            again = if next <= self.now { again + 1 } else { 0 };
            if again > SPINS {
                self.wrong("does not get on".into());
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
        while !self.stations.iter().all(Station::is_over) && until < limit {
            until = (until + BETWEEN_LOOKS).min(limit);
            self.run_until(until);
            self.now = self.now.max(until);
        }
        self.outcome.ended = self.now;
        let (end, ticks) = (self.now + AFTERWARDS, self.ticks);
        self.run_until(end);
        self.now = self.now.max(end);
        self.look_after_the_end(self.ticks - ticks);
        self.outcome()
    }

    /// What may still be there long after the last flow's end.
    fn look_after_the_end(&mut self, ticks: u64) {
        let Some(machine) = &mut self.machine else { return };
        machine.tick(self.now);
        self.carry_out(None);
        if !self.stations.iter().all(Station::is_over) {
            return;
        }
        let kept = self.accelerator().map(|machine| machine.flows(self.now)).unwrap_or_default();
        if let Some(first) = kept.first() {
            let first = format!("{:?} with {} ACKs", first.flow, first.acks);
            self.wrong(format!("{} flows are kept {AFTERWARDS:?} after the last one's end: {first}", kept.len()));
        }
        if ticks > IDLE_TICKS {
            self.wrong(format!("woken {ticks} times after the last flow's end"));
        }
    }

    /// What has become of everything by now.
    pub fn outcome(&self) -> Outcome {
        let flow = |(n, station): (usize, &Station)| FlowOutcome {
            finished: station.finished(),
            read: station.read(),
            stall: station.stall(self.outcome.ended.max(Instant::ZERO)),
            state: station.state(),
            server: station.server_state(),
            was_reset: self.reset.contains(&n),
            was_robbed: self.robbed.contains(&n),
        };
        Outcome {
            flows: self.stations.iter().enumerate().map(flow).collect(),
            helper_up: self.links.sent(Scene::HELPER),
            fetched: self.origin.served,
            ..self.outcome.clone()
        }
    }

    /// Bytes that the n-th flow's client has read.
    pub fn read(&self, n: usize) -> u64 {
        self.stations.get(n).map_or(0, Station::read)
    }

    /// Bytes that the n-th flow's server has read.
    pub fn taken(&self, n: usize) -> u64 {
        self.stations.get(n).map_or(0, Station::taken)
    }

    /// Segments that the n-th flow's server has sent again.
    pub fn repeated(&self, n: usize) -> u64 {
        self.stations.get(n).map_or(0, |station| station.repeated)
    }

    /// Packets towards the client that the primary link dropped because of congestion.
    pub fn dropped(&self) -> u64 {
        self.links.dropped(Scene::PRIMARY)
    }

    /// How the n-th flow stands, as a line for people.
    pub fn line(&self, n: usize) -> String {
        self.stations.get(n).map_or_else(String::new, |station| format!("{}: {}", self.now, station.line()))
    }

    /// What the machine says of its flows, and everything that it has been through.
    pub fn into_log(self) -> Option<DecisionLog<Config, Accelerator>> {
        self.machine.map(|machine| machine.into_parts().1).or(self.log)
    }

    /// The machine.
    pub fn accelerator(&self) -> Option<&Accelerator> {
        self.machine.as_ref().map(ContractChecker::machine)
    }

    /// Everything that happens now. When to come again.
    fn step(&mut self) -> Option<Instant> {
        while let Some((_, planned)) = self.planned.front().copied().filter(|(at, _)| *at <= self.now) {
            self.planned.pop_front();
            self.on_planned(planned);
        }
        self.pump();
        while let Some((link, direction, carried)) = self.links.pop(self.now) {
            self.on_arrival(link, direction, carried);
            self.pump();
        }
        for n in 0..self.stations.len() {
            self.attend(n);
        }
        for (link, packet) in self.calls.attend(self.now) {
            self.links.push(link, Direction::Down, Carried::Called(packet), self.now);
        }
        self.pump();
        while let Some(&(at, link, sequence)) = self.gateways.first().filter(|(at, ..)| *at <= self.now) {
            self.gateways.remove(&(at, link, sequence));
            self.tell(Input::Answered { link, sequence });
        }
        while let Some(answer) = self.origin.next_failure(self.now) {
            self.tell(answer);
        }
        while let Some((link, piece)) = {
            let links = &self.links;
            self.origin.next_piece(self.now, |link| links.rtt(link))
        } {
            self.links.push(link, Direction::Down, Carried::Piece(piece), self.now);
        }
        self.pump();
        if let Some(machine) = &mut self.machine
            && machine.deadline().is_some_and(|(at, _)| at <= self.now)
        {
            machine.tick(self.now);
            self.ticks += 1;
            self.carry_out(None);
            self.pump();
        }
        let timers = self.stations.iter().filter_map(Station::next).min();
        let machine = self.machine.as_ref().and_then(|machine| machine.deadline()).map(|(at, _)| at);
        let planned = self.planned.front().map(|(at, _)| *at);
        let gateway = self.gateways.first().map(|(at, ..)| *at);
        let calls = self.calls.next();
        [timers, machine, planned, gateway, calls, self.links.next(), self.origin.next()]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_planned(&mut self, planned: Planned) {
        match planned {
            Planned::Attach => {
                let config = self.scene.config.clone();
                self.machine = config.map(|config| ContractChecker::new(config.clone(), Accelerator::new(config)));
            }
            Planned::Kill => self.kill(),
            Planned::Carrier(link, is_up) if self.machine.is_some() => {
                self.tell(Input::Carrier { link, is_up });
            }
            Planned::Hostile(hostility) if self.machine.is_some() => {
                let input = self.hostile.input(hostility, self.sight);
                self.news.extend(input.map(News::Input));
            }
            Planned::Carrier(..) | Planned::Hostile(_) => {}
        }
    }

    /// From now on everything passes untouched, and what was held is gone.
    fn kill(&mut self) {
        let Some(machine) = self.machine.take() else { return };
        self.log = Some(machine.into_parts().1);
        self.robbed.extend(
            self.stations
                .iter()
                .enumerate()
                .filter_map(|(n, station)| (station.acknowledged() > station.received()).then_some(n)),
        );
        self.news.clear();
        self.gateways.clear();
        self.origin.clear();
        self.calls.clear();
        self.sight = Sight::None;
    }

    fn on_arrival(&mut self, link: LinkId, direction: Direction, carried: Carried) {
        match carried {
            Carried::Packet(bytes) => self.on_server(link, &bytes),
            Carried::Called(bytes) => {
                if let Some(call) = self.calls.heard(link, &bytes) {
                    self.tell(Input::Heard { call, packet: Bytes(bytes) });
                }
            }
            Carried::Piece(piece) => self.news.extend(self.origin.on_piece(piece).map(News::Input)),
            Carried::Segment { flow, segment } => {
                if direction == Direction::Down && self.hops.get_mut(flow).is_some_and(LossProcess::next_is_lost) {
                    return;
                }
                if direction == Direction::Down && link == Scene::PRIMARY && self.is_helped(flow) {
                    self.show(flow, Direction::Down, &segment);
                    self.pump();
                    if self.hold(flow, &segment) {
                        return self.pump();
                    }
                }
                if let Some(station) = self.stations.get_mut(flow) {
                    station.on_client(self.now, &segment);
                }
                self.attend(flow);
            }
        }
    }

    /// A packet has reached the other side, where the servers are.
    fn on_server(&mut self, link: LinkId, bytes: &[u8]) {
        if let Some((n, word)) = self.word_of(bytes, Direction::Down) {
            return self.on_unreachable(n, Direction::Down, word.seq);
        }
        let Some((n, view)) = self.flow_of(bytes, Direction::Up) else {
            let servers: Vec<_> = self.stations.iter().map(|station| station.names.flow).collect();
            self.calls.on_packet(self.now, link, bytes, &self.scene.flows, &servers);
            return;
        };
        let Some(station) = self.stations.get_mut(n) else { return };
        let read = station.names.read(Direction::Up, &view, station.place(Direction::Up), self.now);
        if let Read::Segment(segment) = read {
            let due = station.content.bytes(Direction::Up, segment.seqs.start, segment.seqs.end);
            let is_right = view.payload() == due;
            station.on_server(self.now, &segment);
            // What the dead one has acknowledged may have been on its way still.
            if self.log.is_some() && station.acknowledged() > station.received() {
                self.robbed.insert(n);
            }
            if !is_right {
                self.wrong(format!("flow {n}: wrong bytes at the server within {:?}", segment.seqs));
            }
            self.attend(n);
        }
    }

    /// The sender of this direction hears that a segment of its had no way to go.
    fn on_unreachable(&mut self, n: usize, direction: Direction, seq: Seq) {
        if let Some(station) = self.stations.get_mut(n) {
            station.on_unreachable(self.now, direction, seq);
            self.attend(n);
        }
    }

    /// Both ends of a flow do what is due, and say what they have to say: the stacks first, then what applications do
    /// upon it, so that a handshake ends with an ACK of its own.
    fn attend(&mut self, n: usize) {
        let Some(station) = self.stations.get_mut(n) else { return };
        station.on_timers(self.now);
        self.flush(n);
        if let Some(station) = self.stations.get_mut(n) {
            station.act(self.now);
            self.flush(n);
        }
    }

    fn flush(&mut self, n: usize) {
        while let Some((direction, segment)) = self.stations.get_mut(n).and_then(|station| station.poll(self.now)) {
            if direction == Direction::Down {
                let carried = Carried::Segment { flow: n, segment };
                self.links.push(Scene::PRIMARY, Direction::Down, carried, self.now);
            } else {
                self.leave(n, &segment);
            }
        }
    }

    /// The client's stack sends this.
    fn leave(&mut self, n: usize, segment: &Segment) {
        let Some(station) = self.stations.get(n) else { return };
        let bytes = station.names.emit(Direction::Up, segment, &station.content);
        if !self.is_helped(n) {
            self.links.push(Scene::PRIMARY, Direction::Up, Carried::Packet(bytes), self.now);
            return;
        }
        self.hostile.remember(&bytes);
        if bytes.len() <= HELD {
            self.tell(Input::Leaving(Bytes(bytes)));
        } else {
            self.show(n, Direction::Up, segment);
            // It does not overtake what is held before it.
            self.news.push_back(News::Passes(bytes));
        }
    }

    /// Whether there is a machine that is meant for this flow.
    fn is_helped(&self, n: usize) -> bool {
        self.machine.is_some() && self.scene.flows.get(n).is_some_and(|plan| plan.is_helped)
    }

    /// Whether a packet that came waits for a word: an acknowledgement without more, where something may be done for
    /// uploads. What it becomes is delivered.
    fn hold(&mut self, n: usize, segment: &Segment) -> bool {
        let may = self.scene.config.as_ref().is_some_and(|config| config.mechanisms.has_any(&UPWARD));
        let flags = segment.flags;
        let Some(station) = self.stations.get(n).filter(|_| may && flags.ack && !flags.fin && !flags.rst) else {
            return false;
        };
        // What a real kernel sends of an application's last bytes has PSH.
        if !segment.seqs.is_empty() {
            return false;
        }
        let bytes = station.names.emit(Direction::Down, segment, &station.content);
        self.hostile.remember(&bytes);
        self.news.push_back(News::Input(Input::Arriving(Bytes(bytes))));
        true
    }

    /// A packet passes without being held.
    fn show(&mut self, n: usize, direction: Direction, segment: &Segment) {
        if self.sight == Sight::None {
            return;
        }
        let Some(station) = self.stations.get(n) else { return };
        let mut bytes = station.names.emit(direction, segment, &station.content);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.hostile.remember(&bytes);
        if self.sight == Sight::Heads {
            bytes.truncate(SIGHT);
        }
        self.tell(Input::Seen { packet: Bytes(bytes), length });
    }

    fn tell(&mut self, input: Input) {
        self.news.push_back(News::Input(input));
    }

    /// Tells the machine what there is to be told, and does what it asks for.
    fn pump(&mut self) {
        while let Some(news) = self.news.pop_front() {
            let input = match news {
                News::Input(input) => input,
                News::Passes(packet) => {
                    self.links.push(Scene::PRIMARY, Direction::Up, Carried::Packet(packet), self.now);
                    continue;
                }
            };
            let Some(machine) = &mut self.machine else { continue };
            let held = match &input {
                Input::Leaving(packet) | Input::Arriving(packet) => Some(packet.0.clone()),
                _ => None,
            };
            self.comes = matches!(input, Input::Arriving(_));
            machine.handle(self.now, input);
            self.carry_out(held.as_deref());
        }
    }

    fn carry_out(&mut self, held: Option<&[u8]>) {
        let Some(machine) = &mut self.machine else { return };
        let outputs: Vec<Output> = std::iter::from_fn(|| machine.poll()).collect();
        if let Some(Err(wrong)) = self.watch.map(|watch| watch.on_answers(held, &outputs)) {
            self.wrong(wrong);
        }
        for output in outputs {
            *self.outcome.asked.entry(name(&output)).or_default() += 1;
            match output {
                Output::Leave(packet) if self.comes => self.deliver(&packet.0),
                Output::Leave(packet) => self.send(Scene::PRIMARY, packet.0),
                Output::Send { link, packet } => self.send(link, packet.0),
                Output::Hold => {}
                Output::Deliver(packet) => self.deliver(&packet.0),
                Output::Count { link } => {
                    let packets = self.links.brought(link);
                    self.tell(Input::Counted { link, packets });
                }
                Output::Ask { link, sequence } => {
                    let answer = self.links.answers_at(link, self.now).map(|at| (at, link, sequence));
                    self.gateways.extend(answer);
                }
                Output::Watch(sight) => self.sight = sight,
                Output::Call { call, link, server } => {
                    let (local, number) = self.calls.call(call, link, server);
                    self.tell(Input::Called { call, local: Some(local), number });
                }
                Output::HangUp(call) => self.calls.hang_up(call),
                Output::Fetch(fetch) => {
                    let servers: Vec<_> =
                        self.stations.iter().map(|station| station.names.flow.destination()).collect();
                    let road = (self.links.rate(fetch.link), self.links.rtt(fetch.link));
                    if let Err(wrong) = self.origin.on_fetch(self.now, fetch, &self.scene.flows, &servers, road) {
                        self.wrong(format!("a fetch that cannot be: {wrong}"));
                    }
                }
                Output::Cancel(fetch) => self.origin.on_cancel(fetch.0),
            }
        }
    }

    /// The accelerator sends a packet to a server.
    fn send(&mut self, link: LinkId, bytes: Vec<u8>) {
        if let (Some(watch), Some((n, view))) = (self.watch, self.flow_of(&bytes, Direction::Up))
            && let Some(station) = self.stations.get(n)
        {
            let read = station.names.read(Direction::Up, &view, station.place(Direction::Up), self.now);
            if let Err(wrong) = watch.on_sent(station, &bytes, &read) {
                self.wrong(format!("flow {n}: {wrong}"));
            }
        }
        if !self.links.push(link, Direction::Up, Carried::Packet(bytes), self.now) {
            self.wrong(format!("a packet over {link:?}, which is not there"));
        }
    }

    /// The accelerator gives a packet to the stack.
    fn deliver(&mut self, bytes: &[u8]) {
        if let Some((n, word)) = self.word_of(bytes, Direction::Up) {
            return self.on_unreachable(n, Direction::Up, word.seq);
        }
        let Some((n, view)) = self.flow_of(bytes, Direction::Down) else {
            return self.wrong("delivered: a packet of no flow".into());
        };
        let Some(station) = self.stations.get_mut(n) else { return };
        let read = station.names.read(Direction::Down, &view, station.place(Direction::Down), self.now);
        match Watch::on_delivered(station, bytes, &read) {
            Err(wrong) => self.wrong(format!("flow {n}: delivered: {wrong}")),
            Ok(segment) => {
                station.on_client(self.now, &segment);
                if segment.flags.rst && station.state() == Some(TcpState::Closed(TcpCloseReason::Reset)) {
                    self.reset.insert(n);
                }
                self.attend(n);
            }
        }
    }

    /// Whose packet it is, if it is one of a flow here.
    fn flow_of<'a>(&self, bytes: &'a [u8], direction: Direction) -> Option<(usize, View<'a>)> {
        let view = View::parse(bytes).ok()?;
        let flow = if direction == Direction::Up { view.four_tuple() } else { view.four_tuple().reversed() };
        Some((self.stations.iter().position(|station| station.names.flow == flow)?, view))
    }

    /// Whose segment of this direction had no way to go, if that is what the packet says.
    fn word_of(&mut self, bytes: &[u8], direction: Direction) -> Option<(usize, IcmpUnreachable)> {
        let packet = Packet::parse(bytes).ok()?;
        let word = IcmpUnreachable::of(packet).ok()?;
        if packet.checksum() != Checksum::Valid {
            self.wrong("a message of ICMP with a wrong checksum".into());
        }
        let flow = if direction == Direction::Up { word.four_tuple } else { word.four_tuple.reversed() };
        Some((self.stations.iter().position(|station| station.names.flow == flow)?, word))
    }

    fn wrong(&mut self, what: String) {
        if self.outcome.wrong.len() < DEFECTS {
            self.outcome.wrong.push(format!("{}: {what}", self.now));
        }
    }
}

/// What each flow loses on its own.
fn hops(scene: &Scene) -> Vec<LossProcess> {
    let hop = |(n, plan): (usize, &super::scene::Plan)| {
        LossProcess::new(plan.loss, scene.seed, &format!("hop {n}"), Direction::Down)
    };
    scene.flows.iter().enumerate().map(hop).collect()
}

/// What happens at fixed times.
fn plans(scene: &Scene) -> VecDeque<(Instant, Planned)> {
    let at = |since: Duration| Instant::ZERO + since;
    let mut planned = vec![(at(scene.attached), Planned::Attach)];
    planned.extend(scene.killed.map(|killed| (at(killed), Planned::Kill)));
    for blackout in scene.blackouts.iter().filter(|blackout| blackout.is_told) {
        planned.push((at(blackout.at), Planned::Carrier(blackout.link, false)));
        planned.push((at(blackout.at + blackout.lasts), Planned::Carrier(blackout.link, true)));
    }
    planned.extend(scene.hostile.iter().map(|(since, hostility)| (at(*since), Planned::Hostile(*hostility))));
    planned.sort();
    planned.into()
}

/// An output's name.
fn name(output: &Output) -> &'static str {
    match output {
        Output::Leave(_) => "leave",
        Output::Hold => "hold",
        Output::Send { link, .. } if *link == Scene::PRIMARY => "send over primary",
        Output::Send { .. } => "send over helper",
        Output::Deliver(_) => "deliver",
        Output::Count { .. } => "count",
        Output::Ask { .. } => "ask",
        Output::Watch(_) => "watch",
        Output::Call { .. } => "call",
        Output::HangUp(_) => "hang up",
        Output::Fetch(_) => "fetch",
        Output::Cancel(_) => "cancel",
    }
}

/// Whether one of these mechanisms needs bytes that can be fetched.
pub(super) fn needs_origin(mechanism: Mechanism) -> bool {
    matches!(mechanism, Mechanism::Hide | Mechanism::FreezeFlight | Mechanism::FastFetch)
}

/// What may be done for uploads.
const UPWARD: [Mechanism; 5] =
    [Mechanism::Undo, Mechanism::Reserve, Mechanism::Revert, Mechanism::Freeze, Mechanism::FreezeFlight];
/// What leaves with so many bytes or fewer is held: all pure ACKs, and little else.
const HELD: usize = 160;
/// Chosen: an instant at which more than this happens never ends.
const SPINS: u32 = 100_000;
/// Of a scene that is all wrong, so much is enough.
const DEFECTS: usize = 8;
/// How often it is asked whether all is over.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Chosen: questions every 20 ms for ten seconds where a link stays dark, then fewer; and some figures.
const IDLE_TICKS: u64 = 2500;
/// Chosen: longer than any silence after which a flow may still come back.
const AFTERWARDS: Duration = Duration::from_secs(1200);

#[cfg(test)]
mod tests;
