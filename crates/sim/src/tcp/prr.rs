//! How fast is the window brought down after a loss?
//!
//! In: what each ACK delivered. Out: the window that lets the right number of segments out in answer.
//!
//! Proportional rate reduction (RFC 6937 §3, the slow-start reduction bound): while more is in flight than the new
//! threshold, segments go out in the proportion threshold : old window; below it, as many as were delivered, one more
//! if the ACK moved the edge without a new loss. Halving at once was not used: it silences the sender for half a round.

/// The state of one reduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    prior_cwnd: u32,
    delivered: u32,
    sent: u32,
}

/// What an ACK says to the reduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSummary {
    /// Segments that it delivered.
    pub(super) delivered: u32,
    /// It moved the edge and showed no new loss.
    pub(super) advanced_without_loss: bool,
}

impl Prr {
    /// A reduction from a window of `before` segments.
    pub(super) const fn new(before: u32) -> Self {
        Self { prior_cwnd: before, delivered: 0, sent: 0 }
    }

    /// The window after an ACK.
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

    /// A segment went out.
    pub(super) fn on_sent(&mut self) {
        self.sent += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_to_half_sends_one_for_two() {
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
    fn the_first_segment_goes_out_at_once() {
        let mut prr = Prr::new(100);
        assert_eq!(prr.on_ack(AckSummary { delivered: 0, advanced_without_loss: false }, 90, 70), 91);
    }
}
