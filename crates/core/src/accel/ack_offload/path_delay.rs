//! How much longer the way over the second link is than that over the first.
//!
//! In: ACKs as they leave, each with its way; timestamps echoed by what comes, and how long that has waited. Out: the
//! difference.
//!
//! 1. A round trip is that of [`crate::accel::observation::rtt`] without the time in the queue towards here: what is left differs by the ways
//!    of ACKs alone. It is there only while packets are shown.
//! 2. Of the first way the mean counts. Of the second it is nearly the longest of late, for what follows by the first way
//!    that much later is not to overtake what went by the second.
//! 3. A probe whose ACK may have been overtaken tells nothing; nor does one whose echo is the first packet that is shown
//!    after a while, how long it took: an echo may have come unseen before. That it arrived it tells.
//!
//! What gateways answer was not used: it ends at the first hop.

use super::delay_queue::MAX_DELAY;
use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// By which link an ACK leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum AckLink {
    /// The flow's own.
    Primary,
    /// The helping one.
    Secondary,
}

/// One flow's two ways.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct PathDelay {
    probe: Option<(TcpTimestamp, Instant, AckLink)>,
    /// When a packet was shown last.
    last_packet: Option<Instant>,
    primary_rtt: Option<Duration>,
    secondary_rtt: Option<Duration>,
    /// Measures of the second way since it was taken last.
    samples: u32,
    /// Whether what went by the second way has arrived.
    is_delivered: bool,
}

impl PathDelay {
    /// An ACK with this timestamp leaves.
    pub(in crate::accel) fn on_ack_sent(&mut self, now: Instant, value: TcpTimestamp, link: AckLink) {
        if self.probe.is_none_or(|(_, sent, other)| other != link || now.since(sent) >= MAX_PROBE_AGE) {
            self.probe = Some((value, now, link));
        }
    }

    /// One leaves that is held first.
    pub(in crate::accel) fn on_ack_delayed(&mut self) {
        self.probe = None;
    }

    /// A packet comes that echoes this one, and has waited so long.
    pub(in crate::accel) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp, waited: Option<Duration>) {
        let was_seen = self.is_captured(now);
        self.last_packet = Some(now);
        let Some((value, sent, link)) = self.probe else { return };
        if echo.is_before(value) {
            return;
        }
        self.probe = None;
        self.is_delivered |= link == AckLink::Secondary;
        let Some(waited) = waited.filter(|_| was_seen) else { return };
        let sample = now.since(sent).saturating_sub(waited);
        match link {
            AckLink::Primary => {
                self.primary_rtt = Some(self.primary_rtt.map_or(sample, |mean| (mean * 7 + sample) / 8));
            }
            AckLink::Secondary => {
                self.secondary_rtt =
                    Some(self.secondary_rtt.map_or(sample, |long| sample.max((long * 15 + sample) / 16)));
                self.samples = self.samples.saturating_add(1);
            }
        }
    }

    /// The second way is taken anew.
    pub(in crate::accel) fn reset_secondary(&mut self) {
        (self.secondary_rtt, self.samples, self.is_delivered) = (None, 0, false);
    }

    /// The difference, at most what a line holds; nothing while it is not known.
    pub(in crate::accel) fn difference(&self) -> Duration {
        let known = self.secondary_rtt.zip(self.primary_rtt).filter(|_| self.samples >= MIN_SAMPLES);
        known.map_or(Duration::ZERO, |(second, first)| second.saturating_sub(first).min(MAX_DELAY))
    }

    /// Whether something that went by the second way has arrived.
    pub(in crate::accel) const fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// Whether packets are shown, as far as is known.
    fn is_captured(&self, now: Instant) -> bool {
        self.last_packet.is_some_and(|seen| now.since(seen) < MAX_CAPTURE_GAP)
    }

    /// The round trip by the first way.
    pub(in crate::accel) const fn primary_rtt(&self) -> Option<Duration> {
        self.primary_rtt
    }

    /// Whether both are known.
    pub(in crate::accel) const fn is_known(&self) -> bool {
        self.primary_rtt.is_some() && self.samples >= MIN_SAMPLES
    }
}

/// chosen: the first may have been begun before the way was changed.
const MIN_SAMPLES: u32 = 2;
/// chosen: longer than packets of a flow that fills a queue are apart; what is measured is wrong by so much at the most.
const MAX_CAPTURE_GAP: Duration = Duration::from_millis(100);
/// chosen: a probe whose echo did not come by then is gone.
const MAX_PROBE_AGE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks so often by each way, one after the other, with a queue of 30 ms.
    fn ask(delay: &mut PathDelay, from: u64, link: AckLink, rtts: &[u64]) -> u64 {
        let mut at = from;
        for rtts in rtts {
            delay.on_echo(Instant::from_millis(at), TcpTimestamp::new(0), None);
            delay.on_ack_sent(Instant::from_millis(at), TcpTimestamp::new(u32::try_from(at).unwrap()), link);
            let echo = TcpTimestamp::new(u32::try_from(at).unwrap());
            // All the time packets are shown that left before.
            for captured in (at..at + rtts + 30).step_by(20) {
                delay.on_echo(Instant::from_millis(captured), TcpTimestamp::new(0), None);
            }
            at += rtts + 30;
            delay.on_echo(Instant::from_millis(at), echo, Some(Duration::from_millis(30)));
        }
        at
    }

    #[test]
    fn the_difference_is_that_of_the_ways_and_not_of_the_queue() {
        let mut delay = PathDelay::default();
        let at = ask(&mut delay, 0, AckLink::Primary, &[50, 52, 50]);
        assert_eq!((delay.difference(), delay.is_known()), (Duration::ZERO, false));
        let at = ask(&mut delay, at, AckLink::Secondary, &[100, 110, 104]);
        assert!((55..60).contains(&delay.difference().as_millis()) && delay.is_known(), "{:?}", delay.difference());
        ask(&mut delay, at, AckLink::Secondary, &[900]);
        assert_eq!(delay.difference(), MAX_DELAY);
        delay.reset_secondary();
        assert_eq!((delay.difference(), delay.is_known()), (Duration::ZERO, false));
    }

    #[test]
    fn what_was_held_and_what_waited_unknown_tells_nothing() {
        let (mut delay, at) = (PathDelay::default(), Instant::from_millis);
        delay.on_echo(at(0), TcpTimestamp::new(0), None);
        delay.on_ack_sent(at(0), TcpTimestamp::new(1), AckLink::Primary);
        delay.on_ack_delayed();
        delay.on_echo(at(50), TcpTimestamp::new(1), Some(Duration::ZERO));
        delay.on_ack_sent(at(50), TcpTimestamp::new(50), AckLink::Primary);
        delay.on_echo(at(100), TcpTimestamp::new(50), None);
        assert_eq!(delay.primary_rtt, None);
    }

    #[test]
    fn what_was_not_looked_for_all_the_time_tells_nothing() {
        let at = Instant::from_millis;
        let first = |captured: &[u64]| {
            let mut delay = PathDelay::default();
            for (n, ms) in captured.iter().enumerate() {
                // The first packet shown is one of before.
                delay.on_echo(at(*ms), TcpTimestamp::new(if n == 0 { 0 } else { 9 }), Some(Duration::ZERO));
                delay.on_ack_sent(at(*ms), TcpTimestamp::new(9 + u32::from(n > 0)), AckLink::Primary);
            }
            delay.primary_rtt
        };
        assert_eq!(first(&[0, 50]), Some(Duration::from_millis(50)));
        assert_eq!(first(&[0, 400]), None, "its echo came at 50 ms, and was not shown");
        let mut delay = PathDelay::default();
        delay.on_ack_sent(at(0), TcpTimestamp::new(1), AckLink::Secondary);
        delay.on_echo(at(200), TcpTimestamp::new(5), Some(Duration::ZERO));
        assert!(
            delay.secondary_rtt.is_none() && delay.is_delivered(),
            "nothing was shown before; but it has arrived"
        );
    }
}
