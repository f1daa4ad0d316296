//! Outage detector of the primary link (Super-aggregation §3.2, *Blackout Detector*).
//!
//! 1. Passive first: no activity for 200 ms, or for twice the usual gap between packets where that is longer, is a
//!    suspicion. Then the interface's own packet counter is read, which also counts what no tracked flow receives:
//!    twice, because its value at the last activity is unknown.
//! 2. If the counter does not move, the gateway is probed twice. No reply within 40 ms, or within twice its usual round
//!    trip: the link is down. Then it is probed every 20 ms until something arrives, and less often after ten seconds.
//! 3. A refuted suspicion is raised again after twice the time, and no more after some seconds, so that an idle link is
//!    not kept awake. The next activity arms the detector again.
//! 4. A lost carrier is an outage at once; when it returns, the gateway is probed at once.
//! 5. The silence of a gateway that has never replied means nothing, because many do not answer pings. Then only the
//!    carrier shows outages ([`OutageDetector::is_unresponsive`]).

use alloc::collections::VecDeque;

use crate::accel::event::Output;
use crate::accel::outage::options::OutageOptions;
use crate::link::LinkId;
use crate::units::{Duration, Instant};

/// Detector of one link.
#[derive(Clone, Debug)]
pub(crate) struct OutageDetector {
    options: &'static OutageOptions,
    link: LinkId,
    state: State,
    last_activity: Option<Instant>,
    /// When the carrier was lost last.
    carrier_lost: Option<Instant>,
    /// Smoothed gap between two packets.
    mean_gap: Duration,
    /// The last packet count, and when it was read.
    last_count: Option<(u64, Instant)>,
    next_sequence: u16,
    probes: VecDeque<(u16, Instant)>,
    rtt: Option<Duration>,
    smoothed_rtt: Option<Duration>,
    outages: u64,
    outage_time: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No flow expects packets, so silence is no sign of an outage.
    Idle,
    /// Without activity until then the link is suspected; so many suspicions in a row were refuted.
    Up {
        until: Instant,
        refuted: u32,
    },
    /// The packet counter was requested.
    Counting {
        refuted: u32,
        since: Instant,
    },
    /// The gateway was probed once or twice; how long a reply is awaited.
    Probing {
        refuted: u32,
        until: Instant,
        again: bool,
    },
    Down {
        since: Instant,
        next: Instant,
    },
}

/// A change of the link's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutageEvent {
    Started,
    Ended,
}

impl OutageDetector {
    /// A detector for this link.
    pub(crate) fn new(link: LinkId, options: &'static OutageOptions) -> Self {
        Self {
            options,
            link,
            state: State::Idle,
            last_activity: None,
            carrier_lost: None,
            mean_gap: Duration::ZERO,
            last_count: None,
            next_sequence: 0,
            probes: VecDeque::new(),
            rtt: None,
            smoothed_rtt: None,
            outages: 0,
            outage_time: Duration::ZERO,
        }
    }

    /// A packet came over the link, or must have come.
    pub(crate) fn on_activity(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> Option<OutageEvent> {
        if self.smoothed_rtt.is_none() && self.probes.is_empty() {
            // The gateway's round trip must be known before it is needed.
            self.probe(now, outputs);
        }
        if let Some(last) = self.last_activity {
            let pause = now.since(last).min(self.options.max_gap);
            self.mean_gap = (self.mean_gap * 7 + pause) / 8;
        }
        self.last_activity = Some(now);
        // Packets from before the loss of the carrier may be processed after it.
        let is_old =
            self.is_down() && self.carrier_lost.is_some_and(|lost_at| now.since(lost_at) < self.options.quiet_time);
        if is_old { None } else { self.set_up(now, 0) }
    }

    /// The interface has received so many packets.
    pub(crate) fn on_count(
        &mut self,
        now: Instant,
        packets: u64,
        outputs: &mut VecDeque<Output>,
    ) -> Option<OutageEvent> {
        let before = self.last_count.replace((packets, now));
        let before = before.filter(|(_, at)| self.last_activity.is_none_or(|sign| *at > sign));
        match (self.state, before) {
            (State::Counting { refuted, .. }, None) => {
                self.state = State::Up { until: now + self.options.count_interval, refuted }
            }
            (State::Counting { refuted, .. }, Some((before, _))) if packets > before => {
                return self.set_up(now, refuted + 1);
            }
            (State::Counting { refuted, .. }, Some(_)) => {
                self.probe(now, outputs);
                self.state = State::Probing { refuted, until: now + self.reply_timeout() / 2, again: false };
            }
            _ => {}
        }
        None
    }

    /// The gateway replied.
    pub(crate) fn on_probe_reply(&mut self, now: Instant, sequence: u16) -> Option<OutageEvent> {
        let at = self.probes.iter().position(|(probe, _)| *probe == sequence)?;
        let (_, probe) = self.probes.remove(at)?;
        let rtt = now.since(probe);
        // A reply that was queued during the outage is no sample.
        if !self.is_down() {
            self.smoothed_rtt = Some(self.smoothed_rtt.map_or(rtt, |smoothed| (smoothed * 7 + rtt) / 8));
        }
        self.rtt = Some(rtt);
        match self.state {
            State::Probing { refuted, .. } | State::Counting { refuted, .. } => self.set_up(now, refuted + 1),
            State::Down { .. } => self.set_up(now, 0),
            State::Idle | State::Up { .. } => None,
        }
    }

    /// The carrier was lost or returned.
    pub(crate) fn on_carrier(
        &mut self,
        now: Instant,
        is_up: bool,
        outputs: &mut VecDeque<Output>,
    ) -> Option<OutageEvent> {
        match (is_up, self.is_down()) {
            (false, false) => {
                self.carrier_lost = Some(now);
                Some(self.set_down(now, outputs))
            }
            (true, true) => {
                self.probe_while_down(now, outputs);
                None
            }
            _ => None,
        }
    }

    pub(crate) fn tick(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> Option<OutageEvent> {
        if self.deadline().is_none_or(|due| now < due) {
            return None;
        }
        match self.state {
            State::Idle => None,
            State::Up { refuted, .. } => {
                self.state = State::Counting { refuted, since: now };
                outputs.push_back(Output::CountPackets { link: self.link });
                None
            }
            // Without a counter the gateway is probed all the same.
            State::Counting { refuted, .. } | State::Probing { refuted, again: false, .. } => {
                self.probe(now, outputs);
                self.state = State::Probing { refuted, until: now + self.reply_timeout() / 2, again: true };
                None
            }
            // A gateway that has never replied proves nothing.
            State::Probing { refuted, .. } if self.smoothed_rtt.is_none() => self.set_up(now, refuted + 1),
            State::Probing { .. } => Some(self.set_down(now, outputs)),
            State::Down { .. } => {
                self.probe_while_down(now, outputs);
                None
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Up { until, .. } => Some(until),
            State::Counting { since, .. } => Some(since + COUNT_TIMEOUT),
            State::Probing { until, .. } => Some(until),
            State::Down { next, .. } => Some(next),
        }
    }

    /// Whether the link carries nothing.
    pub(crate) const fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Number of outages so far.
    pub(crate) const fn outages(&self) -> u64 {
        self.outages
    }

    /// Total duration of all outages.
    pub(crate) fn outage_time(&self, now: Instant) -> Duration {
        match self.state {
            State::Down { since, .. } => self.outage_time + now.since(since),
            _ => self.outage_time,
        }
    }

    /// The last round trip to the gateway.
    pub(crate) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Whether the gateway was probed several times and has never replied.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.smoothed_rtt.is_none() && self.next_sequence >= UNRESPONSIVE_PROBES
    }

    fn set_up(&mut self, now: Instant, refuted: u32) -> Option<OutageEvent> {
        let was = self.state;
        let quiet_time = self
            .options
            .quiet_time
            .max(self.mean_gap * 2)
            .saturating_mul(1 << refuted.min(self.options.max_refuted));
        self.state = if refuted > self.options.max_refuted {
            State::Idle
        } else {
            State::Up { until: now + quiet_time, refuted }
        };
        let State::Down { since, .. } = was else { return None };
        self.outage_time += now.since(since);
        Some(OutageEvent::Ended)
    }

    fn set_down(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> OutageEvent {
        self.outages += 1;
        self.state = State::Down { since: now, next: now };
        self.probe_while_down(now, outputs);
        OutageEvent::Started
    }

    fn probe_while_down(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        let State::Down { since, .. } = self.state else { return };
        self.probe(now, outputs);
        let outage = now.since(since);
        let pause = match outage.as_secs() {
            0..10 => self.options.first_probe_interval,
            10..60 => self.options.second_probe_interval,
            _ => self.options.last_probe_interval,
        };
        self.state = State::Down { since, next: now + pause };
    }

    fn probe(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        self.next_sequence = self.next_sequence.wrapping_add(1);
        if self.probes.len() == MAX_PENDING_PROBES {
            self.probes.pop_front();
        }
        self.probes.push_back((self.next_sequence, now));
        outputs.push_back(Output::Probe { link: self.link, sequence: self.next_sequence });
    }

    fn reply_timeout(&self) -> Duration {
        self.smoothed_rtt
            .map_or(UNKNOWN_REPLY_TIMEOUT, |smoothed| (smoothed * 2).max(self.options.min_reply_timeout))
    }
}

/// Bounds the wait for the counter: the driver answers a request for it at once.
const COUNT_TIMEOUT: Duration = Duration::from_millis(20);
/// Bounds the wait for a gateway that has not replied yet: it may be as far as that of a satellite link.
const UNKNOWN_REPLY_TIMEOUT: Duration = Duration::from_millis(600);
/// Probes of a gateway that has never replied, after which the status shows it as unresponsive: one at the first packet,
/// and two suspicions with two each.
const UNRESPONSIVE_PROBES: u16 = 5;
/// Probes that may be unanswered: those of 1.3 s of an outage.
const MAX_PENDING_PROBES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(0);

    /// A detector with its outputs and a clock.
    struct Bench {
        detector: OutageDetector,
        outputs: VecDeque<Output>,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let mut bench = Self {
                detector: OutageDetector::new(LINK, &OutageOptions::DEFAULT),
                outputs: VecDeque::new(),
                now: Instant::from_millis(1000),
            };
            bench.detector.on_activity(bench.now, &mut bench.outputs);
            bench.now += Duration::from_millis(10);
            assert_eq!(bench.questions(), [1], "the first sign asks how far the gateway is");
            assert_eq!(bench.detector.on_probe_reply(bench.now, 1), None);
            bench
        }

        fn tick(&mut self) -> Option<OutageEvent> {
            self.now = self.detector.deadline().unwrap();
            self.detector.tick(self.now, &mut self.outputs)
        }

        fn questions(&mut self) -> alloc::vec::Vec<u16> {
            let each = self.outputs.drain(..).filter_map(|output| match output {
                Output::Probe { sequence, .. } => Some(sequence),
                _ => None,
            });
            each.collect()
        }
    }

    #[test]
    fn silence_without_a_reply_is_an_outage_and_a_reply_ends_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.tick(), None);
        assert_eq!(bench.now, Instant::from_millis(1200), "200 ms without activity");
        assert_eq!(bench.outputs.drain(..).collect::<alloc::vec::Vec<_>>(), [Output::CountPackets { link: LINK }]);
        assert_eq!(bench.detector.on_count(bench.now, 7, &mut bench.outputs), None);
        assert_eq!(bench.tick(), None);
        assert_eq!(bench.now, Instant::from_millis(1240), "the counter is read again");
        assert_eq!(bench.outputs.drain(..).collect::<alloc::vec::Vec<_>>(), [Output::CountPackets { link: LINK }]);
        assert_eq!(bench.detector.on_count(bench.now, 7, &mut bench.outputs), None);
        assert_eq!(bench.tick(), None);
        assert_eq!(bench.tick(), Some(OutageEvent::Started));
        assert_eq!(bench.now, Instant::from_millis(1280));
        assert_eq!(bench.questions(), [2, 3, 4]);
        for n in 5..100 {
            assert_eq!(bench.tick(), None);
            assert_eq!(bench.questions(), [n]);
        }
        assert_eq!(bench.detector.on_probe_reply(bench.now, 98), Some(OutageEvent::Ended));
        assert_eq!(bench.detector.outages(), 1);
        assert_eq!(bench.detector.outage_time(bench.now), Duration::from_millis(20 * 95));
    }

    #[test]
    fn a_growing_count_or_a_reply_refutes_a_suspicion_and_the_detector_becomes_idle() {
        let mut bench = Bench::new();
        let mut times = 0;
        while bench.detector.deadline().is_some() {
            assert_eq!(bench.tick(), None);
            let outputs: alloc::vec::Vec<Output> = bench.outputs.drain(..).collect();
            match *outputs.first().unwrap() {
                Output::CountPackets { .. } if times < 2 => {
                    assert_eq!(bench.detector.on_count(bench.now, 7 + times, &mut bench.outputs), None);
                }
                Output::CountPackets { .. } => {
                    assert_eq!(bench.detector.on_count(bench.now, 8, &mut bench.outputs), None);
                    let sequence = bench.questions()[0];
                    assert_eq!(bench.detector.on_probe_reply(bench.now, sequence), None);
                }
                ref other => panic!("{other:?}"),
            }
            times += 1;
        }
        assert_eq!(times, 6);
        assert!(bench.now < Instant::from_millis(8000) && !bench.detector.is_down());
    }

    #[test]
    fn a_lost_carrier_is_an_outage_at_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.detector.on_carrier(bench.now, false, &mut bench.outputs), Some(OutageEvent::Started));
        assert_eq!(bench.detector.on_carrier(bench.now, false, &mut bench.outputs), None);
        bench.questions();
        assert_eq!(bench.detector.on_carrier(bench.now, true, &mut bench.outputs), None);
        assert_eq!(bench.questions(), [3], "probed at once");
        assert_eq!(bench.detector.on_probe_reply(bench.now, 3), Some(OutageEvent::Ended));
    }

    #[test]
    fn a_gateway_that_never_replies_is_no_outage_and_a_lost_carrier_is() {
        let (mut detector, mut outputs) = (OutageDetector::new(LINK, &OutageOptions::DEFAULT), VecDeque::new());
        let mut now = Instant::from_millis(1000);
        detector.on_activity(now, &mut outputs);
        while let Some(due) = detector.deadline() {
            now = due;
            assert_eq!(detector.tick(now, &mut outputs), None);
            if outputs.drain(..).any(|output| matches!(output, Output::CountPackets { .. })) {
                assert_eq!(detector.on_count(now, 7, &mut outputs), None);
            }
        }
        assert!(now < Instant::from_millis(30_000), "it becomes idle: {now}");
        assert!(detector.is_unresponsive() && !detector.is_down());
        assert_eq!(detector.on_carrier(now, false, &mut outputs), Some(OutageEvent::Started));
        assert_eq!(detector.on_carrier(now, true, &mut outputs), None);
        assert_eq!(
            detector.on_activity(now + Duration::from_millis(199), &mut outputs),
            None,
            "a packet from before"
        );
        assert_eq!(
            detector.on_activity(now + Duration::from_millis(200), &mut outputs),
            Some(OutageEvent::Ended),
            "new data"
        );
    }

    #[test]
    fn a_distant_gateway_gets_more_time() {
        let mut bench = Bench::new();
        bench.detector.smoothed_rtt = Some(Duration::from_millis(200));
        for _ in 0..2 {
            bench.tick();
            bench.detector.on_count(bench.now, 7, &mut bench.outputs);
        }
        let probe = bench.now;
        bench.tick();
        assert_eq!(bench.tick(), Some(OutageEvent::Started));
        assert_eq!(bench.now.since(probe), Duration::from_millis(400));
    }
}
