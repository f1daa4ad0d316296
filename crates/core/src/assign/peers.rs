//! What others do: BASS's Algorithm 1, its random baseline, and greedy by density. To compare with.
//!
//! In: an instance. Out: a plan that can be carried out.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::{Instance, NONE};
use super::plan::Plan;
use super::seats::Seats;
use super::view::View;

/// BASS's Algorithm 1: the best of all plans that satisfy its eq. 2, and whether all were seen.
///
/// Plans are generated box after box, the candidate with the largest gain first, as the paper sorts them, to stay alone last. There
/// are up to (k + 1)^n of them, which is why `most` ends it: the first one is what boxes get that choose in the order in which
/// they came. Deviation: a relay may be filled to the brim, where eq. 2 has "less than".
pub fn algorithm_1(instance: &Instance, most: u64) -> (Plan, bool) {
    let view = View::plain(instance);
    let mut seats = Seats::new(view);
    let mut order: Vec<u32> = (0..instance.candidates() as u32).collect();
    for at in 0..instance.boxes() {
        order[instance.edges(at)].sort_by_key(|edge| core::cmp::Reverse(instance.rate_of(*edge as usize)));
    }
    // Which choice of each box is next.
    let mut next = vec![0; instance.boxes()];
    let mut best = (seats.gain, seats.choice.clone());
    let (mut at, mut plans) = (0, 0);
    loop {
        if at == instance.boxes() {
            plans += 1;
            if seats.gain > best.0 {
                best = (seats.gain, seats.choice.clone());
            }
            if plans >= most || at == 0 {
                return (Plan::new(instance, &best.1), at == 0);
            }
            at -= 1;
        }
        seats.put(view, at, NONE);
        let choices = &order[instance.edges(at)];
        while choices.get(next[at]).is_some_and(|edge| !seats.fits(view, *edge)) {
            next[at] += 1;
        }
        if next[at] <= choices.len() {
            seats.put(view, at, choices.get(next[at]).copied().unwrap_or(NONE));
            next[at] += 1;
            at += 1;
        } else if at == 0 {
            return (Plan::new(instance, &best.1), true);
        } else {
            next[at] = 0;
            at -= 1;
        }
    }
}

/// BASS §V-B.2's baseline: each box in turn is given one of its candidates by chance, and stays alone if that is full.
/// `below` gives a number less than its argument.
pub fn random(instance: &Instance, mut below: impl FnMut(u64) -> u64) -> Plan {
    let view = View::plain(instance);
    let mut seats = Seats::new(view);
    for at in 0..instance.boxes() {
        let edges = instance.edges(at);
        let drawn = edges.start + below(edges.len() as u64) as usize;
        if edges.contains(&drawn) && seats.fits(view, drawn as u32) {
            seats.put(view, at, drawn as u32);
        }
    }
    Plan::new(instance, &seats.choice)
}

/// The candidates of all boxes in the order of what they gain per bit that they take up, each if it still fits.
pub fn by_density(instance: &Instance) -> Plan {
    let view = View::plain(instance);
    let mut seats = Seats::new(view);
    let mut order: Vec<(f64, u32, u32)> = Vec::with_capacity(instance.candidates());
    for at in 0..instance.boxes() {
        let alone = instance.own(at).bits_per_sec() as f64;
        order.extend(instance.edges(at).map(|edge| (alone / instance.bits_of(edge), edge as u32, at as u32)));
    }
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for (_, edge, at) in order {
        if seats.choice[at as usize] == NONE && seats.fits(view, edge) {
            seats.put(view, at as usize, edge);
        }
    }
    Plan::new(instance, &seats.choice)
}
