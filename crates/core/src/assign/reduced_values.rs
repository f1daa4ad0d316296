//! An instance as a solver sees it: what each choice of a box is worth, with or without prices.
//!
//! In: an instance, and of a re-matching where each box is now and what it is worth to stay. Out: worths and gains as numbers.
//!
//! 1. A candidate is worth its rate, and if the box is there now what staying is worth beside it ([`Stay`]). To be alone is worth
//!    the box's own rate.
//! 2. Under prices a candidate is worth less: the price of its relay for each bit that it takes up there.
//! 3. Worths are integers of bits per second, at most 2^55, and so are their sums; priced ones are floating point.

use super::instance::{Instance, NONE, to_f64};
use crate::units::{Bitrate, Ratio};

/// What it is worth that a box stays where it is: it moves, or makes room for another one, only if that brings more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchingCost {
    /// κ, of the rate that it has there. If a move costs a box t seconds, and boxes stay for T seconds, moves are worth what they
    /// cost from κ = t / T on. Above the whole it counts as the whole.
    pub share: Ratio,
    /// The same for each box, whatever its rate. Where moves are counted by boxes it gives the most for a number of moves: the heavy
    /// ones move, for whom it is a small part of what they gain.
    pub fee: Bitrate,
}

/// What choices are worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReducedInstance<'a> {
    pub(super) instance: &'a Instance,
    /// The candidate where each box is now; none for a box beyond its end.
    current: &'a [u32],
    switching_cost: SwitchingCost,
}

/// The two best choices of a box under prices: candidates, or [`NONE`] to stay alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopTwo {
    pub(super) best: u32,
    pub(super) best_value: f64,
    pub(super) second: u32,
    /// Minus infinity: there is no second choice.
    pub(super) second_value: f64,
}

impl<'a> ReducedInstance<'a> {
    pub(super) fn new(instance: &'a Instance, current: &'a [u32], switching_cost: SwitchingCost) -> Self {
        // Fees of all boxes together must not exceed what their sums can hold.
        let fee = switching_cost.fee.min(Instance::MAX_CAPACITY / (current.len() as u64).max(1));
        Self {
            instance,
            current,
            switching_cost: SwitchingCost { share: switching_cost.share.min(Ratio::ONE), fee },
        }
    }

    /// One in which nobody is anywhere yet.
    pub(super) fn without_current(instance: &'a Instance) -> Self {
        Self::new(instance, &[], SwitchingCost::default())
    }

    /// The candidate where a box is now, or [`NONE`].
    pub(super) fn current(self, edge: usize) -> u32 {
        self.current.get(edge).copied().unwrap_or(NONE)
    }

    /// What staying is worth.
    pub(super) fn switching_cost(self) -> SwitchingCost {
        self.switching_cost
    }

    /// Rule 1.
    pub(super) fn value(self, edge: usize, choice: u32) -> u64 {
        if choice == NONE {
            return self.instance.direct_rate(edge).bits_per_sec();
        }
        let rate = self.instance.rate_of(choice as usize);
        let bonus = if self.current(edge) == choice {
            (rate.share(self.switching_cost.share) + self.switching_cost.fee).bits_per_sec()
        } else {
            0
        };
        rate.bits_per_sec() + bonus
    }

    /// What a choice is worth more than to stay alone.
    pub(super) fn gain(self, edge: usize, choice: u32) -> i64 {
        if choice == NONE {
            return 0;
        }
        self.value(edge, choice) as i64 - self.instance.direct_rate(edge).bits_per_sec() as i64
    }

    /// The same, wherever the box is now.
    pub(super) fn rate_gain(self, edge: usize, choice: u32) -> i64 {
        Self::without_current(self.instance).gain(edge, choice)
    }

    /// Rule 2.
    pub(super) fn reduced_value(self, prices: &[f64], edge: usize, choice: u32) -> f64 {
        if choice == NONE {
            return self.instance.direct_bits(edge);
        }
        let candidate = choice as usize;
        let rate = self.instance.bits_of(candidate);
        let bonus = if self.current(edge) == choice {
            rate * self.switching_cost.share.as_f64() + to_f64(self.switching_cost.fee)
        } else {
            0.0
        };
        rate - prices[self.instance.relay_of(candidate)] * rate + bonus
    }

    /// The two best choices of a box.
    pub(super) fn top_two(self, prices: &[f64], edge: usize) -> TopTwo {
        let first = self.instance.direct_bits(edge);
        let mut top_two = TopTwo { best: NONE, best_value: first, second: NONE, second_value: f64::NEG_INFINITY };
        // As `priced` has it, with what does not change kept out of the innermost loop of all.
        let (current, candidates) = (self.current(edge), self.instance.candidate_range(edge));
        let (relays, rates) = self.instance.relays_and_rates(candidates.clone());
        for ((candidate, relay), rate) in candidates.zip(relays).zip(rates) {
            let (candidate, rate) = (candidate as u32, to_f64(*rate));
            let mut value = rate - prices[*relay as usize] * rate;
            if candidate == current {
                value += rate * self.switching_cost.share.as_f64() + to_f64(self.switching_cost.fee);
            }
            if value > top_two.best_value {
                top_two = TopTwo {
                    best: candidate,
                    best_value: value,
                    second: top_two.best,
                    second_value: top_two.best_value,
                };
            } else if value > top_two.second_value {
                (top_two.second, top_two.second_value) = (candidate, value);
            }
        }
        top_two
    }
}
