//! The machine in virtual time: relays and edges as small scripts, every rule by an example.

mod histories;
mod kept;
mod lies;
mod rooms;
mod shares;

use super::super::words::{Beat, Held, Measured, Reason, Report, Standing, Wish};
use super::*;
use marline_core::units::Bitrate;

/// A machine, its clock, and relays and edges that speak on time.
pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) now: Instant,
    decided: Vec<Name>,
    behind: Vec<u64>,
}

pub(super) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(super) fn mbps(n: u64) -> Bitrate {
    Bitrate::from_mbps(n)
}

pub(super) fn beat(capacity: u64, free: u64) -> Beat {
    Beat {
        capacity: mbps(capacity),
        free: mbps(free),
        addresses: vec!["relay.example:4443".parse().unwrap()],
        server_name: "relay.example".parse().unwrap(),
        position: None,
        origins: BTreeMap::new(),
        origins_least: BTreeMap::new(),
        draining: false,
        seen: Mark::default(),
        held: None,
    }
}

pub(super) fn wish(alone: u64, measured: &[(&str, u64)]) -> Wish {
    let measured =
        measured.iter().map(|(relay, rate)| Measured { relay: name(relay), rate: mbps(*rate), rtt_ms: None });
    Wish {
        origin: "live.example:1935".parse().unwrap(),
        alone: mbps(alone),
        wanted: None,
        position: None,
        measured: measured.collect(),
    }
}

pub(super) fn report(wish: Wish, throughput: u64, offered: u64) -> Report {
    Report { wish, throughput: mbps(throughput), offered: Some(mbps(offered)), held: None }
}

impl World {
    pub(super) fn new() -> Self {
        let now = Instant::from_millis(1000);
        let machine = Machine::new(Config::default(), 1, now);
        Self { machine, now, decided: Vec::new(), behind: Vec::new() }
    }

    /// One in which these relays were heard.
    pub(super) fn with(relays: &[(&str, u64)]) -> Self {
        let mut world = Self::new();
        for (relay, capacity) in relays {
            world.beat(relay, beat(*capacity, *capacity));
        }
        world
    }

    pub(super) fn beat(&mut self, relay: &str, beat: Beat) -> super::super::words::BeatAnswer {
        let answer = self.machine.heartbeat(&name(relay), beat, self.now).unwrap();
        self.outputs();
        answer
    }

    pub(super) fn ask(&mut self, edge: &str, wish: Wish) {
        self.machine.request(&name(edge), wish, self.now).unwrap();
    }

    pub(super) fn report(&mut self, edge: &str, report: Report) -> Standing {
        let standing = self.machine.report(&name(edge), report, self.now).unwrap();
        self.outputs();
        standing
    }

    fn outputs(&mut self) {
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Solve(problem) => self.machine.solved(problem.solve(10_000_000), self.now),
                Output::Decided(edge) => self.decided.push(edge),
                Output::Behind(epoch) => self.behind.push(epoch),
            }
        }
    }

    /// Time passes, and nobody speaks.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.machine.deadline().max(self.now).min(end);
            self.machine.tick(self.now);
            self.outputs();
            if self.now < end && self.machine.deadline() <= self.now {
                self.now += Duration::from_millis(1);
            }
        }
    }

    /// Time passes, and each speaks with each heartbeat.
    pub(super) fn live(&mut self, time: Duration, relays: &[(&str, Beat)], edges: &[(&str, Report)]) {
        let end = self.now + time;
        while self.now < end {
            relays.iter().for_each(|(relay, beat)| drop(self.beat(relay, beat.clone())));
            edges.iter().for_each(|(edge, report)| drop(self.report(edge, report.clone())));
            self.pass(Duration::from_secs(5));
        }
    }

    pub(super) fn relay_of(&self, edge: &str) -> Option<String> {
        self.machine.standing(&name(edge)).assignment.map(|it| it.relay.to_string())
    }

    fn reason(&self, edge: &str) -> Option<Reason> {
        self.machine.standing(&name(edge)).reason
    }

    fn free(&self, relay: &str) -> Bitrate {
        self.machine.free(&name(relay))
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn requests_of_one_window_are_matched_together() {
    let mut world = World::with(&[("fra", 112), ("ams", 112)]);
    // One after the other the first would take fra, and the second, which reaches nothing else, would have none.
    world.ask("a", wish(10, &[("fra", 90), ("ams", 80)]));
    world.pass(Duration::from_millis(150));
    world.ask("b", wish(10, &[("fra", 100)]));
    assert_eq!((world.reason("a"), world.decided.len()), (Some(Reason::Pending), 0));
    world.pass(Duration::from_millis(60));
    assert_eq!(world.decided, [name("a"), name("b")]);
    assert_eq!((world.relay_of("a").unwrap(), world.relay_of("b").unwrap()), ("ams".into(), "fra".into()));
    let first = world.machine.standing(&name("a")).assignment.unwrap();
    assert_eq!((first.reservation, first.lease_ms), (mbps(80), 29_990));
    assert_eq!(first.mark.epoch, 1);
}

#[test]
fn a_relay_is_filled_to_the_threshold_and_then_not_offered() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(1, &[("fra", 60)]));
    world.ask("b", wish(1, &[("fra", 31)]));
    world.pass(SECOND);
    assert_eq!((world.relay_of("a").is_some(), world.reason("b")), (true, Some(Reason::NoRoom)));
    world.ask("b", wish(1, &[("fra", 30)]));
    world.pass(SECOND);
    assert_eq!(world.free("fra"), mbps(10));
    let near = Near::default();
    assert_eq!(world.machine.candidates(&name("c"), &near, world.now).len(), 1, "a tenth is not under a tenth");
    world.beat("fra", beat(100, 9));
    assert_eq!(world.machine.candidates(&name("c"), &near, world.now), []);
}

#[test]
fn why_an_edge_has_no_relay_is_said() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("none", wish(10, &[]));
    world.ask("unknown", wish(10, &[("ams", 50)]));
    world.ask("gainless", wish(50, &[("fra", 50)]));
    world.ask("large", wish(90, &[("fra", 95)]));
    world.pass(SECOND);
    let reasons = ["none", "unknown", "gainless", "large"].map(|edge| world.reason(edge).unwrap());
    assert_eq!(reasons, [Reason::NoRelay, Reason::NoRelay, Reason::NoGain, Reason::NoRoom]);
}

#[test]
fn who_has_none_is_matched_again_when_something_is_there_and_who_let_go_is_not() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(10, &[("ams", 50)]));
    world.ask("b", wish(10, &[("ams", 40)]));
    world.pass(SECOND);
    assert_eq!(world.reason("a"), Some(Reason::NoRelay));
    world.machine.release(&name("b"), world.now);
    let relays = [("fra", beat(100, 100)), ("ams", beat(100, 100))];
    let words = [("a", report(wish(10, &[("ams", 50)]), 0, 0)), ("b", report(wish(10, &[("ams", 40)]), 0, 0))];
    world.live(5 * SECOND, &relays, &words);
    assert_eq!((world.relay_of("a").unwrap().as_str(), world.reason("b")), ("ams", Some(Reason::Released)));
}

#[test]
fn what_a_relay_reaches_bounds_what_is_reserved_and_so_does_what_is_wanted() {
    let mut world = World::new();
    let mut slow = beat(1000, 1000);
    slow.origins.insert("live.example:1935".parse().unwrap(), mbps(20));
    world.beat("fra", slow);
    world.ask("a", wish(10, &[("fra", 50)]));
    world.ask("b", Wish { wanted: Some(mbps(15)), ..wish(10, &[("fra", 50)]) });
    world.pass(SECOND);
    let reserved = ["a", "b"].map(|edge| world.machine.standing(&name(edge)).assignment.unwrap().reservation);
    assert_eq!(reserved, [mbps(20), mbps(15)]);
}

#[test]
fn a_relay_that_misses_its_heartbeats_loses_its_edges() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = wish(10, &[("fra", 50), ("ams", 40)]);
    world.ask("a", edge.clone());
    world.pass(SECOND);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
    let (ams, word) = (("ams", beat(100, 100)), ("a", report(edge, 40, 40)));
    world.live(MINUTE / 4, std::slice::from_ref(&ams), std::slice::from_ref(&word));
    assert_eq!(world.relay_of("a").unwrap(), "fra", "three heartbeats");
    world.live(MINUTE / 6, &[ams], &[word]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
    world.pass(MINUTE);
    assert!(world.machine.relays().is_empty(), "nobody was heard for a lease");
}

#[test]
fn a_lease_ends_that_nobody_renews() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(10, &[("fra", 50)]));
    world.pass(SECOND);
    world.live(25 * SECOND, &[("fra", beat(100, 100))], &[]);
    assert_eq!(world.free("fra"), mbps(50));
    world.live(10 * SECOND, &[("fra", beat(100, 100))], &[]);
    assert_eq!((world.free("fra"), world.machine.edges().len()), (mbps(100), 0));
}

#[test]
fn all_are_matched_anew_each_half_hour_and_move_only_for_more_than_a_tenth() {
    for (better, moves) in [(54, false), (56, true)] {
        let mut world = World::with(&[("fra", 100)]);
        let before = wish(10, &[("fra", 50)]);
        world.ask("a", before.clone());
        world.pass(SECOND);
        let relays = [("fra", beat(100, 100)), ("ams", beat(100, 100))];
        let after = wish(10, &[("fra", 50), ("ams", better)]);
        world.live(29 * MINUTE, &relays, &[("a", report(after.clone(), 50, 50))]);
        assert_eq!(world.relay_of("a").unwrap(), "fra", "not before its time");
        world.live(2 * MINUTE, &relays, &[("a", report(after, 50, 50))]);
        assert_eq!(world.relay_of("a").unwrap(), if moves { "ams" } else { "fra" }, "{better}");
    }
}

#[test]
fn who_came_a_moment_ago_is_not_moved() {
    let mut world = World::with(&[("fra", 100)]);
    let relays = [("fra", beat(100, 100)), ("ams", beat(100, 100))];
    world.live(29 * MINUTE + 30 * SECOND, &relays[..1], &[]);
    world.ask("a", wish(10, &[("fra", 50)]));
    world.pass(SECOND);
    let after = report(wish(10, &[("fra", 50), ("ams", 90)]), 50, 50);
    world.live(29 * MINUTE, &relays, &[("a", after.clone())]);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
    world.live(3 * MINUTE, &relays, &[("a", after)]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
}

#[test]
fn an_edge_that_gets_too_little_is_matched_anew_by_what_it_gets() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = wish(10, &[("fra", 50), ("ams", 40)]);
    let relays = [("fra", beat(100, 100)), ("ams", beat(100, 100))];
    world.ask("a", edge.clone());
    world.pass(SECOND);
    world.live(MINUTE, &relays, &[("a", report(edge.clone(), 5, 5))]);
    assert_eq!(world.relay_of("a").unwrap(), "fra", "it offers no more");
    world.live(5 * SECOND, &relays, &[("a", report(edge.clone(), 12, 50))]);
    assert_eq!(world.relay_of("a").unwrap(), "fra", "once is not enough");
    world.live(5 * SECOND, &relays, &[("a", report(edge.clone(), 12, 50))]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
    // And does not come back by what it measured before.
    world.live(10 * MINUTE, &relays, &[("a", report(edge, 40, 40))]);
    assert_eq!(world.relay_of("a").unwrap(), "ams");
}

#[test]
fn a_relay_that_says_less_than_its_edges_is_not_believed() {
    let mut world = World::with(&[("fra", 100)]);
    let edge = wish(10, &[("fra", 50)]);
    world.ask("a", edge.clone());
    world.pass(SECOND);
    world.beat("fra", beat(100, 100));
    assert_eq!(world.free("fra"), mbps(50), "what is reserved");
    world.report("a", report(edge, 58, 58));
    assert_eq!(world.free("fra"), mbps(42), "what is used");
    world.beat("fra", beat(100, 20));
    assert_eq!(world.free("fra"), mbps(20), "what it says itself, if that is more");
    world.ask("b", wish(10, &[("fra", 11)]));
    world.pass(SECOND);
    assert_eq!(world.reason("b"), Some(Reason::NoRoom));
}

#[test]
fn a_relay_that_drains_is_left_whoever_wants_it() {
    for by_operator in [false, true] {
        let mut world = World::with(&[("fra", 100), ("ams", 100)]);
        let edge = wish(10, &[("fra", 50), ("ams", 40)]);
        world.ask("a", edge.clone());
        world.pass(SECOND);
        if by_operator {
            world.machine.drain(&name("fra"), true, Some(MINUTE), world.now);
        } else {
            world.beat("fra", Beat { draining: true, ..beat(100, 100) });
        }
        world.pass(SECOND);
        assert_eq!(world.relay_of("a").unwrap(), "ams");
        if by_operator {
            assert!(world.beat("fra", beat(100, 100)).draining);
            let relays = [("fra", beat(100, 100)), ("ams", beat(100, 100))];
            world.live(2 * MINUTE, &relays, &[]);
            assert!(!world.beat("fra", beat(100, 100)).draining, "it was for a minute");
        }
    }
}

#[test]
fn a_relay_is_told_its_edges_when_they_change_and_only_then() {
    let mut world = World::with(&[("fra", 100)]);
    let first = world.beat("fra", beat(100, 100));
    assert_eq!(first.assignments, Some(vec![]));
    let seen = |mark| Beat { seen: mark, ..beat(100, 100) };
    assert_eq!(world.beat("fra", seen(first.mark)).assignments, None);
    world.ask("a", wish(10, &[("fra", 50)]));
    world.pass(SECOND);
    let second = world.beat("fra", seen(first.mark));
    let told = second.assignments.unwrap();
    assert_eq!((told[0].edge.as_str(), told[0].reservation, told.len()), ("a", mbps(50), 1));
    assert!(second.mark > first.mark);
    assert_eq!(world.beat("fra", seen(second.mark)).assignments, None);
    world.machine.release(&name("a"), world.now);
    assert_eq!(world.beat("fra", seen(second.mark)).assignments, Some(vec![]));
    world.machine.lift(2);
    let third = world.beat("fra", seen(second.mark));
    assert_eq!((third.mark.epoch, third.assignments), (2, Some(vec![])));
}

#[test]
fn what_another_one_has_told_a_relay_in_our_epoch_is_not_taken_for_ours() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    world.beat("fra", beat(100, 100));
    world.ask("a", wish(10, &[("fra", 50)]));
    world.pass(SECOND);
    world.ask("b", wish(10, &[("ams", 50)]));
    world.pass(SECOND);
    // Both lead in one epoch, and the other one's versions have gone as far; of our edges it knows nothing.
    let told = world.beat("fra", Beat { seen: world.machine.mark(), ..beat(100, 100) });
    assert_eq!(told.assignments.map(|edges| edges.len()), Some(1));
    assert_eq!(world.beat("fra", Beat { seen: told.mark, ..beat(100, 100) }).assignments, None);
}

#[test]
fn a_later_epoch_that_a_relay_has_seen_is_overtaken_and_a_wild_one_is_not() {
    let mut world = World::new();
    world.beat("fra", Beat { seen: Mark { epoch: u64::MAX, version: 0 }, ..beat(100, 100) });
    assert!(world.behind.is_empty());
    world.beat("fra", Beat { seen: Mark { epoch: 7, version: 0 }, ..beat(100, 100) });
    assert_eq!(world.behind, [7]);
    world.machine.lift(8);
    assert_eq!(world.machine.mark(), Mark { epoch: 8, version: 0 });
    world.machine.lift(3);
    assert_eq!(world.machine.mark().epoch, 8);
}

#[test]
fn time_does_not_go_back() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(10, &[("fra", 50)]));
    world.pass(10 * SECOND);
    world.machine.tick(Instant::from_millis(0));
    world.machine.heartbeat(&name("fra"), beat(100, 100), Instant::from_millis(1)).unwrap();
    assert_eq!(world.machine.relays()[0].age_ms, 0);
    assert_eq!(world.relay_of("a").unwrap(), "fra");
}

#[test]
fn after_a_jump_of_an_hour_who_speaks_again_has_what_it_had() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edge = wish(10, &[("fra", 50), ("ams", 40)]);
    world.ask("a", edge.clone());
    world.ask("b", wish(10, &[("ams", 40)]));
    world.pass(SECOND);
    let before = world.machine.standing(&name("a")).assignment.unwrap().mark;
    world.now += Duration::from_secs(3600);
    world.machine.tick(world.now);
    world.outputs();
    world.pass(9 * SECOND);
    world.beat("fra", beat(100, 100));
    world.report("a", report(edge, 40, 40));
    world.pass(2 * SECOND);
    let after = world.machine.standing(&name("a")).assignment.unwrap();
    assert_eq!((after.relay.as_str(), after.mark), ("fra", before));
    assert_eq!(world.relay_of("b"), None, "who does not is gone");
    assert_eq!(world.machine.relays().len(), 1);
}

#[test]
fn a_machine_that_lost_everything_has_it_again_after_two_heartbeats() {
    let mut world = World::with(&[("fra", 100), ("ams", 100)]);
    let edges: Vec<(String, Wish)> =
        (0..6).map(|n| (format!("cam-{n}"), wish(1, &[("fra", 20), ("ams", 15)]))).collect();
    edges.iter().for_each(|(edge, wish)| world.ask(edge, wish.clone()));
    world.pass(SECOND);
    let seats: Vec<Option<Held>> = edges
        .iter()
        .map(|(edge, _)| {
            let had = world.machine.standing(&name(edge)).assignment?;
            Some(Held { relay: had.relay, reservation: had.reservation, mark: had.mark })
        })
        .collect();
    assert!(seats.iter().all(Option::is_some));
    let (fra, ams) = (world.free("fra"), world.free("ams"));
    // Another one, later; edges speak before their relays, and for two heartbeats nothing is taken from them.
    world.machine = Machine::new(Config::default(), 2, world.now);
    for round in 0..2 {
        for ((edge, wish), held) in edges.iter().zip(&seats) {
            let standing = world.report(edge, Report { held: held.clone(), ..report(wish.clone(), 10, 10) });
            assert_eq!(standing.assignment.unwrap().relay, held.clone().unwrap().relay, "{round}");
        }
        world.pass(3 * SECOND);
        world.beat("fra", beat(100, fra.as_mbps_f64() as u64));
        world.beat("ams", beat(100, ams.as_mbps_f64() as u64));
        world.pass(2 * SECOND);
    }
    assert_eq!((world.free("fra"), world.free("ams")), (fra, ams));
    assert_eq!(world.machine.edges().len(), 6);
}

#[test]
fn an_edge_gets_no_more_by_what_it_says_that_it_holds() {
    let mut world = World::with(&[("fra", 100)]);
    let held = |reservation, epoch| {
        let mark = Mark { epoch, version: 9 };
        Some(Held { relay: name("fra"), reservation: mbps(reservation), mark })
    };
    let says = |held| Report { held, ..report(wish(1, &[("fra", 30)]), 0, 0) };
    let got = world.report("a", says(held(90, 1))).assignment.unwrap();
    assert_eq!(got.reservation, mbps(30), "what it has measured");
    assert_eq!(world.report("b", says(held(20, 5))).assignment, None, "of an epoch that has not been");
    let other = Report { held: held(20, 1), ..report(wish(1, &[("ams", 30)]), 0, 0) };
    assert_eq!(world.report("c", other).assignment, None, "at a relay that it has not measured");
    for n in 0..5 {
        world.report(&format!("d{n}"), says(held(30, 1)));
    }
    assert_eq!(world.machine.claims[&name("fra")].load.all(), mbps(90), "and no more than the relay has");
}

#[test]
fn a_solution_that_comes_late_takes_nothing_that_is_gone() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(10, &[("fra", 80)]));
    world.ask("b", wish(10, &[("fra", 50)]));
    world.now += Duration::from_millis(250);
    world.machine.tick(world.now);
    let Some(Output::Solve(problem)) = world.machine.poll() else { panic!("the window is over") };
    assert_eq!((problem.boxes(), problem.is_whole()), (2, false));
    // In the meantime it is half full of others, and b has gone.
    world.beat("fra", beat(100, 50));
    world.machine.release(&name("b"), world.now);
    world.machine.solved(problem.solve(1_000_000), world.now);
    assert_eq!((world.relay_of("a"), world.reason("a")), (None, Some(Reason::NoRoom)));
    assert_eq!(world.reason("b"), Some(Reason::Released));
    world.outputs();
    world.pass(SECOND);
    assert_eq!(world.decided, [name("b"), name("a")]);
}

#[test]
fn who_gets_its_relay_otherwise_while_a_matching_is_solved_is_answered() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(10, &[]));
    world.now += Duration::from_millis(200);
    world.machine.tick(world.now);
    let Some(Output::Solve(problem)) = world.machine.poll() else { panic!("the window is over") };
    let held = Some(Held { relay: name("fra"), reservation: mbps(20), mark: Mark { epoch: 1, version: 9 } });
    world.report("a", Report { held, ..report(wish(10, &[("fra", 20)]), 0, 0) });
    world.machine.solved(problem.solve(1_000_000), world.now);
    world.outputs();
    assert_eq!((world.decided.as_slice(), world.relay_of("a").unwrap().as_str()), (&[name("a")][..], "fra"));
}

#[test]
fn candidates_are_the_nearest_that_have_something_left() {
    let mut world = World::new();
    let at = |latitude, longitude| Some(super::super::Position::new(latitude, longitude).unwrap());
    for (relay, position) in
        [("fra", at(50.1, 8.7)), ("ams", at(52.4, 4.9)), ("nyc", at(40.7, -74.0)), ("sfo", at(37.8, -122.4))]
    {
        world.beat(relay, Beat { position, ..beat(100, 100) });
    }
    world.beat("full", Beat { position: at(50.0, 8.0), ..beat(100, 9) });
    let near = Near { position: at(50.0, 8.3), origin: None };
    let names = |world: &mut World, near: &Near| -> Vec<String> {
        let found = world.machine.candidates(&name("cam"), near, world.now);
        found.into_iter().map(|candidate| candidate.relay.to_string()).collect()
    };
    assert_eq!(names(&mut world, &near), ["fra", "ams", "nyc"]);
    world.machine.drain(&name("fra"), true, None, world.now);
    assert_eq!(names(&mut world, &near), ["ams", "nyc", "sfo"]);
    // By round trips, where nobody says where he is.
    let mut world = World::with(&[("a", 100), ("b", 100), ("c", 100), ("d", 100)]);
    let mut measured = wish(1, &[("c", 10), ("a", 10)]);
    measured.measured[0].rtt_ms = Some(10);
    measured.measured[1].rtt_ms = Some(30);
    world.ask("cam", measured);
    assert_eq!(names(&mut world, &Near::default())[..2], ["c", "a"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut world = World::new();
    let mut refused = |beat: Beat| world.machine.heartbeat(&name("fra"), beat, world.now).is_err();
    assert!(refused(beat(0, 0)) && refused(beat(2_000_000, 0)));
    assert!(refused(Beat { addresses: vec![], ..beat(1, 1) }));
    let twice = wish(1, &[("fra", 1), ("fra", 2)]);
    assert!(world.machine.request(&name("a"), twice, world.now).is_err());
}
