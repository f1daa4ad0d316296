//! Detects senders that do not slow down after a loss, such as BBR. For them there is no reduction to undo.
//!
//! 1. A loss that the classifier calls congestion is never undone, so it shows what the sender does. The bytes in
//!    flight (the rate times the base round trip and the queueing delay) six round trips after it are compared with
//!    those before: CUBIC reduces them by three tenths, Reno by half, whether a queue or the rate shrinks.
//! 2. A sender that reduces them by less than an eighth, three times in a row, is left alone for five minutes. So is a
//!    flow that its application or its receiver limits: it has nothing to gain.
//! 3. Only flows with a steady rate, three times as fast as a sender that responds would be, are judged.
//!
//! Leaving one episode unaided on purpose would answer sooner. It was tried: a window that is cut once among random
//! losses needs ten seconds to recover, because CUBIC restarts its growth at each loss, undone or not.

use crate::accel::observation::options::ObservationOptions;
use crate::units::{Bitrate, Duration, Instant, Ratio};

/// What is known of one flow's sender.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CongestionResponse {
    options: &'static ObservationOptions,
    totals: Totals,
    /// The oldest first, each as far apart as a measurement takes.
    marks: [Option<Totals>; 3],
    /// How often in a row the sender did not slow down.
    unresponsive_count: u32,
    phase: Phase,
}

/// Running totals at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    at: Instant,
    bytes: u64,
    packets: u64,
    /// The sum of the queueing delays of all packets, in nanoseconds.
    queueing: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    /// Waits for the next congestion loss.
    #[default]
    Idle,
    /// A congestion loss came; before it, so many bytes were in flight.
    Congestion { before: u64, since: Instant },
    /// By now the sender has reacted.
    After { before: u64, from: Totals },
    /// The sender does not slow down.
    Unresponsive { until: Instant },
}

/// An ACK, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckSample {
    /// A hole showed first, and is classified as congestion.
    pub(crate) is_congestion: bool,
    /// The flow's round-trip time without queueing.
    pub(crate) rtt: Duration,
    /// The goodput that a sender with a congestion response would reach at this loss.
    pub(crate) plain_tcp: Option<Bitrate>,
}

impl CongestionResponse {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static ObservationOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// So many bytes came, in any order, after this queueing delay.
    pub(crate) fn on_arrival(&mut self, bytes: usize, waited: Option<Duration>) {
        self.totals.bytes += u64::try_from(bytes).unwrap_or(0);
        self.totals.packets += 1;
        let waited = waited.unwrap_or_default().as_nanos();
        self.totals.queueing = self.totals.queueing.saturating_add(u64::try_from(waited).unwrap_or(u64::MAX));
    }

    /// Whether the sender responds to congestion, so that its reductions may be undone. To be called with each ACK.
    pub(crate) fn is_responsive(&mut self, now: Instant, sample: &AckSample) -> bool {
        self.totals.at = now;
        let (mark, window) = (self.totals, sample.rtt * self.options.response_rtts);
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
                let is_unmoved = reaches(from.in_flight(mark, sample.rtt), self.options.unresponsive_share, before);
                self.unresponsive_count = if is_unmoved { self.unresponsive_count + 1 } else { 0 };
                if self.unresponsive_count >= self.options.unresponsive_count {
                    Phase::Unresponsive { until: now + UNRESPONSIVE_TIME }
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

    /// Whether the sender was found not to slow down.
    pub(crate) const fn is_unresponsive(&self) -> bool {
        matches!(self.phase, Phase::Unresponsive { .. })
    }

    /// The bytes in flight before a congestion loss that shows now; none if it cannot be judged.
    fn in_flight_before(&self, sample: &AckSample, window: Duration) -> Option<u64> {
        let [Some(first), Some(second), Some(_)] = self.marks else { return None };
        if self.totals.at.since(first.at) > window * 4 {
            return None;
        }
        let (earlier, before) = (first.in_flight(second, sample.rtt), second.in_flight(self.totals, sample.rtt));
        let share = self.options.unresponsive_share;
        let is_even = reaches(before, share, earlier) && reaches(earlier, share, before);
        let alone = sample.plain_tcp?.bits_per_sec() / 8;
        (is_even && second.rate(self.totals) / 3 >= alone).then_some(before)
    }
}

impl Totals {
    /// Bytes per second.
    fn rate(self, now: Self) -> u64 {
        let micros = u64::try_from(now.at.since(self.at).as_micros()).unwrap_or(u64::MAX).max(1);
        (now.bytes - self.bytes).saturating_mul(1_000_000) / micros
    }

    /// Mean number of bytes in flight.
    fn in_flight(self, now: Self, rtt: Duration) -> u64 {
        let waited = (now.queueing - self.queueing) / (now.packets - self.packets).max(1);
        let time = rtt + Duration::from_nanos(waited);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.rate(now).saturating_mul(micros) / 1_000_000
    }
}

/// Whether `share` of `whole` is at most `part`.
fn reaches(part: u64, share: Ratio, total: u64) -> bool {
    u128::from(total) * u128::from(share.ppm()) <= u128::from(part) * 1_000_000
}

/// Bounds how long a flow loses by a wrong verdict.
const UNRESPONSIVE_TIME: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// A flow that fills a link and a queue of 50 ms, with a congestion loss each second, after which this percentage
    /// of the bytes is in flight; half a second later all is as before. Returns for how many of the 20 losses the flow
    /// was accelerated.
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
    fn a_sender_that_slows_down_is_helped_and_another_is_left_alone() {
        assert_eq!(run(70), (20, false));
        assert_eq!(run(50), (20, false));
        let (helped_losses, unmoved) = run(100);
        assert!(unmoved && helped_losses <= 5, "{helped_losses}");
    }

    #[test]
    fn a_flow_no_faster_than_plain_tcp_is_not_judged() {
        let mut response = CongestionResponse::default();
        for ms in 0..20_000 {
            response.on_arrival(2500, None);
            let sample =
                AckSample { is_congestion: ms % 100 == 0, rtt: RTT, plain_tcp: Some(Bitrate::from_mbps(10)) };
            assert!(response.is_responsive(Instant::from_millis(ms), &sample));
        }
    }
}
