//! Propagation delay of one direction of a simulated link: a constant delay plus or minus a random jitter.
//!
//! The jitter of each packet is uniformly distributed between minus and plus the configured value. Unless `reorder` is
//! set, packets leave in the order in which they were sent: a packet that would overtake the previous one is delayed
//! until that one is due, as on a real first-in-first-out path. With `reorder`, each packet keeps its own delay.

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

    /// Adds a packet whose last bit was transmitted at `at`.
    pub(super) fn push(&mut self, packet: P, at: Instant) {
        self.size += packet.size();
        let mut due = at + self.delay;
        if !self.jitter.is_zero() {
            let width = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX).saturating_mul(2);
            // Not before `at`. The delay is shorter than the jitter if `set_delay` or `set_jitter` made it so; the
            // initial values do not permit that.
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

    /// Removes the first packet and returns it with its due time; `None`: no packet is due at `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Instant, P)> {
        if self.next_due()? > now {
            return None;
        }
        let (due, packet) = self.in_transit.pop_front()?;
        self.size -= packet.size();
        Some((due, packet))
    }

    /// Due time of the first packet; `None`: no packet is in transit.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.in_transit.front().map(|(due, _)| *due)
    }

    /// Earliest possible due time of a packet whose last bit is transmitted at `at`, with the largest negative jitter and
    /// without waiting for a previous packet.
    pub(super) fn earliest_due(&self, at: Instant) -> Instant {
        at + self.delay.saturating_sub(self.jitter)
    }

    /// Packets in transit.
    pub(super) fn count(&self) -> PacketCount {
        PacketCount { packets: self.in_transit.len() as u64, bytes: self.size }
    }
}
