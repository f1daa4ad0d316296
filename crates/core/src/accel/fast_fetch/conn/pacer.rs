//! ACK pacing of a mirrored connection.
//!
//! 1. ACKs leave at an even interval, which is what the uplink of the secondary link carries; how far each of them
//!    reaches is what changes. A server sends as much as an ACK allows, so one that reaches further makes it faster.
//! 2. It begins with two segments, like any receiver, because a server begins slowly, too: an ACK of what it has not
//!    sent is ignored (RFC 5961 section 5.2), and so are all that follow. While the server keeps up, the step grows by
//!    a segment each `increase_interval`, up to `max_segments`.
//! 3. Each time that the server does not keep up halves the step. Each hole at which the connection waited halves it,
//!    too: the server's window has shrunk as well then.

use crate::accel::fast_fetch::options::FastFetchOptions;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub(super) struct AckPacer {
    options: &'static FastFetchOptions,
    interval: Duration,
    segments: u64,
    next_ack: Instant,
    raised: Instant,
}

impl AckPacer {
    /// ACKs at this interval.
    pub(super) const fn new(options: &'static FastFetchOptions, now: Instant, beat: Duration) -> Self {
        Self { options, interval: beat, segments: options.first_segments, next_ack: now, raised: now }
    }

    /// How much further an ACK reaches.
    pub(super) const fn step_bytes(&self) -> u64 {
        self.segments * SEGMENT as u64
    }

    /// Whether an ACK is due; it counts as sent.
    pub(super) fn take_step(&mut self, now: Instant) -> bool {
        if now < self.next_ack {
            return false;
        }
        // A late timer is compensated up to a bound.
        self.next_ack = self.next_ack.max(now - MAX_CATCH_UP) + self.interval;
        true
    }

    /// When the next one is due.
    pub(super) const fn deadline(&self) -> Instant {
        self.next_ack
    }

    /// The server keeps up.
    pub(super) fn on_progress(&mut self, now: Instant) {
        if now.since(self.raised) >= self.options.increase_interval && self.segments < self.options.max_segments {
            (self.segments, self.raised) = (self.segments + 1, now);
        }
    }

    /// The server does not keep up.
    pub(super) fn on_stall(&mut self, now: Instant) {
        (self.segments, self.raised) = ((self.segments / 2).max(1), now + self.options.backoff);
    }

    /// The server was made to retransmit a segment.
    pub(super) fn on_hole(&mut self, now: Instant) {
        (self.segments, self.raised) =
            ((self.segments / 2).max(self.options.first_segments.min(self.segments)), now);
    }

    /// The highest rate at which a connection with this interval advances.
    pub(super) fn max_rate(options: &FastFetchOptions, beat: Duration) -> Bitrate {
        DataSize::from_bytes(options.max_segments * u64::from(SEGMENT)) / beat
    }
}

/// Bounds what is made up for after a late timer.
const MAX_CATCH_UP: Duration = Duration::from_millis(20);
/// Our choice: fits through tunnels of mobile networks.
pub(super) const SEGMENT: u16 = 1400;
