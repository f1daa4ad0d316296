//! Transmitter of a half link: when the current packet has been sent, at a rate or by the opportunities of a trace.
//!
//! 1. Work is counted exactly: with a rate in 10^-9 bit (then a rate is work per nanosecond), with a trace in bytes
//!    of opportunities. The end of a packet is rounded up to nanoseconds; the surplus is credited to the next
//!    packet.
//! 2. The rate may change, and the transmitter may be held, in the middle of a packet; the work done so far counts.
//! 3. Opportunities of a trace that pass while nothing is queued, or while the transmitter is held, are lost.

use std::sync::Arc;

use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::trace::{OPPORTUNITY, PACKET_HEADER, Trace};

#[derive(Clone, Debug)]
pub(super) struct Transmitter {
    rate: TransmitRate,
    is_held: bool,
    /// End of the previous packet.
    free_at: Instant,
}

#[derive(Clone, Debug)]
enum TransmitRate {
    Rate {
        rate: Bitrate,
        /// Remaining work of the current packet, in 10^-9 bit.
        work_left: u64,
        /// Time up to which work has been accounted.
        work_since: Instant,
        /// Work credited to the next packet: what the rounding of the previous end did too much.
        surplus: u64,
    },
    Trace {
        trace: Arc<Trace>,
        /// Remaining bytes of the current packet, including its header.
        bytes_left: u64,
        /// Index of the current opportunity, counted over all repetitions of the trace.
        cursor: u64,
        /// Bytes left in the current opportunity; never zero.
        opportunity_left: u64,
    },
}

const WORK_PER_BYTE: u64 = 8_000_000_000;

impl Transmitter {
    pub(super) fn rate(rate: Bitrate) -> Self {
        Self::new(TransmitRate::Rate { rate, work_left: 0, work_since: Instant::ZERO, surplus: 0 })
    }

    pub(super) fn trace(trace: Arc<Trace>) -> Self {
        Self::new(TransmitRate::Trace { trace, bytes_left: 0, cursor: 0, opportunity_left: OPPORTUNITY.bytes() })
    }

    fn new(rate: TransmitRate) -> Self {
        Self { rate, is_held: false, free_at: Instant::ZERO }
    }

    /// The current rate, or the mean rate of the trace.
    pub(super) fn nominal_rate(&self) -> Bitrate {
        match &self.rate {
            TransmitRate::Rate { rate, .. } => *rate,
            TransmitRate::Trace { trace, .. } => trace.mean_rate(),
        }
    }

    pub(super) fn free_at(&self) -> Instant {
        self.free_at
    }

    /// Starts a packet at `start`, which must not be before the end of the previous one.
    pub(super) fn start_packet(&mut self, size: DataSize, start: Instant) {
        match &mut self.rate {
            TransmitRate::Rate { work_left, work_since, surplus, .. } => {
                let surplus = if start == self.free_at { *surplus } else { 0 };
                *work_left = size.bytes().saturating_mul(WORK_PER_BYTE).saturating_sub(surplus);
                *work_since = start;
            }
            TransmitRate::Trace { trace, bytes_left, cursor, opportunity_left } => {
                *bytes_left = (size + PACKET_HEADER).bytes();
                skip_to(trace, cursor, opportunity_left, start);
            }
        }
    }

    /// When the current packet will be sent; `None` while held or at a rate of zero.
    pub(super) fn finish_time(&self) -> Option<Instant> {
        if self.is_held {
            return None;
        }
        match &self.rate {
            TransmitRate::Rate { rate, work_left: left, work_since: since, .. } => {
                let rate = rate.bits_per_sec();
                (rate > 0).then(|| *since + Duration::from_nanos(left.div_ceil(rate)))
            }
            TransmitRate::Trace { trace, bytes_left: left, cursor, opportunity_left } => {
                let more_opportunities = left.saturating_sub(*opportunity_left).div_ceil(OPPORTUNITY.bytes());
                Some(trace.opportunity_time(cursor + more_opportunities))
            }
        }
    }

    /// The packet has been sent, at the time returned by [`Self::finish_time`].
    pub(super) fn on_finished(&mut self, end: Instant) {
        self.free_at = end;
        match &mut self.rate {
            TransmitRate::Rate { rate, work_left: left, work_since: since, surplus } => {
                *surplus = work_done(*rate, *since, end).saturating_sub(*left);
                *left = 0;
            }
            TransmitRate::Trace { bytes_left: left, cursor, opportunity_left, .. } => {
                let opportunity = OPPORTUNITY.bytes();
                let more_opportunities = left.saturating_sub(*opportunity_left).div_ceil(opportunity);
                *cursor += more_opportunities;
                *opportunity_left = (*opportunity_left + more_opportunities * opportunity).saturating_sub(*left);
                *left = 0;
                if *opportunity_left == 0 {
                    *cursor += 1;
                    *opportunity_left = opportunity;
                }
            }
        }
    }

    /// Pauses or resumes transmission.
    pub(super) fn set_held(&mut self, is_held: bool, now: Instant) {
        self.account_work(now);
        self.is_held = is_held;
    }

    /// Changes the rate from now on; replaces a trace.
    pub(super) fn set_rate(&mut self, new_rate: Bitrate, now: Instant) {
        self.account_work(now);
        match &mut self.rate {
            TransmitRate::Rate { rate, surplus, .. } => {
                *rate = new_rate;
                *surplus = 0;
            }
            TransmitRate::Trace { bytes_left: left, .. } => {
                let remaining = left.saturating_mul(WORK_PER_BYTE);
                self.rate =
                    TransmitRate::Rate { rate: new_rate, work_left: remaining, work_since: now, surplus: 0 };
            }
        }
    }

    /// Accounts for the work done until `now`, before the rate or the state changes.
    fn account_work(&mut self, now: Instant) {
        match &mut self.rate {
            TransmitRate::Rate { rate, work_left: left, work_since: since, .. } => {
                if !self.is_held {
                    *left = left.saturating_sub(work_done(*rate, *since, now));
                }
                *since = now.max(*since);
            }
            TransmitRate::Trace { trace, bytes_left: left, cursor, opportunity_left } => {
                let opportunities_passed = trace.count_before(now + Duration::from_nanos(1));
                if opportunities_passed > *cursor {
                    if !self.is_held && *left > 0 {
                        let bytes_used =
                            *opportunity_left + (opportunities_passed - *cursor - 1) * OPPORTUNITY.bytes();
                        *left = left.saturating_sub(bytes_used);
                    }
                    (*cursor, *opportunity_left) = (opportunities_passed, OPPORTUNITY.bytes());
                }
            }
        }
    }
}

/// Advances to the first opportunity at or after `start`.
fn skip_to(trace: &Trace, cursor: &mut u64, opportunity_left: &mut u64, start: Instant) {
    if trace.opportunity_time(*cursor) < start {
        (*cursor, *opportunity_left) = (trace.count_before(start), OPPORTUNITY.bytes());
    }
}

/// Work done between two times, in 10^-9 bit.
fn work_done(rate: Bitrate, from: Instant, to: Instant) -> u64 {
    let done = to.since(from).as_nanos() * u128::from(rate.bits_per_sec());
    u64::try_from(done).unwrap_or(u64::MAX)
}
