//! Result of an assignment: the relay of each edge, the total gain, and how close each edge is to its best rate.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::{Instance, NONE};
use crate::units::{Bitrate, Ratio};

/// A relay or none for each edge. It is feasible: no relay gets more than its capacity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Matching {
    /// Candidate of each edge, or [`NONE`].
    choices: Vec<u32>,
    relay_of: Vec<u32>,
    gain: Bitrate,
}

impl Matching {
    /// A matching from candidates that fit together.
    pub(super) fn new(instance: &Instance, choice: &[u32]) -> Self {
        let relay =
            |candidate: &u32| if *candidate == NONE { NONE } else { instance.relay_of(*candidate as usize) as u32 };
        let gain = |(edge, candidate): (usize, &u32)| match *candidate {
            NONE => Bitrate::ZERO,
            candidate => instance.rate_of(candidate as usize) - instance.direct_rate(edge),
        };
        Self {
            choices: choice.to_vec(),
            relay_of: choice.iter().map(relay).collect(),
            gain: choice.iter().enumerate().map(gain).sum(),
        }
    }

    /// The relay of an edge; `None`: it uses no relay, or does not exist.
    pub fn relay(&self, edge: usize) -> Option<usize> {
        self.relay_of.get(edge).filter(|relay| **relay != NONE).map(|relay| *relay as usize)
    }

    /// The relays of all edges, in the order of edges.
    pub fn relays(&self) -> impl ExactSizeIterator<Item = Option<usize>> {
        self.relay_of.iter().map(|relay| (*relay != NONE).then_some(*relay as usize))
    }

    /// Sum of the rates that edges reach in addition to their direct rates: Γ (BASS eq. 1).
    pub fn gain(&self) -> Bitrate {
        self.gain
    }

    /// Load of each relay of the matching's instance.
    pub fn loads(&self, instance: &Instance) -> Vec<Bitrate> {
        let mut loads = vec![Bitrate::ZERO; instance.relay_count()];
        for candidate in self.choices.iter().filter(|edge| **edge != NONE) {
            let load = &mut loads[instance.relay_of(*candidate as usize)];
            *load += instance.rate_of(*candidate as usize);
        }
        loads
    }

    /// γ of an edge of the matching's instance: the rate that it gets, divided by the highest rate that it could
    /// get through any relay (BASS §V-B.2). It is 1 for an edge that no relay improves.
    pub fn hit_rate(&self, instance: &Instance, edge: usize) -> Ratio {
        let direct = instance.direct_rate(edge);
        let best = instance.candidates_of(edge).map(|candidate| candidate.rate).fold(direct, Bitrate::max);
        let reached = match self.choices[edge] {
            NONE => direct,
            candidate => instance.rate_of(candidate as usize),
        };
        if reached == best { Ratio::ONE } else { Ratio::of(reached.bits_per_sec(), best.bits_per_sec()) }
    }

    /// Share of edges whose γ is 1.
    pub fn hit_share(&self, instance: &Instance) -> Ratio {
        let hit = (0..instance.edge_count()).filter(|edge| self.hit_rate(instance, *edge) == Ratio::ONE);
        Ratio::of(hit.count() as u64, instance.edge_count() as u64)
    }
}
