//! Does the sender slow down when something is lost? One that does not (BBR) has nothing to take back.
//!
//! In: packets as they come, and how long each has waited; the flow's losses. Out: whether the flow is to be helped.
//!
//! 1. A loss that the gate calls congestion is never helped, so it shows what the sender does. What is on its way (the
//!    rate times the base round trip and the waiting) six round trips after it is compared with that before: CUBIC takes
//!    three tenths away, Reno half, be it from a queue or from the rate.
//! 2. Who takes away less than an eighth, three times in a row, is left alone for five minutes. So is a flow that its
//!    application or its receiver limits: it has nothing to gain.
//! 3. Only flows that are steady, and thrice as fast as such a sender would be alone, are judged.
//!
//! An episode that is not helped on purpose would tell sooner. It was tried: a window that is cut once among random
//! losses needs ten seconds to grow back (CUBIC starts its growth again with each loss, helped or not).

use crate::units::{Bitrate, Duration, Instant, Ratio};

/// What is known of one flow's sender.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct CongestionResponse {
    totals: Totals,
    /// The oldest first, each as long apart as a measurement takes.
    marks: [Option<Totals>; 3],
    /// How often in a row it was found unmoved.
    unresponsive_count: u32,
    phase: Phase,
}

/// All up to a time.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    at: Instant,
    bytes: u64,
    packets: u64,
    /// Nanoseconds of all packets.
    queueing: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// A congestion was told; before it, so many bytes were on their way.
    Congestion {
        before: u64,
        since: Instant,
    },
    /// The sender has taken it in by now.
    After {
        before: u64,
        from: Totals,
    },
    Unresponsive {
        until: Instant,
    },
}

/// An ACK, as far as this is concerned.
#[derive(Clone, Copy, Debug)]
pub(in crate::accel) struct AckSample {
    /// A hole showed first, and is called congestion.
    pub(in crate::accel) is_congestion: bool,
    /// The flow's round trip without waiting.
    pub(in crate::accel) rtt: Duration,
    /// What a sender that slows down would bring alone.
    pub(in crate::accel) plain_tcp: Option<Bitrate>,
}

impl CongestionResponse {
    /// So many bytes came, in whatever order, and have waited so long.
    pub(in crate::accel) fn on_arrival(&mut self, bytes: usize, waited: Option<Duration>) {
        self.totals.bytes += u64::try_from(bytes).unwrap_or(0);
        self.totals.packets += 1;
        let waited = waited.unwrap_or_default().as_nanos();
        self.totals.queueing = self.totals.queueing.saturating_add(u64::try_from(waited).unwrap_or(u64::MAX));
    }

    /// Whether the flow is to be helped now.
    pub(in crate::accel) fn is_responsive(&mut self, now: Instant, sample: &AckSample) -> bool {
        self.totals.at = now;
        let (mark, window) = (self.totals, sample.rtt * SAMPLE_RTTS);
        if self.marks[2].is_none_or(|newest| now.since(newest.at) >= window) {
            self.marks = [self.marks[1], self.marks[2], Some(mark)];
        }
        self.phase = match self.phase {
            Phase::Idle if sample.is_congestion => match self.in_flight_before(sample, window) {
                Some(before) => Phase::Congestion { before, since: now },
                None => Phase::Idle,
            },
            Phase::Congestion { before, since } if now.since(since) >= sample.rtt * 2 => {
                Phase::After { before, from: mark }
            }
            Phase::After { before, from } if now.since(from.at) >= window => {
                let is_unmoved = UNCHANGED.is_below(from.in_flight(mark, sample.rtt), before);
                self.unresponsive_count = if is_unmoved { self.unresponsive_count + 1 } else { 0 };
                if self.unresponsive_count >= MIN_COUNT {
                    Phase::Unresponsive { until: now + RETRY }
                } else {
                    Phase::Idle
                }
            }
            Phase::Unresponsive { until } if now >= until => {
                self.unresponsive_count = 0;
                Phase::Idle
            }
            same => same,
        };
        !self.is_unresponsive()
    }

    /// Whether it was found not to slow down.
    pub(in crate::accel) const fn is_unresponsive(&self) -> bool {
        matches!(self.phase, Phase::Unresponsive { .. })
    }

    /// What was on its way before a congestion that is told now, if that is one to look at.
    fn in_flight_before(&self, sample: &AckSample, window: Duration) -> Option<u64> {
        let [Some(first), Some(second), Some(_)] = self.marks else { return None };
        if self.totals.at.since(first.at) > window * 4 {
            return None;
        }
        let (earlier, before) = (first.in_flight(second, sample.rtt), second.in_flight(self.totals, sample.rtt));
        let is_even = UNCHANGED.is_below(before, earlier) && UNCHANGED.is_below(earlier, before);
        let alone = sample.plain_tcp?.bits_per_sec() / 8;
        (is_even && second.rate(self.totals) / 3 >= alone).then_some(before)
    }
}

impl Totals {
    /// Bytes a second.
    fn rate(self, now: Self) -> u64 {
        let micros = u64::try_from(now.at.since(self.at).as_micros()).unwrap_or(u64::MAX).max(1);
        (now.bytes - self.bytes).saturating_mul(1_000_000) / micros
    }

    /// Bytes on their way at a time, on average.
    fn in_flight(self, now: Self, rtt: Duration) -> u64 {
        let waited = (now.queueing - self.queueing) / (now.packets - self.packets).max(1);
        let time = rtt + Duration::from_nanos(waited);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.rate(now).saturating_mul(micros) / 1_000_000
    }
}

/// How much of something counts as all of it.
struct Share(Ratio);

impl Share {
    /// Whether that share of `whole` is at most `part`.
    fn is_below(&self, part: u64, whole: u64) -> bool {
        u128::from(whole) * u128::from(self.0.ppm()) <= u128::from(part) * 1_000_000
    }
}

/// Round trips. chosen: long enough to count some hundred packets, too short to grow back.
const SAMPLE_RTTS: u32 = 6;
/// chosen: between nothing and the three tenths of CUBIC.
const UNCHANGED: Share = Share(Ratio::from_ppm(875_000));
/// chosen: one that slows down looks otherwise once in ten times, by the sizes of samples.
const MIN_COUNT: u32 = 3;
const RETRY: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// A flow that fills a link and a queue of 50 ms, with a congestion each second, after which so many percent are on
    /// their way; half a second later it is as before. For how many of 20 was it helped?
    fn run(percent: u64) -> (u32, bool) {
        let (mut response, mut helped_losses) = (CongestionResponse::default(), 0);
        for ms in 0..20_000_u64 {
            let now = Instant::from_millis(ms);
            let is_cut = ms > 1000 && (50..550).contains(&(ms % 1000));
            let in_flight = if is_cut { 100 * percent / 100 } else { 100 };
            response.on_arrival(2500, Some(Duration::from_millis(in_flight.saturating_sub(50))));
            let is_congestion = ms % 1000 == 0;
            let sample = AckSample { is_congestion, rtt: RTT, plain_tcp: Some(Bitrate::from_mbps(3)) };
            helped_losses += u32::from(response.is_responsive(now, &sample) && is_congestion);
        }
        (helped_losses, response.is_unresponsive())
    }

    #[test]
    fn who_slows_down_is_helped_and_who_does_not_is_left_alone() {
        assert_eq!(run(70), (20, false));
        assert_eq!(run(50), (20, false));
        let (helped_losses, unmoved) = run(100);
        assert!(unmoved && helped_losses <= 5, "{helped_losses}");
    }

    #[test]
    fn a_flow_that_is_no_faster_than_alone_is_not_judged() {
        let mut response = CongestionResponse::default();
        for ms in 0..20_000 {
            response.on_arrival(2500, None);
            let sample =
                AckSample { is_congestion: ms % 100 == 0, rtt: RTT, plain_tcp: Some(Bitrate::from_mbps(10)) };
            assert!(response.is_responsive(Instant::from_millis(ms), &sample));
        }
    }
}
