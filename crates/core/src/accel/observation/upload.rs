//! Observes an upload (Super-aggregation §3.5): round-trip time and queueing delay of what the local stack sends.
//!
//! The sender is the local stack, so its segments are seen as they leave, and its own clock returns in the peer's ACKs.
//!
//! 1. The local clock is read from local segments. A segment that waited in the local queue has an older timestamp than
//!    one that did not, so the sample with the newest timestamp for its time is the right one.
//! 2. While a hole is open, ACKs keep echoing the timestamp from before it (RFC 7323 section 4.3). The loss classifier
//!    needs the queueing delay of now. So the timestamps of segments that leave are kept, and each one counts when an
//!    ACK or a SACK block first reaches the end of its segment.
//! 3. A retransmitted segment gives no sample, because it is unknown which of the two arrived (Karn). It ends below the
//!    highest number that was sent, and is not kept.
//!
//! The timestamps of the peer itself were not used: they show how long ACKs wait, and it is the data that queues.

use alloc::collections::VecDeque;

use crate::units::{Duration, Instant};
use crate::wire::packet::{Segment, Seq, TcpTimestamp};

/// What is known of one upload.
#[derive(Clone, Debug, Default)]
pub(crate) struct UploadObserver {
    /// The timestamp of the local segment that has waited least, and when it left.
    clock: Option<(TcpTimestamp, Instant)>,
    /// Where sent segments end, and their timestamps; in order.
    sent_segments: VecDeque<(Seq, TcpTimestamp)>,
    /// The highest number that was acknowledged or SACKed.
    high: Option<Seq>,
    newest_echo: Option<TcpTimestamp>,
}

impl UploadObserver {
    /// A local segment leaves, or has left. `tick` is the tick of the local clock.
    pub(crate) fn on_local_segment(
        &mut self,
        now: Instant,
        segment: &Segment<'_>,
        length: u32,
        tick: Option<Duration>,
    ) {
        let Some(timestamps) = segment.timestamps() else { return };
        let ts_val = timestamps.ts_val;
        if self.current_tsval(now, tick).is_none_or(|current| current.is_before(ts_val)) {
            self.clock = Some((ts_val, now));
        }
        let end = segment.seq().plus(length);
        let is_new = self.sent_segments.back().is_none_or(|(last, at)| end.is_after(*last) && at.is_before(ts_val));
        if length > 0 && is_new && self.high.is_none_or(|high| end.is_after(high)) {
            if self.sent_segments.len() == MAX_SEGMENTS {
                self.sent_segments.pop_front();
            }
            self.sent_segments.push_back((end, ts_val));
        }
    }

    /// Whether a local segment was seen.
    pub(crate) const fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// An ACK echoes this timestamp. Returns the round-trip time if it was not echoed before.
    pub(crate) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp, tick: Option<Duration>) -> Option<Duration> {
        if self.newest_echo.is_some_and(|fresh| !fresh.is_before(echo)) {
            return None;
        }
        self.newest_echo = Some(echo);
        let ticks = u32::try_from(self.current_tsval(now, tick)?.since(echo)).ok()?;
        Some(tick?.saturating_mul(ticks))
    }

    /// Everything up to this number has arrived or is known to be lost. Returns how many bytes are new, and the newest
    /// timestamp of a segment among them.
    pub(crate) fn on_highest_received(&mut self, high: Seq) -> (u32, Option<TcpTimestamp>) {
        let before = self.high.replace(high).unwrap_or(high);
        let mut newest = None;
        while let Some((_, ts_val)) = self.sent_segments.front().copied().filter(|(end, _)| !end.is_after(high)) {
            self.sent_segments.pop_front();
            newest = Some(ts_val);
        }
        (u32::try_from(high.offset_from(before)).unwrap_or(0), newest)
    }

    fn current_tsval(&self, now: Instant, tick: Option<Duration>) -> Option<TcpTimestamp> {
        let (ts_val, at) = self.clock?;
        let ticks = now.since(at).as_nanos() / tick?.as_nanos().max(1);
        Some(ts_val.plus(u32::try_from(ticks).unwrap_or(u32::MAX)))
    }
}

/// Our choice: one per millisecond, for the longest round trips of a satellite link.
const MAX_SEGMENTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{FourTuple, NewSegment, Timestamps};

    const TICK: Option<Duration> = Some(Duration::from_millis(1));

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// A segment of 1000 bytes from this number on leaves with this timestamp.
    fn send(upload: &mut UploadObserver, now: u64, seq: u32, ts_val: u32) {
        let flow = FourTuple::new("10.0.0.2:5000".parse().unwrap(), "192.0.2.1:443".parse().unwrap()).unwrap();
        let timestamps = Timestamps { ts_val: TcpTimestamp::new(ts_val), ts_ecr: TcpTimestamp::new(1) };
        let packet = NewSegment::data(&flow, Seq::new(seq), Seq::new(1), 100, Some(timestamps), &[0; 1000]);
        let packet = packet.emit().unwrap();
        upload.on_local_segment(at(now), &Segment::parse(&packet).unwrap(), 1000, TICK);
    }

    #[test]
    fn the_round_trip_is_measured_from_a_timestamp_to_its_first_echo() {
        let mut upload = UploadObserver::default();
        assert_eq!(upload.on_echo(at(0), TcpTimestamp::new(3), TICK), None, "the local clock is unknown");
        send(&mut upload, 100, 1000, 500);
        send(&mut upload, 120, 2000, 510);
        assert_eq!(upload.on_echo(at(150), TcpTimestamp::new(500), TICK), Some(Duration::from_millis(50)));
        assert_eq!(upload.on_echo(at(160), TcpTimestamp::new(500), TICK), None);
        let waited = upload.on_echo(at(180), TcpTimestamp::new(510), TICK);
        assert_eq!(waited, Some(Duration::from_millis(70)), "including 10 ms in the local queue");
    }

    #[test]
    fn a_segment_gives_a_sample_when_first_reported_unless_it_was_retransmitted() {
        let mut upload = UploadObserver::default();
        assert_eq!(upload.on_highest_received(Seq::new(1000)), (0, None));
        for n in 0..10 {
            send(&mut upload, u64::from(n), 1000 + n * 1000, 50 + n);
        }
        send(&mut upload, 20, 3000, 70);
        assert_eq!(upload.on_highest_received(Seq::new(4000)), (3000, Some(TcpTimestamp::new(52))));
        assert_eq!(upload.on_highest_received(Seq::new(4500)), (500, None));
        assert_eq!(upload.on_highest_received(Seq::new(11_000)), (6500, Some(TcpTimestamp::new(59))));
        assert_eq!(upload.on_highest_received(Seq::new(11_000)), (0, None));
    }

    #[test]
    fn segments_that_are_never_acknowledged_take_bounded_memory() {
        let mut upload = UploadObserver::default();
        for n in 0..3000 {
            send(&mut upload, u64::from(n), n * 1000, n);
        }
        assert_eq!(upload.sent_segments.len(), MAX_SEGMENTS);
    }
}
