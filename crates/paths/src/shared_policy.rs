//! The policy's state machine, shared between the driver and readers.
//!
//! [`SharedPolicy`] is a machine itself, which the driver runs, and clones of it serve readers such as the control
//! socket.
//!
//! Each call takes a lock. It is contended only while a reader holds it, and costs some nanoseconds otherwise. Energy
//! and radio states as part of each snapshot would make the driver depend on the kind of its policy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_core::machine::Machine;
use marline_core::paths::{Config, Input, Output, Paths};
use marline_core::units::Instant;

/// A shared handle of the policy.
#[derive(Clone, Debug)]
pub struct SharedPolicy(Arc<Mutex<Paths>>);

impl SharedPolicy {
    /// Creates a policy that has not received any input.
    pub fn new(config: Config) -> Self {
        Self(Arc::new(Mutex::new(Paths::new(config))))
    }

    /// Reads the policy. The driver waits meanwhile.
    pub fn read<T>(&self, reader: impl FnOnce(&Paths) -> T) -> T {
        reader(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Paths> {
        // A reader that panicked has changed nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine for SharedPolicy {
    type Input = Input;
    type Output = Output;
    type Reason = <Paths as Machine>::Reason;

    fn handle(&mut self, now: Instant, input: Input) {
        self.lock().handle(now, input);
    }

    fn tick(&mut self, now: Instant) {
        self.lock().tick(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.lock().poll()
    }

    fn deadline(&self) -> Option<(Instant, Self::Reason)> {
        self.lock().deadline()
    }
}
