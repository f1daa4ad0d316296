//! Which relay for which box: BASS's matching (§IV-B, eq. 1 and 2) as a sparse generalised assignment problem.
//!
//! In: an [`Instance`]: what relays have left, what boxes have alone and through the relays that they measured. Out: from a
//! [`Solver`], step by step, a [`Plan`] and a bound that no plan exceeds.
//!
//! ```text
//! most    Σ g(c, s) x(c, s)             g(c, s) = B_o(c, s) − B_o(c),  B_o(c, s) = min(B(c, s), B_o(s))
//! so that Σ_s x(c, s) ≤ 1               for each box c
//!         Σ_c B_o(c, s) x(c, s) ≤ R(s)  for each relay s
//! ```
//!
//! 1. A box has one relay or none: one connection carries one stream, so that no box is split.
//! 2. Candidates without a gain are no choice, nor are those that a relay could not carry alone.
//! 3. For any [`Prices`] λ of the relays' bits, U(λ) = Σ_s λ_s R(s) + Σ_c max(0, max_s (g − λ_s B_o(c, s))) is no less than the
//!    gain of any plan: whoever pays pays at least the relays' worth, and nobody does better than choosing freely. So each answer
//!    comes with how far it may be from the best one.
//! 4. The caller owns the clock ([`Solver::step`]). The same instance and the same sum of work give the same answer: there is no
//!    chance in it.
//! 5. A re-matching ([`Before`]) begins with the last prices and counts for each box that stays where it is what that is worth ([`Stay`]).
//!
//! BASS's own algorithm generates all plans, (k + 1)^n of them; it is here to be compared with ([`algorithm_1`]), with two others.
//! No general solver is used: a linear program of 500 relays and 100,000 boxes takes HiGHS 15 s, and its answer is no plan yet.

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
