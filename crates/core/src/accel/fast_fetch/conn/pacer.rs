//! How fast a replayed connection is walked.
//!
//! In: steps that were taken, whether the server followed. Out: when the next ACK is due ([`Stride::deadline`]), and how much further
//! it says ([`Stride::bytes`]).
//!
//! 1. ACKs leave at an even beat, which is what the helping link's way up bears; how far each of them reaches is what
//!    changes. A server sends on by as much as an ACK tells it, so one that reaches further makes it faster.
//! 2. It begins with two segments, as any receiver, for a server begins slowly, too: an ACK of what it has not sent is
//!    ignored (RFC 5961 §5.2), and all that follow. While the server follows it grows by a segment each [`RAISED`], up to
//!    [`TOP`].
//! 3. Each time that the server did not follow halves it, each hole at which it stood takes a half, too: the server's window
//!    has shrunk then as well.

use crate::units::{Bitrate, DataSize, Duration, Instant};

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct AckPacer {
    interval: Duration,
    segments: u64,
    next_ack: Instant,
    raised: Instant,
}

impl AckPacer {
    /// ACKs at this beat.
    pub(super) const fn new(now: Instant, beat: Duration) -> Self {
        Self { interval: beat, segments: FIRST_SEGMENTS, next_ack: now, raised: now }
    }

    /// How much further an ACK says.
    pub(super) const fn step_bytes(&self) -> u64 {
        self.segments * SEGMENT as u64
    }

    /// Whether an ACK is due; it is taken to leave then.
    pub(super) fn take_step(&mut self, now: Instant) -> bool {
        if now < self.next_ack {
            return false;
        }
        // Of a timer that was late so much is made up for.
        self.next_ack = self.next_ack.max(now - MAX_CATCH_UP) + self.interval;
        true
    }

    /// When the next one is.
    pub(super) const fn deadline(&self) -> Instant {
        self.next_ack
    }

    /// The server follows.
    pub(super) fn on_progress(&mut self, now: Instant) {
        if now.since(self.raised) >= INCREASE_INTERVAL && self.segments < MAX_SEGMENTS {
            (self.segments, self.raised) = (self.segments + 1, now);
        }
    }

    /// It did not.
    pub(super) fn on_stall(&mut self, now: Instant) {
        (self.segments, self.raised) = ((self.segments / 2).max(1), now + BACKOFF);
    }

    /// It was made to repeat a segment.
    pub(super) fn on_hole(&mut self, now: Instant) {
        (self.segments, self.raised) = ((self.segments / 2).max(FIRST_SEGMENTS.min(self.segments)), now);
    }

    /// How fast a connection with this beat is walked at the most.
    pub(super) fn max_rate(beat: Duration) -> Bitrate {
        DataSize::from_bytes(MAX_SEGMENTS * u64::from(SEGMENT)) / beat
    }
}

/// chosen: fits through tunnels of mobile networks.
pub(super) const SEGMENT: u16 = 1400;
const FIRST_SEGMENTS: u64 = 2;
/// chosen: at 4 ms each 45 Mbit/s, with which a link of 20 Mbit/s is caught up with; half of what a server has on its way at the
/// floors' loss.
const MAX_SEGMENTS: u64 = 16;
/// chosen: a server's window doubles each round trip when it begins; this is slower over any link.
const INCREASE_INTERVAL: Duration = Duration::from_millis(50);
/// chosen: after it was too fast, so long at the lower pace.
const BACKOFF: Duration = Duration::from_secs(1);
const MAX_CATCH_UP: Duration = Duration::from_millis(20);
