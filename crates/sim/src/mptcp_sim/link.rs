//! One running link: its queue towards the client, and what becomes of each packet that the server sends.
//!
//! In: pieces of some packets, as they are sent. Out: that they were dropped, or when they arrive, or that they never do.
//!
//! 1. One drop-tail queue for all subflows over the link, in bytes on the wire; it takes a piece or drops it.
//! 2. A piece leaves when everything before it has left, by the [`Course`]; half a round trip later it arrives.
//! 3. From the client there is half a round trip and no queue: acknowledgements and requests are small.
//! 4. A link without carrier, or one that swallows everything, takes pieces as if nothing were.

use std::collections::VecDeque;

use marline_core::link::LinkKind;
use marline_core::units::{DataSize, Duration, Instant, Ratio};

use super::rate_schedule::RateSchedule;
use crate::rng::{Purpose, RandomStream};
use crate::spec::{LinkSpec, QueueLimit};

/// A running link.
#[derive(Clone, Debug)]
pub(super) struct QueuedLink {
    pub(super) name: String,
    pub(super) kind: LinkKind,
    pub(super) rates: RateSchedule,
    pub(super) rtt: Duration,
    /// Whether the interface has carrier.
    pub(super) has_carrier: bool,
    queue_limit: u64,
    /// When the last byte of the queue leaves.
    busy_until: Instant,
    /// When each piece leaves, and its size.
    queue: VecDeque<(Instant, u64)>,
    queued_bytes: u64,
    /// Of a packet.
    loss_rate: Ratio,
    rng: RandomStream,
    /// Bytes on the wire that came, and that went.
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// What becomes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendOutcome {
    /// The queue had no room.
    Dropped,
    /// It was sent and is lost on its way.
    Lost,
    /// It arrives then.
    Arrives(Instant),
}

impl QueuedLink {
    pub(super) fn new(spec: &LinkSpec, rates: RateSchedule, seed: u64, horizon: Duration) -> Self {
        let limit = match spec.queue_limit() {
            QueueLimit::Size(size) => size.bytes(),
            // As many bytes as the first rate has; what begins with nothing has its mean's.
            QueueLimit::Time(time) => {
                let first = rates.rate_at(Instant::ZERO).max(rates.mean_rate(horizon) / 4);
                (first * time).bytes()
            }
        };
        Self {
            name: spec.name.clone(),
            kind: spec.kind,
            rates,
            rtt: spec.rtt,
            has_carrier: true,
            queue_limit: limit.max(MIN_QUEUE),
            busy_until: Instant::ZERO,
            queue: VecDeque::new(),
            queued_bytes: 0,
            loss_rate: spec.loss.mean(),
            rng: RandomStream::new(seed, &spec.name, 0, Purpose::Loss),
            received: 0,
            sent: 0,
        }
    }

    /// One way.
    pub(super) fn one_way_delay(&self) -> Duration {
        self.rtt / 2
    }

    /// Whether a packet that is sent now from the client arrives.
    pub(super) fn is_up(&self, now: Instant) -> bool {
        self.has_carrier && self.rates.is_up(now)
    }

    /// Whether the server's answer to it arrives as well: on a link that holds everything back it waits, and a join is
    /// given up before.
    pub(super) fn carries_response(&self, now: Instant) -> bool {
        self.is_up(now) && !self.rates.rate_at(now).is_zero()
    }

    /// The server sends a piece of so many packets and so many bytes on the wire.
    pub(super) fn send(&mut self, now: Instant, bytes: u64, packets: u64) -> SendOutcome {
        while let Some((_, size)) = self.queue.front().filter(|(leaves, _)| *leaves <= now) {
            self.queued_bytes -= size;
            self.queue.pop_front();
        }
        if self.queued_bytes > 0 && self.queued_bytes + bytes > self.queue_limit {
            return SendOutcome::Dropped;
        }
        let leaves_at = self.rates.finish_time(self.busy_until.max(now), bytes);
        self.busy_until = leaves_at;
        self.queued_bytes += bytes;
        self.queue.push_back((leaves_at, bytes));
        let lost = (0..packets).any(|_| self.next_is_lost());
        if lost || leaves_at == Instant::FAR_FUTURE || !self.rates.is_up(leaves_at) {
            return SendOutcome::Lost;
        }
        SendOutcome::Arrives(leaves_at + self.one_way_delay())
    }

    /// Whether a packet that goes one way or the other is lost at random.
    pub(super) fn next_is_lost(&mut self) -> bool {
        self.loss_rate > Ratio::ZERO && self.rng.bernoulli(self.loss_rate)
    }

    /// A packet goes from the client; none: the link does not work.
    pub(super) fn send_control(&mut self, now: Instant) -> Option<Instant> {
        self.sent += CONTROL_PACKET.bytes();
        self.is_up(now).then(|| now + self.one_way_delay())
    }
}

/// What a packet without payload is on the wire: IPv4, TCP, timestamps and an MPTCP option.
const CONTROL_PACKET: DataSize = DataSize::from_bytes(72);
/// Four packets: the least that lets slow start begin.
const MIN_QUEUE: u64 = 6000;
