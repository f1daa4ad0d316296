//! Several processes with one leader: what the next leader restores, and what a process does that is not the leader.

use super::*;

/// The rows of a store, by member.
type Rows = Vec<MemberRow>;

/// Writes the changed rows of a scheduler to the store; returns their number.
fn write_rows(rows: &mut Rows, scheduler: &mut FleetScheduler) -> usize {
    let changes = scheduler.take_rows(usize::MAX);
    let count = changes.len();
    for change in changes {
        rows.retain(|row| row.member() != change.member());
        if !matches!(change, MemberRow::Relay(_, None) | MemberRow::Edge(_, None)) {
            rows.push(change);
        }
    }
    count
}

#[test]
fn a_new_leader_restores_all_assignments() {
    let mut world = World::new();
    world.machine.replicate(true);
    world.heartbeat("fra", heartbeat(100, 100));
    world.heartbeat("ams", heartbeat(100, 100));
    let edges = ["a", "b", "c"];
    edges.iter().for_each(|edge| world.request(edge, assignment_request(1, &[("fra", 30), ("ams", 20)])));
    world.advance(SECOND);
    let mut rows = Rows::new();
    assert_eq!(write_rows(&mut rows, &mut world.machine), 5);
    let reports: Vec<_> =
        edges.map(|edge| (edge, report(assignment_request(1, &[("fra", 30), ("ams", 20)]), 20, 20))).into();
    let relays = [("fra", heartbeat(100, 10)), ("ams", heartbeat(100, 100))];
    world.run_heartbeats(MINUTE, &relays, &reports);
    assert_eq!(write_rows(&mut rows, &mut world.machine), 0, "heartbeats without new content change no rows");

    let mut other = FleetScheduler::new(SchedulerConfig::default(), 0, world.now);
    other.handle(world.now, Input::Lead { epoch: 2 });
    other.handle(world.now, Input::Restore(rows.clone()));
    assert_eq!(other.edge_summaries().len(), 3);
    for edge in edges {
        let (was, is) = (world.machine.reply_for(&name(edge)), other.reply_for(&name(edge)));
        let assignment_of = |reply: AssignmentReply| {
            reply.assignment.map(|assignment| (assignment.relay, assignment.reservation, assignment.version))
        };
        assert_eq!(assignment_of(is), assignment_of(was), "{edge}");
    }
    // A relay that failed together with the previous leader expires as usual.
    world.machine = other;
    world.machine.replicate(true);
    world.run_heartbeats(MINUTE, &relays[..1], &reports);
    write_rows(&mut rows, &mut world.machine);
    let mut members: Vec<Name> = rows
        .iter()
        .map(|row| match row.member() {
            Member::Relay(name) | Member::Edge(name) => name,
        })
        .collect();
    members.sort();
    assert_eq!(members, ["a", "b", "c", "fra"].map(name));
    assert!(edges.iter().all(|edge| world.relay_of(edge).as_deref() == Some("fra")));
}

#[test]
fn unwritten_rows_are_written_later_and_invalid_rows_are_skipped() {
    let mut world = World::new();
    world.machine.replicate(true);
    world.heartbeat("fra", heartbeat(100, 100));
    world.request("a", assignment_request(1, &[("fra", 30)]));
    world.advance(SECOND);
    let first = world.machine.take_rows(1);
    assert_eq!(first.len(), 1, "at most one row was requested");
    let members: Vec<Member> = first.iter().map(MemberRow::member).collect();
    world.machine.mark_unwritten(&members);
    let members: Vec<Member> = world.machine.take_rows(9).iter().map(MemberRow::member).collect();
    assert_eq!(members, [Member::Relay(name("fra")), Member::Edge(name("a"))]);
    let twice = assignment_request(1, &[("fra", 1), ("fra", 2)]);
    let invalid = vec![
        MemberRow::Relay(name("fra"), Some(heartbeat(0, 0))),
        MemberRow::Relay(name("ams"), None),
        MemberRow::Edge(name("a"), Some(StoredEdge { request: twice, assignment: None })),
    ];
    let mut other = FleetScheduler::new(SchedulerConfig::default(), 2, world.now);
    other.handle(world.now, Input::Restore(invalid));
    assert!(other.relay_summaries().is_empty() && other.edge_summaries().is_empty());
}

#[test]
fn a_follower_replies_to_relays_and_decides_nothing() {
    let mut world = World::with(&[("fra", 100)]);
    world.request("a", assignment_request(1, &[("fra", 30)]));
    world.advance(SECOND);
    let version = world.machine.version();
    world.machine.is_leader = false;
    world.request("b", assignment_request(1, &[("fra", 30)]));
    for _ in 0..20 {
        let reply = world.heartbeat("fra", Heartbeat { seen_version: version, ..heartbeat(100, 100) });
        assert_eq!((reply.version, reply.reservations), (version, None));
        world.advance(5 * SECOND);
    }
    assert_eq!((world.relay_of("a").unwrap().as_str(), world.reason("b")), ("fra", Some(NoRelayReason::Pending)));
    // It leads again, with no other leader in between: edges that could not report meanwhile have two heartbeats to do so.
    world.lead(version.epoch);
    world.advance(9 * SECOND);
    assert_eq!(world.machine.version().epoch, version.epoch);
    assert_eq!((world.relay_of("a").unwrap(), world.relay_of("b").unwrap()), ("fra".into(), "fra".into()));
    // Another process leads: the state of this one is outdated.
    world.machine.drain(&name("ams"), true, None);
    world.machine.follow();
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
    world.lead(9);
    assert!(
        world.heartbeat("ams", heartbeat(100, 100)).draining,
        "drains by operators survive a change of the leader"
    );
}
