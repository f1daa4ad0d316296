//! One direction of a link: queue, transmitter, loss, delay line and statistics.

use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::spec::Loss;

use super::Packet;
use super::delay::DelayLine;
use super::loss::LossProcess;
use super::policer::Policer;
use super::queue::Queue;
use super::stats::{DirectionStats, PacketCount};
use super::transmitter::Transmitter;

#[derive(Debug)]
pub(super) struct HalfLink<P> {
    mtu: DataSize,
    queue: Queue<P>,
    transmitter: Transmitter,
    /// The packet being transmitted.
    transmitting: Option<P>,
    /// Start of the current transmission.
    transmit_start: Instant,
    loss: LossProcess,
    policer: Option<Policer>,
    /// While down, all transmitted packets are lost.
    is_down: bool,
    delay_line: DelayLine<P>,
    stats: DirectionStats,
}

impl<P: Packet> HalfLink<P> {
    pub(super) fn new(
        mtu: DataSize,
        queue: Queue<P>,
        transmitter: Transmitter,
        loss: LossProcess,
        policer: Option<Policer>,
        delay_line: DelayLine<P>,
    ) -> Self {
        let (transmitting, transmit_start, is_down) = (None, Instant::ZERO, false);
        let stats = DirectionStats::default();
        Self { mtu, queue, transmitter, transmitting, transmit_start, loss, policer, is_down, delay_line, stats }
    }

    pub(super) fn push(&mut self, packet: P, now: Instant) {
        let packet_count = PacketCount::single(packet.size());
        self.stats.offered += packet_count;
        // A packet that finds the transmitter idle is always accepted, whatever the limit of the queue.
        if packet_count.bytes > self.mtu {
            self.stats.dropped_oversize += packet_count;
        } else if self.policer.as_mut().is_some_and(|policer| !policer.conforms(&packet, now)) {
            self.stats.dropped_policer += packet_count;
        } else if (self.transmitting.is_none() && self.queue.is_empty()) || self.queue.fits(packet_count.bytes) {
            self.queue.push(packet, now);
        } else {
            self.stats.dropped_queue_full += packet_count;
        }
    }

    /// Transmits everything that is finished by `now`, on a link with its own transmitter.
    pub(super) fn transmit_until(&mut self, now: Instant) {
        loop {
            if self.transmitting.is_none() {
                let Some((_, since)) = self.queue.front() else { return };
                let start = since.max(self.transmitter.free_at());
                if !self.start_packet(start) {
                    continue;
                }
                self.transmitter.start_packet(self.pending_size(), start);
            }
            let Some(end) = self.transmitter.finish_time().filter(|end| *end <= now) else { return };
            self.transmitter.on_finished(end);
            self.stats.airtime += end.since(self.transmit_start);
            self.on_transmitted(end);
        }
    }

    /// Since when there has been a packet to transmit.
    pub(super) fn pending_since(&self) -> Option<Instant> {
        if self.transmitting.is_some() {
            return Some(self.transmit_start);
        }
        self.queue.front().map(|(_, since)| since)
    }

    /// Size of the packet to be transmitted next.
    pub(super) fn pending_size(&self) -> DataSize {
        let next = self.transmitting.as_ref().or_else(|| self.queue.front().map(|(packet, _)| packet));
        next.map_or(DataSize::ZERO, Packet::size)
    }

    /// Whether the next packet is certain, because CoDel cannot drop it any more.
    pub(super) fn is_next_certain(&self) -> bool {
        self.transmitting.is_some() || !self.queue.has_codel()
    }

    /// Dequeues the next packet and starts its transmission at `start`; false if there is none.
    pub(super) fn start_packet(&mut self, start: Instant) -> bool {
        if self.transmitting.is_some() {
            return true;
        }
        let dequeued = self.queue.dequeue(start);
        self.stats.dropped_codel += dequeued.dropped;
        if let Some((packet, since)) = dequeued.packet {
            self.stats.max_queue_delay = self.stats.max_queue_delay.max(start.since(since));
            self.transmitting = Some(packet);
            self.transmit_start = start;
        }
        self.transmitting.is_some()
    }

    /// The transmission of the current packet has ended at `end`.
    pub(super) fn on_transmitted(&mut self, end: Instant) {
        let Some(packet) = self.transmitting.take() else { return };
        // The loss process advances even while the link is down, so that the n-th packet always gets the n-th
        // decision.
        let lost = self.loss.next_is_lost();
        if self.is_down {
            self.stats.dropped_down += PacketCount::single(packet.size());
        } else if lost {
            self.stats.dropped_loss += PacketCount::single(packet.size());
        } else {
            self.delay_line.push(packet, end);
        }
    }

    /// Drops the current packet after too many attempts.
    pub(super) fn drop_transmitting(&mut self) {
        if let Some(packet) = self.transmitting.take() {
            self.stats.dropped_loss += PacketCount::single(packet.size());
        }
    }

    pub(super) fn deliver(&mut self, now: Instant) -> Option<(Instant, P)> {
        let (due, packet) = self.delay_line.pop(now)?;
        self.stats.delivered += PacketCount::single(packet.size());
        Some((due, packet))
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delay_line.next_due()
    }

    /// Lower limit of the due time of packets transmitted by `at`.
    pub(super) fn earliest_due(&self, at: Instant) -> Instant {
        self.delay_line.earliest_due(at)
    }

    pub(super) fn has_packets(&self) -> bool {
        self.transmitting.is_some() || !self.queue.is_empty()
    }

    /// Next possible delivery, from the delay line or from the half link's own transmitter.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let finish_due = self
            .transmitting
            .as_ref()
            .and_then(|_| self.transmitter.finish_time())
            .map(|end| self.earliest_due(end));
        [self.next_due(), finish_due].into_iter().flatten().min()
    }

    pub(super) fn set_rate(&mut self, rate: Bitrate, now: Instant) {
        self.transmitter.set_rate(rate, now);
    }

    pub(super) fn set_held(&mut self, is_held: bool, now: Instant) {
        self.transmitter.set_held(is_held, now);
    }

    pub(super) fn set_down(&mut self, is_down: bool) {
        self.is_down = is_down;
    }

    pub(super) fn set_loss(&mut self, loss: Loss) {
        self.loss.set_model(loss);
    }

    pub(super) fn set_delay(&mut self, delay: Duration) {
        self.delay_line.set_delay(delay);
    }

    pub(super) fn set_jitter(&mut self, jitter: Duration) {
        self.delay_line.set_jitter(jitter);
    }

    pub(super) fn stats(&self) -> DirectionStats {
        let queued = self.queue.count();
        let serving =
            self.transmitting.as_ref().map_or(PacketCount::default(), |packet| PacketCount::single(packet.size()));
        DirectionStats { queued, in_link: queued + serving + self.delay_line.count(), ..self.stats }
    }
}
