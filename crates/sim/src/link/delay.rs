//! Propagation delay of one direction: a constant delay with jitter, in order unless `reorder` is set.
//!
//! Jitter is uniform between minus and plus its value. To keep the order, a packet waits for the one before it, as
//! on a real first-in-first-out path; with `reorder` each packet keeps its own delay.

use std::collections::VecDeque;

use marline_core::units::{DataSize, Duration, Instant};

use crate::rng::{Purpose, RandomStream};

use super::stats::PacketCount;
use super::{Direction, Packet};

#[derive(Debug)]
pub(super) struct DelayLine<P> {
    /// Sorted by due time.
    in_transit: VecDeque<(Instant, P)>,
    size: DataSize,
    delay: Duration,
    jitter: Duration,
    allows_reordering: bool,
    last_due: Instant,
    rng: RandomStream,
}

impl<P: Packet> DelayLine<P> {
    pub(super) fn new(
        delay: Duration,
        jitter: Duration,
        reorder: bool,
        seed: u64,
        name: &str,
        direction: Direction,
    ) -> Self {
        let rng = RandomStream::new(seed, name, direction.index() as u64, Purpose::Jitter);
        let (in_transit, size, last_due) = (VecDeque::new(), DataSize::ZERO, Instant::ZERO);
        Self { in_transit, size, delay, jitter, allows_reordering: reorder, last_due, rng }
    }

    pub(super) fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    pub(super) fn set_jitter(&mut self, jitter: Duration) {
        self.jitter = jitter;
    }

    /// Takes a packet that the transmitter has finished at `at`.
    pub(super) fn push(&mut self, packet: P, at: Instant) {
        self.size += packet.size();
        let mut due = at + self.delay;
        if !self.jitter.is_zero() {
            let width = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX).saturating_mul(2);
            // Never before it was sent, even if a change made the delay shorter than the jitter.
            due = (due + Duration::from_nanos(self.rng.below(width.saturating_add(1))) - self.jitter).max(at);
        }
        if self.allows_reordering {
            let index = self.in_transit.partition_point(|(other, _)| *other <= due);
            self.in_transit.insert(index, (due, packet));
            return;
        }
        self.last_due = due.max(self.last_due);
        self.in_transit.push_back((self.last_due, packet));
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<(Instant, P)> {
        self.next_due().filter(|due| *due <= now)?;
        let (due, packet) = self.in_transit.pop_front()?;
        self.size -= packet.size();
        Some((due, packet))
    }

    /// When the first packet is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.in_transit.front().map(|(due, _)| *due)
    }

    /// Lower limit of the due time of a packet that is sent at `at`.
    pub(super) fn earliest_due(&self, at: Instant) -> Instant {
        at + self.delay.saturating_sub(self.jitter)
    }

    pub(super) fn count(&self) -> PacketCount {
        PacketCount { packets: self.in_transit.len() as u64, bytes: self.size }
    }
}
