//! The kernel of the host and that of the server, the network between them, and the applications.
//!
//! In: a [`Scene`], and the machine's outputs. Out: the machine's inputs, and at the end an [`Outcome`].
//!
//! 1. Everything happens at an event; events of one moment happen in the order in which they were planned.
//! 2. A connection is told of when its first request has been acknowledged, two round trips after its SYN, because the
//!    kernel joins none before (facts: ESTABLISHED comes with the first DATA_ACK).
//! 3. A join takes one and a half round trips on its link and is then told of. Its SYN is sent again after 1 s and 3 s; where
//!    no packet comes through, nothing is ever told. A server that has its fill resets it half a round trip later.
//! 4. MP_PRIO rides on one packet of its own subflow and is not repeated. Until it has arrived the server goes on as
//!    before.
//! 5. Loss of carrier is told at once; the subflows stay where they are, as sockets do. A subflow that was destroyed
//!    answers what still comes with a reset, so that the server learns of it even if the first reset was lost.
//! 6. Signs of traffic for the meter: everything that arrives, in bytes on the wire, and each packet without payload that
//!    goes out for a handshake, a request, an option, a reset or an end. Acknowledgements are not counted: they go while
//!    data come.

mod command;
mod data;
mod request;
mod tell;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use marline_core::energy::{Direction, Meter};
use marline_core::link::LinkId;
use marline_core::paths::{CloseReason, ConnId, Input};
use marline_core::units::{DataSize, Duration, Energy, Instant};

use super::conn::{Reassembly, Receiver};
use super::course::Course;
use super::lane::Lane;
use super::outcome::{LinkOutcome, Outcome, Sample};
use super::scene::{Arrival, Request, Scene};
use super::sender::{Piece, Sender};
use super::{Data, Inbox};
use crate::rng::{Purpose, Stream};

/// What of an IP packet of 1500 bytes is payload: 20 + 20 bytes of IPv4 and TCP, 12 of timestamps, 20 of MPTCP's mapping.
pub const PAYLOAD: f64 = MSS_MPTCP as f64 / 1500.0;
const MSS_MPTCP: u64 = 1428;
const MSS_TCP: u64 = 1448;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Kernel {
    scene: Scene,
    now: Instant,
    links: Vec<Lane>,
    conns: Vec<Conn>,
    subs: Vec<Sub>,
    pools: Vec<VecDeque<Request>>,
    events: BinaryHeap<Reverse<Due>>,
    planned: u64,
    inbox: Inbox,
    meter: Meter,
    random: Stream,
    over: usize,
    /// Payload that came over each link, and what leaked.
    came: Vec<u64>,
    leaked: Vec<u64>,
    commands: [u32; 3],
    commanded: Vec<Instant>,
    samples: Vec<Sample>,
    notes: Vec<(Instant, String)>,
    nonsense: Vec<String>,
    unheard: Duration,
}

/// Both ends of one connection.
#[derive(Debug)]
struct Conn {
    flow: usize,
    stage: Stage,
    /// Bytes that the client has asked for, and that the server may send.
    asked: u64,
    ready: u64,
    /// A request that the server has not heard yet.
    requested: Option<DataSize>,
    /// Of what was asked for, what has come and was taken for an end.
    answered: u64,
    next: u64,
    acknowledged: u64,
    /// To be sent again on whatever works.
    again: VecDeque<Data>,
    reassembly: Reassembly,
    finished: Option<Instant>,
    subs: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    New,
    Established,
    /// The machine knows of it.
    Told,
    Closed,
}

/// Both ends of one subflow.
#[derive(Debug)]
struct Sub {
    conn: usize,
    link: usize,
    initial: bool,
    rtt: Duration,
    /// Whether each end still has it.
    here: bool,
    there: bool,
    told: bool,
    /// What this end has asked for, and what the server has heard.
    backup: bool,
    heard: bool,
    /// This end has wanted a backup and the server has not heard of it: what came since, and since when that was more
    /// than [`data`] lets pass.
    unheard: Option<(u64, Option<Instant>)>,
    sender: Sender,
    receiver: Receiver,
    /// Pieces from here on were given to it while it was a backup.
    drained: Option<u64>,
    given: u64,
    /// What it was given that the client has not acknowledged in order, on whatever subflow.
    mapped: VecDeque<Data>,
    /// Bytes of requests that went over it and were acknowledged, those that are not yet, and how often in a row they
    /// were sent again.
    asked: u64,
    waiting: u64,
    timeouts: u8,
    timer: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Start(usize),
    Established(usize),
    Joinable(usize),
    /// The client asks for the next thing.
    Ask(usize, DataSize),
    /// The server has heard it, over this subflow.
    Asked(usize),
    /// The client hears that it has.
    Heard(usize),
    /// If it does not hear it by now it sends the request again.
    Again(usize, u32),
    /// If nothing has come since then it asks whether anybody is there: bytes asked for and come at that time.
    Ping(usize, [u64; 2]),
    /// The first packet of a join goes out, for the first time or again.
    Syn {
        conn: usize,
        link: usize,
        backup: bool,
        tries: u32,
    },
    Arrives(usize, Piece, u64),
    Acked(usize, u64, u64),
    Timer(usize),
    Joined {
        conn: usize,
        link: usize,
        backup: bool,
    },
    Refused(usize),
    Prio(usize, bool),
    Reset(usize),
    Carrier(usize, bool),
    /// By its place in the scene.
    Arrival(usize),
    Traffic,
    Sample,
}

/// An event in its order.
#[derive(Clone, Debug)]
struct Due {
    at: Instant,
    number: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Kernel {
    pub(super) fn new(scene: Scene) -> Self {
        let mut meter = Meter::new(scene.model.clone(), Instant::ZERO);
        let lane = |spec: &crate::spec::LinkSpec| {
            let course = Course::new(spec, &scene.events, scene.limit);
            Lane::new(spec, course, scene.seed, scene.limit)
        };
        let links: Vec<Lane> = scene.links.iter().map(lane).collect();
        for (id, link) in (0..).map(LinkId).zip(&links) {
            meter.add_link(Instant::ZERO, id, link.kind);
        }
        let mut kernel = Self {
            now: Instant::ZERO,
            conns: Vec::new(),
            subs: Vec::new(),
            pools: scene.pools.iter().map(|pool| pool.iter().copied().collect()).collect(),
            events: BinaryHeap::new(),
            planned: 0,
            inbox: VecDeque::new(),
            meter,
            random: Stream::new(scene.seed, "kernel", 0, Purpose::Other),
            over: 0,
            came: vec![0; links.len()],
            leaked: vec![0; links.len()],
            commands: [0; 3],
            commanded: Vec::new(),
            samples: Vec::new(),
            notes: Vec::new(),
            nonsense: Vec::new(),
            unheard: Duration::ZERO,
            links,
            scene,
        };
        for flow in 0..kernel.scene.flows.len() {
            kernel.conns.push(Conn::new(flow));
            kernel.plan(Instant::ZERO + kernel.scene.flows[flow].start, Event::Start(flow));
        }
        for carrier in kernel.scene.carrier.clone() {
            kernel.plan(Instant::ZERO + carrier.at, Event::Carrier(carrier.link, carrier.up));
        }
        for (number, arrival) in kernel.scene.arrivals.clone().iter().enumerate() {
            kernel.links[usize::from(arrival.terms.id.0)].carrier = false;
            kernel.plan(Instant::ZERO + arrival.at, Event::Arrival(number));
        }
        kernel.plan(Instant::ZERO + kernel.scene.sample, Event::Sample);
        kernel.plan(Instant::ZERO + TRAFFIC, Event::Traffic);
        kernel
    }

    /// Whether there is nothing left to do, or no time.
    pub(super) fn is_over(&self) -> bool {
        self.over == self.conns.len() || self.now >= Instant::ZERO + self.scene.limit
    }

    /// When the next event is.
    pub(super) fn due(&self) -> Option<Instant> {
        let end = Instant::ZERO + self.scene.limit;
        self.events.peek().map(|Reverse(due)| due.at.min(end))
    }

    /// The next thing to tell.
    pub(super) fn told(&mut self) -> Option<Input> {
        self.inbox.pop_front()
    }

    /// Lets the next event happen, or ends at the limit.
    pub(super) fn step(&mut self) {
        let end = Instant::ZERO + self.scene.limit;
        match self.events.pop() {
            Some(Reverse(due)) if due.at < end => {
                self.now = due.at;
                self.happen(due.event);
            }
            _ => self.now = end,
        }
    }

    fn plan(&mut self, at: Instant, event: Event) {
        self.planned += 1;
        self.events.push(Reverse(Due { at, number: self.planned, event }));
    }

    /// A packet without payload goes out over a link; when it arrives, if it does.
    fn control(&mut self, link: usize) -> Option<Instant> {
        if self.links[link].carrier {
            let id = LinkId(u16::try_from(link).unwrap_or(u16::MAX));
            self.meter.on_bytes(self.now, id, Direction::Up, DataSize::ZERO);
        }
        let lost = self.links[link].loses();
        self.links[link].ask(self.now).filter(|_| !lost)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(conn) => self.start(conn),
            Event::Established(conn) => self.established(conn),
            Event::Joinable(conn) if self.conns[conn].stage == Stage::Established => {
                self.conns[conn].stage = Stage::Told;
                if self.scene.mptcp {
                    self.tell_opened(conn, false);
                    self.tell_up(self.conns[conn].subs[0]);
                }
            }
            Event::Joinable(_) => {}
            Event::Ask(conn, size) => self.ask(conn, size),
            Event::Asked(sub) => self.asked(sub),
            Event::Heard(sub) => {
                let sub = &mut self.subs[sub];
                (sub.asked, sub.waiting, sub.timeouts) = (sub.asked + sub.waiting, 0, 0);
            }
            Event::Again(sub, tries) => self.again(sub, tries),
            Event::Ping(conn, then) => self.ping(conn, then),
            Event::Syn { conn, link, backup, tries } => self.syn(conn, link, backup, tries),
            Event::Arrives(sub, piece, number) => self.arrives(sub, piece, number),
            Event::Acked(sub, number, upto) => self.acked(sub, number, upto),
            Event::Timer(sub) => self.timer(sub),
            Event::Joined { conn, link, backup } => self.joined(conn, link, backup),
            Event::Refused(sub) => self.tell_down(sub, CloseReason::Reset),
            Event::Prio(sub, backup) => self.prio(sub, backup),
            Event::Reset(sub) => self.reset(sub),
            Event::Arrival(number) => {
                let terms = self.scene.arrivals[number].terms.clone();
                self.links[usize::from(terms.id.0)].carrier = true;
                let link = terms.id;
                self.inbox.extend([Input::LinkAdded { config: terms }, Input::LinkUp { link }]);
            }
            Event::Carrier(link, up) => {
                let id = LinkId(u16::try_from(link).unwrap_or(u16::MAX));
                if self.arrival(id).is_some_and(|arrival| self.now < Instant::ZERO + arrival.at) {
                    return;
                }
                self.links[link].carrier = up;
                self.inbox.push_back(if up { Input::LinkUp { link: id } } else { Input::LinkDown { link: id } });
            }
            Event::Traffic => {
                for (id, link) in (0..).map(LinkId).zip(&self.links).filter(|(_, link)| link.carrier) {
                    let [received, sent] = [link.received, link.sent].map(DataSize::from_bytes);
                    self.inbox.push_back(Input::InterfaceCounters { link: id, received, sent });
                }
                self.plan(self.now + TRAFFIC, Event::Traffic);
            }
            Event::Sample => {
                self.sample();
                self.plan(self.now + self.scene.sample, Event::Sample);
            }
        }
    }

    /// How a link came, if it was not there from the start.
    fn arrival(&self, link: LinkId) -> Option<&Arrival> {
        self.scene.arrivals.iter().find(|arrival| arrival.terms.id == link)
    }

    fn start(&mut self, conn: usize) {
        let link = self.scene.flows[self.conns[conn].flow].first;
        let arrives = self.control(link);
        match arrives {
            Some(_) => self.plan(self.now + self.links[link].rtt, Event::Established(conn)),
            None => self.plan(self.now + SYN_AGAIN, Event::Start(conn)),
        }
    }

    fn established(&mut self, conn: usize) {
        let link = self.scene.flows[self.conns[conn].flow].first;
        self.conns[conn].stage = Stage::Established;
        self.add_sub(conn, link, false, true);
        self.next_request(conn);
        self.plan(self.now + self.links[link].rtt, Event::Joinable(conn));
    }

    fn add_sub(&mut self, conn: usize, link: usize, backup: bool, initial: bool) -> usize {
        let (now, rtt) = (self.now, self.links[link].rtt.max(LEAST_RTT));
        let mss = self.mss();
        let at = self.subs.len();
        self.subs.push(Sub {
            conn,
            link,
            initial,
            rtt,
            here: true,
            there: true,
            told: false,
            backup,
            heard: backup,
            unheard: None,
            sender: Sender::new(now, rtt, mss, self.scene.server.keeps_window),
            receiver: Receiver::default(),
            drained: backup.then_some(0),
            given: 0,
            mapped: VecDeque::new(),
            asked: 0,
            waiting: 0,
            timeouts: 0,
            timer: false,
        });
        self.conns[conn].subs.push(at);
        at
    }

    /// The client's next request, or the connection's end.
    fn next_request(&mut self, conn: usize) {
        let pool = self.scene.flows[self.conns[conn].flow].pool;
        match self.pools.get_mut(pool).and_then(VecDeque::pop_front) {
            Some(request) if request.after.is_zero() => self.ask(conn, request.size),
            Some(request) => self.plan(self.now + request.after, Event::Ask(conn, request.size)),
            None => self.close(conn),
        }
    }

    /// A FIN goes over each subflow.
    fn close(&mut self, conn: usize) {
        let was = std::mem::replace(&mut self.conns[conn].stage, Stage::Closed);
        self.conns[conn].finished = Some(self.now);
        self.over += 1;
        for sub in self.conns[conn].subs.clone() {
            if self.subs[sub].here {
                self.control(self.subs[sub].link);
            }
            self.subs[sub].here = false;
            self.subs[sub].there = false;
        }
        if self.scene.mptcp && was == Stage::Told {
            self.inbox.push_back(Input::Closed { conn: name(conn) });
        }
    }

    fn mss(&self) -> u64 {
        if self.scene.mptcp { MSS_MPTCP } else { MSS_TCP }
    }

    fn delivered(&self) -> DataSize {
        DataSize::from_bytes(self.conns.iter().map(|conn| conn.reassembly.next()).sum())
    }

    fn sample(&mut self) {
        self.samples.push(Sample {
            at: self.now,
            delivered: self.delivered(),
            links: self.came.iter().map(|bytes| DataSize::from_bytes(*bytes)).collect(),
            spent: self.meter.energy_so_far(self.now).total(),
        });
    }

    pub(super) fn outcome(&self, now: Instant) -> Outcome {
        let account = self.meter.energy_until_idle(now);
        let links = (0..).map(LinkId).zip(&self.links).zip(&self.came).zip(&self.leaked);
        let links = links.map(|(((id, link), came), leaked)| LinkOutcome {
            name: link.name.clone(),
            bytes: DataSize::from_bytes(*came),
            wakes: self.meter.radio(id).map_or(0, |radio| radio.totals(now).promotions),
            energy: account.radio(id).map_or(Energy::ZERO, |bill| bill.total()),
            leaked: DataSize::from_bytes(*leaked),
        });
        let flows: Vec<Option<Duration>> =
            self.conns.iter().map(|conn| conn.finished.map(|at| at.since(Instant::ZERO))).collect();
        Outcome {
            finished: flows.iter().copied().collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max()),
            delivered: self.delivered(),
            twice: DataSize::from_bytes(self.conns.iter().map(|conn| conn.reassembly.twice).sum()),
            links: links.collect(),
            account,
            commands: self.commands,
            commanded: self.commanded.clone(),
            samples: self.samples.clone(),
            notes: self.notes.clone(),
            nonsense: self.nonsense.clone(),
            unheard: self.unheard,
            flows,
        }
    }
}

impl Conn {
    fn new(flow: usize) -> Self {
        Self {
            flow,
            stage: Stage::New,
            asked: 0,
            requested: None,
            ready: 0,
            answered: 0,
            next: 0,
            acknowledged: 0,
            again: VecDeque::new(),
            reassembly: Reassembly::default(),
            finished: None,
            subs: Vec::new(),
        }
    }
}

fn name(conn: usize) -> ConnId {
    ConnId(u32::try_from(conn).unwrap_or(u32::MAX))
}

/// How often the driver tells of interfaces' counters (core/paths/event.rs, duty 4).
const TRAFFIC: Duration = Duration::from_secs(1);
/// The first retransmission of a SYN.
const SYN_AGAIN: Duration = Duration::from_secs(1);
/// Of a link without any delay.
const LEAST_RTT: Duration = Duration::from_micros(200);
