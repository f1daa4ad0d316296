//! Contract between the state machines of this crate and the drivers that run them.
//!
//! A machine is plain state without I/O. A driver (an event loop in a driver crate, the simulated world in `sim`,
//! the replay of a decision log) reports events to it, advances its time, and executes the commands that it
//! returns. Both sides keep these rules:
//!
//! 1. After each [`handle`](Machine::handle) or [`tick`](Machine::tick), drain [`poll`](Machine::poll) to `None`
//!    before the next call.
//! 2. Time does not go back; a machine clamps an older `now` to the newest one it has seen.
//! 3. After `tick(now)` and a drain, [`deadline`](Machine::deadline) is later than `now`, or there is none.
//! 4. The same configuration, seed and inputs give the same outputs.
//! 5. Network failures are inputs, never an `Err`.
//! 6. The result of a command comes back as an input.
//!
//! Callbacks and futures were rejected: a decision inside a callback cannot be replayed, and a future hides the
//! moment at which it decides. The test kit of this contract is `marline_sim::contract`.

use crate::units::Instant;

/// A deterministic state machine. See the [module](self) for the rules that drivers and machines keep.
pub trait Machine {
    /// Events and results that the driver reports.
    type Input;
    /// Commands that the driver executes.
    type Output;
    /// Purpose of a [`deadline`](Machine::deadline), for logs and tests.
    type Reason: Copy + core::fmt::Debug;

    /// Processes an event that occurred at `now`.
    fn handle(&mut self, now: Instant, input: Self::Input);

    /// Advances the time to `now` and processes what is due.
    fn tick(&mut self, now: Instant);

    /// Returns the next command; `None` when the queue is empty.
    fn poll(&mut self) -> Option<Self::Output>;

    /// Returns when to call [`tick`](Machine::tick) next, and for which purpose; `None`: only after the next event.
    fn deadline(&self) -> Option<(Instant, Self::Reason)>;
}
