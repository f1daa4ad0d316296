//! Hiding as a whole: what the application gets, whatever is lost, late, refused or forgotten.

use proptest::prelude::*;

use super::super::*;
use super::world::{Weather, World};

const BOTH: [Mechanism; 2] = [Mechanism::EarlyAck, Mechanism::FreezeInFlight];

fn fair() -> Weather {
    Weather {
        seed: 7,
        body: 2_000_000,
        loss: 0,
        delay: 0,
        refused: 0,
        unanswered: 0,
        undelivered: 0,
        forgets: 0,
        outage: None,
        isn: 1000,
    }
}

/// All bytes have come, or the application was told that they will not.
fn arrives(weather: Weather, most: Duration) -> World {
    arrives_with(weather, most, &BOTH)
}

fn arrives_with(weather: Weather, most: Duration, mechanisms: &[Mechanism]) -> World {
    let mut world = World::new(weather, mechanisms);
    world.run(most);
    assert!(world.here == world.end() && !world.is_reset, "{}", world.shown());
    assert!(world.aged <= 60, "{} were too old: {}", world.aged, world.shown());
    assert!(hidden(&world).received.bytes() <= world.end(), "{}", world.shown());
    world
}

fn hidden(world: &World) -> FlowStatus {
    world.machine.flows(Instant::FAR_FUTURE).pop().unwrap()
}

#[test]
fn where_nothing_is_lost_nothing_is_fetched_but_for_the_check() {
    let world = arrives(fair(), Duration::from_secs(60));
    assert_eq!((world.fetched, world.repeated), (512, 0));
    assert_eq!(hidden(&world).early_acked, DataSize::ZERO);
}

#[test]
fn random_losses_are_fetched_and_the_server_hears_of_few() {
    let world = arrives(Weather { loss: 10, ..fair() }, Duration::from_secs(60));
    let mut plain = World::new(Weather { loss: 10, ..fair() }, &[]);
    plain.run(Duration::from_secs(60));
    let flow = hidden(&world);
    assert!(flow.early_acked.bytes() >= 15_000, "{}", world.shown());
    assert_eq!(flow.missing, DataSize::ZERO);
    assert!(world.repeated * 4 <= plain.repeated, "{} repetitions beside {}", world.repeated, plain.repeated);
    assert!(world.fetched <= flow.early_acked.bytes() * 5 / 4 + 512, "{}", world.fetched);
}

#[test]
fn a_flight_is_acknowledged_in_the_dark_and_fetched_in_the_light() {
    for outage in [(800, 3000), (1000, 1800)] {
        let weather = Weather { outage: Some(outage), ..fair() };
        let mut world = World::new(weather, &[Mechanism::FreezeInFlight]);
        world.run(Duration::from_secs(30));
        assert!(world.here == world.end() && !world.is_reset, "{}", world.shown());
        assert!(world.stilled >= 1 && world.fetched > 5_000, "{}", world.shown());
        // No gateway answers here, so that the silence behind the blackout is taken for another one.
        assert!(world.repeated <= 1, "hardly anything was on its way for which it could have timed out");
    }
}

#[test]
fn a_blackout_longer_than_a_hole_may_stay_open_ends_nothing() {
    let mut were_hidden = 0;
    for begin in (1100..2000).step_by(100) {
        let weather = Weather { loss: 20, outage: Some((begin, begin + 14_000)), ..fair() };
        let mut world = World::new(weather, &BOTH);
        world.run(Duration::from_millis(begin - 1000 + 1));
        world.go_silent();
        were_hidden += u32::from(hidden(&world).missing > DataSize::ZERO);
        world.run(Duration::from_secs(15));
        world.speak();
        world.run(Duration::from_secs(60));
        assert!(world.here == world.end() && !world.is_reset, "{}", world.shown());
    }
    assert!(were_hidden > 3, "{were_hidden}");
}

#[test]
fn what_nobody_gives_ends_the_connection_with_an_error() {
    let weather = Weather { loss: 10, unanswered: 0, ..fair() };
    let mut world = World::new(weather, &BOTH);
    world.run(Duration::from_millis(700));
    world.go_silent();
    world.run(Duration::from_secs(60));
    assert!(world.is_reset, "{}", world.shown());
}

#[test]
fn what_comes_slowly_and_all_the_time_ends_nothing() {
    let mut world = World::new(Weather { loss: 10, ..fair() }, &BOTH);
    world.crawls = true;
    world.run(Duration::from_secs(300));
    assert!(world.here == world.end() && !world.is_reset, "{}", world.shown());
    let took = world.now.since(Instant::from_millis(1000));
    assert!(took > Duration::from_secs(12), "{took:?}: it was no test");
}

#[test]
fn a_death_with_bytes_owed_leaves_them_to_be_paid() {
    let mut repaired = 0;
    for millis in (200..1500).step_by(50) {
        let mut world = World::new(Weather { loss: 20, outage: Some((900, 1300)), ..fair() }, &BOTH);
        world.run(Duration::from_millis(millis));
        let is_sure = world.machine.pending_repairs().iter().all(|pending| pending.is_acked_known);
        repaired += world.die();
        world.run(Duration::from_secs(120));
        assert!(
            if is_sure { world.here == world.end() && !world.is_reset } else { world.is_reset },
            "{}",
            world.shown()
        );
    }
    assert!(repaired > 15, "{repaired}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whenever_it_dies_every_byte_comes(
        seed: u64,
        isn: u32,
        loss in 0_u64..60,
        delay in 0_u64..40,
        unanswered in 0_u64..50,
        dies in 50_u64..4000,
        outage in prop::option::of((300_u64..1500, 100_u64..3000)),
    ) {
        let outage = outage.map(|(from, long)| (from, from + long));
        let weather = Weather { seed, body: 700_000, loss, delay, unanswered, outage, isn, ..fair() };
        let mut world = World::new(weather, &BOTH);
        world.run(Duration::from_millis(dies));
        let is_sure = world.machine.pending_repairs().iter().all(|pending| pending.is_acked_known);
        world.die();
        world.run(Duration::from_secs(240));
        assert!(if is_sure { world.here == world.end() && !world.is_reset } else { world.is_reset }, "{}", world.shown());
    }

    #[test]
    fn every_byte_comes_once_and_right(
        seed: u64,
        isn: u32,
        loss in 0_u64..60,
        delay in 0_u64..40,
        refused in 0_u64..100,
        unanswered in 0_u64..50,
        undelivered in 0_u64..100,
        forgets in 0_u64..4,
        outage in prop::option::of((300_u64..1500, 100_u64..3000)),
        freezes: bool,
    ) {
        let outage = outage.map(|(from, long)| (from, from + long));
        let weather = Weather { seed, body: 700_000, loss, delay, refused, unanswered, undelivered, forgets, outage, isn };
        arrives_with(weather, Duration::from_secs(240), if freezes { &BOTH } else { &BOTH[..1] });
    }
}

#[test]
fn a_sender_that_was_frozen_goes_on_even_if_the_link_counts_as_dark_again() {
    // The window of zero comes behind the one that opens it, and the gateway never answers.
    let weather =
        Weather { seed: 1_155_924_729_360_345_604, body: 700_000, isn: 0, outage: Some((506, 606)), ..fair() };
    arrives(weather, Duration::from_secs(240));
}
