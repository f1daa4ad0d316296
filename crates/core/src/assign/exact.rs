//! Branch and bound: the best plan of a small instance, and the proof that it is.
//!
//! In: an instance, prices, a plan to begin with. Out: ever better plans; when it ends, the last one is best.
//!
//! 1. A node has decided for some boxes. Its bound is the dual bound of the rest under prices, without candidates that no longer
//!    fit; a few subgradient steps, as long as the best plan's value asks for (Polyak), lower it. Children begin with its prices.
//! 2. A node whose bound does not exceed the best plan is given up, and so is a child whose choice costs that much more
//!    than the box's best one.
//! 3. The next box to be decided for is heavy and undecided: the largest load over (what its second choice costs + the mean
//!    gain of a box). When the heavy ones sit, the light ones fill what is left with hardly a gap.
//! 4. Children are tried in the order of their bounds, depth first: memory is a list of prices for each level.
//!
//! A general solver was not used: core has none, and this one proves 8 relays and 60 boxes in the time in which a general one
//! starts (`marline-lab bench assign --size 8/60`).

use alloc::vec;
use alloc::vec::Vec;

use super::instance::{Instance, NONE};
use super::view::View;

/// A search under way.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// The best plan, and what it gains.
    pub(super) best: Vec<u32>,
    pub(super) gain: i64,
    /// The plan of the node.
    choice: Vec<u32>,
    decided: Vec<bool>,
    left: Vec<u64>,
    here: i64,
    stack: Vec<Level>,
    /// The mean gain of a box: rule 3.
    mean: f64,
    load: Vec<f64>,
}

/// A box and what is still to be tried with it.
#[derive(Clone, Debug)]
struct Level {
    at: usize,
    /// Choices with the bounds of their nodes, the lowest first: taken from the end.
    children: Vec<(f64, u32)>,
    prices: Vec<f64>,
}

impl Tree {
    /// Begins with a plan that can be carried out, and gives the work of the first node.
    pub(super) fn new(view: View<'_>, prices: &[f64], plan: &[u32]) -> (Self, u64) {
        let (relays, boxes) = (view.instance.relays(), view.instance.boxes());
        let gain: i64 = plan.iter().enumerate().map(|(at, choice)| view.gain(at, *choice)).sum();
        let mut tree = Self {
            best: plan.to_vec(),
            gain,
            choice: vec![NONE; boxes],
            decided: vec![false; boxes],
            left: (0..relays).map(|relay| view.instance.room(relay).bits_per_sec()).collect(),
            here: 0,
            stack: Vec::new(),
            mean: gain.max(1) as f64 / boxes.max(1) as f64,
            load: vec![0.0; relays],
        };
        let work = tree.open(view, prices.to_vec());
        (tree, work)
    }

    /// Whether the best plan is proved to be best.
    pub(super) fn is_done(&self) -> bool {
        self.stack.is_empty()
    }

    /// No plan gains more.
    pub(super) fn bound(&self) -> f64 {
        let open = self.stack.iter().filter_map(|level| level.children.last());
        open.map(|(bound, _)| *bound).fold(self.gain as f64, f64::max)
    }

    /// Opens or closes one node, and gives the work that this was.
    pub(super) fn advance(&mut self, view: View<'_>) -> u64 {
        let beaten = self.gain as f64 + 1.0;
        let Some(level) = self.stack.last_mut() else { return 1 };
        let at = level.at;
        match level.children.pop().filter(|(bound, _)| *bound >= beaten) {
            Some((_, choice)) => {
                let prices = level.prices.clone();
                self.decide(view, at, choice);
                if self.here > self.gain {
                    self.gain = self.here;
                    self.best.clone_from(&self.choice);
                }
                self.open(view, prices)
            }
            None => {
                self.decide(view, at, NONE);
                self.decided[at] = false;
                self.stack.pop();
                1
            }
        }
    }

    fn decide(&mut self, view: View<'_>, at: usize, choice: u32) {
        let before = core::mem::replace(&mut self.choice[at], choice);
        self.here += view.gain(at, choice) - view.gain(at, before);
        let seat = |edge: u32| (view.instance.relay_of(edge as usize), view.instance.rate_of(edge as usize));
        if let Some((relay, rate)) = (before != NONE).then(|| seat(before)) {
            self.left[relay] += rate.bits_per_sec();
        }
        if let Some((relay, rate)) = (choice != NONE).then(|| seat(choice)) {
            self.left[relay] -= rate.bits_per_sec();
        }
    }

    /// A node: its bound, and, if that is not below the best plan, the box to be decided for.
    fn open(&mut self, view: View<'_>, mut prices: Vec<f64>) -> u64 {
        let beaten = self.gain as f64 + 1.0;
        let mut best = prices.clone();
        let mut slope = Vec::new();
        let (mut bound, mut length, mut work) = (f64::INFINITY, 1.0, 0);
        for _ in 0..LOOKS {
            let (found, looked) = self.look(view, &prices);
            work += looked;
            if found < bound {
                bound = found;
                best.clone_from(&prices);
                slope = self.slope(&best);
            } else {
                length *= 0.5;
            }
            let square: f64 = slope.iter().map(|slope| slope * slope).sum();
            if bound < beaten || square == 0.0 {
                break;
            }
            let step = length * (bound - self.gain as f64) / square;
            let moved = best.iter().zip(&slope).map(|(price, slope)| (price + step * slope).clamp(0.0, 1.0));
            prices = moved.collect();
        }
        if bound >= beaten {
            self.branch(view, bound, best);
            work += view.instance.candidates() as u64;
        }
        work
    }

    /// What each relay would carry more than it has left; nothing where less costs nothing.
    fn slope(&self, prices: &[f64]) -> Vec<f64> {
        let over = self.load.iter().zip(&self.left).map(|(load, left)| load - *left as f64);
        over.zip(prices).map(|(over, price)| if over < 0.0 && *price <= 0.0 { 0.0 } else { over }).collect()
    }

    /// The node's bound under prices; leaves what relays would carry in `load`.
    fn look(&mut self, view: View<'_>, prices: &[f64]) -> (f64, u64) {
        self.load.fill(0.0);
        let rooms: f64 = prices.iter().zip(&self.left).map(|(price, left)| price * *left as f64).sum();
        let (mut sum, mut size, mut work) = (rooms, rooms, 1);
        for at in (0..view.instance.boxes()).filter(|at| !self.decided[*at]) {
            let alone = view.instance.own_bits(at);
            let (mut best, mut most) = (NONE, alone);
            for edge in view.instance.edges(at) {
                work += 1;
                let worth = view.priced(prices, at, edge as u32);
                if worth > most && self.fits(view.instance, edge) {
                    (best, most) = (edge as u32, worth);
                }
            }
            if best != NONE {
                sum += most - alone;
                size += most;
                self.load[view.instance.relay_of(best as usize)] += view.instance.bits_of(best as usize);
            }
        }
        // As with a look of the whole: rounding must not make the bound too low.
        let rounding = (view.instance.boxes() + prices.len() + 8) as f64 * f64::EPSILON * size;
        (self.here as f64 + sum + rounding, work)
    }

    fn fits(&self, instance: &Instance, edge: usize) -> bool {
        instance.rate_of(edge).bits_per_sec() <= self.left[instance.relay_of(edge)]
    }

    /// Makes a level of the box of rule 3; if nobody has a choice left, there is nothing to decide.
    fn branch(&mut self, view: View<'_>, bound: f64, prices: Vec<f64>) {
        let open = (0..view.instance.boxes()).filter(|at| !self.decided[*at]);
        let scored = open.filter_map(|at| Some((self.score(view, &prices, at)?, at)));
        let Some((_, at)) = scored.reduce(|best, next| if next.0 > best.0 { next } else { best }) else { return };
        let fitting = view.instance.edges(at).filter(|edge| self.fits(view.instance, *edge));
        let choices = fitting.map(|edge| edge as u32).chain([NONE]);
        let mut children: Vec<(f64, u32)> =
            choices.map(|choice| (view.priced(&prices, at, choice), choice)).collect();
        children.sort_by(|a, b| a.0.total_cmp(&b.0));
        let most = children.last().map_or(0.0, |(worth, _)| *worth);
        children.iter_mut().for_each(|(worth, _)| *worth += bound - most);
        self.decided[at] = true;
        self.stack.push(Level { at, children, prices });
    }

    /// Rule 3; none: the box can only stay alone.
    fn score(&self, view: View<'_>, prices: &[f64], at: usize) -> Option<f64> {
        let (mut first, mut second, mut load) = (view.instance.own_bits(at), f64::NEG_INFINITY, 0.0_f64);
        for edge in view.instance.edges(at).filter(|edge| self.fits(view.instance, *edge)) {
            let worth = view.priced(prices, at, edge as u32);
            load = load.max(view.instance.bits_of(edge));
            second = second.max(worth.min(first));
            first = first.max(worth);
        }
        (load > 0.0).then(|| load / (first - second + self.mean))
    }
}

/// Looks of a node: one, and after each of so many steps one. measured on 8 relays and 60 boxes, 20 instances: with 4 to 6
/// the proofs take least time; with 3 or 9 half as much again.
const LOOKS: usize = 6;
