//! What waits for the server: first in, first out, up to a number of bytes; with CoDel also up to a time.
//!
//! The packet that is being sent is not in the queue. A packet that finds the server idle is therefore always taken.

use std::collections::VecDeque;

use marline_core::units::{DataSize, Instant};

use super::Packet;
use super::codel::CoDel;
use super::stats::Count;

/// A packet and when it came.
#[derive(Debug)]
struct Waiting<P> {
    packet: P,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct Queue<P> {
    waiting: VecDeque<Waiting<P>>,
    size: DataSize,
    limit: DataSize,
    codel: Option<CoDel>,
}

/// What taking from the queue gave.
#[derive(Debug)]
pub(super) struct Taken<P> {
    /// The packet to send and when it had come; none when CoDel dropped all there was.
    pub(super) packet: Option<(P, Instant)>,
    /// What CoDel dropped before it.
    pub(super) dropped: Count,
}

impl<P: Packet> Queue<P> {
    /// A queue of at most `limit`; with CoDel if the largest packet is given for it.
    pub(super) fn new(limit: DataSize, codel: Option<DataSize>) -> Self {
        Self { waiting: VecDeque::new(), size: DataSize::ZERO, limit, codel: codel.map(CoDel::new) }
    }

    /// Whether a packet of this size may wait.
    pub(super) fn has_room(&self, size: DataSize) -> bool {
        self.size + size <= self.limit
    }

    pub(super) fn push(&mut self, packet: P, now: Instant) {
        self.size += packet.size();
        self.waiting.push_back(Waiting { packet, since: now });
    }

    /// Takes the packet to be sent at `now`.
    pub(super) fn take(&mut self, now: Instant) -> Taken<P> {
        let mut dropped = Count::default();
        loop {
            let Some(Waiting { packet, since }) = self.waiting.pop_front() else {
                if let Some(codel) = &mut self.codel {
                    codel.on_empty();
                }
                return Taken { packet: None, dropped };
            };
            self.size -= packet.size();
            let left = self.size;
            let drops = |codel: &mut CoDel| codel.drops(now.since(since), left, now);
            if !self.codel.as_mut().is_some_and(drops) {
                return Taken { packet: Some((packet, since)), dropped };
            }
            dropped += Count::one(packet.size());
        }
    }

    /// The first packet and when it came.
    pub(super) fn front(&self) -> Option<(&P, Instant)> {
        self.waiting.front().map(|waiting| (&waiting.packet, waiting.since))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn has_codel(&self) -> bool {
        self.codel.is_some()
    }

    pub(super) fn count(&self) -> Count {
        Count { packets: self.waiting.len() as u64, size: self.size }
    }
}
