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
pub struct Plan {
    /// Of each box its candidate, or [`NONE`].
    choice: Vec<u32>,
    relay: Vec<u32>,
    gain: Bitrate,
}

impl Plan {
    /// Of choices that fit together.
    pub(super) fn new(instance: &Instance, choice: &[u32]) -> Self {
        let relay = |edge: &u32| if *edge == NONE { NONE } else { instance.relay_of(*edge as usize) as u32 };
        let gain = |(at, edge): (usize, &u32)| match *edge {
            NONE => Bitrate::ZERO,
            edge => instance.rate_of(edge as usize) - instance.own(at),
        };
        Self {
            choice: choice.to_vec(),
            relay: choice.iter().map(relay).collect(),
            gain: choice.iter().enumerate().map(gain).sum(),
        }
    }

    /// The relay of a box; none: it stays alone, or is not there.
    pub fn relay(&self, at: usize) -> Option<usize> {
        self.relay.get(at).filter(|relay| **relay != NONE).map(|relay| *relay as usize)
    }

    /// The relays of all boxes, in the order of boxes.
    pub fn relays(&self) -> impl ExactSizeIterator<Item = Option<usize>> {
        self.relay.iter().map(|relay| (*relay != NONE).then_some(*relay as usize))
    }

    /// What all boxes have more than alone: Γ (BASS eq. 1).
    pub fn gain(&self) -> Bitrate {
        self.gain
    }

    /// What each relay of the plan's instance carries.
    pub fn loads(&self, instance: &Instance) -> Vec<Bitrate> {
        let mut loads = vec![Bitrate::ZERO; instance.relays()];
        for edge in self.choice.iter().filter(|edge| **edge != NONE) {
            let load = &mut loads[instance.relay_of(*edge as usize)];
            *load = *load + instance.rate_of(*edge as usize);
        }
        loads
    }

    /// γ of a box of the plan's instance: what it reaches over the most that it could reach through any relay (BASS §V-B.2).
    /// One that no relay helps has all that it could.
    pub fn hit_rate(&self, instance: &Instance, at: usize) -> Ratio {
        let own = instance.own(at);
        let best = instance.of(at).map(|candidate| candidate.rate).fold(own, Bitrate::max);
        let reached = match self.choice[at] {
            NONE => own,
            edge => instance.rate_of(edge as usize),
        };
        if reached == best { Ratio::ONE } else { Ratio::of(reached.bits_per_sec(), best.bits_per_sec()) }
    }

    /// The share of boxes whose γ is 1.
    pub fn hits(&self, instance: &Instance) -> Ratio {
        let hit = (0..instance.boxes()).filter(|at| self.hit_rate(instance, *at) == Ratio::ONE);
        Ratio::of(hit.count() as u64, instance.boxes() as u64)
    }
}
