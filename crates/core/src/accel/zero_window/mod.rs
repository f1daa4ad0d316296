//! Zero-window freeze with acknowledgement of the flight (Super-aggregation §3.2, last paragraph): which ACKs stop a
//! sender for an outage with nothing in flight.
//!
//! A sender that receives a zero window while data is outstanding is harmed more than by silence: each of its timeouts
//! lowers its slow-start threshold again. So the flight is acknowledged together with the zero window: the first ACK
//! that the sender has reached leaves nothing in flight, and the sender waits with its congestion window intact.
//!
//! 1. How much the sender has sent is unknown here. So a *sweep* of ACKs is sent, the highest first, a segment apart; a
//!    sender accepts the first one that does not exceed what it has sent. The sweep begins above everything that may be
//!    in flight, because one that begins too low leaves data outstanding; ACKs for less than half of the likely flight
//!    are left out first.
//! 2. The secondary link is thin: it carries so many ACKs as fit into a round trip and `sweep_time`, all flows
//!    together. If that is not enough for a sweep that begins high enough, the flow is not frozen.
//! 3. ACKs are one segment of the sender apart, as its segments were observed. A sender that has stopped between two of
//!    them keeps the rest in flight.
//!
//! When the link recovers the same sweep is sent over it with the window open ([`super::early_ack`]): it unfreezes the
//! sender, or acknowledges the flight as if nothing had been sent during the outage. It is repeated at growing
//! intervals, in turn with a probe of the sender's position, while the hole is open ([`UnfreezeRetry`]): after a short
//! outage the zero window can arrive after it over the thin link, and the local stack does not answer window probes
//! whose numbers lie behind a hole. It is also repeated during the outage, because a gateway that does not answer is no
//! proof that nothing passes.

use core::ops::RangeInclusive;

use crate::accel::mechanism::Mechanism;
use crate::accel::options::options;
use crate::accel::status::MechanismReport;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// How senders are frozen in this outage.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreezeParams {
    pub(super) options: &'static ZeroWindowOptions,
    /// The link over which the ACKs are sent.
    pub(super) link: LinkId,
    /// The first form of §3.2: a zero window, and nothing is acknowledged.
    pub(super) is_first_form: bool,
    /// The flight is acknowledged, over a link with this rate; none: it is not.
    pub(super) in_flight_rate: Option<Bitrate>,
    /// ACKs that were sent for other flows.
    pub(super) sent_acks: u64,
}

impl FreezeParams {
    /// The ACKs of a sweep, counted in segments of `step` bytes: for a flow with this rate and round-trip time, and a
    /// flight of at most `limit` bytes. None: the link is too thin.
    pub(super) fn ack_steps(
        &self,
        (rate, rtt): (Bitrate, Duration),
        limit: DataSize,
        step: u32,
    ) -> Option<RangeInclusive<u64>> {
        let likely = rate * rtt;
        let max_acks = (self.in_flight_rate? * (self.options.sweep_time + rtt)).bytes() / ACK_SIZE;
        let max_acks = max_acks.checked_sub(self.sent_acks).filter(|max_acks| *max_acks > 0)?;
        let segments = |size: DataSize| size.bytes().div_ceil(u64::from(step.max(1)));
        let (low, top) = (segments(likely) / 2, segments(limit));
        let min_top = segments(likely) * 5 / 4 + self.options.extra_segments;
        let high = top.max(min_top).min(low + max_acks - 1);
        if high < min_top {
            return None;
        }
        Some((high + 1).saturating_sub(max_acks)..=high)
    }
}

/// When a window update is repeated to a frozen sender, until its flight has arrived: no other packet asks for what is
/// missing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnfreezeRetry {
    options: &'static ZeroWindowOptions,
    next: Option<(Instant, Duration)>,
    /// Data has come since the last repetition.
    has_data: bool,
    /// The next repetition is only a probe.
    probes_next: bool,
}

/// What is repeated to a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resend {
    /// The whole sweep.
    Sweep,
    /// Only the probe of its position: behind a long sweep a short queue had no capacity for the probe.
    Probe,
}

impl UnfreezeRetry {
    /// With these options, and nothing to repeat.
    pub(super) fn new(options: &'static ZeroWindowOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Whether the sender's window is closed (`is_frozen`).
    pub(super) fn report(&self, is_frozen: bool, report: &mut MechanismReport<'_>) {
        report.active(Mechanism::ZeroWindowFreeze, is_frozen);
    }

    /// The link is down, and the sender was frozen.
    pub(super) fn on_outage_start(&mut self, now: Instant) {
        (self.has_data, self.probes_next) = (false, false);
        self.next = Some((now + self.options.first_retry_in_outage, self.options.first_retry_in_outage));
    }

    /// The link has recovered, and the first sweep was sent. `was_frozen`: the sender needs the window update.
    pub(super) fn on_outage_end(&mut self, now: Instant, was_frozen: bool) {
        (self.has_data, self.probes_next) = (false, !was_frozen);
        self.next = Some((now + self.options.first_retry, self.options.first_retry));
    }

    /// Data has come: the sender is running for now. A zero window may still be on its way to it.
    pub(super) fn on_data(&mut self) {
        self.has_data = true;
    }

    /// Nothing needs to be repeated any more.
    pub(super) fn end(&mut self) {
        self.next = None;
    }

    /// What is to be repeated now, if anything; it counts as sent.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Resend> {
        let (_, wait) = self.next.filter(|(at, _)| *at <= now)?;
        let wait = (wait * 2).min(self.options.max_retry);
        self.next = Some((now + wait, wait));
        if core::mem::take(&mut self.has_data) {
            return None;
        }
        self.probes_next = !self.probes_next;
        Some(if self.probes_next { Resend::Sweep } else { Resend::Probe })
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }
}

/// The size of the sender's segments, as they arrive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentSize {
    last: u32,
    /// None before two segments of the same size came.
    known: Option<u32>,
}

impl SegmentSize {
    /// A segment came with so many bytes.
    pub(super) fn on_arrival(&mut self, bytes: u32) {
        let is_twice = bytes == self.last && bytes >= MIN_SEGMENT;
        self.last = bytes;
        // Segments that the device has merged (GRO) are multiples.
        let is_other = self.known.is_none_or(|known| !bytes.is_multiple_of(known));
        if is_twice && is_other {
            self.known = Some(bytes);
        }
    }

    /// None before two of the same size came.
    pub(super) const fn known(&self) -> Option<u32> {
        self.known
    }
}

/// Bytes of an ACK with timestamps on a link with a header of its own.
const ACK_SIZE: u64 = 72;
/// RFC 9293 section 3.7.1: every host accepts it.
const MIN_SEGMENT: u32 = 536;

options! {
    /// Options of the zero-window freeze.
    pub struct ZeroWindowOptions {
        /// ACKs of a sweep are sent for so long beyond a round trip: about when a sender has its first timeout. An ACK
        /// that comes later is still accepted, and its old timestamp has the sender undo that timeout; but the queue of
        /// a thin link holds no more than this.
        pub sweep_time: Duration = Duration::from_millis(500),
        /// Segments that a sender may have sent beyond its flight, such as tail-loss probes.
        pub extra_segments: u64 = 4,
        /// When the sweep is repeated first: the delay of a thin link and its queue.
        pub first_retry: Duration = Duration::from_millis(300),
        /// The same during the outage: shorter than the second timeout of most senders, and longer than the pauses of a
        /// working link.
        pub first_retry_in_outage: Duration = Duration::from_secs(1),
        /// The time doubles up to this one: rare compared with anything that moves.
        pub max_retry: Duration = Duration::from_secs(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sweep over a link that carries `most` ACKs, for a flow with likely so many segments in flight.
    fn sweep_steps(max_acks: u64, likely: u64, limit: u64) -> Option<RangeInclusive<u64>> {
        let rate = |bytes| DataSize::from_bytes(bytes) / Duration::from_millis(100);
        // Six times as long as the flow's round trip.
        let in_flight_rate = Some(rate(max_acks * 72 / 6 + 1));
        let params = FreezeParams {
            options: &ZeroWindowOptions::DEFAULT,
            link: LinkId(1),
            is_first_form: false,
            in_flight_rate,
            sent_acks: 0,
        };
        let rate_and_rtt = (rate(likely * 1000), Duration::from_millis(100));
        params.ack_steps(rate_and_rtt, DataSize::from_bytes(limit * 1000), 1000)
    }

    #[test]
    fn a_sweep_begins_above_everything_that_may_be_in_flight() {
        assert_eq!(sweep_steps(1000, 200, 400), Some(0..=400), "all of them");
        assert_eq!(sweep_steps(350, 200, 400), Some(51..=400), "the lowest are left out first");
        assert_eq!(sweep_steps(200, 200, 400), Some(100..=299), "then the highest");
        assert_eq!(sweep_steps(155, 200, 400), Some(100..=254));
        assert_eq!(sweep_steps(154, 200, 400), None, "a lower one would leave data in flight");
        assert_eq!((sweep_steps(0, 2, 4), sweep_steps(10, 0, 0)), (None, Some(0..=4)));
    }

    #[test]
    fn the_segment_size_is_one_that_came_twice() {
        let mut grain = SegmentSize::default();
        [1400, 300, 300, 2800, 2800].into_iter().for_each(|bytes| grain.on_arrival(bytes));
        assert_eq!(grain.known(), Some(2800), "as long as no single segment came");
        [1400, 1400, 2800, 2800, 700].into_iter().for_each(|bytes| grain.on_arrival(bytes));
        assert_eq!(grain.known(), Some(1400));
    }

    #[test]
    fn repetitions_to_a_frozen_sender_become_rarer() {
        let mut retry = UnfreezeRetry::default();
        retry.on_outage_end(Instant::ZERO, false);
        let mut repeated = alloc::vec::Vec::new();
        while let Some(at) = retry.deadline().filter(|_| repeated.len() < 8) {
            repeated.push((at.since(Instant::ZERO).as_millis(), retry.tick(at).unwrap() == Resend::Sweep));
        }
        let expected_times = [300, 900, 2100, 4500, 9300, 18_900, 28_900, 38_900];
        let expected: alloc::vec::Vec<_> =
            expected_times.iter().enumerate().map(|(n, at)| (*at, n % 2 == 1)).collect();
        assert_eq!(repeated, expected, "a probe first, because the sweep has just been sent");
        retry.on_outage_end(Instant::ZERO, false);
        retry.on_data();
        assert_eq!(retry.tick(Instant::from_millis(300)), None);
        assert_eq!(retry.tick(Instant::from_millis(900)), Some(Resend::Probe));
    }

    #[test]
    fn flows_share_the_capacity_of_the_link() {
        let in_flight_rate = Some(Bitrate::from_bits_per_sec(360_000));
        let params = |spent| FreezeParams {
            options: &ZeroWindowOptions::DEFAULT,
            link: LinkId(1),
            is_first_form: false,
            in_flight_rate,
            sent_acks: spent,
        };
        let steps = |spent| {
            let rate_and_rtt = (Bitrate::from_mbps(10), Duration::from_millis(100));
            params(spent).ack_steps(rate_and_rtt, DataSize::from_bytes(200_000), 1448)
        };
        assert_eq!((steps(0), steps(265), steps(310)), (Some(0..=139), Some(30..=139), None));
    }
}
