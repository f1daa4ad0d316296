//! Several processes with one leader: what the next leader restores, and what a process does that is not the leader.

use super::*;

fn write_rows(rows: &mut BTreeMap<String, String>, scheduler: &mut FleetScheduler) -> usize {
    let changes = scheduler.take_dirty_rows(usize::MAX);
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
fn a_new_leader_restores_all_assignments() {
    let mut world = World::new();
    world.machine.set_replicated(true);
    world.heartbeat("fra", heartbeat(100, 100));
    world.heartbeat("ams", heartbeat(100, 100));
    let edges = ["a", "b", "c"];
    edges.iter().for_each(|edge| world.request(edge, assignment_request(1, &[("fra", 30), ("ams", 20)])));
    world.advance(SECOND);
    let mut rows = BTreeMap::new();
    assert_eq!(write_rows(&mut rows, &mut world.machine), 5);
    let reports: Vec<_> =
        edges.map(|edge| (edge, report(assignment_request(1, &[("fra", 30), ("ams", 20)]), 20, 20))).into();
    let relays = [("fra", heartbeat(100, 10)), ("ams", heartbeat(100, 100))];
    world.run_heartbeats(MINUTE, &relays, &reports);
    assert_eq!(write_rows(&mut rows, &mut world.machine), 0, "heartbeats without new content change no rows");

    let mut other = FleetScheduler::new(SchedulerConfig::default(), 0, world.now);
    let rows_read: Vec<_> = rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
    other.become_leader(2, world.now);
    other.restore(&rows_read, world.now);
    assert_eq!(other.edge_summaries().len(), 3);
    for edge in edges {
        let (was, is) = (world.machine.reply_for(&name(edge)), other.reply_for(&name(edge)));
        let assignment_of =
            |reply: AssignmentReply| reply.assignment.map(|it| (it.relay, it.reservation, it.version));
        assert_eq!(assignment_of(is), assignment_of(was), "{edge}");
    }
    // A relay that failed together with the previous leader expires as usual.
    world.machine = other;
    world.machine.set_replicated(true);
    world.run_heartbeats(MINUTE, &relays[..1], &reports);
    write_rows(&mut rows, &mut world.machine);
    assert_eq!(rows.keys().map(String::as_str).collect::<Vec<_>>(), ["edge/a", "edge/b", "edge/c", "relay/fra"]);
    assert!(edges.iter().all(|edge| world.relay_of(edge).as_deref() == Some("fra")));
}

#[test]
fn unwritten_rows_are_written_later_and_invalid_rows_are_skipped() {
    let mut world = World::new();
    world.machine.set_replicated(true);
    world.heartbeat("fra", heartbeat(100, 100));
    world.request("a", assignment_request(1, &[("fra", 30)]));
    world.advance(SECOND);
    let first = world.machine.take_dirty_rows(1);
    assert_eq!(first.len(), 1, "at most one row was requested");
    world.machine.mark_dirty(&first);
    let keys: Vec<String> = world.machine.take_dirty_rows(9).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["relay/fra", "edge/a"]);
    let odd = [("relay/fra", "{}"), ("edge/a", "null"), ("edge/A b", "{}"), ("x", "y"), ("relay/", "")];
    let odd: Vec<_> = odd.iter().map(|(key, row)| ((*key).to_owned(), (*row).to_owned())).collect();
    let mut other = FleetScheduler::new(SchedulerConfig::default(), 2, world.now);
    other.restore(&odd, world.now);
    assert!(other.relay_summaries().is_empty() && other.edge_summaries().is_empty());
}

#[test]
fn a_follower_replies_to_relays_and_decides_nothing() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(1, &[("fra", 30)]));
    world.advance(SECOND);
    let version = world.machine.version();
    world.machine.step_down();
    world.request("b", assignment_request(1, &[("fra", 30)]));
    for _ in 0..20 {
        let reply = world.heartbeat("fra", Heartbeat { seen_version: version, ..heartbeat(100, 100) });
        assert_eq!((reply.version, reply.reservations), (version, None));
        world.advance(5 * SECOND);
    }
    assert_eq!((world.relay_of("a").unwrap().as_str(), world.reason("b")), ("fra", Some(NoRelayReason::Pending)));
    // It leads again, with no other leader in between: edges that could not report meanwhile have two heartbeats to do so.
    world.machine.become_leader(version.epoch, world.now);
    world.advance(9 * SECOND);
    assert_eq!(world.machine.version().epoch, version.epoch);
    assert_eq!((world.relay_of("a").unwrap(), world.relay_of("b").unwrap()), ("fra".into(), "fra".into()));
    // Another process leads: the state of this one is outdated.
    world.machine.drain(&name("ams"), true, None, world.now);
    world.machine.become_follower();
    assert!(
        world.machine.edge_summaries().is_empty()
            && world.machine.relay_summaries().is_empty()
            && !world.machine.is_leader()
    );
    assert_eq!(
        world.heartbeat("ams", heartbeat(100, 100)).version,
        StateVersion::default(),
        "a relay ignores this version"
    );
    world.machine.become_leader(9, world.now);
    assert!(
        world.heartbeat("ams", heartbeat(100, 100)).draining,
        "drains by operators survive a change of the leader"
    );
}
