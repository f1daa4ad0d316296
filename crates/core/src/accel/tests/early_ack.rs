//! Early ACK as a whole: what the application receives when packets are lost, late or discarded, and fetches fail.

use proptest::prelude::*;

use super::super::*;
use super::world::{Impairment, World};

const BOTH: [Mechanism; 2] = [Mechanism::EarlyAck, Mechanism::FreezeInFlight];

fn healthy() -> Impairment {
    Impairment {
        seed: 7,
        body: 2_000_000,
        loss: 0,
        delay: 0,
        refused_fetches: 0,
        unanswered_fetches: 0,
        undelivered: 0,
        renege: 0,
        outage: None,
        isn: 1000,
    }
}

/// Runs until all bytes have arrived, at most for so long.
fn arrives(impairment: Impairment, most: Duration) -> World {
    arrives_with(impairment, most, &BOTH)
}

fn arrives_with(impairment: Impairment, most: Duration, mechanisms: &[Mechanism]) -> World {
    let mut world = World::new(impairment, mechanisms);
    world.run(most);
    assert!(world.received == world.end() && !world.is_reset, "{}", world.describe());
    assert!(world.aged <= 60, "{} packets were too old: {}", world.aged, world.describe());
    assert!(status(&world).received.bytes() <= world.end(), "{}", world.describe());
    world
}

fn status(world: &World) -> FlowStatus {
    world.accelerator.flows(Instant::FAR_FUTURE).pop().unwrap()
}

#[test]
fn without_loss_only_the_check_is_fetched() {
    let world = arrives(healthy(), Duration::from_secs(60));
    assert_eq!((world.fetched, world.retransmitted), (512, 0));
    assert_eq!(status(&world).early_acked, DataSize::ZERO);
}

#[test]
fn random_losses_are_fetched_and_the_server_retransmits_few() {
    let world = arrives(Impairment { loss: 10, ..healthy() }, Duration::from_secs(60));
    let mut plain = World::new(Impairment { loss: 10, ..healthy() }, &[]);
    plain.run(Duration::from_secs(60));
    let flow = status(&world);
    assert!(flow.early_acked.bytes() >= 15_000, "{}", world.describe());
    assert_eq!(flow.missing, DataSize::ZERO);
    assert!(
        world.retransmitted * 4 <= plain.retransmitted,
        "{} retransmissions, {} without early ACK",
        world.retransmitted,
        plain.retransmitted
    );
    assert!(world.fetched <= flow.early_acked.bytes() * 5 / 4 + 512, "{}", world.fetched);
}

#[test]
fn data_in_flight_is_acknowledged_during_an_outage_and_fetched_after_it() {
    for outage in [(800, 3000), (1000, 1800)] {
        let impairment = Impairment { outage: Some(outage), ..healthy() };
        let mut world = World::new(impairment, &[Mechanism::FreezeInFlight]);
        world.run(Duration::from_secs(30));
        assert!(world.received == world.end() && !world.is_reset, "{}", world.describe());
        assert!(world.frozen >= 1 && world.fetched > 5_000, "{}", world.describe());
        // No gateway answers received, so that the pause after the outage counts as another one.
        assert!(world.retransmitted <= 1, "hardly anything was in flight that could have timed out");
    }
}

#[test]
fn an_outage_longer_than_a_hole_may_stay_open_ends_no_connection() {
    let mut early_acked_cases = 0;
    for begin in (1100..2000).step_by(100) {
        let impairment = Impairment { loss: 20, outage: Some((begin, begin + 14_000)), ..healthy() };
        let mut world = World::new(impairment, &BOTH);
        world.run(Duration::from_millis(begin - 1000 + 1));
        world.stop_fetches();
        early_acked_cases += u32::from(status(&world).missing > DataSize::ZERO);
        world.run(Duration::from_secs(15));
        world.resume_fetches();
        world.run(Duration::from_secs(60));
        assert!(world.received == world.end() && !world.is_reset, "{}", world.describe());
    }
    assert!(early_acked_cases > 3, "{early_acked_cases}");
}

#[test]
fn bytes_that_cannot_be_fetched_end_the_connection_with_an_error() {
    let impairment = Impairment { loss: 10, unanswered_fetches: 0, ..healthy() };
    let mut world = World::new(impairment, &BOTH);
    world.run(Duration::from_millis(700));
    world.stop_fetches();
    world.run(Duration::from_secs(60));
    assert!(world.is_reset, "{}", world.describe());
}

#[test]
fn slow_fetches_that_make_progress_end_no_connection() {
    let mut world = World::new(Impairment { loss: 10, ..healthy() }, &BOTH);
    world.is_fetch_slow = true;
    world.run(Duration::from_secs(300));
    assert!(world.received == world.end() && !world.is_reset, "{}", world.describe());
    let took = world.now.since(Instant::from_millis(1000));
    assert!(took > Duration::from_secs(12), "{took:?}: fast enough to prove nothing");
}

#[test]
fn after_a_crash_early_acked_bytes_are_repaired() {
    let mut repaired_holes = 0;
    for millis in (200..1500).step_by(50) {
        let mut world = World::new(Impairment { loss: 20, outage: Some((900, 1300)), ..healthy() }, &BOTH);
        world.run(Duration::from_millis(millis));
        let is_repairable = world.accelerator.pending_repairs().iter().all(|repair| repair.is_acked_known);
        repaired_holes += world.crash();
        world.run(Duration::from_secs(120));
        assert!(
            if is_repairable { world.received == world.end() && !world.is_reset } else { world.is_reset },
            "{}",
            world.describe()
        );
    }
    assert!(repaired_holes > 15, "{repaired_holes}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_byte_arrives_whenever_it_crashes(
        seed: u64,
        isn: u32,
        loss in 0_u64..60,
        delay in 0_u64..40,
        unanswered_fetches in 0_u64..50,
        crash_at in 50_u64..4000,
        outage in prop::option::of((300_u64..1500, 100_u64..3000)),
    ) {
        let outage = outage.map(|(from, long)| (from, from + long));
        let impairment = Impairment { seed, body: 700_000, loss, delay, unanswered_fetches, outage, isn, ..healthy() };
        let mut world = World::new(impairment, &BOTH);
        world.run(Duration::from_millis(crash_at));
        let is_repairable = world.accelerator.pending_repairs().iter().all(|repair| repair.is_acked_known);
        world.crash();
        world.run(Duration::from_secs(240));
        assert!(if is_repairable { world.received == world.end() && !world.is_reset } else { world.is_reset }, "{}", world.describe());
    }

    #[test]
    fn every_byte_arrives_once_and_intact(
        seed: u64,
        isn: u32,
        loss in 0_u64..60,
        delay in 0_u64..40,
        refused_fetches in 0_u64..100,
        unanswered_fetches in 0_u64..50,
        undelivered in 0_u64..100,
        renege in 0_u64..4,
        outage in prop::option::of((300_u64..1500, 100_u64..3000)),
        freezes: bool,
    ) {
        let outage = outage.map(|(from, long)| (from, from + long));
        let impairment = Impairment { seed, body: 700_000, loss, delay, refused_fetches, unanswered_fetches, undelivered, renege, outage, isn };
        arrives_with(impairment, Duration::from_secs(240), if freezes { &BOTH } else { &BOTH[..1] });
    }
}

#[test]
fn a_frozen_sender_continues_even_if_the_link_counts_as_down_again() {
    // The zero window arrives after the one that opens it, and the gateway never answers.
    let impairment = Impairment {
        seed: 1_155_924_729_360_345_604,
        body: 700_000,
        isn: 0,
        outage: Some((506, 606)),
        ..healthy()
    };
    arrives(impairment, Duration::from_secs(240));
}
