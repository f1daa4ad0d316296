//! A plan: which relay serves which box.
//!
//! In: what a solver or a comparison found. Out: where each box goes, what all gain, how near each box is to the best that it
//! could have.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::{Instance, NONE};
use crate::units::{Bitrate, Ratio};

/// A relay for each box, or none. It can be carried out: no relay is given more than it has left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Matching {
    /// Of each box its candidate, or [`NONE`].
    choices: Vec<u32>,
    relay_of: Vec<u32>,
    gain: Bitrate,
}

impl Matching {
    /// Of choices that fit together.
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

    /// The relay of a box; none: it stays alone, or is not there.
    pub fn relay(&self, edge: usize) -> Option<usize> {
        self.relay_of.get(edge).filter(|relay| **relay != NONE).map(|relay| *relay as usize)
    }

    /// The relays of all boxes, in the order of boxes.
    pub fn relays(&self) -> impl ExactSizeIterator<Item = Option<usize>> {
        self.relay_of.iter().map(|relay| (*relay != NONE).then_some(*relay as usize))
    }

    /// What all boxes have more than alone: Γ (BASS eq. 1).
    pub fn gain(&self) -> Bitrate {
        self.gain
    }

    /// What each relay of the plan's instance carries.
    pub fn loads(&self, instance: &Instance) -> Vec<Bitrate> {
        let mut loads = vec![Bitrate::ZERO; instance.relay_count()];
        for candidate in self.choices.iter().filter(|edge| **edge != NONE) {
            let load = &mut loads[instance.relay_of(*candidate as usize)];
            *load = *load + instance.rate_of(*candidate as usize);
        }
        loads
    }

    /// γ of a box of the plan's instance: what it reaches over the most that it could reach through any relay (BASS §V-B.2).
    /// One that no relay helps has all that it could.
    pub fn hit_rate(&self, instance: &Instance, edge: usize) -> Ratio {
        let direct = instance.direct_rate(edge);
        let best = instance.candidates_of(edge).map(|candidate| candidate.rate).fold(direct, Bitrate::max);
        let reached = match self.choices[edge] {
            NONE => direct,
            candidate => instance.rate_of(candidate as usize),
        };
        if reached == best { Ratio::ONE } else { Ratio::of(reached.bits_per_sec(), best.bits_per_sec()) }
    }

    /// The share of boxes whose γ is 1.
    pub fn hit_share(&self, instance: &Instance) -> Ratio {
        let hit = (0..instance.edge_count()).filter(|edge| self.hit_rate(instance, *edge) == Ratio::ONE);
        Ratio::of(hit.count() as u64, instance.edge_count() as u64)
    }
}
