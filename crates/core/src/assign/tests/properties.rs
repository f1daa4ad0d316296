//! Properties that hold for every instance, including malicious ones.

extern crate std;

use proptest::prelude::*;
use std::vec::Vec;

use super::super::{
    Candidate, Instance, Prices, Progress, Solver, SwitchingCost, WarmStart, bass_algorithm_1, bass_random,
    density_greedy,
};
use super::{any_instance, any_rate, assert_valid, rate, solve, town};
use crate::units::{Bitrate, Ratio};

/// More than the number of matchings of any instance in these tests.
const NO_LIMIT: u64 = 1 << 40;

/// Progress after each step, and the final relays.
fn run_in_steps(mut solver: Solver<'_>, work: &[u64]) -> (Vec<Progress>, Vec<Option<usize>>) {
    let steps = work.iter().map(|work| solver.step(*work)).collect();
    (steps, solver.matching().relays().collect())
}

proptest! {
    #[test]
    fn the_optimal_matching_is_found_and_proved(instance in any_instance(7)) {
        let (best, all) = bass_algorithm_1(&instance, NO_LIMIT);
        prop_assert!(all);
        assert_valid(&instance, &best);
        let (plan, bound) = solve(Solver::new(&instance, None));
        assert_valid(&instance, &plan);
        prop_assert_eq!(plan.gain(), best.gain());
        prop_assert_eq!(bound, best.gain());
    }

    #[test]
    fn any_prices_bound_the_optimal_matching(
        instance in any_instance(7), prices in prop::collection::vec(prop_oneof![9 => 0.0..1.0, 1 => any::<f64>()], 0..6),
    ) {
        let (best, _) = bass_algorithm_1(&instance, NO_LIMIT);
        let bound = Prices::new(prices).bound(&instance);
        prop_assert!(bound >= best.gain(), "{bound} {}", best.gain());
    }

    #[test]
    fn every_result_is_feasible_and_no_worse_than_the_one_before(
        instance in any_instance(40), work in prop::collection::vec(0_u64..3000, 1..30),
    ) {
        let mut solver = Solver::new(&instance, None);
        let mut before = solver.progress();
        for work in work {
            let now = solver.step(work);
            prop_assert!(now.gain >= before.gain && now.bound <= before.bound && now.gain <= now.bound);
            prop_assert!(!before.is_done || now == before);
            assert_valid(&instance, &solver.matching());
            prop_assert_eq!(solver.matching().gain(), now.gain);
            before = now;
        }
        prop_assert!(solver.prices().bound(&instance) >= before.gain);
    }

    #[test]
    fn the_division_of_work_into_steps_does_not_matter(
        instance in any_instance(40), cuts in prop::collection::vec(0_u64..2000, 1..20),
    ) {
        let (steps, plan) = run_in_steps(Solver::new(&instance, None), &cuts);
        let (whole, same) = run_in_steps(Solver::new(&instance, None), &[cuts.iter().sum()]);
        prop_assert_eq!(steps.last(), whole.last());
        prop_assert_eq!(plan, same);
    }

    #[test]
    fn the_baselines_return_feasible_matchings(instance in any_instance(30), seed in any::<u64>()) {
        assert_valid(&instance, &density_greedy(&instance));
        assert_valid(&instance, &bass_random(&instance, |n| seed.checked_rem(n).unwrap_or(0)));
        assert_valid(&instance, &bass_algorithm_1(&instance, 50).0);
    }

    #[test]
    fn a_repeated_matching_is_feasible_whatever_its_warm_start_is(
        instance in any_instance(30), relays in prop::collection::vec(prop::option::of(0_usize..9), 0..40),
        prices in prop::collection::vec(0.0..1.0, 0..6), ppm in any::<u32>(), fee in any_rate(),
    ) {
        let prices = Prices::new(prices);
        let before = WarmStart { prices: &prices, relays: &relays, switching_cost: SwitchingCost { share: Ratio::from_ppm(ppm), fee: rate(fee) } };
        let mut solver = Solver::new(&instance, Some(before));
        let mut last = solver.progress();
        while !last.is_done {
            let now = solver.step(500);
            prop_assert!(now.bound <= last.bound && now.gain <= now.bound);
            assert_valid(&instance, &solver.matching());
            last = now;
        }
    }

    #[test]
    fn an_edge_that_names_wrong_relays_is_rejected_and_changes_nothing(
        rooms in prop::collection::vec(any_rate(), 0..5),
        members in prop::collection::vec((any_rate(), prop::collection::vec((0_usize..7, any_rate()), 0..7)), 0..20),
    ) {
        let room: Vec<Bitrate> = rooms.iter().map(|room| rate(*room)).collect();
        let Ok(mut instance) = Instance::new(&room) else {
            prop_assert!(room.iter().copied().sum::<Bitrate>() > Instance::MAX_CAPACITY);
            return Ok(());
        };
        for (own, named) in members {
            let before = (instance.edge_count(), instance.candidate_count());
            let candidates: Vec<Candidate> =
                named.iter().map(|(relay, bits)| Candidate { relay: *relay, rate: rate(*bits) }).collect();
            let mut sorted: Vec<usize> = named.iter().map(|(relay, _)| *relay).collect();
            sorted.sort_unstable();
            let wrong = sorted.windows(2).any(|pair| pair[0] == pair[1]) || sorted.last() >= Some(&rooms.len());
            let added = instance.add(rate(own), &candidates);
            prop_assert_eq!(added.is_err(), wrong && !named.is_empty());
            prop_assert!(added.is_ok() || (instance.edge_count(), instance.candidate_count()) == before);
        }
        assert_valid(&instance, &solve(Solver::new(&instance, None)).0);
    }
}

#[test]
fn the_division_of_work_into_steps_does_not_matter_in_a_town_either() {
    let town = town(20, 3000, 1.2);
    let cuts: Vec<u64> = (0..400).map(|n| n * 37 % 60_000).collect();
    let (steps, plan) = run_in_steps(Solver::new(&town, None), &cuts);
    let (single_run, same) = run_in_steps(Solver::new(&town, None), &[cuts.iter().sum()]);
    assert_eq!(steps.last(), single_run.last());
    assert_eq!(plan, same);
    let falls = |pair: &&[Progress]| pair[1].gain < pair[0].gain || pair[1].bound > pair[0].bound;
    assert_eq!(steps.windows(2).find(falls), None);
}
