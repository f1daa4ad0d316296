//! One look at all boxes under prices: the dual bound, what each relay would carry, and who is nearly undecided.
//!
//! In: a view, prices, a band. Out: U(λ) = Σ_s λ_s R(s) + Σ_i max(0, max_e (g_e − λ_s w_e)), which no plan exceeds whatever the
//! prices are; a smooth function near it; loads; ties.
//!
//! 1. U is a sum of maxima: it has edges where boxes change their minds, and its slope there says little. Where a box's two best
//!    choices are within h, the smooth function takes for their maximum a parabola that meets both (at most h/4 higher). Its slope
//!    in a relay's price is the relay's room less the load, in which such a box counts for both choices in part.
//! 2. h is the band's share of what the best choice is worth, so that heavy and light boxes are undecided alike. That it moves with
//!    prices, too, is left out of the slope: a quarter of the band at most.
//! 3. A tie keeps what the second derivative needs. Of very many each n-th box is kept, n-fold.
//! 4. Rounding must not make the bound too low: each of n summands may be wrong by a few units in the last place of itself and
//!    of the sum so far; all of that is added to it.
//! 5. A look is taken in parts, a few thousand boxes at a time.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::NONE;
use super::view::View;

/// A look, done or under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    band: f64,
    /// Boxes that were looked at.
    seen: usize,
    /// Σ λR and the worths of best choices, then the worths of staying alone.
    worth: f64,
    alone: f64,
    /// What rule 1 adds.
    smoothing: f64,
    /// Of each relay in bits per second; the last one is nowhere.
    pub(super) load: Vec<f64>,
    pub(super) ties: Vec<Tie>,
}

/// A box that is nearly undecided: two relays (or nowhere), what it takes up there, and half of 1/h.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tie {
    pub(super) relays: [u32; 2],
    pub(super) loads: [f64; 2],
    pub(super) bend: f64,
}

impl Look {
    /// A look that begins.
    pub(super) fn new(view: View<'_>, prices: &[f64], band: f64) -> Self {
        let relays = view.instance.relays();
        let rooms = (0..relays).map(|relay| prices[relay] * view.instance.room_bits(relay));
        Self { band, worth: rooms.sum(), load: vec![0.0; relays + 1], ..Self::default() }
    }

    /// Looks at some more boxes, and gives the work that this was.
    pub(super) fn advance(&mut self, view: View<'_>, prices: &[f64]) -> u64 {
        let end = (self.seen + PART).min(view.instance.boxes());
        let every = 1 + view.instance.boxes() / MOST_TIES;
        let (from, mut work) = (self.seen, 0);
        for at in from..end {
            let edges = view.instance.edges(at).len();
            work += edges as u64 + 1;
            if edges > 0 {
                self.take(view, prices, at, every);
            }
        }
        self.seen = end;
        work
    }

    /// Whether all boxes were looked at.
    pub(super) fn is_done(&self, view: View<'_>) -> bool {
        self.seen == view.instance.boxes()
    }

    /// The dual bound (rule 4).
    pub(super) fn bound(&self) -> f64 {
        let summands = (self.seen + self.load.len() + 8) as f64;
        self.worth - self.alone + summands * f64::EPSILON * (self.worth + self.alone)
    }

    /// The smooth function.
    pub(super) fn smooth(&self) -> f64 {
        self.worth - self.alone + self.smoothing
    }

    fn take(&mut self, view: View<'_>, prices: &[f64], at: usize, every: usize) {
        let two = view.two(prices, at);
        self.worth += two.first;
        self.alone += view.instance.own_bits(at);
        let (half, apart) = (self.band * two.first, two.first - two.second);
        let side = |choice: u32| match choice {
            NONE => (view.instance.relays(), 0.0),
            edge => (view.instance.relay_of(edge as usize), view.instance.bits_of(edge as usize)),
        };
        let (relay, load) = side(two.best);
        if apart >= half {
            self.load[relay] += load;
            return;
        }
        let (other, less) = side(two.next);
        let part = 0.5 + 0.5 * apart / half;
        self.load[relay] += part * load;
        self.load[other] += (1.0 - part) * less;
        self.smoothing += (apart + half) * (apart + half) / (4.0 * half) - apart;
        if at.is_multiple_of(every) {
            let bend = 0.5 / half * every as f64;
            self.ties.push(Tie { relays: [relay as u32, other as u32], loads: [load, less], bend });
        }
    }
}

/// Boxes looked at at a time. chosen: some 50 µs.
const PART: usize = 4096;
/// About so many boxes may become ties. measured on 1,000 relays and 1,000,000 boxes: the same prices as with all of them.
const MOST_TIES: usize = 200_000;
