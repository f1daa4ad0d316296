//! Random histories: whatever relays, edges and operators do, sums stay right, nobody is given too much, everybody is answered.

use proptest::prelude::*;

use super::super::relays::Load;
use super::*;

#[derive(Clone, Debug)]
enum Act {
    Beat {
        relay: usize,
        free: u64,
        draining: bool,
    },
    Ask {
        edge: usize,
        alone: u64,
        rates: [u64; 3],
    },
    Report {
        edge: usize,
        rates: [u64; 3],
        throughput: u64,
        offered: u64,
        held: Option<(usize, u64)>,
    },
    Release {
        edge: usize,
    },
    Drain {
        relay: usize,
        closed: bool,
        seconds: u64,
    },
    /// Nothing is solved in the meantime: solutions come late.
    Pass {
        millis: u64,
    },
    Solve,
    Back,
}

const RELAYS: [(&str, u64); 3] = [("fra", 100), ("ams", 60), ("nyc", 30)];

fn act() -> impl Strategy<Value = Act> {
    let rates = || [0..80_u64, 0..80_u64, 0..80_u64];
    prop_oneof![
        4 => (0..3_usize, 0..120_u64, any::<bool>())
            .prop_map(|(relay, free, odd)| Act::Beat { relay, free, draining: odd && free % 5 == 0 }),
        4 => (0..8_usize, 0..40_u64, rates()).prop_map(|(edge, alone, rates)| Act::Ask { edge, alone, rates }),
        4 => (0..8_usize, rates(), 0..90_u64, 0..90_u64, proptest::option::weighted(0.1, (0..3_usize, 0..90_u64)))
            .prop_map(|(edge, rates, throughput, offered, held)| Act::Report { edge, rates, throughput, offered, held }),
        1 => (0..8_usize).prop_map(|edge| Act::Release { edge }),
        1 => (0..3_usize, any::<bool>(), 0..100_u64)
            .prop_map(|(relay, closed, seconds)| Act::Drain { relay, closed, seconds }),
        4 => prop_oneof![0..300_u64, 0..10_000_u64, 0..4_000_000_u64].prop_map(|millis| Act::Pass { millis }),
        4 => Just(Act::Solve),
        1 => Just(Act::Back),
    ]
}

fn wished(alone: u64, rates: [u64; 3]) -> Wish {
    let measured: Vec<(&str, u64)> = RELAYS.iter().zip(rates).map(|((relay, _), rate)| (*relay, rate)).collect();
    wish(alone, &measured)
}

struct History {
    machine: Machine,
    now: Instant,
    open: Vec<Problem>,
    /// Whether edges name relays that they hold.
    adopts: bool,
}

impl History {
    fn carry_out(&mut self, act: &Act) {
        let (machine, now) = (&mut self.machine, self.now);
        let edge = |edge: &usize| name(&format!("cam-{edge}"));
        match act {
            Act::Beat { relay, free, draining } => {
                let (relay, capacity) = RELAYS[*relay];
                let beat = Beat { draining: *draining, ..beat(capacity, *free) };
                machine.heartbeat(&name(relay), beat, now).unwrap();
            }
            Act::Ask { edge: at, alone, rates } => machine.request(&edge(at), wished(*alone, *rates), now).unwrap(),
            Act::Report { edge: at, rates, throughput, offered, held } => {
                let held = held.map(|(relay, reservation)| {
                    let mark = machine.mark();
                    Held { relay: name(RELAYS[relay].0), reservation: mbps(reservation), mark }
                });
                let report = Report { held, ..report(wished(5, *rates), *throughput, *offered) };
                machine.report(&edge(at), report, now).unwrap();
            }
            Act::Release { edge: at } => machine.release(&edge(at), now),
            Act::Drain { relay, closed, seconds } => {
                let time = (*seconds > 50).then(|| Duration::from_secs(*seconds));
                machine.drain(&name(RELAYS[*relay].0), *closed, time, now);
            }
            Act::Pass { millis } => {
                self.now += Duration::from_millis(*millis);
                machine.tick(self.now);
            }
            Act::Solve => self.open.drain(..).for_each(|problem| machine.solved(problem.solve(100_000), now)),
            Act::Back => machine.tick(Instant::from_millis(1)),
        }
        while let Some(output) = self.machine.poll() {
            if let Output::Solve(problem) = output {
                self.open.push(*problem);
            }
        }
    }

    fn check(&self) {
        assert!(self.open.len() <= 1, "two matchings at once");
        let mut seen = 0;
        for (relay, claims) in &self.machine.claims {
            let of = |edge: &Name| self.machine.edges.get(edge).unwrap();
            let at = |edge: &&Name| of(edge).seat.as_ref().is_some_and(|seat| seat.relay == *relay);
            assert!(claims.edges.iter().all(|edge| at(&edge)), "{relay}: somebody who is not there");
            let sum = claims.edges.iter().fold(Load::default(), |sum, edge| sum.plus(of(edge).load()));
            assert_eq!(claims.load, sum, "{relay}");
            let reserved =
                claims.edges.iter().filter_map(|edge| of(edge).seat.as_ref()).map(|seat| seat.reservation);
            let capacity =
                RELAYS.iter().find(|(name, _)| *name == relay.as_str()).map(|(_, capacity)| mbps(*capacity));
            // What edges hold that name a relay while it is silent was given out by somebody who knew the relay.
            if !self.adopts {
                assert!(reserved.sum::<Bitrate>() <= capacity.unwrap(), "{relay}: given too much");
            }
            seen += claims.edges.len();
        }
        let seated = self.machine.edges.values().filter(|edge| edge.seat.is_some()).count();
        assert_eq!(seen, seated, "somebody sits nowhere");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_stay_right_and_everybody_is_answered(acts in proptest::collection::vec(act(), 1..80)) {
        let now = Instant::from_millis(1000);
        let adopts = acts.iter().any(|act| matches!(act, Act::Report { held: Some(_), .. }));
        let machine = Machine::new(Config::default(), 1, now);
        let mut history = History { machine, now, open: Vec::new(), adopts };
        for act in &acts {
            history.carry_out(act);
            history.check();
        }
        for _ in 0..8 {
            history.carry_out(&Act::Pass { millis: 1000 });
            history.carry_out(&Act::Solve);
            history.check();
        }
        prop_assert!(history.machine.edges.values().all(|edge| !edge.asked), "somebody still waits");
    }
}
