//! Does the sender slow down when something is lost? One that does not (BBR) has nothing to take back.
//!
//! In: bytes as they come, the flow's episodes. Out: whether an episode is to be helped.
//!
//! 1. Once in a while one random episode is not helped, and what comes in six round trips after it is compared with what
//!    came before. CUBIC and Reno lose three tenths or half of it, for a queue that could hide that is not there: an
//!    episode is taken only while packets do not wait, and while the flow brings thrice of what such a sender could bring
//!    alone, and as much as a moment before.
//! 2. Who loses less than an eighth, three times, is left alone for five minutes. So is a flow that its application or
//!    its receiver limits: it has nothing to gain.
//! 3. What it costs a sender that slows down is one reduction in five minutes.
//!
//! Telling congestion controls apart by the shape of their windows was not used: it takes minutes, and each new one is
//! another shape.

use crate::units::{Bitrate, DataSize, Duration, Instant};

/// What is known of one flow's sender.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sender {
    arrived: u64,
    /// The oldest first, each as long apart as a measurement takes.
    marks: [Option<Mark>; 3],
    /// How often in a row it was found unmoved.
    unmoved: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    arrived: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    /// Helped, until enough is known to try without.
    #[default]
    Helped,
    /// This episode is not helped; the sender had this rate before.
    Withheld {
        before: Bitrate,
    },
    /// It is over, and the sender has slowed down if it does.
    After {
        before: Bitrate,
        from: Mark,
    },
    Known {
        slows: bool,
        until: Instant,
    },
}

/// An ACK, as far as this is concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// A hole showed first, and is called random.
    pub(super) is_random: bool,
    /// Holes are open, or their closing is still being told.
    pub(super) is_busy: bool,
    /// How long packets wait.
    pub(super) queue: Option<Duration>,
    /// The flow's round trip.
    pub(super) rtt: Duration,
    /// What a sender that slows down would bring alone.
    pub(super) plain: Option<Bitrate>,
}

impl Sender {
    /// So many bytes came, in whatever order.
    pub(super) fn on_arrival(&mut self, bytes: usize) {
        self.arrived += u64::try_from(bytes).unwrap_or(0);
    }

    /// Whether the flow is to be helped now.
    pub(super) fn is_helped(&mut self, now: Instant, moment: &Moment) -> bool {
        let mark = Mark { at: now, arrived: self.arrived };
        let window = moment.rtt * WINDOW;
        if self.marks[2].is_none_or(|newest| now.since(newest.at) >= window) {
            self.marks = [self.marks[1], self.marks[2], Some(mark)];
        }
        self.phase = match self.phase {
            Phase::Helped => match self.before(mark, moment, window) {
                Some(before) => Phase::Withheld { before },
                None => Phase::Helped,
            },
            Phase::Withheld { before } if !moment.is_busy => Phase::After { before, from: mark },
            Phase::After { before, from } if now.since(from.at) >= window => {
                let slows = from.rate(mark) < before.share(STEADY);
                self.unmoved = if slows { 0 } else { self.unmoved + 1 };
                let again = if slows || self.unmoved >= SURE { AGAIN } else { Duration::ZERO };
                Phase::Known { slows: self.unmoved < SURE, until: now + again }
            }
            Phase::Known { until, .. } if now >= until => Phase::Helped,
            same => same,
        };
        !matches!(self.phase, Phase::Withheld { .. } | Phase::Known { slows: false, .. })
    }

    /// Whether it was found not to slow down.
    pub(super) const fn is_unmoved(&self) -> bool {
        matches!(self.phase, Phase::Known { slows: false, .. })
    }

    /// The rate before an episode that begins now, if that is one to look at.
    fn before(&self, mark: Mark, moment: &Moment, window: Duration) -> Option<Bitrate> {
        let [Some(first), Some(second), Some(_)] = self.marks else { return None };
        let is_empty = moment.queue.is_some_and(|queue| queue < EMPTY);
        if !moment.is_random || !is_empty || mark.at.since(first.at) > window * 4 {
            return None;
        }
        let (earlier, before) = (first.rate(second), second.rate(mark));
        let is_even = before.share(STEADY) <= earlier && earlier.share(STEADY) <= before;
        let is_fast = moment.plain.is_some_and(|plain| before.bits_per_sec() / 3 >= plain.bits_per_sec());
        (is_even && is_fast).then_some(before)
    }
}

impl Mark {
    fn rate(self, now: Self) -> Bitrate {
        let time = now.at.since(self.at).max(Duration::from_millis(1));
        DataSize::from_bytes(now.arrived - self.arrived) / time
    }
}

/// Round trips.
const WINDOW: u32 = 6;
/// chosen: with so little waiting a cut window cannot keep the link full.
const EMPTY: Duration = Duration::from_millis(5);
/// chosen: one that slows down looks so once in ten times, by the sizes of samples.
const SURE: u32 = 3;
/// chosen: half of what CUBIC gives up, and of what is left of it six round trips later.
const STEADY: crate::units::Ratio = crate::units::Ratio::from_ppm(875_000);
const AGAIN: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// A flow that loses something every 200 ms and repairs it in a round trip. Its rate after a loss that is not helped
    /// is so many percent. For how many of 100 losses was it helped?
    fn run(percent: u64) -> (u32, bool) {
        let (mut sender, mut rate, mut helped) = (Sender::default(), 100, 0);
        let plain = Some(Bitrate::from_mbps(5));
        for ms in 0..20_000_u64 {
            let now = Instant::from_millis(ms);
            let is_random = ms % 200 == 100;
            let is_busy = (100..150).contains(&(ms % 200));
            sender.on_arrival(usize::try_from(25 * rate).unwrap());
            let moment = Moment { is_random, is_busy, queue: Some(Duration::ZERO), rtt: RTT, plain };
            let is_helped = sender.is_helped(now, &moment);
            if is_random {
                helped += u32::from(is_helped);
                rate = if is_helped { 100 } else { percent };
            }
        }
        (helped, sender.is_unmoved())
    }

    #[test]
    fn who_slows_down_is_helped_all_but_once() {
        assert_eq!(run(70), (99, false));
        assert_eq!(run(50), (99, false));
    }

    #[test]
    fn who_does_not_is_left_alone() {
        let (helped, unmoved) = run(100);
        assert!(unmoved && helped < 20, "{helped}");
    }

    #[test]
    fn nothing_is_tried_while_packets_wait() {
        let mut sender = Sender::default();
        for ms in 0..10_000 {
            let moment =
                Moment { is_random: ms % 100 == 0, is_busy: false, queue: Some(EMPTY), rtt: RTT, plain: None };
            assert!(sender.is_helped(Instant::from_millis(ms), &moment));
        }
    }
}
