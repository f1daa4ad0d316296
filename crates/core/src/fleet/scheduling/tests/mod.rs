//! Tests of the scheduler in virtual time: short scripts of relays and edges, with at least one example for each rule.

mod capacity;
mod false_reports;
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

#[test]
fn requests_of_one_window_are_matched_together() {
    let mut world = World::with(&[("fra", 112), ("ams", 112)]);
    // Matched one after the other, a would get fra, and b, which reaches no other relay, would get none.
    world.request("a", assignment_request(10, &[("fra", 90), ("ams", 80)]));
    world.advance(Duration::from_millis(150));
    world.request("b", assignment_request(10, &[("fra", 100)]));
    assert_eq!((world.reason("a"), world.decided.len()), (Some(NoRelayReason::Pending), 0));
    world.advance(Duration::from_millis(60));
    assert_eq!(world.decided, [name("a"), name("b")]);
    assert_eq!((world.relay_of("a").unwrap(), world.relay_of("b").unwrap()), ("ams".into(), "fra".into()));
    let first = world.machine.reply_for(&name("a")).assignment.unwrap();
    assert_eq!((first.reservation, first.lease_ms), (mbps(80), 29_990));
    assert_eq!(first.version.epoch, 1);
}

#[test]
fn a_relay_is_filled_to_the_threshold_and_then_not_offered() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(1, &[("fra", 60)]));
    world.request("b", assignment_request(1, &[("fra", 31)]));
    world.advance(SECOND);
    assert_eq!((world.relay_of("a").is_some(), world.reason("b")), (true, Some(NoRelayReason::NoCapacity)));
    world.request("b", assignment_request(1, &[("fra", 30)]));
    world.advance(SECOND);
    assert_eq!(world.free_capacity("fra"), mbps(10));
    let proximity = Proximity::default();
    assert_eq!(world.candidates(&name("c"), &proximity).len(), 1, "a free share equal to the threshold is enough");
    world.heartbeat("fra", heartbeat(100, 9));
    assert_eq!(world.candidates(&name("c"), &proximity), []);
}

#[test]
fn the_reply_states_why_an_edge_has_no_relay() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("none", assignment_request(10, &[]));
    world.request("unknown", assignment_request(10, &[("ams", 50)]));
    world.request("gainless", assignment_request(50, &[("fra", 50)]));
    world.request("large", assignment_request(90, &[("fra", 95)]));
    world.advance(SECOND);
    let reasons = ["none", "unknown", "gainless", "large"].map(|edge| world.reason(edge).unwrap());
    assert_eq!(
        reasons,
        [NoRelayReason::NoRelay, NoRelayReason::NoRelay, NoRelayReason::NoGain, NoRelayReason::NoCapacity]
    );
}

#[test]
fn an_unplaced_edge_is_matched_again_and_a_released_one_is_not() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("ams", 50)]));
    world.request("b", assignment_request(10, &[("ams", 40)]));
    world.advance(SECOND);
    assert_eq!(world.reason("a"), Some(NoRelayReason::NoRelay));
    world.release(&name("b"));
    let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
    let reports = [
        ("a", report(assignment_request(10, &[("ams", 50)]), 0, 0)),
        ("b", report(assignment_request(10, &[("ams", 40)]), 0, 0)),
    ];
    world.run_heartbeats(5 * SECOND, &relays, &reports);
    assert_eq!((world.relay_of("a").unwrap().as_str(), world.reason("b")), ("ams", Some(NoRelayReason::Released)));
}

#[test]
fn the_origin_rate_and_the_target_rate_limit_the_reservation() {
    let mut world = World::new();
    let mut slow = heartbeat(1000, 1000);
    slow.origin_rates.insert("live.example:1935".parse().unwrap(), mbps(20));
    world.heartbeat("fra", slow);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.request("b", AssignmentRequest { target_rate: Some(mbps(15)), ..assignment_request(10, &[("fra", 50)]) });
    world.advance(SECOND);
    let reserved = ["a", "b"].map(|edge| world.machine.reply_for(&name(edge)).assignment.unwrap().reservation);
    assert_eq!(reserved, [mbps(20), mbps(15)]);
}

#[test]
fn a_relay_that_misses_its_heartbeats_loses_its_edges() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
    world.request("a", edge.clone());
    world.advance(SECOND);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
    let (ams, edge_report) = (("ams", heartbeat(100, 100)), ("a", report(edge, 40, 40)));
    world.run_heartbeats(MINUTE / 4, core::slice::from_ref(&ams), core::slice::from_ref(&edge_report));
    assert_eq!(world.relay_of("a").unwrap(), "fra", "three heartbeats");
    world.run_heartbeats(MINUTE / 6, &[ams], &[edge_report]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
    world.advance(MINUTE);
    assert!(world.machine.relay_summaries().is_empty(), "no relay has sent a heartbeat for a lease");
}

#[test]
fn a_lease_that_is_not_renewed_ends() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(SECOND);
    world.run_heartbeats(25 * SECOND, &[("fra", heartbeat(100, 100))], &[]);
    assert_eq!(world.free_capacity("fra"), mbps(50));
    world.run_heartbeats(10 * SECOND, &[("fra", heartbeat(100, 100))], &[]);
    assert_eq!((world.free_capacity("fra"), world.machine.edge_summaries().len()), (mbps(100), 0));
}

#[test]
fn all_edges_are_matched_each_half_hour_and_move_only_for_a_gain_above_a_tenth() {
    for (better, moves) in [(54, false), (56, true)] {
        let mut world = World::with(&[("fra", 100)]);
        let before = assignment_request(10, &[("fra", 50)]);
        world.request("a", before.clone());
        world.advance(SECOND);
        let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
        let after = assignment_request(10, &[("fra", 50), ("ams", better)]);
        world.run_heartbeats(29 * MINUTE, &relays, &[("a", report(after.clone(), 50, 50))]);
        assert_eq!(world.relay_of("a").unwrap(), "fra", "not before the re-allocation");
        world.run_heartbeats(2 * MINUTE, &relays, &[("a", report(after, 50, 50))]);
        assert_eq!(world.relay_of("a").unwrap(), if moves { "ams" } else { "fra" }, "{better}");
    }
}

#[test]
fn an_edge_that_was_just_placed_is_not_moved() {
    let mut world = World::with(&[("fra", 100)]);
    let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
    world.run_heartbeats(29 * MINUTE + 30 * SECOND, &relays[..1], &[]);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(SECOND);
    let after = report(assignment_request(10, &[("fra", 50), ("ams", 90)]), 50, 50);
    world.run_heartbeats(29 * MINUTE, &relays, &[("a", after.clone())]);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
    world.run_heartbeats(3 * MINUTE, &relays, &[("a", after)]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
}

#[test]
fn an_edge_with_low_throughput_is_matched_by_its_throughput() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
    let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
    world.request("a", edge.clone());
    world.advance(SECOND);
    world.run_heartbeats(MINUTE, &relays, &[("a", report(edge.clone(), 5, 5))]);
    assert_eq!(world.relay_of("a").unwrap(), "fra", "its programs offer no more");
    world.run_heartbeats(5 * SECOND, &relays, &[("a", report(edge.clone(), 12, 50))]);
    assert_eq!(world.relay_of("a").unwrap(), "fra", "one low report is not enough");
    world.run_heartbeats(5 * SECOND, &relays, &[("a", report(edge.clone(), 12, 50))]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
    // It does not return on the strength of its old measurement.
    world.run_heartbeats(10 * MINUTE, &relays, &[("a", report(edge, 40, 40))]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
}

#[test]
fn the_load_of_a_relay_is_the_largest_of_all_reports() {
    let mut world = World::with(&[("fra", 100)]);
    let edge = assignment_request(10, &[("fra", 50)]);
    world.request("a", edge.clone());
    world.advance(SECOND);
    world.heartbeat("fra", heartbeat(100, 100));
    assert_eq!(world.free_capacity("fra"), mbps(50), "the reservation counts");
    world.report("a", report(edge, 58, 58));
    assert_eq!(world.free_capacity("fra"), mbps(42), "the throughput counts");
    world.heartbeat("fra", heartbeat(100, 20));
    assert_eq!(world.free_capacity("fra"), mbps(20), "the relay's own report counts if it is higher");
    world.request("b", assignment_request(10, &[("fra", 11)]));
    world.advance(SECOND);
    assert_eq!(world.reason("b"), Some(NoRelayReason::NoCapacity));
}

#[test]
fn edges_leave_a_relay_that_drains_by_itself_or_by_an_operator() {
    for by_operator in [false, true] {
        let mut world = World::with(&[("fra", 100), ("ams", 100)]);
        let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
        world.request("a", edge.clone());
        world.advance(SECOND);
        if by_operator {
            world.machine.drain(&name("fra"), true, Some(MINUTE));
        } else {
            world.heartbeat("fra", Heartbeat { draining: true, ..heartbeat(100, 100) });
        }
        world.advance(SECOND);
        assert_eq!(world.relay_of("a").unwrap(), "ams");
        if by_operator {
            assert!(world.heartbeat("fra", heartbeat(100, 100)).draining);
            let relays = [("fra", heartbeat(100, 100)), ("ams", heartbeat(100, 100))];
            world.run_heartbeats(2 * MINUTE, &relays, &[]);
            assert!(!world.heartbeat("fra", heartbeat(100, 100)).draining, "the drain lasted one minute");
        }
    }
}

#[test]
fn a_relay_receives_its_reservations_only_when_they_change() {
    let mut world = World::with(&[("fra", 100)]);
    let first = world.heartbeat("fra", heartbeat(100, 100));
    assert_eq!(first.reservations, Some(vec![]));
    let seen = |version| Heartbeat { seen_version: version, ..heartbeat(100, 100) };
    assert_eq!(world.heartbeat("fra", seen(first.version)).reservations, None);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(SECOND);
    let second = world.heartbeat("fra", seen(first.version));
    let reply = second.reservations.unwrap();
    assert_eq!((reply[0].edge.as_str(), reply[0].reservation, reply.len()), ("a", mbps(50), 1));
    assert!(second.version > first.version);
    assert_eq!(world.heartbeat("fra", seen(second.version)).reservations, None);
    world.release(&name("a"));
    assert_eq!(world.heartbeat("fra", seen(second.version)).reservations, Some(vec![]));
    world.machine.begin_epoch(2);
    let third = world.heartbeat("fra", seen(second.version));
    assert_eq!((third.version.epoch, third.reservations), (2, Some(vec![])));
}

#[test]
fn a_version_from_another_leader_in_our_epoch_is_not_taken_for_ours() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    world.heartbeat("fra", heartbeat(100, 100));
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(SECOND);
    world.request("b", assignment_request(10, &[("ams", 50)]));
    world.advance(SECOND);
    // Two processes lead in one epoch and their versions are equal, but the relay has not received this process's reservations.
    let reply = world.heartbeat("fra", Heartbeat { seen_version: world.machine.version(), ..heartbeat(100, 100) });
    assert_eq!(reply.reservations.map(|edges| edges.len()), Some(1));
    assert_eq!(
        world.heartbeat("fra", Heartbeat { seen_version: reply.version, ..heartbeat(100, 100) }).reservations,
        None
    );
}

#[test]
fn the_epoch_is_raised_above_that_of_a_relay_unless_it_is_implausible() {
    let mut world = World::new();
    world.heartbeat(
        "fra",
        Heartbeat { seen_version: StateVersion { epoch: u64::MAX, version: 0 }, ..heartbeat(100, 100) },
    );
    assert!(world.raised_epochs.is_empty());
    world
        .heartbeat("fra", Heartbeat { seen_version: StateVersion { epoch: 7, version: 0 }, ..heartbeat(100, 100) });
    assert_eq!(world.raised_epochs, [7]);
    world.machine.begin_epoch(8);
    assert_eq!(world.machine.version(), StateVersion { epoch: 8, version: 0 });
    world.machine.begin_epoch(3);
    assert_eq!(world.machine.version().epoch, 8);
}

#[test]
fn time_does_not_go_back() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("fra", 50)]));
    world.advance(10 * SECOND);
    world.machine.tick(Instant::from_millis(0));
    world.machine.handle(Instant::from_millis(1), Input::Heartbeat(name("fra"), heartbeat(100, 100)));
    assert_eq!(world.machine.relay_summaries()[0].age_ms, 0);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
}

#[test]
fn after_a_clock_jump_of_an_hour_reporting_members_keep_their_assignments() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = assignment_request(10, &[("fra", 50), ("ams", 40)]);
    world.request("a", edge.clone());
    world.request("b", assignment_request(10, &[("ams", 40)]));
    world.advance(SECOND);
    let before = world.machine.reply_for(&name("a")).assignment.unwrap().version;
    world.now += Duration::from_secs(3600);
    world.machine.tick(world.now);
    world.outputs();
    world.advance(9 * SECOND);
    world.heartbeat("fra", heartbeat(100, 100));
    world.report("a", report(edge, 40, 40));
    world.advance(2 * SECOND);
    let after = world.machine.reply_for(&name("a")).assignment.unwrap();
    assert_eq!((after.relay.as_str(), after.version), ("fra", before));
    assert_eq!(world.relay_of("b"), None, "an edge that does not report is removed");
    assert_eq!(world.machine.relay_summaries().len(), 1);
}

#[test]
fn a_scheduler_that_lost_its_state_recovers_it_within_two_heartbeats() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edges: Vec<(String, AssignmentRequest)> =
        (0..6).map(|n| (format!("cam-{n}"), assignment_request(1, &[("fra", 20), ("ams", 15)]))).collect();
    edges.iter().for_each(|(edge, request)| world.request(edge, request.clone()));
    world.advance(SECOND);
    let assignments: Vec<Option<CurrentAssignment>> = edges
        .iter()
        .map(|(edge, _)| {
            let assignment = world.machine.reply_for(&name(edge)).assignment?;
            Some(CurrentAssignment {
                relay: assignment.relay,
                reservation: assignment.reservation,
                version: assignment.version,
            })
        })
        .collect();
    assert!(assignments.iter().all(Option::is_some));
    let (fra, ams) = (world.free_capacity("fra"), world.free_capacity("ams"));
    // A new scheduler takes over. Edges report before their relays, and lose nothing for two heartbeats.
    world.machine = FleetScheduler::new(SchedulerConfig::default(), 2, world.now);
    for round in 0..2 {
        for ((edge, request), assignment) in edges.iter().zip(&assignments) {
            let reply =
                world.report(edge, Report { assignment: assignment.clone(), ..report(request.clone(), 10, 10) });
            assert_eq!(reply.assignment.unwrap().relay, assignment.clone().unwrap().relay, "{round}");
        }
        world.advance(3 * SECOND);
        world.heartbeat("fra", heartbeat(100, fra.as_mbps_f64() as u64));
        world.heartbeat("ams", heartbeat(100, ams.as_mbps_f64() as u64));
        world.advance(2 * SECOND);
    }
    assert_eq!((world.free_capacity("fra"), world.free_capacity("ams")), (fra, ams));
    assert_eq!(world.machine.edge_summaries().len(), 6);
}

#[test]
fn a_reported_assignment_gives_an_edge_no_more_than_measured_and_available() {
    let mut world = World::with(&[("fra", 100)]);
    let assignment = |reservation, epoch| {
        let version = StateVersion { epoch, version: 9 };
        Some(CurrentAssignment { relay: name("fra"), reservation: mbps(reservation), version })
    };
    let report_with = |assignment| Report { assignment, ..report(assignment_request(1, &[("fra", 30)]), 0, 0) };
    let got = world.report("a", report_with(assignment(90, 1))).assignment.unwrap();
    assert_eq!(got.reservation, mbps(30), "the rate that it has measured");
    assert_eq!(
        world.report("b", report_with(assignment(20, 5))).assignment,
        None,
        "of an epoch that does not exist yet"
    );
    let other = Report { assignment: assignment(20, 1), ..report(assignment_request(1, &[("ams", 30)]), 0, 0) };
    assert_eq!(world.report("c", other).assignment, None, "at a relay that it has not measured");
    for n in 0..5 {
        world.report(&format!("d{n}"), report_with(assignment(30, 1)));
    }
    assert_eq!(
        world.machine.placements.claims_of(&name("fra")).unwrap().load.total(),
        mbps(90),
        "and no more than the relay's capacity"
    );
}

#[test]
fn a_late_solution_is_applied_only_as_far_as_it_fits() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[("fra", 80)]));
    world.request("b", assignment_request(10, &[("fra", 50)]));
    world.now += Duration::from_millis(250);
    world.machine.tick(world.now);
    let Some(Output::Solve(problem)) = world.machine.poll() else { panic!("the window is over") };
    assert_eq!((problem.edge_count(), problem.is_full()), (2, false));
    // In the meantime half of the relay is in use, and b has released its request.
    world.heartbeat("fra", heartbeat(100, 50));
    world.release(&name("b"));
    world.machine.apply_solution(problem.solve(1_000_000));
    assert_eq!((world.relay_of("a"), world.reason("a")), (None, Some(NoRelayReason::NoCapacity)));
    assert_eq!(world.reason("b"), Some(NoRelayReason::Released));
    world.outputs();
    world.advance(SECOND);
    assert_eq!(world.decided, [name("b"), name("a")]);
}

#[test]
fn an_edge_placed_while_a_matching_is_solved_gets_its_reply() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(10, &[]));
    world.now += Duration::from_millis(200);
    world.machine.tick(world.now);
    let Some(Output::Solve(problem)) = world.machine.poll() else { panic!("the window is over") };
    let assignment = Some(CurrentAssignment {
        relay: name("fra"),
        reservation: mbps(20),
        version: StateVersion { epoch: 1, version: 9 },
    });
    world.report("a", Report { assignment, ..report(assignment_request(10, &[("fra", 20)]), 0, 0) });
    world.machine.apply_solution(problem.solve(1_000_000));
    world.outputs();
    assert_eq!((world.decided.as_slice(), world.relay_of("a").unwrap().as_str()), (&[name("a")][..], "fra"));
}

#[test]
fn candidates_are_the_nearest_relays_with_free_capacity() {
    let mut world = World::new();
    let at = |latitude, longitude| Some(crate::fleet::Position::new(latitude, longitude).unwrap());
    for (relay, position) in
        [("fra", at(50.1, 8.7)), ("ams", at(52.4, 4.9)), ("nyc", at(40.7, -74.0)), ("sfo", at(37.8, -122.4))]
    {
        world.heartbeat(relay, Heartbeat { position, ..heartbeat(100, 100) });
    }
    world.heartbeat("full", Heartbeat { position: at(50.0, 8.0), ..heartbeat(100, 9) });
    let proximity = Proximity { position: at(50.0, 8.3), origin: None };
    let names = |world: &mut World, proximity: &Proximity| -> Vec<String> {
        let found = world.candidates(&name("cam"), proximity);
        found.into_iter().map(|candidate| candidate.relay.to_string()).collect()
    };
    assert_eq!(names(&mut world, &proximity), ["fra", "ams", "nyc"]);
    world.machine.drain(&name("fra"), true, None);
    assert_eq!(names(&mut world, &proximity), ["ams", "nyc", "sfo"]);
    // Without positions they are sorted by RTT.
    let mut world = World::with(&[("a", 100), ("b", 100), ("c", 100), ("d", 100)]);
    let mut measured = assignment_request(1, &[("c", 10), ("a", 10)]);
    measured.measurements[0].rtt_ms = Some(10);
    measured.measurements[1].rtt_ms = Some(30);
    world.request("cam", measured);
    assert_eq!(names(&mut world, &Proximity::default())[..2], ["c", "a"]);
}

#[test]
fn invalid_heartbeats_and_requests_are_rejected() {
    let mut world = World::new();
    let mut refused = |heartbeat: Heartbeat| world.machine.heartbeat(&name("fra"), heartbeat).is_err();
    assert!(refused(heartbeat(0, 0)) && refused(heartbeat(2_000_000, 0)));
    assert!(refused(Heartbeat { addresses: vec![], ..heartbeat(1, 1) }));
    let twice = assignment_request(1, &[("fra", 1), ("fra", 2)]);
    assert!(world.machine.request(&name("a"), twice).is_err());
}
