//! One link of a stream: the subsegments that it brings, and how fast it has brought them.
//!
//! In: requests that were sent over it and bytes that came. Out: its goodput over the present subsegment, a moving
//! average over all of them, and what it still has to bring.
//!
//! 1. Subsegments of a connection come one after the other, so the time of one begins when the one before it ends, or
//!    when it is asked for if nothing is on the way.
//! 2. The load balancer reckons with the goodput of the present subsegment, the link-mode chooser with the moving
//!    average over whole ones (GreenBag §IV-B: α = 0.3). Subsegments that were over in no time count in it together
//!    with the next ones.
//! 3. A subsegment that has hardly begun says nothing yet: the one before it speaks for it, until as much time has
//!    passed as should have brought something. What comes all at once at its beginning has waited behind a lost packet:
//!    no rate is taken for more than twice the one before, unless it lasts.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::fetch::{ByteRange, ReqId};
use crate::units::{Bitrate, DataSize, Instant, Ratio};

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct StreamLink {
    requested: VecDeque<Subsegment>,
    /// Parts of segments that it is to be asked for next.
    pub(super) reserved: VecDeque<ByteRange>,
    last_goodput: Option<Bitrate>,
    average_goodput: Option<Bitrate>,
    /// Whole subsegments that are not part of the average yet: bytes and time.
    unaveraged: (DataSize, Duration),
}

/// A part of a segment that is on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subsegment {
    pub(super) req: ReqId,
    pub(super) span: ByteRange,
    pub(super) started: Instant,
    received: DataSize,
}

impl StreamLink {
    pub(super) fn on_request(&mut self, now: Instant, req: ReqId, range: ByteRange) {
        self.requested.push_back(Subsegment { req, span: range, started: now, received: DataSize::ZERO });
    }

    pub(super) fn on_bytes(&mut self, now: Instant, req: ReqId, len: DataSize, alpha: Ratio) {
        let Some(at) = self.requested.iter().position(|sub| sub.req == req) else { return };
        let Some(sub) = self.requested.get_mut(at) else { return };
        sub.received += len;
        if sub.received < sub.span.len() {
            return;
        }
        let (received, elapsed) = (sub.received, now.since(sub.started));
        let goodput = self.measured_goodput(received, elapsed);
        self.unaveraged = (self.unaveraged.0 + received, self.unaveraged.1.saturating_add(elapsed));
        self.requested.remove(at);
        if let Some(next) = self.requested.front_mut() {
            next.started = now;
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

    /// Keeps only the requests that still live. What the present one has shown by now is remembered.
    pub(super) fn retain(&mut self, now: Instant, mut lives: impl FnMut(ReqId) -> bool) {
        if self.requested.front().is_some_and(|sub| !lives(sub.req)) {
            self.last_goodput = Some(self.goodput(now));
        }
        self.requested.retain(|sub| lives(sub.req));
    }

    /// Forgets what was to come, not what was learnt.
    pub(super) fn clear(&mut self) {
        self.requested.clear();
        self.reserved.clear();
    }

    /// G: the goodput of the present subsegment.
    pub(super) fn goodput(&self, now: Instant) -> Bitrate {
        let Some(sub) = self.requested.front() else { return self.last_goodput.unwrap_or_default() };
        let time = now.since(sub.started);
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

    /// The rate of so much in this time; of a time too short to tell, at most twice the one before.
    fn measured_goodput(&self, received: DataSize, time: Duration) -> Bitrate {
        let rate = received / time.max(MIN_ELAPSED);
        match self.last_goodput {
            Some(last) if time < MIN_SAMPLE_TIME => rate.min(last * 2),
            _ => rate,
        }
    }

    /// Ĝ: the goodput to expect of it for long.
    pub(super) fn predicted_goodput(&self, now: Instant) -> Bitrate {
        self.average_goodput.unwrap_or_else(|| self.goodput(now))
    }

    /// What it is being asked for.
    pub(super) fn requested(&self) -> impl Iterator<Item = &Subsegment> {
        self.requested.iter()
    }

    /// Whether it has nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        self.requested.is_empty() && self.reserved.is_empty()
    }

    /// What it still has to bring, of what it was asked for and of what it will be.
    pub(super) fn backlog(&self) -> DataSize {
        let requested: DataSize = self.requested.iter().map(|sub| sub.span.len() - sub.received).sum();
        requested + self.reserved.iter().map(|range| range.len()).sum()
    }

    /// How long the present subsegments take at the present goodput.
    pub(super) fn time_left(&self, now: Instant) -> Duration {
        self.backlog() / self.goodput(now)
    }
}

/// Bytes that were there already when they were looked for came in no time.
const MIN_ELAPSED: Duration = Duration::from_millis(1);
/// A round trip with its queue, in which nothing may come, or everything. chosen: a third of what half a segment takes
/// at the paper's 3 Mbit/s.
const MIN_SAMPLE_TIME: Duration = Duration::from_millis(200);
/// So much must have come, or should have, before a subsegment speaks for itself.
const MIN_SAMPLE_BYTES: DataSize = DataSize::from_kib(32);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn span(start: u64, len: u64) -> ByteRange {
        ByteRange::at(start, DataSize::from_bytes(len))
    }

    const ALPHA: Ratio = Ratio::from_percent(30);

    #[test]
    fn a_subsegments_time_begins_with_the_end_of_the_one_before() {
        let mut link = StreamLink::default();
        link.on_request(at(0), ReqId(1), span(0, 100_000));
        link.on_request(at(800), ReqId(2), span(100_000, 100_000));
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
    fn what_comes_all_at_once_is_no_rate() {
        let mut link = StreamLink::default();
        link.on_request(at(0), ReqId(1), span(0, 100_000));
        link.on_bytes(at(800), ReqId(1), DataSize::from_bytes(100_000), ALPHA);
        assert_eq!(link.predicted_goodput(at(800)), Bitrate::from_mbps(1));
        for n in 2..9 {
            link.on_request(at(800), ReqId(n), span(0, 10_000));
            link.on_bytes(at(801), ReqId(n), DataSize::from_bytes(10_000), ALPHA);
        }
        assert_eq!(link.predicted_goodput(at(801)), Bitrate::from_mbps(1));
    }

    #[test]
    fn a_stalled_subsegment_loses_its_predecessors_word() {
        let mut link = StreamLink::default();
        link.on_request(at(0), ReqId(1), span(0, 100_000));
        link.on_bytes(at(200), ReqId(1), DataSize::from_bytes(100_000), ALPHA);
        link.on_request(at(200), ReqId(2), span(100_000, 100_000));
        assert_eq!(link.goodput(at(250)), Bitrate::from_mbps(4));
        assert_eq!(link.goodput(at(2200)), Bitrate::ZERO);
        assert_eq!(link.time_left(at(2200)), Duration::MAX);
        assert_eq!(link.backlog().bytes(), 100_000);
    }
}
