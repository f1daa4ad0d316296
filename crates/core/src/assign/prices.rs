//! Prices of relays, and the search for those whose dual bound is lowest.
//!
//! In: a view, prices to begin with. Out: the best prices so far and their bound, after each step.
//!
//! 1. A price is what a bit per second of a relay is worth to those who would have it, from 0 to 1: nobody gains more than a
//!    bit by a bit.
//! 2. Prices follow Newton's direction on the smooth dual (`newton`) as far as that falls: all the way, else two fifths of it, else
//!    a sixth.
//! 3. When a step no longer brings much, or none does, the band is made narrower. It begins wide, so that relays far away feel
//!    a shortage in one step, and ends where hardly a tie is left; from prices that are known it begins narrow.
//! 4. Every look is a bound, whatever it was taken for; the lowest counts.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::Instance;
use super::look::Look;
use super::newton;
use super::view::View;
use crate::units::Bitrate;

/// What a bit per second of each relay is worth.
#[derive(Clone, PartialEq, Debug)]
pub struct Prices(Vec<f64>);

impl Prices {
    /// Nothing costs anything.
    pub fn free(relays: usize) -> Self {
        Self(vec![0.0; relays])
    }

    /// Those of a list, in the order of relays. What is below 0 or no number is 0, what is above 1 is 1.
    pub fn new(prices: impl IntoIterator<Item = f64>) -> Self {
        Self(prices.into_iter().map(|price| if price > 0.0 { price.min(1.0) } else { 0.0 }).collect())
    }

    /// The price of a relay; that of one which is not there is 0.
    pub fn of(&self, relay: usize) -> f64 {
        self.0.get(relay).copied().unwrap_or(0.0)
    }

    /// The dual bound: no plan of this instance gains more, whatever the prices are.
    pub fn bound(&self, instance: &Instance) -> Bitrate {
        let prices = self.of_all(instance);
        let view = View::plain(instance);
        let mut look = Look::new(view, &prices, 0.0);
        while !look.is_done(view) {
            look.advance(view, &prices);
        }
        whole(look.bound())
    }

    /// One for each relay.
    pub(super) fn of_all(&self, instance: &Instance) -> Vec<f64> {
        (0..instance.relays()).map(|relay| self.of(relay)).collect()
    }
}

/// A bound as a rate, rounded up, and never above what all relays together may have.
pub(super) fn whole(bound: f64) -> Bitrate {
    Bitrate::from_bits_per_sec(libm::ceil(bound).max(0.0) as u64).min(Instance::MOST_ROOM * 2)
}

/// The search.
#[derive(Clone, Debug)]
pub(super) struct Search {
    band: f64,
    /// The narrowest one.
    last: f64,
    /// The lowest bound, and its prices.
    pub(super) bound: f64,
    pub(super) best: Vec<f64>,
    /// Where the search stands, and what was seen there.
    prices: Vec<f64>,
    base: Look,
    /// Where it would go all the way, and how much of that is tried; nothing: it looks anew at where it stands.
    change: Vec<f64>,
    share: f64,
    trial: Vec<f64>,
    look: Look,
}

impl Search {
    /// Begins at these prices; `known`: they are near the best ones.
    pub(super) fn new(view: View<'_>, prices: &Prices, known: bool) -> Self {
        let prices = prices.of_all(view.instance);
        let (band, last) = if known { NEAR } else { FAR };
        let look = Look::new(view, &prices, band);
        Self {
            band,
            last,
            bound: f64::INFINITY,
            best: prices.clone(),
            base: Look::default(),
            change: Vec::new(),
            share: 0.0,
            trial: prices.clone(),
            prices,
            look,
        }
    }

    /// Whether the bands are used up.
    pub(super) fn is_done(&self) -> bool {
        self.band < self.last
    }

    /// Some more of it; gives the work that this was.
    pub(super) fn advance(&mut self, view: View<'_>) -> u64 {
        let work = self.look.advance(view, &self.trial);
        if !self.look.is_done(view) {
            return work;
        }
        if self.look.bound() < self.bound {
            self.bound = self.look.bound();
            self.best.clone_from(&self.trial);
        }
        let smooth = self.look.smooth();
        if self.share == 0.0 {
            self.base = core::mem::take(&mut self.look);
            return work + self.aim(view);
        }
        let gained = (self.base.smooth() - smooth) / smooth.max(1.0);
        if gained > 0.0 {
            self.base = core::mem::take(&mut self.look);
            self.prices.clone_from(&self.trial);
        }
        if gained > 0.0 && gained >= self.band * LITTLE {
            return work + self.aim(view);
        }
        if gained <= 0.0 && self.share > LEAST_SHARE {
            self.try_share(view, self.share * SHORTER);
            return work;
        }
        self.band *= NARROWER;
        self.share = 0.0;
        self.trial.clone_from(&self.prices);
        self.look = Look::new(view, &self.trial, self.band);
        work
    }

    /// A new direction from where the search stands.
    fn aim(&mut self, view: View<'_>) -> u64 {
        let (change, work) = newton::direction(view.instance, &self.prices, &self.base, self.band * REACH);
        self.change = change;
        self.try_share(view, 1.0);
        work
    }

    fn try_share(&mut self, view: View<'_>, share: f64) {
        self.share = share;
        let steps = self.prices.iter().zip(&self.change);
        self.trial = steps.map(|(price, change)| (price + share * change).clamp(0.0, 1.0)).collect();
        self.look = Look::new(view, &self.trial, self.band);
    }
}

/// The first band and the narrowest one, from prices that are not known and from those of a moment ago. measured: the former end
/// within 0.004 % of the linear program on 50 relays and 1,000 boxes, and within 0.002 % on 500 and 100,000. The latter leave most
/// for the local search: of a churn of 1 % a second nothing is lost by them.
const FAR: (f64, f64) = (0.3, 3e-4);
const NEAR: (f64, f64) = (0.004, 2e-3);
const NARROWER: f64 = 0.4;
/// How far a price may go in one step, in bands: beyond that the ties are others.
const REACH: f64 = 2.0;
/// Rule 2: what is tried, and rule 3: what is not much, in bands.
const SHORTER: f64 = 0.4;
const LEAST_SHARE: f64 = 0.2;
const LITTLE: f64 = 0.005;
