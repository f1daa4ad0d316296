//! When the packet that is being sent has been sent: at a rate, or by the opportunities of a trace.
//!
//! 1. Work is counted exactly: at a rate in bits times 10^9 (so that a rate is work per nanosecond), on a trace in
//!    bytes of opportunities. What the rounding of an end to nanoseconds gave too much is taken from the next packet.
//! 2. The rate may change and the server may be held while a packet is being sent; the work done so far counts.
//! 3. Opportunities of a trace that pass while nothing waits, or while the server is held, are gone.

use std::sync::Arc;

use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::trace::{OPPORTUNITY, PACKET_HEADER, Trace};

#[derive(Clone, Debug)]
pub(super) struct Server {
    pace: Pace,
    held: bool,
    /// End of the packet sent last.
    free_at: Instant,
}

#[derive(Clone, Debug)]
enum Pace {
    Rate {
        rate: Bitrate,
        /// Work still to do for the packet, in 10^-9 bit.
        left: u64,
        /// From when it is being done.
        since: Instant,
        /// Work done too much by the end of the packet before.
        credit: u64,
    },
    Trace {
        trace: Arc<Trace>,
        /// Bytes still to send for the packet, header included.
        left: u64,
        /// The opportunity in use, counted over all rounds.
        cursor: u64,
        /// Bytes that it still carries; above zero.
        room: u64,
    },
}

/// Work in a byte.
const BYTE: u64 = 8_000_000_000;

impl Server {
    pub(super) fn rate(rate: Bitrate) -> Self {
        Self::new(Pace::Rate { rate, left: 0, since: Instant::ZERO, credit: 0 })
    }

    pub(super) fn trace(trace: Arc<Trace>) -> Self {
        Self::new(Pace::Trace { trace, left: 0, cursor: 0, room: OPPORTUNITY.bytes() })
    }

    fn new(pace: Pace) -> Self {
        Self { pace, held: false, free_at: Instant::ZERO }
    }

    /// The rate now, or the trace's mean.
    pub(super) fn nominal(&self) -> Bitrate {
        match &self.pace {
            Pace::Rate { rate, .. } => *rate,
            Pace::Trace { trace, .. } => trace.mean_rate(),
        }
    }

    pub(super) fn free_at(&self) -> Instant {
        self.free_at
    }

    /// Begins to send a packet at `start`, not before the last one ended.
    pub(super) fn begin(&mut self, size: DataSize, start: Instant) {
        match &mut self.pace {
            Pace::Rate { left, since, credit, .. } => {
                let spared = if start == self.free_at { *credit } else { 0 };
                *left = size.bytes().saturating_mul(BYTE).saturating_sub(spared);
                *since = start;
            }
            Pace::Trace { trace, left, cursor, room } => {
                *left = (size + PACKET_HEADER).bytes();
                seek(trace, cursor, room, start);
            }
        }
    }

    /// When the packet will have been sent; none while held or at rate zero.
    pub(super) fn end(&self) -> Option<Instant> {
        if self.held {
            return None;
        }
        match &self.pace {
            Pace::Rate { rate, left, since, .. } => {
                let rate = rate.bits_per_sec();
                (rate > 0).then(|| *since + Duration::from_nanos(left.div_ceil(rate)))
            }
            Pace::Trace { trace, left, cursor, room } => {
                let more = left.saturating_sub(*room).div_ceil(OPPORTUNITY.bytes());
                Some(trace.time_of(cursor + more))
            }
        }
    }

    /// The packet has been sent, at the end that was foretold.
    pub(super) fn finish(&mut self, end: Instant) {
        self.free_at = end;
        match &mut self.pace {
            Pace::Rate { rate, left, since, credit } => {
                *credit = work(*rate, *since, end).saturating_sub(*left);
                *left = 0;
            }
            Pace::Trace { left, cursor, room, .. } => {
                let opportunity = OPPORTUNITY.bytes();
                let more = left.saturating_sub(*room).div_ceil(opportunity);
                *cursor += more;
                *room = (*room + more * opportunity).saturating_sub(*left);
                *left = 0;
                if *room == 0 {
                    *cursor += 1;
                    *room = opportunity;
                }
            }
        }
    }

    /// Stops or goes on.
    pub(super) fn set_held(&mut self, held: bool, now: Instant) {
        self.account(now);
        self.held = held;
    }

    /// From now on at this rate; ends a trace.
    pub(super) fn set_rate(&mut self, new: Bitrate, now: Instant) {
        self.account(now);
        match &mut self.pace {
            Pace::Rate { rate, credit, .. } => {
                *rate = new;
                *credit = 0;
            }
            Pace::Trace { left, .. } => {
                let left = left.saturating_mul(BYTE);
                self.pace = Pace::Rate { rate: new, left, since: now, credit: 0 };
            }
        }
    }

    /// Counts the work done up to now, so that what follows may be at another pace.
    fn account(&mut self, now: Instant) {
        match &mut self.pace {
            Pace::Rate { rate, left, since, .. } => {
                if !self.held {
                    *left = left.saturating_sub(work(*rate, *since, now));
                }
                *since = now.max(*since);
            }
            Pace::Trace { trace, left, cursor, room } => {
                let passed = trace.count_before(now + Duration::from_nanos(1));
                if passed > *cursor {
                    if !self.held && *left > 0 {
                        let used = *room + (passed - *cursor - 1) * OPPORTUNITY.bytes();
                        *left = left.saturating_sub(used);
                    }
                    (*cursor, *room) = (passed, OPPORTUNITY.bytes());
                }
            }
        }
    }
}

/// Moves on to the first opportunity at or after `start`.
fn seek(trace: &Trace, cursor: &mut u64, room: &mut u64, start: Instant) {
    if trace.time_of(*cursor) < start {
        (*cursor, *room) = (trace.count_before(start), OPPORTUNITY.bytes());
    }
}

/// What is done from one time to another.
fn work(rate: Bitrate, from: Instant, to: Instant) -> u64 {
    let done = to.since(from).as_nanos() * u128::from(rate.bits_per_sec());
    u64::try_from(done).unwrap_or(u64::MAX)
}
