//! What goes through a relay, and whether more wants to.
//!
//! In: pieces of flows as they are carried. Out: bytes each way, and for how long data waited that the links did not take.
//!
//! A flow waits from the moment at which it has a piece until all of it is with the kernel. The time in which at least one flow
//! waits is what tells a link that is full from a program that sends little: nobody says how much he would send.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;

use crate::tunnel::{Grant, Pace};

/// What passes one way out.
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    up: u64,
    down: u64,
    waiting: usize,
    since: Option<Instant>,
    waited: Duration,
}

/// What has passed since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Bytes from programs.
    pub(super) up: u64,
    /// Bytes to them.
    pub(super) down: u64,
    /// For how long something waited to go.
    pub(super) waited: Duration,
}

impl Meter {
    pub(super) fn read(&self) -> Reading {
        let counts = self.lock();
        let open = counts.since.map_or(Duration::ZERO, |since| since.elapsed());
        Reading { up: counts.up, down: counts.down, waited: counts.waited + open }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn wait(&mut self) {
        self.waiting += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    fn go(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.waited += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
    }
}

/// One flow, as fast as both ends can.
#[derive(Debug)]
pub(super) struct Counted {
    meter: Arc<Meter>,
    waits: bool,
}

impl Counted {
    pub(super) fn new(meter: Arc<Meter>) -> Self {
        Self { meter, waits: false }
    }
}

impl Pace for Counted {
    fn ask(&mut self, is_up: bool, wanted: DataSize) -> Grant {
        // The piece before is with the kernel.
        if is_up && std::mem::take(&mut self.waits) {
            self.meter.lock().go();
        }
        Grant::Now(wanted)
    }

    fn passed(&mut self, is_up: bool, _: DataSize, passed: DataSize) {
        if passed.is_zero() {
            return;
        }
        let mut counts = self.meter.lock();
        if is_up {
            counts.up += passed.bytes();
            if !std::mem::replace(&mut self.waits, true) {
                counts.wait();
            }
        } else {
            counts.down += passed.bytes();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.waits {
            self.meter.lock().go();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_while_a_piece_is_not_gone() {
        let meter = Arc::new(Meter::default());
        let (mut one, mut other) = (Counted::new(Arc::clone(&meter)), Counted::new(Arc::clone(&meter)));
        let size = DataSize::from_bytes(1000);
        one.ask(true, size);
        one.passed(true, size, DataSize::ZERO);
        one.passed(false, size, size);
        assert_eq!(meter.read(), Reading { up: 0, down: 1000, waited: Duration::ZERO });
        one.passed(true, size, size);
        other.passed(true, size, size);
        std::thread::sleep(Duration::from_millis(20));
        one.ask(true, size);
        let before = meter.read();
        assert!(before.waited >= Duration::from_millis(20) && before.up == 2000, "{before:?}");
        drop(other);
        let after = meter.read().waited;
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(meter.read().waited, after);
    }
}
