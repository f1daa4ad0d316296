//! The one contract between everything that decides and everything that acts.
//!
//! A machine is plain state. A driver (the pump in `download`, the world in `sim`, the replay in `marline`) tells it what
//! happened, lets time pass, and carries out what it asks for:
//!
//! 1. After each [`handle`](Machine::handle) or [`tick`](Machine::tick), drain [`poll`](Machine::poll) to `None`
//!    before the next call.
//! 2. Time never goes back; an older `now` is clamped to the newest one seen.
//! 3. After `tick(now)` and a drain, [`deadline`](Machine::deadline) lies after `now`, or there is none.
//! 4. The same configuration, seed and inputs give the same outputs.
//! 5. Trouble on the network is an input, never an `Err`.
//! 6. The result of a command comes back as an input.
//!
//! Callbacks and futures were not used: a decision taken inside a callback cannot be replayed, and a future hides
//! the moment at which it decides. The contract's test kit is `marline_sim::contract`.

use crate::units::Instant;

/// A pure decision maker. See the [module](self) for the rules that drivers and machines keep.
pub trait Machine {
    /// What the driver reports.
    type Input;
    /// What the driver is to do.
    type Output;
    /// Why the machine wants to be woken.
    type Reason: Copy + core::fmt::Debug;

    /// Something happened at `now`.
    fn handle(&mut self, now: Instant, input: Self::Input);

    /// Time has reached `now`.
    fn tick(&mut self, now: Instant);

    /// The next thing to do, `None` when there is nothing left.
    fn poll(&mut self) -> Option<Self::Output>;

    /// When to call [`tick`](Machine::tick) next, and why.
    fn deadline(&self) -> Option<(Instant, Self::Reason)>;
}
