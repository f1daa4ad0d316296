//! Properties that hold for every history of traffic.

extern crate std;

use proptest::prelude::*;
use std::vec::Vec;

use super::super::{Direction, EnergyBreakdown, Meter, Model, Radio, RadioEnergy, StateTotals};
use super::{at, emptcp, greenbag, huang};
use crate::link::{LinkId, LinkKind};
use crate::units::{DataSize, Duration, Energy, Instant};

/// One report of traffic: pause before it (ms), link, whether it is a download, number of bytes.
type Traffic = (u64, u16, bool, u64);

fn history() -> impl Strategy<Value = Vec<Traffic>> {
    let pause = prop_oneof![4 => 0_u64..40, 2 => 40_u64..1000, 1 => 1000_u64..20_000];
    proptest::collection::vec((pause, 0_u16..3, any::<bool>(), 0_u64..200_000), 1..80)
}

fn models() -> impl Strategy<Value = Model> {
    prop_oneof![Just(greenbag()), Just(huang()), Just(emptcp())]
}

fn direction(down: bool) -> Direction {
    if down { Direction::Down } else { Direction::Up }
}

fn meter(model: Model) -> Meter {
    let mut meter = Meter::new(model, at(0));
    for (link, kind) in [(0, LinkKind::Wifi), (1, LinkKind::Lte), (2, LinkKind::Lte)] {
        meter.add_link(at(0), LinkId(link), kind);
    }
    meter
}

fn play(model: Model, traffic: &[Traffic]) -> (Meter, Instant) {
    let (mut meter, mut now) = (meter(model), at(0));
    for (pause, link, down, bytes) in traffic {
        now += Duration::from_millis(*pause);
        meter.on_bytes(now, LinkId(*link), direction(*down), DataSize::from_bytes(*bytes));
    }
    (meter, now)
}

fn sum_of_parts(breakdown: &EnergyBreakdown) -> Energy {
    let states =
        |energy: &RadioEnergy| energy.promotion + energy.active + energy.tail.iter().copied().sum() + energy.idle;
    breakdown.platform + breakdown.links.iter().filter_map(|(_, energy)| energy.as_ref()).map(states).sum()
}

/// All time that is contained in the totals.
fn total_time(sums: &StateTotals) -> Duration {
    sums.promotion + sums.active[0] + sums.active[1] + sums.tail.iter().sum::<Duration>() + sums.idle
}

proptest! {
    #[test]
    fn energy_never_decreases_and_equals_the_sum_of_its_parts(model in models(), signs in history(), steps in 1_u64..5) {
        let (mut meter, mut now) = (meter(model), at(0));
        let mut before = meter.energy_so_far(now);
        for (pause, link, down, bytes) in signs {
            for step in 1..=steps {
                let spent = meter.energy_so_far(now + Duration::from_millis(pause * step / steps));
                prop_assert!(spent.total() >= before.total());
                for ((_, new), (_, old)) in spent.links.iter().zip(&before.links) {
                    prop_assert!(new.unwrap().total() >= old.unwrap().total());
                }
                prop_assert_eq!(spent.total(), sum_of_parts(&spent));
                before = spent;
            }
            now += Duration::from_millis(pause);
            meter.on_bytes(now, LinkId(link), direction(down), DataSize::from_bytes(bytes));
            let finish = meter.energy_until_idle(now);
            prop_assert!(finish.total() >= meter.energy_so_far(now).total());
            prop_assert_eq!(finish.total(), sum_of_parts(&finish));
        }
        // After the tails, the energy so far equals the earlier prediction.
        let (late, finish) = (meter.energy_so_far(now + Duration::from_secs(60)), meter.energy_until_idle(now));
        for ((_, late), (_, finish)) in late.links.iter().zip(&finish.links) {
            prop_assert_eq!(late.unwrap().tail_total(), finish.unwrap().tail_total());
        }
    }

    #[test]
    fn energy_does_not_depend_on_how_bytes_are_split_into_reports(model in models(), signs in history(), pieces in 1_u64..7) {
        let (whole, now) = play(model.clone(), &signs);
        let mut cut = meter(model);
        let mut time = at(0);
        for (pause, link, down, bytes) in signs {
            time += Duration::from_millis(pause);
            for n in 0..pieces {
                let part = bytes * (n + 1) / pieces - bytes * n / pieces;
                cut.on_bytes(time, LinkId(link), direction(down), DataSize::from_bytes(part));
            }
        }
        prop_assert_eq!(whole.energy_so_far(now), cut.energy_so_far(now));
        prop_assert_eq!(whole.energy_until_idle(now), cut.energy_until_idle(now));
    }

    #[test]
    fn a_steady_flow_costs_the_same_in_one_report_and_in_many(
        model in models(), start in 0_u64..5000, steps in 1_u64..400, step in 1_u64..=500, bytes in 1_u64..100_000,
    ) {
        for (_, radio) in model.radios() {
            let (mut one, mut many) = (Radio::new(*radio, at(0)), Radio::new(*radio, at(0)));
            one.on_flow(at(start), at(start + steps * step), Direction::Down, DataSize::from_bytes(bytes * steps));
            many.on_bytes(at(start), Direction::Down, DataSize::ZERO);
            for n in 1..=steps {
                many.on_bytes(at(start + n * step), Direction::Down, DataSize::from_bytes(bytes));
            }
            let end = at(start + steps * step);
            prop_assert_eq!(one.energy_until_idle(end), many.energy_until_idle(end));
            prop_assert_eq!(one.state(end), many.state(end));
        }
    }

    #[test]
    fn every_moment_is_in_exactly_one_state(model in models(), signs in history(), later in 0_u64..30_000) {
        let (meter, now) = play(model, &signs);
        for link in 0..3 {
            let radio = meter.radio(LinkId(link)).unwrap();
            let end = now + Duration::from_millis(later);
            let open = end.since(at(0)).saturating_sub(total_time(&radio.totals(end)));
            // All time is contained, except the gap that is still undecided.
            prop_assert!(open <= radio.model().gap, "{open:?}");
            let asleep = end + radio.time_to_idle(end);
            prop_assert_eq!(total_time(&radio.totals_at_idle(end)), asleep.since(at(0)));
        }
    }

    #[test]
    fn the_energy_of_a_plan_is_the_difference_that_the_transfer_makes(
        signs in history(), later in 0_u64..15_000, kib in 1_u64..2000, mbps in 1_u64..50,
    ) {
        let (meter, now) = play(huang(), &signs);
        let now = now + Duration::from_millis(later);
        for link in 0..3 {
            let radio = *meter.radio(LinkId(link)).unwrap();
            let (size, rate) = (DataSize::from_kib(kib), crate::units::Bitrate::from_mbps(mbps));
            let mut with = radio;
            let start = now + radio.promotion_time(now);
            with.on_bytes(now, Direction::Down, DataSize::ZERO);
            with.on_flow(start, start + size / rate, Direction::Down, size);
            // None of these radios draws power while idle, so the time of comparison does not matter.
            let cost = with.energy_until_idle(now).total() - radio.energy_until_idle(now).total();
            // Energies of links add up where nothing is shared.
            let load = super::super::LinkLoad { link: LinkId(link), direction: Direction::Down, size, rate };
            prop_assert_eq!(meter.plan_energy(now, &[load]), cost);
        }
    }
}
