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

use super::course::Course;
use crate::rng::{Purpose, Stream};
use crate::spec::{LinkSpec, QueueLimit};

/// A running link.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) name: String,
    pub(super) kind: LinkKind,
    pub(super) course: Course,
    pub(super) rtt: Duration,
    /// Whether the interface has carrier.
    pub(super) carrier: bool,
    limit: u64,
    /// When the last byte of the queue leaves.
    busy: Instant,
    /// When each piece leaves, and its size.
    queue: VecDeque<(Instant, u64)>,
    waiting: u64,
    /// Of a packet.
    loss: Ratio,
    random: Stream,
    /// Bytes on the wire that came, and that went.
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// What becomes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// The queue had no room.
    Dropped,
    /// It was sent and is lost on its way.
    Lost,
    /// It arrives then.
    Arrives(Instant),
}

impl Lane {
    pub(super) fn new(spec: &LinkSpec, course: Course, seed: u64, horizon: Duration) -> Self {
        let limit = match spec.queue_limit() {
            QueueLimit::Size(size) => size.bytes(),
            // As many bytes as the first rate has; what begins with nothing has its mean's.
            QueueLimit::Time(time) => {
                let first = course.rate(Instant::ZERO).max(course.mean(horizon) / 4);
                (first * time).bytes()
            }
        };
        Self {
            name: spec.name.clone(),
            kind: spec.kind,
            course,
            rtt: spec.rtt,
            carrier: true,
            limit: limit.max(LEAST_QUEUE),
            busy: Instant::ZERO,
            queue: VecDeque::new(),
            waiting: 0,
            loss: spec.loss.mean(),
            random: Stream::new(seed, &spec.name, 0, Purpose::Loss),
            received: 0,
            sent: 0,
        }
    }

    /// One way.
    pub(super) fn way(&self) -> Duration {
        self.rtt / 2
    }

    /// Whether a packet that is sent now from the client arrives.
    pub(super) fn works(&self, now: Instant) -> bool {
        self.carrier && self.course.works(now)
    }

    /// Whether the server's answer to it arrives as well: on a link that holds everything back it waits, and a join is
    /// given up before.
    pub(super) fn answers(&self, now: Instant) -> bool {
        self.works(now) && !self.course.rate(now).is_zero()
    }

    /// The server sends a piece of so many packets and so many bytes on the wire.
    pub(super) fn send(&mut self, now: Instant, bytes: u64, packets: u64) -> Fate {
        while let Some((_, size)) = self.queue.front().filter(|(leaves, _)| *leaves <= now) {
            self.waiting -= size;
            self.queue.pop_front();
        }
        if self.waiting > 0 && self.waiting + bytes > self.limit {
            return Fate::Dropped;
        }
        let leaves = self.course.finish(self.busy.max(now), bytes);
        self.busy = leaves;
        self.waiting += bytes;
        self.queue.push_back((leaves, bytes));
        let lost = (0..packets).any(|_| self.loses());
        if lost || leaves == Instant::FAR_FUTURE || !self.course.works(leaves) {
            return Fate::Lost;
        }
        Fate::Arrives(leaves + self.way())
    }

    /// Whether a packet that goes one way or the other is lost at random.
    pub(super) fn loses(&mut self) -> bool {
        self.loss > Ratio::ZERO && self.random.happens(self.loss)
    }

    /// A packet goes from the client; none: the link does not work.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Instant> {
        self.sent += CONTROL.bytes();
        self.works(now).then(|| now + self.way())
    }
}

/// What a packet without payload is on the wire: IPv4, TCP, timestamps and an MPTCP option.
const CONTROL: DataSize = DataSize::from_bytes(72);
/// Four packets: the least that lets slow start begin.
const LEAST_QUEUE: u64 = 6000;
