//! Withheld ACK: keeps the acknowledgement of one received byte back, to restart the sender with it when an outage
//! ends.
//!
//! A sender that has had retransmission timeouts waits for its next one, which may be half of the outage away. Anything
//! that moves its left edge restarts it at once, however long the timeout has become; a repeated ACK or a window update
//! does not (measured on Linux 6.18). So while data flows in order, one byte less is acknowledged, and that byte when
//! the link recovers. It has arrived: nothing is acknowledged that has not.
//!
//! 1. The byte is released after `hold_time` without another ACK, so that nothing waits for it, and with every ACK
//!    that reports holes, because the sender would otherwise take the segment for lost. Releasing it over a link that
//!    is down costs nothing.
//! 2. Behind a hole, and for some seconds after it, no byte is withheld ([`WithheldAck::is_worth_it`]). The sender would
//!    learn of its last segment later than without this, and repair its losses at another time; behind a policer that
//!    takes goodput from competing flows.
//! 3. An acknowledged number never moves back.

use super::ack_pipeline::{AckChange, AckObservation, AckRewriter};
use crate::accel::Mechanism;
use crate::accel::observation::flow_meter::FlowMeter;
use crate::accel::options::options;
use crate::accel::status::MechanismReport;
use crate::units::{Duration, Instant};
use crate::wire::packet::Seq;

/// The withheld byte of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WithheldAck {
    options: &'static WithheldAckOptions,
    /// The highest number that was acknowledged to the sender.
    acked: Option<Seq>,
    /// Until when a byte is withheld, and the number to acknowledge then.
    withheld: Option<(Instant, Seq)>,
    /// The byte was released and nothing came since, so that its ACK may be lost; or it is kept for the end of an
    /// outage.
    is_released: bool,
}

impl WithheldAck {
    /// With these options, and nothing withheld.
    pub(super) fn new(options: &'static WithheldAckOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Whether a byte may be withheld: the flow receives as many segments as a download that fills a link, many are in
    /// flight, those in the queue included, and no hole has shown for some time.
    pub(super) fn is_worth_it(&self, now: Instant, meter: &FlowMeter, queueing_delay: Duration) -> bool {
        let (segment, options) = (u64::from(meter.segment_size), self.options);
        let in_flight = meter.goodput.rate(now) * (meter.rtt.min() + queueing_delay);
        meter.goodput.recent_bytes(now).bytes() >= segment * options.min_recent_segments
            && in_flight.bytes() >= segment * options.min_segments
            && meter.last_loss.is_none_or(|last| now.since(last) >= options.min_loss_free_time)
    }

    /// The receiver acknowledges `ack`; `keep`: one byte may be withheld for this long. Returns the number to send.
    pub(super) fn on_ack(&mut self, now: Instant, ack: Seq, max_hold: Option<Duration>) -> Seq {
        let prev_ack = self.acked.map_or(ack.minus(1), |acked| ack.minus(1).later(acked));
        self.withheld = max_hold.filter(|_| prev_ack.is_before(ack)).map(|hold_time| (now + hold_time, ack));
        let number = if self.withheld.is_some() { prev_ack } else { ack };
        self.is_released = false;
        self.acked = Some(self.acked.map_or(number, |acked| acked.later(number)));
        number
    }

    /// Whether a byte is withheld that may restart the sender.
    pub(super) fn report(&self, report: &mut MechanismReport<'_>) {
        report.active(Mechanism::WithheldAck, self.can_restart_sender());
    }

    /// Everything before this number was acknowledged.
    pub(super) const fn acked(&self) -> Option<Seq> {
        self.acked
    }

    /// Another packet has acknowledged this number.
    pub(super) fn on_acked(&mut self, ack: Seq) {
        self.acked = Some(self.acked.map_or(ack, |acked| acked.later(ack)));
        if self.withheld.is_some_and(|(_, withheld_ack)| !withheld_ack.is_after(ack)) {
            self.withheld = None;
        }
    }

    /// When the byte is to be released, unless another ACK leaves first.
    pub(super) fn due(&self) -> Option<Instant> {
        self.withheld.map(|(until, _)| until)
    }

    /// Releases the byte. Returns false if none is withheld.
    pub(super) fn release(&mut self) -> bool {
        let withheld = self.withheld.take();
        if let Some((_, ack)) = withheld {
            self.on_acked(ack);
        }
        self.is_released |= withheld.is_some();
        withheld.is_some()
    }

    /// The link is down: the byte is kept for the end of the outage.
    pub(super) fn withhold_until_recovery(&mut self) {
        self.is_released |= self.withheld.take().is_some();
    }

    /// Whether acknowledging everything that has arrived may restart the sender, because it may not know of the last
    /// byte yet.
    pub(super) const fn can_restart_sender(&self) -> bool {
        self.withheld.is_some() || self.is_released
    }
}

impl AckRewriter for WithheldAck {
    fn rewrite(&mut self, seen: &AckObservation<'_>, change: AckChange) -> AckChange {
        // A suppressed ACK tells the sender nothing.
        if seen.is_suppressed {
            return change;
        }
        // Without SACK duplicate ACKs alone report holes, and a retransmission that is acknowledged by one byte less
        // looks like the loss of a segment that has arrived (RFC 6582 §3.2).
        let keeps = seen.mechanisms.has(Mechanism::WithheldAck)
            && seen.is_sack_permitted
            && seen.advance > 0
            && seen.ack.sack_blocks.is_empty()
            && !change.is_exact
            && !seen.is_frozen
            && seen.can_withhold;
        let hold_time = if seen.is_upload { self.options.upload_hold_time } else { self.options.hold_time };
        AckChange { ack: Some(self.on_ack(seen.now, seen.ack.ack, keeps.then_some(hold_time))), ..change }
    }
}

options! {
    /// Options of the withheld ACK.
    pub struct WithheldAckOptions {
        /// Segments in the last 200 to 300 ms from which on a byte is withheld: 0.5 Mbit/s. A slower flow has no window
        /// that an outage could cost.
        pub min_recent_segments: u64 = 10,
        /// Segments in flight, those in the queue included. A withheld byte keeps a segment in the sender's window that
        /// has already arrived: of twenty a twentieth at most, and nothing where the link is the limit; a window of
        /// seven is slower by a seventh (histories 130 and 4929).
        pub min_segments: u64 = 20,
        /// Time since the last hole. A window that a loss has halved grows back in some seconds (RFC 9438), so behind a
        /// policer, where one loss follows another, no byte is withheld.
        pub min_loss_free_time: Duration = Duration::from_secs(5),
        /// How long the byte is withheld: longer than Linux delays an ACK (40 ms), far shorter than a sender waits for
        /// one (200 ms beyond the round trip).
        pub hold_time: Duration = Duration::from_millis(60),
        /// The same towards the local stack, where a released byte is used up even during an outage: longer than the
        /// detection of an outage takes while the gateway answers within 80 ms.
        pub upload_hold_time: Duration = Duration::from_millis(400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;
    const HOLD_TIME: Duration = WithheldAckOptions::DEFAULT.hold_time;

    #[test]
    fn one_byte_less_is_acknowledged_while_data_flows() {
        let mut withheld = WithheldAck::default();
        assert_eq!(withheld.on_ack(NOW, Seq::new(1000), Some(HOLD_TIME)), Seq::new(999));
        assert_eq!(withheld.on_ack(NOW, Seq::new(2000), Some(HOLD_TIME)), Seq::new(1999));
        assert!(withheld.can_restart_sender());
        assert_eq!(withheld.due(), Some(NOW + HOLD_TIME));
    }

    #[test]
    fn an_acknowledged_number_never_moves_back() {
        let mut withheld = WithheldAck::default();
        assert_eq!(withheld.on_ack(NOW, Seq::new(1000), None), Seq::new(1000));
        assert_eq!(withheld.on_ack(NOW, Seq::new(1000), Some(HOLD_TIME)), Seq::new(1000));
        assert!(!withheld.can_restart_sender() && withheld.due().is_none());
        withheld.on_acked(Seq::new(3000));
        assert_eq!(withheld.on_ack(NOW, Seq::new(3000), Some(HOLD_TIME)), Seq::new(3000));
        assert_eq!(withheld.on_ack(NOW, Seq::new(3001), Some(HOLD_TIME)), Seq::new(3000));
    }

    #[test]
    fn the_byte_is_released_once() {
        let mut withheld = WithheldAck::default();
        withheld.on_ack(NOW, Seq::new(1000), Some(HOLD_TIME));
        assert!(withheld.release());
        assert!(!withheld.release() && withheld.due().is_none());
        assert!(withheld.can_restart_sender(), "its ACK may be lost");
        withheld.on_ack(NOW, Seq::new(2000), Some(HOLD_TIME));
        withheld.on_acked(Seq::new(2000));
        assert!(!withheld.can_restart_sender());
    }
}
