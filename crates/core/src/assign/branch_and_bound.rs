//! Branch and bound: finds the optimal matching of a small instance and proves that it is optimal.
//!
//! It starts with a feasible matching and prices, and improves the matching until the search tree is exhausted.
//!
//! 1. A node of the tree has decided the candidates of some edges. Its bound is the dual bound of the remaining
//!    problem, without candidates that no longer fit. A few subgradient steps lower it, with the step length of
//!    Polyak, which aims at the best matching's gain. Children start with its prices.
//! 2. A node whose bound does not exceed the best matching is pruned. A child is pruned too if its choice is worse
//!    than the edge's best choice by so much that its bound falls below the best matching.
//! 3. The next edge to branch on is heavy and undecided: it has the largest load / (loss by its second choice +
//!    mean gain of an edge). Once the heavy edges are decided, the light ones fill the remaining capacity with
//!    hardly a gap.
//! 4. Children are tried in the order of their bounds, depth first, so memory is one list of prices per level.
//!
//! A general solver was rejected: `core` has none, and this one proves 8 relays and 60 edges in the time in which a
//! general solver starts (`marline-lab bench assign --size 8/60`).

use alloc::vec;
use alloc::vec::Vec;

use super::instance::{Instance, NONE};
use super::reduced_values::ReducedInstance;

/// State of the search.
#[derive(Clone, Debug)]
pub(super) struct BranchAndBound {
    /// Best matching so far and its gain.
    pub(super) best: Vec<u32>,
    pub(super) gain: i64,
    /// Choices of the current node.
    choice: Vec<u32>,
    decided: Vec<bool>,
    remaining: Vec<u64>,
    node_gain: i64,
    stack: Vec<Level>,
    /// Mean gain of an edge (rule 3).
    mean_gain: f64,
    load: Vec<f64>,
}

/// One level of the tree: an edge and its choices that remain to be tried.
#[derive(Clone, Debug)]
struct Level {
    edge: usize,
    /// Choices with the bounds of their nodes in ascending order; taken from the end.
    children: Vec<(f64, u32)>,
    prices: Vec<f64>,
}

impl BranchAndBound {
    /// Starts with a feasible matching, and returns the work of the first node.
    pub(super) fn new(problem: ReducedInstance<'_>, prices: &[f64], matching: &[u32]) -> (Self, u64) {
        let (relays, boxes) = (problem.instance.relay_count(), problem.instance.edge_count());
        let gain: i64 = matching.iter().enumerate().map(|(edge, choice)| problem.gain(edge, *choice)).sum();
        let mut search = Self {
            best: matching.to_vec(),
            gain,
            choice: vec![NONE; boxes],
            decided: vec![false; boxes],
            remaining: (0..relays).map(|relay| problem.instance.capacity(relay).bits_per_sec()).collect(),
            node_gain: 0,
            stack: Vec::new(),
            mean_gain: gain.max(1) as f64 / boxes.max(1) as f64,
            load: vec![0.0; relays],
        };
        let work = search.expand(problem, prices.to_vec());
        (search, work)
    }

    /// Whether the best matching is proved to be optimal.
    pub(super) fn is_done(&self) -> bool {
        self.stack.is_empty()
    }

    /// Upper bound on the gain of every matching: the highest bound of an open node, or the best gain.
    pub(super) fn bound(&self) -> f64 {
        let open = self.stack.iter().filter_map(|level| level.children.last());
        open.map(|(bound, _)| *bound).fold(self.gain as f64, f64::max)
    }

    /// Opens or closes one node, and returns its work.
    pub(super) fn advance(&mut self, problem: ReducedInstance<'_>) -> u64 {
        // Gains are integers, so a node is useful only if it may gain at least one bit per second more.
        let beaten = self.gain as f64 + 1.0;
        let Some(level) = self.stack.last_mut() else { return 1 };
        let edge = level.edge;
        match level.children.pop().filter(|(bound, _)| *bound >= beaten) {
            Some((_, choice)) => {
                let prices = level.prices.clone();
                self.decide(problem, edge, choice);
                if self.node_gain > self.gain {
                    self.gain = self.node_gain;
                    self.best.clone_from(&self.choice);
                }
                self.expand(problem, prices)
            }
            None => {
                // Every useful choice of this level was tried. Undo its decision and return to the parent.
                self.decide(problem, edge, NONE);
                self.decided[edge] = false;
                self.stack.pop();
                1
            }
        }
    }

    fn decide(&mut self, problem: ReducedInstance<'_>, edge: usize, choice: u32) {
        // Exchange the choice of the edge and update the gain and the remaining capacities.
        let before = core::mem::replace(&mut self.choice[edge], choice);
        self.node_gain += problem.gain(edge, choice) - problem.gain(edge, before);
        let relay_and_rate = |candidate: u32| {
            (problem.instance.relay_of(candidate as usize), problem.instance.rate_of(candidate as usize))
        };
        if let Some((relay, rate)) = (before != NONE).then(|| relay_and_rate(before)) {
            self.remaining[relay] += rate.bits_per_sec();
        }
        if let Some((relay, rate)) = (choice != NONE).then(|| relay_and_rate(choice)) {
            self.remaining[relay] -= rate.bits_per_sec();
        }
    }

    /// Computes the bound of the current node and, if it may contain a better matching, branches on the next edge.
    fn expand(&mut self, problem: ReducedInstance<'_>, mut prices: Vec<f64>) -> u64 {
        let beaten = self.gain as f64 + 1.0;
        let mut best = prices.clone();
        let mut subgradient = Vec::new();
        let (mut bound, mut length, mut work) = (f64::INFINITY, 1.0, 0);
        // Polyak's subgradient method: move the prices along the excess load of each relay. The step length is
        // chosen such that the bound would reach the best gain if it fell linearly; it is halved after each step
        // that does not lower the bound.
        for _ in 0..EVALUATIONS {
            let (value, eval_work) = self.evaluate(problem, &prices);
            work += eval_work;
            if value < bound {
                bound = value;
                best.clone_from(&prices);
                subgradient = self.subgradient(&best);
            } else {
                length *= 0.5;
            }
            let square: f64 = subgradient.iter().map(|slope| slope * slope).sum();
            // Pruned, or no change of prices lowers the bound.
            if bound < beaten || square == 0.0 {
                break;
            }
            let step = length * (bound - self.gain as f64) / square;
            let moved = best.iter().zip(&subgradient).map(|(price, slope)| (price + step * slope).clamp(0.0, 1.0));
            prices = moved.collect();
        }
        if bound >= beaten {
            self.branch(problem, bound, best);
            work += problem.instance.candidate_count() as u64;
        }
        work
    }

    /// Excess of each relay's load over its remaining capacity. Zero where the price is zero and capacity is left,
    /// because the price cannot fall.
    fn subgradient(&self, prices: &[f64]) -> Vec<f64> {
        let over = self.load.iter().zip(&self.remaining).map(|(load, left)| load - *left as f64);
        over.zip(prices).map(|(over, price)| if over < 0.0 && *price <= 0.0 { 0.0 } else { over }).collect()
    }

    /// Bound of the current node under prices; stores the load that each relay would have in `load`.
    fn evaluate(&mut self, problem: ReducedInstance<'_>, prices: &[f64]) -> (f64, u64) {
        self.load.fill(0.0);
        let capacity_cost: f64 = prices.iter().zip(&self.remaining).map(|(price, left)| price * *left as f64).sum();
        let (mut sum, mut size, mut work) = (capacity_cost, capacity_cost, 1);
        for edge in (0..problem.instance.edge_count()).filter(|at| !self.decided[*at]) {
            let direct = problem.instance.direct_bits(edge);
            let (mut best, mut best_value) = (NONE, direct);
            for candidate in problem.instance.candidate_range(edge) {
                work += 1;
                let value = problem.reduced_value(prices, edge, candidate as u32);
                if value > best_value && self.fits(problem.instance, candidate) {
                    (best, best_value) = (candidate as u32, value);
                }
            }
            if best != NONE {
                sum += best_value - direct;
                size += best_value;
                self.load[problem.instance.relay_of(best as usize)] += problem.instance.bits_of(best as usize);
            }
        }
        // As in `DualEval::bound`: rounding must not make the bound too low.
        let rounding = (problem.instance.edge_count() + prices.len() + 8) as f64 * f64::EPSILON * size;
        (self.node_gain as f64 + sum + rounding, work)
    }

    fn fits(&self, instance: &Instance, candidate: usize) -> bool {
        instance.rate_of(candidate).bits_per_sec() <= self.remaining[instance.relay_of(candidate)]
    }

    /// Pushes a level for the edge of rule 3; does nothing if no undecided edge has a choice left.
    fn branch(&mut self, problem: ReducedInstance<'_>, bound: f64, prices: Vec<f64>) {
        let open = (0..problem.instance.edge_count()).filter(|edge| !self.decided[*edge]);
        let scored = open.filter_map(|edge| Some((self.score(problem, &prices, edge)?, edge)));
        let Some((_, edge)) = scored.reduce(|best, next| if next.0 > best.0 { next } else { best }) else { return };
        let fitting =
            problem.instance.candidate_range(edge).filter(|candidate| self.fits(problem.instance, *candidate));
        let choices = fitting.map(|candidate| candidate as u32).chain([NONE]);
        let mut children: Vec<(f64, u32)> =
            choices.map(|choice| (problem.reduced_value(&prices, edge, choice), choice)).collect();
        children.sort_by(|a, b| a.0.total_cmp(&b.0));
        // The node's bound assumes the best choice of each edge. A worse choice lowers it by the difference of the
        // values.
        let best_value = children.last().map_or(0.0, |(value, _)| *value);
        children.iter_mut().for_each(|(value, _)| *value += bound - best_value);
        self.decided[edge] = true;
        self.stack.push(Level { edge, children, prices });
    }

    /// Score of an edge by rule 3; `None`: no candidate fits any more.
    fn score(&self, problem: ReducedInstance<'_>, prices: &[f64], edge: usize) -> Option<f64> {
        let (mut first, mut second, mut load) = (problem.instance.direct_bits(edge), f64::NEG_INFINITY, 0.0_f64);
        for candidate in
            problem.instance.candidate_range(edge).filter(|candidate| self.fits(problem.instance, *candidate))
        {
            let value = problem.reduced_value(prices, edge, candidate as u32);
            load = load.max(problem.instance.bits_of(candidate));
            second = second.max(value.min(first));
            first = first.max(value);
        }
        (load > 0.0).then(|| load / (first - second + self.mean_gain))
    }
}

/// Evaluations of a node's bound: the first one, and one after each subgradient step. Measured on 8 relays and 60
/// edges, 20 instances: with 4 to 6 the proofs take least time; with 3 or 9 half as much again.
const EVALUATIONS: usize = 6;
