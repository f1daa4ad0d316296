//! Baselines for comparison: BASS's Algorithm 1, its random assignment, and a greedy by density. Each returns a
//! feasible matching.

use alloc::vec;
use alloc::vec::Vec;

use super::assignment::Assignment;
use super::instance::{Instance, NONE};
use super::matching::Matching;
use super::reduced_values::ReducedInstance;

/// BASS's Algorithm 1: the best of all matchings that satisfy its eq. 2, and whether all of them were enumerated.
///
/// Matchings are enumerated edge by edge. Each edge tries its candidates by falling rate, as the paper sorts them,
/// and no relay last. There are up to (k + 1)^n matchings, so the search ends after `max_plans` of them. The first matching
/// is what edges get that choose in the order of their arrival. Deviation: a relay may be filled completely, where
/// eq. 2 has "less than".
pub fn bass_algorithm_1(instance: &Instance, max_plans: u64) -> (Matching, bool) {
    let problem = ReducedInstance::without_current(instance);
    let mut assignment = Assignment::new(problem);
    let mut order: Vec<u32> = (0..instance.candidate_count() as u32).collect();
    for edge in 0..instance.edge_count() {
        order[instance.candidate_range(edge)]
            .sort_by_key(|candidate| core::cmp::Reverse(instance.rate_of(*candidate as usize)));
    }
    // The next choice to try for each edge; the number of candidates stands for "no relay".
    let mut next = vec![0; instance.edge_count()];
    let mut best = (assignment.gain, assignment.choice.clone());
    let (mut edge, mut plans) = (0, 0);
    loop {
        if edge == instance.edge_count() {
            plans += 1;
            if assignment.gain > best.0 {
                best = (assignment.gain, assignment.choice.clone());
            }
            if plans >= max_plans || edge == 0 {
                return (Matching::new(instance, &best.1), edge == 0);
            }
            // Backtrack: the last edge tries its next choice.
            edge -= 1;
        }
        assignment.assign(problem, edge, NONE);
        let choices = &order[instance.candidate_range(edge)];
        while choices.get(next[edge]).is_some_and(|candidate| !assignment.has_capacity(problem, *candidate)) {
            next[edge] += 1;
        }
        if next[edge] <= choices.len() {
            assignment.assign(problem, edge, choices.get(next[edge]).copied().unwrap_or(NONE));
            next[edge] += 1;
            edge += 1;
        } else if edge == 0 {
            return (Matching::new(instance, &best.1), true);
        } else {
            next[edge] = 0;
            edge -= 1;
        }
    }
}

/// Baseline of BASS §V-B.2: each edge in turn gets a random one of its candidates, or no relay if that one is full.
/// `below` returns a random number less than its argument (any number if that is 0: an edge without candidates).
pub fn bass_random(instance: &Instance, mut below: impl FnMut(u64) -> u64) -> Matching {
    let problem = ReducedInstance::without_current(instance);
    let mut assignment = Assignment::new(problem);
    for edge in 0..instance.edge_count() {
        let candidates = instance.candidate_range(edge);
        let drawn = candidates.start + below(candidates.len() as u64) as usize;
        if candidates.contains(&drawn) && assignment.has_capacity(problem, drawn as u32) {
            assignment.assign(problem, edge, drawn as u32);
        }
    }
    Matching::new(instance, &assignment.choice)
}

/// Greedy by density: takes the candidates of all edges by falling gain per bit of capacity, each if it still fits.
pub fn density_greedy(instance: &Instance) -> Matching {
    let problem = ReducedInstance::without_current(instance);
    let mut assignment = Assignment::new(problem);
    let mut order: Vec<(f64, u32, u32)> = Vec::with_capacity(instance.candidate_count());
    for edge in 0..instance.edge_count() {
        let direct = instance.direct_rate(edge).bits_per_sec() as f64;
        // The gain per bit is (rate − direct) / rate, so ascending direct / rate is descending density.
        order.extend(
            instance
                .candidate_range(edge)
                .map(|candidate| (direct / instance.bits_of(candidate), candidate as u32, edge as u32)),
        );
    }
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for (_, candidate, edge) in order {
        if assignment.choice[edge as usize] == NONE && assignment.has_capacity(problem, candidate) {
            assignment.assign(problem, edge as usize, candidate);
        }
    }
    Matching::new(instance, &assignment.choice)
}
