//! Simplified link of the MPTCP simulator: a queue towards the client that handles chunks of several packets.
//!
//! For each chunk, [`QueuedLink::send`] returns its arrival time, or that it was dropped or lost.
//!
//! 1. All subflows of the link share one drop-tail queue, measured in bytes on the wire; it accepts or drops whole
//!    chunks.
//! 2. A chunk leaves when everything before it has left, at the rates of the [`RateSchedule`], and arrives half an
//!    RTT later.
//! 3. Uplink packets take half an RTT and are not queued: acknowledgements and requests are small.
//! 4. A link without carrier, or one in an outage, accepts chunks as usual and loses them.

use std::collections::VecDeque;

use marline_core::link::LinkKind;
use marline_core::units::{DataSize, Duration, Instant, Ratio};

use super::rate_schedule::RateSchedule;
use crate::rng::{Purpose, RandomStream};
use crate::spec::{LinkSpec, QueueLimit};

/// A running link; see the [module documentation](self).
#[derive(Clone, Debug)]
pub(super) struct QueuedLink {
    pub(super) name: String,
    pub(super) kind: LinkKind,
    pub(super) rates: RateSchedule,
    pub(super) rtt: Duration,
    /// Whether the interface has carrier.
    pub(super) has_carrier: bool,
    queue_limit: u64,
    /// When the last byte in the queue leaves.
    busy_until: Instant,
    /// Departure time and size of each chunk.
    queue: VecDeque<(Instant, u64)>,
    queued_bytes: u64,
    /// Probability that a packet is lost, the mean of the loss model. A chunk is lost with any of its packets.
    loss_rate: Ratio,
    rng: RandomStream,
    /// Bytes on the wire that the interface has received and sent.
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// Fate of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendOutcome {
    /// The queue was full.
    Dropped,
    /// It was transmitted and lost.
    Lost,
    /// It arrives at this time.
    Arrives(Instant),
}

impl QueuedLink {
    pub(super) fn new(spec: &LinkSpec, rates: RateSchedule, seed: u64, horizon: Duration) -> Self {
        let limit = match spec.queue_limit() {
            QueueLimit::Size(size) => size.bytes(),
            // Converted at the initial rate, but at least at a quarter of the mean rate, for links that begin with
            // an outage.
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

    /// One-way delay, without queueing.
    pub(super) fn one_way_delay(&self) -> Duration {
        self.rtt / 2
    }

    /// Whether an uplink packet sent now arrives.
    pub(super) fn is_up(&self, now: Instant) -> bool {
        self.has_carrier && self.rates.is_up(now)
    }

    /// Whether the server's response arrives as well. On a link that holds all packets it is delayed, and a join is
    /// abandoned before it arrives.
    pub(super) fn carries_response(&self, now: Instant) -> bool {
        self.is_up(now) && !self.rates.rate_at(now).is_zero()
    }

    /// The server sends a chunk of `packets` packets with `bytes` bytes on the wire.
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

    /// Whether the next packet, in either direction, is lost at random.
    pub(super) fn next_is_lost(&mut self) -> bool {
        self.loss_rate > Ratio::ZERO && self.rng.bernoulli(self.loss_rate)
    }

    /// Sends a control packet from the client and returns its arrival time; `None` if the link is down.
    pub(super) fn send_control(&mut self, now: Instant) -> Option<Instant> {
        self.sent += CONTROL_PACKET.bytes();
        self.is_up(now).then(|| now + self.one_way_delay())
    }
}

/// Size of a packet without payload on the wire: IPv4, TCP, timestamps and an MPTCP option.
const CONTROL_PACKET: DataSize = DataSize::from_bytes(72);
/// Four packets: the smallest queue in which slow start works.
const MIN_QUEUE: u64 = 6000;
