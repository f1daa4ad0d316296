//! Model of the kernels of client and server, the network between them, and the applications.
//!
//! It takes an [`MptcpScenario`] and the machine's outputs. It produces the machine's inputs and at the end an
//! [`MptcpOutcome`].
//!
//! 1. Everything happens in events; events of one instant happen in the order in which they were scheduled.
//! 2. A connection is reported when its first request has been acknowledged, two RTTs after its SYN. Like the
//!    upstream kernel, the model accepts no join before: MPTCP_EVENT_ESTABLISHED comes with the first DATA_ACK.
//! 3. A join takes one and a half RTTs on its link and is then reported. Its SYN is retransmitted after 1 s and 3
//!    s; if no packet gets through, nothing is ever reported. A server without free subflows resets the join half
//!    an RTT later.
//! 4. MP_PRIO is carried by one packet on its own subflow and is not retransmitted. Until it arrives, the server
//!    continues as before.
//! 5. Loss of carrier is reported at once; the subflows stay, as sockets do. A destroyed subflow responds to
//!    further data with a reset, so that the server learns about it even if the first reset was lost.
//! 6. The energy meter gets everything that arrives, in bytes on the wire, and each packet without payload that is
//!    sent for a handshake, a request, an option, a reset or a FIN. Acknowledgements are not counted, because they
//!    coincide with received data.

mod commands;
mod data;
mod events;
mod request;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use marline_core::energy::{Direction, Meter};
use marline_core::link::LinkId;
use marline_core::paths::{CloseReason, ConnId, Input};
use marline_core::units::{DataSize, Duration, Energy, Instant};

use super::link::QueuedLink;
use super::outcome::{MptcpLinkOutcome, MptcpOutcome, ProgressSample};
use super::rate_schedule::RateSchedule;
use super::reassembly::{Reassembly, SubflowReceiver};
use super::scenario::{LinkArrival, MptcpScenario, Request};
use super::sender::{Chunk, SubflowSender};
use super::{DataRange, InputQueue};
use crate::rng::{Purpose, RandomStream};

/// Payload share of an IP packet of 1500 bytes: 40 bytes of IPv4 and TCP headers, 12 of timestamps, 20 of MPTCP's
/// DSS.
pub const PAYLOAD_SHARE: f64 = MSS_MPTCP as f64 / 1500.0;
const MSS_MPTCP: u64 = 1428;
const MSS_TCP: u64 = 1448;

/// Model of both hosts and the network; see the [module documentation](self).
#[derive(Debug)]
pub(super) struct KernelModel {
    scenario: MptcpScenario,
    now: Instant,
    links: Vec<QueuedLink>,
    conns: Vec<ConnEnds>,
    subflows: Vec<SubflowEnds>,
    pools: Vec<VecDeque<Request>>,
    events: BinaryHeap<Reverse<ScheduledEvent>>,
    scheduled_count: u64,
    machine_inputs: InputQueue,
    meter: Meter,
    rng: RandomStream,
    closed_conns: usize,
    /// Payload received over each link, and the part of it that came over suspended subflows.
    link_payload: Vec<u64>,
    leaked_payload: Vec<u64>,
    command_counts: [u32; 3],
    command_times: Vec<Instant>,
    samples: Vec<ProgressSample>,
    notes: Vec<(Instant, String)>,
    invalid_commands: Vec<String>,
    max_prio_lag: Duration,
}

/// Client and server side of one connection.
#[derive(Debug)]
struct ConnEnds {
    flow: usize,
    stage: ConnStage,
    /// End of the bytes that the client has requested, and of those that the server may send.
    requested_end: u64,
    sendable_end: u64,
    /// Size of a request that the server has not received yet.
    pending_request: Option<DataSize>,
    /// End of the responses that the client has received completely.
    response_end: u64,
    next_offset: u64,
    acknowledged: u64,
    /// Data to be reinjected on any working subflow.
    retransmit_queue: VecDeque<DataRange>,
    reassembly: Reassembly,
    finished_at: Option<Instant>,
    subflows: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConnStage {
    New,
    Established,
    /// Reported to the machine.
    Reported,
    Closed,
}

/// Client and server side of one subflow.
#[derive(Debug)]
struct SubflowEnds {
    conn: usize,
    link: usize,
    initial: bool,
    rtt: Duration,
    /// Whether each side still has the subflow.
    is_open_at_client: bool,
    is_open_at_server: bool,
    is_reported: bool,
    /// Backup flag as set at the client, and as known to the server.
    client_backup: bool,
    server_backup: bool,
    /// Set while the client wants a backup and the server does not know: bytes delivered since then, and since when
    /// they exceed `MAX_BYTES_BEFORE_PRIO`.
    prio_lag: Option<(u64, Option<Instant>)>,
    sender: SubflowSender,
    receiver: SubflowReceiver,
    /// Chunks from this offset of the subflow on were assigned while it was a backup.
    backup_since: Option<u64>,
    assigned_bytes: u64,
    /// Assigned data that the client has not acknowledged in order on any subflow.
    unacked: VecDeque<DataRange>,
    /// Request bytes sent over this subflow and acknowledged, those not yet acknowledged, and the number of
    /// consecutive timeouts.
    request_bytes_acked: u64,
    request_bytes_unacked: u64,
    timeouts: u8,
    is_timer_armed: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Start(usize),
    Established(usize),
    ConnReady(usize),
    /// The client sends its next request.
    SendRequest(usize, DataSize),
    /// The server has received the request over this subflow.
    RequestArrived(usize),
    /// The client receives the acknowledgement of its request.
    RequestAcked(usize),
    /// Retransmits a request that is not acknowledged by now.
    RequestTimeout(usize, u32),
    /// Pings the server if nothing has arrived since; contains the bytes requested and received when it was
    /// scheduled.
    Ping(usize, [u64; 2]),
    /// Sends the SYN of a join, for the first time or again.
    Syn {
        conn: usize,
        link: usize,
        backup: bool,
        attempt: u32,
    },
    DataArrived(usize, Chunk, u64),
    AckArrived(usize, u64, u64),
    Timer(usize),
    JoinArrived {
        conn: usize,
        link: usize,
        backup: bool,
    },
    JoinReset(usize),
    MpPrioArrived(usize, bool),
    ResetArrived(usize),
    Carrier(usize, bool),
    /// Index of the arrival in the scenario.
    LinkArrival(usize),
    InterfaceCounters,
    Sample,
}

/// An event with its position in the order.
#[derive(Clone, Debug)]
struct ScheduledEvent {
    at: Instant,
    sequence: u64,
    event: Event,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for ScheduledEvent {}
impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl KernelModel {
    pub(super) fn new(scenario: MptcpScenario) -> Self {
        let mut meter = Meter::new(scenario.model.clone(), Instant::ZERO);
        let make_link = |spec: &crate::spec::LinkSpec| {
            let schedule = RateSchedule::new(spec, &scenario.events, scenario.time_limit);
            QueuedLink::new(spec, schedule, scenario.seed, scenario.time_limit)
        };
        let links: Vec<QueuedLink> = scenario.links.iter().map(make_link).collect();
        for (id, link) in (0..).map(LinkId).zip(&links) {
            meter.add_link(Instant::ZERO, id, link.kind);
        }
        let mut kernel = Self {
            now: Instant::ZERO,
            conns: Vec::new(),
            subflows: Vec::new(),
            pools: scenario.request_pools.iter().map(|pool| pool.iter().copied().collect()).collect(),
            events: BinaryHeap::new(),
            scheduled_count: 0,
            machine_inputs: VecDeque::new(),
            meter,
            rng: RandomStream::new(scenario.seed, "kernel", 0, Purpose::Other),
            closed_conns: 0,
            link_payload: vec![0; links.len()],
            leaked_payload: vec![0; links.len()],
            command_counts: [0; 3],
            command_times: Vec::new(),
            samples: Vec::new(),
            notes: Vec::new(),
            invalid_commands: Vec::new(),
            max_prio_lag: Duration::ZERO,
            links,
            scenario,
        };
        for flow in 0..kernel.scenario.flows.len() {
            kernel.conns.push(ConnEnds::new(flow));
            kernel.schedule_event(Instant::ZERO + kernel.scenario.flows[flow].start, Event::Start(flow));
        }
        for carrier in kernel.scenario.carrier_changes.clone() {
            kernel.schedule_event(Instant::ZERO + carrier.at, Event::Carrier(carrier.link, carrier.has_carrier));
        }
        for (number, arrival) in kernel.scenario.link_arrivals.clone().iter().enumerate() {
            kernel.links[usize::from(arrival.config.id.0)].has_carrier = false;
            kernel.schedule_event(Instant::ZERO + arrival.at, Event::LinkArrival(number));
        }
        kernel.schedule_event(Instant::ZERO + kernel.scenario.sample_interval, Event::Sample);
        kernel.schedule_event(Instant::ZERO + COUNTER_INTERVAL, Event::InterfaceCounters);
        kernel
    }

    /// Whether all connections are closed or the time limit is reached.
    pub(super) fn is_over(&self) -> bool {
        self.closed_conns == self.conns.len() || self.now >= Instant::ZERO + self.scenario.time_limit
    }

    /// Time of the next event.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let end = Instant::ZERO + self.scenario.time_limit;
        self.events.peek().map(|Reverse(due)| due.at.min(end))
    }

    /// The next input for the machine.
    pub(super) fn next_input(&mut self) -> Option<Input> {
        self.machine_inputs.pop_front()
    }

    /// Processes the next event, or ends at the time limit.
    pub(super) fn step(&mut self) {
        let end = Instant::ZERO + self.scenario.time_limit;
        match self.events.pop() {
            Some(Reverse(due)) if due.at < end => {
                self.now = due.at;
                self.handle_event(due.event);
            }
            _ => self.now = end,
        }
    }

    fn schedule_event(&mut self, at: Instant, event: Event) {
        self.scheduled_count += 1;
        self.events.push(Reverse(ScheduledEvent { at, sequence: self.scheduled_count, event }));
    }

    /// Sends a packet without payload over a link and returns its arrival time, unless it is lost.
    fn send_control(&mut self, link: usize) -> Option<Instant> {
        if self.links[link].has_carrier {
            let id = LinkId(u16::try_from(link).unwrap_or(u16::MAX));
            self.meter.on_bytes(self.now, id, Direction::Up, DataSize::ZERO);
        }
        let is_lost = self.links[link].next_is_lost();
        self.links[link].send_control(self.now).filter(|_| !is_lost)
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Start(conn) => self.open_conn(conn),
            Event::Established(conn) => self.on_established(conn),
            Event::ConnReady(conn) if self.conns[conn].stage == ConnStage::Established => {
                self.conns[conn].stage = ConnStage::Reported;
                if self.scenario.is_mptcp {
                    self.report_opened(conn, false);
                    self.report_subflow_up(self.conns[conn].subflows[0]);
                }
            }
            Event::ConnReady(_) => {}
            Event::SendRequest(conn, size) => self.client_request(conn, size),
            Event::RequestArrived(sub) => self.on_request(sub),
            Event::RequestAcked(sub) => {
                let sub = &mut self.subflows[sub];
                (sub.request_bytes_acked, sub.request_bytes_unacked, sub.timeouts) =
                    (sub.request_bytes_acked + sub.request_bytes_unacked, 0, 0);
            }
            Event::RequestTimeout(sub, tries) => self.on_request_timeout(sub, tries),
            Event::Ping(conn, progress) => self.on_ping_due(conn, progress),
            Event::Syn { conn, link, backup, attempt } => self.send_syn(conn, link, backup, attempt),
            Event::DataArrived(sub, chunk, number) => self.on_data(sub, chunk, number),
            Event::AckArrived(sub, number, next_offset) => self.on_ack(sub, number, next_offset),
            Event::Timer(sub) => self.on_timer(sub),
            Event::JoinArrived { conn, link, backup } => self.on_joined(conn, link, backup),
            Event::JoinReset(sub) => self.report_subflow_down(sub, CloseReason::Reset),
            Event::MpPrioArrived(sub, backup) => self.on_mp_prio(sub, backup),
            Event::ResetArrived(sub) => self.on_reset(sub),
            Event::LinkArrival(number) => {
                let config = self.scenario.link_arrivals[number].config.clone();
                self.links[usize::from(config.id.0)].has_carrier = true;
                let link = config.id;
                self.machine_inputs.extend([Input::LinkAdded { config }, Input::LinkUp { link }]);
            }
            Event::Carrier(link, up) => {
                let id = LinkId(u16::try_from(link).unwrap_or(u16::MAX));
                if self.link_arrival(id).is_some_and(|arrival| self.now < Instant::ZERO + arrival.at) {
                    return;
                }
                self.links[link].has_carrier = up;
                self.machine_inputs.push_back(if up {
                    Input::LinkUp { link: id }
                } else {
                    Input::LinkDown { link: id }
                });
            }
            Event::InterfaceCounters => {
                for (id, link) in (0..).map(LinkId).zip(&self.links).filter(|(_, link)| link.has_carrier) {
                    let [received, sent] = [link.received, link.sent].map(DataSize::from_bytes);
                    self.machine_inputs.push_back(Input::InterfaceCounters { link: id, received, sent });
                }
                self.schedule_event(self.now + COUNTER_INTERVAL, Event::InterfaceCounters);
            }
            Event::Sample => {
                self.take_sample();
                self.schedule_event(self.now + self.scenario.sample_interval, Event::Sample);
            }
        }
    }

    /// The arrival of a link that was not present at the start.
    fn link_arrival(&self, link: LinkId) -> Option<&LinkArrival> {
        self.scenario.link_arrivals.iter().find(|arrival| arrival.config.id == link)
    }

    fn open_conn(&mut self, conn: usize) {
        let link = self.scenario.flows[self.conns[conn].flow].initial_link;
        let arrival = self.send_control(link);
        match arrival {
            Some(_) => self.schedule_event(self.now + self.links[link].rtt, Event::Established(conn)),
            None => self.schedule_event(self.now + SYN_TIMEOUT, Event::Start(conn)),
        }
    }

    fn on_established(&mut self, conn: usize) {
        let link = self.scenario.flows[self.conns[conn].flow].initial_link;
        self.conns[conn].stage = ConnStage::Established;
        self.add_subflow(conn, link, false, true);
        self.next_request(conn);
        self.schedule_event(self.now + self.links[link].rtt, Event::ConnReady(conn));
    }

    fn add_subflow(&mut self, conn: usize, link: usize, backup: bool, initial: bool) -> usize {
        let (now, rtt) = (self.now, self.links[link].rtt.max(MIN_RTT));
        let mss = self.mss();
        let index = self.subflows.len();
        self.subflows.push(SubflowEnds {
            conn,
            link,
            initial,
            rtt,
            is_open_at_client: true,
            is_open_at_server: true,
            is_reported: false,
            client_backup: backup,
            server_backup: backup,
            prio_lag: None,
            sender: SubflowSender::new(now, rtt, mss, self.scenario.server.keeps_cwnd),
            receiver: SubflowReceiver::default(),
            backup_since: backup.then_some(0),
            assigned_bytes: 0,
            unacked: VecDeque::new(),
            request_bytes_acked: 0,
            request_bytes_unacked: 0,
            timeouts: 0,
            is_timer_armed: false,
        });
        self.conns[conn].subflows.push(index);
        index
    }

    /// Sends the client's next request, or closes the connection if there is none.
    fn next_request(&mut self, conn: usize) {
        let pool = self.scenario.flows[self.conns[conn].flow].pool;
        match self.pools.get_mut(pool).and_then(VecDeque::pop_front) {
            Some(request) if request.delay.is_zero() => self.client_request(conn, request.size),
            Some(request) => self.schedule_event(self.now + request.delay, Event::SendRequest(conn, request.size)),
            None => self.close(conn),
        }
    }

    /// Closes the connection with a FIN on each subflow.
    fn close(&mut self, conn: usize) {
        let previous = std::mem::replace(&mut self.conns[conn].stage, ConnStage::Closed);
        self.conns[conn].finished_at = Some(self.now);
        self.closed_conns += 1;
        for sub in self.conns[conn].subflows.clone() {
            if self.subflows[sub].is_open_at_client {
                self.send_control(self.subflows[sub].link);
            }
            self.subflows[sub].is_open_at_client = false;
            self.subflows[sub].is_open_at_server = false;
        }
        if self.scenario.is_mptcp && previous == ConnStage::Reported {
            self.machine_inputs.push_back(Input::Closed { conn: conn_id(conn) });
        }
    }

    fn mss(&self) -> u64 {
        if self.scenario.is_mptcp { MSS_MPTCP } else { MSS_TCP }
    }

    fn delivered(&self) -> DataSize {
        DataSize::from_bytes(self.conns.iter().map(|conn| conn.reassembly.next_offset()).sum())
    }

    fn take_sample(&mut self) {
        self.samples.push(ProgressSample {
            at: self.now,
            delivered: self.delivered(),
            links: self.link_payload.iter().map(|bytes| DataSize::from_bytes(*bytes)).collect(),
            energy_so_far: self.meter.energy_so_far(self.now).total(),
        });
    }

    pub(super) fn outcome(&self, now: Instant) -> MptcpOutcome {
        let breakdown = self.meter.energy_until_idle(now);
        let links = (0..).map(LinkId).zip(&self.links).zip(&self.link_payload).zip(&self.leaked_payload);
        let links = links.map(|(((id, link), payload), leaked)| MptcpLinkOutcome {
            name: link.name.clone(),
            bytes: DataSize::from_bytes(*payload),
            promotions: self.meter.radio(id).map_or(0, |radio| radio.totals(now).promotions),
            energy: breakdown.radio(id).map_or(Energy::ZERO, |energy| energy.total()),
            leaked: DataSize::from_bytes(*leaked),
        });
        let flows: Vec<Option<Duration>> =
            self.conns.iter().map(|conn| conn.finished_at.map(|at| at.since(Instant::ZERO))).collect();
        MptcpOutcome {
            finished_at: flows.iter().copied().collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max()),
            delivered: self.delivered(),
            duplicate_bytes: DataSize::from_bytes(
                self.conns.iter().map(|conn| conn.reassembly.duplicate_bytes).sum(),
            ),
            links: links.collect(),
            breakdown,
            command_counts: self.command_counts,
            command_times: self.command_times.clone(),
            samples: self.samples.clone(),
            notes: self.notes.clone(),
            invalid_commands: self.invalid_commands.clone(),
            max_prio_lag: self.max_prio_lag,
            flow_times: flows,
        }
    }
}

impl ConnEnds {
    fn new(flow: usize) -> Self {
        Self {
            flow,
            stage: ConnStage::New,
            requested_end: 0,
            pending_request: None,
            sendable_end: 0,
            response_end: 0,
            next_offset: 0,
            acknowledged: 0,
            retransmit_queue: VecDeque::new(),
            reassembly: Reassembly::default(),
            finished_at: None,
            subflows: Vec::new(),
        }
    }
}

fn conn_id(index: usize) -> ConnId {
    ConnId(u32::try_from(index).unwrap_or(u32::MAX))
}

/// Interval of reporting interface counters (duty 6 in core/paths/event.rs).
const COUNTER_INTERVAL: Duration = Duration::from_secs(1);
/// Retransmission timeout of a SYN: it doubles for joins and is constant for the first subflow.
const SYN_TIMEOUT: Duration = Duration::from_secs(1);
/// RTT of a link without delay.
const MIN_RTT: Duration = Duration::from_micros(200);
