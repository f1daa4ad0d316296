//! Counts what passes through a relay, or directly: bytes in each direction, and for how long data was blocked because the links did not
//! accept it.
//!
//! A flow is blocked from the moment it has a piece of data until the kernel has accepted all of it. The time during which at least one
//! flow is blocked distinguishes a saturated link from programs that send little, because programs do not announce how much they would
//! send.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;

use crate::tunnel::{PaceGrant, Pacer};

/// Counter of one relay, or of all direct flows.
#[derive(Debug, Default)]
pub(super) struct TrafficMeter(Mutex<MeterCounts>);

#[derive(Debug, Default)]
struct MeterCounts {
    up: u64,
    down: u64,
    blocked_flows: usize,
    blocked_since: Option<Instant>,
    blocked_time: Duration,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MeterReading {
    /// Bytes from clients.
    pub(super) up: u64,
    /// Bytes to clients.
    pub(super) down: u64,
    /// How long at least one flow was blocked.
    pub(super) blocked: Duration,
}

impl TrafficMeter {
    pub(super) fn read(&self) -> MeterReading {
        let counts = self.lock();
        let blocked_now = counts.blocked_since.map_or(Duration::ZERO, |since| since.elapsed());
        MeterReading { up: counts.up, down: counts.down, blocked: counts.blocked_time + blocked_now }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, MeterCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MeterCounts {
    fn block(&mut self) {
        self.blocked_flows += 1;
        self.blocked_since.get_or_insert_with(Instant::now);
    }

    fn unblock(&mut self) {
        self.blocked_flows -= 1;
        if self.blocked_flows == 0 {
            self.blocked_time += self.blocked_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
    }
}

/// Pacer of one flow that counts its bytes and never delays them.
#[derive(Debug)]
pub(super) struct MeteredPacer {
    meter: Arc<TrafficMeter>,
    is_blocked: bool,
}

impl MeteredPacer {
    pub(super) fn new(meter: Arc<TrafficMeter>) -> Self {
        Self { meter, is_blocked: false }
    }
}

impl Pacer for MeteredPacer {
    fn request(&mut self, is_up: bool, requested: DataSize) -> PaceGrant {
        // A new request means that the kernel has accepted the previous piece.
        if is_up && std::mem::take(&mut self.is_blocked) {
            self.meter.lock().unblock();
        }
        PaceGrant::Granted(requested)
    }

    fn settle(&mut self, is_up: bool, _: DataSize, sent: DataSize) {
        if sent.is_zero() {
            return;
        }
        let mut counts = self.meter.lock();
        if is_up {
            counts.up += sent.bytes();
            if !std::mem::replace(&mut self.is_blocked, true) {
                counts.block();
            }
        } else {
            counts.down += sent.bytes();
        }
    }
}

impl Drop for MeteredPacer {
    fn drop(&mut self) {
        if self.is_blocked {
            self.meter.lock().unblock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_as_blocked_until_the_kernel_accepts_a_piece() {
        let meter = Arc::new(TrafficMeter::default());
        let (mut one, mut other) = (MeteredPacer::new(Arc::clone(&meter)), MeteredPacer::new(Arc::clone(&meter)));
        let size = DataSize::from_bytes(1000);
        one.request(true, size);
        one.settle(true, size, DataSize::ZERO);
        one.settle(false, size, size);
        assert_eq!(meter.read(), MeterReading { up: 0, down: 1000, blocked: Duration::ZERO });
        one.settle(true, size, size);
        other.settle(true, size, size);
        std::thread::sleep(Duration::from_millis(20));
        one.request(true, size);
        let before = meter.read();
        assert!(before.blocked >= Duration::from_millis(20) && before.up == 2000, "{before:?}");
        drop(other);
        let after = meter.read().blocked;
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(meter.read().blocked, after);
    }
}
