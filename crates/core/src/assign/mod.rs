//! Assignment of relays to edges: BASS's matching (§IV-B, eq. 1 and 2) as a sparse generalized assignment problem.
//!
//! An [`Instance`] holds the free capacity of each relay, the rate that each edge (BASS: B-box) reaches without a
//! relay, and the rates that it measured through relays. A [`Solver`] returns, step by step, a better [`Matching`]
//! and an upper bound on the gain of every matching.
//!
//! ```text
//! maximize    Σ g(c, s) x(c, s)             g(c, s) = B_o(c, s) − B_o(c),  B_o(c, s) = min(B(c, s), B_o(s))
//! subject to  Σ_s x(c, s) ≤ 1               for each edge c
//!             Σ_c B_o(c, s) x(c, s) ≤ R(s)  for each relay s
//! ```
//!
//! 1. An edge has one relay or none: one connection carries one stream, so that an edge's traffic is not split.
//! 2. Candidates without a gain are left out, and so are those that exceed the relay's capacity alone.
//! 3. For any [`Prices`] λ per bit of the relays' capacity, U(λ) = Σ_s λ_s R(s) + Σ_c max(0, max_s (g − λ_s B_o(c,
//!    s))) is at least the gain of every matching (Lagrangian dual): the first sum is at least what a matching's
//!    edges pay for the capacity they use, and the second is at least what each of them keeps. Each result
//!    therefore comes with its largest possible distance from the optimum.
//! 4. The caller owns the clock ([`Solver::step`]). The same instance and the same amount of work give the same
//!    result; nothing is random.
//! 5. A repeated matching ([`WarmStart`]) begins with the last prices. For each edge that keeps its relay, it adds
//!    a bonus, the avoided [`SwitchingCost`].
//!
//! Stages of the [`Solver`]: `prices` (with `dual_bound` and `newton_step`) searches for the best prices,
//! `regret_greedy` builds a matching from them, `local_search` and `lns` improve it, and `branch_and_bound` proves a
//! small one optimal. `reduced_values` values the choices of an edge, and `assignment` is the matching under
//! construction.
//!
//! BASS's own algorithm enumerates all matchings, (k + 1)^n of them. It is here for comparison
//! ([`bass_algorithm_1`]), with two other baselines. A general solver was rejected: the linear program of 500
//! relays and 100,000 edges takes HiGHS 15 s, and its solution is fractional.

mod assignment;
mod baselines;
mod branch_and_bound;
mod dual_bound;
mod instance;
mod lns;
mod local_search;
mod matching;
mod newton_step;
mod prices;
mod reduced_values;
mod regret_greedy;
mod solver;
#[cfg(test)]
mod tests;

pub use baselines::{bass_algorithm_1, bass_random, density_greedy};
pub use instance::{Candidate, Instance, InstanceError};
pub use matching::Matching;
pub use prices::Prices;
pub use reduced_values::SwitchingCost;
pub use solver::{Progress, Solver, WarmStart};
