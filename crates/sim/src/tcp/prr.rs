//! Proportional rate reduction: how the window shrinks to the new threshold after a loss (RFC 6937 §3).
//!
//! While more is in flight than the threshold, segments are sent in the proportion threshold : old window. Below
//! the threshold, as many are sent as were delivered, plus one if the ACK advances without a new loss (slow-start
//! reduction bound). Halving the window at once would stop the sender for half a round.

/// State of one reduction, from its loss to the end of recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    prior_cwnd: u32,
    delivered: u32,
    sent: u32,
}

/// What an ACK contributes to the reduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSummary {
    /// Number of segments that it delivers.
    pub(super) delivered: u32,
    /// Whether it advances the first unacknowledged number without showing a new loss.
    pub(super) advanced_without_loss: bool,
}

impl Prr {
    /// Starts a reduction from a window of `before` segments.
    pub(super) const fn new(before: u32) -> Self {
        Self { prior_cwnd: before, delivered: 0, sent: 0 }
    }

    /// Window after an ACK, in segments.
    pub(super) fn on_ack(&mut self, ack: AckSummary, in_flight: u32, threshold: u32) -> u32 {
        self.delivered += ack.delivered;
        let min_segments = u32::from(self.sent == 0);
        let allowed = if in_flight > threshold {
            let fraction = u64::from(threshold) * u64::from(self.delivered);
            let fraction = fraction.div_ceil(u64::from(self.prior_cwnd.max(1)));
            u32::try_from(fraction).unwrap_or(u32::MAX).saturating_sub(self.sent)
        } else {
            let earned =
                self.delivered.saturating_sub(self.sent).max(ack.delivered) + u32::from(ack.advanced_without_loss);
            earned.min(threshold - in_flight)
        };
        in_flight + allowed.max(min_segments)
    }

    /// A segment was sent.
    pub(super) fn on_sent(&mut self) {
        self.sent += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_to_half_sends_one_segment_for_two_delivered() {
        let mut prr = Prr::new(20);
        let mut in_flight = 19;
        let mut sent = 0;
        for _ in 0..18 {
            in_flight -= 1;
            let window = prr.on_ack(AckSummary { delivered: 1, advanced_without_loss: false }, in_flight, 10);
            while in_flight < window {
                in_flight += 1;
                sent += 1;
                prr.on_sent();
            }
        }
        assert_eq!((sent, in_flight), (9, 10));
    }

    #[test]
    fn the_first_retransmission_is_sent_at_once() {
        let mut prr = Prr::new(100);
        assert_eq!(prr.on_ack(AckSummary { delivered: 0, advanced_without_loss: false }, 90, 70), 91);
    }
}
