//! Figures 8 to 10 for 8 relays and 60 nodes, in virtual time: generated fleets whose edges are assigned to relays.
//!
//! 1. Fleets are generated as in `marline-lab bench assign` ([`marline_sim::fleet`]), with one seed each. None of
//!    them was measured in a network. The decrease of rates with distance is an input of the generator, so `F8`
//!    describes the input and is not a finding.
//! 2. marline's result is the plan of its solver. Algorithm 1 is truncated after [`MAX_PLANS`] plans, because it
//!    does not end in practice with 60 edges. The random assignment is BASS's baseline. *Best each* is what edges
//!    would have if each had its best relay for itself.
//! 3. γ is an edge's rate divided by the best rate that it could have through any of its relays (BASS section
//!    V-B.2), whether or not those have capacity for all edges. γ of the best plan is reported beside marline's:
//!    the same search, continued until it is proved or [`PROOF_WORK_LIMIT`] is used up.
//! 4. Values are means over the fleets, with their standard deviation.

use marline_core::assign::{Instance, Matching, Solver, bass_algorithm_1, bass_random};
use marline_core::units::{Bitrate, Ratio};
use marline_sim::fleet::{self, Fleet, instance};
use marline_sim::rng::{Purpose, RandomStream};

use super::rows::hit_threshold;
use crate::reproduce::threshold::Threshold;
use crate::results::{ResultRow, round_to_thousandths, stats};

/// Result of one assignment of one fleet.
struct MatchResult {
    /// Mean rate of an edge in Mbit/s.
    mbps: f64,
    gammas: Vec<f64>,
}

/// The rows of these artefacts, and their thresholds.
pub(super) fn rows(is_selected: impl Fn(&str) -> bool, fleets: u32) -> (Vec<ResultRow>, Vec<Threshold>) {
    let (mut rows, mut thresholds) = (Vec::new(), Vec::new());
    if is_selected("F8") {
        rows.extend(distance_rows(fleets));
    }
    if !is_selected("F9") && !is_selected("F10") {
        return (rows, thresholds);
    }
    for load in LOADS {
        let case = format!("load {load} %");
        let all: Vec<Vec<(&str, MatchResult)>> = (1..=fleets).map(|seed| match_fleet(load, seed)).collect();
        let names: Vec<&str> = all.first().into_iter().flatten().map(|(name, _)| *name).collect();
        for (at, name) in names.iter().enumerate() {
            let mean_of = |metric: &dyn Fn(&MatchResult) -> f64| {
                let values: Vec<f64> = all.iter().map(|fleet| metric(&fleet[at].1)).collect();
                (stats::mean(&values), stats::std_dev(&values))
            };
            if is_selected("F9") {
                rows.push(figure_row("F9", &case, name, "rate", "Mbit/s", mean_of(&|m| m.mbps)));
            }
            if is_selected("F10") && *name != BEST_OF_EACH {
                let ones = mean_of(&|m| share(&m.gammas, |gamma| gamma >= 1.0) * 100.0);
                let paper = (*name == MARLINE && load == THRESHOLD_LOAD).then_some(PAPER_HITS);
                rows.push(ResultRow { paper, ..figure_row("F10", &case, name, "γ = 1", "%", ones) });
                for (metric, least) in GAMMA_STEPS {
                    let above = mean_of(&|m| share(&m.gammas, |gamma| gamma >= least) * 100.0);
                    rows.push(figure_row("F10", &case, name, metric, "%", above));
                }
            }
        }
        if let (true, THRESHOLD_LOAD) = (is_selected("F10"), load) {
            let share_of = |name: &str| {
                let at = names.iter().position(|other| *other == name)?;
                stats::mean(&all.iter().map(|fleet| share(&fleet[at].1.gammas, |g| g >= 1.0)).collect::<Vec<_>>())
            };
            if let (Some(measured), Some(best)) = (share_of(MARLINE), share_of(OPTIMAL)) {
                thresholds.push(hit_threshold(&case, measured * 100.0, best * 100.0));
            }
        }
    }
    (rows, thresholds)
}

/// The distribution of rates over distance in the generated fleets.
fn distance_rows(fleets: u32) -> Vec<ResultRow> {
    let mut bins: Vec<Vec<f64>> = vec![Vec::new(); DISTANCE_BINS_KM.len()];
    for seed in 1..=fleets {
        let mut fleet = Fleet::new(&fleet_spec(90, seed));
        for _ in 0..EDGES {
            let (member, reached) = fleet.next_edge_with_measurements();
            for (distance, rate) in reached {
                let bin = DISTANCE_BINS_KM.partition_point(|edge| *edge <= distance).saturating_sub(1);
                bins[bin].push(rate.as_mbps_f64() / member.direct_rate.as_mbps_f64());
            }
        }
    }
    let make_row = |(at, values): (usize, &Vec<f64>)| {
        let case = match DISTANCE_BINS_KM.get(at + 1) {
            Some(next) => format!("{} to {next} km", DISTANCE_BINS_KM[at]),
            None => format!("{} km and more", DISTANCE_BINS_KM[at]),
        };
        let result = (stats::mean(values), stats::std_dev(values));
        let note = format!("{} measurements; drawn so", values.len());
        ResultRow { note: Some(note), ..figure_row("F8", &case, "drawn", "rate over the box's own", "", result) }
    };
    bins.iter().enumerate().filter(|(_, values)| !values.is_empty()).map(make_row).collect()
}

fn match_fleet(load: u32, seed: u32) -> Vec<(&'static str, MatchResult)> {
    let plan = fleet_spec(load, seed);
    let mut fleet = Fleet::new(&plan);
    let members = fleet.edges();
    let instance = instance(&fleet.capacities(&members), &members);
    let mut solver = Solver::new(&instance, None);
    solver.step(MATCH_WORK);
    let measured = match_result(&instance, &solver.matching());
    // Continue the same search until it has proved the optimum or has used up its work.
    solver.step(PROOF_WORK_LIMIT);
    let best = match_result(&instance, &solver.matching());
    let mut rng = RandomStream::new(u64::from(seed), "random", 0, Purpose::Other);
    let others = [
        ("Algorithm 1", match_result(&instance, &bass_algorithm_1(&instance, MAX_PLANS).0)),
        ("random", match_result(&instance, &bass_random(&instance, |n| rng.below(n)))),
    ];
    let each = MatchResult { mbps: mean_best_alone(&instance), gammas: vec![1.0; instance.edge_count()] };
    std::iter::once((MARLINE, measured))
        .chain([(OPTIMAL, best)])
        .chain(others)
        .chain([(BEST_OF_EACH, each)])
        .collect()
}

fn match_result(instance: &Instance, plan: &Matching) -> MatchResult {
    let direct: Bitrate = (0..instance.edge_count()).map(|at| instance.direct_rate(at)).sum();
    MatchResult {
        mbps: (direct + plan.gain()).as_mbps_f64() / instance.edge_count().max(1) as f64,
        gammas: (0..instance.edge_count()).map(|at| plan.hit_rate(instance, at).as_f64()).collect(),
    }
}

/// Mean rate of the edges if each were alone.
fn mean_best_alone(instance: &Instance) -> f64 {
    let best = |at: usize| {
        instance.candidates_of(at).map(|candidate| candidate.rate).fold(instance.direct_rate(at), Bitrate::max)
    };
    (0..instance.edge_count()).map(|at| best(at).as_mbps_f64()).sum::<f64>() / instance.edge_count().max(1) as f64
}

fn share(values: &[f64], holds: impl Fn(f64) -> bool) -> f64 {
    values.iter().filter(|value| holds(**value)).count() as f64 / values.len().max(1) as f64
}

fn figure_row(
    artefact: &str,
    case: &str,
    policy: &str,
    metric: &str,
    unit: &str,
    measured_and_spread: (Option<f64>, Option<f64>),
) -> ResultRow {
    let empty = ResultRow::empty(artefact, case, policy, metric, unit);
    ResultRow {
        measured: measured_and_spread.0.map(round_to_thousandths),
        spread: measured_and_spread.1.map(round_to_thousandths),
        ..empty
    }
}

fn fleet_spec(load: u32, seed: u32) -> fleet::FleetSpec {
    let load = Ratio::from_percent(load);
    fleet::FleetSpec {
        relay_count: RELAYS,
        edge_count: EDGES,
        candidates_per_edge: 3..=8,
        load,
        seed: u64::from(seed),
    }
}

/// BASS section V: 8 Amazon EC2 instances and 60 PlanetLab nodes.
const RELAYS: usize = 8;
const EDGES: usize = 60;
/// Loads in percent. BASS does not state its load; it cannot have been high, because one edge was measured after
/// the other.
const LOADS: [u32; 4] = [50, 90, 120, 200];
/// The load at which γ has a threshold, in percent.
const THRESHOLD_LOAD: u32 = 50;
/// Hit rate of BASS section V-B.2, in percent.
const PAPER_HITS: f64 = 77.0;
/// Steps at which the distribution of γ is reported.
const GAMMA_STEPS: [(&str, f64); 3] = [("γ ≥ 0.9", 0.9), ("γ ≥ 0.8", 0.8), ("γ ≥ 0.5", 0.5)];
/// Lower limits of the distance bins, in kilometers.
const DISTANCE_BINS_KM: [f64; 6] = [0.0, 50.0, 100.0, 500.0, 1000.0, 2000.0];
const MARLINE: &str = "marline";
const OPTIMAL: &str = "best plan";
const BEST_OF_EACH: &str = "best each";
/// Work of the solver for an assignment (some 0.1 s), and at most for its proof.
const MATCH_WORK: u64 = 20_000_000;
const PROOF_WORK_LIMIT: u64 = 200_000_000;
/// Number of plans after which Algorithm 1 is truncated, as in `marline-lab bench assign`.
const MAX_PLANS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marline_is_no_worse_than_others_and_gamma_has_a_threshold_at_half_load() {
        let (rows, thresholds) = rows(|artefact| artefact != "F8", 2);
        let value_of = |case: &str, policy: &str, metric: &str| {
            let is_row = |row: &&ResultRow| row.case == case && row.policy == policy && row.metric == metric;
            rows.iter().find(is_row).unwrap().measured.unwrap()
        };
        for case in ["load 50 %", "load 90 %", "load 120 %", "load 200 %"] {
            let measured = value_of(case, MARLINE, "rate");
            assert!(
                measured >= value_of(case, "Algorithm 1", "rate") && measured > value_of(case, "random", "rate"),
                "{case}"
            );
            assert!(measured <= value_of(case, "best each", "rate"));
            assert!(value_of(case, MARLINE, "γ = 1") > value_of(case, "random", "γ = 1"), "{case}");
        }
        assert!(value_of("load 50 %", MARLINE, "γ = 1") > value_of("load 120 %", MARLINE, "γ = 1"));
        assert!(value_of("load 50 %", MARLINE, "γ ≥ 0.5") >= value_of("load 50 %", MARLINE, "γ ≥ 0.9"));
        assert_eq!(thresholds.len(), 1);
        assert!(thresholds[0].is_met());
    }

    #[test]
    fn generated_rates_decrease_with_distance() {
        let rows = distance_rows(3);
        let first = rows.first().unwrap().measured.unwrap();
        assert!(rows.len() >= 3 && rows.last().unwrap().measured.unwrap() < first, "{rows:?}");
    }
}
