//! What others do: BASS's Algorithm 1, its random baseline, and greedy by density. To compare with.
//!
//! In: an instance. Out: a plan that can be carried out.

use alloc::vec;
use alloc::vec::Vec;

use super::assignment::Assignment;
use super::instance::{Instance, NONE};
use super::matching::Matching;
use super::reduced_values::ReducedInstance;

/// BASS's Algorithm 1: the best of all plans that satisfy its eq. 2, and whether all were seen.
///
/// Plans are generated box after box, the candidate with the largest gain first, as the paper sorts them, to stay alone last. There
/// are up to (k + 1)^n of them, which is why `most` ends it: the first one is what boxes get that choose in the order in which
/// they came. Deviation: a relay may be filled to the brim, where eq. 2 has "less than".
pub fn bass_algorithm_1(instance: &Instance, max_plans: u64) -> (Matching, bool) {
    let problem = ReducedInstance::without_current(instance);
    let mut assignment = Assignment::new(problem);
    let mut order: Vec<u32> = (0..instance.candidate_count() as u32).collect();
    for edge in 0..instance.edge_count() {
        order[instance.candidate_range(edge)]
            .sort_by_key(|candidate| core::cmp::Reverse(instance.rate_of(*candidate as usize)));
    }
    // Which choice of each box is next.
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

/// BASS §V-B.2's baseline: each box in turn is given one of its candidates by chance, and stays alone if that is full.
/// `below` gives a number less than its argument.
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

/// The candidates of all boxes in the order of what they gain per bit that they take up, each if it still fits.
pub fn density_greedy(instance: &Instance) -> Matching {
    let problem = ReducedInstance::without_current(instance);
    let mut assignment = Assignment::new(problem);
    let mut order: Vec<(f64, u32, u32)> = Vec::with_capacity(instance.candidate_count());
    for edge in 0..instance.edge_count() {
        let direct = instance.direct_rate(edge).bits_per_sec() as f64;
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
