//! One connection and its requests: what is on the way, how fast it comes, how long the way is.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::links::Edge;
use super::thinks::Thinking;
use super::{Ask, OriginId, PathSample, Protocol, ReqId, Span, Validator};
use crate::link::LinkId;
use crate::predict::Meter;
use crate::units::{Bitrate, DataSize, Instant};

/// A connection, from the order to open it until it is closed.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) link: LinkId,
    /// The URL of the command line that this is for.
    pub(super) root: OriginId,
    /// Where it leads.
    pub(super) edge: Edge,
    /// None while it is being opened.
    pub(super) protocol: Option<Protocol>,
    pub(super) handshake: Duration,
    /// Requests without their end, in the order in which they were sent.
    pub(super) reqs: VecDeque<ReqId>,
    /// What came, by the connection's own [`clock`](Conn::clock).
    pub(super) meter: Meter,
    /// The last sign of life: opened, or bytes; or a request sent when nothing else was on the way.
    pub(super) last: Instant,
    /// Complete answers so far.
    pub(super) answered: u32,
    /// The server closes after what is on its way: no more requests.
    pub(super) draining: bool,
    pub(super) path: PathSample,
    /// When packets last came out of order.
    pub(super) disorder: Option<Instant>,
    pub(super) thinking: Thinking,
}

impl Conn {
    pub(super) fn new(link: LinkId, root: OriginId, edge: Edge, now: Instant) -> Self {
        Self {
            link,
            root,
            edge,
            protocol: None,
            handshake: Duration::ZERO,
            reqs: VecDeque::new(),
            meter: Meter::default(),
            last: now,
            answered: 0,
            draining: false,
            path: PathSample::default(),
            disorder: None,
            thinking: Thinking::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.protocol.is_some()
    }

    /// Whether redirects have led it away from its URL.
    pub(super) fn is_redirected(&self) -> bool {
        self.edge.origin != self.root
    }

    /// Whether another request may be sent.
    pub(super) fn takes_requests(&self) -> bool {
        self.is_open() && !self.draining
    }

    pub(super) fn on_sample(&mut self, now: Instant, path: PathSample) {
        if path.out_of_order > self.path.out_of_order {
            self.disorder = Some(now);
        }
        self.path = path;
    }

    /// Whether packets have been lost lately, as far as a receiver can tell.
    pub(super) fn lossy(&self, now: Instant) -> bool {
        self.disorder.is_some_and(|at| at + LOSS_MEMORY > now)
    }

    /// The round trip now, the queue included: how long before it is needed a request must leave.
    pub(super) fn rtt(&self) -> Duration {
        let measured = self.path.rtt.max(self.path.rcv_rtt).min(MOST_RTT);
        measured.max(self.floor_rtt())
    }

    /// The round trip as the youngest measurement has it. What we send is little, so its smoothed time may be seconds
    /// old; the receiver's own estimate follows the data.
    pub(super) fn young_rtt(&self) -> Duration {
        let young = if self.path.rcv_rtt.is_zero() { self.path.rtt } else { self.path.rcv_rtt };
        young.max(self.floor_rtt())
    }

    /// The round trip of the empty path.
    pub(super) fn floor_rtt(&self) -> Duration {
        let least = if self.path.min_rtt.is_zero() { self.handshake } else { self.path.min_rtt };
        least.clamp(LEAST_RTT, MOST_RTT)
    }

    /// Whether the sender is still doubling its window: each round trip brings far more than the one before.
    pub(super) fn ramping(&self, now: Instant) -> bool {
        let now = self.clock(now);
        let rtt = self.floor_rtt();
        let Some(first) = self.meter.first() else { return true };
        if self.meter.total() > DataSize::from_mib(64) || first + rtt * RAMP_ROUNDS < now {
            return false;
        }
        if now < first + rtt * 2 {
            return true;
        }
        let young = self.meter.between(now - rtt, now);
        let old = self.meter.between(now - rtt * 2, now - rtt);
        young * 10 > old * 14
    }

    /// The rate to expect from now on, while bytes flow. Never taken over less than a round trip: bytes come in bursts.
    pub(super) fn pace(&self, at: Instant) -> Bitrate {
        let now = self.clock(at);
        let Some(first) = self.meter.first() else { return Bitrate::ZERO };
        let rtt = self.floor_rtt();
        let window = (self.rtt() * 8).clamp(PACE_WINDOW.0, PACE_WINDOW.1);
        // A burst, and a quarter of a round trip in which the next one may be late.
        let round = rtt + rtt / 4;
        if now < first + round {
            return self.meter.total() / rtt;
        }
        let mean = self.meter.rate(now, window);
        if !self.ramping(at) {
            return mean;
        }
        // Half of a doubling: what the next round trip brings on average, as far as the link bears it.
        let recent = self.meter.between(now - round, now) / rtt;
        mean.max(recent + recent / 2)
    }

    /// The rate to rely on. Behind a lost packet nothing is delivered and then everything at once, which a growing window
    /// would look like: while packets are lost, what came counts over all of its time.
    pub(super) fn sure_pace(&self, at: Instant) -> Bitrate {
        let pace = self.pace(at);
        if !self.lossy(at) {
            return pace;
        }
        let mean = self.meter.rate(self.clock(at), PACE_WINDOW.1);
        if mean.is_zero() { pace } else { pace.min(mean) }
    }

    /// How many bytes should be on their way, so that the pipe does not run dry before the next request's answer.
    ///
    /// While the window doubles: the next two rounds, 2 × what has come so far. Then: a round trip and the time in
    /// which requests are batched.
    pub(super) fn wanted_ahead(&self, now: Instant) -> DataSize {
        let ramp = self.meter.total() * 2 + FIRST_SPAN;
        if self.ramping(now) {
            let now = self.clock(now);
            // Four times the last two round trips: more than the next two can bring, also after a stall.
            return ramp.min(self.meter.between(now - self.floor_rtt() * 2, now) * 4 + FIRST_SPAN * 2);
        }
        // Twice the round trip: it may have grown since it was measured, as the queue fills.
        let steady = self.pace(now) * (self.rtt() + self.floor_rtt() + BATCH + self.thinks());
        steady.max(FIRST_SPAN).min(ramp.max(FIRST_SPAN * 4))
    }
}

/// A request that has been sent and is not complete.
#[derive(Clone, Debug)]
pub(super) struct Req {
    pub(super) conn: super::ConnId,
    pub(super) ask: Ask,
    pub(super) sent: Instant,
    /// The bytes that it brings; the end is far beyond the file for an open range until its size is known.
    pub(super) span: Span,
    /// The next byte that it brings.
    pub(super) cursor: u64,
    /// The head has come and was good.
    pub(super) accepted: bool,
    /// The version that it was bound to.
    pub(super) condition: Option<Validator>,
    /// It was sent while others on its connection were not complete.
    pub(super) piped: bool,
    /// The first of the bytes that another request brings as well.
    pub(super) covered_from: u64,
    /// Its bytes were given to others, because its link is silent.
    pub(super) released: bool,
}

impl Req {
    pub(super) fn remaining(&self) -> Span {
        Span::new(self.cursor, self.span.end)
    }

    /// The bytes that only this request brings.
    pub(super) fn owed(&self) -> Span {
        Span::new(self.cursor, self.span.end.min(self.covered_from))
    }
}

/// What a connection is asked for before anything is known of it.
/// chosen: nine initial windows (RFC 6928) cover the first three round trips of slow start.
pub(super) const FIRST_SPAN: DataSize = DataSize::from_kib(64);

/// Shorter round trips than this are taken for this: the timers of a busy machine are no finer.
const LEAST_RTT: Duration = Duration::from_millis(4);

/// Longer ones are a measurement of a stall, not of a path.
const MOST_RTT: Duration = Duration::from_secs(2);

/// After this many round trips the ramp is over, whatever the last two looked like.
const RAMP_ROUNDS: u32 = 14;

/// Bounds of the window over which a pace is taken. chosen: long enough for a loss to be repaired
/// within it, short enough to follow a link that fades.
const PACE_WINDOW: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1000));

/// Losses older than this say nothing of now.
const LOSS_MEMORY: Duration = Duration::from_millis(1500);

/// Requests closer than this are sent as one.
const BATCH: Duration = Duration::from_millis(40);
