//! An instance as a solver sees it: what each choice of a box is worth, with or without prices.
//!
//! In: an instance, and of a re-matching where each box is now and what it is worth to stay. Out: worths and gains as numbers.
//!
//! 1. A candidate is worth its rate, and if the box is there now what staying is worth beside it ([`Stay`]). To be alone is worth
//!    the box's own rate.
//! 2. Under prices a candidate is worth less: the price of its relay for each bit that it takes up there.
//! 3. Worths are integers of bits per second, at most 2^55, and so are their sums; priced ones are floating point.

use super::instance::{Instance, NONE, exact};
use crate::units::{Bitrate, Ratio};

/// What it is worth that a box stays where it is: it moves, or makes room for another one, only if that brings more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stay {
    /// κ, of the rate that it has there. If a move costs a box t seconds, and boxes stay for T seconds, moves are worth what they
    /// cost from κ = t / T on. Above the whole it counts as the whole.
    pub share: Ratio,
    /// The same for each box, whatever its rate. Where moves are counted by boxes it gives the most for a number of moves: the heavy
    /// ones move, for whom it is a small part of what they gain.
    pub fee: Bitrate,
}

/// What choices are worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) instance: &'a Instance,
    /// The candidate where each box is now; none for a box beyond its end.
    homes: &'a [u32],
    stay: Stay,
}

/// The two best choices of a box under prices: candidates, or [`NONE`] to stay alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Two {
    pub(super) best: u32,
    pub(super) first: f64,
    pub(super) next: u32,
    /// Minus infinity: there is no second choice.
    pub(super) second: f64,
}

impl<'a> View<'a> {
    pub(super) fn new(instance: &'a Instance, homes: &'a [u32], stay: Stay) -> Self {
        // Fees of all boxes together must not exceed what their sums can hold.
        let fee = stay.fee.min(Instance::MOST_ROOM / (homes.len() as u64).max(1));
        Self { instance, homes, stay: Stay { share: stay.share.min(Ratio::ONE), fee } }
    }

    /// One in which nobody is anywhere yet.
    pub(super) fn plain(instance: &'a Instance) -> Self {
        Self::new(instance, &[], Stay::default())
    }

    /// The candidate where a box is now, or [`NONE`].
    pub(super) fn home(self, at: usize) -> u32 {
        self.homes.get(at).copied().unwrap_or(NONE)
    }

    /// What staying is worth.
    pub(super) fn stay(self) -> Stay {
        self.stay
    }

    /// Rule 1.
    pub(super) fn worth(self, at: usize, choice: u32) -> u64 {
        if choice == NONE {
            return self.instance.own(at).bits_per_sec();
        }
        let rate = self.instance.rate_of(choice as usize);
        let more =
            if self.home(at) == choice { (rate.share(self.stay.share) + self.stay.fee).bits_per_sec() } else { 0 };
        rate.bits_per_sec() + more
    }

    /// What a choice is worth more than to stay alone.
    pub(super) fn gain(self, at: usize, choice: u32) -> i64 {
        if choice == NONE {
            return 0;
        }
        self.worth(at, choice) as i64 - self.instance.own(at).bits_per_sec() as i64
    }

    /// The same, wherever the box is now.
    pub(super) fn real(self, at: usize, choice: u32) -> i64 {
        Self::plain(self.instance).gain(at, choice)
    }

    /// Rule 2.
    pub(super) fn priced(self, prices: &[f64], at: usize, choice: u32) -> f64 {
        if choice == NONE {
            return self.instance.own_bits(at);
        }
        let edge = choice as usize;
        let rate = self.instance.bits_of(edge);
        let more =
            if self.home(at) == choice { rate * self.stay.share.as_f64() + exact(self.stay.fee) } else { 0.0 };
        rate - prices[self.instance.relay_of(edge)] * rate + more
    }

    /// The two best choices of a box.
    pub(super) fn two(self, prices: &[f64], at: usize) -> Two {
        let first = self.instance.own_bits(at);
        let mut two = Two { best: NONE, first, next: NONE, second: f64::NEG_INFINITY };
        // As `priced` has it, with what does not change kept out of the innermost loop of all.
        let (home, edges) = (self.home(at), self.instance.edges(at));
        let (relays, rates) = self.instance.lists(edges.clone());
        for ((edge, relay), rate) in edges.zip(relays).zip(rates) {
            let (edge, rate) = (edge as u32, exact(*rate));
            let mut worth = rate - prices[*relay as usize] * rate;
            if edge == home {
                worth += rate * self.stay.share.as_f64() + exact(self.stay.fee);
            }
            if worth > two.first {
                two = Two { best: edge, first: worth, next: two.best, second: two.first };
            } else if worth > two.second {
                (two.next, two.second) = (edge, worth);
            }
        }
        two
    }
}
