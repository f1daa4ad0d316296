//! State of one link of a stream: its outstanding subsegments and its goodput.
//!
//! From the requests sent over the link and the bytes received it computes the goodput of the present subsegment, a
//! moving average over completed ones, and the backlog.
//!
//! 1. Subsegments of a connection arrive one after the other. The time of a subsegment therefore begins at the end of
//!    the previous one, or with its request if nothing was in flight.
//! 2. The load balancer uses the goodput of the present subsegment. The link-mode chooser uses the moving average over
//!    completed subsegments (GreenBag §IV-B: α = 0.3). A subsegment that took too little time to measure enters the
//!    average together with the next ones.
//! 3. A subsegment that has hardly begun has no meaningful goodput. The previous goodput is used until enough bytes
//!    have arrived, or should have arrived by the elapsed time. Bytes that arrive all at once at the beginning were
//!    held up behind a lost packet, so over short times a rate counts at most twice the previous one.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::fetch::{ByteRange, ReqId};
use crate::units::{Bitrate, DataSize, Instant, Ratio};

/// State of one link; see the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub(super) struct StreamLink {
    requested: VecDeque<Subsegment>,
    /// Parts of segments that this link will request next.
    pub(super) reserved: VecDeque<ByteRange>,
    last_goodput: Option<Bitrate>,
    average_goodput: Option<Bitrate>,
    /// Completed subsegments that are not part of the average yet: bytes and time.
    unaveraged: (DataSize, Duration),
}

/// A requested part of a segment, not yet completely received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subsegment {
    pub(super) req: ReqId,
    pub(super) range: ByteRange,
    pub(super) started_at: Instant,
    received: DataSize,
}

impl StreamLink {
    pub(super) fn on_request(&mut self, now: Instant, req: ReqId, range: ByteRange) {
        self.requested.push_back(Subsegment { req, range, started_at: now, received: DataSize::ZERO });
    }

    pub(super) fn on_bytes(&mut self, now: Instant, req: ReqId, len: DataSize, alpha: Ratio) {
        let Some(at) = self.requested.iter().position(|sub| sub.req == req) else { return };
        let Some(sub) = self.requested.get_mut(at) else { return };
        sub.received += len;
        if sub.received < sub.range.len() {
            return;
        }
        let (received, elapsed) = (sub.received, now.since(sub.started_at));
        let goodput = self.measured_goodput(received, elapsed);
        self.unaveraged = (self.unaveraged.0 + received, self.unaveraged.1.saturating_add(elapsed));
        self.requested.remove(at);
        if let Some(next) = self.requested.front_mut() {
            next.started_at = now;
        }
        self.last_goodput = Some(goodput);
        let (size, time) = self.unaveraged;
        if time >= MIN_SAMPLE_TIME || self.average_goodput.is_none() {
            let goodput = size / time.max(MIN_ELAPSED);
            let before = self.average_goodput.unwrap_or(goodput);
            self.average_goodput = Some(goodput.share(alpha) + before.share(alpha.complement()));
            self.unaveraged = (DataSize::ZERO, Duration::ZERO);
        }
    }

    /// Drops canceled and failed requests. The goodput of the present one is kept as the last goodput.
    pub(super) fn retain(&mut self, now: Instant, mut is_live: impl FnMut(ReqId) -> bool) {
        if self.requested.front().is_some_and(|sub| !is_live(sub.req)) {
            self.last_goodput = Some(self.goodput(now));
        }
        self.requested.retain(|sub| is_live(sub.req));
    }

    /// Drops requested and reserved ranges; keeps what was learnt about the link.
    pub(super) fn clear(&mut self) {
        self.requested.clear();
        self.reserved.clear();
    }

    /// G: the goodput of the present subsegment.
    pub(super) fn goodput(&self, now: Instant) -> Bitrate {
        let Some(sub) = self.requested.front() else { return self.last_goodput.unwrap_or_default() };
        let time = now.since(sub.started_at);
        match self.last_goodput {
            Some(last)
                if sub.received < MIN_SAMPLE_BYTES
                    && last * time.saturating_sub(MIN_SAMPLE_TIME) < MIN_SAMPLE_BYTES =>
            {
                last
            }
            _ => self.measured_goodput(sub.received, time),
        }
    }

    /// Rate of `received` bytes in `time`. If the time is too short to measure, at most twice the previous goodput.
    fn measured_goodput(&self, received: DataSize, time: Duration) -> Bitrate {
        let rate = received / time.max(MIN_ELAPSED);
        match self.last_goodput {
            Some(last) if time < MIN_SAMPLE_TIME => rate.min(last * 2),
            _ => rate,
        }
    }

    /// Ĝ: the long-term goodput of the link.
    pub(super) fn predicted_goodput(&self, now: Instant) -> Bitrate {
        self.average_goodput.unwrap_or_else(|| self.goodput(now))
    }

    /// The outstanding subsegments, oldest first.
    pub(super) fn requested(&self) -> impl Iterator<Item = &Subsegment> {
        self.requested.iter()
    }

    /// Whether the link has neither requested nor reserved ranges.
    pub(super) fn is_idle(&self) -> bool {
        self.requested.is_empty() && self.reserved.is_empty()
    }

    /// Bytes still missing from requested and reserved ranges.
    pub(super) fn backlog(&self) -> DataSize {
        let requested: DataSize = self.requested.iter().map(|sub| sub.range.len() - sub.received).sum();
        requested + self.reserved.iter().map(|range| range.len()).sum()
    }

    /// Time that the backlog takes at the present goodput.
    pub(super) fn time_left(&self, now: Instant) -> Duration {
        self.backlog() / self.goodput(now)
    }
}

/// Lower bound of a subsegment's time, for bytes that had already arrived when its time began.
const MIN_ELAPSED: Duration = Duration::from_millis(1);
/// Below this time a rate is not trusted. It covers a queue-inflated RTT, during which nothing or everything may
/// arrive. Our choice: a third of what half a segment takes at the paper's 3 Mbit/s.
const MIN_SAMPLE_TIME: Duration = Duration::from_millis(200);
/// A subsegment has its own goodput once this much has arrived, or should have at the previous goodput.
const MIN_SAMPLE_BYTES: DataSize = DataSize::from_kib(32);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn range(start: u64, len: u64) -> ByteRange {
        ByteRange::at(start, DataSize::from_bytes(len))
    }

    const ALPHA: Ratio = Ratio::from_percent(30);

    #[test]
    fn a_subsegments_time_begins_at_the_end_of_the_previous_one() {
        let mut link = StreamLink::default();
        link.on_request(at(0), ReqId(1), range(0, 100_000));
        link.on_request(at(800), ReqId(2), range(100_000, 100_000));
        link.on_bytes(at(1000), ReqId(1), DataSize::from_bytes(100_000), ALPHA);
        assert_eq!(link.goodput(at(1000)), Bitrate::from_bits_per_sec(800_000));
        link.on_bytes(at(1400), ReqId(2), DataSize::from_bytes(50_000), ALPHA);
        assert_eq!(link.goodput(at(1400)), Bitrate::from_mbps(1));
        link.on_bytes(at(1500), ReqId(2), DataSize::from_bytes(50_000), ALPHA);
        // 0.3 × 1.6 + 0.7 × 0.8 Mbit/s.
        assert_eq!(link.predicted_goodput(at(1500)), Bitrate::from_bits_per_sec(1_040_000));
        assert!(link.is_idle());
    }

    #[test]
    fn a_burst_does_not_raise_the_goodput() {
        let mut link = StreamLink::default();
        link.on_request(at(0), ReqId(1), range(0, 100_000));
        link.on_bytes(at(800), ReqId(1), DataSize::from_bytes(100_000), ALPHA);
        assert_eq!(link.predicted_goodput(at(800)), Bitrate::from_mbps(1));
        for n in 2..9 {
            link.on_request(at(800), ReqId(n), range(0, 10_000));
            link.on_bytes(at(801), ReqId(n), DataSize::from_bytes(10_000), ALPHA);
        }
        assert_eq!(link.predicted_goodput(at(801)), Bitrate::from_mbps(1));
    }

    #[test]
    fn a_stalled_subsegment_no_longer_inherits_the_previous_goodput() {
        let mut link = StreamLink::default();
        link.on_request(at(0), ReqId(1), range(0, 100_000));
        link.on_bytes(at(200), ReqId(1), DataSize::from_bytes(100_000), ALPHA);
        link.on_request(at(200), ReqId(2), range(100_000, 100_000));
        assert_eq!(link.goodput(at(250)), Bitrate::from_mbps(4));
        assert_eq!(link.goodput(at(2200)), Bitrate::ZERO);
        assert_eq!(link.time_left(at(2200)), Duration::MAX);
        assert_eq!(link.backlog().bytes(), 100_000);
    }
}
