//! Tests of the scheduler in virtual time: short scripts of relays and edges, with at least one example for each rule.

mod capacity;
mod false_reports;
mod matching;
mod members;
mod random_histories;
mod recovery;
mod replication;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;

use super::*;
use crate::fleet::messages::{
    AssignmentReply, AssignmentRequest, CurrentAssignment, Heartbeat, NoRelayReason, RelayMeasurement, Report,
};
use crate::units::Bitrate;

/// A scheduler with its clock, and the relays and edges that report to it.
pub(super) struct World {
    pub(super) machine: FleetScheduler,
    pub(super) now: Instant,
    decided: Vec<Name>,
    raised_epochs: Vec<u64>,
}

pub(super) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(super) fn mbps(n: u64) -> Bitrate {
    Bitrate::from_mbps(n)
}

/// A relay's heartbeat; rates in Mbit/s.
pub(super) fn heartbeat(capacity: u64, free: u64) -> Heartbeat {
    Heartbeat {
        capacity: mbps(capacity),
        free: mbps(free),
        addresses: vec!["relay.example:4443".parse().unwrap()],
        server_name: "relay.example".parse().unwrap(),
        position: None,
        origin_rates: BTreeMap::new(),
        origin_lower_bounds: BTreeMap::new(),
        draining: false,
        seen_version: StateVersion::default(),
        reservations: None,
    }
}

/// An edge's request: the rate to the origin server over its best single link, and the rates that it has measured over
/// relays, in Mbit/s.
pub(super) fn assignment_request(best_link_rate: u64, measured: &[(&str, u64)]) -> AssignmentRequest {
    let measured = measured.iter().map(|(relay, rate)| RelayMeasurement {
        relay: name(relay),
        rate: mbps(*rate),
        rtt_ms: None,
    });
    AssignmentRequest {
        origin: "live.example:1935".parse().unwrap(),
        best_link_rate: mbps(best_link_rate),
        target_rate: None,
        position: None,
        measurements: measured.collect(),
    }
}

/// An edge's report: what it sends over its relay, and what its programs offer to send, in Mbit/s.
pub(super) fn report(request: AssignmentRequest, throughput: u64, offered: u64) -> Report {
    Report { request, throughput: mbps(throughput), offered_rate: Some(mbps(offered)), assignment: None }
}

impl World {
    /// A world without members, at the beginning of the grace period.
    pub(super) fn new() -> Self {
        let now = Instant::from_millis(1000);
        let scheduler = FleetScheduler::new(SchedulerConfig::default(), 1, now);
        Self { machine: scheduler, now, decided: Vec::new(), raised_epochs: Vec::new() }
    }

    /// A world in which these relays have sent one heartbeat, at the beginning of the grace period.
    pub(super) fn with(relays: &[(&str, u64)]) -> Self {
        let mut world = Self::new();
        for (relay, capacity) in relays {
            world.heartbeat(relay, heartbeat(*capacity, *capacity));
        }
        world
    }

    pub(super) fn heartbeat(&mut self, relay: &str, heartbeat: Heartbeat) -> HeartbeatReply {
        match self.handle(Input::Heartbeat(name(relay), heartbeat)) {
            Some(Reply::Heartbeat(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn request(&mut self, edge: &str, request: AssignmentRequest) {
        self.machine.handle(self.now, Input::Request(name(edge), request));
    }

    pub(super) fn report(&mut self, edge: &str, report: Report) -> AssignmentReply {
        match self.handle(Input::Report(name(edge), report)) {
            Some(Reply::Assignment(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn candidates(&mut self, edge: &Name, proximity: &Proximity) -> Vec<Candidate> {
        match self.handle(Input::Candidates(edge.clone(), proximity.clone())) {
            Some(Reply::Candidates(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    /// An edge releases its relay; the outputs stay in the queue.
    fn release(&mut self, edge: &Name) {
        self.machine.handle(self.now, Input::Release(edge.clone()));
    }

    fn lead(&mut self, epoch: u64) {
        self.machine.handle(self.now, Input::Lead { epoch });
    }

    /// Passes an input to the scheduler, and returns its reply.
    fn handle(&mut self, input: Input) -> Option<Reply> {
        self.machine.handle(self.now, input);
        self.outputs()
    }

    /// Carries out all outputs; returns the last reply.
    fn outputs(&mut self) -> Option<Reply> {
        let mut last = None;
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Reply(reply) => last = Some(reply),
                Output::Solve(problem) => self.machine.apply_solution(problem.solve(10_000_000)),
                Output::Decided(edge) => self.decided.push(edge),
                Output::RaiseEpoch(epoch) => self.raised_epochs.push(epoch),
            }
        }
        last
    }

    fn deadline(&self) -> Instant {
        self.machine.deadline().expect("the scheduler always has a deadline").0
    }

    /// Advances the time without any heartbeats or reports.
    pub(super) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.deadline().max(self.now).min(end);
            self.machine.tick(self.now);
            self.outputs();
            if self.now < end && self.deadline() <= self.now {
                self.now += Duration::from_millis(1);
            }
        }
    }

    /// Advances the time; each member reports once in each heartbeat interval.
    pub(super) fn run_heartbeats(
        &mut self,
        time: Duration,
        relays: &[(&str, Heartbeat)],
        edges: &[(&str, Report)],
    ) {
        let end = self.now + time;
        while self.now < end {
            relays.iter().for_each(|(relay, heartbeat)| drop(self.heartbeat(relay, heartbeat.clone())));
            edges.iter().for_each(|(edge, report)| drop(self.report(edge, report.clone())));
            self.advance(Duration::from_secs(5));
        }
    }

    pub(super) fn relay_of(&self, edge: &str) -> Option<String> {
        self.machine.reply_for(&name(edge)).assignment.map(|assignment| assignment.relay.to_string())
    }

    fn reason(&self, edge: &str) -> Option<NoRelayReason> {
        self.machine.reply_for(&name(edge)).reason
    }

    fn free_capacity(&self, relay: &str) -> Bitrate {
        self.machine.view().free_capacity(&name(relay))
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
