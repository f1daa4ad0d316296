//! One direction of a link: queue, server, loss, delay line, and the books.

use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::spec::Loss;

use super::Packet;
use super::delay::DelayLine;
use super::loss::LossProcess;
use super::policer::Policer;
use super::queue::Queue;
use super::server::Server;
use super::stats::{Count, Stats};

#[derive(Debug)]
pub(super) struct Lane<P> {
    mtu: DataSize,
    queue: Queue<P>,
    server: Server,
    /// The packet that is being sent.
    serving: Option<P>,
    /// When sending it began.
    serving_since: Instant,
    loss: LossProcess,
    policer: Option<Policer>,
    /// Whatever is sent vanishes.
    vanishing: bool,
    line: DelayLine<P>,
    stats: Stats,
}

impl<P: Packet> Lane<P> {
    pub(super) fn new(
        mtu: DataSize,
        queue: Queue<P>,
        server: Server,
        loss: LossProcess,
        policer: Option<Policer>,
        line: DelayLine<P>,
    ) -> Self {
        let (serving, serving_since, vanishing) = (None, Instant::ZERO, false);
        let stats = Stats::default();
        Self { mtu, queue, server, serving, serving_since, loss, policer, vanishing, line, stats }
    }

    pub(super) fn push(&mut self, packet: P, now: Instant) {
        let one = Count::one(packet.size());
        self.stats.pushed += one;
        if one.size > self.mtu {
            self.stats.dropped_large += one;
        } else if self.policer.as_mut().is_some_and(|policer| !policer.passes(&packet, now)) {
            self.stats.dropped_police += one;
        } else if (self.serving.is_none() && self.queue.is_empty()) || self.queue.has_room(one.size) {
            self.queue.push(packet, now);
        } else {
            self.stats.dropped_full += one;
        }
    }

    /// Sends all that is sent by `now`, on a server of its own.
    pub(super) fn serve(&mut self, now: Instant) {
        loop {
            if self.serving.is_none() {
                let Some((_, since)) = self.queue.front() else { return };
                let start = since.max(self.server.free_at());
                if !self.take_up(start) {
                    continue;
                }
                self.server.begin(self.ready_size(), start);
            }
            let Some(end) = self.server.end().filter(|end| *end <= now) else { return };
            self.server.finish(end);
            self.stats.airtime += end.since(self.serving_since);
            self.sent(end);
        }
    }

    /// Since when there is something to send.
    pub(super) fn ready_since(&self) -> Option<Instant> {
        if self.serving.is_some() {
            return Some(self.serving_since);
        }
        self.queue.front().map(|(_, since)| since)
    }

    /// The size of what is to be sent next.
    pub(super) fn ready_size(&self) -> DataSize {
        let next = self.serving.as_ref().or_else(|| self.queue.front().map(|(packet, _)| packet));
        next.map_or(DataSize::ZERO, Packet::size)
    }

    /// Whether what is to be sent next will be that, and not what CoDel leaves of it.
    pub(super) fn is_certain(&self) -> bool {
        self.serving.is_some() || !self.queue.has_codel()
    }

    /// Takes the next packet out of the queue to send it from `start` on; false if there is none.
    pub(super) fn take_up(&mut self, start: Instant) -> bool {
        if self.serving.is_some() {
            return true;
        }
        let taken = self.queue.take(start);
        self.stats.dropped_codel += taken.dropped;
        if let Some((packet, since)) = taken.packet {
            self.stats.max_queue_delay = self.stats.max_queue_delay.max(start.since(since));
            self.serving = Some(packet);
            self.serving_since = start;
        }
        self.serving.is_some()
    }

    /// The packet has left the server at `end`.
    pub(super) fn sent(&mut self, end: Instant) {
        let Some(packet) = self.serving.take() else { return };
        // The loss model is asked even while the link is down, so that the n-th packet meets the n-th decision.
        let lost = self.loss.loses();
        if self.vanishing {
            self.stats.dropped_down += Count::one(packet.size());
        } else if lost {
            self.stats.dropped_loss += Count::one(packet.size());
        } else {
            self.line.push(packet, end);
        }
    }

    /// The packet was tried too often.
    pub(super) fn give_up(&mut self) {
        if let Some(packet) = self.serving.take() {
            self.stats.dropped_loss += Count::one(packet.size());
        }
    }

    pub(super) fn deliver(&mut self, now: Instant) -> Option<(Instant, P)> {
        let (due, packet) = self.line.pop(now)?;
        self.stats.delivered += Count::one(packet.size());
        Some((due, packet))
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.line.due()
    }

    /// Before this, nothing that is sent by `at` is due.
    pub(super) fn earliest(&self, at: Instant) -> Instant {
        self.line.earliest(at)
    }

    pub(super) fn is_serving(&self) -> bool {
        self.serving.is_some() || !self.queue.is_empty()
    }

    /// When something may be due next, from the delay line or from a server of its own.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let served = self.serving.as_ref().and_then(|_| self.server.end()).map(|end| self.earliest(end));
        [self.due(), served].into_iter().flatten().min()
    }

    pub(super) fn set_rate(&mut self, rate: Bitrate, now: Instant) {
        self.server.set_rate(rate, now);
    }

    pub(super) fn set_held(&mut self, held: bool, now: Instant) {
        self.server.set_held(held, now);
    }

    pub(super) fn set_vanishing(&mut self, vanishing: bool) {
        self.vanishing = vanishing;
    }

    pub(super) fn set_loss(&mut self, loss: Loss) {
        self.loss.set(loss);
    }

    pub(super) fn set_delay(&mut self, delay: Duration) {
        self.line.set_delay(delay);
    }

    pub(super) fn set_jitter(&mut self, jitter: Duration) {
        self.line.set_jitter(jitter);
    }

    pub(super) fn stats(&self) -> Stats {
        let queued = self.queue.count();
        let serving = self.serving.as_ref().map_or(Count::default(), |packet| Count::one(packet.size()));
        Stats { queued, inside: queued + serving + self.line.count(), ..self.stats }
    }
}
