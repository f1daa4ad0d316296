//! The policy, driven by the driver and looked at by whoever answers questions.
//!
//! In: the machine. Out: two handles on it: one that is a machine itself, and one that reads.
//!
//! A lock is taken for each call of the machine, by the one thread that drives it; it is contended only in the moment in
//! which somebody asks, and costs some nanoseconds otherwise. Joules and radio states as part of each snapshot were not
//! used: the driver would have to know which policy it drives.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_core::machine::Machine;
use marline_core::paths::{Config, Input, Output, Paths};
use marline_core::units::Instant;

/// The policy, shared.
#[derive(Clone, Debug)]
pub struct SharedPolicy(Arc<Mutex<Paths>>);

impl SharedPolicy {
    /// A policy that has heard nothing yet.
    pub fn new(config: Config) -> Self {
        Self(Arc::new(Mutex::new(Paths::new(config))))
    }

    /// Looks at it. The driver waits meanwhile.
    pub fn read<T>(&self, reader: impl FnOnce(&Paths) -> T) -> T {
        reader(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Paths> {
        // Whoever panicked while he looked has changed nothing.
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
