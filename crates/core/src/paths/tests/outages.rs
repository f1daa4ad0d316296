//! Links that recover from an outage, and how existing connections use them.

use super::test_world::*;
use crate::link::LinkId;
use crate::paths::*;
use crate::units::Duration;

use alloc::vec::Vec;

/// How a link fails and recovers.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Outage {
    /// The interface goes down; the kernel keeps its subflows.
    Down,
    /// The interface is removed, and its subflows with it.
    Removed,
    /// Its packets are lost without any notice.
    Silent,
}

const OUTAGES: [Outage; 3] = [Outage::Down, Outage::Removed, Outage::Silent];

/// A connection with endless data over two links. Each scenario begins 15 s after it was opened on Wi-Fi.
struct Scenario {
    goal: Goal,
    upload: bool,
    /// Mbit/s of Wi-Fi and LTE.
    rates: [f64; 2],
}

impl Scenario {
    fn world(&self) -> World {
        let mut world = World::new(Config { goal: self.goal, short_queues: self.upload, ..config() });
        world.backs_off = true;
        world.unanswered = 100_000;
        world.uploads.extend(self.upload.then_some(ConnId(1)));
        for (link, rate) in [WIFI, LTE].into_iter().zip(self.rates) {
            world.set_rate(link, rate);
        }
        world.open(1, WIFI, 1 << 40);
        world.run(15.0);
        world
    }

    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for profile in [Goal::Speed, Goal::Energy] {
            for upload in [false, true] {
                for rates in [[4.0, 4.0], [2.0, 20.0], [20.0, 2.0]] {
                    // With the goal of energy the slow link is not used anyway, because both together need more
                    // energy than the fast one alone.
                    if profile == Goal::Energy && rates[0] < rates[1] {
                        continue;
                    }
                    all.push(Self { goal: profile, upload, rates });
                }
            }
        }
        all
    }
}

fn begin_outage(world: &mut World, link: LinkId, outage: Outage) {
    match outage {
        Outage::Down => world.handle(Input::LinkDown { link }),
        Outage::Removed => world.unplug(link),
        Outage::Silent => {
            world.unresponsive.insert(link);
        }
    }
}

fn end_outage(world: &mut World, link: LinkId, outage: Outage) {
    match outage {
        Outage::Silent => {
            world.unresponsive.remove(&link);
        }
        Outage::Down | Outage::Removed => world.handle(Input::LinkUp { link }),
    }
}

/// Mbit/s that a link carries during the next `seconds`.
fn measured_mbps(world: &mut World, link: LinkId, seconds: f64) -> f64 {
    let before = world.received(link);
    world.run(seconds);
    (world.received(link) - before) as f64 * 8.0 / seconds / 1e6
}

/// Mbit/s of a link that has just recovered: at the end of the first two seconds, and later.
fn mbps_after_return(world: &mut World, link: LinkId, outage: Outage) -> [f64; 2] {
    // The recovery of an unresponsive link shows only when it is probed.
    world.run(if outage == Outage::Silent { 1.8 } else { 1.5 });
    let soon = measured_mbps(world, link, 0.3);
    world.run(8.0);
    [soon, measured_mbps(world, link, 4.0)]
}

#[test]
fn a_recovered_link_is_used_within_two_seconds() {
    let mut wrong = Vec::new();
    for scenario in Scenario::all() {
        for (index, link) in [WIFI, LTE].into_iter().enumerate() {
            for outage in OUTAGES {
                for seconds in [1.0, 5.0, 60.0] {
                    let mut world = scenario.world();
                    // A link that the policy does not use anyway is not used after an outage either.
                    let usual = measured_mbps(&mut world, link, 4.0);
                    if usual < scenario.rates[index] / 2.0 {
                        continue;
                    }
                    begin_outage(&mut world, link, outage);
                    world.run(seconds);
                    world.notes.clear();
                    end_outage(&mut world, link, outage);
                    let [soon, later] = mbps_after_return(&mut world, link, outage);
                    if soon < scenario.rates[index] / 2.0 || later < usual * 0.7 {
                        let Scenario { goal: profile, upload, rates } = scenario;
                        let case =
                            alloc::format!("{profile:?} up={upload} {rates:?} {link:?} {outage:?} {seconds}");
                        wrong.push(alloc::format!("{case}: {usual:.1} {soon:.1} {later:.1} {:?}", world.notes));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} {wrong:#?}", wrong.len());
}

#[test]
fn links_that_fail_one_after_the_other_or_twice_are_used_again() {
    for outage in OUTAGES {
        for upload in [false, true] {
            for outage_links in [[WIFI, LTE, WIFI, LTE], [LTE, LTE, WIFI, WIFI], [WIFI, WIFI, WIFI, WIFI]] {
                let mut world = Scenario { goal: Goal::Speed, upload, rates: [4.0, 4.0] }.world();
                for link in outage_links {
                    begin_outage(&mut world, link, outage);
                    world.run(5.0);
                    end_outage(&mut world, link, outage);
                    world.run(2.0);
                    let rate = measured_mbps(&mut world, link, 0.5);
                    assert!(rate > 3.0, "{outage:?} {upload} {outage_links:?}: {rate} {:#?}", world.notes);
                }
            }
        }
    }
}

#[test]
fn a_slow_link_is_judged_by_its_rate_after_the_recovery() {
    // Before its outage it was left out; now it is as fast as the other link.
    for outage in [Outage::Down, Outage::Removed] {
        let mut world = Scenario { goal: Goal::Speed, upload: false, rates: [20.0, 0.5] }.world();
        begin_outage(&mut world, LTE, outage);
        world.run(5.0);
        world.set_rate(LTE, 20.0);
        end_outage(&mut world, LTE, outage);
        let [soon, later] = mbps_after_return(&mut world, LTE, outage);
        assert!(soon > 10.0 && later > 15.0, "{outage:?} {soon} {later} {:#?}", world.notes);
    }
}

#[test]
fn a_new_connection_does_not_regard_a_recovered_link_as_slow() {
    let mut world = Scenario { goal: Goal::Speed, upload: false, rates: [20.0, 0.5] }.world();
    begin_outage(&mut world, LTE, Outage::Removed);
    world.run(5.0);
    world.set_rate(LTE, 20.0);
    end_outage(&mut world, LTE, Outage::Removed);
    world.close(ConnId(1));
    world.open(2, WIFI, 1 << 40);
    world.run(2.0);
    assert!(measured_mbps(&mut world, LTE, 1.0) > 15.0, "{:#?}", world.notes);
}

#[test]
fn data_is_transferred_soon_after_a_long_outage_of_all_links() {
    for outage in OUTAGES {
        for upload in [false, true] {
            for [first, second] in [[WIFI, LTE], [LTE, WIFI]] {
                let scenario = Scenario { goal: Goal::Speed, upload, rates: [4.0, 4.0] };
                let mut world = scenario.world();
                begin_outage(&mut world, WIFI, outage);
                begin_outage(&mut world, LTE, outage);
                world.run(75.0);
                end_outage(&mut world, first, outage);
                world.run(2.0);
                let rate = measured_mbps(&mut world, first, 1.0);
                assert!(rate > 3.0, "{outage:?} {upload} {first:?}: {rate} {:#?}", world.notes);
                end_outage(&mut world, second, outage);
                world.run(2.5);
                let rate = measured_mbps(&mut world, second, 0.5);
                assert!(rate > 3.0, "{outage:?} {upload} {second:?}: {rate} {:#?}", world.notes);
            }
        }
    }
}

#[test]
fn the_number_of_probes_of_an_unresponsive_link_does_not_depend_on_the_number_of_connections() {
    let mut world = World::new(Config { goal: Goal::Speed, ..config() });
    [WIFI, LTE].into_iter().for_each(|link| world.set_rate(link, 20.0));
    for token in 1..=50 {
        world.open(token, WIFI, 1 << 40);
    }
    world.run(10.0);
    world.unresponsive.insert(LTE);
    world.run(30.0);
    let before = world.join_count(LTE);
    world.run(60.0);
    let probes = world.join_count(LTE) - before;
    assert!((30..=80).contains(&probes), "{probes}");
    world.unresponsive.remove(&LTE);
    world.run(2.5);
    assert!(measured_mbps(&mut world, LTE, 0.5) > 15.0, "{:#?}", world.notes);
}

#[test]
fn data_that_waited_behind_a_lost_packet_does_not_raise_the_rate_of_a_link() {
    // For this long a link delivers nothing in order; then all that it carried meanwhile arrives at once.
    for upload in [false, true] {
        for gap in [0.3, 0.8, 1.2] {
            for link in [WIFI, LTE] {
                let mut world = Scenario { goal: Goal::Speed, upload, rates: [4.0, 4.0] }.world();
                for _ in 0..4 {
                    world.set_rate(link, 0.0);
                    world.run(gap);
                    world.set_rate(link, 4.0 * gap / 0.05);
                    world.run(0.05);
                    world.set_rate(link, 4.0);
                    let until = world.now + Duration::from_secs(3);
                    while world.now < until {
                        world.run(0.1);
                        let rates = world.paths.link_statuses().map(|view| view.rate.bits_per_sec());
                        let most = rates.max().unwrap_or_default();
                        assert!(most < 6_000_000, "{upload} {gap} {link:?}: {most} {:#?}", world.notes);
                    }
                }
                let both = [WIFI, LTE].map(|link| measured_mbps(&mut world, link, 2.0));
                assert!(
                    both.iter().all(|rate| *rate > 3.0),
                    "{upload} {gap} {link:?}: {both:?} {:#?}",
                    world.notes
                );
            }
        }
    }
}

#[test]
fn a_join_without_an_address_is_tried_again_when_the_link_gets_one() {
    let mut world = Scenario { goal: Goal::Speed, upload: false, rates: [4.0, 4.0] }.world();
    world.end_subflows(LTE, CloseReason::Unreachable);
    world.refused_commands.insert(LTE, CommandError::NoAddress);
    world.run(10.0);
    assert_eq!(world.subflow_count(LTE), 0);
    world.refused_commands.remove(&LTE);
    world.handle(Input::LinkUp { link: LTE });
    let before = world.received(LTE);
    world.run(2.0);
    assert!(world.received(LTE) > before + 100_000, "{}", world.state(ConnId(1)));
}

#[test]
fn a_link_whose_routes_follow_its_address_is_joined_shortly_afterwards() {
    let mut world = Scenario { goal: Goal::Speed, upload: false, rates: [4.0, 4.0] }.world();
    world.unplug(LTE);
    world.run(5.0);
    world.refused_commands.insert(LTE, CommandError::NoAddress);
    world.handle(Input::LinkUp { link: LTE });
    world.run(0.5);
    world.refused_commands.remove(&LTE);
    let before = world.received(LTE);
    world.run(1.5);
    assert!(world.received(LTE) > before + 100_000, "{}", world.state(ConnId(1)));
    let joins = world.join_count(LTE);
    world.run(60.0);
    assert!(world.join_count(LTE) < joins + 3, "{} joins", world.join_count(LTE) - joins);
}
