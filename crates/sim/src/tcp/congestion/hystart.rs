//! HyStart: detects during slow start that the window is large enough, before the queue overflows.
//!
//! It uses the times and the RTTs of ACKs.
//!
//! 1. A round ends when everything that was in flight at its start has been acknowledged.
//! 2. ACK train: ACKs with gaps of at most 2 ms, since the start of the round, for longer than half of the minimum RTT plus 1 ms (the
//!    longest burst of the sender).
//! 3. Delay increase: after eight RTTs of a round, the minimum of all its RTTs so far exceeds the minimum RTT of the connection by an
//!    eighth, at least by 4 ms and at most by 16 ms.
//! 4. Nothing is measured with a window below 16 segments.
//!
//! Both criteria and all constants are those of Linux's CUBIC, which differ from the paper's and from RFC 9406's.

use core::time::Duration;

use marline_core::units::Instant;

/// HyStart state of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct HyStart {
    has_ended_slow_start: bool,
    round_start: Instant,
    last_ack: Instant,
    round_end: u64,
    samples: u32,
    round_min_rtt: Option<Duration>,
}

impl HyStart {
    /// Processes an ACK in slow start. Returns true, once, if slow start must end.
    pub(super) fn on_ack(&mut self, now: Instant, ack: AckSample) -> bool {
        if self.has_ended_slow_start || ack.window < MIN_WINDOW {
            return false;
        }
        if ack.una > self.round_end {
            *self = Self { round_start: now, last_ack: now, round_end: ack.nxt, ..Self::default() };
        }
        self.has_ended_slow_start =
            self.is_ack_train(now, ack.min_rtt) | self.is_delay_increase(ack.rtt, ack.min_rtt);
        self.has_ended_slow_start
    }

    fn is_ack_train(&mut self, now: Instant, min_rtt: Duration) -> bool {
        if now.since(self.last_ack) > MAX_ACK_GAP {
            return false;
        }
        self.last_ack = now;
        now.since(self.round_start) > (min_rtt + MAX_SENDER_BURST) / 2
    }

    fn is_delay_increase(&mut self, rtt: Duration, min_rtt: Duration) -> bool {
        let round_min = self.round_min_rtt.map_or(rtt, |least| least.min(rtt));
        self.round_min_rtt = Some(round_min);
        if self.samples < RTT_SAMPLES {
            self.samples += 1;
            return false;
        }
        round_min > min_rtt + (min_rtt / 8).clamp(MIN_DELAY_INCREASE, MAX_DELAY_INCREASE)
    }
}

/// What an ACK contributes to the detection.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    /// RTT of the newest segment that the ACK acknowledges.
    pub(super) rtt: Duration,
    /// Minimum RTT of the connection.
    pub(super) min_rtt: Duration,
    /// First unacknowledged sequence number.
    pub(super) una: u64,
    /// Next sequence number to be sent.
    pub(super) nxt: u64,
    /// Congestion window in segments.
    pub(super) window: u32,
}

const MIN_WINDOW: u32 = 16;
const MAX_ACK_GAP: Duration = Duration::from_millis(2);
const MAX_SENDER_BURST: Duration = Duration::from_millis(1);
const RTT_SAMPLES: u32 = 8;
const MIN_DELAY_INCREASE: Duration = Duration::from_millis(4);
const MAX_DELAY_INCREASE: Duration = Duration::from_millis(16);

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    fn ack(rtt: Duration) -> AckSample {
        AckSample { rtt, min_rtt: RTT, una: 1, nxt: 100, window: 40 }
    }

    #[test]
    fn an_ack_train_of_half_an_rtt_ends_slow_start() {
        let mut hystart = HyStart::default();
        let ended = (0..40).find(|ms| hystart.on_ack(Instant::from_millis(100 + ms), ack(RTT)));
        assert_eq!(ended, Some(21), "(40 ms + 1 ms) / 2 is exceeded at 21 ms");
    }

    #[test]
    fn scattered_acks_without_a_delay_increase_do_not_end_slow_start() {
        let mut hystart = HyStart::default();
        assert!((0..40).all(|n| !hystart.on_ack(Instant::from_millis(100 + 3 * n), ack(RTT))));
    }

    #[test]
    fn a_delay_increase_of_an_eighth_ends_slow_start_after_eight_samples() {
        let mut hystart = HyStart::default();
        let slow = ack(RTT + Duration::from_micros(5001));
        let ended = (0..40).find(|n| hystart.on_ack(Instant::from_millis(100 + 3 * n), slow));
        assert_eq!(ended, Some(8));
    }

    #[test]
    fn a_small_window_is_not_examined() {
        let mut hystart = HyStart::default();
        let small = AckSample { window: 15, ..ack(RTT) };
        assert!((0..60).all(|ms| !hystart.on_ack(Instant::from_millis(ms), small)));
    }
}
