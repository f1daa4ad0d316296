//! Cases with known solutions.

extern crate std;

use std::string::ToString;
use std::vec::Vec;

use super::super::dual_bound::DualEval;
use super::super::reduced_values::ReducedInstance;
use super::super::{
    Candidate, Instance, InstanceError, Prices, Solver, SwitchingCost, WarmStart, bass_algorithm_1, bass_random,
    density_greedy,
};
use super::{assert_valid, instance, rate, solve, town};
use crate::units::{Bitrate, Ratio};

#[test]
fn the_edge_with_the_larger_gain_gets_the_only_slot() {
    // BASS §IV-A: "allocating this server to the client with the larger bandwidth improvement".
    let one = instance(&[10], &[(4, &[(0, 9)]), (1, &[(0, 8)])]);
    let (plan, bound) = solve(Solver::new(&one, None));
    assert_eq!(plan.relays().collect::<Vec<_>>(), [None, Some(0)]);
    assert_eq!((plan.gain(), bound), (rate(7), rate(7)));
}

#[test]
fn the_greedy_takes_one_edge_where_two_are_better() {
    // The densest candidate, 9 for 10, fills the relay that two edges with 8 for 9 would otherwise share.
    let three = instance(&[18, 10], &[(1, &[(0, 10)]), (1, &[(0, 9), (1, 9)]), (1, &[(0, 9)])]);
    assert_eq!(density_greedy(&three).gain(), rate(17));
    let (plan, bound) = solve(Solver::new(&three, None));
    assert_eq!((plan.gain(), bound), (rate(17), rate(17)));
    let four = instance(&[18], &[(1, &[(0, 10)]), (1, &[(0, 9)]), (1, &[(0, 9)])]);
    assert_eq!(density_greedy(&four).gain(), rate(9));
    assert_eq!(bass_algorithm_1(&four, 1).0.gain(), rate(9));
    assert_eq!(solve(Solver::new(&four, None)).0.gain(), rate(16));
}

#[test]
fn the_rate_through_a_relay_is_the_smaller_of_uplink_and_onward_rate() {
    let mbps = Bitrate::from_mbps;
    assert_eq!(Candidate::through(0, mbps(9), mbps(5)), Candidate { relay: 0, rate: mbps(5) });
    assert_eq!(Candidate::through(0, mbps(4), mbps(5)), Candidate { relay: 0, rate: mbps(4) });
}

#[test]
fn an_instance_without_candidates_is_solved_at_once() {
    for empty in
        [instance(&[], &[]), instance(&[5, 0], &[]), instance(&[0], &[(0, &[(0, 0)]), (u64::MAX, &[(0, 7)])])]
    {
        let (plan, bound) = solve(Solver::new(&empty, None));
        assert_eq!((plan.gain(), bound), (Bitrate::ZERO, Bitrate::ZERO));
        assert_eq!(plan.hit_share(&empty), if empty.edge_count() == 0 { Ratio::ZERO } else { Ratio::ONE });
        assert!(bass_algorithm_1(&empty, 9).1);
    }
}

#[test]
fn errors_are_reported_in_one_line() {
    let half = rate(1 << 52);
    assert!(Instance::new(&[half, half]).is_ok());
    let error = Instance::new(&[half, half, rate(1)]).unwrap_err();
    assert_eq!(error.to_string(), "the relays' capacities exceed 9007199.2Gbit/s in total");
    assert_eq!(Instance::new(&[Bitrate::MAX]).unwrap_err(), InstanceError::TooMuchCapacity);
    let mut instance = Instance::new(&[rate(9), rate(9)]).unwrap();
    let candidate = |relay| Candidate { relay, rate: rate(5) };
    let error = instance.add(rate(1), &[candidate(0), candidate(2)]).unwrap_err();
    assert_eq!(error.to_string(), "edge 0 names relay 2, but there are only 2 relays");
    let error = instance.add(rate(1), &[candidate(0), candidate(1), candidate(0)]).unwrap_err();
    assert_eq!(error.to_string(), "edge 0 names relay 0 twice");
    // The next edge gets the number of the rejected one.
    assert_eq!(instance.add(rate(1), &[candidate(0), candidate(1)]), Ok(0));
    assert_eq!(instance.candidate_count(), 2);
}

#[test]
fn the_hit_rate_is_the_reached_rate_over_the_best_rate() {
    let two = instance(&[8, 10], &[(2, &[(0, 8), (1, 4)]), (1, &[(0, 7), (1, 4)])]);
    // Both edges are best at relay 0; the second one loses less at relay 1.
    let (plan, _) = solve(Solver::new(&two, None));
    assert_eq!(plan.relays().collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert_eq!((plan.hit_rate(&two, 0), plan.hit_rate(&two, 1)), (Ratio::ONE, Ratio::of(4, 7)));
    assert_eq!(plan.hit_share(&two), Ratio::from_percent(50));
}

#[test]
fn an_edge_moves_only_if_it_gains_more_than_the_switching_cost() {
    let one = instance(&[100, 100], &[(10, &[(0, 50), (1, 54)])]);
    let free = Prices::zero(2);
    let relay = |percent, fee| {
        let before = WarmStart {
            prices: &free,
            relays: &[Some(0)],
            switching_cost: SwitchingCost { share: Ratio::from_percent(percent), fee },
        };
        solve(Solver::new(&one, Some(before))).0.relay(0)
    };
    // The gain of 4 is 8 % of 50.
    assert_eq!((relay(0, rate(0)), relay(7, rate(0)), relay(9, rate(0))), (Some(1), Some(1), Some(0)));
    assert_eq!((relay(0, rate(3)), relay(0, rate(5)), relay(6, rate(3))), (Some(1), Some(0), Some(0)));
}

#[test]
fn a_repeated_matching_of_an_unchanged_instance_moves_hardly_any_edge() {
    let town = town(10, 2000, 1.2);
    let mut solver = Solver::new(&town, None);
    solver.step(20_000_000);
    let (plan, prices) = (solver.matching(), solver.prices());
    let relays: Vec<Option<usize>> = plan.relays().collect();
    let switching_cost = SwitchingCost { share: Ratio::from_percent(10), fee: Bitrate::ZERO };
    let before = WarmStart { prices: &prices, relays: &relays, switching_cost };
    let mut again = Solver::new(&town, Some(before));
    again.step(20_000_000);
    let moved = again.matching().relays().zip(&relays).filter(|(now, before)| now != *before).count();
    assert!(moved <= 20, "{moved}");
}

#[test]
fn a_town_is_solved_to_within_a_thousandth_of_the_bound() {
    // The quality at a given amount of work does not depend on time: about 0.1 s in a release build.
    for load in [0.9, 1.2, 2.0] {
        let town = town(40, 8000, load);
        let mut solver = Solver::new(&town, None);
        let progress = solver.step(40_000_000);
        let plan = solver.matching();
        assert_valid(&town, &plan);
        assert!(progress.relative_gap() < 0.001, "load {load}: {}", progress.relative_gap());
        assert!(density_greedy(&town).gain() <= progress.bound);
        let mut n = 0;
        let drawn = bass_random(&town, |below| {
            n += 1;
            n % below.max(1)
        });
        assert!(plan.gain() > drawn.gain());
    }
}

#[test]
fn the_large_neighborhood_search_closes_most_of_the_remaining_gap() {
    let town = town(20, 400, 1.2);
    let mut solver = Solver::new(&town, None);
    let early = solver.step(600_000).relative_gap();
    let late_gap = solver.step(200_000_000).relative_gap();
    assert!(late_gap < early * 0.7 && late_gap < 0.004, "{early} {late_gap}");
    assert_valid(&town, &solver.matching());
}

#[test]
fn the_slope_of_the_smoothed_bound_is_capacity_less_load() {
    let town = town(6, 3000, 1.2);
    let view = ReducedInstance::without_current(&town);
    let evaluate = |prices: &[f64], band| {
        let mut eval = DualEval::new(view, prices, band);
        while !eval.is_done(view) {
            eval.advance(view, prices);
        }
        eval
    };
    let prices = [0.31, 0.42, 0.27, 0.55, 0.38, 0.46];
    let smoothed = evaluate(&prices, 0.05);
    assert!(smoothed.smooth_value() >= evaluate(&prices, 0.0).smooth_value() && !smoothed.ties.is_empty());
    for relay in 0..prices.len() {
        let [low, high] = [-1e-5, 1e-5].map(|step| {
            let mut prices = prices;
            prices[relay] += step;
            evaluate(&prices, 0.05).smooth_value()
        });
        let (slope, expected) = ((high - low) / 2e-5, town.capacity_bits(relay) - smoothed.load[relay]);
        assert!((slope - expected).abs() < 0.02 * town.capacity_bits(relay), "{relay}: {slope} {expected}");
    }
}

#[test]
fn the_prices_found_have_the_lowest_bound() {
    // One relay. The price is that at which half of the edges, equal except for their gains, prefer no relay.
    let boxes: Vec<(u64, Vec<(usize, u64)>)> = (1..=100).map(|n| (n * 10, [(0, 2000)].to_vec())).collect();
    let boxes: Vec<(u64, &[(usize, u64)])> =
        boxes.iter().map(|(direct_rate, near)| (*direct_rate, near.as_slice())).collect();
    let one = instance(&[100_000], &boxes);
    let mut solver = Solver::new(&one, None);
    solver.step(1_000_000);
    // Edge 50 gains 1500 of 2000 and is served, edge 51 gains 1490 and is not.
    let price = solver.prices().of(0);
    assert!((0.744..=0.751).contains(&price), "{price}");
    assert_eq!(solver.matching().relays().filter(Option::is_some).count(), 50);
}
