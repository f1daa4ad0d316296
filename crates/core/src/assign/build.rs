//! A plan from prices: those who have most to lose choose first.
//!
//! In: prices. Out: a plan.
//!
//! 1. A box's regret is what its best choice is worth more than its second under the prices. In the order of regret, the
//!    largest first, boxes take the best of what still fits; those to whom nothing is worth its price stay alone.
//! 2. Then whoever is alone takes what is left, whatever it costs: a bit that nobody wants is worth having.
//!
//! Regret counts in bits per second, not as a share: few heavy boxes that find no place cost more than many light ones.
//! Measured on 500 relays and 100,000 boxes, load 0.9, it leaves 0.08 % where a share leaves 0.15.

use alloc::vec::Vec;

use super::instance::NONE;
use super::seats::Seats;
use super::view::View;

/// A plan under construction.
#[derive(Clone, Debug)]
pub(super) struct Build {
    prices: Vec<f64>,
    /// A box in the low half, above it its regret so that the largest comes first.
    order: Vec<u64>,
    round: Round,
    next: usize,
    seats: Seats,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Round {
    Rank,
    Choose,
    Fill,
    Done,
}

impl Build {
    /// Begins with these seats taken.
    pub(super) fn new(prices: &[f64], seats: Seats) -> Self {
        Self { prices: prices.to_vec(), order: Vec::new(), round: Round::Rank, next: 0, seats }
    }

    pub(super) fn is_done(&self) -> bool {
        self.round == Round::Done
    }

    pub(super) fn into_seats(self) -> Seats {
        self.seats
    }

    /// Some more of it; gives the work that this was. The longest part is the sorting, once.
    pub(super) fn advance(&mut self, view: View<'_>) -> u64 {
        let count = match self.round {
            Round::Choose => self.order.len(),
            _ => view.instance.boxes(),
        };
        let end = (self.next + PART).min(count);
        let mut work = 1;
        for at in self.next..end {
            work += match self.round {
                Round::Rank => self.rank(view, at),
                Round::Choose => self.choose(view, at),
                Round::Fill | Round::Done => self.fill(view, at),
            };
        }
        self.next = end;
        if end == count {
            self.next = 0;
            self.round = match self.round {
                Round::Rank => Round::Choose,
                Round::Choose => Round::Fill,
                Round::Fill | Round::Done => Round::Done,
            };
            if self.round == Round::Choose {
                self.order.sort_unstable();
                work += self.order.len() as u64 * SORT;
            }
        }
        work
    }

    fn rank(&mut self, view: View<'_>, at: usize) -> u64 {
        if self.seats.choice[at] != NONE {
            return 1;
        }
        let two = view.two(&self.prices, at);
        if two.best != NONE {
            // The bits of positive floating-point numbers are in the order of the numbers.
            let regret = !((two.first - two.second) as f32).to_bits();
            self.order.push(u64::from(regret) << 32 | at as u64);
        }
        view.instance.edges(at).len() as u64 + 1
    }

    fn choose(&mut self, view: View<'_>, rank: usize) -> u64 {
        let at = self.order[rank] as u32 as usize;
        let choice = self.seats.best_fit(view, &self.prices, at, view.instance.own_bits(at));
        self.seats.put(view, at, choice);
        view.instance.edges(at).len() as u64 + 1
    }

    fn fill(&mut self, view: View<'_>, at: usize) -> u64 {
        if self.seats.choice[at] != NONE {
            return 1;
        }
        let choice = self.seats.best_fit(view, &self.prices, at, f64::NEG_INFINITY);
        self.seats.put(view, at, choice);
        view.instance.edges(at).len() as u64 + 1
    }
}

/// Boxes at a time. chosen: some 100 µs.
const PART: usize = 4096;
/// What sorting a box costs beside looking at a candidate.
const SORT: u64 = 8;
