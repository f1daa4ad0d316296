//! A fleet in which boxes come and go, matched anew each second.
//!
//! In: a plan, which share of boxes is replaced, what staying is worth, how much work a matching may do. Out: of each second what
//! all gain, what no plan exceeds, and how many boxes had to move.
//!
//! 1. A box that goes makes place for one that comes: there are always as many, and what relays have stays.
//! 2. The matching knows the last prices and where everybody is; who came is nowhere.
//! 3. A box has moved if it had a relay and has another one or none.

use marline_core::assign::{Prices, Solver, SwitchingCost, WarmStart};
use marline_core::units::{Bitrate, Ratio};

use super::map::{Fleet, Member, Plan, instance};
use crate::rng::{Purpose, Stream};

/// A fleet at one moment.
#[derive(Clone, Debug)]
pub struct Churn {
    fleet: Fleet,
    members: Vec<Member>,
    rooms: Vec<Bitrate>,
    relays: Vec<Option<usize>>,
    prices: Prices,
    chance: Stream,
}

/// What a matching came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matched {
    /// What all boxes have more than alone.
    pub gain: Bitrate,
    /// What no plan exceeds.
    pub bound: Bitrate,
    /// Boxes that had to move.
    pub moved: usize,
}

impl Matched {
    /// The most that is missing to the best plan, as a part of it.
    pub fn regret(&self) -> f64 {
        1.0 - self.gain.bits_per_sec() as f64 / self.bound.bits_per_sec().max(1) as f64
    }
}

impl Churn {
    /// The fleet of a plan; nobody has a relay yet.
    pub fn new(plan: &Plan) -> Self {
        let mut fleet = Fleet::new(plan);
        let members = fleet.members();
        let rooms = fleet.rooms(&members);
        let relays = vec![None; members.len()];
        let chance = Stream::new(plan.seed, "churn", 0, Purpose::Other);
        Self { fleet, members, prices: Prices::zero(rooms.len()), rooms, relays, chance }
    }

    /// Replaces this share of boxes.
    pub fn replace(&mut self, share: Ratio) {
        let count = self.members.len() as u64;
        for _ in 0..count * u64::from(share.ppm()) / 1_000_000 {
            let at = self.chance.below(count) as usize;
            self.members[at] = self.fleet.member();
            self.relays[at] = None;
        }
    }

    /// Matches all anew, with so much work.
    pub fn rematch(&mut self, stay: SwitchingCost, work: u64) -> Matched {
        let instance = instance(&self.rooms, &self.members);
        let before = WarmStart { prices: &self.prices, relays: &self.relays, switching_cost: stay };
        let mut solver = Solver::new(&instance, Some(before));
        solver.step(work);
        let plan = solver.matching();
        let moved = plan.relays().zip(&self.relays).filter(|(now, before)| before.is_some() && now != *before);
        let moved = moved.count();
        self.prices = solver.prices();
        self.relays = plan.relays().collect();
        Matched { gain: plan.gain(), bound: self.prices.bound(&instance), moved }
    }
}
