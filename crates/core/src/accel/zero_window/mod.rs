//! Freezing with acknowledgement of the flight: which ACKs stop a sender for a blackout with nothing left on its way
//! (Super-aggregation §3.2, last paragraph).
//!
//! In: what the flow may have on its way, what the helping link bears. Out: the rungs of a ladder of ACKs with a window of
//! zero, the highest first ([`Frost::rungs`]).
//!
//! 1. A sender that is told a window of zero while something is unacknowledged takes more harm than from silence: each of
//!    its timeouts lowers its threshold again (facts "Pitfalls" 1, 2). So each rung acknowledges and closes the window in
//!    one: the first that the sender has reached leaves it with nothing on its way, and it waits with its window kept.
//! 2. What the sender has sent is not known here. The ladder begins above all that may be, for one that begins too low
//!    leaves a rest unacknowledged; rungs below half of what there should be are left out first.
//! 3. The link that carries it is thin: so many rungs as it bears in a round trip and [`SOON`], all flows together.
//!    Where that is not enough for a ladder that begins high enough, the flow is not frozen.
//! 4. Rungs are a segment of the sender apart, as it was seen to send them. A sender that ends between two keeps the rest
//!    on its way: that is left of rule 1's harm.
//!
//! When the link is back the same ladder goes over it with the window open (`hiding`, rule 3): it opens, or acknowledges, as
//! if nothing had been said in the dark, which may have been lost. It goes again, less and less often, in turn with the question
//! alone, while the hole is there ([`Thaw`]): after a short blackout the thin link's window of zero can come behind it, and the own stack does not
//! answer a sender's probes whose numbers lie behind a hole. In the dark it goes, too, for a gateway that does not answer is
//! no proof that nothing passes.

use core::ops::RangeInclusive;

use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// How senders are frozen in this blackout.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreezeParams {
    /// Over which link.
    pub(super) link: LinkId,
    /// §3.2, first form: a window of zero, and nothing is acknowledged.
    pub(super) is_first_form: bool,
    /// The flight is acknowledged, over a link that carries so much.
    pub(super) in_flight_rate: Option<Bitrate>,
    /// Rungs that were sent for other flows.
    pub(super) sent_acks: u64,
}

impl FreezeParams {
    /// The rungs, counted in segments of `step` bytes: for a flow of this rate and round trip, and with a flight of `limit`
    /// bytes at the most. None: the link is too thin.
    pub(super) fn ack_steps(
        &self,
        (rate, rtt): (Bitrate, Duration),
        limit: DataSize,
        step: u32,
    ) -> Option<RangeInclusive<u64>> {
        let likely = rate * rtt;
        let max_acks = (self.in_flight_rate? * (SWEEP_TIME + rtt)).bytes() / ACK_SIZE;
        let max_acks = max_acks.checked_sub(self.sent_acks).filter(|max_acks| *max_acks > 0)?;
        let segments = |size: DataSize| size.bytes().div_ceil(u64::from(step.max(1)));
        let (low, top) = (segments(likely) / 2, segments(limit));
        let min_top = segments(likely) * 5 / 4 + EXTRA_SEGMENTS;
        let high = top.max(min_top).min(low + max_acks - 1);
        if high < min_top {
            return None;
        }
        Some((high + 1).saturating_sub(max_acks)..=high)
    }
}

/// When a window update is repeated to a frozen sender. As long as its flight is not all here, for nobody else asks for
/// what is missing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnfreezeRetry {
    next: Option<(Instant, Duration)>,
    /// Data has come since it was told.
    has_data: bool,
    /// The next time it is only asked where it stands.
    probes_next: bool,
}

/// What a sender is told again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resend {
    /// The whole ladder.
    Sweep,
    /// Nothing; it is asked where it stands. Behind a long ladder a short queue had no room for the question.
    Probe,
}

impl UnfreezeRetry {
    /// The link is dark, and it was frozen.
    pub(super) fn on_outage_start(&mut self, now: Instant) {
        (self.has_data, self.probes_next) = (false, false);
        self.next = Some((now + FIRST_RETRY_IN_OUTAGE, FIRST_RETRY_IN_OUTAGE));
    }

    /// The link is back, and it was told for the first time; `was_frozen`: that it may go on is what it needs to hear.
    pub(super) fn on_outage_end(&mut self, now: Instant, was_frozen: bool) {
        (self.has_data, self.probes_next) = (false, !was_frozen);
        self.next = Some((now + FIRST_RETRY, FIRST_RETRY));
    }

    /// Data has come: it goes on for now. A window of zero may still be on its way to it.
    pub(super) fn on_data(&mut self) {
        self.has_data = true;
    }

    /// It needs no telling any more.
    pub(super) fn end(&mut self) {
        self.next = None;
    }

    /// What it is to be told now, if anything; then it is taken for told.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Resend> {
        let (_, wait) = self.next.filter(|(at, _)| *at <= now)?;
        let wait = (wait * 2).min(MAX_RETRY);
        self.next = Some((now + wait, wait));
        if core::mem::take(&mut self.has_data) {
            return None;
        }
        self.probes_next = !self.probes_next;
        Some(if self.probes_next { Resend::Sweep } else { Resend::Probe })
    }

    /// When to tick next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }
}

/// The size of the sender's segments, as they come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentSize {
    last: u32,
    known: Option<u32>,
}

impl SegmentSize {
    /// A segment came with so many bytes.
    pub(super) fn on_arrival(&mut self, bytes: u32) {
        let is_twice = bytes == self.last && bytes >= MIN_SEGMENT;
        self.last = bytes;
        // What the device has joined is a multiple.
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

/// chosen: a sender's first timeout comes about then. A rung that comes later is still believed, and its old timestamp has
/// the sender take that timeout back; but the queue of a thin link holds no more than this.
const SWEEP_TIME: Duration = Duration::from_millis(500);
/// Bytes of an ACK with timestamps on a link with a header of its own (facts, B).
const ACK_SIZE: u64 = 72;
/// chosen: the way over a thin link and its queue, at first.
const FIRST_RETRY: Duration = Duration::from_millis(300);
/// chosen: shorter than most senders' second timeout, and longer than the pauses of a link that is there.
const FIRST_RETRY_IN_OUTAGE: Duration = Duration::from_secs(1);
/// chosen: rare beside anything that moves; who is asked so seldom has said nothing for a quarter of a minute.
const MAX_RETRY: Duration = Duration::from_secs(10);
/// RFC 9293 §3.7.1: what every end takes.
const MIN_SEGMENT: u32 = 536;
/// chosen: what a sender may have sent beside, as probes of its tail.
const EXTRA_SEGMENTS: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Over a link that bears `most` rungs, for a flow with likely so many segments on its way.
    fn rungs(max_acks: u64, likely: u64, limit: u64) -> Option<RangeInclusive<u64>> {
        let rate = |bytes| DataSize::from_bytes(bytes) / Duration::from_millis(100);
        // Six times as long as the flow's round trip.
        let in_flight_rate = Some(rate(max_acks * 72 / 6 + 1));
        let params =
            FreezeParams { link: LinkId(1), is_first_form: false, in_flight_rate: in_flight_rate, sent_acks: 0 };
        let pace = (rate(likely * 1000), Duration::from_millis(100));
        params.ack_steps(pace, DataSize::from_bytes(limit * 1000), 1000)
    }

    #[test]
    fn a_ladder_begins_above_all_that_may_be_on_its_way() {
        assert_eq!(rungs(1000, 200, 400), Some(0..=400), "all of them");
        assert_eq!(rungs(350, 200, 400), Some(51..=400), "the lowest are left out first");
        assert_eq!(rungs(200, 200, 400), Some(100..=299), "then the highest");
        assert_eq!(rungs(155, 200, 400), Some(100..=254));
        assert_eq!(rungs(154, 200, 400), None, "one that begins lower would leave a rest");
        assert_eq!((rungs(0, 2, 4), rungs(10, 0, 0)), (None, Some(0..=4)));
    }

    #[test]
    fn segments_have_the_size_that_comes_twice() {
        let mut grain = SegmentSize::default();
        [1400, 300, 300, 2800, 2800].into_iter().for_each(|bytes| grain.on_arrival(bytes));
        assert_eq!(grain.known(), Some(2800), "as long as none came alone");
        [1400, 1400, 2800, 2800, 700].into_iter().for_each(|bytes| grain.on_arrival(bytes));
        assert_eq!(grain.known(), Some(1400));
    }

    #[test]
    fn a_frozen_sender_is_told_again_and_less_and_less_often() {
        let mut retry = UnfreezeRetry::default();
        retry.on_outage_end(Instant::ZERO, false);
        let mut repeated = alloc::vec::Vec::new();
        while let Some(at) = retry.deadline().filter(|_| repeated.len() < 8) {
            repeated.push((at.since(Instant::ZERO).as_millis(), retry.tick(at).unwrap() == Resend::Sweep));
        }
        let expected_times = [300, 900, 2100, 4500, 9300, 18_900, 28_900, 38_900];
        let expected: alloc::vec::Vec<_> =
            expected_times.iter().enumerate().map(|(n, at)| (*at, n % 2 == 1)).collect();
        assert_eq!(repeated, expected, "a question first, for the ladder has just gone");
        retry.on_outage_end(Instant::ZERO, false);
        retry.on_data();
        assert_eq!(retry.tick(Instant::from_millis(300)), None);
        assert_eq!(retry.tick(Instant::from_millis(900)), Some(Resend::Probe));
    }

    #[test]
    fn flows_share_a_link() {
        let in_flight_rate = Some(Bitrate::from_bits_per_sec(360_000));
        let params = |spent| FreezeParams {
            link: LinkId(1),
            is_first_form: false,
            in_flight_rate: in_flight_rate,
            sent_acks: spent,
        };
        let steps = |spent| {
            let pace = (Bitrate::from_mbps(10), Duration::from_millis(100));
            params(spent).ack_steps(pace, DataSize::from_bytes(200_000), 1448)
        };
        assert_eq!((steps(0), steps(265), steps(310)), (Some(0..=139), Some(30..=139), None));
    }
}
