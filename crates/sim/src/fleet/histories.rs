//! Histories of bonding in virtual time: what happens to relays, edges, links and flows, as inputs of the machines of
//! [`marline_core::fleet`].
//!
//! Each function drives one machine as its driver does: it drains the outputs after each call, carries them out, and
//! reports the results. The histories contain what a fleet experiences: relays that drain or fail, a service that does
//! not answer, links that come and go, a change of the leader, a live stream beside bulk transfers.

use std::collections::BTreeMap;

use marline_core::fleet::fair_share::{self, PaceGrant};
use marline_core::fleet::live_priority::{self, FlowSample};
use marline_core::fleet::messages::{
    AssignmentReply, AssignmentRequest, Candidate, CurrentAssignment, Heartbeat, NoRelayReason, RelayMeasurement,
    Report, StateVersion,
};
use marline_core::fleet::relay_selection::{self, LinkFacts, ProbeResult, TrafficSample};
use marline_core::fleet::scheduling::{self, MatchingProblem, MemberRow, Proximity, Reply};
use marline_core::fleet::udp_link::{LinkSample, ObservedLink, UdpLinkState};
use marline_core::fleet::{Endpoint, Name, messages};
use marline_core::machine::Machine;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::rng::{Purpose, RandomStream};

/// The relays of the histories, with their capacities in Mbit/s.
const RELAYS: [(&str, u64); 3] = [("ams", 60), ("fra", 100), ("nyc", 30)];
const EDGES: u64 = 8;
/// Work of the solver, enough for these problems.
const SOLVER_WORK: u64 = 1_000_000;
/// How long the solver takes.
const SOLVING_TIME: Duration = Duration::from_millis(300);

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn edge_name(n: u64) -> Name {
    name(&format!("cam-{n}"))
}

fn endpoint(relay: &str) -> Endpoint {
    format!("{relay}.example:4443").parse().expect("a host and a port")
}

fn origin() -> Endpoint {
    "live.example:1935".parse().expect("a host and a port")
}

/// Drives a fleet scheduler with three relays and eight edges for this long.
pub fn run_scheduler<M>(machine: M, seed: u64, time: Duration) -> M
where
    M: Machine<Input = scheduling::Input, Output = scheduling::Output>,
{
    let mut fleet = FleetHistory {
        machine,
        random: RandomStream::new(seed, "fleet", 0, Purpose::Other),
        now: Instant::from_millis(1000),
        seen_versions: BTreeMap::new(),
        assignments: BTreeMap::new(),
        problems: Vec::new(),
        rows: Vec::new(),
    };
    fleet.input(scheduling::Input::Replicate(true));
    let end = fleet.now + time;
    while fleet.now < end {
        fleet.step();
    }
    fleet.machine
}

struct FleetHistory<M> {
    machine: M,
    random: RandomStream,
    now: Instant,
    /// The version that each relay has received last.
    seen_versions: BTreeMap<&'static str, StateVersion>,
    /// The assignment that each edge has received last.
    assignments: BTreeMap<u64, CurrentAssignment>,
    /// The problems that are being solved, and when each solution is ready.
    problems: Vec<(Instant, MatchingProblem)>,
    rows: Vec<MemberRow>,
}

impl<M> FleetHistory<M>
where
    M: Machine<Input = scheduling::Input, Output = scheduling::Output>,
{
    /// One event, and the time until the next one.
    fn step(&mut self) {
        self.now += Duration::from_millis(20 + self.random.below(400));
        while let Some(at) = self.machine.deadline().map(|(at, _)| at).filter(|at| *at <= self.now) {
            self.machine.tick(at.max(self.now));
            self.drain();
        }
        if let Some(ready) = self.problems.iter().position(|(at, _)| *at <= self.now) {
            let (_, problem) = self.problems.remove(ready);
            self.input(scheduling::Input::Solved(problem.solve(SOLVER_WORK)));
        }
        match self.random.below(100) {
            0..40 => self.send_heartbeat(),
            40..55 => self.send_request(),
            55..85 => self.send_report(),
            85..90 => {
                let edge = self.random.below(EDGES);
                self.input(scheduling::Input::Candidates(edge_name(edge), Proximity::default()));
            }
            90..93 => {
                let edge = self.random.below(EDGES);
                self.assignments.remove(&edge);
                self.input(scheduling::Input::Release(edge_name(edge)));
            }
            93..95 => {
                let (relay, draining) = (name(self.relay().0), self.random.below(2) == 0);
                self.input(scheduling::Input::Drain { relay, draining, time: Some(Duration::from_secs(20)) });
            }
            95..98 => self.input(scheduling::Input::TakeRows(4)),
            98 => self.change_leader(),
            _ => self.now += Duration::from_secs(12),
        }
    }

    fn relay(&mut self) -> (&'static str, u64) {
        let at = usize::try_from(self.random.below(RELAYS.len() as u64)).unwrap_or_default();
        RELAYS.get(at).copied().unwrap_or(("fra", 100))
    }

    fn send_heartbeat(&mut self) {
        let (relay, capacity) = self.relay();
        let free = Bitrate::from_mbps(self.random.below(capacity + 1));
        let heartbeat = Heartbeat {
            capacity: Bitrate::from_mbps(capacity),
            free,
            addresses: vec![endpoint(relay)],
            server_name: format!("{relay}.example").parse().expect("an address"),
            position: None,
            origin_rates: BTreeMap::new(),
            origin_lower_bounds: BTreeMap::new(),
            draining: self.random.below(40) == 0,
            seen_version: self.seen_versions.get(relay).copied().unwrap_or_default(),
            reservations: None,
        };
        self.machine.handle(self.now, scheduling::Input::Heartbeat(name(relay), heartbeat));
        if let Some(Reply::Heartbeat(reply)) = self.drain() {
            self.seen_versions.insert(relay, reply.version);
        }
    }

    fn request_of(&mut self) -> AssignmentRequest {
        let measurements = RELAYS.map(|(relay, _)| RelayMeasurement {
            relay: name(relay),
            rate: Bitrate::from_mbps(self.random.below(40)),
            rtt_ms: Some(10),
        });
        AssignmentRequest {
            origin: origin(),
            best_link_rate: Bitrate::from_mbps(self.random.below(10)),
            target_rate: None,
            position: None,
            measurements: measurements.into(),
        }
    }

    fn send_request(&mut self) {
        let (edge, request) = (self.random.below(EDGES), self.request_of());
        self.input(scheduling::Input::Request(edge_name(edge), request));
    }

    fn send_report(&mut self) {
        let (edge, request) = (self.random.below(EDGES), self.request_of());
        let throughput = Bitrate::from_mbps(self.random.below(40));
        let offered_rate = Some(throughput + Bitrate::from_mbps(self.random.below(20)));
        let report = Report { request, throughput, offered_rate, assignment: self.assignments.get(&edge).cloned() };
        self.machine.handle(self.now, scheduling::Input::Report(edge_name(edge), report));
        if let Some(Reply::Assignment(AssignmentReply { assignment: Some(assignment), .. })) = self.drain() {
            let messages::Assignment { relay, reservation, version, .. } = assignment;
            self.assignments.insert(edge, CurrentAssignment { relay, reservation, version });
        }
    }

    /// Another process leads for a while; then this one leads again and restores the rows.
    fn change_leader(&mut self) {
        self.input(scheduling::Input::Follow);
        self.now += Duration::from_secs(3);
        let epoch = self.seen_versions.values().map(|version| version.epoch).max().unwrap_or(1) + 1;
        let rows = core::mem::take(&mut self.rows);
        self.input(scheduling::Input::Lead { epoch });
        self.input(scheduling::Input::Restore(rows));
    }

    fn input(&mut self, input: scheduling::Input) {
        self.machine.handle(self.now, input);
        self.drain();
    }

    /// Carries out the outputs; returns the last reply.
    fn drain(&mut self) -> Option<Reply> {
        let mut last = None;
        while let Some(output) = self.machine.poll() {
            match output {
                scheduling::Output::Reply(Reply::Rows(rows)) => self.rows.extend(rows),
                scheduling::Output::Reply(reply) => last = Some(reply),
                scheduling::Output::Solve(problem) => self.problems.push((self.now + SOLVING_TIME, problem)),
                scheduling::Output::Decided(_) | scheduling::Output::RaiseEpoch(_) => {}
            }
        }
        last
    }
}

/// Drives the relay selection of an edge with two links for this long, from `start`.
pub fn run_selector<M>(mut machine: M, seed: u64, start: Instant, time: Duration) -> M
where
    M: Machine<Input = relay_selection::Input, Output = relay_selection::Output>,
{
    use relay_selection::{Input, Output};
    let mut random = RandomStream::new(seed, "edge", 0, Purpose::Other);
    let (mut now, end, mut version) = (start, start + time, 0);
    let mut operation = None;
    let mut input = Input::Links(links(&mut random));
    while now < end {
        machine.handle(now, input);
        while let Some(output) = machine.poll() {
            if !matches!(output, Output::UseRelays(_) | Output::Persist) {
                operation = Some(output);
            }
        }
        now += Duration::from_millis(50 + random.below(300));
        if let Some(at) = machine.deadline().map(|(at, _)| at).filter(|_| operation.is_none()) {
            now = if random.below(4) == 0 { now } else { now.max(at) };
            machine.tick(now);
            while let Some(output) = machine.poll() {
                operation = Some(output);
            }
        }
        input = match operation.take_if(|_| random.below(3) > 0) {
            Some(_) if random.below(12) == 0 => Input::Unreachable,
            Some(Output::FetchCandidates) => Input::Candidates(RELAYS.map(candidate).into()),
            Some(Output::Probe(relay, limits)) => {
                now += limits.max_time;
                let rate = Bitrate::from_mbps(1 + random.below(30));
                let (rtt, sent) = (Duration::from_millis(10 + random.below(90)), DataSize::from_kib(300));
                let result = (random.below(5) > 0).then_some(ProbeResult { rate, rtt, bytes: sent });
                Input::ProbeEnded { relay, result, sent }
            }
            Some(_) => {
                version += 1;
                Input::Reply(assignment_reply(&mut random, version))
            }
            None => event_of_edge(&mut random),
        };
    }
    machine
}

fn links(random: &mut RandomStream) -> LinkFacts {
    let (has_lte, metered) = (random.below(4) > 0, random.below(2) == 0);
    let up: Vec<String> = if has_lte { vec!["wlan0".into(), "wwan0".into()] } else { vec!["wlan0".into()] };
    LinkFacts {
        up,
        metered: metered && has_lte,
        unmetered: Some("wlan0".into()),
        best_rate: Bitrate::from_mbps(random.below(10)),
    }
}

fn candidate((relay, capacity): (&str, u64)) -> Candidate {
    Candidate {
        relay: name(relay),
        addresses: vec![endpoint(relay)],
        server_name: format!("{relay}.example").parse().expect("an address"),
        free: Bitrate::from_mbps(capacity),
        capacity: Bitrate::from_mbps(capacity),
        origin_rate: None,
        distance_km: None,
    }
}

fn assignment_reply(random: &mut RandomStream, version: u64) -> AssignmentReply {
    let reasons = [
        NoRelayReason::Pending,
        NoRelayReason::NoRelay,
        NoRelayReason::NoGain,
        NoRelayReason::NoCapacity,
        NoRelayReason::Released,
    ];
    let drawn = random.below(8);
    let reason = usize::try_from(drawn).ok().and_then(|at| reasons.get(at)).copied();
    let (relay, _) = RELAYS[usize::from(drawn.is_multiple_of(2))];
    let assignment = reason.is_none().then(|| messages::Assignment {
        relay: name(relay),
        addresses: vec![endpoint(relay)],
        server_name: Some(format!("{relay}.example").parse().expect("an address")),
        reservation: Bitrate::from_mbps(8),
        lease_ms: 30_000,
        version: StateVersion { epoch: 1, version },
    });
    AssignmentReply { assignment, reason, heartbeat_ms: 5000, revocations: 0 }
}

fn event_of_edge(random: &mut RandomStream) -> relay_selection::Input {
    use relay_selection::Input;
    match random.below(8) {
        0 => Input::Links(links(random)),
        1 => {
            let relay = name(RELAYS[usize::from(random.below(2) == 0)].0);
            Input::RelayFailed { relay, has_failed: random.below(2) == 0 }
        }
        2 => Input::Origin(origin()),
        _ => {
            let time = Duration::from_secs(1);
            let sample = TrafficSample {
                sent: DataSize::from_bytes(random.below(2_000_000)),
                blocked: Duration::from_millis(random.below(1001)),
            };
            Input::Traffic { samples: vec![(name("fra"), sample)], time }
        }
    }
}

/// Drives a fair share of 20 Mbit/s in one direction, where four edges request data for this long.
pub fn run_fair_share<M>(mut machine: M, seed: u64, time: Duration) -> M
where
    M: Machine<Input = fair_share::Input<Name>, Output = fair_share::Output>,
{
    use fair_share::{Input, Output};
    let mut random = RandomStream::new(seed, "share", 0, Purpose::Other);
    let (mut now, end) = (Instant::from_millis(1000), Instant::from_millis(1000) + time);
    while now < end {
        now += Duration::from_millis(1 + random.below(8));
        let edge = edge_name(random.below(4));
        let input = match random.below(60) {
            0 => Input::Reserve { edge: edge.clone(), rate: Bitrate::from_mbps(random.below(12)) },
            1 => Input::RetainOnly((0..3).map(edge_name).collect()),
            _ => Input::Request { edge: edge.clone(), wanted: DataSize::from_bytes(1 + random.below(65_536)) },
        };
        machine.handle(now, input);
        let mut settlement = None;
        while let Some(output) = machine.poll() {
            if let Output::Grant(PaceGrant::Granted(granted)) = output {
                let sent = granted.min(DataSize::from_bytes(random.below(65_536)));
                settlement = Some(Input::Settle { edge: edge.clone(), granted, sent });
            }
        }
        if let Some(settlement) = settlement {
            machine.handle(now, settlement);
            while machine.poll().is_some() {}
        }
    }
    machine
}

/// Drives the priority of a live stream over two bulk flows for this long. The queue grows while the bulk flows send
/// more than the link carries.
pub fn run_live_priority<M>(machine: M, time: Duration) -> M
where
    M: Machine<Input = live_priority::Input, Output = live_priority::Output>,
{
    use live_priority::Input;
    let end = Instant::ZERO + time;
    let mut edge = LiveEdge { machine, now: Instant::ZERO, sent: DataSize::ZERO, queue: DataSize::ZERO };
    edge.input(Input::LiveFlowStarted(LIVE_FLOW));
    let mut next_request = [Instant::ZERO; 2];
    while edge.now < end {
        edge.now += Duration::from_millis(5);
        // 8 Mbit/s leave the queue, and the live stream brings 2 Mbit/s.
        edge.queue -= DataSize::from_bytes(5000);
        edge.sent += DataSize::from_bytes(1250);
        edge.queue += DataSize::from_bytes(1250);
        if edge.machine.deadline().is_some_and(|(at, _)| at <= edge.now) {
            edge.machine.tick(edge.now);
            edge.drain();
        }
        let now = edge.now;
        for (next, flow) in next_request.iter_mut().zip(1..).filter(|(next, _)| **next <= now) {
            match edge.input(Input::Request { flow, wanted: DataSize::from_bytes(16_384) }) {
                Some(PaceGrant::Granted(granted)) if edge.queue < DataSize::from_kib(256) => {
                    edge.queue += granted;
                    edge.input(Input::Settle { flow, granted, sent: granted });
                }
                Some(PaceGrant::Granted(granted)) => {
                    edge.input(Input::Settle { flow, granted, sent: DataSize::ZERO });
                }
                Some(PaceGrant::RetryAfter(pause)) => *next = edge.now + pause,
                None => {}
            }
        }
    }
    for flow in [1, 2, LIVE_FLOW] {
        edge.input(Input::FlowEnded(flow));
    }
    edge.machine
}

const LIVE_FLOW: u64 = 7;

struct LiveEdge<M> {
    machine: M,
    now: Instant,
    /// Bytes of the live stream.
    sent: DataSize,
    queue: DataSize,
}

impl<M> LiveEdge<M>
where
    M: Machine<Input = live_priority::Input, Output = live_priority::Output>,
{
    fn input(&mut self, input: live_priority::Input) -> Option<PaceGrant> {
        self.machine.handle(self.now, input);
        self.drain()
    }

    fn drain(&mut self) -> Option<PaceGrant> {
        let (mut grant, mut is_sample_due) = (None, false);
        while let Some(output) = self.machine.poll() {
            match output {
                live_priority::Output::Grant(granted) => grant = Some(granted),
                live_priority::Output::Sample => is_sample_due = true,
                live_priority::Output::Allowance(_) => {}
            }
        }
        if is_sample_due {
            let unacknowledged = self.queue.min(self.sent);
            let sample = FlowSample { flow: LIVE_FLOW, sent: self.sent, unacknowledged };
            self.input(live_priority::Input::Samples(vec![sample]));
        }
        grant
    }
}

/// Drives the choice of the UDP link among three links, which are sampled each two seconds for this long.
pub fn run_udp_link<M>(mut machine: M, seed: u64, time: Duration) -> M
where
    M: Machine<Input = LinkSample, Output = UdpLinkState>,
{
    let mut random = RandomStream::new(seed, "udp", 0, Purpose::Other);
    let mut now = Instant::ZERO;
    let mut rates = [0_u64; 3];
    while now < Instant::ZERO + time {
        now += Duration::from_secs(2);
        let links = ["eth0", "wlan0", "wwan0"].into_iter().zip(&mut rates).map(|(link, rate)| {
            if random.below(20) == 0 {
                *rate = random.below(20);
            }
            ObservedLink {
                name: link.to_owned(),
                up: random.below(60) > 0,
                unresponsive: random.below(60) == 0,
                metered: link == "wwan0",
                peak_rate: Bitrate::from_mbps(*rate),
            }
        });
        let links = links.collect();
        machine.handle(now, LinkSample { links, default_link: Some("eth0".to_owned()) });
        while machine.poll().is_some() {}
    }
    machine
}
