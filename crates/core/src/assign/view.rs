//! An instance as a solver sees it: what each choice of a box is worth, with or without prices.
//!
//! In: an instance, and of a re-matching where each box is now and what it is worth to stay. Out: worths and gains as numbers.
//!
//! 1. A candidate is worth its rate, and κ of it more if the box is there now. To stay alone is worth the box's own rate.
//! 2. Under prices a candidate is worth less: the price of its relay for each bit that it takes up there.
//! 3. Worths are integers of bits per second, at most 2^54; priced ones are floating point.

use super::instance::{Instance, NONE};
use crate::units::Ratio;

/// What choices are worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) instance: &'a Instance,
    /// The candidate where each box is now; none for a box beyond its end.
    homes: &'a [u32],
    stay: Ratio,
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
    pub(super) fn new(instance: &'a Instance, homes: &'a [u32], stay: Ratio) -> Self {
        Self { instance, homes, stay }
    }

    /// The candidate where a box is now, or [`NONE`].
    pub(super) fn home(self, at: usize) -> u32 {
        self.homes.get(at).copied().unwrap_or(NONE)
    }

    /// κ.
    pub(super) fn stay(self) -> Ratio {
        self.stay
    }

    /// Rule 1.
    pub(super) fn worth(self, at: usize, choice: u32) -> u64 {
        if choice == NONE {
            return self.instance.own(at).bits_per_sec();
        }
        let rate = self.instance.rate_of(choice as usize);
        let more = if self.home(at) == choice { rate.share(self.stay).bits_per_sec() } else { 0 };
        rate.bits_per_sec() + more
    }

    /// What a choice is worth more than to stay alone.
    pub(super) fn gain(self, at: usize, choice: u32) -> i64 {
        if choice == NONE {
            return 0;
        }
        self.worth(at, choice) as i64 - self.instance.own(at).bits_per_sec() as i64
    }

    /// Rule 2.
    pub(super) fn priced(self, prices: &[f64], at: usize, choice: u32) -> f64 {
        if choice == NONE {
            return self.instance.own_bits(at);
        }
        let edge = choice as usize;
        let rate = self.instance.bits_of(edge);
        let more = if self.home(at) == choice { rate * self.stay.as_f64() } else { 0.0 };
        rate - prices[self.instance.relay_of(edge)] * rate + more
    }

    /// The two best choices of a box.
    pub(super) fn two(self, prices: &[f64], at: usize) -> Two {
        let first = self.instance.own_bits(at);
        let mut two = Two { best: NONE, first, next: NONE, second: f64::NEG_INFINITY };
        for edge in self.instance.edges(at) {
            let worth = self.priced(prices, at, edge as u32);
            if worth > two.first {
                two = Two { best: edge as u32, first: worth, next: two.best, second: two.first };
            } else if worth > two.second {
                (two.next, two.second) = (edge as u32, worth);
            }
        }
        two
    }
}
