//! A machine that has lost everything, edges that lie before the honest ones speak, and relays that know better.

use proptest::prelude::*;

use super::*;

const BEFORE: Mark = Mark { epoch: 3, version: 9 };

fn begun() -> World {
    let mut world = World::new();
    world.machine = Machine::new(Config::default(), 4, world.now);
    world
}

fn served(capacity: u64, held: Option<&[(&str, u64)]>) -> Beat {
    let list = |held: &[(&str, u64)]| held.iter().map(|(edge, rate)| (name(edge), mbps(*rate))).collect();
    let used: u64 = held.unwrap_or_default().iter().map(|(_, rate)| rate).sum();
    Beat { seen: BEFORE, held: held.map(list), ..beat(capacity, capacity.saturating_sub(used)) }
}

fn says(relay: &str, rate: u64) -> Report {
    let held = Held { relay: name(relay), reservation: mbps(rate), mark: BEFORE };
    Report { held: Some(held), ..report(wish(1, &[(relay, rate)]), 0, 0) }
}

fn has(world: &World, edge: &str) -> Option<Bitrate> {
    world.machine.standing(&name(edge)).assignment.map(|it| it.reservation)
}

#[test]
fn a_relay_is_asked_once_and_keeps_what_it_has_until_it_has_answered() {
    let mut world = begun();
    let asked = world.beat("fra", served(100, None));
    assert_eq!((asked.tell_held, asked.mark, asked.assignments), (true, BEFORE, None));
    let told = world.beat("fra", served(100, Some(&[("a", 60)])));
    let of = told.assignments.unwrap();
    assert_eq!((told.tell_held, told.mark.epoch, of.len()), (false, 4, 1));
    assert_eq!((of[0].edge.clone(), of[0].reservation), (name("a"), mbps(60)), "who has not spoken yet");
    // One that nobody ever told of edges is not asked.
    assert!(!world.beat("new", beat(100, 100)).tell_held);
    // Who was not heard is gone with the grace, and the relay is told so.
    world.live(15 * SECOND, &[("fra", Beat { seen: told.mark, ..beat(100, 100) })], &[]);
    let later = world.beat("fra", Beat { seen: told.mark, ..beat(100, 100) });
    assert_eq!(later.assignments, Some(vec![]));
    assert_eq!(world.free("fra"), mbps(100));
}

#[test]
fn a_liar_who_speaks_first_takes_no_place_of_an_honest_edge() {
    let mut world = begun();
    assert_eq!(has(&world, "liar"), None);
    world.report("liar", says("fra", 90));
    assert_eq!(has(&world, "liar"), Some(mbps(90)), "nobody knows better yet");
    world.beat("fra", served(100, None));
    world.report("second", says("fra", 80));
    world.beat("fra", served(100, Some(&[("a", 40), ("b", 40), ("second", 5)])));
    assert_eq!((has(&world, "liar"), has(&world, "second")), (None, Some(mbps(5))), "what the relay has said");
    world.report("third", says("fra", 6));
    assert_eq!(has(&world, "third"), None, "there is room for 5");
    world.report("a", says("fra", 40));
    world.report("b", says("fra", 40));
    assert_eq!((has(&world, "a"), has(&world, "b")), (Some(mbps(40)), Some(mbps(40))));
}

#[test]
fn what_a_relay_keeps_waits_only_for_who_needs_it() {
    let mut world = begun();
    for relay in ["fra", "ams"] {
        world.beat(relay, served(100, None));
        world.beat(relay, served(100, Some(&[("a", 60), ("b", 30)])));
    }
    let room = |world: &World| world.machine.room(&name("fra"), Default::default());
    assert_eq!(room(&world), Bitrate::ZERO);
    world.report("a", says("ams", 60));
    world.beat("fra", beat(100, 100));
    assert_eq!(room(&world), mbps(60), "a is at ams");
    world.machine.release(&name("b"), world.now);
    assert_eq!(room(&world), mbps(90), "b has let go");
}

#[test]
fn a_relay_that_never_answers_holds_nobody_up() {
    let mut world = begun();
    world.report("liar", says("fra", 900));
    world.report("a", says("fra", 40));
    for _ in 0..4 {
        world.beat("fra", served(100, None));
        world.pass(5 * SECOND);
        world.report("a", says("fra", 40));
    }
    let answer = world.beat("fra", served(100, None));
    assert!(!answer.tell_held && answer.mark.epoch == 4);
    // Whoever asks for more than there is gets what the others leave.
    assert_eq!((has(&world, "liar"), has(&world, "a")), (Some(mbps(50)), Some(mbps(40))));
}

/// Who speaks: a relay, or which of the edges; liars after the honest ones.
#[derive(Clone, Copy, Debug)]
enum Word {
    Relay(usize),
    Edge(usize),
}

proptest! {
    #[test]
    fn after_a_restart_all_honest_edges_have_what_they_had_whatever_liars_say(
        rates in proptest::collection::vec((1_u64..30, 0_usize..2), 1..8),
        lies in proptest::collection::vec((1_u64..200, 0_usize..2), 0..6),
        words in proptest::collection::vec((0_usize..3, 0_usize..16), 0..60),
    ) {
        let relays = ["fra", "ams"];
        let mut left = [90, 90];
        let honest: Vec<(String, u64, usize)> = rates.iter().enumerate().filter_map(|(n, (rate, at))| {
            left[*at] -= i64::try_from(*rate).unwrap();
            (left[*at] >= 0).then(|| (format!("h{n}"), *rate, *at)).or_else(|| {
                left[*at] += i64::try_from(*rate).unwrap();
                None
            })
        }).collect();
        let all: Vec<(String, u64, usize)> = honest.iter().cloned()
            .chain(lies.iter().enumerate().map(|(n, (rate, at))| (format!("l{n}"), *rate, *at))).collect();
        let list = |at: usize| honest.iter().filter(|edge| edge.2 == at)
            .map(|(edge, rate, _)| (edge.as_str(), *rate)).collect::<Vec<_>>();
        let mut world = begun();
        let mut asked = [false; 2];
        let mut seen = [BEFORE; 2];
        let mut speak = |world: &mut World, word: Word| match word {
            Word::Relay(at) => {
                let told = served(100, Some(&list(at)));
                let held = if asked[at] { told.held.clone() } else { None };
                let answer = world.beat(relays[at], Beat { held, seen: seen[at], ..told });
                (asked[at], seen[at]) = (answer.tell_held, answer.mark);
            }
            Word::Edge(at) => {
                let (edge, rate, at) = &all[at % all.len()];
                world.report(edge, says(relays[*at], *rate));
            }
        };
        // In the first heartbeat they speak as they like, liars and honest ones; in the second one everybody does.
        for (kind, n) in words {
            speak(&mut world, if kind == 0 { Word::Relay(n % 2) } else { Word::Edge(n) });
            world.pass(Duration::from_millis(100));
        }
        for at in (0..all.len()).rev() {
            if at >= honest.len() {
                speak(&mut world, Word::Edge(at));
            }
        }
        for at in [0, 1, 0, 1] {
            speak(&mut world, Word::Relay(at));
        }
        (0..honest.len()).for_each(|at| speak(&mut world, Word::Edge(at)));
        for (edge, rate, at) in &honest {
            let has = world.machine.standing(&name(edge)).assignment;
            prop_assert_eq!(has.map(|it| (it.relay, it.reservation)), Some((name(relays[*at]), mbps(*rate))));
        }
        for relay in relays {
            let load = world.machine.claims[&name(relay)].load.reserved;
            prop_assert!(load <= mbps(90), "{}: {}", relay, load);
        }
    }
}
