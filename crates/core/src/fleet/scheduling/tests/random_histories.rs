//! Random histories: after any sequence of events the sums are correct, no relay is overbooked, and every request gets a reply.

use proptest::prelude::*;

use super::super::placements::Load;
use super::*;

/// Rates are in Mbit/s; `alone` is the rate of the edge's best single link, `rates` are those that it has measured at [`RELAYS`].
#[derive(Clone, Debug)]
enum Event {
    Heartbeat {
        relay: usize,
        free: u64,
        draining: bool,
    },
    Request {
        edge: usize,
        alone: u64,
        rates: [u64; 3],
    },
    Report {
        edge: usize,
        rates: [u64; 3],
        throughput: u64,
        offered: u64,
        assignment: Option<(usize, u64)>,
    },
    Release {
        edge: usize,
    },
    Drain {
        relay: usize,
        closed: bool,
        seconds: u64,
    },
    /// Time passes while a matching is being solved, so that solutions can arrive late.
    Advance {
        millis: u64,
    },
    Solve,
    ClockBack,
}

/// Names and capacities.
const RELAYS: [(&str, u64); 3] = [("fra", 100), ("ams", 60), ("nyc", 30)];

fn act() -> impl Strategy<Value = Event> {
    let rates = || [0..80_u64, 0..80_u64, 0..80_u64];
    prop_oneof![
        4 => (0..3_usize, 0..120_u64, any::<bool>())
            .prop_map(|(relay, free, odd)| Event::Heartbeat { relay, free, draining: odd && free % 5 == 0 }),
        4 => (0..8_usize, 0..40_u64, rates()).prop_map(|(edge, alone, rates)| Event::Request { edge, alone, rates }),
        4 => (0..8_usize, rates(), 0..90_u64, 0..90_u64, proptest::option::weighted(0.1, (0..3_usize, 0..90_u64)))
            .prop_map(|(edge, rates, throughput, offered, assignment)| Event::Report { edge, rates, throughput, offered, assignment }),
        1 => (0..8_usize).prop_map(|edge| Event::Release { edge }),
        1 => (0..3_usize, any::<bool>(), 0..100_u64)
            .prop_map(|(relay, closed, seconds)| Event::Drain { relay, closed, seconds }),
        4 => prop_oneof![0..300_u64, 0..10_000_u64, 0..4_000_000_u64].prop_map(|millis| Event::Advance { millis }),
        4 => Just(Event::Solve),
        1 => Just(Event::ClockBack),
    ]
}

fn request_with(alone: u64, rates: [u64; 3]) -> AssignmentRequest {
    let measured: Vec<(&str, u64)> = RELAYS.iter().zip(rates).map(|((relay, _), rate)| (*relay, rate)).collect();
    assignment_request(alone, &measured)
}

struct History {
    scheduler: FleetScheduler,
    now: Instant,
    problems: Vec<MatchingProblem>,
    /// Whether edges report assignments, so that relays may be overbooked.
    has_adoption: bool,
}

impl History {
    fn carry_out(&mut self, act: &Event) {
        let (scheduler, now) = (&mut self.scheduler, self.now);
        let edge = |edge: &usize| name(&format!("cam-{edge}"));
        match act {
            Event::Heartbeat { relay, free, draining } => {
                let (relay, capacity) = RELAYS[*relay];
                let heartbeat = Heartbeat { draining: *draining, ..heartbeat(capacity, *free) };
                scheduler.handle(now, Input::Heartbeat(name(relay), heartbeat));
            }
            Event::Request { edge: at, alone, rates } => {
                scheduler.handle(now, Input::Request(edge(at), request_with(*alone, *rates)));
            }
            Event::Report { edge: at, rates, throughput, offered, assignment } => {
                let assignment = assignment.map(|(relay, reservation)| {
                    let version = scheduler.version();
                    CurrentAssignment { relay: name(RELAYS[relay].0), reservation: mbps(reservation), version }
                });
                let report = Report { assignment, ..report(request_with(5, *rates), *throughput, *offered) };
                scheduler.handle(now, Input::Report(edge(at), report));
            }
            Event::Release { edge: at } => scheduler.handle(now, Input::Release(edge(at))),
            Event::Drain { relay, closed, seconds } => {
                let time = (*seconds > 50).then(|| Duration::from_secs(*seconds));
                let relay = name(RELAYS[*relay].0);
                scheduler.handle(now, Input::Drain { relay, draining: *closed, time });
            }
            Event::Advance { millis } => {
                self.now += Duration::from_millis(*millis);
                scheduler.tick(self.now);
            }
            Event::Solve => {
                for problem in self.problems.drain(..) {
                    scheduler.handle(now, Input::Solved(problem.solve(100_000)));
                }
            }
            Event::ClockBack => scheduler.tick(Instant::from_millis(1)),
        }
        while let Some(output) = self.scheduler.poll() {
            match output {
                Output::Solve(problem) => self.problems.push(problem),
                Output::Reply(Reply::Rejected(why)) => panic!("{why}"),
                _ => {}
            }
        }
    }

    fn check_sums(&self) {
        assert!(self.problems.len() <= 1, "more than one matching is being solved");
        let mut seen = 0;
        for (relay, claims) in self.scheduler.placements.claims() {
            let state_of = |edge: &Name| self.scheduler.placements.get(edge).unwrap();
            let at =
                |edge: &&Name| state_of(edge).placement.as_ref().is_some_and(|placement| placement.relay == *relay);
            assert!(claims.edges.iter().all(|edge| at(&edge)), "{relay}: has an edge that is not placed there");
            let sum = claims.edges.iter().fold(Load::default(), |sum, edge| sum.plus(state_of(edge).load()));
            assert_eq!(claims.load, sum, "{relay}");
            let reserved = claims
                .edges
                .iter()
                .filter_map(|edge| state_of(edge).placement.as_ref())
                .map(|placement| placement.reservation);
            let capacity =
                RELAYS.iter().find(|(name, _)| *name == relay.as_str()).map(|(_, capacity)| mbps(*capacity));
            // Assignments that edges report while their relay is unresponsive are accepted without knowledge of its capacity.
            if !self.has_adoption {
                assert!(reserved.sum::<Bitrate>() <= capacity.unwrap(), "{relay}: overbooked");
            }
            seen += claims.edges.len();
        }
        let placed = self.scheduler.placements.iter().filter(|(_, edge)| edge.placement.is_some()).count();
        assert_eq!(seen, placed, "an edge is placed at a relay that does not list it");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_are_correct_and_every_request_gets_a_reply(acts in proptest::collection::vec(act(), 1..80)) {
        let now = Instant::from_millis(1000);
        let has_adoption = acts.iter().any(|act| matches!(act, Event::Report { assignment: Some(_), .. }));
        let scheduler = FleetScheduler::new(SchedulerConfig::default(), 1, now);
        let mut history = History { scheduler, now, problems: Vec::new(), has_adoption };
        for act in &acts {
            history.carry_out(act);
            history.check_sums();
        }
        for _ in 0..8 {
            history.carry_out(&Event::Advance { millis: 1000 });
            history.carry_out(&Event::Solve);
            history.check_sums();
        }
        prop_assert!(history.scheduler.placements.iter().all(|(_, edge)| !edge.is_pending), "a request is still waiting");
    }
}
