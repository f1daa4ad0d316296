//! First-in-first-out queue in front of the transmitter, limited in bytes and, with CoDel, in delay.
//!
//! The packet in transmission is not part of the queue. Therefore a packet is always accepted when the transmitter
//! is idle.

use std::collections::VecDeque;

use marline_core::units::{DataSize, Instant};

use super::Packet;
use super::codel::CoDel;
use super::stats::PacketCount;

/// A packet with its arrival time.
#[derive(Debug)]
struct QueuedPacket<P> {
    packet: P,
    enqueued_at: Instant,
}

#[derive(Debug)]
pub(super) struct Queue<P> {
    packets: VecDeque<QueuedPacket<P>>,
    size: DataSize,
    limit: DataSize,
    codel: Option<CoDel>,
}

/// Result of taking a packet from the queue.
#[derive(Debug)]
pub(super) struct Dequeued<P> {
    /// The packet and its arrival time; `None` if CoDel dropped everything.
    pub(super) packet: Option<(P, Instant)>,
    /// Packets that CoDel dropped before it.
    pub(super) dropped: PacketCount,
}

impl<P: Packet> Queue<P> {
    /// A queue of at most `limit` bytes; with CoDel if `codel` has the size of the largest packet.
    pub(super) fn new(limit: DataSize, codel: Option<DataSize>) -> Self {
        Self { packets: VecDeque::new(), size: DataSize::ZERO, limit, codel: codel.map(CoDel::new) }
    }

    /// Whether a packet of this size fits into the queue.
    pub(super) fn fits(&self, size: DataSize) -> bool {
        self.size + size <= self.limit
    }

    pub(super) fn push(&mut self, packet: P, now: Instant) {
        self.size += packet.size();
        self.packets.push_back(QueuedPacket { packet, enqueued_at: now });
    }

    /// Takes the packet to be transmitted from `now` on.
    pub(super) fn dequeue(&mut self, now: Instant) -> Dequeued<P> {
        let mut dropped = PacketCount::default();
        loop {
            let Some(QueuedPacket { packet, enqueued_at: since }) = self.packets.pop_front() else {
                if let Some(codel) = &mut self.codel {
                    codel.on_empty();
                }
                return Dequeued { packet: None, dropped };
            };
            self.size -= packet.size();
            let remaining = self.size;
            let drops = |codel: &mut CoDel| codel.should_drop(now.since(since), remaining, now);
            if !self.codel.as_mut().is_some_and(drops) {
                return Dequeued { packet: Some((packet, since)), dropped };
            }
            dropped += PacketCount::single(packet.size());
        }
    }

    /// The first packet and its arrival time.
    pub(super) fn front(&self) -> Option<(&P, Instant)> {
        self.packets.front().map(|queued| (&queued.packet, queued.enqueued_at))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn has_codel(&self) -> bool {
        self.codel.is_some()
    }

    pub(super) fn count(&self) -> PacketCount {
        PacketCount { packets: self.packets.len() as u64, bytes: self.size }
    }
}
