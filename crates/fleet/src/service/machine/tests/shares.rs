//! Several machines of which one leads: what the others know of it, and what they do without it.

use super::*;

fn written(rows: &mut BTreeMap<String, String>, machine: &mut Machine) -> usize {
    let changes = machine.changes(usize::MAX);
    let count = changes.len();
    for (key, row) in changes {
        match row {
            Some(row) => drop(rows.insert(key, row)),
            None => drop(rows.remove(&key)),
        }
    }
    count
}

#[test]
fn who_takes_the_lead_knows_who_had_what() {
    let mut world = World::new();
    world.machine.share(true);
    world.beat("fra", beat(100, 100));
    world.beat("ams", beat(100, 100));
    let edges = ["a", "b", "c"];
    edges.iter().for_each(|edge| world.ask(edge, wish(1, &[("fra", 30), ("ams", 20)])));
    world.pass(SECOND);
    let mut rows = BTreeMap::new();
    assert_eq!(written(&mut rows, &mut world.machine), 5);
    let words: Vec<_> = edges.map(|edge| (edge, report(wish(1, &[("fra", 30), ("ams", 20)]), 20, 20))).into();
    let relays = [("fra", beat(100, 10)), ("ams", beat(100, 100))];
    world.live(MINUTE, &relays, &words);
    assert_eq!(written(&mut rows, &mut world.machine), 0, "who says nothing new is no news");

    let mut other = Machine::new(Config::default(), 0, world.now);
    let rows_read: Vec<_> = rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
    other.lead(2, world.now);
    other.restore(&rows_read, world.now);
    assert_eq!(other.edges().len(), 3);
    for edge in edges {
        let (was, is) = (world.machine.standing(&name(edge)), other.standing(&name(edge)));
        let place = |standing: Standing| standing.assignment.map(|it| (it.relay, it.reservation, it.mark));
        assert_eq!(place(is), place(was), "{edge}");
    }
    // Who has died with the one before is gone after its time.
    world.machine = other;
    world.machine.share(true);
    world.live(MINUTE, &relays[..1], &words);
    written(&mut rows, &mut world.machine);
    assert_eq!(rows.keys().map(String::as_str).collect::<Vec<_>>(), ["edge/a", "edge/b", "edge/c", "relay/fra"]);
    assert!(edges.iter().all(|edge| world.relay_of(edge).as_deref() == Some("fra")));
}

#[test]
fn rows_that_could_not_be_written_are_written_later_and_odd_ones_are_left_out() {
    let mut world = World::new();
    world.machine.share(true);
    world.beat("fra", beat(100, 100));
    world.ask("a", wish(1, &[("fra", 30)]));
    world.pass(SECOND);
    let first = world.machine.changes(1);
    assert_eq!(first.len(), 1, "as many as were asked for");
    world.machine.unchanged(&first);
    let keys: Vec<String> = world.machine.changes(9).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["relay/fra", "edge/a"]);
    let odd = [("relay/fra", "{}"), ("edge/a", "null"), ("edge/A b", "{}"), ("x", "y"), ("relay/", "")];
    let odd: Vec<_> = odd.iter().map(|(key, row)| ((*key).to_owned(), (*row).to_owned())).collect();
    let mut other = Machine::new(Config::default(), 2, world.now);
    other.restore(&odd, world.now);
    assert!(other.relays().is_empty() && other.edges().is_empty());
}

#[test]
fn who_does_not_lead_answers_and_decides_nothing() {
    let mut world = World::with(&[("fra", 100)]);
    world.ask("a", wish(1, &[("fra", 30)]));
    world.pass(SECOND);
    let mark = world.machine.mark();
    world.machine.pause();
    world.ask("b", wish(1, &[("fra", 30)]));
    for _ in 0..20 {
        let told = world.beat("fra", Beat { seen: mark, ..beat(100, 100) });
        assert_eq!((told.mark, told.assignments), (mark, None));
        world.pass(5 * SECOND);
    }
    assert_eq!((world.relay_of("a").unwrap().as_str(), world.reason("b")), ("fra", Some(Reason::Pending)));
    // It leads on, as nobody else has: who was not heard for want of a lead has two heartbeats.
    world.machine.lead(mark.epoch, world.now);
    world.pass(9 * SECOND);
    assert_eq!(world.machine.mark().epoch, mark.epoch);
    assert_eq!((world.relay_of("a").unwrap(), world.relay_of("b").unwrap()), ("fra".into(), "fra".into()));
    // Somebody else leads: what it knew is of before.
    world.machine.drain(&name("ams"), true, None, world.now);
    world.machine.follow();
    assert!(world.machine.edges().is_empty() && world.machine.relays().is_empty() && !world.machine.leads());
    assert_eq!(world.beat("ams", beat(100, 100)).mark, Mark::default(), "which no relay takes for news");
    world.machine.lead(9, world.now);
    assert!(world.beat("ams", beat(100, 100)).draining, "what operators said counts, whoever leads");
}
