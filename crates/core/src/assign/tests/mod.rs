//! Instances for the tests: tiny ones, malicious ones, and simulated towns.

extern crate std;

mod properties;
mod worked_examples;

use proptest::prelude::*;
use std::vec::Vec;

use super::{Candidate, Instance, Matching, Solver};
use crate::units::Bitrate;

fn rate(bits: u64) -> Bitrate {
    Bitrate::from_bits_per_sec(bits)
}

/// Capacities of relays, and for each edge its direct rate and the (relay, rate) of its candidates.
fn instance(capacities: &[u64], edges: &[(u64, &[(usize, u64)])]) -> Instance {
    let relay_capacities: Vec<Bitrate> = capacities.iter().map(|capacity| rate(*capacity)).collect();
    let mut instance = Instance::new(&relay_capacities).unwrap();
    for (direct, candidates) in edges {
        let candidates: Vec<Candidate> =
            candidates.iter().map(|(relay, bits)| Candidate { relay: *relay, rate: rate(*bits) }).collect();
        instance.add(rate(*direct), &candidates).unwrap();
    }
    instance
}

/// Runs a solver to its end; returns the matching and the bound.
fn solve(mut solver: Solver<'_>) -> (Matching, Bitrate) {
    loop {
        let progress = solver.step(1_000_000);
        if progress.is_done {
            return (solver.matching(), progress.bound);
        }
    }
}

/// Checks that a matching is feasible and has the gain that it reports.
fn assert_valid(instance: &Instance, matching: &Matching) {
    assert_eq!(matching.relays().len(), instance.edge_count());
    let mut loads = std::vec![0_u64; instance.relay_count()];
    let mut gain = 0;
    for (edge, relay) in matching.relays().enumerate() {
        let Some(relay) = relay else { continue };
        let candidate = instance
            .candidates_of(edge)
            .find(|candidate| candidate.relay == relay)
            .expect("a candidate of the edge");
        loads[relay] += candidate.rate.bits_per_sec();
        gain += (candidate.rate - instance.direct_rate(edge)).bits_per_sec();
    }
    assert_eq!(matching.gain(), rate(gain));
    for (relay, load) in loads.into_iter().enumerate() {
        assert!(rate(load) <= instance.capacity(relay), "relay {relay}: {load}");
        assert_eq!(matching.loads(instance)[relay], rate(load));
    }
}

/// Rates that input may contain: zero, small, large, beyond the limit.
fn any_rate() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..40, 4 => 0_u64..20_000_000, 1 => Just(0_u64), 1 => Just(u64::MAX), 1 => (1_u64 << 50)..(1 << 51)]
}

/// One to four relays, and at most this many edges, each of which measured some of the relays.
fn any_instance(edges: usize) -> impl Strategy<Value = Instance> {
    let capacities =
        prop::collection::vec(prop_oneof![3 => 0_u64..60, 3 => 0_u64..60_000_000, 1 => 0..(1_u64 << 50)], 1..5);
    let members = prop::collection::vec((any_rate(), prop::collection::vec(any_rate(), 4), any::<u8>()), 0..=edges);
    (capacities, members).prop_map(|(capacities, members)| {
        let relay_capacities: Vec<Bitrate> = capacities.iter().map(|capacity| rate(*capacity)).collect();
        let mut instance = Instance::new(&relay_capacities).unwrap();
        for (direct, rates, named) in members {
            let named = (0..capacities.len()).filter(|relay| named >> relay & 1 == 1);
            let candidates: Vec<Candidate> =
                named.map(|relay| Candidate { relay, rate: rate(rates[relay]) }).collect();
            instance.add(rate(direct), &candidates).unwrap();
        }
        instance
    })
}

/// Many edges around a ring of relays, with rates spread over two decades; deterministic. `load`: the sum of the
/// edges' best rates divided by the capacity of all relays.
fn town(relays: usize, edges: usize, load: f64) -> Instance {
    let mut state = 7_u64;
    let mut draw = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let members: Vec<(u64, Vec<(usize, u64)>)> = (0..edges)
        .map(|_| {
            let direct_rate = 100_000 << draw(6);
            let home = draw(relays as u64) as usize;
            let count = 3 + draw(3) as usize;
            let near =
                (0..count.min(relays)).map(|step| ((home + step) % relays, direct_rate * (12 + draw(60)) / 10));
            (direct_rate, near.collect())
        })
        .collect();
    let best: u64 = members.iter().map(|(_, near)| near.iter().map(|(_, bits)| *bits).max().unwrap_or(0)).sum();
    let capacity = (best as f64 / load / relays as f64) as u64;
    let members: Vec<(u64, &[(usize, u64)])> =
        members.iter().map(|(direct_rate, near)| (*direct_rate, near.as_slice())).collect();
    instance(&std::vec![capacity; relays], &members)
}
